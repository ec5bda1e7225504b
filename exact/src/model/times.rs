//! Starts and ends as variables of the solver, and the cost that follows from them.

use pipeplan_core::base::units::Nanos;
use pipeplan_core::problem::op::OpKind;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Objective, Problem};
use pumpkin_constraints as constraints;
use pumpkin_core::Solver;
use pumpkin_core::predicates::PredicateConstructor;
use pumpkin_core::variables::{AffineView, DomainId, Literal, TransformableVariable};

use super::jobs::{Job, Jobs, may_fuse};

/// The variables of the solver for a job.
pub(super) struct Times {
    pub(super) start: DomainId,
    pub(super) end: AffineView<DomainId>,
    /// Of a B or W, whether its backward is whole, where that is open.
    pub(super) whole: Option<Literal>,
}

/// When jobs start and end. Where a backward is whole its B ends with all of it, and W stands where its share of that
/// does.
pub(super) fn post_times(problem: &Problem, jobs: &Jobs, horizon: i32, solver: &mut Solver) -> Vec<Times> {
    let starts: Vec<DomainId> =
        jobs.jobs.iter().map(|job| solver.new_bounded_integer(0, (horizon - job.ticks).max(0))).collect();
    let mut times: Vec<Times> = jobs
        .jobs
        .iter()
        .zip(starts)
        .map(|(job, start)| Times { start, end: start.offset(job.ticks), whole: None })
        .collect();
    for stage in (0..jobs.stages).filter(|stage| may_fuse(problem, *stage)) {
        for microbatch in 0..jobs.microbatches {
            let (Some(b), Some(w)) = (jobs.at(1, stage, microbatch), jobs.at(2, stage, microbatch)) else { continue };
            let whole = solver.new_literal();
            let [b_start, w_start] = [b, w].map(|job| times[job].start);
            let ends = [b, w].map(|job| solver.new_bounded_integer(jobs.jobs[job].ticks, horizon));
            let mut no_later = |a: AffineView<DomainId>, b: AffineView<DomainId>, when: Option<Literal>| {
                let tag = solver.new_constraint_tag();
                let row = solver.add_constraint(constraints::binary_less_than_or_equals(a, b, tag));
                match when {
                    Some(literal) => row.implied_by(literal),
                    None => row.post(),
                }
            };
            let [cut, all] = [!whole, whole];
            let Job { ticks: first, cut_ticks: b_ticks, whole_ticks, .. } = jobs.jobs[b];
            let Job { ticks: second, cut_ticks: w_ticks, .. } = jobs.jobs[w];
            let [b_end, w_end] = ends.map(|end| end.scaled(1));
            no_later(b_start.offset(first), b_end, None);
            no_later(b_start.offset(b_ticks), b_end, Some(cut));
            no_later(b_start.offset(whole_ticks), b_end, Some(all));
            no_later(w_start.offset(second), w_end, None);
            no_later(w_start.offset(w_ticks), w_end, Some(cut));
            no_later(b_end, w_end, Some(all));
            no_later(b_start.offset(first), w_start.scaled(1), None);
            no_later(b_end, w_start.scaled(1), Some(cut));
            no_later(w_start.scaled(1), b_start.offset(first), Some(all));
            for (job, end) in [(b, b_end), (w, w_end)] {
                (times[job].end, times[job].whole) = (end, Some(whole));
            }
        }
    }
    times
}

/// The stages whose first F is the first op of a rank, each the next on the way of a microbatch: the first `P`, where they
/// lie on different ranks. None where it does not matter when a rank starts.
pub(super) fn heads(problem: &Problem) -> std::ops::Range<usize> {
    let ranks = problem.ranks();
    let mut seen = vec![false; ranks];
    (0..ranks).for_each(|stage| seen[problem.rank_of(stage, 0)] = true);
    let is_open = problem.objective() == Objective::Makespan
        || *problem.placement() == Placement::Bidirectional
        || seen.contains(&false);
    0..if is_open { 0 } else { ranks }
}

