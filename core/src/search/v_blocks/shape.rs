//! The shape of a block: the slots of the ops of one microbatch on every rank, and what it holds.

use alloc::vec::Vec;

use super::kinds::{goes_down, is_backward, op_of, weight_of};
use crate::schedule::{BACKWARD_0, BACKWARD_1, FORWARD_0, FORWARD_1, KINDS, PERIOD};
use crate::search::flat_problem::{Flat, UNLIMITED};

/// The steepest slope down the ranks.
const STEEPEST: usize = 5;

/// The shape of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockShape {
    /// Slots within the period of the ops of the first rank after the F of chunk 0: of F of chunk 1, and of B of
    /// chunk 1 and chunk 0.
    pub(super) first: [usize; 3],
    /// Slots from rank to rank on the path down, up to the rank `bend` and behind it.
    slopes: [usize; 2],
    bend: usize,
}

/// A block with its slots.
pub(in crate::search) struct Block {
    /// By rank and kind, the slot of the first microbatch.
    pub(super) slots: Vec<[usize; KINDS]>,
    /// The most chunk activations that a rank holds.
    pub held: usize,
}

/// The slots of the first rank, as in [`BlockShape`].
pub(in crate::search) fn firsts() -> impl Iterator<Item = [usize; 3]> {
    let slots = || 1..PERIOD;
    let all = slots().flat_map(move |one| slots().flat_map(move |two| slots().map(move |three| [one, two, three])));
    all.filter(|[one, two, three]| one != two && one != three && two != three)
}

/// The blocks with these slots on the first rank that are wanted. Where one is not, the blocks whose steeper slope goes
/// further are not tried.
pub(in crate::search) fn blocks_from(
    first: [usize; 3],
    ranks: usize,
    mut is_wanted: impl FnMut(&Block) -> bool,
) -> Vec<Block> {
    let mut wanted = Vec::new();
    for steep in 1..=STEEPEST {
        for flat in 1..=steep {
            // A single slope is tried once, as the steeper one that goes all the way.
            let bends = match (steep, flat) {
                (1, _) => 1..2,
                (_, 1) => 1..ranks,
                _ if flat == steep => continue,
                _ => 1..ranks - 1,
            };
            for bend in bends {
                let Some(block) = (BlockShape { first, slopes: [steep, flat], bend }).block(ranks) else { continue };
                if !is_wanted(&block) {
                    break;
                }
                wanted.push(block);
            }
        }
    }
    wanted
}

impl BlockShape {
    /// The block, if no two ops of a rank take one slot.
    fn block(&self, ranks: usize) -> Option<Block> {
        let [forward_1, backward_1, backward_0] = self.first;
        let mut places = [0, forward_1, backward_1, backward_0];
        let mut slots = Vec::with_capacity(ranks);
        for rank in 0..ranks {
            if rank > 0 {
                let slope = self.slopes[usize::from(rank > self.bend)];
                for (kind, place) in places.iter_mut().enumerate() {
                    *place = (*place + if goes_down(kind) { slope } else { PERIOD - 1 }) % PERIOD;
                }
            }
            slots.push(with_weights(places)?);
        }
        // From here on slots are those of the first microbatch, and not only those of the period.
        let next = |from: usize, place: usize| from + (place + PERIOD - from % PERIOD) % PERIOD;
        let mut from = 0;
        for kind in [FORWARD_0, FORWARD_1, BACKWARD_1, BACKWARD_0] {
            for at in 0..ranks {
                let rank = &mut slots[if goes_down(kind) { at } else { ranks - 1 - at }];
                rank[kind] = next(from, rank[kind]);
                from = rank[kind] + 1;
                if is_backward(kind) {
                    rank[weight_of(kind)] = next(from, rank[weight_of(kind)]);
                }
            }
        }
        let held = slots.iter().map(|slots| {
            let each = [1, 1, 0, 0, -1, -1];
            [FORWARD_0, FORWARD_1].into_iter().map(|kind| before(slots, kind, &each) + 1).max().unwrap_or(0)
        });
        let held = held.max().unwrap_or(0) as usize;
        Some(Block { slots, held })
    }
}

/// Adds W to the places of F and B in a period, each in the first that is free; none where F and B meet.
fn with_weights(places: [usize; 4]) -> Option<[usize; KINDS]> {
    let mut taken = [false; PERIOD];
    let mut all = [0; KINDS];
    for (kind, place) in places.into_iter().enumerate() {
        if core::mem::replace(&mut taken[place], true) {
            return None;
        }
        all[kind] = place;
    }
    for kind in [BACKWARD_1, BACKWARD_0] {
        let place = (0..PERIOD).map(|more| (all[kind] + more) % PERIOD).find(|place| !taken[*place])?;
        taken[place] = true;
        all[weight_of(kind)] = place;
    }
    Some(all)
}

/// The bytes that a rank holds before an op of `kind`, where the block is repeated for ever and each kind adds `each`.
pub(super) fn before(slots: &[usize; KINDS], kind: usize, each: &[i64; KINDS]) -> i64 {
    let most = slots.iter().copied().max().unwrap_or(0);
    let now = most / PERIOD * PERIOD + PERIOD + slots[kind] % PERIOD;
    (0..KINDS).map(|other| (now - slots[other]).div_ceil(PERIOD) as i64 * each[other]).sum()
}

/// Whether the block, repeated for ever, keeps within the limits.
pub(super) fn fits(flat: &Flat, block: &Block) -> bool {
    block.slots.iter().enumerate().all(|(rank, slots)| {
        let lane_of = |kind| op_of(rank, flat.ranks, kind);
        let mut each = [0; KINDS];
        for (kind, each) in each.iter_mut().enumerate() {
            let (lane, kind) = lane_of(kind);
            *each = flat.lanes[lane].net(kind);
        }
        let takes = |kind| {
            let (lane, kind) = lane_of(kind);
            flat.lanes[lane].takes[kind as usize]
        };
        let limit = flat.limit[rank];
        limit >= UNLIMITED || (0..KINDS).all(|kind| before(slots, kind, &each) + takes(kind) <= limit)
    })
}
