//! NCCL: transfers between GPUs, over NVLink, PCIe or the network.
//!
//! - In: parcels and collectives with memory of cards.
//! - Out: operations in queues of the card.
//! - Knows: the library, which is loaded at run time. No other module calls it.
//!
//! - No call blocks: communicators are created non-blocking, and a wait polls the error of the communicator until a
//!   deadline. At the deadline, or when another rank gives up, the communicator is aborted, which also ends what is
//!   queued on the GPU.
//! - Each direction between two ranks has one communicator, so that sends never wait for receives: NCCL runs the
//!   operations of one communicator in order.
//! - Ranks create communicators in an order that follows from their numbers, so no two wait for each other.
#![allow(unsafe_code, reason = "calls of a C library on memory of a GPU; each says why it is sound")]

mod engine;
mod library;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use engine::{Connections, Nccl, StartError};
pub use library::{
    Code, Config, DataType, Functions, IN_PROGRESS, Library, RawComm, RawStream, Reduce, SUCCESS, UniqueId, Version,
};

use crate::backend::cuda::card::{Card, CardError, Memory};
use crate::backend::cuda::driver::MOST_CONNECTIONS;
use crate::transport::{TransportError, listed};

/// Why NCCL did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// There is no library.
    #[error("{0}")]
    Missing(String),
    /// The library is older than what is written for here.
    #[error("NCCL {found} is too old: install {} or later (pip install nvidia-nccl-cu13)", Version::OLDEST)]
    TooOld {
        /// What was found.
        found: Version,
    },
    /// A call failed.
    #[error("{call} failed: {what}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Call {
        /// The function.
        call: &'static str,
        /// What its code means.
        what: String,
        /// What NCCL last complained of.
        detail: String,
    },
    /// Something did not end in time, and was aborted.
    #[error(
        "rank {rank} waited {:.1} s for {what} with rank {}; the communicator was aborted", waited.as_secs_f64(),
        listed(peers)
    )]
    TimedOut {
        /// This rank.
        rank: usize,
        /// The others of the communicator, of which any may be late.
        peers: Vec<usize>,
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// Two ranks exchange something that no plan has said before.
    #[error("there is no communicator from rank {from} to rank {to}: the program has no transfers between them")]
    NoLink {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// NCCL has no such collective.
    #[error("NCCL has no {operation}")]
    NoSuchCollective {
        /// Which.
        operation: String,
    },
    /// Another rank gave up.
    #[error("the run was ended by another rank")]
    Aborted,
    /// The run cannot go on, as the transport between the processes says.
    #[error(transparent)]
    Run(#[from] TransportError),
    /// Several ranks would share a GPU, which this library cannot.
    #[error(
        "ranks {ranks:?} are on one GPU, but NCCL {found} supports one rank per GPU: use a GPU for each rank, NCCL \
         {} or later with NCCL_MULTI_RANK_GPU_ENABLE=1, or run all ranks in one process (`--transport threads`)",
        Version::SHARES_GPUS
    )]
    SharedGpu {
        /// The ranks.
        ranks: Vec<usize>,
        /// The library's version.
        found: Version,
    },
    /// The same with a library that can, and was not told to.
    #[error(
        "ranks {ranks:?} are on one GPU: set NCCL_MULTI_RANK_GPU_ENABLE=1 to let NCCL {found} share it (experimental)"
    )]
    SharingOff {
        /// The ranks.
        ranks: Vec<usize>,
        /// The library's version.
        found: Version,
    },
    /// A person has set that queues share connections to the GPU, and one delays another.
    #[error(
        "CUDA_DEVICE_MAX_CONNECTIONS={connections}, but rank {rank} has {queues} queues: two queues that share a \
         connection can deadlock. Unset it, or do not use --transport nccl"
    )]
    TooFewConnections {
        /// What the variable says.
        connections: usize,
        /// This rank.
        rank: usize,
        /// Its queues.
        queues: usize,
    },
    /// The GPU failed.
    #[error(transparent)]
    Card(#[from] CardError),
}

