//! What executes the ops of a rank.
//!
//! - In: an op, the parcels that it needs from other stages (in the rank's [`Store`]), the ranks that share its stage.
//! - Out: parcels for other stages, losses, updated weights.
//! - Knows: stages and their operator graphs. No schedule, no peer by number and no transport.
//!
//! | Module | What it does |
//! |---|---|
//! | [`stages`] | runs the operators of a job, the same way on every device |
//! | [`cpu`] | the operators on one core |
//! | `cuda` | the operators on a GPU, or its kernels compiled for the CPU |
//! | [`modelled`] | waits for the planned time of each op instead |
//! | [`expert_parallel`] | which tokens go to which rank in the all-to-all of experts |
//! | [`documents`] | where documents begin in the sequences of a microbatch |
//! | [`peers`] | the tensor-, context- and expert-parallel groups of a stage, and the copies of its weights |
//! | [`rotary`] | rotary positions that are scaled for longer sequences |
//! | [`sharding`] | what copies of a weight shard among themselves |
//! | [`arena`] | the tensors of one microbatch in one stage |

use std::collections::BTreeMap;
use std::ops::Range;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::model::Dtype;
use pipeplan_core::problem::copies::Moved;
use pipeplan_core::problem::op::Op;
use pipeplan_core::program::{P2pOp, Payload, Way};

use crate::data::DataError;
use crate::transport::collectives::CollectiveError;
use crate::transport::{Buffer, OnCard, TransportError};

use peers::Peers;

pub use self::sharding::{Sharding, Share, WeightSharding, WeightShardings};

pub mod arena;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod documents;
pub mod expert_parallel;
pub mod modelled;
pub mod peers;
pub mod rotary;
pub mod sharding;
pub mod staged;
pub mod stages;

/// Executes the ops of one rank.
pub trait Backend {
    /// Gets ready for training step `step`, counted from 0.
    fn begin(&mut self, step: u32);

    /// Waits for what `op` needs, where that arrives by itself after its transfer. Not part of the op's time.
    fn await_inputs(&mut self, _op: Op, _store: &Store) {}

    /// The bytes of `parcel`, which another stage sends to one of this rank; 0 where it comes with its size.
    fn expects(&self, _parcel: Parcel) -> Bytes {
        0
    }

    /// Makes what a transfer has brought this backend's own, such as by a copy into its memory.
    ///
    /// # Errors
    /// [`BackendError`] where there is no room for it.
    fn take_in(&mut self, buffer: Buffer) -> Result<Buffer, BackendError> {
        Ok(buffer)
    }

    /// Runs `op`, together with the tensor-parallel group of this rank: takes what it needs of other stages out of
    /// `store` and leaves there what it makes for them.
    ///
    /// # Errors
    /// [`BackendError`] if `store` lacks a parcel or has it in another size, or a peer does not come.
    fn compute(&mut self, op: Op, store: &mut Store, peers: &mut dyn Peers) -> Result<(), BackendError>;

    /// Starts a copy of what `moved` names to or from the host's memory. It goes on beside the next ops.
    ///
    /// # Errors
    /// [`BackendError`] if the microbatch is not there, or this backend has no such copies.
    fn start_copy(&mut self, moved: Moved, _store: &mut Store) -> Result<(), BackendError> {
        Err(BackendError::NoCopies { moved })
    }

    /// Waits for a copy that was started, and gives its source back.
    ///
    /// # Errors
    /// As [`Backend::start_copy`].
    fn wait_copy(&mut self, moved: Moved, _store: &mut Store) -> Result<(), BackendError> {
        Err(BackendError::NoCopies { moved })
    }

    /// Optimizer step: applies the gradients accumulated since the last call, and clears them.
    ///
    /// # Errors
    /// [`BackendError`] if a number is not finite.
    fn optimize(&mut self, store: &mut Store) -> Result<(), BackendError>;

    /// The losses of this step's microbatches of which this rank holds the last stage, taken out.
    fn take_losses(&mut self) -> Vec<(u32, f64)>;

    /// Lends `part` of the weight `name` of `stage` to `work`, which may change it: for sums over copies, for
    /// clipping and for checkpoints, between the last op of a training step and the first of the next. A device copies
    /// it to the host and back.
    ///
    /// # Errors
    /// [`BackendError::NoSuchWeight`] where it is not held.
    fn lend(
        &mut self,
        stage: u16,
        name: &str,
        _part: Part,
        _work: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), BackendError> {
        Err(BackendError::NoSuchWeight { stage: stage.into(), name: name.to_string() })
    }

    /// The peak of the device's allocator for this rank; none if it does not count.
    fn device_bytes(&self) -> Option<Bytes> {
        None
    }

