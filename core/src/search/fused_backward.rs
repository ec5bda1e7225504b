//! Fused backwards: where BW takes less time or memory than B and W, some backwards stay whole.
//!
//! The search orders F, B and W. A BW may be shorter than B and then W, as where W's operators overlap a collective that B waits
//! for, or may hold less, as with recomputed layers. Then it pays on some stages or for some microbatches and not for others: whole
//! in the steady state, split where other ranks wait for B.
//!
//! So the problem is also searched with all backwards whole, and with those whole that hold less ([`variants`]). In each order that
//! a search finds, backwards are joined or split, one by one and in groups, as long as that makes it shorter ([`mixed`]). On small
//! problems the beam search grows orders with both ([`grown`]). Tabu search from all these orders changes backwards too
//! ([`improved`]).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::beam::{self, Beam};
use super::flat_problem::{B, Code, F, Flat, W, kind_of, lane_of};
use super::makespan::Cost;
use super::overlapped_pairs;
use super::tabu::Tabu;
use crate::base::random::Random;
use crate::base::units::Nanos;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::problem::placement::Placement;
use crate::problem::{Backward, Problem};

/// A problem with some backwards whole.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    pub problem: Problem,
    /// Stages whose B stands for BW and whose W is empty. None where the problem has no W at all.
    stands_for_whole: Vec<bool>,
}

impl Variant {
    /// A schedule of this problem as one of the problem that it is a variant of.
    pub fn original(&self, schedule: Schedule) -> Schedule {
        if self.stands_for_whole.is_empty() {
            return schedule;
        }
        let whole = |op: &Op| match (self.stands_for_whole[op.stage()], op.kind()) {
            (true, OpKind::W) => None,
            (true, OpKind::B) => Some(Op::new(op.stage(), OpKind::BW, op.microbatch())),
            _ => Some(*op),
        };
        Schedule::of(schedule.rows.iter().map(|row| row.iter().filter_map(whole).collect()).collect())
    }
}

/// The problem with all backwards whole, where that may help; and with those of some stages whole, where other stages
/// hold less when split. There ops run one by one, not in pairs.
pub(super) fn variants(problem: &Problem) -> Vec<Variant> {
    let all = problem.with_whole_backwards().map(|problem| Variant { problem, stands_for_whole: Vec::new() });
    // Pairs are places in rows, which ops that stand for nothing would shift.
    let some = problem.with_pairs_in_turn().with_some_whole_backwards();
    let some = some.map(|(problem, stands_for_whole)| Variant { problem, stands_for_whole });
    all.into_iter().chain(some).collect()
}

/// Orders of the beam search that tabu search starts from.
const KEPT: usize = 6;

/// Ops that are simulated to choose which backwards are whole, and the least number of simulations.
const MOST_OPS: usize = 400_000;
const LEAST_RUNS: usize = 8;

/// Whether a backward of `stage` may be split, and may be better whole.
fn gains(problem: &Problem, stage: usize) -> bool {
    let cost = problem.cost(stage);
    problem.backward() == Backward::Split && (cost.backward_ns.is_some() || cost.backward_workspace_bytes.is_some())
}

/// Whether [`mixed`] can do anything.
pub(super) fn may_mix(problem: &Problem) -> bool {
    !problem.pairs_gain() && (0..problem.stage_count()).any(|stage| gains(problem, stage))
}

/// How a backward runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Whole, where its B stands, or where its W does.
    AtB,
    AtW,
    /// Cut, with W behind so many further ops.
    Cut(usize),
}

struct Mixer<'a> {
    problem: &'a Problem,
    floor: Nanos,
    left: usize,
    rows: Vec<Vec<Op>>,
    cost: Cost,
}

/// The order of `schedule` with some backwards whole and others cut, where it costs less than `below` and not less than
/// `floor`, and what it costs.
pub(super) fn mixed(problem: &Problem, schedule: &Schedule, floor: Nanos, below: Nanos) -> Option<(Schedule, Nanos)> {
    let ops: usize = schedule.rows.iter().map(Vec::len).sum();
    let left = (MOST_OPS / ops.max(1)).max(LEAST_RUNS);
    let mut mixer = Mixer { problem, floor, left, rows: schedule.rows.clone(), cost: Cost::WORST };
    mixer.offer(schedule.rows.clone());
    let near: Vec<Vec<Op>> = mixer.rows.iter().map(|row| mixer.together(row)).collect();
    mixer.offer(near);
    let microbatches = problem.microbatches();
    // In the cool-down, other ranks wait for B.
    let alike = if *problem.placement() == Placement::Bidirectional { microbatches / 2 } else { microbatches };
    for cut in [0, problem.ranks() / 2, problem.ranks(), 2 * problem.ranks()] {
        mixer.offer_whole(|_, op| op.microbatch() % alike + cut < alike);
    }
    for rank in 0..problem.ranks() {
        mixer.offer_whole(|on, _| on == rank);
    }
    while mixer.left > 0 && mixer.pass() {}
    (mixer.cost.objective < below).then(|| (Schedule::of(mixer.rows), mixer.cost.objective))
}

