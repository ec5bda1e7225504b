//! V-Half and V-Min (Qi et al., arXiv:2405.15362, §3): one building block, repeated.
//!
//! A block is the slots of one microbatch's ops on every rank of a V, in a time where F, B and W all take
//! one slot. It is repeated every six slots, since a rank has six ops a microbatch: F, B and W of two
//! chunks. How long a chunk's block lives sets the memory, so the slopes of the block choose the schedule:
//! the forward of chunk 0 and the backward of chunk 1 both go down the ranks, the forward of chunk 1 and the
//! backward of chunk 0 go up. With equal slopes for equal directions, what one chunk holds longer on a rank the
//! other holds shorter, so all ranks hold the same.
//!
//! Repeated blocks leave idle slots in the warm-up and the cool-down. They are filled as the authors' public planner
//! does, so that the order is theirs, op by op: W goes into the first free slots, ops of the warm-up and the cool-down
//! move ahead as far as memory goes, everything starts as early as it can, and then, with W taken out, the cool-down
//! moves ahead once more and W goes into what is free.
//!
//! Source of the slots and of that rule: `zbv_greedy.py` of sail-sg/zero-bubble-pipeline-parallelism.

use alloc::vec;
use alloc::vec::Vec;

use super::{Absent, splits, v_shaped};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};

/// Slots from microbatch to microbatch: as many as a rank has ops for one, F, B and W of two chunks.
pub(crate) const PERIOD: usize = 6;

/// The ops of a rank for a microbatch, in order: F of chunk 0 and of chunk 1, B of chunk 1 and of chunk 0. W of chunk 1
/// and of chunk 0 follow, in any order.
pub(crate) const KINDS: usize = 6;
pub(crate) const FORWARD_0: usize = 0;
pub(crate) const FORWARD_1: usize = 1;
pub(crate) const BACKWARD_1: usize = 2;
pub(crate) const BACKWARD_0: usize = 3;
/// W of chunk 1, and of both chunks while it does not matter which it is.
pub(crate) const WEIGHT_1: usize = 4;
pub(crate) const WEIGHT_0: usize = 5;

/// About half of 1F1B's memory, `⌊(P + 2) / 2⌋` microbatches; slopes 2 and 1.
pub fn v_half(problem: &Problem) -> Result<Schedule, Absent> {
    schedule(problem, |ranks, rank| {
        // No two ops of a rank fall into one slot of the period.
        let gap = if ranks.is_multiple_of(2) { 3 } else { 0 };
        [2 * rank, 3 * ranks - rank - 2, 3 * ranks + gap + 2 * rank - 1, 6 * ranks + gap - rank - 2]
    })
}

/// About a third of 1F1B's memory, `⌊(P + 4) / 3⌋` microbatches; slopes 1 and 1.
pub fn v_min(problem: &Problem) -> Result<Schedule, Absent> {
    schedule(problem, |ranks, rank| {
        let gap = if ranks.is_multiple_of(3) { 2 } else { 0 };
        [rank, 2 * ranks - rank - 1, 2 * ranks + gap + rank, 4 * ranks + gap - rank - 1]
    })
}

/// The schedule of a block. It is given by the slots of F and B of its first microbatch, for a number of ranks and on
/// one of them.
fn schedule(problem: &Problem, block: impl Fn(usize, usize) -> [usize; 4]) -> Result<Schedule, Absent> {
    v_shaped(problem)?;
    splits(problem)?;
    let (ranks, microbatches) = (problem.ranks(), problem.microbatches());
    let mut grid = Grid {
        microbatches,
        slots: (0..ranks)
            .map(|rank| {
                let [f0, f1, b1, b0] = block(ranks, rank);
                let each = |first: usize| (0..microbatches).map(|n| first + PERIOD * n).collect();
                [each(f0), each(f1), each(b1), each(b0), Vec::new(), Vec::new()]
            })
            .collect(),
    };
    grid.place_weights(false);
    grid.pull_left();
    grid.squeeze();
    grid.drop_weights();
    grid.pull_cool_down_left();
    grid.place_weights(true);
    Ok(grid.into_schedule())
}

/// By rank, kind and microbatch, the slot of an op.
struct Grid {
    microbatches: usize,
    slots: Vec<[Vec<usize>; KINDS]>,
}

/// An op in its slot.
#[derive(Clone, Copy)]
struct Placed {
    slot: usize,
    rank: usize,
    kind: usize,
    microbatch: usize,
}

/// The position of a pass over all ops in order of time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No microbatch is back where it entered.
    WarmUp,
    Steady,
    /// The last microbatch has entered.
    CoolDown,
}

