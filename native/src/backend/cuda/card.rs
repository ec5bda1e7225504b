//! What the CUDA backend asks of a card: memory, copies, launches, matrix products and times, in the order asked for.
//!
//! Two engines answer: [`nvidia`](super::nvidia), and [`host`](super::host), which runs the same kernels compiled for
//! the processor. All that decides what is launched on which bytes lies on this side, so the second proves it without a
//! GPU.

use std::ffi::c_void;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pipeplan_core::base::units::{Bytes, Nanos};

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

/// What every kernel takes, laid out as `Args` in `kernels/prelude.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Args {
    /// Buffers.
    pub p: [u64; 10],
    /// Whole numbers.
    pub n: [i64; 12],
    /// Floats.
    pub f: [f32; 10],
}

impl Hash for Args {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.p, self.n, self.f.map(f32::to_bits)).hash(state);
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Launch {
    /// The kernel's name, with the suffix of its format.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory that the launch chooses.
    pub shared: u32,
    /// What it takes.
    pub args: Args,
}

/// A matrix of a product: row-major, `row` elements from row to row, and transposed where so marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Its first element.
    pub at: Address,
    /// Elements from row to row.
    pub row: u64,
    /// Elements from one product of the batch to the next.
    pub step: u64,
    /// Whether its transpose is meant.
    pub transposed: bool,
    /// Its number format.
    pub format: Format,
}

/// `c = alpha · a · b + beta · c`, `count` times, `c` being `rows` by `columns`; rounded once, behind all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Rows of `a` (transposed where so marked) and `c`.
    pub rows: u64,
    /// Columns of `a`, rows of `b`.
    pub inner: u64,
    /// Columns of `b` and `c`.
    pub columns: u64,
    /// The left matrix.
    pub a: Matrix,
    /// The right matrix.
    pub b: Matrix,
    /// The result; never transposed.
    pub c: Matrix,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of what `c` holds; with 0 it is not read.
    pub beta: f32,
    /// Products of the batch.
    pub count: u64,
    /// Where what `beta` multiplies lies, laid out as `c`, where that is not `c` itself.
    pub addend: Option<Address>,
    /// A row, in the format of `c`, that is added to every row.
    pub bias: Option<Address>,
}

impl Hash for Product {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Product { rows, inner, columns, a, b, c, alpha, beta, count, addend, bias } = self;
        (rows, inner, columns, a, b, c, count, addend, bias).hash(state);
        (alpha.to_bits(), beta.to_bits()).hash(state);
    }
}

/// Work for a card.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Command {
    /// A kernel.
    Launch(Launch),
    /// A product.
    Product(Product),
    /// A copy within the card.
    Copy {
        /// From here.
        from: Address,
        /// To there.
        to: Address,
        /// So much.
        bytes: Bytes,
    },
    /// Bytes that become 0.
    Zero {
        /// From here on.
        at: Address,
        /// So many.
        bytes: Bytes,
    },
}

impl Product {
    /// Whether this is a product that cuBLAS takes, which refuses others only when it is called.
    ///
    /// # Errors
    /// [`CardError::Call`] with what is wrong.
    pub fn check(&self) -> Result<(), CardError> {
        let Product { rows, inner, columns, a, b, c, count, .. } = *self;
        let wrong = |what: String| Err(CardError::call(format!("a product of {rows} x {inner} x {columns}"), what));
        // Of the combinations that the compute type CUBLAS_COMPUTE_32F has, those of our formats.
        let formats = [a.format, b.format, c.format];
        if a.format != b.format || (a.format, c.format) == (Format::F32, Format::Bf16) {
            return wrong(format!("cuBLAS multiplies no {formats:?}"));
        }
        let most = i32::MAX as u64;
        if [rows, inner, columns, count, a.row, b.row, c.row].into_iter().any(|size| size > most || size == 0) {
            return wrong(format!("every size is from 1 to {most}; rows are {} {} {} long", a.row, b.row, c.row));
        }
        let stored = |matrix: &Matrix, sizes: [u64; 2]| if matrix.transposed { [sizes[1], sizes[0]] } else { sizes };
        for (matrix, sizes) in [(&a, [rows, inner]), (&b, [inner, columns]), (&c, [rows, columns])] {
            let [height, width] = stored(matrix, sizes);
            if matrix.row < width {
                return wrong(format!("rows of {width} lie {} apart", matrix.row));
            }
            if matrix.at.0 == 0 || !matrix.at.0.is_multiple_of(matrix.format.bytes()) {
                return wrong(format!("no {:?} matrix starts at {:#x}", matrix.format, matrix.at.0));
            }
            // Results of one call may not lie in each other, side by side in a row excepted.
            let apart = matrix.step >= (height - 1) * matrix.row + width || matrix.step >= width;
            if std::ptr::eq(matrix, &c) && count > 1 && !apart {
                return wrong(format!("{count} results lie {} apart", matrix.step));
            }
        }
        for at in [self.addend, self.bias].into_iter().flatten() {
            if at.0 == 0 || !at.0.is_multiple_of(c.format.bytes()) || count != 1 {
                return wrong(format!("nothing at {:#x} is added to {count} results", at.0));
            }
        }
        if c.transposed { wrong("the result is transposed".to_string()) } else { Ok(()) }
    }
}

