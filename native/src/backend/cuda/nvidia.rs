//! A real card, through the driver, NVRTC and cuBLAS. All calls of those libraries are here.
//!
//! One context and one set of compiled kernels serve all ranks of the process on a card; each rank has its own stream,
//! its own memory, which it [deals out](super::heap) itself, and its own handles of cuBLAS. Products go through
//! [cuBLASLt](super::products), or through cuBLAS where that has no algorithm for them. A list of work that comes again as it
//! was becomes a CUDA graph; where the driver cannot do that, it is started piece by piece as before.
#![allow(unsafe_code, reason = "the libraries are C; each call says why it is sound")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::cublas::{result as blas, sys as blas_sys};
use cudarc::driver::{result, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use pipeplan_core::units::{Bytes, Nanos};

use super::cache;
use super::card::Portion;
use super::card::{Address, Args, Card, CardError, Command, Format, Held, Launch, Mark, Matrix, Product, one_by_one};
use super::green::{self, Part};
use super::heap::{Heap, rounded};
use super::jobs::{Known, Next};
use super::libraries::{self, Which};
use super::products::Products;
use super::{Opening, source};

/// A GPU as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its position among the GPUs that the driver shows.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Its memory.
    pub bytes: Bytes,
    /// What it can do, such as 9.0.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// What tells it from all other GPUs.
    pub uuid: [u8; 16],
    /// Its place on the PCI bus, such as `0000:1b:00.0`.
    pub bus: String,
    /// GPUs whose memory it reaches directly, each with the rank of the link among the machine's (0 is the best).
    pub links: Vec<(usize, u32)>,
}

/// The newest CUDA that the driver speaks, such as 13000, and its GPUs.
///
/// # Errors
/// [`CardError`], also where there is no driver.
pub fn gpus() -> Result<(u32, Vec<Facts>), CardError> {
    let driver = libraries::search(Which::Driver);
    if driver.found.is_none() {
        return Err(CardError::Missing(vec![driver.to_string()]));
    }
    guarded("asking the driver", || {
        result::init().map_err(|error| driver_error("cuInit", error))?;
        let mut version = 0;
        // SAFETY: writes one int.
        unsafe { sys::cuDriverGetVersion(&mut version) }
            .result()
            .map_err(|error| driver_error("cuDriverGetVersion", error))?;
        let count = result::device::get_count().map_err(|error| driver_error("cuDeviceGetCount", error))?;
        let facts = (0..count as usize).map(|ordinal| facts(ordinal, count as usize)).collect::<Result<_, _>>()?;
        Ok((version as u32, facts))
    })
}

fn facts(ordinal: usize, count: usize) -> Result<Facts, CardError> {
    let fail = |error| driver_error("asking for a GPU's properties", error);
    let device = result::device::get(ordinal as i32).map_err(fail)?;
    let name = result::device::get_name(device).map_err(fail)?;
    // SAFETY: `device` is the driver's.
    let bytes = unsafe { result::device::total_mem(device) }.map_err(fail)? as Bytes;
    let mut links = Vec::new();
    for other in (0..count).filter(|other| *other != ordinal) {
        let peer = result::device::get(other as i32).map_err(fail)?;
        let ask = |which| {
            let mut value = 0;
            // SAFETY: writes one int; both devices are the driver's.
            let answer = unsafe { sys::cuDeviceGetP2PAttribute(&mut value, which, device, peer) };
            answer.result().map(|()| value as u32).unwrap_or(0)
        };
        use sys::CUdevice_P2PAttribute_enum as P2p;
        if ask(P2p::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED) == 1 {
            links.push((other, ask(P2p::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)));
        }
    }
    use sys::CUdevice_attribute as Attribute;
    let capability = (
        attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let multiprocessors = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes 16 bytes; of a part of a GPU, they are the part's.
    unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) }.result().map_err(fail)?;
    let uuid = uuid.bytes.map(|byte| byte as u8);
    let mut bus = [0 as c_char; 32];
    // SAFETY: writes at most so many bytes, and ends them with 0.
    let bus = unsafe {
        sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as i32, device).result().map_err(fail)?;
        CStr::from_ptr(bus.as_ptr()).to_string_lossy().into_owned()
    };
    Ok(Facts { ordinal, name, bytes, capability, multiprocessors, uuid, bus, links })
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32, CardError> {
    // SAFETY: `device` is the driver's.
    let value = unsafe { result::device::get_attribute(device, which) };
    value.map(|value| value as u32).map_err(|error| driver_error("cuDeviceGetAttribute", error))
}

