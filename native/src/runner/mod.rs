//! Executes a plan: one thread or process per rank, each with its op list.
//!
//! - In: a [`Workload`] (a plan as ranks execute it) and [`RunOptions`].
//! - Out: losses, weights, checkpoints, a trace and a [`RunReport`], or a [`Failure`].
//! - Knows: backends and transports. No scheduler: the order is that of the program, and nothing changes it at run time.
//!
//! The loop of a rank (`rank_loop`) has three kinds of step: an op goes to the [backend](crate::backend), a group of
//! transfers to the [transport](crate::transport), the optimizer step to the backend. All ranks start a training step
//! together, so that the times of one step share one start.
//!
//! # What a run promises
//! - The same workload, options and machine give the same losses and weights, bit for bit. If every weight accumulates
//!   gradients in the order of microbatches, all partitions and schedules give the same bits too.
//! - A rank that fails ends the run: at most [`RunOptions::grace`] after the failure, or after the patience of the transport
//!   if a rank hangs without failing. The [`Failure`] says where every rank was.
//! - A [`RecordingSwitch`] that is asked begins or ends recording with the next step, on every rank the same step.
//! - A raised [`StopFlag`] ends the run after the current step, on every rank the same step.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub mod checkpoint;
mod clock;
mod collective_log;
pub mod data;
pub mod evaluate;
pub mod gradients;
pub mod interval;
pub mod metrics;
pub mod optimizer;
mod overhead;
pub(crate) mod peer_groups;
mod processes;
pub mod progress;
pub mod published_workloads;
pub mod random;
mod rank_executor;
mod recording;
mod report;
pub mod restart;
pub mod shard;
pub(crate) mod status;
mod stop;
mod threads;
mod workload;

pub use overhead::Overhead;
pub use processes::{hand_on, refuse, run_part, run_process};
pub use recording::{Recorded, RecordingSwitch, most_recorded};
pub use report::{Cause, Ending, Failure, LastCheckpoint, RankMemory, RunError, RunReport, StepReport};
pub use restart::{Restart, Restarting, Source, run_elastic, run_restarting};
pub use status::{RankReport, State};
pub use stop::StopFlag;
pub use threads::run;
pub(crate) use workload::available_bytes;
pub use workload::{Computation, ModelStages, Refusal, Staged, Workload};

use crate::backend::rotary::LayerScaling;
use crate::transport::faulty::Faults;
use crate::transport::threads::ThreadOptions;
use pipeplan_core::trace::{StepTrace, Trace};

use checkpoint::{Checkpoint, CheckpointError, Pretrained, Saving};
use data::Sources;
use optimizer::AdamW;

/// In which type a run computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// `f32`.
    #[default]
    Single,
    /// `f64`.
    Double,
}

/// The device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Device {
    /// The CPU, one core a rank.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by its number: one for all ranks of this process.
    Cuda(usize),
    /// The GPU's kernels compiled for the CPU: slow, to check them.
    Emulated,
}

/// What a person chooses for a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Training steps, at least 1, including those before the checkpoint.
    pub steps: u32,
    /// Seed of the weights and of the order of the data.
    pub seed: u64,
    /// The optimizer's settings.
    pub optimizer: AdamW,
    /// The global norm to which gradients are clipped.
    pub clip_norm: Option<f64>,
    /// The device.
    pub device: Device,
    /// The text to train on, where there is no other data.
    pub text: Vec<u8>,
    /// The data to train and to evaluate on, instead of a text.
    pub data: Option<Arc<Sources>>,
    /// Evaluate after every so many steps; 0: never.
    pub evaluate_every: u32,
    /// Most batches, each as large as that of a step, of one evaluation.
    pub evaluate_steps: u32,
    /// Whether the norm of gradients is worked out for reports, where it is not clipped.
    pub measure_norm: bool,
    /// How many checkpoints stay in the folder; 0: all.
    pub keep: u32,
    /// Where checkpoints are written; none are written by default.
    pub saving: Option<Saving>,
    /// The checkpoint from which the run resumes: steps count from there, up to [`RunOptions::steps`].
    pub resume: Option<Checkpoint>,
    /// The weights that a run starts from which resumes from no checkpoint; default: weights that follow from the seed.
    pub weights: Option<Pretrained>,
    /// How rotary positions are scaled, where neither a checkpoint nor given weights say it: of a run that has been
    /// restarted.
    pub rotary: LayerScaling,
    /// How threads exchange tensors.
    pub transport: ThreadOptions,
    /// Tensors of GPUs go over NCCL, if ranks are processes.
    pub nccl: bool,
    /// Each rank of this process has its own part of the GPU's multiprocessors.
    pub split_gpu: bool,
    /// Jobs of a GPU that repeat are launched as CUDA graphs.
    pub cuda_graphs: bool,
    /// Grace period: how long other ranks have to end after one failed.
    pub grace: Duration,
    /// Number of steps in the trace, counted from the last, where [`RunOptions::trace_window`] names none.
    pub traced_steps: u32,
    /// The steps in the trace.
    pub trace_window: Option<Range<u32>>,
    /// Begins and ends recording while the run runs: then the trace has the steps that were asked for.
    pub recording: RecordingSwitch,
    /// Whether the report holds the final weights.
    pub keep_weights: bool,
    /// Raised to end the run early.
    pub stop: StopFlag,
    /// Raised to end the run where its next checkpoint is due, or after the current step where none is on the way.
    pub pausing: StopFlag,
    /// Injected faults by rank, for tests. Of several of one rank, each comes after a restart for the one before.
    pub faults: Vec<(usize, Faults)>,
    /// How the run goes on after a failure.
    pub restarting: Restarting,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            steps: 20,
            seed: 0,
            optimizer: AdamW::default(),
            clip_norm: None,
            device: Device::Cpu,
            text: Vec::new(),
            data: None,
            evaluate_every: 0,
            evaluate_steps: 10,
            measure_norm: false,
            keep: 0,
            saving: None,
            resume: None,
            weights: None,
            rotary: LayerScaling::default(),
            transport: ThreadOptions::default(),
            nccl: false,
            split_gpu: false,
            cuda_graphs: true,
            grace: Duration::from_secs(10),
            traced_steps: 20,
            trace_window: None,
            recording: RecordingSwitch::default(),
            keep_weights: false,
            stop: StopFlag::default(),
            pausing: StopFlag::default(),
            faults: Vec::new(),
            restarting: Restarting::default(),
        }
    }
}

