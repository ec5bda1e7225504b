//! Processes over MPI, the engine that clusters already have.
//!
//! Frames travel as bytes. An MPI count is a 32-bit number, so a long frame goes in pieces: the MPI tag says whether
//! more follow. Nothing is received before it is known to be there, so no call of MPI waits, and every wait is the
//! engine's own, with its time-out.
//!
//! # Collectives
//! Those that only move values, all-gather, broadcast and barrier, are MPI's own, started without waiting. Sums are not:
//! MPI leaves open in which order it adds, and Open MPI's order is another for every size, so its sums of four ranks are
//! not [those that are promised](super::collectives) beyond a few values (`native/examples/mpi_collectives.rs` says so, and
//! measures both). The data of a sum goes to where it is added as parcels, and from there by MPI's all-gather.
//!
//! This is for all ranks in order. Other groups would need a communicator each, and MPI makes one in a call that waits for
//! the members without end: with Open MPI 4.1, two groups that made theirs at once were seen to wait for ever. Groups keep
//! to parcels, whose waits end.
//!
//! # When a process dies
//! MPI cannot say that a process has died: its launcher sees it and ends all others. Open MPI's `mpirun` sends SIGTERM
//! and, a second later at most, SIGKILL; in between, ranks that wait report where they are ([`Event::Ending`]). A call
//! of MPI that never returns, because it reads from the process that has died, keeps its rank from more than a last line
//! of its own.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ::mpi::Threading;
use ::mpi::collective::{CommunicatorCollectives, Root};
use ::mpi::datatype::PartitionMut;
use ::mpi::environment::Universe;
use ::mpi::request::{Request, StaticScope};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, Destination, Equivalence, MatchedReceiveVec, Source};

use super::Buffer;
use super::collectives::{Call, Operation};
use super::processes::{Event, Link, pause};
use crate::runner::StopFlag;

/// The most bytes of one MPI message.
const PIECE: usize = 1 << 30;

/// MPI tags: whether more of the frame follows.
const LAST: i32 = 0;
const MORE: i32 = 1;

/// A wait that sees nothing for so long after the launcher's signal will see nothing more.
const ENDING: Duration = Duration::from_millis(250);

/// A send that MPI may still be reading from.
struct Sending {
    request: Request<'static, [u8], StaticScope>,
    bytes: *mut [u8],
}

/// A collective of MPI's own that goes on. MPI uses its memory until `has_ended` says that it has.
struct Going {
    has_ended: Box<dyn FnMut() -> bool>,
    /// Takes the memory back.
    result: Box<dyn FnOnce() -> Buffer>,
}

/// One process' end of MPI.
pub struct Mpi {
    rank: usize,
    size: usize,
    world: SimpleCommunicator,
    going: Option<Going>,
    /// Ends MPI when dropped; none once that has happened or must not.
    universe: Option<Universe>,
    sending: VecDeque<Sending>,
    /// By sender: pieces of a frame that is not complete.
    partial: Vec<Vec<u8>>,
    ending: StopFlag,
    quiet_since: Option<Instant>,
}

// SAFETY: what is not `Send` are handles of MPI, which has no thread of its own to mind: it was started with
// `Threading::Serialized`, under which any thread may call it while no other does, and `&mut self` is needed for each
// call here.
unsafe impl Send for Mpi {}

/// MPI was started before, in this process, or cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("MPI cannot be started: start it once per process, with `mpirun` or another MPI launcher")]
pub struct NotStarted;

impl Mpi {
    /// Starts MPI. `ending` is raised when the launcher asks this process to end.
    ///
    /// # Errors
    /// [`NotStarted`].
    pub fn start(ending: StopFlag) -> Result<Mpi, NotStarted> {
        let (universe, _) = ::mpi::initialize_with_threading(Threading::Serialized).ok_or(NotStarted)?;
        let world = universe.world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        Ok(Mpi {
            rank,
            size,
            world,
            going: None,
            universe: Some(universe),
            sending: VecDeque::new(),
            partial: vec![Vec::new(); size],
            ending,
            quiet_since: None,
        })
    }

    /// Gives back the memory of sends that have ended.
    fn reap(&mut self) {
        for _ in 0..self.sending.len() {
            let Some(Sending { request, bytes }) = self.sending.pop_front() else { return };
            match request.test() {
                // SAFETY: `bytes` came from `Box::into_raw`, is freed only here, and MPI is done with it.
                Ok(_) => drop(unsafe { Box::from_raw(bytes) }),
                Err(request) => self.sending.push_back(Sending { request, bytes }),
            }
        }
    }

