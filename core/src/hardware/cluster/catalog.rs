//! Devices and links that a spec may name, with public figures and their sources.

use alloc::string::String;

use super::{Device, Link};
use crate::base::units::{Bytes, Nanos};
use crate::model::Dtype;

/// One kind of device of the catalog, with its usual node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name in a spec.
    pub name: &'static str,
    /// The name a person reads.
    pub title: &'static str,
    /// Dense matmul rate in each number format, in operations a second.
    pub matmul_flops: MatmulFlops,
    /// Peak GEMM efficiency: the best matmuls over that rate, in thousandths.
    pub matmul_permille: u64,
    /// Streaming multiprocessors (SMs); 0 where products are not dealt to such.
    pub multiprocessors: u64,
    /// Bytes a second between memory and compute.
    pub memory_bytes_per_s: u64,
    /// Memory of the device.
    pub memory_bytes: Bytes,
    /// Measured bytes per second of copies to host memory, and back.
    pub host_bytes_per_s: u64,
    /// The least time of one operator.
    pub launch_ns: Nanos,
    /// Devices of one node.
    pub devices_per_node: u32,
    /// The link within a node.
    pub link: Link,
    /// The link between nodes.
    pub node_link: Link,
    /// The usual precision of training on it.
    pub dtype: Dtype,
    /// Where the figures are from.
    pub source: &'static str,
}

/// Dense matmul rates by number format, in operations a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulFlops {
    /// With 4-bit inputs, MXFP4 or NVFP4; 0 where it takes none.
    pub fp4: u64,
    /// With fp8 inputs; 0 where it takes none.
    pub fp8: u64,
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
                Dtype::Fp8 | Dtype::MxFp8 => self.matmul_flops.fp8,
                Dtype::MxFp4 | Dtype::NvFp4 => self.matmul_flops.fp4,
                Dtype::F32 | Dtype::I32 | Dtype::U8 => self.matmul_flops.f32,
                Dtype::F64 => self.matmul_flops.f64,
            },
            fp8_flops: self.matmul_flops.fp8,
            fp4_flops: self.matmul_flops.fp4,
            matmul_permille: self.matmul_permille,
            multiprocessors: self.multiprocessors,
            memory_bytes_per_s: self.memory_bytes_per_s,
            memory_bytes: self.memory_bytes,
            host_bytes_per_s: self.host_bytes_per_s,
            launch_ns: self.launch_ns,
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

/// Peak GEMM efficiency of a device of that name, in thousandths: the catalog's, else that of an A100, to which
/// shares of it were fitted.
pub fn usual_matmul_permille(name: &str) -> u64 {
    find(name).map_or(MATMUL_PERMILLE, |entry| entry.matmul_permille)
}

/// The multiprocessors of a device of that name in the catalog; 0 for any other.
pub fn usual_multiprocessors(name: &str) -> u64 {
    find(name).map_or(0, |entry| entry.multiprocessors)
}

/// The FP8 matmul rate of a device of that name in the catalog; 0 for any other.
pub fn usual_fp8_flops(name: &str) -> u64 {
    find(name).map_or(0, |entry| entry.matmul_flops.fp8)
}

/// The matmul rate with 4-bit operands of a device of that name in the catalog; 0 for any other.
pub fn usual_fp4_flops(name: &str) -> u64 {
    find(name).map_or(0, |entry| entry.matmul_flops.fp4)
}

/// The rate of copies to host memory and back of a device of that name: the catalog's, else that of an A100.
pub fn usual_host_bytes_per_s(name: &str) -> u64 {
    find(name).map_or(PCIE_4_COPIES, |entry| entry.host_bytes_per_s)
}

const GIGA: u64 = 1_000_000_000;

const TERA: u64 = 1000 * GIGA;

/// Copies from and to pinned memory over PCI Express 4.0 and 5.0, 16 lanes.
const PCIE_4_COPIES: u64 = 25 * GIGA;

const PCIE_5_COPIES: u64 = 52 * GIGA;

/// The same over NVLink-C2C, by which two GPUs share a Grace.
const C2C_COPIES: u64 = 150 * GIGA;

