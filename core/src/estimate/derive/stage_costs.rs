//! Times and bytes of each kind of stage. Stages with the same layers are worked out once.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use super::graphs::graph_of;
use super::kinds::{KINDS, PartKey, key_of, kind_of};
use super::slices;
use super::times::job_times;
use crate::base::units::{Bytes, Nanos};
use crate::estimate::memory::{self, StaticBytes};
use crate::estimate::partition::PartCosts;
use crate::graph::Graph;
use crate::graph::form::{Offload, Recompute};
use crate::graph::layout::RecomputeLayers;
use crate::graph::liveness::Lifetimes;
use crate::graph::passes::offload_activations;
use crate::model::StageLayout;
use crate::problem::StageCost;
use crate::problem::op::OpKind;
use crate::spec::ModelWork;

/// What follows from one kind of stage.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) cost: StageCost,
    /// Host memory after F and after B.
    pub(super) on_host: [Bytes; 2],
    /// Static bytes with every neighbour stage on another rank.
    pub(super) apart: StaticBytes,
    /// Static bytes with the next stage on the same rank.
    pub(super) before_own: StaticBytes,
    /// Static bytes without ZeRO: all but experts, and experts.
    pub(super) whole: (StaticBytes, StaticBytes),
    /// Gradients of embedding tables that another stage holds, too.
    pub(super) tables: Bytes,
}

impl Part {
    /// The most bytes that an op needs only while it runs.
    pub(super) fn workspace(&self) -> Bytes {
        self.cost.forward_workspace_bytes.max(self.cost.takes(OpKind::BW))
    }
}

/// The kinds of stage so far. Layers of a kind are alike, so a stage is known by their numbers.
pub(super) struct Parts<'w> {
    pub(super) work: &'w ModelWork,
    pub(super) known: BTreeMap<PartKey, Part>,
}

/// Times and bytes of the stage that `layout` describes.
pub(crate) fn stage_cost(work: &ModelWork, layout: &StageLayout) -> StageCost {
    cost_of(&graph_of(work, layout), work)
}

fn cost_of(graph: &Graph, work: &ModelWork) -> StageCost {
    let fused = Lifetimes::fused(graph).memory_fused(graph);
    let cost = memory::stage_cost(&job_times(graph, work), Lifetimes::of(graph).memory(graph), fused);
    match work.layout.form.offload {
        Offload::Scheduled => with_copies(graph, work, cost),
        _ if work.layout.slices > 1 => slices::with_keys_and_values(graph, cost),
        _ => cost,
    }
}

/// The cost of a stage whose activations may go to the host as copies of the schedule.
fn with_copies(graph: &Graph, work: &ModelWork, cost: StageCost) -> StageCost {
    let may_leave = offload_activations::may_leave(graph);
    let bytes = may_leave.iter().fold(0, |sum: Bytes, tensor| sum.saturating_add(graph[*tensor].bytes()));
    // What F leaves holds all of them.
    let offload_bytes = bytes.min(cost.forward_bytes.max(0) as u64);
    let offload_ns = if offload_bytes > 0 { work.device.host_link().time(offload_bytes) } else { 0 };
    StageCost { offload_bytes, offload_ns, ..cost }
}

impl Parts<'_> {
    pub(super) fn part(&mut self, layout: &StageLayout) -> Part {
        let key = key_of(self.work, layout);
        if let Some(part) = self.known.get(&key) {
            return *part;
        }
        let graph = graph_of(self.work, layout);
        let layout = &self.work.layout;
        let copies = [layout.copies(), layout.expert_copies()];
        let shares = copies.map(|copies| layout.sharers(copies) > 1);
        let [largest, largest_experts] = memory::largest_neighbours(&graph, shares, |_| true);
        let [trained, trained_experts] = memory::largest_neighbours(&graph, shares, |weight| !weight.is_frozen());
        let shared_out = |shares_after| {
            let (bytes, experts) = StaticBytes::of_stage(&graph, shares_after, layout);
            let experts = experts.shared_out(layout, copies[1], [largest_experts, trained_experts]);
            bytes.shared_out(layout, copies[0], [largest, trained]).with_experts(&experts)
        };
        let part = Part {
            cost: cost_of(&graph, self.work),
            on_host: Lifetimes::of(&graph).on_host(&graph),
            apart: shared_out(false),
            before_own: shared_out(true),
            whole: StaticBytes::of_stage(&graph, false, layout),
            tables: memory::gradients_of_tables(&graph),
        };
        self.known.insert(key, part);
        part
    }

    /// Times that the partition balances. Recomputation that differs between layers does not count: it is chosen for
    /// the layers where they are.
    pub(super) fn costs(&self) -> PartCosts {
        let mut plain = self.work.clone();
        // Recomputation that is the same for all layers counts, in whatever form the spec has it; any other does not.
        let same = match &plain.layout.recompute_layers {
            RecomputeLayers::All => plain.layout.form.recompute,
            RecomputeLayers::Each(choices) => match choices.split_first() {
                Some((first, others)) if others.iter().all(|other| other == first) => *first,
                _ => Recompute::None,
            },
            _ => Recompute::None,
        };
        (plain.layout.recompute_layers, plain.layout.form.recompute) = (RecomputeLayers::All, same);
        // Offload does not count: a layer alone has no compute of other layers that hides its copies.
        plain.layout.form.offload = Offload::None;
        let time = |layers: Range<u32>, embedding: bool, head: bool| {
            let graph = graph_of(&plain, &StageLayout { layers, embedding, head, ..StageLayout::default() });
            job_times(&graph, self.work).jobs.into_iter().fold(0, Nanos::saturating_add)
        };
        let mut known = [None; KINDS];
        let mut of =
            |layer| *known[kind_of(self.work, layer)].get_or_insert_with(|| time(layer..layer + 1, false, false));
        PartCosts {
            layers_ns: (0..self.work.model.layers).map(&mut of).collect(),
            embedding_ns: time(0..0, true, false),
            // Behind all layers: what they train is before it.
            head_ns: time(self.work.model.layers..self.work.model.layers, false, true),
            pace_permille: Vec::new(),
        }
    }
}
