//! Ops as numbers, with what each needs and what needs it.

use alloc::vec;
use alloc::vec::Vec;

use crate::search::flat_problem::{B, BW, Code, F, Flat, W, code, kind_of, lane_of};

pub(in crate::search) const NONE: u32 = u32::MAX;
pub(super) const NEVER: u64 = u64::MAX;
/// The code of a W whose backward is whole: no op.
pub(super) const NOTHING: Code = Code::MAX;

/// One op of one microbatch: what it does to its rank.
#[derive(Clone, Copy)]
pub(in crate::search) struct Node {
    pub takes: i64,
    pub net: i64,
    pub rank: u32,
    pub(super) code: Code,
}

/// The longest paths through an op and their inputs, on one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(in crate::search) struct State {
    pub duration: u64,
    /// From the end of the op on another rank that this one needs to the soonest start of this one.
    pub lag_in: u64,
    /// From the end of this op to the soonest start of the op on another rank that needs it.
    pub lag_out: u64,
    /// The end, and the longest path from the start of the op to the end of all.
    pub end: u64,
    pub reach: u64,
    /// The ops on other ranks that this one needs and that need it, or [`NONE`].
    pub before: u32,
    pub after: u32,
    /// The ops before it and behind it in its row, or [`NONE`].
    pub previous: u32,
    pub(super) next: u32,
    /// Its position in its op list.
    pub place: u32,
    /// Its position in the topological order.
    pub(super) spot: u32,
}

/// All ops of all microbatches, by kind, lane and microbatch, in no order yet.
pub(super) fn nodes(flat: &Flat) -> (Vec<Node>, Vec<State>) {
    let kinds = if flat.fused { 2 } else { 3 };
    let mut nodes = Vec::with_capacity(kinds * flat.slots);
    let mut states = Vec::with_capacity(kinds * flat.slots);
    let backward = if flat.fused { BW } else { B };
    for kind in 0..kinds {
        for (index, lane) in flat.lanes.iter().enumerate() {
            let other = |lane: Option<usize>| lane.filter(|other| flat.lanes[*other].rank != flat.lanes[index].rank);
            let (up, down) =
                (other(index.checked_sub(1).filter(|_| !lane.first)), other(Some(index + 1).filter(|_| !lane.last)));
            let code = code(index, [F, backward, W][kind]);
            let of = kind_of(code) as usize;
            let node = Node { takes: lane.takes[of], net: lane.net(of as u32), rank: lane.rank as u32, code };
            nodes.extend(core::iter::repeat_n(node, lane.count));
            let (before, after, lag_in, lag_out) = match kind {
                0 => (up, down, lane.hop_f, down.map_or(0, |down| flat.lanes[down].hop_f)),
                1 => (down, up, lane.hop_b, up.map_or(0, |up| flat.lanes[up].hop_b)),
                _ => (None, None, 0, 0),
            };
            for n in 0..lane.count {
                let id = |lane: Option<usize>| lane.map_or(NONE, |lane| number(flat, kind, lane, n));
                states.push(State {
                    duration: lane.duration[of],
                    lag_in,
                    lag_out,
                    end: 0,
                    reach: 0,
                    before: id(before),
                    after: id(after),
                    previous: NONE,
                    next: NONE,
                    place: 0,
                    spot: 0,
                });
            }
        }
    }
    (nodes, states)
}

pub(super) fn number(flat: &Flat, kind: usize, lane: usize, n: usize) -> u32 {
    (kind * flat.slots + flat.lanes[lane].offset + n) as u32
}

/// By node, what it needs on its own rank, and what there needs it: the same op of the microbatch before, the job
/// before on its lane, and the same job on a neighbouring stage.
pub(super) fn links(flat: &Flat, mixes: bool) -> (Vec<[u32; 3]>, Vec<[u32; 3]>) {
    let kinds = if flat.fused { 2 } else { 3 };
    let mut needs = vec![[NONE; 3]; kinds * flat.slots];
    let mut needed = needs.clone();
    let mut link = |slot: usize, one: u32, other: u32| {
        needs[other as usize][slot] = one;
        needed[one as usize][slot] = other;
    };
    for (index, lane) in flat.lanes.iter().enumerate() {
        for n in 0..lane.count {
            for kind in 0..kinds {
                let id = number(flat, kind, index, n);
                if n > 0 && !(mixes && kind == 2) {
                    link(0, number(flat, kind, index, n - 1), id);
                }
                if kind > 0 {
                    link(1, number(flat, kind - 1, index, n), id);
                }
            }
            if !lane.last && flat.lanes[index + 1].rank == lane.rank {
                link(2, number(flat, 0, index, n), number(flat, 0, index + 1, n));
                link(2, number(flat, 1, index + 1, n), number(flat, 1, index, n));
            }
        }
    }
    (needs, needed)
}

/// Rows of nodes, and the B of whole backwards among others that are cut. The n-th op of a lane and kind is that of its
/// n-th microbatch; a W that of the first cut backward that has none yet.
pub(super) fn numbered(flat: &Flat, rows: &[Vec<Code>]) -> (Vec<Vec<u32>>, Vec<u32>) {
    let mut next = vec![[0usize; 3]; flat.lanes.len()];
    let mut all_whole = Vec::new();
    let mut numbered = Vec::with_capacity(rows.len());
    for row in rows {
        let mut nodes = Vec::with_capacity(row.len());
        let from = all_whole.len();
        for &code in row {
            let lane = lane_of(code);
            let kind = match kind_of(code) {
                F => 0,
                W => 2,
                _ => 1,
            };
            if kind == 2 {
                let is_whole = |n: usize| all_whole[from..].contains(&number(flat, 1, lane, n));
                while is_whole(next[lane][2]) {
                    next[lane][2] += 1;
                }
            }
            let id = number(flat, kind, lane, next[lane][kind]);
            next[lane][kind] += 1;
            nodes.push(id);
            if kind_of(code) == BW && !flat.fused {
                all_whole.push(id);
            }
        }
        nodes.extend(all_whole[from..].iter().map(|backward| backward + flat.slots as u32));
        numbered.push(nodes);
    }
    (numbered, all_whole)
}
