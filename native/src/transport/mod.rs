//! How ranks exchange tensors: one small trait, engines for ranks in one process ([`threads`]) and in one process
//! each ([`processes`], over TCP or MPI; `nccl` between GPUs), and wrappers that observe ([`traced`]) or break
//! ([`faulty`]) any engine. [`collectives`] use only the trait, so every engine has them.
//!
//! - In: parcels of a rank for other ranks, and the parcels that it expects.
//! - Out: the parcels that arrive, or an error that names the peer.
//! - Knows: bytes, tags and ranks. Nothing of models or schedules.
//!
//! What every engine keeps:
//! - **Order.** Parcels of one channel (sender, receiver; activations, gradients or collectives) arrive in the
//!   order in which they were sent. Nothing else is matched by tag, because not every engine has tags (NCCL
//!   has none); the tag travels along and is compared on arrival, so a program whose two ends disagree is
//!   found at the first wrong parcel.
//! - **Groups.** All sends and receives of one [`Transport::exchange`] start together; it returns when all
//!   have ended. Two ranks that exchange with each other in one group each cannot wait for each other.
//! - **No hang.** Every wait ends: with what was waited for, with the engine's time-out, or at once when
//!   some rank calls [`Transport::abort`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use pipeplan_core::program::{P2pOp, Payload};

use collectives::{Call, Channel, Operation, Part};

pub mod collectives;
pub mod faulty;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "cuda")]
pub mod nccl;
pub mod processes;
pub mod rendezvous;
pub mod secure;
pub mod tcp;
pub mod threads;
pub mod traced;
mod wait;
pub mod wire;

/// The data of a parcel.
#[derive(Clone, Debug, PartialEq)]
pub enum Buffer {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
    /// bfloat16: the upper half of a 32-bit float.
    Bf16(Vec<bf16>),
    /// Memory of a device, which stays there.
    OnCard(OnCard),
    /// No data, if only the time of a run is modelled.
    Nothing,
}

impl Buffer {
    /// The size of the data.
    pub fn bytes(&self) -> u64 {
        match self {
            Buffer::F32(values) => 4 * values.len() as u64,
            Buffer::F64(values) => 8 * values.len() as u64,
            Buffer::Bf16(values) => 2 * values.len() as u64,
            Buffer::OnCard(memory) => memory.bytes,
            Buffer::Nothing => 0,
        }
    }

    /// The number of its elements.
    pub fn values(&self) -> usize {
        match self {
            Buffer::F32(values) => values.len(),
            Buffer::F64(values) => values.len(),
            Buffer::Bf16(values) => values.len(),
            Buffer::OnCard(_) | Buffer::Nothing => 0,
        }
    }

    /// The dtype of its elements.
    pub const fn format(&self) -> &'static str {
        match self {
            Buffer::F32(_) => "f32",
            Buffer::F64(_) => "f64",
            Buffer::Bf16(_) => "bf16",
            Buffer::OnCard(_) => "device",
            Buffer::Nothing => "untyped",
        }
    }
}

/// Channels from one rank to another: activations, gradients, and the channels of collectives.
pub(crate) const CHANNELS: usize = 2 + Channel::ALL.len();

/// Memory of a device. Only the backend of that device knows its type.
#[derive(Clone)]
pub struct OnCard {
    content: Arc<dyn Any + Send + Sync>,
    bytes: u64,
}

impl OnCard {
    /// `content`, which holds `bytes` bytes.
    pub fn new(content: Arc<dyn Any + Send + Sync>, bytes: u64) -> OnCard {
        OnCard { content, bytes }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it was made of.
    pub fn content(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.content)
    }
}

impl fmt::Debug for OnCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on a device", self.bytes)
    }
}

/// Equal if it is the same memory, and not only the same content.
impl PartialEq for OnCard {
    fn eq(&self, other: &OnCard) -> bool {
        Arc::ptr_eq(&self.content, &other.content)
    }
}

/// Which parcel this is: both ends derive the same tag from the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The training step, 0-based.
    pub step: u32,
    /// The transfer or collective that the parcel belongs to.
    pub what: What,
}

/// The transfer or collective that a parcel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A message of the program, as its sender writes it.
    P2pOp(P2pOp),
    /// One member's part in a collective.
    Part(Part),
}

impl Tag {
    /// The tag of a message of the program.
    pub const fn of(step: u32, message: P2pOp) -> Tag {
        Tag { step, what: What::P2pOp(message) }
    }

    /// The position of the parcel's channel between two ranks.
    pub(crate) fn channel(self) -> usize {
        match self.what {
            What::P2pOp(message) => usize::from(message.payload == Payload::Gradient),
            What::Part(part) => 2 + part.channel as usize,
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::P2pOp(message) => write!(f, "{message} of step {}", self.step),
            What::Part(part) => write!(f, "{part} of step {}", self.step),
        }
    }
}

