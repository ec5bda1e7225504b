//! Weights to start from, in a folder that `transformers` or another library has written: `config.json`, and tensors
//! in `model.safetensors` or in the files that `model.safetensors.index.json` names. Of a checkpoint of ours the
//! weights alone.

use std::io::Read;
use std::path::{Path, PathBuf};

use pipeplan_core::base::fields::{Fault, Faults};
use pipeplan_core::model::ModelConfig;
use serde_json::Value;

use super::{CheckpointError, OWN_WORDS, config, differences, model_of, rope_scaling};
use crate::backend::rotary::LayerScaling;

/// Longest `config.json` or index that is read: an index names each tensor of a model of a hundred thousand.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Kinds of models whose tensors lie as those of the models that this crate writes, by `model_type`; `start.py` of
/// `native/tests/families` has judged each. Of others, rows may have another order, which no name or shape tells.
const JUDGED: [&str; 55] = [
    "arcee",
    "codegen",
    "cohere",
    "cohere2",
    "cwm",
    "deepseek_v3",
    "dots1",
    "exaone4",
    "exaone_moe",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hyperclovax",
    "internlm3",
    "jais2",
    "llama",
    "mellum",
    "minicpm3",
    "minimax_m2",
    "ministral3",
    "mistral",
    "mixtral",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi",
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
    "stablelm",
    "starcoder2",
    "vaultgemma",
];

/// Of those, the ones whose scaled rotary positions `start.py` has judged.
const SCALED: [&str; 13] = [
    "arcee",
    "cwm",
    "exaone4",
    "gemma3_text",
    "gpt_oss",
    "llama",
    "mellum",
    "mistral",
    "olmo3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
];

/// A folder with the weights of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Pretrained {
    /// The folder.
    pub folder: PathBuf,
    /// Its files of tensors.
    pub(super) files: Vec<String>,
    /// Its `config.json`, or the part of it that is of the decoder.
    pub(super) config: Value,
}

impl Pretrained {
    /// Looks for the files in `folder`; none of their tensors is read.
    ///
    /// # Errors
    /// [`CheckpointError`] where a file is missing, none of JSON, or names files elsewhere.
    pub fn open(folder: &Path) -> Result<Pretrained, CheckpointError> {
        let other = |what: String| CheckpointError::OtherModel { path: folder.to_path_buf(), what };
        if !folder.join("config.json").is_file() {
            return Err(other(
                "it has no config.json: give a folder as `save_pretrained` of transformers writes it".into(),
            ));
        }
        let whole = json(&folder.join("config.json"))?;
        let config = match whole.get("text_config") {
            Some(text) if text.is_object() => text.clone(),
            _ => whole,
        };
        let (index, single) = ("model.safetensors.index.json", "model.safetensors");
        let files = if folder.join(index).is_file() {
            let value = json(&folder.join(index))?;
            let map = value["weight_map"].as_object().into_iter().flat_map(|map| map.values());
            let mut files: Vec<String> = map.filter_map(|file| file.as_str().map(str::to_string)).collect();
            files.sort_unstable();
            files.dedup();
            files
        } else if folder.join(single).is_file() {
            vec![single.to_string()]
        } else {
            let what = "it has neither model.safetensors nor model.safetensors.index.json: other formats are not read; \
                        `model.save_pretrained(FOLDER)` of transformers writes these";
            return Err(other(what.into()));
        };
        // Names of files lead nowhere but into the folder.
        let plain = |name: &&String| Path::new(name).file_name().is_none_or(|last| last != name.as_str());
        if let Some(name) = files.iter().find(plain) {
            return Err(other(format!("its index names `{name}`, which is not a file in this folder")));
        }
        Ok(Pretrained { folder: folder.to_path_buf(), files, config })
    }

