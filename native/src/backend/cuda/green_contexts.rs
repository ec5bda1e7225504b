//! Parts of a card's multiprocessors: NVIDIA's green contexts. What is queued on a stream of one runs on its part alone, and
//! shares memory, kernels and everything else with the rest of the process.
//!
//! Source: CUDA driver API, green contexts (12.4 and later, streams of them from 12.5 on).
#![allow(unsafe_code, reason = "functions of the driver that older ones lack, with the types of its header, cuda.h")]

use std::ffi::c_void;

use cudarc::driver::sys;

use super::card::CardError;
use super::driver::{driver_error, of_driver};

/// One part.
#[derive(Clone, Copy)]
pub struct Part {
    context: *mut c_void,
    /// Multiprocessors of it.
    pub multiprocessors: u32,
}

// SAFETY: the driver's handle belongs to the process; it is made once, never changed and never destroyed.
unsafe impl Send for Part {}

/// `CUdevResource`, with room for what later drivers add: 144 bytes up to CUDA 13.0, 152 from 13.1 on.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Resource([u8; Resource::ROOM]);

impl Resource {
    const ROOM: usize = 256;
    const SIZES: [usize; 2] = [144, 152];
    /// `CU_DEV_RESOURCE_TYPE_SM`.
    const MULTIPROCESSORS: u32 = 1;
    const EMPTY: Resource = Resource([0; Resource::ROOM]);

    fn number(bytes: &[u8], at: usize) -> u32 {
        bytes.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// The first field of its union, behind the type and what fills it up to 96 bytes.
    fn multiprocessors(&self) -> u32 {
        Resource::number(&self.0, 96)
    }

    /// The `count` resources at the start of `bytes`, in whichever size the driver has written them: each begins with its
    /// type.
    fn list(bytes: &[u8], count: usize) -> Option<Vec<Resource>> {
        let is_list = |size: &usize| (0..count).all(|at| Resource::number(bytes, at * size) == Self::MULTIPROCESSORS);
        let size = Resource::SIZES.into_iter().find(is_list)?;
        let one = |at: usize| {
            let mut resource = Resource::EMPTY;
            resource.0[..size].copy_from_slice(bytes.get(at * size..(at + 1) * size)?);
            // It stands alone now: what pointed on to others is the driver's affair no longer.
            resource.0[Resource::SIZES[0]..].fill(0);
            Some(resource)
        };
        (0..count).map(one).collect()
    }
}

/// Cards give multiprocessors in groups of this number from compute capability 9.0 on; earlier ones in smaller groups.
const UNIT: u32 = 8;

/// The most multiprocessors that each of `parts` equal parts of `all` can have.
fn each(all: u32, parts: usize) -> u32 {
    all / parts.max(1) as u32 / UNIT * UNIT
}

/// `device` in `parts` equal parts; what is left over stays unused.
///
/// # Errors
/// [`CardError`], for example if the driver is too old or there are too many parts.
pub fn split(device: sys::CUdevice, parts: usize) -> Result<Vec<Part>, CardError> {
    type Get = unsafe extern "C" fn(sys::CUdevice, *mut Resource, u32) -> sys::CUresult;
    type Split = unsafe extern "C" fn(*mut u8, *mut u32, *const Resource, *mut Resource, u32, u32) -> sys::CUresult;
    type Describe = unsafe extern "C" fn(*mut *mut c_void, *mut Resource, u32) -> sys::CUresult;
    type Create = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, sys::CUdevice, u32) -> sys::CUresult;
    /// `CU_GREEN_CTX_DEFAULT_STREAM`, which has to be asked for.
    const DEFAULT_STREAM: u32 = 1;
    let refused = |why: String| CardError::call("dividing the multiprocessors", why);
    let fail = |call: &'static str| move |error| driver_error(call, error);
    // SAFETY: cuda.h gives the functions these types; every resource has more room than any driver writes.
    unsafe {
        let found = (
            of_driver::<Get>(c"cuDeviceGetDevResource"),
            of_driver::<Split>(c"cuDevSmResourceSplitByCount"),
            of_driver::<Describe>(c"cuDevResourceGenerateDesc"),
            of_driver::<Create>(c"cuGreenCtxCreate"),
        );
        let (Some(get), Some(split), Some(describe), Some(create)) = found else {
            return Err(refused("the driver is older than CUDA 12.4".to_string()));
        };
        let mut all = Resource::EMPTY;
        get(device, &mut all, Resource::MULTIPROCESSORS).result().map_err(fail("cuDeviceGetDevResource"))?;
        // Parts are alike, and what belongs together on the card is not torn apart: so the largest that there are enough of.
        let (mut list, mut failed) = (None, None);
        for each in (1..=each(all.multiprocessors(), parts) / UNIT).rev().map(|units| units * UNIT) {
            let (mut bytes, mut count) = (vec![0u8; (parts + 1) * Resource::ROOM], parts as u32);
            let mut rest = Resource::EMPTY;
            let done = split(bytes.as_mut_ptr(), &mut count, &all, &mut rest, 0, each);
            // A size that a card cannot deal in says nothing of smaller ones.
            failed = done.result().map_err(fail("cuDevSmResourceSplitByCount")).err();
            if failed.is_none() && count as usize == parts {
                list = Resource::list(&bytes, parts);
                break;
            }
        }
        let all = all.multiprocessors();
        let too_many = || refused(format!("{all} multiprocessors cannot be divided into {parts} parts of 8 or more"));
        let list = list.ok_or_else(|| failed.unwrap_or_else(too_many))?;
        let part = |mut resource: Resource| {
            let (mut description, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
            describe(&mut description, &mut resource, 1).result().map_err(fail("cuDevResourceGenerateDesc"))?;
            create(&mut context, description, device, DEFAULT_STREAM).result().map_err(fail("cuGreenCtxCreate"))?;
            Ok(Part { context, multiprocessors: resource.multiprocessors() })
        };
        list.into_iter().map(part).collect()
    }
}

impl Part {
    /// It as a context: what is made while that is current belongs to the part.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn context(&self) -> Result<sys::CUcontext, CardError> {
        type Convert = unsafe extern "C" fn(*mut sys::CUcontext, *mut c_void) -> sys::CUresult;
        let mut context = std::ptr::null_mut();
        // SAFETY: cuda.h gives the function this type; the part is never destroyed, and so this is valid.
        unsafe {
            let convert = of_driver::<Convert>(c"cuCtxFromGreenCtx");
            let convert = convert.ok_or_else(|| CardError::call("cuCtxFromGreenCtx", "the driver lacks it"))?;
            convert(&mut context, self.context).result().map_err(|error| driver_error("cuCtxFromGreenCtx", error))?;
        }
        Ok(context)
    }

