//! From a parsed value to a spec, with every fault at once.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use serde_json::Value;

use super::FIT;
use super::{Messages, ModelWork, Spec, Work};
use crate::base::fields::{Fault, Faults, Table, one_of, one_of_like, shown, whole};
use crate::graph::form::MAX_DEGREE;
use crate::graph::form::{AttentionForm, Form, MAX_IMBALANCE_PERMILLE, Offload, Recompute};
use crate::graph::layout::{Dispatch, Layout, Partition, RecomputeLayers, ReduceGradients};
use crate::hardware::cluster::{self, Device, Link, MAX_LATENCY_NS, MAX_MEMORY, MAX_RATE};
use crate::model::{
    Activation, Arrangement, Caps, Dtype, E12, Experts, Factors, Family, Latent, MAX_EXPERTS, MAX_FACTOR, MAX_LAYERS,
    MAX_MULTI_TOKEN, MAX_SIZE, ModelConfig, Routing, Scores, Variant, Window, catalog, hf_config, no_width, to_e12,
};
use crate::notation::megatron_layout::{self, Part};
use crate::problem::{MAX_CHUNKS, MAX_MICROBATCHES, MAX_RANKS, Objective, Statement};
use crate::program::Transport;
use crate::program::lower::Lowering;
use crate::schedule;
use crate::simulate::jitter;

/// What a field is where nothing is said and the catalog says nothing either.
mod default {
    pub const CHUNKS: u32 = 2;
    pub const MICROBATCH_SIZE: u32 = 1;
    pub const SCHEDULE: &str = crate::schedule::BEST;
    pub const ROPE_BASE: u32 = 10_000;
    /// 10⁻⁵.
    pub const NORM_EPS_E12: u64 = 10_000_000;
    /// Of a device by hand: that of a GPU kernel.
    pub const LAUNCH_NS: u64 = 3_000;
    /// The node of a device by hand: the most common one.
    pub const NODE: &str = "h100";
}

/// Most bytes of a limit.
const MAX_LIMIT: u64 = 1 << 53;
/// Tokens of a whole training.
const MAX_TRAINED: u64 = 1 << 53;
/// Most characters of what is computed again by layer, each layer said apart: `1 selective, ` has 13.
const MAX_RECOMPUTE_TEXT: usize = 16 * MAX_LAYERS as usize;
/// Most tokens of a microbatch.
const MAX_TOKENS: u64 = 1 << 26;

/// The keys that only a problem file has at its top.
const PROBLEM_KEYS: [&str; 3] = ["ranks", "stages", "placement"];
/// The tables that `problem` stands for.
const MODEL_KEYS: [&str; 6] = ["model", "cluster", "parallel", "training", "memory", "objective"];

impl Spec {
    /// Reads a spec, or a bare problem, which is known by its `ranks`, `stages` or `placement`.
    ///
    /// # Errors
    /// Every fault of the input, each with its field.
    pub fn from_value(value: &Value) -> Result<Spec, Faults> {
        let is_problem = PROBLEM_KEYS.iter().any(|key| value.get(key).is_some());
        if is_problem {
            return Statement::read(value).map(Spec::typed);
        }
        let mut faults = Vec::new();
        match read_spec(value, &mut faults) {
            Some(spec) if faults.is_empty() => Ok(spec),
            _ => Err(Faults(faults)),
        }
    }
}

fn read_spec(value: &Value, faults: &mut Vec<Fault>) -> Option<Spec> {
    let mut table = Table::of(value, "", faults)?;
    let name = table.text("name", faults).unwrap_or_default().to_string();
    let schedule = read_schedule(&mut table, faults);
    let messages = table.table("messages", faults).map(|messages| read_messages(messages, faults));
    let most = u64::from(jitter::MAX_PERMILLE);
    let jitter_permille = table.whole("jitter_permille", 0..=most, faults).unwrap_or(0) as u16;
    let work = match table.get("problem") {
        Some(problem) => {
            for key in MODEL_KEYS {
                if table.get(key).is_some() {
                    faults.push(Fault::new(key, "it beside `problem`", "either typed costs or a model, not both"));
                }
            }
            Statement::read_into(problem, "problem", faults).map(Work::Typed)
        }
        None => read_model_work(&mut table, faults).map(Work::Model),
    };
    table.finish(faults);
    let messages = messages.unwrap_or_default();
    Some(Spec { name, work: work?, schedule: schedule?, messages, jitter_permille })
}

fn read_messages(mut table: Table<'_>, faults: &mut Vec<Fault>) -> Messages {
    let mut messages = Messages::default();
    if let Some(text) = table.text("transport", faults) {
        match Transport::read(text) {
            Some(transport) => {
                messages = Messages { lowering: Lowering::usual_on(transport), transport };
            }
            None => faults.push(Fault::new(table.path("transport"), shown(&text.into()), Transport::ACCEPTED)),
        }
    }
    if let Some(text) = table.text("lowering", faults) {
        match Lowering::read(text) {
            Some(lowering) => messages.lowering = lowering,
            None => faults.push(Fault::new(table.path("lowering"), shown(&text.into()), Lowering::ACCEPTED)),
        }
    }
    table.finish(faults);
    messages
}

