//! The rule that made ZB-V, for any costs and any limit: forwards in waves, then backwards and forwards in rounds, and W where it
//! costs least.
//!
//! Stages that fold back (V, and waves of more chunks) let a microbatch come straight back from the last rank. Then these steps, op
//! after op, each as early as it can start, lead to little idle time:
//!
//! 1. **Waves.** The first microbatch goes through all chunks, rank after rank. Before a wave reaches a rank, that rank and the
//!    ranks that the wave has yet to reach take in further microbatches, as long as these forwards end before the wave arrives and
//!    leave room for it.
//! 2. **Top up.** Until the first backward arrives, ranks take further forwards: by the count of the rank before
//!    ([`TopUp::Counts`]), or as long as time and memory last ([`TopUp::Time`]).
//! 3. **Rounds.** One B on every rank, then one F on every rank, as far as their inputs have run. While the input is on its way, a
//!    whole W goes before the op if one fits. If none fits whole, and the wait leaves the rank idle for longer than it is
//!    *allowed* to be, W may go first and make the op late. A W also goes first where the op lacks memory.
//! 4. The W that remain.
//!
//! A rank is allowed the idle time of the worst rank so far. In a second pass the idle times of the first pass are known: a rank
//! that was idle for less than the worst is allowed the difference from the start. Passes follow until one is no better. Then all
//! ranks are allowed some share of the least worst idle time that was reached.
//!
//! Memory is checked as in [`list`](super::list): after an op that takes bytes, every microbatch of the rank must be able to end.
//! So a pass reaches its end at any limit at which one exists.
//!
//! The public planner of ZB-V is one of the variants, op by op ([`Order::Public`]). It differs in four ways. In B each of its ranks
//! chooses before any has run, the first chunk if its gradient is there, and B of the first chunk go before the others. W may make
//! a B of the first chunk late in any case. A rank ahead of a wave asks only itself whether a forward ends in time. Memory has to
//! last for an op, not for what follows, so the planner may come to a stop.
//!
//! Sources: Qi, Wan, Huang and Lin, “Pipeline parallelism with controllable memory”, arXiv:2405.15362, §4, and “Zero bubble pipeline
//! parallelism”, arXiv:2401.10241, §6, and `zbv.py` of sail-sg/zero-bubble-pipeline-parallelism for the rule; the top-up by time and
//! memory is that of PaddlePaddle's ZB-V pass (pull request 63800).

use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{F, Flat, Rows};
use super::makespan::{Cost, Eval};

mod pass;

pub(super) use pass::{build, grants};

/// Schedules that are handed on.
const KEPT: usize = 3;

/// Eighths of the worst idle time that all ranks are granted.
const SHARES: [u64; 4] = [7, 6, 4, 2];

/// How ranks are filled before the first backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopUp {
    /// No rank starts backwards with fewer forwards than the rank before it.
    Counts,
    /// Whatever ends before the first backward arrives and fits.
    Time,
}

/// Which lane of a rank goes first in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefer {
    /// The first chunk in B, the last in F: what ends a microbatch soonest.
    End,
    /// What can start first.
    Soonest,
}

/// What a pass may do in more than one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    top_up: TopUp,
    prefer_b: Prefer,
    prefer_f: Prefer,
    /// Whether W may make a B, or an F, late.
    late_b: bool,
    late_f: bool,
    order: Order,
}

impl Variant {
    /// Whether it does nearly what the public planner does in one of its ways, but looks ahead.
    fn is_nearly_public(&self) -> bool {
        let ends = self.prefer_b == Prefer::End && self.prefer_f == Prefer::End;
        ends && self.top_up == TopUp::Counts && self.order == Order::Down
    }
}

/// Which rank of a round goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The first, or the last.
    Down,
    Up,
    /// As in the public planner: see above.
    Public,
}

/// What the public planner does, in four ways.
pub(super) fn public(late_b: bool, late_f: bool) -> Variant {
    let (prefer_b, prefer_f) = (Prefer::End, Prefer::End);
    Variant { top_up: TopUp::Counts, prefer_b, prefer_f, late_b, late_f, order: Order::Public }
}

const PUBLIC: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

/// Other variants worth a pass, the most useful first: those of 64 that were best somewhere in samples of the public
/// planner's problems.
pub(super) fn variants() -> Vec<Variant> {
    use Prefer::{End, Soonest};
    let variant = |prefer_b, prefer_f, late_b, late_f| Variant {
        top_up: TopUp::Counts,
        prefer_b,
        prefer_f,
        late_b,
        late_f,
        order: Order::Down,
    };
    let usual = variant(End, End, true, true);
    vec![
        usual,
        variant(Soonest, End, true, false),
        Variant { order: Order::Up, ..variant(Soonest, Soonest, true, true) },
        variant(End, End, false, true),
        variant(End, Soonest, true, true),
        variant(End, End, true, false),
        variant(Soonest, End, true, true),
        variant(End, Soonest, true, false),
        Variant { order: Order::Up, ..usual },
        Variant { top_up: TopUp::Time, ..usual },
    ]
}

