//! One rank runs its op list.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::problem::Problem;
use pipeplan_core::program::{P2pOp, Step, Way};

use super::checkpoint::Writer;
use super::collective_log::Noted;
use super::data::Batches;
use super::gradients::{Gradients, Places, Position};
use super::peer_groups::PeerGroups;
use super::recording::Recorded;
use super::report::{Cause, LastCheckpoint};
use super::restart::Kept;
use super::status::{State, StatusBoard};
use super::stop::{StopFlag, Verdict};
use crate::backend::{Backend, Parcel, Store};
use crate::transport::{Buffer, Incoming, Outgoing, Tag, Transport, What};

/// What a rank did in one training step. Times count from the start of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRecord {
    /// The rank.
    pub rank: usize,
    /// The training step.
    pub step: u32,
    /// When the rank was ready for the step.
    pub ready_ns: Nanos,
    /// Start and end of each step of the op list.
    pub spans: Vec<(Nanos, Nanos)>,
    /// What becomes of all that.
    pub recorded: Recorded,
    /// Collectives that it took part in; none where the step is not recorded.
    pub collectives: Vec<Noted>,
    /// Losses by microbatch, on the rank that holds the last stage.
    pub losses: Vec<(u32, f64)>,
    /// Losses of the evaluation after it, likewise: shares of their mean.
    pub validation: Vec<(u32, f64)>,
    /// The norm of all gradients before they were clipped, where it is known.
    pub gradient_norm: Option<f64>,
    /// The most bytes that the rank has held so far.
    pub peak_bytes: Bytes,
}

/// Receives that have been started and not taken, by sender, in the order of starting.
type Started = BTreeMap<usize, VecDeque<P2pOp>>;

/// Keeps the state of a rank for a restart.
pub struct Keeper {
    kept: Arc<Kept>,
    places: Places,
    /// The steps that are in what the backend holds, where they are whole.
    made: Option<u32>,
}

impl Keeper {
    /// For a rank whose weights lie at `places`, and which has made `first_step` steps.
    pub fn new(kept: Arc<Kept>, places: Places, first_step: u32) -> Keeper {
        Keeper { kept, places, made: Some(first_step) }
    }
}

/// One rank.
pub struct RankExecutor<'a> {
    /// Where the rank stands.
    pub position: Position,
    /// Where stages are.
    pub problem: &'a Problem,
    /// What it executes in each training step.
    pub row: &'a [Step],
    /// Runs its ops.
    pub backend: Box<dyn Backend>,
    /// What it holds between steps.
    pub store: Store,
    /// The ranks that make its stages with it.
    pub peer_groups: PeerGroups,
    /// What it does with gradients before and after its update.
    pub gradients: Gradients,
    /// The first training step that it runs.
    pub first_step: u32,
    /// What it trains on; nothing where nothing is trained.
    pub batches: Option<Arc<Batches>>,
    /// After how many steps it evaluates, and on how many batches; 0: never.
    pub evaluation: [u32; 2],
    /// By how many thousandths longer its ops take, on purpose.
    pub slower_permille: u32,
    /// Raised where data cannot be read, to end the run after whole steps.
    pub stop: StopFlag,
    /// Writes its part of checkpoints, if there are any.
    pub writer: Option<Writer>,
    /// The last checkpoint of the run.
    pub last_checkpoint: &'a Mutex<LastCheckpoint>,
    /// Keeps its state for a restart, where there may be one.
    pub keeper: Option<Keeper>,
    /// Where it reports its state.
    pub board: &'a StatusBoard,
    /// The start of the run.
    pub start: Instant,
}

