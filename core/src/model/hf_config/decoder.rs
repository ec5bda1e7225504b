//! The decoder of text in a `config.json`: the file itself, or a table in it where the model also takes images or
//! sound. Sizes that the family's library fills in where people leave them out.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::MODEL_TYPES;
use crate::model::{MAX_SIZE, Vision};

/// A decoder, and the field that it stands at.
pub(super) struct Decoder {
    pub(super) value: Value,
    pub(super) path: String,
}

/// The keys under which a file has its decoder of text.
const DECODERS: [&str; 3] = ["text_config", "llm_config", "language_config"];

/// The key of the model that writes, in a file of Qwen Omni that has another one for speech.
const THINKER: &str = "thinker_config";

/// Decoders inside files, and families with the layers of another, have a `model_type` that stands for one of these.
const SAME: [(&[&str], &str); 20] = [
    (&["qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_text"], "qwen2"),
    (&["qwen3_vl_text", "qwen3_vl"], "qwen3"),
    (&["qwen3_vl_moe_text", "qwen3_vl_moe", "qwen3_omni_moe_text"], "qwen3_moe"),
    (&["gemma3"], "gemma3_text"),
    (&["gemma4", "gemma4_unified", "gemma4_unified_text"], "gemma4_text"),
    (&["gpt-sw3"], "gpt2"),
    (&["qwen3_5"], "qwen3_5_text"),
    (&["qwen3_5_moe"], "qwen3_5_moe_text"),
    (&["internlm3", "iquestcoder", "exaone", "emu3_text_model"], "llama"),
    (&["ministral", "ministral3"], "mistral"),
    (&["sarvam_mla"], "deepseek_v3"),
    (&["unlimited_ocr_text"], "deepseek_ocr2_text"),
    (&["hunyuan_vl_text", "hunyuan_vl"], "hunyuan_v1_dense"),
    (&["paddleocr_vl_text", "paddleocr_vl"], "ernie4_5"),
    (&["glm4v"], "glm4v_text"),
    (&["granite4_vision_text", "granite_docling_text"], "granite"),
    (&["cosmos3_edge_text"], "arcee"),
    (&["apertus1p5_text"], "apertus"),
    (&["phi4_multimodal"], "phi3"),
    (&["solar_open", "sarvam_moe"], "glm4_moe"),
];

/// Fields that a family has under other names than the one whose layers it has.
const RENAMED: [(&str, &[[&str; 2]]); 5] = [
    ("aria_text", &[["moe_num_experts", "num_experts"], ["moe_num_shared_experts", "num_shared_expert"]]),
    (
        "sarvam_mla",
        &[
            ["num_experts", "n_routed_experts"],
            ["num_local_experts", "n_routed_experts"],
            ["num_shared_experts", "n_shared_experts"],
        ],
    ),
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
    if let Some(thinker) = value.get(THINKER).filter(|thinker| thinker.is_object()) {
        let speaks = value.get("talker_config").is_some_and(Value::is_object);
        let left_out = if speaks { "; left out: what speaks" } else { "" };
        notes.push(format!("the model that writes is read from {THINKER}{left_out}"));
        let path = if path.is_empty() { THINKER.to_owned() } else { format!("{path}.{THINKER}") };
        let mut thinker = thinker.clone();
        // Whether its tables are one it says itself, not the decoder within: where it does not, they are two.
        if thinker.get("tie_word_embeddings").is_none() {
            thinker["tie_word_embeddings"] = json!(false);
        }
        return of(&thinker, &path, notes);
    }
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
    let nulls = decoder.as_object_mut().into_iter().flatten().filter(|(key, value)| null_says(key) && *value == NONE);
    nulls.for_each(|(_, value)| *value = Value::Null);
    let name = kind(&decoder);
    rename(&mut decoder, &name);
    fill_in(&mut decoder, &name, inside.is_some() && !is_decoder, notes);
    let name = SAME.iter().find(|(names, _)| names.contains(&name.as_str())).map_or(name.as_str(), |(_, same)| same);
    if kind(&decoder) != name {
        fill_in(&mut decoder, name, inside.is_some() && !is_decoder, notes);
        decoder["model_type"] = json!(name);
    }
    let is_apart = inside.is_some() && !is_decoder;
    if !is_apart {
        leave_out_beside(&mut decoder, notes);
    }
    if let (Some(tower), Some(width)) = (super::tower(value), decoder.get("hidden_size").and_then(Value::as_u64)) {
        tell_tower(&tower, width, is_apart, notes);
        // Of a file whose decoder is not in a table of its own.
        if let Some(table) = decoder.as_object_mut() {
            table.remove("vision_config");
        }
    }
    Decoder { value: decoder, path }
}

