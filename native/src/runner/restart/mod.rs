//! Runs that go on after a rank has failed.
//!
//! - In: what the ranks that live hold in memory, and the checkpoints of the run.
//! - Out: a next generation of ranks, which starts from the latest state that all of them can reach.
//! - Knows: steps and copies of ranks. Nothing of how ranks are started.
//!
//! A rank keeps a copy of its weights and optimizer states from the start of each step, where another rank holds the
//! same ([`Workload::has_replicas`]). Between two steps all ranks vote, so no two ranks are further apart than one
//! step, and a rank whose step was broken goes back to its copy. A rank that is gone gets the copy of a rank that
//! holds the same. Where there is none, all ranks go back to the latest whole checkpoint, or to the start of the run.
//!
//! Data and learning rate follow from the number of the step, so a run that goes on has the bits of an unbroken one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pipeplan_core::trace::{StepTrace, Trace};

use super::checkpoint::Checkpoint;
use super::gradients::{Places, Position, copy_of, lend};
use super::report::{Cause, RunReport, StepReport};
use super::workload::{Refusal, Workload};
use super::{Observer, RunOptions};
use crate::backend::{Backend, BackendError, Part, Values};
use crate::transport::Buffer;

pub mod processes;
mod threads;

pub use threads::{run_elastic, run_restarting};

/// How a run goes on after a failure.
#[derive(Clone, Debug, Default)]
pub struct Restarting {
    /// The most restarts of the run; 0: a failure ends it.
    pub most: u32,
    /// What ranks of this process keep for a restart.
    pub kept: Option<Arc<Kept>>,
    /// What this generation starts from; nothing in the first one.
    pub begun: Option<Arc<Begun>>,
}

/// Where a generation got its state from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: another rank failed before there was a state.
    Overtaken,
    /// The memory of ranks; that of a lost rank came from one that holds the same.
    Memory,
    /// The latest whole checkpoint.
    Checkpoint,
    /// The start of the run: nothing was saved yet.
    Start,
}

impl Source {
    const ALL: [Source; 4] = [Source::Overtaken, Source::Memory, Source::Checkpoint, Source::Start];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Overtaken => "overtaken",
            Source::Memory => "memory",
            Source::Checkpoint => "checkpoint",
            Source::Start => "start",
        }
    }
}

/// One restart of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Its number, from 1.
    pub generation: u32,
    /// The ranks that had failed.
    pub ranks: Vec<usize>,
    /// The data-parallel replicas that it went on with, where they became fewer.
    pub replicas: Option<usize>,
    /// Where the state came from.
    pub source: Source,
    /// Training steps in that state.
    pub step: u32,
    /// Steps that some rank had made before and that were made again.
    pub redone: u32,
    /// From when the failure was noticed to the start of the first step that had not been made before, or to the next
    /// failure.
    pub lost: Duration,
}

/// What a generation starts from.
#[derive(Debug)]
pub struct Begun {
    /// Training steps in it.
    pub step: u32,
    /// The latest whole checkpoint of the run.
    pub checkpoint: Option<(u32, PathBuf)>,
    /// By rank, where the state comes from memory.
    states: Mutex<BTreeMap<usize, Arc<RankState>>>,
}

impl Begun {
    /// The state of `rank`, which it takes once.
    pub(super) fn take(&self, rank: usize) -> Option<Arc<RankState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank)
    }
}

/// Weights and optimizer states of one rank after a number of steps.
#[derive(Debug, PartialEq)]
pub struct RankState {
    step: u32,
    /// In the order of [`keys`].
    parts: Vec<Buffer>,
}

/// The parts of the state of the rank at `position`, in an order that all ranks with the same place in the pipeline
/// have.
fn keys(position: Position, places: &Places) -> impl Iterator<Item = (u16, &str, Part)> {
    places.iter().flat_map(move |(name, placed)| {
        let stages = placed.at.iter().filter(move |(rank, _)| *rank == position.rank);
        stages.flat_map(move |(_, stage)| {
            [Part::Weight, Part::Mean, Part::Square].map(|part| (*stage, name.as_str(), part))
        })
    })
}

