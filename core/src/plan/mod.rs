//! The plan: a spec, the problem that it became, the order that solves it, what each rank executes, and
//! what that is predicted to cost.
//!
//! - In: a spec, and the name of a schedule or `best`.
//! - Out: the versioned plan file with its prediction, and refusals with their reason.
//! - Knows: every room that makes or judges a plan. Nothing of other programs' files.
//!
//! # The file
//! Versioned JSON; its schema is `core/schema/plan.schema.json`.
//!
//! | Field | What |
//! |---|---|
//! | `format`, `version` | `pipeplan-plan` and 1 |
//! | `spec` | the [spec](crate::spec) with every default written out |
//! | `problem` | the scheduling problem in the form of a [problem file](crate::problem), its placement fixed |
//! | `schedule` | `name`; `rows`: one string a rank of ops in the form `3BW12`; and, where some run as [pairs](crate::problem::Schedule::pairs), `pairs` |
//! | `program` | `rows`: one string a rank of what it executes, transfers and optimizer included |
//! | `ends` | of a model: what ends a step, see [`StepEpilogue`]; by rank `reduce_ns` and `optimizer_ns`, by stage `reduce_each_ns` and, where collectives overlap with ops, `overlapped_ns` |
//! | `packing` | of documents that differ between data parallel replicas: `replicas`, of each what its microbatches take ([`Replica`]); and what packings cost ([`PackingFigures`]) |
//! | `prediction` | whole numbers that follow from `problem` and `schedule`; see [`Prediction`] |
//! | `digest` | `sha256:` and the hash of the file's [canonical](crate::base::canonical) text without this field |
//!
//! A file comes from anywhere. Reading it bounds every size, checks the schedule and the program against the
//! problem, and works the prediction out again: a file that says something else is refused. What it does not
//! work out again are the costs of a model: they belong to the planner, or the measurement, that made the
//! plan.

mod checked;
mod figures;
mod file;
mod holders;
mod judged;
mod microbatches;
mod packing;
pub mod planner;
#[cfg(test)]
mod tests;
pub mod verdict;

use alloc::string::String;
use alloc::vec::Vec;

pub use checked::{Checked, TRANSPORTS};
pub use file::{MAX_FILE_BYTES, PlanFileError, VERSION};
pub use holders::{StageHolder, holders, holding_of_rank, layers_of_rank, written as written_layers};

pub use judged::Replica;
pub use microbatches::{Fill, Microbatch};
pub use packing::PackingFigures;

use crate::base::units::{Bytes, Nanos};
use crate::bounds;
use crate::estimate::derive::derive;
use crate::estimate::pass_reports::PassReports;
use crate::estimate::step::StepEpilogue;
use crate::problem::Schedule;
use crate::problem::{Objective, Problem};
use crate::program::Program;
use crate::simulate::timeline::Timeline;
use crate::simulate::{Deadlock, simulate};
use crate::spec::{Spec, Work};

/// The JSON Schema of a plan file, version 1.
pub const SCHEMA: &str = include_str!("../../schema/plan.schema.json");

/// A plan for one training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The spec.
    pub spec: Spec,
    /// The problem.
    pub problem: Problem,
    /// The schedule's name; for `best`, the name of the one that won.
    pub schedule_name: String,
    /// The order of compute on each rank.
    pub schedule: Schedule,
    /// What each rank executes, transfers and optimizer included.
    pub program: Program,
    /// The step epilogue, with the times of the planner that made the plan; none where costs are typed, and in files of
    /// earlier planners.
    pub epilogue: Option<StepEpilogue>,
    /// What the plan costs if every op takes the time that the problem says.
    pub prediction: Prediction,
    /// The data parallel replicas, where their documents differ: the problem is that of the first, the slowest. In `training`
    /// of the spec are the documents of each. All run the same op lists.
    pub replicas: Vec<Replica>,
    /// What packings of the documents cost, where the planner has packed them.
    pub packing: Option<PackingFigures>,
}

impl Plan {
    /// When each op runs if every op takes the time that the problem says.
    ///
    /// # Errors
    /// [`Deadlock`] where the order cannot be run: never for a plan that the planner made or that was read.
    pub fn timeline(&self) -> Result<Timeline, Deadlock> {
        simulate(&self.problem, &self.schedule)
    }

    /// The pass reports of its stages, where its spec is of a model.
    pub fn reports(&self) -> Option<PassReports> {
        let Work::Model(work) = &self.spec.work else { return None };
        let derived = derive(work, self.problem.placement().clone(), self.problem.chunks()).ok()?;
        Some(PassReports::of(work, &derived, None, |_| true))
    }
}

/// The predicted cost of a plan, in whole numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// End of the last op minus start of the first, over all ranks.
    pub makespan_ns: Nanos,
    /// The largest span of a rank.
    pub longest_span_ns: Nanos,
    /// Time in which each rank computes.
    pub busy_ns: Vec<Nanos>,
    /// Most bytes each rank holds at once, static bytes included.
    pub peak_bytes: Vec<Bytes>,
    /// No valid schedule of this problem costs less, by its objective.
    pub bound_ns: Nanos,
}

impl Prediction {
    /// The figure that judges the plan.
    pub fn cost_ns(&self, objective: Objective) -> Nanos {
        match objective {
            Objective::Makespan => self.makespan_ns,
            Objective::LongestSpan => self.longest_span_ns,
        }
    }

    /// The cost of `timeline`.
    pub fn of(problem: &Problem, timeline: &Timeline) -> Prediction {
        Prediction {
            makespan_ns: timeline.makespan_ns(),
            longest_span_ns: timeline.longest_span_ns(),
            busy_ns: (0..problem.ranks()).map(|rank| timeline.busy_ns(rank)).collect(),
            peak_bytes: (0..problem.ranks()).map(|rank| timeline.peak_bytes(problem, rank)).collect(),
            bound_ns: bounds::lower_bound(problem).value_ns,
        }
    }
}
