//! What a run says at its end: the figures, or what went wrong and where every rank was.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::trace::Trace;
use pipeplan_core::trace::clocks::Aligned;

use super::checkpoint::CheckpointError;
use super::overhead::Overhead;
use super::restart::Restart;
use super::status::RankReport;
use super::workload::Refusal;
use crate::backend::BackendError;
use crate::transport::collectives::CollectiveError;
use crate::transport::{Buffer, TransportError};

/// One training step that all ranks have ended.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Its number, from 0.
    pub step: u32,
    /// The steps asked for.
    pub steps: u32,
    /// The mean loss over its tokens; none where nothing real is trained.
    pub loss: Option<f64>,
    /// The tokens trained on.
    pub tokens: u64,
    /// From its common start to the end of the last rank.
    pub duration_ns: Nanos,
    /// Idle share of the ranks' time between the first op and the last, by the problem's objective.
    pub bubble_ratio: f64,
    /// The mean loss over what is evaluated on, where an evaluation came after it.
    pub validation_loss: Option<f64>,
    /// The norm of all gradients before they were clipped, where it is worked out.
    pub gradient_norm: Option<f64>,
    /// The step size; none where nothing real is trained.
    pub learning_rate: Option<f64>,
    /// The most bytes that a rank has held so far.
    pub peak_bytes: Bytes,
}

impl StepReport {
    /// Tokens a second.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 * 1e9 / self.duration_ns.max(1) as f64
    }
}

/// Bytes of one rank, at most at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankMemory {
    /// All that the rank counted.
    pub high_water_bytes: Bytes,
    /// Weights, their gradients and the optimizer states: held throughout.
    pub persistent_bytes: Bytes,
    /// Tensors of microbatches.
    pub activation_bytes: Bytes,
    /// Tensors on their way between ranks or stages.
    pub transfer_bytes: Bytes,
    /// Tensors of microbatches in host memory, which are not among what the rank counted.
    pub host_bytes: Bytes,
    /// What the plan predicts for the high-water mark.
    pub predicted_bytes: Bytes,
    /// What the device's own allocator has held at most; 0 if there is none.
    pub device_bytes: Bytes,
}

/// A run that ended as it should.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// All steps.
    pub steps: Vec<StepReport>,
    /// From the start of the first step to the end of the last.
    pub duration_ns: Nanos,
    /// From the first op to the last, in the middle one of all steps but the first.
    pub makespan_ns: Nanos,
    /// The same by the plan's times, as transfers are placed and carried; 0 where there are none.
    pub predicted_makespan_ns: Nanos,
    /// From the first op to the end of the last rank's optimizer, in the middle one of all steps but the first.
    pub step_ns: Nanos,
    /// The same by the plan's times.
    pub predicted_step_ns: Nanos,
    /// How many times the planned time ops took, where they only waited; all other figures but `duration_ns`
    /// and `overhead` are divided by it.
    pub slowdown: u64,
    /// How late ops started, in all steps but the first, which fills caches; none where there was no op.
    pub overhead: Option<Overhead>,
    /// Idle share over all steps but the first, which fills caches.
    pub bubble_ratio: f64,
    /// The same by the plan's times, as transfers are placed and carried; none where there are none, or ranks share
    /// processors.
    pub predicted_bubble_ratio: Option<f64>,
    /// Number of processors that the ranks share, if there are fewer than ranks; the prediction is then for this number.
    pub processors: Option<usize>,
    /// By rank of a pipeline: those of replica 0, then those of replica 1 and so on; where ranks hold parts of the same
    /// sequences, those with the first part of a replica come before those with the next, and where they share matrices,
    /// those of the first member of each before those of the next.
    pub memory: Vec<RankMemory>,
    /// Data-parallel replicas.
    pub replicas: usize,
    /// Ranks that share each matrix.
    pub members: usize,
    /// Context-parallel ranks.
    pub parts: usize,
    /// The last steps' spans.
    pub trace: Trace,
    /// How far the clocks of hosts were apart in the trace, before they were put right.
    pub clocks: Aligned,
    /// The final weights by name, where they were asked for.
    pub weights: BTreeMap<String, Buffer>,
    /// The last complete checkpoint of this run, from which another run can resume.
    pub checkpoint: Option<PathBuf>,
    /// Ranks whose injected fault was not reached, with the exchanges that they made.
    pub missed_faults: BTreeMap<usize, u64>,
    /// Whether a raised flag ended the run before its last step.
    pub stopped: bool,
    /// Whether that was [`RunOptions::pausing`](super::RunOptions::pausing): the run may go on from its checkpoint.
    pub paused: bool,
    /// How long training stood still for each checkpoint that was begun while the run went on, by rank 0.
    pub checkpoint_pauses: Vec<Duration>,
    /// The restarts after failures.
    pub restarts: Vec<Restart>,
}

impl RunReport {
    /// The losses of all steps that have one.
    pub fn losses(&self) -> Vec<f64> {
        self.steps.iter().filter_map(|step| step.loss).collect()
    }

    /// Tokens a second, over the whole run.
    pub fn tokens_per_s(&self) -> f64 {
        let tokens: u64 = self.steps.iter().map(|step| step.tokens).sum();
        tokens as f64 * 1e9 / self.duration_ns.max(1) as f64
    }

