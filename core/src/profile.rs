//! Measured times of operators on a device, as a file: what replaces the roofline of [`crate::cost`] where an operator
//! of the same kind, format and sizes has been measured.
//!
//! The file is JSON: `{"version": 1, "device": "...", "operators": [{"kernel": "matmul", "operands": "bf16[8,4] ...",
//! "ns": 12}, ...]}`, sorted by kernel and operands. `operands` lists number format and sizes of all inputs, `->`, and
//! those of all outputs, so two operators that read and write tensors of the same sizes count as the same. Attributes
//! that matter for time beside these (heads, transposes) are part of `kernel`.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::cluster::Device;
use crate::cost::{self, JobTimes, Peers};
use crate::graph::{Graph, Kernel, Operator, TensorId};
use crate::units::Nanos;

/// The version of the file that is written.
pub const VERSION: u32 = 1;
/// The most operators that a file may have: far beyond any model's different ones.
const MOST_OPERATORS: usize = 100_000;

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
            | Kernel::AttendGrad(heads) => {
                format!("{name} {}x{} of {} over {}", heads.query, heads.key_value, heads.width, heads.sequence)
            }
            _ => name.to_string(),
        };
        let one = |id: TensorId| {
            let sizes: Vec<String> = graph[id].shape.iter().map(ToString::to_string).collect();
            format!("{}[{}]", graph[id].dtype.name(), sizes.join(","))
        };
        let inputs: Vec<String> = operator.inputs.iter().map(|input| one(input.tensor)).collect();
        let outputs: Vec<String> = operator.outputs.iter().map(|output| one(*output)).collect();
        Signature { kernel, operands: format!("{} -> {}", inputs.join(" "), outputs.join(" ")) }
    }
}

/// Measured times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What was measured, for people.
    pub device: String,
    times: BTreeMap<Signature, Nanos>,
}

/// Text that is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// It cannot be read.
    #[error("the profile cannot be read: {0}")]
    Syntax(String),
    /// Another version wrote it.
    #[error(
        "the profile is of version {found}, and version {VERSION} is known: measure again with `pipeplan selftest`"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// More than can be.
    #[error("the profile has {found} operators, and at most {MOST_OPERATORS} make sense")]
    TooLong {
        /// How many.
        found: usize,
    },
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    device: String,
    operators: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    kernel: String,
    operands: String,
    ns: Nanos,
}

impl Profile {
    /// Of `device`, with nothing measured.
    pub fn new(device: &str) -> Profile {
        Profile { device: device.to_string(), times: BTreeMap::new() }
    }

    /// Notes a measured time.
    pub fn insert(&mut self, signature: Signature, time: Nanos) {
        self.times.insert(signature, time);
    }

    /// The measured time of an operator like `operator`.
    pub fn time(&self, graph: &Graph, operator: &Operator) -> Option<Nanos> {
        self.times.get(&Signature::of(graph, operator)).copied()
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
        JobTimes::of(graph, |operator| {
            let roofline = || cost::Load::of(graph, operator).time(&operator.kernel, device, peers);
            self.time(graph, operator).unwrap_or_else(roofline)
        })
    }

    /// As a file.
    pub fn to_json(&self) -> String {
        let entry = |(signature, ns): (&Signature, &Nanos)| Entry {
            kernel: signature.kernel.clone(),
            operands: signature.operands.clone(),
            ns: *ns,
        };
        let operators = self.times.iter().map(entry).collect();
        let file = File { version: VERSION, device: self.device.clone(), operators };
        // Strings and whole numbers have a form in JSON, always.
        serde_json::to_value(file).map(|value| crate::canonical::pretty(&value)).unwrap_or_default()
    }

    /// From a file.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn of_json(text: &str) -> Result<Profile, ProfileError> {
        let syntax = |error: serde_json::Error| ProfileError::Syntax(error.to_string());
        let value: serde_json::Value = serde_json::from_str(text).map_err(syntax)?;
        let version = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
        if version != u64::from(VERSION) {
            return Err(ProfileError::Version { found: version.min(u32::MAX.into()) as u32 });
        }
        let file: File = serde_json::from_value(value).map_err(syntax)?;
        if file.operators.len() > MOST_OPERATORS {
            return Err(ProfileError::TooLong { found: file.operators.len() });
        }
        let mut profile = Profile::new(&file.device);
        for Entry { kernel, operands, ns } in file.operators {
            profile.insert(Signature { kernel, operands }, ns);
        }
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster;
    use crate::graph::build::{StageShape, stage_graph};
    use crate::graph::form::Form;
    use crate::model::{Dtype, catalog};

    fn graph() -> Graph {
        let model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
        let form = Form::default();
        let shape = StageShape {
            layers: 0..2,
            has_embedding: true,
            has_head: true,
            microbatch_size: 1,
            sequence: 32,
            dtype: Dtype::F32,
            form,
        };
        stage_graph(&model, &shape, 1)
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
        assert_eq!(Profile::of_json(&profile.to_json()), Ok(profile));
    }

    #[test]
    fn other_files_are_refused() {
        assert!(matches!(Profile::of_json("{"), Err(ProfileError::Syntax(_))));
        assert_eq!(Profile::of_json(r#"{"version": 2}"#), Err(ProfileError::Version { found: 2 }));
        assert!(matches!(Profile::of_json(r#"{"version": 1, "operators": 3}"#), Err(ProfileError::Syntax(_))));
    }
}
