//! Parts of newer families with Llama's layer: post-norms of attention and MLP alone (OLMo 2 and 3, EXAONE 4), layers
//! without rotary positions (SmolLM 3, Llama 4, EXAONE 4), attention sinks (gpt-oss), chunks (Llama 4), recurrences
//! (Qwen3-Next, Granite 4), and an indexer (DeepSeek-V3.2).

use alloc::format;
use alloc::vec::Vec;

use serde_json::Value;

use super::reader::Reader;
use crate::base::fields::{Fault, shown};
use crate::model::{Indexer, LayerPattern, QkNorm, Recurrence, RecurrenceKind, Temperature, Variant, Window, to_e12};

/// The sizes of Mamba 2 in a file of Granite 4.
const GRANITE_MAMBA: [&str; 9] = [
    "mamba_n_heads",
    "mamba_d_state",
    "mamba_d_head",
    "mamba_d_conv",
    "mamba_expand",
    "mamba_n_groups",
    "mamba_chunk_size",
    "mamba_conv_bias",
    "mamba_proj_bias",
];

impl Reader<'_, '_> {
    /// `variant` with the parts of the family `name` that only newer models have.
    pub(super) fn newer_variant(
        &mut self,
        name: &str,
        [layers, hidden]: [u32; 2],
        variant: Variant,
    ) -> Option<Variant> {
        let variant = match name {
            "olmo2" | "olmo3" | "flex_olmo" => Variant { no_pre_norms: true, qk_norm_of: QkNorm::Whole, ..variant },
            "olmoe" => Variant { qk_norm_of: QkNorm::Whole, ..variant },
            "exaone4" => Variant { no_pre_norms: true, no_rope: self.without_window(layers, &variant), ..variant },
            "granite_swa" | "granitemoe_swa" => {
                Variant { sinks: true, no_rope: self.layers_of_theta_0(layers)?, ..variant }
            }
            "exaone_moe" => Variant { no_rope: self.without_window(layers, &variant), ..variant },
            "afmoe" => Variant {
                attention_gate: true,
                // The library turns queries and keys of layers with a window alone.
                no_rope: match variant.window {
                    Some(_) => self.without_window(layers, &variant),
                    None => LayerPattern::from_list(&[true]),
                },
                ..variant
            },
            "minimax_m2" => {
                self.function(&["qk_norm_type"], &["per_layer"]);
                self.every_layer_is_1("attn_type_list");
                Variant { qk_norm_of: if variant.qk_norm { QkNorm::Whole } else { QkNorm::Heads }, ..variant }
            }
            "hunyuan_v1_moe" | "hunyuan_v1_dense" => Variant { qk_norm_of: QkNorm::RotatedHeads, ..variant },
            "apertus" => {
                self.no_biases(&["post_norm"]);
                variant
            }
            "smollm3" => Variant { no_rope: self.layers_without_rope(layers)?, ..variant },
            "gpt_oss" => {
                self.must_be("swiglu_limit", 7.0);
                Variant { sinks: true, o_bias: variant.qkv_bias, ..variant }
            }
            "llama4_text" => self.llama_4(layers, variant)?,
            "deepseek_v32" | "glm_moe_dsa" => {
                self.all_layers_are("indexer_types", "full");
                self.all_layers_are("layer_types", "indexed_attention");
                let sizes = ["index_n_heads", "index_head_dim", "index_topk"].map(|key| self.size(key));
                let [heads, head_dim, tokens] = sizes;
                Variant { indexer: Some(Indexer { heads: heads?, head_dim: head_dim?, tokens: tokens? }), ..variant }
            }
            "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => {
                self.is_always("attn_output_gate");
                Variant { attention_gate: true, recurrence: Some(self.gated_delta_net(layers)?), ..variant }
            }
            "granitemoehybrid" | "bamba" => self.granite_4(layers, hidden, variant)?,
            _ => variant,
        };
        Some(variant)
    }

    /// The width of an MLP, where the family gives experts another one under the usual name.
    pub(super) fn mlp_width(&mut self, name: &str, ffn: Option<u32>) -> Option<u32> {
        match name {
            "llama4_text" => self.size("intermediate_size_mlp"),
            // The part that all tokens pass is the MLP where there are no experts.
            "granitemoehybrid" if self.optional("num_local_experts").unwrap_or(0) == 0 => {
                self.size("shared_intermediate_size")
            }
            _ => ffn,
        }
    }

    /// A flag without which the family's library does not build the model.
    pub(super) fn needed_flag(&mut self, key: &'static str) -> bool {
        self.is_always(key);
        self.flag("qk_norm", true)
    }

    /// Refuses `false` for a flag that the family's library does not read.
    pub(super) fn is_always(&mut self, key: &'static str) {
        if !self.flag(key, true) {
            let accepted = "true: the library has no model of this family without it";
            self.faults.push(Fault::new(self.table.path(key), "false", accepted));
        }
    }

    /// A list of kinds of layers by number, all of which are 1: attention to all tokens.
    fn every_layer_is_1(&mut self, key: &'static str) {
        let Some(value) = self.table.get(key) else { return };
        let is_1 = |list: &Vec<Value>| list.iter().all(|kind| kind.as_u64() == Some(1));
        if !value.as_array().is_some_and(is_1) {
            self.faults.push(Fault::new(self.table.path(key), shown(value), "a list of 1: attention to all tokens"));
        }
    }

    /// The layers whose RoPE theta is 0, which have no rotary positions. None at all for a wrong list.
    #[allow(clippy::option_option, reason = "no such layers, or a fault")]
    fn layers_of_theta_0(&mut self, layers: u32) -> Option<Option<LayerPattern>> {
        const KEY: &str = "layer_rope_theta";
        let Some(value) = self.table.get(KEY) else { return Some(None) };
        let theta = |value: &Value| value.as_f64().filter(|theta| (0.0..=f64::from(u32::MAX)).contains(theta));
        let list: Option<Vec<f64>> = value.as_array().and_then(|list| list.iter().map(theta).collect());
        let Some(list) = list.filter(|list| list.len() == layers as usize) else {
            let accepted =
                format!("a list of {layers} layers, each with its RoPE theta, or 0 for no rotary positions");
            self.faults.push(Fault::new(self.table.path(KEY), shown(value), accepted));
            return None;
        };
        let turned: Vec<f64> = list.iter().copied().filter(|theta| *theta > 0.0).collect();
        let base = f64::from(self.rope_base("granite_swa"));
        let others = turned.iter().filter(|theta| **theta != base).count();
        if others > 0 {
            self.notes.push(format!(
                "{others} layers have another RoPE theta than {base}. Plans do not depend on it; `run` trains the model \
                 without it"
            ));
        }
        let without: Vec<bool> = list.iter().map(|theta| *theta == 0.0).collect();
        if !without.contains(&true) {
            return Some(None);
        }
        self.pattern(KEY, &without).map(Some)
    }

    /// Refuses another number than `usual`.
    pub(super) fn must_be(&mut self, key: &'static str, usual: f64) {
        let value = self.table.get(key);
        if let Some(value) = value.filter(|value| value.as_f64() != Some(usual)) {
            self.faults.push(Fault::new(
                self.table.path(key),
                shown(value),
                format!("{usual}: no other is supported"),
            ));
        }
    }

    /// Refuses a list of layers that has another kind than `kind`.
    fn all_layers_are(&mut self, key: &'static str, kind: &str) {
        let Some(list) = self.table.get(key).and_then(Value::as_array) else { return };
        if let Some(other) = list.iter().find(|value| value.as_str() != Some(kind)) {
            let accepted = format!("{kind} in every layer: no other is supported");
            self.faults.push(Fault::new(self.table.path(key), shown(other), accepted));
        }
    }

    /// The layers that see all tokens, of a model with windows.
    pub(super) fn without_window(&mut self, layers: u32, variant: &Variant) -> Option<LayerPattern> {
        let window = variant.window?;
        let sees_all: Vec<bool> = (0..layers).map(|layer| !window.has(layer)).collect();
        self.pattern("layer_types", &sees_all).filter(|_| sees_all.contains(&true))
    }

    /// The layers without rotary positions: a list that has 0 for them, or else every n-th. None at all for a wrong
    /// list.
    #[allow(clippy::option_option, reason = "no such layers, or a fault")]
    fn layers_without_rope(&mut self, layers: u32) -> Option<Option<LayerPattern>> {
        let without = self.rope_list(layers)?;
        if !without.contains(&true) {
            return Some(None);
        }
        self.pattern("no_rope_layers", &without).map(Some)
    }

    /// By layer: whether it has no rotary positions.
    fn rope_list(&mut self, layers: u32) -> Option<Vec<bool>> {
        const KEY: &str = "no_rope_layers";
        let every = self.optional("no_rope_layer_interval").unwrap_or(4);
        let list = self.table.get(KEY).and_then(Value::as_array).filter(|list| !list.is_empty());
        let Some(list) = list else {
            return Some((0..layers).map(|layer| every > 0 && (layer + 1).is_multiple_of(every)).collect());
        };
        let has = |value: &Value| value.as_u64().filter(|number| *number < 2).map(|number| number == 0);
        let without: Option<Vec<bool>> = list.iter().map(has).collect();
        let without = without.filter(|list| list.len() == layers as usize);
        if without.is_none() {
            let accepted = format!("a list of {layers} layers, each 1 with rotary positions or 0 without");
            self.faults.push(Fault::new(self.table.path(KEY), "another list", accepted));
        }
        without
    }

    /// Llama 4: chunks in layers with rotary positions, whose queries and keys have their lengths normed; all tokens
    /// in the others, whose queries are scaled by position.
    fn llama_4(&mut self, layers: u32, variant: Variant) -> Option<Variant> {
        let without = self.rope_list(layers)?;
        let chunk = self.optional("attention_chunk_size").filter(|tokens| *tokens > 0);
        let kinds = [("chunked_attention", true), ("full_attention", false)];
        let chunked = self.list_of_layers("layer_types", layers, &kinds);
        let chunked = chunked.unwrap_or_else(|| without.iter().map(|without| !without).collect());
        let (pattern, no_rope) = (self.pattern("layer_types", &chunked)?, self.pattern("no_rope_layers", &without)?);
        let window = chunk.filter(|_| chunked.contains(&true)).map(|tokens| {
            let window = Window { chunked: true, ..Window::sliding(tokens, 0) };
            if chunked.contains(&false) { window.within(pattern) } else { window }
        });
        // Some files have a number here, of which the library asks whether it is 0.
        let tuned = match self.table.get("attn_temperature_tuning") {
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            _ => self.flag("attn_temperature_tuning", true),
        };
        let tokens = self.optional("floor_scale").unwrap_or(8192);
        let scale_e12 = to_e12(self.positive("attn_scale").unwrap_or(0.1));
        let has_some = without.contains(&true);
        Some(Variant {
            window,
            no_rope: has_some.then_some(no_rope),
            temperature: (tuned && has_some).then_some(Temperature { tokens, scale_e12 }),
            qk_norm_of: if variant.qk_norm { QkNorm::RotatedLengths } else { QkNorm::Heads },
            ..variant
        })
    }

    /// Qwen3-Next: a gated delta net in all layers but every n-th, or those of a list.
    fn gated_delta_net(&mut self, layers: u32) -> Option<Recurrence> {
        let every = self.optional("full_attention_interval").unwrap_or(4).max(1);
        let kinds = [("linear_attention", true), ("full_attention", false)];
        let list = self.list_of_layers("layer_types", layers, &kinds);
        let list = list.unwrap_or_else(|| (0..layers).map(|layer| !(layer + 1).is_multiple_of(every)).collect());
        let keys = [
            "linear_num_key_heads",
            "linear_key_head_dim",
            "linear_num_value_heads",
            "linear_value_head_dim",
            "linear_conv_kernel_dim",
        ];
        let [key_heads, key_dim, heads, head_dim, convolution] = keys.map(|key| self.size(key));
        Some(Recurrence {
            kind: RecurrenceKind::DeltaNet,
            layers: self.pattern("layer_types", &list)?,
            key_heads: key_heads?,
            key_dim: key_dim?,
            heads: heads?,
            head_dim: head_dim?,
            convolution: convolution?,
            convolution_bias: false,
        })
    }

    /// Granite 4: Mamba 2 in most layers; attention in the others, with or without rotary positions.
    fn granite_4(&mut self, layers: u32, hidden: u32, variant: Variant) -> Option<Variant> {
        let kinds = [("mamba", true), ("attention", false), ("linear_attention", true), ("full_attention", false)];
        let of_attention = self.numbers_of_layers("attn_layer_indices", layers);
        let list = self.list_of_layers("layer_types", layers, &kinds);
        let list = list.or_else(|| self.list_of_layers("layers_block_type", layers, &kinds));
        let list = list.unwrap_or_else(|| (0..layers).map(|layer| !of_attention.contains(&layer)).collect());
        self.function(&["position_embedding_type"], &["rope", "nope"]);
        let has_rope = self.table.get("position_embedding_type").and_then(Value::as_str) != Some("nope");
        let every_layer = LayerPattern::from_list(&[true]).filter(|_| !has_rope);
        let variant = Variant { no_rope: every_layer, ..variant };
        if !list.contains(&true) {
            // Files of models with attention alone have the library's own sizes of a recurrence that no layer has.
            for key in GRANITE_MAMBA {
                self.table.get(key);
            }
            return Some(variant);
        }
        let wide = self.optional("mamba_expand").unwrap_or(2).saturating_mul(hidden);
        let (heads, state) = (self.size("mamba_n_heads")?, self.size("mamba_d_state")?);
        let width = match self.table.get("mamba_d_head").and_then(Value::as_str) {
            Some("auto") => wide / heads.max(1),
            _ => self.optional("mamba_d_head").unwrap_or(wide / heads.max(1)),
        };
        if heads.saturating_mul(width) != wide {
            let accepted = format!("{}: mamba_expand × hidden_size / mamba_n_heads", wide / heads.max(1));
            self.faults.push(Fault::new(self.table.path("mamba_d_head"), width, accepted));
        }
        self.no_biases(&["mamba_proj_bias"]);
        // Its kernels take any; a size of theirs is no size of the model.
        self.optional("mamba_chunk_size");
        let recurrence = Recurrence {
            kind: RecurrenceKind::Mamba2,
            layers: self.pattern("layer_types", &list)?,
            key_heads: self.optional("mamba_n_groups").unwrap_or(1),
            key_dim: state,
            heads,
            head_dim: width,
            convolution: self.optional("mamba_d_conv").unwrap_or(4),
            convolution_bias: self.flag("mamba_conv_bias", true),
        };
        Some(Variant { recurrence: Some(recurrence), ..variant })
    }
}
