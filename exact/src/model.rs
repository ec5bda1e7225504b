//! The problem as the constraint solver sees it.
//!
//! - A start time for each op. In a split problem B and W stand apart: a fused BW is never better, for it may
//!   be replaced in place by its two halves, which take no more memory.
//! - Dependencies with durations and hops; microbatches in order for each kind and stage. Microbatches that
//!   travel the same way are alike, so any schedule can be renumbered to be so: the n-th B starts no sooner
//!   than n F have ended, whichever they were.
//! - On each rank the ops exclude each other.
//! - Memory: what is held when an op starts depends only on which ops of its rank came before. One literal
//!   for each pair of ops whose order matters and is open; then one linear row an op.
//! - The objective's variable lies above every span that it measures.

use pipeplan_core::op::{Op, OpKind};
use pipeplan_core::placement::Placement;
use pipeplan_core::problem::{Backward, Objective, Problem};
use pipeplan_core::schedule::Schedule;
use pipeplan_core::units::Nanos;
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
    /// In ticks of [`Jobs::unit_ns`].
    ticks: i32,
    start: Option<DomainId>,
}

struct Jobs {
    jobs: Vec<Job>,
    /// By kind (F, B or BW, W), stage and microbatch.
    index: Vec<usize>,
    microbatches: usize,
    stages: usize,
    unit_ns: Nanos,
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
            kinds.iter().for_each(|kind| unit_ns = gcd(unit_ns, duration(problem, stage, *kind)));
        }
        for from in 0..problem.ranks() {
            (0..problem.ranks()).for_each(|to| unit_ns = gcd(unit_ns, problem.hop(from, to)));
        }
        // Durations too fine for the solver are rounded down: its bound stays a bound.
        let fine_ns = unit_ns.max(1);
        let unit_ns = fine_ns.max(horizon_ns.div_ceil(MOST_TICKS));
        let slack = u64::from(unit_ns > fine_ns && problem.objective() == Objective::LongestSpan);
        let mut jobs = Vec::with_capacity(kinds.len() * stages * microbatches);
        let mut index = vec![usize::MAX; 3 * stages * microbatches];
        for (row, kind) in kinds.iter().enumerate() {
            for stage in 0..stages {
                for microbatch in 0..microbatches {
                    let op = Op::new(stage, *kind, microbatch);
                    index[(row * stages + stage) * microbatches + microbatch] = jobs.len();
                    let ticks = (duration(problem, stage, *kind) / unit_ns) as i32;
                    jobs.push(Job { op, rank: problem.rank_of(stage, microbatch), ticks, start: None });
                }
            }
        }
        Jobs { jobs, index, microbatches, stages, unit_ns, slack }
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
    let mut jobs = Jobs::of(problem, horizon_ns);
    let unit_ns = jobs.unit_ns;
    let horizon = horizon_ns.div_ceil(unit_ns) as i32;
    let mut solver = Solver::default();
    for job in &mut jobs.jobs {
        job.start = Some(solver.new_bounded_integer(0, (horizon - job.ticks).max(0)));
    }
    let starts: Vec<DomainId> = jobs.jobs.iter().filter_map(|job| job.start).collect();
    let most = upper_ns.div_ceil(unit_ns) as i32;
    let least = ((best.lower_ns / unit_ns).saturating_sub(jobs.slack) as i32).min(most);
    let cost = solver.new_bounded_integer(least, most);
    // `a` + `gap` <= `b`.
    let after = |solver: &mut Solver, a: usize, gap: i32, b: usize| {
        let tag = solver.new_constraint_tag();
        let rows = constraints::binary_less_than_or_equals(starts[a].offset(gap), starts[b].scaled(1), tag);
        solver.add_constraint(rows).post();
    };
    for (a, b, hop) in jobs.dependencies(problem) {
        after(&mut solver, a, jobs.jobs[a].ticks + (hop / unit_ns) as i32, b);
    }
    for lane in jobs.lanes(problem) {
        for row in 0..3 {
            for stage in 0..jobs.stages {
                for microbatch in lane.clone().skip(1) {
                    if let (Some(a), Some(b)) = (jobs.at(row, stage, microbatch - 1), jobs.at(row, stage, microbatch))
                    {
                        after(&mut solver, a, jobs.jobs[a].ticks, b);
                    }
                }
            }
        }
    }
    pin_first_starts(problem, &jobs, &starts, &mut solver);
    for rank in 0..problem.ranks() {
        let tasks: Vec<_> = (0..jobs.jobs.len())
            .filter(|job| jobs.jobs[*job].rank == rank && jobs.jobs[*job].ticks > 0)
            .map(|job| ArgDisjunctiveTask {
                start_time: starts[job].scaled(1),
                processing_time: jobs.jobs[job].ticks,
            })
            .collect();
        if tasks.len() > 1 {
            let tag = solver.new_constraint_tag();
            solver.add_constraint(constraints::disjunctive_strict(tasks, tag)).post();
        }
        let mut order = Orders { known: std::collections::BTreeMap::new() };
        post_apart(problem, &jobs, &starts, rank, &mut order, &mut solver);
        post_objective(problem, &jobs, &starts, rank, cost, &mut solver);
        post_memory(problem, &jobs, &starts, rank, &mut order, &mut solver)?;
    }
    probe(problem, &jobs, &starts, cost, &mut solver, best, clock)
}

