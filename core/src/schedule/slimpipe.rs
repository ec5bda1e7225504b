//! SlimPipe (arXiv:2504.14519, §4): 1F1B over uniform slices, with one whole sequence and a few slices in flight.

use alloc::format;
use alloc::vec::Vec;

use super::interleaved::{forward_steps, groups_of};
use super::slices::{self, one_in_one_out};
use super::{Absent, looped, runnable};
use crate::problem::op::{Op, OpKind};
use crate::problem::{Problem, Schedule};

/// One chunk a rank, or several (the interleaved form). A sequence goes through the chunks of a rank in groups of as many
/// slices as divide it, the fewest that are not below P; its backwards run in the reverse order of its forwards. Rank
/// `r` holds at most `N · V + 2(P − 1 − r)` slices of chunks, that is `(1 + 2(P − 1) / (N · V)) / P` of the activations of
/// a sequence on rank 0. Bubble: `(P − 1)(F + B + W)` of one slice of a chunk, with equal slices and stages and free hops.
///
/// SlimPipe also lets ranks exchange attention, so that later slices take no longer than earlier ones. That is not
/// planned: each slice takes what the problem says.
pub fn slimpipe(problem: &Problem) -> Result<Schedule, Absent> {
    looped(problem)?;
    slices::sliced(problem)?;
    let (ranks, chunks, slices) = (problem.ranks(), problem.chunks(), problem.slices());
    if chunks > 1 && slices < ranks {
        return Err(Absent::because(format!(
            "it needs at least {ranks} slices with several chunks per rank, as many as ranks; the problem has {slices}"
        )));
    }
    let group = (ranks..=slices).find(|group| slices.is_multiple_of(*group)).unwrap_or(slices);
    let steps: Vec<(usize, usize)> = forward_steps(chunks, &groups_of(group, slices));
    let of_sequence = steps.len();
    let op = |rank: usize, kind: OpKind, sequence: usize, step: usize| {
        let (chunk, slice) = steps[step];
        Op::new(chunk * ranks + rank, kind, sequence * slices + slice)
    };
    Ok(runnable(problem, |extra| {
        slices::rows(problem, |row, rank| {
            let forward = |nth: usize| op(rank, OpKind::F, nth / of_sequence, nth % of_sequence);
            let backward = |nth: usize| op(rank, OpKind::BW, nth / of_sequence, of_sequence - 1 - nth % of_sequence);
            let warm_up = of_sequence - 1 + 2 * (ranks - 1 - rank) + extra;
            one_in_one_out(row, warm_up, chunks * problem.microbatches(), forward, backward);
        })
    }))
}