/// Takes the tables of what else the model has out of a file whose decoder is in no table of its own, and tells which.
fn leave_out_beside(decoder: &mut Value, notes: &mut Vec<String>) {
    let Some(table) = decoder.as_object_mut() else { return };
    let keys =
        ["audio_config", "vision_config"].into_iter().filter(|key| table.get(*key).is_some_and(Value::is_object));
    let keys: Vec<&str> = keys.collect();
    if table.get("model_type").and_then(Value::as_str) != Some("phi3") || keys.is_empty() {
        return;
    }
    for key in &keys {
        table.remove(*key);
    }
    notes.push(format!("left out: {}, and what joins it to the decoder", keys.join(", ")));
}

/// Tells the size of a vision tower that is left out; where its decoder is in a table of its own, behind what else is.
fn tell_tower(tower: &Vision, width: u64, is_apart: bool, notes: &mut Vec<String>) {
    // Sizes beyond those of any tower are not told: products of them have no number.
    let Vision { layers, hidden, ffn, positions, patch, merge, deepstack, .. } = *tower;
    let long = [ffn, positions, tower.width].into_iter().all(|size| size <= MAX_SIZE);
    let short =
        [layers, patch].into_iter().all(|size| size <= 1 << 12) && [merge, deepstack].iter().all(|n| *n <= 256);
    let is_known = long && short && hidden <= 1 << 17;
    let Some(width) = u32::try_from(width).ok().filter(|width| is_known && *width <= MAX_SIZE) else { return };
    let parameters = tower.parameters(width);
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
    let of_inside = if is_inside { usual_inside(name) } else { None };
    let alone = FILLED.iter().filter(|(names, _)| names.contains(&name)).flat_map(|(_, sizes)| sizes.iter());
    let alone = alone.map(|(key, number)| {
        let whole = *number == libm::trunc(*number);
        ((*key).to_owned(), if whole { json!(*number as u64) } else { json!(number) })
    });
    let computed = computed(decoder, name);
    let tables = [of_inside, computed].into_iter().flatten().filter_map(|table| table.as_object().cloned());
    let usual: Vec<(String, Value)> = tables.flatten().chain(alone).collect();
    let Some(table) = decoder.as_object_mut() else { return };
    let mut filled = Vec::new();
    for (key, value) in usual {
        if !says(table, &key) {
            if !value.is_null() {
                filled.push(format!("{key} {value}"));
            }
            table.insert(key, value);
        }
    }
    if !filled.is_empty() {
        notes.push(format!("filled in as the library of {name} does: {}", filled.join(", ")));
    }
}

/// Whether a file says `key`, also where it says it of rotary positions in the table of newer files.
fn says(table: &Map<String, Value>, key: &str) -> bool {
    let rope = table.get("rope_parameters");
    let nested = [rope, rope.and_then(|rope| rope.get("full_attention"))];
    table.contains_key(key) || nested.into_iter().flatten().any(|rope| rope.get(key).is_some())
}

/// Fields with their numbers.
type Sizes = &'static [(&'static str, f64)];