    /// Whether its `config.json` describes `model`, but for MTP modules, which may be left out.
    ///
    /// # Errors
    /// [`CheckpointError`] with every field in which they differ.
    pub fn check_model(&self, model: &ModelConfig) -> Result<(), CheckpointError> {
        let other = |what: String| CheckpointError::OtherModel { path: self.folder.clone(), what };
        let mut faults: Vec<Fault> = Vec::new();
        let Some(mut there) = model_of(&self.config, &mut faults) else {
            return Err(other(format!("its config.json is not read:\n{}", Faults(faults))));
        };
        // Of a checkpoint of ours it is the kind that is written.
        let (kind, written) = (&self.config["model_type"], &config(model, "f32", false)["model_type"]);
        if kind != written && !kind.as_str().is_some_and(|kind| JUDGED.contains(&kind)) {
            return Err(other(format!(
                "weights of the model_type {kind} are not read: their rows may have another order"
            )));
        }
        self.rope_scaling().map_err(|what| other(format!("its config.json is not run: {what}")))?;
        if let Some(what) = not_run(&self.config).or_else(|| other_thetas(&self.config, &there)) {
            return Err(other(format!(
                "{what}, which the runner does not do: its losses would not be those of the model"
            )));
        }
        if model.variant.multi_token == 0 {
            there.variant.multi_token = 0;
        }
        if there == *model {
            return Ok(());
        }
        // In the words of one writer, so that what both say alike differs in nothing.
        let said = |model: &ModelConfig| {
            let mut value = config(model, "f32", false);
            value.as_object_mut().map(|fields| fields.remove(OWN_WORDS));
            value
        };
        let differs = differences(&said(&there), &said(model), "the folder");
        match differs.is_empty() {
            true => Ok(()),
            false => Err(other(format!("its model is not that of the plan: {differs}"))),
        }
    }

    /// How its rotary positions are scaled.
    ///
    /// # Errors
    /// As [`rope_scaling`].
    pub fn rope_scaling(&self) -> Result<LayerScaling, String> {
        rope_scaling(&self.config)
    }

    /// What says under which names its tensors lie: the model as this crate writes it, with the kind that the folder
    /// names. Where this crate has no words of that kind for the model, sizes are those of the folder.
    pub(super) fn described(&self, model: &ModelConfig) -> Value {
        let mut described = config(model, "f32", false);
        if let Some(kind) = self.config.get("model_type").filter(|kind| kind.is_string()) {
            described["model_type"] = kind.clone();
        }
        if let (Value::Object(described), Value::Object(theirs)) = (&mut described, &self.config) {
            for (name, value) in theirs {
                described.entry(name).or_insert_with(|| value.clone());
            }
        }
        described
    }
}

/// What to tell of a `config.json` whose rotary positions are scaled for longer sequences, alone or in the table of its
/// decoder.
pub fn note_on_positions(config: &Value) -> Option<&'static str> {
    let inner = ["text_config", "llm_config", "language_config"].into_iter().map(|name| &config[name]);
    let decoder = inner.into_iter().find(|table| table.is_object()).unwrap_or(config);
    match rope_scaling(decoder) {
        Ok(scaling) if scaling.is_plain() => None,
        Ok(_) if decoder["model_type"].as_str().is_some_and(|kind| SCALED.contains(&kind)) => Some(
            "Plans do not depend on it; `run` takes it from the folder of `--weights` or from the checkpoint, and trains \
             without it where there is neither",
        ),
        _ => Some("Plans do not depend on it; `run` trains the model without it, and refuses its weights"),
    }
}

/// Whether a `config.json` scales its rotary positions.
pub(super) fn scales_positions(config: &Value) -> bool {
    !rope_scaling(config).is_ok_and(|scaling| scaling.is_plain())
}

