//! Overlapped pairs: which forwards and backwards of an order run as pairs, where the problem lets one hide behind the other.
//!
//! The search orders single ops. Here neighbouring forwards and backwards of an order are paired, all at first; then each pair is
//! split, or joined again, where that makes the order shorter. A pair starts when both ops have their inputs and ends for both at
//! once, so it can also cost time.
//!
//! DualPipe (DeepSeek-V3, arXiv:2412.19437, §3.2.1) pairs a forward with a whole backward. So a B with its W right behind it is
//! also tried as one op, and forwards right behind a backward before it: those that leave it without a partner, or all of them,
//! which is one more microbatch in flight on each rank.

use alloc::vec;
use alloc::vec::Vec;

use super::makespan::Cost;
use crate::base::units::{Bytes, Nanos};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::simulate::simulate;
use crate::simulate::timeline::Timeline;

/// Ops that are simulated to choose the pairs of an order, and the least number of simulations of each of its forms.
const MOST_OPS: usize = 1_000_000;
const LEAST_RUNS: usize = 8;

/// The order of `schedule` with pairs, and its cost, where that is less than `below` and not less than `floor`. The
/// work is halved `halved` times.
pub(super) fn paired(
    problem: &Problem,
    schedule: &Schedule,
    (floor, below): (Nanos, Nanos),
    halved: u32,
) -> Option<(Schedule, Nanos)> {
    let mut best: Option<(Schedule, Nanos)> = None;
    let ops: usize = schedule.rows.iter().map(Vec::len).sum();
    let runs = ((MOST_OPS / FORMS.len() / ops.max(1)) >> halved.min(31)).max(LEAST_RUNS);
    for form in FORMS {
        let rows = schedule.rows.iter().map(|row| prepare(row, form)).collect();
        let known = best.as_ref().map_or(below, |best| best.1);
        if let Some(found) = choose(problem, rows, floor, runs)
            && found.1 < known
        {
            best = Some(found);
        }
    }
    best
}

/// The order of `schedule` with every pair that fits, where it costs less than `below` and not less than `floor`, and what it
/// costs: one simulation for each of its forms.
pub(super) fn all_paired(
    problem: &Problem,
    schedule: &Schedule,
    floor: Nanos,
    below: Nanos,
) -> Option<(Schedule, Nanos)> {
    let mut best: Option<(Schedule, Nanos)> = None;
    for form in FORMS {
        let rows: Vec<Vec<Op>> = schedule.rows.iter().map(|row| prepare(row, form)).collect();
        let pairs = rows.iter().enumerate().map(|(rank, row)| places_of(problem, rank, row)).collect();
        let schedule = Schedule { rows, pairs, ..Schedule::default() };
        if let Some(cost) = cost(problem, &schedule)
            && (floor..best.as_ref().map_or(below, |best| best.1)).contains(&cost.objective)
        {
            best = Some((schedule, cost.objective));
        }
    }
    best
}

/// The cost of `schedule`, if it runs and keeps the limits.
pub(super) fn cost(problem: &Problem, schedule: &Schedule) -> Option<Cost> {
    let timeline = simulate(problem, schedule).ok()?;
    let fits =
        |rank: usize| problem.limit_bytes(rank).is_none_or(|limit| timeline.peak_bytes(problem, rank) <= limit);
    if !(0..problem.ranks()).all(fits) {
        return None;
    }
    Some(Cost { objective: timeline.cost_ns(problem.objective()), ends: ends(&timeline) })
}

/// How early the ranks end in sum.
fn ends(timeline: &Timeline) -> u64 {
    let ranks = timeline.rows.len().max(1) as u64;
    timeline.rows.iter().filter_map(|row| row.last()).map(|span| span.end_ns / ranks).sum()
}

/// Which forwards go before the backward that they follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swapped {
    None,
    /// Those whose backward has no partner before it.
    Lone,
    All,
}

/// The forms in which an order is tried, and whether every B and the W right behind it are one op.
const FORMS: [(Swapped, bool); 6] = [
    (Swapped::None, false),
    (Swapped::None, true),
    (Swapped::Lone, false),
    (Swapped::Lone, true),
    (Swapped::All, false),
    (Swapped::All, true),
];