    /// A new stream on it.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn stream(&self) -> Result<sys::CUstream, CardError> {
        type Create = unsafe extern "C" fn(*mut sys::CUstream, *mut c_void, u32, i32) -> sys::CUresult;
        /// `CU_STREAM_NON_BLOCKING`.
        const NON_BLOCKING: u32 = 1;
        let mut stream = std::ptr::null_mut();
        // SAFETY: cuda.h gives the function this type; the context is never destroyed.
        unsafe {
            let create = of_driver::<Create>(c"cuGreenCtxStreamCreate");
            let create = create.ok_or_else(|| CardError::call("cuGreenCtxStreamCreate", "the driver lacks it"))?;
            create(&mut stream, self.context, NON_BLOCKING, 0)
                .result()
                .map_err(|error| driver_error("cuGreenCtxStreamCreate", error))?;
        }
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_in_the_sizes_of_old_and_new_drivers() {
        for size in Resource::SIZES {
            let mut bytes = vec![0u8; 4 * Resource::ROOM];
            for at in 0..3 {
                bytes[at * size..at * size + 4].copy_from_slice(&1u32.to_ne_bytes());
                bytes[at * size + 96..at * size + 100].copy_from_slice(&(32 + at as u32).to_ne_bytes());
            }
            let list = Resource::list(&bytes, 3).expect("three resources");
            assert_eq!(list.iter().map(Resource::multiprocessors).collect::<Vec<_>>(), [32, 33, 34]);
        }
        assert!(Resource::list(&[0; 512], 2).is_none());
    }

    #[test]
    fn parts_are_equal_and_by_eights() {
        // An H200 has 132.
        assert_eq!([1, 2, 4, 8, 16, 17].map(|parts| each(132, parts)), [128, 64, 32, 16, 8, 0]);
    }
}