/// The version of the NVRTC that was found, such as (13, 0).
pub fn nvrtc_version() -> Option<(u32, u32)> {
    libraries::search(Which::Nvrtc).found.as_ref()?;
    guarded("nvrtcVersion", || {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two ints.
        unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) }
            .result()
            .map_err(|error| CardError::call("nvrtcVersion", format!("{error:?}")))?;
        Ok((major as u32, minor as u32))
    })
    .ok()
}

/// The version of the cuBLAS that was found, such as (13, 1, 0); asks it by the way by which products go, and needs no GPU.
///
/// # Errors
/// [`CardError`], also where it was found and cannot be called.
pub fn cublas_version() -> Result<(u32, u32, u32), CardError> {
    let search = libraries::search(Which::Cublas);
    if search.found.is_none() {
        return Err(CardError::Missing(vec![search.to_string()]));
    }
    guarded("cublasGetProperty", || {
        use blas_sys::libraryPropertyType_t as Property;
        let ask = |property| {
            let mut value = 0;
            // SAFETY: writes one int.
            let asked = unsafe { blas_sys::cublasGetProperty(property, &mut value) };
            asked.result().map(|()| value as u32).map_err(|error| blas_error("cublasGetProperty", error))
        };
        Ok((ask(Property::MAJOR_VERSION)?, ask(Property::MINOR_VERSION)?, ask(Property::PATCH_LEVEL)?))
    })
}

/// As [`compile`], or what an earlier process has kept of it.
fn image(capability: (u32, u32)) -> Result<Vec<u8>, CardError> {
    let kept = cache::place((source::for_gpu(), capability, nvrtc_version()), "cubin");
    if let Some(image) = kept.as_ref().and_then(|place| std::fs::read(place).ok()).filter(|image| is_code(image)) {
        return Ok(image);
    }
    let image = compile(capability)?;
    if let Some(place) = kept {
        cache::keep(&place, &image);
    }
    Ok(image)
}

/// Whether `image` begins as machine code does.
fn is_code(image: &[u8]) -> bool {
    image.starts_with(b"\x7fELF")
}

/// Machine code of all kernels for a GPU of `capability`.
///
/// # Errors
/// [`CardError::Missing`] without NVRTC, [`CardError::Compile`].
pub fn compile(capability: (u32, u32)) -> Result<Vec<u8>, CardError> {
    let search = libraries::search(Which::Nvrtc);
    if search.found.is_none() {
        return Err(CardError::Missing(vec![search.to_string()]));
    }
    guarded("compiling the kernels", || {
        let text = CString::new(source::for_gpu()).map_err(|error| CardError::Compile(error.to_string()))?;
        let fail = |error: nvrtc::NvrtcError| CardError::Compile(format!("{error:?}"));
        let program = nvrtc::create_program(&text, Some(c"pipeplan")).map_err(fail)?;
        let options = [format!("--gpu-architecture=sm_{}{}", capability.0, capability.1), "--std=c++17".to_string()];
        // SAFETY: `program` was just made and is destroyed once, below.
        let compiled = unsafe { nvrtc::compile_program(program, &options) };
        let image = match compiled {
            Ok(()) => {
                let mut size = 0;
                // SAFETY: asks for the size of what was compiled, then fills a buffer of that size.
                unsafe {
                    nvrtc_sys::nvrtcGetCUBINSize(program, &mut size).result().map_err(fail)?;
                    let mut image = vec![0u8; size];
                    nvrtc_sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result().map_err(fail)?;
                    Ok(image)
                }
            }
            Err(error) => {
                // SAFETY: `program` has been compiled, if in vain.
                let log = unsafe { nvrtc::get_program_log(program) }.unwrap_or_default();
                let log: String = log.iter().map(|byte| char::from(*byte as u8)).collect();
                Err(CardError::Compile(format!("{error:?} with {options:?}\n{}", log.trim_matches(['\0', '\n']))))
            }
        };
        // SAFETY: as above; nothing uses it from here on.
        let _ = unsafe { nvrtc::destroy_program(program) };
        image
    })
}

