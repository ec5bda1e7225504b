//! The schedule that a solution of the solver describes.

use std::collections::BTreeMap;

use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::{Problem, Schedule};
use pumpkin_core::results::ProblemSolution;

use super::Model;
use super::jobs::Jobs;
use super::order::known_order;
use super::times::heads;

/// Which microbatch the n-th F of each stage is of, by starts that keep [`post_first_starts`]. The first stage runs them by
/// their numbers, and others as they arrive, but where a start that has to be exact waits for one that overtakes.
pub(super) fn microbatches(problem: &Problem, jobs: &Jobs, start: impl Fn(usize) -> i32) -> Vec<Vec<usize>> {
    let heads = heads(problem);
    let mut all = vec![(0..jobs.microbatches).collect::<Vec<usize>>(); jobs.stages];
    let arrivals = |stage: usize, at: usize| {
        let job = jobs.at(0, stage, at)?;
        let from = jobs.at(0, stage.checked_sub(1)?, at)?;
        let hop = (problem.hop(jobs.jobs[from].rank, jobs.jobs[job].rank) / jobs.unit_ns) as i32;
        Some(start(from) + jobs.jobs[from].ticks + hop)
    };
    // For each stage the n-th F that the stage before ran that is the n-th here.
    let mut from: Vec<Vec<usize>> = all.clone();
    let mut exact = 1;
    for stage in heads.skip(1).rev() {
        let mut left: Vec<usize> = (0..jobs.microbatches).collect();
        let mut farthest = 1;
        for at in 0..jobs.microbatches {
            let Some(job) = jobs.at(0, stage, at) else { continue };
            let ended = at.checked_sub(1).and_then(|before| jobs.at(0, stage, before));
            let waits = ended.is_none_or(|ended| start(ended) + jobs.jobs[ended].ticks < start(job));
            let mut taken = 0;
            if at < exact && waits {
                let last = left.iter().filter_map(|from| arrivals(stage, *from)).filter(|at| *at <= start(job)).max();
                taken = left.iter().position(|from| arrivals(stage, *from) == last).unwrap_or(0);
                farthest = farthest.max(left[taken] + 1);
            }
            from[stage][at] = left.remove(taken);
        }
        exact = farthest;
    }
    for stage in 1..jobs.stages {
        all[stage] = from[stage].iter().map(|before| all[stage - 1][*before]).collect();
    }
    all
}

/// The order of each rank's ops that a solution tells: by start, and of those that start at the same time, as those do
/// that take none, by dependencies and by what the solver assumed.
pub(super) fn rows(problem: &Problem, model: &Model, solution: &impl ProblemSolution) -> Schedule {
    let Model { jobs, times, order, .. } = model;
    let start = |job: usize| solution.get_integer_value(times[job].start);
    let is_whole = |job: usize| times[job].whole.is_some_and(|whole| solution.get_literal_value(whole));
    let microbatches = microbatches(problem, jobs, start);
    // Backwards keep the order in which the last stage has forwards.
    let last = &microbatches[jobs.stages - 1];
    let mut place = vec![0; jobs.microbatches];
    last.iter().enumerate().for_each(|(at, microbatch)| place[*microbatch] = at);
    // What is chosen of the ops that could come next.
    type Choice = (bool, usize, usize, usize);
    let mut together: BTreeMap<i32, Vec<(usize, Op, Choice)>> = BTreeMap::new();
    for (index, job) in jobs.jobs.iter().enumerate() {
        let (stage, at) = (job.op.stage(), job.op.microbatch());
        let (op, ticks) = match job.op.kind() {
            OpKind::B if is_whole(index) => (Op::new(stage, OpKind::BW, last[at]), job.whole_ticks),
            OpKind::W if is_whole(index) => continue,
            OpKind::F => (Op::new(stage, OpKind::F, microbatches[stage][at]), job.cut_ticks),
            kind => (Op::new(stage, kind, last[at]), job.cut_ticks),
        };
        let (kind, along) = match op.kind() {
            OpKind::F => (0, stage),
            OpKind::B | OpKind::BW => (1, jobs.stages - stage),
            OpKind::W => (2, stage),
        };
        let choice = (ticks > 0, at.min(place[op.microbatch()]), kind, along);
        together.entry(start(index)).or_default().push((index, op, choice));
    }
    // Of two ops with the same start, whether the second waits for the first.
    let waits = |(a, first, (takes_time, ..)): (usize, Op, Choice), (b, second, (last, ..)): (usize, Op, Choice)| {
        let is_needed = first.microbatch() == second.microbatch()
            && match (first.kind(), second.kind()) {
                (OpKind::F, OpKind::F) => first.stage() < second.stage(),
                (OpKind::F, _) => true,
                (_, OpKind::F) | (OpKind::W, _) => false,
                (_, OpKind::W) => first.stage() >= second.stage(),
                _ => first.stage() > second.stage(),
            };
        let is_before = || {
            let literal =
                |a: usize, b: usize| order.known.get(&(a, b)).map(|known| solution.get_literal_value(*known));
            let known = literal(a, b).or_else(|| literal(b, a).map(|is_behind| !is_behind));
            known_order(jobs, problem, a, b).or(known) == Some(true)
        };
        is_needed
            || jobs.jobs[a].rank == jobs.jobs[b].rank && ((!takes_time && last) || takes_time == last && is_before())
    };
    let mut rows: Vec<Vec<Op>> = vec![Vec::new(); problem.ranks()];
    for mut left in together.into_values() {
        left.sort_by_key(|(.., choice)| *choice);
        while !left.is_empty() {
            let is_ready = |at: &usize| left.iter().all(|other| other.0 == left[*at].0 || !waits(*other, left[*at]));
            let (index, op, _) = left.remove((0..left.len()).find(is_ready).unwrap_or(0));
            rows[jobs.jobs[index].rank].push(op);
        }
    }
    Schedule::of(rows)
}
