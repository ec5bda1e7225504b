//! Devices and links as a person names them.

use alloc::string::String;

use crate::model::Dtype;
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

/// One kind of device of the catalog, with the node that it usually stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name in a spec.
    pub name: &'static str,
    /// The name a person reads.
    pub title: &'static str,
    /// Dense matmul rate in each number format, in operations a second.
    pub matmul_flops: MatmulFlops,
    /// Bytes a second between memory and compute.
    pub memory_bytes_per_s: u64,
    /// Memory of the device.
    pub memory_bytes: Bytes,
    /// Devices of one node.
    pub devices_per_node: u32,
    /// The link within a node.
    pub link: Link,
    /// The link between nodes.
    pub node_link: Link,
    /// The number format that training on it usually takes.
    pub dtype: Dtype,
    /// Where the figures are from.
    pub source: &'static str,
}

/// Dense matmul rates by number format, in operations a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulFlops {
    /// With bfloat16 inputs.
    pub bf16: u64,
    /// With 32-bit inputs.
    pub f32: u64,
    /// With 64-bit inputs.
    pub f64: u64,
}

impl Entry {
    /// The device as it trains in `dtype`.
    pub fn device(&self, dtype: Dtype) -> Device {
        Device {
            name: String::from(self.name),
            matmul_flops: match dtype {
                Dtype::Bf16 => self.matmul_flops.bf16,
                Dtype::F32 | Dtype::I32 => self.matmul_flops.f32,
                Dtype::F64 => self.matmul_flops.f64,
            },
            memory_bytes_per_s: self.memory_bytes_per_s,
            memory_bytes: self.memory_bytes,
        }
    }
}

/// Every device that a spec may name.
pub fn catalog() -> &'static [Entry] {
    CATALOG
}

/// The device of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    CATALOG.iter().find(|entry| entry.name == name)
}

const GIGA: u64 = 1_000_000_000;
const TERA: u64 = 1000 * GIGA;

/// A network of this many gigabits a second for each device.
const fn network(gigabits: u64) -> Link {
    Link { bytes_per_s: gigabits * GIGA / 8, latency_ns: 5000 }
}

/// NVLink with this many gigabytes a second in one direction.
const fn nvlink(gigabytes: u64) -> Link {
    Link { bytes_per_s: gigabytes * GIGA, latency_ns: 2000 }
}

static CATALOG: &[Entry] = &[
    Entry {
        name: "a100-40",
        title: "NVIDIA A100 SXM 40 GB",
        matmul_flops: MatmulFlops { bf16: 312 * TERA, f32: 19_500 * GIGA, f64: 19_500 * GIGA },
        memory_bytes_per_s: 1555 * GIGA,
        memory_bytes: 40 << 30,
        devices_per_node: 8,
        link: nvlink(300),
        node_link: network(200),
        dtype: Dtype::Bf16,
        source: "NVIDIA A100 data sheet; NVLink 600 GB/s both ways",
    },
    Entry {
        name: "a100-80",
        title: "NVIDIA A100 SXM 80 GB",
        matmul_flops: MatmulFlops { bf16: 312 * TERA, f32: 19_500 * GIGA, f64: 19_500 * GIGA },
        memory_bytes_per_s: 2039 * GIGA,
        memory_bytes: 80 << 30,
        devices_per_node: 8,
        link: nvlink(300),
        node_link: network(200),
        dtype: Dtype::Bf16,
        source: "NVIDIA A100 data sheet; NVLink 600 GB/s both ways",
    },
    Entry {
        name: "h100",
        title: "NVIDIA H100 SXM 80 GB",
        matmul_flops: MatmulFlops { bf16: 989 * TERA, f32: 67 * TERA, f64: 67 * TERA },
        memory_bytes_per_s: 3350 * GIGA,
        memory_bytes: 80 << 30,
        devices_per_node: 8,
        link: nvlink(450),
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "NVIDIA H100 data sheet, figures without sparsity; NVLink 900 GB/s both ways",
    },
    Entry {
        name: "h200",
        title: "NVIDIA H200 SXM 141 GB",
        matmul_flops: MatmulFlops { bf16: 989 * TERA, f32: 67 * TERA, f64: 67 * TERA },
        memory_bytes_per_s: 4800 * GIGA,
        memory_bytes: 141 * GIGA,
        devices_per_node: 8,
        link: nvlink(450),
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "NVIDIA H200 data sheet, figures without sparsity; NVLink 900 GB/s both ways",
    },
    Entry {
        name: "b200",
        title: "NVIDIA B200 SXM 180 GB",
        matmul_flops: MatmulFlops { bf16: 2250 * TERA, f32: 75 * TERA, f64: 37 * TERA },
        memory_bytes_per_s: 8000 * GIGA,
        memory_bytes: 180 * GIGA,
        devices_per_node: 8,
        link: nvlink(900),
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "NVIDIA DGX B200 data sheet divided by its 8 devices, without sparsity; NVLink 1.8 TB/s both ways",
    },
    Entry {
        name: "cpu",
        title: "One core of this CPU",
        // A recent x86 core with AVX2; a measured trace says what this machine really does.
        matmul_flops: MatmulFlops { bf16: 50 * GIGA, f32: 50 * GIGA, f64: 25 * GIGA },
        memory_bytes_per_s: 10 * GIGA,
        memory_bytes: 4 << 30,
        devices_per_node: 1024,
        link: Link { bytes_per_s: 5 * GIGA, latency_ns: 10_000 },
        node_link: network(10),
        dtype: Dtype::F32,
        source: "an estimate, to be calibrated by a run",
    },
];
