//! Measured times of operators on a device, as a file: what replaces the roofline of [`crate::cost`] where an operator
//! of the same kind, format and sizes has been measured.
//!
//! The file is JSON: `{"version": 1, "device": "...", "operators": [{"kernel": "matmul", "operands": "bf16[8,4] ...",
//! "ns": 12}, ...]}`, sorted by kernel and operands. `operands` lists number format and sizes of all inputs, `->`, and
//! those of all outputs, so two operators that read and write tensors of the same sizes count as the same. Attributes
//! that matter for time beside these (heads, transposes) are part of `kernel`.
//!
//! A device that does a sum behind a product in one go has a time of both ([`Signature::of_both`]): its `kernel` names both,
//! with `&` between them. Where there is one, the sum takes no time of its own.
//!
//! `workspace_bytes`, 0 where it is not there, is what each rank on the device takes beside what a plan counts, such as room
//! for a library that multiplies: the memory that is planned with this profile counts it.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::Serialize;
use serde_json::Value;

use crate::cluster::{Device, MAX_MEMORY};
use crate::cost::{self, JobTimes, Peers};
use crate::fields::{Fault, Faults, Table, shown, whole};
use crate::graph::liveness::Lifetimes;
use crate::graph::{Graph, Heads, Kernel, Operator, TensorId};
use crate::json::{self, Syntax};
use crate::problem::MAX_NS;
use crate::units::{Bytes, Nanos};

/// The version of the file that is written.
pub const VERSION: u32 = 1;
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
        let inputs: Vec<String> = operator.inputs.iter().map(|input| operand(graph, input.tensor)).collect();
        let outputs: Vec<String> = operator.outputs.iter().map(|output| operand(graph, *output)).collect();
        Signature { kernel, operands: format!("{} -> {}", inputs.join(" "), outputs.join(" ")) }
    }

    /// That of `product` and of the `sum` behind it, which [takes its result](takes_sum), in one go.
    pub fn of_both(graph: &Graph, product: &Operator, sum: &Operator) -> Signature {
        let [first, second] = [product, sum].map(|operator| Signature::of(graph, operator));
        let (inputs, output) = first.operands.split_once(" -> ").unwrap_or_default();
        let others = sum.inputs.iter().map(|input| input.tensor).filter(|id| !product.outputs.contains(id));
        let added: Vec<String> = others.map(|id| operand(graph, id)).collect();
        let operands = format!("{inputs} {} -> {output}", added.join(" "));
        Signature { kernel: format!("{} & {}", first.kernel, second.kernel), operands }
    }
}

/// What of heads matters for time.
fn of_heads(heads: &Heads) -> String {
    let Heads { sequence, query, key_value, width, .. } = heads;
    let capped = if heads.cap_e12.is_some() { ", capped" } else { "" };
    format!("{query}x{key_value} of {width} over {sequence}{capped}")
}

fn operand(graph: &Graph, id: TensorId) -> String {
    let sizes: Vec<String> = graph[id].shape.iter().map(ToString::to_string).collect();
    format!("{}[{}]", graph[id].dtype.name(), sizes.join(","))
}

