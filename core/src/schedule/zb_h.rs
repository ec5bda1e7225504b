//! ZB-H1 and ZB-H2 (arXiv:2401.10241, §2): 1F1B in which W waits to fill the bubble.

use super::{Absent, Row, by_stage, one_chunk, splits};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::OpKind;

/// ZB-H1 (§2.1): the F and B of 1F1B, W of stage `s` delayed by `s` microbatches. Never more memory than 1F1B's first
/// stage: `(P − s) M_B + s M_W`. Bubble: `(P − 1)(F + B − W)` with free hops.
pub fn zb_h1(problem: &Problem) -> Result<Schedule, Absent> {
    one_chunk(problem)?;
    splits(problem)?;
    Ok(by_stage(problem, |row, stage| {
        let stages_after = problem.stage_count() - 1 - stage;
        delayed_weights(row, stage, stages_after, stage, problem.microbatches());
    }))
}

/// ZB-H2 (§2.2): warm-up of `2(P − s) − 1` forwards, W delayed by `2s` microbatches. Up to twice the memory of 1F1B;
/// each rank's span then has a bubble of `(P − 1)(F + B − 2W)`.
pub fn zb_h2(problem: &Problem) -> Result<Schedule, Absent> {
    one_chunk(problem)?;
    splits(problem)?;
    Ok(by_stage(problem, |row, stage| {
        let stages_after = problem.stage_count() - 1 - stage;
        delayed_weights(row, stage, 2 * stages_after, 2 * stage, problem.microbatches());
    }))
}

/// `warm_up` forwards, then one F and one B in turn; a W follows each B once `delay` of them are behind.
fn delayed_weights(row: &mut Row, stage: usize, warm_up: usize, delay: usize, microbatches: usize) {
    let warm_up = warm_up.min(microbatches);
    row.repeat(warm_up, stage, OpKind::F);
    for backward in 0..microbatches {
        if warm_up + backward < microbatches {
            row.push(stage, OpKind::F);
        }
        row.push(stage, OpKind::B);
        if backward >= delay {
            row.push(stage, OpKind::W);
        }
    }
    row.repeat(delay.min(microbatches), stage, OpKind::W);
}
