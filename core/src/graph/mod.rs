//! What a stage computes for one microbatch: a small graph of operators on tensors, as data.
//!
//! - In: a model, a layout, the layers of a stage.
//! - Out: the operators of F, B and W with their tensors, rewritten by passes; what each job keeps.
//! - Knows: models. Nothing of rates, ranks or schedules.
//!
//! Memory, time, the passes and the runner all read this one graph, so what is estimated is what runs.
//!
//! # Meaning
//! A [`Graph`] is one stage's work for one microbatch in three jobs, [`Job::F`], [`Job::B`] and [`Job::W`].
//! [`Graph::operators`] lists F's operators, then those of B and W as a fused BW runs them. B alone runs its own of
//! these in list order, and W later the rest: so nothing of B needs what W makes. B runs after F and W after B of the
//! same microbatch, with jobs of other microbatches in between as the schedule says.
//!
//! [`backward`] writes an undivided backward, all of it in B. The [`passes`] then move operators to W, overlap
//! collectives with compute, and recompute activations.
//!
//! Every tensor is written once, by one operator, or arrives from outside; no operator reads what has not been
//! written. The one exception is a [`Role::WeightGradient`], which every operator that lists it as its output
//! also lists as its last input and adds to. So microbatches accumulate in the order of the rank's op list.
//!
//! B holds all that lies on the way to the gradient of the stage's input, and the gradients of gains and
//! biases. W holds what is worth deferring ([`passes::split_backward`]). The first stage sends no gradient on.
//!
//! # Lifetime
//! Weights and their gradients are persistent: one for all microbatches, held throughout. Every other tensor
//! belongs to one microbatch:
//! - one that arrives ([`Role::arrives_in`]) is there when its job starts;
//! - one that an operator writes is allocated right before that operator, all outputs together, unless the
//!   operator runs [in place](Operator::in_place): then output 0 takes over that input's buffer;
//! - it is freed right after the last operator, over F, B and W in this order, that needs its data (right after
//!   the operator that writes it where nobody does); an operator that needs only the shape does not count. Where BW is
//!   fused, the last in the list;
//! - one that leaves ([`Role::leaves_after`]) is there until its job ends, then the transfer has it. Its bytes
//!   while it is on its way are the transfer's buffers, which static memory counts, and not the job's.
//!
//! [`liveness`] works this out.
//!
//! # Tensor parallel
//! Where several devices share each matrix ([`form::Form::tensor`]), all of them run the same graph, which has the
//! sizes of one. Each has a number, its *member*, which the executor knows and a few kernels read. Collectives are
//! operators like any other: they end when every member has reached them. All members run the same lists in the same
//! order, so they reach the same collective. The [`Split`] of a weight tells the part that each member holds.
//!
//! # Expert parallel
//! Where the experts of a layer are spread over several devices ([`form::Form::expert`]), each device holds an equal
//! number of consecutive experts, and different tokens outside of the experts. [`Kernel::Dispatch`] sends tokens to
//! their experts and writes how many came for each expert and from where, in a tensor that later operators read.
//! [`Kernel::Combine`] and both gradients exchange rows the same way. A device has a fixed number of rows for
//! incoming tokens, so that its memory is fixed: a run ends where routing sends it more. All devices that exchange
//! rows run the same graph, so they reach the same exchanges in the same order.
//!
//! # Context parallel
//! Where several devices hold a part of every sequence each ([`form::Form::context`]), all of them run the same graph
//! with the rows of one part. [`SequencePart`] tells which tokens these are. Kernels that depend on a token's
//! position use its position in the whole sequence.
//!
//! # Collectives that overlap compute
//! An operator of [`Stream::Collective`] ([`Kernel::starts`]) begins a collective as soon as its input is complete, and
//! the operators after it do not wait. The one that waits ([`Kernel::waits`]) names the started tensor as its input 0.
//! What an executor does:
//! - at the start: takes the output's buffer (or the input's, in place), copies the input there for an all-reduce that
//!   is not in place, and begins the collective once all that was computed before is there. On a device that is an event
//!   on the compute stream for which the collectives' stream waits.
//! - in between: whatever operators stand there. None reads or writes the started tensor. Collectives of one group run
//!   in the order of their starts, which is the same on all of its devices, as they hold the same graph.
//! - at the wait: goes on only once the collective is done; output 0 holds its result, in the same buffer where it is
//!   in place. A device's compute stream waits for an event; the host need not.
//!
//! An executor that blocks may do nothing at the start but hand the buffer on, and all of it at the wait, or the
//! reverse: the numbers are the same. So the buffer lives from start to wait, and time counts what the operators
//! between leave uncovered ([`cost`](crate::hardware::cost)).
//!
//! # Activation offload
//! Activations may wait for the backward in host memory ([`passes::offload_activations`]) as [`Role::OnHost`], which
//! takes no device memory. Copies run on a separate queue ([`Stream::Copies`]) that overlaps compute and collectives,
//! in the order of their starts and under the same rules: one operator starts a copy, and a later one waits for it.
//!
//! # Numbers
//! All tensors are row-major. Activations are matrices of one row a token: row `b · sequence + position` for
//! sequence `b` of the microbatch. Kernels read and write the dtype of their tensors; they compute in `f32`, or
//! in `f64` where a tensor is `f64`. Saved statistics (inverse RMS, log-sum-exp) are `f32`, or `f64` in an `f64`
//! graph. A kernel's scratch is a tile of constant size, its own affair and not counted.

