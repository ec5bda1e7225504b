//! Other names of spec fields: those of Megatron-LM, Hugging Face and DeepSpeed.
//!
//! A spec may use an alias in the place of a field. It then means the same as the field, and the spec is written with
//! the field's own name. Faults name what stands in the input. An alias together with its field is a fault.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use crate::base::fields::{Fault, one_of_like, shown};

/// One alias of a field.
pub(super) struct Alias {
    /// The table that holds both, as a path: `model.experts`.
    pub(super) table: &'static str,
    /// The other name.
    pub(super) name: &'static str,
    /// The field's own name.
    pub(super) field: &'static str,
    /// What the values of the alias mean.
    values: Values,
}

/// How the value of an alias becomes a value of its field.
enum Values {
    /// As it is.
    Same,
    /// Each word of the alias with the word of the field.
    Words(&'static [(&'static str, &'static str)]),
    /// Whether attention and MLP are parallel, or `one-norm` where they share their norm.
    ParallelResidual,
}

const fn same(table: &'static str, name: &'static str, field: &'static str) -> Alias {
    Alias { table, name, field, values: Values::Same }
}

/// Every alias. A table stands before the tables in it, and a field before the fields whose values depend on it.
///
/// Names of the parallel degrees, batch, router and MTP are those of Megatron-LM's arguments and `TransformerConfig`;
/// those of MLA, soft-caps, key-value heads and RoPE are those of Hugging Face's `config.json`; `zero_stage` and
/// `gradient_accumulation_steps` are DeepSpeed's. The others are the field's words where no program has one name.
pub(super) static ALIASES: &[Alias] = &[
    same("model", "num_layers", "layers"),
    same("model", "hidden_size", "hidden"),
    same("model", "num_attention_heads", "heads"),
    same("model", "num_query_groups", "kv_heads"),
    same("model", "num_key_value_heads", "kv_heads"),
    same("model", "ffn_hidden_size", "ffn"),
    same("model", "vocab_size", "vocab"),
    same("model", "max_position_embeddings", "positions"),
    same("model", "rope_theta", "rope_base"),
    same("model", "rotary_dim", "rotary"),
    same("model", "norm_epsilon", "norm_eps"),
    same("model", "tie_word_embeddings", "tied"),
    same("model", "add_qkv_bias", "qkv_bias"),
    same("model", "qk_layernorm", "qk_norm"),
    same("model", "sandwich_norm", "post_norms"),
    same("model", "layernorm_zero_centered_gamma", "norm_offset"),
    same("model", "disable_bias_linear", "no_bias"),
    same("model", "mtp_num_layers", "multi_token"),
    Alias { table: "model", name: "parallel_residual", field: "arrangement", values: Values::ParallelResidual },
    same("model", "soft_caps", "caps"),
    same("model.caps", "attn_logit_softcapping", "attention"),
    same("model.caps", "final_logit_softcapping", "logits"),
    same("model", "mla", "latent"),
    same("model.latent", "q_lora_rank", "query_rank"),
    same("model.latent", "kv_lora_rank", "key_value_rank"),
    same("model.latent", "qk_rope_head_dim", "rope_width"),
    same("model.latent", "v_head_dim", "value_width"),
    same("model", "moe", "experts"),
    same("model.experts", "num_experts", "count"),
    same("model.experts", "moe_router_topk", "active"),
    same("model.experts", "moe_ffn_hidden_size", "ffn"),
    same("model.experts", "moe_shared_expert_intermediate_size", "shared_ffn"),
    same("model.experts", "moe_shared_expert_gate", "shared_gate"),
    same("model.experts", "first_k_dense_replace", "dense_layers"),
    same("model.experts", "moe_router_score_function", "scores"),
    same("model.experts", "norm_topk_prob", "normed"),
    same("model.experts", "moe_router_topk_scaling_factor", "factor"),
    same("model.experts", "moe_router_num_groups", "groups"),
    same("model.experts", "moe_router_group_topk", "active_groups"),
    same("cluster", "gpus_per_node", "devices_per_node"),
    same("cluster", "intra_node_link", "link"),
    same("cluster", "inter_node_link", "node_link"),
    same("cluster.device", "peak_gemm_efficiency_permille", "matmul_permille"),
    same("cluster.device", "kernel_launch_ns", "launch_ns"),
    same("parallel", "pipeline_model_parallel_size", "pipeline"),
    same("parallel", "virtual_pipeline_model_parallel_size", "chunks"),
    same("parallel", "pipeline_model_parallel_layout", "partition"),
    same("parallel", "tensor_model_parallel_size", "tensor"),
    same("parallel", "async_tensor_model_parallel_allreduce", "async_reduce"),
    same("parallel", "context_parallel_size", "context"),
    same("parallel", "data_parallel_size", "data"),
    same("parallel", "zero_stage", "zero"),
    same("parallel", "sharding_group_size", "shard"),
    Alias {
        table: "parallel",
        name: "gradient_reduction",
        field: "reduce_gradients",
        values: Values::Words(&[("once-per-step", "after-accumulation"), ("per-microbatch", "each-microbatch")]),
    },
    same("parallel", "expert_model_parallel_size", "expert"),
    same("parallel", "expert_tensor_parallel_size", "expert_tensor"),
    Alias {
        table: "parallel",
        name: "moe_dispatch",
        field: "dispatch",
        values: Values::Words(&[("all-to-all", "each-copy"), ("deepep", "once-per-node")]),
    },
    same("parallel", "overlap_moe_expert_parallel_comm", "overlap_exchanges"),
    same("training", "gradient_accumulation_steps", "microbatches"),
    same("training", "micro_batch_size", "microbatch_size"),
    same("training", "seq_length", "sequence"),
    same("training", "train_tokens", "tokens"),
    same("training", "precision", "dtype"),
    same("training", "gemm_precision", "matmul_dtype"),
    same("training", "gradient_accumulation_dtype", "gradients_dtype"),
    same("training", "optimizer_state_dtype", "moments_dtype"),
    same("training", "expert_load_imbalance", "expert_imbalance"),
    same("training", "moe_aux_loss_coeff", "moe_aux_loss"),
    same("training", "moe_z_loss_coeff", "moe_z_loss"),
    same("training", "router_z_loss_coef", "moe_z_loss"),
    same("training", "recompute_first_layers", "recompute_first"),
    same("training", "activation_offload", "offload"),
    same("training", "optimizer_cpu_offload", "offload_optimizer"),
    same("training.lora", "r", "rank"),
    same("training.lora", "dim", "rank"),
    same("training.lora", "lora_alpha", "alpha"),
    same("training.lora", "target_modules", "targets"),
    same("memory", "limit_per_gpu_bytes", "limit_bytes"),
    same("memory", "reserved_bytes", "overhead_bytes"),
];

/// The other names of spec fields, of Megatron-LM, Hugging Face and DeepSpeed: each with its path and the path of the field
/// that it sets, such as `model.num_layers` and `model.layers`.
pub fn aliases() -> impl Iterator<Item = (String, String)> {
    ALIASES.iter().map(|alias| {
        let path = |name: &str| format!("{}.{name}", alias.table);
        (path(alias.name), path(alias.field))
    })
}

/// An input with the fields' own names, and the aliases that it used.
pub(super) struct Resolved<'v> {
    value: Cow<'v, Value>,
    /// The path of a field, and of the alias that stood for it.
    used: Vec<(String, String)>,
}

