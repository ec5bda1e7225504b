//! Gemma 1 to 4: the multipliers of the embedding and of attention, and the soft-caps.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::Value;

use super::reader::Reader;
use crate::base::fields::Fault;
use crate::model::{Caps, Factors, Global, MAX_SIZE, Variant, to_e12};

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
    let parts = [
        // What the library fills in where the file has none.
        (size("hidden_size_per_layer_input", 256) > 0, "embeddings of each layer (hidden_size_per_layer_input)"),
        (size("num_kv_shared_layers", 0) > 0, "keys and values shared between layers (num_kv_shared_layers)"),
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
    pub(super) fn gemma_4(&mut self, kv_heads: Option<u32>, layers: u32, variant: Variant) -> Variant {
        // Of models with images, only tokens of one image see each other on both sides.
        self.function(&["use_bidirectional_attention"], &["vision"]);
        self.table.get("vocab_size_per_layer_input");
        // Of layers that share keys and values, which are refused.
        self.table.get("use_double_wide_mlp");
        let keys_are_values = self.flag("attention_k_eq_v", false);
        let by_layer = self.sizes_of_layers(layers, &variant);
        let head_dim = self.optional("global_head_dim");
        let head_dim = by_layer.map_or(head_dim.unwrap_or(512), |[head_dim, _]| head_dim);
        let global_kv_heads = self.optional("num_global_key_value_heads").filter(|_| keys_are_values);
        let global_kv_heads = by_layer.map(|[_, kv_heads]| kv_heads).filter(|heads| *heads > 0).or(global_kv_heads);
        let usual_share = if self.table.get("rope_parameters").is_some() { 1.0 } else { 0.25 };
        // Pairs of columns are turned.
        let columns = self.rotary("partial_rotary_factor", usual_share, head_dim) / 2 * 2;
        let global = Global {
            head_dim,
            kv_heads: global_kv_heads.or(kv_heads).unwrap_or(1),
            rotary: Some(columns).filter(|columns| *columns != head_dim),
            keys_are_values,
        };
        let mlp_beside_experts = variant.experts.is_some();
        Variant { value_norm: true, layer_scale: true, global: Some(global), mlp_beside_experts, ..variant }
    }

    /// Head dim, and key and value heads or 0, of the layers that see all tokens, as files have them that the library has
    /// written: by the number of each layer.
    fn sizes_of_layers(&mut self, layers: u32, variant: &Variant) -> Option<[u32; 2]> {
        const KEY: &str = "per_layer_config";
        let value = self.table.get(KEY)?;
        let sees_all = |layer: &u32| !variant.window.is_some_and(|window| window.has(*layer));
        let wanted: Vec<String> = (0..layers).filter(sees_all).map(|layer| layer.to_string()).collect();
        let size = |table: &Value, key: &str| match table.get(key) {
            None | Some(Value::Null) => Some(0),
            Some(value) => value.as_u64().filter(|size| (1..=u64::from(MAX_SIZE)).contains(size)),
        };
        let sizes = |table: &Value| {
            let known = ["head_dim", "num_key_value_heads"];
            let is_known = table.as_object()?.keys().all(|key| known.contains(&key.as_str()));
            let [head_dim, heads] = known.map(|key| size(table, key));
            Some([head_dim?, heads?].map(|size| size as u32)).filter(|[head_dim, _]| is_known && *head_dim > 0)
        };
        let table = value.as_object();
        let found = table.and_then(|table| sizes(table.get(wanted.first()?)?));
        let is_alike = table.is_some_and(|table| {
            table.len() == wanted.len() && wanted.iter().all(|layer| table.get(layer).and_then(sizes) == found)
        });
        if found.is_none() || !is_alike {
            let accepted =
                "the same head_dim and num_key_value_heads for each layer that sees all tokens, and nothing else";
            self.faults.push(Fault::new(self.table.path(KEY), "another table", accepted));
            return None;
        }
        found
    }
}
