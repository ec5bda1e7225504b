//! Devices, links and nodes.

mod catalog;

pub use self::catalog::{
    Entry, LinkEntry, MatmulFlops, catalog, find, find_link, links, usual_fp4_flops, usual_fp8_flops,
    usual_host_bytes_per_s, usual_matmul_permille, usual_multiprocessors,
};

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::base::fields::Fault;
use crate::base::units::{Bytes, Nanos};
use crate::model::Dtype;

/// The figures of a device that time and memory follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The name in a spec: `h100`.
    pub name: String,
    /// Matmul rate in floating-point operations a second, dense, in the training's number format.
    pub matmul_flops: u64,
    /// The FP8 matmul rate; 0 where the device has none.
    pub fp8_flops: u64,
    /// The matmul rate with 4-bit operands; 0 where the device has none.
    pub fp4_flops: u64,
    /// Peak GEMM efficiency: the best matmuls over either rate, in thousandths.
    pub matmul_permille: u64,
    /// Streaming multiprocessors (SMs), which the tiles of a product are dealt to; 0 where that is not known, and products take
    /// what a ramp says.
    pub multiprocessors: u64,
    /// Bytes a second between memory and compute.
    pub memory_bytes_per_s: u64,
    /// Memory of the device that programs are given.
    pub memory_bytes: Bytes,
    /// Measured bytes per second of copies to host memory, and back.
    pub host_bytes_per_s: u64,
    /// Kernel launch overhead: the least time of an operator.
    pub launch_ns: Nanos,
}

impl Device {
    /// The matmul rate with operands in `dtype`, one of [`Dtype::OF_MATMULS`]; 0 where the device does not take them.
    /// Formats with shared scales are taken by devices that have a rate in 4 bits, too: those are of one generation
    /// (Blackwell and CDNA 4).
    pub const fn quantized_flops(&self, dtype: Dtype) -> u64 {
        match dtype {
            Dtype::MxFp4 | Dtype::NvFp4 => self.fp4_flops,
            Dtype::MxFp8 if self.fp4_flops == 0 => 0,
            _ => self.fp8_flops,
        }
    }

    /// The link to host memory and back.
    pub const fn host_link(&self) -> Link {
        Link { bytes_per_s: self.host_bytes_per_s, latency_ns: self.launch_ns }
    }

    /// What is wrong with the figures, each with its field below `path`.
    pub fn find_faults(&self, path: &str, faults: &mut Vec<Fault>) {
        for (field, value, least, most) in [
            ("matmul_flops", self.matmul_flops, 1, MAX_RATE),
            ("fp8_flops", self.fp8_flops, 0, MAX_RATE),
            ("fp4_flops", self.fp4_flops, 0, MAX_RATE),
            ("matmul_permille", self.matmul_permille, 1, 1000),
            ("multiprocessors", self.multiprocessors, 0, MAX_MULTIPROCESSORS),
            ("memory_bytes_per_s", self.memory_bytes_per_s, 1, MAX_RATE),
            ("memory_bytes", self.memory_bytes, 1, MAX_MEMORY),
            ("host_bytes_per_s", self.host_bytes_per_s, 1, MAX_RATE),
            ("launch_ns", self.launch_ns, 0, MAX_LATENCY_NS),
        ] {
            check(path, field, value, least, most, faults);
        }
    }
}

/// One kind of link between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Bytes a second in one direction.
    pub bytes_per_s: u64,
    /// Time before the first byte arrives.
    pub latency_ns: Nanos,
}

impl Link {
    /// Time of a message of `bytes`, rounded up. A rate of 0 counts as 1.
    pub fn time(&self, bytes: Bytes) -> Nanos {
        let through = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.bytes_per_s.max(1)));
        u64::try_from(through).unwrap_or(u64::MAX).saturating_add(self.latency_ns)
    }

    /// What is wrong with the figures, each with its field below `path`.
    pub fn find_faults(&self, path: &str, faults: &mut Vec<Fault>) {
        check(path, "bytes_per_s", self.bytes_per_s, 1, MAX_RATE, faults);
        check(path, "latency_ns", self.latency_ns, 0, MAX_LATENCY_NS, faults);
    }
}