pub mod backward;
pub mod build;
mod builder;
mod experts;
pub mod form;
mod gpt;
pub mod kernel;
mod latent;
pub mod layout;
pub mod liveness;
mod llama;
pub mod optimizer;
mod parts;
pub mod passes;
pub mod post_training;
mod recurrence;
#[cfg(test)]
mod reference;
mod sequence_part;
#[cfg(test)]
mod tests;
mod vision;

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Index;

pub use kernel::{Angles, Axis, Heads, ImageRows, Indexing, Kernel, Recurring, Spread, of_e12};
pub use sequence_part::SequencePart;

use crate::model::Dtype;

/// A tensor's position in [`Graph::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u32);

impl TensorId {
    /// The position as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One of the three pieces of a stage's work for a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Job {
    /// Forward.
    F,
    /// Backward for the stage's inputs.
    B,
    /// Backward for the stage's weights.
    W,
}

impl Job {
    /// All jobs in the order in which one microbatch runs them.
    pub const ALL: [Job; 3] = [Job::F, Job::B, Job::W];
}

/// How a weight starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Init {
    /// Normally distributed around 0 with a standard deviation of 0.02.
    Normal,
    /// All 1.
    Ones,
    /// All 0.
    Zeros,
}

/// The standard deviation of [`Init::Normal`].
pub const INIT_STD: f64 = 0.02;

/// How the devices that share matrices hold a weight between them: cut into pieces along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// The dimension that is cut.
    pub dimension: u32,
    /// Its size in the whole weight. A piece has a share of it, rounded up: what the last ones have beyond the whole is
    /// padding, which is 0 and stays so.
    pub whole: u64,
    /// The devices, t.
    pub ways: u64,
    /// Pieces, in order of members. With fewer than devices, `ways / pieces` members that follow each other hold the
    /// same one.
    pub pieces: u64,
}

impl Split {
    /// Members that hold the same piece.
    pub fn holders(&self) -> u64 {
        (self.ways / self.pieces.max(1)).max(1)
    }

    /// The piece that `member` holds.
    pub fn piece_of(&self, member: u64) -> u64 {
        member / self.holders()
    }
}