impl RankExecutor<'_> {
    /// Trains until `verdict` ends the run, and passes the record of each step to `tell`.
    ///
    /// # Errors
    /// The first thing that fails.
    pub fn run(
        &mut self,
        transport: &mut dyn Transport,
        verdict: &Verdict,
        mut tell: impl FnMut(StepRecord),
    ) -> Result<(), Cause> {
        let rank = self.position.world_rank();
        let mut done = self.first_step;
        for training_step in self.first_step.. {
            self.board.note(rank, training_step, 0, State::Between);
            self.prepare(training_step);
            let ready_ns = self.now();
            transport.barrier()?;
            if !verdict.runs(training_step) {
                break;
            }
            let recorded = verdict.recorded();
            tell(self.whole_step(training_step, ready_ns, recorded, transport)?);
            done = training_step + 1;
            self.after_step(done, transport)?;
        }
        self.finish(done, transport)
    }

    /// Leaves the run because a rank has failed: what it holds after a whole step is kept.
    pub(super) fn leave(&mut self) {
        let Some(keeper) = &self.keeper else { return };
        if let Some(made) = keeper.made {
            keeper.kept.leave(made, self.position, &keeper.places, &mut *self.backend);
        }
    }

    /// Has the data of a step there. Where it cannot be read, the run ends before the step, on all ranks the same, and writes its
    /// checkpoint.
    pub(super) fn prepare(&self, training_step: u32) {
        if self.batches.as_ref().is_some_and(|batches| batches.prepare(training_step).is_err()) {
            self.stop.raise();
        }
    }

    /// One step, and the evaluation that is due after it. Collectives are noted where the step is recorded.
    pub(super) fn whole_step(
        &mut self,
        step: u32,
        ready_ns: Nanos,
        recorded: Recorded,
        transport: &mut dyn Transport,
    ) -> Result<StepRecord, Cause> {
        let rank = self.position.world_rank();
        if let Some(keeper) = &mut self.keeper {
            keeper.kept.begin_step(step, self.position, &keeper.places, &mut *self.backend)?;
            keeper.made = None;
        }
        let is_on = recorded != Recorded::No;
        self.peer_groups.log.turn(is_on, self.start);
        self.gradients.log.turn(is_on, self.start);
        let spans = self.step(step, transport)?;
        let mut collectives = self.peer_groups.log.take();
        collectives.extend(self.gradients.log.take());
        self.peer_groups.log.turn(false, self.start);
        self.gradients.log.turn(false, self.start);
        let losses = self.take_losses();
        let gradient_norm = self.gradients.take_norm();
        let validation = self.evaluate(step, transport)?;
        if let Some(keeper) = &mut self.keeper {
            keeper.made = Some(step + 1);
            keeper.kept.note_done(step + 1);
        }
        let peak_bytes = self.store.meter.peak_total();
        Ok(StepRecord {
            rank,
            step,
            ready_ns,
            spans,
            recorded,
            collectives,
            losses,
            validation,
            gradient_norm,
            peak_bytes,
        })
    }

    /// Runs the op list of a step on what is evaluated on, without an update: its losses, if an evaluation is due after `step`.
    fn evaluate(&mut self, step: u32, transport: &mut dyn Transport) -> Result<Vec<(u32, f64)>, Cause> {
        let [every, most] = self.evaluation;
        let Some(batches) = self.batches.clone().filter(|_| every > 0 && (step + 1).is_multiple_of(every)) else {
            return Ok(Vec::new());
        };
        // Each sequence once at most, but one batch in any case.
        let whole = batches.validation_windows() as u64 / batches.step_sequences().max(1);
        let count = most.min(u32::try_from(whole).unwrap_or(u32::MAX)).max(1);
        let mut losses = Vec::new();
        for number in 0..count {
            batches.evaluate(Some(number));
            transport.barrier()?;
            let ran = self.step_of(step, true, transport);
            batches.evaluate(None);
            ran?;
            let of_batch = self.take_losses();
            losses.extend(of_batch.into_iter().map(|(microbatch, loss)| (microbatch, loss / f64::from(count))));
            self.gradients.clear(&mut *self.backend)?;
        }
        Ok(losses)
    }

    /// Writes a checkpoint where one is due after `done` steps.
    pub(super) fn after_step(&mut self, done: u32, transport: &mut dyn Transport) -> Result<(), Cause> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        self.board.note(self.position.world_rank(), done.saturating_sub(1), self.row.len(), State::Saving);
        let written = writer.after_step(done, &mut *self.backend, &mut self.gradients, transport)?;
        self.note_checkpoint(written);
        Ok(())
    }

    /// Writes the last checkpoint of a run that has ended after `done` steps.
    pub(super) fn finish(&mut self, done: u32, transport: &mut dyn Transport) -> Result<(), Cause> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        self.board.note(self.position.world_rank(), done.saturating_sub(1), self.row.len(), State::Saving);
        let written = writer.finish(done, &mut *self.backend, &mut self.gradients, transport)?;
        self.note_checkpoint(written);
        Ok(())
    }

    fn note_checkpoint(&self, written: Option<PathBuf>) {
        if let Some(folder) = written {
            *self.last_checkpoint.lock().unwrap_or_else(PoisonError::into_inner) = LastCheckpoint::At(folder);
        }
    }

    /// The losses of the step, by microbatch among those of all replicas, as shares of the mean over all.
    pub(super) fn take_losses(&mut self) -> Vec<(u32, f64)> {
        let Position { replica, member, .. } = self.position;
        let first = (replica * self.problem.microbatches()) as u32;
        // All members have the same losses. Each part's is the mean over its own tokens.
        let losses = self.backend.take_losses().into_iter().filter(|_| member == 0);
        losses.map(|(microbatch, loss)| (first + microbatch, loss / self.position.copies() as f64)).collect()
    }

    /// The rank in the world at the other end of `message`.
    fn peer(&self, message: &P2pOp) -> usize {
        self.position.in_world(self.problem.rank_of(message.peer_stage(), message.microbatch as usize))
    }

    pub(super) fn step(
        &mut self,
        training_step: u32,
        transport: &mut dyn Transport,
    ) -> Result<Vec<(Nanos, Nanos)>, Cause> {
        self.step_of(training_step, false, transport)
    }

    /// A step, or what it computes without an update.
    fn step_of(
        &mut self,
        training_step: u32,
        evaluates: bool,
        transport: &mut dyn Transport,
    ) -> Result<Vec<(Nanos, Nanos)>, Cause> {
        self.backend.begin(training_step);
        self.peer_groups.begin(training_step);
        let rank = self.position.world_rank();
        let mut spans = Vec::with_capacity(self.row.len());
        let mut started = BTreeMap::new();
        let mut now = self.now();
        for (index, step) in self.row.iter().enumerate() {
            let computes = matches!(step, Step::Compute(_) | Step::Optimizer);
            let state = if computes { State::Computing } else { State::Exchanging };
            self.board.note(rank, training_step, index, state);
            match step {
                Step::Compute(op) => {
                    self.backend.await_inputs(*op, &self.store);
                    now = self.now();
                    let mut peers = self.peer_groups.over(&mut *transport, self.board, rank);
                    self.backend.compute(*op, &mut self.store, &mut peers)?;
                    if self.slower_permille > 0 {
                        let took = u128::from(self.now().saturating_sub(now));
                        let more = took * u128::from(self.slower_permille) / 1000;
                        thread::sleep(Duration::from_nanos(more as u64));
                    }
                }
                Step::Transfer(messages) => self.exchange(training_step, messages, transport)?,
                Step::Start(messages) => self.start(training_step, messages, &mut started, transport)?,
                Step::Wait(messages) => self.wait(training_step, messages, &mut started, transport)?,
                Step::StartCopy(moved) => self.backend.start_copy(*moved, &mut self.store)?,
                Step::WaitCopy(moved) => self.backend.wait_copy(*moved, &mut self.store)?,
                Step::Optimizer if evaluates => {}
                Step::Optimizer => {
                    self.gradients.reduce(training_step, &mut *self.backend, transport)?;
                    self.backend.optimize(&mut self.store)?;
                    self.gradients.gather(&mut *self.backend, transport)?;
                }
            }
            let end = self.now();
            spans.push((now, end));
            now = end;
        }
        Ok(spans)
    }

    /// Hands sends to the transport, and notes receives by their sender: a link delivers in the order in which
    /// its messages are started.
    fn start(
        &mut self,
        training_step: u32,
        messages: &[P2pOp],
        started: &mut Started,
        transport: &mut dyn Transport,
    ) -> Result<(), Cause> {
        let (sends, receives): (Vec<P2pOp>, Vec<P2pOp>) =
            messages.iter().partition(|message| message.way == Way::Send);
        let mut due = Vec::with_capacity(receives.len());
        for message in receives {
            due.push(self.due(training_step, message));
            let peer = self.peer(&message);
            started.entry(peer).or_default().push_back(message);
        }
        let sends = sends.into_iter().map(|send| self.outgoing(training_step, send)).collect::<Result<_, _>>()?;
        Ok(transport.begin(sends, &due)?)
    }

    /// Takes what its links deliver until every receive among `messages` is there. Sends are the transport's
    /// once they are started.
    fn wait(
        &mut self,
        training_step: u32,
        messages: &[P2pOp],
        started: &mut Started,
        transport: &mut dyn Transport,
    ) -> Result<(), Cause> {
        for message in messages.iter().filter(|message| message.way == Way::Receive) {
            let peer = self.peer(message);
            let queue = started.entry(peer).or_default();
            // One that was taken on the way to another is no longer in the queue.
            let Some(place) = queue.iter().position(|candidate| candidate == message) else { continue };
            let due: Vec<P2pOp> = queue.drain(..=place).collect();
            let due: Vec<Incoming> = due.iter().map(|message| self.due(training_step, *message).0).collect();
            self.take(transport.exchange(Vec::new(), &due)?, &due)?;
        }
        Ok(())
    }

    /// The parcel of a send, taken from the store.
    fn outgoing(&mut self, training_step: u32, message: P2pOp) -> Result<Outgoing, Cause> {
        let peer = self.peer(&message);
        let buffer = self.store.take(Parcel::of(message))?;
        Ok(Outgoing { peer, tag: Tag::of(training_step, message), buffer })
    }

    /// A receive, and the bytes that it brings where the backend knows them.
    fn due(&self, training_step: u32, message: P2pOp) -> (Incoming, Bytes) {
        let (peer, tag) = (self.peer(&message), Tag::of(training_step, message.mirrored()));
        (Incoming { peer, tag }, self.backend.expects(Parcel::of(message)))
    }

    fn exchange(
        &mut self,
        training_step: u32,
        messages: &[P2pOp],
        transport: &mut dyn Transport,
    ) -> Result<(), Cause> {
        let mut sends = Vec::new();
        let mut due = Vec::new();
        for message in messages {
            match message.way {
                Way::Send => sends.push(self.outgoing(training_step, *message)?),
                Way::Receive => due.push(self.due(training_step, *message)),
            }
        }
        if transport.begins_receives() {
            transport.begin(std::mem::take(&mut sends), &due)?;
        }
        let due: Vec<Incoming> = due.into_iter().map(|(receive, _)| receive).collect();
        self.take(transport.exchange(sends, &due)?, &due)
    }

    /// Puts what has arrived into the store.
    fn take(&mut self, buffers: Vec<Buffer>, due: &[Incoming]) -> Result<(), Cause> {
        for (receive, buffer) in due.iter().zip(buffers) {
            // The tag is the sender's message, which names the same parcel.
            if let What::P2pOp(message) = receive.tag.what {
                self.store.put(Parcel::of(message), self.backend.take_in(buffer)?);
            }
        }
        Ok(())
    }

    pub(super) fn now(&self) -> Nanos {
        self.start.elapsed().as_nanos() as Nanos
    }
}