/// A function of the driver that older ones lack; nothing where this one does.
///
/// # Safety
/// `F` is the function's type.
pub(super) unsafe fn of_driver<F: Copy>(name: &CStr) -> Option<F> {
    let path = libraries::search(Which::Driver).found.as_ref()?;
    // SAFETY: the driver is loaded already and stays so; the type is as the caller promises.
    unsafe {
        let library = std::mem::ManuallyDrop::new(libloading::Library::new(path).ok()?);
        library.get::<F>(name.to_bytes_with_nul()).ok().map(|function| *function)
    }
}

/// Loads all kernels of `module` onto the card, which by default happens at the first launch of each and may then wait
/// for whatever runs there. Drivers before 12.4 cannot be asked to.
fn load_all(module: sys::CUmodule) -> Result<(), CardError> {
    type Count = unsafe extern "C" fn(*mut u32, sys::CUmodule) -> sys::CUresult;
    type List = unsafe extern "C" fn(*mut sys::CUfunction, u32, sys::CUmodule) -> sys::CUresult;
    type Load = unsafe extern "C" fn(sys::CUfunction) -> sys::CUresult;
    // SAFETY: cuda.h of 12.4 and later gives them these types; the list has room for as many as were counted.
    unsafe {
        let found = (
            of_driver::<Count>(c"cuModuleGetFunctionCount"),
            of_driver::<List>(c"cuModuleEnumerateFunctions"),
            of_driver::<Load>(c"cuFuncLoad"),
        );
        let (Some(count), Some(list), Some(load)) = found else { return Ok(()) };
        let fail = |error| driver_error("loading the kernels", error);
        let mut functions = 0;
        count(&mut functions, module).result().map_err(fail)?;
        let mut all = vec![std::ptr::null_mut(); functions as usize];
        list(all.as_mut_ptr(), functions, module).result().map_err(fail)?;
        all.into_iter().try_for_each(|function| load(function).result()).map_err(fail)
    }
}

/// Milliseconds between two events. The bindings know only the function's second version, which drivers before 12.8 do
/// not have.
///
/// # Safety
/// Both events must have been recorded, and the second be over.
unsafe fn elapsed(from: sys::CUevent, to: sys::CUevent) -> Result<f32, CardError> {
    type Call = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
    static CALL: OnceLock<Option<Call>> = OnceLock::new();
    // SAFETY: both versions are of this type.
    let find = || unsafe { of_driver(c"cuEventElapsedTime_v2").or_else(|| of_driver(c"cuEventElapsedTime")) };
    let call = CALL.get_or_init(find).ok_or_else(|| CardError::call("cuEventElapsedTime", "the driver lacks it"))?;
    let mut milliseconds = 0.0;
    // SAFETY: as the caller promises; writes one float.
    unsafe { call(&mut milliseconds, from, to) }
        .result()
        .map_err(|error| driver_error("cuEventElapsedTime", error))?;
    Ok(milliseconds)
}

/// `work`, with a panic of the bindings (a function that an old library lacks) as an error.
fn guarded<T>(what: &str, work: impl FnOnce() -> Result<T, CardError>) -> Result<T, CardError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let reason = panic.downcast_ref::<String>().cloned();
        let reason = reason.unwrap_or_else(|| "the library lacks a function: it is too old".to_string());
        Err(CardError::call(what, reason))
    })
}

pub(super) fn driver_error(call: &str, error: result::DriverError) -> CardError {
    CardError::call(call, format!("{error:?}"))
}

/// A card with its kernels.
struct Device {
    ordinal: usize,
    facts: Facts,
    context: sys::CUcontext,
    module: sys::CUmodule,
    /// By name.
    functions: Mutex<BTreeMap<String, Function>>,
    /// By their number, the parts that it has been dealt in.
    parts: Mutex<BTreeMap<usize, Vec<Part>>>,
    shared_bytes: u32,
}

#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: a driver's handles belong to the process and may be used by any of its threads.
unsafe impl Send for Device {}
// SAFETY: the same; what changes is behind a lock.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Function {}

