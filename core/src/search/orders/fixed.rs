//! A schedule whose op lists are fixed, and in which each microbatch may take another's place: its time and memory for an
//! order of microbatches.
//!
//! The place of a microbatch is its number in the schedule that is given. Whichever microbatches take the places, each op
//! waits for the same ops. So one order of the ops in which inputs come first serves all orders of microbatches, and the time
//! of one is a single pass over the ops. Where sequences are cut into slices, a sequence takes the place of another with all
//! its slices.

use alloc::vec;
use alloc::vec::Vec;

use crate::base::units::Nanos;
use crate::problem::op::{Op, OpKind};
use crate::problem::placement::Placement;
use crate::problem::{Objective, Problem, Schedule};
use crate::simulate::{self, timeline::schedule_peak_bytes};

const NONE: u32 = u32::MAX;

/// One op, or the first of a pair.
#[derive(Clone, Copy, Debug)]
struct Node {
    rank: u32,
    input: Input,
    /// Which of the times of [`Tables`].
    job: u32,
    /// The place in the pairs; [`NONE`] of an op that runs alone.
    pair: u32,
}

/// An op's place, and what it waits for on another rank.
#[derive(Clone, Copy, Debug)]
struct Input {
    /// The place of its microbatch.
    place: u32,
    /// The node that makes the input; [`NONE`] where none does on another rank.
    from: u32,
    /// Which of the hops of [`Tables`].
    hop: u32,
}

/// The times of a problem by job and microbatch. A job is a stage and a kind.
#[derive(Clone, Debug)]
pub(in crate::search) struct Tables {
    microbatches: usize,
    slices: usize,
    /// By job: stage times four and the kind.
    times: Vec<Nanos>,
    /// By stage, into it: down from the stage before, then up from the stage after.
    hops: Vec<Nanos>,
    /// By job; empty where no order takes more bytes than another.
    takes: Vec<i64>,
    gives: Vec<i64>,
}

pub(in crate::search) const KINDS: [OpKind; 4] = [OpKind::F, OpKind::B, OpKind::W, OpKind::BW];

fn job_of(op: Op) -> usize {
    4 * op.stage() + op.kind() as usize
}

impl Tables {
    pub fn of(problem: &Problem) -> Tables {
        let (stages, microbatches) = (problem.stage_count(), problem.microbatches());
        let jobs = || (0..stages).flat_map(|stage| KINDS.map(|kind| (stage, kind)));
        let of_jobs = |of: &dyn Fn(Op) -> u64| -> Vec<u64> {
            jobs().flat_map(|(stage, kind)| (0..microbatches).map(move |m| Op::new(stage, kind, m))).map(of).collect()
        };
        let limited = (0..problem.ranks()).any(|rank| problem.limit_bytes(rank).is_some());
        let bytes_differ = problem
            .factors()
            .is_some_and(|factors| factors.values().iter().any(|of| of.bytes != factors.values()[0].bytes));
        let bytes = |of: &dyn Fn(Op) -> u64| match limited && bytes_differ {
            true => of_jobs(of).into_iter().map(|bytes| bytes as i64).collect(),
            false => Vec::new(),
        };
        let mut hops = Vec::with_capacity(2 * stages * microbatches);
        for stage in 0..stages {
            let before = stage.checked_sub(1);
            let after = Some(stage + 1).filter(|after| *after < stages);
            for from in [before, after] {
                hops.extend((0..microbatches).map(|m| from.map_or(0, |from| problem.hop_of(from, stage, m))));
            }
        }
        Tables {
            microbatches,
            slices: problem.slices(),
            times: of_jobs(&|op| problem.duration(op)),
            hops,
            takes: bytes(&|op| problem.takes(op)),
            gives: bytes(&|op| problem.gives(op)),
        }
    }
}

/// A schedule with fixed op lists.
#[derive(Clone, Debug)]
pub(in crate::search) struct Fixed<'p> {
    problem: &'p Problem,
    tables: &'p Tables,
    schedule: Schedule,
    nodes: Vec<Node>,
    /// The two ops of each pair, and the input of the second one.
    pairs: Vec<([Op; 2], Input)>,
    /// By rank: all its work. Zero where an order changes it: what pairs hide, and what BW saves, where some backwards of a
    /// stage are whole and others are not.
    work: Vec<Nanos>,
    // Reused from order to order.
    ends: Vec<Nanos>,
    free: Vec<Nanos>,
    left: Vec<Nanos>,
    first: Vec<Nanos>,
}

