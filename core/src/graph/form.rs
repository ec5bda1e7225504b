//! How a model's operators are written and split over devices: choices that change bytes and time, not results.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::fields::Fault;
use crate::layout::MAX_DEGREE;
use crate::model::ModelConfig;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Recompute {
    /// Everything is kept.
    #[default]
    None,
    /// The core of attention where scores are materialised: from scores to the dropped-out softmax
    /// (arXiv:2205.05198 §5). With flash attention there is nothing of the kind.
    Selective,
    /// All that is no matrix product: the same, and the outputs of norms and of activation functions.
    Cheap,
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
            Recompute::Full => "full",
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
    /// Devices that share each matrix of a stage, t (arXiv:1909.08053).
    pub tensor: u32,
    /// Whether those devices also share the tokens of what lies between the matrices (arXiv:2205.05198 §4.2.2).
    pub sequence_parallel: bool,
}

impl Default for Form {
    fn default() -> Form {
        Form {
            attention: AttentionForm::Flash,
            dropout: false,
            recompute: Recompute::None,
            tensor: 1,
            sequence_parallel: false,
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
        let divides = |tensor: u32| {
            let heads = model.heads.is_multiple_of(tensor)
                && (model.kv_heads.is_multiple_of(tensor) || tensor.is_multiple_of(model.kv_heads.max(1)));
            heads && model.ffn.is_multiple_of(tensor) && (!self.sequence_parallel || sequence.is_multiple_of(tensor))
        };
        if tensor == 0 || tensor > MAX_DEGREE || !divides(tensor) {
            let nearest = (1..=model.heads.min(MAX_DEGREE))
                .filter(|degree| divides(*degree))
                .min_by_key(|degree| (degree.abs_diff(tensor), *degree))
                .unwrap_or(1);
            let with = if self.sequence_parallel { ", ffn and sequence" } else { " and ffn" };
            faults.push(Fault::new(
                field,
                tensor,
                format!(
                    "a number that divides heads ({}), kv_heads ({}){with}, such as {nearest}",
                    model.heads, model.kv_heads
                ),
            ));
        }
    }
}
