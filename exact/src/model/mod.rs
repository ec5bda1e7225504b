//! The problem as the constraint solver sees it.
//!
//! - A start time for each op. In a split problem B and W stand apart: a fused BW is never better, for it may
//!   be replaced in place by its two halves, which take no more memory.
//! - Where a BW takes less time than its halves, or holds less, a literal says for each of them whether it is whole. Then
//!   its B stands for all of it, and its W, which follows at once, for nothing. What B and W take at least is known
//!   beforehand; when they end follows from the literal.
//! - Dependencies with durations and hops; microbatches in order for each kind and stage. Microbatches that
//!   have the same direction are alike, so any schedule can be renumbered to be so: the n-th B starts no sooner
//!   than n F have ended, whichever they were. Of W only those of cut backwards are in order.
//! - On each rank the ops exclude each other. Those that take no time have a place in an order besides.
//! - Memory: what is held when an op starts depends only on which ops of its rank came before. One literal
//!   for each pair of ops whose order matters and is open; then one linear row an op.
//! - The objective's variable lies above every span that it measures. A span begins when some microbatch arrives, not
//!   when it suits.

use std::collections::BTreeMap;

use pipeplan_core::base::units::Nanos;
use pipeplan_core::problem::op::OpKind;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Objective, Problem};
use pumpkin_conflict_resolvers::resolvers::ResolutionResolver;
use pumpkin_constraints as constraints;
use pumpkin_core::Solver;
use pumpkin_core::predicates::PredicateConstructor;
use pumpkin_core::results::{ProblemSolution, SatisfactionResultUnderAssumptions};
use pumpkin_core::variables::{DomainId, TransformableVariable};
use pumpkin_propagators::disjunctive::ArgDisjunctiveTask;

use crate::{Clock, Exact, Refused, value};

mod jobs;
mod memory;
mod order;
mod solution;
mod times;

use jobs::Jobs;
use memory::post_memory;
use order::{Orders, post_apart, post_order_of_cut, post_places, post_whole};
use solution::rows;
use times::{Times, one_by_one, post_first_starts, post_objective, post_times};

/// The steps of the first question: whether the bound itself can be met.
const PROBE_STEPS: u64 = 20_000;

/// Improves `best` until it is proved or the clock stops.
pub(crate) fn improve(problem: &Problem, best: &mut Exact, clock: &mut Clock<'_>) -> Result<(), Refused> {
    // Running one op after the other, with every hop waited for, is no worse than any schedule of interest.
    let serial_ns: Nanos = (0..problem.microbatches()).map(|microbatch| one_by_one(problem, microbatch)).sum();
    let upper_ns = best.value_ns.min(serial_ns);
    // Under the longest span a rank may end after the rank of stage 0 has, by less than one span; in a bidirectional
    // placement the ranks of both first stages count.
    let horizon_ns = match (problem.objective(), problem.placement()) {
        (Objective::Makespan, _) => upper_ns,
        (Objective::LongestSpan, Placement::Bidirectional) => 3 * upper_ns,
        (Objective::LongestSpan, _) => 2 * upper_ns,
    };
    let jobs = Jobs::of(problem, horizon_ns);
    let unit_ns = jobs.unit_ns;
    let horizon = horizon_ns.div_ceil(unit_ns) as i32;
    let mut solver = Solver::default();
    let times = post_times(problem, &jobs, horizon, &mut solver);
    let most = upper_ns.div_ceil(unit_ns) as i32;
    let least = ((best.lower_ns / unit_ns).saturating_sub(jobs.slack) as i32).min(most);
    let cost = solver.new_bounded_integer(least, most);
    // `a`, then `gap`, then `b`.
    let after = |solver: &mut Solver, a: usize, gap: i32, b: usize| {
        let tag = solver.new_constraint_tag();
        let rows = constraints::binary_less_than_or_equals(times[a].end.offset(gap), times[b].start.scaled(1), tag);
        solver.add_constraint(rows).post();
    };
    for (a, b, hop) in jobs.dependencies(problem) {
        // Of a backward that may be whole, `post_times` has it.
        if times[a].whole.is_none() || jobs.jobs[b].op.kind() != OpKind::W {
            after(&mut solver, a, (hop / unit_ns) as i32, b);
        }
    }
    for (a, b) in jobs.in_turn(problem) {
        after(&mut solver, a, 0, b);
    }
    let mut order = Orders { known: BTreeMap::new() };
    for rank in 0..problem.ranks() {
        if clock.should_stop_writing() {
            return Ok(());
        }
        let tasks: Vec<_> = (0..jobs.jobs.len())
            .filter(|job| jobs.jobs[*job].rank == rank && jobs.jobs[*job].ticks > 0)
            .map(|job| ArgDisjunctiveTask {
                start_time: times[job].start.scaled(1),
                processing_time: jobs.jobs[job].ticks,
            })
            .collect();
        if tasks.len() > 1 {
            let tag = solver.new_constraint_tag();
            solver.add_constraint(constraints::disjunctive_strict(tasks, tag)).post();
        }
        post_apart(problem, &jobs, &times, rank, &mut order, &mut solver);
        post_objective(problem, &jobs, &times, rank, cost, &mut solver);
        post_memory(problem, &jobs, &times, rank, &mut order, &mut solver)?;
        post_order_of_cut(problem, &jobs, &times, rank, &mut order, &mut solver);
    }
    if clock.should_stop_writing() {
        return Ok(());
    }
    post_whole(problem, &jobs, &times, &mut order, &mut solver);
    post_places(problem, &jobs, &order, &mut solver);
    // This comes last, when most is known to be impossible.
    post_first_starts(problem, &jobs, &times, &mut solver);
    probe(problem, &Model { jobs, times, order, cost }, &mut solver, best, clock)
}