impl RankState {
    /// What `backend` holds, the rank at `position`, after `step` steps.
    fn of(step: u32, position: Position, places: &Places, backend: &mut dyn Backend) -> Result<RankState, Cause> {
        let part = |(stage, name, part): (u16, &str, Part)| copy_of(backend, stage, name, part);
        Ok(RankState { step, parts: keys(position, places).map(part).collect::<Result<_, _>>()? })
    }

    /// Gives it to `backend`, the rank at `position`.
    ///
    /// # Errors
    /// Where it is the state of another rank.
    pub(super) fn fill(&self, position: Position, places: &Places, backend: &mut dyn Backend) -> Result<(), Cause> {
        let mut parts = self.parts.iter();
        for (stage, name, part) in keys(position, places) {
            let values = parts.next().unwrap_or(&Buffer::Nothing);
            let other = || BackendError::NoSuchWeight { stage: stage.into(), name: name.to_string() };
            lend(backend, stage, name, part, |held| match (held, values) {
                (Values::F32(held), Buffer::F32(values)) if held.len() == values.len() => {
                    held.copy_from_slice(values);
                    Ok(())
                }
                (Values::F64(held), Buffer::F64(values)) if held.len() == values.len() => {
                    held.copy_from_slice(values);
                    Ok(())
                }
                _ => Err(other().into()),
            })?;
        }
        Ok(())
    }
}

/// What ranks of one process keep for a restart, over all its generations.
#[derive(Debug, Default)]
pub struct Kept {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Whether states are kept: another rank holds the same.
    holds: bool,
    /// By rank: from the start of its last step, and after it where that was made whole.
    states: BTreeMap<usize, Vec<Arc<RankState>>>,
    /// Training steps that some rank has made.
    done: u32,
    history: BTreeMap<u32, Restart>,
    /// When the last failure was noticed, until the run is where it was.
    open: Option<Instant>,
    /// How a rank of this process failed by itself, and whether it would do so again.
    own: Option<(String, bool)>,
}

