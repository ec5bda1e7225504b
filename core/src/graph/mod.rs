//! What a stage computes for one microbatch: a small graph of operators on tensors, as data.
//!
//! Memory, time, the passes and the runner all read this one graph, so what is estimated is what runs.
//!
//! # Meaning
//! A [`Graph`] is one stage's work for one microbatch in three jobs, [`Job::F`], [`Job::B`] and [`Job::W`].
//! [`Graph::operators`] lists F's operators, then B's, then W's; within a job they run in list order. B runs
//! after F and W after B of the same microbatch, with jobs of other microbatches in between as the schedule
//! says. A fused BW runs the operators of both, each of W's as soon as B has made what it needs
//! ([`liveness::fused_order`]).
//!
//! Every tensor is written once, by one operator, or arrives from outside; no operator reads what has not been
//! written. The one exception is a [`Role::WeightGradient`], which every operator that lists it as its output
//! also lists as its last input and adds to. So microbatches accumulate in the order in which the row runs
//! them.
//!
//! B holds all that lies on the way to the gradient of the stage's input, and the gradients of gains and
//! biases: these are a sum over tokens, too small to fill a bubble, and deferring them would keep two more
//! tensors of the hidden width alive for each norm. W holds what is worth deferring: the gradients of matrices
//! (one matmul each) and of the embeddings. The first stage sends no gradient on.
//!
//! # Lifetime
//! Weights and their gradients are persistent: one for all microbatches, held throughout. Every other tensor
//! belongs to one microbatch:
//! - one that arrives ([`Role::arrives_in`]) is there when its job starts;
//! - one that an operator writes is allocated right before that operator, all outputs together, unless the
//!   operator runs [in place](Operator::in_place): then output 0 takes over that input's buffer;
//! - it is freed right after the last operator, over F, B and W in this order, that needs its data (right after
//!   the operator that writes it where nobody does); an operator that needs only the shape does not count. Where BW is
//!   fused, the last in its order;
//! - one that leaves ([`Role::leaves_after`]) is there until its job ends, then the transfer has it. Its bytes
//!   while it is on its way are the transfer's buffers, which static memory counts, and not the job's.
//!
//! [`liveness`] works this out.
//!
//! # Numbers
//! All tensors are row-major. Activations are matrices of one row a token: row `b · sequence + position` for
//! sequence `b` of the microbatch. Kernels read and write the dtype of their tensors; they compute in `f32`, or
//! in `f64` where a tensor is `f64`. Saved statistics (inverse RMS, log-sum-exp) are `f32`, or `f64` in an `f64`
//! graph. A kernel's scratch is a tile of constant size, its own affair and not counted.

pub mod backward;
pub mod build;
pub mod form;
mod gpt;
pub mod liveness;
mod llama;
pub mod recompute;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Index;

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

/// What a tensor is to the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The microbatch's tokens, `i32 [tokens]`; arrives before F.
    Tokens,
    /// The token that follows each token, `i32 [tokens]`; arrives before F.
    Targets,
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
    /// The microbatch's share of the step's loss, one number; leaves after F. The sum over a step's
    /// microbatches is the mean over all of its tokens.
    Loss,
    /// Anything else.
    Intermediate,
}

impl Role {
    /// Whether one tensor serves all microbatches.
    pub const fn is_persistent(self) -> bool {
        matches!(self, Role::Weight { .. } | Role::WeightGradient { .. })
    }

    /// The job before which such a tensor comes from outside.
    pub const fn arrives_in(self) -> Option<Job> {
        match self {
            Role::Tokens | Role::Targets | Role::ActivationIn => Some(Job::F),
            Role::GradientIn => Some(Job::B),
            _ => None,
        }
    }

