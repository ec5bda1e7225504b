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
}