/// The sizes that the libraries of families fill in (`transformers` 5) and that files leave out, or may. All others are
/// required. Those that a reader takes as none where they are null are none then.
const FILLED: &[(&[&str], Sizes)] = &[
    (&["afmoe"], &[("num_shared_experts", 2.0), ("sliding_window", 1024.0)]),
    (&["aria_text"], &[("num_experts", 8.0), ("moe_topk", 2.0), ("num_shared_expert", 2.0)]),
    (&["bamba", "iquestcoder", "nemotron_h"], &[("num_key_value_heads", 8.0)]),
    (&["cosmos3_edge_text"], &[("num_key_value_heads", 8.0), ("head_dim", 128.0), ("rope_theta", 1e8)]),
    (&["cohere"], &[("logit_scale", 0.0625)]),
    (&["cohere2"], &[("logit_scale", 0.0625), ("sliding_window", 4096.0)]),
    (&["cohere2_moe"], &[("logit_scale", 0.0625), ("sliding_window", 4096.0), ("head_dim", 128.0)]),
    (&["cwm"], &[("num_key_value_heads", 8.0), ("sliding_window", 8192.0)]),
    (&["deepseek_ocr2_text"], &[("n_shared_experts", 2.0)]),
    (&["deepseek_v2"], &[("q_lora_rank", 1536.0), ("n_shared_experts", 2.0)]),
    (&["deepseek_v3", "deepseek_v32"], &[("q_lora_rank", 1536.0), ("n_shared_experts", 1.0)]),
    (&["emu3_text_model"], &[("num_key_value_heads", 8.0), ("rope_theta", 1e6)]),
    (&["ernie4_5", "hy_v3", "minimax_m2"], &[("head_dim", 128.0)]),
    (&["ernie4_5_moe"], &[("moe_num_shared_experts", 2.0)]),
    (&["exaone"], &[("num_key_value_heads", 8.0), ("rope_theta", 5e5)]),
    (
        &["exaone4", "exaone_moe", "gemma2", "gemma3_text", "mistral", "olmo3", "vaultgemma"],
        &[("sliding_window", 4096.0)],
    ),
    (&["gemma4_text"], &[("sliding_window", 512.0)]),
    (&["glm4_moe", "glm4v_moe_text"], &[("n_shared_experts", 1.0)]),
    (&["glm4_moe_lite"], &[("q_lora_rank", 768.0), ("n_shared_experts", 1.0)]),
    (&["glm_moe_dsa"], &[("q_lora_rank", 2048.0), ("n_shared_experts", 1.0)]),
    (&["gpt_oss", "granite_swa", "granitemoe_swa"], &[("sliding_window", 128.0)]),
    (
        &["granite_docling_text"],
        &[
            ("num_key_value_heads", 4.0),
            ("embedding_multiplier", 12.0),
            ("residual_multiplier", 0.263),
            ("attention_multiplier", 0.015625),
            ("logits_scaling", 4.0),
        ],
    ),
    (&["granitemoehybrid"], &[("max_position_embeddings", 2048.0)]),
    (&["hunyuan_v1_moe"], &[("moe_topk", 1.0), ("num_shared_expert", 1.0)]),
    (&["internlm3"], &[("num_key_value_heads", 2.0)]),
    (&["llama4_text"], &[("attention_chunk_size", 8192.0)]),
    (&["minicpm3"], &[("q_lora_rank", 768.0), ("scale_emb", 12.0), ("scale_depth", 1.4), ("dim_model_base", 256.0)]),
    (&["ministral3"], &[("rope_theta", 1e6)]),
    (&["mistral4"], &[("q_lora_rank", 1024.0), ("n_shared_experts", 1.0)]),
    (&["qwen2_5_omni_text", "qwen3_omni_moe_text"], &[("rope_theta", 1e6)]),
    (&["qwen3_vl_moe", "qwen3_vl_moe_text"], &[("head_dim", 128.0), ("rope_theta", 5e5)]),
    (
        &["sarvam_mla"],
        &[("first_k_dense_replace", 1.0), ("n_group", 1.0), ("topk_group", 1.0), ("n_shared_experts", 1.0)],
    ),
    (
        &["sarvam_moe"],
        &[
            ("first_k_dense_replace", 1.0),
            ("partial_rotary_factor", 1.0),
            ("n_shared_experts", 1.0),
            ("routed_scaling_factor", 2.5),
            ("rope_theta", 8e6),
        ],
    ),
    (&["smollm3"], &[("num_key_value_heads", 4.0)]),
    (
        &["solar_open"],
        &[
            ("first_k_dense_replace", 0.0),
            ("partial_rotary_factor", 1.0),
            ("n_shared_experts", 1.0),
            ("head_dim", 128.0),
            ("rope_theta", 1e6),
        ],
    ),
    (&["youtu"], &[("q_lora_rank", 1536.0)]),
];

/// Whether a null at `key` says something else than nothing does, which the library fills in. TOML has no null: there
/// [`NONE`] stands for it.
pub(crate) fn null_says(key: &str) -> bool {
    let filled = FILLED.iter().flat_map(|(_, sizes)| sizes.iter()).any(|(known, _)| *known == key);
    filled || matches!(key, "attn_logit_softcapping" | "final_logit_softcapping")
}

/// A null in a text of TOML.
const NONE: &str = "none";

/// As [`FILLED`], what follows from other fields, and flags.
fn computed(decoder: &Value, name: &str) -> Option<Value> {
    let size = |key: &str| decoder.get(key).and_then(Value::as_u64);
    Some(match name {
        "qwen3_moe" => {
            let (hidden, heads) = size("hidden_size").zip(size("num_attention_heads"))?;
            json!({ "head_dim": hidden.checked_div(heads).filter(|_| hidden.is_multiple_of(heads))? })
        }
        "solar_open" => json!({
            "use_qk_norm": false, "intermediate_size": decoder.get("moe_intermediate_size"),
        }),
        "sarvam_moe" => json!({ "use_qk_norm": true }),
        "granite_docling_text" | "hunyuan_vl_text" | "hunyuan_vl" | "paddleocr_vl" => {
            json!({ "tie_word_embeddings": true })
        }
        // The families whose layers these have fill in more.
        "ministral3" => json!({ "sliding_window": null }),
        "sarvam_mla" => json!({ "q_lora_rank": null }),
        _ => return None,
    })
}

/// The sizes of a decoder inside a file of several models, which is saved without what is usual.
fn usual_inside(name: &str) -> Option<Value> {
    Some(match name {
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
        _ => return None,
    })
}
