//! The operator graph on an NVIDIA GPU: our kernels through NVRTC, matrix products through cuBLAS, and f32 master weights
//! and gradients with bf16.
//!
//! - In: the operators of a job, with tensors in the memory of a card.
//! - Out: work in a queue of the card (a stream), and the memory that it needs.
//! - Knows: one card and its libraries, which are all loaded at run time.
//!
//! | Module | What it does |
//! |---|---|
//! | `queue` | the [`Processor`](super::stages::Processor) of a rank on a card |
//! | [`card`] | what a card can do: memory, copies, launches, products, marks |
//! | [`nvidia`], [`emulated`] | the two cards: a real GPU, and the same kernels compiled for the CPU |
//! | [`launch`], [`matmuls`], [`source`] | an operator as launches and as matrix products, and the source of the kernels |
//! | [`jobs`] | the work of a job as a list, which becomes a CUDA graph if it repeats |
//! | [`heap`], [`memory_plan`] | where each tensor lies, and how much memory a rank needs before it starts |
//! | [`offload`] | copies to host memory and back (activation offload) |
//! | [`expert_parallel`], `ring_attention` | operators that need other ranks: the all-to-all of experts, context parallel |
//! | [`libraries`], [`driver`], [`mod@compile`], `cache`, `device` | finds the libraries, asks the driver, compiles and opens |
//! | `cublaslt`, [`cublas`] | matrix products, and the older library for those without an algorithm in cuBLASLt |
//! | `green_contexts` | a part of the multiprocessors |
//! | [`warp_group_trial`], [`fallbacks`] | tests of what only some GPUs can do, and counts of what was used |
//! | [`nvml`] | how GPUs are connected, for people |
//!
//! Several ranks of a plan can share one card, each with a stream and a memory pool. A job waits for its work at its end. So
//! its time is the time of the card, and its outputs are ready for other ranks.

use std::sync::Arc;

use self::card::{Card, CardError, Portion};
use self::jobs::Jobs;
use super::BackendError;
use crate::runner::Device;

mod cache;
pub mod card;
pub mod compile;
pub mod cublas;
mod cublaslt;
mod device;
pub mod driver;
pub mod emulated;
pub mod expert_parallel;
pub mod fallbacks;
mod green_contexts;
pub mod heap;
pub mod jobs;
pub mod launch;
pub mod libraries;
pub mod matmuls;
pub mod memory_plan;
pub mod nvidia;
pub mod nvml;
pub mod offload;
mod queue;
pub(crate) mod ring_attention;
pub mod source;
#[cfg(test)]
pub(crate) mod tests;
mod values;
pub mod warp_group_trial;

pub(crate) use self::queue::held_as_state;
pub use self::queue::{Cuda, Leaving, Queue, State};
pub(crate) use self::values::format_of;
pub use self::values::{packed, unpacked};

impl From<CardError> for BackendError {
    fn from(error: CardError) -> BackendError {
        BackendError::Device { message: error.to_string() }
    }
}

/// A queue on the card that a person chose.
///
/// # Errors
/// [`CardError`], for example if the GPU or its libraries are missing.
pub fn open(device: Device) -> Result<Arc<dyn Card>, CardError> {
    open_as(device, Opening::default())
}

/// How a queue is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Its kernels run on this part of the multiprocessors only. The emulated card has none.
    pub portion: Option<Portion>,
    /// Jobs that come again are launched as CUDA graphs.
    pub graphs: bool,
    /// Every tensor lies in its own memory, so that a memory checker sees every access out of bounds: slow.
    pub apart: bool,
}

impl Default for Opening {
    fn default() -> Opening {
        Opening { portion: None, graphs: true, apart: false }
    }
}

/// As [`open`], as `opening` says.
///
/// # Errors
/// As [`open`]; and where the driver cannot share out the multiprocessors.
pub fn open_as(device: Device, opening: Opening) -> Result<Arc<dyn Card>, CardError> {
    let card: Arc<dyn Card> = match device {
        Device::Cuda(ordinal) => Arc::new(nvidia::Nvidia::on(ordinal, opening)?),
        Device::Emulated => Arc::new(emulated::Host::new()?),
        Device::Cpu => return Err(CardError::call("opening a card", "the CPU is none")),
    };
    Ok(Arc::new(Jobs::new(card)))
}
