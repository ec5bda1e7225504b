//! DeepSeek-V2 and V3, Kimi K2, and the families with the same experts (GLM-4.5, dots.llm1): multi-head latent
//! attention (MLA), experts behind the first k dense layers, multi-token prediction (MTP) modules.

use alloc::vec::Vec;

use super::reader::Reader;
use crate::model::{Experts, Latent, MAX_LAYERS, MAX_MULTI_TOKEN, Routing};

/// Whether `name` is a `model_type` with MLA.
pub(super) fn has_latent_attention(name: &str) -> bool {
    matches!(name, "deepseek_v2" | "deepseek_v3" | "deepseek_v32" | "mistral4")
        || matches!(name, "glm4_moe_lite" | "glm_moe_dsa" | "youtu" | "minicpm3")
}

impl Reader<'_, '_> {
    /// The sizes of MLA, and the columns of a head without positions.
    pub(super) fn latent(&mut self) -> Option<(Latent, u32)> {
        let query_rank = self.optional("q_lora_rank").unwrap_or(0);
        let key_value_rank = self.size("kv_lora_rank");
        let without_positions = self.size("qk_nope_head_dim");
        let rope_width = self.size("qk_rope_head_dim");
        let value_width = self.size("v_head_dim");
        let latent = Latent {
            query_rank,
            key_value_rank: key_value_rank?,
            rope_width: rope_width?,
            value_width: value_width?,
        };
        Some((latent, without_positions?))
    }

    /// Experts behind the first k dense layers, with shared experts.
    pub(super) fn deepseek_experts(&mut self, routing: Routing, layers: Option<u32>) -> Option<Experts> {
        let (count, active) = (self.experts_count("n_routed_experts"), self.experts_count("num_experts_per_tok"));
        let ffn = self.size("moe_intermediate_size");
        let shared = self.optional("n_shared_experts").unwrap_or(0);
        let period = self.table.whole("moe_layer_freq", 1..=u64::from(MAX_LAYERS), self.faults).unwrap_or(1) as u32;
        let listed = self.sparse_layers(layers.unwrap_or(0));
        let most = u64::from(layers.unwrap_or(MAX_LAYERS));
        let dense_layers = match listed {
            // The list says more.
            Some(_) => self.table.whole("first_k_dense_replace", 0..=most, self.faults).or(Some(0)),
            None => self.table.needed_whole("first_k_dense_replace", 0..=most, self.faults),
        };
        let ffn = ffn?;
        let dense_layers = dense_layers? as u32;
        let experts = Experts {
            count: count?,
            active: active?,
            ffn,
            shared_ffn: shared.saturating_mul(ffn),
            dense_layers,
            layers: None,
            biases: false,
            shared_gate: false,
            routing,
        };
        if let Some(has) = listed {
            return self.pattern("mlp_layer_types", &has).map(|pattern| experts.within(pattern));
        }
        if period == 1 {
            return Some(experts);
        }
        let has: Vec<bool> =
            (0..layers?).map(|layer| layer >= dense_layers && layer.is_multiple_of(period)).collect();
        self.pattern("moe_layer_freq", &has).map(|pattern| experts.within(pattern))
    }

    /// The number of MTP modules.
    pub(super) fn mtp_modules(&mut self, key: &'static str) -> u32 {
        self.table.whole(key, 0..=u64::from(MAX_MULTI_TOKEN), self.faults).unwrap_or(0) as u32
    }
}
