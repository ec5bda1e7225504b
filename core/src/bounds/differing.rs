//! The bound where microbatches differ.
//!
//! The bounds of the other modules rest on microbatches that are alike. Here each microbatch is a chain: F through all stages, B
//! back, and W of each stage behind its B. The ops of a rank are jobs of one machine. The head of a job is the longest path
//! of its microbatch before it; its tail is the longest path behind it. No order of the rank's jobs ends sooner, tails
//! included, than the preemptive one that always runs the job with the longest tail (Jackson's preemptive schedule: Carlier,
//! "The one-machine sequencing problem", EJOR 11, 1982). No bound looks at memory.
//!
//! A whole BW is a B and a W that follow it, neither longer than alone nor both together longer than BW. Where pairs gain,
//! each op counts half of its time, rounded down: a pair takes at least as long as the longer of its two.
//!
//! [Slices](Problem::slices) of a sequence wait for each other on each stage, so their chains make one grid: F of a slice
//! also has the F of the slice before it in its head, and B that of the slice behind. Tails are alike. A longest path
//! through the grid is as good a head as one through a chain, since the argument asks only that no op starts sooner.
//!
//! The longest span is at least that of each rank. There a window opens with some F on the rank's first stage and
//! closes with its last op, so heads count from F of that stage, and tails to B and W of that stage. That holds of the paths
//! of a chain, all of which pass that F; so there each slice counts for itself.

use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::{Best, Binding, Bound};
use crate::base::units::Nanos;
use crate::problem::op::OpKind;
use crate::problem::{Backward, Objective, Problem};

/// With more jobs on a rank, all its work with the least head and tail counts, and no order is looked at.
const MOST_JOBS: usize = 1_000_000;

/// One op of a rank.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub head: Nanos,
    pub takes: Nanos,
    pub tail: Nanos,
}

/// A lower bound for microbatches that differ.
pub(super) fn bound(problem: &Problem) -> Bound {
    let mut jobs: Vec<Vec<Job>> = vec![Vec::new(); problem.ranks()];
    let slices = match problem.objective() {
        Objective::Makespan => problem.slices(),
        Objective::LongestSpan => 1,
    };
    for first in (0..problem.microbatches()).step_by(slices) {
        add_jobs(problem, first..first + slices, &mut jobs);
    }
    let mut best = Best { value: 0, binding: Binding::Work { rank: 0, load_ns: 0 } };
    for (rank, mut jobs) in jobs.into_iter().enumerate() {
        let [head, load_ns, tail] = if jobs.len() > MOST_JOBS { all_of(&jobs) } else { preemptive(&mut jobs) };
        best.take(head + load_ns + tail, || match (head, tail) {
            (0, 0) => Binding::Work { rank, load_ns },
            _ => Binding::Rank { rank, head_ns: head, load_ns, tail_ns: tail },
        });
    }
    let binding = if problem.pairs_gain() { Binding::Hidden(Box::new(best.binding)) } else { best.binding };
    Bound { value_ns: best.value, objective: problem.objective(), binding }
}

/// By stage of one microbatch: a time for each of F, B and W.
pub(super) type ByStage = Vec<[Nanos; 3]>;

/// The ops of one microbatch, whose sequence is whole: what each takes, and the longest paths before and behind it.
pub(super) fn chain(problem: &Problem, microbatch: usize) -> [ByStage; 3] {
    let (sequence, times) = (microbatch..microbatch + 1, vec![least_times(problem, microbatch)]);
    let paths = [heads(problem, &sequence, &times), tails(problem, &sequence, &times)];
    let [heads, tails] = paths.map(|paths| paths.into_iter().next().unwrap_or_default());
    [times.into_iter().next().unwrap_or_default(), heads, tails]
}

/// Adds the ops of the microbatches of `sequence`, which are one, or all slices of a sequence, to the jobs of their ranks.
fn add_jobs(problem: &Problem, sequence: Range<usize>, jobs: &mut [Vec<Job>]) {
    let times: Vec<ByStage> = sequence.clone().map(|microbatch| least_times(problem, microbatch)).collect();
    let heads = heads(problem, &sequence, &times);
    let tails = tails(problem, &sequence, &times);
    let of_rank = problem.objective() == Objective::LongestSpan;
    for (slice, microbatch) in sequence.enumerate() {
        let (times, heads, tails) = (&times[slice], &heads[slice], &tails[slice]);
        let mut first: Vec<Option<usize>> = vec![None; problem.ranks()];
        for stage in 0..problem.stage_count() {
            let rank = problem.rank_of(stage, microbatch);
            let first = *first[rank].get_or_insert(stage);
            for kind in 0..3 {
                let (mut head, mut tail) = (heads[stage][kind], tails[stage][kind]);
                if of_rank {
                    // B of the first stage ends so long after this op has: the way there is the way between their heads.
                    let way = heads[first][2].saturating_sub(head + times[stage][kind]);
                    (head, tail) = (head - heads[first][0], if kind == 2 { 0 } else { way + times[first][2] });
                }
                if times[stage][kind] > 0 {
                    jobs[rank].push(Job { head, takes: times[stage][kind], tail });
                }
            }
        }
    }
}

