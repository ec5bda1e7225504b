//! Granite and Granite MoE: the multipliers of embedding, residual stream, attention and logits.

use super::reader::Reader;
use crate::model::{E12, Factors, to_e12};

impl Reader<'_, '_> {
    /// The four multipliers.
    pub(super) fn granite_factors(&mut self) -> Factors {
        Factors {
            embedding: self.positive("embedding_multiplier").map(to_e12),
            residual: self.positive("residual_multiplier").map(to_e12),
            attention: Some(self.positive("attention_multiplier").map_or(E12, to_e12)),
            logits: self.positive("logits_scaling").map(|divisor| to_e12(1.0 / divisor)),
        }
    }

    /// HyperCLOVA X: the same, but logits are multiplied and scores scaled as usual.
    pub(super) fn clova_factors(&mut self) -> Factors {
        Factors {
            embedding: self.positive("embedding_multiplier").map(to_e12),
            residual: self.positive("residual_multiplier").map(to_e12),
            attention: self.positive("attention_multiplier").map(to_e12),
            logits: self.positive("logits_scaling").map(to_e12),
        }
    }

    /// MiniCPM 3: a factor of the embedding, and by depth and width those of residual stream and logits.
    pub(super) fn minicpm_factors(&mut self, hidden: u32) -> Factors {
        let layers = f64::from(self.optional("num_hidden_layers").unwrap_or(1));
        let width = self.positive("dim_model_base").unwrap_or(1.0);
        Factors {
            embedding: self.positive("scale_emb").map(to_e12),
            residual: self.positive("scale_depth").map(|depth| to_e12(depth / libm::sqrt(layers))),
            attention: None,
            logits: Some(to_e12(width / f64::from(hidden.max(1)))),
        }
    }
}
