//! Suggestions as they travel: changes that need less memory or less time, layouts, sensitivity.

use serde::{Deserialize, Serialize};

use super::{RankBytes, StepFigures};

/// A schedule that does not fit, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfit {
    /// The schedule whose bytes these are: the one that was asked for, or the one that comes nearest.
    pub schedule: String,
    /// Its bytes by rank and kind.
    pub memory: Vec<RankBytes>,
    /// What helps, the best first: single changes, or combinations where none of them is enough.
    pub suggestions: Vec<SuggestionRow>,
}

/// What the memory limit costs, and what makes the step shorter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shorter {
    /// The step of the best schedule.
    pub step_ns: u64,
    /// What it would be without a limit.
    pub without_limit_ns: u64,
    /// What makes it shorter, the shortest first.
    pub suggestions: Vec<SuggestionRow>,
}

/// Changes of the spec that need less memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuggestionRow {
    /// Of each: the field's path, its value now, and the value to try.
    pub changes: Vec<[String; 3]>,
    /// How many times as many devices it takes.
    pub devices: u32,
    /// The most bytes of a rank then.
    pub peak: u64,
    /// Whether every rank then fits.
    pub fits: bool,
    /// Whether it is what fits with the shortest step, and where any does, on the same devices.
    pub cheapest: bool,
    /// What a step then takes.
    pub step_ns: u64,
}

/// The fastest ways to deal a model to devices, as far as they are known.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Layouts {
    /// The spec as it is, with its fastest schedule.
    pub given: Option<LayoutRow>,
    /// Why the spec as it is has no schedule.
    pub reason: Option<String>,
    /// The fastest first.
    pub rows: Vec<LayoutRow>,
    /// Layouts that are settled, of all.
    pub settled: u64,
    /// All layouts.
    pub all: u64,
    /// Those on which the best schedule was searched for.
    pub searched: u64,
    /// No more will come.
    pub finished: bool,
}

/// A layout with its fastest schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayoutRow {
    /// The spec that says it, as JSON.
    pub spec: String,
    /// Pipeline ranks, devices that share matrices, that hold parts of sequences, copies, and devices that experts are
    /// dealt to.
    pub degrees: [u32; 5],
    /// Microbatches of a copy, and sequences of each.
    pub microbatches: [u32; 2],
    /// The schedule as a person calls it, with its chunks.
    pub schedule: String,
    /// What layers compute again.
    pub recompute: String,
    /// The step.
    pub step: StepFigures,
    /// The most bytes that a rank holds.
    pub peak: u64,
}

/// What an order takes where something takes longer, or less.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SensitivityRows {
    /// What the order takes as planned.
    pub cost_ns: u64,
    /// How much longer or less, in thousandths.
    pub permille: u32,
    /// What changes, what the order takes where that takes longer, and where it takes less: of each kind those that matter
    /// most.
    pub rows: Vec<(String, u64, u64)>,
    /// Changes that are not among them.
    pub others: usize,
}
