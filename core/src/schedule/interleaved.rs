//! Schedules with looped chunks: interleaved 1F1B, its zero-bubble forms, and looped breadth-first.
//!
//! Stage `c · P + r` is chunk `c` of rank `r`. The virtual steps of a rank go through groups of microbatches: a whole group
//! through chunk 0, then through chunk 1, and so on.

use alloc::vec::Vec;

use super::{Absent, looped, runnable, splits};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};

/// Interleaved 1F1B (arXiv:2104.04473, §2.2.2). Bubble: `(P − 1)(F + B + W) / V`; rank `r` holds at most
/// `P(V + 1) − 1 − 2r` chunk activations when P divides M.
///
/// Exists for any M: see [`groups`] for how microbatches are grouped, and [`runnable`] for the extra warm-up
/// that an uneven shape may need so that no ranks wait for each other in a circle.
pub fn interleaved(problem: &Problem, group: Option<usize>) -> Result<Schedule, Absent> {
    looped(problem)?;
    let groups = groups(problem, group, problem.ranks())?;
    Ok(runnable(problem, |extra| {
        rows(problem, &groups, |rank| 2 * (problem.ranks() - 1 - rank) + extra, |row, step| row.push(step.backward))
    }))
}

/// Interleaved 1F1B with its forwards and backwards as pairs: the exchanges of experts of each hide behind the compute of the
/// other (Megatron-LM's `combined_1f1b`; Kimi K2, arXiv:2507.20534, §2.4.2). One more warm-up forward, one more chunk
/// activation on each rank, makes the two of every pair independent.
pub fn combined(problem: &Problem, group: Option<usize>) -> Result<Schedule, Absent> {
    looped(problem)?;
    if problem.chunks() < 2 {
        return Err(Absent::because("it needs several chunks a rank"));
    }
    if !problem.pairs_gain() {
        return Err(Absent::because("no pair of ops saves time here (parallel.overlap_exchanges)"));
    }
    let groups = groups(problem, group, problem.ranks())?;
    Ok(runnable(problem, |extra| {
        let ahead = |rank| 2 * (problem.ranks() - 1 - rank) + 1 + extra;
        let mut schedule = rows(problem, &groups, ahead, |row, step| row.push(step.backward));
        let total = problem.chunks() * problem.microbatches();
        let pairs =
            |rank| (warm_up(problem, &groups, ahead(rank))..total).zip(0..).map(|(step, pair)| step as u32 + pair);
        schedule.pairs = (0..problem.ranks()).map(|rank| pairs(rank).collect()).collect();
        schedule
    }))
}

/// Interleaved zero bubble (torch's `ScheduleInterleavedZeroBubble`, after arXiv:2401.10241): half the warm-up, since B
/// alone comes back sooner, and W of rank `r` delayed by `r` steps. Every rank holds at most `P · V` chunk activations
/// when P divides M.
pub fn interleaved_zero_bubble(problem: &Problem, group: Option<usize>) -> Result<Schedule, Absent> {
    looped(problem)?;
    splits(problem)?;
    let groups = groups(problem, group, problem.ranks())?;
    let mut schedule = runnable(problem, |extra| {
        rows(
            problem,
            &groups,
            |rank| problem.ranks() - 1 - rank + extra,
            |row, step| {
                row.push(Op::new(step.backward.stage(), OpKind::B, step.backward.microbatch()));
                if step.index >= step.rank {
                    let put_off = step.backwards[step.index - step.rank];
                    row.push(Op::new(put_off.stage(), OpKind::W, put_off.microbatch()));
                }
            },
        )
    });
    let backwards = backward_steps(problem, &groups);
    for (rank, row) in schedule.rows.iter_mut().enumerate() {
        let rest = backwards.len().saturating_sub(rank);
        row.extend(
            backwards[rest..]
                .iter()
                .map(|(chunk, microbatch)| Op::new(chunk * problem.ranks() + rank, OpKind::W, *microbatch)),
        );
    }
    Ok(schedule)
}

/// The generalized interleaved schedule, GIS (PipeOffload, arXiv:2503.01328, §3): half of interleaved 1F1B's warm-up,
/// since B alone comes back sooner, and W right behind its B.
///
/// With groups of `g` rank `r` holds at most `(V − 1) · g + P − r` chunk activations when `g` divides M. With
/// `g = P`, its own rule where P divides M, no rank waits in the steady state; each microbatch fewer saves `V − 1`
/// chunk activations and costs `V − 1` forwards of waiting a group. Below half of P, a group would come back to a rank
/// after that has run out of others.
pub fn grouped(problem: &Problem, group: Option<usize>) -> Result<Schedule, Absent> {
    looped(problem)?;
    splits(problem)?;
    let groups = groups(problem, group, half(problem))?;
    Ok(runnable(problem, |extra| {
        rows(
            problem,
            &groups,
            |rank| problem.ranks() - 1 - rank + extra,
            |row, step| {
                let (stage, microbatch) = (step.backward.stage(), step.backward.microbatch());
                row.extend([OpKind::B, OpKind::W].map(|kind| Op::new(stage, kind, microbatch)));
            },
        )
    }))
}

/// GIS-H: GIS with the least groups, of half as many microbatches as ranks.
pub fn grouped_by_half(problem: &Problem) -> Result<Schedule, Absent> {
    grouped(problem, Some(half(problem).min(problem.microbatches())))
}

