//! The plan: a spec, the problem that it became, the order that solves it, what each rank executes, and
//! what that is predicted to cost.

use alloc::string::String;
use alloc::vec::Vec;

use crate::bounds;
use crate::problem::Problem;
use crate::program::Program;
use crate::schedule::Schedule;
use crate::spec::Spec;
use crate::timeline::Timeline;
use crate::units::{Bytes, Nanos};

/// A plan for one training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What was asked for.
    pub spec: Spec,
    /// What had to be scheduled.
    pub problem: Problem,
    /// The schedule's name; for `best`, the name of the one that won.
    pub schedule_name: String,
    /// The order of compute on each rank.
    pub schedule: Schedule,
    /// What each rank executes, transfers and optimizer included.
    pub program: Program,
    /// What the plan costs if every op takes the time that the problem says.
    pub prediction: Prediction,
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
    /// What `timeline` costs.
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
