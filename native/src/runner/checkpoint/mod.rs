//! Checkpoints: what a run writes to disk so that another run can resume.
//!
//! - In: weights and optimizer states of the ranks of a run.
//! - Out: a folder per checkpoint; on resume, what one rank holds in any layout.
//! - Knows: positions of ranks and shards of weights. Nothing of schedules.
//!
//! A checkpoint is a folder `step-000020`, named by the training steps that are in it:
//!
//! | File | What it holds |
//! |---|---|
//! | `manifest.json` | [`Manifest`]: what was trained, how far, which file holds which weight, the size and CRC-32 of each other file, and its own CRC-32 |
//! | `config.json` | the model, as Hugging Face's `transformers` reads it |
//! | `model.safetensors`, or `model-00001-of-00004.safetensors` … and `model.safetensors.index.json` | the weights, under the names and in the shapes of Hugging Face's checkpoints, each once; where no library has the model, experts' matrices in one |
//! | `optimizer-COPY-RANK-MEMBER.safetensors` | what the optimizer remembers of each weight, AdamW two means, flat, in pieces `mean/START/NAME` and `square/START/NAME` whose first element is element `START` of the weight; where ranks share matrices, `mean/START/PIECE.PIECES.DIMENSION/NAME`, and `START` counts within that piece of the weight, cut along that dimension; of experts that are split over ranks, a piece of the same form comes first, and the other is cut out of it. The weight is the graph's: experts' matrices are one, and rows lie as the kernels have them |
//!
//! Nothing in it depends on how stages were dealt: any layout can go on from any checkpoint. It is written beside
//! training, into a folder with a temporary name, which gets its own when all ranks have written their part and all
//! is on disk; so a folder `step-…` is always whole. Beside them lies `.lock`, by which a run keeps others out while
//! it lives. `examples/transformers_check.py` compares the logits with `transformers`.

use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use pipeplan_core::base::fields::Fault;
use pipeplan_core::graph::of_e12;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::graph::post_training::{Lora, MAX_ALPHA, MAX_RANK, Targets};
use pipeplan_core::model::{
    Activation, Experts, Factors, Family, ModelConfig, QkNorm, Routing, Scores, Variant, hf_config, to_e12,
};
use pipeplan_core::spec;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

mod beside;
mod checksums;
mod folder;
mod fused;
mod names;
mod pretrained;
mod published;
mod read;
mod rotary;
mod write;

pub use beside::Saves;
pub use checksums::Sum;
pub use folder::{Held, hold};
use pretrained::scales_positions;
pub use pretrained::{Pretrained, note_on_positions};
pub use read::Reader;
pub use rotary::{rope_scaling, with_scaling};
pub use write::{WholeWeights, Writer};

use super::optimizer::AdamW;

/// Where and how often checkpoints are written. One is written at the end of a run in any case, early or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saving {
    /// The folder that holds them, made where it is not there.
    pub folder: PathBuf,
    /// Steps from one to the next; 0: only at the end.
    pub every: u32,
}

/// What a checkpoint says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// Raised when older readers can no longer read what is written.
    pub version: u32,
    /// Training steps that have been made.
    pub step: u32,
    /// The seed of the weights and of the order of the data.
    pub seed: u64,
    /// `f32` or `f64`: the type of the weights in it.
    pub precision: String,
    /// The formats in which the run kept numbers, where they take fewer bits: for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounded: Option<String>,
    /// The digest of the plan that was run.
    pub plan_digest: String,
    /// The digest of the text.
    pub text_digest: String,
    /// Sequence length.
    pub sequence: u32,
    /// Sequences of one training step, over all microbatches and replicas.
    pub step_sequences: u64,
    /// The optimizer's settings.
    pub optimizer: AdamW,
    /// Which optimizer it is, by its name in a spec; AdamW in checkpoints from before there were others.
    #[serde(default = "adamw", skip_serializing_if = "is_adamw")]
    pub kind: String,
    /// The greatest norm of gradients.
    pub clip_norm: Option<f64>,
    /// The weights that do not train, as a spec lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// The adapters that train.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Adapters>,
    /// The model, as in `config.json`.
    pub model: Value,
    /// How the run that wrote it was laid out: for people, nothing reads it.
    pub layout: Layout,
    /// The file of each weight.
    pub weights: BTreeMap<String, String>,
    /// The files of the optimizer states.
    pub optimizer_state: Vec<String>,
    /// What each of these files was when it was written; nothing in checkpoints from before that was kept.
    #[serde(default)]
    pub files: BTreeMap<String, Sum>,
    /// The CRC-32 of the manifest's own text, with zeros in the place of these eight digits; nothing in checkpoints
    /// from before it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_crc32: Option<String>,
}

