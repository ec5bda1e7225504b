//! The table `cluster`: a device, its node and the links.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use serde_json::Value;

use super::default;
use crate::base::fields::{Fault, Table, one_of, one_of_like, shown};

use crate::hardware::cluster::{self, Device, Link, MAX_LATENCY_NS, MAX_MEMORY, MAX_MULTIPROCESSORS, MAX_RATE};
use crate::model::Dtype;
use crate::problem::MAX_RANKS;

pub(super) struct Cluster {
    pub(super) device: Device,
    pub(super) devices_per_node: u32,
    pub(super) link: Link,
    pub(super) node_link: Link,
    pub(super) dtype: Dtype,
}

pub(super) fn read_cluster(mut table: Table<'_>, dtype: Option<Dtype>, faults: &mut Vec<Fault>) -> Option<Cluster> {
    let before = faults.len();
    let (entry, device, dtype) = match table.get("device") {
        Some(Value::Object(_)) => {
            let device = table.table("device", faults)?;
            read_device(device, dtype, faults)
        }
        Some(Value::String(name)) if cluster::find(name).is_some() => {
            let entry = cluster::find(name);
            let dtype = dtype.or(entry.map(|entry| entry.dtype)).unwrap_or(Dtype::Bf16);
            (entry, entry.map(|entry| entry.device(dtype)), dtype)
        }
        found => {
            let name = found.and_then(Value::as_str).unwrap_or_default();
            let accepted = format!("{}; or a table of figures", one_of_like(name, &device_names()));
            faults.push(Fault::new(
                table.path("device"),
                found.map_or_else(|| "nothing".to_string(), shown),
                accepted,
            ));
            (None, None, Dtype::Bf16)
        }
    };
    let per_node = table.whole("devices_per_node", 1..=MAX_RANKS as u64, faults);
    let usual = entry.or_else(|| cluster::find(default::NODE));
    let link = read_link(&mut table, "link", usual.map(|entry| entry.link), faults);
    let node_link = read_link(&mut table, "node_link", usual.map(|entry| entry.node_link), faults);
    table.finish(faults);
    if faults.len() > before {
        return None;
    }
    Some(Cluster {
        device: device?,
        devices_per_node: per_node.map(|count| count as u32).or(usual.map(|entry| entry.devices_per_node))?,
        link: link?,
        node_link: node_link?,
        dtype,
    })
}

fn device_names() -> Vec<&'static str> {
    cluster::catalog().iter().map(|entry| entry.name).collect()
}

type ReadDevice = (Option<&'static cluster::Entry>, Option<Device>, Dtype);

fn read_device(mut table: Table<'_>, dtype: Option<Dtype>, faults: &mut Vec<Fault>) -> ReadDevice {
    let name = table.text("name", faults).unwrap_or_default();
    let entry = cluster::find(name);
    let dtype = dtype.or(entry.map(|entry| entry.dtype)).unwrap_or(Dtype::Bf16);
    let known = entry.map(|entry| entry.device(dtype));
    let mut missing = Vec::new();
    let mut figure = |read: Option<u64>, key: &'static str, known: Option<u64>, table: &mut Table<'_>| {
        if read.is_none() && known.is_none() && table.get(key).is_none() {
            missing.push(key);
        }
        read.or(known)
    };
    let read = table.whole("matmul_flops", 1..=MAX_RATE, faults);
    let matmul_flops = figure(read, "matmul_flops", known.as_ref().map(|known| known.matmul_flops), &mut table);
    let fp8_flops = table.whole("fp8_flops", 0..=MAX_RATE, faults);
    let fp8_flops = fp8_flops.unwrap_or_else(|| cluster::usual_fp8_flops(name));
    let fp4_flops = table.whole("fp4_flops", 0..=MAX_RATE, faults);
    let fp4_flops = fp4_flops.unwrap_or_else(|| cluster::usual_fp4_flops(name));
    let matmul_permille = table.whole("matmul_permille", 1..=1000, faults);
    let matmul_permille = matmul_permille.unwrap_or_else(|| cluster::usual_matmul_permille(name));
    let multiprocessors = table.whole("multiprocessors", 0..=MAX_MULTIPROCESSORS, faults);
    let multiprocessors = multiprocessors.unwrap_or_else(|| cluster::usual_multiprocessors(name));
    let read = table.bytes("memory_bytes_per_s", 1..=MAX_RATE, faults);
    let memory_bytes_per_s =
        figure(read, "memory_bytes_per_s", known.as_ref().map(|known| known.memory_bytes_per_s), &mut table);
    let read = table.bytes("memory_bytes", 1..=MAX_MEMORY, faults);
    let memory_bytes = figure(read, "memory_bytes", known.as_ref().map(|known| known.memory_bytes), &mut table);
    let host_bytes_per_s = table.bytes("host_bytes_per_s", 1..=MAX_RATE, faults);
    let host_bytes_per_s = host_bytes_per_s.unwrap_or_else(|| cluster::usual_host_bytes_per_s(name));
    let launch_ns = table.whole("launch_ns", 0..=MAX_LATENCY_NS, faults);
    let launch_ns = launch_ns.or(known.as_ref().map(|known| known.launch_ns)).unwrap_or(default::LAUNCH_NS);
    if !missing.is_empty() {
        let found = if name.is_empty() { "nothing".to_string() } else { format!("\"{name}\"") };
        let accepted = format!("{}; or by hand: {}", one_of(&device_names()), missing.join(", "));
        faults.push(Fault::new(table.path("name"), found, accepted));
    }
    table.finish(faults);
    let device =
        matmul_flops.zip(memory_bytes_per_s).zip(memory_bytes).map(|((matmul_flops, rate), memory_bytes)| Device {
            name: name.to_string(),
            matmul_flops,
            fp8_flops,
            fp4_flops,
            matmul_permille,
            multiprocessors,
            memory_bytes_per_s: rate,
            memory_bytes,
            host_bytes_per_s,
            launch_ns,
        });
    (entry, device, dtype)
}

fn read_link(table: &mut Table<'_>, key: &'static str, usual: Option<Link>, faults: &mut Vec<Fault>) -> Option<Link> {
    if let Some(Value::String(name)) = table.get(key) {
        let found = cluster::find_link(name);
        if found.is_none() {
            let names: Vec<&str> = cluster::links().iter().map(|entry| entry.name).collect();
            let accepted = format!("{}; or a table of `bytes_per_s` and `latency_ns`", one_of(&names));
            faults.push(Fault::new(table.path(key), format!("\"{name}\""), accepted));
        }
        return found.map(|entry| entry.link);
    }
    let Some(mut link) = table.table(key, faults) else { return usual };
    let bytes_per_s = link.bytes("bytes_per_s", 1..=MAX_RATE, faults);
    let latency_ns = link.whole("latency_ns", 0..=MAX_LATENCY_NS, faults);
    link.finish(faults);
    Some(Link {
        bytes_per_s: bytes_per_s.or(usual.map(|usual| usual.bytes_per_s))?,
        latency_ns: latency_ns.or(usual.map(|usual| usual.latency_ns))?,
    })
}