/// One send of a group.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The receiving rank.
    pub peer: usize,
    /// Which parcel it is.
    pub tag: Tag,
    /// Its data.
    pub buffer: Buffer,
}

/// One receive of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The sending rank.
    pub peer: usize,
    /// Which parcel is expected.
    pub tag: Tag,
}

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The peer did not do its part within the time-out.
    #[error(
        "waited {:.1} s for rank {peer} to {} {tag}", waited.as_secs_f64(),
        if *receiving { "send" } else { "take" }
    )]
    TimedOut {
        /// The rank waited for.
        peer: usize,
        /// The parcel waited for.
        tag: Tag,
        /// Whether the wait was for a receive (else for a send to be taken).
        receiving: bool,
        /// The time of the wait.
        waited: Duration,
    },
    /// Not all members of a group did their part within the time-out.
    #[error("waited {:.1} s for {tag} with rank {}", waited.as_secs_f64(), listed(peers))]
    GroupTimedOut {
        /// The other members, any of which can be late.
        peers: Vec<usize>,
        /// The collective.
        tag: Tag,
        /// The time of the wait.
        waited: Duration,
    },
    /// The two ends run different programs, or a parcel was lost on the way.
    #[error("expected {expected} from rank {peer}, but {found} arrived: the two ranks have different orders")]
    WrongParcel {
        /// The sending rank.
        peer: usize,
        /// What the receiver expected.
        expected: Tag,
        /// What arrived.
        found: Tag,
    },
    /// The peer is not in the world, or is this rank itself.
    #[error("rank {peer} is not a peer of rank {rank} in a world of {world}")]
    NoSuchPeer {
        /// This rank.
        rank: usize,
        /// The rank named.
        peer: usize,
        /// Ranks of the world.
        world: usize,
    },
    /// The library for transfers between devices failed.
    #[error("{tag} with rank {}: {reason}", listed(peers))]
    Library {
        /// The other rank, or the others of a group.
        peers: Vec<usize>,
        /// The transfer.
        tag: Tag,
        /// The message of the library.
        reason: String,
    },
    /// This rank's device failed.
    #[error("{reason}")]
    Device {
        /// What it said.
        reason: String,
    },
    /// Not every rank came to a barrier within the time-out.
    #[error("waited {:.1} s for all ranks", waited.as_secs_f64())]
    BarrierTimedOut {
        /// The time of the wait.
        waited: Duration,
    },
    /// A process is gone.
    #[error("rank {peer} is gone: {reason}")]
    PeerLost {
        /// Its rank.
        peer: usize,
        /// How it was noticed.
        reason: String,
    },
    /// The launcher ends this process.
    #[error("the launcher ends the run, as it does on Ctrl-C and when the process of a rank dies")]
    Ending,
    /// Another rank ended the run.
    #[error("the run was ended by another rank")]
    Aborted,
}

impl TransportError {
    /// The rank that is late or sent the wrong parcel.
    pub fn peer(&self) -> Option<usize> {
        match self {
            TransportError::TimedOut { peer, .. }
            | TransportError::WrongParcel { peer, .. }
            | TransportError::PeerLost { peer, .. }
            | TransportError::NoSuchPeer { peer, .. } => Some(*peer),
            TransportError::Library { peers, .. } | TransportError::GroupTimedOut { peers, .. } => match peers[..] {
                [peer] => Some(peer),
                _ => None,
            },
            TransportError::Device { .. }
            | TransportError::BarrierTimedOut { .. }
            | TransportError::Ending
            | TransportError::Aborted => None,
        }
    }
}

