//! The problem as the constraint solver sees it.
//!
//! - A start time for each op. In a split problem B and W stand apart: a fused BW is never better, for it may
//!   be replaced in place by its two halves, which take no more memory.
//! - Where a BW takes less time than its halves, or holds less, a literal says for each of them whether it is whole. Then
//!   its B stands for all of it, and its W, which follows at once, for nothing. What B and W take at least is known
//!   beforehand; when they end follows from the literal.
//! - Dependencies with durations and hops; microbatches in order for each kind and stage. Microbatches that
//!   travel the same way are alike, so any schedule can be renumbered to be so: the n-th B starts no sooner
//!   than n F have ended, whichever they were. Of W only those of cut backwards are in order.
//! - On each rank the ops exclude each other. Those that take no time have a place in an order besides.
//! - Memory: what is held when an op starts depends only on which ops of its rank came before. One literal
//!   for each pair of ops whose order matters and is open; then one linear row an op.
//! - The objective's variable lies above every span that it measures. A span begins when some microbatch arrives, not
//!   when it suits.

use std::collections::BTreeMap;

use pipeplan_core::base::units::Nanos;
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Backward, Objective, Problem};
use pumpkin_conflict_resolvers::resolvers::ResolutionResolver;
use pumpkin_constraints as constraints;
use pumpkin_core::Solver;
use pumpkin_core::predicates::PredicateConstructor;
use pumpkin_core::results::{ProblemSolution, SatisfactionResultUnderAssumptions};
use pumpkin_core::variables::{AffineView, DomainId, Literal, TransformableVariable};
use pumpkin_propagators::disjunctive::ArgDisjunctiveTask;

use crate::{Clock, Exact, Refused, value};

/// Times in the solver are 32-bit; sums of a few of them must not overflow.
const MOST_TICKS: u64 = 1 << 28;
/// So must sums of bytes.
const MOST_BYTE_UNITS: u64 = 1 << 29;
/// What the first question may take: whether the bound itself can be met.
const PROBE_STEPS: u64 = 20_000;

struct Job {
    op: Op,
    rank: usize,
    /// What it takes at least, in ticks of [`Jobs::unit_ns`]: of a B and W that may be one, their share of that.
    ticks: i32,
    /// What it takes where its backward is cut, and a B where it is whole.
    cut_ticks: i32,
    whole_ticks: i32,
}

/// The variables of the solver for a job.
struct Times {
    start: DomainId,
    end: AffineView<DomainId>,
    /// Of a B or W, whether its backward is whole, where that is open.
    whole: Option<Literal>,
}

struct Jobs {
    jobs: Vec<Job>,
    /// By kind (F, B or BW, W), stage and microbatch.
    index: Vec<usize>,
    microbatches: usize,
    stages: usize,
    unit_ns: Nanos,
    /// Whether times were too fine for the solver, and were rounded down.
    is_rounded: bool,
    /// How many ticks a cost may grow by where times were rounded: a span lies between two roundings.
    slack: u64,
}

impl Jobs {
    fn of(problem: &Problem, horizon_ns: Nanos) -> Jobs {
        let (stages, microbatches) = (problem.stage_count(), problem.microbatches());
        let kinds: &[OpKind] = match problem.backward() {
            Backward::Split => &[OpKind::F, OpKind::B, OpKind::W],
            Backward::Fused => &[OpKind::F, OpKind::BW],
        };
        let mut unit_ns = 0;
        for stage in 0..stages {
            let whole = may_fuse(problem, stage).then_some(OpKind::BW);
            for kind in kinds.iter().copied().chain(whole) {
                unit_ns = gcd(unit_ns, problem.cost(stage).duration(kind));
            }
        }
        for from in 0..problem.ranks() {
            (0..problem.ranks()).for_each(|to| unit_ns = gcd(unit_ns, problem.hop(from, to)));
        }
        // Durations too fine for the solver are rounded down: its bound stays a bound.
        let fine_ns = unit_ns.max(1);
        let unit_ns = fine_ns.max(horizon_ns.div_ceil(MOST_TICKS));
        let is_rounded = unit_ns > fine_ns;
        let slack = u64::from(is_rounded && problem.objective() == Objective::LongestSpan);
        let mut jobs = Vec::with_capacity(kinds.len() * stages * microbatches);
        let mut index = vec![usize::MAX; 3 * stages * microbatches];
        for (row, kind) in kinds.iter().enumerate() {
            for stage in 0..stages {
                for microbatch in 0..microbatches {
                    let op = Op::new(stage, *kind, microbatch);
                    index[(row * stages + stage) * microbatches + microbatch] = jobs.len();
                    let of = |kind: OpKind| (problem.cost(stage).duration(kind) / unit_ns) as i32;
                    let (cut_ticks, whole_ticks) = (of(*kind), of(OpKind::BW));
                    let first = of(OpKind::B).min(whole_ticks);
                    let ticks = match kind {
                        OpKind::B if may_fuse(problem, stage) => first,
                        // Each rounded down, BW may be longer than both.
                        OpKind::W if may_fuse(problem, stage) => (whole_ticks - first).min(cut_ticks),
                        _ => cut_ticks,
                    };
                    let rank = problem.rank_of(stage, microbatch);
                    jobs.push(Job { op, rank, ticks, cut_ticks, whole_ticks });
                }
            }
        }
        Jobs { jobs, index, microbatches, stages, unit_ns, is_rounded, slack }
    }