    /// The job after which such a tensor goes outside.
    pub const fn leaves_after(self) -> Option<Job> {
        match self {
            Role::ActivationOut | Role::Loss => Some(Job::F),
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
        self.elements().saturating_mul(self.dtype.bytes())
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

/// The heads of an attention operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Tokens of one sequence; the rows of a microbatch are a multiple.
    pub sequence: u64,
    /// Query heads, `a`.
    pub query: u64,
    /// Key and value heads, `g`; divides `query`. Query head `h` reads key and value head `h · g / a`.
    pub key_value: u64,
    /// Width of one head, `d`. Head `h` is columns `h · d .. (h + 1) · d`.
    pub width: u64,
}

/// What an operator computes, with its attributes. Inputs and outputs are given as
/// `(inputs) → (outputs)`, with `n` tokens (rows), `·` for a matrix product and `∘` for one by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// `(tokens [n], table [vocab, h]) → (y [n, h])`: row `i` of `y` is row `tokens[i]` of the table.
    Embedding,
    /// `(dy [n, h], tokens [n], G [vocab, h]) → (G)`: `G[tokens[i]] += dy[i]`, by rising `i`.
    EmbeddingGrad,
    /// Learned positions: `(x [n, h], table [positions, h]) → (y [n, h])`:
    /// `y[i] = x[i] + table[i mod sequence]`. May run in place of `x`.
    Positions {
        /// Tokens of one sequence.
        sequence: u64,
    },
    /// `(dy [n, h], G [positions, h]) → (G)`: `G[i mod sequence] += dy[i]`, by rising `i`.
    PositionsGrad {
        /// Tokens of one sequence.
        sequence: u64,
    },
    /// `(x [n, h], gain [h]) → (y [n, h], r [n])`: `r[i] = (mean over j of x[i,j]² + eps)^(−1/2)`,
    /// `y[i,j] = x[i,j] · r[i] · gain[j]`. `r` is kept for the gradient. Source: arXiv:1910.07467.
    RmsNorm {
        /// `eps` in units of 10⁻¹²: 10 000 000 for 10⁻⁵. See [`eps`].
        eps_e12: u64,
    },
    /// `(dy [n, h], x [n, h], r [n], gain [h]) → (dx [n, h])`: with `u[i,j] = dy[i,j] · gain[j]`,
    /// `dx[i,j] = r[i] · (u[i,j] − x[i,j] · r[i]² · mean over k of u[i,k] · x[i,k])`. May run in place of `dy`.
    RmsNormInputGrad,
    /// `(dy [n, h], x [n, h], r [n], G [h]) → (G)`: `G[j] += Σ over i of dy[i,j] · x[i,j] · r[i]`.
    RmsNormGainGrad,
    /// `(x [n, h], gain [h], bias [h]) → (y [n, h], mean [n], r [n])`: `mean[i]` over the row,
    /// `r[i] = (variance of the row, over h, + eps)^(−1/2)`,
    /// `y[i,j] = (x[i,j] − mean[i]) · r[i] · gain[j] + bias[j]`. Source: arXiv:1607.06450.
    LayerNorm {
        /// `eps` in units of 10⁻¹². See [`eps`].
        eps_e12: u64,
    },
    /// `(dy [n, h], x [n, h], mean [n], r [n], gain [h]) → (dx [n, h])`: with `u[i,j] = dy[i,j] · gain[j]` and
    /// `z[i,j] = (x[i,j] − mean[i]) · r[i]`,
    /// `dx[i,j] = r[i] · (u[i,j] − mean over k of u[i,k] − z[i,j] · mean over k of u[i,k] · z[i,k])`. May run in
    /// place of `dy`.
    LayerNormInputGrad,
    /// `(dy [n, h], x [n, h], mean [n], r [n], G [h]) → (G)`:
    /// `G[j] += Σ over i of dy[i,j] · (x[i,j] − mean[i]) · r[i]`. The bias's gradient is [`Kernel::BiasGrad`].
    LayerNormGainGrad,
    /// `(x [n, h], bias [h]) → (y [n, h])`: `y[i,j] = x[i,j] + bias[j]`. May run in place of `x`. Its gradient
    /// for `x` is `dy` itself.
    AddBias,
    /// `(dy [n, h], G [h]) → (G)`: `G[j] += Σ over i of dy[i,j]`, by rising `i`.
    BiasGrad,
    /// `(a, b) → (c)` or, accumulating, `(a, b, addend) → (c)`: `c = op(a) · op(b)` (`+ addend`), `op` being
    /// the transpose where so marked. A linear layer is `y [n, out] = x [n, in] · w [out, in]ᵀ`, its input's
    /// gradient `dx = dy · w`, its weight's `G += dyᵀ · x`. Only the addend may give its buffer to the output;
    /// where it does not, and is not the output itself, it is copied.
    MatMul {
        /// Whether `a` is transposed.
        transpose_a: bool,
        /// Whether `b` is transposed.
        transpose_b: bool,
        /// Whether there is an addend.
        accumulate: bool,
    },
    /// Rotary positions, in the rotate-half form of Hugging Face's Llama:
    /// `(x [n, heads · d]) → (y [n, heads · d])`. For row `i` at position `t = i mod sequence`, each head and
    /// `j < d/2`: `θ = t · base^(−2j/d)`, `y[j] = x[j] · cos θ − x[j + d/2] · sin θ`,
    /// `y[j + d/2] = x[j + d/2] · cos θ + x[j] · sin θ`. With `inverse`, `θ` is negated: that is the gradient.
    /// `θ`, its sine and its cosine are worked out in `f64` and rounded to the type computed in. May run in
    /// place. Source: arXiv:2104.09864.
    Rope {
        /// Tokens of one sequence.
        sequence: u64,
        /// Heads of `x`.
        heads: u64,
        /// Width of one head, even.
        width: u64,
        /// Base of the wavelengths: 10 000 for Llama 2.
        base: u64,
        /// Whether the rotation goes back.
        inverse: bool,
    },
    /// Causal attention within each sequence:
    /// `(q [n, a·d], k [n, g·d], v [n, g·d]) → (o [n, a·d], l [n, a])`. For each sequence, query head and
    /// position `i`: `s[j] = q[i] · k[j] / √d` for `j ≤ i`, `l[i] = ln Σ over j ≤ i of exp s[j]`,
    /// `o[i] = Σ over j ≤ i of exp(s[j] − l[i]) · v[j]`. Scores are never all held: only `o` and the log-sum-exp
    /// `l` are kept (arXiv:2205.14135).
    Attention(Heads),
    /// `(do [n, a·d], q, k, v, o, l) → (dq [n, a·d], dk [n, g·d], dv [n, g·d])`. With `p[i,j] = exp(s[i,j] − l[i])`
    /// computed anew and `D[i] = Σ over columns of do[i] ∘ o[i]`: `dv[j] = Σ_i p[i,j] · do[i]`,
    /// `ds[i,j] = p[i,j] · (do[i] · v[j] − D[i])`, `dq[i] = Σ_j ds[i,j] · k[j] / √d`,
    /// `dk[j] = Σ_i ds[i,j] · q[i] / √d`; `dk` and `dv` also sum over the query heads that share them.
    AttentionGrad(Heads),
    /// The scores of attention that materialises them: `(q [n, a·d], k [n, g·d]) → (s [n·a, sequence])`, one row for
    /// each sequence `b`, query head `h` and position `i`, in this order: `s[b,h,i,j] = q[i] · k[j] / √d` for
    /// `j ≤ i`, `−∞` beyond.
    Scores(Heads),
    /// `(ds [n·a, sequence], q, k) → (dq, dk)`: `dq[i] = Σ over j ≤ i of ds[i,j] · k[j] / √d`,
    /// `dk[j] = Σ over i ≥ j of ds[i,j] · q[i] / √d`, also over the query heads that share `k`.
    ScoresGrad(Heads),
    /// `(s [m, k]) → (p [m, k])`: `p[i,j] = exp(s[i,j]) / Σ over j of exp(s[i,j])`. May run in place.
    Softmax,
    /// `(dp [m, k], p [m, k]) → (ds [m, k])`: `ds = p ∘ (dp − Σ over j of dp[i,j] · p[i,j])`. May run in place of `dp`.
    SoftmaxGrad,
    /// `(p [n·a, sequence], v [n, g·d]) → (o [n, a·d])`: `o[i] = Σ over j of p[b,h,i,j] · v[j]`.
    Attend(Heads),
    /// `(do [n, a·d], p, v) → (dp [n·a, sequence], dv [n, g·d])`: `dp[b,h,i,j] = do[i] · v[j]` for `j ≤ i` and 0
    /// beyond, `dv[j] = Σ over i of p[b,h,i,j] · do[i]`, also over the query heads that share `v`.
    AttendGrad(Heads),
    /// `(x) → (y, kept)`: with `kept` 1 for an element with probability 9/10 and else 0, `y = x ∘ kept / (9/10)`.
    /// Which are kept depends on the run's seed, the microbatch and `site`, so that a second run keeps the same. May
    /// run in place. Source: Srivastava et al., JMLR 15 (2014).
    Dropout {
        /// Which dropout of the model this is.
        site: u64,
    },
    /// `(dy, kept) → (dx)`: `dx = dy ∘ kept / (9/10)`. May run in place of `dy`.
    DropoutGrad,
    /// Where work split over `ways` devices begins, on what they all hold: `(x) → (y)`, `y = x`, always in place and so
    /// without effect. Its gradient is the all-reduce.
    Replicate {
        /// Devices.
        ways: u64,
    },
    /// `(x) → (y)`: the sum of `x` over `ways` devices. May run in place.
    AllReduce {
        /// Devices.
        ways: u64,
    },
    /// `(x [n/ways, h]) → (y [n, h])`: the rows of all `ways` devices, in their order.
    AllGather {
        /// Devices.
        ways: u64,
    },
    /// `(x [n, h]) → (y [n/ways, h])`: this device's rows of the sum over `ways` devices.
    ReduceScatter {
        /// Devices.
        ways: u64,
    },
    /// `(gate [n, f], up [n, f]) → (y [n, f])`: `y = gate ∘ σ(gate) ∘ up`, `σ(x) = 1/(1 + e^(−x))`.
    /// Source: arXiv:2002.05202.
    SwiGlu,
    /// `(dy [n, f], gate, up) → (dgate, dup)`: `dgate = dy ∘ up ∘ σ(gate) ∘ (1 + gate ∘ (1 − σ(gate)))`,
    /// `dup = dy ∘ gate ∘ σ(gate)`. `dgate` may take the place of `dy`.
    SwiGluGrad,
    /// `(x [n, f]) → (y [n, f])`: `y = x · (1 + erf(x/√2)) / 2`. Source: arXiv:1606.08415.
    Gelu,
    /// `(dy [n, f], x [n, f]) → (dx [n, f])`: `dx = dy ∘ ((1 + erf(x/√2)) / 2 + x · e^(−x²/2) / √(2π))`. May run
    /// in place of `dy`.
    GeluGrad,
    /// `(a, b) → (c)`: `c = a + b`, by element. May run in place of either.
    Add,
    /// `(logits [n, vocab], targets [n]) → (loss [1], l [n])`: `l[i] = ln Σ over j of exp logits[i,j]`,
    /// `loss = Σ over i, rising, of (l[i] − logits[i, targets[i]]) / (n · microbatches)`. `l` is kept.
    CrossEntropy {
        /// Microbatches of a step, so that their losses add up to the step's mean.
        microbatches: u64,
    },
    /// `(logits [n, vocab], targets [n], l [n]) → (dlogits [n, vocab])`:
    /// `dlogits[i,j] = (exp(logits[i,j] − l[i]) − [j = targets[i]]) / (n · microbatches)`. May run in place of
    /// the logits.
    CrossEntropyGrad {
        /// Microbatches of a step.
        microbatches: u64,
    },
}

/// The `eps` of a norm, given in units of 10⁻¹²; the division rounds correctly, so 10 000 000 is 10⁻⁵ to the
/// last bit.
pub const fn eps(eps_e12: u64) -> f64 {
    eps_e12 as f64 / 1e12
}

impl Kernel {
    /// A short name for people: `rms_norm_input_grad`.
    pub const fn name(&self) -> &'static str {
        match self {
            Kernel::Embedding => "embedding",
            Kernel::EmbeddingGrad => "embedding_grad",
            Kernel::Positions { .. } => "positions",
            Kernel::PositionsGrad { .. } => "positions_grad",
            Kernel::RmsNorm { .. } => "rms_norm",
            Kernel::RmsNormInputGrad => "rms_norm_input_grad",
            Kernel::RmsNormGainGrad => "rms_norm_gain_grad",
            Kernel::LayerNorm { .. } => "layer_norm",
            Kernel::LayerNormInputGrad => "layer_norm_input_grad",
            Kernel::LayerNormGainGrad => "layer_norm_gain_grad",
            Kernel::AddBias => "add_bias",
            Kernel::BiasGrad => "bias_grad",
            Kernel::MatMul { .. } => "matmul",
            Kernel::Rope { inverse: false, .. } => "rope",
            Kernel::Rope { inverse: true, .. } => "rope_grad",
            Kernel::Attention(_) => "attention",
            Kernel::AttentionGrad(_) => "attention_grad",
            Kernel::Scores(_) => "scores",
            Kernel::ScoresGrad(_) => "scores_grad",
            Kernel::Softmax => "softmax",
            Kernel::SoftmaxGrad => "softmax_grad",
            Kernel::Attend(_) => "attend",
            Kernel::AttendGrad(_) => "attend_grad",
            Kernel::Dropout { .. } => "dropout",
            Kernel::DropoutGrad => "dropout_grad",
            Kernel::Replicate { .. } => "replicate",
            Kernel::AllReduce { .. } => "all_reduce",
            Kernel::AllGather { .. } => "all_gather",
            Kernel::ReduceScatter { .. } => "reduce_scatter",
            Kernel::SwiGlu => "swiglu",
            Kernel::SwiGluGrad => "swiglu_grad",
            Kernel::Gelu => "gelu",
            Kernel::GeluGrad => "gelu_grad",
            Kernel::Add => "add",
            Kernel::CrossEntropy { .. } => "cross_entropy",
            Kernel::CrossEntropyGrad { .. } => "cross_entropy_grad",
        }
    }