/// Whether the rule has anything to say: stages that fold back, B and W apart, one direction.
pub(super) fn applies(flat: &Flat) -> bool {
    let fold = |pair: &[super::flat_problem::Lane]| pair[0].rank == pair[1].rank;
    flat.chains.len() == 1 && !flat.fused && flat.chunks() > 1 && flat.lanes.windows(2).any(fold)
}

/// A way to an order: a variant, repeated while it gets better, and then perhaps a share of the idle time for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    variant: Variant,
    eighths: Option<u64>,
}

/// An order with what it costs and how it was come by.
pub(super) struct Found {
    pub cost: Cost,
    pub rows: Rows,
    pub way: Way,
}

/// Passes within an effort, and the best of what they lead to.
struct Passes<'a> {
    flat: &'a Flat,
    eval: &'a mut Eval,
    alone: Vec<i64>,
    found: Vec<Found>,
    ops: u64,
    most_ops: u64,
}

impl Passes<'_> {
    fn new<'a>(flat: &'a Flat, eval: &'a mut Eval, most_ops: u64) -> Passes<'a> {
        let alone = (0..flat.ranks).map(|rank| flat.least(rank)).collect();
        Passes { flat, eval, alone, found: Vec::new(), ops: 0, most_ops }
    }

    /// Whether a rank has memory for a microbatch of each rank.
    fn is_ample(&self, rank: usize) -> bool {
        let lanes = self.flat.lanes_of[rank].iter();
        let microbatch: i64 = lanes.map(|lane| self.flat.lanes[*lane].net(F)).sum();
        microbatch.saturating_mul(self.flat.ranks as i64) <= self.flat.limit[rank]
    }

    fn pass(&mut self, way: Way, granted: Vec<u64>) -> Option<Vec<u64>> {
        if self.ops >= self.most_ops {
            return None;
        }
        self.ops += self.flat.ops as u64;
        let (rows, idle) = build(self.flat, &self.alone, way.variant, granted)?;
        let cost = self.eval.run(self.flat, &rows, u64::MAX)?;
        if self.found.iter().all(|other| other.cost != cost) {
            let at = self.found.partition_point(|other| other.cost < cost);
            self.found.insert(at, Found { cost, rows, way });
            self.found.truncate(KEPT);
        }
        Some(idle)
    }

    /// Repeats a variant while it gets better. The least idle time of the worst rank; none where it comes to no end.
    fn repeat(&mut self, variant: Variant) -> Option<u64> {
        let mut granted = vec![0; self.flat.ranks];
        let mut least = None;
        while let Some(idle) = self.pass(Way { variant, eighths: None }, granted) {
            let worst = idle.iter().copied().max().unwrap_or(0);
            if least.is_some_and(|least| worst >= least) {
                break;
            }
            least = Some(worst);
            granted = grants(&idle);
        }
        least
    }

    /// Grants every rank a share of what the worst had to be idle for.
    fn share(&mut self, variant: Variant, worst: u64, eighths: u64) {
        let granted = vec![worst / 8 * eighths; self.flat.ranks];
        self.pass(Way { variant, eighths: Some(eighths) }, granted);
    }
}

/// What all variants lead to, the best few, best first, and how many ops it took.
pub(super) fn candidates(flat: &Flat, eval: &mut Eval, most_ops: u64) -> (Vec<Found>, u64) {
    if !applies(flat) {
        return (Vec::new(), 0);
    }
    let mut passes = Passes::new(flat, eval, most_ops);
    let share = |passes: &mut Passes, variant: Variant, worst: Option<u64>| {
        if let Some(worst) = worst {
            SHARES.into_iter().for_each(|eighths| passes.share(variant, worst, eighths));
        }
    };
    // The public planner asks for as much memory as 1F1B has; where there is less, to look ahead is worth more.
    let is_ample = (0..flat.ranks).all(|rank| passes.is_ample(rank));
    if is_ample {
        let public = PUBLIC.map(|(late_b, late_f)| public(late_b, late_f));
        let worst = public.map(|variant| passes.repeat(variant));
        share(&mut passes, public[0], worst[0]);
    }
    for variant in variants() {
        if !is_ample || !variant.is_nearly_public() {
            let worst = passes.repeat(variant);
            share(&mut passes, variant, worst);
        }
    }
    (passes.found, passes.ops)
}

/// The orders that a way leads to on another problem, best first, and how many ops it took.
pub(super) fn replay(flat: &Flat, eval: &mut Eval, way: Way) -> (Vec<Found>, u64) {
    let mut passes = Passes::new(flat, eval, u64::MAX);
    if let (Some(worst), Some(eighths)) = (passes.repeat(way.variant), way.eighths) {
        passes.share(way.variant, worst, eighths);
    }
    (passes.found, passes.ops)
}
