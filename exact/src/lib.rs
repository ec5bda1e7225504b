//! Proves the best schedule of small pipeline problems.
//!
//! The problem is put to a constraint solver that learns from its conflicts (pumpkin): a start time for each
//! op, one op at a time on each rank, dependencies with hop times, memory by the order of ops, and the
//! objective. It settles a hundred ops with real costs in a tenth of a second and, where the lower bound is
//! tight (a linear pipeline from 1F1B's memory up), 576 ops in one second. Beyond that it stops with its best schedule and its best bound.
//!
//! This is a separate crate from `pipeplan-core`, because the solver needs `std`.

#![forbid(unsafe_code)]

mod model;
mod proof;

pub use proof::{NoProof, Proof, prove};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pipeplan_core::base::units::Nanos;
use pipeplan_core::bounds::lower_bound;
use pipeplan_core::check::check_schedule;
use pipeplan_core::problem::Problem;
use pipeplan_core::problem::Schedule;
use pipeplan_core::simulate::simulate;
use pumpkin_core::termination::TerminationCondition;
use pumpkin_core::{Duration, Instant};

/// The budget of a proof. Whatever runs out first stops it.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// Wall-clock time.
    pub time: Option<Duration>,
    /// Steps of the solver, a decision or a conflict each: the same on every machine.
    pub steps: Option<u64>,
    /// Set from outside to stop.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Budget {
    /// A budget of wall-clock seconds.
    pub fn seconds(seconds: f64) -> Budget {
        Budget { time: Some(Duration::from_secs_f64(seconds.clamp(0.0, 1e9))), ..Budget::default() }
    }
}

/// The result of a search, and what is proved about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    /// The best schedule found; none where the budget ran out before any.
    pub schedule: Option<Schedule>,
    /// The cost of the schedule under the problem's objective; the largest value where there is none.
    pub value_ns: Nanos,
    /// No valid schedule costs less when its ops run as soon as they can, which is how a schedule is timed.
    pub lower_ns: Nanos,
    /// Whether the schedule is proved best.
    pub optimal: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// More ops than can be proved.
    TooLarge {
        /// Ops of the problem.
        ops: usize,
        /// Most ops that are tried.
        most: usize,
    },
    /// No schedule fits the memory limit.
    Infeasible,
    /// The microbatches differ, or are slices: the model of the solver rests on microbatches that are alike.
    Differing,
    /// Activations may go to the host: the solver knows no copies.
    Copies,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::TooLarge { ops, most } => write!(
                f,
                "the problem has {ops} ops; exact search takes at most {most}: use fewer microbatches or \
                 ranks, or the heuristic search"
            ),
            Refused::Differing => f.write_str(
                "the microbatches differ (microbatch_factors), or are slices of sequences (slices); exact search takes those \
                 that are alike: use the heuristic search",
            ),
            Refused::Copies => f.write_str(
                "activations may go to the host (offload_bytes, training.offload = \"scheduled\"); exact search knows no copies: use \
                 the heuristic search",
            ),
            Refused::Infeasible => f.write_str("no schedule fits the memory limit: raise limit_bytes"),
        }
    }
}

impl std::error::Error for Refused {}

/// Most ops that [`solve`] takes on.
pub const MOST_OPS: usize = 4096;

/// Searches for the best schedule of `problem` and proves it best, or stops when `budget` runs out.
///
/// `upper` is any valid schedule known before: it is returned where nothing better is found, and the better
/// it is the shorter the proof. One that breaks the memory limit or cannot run is not used.
///
/// # Errors
/// [`Refused`] where the problem is too large, or where no schedule fits the limit.
pub fn solve(problem: &Problem, upper: Option<&Schedule>, budget: &Budget) -> Result<Exact, Refused> {
    solve_from(problem, upper, lower_bound(problem).value_ns, budget)
}

/// As [`solve`], with `lower_ns` as a known lower bound: 0 leaves all of the proof to the solver, which then judges the
/// bound.
///
/// # Errors
/// As [`solve`].
pub fn solve_from(
    problem: &Problem,
    upper: Option<&Schedule>,
    lower_ns: Nanos,
    budget: &Budget,
) -> Result<Exact, Refused> {
    solve_watched(problem, upper, lower_ns, budget, &mut |_| {})
}

/// Where a proof stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched<'s> {
    /// Steps of the solver so far, a decision or a conflict each.
    pub steps: u64,
    /// What the best schedule found costs; the largest value where there is none.
    pub value_ns: Nanos,
    /// No schedule costs less.
    pub lower_ns: Nanos,
    /// The best schedule, where this is the first that is heard of it.
    pub better: Option<&'s Schedule>,
}