/// Ops start as soon as they can, so under the longest span no rank puts off its first op: it starts when some
/// microbatch arrives. That need not be the first to leave the stage before: where another overtakes it, a rank starts
/// later, and its span may be shorter.
///
/// Until a rank sends its first microbatch on, it runs nothing but F, and of those up to that one each starts when the one
/// before ends or when a microbatch arrives. Jobs keep the order in which their stage runs them, so any start that follows
/// these rules is that of an order: [`rows`] says of which microbatches.
pub(super) fn post_first_starts(problem: &Problem, jobs: &Jobs, times: &[Times], solver: &mut Solver) {
    let heads = heads(problem);
    // Each length is rounded by itself, so starts that are equal may be a tick apart for each of two lengths.
    let loose = if jobs.is_rounded { 1 } else { 0 };
    // Whether the n-th F of the stage is one of those whose start has to be exact.
    let mut exact: Vec<Option<Literal>> = vec![None; jobs.microbatches];
    for stage in heads.rev() {
        let mut before: Vec<Option<Literal>> = vec![None; jobs.microbatches];
        let always = solver.get_true_literal();
        exact[0] = Some(always);
        for microbatch in (0..jobs.microbatches).rev() {
            let (Some(is_exact), Some(job)) = (exact[microbatch], jobs.at(0, stage, microbatch)) else { continue };
            let start = times[job].start;
            let mut reasons = vec![is_exact.get_false_predicate()];
            let previous = microbatch.checked_sub(1).and_then(|previous| jobs.at(0, stage, previous));
            if let (Some(previous), Some(at)) = (previous, microbatch.checked_sub(1)) {
                let follows = solver.new_literal();
                let tag = solver.new_constraint_tag();
                let end = times[previous].end.offset(loose);
                solver
                    .add_constraint(constraints::binary_less_than_or_equals(start.scaled(1), end, tag))
                    .implied_by(follows);
                reasons.push(follows.get_true_predicate());
                let is_exact_before = *exact[at].get_or_insert_with(|| solver.new_literal());
                implies(is_exact, is_exact_before, solver);
            }
            if stage == 0 && microbatch == 0 {
                reasons.push(start.upper_bound_predicate(0));
            }
            for arrived in (microbatch..jobs.microbatches).filter(|_| stage > 0) {
                let Some(from) = jobs.at(0, stage - 1, arrived) else { continue };
                let hop = problem.hop(jobs.jobs[from].rank, jobs.jobs[job].rank);
                let arrival = times[from].end.offset((hop / jobs.unit_ns) as i32);
                if solver.lower_bound(&arrival) > solver.upper_bound(&start) + 2 * loose {
                    // Nor does any that arrives later start it.
                    break;
                }
                let starts_it = solver.new_literal();
                let [tag, other] = [(); 2].map(|()| solver.new_constraint_tag());
                let latest = arrival.offset(2 * loose);
                solver
                    .add_constraint(constraints::binary_less_than_or_equals(start.scaled(1), latest, tag))
                    .implied_by(starts_it);
                solver
                    .add_constraint(constraints::binary_less_than_or_equals(arrival, start.scaled(1), other))
                    .implied_by(starts_it);
                let is_exact_before = *before[arrived].get_or_insert_with(|| solver.new_literal());
                implies(starts_it, is_exact_before, solver);
                reasons.push(starts_it.get_true_predicate());
            }
            let tag = solver.new_constraint_tag();
            solver.add_clause(reasons, tag);
        }
        exact = before;
    }
}

fn implies(a: Literal, b: Literal, solver: &mut Solver) {
    let tag = solver.new_constraint_tag();
    solver.add_clause([a.get_false_predicate(), b.get_true_predicate()], tag);
}

/// The time of `microbatch` alone.
pub(super) fn one_by_one(problem: &Problem, microbatch: usize) -> Nanos {
    let ranks: Vec<usize> = (0..problem.stage_count()).map(|stage| problem.rank_of(stage, microbatch)).collect();
    let compute: Nanos =
        problem.costs().iter().map(|cost| cost.duration(OpKind::F) + cost.duration(OpKind::BW)).sum();
    let hops: Nanos =
        ranks.windows(2).map(|pair| problem.hop(pair[0], pair[1]) + problem.hop(pair[1], pair[0])).sum();
    compute + hops
}

pub(super) fn post_objective(
    problem: &Problem,
    jobs: &Jobs,
    times: &[Times],
    rank: usize,
    cost: DomainId,
    solver: &mut Solver,
) {
    // First and last microbatches are enough, for each kind and stage keeps their order; but for W where backwards may
    // be whole.
    let lanes = jobs.lanes(problem);
    let any_last = |row: usize, stage: usize| row == 2 && may_fuse(problem, stage);
    let mine = |row: usize, stage: usize, microbatch: usize| {
        jobs.at(row, stage, microbatch).filter(|job| jobs.jobs[*job].rank == rank)
    };
    let stages = 0..jobs.stages;
    let lasts: Vec<usize> = lanes
        .iter()
        .flat_map(|lane| stages.clone().flat_map(|stage| [1, 2].map(|row| (row, stage, lane.clone()))))
        .flat_map(|(row, stage, lane)| {
            let from = if any_last(row, stage) { lane.start } else { lane.end - 1 };
            (from..lane.end).map(move |microbatch| (row, stage, microbatch))
        })
        .filter_map(|(row, stage, microbatch)| mine(row, stage, microbatch))
        .collect();
    let firsts: Vec<usize> = match problem.objective() {
        Objective::Makespan => Vec::new(),
        Objective::LongestSpan => lanes
            .iter()
            .flat_map(|lane| stages.clone().map(move |stage| (stage, lane.start)))
            .filter_map(|(stage, microbatch)| mine(0, stage, microbatch))
            .collect(),
    };
    for last in lasts {
        let end = times[last].end;
        if firsts.is_empty() {
            let tag = solver.new_constraint_tag();
            let row = constraints::binary_less_than_or_equals(end, cost.scaled(1), tag);
            solver.add_constraint(row).post();
        }
        for first in &firsts {
            let tag = solver.new_constraint_tag();
            let terms = vec![end, times[*first].start.scaled(-1), cost.scaled(-1)];
            solver.add_constraint(constraints::less_than_or_equals(terms, 0, tag)).post();
        }
    }
}
