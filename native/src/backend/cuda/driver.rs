//! What the driver says of GPUs, and how its calls go: errors with their names, functions that older drivers lack.
#![allow(unsafe_code, reason = "the driver is a C library; each call says why it is sound")]

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use cudarc::driver::{result, sys};
use pipeplan_core::base::units::Bytes;

use super::card::CardError;
use super::libraries::{self, Which};

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
    // SAFETY: writes at most that number of bytes, and ends them with 0.
    let bus = unsafe {
        sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as i32, device).result().map_err(fail)?;
        CStr::from_ptr(bus.as_ptr()).to_string_lossy().into_owned()
    };
    Ok(Facts { ordinal, name, bytes, capability, multiprocessors, uuid, bus, links })
}

pub(super) fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32, CardError> {
    // SAFETY: `device` is the driver's.
    let value = unsafe { result::device::get_attribute(device, which) };
    value.map(|value| value as u32).map_err(|error| driver_error("cuDeviceGetAttribute", error))
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

/// Milliseconds between two events. The bindings know only the function's second version, which drivers before 12.8 do
/// not have.
///
/// # Safety
/// Both events must have been recorded, and the second be over.
pub(super) unsafe fn elapsed(from: sys::CUevent, to: sys::CUevent) -> Result<f32, CardError> {
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

/// The most connections to a card that the driver makes: queues on separate connections run at the same time.
pub const MOST_CONNECTIONS: usize = 32;

/// Sets what the driver and NCCL read once, at their first call; nothing of it where a person has chosen.
///
/// The driver is to run more queues side by side than the 8 that it does by itself: beyond those, queues share one, and a
/// transfer that waits for another rank could hold up what that rank waits for. NCCL is to make all its connections when a
/// communicator is joined, not at the first use of a way to sum: between messages that are under way that could wait for
/// them.
///
/// # Safety
/// No other thread of the process may run yet.
pub unsafe fn set_up_libraries() {
    let connections = MOST_CONNECTIONS.to_string();
    for (variable, value) in [("CUDA_DEVICE_MAX_CONNECTIONS", &*connections), ("NCCL_RUNTIME_CONNECT", "0")] {
        if std::env::var_os(variable).is_none() {
            // SAFETY: as the caller promises.
            unsafe { std::env::set_var(variable, value) };
        }
    }
}

/// `work`, with a panic of the bindings (a function that an old library lacks) as an error.
pub(super) fn guarded<T>(what: &str, work: impl FnOnce() -> Result<T, CardError>) -> Result<T, CardError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let reason = panic.downcast_ref::<String>().cloned();
        let reason = reason.unwrap_or_else(|| "the library lacks a function: it is too old".to_string());
        Err(CardError::call(what, reason))
    })
}

pub(super) fn driver_error(call: &str, error: result::DriverError) -> CardError {
    CardError::call(call, format!("{error:?}"))
}

/// Lets this thread's calls mean `context`.
pub(super) fn make_current(context: sys::CUcontext) -> Result<(), CardError> {
    // SAFETY: contexts of this module are never released.
    unsafe { result::ctx::set_current(context) }.map_err(|error| driver_error("cuCtxSetCurrent", error))
}
