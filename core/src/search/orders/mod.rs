//! Microbatches that differ: the order in which they enter, together with the schedule.
//!
//! All other methods of this room give op lists without microbatch numbers, which rests on microbatches that are alike. Here
//! they give the op lists of a problem whose microbatches all take what these take on average. Then the microbatches
//! get their places. Training sums the gradients of all microbatches, so any may take any place.
//!
//! - Sorted orders come first: as given, rising, falling, the largest in the middle or at both ends, and the smallest first.
//! - Local search moves single microbatches and swaps two. It takes what is no worse than the order some steps before (late
//!   acceptance: Burke and Bykov, EJOR 258, 2017).
//! - On a linear pipeline `by_need` makes new op lists for the best order, with its real times.
//!
//! Where sequences are cut into slices, whole sequences change places. The other methods give op lists for whole sequences,
//! each op of which becomes those of its slices.
//!
//! Every published schedule is a candidate in every sorted order. So an answer is never worse than those.

use alloc::vec;
use alloc::vec::Vec;

use fixed::{Fixed, Tables};

use super::{Effort, Flow, Found, Infeasible, Progress};
use crate::base::random::Random;
use crate::base::units::Nanos;
use crate::bounds::{feasible, lower_bound};
use crate::problem::op::{Op, OpKind};
use crate::problem::{Problem, Schedule};
use crate::schedule::{in_slices, published};

mod by_need;
pub(super) mod fixed;

/// Stages times microbatches beyond which only sorted orders are looked at, and one schedule is kept: each takes a hundred
/// bytes for each of them.
const MOST_ENTRIES: usize = 60_000;
/// Schedules that are searched further after a first look.
const KEPT: usize = 4;
/// The share of the effort that a first look at all schedules takes, and that the search of alike microbatches takes.
const LOOK: u64 = 4;
const ALIKE: u64 = 8;
/// The most microbatches that a stage holds ahead, in `by_need`, beyond one for each stage behind it.
const AHEAD: [usize; 6] = [0, 1, 2, 4, 8, usize::MAX / 2];

/// The order of microbatches that a search has found for a schedule with fixed op lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// The schedule with its microbatches in this order.
    pub schedule: Schedule,
    /// The microbatch in each place: the n-th entry takes the place that microbatch n had. With slices the same of sequences.
    pub order: Vec<u32>,
    /// Its objective.
    pub cost_ns: Nanos,
    /// The objective of the order as given; none where it breaks a memory limit.
    pub given_ns: Option<Nanos>,
    /// The objective of the best sorted order; none where all break a memory limit.
    pub sorted_ns: Option<Nanos>,
    /// Ops run for it.
    pub ops: u64,
}