/// The least that F, B and W of each stage take for `microbatch`.
fn least_times(problem: &Problem, microbatch: usize) -> ByStage {
    let part = |ns: Nanos| if problem.pairs_gain() { ns / 2 } else { ns };
    let of = |stage: usize| {
        let cost = problem.cost_of(stage, microbatch);
        let [b, w] = match problem.backward() {
            Backward::Split => cost.least_backward(),
            Backward::Fused => [cost.duration(OpKind::BW), 0],
        };
        [cost.duration(OpKind::F), b, w].map(part)
    };
    (0..problem.stage_count()).map(of).collect()
}

/// The longest path before each op.
fn heads(problem: &Problem, sequence: &Range<usize>, times: &[ByStage]) -> Vec<ByStage> {
    let (slices, stages) = (times.len(), problem.stage_count());
    let hop = |from: usize, to: usize, slice: usize| problem.hop_of(from, to, sequence.start + slice);
    let mut heads = vec![vec![[0; 3]; stages]; slices];
    for slice in 0..slices {
        for stage in 0..stages {
            let from = |slice: usize, stage: usize| heads[slice][stage][0] + times[slice][stage][0];
            let down = stage.checked_sub(1).map_or(0, |before| from(slice, before) + hop(before, stage, slice));
            heads[slice][stage][0] = slice.checked_sub(1).map_or(down, |before| down.max(from(before, stage)));
        }
    }
    for slice in (0..slices).rev() {
        for stage in (0..stages).rev() {
            let from = |slice: usize, stage: usize| heads[slice][stage][1] + times[slice][stage][1];
            let up = match stage + 1 == stages {
                true => heads[slice][stage][0] + times[slice][stage][0],
                false => from(slice, stage + 1) + hop(stage + 1, stage, slice),
            };
            let head = if slice + 1 == slices { up } else { up.max(from(slice + 1, stage)) };
            heads[slice][stage][1] = head;
            heads[slice][stage][2] = head + times[slice][stage][1];
        }
    }
    heads
}

/// The longest path behind each op.
fn tails(problem: &Problem, sequence: &Range<usize>, times: &[ByStage]) -> Vec<ByStage> {
    let (slices, stages) = (times.len(), problem.stage_count());
    let hop = |from: usize, to: usize, slice: usize| problem.hop_of(from, to, sequence.start + slice);
    let mut tails = vec![vec![[0; 3]; stages]; slices];
    for slice in 0..slices {
        for stage in 0..stages {
            let to = |slice: usize, stage: usize| times[slice][stage][1] + tails[slice][stage][1];
            let back = stage.checked_sub(1).map_or(0, |before| hop(stage, before, slice) + to(slice, before));
            let beside = slice.checked_sub(1).map_or(0, |before| to(before, stage));
            tails[slice][stage][1] = times[slice][stage][2].max(back).max(beside);
        }
    }
    for slice in (0..slices).rev() {
        for stage in (0..stages).rev() {
            let to = |slice: usize, stage: usize| times[slice][stage][0] + tails[slice][stage][0];
            let down = match stage + 1 == stages {
                true => times[slice][stage][1] + tails[slice][stage][1],
                false => hop(stage, stage + 1, slice) + to(slice, stage + 1),
            };
            tails[slice][stage][0] = if slice + 1 == slices { down } else { down.max(to(slice + 1, stage)) };
        }
    }
    tails
}

/// The least head, all work, and the least tail.
fn all_of(jobs: &[Job]) -> [Nanos; 3] {
    let least = |of: fn(&Job) -> Nanos| jobs.iter().map(of).min().unwrap_or(0);
    [least(|job| job.head), jobs.iter().map(|job| job.takes).sum(), least(|job| job.tail)]
}

/// The value of the preemptive schedule, as the head, work and tail of the jobs that decide it.
pub(super) fn preemptive(jobs: &mut [Job]) -> [Nanos; 3] {
    jobs.sort_unstable_by_key(|job| job.head);
    // Ready jobs, the longest tail first: the tail, and the work left.
    let mut ready: BinaryHeap<(Nanos, Nanos)> = BinaryHeap::new();
    // What ran, one piece after the other: from, until, and the tail of its job.
    let mut ran: Vec<[Nanos; 3]> = Vec::with_capacity(2 * jobs.len());
    let mut last = (0, 0);
    let (mut now, mut next) = (0, 0);
    while next < jobs.len() || !ready.is_empty() {
        if ready.is_empty() {
            now = now.max(jobs[next].head);
        }
        while let Some(job) = jobs.get(next).filter(|job| job.head <= now) {
            ready.push((job.tail, job.takes));
            next += 1;
        }
        let Some((tail, left)) = ready.pop() else { continue };
        let until = jobs.get(next).map_or(now + left, |job| job.head.min(now + left));
        ran.push([now, until, tail]);
        if until < now + left {
            ready.push((tail, now + left - until));
        } else if until + tail > last.0 {
            last = (until + tail, ran.len() - 1);
        }
        now = until;
    }
    let Some([mut from, until, tail]) = ran.get(last.1).copied() else { return [0; 3] };
    // Jobs with as long a tail that run before it without a gap decide as well.
    for piece in ran[..last.1].iter().rev() {
        if piece[1] != from || piece[2] < tail {
            break;
        }
        from = piece[0];
    }
    [from, until - from, tail]
}
