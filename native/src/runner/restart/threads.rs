//! Restarts of a run whose ranks are threads of one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{Generations, Kept, Restarting, choose, latest_checkpoint, next};
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
    let kept = Arc::new(Kept::new(workload));
    let restarting = Restarting { kept: Some(Arc::clone(&kept)), ..options.restarting.clone() };
    let original = RunOptions { restarting, ..options.clone() };
    let mut generations = Generations::new(observer);
    let mut now = original.clone();
    for generation in 1.. {
        let failure = match run(workload, &now, &mut generations) {
            Ok(report) => return Ok(generations.report(report, &kept)),
            Err(RunError::Failed(failure)) => failure,
            Err(error) => return Err(error),
        };
        if generation > options.restarting.most || !failure.cause.may_pass() || options.stop.is_raised() {
            return Err(RunError::Failed(failure));
        }
        let noticed = Instant::now().checked_sub(failure.ended_after).unwrap_or_else(Instant::now);
        let faults = now.faults;
        now = after(&failure, &original, workload, &kept, (generation, noticed));
        // What has come does not come again.
        now.faults = faults;
        if let Some(came) = now.faults.iter().position(|(rank, faults)| *rank == failure.rank && faults.breaks()) {
            now.faults.remove(came);
        }
        if let Some(restart) = kept.history().last() {
            generations.tell(restart);
        }
    }
    unreachable!("generations have no last number")
}

/// The options of the generation after `failure`.
fn after(
    failure: &Failure,
    options: &RunOptions,
    workload: &Workload,
    kept: &Kept,
    (generation, noticed): (u32, Instant),
) -> RunOptions {
    let mut lost = failure.silent.clone();
    if failure.cause.loses_memory() {
        lost.push(failure.rank);
    }
    kept.begin_restart(generation, vec![failure.rank], noticed);
    let world = workload.world();
    let held: Vec<Vec<u32>> =
        (0..world).map(|rank| if lost.contains(&rank) { Vec::new() } else { kept.steps(rank) }).collect();
    let copies = |rank: usize| workload.position(rank).copies_group();
    let checkpoint = latest_checkpoint(options);
    let saved = checkpoint.as_ref().map(|checkpoint| checkpoint.manifest.step);
    let (source, step) = choose(&held, copies, saved, options.first_step());
    let mut states = BTreeMap::new();
    if source == super::Source::Memory {
        for rank in 0..world {
            let holder = std::iter::once(rank).chain(copies(rank)).find(|copy| held[*copy].contains(&step));
            states.extend(holder.and_then(|holder| kept.state(holder, step)).map(|state| (rank, state)));
        }
    }
    kept.note_source(source, step, 0);
    next(options, (source, step), checkpoint, states)
}
