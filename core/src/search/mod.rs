//! The best schedule for a problem and a memory limit.
//!
//! - In: a [`Problem`], a limit per rank, an effort in simulated ops.
//! - Out: the best [`Schedule`] found, or the least memory at which one exists.
//! - Knows: problems, published schedules, the simulator, the bound. No models, no clock.
//!
//! Published planners each follow one rule. This search tries many rules, and improves their schedules:
//!
//! | File | Method |
//! |---|---|
//! | `one_limit` | one search at one memory limit: orders of F, B and W, then fused backwards and overlapped pairs |
//! | `portfolio` | which method runs when, and for how long (algorithm portfolio: Huberman, Lukose and Hogg, Science 275, 1997) |
//! | `list` | list scheduling driven by events (Graham, 1969), which memory never stalls |
//! | `bankers` | whether a rank that takes memory now can still finish what it has begun (banker's algorithm: Dijkstra, EWD 108) |
//! | `policies` | parameters of list scheduling, with the published schedules among them, and a local search over them |
//! | `zbv` | the rule of ZB-V: waves, then rounds, and W in the gaps (arXiv:2401.10241) |
//! | `zb_auto` | the rule of zero-bubble planners on a linear pipeline (ZB-auto, arXiv:2401.10241): one round for each microbatch |
//! | `grouped` | interleaving in groups of fewer microbatches than ranks, for less memory (GIS, arXiv:2503.01328 §3) |
//! | `building_blocks` | building blocks: the ops of one microbatch in slots, repeated (arXiv:2405.15362) |
//! | `v_blocks` | building blocks of a V, as the public controllable-memory search makes and repairs them |
//! | `beam` | beam search (Lowerre, 1976) over orders that grow op by op, for small problems |
//! | `tabu` | tabu search along the critical path (Nowicki and Smutnicki, 1996) |
//! | `reinsertion` | large neighbourhood search (Shaw, 1998): removes whole microbatches from an order and inserts them again |
//! | `perturbation` | moves some ops of an order sooner or later, and gives the result to list scheduling (random keys: Bean, 1994) |
//! | `acceptance` | which order `reinsertion` and `perturbation` continue from |
//! | `fused_backward` | keeps a backward whole (BW), where that takes less time or memory than B and W |
//! | `overlapped_pairs` | runs forwards and backwards as pairs, where the problem lets one hide behind the other |
//! | `host_copies` | copies of activations to the host, so that an order which holds more fits the limit |
//! | `orders` | the order in which microbatches enter, where they differ, together with the schedule |
//! | `packing` | which documents form which microbatch of which data parallel replica, in which order, for a schedule |
//! | `steady_state` | repeats the steady state of a schedule, so that many microbatches cost little more than few |
//! | `limit_tree` | which limits are searched, so that more memory never costs more time |
//! | `flat_problem`, `makespan`, `longest_paths` | the inner loop: the problem in flat arrays, the time of an order, its longest paths from move to move |
//! | [`frontier()`] | step time against memory, from the least memory to all |
//!
//! Every published schedule that exists for a problem and fits its limit is a candidate, so an answer is never worse than those.
//! A schedule that meets the lower bound ends the search. Effort is counted in ops run, not in time, so the same problem and
//! effort give the same answer everywhere.

use alloc::vec::Vec;
use core::fmt;

use flat_problem::{Flat, Rows};
use makespan::Eval;

use crate::base::fields::Fault;
use crate::base::units::{Bytes, Nanos};
use crate::bounds::lower_bound;
use crate::problem::placement::Placement;
use crate::problem::{Problem, Schedule, Statement};

mod acceptance;
mod bankers;
mod beam;
mod building_blocks;
mod flat_problem;
mod frontier;
mod fused_backward;
mod grouped;
mod host_copies;
mod limit_tree;
mod list;
mod longest_paths;
mod makespan;
mod one_limit;
mod orders;
mod overlapped_pairs;
mod packing;
mod perturbation;
mod policies;
mod portfolio;
mod reinsertion;
mod steady_state;
mod tabu;
mod v_blocks;
mod zb_auto;
mod zbv;

use one_limit::{Scope, search, whole_orders};

pub use frontier::{Frontier, Point, frontier};
pub use host_copies::within_limits;
pub use orders::{Ordered, order_microbatches};
pub use packing::{Batch, Packed};

/// The work that a search may do, in ops run through its simulator, since this crate has no clock. One unit takes ten
/// to fifty nanoseconds of one core.
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
    /// The lower bound.
    pub bound_ns: Nanos,
}

/// The answer of an observer.
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
    /// The lower bound of the problem.
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
            "rank {} needs at least {} bytes to run one microbatch at a time; the limit is {}: raise \
             limit_bytes, or give the rank less to hold",
            self.rank, self.least_bytes, self.limit_bytes
        )
    }
}

impl core::error::Error for Infeasible {}

