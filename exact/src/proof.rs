//! The exact search behind a plan: a better plan, or how far none goes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use pipeplan_core::base::units::Nanos;
use pipeplan_core::bounds::lower_bound;
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner::{self, PlanError};
use pipeplan_core::problem::Schedule;
use pipeplan_core::schedule::BEST;
use pumpkin_core::{Duration, Instant};
use serde_json::{Value, json};

use crate::{Budget, Exact, Refused, Watched, solve_watched};

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

/// How long a search that is to end may take to do so: within one step the solver looks at no flag, and where it narrows
/// thousands of times in turn, a step takes up to a minute.
const GRACE: Duration = Duration::from_millis(500);

/// The longest silence before the watcher is asked again.
const LOOK: Duration = Duration::from_millis(100);

/// Searches exactly for a better plan of the same problem and placement, and tells `watch` how that goes, ten times a second
/// or more.
///
/// The solver has a thread of its own. Half a second after the end of the budget what is known by then is the answer; the
/// thread ends with the solver's next step.
///
/// # Errors
/// [`NoProof`] where the problem is too large, or no schedule fits its limit.
pub fn prove(plan: &Plan, budget: &Budget, watch: &mut dyn FnMut(&Watched)) -> Result<Proof, NoProof> {
    let cost = |plan: &Plan| plan.prediction.cost_ns(plan.problem.objective());
    let bound_ns = lower_bound(&plan.problem).value_ns;
    let exact = solve_beside(plan, bound_ns, budget, watch).map_err(NoProof::Refused)?;
    let better = match exact.schedule {
        Some(schedule) if exact.value_ns < cost(plan) => {
            Some(planner::replan(plan, BEST, schedule).map_err(NoProof::Found)?)
        }
        _ => None,
    };
    let value_ns = better.as_ref().map_or(cost(plan), cost);
    Ok(Proof { better, value_ns, lower_ns: exact.lower_ns })
}

/// What the solver's thread says.
enum Word {
    Goes { steps: u64, value_ns: Nanos, lower_ns: Nanos, better: Option<Schedule> },
    Ends(Result<Exact, Refused>),
}

/// As [`solve_watched`] from the plan's schedule, in a thread that is left behind where it does not end in time.
fn solve_beside(
    plan: &Plan,
    bound_ns: Nanos,
    budget: &Budget,
    watch: &mut dyn FnMut(&Watched),
) -> Result<Exact, Refused> {
    let stop = budget.stop.clone().unwrap_or_default();
    let until = budget.time.map(|time| Instant::now() + time);
    let (tell, words) = mpsc::channel();
    let (problem, schedule) = (plan.problem.clone(), plan.schedule.clone());
    let given = Budget { stop: Some(Arc::clone(&stop)), ..budget.clone() };
    // A word that nobody hears any more is no fault.
    let solver = thread::spawn(move || {
        let exact = solve_watched(&problem, Some(&schedule), bound_ns, &given, &mut |watched| {
            let Watched { steps, value_ns, lower_ns, better } = watched;
            let _ = tell.send(Word::Goes { steps, value_ns, lower_ns, better: better.cloned() });
        });
        let _ = tell.send(Word::Ends(exact));
    });
    let mut known = Exact { schedule: None, value_ns: Nanos::MAX, lower_ns: bound_ns, optimal: false };
    let mut done = 0;
    let mut ending: Option<Instant> = None;
    loop {
        match words.recv_timeout(LOOK) {
            Ok(Word::Ends(exact)) => return exact,
            Ok(Word::Goes { steps, value_ns, lower_ns, better }) => {
                watch(&Watched { steps, value_ns, lower_ns, better: better.as_ref() });
                done = steps;
                known = Exact { schedule: better.or(known.schedule), value_ns, lower_ns, optimal: false };
            }
            Err(RecvTimeoutError::Timeout) => {
                let Exact { value_ns, lower_ns, .. } = known;
                watch(&Watched { steps: done, value_ns, lower_ns, better: None });
            }
            Err(RecvTimeoutError::Disconnected) => match solver.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => return Ok(known),
            },
        }
        if stop.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until) {
            let since = *ending.get_or_insert_with(Instant::now);
            if since.elapsed() >= GRACE {
                stop.store(true, Ordering::Relaxed);
                if plan.problem.pairs_gain() {
                    // As `solve_watched` has it: without pairs in its model, it proves nothing about orders with them.
                    known.lower_ns = bound_ns;
                }
                return Ok(known);
            }
        }
    }
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
