//! Sensitivity: how the step time changes where a rank, a stage, an op kind or the P2P transfers take longer or less, in the
//! present order and in an order that is planned again for the change.
//!
//! An order rests on times that nobody knows exactly. Where one rank alone decides, a tenth more work there is a tenth more step
//! time, and a layer that moves away from it saves time. Where a rank is idle anyway, neither matters. The figures are
//! simulations of the same order and exact for changes of that size: the derivative that a longest path gives holds only until
//! another path is the longest.
//!
//! Planning again says how much of a loss a schedule can make good, such as around a slow link, or how much of a gain it can
//! use.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::cmp::Reverse;

use serde_json::{Value, json};

use crate::base::fields::Fault;
use crate::base::units::Nanos;
use crate::plan::planner::{self, PlanError};
use crate::problem::{Problem, Schedule};
use crate::search::{Effort, Flow, Progress};
use crate::spec::Spec;

mod change;

pub use change::{What, changed};

use change::{changes, cost_of};

/// The largest change, in thousandths: to ten times as much. The smallest is to nothing.
pub const MAX_PERMILLE: u32 = 9_000;

/// What one change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// What changes.
    pub what: What,
    /// The cost of the plan's order with the increase, by the problem's objective. For memory: the present cost.
    pub longer_ns: Nanos,
    /// The cost of the plan's order with the decrease.
    pub less_ns: Nanos,
    /// The same two, planned again, where that was done.
    pub anew: Option<Anew>,
}

/// A change and its opposite, planned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anew {
    /// The cost with the increase, or with more memory; none where there is no such plan.
    pub longer_ns: Option<Nanos>,
    /// The cost with the decrease, or with less memory.
    pub less_ns: Option<Nanos>,
}

/// The sensitivity of a plan's time, found change by change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sensitivity {
    /// How large the changes are, in thousandths.
    pub permille: u32,
    /// The cost of the order as planned, by the problem's objective.
    pub cost_ns: Nanos,
    /// The cost of the best schedule, where a change has been planned again.
    pub best_ns: Option<Nanos>,
    /// The effects found, by kind of change; within a kind, the most costly first.
    pub effects: Vec<Effect>,
    /// The changes that remain, the last one next.
    open: Vec<What>,
}

impl Sensitivity {
    /// Of `schedule`, which is one of `problem`, to changes of `permille` thousandths: to be found by
    /// [`step`](Sensitivity::step). A decrease has the same size, down to zero.
    ///
    /// # Errors
    /// A change of nothing or of more than [`MAX_PERMILLE`], or one to times that are too long.
    pub fn new(problem: &Problem, schedule: &Schedule, permille: u32) -> Result<Sensitivity, Fault> {
        // No other change takes longer than one of these.
        let largest = [What::Everything, What::Messages];
        let by = i64::from(permille);
        let accepted = match permille {
            1..=MAX_PERMILLE if largest.iter().all(|what| changed(problem, *what, by).is_some()) => None,
            1..=MAX_PERMILLE => Some("a change that keeps all times within the limits of a problem".to_string()),
            _ => Some(format!("from 1 to {MAX_PERMILLE} thousandths")),
        };
        if let Some(accepted) = accepted {
            return Err(Fault::new("change", format!("{permille} thousandths"), accepted));
        }
        let mut open = changes(problem, schedule);
        open.reverse();
        let cost_ns = cost_of(problem, schedule, What::Everything, 0);
        Ok(Sensitivity { permille, cost_ns, best_ns: None, effects: Vec::new(), open })
    }

    /// Finds the effect of one more change, by two simulations of the order; says whether there was one.
    pub fn step(&mut self, problem: &Problem, schedule: &Schedule) -> bool {
        let Some(what) = self.open.pop() else { return false };
        let cost = |by: i64| cost_of(problem, schedule, what, by);
        let by = i64::from(self.permille);
        self.effects.push(Effect { what, longer_ns: cost(by), less_ns: cost(-by), anew: None });
        if self.open.is_empty() {
            self.effects
                .sort_by_key(|effect| (effect.what.kind().1, Reverse(effect.longer_ns), effect.less_ns, effect.what));
        }
        true
    }

