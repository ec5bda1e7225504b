//! The exact search behind a plan on the page: a better plan, or a proof that there is none.
//!
//! It is a WebAssembly file of its own, since the solver is as large as the planner and few visits ask for a
//! proof. `prover.js` loads it in a worker of its own, which the page ends to stop a proof: so all that is found
//! is told at once.

use std::fmt;

use pipeplan_core::base::units::Nanos;
use pipeplan_core::plan::planner::{self, PlanError};
use pipeplan_core::plan::{Plan, PlanFileError};
use pipeplan_core::problem::Objective;
use pipeplan_exact::{Budget, Refused, solve_watched};

#[cfg(target_arch = "wasm32")]
mod exports;

/// What a plan's schedule is called that the exact search found: an order of its own, which no schedule's name gives again.
pub const FOUND: &str = "Exact search";

/// Where a proof stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Steps of the solver so far.
    pub steps: u64,
    /// What the best plan known costs under its objective.
    pub value_ns: Nanos,
    /// No plan of the same problem and placement costs less.
    pub lower_ns: Nanos,
    /// The file of a plan that costs less than all before it.
    pub better: Option<String>,
}

/// Why there is no proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoProof {
    /// The file is no plan.
    File(PlanFileError),
    /// The exact search does not take the problem.
    Refused(Refused),
    /// What the search found was not valid: it is not told as found.
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

/// Searches exactly for a plan that costs less than that in the file `text`, and tells `tell` of each and of how
/// it goes. The answer is the last word: where its two figures meet, no schedule of the placement costs less.
///
/// # Errors
/// [`NoProof`] where the file is no plan, or its problem too large.
pub fn prove(text: &str, budget: &Budget, tell: &mut dyn FnMut(&Word)) -> Result<Word, NoProof> {
    let plan = Plan::from_json(text).map_err(NoProof::File)?;
    let cost = |plan: &Plan| match plan.problem.objective() {
        Objective::Makespan => plan.prediction.makespan_ns,
        Objective::LongestSpan => plan.prediction.longest_span_ns,
    };
    let bound_ns = pipeplan_core::bounds::lower_bound(&plan.problem).value_ns;
    let mut last = Word { steps: 0, value_ns: cost(&plan), lower_ns: bound_ns, better: None };
    let mut wrong = None;
    let exact = solve_watched(&plan.problem, Some(&plan.schedule), bound_ns, budget, &mut |watched| {
        last = Word {
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
        None => Ok(Word { lower_ns: exact.lower_ns, better: None, ..last }),
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
