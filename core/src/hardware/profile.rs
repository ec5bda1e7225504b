//! Measured times of operators on a device, as a file: what replaces the roofline of [`crate::hardware::cost`]. Its JSON Schema is
//! `core/schema/profile.schema.json`.
//!
//! The file is JSON: `{"version": 1, "device": "...", "operators": [{"kernel": "matmul", "operands": "bf16[8,4] ...",
//! "ns": 12, "flops": 512, "bytes": 256}, ...]}`, sorted by kernel and operands. `operands` lists number format and sizes of
//! all inputs, `->`, and those of all outputs, so two operators that read and write tensors of the same sizes count as the
//! same. Attributes that matter for time beside these (heads, transposes) are part of `kernel`.
//!
//! `flops` and `bytes`, 0 where they are not there, are what the operator does ([`Load`]). With them an operator of other
//! sizes takes as many times its roofline as the measured one of the same kind and format that does most nearly as much.
//! So a profile of one model serves others and other layouts, too, with all their operators seen in the same light.
//!
//! A device that does a sum behind a product in one go has a time of both ([`Signature::of_both`]): its `kernel` names both,
//! with `&` between them. Where there is one, the sum takes no time of its own.
//!
//! The optimizer's step stands there as the kernel `adamw`, with the format and number of the weights that were updated and
//! the bytes that this moves ([`Signature::of_update`]).
//!
//! `workspace_bytes`, 0 where it is not there, is what each rank on the device takes beside what a plan counts, such as room
//! for a library that multiplies: the memory that is planned with this profile counts it.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write};

use serde::Serialize;
use serde_json::Value;

use crate::base::fields::{Fault, Faults, Table, shown, whole};
use crate::base::json::{self, Syntax};
use crate::base::units::{Bytes, Nanos};
use crate::graph::liveness::Lifetimes;
use crate::graph::{Graph, Heads, Kernel, Operator, TensorId};
use crate::hardware::cluster::{Device, MAX_MEMORY};
use crate::hardware::cost::{self, Load, Peers};
use crate::model::Dtype;
use crate::problem::MAX_NS;

/// The version of the file that is written.
pub const VERSION: u32 = 1;
/// The JSON Schema of a profile, version 1.
pub const SCHEMA: &str = include_str!("../../schema/profile.schema.json");
/// The most operators that a file may have: far beyond any model's different ones.
const MOST_OPERATORS: usize = 100_000;
/// Most bytes of a kernel's name or its operands.
const LONGEST_TEXT: usize = 4096;

/// What an operator is to a profile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// Its name and what of its attributes matters.
    pub kernel: String,
    /// Formats and sizes of inputs and outputs.
    pub operands: String,
}

impl Signature {
    /// That of `operator`.
    pub fn of(graph: &Graph, operator: &Operator) -> Signature {
        // A collective takes as long whether or not it is waited for at once.
        let name = match operator.kernel {
            Kernel::AllReduceStart { ways } => Kernel::AllReduce { ways }.name(),
            Kernel::ReduceScatterStart { ways } => Kernel::ReduceScatter { ways }.name(),
            kernel => kernel.name(),
        };
        let kernel = match operator.kernel {
            Kernel::MatMul { transpose_a, transpose_b, accumulate } => {
                let mark = |transposed| if transposed { "t" } else { "n" };
                let adds = if accumulate { "+" } else { "" };
                format!("{name} {}{}{adds}", mark(transpose_a), mark(transpose_b))
            }
            Kernel::Attention(heads)
            | Kernel::AttentionGrad(heads)
            | Kernel::Scores(heads)
            | Kernel::ScoresGrad(heads)
            | Kernel::Attend(heads)
            | Kernel::AttendGrad(heads) => format!("{name} {}", of_heads(&heads)),
            Kernel::SpreadAttention(spread) | Kernel::SpreadAttentionGrad(spread) => {
                let within = if spread.window < spread.heads.sequence {
                    format!(" within {}", spread.window)
                } else {
                    String::new()
                };
                let ring = if spread.ways > 1 { format!(" in a ring of {}", spread.ways) } else { String::new() };
                format!("{name} {}{within}{ring}", of_heads(&spread.heads))
            }
            _ => name.to_string(),
        };
        // One text, written at once: planning asks for very many.
        let mut operands = String::with_capacity(64);
        for input in &operator.inputs {
            operand(&mut operands, graph, input.tensor);
        }
        operands.push_str("->");
        for output in &operator.outputs {
            operands.push(' ');
            operand(&mut operands, graph, *output);
            operands.pop();
        }
        Signature { kernel, operands }
    }

