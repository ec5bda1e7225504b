//! Links of groups of devices, and the catalog.

use super::*;
use crate::model::Dtype;

/// Two nodes of eight, 100 within and 10 a device between them.
#[test]
fn groups_leave_a_node_by_all_links_of_their_members() {
    let link = |bytes_per_s| Link { bytes_per_s, latency_ns: bytes_per_s };
    let nodes = Nodes { devices: 8, link: link(100), node_link: link(10) };
    let rate = |link: Link| (link.bytes_per_s, link.latency_ns);
    assert_eq!(rate(nodes.in_rings(8, 1)), (100, 100));
    assert_eq!(rate(nodes.in_rings(16, 1)), (80, 10));
    assert_eq!(rate(nodes.in_rings(4, 4)), (20, 10), "two of a node");
    assert_eq!(rate(nodes.in_rings(2, 8)), (10, 10), "one of a node");
    assert_eq!(rate(nodes.in_rings(2, 16)), (10, 10), "every other node");
    assert_eq!(rate(Nodes { link: link(50), ..nodes }.in_rings(16, 1)), (50, 10), "no faster than within");
    // Of fifteen parts eight leave.
    assert_eq!(rate(nodes.in_exchange(16, 1)), (10 * 15 / 8, 10));
    assert_eq!(rate(nodes.in_exchange(2, 8)), (10, 10));
    assert_eq!(rate(nodes.in_exchange(8, 1)), (100, 100));
    assert_eq!(rate(nodes.in_turn(16, 1)), (10, 10));
    assert_eq!(rate(nodes.in_turn(1, 1)), (100, 100));
    // Of two nodes, eight experts of a token lie on both but for one token in 128: instead of four copies one goes.
    assert_eq!(rate(nodes.in_exchange_by_node(16, 1, 8, (1, 1))).0, 10 * 15 * 4 / 8);
    assert_eq!(rate(nodes.in_exchange_by_node(16, 1, 1, (1, 1))), rate(nodes.in_exchange(16, 1)), "one copy is one");
    assert_eq!(rate(nodes.in_exchange_by_node(8, 1, 8, (1, 1))), (100, 100));
    // Eight of eight nodes' experts, from four nodes at most: half as much as each copy.
    assert_eq!(rate(nodes.in_exchange_by_node(64, 1, 8, (4, 8))).0, 10 * 63 * 2 / 56);
}

#[test]
fn entries_are_sound() {
    for entry in catalog() {
        for dtype in [Dtype::Bf16, Dtype::F32, Dtype::F64] {
            let mut faults = Vec::new();
            entry.device(dtype).find_faults("", &mut faults);
            entry.link.find_faults("link", &mut faults);
            entry.node_link.find_faults("node_link", &mut faults);
            // TPUs, Trainium and Ascend have no rate in f64, and a spec that asks for it is refused.
            let without = dtype == Dtype::F64 && entry.matmul_flops.f64 == 0;
            let expected = usize::from(without);
            assert!(faults.len() == expected && entry.devices_per_node > 0, "{}: {faults:?}", entry.name);
        }
    }
    for entry in links() {
        let mut faults = Vec::new();
        entry.link.find_faults("", &mut faults);
        assert!(faults.is_empty(), "{}: {faults:?}", entry.name);
    }
}

/// Rates by format grow as operands shrink: FP8 is no slower than bf16, and FP4 no slower than FP8. The makers' figures of
/// a CDNA 4 device are its clock times 256 units of 4096, 8192 and 16384 operations (AMD CDNA 4 white paper).
#[test]
fn narrower_formats_are_no_slower() {
    for entry in catalog() {
        let rates = entry.matmul_flops;
        assert!(rates.fp8 == 0 || rates.fp8 >= rates.bf16, "{}", entry.name);
        assert!(rates.fp4 == 0 || rates.fp4 >= rates.fp8, "{}", entry.name);
    }
    for (name, mhz) in [("mi350x", 2200), ("mi355x", 2400)] {
        let rates = find(name).unwrap().matmul_flops;
        for (rate, operations) in [(rates.bf16, 4096), (rates.fp8, 8192), (rates.fp4, 16384)] {
            assert!(rate.abs_diff(operations * 256 * mhz * 1_000_000) < rate / 1000, "{name}: {rate}");
        }
    }
}

/// MXFP8 and FP4 are taken by Blackwell and CDNA 4, FP8 by Hopper and later.
#[test]
fn formats_are_taken_by_devices_that_have_them() {
    let rate = |name: &str, dtype| find(name).unwrap().device(Dtype::Bf16).quantized_flops(dtype);
    for dtype in [Dtype::MxFp8, Dtype::MxFp4, Dtype::NvFp4] {
        assert_eq!((rate("h100", dtype), rate("a100-80", dtype), rate("tpu-v7", dtype)), (0, 0, 0));
        assert!(rate("b200", dtype) > 0 && rate("mi355x", dtype) > 0);
    }
    assert_eq!(rate("gb300", Dtype::NvFp4), 3 * rate("gb300", Dtype::MxFp8), "15 and 5 PFLOP/s");
}

#[test]
fn a_message_costs_its_latency_and_its_bytes() {
    let link = Link { bytes_per_s: 3, latency_ns: 7 };
    assert_eq!(link.time(0), 7);
    assert_eq!(link.time(1), 7 + 333_333_334, "a third of a second, rounded up");
    assert_eq!(Link { bytes_per_s: 0, latency_ns: u64::MAX }.time(u64::MAX), u64::MAX);
}
