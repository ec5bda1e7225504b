//! A queue on a real GPU: a stream with its memory, its products and its graphs.
//!
//! - In: the commands of one rank ([`Card`]).
//! - Out: calls of the driver, of cuBLASLt and of cuBLAS.
//! - Knows: one device (`device`), which serves all ranks of the process on that GPU.
//!
//! Each rank has its stream, its memory (`heap`) and its handles of cuBLAS. Products go through cuBLASLt (`cublaslt`), or
//! through the [older library](super::cublas) if cuBLASLt has no algorithm. A list of work that repeats becomes a CUDA graph;
//! if the driver cannot do that, the list is launched piece by piece.
#![allow(unsafe_code, reason = "the driver is a C library; each call says why it is sound")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use pipeplan_core::base::units::{Bytes, Nanos};

use self::event::Event;
use self::graphs::CAPTURES;
use super::card::{Address, Args, Card, CardError, Command, Held, Launch, Mark, Matrix, Product, one_by_one};
use super::cublas::Plain;
use super::cublaslt::Products;
use super::device::{Device, lock};
use super::driver::{Facts, driver_error, elapsed, make_current};
use super::heap::{Heap, rounded};
use super::jobs::{Known, Next};
use crate::runner::available_bytes;

mod event;
mod graphs;
mod open;

/// A stream of a card with all that it needs.
pub struct Nvidia {
    device: Arc<Device>,
    /// That of its stream: the card's, or its part's.
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// What is the rank's own, what others give back, and what is kept on the host.
    heaps: Mutex<[Heap; 3]>,
    /// As [`Opening::apart`].
    apart: bool,
    /// Those of its part, where it has not the whole card.
    multiprocessors: Option<u32>,
    /// Made with the first product: queues for transfers need none. Two calls through one handle may not overlap.
    blas: Mutex<Option<Blas>>,
    /// Lists of work that came before; none where they are not to become graphs.
    graphs: Mutex<Option<Known<sys::CUgraphExec>>>,
    /// Whether a list is being captured.
    is_capturing: AtomicBool,
    /// Start and end of the watch.
    events: [sys::CUevent; 2],
}

/// What a queue has of cuBLAS, and the memory that it may use.
struct Blas {
    /// None until a product needs it.
    plain: Option<Plain>,
    /// None where the library is missing, or cannot be used.
    products: Option<Products>,
    workspace: Address,
}

// SAFETY: the driver's handles may be used by any thread; cuBLAS' is behind a lock.
unsafe impl Send for Nvidia {}

// SAFETY: as above.
unsafe impl Sync for Nvidia {}

/// What cuBLAS may use for itself: of the rank's memory, so that it allocates nothing later and chooses the same way each
/// time. NVIDIA's advice for Hopper is 32 MiB.
pub const WORKSPACE_BYTES: Bytes = 32 << 20;

/// Memory is taken of the driver in multiples of this, as it maps it.
pub const SLAB: Bytes = 2 << 20;

/// Beyond this an algorithm does not ask what an address is a multiple of.
const ALIGNED: u64 = 256;

/// What others give back has its own slabs, which hold a few messages each where nothing says how many there can be.
pub const SLAB_BY_OTHERS: Bytes = 16 << 20;

impl Nvidia {
    fn make_current(&self) -> Result<(), CardError> {
        make_current(self.context)
    }

    /// A slab of host memory of at least `bytes` for its heap.
    fn grow_on_host(heap: &mut Heap, bytes: Bytes) -> Result<(), CardError> {
        let size = rounded(bytes).next_multiple_of(SLAB);
        heap.add(on_host(size)?, size);
        Ok(())
    }