    /// That of `product` and of the `sum` behind it, which [takes its result](takes_sum), in one go.
    pub fn of_both(graph: &Graph, product: &Operator, sum: &Operator) -> Signature {
        let [first, second] = [product, sum].map(|operator| Signature::of(graph, operator));
        let (inputs, output) = first.operands.split_once(" -> ").unwrap_or_default();
        let others = sum.inputs.iter().map(|input| input.tensor).filter(|id| !product.outputs.contains(id));
        let mut added = String::new();
        others.for_each(|id| operand(&mut added, graph, id));
        let operands = format!("{inputs} {added}-> {output}");
        Signature { kernel: format!("{} & {}", first.kernel, second.kernel), operands }
    }

    /// That of the optimizer's step over `elements` weights in `dtype`, which is no operator of a graph.
    pub fn of_update(dtype: Dtype, elements: u64) -> Signature {
        let weights = format!("{}[{elements}]", dtype.name());
        Signature { kernel: "adamw".to_string(), operands: format!("{weights} -> {weights}") }
    }
}

/// What of heads matters for time.
fn of_heads(heads: &Heads) -> String {
    let Heads { sequence, query, key_value, width, .. } = heads;
    let capped = if heads.cap_e12.is_some() { ", capped" } else { "" };
    format!("{query}x{key_value} of {width} over {sequence}{capped}")
}

/// Writes format and sizes of a tensor, and a space behind them.
fn operand(text: &mut String, graph: &Graph, id: TensorId) {
    let tensor = &graph[id];
    text.push_str(tensor.dtype.name());
    for (at, size) in tensor.shape.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{}{size}", if at == 0 { '[' } else { ',' });
    }
    text.push_str(if tensor.shape.is_empty() { "[] " } else { "] " });
}

/// By operator of `graph`: whether it is a product whose result the next operator adds a bias or a residual to, where it
/// lies, which is what an epilogue of a product can do; or the gradient of a norm, to which what comes from beside it is added.
pub fn takes_sum(graph: &Graph) -> Vec<bool> {
    let takes_over = Lifetimes::of(graph).takes_over;
    let does = |at: usize| {
        let (Some(product), Some(sum)) = (graph.operators.get(at), graph.operators.get(at + 1)) else { return false };
        let result = product.outputs.first();
        let in_place = sum.in_place.and_then(|at| sum.inputs.get(at as usize)).map(|input| &input.tensor);
        let can = match product.kernel {
            Kernel::MatMul { accumulate: false, .. } => matches!(sum.kernel, Kernel::Add | Kernel::AddBias),
            Kernel::RmsNormInputGrad { .. } => sum.kernel == Kernel::Add,
            _ => false,
        };
        can && product.job == sum.job
            && takes_over.get(at + 1) == Some(&true)
            && in_place == result
            && sum.inputs.iter().filter(|input| Some(&input.tensor) == result).count() == 1
            && (sum.kernel == Kernel::Add || sum.inputs.first().map(|input| &input.tensor) == result)
    };
    (0..graph.operators.len()).map(does).collect()
}

/// Measured times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What was measured, for people.
    pub device: String,
    /// What each rank takes of the device beside what a plan counts.
    pub workspace_bytes: Bytes,
    measured: BTreeMap<Signature, Measured>,
    /// The same by kind, and there by how much is done.
    kinds: BTreeMap<Kind, BTreeMap<u128, Measured>>,
}

/// A measured operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    time: Nanos,
    load: Load,
}

