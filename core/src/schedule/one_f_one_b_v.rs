//! 1F1B-V (Qi et al., arXiv:2405.15362, appendix I): a V with fused backwards, in two thirds of 1F1B's memory.
//!
//! A block holds the slots of the ops of one microbatch on every rank. F takes one slot and BW takes two. The block repeats
//! every six slots, and these are then full: F and BW of two chunks. The four passes through the ranks follow each other at
//! once: forwards take one slot per rank, backwards two, and three slots of waiting follow every third backward, where the slots
//! of the next one are taken. So a microbatch takes `8P` slots from entry to return, and a rank holds `8P / 6` chunks.
//!
//! Source of the slots, and of the rule that fills the warm-up and the cool-down, op by op as the authors' planner does:
//! `v1f1b.py` of sail-sg/zero-bubble-pipeline-parallelism.

use alloc::vec;
use alloc::vec::Vec;

use super::building_block::{BACKWARD_0, BACKWARD_1, FORWARD_0, FORWARD_1, PERIOD};
use super::{Absent, Row, v_shaped};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::OpKind;

/// F and BW of two chunks.
const KINDS: usize = 4;

/// Two thirds of 1F1B's memory for 1F1B's bubble: about `⌈2P / 3⌉` microbatches.
pub fn one_f_one_b_v(problem: &Problem) -> Result<Schedule, Absent> {
    v_shaped(problem)?;
    let block = block(problem.ranks());
    let mut grid = Grid::new(&block, problem.microbatches());
    let last = block.iter().flatten().max().copied().unwrap_or(0) + PERIOD * (problem.microbatches() - 1);
    for slot in 0..=last {
        for (rank, starts) in block.iter().enumerate() {
            let kinds = [FORWARD_0, FORWARD_1, BACKWARD_1, BACKWARD_0];
            let here = kinds.into_iter().find_map(|kind| Some((kind, grid.microbatch(starts[kind], slot)?)));
            if let Some((kind, microbatch)) = here {
                let to = grid.first_idle(rank, kind, microbatch, slot);
                grid.put(rank, kind, slot, to);
            }
        }
    }
    Ok(grid.into_schedule())
}

/// By rank and kind, the slot in which a block's first microbatch begins.
fn block(ranks: usize) -> Vec<[usize; KINDS]> {
    let mut slots = vec![[0; KINDS]; ranks];
    for (rank, slots) in slots.iter_mut().enumerate() {
        slots[FORWARD_0] = rank;
        slots[FORWARD_1] = 2 * ranks - 1 - rank;
    }
    // Three backwards fill a period as F of all ranks leave it; the first of them begins where those leave room.
    let mut slot = 2 * ranks + if ranks.is_multiple_of(3) { PERIOD / 2 } else { 0 };
    let mut of_three = (3 - (ranks + 2) % 3) % 3;
    let down = (0..ranks).map(|rank| (rank, BACKWARD_1));
    let up = (0..ranks).rev().map(|rank| (rank, BACKWARD_0));
    for (rank, kind) in down.chain(up) {
        slots[rank][kind] = slot;
        slot += 2;
        of_three += 1;
        if of_three == 3 {
            of_three = 0;
            slot += PERIOD / 2;
        }
    }
    slots
}

/// Slots that an op takes.
fn length(kind: usize) -> usize {
    if kind < BACKWARD_1 { 1 } else { 2 }
}

/// Where ops have been put, rank by rank.
struct Grid {
    microbatches: usize,
    /// By rank and slot, the op that begins or goes on there.
    taken: Vec<Vec<Option<usize>>>,
    /// By rank, kind and microbatch, the slot behind the op.
    ends: Vec<[Vec<usize>; KINDS]>,
    /// By rank and slot, the chunk activations that are held after it, with what has not been put where it was.
    held: Vec<Vec<u32>>,
    /// The most that any rank holds; it does not grow.
    most: u32,
}

