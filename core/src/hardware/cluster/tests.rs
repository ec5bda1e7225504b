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
            assert!(faults.is_empty() && entry.devices_per_node > 0, "{}: {faults:?}", entry.name);
        }
    }
    for entry in links() {
        let mut faults = Vec::new();
        entry.link.find_faults("", &mut faults);
        assert!(faults.is_empty(), "{}: {faults:?}", entry.name);
    }
}

#[test]
fn a_message_costs_its_latency_and_its_bytes() {
    let link = Link { bytes_per_s: 3, latency_ns: 7 };
    assert_eq!(link.time(0), 7);
    assert_eq!(link.time(1), 7 + 333_333_334, "a third of a second, rounded up");
    assert_eq!(Link { bytes_per_s: 0, latency_ns: u64::MAX }.time(u64::MAX), u64::MAX);
}