    fn at(&self, row: usize, stage: usize, microbatch: usize) -> Option<usize> {
        let found = self.index[(row * self.stages + stage) * self.microbatches + microbatch];
        (found != usize::MAX).then_some(found)
    }

    /// Every `(before, after, hop)`.
    fn dependencies(&self, problem: &Problem) -> Vec<(usize, usize, Nanos)> {
        let mut found = Vec::new();
        for microbatch in 0..self.microbatches {
            let hop = |from: usize, to: usize| {
                problem.hop(problem.rank_of(from, microbatch), problem.rank_of(to, microbatch))
            };
            for stage in 0..self.stages {
                let at = |row, stage| self.at(row, stage, microbatch);
                if let (Some(forward), Some(backward)) = (at(0, stage), at(1, stage)) {
                    found.push((forward, backward, 0));
                    found.extend(at(2, stage).map(|weight| (backward, weight, 0)));
                    if stage + 1 < self.stages
                        && let (Some(next), Some(from)) = (at(0, stage + 1), at(1, stage + 1))
                    {
                        found.push((forward, next, hop(stage, stage + 1)));
                        found.push((from, backward, hop(stage + 1, stage)));
                    }
                }
            }
        }
        found
    }

    /// Pairs of jobs of a kind and stage of which the first runs before the second: microbatches in order.
    fn in_turn(&self, problem: &Problem) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for lane in self.lanes(problem) {
            for (row, stage) in (0..3).flat_map(|row| (0..self.stages).map(move |stage| (row, stage))) {
                for microbatch in lane.clone().skip(1).filter(|_| row < 2 || !may_fuse(problem, stage)) {
                    found.extend(self.at(row, stage, microbatch - 1).zip(self.at(row, stage, microbatch)));
                }
            }
        }
        found
    }

    /// The first microbatches of the directions.
    fn lanes(&self, problem: &Problem) -> Vec<std::ops::Range<usize>> {
        match problem.placement() {
            Placement::TwoWay => vec![0..self.microbatches / 2, self.microbatches / 2..self.microbatches],
            _ => std::iter::once(0..self.microbatches).collect(),
        }
    }
}