/// LoRA, as a spec says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapters {
    /// The rank.
    pub rank: u32,
    /// What the adapters' product is multiplied with, times the rank.
    pub alpha: u32,
    /// The matrices that have some.
    pub targets: Vec<String>,
}

impl Adapters {
    /// Those of `lora`.
    pub fn of(lora: &Lora) -> Adapters {
        let targets = lora.targets.names().into_iter().map(str::to_string).collect();
        Adapters { rank: lora.rank, alpha: lora.alpha, targets }
    }

    /// The reverse of [`Adapters::of`]; nothing for what no spec says.
    pub fn lora(&self) -> Option<Lora> {
        let mut targets = Targets::NONE;
        self.targets.iter().try_for_each(|name| targets.add(name))?;
        let fits =
            (1..=MAX_RANK).contains(&self.rank) && (1..=MAX_ALPHA).contains(&self.alpha) && !targets.is_empty();
        fits.then_some(Lora { rank: self.rank, alpha: self.alpha, targets })
    }
}

/// How a run was laid out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Ranks of a pipeline.
    pub pipeline: usize,
    /// Stages over all ranks.
    pub stages: usize,
    /// Data-parallel replicas.
    pub data: usize,
    /// Context-parallel ranks.
    #[serde(default = "one")]
    pub context: usize,
    /// Ranks that share each matrix.
    #[serde(default = "one")]
    pub tensor: usize,
    /// Expert-parallel ranks.
    #[serde(default = "one")]
    pub expert: usize,
    /// Whether they shard the optimizer states.
    pub shares_optimizer: bool,
}

/// What was not said before there were other optimizers.
fn adamw() -> String {
    Optimizer::AdamW.name().to_string()
}

fn is_adamw(kind: &str) -> bool {
    kind == Optimizer::AdamW.name()
}

/// What was not said before ranks could share matrices, sequences or experts.
fn one() -> usize {
    1
}

/// The name of the format.
pub const FORMAT: &str = "pipeplan checkpoint";

/// The version written and read here.
pub const VERSION: u32 = 1;

/// The version of checkpoints with adapters: a reader of the first version would leave them out of the model.
pub const VERSION_WITH_ADAPTERS: u32 = 2;

/// The version of checkpoints whose learning rate does not fall along a cosine: readers before would let it.
pub const VERSION_WITH_SCHEDULE: u32 = 3;

/// The version of checkpoints with scaled rotary positions, or with two RoPE thetas: readers before know only plain ones.
pub const VERSION_WITH_ROTARY: u32 = 4;

/// Where a model that no other library has says of itself what a spec says of it, for whoever evaluates it.
pub const OWN_WORDS: &str = "pipeplan";

const MANIFEST: &str = "manifest.json";
const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";

/// Longest manifest that is read: it names each tensor of a model of a hundred thousand.
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// A checkpoint on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its folder.
    pub folder: PathBuf,
    /// What it says of itself.
    pub manifest: Manifest,
}

/// Why a checkpoint cannot be written, read or gone on from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The machine says no.
    #[error("{} cannot be {done}: {error}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// `read`, `written` or the like.
        done: &'static str,
        /// What the machine says.
        error: String,
    },
    /// No checkpoint is there.
    #[error("{} has no checkpoint: give a folder `step-…`, or a folder of such folders", path.display())]
    None {
        /// The folder.
        path: PathBuf,
    },
    /// A file that is none of ours, or damaged.
    #[error("{} is not a valid checkpoint: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Checkpoints of this run would come among, or instead of, what is there.
    #[error("{} cannot hold the checkpoints of this run: {what}", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// What is there, and what to do.
        what: String,
    },
    /// The run is another one.
    #[error("this run cannot resume from {}: {what}", path.display())]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What differs, and what to do.
        what: String,
    },
    /// The weights to start from are of another model.
    #[error("this run cannot start from the weights in {}: {what}", path.display())]
    OtherModel {
        /// Their folder.
        path: PathBuf,
        /// What differs, and what to do.
        what: String,
    },
}

