//! V-Half and V-Min (Qi et al., arXiv:2405.15362, §3): one building block, repeated.
//!
//! A block is the slots of one microbatch's ops on every rank of a V, in a time where F, B and W all take
//! one slot. It is repeated every six slots, since a rank has six ops a microbatch: F, B and W of two
//! chunks. How long a chunk's block lives sets the memory, so the slopes of the block choose the schedule:
//! the forward of chunk 0 and the backward of chunk 1 both go down the ranks, `down` slots a rank; the
//! forward of chunk 1 and the backward of chunk 0 go up, `up` slots a rank. With equal slopes for equal
//! directions, what one chunk holds longer on a rank the other holds shorter, so all ranks hold the same.

use alloc::vec;
use alloc::vec::Vec;

use super::{Absent, Schedule, splits, v_shaped};
use crate::op::{Op, OpKind};
use crate::problem::Problem;

/// Ops of one rank for one microbatch: F, B and W of two chunks.
const PERIOD: usize = 6;

/// About half of 1F1B's memory, `⌊(P + 2) / 2⌋` microbatches; slopes 2 and 1.
pub fn v_half(problem: &Problem) -> Result<Schedule, Absent> {
    schedule(problem, 2, 1)
}

/// About a third of 1F1B's memory, `⌊(P + 4) / 3⌋` microbatches; slopes 1 and 1.
pub fn v_min(problem: &Problem) -> Result<Schedule, Absent> {
    schedule(problem, 1, 1)
}

fn schedule(problem: &Problem, down: usize, up: usize) -> Result<Schedule, Absent> {
    v_shaped(problem)?;
    splits(problem)?;
    let block = Block::tightest(problem.ranks(), down, up)
        .ok_or_else(|| Absent::because("no building block fits this number of ranks"))?;
    let mut slots = Slots::repeated(&block, problem.microbatches());
    slots.pull_left();
    Ok(slots.into_schedule())
}

/// First slots, on rank 0, of what a microbatch does; other ranks follow by the slopes.
struct Block {
    ranks: usize,
    down: usize,
    up: usize,
    /// Slot of chunk 1's forward on rank 0.
    forward_1: usize,
    /// Slot of chunk 1's backward on rank 0.
    backward_1: usize,
    /// Slot of chunk 0's backward on rank 0.
    backward_0: usize,
}

impl Block {
    /// Among the blocks whose repetition never puts two ops into one slot, the one that holds least, and of
    /// those the one that ends soonest.
    fn tightest(ranks: usize, down: usize, up: usize) -> Option<Block> {
        let along = ranks - 1;
        let mut best: Option<(usize, Block)> = None;
        // Waiting a whole period changes no collision, so each gap is tried up to one.
        for gaps in 0..PERIOD * PERIOD * PERIOD {
            let forward_1 = (down + up) * along + 1 + gaps % PERIOD;
            let backward_1 = forward_1 + 1 + gaps / PERIOD % PERIOD;
            let backward_0 = backward_1 + (down + up) * along + 1 + gaps / PERIOD / PERIOD;
            let block = Block { ranks, down, up, forward_1, backward_1, backward_0 };
            let peak = (0..ranks).map(|rank| block.peak(rank)).try_fold(0, |most, peak| Some(most.max(peak?)));
            let Some(peak) = peak else { continue };
            if best.as_ref().is_none_or(|(least, best)| (peak, backward_0) < (*least, best.backward_0)) {
                best = Some((peak, block));
            }
        }
        best.map(|(_, block)| block)
    }

    /// The most chunk activations that `rank` holds at once when the block is repeated for ever: a slot of the
    /// period sees as many microbatches of a chunk as periods fit between its forward and the end of its W.
    fn peak(&self, rank: usize) -> Option<usize> {
        let [forward_0, forward_1, ..] = self.slots(rank);
        let [weight_1, weight_0] = self.weight_slots(rank)?;
        // Slots of a residue in `from..=to`, counted without walking them: lives are as long as the pipe.
        let below = |end: usize, residue: usize| (end + PERIOD - 1 - residue) / PERIOD;
        let held = |from: usize, to: usize, residue: usize| below(to + 1, residue) - below(from, residue);
        let at = |residue| held(forward_0, weight_0, residue) + held(forward_1, weight_1, residue);
        (0..PERIOD).map(at).max()
    }

