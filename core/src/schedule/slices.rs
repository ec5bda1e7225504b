//! What schedules of sequence slices have in common.

use alloc::vec::Vec;

use super::Absent;
use crate::problem::op::Op;
use crate::problem::{Problem, Schedule};

/// Refuses problems of whole sequences.
pub(super) fn sliced(problem: &Problem) -> Result<(), Absent> {
    match problem.slices() {
        1 => Err(Absent::of_whole_sequences()),
        _ => Ok(()),
    }
}

/// A row for each rank, whose stages go round the ranks, written from the rank's first stage on.
pub(super) fn rows(problem: &Problem, write: impl Fn(&mut Vec<Op>, usize)) -> Schedule {
    let mut schedule = Schedule::of(alloc::vec![Vec::new(); problem.ranks()]);
    for stage in 0..problem.ranks() {
        write(&mut schedule.rows[problem.rank_of(stage, 0)], stage);
    }
    schedule
}

/// `warm_up` forwards, then a forward and a backward in turn, then the rest of the backwards, `count` of each in all.
pub(super) fn one_in_one_out(
    row: &mut Vec<Op>,
    warm_up: usize,
    count: usize,
    forward: impl Fn(usize) -> Op,
    backward: impl Fn(usize) -> Op,
) {
    let warm_up = warm_up.min(count);
    row.extend((0..warm_up).map(&forward));
    for nth in warm_up..count {
        row.extend([forward(nth), backward(nth - warm_up)]); // one in, one out: in-flight stays level
    }
    row.extend((count - warm_up..count).map(backward));
}