impl CheckpointError {
    /// Whether something cannot be written, rather than read or gone on from.
    pub(super) fn is_of_writing(&self) -> bool {
        matches!(self, CheckpointError::File { done, .. } if *done != "read")
    }

    pub(super) fn file(path: &Path, done: &'static str) -> impl Fn(std::io::Error) -> CheckpointError {
        move |error| CheckpointError::File { path: path.to_path_buf(), done, error: error.to_string() }
    }
}

impl Checkpoint {
    /// The checkpoint in the folder `path`, or the latest one of those that are folders in it.
    ///
    /// # Errors
    /// [`CheckpointError`] if there is none, or its manifest cannot be read.
    pub fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
        if path.join(MANIFEST).is_file() {
            return Checkpoint::read(path);
        }
        let entries = std::fs::read_dir(path).map_err(CheckpointError::file(path, "read"))?;
        let latest = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|folder| folder.join(MANIFEST).is_file())
            .filter_map(|folder| Some((step_of(folder.file_name()?.to_str()?)?, folder)))
            .max();
        let (_, folder) = latest.ok_or_else(|| CheckpointError::None { path: path.to_path_buf() })?;
        Checkpoint::read(&folder)
    }

    fn read(folder: &Path) -> Result<Checkpoint, CheckpointError> {
        let path = folder.join(MANIFEST);
        let damaged = |what: String| CheckpointError::Damaged { path: path.clone(), what };
        let failed = CheckpointError::file(&path, "read");
        let mut text = Vec::new();
        let file = std::fs::File::open(&path).map_err(&failed)?;
        file.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut text).map_err(&failed)?;
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(damaged(format!("it is longer than {MAX_MANIFEST_BYTES} bytes, the most that is read")));
        }
        let value: Value = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if value["format"] != FORMAT {
            return Err(damaged(format!("its `format` is not \"{FORMAT}\"")));
        }
        let has_angles = scales_positions(&value["model"])
            || model_of(&value["model"], &mut Vec::new()).is_some_and(|model| has_two_thetas(&model));
        let known = version(!value["lora"].is_null(), !value["optimizer"]["schedule"].is_null(), has_angles);
        if value["version"] != known {
            return Err(damaged(format!("its version is {}; this pipeplan reads {known}", value["version"])));
        }
        let has_files = value.get("files").is_some();
        let manifest: Manifest = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
        manifest.optimizer.check().map_err(|what| damaged(format!("`optimizer` is not known: {what}")))?;
        // Names of files lead nowhere but into the folder.
        let plain = |name: &String| Path::new(name).file_name().is_some_and(|last| last == name.as_str());
        if let Some(name) = manifest.weights.values().chain(&manifest.optimizer_state).find(|name| !plain(name)) {
            return Err(damaged(format!("`{name}` is not a file in this folder")));
        }
        let leads_away =
            |name: &&String| !Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if let Some(name) = manifest.files.keys().find(leads_away) {
            return Err(damaged(format!("`{name}` is not a file in this folder")));
        }
        // Checkpoints from before there were sums have no such field.
        if has_files || manifest.manifest_crc32.is_some() {
            let mut read = manifest.weights.values().chain(&manifest.optimizer_state);
            if let Some(name) = read.find(|name| !manifest.files.contains_key(*name)) {
                return Err(damaged(format!(
                    "`files` has no sum of {name}: put back what was written, or take another checkpoint"
                )));
            }
        }
        if let Some(sum) = &manifest.manifest_crc32 {
            checksums::check_own_sum(&text, sum).map_err(damaged)?;
        }
        Ok(Checkpoint { folder: folder.to_path_buf(), manifest })
    }
}

/// The version of a checkpoint by what is in it.
pub(super) fn version(has_adapters: bool, has_schedule: bool, has_angles: bool) -> u32 {
    match (has_adapters, has_schedule, has_angles) {
        (_, _, true) => VERSION_WITH_ROTARY,
        (_, true, false) => VERSION_WITH_SCHEDULE,
        (true, false, false) => VERSION_WITH_ADAPTERS,
        (false, false, false) => VERSION,
    }
}