    /// The number of changes that remain.
    pub fn left(&self) -> usize {
        self.open.len()
    }

    /// What has been found, by kind.
    pub fn kinds(&self) -> impl Iterator<Item = &[Effect]> {
        self.effects.chunk_by(|one, next| one.what.kind() == next.what.kind())
    }

    /// The positions of `effects`, the most important first: memory, whose effect the order does not show, then the
    /// most costly.
    pub fn most_first(&self) -> Vec<usize> {
        let mut at: Vec<usize> = (0..self.effects.len()).collect();
        at.sort_by_key(|at| {
            let Effect { what, longer_ns, .. } = self.effects[*at];
            Reverse(if what == What::Memory { Nanos::MAX } else { longer_ns })
        });
        at
    }

    /// Plans the change of `effects[at]` again, and its opposite: with the best of all schedules and the search on the
    /// same placement, or with the plan's order where that is shorter. `best_ns` is the best of the unchanged problem.
    ///
    /// # Errors
    /// [`PlanError`] where the unchanged problem has no schedule.
    pub fn plan_anew(
        &mut self,
        (problem, schedule): (&Problem, &Schedule),
        at: usize,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<(), PlanError> {
        let mut best = |problem: &Problem| {
            let spec = Spec::typed(problem.statement());
            planner::best(&spec, effort, observer).map(|answer| answer.cost_ns())
        };
        if self.best_ns.is_none() {
            self.best_ns = Some(best(problem)?.min(self.cost_ns));
        }
        let Some(effect) = self.effects.get_mut(at) else { return Ok(()) };
        let mut anew = |by: i64, kept_ns: Nanos| {
            let problem = changed(problem, effect.what, by)?;
            // The plan's order also solves the changed problem, unless it needs more memory than there is.
            let fits = (0..problem.ranks()).all(|rank| {
                let peak = crate::simulate::timeline::schedule_peak_bytes(&problem, schedule, rank);
                problem.limit_bytes(rank).is_none_or(|limit| peak <= limit)
            });
            let kept = fits.then_some(kept_ns);
            match best(&problem) {
                Ok(found) => Some(kept.map_or(found, |kept| kept.min(found))),
                Err(_) => kept,
            }
        };
        let by = i64::from(self.permille);
        let (longer_ns, less_ns) = (anew(by, effect.longer_ns), anew(-by, effect.less_ns));
        effect.anew = Some(Anew { longer_ns, less_ns });
        Ok(())
    }

    /// For programs: `pipeplan sensitivity --json`.
    pub fn to_value(&self) -> Value {
        let effect = |effect: &Effect| {
            let mut value = json!({ "what": effect.what.kind().0 });
            match effect.what {
                What::Job(job) => value["job"] = json!(job.text()),
                What::Rank(rank) => value["rank"] = json!(rank),
                What::Stage(stage) => value["stage"] = json!(stage),
                What::Link(from, to) => value["ranks"] = json!([from, to]),
                What::Everything | What::Messages | What::Memory => {}
            }
            value["longer_ns"] = json!(effect.longer_ns);
            value["less_ns"] = json!(effect.less_ns);
            if let Some(anew) = effect.anew {
                value["anew"] = json!({ "longer_ns": anew.longer_ns, "less_ns": anew.less_ns });
            }
            value
        };
        let mut value = json!({
            "change_permille": self.permille,
            "cost_ns": self.cost_ns,
            "complete": self.open.is_empty(),
            "effects": self.effects.iter().map(effect).collect::<Vec<_>>(),
        });
        if let Some(best_ns) = self.best_ns {
            value["best_ns"] = json!(best_ns);
        }
        value
    }
}

#[cfg(test)]
mod tests;