/// The best schedule for `problem` within `effort`.
///
/// `observer` is called after every improvement and sometimes in between; its answer may stop the search. The answer
/// depends on the problem and the effort alone. More memory never costs more: limits are rounded down to one of a tree
/// of limits, a hundredth of a chunk apart at the finest, and the answer there is held between those for more and for
/// less memory. The effort is for one search. A call takes a few: mostly one, and a rough one for each level of the
/// tree. Where a stage's BW holds less or takes less time than its B and W apart, as with recomputed layers, both are
/// searched: all backwards cut, and all whole; and such mixtures as help.
///
/// # Errors
/// [`Infeasible`] where the limit of a rank is below the least with which any schedule exists.
pub fn best(
    problem: &Problem,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Found, Infeasible> {
    if problem.differs() {
        return orders::best(problem, effort, observer);
    }
    if problem.offloads() {
        return host_copies::best(problem, effort, observer);
    }
    let mut stopped = false;
    let mut found = limit_tree::climb(problem, effort, &mut |progress| {
        let flow = observer(progress);
        stopped |= flow == Flow::Stop;
        flow
    });
    if let (Ok(so_far), Some((few, times))) = (&found, again_and_again(problem))
        && !stopped
        && so_far.cost_ns > so_far.bound_ns
    {
        let (before, cost_ns, bound_ns) = (so_far.ops, so_far.cost_ns, so_far.bound_ns);
        let of_few = limit_tree::climb(&few, effort, &mut |progress| {
            let flow = observer(Progress { ops: before + progress.ops, cost_ns, bound_ns });
            stopped |= flow == Flow::Stop;
            flow
        });
        let repeated = of_few.ok().and_then(|of_few| repeated(problem, &few, times, &of_few, bound_ns));
        found = repeated.map_or(found.clone(), |repeated| better(found, Ok(repeated)));
    }
    for variant in fused_backward::variants(problem) {
        if found.as_ref().is_ok_and(|found| stopped || found.cost_ns == found.bound_ns) {
            return found;
        }
        let (before, cost_ns) = found.as_ref().map_or((0, Nanos::MAX), |found| (found.ops, found.cost_ns));
        if lower_bound(&variant.problem).value_ns >= cost_ns {
            continue;
        }
        let bound_ns = lower_bound(problem).value_ns;
        let with_whole = limit_tree::climb(&variant.problem, effort, &mut |progress| {
            let cost_ns = cost_ns.min(progress.cost_ns);
            let flow = observer(Progress { ops: before + progress.ops, cost_ns, bound_ns });
            stopped |= flow == Flow::Stop;
            flow
        });
        let original = |found: Found| Found { bound_ns, schedule: variant.original(found.schedule.clone()), ..found };
        found = better(found, with_whole.map(original));
    }
    found
}

/// The best of the first orders that [`best`] looks at, without a search.
///
/// # Errors
/// As [`best`].
pub fn first(problem: &Problem) -> Result<Found, Infeasible> {
    if problem.differs() {
        return orders::best(problem, Effort(0), &mut |_| Flow::Continue);
    }
    if problem.offloads() {
        return host_copies::best(problem, Effort(0), &mut |_| Flow::Continue);
    }
    let scope = Scope { quick: true, ..Scope::default() };
    let cut = search(problem, Effort(0), scope, &mut |_| Flow::Continue);
    whole_orders(problem, scope).into_iter().map(Ok).fold(cut, better)
}

/// For a problem with very many microbatches: the same with a part of them, small enough to be searched, and how often
/// that part repeats.
fn again_and_again(problem: &Problem) -> Option<(Problem, usize)> {
    let ops = Flat::new(problem).ops;
    if ops <= 2 * portfolio::MANY || problem.pairs_gain() {
        return None;
    }
    let mut statement = problem.statement();
    // In a bidirectional problem half of the microbatches go each way.
    let each = if *problem.placement() == Placement::Bidirectional { 2 } else { 1 };
    let all = statement.microbatches / each;
    let times = (2..=all).find(|times| all.is_multiple_of(*times) && ops / times <= portfolio::MANY)?;
    statement.microbatches = all / times * each;
    Some((statement.problem(problem.placement().clone()).ok()?, times))
}

/// The answer for a part of the microbatches, repeated: it leaves each rank as it found it.
fn repeated(problem: &Problem, few: &Problem, times: usize, of_few: &Found, bound_ns: Nanos) -> Option<Found> {
    let flat = Flat::new(problem);
    let rows: Rows = Flat::new(few).rows(&of_few.schedule)?.iter().map(|row| row.repeat(times)).collect();
    // Where a microbatch leaves bytes behind, it does not.
    if !(0..flat.ranks).all(|rank| flat.is_valid_row(rank, &rows[rank])) {
        return None;
    }
    let cost = Eval::new(&flat).run(&flat, &rows, Nanos::MAX)?;
    let (schedule, ops) = (flat.schedule(&rows), of_few.ops + flat.ops as u64);
    Some(Found { schedule, cost_ns: cost.objective, bound_ns, origin: "repeated", ops })
}

/// The answer that costs less, with the work of both. Where there is none, the refusal with the smaller lack of memory.
fn better(apart: Result<Found, Infeasible>, whole: Result<Found, Infeasible>) -> Result<Found, Infeasible> {
    let lacks = |refused: &Infeasible| refused.least_bytes - refused.limit_bytes;
    match (apart, whole) {
        (Ok(apart), Ok(whole)) => {
            let ops = apart.ops + whole.ops;
            Ok(Found { ops, ..if whole.cost_ns < apart.cost_ns { whole } else { apart } })
        }
        (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
        (Err(apart), Err(whole)) => Err(if lacks(&whole) < lacks(&apart) { whole } else { apart }),
    }
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
    let mut open: Vec<(Nanos, Problem)> = Vec::new();
    for placement in statement.placements() {
        match statement.problem(placement) {
            Ok(problem) => open.push((lower_bound(&problem).value_ns, problem)),
            Err(fault) => {
                why.get_or_insert(NoAnswer::Fault(fault));
            }
        }
    }
    // The problem with the most to gain comes first: its result may leave nothing to gain elsewhere.
    open.sort_by_key(|(bound, _)| *bound);
    for (bound, problem) in open {
        let has_nothing = |(_, best): &(Problem, Found)| stopped || bound >= best.cost_ns;
        if best.as_ref().is_some_and(has_nothing) {
            break;
        }
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
