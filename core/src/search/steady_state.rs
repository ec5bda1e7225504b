//! From a schedule for few microbatches to one for many: its steady state is repeated.
//!
//! In the steady state of a good schedule every rank runs each op of each lane equally often in equal time. So a piece of a rank's
//! op list that holds every (lane, kind) exactly `k` times can be repeated, with `k` more microbatches each time. Between the
//! pieces the rank holds the same bytes, and each lane is equally far, so a valid op list stays valid. The evaluation says whether
//! the ranks still fit together, and what the whole costs. So the search needs only as many microbatches as fill and drain the
//! pipe.

use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{Code, Flat, Rows, kind_of, lane_of};

/// Every piece length that may be tried, in microbatches, divides this.
pub(super) const STRIDE: usize = 12;

/// Pieces worth trying.
pub(super) const PIECES: [usize; 6] = [1, 2, 3, 4, 6, 12];

/// `rows` with `more` further microbatches of each direction, by repeating pieces of `piece` microbatches around the middle of
/// the time `length`; `starts` are the ops' start times. None where a row has no such piece, or `more` is no
/// multiple of it.
pub(super) fn stretch(
    flat: &Flat,
    rows: &[Vec<Code>],
    starts: &[Vec<u64>],
    length: u64,
    piece: usize,
    more: usize,
) -> Option<Rows> {
    if !more.is_multiple_of(piece) {
        return None;
    }
    let times = more / piece;
    (0..flat.ranks)
        .map(|rank| {
            let row = &rows[rank];
            let middle = starts[rank].partition_point(|start| *start < length / 2);
            let (from, to) = find(flat, rank, row, piece, middle)?;
            let mut long = Vec::with_capacity(row.len() + times * (to - from));
            long.extend_from_slice(&row[..to]);
            for _ in 0..times {
                long.extend_from_slice(&row[from..to]);
            }
            long.extend_from_slice(&row[to..]);
            Some(long)
        })
        .collect()
}

/// The piece nearest to `middle` that holds each op of each lane `piece` times.
fn find(flat: &Flat, rank: usize, row: &[Code], piece: usize, middle: usize) -> Option<(usize, usize)> {
    let lanes = &flat.lanes_of[rank];
    let kinds = if flat.fused { 2 } else { 3 };
    let length = piece * lanes.len() * kinds;
    if length > row.len() {
        return None;
    }
    let first = lanes.first().copied()?;
    // Lanes of a rank are few, but their numbers are far apart: look them up by number.
    let mut place = vec![0usize; lanes.last()? - first + 1];
    for (at, lane) in lanes.iter().enumerate() {
        place[lane - first] = at;
    }
    let slot = |code: Code| 4 * place[lane_of(code) - first] + kind_of(code) as usize;
    let mut count = vec![0usize; 4 * lanes.len()];
    let mut wrong = lanes.len() * kinds;
    let mut change = |code: Code, more: bool, wrong: &mut usize| {
        let count = &mut count[slot(code)];
        if *count == piece {
            *wrong += 1;
        }
        *count = if more { *count + 1 } else { *count - 1 };
        if *count == piece {
            *wrong -= 1;
        }
    };
    let mut best: Option<usize> = None;
    let aim = middle.saturating_sub(length / 2);
    for at in 0..row.len() {
        change(row[at], true, &mut wrong);
        if at >= length {
            change(row[at - length], false, &mut wrong);
        }
        if at + 1 >= length && wrong == 0 {
            let from = at + 1 - length;
            if best.is_none_or(|best| from.abs_diff(aim) < best.abs_diff(aim)) {
                best = Some(from);
            }
        }
    }
    best.map(|from| (from, from + length))
}