/// What a tensor is to the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The tokens that stand `ahead` places behind each of the microbatch's in the text, `i32 [tokens]`; arrives
    /// before F.
    Tokens {
        /// 0: the microbatch's own. 1: those that follow them, which the model predicts. More: what multi-token
        /// prediction reads and predicts beyond.
        ahead: u32,
    },
    /// The pixels of the microbatch's images, one row a patch; arrives before F. Only planned.
    Images,
    /// A parameter, persistent. Its name is that of Hugging Face's checkpoints, and so is its shape: a matrix
    /// is `[out, in]`.
    Weight {
        /// How it starts.
        init: Init,
        /// Whether the optimizer's weight decay applies: matrices yes, gains and biases no.
        decay: bool,
        /// Whether another stage holds a copy (tied embeddings), so that both gradients must be summed before
        /// the optimizer's step.
        shared: bool,
        /// Where it is a matrix of each expert, `[experts, out, in]`: the devices that experts are dealt to, each of
        /// which holds as many that follow each other.
        experts: Option<u64>,
        /// Which part of the weight each of the devices that share matrices holds; none: each holds all of it.
        split: Option<Split>,
        /// Whether the gradient that a device gathers is only its share of the sum over all that hold the same
        /// elements, because each has seen other tokens, or made another part of what the weight goes into.
        partial: bool,
        /// Whether it does not train: it has no gradient and no optimizer states.
        frozen: bool,
    },
    /// A copy of a weight in the format of matmuls, made after each optimizer step; persistent. Of each weight there are two, quantized
    /// for products along its rows and along its columns.
    WeightCopy {
        /// The weight.
        of: TensorId,
    },
    /// The gradient of a weight, summed over the microbatches; persistent, of the weight's shape, set to 0
    /// before a step's first microbatch.
    WeightGradient {
        /// The weight.
        of: TensorId,
    },
    /// The output of the stage before, `[tokens, hidden]`; arrives before F.
    ActivationIn,
    /// What the next stage receives, `[tokens, hidden]`; leaves after F.
    ActivationOut,
    /// The gradient of [`Role::ActivationOut`] from the next stage; arrives before B.
    GradientIn,
    /// The gradient of [`Role::ActivationIn`], for the stage before; leaves after B.
    GradientOut,
    /// A copy in the host's memory of what an operator made, which takes none of the device's.
    OnHost,
    /// The microbatch's share of the step's loss, one number; leaves after F. The sum over a step's
    /// microbatches is the mean over all of its tokens. What is trained is the weighted sum of all losses.
    Loss {
        /// How far behind its own token each predicts: 1 is the model's own loss, more are those of multi-token
        /// prediction.
        ahead: u32,
        /// What it is multiplied with in the sum, in units of 10⁻¹².
        weight_e12: u64,
    },
    /// What the router of a layer is trained on besides, one number, in the sum of what is trained with its own
    /// coefficients; leaves after F.
    RouterLoss {
        /// The layer.
        layer: u32,
    },
    /// Anything else.
    Intermediate,
}

impl Role {
    /// Whether one tensor serves all microbatches.
    pub const fn is_persistent(self) -> bool {
        matches!(self, Role::Weight { .. } | Role::WeightCopy { .. } | Role::WeightGradient { .. })
    }

    /// The job before which such a tensor comes from outside.
    pub const fn arrives_in(self) -> Option<Job> {
        match self {
            Role::Tokens { .. } | Role::Images | Role::ActivationIn => Some(Job::F),
            Role::GradientIn => Some(Job::B),
            _ => None,
        }
    }

    /// The job after which such a tensor goes outside.
    pub const fn leaves_after(self) -> Option<Job> {
        match self {
            Role::ActivationOut | Role::Loss { .. } | Role::RouterLoss { .. } => Some(Job::F),
            Role::GradientOut => Some(Job::B),
            _ => None,
        }
    }
}

/// A tensor. The data is the runner's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// For people and, for a weight, for checkpoints: `model.layers.3.self_attn.q_proj.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// Number format.
    pub dtype: Dtype,
    /// What it is to the stage.
    pub role: Role,
}

impl Tensor {
    /// Elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size))
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.dtype.bytes_of(self.elements())
    }

    /// Bytes of the device's memory.
    pub fn device_bytes(&self) -> u64 {
        if self.role == Role::OnHost { 0 } else { self.bytes() }
    }

    /// How the devices that share matrices hold it, where it is a weight that they have cut.
    pub fn split(&self) -> Option<Split> {
        match self.role {
            Role::Weight { split, .. } => split,
            _ => None,
        }
    }

    /// Whether it is a weight itself, no copy of one.
    pub fn is_weight(&self) -> bool {
        matches!(self.role, Role::Weight { .. })
    }

    /// Whether it is one of the matrices of LoRA.
    pub fn is_adapter(&self) -> bool {
        self.is_weight() && (self.name.ends_with(".lora_A.weight") || self.name.ends_with(".lora_B.weight"))
    }

    /// Whether it is a weight that does not train.
    pub fn is_frozen(&self) -> bool {
        matches!(self.role, Role::Weight { frozen: true, .. })
    }

    /// The devices that experts are dealt to, where it is a matrix of each expert.
    pub fn expert_ways(&self) -> Option<u64> {
        match self.role {
            Role::Weight { experts, .. } => experts,
            _ => None,
        }
    }

    /// The sizes of what all devices that share matrices, or that experts are dealt to, hold together: those of the
    /// model's checkpoints.
    pub fn whole_shape(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if let (Some(ways), Some(experts)) = (self.expert_ways(), shape.first_mut()) {
            *experts = experts.saturating_mul(ways);
        }
        if let Some(split) = self.split()
            && let Some(size) = shape.get_mut(split.dimension as usize)
        {
            *size = split.whole;
        }
        shape
    }
}