    /// A slab of at least `bytes`, better of `wish`, for one of the heaps.
    fn grow(heap: &mut Heap, bytes: Bytes, wish: Bytes) -> Result<(), CardError> {
        for size in [wish.max(bytes), bytes].map(|size| rounded(size).next_multiple_of(SLAB)) {
            // SAFETY: takes a size; the slab is freed with its heap.
            match unsafe { result::malloc_sync(size as usize) } {
                Ok(start) => {
                    heap.add(start, size);
                    return Ok(());
                }
                Err(result::DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {}
                Err(error) => return Err(driver_error("cuMemAlloc", error)),
            }
        }
        let room = result::mem_get_info().ok().map(|(free, all)| (free as Bytes, all as Bytes));
        Err(CardError::Full { bytes, room })
    }

    /// What the driver says of the card.
    pub fn facts(&self) -> &Facts {
        &self.device.facts
    }

    /// `work` with what this queue has of cuBLAS.
    fn with_blas<R>(&self, work: impl FnOnce(&mut Blas) -> Result<R, CardError>) -> Result<R, CardError> {
        let mut blas = lock(&self.blas);
        match &mut *blas {
            Some(blas) => work(blas),
            none => work(none.insert(self.new_blas()?)),
        }
    }
}

/// The heap of what is held so.
const fn heap_of(held: Held) -> usize {
    match held {
        Held::Kept | Held::Briefly => 0,
        Held::ByOthers => 1,
        Held::OnHost => ON_HOST,
    }
}

const ON_HOST: usize = 2;

/// Memory of the host that does not move, which all contexts of this process reach at the same address.
fn on_host(bytes: Bytes) -> Result<u64, CardError> {
    // For all contexts, and for kernels: with one address space for both, which all cards of today have, the latter
    // goes without
    // saying.
    const FLAGS: u32 = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    let room = available_bytes();
    if room.is_some_and(|room| bytes > room) {
        // Asked for more, systems end programs, or stand still, rather than say no.
        return Err(CardError::HostFull { bytes, room });
    }
    // SAFETY: takes a size; freed by `free_on_host`.
    match unsafe { result::malloc_host(bytes as usize, FLAGS) } {
        Ok(start) => Ok(start as u64),
        Err(result::DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Err(CardError::HostFull { bytes, room }),
        Err(error) => Err(driver_error("cuMemHostAlloc", error)),
    }
}

/// Gives back what [`on_host`] gave.
fn free_on_host(start: u64) -> Result<(), result::DriverError> {
    // SAFETY: called once for each, when no work uses it any more.
    unsafe { result::free_host(start as *mut c_void) }
}

/// How long a queue that is given up may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);

impl Drop for Nvidia {
    fn drop(&mut self) {
        // Whoever was last to hold memory of it may be another rank, beside which this one still has its part's context.
        if self.make_current().is_err() && self.device.make_current().is_err() {
            return;
        }
        // A transfer that could not be ended waits for a rank that is gone: what it uses goes with the process.
        let deadline = Instant::now() + LONGEST_END;
        let waits = self.mark().is_ok_and(|mark| {
            while matches!(mark.is_past(), Ok(false)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(50));
            }
            matches!(mark.is_past(), Ok(false))
        });
        if waits {
            std::mem::forget(lock(&self.blas).take());
            return;
        }
        // SAFETY: all memory of the stream keeps its card alive, so nothing uses these handles any more.
        unsafe {
            let _alone = CAPTURES.write();
            for graph in lock(&self.graphs).take().into_iter().flat_map(Known::into_made) {
                let _ = result::graph::exec_destroy(graph);
            }
            drop(lock(&self.blas).take());
            let heaps = lock(&self.heaps);
            for (start, _) in heaps[..ON_HOST].iter().flat_map(Heap::slabs) {
                let _ = result::free_sync(start);
            }
            for (start, _) in heaps[ON_HOST].slabs() {
                let _ = free_on_host(start);
            }
            drop(heaps);
            for event in self.events {
                let _ = result::event::destroy(event);
            }
            let _ = result::stream::destroy(self.stream);
        }
        // The context of a part stays for its next user.
        let _ = self.device.make_current();
    }
}

impl Card for Nvidia {
    fn name(&self) -> String {
        let Facts { ordinal, name, multiprocessors, .. } = &self.device.facts;
        let part = self.multiprocessors.map(|part| format!(", {part} of {multiprocessors} multiprocessors"));
        format!("GPU {ordinal}, {name}{}", part.unwrap_or_default())
    }

    fn shared_bytes(&self) -> u32 {
        self.device.shared_bytes
    }

    fn has(&self, kernel: &str) -> bool {
        self.device.has(kernel)
    }