/// What operators have in common whose sizes differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    /// The kernel without its sizes.
    kernel: String,
    /// The formats of the first input and of the first output.
    formats: [String; 2],
}

impl Coverage {
    /// Whether it knows any.
    pub fn is_any(&self) -> bool {
        self.measured + self.scaled > 0
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coverage { measured, scaled, all } = self;
        if measured == all {
            return f.write_str("all operators are measured");
        }
        write!(f, "{measured} of {all} operators of a layer, the embedding and the head are measured")?;
        if *scaled > 0 {
            write!(f, ", {scaled} follow from measured ones of other sizes")?;
        }
        f.write_str(if measured + scaled < *all { ", the others are estimated" } else { "" })
    }
}

impl Kind {
    fn of(signature: &Signature) -> Kind {
        let kernel = signature.kernel.split(|character: char| character.is_ascii_digit()).next().unwrap_or_default();
        let format = |operands: &str| operands.split('[').next().unwrap_or_default().to_string();
        let (inputs, outputs) = signature.operands.split_once("-> ").unwrap_or_default();
        Kind { kernel: kernel.trim_end().to_string(), formats: [format(inputs), format(outputs)] }
    }
}

/// How much is done: arithmetic where there is any.
fn amount(load: &Load) -> u128 {
    if load.flops > 0 { load.flops } else { load.bytes.into() }
}

/// Of a kind the one whose amount is fewest times `own`, or the other way round.
fn nearest(of_kind: &BTreeMap<u128, Measured>, own: u128) -> Option<&Measured> {
    let below = of_kind.range(..=own).next_back();
    let above = of_kind.range(own..).next();
    let (_, nearest) = match (below, above) {
        (Some(below), Some(above)) if own.saturating_mul(own) > below.0.saturating_mul(*above.0) => above,
        (below, above) => below.or(above)?,
    };
    Some(nearest)
}

impl Measured {
    /// The time of what is estimated to take `own`, where this is estimated to take `other`.
    fn in_proportion(&self, [own, other]: [Nanos; 2]) -> Nanos {
        let time = u128::from(own).saturating_mul(self.time.into()).div_ceil(u128::from(other.max(1)));
        Nanos::try_from(time).unwrap_or(Nanos::MAX).min(MAX_NS)
    }
}

/// How many operators' times a profile knows, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Those that were measured.
    pub measured: usize,
    /// Those that follow from measured ones of other sizes.
    pub scaled: usize,
    /// All of them.
    pub all: usize,
}

/// Text that is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// It is no JSON.
    #[error("{0}")]
    Syntax(Syntax),
    /// Fields are missing, unknown or out of range.
    #[error("{0}")]
    Faults(Faults),
}

#[derive(Serialize)]
struct File {
    version: u32,
    device: String,
    #[serde(skip_serializing_if = "is_zero")]
    workspace_bytes: Bytes,
    operators: Vec<Entry>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(bytes: &Bytes) -> bool {
    *bytes == 0
}

#[derive(Serialize)]
struct Entry {
    kernel: String,
    operands: String,
    ns: Nanos,
    flops: u64,
    bytes: Bytes,
}

impl Profile {
    /// Of `device`, with nothing measured.
    pub fn new(device: &str) -> Profile {
        Profile { device: device.to_string(), ..Profile::default() }
    }

    /// Notes a measured time of an operator that does so much; of a product and the sum behind it, the product.
    pub fn insert(&mut self, signature: Signature, load: Load, time: Nanos) {
        let measured = Measured { time, load };
        if amount(&load) > 0 {
            let of_kind = self.kinds.entry(Kind::of(&signature)).or_default();
            let known = of_kind.entry(amount(&load)).or_insert(measured);
            // Of those that do as much the slowest, so that it does not matter which came first.
            if (known.time, known.load.bytes) < (time, load.bytes) {
                *known = measured;
            }
        }
        self.measured.insert(signature, measured);
    }

    /// Whether there is a time of what is called so.
    pub fn has(&self, signature: &Signature) -> bool {
        self.measured.contains_key(signature)
    }

