//! When each op runs and how much memory each rank holds. [`simulate`](crate::simulate) predicts it, or the runner measures it
//! and it is read back.

use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};
use crate::problem::Schedule;
use crate::problem::copies::{CopyWay, HostCopy, Moved};
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

/// A copy to or from the host in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySpan {
    /// What is copied, and between which positions of the rank's row.
    pub copy: HostCopy,
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
    /// By rank: the copies on its link to the host, in their order. Empty where there are none.
    pub copies: Vec<Vec<CopySpan>>,
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
        let copies = self.copies_of(rank);
        let mut changes = Changes::of(copies.iter().map(|span| span.copy).collect());
        let mut place = 0;
        for together in self.rows[rank].chunk_by(|a, b| b.start_ns < a.end_ns) {
            changes.before(place, |at, moved| {
                let bytes = problem.cost(moved.stage.into()).offload_bytes;
                match moved.way {
                    CopyWay::Reload => held += bytes,
                    CopyWay::Offload => held -= bytes,
                }
                let time = if moved.way == CopyWay::Reload { copies[at].start_ns } else { together[0].start_ns };
                step(time.min(together[0].start_ns), held);
            });
            place += together.len();
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
        self.peak(problem, rank).0
    }

    /// The same, and the position in its row of the op at which that is first so; none where it holds no more than its static
    /// bytes.
    pub fn peak(&self, problem: &Problem, rank: usize) -> (Bytes, Option<usize>) {
        let together = self.rows[rank].chunk_by(|a, b| b.start_ns < a.end_ns);
        let copies = self.copies_of(rank).iter().map(|span| span.copy).collect();
        peak_of(problem, rank, together.map(|spans| spans.iter().map(|span| span.op)), copies)
    }

    /// The most bytes of the activations of `rank` that copies of the schedule hold in the host's memory at once.
    pub fn copied_bytes(&self, problem: &Problem, rank: usize) -> Bytes {
        copied_bytes(problem, &self.copies_of(rank).iter().map(|span| span.copy).collect::<Vec<_>>())
    }

    /// The copies of `rank` to and from its host.
    pub fn copies_of(&self, rank: usize) -> &[CopySpan] {
        self.copies.get(rank).map_or(&[], Vec::as_slice)
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
    peak_of(problem, rank, ops.map(core::iter::once), Vec::new()).0
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
    peak_of(problem, rank, together.map(|ops| ops.iter().copied()), schedule.copies_of(rank).to_vec()).0
}

/// The most bytes held when the ops of each group run together, and one group after the other, with `copies` to and from the
/// host; and the position of the op at which that is first so.
fn peak_of<G: Iterator<Item = Op> + Clone>(
    problem: &Problem,
    rank: usize,
    groups: impl Iterator<Item = G>,
    copies: Vec<HostCopy>,
) -> (Bytes, Option<usize>) {
    let mut held = problem.static_bytes(rank);
    let (mut peak, mut at) = (held, None);
    let mut changes = Changes::of(copies);
    let mut place = 0;
    for group in groups {
        changes.before(place, |_, moved| {
            let bytes = problem.cost(moved.stage.into()).offload_bytes;
            match moved.way {
                CopyWay::Reload => held += bytes,
                CopyWay::Offload => held -= bytes,
            }
            if held > peak {
                (peak, at) = (held, Some(place));
            }
        });
        for op in group.clone() {
            held += problem.takes(op);
            if held > peak {
                (peak, at) = (held, Some(place));
            }
            place += 1;
        }
        held -= group.map(|op| problem.gives(op)).sum::<Bytes>();
    }
    (peak, at)
}

/// The most bytes that `copies` of one rank hold in the host's memory at once: each from the start of its offload to the end of
/// its reload.
pub fn copied_bytes(problem: &Problem, copies: &[HostCopy]) -> Bytes {
    let mut changes: Vec<(u32, bool, Bytes)> = copies
        .iter()
        .map(|copy| {
            let bytes = problem.cost(copy.moved.stage.into()).offload_bytes;
            match copy.moved.way {
                CopyWay::Offload => (copy.starts, true, bytes),
                CopyWay::Reload => (copy.ends, false, bytes),
            }
        })
        .collect();
    // What an op waits for is gone from the host when that op starts, and others have started before it.
    changes.sort_unstable_by_key(|(place, goes, _)| (*place, !*goes));
    let (mut held, mut most): (Bytes, Bytes) = (0, 0);
    for (_, goes, bytes) in changes {
        held = if goes { held.saturating_add(bytes) } else { held.saturating_sub(bytes) };
        most = most.max(held);
    }
    most
}

/// How copies change what a rank holds, from op to op.
///
/// A reload takes its bytes where it starts, an offload gives them back at the op that waits for it. Copies go one after the
/// other. So where an offload that an op waits for comes before a reload that starts before the same op, its bytes are free
/// first.
struct Changes {
    copies: Vec<HostCopy>,
    /// The numbers of the copies by the position at which they change what is held; at one position in the order of the list.
    order: Vec<usize>,
    next: usize,
}

impl Changes {
    fn of(copies: Vec<HostCopy>) -> Changes {
        let mut order: Vec<usize> = (0..copies.len()).collect();
        order.sort_by_key(|at| Changes::place(&copies[*at]));
        Changes { copies, order, next: 0 }
    }

    const fn place(copy: &HostCopy) -> u32 {
        match copy.moved.way {
            CopyWay::Offload => copy.ends,
            CopyWay::Reload => copy.starts,
        }
    }

    /// Calls `each` with the number and the content of each copy that changes what is held before the op at `place`. To be
    /// called with places in ascending order.
    fn before(&mut self, place: usize, mut each: impl FnMut(usize, Moved)) {
        while let Some(&at) =
            self.order.get(self.next).filter(|at| Changes::place(&self.copies[**at]) as usize <= place)
        {
            each(at, self.copies[at].moved);
            self.next += 1;
        }
    }
}