/// Beam search of a small problem with split and whole backwards: offers orders that cost less than `below`. Returns
/// how many ops were run, and the best few orders, whatever they cost.
pub(super) fn grown(
    problem: &Problem,
    effort: u64,
    below: Nanos,
    mut offer: impl FnMut(Schedule, Nanos),
) -> (u64, Vec<Schedule>) {
    let flat = Flat::new(problem);
    let mut known: Vec<(Cost, Schedule)> = Vec::new();
    if !beam::is_small(&flat) {
        return (0, Vec::new());
    }
    let whole = Flat { fused: true, ..flat.clone() };
    let some = problem.with_some_whole_backwards().map(|(problem, _)| Flat::new(&problem));
    let mut beam = Beam::new(&flat, core::iter::once(whole).chain(some).collect());
    let mut best = below;
    beam.widen(effort, |orders, _| {
        for rows in orders {
            let schedule = numbered(&flat, &rows);
            let Some(cost) = overlapped_pairs::cost(problem, &schedule) else { continue };
            if cost.objective < best {
                best = cost.objective;
                offer(schedule.clone(), best);
            }
            let at = known.partition_point(|(other, _)| *other < cost);
            if at < KEPT && known.get(at).is_none_or(|(other, _)| *other != cost) {
                known.insert(at, (cost, schedule));
                known.truncate(KEPT);
            }
        }
        best
    });
    (beam.ops, known.into_iter().map(|(_, schedule)| schedule).collect())
}

/// Tabu search from `orders`, in which backwards also change between split and whole: offers orders that cost less than
/// `below`. Returns how many ops were run, about `effort`. `offer` returns the cost that the next order has to beat.
pub(super) fn improved(
    problem: &Problem,
    orders: &[Schedule],
    effort: u64,
    below: Nanos,
    mut offer: impl FnMut(Schedule, Nanos) -> Nanos,
) -> u64 {
    let flat = Flat::new(problem);
    let mut random = Random::new(5);
    let rows = orders.iter().filter_map(|order| flat.mixed_rows(order));
    let mut searches: Vec<Tabu> = rows.filter_map(|rows| Tabu::mixed(&flat, &rows)).collect();
    let (mut below, mut ops) = (below, 0);
    let mut left = effort;
    while left > 0 && below > 0 && !searches.is_empty() {
        // All of them for a while, then the better half, and so on to the best.
        let share = if searches.len() == 1 { left } else { left / 2 / searches.len() as u64 };
        for search in &mut searches {
            let from = search.ops();
            while search.ops() - from < share && below > 0 {
                if search.step(&flat, &mut random) && search.best_cost.objective < below {
                    let schedule = numbered(&flat, &search.best());
                    if let Some(cost) =
                        overlapped_pairs::cost(problem, &schedule).filter(|cost| cost.objective < below)
                    {
                        below = offer(schedule, cost.objective);
                    }
                }
            }
            ops += search.ops() - from;
        }
        left = effort.saturating_sub(ops);
        if searches.len() == 1 {
            break;
        }
        searches.sort_by_key(|search| search.best_cost);
        searches.truncate(searches.len() / 2);
    }
    ops
}

/// The schedule of rows with backwards cut and whole: a W is that of the first B that has none yet.
pub(super) fn numbered(flat: &Flat, rows: &[Vec<Code>]) -> Schedule {
    let mut next = alloc::vec![[0usize; 2]; flat.lanes.len()];
    let mut cut: Vec<VecDeque<usize>> = alloc::vec![VecDeque::new(); flat.lanes.len()];
    let mut op = |code: &Code| {
        let lane = lane_of(*code);
        let about = &flat.lanes[lane];
        let mut count = |job: usize| {
            next[lane][job] += 1;
            next[lane][job] - 1
        };
        let (kind, n) = match kind_of(*code) {
            F => (OpKind::F, count(0)),
            B => {
                let n = count(1);
                cut[lane].push_back(n);
                (OpKind::B, n)
            }
            W => (OpKind::W, cut[lane].pop_front().unwrap_or(0)),
            _ => (OpKind::BW, count(1)),
        };
        Op::new(about.stage, kind, flat.chains[about.chain].first_microbatch + n)
    };
    Schedule::of(rows.iter().map(|row| row.iter().map(&mut op).collect()).collect())
}

