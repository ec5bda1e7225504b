//! Schedules of whole microbatches on a problem of slices: each op becomes those of its slices, one after the other.

use alloc::vec::Vec;

use super::{Absent, Published};
use crate::problem::op::{Op, OpKind};
use crate::problem::{Problem, Schedule};

/// The schedule that `published` has for whole sequences, with its slices. Stages pass on each slice as soon as it is made,
/// so it takes no longer than that for whole sequences.
pub(super) fn build(published: &Published, problem: &Problem) -> Result<Schedule, Absent> {
    let whole = problem
        .with_whole_sequences()
        .ok_or_else(|| Absent::because("its slices together take more than a problem may have"))?;
    Ok(in_slices(problem, &published.build(&whole)?))
}

/// Every op of `whole` as the ops of its slices: forwards in order, backwards in reverse. A pair becomes a pair for each
/// slice.
pub(crate) fn in_slices(problem: &Problem, whole: &Schedule) -> Schedule {
    let slices = problem.slices();
    let slice_of = |op: &Op, nth: usize| {
        let slice = if op.kind() == OpKind::F { nth } else { slices - 1 - nth };
        Op::new(op.stage(), op.kind(), op.microbatch() * slices + slice)
    };
    let mut schedule = Schedule::of(Vec::with_capacity(whole.rows.len()));
    for (rank, ops) in whole.rows.iter().enumerate() {
        let mut row = Vec::with_capacity(ops.len() * slices);
        let mut pairs = Vec::new();
        let mut at = 0;
        while let Some(op) = ops.get(at) {
            let is_pair = whole.pairs_of(rank).binary_search(&(at as u32)).is_ok();
            let together = &ops[at..][..if is_pair { 2 } else { 1 }];
            for nth in 0..slices {
                pairs.extend(is_pair.then_some(row.len() as u32));
                row.extend(together.iter().map(|op| slice_of(op, nth)));
            }
            at += together.len();
            debug_assert!(
                op.microbatch() < problem.microbatches() / slices,
                "the whole problem has its microbatches"
            );
        }
        schedule.rows.push(row);
        schedule.pairs.push(pairs);
    }
    if schedule.pairs.iter().all(Vec::is_empty) { Schedule::of(schedule.rows) } else { schedule }
}