    /// Slots of W of chunk 1 and of chunk 0 on `rank`: the first free ones after their B, paired so that memory
    /// is let go of sooner.
    fn weight_slots(&self, rank: usize) -> Option<[usize; 2]> {
        let [.., backward_1, backward_0] = self.slots(rank);
        let [one, other] = self.free_residues(rank)?;
        let next = |slot: usize, residue: usize| slot + 1 + (residue + PERIOD - (slot + 1) % PERIOD) % PERIOD;
        let straight = [next(backward_1, one), next(backward_0, other)];
        let crossed = [next(backward_1, other), next(backward_0, one)];
        let total = |slots: [usize; 2]| slots[0] + slots[1];
        Some(if total(straight) <= total(crossed) { straight } else { crossed })
    }

    /// Slots of F and f, b and B on `rank`, in model order.
    fn slots(&self, rank: usize) -> [usize; 4] {
        [
            self.down * rank,
            self.forward_1 - self.up * rank,
            self.backward_1 + self.down * rank,
            self.backward_0 - self.up * rank,
        ]
    }

    /// The two residues of the period that are left for W; none where two ops collide.
    fn free_residues(&self, rank: usize) -> Option<[usize; 2]> {
        let mut taken = [false; PERIOD];
        for slot in self.slots(rank) {
            if core::mem::replace(&mut taken[slot % PERIOD], true) {
                return None;
            }
        }
        let mut free = (0..PERIOD).filter(|residue| !taken[*residue]);
        Some([free.next()?, free.next()?])
    }
}

/// One op in its slot.
#[derive(Clone, Copy)]
struct Placed {
    slot: usize,
    rank: usize,
    op: Op,
}

/// All ops of all ranks in their slots.
struct Slots {
    ranks: usize,
    placed: Vec<Placed>,
    /// By rank and slot: whether an op is there.
    busy: Vec<Vec<bool>>,
    /// By rank and slot: chunk activations held while that slot passes.
    held: Vec<Vec<u32>>,
}

impl Slots {
    /// The block for every microbatch, one period apart, with W in the first free slot after its B.
    fn repeated(block: &Block, microbatches: usize) -> Slots {
        let stages = 2 * block.ranks;
        let mut placed = Vec::with_capacity(6 * block.ranks * microbatches);
        for rank in 0..block.ranks {
            let [forward_0, forward_1, backward_1, backward_0] = block.slots(rank);
            let Some([weight_1, weight_0]) = block.weight_slots(rank) else { continue };
            let (chunk_0, chunk_1) = (rank, stages - 1 - rank);
            let ops = [
                (forward_0, chunk_0, OpKind::F),
                (forward_1, chunk_1, OpKind::F),
                (backward_1, chunk_1, OpKind::B),
                (weight_1, chunk_1, OpKind::W),
                (backward_0, chunk_0, OpKind::B),
                (weight_0, chunk_0, OpKind::W),
            ];
            for microbatch in 0..microbatches {
                for (slot, stage, kind) in ops {
                    let op = Op::new(stage, kind, microbatch);
                    placed.push(Placed { slot: slot + PERIOD * microbatch, rank, op });
                }
            }
        }
        let placed = by_time(&placed);
        let length = placed.last().map_or(0, |last| last.slot + 1);
        let mut busy = vec![vec![false; length]; block.ranks];
        let mut held = vec![vec![0u32; length]; block.ranks];
        let mut now = vec![0u32; block.ranks];
        let mut from = vec![0usize; block.ranks];
        for Placed { slot, rank, op } in &placed {
            busy[*rank][*slot] = true;
            held[*rank][from[*rank]..*slot].fill(now[*rank]);
            from[*rank] = *slot;
            match op.kind() {
                OpKind::F => now[*rank] += 1,
                // W lets go when it ends, so its own slot still counts what it holds.
                OpKind::W => {
                    held[*rank][*slot] = now[*rank];
                    from[*rank] = *slot + 1;
                    now[*rank] -= 1;
                }
                OpKind::B | OpKind::BW => {}
            }
        }
        Slots { ranks: block.ranks, placed, busy, held }
    }