/// Locks, also after another thread's panic: all that is locked here is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// GPU `ordinal`, opened once in the life of the process.
    fn open(ordinal: usize) -> Result<Arc<Device>, CardError> {
        static OPEN: Mutex<BTreeMap<usize, Arc<Device>>> = Mutex::new(BTreeMap::new());
        let missing = libraries::missing();
        if !missing.is_empty() {
            return Err(CardError::Missing(missing.iter().map(ToString::to_string).collect()));
        }
        let mut open = lock(&OPEN);
        if let Some(device) = open.get(&ordinal) {
            return Ok(Arc::clone(device));
        }
        let (_, gpus) = gpus()?;
        let facts = gpus.get(ordinal).cloned().ok_or(CardError::NoSuchCard { ordinal, count: gpus.len() })?;
        if facts.capability < (8, 0) {
            let (major, minor) = facts.capability;
            let reason = format!("its compute capability is {major}.{minor}, and bf16 needs 8.0 (A100) or later");
            return Err(CardError::call(&facts.name, reason));
        }
        let image = image(facts.capability)?;
        let device = guarded("opening the GPU", || {
            let handle = result::device::get(ordinal as i32).map_err(|error| driver_error("cuDeviceGet", error))?;
            // SAFETY: the context stays retained until the process ends, the module loaded.
            let (context, module) = unsafe {
                let context = result::primary_ctx::retain(handle)
                    .map_err(|error| driver_error("cuDevicePrimaryCtxRetain", error))?;
                result::ctx::set_current(context).map_err(|error| driver_error("cuCtxSetCurrent", error))?;
                let module = result::module::load_data(image.as_ptr().cast::<c_void>())
                    .map_err(|error| driver_error("cuModuleLoadData", error))?;
                (context, module)
            };
            load_all(module)?;
            let shared =
                attribute(handle, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
            let (functions, parts) = (Mutex::default(), Mutex::default());
            Ok(Device { ordinal, facts, context, module, functions, parts, shared_bytes: shared })
        })?;
        let device = Arc::new(device);
        open.insert(ordinal, Arc::clone(&device));
        Ok(device)
    }

    /// The driver asks which context a call means.
    fn make_current(&self) -> Result<(), CardError> {
        make_current(self.context)
    }

    /// A part of the multiprocessors, made at its first use and kept.
    fn part(&self, Portion { part, parts }: Portion) -> Result<Part, CardError> {
        let mut known = lock(&self.parts);
        let all = match known.entry(parts) {
            Entry::Occupied(all) => all.into_mut(),
            Entry::Vacant(place) => {
                let handle = result::device::get(self.ordinal as i32);
                let handle = handle.map_err(|error| driver_error("cuDeviceGet", error))?;
                place.insert(green::split(handle, parts)?)
            }
        };
        all.get(part)
            .copied()
            .ok_or_else(|| CardError::call("sharing out the multiprocessors", "there is no such part"))
    }

    fn function(&self, name: &str) -> Result<Function, CardError> {
        let mut functions = lock(&self.functions);
        if let Some(function) = functions.get(name) {
            return Ok(*function);
        }
        let text = CString::new(name).map_err(|error| CardError::call(name, error))?;
        // SAFETY: the module is loaded for good. Shared memory up to the card's limit is the launch's to choose.
        let function = unsafe {
            let function = result::module::get_function(self.module, text)
                .map_err(|error| driver_error(&format!("looking for the kernel {name}"), error))?;
            let limit = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let held = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
            let held = result::function::get_function_attribute(function, held)
                .map_err(|error| driver_error("cuFuncGetAttribute", error))?;
            result::function::set_function_attribute(function, limit, self.shared_bytes as i32 - held)
                .map_err(|error| driver_error("cuFuncSetAttribute", error))?;
            Function(function)
        };
        functions.insert(name.to_string(), function);
        Ok(function)
    }
}

/// Lets this thread's calls mean `context`.
fn make_current(context: sys::CUcontext) -> Result<(), CardError> {
    // SAFETY: contexts of this module are never released.
    unsafe { result::ctx::set_current(context) }.map_err(|error| driver_error("cuCtxSetCurrent", error))
}

