//! Building blocks of a V, as the public controllable-memory search makes and fills them.
//!
//! A block is built as in [`building_block`](crate::schedule): F, B and W of two chunks take one slot each, whatever their times,
//! and every six slots the next microbatch does the same. Down the ranks an op comes later on each next rank by one of two slopes:
//! the first up to a bend, the second behind it. Up the ranks it comes one slot later. Slopes, bend and the slots on the first rank
//! define the block; blocks in which two ops of a rank take one slot do not exist.
//!
//! A rule then fills the idle slots of the warm-up and the cool-down:
//!
//! 1. **Warm-up**, on each rank up to the first B of chunk 0. First come the forwards: of chunk 0 while the first microbatch is on
//!    its way to the turn, of both chunks while it comes back. Then come, in turn, B and W of chunk 1 and one more forward.
//! 2. **Cool-down**: the last B, as many as memory holds microbatches, follow each other as closely as their inputs allow, and W
//!    waits behind them.
//! 3. Slot by slot each rank fills an idle slot with the first of its later ops that may run then and takes no more memory than
//!    the most held anyway.
//! 4. W run first come, first served.
//!
//! With fewer microbatches than two per rank, the warm-up is that of two per rank, and the ops of the others are left out.
//!
//! With memory for a number of chunks, blocks that hold exactly that number lead to the least idle time, so only those are tried.
//!
//! Source of the rule: `v_auto_schedule.py` of sail-sg/zero-bubble-pipeline-parallelism (arXiv:2405.15362, §3 and Appendix A).

use alloc::vec::Vec;

use super::flat_problem::{Code, F, Flat, Rows, code};
use super::makespan::Eval;
use crate::schedule::KINDS;

mod compact;
mod fill;
mod kinds;
mod shape;

pub(super) use fill::build;
pub(super) use shape::{Block, blocks_from, firsts};

use kinds::{is_forward, is_weight, op_of};
use shape::fits;

/// A slot of a row without an op.
const IDLE: usize = KINDS;

/// By rank, the kinds of its ops in their order or, where slots count, slot by slot.
pub(super) type Cells = Vec<Vec<usize>>;

/// Whether blocks exist for the problem: a V with a split backward.
pub(super) fn applies(flat: &Flat) -> bool {
    let ranks = flat.ranks;
    let v = || (0..ranks).all(|rank| flat.lanes_of[rank] == [rank, 2 * ranks - 1 - rank]);
    flat.chains.len() == 1 && !flat.fused && ranks > 1 && flat.lanes.len() == 2 * ranks && v()
}

/// The blocks that use most of the memory.
pub(super) fn blocks(flat: &Flat, eval: &mut Eval) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    if !applies(flat) {
        return blocks;
    }
    let mut held = 0;
    // Only blocks in which a microbatch turns at once: the others are never better.
    for first in firsts().filter(|first| first[0] == 1) {
        for block in blocks_from(first, flat.ranks, |block| {
            eval.ops += flat.ranks as u64;
            block.held <= 2 * flat.ranks && fits(flat, block)
        }) {
            if block.held > held {
                held = block.held;
                blocks.clear();
            }
            if block.held == held {
                blocks.push(block);
            }
        }
    }
    blocks
}

/// The order that a block gives, if it is valid.
pub(super) fn order(flat: &Flat, eval: &mut Eval, block: &Block) -> Option<Rows> {
    let microbatches = flat.lanes[0].count;
    let all_fit = (0..flat.ranks).all(|rank| {
        let each = |lane: &usize| flat.lanes[*lane].net(F).saturating_mul(microbatches as i64);
        flat.lanes_of[rank].iter().map(each).fold(0, i64::saturating_add) <= flat.limit[rank]
    });
    eval.ops += 4 * flat.ops as u64;
    let rows = rows(flat, &build(block, microbatches, all_fit)?);
    (0..flat.ranks).all(|rank| flat.is_valid_row(rank, &rows[rank])).then_some(rows)
}

/// The rows of the search.
pub(super) fn rows(flat: &Flat, cells: &Cells) -> Rows {
    let code = |rank: usize, kind: usize| -> Code {
        let (lane, kind) = op_of(rank, flat.ranks, kind);
        code(lane, kind)
    };
    cells.iter().enumerate().map(|(rank, row)| row.iter().map(|kind| code(rank, *kind)).collect()).collect()
}

/// The most chunk activations that a rank holds.
fn most_held(cells: &Cells) -> usize {
    cells.iter().map(|row| row_holds(row)).max().unwrap_or(0)
}

fn row_holds(row: &[usize]) -> usize {
    let (mut held, mut most) = (0usize, 0);
    for kind in row {
        if is_forward(*kind) {
            held += 1;
            most = most.max(held);
        } else if is_weight(*kind) {
            held -= 1;
        }
    }
    most
}
