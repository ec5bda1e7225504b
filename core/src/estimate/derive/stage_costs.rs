//! Times and bytes of each kind of stage. Stages with the same layers are worked out once.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::graphs::{choices_of, graph_of, shape_of};
use super::slices;
use super::times::job_times;
use crate::base::units::{Bytes, Nanos};
use crate::estimate::memory::{self, StaticBytes};
use crate::estimate::partition::PartCosts;
use crate::graph::Graph;
use crate::graph::build::trains_before;
use crate::graph::form::{Offload, Recompute};
use crate::graph::layout::RecomputeLayers;
use crate::graph::liveness::Lifetimes;
use crate::model::{Modules, StageLayout};
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

/// The number of layers of each kind, whether the stage has the embedding and the head, its MTP modules, and the
/// recomputation of each layer where it differs between layers.
type PartKey = ([u32; KINDS], (bool, bool, Modules), Vec<(Recompute, usize)>);

/// Kinds of layer: with experts or without, with a window or without, with rotary positions or without, and with attention
/// or a recurrence; frozen or not, and behind a part that trains or not.
pub(super) const KINDS: usize = 64;

/// The kind of `layer`: all layers of a kind are alike.
pub(crate) fn kind_of(work: &ModelWork, layer: u32) -> usize {
    let sequence = u64::from(work.sequence);
    let model = &work.model;
    let windowed =
        model.looks_back(layer, sequence) < sequence || model.attention_sequence(layer, sequence) < sequence;
    let form = &work.layout.form;
    let has = [
        model.has_experts(layer),
        windowed,
        !model.has_rope(layer),
        model.recurrence(layer).is_some(),
        form.frozen.has_layer(layer),
        !trains_before(
            model,
            &shape_of(
                work,
                &StageLayout { layers: layer..layer + 1, embedding: false, head: false, ..StageLayout::default() },
            ),
        ),
    ];
    has.into_iter().enumerate().map(|(bit, has)| usize::from(has) << bit).sum()
}

/// Times and bytes of the stage that `layout` describes.
pub(crate) fn stage_cost(work: &ModelWork, layout: &StageLayout) -> StageCost {
    cost_of(&graph_of(work, layout), work)
}

fn cost_of(graph: &Graph, work: &ModelWork) -> StageCost {
    let fused = Lifetimes::fused(graph).memory_fused(graph);
    let cost = memory::stage_cost(&job_times(graph, work), Lifetimes::of(graph).memory(graph), fused);
    if work.layout.slices > 1 { slices::with_keys_and_values(graph, cost) } else { cost }
}

/// What decides the times and bytes of the stage that `layout` describes.
fn key_of(work: &ModelWork, layout: &StageLayout) -> PartKey {
    let mut counts = [0u32; KINDS];
    layout.layers.clone().for_each(|layer| counts[kind_of(work, layer)] += 1);
    let mut by_layer = choices_of(work, layout).by_layer;
    let form = &work.layout.form;
    if by_layer.is_empty() && (matches!(form.offload, Offload::First(_)) || form.frozen.last_layer().is_some()) {
        // Offload depends on which layers come first, and the backward on which of them train.
        by_layer = vec![Recompute::None; layout.layers.len()];
    }
    let kinds = layout.layers.clone().map(|layer| kind_of(work, layer));
    (counts, (layout.embedding, layout.head, layout.modules), by_layer.into_iter().zip(kinds).collect())
}

/// The first of the `stages` of each kind, and by stage its kind.
pub(super) fn kinds_of<'l>(work: &ModelWork, stages: &'l [StageLayout]) -> (Vec<&'l StageLayout>, Vec<usize>) {
    let (mut known, mut firsts) = (BTreeMap::new(), Vec::new());
    let mut of = |layout: &'l StageLayout| {
        *known.entry(key_of(work, layout)).or_insert_with(|| {
            firsts.push(layout);
            firsts.len() - 1
        })
    };
    let of_stage = stages.iter().map(&mut of).collect();
    (firsts, of_stage)
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