/// A stream of a card with all that it needs.
pub struct Nvidia {
    device: Arc<Device>,
    /// That of its stream: the card's, or its part's.
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// What is the rank's own, and what others give back.
    heaps: Mutex<[Heap; 2]>,
    /// As [`Opening::apart`].
    apart: bool,
    /// Those of its part, where it has not the whole card.
    multiprocessors: Option<u32>,
    /// Made with the first product: queues for transfers need none. Two calls through one handle may not overlap.
    blas: Mutex<Option<Blas>>,
    /// Lists of work that came before; none where they are not to become graphs.
    graphs: Mutex<Option<Known<sys::CUgraphExec>>>,
    /// Start and end of the watch.
    events: [sys::CUevent; 2],
}

/// Handles of cuBLAS and the memory that they may use.
struct Blas {
    /// None until a product needs it.
    handle: Option<blas_sys::cublasHandle_t>,
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
const SLAB: Bytes = 2 << 20;

/// What others give back has its own slabs, which hold a few messages each.
const SLAB_BY_OTHERS: Bytes = 16 << 20;

impl Nvidia {
    /// A new stream on GPU `ordinal`.
    ///
    /// # Errors
    /// [`CardError`]; also where `opening` asks for a part and the driver cannot share the multiprocessors out.
    pub fn on(ordinal: usize, opening: Opening) -> Result<Nvidia, CardError> {
        let device = Device::open(ordinal)?;
        device.make_current()?;
        let Some(portion) = opening.portion else {
            let create = || {
                result::stream::create(result::stream::StreamKind::NonBlocking)
                    .map_err(|error| driver_error("cuStreamCreate", error))
            };
            return Nvidia::with(&device, device.context, create, None, opening);
        };
        let part = device.part(portion)?;
        // Work on a part belongs to the part's context or, as drivers also have it, to the card's: what works, works.
        let mut failed = None;
        for context in part.context().ok().into_iter().chain([device.context]) {
            let queue = Nvidia::with(&device, context, || part.stream(), Some(part.multiprocessors), opening);
            match queue.and_then(|queue| queue.try_out().map(|()| queue)) {
                Ok(queue) => return Ok(queue),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| CardError::call("sharing out the multiprocessors", "no part can be used")))
    }

    /// A stream for transfers, on the whole card. Its kernels are few and others wait for them, so they come first.
    fn beside(device: &Arc<Device>) -> Result<Nvidia, CardError> {
        let create = || {
            let (mut least, mut greatest, mut stream) = (0, 0, std::ptr::null_mut());
            // SAFETY: writes two ints and a stream, of the context that is current.
            unsafe {
                sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
                    .result()
                    .map_err(|error| driver_error("cuCtxGetStreamPriorityRange", error))?;
                let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
                sys::cuStreamCreateWithPriority(&mut stream, flags, greatest)
                    .result()
                    .map_err(|error| driver_error("cuStreamCreateWithPriority", error))?;
            }
            Ok(stream)
        };
        Nvidia::with(device, device.context, create, None, Opening::default())
    }

    fn with(
        device: &Arc<Device>,
        context: sys::CUcontext,
        stream: impl FnOnce() -> Result<sys::CUstream, CardError>,
        multiprocessors: Option<u32>,
        Opening { graphs, apart, .. }: Opening,
    ) -> Result<Nvidia, CardError> {
        make_current(context)?;
        guarded("opening a stream", || {
            let stream = stream()?;
            let event = || {
                result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
                    .map_err(|error| driver_error("cuEventCreate", error))
            };
            Ok(Nvidia {
                events: [event()?, event()?],
                device: Arc::clone(device),
                context,
                stream,
                heaps: Mutex::default(),
                apart,
                multiprocessors,
                blas: Mutex::new(None),
                graphs: Mutex::new(graphs.then(Known::default)),
            })
        })
    }

    /// Whether memory, kernels and events can be used on this stream at all.
    fn try_out(&self) -> Result<(), CardError> {
        let memory = self.allocate(1, Held::Briefly)?;
        self.start_watch()?;
        // Adds up nothing.
        let launch =
            Launch { kernel: "add_f32".to_string(), grid: [1, 1, 1], threads: 32, shared: 0, args: Args::default() };
        self.launch(&launch)?;
        self.zero(memory, 1)?;
        self.stop_watch()?;
        self.free(memory, 1, Held::Briefly);
        Ok(())
    }