/// Whether layers with a window have a RoPE theta of their own.
pub(super) fn has_two_thetas(model: &ModelConfig) -> bool {
    model.variant.window.is_some_and(|window| window.rope_base.is_some())
}

/// The name of the folder after `step` training steps.
fn folder_name(step: u32) -> String {
    format!("step-{step:06}")
}

/// The training steps that a folder of this name is said to hold.
fn step_of(name: &str) -> Option<u32> {
    name.strip_prefix("step-")?.parse().ok()
}

/// Whether there is a manifest in `folder` that says it is one of ours.
fn manifest_of_ours(folder: &Path) -> bool {
    let text = std::fs::read(folder.join(MANIFEST)).unwrap_or_default();
    serde_json::from_slice(&text).is_ok_and(|value: Value| value["format"] == FORMAT)
}

/// The model as `transformers` reads it, weights being in `precision`. With adapters it is no class that holds several
/// weights as one: an adapter has one matrix beside it.
pub fn config(model: &ModelConfig, precision: &str, has_adapters: bool) -> Value {
    let dtype = if precision == "f64" { "float64" } else { "float32" };
    let mut config = json!({
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.positions,
        "tie_word_embeddings": model.tied,
        "torch_dtype": dtype,
    });
    let eps = model.norm_eps_e12 as f64 / 1e12;
    if model.family == Family::Gpt
        && !has_adapters
        && let Some(theirs) = published::gpt_2(model, dtype)
        && hf_config::read(&theirs, "", &mut Vec::new()).as_ref() == Some(model)
    {
        return theirs;
    }
    let known = match model.family {
        Family::Llama => particulars(model).into_iter().chain(published::candidates(model)).collect(),
        Family::Gpt => Vec::new(),
    };
    for known in known.into_iter().chain(with_biases(model)) {
        let mut theirs = config.clone();
        let shared = json!({
            "rms_norm_eps": eps,
            "rope_theta": f64::from(model.rope_base),
            "attention_bias": false,
            // Tokens are bytes: none of them begins or ends a text.
            "bos_token_id": null,
            "eos_token_id": null,
            // Of a token that pads, the library makes no gradient.
            "pad_token_id": null,
        });
        extend(&mut theirs, shared);
        extend(&mut theirs, known);
        if has_adapters && !fused::Fused::of(&theirs).is_empty() {
            continue;
        }
        let read = hf_config::read(&theirs, "", &mut Vec::new());
        // A width that no layer has is none of the model's.
        let has_dense = (0..model.layers).any(|layer| !model.has_experts(layer));
        let read = read.map(|read| ModelConfig { ffn: if has_dense { read.ffn } else { model.ffn }, ..read });
        // A reader gets everything about the model.
        if read.as_ref() == Some(model) {
            return theirs;
        }
    }
    let particular = match model.family {
        // Layers that no other library has.
        Family::Llama => json!({
            "model_type": "pipeplan-llama",
            "rms_norm_eps": eps,
            "rope_theta": f64::from(model.rope_base),
            OWN_WORDS: spec::model_table(model),
        }),
        // Larger ones than are put the other way round as GPT-2's are, and what GPT-2 does not have.
        Family::Gpt => json!({
            "model_type": "pipeplan-gpt",
            "layer_norm_eps": eps,
            OWN_WORDS: spec::model_table(model),
        }),
    };
    extend(&mut config, particular);
    config
}

/// The words of the class of `model` without biases, and with the flags by which that class has them.
fn with_biases(model: &ModelConfig) -> Option<Value> {
    let Variant { qkv_bias, o_bias, mlp_bias, .. } = model.variant;
    let has = model.family == Family::Llama && (qkv_bias && o_bias || mlp_bias);
    let plain = Variant { qkv_bias: false, o_bias: false, mlp_bias: false, ..model.variant };
    let mut known = particulars(&ModelConfig { variant: plain, ..*model }).filter(|_| has)?;
    extend(&mut known, json!({ "attention_bias": o_bias, "mlp_bias": mlp_bias }));
    Some(known)
}

