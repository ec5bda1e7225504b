//! A model's sizes from the `config.json` of a Hugging Face checkpoint. One file here for each family of models.
//!
//! The reader takes `model_type` and the fields that give a layer its sizes and operators. These include the multipliers of
//! Gemma and Granite, their soft-caps, and the routing of experts. Of a file that also describes images or sound it takes the
//! decoder of text, and tells what it leaves out. A missing size is a fault. It is a default only where the family's library
//! defines one; those that people leave out are filled in and told.
//!
//! No field is passed over. One that no reader asks for is known to change no plan (`fields`: dropout, tokens, versions,
//! quantisation, scaled positions), is refused where it decides the model, or is told.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::Value;

use self::reader::Reader;
use super::ModelConfig;
use crate::base::fields::{Fault, Table, one_of_like, shown};

mod decoder;
mod deepseek;
mod fields;
mod gemma;
mod gpt;
mod granite;
mod llama;
mod moe;
mod nemotron;
mod newer;
mod reader;
#[cfg(test)]
mod tests;
mod vision;

pub use self::vision::tower;

/// Every `model_type` that is read.
pub const MODEL_TYPES: [&str; 60] = [
    "afmoe",
    "apertus",
    "arcee",
    "bamba",
    "cwm",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone_moe",
    "falcon",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hyperclovax",
    "kimi_k2",
    "llama",
    "llama4_text",
    "mellum",
    "minicpm3",
    "minimax_m2",
    "mistral",
    "mixtral",
    "nemotron_h",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
    "starcoder2",
    "vaultgemma",
    "youtu",
];

/// Well-known decoders that the graph does not support, each with the part that is missing.
const UNSUPPORTED: [(&[&str], &str); 13] = [
    (&["bloom", "mpt"], "attention with ALiBi: a slope for each head"),
    (&["opt", "jais2", "nemotron", "bitnet"], "an MLP with another activation or norm"),
    (&["phi", "gptj", "codegen"], "an output layer with a bias"),
    (&["cohere", "cohere2", "olmo", "stablelm", "phimoe"], "another LayerNorm"),
    (
        &[
            "mamba",
            "mamba2",
            "jamba",
            "falcon_mamba",
            "rwkv",
            "falcon_h1",
            "recurrent_gemma",
            "zamba",
            "zamba2",
            "xlstm",
        ],
        "another recurrence, or one beside attention",
    ),
    (&["lfm2", "lfm2_moe"], "gated convolutions in the place of attention"),
    (&["gemma3n", "gemma3n_text", "gemma4", "gemma4_text"], "embeddings of each layer"),
    (&["minimax", "kimi_linear", "olmo_hybrid", "bailing_hybrid"], "another linear attention"),
    (&["mimo_v2_flash", "laguna"], "other heads in some layers"),
    (&["longcat_flash", "deepseek_v4", "hy_v4"], "other connections between layers"),
    (&["granite_swa", "granitemoe_swa"], "another RoPE theta in some layers"),
    (&["dbrx", "minimax_m3_vl_text"], "clipped or sparse attention of its own kind"),
    (&["diffllama", "doge", "nanochat"], "attention of its own kind"),
];

/// Whether `value` is a `config.json`, and not a spec that contains or names one.
pub fn looks_like_one(value: &Value) -> bool {
    let has = |key: &str| value.get(key).is_some();
    (has("model_type") || has("architectures")) && !has("model") && !has("problem")
}

/// The model that `value` describes: the content of a `config.json` at the field `path`. None where a field is missing or
/// wrong; then every fault is in `faults`.
pub fn read(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<ModelConfig> {
    read_and_tell(value, path, faults).map(|(config, _)| config)
}

/// What a person should know of the model that was read from `value`: parts that are left out, sizes that the family's library
/// fills in, fields that change nothing here. Empty where it cannot be read.
pub fn notes(value: &Value) -> Vec<String> {
    read_and_tell(value, "", &mut Vec::new()).map_or(Vec::new(), |(_, notes)| notes)
}

/// The model, and what is to be told of it.
fn read_and_tell(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<(ModelConfig, Vec<String>)> {
    Table::of(value, path, faults)?;
    let mut notes = Vec::new();
    let found = decoder::of(value, path, &mut notes);
    let (value, path) = (&found.value, found.path.as_str());
    let mut table = Table::of(value, path, faults)?;
    let kind = table.get("model_type").cloned().unwrap_or(Value::Null);
    let name = kind.as_str().unwrap_or_default();
    if !MODEL_TYPES.contains(&name) {
        let found = if kind.is_null() { "nothing".to_string() } else { shown(&kind) };
        let missing = UNSUPPORTED.iter().find(|(names, _)| names.contains(&name));
        let missing = missing.map_or(String::new(), |(_, part)| format!(" (this model has {part})"));
        let kinds = one_of_like(name, &MODEL_TYPES);
        let accepted = format!("{kinds}{missing}; or give the sizes of a similar decoder by hand");
        faults.push(Fault::new(table.path("model_type"), found, accepted));
        return None;
    }
    let before = faults.len();
    let mut reader = Reader { table, faults, notes };
    let config = match name {
        "gpt2" | "gpt_bigcode" | "gpt_neox" | "falcon" | "starcoder2" => reader.gpt_like(name),
        // Kimi K2 has the layers of DeepSeek-V3 and another `model_type`.
        "kimi_k2" => reader.llama_like("deepseek_v3"),
        "nemotron_h" => reader.nemotron_h(),
        _ => reader.llama_like(name),
    };
    let config = config.filter(|_| reader.faults.len() == before)?;
    reader.judge_unread(&config);
    (reader.faults.len() == before).then_some((config, reader.notes))
}
