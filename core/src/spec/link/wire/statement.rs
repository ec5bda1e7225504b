//! Typed costs to and from the bytes of a `v1` link.

use super::fixed::{WirePlacement, WireStage, WireStatement, WireTransfers};
use super::model::{objective_from_wire, objective_to_wire};
use crate::problem::placement::Placement;
use crate::problem::{Backward, PlacementChoice, StageCost, Statement, Transfers};

pub(super) fn statement_to_wire(statement: &Statement) -> WireStatement {
    let stage = |cost: &StageCost| WireStage {
        ns: (cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns),
        bytes: (cost.forward_bytes, cost.backward_input_bytes, cost.backward_weight_bytes),
        workspace: (
            cost.forward_workspace_bytes,
            cost.backward_input_workspace_bytes,
            cost.backward_weight_workspace_bytes,
        ),
        fused_workspace: cost.backward_workspace_bytes,
    };
    WireStatement {
        ranks: statement.ranks as u32,
        chunks: statement.chunks as u32,
        microbatches: statement.microbatches as u32,
        placement: match &statement.placement {
            PlacementChoice::Any => WirePlacement::Any,
            PlacementChoice::Fixed(Placement::Linear) => WirePlacement::Linear,
            PlacementChoice::Fixed(Placement::Looped) => WirePlacement::Looped,
            PlacementChoice::Fixed(Placement::V) => WirePlacement::V,
            PlacementChoice::Fixed(Placement::Wave) => WirePlacement::Wave,
            PlacementChoice::Fixed(Placement::Bidirectional) => WirePlacement::Bidirectional,
            PlacementChoice::Fixed(Placement::List(list)) => WirePlacement::List(list.clone()),
        },
        stages: one_for_all(&statement.stages).iter().map(stage).collect(),
        transfers: match &statement.transfers {
            Transfers::Uniform(hop) => WireTransfers::Uniform(*hop),
            Transfers::Links(links) => WireTransfers::Links(links.clone()),
        },
        static_bytes: one_for_all(&statement.static_bytes).to_vec(),
        limit_bytes: one_for_all(&statement.limit_bytes).to_vec(),
        objective: objective_to_wire(statement.objective),
        fused: statement.backward == Backward::Fused,
        overlap_permille: statement.overlap_permille,
    }
}

pub(super) fn statement_from_wire(wire: WireStatement) -> Statement {
    let stage = |wire: WireStage| StageCost {
        forward_ns: wire.ns.0,
        backward_input_ns: wire.ns.1,
        backward_weight_ns: wire.ns.2,
        backward_ns: None,
        forward_exchange_ns: 0,
        backward_exchange_ns: 0,
        forward_bytes: wire.bytes.0,
        backward_input_bytes: wire.bytes.1,
        backward_weight_bytes: wire.bytes.2,
        forward_workspace_bytes: wire.workspace.0,
        backward_input_workspace_bytes: wire.workspace.1,
        backward_weight_workspace_bytes: wire.workspace.2,
        backward_workspace_bytes: wire.fused_workspace,
        slice_gradient_bytes: 0,
        offload_bytes: 0,
        offload_ns: 0,
    };
    Statement {
        ranks: wire.ranks as usize,
        chunks: wire.chunks as usize,
        microbatches: wire.microbatches as usize,
        slices: 1,
        placement: match wire.placement {
            WirePlacement::Any => PlacementChoice::Any,
            WirePlacement::Linear => PlacementChoice::Fixed(Placement::Linear),
            WirePlacement::Looped => PlacementChoice::Fixed(Placement::Looped),
            WirePlacement::V => PlacementChoice::Fixed(Placement::V),
            WirePlacement::Wave => PlacementChoice::Fixed(Placement::Wave),
            WirePlacement::Bidirectional => PlacementChoice::Fixed(Placement::Bidirectional),
            WirePlacement::List(list) => PlacementChoice::Fixed(Placement::List(list)),
        },
        stages: wire.stages.into_iter().map(stage).collect(),
        transfers: match wire.transfers {
            WireTransfers::Uniform(hop) => Transfers::Uniform(hop),
            WireTransfers::Links(links) => Transfers::Links(links),
        },
        static_bytes: wire.static_bytes,
        limit_bytes: wire.limit_bytes,
        objective: objective_from_wire(wire.objective),
        backward: if wire.fused { Backward::Fused } else { Backward::Split },
        overlap_permille: wire.overlap_permille,
        microbatch_factors: None,
    }
}

/// The first entry alone, where all entries are equal.
pub(super) fn one_for_all<T: PartialEq>(values: &[T]) -> &[T] {
    match values {
        [first, rest @ ..] if rest.iter().all(|value| value == first) => &values[..1],
        _ => values,
    }
}