/// The model that a checkpoint's `config.json` describes, in whosever words. None where it describes none; then
/// `faults` say why.
pub fn model_of(config: &Value, faults: &mut Vec<Fault>) -> Option<ModelConfig> {
    match config.get(OWN_WORDS) {
        Some(table) => spec::read_model_table(table, OWN_WORDS, faults),
        None => hf_config::read(config, "model", faults),
    }
}

/// The fields in which the models `there`, of `place`, and `here`, of a plan, differ, with what both say.
pub(super) fn differences(there: &Value, here: &Value, place: &str) -> String {
    let fields = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let (there, here) = (fields(there), fields(here));
    let names: BTreeSet<&String> = there.keys().chain(here.keys()).collect();
    let says = |value: Option<&Value>| value.map_or_else(|| "not said".to_string(), Value::to_string);
    let differing = names.into_iter().filter_map(|name| {
        let (was, is) = (there.get(name), here.get(name));
        (was != is).then(|| format!("{name} is {} in {place} and {} in the plan", says(was), says(is)))
    });
    differing.collect::<Vec<_>>().join(", ")
}

fn extend(config: &mut Value, more: Value) {
    if let (Some(config), Value::Object(more)) = (config.as_object_mut(), more) {
        config.extend(more);
    }
}

/// What the `config.json` of `transformers`' own class for these layers says beside sizes, where it has one.
fn particulars(model: &ModelConfig) -> Option<Value> {
    if let Some(experts) = model.variant.experts {
        return particulars_of_experts(model, &experts);
    }
    if let Some(particular) = particulars_of_newer(model) {
        return Some(particular);
    }
    let variant = Variant { qk_norm: false, ..model.variant };
    let number = |e12: Option<u64>, usual: f64| e12.map_or(usual, of_e12);
    if variant == Variant::USUAL {
        let (class, kind) =
            if model.variant.qk_norm { ("Qwen3ForCausalLM", "qwen3") } else { ("LlamaForCausalLM", "llama") };
        return Some(
            json!({ "architectures": [class], "model_type": kind, "hidden_act": "silu", "mlp_bias": false }),
        );
    }
    let Factors { embedding, residual, attention, logits } = model.variant.factors;
    let usual_scale = 1.0 / f64::from(model.head_dim).sqrt();
    if model.variant == (Variant { factors: model.variant.factors, ..Variant::USUAL }) {
        return Some(json!({
            "architectures": ["GraniteForCausalLM"],
            "model_type": "granite",
            "hidden_act": "silu",
            "mlp_bias": false,
            "embedding_multiplier": number(embedding, 1.0),
            "residual_multiplier": number(residual, 1.0),
            "attention_multiplier": number(attention, usual_scale),
            "logits_scaling": 1.0 / number(logits, 1.0),
        }));
    }
    let gemma_2 = Variant {
        post_norms: true,
        activation: Activation::Gelu,
        norm_offset: true,
        window: model.variant.window.filter(|window| window.full_every == 2),
        factors: Factors { embedding: Some(to_e12(f64::from(model.hidden).sqrt())), attention, ..Factors::default() },
        caps: model.variant.caps,
        ..Variant::USUAL
    };
    // The library takes the square of what scores are divided by, as a whole number.
    let divisor = attention.map_or(f64::from(model.head_dim), |scale| of_e12(scale).powi(-2).round());
    let is_whole = attention.is_none_or(|scale| to_e12(1.0 / divisor.sqrt()) == scale);
    let window = gemma_2.window.filter(|_| model.variant == gemma_2 && is_whole)?;
    Some(json!({
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": window.tokens,
        "query_pre_attn_scalar": divisor as u64,
        "attn_logit_softcapping": gemma_2.caps.attention.map(of_e12),
        "final_logit_softcapping": gemma_2.caps.logits.map(of_e12),
    }))
}