/// The best matmuls of an A100 in bf16, over its data sheet's rate.
const MATMUL_PERMILLE: u64 = 869;

/// Of a kernel in a queue that never runs empty: measured figures are 2 to 5 µs.
const GPU_LAUNCH_NS: Nanos = 3000;

/// A network of this many gigabits a second for each device.
const fn network(gigabits: u64) -> Link {
    Link { bytes_per_s: gigabits * GIGA / 8, latency_ns: 5000 }
}

/// NVLink with this many gigabytes a second in one direction.
const fn nvlink(gigabytes: u64) -> Link {
    Link { bytes_per_s: gigabytes * GIGA, latency_ns: 2000 }
}

/// The seven Infinity Fabric links by which an MI300X sees the others of its node, together: what a collective over
/// the node has in one direction.
const INFINITY_FABRIC: Link = Link { bytes_per_s: 7 * 64 * GIGA, latency_ns: 2000 };

/// The same of an MI350X or MI355X (AMD CDNA 4 white paper: 153.6 GB/s a link, both ways).
const INFINITY_FABRIC_4: Link = Link { bytes_per_s: 7 * 76_800_000_000, latency_ns: 2000 };

/// The links of a TPU to its neighbours in the torus, together, of which the makers give both directions' sum.
const fn ici(gigabytes_both_ways: u64) -> Link {
    Link { bytes_per_s: gigabytes_both_ways * GIGA / 2, latency_ns: 2000 }
}

/// Memory of hundredths of a GiB.
const fn gib(hundredths: u64) -> Bytes {
    hundredths * (1 << 30) / 100
}