impl Mixer<'_> {
    fn run(&mut self, rows: &[Vec<Op>]) -> Option<Cost> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let cost = overlapped_pairs::cost(self.problem, &Schedule::of(rows.to_vec()))?;
        (cost.objective >= self.floor).then_some(cost)
    }

    fn offer(&mut self, rows: Vec<Vec<Op>>) -> bool {
        match self.run(&rows) {
            Some(cost) if cost < self.cost => {
                (self.rows, self.cost) = (rows, cost);
                true
            }
            _ => false,
        }
    }

    fn gains(&self, op: &Op) -> bool {
        gains(self.problem, op.stage())
    }

    /// A row with every B whole that has its W right behind it.
    fn together(&self, row: &[Op]) -> Vec<Op> {
        let mut ops: Vec<Op> = Vec::with_capacity(row.len());
        for op in row {
            match ops.last_mut() {
                Some(last) if op.kind() == OpKind::W && *last == half(op, OpKind::B) && self.gains(op) => {
                    *last = half(op, OpKind::BW);
                }
                _ => ops.push(*op),
            }
        }
        ops
    }

    /// Offers the rows with all cut backwards whole, where their B stands, that `which` names by rank and op.
    fn offer_whole(&mut self, which: impl Fn(usize, &Op) -> bool) {
        let whole = |rank: usize, op: &Op| which(rank, op) && self.gains(op);
        let change = |rank: usize, op: &Op| match op.kind() {
            OpKind::W if whole(rank, op) => None,
            OpKind::B if whole(rank, op) => Some(half(op, OpKind::BW)),
            _ => Some(*op),
        };
        let row = |(rank, row): (usize, &Vec<Op>)| row.iter().filter_map(|op| change(rank, op)).collect();
        // A BW that stands already has no W.
        let rows: Vec<Vec<Op>> = self.rows.iter().enumerate().map(row).collect();
        if rows != self.rows {
            self.offer(rows);
        }
    }

    /// Changes backwards one by one; false where none is left that makes the order better.
    fn pass(&mut self) -> bool {
        let mut better = false;
        for rank in 0..self.rows.len() {
            let backwards = self.rows[rank].iter().filter(|op| op.kind().makes_input_gradient() && self.gains(op));
            let backwards: Vec<Op> = backwards.map(|op| half(op, OpKind::B)).collect();
            for of in backwards {
                let is_whole = self.rows[rank].contains(&half(&of, OpKind::BW));
                let far = self.rows[rank].len();
                let cuts = [Way::Cut(0), Way::Cut(1), Way::Cut(2), Way::Cut(4), Way::Cut(far)];
                let ways: &[Way] = if is_whole { &cuts } else { &[Way::AtB, Way::AtW] };
                for way in ways {
                    if self.left == 0 {
                        return false;
                    }
                    let mut rows = self.rows.clone();
                    rows[rank] = changed(&rows[rank], &of, *way);
                    if self.offer(rows) {
                        better = true;
                        break;
                    }
                }
            }
        }
        better
    }
}

fn half(op: &Op, kind: OpKind) -> Op {
    Op::new(op.stage(), kind, op.microbatch())
}

/// The row with the backward of the stage and microbatch of `of` run in another way.
fn changed(row: &[Op], of: &Op, way: Way) -> Vec<Op> {
    let [b, w, whole] = [OpKind::B, OpKind::W, OpKind::BW].map(|kind| half(of, kind));
    let mut ops: Vec<Op> = Vec::with_capacity(row.len() + 1);
    // Ops until W, after B.
    let mut until: Option<usize> = None;
    for op in row {
        if until == Some(0) {
            ops.push(w);
            until = None;
        }
        until = until.map(|until| until - 1);
        match way {
            Way::AtB if *op == b => ops.push(whole),
            Way::AtB if *op == w => {}
            Way::AtW if *op == w => ops.push(whole),
            Way::AtW if *op == b => {}
            Way::Cut(behind) if *op == whole => {
                ops.push(b);
                until = Some(behind);
            }
            _ => ops.push(*op),
        }
    }
    ops.extend(until.map(|_| w));
    ops
}