    /// The device memory that holds `part`, and its format, for operations that stay on devices: 32-bit floats, or a
    /// weight in the format of the operators. Nothing if it is in host memory.
    fn on_card(&mut self, _stage: u16, _name: &str, _part: Part) -> Option<(OnCard, Dtype)> {
        None
    }

    /// Multiplies `part` by `factor`, if it is [on a device](Backend::on_card), after all work that is queued there.
    ///
    /// # Errors
    /// As [`Backend::lend`].
    fn scale_on_card(&mut self, _stage: u16, _name: &str, _part: Part, _factor: f64) -> Result<(), BackendError> {
        Ok(())
    }

    /// A copy of the numbers `range` of `part`, which other ranks on the device may read: complete. Nothing where it
    /// is the host's.
    ///
    /// # Errors
    /// As [`Backend::lend`].
    fn copied_on_card(
        &mut self,
        _stage: u16,
        _name: &str,
        _part: Part,
        _range: Range<usize>,
    ) -> Result<Option<OnCard>, BackendError> {
        Ok(None)
    }

    /// As many numbers of `part`, from `start` on, as each of `from` has become their sum, in that order: of at most
    /// [`Backend::most_on_card`] copies as ranks on the device [show](Backend::copied_on_card) them, which it no
    /// longer reads when it returns.
    ///
    /// # Errors
    /// As [`Backend::lend`].
    fn sum_on_card(
        &mut self,
        _stage: u16,
        _name: &str,
        _part: Part,
        _start: usize,
        _from: &[OnCard],
    ) -> Result<(), BackendError> {
        Ok(())
    }

    /// The sum of squares of the numbers `range` of `part`; nothing where it is the host's.
    ///
    /// # Errors
    /// As [`Backend::lend`].
    fn squares_on_card(
        &mut self,
        _stage: u16,
        _name: &str,
        _part: Part,
        _range: Range<usize>,
    ) -> Result<Option<f64>, BackendError> {
        Ok(None)
    }

    /// How many copies the device adds up at once; 0 if there is none.
    fn most_on_card(&self) -> usize {
        0
    }
}

/// A part of the state of a weight on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The weight itself, in the optimizer's format; beyond this rank's [`Share`] only as exactly as the operators
    /// take it.
    Weight,
    /// The gradient accumulated since the last update.
    Gradient,
    /// The optimizer's mean of gradients: of this rank's [`Share`] alone.
    Mean,
    /// The optimizer's mean of squared gradients: of this rank's [`Share`] alone.
    Square,
}

/// The elements of a lent part.
#[derive(Debug, PartialEq)]
pub enum Values<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// 64-bit floats.
    F64(&'a mut [f64]),
}

/// Why an op cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The data of a microbatch cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A parcel is missing.
    #[error("{parcel} is missing: the program runs this op before it arrives")]
    Missing {
        /// What is missing.
        parcel: Parcel,
    },
    /// A parcel has another size or dtype.
    #[error("{parcel} has {found} bytes; expected are {expected}")]
    WrongSize {
        /// What arrived.
        parcel: Parcel,
        /// Its size.
        found: Bytes,
        /// The size of the tensor.
        expected: Bytes,
    },
    /// A copy to or from the host of what is not there.
    #[error("{moved} is started or awaited while its activations are not there")]
    CopyOutOfOrder {
        /// The copy.
        moved: Moved,
    },
    /// This backend keeps all activations where they are.
    #[error("{moved}: this backend has no copies of activations to and from the host")]
    NoCopies {
        /// The copy.
        moved: Moved,
    },
    /// The rank does not hold this stage.
    #[error("stage {stage} is not on this rank")]
    NoSuchStage {
        /// The stage.
        stage: usize,
    },
    /// The rank does not hold this weight in this backend.
    #[error("stage {stage} holds no `{name}` here")]
    NoSuchWeight {
        /// The stage.
        stage: usize,
        /// The weight.
        name: String,
    },
    /// A job of a microbatch runs before a job that it needs.
    #[error("{op} runs before the forward or backward of its microbatch")]
    OutOfOrder {
        /// The op.
        op: Op,
    },
    /// A stage that another program brings has failed.
    #[error("stage {stage}: {message}")]
    OfStage {
        /// The stage.
        stage: usize,
        /// What it says.
        message: String,
    },
    /// The device failed.
    #[error("{message}")]
    Device {
        /// What it said.
        message: String,
    },
    /// A collective of the tensor-parallel ranks failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A transfer between their devices failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// More routed tokens arrive at a rank's experts than the plan has rows for.
    #[error(
        "{come} routed tokens arrive at the experts of rank {rank} in layer {layer}, microbatch {microbatch}; the \
         rank has {rows} rows for them: write training.expert_imbalance = {enough} or more; {always} is always \
         enough"
    )]
    ExpertOverflow {
        /// The fullest rank.
        rank: usize,
        /// The layer.
        layer: u32,
        /// The microbatch, among those of a replica.
        microbatch: u32,
        /// Copies.
        come: usize,
        /// Rows.
        rows: usize,
        /// The least value that is enough, as text.
        enough: String,
        /// The value that is enough for any routing: the expert-parallel degree.
        always: usize,
    },
    /// The loss is not finite: training diverged.
    #[error("the loss of microbatch {microbatch} is {loss}: try a smaller learning rate")]
    NotFinite {
        /// The microbatch.
        microbatch: u32,
        /// Its loss, as text.
        loss: String,
    },
}