impl<'p> Fixed<'p> {
    /// None where the order cannot be run.
    pub fn new(problem: &'p Problem, tables: &'p Tables, schedule: Schedule) -> Option<Fixed<'p>> {
        let (stages, microbatches) = (problem.stage_count(), problem.microbatches());
        // Node of each F and of each B or BW.
        let mut made = vec![NONE; 2 * stages * microbatches];
        let mut nodes: Vec<Node> = Vec::with_capacity(schedule.op_count());
        let mut pairs = Vec::new();
        let mut work = vec![0; problem.ranks()];
        let mut at = vec![0u32; problem.ranks()];
        simulate::run(problem, &schedule, |rank, op, _, _| {
            let (stage, microbatch) = (op.stage(), op.microbatch());
            let slot = |backward: bool, stage: usize| (2 * stage + usize::from(backward)) * microbatches + microbatch;
            let neighbour = match op.kind() {
                OpKind::F => stage.checked_sub(1),
                OpKind::B | OpKind::BW => Some(stage + 1).filter(|after| *after < stages),
                OpKind::W => None,
            };
            let backward = op.kind() != OpKind::F;
            let away = neighbour.filter(|from| problem.rank_of(*from, microbatch) != rank);
            let input = Input {
                place: microbatch as u32,
                from: away.map_or(NONE, |from| made[slot(backward, from)]),
                hop: ((2 * stage + usize::from(backward)) * microbatches) as u32,
            };
            let pairs_of = schedule.pairs_of(rank);
            let is_second = at[rank].checked_sub(1).is_some_and(|first| pairs_of.binary_search(&first).is_ok());
            // The second of a pair is visited right after the first.
            if is_second && let Some(first) = nodes.last_mut() {
                first.pair = pairs.len() as u32;
                let op_of_first =
                    Op::new(first.job as usize / microbatches / 4, OpKind::F, first.input.place as usize);
                pairs.push(([op_of_first, op], input));
            } else {
                nodes.push(Node { rank: rank as u32, input, job: (job_of(op) * microbatches) as u32, pair: NONE });
            }
            if op.kind() != OpKind::W {
                made[slot(backward, stage)] = nodes.len() as u32 - 1;
            }
            at[rank] += 1;
            work[rank] += problem.duration(op);
        })
        .ok()?;
        let kinds = |stage: usize, kind: OpKind| {
            schedule.rows.iter().flatten().any(|op| op.stage() == stage && op.kind() == kind)
        };
        if !pairs.is_empty() || (0..stages).any(|stage| kinds(stage, OpKind::BW) && kinds(stage, OpKind::B)) {
            work.fill(0);
        }
        let ranks = problem.ranks();
        let ends = vec![0; nodes.len()];
        let [free, left, first] = [(); 3].map(|()| vec![0; ranks]);
        Some(Fixed { problem, tables, schedule, nodes, pairs, work, ends, free, left, first })
    }

    /// Ops that one order takes.
    pub fn ops(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// The microbatches, or sequences, that may take the places of each other: all, or those of one direction.
    pub fn directions(&self) -> Vec<core::ops::Range<usize>> {
        let all = self.tables.microbatches / self.tables.slices;
        match self.problem.placement() {
            Placement::Bidirectional => vec![0..all / 2, all / 2..all],
            _ => core::iter::once(0..all).collect(),
        }
    }

    /// Whether some ops run as pairs.
    pub fn has_pairs(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// The objective with microbatch `order[n]` in place n; none where it would be `below` or more.
    pub fn cost(&mut self, order: &[u32], below: Nanos) -> Option<Nanos> {
        self.left.copy_from_slice(&self.work);
        let tables = self.tables;
        self.cost_of_pass(&tables.times, order, below)
    }

    /// As [`Fixed::cost`] of a schedule without pairs, with other times by job and microbatch.
    pub fn cost_with(&mut self, times: &[Nanos], order: &[u32], below: Nanos) -> Option<Nanos> {
        self.left.fill(0);
        self.cost_of_pass(times, order, below)
    }

    fn cost_of_pass(&mut self, times: &[Nanos], order: &[u32], below: Nanos) -> Option<Nanos> {
        let of_spans = self.problem.objective() == Objective::LongestSpan;
        self.free.fill(0);
        self.first.fill(Nanos::MAX);
        let Tables { hops, slices, .. } = self.tables;
        let taking = |place: u32| taking(order, *slices, place as usize);
        let mut last = 0;
        for index in 0..self.nodes.len() {
            let Node { rank, input, job, pair } = self.nodes[index];
            let rank = rank as usize;
            let microbatch = taking(input.place);
            let mut start = self.free[rank];
            if input.from != NONE {
                start = start.max(self.ends[input.from as usize] + hops[input.hop as usize + microbatch]);
            }
            let mut time = times[job as usize + microbatch];
            self.left[rank] = self.left[rank].saturating_sub(time);
            if pair != NONE {
                let (ops, input) = self.pairs[pair as usize];
                if input.from != NONE {
                    let microbatch = taking(input.place);
                    start = start.max(self.ends[input.from as usize] + hops[input.hop as usize + microbatch]);
                }
                let [forward, backward] =
                    ops.map(|op| Op::new(op.stage(), op.kind(), taking(op.microbatch() as u32)));
                time = self.problem.pair_duration(forward, backward);
            }
            let end = start + time;
            self.ends[index] = end;
            self.free[rank] = end;
            self.first[rank] = self.first[rank].min(start);
            // All that is left on the rank comes behind.
            let from = if of_spans { self.first[rank] } else { 0 };
            let least = end + self.left[rank] - from;
            if least >= below {
                return None;
            }
            last = last.max(least);
        }
        (last < below).then_some(last)
    }

    /// Whether every rank holds no more than its limit with microbatch `order[n]` in place n.
    pub fn fits(&self, order: &[u32]) -> bool {
        let Tables { takes, gives, microbatches, slices, .. } = self.tables;
        if takes.is_empty() {
            let limited = |rank: &usize| self.problem.limit_bytes(*rank).is_some();
            return (0..self.problem.ranks()).filter(limited).all(|rank| {
                let peak = schedule_peak_bytes(self.problem, &self.schedule, rank);
                self.problem.limit_bytes(rank).is_none_or(|limit| peak <= limit)
            });
        }
        (0..self.schedule.rows.len()).all(|rank| {
            let Some(limit) = self.problem.limit_bytes(rank) else { return true };
            let room = limit as i64 - self.problem.static_bytes(rank) as i64;
            let mut pairs = self.schedule.pairs_of(rank).iter().peekable();
            let mut held = 0;
            // What the first of a pair gives back, the second gives back with its own.
            let mut later = 0;
            for (index, op) in self.schedule.rows[rank].iter().enumerate() {
                let at = job_of(*op) * microbatches + taking(order, *slices, op.microbatch());
                held += takes[at];
                if held > room {
                    return false;
                }
                if pairs.next_if(|pair| **pair as usize == index).is_some() {
                    later = gives[at];
                } else {
                    held -= gives[at] + core::mem::take(&mut later);
                }
            }
            true
        })
    }

    /// The schedule with microbatch `order[n]` in place n.
    pub fn ordered(&self, order: &[u32]) -> Schedule {
        let of = |place: usize| taking(order, self.tables.slices, place);
        let op = |op: &Op| Op::new(op.stage(), op.kind(), of(op.microbatch()));
        let rows = self.schedule.rows.iter().map(|row| row.iter().map(op).collect()).collect();
        Schedule { rows, pairs: self.schedule.pairs.clone(), ..Schedule::default() }
    }
}

/// The microbatch in `place` where `order` has the sequence in each place, of so many slices.
fn taking(order: &[u32], slices: usize, place: usize) -> usize {
    match slices {
        1 => order[place] as usize,
        _ => order[place / slices] as usize * slices + place % slices,
    }
}
