//! What a run does at its start so that it goes on from what was before.

use pipeplan::bootstrap;
use pipeplan::runner::checkpoint::{Checkpoint, CheckpointError};
use pipeplan::runner::{RunOptions, Workload};
use pipeplan::transport::faulty::Faults;

use super::{Args, Backend};
use crate::cmd::failure::Failure;
use crate::cmd::{processes, restart};

/// The checkpoint to resume from: the one asked for; or, where a launcher starts the run again, the latest one that it has
/// written.
pub fn resumed(args: &Args) -> Result<Option<Checkpoint>, Failure> {
    let asked = args.resume.as_deref().map(Checkpoint::open).transpose().map_err(Failure::input)?;
    let again = bootstrap::restarts(|name| std::env::var(name).ok()).map_err(Failure::input)?;
    let by_launcher = !processes::is_ours() && processes::is_launched()?;
    let with_fewer = processes::is_ours() && restart::fewer().is_some_and(|times| times > 0);
    let goes_on = with_fewer || by_launcher && (again > 0 || args.restart.is_some());
    let Some(folder) = args.checkpoint_dir.as_deref().filter(|_| goes_on) else { return Ok(asked) };
    match Checkpoint::open(folder) {
        Ok(written) => {
            let step = |checkpoint: &Checkpoint| checkpoint.manifest.step;
            Ok(Some(written)
                .filter(|written| asked.as_ref().is_none_or(|asked| step(asked) < step(written)))
                .or(asked))
        }
        // None is written yet, or the folder is not there.
        Err(CheckpointError::None { .. } | CheckpointError::File { .. }) => Ok(asked),
        Err(error) => Err(Failure::input(error)),
    }
}

/// Refuses `--restart` where nothing could be gone on from.
pub fn expect_restartable(args: &Args, workload: &Workload, options: &RunOptions) -> Result<(), Failure> {
    if args.restart.is_none() {
        return Ok(());
    }
    if args.backend == Backend::Modelled {
        return Err(Failure::input(
            "--restart applies to training, but the modelled backend only waits for planned times",
        )
        .with_help("Leave it out, or train with --backend cpu or cuda."));
    }
    let by_launcher = !processes::is_ours() && processes::is_launched()?;
    if options.nccl && !by_launcher {
        return Err(Failure::input("--restart does not restart ranks that this command starts for --transport nccl")
            .with_help(
                "Start them with a launcher that restarts: torchrun --max-restarts N --no-python … pipeplan run …",
            ));
    }
    workload.check_restarts(options, !by_launcher).map_err(Failure::input)
}

/// The faults to inject: a rank that was started again has had the first ones.
pub fn faults(args: &Args) -> Vec<(usize, Faults)> {
    let rank = processes::place().ok().flatten().map(|place| place.rank);
    let mut had = if processes::is_ours() { restart::life() } else { 0 };
    let is_left = |(faulty, faults): &&(usize, Faults)| {
        let is_had = Some(*faulty) == rank && had > 0 && faults.breaks();
        had -= usize::from(is_had);
        !is_had
    };
    args.fault.iter().filter(is_left).copied().collect()
}