fn read_schedule(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Option<String> {
    let Some(value) = table.get("schedule") else { return Some(default::SCHEDULE.to_string()) };
    let found = value.as_str().filter(|name| *name == schedule::BEST || schedule::find(name).is_some());
    if found.is_none() {
        let names = schedule::schedule_names();
        let accepted = value.as_str().map_or_else(|| one_of(&names), |text| one_of_like(text, &names));
        faults.push(Fault::new("schedule", shown(value), accepted));
    }
    found.map(ToString::to_string)
}

fn read_model_work(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Option<ModelWork> {
    let objective = table
        .choice("objective", &[("makespan", Objective::Makespan), ("longest_span", Objective::LongestSpan)], faults)
        .unwrap_or_default();
    let model = section(table, "model", "a `name` of the catalog, or sizes by hand", faults)
        .and_then(|model| read_model(model, faults));
    // Known also where something else of the model is wrong, so that nobody is asked for more than that: where the name
    // itself is, for nothing that the right one would say.
    let named = table.get("model").and_then(|model| model.get("name")).and_then(Value::as_str);
    let usual_sequence = named.and_then(|name| match catalog::find(name) {
        Some(entry) => Some(entry.sequence),
        None => model.is_none().then_some(1),
    });
    let parallel = section(table, "parallel", "at least `pipeline`", faults).map(|mut parallel| {
        let pipeline = parallel.needed_whole("pipeline", 1..=MAX_RANKS as u64, faults);
        let chunks = parallel.whole("chunks", 1..=MAX_CHUNKS as u64, faults);
        let multi_token = model.as_ref().map_or(0, |model| model.config.variant.multi_token);
        let layout = read_layout(&mut parallel, multi_token, faults);
        parallel.finish(faults);
        let pipeline = pipeline.map(|ranks| ranks as u32);
        (pipeline, chunks.map_or(default::CHUNKS, |chunks| chunks as u32), layout)
    });
    let copies = parallel.as_ref().map(|(.., layout)| layout.data);
    let training = section(table, "training", "at least `microbatches`", faults)
        .and_then(|training| read_training(training, usual_sequence, copies, faults));
    let dtype = training.as_ref().and_then(|training| training.dtype);
    let cluster = section(table, "cluster", "at least a `device`", faults)
        .and_then(|cluster| read_cluster(cluster, dtype, faults));
    let memory = table.table("memory", faults).map(|mut memory| {
        let limit = memory.bytes("limit_bytes", 1..=MAX_LIMIT, faults);
        let overhead = memory.bytes("overhead_bytes", 0..=MAX_MEMORY, faults);
        memory.finish(faults);
        (limit, overhead.unwrap_or(0))
    });
    let (limit_bytes, overhead_bytes) = memory.unwrap_or_default();
    // What does not suit the model is told beside what is wrong elsewhere, such as with the cluster.
    let (Some(model), Some(training), Some((pipeline, chunks, layout))) = (model, training, parallel) else {
        return None;
    };
    let Training { microbatches, microbatch_size, sequence, recompute_layers, offload_fits, .. } = training;
    let Training { tokens, bf16_moments, offload_optimizer, .. } = training;
    let Form { tensor, sequence_parallel, async_reduce, context, expert, whole_experts, .. } = layout.form;
    let form = Form { tensor, sequence_parallel, async_reduce, context, expert, whole_experts, ..training.form };
    let layout =
        Layout { form, recompute_layers, offload_fits, bf16_moments, offload_optimizer, overhead_bytes, ..layout };
    let mut config = model.config;
    if config.positions == 0 {
        config.positions = sequence;
    }
    config.find_faults("model", faults);
    layout.find_faults(&config, sequence, faults);
    if config.positions < sequence {
        let accepted =
            format!("at most {}, which are the model's positions; model.positions may say more", config.positions);
        faults.push(Fault::new("training.sequence", sequence, accepted));
    }
    let (pipeline, cluster) = (pipeline?, cluster?);
    if pipeline > config.layers {
        let accepted = format!("at most {}, the layers of the model", config.layers);
        faults.push(Fault::new("parallel.pipeline", pipeline, accepted));
    }
    let work = ModelWork {
        model_name: model.name,
        model: config,
        device: cluster.device,
        devices_per_node: cluster.devices_per_node,
        link: cluster.link,
        node_link: cluster.node_link,
        pipeline,
        chunks,
        microbatches,
        microbatch_size,
        sequence,
        tokens,
        dtype: cluster.dtype,
        limit_bytes,
        objective,
        layout,
        profile: None,
    };
    work.find_format_faults(faults);
    Some(work)
}

/// The parts of a layout that stand beside the pipeline's ranks.
fn read_layout(parallel: &mut Table<'_>, multi_token: u32, faults: &mut Vec<Fault>) -> Layout {
    let mut degree = |key, least, most, otherwise| {
        parallel.whole(key, least..=most, faults).map_or(otherwise, |degree| degree as u32)
    };
    let tensor = degree("tensor", 1, MAX_DEGREE.into(), 1);
    let data = degree("data", 1, MAX_DEGREE.into(), 1);
    let zero = degree("zero", 0, 3, 0);
    let context = degree("context", 1, MAX_DEGREE.into(), 1);
    let expert = degree("expert", 1, MAX_DEGREE.into(), 1);
    let shard = read_shard(parallel, faults);
    let sequence_parallel = parallel.flag("sequence_parallel", faults).unwrap_or(false);
    let whole_experts = parallel.flag("whole_experts", faults).unwrap_or(false);
    let async_reduce = parallel.flag("async_reduce", faults).unwrap_or(false);
    let named = ReduceGradients::ALL.map(|reduce| (reduce.name(), reduce));
    let reduce_gradients = parallel.choice("reduce_gradients", &named, faults);
    let named = Dispatch::ALL.map(|dispatch| (dispatch.name(), dispatch));
    let dispatch = parallel.choice("dispatch", &named, faults).unwrap_or(Dispatch::EachCopy);
    let overlap_exchanges = parallel.flag("overlap_exchanges", faults).unwrap_or(false);
    let form = Form { tensor, sequence_parallel, async_reduce, context, expert, whole_experts, ..Form::default() };
    let partition = read_partition(parallel, multi_token, faults);
    Layout { form, data, zero, shard, reduce_gradients, dispatch, overlap_exchanges, partition, ..Layout::default() }
}

/// A number, or `all`.
fn read_shard(parallel: &mut Table<'_>, faults: &mut Vec<Fault>) -> Option<u32> {
    let value = parallel.get("shard")?;
    if value.as_str() == Some("all") {
        return None;
    }
    let number = whole(value).or_else(|| value.as_str()?.parse().ok());
    let shard = number.filter(|shard| (2..=MAX_DEGREE.into()).contains(shard));
    if shard.is_none() {
        faults.push(Fault::new(parallel.path("shard"), shown(value), "all, or how many copies, from 2 on"));
    }
    shard.map(|shard| shard as u32)
}

fn read_partition(parallel: &mut Table<'_>, multi_token: u32, faults: &mut Vec<Fault>) -> Partition {
    let named = [Partition::Balanced, Partition::Layers, Partition::LayersAndEnds, Partition::WithinLimit];
    let Some(value) = parallel.get("partition") else { return Partition::default() };
    let read = match value {
        Value::Array(counts) if counts.len() <= MAX_RANKS * MAX_CHUNKS => {
            let count = |count| whole(count).filter(|count| *count <= MAX_LAYERS.into()).map(|count| count as u32);
            counts.iter().map(count).collect::<Option<Vec<u32>>>().map(Partition::ByHand)
        }
        // No name of a rule has a capital, and every layout has.
        Value::String(layout) if layout.contains('E') => match layer_counts(layout, multi_token) {
            Ok(counts) => Some(Partition::ByHand(counts)),
            Err(wrong) => {
                faults.push(Fault::new(parallel.path("partition"), shown(value), wrong));
                return Partition::default();
            }
        },
        Value::String(name) => named.iter().find(|partition| partition.name() == Some(name)).cloned(),
        _ => None,
    };
    if read.is_none() {
        let names: Vec<&str> = named.iter().filter_map(Partition::name).collect();
        let accepted = format!(
            "{}, the number of layers of each stage as a list, or a layout as Megatron-LM has it, such as Et*3|t*4|t*3L",
            one_of(&names)
        );
        faults.push(Fault::new(parallel.path("partition"), shown(value), accepted));
    }
    read.unwrap_or_default()
}

/// The decoder layers of each stage of a layout in Megatron's form, for a model with so many modules of multi-token
/// prediction.
fn layer_counts(layout: &str, multi_token: u32) -> Result<Vec<u32>, String> {
    let stages = megatron_layout::read(layout)
        .map_err(|error| format!("a layout as Megatron-LM has it, such as Et*3|t*4|t*3L ({error})"))?;
    let parts = || stages.iter().flatten();
    let modules = |parts: &[Part]| parts.iter().filter(|part| **part == Part::MultiToken).count();
    let (behind, before) = stages
        .split_last()
        .map_or((0, 0), |(last, others)| (modules(last), others.iter().map(|stage| modules(stage)).sum::<usize>()));
    if before > 0 {
        return Err("a layout with every `m` on the last stage, such as `…|mL`: it shares the head".to_string());
    }
    if behind != multi_token as usize {
        return Err(format!("a layout with as many `m` as the model's multi_token, which is {multi_token}"));
    }
    let once = |wanted| parts().filter(|part| **part == wanted).count() == 1;
    let ends = (parts().next(), parts().next_back());
    if ends != (Some(&Part::Embedding), Some(&Part::Loss)) || !once(Part::Embedding) || !once(Part::Loss) {
        return Err("a layout that starts with its one `E` and ends with its one `L`".to_string());
    }
    // The embedding is the first stage's and the loss the last one's; empty stages are refused with their number later.
    if stages.first().is_some_and(Vec::is_empty) || stages.last().is_some_and(Vec::is_empty) {
        return Err("a layout whose first and last stage hold something".to_string());
    }
    let layers = |stage: &Vec<Part>| stage.iter().filter(|part| **part == Part::Layer).count() as u32;
    Ok(stages.iter().map(layers).collect())
}

/// A table that has to be there.
fn section<'v>(
    table: &mut Table<'v>,
    key: &'static str,
    accepted: &str,
    faults: &mut Vec<Fault>,
) -> Option<Table<'v>> {
    if table.get(key).is_none() {
        faults.push(Fault::new(key, "nothing", format!("a table with {accepted}")));
    }
    table.table(key, faults)
}