    fn reserve(&self, bytes: Bytes, leaves: Bytes) -> Result<(), CardError> {
        self.make_current()?;
        let bytes = rounded(bytes) + rounded(WORKSPACE_BYTES);
        if self.apart {
            return Ok(());
        }
        let mut heaps = lock(&self.heaps);
        if heaps[0].taken() < bytes {
            Nvidia::grow(&mut heaps[0], bytes, bytes)?;
        }
        if heaps[1].taken() < leaves {
            Nvidia::grow(&mut heaps[1], leaves, leaves)?;
        }
        Ok(())
    }

    fn reserve_on_host(&self, bytes: Bytes) -> Result<(), CardError> {
        self.make_current()?;
        let mut heaps = lock(&self.heaps);
        if !self.apart && heaps[ON_HOST].taken() < bytes {
            Nvidia::grow_on_host(&mut heaps[ON_HOST], bytes)?;
        }
        Ok(())
    }

    fn allocate(&self, bytes: Bytes, held: Held) -> Result<Address, CardError> {
        if self.apart {
            self.make_current()?;
            if held == Held::OnHost {
                return on_host(bytes).map(Address);
            }
            // SAFETY: takes a size; freed where it is given back.
            let at = unsafe { result::malloc_sync(bytes as usize) };
            return at.map(Address).map_err(|error| driver_error("cuMemAlloc", error));
        }
        let mut heaps = lock(&self.heaps);
        let heap = &mut heaps[heap_of(held)];
        if let Some(at) = heap.allocate(bytes, held) {
            return Ok(Address(at));
        }
        self.make_current()?;
        // Beyond what was reserved: little at a time, since what is taken stays taken.
        match held {
            Held::Kept | Held::Briefly => Nvidia::grow(heap, bytes, (heap.taken() / 16).min(SLAB_BY_OTHERS))?,
            Held::ByOthers => Nvidia::grow(heap, bytes, SLAB_BY_OTHERS)?,
            Held::OnHost => Nvidia::grow_on_host(heap, bytes)?,
        }
        heap.allocate(bytes, held).map(Address).ok_or(CardError::Full { bytes, room: None })
    }

    fn free(&self, at: Address, bytes: Bytes, held: Held) {
        if self.apart {
            // SAFETY: what `allocate` gave, once; the driver waits for all work first. Where that has failed, so does this.
            let _ = self.finish().map(|()| match held {
                Held::OnHost => free_on_host(at.0),
                _ => unsafe { result::free_sync(at.0) },
            });
            return;
        }
        lock(&self.heaps)[heap_of(held)].give_back(at.0, bytes);
    }

    fn write(&self, to: Address, bytes: &[u8]) -> Result<(), CardError> {
        self.make_current()?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: `Memory` is as long as what it holds. Pageable memory is copied away before the call returns, and the
        // wait makes sure of it.
        unsafe {
            result::memcpy_htod_async(to.0, bytes, self.stream)
                .map_err(|error| driver_error("cuMemcpyHtoD", error))?;
        }
        self.finish()
    }

    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<(), CardError> {
        self.make_current()?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: as above, and the wait lets `bytes` outlive the copy.
        unsafe {
            result::memcpy_dtoh_async(bytes, from.0, self.stream)
                .map_err(|error| driver_error("cuMemcpyDtoH", error))?;
        }
        self.finish()
    }