/// By operator of `graph`: whether it is a product whose result the next operator adds a bias or a residual to, where it
/// lies. That is what an epilogue of a product can do.
pub fn takes_sum(graph: &Graph) -> Vec<bool> {
    let takes_over = Lifetimes::of(graph).takes_over;
    let does = |at: usize| {
        let (Some(product), Some(sum)) = (graph.operators.get(at), graph.operators.get(at + 1)) else { return false };
        let result = product.outputs.first();
        let in_place = sum.in_place.and_then(|at| sum.inputs.get(at as usize)).map(|input| &input.tensor);
        matches!(product.kernel, Kernel::MatMul { accumulate: false, .. })
            && matches!(sum.kernel, Kernel::Add | Kernel::AddBias)
            && product.job == sum.job
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
    times: BTreeMap<Signature, Nanos>,
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
}

impl Profile {
    /// Of `device`, with nothing measured.
    pub fn new(device: &str) -> Profile {
        Profile { device: device.to_string(), workspace_bytes: 0, times: BTreeMap::new() }
    }

    /// Notes a measured time.
    pub fn insert(&mut self, signature: Signature, time: Nanos) {
        self.times.insert(signature, time);
    }

    /// Whether there is a time of what is called so.
    pub fn has(&self, signature: &Signature) -> bool {
        self.times.contains_key(signature)
    }

    /// The measured time of an operator like `operator`.
    pub fn time(&self, graph: &Graph, operator: &Operator) -> Option<Nanos> {
        self.times.get(&Signature::of(graph, operator)).copied()
    }

    /// The measured time of a product like `product` with the `sum` behind it.
    pub fn time_of_both(&self, graph: &Graph, product: &Operator, sum: &Operator) -> Option<Nanos> {
        self.times.get(&Signature::of_both(graph, product, sum)).copied()
    }

    /// By operator of `graph`: what is measured, with the time of a product and the sum behind it all at the product's.
    pub fn times(&self, graph: &Graph) -> Vec<Option<Nanos>> {
        let mut times: Vec<Option<Nanos>> =
            graph.operators.iter().map(|operator| self.time(graph, operator)).collect();
        for at in (0..times.len()).zip(takes_sum(graph)).filter_map(|(at, takes)| takes.then_some(at)) {
            let (product, sum) = (&graph.operators[at], &graph.operators[at + 1]);
            if let Some(both) = self.time_of_both(graph, product, sum) {
                (times[at], times[at + 1]) = (Some(both), Some(0));
            }
        }
        times
    }

    /// How many operators have been measured.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether nothing has been measured.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Times of one microbatch's jobs: measured where there is a measurement, else the roofline's.
    pub fn job_times(&self, graph: &Graph, device: &Device, peers: &Peers) -> JobTimes {
        let times = self.times(graph).into_iter().zip(&graph.operators).map(|(time, operator)| {
            time.unwrap_or_else(|| cost::Load::of(graph, operator).time(&operator.kernel, device, peers))
        });
        JobTimes::of_times(graph, &times.collect::<Vec<Nanos>>())
    }

    /// As a file.
    pub fn to_json(&self) -> String {
        let entry = |(signature, ns): (&Signature, &Nanos)| Entry {
            kernel: signature.kernel.clone(),
            operands: signature.operands.clone(),
            ns: *ns,
        };
        let operators = self.times.iter().map(entry).collect();
        let (device, workspace_bytes) = (self.device.clone(), self.workspace_bytes);
        let file = File { version: VERSION, device, workspace_bytes, operators };
        // Strings and whole numbers have a form in JSON, always.
        serde_json::to_value(file).map(|value| crate::canonical::pretty(&value)).unwrap_or_default()
    }

    /// How many of the operators of `graph` have been measured, and how many there are.
    pub fn covers(&self, graph: &Graph) -> (usize, usize) {
        let measured = graph.operators.iter().filter(|operator| self.time(graph, operator).is_some());
        (measured.count(), graph.operators.len())
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
                if let Some((signature, ns)) = read_operator(operator, &format!("operators[{index}]"), faults) {
                    profile.insert(signature, ns);
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

fn read_operator(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<(Signature, Nanos)> {
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
    table.finish(faults);
    Some((Signature { kernel: kernel?, operands: operands? }, ns?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster;
    use crate::graph::build::{StageShape, stage_graph};
    use crate::graph::form::Form;
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
            graph.operators.iter().for_each(|operator| profile.insert(Signature::of(&graph, operator), 7));
            let apart = profile.times(&graph);
            assert!(apart.iter().all(|time| *time == Some(7)));
            for at in (0..takes.len()).filter(|at| takes[*at]) {
                let both = Signature::of_both(&graph, &graph.operators[at], &graph.operators[at + 1]);
                assert!(both.kernel.contains(" & add") && !both.operands.contains("  "), "{both:?}");
                profile.insert(both, 8);
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
        assert_eq!(profile.job_times(&graph, &device, &peers), cost::job_times(&graph, &device, &peers));
        graph.operators.iter().for_each(|operator| profile.insert(Signature::of(&graph, operator), 7));
        let counts = crate::graph::Job::ALL.map(|job| 7 * graph.job(job).count() as Nanos);
        assert_eq!(profile.job_times(&graph, &device, &peers).jobs, counts);
        // Layers are alike: fewer signatures than operators.
        assert!(profile.len() < graph.operators.len());
        assert!(!profile.to_json().contains("workspace_bytes"));
        profile.workspace_bytes = 32 << 20;
        assert_eq!(Profile::of_json(&profile.to_json()), Ok(profile));
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