impl RunOptions {
    /// How rotary positions are scaled: as the checkpoint or the weights say that the run starts from. A run whose
    /// words on it are not known is refused before.
    pub fn rope_scaling(&self) -> LayerScaling {
        let said = match (&self.resume, &self.weights) {
            (Some(checkpoint), _) => checkpoint::rope_scaling(&checkpoint.manifest.model),
            (None, Some(weights)) => weights.rope_scaling(),
            (None, None) => return self.rotary,
        };
        said.unwrap_or_default()
    }

    /// Locks the folder of checkpoints for this run, if it writes any.
    ///
    /// # Errors
    /// As [`checkpoint::hold`].
    fn hold_folder(&self) -> Result<Option<checkpoint::Held>, CheckpointError> {
        self.saving.as_ref().map(|saving| checkpoint::hold(saving, self.first_step())).transpose()
    }

    /// Checks the files of the checkpoint to resume from: rank `part` checks one in `parts` of them.
    ///
    /// # Errors
    /// As [`Checkpoint::check_files`].
    fn check_resumed(&self, part: usize, parts: usize) -> Result<(), CheckpointError> {
        self.resume.as_ref().map_or(Ok(()), |checkpoint| checkpoint.check_files(true, part, parts))
    }

    /// What breaks on `rank`: the first of several.
    fn fault_of(&self, rank: usize) -> Option<Faults> {
        self.faults.iter().find(|(faulty, faults)| *faulty == rank && faults.breaks()).map(|(_, faults)| *faults)
    }

    /// By how many thousandths `rank` computes slower than it could.
    fn slower_permille(&self, rank: usize) -> u32 {
        let own = self.faults.iter().filter(|(faulty, _)| *faulty == rank);
        own.map(|(_, faults)| faults.slower_permille).max().unwrap_or(0)
    }

    /// Every how many steps a checkpoint is written; 0: only at the end.
    fn saves_every(&self) -> u32 {
        self.saving.as_ref().map_or(0, |saving| saving.every)
    }

    /// The first training step of this run, counted from 0.
    pub fn first_step(&self) -> u32 {
        let begun = self.restarting.begun.as_ref().map(|begun| begun.step);
        begun.unwrap_or_else(|| self.resume.as_ref().map_or(0, |checkpoint| checkpoint.manifest.step))
    }
}

/// Observes a run, on the thread that called [`run`].
pub trait Observer {
    /// All ranks ended a step.
    fn step_ended(&mut self, step: &StepReport);

    /// What ranks did in the step that has ended. Where hosts do not share a clock, or ranks share processors,
    /// `began_ns` is none: the time from one rank to another then says nothing of their link. `clocks` are the hosts
    /// whose clocks rows have.
    fn measured(&mut self, _step: &StepTrace, _clocks: &[usize]) {}

    /// Recording has ended because somebody asked for it: the trace so far.
    fn recorded(&mut self, _trace: &Trace) {}

    /// A rank has failed, and the run goes on. Where ranks are processes, only those that go on with it hear this.
    fn restarted(&mut self, _restart: &Restart) {}
}

/// Ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn step_ended(&mut self, _: &StepReport) {}
}
