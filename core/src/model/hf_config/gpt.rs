//! Families with GPT-2's layer: GPT-2, GPT-BigCode and Falcon. LayerNorm and an MLP of two matrices with GELU.

use super::reader::{GELU, Reader};
use crate::base::fields::Fault;
use crate::model::{Activation, Arrangement, Family, ModelConfig, Variant};

impl Reader<'_, '_> {
    /// The model of the GPT-like family `name`.
    pub(super) fn gpt_like(&mut self, name: &str) -> Option<ModelConfig> {
        let [layers, hidden, heads] = match name {
            "gpt2" | "gpt_bigcode" => ["n_layer", "n_embd", "n_head"],
            _ => ["num_hidden_layers", "hidden_size", "num_attention_heads"],
        };
        let [ffn, positions, eps, function] = match name {
            "gpt2" | "gpt_bigcode" => ["n_inner", "n_positions", "layer_norm_epsilon", "activation_function"],
            _ => ["ffn_hidden_size", "max_position_embeddings", "layer_norm_epsilon", "activation"],
        };
        let layers = self.layers(layers);
        let hidden = self.size(hidden);
        let heads = self.size(heads);
        let vocab = self.size("vocab_size");
        let positions = match name {
            // The library's default for old files.
            "falcon" => self.optional(positions).or(Some(2048)),
            _ => self.size(positions),
        };
        let norm_eps_e12 = self.eps(eps);
        // The library's default is 4 times the hidden size.
        let ffn = self.optional(ffn).or(hidden.map(|hidden| hidden.saturating_mul(4)));
        let activation = self.gelu(name, function);
        let head_dim = self.head_dim(name, hidden, heads);
        let (variant, kv_heads) = self.gpt_variant(name, head_dim.unwrap_or(0), heads);
        Some(ModelConfig {
            family: Family::Gpt,
            layers: layers?,
            hidden: hidden?,
            heads: heads?,
            kv_heads: kv_heads?,
            head_dim: head_dim?,
            ffn: ffn?,
            vocab: vocab?,
            positions: positions?,
            rope_base: self.rope_base(name),
            norm_eps_e12: norm_eps_e12?,
            tied: self.flag("tie_word_embeddings", true),
            variant: Variant { activation, ..variant },
        })
    }

    /// GELU in its exact form, the family's own, or in its tanh form.
    fn gelu(&mut self, name: &str, function: &'static str) -> Activation {
        self.function(&[function], &GELU);
        // What the classes of these take where a file says nothing.
        let usual = if name == "falcon" { "gelu" } else { "gelu_new" };
        match self.table.get(function).and_then(serde_json::Value::as_str).unwrap_or(usual) {
            "gelu" | "gelu_python" => Variant::USUAL.activation,
            _ => Activation::PlainGeluTanh,
        }
    }

    /// What differs from GPT-2's layer, and the number of key and value heads.
    fn gpt_variant(&mut self, name: &str, head_dim: u32, heads: Option<u32>) -> (Variant, Option<u32>) {
        match name {
            "gpt_bigcode" if self.flag("multi_query", true) => (Variant::USUAL, Some(1)),
            "falcon" => self.falcon_variant(head_dim, heads),
            _ => (Variant::USUAL, heads),
        }
    }

    fn falcon_variant(&mut self, head_dim: u32, heads: Option<u32>) -> (Variant, Option<u32>) {
        let no_bias = !self.flag("bias", false);
        if self.flag("alibi", false) {
            let accepted = "false: ALiBi is not supported";
            self.faults.push(Fault::new(self.table.path("alibi"), "true", accepted));
        }
        let grouped = self.optional("num_kv_heads").or(heads);
        let norms = self.optional("num_ln_in_parallel_attn");
        let is_new = self.flag("new_decoder_architecture", false);
        let (is_multi_query, is_parallel) = (self.flag("multi_query", true), self.flag("parallel_attn", true));
        let kv_heads = match (is_new, is_multi_query) {
            (true, _) => grouped,
            (false, true) => Some(1),
            (false, false) => heads,
        };
        let arrangement = match (is_new, is_parallel) {
            (false, false) => Arrangement::InTurn,
            (true, _) if norms.unwrap_or(2) == 2 => Arrangement::Beside,
            _ => Arrangement::BesideOneNorm,
        };
        (Variant { rotary: Some(head_dim), no_bias, arrangement, ..Variant::USUAL }, kv_heads)
    }
}