// Data sheets write GB of memory where programs are given about a hundredth less than as many GiB: what stands here
// is the least of what PyTorch tells of such cards where their memory is full ("has a total capacity of"), since a
// plan that needs more ends there.
//
// Copies to the host's memory are measured, too, of one device at a time: 25.1 GB/s on an A100, 52.8 on an H100
// (NVIDIA/nvbandwidth, issues 42 and 24). Where two devices share a switch, both at once have half. A GH200 was
// measured at 300 to 346 (issue 23); of two GPUs that share a Grace each is taken to have half.
//
// What the best matmuls reach is measured in bf16: the best of many sizes on each card, a mean of 100 runs (Bekman,
// Machine Learning Engineering, "Maximum Achievable Matmul FLOPS": 271.2, 794.5, 1745.0, 668.4 and 784.9 TFLOP/s on
// A100, H100, B200, MI300X and MI325X, H200 and H800 as H100, and as B200 its like). Of the rate in fp8, twice that,
// they are taken to reach the same share: 780 thousandths of either were measured on H100 (torchao,
// `roofline_utils.py`). MI350X and MI355X are taken as MI325X; TPUs, Trainium and Ascend as A100: of these no measured
// share is published in the same way.
//
// Of TPUs the memory is what XLA tells where it is full ("of 95.74G hbm"), of Ascends what PyTorch tells of a 910B3
// ("61.27 GiB total capacity"); of Trainium2 no such figure is known here, and the maker's stands.
static CATALOG: &[Entry] = &[
    Entry {
        name: "a100-40",
        title: "NVIDIA A100 SXM 40 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 0, bf16: 312 * TERA, f32: 19_500 * GIGA, f64: 19_500 * GIGA },
        matmul_permille: 869,
        multiprocessors: 108,
        memory_bytes_per_s: 1555 * GIGA,
        memory_bytes: gib(3938),
        host_bytes_per_s: PCIE_4_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: nvlink(300),
        node_link: network(200),
        dtype: Dtype::Bf16,
        source: "NVIDIA A100 data sheet; NVLink 600 GB/s both ways",
    },
    Entry {
        name: "a100-80",
        title: "NVIDIA A100 SXM 80 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 0, bf16: 312 * TERA, f32: 19_500 * GIGA, f64: 19_500 * GIGA },
        matmul_permille: 869,
        multiprocessors: 108,
        memory_bytes_per_s: 2039 * GIGA,
        memory_bytes: gib(7914),
        host_bytes_per_s: PCIE_4_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: nvlink(300),
        node_link: network(200),
        dtype: Dtype::Bf16,
        source: "NVIDIA A100 data sheet; NVLink 600 GB/s both ways",
    },
    Entry {
        name: "h100",
        title: "NVIDIA H100 SXM 80 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 1979 * TERA, bf16: 989_500 * GIGA, f32: 67 * TERA, f64: 67 * TERA },
        matmul_permille: 803,
        multiprocessors: 132,
        memory_bytes_per_s: 3350 * GIGA,
        memory_bytes: gib(7910),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: nvlink(450),
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "NVIDIA H100 data sheet, 1,979 TFLOPS with sparsity halved; NVLink 900 GB/s both ways",
    },
    Entry {
        name: "h800",
        title: "NVIDIA H800 SXM 80 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 1979 * TERA, bf16: 989_500 * GIGA, f32: 67 * TERA, f64: TERA },
        matmul_permille: 803,
        multiprocessors: 132,
        memory_bytes_per_s: 3350 * GIGA,
        memory_bytes: gib(7910),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: nvlink(200),
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "an H100 but for NVLink, 400 GB/s both ways, and f64 (DeepSeek-AI, arXiv:2505.09343, section 4.1)",
    },
    Entry {
        name: "h200",
        title: "NVIDIA H200 SXM 141 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 1979 * TERA, bf16: 989_500 * GIGA, f32: 67 * TERA, f64: 67 * TERA },
        matmul_permille: 803,
        multiprocessors: 132,
        memory_bytes_per_s: 4800 * GIGA,
        memory_bytes: gib(13972),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: nvlink(450),
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "NVIDIA H200 data sheet, 1,979 TFLOPS with sparsity halved; NVLink 900 GB/s both ways",
    },
    Entry {
        name: "b200",
        title: "NVIDIA B200 SXM 180 GB",
        matmul_flops: MatmulFlops {
            fp4: 9000 * TERA,
            fp8: 4500 * TERA,
            bf16: 2250 * TERA,
            f32: 75 * TERA,
            f64: 37 * TERA,
        },
        matmul_permille: 720,
        multiprocessors: 148,
        memory_bytes_per_s: 7700 * GIGA,
        memory_bytes: gib(17835),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: nvlink(900),
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "NVIDIA HGX B200 data sheet, figures without sparsity; NVLink 1.8 TB/s both ways",
    },
    Entry {
        name: "b300",
        title: "NVIDIA B300 SXM 270 GB",
        matmul_flops: MatmulFlops {
            fp4: 13_500 * TERA,
            fp8: 4500 * TERA,
            bf16: 2250 * TERA,
            f32: 75 * TERA,
            f64: 1250 * GIGA,
        },
        matmul_permille: 776,
        multiprocessors: 148,
        memory_bytes_per_s: 7700 * GIGA,
        memory_bytes: gib(26769),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: nvlink(900),
        node_link: network(800),
        dtype: Dtype::Bf16,
        source: "NVIDIA HGX B300 data sheet, figures without sparsity; NVLink 1.8 TB/s both ways",
    },
    Entry {
        name: "gb200",
        title: "NVIDIA GB200 NVL72",
        matmul_flops: MatmulFlops {
            fp4: 10_000 * TERA,
            fp8: 5000 * TERA,
            bf16: 2500 * TERA,
            f32: 80 * TERA,
            f64: 40 * TERA,
        },
        matmul_permille: 680,
        multiprocessors: 148,
        memory_bytes_per_s: 8000 * GIGA,
        memory_bytes: gib(18431),
        host_bytes_per_s: C2C_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 72,
        link: nvlink(900),
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "NVIDIA GB200 NVL72 data sheet, a 72nd of the rack's figures without sparsity; NVLink 1.8 TB/s both ways",
    },
    Entry {
        name: "gb300",
        title: "NVIDIA GB300 NVL72",
        matmul_flops: MatmulFlops {
            fp4: 15_000 * TERA,
            fp8: 5000 * TERA,
            bf16: 2500 * TERA,
            f32: 80 * TERA,
            f64: 1390 * GIGA,
        },
        matmul_permille: 776,
        multiprocessors: 148,
        memory_bytes_per_s: 8000 * GIGA,
        memory_bytes: gib(27650),
        host_bytes_per_s: C2C_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 72,
        link: nvlink(900),
        node_link: network(800),
        dtype: Dtype::Bf16,
        source: "NVIDIA GB300 NVL72 data sheet, a 72nd of the rack's figures without sparsity; NVLink 1.8 TB/s both ways",
    },
    Entry {
        name: "mi300x",
        title: "AMD Instinct MI300X 192 GB",
        matmul_flops: MatmulFlops {
            fp4: 0,
            fp8: 2_614_900 * GIGA,
            bf16: 1_307_400 * GIGA,
            f32: 163_400 * GIGA,
            f64: 163_400 * GIGA,
        },
        matmul_permille: 511,
        multiprocessors: 0,
        memory_bytes_per_s: 5300 * GIGA,
        memory_bytes: gib(19_169),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: INFINITY_FABRIC,
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "AMD Instinct MI300X data sheet; of the seven links to the others of a node, 64 GB/s each, two devices have one",
    },
    Entry {
        name: "mi325x",
        title: "AMD Instinct MI325X 256 GB",
        matmul_flops: MatmulFlops {
            fp4: 0,
            fp8: 2_614_900 * GIGA,
            bf16: 1_307_400 * GIGA,
            f32: 163_400 * GIGA,
            f64: 163_400 * GIGA,
        },
        matmul_permille: 600,
        multiprocessors: 0,
        memory_bytes_per_s: 6000 * GIGA,
        memory_bytes: gib(25_569),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: INFINITY_FABRIC,
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "AMD Instinct MI325X data sheet; of the seven links to the others of a node, 64 GB/s each, two devices have one",
    },
    Entry {
        name: "mi350x",
        title: "AMD Instinct MI350X 288 GB",
        matmul_flops: MatmulFlops {
            fp4: 9_227_400 * GIGA,
            fp8: 4_613_700 * GIGA,
            bf16: 2_306_900 * GIGA,
            f32: 144_200 * GIGA,
            f64: 72_100 * GIGA,
        },
        matmul_permille: 600,
        multiprocessors: 0,
        memory_bytes_per_s: 8000 * GIGA,
        memory_bytes: gib(28_798),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: INFINITY_FABRIC_4,
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "AMD Instinct MI350X data sheet and CDNA 4 white paper, figures without sparsity; of the seven links to the others of a node, 76.8 GB/s each, two devices have one",
    },
    Entry {
        name: "mi355x",
        title: "AMD Instinct MI355X 288 GB",
        matmul_flops: MatmulFlops {
            fp4: 10_066_300 * GIGA,
            fp8: 5_033_200 * GIGA,
            bf16: 2_516_600 * GIGA,
            f32: 157_300 * GIGA,
            f64: 78_600 * GIGA,
        },
        matmul_permille: 600,
        multiprocessors: 0,
        memory_bytes_per_s: 8000 * GIGA,
        memory_bytes: gib(28_798),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: INFINITY_FABRIC_4,
        node_link: network(400),
        dtype: Dtype::Bf16,
        source: "AMD Instinct MI355X data sheet and CDNA 4 white paper, figures without sparsity; of the seven links to the others of a node, 76.8 GB/s each, two devices have one",
    },
    Entry {
        name: "tpu-v5p",
        title: "Google TPU v5p 95 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 0, bf16: 459 * TERA, f32: 76_500 * GIGA, f64: 0 },
        matmul_permille: MATMUL_PERMILLE,
        multiprocessors: 0,
        memory_bytes_per_s: 2765 * GIGA,
        memory_bytes: gib(9574),
        host_bytes_per_s: PCIE_4_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8960,
        link: ici(1200),
        node_link: network(50),
        dtype: Dtype::Bf16,
        source: "Google Cloud TPU documentation, v5p: 459 TFLOPS, 2,765 GB/s, ICI 1,200 GB/s both ways, 50 Gb/s between pods; a node is a pod; f32 by six products in bf16",
    },
    Entry {
        name: "tpu-v6e",
        title: "Google TPU v6e (Trillium) 32 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 0, bf16: 918 * TERA, f32: 153 * TERA, f64: 0 },
        matmul_permille: MATMUL_PERMILLE,
        multiprocessors: 0,
        memory_bytes_per_s: 1638 * GIGA,
        memory_bytes: gib(3125),
        host_bytes_per_s: PCIE_4_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 256,
        link: ici(800),
        node_link: network(100),
        dtype: Dtype::Bf16,
        source: "Google Cloud TPU documentation, v6e: 918 TFLOPS, 1,638 GB/s, ICI 800 GB/s both ways, 100 Gb/s between pods; a node is a pod; f32 by six products in bf16",
    },
    Entry {
        name: "tpu-v7",
        title: "Google TPU7x (Ironwood) 192 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 4614 * TERA, bf16: 2307 * TERA, f32: 384_500 * GIGA, f64: 0 },
        matmul_permille: MATMUL_PERMILLE,
        multiprocessors: 0,
        memory_bytes_per_s: 7380 * GIGA,
        memory_bytes: gib(18_950),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 9216,
        link: ici(1200),
        node_link: network(100),
        dtype: Dtype::Bf16,
        source: "Google Cloud TPU documentation, TPU7x: 2,307 TFLOPS in bf16, 4,614 in fp8, 7,380 GB/s, ICI 1,200 GB/s both ways, 100 Gb/s between pods; a chip, whose two halves programs see as two devices; a node is a pod; f32 by six products in bf16",
    },
    Entry {
        name: "trainium2",
        title: "AWS Trainium2 96 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 1299 * TERA, bf16: 667 * TERA, f32: 181 * TERA, f64: 0 },
        matmul_permille: MATMUL_PERMILLE,
        multiprocessors: 0,
        memory_bytes_per_s: 2900 * GIGA,
        memory_bytes: gib(9600),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 16,
        link: Link { bytes_per_s: 640 * GIGA, latency_ns: 2000 },
        node_link: network(200),
        dtype: Dtype::Bf16,
        source: "AWS Neuron documentation, Trainium2: 667 TFLOPS in bf16, 1,299 in fp8, 96 GiB, 2.9 TB/s, NeuronLink-v3 1.28 TB/s both ways; a chip of eight cores; a node is a trn2.48xlarge with EFA 3.2 Tb/s",
    },
    Entry {
        name: "ascend-910b",
        title: "Huawei Ascend 910B3 64 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 0, bf16: 313 * TERA, f32: 75 * TERA, f64: 0 },
        matmul_permille: MATMUL_PERMILLE,
        multiprocessors: 0,
        memory_bytes_per_s: 1600 * GIGA,
        memory_bytes: gib(6127),
        host_bytes_per_s: PCIE_4_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 8,
        link: Link { bytes_per_s: 196 * GIGA, latency_ns: 2000 },
        node_link: network(200),
        dtype: Dtype::Bf16,
        source: "Huawei Atlas 800T A2 data sheet, an eighth of the server's figures (2.5 PFLOPS FP16, 392 GB/s HCCS both ways); 910B1, B2 and B4 have 414, 376 and 280 TFLOPS: give them as matmul_flops",
    },
    Entry {
        name: "ascend-910c",
        title: "Huawei Ascend 910C, one die of two, 64 GB",
        matmul_flops: MatmulFlops { fp4: 0, fp8: 0, bf16: 376 * TERA, f32: 94 * TERA, f64: 0 },
        matmul_permille: MATMUL_PERMILLE,
        multiprocessors: 0,
        memory_bytes_per_s: 1600 * GIGA,
        memory_bytes: gib(6127),
        host_bytes_per_s: PCIE_5_COPIES,
        launch_ns: GPU_LAUNCH_NS,
        devices_per_node: 768,
        link: Link { bytes_per_s: 196 * GIGA, latency_ns: 2000 },
        node_link: network(200),
        dtype: Dtype::Bf16,
        source: "Huawei CloudMatrix384 (arXiv:2506.12708, section 3.2): 376 TFLOPS, 1.6 TB/s, 196 GB/s UB in one direction and 200 Gb/s RDMA a die; programs see a die as a device; a node is a supernode of 384 packages",
    },
    Entry {
        name: "cpu",
        title: "One core of this CPU",
        // A recent x86 core with AVX2; a measured trace says what this machine really does.
        matmul_flops: MatmulFlops { fp4: 0, fp8: 0, bf16: 50 * GIGA, f32: 50 * GIGA, f64: 25 * GIGA },
        matmul_permille: MATMUL_PERMILLE,
        multiprocessors: 0,
        memory_bytes_per_s: 10 * GIGA,
        memory_bytes: 4 << 30,
        host_bytes_per_s: 5 * GIGA,
        launch_ns: 200,
        devices_per_node: 1024,
        link: Link { bytes_per_s: 5 * GIGA, latency_ns: 10_000 },
        node_link: network(10),
        dtype: Dtype::F32,
        source: "an estimate, to be calibrated by a run",
    },
];

