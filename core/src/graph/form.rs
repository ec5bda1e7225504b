//! How a model's operators are written and split over devices: choices that change bytes and time, not results.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use super::dealt::SequencePart;
use crate::base::fields::Fault;
use crate::model::{Dtype, ModelConfig, Window};

/// Most devices that share a stage, or that hold copies of it.
pub const MAX_DEGREE: u32 = 65_536;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum AttentionForm {
    /// Scores are never all held; the log-sum-exp is kept (arXiv:2205.14135).
    #[default]
    Flash,
    /// Scores, their softmax and its dropout are tensors, and kept.
    Materialised,
}

impl AttentionForm {
    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            AttentionForm::Flash => "flash",
            AttentionForm::Materialised => "materialised",
        }
    }
}

/// What the forward does not keep and the backward computes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Recompute {
    /// Everything is kept.
    #[default]
    None,
    /// The core of attention where scores are materialised: from scores to the dropped-out softmax
    /// (arXiv:2205.05198 §5). With flash attention there is nothing of the kind.
    Selective,
    /// All that is no matrix product: the same, and the outputs of norms and of activation functions.
    Cheap,
    /// The same, and queries, keys and values that are expanded from latents, which alone are kept (arXiv:2412.19437
    /// §3.2.3). Without latent attention there is nothing of the kind.
    Latents,
    /// The same, and the whole feed-forward part: of a layer only what it takes in and what its attention takes and makes is
    /// kept. Where both parts stand beside each other there is nothing of the kind.
    FeedForward,
    /// All but each layer's input.
    Full,
}

impl Recompute {
    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Recompute::None => "none",
            Recompute::Selective => "selective",
            Recompute::Cheap => "cheap",
            Recompute::Latents => "latents",
            Recompute::FeedForward => "feed-forward",
            Recompute::Full => "full",
        }
    }
}

impl Recompute {
    /// All choices, by rising time and by falling bytes of what is kept. While a whole layer is made again, its attention lies
    /// there, too: a rank with one microbatch on its way may hold a little more with the last than with the one before.
    pub const ALL: [Recompute; 6] = [
        Recompute::None,
        Recompute::Selective,
        Recompute::Cheap,
        Recompute::Latents,
        Recompute::FeedForward,
        Recompute::Full,
    ];

    /// The choice of a name.
    pub fn named(name: &str) -> Option<Recompute> {
        Recompute::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

/// Which layers of each stage keep what the backward needs in the host's memory ([`passes::offload_activations`](super::passes::offload_activations)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Offload {
    /// None.
    #[default]
    None,
    /// So many at the start of each stage, at least one. Their backward comes last, so that they are away for the longest.
    First(u32),
    /// All.
    All,
}

impl Offload {
    /// How many layers at the start of a stage.
    pub const fn layers(self) -> Option<u32> {
        match self {
            Offload::None => None,
            Offload::First(layers) => Some(layers),
            Offload::All => Some(u32::MAX),
        }
    }

    /// As it stands in a spec: `none`, `all`, or the number.
    pub fn text(self) -> String {
        match self {
            Offload::None => String::from("none"),
            Offload::First(layers) => format!("{layers}"),
            Offload::All => String::from("all"),
        }
    }
}

/// How a stage's operators are written and split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// How attention is computed.
    pub attention: AttentionForm,
    /// Whether there is dropout: after the embedding, on the softmax (where it is materialised) and before each
    /// residual sum.
    pub dropout: bool,
    /// What is computed again.
    pub recompute: Recompute,
    /// What is kept in the host's memory.
    pub offload: Offload,
    /// Devices that share each matrix of a stage, t (arXiv:1909.08053).
    pub tensor: u32,
    /// Whether those devices also share the tokens of what lies between the matrices (arXiv:2205.05198 §4.2.2).
    pub sequence_parallel: bool,
    /// Whether the sum of dX over those devices runs beside the dW matmul ([`passes::overlap_all_reduce`](super::passes::overlap_all_reduce)).
    pub async_reduce: bool,
    /// Devices that each hold a part of every sequence, c (arXiv:2310.01889).
    pub context: u32,
    /// Devices that a layer's experts are dealt to, out of those that hold other tokens.
    pub expert: u32,
    /// Whether an expert's matrices are on one device even where `tensor` devices share the others.
    pub whole_experts: bool,
    /// Copies of tokens that reach the device with the most of them over the average, in thousandths.
    pub imbalance_permille: u32,
    /// Whether bf16 logits are widened to f32 as a tensor of their own, for the loss.
    pub f32_logits: bool,
    /// Whether the matrices of layers are multiplied in fp8 ([`passes::quantize`](super::passes::quantize)).
    pub fp8: bool,
    /// Whether gradients of bf16 weights are summed in bf16.
    pub bf16_gradients: bool,
}

/// The most that one device may see over the average, in thousandths.
pub const MAX_IMBALANCE_PERMILLE: u32 = 1_000_000;

impl Default for Form {
    fn default() -> Form {
        Form {
            attention: AttentionForm::Flash,
            dropout: false,
            recompute: Recompute::None,
            offload: Offload::None,
            tensor: 1,
            sequence_parallel: false,
            async_reduce: false,
            context: 1,
            expert: 1,
            whole_experts: false,
            imbalance_permille: 1000,
            f32_logits: false,
            fp8: false,
            bf16_gradients: false,
        }
    }
}

impl Form {
    /// The same with another recomputation.
    pub const fn recomputing(self, recompute: Recompute) -> Form {
        Form { recompute, ..self }
    }

