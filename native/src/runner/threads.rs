//! A run with one thread per rank: starts the threads, collects their steps, and ends all if one fails.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::graph::Graph;
use pipeplan_core::trace::clocks::{Aligned, align};
use pipeplan_core::trace::{StepTrace, Trace, TraceSpan};

use super::checkpoint::{Reader, Saves};
use super::clock::Clock;
use super::collective_log::CollectiveNames;
use super::data::Batches;
use super::gradients::{Gradients, Places, stages_held};
use super::overhead::{Overhead, lateness};
use super::peer_groups::PeerGroups;
use super::rank_executor::{Keeper, RankExecutor, StepRecord};
use super::recording::{Recorded, Recording};
use super::report::{Cause, Failure, LastCheckpoint, RankMemory, RunError, RunReport, StepReport};
use super::status::{RankReport, State, StatusBoard};
use super::stop::Verdict;
use super::workload::{Computation, MessageCarrier, Workload};
use super::{Device, Observer, Precision, RunOptions};
use crate::backend::cpu::Cpu;
use crate::backend::modelled::{Modelled, Pace};
use crate::backend::staged::{StagedBackend, StagedTraining};
use crate::backend::stages::Training;
use crate::backend::{Backend, Kind, Meter, Store};
#[cfg(feature = "cuda")]
use crate::backend::{BackendError, cuda};
use crate::transport::faulty::{Faults, Faulty, Missed};
use crate::transport::threads::{Threads, world};
use crate::transport::{Buffer, Transport, TransportError};

/// What ranks report.
enum Event {
    /// A rank has ended a training step.
    Step(StepRecord),
    /// A rank failed, with the state of every rank.
    Failed(usize, Cause, Vec<RankReport>),
    /// A rank has ended, well or not.
    Ended(usize, Option<(RankMemory, BTreeMap<String, Buffer>)>),
}

/// What all ranks share.
pub(super) struct Shared {
    pub(super) workload: Workload,
    pub(super) options: RunOptions,
    /// What a model trains on; nothing where none is trained.
    pub(super) batches: Option<Arc<Batches>>,
    pub(super) verdict: Verdict,
    pub(super) board: StatusBoard,
    pub(super) last_checkpoint: Mutex<LastCheckpoint>,
    /// The checkpoints that ranks of this process are writing.
    pub(super) saves: Arc<Saves>,
    /// By rank whose fault has not come: the exchanges that it has made.
    pub(super) missed_faults: Mutex<BTreeMap<usize, u64>>,
    pub(super) start: Instant,
    /// The same on the clock of the host.
    pub(super) clock: Clock,
}

impl Shared {
    pub(super) fn new(workload: &Workload, options: &RunOptions, batches: Option<Batches>) -> Shared {
        let begun = options.restarting.begun.as_ref().and_then(|begun| begun.checkpoint.as_ref());
        let resumed = options.resume.as_ref().map(|checkpoint| &checkpoint.folder);
        let last_checkpoint = match (begun.map(|(_, folder)| folder).or(resumed), &options.saving) {
            (Some(folder), _) => LastCheckpoint::At(folder.clone()),
            (None, Some(_)) => LastCheckpoint::NoneYet,
            (None, None) => LastCheckpoint::NotAsked,
        };
        let start = Instant::now();
        Shared {
            last_checkpoint: Mutex::new(last_checkpoint),
            saves: Arc::default(),
            missed_faults: Mutex::default(),
            workload: workload.clone(),
            options: options.clone(),
            batches: batches.map(Arc::new),
            verdict: Verdict::new(options.stop.clone(), options.steps)
                .pausing(options.pausing.clone(), options.saves_every())
                .recording(Recording::of(options, workload)),
            board: StatusBoard::new(workload.positions()),
            start,
            clock: Clock::of(start),
        }
    }