    /// The measured time of an operator like `operator`.
    pub fn time(&self, graph: &Graph, operator: &Operator) -> Option<Nanos> {
        self.measured(&Signature::of(graph, operator))
    }

    /// The measured time of a product like `product` with the `sum` behind it.
    pub fn time_of_both(&self, graph: &Graph, product: &Operator, sum: &Operator) -> Option<Nanos> {
        self.measured(&Signature::of_both(graph, product, sum))
    }

    fn measured(&self, signature: &Signature) -> Option<Nanos> {
        self.measured.get(signature).map(|measured| measured.time)
    }

    /// By operator of `graph`: what is measured, with the time of a product and the sum behind it all at the product's.
    pub fn times(&self, graph: &Graph) -> Vec<Option<Nanos>> {
        self.times_by(graph, |signature, _| self.measured(signature))
    }

    /// By operator of `graph`: what is measured, or follows from what is.
    fn known_times(&self, graph: &Graph, device: &Device, peers: &Peers) -> Vec<Option<Nanos>> {
        self.times_by(graph, |signature, operator| {
            self.measured(signature).or_else(|| self.scaled(signature, graph, operator, device, peers))
        })
    }

    /// By operator of `graph` what `time` says, of a product and the sum behind it all at the product's.
    fn times_by(&self, graph: &Graph, time: impl Fn(&Signature, &Operator) -> Option<Nanos>) -> Vec<Option<Nanos>> {
        let alone = |operator: &Operator| time(&Signature::of(graph, operator), operator);
        let mut times: Vec<Option<Nanos>> = graph.operators.iter().map(alone).collect();
        for at in (0..times.len()).zip(takes_sum(graph)).filter_map(|(at, takes)| takes.then_some(at)) {
            let (product, sum) = (&graph.operators[at], &graph.operators[at + 1]);
            if let Some(both) = time(&Signature::of_both(graph, product, sum), product) {
                (times[at], times[at + 1]) = (Some(both), Some(0));
            }
        }
        times
    }

    /// The time of `operator`, which is called `signature` but was not measured, by the nearest of its kind. None where it
    /// talks with other devices: what that takes is no matter of its sizes alone. But attention in a ring computes what it
    /// does on one device, while what it passes on travels beside.
    fn scaled(
        &self,
        signature: &Signature,
        graph: &Graph,
        operator: &Operator,
        device: &Device,
        peers: &Peers,
    ) -> Option<Nanos> {
        let is_spread = matches!(operator.kernel, Kernel::SpreadAttention(_) | Kernel::SpreadAttentionGrad(_));
        if operator.kernel.axis().is_some() && !is_spread {
            return None;
        }
        let own = Kind::of(signature);
        let plain = || is_spread.then(|| Kind { kernel: own.kernel.replace("spread_", ""), ..own.clone() });
        let of_kind = self.kinds.get(&own).or_else(|| self.kinds.get(&plain()?))?;
        let load = Load::of(graph, operator);
        let nearest = nearest(of_kind, amount(&load))?;
        let estimate = |load: &Load| load.time(&operator.kernel, device, peers);
        let time = nearest.in_proportion([&Load { sent: 0, ..load }, &nearest.load].map(estimate));
        let travels = if load.sent > 0 { estimate(&Load { sent: load.sent, ..Load::default() }) } else { 0 };
        Some(time.max(travels))
    }

    /// The time of the optimizer's step over weights in `dtype` that moves so many bytes, by the nearest measured one.
    pub fn update_time(&self, dtype: Dtype, moved: Bytes, device: &Device) -> Option<Nanos> {
        let nearest = nearest(self.kinds.get(&Kind::of(&Signature::of_update(dtype, 0)))?, moved.into())?;
        Some(nearest.in_proportion([moved, nearest.load.bytes].map(|bytes| cost::traffic_time(bytes, device))))
    }

    /// How many operators have been measured.
    pub fn len(&self) -> usize {
        self.measured.len()
    }

