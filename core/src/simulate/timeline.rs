//! When each op runs and how much memory each rank holds. [`simulate`](crate::simulate) predicts it, or the runner measures it
//! and it is read back.

use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};
use crate::problem::Schedule;
use crate::problem::op::Op;
use crate::problem::{Objective, Problem};

/// One op in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What ran.
    pub op: Op,
    /// When it started, from the start of the first op of all ranks.
    pub start_ns: Nanos,
    /// When it ended.
    pub end_ns: Nanos,
}

/// The spans of every rank, each row in the order in which it ran.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Timeline {
    /// By rank.
    pub rows: Vec<Vec<Span>>,
}

impl Timeline {
    /// End of the last op over all ranks minus the start of the first; 0 where nothing runs.
    pub fn makespan_ns(&self) -> Nanos {
        let start = self.rows.iter().filter_map(|row| row.first()).map(|span| span.start_ns).min();
        let end = self.rows.iter().filter_map(|row| row.last()).map(|span| span.end_ns).max();
        end.unwrap_or(0) - start.unwrap_or(0)
    }

    /// The last end minus the first start on `rank`.
    pub fn span_ns(&self, rank: usize) -> Nanos {
        match (self.rows[rank].first(), self.rows[rank].last()) {
            (Some(first), Some(last)) => last.end_ns - first.start_ns,
            _ => 0,
        }
    }

    /// The largest span of a rank.
    pub fn longest_span_ns(&self) -> Nanos {
        (0..self.rows.len()).map(|rank| self.span_ns(rank)).max().unwrap_or(0)
    }

    /// The time in which `rank` computes; where two ops run as a pair, their time counts once.
    pub fn busy_ns(&self, rank: usize) -> Nanos {
        let mut until = 0;
        let counted = |span: &Span| {
            let from = span.start_ns.max(until);
            until = until.max(span.end_ns);
            span.end_ns.saturating_sub(from)
        };
        self.rows[rank].iter().map(counted).sum()
    }

    /// The figure that `objective` asks to be small.
    pub fn cost_ns(&self, objective: Objective) -> Nanos {
        match objective {
            Objective::Makespan => self.makespan_ns(),
            Objective::LongestSpan => self.longest_span_ns(),
        }
    }

    /// Idle time as a share of all time, over all ranks: 9/33 for 1F1B with P = 4, M = 8, F : BW = 1 : 2.
    ///
    /// A rank's time is the makespan, or under [`Objective::LongestSpan`] the longest span: the rate that the
    /// zero-bubble papers print where all ranks do the same work.
    pub fn bubble_ratio(&self, objective: Objective) -> f64 {
        let whole = self.cost_ns(objective) as f64 * self.rows.len() as f64;
        let busy: Nanos = (0..self.rows.len()).map(|rank| self.busy_ns(rank)).sum();
        if whole > 0.0 { 1.0 - busy as f64 / whole } else { 0.0 }
    }

    /// Bytes held by `rank` over time, its static bytes included: each entry holds from its time on. The first step is
    /// at time 0.
    pub fn memory(&self, problem: &Problem, rank: usize) -> Vec<(Nanos, Bytes)> {
        let mut held = problem.static_bytes(rank);
        let mut steps: Vec<(Nanos, Bytes)> = Vec::with_capacity(2 * self.rows[rank].len() + 1);
        let mut step = |time: Nanos, held: Bytes| match steps.last_mut() {
            Some(last) if last.0 == time && last.1 <= held => last.1 = held,
            Some(last) if last.1 == held => {}
            _ => steps.push((time, held)),
        };
        step(0, held);
        for together in self.rows[rank].chunk_by(|a, b| b.start_ns < a.end_ns) {
            for span in together {
                held += problem.takes(span.op);
                step(span.start_ns, held);
            }
            for span in together {
                held -= problem.gives(span.op);
                step(span.end_ns, held);
            }
        }
        steps
    }

    /// The most bytes that `rank` holds at once, its static bytes included.
    pub fn peak_bytes(&self, problem: &Problem, rank: usize) -> Bytes {
        let together = self.rows[rank].chunk_by(|a, b| b.start_ns < a.end_ns);
        peak_of(problem, rank, together.map(|spans| spans.iter().map(|span| span.op)))
    }
}

/// The least time of ranks that are time-sliced on `processors`, fewer than the ranks: all their work, spread evenly.
/// `work_ns` is that of one pipeline, piece by piece, and there are `pipelines` of them. With one processor it is
/// exact, since some rank always has work.
pub fn in_turns_ns(work_ns: impl Iterator<Item = Nanos>, pipelines: usize, processors: usize) -> Nanos {
    let all = work_ns.map(u128::from).sum::<u128>().saturating_mul(pipelines as u128);
    Nanos::try_from(all.div_ceil(processors.max(1) as u128)).unwrap_or(Nanos::MAX)
}

/// The most bytes that `rank` holds at once when it runs `ops` in this order, its static bytes included.
pub fn peak_bytes(problem: &Problem, rank: usize, ops: impl Iterator<Item = Op>) -> Bytes {
    peak_of(problem, rank, ops.map(core::iter::once))
}

/// The most bytes that `rank` holds at once when it runs its op list of `schedule`, its static bytes included. The two
/// ops of a pair hold theirs together.
pub fn schedule_peak_bytes(problem: &Problem, schedule: &Schedule, rank: usize) -> Bytes {
    let mut pairs = schedule.pairs_of(rank).iter().map(|place| *place as usize + 1).peekable();
    let mut place = 0;
    let together = schedule.rows[rank].chunk_by(|_, _| {
        place += 1;
        pairs.next_if_eq(&place).is_some()
    });
    peak_of(problem, rank, together.map(|ops| ops.iter().copied()))
}

/// The most bytes held when the ops of each group run together, and one group after the other.
fn peak_of<G: Iterator<Item = Op> + Clone>(problem: &Problem, rank: usize, groups: impl Iterator<Item = G>) -> Bytes {
    let mut held = problem.static_bytes(rank);
    let mut peak = held;
    for group in groups {
        held += group.clone().map(|op| problem.takes(op)).sum::<Bytes>();
        peak = peak.max(held);
        held -= group.map(|op| problem.gives(op)).sum::<Bytes>();
    }
    peak
}