    fn write_on_host(&self, to: Address, bytes: &[u8]) -> Result<(), CardError> {
        self.finish()?;
        // SAFETY: `Memory` is as long as what it holds; it is the host's own, at this address for the host too, and the queue
        // does nothing with it any more.
        unsafe { (to.0 as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read_on_host(&self, from: Address, bytes: &mut [u8]) -> Result<(), CardError> {
        self.finish()?;
        // SAFETY: as above.
        unsafe { (from.0 as *const u8).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError> {
        self.make_current()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both places have that many bytes, which `Memory` says.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes as usize, self.stream) }
            .map_err(|error| driver_error("cuMemcpyDtoD", error))
    }

    fn copy_across(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError> {
        self.make_current()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as above; the driver tells by the address which of them is the host's.
        unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes as usize, self.stream) }
            .result()
            .map_err(|error| driver_error("cuMemcpyAsync", error))
    }

    fn zero(&self, at: Address, bytes: Bytes) -> Result<(), CardError> {
        self.make_current()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { result::memset_d8_async(at.0, 0, bytes as usize, self.stream) }
            .map_err(|error| driver_error("cuMemsetD8", error))
    }

    fn launch(&self, launch: &Launch) -> Result<(), CardError> {
        self.make_current()?;
        let function = self.device.function(&launch.kernel)?;
        let [x, y, z] = launch.grid;
        let mut args: Args = launch.args;
        let mut parameters = [(&raw mut args).cast::<c_void>()];
        // SAFETY: every kernel takes one `Args`, which the call copies. Which bytes a kernel touches is decided in
        // `launch`, which the host engine runs too.
        unsafe {
            result::launch_kernel(
                function.0,
                (x, y, z),
                (launch.threads, 1, 1),
                launch.shared,
                self.stream,
                &mut parameters,
            )
        }
        .map_err(|error| driver_error(&format!("launching {} with {:?} blocks", launch.kernel, launch.grid), error))
    }

    fn prepare(&self, products: &[Product]) -> Result<(), CardError> {
        self.make_current()?;
        let extent = |matrix: &Matrix, sizes: [u64; 2], count: u64| {
            let [height, width] = if matrix.transposed { [sizes[1], sizes[0]] } else { sizes };
            let last = (count.max(1) - 1) * matrix.step + (height.max(1) - 1) * matrix.row + width;
            (matrix.at.0 % ALIGNED + last * matrix.format.bytes()).next_multiple_of(ALIGNED)
        };
        let extents = |product: &Product| {
            let Product { rows, inner, columns, a, b, c, count, .. } = product;
            [
                extent(a, [*rows, *inner], *count),
                extent(b, [*inner, *columns], *count),
                extent(c, [*rows, *columns], *count),
            ]
        };
        let most = products.iter().map(|product| extents(product).iter().sum()).max().unwrap_or(0u64);
        if most == 0 {
            return Ok(());
        }
        // The workspace first, so that it lies where it stays. The operands' room is given back before the rank asks for
        // any; if there is none, there is none for the rank either, which will say so.
        self.with_blas(|_| Ok(()))?;
        let at = lock(&self.heaps)[0].allocate(most, Held::Briefly);
        // SAFETY: freed below, when nothing uses it any more.
        let beside = at.is_none().then(|| unsafe { result::malloc_sync(most as usize) }.ok()).flatten();
        let Some(scratch) = at.or(beside) else { return Ok(()) };
        let run = |product: &Product| {
            let [a, b, _] = extents(product);
            let at = |matrix: Matrix, start: u64| Matrix {
                at: Address(scratch + start + matrix.at.0 % ALIGNED),
                ..matrix
            };
            let (a, b, c) = (at(product.a, 0), at(product.b, a), at(product.c, a + b));
            let [addend, bias] = [product.addend, product.bias].map(|there| there.map(|_| c.at));
            self.product(&Product { a, b, c, addend, bias, ..*product })
        };
        let ran = self
            .zero(Address(scratch), most)
            .and_then(|()| products.iter().try_for_each(run))
            .and_then(|()| self.finish());
        let _alone = CAPTURES.write();
        match beside {
            // SAFETY: the stream is done with it, or has failed for good.
            Some(beside) => drop(unsafe { result::free_sync(beside) }),
            None => lock(&self.heaps)[0].give_back(scratch, most),
        }
        ran
    }

    fn run(&self, list: &[Command]) -> Result<(), CardError> {
        let mut graphs = lock(&self.graphs);
        let Some(known) = &mut *graphs else { return one_by_one(self, list) };
        match known.next(list) {
            Next::Run => one_by_one(self, list),
            Next::Repeat(graph) => self.repeat(*graph),
            Next::Make(key) => {
                let made = self.graph_of(list).and_then(|graph| {
                    known.keep(key, list.to_vec(), graph);
                    self.repeat(graph)
                });
                made.or_else(|error| self.without_graphs(&mut graphs, list, &error))
            }
        }
    }

    fn product(&self, product: &Product) -> Result<(), CardError> {
        self.make_current()?;
        product.check()?;
        self.with_blas(|blas| {
            let started = match &mut blas.products {
                Some(products) => products.start(product, blas.workspace, self.stream.cast())?,
                None => false,
            };
            if started {
                return Ok(());
            }
            let workspace = (blas.workspace, WORKSPACE_BYTES as usize);
            let plain = match &mut blas.plain {
                Some(plain) => plain,
                // What follows would wait for the capture that it is part of. Such a list goes without a graph.
                None if self.is_capturing.load(Ordering::Relaxed) => {
                    return Err(CardError::call(
                        "capturing a product",
                        "cuBLASLt does not launch it, although it did before",
                    ));
                }
                none => {
                    let _alone = CAPTURES.write();
                    none.insert(Plain::new(self.stream(), workspace, self.multiprocessors)?)
                }
            };
            plain.start(self, product)
        })
    }

    fn finish(&self) -> Result<(), CardError> {
        self.make_current()?;
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::synchronize(self.stream) }
            .map_err(|error| driver_error("waiting for the GPU", error))
    }

    fn start_watch(&self) -> Result<(), CardError> {
        self.make_current()?;
        // SAFETY: event and stream live as long as this.
        unsafe { result::event::record(self.events[0], self.stream) }
            .map_err(|error| driver_error("cuEventRecord", error))
    }

    fn stop_watch(&self) -> Result<Nanos, CardError> {
        self.make_current()?;
        // SAFETY: as above.
        let milliseconds = unsafe {
            result::event::record(self.events[1], self.stream)
                .map_err(|error| driver_error("cuEventRecord", error))?;
            result::event::synchronize(self.events[1]).map_err(|error| driver_error("cuEventSynchronize", error))?;
            elapsed(self.events[0], self.events[1])?
        };
        Ok((f64::from(milliseconds) * 1e6) as Nanos)
    }

    fn mark(&self) -> Result<Box<dyn Mark>, CardError> {
        self.make_current()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(|error| driver_error("cuEventCreate", error))?;
        let mark = Event { context: self.device.context, event };
        // SAFETY: event and stream are valid.
        unsafe { result::event::record(event, self.stream) }.map_err(|error| driver_error("cuEventRecord", error))?;
        Ok(Box::new(mark))
    }

    fn wait_for(&self, mark: &dyn Mark) -> Result<bool, CardError> {
        let event: sys::CUevent = mark.event().cast();
        if event.is_null() {
            return Ok(false);
        }
        self.make_current()?;
        // SAFETY: marks that have an event are of this module, which destroys it with the mark; what has been told to wait
        // does so whatever becomes of it.
        unsafe { result::stream::wait_event(self.stream, event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(|error| driver_error("cuStreamWaitEvent", error))?;
        Ok(true)
    }

    fn another(&self) -> Result<Arc<dyn Card>, CardError> {
        Ok(Arc::new(Nvidia::for_transfers(&self.device)?))
    }

    fn identity(&self) -> [u8; 16] {
        self.device.facts.uuid
    }

    fn choose(&self) -> Result<(), CardError> {
        self.device.make_current()
    }

    fn stream(&self) -> *mut c_void {
        self.stream.cast()
    }

    fn workspace_bytes(&self) -> Bytes {
        WORKSPACE_BYTES
    }

    fn taken_bytes(&self) -> Option<Bytes> {
        Some(lock(&self.heaps)[..ON_HOST].iter().map(Heap::taken).sum())
    }

    fn trim(&self) -> Result<(), CardError> {
        self.finish()?;
        let unused: Vec<u64> = lock(&self.heaps)[..ON_HOST].iter_mut().flat_map(Heap::give_up).collect();
        let _alone = CAPTURES.write();
        // SAFETY: the stream is done, and the heap deals out nothing of them any more. Graphs that name them are not started
        // again, since nothing gets their places any more.
        unused
            .into_iter()
            .try_for_each(|start| unsafe { result::free_sync(start) })
            .map_err(|error| driver_error("cuMemFree", error))
    }

    fn device_memory(&self) -> Option<(Bytes, Bytes)> {
        self.make_current().ok()?;
        let (free, all) = result::mem_get_info().ok()?;
        Some(((all - free) as Bytes, all as Bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Opening, libraries};
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_hears_what_is_missing() {
        if libraries::missing().is_empty() {
            return;
        }
        let error = Nvidia::on(0, Opening::default()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("is missing: looked for") && error.contains("To get it:"), "{error}");
    }
}