/// Refuses ranks that share a GPU where `version` cannot serve them. `gpus` names the GPU of each rank.
///
/// # Errors
/// [`NcclError::SharedGpu`], [`NcclError::SharingOff`].
pub fn check_sharing(version: Version, gpus: &[String], enabled: bool) -> Result<(), NcclError> {
    for gpu in gpus {
        let ranks: Vec<usize> = (0..gpus.len()).filter(|rank| &gpus[*rank] == gpu).collect();
        if ranks.len() < 2 {
            continue;
        }
        if version < Version::SHARES_GPUS {
            return Err(NcclError::SharedGpu { ranks, found: version });
        }
        if !enabled {
            return Err(NcclError::SharingOff { ranks, found: version });
        }
    }
    Ok(())
}

/// Whether a person allows ranks to share a GPU.
pub fn sharing_enabled() -> bool {
    std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value.trim() == "1")
}

/// Refuses where `CUDA_DEVICE_MAX_CONNECTIONS` gives `rank` fewer connections than it has queues with `ties`. A queue on a
/// connection of others runs only when what was put there before has: a receive that waits on the card for its sender, and
/// the mark behind it, could keep back what that sender waits for, in whatever order both ranks asked for it. Where nobody
/// has set it, there are as many as a card can have.
///
/// # Errors
/// [`NcclError::TooFewConnections`].
pub fn check_connections(connections: &Connections, rank: usize) -> Result<(), NcclError> {
    let said = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().and_then(|value| value.trim().parse::<usize>().ok());
    let queues = connections.queues(rank);
    match said {
        Some(connections) if connections < queues.min(MOST_CONNECTIONS) => {
            Err(NcclError::TooFewConnections { connections, rank, queues })
        }
        _ => Ok(()),
    }
}

/// Ends the waits of every communicator that has it.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<AtomicBool>);

impl Ending {
    /// From now on every wait ends.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Looks after the run while a communicator is waited for: whether it can go on.
pub type Watch<'w> = dyn FnMut() -> Result<(), TransportError> + 'w;

/// Who waits for whom, and for how long.
#[derive(Clone, Debug)]
pub struct Patience {
    /// This rank.
    pub rank: usize,
    /// How long a wait may take.
    pub longest: Duration,
    /// Ends waits early.
    pub ending: Ending,
}

/// One member's end of a communicator.
pub struct Communicator {
    library: Arc<Library>,
    raw: RawComm,
    patience: Patience,
    /// The ranks at its other ends.
    peers: Vec<usize>,
    aborted: bool,
    /// What ends it, where it had to be ended.
    ending: Option<JoinHandle<()>>,
}

// SAFETY: NCCL lets one thread at a time use a communicator, and `&mut self` sees to that.
unsafe impl Send for Communicator {}

/// How long to sleep between two questions whether something has ended.
const PAUSE: Duration = Duration::from_micros(20);

/// How often a wait looks after the run.
const LOOK: Duration = Duration::from_millis(2);

/// A wait: since when, and when it last looked after the run.
struct Wait {
    begun: Instant,
    looked: Instant,
}

impl Wait {
    fn begin() -> Wait {
        let now = Instant::now();
        Wait { begun: now, looked: now }
    }
}

impl Communicator {
    /// Joins the communicator of `id` as `member` of `size`, with the ranks `peers`; returns when all members have.
    /// The GPU in
    /// use must be this rank's. Its calls take at most `blocks` blocks of the card, where there is a limit.
    ///
    /// # Errors
    /// [`NcclError`].
    pub fn join(
        library: &Arc<Library>,
        id: UniqueId,
        (member, size): (usize, usize),
        peers: Vec<usize>,
        blocks: Option<u8>,
        patience: Patience,
        watch: &mut Watch<'_>,
    ) -> Result<Communicator, NcclError> {
        let mut raw: RawComm = std::ptr::null_mut();
        let mut config = Config::not_blocking(blocks);
        // SAFETY: both pointers are valid during the call, which copies the configuration.
        let code =
            unsafe { (library.functions().init_rank_config)(&mut raw, size as i32, id, member as i32, &mut config) };
        library.check("ncclCommInitRankConfig", code, std::ptr::null_mut())?;
        let mut communicator =
            Communicator { library: Arc::clone(library), raw, patience, peers, aborted: false, ending: None };
        communicator.settle("joining a communicator", watch)?;
        Ok(communicator)
    }