    /// Notes that the fault of `rank` has not come in all its `exchanges`.
    pub(super) fn note_missed_fault(&self, rank: usize, exchanges: u64) {
        self.missed_faults.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, exchanges);
    }

    /// The last checkpoint that this run has written.
    fn written_checkpoint(&self) -> Option<PathBuf> {
        // After a restart it is of an earlier generation.
        let resumed = self.options.resume.as_ref().filter(|_| self.options.restarting.begun.is_none());
        let resumed = resumed.map(|checkpoint| &checkpoint.folder);
        self.last_checkpoint().folder().filter(|folder| resumed != Some(folder))
    }

    /// The same after a failure, once writes that were under way have ended, for `left` at most.
    pub(super) fn settled_checkpoint(&self, left: Duration, others: Option<&[usize]>) -> LastCheckpoint {
        let whole = self.saves.settle(left, others);
        let mut last = self.last_checkpoint.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = whole {
            *last = LastCheckpoint::At(folder);
        }
        last.clone()
    }

    /// Where the run can resume.
    pub(super) fn last_checkpoint(&self) -> LastCheckpoint {
        self.last_checkpoint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The name in traces for ranks that are threads of one process.
const THREADS: &str = "threads";

/// How a device's tensors get to other ranks.
pub(super) enum TensorPath {
    /// As its memory: they are in this process.
    Threads,
    /// Through host memory.
    Host,
    /// As its memory, by a transport that shares this queue.
    #[cfg(feature = "cuda")]
    Card(Arc<dyn cuda::card::Card>),
}

/// Trains `workload`, with one thread per rank.
///
/// # Errors
/// [`RunError::Refused`] before anything has started, [`RunError::Failed`] where a rank fails.
pub fn run(workload: &Workload, options: &RunOptions, observer: &mut dyn Observer) -> Result<RunReport, RunError> {
    let batches = workload.check(options, MessageCarrier::Threads)?;
    options.check_resumed(0, 1).map_err(super::Refusal::from)?;
    let _held = options.hold_folder().map_err(super::Refusal::from)?;
    let ranks = workload.world();
    let shared = Arc::new(Shared::new(workload, options, batches));
    let (tell, hear) = mpsc::channel();
    for end in world(ranks, options.transport) {
        let rank = end.rank();
        let (shared, tell) = (Arc::clone(&shared), tell.clone());
        thread::Builder::new()
            .name(format!("rank {rank}"))
            .spawn(move || rank_thread(rank, end, &shared, &tell))
            .map_err(|error| super::Refusal::NoThread { rank, error: error.to_string() })?;
    }
    drop(tell);
    Coordinator::new(&shared, THREADS, options.transport.slots).listen(&hear, observer)
}

/// The life of one rank. It always reports how it ended.
fn rank_thread(rank: usize, end: Threads, shared: &Shared, tell: &Sender<Event>) {
    let (mut transport, missed) = with_faults(end, shared.options.fault_of(rank));
    let walk = catch_unwind(AssertUnwindSafe(|| {
        let mut rank_executor = rank_executor(rank, shared, &TensorPath::Threads)?;
        let ran = rank_executor.run(&mut *transport, &shared.verdict, |record| {
            // Nobody listens only after the run has been given up.
            let _ = tell.send(Event::Step(record));
        });
        ran.inspect_err(|_| rank_executor.leave())?;
        let weights = match shared.options.keep_weights {
            true => rank_executor.gradients.all_exact(&mut *rank_executor.backend, &mut *transport)?,
            false => BTreeMap::new(),
        };
        Ok((
            memory_of(rank, &rank_executor.store.meter, rank_executor.backend.device_bytes(), &shared.workload),
            weights,
        ))
    }));
    let walk = walk.unwrap_or_else(|panic| Err(Cause::Died { message: message_of(&*panic) }));
    let ended = match walk {
        Ok(figures) => {
            shared.board.note_state(rank, State::Ended);
            if let Some(exchanges) = missed.exchanges() {
                shared.note_missed_fault(rank, exchanges);
            }
            Some(figures)
        }
        Err(cause) => {
            shared.board.note_state(rank, State::Failed);
            let report = shared.board.report(&shared.workload.problem, &shared.workload.program);
            let _ = tell.send(Event::Failed(rank, cause, report));
            transport.abort();
            None
        }
    };
    let _ = tell.send(Event::Ended(rank, ended));
}

/// `end` with what goes wrong there, and what tells whether it has not come.
pub(super) fn with_faults<T: Transport + 'static>(end: T, faults: Option<Faults>) -> (Box<dyn Transport>, Missed) {
    match faults {
        Some(faults) => {
            let faulty = Faulty::new(end, faults);
            let missed = faulty.missed();
            (Box::new(faulty), missed)
        }
        None => (Box::new(end), Missed::default()),
    }
}

