//! From a parsed value to a spec, with every fault at once. One file here for each table of a spec.

mod aliases;
mod cluster;
mod model;
mod parallel;
mod training;
mod variant;
mod vision;

pub use self::aliases::aliases;
pub use self::model::read_model_table;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::Value;

use self::cluster::read_cluster;
use self::model::read_model;
use self::parallel::read_layout;
use self::training::{Training, read_training};
use super::{Messages, ModelWork, Spec, Target, Work};
use crate::base::fields::{Fault, Faults, Table, one_of, one_of_like, shown};
use crate::graph::form::Form;
use crate::graph::layout::Layout;
use crate::hardware::cluster::MAX_MEMORY;
use crate::model::catalog;
use crate::problem::{MAX_CHUNKS, MAX_RANKS, Objective, Statement};
use crate::program::Transport;
use crate::program::lower::Lowering;
use crate::schedule;
use crate::simulate::jitter;

/// Defaults of fields that the catalog does not have.
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

/// The keys that only a problem file has at its top.
const PROBLEM_KEYS: [&str; 3] = ["ranks", "stages", "placement"];
/// The tables that `problem` stands for.
const MODEL_KEYS: [&str; 6] = ["model", "cluster", "parallel", "training", "memory", "objective"];

impl Spec {
    /// Reads a spec, or a bare problem, which has `ranks`, `stages` or `placement`.
    ///
    /// # Errors
    /// Every fault of the input, each with its field.
    pub fn from_value(value: &Value) -> Result<Spec, Faults> {
        let is_problem = PROBLEM_KEYS.iter().any(|key| value.get(key).is_some());
        if is_problem {
            return Statement::read(value).map(Spec::typed);
        }
        let mut faults = Vec::new();
        let resolved = aliases::resolve(value, "", "", &mut faults);
        match read_spec(resolved.value(), &mut faults) {
            Some(spec) if faults.is_empty() => Ok(spec),
            _ => {
                resolved.name_faults(&mut faults);
                Err(Faults(faults))
            }
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
    let target = table.choice("target", &Target::NAMED, faults);
    let work = match table.get("problem") {
        Some(problem) => {
            for key in MODEL_KEYS {
                if table.get(key).is_some() {
                    faults.push(Fault::new(
                        key,
                        "it together with `problem`",
                        "either `problem` or a model, not both",
                    ));
                }
            }
            Statement::read_into(problem, "problem", faults).map(Work::Typed)
        }
        None => read_model_work(&mut table, faults).map(Work::Model),
    };
    table.finish(faults);
    let messages = messages.unwrap_or_default();
    Some(Spec { name, work: work?, schedule: schedule?, messages, jitter_permille, target })
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

/// What `training` says of operators, over the devices that `parallel` says.
fn joined(training: Form, parallel: Form) -> Form {
    let Form { tensor, sequence_parallel, async_reduce, context, expert, whole_experts, expert_tensor, .. } =
        parallel;
    Form { tensor, sequence_parallel, async_reduce, context, expert, whole_experts, expert_tensor, ..training }
}

fn read_model_work(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Option<ModelWork> {
    let objective = table
        .choice("objective", &[("makespan", Objective::Makespan), ("longest_span", Objective::LongestSpan)], faults)
        .unwrap_or_default();
    let model = section(table, "model", "a `name` of the catalog, or sizes by hand", faults)
        .and_then(|model| read_model(model, faults));
    // Also where another field of the model is wrong, so that no fault asks for a sequence that the catalog has. A
    // wrong name counts as one of the catalog.
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
    // Faults of the model come together with faults elsewhere, such as those of the cluster.
    let (Some(model), Some(training), Some((pipeline, chunks, layout))) = (model, training, parallel) else {
        return None;
    };
    let Training { microbatches, microbatch_size, sequence, recompute_layers, offload_fits, .. } = training;
    let Training { tokens, optimizer, bf16_moments, offload_optimizer, .. } = training;
    let form = joined(training.form, layout.form);
    let layout = Layout {
        form,
        recompute_layers,
        offload_fits,
        optimizer,
        bf16_moments,
        offload_optimizer,
        overhead_bytes,
        ..layout
    };
    let mut config = model.config;
    if config.positions == 0 {
        config.positions = sequence;
    }
    config.find_faults("model", faults);
    layout.find_faults(&config, sequence, faults);
    if config.positions < sequence {
        let accepted =
            format!("at most {}, the longest sequence of the model; model.positions may be larger", config.positions);
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
        batch: training.batch,
        failures: training.failures,
        profile: None,
    };
    work.find_format_faults(faults);
    Some(work)
}

/// A required table.
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