fn gcd(a: Nanos, b: Nanos) -> Nanos {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Improves `best` until it is proved or the clock stops.
pub(crate) fn improve(problem: &Problem, best: &mut Exact, clock: &mut Clock<'_>) -> Result<(), Refused> {
    // Running one op after the other, with every hop waited for, is no worse than any schedule of interest.
    let serial_ns: Nanos = (0..problem.microbatches()).map(|microbatch| one_by_one(problem, microbatch)).sum();
    let upper_ns = best.value_ns.min(serial_ns);
    // Under the longest span a rank may end after the rank of stage 0 has, by less than one span; going two
    // ways the ranks of both first stages count.
    let horizon_ns = match (problem.objective(), problem.placement()) {
        (Objective::Makespan, _) => upper_ns,
        (Objective::LongestSpan, Placement::TwoWay) => 3 * upper_ns,
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
    post_whole(problem, &jobs, &times, &mut order, &mut solver);
    post_places(problem, &jobs, &order, &mut solver);
    // Last, when the most is known of what cannot be.
    post_first_starts(problem, &jobs, &times, &mut solver);
    probe(problem, &Model { jobs, times, order, cost }, &mut solver, best, clock)
}

/// When jobs start and end. Where a backward is whole its B ends with all of it, and W stands where its share of that
/// does.
fn post_times(problem: &Problem, jobs: &Jobs, horizon: i32, solver: &mut Solver) -> Vec<Times> {
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
fn heads(problem: &Problem) -> std::ops::Range<usize> {
    let ranks = problem.ranks();
    let mut seen = vec![false; ranks];
    (0..ranks).for_each(|stage| seen[problem.rank_of(stage, 0)] = true);
    let is_open = problem.objective() == Objective::Makespan
        || *problem.placement() == Placement::TwoWay
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
fn post_first_starts(problem: &Problem, jobs: &Jobs, times: &[Times], solver: &mut Solver) {
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

/// Which microbatch the n-th F of each stage is of, by starts that keep [`post_first_starts`]. The first stage runs them by
/// their numbers, and others as they arrive, but where a start that has to be exact waits for one that overtakes.
fn microbatches(problem: &Problem, jobs: &Jobs, start: impl Fn(usize) -> i32) -> Vec<Vec<usize>> {
    let heads = heads(problem);
    let mut all = vec![(0..jobs.microbatches).collect::<Vec<usize>>(); jobs.stages];
    let arrivals = |stage: usize, at: usize| {
        let job = jobs.at(0, stage, at)?;
        let from = jobs.at(0, stage.checked_sub(1)?, at)?;
        let hop = (problem.hop(jobs.jobs[from].rank, jobs.jobs[job].rank) / jobs.unit_ns) as i32;
        Some(start(from) + jobs.jobs[from].ticks + hop)
    };
    // For each stage the n-th F that the stage before ran that is the n-th here.
    let mut from: Vec<Vec<usize>> = all.clone();
    let mut exact = 1;
    for stage in heads.skip(1).rev() {
        let mut left: Vec<usize> = (0..jobs.microbatches).collect();
        let mut farthest = 1;
        for at in 0..jobs.microbatches {
            let Some(job) = jobs.at(0, stage, at) else { continue };
            let ended = at.checked_sub(1).and_then(|before| jobs.at(0, stage, before));
            let waits = ended.is_none_or(|ended| start(ended) + jobs.jobs[ended].ticks < start(job));
            let mut taken = 0;
            if at < exact && waits {
                let last = left.iter().filter_map(|from| arrivals(stage, *from)).filter(|at| *at <= start(job)).max();
                taken = left.iter().position(|from| arrivals(stage, *from) == last).unwrap_or(0);
                farthest = farthest.max(left[taken] + 1);
            }
            from[stage][at] = left.remove(taken);
        }
        exact = farthest;
    }
    for stage in 1..jobs.stages {
        all[stage] = from[stage].iter().map(|before| all[stage - 1][*before]).collect();
    }
    all
}

/// The time of `microbatch` alone.
fn one_by_one(problem: &Problem, microbatch: usize) -> Nanos {
    let ranks: Vec<usize> = (0..problem.stage_count()).map(|stage| problem.rank_of(stage, microbatch)).collect();
    let compute: Nanos =
        problem.costs().iter().map(|cost| cost.duration(OpKind::F) + cost.duration(OpKind::BW)).sum();
    let hops: Nanos =
        ranks.windows(2).map(|pair| problem.hop(pair[0], pair[1]) + problem.hop(pair[1], pair[0])).sum();
    compute + hops
}

fn post_objective(problem: &Problem, jobs: &Jobs, times: &[Times], rank: usize, cost: DomainId, solver: &mut Solver) {
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

/// Ops without duration, which take no part in keeping ops apart, are not within another op either: they come before it
/// or after it. Nor is any op within what a cut backward takes more than its share of a whole one.
fn post_apart(problem: &Problem, jobs: &Jobs, times: &[Times], rank: usize, order: &mut Orders, solver: &mut Solver) {
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

/// Of cut backwards of a stage, the first has its W first.
fn post_order_of_cut(
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
fn post_whole(problem: &Problem, jobs: &Jobs, times: &[Times], order: &mut Orders, solver: &mut Solver) {
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
fn post_places(problem: &Problem, jobs: &Jobs, order: &Orders, solver: &mut Solver) {
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

/// For each op of the rank: what the ops before it have left held, and what it takes itself, fit the limit.
fn post_memory(
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

/// Whether the stage's BW may hold less, or take less time, than its B and W apart.
fn may_fuse(problem: &Problem, stage: usize) -> bool {
    let cost = problem.cost(stage);
    let gains = cost.backward_workspace_bytes.is_some() || cost.backward_ns.is_some();
    problem.backward() == Backward::Split && gains
}

struct Orders {
    known: BTreeMap<(usize, usize), Literal>,
}

impl Orders {
    /// True where `before` ends before `after` starts; false where the other way round.
    fn literal(&mut self, times: &[Times], before: usize, after: usize, solver: &mut Solver) -> Literal {
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

/// Whether the microbatches of two ops travel the same way.
fn is_same_way(jobs: &Jobs, problem: &Problem, a: usize, b: usize) -> bool {
    let is_second = |job: usize| jobs.jobs[job].op.microbatch() >= jobs.microbatches / 2;
    *problem.placement() != Placement::TwoWay || is_second(a) == is_second(b)
}

/// Whether `a` comes before `b` in every schedule that is looked for, after it in every one, or neither.
fn known_order(jobs: &Jobs, problem: &Problem, a: usize, b: usize) -> Option<bool> {
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

/// All that the solver was given.
struct Model {
    jobs: Jobs,
    times: Vec<Times>,
    order: Orders,
    cost: DomainId,
}

/// Asks for cheaper and cheaper schedules: first one that meets the bound, then ever a little better than
/// the best.
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

/// The order of each rank's ops that a solution tells: by start, and of those that start at the same time, as those do
/// that take none, by dependencies and by what the solver assumed.
fn rows(problem: &Problem, model: &Model, solution: &impl ProblemSolution) -> Schedule {
    let Model { jobs, times, order, .. } = model;
    let start = |job: usize| solution.get_integer_value(times[job].start);
    let is_whole = |job: usize| times[job].whole.is_some_and(|whole| solution.get_literal_value(whole));
    let microbatches = microbatches(problem, jobs, start);
    // Backwards keep the order in which the last stage has forwards.
    let last = &microbatches[jobs.stages - 1];
    let mut place = vec![0; jobs.microbatches];
    last.iter().enumerate().for_each(|(at, microbatch)| place[*microbatch] = at);
    // What is chosen of the ops that could come next.
    type Choice = (bool, usize, usize, usize);
    let mut together: BTreeMap<i32, Vec<(usize, Op, Choice)>> = BTreeMap::new();
    for (index, job) in jobs.jobs.iter().enumerate() {
        let (stage, at) = (job.op.stage(), job.op.microbatch());
        let (op, ticks) = match job.op.kind() {
            OpKind::B if is_whole(index) => (Op::new(stage, OpKind::BW, last[at]), job.whole_ticks),
            OpKind::W if is_whole(index) => continue,
            OpKind::F => (Op::new(stage, OpKind::F, microbatches[stage][at]), job.cut_ticks),
            kind => (Op::new(stage, kind, last[at]), job.cut_ticks),
        };
        let (kind, along) = match op.kind() {
            OpKind::F => (0, stage),
            OpKind::B | OpKind::BW => (1, jobs.stages - stage),
            OpKind::W => (2, stage),
        };
        let choice = (ticks > 0, at.min(place[op.microbatch()]), kind, along);
        together.entry(start(index)).or_default().push((index, op, choice));
    }
    // Of two ops with the same start, whether the second waits for the first.
    let waits = |(a, first, (takes_time, ..)): (usize, Op, Choice), (b, second, (last, ..)): (usize, Op, Choice)| {
        let is_needed = first.microbatch() == second.microbatch()
            && match (first.kind(), second.kind()) {
                (OpKind::F, OpKind::F) => first.stage() < second.stage(),
                (OpKind::F, _) => true,
                (_, OpKind::F) | (OpKind::W, _) => false,
                (_, OpKind::W) => first.stage() >= second.stage(),
                _ => first.stage() > second.stage(),
            };
        let is_before = || {
            let literal =
                |a: usize, b: usize| order.known.get(&(a, b)).map(|known| solution.get_literal_value(*known));
            let known = literal(a, b).or_else(|| literal(b, a).map(|is_behind| !is_behind));
            known_order(jobs, problem, a, b).or(known) == Some(true)
        };
        is_needed
            || jobs.jobs[a].rank == jobs.jobs[b].rank && ((!takes_time && last) || takes_time == last && is_before())
    };
    let mut rows: Vec<Vec<Op>> = vec![Vec::new(); problem.ranks()];
    for mut left in together.into_values() {
        left.sort_by_key(|(.., choice)| *choice);
        while !left.is_empty() {
            let is_ready = |at: &usize| left.iter().all(|other| other.0 == left[*at].0 || !waits(*other, left[*at]));
            let (index, op, _) = left.remove((0..left.len()).find(is_ready).unwrap_or(0));
            rows[jobs.jobs[index].rank].push(op);
        }
    }
    Schedule::of(rows)
}