    /// What keeps `model` with `sequence` tokens from being split so, each with its field below `path` and the
    /// nearest degree that works.
    pub fn find_faults(&self, model: &ModelConfig, sequence: u32, path: &str, faults: &mut Vec<Fault>) {
        let field = if path.is_empty() { String::from("tensor") } else { format!("{path}.tensor") };
        let tensor = self.tensor;
        self.find_spread_faults(model, sequence, path, faults);
        let expert_ffn = model.variant.experts.map_or(0, |experts| if self.whole_experts { 0 } else { experts.ffn });
        let shared_ffn = model.variant.experts.map_or(0, |experts| experts.shared_ffn);
        let part = sequence / self.context.max(1);
        let divides = |tensor: u32| {
            let heads = model.heads.is_multiple_of(tensor)
                && (model.kv_heads.is_multiple_of(tensor) || tensor.is_multiple_of(model.kv_heads.max(1)));
            let widths = [model.ffn, expert_ffn, shared_ffn].iter().all(|width| width.is_multiple_of(tensor));
            heads && widths && (!self.sequence_parallel || part.is_multiple_of(tensor))
        };
        if tensor == 0 || tensor > MAX_DEGREE || !divides(tensor) {
            let nearest = (1..=model.heads.min(MAX_DEGREE))
                .filter(|degree| divides(*degree))
                .min_by_key(|degree| (degree.abs_diff(tensor), *degree))
                .unwrap_or(1);
            let with = if self.sequence_parallel { ", and divides ffn and sequence" } else { ", and divides ffn" };
            faults.push(Fault::new(
                field,
                tensor,
                format!(
                    "a number that divides heads ({}), kv_heads or is a multiple of them ({}){with}, such as {nearest}",
                    model.heads, model.kv_heads
                ),
            ));
        }
    }

    /// What keeps sequences and experts from being dealt out so.
    fn find_spread_faults(&self, model: &ModelConfig, sequence: u32, path: &str, faults: &mut Vec<Fault>) {
        let field = |name: &str| if path.is_empty() { String::from(name) } else { format!("{path}.{name}") };
        let nearest = |wanted: u32, of: u32| {
            let divisors = (1..=of.min(MAX_DEGREE)).filter(|degree| of.is_multiple_of(*degree));
            divisors.min_by_key(|degree| (degree.abs_diff(wanted), *degree)).unwrap_or(1)
        };
        let deals = |context: u32| SequencePart::divides(sequence.into(), context.into());
        if self.context == 0 || self.context > MAX_DEGREE || !deals(self.context) {
            let degrees = (1..=MAX_DEGREE).filter(|degree| deals(*degree));
            let works = degrees.min_by_key(|degree| (degree.abs_diff(self.context), *degree)).unwrap_or(1);
            let accepted =
                format!("1, or a number whose double divides training.sequence ({sequence}), such as {works}");
            faults.push(Fault::new(field("context"), self.context, accepted));
        }
        let hides = |window: Window| window.tokens < sequence && window.full_every != 1;
        let windowed = model.variant.window.is_some_and(hides);
        let spread = self.context > 1 || model.variant.latent.is_some() || windowed;
        if spread && self.attention == AttentionForm::Materialised {
            let accepted = "flash, because of context parallelism, MLA or a sliding window";
            faults.push(Fault::new("training.attention", self.attention.name(), accepted));
        }
        match model.variant.experts {
            None => {
                let accepted = "nothing: the model has no experts";
                if self.expert != 1 {
                    faults.push(Fault::new(field("expert"), self.expert, accepted));
                }
                if self.whole_experts {
                    faults.push(Fault::new(field("whole_experts"), "true", accepted));
                }
            }
            Some(experts) => {
                if self.expert == 0 || !experts.count.is_multiple_of(self.expert) {
                    let works = nearest(self.expert, experts.count);
                    let accepted = format!("a number that divides the experts ({}), such as {works}", experts.count);
                    faults.push(Fault::new(field("expert"), self.expert, accepted));
                }
                if self.whole_experts && self.tensor > 1 && !self.sequence_parallel {
                    let accepted = "true only with sequence_parallel: then each device routes different tokens";
                    faults.push(Fault::new(field("whole_experts"), "true", accepted));
                }
            }
        }
        if !(1000..=MAX_IMBALANCE_PERMILLE).contains(&self.imbalance_permille) {
            let found = f64::from(self.imbalance_permille) / 1000.0;
            let accepted = format!("a number from 1 (none) to {}", MAX_IMBALANCE_PERMILLE / 1000);
            faults.push(Fault::new("training.expert_imbalance", found, accepted));
        } else if self.imbalance_permille != 1000 && model.variant.experts.is_none() {
            let found = f64::from(self.imbalance_permille) / 1000.0;
            faults.push(Fault::new("training.expert_imbalance", found, "nothing: the model has no experts"));
        }
    }
}

/// Which part of a model a stage is, and how large its microbatches are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageShape {
    /// Its decoder layers, counted over the whole model.
    pub layers: Range<u32>,
    /// Whether it starts with the embedding: the first stage does.
    pub has_embedding: bool,
    /// Whether it ends with the final norm, the head and the loss: the last stage does.
    pub has_head: bool,
    /// Sequences of one microbatch.
    pub microbatch_size: u32,
    /// Tokens of one sequence.
    pub sequence: u32,
    /// Number format of weights and activations.
    pub dtype: Dtype,
    /// How its operators are written and split. With more than one device a stage, the graph has one device's sizes.
    pub form: Form,
}

impl StageShape {
    /// Tokens of one microbatch.
    pub fn tokens(&self) -> u64 {
        u64::from(self.microbatch_size) * u64::from(self.sequence)
    }
}