impl Kept {
    /// For the ranks of `workload`.
    pub fn new(workload: &Workload) -> Kept {
        Kept { inner: Mutex::new(Inner { holds: workload.has_replicas(), ..Inner::default() }) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every change is one assignment.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rank at `position` starts the step after `step` steps, which all ranks have made.
    pub(super) fn begin_step(
        &self,
        step: u32,
        position: Position,
        places: &Places,
        backend: &mut dyn Backend,
    ) -> Result<(), Cause> {
        // Another lock than that of the change: a copy takes its time.
        let holds = self.inner().holds;
        let state = if holds { Some(RankState::of(step, position, places, backend)?) } else { None };
        let mut inner = self.inner();
        inner.states.insert(position.world_rank(), state.into_iter().map(Arc::new).collect());
        inner.reach(step);
        Ok(())
    }

    /// The rank at `position` has made `step` steps, and leaves before the next one: another one has failed.
    pub(super) fn leave(&self, step: u32, position: Position, places: &Places, backend: &mut dyn Backend) {
        if !self.inner().holds {
            return;
        }
        // A device that has failed offers nothing.
        if let Ok(state) = RankState::of(step, position, places, backend) {
            let mut inner = self.inner();
            let held = inner.states.entry(position.world_rank()).or_default();
            if held.iter().all(|held| held.step != step) {
                held.push(Arc::new(state));
            }
        }
    }

    /// Some rank has made `step` steps.
    pub(super) fn note_done(&self, step: u32) {
        let mut inner = self.inner();
        inner.done = inner.done.max(step);
    }

    /// A rank of this process has failed by itself, not because of another; `lasts` where it would do so again.
    pub(super) fn note_own_failure(&self, what: String, lasts: bool) {
        self.inner().own = Some((what, lasts));
    }

    /// How a rank of this process has failed by itself, and whether it would do so again.
    pub fn own_failure(&self) -> Option<(String, bool)> {
        self.inner().own.clone()
    }

    /// There was a restart `generation` after the failure of `ranks`, before this process.
    pub fn note_earlier(&self, generation: u32, ranks: Vec<usize>) {
        self.inner().note(generation, ranks);
    }

    /// Restart `generation` begins: `ranks` have failed, which was noticed `noticed`.
    pub fn begin_restart(&self, generation: u32, ranks: Vec<usize>, noticed: Instant) {
        let mut inner = self.inner();
        if let Some(open) = inner.open.replace(noticed)
            && let Some(mut last) = inner.history.last_entry()
        {
            last.get_mut().lost = noticed.saturating_duration_since(open);
        }
        inner.note(generation, ranks);
    }

    /// The last restart goes on with the ranks of `workload`, which are others, and start from `states`.
    fn rehouse(&self, workload: &Workload, states: &BTreeMap<usize, Arc<RankState>>) {
        let mut inner = self.inner();
        inner.holds = workload.has_replicas();
        inner.states = states.iter().map(|(rank, state)| (*rank, vec![Arc::clone(state)])).collect();
        if let Some(mut last) = inner.history.last_entry() {
            last.get_mut().replicas = Some(workload.replicas());
        }
    }

    /// All restarts so far.
    pub fn history(&self) -> Vec<Restart> {
        self.inner().history.values().cloned().collect()
    }

    /// What `rank` holds after `step` steps.
    fn state(&self, rank: usize, step: u32) -> Option<Arc<RankState>> {
        self.inner().states.get(&rank)?.iter().find(|state| state.step == step).cloned()
    }

    /// The steps after which `rank` holds its state.
    fn steps(&self, rank: usize) -> Vec<u32> {
        self.inner().states.get(&rank).map_or_else(Vec::new, |held| held.iter().map(|state| state.step).collect())
    }

    /// The last restart gets its state from `source`, after `step` steps.
    fn note_source(&self, source: Source, step: u32, done: u32) {
        let mut inner = self.inner();
        inner.done = inner.done.max(done);
        let redone = inner.done.saturating_sub(step);
        if let Some(mut last) = inner.history.last_entry() {
            let last = last.get_mut();
            (last.source, last.step, last.redone) = (source, step, redone);
        }
    }
}

impl Inner {
    /// A restart of which no more is known yet.
    fn note(&mut self, generation: u32, ranks: Vec<usize>) {
        let (source, step, redone, lost) = (Source::Overtaken, 0, 0, Duration::ZERO);
        let replicas = None;
        self.history.insert(generation, Restart { generation, ranks, replicas, source, step, redone, lost });
    }

    /// A rank starts a step after `step` steps.
    fn reach(&mut self, step: u32) {
        let Some(open) = self.open.take_if(|_| step >= self.done) else { return };
        if let Some(mut last) = self.history.last_entry() {
            last.get_mut().lost = open.elapsed();
        }
    }
}

/// The latest state that all ranks can reach. `held` says by rank after which steps it holds its state, and `copies`
/// which ranks hold the same as a rank, itself among them; `checkpoint` is the step of the latest whole checkpoint,
/// and `first` the one that the run started from.
fn choose(
    held: &[Vec<u32>],
    copies: impl Fn(usize) -> Vec<usize>,
    checkpoint: Option<u32>,
    first: u32,
) -> (Source, u32) {
    let reached =
        |step: &u32| (0..held.len()).all(|rank| copies(rank).into_iter().any(|copy| held[copy].contains(step)));
    let in_memory = held.iter().flatten().copied().filter(reached).max();
    match (in_memory, checkpoint) {
        (Some(step), saved) if saved.is_none_or(|saved| saved <= step) => (Source::Memory, step),
        (_, Some(step)) => (Source::Checkpoint, step),
        _ => (Source::Start, first),
    }
}

/// The latest whole checkpoint of the run of `options`, or the one that it started from.
fn latest_checkpoint(options: &RunOptions) -> Option<Checkpoint> {
    let saved = options.saving.as_ref().and_then(|saving| Checkpoint::open(&saving.folder).ok());
    let first = options.first_step();
    // A folder with an earlier one belongs to a run before.
    saved.filter(|saved| saved.manifest.step >= first).or_else(|| options.resume.clone())
}

/// The options of the next generation of the run of `options`.
fn next(
    options: &RunOptions,
    (source, step): (Source, u32),
    checkpoint: Option<Checkpoint>,
    states: BTreeMap<usize, Arc<RankState>>,
) -> RunOptions {
    let whole = checkpoint.as_ref().map(|checkpoint| (checkpoint.manifest.step, checkpoint.folder.clone()));
    let begun = Begun { step, checkpoint: whole, states: Mutex::new(states) };
    let resume = match source {
        Source::Checkpoint => checkpoint,
        Source::Memory => None,
        Source::Start | Source::Overtaken => options.resume.clone(),
    };
    let restarting = Restarting { begun: Some(Arc::new(begun)), ..options.restarting.clone() };
    RunOptions { resume, restarting, rotary: options.rope_scaling(), ..options.clone() }
}

impl Workload {
    /// Whether each rank's weights and optimizer states are also those of another rank.
    pub fn has_replicas(&self) -> bool {
        let position = self.position(0);
        position.copies() > 1 && !position.sharding.optimizer && !position.is_expert_parallel()
    }

    /// Refuses restarts of a run that could only start again from nothing. `keeps_memory` where ranks that live go on.
    ///
    /// # Errors
    /// [`Refusal::NoStateToRestart`].
    pub fn check_restarts(&self, options: &RunOptions, keeps_memory: bool) -> Result<(), Refusal> {
        let saves = options.saving.as_ref().is_some_and(|saving| saving.every > 0);
        if options.restarting.most == 0 || saves || keeps_memory && self.has_replicas() {
            return Ok(());
        }
        let position = self.position(0);
        let why = if !keeps_memory {
            "all processes start anew, so that nothing is left in memory"
        } else if position.copies() == 1 {
            "no two ranks hold the same weights (parallel.data = 1)"
        } else if position.sharding.optimizer {
            "replicas share out the optimizer states (parallel.zero), so that no two ranks hold the same"
        } else {
            "experts are split over replicas, so that no two ranks hold the same"
        };
        Err(Refusal::NoStateToRestart { why })
    }
}

/// Watches a run over its generations.
pub struct Generations<'a> {
    observer: &'a mut dyn Observer,
    /// The steps that count: a step that is made again replaces what came of it before.
    steps: Vec<StepReport>,
    /// When the first one started.
    started: Option<Instant>,
}

impl<'a> Generations<'a> {
    /// For one who observes the run.
    pub fn new(observer: &'a mut dyn Observer) -> Generations<'a> {
        Generations { observer, steps: Vec::new(), started: None }
    }

    /// Says that the run is restarted.
    pub fn tell(&mut self, restart: &Restart) {
        self.observer.restarted(restart);
    }

    /// The report of the whole run, of which the last generation had `report`.
    pub fn report(self, mut report: RunReport, kept: &Kept) -> RunReport {
        report.restarts = kept.history();
        if !report.restarts.is_empty() {
            report.duration_ns = self.started.map_or(0, |started| started.elapsed().as_nanos() as u64);
            report.steps = self.steps;
        }
        report
    }
}

impl Observer for Generations<'_> {
    fn step_ended(&mut self, step: &StepReport) {
        let took = Duration::from_nanos(step.duration_ns);
        self.started.get_or_insert_with(|| Instant::now().checked_sub(took).unwrap_or_else(Instant::now));
        let made = self.steps.partition_point(|made| made.step < step.step);
        self.steps.truncate(made);
        self.steps.push(step.clone());
        self.observer.step_ended(step);
    }

    fn measured(&mut self, step: &StepTrace, clocks: &[usize]) {
        self.observer.measured(step, clocks);
    }

    fn recorded(&mut self, trace: &Trace) {
        self.observer.recorded(trace);
    }
}

#[cfg(test)]
mod tests;
