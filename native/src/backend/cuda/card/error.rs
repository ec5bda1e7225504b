//! What can go wrong on a card.

use std::fmt;

use pipeplan_core::base::units::Bytes;

/// Why a card could not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// Libraries are missing.
    #[error("the GPU cannot be used:{}", list(.0))]
    Missing(Vec<String>),
    /// There is no such GPU.
    #[error("GPU {ordinal} does not exist: the driver shows {count}")]
    NoSuchCard {
        /// The number asked for.
        ordinal: usize,
        /// GPUs that there are.
        count: usize,
    },
    /// The memory is full.
    #[error(
        "the GPU does not have {} MiB free:{} plan a smaller model, or fewer or smaller microbatches", bytes.div_ceil(1 << 20),
        free_space_hint(*room)
    )]
    Full {
        /// Bytes asked for.
        bytes: Bytes,
        /// Bytes that are free, and those of the whole card, where it says so.
        room: Option<(Bytes, Bytes)>,
    },
    /// Host memory is full.
    #[error(
        "the host does not have {} MiB of pinned memory for training.offload or training.offload_optimizer{}: \
         offload fewer layers, keep the optimizer states on the device, or give the machine or its container more \
         memory",
        bytes.div_ceil(1 << 20), host_space_hint(*room)
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
fn free_space_hint(room: Option<(Bytes, Bytes)>) -> String {
    let Some((free, all)) = room else { return String::new() };
    format!(
        " {} of its {} MiB are free, and a plan does not count contexts, kernels and NCCL. Set \
         memory.overhead_bytes or a lower memory.limit_bytes in the spec, or",
        free >> 20,
        all >> 20
    )
}

fn host_space_hint(room: Option<Bytes>) -> String {
    room.map_or_else(String::new, |room| format!(" ({} MiB are free)", room >> 20))
}

pub(super) fn list(items: &[String]) -> String {
    items.iter().map(|item| format!("\n  {item}")).collect()
}

impl CardError {
    /// `call` failed and said `reason`.
    pub fn call(call: impl fmt::Display, reason: impl fmt::Display) -> CardError {
        CardError::Call { call: call.to_string(), reason: reason.to_string() }
    }
}
