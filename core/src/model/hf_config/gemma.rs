//! Gemma 1 to 4: the multipliers of the embedding and of attention, and the soft-caps.

use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use super::reader::Reader;
use crate::model::{Caps, Factors, Global, Variant, to_e12};

/// Whether `name` is a `model_type` of Gemma.
pub(super) fn is_gemma(name: &str) -> bool {
    matches!(name, "gemma" | "gemma2" | "gemma3_text" | "gemma4_text" | "vaultgemma")
}

/// The parts of Gemma 4 that the sizes of `value` use and the graph does not have; none where `name` is another model.
pub(super) fn missing_of_gemma_4(name: &str, value: &Value) -> Option<String> {
    if name != "gemma4_text" {
        return None;
    }
    let size = |key: &str, usual: u64| value.get(key).map_or(usual, |value| value.as_u64().unwrap_or(0));
    let is_on = |key: &str| value.get(key).and_then(Value::as_bool).unwrap_or(false);
    let parts = [
        // What the library fills in where the file has none.
        (size("hidden_size_per_layer_input", 256) > 0, "embeddings of each layer (hidden_size_per_layer_input)"),
        (value.get("per_layer_config").is_some(), "sizes of each layer (per_layer_config)"),
        (size("num_kv_shared_layers", 0) > 0, "keys and values shared between layers (num_kv_shared_layers)"),
        (is_on("enable_moe_block"), "experts beside the MLP (enable_moe_block)"),
    ];
    let parts: Vec<&str> = parts.into_iter().filter(|(has, _)| *has).map(|(_, part)| part).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

impl Reader<'_, '_> {
    /// The multipliers and soft-caps of the Gemma family `name`.
    pub(super) fn gemma_factors_and_caps(&mut self, name: &str, hidden: u32) -> (Factors, Caps) {
        let divisor = match name {
            "gemma" => None,
            "gemma4_text" => Some(1.0),
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

    /// Gemma 4: wider heads in layers that see all tokens, norms of values, and a number that scales each layer.
    pub(super) fn gemma_4(&mut self, kv_heads: Option<u32>, variant: Variant) -> Variant {
        // Of models with images, only tokens of one image see each other on both sides.
        self.function(&["use_bidirectional_attention"], &["vision"]);
        self.table.get("vocab_size_per_layer_input");
        // Of layers that share keys and values, which are refused.
        self.table.get("use_double_wide_mlp");
        let keys_are_values = self.flag("attention_k_eq_v", false);
        let head_dim = self.optional("global_head_dim").unwrap_or(512);
        let global_kv_heads = self.optional("num_global_key_value_heads").filter(|_| keys_are_values);
        let usual_share = if self.table.get("rope_parameters").is_some() { 1.0 } else { 0.25 };
        let columns = self.rotary("partial_rotary_factor", usual_share, head_dim);
        let global = Global {
            head_dim,
            kv_heads: global_kv_heads.or(kv_heads).unwrap_or(1),
            rotary: Some(columns).filter(|columns| *columns != head_dim),
            keys_are_values,
        };
        Variant { value_norm: true, layer_scale: true, global: Some(global), ..variant }
    }
}
