//! The decoder of text in a `config.json`: the file itself, or a table in it where the model also takes images or sound. Sizes
//! that the family's library fills in where people leave them out.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Value, json};

use super::MODEL_TYPES;
use crate::model::Vision;

/// A decoder, and the field that it stands at.
pub(super) struct Decoder {
    pub(super) value: Value,
    pub(super) path: String,
}

/// The keys under which a file has its decoder of text.
const DECODERS: [&str; 3] = ["text_config", "llm_config", "language_config"];

/// Decoders inside files, and families with the layers of another, have a `model_type` that stands for one of these.
const SAME: [(&[&str], &str); 9] = [
    (&["qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl"], "qwen2"),
    (&["qwen3_vl_text", "qwen3_vl"], "qwen3"),
    (&["qwen3_vl_moe_text", "qwen3_vl_moe"], "qwen3_moe"),
    (&["gemma3"], "gemma3_text"),
    (&["qwen3_5"], "qwen3_5_text"),
    (&["qwen3_5_moe"], "qwen3_5_moe_text"),
    (&["internlm3", "iquestcoder", "exaone"], "llama"),
    (&["ministral3"], "mistral"),
    (&["solar_open", "sarvam_moe"], "glm4_moe"),
];

/// Fields that a family has under other names than the one whose layers it has.
const RENAMED: [(&str, &[[&str; 2]]); 3] = [
    ("internlm3", &[["qkv_bias", "attention_bias"], ["bias", "mlp_bias"]]),
    (
        "exaone",
        &[
            ["num_layers", "num_hidden_layers"],
            ["layer_norm_epsilon", "rms_norm_eps"],
            ["activation_function", "hidden_act"],
        ],
    ),
    (
        "sarvam_moe",
        &[
            ["num_experts", "n_routed_experts"],
            ["num_shared_experts", "n_shared_experts"],
            ["use_qkv_bias", "attention_bias"],
            ["num_mtp_layers", "num_nextn_predict_layers"],
        ],
    ),
];

