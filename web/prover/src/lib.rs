//! The exact search for a plan on the page: it finds a better plan, or proves that there is none.
//!
//! It is a separate WebAssembly file: the solver is as large as the planner, and few visits ask for a proof.
//! `prover.js` loads it in a separate worker. The page ends that worker to stop a proof, so each result is reported
//! at once.

use std::fmt;

use pipeplan_core::base::units::Nanos;
use pipeplan_core::plan::planner::{self, PlanError};
use pipeplan_core::plan::{Plan, PlanFileError};
use pipeplan_core::problem::Objective;
use pipeplan_exact::{Budget, Refused, solve_watched};

/// The schedule name of a plan that the exact search found. No published schedule gives it again.
pub const FOUND: &str = "Exact search";

/// The progress of a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps of the solver so far.
    pub steps: u64,
    /// The cost of the best known plan, by its objective.
    pub value_ns: Nanos,
    /// No plan of the same problem and placement costs less.
    pub lower_ns: Nanos,
    /// The file of a plan that costs less than all before.
    pub better: Option<String>,
}

/// Why there is no proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoProof {
    /// The file is not a plan.
    File(PlanFileError),
    /// The exact search does not take the problem.
    Refused(Refused),
    /// The search found an invalid schedule, which is not reported as found.
    Found(PlanError),
}

impl fmt::Display for NoProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoProof::File(error) => error.fmt(f),
            NoProof::Refused(refused) => refused.fmt(f),
            NoProof::Found(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NoProof {}

/// Runs an exact search for a plan that costs less than the one in the file `text`. Calls `tell` for progress and for
/// each better plan. Returns the last progress: if cost and lower bound are equal, no schedule on the placement costs
/// less.
///
/// # Errors
/// [`NoProof`] if the file is not a plan, or if its problem is too large.
pub fn prove(text: &str, budget: &Budget, tell: &mut dyn FnMut(&Progress)) -> Result<Progress, NoProof> {
    let plan = Plan::from_json(text).map_err(NoProof::File)?;
    let cost = |plan: &Plan| match plan.problem.objective() {
        Objective::Makespan => plan.prediction.makespan_ns,
        Objective::LongestSpan => plan.prediction.longest_span_ns,
    };
    let bound_ns = pipeplan_core::bounds::lower_bound(&plan.problem).value_ns;
    let mut last = Progress { steps: 0, value_ns: cost(&plan), lower_ns: bound_ns, better: None };
    let mut wrong = None;
    let exact = solve_watched(&plan.problem, Some(&plan.schedule), bound_ns, budget, &mut |watched| {
        last = Progress {
            steps: watched.steps,
            value_ns: last.value_ns,
            lower_ns: watched.lower_ns.max(last.lower_ns),
            better: None,
        };
        if let Some(schedule) = watched.better.filter(|_| watched.value_ns < last.value_ns) {
            match planner::replan(&plan, FOUND, schedule.clone()) {
                Ok(better) => (last.value_ns, last.better) = (cost(&better), Some(better.to_json())),
                Err(error) => wrong = Some(error),
            }
        }
        tell(&last);
    });
    let exact = exact.map_err(NoProof::Refused)?;
    match wrong {
        Some(error) => Err(NoProof::Found(error)),
        None => Ok(Progress { lower_ns: exact.lower_ns, better: None, ..last }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeplan_core::spec::Spec;

    fn plan(schedule: &str, limit: u64) -> String {
        let problem = format!(
            r#"{{ "ranks": 2, "microbatches": 4, "limit_bytes": {limit}, "stages": {{ "forward_ns": 2, "backward_input_ns": 3,
            "backward_weight_ns": 2, "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 }} }}"#
        );
        planner::plan(&Spec::read(&problem).unwrap(), schedule).unwrap().to_json()
    }

    #[test]
    fn what_is_found_is_told_and_what_is_told_is_a_better_plan() {
        let before = plan("gpipe", 8);
        let mut better = None;
        let mut told = 0;
        let last = prove(&before, &Budget::default(), &mut |word| {
            told += 1;
            assert!(word.lower_ns <= word.value_ns);
            better = word.better.clone().or(better.take());
        });
        let last = last.unwrap();
        // (M + P − 1)(F + B) + W = 27, and the work of a rank after the way to it 2 + 28 = 30: reached.
        assert_eq!((last.value_ns, last.lower_ns), (30, 30));
        assert!(told > 0);
        let better = Plan::from_json(&better.unwrap()).unwrap();
        assert_eq!((better.prediction.makespan_ns, better.schedule_name.as_str()), (30, FOUND));
    }

    #[test]
    fn what_is_the_best_is_proved_without_a_search() {
        let last = prove(&plan("best", 8), &Budget::default(), &mut |_| {}).unwrap();
        assert_eq!((last.steps, last.value_ns, last.lower_ns), (0, 30, 30));
    }

    #[test]
    fn a_problem_that_is_too_large_is_refused() {
        let spec = r#"{ "ranks": 8, "microbatches": 200, "stages": { "forward_ns": 2, "backward_input_ns": 3 } }"#;
        let text = planner::plan(&Spec::read(spec).unwrap(), "1f1b").unwrap().to_json();
        let refused = prove(&text, &Budget::default(), &mut |_| {}).unwrap_err();
        assert!(refused.to_string().contains("4800 ops"), "{refused}");
        assert!(matches!(prove("{}", &Budget::default(), &mut |_| {}), Err(NoProof::File(_))));
    }
}
