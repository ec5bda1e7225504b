//! Which of two ops of a rank comes first.

use std::collections::BTreeMap;

use pipeplan_core::problem::Problem;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::placement::Placement;
use pumpkin_constraints as constraints;
use pumpkin_core::Solver;
use pumpkin_core::variables::{DomainId, Literal, TransformableVariable};

use super::jobs::{Jobs, may_fuse};
use super::times::Times;

/// Ops without duration, which take no part in keeping ops apart, are not within another op either: they come before it
/// or after it. Nor is any op within what a cut backward takes more than its share of a whole one.
pub(super) fn post_apart(
    problem: &Problem,
    jobs: &Jobs,
    times: &[Times],
    rank: usize,
    order: &mut Orders,
    solver: &mut Solver,
) {
    let mine: Vec<usize> = (0..jobs.jobs.len()).filter(|job| jobs.jobs[*job].rank == rank).collect();
    let is_short = |job: usize| jobs.jobs[job].ticks == 0;
    let has_more = |job: usize| jobs.jobs[job].cut_ticks > jobs.jobs[job].ticks;
    for (at, &one) in mine.iter().enumerate() {
        for &other in &mine[at + 1..] {
            let is_open = is_short(one) != is_short(other) || has_more(one) || has_more(other);
            if is_open && known_order(jobs, problem, one, other).is_none() {
                order.literal(times, one, other, solver);
            }
        }
    }
}

/// Of the split backwards of a stage, the first has its W first.
pub(super) fn post_order_of_cut(
    problem: &Problem,
    jobs: &Jobs,
    times: &[Times],
    rank: usize,
    order: &mut Orders,
    solver: &mut Solver,
) {
    for one in (0..jobs.jobs.len()).filter(|job| jobs.jobs[*job].rank == rank) {
        let first = jobs.jobs[one].op;
        for other in one + 1..jobs.jobs.len() {
            let second = jobs.jobs[other].op;
            if first.kind() == OpKind::W
                && (second.kind(), second.stage(), jobs.jobs[other].rank) == (OpKind::W, first.stage(), rank)
                && let (Some(one_whole), Some(other_whole)) = (times[one].whole, times[other].whole)
                && is_same_way(jobs, problem, one, other)
            {
                let before = order.literal(times, one, other, solver);
                let tag = solver.new_constraint_tag();
                let either = [one_whole, other_whole].map(|whole| whole.get_true_predicate());
                solver.add_clause(either.into_iter().chain([before.get_true_predicate()]), tag);
            }
        }
    }
}

/// A whole backward comes before another op, or behind it, with both its halves.
pub(super) fn post_whole(problem: &Problem, jobs: &Jobs, times: &[Times], order: &mut Orders, solver: &mut Solver) {
    let known: Vec<(usize, usize)> = order.known.keys().copied().collect();
    for (one, other) in known {
        for (weight, other) in [(one, other), (other, one)] {
            let op = jobs.jobs[weight].op;
            let (OpKind::W, Some(whole)) = (op.kind(), times[weight].whole) else { continue };
            let Some(input) = jobs.at(1, op.stage(), op.microbatch()) else { continue };
            let behind = order.literal(times, weight, other, solver);
            let with_input = match known_order(jobs, problem, input, other) {
                Some(true) => solver.get_true_literal(),
                Some(false) => solver.get_false_literal(),
                None => order.literal(times, input, other, solver),
            };
            for (a, b) in [(behind, with_input), (with_input, behind)] {
                let tag = solver.new_constraint_tag();
                let clause = [whole.get_false_predicate(), a.get_false_predicate(), b.get_true_predicate()];
                solver.add_clause(clause, tag);
            }
        }
    }
}

/// Starts say nothing of the order of ops that take no time, and literals by twos may go round in a circle. So each such op
/// has a place, above that of every one before it.
pub(super) fn post_places(problem: &Problem, jobs: &Jobs, order: &Orders, solver: &mut Solver) {
    let most = jobs.jobs.iter().filter(|job| job.ticks == 0).count() as i32;
    let places: Vec<Option<DomainId>> =
        jobs.jobs.iter().map(|job| (job.ticks == 0).then(|| solver.new_bounded_integer(0, most))).collect();
    let mut before = |a: usize, b: usize, when: Option<Literal>| {
        let (Some(first), Some(second)) = (places[a], places[b]) else { return };
        let tag = solver.new_constraint_tag();
        let row =
            solver.add_constraint(constraints::binary_less_than_or_equals(first.offset(1), second.scaled(1), tag));
        match when {
            Some(literal) => row.implied_by(literal),
            None => row.post(),
        }
    };
    for (a, b, _) in jobs.dependencies(problem) {
        before(a, b, None);
    }
    for (a, b, literal) in order.known.iter().map(|((a, b), literal)| (*a, *b, *literal)) {
        before(a, b, Some(literal));
        before(b, a, Some(!literal));
    }
    for (a, b) in jobs.in_turn(problem) {
        before(a, b, None);
    }
}

pub(super) struct Orders {
    pub(super) known: BTreeMap<(usize, usize), Literal>,
}

impl Orders {
    /// True where `before` ends before `after` starts; false where the other way round.
    pub(super) fn literal(&mut self, times: &[Times], before: usize, after: usize, solver: &mut Solver) -> Literal {
        let flipped = before > after;
        let key = (before.min(after), before.max(after));
        let literal = *self.known.entry(key).or_insert_with(|| {
            let literal = solver.new_literal();
            for (literal, first, second) in [(literal, key.0, key.1), (!literal, key.1, key.0)] {
                let tag = solver.new_constraint_tag();
                let (end, start) = (times[first].end, times[second].start.scaled(1));
                solver.add_constraint(constraints::binary_less_than_or_equals(end, start, tag)).implied_by(literal);
            }
            literal
        });
        if flipped { !literal } else { literal }
    }
}

/// Whether the microbatches of two ops have the same direction.
fn is_same_way(jobs: &Jobs, problem: &Problem, a: usize, b: usize) -> bool {
    let is_second = |job: usize| jobs.jobs[job].op.microbatch() >= jobs.microbatches / 2;
    *problem.placement() != Placement::Bidirectional || is_second(a) == is_second(b)
}

/// Whether `a` comes before `b` in every schedule that is looked for, after it in every one, or neither.
pub(super) fn known_order(jobs: &Jobs, problem: &Problem, a: usize, b: usize) -> Option<bool> {
    if !is_same_way(jobs, problem, a, b) {
        return None;
    }
    let (a, b) = (jobs.jobs[a].op, jobs.jobs[b].op);
    // An op is surely before another where dependencies lead from it to one of the same or an earlier
    // microbatch: F of a stage before F of a later one and before every B of an earlier one, and so on.
    let leads = |a: Op, b: Op| {
        let along = match (a.kind(), b.kind()) {
            (OpKind::F, OpKind::F) => a.stage() <= b.stage(),
            // F leads through the last stage to every B of its microbatch.
            (OpKind::F, _) => true,
            (OpKind::B | OpKind::BW, OpKind::B | OpKind::BW) => b.stage() <= a.stage(),
            (OpKind::B, OpKind::W) => b.stage() <= a.stage(),
            (OpKind::W, OpKind::W) => a.stage() == b.stage() && !may_fuse(problem, a.stage()),
            _ => false,
        };
        along && a.microbatch() <= b.microbatch()
    };
    match (leads(a, b), leads(b, a)) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}
