//! Devices and links as a person names them.

use alloc::string::String;

use crate::units::{Bytes, Nanos};

/// The figures of one device that time and memory follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The name in a spec: `h100`.
    pub name: String,
    /// Matmul rate in floating-point operations a second, dense, in the training's number format.
    pub matmul_flops: u64,
    /// Bytes a second between memory and compute.
    pub memory_bytes_per_s: u64,
    /// Memory of the device.
    pub memory_bytes: Bytes,
}

/// One kind of link between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Bytes a second in one direction.
    pub bytes_per_s: u64,
    /// Time before the first byte arrives.
    pub latency_ns: Nanos,
}
