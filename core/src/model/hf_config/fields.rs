//! Fields that no reader asks for: known to change no plan, refused because they decide the model, or told.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use super::reader::Reader;
use crate::base::fields::{Fault, shown};
use crate::model::ModelConfig;

/// Fields that change neither parameters nor operations, bytes or time.
const HARMLESS: &[&str] = &[
    // A number beside `use_cla`, which decides.
    "cla_share_factor",
    "mtp_use_dedicated_embeddings",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "apply_residual_connection_post_layernorm",
    "architectures",
    "attention_bias_init",
    "attention_dropout",
    "attn_implementation",
    "chunk_size",
    "embed_dropout",
    "embedding_initializer_range",
    "enable_moe_fp32_combine",
    "eod_token_id",
    "expand",
    "load_balance_coeff",
    "mamba_ssm_cache_dtype",
    "mamba_ssm_dtype",
    "moe_norm_min",
    "moe_shared_expert_overlap",
    "mtp_hybrid_override_pattern",
    "mtp_layer_types",
    "mtp_layers_block_type",
    "mtp_mlp_layer_types",
    "num_logits_to_keep",
    "qk_head_dim",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "time_step_floor",
    "use_mamba_kernels",
    "z_loss_coefficient",
    "chunk_size_feed_forward",
    "problem_type",
    "is_decoder",
    "head_dim",
    "attn_pdrop",
    "auto_map",
    "aux_loss_alpha",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "classifier_dropout",
    "decoder_start_token_id",
    "dtype",
    "embd_pdrop",
    "embedding_dropout",
    "eos_token_id",
    "ep_size",
    "experts_per_token",
    "expert_bias_update_rate",
    "full_attn_mod",
    "head_dim_original",
    "hidden_dropout",
    "id2label",
    "image_token_id",
    "initial_context_length",
    "initializer_factor",
    "initializer_range",
    "input_router_jitter",
    "interpolate_factor",
    "keys_to_ignore_at_inference",
    "label2id",
    "layer_norm_epsilon_original",
    "llama_4_scaling",
    "logits_to_keep",
    "long_factor",
    "max_length",
    "max_model_length",
    "max_window_layers",
    "mm_tokens_per_image",
    "moe_aux_loss_coeff",
    "moe_drop_tokens",
    "moe_layer_num_skipped",
    "moe_random_routing_dropped_token",
    "n_ctx",
    "name_or_path",
    "norm_eps_original",
    "org_vocab_size",
    "original_max_position_embeddings",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_id",
    "pad_token_id",
    "partial_rotary_factor_original",
    "pretraining_tp",
    "quantization_config",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "rope_interleave",
    "rope_interleaved",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_ratio",
    "rope_theta",
    "reorder_and_upcast_attn",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "router_z_loss_coef",
    "routing_bias_update_rate",
    "scale_attn_weights",
    "sep_token_id",
    "seq_aux",
    "seq_length",
    "short_factor",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "text_len",
    "time_step_limit",
    "time_step_max",
    "time_step_min",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "use_bidirectional_attention",
    "use_cache",
    "use_flash_attn",
    "use_fused_rmsnorm",
    "use_fused_rope",
    "use_return_dict",
    "use_routing_bias",
    "video_token_id",
    "vision_end_token_id",
    "vision_start_token_id",
    "vision_token_id",
];