/// The model that `value`, a table such as [`model_table`](super::model_table) writes, says at `path`; nothing where there
/// are `faults`.
pub fn read_model_table(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<ModelConfig> {
    let before = faults.len();
    let config = read_model(Table::of(value, path, faults)?, faults)?.config;
    config.find_faults(path, faults);
    (faults.len() == before).then_some(config)
}

struct Model {
    name: String,
    config: ModelConfig,
}

fn read_model(mut table: Table<'_>, faults: &mut Vec<Fault>) -> Option<Model> {
    let before = faults.len();
    let name = table.text("name", faults).unwrap_or_default();
    let entry = catalog::find(name);
    let read = read_config(&mut table, faults);
    if entry.is_some() && table.get("config").is_some() {
        let accepted = "nothing, or a name of its own, beside model.config";
        faults.push(Fault::new(table.path("name"), format!("\"{name}\""), accepted));
    }
    let known = read.as_ref().or(entry.map(|entry| &entry.config));
    let family = table
        .choice("family", &[("llama", Family::Llama), ("gpt", Family::Gpt)], faults)
        .or(known.map(|known| known.family))
        .unwrap_or(Family::Llama);

    // A size is what is typed, or the catalog's; where neither says, all such sizes are asked for together.
    let mut missing = Vec::new();
    let mut size = |key: &'static str, most: u64, known: Option<u32>, faults: &mut Vec<Fault>| {
        let typed = table.whole(key, 1..=most, faults).map(|size| size as u32);
        if typed.is_none() && known.is_none() && table.get(key).is_none() {
            missing.push(key);
        }
        typed.or(known)
    };
    let layers = size("layers", u64::from(MAX_LAYERS), known.map(|known| known.layers), faults);
    let hidden = size("hidden", u64::from(MAX_SIZE), known.map(|known| known.hidden), faults);
    let heads = size("heads", u64::from(MAX_SIZE), known.map(|known| known.heads), faults);
    let ffn = size("ffn", u64::from(MAX_SIZE), known.map(|known| known.ffn), faults);
    let vocab = size("vocab", u64::from(MAX_SIZE), known.map(|known| known.vocab), faults);
    let by_heads = |of: &ModelConfig| (of.kv_heads < of.heads).then_some(of.kv_heads);
    // Not asked for: there are as many as heads, once those are known.
    let kv_heads = table.whole("kv_heads", 1..=u64::from(MAX_SIZE), faults).map(|size| size as u32);
    let kv_heads = kv_heads.or(known.and_then(by_heads)).or(heads);
    let whole_width =
        hidden.zip(heads).and_then(|(hidden, heads)| hidden.is_multiple_of(heads).then(|| hidden / heads));
    let typed_head_dim = table.whole("head_dim", 1..=u64::from(MAX_SIZE), faults).map(|dim| dim as u32);
    let positions = table.whole("positions", 1..=u64::from(MAX_SIZE), faults).map(|positions| positions as u32);
    let rope_base = table.whole("rope_base", 1..=u64::from(u32::MAX), faults).map(|base| base as u32);
    let norm_eps_e12 = table.positive("norm_eps", 1.0, faults).map(|eps| libm::round(eps * 1e12) as u64);
    let tied = table.flag("tied", faults);
    let variant = read_variant(&mut table, known.map_or(Variant::USUAL, |known| known.variant), faults);

    if !missing.is_empty() && table.get("config").is_none() {
        let sizes = missing.join(", ");
        if name.is_empty() {
            faults.push(Fault::new(
                table.path("name"),
                "nothing",
                format!("{}; or by hand: {sizes}", one_of(&names())),
            ));
        } else if entry.is_none() {
            let accepted = format!("{}; or a name of your own with {sizes}", one_of_like(name, &names()));
            faults.push(Fault::new(table.path("name"), format!("\"{name}\""), accepted));
        }
    }
    // A width of the catalog's stands as long as what it belongs to is the catalog's too.
    let of_known = known.filter(|known| hidden == Some(known.hidden) && heads == Some(known.heads));
    let head_dim = typed_head_dim.or(of_known.map(|known| known.head_dim)).or(whole_width);
    if let (None, Some(hidden), Some(heads), None) = (head_dim, hidden, heads, table.get("head_dim")) {
        let accepted = no_width(hidden, "hidden", heads);
        faults.push(Fault::new(table.path("head_dim"), "nothing", accepted));
    }
    table.finish(faults);
    if faults.len() > before {
        return None;
    }
    let config = ModelConfig {
        family,
        layers: layers?,
        hidden: hidden?,
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        ffn: ffn?,
        vocab: vocab?,
        positions: positions.or(known.map(|known| known.positions)).unwrap_or(0),
        rope_base: rope_base.or(known.map(|known| known.rope_base)).unwrap_or(default::ROPE_BASE),
        norm_eps_e12: norm_eps_e12.or(known.map(|known| known.norm_eps_e12)).unwrap_or(default::NORM_EPS_E12),
        tied: tied.or(known.map(|known| known.tied)).unwrap_or(false),
        variant,
    };
    Some(Model { name: name.to_string(), config })
}