/// Devices in order in nodes, each with its own link to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Devices of a node.
    pub devices: u32,
    /// Within a node.
    pub link: Link,
    /// From a device to one of another node.
    pub node_link: Link,
}

impl Nodes {
    /// Members that a node has of a group of `ways` devices, `apart` from each other; none where all are in one.
    pub fn members(&self, ways: u64, apart: u64) -> Option<u64> {
        let (ways, apart) = (ways.max(1), apart.max(1));
        let devices = u64::from(self.devices.max(1));
        (ways.saturating_mul(apart) > devices).then(|| (devices / apart).clamp(1, ways))
    }

    /// `node_link` at `times / over` of its rate, as far as the node lets bytes through.
    fn between(&self, times: u64, over: u64) -> Link {
        let rate = u128::from(self.node_link.bytes_per_s) * u128::from(times) / u128::from(over.max(1));
        let rate = rate.min(self.link.bytes_per_s.max(self.node_link.bytes_per_s).into());
        Link { bytes_per_s: rate as u64, ..self.node_link }
    }

    /// What a collective in rings sees of such a group. What leaves a node leaves it by the links of all its members
    /// side by side: 86 of 96 GB/s were measured over two nodes whose four links have 24 each (NVIDIA/nccl issue
    /// 1048).
    pub fn in_rings(&self, ways: u64, apart: u64) -> Link {
        self.members(ways, apart).map_or(self.link, |members| self.between(members, 1))
    }

    /// What an exchange sees where each member sends every other a part: what is for members of its node does not
    /// leave it.
    pub fn in_exchange(&self, ways: u64, apart: u64) -> Link {
        let members = self.members(ways, apart);
        members.map_or(self.link, |members| self.between(ways - 1, ways.saturating_sub(members)))
    }

    /// The same where what a token has for several members of another node goes there once. It goes to `chosen` of
    /// them, drawn evenly, out of `groups.0` of `groups.1` equal groups in their order.
    pub fn in_exchange_by_node(&self, ways: u64, apart: u64, chosen: u64, groups: (u32, u32)) -> Link {
        let Some(members) = self.members(ways, apart) else { return self.link };
        let nodes = ways.div_ceil(members).max(2);
        // In units of 2⁻²⁰: the share of tokens that have nothing for a node, and the nodes that one goes to.
        const ONE: u64 = 1 << 20;
        let passes_by = (0..chosen.min(ONE)).fold(ONE, |share, _| share * (nodes - 1) / nodes);
        let most = u64::from(groups.0) * nodes.div_ceil(groups.1.max(1).into());
        let goes_to = (nodes * (ONE - passes_by)).min(most.saturating_mul(ONE)).max(1);
        self.between((ways - 1) * chosen * ONE, ways.saturating_sub(members) * goes_to)
    }

    /// What a ring sees in which each member hands all that it has to the next one: the slowest hop.
    pub fn in_turn(&self, ways: u64, apart: u64) -> Link {
        self.members(ways, apart).map_or(self.link, |_| self.node_link)
    }
}

/// Highest rate, of compute or of bytes, a second.
pub const MAX_RATE: u64 = 1_000_000_000_000_000_000;
/// Largest memory of a device: 1 PiB.
pub const MAX_MEMORY: Bytes = 1 << 50;
/// Most multiprocessors of a device.
pub const MAX_MULTIPROCESSORS: u64 = 1_000_000;
/// Longest latency or launch: 10 s.
pub const MAX_LATENCY_NS: Nanos = 10_000_000_000;

fn check(path: &str, field: &str, value: u64, least: u64, most: u64, faults: &mut Vec<Fault>) {
    if !(least..=most).contains(&value) {
        let field = if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
        faults.push(Fault::new(field, value, format!("a whole number from {least} to {most}")));
    }
}

#[cfg(test)]
mod tests;
