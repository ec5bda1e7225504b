//! A run of which this process is one rank.
//!
//! Every process walks its own row. Between two steps the ranks vote whether to go on, which is their barrier as well,
//! and rank 0 gathers what each has measured and puts it together as it does for threads. Processes of one host share its
//! clock. On another host, times of a step count from the moment at which a process saw the vote end, until the clocks are put
//! right by the messages of the trace.

use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pipeplan_core::base::units::Nanos;

#[cfg(feature = "cuda")]
use super::Device;
use super::checkpoint::Held;
use super::collective_log::{NUMBERS, Noted};
#[cfg(feature = "cuda")]
use super::gradients::Gradients;
use super::rank_executor::{RankExecutor, StepRecord};
use super::recording::Recording;
use super::report::{Cause, Ending, Failure, RankMemory, RunError};
use super::status::State;
use super::threads::{Coordinator, Shared, TensorPath, memory_of, message_of, rank_executor, with_faults};
use super::workload::{MessageCarrier, Workload};
use super::{Observer, Refusal, RunOptions};
use crate::transport::collectives::{CollectiveError, Collectives, Group, Operation, Reduction};
use crate::transport::faulty::Missed;
#[cfg(feature = "cuda")]
use crate::transport::nccl::{self, Connections, Nccl, StartError};
use crate::transport::processes::{Control, Link, Processes};
use crate::transport::wire::LastWords;
use crate::transport::{Transport, TransportError};
#[cfg(feature = "cuda")]
use pipeplan_core::graph::Axis;

/// Trains as `workload` says, as the rank that `transport` is; every other rank does the same in its own process. Rank
/// 0 gets the report and is the one whose `observer` hears of steps; the others learn whether the run was stopped.
/// Final weights stay where they are.
///
/// # Errors
/// As [`super::run`]. Where the run fails, the lowest rank that is still there gets the [`Failure`], and the others
/// [`RunError::Elsewhere`]: after [`RunOptions::grace`] at the latest, from the moment at which the first rank knows.
pub fn run_process<L: Link + 'static>(
    workload: &Workload,
    options: &RunOptions,
    transport: Processes<L>,
    observer: &mut dyn Observer,
) -> Result<Ending, RunError> {
    let control = transport.control();
    run_part(workload, options, transport, observer).inspect(|_| control.leave())
}

/// The same for a run that may go on over the same connections: this rank leaves them open where the part ends well. What ends
/// a part for good, ends them.
///
/// # Errors
/// As [`run_process`].
pub fn run_part<L: Link + 'static>(
    workload: &Workload,
    options: &RunOptions,
    transport: Processes<L>,
    observer: &mut dyn Observer,
) -> Result<Ending, RunError> {
    let (rank, world, control) = (transport.rank(), transport.world(), transport.control());
    let ranks = workload.world();
    let checked = if world == ranks {
        workload.check(options, MessageCarrier::Processes)
    } else {
        Err(Refusal::World { ranks, world })
    };
    let batches = checked.inspect_err(|refusal| control.say(told(refusal)))?;
    let shared = Arc::new(Shared::new(workload, options, batches));
    let watch = control.launcher_ends_all().then(|| Watch::start(rank, &shared));
    let (mut transport, missed) = with_faults(transport, options.fault_of(rank));
    let walked = catch_unwind(AssertUnwindSafe(|| {
        let everyone = Group::world(&transport);
        let mut rank = Rank { rank, shared: &shared, everyone, name: control.name(), missed };
        rank.walk(&mut *transport, observer)
    }));
    let cause = match walked {
        Ok(Ok(report)) => return Ok(report),
        Ok(Err(Ended::Refused(refusal))) => {
            control.say(told(&refusal));
            return Err(refusal.into());
        }
        Ok(Err(Ended::Failed(cause))) => cause,
        Err(panic) => Cause::Died { message: message_of(&*panic) },
    };
    let error = failed(rank, cause, &shared, &control);
    drop(watch);
    if matches!(error, RunError::Elsewhere { .. }) {
        control.let_others_report();
    }
    Err(error)
}