    fn make_current(&self) -> Result<(), CardError> {
        make_current(self.context)
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
        Err(CardError::Full { bytes })
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

    fn new_blas(&self) -> Result<Blas, CardError> {
        let workspace = self.allocate(WORKSPACE_BYTES, Held::Kept)?;
        let products = guarded("opening cuBLASLt", || Products::new(WORKSPACE_BYTES as usize, self.multiprocessors));
        Ok(Blas { handle: None, products: products.ok(), workspace })
    }

    /// The older library's handle, which allocates for itself too: made where a product needs it.
    fn handle(&self, blas: &mut Blas) -> Result<blas_sys::cublasHandle_t, CardError> {
        if let Some(handle) = blas.handle {
            return Ok(handle);
        }
        guarded("opening cuBLAS", || {
            let handle = blas::create_handle().map_err(|error| blas_error("cublasCreate", error))?;
            blas.handle = Some(handle);
            // SAFETY: handle and stream are valid, the workspace is freed after the handle; one type by two names.
            unsafe {
                blas::set_stream(handle, self.stream.cast()).map_err(|error| blas_error("cublasSetStream", error))?;
                let workspace = blas.workspace.0 as *mut c_void;
                blas_sys::cublasSetWorkspace_v2(handle, workspace, WORKSPACE_BYTES as usize)
                    .result()
                    .map_err(|error| blas_error("cublasSetWorkspace", error))?;
                if let Some(count) = self.multiprocessors {
                    blas_sys::cublasSetSmCountTarget(handle, count as i32)
                        .result()
                        .map_err(|error| blas_error("cublasSetSmCountTarget", error))?;
                }
            }
            Ok(handle)
        })
    }

    /// Through cuBLAS, which has no epilogues: what it does not add itself comes before and after it.
    fn plain_product(&self, handle: blas_sys::cublasHandle_t, product: &Product) -> Result<(), CardError> {
        let Product { rows, inner, columns, a, b, c, alpha, beta, count, addend, bias } = product;
        if let Some(addend) = addend {
            let bytes = ((rows - 1) * c.row + columns) * c.format.bytes();
            self.copy(*addend, c.at, bytes)?;
        }
        let narrow = |size: u64| {
            i32::try_from(size).map_err(|_| CardError::call("cublasGemmEx", format!("{size} is too large")))
        };
        let kind = |format: Format| match format {
            Format::F32 => blas_sys::cudaDataType_t::CUDA_R_32F,
            Format::Bf16 => blas_sys::cudaDataType_t::CUDA_R_16BF,
        };
        let way = |matrix: &Matrix| match matrix.transposed {
            true => blas_sys::cublasOperation_t::CUBLAS_OP_T,
            false => blas_sys::cublasOperation_t::CUBLAS_OP_N,
        };
        // cuBLAS reads columns where we have rows, so it sees every matrix transposed: `cᵀ = bᵀ · aᵀ`.
        // SAFETY: the matrices lie within their buffers, which `launch` has checked; factors are read before the call
        // returns.
        unsafe {
            blas::gemm_strided_batched_ex(
                handle,
                way(b),
                way(a),
                narrow(*columns)?,
                narrow(*rows)?,
                narrow(*inner)?,
                (&raw const *alpha).cast(),
                b.at.0 as *const c_void,
                kind(b.format),
                narrow(b.row)?,
                b.step as i64,
                a.at.0 as *const c_void,
                kind(a.format),
                narrow(a.row)?,
                a.step as i64,
                (&raw const *beta).cast(),
                c.at.0 as *mut c_void,
                kind(c.format),
                narrow(c.row)?,
                c.step as i64,
                narrow(*count)?,
                blas_sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                blas_sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(|error| blas_error(&format!("cublasGemmStridedBatchedEx of {rows} x {inner} x {columns}"), error))?;
        match bias {
            Some(bias) => self.launch(&super::launch::add_bias(*bias, c, *rows, *columns)),
            None => Ok(()),
        }
    }

    /// `list` as a graph, which does not start it.
    fn graph_of(&self, list: &[Command]) -> Result<sys::CUgraphExec, CardError> {
        self.make_current()?;
        let fail = |call| move |error| driver_error(call, error);
        // SAFETY: the stream is valid. Nothing but this list is put on it meanwhile, and other threads are not held up:
        // all that the list needs has been loaded when it first came. What began is ended whatever happens between.
        unsafe {
            let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
            result::stream::begin_capture(self.stream, mode).map_err(fail("cuStreamBeginCapture"))?;
            let noted = one_by_one(self, list);
            let graph = result::stream::end_capture(self.stream).map_err(fail("cuStreamEndCapture"));
            let graph = noted.and(graph)?;
            let mut made = std::ptr::null_mut();
            let instantiated = sys::cuGraphInstantiateWithFlags(&mut made, graph, 0).result();
            let _ = result::graph::destroy(graph);
            instantiated.map_err(fail("cuGraphInstantiate"))?;
            Ok(made)
        }
    }

    /// `list` piece by piece, and all others from now on: a driver or library that cannot do graphs ends nothing else.
    fn without_graphs(
        &self,
        graphs: &mut Option<Known<sys::CUgraphExec>>,
        list: &[Command],
    ) -> Result<(), CardError> {
        // What was started may still run.
        self.finish()?;
        for graph in graphs.take().into_iter().flat_map(Known::into_made) {
            // SAFETY: not used again, and nothing of it runs any more.
            let _ = unsafe { result::graph::exec_destroy(graph) };
        }
        one_by_one(self, list)
    }

    fn repeat(&self, graph: sys::CUgraphExec) -> Result<(), CardError> {
        self.make_current()?;
        // SAFETY: the graph lives as long as this, and so does all memory that it names.
        unsafe { result::graph::launch(graph, self.stream) }.map_err(|error| driver_error("cuGraphLaunch", error))
    }
}

fn blas_error(call: &str, error: blas::CublasError) -> CardError {
    CardError::call(call, format!("{error:?}"))
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        if self.make_current().is_err() {
            return;
        }
        // SAFETY: all memory of the stream keeps its card alive, so nothing uses these handles any more.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            for graph in lock(&self.graphs).take().into_iter().flat_map(Known::into_made) {
                let _ = result::graph::exec_destroy(graph);
            }
            if let Some(Blas { handle, products, .. }) = lock(&self.blas).take() {
                drop(products);
                let _ = handle.map(|handle| blas::destroy_handle(handle));
            }
            for (start, _) in lock(&self.heaps).iter().flat_map(Heap::slabs) {
                let _ = result::free_sync(start);
            }
            for event in self.events {
                let _ = result::event::destroy(event);
            }
            let _ = result::stream::destroy(self.stream);
        }
    }
}

/// A mark.
struct Event {
    context: sys::CUcontext,
    event: sys::CUevent,
}

// SAFETY: an event may be asked and destroyed by any thread.
unsafe impl Send for Event {}

impl Mark for Event {
    fn is_past(&self) -> Result<bool, CardError> {
        make_current(self.context)?;
        // SAFETY: the event is valid until it is dropped.
        match unsafe { sys::cuEventQuery(self.event) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            error => Err(driver_error("cuEventQuery", result::DriverError(error))),
        }
    }

