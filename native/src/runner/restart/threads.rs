//! Restarts of a run whose ranks are threads of one process.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{Generations, Kept, Restarting, choose, latest_checkpoint, next};
use crate::runner::gradients::Position;
use crate::runner::report::{Failure, RunError, RunReport};
use crate::runner::{Observer, RunOptions, Workload, run};

/// Trains `workload` as [`run`] does. Where a rank fails by what may pass, such as its death, the run goes on, up to
/// [`Restarting::most`] times: new threads take the states that the old ones have left in memory. What a rank held that
/// died is gone with it.
///
/// # Errors
/// As [`run`]; and [`crate::runner::Refusal::NoStateToRestart`].
pub fn run_restarting(
    workload: &Workload,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<RunReport, RunError> {
    if options.restarting.most == 0 {
        return run(workload, options, observer);
    }
    workload.check_restarts(options, true)?;
    run_elastic(workload, options, observer, &mut |_| None)
}

/// The same. After a failure that no restart is left for, the run goes on with what `fewer` makes of the workload, which is to
/// be the same training on fewer data-parallel replicas; it ends where that is nothing.
///
/// # Errors
/// As [`run`].
pub fn run_elastic(
    workload: &Workload,
    options: &RunOptions,
    observer: &mut dyn Observer,
    fewer: &mut dyn FnMut(&Workload) -> Option<Workload>,
) -> Result<RunReport, RunError> {
    let mut workload = Cow::Borrowed(workload);
    let kept = Arc::new(Kept::new(&workload));
    let restarting = Restarting { kept: Some(Arc::clone(&kept)), ..options.restarting.clone() };
    let original = RunOptions { restarting, ..options.clone() };
    let mut generations = Generations::new(observer);
    let mut now = original.clone();
    for generation in 1.. {
        let failure = match run(&workload, &now, &mut generations) {
            Ok(report) => return Ok(generations.report(report, &kept)),
            Err(RunError::Failed(failure)) => failure,
            Err(error) => return Err(error),
        };
        if !failure.cause.may_pass() || options.stop.is_raised() {
            return Err(RunError::Failed(failure));
        }
        let smaller = if generation > options.restarting.most { fewer(&workload) } else { None };
        if generation > options.restarting.most && smaller.is_none() {
            return Err(RunError::Failed(failure));
        }
        let noticed = Instant::now().checked_sub(failure.ended_after).unwrap_or_else(Instant::now);
        let faults = now.faults;
        now = after(&failure, &original, (&workload, smaller.as_ref()), &kept, (generation, noticed));
        // What has come does not come again.
        now.faults = faults;
        if let Some(came) = now.faults.iter().position(|(rank, faults)| *rank == failure.rank && faults.breaks()) {
            now.faults.remove(came);
        }
        if let Some(smaller) = smaller {
            now.faults.retain(|(rank, _)| *rank < smaller.world());
            workload = Cow::Owned(smaller);
        }
        if let Some(restart) = kept.history().last() {
            generations.tell(restart);
        }
    }
    unreachable!("generations have no last number")
}

/// The options of the generation after `failure` of a run of `workload`, which goes on as it or as a smaller one.
fn after(
    failure: &Failure,
    options: &RunOptions,
    (workload, smaller): (&Workload, Option<&Workload>),
    kept: &Kept,
    (generation, noticed): (u32, Instant),
) -> RunOptions {
    let mut lost = failure.silent.clone();
    if failure.cause.loses_memory() {
        lost.push(failure.rank);
    }
    kept.begin_restart(generation, vec![failure.rank], noticed);
    let world = workload.world();
    // Where weights lie elsewhere, no rank has the state of another one.
    let moves = smaller.is_some_and(|smaller| smaller.places() != workload.places());
    let is_gone = |rank: usize| moves || lost.contains(&rank);
    let held: Vec<Vec<u32>> =
        (0..world).map(|rank| if is_gone(rank) { Vec::new() } else { kept.steps(rank) }).collect();
    let copies = |rank: usize| workload.position(rank).copies_group();
    let checkpoint = latest_checkpoint(options);
    let saved = checkpoint.as_ref().map(|checkpoint| checkpoint.manifest.step);
    let (source, step) = choose(&held, copies, saved, options.first_step());
    let mut states = BTreeMap::new();
    if source == super::Source::Memory {
        let next = smaller.unwrap_or(workload);
        for rank in 0..next.world() {
            // The rank at the same place of the first replica, where they are other ranks now.
            let was = if smaller.is_some() { in_first(workload, next, rank) } else { rank };
            let holder = std::iter::once(was).chain(copies(was)).find(|copy| held[*copy].contains(&step));
            states.extend(holder.and_then(|holder| kept.state(holder, step)).map(|state| (rank, state)));
        }
    }
    kept.note_source(source, step, 0);
    if let Some(smaller) = smaller {
        kept.rehouse(smaller, &states);
    }
    next(options, (source, step), checkpoint, states)
}

/// The rank of `workload` that stands in its first replica where `rank` stands in one of `next`.
fn in_first(workload: &Workload, next: &Workload, rank: usize) -> usize {
    let at = next.position(rank);
    Position { rank: at.rank, part: at.part, member: at.member, replica: 0, ..workload.position(0) }.world_rank()
}