/// Rank `rank` of the world, ready for its first step.
///
/// # Errors
/// Where the device cannot hold it, or the checkpoint from which it goes on cannot be read.
pub(super) fn rank_executor<'s>(
    rank: usize,
    shared: &'s Shared,
    tensor_path: &TensorPath,
) -> Result<RankExecutor<'s>, Cause> {
    let Shared { workload, options, board, last_checkpoint, start, .. } = shared;
    let mut store = Store::default();
    let (position, places) = (workload.position(rank), workload.places());
    let batches = shared.batches.as_ref().map(|batches| {
        let first = (position.replica * workload.microbatches()) as u32;
        Arc::new(batches.starting_at(first, position.sequence_part()))
    });
    let mut backend = backend(rank, shared, batches.as_ref(), tensor_path, &mut store)?;
    let begun = options.restarting.begun.as_ref().and_then(|begun| begun.take(rank));
    if let Some(state) = begun {
        state.fill(position, &places, &mut *backend)?;
    } else if let Some(checkpoint) = &options.resume {
        Reader::open(checkpoint)?.fill(position, &places, &mut *backend)?;
    } else if let (Some(pretrained), Computation::Model(model)) = (&options.weights, &workload.computation) {
        Reader::of_pretrained(pretrained, &model.model)?.fill(position, &places, &mut *backend)?;
    }
    Ok(RankExecutor {
        position,
        problem: &workload.problem,
        row: workload.row(rank),
        backend,
        store,
        peer_groups: PeerGroups::new(position),
        keeper: options
            .restarting
            .kept
            .as_ref()
            .map(|kept| Keeper::new(Arc::clone(kept), places.clone(), options.first_step())),
        gradients: Gradients::new(
            position,
            &places,
            options.clip_norm.or(options.measure_norm.then_some(f64::INFINITY)),
        ),
        batches,
        evaluation: [options.evaluate_every, options.evaluate_steps],
        slower_permille: options.slower_permille(rank),
        stop: options.stop.clone(),
        first_step: options.first_step(),
        writer: workload.writer(rank, options, shared.batches.as_deref(), &shared.saves),
        last_checkpoint,
        board,
        start: *start,
    })
}

/// What executes the ops of `rank`.
fn backend(
    rank: usize,
    shared: &Shared,
    batches: Option<&Arc<Batches>>,
    tensor_path: &TensorPath,
    store: &mut Store,
) -> Result<Box<dyn Backend>, Cause> {
    let _ = tensor_path;
    let Shared { workload, options, start, .. } = shared;
    let (problem, position) = (&workload.problem, workload.position(rank));
    Ok(match (&workload.computation, batches) {
        (Computation::Model(model), Some(batches)) => {
            let held = |stage: &usize| Some((*stage as u16, model.graphs.get(*stage)?.clone()));
            let held: Vec<(u16, Graph)> = stages_held(problem, position.rank).iter().filter_map(held).collect();
            let training = Training {
                stage_count: problem.stage_count(),
                seed: options.seed,
                optimizer: options.optimizer,
                kind: model.optimizer,
                shardings: position.shardings(),
                state_on_host: model.optimizer_on_host,
                bf16_moments: model.bf16_moments,
                expert_node: model.expert_node,
                seat: position.seat(),
                rotary: options.rope_scaling(),
                slicing: model.slicing(),
                batches: Arc::clone(batches),
            };
            #[cfg(feature = "cuda")]
            if options.device != Device::Cpu {
                let (leaving, card) = match tensor_path {
                    TensorPath::Card(card) => (cuda::Leaving::OnCard, Ok(Arc::clone(card))),
                    TensorPath::Threads => {
                        let portion = || cuda::card::Portion { part: rank, parts: workload.world() };
                        let portion = options.split_gpu.then(portion);
                        let opening = cuda::Opening { portion, graphs: options.cuda_graphs, apart: false };
                        (cuda::Leaving::OnCard, cuda::open_as(options.device, opening))
                    }
                    TensorPath::Host => (cuda::Leaving::ThroughHost, cuda::open(options.device)),
                };
                let card = card.map_err(BackendError::from)?;
                let row = workload.row(rank);
                // What is sent goes as a copy, and so does what ranks of one card sum, pass on or deal out:
                // gradients, if nothing else.
                let shows = matches!(tensor_path, TensorPath::Threads);
                // And gradients of its own stages' copies of a weight, piece by piece.
                let copies = if super::gradients::has_copies(&workload.places(), position.rank) {
                    cuda::nvidia::SLAB_BY_OTHERS
                } else {
                    0
                };
                let leaves = match leaving {
                    cuda::Leaving::ThroughHost => copies,
                    // Its queues wait for other ranks, so that no memory can be taken any more.
                    cuda::Leaving::OnCard if !shows => {
                        cuda::memory_plan::leaving(problem, &workload.program, position.rank, &held) + copies
                    }
                    cuda::Leaving::OnCard if workload.world() > 1 => cuda::nvidia::SLAB_BY_OTHERS,
                    cuda::Leaving::OnCard => copies,
                };
                let needed = cuda::memory_plan::needed(&held, &training, row, shows)?;
                card.reserve(needed.on_card, leaves).map_err(BackendError::from)?;
                card.reserve_on_host(needed.on_host).map_err(BackendError::from)?;
                let made = cuda::Cuda::new(card, held, training, leaving, store);
                return Ok(Box::new(made.map_err(BackendError::from)?));
            }
            match model.precision() {
                Ok(Precision::Double) => Box::new(Cpu::<f64>::sharing(held, training, store)),
                _ => Box::new(Cpu::<f32>::sharing(held, training, store)),
            }
        }
        (Computation::Stages(staged), _) => {
            let training = StagedTraining {
                stages: problem.stage_count(),
                replica: position.replica,
                replicas: position.replicas,
                microbatches: problem.microbatches(),
                optimizer: options.optimizer,
                share: position.shardings().others.share,
            };
            let held = stages_held(problem, position.rank);
            Box::new(StagedBackend::new(&*staged.model, &held, training, store)?)
        }
        _ => {
            let pace = Pace { slowdown: workload.slowdown(), tail_ns: workload.planned_tail_ns(rank), start: *start };
            let problem = workload.problem_of(position.replica).clone();
            Box::new(Modelled::new(problem, position.rank, pace, store))
        }
    })
}

