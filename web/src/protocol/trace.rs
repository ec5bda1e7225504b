//! A measured run as it travels.

use serde::{Deserialize, Serialize};

use super::WireSpan;

/// What a trace file holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// What computed.
    pub backend: String,
    /// What carried the messages.
    pub transport: String,
    /// The digest of the plan that ran; may be empty.
    pub plan_digest: String,
    /// Number and loss of each recorded training step.
    pub steps: Vec<(u64, Option<f64>)>,
    /// Most bytes held, by rank.
    pub peak_bytes: Vec<u64>,
    /// On how many processors the ranks took turns, where they did.
    pub shared_processors: Option<usize>,
}

/// Where a run lost time against its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    /// Steps that count.
    pub steps: usize,
    /// The makespan of the plan's order.
    pub planned_ns: u64,
    /// What each cause adds: ops, hops, spread, rest.
    pub causes_ns: [i64; 4],
    /// The mean over those steps.
    pub measured_ns: u64,
    /// The ops that decide most of the makespan, such as `3F`, and their share of it.
    pub deciding: Vec<(String, f64)>,
    /// How much ops differ from the mean of their stage and job, in thousandths.
    pub jitter_permille: u64,
    /// The problem with measured times, as the JSON of a problem file.
    pub problem: String,
}

/// One measured training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Position in the file.
    pub index: u32,
    /// The spans of each rank that have not been sent ahead.
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