    /// Moves every op, in order of time, to the first idle slot that its inputs and the memory allow. The most
    /// that a rank holds does not grow, so only the empty slots of the warm-up and the cool-down are used.
    ///
    /// Once a rank has its last forward behind it, it can only let go of memory: from there on the gradients
    /// that others wait for go first, and W fills what is left.
    fn pull_left(&mut self) {
        let stages = 2 * self.ranks;
        let most: Vec<u32> = self.held.iter().map(|held| held.iter().copied().max().unwrap_or(0)).collect();
        let microbatches = self.placed.iter().map(|placed| placed.op.microbatch() + 1).max().unwrap_or(0);
        // By stage and microbatch: the slot after F, after B.
        let mut ends = vec![[0usize; 2]; stages * microbatches];
        let mut last_forward = vec![0usize; self.ranks];
        let mut put_off: Vec<usize> = Vec::new();
        let mut forwards_left = vec![2 * microbatches; self.ranks];
        let mut idle = vec![[Cursor::default(); 3]; stages];
        // In order of time, so that an op's inputs have moved before it does.
        for index in 0..self.placed.len() {
            let Placed { slot, rank, op } = self.placed[index];
            let end = |stage: usize, job: usize| ends[stage * microbatches + op.microbatch()][job];
            let (job, ready) = match op.kind() {
                OpKind::F => (0, op.stage().checked_sub(1).map_or(0, |before| end(before, 0))),
                OpKind::B if op.stage() + 1 == stages => (1, end(op.stage(), 0)),
                OpKind::B => (1, end(op.stage() + 1, 1).max(end(op.stage(), 0))),
                OpKind::W | OpKind::BW => (2, end(op.stage(), 1)),
            };
            let busy = &mut self.busy[rank];
            busy[slot] = false;
            if op.kind() == OpKind::W && forwards_left[rank] == 0 {
                put_off.push(index);
                continue;
            }
            let mut to = idle[op.stage()][job].first_idle(busy, ready);
            let held = &mut self.held[rank];
            if op.kind() == OpKind::F {
                // Past the last slot in which the rank is full.
                let from = last_at_least(&held[..slot], ready, most[rank]).map_or(ready, |full| full + 1);
                while to < from || busy[to] {
                    to = from.max(to + 1);
                }
            }
            busy[to] = true;
            match op.kind() {
                OpKind::F => held[to..slot].iter_mut().for_each(|held| *held += 1),
                OpKind::W => held[to + 1..=slot].iter_mut().for_each(|held| *held -= 1),
                OpKind::B | OpKind::BW => {}
            }
            self.placed[index].slot = to;
            if op.kind() == OpKind::F {
                forwards_left[rank] -= 1;
                last_forward[rank] = last_forward[rank].max(to);
            }
            if op.kind() != OpKind::W {
                ends[op.stage() * microbatches + op.microbatch()][job] = to + 1;
            }
        }
        for index in put_off {
            let Placed { rank, op, .. } = self.placed[index];
            let ready = ends[op.stage() * microbatches + op.microbatch()][1].max(last_forward[rank] + 1);
            let busy = &mut self.busy[rank];
            let to = idle[op.stage()][2].first_idle(busy, ready);
            if to == busy.len() {
                busy.push(false);
            }
            busy[to] = true;
            self.placed[index].slot = to;
        }
    }

    fn into_schedule(self) -> Schedule {
        let mut rows = vec![Vec::with_capacity(self.placed.len() / self.ranks); self.ranks];
        for placed in by_time(&self.placed) {
            rows[placed.rank].push(placed.op);
        }
        Schedule::of(rows)
    }
}

/// Where a search for an idle slot has come to, for the ops of one stage and kind. They ask in order of time,
/// and what is busy behind the cursor stays so: so all their searches together walk over each slot once.
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

/// The ops by slot; those of one slot stay in the order given, which is by rank. Counts instead of comparing, so
/// that it takes time in proportion to ops and slots.
fn by_time(placed: &[Placed]) -> Vec<Placed> {
    let Some(first) = placed.first() else { return Vec::new() };
    let slots = placed.iter().map(|placed| placed.slot + 1).max().unwrap_or(0);
    let mut starts = vec![0usize; slots + 1];
    placed.iter().for_each(|placed| starts[placed.slot + 1] += 1);
    for slot in 0..slots {
        starts[slot + 1] += starts[slot];
    }
    let mut sorted = vec![*first; placed.len()];
    for placed in placed {
        let next = &mut starts[placed.slot];
        sorted[*next] = *placed;
        *next += 1;
    }
    sorted
}