/// Ops start as soon as they can, so under the longest span no rank puts off its first op. Where the first
/// `P` stages lie on different ranks, that op starts as soon as the path through them allows, whatever the
/// order: it is the first op of each rank on its way.
fn pin_first_starts(problem: &Problem, jobs: &Jobs, starts: &[DomainId], solver: &mut Solver) {
    let ranks = problem.ranks();
    let mut seen = vec![false; ranks];
    (0..ranks).for_each(|stage| seen[problem.rank_of(stage, 0)] = true);
    if problem.objective() == Objective::Makespan
        || *problem.placement() == Placement::TwoWay
        || seen.contains(&false)
    {
        return;
    }
    let mut head = 0;
    for stage in 0..ranks {
        if let Some(job) = jobs.at(0, stage, 0) {
            let tag = solver.new_constraint_tag();
            solver.add_clause([starts[job].upper_bound_predicate(head)], tag);
            head += jobs.jobs[job].ticks;
            if stage + 1 < ranks {
                let hop = problem.hop(problem.rank_of(stage, 0), problem.rank_of(stage + 1, 0));
                head += (hop / jobs.unit_ns) as i32;
            }
        }
    }
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

fn post_objective(
    problem: &Problem,
    jobs: &Jobs,
    starts: &[DomainId],
    rank: usize,
    cost: DomainId,
    solver: &mut Solver,
) {
    // First and last microbatches are enough, for each kind and stage keeps their order.
    let lanes = jobs.lanes(problem);
    let mine = |row: usize, stage: usize, microbatch: usize| {
        jobs.at(row, stage, microbatch).filter(|job| jobs.jobs[*job].rank == rank)
    };
    let stages = 0..jobs.stages;
    let lasts: Vec<usize> = lanes
        .iter()
        .flat_map(|lane| stages.clone().flat_map(move |stage| [1, 2].map(|row| (row, stage, lane.end - 1))))
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
        let end = starts[last].offset(jobs.jobs[last].ticks);
        if firsts.is_empty() {
            let tag = solver.new_constraint_tag();
            let row = constraints::binary_less_than_or_equals(end, cost.scaled(1), tag);
            solver.add_constraint(row).post();
        }
        for first in &firsts {
            let tag = solver.new_constraint_tag();
            let terms = vec![end, starts[*first].scaled(-1), cost.scaled(-1)];
            solver.add_constraint(constraints::less_than_or_equals(terms, 0, tag)).post();
        }
    }
}

/// Ops without duration, which take no part in keeping ops apart, are not within another op either: they come before it
/// or after it.
fn post_apart(
    problem: &Problem,
    jobs: &Jobs,
    starts: &[DomainId],
    rank: usize,
    order: &mut Orders,
    solver: &mut Solver,
) {
    let mine: Vec<usize> = (0..jobs.jobs.len()).filter(|job| jobs.jobs[*job].rank == rank).collect();
    let (short, long): (Vec<usize>, Vec<usize>) = mine.into_iter().partition(|job| jobs.jobs[*job].ticks == 0);
    for &short in &short {
        for &long in long.iter().filter(|long| known_order(jobs, problem, short, **long).is_none()) {
            order.literal(jobs, starts, short, long, solver);
        }
    }
}

