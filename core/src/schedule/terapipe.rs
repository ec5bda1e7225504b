//! TeraPipe (arXiv:2102.07988, §3): GPipe over slices of sequences.

use super::{Absent, one_chunk, slices};
use crate::problem::op::{Op, OpKind};
use crate::problem::{Problem, Schedule};

/// All forwards, slice by slice, then all backwards, of each sequence the last slice first. Peak: all slices on every rank.
/// Bubble: `(P − 1)(F + B + W)` of one slice, with equal slices and stages and free hops.
pub fn terapipe(problem: &Problem) -> Result<Schedule, Absent> {
    one_chunk(problem)?;
    slices::sliced(problem)?;
    Ok(slices::rows(problem, |row, stage| {
        row.extend((0..problem.microbatches()).map(|slice| Op::new(stage, OpKind::F, slice)));
        row.extend((0..problem.microbatches()).map(|nth| Op::new(stage, OpKind::BW, problem.nth_backward(nth))));
    }))
}
