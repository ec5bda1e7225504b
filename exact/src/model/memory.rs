//! What the ops of a rank hold, as sums over the orders of its ops.

use pipeplan_core::problem::Problem;
use pipeplan_core::problem::op::{Op, OpKind};
use pumpkin_constraints as constraints;
use pumpkin_core::Solver;
use pumpkin_core::variables::{AffineView, DomainId, TransformableVariable};

use super::jobs::{Jobs, gcd};
use super::order::{Orders, known_order};
use super::times::Times;
use crate::Refused;

/// So must sums of bytes.
const MOST_BYTE_UNITS: u64 = 1 << 29;

/// For each op of the rank: what the ops before it have left held, and what it takes itself, fit the limit.
pub(super) fn post_memory(
    problem: &Problem,
    jobs: &Jobs,
    times: &[Times],
    rank: usize,
    order: &mut Orders,
    solver: &mut Solver,
) -> Result<(), Refused> {
    let Some(limit) = problem.limit_bytes(rank) else { return Ok(()) };
    let free = limit as i64 - problem.static_bytes(rank) as i64;
    let mine: Vec<usize> = (0..jobs.jobs.len()).filter(|job| jobs.jobs[*job].rank == rank).collect();
    let bytes = |op: Op, kind: OpKind| {
        let cost = problem.cost(op.stage());
        (cost.takes(kind) as i64, cost.takes(kind) as i64 - cost.gives(kind) as i64)
    };
    let of = |job: usize| bytes(jobs.jobs[job].op, jobs.jobs[job].op.kind());
    let takes = |job: usize| of(job).0;
    // Of a whole backward too, what B and W leave is what BW does.
    let leaves = |job: usize| of(job).1;
    // How much more an op takes where its backward is whole: B as much as BW, and W no more than was taken with B.
    let more_whole = |job: usize| {
        let op = jobs.jobs[job].op;
        let whole = bytes(op, OpKind::BW).0;
        match (op.kind(), times[job].whole) {
            (OpKind::B, Some(_)) => whole - takes(job),
            (OpKind::W, Some(_)) => (whole - bytes(op, OpKind::B).1 - takes(job)).min(0),
            _ => 0,
        }
    };
    // Bytes in the largest unit that measures all of them. Where sums are still too long for the solver, the
    // rows are rounded so that they forbid less: the bound stays a bound, and `value` looks at the schedule.
    let mut exact_unit = 0u64;
    let mut all = 0u64;
    for job in &mine {
        for bytes in [leaves(*job), more_whole(*job)] {
            exact_unit = gcd(exact_unit, bytes.unsigned_abs());
            all = all.saturating_add(bytes.unsigned_abs());
        }
    }
    let exact_unit = exact_unit.max(1) as i64;
    let unit = exact_unit.max(all.div_ceil(MOST_BYTE_UNITS) as i64);
    for &after in &mine {
        let others = || mine.iter().copied().filter(|before| *before != after && leaves(*before) != 0);
        let open = |before: usize| known_order(jobs, problem, before, after).is_none();
        let before_it = |before: usize| known_order(jobs, problem, before, after) == Some(true);
        let fixed: i64 = others().filter(|before| before_it(*before)).map(leaves).sum();
        let room = free - takes(after) - fixed;
        let more = more_whole(after);
        let most: i64 = others().filter(|before| open(*before)).map(|before| leaves(before).max(0)).sum();
        let least: i64 = others().filter(|before| open(*before)).map(|before| leaves(before).min(0)).sum();
        if least + more.min(0) > room {
            return Err(Refused::Infeasible);
        }
        if most + more.max(0) <= room {
            continue;
        }
        let mut terms: Vec<AffineView<DomainId>> = Vec::new();
        for before in others().filter(|before| open(*before)) {
            let literal = order.literal(times, before, after, solver).get_integer_variable();
            terms.push(literal.scaled(leaves(before).div_euclid(unit) as i32));
        }
        if let Some(whole) = times[after].whole.filter(|_| more != 0) {
            terms.push(whole.get_integer_variable().scaled(more.div_euclid(unit) as i32));
        }
        let room = room.div_euclid(unit) + i64::from(unit > exact_unit);
        let tag = solver.new_constraint_tag();
        solver.add_constraint(constraints::less_than_or_equals(terms, room as i32, tag)).post();
    }
    Ok(())
}