impl Grid {
    /// Nothing put yet.
    fn new(block: &[[usize; KINDS]], microbatches: usize) -> Grid {
        let slots = block.iter().flatten().max().map_or(0, |last| last + 2) + PERIOD * (microbatches - 1);
        let held: Vec<Vec<u32>> = block
            .iter()
            .map(|first| {
                let mut change = vec![0i32; slots];
                for (kind, first) in first.iter().enumerate() {
                    let (at, by) = if kind < BACKWARD_1 { (*first, 1) } else { (first + 1, -1) };
                    (0..microbatches).for_each(|n| change[at + PERIOD * n] += by);
                }
                let after = change.iter().scan(0, |held, change| {
                    *held += change;
                    Some(*held as u32)
                });
                after.collect()
            })
            .collect();
        Grid {
            microbatches,
            taken: vec![vec![None; slots]; block.len()],
            ends: (0..block.len()).map(|_| core::array::from_fn(|_| Vec::with_capacity(microbatches))).collect(),
            most: held.iter().flatten().copied().max().unwrap_or(0),
            held,
        }
    }

    /// The microbatch whose op begins in `slot`, where the first one's does in `first`.
    fn microbatch(&self, first: usize, slot: usize) -> Option<usize> {
        let after = slot.checked_sub(first)?;
        Some(after / PERIOD).filter(|microbatch| after.is_multiple_of(PERIOD) && *microbatch < self.microbatches)
    }

    /// The slot behind all that an op needs: the stage before or after, the job before, and the microbatch before.
    fn ready(&self, rank: usize, kind: usize, microbatch: usize) -> usize {
        let end = |rank: usize, kind: usize| self.ends[rank][kind][microbatch];
        let down = kind == FORWARD_0 || kind == BACKWARD_1;
        let other = if down { rank.checked_sub(1) } else { Some(rank + 1).filter(|rank| *rank < self.taken.len()) };
        let job = || kind.checked_sub(1).map_or(0, |before| end(rank, before));
        other.map_or_else(job, |other| end(other, kind)).max(self.ends[rank][kind].last().copied().unwrap_or(0))
    }

    /// The first idle slots before `slot` that an op's inputs and, for an F, the memory allow; or `slot`.
    fn first_idle(&self, rank: usize, kind: usize, microbatch: usize, slot: usize) -> usize {
        let ready = self.ready(rank, kind, microbatch);
        let from = match kind {
            FORWARD_0 | FORWARD_1 => {
                let full = self.held[rank][ready..slot].iter().rposition(|held| *held >= self.most);
                full.map_or(ready, |full| ready + full + 1)
            }
            _ => ready,
        };
        let idle = |at: &usize| self.taken[rank][*at..at + length(kind)].iter().all(Option::is_none);
        (from..(slot + 1).saturating_sub(length(kind))).find(idle).unwrap_or(slot)
    }

    /// Puts an op that the block has in slot `from`.
    fn put(&mut self, rank: usize, kind: usize, from: usize, to: usize) {
        let end = to + length(kind);
        self.taken[rank][to..end].fill(Some(kind));
        self.ends[rank][kind].push(end);
        let held = &mut self.held[rank];
        if kind < BACKWARD_1 {
            held[to..from].iter_mut().for_each(|held| *held += 1);
        } else {
            held[to + 1..from + 1].iter_mut().for_each(|held| *held -= 1);
        }
    }

    fn into_schedule(self) -> Schedule {
        let stages = 2 * self.taken.len();
        let rows = self.taken.iter().enumerate().map(|(rank, taken)| {
            let mut row = Row::new(stages);
            let mut slot = 0;
            while let Some(here) = taken.get(slot) {
                slot += here.map_or(1, length);
                let Some(kind) = *here else { continue };
                let stage = if kind == FORWARD_0 || kind == BACKWARD_0 { rank } else { stages - 1 - rank };
                row.push(stage, if kind < BACKWARD_1 { OpKind::F } else { OpKind::BW });
            }
            row.into_ops()
        });
        Schedule::of(rows.collect())
    }
}
