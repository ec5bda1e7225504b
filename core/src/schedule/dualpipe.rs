//! DualPipe and its V-shaped half (DeepSeek-V3, arXiv:2412.19437, §3.2.1; github.com/deepseek-ai/DualPipe).
//!
//! Two streams of microbatches meet on every rank. In the steady phase the forward of one stream is paired with the backward of
//! the other, so compute of one hides communication of the other. In DualPipe the streams enter at the two ends, and each rank
//! keeps two copies of the parameters. In DualPipeV the streams are the two chunks of a V, and one copy is enough.
//!
//! The problem says what a pair gains. Where that is nothing, the two ops follow each other.
//!
//! The eight phases are those of the paper's figure. Each is named by what it repeats: 0 is the stream that reaches the rank
//! first, 1 is the other.

use alloc::vec;
use alloc::vec::Vec;

use super::{Absent, Row, splits, v_shaped};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::Op;
use crate::problem::op::OpKind;
use crate::problem::placement::Placement;

/// DualPipeV ("cut in half"): exists from 2P microbatches on. Every rank holds at most 2P + 1 chunk
/// activations.
pub fn dualpipe_v(problem: &Problem) -> Result<Schedule, Absent> {
    v_shaped(problem)?;
    splits(problem)?;
    let (ranks, microbatches) = (problem.ranks(), problem.microbatches());
    if microbatches < 2 * ranks {
        return Err(Absent::because(alloc::format!(
            "it needs at least 2P = {} microbatches; the problem has {microbatches}",
            2 * ranks
        )));
    }
    let rows = (0..ranks).map(|rank| {
        let streams = [rank, 2 * ranks - 1 - rank];
        phases(Row::new(2 * ranks), streams, ranks, rank, microbatches)
    });
    Ok(paired(problem, rows))
}

/// DualPipe: an even number of ranks, two directions with half of the microbatches each, at least 2P in all.
pub fn dualpipe(problem: &Problem) -> Result<Schedule, Absent> {
    if *problem.placement() != Placement::Bidirectional {
        return Err(Absent::because(
            "it is bidirectional: it needs two copies of the model, one for each \
             direction (placement two-way)",
        ));
    }
    splits(problem)?;
    let (ranks, microbatches) = (problem.ranks(), problem.microbatches());
    if microbatches < 2 * ranks {
        return Err(Absent::because(alloc::format!(
            "it needs at least 2P = {} microbatches; the problem has {microbatches}",
            2 * ranks
        )));
    }
    let half = microbatches / 2;
    let rows = (0..ranks).map(|rank| {
        // The stream whose entrance is nearer comes first.
        let (down, up) = (rank, ranks - 1 - rank);
        let streams = if rank < ranks / 2 { [down, up] } else { [up, down] };
        let mut first = vec![0; ranks];
        first[up] = half;
        phases(Row::starting_at(first), streams, ranks / 2, rank.min(up), half)
    });
    Ok(paired(problem, rows))
}

/// Op lists with their pairs, where pairs save time.
fn paired(problem: &Problem, rows: impl Iterator<Item = (Vec<Op>, Vec<u32>)>) -> Schedule {
    let (rows, pairs): (Vec<_>, Vec<_>) = rows.unzip();
    if problem.pairs_gain() { Schedule { rows, pairs, ..Schedule::default() } } else { Schedule::of(rows) }
}

/// The row of the rank at `position` (0 at an entrance) of `depth`, with `microbatches` in each stream; a
/// stream is named by its stage on this rank.
fn phases(
    mut row: Row,
    [near, far]: [usize; 2],
    depth: usize,
    position: usize,
    microbatches: usize,
) -> (Vec<Op>, Vec<u32>) {
    let from_turn = depth - 1 - position;
    // Stages of backwards whose weights are put off, oldest first.
    let mut put_off = vec![];
    let mut taken = 0;
    let mut pairs = vec![];
    let mut pair = |row: &mut Row, forward, backward| {
        pairs.push(row.len() as u32);
        row.push(forward, OpKind::F);
        row.push(backward, OpKind::BW);
    };
    // nF0
    row.repeat(2 * from_turn, near, OpKind::F);
    // nF0F1
    for _ in 0..position + 1 {
        row.push(near, OpKind::F);
        row.push(far, OpKind::F);
    }
    // nB1W1F1
    for _ in 0..from_turn {
        row.push(far, OpKind::B);
        row.push(far, OpKind::W);
        row.push(far, OpKind::F);
    }
    // nF0B1F1B0: the pairs. At the turn the first microbatch has only just come, so nothing hides behind it.
    for index in 0..microbatches + position + 1 - 2 * depth {
        if index == 0 && from_turn == 0 {
            row.push(near, OpKind::F);
            row.push(far, OpKind::BW);
        } else {
            pair(&mut row, near, far);
        }
        pair(&mut row, far, near);
    }
    // nB1F1B0
    for _ in 0..from_turn {
        row.push(far, OpKind::BW);
        pair(&mut row, far, near);
    }
    // nB1B0: from the middle on, weights are put off
    for index in 0..position + 1 {
        let middle = position.div_ceil(2);
        for (stage, odd) in [(far, true), (near, false)] {
            // Odd positions cut from the middle's first backward on, even ones from its second.
            let cut = index > middle || (index == middle && (!odd || position % 2 == 1));
            if cut {
                row.push(stage, OpKind::B);
                put_off.push(stage);
            } else {
                row.push(stage, OpKind::BW);
            }
        }
    }
    // nWB0
    for _ in 0..from_turn {
        row.push(put_off[taken], OpKind::W);
        taken += 1;
        row.push(near, OpKind::B);
        put_off.push(near);
    }
    // nW
    for stage in &put_off[taken..] {
        row.push(*stage, OpKind::W);
    }
    (row.into_ops(), pairs)
}
