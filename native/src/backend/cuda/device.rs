//! A GPU with its kernels, opened once in the life of the process: all queues of the process on it share them.
#![allow(unsafe_code, reason = "the driver is a C library; each call says why it is sound")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::card::{CardError, Portion};
use super::compile::image;
use super::driver::{Facts, attribute, driver_error, gpus, guarded, make_current, of_driver};
use super::green_contexts::{self, Part};
use super::warp_group_trial::Unfit;
use super::{fallbacks, libraries};

/// A card with its kernels.
pub(super) struct Device {
    pub(super) ordinal: usize,
    pub(super) facts: Facts,
    pub(super) context: sys::CUcontext,
    module: sys::CUmodule,
    /// By name.
    functions: Mutex<BTreeMap<String, Function>>,
    /// By their number, the parts that it has been dealt in.
    parts: Mutex<BTreeMap<usize, Vec<Part>>>,
    /// Whether attention by groups of warps has been tried out, and what came of it.
    groups: Mutex<Groups>,
    pub(super) shared_bytes: u32,
}

/// What is known of attention by groups of warps on a card.
#[derive(Clone, PartialEq, Eq)]
enum Groups {
    /// Nothing yet.
    Unknown,
    /// It gives what attention by warps gives.
    Right,
    /// It is not there, or not to be tried.
    Left,
    /// It does not do, for this reason; the attempt may have broken more than itself.
    Wrong(CardError),
    /// It does not end: nothing more comes of the card in this process.
    Stands(CardError),
}

#[derive(Clone, Copy)]
pub(super) struct Function(pub(super) sys::CUfunction);

// SAFETY: a driver's handles belong to the process and may be used by any of its threads.
unsafe impl Send for Device {}
// SAFETY: the same; what changes is behind a lock.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Function {}

impl Device {
    /// GPU `ordinal`, opened once in the life of the process.
    pub(super) fn open(ordinal: usize) -> Result<Arc<Device>, CardError> {
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
            let reason = format!("its compute capability is {major}.{minor}, but bf16 needs 8.0 (A100) or later");
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
            let (functions, parts, groups) = (Mutex::default(), Mutex::default(), Mutex::new(Groups::Unknown));
            Ok(Device { ordinal, facts, context, module, functions, parts, groups, shared_bytes: shared })
        })?;
        let device = Arc::new(device);
        open.insert(ordinal, Arc::clone(&device));
        Ok(device)
    }

    /// The driver asks which context a call means.
    pub(super) fn make_current(&self) -> Result<(), CardError> {
        make_current(self.context)
    }

    /// A part of the multiprocessors, made at its first use and kept.
    pub(super) fn part(&self, Portion { part, parts }: Portion) -> Result<Part, CardError> {
        let mut known = lock(&self.parts);
        let all = match known.entry(parts) {
            Entry::Occupied(all) => all.into_mut(),
            Entry::Vacant(place) => {
                let handle = result::device::get(self.ordinal as i32);
                let handle = handle.map_err(|error| driver_error("cuDeviceGet", error))?;
                place.insert(green_contexts::split(handle, parts)?)
            }
        };
        all.get(part).copied().ok_or_else(|| CardError::call("dividing the multiprocessors", "there is no such part"))
    }

    /// Whether there is a kernel that other cards do not have, or it is not known that it does not do here.
    pub(super) fn has(&self, kernel: &str) -> bool {
        matches!(*lock(&self.groups), Groups::Unknown | Groups::Right) && self.function(kernel).is_ok()
    }

    /// Lets `attempt` try out attention by groups of warps where that is there, once in the life of the process; why the card
    /// goes without.
    ///
    /// # Errors
    /// [`CardError`] where the card still works at it.
    pub(super) fn try_groups(
        &self,
        are_left: bool,
        attempt: impl FnOnce() -> Result<(), Unfit>,
    ) -> Result<Option<CardError>, CardError> {
        // Whoever comes meanwhile waits for what is found.
        static TRYING: Mutex<()> = Mutex::new(());
        let _trying = lock(&TRYING);
        if *lock(&self.groups) == Groups::Unknown {
            let is_there = self.function(OF_GROUPS).is_ok();
            let found = match (is_there && !are_left).then(attempt) {
                None => Groups::Left,
                Some(Ok(())) => Groups::Right,
                Some(Err(Unfit::Differ(error))) => Groups::Wrong(error),
                Some(Err(Unfit::Stand(error))) => Groups::Stands(error),
            };
            fallbacks::count(|tally| match &found {
                Groups::Wrong(error) => tally.no_groups = Some(error.to_string()),
                Groups::Left => tally.groups_left = is_there,
                Groups::Unknown | Groups::Right | Groups::Stands(_) => {}
            });
            *lock(&self.groups) = found;
        }
        match &*lock(&self.groups) {
            Groups::Wrong(error) => Ok(Some(error.clone())),
            Groups::Stands(error) => Err(error.clone()),
            _ => Ok(None),
        }
    }

    pub(super) fn function(&self, name: &str) -> Result<Function, CardError> {
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

/// One of the kernels by groups of warps.
const OF_GROUPS: &str = "group_attention_64_64";

/// Locks, also after another thread's panic: all that is locked here is whole at any time.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