    fn event(&self) -> *mut c_void {
        self.event.cast()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if make_current(self.context).is_ok() {
            // SAFETY: not used again; the driver keeps what it still needs.
            let _ = unsafe { result::event::destroy(self.event) };
        }
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

    fn reserve(&self, bytes: Bytes) -> Result<(), CardError> {
        self.make_current()?;
        let bytes = rounded(bytes) + rounded(WORKSPACE_BYTES);
        if self.apart {
            return Ok(());
        }
        let mut heaps = lock(&self.heaps);
        if heaps[0].taken() < bytes { Nvidia::grow(&mut heaps[0], bytes, bytes) } else { Ok(()) }
    }

    fn allocate(&self, bytes: Bytes, held: Held) -> Result<Address, CardError> {
        if self.apart {
            self.make_current()?;
            // SAFETY: takes a size; freed where it is given back.
            let at = unsafe { result::malloc_sync(bytes as usize) };
            return at.map(Address).map_err(|error| driver_error("cuMemAlloc", error));
        }
        let mut heaps = lock(&self.heaps);
        let by_others = held == Held::ByOthers;
        let heap = &mut heaps[usize::from(by_others)];
        if let Some(at) = heap.allocate(bytes, held) {
            return Ok(Address(at));
        }
        self.make_current()?;
        // Beyond what was reserved: little at a time, since what is taken stays taken.
        let wish = if by_others { SLAB_BY_OTHERS } else { (heap.taken() / 16).min(SLAB_BY_OTHERS) };
        Nvidia::grow(heap, bytes, wish)?;
        heap.allocate(bytes, held).map(Address).ok_or(CardError::Full { bytes })
    }

    fn free(&self, at: Address, bytes: Bytes, held: Held) {
        if self.apart {
            // SAFETY: what `allocate` gave, once; the driver waits for all work first. Where that has failed, so does this.
            let _ = self.finish().map(|()| unsafe { result::free_sync(at.0) });
            return;
        }
        lock(&self.heaps)[usize::from(held == Held::ByOthers)].give_back(at.0, bytes);
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

    fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError> {
        self.make_current()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both places have that many bytes, which `Memory` says.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes as usize, self.stream) }
            .map_err(|error| driver_error("cuMemcpyDtoD", error))
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
            (last * matrix.format.bytes()).next_multiple_of(256)
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
        // any; where there is none, there is none for the rank either, which will say so.
        self.with_blas(|_| Ok(()))?;
        let at = lock(&self.heaps)[0].allocate(most, Held::Briefly);
        // SAFETY: freed below, when nothing uses it any more.
        let beside = at.is_none().then(|| unsafe { result::malloc_sync(most as usize) }.ok()).flatten();
        let Some(scratch) = at.or(beside) else { return Ok(()) };
        let run = |product: &Product| {
            let [a, b, _] = extents(product);
            let at = |matrix: Matrix, start: u64| Matrix { at: Address(scratch + start), ..matrix };
            let (a, b, c) = (at(product.a, 0), at(product.b, a), at(product.c, a + b));
            let [addend, bias] = [product.addend, product.bias].map(|there| there.map(|_| c.at));
            self.product(&Product { a, b, c, addend, bias, ..*product })
        };
        let ran = self
            .zero(Address(scratch), most)
            .and_then(|()| products.iter().try_for_each(run))
            .and_then(|()| self.finish());
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
            Next::Make(key) => match self.graph_of(list) {
                Ok(graph) => {
                    known.keep(key, list.to_vec(), graph);
                    match self.repeat(graph) {
                        Ok(()) => Ok(()),
                        Err(_) => self.without_graphs(&mut graphs, list),
                    }
                }
                Err(_) => self.without_graphs(&mut graphs, list),
            },
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
            if started { Ok(()) } else { self.plain_product(self.handle(blas)?, product) }
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
        let mark = Event { context: self.context, event };
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
        Ok(Arc::new(Nvidia::beside(&self.device)?))
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
        Some(lock(&self.heaps).iter().map(Heap::taken).sum())
    }

