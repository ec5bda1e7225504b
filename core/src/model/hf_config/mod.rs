//! A model's sizes from the `config.json` of a Hugging Face checkpoint. One file here for each family of models.
//!
//! The reader takes `model_type` and the fields that give a layer its sizes and operators. These include the
//! multipliers of Gemma and Granite, their soft-caps, and the routing of experts. Of a file that also describes
//! images or sound it takes the decoder of text, and tells what it leaves out. A missing size is a fault. It is a
//! default only where the family's library defines one; those that people leave out are filled in and told.
//!
//! No field is passed over. One that no reader asks for is known to change no plan (`fields`: dropout, tokens,
//! versions, quantisation, scaled positions), is refused where it decides the model, or is told.

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
mod norms;
mod reader;
#[cfg(test)]
mod tests;
mod vision;

pub(crate) use self::decoder::null_says;
pub use self::vision::tower;

/// Every `model_type` that is read.
pub const MODEL_TYPES: [&str; 83] = [
    "afmoe",
    "apertus",
    "arcee",
    "aria_text",
    "bamba",
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "cwm",
    "deepseek_ocr2_text",
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
    "gemma4_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe_text",
    "glm4v_text",
    "glm_moe_dsa",
    "glm_ocr_text",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hyperclovax",
    "jais2",
    "kimi_k2",
    "llama",
    "llama4_text",
    "mellum",
    "minicpm3",
    "minimax_m2",
    "mistral",
    "mistral4",
    "mixtral",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
    "vaultgemma",
    "youtu",
];

/// Well-known decoders that the graph does not support, each with the part that is missing.
const UNSUPPORTED: &[(&[&str], &str)] = &[
    (&["bloom", "mpt"], "attention with ALiBi: a slope for each head"),
    (&["opt"], "an MLP with ReLU, and positions from 2 on"),
    (&["bitnet"], "norms inside attention and MLP, and weights of three values"),
    (&["cohere_compass_text"], "rotary positions of their own in each kind of layers"),
    (&["dory"], "norms within attention and MLP"),
    (&["hrm_text"], "layers that a token passes several times"),
    (&["fuyu"], "patches of images in the place of tokens"),
    (&["gpt_neo"], "scores that are not scaled"),
    (&["openai-gpt"], "LayerNorm of each sum"),
    (&["jetmoe"], "experts of attention"),
    (&["zaya"], "convolutions before attention, and scaled residuals"),
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
    (&["lfm2", "lfm2_moe", "lfm3"], "gated convolutions in the place of attention"),
    (&["gemma3n", "gemma3n_text", "qwen4_exp", "qwen4_exp_text"], "embeddings of each layer"),
    (&["kimi_linear"], "Kimi delta attention: a decay of each channel"),
    (&["minimax", "olmo_hybrid", "bailing_hybrid", "glm5_next_text"], "another linear attention"),
    (&["mimo_v2_flash", "laguna", "step3p5"], "other heads in some layers"),
    (&["longcat_flash", "deepseek_v4", "hy_v4", "hy_v4_vl_text"], "other connections between layers"),
    (&["axk1"], "a norm behind experts, and none behind attention"),
    (&["mistral_large4_text"], "trained scales of queries and of RoPE frequencies, and keys shared between layers"),
    (&["ernie4_5_vl_moe_text", "ernie4_5_moe_vl"], "experts of text and others of images"),
    (&["molmo2_text"], "a second table of tokens"),
    (&["mllama_text_model"], "attention to images in some layers"),
    (&["blt"], "patches of bytes in the place of tokens"),
    (&["dbrx", "minimax_m3_vl_text"], "clipped or sparse attention of its own kind"),
    (&["diffllama", "doge"], "attention of its own kind"),
    (
        &[
            "bart",
            "mbart",
            "marian",
            "pegasus",
            "bigbird_pegasus",
            "blenderbot",
            "blenderbot-small",
            "mvp",
            "plbart",
            "prophetnet",
            "t5gemma2",
            "trocr",
            "udop",
            "vision-encoder-decoder",
            "whisper",
        ],
        "an encoder that its decoder attends to",
    ),
    (
        &[
            "bert",
            "bert-generation",
            "big_bird",
            "camembert",
            "data2vec-text",
            "electra",
            "ernie",
            "megatron-bert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roc_bert",
            "roformer",
            "xlm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
        ],
        "the layers of an encoder",
    ),
];

/// Whether `value` is a `config.json`, and not a spec that contains or names one.
pub fn looks_like_one(value: &Value) -> bool {
    let has = |key: &str| value.get(key).is_some();
    (has("model_type") || has("architectures")) && !has("model") && !has("problem")
}

/// The model that `value` describes: the content of a `config.json` at the field `path`. None where a field is
/// missing or wrong; then every fault is in `faults`.
pub fn read(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<ModelConfig> {
    read_and_tell(value, path, faults).map(|(config, _)| config)
}

/// What a person should know of the model that was read from `value`: parts that are left out, sizes that the
/// family's library fills in, fields that change nothing here. Empty where it cannot be read.
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
    let missing_of_gemma = gemma::missing_of_gemma_4(name, value);
    if !MODEL_TYPES.contains(&name) || missing_of_gemma.is_some() {
        let found = if kind.is_null() { "nothing".to_string() } else { shown(&kind) };
        let missing =
            UNSUPPORTED.iter().find(|(names, _)| names.contains(&name)).map(|(_, part)| String::from(*part));
        let missing = missing_of_gemma.or(missing);
        let accepted = match missing {
            Some(part) => format!(
                "another decoder: this one has {part}, which is not modelled; or the sizes of a similar one by hand"
            ),
            None => {
                let kinds = one_of_like(name, &MODEL_TYPES);
                format!("{kinds}; or give the sizes of a similar decoder by hand")
            }
        };
        faults.push(Fault::new(table.path("model_type"), found, accepted));
        return None;
    }
    let before = faults.len();
    let mut reader = Reader { table, faults, notes };
    let config = match name {
        "gpt2" | "gpt_bigcode" | "falcon" => reader.gpt_like(name),
        _ if norms::FAMILIES.contains(&name) => reader.normed_otherwise(name),
        // Kimi K2 has the layers of DeepSeek-V3 and another `model_type`.
        "kimi_k2" => reader.llama_like("deepseek_v3"),
        "nemotron_h" => reader.nemotron_h(),
        _ => reader.llama_like(name),
    };
    let config = config.filter(|_| reader.faults.len() == before)?;
    if config.kv_heads > config.heads {
        let key = if name == "falcon" { "num_kv_heads" } else { "num_key_value_heads" };
        let accepted = format!("at most {}: each head of queries has one of keys", config.heads);
        reader.faults.push(Fault::new(reader.table.path(key), config.kv_heads, accepted));
    }
    reader.judge_unread(&config);
    (reader.faults.len() == before).then_some((config, reader.notes))
}