/// The sizes in a `config.json`, where the model is said so.
fn read_config(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Option<ModelConfig> {
    match table.get("config")? {
        value @ Value::Object(_) => hf_config::read(value, &table.path("config"), faults),
        other => {
            let accepted = "the content of a config.json as a table; a path only where the command line reads a file";
            faults.push(Fault::new(table.path("config"), shown(other), accepted));
            None
        }
    }
}

/// What departs from the family's usual layer, and from `known` only where it is said.
fn read_variant(table: &mut Table<'_>, known: Variant, faults: &mut Vec<Fault>) -> Variant {
    let activations = [Activation::Silu, Activation::Gelu].map(|activation| (activation.name(), activation));
    let none = |table: &mut Table<'_>, key| table.get(key).and_then(Value::as_str) == Some("none");
    let experts = if none(table, "experts") { None } else { read_experts(table, known.experts, faults) };
    let latent = if none(table, "latent") { None } else { read_latent(table, known.latent, faults) };
    let window = if none(table, "window") { None } else { read_window(table, known.window, faults) };
    let multi_token = table.whole("multi_token", 0..=u64::from(MAX_MULTI_TOKEN), faults);
    let rotary = if none(table, "rotary") {
        None
    } else {
        table.whole("rotary", 0..=u64::from(MAX_SIZE), faults).map(|columns| columns as u32).or(known.rotary)
    };
    let factors =
        if none(table, "factors") { Factors::default() } else { read_factors(table, known.factors, faults) };
    let caps = if none(table, "caps") { Caps::default() } else { read_caps(table, known.caps, faults) };
    let arrangements = Arrangement::ALL.map(|arrangement| (arrangement.name(), arrangement));
    Variant {
        qkv_bias: table.flag("qkv_bias", faults).unwrap_or(known.qkv_bias),
        qk_norm: table.flag("qk_norm", faults).unwrap_or(known.qk_norm),
        post_norms: table.flag("post_norms", faults).unwrap_or(known.post_norms),
        activation: table.choice("activation", &activations, faults).unwrap_or(known.activation),
        experts,
        latent,
        window,
        multi_token: multi_token.map_or(known.multi_token, |modules| modules as u32),
        rotary,
        arrangement: table.choice("arrangement", &arrangements, faults).unwrap_or(known.arrangement),
        no_bias: table.flag("no_bias", faults).unwrap_or(known.no_bias),
        norm_offset: table.flag("norm_offset", faults).unwrap_or(known.norm_offset),
        factors,
        caps,
    }
}

/// What is typed, or known; `none` for nothing at all.
fn read_factors(table: &mut Table<'_>, known: Factors, faults: &mut Vec<Fault>) -> Factors {
    let Some(mut table) = table.table("factors", faults) else { return known };
    let mut number = |key, known| part_number(&mut table, key, known, faults);
    let factors = Factors {
        embedding: number("embedding", known.embedding),
        residual: number("residual", known.residual),
        attention: number("attention", known.attention),
        logits: number("logits", known.logits),
    };
    table.finish(faults);
    factors
}

/// As [`read_factors`].
fn read_caps(table: &mut Table<'_>, known: Caps, faults: &mut Vec<Fault>) -> Caps {
    let Some(mut table) = table.table("caps", faults) else { return known };
    let mut number = |key, known| part_number(&mut table, key, known, faults);
    let caps = Caps { attention: number("attention", known.attention), logits: number("logits", known.logits) };
    table.finish(faults);
    caps
}

/// A number in units of 10⁻¹² that is typed, or known; `none` for no such number.
fn part_number(table: &mut Table<'_>, key: &'static str, known: Option<u64>, faults: &mut Vec<Fault>) -> Option<u64> {
    if table.get(key).and_then(Value::as_str) == Some("none") {
        return None;
    }
    table.positive(key, MAX_FACTOR, faults).map(to_e12).or(known)
}

fn read_window(table: &mut Table<'_>, known: Option<Window>, faults: &mut Vec<Fault>) -> Option<Window> {
    let Some(mut table) = table.table("window", faults) else { return known };
    let tokens = part_size(&mut table, "tokens", known.map(|known| known.tokens), faults);
    let full_every = part_size(&mut table, "full_every", Some(known.map_or(0, |known| known.full_every)), faults);
    table.finish(faults);
    Some(Window { tokens: tokens?, full_every: full_every? })
}

/// A size that is typed, or known; where neither says, a fault.
fn part_size(table: &mut Table<'_>, key: &'static str, known: Option<u32>, faults: &mut Vec<Fault>) -> Option<u32> {
    part_size_in(table, key, 0..=MAX_SIZE, known, faults)
}

fn part_size_in(
    table: &mut Table<'_>,
    key: &'static str,
    range: RangeInclusive<u32>,
    known: Option<u32>,
    faults: &mut Vec<Fault>,
) -> Option<u32> {
    let range = u64::from(*range.start())..=u64::from(*range.end());
    let typed = match known {
        Some(_) => table.whole(key, range, faults),
        None => table.needed_whole(key, range, faults),
    };
    typed.map(|size| size as u32).or(known)
}

fn read_experts(table: &mut Table<'_>, known: Option<Experts>, faults: &mut Vec<Fault>) -> Option<Experts> {
    let Some(mut table) = table.table("experts", faults) else { return known };
    let mut size = |key, range, known| part_size_in(&mut table, key, range, known, faults);
    let count = size("count", 1..=MAX_EXPERTS, known.map(|known| known.count));
    let active = size("active", 1..=count.unwrap_or(MAX_EXPERTS), known.map(|known| known.active));
    let ffn = size("ffn", 1..=MAX_SIZE, known.map(|known| known.ffn));
    let shared_ffn = size("shared_ffn", 0..=MAX_SIZE, Some(known.map_or(0, |known| known.shared_ffn)));
    let dense_layers = size("dense_layers", 0..=MAX_SIZE, Some(known.map_or(0, |known| known.dense_layers)));
    let shared_gate = table.flag("shared_gate", faults).unwrap_or(known.is_some_and(|known| known.shared_gate));
    let routing = read_routing(&mut table, known.map_or(Routing::USUAL, |known| known.routing), faults);
    table.finish(faults);
    Some(Experts {
        count: count?,
        active: active?,
        ffn: ffn?,
        shared_ffn: shared_ffn?,
        dense_layers: dense_layers?,
        shared_gate,
        routing,
    })
}

fn read_routing(table: &mut Table<'_>, known: Routing, faults: &mut Vec<Fault>) -> Routing {
    let scores = Scores::ALL.map(|scores| (scores.name(), scores));
    Routing {
        scores: table.choice("scores", &scores, faults).unwrap_or(known.scores),
        normed: table.flag("normed", faults).unwrap_or(known.normed),
        factor: part_number(table, "factor", known.factor, faults).filter(|factor| *factor != E12),
        groups: part_size(table, "groups", Some(known.groups), faults).unwrap_or(known.groups),
        active_groups: part_size(table, "active_groups", Some(known.active_groups), faults)
            .unwrap_or(known.active_groups),
    }
}

fn read_latent(table: &mut Table<'_>, known: Option<Latent>, faults: &mut Vec<Fault>) -> Option<Latent> {
    let Some(mut table) = table.table("latent", faults) else { return known };
    let mut size = |key, known| part_size(&mut table, key, known, faults);
    let query_rank = size("query_rank", Some(known.map_or(0, |known| known.query_rank)));
    let key_value_rank = size("key_value_rank", known.map(|known| known.key_value_rank));
    let rope_width = size("rope_width", known.map(|known| known.rope_width));
    let value_width = size("value_width", known.map(|known| known.value_width));
    table.finish(faults);
    Some(Latent {
        query_rank: query_rank?,
        key_value_rank: key_value_rank?,
        rope_width: rope_width?,
        value_width: value_width?,
    })
}

fn names() -> Vec<&'static str> {
    catalog::catalog().iter().map(|entry| entry.name).collect()
}

