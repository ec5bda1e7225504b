//! A measured run as it travels.

use serde::{Deserialize, Serialize};

use super::WireSpan;

/// The summary of a trace file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// The backend.
    pub backend: String,
    /// The transport.
    pub transport: String,
    /// The digest of the plan that ran; may be empty.
    pub plan_digest: String,
    /// Number and loss of each recorded training step.
    pub steps: Vec<(u64, Option<f64>)>,
    /// Most bytes held, by rank.
    pub peak_bytes: Vec<u64>,
    /// Number of processors, if ranks were time-sliced on them.
    pub shared_processors: Option<usize>,
}

/// Where a run lost time against its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    /// Counted steps.
    pub steps: usize,
    /// The makespan of the plan.
    pub planned_ns: u64,
    /// The time of each cause: ops, hops, spread, rest.
    pub causes_ns: [i64; 4],
    /// The mean of the counted steps.
    pub measured_ns: u64,
    /// The ops with the largest shares of the critical path, such as `3F`.
    pub deciding: Vec<(String, f64)>,
    /// Deviation of ops from the mean of their stage and job, in thousandths.
    pub jitter_permille: u64,
    /// The problem with measured times, as the JSON of a problem file.
    pub problem: String,
}

/// One measured training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Position in the file.
    pub index: u32,
    /// The spans of each rank that earlier messages did not contain.
    pub rows: Vec<Vec<WireSpan>>,
    /// From the first op's start to the last one's end.
    pub makespan_ns: u64,
    /// Idle share within the makespan.
    pub bubble_ratio: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// The whole step, transfers and optimizer included.
    pub duration_ns: u64,
}