/// Fields that decide what a layer is, in files of families whose readers do not ask for them; or how such begin.
const DECIDING: &[(&str, &str)] = &[
    ("alibi", "attention with ALiBi"),
    ("altup_", "alternating updates of the stream"),
    ("attn_layer_", "layers without attention"),
    ("attn_type_list", "other kinds of layers"),
    ("block_sparse", "sparse attention"),
    ("clip_qkv", "clipped queries, keys and values"),
    ("cla_", "keys and values shared between layers"),
    ("conv_", "convolutions"),
    ("cross_attention", "attention to another model"),
    ("dual_chunk_attention_config", "attention in chunks"),
    ("expert_layer_", "layers with experts by period"),
    ("full_attention_interval", "other kinds of layers"),
    ("hidden_size_per_layer_input", "embeddings of each layer"),
    ("hybrid_override_pattern", "other kinds of layers"),
    ("index_", "an indexer of tokens"),
    ("is_encoder_decoder", "an encoder"),
    ("kv_lora_rank", "latent attention"),
    ("laurel_", "low-rank residuals"),
    ("layer_types", "other kinds of layers"),
    ("layers_block_type", "other kinds of layers"),
    ("linear_", "linear attention"),
    ("lm_head_bias", "an output layer with a bias"),
    ("mamba_", "a state space model"),
    ("mlp_bias", "biases of the MLP"),
    ("moe_intermediate_size", "experts"),
    ("moe_latent_size", "experts that work on a latent"),
    ("moe_layer_", "layers with experts by period"),
    ("mlp_layer_types", "experts in some layers"),
    ("layer_rope_theta", "another RoPE theta in some layers"),
    ("indexer_types", "an indexer of tokens"),
    ("n_routed_experts", "experts"),
    ("no_rope_layer", "layers without rotary positions"),
    ("nope_layer", "layers without rotary positions"),
    ("num_experts", "experts"),
    ("num_kv_shared_layers", "keys and values shared between layers"),
    ("num_local_experts", "experts"),
    ("num_shared_expert", "shared experts"),
    ("output_vocab_size", "an output layer of other tokens"),
    ("n_shared_experts", "shared experts"),
    ("q_lora_rank", "latent attention"),
    ("shared_expert_intermediate_size", "shared experts"),
    ("sinkhorn", "several residual streams"),
    ("ssm_", "a state space model"),
    ("swiglu_limit", "a clamped activation"),
    ("use_cla", "keys and values shared between layers"),
    ("use_lightning", "linear attention"),
    ("zero_expert_", "experts that do nothing"),
];

/// Fields that say that the model has modules for multi-token prediction, which the family's library does not build.
const MULTI_TOKEN: [&str; 7] = [
    "num_nextn_predict_layers",
    "num_mtp_modules",
    "mtp_transformer_layers",
    "use_mtp",
    "mtp_num_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
];

impl Reader<'_, '_> {
    /// Judges every field that nothing has read: a fault for one that decides the model, and a note of those that are
    /// not known. Nothing is said of what is known to change no plan, or is off.
    pub(super) fn judge_unread(&mut self, model: &ModelConfig) {
        let (mut unknown, mut modules) = (Vec::new(), Vec::new());
        for key in self.table.unread() {
            if is_off(self.table.peek(key)) || HARMLESS.contains(&key) || self.says_again(key, model) {
                continue;
            }
            if MULTI_TOKEN.contains(&key) {
                modules.push(key);
                continue;
            }
            match DECIDING.iter().find(|(start, _)| key.starts_with(start)) {
                Some((_, part)) => {
                    let found = self.table.peek(key).map_or(String::new(), shown);
                    let accepted = format!("nothing: this family is read without {part}; give the sizes by hand");
                    self.faults.push(Fault::new(self.table.path(key), found, accepted));
                }
                None => unknown.push(key),
            }
        }
        if !modules.is_empty() {
            let names = modules.join(", ");
            self.notes.push(format!(
                "modules for multi-token prediction are left out ({names}); give them as model.multi_token"
            ));
        }
        if !unknown.is_empty() {
            // Of a file of thousands only the first are named.
            let (named, more) = unknown.split_at(unknown.len().min(20));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            self.notes.push(format!("not known and not used: {}{more}", named.join(", ")));
        }
    }
}

impl Reader<'_, '_> {
    /// Whether a field is another family's name of a number that the model has: some files say both.
    fn says_again(&self, key: &str, model: &ModelConfig) -> bool {
        let Some(experts) = model.variant.experts else { return false };
        let has = match key {
            "num_experts" | "num_local_experts" | "n_routed_experts" => experts.count,
            "moe_intermediate_size" => experts.ffn,
            "shared_expert_intermediate_size" => experts.shared_ffn,
            _ => return false,
        };
        self.table.peek(key).and_then(Value::as_u64) == Some(has.into())
    }
}

/// Whether a value says that there is no such part.
fn is_off(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::Number(number)) => number.as_f64() == Some(0.0),
        Some(Value::String(text)) => text.is_empty() || text == "none",
        Some(Value::Array(list)) => list.iter().all(|one| one.as_str() == Some("full_attention")),
        Some(Value::Object(table)) => table.is_empty(),
        Some(Value::Bool(true)) => false,
    }
}