struct Training {
    microbatches: u32,
    microbatch_size: u32,
    sequence: u32,
    tokens: Option<u64>,
    dtype: Option<Dtype>,
    form: Form,
    bf16_moments: bool,
    offload_optimizer: bool,
    recompute_layers: RecomputeLayers,
    offload_fits: bool,
}

/// `copies` of the pipeline share the sequences of a step.
fn read_training(
    mut table: Table<'_>,
    usual_sequence: Option<u32>,
    copies: Option<u32>,
    faults: &mut Vec<Fault>,
) -> Option<Training> {
    let microbatch_size = table.whole("microbatch_size", 1..=u64::from(MAX_SIZE), faults);
    let at_once = copies.map(|copies| u64::from(copies) * microbatch_size.unwrap_or(default::MICROBATCH_SIZE.into()));
    let microbatches = read_microbatches(&mut table, at_once, faults);
    let sequence = match usual_sequence {
        Some(_) => table.whole("sequence", 1..=u64::from(MAX_SIZE), faults),
        None => table.needed_whole("sequence", 1..=u64::from(MAX_SIZE), faults),
    };
    let trained = table.count("tokens", 1..=MAX_TRAINED, faults);
    let dtype = table.choice("dtype", &[("bf16", Dtype::Bf16), ("f32", Dtype::F32), ("f64", Dtype::F64)], faults);
    let mut form = read_form(&mut table, faults);
    let (offload, offload_fits) = read_offload(&mut table, faults);
    form.offload = offload;
    let bf16_moments = table.choice("moments_dtype", &BF16, faults).unwrap_or(false);
    let offload_optimizer = table.flag("offload_optimizer", faults).unwrap_or(false);
    let recompute_layers = read_recompute(&mut table, &mut form, faults);
    table.finish(faults);
    let (microbatch_size, sequence) =
        (microbatch_size.map_or(default::MICROBATCH_SIZE, |size| size as u32), sequence.map(|tokens| tokens as u32));
    let sequence = sequence.or(usual_sequence)?;
    let tokens = u64::from(microbatch_size) * u64::from(sequence);
    if tokens > MAX_TOKENS {
        let accepted = format!("at most {} tokens a microbatch", MAX_TOKENS);
        faults.push(Fault::new("training.microbatch_size", format!("{tokens} tokens a microbatch"), accepted));
    }
    let microbatches = microbatches? as u32;
    Some(Training {
        microbatches,
        microbatch_size,
        sequence,
        tokens: trained,
        dtype,
        form,
        bf16_moments,
        offload_optimizer,
        recompute_layers,
        offload_fits,
    })
}