/// The same of newer models without experts: SmolLM 3, OLMo 2 and 3, and EXAONE 4. Who asks compares what is read
/// from it.
fn particulars_of_newer(model: &ModelConfig) -> Option<Value> {
    let Variant { qk_norm, qk_norm_of, no_pre_norms, window, no_rope, .. } = model.variant;
    let layers = 0..model.layers;
    let has_window = |layer| if model.has_window(layer) { "sliding_attention" } else { "full_attention" };
    let types = || layers.clone().map(has_window).collect::<Vec<&str>>();
    let mut config = match (no_pre_norms, qk_norm_of, no_rope, window) {
        (false, _, Some(_), None) if !qk_norm => json!({
            "architectures": ["SmolLM3ForCausalLM"],
            "model_type": "smollm3",
            "no_rope_layers": layers.clone().map(|layer| u32::from(model.has_rope(layer))).collect::<Vec<u32>>(),
            "mlp_bias": false,
        }),
        (true, QkNorm::Whole, None, None) => {
            json!({ "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2" })
        }
        (true, QkNorm::Whole, None, Some(window)) => json!({
            "architectures": ["Olmo3ForCausalLM"],
            "model_type": "olmo3",
            "sliding_window": window.tokens,
            "layer_types": types(),
            // By kind of layer: what stands elsewhere the library takes for one kind alone.
            "rope_parameters": published::ropes(model),
        }),
        (true, QkNorm::Heads, _, window) => json!({
            "architectures": ["Exaone4ForCausalLM"],
            "model_type": "exaone4",
            "sliding_window": window.map(|window| window.tokens),
            "layer_types": types(),
        }),
        _ => return None,
    };
    extend(&mut config, json!({ "hidden_act": "silu" }));
    Some(config)
}