/// Why a card could not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// Libraries are missing.
    #[error("the GPU cannot be used:{}", list(.0))]
    Missing(Vec<String>),
    /// There is no such GPU.
    #[error("GPU {ordinal} was asked for, and the driver knows {count}")]
    NoSuchCard {
        /// The number asked for.
        ordinal: usize,
        /// GPUs that there are.
        count: usize,
    },
    /// The memory is full.
    #[error(
        "the GPU has no {} MiB left:{} plan a smaller model, or fewer or smaller microbatches", bytes.div_ceil(1 << 20),
        beside(*room)
    )]
    Full {
        /// Bytes asked for.
        bytes: Bytes,
        /// Bytes that are free, and those of the whole card, where it says so.
        room: Option<(Bytes, Bytes)>,
    },
    /// The host's memory is full.
    #[error(
        "the host has no {} MiB that a GPU can reach, for training.offload or .offload_optimizer{}: let fewer layers keep what \
         they keep there, or the optimizer's state stay on the device, or give the machine or its container more",
        bytes.div_ceil(1 << 20), left(*room)
    )]
    HostFull {
        /// Bytes asked for.
        bytes: Bytes,
        /// Bytes that are left, where the machine says so.
        room: Option<Bytes>,
    },
    /// A kernel could not be compiled.
    #[error("the kernels cannot be compiled: {0}")]
    Compile(String),
    /// A call failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// What was called.
        call: String,
        /// What it said.
        reason: String,
    },
}

/// What is known of a card that is full.
fn beside(room: Option<(Bytes, Bytes)>) -> String {
    let Some((free, all)) = room else { return String::new() };
    format!(
        " {} of its {} MiB are free, and contexts, kernels and NCCL take what no plan counts. Say so in the spec, with \
         memory.overhead_bytes or a lower memory.limit_bytes, or",
        free >> 20,
        all >> 20
    )
}

fn left(room: Option<Bytes>) -> String {
    room.map_or_else(String::new, |room| format!(" ({} MiB are left)", room >> 20))
}

fn list(items: &[String]) -> String {
    items.iter().map(|item| format!("\n  {item}")).collect()
}

impl CardError {
    /// `call` failed and said `reason`.
    pub fn call(call: impl fmt::Display, reason: impl fmt::Display) -> CardError {
        CardError::Call { call: call.to_string(), reason: reason.to_string() }
    }
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

    /// The same of the host's memory, for what is kept [there](Held::OnHost).
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

    /// Bytes that this queue takes of the card's memory beside what it is asked for: what a library of it works in.
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

/// Memory of a card, given back when dropped.
pub struct Memory {
    card: Arc<dyn Card>,
    at: Address,
    bytes: Bytes,
    held: Held,
    /// What it is a part of, which is kept as long as this.
    whole: Option<Arc<Memory>>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.at.0)
    }
}

impl Memory {
    /// `bytes` of `card`, whose content is not defined.
    ///
    /// # Errors
    /// [`CardError::Full`], or another.
    pub fn new(card: &Arc<dyn Card>, bytes: Bytes) -> Result<Memory, CardError> {
        Memory::held(card, bytes, Held::Kept)
    }

