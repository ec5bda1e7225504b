//! An exact search behind a plan: a better one, or a proof that there is none.

use std::time::Duration;

use indicatif::ProgressBar;
use pipeplan_core::plan::Plan;
use pipeplan_core::planner::{self, BEST};
use pipeplan_core::problem::Objective;
use pipeplan_core::units::Nanos;
use pipeplan_exact::{Budget, solve};

use super::fail::Failure;
use super::{human, interrupt};

/// What an exact search says of a plan.
pub struct Proved {
    /// A plan that costs less, if one was found.
    pub better: Option<Plan>,
    /// What the best known plan costs.
    value_ns: Nanos,
    /// No plan of this problem and placement costs less.
    lower_ns: Nanos,
}

/// Searches exactly for a better plan of the same problem and placement, for so many seconds at most.
pub fn prove(plan: &Plan, seconds: f64) -> Result<Proved, Failure> {
    if !(seconds > 0.0 && seconds <= 86_400.0) {
        return Err(Failure::input(format!(
            "--prove takes seconds above 0 and up to 86400, and {seconds} was given"
        )));
    }
    let stop = interrupt::flag();
    let bar = ProgressBar::new_spinner().with_message("searching exactly; Ctrl-C takes what is proved so far");
    bar.enable_steady_tick(Duration::from_millis(200));
    let budget = Budget { stop: Some(stop.shared()), ..Budget::seconds(seconds) };
    let exact = solve(&plan.problem, Some(&plan.schedule), &budget);
    bar.finish_and_clear();
    let exact = exact.map_err(Failure::input)?;
    let cost = |plan: &Plan| match plan.problem.objective() {
        Objective::Makespan => plan.prediction.makespan_ns,
        Objective::LongestSpan => plan.prediction.longest_span_ns,
    };
    let found = match exact.schedule {
        Some(schedule) if exact.value_ns < cost(plan) => {
            Some(planner::replan(plan, BEST, schedule).map_err(Failure::work)?)
        }
        _ => None,
    };
    let value_ns = found.as_ref().map_or(cost(plan), cost);
    Ok(Proved { better: found, value_ns, lower_ns: exact.lower_ns })
}

impl Proved {
    /// What was proved, as a line of a summary.
    pub fn sentence(&self) -> String {
        if self.lower_ns >= self.value_ns {
            return "proved        no schedule of this placement costs less\n".to_owned();
        }
        let gap = self.value_ns as f64 / self.lower_ns.max(1) as f64 - 1.0;
        format!(
            "proved        no schedule of this placement costs less than {}: at most {:.2} % less\n",
            human::duration(self.lower_ns),
            100.0 * gap
        )
    }
}