/// What an operator needs of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needs {
    /// Its elements.
    Data,
    /// Only its sizes: the buffer may be gone.
    Shape,
}

/// An input of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Use {
    /// The tensor.
    pub tensor: TensorId,
    /// What is needed of it.
    pub needs: Needs,
}

/// Where an operator is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// The rank's compute, in order.
    Compute,
    /// The collectives among the devices of the rank, in order, beside compute: only operators that
    /// [start](Kernel::starts) one.
    Collective,
    /// Copies to the host's memory and back, in order, beside both: only operators that start [one](Kernel::copies).
    Copies,
}

/// One step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// What is computed.
    pub kernel: Kernel,
    /// In which job.
    pub job: Job,
    /// In the order that the kernel documents.
    pub inputs: Vec<Use>,
    /// In the order that the kernel documents.
    pub outputs: Vec<TensorId>,
    /// The input (its position in `inputs`) whose buffer output 0 takes over. That input is not used again and
    /// has the output's shape and dtype. Every kernel that allows it writes an element, a rotated pair or a row
    /// only after it has read all that it needs of it.
    pub in_place: Option<u32>,
    /// Where it is queued.
    pub stream: Stream,
    /// The decoder layer it belongs to, counted over the whole model; none for embedding and head.
    pub layer: Option<u32>,
}

/// One stage's work for one microbatch. See the module for what it means.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Graph {
    /// All tensors of the three jobs.
    pub tensors: Vec<Tensor>,
    /// F's operators, then those of B and W, mixed as a fused BW runs them.
    pub operators: Vec<Operator>,
}

impl Index<TensorId> for Graph {
    type Output = Tensor;

    fn index(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }
}

impl Graph {
    /// How many operators are F's: they come first.
    pub fn forward_len(&self) -> usize {
        self.operators.iter().take_while(|operator| operator.job == Job::F).count()
    }

    /// The operators of `job`, in order.
    pub fn job(&self, job: Job) -> impl Iterator<Item = &Operator> {
        self.operators.iter().filter(move |operator| operator.job == job)
    }

    /// All tensors with their ids.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors.iter().enumerate().map(|(index, tensor)| (TensorId(index as u32), tensor))
    }

    /// The first tensor of `role`: the tokens, the activation in, the loss.
    pub fn with_role(&self, role: Role) -> Option<TensorId> {
        self.tensors().find(|(_, tensor)| tensor.role == role).map(|(id, _)| id)
    }

    /// The weights of layers: those that operators of a layer read, and not those of the embedding, the head, and the norm
    /// before the head, which modules that predict later tokens read, too.
    pub fn weights_of_layers(&self) -> BTreeSet<TensorId> {
        let of_layers = self.job(Job::F).filter(|operator| operator.layer.is_some());
        let reads = |operator: &Operator| -> Vec<TensorId> {
            operator.inputs.iter().filter_map(|input| self.weight_of(input.tensor)).collect()
        };
        let is_of_ends = |operator: &&Operator| operator.layer.is_none() || operator.kernel == Kernel::Embedding;
        let of_ends: BTreeSet<TensorId> = self.job(Job::F).filter(is_of_ends).flat_map(reads).collect();
        of_layers.flat_map(reads).filter(|weight| !of_ends.contains(weight)).collect()
    }

    /// The weight that `tensor` is, or of which it is a [copy](Role::WeightCopy).
    pub fn weight_of(&self, tensor: TensorId) -> Option<TensorId> {
        match self[tensor].role {
            Role::WeightCopy { of } => Some(of),
            _ => self[tensor].is_weight().then_some(tensor),
        }
    }

    /// The weights, in the order in which the forward uses them.
    pub fn weights(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors().filter(|(_, tensor)| matches!(tensor.role, Role::Weight { .. }))
    }

    /// The accumulator of `weight`'s gradient.
    pub fn gradient_of(&self, weight: TensorId) -> Option<TensorId> {
        self.with_role(Role::WeightGradient { of: weight })
    }
}