impl Phase {
    /// The phase that an op belongs to, and the one that follows it.
    fn at(self, placed: &Placed, microbatches: usize) -> (Phase, Phase) {
        let turned = self == Phase::WarmUp && placed.kind == BACKWARD_0 && placed.rank == 0;
        let now = if turned { Phase::Steady } else { self };
        let entered = now == Phase::Steady && placed.kind == FORWARD_0 && placed.microbatch + 1 == microbatches;
        (now, if entered { Phase::CoolDown } else { now })
    }
}

impl Grid {
    fn ranks(&self) -> usize {
        self.slots.len()
    }

    /// All ops by slot; those of one slot by rank. Counts instead of comparing, so that it takes time in proportion to
    /// ops and slots.
    fn in_order(&self) -> Vec<Placed> {
        let all = || {
            self.slots.iter().enumerate().flat_map(|(rank, kinds)| {
                kinds.iter().enumerate().flat_map(move |(kind, slots)| {
                    let placed = move |(microbatch, &slot)| Placed { slot, rank, kind, microbatch };
                    slots.iter().enumerate().map(placed)
                })
            })
        };
        let mut starts = vec![0usize; self.length() + 1];
        all().for_each(|placed| starts[placed.slot + 1] += 1);
        for slot in 1..starts.len() {
            starts[slot] += starts[slot - 1];
        }
        let Some(first) = all().next() else { return Vec::new() };
        let mut sorted = vec![first; starts.last().copied().unwrap_or(0)];
        for placed in all() {
            let next = &mut starts[placed.slot];
            sorted[*next] = placed;
            *next += 1;
        }
        sorted
    }

    /// Slots up to the last op.
    fn length(&self) -> usize {
        self.slots.iter().flatten().filter_map(|slots| slots.last()).map(|last| last + 1).max().unwrap_or(0)
    }

    /// The slot after the inputs of an F or B: the stage before or after, the job before, and the microbatch before.
    fn ready(&self, rank: usize, kind: usize, microbatch: usize) -> usize {
        let end = |rank: usize, kind: usize| self.slots[rank][kind][microbatch] + 1;
        let other = if kind.is_multiple_of(2) { rank.checked_sub(1) } else { Some(rank + 1) };
        let other = other.filter(|rank| *rank < self.ranks()).map_or(0, |rank| end(rank, kind));
        let job = kind.checked_sub(1).map_or(0, |before| end(rank, before));
        other.max(job).max(self.after_last(rank, kind, microbatch))
    }

    /// The slot behind the same op of the microbatch before.
    fn after_last(&self, rank: usize, kind: usize, microbatch: usize) -> usize {
        microbatch.checked_sub(1).map_or(0, |before| self.slots[rank][kind][before] + 1)
    }

    /// The content of each slot of a rank up to its last F or B.
    fn row(&self, rank: usize) -> Vec<Option<usize>> {
        let jobs = &self.slots[rank][..WEIGHT_1];
        let mut row = vec![None; jobs.iter().filter_map(|slots| slots.last()).max().map_or(0, |last| last + 1)];
        for (kind, slots) in jobs.iter().enumerate() {
            slots.iter().for_each(|slot| row[*slot] = Some(kind));
        }
        row
    }

    /// Puts each W into the first free slot after its B: first come first served, or those of chunk 1 first.
    fn place_weights(&mut self, by_chunk: bool) {
        for rank in 0..self.ranks() {
            let row = self.row(rank);
            let mut waiting = [0usize; 2];
            let mut places = [Vec::new(), Vec::new()];
            let mut place = |waiting: &mut [usize; 2], slot: usize| {
                let queue = waiting.iter().position(|waiting| *waiting > 0)?;
                waiting[queue] -= 1;
                places[queue].push(slot);
                Some(())
            };
            for (slot, kind) in row.iter().enumerate() {
                match kind {
                    Some(kind) if *kind >= BACKWARD_1 => {
                        waiting[if by_chunk { kind - BACKWARD_1 } else { 0 }] += 1;
                    }
                    Some(_) => {}
                    None => {
                        place(&mut waiting, slot);
                    }
                }
            }
            let mut slot = row.len();
            while place(&mut waiting, slot).is_some() {
                slot += 1;
            }
            [self.slots[rank][WEIGHT_1], self.slots[rank][WEIGHT_0]] = places;
        }
    }

    fn drop_weights(&mut self) {
        for slots in &mut self.slots {
            slots[WEIGHT_1].clear();
            slots[WEIGHT_0].clear();
        }
    }

