//! A mark in a queue: a CUDA event.

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use crate::backend::cuda::card::{CardError, Mark};
use crate::backend::cuda::driver::{driver_error, make_current};

/// A mark, which any thread may ask.
pub(super) struct Event {
    /// The card's: that of a part only one thread at a time may have, and it is its rank's.
    pub(super) context: sys::CUcontext,
    pub(super) event: sys::CUevent,
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