    /// The inputs (positions) whose buffer output 0 may take over, the best first. The graph's
    /// [`Operator::in_place`] says which one does.
    pub const fn may_run_in_place_of(&self) -> &'static [u32] {
        match self {
            Kernel::Positions { .. } | Kernel::AddBias | Kernel::Rope { .. } => &[0],
            Kernel::RmsNormInputGrad | Kernel::LayerNormInputGrad | Kernel::SwiGluGrad | Kernel::GeluGrad => &[0],
            Kernel::Softmax | Kernel::SoftmaxGrad | Kernel::Dropout { .. } | Kernel::DropoutGrad => &[0],
            Kernel::Replicate { .. } | Kernel::AllReduce { .. } | Kernel::CrossEntropyGrad { .. } => &[0],
            Kernel::MatMul { accumulate: true, .. } => &[2],
            // The second operand is the branch, which dies here; the first is the residual stream.
            Kernel::Add => &[1, 0],
            _ => &[],
        }
    }
}

/// One stage's work for one microbatch. See the module for what it means.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Graph {
    /// All tensors of the three jobs.
    pub tensors: Vec<Tensor>,
    /// F's operators, then B's, then W's.
    pub operators: Vec<Operator>,
}

impl Index<TensorId> for Graph {
    type Output = Tensor;

    fn index(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }
}

impl Graph {
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

    /// The weights, in the order in which the forward uses them.
    pub fn weights(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors().filter(|(_, tensor)| matches!(tensor.role, Role::Weight { .. }))
    }

    /// The accumulator of `weight`'s gradient.
    pub fn gradient_of(&self, weight: TensorId) -> Option<TensorId> {
        self.with_role(Role::WeightGradient { of: weight })
    }
}