    /// The same, for as long as `held` says.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn held(card: &Arc<dyn Card>, bytes: Bytes, held: Held) -> Result<Memory, CardError> {
        // An empty tensor still is somewhere.
        Ok(Memory { card: Arc::clone(card), at: card.allocate(bytes.max(1), held)?, bytes, held, whole: None })
    }

    /// The `bytes` of `whole` from `offset` on.
    pub fn part(whole: &Arc<Memory>, offset: Bytes, bytes: Bytes) -> Memory {
        assert!(
            whole.bytes.checked_sub(offset).is_some_and(|rest| bytes <= rest),
            "{bytes} bytes, {offset} into {whole:?}"
        );
        let (card, at) = (Arc::clone(&whole.card), whole.after(offset));
        Memory { card, at, bytes, held: whole.held, whole: Some(Arc::clone(whole)) }
    }

    /// `bytes` of `card`, all 0.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn zeros(card: &Arc<dyn Card>, bytes: Bytes) -> Result<Memory, CardError> {
        let memory = Memory::new(card, bytes)?;
        memory.clear()?;
        Ok(memory)
    }

    /// What `content` holds, on `card`.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn holding(card: &Arc<dyn Card>, content: &[u8]) -> Result<Memory, CardError> {
        let memory = Memory::new(card, content.len() as Bytes)?;
        memory.write(content)?;
        Ok(memory)
    }

    /// `bytes` of `card` that hold `some` over and over, which goes there once and is repeated there.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn repeating(card: &Arc<dyn Card>, bytes: Bytes, some: &[u8]) -> Result<Memory, CardError> {
        let memory = Memory::new(card, bytes)?;
        let mut filled = bytes.min(some.len() as Bytes);
        card.write(memory.at, &some[..filled as usize])?;
        while filled > 0 && filled < bytes {
            let more = filled.min(bytes - filled);
            card.copy(memory.at, memory.after(filled), more)?;
            filled += more;
        }
        Ok(memory)
    }

    /// The same content in memory of `card`, which may be another queue, for as long as `held` says; it is there when this
    /// returns.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn copied_to(&self, card: &Arc<dyn Card>, held: Held) -> Result<Memory, CardError> {
        let copy = Memory::held(card, self.bytes, held)?;
        card.copy(self.at, copy.at, self.bytes)?;
        card.finish()?;
        Ok(copy)
    }

    /// Whether it belongs to the queue `card`: then work there may use it, and it is given back behind that work.
    pub fn is_of(&self, card: &Arc<dyn Card>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.card), Arc::as_ptr(card))
    }

    /// Whether it lies in the host's memory.
    pub fn is_on_host(&self) -> bool {
        self.held == Held::OnHost
    }

    /// Its size.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Its start.
    pub fn at(&self) -> Address {
        self.at
    }

    /// The place `offset` bytes on, within this memory.
    pub fn after(&self, offset: Bytes) -> Address {
        assert!(offset <= self.bytes, "a place {offset} bytes into {self:?}");
        Address(self.at.0 + offset)
    }

    /// Waits, and reads it all.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn read(&self) -> Result<Vec<u8>, CardError> {
        let mut bytes = vec![0; self.bytes as usize];
        match self.held {
            Held::OnHost => self.card.read_on_host(self.at, &mut bytes)?,
            _ => self.card.read(self.at, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// Fills it from its start on.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn write(&self, content: &[u8]) -> Result<(), CardError> {
        assert!(content.len() as Bytes <= self.bytes, "{} bytes into {self:?}", content.len());
        match self.held {
            Held::OnHost => self.card.write_on_host(self.at, content),
            _ => self.card.write(self.at, content),
        }
    }

    /// Sets it to 0.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn clear(&self) -> Result<(), CardError> {
        match self.held {
            Held::OnHost => self.card.write_on_host(self.at, &vec![0; self.bytes as usize]),
            _ => self.card.zero(self.at, self.bytes),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.whole.is_none() {
            self.card.free(self.at, self.bytes.max(1), self.held);
        }
    }
}
