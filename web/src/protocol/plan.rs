//! A plan as it travels: its spans, figures and memory, and the rows of the comparison.

use pipeplan_core::estimate::step::Training;
use serde::{Deserialize, Serialize};

use super::{WireCopy, WireSpan};

/// A plan as the page shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// The schedule's name.
    pub schedule: String,
    /// The problem, as the JSON of a problem file with its placement fixed.
    pub problem: String,
    /// The spans of each rank that earlier messages did not contain.
    pub rows: Vec<Vec<WireSpan>>,
    /// By rank, copies to and from the host; empty if there are none.
    pub copies: Vec<Vec<WireCopy>>,
    /// Its cost.
    pub figures: Figures,
    /// Its bytes by rank and kind; empty if costs are typed.
    pub memory: Vec<RankBytes>,
    /// Its microbatches, if they differ.
    pub widths: Widths,
}

/// Microbatches that differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Widths {
    /// The documents of all data parallel replicas.
    pub documents: Option<DocumentFigures>,
    /// What packings of them cost, if the planner chose one.
    pub packing: Option<PackingTimes>,
    /// The microbatches of the plan's problem: of replicas with different documents, those of the slowest. Empty if all are
    /// alike.
    pub microbatches: Vec<Width>,
}

/// The documents of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentFigures {
    /// How many there are.
    pub documents: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Data parallel replicas.
    pub replicas: u64,
    /// Microbatches of each.
    pub microbatches: u64,
    /// The share of the tokens of all microbatches that are of documents.
    pub fill: f64,
}

/// What packings of the documents cost, see [`PackingFigures`](pipeplan_core::plan::PackingFigures).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackingTimes {
    /// In their order.
    pub given_ns: Option<u64>,
    /// The same, with sorted microbatches.
    pub sorted_ns: Option<u64>,
    /// The same microbatches, dealt longest first and sorted.
    pub dealt_ns: Option<u64>,
    /// As planned.
    pub found_ns: u64,
    /// The lower bound.
    pub bound_ns: u64,
}

/// One microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Width {
    /// How many documents it has; 0 if their lengths are not known.
    pub documents: u32,
    /// Their tokens.
    pub tokens: u64,
    /// The tokens of the longest.
    pub longest: u32,
    /// F, B and W on all stages.
    pub time_ns: u64,
    /// Attention within its documents, of that.
    pub attention_ns: u64,
}

/// The bytes of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankBytes {
    /// The layers of its stages by the model's own numbers, and what else they hold: `0-3, 28-31, embedding`.
    pub layers: String,
    /// Static bytes by kind, in the order of [`kinds_of_bytes`](crate::protocol::from_core::kinds_of_bytes).
    pub fixed: Vec<u64>,
    /// The peak of activations.
    pub activations: u64,
    /// The op at that peak.
    pub at: String,
    /// The peak of host memory.
    pub on_host: u64,
    /// The peak of all bytes.
    pub peak: u64,
    /// The memory limit.
    pub limit: Option<u64>,
}

/// The figures of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The objective: `makespan` or `longest_span`.
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
    /// Cost / bound − 1.
    pub gap: Option<f64>,
    /// With jitter: the cost that 1 step in 20 exceeds.
    pub late_ns: Option<u64>,
    /// What the framework that the spec names refuses.
    pub refusals: Vec<String>,
    /// The cost with communication: ranks wait for P2P transfers, with the lowering and the transport of the spec. None
    /// if that could hang.
    pub carried_ns: Option<u64>,
    /// The criterion of `best`, see [`judged_ns`](pipeplan_core::plan::planner::judged_ns).
    pub judged_ns: u64,
    /// The reason of the bound, as a sentence.
    pub binding: String,
    /// The whole training step; only for a model.
    pub step: Option<StepFigures>,
    /// Gradient sync and optimizer after the last op, by rank; empty if costs are typed.
    pub tails_ns: Vec<[u64; 2]>,
}

/// A whole training step, with gradient sync and optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepFigures {
    /// The step time.
    pub step_ns: u64,
    /// Tokens per second of all replicas.
    pub tokens_per_s: f64,
    /// Model FLOPs utilization.
    pub mfu: f64,
    /// The least and the most, as far as 8 of 10 published runs are from their plans; none with a measured profile.
    pub published_ns: Option<[u64; 2]>,
    /// The whole training, if the spec gives its tokens.
    pub training: Option<Training>,
}

/// One schedule of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name.
    pub schedule: String,
    /// The display name.
    pub title: String,
    /// Paper and section.
    pub source: String,
    /// Why an absent schedule is absent; for `best`, which schedule it is.
    pub reason: Option<String>,
    /// Its costs; none if it is absent.
    pub costs: Option<RowCosts>,
}

/// The costs of a schedule of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowCosts {
    /// End of the last op minus start of the first.
    pub makespan_ns: u64,
    /// The largest span of a rank.
    pub longest_span_ns: u64,
    /// Idle share under the objective.
    pub bubble_ratio: f64,
    /// The peak memory of the fullest rank.
    pub peak_bytes: u64,
    /// Cost / bound − 1.
    pub gap: Option<f64>,
    /// With jitter: the cost that 1 step in 20 exceeds.
    pub late_ns: Option<u64>,
    /// The cost with communication: ranks wait for P2P transfers, with the lowering and the transport of the spec. None
    /// if that could hang.
    pub carried_ns: Option<u64>,
    /// The criterion of `best`, see [`judged_ns`](pipeplan_core::plan::planner::judged_ns).
    pub judged_ns: u64,
    /// The whole training step; only for a model.
    pub step: Option<StepFigures>,
}
