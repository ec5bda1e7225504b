//! The kernels compiled for the processor by its C++ compiler: a card that every machine has. Slow, and as exact a check
//! of kernels, launches and the walk as there is without a GPU.
#![allow(unsafe_code, reason = "calls a library that was just compiled, on memory that it allocates itself")]

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use libloading::Library;
use pipeplan_core::base::units::{Bytes, Nanos};

use super::cache;
use super::card::{Address, Args, Card, CardError, Format, Held, Launch, Mark, Matrix, Product};
use super::source;

/// `pipeplan_launch` of `kernels/host_launch.h`.
type Run = unsafe extern "C" fn(unsafe extern "C" fn(Args), *const Args, *const u32, u32, u32);

/// `pipeplan_product` of `kernels/host_launch.h`.
type Multiply = unsafe extern "C" fn(*const u64, *const [u64; 4], f32, f32, i32, i32);

/// The compiled kernels.
struct Kernels {
    library: Library,
    run: Run,
    multiply: Multiply,
}

impl Kernels {
    /// Compiles them, once in the life of the process.
    fn get() -> Result<Arc<Kernels>, CardError> {
        static KERNELS: OnceLock<Result<Arc<Kernels>, CardError>> = OnceLock::new();
        KERNELS.get_or_init(|| Kernels::compile().map(Arc::new)).clone()
    }

    fn compile() -> Result<Kernels, CardError> {
        let fail = |error: &dyn std::fmt::Display| CardError::Compile(error.to_string());
        let source = source::for_host();
        let compiler = compiler();
        // Processes of one run, and runs of one machine, compile once.
        let kept = cache::place((&compiler, FLAGS, &source, std::env::consts::ARCH), "so");
        if let Some(kernels) = kept.as_deref().filter(|path| path.exists()).and_then(|path| Kernels::load(path).ok())
        {
            return Ok(kernels);
        }
        let folder = tempfile::tempdir().map_err(|error| fail(&error))?;
        let object = folder.path().join("libkernels.so");
        build(&source, &compiler, &object)?;
        if let (Some(place), Ok(content)) = (kept, std::fs::read(&object)) {
            cache::keep(&place, &content);
        }
        Kernels::load(&object)
    }

    fn load(path: &Path) -> Result<Kernels, CardError> {
        let fail = |error: libloading::Error| CardError::Compile(error.to_string());
        // SAFETY: the library is ours and has no initialisers.
        let library = unsafe { Library::new(path) }.map_err(fail)?;
        // SAFETY: those are their types.
        let (run, multiply) = unsafe {
            (
                *library.get::<Run>(b"pipeplan_launch").map_err(fail)?,
                *library.get::<Multiply>(b"pipeplan_product").map_err(fail)?,
            )
        };
        Ok(Kernels { library, run, multiply })
    }
}

/// Compiles the kernels for this processor into the library `object`.
///
/// # Errors
/// [`CardError::Compile`], also where there is no compiler.
pub fn build_kernels(object: &Path) -> Result<(), CardError> {
    build(&source::for_host(), &compiler(), object)
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".to_string())
}

