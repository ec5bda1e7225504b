//! Seq1F1B and its interleaved form (arXiv:2406.03488, §3): 1F1B over slices of sequences.

use super::interleaved::{forward_steps, groups_of};
use super::slices::{self, one_in_one_out};
use super::{Absent, looped, one_chunk, runnable};
use crate::problem::op::{Op, OpKind};
use crate::problem::{Problem, Schedule};

/// Seq1F1B: 1F1B whose warm-up is longer by the slices that the first backward waits for, `P − 1 − s + N − 1` with N slices.
/// Backwards come from a partially ordered queue: of the sequence that came first, the slice that came last. Stage `s`
/// holds at most `P − 1 − s + N` slices. Bubble: `(P − 1)(F + B + W)` of one slice, with equal slices and stages and free
/// hops.
pub fn seq1f1b(problem: &Problem) -> Result<Schedule, Absent> {
    one_chunk(problem)?;
    slices::sliced(problem)?;
    Ok(slices::rows(problem, |row, stage| {
        let warm_up = problem.stage_count() - 1 - stage + problem.slices() - 1;
        let forward = |nth| Op::new(stage, OpKind::F, nth);
        let backward = |nth| Op::new(stage, OpKind::BW, problem.nth_backward(nth));
        one_in_one_out(row, warm_up, problem.microbatches(), forward, backward);
    }))
}

/// Seq1F1B-I: interleaved 1F1B over slices, with `N − 1` more warm-up forwards. Slices go through a chunk in groups of P;
/// where N does not divide P, of the least multiple of N that is not below P, so that a group holds whole sequences.
pub fn seq1f1b_interleaved(problem: &Problem) -> Result<Schedule, Absent> {
    looped(problem)?;
    slices::sliced(problem)?;
    let (ranks, chunks, slices) = (problem.ranks(), problem.chunks(), problem.slices());
    let group = ranks.next_multiple_of(slices);
    let groups = groups_of(group, problem.microbatches());
    let steps = forward_steps(chunks, &groups);
    let looping = (chunks - 1) * groups[0];
    Ok(runnable(problem, |extra| {
        slices::rows(problem, |row, rank| {
            let forward = |nth: usize| Op::new(steps[nth].0 * ranks + rank, OpKind::F, steps[nth].1);
            let backward = |nth: usize| {
                let (chunk, slice) = steps[nth];
                Op::new((chunks - 1 - chunk) * ranks + rank, OpKind::BW, problem.nth_backward(slice))
            };
            let warm_up = looping + 2 * (ranks - 1 - rank) + slices - 1 + extra;
            one_in_one_out(row, warm_up, steps.len(), forward, backward);
        })
    }))
}