    /// Asks for the communicator's error until the last call has ended.
    pub(super) fn settle(&mut self, what: &str, watch: &mut Watch<'_>) -> Result<(), NcclError> {
        let mut wait = Wait::begin();
        while self.check()? == IN_PROGRESS {
            self.be_patient(&mut wait, what, watch)?;
        }
        Ok(())
    }

    /// Waits for what `is_done` says, while no error turns up.
    pub(super) fn until(
        &mut self,
        what: &str,
        watch: &mut Watch<'_>,
        mut is_done: impl FnMut() -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        let mut wait = Wait::begin();
        while !is_done()? {
            self.check()?;
            self.be_patient(&mut wait, what, watch)?;
        }
        Ok(())
    }

    /// Asks for the communicator's error once: whether the last call is still going on.
    pub(super) fn check(&mut self) -> Result<Code, NcclError> {
        if self.aborted {
            return Err(NcclError::Aborted);
        }
        let mut state = SUCCESS;
        // SAFETY: the communicator is valid until it is aborted or destroyed, which ends this object.
        let code = unsafe { (self.library.functions().get_async_error)(self.raw, &mut state) };
        let failed = self
            .library
            .check("ncclCommGetAsyncError", code, self.raw)
            .and_then(|()| self.library.check("a transfer", state, self.raw));
        if failed.is_err() {
            self.abort();
        }
        failed.map(|()| state)
    }

