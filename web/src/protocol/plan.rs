//! A plan as it travels: its spans, figures and memory, and the rows of the comparison.

use pipeplan_core::estimate::step::Training;
use serde::{Deserialize, Serialize};

use super::WireSpan;

/// A plan as the page shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// The schedule's name.
    pub schedule: String,
    /// The problem, as the JSON of a problem file with its placement fixed.
    pub problem: String,
    /// The spans of each rank that have not been sent ahead.
    pub rows: Vec<Vec<WireSpan>>,
    /// What it costs.
    pub figures: Figures,
    /// Its bytes by rank and kind; empty where costs are typed.
    pub memory: Vec<RankBytes>,
}

/// The bytes of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankBytes {
    /// Held throughout, by kind: in the order of [`kinds_of_bytes`](crate::protocol::from_core::kinds_of_bytes).
    pub fixed: Vec<u64>,
    /// The most that microbatches hold at once.
    pub activations: u64,
    /// The op during which that is.
    pub at: String,
    /// The most that they hold of the host's memory.
    pub on_host: u64,
    /// All together.
    pub peak: u64,
    /// What it may hold.
    pub limit: Option<u64>,
}

/// The figures of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// What it is judged by: `makespan` or `longest_span`.
    pub objective: String,
    /// End of the last op minus start of the first.
    pub makespan_ns: u64,
    /// The largest span of a rank.
    pub longest_span_ns: u64,
    /// Idle share under the objective.
    pub bubble_ratio: f64,
    /// Most bytes held, by rank.
    pub peak_bytes: Vec<u64>,
    /// The limit, by rank.
    pub limit_bytes: Vec<Option<u64>>,
    /// No valid schedule on this placement costs less.
    pub bound_ns: u64,
    /// Cost over bound, minus 1.
    pub gap: Option<f64>,
    /// With the jitter that the spec says: what one step of twenty costs more than.
    pub late_ns: Option<u64>,
    /// The cost with waits at transfers, as the spec has them placed and carried; none where that could hang.
    pub carried_ns: Option<u64>,
    /// What the best is chosen by, see [`judged_ns`](pipeplan_core::plan::planner::judged_ns).
    pub judged_ns: u64,
    /// What binds the bound, as a sentence.
    pub binding: String,
    /// The whole training step; of a model only.
    pub step: Option<StepFigures>,
}

/// A whole training step, its gradients' sums and its optimizer included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepFigures {
    /// How long it takes.
    pub step_ns: u64,
    /// Tokens of all copies, a second.
    pub tokens_per_s: f64,
    /// Model FLOPs utilisation.
    pub mfu: f64,
    /// The whole training, where the spec says of how many tokens.
    pub training: Option<Training>,
}

/// One schedule of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name.
    pub schedule: String,
    /// The name a person reads.
    pub title: String,
    /// Paper and section.
    pub source: String,
    /// For an absent schedule why; for `best` which one it is.
    pub reason: Option<String>,
    /// What it costs; none where it is absent.
    pub costs: Option<RowCosts>,
}

/// What a schedule of the comparison costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowCosts {
    /// End of the last op minus start of the first.
    pub makespan_ns: u64,
    /// The largest span of a rank.
    pub longest_span_ns: u64,
    /// Idle share under the objective.
    pub bubble_ratio: f64,
    /// Most bytes held by any rank.
    pub peak_bytes: u64,
    /// Cost over bound, minus 1.
    pub gap: Option<f64>,
    /// With the jitter that the spec says: what one step of twenty costs more than.
    pub late_ns: Option<u64>,
    /// The cost with waits at transfers, as the spec has them placed and carried; none where that could hang.
    pub carried_ns: Option<u64>,
    /// What the best is chosen by, see [`judged_ns`](pipeplan_core::plan::planner::judged_ns).
    pub judged_ns: u64,
    /// The whole training step; of a model only.
    pub step: Option<StepFigures>,
}
