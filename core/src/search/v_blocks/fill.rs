//! What the rule makes of a block: it is repeated, and its warm-up and cool-down are filled.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::compact::{compacted, pull_left};
use super::kinds::{is_backward, is_weight, weight_of};
use super::shape::Block;
use super::{Cells, IDLE, most_held, row_holds};
use crate::schedule::{BACKWARD_0, BACKWARD_1, FORWARD_0, FORWARD_1, KINDS, PERIOD, WEIGHT_0, WEIGHT_1};

/// The order that the rule makes of a block; none where no order results that keeps the block's memory. `all_fit` says
/// whether memory is enough for the forwards of all microbatches.
pub(in crate::search) fn build(block: &Block, microbatches: usize, all_fit: bool) -> Option<Cells> {
    let ranks = block.slots.len();
    let many = microbatches.max(2 * ranks);
    let mut cells = repeated(block, many);
    let mut held = block.held;
    for (rank, row) in cells.iter_mut().enumerate() {
        *row = warm_up(row, rank, ranks, held);
    }
    if most_held(&cells) > held {
        return None;
    }
    if microbatches < many {
        let many_held = most_held(&cells);
        for row in &mut cells {
            leave_out(row, microbatches);
            if microbatches <= ranks && all_fit {
                put_off_weights(row, many_held);
            }
        }
        held = most_held(&cells);
    }
    let mut cells = compacted(&cells, microbatches)?;
    cool_down(&mut cells, microbatches, held)?;
    let mut cells = compacted(&cells, microbatches)?;
    pull_left(&mut cells, microbatches);
    for row in &mut cells {
        row.retain(|kind| *kind != IDLE);
        serve_weights(row)?;
    }
    (most_held(&cells) <= held).then_some(cells)
}

/// The block for every microbatch, each rank's ops in the order of their slots.
fn repeated(block: &Block, microbatches: usize) -> Cells {
    let row = |slots: &[usize; KINDS]| {
        let mut order: Vec<(usize, usize, usize)> = Vec::with_capacity(KINDS);
        order.extend(slots.iter().enumerate().map(|(kind, slot)| (slot % PERIOD, slot / PERIOD, kind)));
        order.sort_unstable();
        let last = order.iter().map(|(_, periods, _)| *periods).max().unwrap_or(0);
        let mut row = Vec::with_capacity(KINDS * microbatches);
        for period in 0..microbatches + last {
            let runs = |before: usize| before <= period && period - before < microbatches;
            row.extend(order.iter().filter(|(_, before, _)| runs(*before)).map(|(.., kind)| *kind));
        }
        row
    };
    block.slots.iter().map(row).collect()
}

/// A row with the ops before its first B of chunk 0 in the order of step 1, where `held` chunks may be held.
fn warm_up(row: &[usize], rank: usize, ranks: usize, held: usize) -> Vec<usize> {
    let end = row.iter().position(|kind| *kind == BACKWARD_0).unwrap_or(row.len());
    let mut left = [0usize; KINDS];
    row[..end].iter().for_each(|kind| left[*kind] += 1);
    let mut new = Vec::with_capacity(row.len());
    let mut put = |left: &mut [usize; KINDS], kind: usize| {
        let any = left[kind] > 0;
        if any {
            left[kind] -= 1;
            new.push(kind);
        }
        any
    };
    // Before the first B: of chunk 1 as many as come back in time, and the rest of the memory for chunk 0.
    let back = (rank + 1).min(held / 2);
    let mut first = [(held - back).min(left[FORWARD_0]), back.min(left[FORWARD_1])];
    let until_turn = 2 * (ranks - 1 - rank);
    for step in 0..until_turn + 2 * (rank + 1) {
        let chunk = if step < until_turn { 0 } else { (step - until_turn) % 2 };
        if first[chunk] > 0 {
            first[chunk] -= 1;
            put(&mut left, [FORWARD_0, FORWARD_1][chunk]);
        }
    }
    while left.iter().any(|left| *left > 0) {
        put(&mut left, BACKWARD_1);
        put(&mut left, WEIGHT_1);
        if !put(&mut left, FORWARD_1) {
            put(&mut left, FORWARD_0);
        }
    }
    new.extend_from_slice(&row[end..]);
    new
}