/// As [`solve_from`], with `watch` told of every better schedule and bound, and every thousand steps or so.
///
/// # Errors
/// As [`solve`].
pub fn solve_watched(
    problem: &Problem,
    upper: Option<&Schedule>,
    lower_ns: Nanos,
    budget: &Budget,
    watch: &mut dyn FnMut(Watched<'_>),
) -> Result<Exact, Refused> {
    let ops = 3 * problem.stage_count() * problem.microbatches();
    if ops > MOST_OPS {
        return Err(Refused::TooLarge { ops, most: MOST_OPS });
    }
    if problem.differs() {
        return Err(Refused::Differing);
    }
    if problem.offloads() {
        return Err(Refused::Copies);
    }
    let mut clock = Clock::start(budget, watch);
    let mut best = Exact { schedule: None, value_ns: Nanos::MAX, lower_ns, optimal: false };
    if let Some(upper) = upper
        && let Some(value_ns) = value(problem, upper)
    {
        best.schedule = Some(upper.clone());
        best.value_ns = value_ns;
        // Whoever gave it knows it.
        clock.known = (value_ns, lower_ns);
    }
    if best.value_ns > best.lower_ns {
        model::improve(problem, &mut best, &mut clock)?;
    }
    if problem.pairs_gain() {
        // The model has no pairs, so its proofs hold for orders without pairs only.
        best.lower_ns = lower_bound(problem).value_ns;
    }
    best.optimal = best.schedule.is_some() && best.value_ns == best.lower_ns;
    Ok(best)
}

/// The cost of `schedule`, or `None` where it cannot run or breaks a limit.
fn value(problem: &Problem, schedule: &Schedule) -> Option<Nanos> {
    check_schedule(problem, schedule).ok()?;
    simulate(problem, schedule).ok().map(|timeline| timeline.cost_ns(problem.objective()))
}

/// Steps between two reports to a watcher, and the time between two where a step takes long: with hundreds of microbatches
/// a thousand steps take a minute.
const STEPS_A_WORD: u64 = 1024;
const WORDS_APART: Duration = Duration::from_millis(100);

/// A budget being spent.
struct Clock<'w> {
    watch: &'w mut dyn FnMut(Watched<'_>),
    steps: u64,
    /// The value and bound that the watcher was last told.
    known: (Nanos, Nanos),
    /// When it was told last.
    told: Instant,
    until: Option<Instant>,
    steps_left: Option<u64>,
    stop: Option<Arc<AtomicBool>>,
    /// Steps that the present probe may still take.
    probe_left: Option<u64>,
    ticks: u32,
    spent: bool,
}

impl<'w> Clock<'w> {
    fn start(budget: &Budget, watch: &'w mut dyn FnMut(Watched<'_>)) -> Clock<'w> {
        Clock {
            watch,
            steps: 0,
            known: (Nanos::MAX, 0),
            told: Instant::now(),
            until: budget.time.map(|time| Instant::now() + time),
            steps_left: budget.steps,
            stop: budget.stop.clone(),
            probe_left: None,
            ticks: 0,
            spent: false,
        }
    }

    /// Whether the whole budget is spent, not only that of a probe.
    fn is_spent(&self) -> bool {
        self.spent
    }

    /// Says that it goes on.
    fn word(&mut self) {
        let (value_ns, lower_ns) = self.known;
        (self.watch)(Watched { steps: self.steps, value_ns, lower_ns, better: None });
        self.told = Instant::now();
    }

    /// Whether to stop before the first step: the questions to the solver take long to write, too.
    fn should_stop_writing(&mut self) -> bool {
        self.word();
        self.spent |= self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        self.spent |= self.until.is_some_and(|until| Instant::now() >= until);
        self.spent
    }

    /// Tells of a better schedule or a better bound.
    fn tell(&mut self, best: &Exact) {
        let better = best.schedule.as_ref().filter(|_| best.value_ns < self.known.0);
        self.known = (best.value_ns, best.lower_ns);
        (self.watch)(Watched { steps: self.steps, value_ns: best.value_ns, lower_ns: best.lower_ns, better });
    }
}

impl TerminationCondition for Clock<'_> {
    fn should_stop(&mut self) -> bool {
        self.steps += 1;
        if self.told.elapsed() >= WORDS_APART || self.steps.is_multiple_of(STEPS_A_WORD) {
            self.word();
        }
        if let Some(left) = &mut self.steps_left {
            self.spent |= *left == 0;
            *left = left.saturating_sub(1);
        }
        self.spent |= self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        // Reading a clock costs more than a step.
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(16) {
            self.spent |= self.until.is_some_and(|until| Instant::now() >= until);
        }
        let mut probe_over = false;
        if let Some(left) = &mut self.probe_left {
            probe_over = *left == 0;
            *left = left.saturating_sub(1);
        }
        self.spent || probe_over
    }
}
