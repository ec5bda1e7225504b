//! Suggestions as they travel: changes that need less memory or less time, layouts, sensitivity.

use serde::{Deserialize, Serialize};

use super::{RankBytes, StepFigures};

/// A schedule that does not fit, with suggestions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfit {
    /// The schedule of these bytes: the requested one, or the one that comes nearest.
    pub schedule: String,
    /// Its bytes by rank and kind.
    pub memory: Vec<RankBytes>,
    /// Suggestions, the best first: single changes, or combinations if no single change is enough.
    pub suggestions: Vec<SuggestionRow>,
}

/// The cost of the memory limit, and suggestions that make the step shorter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shorter {
    /// The step of the best schedule.
    pub step_ns: u64,
    /// The step without a limit.
    pub without_limit_ns: u64,
    /// Suggestions that make the step shorter, the shortest step first.
    pub suggestions: Vec<SuggestionRow>,
}

/// Changes of the spec that need less memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuggestionRow {
    /// Of each change: the path of the field, its value and the value to try.
    pub changes: Vec<[String; 3]>,
    /// The factor on the number of devices.
    pub devices: u32,
    /// The peak memory of a rank with the changes.
    pub peak: u64,
    /// Whether every rank fits with the changes.
    pub fits: bool,
    /// Whether it fits with the shortest step, on the same devices if any suggestion does.
    pub cheapest: bool,
    /// The step time with the changes.
    pub step_ns: u64,
    /// The MFU with the changes, in hundredths of a percent; none if it is unknown.
    pub mfu_e4: Option<u32>,
}

/// The fastest layouts of a model on devices, so far.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Layouts {
    /// The given spec, with its fastest schedule.
    pub given: Option<LayoutRow>,
    /// Why the given spec has no schedule.
    pub reason: Option<String>,
    /// The fastest first.
    pub rows: Vec<LayoutRow>,
    /// Evaluated layouts.
    pub settled: u64,
    /// All layouts.
    pub all: u64,
    /// Layouts with a search for the best schedule.
    pub searched: u64,
    /// No more will come.
    pub finished: bool,
}

/// The layout of a form whose degrees follow, so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundLayout {
    /// The spec of the layout, as JSON; none if there is none.
    pub spec: Option<String>,
    /// Why there is none.
    pub reason: String,
    /// A change with which there is one: the field and its value. The value is empty for a field that is not pinned any more; no
    /// field: none is pinned.
    pub next: Option<[String; 2]>,
    /// No better one will come.
    pub finished: bool,
}

/// A layout with its fastest schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayoutRow {
    /// The spec of the layout, as JSON.
    pub spec: String,
    /// PP, TP, CP, DP and EP.
    pub degrees: [u32; 5],
    /// Microbatches per replica, and the micro-batch size.
    pub microbatches: [u32; 2],
    /// The display name of the schedule, with its stages per rank.
    pub schedule: String,
    /// What layers recompute.
    pub recompute: String,
    /// The step.
    pub step: StepFigures,
    /// The peak memory of the fullest rank.
    pub peak: u64,
}

/// The cost of a schedule when an item takes more or less time.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SensitivityRows {
    /// The planned cost.
    pub cost_ns: u64,
    /// The size of a change, in thousandths.
    pub permille: u32,
    /// The item, the cost if it takes longer, and the cost if it takes less. Of each kind, the items with the largest
    /// effects.
    pub rows: Vec<(String, u64, u64)>,
    /// Number of other items.
    pub others: usize,
}