/// What rank 0 says, on every rank: `said` is heard of rank 0 alone. For what goes from part to part of a run.
///
/// # Errors
/// Where a rank is lost or waits too long, or rank 0 says more than `most` bytes.
pub fn hand_on<L: Link>(transport: &Processes<L>, said: &[u8], most: usize) -> Result<Vec<u8>, CollectiveError> {
    let mut transport = transport.again();
    let mut everyone = Group::world(&transport);
    let mut length = [said.len() as f64];
    transport.broadcast(&mut everyone, 0, &mut length)?;
    let length = length[0] as usize;
    if length > most {
        let (operation, members) = (Operation::Broadcast, transport.world());
        return Err(CollectiveError::WrongCall { operation, members, found: length, what: "bytes", needed: most });
    }
    // Numbers of 32 bits are exact as f64.
    let word = |bytes: &[u8]| {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        f64::from(u32::from_le_bytes(four))
    };
    let mut words = vec![0.0; length.div_ceil(4)];
    words.iter_mut().zip(said.chunks(4)).for_each(|(to, bytes)| *to = word(bytes));
    transport.broadcast(&mut everyone, 0, &mut words)?;
    let mut heard: Vec<u8> = words.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect();
    heard.truncate(length);
    Ok(heard)
}

/// Tells all other ranks that this one refuses the next part of a run.
pub fn refuse<L: Link>(transport: &Processes<L>, refusal: &Refusal) {
    transport.control().say(told(refusal));
}

/// Says where this rank is when the launcher is ending the process and the rank itself says nothing, because it computes
/// or is in a call that does not return.
struct Watch {
    over: Arc<AtomicBool>,
}

/// From the launcher's signal: longer than a rank takes that can still report, shorter than the launcher waits.
const LAST_MOMENT: Duration = Duration::from_millis(650);

impl Watch {
    fn start(rank: usize, shared: &Arc<Shared>) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let (seen, shared) = (Arc::clone(&over), Arc::clone(shared));
        // Without it, a report may be missing and nothing else.
        let _ = thread::Builder::new().name("watch".to_string()).spawn(move || {
            while !shared.options.stop.is_raised() && !seen.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(20));
            }
            thread::sleep(LAST_MOMENT);
            if !seen.load(Ordering::SeqCst) {
                let Shared { workload, board, .. } = &*shared;
                let was = board.report(&workload.problem, &workload.program).swap_remove(rank);
                // Nobody may be there to read it any more.
                let _ = writeln!(std::io::stderr(), "{was}; {}", TransportError::Ending);
            }
        });
        Watch { over }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

/// Why a walk ended early.
enum Ended {
    Refused(Refusal),
    Failed(Cause),
}

impl<E: Into<Cause>> From<E> for Ended {
    fn from(cause: E) -> Ended {
        Ended::Failed(cause.into())
    }
}

/// What a rank says that refuses the run. No row has begun, so that its place in it can be the exit status.
fn told(refusal: &Refusal) -> LastWords {
    let (index, state) = (refusal.exit_status().into(), State::Refused as u8);
    LastWords { index, state, cause: refusal.to_string(), ..LastWords::default() }
}

/// The refusal of a rank that reads in `words` that rank `rank` refused the run.
fn refused_by(rank: usize, words: &LastWords) -> Option<Refusal> {
    let status = words.index.try_into().unwrap_or(2);
    (words.state == State::Refused as u8).then_some(Refusal::Elsewhere { rank, status })
}

/// One rank's way through the run.
struct Rank<'a> {
    rank: usize,
    shared: &'a Shared,
    everyone: Group,
    name: &'static str,
    missed: Missed,
}

