//! Processes over MPI, the engine that clusters already have.
//!
//! Frames travel as bytes. An MPI count is a 32-bit number, so a long frame goes in pieces: the MPI tag says whether
//! more follow. Nothing is received before it is known to be there, so no call of MPI waits, and every wait is the
//! engine's own, with its time-out.
//!
//! MPI cannot say that a process has died: its launcher sees it and ends all others. Open MPI's `mpirun` sends SIGTERM
//! and, a second later at most, SIGKILL; in between, ranks that wait report where they are ([`Event::Ending`]). A call
//! of MPI that never returns, because it reads from the process that has died, keeps its rank from more than a last line
//! of its own.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::request::{Request, StaticScope};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, Destination, MatchedReceiveVec, Source};

use super::processes::{Event, Link};
use crate::runner::StopFlag;

/// The most bytes of one MPI message.
const PIECE: usize = 1 << 30;

/// MPI tags: whether more of the frame follows.
const LAST: i32 = 0;
const MORE: i32 = 1;

/// Between two looks while nothing happens: short beside a transfer, long enough to leave the core to others.
const PAUSE: Duration = Duration::from_micros(20);

/// A wait that sees nothing for so long after the launcher's signal will see nothing more.
const ENDING: Duration = Duration::from_millis(100);

/// A send that MPI may still be reading from.
struct Sending {
    request: Request<'static, [u8], StaticScope>,
    bytes: *mut [u8],
}

/// One process' end of MPI.
pub struct Mpi {
    rank: usize,
    size: usize,
    world: SimpleCommunicator,
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
#[error("MPI cannot be started: it is once in a process, by `mpirun` or a launcher that knows MPI")]
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

    /// One complete frame, where there is one.
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

impl Link for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.size
    }

    fn push(&mut self, peer: usize, frame: Vec<u8>) {
        let pieces = frame.len().div_ceil(PIECE).max(1);
        for (index, piece) in frame.chunks(PIECE).enumerate() {
            let bytes: *mut [u8] = Box::into_raw(piece.to_vec().into_boxed_slice());
            let tag = if index + 1 == pieces { LAST } else { MORE };
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
            thread::sleep(PAUSE);
        }
    }

    fn flush(&mut self, wait: Duration) {
        let started = Instant::now();
        self.reap();
        while !self.sending.is_empty() && started.elapsed() < wait {
            thread::sleep(PAUSE);
            self.reap();
        }
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
        // MPI may still read from the memory of these: it goes with the process.
        self.sending.drain(..).for_each(std::mem::forget);
    }
}
