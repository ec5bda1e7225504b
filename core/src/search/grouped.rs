//! GIS with groups of every size (PipeOffload, arXiv:2503.01328, §3). [`interleaved::grouped`](crate::schedule) describes the
//! rule, and what a size costs and saves. Op lists here have no microbatch numbers, and many sizes are tried.

use alloc::vec::Vec;

use super::flat_problem::{B, F, Flat, Rows, W, code};
use crate::schedule::{forward_steps, groups_of};

/// Hands the orders of all useful group sizes to `offer`, except those over the limit. There are none unless the
/// problem has looped chunks and a split backward.
pub(super) fn orders(flat: &Flat, ops: &mut u64, mut offer: impl FnMut(Rows)) {
    let (ranks, chunks) = (flat.ranks, flat.chunks());
    let looped = flat.lanes.iter().enumerate().all(|(index, lane)| lane.rank == index % ranks);
    if flat.fused || flat.chains.len() != 1 || chunks < 2 || !looped || flat.lanes.len() != ranks * chunks {
        return;
    }
    let microbatches = flat.chains[0].microbatches;
    for group in ranks.div_ceil(2)..=ranks {
        if group > microbatches {
            break;
        }
        let steps = forward_steps(chunks, &groups_of(group, microbatches));
        let rows: Rows = (0..ranks)
            .map(|rank| {
                let lane = |chunk: usize| chunk * ranks + rank;
                let forward = |(chunk, _): &(usize, usize)| code(lane(*chunk), F);
                let warm_up = ((chunks - 1) * group + ranks - rank).min(steps.len());
                let mut row: Vec<_> = Vec::with_capacity(3 * steps.len());
                row.extend(steps[..warm_up].iter().map(forward));
                for (index, (chunk, _)) in steps.iter().enumerate() {
                    let back = lane(chunks - 1 - chunk);
                    row.extend([code(back, B), code(back, W)]);
                    row.extend(steps.get(warm_up + index).map(forward));
                }
                row
            })
            .collect();
        *ops += flat.ops as u64;
        if (0..ranks).all(|rank| flat.is_valid_row(rank, &rows[rank])) {
            offer(rows);
        }
    }
}
