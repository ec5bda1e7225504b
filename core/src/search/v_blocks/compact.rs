//! Ops of a block that move ahead into idle slots.

use alloc::vec;
use alloc::vec::Vec;

use super::kinds::{goes_down, is_forward, is_weight};
use super::{Cells, IDLE, most_held};
use crate::schedule::{FORWARD_0, KINDS, WEIGHT_1};

/// What is placed so far.
struct Progress {
    /// By rank: the slots of F and B of each kind, and how many W of each.
    pub(super) slots: Vec<[Vec<usize>; 4]>,
    weights: Vec<[usize; 2]>,
}

impl Progress {
    pub(super) fn new(ranks: usize, microbatches: usize) -> Progress {
        let row = || [0; 4].map(|_| Vec::with_capacity(microbatches));
        Progress { slots: (0..ranks).map(|_| row()).collect(), weights: vec![[0; 2]; ranks] }
    }

    /// The first slot in which the input of a rank's next op of `kind` is there; none where it is not placed yet.
    fn ready(&self, rank: usize, kind: usize) -> Option<usize> {
        if is_weight(kind) {
            let n = self.weights[rank][kind - WEIGHT_1];
            return self.slots[rank][kind - 2].get(n).map(|slot| slot + 1);
        }
        let n = self.slots[rank][kind].len();
        let other = if goes_down(kind) { rank.checked_sub(1) } else { Some(rank + 1) };
        match other.and_then(|other| self.slots.get(other)) {
            Some(other) => other[kind].get(n).map(|slot| slot + 1),
            // The end of the way: the job before, on the same rank.
            None if kind == FORWARD_0 => Some(0),
            None => self.slots[rank][kind - 1].get(n).map(|slot| slot + 1),
        }
    }

    fn place(&mut self, rank: usize, kind: usize, slot: usize) {
        match is_weight(kind) {
            true => self.weights[rank][kind - WEIGHT_1] += 1,
            false => self.slots[rank][kind].push(slot),
        }
    }
}

/// Rows by slot in which each op starts as soon as its input and its rank allow, in the same order; none where ranks
/// deadlock.
pub(super) fn compacted(cells: &Cells, microbatches: usize) -> Option<Cells> {
    let ranks = cells.len();
    let mut progress = Progress::new(ranks, microbatches);
    let mut compacted: Cells = cells.iter().map(|row| Vec::with_capacity(row.len())).collect();
    let mut at = vec![0; ranks];
    let mut awake: Vec<usize> = (0..ranks).collect();
    while let Some(rank) = awake.pop() {
        let from = at[rank];
        while let Some(&kind) = cells[rank].get(at[rank]) {
            if kind != IDLE {
                let Some(ready) = progress.ready(rank, kind) else { break };
                let row = &mut compacted[rank];
                row.resize(row.len().max(ready), IDLE);
                progress.place(rank, kind, row.len());
                row.push(kind);
            }
            at[rank] += 1;
        }
        if at[rank] > from {
            awake.extend(rank.checked_sub(1));
            awake.extend(Some(rank + 1).filter(|rank| *rank < ranks));
        }
    }
    let length = compacted.iter().map(Vec::len).max()?;
    compacted.iter_mut().for_each(|row| row.resize(length, IDLE));
    (0..ranks).all(|rank| at[rank] == cells[rank].len()).then_some(compacted)
}

/// Step 3: rows by slot, all of one length.
pub(super) fn pull_left(cells: &mut Cells, microbatches: usize) {
    let ranks = cells.len();
    let length = cells.first().map_or(0, Vec::len);
    let most = most_held(cells) as i64;
    // By rank and kind, the slot behind the last op.
    let mut ends = vec![[0; KINDS]; ranks];
    for (ends, row) in ends.iter_mut().zip(cells.iter()) {
        row.iter().enumerate().filter(|(_, kind)| **kind != IDLE).for_each(|(slot, kind)| ends[*kind] = slot + 1);
    }
    let mut progress = Progress::new(ranks, microbatches);
    let mut held = vec![0i64; ranks];
    for slot in 0..length {
        for rank in 0..ranks {
            let row = &mut cells[rank];
            if row[slot] == IDLE {
                let may = |kind: usize| progress.ready(rank, kind).is_some_and(|ready| ready <= slot);
                let left = ends[rank].map(|end| end > slot + 1);
                if let Some(from) = first_to_pull(row, slot, left, most - held[rank], may) {
                    row.swap(slot, from);
                }
            }
            let kind = row[slot];
            if kind == IDLE {
                continue;
            }
            progress.place(rank, kind, slot);
            held[rank] += i64::from(is_forward(kind)) - i64::from(is_weight(kind));
        }
    }
}

/// The slot of the first op behind `slot` that may run in it, where `room` more chunks may be held. Of each kind only
/// the first op is tried.
fn first_to_pull(
    row: &[usize],
    slot: usize,
    mut left: [bool; KINDS],
    room: i64,
    may: impl Fn(usize) -> bool,
) -> Option<usize> {
    // The chunks that the ops between add, and their maximum.
    let (mut more, mut most) = (0, 0);
    for (from, &kind) in row.iter().enumerate().skip(slot + 1) {
        if left == [false; KINDS] {
            return None;
        }
        if kind == IDLE {
            continue;
        }
        if core::mem::replace(&mut left[kind], false) && (!is_forward(kind) || most < room) && may(kind) {
            return Some(from);
        }
        more += i64::from(is_forward(kind)) - i64::from(is_weight(kind));
        most = most.max(more);
    }
    None
}
