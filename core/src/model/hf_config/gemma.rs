//! Gemma, Gemma 2 and Gemma 3: the multipliers of the embedding and of attention, and the soft-caps.

use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use super::reader::Reader;
use crate::model::{Caps, Factors, to_e12};

/// Whether `name` is a `model_type` of Gemma.
pub(super) fn is_gemma(name: &str) -> bool {
    matches!(name, "gemma" | "gemma2" | "gemma3_text" | "vaultgemma")
}

/// The parts of Gemma 4 that the sizes of `value` use and the graph does not have; none where `name` is another model.
pub(super) fn missing_of_gemma_4(name: &str, value: &Value) -> Option<String> {
    if !matches!(name, "gemma4" | "gemma4_text" | "gemma4_unified" | "gemma4_unified_text") {
        return None;
    }
    let size = |key: &str, usual: u64| value.get(key).map_or(usual, |value| value.as_u64().unwrap_or(0));
    let is_on = |key: &str| value.get(key).and_then(Value::as_bool).unwrap_or(false);
    // What the library fills in where the file has none.
    let wide = value.get("per_layer_config").is_some() || size("global_head_dim", 512) != size("head_dim", 256);
    let parts = [
        (true, "norms of values without weights"),
        (size("hidden_size_per_layer_input", 256) > 0, "embeddings of each layer (hidden_size_per_layer_input)"),
        (wide, "another head dim in layers that see all tokens (global_head_dim)"),
        (is_on("attention_k_eq_v"), "keys that are values, too (attention_k_eq_v)"),
        (size("num_kv_shared_layers", 0) > 0, "keys and values shared between layers (num_kv_shared_layers)"),
        (is_on("enable_moe_block"), "experts beside the MLP (enable_moe_block)"),
    ];
    let parts: Vec<&str> = parts.into_iter().filter(|(has, _)| *has).map(|(_, part)| part).collect();
    Some(parts.join(", "))
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