/// What of a `config.json` changes no plan and decides what is computed from given weights, where the runner does
/// without.
fn not_run(config: &Value) -> Option<&'static str> {
    let kind = config["model_type"].as_str().unwrap_or_default();
    // A library that has two tables of angles, or other attention with them, is none of those that were judged.
    if scales_positions(config) && !SCALED.contains(&kind) {
        return Some("it scales rotary positions (rope_scaling)");
    }
    // Which columns are turned together; of DeepSeek's family neighbours unless said otherwise.
    let in_pairs = ["rope_interleave", "rope_interleaved"].into_iter().find_map(|name| config[name].as_bool());
    if in_pairs.is_some_and(|in_pairs| in_pairs != kind.starts_with("deepseek")) {
        return Some("its rotary positions turn other columns together (rope_interleave)");
    }
    // The runner has the tanh form. In files of Gemma 1 both names are of this one, as its library says.
    if kind != "gemma" && matches!(config["hidden_activation"].as_str(), Some("gelu" | "gelu_python")) {
        return Some("its GELU is the exact one (hidden_activation)");
    }
    let says = |name: &str, what: bool| config[name].as_bool() == Some(what);
    if says("use_bidirectional_attention", true)
        || says("scale_attn_weights", false)
        || config["llama_4_scaling"].is_object()
    {
        return Some("its attention has another mask or scale");
    }
    None
}

/// Whether a `config.json` says another RoPE theta anywhere than those of `model`, which was read from it: of layers that are
/// no kind of layer here, or twice.
fn other_thetas(config: &Value, model: &ModelConfig) -> Option<&'static str> {
    let of_all = model.rope_base;
    let of_window = model.variant.window.and_then(|window| window.rope_base).unwrap_or(of_all);
    let by_kind = ["rope_scaling", "rope_parameters"].into_iter().filter_map(|name| config[name].as_object());
    let by_kind = by_kind.flatten().map(|(kind, table)| {
        (table["rope_theta"].as_f64(), if kind == "sliding_attention" { of_window } else { of_all })
    });
    let whole =
        [&config["rope_theta"], &config["rope_scaling"]["rope_theta"], &config["rope_parameters"]["rope_theta"]];
    let local = (config["rope_local_base_freq"].as_f64(), of_window);
    let said = whole.map(|theta| (theta.as_f64(), of_all)).into_iter().chain([local]).chain(by_kind);
    let is_other = |(said, read): (Option<f64>, u32)| said.is_some_and(|theta| theta.round() != f64::from(read));
    let has_other = said.into_iter().any(is_other);
    has_other.then_some("its layers have rotary positions of more than one theta")
}

/// The name under which checkpoints of a decoder alone hold what the decoder within a multimodal model has as `name`.
pub(super) fn of_decoder(name: &str) -> String {
    let moved = [
        ("model.language_model.", "model."),
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
    ];
    let moved = moved.into_iter().find_map(|(from, to)| Some([to, name.strip_prefix(from)?].concat()));
    moved.unwrap_or_else(|| name.to_string())
}

fn json(path: &Path) -> Result<Value, CheckpointError> {
    let failed = CheckpointError::file(path, "read");
    let file = std::fs::File::open(path).map_err(&failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_TEXT_BYTES).read_to_end(&mut bytes).map_err(&failed)?;
    let damaged = |what: String| CheckpointError::Damaged { path: path.to_path_buf(), what };
    let text = String::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
    pipeplan_core::base::json::parse_python(&text).map_err(|error| damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Both forms of GELU take the same bytes and operations, so that no plan tells them apart; losses do, in the
    /// fourth digit.
    #[test]
    fn the_exact_form_of_gelu_is_refused_where_the_runner_has_the_other() {
        let says = |kind: &str, name: &str| {
            let config = json!({ "model_type": kind, "hidden_act": name, "hidden_activation": name });
            not_run(&config).is_some()
        };
        for kind in ["gemma2", "gemma3_text", "vaultgemma"] {
            assert!(says(kind, "gelu") && says(kind, "gelu_python"), "{kind}");
            assert!(!says(kind, "gelu_pytorch_tanh"), "{kind}");
        }
        assert!(!says("gemma", "gelu"), "transformers takes it for the tanh form");
    }
}