    /// Whether nothing has been measured.
    pub fn is_empty(&self) -> bool {
        self.measured.is_empty()
    }

    /// By operator of `graph` its time: measured, else by a measured one of its kind, else the roofline's.
    pub fn operator_times(&self, graph: &Graph, device: &Device, peers: &Peers) -> Vec<Nanos> {
        let known = self.known_times(graph, device, peers).into_iter().zip(&graph.operators);
        known
            .map(|(time, operator)| {
                time.unwrap_or_else(|| Load::of(graph, operator).time(&operator.kernel, device, peers))
            })
            .collect()
    }

    /// As a file.
    pub fn to_json(&self) -> String {
        let entry = |(signature, Measured { time, load }): (&Signature, &Measured)| Entry {
            kernel: signature.kernel.clone(),
            operands: signature.operands.clone(),
            ns: *time,
            flops: u64::try_from(load.flops).unwrap_or(u64::MAX),
            bytes: load.bytes,
        };
        let operators = self.measured.iter().map(entry).collect();
        let (device, workspace_bytes) = (self.device.clone(), self.workspace_bytes);
        let file = File { version: VERSION, device, workspace_bytes, operators };
        // Strings and whole numbers have a form in JSON, always.
        serde_json::to_value(file).map(|value| crate::base::canonical::pretty(&value)).unwrap_or_default()
    }

    /// What it knows of the operators of `graph` on `device`.
    pub fn covers(&self, graph: &Graph, device: &Device, peers: &Peers) -> Coverage {
        let measured = graph.operators.iter().filter(|operator| self.time(graph, operator).is_some()).count();
        let known = self.known_times(graph, device, peers).iter().flatten().count();
        Coverage { measured, scaled: known.saturating_sub(measured), all: graph.operators.len() }
    }