/// Ranks as text.
pub(crate) fn listed(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The transport of one rank.
pub trait Transport: Send {
    /// This rank.
    fn rank(&self) -> usize;

    /// The world size.
    fn world(&self) -> usize;

    /// Starts all sends and receives together and returns when all have ended, with what was received in
    /// the order of `receives`.
    ///
    /// # Errors
    /// See [`TransportError`]. After an error the transport is of no further use but to abort.
    fn exchange(&mut self, sends: Vec<Outgoing>, receives: &[Incoming]) -> Result<Vec<Buffer>, TransportError>;

    /// Starts sends and returns without waiting for them; the engine keeps the parcels until they are taken.
    /// They arrive after what this rank has sent before and before what it sends later.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn post(&mut self, sends: Vec<Outgoing>) -> Result<(), TransportError>;

    /// As [`Transport::post`]; and says which parcels are due next, each with its bytes. An engine that
    /// [begins receives](Transport::begins_receives) starts them now, all in one group with the sends.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn begin(&mut self, sends: Vec<Outgoing>, _due: &[(Incoming, u64)]) -> Result<(), TransportError> {
        self.post(sends)
    }

    /// Whether every message must have been named in [`Transport::begin`] before it is received: engines that write
    /// into memory of a device have to know its size.
    fn begins_receives(&self) -> bool {
        false
    }

    /// What `receives` ask for, each on a channel of its own, where all of it has come; nothing where some has not,
    /// or where the engine cannot tell. Does not wait.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn take_arrived(&mut self, _receives: &[Incoming]) -> Result<Option<Vec<Buffer>>, TransportError> {
        Ok(None)
    }

    /// Whether the run can go on, as far as is known without waiting.
    ///
    /// # Errors
    /// Why not.
    fn check(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn barrier(&mut self) -> Result<(), TransportError>;

    /// Ends every wait of every rank, now and later, with [`TransportError::Aborted`].
    fn abort(&self);

    /// Whether the engine has its own version of a collective, which keeps what [`collectives`] promises.
    /// Where it has none, parcels do it.
    fn has_own(&self, _operation: Operation) -> bool {
        false
    }

    /// Whether the engine's own collectives work among these ranks where a member gets so many values.
    fn suits_own(&self, _ranks: &[usize], _values: usize) -> bool {
        true
    }

    /// Whether the engine has its own collectives on memory of devices.
    fn has_own_on_card(&self) -> bool {
        false
    }

    /// Begins one of them, from memory to memory, which may be the same: behind all that this rank's device has been
    /// asked for, and beside what it is asked for next. Both stay until it is [joined](Transport::join_on_card),
    /// under the number given. Called only where [`Transport::has_own_on_card`] says so.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn begin_on_card(&mut self, _call: &Call<'_>, _from: &OnCard, _to: &OnCard) -> Result<u64, TransportError> {
        Ok(0)
    }

    /// What this rank's device is asked for from here on comes behind the collective that has begun under this number.
    /// The rank itself waits for nothing.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn join_on_card(&mut self, _begun: u64) -> Result<(), TransportError> {
        Ok(())
    }

    /// Waits until all collectives on memory of devices have ended that have begun: before the rank waits for its
    /// device, which could then wait for others without end.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn settle_on_card(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    /// Whether parcels that are [`Buffer::OnCard`] may go to any rank, as they do within a process.
    fn carries_memory(&self) -> bool {
        false
    }

    /// Runs the engine's own version of a collective: called only where [`Transport::has_own`] says so.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn own_collective(&mut self, _call: &Call<'_>, input: Buffer) -> Result<Buffer, TransportError> {
        Ok(input)
    }

    /// A group of one send.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn send(&mut self, peer: usize, tag: Tag, buffer: Buffer) -> Result<(), TransportError> {
        self.exchange(vec![Outgoing { peer, tag, buffer }], &[]).map(|_| ())
    }

    /// A group of one receive.
    ///
    /// # Errors
    /// As [`Transport::exchange`].
    fn receive(&mut self, peer: usize, tag: Tag) -> Result<Buffer, TransportError> {
        let received = self.exchange(Vec::new(), &[Incoming { peer, tag }])?;
        Ok(received.into_iter().next().unwrap_or(Buffer::Nothing))
    }
}

impl Transport for Box<dyn Transport> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn world(&self) -> usize {
        (**self).world()
    }

    fn exchange(&mut self, sends: Vec<Outgoing>, receives: &[Incoming]) -> Result<Vec<Buffer>, TransportError> {
        (**self).exchange(sends, receives)
    }

    fn post(&mut self, sends: Vec<Outgoing>) -> Result<(), TransportError> {
        (**self).post(sends)
    }

    fn begin(&mut self, sends: Vec<Outgoing>, due: &[(Incoming, u64)]) -> Result<(), TransportError> {
        (**self).begin(sends, due)
    }

    fn begins_receives(&self) -> bool {
        (**self).begins_receives()
    }

    fn take_arrived(&mut self, receives: &[Incoming]) -> Result<Option<Vec<Buffer>>, TransportError> {
        (**self).take_arrived(receives)
    }

    fn check(&mut self) -> Result<(), TransportError> {
        (**self).check()
    }

    fn barrier(&mut self) -> Result<(), TransportError> {
        (**self).barrier()
    }

    fn abort(&self) {
        (**self).abort();
    }

    fn has_own(&self, operation: Operation) -> bool {
        (**self).has_own(operation)
    }

    fn suits_own(&self, ranks: &[usize], values: usize) -> bool {
        (**self).suits_own(ranks, values)
    }

    fn has_own_on_card(&self) -> bool {
        (**self).has_own_on_card()
    }

    fn begin_on_card(&mut self, call: &Call<'_>, from: &OnCard, to: &OnCard) -> Result<u64, TransportError> {
        (**self).begin_on_card(call, from, to)
    }

    fn join_on_card(&mut self, begun: u64) -> Result<(), TransportError> {
        (**self).join_on_card(begun)
    }

    fn settle_on_card(&mut self) -> Result<(), TransportError> {
        (**self).settle_on_card()
    }

    fn carries_memory(&self) -> bool {
        (**self).carries_memory()
    }

    fn own_collective(&mut self, call: &Call<'_>, input: Buffer) -> Result<Buffer, TransportError> {
        (**self).own_collective(call, input)
    }
}
