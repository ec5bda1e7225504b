//! What the CUDA backend needs from a card: memory, copies, launches, matrix products and times, in the order of the calls.
//!
//! - In: commands of one rank.
//! - Out: results in memory of the card; [`Mark`]s for what must wait.
//! - Knows: addresses and bytes. No operators.
//!
//! Two cards exist: [`nvidia`](super::nvidia), and [`emulated`](super::emulated), which runs the same kernels
//! compiled for the
//! CPU. All decisions on launches and bytes are on this side of the trait, so the second card tests them without a GPU.

use std::ffi::c_void;
use std::hash::Hash;
use std::sync::Arc;

use pipeplan_core::base::units::{Bytes, Nanos};

mod command;
mod error;
mod memory;

pub use self::command::{Args, Command, Launch, Matrix, Product};
pub use self::error::CardError;
pub use self::memory::Memory;

/// A place in a card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub(super) u64);

impl Address {
    /// Of an operand that is not looked at: a place where a buffer could start.
    pub(super) const SOMEWHERE: Address = Address(256);

    /// The place `number`, of a card that gives memory itself.
    pub const fn new(number: u64) -> Address {
        Address(number)
    }

    /// As libraries take it.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// How long memory is held, which says where it lies best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Beyond the job in which it is asked for.
    Kept,
    /// At most until that job ends.
    Briefly,
    /// Until other ranks have let go of it, whenever that is: apart from the rest, whose places follow from the order of
    /// the rank's own work alone.
    ByOthers,
    /// As long as need be, in memory of the host that does not move, which the card reaches by itself.
    OnHost,
}

/// Number formats that a card computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
}

impl Format {
    /// Bytes of a number.
    pub const fn bytes(self) -> u64 {
        match self {
            Format::F32 => 4,
            Format::Bf16 => 2,
        }
    }

    /// The end of the names of kernels in this format.
    pub const fn suffix(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::Bf16 => "bf16",
        }
    }
}

/// One of several equal parts of a card's multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Which, counted from 0.
    pub part: usize,
    /// How many there are.
    pub parts: usize,
}

/// One rank's queue of work on a card. Everything is done in the order asked for; only [`Card::read`],
/// [`Card::finish`] and [`Card::stop_watch`] wait.
pub trait Card: Send + Sync {
    /// What it is, for people.
    fn name(&self) -> String;

    /// Bytes of shared memory that a block may have.
    fn shared_bytes(&self) -> u32;

    /// Whether there is `kernel`, one of those that not all cards have.
    fn has(&self, _kernel: &str) -> bool {
        false
    }

    /// Takes so much of the card's memory at once, for what is [allocated](Card::allocate) from now on, and `leaves` for what
    /// others give back: a card that gives memory may wait for what runs there, transfers that wait for other ranks among it.
    ///
    /// # Errors
    /// [`CardError`], as all others.
    fn reserve(&self, _bytes: Bytes, _leaves: Bytes) -> Result<(), CardError> {
        Ok(())
    }

    /// The same of host memory, for what is kept [there](Held::OnHost).
    ///
    /// # Errors
    /// [`CardError`].
    fn reserve_on_host(&self, _bytes: Bytes) -> Result<(), CardError> {
        Ok(())
    }

    /// Memory whose content is not defined.
    ///
    /// # Errors
    /// [`CardError`].
    fn allocate(&self, bytes: Bytes, held: Held) -> Result<Address, CardError>;

    /// Gives memory back once all that was asked for before is done: what it was [allocated](Card::allocate) as.
    fn free(&self, at: Address, bytes: Bytes, held: Held);

    /// Fills memory from the host's.
    ///
    /// # Errors
    /// [`CardError`].
    fn write(&self, to: Address, bytes: &[u8]) -> Result<(), CardError>;

    /// Waits, then reads memory.
    ///
    /// # Errors
    /// [`CardError`].
    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<(), CardError>;

    /// As [`Card::write`], to memory of the host that [does not move](Held::OnHost). Waits for all that was asked for before.
    ///
    /// # Errors
    /// [`CardError`].
    fn write_on_host(&self, to: Address, bytes: &[u8]) -> Result<(), CardError> {
        self.write(to, bytes)
    }

    /// As [`Card::read`], of such memory.
    ///
    /// # Errors
    /// [`CardError`].
    fn read_on_host(&self, from: Address, bytes: &mut [u8]) -> Result<(), CardError> {
        self.read(from, bytes)
    }

    /// Copies within the card.
    ///
    /// # Errors
    /// [`CardError`].
    fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError>;