/// One kind of link of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEntry {
    /// The name in a spec.
    pub name: &'static str,
    /// The name a person reads.
    pub title: &'static str,
    /// Its figures.
    pub link: Link,
    /// Where the rate is published. Latencies are assumed: those of one message of a collective library.
    pub source: &'static str,
}

/// Every link that a spec may name.
pub fn links() -> &'static [LinkEntry] {
    LINKS
}

/// The link of that name.
pub fn find_link(name: &str) -> Option<&'static LinkEntry> {
    LINKS.iter().find(|entry| entry.name == name)
}

static LINKS: &[LinkEntry] = &[
    LinkEntry {
        name: "shared-memory",
        title: "Threads of one process",
        link: Link { bytes_per_s: 5 * GIGA, latency_ns: 10_000 },
        source: "an estimate, on the low side",
    },
    LinkEntry {
        name: "loopback",
        title: "Processes of one machine",
        link: Link { bytes_per_s: 2 * GIGA, latency_ns: 20_000 },
        source: "an estimate, on the low side",
    },
    LinkEntry {
        name: "nvlink-3",
        title: "NVLink 3",
        link: nvlink(300),
        source: "NVIDIA A100 data sheet: 600 GB/s both ways",
    },
    LinkEntry {
        name: "nvlink-4",
        title: "NVLink 4",
        link: nvlink(450),
        source: "NVIDIA H100 data sheet: 900 GB/s both ways",
    },
    LinkEntry {
        name: "nvlink-5",
        title: "NVLink 5",
        link: nvlink(900),
        source: "NVIDIA HGX B200 data sheet: 1.8 TB/s both ways",
    },
    LinkEntry {
        name: "pcie-4",
        title: "PCI Express 4.0 x16",
        link: Link { bytes_per_s: 31_500_000_000, latency_ns: 5000 },
        source: "PCI-SIG: 16 GT/s, 16 lanes, 128b/130b",
    },
    LinkEntry {
        name: "pcie-5",
        title: "PCI Express 5.0 x16",
        link: Link { bytes_per_s: 63 * GIGA, latency_ns: 5000 },
        source: "PCI-SIG: 32 GT/s, 16 lanes, 128b/130b",
    },
    LinkEntry {
        name: "infiniband-hdr",
        title: "InfiniBand HDR, one port a device",
        link: network(200),
        source: "NVIDIA ConnectX-6 data sheet: 200 Gb/s",
    },
    LinkEntry {
        name: "infiniband-ndr",
        title: "InfiniBand NDR, one port a device",
        link: network(400),
        source: "NVIDIA ConnectX-7 data sheet: 400 Gb/s",
    },
    LinkEntry {
        name: "infiniband-xdr",
        title: "InfiniBand XDR, one port a device",
        link: network(800),
        source: "NVIDIA ConnectX-8 data sheet: 800 Gb/s",
    },
];
