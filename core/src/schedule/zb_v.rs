//! ZB-V by hand (arXiv:2401.10241, §6 and Figure 6): two chunks per rank, assigned down the ranks and back up.

use alloc::vec::Vec;

use super::{Absent, Row, splits, v_shaped};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::OpKind;

/// The order without a bubble where F, B and W take the same time and hops are free. Every rank holds at most 2P chunk
/// activations, as much as 1F1B's first rank.
///
/// For M < 2P − 1 the phases are laid out for 2P − 1 microbatches and the surplus is dropped, as torch's
/// `ScheduleZBVZeroBubble` does: what is left keeps its order, so it still can be run.
pub fn zb_v(problem: &Problem) -> Result<Schedule, Absent> {
    v_shaped(problem)?;
    splits(problem)?;
    let (ranks, microbatches) = (problem.ranks(), problem.microbatches());
    let laid_out = microbatches.max(2 * ranks - 1);
    let rows = (0..ranks).map(|rank| {
        let ops = row(rank, ranks, laid_out).into_ops();
        ops.into_iter().filter(|op| op.microbatch() < microbatches).collect::<Vec<_>>()
    });
    Ok(Schedule::of(rows.collect()))
}

fn row(rank: usize, ranks: usize, microbatches: usize) -> Row {
    let down = rank; // stage of chunk 0
    let up = 2 * ranks - 1 - rank; // stage of chunk 1
    let mut row = Row::new(2 * ranks);
    let backward = |row: &mut Row, stage| {
        row.push(stage, OpKind::B);
        row.push(stage, OpKind::W);
    };
    // Fill: chunk 0 until the first microbatch is back from the turn, then both chunks in turn.
    row.repeat(2 * (ranks - rank) - 1, down, OpKind::F);
    for _ in 0..rank {
        row.push(up, OpKind::F);
        row.push(down, OpKind::F);
    }
    // The first backwards come down through chunk 1.
    for _ in 0..ranks - rank {
        row.push(up, OpKind::F);
        backward(&mut row, up);
    }
    // Steady: chunk 0, then chunk 1, each one forward and one whole backward.
    while row.count(up, OpKind::F) < microbatches {
        if row.count(down, OpKind::F) < microbatches {
            row.push(down, OpKind::F);
        }
        backward(&mut row, down);
        row.push(up, OpKind::F);
        backward(&mut row, up);
    }
    // Drain: the gradients first, the weights when nobody waits any more.
    for _ in 0..rank {
        row.push(down, OpKind::B);
        row.push(up, OpKind::B);
    }
    for _ in 0..ranks - rank {
        backward(&mut row, down);
    }
    row.repeat(microbatches - row.count(up, OpKind::W), up, OpKind::W);
    row.repeat(microbatches - row.count(down, OpKind::W), down, OpKind::W);
    row
}