    /// Copies between the card and memory of the host that does [not move](Held::OnHost).
    ///
    /// # Errors
    /// [`CardError`].
    fn copy_across(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError>;

    /// Sets bytes to 0.
    ///
    /// # Errors
    /// [`CardError`].
    fn zero(&self, at: Address, bytes: Bytes) -> Result<(), CardError>;

    /// Starts a kernel.
    ///
    /// # Errors
    /// [`CardError`].
    fn launch(&self, launch: &Launch) -> Result<(), CardError>;

    /// Starts a product.
    ///
    /// # Errors
    /// [`CardError`].
    fn product(&self, product: &Product) -> Result<(), CardError>;

    /// Loads what is needed for all kernels and for `products`, whose operands are not looked at: what is loaded later,
    /// between the work of a step, can wait for a transfer of another queue, which may itself wait for this rank.
    ///
    /// # Errors
    /// [`CardError`].
    fn prepare(&self, products: &[Product]) -> Result<(), CardError>;

    /// A job begins: until [`Card::end_job`], what is asked for may wait until something needs its result.
    fn begin_job(&self) {}

    /// The job has ended: all of it is on the queue.
    ///
    /// # Errors
    /// [`CardError`].
    fn end_job(&self) -> Result<(), CardError> {
        Ok(())
    }

    /// Starts all of `list`, in its order.
    ///
    /// # Errors
    /// [`CardError`].
    fn run(&self, list: &[Command]) -> Result<(), CardError> {
        one_by_one(self, list)
    }

    /// Waits until all is done.
    ///
    /// # Errors
    /// [`CardError`], also of what was asked for earlier.
    fn finish(&self) -> Result<(), CardError>;

    /// Starts a watch on the card's own clock, in its queue.
    ///
    /// # Errors
    /// [`CardError`].
    fn start_watch(&self) -> Result<(), CardError>;

    /// Waits, and says what the card took since [`Card::start_watch`].
    ///
    /// # Errors
    /// [`CardError`].
    fn stop_watch(&self) -> Result<Nanos, CardError>;

    /// A mark in the queue, behind all that was asked for before.
    ///
    /// # Errors
    /// [`CardError`].
    fn mark(&self) -> Result<Box<dyn Mark>, CardError>;

    /// Lets all that is asked for from here on begin when `mark`, of this queue or another of the same card, is past: whether
    /// the queue sees to that itself. Else the caller has to wait.
    ///
    /// # Errors
    /// [`CardError`].
    fn wait_for(&self, mark: &dyn Mark) -> Result<bool, CardError>;

    /// Another queue of the same card. What is put there goes before what is put here, where both wait for a place on the
    /// card.
    ///
    /// # Errors
    /// [`CardError`].
    fn another(&self) -> Result<Arc<dyn Card>, CardError>;

    /// What tells this card from all others, on other machines too.
    fn identity(&self) -> [u8; 16];

    /// Lets this thread's calls of other libraries mean this card.
    ///
    /// # Errors
    /// [`CardError`].
    fn choose(&self) -> Result<(), CardError>;

    /// The queue itself, for libraries that put work on it; null where it is none of CUDA's.
    fn stream(&self) -> *mut c_void {
        std::ptr::null_mut()
    }

    /// Bytes of card memory that this queue takes in addition to its tensors: the workspace of a library.
    fn workspace_bytes(&self) -> Bytes {
        0
    }

    /// Bytes that this queue has taken of the card's memory; none where nothing counts them.
    fn taken_bytes(&self) -> Option<Bytes>;

    /// Gives back to the driver what is in no use, once all that was asked for before is done.
    ///
    /// # Errors
    /// [`CardError`].
    fn trim(&self) -> Result<(), CardError> {
        Ok(())
    }

    /// Bytes of the whole device that are in use, by anyone, and those that there are; none where there is no device.
    fn device_memory(&self) -> Option<(Bytes, Bytes)> {
        None
    }
}

/// Starts the work of `list` on `card`, piece by piece.
///
/// # Errors
/// [`CardError`].
pub fn one_by_one<C: Card + ?Sized>(card: &C, list: &[Command]) -> Result<(), CardError> {
    list.iter().try_for_each(|command| match command {
        Command::Launch(launch) => card.launch(launch),
        Command::Product(product) => card.product(product),
        Command::Copy { from, to, bytes } => card.copy(*from, *to, *bytes),
        Command::Zero { at, bytes } => card.zero(*at, *bytes),
    })
}

/// A place in a queue.
pub trait Mark: Send {
    /// Whether all before it is done.
    ///
    /// # Errors
    /// [`CardError`] of what came before.
    fn is_past(&self) -> Result<bool, CardError>;

    /// The mark itself, for queues of the same card; null where it is none of CUDA's.
    fn event(&self) -> *mut c_void {
        std::ptr::null_mut()
    }
}
