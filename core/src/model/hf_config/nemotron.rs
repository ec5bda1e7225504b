//! Nemotron-H: layers of one part each, which is Mamba 2, attention, an MLP or experts.

use alloc::vec::Vec;

use serde_json::Value;

use super::moe::all_layers;
use super::reader::Reader;
use crate::base::fields::{Fault, shown};
use crate::model::{
    Activation, E12, Experts, Family, LayerPattern, MAX_LAYERS, ModelConfig, Recurrence, RecurrenceKind, Routing,
    Scores, Variant, to_e12,
};

/// The part of a layer: its letter in a pattern, and its names in a list.
const PARTS: [(u8, &[&str]); 4] = [
    (b'M', &["linear_attention", "mamba"]),
    (b'*', &["full_attention", "attention"]),
    (b'-', &["mlp"]),
    (b'E', &["moe"]),
];

impl Reader<'_, '_> {
    /// The model, whose layers a pattern or a list says.
    pub(super) fn nemotron_h(&mut self) -> Option<ModelConfig> {
        let parts = self.parts();
        // The library takes the number of layers from the list.
        self.optional("num_hidden_layers");
        let count = parts.as_ref().map_or(0, |parts| parts.len() as u32);
        let of =
            |letters: &[u8]| -> Vec<bool> { parts.iter().flatten().map(|part| letters.contains(part)).collect() };
        let hidden = self.size("hidden_size");
        let heads = self.size("num_attention_heads");
        let kv_heads = self.optional("num_key_value_heads").or(heads);
        let head_dim = self.optional("attention_head_dim").or(self.optional("head_dim")).or(Some(128));
        let has_mlp = of(b"-").contains(&true);
        let ffn =
            if has_mlp { self.size("intermediate_size") } else { self.optional("intermediate_size").or(Some(1)) };
        let vocab = self.size("vocab_size");
        let positions = self.positions("max_position_embeddings");
        let eps = if self.table.get("rms_norm_eps").is_some() { "rms_norm_eps" } else { "layer_norm_epsilon" };
        self.table.get("layer_norm_epsilon");
        let norm_eps_e12 = self.eps(eps);
        self.function(&["mlp_hidden_act"], &["relu2"]);
        self.function(&["mamba_hidden_act"], &["silu"]);
        self.no_biases(&["attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"]);
        let recurrence = if of(b"M").contains(&true) { Some(self.nemotron_mamba(&of(b"M"))?) } else { None };
        let experts = if of(b"E").contains(&true) { Some(self.nemotron_experts(&of(b"E"))?) } else { None };
        let mut pattern = |has: Vec<bool>| match has.contains(&true) {
            true => self.pattern("layers_block_type", &has).map(Some),
            false => Some(None),
        };
        let (no_mixer, no_mlp) = (pattern(of(b"-E"))?, pattern(of(b"M*"))?);
        let variant = Variant {
            activation: Activation::SquaredRelu,
            no_rope: LayerPattern::from_list(&[true]),
            no_mixer,
            no_mlp,
            recurrence,
            experts,
            ..Variant::USUAL
        };
        Some(ModelConfig {
            family: Family::Llama,
            layers: parts.map(|_| count)?,
            hidden: hidden?,
            heads: heads?,
            kv_heads: kv_heads?,
            head_dim: head_dim?,
            ffn: ffn?,
            vocab: vocab?,
            positions: positions?,
            rope_base: self.rope_base("nemotron_h"),
            norm_eps_e12: norm_eps_e12?,
            tied: {
                self.never("tie_word_embeddings");
                false
            },
            variant,
        })
    }

    /// The letter of each layer's part. None, with a fault, where neither pattern nor list says it.
    fn parts(&mut self) -> Option<Vec<u8>> {
        let letter = |name: &str| PARTS.iter().find(|(_, names)| names.contains(&name)).map(|(letter, _)| *letter);
        let is_letter = |byte: &u8| PARTS.iter().any(|(letter, _)| letter == byte);
        let keys = ["layers_block_type", "layer_types", "hybrid_override_pattern"];
        let found = keys.map(|key| (key, self.table.get(key).cloned())).into_iter();
        let found: Vec<(&str, Value)> = found.filter_map(|(key, value)| Some((key, value?))).collect();
        let (key, value) = match found.first() {
            Some((key, value)) => (*key, value.clone()),
            None => (keys[2], Value::Null),
        };
        let parts: Option<Vec<u8>> = match &value {
            Value::String(letters) => Some(letters.bytes().collect()),
            Value::Array(list) => list.iter().map(|part| letter(part.as_str()?)).collect(),
            _ => None,
        };
        let is_right =
            |parts: &Vec<u8>| !parts.is_empty() && parts.len() <= MAX_LAYERS as usize && parts.iter().all(is_letter);
        let parts = parts.filter(is_right);
        if parts.is_none() {
            let accepted = "letters M (Mamba 2), * (attention), - (MLP) and E (experts), or a list of \
                            linear_attention, full_attention, mlp and moe";
            self.faults.push(Fault::new(self.table.path(key), shown(&value), accepted));
        }
        parts
    }

    fn nemotron_mamba(&mut self, has: &[bool]) -> Option<Recurrence> {
        let (heads, head_dim) = (self.size("mamba_num_heads"), self.size("mamba_head_dim"));
        let key_dim = self.size("ssm_state_size");
        let key_heads = ["n_groups", "mamba_n_groups"].map(|key| self.optional(key));
        let convolution = ["conv_kernel", "mamba_d_conv"].map(|key| self.optional(key));
        let bias = ["use_conv_bias", "mamba_conv_bias"].map(|key| self.flag(key, true));
        Some(Recurrence {
            kind: RecurrenceKind::Mamba2,
            layers: self.pattern("layers_block_type", has)?,
            key_heads: key_heads[0].or(key_heads[1]).unwrap_or(8),
            key_dim: key_dim?,
            heads: heads?,
            head_dim: head_dim?,
            convolution: convolution[0].or(convolution[1]).unwrap_or(4),
            convolution_bias: bias[0] && bias[1],
        })
    }

    fn nemotron_experts(&mut self, has: &[bool]) -> Option<Experts> {
        let (count, active) = (self.experts_count("n_routed_experts"), self.experts_count("num_experts_per_tok"));
        let ffn = self.size("moe_intermediate_size");
        // Shared experts are one MLP, whose width is said.
        self.optional("n_shared_experts");
        let shared_ffn = self.size("moe_shared_expert_intermediate_size");
        let normed = self.flag("norm_topk_prob", true);
        let factor = self.positive("routed_scaling_factor").map(to_e12);
        let groups = ["n_group", "topk_group"].map(|key| self.optional(key).unwrap_or(1));
        let routing = Routing {
            scores: Scores::Sigmoid,
            normed,
            factor: factor.filter(|factor| *factor != E12),
            groups: groups[0],
            active_groups: groups[1],
        };
        let experts = Experts { shared_ffn: shared_ffn?, routing, ..all_layers(ffn?, [count?, active?], normed) };
        self.pattern("layers_block_type", has).map(|pattern| experts.within(pattern))
    }
}