/// A tensor that goes from one stage to another, named by its receiving stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parcel {
    /// Activation or gradient.
    pub payload: Payload,
    /// The stage that takes it.
    pub stage: u16,
    /// The microbatch.
    pub microbatch: u32,
}

impl Parcel {
    /// The parcel of `message`.
    pub fn of(message: P2pOp) -> Parcel {
        let stage = match message.way {
            Way::Send => message.peer_stage() as u16,
            Way::Receive => message.stage,
        };
        Parcel { payload: message.payload, stage, microbatch: message.microbatch }
    }
}

impl std::fmt::Display for Parcel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.payload {
            Payload::Activation => "activation",
            Payload::Gradient => "gradient",
        };
        write!(f, "the {what} for stage {} of microbatch {}", self.stage, self.microbatch)
    }
}

/// What a rank holds between its ops: parcels that arrived or will leave, and the count of its bytes.
#[derive(Debug, Default)]
pub struct Store {
    parcels: BTreeMap<Parcel, Buffer>,
    /// The bytes that the rank holds.
    pub meter: Meter,
}

impl Store {
    /// Puts a parcel in.
    pub fn put(&mut self, parcel: Parcel, buffer: Buffer) {
        self.meter.take(Kind::Transfer, buffer.bytes());
        if let Some(replaced) = self.parcels.insert(parcel, buffer) {
            self.meter.give(Kind::Transfer, replaced.bytes());
        }
    }

    /// A parcel that is there.
    pub fn get(&self, parcel: Parcel) -> Option<&Buffer> {
        self.parcels.get(&parcel)
    }

    /// Takes a parcel out.
    ///
    /// # Errors
    /// [`BackendError::Missing`].
    pub fn take(&mut self, parcel: Parcel) -> Result<Buffer, BackendError> {
        let buffer = self.parcels.remove(&parcel).ok_or(BackendError::Missing { parcel })?;
        self.meter.give(Kind::Transfer, buffer.bytes());
        Ok(buffer)
    }
}

/// The kind of held bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Weights, their gradients, the optimizer states.
    Persistent,
    /// Tensors of microbatches.
    Activation,
    /// Parcels in the store.
    Transfer,
    /// Tensors of microbatches, or the optimizer states, in host memory, of which the total knows nothing.
    Host,
}

/// Kinds of bytes.
const KINDS: usize = 4;

/// Bytes held now and at the peak, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    held: [Bytes; KINDS],
    peak: [Bytes; KINDS],
    peak_total: Bytes,
    ignores_transfers: bool,
}

impl Meter {
    /// From now on parcels count as 0 bytes, because they stand for data that does not exist.
    pub fn ignore_transfers(&mut self) {
        self.ignores_transfers = true;
    }

    /// Counts bytes that are held from now on.
    pub fn take(&mut self, kind: Kind, bytes: Bytes) {
        if kind == Kind::Transfer && self.ignores_transfers {
            return;
        }
        let index = kind as usize;
        self.held[index] += bytes;
        self.peak[index] = self.peak[index].max(self.held[index]);
        self.peak_total = self.peak_total.max(self.held[..Kind::Host as usize].iter().sum());
    }

    /// Counts bytes that are held no longer.
    pub fn give(&mut self, kind: Kind, bytes: Bytes) {
        if kind == Kind::Transfer && self.ignores_transfers {
            return;
        }
        self.held[kind as usize] -= bytes;
    }

    /// Bytes of `kind` held now.
    pub fn held(&self, kind: Kind) -> Bytes {
        self.held[kind as usize]
    }

    /// The peak of `kind`.
    pub fn peak(&self, kind: Kind) -> Bytes {
        self.peak[kind as usize]
    }

    /// The peak of a device.
    pub fn peak_total(&self) -> Bytes {
        self.peak_total
    }
}
