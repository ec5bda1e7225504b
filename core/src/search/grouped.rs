//! Grouped interleaving (PipeOffload, arXiv:2503.01328, §3): interleaved 1F1B with the backward in two, and groups of
//! fewer microbatches than ranks.
//!
//! Groups of `g` go through one chunk after the other. Rank `r` of `P` warms up with `(V − 1) · g + P − r` forwards
//! and then runs B, W and F in turn, so it holds at most so many chunk activations. With `g = P` no rank waits in
//! the steady state; each microbatch fewer saves `V − 1` chunk activations and costs `V − 1` forwards of waiting. Below
//! half of P, a group comes back to a rank after it has run out of others.

use alloc::vec::Vec;

use super::flat::{B, F, Flat, Rows, W, code};

/// Hands the orders of all group sizes worth having to `offer`, those over the limit left out. There are none
/// where the problem has no looped chunks and backward in two.
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
        // The (chunk, microbatch) of each step, without the microbatch: rows need none.
        let steps: Vec<usize> = (0..microbatches)
            .step_by(group)
            .flat_map(|first| {
                let size = group.min(microbatches - first);
                (0..chunks).flat_map(move |chunk| core::iter::repeat_n(chunk, size))
            })
            .collect();
        let rows: Rows = (0..ranks)
            .map(|rank| {
                let lane = |chunk: usize| chunk * ranks + rank;
                let forward = |step: &usize| code(lane(*step), F);
                let warm_up = ((chunks - 1) * group + ranks - rank).min(steps.len());
                let mut row: Vec<_> = Vec::with_capacity(3 * steps.len());
                row.extend(steps[..warm_up].iter().map(forward));
                for (index, step) in steps.iter().enumerate() {
                    let chunk = chunks - 1 - step;
                    row.extend([code(lane(chunk), B), code(lane(chunk), W)]);
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