    fn trim(&self) -> Result<(), CardError> {
        self.finish()?;
        let unused: Vec<u64> = lock(&self.heaps).iter_mut().flat_map(Heap::give_up).collect();
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
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_hears_what_is_missing() {
        if libraries::missing().is_empty() {
            return;
        }
        let error = Nvidia::on(0, Opening::default()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("is missing: looked for") && error.contains("To get it:"), "{error}");
    }

    /// Asking for its version needs no GPU. Without it this checks nothing, and says so.
    #[test]
    fn the_cublas_that_is_found_is_the_one_that_is_called() {
        let search = libraries::search(Which::Cublas);
        let Some(path) = &search.found else {
            eprintln!("SKIPPED: cuBLAS is not called: {search}");
            return;
        };
        let (major, _, _) = cublas_version().unwrap_or_else(|error| panic!("{error}"));
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        assert!(name == "libcublas.so" || name.starts_with(&format!("libcublas.so.{major}")), "{name} is {major}");
    }

    /// NVRTC needs no GPU. Without it this checks nothing, and says so.
    #[test]
    fn all_kernels_compile_for_a100_h100_and_b200() {
        if libraries::search(Which::Nvrtc).found.is_none() {
            eprintln!("SKIPPED: kernels are not compiled: {}", libraries::search(Which::Nvrtc));
            return;
        }
        // NVRTC knows the B200 from 12.8 on.
        let knows_b200 = nvrtc_version() >= Some((12, 8));
        let capabilities = [(8, 0), (9, 0), (10, 0)].into_iter().filter(|(major, _)| *major < 10 || knows_b200);
        for capability in capabilities {
            let image = compile(capability).unwrap_or_else(|error| panic!("{error}"));
            assert!(is_code(&image));
        }
    }
}
