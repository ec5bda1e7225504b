//! The ops of a problem with their durations in ticks, and what each needs.

use pipeplan_core::base::units::Nanos;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Backward, Objective, Problem};

/// Times in the solver are 32-bit; sums of a few of them must not overflow.
const MOST_TICKS: u64 = 1 << 28;

pub(super) struct Job {
    pub(super) op: Op,
    pub(super) rank: usize,
    /// The least time, in ticks of [`Jobs::unit_ns`]; of a B and W that may be fused, their share of it.
    pub(super) ticks: i32,
    /// The time where its backward is split, and that of a B where it is whole.
    pub(super) cut_ticks: i32,
    pub(super) whole_ticks: i32,
}

pub(super) struct Jobs {
    pub(super) jobs: Vec<Job>,
    /// By kind (F, B or BW, W), stage and microbatch.
    pub(super) index: Vec<usize>,
    pub(super) microbatches: usize,
    pub(super) stages: usize,
    pub(super) unit_ns: Nanos,
    /// Whether times were too fine for the solver, and were rounded down.
    pub(super) is_rounded: bool,
    /// The most ticks that a cost may grow by where times were rounded: a span lies between two roundings.
    pub(super) slack: u64,
}

impl Jobs {
    pub(super) fn of(problem: &Problem, horizon_ns: Nanos) -> Jobs {
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

    pub(super) fn at(&self, row: usize, stage: usize, microbatch: usize) -> Option<usize> {
        let found = self.index[(row * self.stages + stage) * self.microbatches + microbatch];
        (found != usize::MAX).then_some(found)
    }

    /// Every `(before, after, hop)`.
    pub(super) fn dependencies(&self, problem: &Problem) -> Vec<(usize, usize, Nanos)> {
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
    pub(super) fn in_turn(&self, problem: &Problem) -> Vec<(usize, usize)> {
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
    pub(super) fn lanes(&self, problem: &Problem) -> Vec<std::ops::Range<usize>> {
        match problem.placement() {
            Placement::Bidirectional => vec![0..self.microbatches / 2, self.microbatches / 2..self.microbatches],
            _ => std::iter::once(0..self.microbatches).collect(),
        }
    }
}

pub(super) fn gcd(a: Nanos, b: Nanos) -> Nanos {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Whether the stage's BW may hold less, or take less time, than its B and W apart.
pub(super) fn may_fuse(problem: &Problem, stage: usize) -> bool {
    let cost = problem.cost(stage);
    let gains = cost.backward_workspace_bytes.is_some() || cost.backward_ns.is_some();
    problem.backward() == Backward::Split && gains
}