/// The microbatches of a step, said as such or by the sequences of all; `at_once` are those that each further microbatch adds
/// over all copies of the pipeline, where that is known.
fn read_microbatches(table: &mut Table<'_>, at_once: Option<u64>, faults: &mut Vec<Fault>) -> Option<u64> {
    const MOST: u64 = MAX_MICROBATCHES as u64;
    if table.get("global_batch_size").is_none() {
        return table.needed_whole("microbatches", 1..=MOST, faults);
    }
    let sequences = table.whole("global_batch_size", 1..=u64::from(u32::MAX), faults);
    let path = table.path("global_batch_size");
    if table.get("microbatches").is_some() {
        faults.push(Fault::new(path, "it beside `microbatches`", "one of the two: each says the other"));
        return None;
    }
    let (sequences, at_once) = (sequences?, at_once?);
    let microbatches = sequences / at_once;
    if !sequences.is_multiple_of(at_once) || microbatches > MOST {
        let accepted = format!(
            "a multiple of {at_once}, which is parallel.data times training.microbatch_size, and at most {MOST} times that"
        );
        faults.push(Fault::new(path, sequences, accepted));
        return None;
    }
    Some(microbatches)
}

/// What is computed again, and in which layers.
fn read_recompute(table: &mut Table<'_>, form: &mut Form, faults: &mut Vec<Fault>) -> RecomputeLayers {
    let text = table.text_of("recompute", MAX_RECOMPUTE_TEXT, faults).unwrap_or(Recompute::None.name());
    let mut layers = RecomputeLayers::All;
    if let Some(choice) = Recompute::named(text) {
        form.recompute = choice;
    } else if text == FIT {
        layers = RecomputeLayers::Fit;
    } else if let Some(choices) = RecomputeLayers::read_text(text, MAX_LAYERS as usize) {
        layers = RecomputeLayers::Each(choices);
    } else {
        let accepted =
            "one of none, selective, cheap, latents, feed-forward, full, fit; or by layer, such as 3 full, 5 none";
        faults.push(Fault::new(table.path("recompute"), format!("\"{text}\""), accepted));
    }
    let first = table.whole("recompute_first", 0..=u64::from(MAX_LAYERS), faults);
    let group = table.whole("recompute_group", 0..=u64::from(MAX_LAYERS), faults);
    for (key, said) in [("recompute_first", first), ("recompute_group", group)] {
        let Some(count) = said else { continue };
        if layers != RecomputeLayers::All {
            let accepted = "nothing, where recompute says it by layer or fits it, or the other of both is there";
            faults.push(Fault::new(table.path(key), count, accepted));
            continue;
        }
        let count = count as u32;
        layers =
            if key == "recompute_first" { RecomputeLayers::First(count) } else { RecomputeLayers::Groups(count) };
    }
    layers
}