/// Half as many as ranks, the least that a group of [`grouped`] holds.
fn half(problem: &Problem) -> usize {
    problem.ranks().div_ceil(2)
}

/// Looped breadth-first (arXiv:2211.05953, §4): every microbatch through a chunk before the next chunk, so
/// that sharded weights are gathered once a chunk. The backwards run as torch's `ScheduleLoopedBFS` runs
/// them: last chunk first, last microbatch first. Peak: all `M · V` chunk activations.
pub fn looped_bfs(problem: &Problem) -> Result<Schedule, Absent> {
    looped(problem)?;
    let rows = (0..problem.ranks())
        .map(|rank| {
            let stages = problem.stages_of(rank);
            let forwards = stages.iter().flat_map(|stage| {
                (0..problem.microbatches()).map(|microbatch| Op::new(*stage, OpKind::F, microbatch))
            });
            let backwards = stages.iter().rev().flat_map(|stage| {
                (0..problem.microbatches()).rev().map(|microbatch| Op::new(*stage, OpKind::BW, microbatch))
            });
            forwards.chain(backwards).collect()
        })
        .collect();
    Ok(Schedule::of(rows))
}

/// Sizes of the groups of microbatches that go through a chunk before the next chunk's turn.
///
/// P each where that divides M (the paper's rule, and Megatron-LM's default). Otherwise as many groups as P
/// fits into M, none smaller than P while M is not, alike to within one, the larger first; where they come
/// out equal this is torch's rule. A size that was asked for is kept, with the rest in the last group; none under
/// `least`, as many as ranks where a rank would else wait for the loop to come round in every group (Megatron-LM
/// refuses those too).
fn groups(problem: &Problem, asked: Option<usize>, least: usize) -> Result<Vec<usize>, Absent> {
    let microbatches = problem.microbatches();
    if let Some(size) = asked {
        let least = least.min(microbatches);
        if size < least || size > microbatches {
            return Err(Absent::because(alloc::format!(
                "groups hold from {least} to {microbatches} microbatches here; {size} were requested"
            )));
        }
        return Ok(groups_of(size, microbatches));
    }
    let rounds = (microbatches / problem.ranks()).max(1);
    let (least, larger) = (microbatches / rounds, microbatches % rounds);
    Ok((0..rounds).map(|round| least + usize::from(round < larger)).collect())
}

/// Groups of one size, and what is left.
pub(crate) fn groups_of(size: usize, microbatches: usize) -> Vec<usize> {
    (0..microbatches).step_by(size).map(|first| size.min(microbatches - first)).collect()
}

/// The (chunk, microbatch) of every virtual forward step, with groups of these sizes.
pub(crate) fn forward_steps(chunks: usize, groups: &[usize]) -> Vec<(usize, usize)> {
    let mut steps = Vec::with_capacity(chunks * groups.iter().sum::<usize>());
    let mut first = 0;
    for &size in groups {
        for chunk in 0..chunks {
            steps.extend((first..first + size).map(|microbatch| (chunk, microbatch)));
        }
        first += size;
    }
    steps
}

/// As [`forward_steps`], with the chunks in reverse.
fn backward_steps(problem: &Problem, groups: &[usize]) -> Vec<(usize, usize)> {
    let last = problem.chunks() - 1;
    forward_steps(problem.chunks(), groups)
        .into_iter()
        .map(|(chunk, microbatch)| (last - chunk, microbatch))
        .collect()
}

/// One backward step of a rank under construction.
struct Step<'s> {
    rank: usize,
    /// How many backward steps the rank has behind it.
    index: usize,
    /// The fused backward of this step.
    backward: Op,
    /// All fused backwards of the rank up to this step.
    backwards: &'s [Op],
}

/// Warm-up forwards of a rank: `(V − 1) · first group + ahead`, or all.
fn warm_up(problem: &Problem, groups: &[usize], ahead: usize) -> usize {
    let looping = (problem.chunks() - 1) * groups.first().copied().unwrap_or(0);
    (looping + ahead).min(problem.chunks() * problem.microbatches())
}

/// Rows of `(V − 1) · first group + ahead(rank)` warm-up forwards, then a forward and a backward step in turn, then
/// the rest of the backward steps. `push_backward` writes one backward step.
fn rows(
    problem: &Problem,
    groups: &[usize],
    ahead: impl Fn(usize) -> usize,
    push_backward: impl Fn(&mut Vec<Op>, &Step<'_>),
) -> Schedule {
    let ranks = problem.ranks();
    let forwards = forward_steps(problem.chunks(), groups);
    let backwards = backward_steps(problem, groups);
    let total = forwards.len();
    let rows = (0..ranks)
        .map(|rank| {
            let forward = |index: usize| Op::new(forwards[index].0 * ranks + rank, OpKind::F, forwards[index].1);
            let warm_up = warm_up(problem, groups, ahead(rank));
            let mut row: Vec<Op> = Vec::with_capacity(3 * total);
            row.extend((0..warm_up).map(forward));
            let mut done = Vec::with_capacity(total);
            for (index, step) in backwards.iter().enumerate() {
                if warm_up + index < total {
                    row.push(forward(warm_up + index));
                }
                let backward = Op::new(step.0 * ranks + rank, OpKind::BW, step.1);
                done.push(backward);
                push_backward(&mut row, &Step { rank, index, backward, backwards: &done });
            }
            row
        })
        .collect();
    Schedule::of(rows)
}