/// What `rank` held, and what the plan predicts.
pub(super) fn memory_of(rank: usize, meter: &Meter, device_bytes: Option<Bytes>, workload: &Workload) -> RankMemory {
    RankMemory {
        high_water_bytes: meter.peak_total(),
        persistent_bytes: meter.peak(Kind::Persistent),
        activation_bytes: meter.peak(Kind::Activation),
        transfer_bytes: meter.peak(Kind::Transfer),
        host_bytes: meter.peak(Kind::Host),
        predicted_bytes: workload.predicted_peak_bytes.get(workload.position(rank).rank).copied().unwrap_or(0),
        device_bytes: device_bytes.unwrap_or(0),
    }
}

pub(super) fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it said nothing".to_string())
}

/// Collects what ranks report.
pub(super) struct Coordinator<'a> {
    shared: &'a Shared,
    transport: &'static str,
    /// Messages of a channel that may wait to be taken.
    slots: usize,
    /// Steps of which some ranks have told, by number: their records by rank.
    open: BTreeMap<u32, Vec<Option<StepRecord>>>,
    steps: Vec<StepReport>,
    traced: VecDeque<StepTrace>,
    /// What became of the last step that was kept.
    was: Recorded,
    /// By row of the trace, so far.
    peak_bytes: Vec<Bytes>,
    names: CollectiveNames,
    first_start_ns: Option<Nanos>,
    last_end_ns: Nanos,
    /// By step: from the first op to the last.
    makespans_ns: Vec<Nanos>,
    /// By step of those that are traced: how late its ops started.
    late_ns: VecDeque<Vec<Nanos>>,
    /// By rank the host whose clock it has.
    pub(super) hosts: Vec<usize>,
    /// Busy time and all ranks' time of the steps after the first.
    busy_and_whole_ns: (f64, f64),
    pub(super) ended: Vec<Option<(RankMemory, BTreeMap<String, Buffer>)>>,
    /// Whether the run has ended to go on later.
    pub(super) paused: bool,
}