/// `value` with the fields' own names, where it is the table `root` of a spec (empty: all of it) and stands at `path`.
pub(super) fn resolve<'v>(value: &'v Value, root: &str, path: &str, faults: &mut Vec<Fault>) -> Resolved<'v> {
    let mut resolved = Resolved { value: Cow::Borrowed(value), used: Vec::new() };
    for alias in ALIASES {
        let Some(inside) = below(alias.table, root) else { continue };
        if table_at(&resolved.value, inside).is_none_or(|table| !table.contains_key(alias.name)) {
            continue;
        }
        let Some(table) = table_at_mut(resolved.value.to_mut(), inside) else { continue };
        let Some(found) = table.remove(alias.name).filter(|found| !found.is_null()) else { continue };
        let at = join(path, inside);
        let (own, other) = (join(&at, alias.field), join(&at, alias.name));
        if table.get(alias.field).is_some_and(|value| !value.is_null()) {
            let said = resolved.used.iter().find(|(field, _)| *field == own).map_or(&own, |(_, alias)| alias);
            let accepted = format!("one of the two: both names set the field {}", alias.field);
            faults.push(Fault::new(other, format!("it together with {said}"), accepted));
            continue;
        }
        match alias.values.read(&found) {
            Ok(value) => {
                table.insert(String::from(alias.field), value);
                resolved.used.push((own, other));
            }
            Err(accepted) => faults.push(Fault::new(other, shown(&found), accepted)),
        }
    }
    resolved
}

impl Resolved<'_> {
    /// The input with the fields' own names.
    pub(super) fn value(&self) -> &Value {
        &self.value
    }

    /// Names in `faults` what stands in the input.
    pub(super) fn name_faults(&self, faults: &mut [Fault]) {
        // The innermost table first: its path still has the own names of the tables around it.
        for (own, alias) in self.used.iter().rev() {
            for fault in faults.iter_mut() {
                let Some(rest) = fault.field.strip_prefix(own.as_str()) else { continue };
                if rest.is_empty() || rest.starts_with(['.', '[']) {
                    fault.field = format!("{alias}{rest}");
                }
            }
        }
    }
}

impl Values {
    /// The field's value for `found`, or what is accepted instead.
    fn read(&self, found: &Value) -> Result<Value, String> {
        match self {
            Values::Same => Ok(found.clone()),
            Values::Words(words) => {
                let text = found.as_str().unwrap_or_default();
                let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
                let word = words.iter().find(|(name, _)| *name == text);
                word.map(|(_, own)| json!(own)).ok_or_else(|| one_of_like(text, &names))
            }
            Values::ParallelResidual => match found {
                Value::Bool(false) => Ok(json!("in-turn")),
                Value::Bool(true) => Ok(json!("beside")),
                Value::String(text) if text == "one-norm" => Ok(json!("beside-one-norm")),
                _ => Err(String::from("true, false, or one-norm where attention and MLP share their norm")),
            },
        }
    }
}

/// The path of `table` inside `root`, if it is there.
fn below<'t>(table: &'t str, root: &str) -> Option<&'t str> {
    if root.is_empty() {
        return Some(table);
    }
    let rest = table.strip_prefix(root)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('.') }
}

fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", one) | (one, "") => String::from(one),
        _ => format!("{path}.{key}"),
    }
}

fn keys(path: &str) -> impl Iterator<Item = &str> {
    path.split('.').filter(|key| !key.is_empty())
}

fn table_at<'v>(value: &'v Value, path: &str) -> Option<&'v Map<String, Value>> {
    keys(path).try_fold(value, |value, key| value.get(key))?.as_object()
}

fn table_at_mut<'v>(value: &'v mut Value, path: &str) -> Option<&'v mut Map<String, Value>> {
    keys(path).try_fold(value, |value, key| value.get_mut(key))?.as_object_mut()
}

#[cfg(test)]
mod tests;
