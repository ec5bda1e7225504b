//! The best schedule for a problem and a memory limit.

use alloc::vec::Vec;
use core::fmt;

use crate::bounds::lower_bound;
use crate::fields::Fault;
use crate::problem::{Problem, Statement};
use crate::schedule::Schedule;
use crate::units::{Bytes, Nanos};

mod drive;
mod eval;
mod flat;
mod improve;
mod list;
mod policies;
mod random;
mod steady;

use drive::Search;
use eval::Cost;
use flat::Flat;

const SIZE_EFFORT: u64 = 200;
const MOST_SIZE_EFFORT: u64 = 30_000_000;

/// How much work a search may do, in ops run through its simulator: the core has no clock. One unit is some
/// ten to fifty nanoseconds of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort(pub u64);

impl Default for Effort {
    fn default() -> Effort {
        Effort(2_000_000)
    }
}

/// Where a search stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Ops run so far, of what [`Effort`] allows.
    pub ops: u64,
    /// The objective of the best schedule so far.
    pub cost_ns: Nanos,
    /// What no schedule goes under.
    pub bound_ns: Nanos,
}

/// What an observer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Answer with the best so far.
    Stop,
}

/// The best schedule that a search has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The schedule.
    pub schedule: Schedule,
    /// Its objective.
    pub cost_ns: Nanos,
    /// What no schedule of the problem goes under.
    pub bound_ns: Nanos,
    /// How it was found, for people.
    pub origin: &'static str,
    /// Ops run for it.
    pub ops: u64,
}

/// A rank that cannot run even one microbatch at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    /// The rank.
    pub rank: usize,
    /// The least limit with which it can.
    pub least_bytes: Bytes,
    /// Its limit.
    pub limit_bytes: Bytes,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} needs at least {} bytes to run one microbatch at a time, and its limit is {}; raise the limit, \
             or give the rank less to hold",
            self.rank, self.least_bytes, self.limit_bytes
        )
    }
}

impl core::error::Error for Infeasible {}

/// The best schedule for `problem` within `effort`.
///
/// `observer` is called after every improvement and now and then between; what it answers stops the search.
///
/// # Errors
/// [`Infeasible`] where the limit of a rank is below the least with which any schedule exists.
pub fn best(
    problem: &Problem,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Found, Infeasible> {
    let flat = Flat::new(problem);
    for rank in 0..flat.ranks {
        if flat.least(rank) > flat.limit[rank] {
            return Err(Infeasible {
                rank,
                least_bytes: problem.limit_bytes(rank).unwrap_or(0) + (flat.least(rank) - flat.limit[rank]) as u64,
                limit_bytes: problem.limit_bytes(rank).unwrap_or(0),
            });
        }
    }
    let bound_ns = lower_bound(problem).value_ns;
    // Large schedules need some effort for their size alone: to be built and run a few hundred times.
    let for_size = (SIZE_EFFORT * flat.ops as u64).min(MOST_SIZE_EFFORT);
    let mut search = Search::new(problem, bound_ns, effort.0.saturating_add(for_size), observer);
    search.run(problem);
    let ops = search.ops();
    // The list scheduler always ends, so there is always an answer; an empty one is left to `check`.
    let (rows, cost, origin) = search.best.take().unwrap_or((Vec::new(), Cost::WORST, "none"));
    Ok(Found { schedule: search.flat().schedule(&rows), cost_ns: cost.objective, bound_ns, origin, ops })
}

/// The best schedule over all placements that `statement` leaves open, with the problem that it solves.
///
/// The effort is for each placement.
///
/// # Errors
/// The faults of a statement that cannot be placed, or [`Infeasible`] where no placement fits in memory.
pub fn best_of(
    statement: &Statement,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<(Problem, Found), NoAnswer> {
    let mut best: Option<(Problem, Found)> = None;
    let mut why: Option<NoAnswer> = None;
    let mut stopped = false;
    for placement in statement.placements() {
        if stopped && best.is_some() {
            break;
        }
        let problem = match statement.problem(placement) {
            Ok(problem) => problem,
            Err(fault) => {
                why.get_or_insert(NoAnswer::Fault(fault));
                continue;
            }
        };
        let found = self::best(&problem, effort, &mut |progress| {
            let flow = observer(progress);
            stopped |= flow == Flow::Stop;
            flow
        });
        match found {
            Ok(found) if best.as_ref().is_none_or(|(_, best)| found.cost_ns < best.cost_ns) => {
                best = Some((problem, found));
            }
            Ok(_) => {}
            Err(infeasible) => why = Some(NoAnswer::Infeasible(infeasible)),
        }
    }
    best.ok_or_else(|| why.unwrap_or_else(|| NoAnswer::Fault(Fault::new("placement", "nothing", "a placement"))))
}

/// Why a statement has no schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It cannot be placed.
    Fault(Fault),
    /// A rank has too little memory under every placement.
    Infeasible(Infeasible),
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoAnswer::Fault(fault) => fault.fmt(f),
            NoAnswer::Infeasible(infeasible) => infeasible.fmt(f),
        }
    }
}

impl core::error::Error for NoAnswer {}

#[cfg(test)]
mod tests;