/// A row in one of the [`FORMS`].
fn prepare(row: &[Op], (swapped, whole): (Swapped, bool)) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::with_capacity(row.len());
    for &op in row {
        let last = ops.last().copied();
        match (last, op.kind()) {
            (Some(last), OpKind::W) if whole && last == Op::new(op.stage(), OpKind::B, op.microbatch()) => {
                ops.pop();
                ops.push(Op::new(op.stage(), OpKind::BW, op.microbatch()));
            }
            (Some(last), OpKind::F) if swapped != Swapped::None && last.kind().makes_input_gradient() => {
                // One that already stands behind a forward has its partner.
                let has_partner = ops.len() > 1 && ops[ops.len() - 2].kind() == OpKind::F;
                if has_partner && swapped == Swapped::Lone {
                    ops.push(op);
                } else {
                    ops.pop();
                    ops.extend([op, last]);
                }
            }
            _ => ops.push(op),
        }
    }
    ops
}

/// By place of `row`: whether its op and the next fit the limit of `rank` together.
fn fit_together(problem: &Problem, rank: usize, row: &[Op]) -> Vec<bool> {
    let limit = problem.limit_bytes(rank).unwrap_or(Bytes::MAX);
    let takes = |op: Op| problem.takes(op);
    let mut held = problem.static_bytes(rank);
    let fits = |pair: &[Op]| {
        let both = held.saturating_add(takes(pair[0])).saturating_add(takes(pair[1]));
        held = held.saturating_add(takes(pair[0])).saturating_sub(problem.gives(pair[0]));
        both <= limit
    };
    row.windows(2).map(fits).collect()
}

/// The places of `row` where a forward stands before a backward and both fit.
fn places_of(problem: &Problem, rank: usize, row: &[Op]) -> Vec<u32> {
    let is_pair = |pair: &[Op]| {
        // No backward overlaps the forward of its microbatch.
        let own = pair[0].stage() == pair[1].stage() && pair[0].microbatch() == pair[1].microbatch();
        pair[0].kind() == OpKind::F && pair[1].kind().makes_input_gradient() && !own
    };
    let found = row.windows(2).zip(fit_together(problem, rank, row)).enumerate();
    found.filter(|(_, (pair, fits))| is_pair(pair) && *fits).map(|(place, _)| place as u32).collect()
}

/// All places where a forward stands before a backward, and which of them are pairs in the best choice found.
fn choose(problem: &Problem, rows: Vec<Vec<Op>>, floor: Nanos, runs: usize) -> Option<(Schedule, Nanos)> {
    let mut places: Vec<(usize, u32, bool)> = Vec::new();
    for (rank, row) in rows.iter().enumerate() {
        places.extend(places_of(problem, rank, row).into_iter().map(|place| (rank, place, true)));
    }
    if places.is_empty() {
        return None;
    }
    let mut left = runs;
    let ranks = rows.len();
    let mut schedule = Schedule::of(rows);
    let mut run = |places: &[(usize, u32, bool)]| {
        if left == 0 {
            return None;
        }
        left -= 1;
        schedule.pairs = vec![Vec::new(); ranks];
        for (rank, place, _) in places.iter().filter(|place| place.2) {
            schedule.pairs[*rank].push(*place);
        }
        let cost = cost(problem, &schedule)?;
        (cost.objective >= floor).then_some(cost)
    };
    let mut best = run(&places);
    if best.is_none() {
        // Together they may wait for each other.
        places.iter_mut().for_each(|place| place.2 = false);
        best = run(&places);
    }
    let mut best = best?;
    // Rank by rank first, then one by one.
    let groups = (0..ranks).map(Some).chain([None]);
    for group in groups {
        let members: Vec<usize> =
            (0..places.len()).filter(|at| group.is_none_or(|rank| places[*at].0 == rank)).collect();
        let steps: Vec<Vec<usize>> = match group {
            Some(_) => vec![members],
            None => members.into_iter().map(|at| vec![at]).collect(),
        };
        for step in steps {
            let flip = |places: &mut Vec<(usize, u32, bool)>| step.iter().for_each(|at| places[*at].2 ^= true);
            flip(&mut places);
            match run(&places) {
                Some(cost) if cost < best => best = cost,
                _ => flip(&mut places),
            }
        }
    }
    let mut pairs = vec![Vec::new(); ranks];
    for (rank, place, _) in places.iter().filter(|place| place.2) {
        pairs[*rank].push(*place);
    }
    schedule.pairs = pairs;
    Some((schedule, best.objective))
}
