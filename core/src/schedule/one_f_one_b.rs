//! 1F1B with a flush, plain and eager.

use super::{Absent, Row, by_stage, one_chunk};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::OpKind;

/// 1F1B with a flush (PipeDream-Flush, arXiv:2104.04473, §2.2.1). Stage `s` holds at most `min(P − s, M)`
/// microbatches. Bubble: `(P − 1)(F + B + W)` with equal stages and free hops.
pub fn one_f_one_b(problem: &Problem) -> Result<Schedule, Absent> {
    one_chunk(problem)?;
    Ok(by_stage(problem, |row, stage| {
        let stages_after = problem.stage_count() - 1 - stage;
        steady(row, stage, stages_after, problem.microbatches());
    }))
}

/// Eager 1F1B (arXiv:2211.05322): twice the warm-up, so that the trip to the next stage and back is hidden.
/// Stage `s` holds at most `min(2(P − s) − 1, M)` microbatches.
pub fn eager_one_f_one_b(problem: &Problem) -> Result<Schedule, Absent> {
    one_chunk(problem)?;
    Ok(by_stage(problem, |row, stage| {
        let stages_after = problem.stage_count() - 1 - stage;
        steady(row, stage, 2 * stages_after, problem.microbatches());
    }))
}

fn steady(row: &mut Row, stage: usize, warm_up: usize, microbatches: usize) {
    let warm_up = warm_up.min(microbatches);
    row.repeat(warm_up, stage, OpKind::F); // fill the pipe
    for _ in warm_up..microbatches {
        row.push(stage, OpKind::F); // one in, one out: in-flight stays level
        row.push(stage, OpKind::BW);
    }
    row.repeat(warm_up, stage, OpKind::BW); // drain
}