    /// Sleeps a little; an error, and the end of the communicator, where that has been long enough or the run cannot go on.
    fn be_patient(&mut self, wait: &mut Wait, what: &str, watch: &mut Watch<'_>) -> Result<(), NcclError> {
        if self.patience.ending.is_raised() {
            self.abort();
            return Err(NcclError::Aborted);
        }
        if wait.looked.elapsed() >= LOOK {
            wait.looked = Instant::now();
            watch().inspect_err(|_| self.abort())?;
        }
        let waited = wait.begun.elapsed();
        if waited > self.patience.longest {
            self.abort();
            let (rank, peers) = (self.patience.rank, self.peers.clone());
            return Err(NcclError::TimedOut { rank, peers, what: what.to_string(), waited });
        }
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// Ends all that goes on in it, and does not wait for that: NCCL gives memory back meanwhile, which can wait for all
    /// kernels of the card, those of communicators among them that are yet to be ended. So all of a rank are ended side by
    /// side (<https://github.com/pytorch/pytorch/pull/150690> met the same).
    pub(super) fn abort(&mut self) {
        if !std::mem::replace(&mut self.aborted, true) {
            let (library, raw) = (Arc::clone(&self.library), Handle(self.raw));
            let abort = move || {
                let Handle(raw) = { raw };
                // SAFETY: the communicator is valid, and not used again.
                let _ = unsafe { (library.functions().abort)(raw) };
            };
            // Where there is no thread to be had, a process that ends takes its kernels with it.
            self.ending = std::thread::Builder::new().spawn(abort).ok();
        }
    }

    /// Waits until an end that was asked for has come, but no longer than until `deadline`.
    pub(super) fn await_end(&mut self, deadline: Instant) {
        let Some(ending) = self.ending.take() else { return };
        while !ending.is_finished() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
    }

    fn call(&mut self, name: &'static str, call: impl FnOnce(&Functions, RawComm) -> Code) -> Result<(), NcclError> {
        if self.aborted {
            return Err(NcclError::Aborted);
        }
        let code = call(self.library.functions(), self.raw);
        let called = self.library.check(name, code, self.raw);
        // A communicator that has failed takes nothing more: what it failed of says more than that.
        if called.is_err() {
            self.check()?;
        }
        called
    }

    /// Queues the send of `bytes` bytes at `from` to member `to`.
    ///
    /// # Safety
    /// The memory must be a GPU's, and stay until the stream has run what is queued now.
    ///
    /// # Errors
    /// [`NcclError`].
    pub unsafe fn send(&mut self, from: u64, bytes: u64, to: usize, stream: RawStream) -> Result<(), NcclError> {
        self.call("ncclSend", |functions, raw| {
            // SAFETY: as the caller promises.
            unsafe {
                (functions.send)(from as *const _, bytes as usize, DataType::Uint8 as i32, to as i32, raw, stream)
            }
        })
    }

    /// Queues the receive of `bytes` bytes from member `from`.
    ///
    /// # Safety
    /// As [`Communicator::send`].
    ///
    /// # Errors
    /// [`NcclError`].
    pub unsafe fn receive(&mut self, to: u64, bytes: u64, from: usize, stream: RawStream) -> Result<(), NcclError> {
        self.call("ncclRecv", |functions, raw| {
            // SAFETY: as the caller promises.
            unsafe {
                (functions.recv)(to as *mut _, bytes as usize, DataType::Uint8 as i32, from as i32, raw, stream)
            }
        })
    }

    /// Queues an all-reduce of `count` numbers, which may be in place.
    ///
    /// # Safety
    /// As [`Communicator::send`].
    ///
    /// # Errors
    /// [`NcclError`].
    pub unsafe fn all_reduce(
        &mut self,
        (from, to): (u64, u64),
        count: u64,
        (kind, reduce): (DataType, Reduce),
        stream: RawStream,
    ) -> Result<(), NcclError> {
        self.call("ncclAllReduce", |functions, raw| {
            // SAFETY: as the caller promises; NCCL allows one buffer for both.
            unsafe {
                let count = count as usize;
                (functions.all_reduce)(from as *const _, to as *mut _, count, kind as i32, reduce as i32, raw, stream)
            }
        })
    }

    /// Queues the reduction of `count` numbers, in place, to member `root`.
    ///
    /// # Safety
    /// As [`Communicator::send`].
    ///
    /// # Errors
    /// [`NcclError`].
    pub unsafe fn reduce(
        &mut self,
        at: u64,
        count: u64,
        root: usize,
        (kind, reduce): (DataType, Reduce),
        stream: RawStream,
    ) -> Result<(), NcclError> {
        self.call("ncclReduce", |functions, raw| {
            // SAFETY: as the caller promises; NCCL allows one buffer for both.
            unsafe {
                let (count, root) = (count as usize, root as i32);
                (functions.reduce)(at as *const _, at as *mut _, count, kind as i32, reduce as i32, root, raw, stream)
            }
        })
    }

    /// Queues the broadcast of `count` numbers of member `root`, in place.
    ///
    /// # Safety
    /// As [`Communicator::send`].
    ///
    /// # Errors
    /// [`NcclError`].
    pub unsafe fn broadcast(
        &mut self,
        at: u64,
        count: u64,
        root: usize,
        kind: DataType,
        stream: RawStream,
    ) -> Result<(), NcclError> {
        self.call("ncclBroadcast", |functions, raw| {
            // SAFETY: as the caller promises; NCCL allows one buffer for both.
            unsafe {
                let (count, root) = (count as usize, root as i32);
                (functions.broadcast)(at as *const _, at as *mut _, count, kind as i32, root, raw, stream)
            }
        })
    }

    /// Queues a reduce-scatter: the members' pieces of `piece` numbers are at `from`, this one's reduction goes to `to`:
    /// apart from them, or where its own piece lies.
    ///
    /// # Safety
    /// As [`Communicator::send`].
    ///
    /// # Errors
    /// [`NcclError`].
    pub unsafe fn reduce_scatter(
        &mut self,
        (from, to): (u64, u64),
        piece: u64,
        (kind, reduce): (DataType, Reduce),
        stream: RawStream,
    ) -> Result<(), NcclError> {
        self.call("ncclReduceScatter", |functions, raw| {
            // SAFETY: as the caller promises.
            unsafe {
                let (from, to, piece) = (from as *const _, to as *mut _, piece as usize);
                (functions.reduce_scatter)(from, to, piece, kind as i32, reduce as i32, raw, stream)
            }
        })
    }

    /// Queues an all-gather: this member's piece of `piece` numbers is at `from`, those of all go to `to`: apart from it,
    /// or so that its own piece stays.
    ///
    /// # Safety
    /// As [`Communicator::send`].
    ///
    /// # Errors
    /// [`NcclError`].
    pub unsafe fn all_gather(
        &mut self,
        (from, to): (u64, u64),
        piece: u64,
        kind: DataType,
        stream: RawStream,
    ) -> Result<(), NcclError> {
        self.call("ncclAllGather", |functions, raw| {
            // SAFETY: as the caller promises.
            unsafe {
                (functions.all_gather)(from as *const _, to as *mut _, piece as usize, kind as i32, raw, stream)
            }
        })
    }

    /// Says that no more is to come, waits for it, and gives the communicator back.
    ///
    /// # Errors
    /// [`NcclError`].
    pub fn finish(mut self, watch: &mut Watch<'_>) -> Result<(), NcclError> {
        self.call("ncclCommFinalize", |functions, raw| {
            // SAFETY: the communicator is valid.
            unsafe { (functions.finalize)(raw) }
        })?;
        self.settle("the end of a communicator", watch)?;
        // From here on there is nothing to abort.
        self.aborted = true;
        // SAFETY: finalised, and not used again.
        let code = unsafe { (self.library.functions().destroy)(self.raw) };
        self.library.check("ncclCommDestroy", code, std::ptr::null_mut())
    }
}

impl Drop for Communicator {
    /// One that was not finished has failed: what it still waits for will not come.
    fn drop(&mut self) {
        self.abort();
        self.await_end(Instant::now() + LONGEST_END);
    }
}

/// A communicator on its way to the thread that ends it.
struct Handle(RawComm);

// SAFETY: NCCL ends a communicator on any thread, and nobody else uses this one any more.
unsafe impl Send for Handle {}

/// How long a rank that has failed waits for its communicators: what is still not ended then ends with the process.
pub(super) const LONGEST_END: Duration = Duration::from_secs(5);

/// Runs `queue` with all its sends and receives as one group: they start together, so two ranks that exchange with each
/// other do not wait for each other. The communicators are yet to be settled.
///
/// # Errors
/// [`NcclError`] of the calls within, or of the group's end.
pub fn grouped(
    library: &Library,
    members: &mut [&mut Communicator],
    queue: impl FnOnce(&mut [&mut Communicator]) -> Result<(), NcclError>,
) -> Result<(), NcclError> {
    // SAFETY: takes nothing; the end below is called whatever happens between.
    library.check("ncclGroupStart", unsafe { (library.functions().group_start)() }, std::ptr::null_mut())?;
    let queued = queue(members);
    // SAFETY: a group was started.
    let ended = library.check("ncclGroupEnd", unsafe { (library.functions().group_end)() }, std::ptr::null_mut());
    queued.and(ended)
}

/// One rank alone: a message to itself and an all-reduce. Returns ‖found − expected‖, which is 0.
///
/// # Errors
/// [`NcclError`].
pub fn selftest(library: Arc<Library>, card: &Arc<dyn Card>) -> Result<f64, NcclError> {
    let values: Vec<f32> = (0..1000).map(|value| value as f32).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let from = Memory::holding(card, &bytes)?;
    let to = Memory::zeros(card, bytes.len() as u64)?;
    card.finish()?;
    let patience = Patience { rank: 0, longest: Duration::from_secs(60), ending: Ending::default() };
    let mut alone = || Ok(());
    let mut communicator =
        Communicator::join(&library, library.unique_id()?, (0, 1), vec![0], None, patience, &mut alone)?;
    let size = bytes.len() as u64;
    let (source, target) = (from.at().number(), to.at().number());
    let stream = card.stream();
    grouped(&library, &mut [&mut communicator], |members| {
        // SAFETY: both buffers have that size and live until the stream has been waited for, below.
        unsafe {
            members[0].send(source, size, 0, stream)?;
            members[0].receive(target, size, 0, stream)
        }
    })?;
    communicator.settle("a message", &mut alone)?;
    // SAFETY: as above.
    unsafe {
        communicator.all_reduce((target, target), values.len() as u64, (DataType::Float32, Reduce::Sum), stream)?
    };
    communicator.settle("an all-reduce", &mut alone)?;
    card.finish()?;
    let found = crate::backend::cuda::unpacked(&to.read()?, crate::backend::cuda::card::Format::F32);
    communicator.finish(&mut alone)?;
    let squares = found.iter().zip(&values).map(|(found, value)| f64::from(found - value).powi(2));
    Ok(squares.sum::<f64>().sqrt())
}