impl<'a> Coordinator<'a> {
    pub(super) fn new(shared: &'a Shared, transport: &'static str, slots: usize) -> Coordinator<'a> {
        let ranks = shared.workload.world();
        Coordinator {
            shared,
            transport,
            slots,
            open: BTreeMap::new(),
            steps: Vec::new(),
            traced: VecDeque::new(),
            was: Recorded::No,
            peak_bytes: vec![0; ranks],
            names: CollectiveNames::new(&shared.workload),
            first_start_ns: None,
            last_end_ns: 0,
            makespans_ns: Vec::new(),
            late_ns: VecDeque::new(),
            hosts: vec![0; ranks],
            busy_and_whole_ns: (0.0, 0.0),
            ended: (0..ranks).map(|_| None).collect(),
            paused: false,
        }
    }

    fn listen(mut self, hear: &Receiver<Event>, observer: &mut dyn Observer) -> Result<RunReport, RunError> {
        let ranks = self.ended.len();
        let mut still_running: Vec<usize> = (0..ranks).collect();
        while !still_running.is_empty() {
            // Every rank tells how it ended, so this hears something before all senders are gone.
            let Ok(event) = hear.recv() else { break };
            match event {
                Event::Step(record) => self.note(record, observer),
                Event::Failed(rank, cause, report) => {
                    return Err(self.fail((rank, cause, report), still_running, hear));
                }
                Event::Ended(rank, figures) => {
                    still_running.retain(|running| *running != rank);
                    self.ended[rank] = figures;
                }
            }
        }
        self.paused = self.shared.verdict.has_paused();
        Ok(self.report())
    }

    /// Waits for the other ranks within the grace period. The first cause that is not the abort of another rank is
    /// reported.
    fn fail(
        &self,
        first: (usize, Cause, Vec<RankReport>),
        mut still_running: Vec<usize>,
        hear: &Receiver<Event>,
    ) -> RunError {
        let failed_at = Instant::now();
        let mut first = first;
        while !still_running.is_empty() {
            let left = self.shared.options.grace.saturating_sub(failed_at.elapsed());
            match hear.recv_timeout(left) {
                Ok(Event::Ended(rank, _)) => still_running.retain(|running| *running != rank),
                Ok(Event::Failed(rank, cause, report)) => {
                    if first.1.transport() == Some(&TransportError::Aborted) {
                        first = (rank, cause, report);
                    }
                }
                Ok(Event::Step(_)) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let (rank, cause, ranks) = first;
        let ended_after: Duration = failed_at.elapsed();
        let left = self.shared.options.grace.saturating_sub(ended_after);
        let (silent, checkpoint) = (still_running, self.shared.settled_checkpoint(left, Some(&[])));
        RunError::Failed(Box::new(Failure { rank, cause, ranks, silent, checkpoint, ended_after }))
    }

    pub(super) fn note(&mut self, record: StepRecord, observer: &mut dyn Observer) {
        let ranks = self.ended.len();
        let (step, rank) = (record.step, record.rank);
        let records = self.open.entry(step).or_insert_with(|| (0..ranks).map(|_| None).collect());
        records[rank] = Some(record);
        if records.iter().all(Option::is_some) {
            let records = self.open.remove(&step).unwrap_or_default();
            let recorded = records.iter().flatten().map(|record| record.recorded).next().unwrap_or_default();
            let (report, trace) = self.close(step, records.into_iter().flatten().collect());
            observer.step_ended(&report);
            let have_a_core_each = self.processors().is_none_or(|processors| processors >= ranks);
            let clocks = self.clock_of_row();
            if !have_a_core_each || clocks.iter().any(|host| *host != clocks[0]) {
                observer.measured(&StepTrace { began_ns: None, ..trace.clone() }, &clocks);
            } else {
                observer.measured(&trace, &clocks);
            }
            self.steps.push(report);
            let over = self.was == Recorded::Kept && recorded == Recorded::No;
            if over && self.shared.options.recording.was_asked() {
                self.was = Recorded::No;
                let peaks = self.peak_bytes.clone();
                let (trace, _) = self.trace(self.traced.iter().cloned().collect(), None, peaks);
                observer.recorded(&trace);
            }
            self.keep(trace, recorded);
        }
    }

    /// Takes `trace` among those of the report.
    fn keep(&mut self, trace: StepTrace, recorded: Recorded) {
        match recorded {
            Recorded::No => {}
            Recorded::Kept => {
                // What was kept in case nobody asks.
                if std::mem::replace(&mut self.was, recorded) == Recorded::Last {
                    self.traced.clear();
                }
                self.traced.push_back(trace);
            }
            Recorded::Last => {
                self.was = recorded;
                self.traced.push_back(trace);
                if self.traced.len() > self.shared.options.traced_steps as usize {
                    self.traced.pop_front();
                }
            }
        }
    }

    /// A step that all ranks have ended.
    fn close(&mut self, step: u32, records: Vec<StepRecord>) -> (StepReport, StepTrace) {
        let workload = &self.shared.workload;
        let (problem, ranks) = (&workload.problem, workload.world());
        // The barrier opens when the last rank is ready.
        let start_ns = records.iter().map(|record| record.ready_ns).max().unwrap_or(0);
        let mut losses: Vec<(u32, f64)> = records.iter().flat_map(|record| record.losses.iter().copied()).collect();
        losses.sort_by_key(|(microbatch, _)| *microbatch);
        let loss = (!losses.is_empty()).then(|| losses.iter().fold(0.0, |sum, (_, loss)| sum + loss));
        let slowdown = workload.slowdown();
        let row = |record: &StepRecord| {
            let steps = workload.row(record.rank).iter().zip(&record.spans);
            let span = |(step, (start, end)): (&_, &(Nanos, Nanos))| TraceSpan {
                step: Clone::clone(step),
                start_ns: start.saturating_sub(start_ns) / slowdown,
                end_ns: end.saturating_sub(start_ns) / slowdown,
            };
            steps.map(span).collect()
        };
        let tokens = workload.step_tokens();
        // A trace has one pipeline after the other.
        let mut by_pipeline: Vec<&StepRecord> = records.iter().collect();
        by_pipeline.sort_by_key(|record| workload.position(record.rank).in_trace());
        self.peak_bytes = by_pipeline.iter().map(|record| record.peak_bytes).collect();
        let rows = by_pipeline.iter().copied().map(row).collect();
        let collectives = match by_pipeline.iter().any(|record| !record.collectives.is_empty()) {
            true => {
                let names = &mut self.names;
                let named = |record: &&StepRecord| names.named(workload, record.rank, &record.collectives, start_ns);
                by_pipeline.iter().map(named).collect()
            }
            false => Vec::new(),
        };
        let began_ns = Some(start_ns / slowdown);
        let trace = StepTrace { step: step.into(), loss, tokens, began_ns, rows, collectives };
        let timeline = trace.timeline();
        let bubble_ratio = timeline.bubble_ratio(problem.objective());
        let options = &self.shared.options;
        if step > options.first_step() || options.steps.saturating_sub(options.first_step()) == 1 {
            let whole = timeline.cost_ns(problem.objective()) as f64 * ranks as f64;
            self.busy_and_whole_ns.0 += (1.0 - bubble_ratio) * whole;
            self.busy_and_whole_ns.1 += whole;
            self.late_ns.push_back(lateness(workload, &records));
            if self.late_ns.len() > options.traced_steps.max(1) as usize {
                self.late_ns.pop_front();
            }
        }
        let duration_ns = trace.duration_ns();
        self.first_start_ns.get_or_insert(start_ns);
        self.last_end_ns = start_ns + duration_ns * slowdown;
        self.makespans_ns.push(timeline.makespan_ns());
        let mean = |mut losses: Vec<(u32, f64)>| {
            losses.sort_by_key(|(microbatch, _)| *microbatch);
            (!losses.is_empty()).then(|| losses.iter().fold(0.0, |sum, (_, loss)| sum + loss))
        };
        let report = StepReport {
            step,
            steps: options.steps,
            loss,
            tokens,
            duration_ns,
            bubble_ratio,
            validation_loss: mean(records.iter().flat_map(|record| record.validation.iter().copied()).collect()),
            gradient_norm: records.iter().find_map(|record| record.gradient_norm),
            learning_rate: loss.map(|_| options.optimizer.rate(step)),
            peak_bytes: records.iter().map(|record| record.peak_bytes).max().unwrap_or(0),
        };
        (report, trace)
    }

    /// How many processors the ranks share, where that is known: those of this machine, or one GPU.
    fn processors(&self) -> Option<usize> {
        let (options, workload) = (&self.shared.options, &self.shared.workload);
        match options.device {
            _ if self.transport != THREADS || workload.only_waits() => None,
            Device::Cpu => std::thread::available_parallelism().ok().map(usize::from),
            _ if options.split_gpu => None,
            _ => Some(1),
        }
    }

    /// The trace of `steps`, with its clocks put right.
    fn trace(&self, steps: Vec<StepTrace>, overhead: Option<&Overhead>, peak_bytes: Vec<Bytes>) -> (Trace, Aligned) {
        let workload = &self.shared.workload;
        let shared_processors = self.processors().filter(|processors| *processors < workload.world());
        let mut trace = Trace {
            plan_digest: workload.plan_digest.clone(),
            backend: match &workload.computation {
                Computation::Model(_) => match self.shared.options.device {
                    Device::Cpu => "cpu".to_string(),
                    Device::Cuda(_) => "cuda".to_string(),
                    Device::Emulated => "emulated".to_string(),
                },
                Computation::Stages(_) => "stages".to_string(),
                Computation::PlannedTimes { .. } => "modelled".to_string(),
            },
            transport: self.transport.to_string(),
            replicas: workload.replicas(),
            context: workload.parts(),
            tensor: workload.members(),
            overhead_ns: overhead.map(|overhead| overhead.mean_ns.round() as Nanos),
            shared_processors,
            peak_bytes,
            hosts: Vec::new(),
            steps,
        };
        let clock_of_row = self.clock_of_row();
        trace.set_hosts(&clock_of_row);
        let clocks = align(&mut trace, &clock_of_row);
        (trace, clocks)
    }

    /// By row of the trace the host whose clock it has.
    fn clock_of_row(&self) -> Vec<usize> {
        let workload = &self.shared.workload;
        let mut by_row: Vec<(usize, usize)> =
            self.hosts.iter().enumerate().map(|(rank, host)| (workload.position(rank).in_trace(), *host)).collect();
        by_row.sort_unstable();
        by_row.into_iter().map(|(_, host)| host).collect()
    }

    pub(super) fn report(mut self) -> RunReport {
        let workload = &self.shared.workload;
        let (busy, whole) = self.busy_and_whole_ns;
        let processors = self.processors();
        let shared = processors.filter(|processors| *processors < workload.world());
        let places = if self.shared.options.keep_weights { workload.places() } else { Places::new() };
        let mut weights = BTreeMap::new();
        let mut memory = Vec::new();
        for (rank, ended) in std::mem::take(&mut self.ended).into_iter().enumerate() {
            let (figures, held) =
                ended.unwrap_or_else(|| (memory_of(rank, &Meter::default(), None, workload), BTreeMap::new()));
            let position = workload.position(rank);
            for (name, held) in held {
                if let Some(placed) = places.get(&name) {
                    placed.shard.put(position.seat(), held, weights.entry(name).or_insert(Buffer::Nothing));
                }
            }
            memory.push((position.in_trace(), figures));
        }
        memory.sort_by_key(|(place, _)| *place);
        let memory: Vec<RankMemory> = memory.into_iter().map(|(_, figures)| figures).collect();
        let peak_bytes: Vec<Bytes> = memory.iter().map(|memory| memory.high_water_bytes).collect();
        let predicted = workload.predicted(self.slots, processors.unwrap_or(usize::MAX));
        let predicted = predicted.unwrap_or_default();
        let step_ns = median(self.steps.iter().map(|step| step.duration_ns).collect());
        let overhead = Overhead::of(std::mem::take(&mut self.late_ns).into_iter().flatten().collect());
        let steps = std::mem::take(&mut self.traced).into();
        let (trace, clocks) = self.trace(steps, overhead.as_ref(), peak_bytes);
        RunReport {
            clocks,
            duration_ns: self.last_end_ns - self.first_start_ns.unwrap_or(0),
            makespan_ns: median(self.makespans_ns),
            predicted_makespan_ns: predicted.makespan_ns,
            step_ns,
            predicted_step_ns: predicted.step_ns,
            slowdown: workload.slowdown(),
            overhead,
            bubble_ratio: if whole > 0.0 { 1.0 - busy / whole } else { 0.0 },
            predicted_bubble_ratio: predicted.bubble_ratio,
            processors: shared,
            checkpoint: self.shared.written_checkpoint(),
            missed_faults: self.shared.missed_faults.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            stopped: self.steps.len()
                < self.shared.options.steps.saturating_sub(self.shared.options.first_step()) as usize,
            paused: self.paused,
            checkpoint_pauses: self.shared.saves.pauses(),
            restarts: Vec::new(),
            steps: self.steps,
            memory,
            replicas: workload.replicas(),
            parts: workload.parts(),
            members: workload.members(),
            trace,
            weights,
        }
    }
}

/// The middle one of what was measured after the first step; the first fills caches.
fn median(mut values: Vec<Nanos>) -> Nanos {
    if values.len() > 1 {
        values.remove(0);
    }
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