impl Rank<'_> {
    fn walk(&mut self, transport: &mut dyn Transport, observer: &mut dyn Observer) -> Result<Ending, Ended> {
        // To the end of the run, whatever that is.
        let _held = self.agree(transport)?;
        #[cfg(feature = "cuda")]
        if self.shared.options.nccl {
            return self.walk_over_nccl(transport, observer);
        }
        self.train(transport, &TensorPath::Host, observer)
    }

    /// What one rank does for all of them before the first step: each looks through a share of the files of the checkpoint
    /// that is gone on from, and rank 0 takes the folder of those to come.
    fn prepare(&self) -> Result<Option<Held>, Refusal> {
        self.shared.options.check_resumed(self.rank, self.everyone.size())?;
        match self.rank {
            0 => Ok(self.shared.options.hold_folder()?),
            _ => Ok(None),
        }
    }

    /// The same, with tensors of GPUs over NCCL.
    #[cfg(feature = "cuda")]
    fn walk_over_nccl(
        &mut self,
        transport: &mut dyn Transport,
        observer: &mut dyn Observer,
    ) -> Result<Ending, Ended> {
        let Shared { workload, options, board, .. } = self.shared;
        let refused = |reason: String| Ended::Refused(Refusal::Device { reason });
        if options.device == Device::Cpu {
            return Err(refused(
                "NCCL transfers tensors of GPUs: give --backend cuda with --transport nccl".to_string(),
            ));
        }
        // With either, a call waits for other ranks where no patience ends it.
        for variable in ["NCCL_COMM_BLOCKING", "CUDA_LAUNCH_BLOCKING"] {
            if std::env::var_os(variable).is_some_and(|value| value == "1") {
                return Err(refused(format!(
                    "with {variable}=1 a call can wait for other ranks for ever: unset it, or do not use \
                     --transport nccl"
                )));
            }
        }
        let position = workload.position(self.rank);
        let mut sums = Gradients::new(position, &workload.places(), None).all_groups();
        sums.push(position.group(Axis::Tensor));
        let (rings, deals) = (vec![position.group(Axis::Context)], vec![position.group(Axis::Expert)]);
        let copies = workload.copies_to_host(position.rank);
        let connections = Connections { links: workload.links(), sums, rings, deals, copies };
        nccl::check_connections(&connections, self.rank).map_err(|error| refused(error.to_string()))?;
        let library = nccl::Library::load().map_err(|error| refused(error.to_string()))?;
        let opening = crate::backend::cuda::Opening { graphs: options.cuda_graphs, ..Default::default() };
        let card =
            crate::backend::cuda::open_as(options.device, opening).map_err(|error| refused(error.to_string()))?;
        let patience = options.transport.patience;
        board.note_state(self.rank, State::Connecting);
        let started = Nccl::start(transport, library, Arc::clone(&card), connections, patience);
        let mut carrier = started.map_err(|error| match error {
            StartError::Control(error) => Ended::Failed(error.into()),
            error => match error.transport() {
                Some(error) => Ended::Failed(error.clone().into()),
                None => refused(error.to_string()),
            },
        })?;
        board.note_state(self.rank, State::Starting);
        self.name = "nccl";
        let report = self.train(&mut carrier, &TensorPath::Card(card), observer)?;
        // All is done and measured: what fails while communicators are given back takes nothing of that away.
        let _ = carrier.finish();
        Ok(report)
    }

    fn train(
        &mut self,
        transport: &mut dyn Transport,
        tensor_path: &TensorPath,
        observer: &mut dyn Observer,
    ) -> Result<Ending, Ended> {
        let Shared { workload, options, board, .. } = self.shared;
        let rank = self.rank;
        let mut rank_executor = rank_executor(rank, self.shared, tensor_path)?;
        let mut coordinator = Coordinator::new(self.shared, self.name, usize::MAX);
        let steps = self.steps(transport, &mut rank_executor, &mut coordinator, observer);
        let (done, paused) = steps.inspect_err(|_| rank_executor.leave())?;
        let memory = memory_of(rank, &rank_executor.store.meter, rank_executor.backend.device_bytes(), workload);
        let mut numbers = numbers_of(&memory);
        numbers.push(self.missed.exchanges().map_or(-1.0, |exchanges| exchanges as f64));
        let all = transport.gather(&mut self.everyone, 0, numbers)?;
        transport.barrier()?;
        board.note_state(rank, State::Ended);
        let Some(all) = all else { return Ok(Ending::Other { rank, stopped: done < options.steps, paused }) };
        let memory = |(rank, numbers): (usize, &Vec<f64>)| {
            let told = numbers.split_last().and_then(|(missed, memory)| Some((*missed, memory_from(memory)?)));
            let Some((missed, memory)) = told else {
                return Err(Cause::WrongRecord { rank, found: numbers.len(), expected: "7".to_string() });
            };
            if missed >= 0.0 {
                self.shared.note_missed_fault(rank, missed as u64);
            }
            Ok(Some((memory, BTreeMap::new())))
        };
        coordinator.paused = paused;
        coordinator.ended = all.iter().enumerate().map(memory).collect::<Result<_, Cause>>()?;
        Ok(Ending::First(Box::new(coordinator.report())))
    }

    /// All steps of a rank and the last checkpoint. Gives the training steps that are made then, and whether the run pauses.
    fn steps(
        &mut self,
        transport: &mut dyn Transport,
        rank_executor: &mut RankExecutor<'_>,
        coordinator: &mut Coordinator<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(u32, bool), Ended> {
        let Shared { workload, options, board, .. } = self.shared;
        let rank = self.rank;
        let row = workload.row(rank);
        let recording = Recording::of(options, workload);
        let (mut done, mut paused) = (rank_executor.first_step, false);
        for step in rank_executor.first_step.. {
            board.note(rank, step, 0, State::Between);
            self.everyone.begin(step);
            rank_executor.prepare(step);
            // Whoever was asked to stop says so to all: then all stop after the same step.
            let pauses = options.pausing.is_raised() && step.is_multiple_of(options.saves_every().max(1));
            let ends = step >= options.steps || options.stop.is_raised();
            // And whoever was asked to begin or to end recording.
            let mut votes = [ends, pauses, recording.is_asked()].map(|vote| f32::from(u8::from(vote)));
            transport.all_reduce(&mut self.everyone, &mut votes, Reduction::Max)?;
            let [ends, pauses, asked] = votes.map(|vote| vote > 0.0);
            if ends || pauses {
                paused = !ends;
                break;
            }
            let recorded = recording.decide(step, asked);
            for peer in (0..transport.world()).filter(|peer| *peer != rank) {
                board.note(peer, step, 0, State::Lost);
            }
            let ready_ns = rank_executor.now();
            let record = rank_executor.whole_step(step, ready_ns, recorded, transport)?;
            board.note(rank, step, row.len(), State::Between);
            for record in self.gather(transport, record, &mut coordinator.hosts)? {
                coordinator.note(record, observer);
            }
            done = step + 1;
            rank_executor.after_step(done, transport)?;
        }
        rank_executor.finish(done, transport)?;
        Ok((done, paused))
    }

    /// Whether all processes run the same thing, and each has found all well that it alone has looked at; then what this
    /// one holds for the run's life.
    fn agree(&mut self, transport: &mut dyn Transport) -> Result<Option<Held>, Ended> {
        let Shared { workload, options, .. } = self.shared;
        let what = format!(
            "{:?} {:?} {:?} {} {} {:?}",
            workload.plan_digest,
            workload.program,
            workload.computation,
            options.steps,
            options.seed,
            (options.optimizer, options.clip_norm, &options.saving, options.first_step(), options.keep),
        );
        let evaluation = (options.evaluate_every, options.evaluate_steps, options.measure_norm);
        let data = self.shared.batches.as_ref().map(|batches| (batches.digest(), batches.validation_windows()));
        let what = format!("{what} {evaluation:?} {data:?}");
        let digest = what.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let prepared = self.prepare();
        // Halves of 32 bits are exact as f64.
        let own = [
            (digest >> 32) as f64,
            (digest & 0xffff_ffff) as f64,
            prepared.as_ref().err().map_or(0.0, |refusal| refusal.exit_status().into()),
        ];
        let counts = vec![own.len(); self.everyone.size()];
        let all = transport.all_gather(&mut self.everyone, &own, &counts)?;
        let (all, _) = all.as_chunks::<3>();
        if let Some(rank) = all.iter().position(|other| other[..2] != all[0][..2]) {
            return Err(Ended::Refused(Refusal::Disagree { rank }));
        }
        let elsewhere = all.iter().enumerate().find(|(_, [.., status])| *status > 0.0);
        match (prepared, elsewhere) {
            (Err(refusal), _) => Err(Ended::Refused(refusal)),
            (Ok(_), Some((rank, [.., status]))) => {
                Err(Ended::Refused(Refusal::Elsewhere { rank, status: *status as u8 }))
            }
            (Ok(held), None) => Ok(held),
        }
    }

    /// Every rank's record, on rank 0, in rank 0's time; `hosts` learns by rank whose clock it has, as a number.
    fn gather(
        &mut self,
        transport: &mut dyn Transport,
        record: StepRecord,
        hosts: &mut [usize],
    ) -> Result<Vec<StepRecord>, Ended> {
        let (step, opened) = (record.step, record.ready_ns);
        let clock = self.shared.clock;
        let opened_on_host = clock.start_ns.saturating_add(opened);
        // Nanoseconds of a run are exact as f64 for 104 days.
        let since = |time: Nanos| time.saturating_sub(opened) as f64;
        let pairs = 4 + record.spans.len() + record.losses.len() + NUMBERS / 2 * record.collectives.len();
        let mut numbers: Vec<f64> = Vec::with_capacity(2 * pairs);
        // Halves of 32 bits are exact as f64.
        numbers.extend([clock.host, opened_on_host].into_iter().flat_map(halves));
        // Below 0: none. Bytes of one machine are exact as f64.
        numbers.extend([record.gradient_norm.unwrap_or(-1.0), record.peak_bytes as f64]);
        numbers.extend([record.validation.len() as f64, record.collectives.len() as f64]);
        numbers.extend(record.validation.iter().flat_map(|(microbatch, loss)| [f64::from(*microbatch), *loss]));
        numbers.extend(record.spans.iter().flat_map(|(start, end)| [since(*start), since(*end)]));
        numbers.extend(record.collectives.iter().flat_map(|noted| noted.numbers(opened)));
        numbers.extend(record.losses.iter().flat_map(|(microbatch, loss)| [f64::from(*microbatch), *loss]));
        let Some(all) = transport.gather(&mut self.everyone, 0, numbers)? else { return Ok(Vec::new()) };
        let workload = &self.shared.workload;
        let mut known: Vec<u64> = vec![clock.host];
        let mut parts = Vec::with_capacity(all.len());
        let mut first = opened;
        for (rank, numbers) in all.iter().enumerate() {
            let (pairs, rest) = numbers.as_chunks::<2>();
            let Some(part) = Part::of(pairs, workload.row(rank).len()).filter(|_| rest.is_empty()) else {
                let expected = format!(
                    "eight, two for each of {} steps and for each loss, and {NUMBERS} for each collective",
                    workload.row(rank).len()
                );
                return Err(Cause::WrongRecord { rank, found: numbers.len(), expected }.into());
            };
            let (host, began) = (of_halves(part.host), of_halves(part.began));
            // In rank 0's time, where the clock is the same.
            let began = if host == clock.host { began.saturating_sub(clock.start_ns) } else { opened };
            first = first.min(began);
            hosts[rank] = known.iter().position(|known| *known == host).unwrap_or_else(|| {
                known.push(host);
                known.len() - 1
            });
            parts.push((rank, began, part));
        }
        let told = |(rank, opened, part): (usize, Nanos, Part<'_>)| {
            let ended = |[start, end]: &[f64; 2]| (opened + *start as Nanos, opened + *end as Nanos);
            let losses_of = |losses: &[[f64; 2]]| losses.iter().map(|[at, loss]| (*at as u32, *loss)).collect();
            StepRecord {
                rank,
                step,
                // The step begins with the first that has heard so.
                ready_ns: first,
                spans: part.spans.iter().map(ended).collect(),
                recorded: record.recorded,
                collectives: part.collectives.iter().filter_map(|noted| Noted::of_numbers(noted, opened)).collect(),
                losses: losses_of(part.losses),
                validation: losses_of(part.validation),
                gradient_norm: (part.norm >= 0.0).then_some(part.norm),
                peak_bytes: part.peak as u64,
            }
        };
        Ok(parts.into_iter().map(told).collect())
    }
}

