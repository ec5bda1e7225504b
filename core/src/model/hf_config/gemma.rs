//! Gemma, Gemma 2 and Gemma 3: the multipliers of the embedding and of attention, and the soft-caps.

use super::reader::Reader;
use crate::model::{Caps, Factors, to_e12};

/// Whether `name` is a `model_type` of Gemma.
pub(super) fn is_gemma(name: &str) -> bool {
    matches!(name, "gemma" | "gemma2" | "gemma3_text" | "vaultgemma")
}

impl Reader<'_, '_> {
    /// The multipliers and soft-caps of the Gemma family `name`.
    pub(super) fn gemma_factors_and_caps(&mut self, name: &str, hidden: u32) -> (Factors, Caps) {
        let divisor = match name {
            "gemma" => None,
            _ => self.positive("query_pre_attn_scalar").or(Some(256.0)),
        };
        let factors = Factors {
            embedding: Some(to_e12(libm::sqrt(hidden.into()))),
            attention: divisor.map(|divisor| to_e12(1.0 / libm::sqrt(divisor))),
            ..Factors::default()
        };
        // Defaults of the library, where the file does not have the field. A null means no cap.
        let otherwise = |cap| if matches!(name, "gemma2" | "vaultgemma") { Some(cap) } else { None };
        let caps = Caps {
            attention: self.cap("attn_logit_softcapping", otherwise(50.0)),
            logits: self.cap("final_logit_softcapping", otherwise(30.0)),
        };
        (factors, caps)
    }
}
