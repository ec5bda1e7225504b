//! Values of a spec that are allowed and probably wrong.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{ModelWork, Spec, Work};
use crate::schedule;

/// Bytes or operations per second. No device or link has so few: the `e9` is missing.
const FEWEST_A_SECOND: u64 = 1_000_000;

impl Spec {
    /// Values that are allowed and probably wrong, each with its field and a better value; empty for most specs.
    pub fn unlikely(&self) -> Vec<String> {
        let Work::Model(work) = &self.work else { return Vec::new() };
        let mut found = work.unlikely();
        let said = work.chunks as usize;
        let chunks = schedule::find(&self.schedule).map_or(said, |published| (published.shape)(said).1);
        if chunks > said {
            found.push(format!(
                "parallel.chunks: {} has {chunks} chunks on each rank, not {said}; 1f1b has one",
                self.schedule
            ));
        }
        found
    }
}

impl ModelWork {
    fn unlikely(&self) -> Vec<String> {
        let mut found = Vec::new();
        let memory = self.device.memory_bytes;
        if let Some(limit) = self.limit_bytes.filter(|limit| *limit > memory) {
            found.push(format!(
                "memory.limit_bytes: {limit} bytes are more than the {memory} bytes of the device, where such a plan may not \
                 fit; cluster.device.memory_bytes says of a larger one"
            ));
        }
        for (field, rate, such) in [
            ("cluster.device.matmul_flops", self.device.matmul_flops, "989e12"),
            ("cluster.device.memory_bytes_per_s", self.device.memory_bytes_per_s, "3.35e12"),
            ("cluster.link.bytes_per_s", self.link.bytes_per_s, "450e9"),
            ("cluster.node_link.bytes_per_s", self.node_link.bytes_per_s, "50e9"),
        ] {
            if rate < FEWEST_A_SECOND {
                found.push(format!(
                    "{field}: {rate} per second is very low; the unit is 1 per second, such as {such}"
                ));
            }
        }
        found
    }
}