/// What a rank tells of a step, as numbers by twos.
struct Part<'n> {
    /// Halves of the host's name.
    host: [f64; 2],
    /// Halves of when the step began, by the host's clock.
    began: [f64; 2],
    /// Below 0: none.
    norm: f64,
    peak: f64,
    validation: &'n [[f64; 2]],
    spans: &'n [[f64; 2]],
    collectives: &'n [[f64; NUMBERS]],
    losses: &'n [[f64; 2]],
}

impl<'n> Part<'n> {
    /// Of a rank whose row has so many `steps`.
    fn of(pairs: &'n [[f64; 2]], steps: usize) -> Option<Part<'n>> {
        let ([host, began, [norm, peak], [evaluated, noted]], pairs) = pairs.split_first_chunk::<4>()?;
        let (validation, pairs) = pairs.split_at_checked(*evaluated as usize)?;
        let (spans, pairs) = pairs.split_at_checked(steps)?;
        let (collectives, losses) = pairs.split_at_checked((*noted as usize).checked_mul(NUMBERS / 2)?)?;
        let (collectives, _) = collectives.as_flattened().as_chunks::<NUMBERS>();
        Some(Part { host: *host, began: *began, norm: *norm, peak: *peak, validation, spans, collectives, losses })
    }
}

fn halves(number: u64) -> [f64; 2] {
    [(number >> 32) as f64, (number & 0xffff_ffff) as f64]
}

fn of_halves([high, low]: [f64; 2]) -> u64 {
    ((high as u64) << 32) | low as u64
}

fn numbers_of(memory: &RankMemory) -> Vec<f64> {
    let RankMemory {
        high_water_bytes,
        persistent_bytes,
        activation_bytes,
        transfer_bytes,
        host_bytes,
        predicted_bytes,
        device_bytes,
    } = *memory;
    // Bytes of one machine are exact as f64.
    [high_water_bytes, persistent_bytes, activation_bytes, transfer_bytes, host_bytes, predicted_bytes, device_bytes]
        .map(|bytes| bytes as f64)
        .to_vec()
}

fn memory_from(numbers: &[f64]) -> Option<RankMemory> {
    let numbers = <[f64; 7]>::try_from(numbers).ok()?.map(|bytes| bytes as u64);
    let [
        high_water_bytes,
        persistent_bytes,
        activation_bytes,
        transfer_bytes,
        host_bytes,
        predicted_bytes,
        device_bytes,
    ] = numbers;
    Some(RankMemory {
        high_water_bytes,
        persistent_bytes,
        activation_bytes,
        transfer_bytes,
        host_bytes,
        predicted_bytes,
        device_bytes,
    })
}

/// Tells the others, hears where they were, and puts the report together on the lowest rank that is there.
fn failed<L: Link>(rank: usize, cause: Cause, shared: &Shared, control: &Control<L>) -> RunError {
    let Shared { workload, options, board, .. } = shared;
    let failed_at = Instant::now();
    let follows = |cause: &Cause| {
        matches!(cause.transport(), Some(TransportError::Aborted | TransportError::PeerLost { .. }))
            || matches!(cause.transport(), Some(TransportError::Ending))
    };
    let was = board.report(&workload.problem, &workload.program).swap_remove(rank);
    let said = if follows(&cause) { String::new() } else { cause.to_string() };
    control.say(LastWords {
        training_step: was.training_step,
        index: was.index as u32,
        state: if follows(&cause) { was.state as u8 } else { State::Failed as u8 },
        cause: said,
    });
    if !follows(&cause) {
        board.note_state(rank, State::Failed);
        if let Some(kept) = &options.restarting.kept {
            kept.note_own_failure(format!("rank {rank} failed: {cause}"), !cause.may_pass());
        }
    }
    let (words, lost) = control.listen(options.grace);
    let ended_after: Duration = failed_at.elapsed();
    // Others may be waiting for this rank's part.
    let left = if control.is_ending() { Duration::ZERO } else { options.grace.saturating_sub(failed_at.elapsed()) };
    let gone: Vec<usize> = lost.keys().copied().collect();
    let checkpoint = shared.settled_checkpoint(left, Some(&gone[..]).filter(|gone| !gone.is_empty()));
    let refusal = words.iter().find_map(|(peer, words)| refused_by(*peer, words));
    if let Some(refusal) = refusal.filter(|_| follows(&cause)) {
        return refusal.into();
    }
    for (peer, words) in &words {
        board.note(*peer, words.training_step, words.index as usize, State::of(words.state));
    }
    if let Some(reporter) = words.keys().next().copied().filter(|peer| *peer < rank) {
        return RunError::Elsewhere { rank, reporter };
    }
    let silent: Vec<usize> = (0..workload.world())
        .filter(|peer| *peer != rank && !words.contains_key(peer) && !lost.contains_key(peer))
        .collect();
    let (first, cause) = if !follows(&cause) {
        (rank, cause)
    } else if let Some((peer, reason)) = lost.first_key_value() {
        (*peer, Cause::Told { message: reason.clone() })
    } else if let Some((peer, words)) = words.iter().find(|(_, words)| !words.cause.is_empty()) {
        (*peer, Cause::Told { message: words.cause.clone() })
    } else if control.is_ending() {
        // Nobody has said why: the launcher has seen a process die, most likely the one that is silent.
        let first = if let [peer] = &silent[..] { *peer } else { rank };
        (first, Cause::Transport(TransportError::Ending))
    } else {
        (rank, cause)
    };
    let ranks = board.report(&workload.problem, &workload.program);
    RunError::Failed(Box::new(Failure { rank: first, cause, ranks, silent, checkpoint, ended_after }))
}