/// The decoder of text of the `config.json` `value`, at the field `path`. What is left out is told in `notes`.
pub(super) fn of(value: &Value, path: &str, notes: &mut Vec<String>) -> Decoder {
    let kind = |value: &Value| value.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let inside = DECODERS.into_iter().find_map(|key| Some((key, value.get(key).filter(|value| value.is_object())?)));
    let is_decoder = MODEL_TYPES.contains(&kind(value).as_str());
    let (mut decoder, path) = match inside.filter(|_| !is_decoder) {
        Some((key, inner)) => {
            let mut inner = inner.clone();
            // The whole model says whether its tables are one.
            if let Some(tied) = value.get("tie_word_embeddings") {
                inner["tie_word_embeddings"] = tied.clone();
            }
            if inner.get("model_type").is_none() {
                inner["model_type"] = json!(kind(value));
            }
            tell_left_out(value, key, notes);
            (inner, if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") })
        }
        None => (value.clone(), path.to_owned()),
    };
    let name = kind(&decoder);
    rename(&mut decoder, &name);
    fill_in(&mut decoder, &name, inside.is_some() && !is_decoder, notes);
    let name = SAME.iter().find(|(names, _)| names.contains(&name.as_str())).map_or(name.as_str(), |(_, same)| same);
    if kind(&decoder) != name {
        fill_in(&mut decoder, name, inside.is_some() && !is_decoder, notes);
        decoder["model_type"] = json!(name);
    }
    let is_apart = inside.is_some() && !is_decoder;
    if let (Some(tower), Some(width)) = (super::tower(value), decoder.get("hidden_size").and_then(Value::as_u64)) {
        tell_tower(&tower, width, is_apart, notes);
        // Of a file whose decoder is not in a table of its own.
        if let Some(table) = decoder.as_object_mut() {
            table.remove("vision_config");
        }
    }
    Decoder { value: decoder, path }
}

/// Tells the size of a vision tower that is left out; where its decoder is in a table of its own, behind what else is.
fn tell_tower(tower: &Vision, width: u64, is_apart: bool, notes: &mut Vec<String>) {
    let parameters = tower.parameters(u32::try_from(width).unwrap_or(u32::MAX));
    let told =
        format!("a vision tower of {parameters} parameters, unless model.vision says how many images a sequence has");
    match notes.first_mut().filter(|_| is_apart) {
        Some(first) => first.push_str(&format!(": {told}")),
        None => notes.push(format!("left out: {told}")),
    }
}

/// Gives fields the names that the family has whose layers `name` has.
fn rename(decoder: &mut Value, name: &str) {
    let Some(table) = decoder.as_object_mut() else { return };
    let keys = RENAMED.into_iter().find(|(other, _)| *other == name).map_or(&[][..], |(_, keys)| keys);
    for [from, to] in keys {
        if !table.contains_key(*to)
            && let Some(value) = table.remove(*from)
        {
            table.insert((*to).to_owned(), value);
        }
    }
}

/// Tells which parts of a model of several the decoder `key` is not.
fn tell_left_out(value: &Value, key: &str, notes: &mut Vec<String>) {
    let parts = value.as_object().into_iter().flatten().filter(|(other, value)| {
        other.as_str() != key && value.is_object() && (other.ends_with("_config") || other.ends_with("_cfg"))
    });
    // A quantisation is no part of the model.
    let parts = parts.map(|(other, _)| other.as_str()).filter(|other| !other.starts_with("quantization"));
    let parts: Vec<&str> = parts.collect();
    let left_out = match parts[..] {
        [] => String::from("what else the model has"),
        _ => format!("{}, and what joins it to the decoder", parts.join(", ")),
    };
    notes.push(format!("the decoder of text is read from {key}; left out: {left_out}"));
}

/// Fills in the library's own sizes where the file leaves them out, and tells which. Files of several models are saved
/// without what is usual.
fn fill_in(decoder: &mut Value, name: &str, is_inside: bool, notes: &mut Vec<String>) {
    let Some(usual) = usual(decoder, name, is_inside) else { return };
    let Some(table) = decoder.as_object_mut() else { return };
    let mut filled = Vec::new();
    for (key, value) in usual.as_object().into_iter().flatten() {
        if !table.contains_key(key) {
            table.insert(key.clone(), value.clone());
            filled.push(format!("{key} {value}"));
        }
    }
    if !filled.is_empty() {
        notes.push(format!("filled in as the library of {name} does: {}", filled.join(", ")));
    }
}

/// The sizes of a family that its library fills in (`transformers` 5). Of decoders by themselves only those that published
/// files leave out.
fn usual(decoder: &Value, name: &str, is_inside: bool) -> Option<Value> {
    let usual = match name {
        "gemma3_text" => json!({
            "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
            "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "query_pre_attn_scalar": 256,
        }),
        "mistral" => json!({
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-6, "sliding_window": 4096,
        }),
        "llama" => json!({
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
        }),
        "qwen3" => json!({
            "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 128_000,
            "rms_norm_eps": 1e-6,
        }),
        "llama4_text" => json!({
            "vocab_size": 202_048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000, "num_local_experts": 16,
            "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "attention_chunk_size": 8192,
        }),
        "granitemoehybrid" => json!({ "max_position_embeddings": 2048 }),
        "solar_open" => json!({
            "first_k_dense_replace": 0, "partial_rotary_factor": 1.0, "use_qk_norm": false,
            "intermediate_size": decoder.get("moe_intermediate_size"),
        }),
        "sarvam_moe" => json!({ "first_k_dense_replace": 1, "partial_rotary_factor": 1.0, "use_qk_norm": true }),
        "gpt_oss" if !is_inside => json!({ "sliding_window": 128 }),
        "olmo3" | "exaone4" if !is_inside => json!({ "sliding_window": 4096 }),
        _ => return None,
    };
    let always = ["gpt_oss", "olmo3", "exaone4", "granitemoehybrid", "solar_open", "sarvam_moe"];
    (is_inside || always.contains(&name)).then_some(usual)
}
