//! The kinds of ops of a block: F, B and W of two chunks.

use crate::schedule::{BACKWARD_0, BACKWARD_1, FORWARD_0, FORWARD_1, WEIGHT_0, WEIGHT_1};
use crate::search::flat_problem::{B, F, W};

/// Whether an F or B goes from rank to next rank, and not back up.
pub(super) fn goes_down(kind: usize) -> bool {
    kind == FORWARD_0 || kind == BACKWARD_1
}

pub(super) fn is_forward(kind: usize) -> bool {
    kind == FORWARD_0 || kind == FORWARD_1
}

pub(super) fn is_backward(kind: usize) -> bool {
    kind == BACKWARD_1 || kind == BACKWARD_0
}

pub(super) fn is_weight(kind: usize) -> bool {
    kind == WEIGHT_1 || kind == WEIGHT_0
}

/// W of the chunk whose B this is.
pub(super) fn weight_of(backward: usize) -> usize {
    if backward == BACKWARD_1 { WEIGHT_1 } else { WEIGHT_0 }
}

/// Lane and kind of an op of the search.
pub(super) fn op_of(rank: usize, ranks: usize, kind: usize) -> (usize, u32) {
    let lane = if kind == FORWARD_0 || kind == BACKWARD_0 || kind == WEIGHT_0 { rank } else { 2 * ranks - 1 - rank };
    (
        lane,
        if is_forward(kind) {
            F
        } else if is_backward(kind) {
            B
        } else {
            W
        },
    )
}
