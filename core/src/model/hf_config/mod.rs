//! A model's sizes from the `config.json` of a Hugging Face checkpoint. One file here for each family of models.
//!
//! The reader takes `model_type` and the fields that give a layer its sizes and operators. These include the multipliers of
//! Gemma and Granite, their soft-caps, and the routing of experts. The reader ignores all other fields (dropout, tokens,
//! versions, quantisation, scaled positions): they change no bytes and no operations here. A missing size is a fault. It is
//! a default only where the family's library defines one.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::Value;

use self::reader::Reader;
use super::ModelConfig;
use crate::base::fields::{Fault, Table, one_of_like, shown};

mod deepseek;
mod gemma;
mod gpt;
mod granite;
mod llama;
mod moe;
mod reader;
#[cfg(test)]
mod tests;

/// Every `model_type` that is read.
pub const MODEL_TYPES: [&str; 27] = [
    "deepseek_v2",
    "deepseek_v3",
    "dots1",
    "ernie4_5",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "granite",
    "granitemoe",
    "kimi_k2",
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "starcoder2",
];

/// Well-known decoders that the graph does not support, each with the part that is missing.
const UNSUPPORTED: [(&[&str], &str); 8] = [
    (&["bloom", "mpt"], "attention with ALiBi: a slope for each head"),
    (&["opt", "nemotron"], "an MLP with ReLU"),
    (&["phi", "gptj", "codegen"], "an output layer with a bias"),
    (&["cohere", "cohere2", "olmo", "stablelm", "phimoe"], "another LayerNorm"),
    (&["olmo2", "olmo3", "olmoe"], "QK-norm over all heads together"),
    (&["gpt_oss"], "attention sinks and biases of experts"),
    (&["mamba", "mamba2", "jamba", "falcon_mamba", "qwen3_next", "rwkv"], "layers with a recurrent state"),
    (&["llama4_text", "smollm3"], "layers without positional encoding (NoPE)"),
];

/// Whether `value` is a `config.json`, and not a spec that contains or names one.
pub fn looks_like_one(value: &Value) -> bool {
    let has = |key: &str| value.get(key).is_some();
    (has("model_type") || has("architectures")) && !has("model") && !has("problem")
}

/// The model that `value` describes: the content of a `config.json` at the field `path`. None where a field is missing or
/// wrong; then every fault is in `faults`.
pub fn read(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<ModelConfig> {
    let mut table = Table::of(value, path, faults)?;
    let kind = table.get("model_type").cloned().unwrap_or(Value::Null);
    let name = kind.as_str().unwrap_or_default();
    if !MODEL_TYPES.contains(&name) {
        let found = if kind.is_null() { "nothing".to_string() } else { shown(&kind) };
        let missing = UNSUPPORTED.iter().find(|(names, _)| names.contains(&name));
        let missing = missing.map_or(String::new(), |(_, part)| format!(" (this model has {part})"));
        let decoder = match table.get("text_config") {
            Some(_) => "the `text_config` inside, which is the decoder; ",
            None => "",
        };
        let kinds = one_of_like(name, &MODEL_TYPES);
        let accepted = format!("{decoder}{kinds}{missing}; or give the sizes of a similar decoder by hand");
        faults.push(Fault::new(table.path("model_type"), found, accepted));
        return None;
    }
    let before = faults.len();
    let mut reader = Reader { table, faults };
    let config = match name {
        "gpt2" | "gpt_bigcode" | "gpt_neox" | "falcon" | "starcoder2" => reader.gpt_like(name),
        // Kimi K2 has the layers of DeepSeek-V3 and another `model_type`.
        "kimi_k2" => reader.llama_like("deepseek_v3"),
        _ => reader.llama_like(name),
    };
    config.filter(|_| reader.faults.len() == before)
}