    /// From a file.
    ///
    /// # Errors
    /// [`ProfileError`], with every fault and its field.
    pub fn of_json(text: &str) -> Result<Profile, ProfileError> {
        let value: Value = json::parse(text).map_err(ProfileError::Syntax)?;
        let mut faults = Vec::new();
        let profile = read(&value, &mut faults);
        profile.filter(|_| faults.is_empty()).ok_or(ProfileError::Faults(Faults(faults)))
    }
}

fn read(value: &Value, faults: &mut Vec<Fault>) -> Option<Profile> {
    let mut table = Table::of(value, "", faults)?;
    let version = table.get("version");
    if version.and_then(whole) != Some(VERSION.into()) {
        let found = version.map_or_else(|| "nothing".to_string(), shown);
        let accepted = format!("{VERSION}: measure again with `pipeplan profile`");
        faults.push(Fault::new("version", found, accepted));
        return None;
    }
    let mut profile = Profile::new(table.text("device", faults).unwrap_or_default());
    profile.workspace_bytes = table.bytes("workspace_bytes", 0..=MAX_MEMORY, faults).unwrap_or(0);
    match table.get("operators") {
        Some(Value::Array(operators)) if operators.len() <= MOST_OPERATORS => {
            for (index, operator) in operators.iter().enumerate() {
                if let Some((signature, load, ns)) = read_operator(operator, &format!("operators[{index}]"), faults) {
                    profile.insert(signature, load, ns);
                }
            }
        }
        found => {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            faults.push(Fault::new("operators", found, format!("a list of at most {MOST_OPERATORS} operators")));
        }
    }
    table.finish(faults);
    Some(profile)
}

fn read_operator(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<(Signature, Load, Nanos)> {
    let mut table = Table::of(value, path, faults)?;
    let mut text = |key, accepted: &str| {
        // Operands of attention with many tensors are longer than what people type.
        let found = table.get(key);
        let read = found.and_then(Value::as_str).filter(|text| !text.is_empty() && text.len() <= LONGEST_TEXT);
        if read.is_none() {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            faults.push(Fault::new(table.path(key), found, accepted));
        }
        read.map(ToString::to_string)
    };
    let kernel = text("kernel", "the operator's name and attributes, such as `matmul nt`");
    let operands = text("operands", "formats and sizes, such as `f32[8,4] f32[2,4] -> f32[8,2]`");
    let ns = table.needed_whole("ns", 0..=MAX_NS, faults);
    let [flops, bytes] = ["flops", "bytes"].map(|key| table.whole(key, 0..=u64::MAX, faults).unwrap_or(0));
    table.finish(faults);
    let load = Load { flops: flops.into(), bytes, ..Load::default() };
    Some((Signature { kernel: kernel?, operands: operands? }, load, ns?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build::stage_graph;
    use crate::graph::form::Form;
    use crate::graph::form::StageShape;
    use crate::hardware::cluster;
    use crate::hardware::cost::{self, JobTimes};
    use crate::model::{Dtype, Family, catalog};

    fn shape() -> StageShape {
        StageShape {
            layers: 0..2,
            has_embedding: true,
            has_head: true,
            microbatch_size: 1,
            sequence: 32,
            dtype: Dtype::F32,
            form: Form::default(),
        }
    }

    fn graph() -> Graph {
        let model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
        stage_graph(&model, &shape(), 1)
    }

    fn insert(profile: &mut Profile, graph: &Graph, operator: &Operator, time: Nanos) {
        profile.insert(Signature::of(graph, operator), Load::of(graph, operator), time);
    }

    /// A bias or a residual that comes right behind a product is part of it where the device has been measured so: in each
    /// layer of a Llama two residuals, in one of a GPT the biases of all six products, whose residuals come behind those.
    #[test]
    fn what_a_device_does_in_one_go_takes_one_time() {
        for (name, family, each_layer) in [("llama", Family::Llama, 2), ("gpt", Family::Gpt, 6)] {
            let mut model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
            (model.family, model.kv_heads) = (family, model.heads);
            let layers = 2;
            let shape = StageShape { layers: 0..layers, ..shape() };
            let graph = stage_graph(&model, &shape, 1);
            let takes = takes_sum(&graph);
            let forward = graph.forward_len();
            let of_layers = (0..forward).filter(|at| takes[*at] && graph.operators[*at].layer.is_some());
            assert_eq!(of_layers.count(), each_layer * layers as usize, "{name}");
            let mut profile = Profile::new("test");
            let mut all =
                |time| graph.operators.iter().for_each(|operator| insert(&mut profile, &graph, operator, time));
            all(7);
            let apart = profile.times(&graph);
            assert!(apart.iter().all(|time| *time == Some(7)));
            for at in (0..takes.len()).filter(|at| takes[*at]) {
                let both = Signature::of_both(&graph, &graph.operators[at], &graph.operators[at + 1]);
                assert!(both.kernel.contains(" & add") && !both.operands.contains("  "), "{both:?}");
                profile.insert(both, Load::of(&graph, &graph.operators[at]), 8);
            }
            let together = profile.times(&graph);
            for at in 0..takes.len() {
                let expected = if takes[at] {
                    8
                } else if at > 0 && takes[at - 1] {
                    0
                } else {
                    7
                };
                assert_eq!(together[at], Some(expected), "{name}: {}", graph.operators[at].kernel.name());
            }
        }
    }

    /// Without measurements the times are the roofline's; with all of them, their sums.
    #[test]
    fn measured_times_replace_estimates() {
        let graph = graph();
        let device = cluster::find("h100").map(|entry| entry.device(Dtype::F32)).unwrap();
        let peers = Peers::all(cluster::Link { bytes_per_s: 1, latency_ns: 0 });
        let mut profile = Profile::new("test");
        assert_eq!(profile.operator_times(&graph, &device, &peers), cost::operator_times(&graph, &device, &peers));
        graph.operators.iter().for_each(|operator| insert(&mut profile, &graph, operator, 7));
        let counts = crate::graph::Job::ALL.map(|job| 7 * graph.job(job).count() as Nanos);
        let times = profile.operator_times(&graph, &device, &peers);
        assert_eq!(JobTimes::of_times(&graph, &times).jobs, counts);
        // Layers are alike: fewer signatures than operators.
        assert!(profile.len() < graph.operators.len());
        assert!(!profile.to_json().contains("workspace_bytes"));
        profile.workspace_bytes = 32 << 20;
        assert_eq!(Profile::of_json(&profile.to_json()), Ok(profile));
    }

    /// A device that takes three times its roofline for what was measured is taken to do so for all sizes; what has no
    /// kind there, or talks with others, keeps its estimate. Between two sizes the nearer one counts.
    #[test]
    fn other_sizes_follow_the_nearest_of_their_kind() {
        let model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
        let device = cluster::find("h100").map(|entry| entry.device(Dtype::Bf16)).unwrap();
        let peers = Peers::all(cluster::Link { bytes_per_s: 1 << 30, latency_ns: 5 });
        let of = |sequence: u32, tensor: u32| {
            let form = Form { tensor, ..Form::default() };
            stage_graph(&model, &StageShape { sequence, form, dtype: Dtype::Bf16, ..shape() }, 1)
        };
        let roofline =
            |graph: &Graph, operator: &Operator| Load::of(graph, operator).time(&operator.kernel, &device, &peers);
        let (small, large) = (of(1 << 12, 1), of(1 << 16, 1));
        let mut profile = Profile::new("test");
        for (graph, times) in [(&small, 3), (&large, 5)] {
            for operator in &graph.operators {
                insert(&mut profile, graph, operator, times * roofline(graph, operator));
            }
        }
        assert_eq!(Profile::of_json(&profile.to_json()).as_ref(), Ok(&profile));
        for (sequence, expected) in
            [(1 << 10, 3), (1 << 12, 3), (1 << 13, 3), (1 << 15, 5), (1 << 16, 5), (1 << 17, 5)]
        {
            let graph = of(sequence, 1);
            let times = profile.operator_times(&graph, &device, &peers);
            for (operator, time) in graph.operators.iter().zip(times) {
                // Where a launch takes longest, small and large are alike. Rounded up.
                let estimated = roofline(&graph, operator);
                let is = |times: Nanos| time.abs_diff(times * estimated) <= 1;
                let name = operator.kernel.name();
                // Products have many sizes: a long one of few tokens may be near a short one of many.
                let is_between =
                    (1 << 12..1 << 16).contains(&sequence) && matches!(operator.kernel, Kernel::MatMul { .. });
                let holds = is(expected) || is_between && (is(3) || is(5)) || estimated == device.launch_ns;
                assert!(holds, "{name}, {sequence}: {time}, {expected} times {estimated}");
            }
            let coverage = profile.covers(&graph, &device, &peers);
            assert_eq!(coverage.measured + coverage.scaled, coverage.all);
        }
        let cut = of(1 << 12, 2);
        let times = profile.operator_times(&cut, &device, &peers);
        for (operator, time) in
            cut.operators.iter().zip(times).filter(|(operator, _)| operator.kernel.axis().is_some())
        {
            assert_eq!(time, roofline(&cut, operator), "{}", operator.kernel.name());
        }
        assert!(cut.operators.iter().any(|operator| operator.kernel.axis().is_some()));
        // Another format is another kind.
        let single = stage_graph(&model, &shape(), 1);
        assert_eq!(profile.covers(&single, &device, &peers).measured, 0);
        let times = profile.operator_times(&single, &device, &peers);
        let products = single
            .operators
            .iter()
            .zip(times)
            .filter(|(operator, _)| matches!(operator.kernel, Kernel::MatMul { .. }));
        products.for_each(|(operator, time)| assert_eq!(time, roofline(&single, operator)));
    }

    /// A file is sorted, and what was measured was not: both say the same of other sizes.
    /// Attention in a ring takes as many times its arithmetic's estimate as attention on one device, or as long as its blocks
    /// travel: the same on a slow link as without a profile.
    #[test]
    fn rings_follow_attention_on_one_device() {
        let model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
        let device = cluster::find("h100").map(|entry| entry.device(Dtype::Bf16)).unwrap();
        let of = |context: u32| {
            let form = Form { context, ..Form::default() };
            stage_graph(&model, &StageShape { sequence: 1 << 14, form, dtype: Dtype::Bf16, ..shape() }, 1)
        };
        let fast = Peers::all(cluster::Link { bytes_per_s: 1 << 50, latency_ns: 0 });
        let slow = Peers::all(cluster::Link { bytes_per_s: 1 << 20, latency_ns: 5 });
        let roofline = |operator: &Operator, load: Load, peers: &Peers| load.time(&operator.kernel, &device, peers);
        let (alone, ring) = (of(1), of(2));
        let mut profile = Profile::new("test");
        for operator in &alone.operators {
            insert(&mut profile, &alone, operator, 3 * roofline(operator, Load::of(&alone, operator), &fast));
        }
        let is_ring = |operator: &&Operator| {
            matches!(operator.kernel, Kernel::SpreadAttention(_) | Kernel::SpreadAttentionGrad(_))
        };
        assert_eq!(ring.operators.iter().filter(is_ring).count(), 4, "two layers, both ways");
        for (peers, of_arithmetic) in [(&fast, true), (&slow, false)] {
            let times = profile.operator_times(&ring, &device, peers);
            for (operator, time) in ring.operators.iter().zip(times).filter(|(operator, _)| is_ring(operator)) {
                let load = Load::of(&ring, operator);
                let expected = match of_arithmetic {
                    true => 3 * roofline(operator, Load { sent: 0, ..load }, peers),
                    false => roofline(operator, load, peers),
                };
                assert!(time.abs_diff(expected) <= 3, "{:?}: {time}, expected {expected}", operator.kernel);
            }
        }
    }

    #[test]
    fn it_does_not_matter_what_was_measured_first() {
        let signature = |rows: u64| Signature {
            kernel: "add".to_string(),
            operands: format!("f32[{rows},{}] -> f32[{rows},{}]", 64 / rows, 64 / rows),
        };
        let load = Load { bytes: 512, ..Load::default() };
        let of = |order: [u64; 3]| {
            let mut profile = Profile::new("test");
            order.into_iter().for_each(|rows| profile.insert(signature(rows), load, 10 * rows));
            profile
        };
        let one = of([2, 8, 4]);
        assert_eq!((&one, Ok(&one)), (&of([8, 4, 2]), Profile::of_json(&one.to_json()).as_ref()));
    }

    #[test]
    fn other_files_are_refused_by_field() {
        assert!(matches!(Profile::of_json("{"), Err(ProfileError::Syntax(_))));
        let good = r#"{"kernel": "add", "operands": "f32[2] f32[2] -> f32[2]", "ns": 7}"#;
        let file = |operators: &str| format!(r#"{{"version": 1, "device": "x", "operators": {operators}}}"#);
        assert!(Profile::of_json(&file(&format!("[{good}]"))).is_ok());
        for (text, says) in [
            (r#"[]"#.to_string(), "the whole input: found a list of 0"),
            (r#"{"version": 2}"#.to_string(), "version: found 2, accepted is 1"),
            (r#"{"operators": []}"#.to_string(), "version: found nothing"),
            (r#"{"version": 1, "operators": 3}"#.to_string(), "operators: found 3"),
            (r#"{"version": 1}"#.to_string(), "operators: found nothing"),
            (file(&format!("[{good}, {}]", good.replace("7", "-7"))), "operators[1].ns: found -7"),
            (file(&format!("[{}]", good.replace("\"ns\"", "\"us\""))), "operators[0].ns: found nothing"),
            (file(&format!("[{}]", good.replace("\"add\"", "3"))), "operators[0].kernel: found 3"),
            (file(&format!("[{}]", good.replace("operands", "operand"))), "operators[0].operands: found nothing"),
            (file("[3]"), "operators[0]: found 3, accepted is a table"),
            (
                file("[]").replace("\"operators\"", "\"workspace_bytes\": -1, \"operators\""),
                "workspace_bytes: found -1",
            ),
        ] {
            let error = Profile::of_json(&text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(says), "{error} should say {says}");
        }
    }
}