    /// Moves the ops of the warm-up and the cool-down, in order of time, to the first idle slot that their inputs and
    /// the memory allow. The most that any rank holds does not grow.
    fn pull_left(&mut self) {
        let (order, length) = (self.in_order(), self.length());
        // Chunk activations that a rank holds after each slot. W frees one.
        let mut held = vec![vec![0u32; length]; self.ranks()];
        let mut now = vec![0u32; self.ranks()];
        let mut from = vec![0usize; self.ranks()];
        for placed in order.iter().filter(|placed| placed.kind < BACKWARD_1 || placed.kind >= WEIGHT_1) {
            let rank = placed.rank;
            held[rank][from[rank]..placed.slot].fill(now[rank]);
            from[rank] = placed.slot;
            now[rank] = if placed.kind < BACKWARD_1 { now[rank] + 1 } else { now[rank] - 1 };
        }
        let most = held.iter().flatten().copied().max().unwrap_or(0);
        // By rank, the slots of the B that have moved, in order.
        let mut backwards: Vec<Vec<usize>> = vec![Vec::new(); self.ranks()];
        self.move_ahead(&order, length, |grid, idle, phase, placed| {
            let Placed { slot, rank, kind, microbatch } = *placed;
            let mut to = slot;
            if phase != Phase::Steady {
                let ready = match kind {
                    WEIGHT_1 => grid.after_last(rank, kind, microbatch).max(backwards[rank][microbatch] + 1),
                    _ => grid.ready(rank, kind, microbatch),
                };
                let held = &mut held[rank];
                to = idle.first(placed, ready, held, most).min(slot);
                match kind {
                    WEIGHT_1 => held[to..slot].iter_mut().for_each(|held| *held -= 1),
                    BACKWARD_1 | BACKWARD_0 => {}
                    _ => held[to..slot].iter_mut().for_each(|held| *held += 1),
                }
            }
            if kind == BACKWARD_1 || kind == BACKWARD_0 {
                let place = backwards[rank].partition_point(|other| *other < to);
                backwards[rank].insert(place, to);
            }
            to
        });
    }

    /// Goes over all ops in order of time and puts each where `to` says.
    fn move_ahead(
        &mut self,
        order: &[Placed],
        length: usize,
        mut to: impl FnMut(&Grid, &mut Idle, Phase, &Placed) -> usize,
    ) {
        let mut idle = Idle::new(self.ranks(), length);
        let mut phase = Phase::WarmUp;
        for placed in order {
            let (at, next) = phase.at(placed, self.microbatches);
            phase = next;
            let to = to(self, &mut idle, at, placed);
            idle.busy[placed.rank][to] = true;
            self.slots[placed.rank][placed.kind][placed.microbatch] = to;
        }
    }

    /// Starts every op as soon as its inputs and its rank allow, in the same order.
    fn squeeze(&mut self) {
        let mut free = vec![0usize; self.ranks()];
        for Placed { rank, kind, microbatch, .. } in self.in_order() {
            let ready = if kind < WEIGHT_1 { self.ready(rank, kind, microbatch) } else { 0 };
            let slot = ready.max(free[rank]);
            self.slots[rank][kind][microbatch] = slot;
            free[rank] = slot + 1;
        }
    }

    /// Moves the ops of the cool-down ahead once more. W fills what is free, so where an op goes is a slot less for W,
    /// and memory is freed later.
    fn pull_cool_down_left(&mut self) {
        let order = self.in_order();
        let length = self.length();
        let mut rows: Vec<Filled> = (0..self.ranks()).map(|rank| Filled::new(&self.row(rank))).collect();
        let most = rows.iter().flat_map(|row| &row.held).copied().max().unwrap_or(0);
        self.move_ahead(&order, length, |grid, idle, phase, placed| {
            let Placed { slot, rank, kind, microbatch } = *placed;
            if phase != Phase::CoolDown {
                return slot;
            }
            let row = &mut rows[rank];
            let mut to = idle.first(placed, grid.ready(rank, kind, microbatch), &row.held, most);
            while to < slot && !row.moves(slot, to, most) {
                to += 1;
                while idle.busy[rank].get(to) == Some(&true) {
                    to += 1;
                }
            }
            to.min(slot)
        });
    }

    fn into_schedule(self) -> Schedule {
        let stages = 2 * self.ranks();
        let mut rows: Vec<Vec<Op>> = vec![Vec::with_capacity(KINDS * self.microbatches); self.ranks()];
        for Placed { rank, kind, microbatch, .. } in self.in_order() {
            let (chunk_0, chunk_1) = (rank, stages - 1 - rank);
            let (stage, job) = match kind {
                FORWARD_0 => (chunk_0, OpKind::F),
                BACKWARD_1 => (chunk_1, OpKind::B),
                BACKWARD_0 => (chunk_0, OpKind::B),
                WEIGHT_1 => (chunk_1, OpKind::W),
                WEIGHT_0 => (chunk_0, OpKind::W),
                _ => (chunk_1, OpKind::F),
            };
            rows[rank].push(Op::new(stage, job, microbatch));
        }
        Schedule::of(rows)
    }
}