fn build(source: &str, compiler: &str, object: &Path) -> Result<(), CardError> {
    let text = object.with_extension("cpp");
    std::fs::write(&text, source).map_err(|error| CardError::Compile(error.to_string()))?;
    let output = Command::new(compiler).args(FLAGS).arg("-o").arg(object).arg(&text).output();
    let output = output.map_err(|error| CardError::Compile(format!("{compiler} cannot be started: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(CardError::Compile(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// No fused multiply-add: the same bits on every processor. Jumps between stacks are what the fibers are made of, and what
/// `_FORTIFY_SOURCE` takes for a mistake.
const FLAGS: [&str; 7] = ["-std=c++17", "-O2", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-U_FORTIFY_SOURCE"];

/// What libraries other than the kernels have put on a queue, and how much of it is done. [`Card::stream`] gives its
/// address: whoever puts work there raises `queued` at once and `done` when it has ended, in order.
#[derive(Default)]
#[repr(C)]
struct Others {
    queued: AtomicU64,
    done: AtomicU64,
}

impl Others {
    fn settle(&self) {
        let queued = self.queued.load(Ordering::SeqCst);
        while self.done.load(Ordering::SeqCst) < queued {
            std::thread::yield_now();
        }
    }
}

/// Where a queue stood.
struct Stand {
    others: Arc<Others>,
    queued: u64,
}

impl Mark for Stand {
    fn is_past(&self) -> Result<bool, CardError> {
        Ok(self.others.done.load(Ordering::SeqCst) >= self.queued)
    }
}

/// A queue whose own work is done at once, after what others have put there.
pub struct Host {
    kernels: Arc<Kernels>,
    others: Arc<Others>,
    watch: Mutex<Instant>,
    /// Bytes held, and at most.
    held: Mutex<(Bytes, Bytes)>,
    /// What was given back while work on it may still wait to be asked for.
    limbo: Mutex<Vec<(u64, Bytes)>>,
    /// Whether something wrote out of the bounds of an allocation.
    overrun: AtomicBool,
}

impl Host {
    /// With the kernels, compiled now where they have not been yet.
    ///
    /// # Errors
    /// [`CardError::Compile`], also where there is no compiler.
    pub fn new() -> Result<Host, CardError> {
        let (watch, held, limbo) = (Mutex::new(Instant::now()), Mutex::default(), Mutex::default());
        let overrun = AtomicBool::new(false);
        Ok(Host { kernels: Kernels::get()?, others: Arc::default(), watch, held, limbo, overrun })
    }

    /// Gives back what nothing can be asked of any more.
    fn empty_limbo(&self) {
        let limbo = std::mem::take(&mut *self.limbo.lock().unwrap_or_else(PoisonError::into_inner));
        for (at, bytes) in limbo {
            let Ok(layout) = layout(bytes) else { continue };
            // SAFETY: `Memory` frees what it was given, once, with the size that it asked for; the fences belong to it.
            unsafe {
                let start = (at as *mut u8).sub(FENCE);
                let whole = std::slice::from_raw_parts(start, layout.size());
                let (before, behind) = (&whole[..FENCE], &whole[FENCE + bytes as usize..]);
                if before.iter().chain(behind).any(|byte| *byte != UNWRITTEN) {
                    self.overrun.store(true, Ordering::SeqCst);
                }
                dealloc(start, layout);
            }
        }
    }

    /// What a card's own checker would say.
    fn check_bounds(&self) -> Result<(), CardError> {
        match self.overrun.load(Ordering::SeqCst) {
            true => Err(CardError::call("the emulated GPU", "an access out of bounds wrote next to an allocation")),
            false => Ok(()),
        }
    }
}

/// As far apart as a card's allocations, so that code that counts on their alignment runs here too.
const ALIGNMENT: usize = 256;

/// Bytes before and behind each allocation that nobody may write.
const FENCE: usize = ALIGNMENT;

/// Content of memory that nobody wrote: NaNs, so that a read of it is found.
const UNWRITTEN: u8 = 0xff;

fn layout(bytes: Bytes) -> Result<Layout, CardError> {
    Layout::from_size_align(bytes as usize + 2 * FENCE, ALIGNMENT).map_err(|_| CardError::Full { bytes, room: None })
}

impl Drop for Host {
    fn drop(&mut self) {
        self.empty_limbo();
    }
}

impl Card for Host {
    fn name(&self) -> String {
        "kernels compiled for this processor".to_string()
    }

    fn shared_bytes(&self) -> u32 {
        // That of an H100.
        227 << 10
    }

    fn allocate(&self, bytes: Bytes, held: Held) -> Result<Address, CardError> {
        let layout = layout(bytes)?;
        // SAFETY: with its fences it is not of size 0.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(CardError::Full { bytes, room: None });
        }
        // SAFETY: the memory was just allocated, and is longer than a fence.
        let start = unsafe {
            start.write_bytes(UNWRITTEN, layout.size());
            start.add(FENCE)
        };
        if held == Held::OnHost {
            return Ok(Address(start as u64));
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.0 += bytes;
        held.1 = held.1.max(held.0);
        Ok(Address(start as u64))
    }

    fn free(&self, at: Address, bytes: Bytes, held: Held) {
        self.others.settle();
        let on_card = if held == Held::OnHost { 0 } else { bytes };
        self.held.lock().unwrap_or_else(PoisonError::into_inner).0 -= on_card;
        self.limbo.lock().unwrap_or_else(PoisonError::into_inner).push((at.0, bytes));
    }

    fn write(&self, to: Address, bytes: &[u8]) -> Result<(), CardError> {
        self.others.settle();
        // SAFETY: `Memory` is as long as what it holds.
        unsafe { (to.0 as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<(), CardError> {
        self.finish()?;
        // SAFETY: as above.
        unsafe { (from.0 as *const u8).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError> {
        self.others.settle();
        // SAFETY: both places have that many bytes, which `Memory` says.
        unsafe { (from.0 as *const u8).copy_to(to.0 as *mut u8, bytes as usize) };
        Ok(())
    }

    /// All of its memory is the host's.
    fn copy_across(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError> {
        self.copy(from, to, bytes)
    }

    fn zero(&self, at: Address, bytes: Bytes) -> Result<(), CardError> {
        self.others.settle();
        // SAFETY: as above.
        unsafe { (at.0 as *mut u8).write_bytes(0, bytes as usize) };
        Ok(())
    }

    fn launch(&self, launch: &Launch) -> Result<(), CardError> {
        self.others.settle();
        // SAFETY: every kernel takes one `Args`; which bytes it touches is decided in `launch`.
        unsafe {
            let kernel = self
                .kernels
                .library
                .get::<unsafe extern "C" fn(Args)>(launch.kernel.as_bytes())
                .map_err(|error| CardError::call(&launch.kernel, error))?;
            let most = format!("{}_threads", launch.kernel);
            let most = self.kernels.library.get::<*const u32>(most.as_bytes());
            let most = **most.map_err(|error| CardError::call(&launch.kernel, error))?;
            if launch.threads > most {
                let reason = format!("{} threads per block, but the kernel is compiled for {most}", launch.threads);
                return Err(CardError::call(&launch.kernel, reason));
            }
            (self.kernels.run)(*kernel, &launch.args, launch.grid.as_ptr(), launch.threads, launch.shared);
        }
        Ok(())
    }

    fn product(&self, product: &Product) -> Result<(), CardError> {
        self.others.settle();
        product.check()?;
        let Product { rows, inner, columns, a, b, c, alpha, beta, count, addend, bias } = *product;
        let matrix = |matrix: Matrix| [matrix.at.0, matrix.row, matrix.step, u64::from(matrix.transposed)];
        let is_half = |matrix: Matrix| i32::from(matrix.format == Format::Bf16);
        let place = |at: Option<Address>| at.map_or(0, |at| at.0);
        // SAFETY: `launch` has checked that the matrices lie within their buffers.
        unsafe {
            (self.kernels.multiply)(
                [rows, inner, columns, count, place(addend), place(bias)].as_ptr(),
                [matrix(a), matrix(b), matrix(c)].as_ptr(),
                alpha,
                beta,
                is_half(a),
                is_half(c),
            );
        }
        Ok(())
    }

    fn prepare(&self, products: &[Product]) -> Result<(), CardError> {
        products.iter().try_for_each(Product::check)
    }

    fn finish(&self) -> Result<(), CardError> {
        self.others.settle();
        self.empty_limbo();
        self.check_bounds()
    }

    fn start_watch(&self) -> Result<(), CardError> {
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(())
    }

    fn stop_watch(&self) -> Result<Nanos, CardError> {
        Ok(self.watch.lock().unwrap_or_else(PoisonError::into_inner).elapsed().as_nanos() as Nanos)
    }

    fn mark(&self) -> Result<Box<dyn Mark>, CardError> {
        let queued = self.others.queued.load(Ordering::SeqCst);
        Ok(Box::new(Stand { others: Arc::clone(&self.others), queued }))
    }

    /// What is asked for here is done at once, so that nobody can wait for anything later.
    fn wait_for(&self, _: &dyn Mark) -> Result<bool, CardError> {
        Ok(false)
    }

    fn another(&self) -> Result<Arc<dyn Card>, CardError> {
        Ok(Arc::new(Host::new()?))
    }

    /// One card a process.
    fn identity(&self) -> [u8; 16] {
        u128::from(std::process::id()).to_le_bytes()
    }

    fn choose(&self) -> Result<(), CardError> {
        Ok(())
    }

    fn stream(&self) -> *mut c_void {
        Arc::as_ptr(&self.others).cast_mut().cast()
    }

    fn taken_bytes(&self) -> Option<Bytes> {
        Some(self.held.lock().unwrap_or_else(PoisonError::into_inner).1)
    }
}

/// The nearest bfloat16, ties to even.
pub fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return 0x7fff;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}