/// For each op of the rank: what the ops before it have left held, and what it takes itself, fit the limit.
fn post_memory(
    problem: &Problem,
    jobs: &Jobs,
    starts: &[DomainId],
    rank: usize,
    order: &mut Orders,
    solver: &mut Solver,
) -> Result<(), Refused> {
    let Some(limit) = problem.limit_bytes(rank) else { return Ok(()) };
    let free = limit as i64 - problem.static_bytes(rank) as i64;
    let mine: Vec<usize> = (0..jobs.jobs.len()).filter(|job| jobs.jobs[*job].rank == rank).collect();
    // Where BW may hold less than B and then W, each op is given the least of both: the bound stays a bound,
    // and a schedule is looked at by `value`, which may fuse.
    let least = |op: Op| -> (i64, i64) {
        let cost = problem.cost(op.stage());
        let (takes, gives) = (cost.takes(op.kind()) as i64, cost.gives(op.kind()) as i64);
        let both = cost.takes(OpKind::BW) as i64;
        match op.kind() {
            OpKind::B if may_fuse(problem, op.stage()) => (takes.min(both), cost.backward_input_bytes.min(0)),
            OpKind::W if may_fuse(problem, op.stage()) => {
                (takes.min(both), cost.backward_weight_bytes + cost.backward_input_bytes.max(0))
            }
            _ => (takes, takes - gives),
        }
    };
    let takes = |job: usize| least(jobs.jobs[job].op).0;
    let leaves = |job: usize| least(jobs.jobs[job].op).1;
    // Bytes in the largest unit that measures all of them. Where sums are still too long for the solver, the
    // rows are rounded so that they forbid less: the bound stays a bound, and `value` looks at the schedule.
    let mut exact_unit = 0u64;
    let mut all = 0u64;
    for job in &mine {
        exact_unit = gcd(exact_unit, leaves(*job).unsigned_abs());
        all = all.saturating_add(leaves(*job).unsigned_abs());
    }
    let exact_unit = exact_unit.max(1) as i64;
    let unit = exact_unit.max(all.div_ceil(MOST_BYTE_UNITS) as i64);
    for &after in &mine {
        let others = || mine.iter().copied().filter(|before| *before != after && leaves(*before) != 0);
        let open = |before: usize| known_order(jobs, problem, before, after).is_none();
        let before_it = |before: usize| known_order(jobs, problem, before, after) == Some(true);
        let fixed: i64 = others().filter(|before| before_it(*before)).map(leaves).sum();
        let room = free - takes(after) - fixed;
        let most: i64 = others().filter(|before| open(*before)).map(|before| leaves(before).max(0)).sum();
        let least: i64 = others().filter(|before| open(*before)).map(|before| leaves(before).min(0)).sum();
        if least > room {
            return Err(Refused::Infeasible);
        }
        if most <= room {
            continue;
        }
        let mut terms: Vec<AffineView<DomainId>> = Vec::new();
        for before in others().filter(|before| open(*before)) {
            let literal = order.literal(jobs, starts, before, after, solver);
            terms.push(literal.scaled(leaves(before).div_euclid(unit) as i32));
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

/// What an op of `kind` takes at least: where BW is shorter than B and then W, their share of it. The bound stays a
/// bound, and a schedule is looked at by `value`, which may fuse.
fn duration(problem: &Problem, stage: usize, kind: OpKind) -> Nanos {
    let [b, w] = problem.cost(stage).least_backward();
    match kind {
        OpKind::B => b,
        OpKind::W => w,
        kind => problem.cost(stage).duration(kind),
    }
}

struct Orders {
    known: std::collections::BTreeMap<(usize, usize), Literal>,
}

impl Orders {
    /// True where `before` ends before `after` starts; false where the other way round.
    fn literal(
        &mut self,
        jobs: &Jobs,
        starts: &[DomainId],
        before: usize,
        after: usize,
        solver: &mut Solver,
    ) -> AffineView<DomainId> {
        let flipped = before > after;
        let key = (before.min(after), before.max(after));
        let literal = *self.known.entry(key).or_insert_with(|| {
            let literal = solver.new_literal();
            for (literal, first, second) in [(literal, key.0, key.1), (!literal, key.1, key.0)] {
                let tag = solver.new_constraint_tag();
                let row = constraints::binary_less_than_or_equals(
                    starts[first].offset(jobs.jobs[first].ticks),
                    starts[second].scaled(1),
                    tag,
                );
                solver.add_constraint(row).implied_by(literal);
            }
            literal
        });
        if flipped { (!literal).get_integer_variable() } else { literal.get_integer_variable() }
    }
}

/// Whether `a` comes before `b` in every schedule that is looked for, after it in every one, or neither.
fn known_order(jobs: &Jobs, problem: &Problem, a: usize, b: usize) -> Option<bool> {
    let (a, b) = (jobs.jobs[a].op, jobs.jobs[b].op);
    let half = jobs.microbatches / 2;
    let lane = |op: Op| *problem.placement() == Placement::TwoWay && op.microbatch() >= half;
    if lane(a) != lane(b) {
        return None;
    }
    // An op is surely before another where dependencies lead from it to one of the same or an earlier
    // microbatch: F of a stage before F of a later one and before every B of an earlier one, and so on.
    let leads = |a: Op, b: Op| {
        let along = match (a.kind(), b.kind()) {
            (OpKind::F, OpKind::F) => a.stage() <= b.stage(),
            // F leads through the last stage to every B of its microbatch.
            (OpKind::F, _) => true,
            (OpKind::B | OpKind::BW, OpKind::B | OpKind::BW) => b.stage() <= a.stage(),
            (OpKind::B, OpKind::W) => b.stage() <= a.stage(),
            (OpKind::W, OpKind::W) => a.stage() == b.stage(),
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

/// Asks for cheaper and cheaper schedules: first one that meets the bound, then ever a little better than
/// the best.
fn probe(
    problem: &Problem,
    jobs: &Jobs,
    starts: &[DomainId],
    cost: DomainId,
    solver: &mut Solver,
    best: &mut Exact,
    clock: &mut Clock<'_>,
) -> Result<(), Refused> {
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
                let schedule = rows(problem, jobs, |job| solution.get_integer_value(starts[job]));
                let fused = fuse(problem, &schedule);
                for schedule in core::iter::once(schedule).chain(fused) {
                    if let Some(value_ns) = value(problem, &schedule)
                        && value_ns < best.value_ns
                    {
                        best.schedule = Some(schedule);
                        best.value_ns = value_ns;
                        seen = Some(ticks.min(value_ns.div_ceil(unit_ns)));
                    }
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

/// The schedule with each B that stands right before its W fused with it, where that may hold less.
fn fuse(problem: &Problem, schedule: &Schedule) -> Option<Schedule> {
    if !(0..problem.stage_count()).any(|stage| may_fuse(problem, stage)) {
        return None;
    }
    let fused = schedule.rows.iter().map(|row| {
        let mut fused: Vec<Op> = Vec::with_capacity(row.len());
        for op in row {
            match fused.last_mut() {
                Some(last)
                    if op.kind() == OpKind::W
                        && *last == Op::new(op.stage(), OpKind::B, op.microbatch())
                        && may_fuse(problem, op.stage()) =>
                {
                    *last = Op::new(op.stage(), OpKind::BW, op.microbatch());
                }
                _ => fused.push(*op),
            }
        }
        fused
    });
    Some(Schedule::of(fused.collect()))
}

fn rows(problem: &Problem, jobs: &Jobs, start: impl Fn(usize) -> i32) -> Schedule {
    // By start; ops without duration at the same time in an order that keeps dependencies.
    type Place = (i32, bool, usize, usize, usize);
    let mut rows: Vec<Vec<(Place, Op)>> = vec![Vec::new(); problem.ranks()];
    for (index, job) in jobs.jobs.iter().enumerate() {
        let (kind, along) = match job.op.kind() {
            OpKind::F => (0, job.op.stage()),
            OpKind::B | OpKind::BW => (1, jobs.stages - job.op.stage()),
            OpKind::W => (2, job.op.stage()),
        };
        rows[job.rank].push(((start(index), job.ticks > 0, job.op.microbatch(), kind, along), job.op));
    }
    let in_order = rows.into_iter().map(|mut row| {
        row.sort();
        row.into_iter().map(|(_, op)| op).collect()
    });
    Schedule::of(in_order.collect())
}