    /// Starts a collective of all ranks; nothing for one that is not MPI's own.
    fn started<T: Equivalence + Default + Clone + 'static>(
        &self,
        call: &Call<'_>,
        values: Vec<T>,
        pack: fn(Vec<T>) -> Buffer,
    ) -> Option<Going> {
        Some(match call.operation {
            Operation::AllGather => {
                let counts: Vec<i32> = call.counts.iter().map(|count| *count as i32).collect();
                let starts = counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + *count)));
                let starts: Vec<i32> = starts.collect();
                let input: *mut [T] = Box::into_raw(values.into_boxed_slice());
                let total = call.counts.iter().sum();
                let output: *mut [T] = Box::into_raw(vec![T::default(); total].into_boxed_slice());
                // SAFETY: nobody else holds `output`, and it is freed only after the request has ended, like the parts.
                let parts = PartitionMut::new(unsafe { &mut *output }, counts, starts);
                let parts = Box::into_raw(Box::new(parts));
                // SAFETY: as above; `input` is only read.
                let (sent, received) = unsafe { (&*input, &mut *parts) };
                going(self.world.immediate_all_gather_varcount_into(StaticScope, sent, received), move || {
                    // SAFETY: all three came from `Box::into_raw`, are freed only here, and MPI is done with them.
                    unsafe {
                        drop(Box::from_raw(parts));
                        drop(Box::from_raw(input));
                        pack(Box::from_raw(output).into_vec())
                    }
                })
            }
            Operation::Broadcast => {
                let bytes: *mut [T] = Box::into_raw(values.into_boxed_slice());
                // SAFETY: nobody else holds the memory, and it is freed only after the request has ended.
                let shared: &'static mut [T] = unsafe { &mut *bytes };
                let root = self.world.process_at_rank(call.root as i32);
                going(root.immediate_broadcast_into(StaticScope, shared), move || {
                    // SAFETY: it came from `Box::into_raw`, is freed only here, and MPI is done with it.
                    pack(unsafe { Box::from_raw(bytes) }.into_vec())
                })
            }
            Operation::Barrier => going(self.world.immediate_barrier(), move || pack(Vec::new())),
            _ => return None,
        })
    }

    /// One complete frame, if there is one.
    fn take(&mut self) -> Option<Event> {
        while let Some(probed) = self.world.any_process().immediate_matched_probe() {
            let peer = probed.1.source_rank() as usize;
            let more = probed.1.tag() == MORE;
            let (mut piece, _): (Vec<u8>, _) = probed.matched_receive_vec();
            let partial = &mut self.partial[peer];
            if more || !partial.is_empty() {
                partial.append(&mut piece);
            } else {
                *partial = piece;
            }
            if !more {
                return Some(Event::Frame(peer, std::mem::take(partial)));
            }
        }
        None
    }
}

/// What goes on as `request`.
fn going<D: ?Sized>(request: Request<'static, D, StaticScope>, result: impl FnOnce() -> Buffer + 'static) -> Going {
    let mut request = Some(request);
    let has_ended = move || match request.take().map(Request::test) {
        Some(Err(left)) => {
            request = Some(left);
            false
        }
        _ => true,
    };
    Going { has_ended: Box::new(has_ended), result: Box::new(result) }
}

impl Link for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.size
    }

    fn push(&mut self, peer: usize, frame: Vec<u8>) {
        let mut rest = frame;
        while !rest.is_empty() {
            let after = if rest.len() > PIECE { rest.split_off(PIECE) } else { Vec::new() };
            let tag = if after.is_empty() { LAST } else { MORE };
            let bytes: *mut [u8] = Box::into_raw(rest.into_boxed_slice());
            rest = after;
            // SAFETY: the memory stays until `reap` sees that MPI is done with it, and nothing writes to it.
            let shared: &'static [u8] = unsafe { &*bytes };
            let request = self.world.process_at_rank(peer as i32).immediate_send_with_tag(StaticScope, shared, tag);
            self.sending.push_back(Sending { request, bytes });
        }
        self.reap();
    }

    fn pull(&mut self, wait: Duration) -> Option<Event> {
        let started = Instant::now();
        loop {
            if let Some(event) = self.take() {
                self.quiet_since = None;
                return Some(event);
            }
            self.reap();
            if self.ending.is_raised() && self.quiet_since.get_or_insert_with(Instant::now).elapsed() > ENDING {
                return Some(Event::Ending);
            }
            if started.elapsed() >= wait {
                return None;
            }
            pause(started.elapsed());
        }
    }

    fn flush(&mut self, wait: Duration) {
        let started = Instant::now();
        self.reap();
        while !self.sending.is_empty() && started.elapsed() < wait {
            pause(started.elapsed());
            self.reap();
        }
    }

    fn has_own(&self, operation: Operation) -> bool {
        matches!(operation, Operation::AllGather | Operation::Broadcast | Operation::Barrier)
    }

    /// All ranks in order; and MPI's counts and displacements are 32-bit numbers.
    fn suits_own(&self, ranks: &[usize], values: usize) -> bool {
        let everyone = ranks.len() == self.size && ranks.iter().enumerate().all(|(member, rank)| member == *rank);
        everyone && values <= i32::MAX as usize
    }

    fn start_own(&mut self, call: &Call<'_>, input: Buffer) {
        self.going = match input {
            Buffer::F32(values) => self.started(call, values, Buffer::F32),
            Buffer::F64(values) => self.started(call, values, Buffer::F64),
            // A collective of a run adds up in f32 or f64.
            Buffer::Bf16(_) | Buffer::OnCard(_) | Buffer::Nothing => self.started(call, Vec::new(), Buffer::F32),
        };
    }

    fn finish_own(&mut self) -> Option<Buffer> {
        let mut going = self.going.take()?;
        if (going.has_ended)() {
            return Some((going.result)());
        }
        self.going = Some(going);
        None
    }

    fn launcher_ends_all(&self) -> bool {
        true
    }

    fn is_ending(&self) -> bool {
        self.ending.is_raised()
    }

    fn abandon(&mut self) {
        // To end MPI in good order would wait for the others.
        std::mem::forget(self.universe.take());
    }

    fn name(&self) -> &'static str {
        "mpi"
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // A run that has failed has said what it can; every moment counts before the launcher kills.
        if self.universe.is_some() {
            self.flush(Duration::from_secs(1));
        }
        if !self.sending.is_empty() {
            self.abandon();
        }
        // MPI may still use the memory of these: it goes with the process.
        self.sending.drain(..).for_each(std::mem::forget);
        std::mem::forget(self.going.take());
    }
}