/// The same of models with experts.
fn particulars_of_experts(model: &ModelConfig, experts: &Experts) -> Option<Value> {
    let Variant { latent, window, qk_norm, .. } = model.variant;
    let Routing { scores, normed, factor, groups, active_groups } = experts.routing;
    let mut config = json!({ "hidden_act": "silu", "num_experts_per_tok": experts.active });
    if let Some(latent) = latent {
        let sigmoid = scores == Scores::Sigmoid;
        // The library norms latents with this `eps`, whatever the file says, always has shared experts, and looks at
        // two experts of each group.
        let is_known = model.norm_eps_e12 == to_e12(1e-6) && experts.shared_ffn > 0;
        if !is_known || sigmoid && experts.count / groups.max(1) < 2 {
            return None;
        }
        let (class, kind) =
            if sigmoid { ("DeepseekV3ForCausalLM", "deepseek_v3") } else { ("DeepseekV2ForCausalLM", "deepseek_v2") };
        let choice = match (scores, groups) {
            (Scores::Sigmoid, _) => "noaux_tc",
            (Scores::Softmax, 1) => "greedy",
            (Scores::Softmax | Scores::InputSigmoid | Scores::SparseMixer, _) => "group_limited_greedy",
        };
        extend(
            &mut config,
            json!({
                "architectures": [class],
                "model_type": kind,
                "n_routed_experts": experts.count,
                "moe_intermediate_size": experts.ffn,
                "n_shared_experts": experts.shared_ffn / experts.ffn.max(1),
                "first_k_dense_replace": experts.dense_layers,
                "moe_layer_freq": 1,
                "q_lora_rank": Some(latent.query_rank).filter(|rank| *rank > 0),
                "kv_lora_rank": latent.key_value_rank,
                "qk_nope_head_dim": model.head_dim.saturating_sub(latent.rope_width),
                "qk_rope_head_dim": latent.rope_width,
                "v_head_dim": latent.value_width,
                "head_dim": latent.rope_width,
                "scoring_func": scores.name(),
                "topk_method": choice,
                "norm_topk_prob": normed,
                "routed_scaling_factor": factor.map_or(1.0, of_e12),
                "n_group": groups,
                "topk_group": active_groups,
                "num_nextn_predict_layers": model.variant.multi_token,
            }),
        );
        return Some(config);
    }
    let (class, kind) = match (experts.shared_gate, qk_norm) {
        (true, _) => ("Qwen2MoeForCausalLM", "qwen2_moe"),
        (false, true) => ("Qwen3MoeForCausalLM", "qwen3_moe"),
        (false, false) => ("MixtralForCausalLM", "mixtral"),
    };
    if kind == "mixtral" {
        extend(
            &mut config,
            json!({
                "architectures": [class],
                "model_type": kind,
                "intermediate_size": experts.ffn,
                "num_local_experts": experts.count,
                "sliding_window": window.map(|window| window.tokens),
            }),
        );
        return Some(config);
    }
    extend(
        &mut config,
        json!({
            "architectures": [class],
            "model_type": kind,
            "num_experts": experts.count,
            "num_local_experts": experts.count,
            "moe_intermediate_size": experts.ffn,
            "shared_expert_intermediate_size": experts.shared_ffn,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": normed,
            "sliding_window": window.map(|window| window.tokens),
        }),
    );
    Some(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeplan_core::model::catalog;

    /// What is written is read as the same model, caps and factors included.
    #[test]
    fn a_config_is_read_as_the_model_it_was_written_for() {
        let named = |name: &str| catalog::find(name).map(|entry| entry.config).expect("it is in the catalog");
        let granite = |attention| {
            let factors = Factors {
                embedding: Some(to_e12(12.0)),
                residual: Some(to_e12(0.22)),
                attention,
                logits: Some(to_e12(0.125)),
            };
            let llama = named("llama-3-8b");
            ModelConfig { variant: Variant { factors, ..llama.variant }, ..llama }
        };
        let qwen_3 = named("qwen-3-8b");
        for (kind, model) in [
            ("llama", named("llama-3-8b")),
            ("qwen3", qwen_3),
            ("gemma2", named("gemma-2-9b")),
            ("gemma2", named("gemma-2-27b")),
            ("granite", granite(Some(to_e12(0.0078125)))),
            ("granite", granite(None)),
            ("mixtral", named("mixtral-8x7b")),
            ("qwen3_moe", named("qwen-3-30b-a3b")),
            ("deepseek_v2", named("deepseek-v2")),
            ("deepseek_v3", named("deepseek-v3")),
            ("deepseek_v3", named("kimi-k2")),
        ] {
            let config = config(&model, "f32", false);
            assert_eq!(config["model_type"], kind);
            let mut faults = Vec::new();
            assert_eq!(hf_config::read(&config, "", &mut faults), Some(model), "{faults:?}");
        }
        // Published files, each with what its family may have.
        let table = include_str!("../../../../tests/reference/parameter_counts.json");
        let table: Value = serde_json::from_str(table).expect("JSON");
        for name in [
            "command-r-35b",
            "command-r-plus-104b",
            "command-r7b",
            "minitron-4b",
            "stablelm-2-1.6b",
            "stablelm-2-12b",
            "olmo-1b",
            "olmo-1.7-7b",
            "starcoder2-15b",
            "nanochat-d32",
            "phi-2",
            "gpt-j-6b",
            "gpt-neox-20b",
        ] {
            let row = table["models"].as_array().expect("a list").iter().find(|row| row["name"] == name);
            let published = &row.unwrap_or_else(|| panic!("no {name}"))["config"];
            let model = hf_config::read(published, "", &mut Vec::new()).expect("it is read");
            let written = config(&model, "f32", false);
            assert_eq!(written["model_type"], published["model_type"], "{name}");
            assert_eq!(hf_config::read(&written, "", &mut Vec::new()), Some(model), "{name}");
        }
        // Earlier checkpoints said numbers of Mixtral twice.
        let mixtral = named("mixtral-8x7b");
        let mut twice = config(&mixtral, "f32", false);
        extend(&mut twice, json!({ "num_experts": 8, "moe_intermediate_size": 14336, "decoder_sparse_step": 1 }));
        assert_eq!(hf_config::read(&twice, "", &mut Vec::new()), Some(mixtral));
        // What another library has not says it in the words of a spec.
        let latent = Variant { experts: None, ..named("deepseek-v3").variant };
        for model in [named("gpt-3-175b"), ModelConfig { variant: latent, ..named("deepseek-v3") }] {
            let mut faults = Vec::new();
            let table = &config(&model, "f32", false)[OWN_WORDS];
            assert_eq!(spec::read_model_table(table, "", &mut faults), Some(model), "{faults:?}");
        }
        let uncapped = ModelConfig {
            variant: Variant { caps: Default::default(), ..named("gemma-2-9b").variant },
            ..named("gemma-2-9b")
        };
        let mut faults = Vec::new();
        assert_eq!(hf_config::read(&config(&uncapped, "f32", false), "", &mut faults), Some(uncapped));
    }
}