/// All that the solver was given.
struct Model {
    jobs: Jobs,
    times: Vec<Times>,
    order: Orders,
    cost: DomainId,
}

/// Asks for cheaper and cheaper schedules: first for one that meets the bound, then for one a little better than the
/// best.
fn probe(
    problem: &Problem,
    model: &Model,
    solver: &mut Solver,
    best: &mut Exact,
    clock: &mut Clock<'_>,
) -> Result<(), Refused> {
    let (jobs, cost) = (&model.jobs, model.cost);
    let unit_ns = jobs.unit_ns;
    let mut brancher = solver.default_brancher();
    let mut resolver = ResolutionResolver::default();
    let any = solver.upper_bound(&cost) as u64;
    let mut first = true;
    // The least cost that the solver has seen, in ticks. Run as soon as possible, a schedule may cost more
    // than that where times are rounded or a rank's first op was put off; it never costs less.
    let mut seen = best.schedule.is_some().then(|| best.value_ns.div_ceil(unit_ns));
    loop {
        let lower = best.lower_ns.div_ceil(unit_ns);
        let target = match seen {
            _ if first => lower.min(any),
            Some(seen) => (seen - 1).min(any),
            None => any,
        };
        clock.probe_left = first.then_some(PROBE_STEPS);
        let wanted = [cost.upper_bound_predicate(target as i32)];
        let proved_more = match solver.satisfy_under_assumptions(&mut brancher, clock, &mut resolver, &wanted) {
            SatisfactionResultUnderAssumptions::Satisfiable(satisfiable) => {
                let solution = satisfiable.solution();
                let ticks = solution.get_integer_value(cost) as u64;
                seen = Some(ticks);
                let schedule = rows(problem, model, &solution);
                if let Some(value_ns) = value(problem, &schedule)
                    && value_ns < best.value_ns
                {
                    best.schedule = Some(schedule);
                    best.value_ns = value_ns;
                    seen = Some(ticks.min(value_ns.div_ceil(unit_ns)));
                }
                false
            }
            SatisfactionResultUnderAssumptions::UnsatisfiableUnderAssumptions(_)
            | SatisfactionResultUnderAssumptions::Unsatisfiable(_) => true,
            SatisfactionResultUnderAssumptions::Unknown(_) if first && !clock.is_spent() => {
                first = false;
                continue;
            }
            SatisfactionResultUnderAssumptions::Unknown(_) => return Ok(()),
        };
        first = false;
        if proved_more {
            if seen.is_none() && target >= any {
                return Err(Refused::Infeasible);
            }
            best.lower_ns = best.lower_ns.max((target + 1 - jobs.slack) * unit_ns).min(best.value_ns);
        }
        if (best.value_ns, best.lower_ns) != clock.known {
            clock.tell(best);
        }
        let closed = seen.is_some_and(|seen| seen <= best.lower_ns.div_ceil(unit_ns) || seen == 0);
        if best.value_ns <= best.lower_ns || closed {
            return Ok(());
        }
    }
}