/// Leaves all but the first microbatches out.
fn leave_out(row: &mut Vec<usize>, microbatches: usize) {
    let mut seen = [0; KINDS];
    row.retain(|kind| {
        seen[*kind] += 1;
        seen[*kind] <= microbatches
    });
}

/// Where few microbatches do not fill the memory, the first W wait until the end.
fn put_off_weights(row: &mut Vec<usize>, held: usize) {
    let mut spare = held.saturating_sub(row_holds(row));
    let mut waiting = Vec::with_capacity(spare);
    row.retain(|kind| {
        let waits = is_weight(*kind) && spare > 0;
        if waits {
            spare -= 1;
            waiting.push(*kind);
        }
        !waits
    });
    row.extend(waiting);
}

/// Step 2, on rows by slot.
fn cool_down(cells: &mut Cells, microbatches: usize, held: usize) -> Option<()> {
    let ranks = cells.len();
    let last_0 = held.div_ceil(2).min(microbatches);
    let last_1 = (held - last_0).min(microbatches);
    let from = cells[0].iter().rposition(|kind| *kind == FORWARD_1)?;
    for (rank, row) in cells.iter_mut().enumerate() {
        let mut taken = [0usize; KINDS];
        for cell in row.iter_mut().rev() {
            let most = match *cell {
                BACKWARD_1 => last_1.min(rank + 1),
                BACKWARD_0 => last_0,
                _ => continue,
            };
            if taken[*cell] < most {
                taken[*cell] += 1;
                *cell = IDLE;
            }
        }
        for cell in row.iter_mut().rev() {
            let [weights_1, weights_0] = [taken[WEIGHT_1], taken[WEIGHT_0]];
            if weights_1 >= taken[BACKWARD_1] && weights_0 >= taken[BACKWARD_0] && weights_1 + weights_0 >= held {
                break;
            }
            if is_weight(*cell) {
                taken[*cell] += 1;
                *cell = IDLE;
            }
        }
        // Those of chunk 0 come up from the last rank, those of chunk 1 down from the first, two slots apart.
        for (kind, last) in [(BACKWARD_0, (from + 2 * ranks).checked_sub(rank)?), (BACKWARD_1, from + 1 + rank)] {
            for n in 0..taken[kind] {
                let slot = last.checked_sub(2 * n)?;
                if slot >= row.len() {
                    row.resize(slot + 1, IDLE);
                }
                if core::mem::replace(&mut row[slot], kind) != IDLE {
                    return None;
                }
            }
        }
        put_back_weights(row)?;
    }
    Some(())
}

/// W that were removed go into idle slots behind the last W that stayed, those of chunk 1 first.
fn put_back_weights(row: &mut Vec<usize>) -> Option<()> {
    let behind = row.iter().rposition(|kind| is_weight(*kind)).map_or(0, |last| last + 1);
    let mut waiting = [0usize; 2];
    for (slot, cell) in row.iter_mut().enumerate() {
        match *cell {
            BACKWARD_1 | BACKWARD_0 => waiting[*cell - BACKWARD_1] += 1,
            WEIGHT_1 | WEIGHT_0 => waiting[*cell - WEIGHT_1] = waiting[*cell - WEIGHT_1].checked_sub(1)?,
            IDLE if slot >= behind => {
                if let Some(chunk) = waiting.iter().position(|waiting| *waiting > 0) {
                    waiting[chunk] -= 1;
                    *cell = WEIGHT_1 + chunk;
                }
            }
            _ => {}
        }
    }
    for (chunk, waiting) in waiting.into_iter().enumerate() {
        row.extend(core::iter::repeat_n(WEIGHT_1 + chunk, waiting));
    }
    Some(())
}

/// Step 4.
fn serve_weights(row: &mut [usize]) -> Option<()> {
    let mut waiting = VecDeque::new();
    for kind in row {
        if is_backward(*kind) {
            waiting.push_back(weight_of(*kind));
        } else if is_weight(*kind) {
            *kind = waiting.pop_front()?;
        }
    }
    Some(())
}