/// The best order of microbatches for `schedule`, whose op lists stay as they are, within `effort`. With
/// [`Placement::Bidirectional`](crate::problem::placement::Placement::Bidirectional) each microbatch keeps its direction.
/// None where no order that is looked at fits the memory limit, or the op lists cannot be run.
///
/// `observer` is called after improvements and sometimes in between; it may stop the search.
pub fn order_microbatches(
    problem: &Problem,
    schedule: &Schedule,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Option<Ordered> {
    let tables = Tables::of(problem);
    let mut fixed = Fixed::new(problem, &tables, schedule.clone())?;
    let bound_ns = lower_bound(problem).value_ns;
    let first = Sorted::of(problem, &mut fixed);
    let (given_ns, sorted_ns) = (first.given_ns, first.sorted_ns);
    let mut ops = first.ops;
    let (mut cost_ns, mut order) = first.best?;
    if !is_large(problem) {
        let mut told = |progress: Progress| observer(Progress { bound_ns, ..progress });
        let mut local = Local::new(order, cost_ns, 1);
        local.run(&mut fixed, bound_ns, effort.0.saturating_sub(ops), ops, &mut told);
        ops += local.ops;
        (cost_ns, order) = (local.best_ns, local.best);
    }
    Some(Ordered { schedule: fixed.ordered(&order), order, cost_ns, given_ns, sorted_ns, ops })
}

fn is_large(problem: &Problem) -> bool {
    problem.stage_count() * problem.microbatches() > MOST_ENTRIES
}

/// What a microbatch takes in all, by microbatch; with slices, by sequence.
fn weights(problem: &Problem) -> Vec<Nanos> {
    let kinds = [OpKind::F, OpKind::B, OpKind::W];
    let of = |m: usize| {
        (0..problem.stage_count())
            .flat_map(|stage| kinds.map(|kind| problem.duration(Op::new(stage, kind, m))))
            .sum::<Nanos>()
    };
    let slices = problem.slices();
    (0..problem.microbatches()).step_by(slices).map(|first| (first..first + slices).map(of).sum()).collect()
}

/// The sorted orders of `places`, the one as given first.
pub(super) fn sorted_orders(weights: &[Nanos], places: &[core::ops::Range<usize>]) -> Vec<Vec<u32>> {
    type Arrange = fn(Vec<u32>) -> Vec<u32>;
    let ends = |rising: Vec<u32>| -> Vec<u32> {
        // The smallest at both ends.
        let (even, odd): (Vec<_>, Vec<_>) = rising.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        even.into_iter().chain(odd.into_iter().rev()).map(|(_, m)| m).collect()
    };
    let middle = |rising: Vec<u32>| -> Vec<u32> {
        let (even, odd): (Vec<_>, Vec<_>) = rising.into_iter().rev().enumerate().partition(|(at, _)| at % 2 == 0);
        even.into_iter().chain(odd.into_iter().rev()).map(|(_, m)| m).collect()
    };
    let smallest_first = |mut rising: Vec<u32>| -> Vec<u32> {
        rising[1..].reverse();
        rising
    };
    let in_turn = |rising: Vec<u32>| -> Vec<u32> {
        let half = rising.len().div_ceil(2);
        let large = rising[half..].iter().rev().map(|m| Some(*m)).chain(core::iter::once(None));
        rising[..half].iter().zip(large).flat_map(|(small, large)| [Some(*small), large]).flatten().collect()
    };
    let falling = |mut rising: Vec<u32>| -> Vec<u32> {
        rising.reverse();
        rising
    };
    let arrangements: [Arrange; 6] = [|rising| rising, falling, ends, middle, smallest_first, in_turn];
    let given: Vec<u32> = (0..weights.len() as u32).collect();
    let mut orders = vec![given.clone()];
    for arrange in arrangements {
        let mut order = Vec::with_capacity(weights.len());
        for range in places {
            let mut rising = given[range.clone()].to_vec();
            rising.sort_by_key(|m| weights[*m as usize]);
            order.extend(arrange(rising));
        }
        orders.push(order);
    }
    orders
}

/// The first look at a schedule with fixed op lists.
struct Sorted {
    best: Option<(Nanos, Vec<u32>)>,
    given_ns: Option<Nanos>,
    sorted_ns: Option<Nanos>,
    ops: u64,
}

impl Sorted {
    fn of(problem: &Problem, fixed: &mut Fixed) -> Sorted {
        let mut look = Sorted { best: None, given_ns: None, sorted_ns: None, ops: 0 };
        for (index, order) in sorted_orders(&weights(problem), &fixed.directions()).into_iter().enumerate() {
            look.ops += fixed.ops();
            let cost_ns = fixed.cost(&order, Nanos::MAX).filter(|_| fixed.fits(&order));
            let Some(cost_ns) = cost_ns else { continue };
            let known = if index == 0 { &mut look.given_ns } else { &mut look.sorted_ns };
            *known = Some(known.map_or(cost_ns, |known| known.min(cost_ns)));
            if look.best.as_ref().is_none_or(|(best, _)| cost_ns < *best) {
                look.best = Some((cost_ns, order));
            }
        }
        look
    }
}

/// Costs that late acceptance remembers.
const REMEMBERED: usize = 400;
/// Orders between two calls of an observer.
const QUIET: u64 = 2_000;

/// A local search over orders.
struct Local {
    best: Vec<u32>,
    best_ns: Nanos,
    now: Vec<u32>,
    now_ns: Nanos,
    remembered: Vec<Nanos>,
    steps: usize,
    random: Random,
    ops: u64,
}

impl Local {
    fn new(order: Vec<u32>, cost_ns: Nanos, seed: u64) -> Local {
        Local {
            best: order.clone(),
            best_ns: cost_ns,
            now: order,
            now_ns: cost_ns,
            remembered: vec![cost_ns; REMEMBERED],
            steps: 0,
            random: Random::new(seed),
            ops: 0,
        }
    }

    /// Searches until `effort` more ops have run, `before` of which ran elsewhere. False where the observer stops it.
    fn run(
        &mut self,
        fixed: &mut Fixed,
        bound_ns: Nanos,
        effort: u64,
        before: u64,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> bool {
        let directions: Vec<_> = fixed.directions().into_iter().filter(|places| places.len() > 1).collect();
        let until = self.ops.saturating_add(effort);
        let mut quiet = 0;
        let mut order = self.now.clone();
        while !directions.is_empty() && self.ops < until && self.best_ns > bound_ns {
            order.copy_from_slice(&self.now);
            let places = directions[self.random.below(directions.len() as u64) as usize].clone();
            self.change(&mut order[places]);
            self.ops += fixed.ops();
            self.steps += 1;
            let slot = self.steps % REMEMBERED;
            let most = self.remembered[slot].max(self.now_ns);
            let cost_ns = fixed.cost(&order, most.saturating_add(1)).filter(|_| fixed.fits(&order));
            if let Some(cost_ns) = cost_ns {
                self.now_ns = cost_ns;
                core::mem::swap(&mut self.now, &mut order);
            }
            let remembered = &mut self.remembered[slot];
            *remembered = self.now_ns.min(*remembered);
            quiet += 1;
            let improved = self.now_ns < self.best_ns;
            if improved {
                self.best_ns = self.now_ns;
                self.best.copy_from_slice(&self.now);
            }
            if improved || quiet >= QUIET {
                quiet = 0;
                let progress = Progress { ops: before + self.ops, cost_ns: self.best_ns, bound_ns };
                if observer(progress) == Flow::Stop {
                    return false;
                }
            }
        }
        true
    }

    /// Swaps two microbatches, or moves one to another place.
    fn change(&mut self, order: &mut [u32]) {
        let count = order.len() as u64;
        let from = self.random.below(count) as usize;
        let to = (from + 1 + self.random.below(count - 1) as usize) % order.len();
        match self.random.below(3) {
            0 if from < to => order[from..=to].rotate_left(1),
            0 => order[to..=from].rotate_right(1),
            _ => order.swap(from, to),
        }
    }
}

/// One schedule in the search: its op lists, and the best order so far.
struct Candidate<'p> {
    fixed: Fixed<'p>,
    local: Local,
    origin: &'static str,
}

/// The best schedule for a problem whose microbatches differ. As [`super::best`].
pub(super) fn best(
    problem: &Problem,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Found, Infeasible> {
    feasible(problem).map_err(|why| Infeasible {
        rank: why.rank,
        least_bytes: why.needed_bytes,
        limit_bytes: why.limit_bytes,
    })?;
    let tables = Tables::of(problem);
    let mut search = Search {
        problem,
        tables: &tables,
        bound_ns: lower_bound(problem).value_ns,
        candidates: Vec::new(),
        ops: 0,
        best_ns: Nanos::MAX,
        stopped: false,
    };
    search.add_one_by_one();
    for published in published() {
        if let Ok(schedule) = published.build(problem) {
            search.add(schedule, published.name);
        }
    }
    search.add_alike(effort, observer);
    search.run(effort, observer);
    search.answer().ok_or_else(|| lacking(problem))
}

/// The rank that lacks most, where nothing fits: the order of one microbatch after the other needs most of what
/// stays behind.
fn lacking(problem: &Problem) -> Infeasible {
    let least = crate::bounds::least_memory(problem).into_iter().filter_map(|least| {
        let limit_bytes = problem.limit_bytes(least.rank)?;
        Some(Infeasible { rank: least.rank, least_bytes: least.serial_bytes, limit_bytes })
    });
    least.max_by_key(|least| i128::from(least.least_bytes) - i128::from(least.limit_bytes)).unwrap_or(Infeasible {
        rank: 0,
        least_bytes: 0,
        limit_bytes: 0,
    })
}

struct Search<'p> {
    problem: &'p Problem,
    tables: &'p Tables,
    bound_ns: Nanos,
    candidates: Vec<Candidate<'p>>,
    ops: u64,
    best_ns: Nanos,
    stopped: bool,
}

impl<'p> Search<'p> {
    /// Takes a schedule with its best sorted order, where one fits.
    fn add(&mut self, schedule: Schedule, origin: &'static str) {
        let Some(mut fixed) = Fixed::new(self.problem, self.tables, schedule) else { return };
        let look = Sorted::of(self.problem, &mut fixed);
        self.ops += look.ops;
        let Some((cost_ns, order)) = look.best else { return };
        if is_large(self.problem) {
            if cost_ns >= self.best_ns {
                return;
            }
            self.candidates.clear();
        }
        self.best_ns = self.best_ns.min(cost_ns);
        let seed = self.candidates.len() as u64 + 1;
        self.candidates.push(Candidate { fixed, local: Local::new(order, cost_ns, seed), origin });
    }

    /// One microbatch, or sequence, after the other, each W right behind its B: it fits wherever one fits.
    fn add_one_by_one(&mut self) {
        let problem = self.problem;
        let stages = problem.stage_count();
        let whole_holds_less = |stage: usize| problem.cost(stage).holds_less_whole();
        let split = problem.backward() == crate::problem::Backward::Split;
        let mut rows = vec![Vec::new(); problem.ranks()];
        for first in (0..problem.microbatches()).step_by(problem.slices()) {
            let sequence = first..first + problem.slices();
            for m in sequence.clone() {
                (0..stages).for_each(|stage| rows[problem.rank_of(stage, m)].push(Op::new(stage, OpKind::F, m)));
            }
            for (m, stage) in sequence.rev().flat_map(|m| (0..stages).rev().map(move |stage| (m, stage))) {
                let row = &mut rows[problem.rank_of(stage, m)];
                if split && !whole_holds_less(stage) {
                    row.extend([OpKind::B, OpKind::W].map(|kind| Op::new(stage, kind, m)));
                } else {
                    row.push(Op::new(stage, OpKind::BW, m));
                }
            }
        }
        self.add(Schedule::of(rows), "one by one");
    }

    /// Takes what the other methods find for microbatches that are alike, or for whole sequences.
    fn add_alike(&mut self, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) {
        let slices = self.problem.slices();
        for of_largest in [true, false] {
            let alike = match slices {
                1 => self.problem.with_alike_microbatches(of_largest),
                _ => self.problem.with_whole_sequences(),
            };
            let Some(alike) = alike else { continue };
            let (before, cost_ns, bound_ns) = (self.ops, self.best_ns, self.bound_ns);
            let mut stopped = self.stopped;
            if stopped {
                return;
            }
            let mut watched = |progress: Progress| {
                let flow = observer(Progress { ops: before + progress.ops, cost_ns, bound_ns });
                stopped |= flow == Flow::Stop;
                flow
            };
            let found = match effort.0 {
                0 => super::first(&alike),
                effort => super::best(&alike, Effort(effort / ALIKE), &mut watched),
            };
            self.stopped = stopped;
            if let Ok(found) = found {
                self.ops += found.ops;
                let of_slices = if slices > 1 { in_slices(self.problem, &found.schedule) } else { found.schedule };
                self.add(of_slices, found.origin);
            }
            // Without a limit both are the same.
            if slices > 1 || (0..self.problem.ranks()).all(|rank| self.problem.limit_bytes(rank).is_none()) {
                return;
            }
        }
    }

    /// New op lists for the order of the best candidate.
    fn add_by_need(&mut self) {
        let Some(best) = self.candidates.iter().min_by_key(|candidate| candidate.local.best_ns) else { return };
        // The places of the best schedule are those in which its first stage runs forwards.
        let first = self.problem.rank_of(0, 0);
        let forwards = best.fixed.ordered(&best.local.best).rows[first].clone();
        let slices = self.problem.slices();
        let entering = forwards.iter().filter(|op| op.stage() == 0 && op.kind() == OpKind::F);
        let sequences = entering.map(|op| op.microbatch()).filter(|m| m.is_multiple_of(slices));
        let order: Vec<u32> = sequences.flat_map(|first| (first..first + slices).map(|m| m as u32)).collect();
        for ahead in AHEAD {
            for split in [false, true] {
                if let Some(schedule) = by_need::schedule(self.problem, &order, ahead, split) {
                    self.ops += schedule.op_count() as u64;
                    self.add(schedule, "by need");
                }
            }
        }
    }

    /// Searches orders: a little of every candidate, then more of the best ones.
    fn run(&mut self, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) {
        if is_large(self.problem) {
            return;
        }
        let before = self.ops;
        self.add_by_need();
        let mut left = effort.0.saturating_sub(self.ops - before);
        let mut share = left / LOOK / self.candidates.len().max(1) as u64;
        while !self.stopped && left > 0 && self.best_ns > self.bound_ns && !self.candidates.is_empty() {
            for index in 0..self.candidates.len() {
                left = left.saturating_sub(share.max(1));
                self.search_one(index, share, observer);
                if self.stopped {
                    return;
                }
            }
            if left > 0 {
                let before = self.ops;
                self.add_by_need();
                left = left.saturating_sub(self.ops - before);
            }
            self.candidates.sort_by_key(|candidate| candidate.local.best_ns);
            self.candidates.truncate(KEPT);
            share = (left / 2 / KEPT as u64).max(effort.0 / 64).min(left);
        }
    }

    fn search_one(&mut self, index: usize, effort: u64, observer: &mut dyn FnMut(Progress) -> Flow) {
        let (best_ns, bound_ns) = (self.best_ns, self.bound_ns);
        let Candidate { fixed, local, .. } = &mut self.candidates[index];
        let before = local.ops;
        let goes_on = local.run(fixed, bound_ns, effort, self.ops, &mut |progress| {
            observer(Progress { cost_ns: progress.cost_ns.min(best_ns), ..progress })
        });
        self.ops += local.ops - before;
        self.best_ns = best_ns.min(local.best_ns);
        self.stopped = !goes_on;
    }

    fn answer(self) -> Option<Found> {
        let best = self.candidates.iter().min_by_key(|candidate| candidate.local.best_ns)?;
        Some(Found {
            schedule: best.fixed.ordered(&best.local.best),
            cost_ns: best.local.best_ns,
            bound_ns: self.bound_ns,
            origin: best.origin,
            ops: self.ops,
        })
    }
}