    /// The exit status: 0, or 130 if the run was stopped early.
    pub fn exit_status(&self) -> u8 {
        if self.stopped { 130 } else { 0 }
    }
}

/// How a run ended without an error, for one of its processes.
#[derive(Clone, Debug)]
pub enum Ending {
    /// Rank 0 has the report.
    First(Box<RunReport>),
    /// Any other rank.
    Other {
        /// This rank.
        rank: usize,
        /// Whether the run was stopped before its last step.
        stopped: bool,
        /// As [`RunReport::paused`].
        paused: bool,
    },
}

/// Why a run ended with an error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// It was refused before its start.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A rank failed.
    #[error(transparent)]
    Failed(Box<Failure>),
    /// This process ended with the run, and another process has the report.
    #[error("rank {rank} ended with the run; rank {reporter} gives the reason")]
    Elsewhere {
        /// This rank.
        rank: usize,
        /// The rank that has the report.
        reporter: usize,
    },
}

impl RunError {
    /// The exit status for this error: 2 where the input was refused, 1 where a rank failed or nothing can be written.
    pub fn exit_status(&self) -> u8 {
        match self {
            RunError::Refused(refusal) => refusal.exit_status(),
            RunError::Failed(_) | RunError::Elsewhere { .. } => 1,
        }
    }
}

/// What failed on a rank.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Cause {
    /// An op.
    #[error(transparent)]
    Backend(BackendError),
    /// A transfer.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A collective.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The rank is another process, and sent this before it ended.
    #[error("{message}")]
    Told {
        /// What it said.
        message: String,
    },
    /// The report of another process on its step is malformed.
    #[error("rank {rank} reported its step in {found} numbers; expected are {expected}")]
    WrongRecord {
        /// Who told.
        rank: usize,
        /// How many numbers came.
        found: usize,
        /// How many should have come, in words.
        expected: String,
    },
    /// Writing or reading a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The thread died.
    #[error("its thread died: {message}")]
    Died {
        /// What it said.
        message: String,
    },
}

impl From<BackendError> for Cause {
    fn from(error: BackendError) -> Cause {
        match error {
            BackendError::Collective(error) => Cause::Collective(error),
            BackendError::Transport(error) => Cause::Transport(error),
            other => Cause::Backend(other),
        }
    }
}

impl Cause {
    /// Whether the same run from an earlier state may do better: after the death of a rank, but not after a loss that is no
    /// number.
    pub fn may_pass(&self) -> bool {
        match self {
            Cause::Backend(error) => matches!(
                error,
                BackendError::Device { .. } | BackendError::WrongSize { .. } | BackendError::Missing { .. }
            ),
            Cause::Checkpoint(_) => false,
            _ => true,
        }
    }

    /// Whether what the rank held is gone.
    pub(super) fn loses_memory(&self) -> bool {
        match self {
            Cause::Died { .. } | Cause::Backend(BackendError::Device { .. }) => true,
            cause => {
                matches!(cause.transport(), Some(TransportError::Device { .. } | TransportError::Library { .. }))
            }
        }
    }

    /// The error of the transport, if the transport failed.
    pub fn transport(&self) -> Option<&TransportError> {
        match self {
            Cause::Transport(error) => Some(error),
            Cause::Collective(error) => error.transport(),
            _ => None,
        }
    }
}

/// The failure of a rank, and the state of every rank at that moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The rank that failed first.
    pub rank: usize,
    /// Why.
    pub cause: Cause,
    /// Every rank, just before the others got the abort.
    pub ranks: Vec<RankReport>,
    /// Ranks that had not ended after the grace period. Their threads end with the process.
    pub silent: Vec<usize>,
    /// The last complete checkpoint, if the run writes any or resumed from one.
    pub checkpoint: LastCheckpoint,
    /// Time from the failure to the end of the last rank, or to the end of the grace period.
    pub ended_after: Duration,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} failed: {}", self.rank, self.cause)?;
        for rank in &self.ranks {
            write!(f, "\n  {rank}")?;
        }
        for rank in &self.silent {
            write!(f, "\n  rank {rank} did not answer within {:.1} s", self.ended_after.as_secs_f64())?;
        }
        match &self.checkpoint {
            LastCheckpoint::NotAsked => Ok(()),
            LastCheckpoint::NoneYet => f.write_str("\n  no checkpoint has been written"),
            LastCheckpoint::At(folder) => {
                let folder = folder.display();
                write!(f, "\n  the last good checkpoint is {folder}: resume with `--resume {folder}`")
            }
        }
    }
}

/// The checkpoint from which a run can resume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LastCheckpoint {
    /// Checkpoints were not asked for.
    #[default]
    NotAsked,
    /// None is written yet.
    NoneYet,
    /// The last complete one.
    At(PathBuf),
}

impl LastCheckpoint {
    /// Its folder.
    pub fn folder(&self) -> Option<PathBuf> {
        if let LastCheckpoint::At(folder) = self { Some(folder.clone()) } else { None }
    }
}

impl std::error::Error for Failure {}
