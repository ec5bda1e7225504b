//! GPipe (arXiv:1811.06965, §2.3): all forwards, then all backwards.

use super::{Absent, by_stage, one_chunk};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::OpKind;

/// Peak: all M microbatches on every rank. Bubble: `(P − 1)(F + B + W)` with equal stages and free hops.
pub fn gpipe(problem: &Problem) -> Result<Schedule, Absent> {
    one_chunk(problem)?;
    Ok(by_stage(problem, |row, stage| {
        row.repeat(problem.microbatches(), stage, OpKind::F);
        row.repeat(problem.microbatches(), stage, OpKind::BW);
    }))
}
