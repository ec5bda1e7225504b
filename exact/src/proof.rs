//! The exact search behind a plan: a better plan, or how far none goes.

use std::fmt;

use pipeplan_core::base::units::Nanos;
use pipeplan_core::bounds::lower_bound;
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner::{self, PlanError};
use pipeplan_core::schedule::BEST;
use serde_json::{Value, json};

use crate::{Budget, Refused, Watched, solve_watched};

/// What an exact search says of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Proof {
    /// A plan that costs less, if one was found.
    pub better: Option<Plan>,
    /// What that plan costs, or else the one that was given.
    pub value_ns: Nanos,
    /// No plan of this problem and placement costs less.
    pub lower_ns: Nanos,
}

/// Why there is no proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoProof {
    /// The exact search does not take the problem.
    Refused(Refused),
    /// What the search found was not valid: it is not told as found.
    Found(PlanError),
}

impl fmt::Display for NoProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoProof::Refused(refused) => refused.fmt(f),
            NoProof::Found(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NoProof {}

/// Searches exactly for a better plan of the same problem and placement, and tells `watch` how that goes.
///
/// # Errors
/// [`NoProof`] where the problem is too large, or no schedule fits its limit.
pub fn prove(plan: &Plan, budget: &Budget, watch: &mut dyn FnMut(&Watched)) -> Result<Proof, NoProof> {
    let cost = |plan: &Plan| plan.prediction.cost_ns(plan.problem.objective());
    let bound_ns = lower_bound(&plan.problem).value_ns;
    let exact = solve_watched(&plan.problem, Some(&plan.schedule), bound_ns, budget, &mut |watched| watch(&watched));
    let exact = exact.map_err(NoProof::Refused)?;
    let better = match exact.schedule {
        Some(schedule) if exact.value_ns < cost(plan) => {
            Some(planner::replan(plan, BEST, schedule).map_err(NoProof::Found)?)
        }
        _ => None,
    };
    let value_ns = better.as_ref().map_or(cost(plan), cost);
    Ok(Proof { better, value_ns, lower_ns: exact.lower_ns })
}

impl Proof {
    /// For programs: a file of its own, since a plan file says only what everybody can work out again. `plan` is the one that
    /// was given, or the better one.
    pub fn to_value(&self, plan: &Plan) -> Value {
        let cost_ns = plan.prediction.cost_ns(plan.problem.objective());
        json!({
            "format": "pipeplan-proof",
            "version": 1,
            "plan": plan.digest(),
            "objective": plan.problem.objective().name(),
            "cost_ns": cost_ns,
            "found_ns": self.value_ns,
            "lower_ns": self.lower_ns,
            "optimal": self.lower_ns >= cost_ns,
        })
    }
}