/// Which layers keep what they keep in the host's memory, and whether the limit says it.
fn read_offload(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> (Offload, bool) {
    let said = match table.get("offload") {
        None => return (Offload::None, false),
        Some(Value::String(text)) => match text.as_str() {
            FIT => return (Offload::None, true),
            "none" => Some(Offload::None),
            "all" => Some(Offload::All),
            text => text.parse().ok().filter(|layers| (1..=MAX_LAYERS).contains(layers)).map(Offload::First),
        },
        Some(value) => {
            let layers = whole(value).filter(|layers| (1..=u64::from(MAX_LAYERS)).contains(layers));
            layers.map(|layers| Offload::First(layers as u32))
        }
    };
    let offload = said.unwrap_or_else(|| {
        let found = table.get("offload").map(shown).unwrap_or_default();
        let accepted =
            format!("none, all, fit, or how many layers at the start of each stage, from 1 to {MAX_LAYERS}");
        faults.push(Fault::new(table.path("offload"), found, accepted));
        Offload::None
    });
    (offload, false)
}

/// The one format that sums and moments may be kept in beside their own.
const BF16: [(&str, bool); 1] = [(Dtype::Bf16.name(), true)];

/// How the operators are written, as far as `training` says it.
fn read_form(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Form {
    let attention = [AttentionForm::Flash, AttentionForm::Materialised].map(|form| (form.name(), form));
    let imbalance = table.positive("expert_imbalance", f64::from(MAX_IMBALANCE_PERMILLE) / 1000.0, faults);
    Form {
        imbalance_permille: imbalance.map_or(1000, |factor| libm::round(factor * 1000.0) as u32),
        attention: table.choice("attention", &attention, faults).unwrap_or_default(),
        dropout: table.flag("dropout", faults).unwrap_or(false),
        f32_logits: table.flag("f32_logits", faults).unwrap_or(false),
        fp8: table.choice("matmul_dtype", &[(Dtype::Fp8.name(), true)], faults).unwrap_or(false),
        bf16_gradients: table.choice("gradients_dtype", &BF16, faults).unwrap_or(false),
        ..Form::default()
    }
}

struct Cluster {
    device: Device,
    devices_per_node: u32,
    link: Link,
    node_link: Link,
    dtype: Dtype,
}

fn read_cluster(mut table: Table<'_>, dtype: Option<Dtype>, faults: &mut Vec<Fault>) -> Option<Cluster> {
    let before = faults.len();
    let (entry, device, dtype) = match table.get("device") {
        Some(Value::Object(_)) => {
            let device = table.table("device", faults)?;
            read_device(device, dtype, faults)
        }
        Some(Value::String(name)) if cluster::find(name).is_some() => {
            let entry = cluster::find(name);
            let dtype = dtype.or(entry.map(|entry| entry.dtype)).unwrap_or(Dtype::Bf16);
            (entry, entry.map(|entry| entry.device(dtype)), dtype)
        }
        found => {
            let name = found.and_then(Value::as_str).unwrap_or_default();
            let accepted = format!("{}; or a table of figures", one_of_like(name, &device_names()));
            faults.push(Fault::new(
                table.path("device"),
                found.map_or_else(|| "nothing".to_string(), shown),
                accepted,
            ));
            (None, None, Dtype::Bf16)
        }
    };
    let per_node = table.whole("devices_per_node", 1..=MAX_RANKS as u64, faults);
    let usual = entry.or_else(|| cluster::find(default::NODE));
    let link = read_link(&mut table, "link", usual.map(|entry| entry.link), faults);
    let node_link = read_link(&mut table, "node_link", usual.map(|entry| entry.node_link), faults);
    table.finish(faults);
    if faults.len() > before {
        return None;
    }
    Some(Cluster {
        device: device?,
        devices_per_node: per_node.map(|count| count as u32).or(usual.map(|entry| entry.devices_per_node))?,
        link: link?,
        node_link: node_link?,
        dtype,
    })
}

fn device_names() -> Vec<&'static str> {
    cluster::catalog().iter().map(|entry| entry.name).collect()
}

type ReadDevice = (Option<&'static cluster::Entry>, Option<Device>, Dtype);

fn read_device(mut table: Table<'_>, dtype: Option<Dtype>, faults: &mut Vec<Fault>) -> ReadDevice {
    let name = table.text("name", faults).unwrap_or_default();
    let entry = cluster::find(name);
    let dtype = dtype.or(entry.map(|entry| entry.dtype)).unwrap_or(Dtype::Bf16);
    let known = entry.map(|entry| entry.device(dtype));
    let mut missing = Vec::new();
    let mut figure = |read: Option<u64>, key: &'static str, known: Option<u64>, table: &mut Table<'_>| {
        if read.is_none() && known.is_none() && table.get(key).is_none() {
            missing.push(key);
        }
        read.or(known)
    };
    let read = table.whole("matmul_flops", 1..=MAX_RATE, faults);
    let matmul_flops = figure(read, "matmul_flops", known.as_ref().map(|known| known.matmul_flops), &mut table);
    let fp8_flops = table.whole("fp8_flops", 0..=MAX_RATE, faults);
    let fp8_flops = fp8_flops.unwrap_or_else(|| cluster::usual_fp8_flops(name));
    let matmul_permille = table.whole("matmul_permille", 1..=1000, faults);
    let matmul_permille = matmul_permille.unwrap_or_else(|| cluster::usual_matmul_permille(name));
    let read = table.bytes("memory_bytes_per_s", 1..=MAX_RATE, faults);
    let memory_bytes_per_s =
        figure(read, "memory_bytes_per_s", known.as_ref().map(|known| known.memory_bytes_per_s), &mut table);
    let read = table.bytes("memory_bytes", 1..=MAX_MEMORY, faults);
    let memory_bytes = figure(read, "memory_bytes", known.as_ref().map(|known| known.memory_bytes), &mut table);
    let host_bytes_per_s = table.bytes("host_bytes_per_s", 1..=MAX_RATE, faults);
    let host_bytes_per_s = host_bytes_per_s.unwrap_or_else(|| cluster::usual_host_bytes_per_s(name));
    let launch_ns = table.whole("launch_ns", 0..=MAX_LATENCY_NS, faults);
    let launch_ns = launch_ns.or(known.as_ref().map(|known| known.launch_ns)).unwrap_or(default::LAUNCH_NS);
    if !missing.is_empty() {
        let found = if name.is_empty() { "nothing".to_string() } else { format!("\"{name}\"") };
        let accepted = format!("{}; or by hand: {}", one_of(&device_names()), missing.join(", "));
        faults.push(Fault::new(table.path("name"), found, accepted));
    }
    table.finish(faults);
    let device =
        matmul_flops.zip(memory_bytes_per_s).zip(memory_bytes).map(|((matmul_flops, rate), memory_bytes)| Device {
            name: name.to_string(),
            matmul_flops,
            fp8_flops,
            matmul_permille,
            memory_bytes_per_s: rate,
            memory_bytes,
            host_bytes_per_s,
            launch_ns,
        });
    (entry, device, dtype)
}

fn read_link(table: &mut Table<'_>, key: &'static str, usual: Option<Link>, faults: &mut Vec<Fault>) -> Option<Link> {
    if let Some(Value::String(name)) = table.get(key) {
        let found = cluster::find_link(name);
        if found.is_none() {
            let names: Vec<&str> = cluster::links().iter().map(|entry| entry.name).collect();
            let accepted = format!("{}; or a table of `bytes_per_s` and `latency_ns`", one_of(&names));
            faults.push(Fault::new(table.path(key), format!("\"{name}\""), accepted));
        }
        return found.map(|entry| entry.link);
    }
    let Some(mut link) = table.table(key, faults) else { return usual };
    let bytes_per_s = link.bytes("bytes_per_s", 1..=MAX_RATE, faults);
    let latency_ns = link.whole("latency_ns", 0..=MAX_LATENCY_NS, faults);
    link.finish(faults);
    Some(Link {
        bytes_per_s: bytes_per_s.or(usual.map(|usual| usual.bytes_per_s))?,
        latency_ns: latency_ns.or(usual.map(|usual| usual.latency_ns))?,
    })
}