/// A rank's F and B by slot, and what it holds where a W that waits takes every slot that is free.
struct Filled {
    row: Vec<Option<usize>>,
    /// After each slot: chunk activations held, and W that wait.
    held: Vec<u32>,
    waiting: Vec<u32>,
    /// The last F: from there on memory is only freed, and no count is kept up to date.
    last_forward: usize,
    changed: Vec<(u32, u32)>,
}

impl Filled {
    fn new(row: &[Option<usize>]) -> Filled {
        let last_forward = row.iter().rposition(|kind| kind.is_some_and(|kind| kind < BACKWARD_1)).unwrap_or(0);
        let mut filled = Filled {
            row: row.to_vec(),
            held: Vec::with_capacity(row.len()),
            waiting: Vec::with_capacity(row.len()),
            last_forward,
            changed: Vec::new(),
        };
        let mut state = (0, 0);
        for kind in row {
            state = step(state, *kind);
            filled.held.push(state.0);
            filled.waiting.push(state.1);
        }
        filled
    }

    /// Moves an op ahead if no more than `most` is held then.
    fn moves(&mut self, from: usize, to: usize, most: u32) -> bool {
        let kind = self.row[from];
        if to <= self.last_forward {
            let mut state = to.checked_sub(1).map_or((0, 0), |before| (self.held[before], self.waiting[before]));
            self.changed.clear();
            for slot in to..=self.last_forward {
                let here = if slot == to { kind } else { self.row[slot].filter(|_| slot != from) };
                state = step(state, here);
                if state.0 > most {
                    return false;
                }
                if slot >= from && state == (self.held[slot], self.waiting[slot]) {
                    break;
                }
                self.changed.push(state);
            }
            for (slot, (held, waiting)) in (to..).zip(&self.changed) {
                (self.held[slot], self.waiting[slot]) = (*held, *waiting);
            }
        }
        self.row[to] = kind;
        self.row[from] = None;
        true
    }
}

/// What a rank holds, and the W that wait, after one more slot.
fn step((held, waiting): (u32, u32), kind: Option<usize>) -> (u32, u32) {
    match kind {
        Some(kind) if kind < BACKWARD_1 => (held + 1, waiting),
        Some(_) => (held, waiting + 1),
        None if waiting > 0 => (held - 1, waiting - 1),
        None => (held, waiting),
    }
}

/// Which slots are taken by ops that have moved, or stay.
struct Idle {
    busy: Vec<Vec<bool>>,
    cursors: Vec<[Cursor; KINDS]>,
}

impl Idle {
    fn new(ranks: usize, length: usize) -> Idle {
        Idle { busy: vec![vec![false; length]; ranks], cursors: vec![[Cursor::default(); KINDS]; ranks] }
    }

    /// The first idle slot for an op that is `ready` there; an F has to come behind all slots before its own in which
    /// its rank has `held` the `most`.
    fn first(&mut self, placed: &Placed, ready: usize, held: &[u32], most: u32) -> usize {
        let Placed { slot, rank, kind, .. } = *placed;
        let full = if kind < BACKWARD_1 { last_at_least(&held[..slot], ready, most) } else { None };
        self.cursors[rank][kind].first_idle(&self.busy[rank], full.map_or(ready, |full| full + 1))
    }
}

/// Where a search for an idle slot has come to, for the ops of one stage and kind. They ask in order of time, and what
/// is busy behind the cursor stays so: so all their searches together visit each slot once.
#[derive(Clone, Copy, Default)]
struct Cursor {
    asked: usize,
    at: usize,
}

impl Cursor {
    /// The first idle slot from `ready` on; one past the last where all are busy.
    fn first_idle(&mut self, busy: &[bool], ready: usize) -> usize {
        if ready < self.asked || ready > self.at {
            self.at = ready;
        }
        self.asked = ready;
        while busy.get(self.at) == Some(&true) {
            self.at += 1;
        }
        self.at
    }
}

/// The last of `values` from `first` on that is not below `least`. Looks at the largest of some values at once,
/// which takes one instruction for many.
fn last_at_least(values: &[u32], first: usize, least: u32) -> Option<usize> {
    const SOME: usize = 32;
    let mut end = values.len();
    while end > first {
        let start = first.max(end.saturating_sub(SOME));
        let some = &values[start..end];
        if some.iter().fold(0, |most, value| most.max(*value)) >= least {
            return some.iter().rposition(|value| *value >= least).map(|place| start + place);
        }
        end = start;
    }
    None
}
