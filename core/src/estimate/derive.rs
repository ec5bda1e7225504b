//! From a model on a cluster to a scheduling problem: layers are dealt to stages, and each stage's operators say
//! what its ops take in time and bytes.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::base::fields::{Fault, Faults};
use crate::base::units::{Bytes, Nanos};
use crate::estimate::assign::{self, Group, Needs};
use crate::estimate::memory::{self, StaticBytes};
use crate::estimate::partition::{self, PartCosts};
use crate::estimate::step::{self, Ends, Tail};
use crate::graph::build::{forward_graph, stage_graph_with};
use crate::graph::form::StageShape;
use crate::graph::form::{Form, Offload, Recompute};
use crate::graph::layout::{Dispatch, Partition, RecomputeLayers};
use crate::graph::liveness::Lifetimes;
use crate::graph::passes::recompute::Choices;
use crate::graph::passes::{self, Account};
use crate::graph::{Graph, Job, Operator, Role, Stream, TensorId};
use crate::hardware::cluster::Link;
use crate::hardware::cost::{self, JobTimes, Peers};
use crate::hardware::profile::Coverage;
use crate::model::StageLayout;
use crate::model::{Dtype, Experts, Family, MAX_SIZE};
use crate::problem::op::OpKind;
use crate::problem::placement::Placement;
use crate::problem::{
    Backward, MAX_BYTES, MAX_CHUNKS, MAX_MICROBATCHES, MAX_NS, MAX_RANKS, PlacementChoice, StageCost, Statement,
    Transfers,
};
use crate::spec::ModelWork;

/// A model's scheduling problem, and what it follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The problem, with its placement fixed.
    pub statement: Statement,
    /// The part of the model that each stage holds.
    pub stages: Vec<StageLayout>,
    /// Floating-point operations that the model needs for one step, over all stages, for each device that shares a stage:
    /// each product of the forward, and its two gradients. Work that is only done to save memory does not count
    /// (arXiv:2204.02311 §4.1), nor what sharing adds: heads that several devices hold, and room for experts' tokens.
    pub step_flops: u128,
    /// Bytes held throughout, by rank and kind.
    pub static_bytes: Vec<StaticBytes>,
    /// Bytes of the host's memory that a microbatch of each stage holds behind F, and behind B until W.
    pub host_bytes: Vec<[Bytes; 2]>,
    /// What ends each step.
    pub ends: Ends,
    /// How good the deal of layers is, where it was made for the memory limit.
    pub dealt: Option<Dealt>,
}

/// A deal of layers within a memory limit, beside what is possible. What layers compute again does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealt {
    /// The time of its slowest stage for a microbatch.
    pub slowest_ns: Nanos,
    /// No deal within the limit has a slowest stage that is faster.
    pub bound_ns: Nanos,
}

impl core::fmt::Display for Dealt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "layers dealt within the limit: the slowest stage takes {} ns a microbatch", self.slowest_ns)?;
        if self.slowest_ns <= self.bound_ns {
            return f.write_str(", the least of all deals that fit with the usual microbatches in flight");
        }
        let beyond = (u128::from(self.slowest_ns - self.bound_ns) * 1000).div_ceil(u128::from(self.bound_ns.max(1)));
        write!(f, ", at most {}.{} % above the best deal that fits", beyond / 10, beyond % 10)
    }
}

impl Dealt {
    fn of(costs: &PartCosts, stages: &[StageLayout], freer: &[StageLayout]) -> Dealt {
        let slowest = |stages: &[StageLayout]| costs.times(stages).into_iter().max().unwrap_or(0);
        Dealt { slowest_ns: slowest(stages), bound_ns: slowest(freer) }
    }
}

/// Where a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    /// Its stage.
    pub stage: usize,
    /// The rank that holds it; with two-way placement, the one for the first half of the microbatches.
    pub rank: usize,
    /// Which of that rank's chunks it is in.
    pub chunk: usize,
}

impl Derived {
    /// Where `layer` is; none beyond the model.
    pub fn place_of_layer(&self, layer: u32) -> Option<LayerPlace> {
        let stage = self.stages.iter().position(|layout| layout.layers.contains(&layer))?;
        let PlacementChoice::Fixed(placement) = &self.statement.placement else { return None };
        let ranks = placement.ranks(self.statement.ranks, self.statement.chunks);
        let rank = *ranks.get(stage)?;
        let chunk = ranks[..stage].iter().filter(|other| **other == rank).count();
        Some(LayerPlace { stage, rank: usize::from(rank), chunk })
    }

    /// Counts the buffers of messages that are received ahead: `prefetch` boundary tensors for each link on which a rank
    /// receives, or as many as it carries. Those that are received just before their op are counted with the op.
    pub(crate) fn add_prefetch(&mut self, work: &ModelWork, placement: &Placement, prefetch: usize) {
        let (ranks, microbatches) = (self.statement.ranks, self.statement.microbatches);
        let rank_of_stage = placement.ranks(ranks, self.statement.chunks);
        let two_way = *placement == Placement::TwoWay;
        // By receiver and sender: messages of a step.
        let mut links: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for pair in rank_of_stage.windows(2) {
            let [below, above] = [pair[0], pair[1]].map(usize::from);
            let mirrored = two_way.then(|| (ranks - 1 - below, ranks - 1 - above));
            for (below, above) in core::iter::once((below, above)).chain(mirrored) {
                if below != above {
                    let share = if two_way { microbatches.div_ceil(2) } else { microbatches };
                    *links.entry((above, below)).or_default() += share;
                    *links.entry((below, above)).or_default() += share;
                }
            }
        }
        for ((receiver, _), messages) in links {
            let bytes = boundary_bytes(work).saturating_mul(prefetch.min(messages) as u64);
            let held = &mut self.static_bytes[receiver];
            held.buffers = held.buffers.saturating_add(bytes);
            self.statement.static_bytes[receiver] = held.total();
        }
    }
}

/// The problem of `work` with `chunks` stages on each rank, placed by `placement`; `work.chunks` is not read.
///
/// Stages with the same parts are worked out once, so this takes time in proportion to the layers of the few
/// different stages, and none for microbatches.
///
/// # Errors
/// Every fault of `work` that hides the problem: sizes that are no model's, more stages than layers, a placement that
/// does not suit, times or bytes beyond what a problem may hold. Fields are named as in a spec.
pub fn derive(work: &ModelWork, placement: Placement, chunks: usize) -> Result<Derived, Faults> {
    let mut faults = Vec::new();
    find_faults(work, chunks, &mut faults);
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let ranks = work.pipeline as usize;
    let mut parts = Parts { work, known: BTreeMap::new() };
    let layers = work.model.layers;
    let equal = |ends| PartCosts::equal(layers, 1, ends, ends);
    let mut dealt = None;
    let stages = match &work.layout.partition {
        Partition::Balanced => partition::balanced(ranks, chunks, &parts.costs()),
        Partition::Layers => partition::balanced(ranks, chunks, &equal(0)),
        Partition::LayersAndEnds => partition::balanced(ranks, chunks, &equal(1)),
        Partition::WithinLimit => parts.within_limit(&placement, chunks).map(|(stages, found)| {
            dealt = Some(found);
            stages
        }),
        Partition::ByHand(counts) => partition::by_hand(layers, ranks, chunks, counts),
    }?;
    let known: Vec<Part> = stages.iter().map(|layout| parts.part(layout)).collect();

    let mut statement = Statement {
        ranks,
        chunks,
        microbatches: work.microbatches as usize,
        placement: PlacementChoice::Fixed(placement.clone()),
        stages: known.iter().map(|part| part.cost).collect(),
        transfers: transfers(work),
        static_bytes: vec![0],
        limit_bytes: vec![Some(work.limit_bytes.unwrap_or(work.device.memory_bytes))],
        objective: work.objective,
        backward: Backward::Split,
        overlap_permille: 0,
    };
    check_sizes(&statement, &mut faults);
    if faults.is_empty() {
        // Also checks that the placement suits, which its ranks are then worked out from.
        statement.find_faults("", &mut faults);
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let static_bytes = static_by_rank(work, &placement, chunks, &known);
    statement.static_bytes = static_bytes.iter().map(StaticBytes::total).collect();
    if let Some(rank) = statement.static_bytes.iter().position(|bytes| *bytes > MAX_BYTES) {
        let found = format!("{} bytes of weights on rank {rank}", statement.static_bytes[rank]);
        return Err(Fault::new("model", found, format!("at most {MAX_BYTES} bytes a rank")).into());
    }
    let tails = tails_by_rank(work, &placement, chunks, &known);
    let reduces_ns = known.iter().map(|part| step::reduce_each(work, &part.whole.0, &part.whole.1)).collect();
    Ok(Derived {
        statement,
        stages,
        step_flops: step_flops(work),
        static_bytes,
        host_bytes: known.iter().map(|part| part.on_host).collect(),
        ends: Ends { tails, reduces_ns },
        dealt,
    })
}

/// The graph of the stage that `layout` describes: what the runner executes for `work`.
pub fn graph_of(work: &ModelWork, layout: &StageLayout) -> Graph {
    operators_of(work, layout).0
}

/// As [`graph_of`], with what each pass over the graph did, and the one over what a step does with its gradients.
pub fn graph_and_accounts(work: &ModelWork, layout: &StageLayout) -> (Graph, Vec<Account>) {
    let (graph, mut accounts) = operators_of(work, layout);
    accounts.extend(passes::reduce_gradients::account(&graph, &work.layout));
    (graph, accounts)
}

fn operators_of(work: &ModelWork, layout: &StageLayout) -> (Graph, Vec<Account>) {
    let choices = choices_of(work, layout);
    stage_graph_with(&work.model, &shape_of(work, layout), work.microbatches, &choices)
}

fn choices_of(work: &ModelWork, layout: &StageLayout) -> Choices {
    work.layout.recompute_layers.of_stage(work.layout.form.recompute, layout.layers.clone())
}

/// The sizes of the stage that `layout` describes.
pub fn shape_of(work: &ModelWork, layout: &StageLayout) -> StageShape {
    StageShape {
        layers: layout.layers.clone(),
        has_embedding: layout.embedding,
        has_head: layout.head,
        microbatch_size: work.microbatch_size,
        sequence: work.sequence,
        dtype: work.dtype,
        form: work.layout.form,
    }
}

/// As [`Derived::step_flops`].
fn step_flops(work: &ModelWork) -> u128 {
    // All layers of a kind are alike, and a head does the same behind each.
    let forward = |layer: u32, has_head: bool| {
        let layout = StageLayout { layers: layer..layer + 1, embedding: false, head: has_head };
        let shape = StageShape { form: Form::default(), ..shape_of(work, &layout) };
        cost::job_flops(&forward_graph(&work.model, &shape, work.microbatches))[Job::F as usize]
    };
    let mut of_kinds: [Option<u128>; KINDS] = [None; KINDS];
    let layers = (0..work.model.layers).fold(0u128, |sum, layer| {
        let of_kind = of_kinds[kind_of(work, layer)].get_or_insert_with(|| forward(layer, false));
        sum.saturating_add(*of_kind)
    });
    let last = work.model.layers.saturating_sub(1);
    let head = forward(last, true).saturating_sub(forward(last, false));
    let form = &work.layout.form;
    let shared = u128::from(form.tensor.max(1)) * u128::from(form.context.max(1));
    let all = layers.saturating_add(head).saturating_mul(3).saturating_mul(work.microbatches.into());
    all / shared
}

/// What follows from one kind of stage.
#[derive(Clone, Copy)]
struct Part {
    cost: StageCost,
    /// Of the host's memory, behind F and behind B.
    on_host: [Bytes; 2],
    /// With every neighbour on another rank.
    apart: StaticBytes,
    /// With the next stage on the same rank.
    before_own: StaticBytes,
    /// Before anything is shared out among copies: all but experts, and experts.
    whole: (StaticBytes, StaticBytes),
    /// Gradients of tables that another stage holds too.
    tables: Bytes,
}

impl Part {
    /// The most that an op needs while it runs.
    fn workspace(&self) -> Bytes {
        self.cost.forward_workspace_bytes.max(self.cost.takes(OpKind::BW))
    }
}

/// The kinds of stage met so far. Layers of a kind are all alike, so their numbers are enough.
struct Parts<'w> {
    work: &'w ModelWork,
    known: BTreeMap<PartKey, Part>,
}

/// Stages of one rank with the microbatches of which each holds activations at one time.
type Moment = Vec<(usize, usize)>;

/// Ranks by the stages that they hold, with the moments of all of them.
fn groups(moments: &[Vec<Moment>]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for moments in moments {
        let stages: Vec<usize> = moments.first().into_iter().flatten().map(|(stage, _)| *stage).collect();
        let held = moments.iter().map(|moment| moment.iter().map(|(_, count)| *count as u64).collect());
        match groups.iter_mut().find(|group| group.stages == stages) {
            Some(group) => group.moments.extend(held),
            None => groups.push(Group { stages: stages.clone(), moments: held.collect() }),
        }
    }
    groups
}

/// How bad a deal is: bytes too many, the time of the slowest stage, the squares of all times.
type Score = (u64, Nanos, u128);

/// How many layers of each kind, whether with embedding and with head, and what each layer computes again where that is
/// not the same for all.
type PartKey = ([u32; KINDS], bool, bool, Vec<(Recompute, usize)>);

/// Kinds of layer: with experts or without, and with a window that hides tokens or without.
const KINDS: usize = 4;

/// The kind of `layer`: all layers of a kind are alike.
pub(crate) fn kind_of(work: &ModelWork, layer: u32) -> usize {
    let sequence = u64::from(work.sequence);
    let windowed = work.model.looks_back(layer, sequence) < sequence;
    usize::from(work.model.has_experts(layer)) + 2 * usize::from(windowed)
}

/// Times and bytes of the stage that `layout` describes.
pub(crate) fn stage_cost(work: &ModelWork, layout: &StageLayout) -> StageCost {
    cost_of(&graph_of(work, layout), work)
}

fn cost_of(graph: &Graph, work: &ModelWork) -> StageCost {
    let fused = Lifetimes::fused(graph).memory_fused(graph);
    memory::stage_cost(&job_times(graph, work), Lifetimes::of(graph).memory(graph), fused)
}

impl Parts<'_> {
    fn part(&mut self, layout: &StageLayout) -> Part {
        let mut counts = [0u32; KINDS];
        layout.layers.clone().for_each(|layer| counts[kind_of(self.work, layer)] += 1);
        let mut by_layer = choices_of(self.work, layout).by_layer;
        if by_layer.is_empty() && matches!(self.work.layout.form.offload, Offload::First(_)) {
            // Which layers come first matters, too.
            by_layer = vec![Recompute::None; layout.layers.len()];
        }
        let kinds = layout.layers.clone().map(|layer| kind_of(self.work, layer));
        let key = (counts, layout.embedding, layout.head, by_layer.into_iter().zip(kinds).collect());
        if let Some(part) = self.known.get(&key) {
            return *part;
        }
        let graph = graph_of(self.work, layout);
        let layout = &self.work.layout;
        let copies = [layout.copies(), layout.expert_copies()];
        let shares = copies.map(|copies| layout.sharers(copies) > 1);
        let [largest, largest_experts] = memory::largest_neighbours(&graph, shares);
        let shared_out = |shares_after| {
            let (bytes, experts) = StaticBytes::of_stage(&graph, shares_after, layout.moments());
            let experts = experts.shared_out(layout, copies[1], largest_experts);
            bytes.shared_out(layout, copies[0], largest).with_experts(&experts)
        };
        let part = Part {
            cost: cost_of(&graph, self.work),
            on_host: Lifetimes::of(&graph).on_host(&graph),
            apart: shared_out(false),
            before_own: shared_out(true),
            whole: StaticBytes::of_stage(&graph, false, layout.moments()),
            tables: memory::gradients_of_tables(&graph),
        };
        self.known.insert(key, part);
        part
    }

    /// Layers dealt so that every rank fits its limit, and balanced as far as that allows: the best deal, or a good one where
    /// there are too many to find it among.
    fn within_limit(&mut self, placement: &Placement, chunks: usize) -> Result<(Vec<StageLayout>, Dealt), Fault> {
        let ranks = self.work.pipeline as usize;
        // What ranks hold is listed by stage: of more stages than layers there may be too many for any list.
        partition::enough_layers(self.work.model.layers as usize, ranks, chunks)?;
        let (costs, microbatches) = (self.costs(), self.work.microbatches as usize);
        let moments: Vec<Vec<Moment>> = (0..ranks)
            .map(|rank| {
                let mut moments = partition::in_flight(placement, ranks, chunks, microbatches, rank);
                moments.sort_unstable();
                moments.dedup();
                moments
            })
            .collect();
        let limit = self.limit();
        if moments.iter().flatten().all(|moment| moment.len() == 1) {
            let stages = self.alone_within(ranks, chunks, &costs, &moments)?;
            return Ok((stages.clone(), Dealt::of(&costs, &stages, &stages)));
        }
        // Where each stage is alone on its rank, more deals fit.
        let freer = self.alone_within(ranks, chunks, &costs, &moments)?;
        let (groups, stages) = (groups(&moments), ranks * chunks);
        let of = |stage: usize, layers: Range<u32>| StageLayout {
            layers,
            embedding: stage == 0,
            head: stage + 1 == stages,
        };
        let time = |stage: usize, layers: Range<u32>| {
            let layers = costs.layers_ns.get(layers.start as usize..layers.end as usize);
            costs.time(stage, stages, layers.unwrap_or_default())
        };
        let kinds = self.kinds();
        let mut needs = |stage: usize, layers: Range<u32>| {
            let part = self.part(&of(stage, layers));
            let each = part.cost.forward_bytes.max(0) as u64;
            Needs { fixed: part.apart.total(), each, workspace: part.workspace() }
        };
        let best = match kinds.windows(2).all(|pair| pair[0] == pair[1]) {
            true => {
                let mut needs = |stage: usize, count: u32| needs(stage, 0..count);
                assign::best(kinds.len() as u32, &groups, limit, &mut needs, &|stage, count| time(stage, 0..count))
            }
            false => Err(assign::Without::TooMany),
        };
        let best = match best {
            Err(assign::Without::TooMany) => {
                let least = costs.times(&freer).into_iter().max().unwrap_or(0);
                assign::kinds::best(&kinds, &groups, limit, &mut needs, &time, least)
            }
            best => best,
        };
        match best {
            Ok(counts) => {
                let stages = partition::from_counts(&counts);
                return Ok((stages.clone(), Dealt::of(&costs, &stages, &stages)));
            }
            Err(assign::Without::NothingFits) => return Err(partition::nothing_fits()),
            Err(assign::Without::TooMany) => {}
        }
        let even = partition::balanced(ranks, chunks, &costs)?;
        let moved = self.moved_within_limit(even, &costs, &moments)?;
        let dealt = Dealt::of(&costs, &moved, &freer);
        Ok((moved, dealt))
    }

    /// The best deal if each stage were the only one of its rank.
    fn alone_within(
        &mut self,
        ranks: usize,
        chunks: usize,
        costs: &PartCosts,
        moments: &[Vec<Moment>],
    ) -> Result<Vec<StageLayout>, Fault> {
        let limit = self.limit();
        let mut most_held = vec![0; ranks * chunks];
        for (stage, count) in moments.iter().flatten().flatten() {
            most_held[*stage] = (*count).max(most_held[*stage]);
        }
        let mut fits = |stage: usize, layout: &StageLayout| {
            let (kept, workspace) = self.needs(layout, most_held[stage]);
            kept.saturating_add(workspace) <= limit
        };
        partition::within(ranks, chunks, costs, &mut fits)
    }

    /// By layer a number that is the same for layers which are alike in all that a stage needs.
    fn kinds(&self) -> Vec<usize> {
        let choice = |layer: u32| match &self.work.layout.recompute_layers {
            RecomputeLayers::Each(choices) => choices.get(layer as usize).copied().unwrap_or_default(),
            _ => Recompute::None,
        };
        (0..self.work.model.layers).map(|layer| kind_of(self.work, layer) + KINDS * choice(layer) as usize).collect()
    }

    /// From `even`, moves one layer after the other: while a rank holds too much, from its stages to wherever that leaves
    /// the least too much; then from the slowest stage to wherever that leaves the slowest fastest. Among equals, the
    /// evenest. Every move is an improvement, so this ends.
    fn moved_within_limit(
        &mut self,
        even: Vec<StageLayout>,
        costs: &PartCosts,
        moments: &[Vec<Moment>],
    ) -> Result<Vec<StageLayout>, Fault> {
        let mut counts: Vec<u32> = even.iter().map(|stage| stage.layers.end - stage.layers.start).collect();
        let (mut score, mut excess) = self.score(&counts, costs, moments);
        loop {
            let worst = (0..moments.len()).max_by_key(|rank| excess[*rank]).filter(|rank| excess[*rank] > 0);
            let from: Vec<usize> = match worst {
                Some(rank) => moments[rank].first().into_iter().flatten().map(|(stage, _)| *stage).collect(),
                None => {
                    let times = costs.times(&partition::from_counts(&counts));
                    (0..counts.len()).max_by_key(|stage| times[*stage]).into_iter().collect()
                }
            };
            let mut best: Option<(Score, Vec<u32>, Vec<u64>)> = None;
            for from in from.into_iter().filter(|from| counts[*from] > 1) {
                for to in (0..counts.len()).filter(|to| *to != from) {
                    let mut moved = counts.clone();
                    moved[from] -= 1;
                    moved[to] += 1;
                    let (reached, left) = self.score(&moved, costs, moments);
                    if reached < best.as_ref().map_or(score, |(best, ..)| *best) {
                        best = Some((reached, moved, left));
                    }
                }
            }
            match best {
                Some((reached, moved, left)) => (score, counts, excess) = (reached, moved, left),
                None if score.0 == 0 => return Ok(partition::from_counts(&counts)),
                None => return Err(partition::nothing_fits()),
            }
        }
    }

    /// Of a deal: the bytes too many over all ranks, the time of the slowest stage, and the squares of all times; and the
    /// bytes too many by rank.
    fn score(
        &mut self,
        counts: &[u32],
        costs: &PartCosts,
        moments: &[Vec<Moment>],
    ) -> ((u64, Nanos, u128), Vec<u64>) {
        let (layouts, limit) = (partition::from_counts(counts), self.limit());
        let excess: Vec<u64> = moments
            .iter()
            .map(|moments| {
                let mut most = 0;
                for moment in moments {
                    let (mut kept, mut workspace): (u64, u64) = (0, 0);
                    for (stage, count) in moment {
                        let (more, needed) = self.needs(&layouts[*stage], *count);
                        (kept, workspace) = (kept.saturating_add(more), workspace.max(needed));
                    }
                    most = most.max(kept.saturating_add(workspace).saturating_sub(limit));
                }
                most
            })
            .collect();
        let times = costs.times(&layouts);
        let squares =
            times.iter().fold(0, |sum: u128, time| sum.saturating_add(u128::from(*time) * u128::from(*time)));
        let sum = excess.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        ((sum, times.into_iter().max().unwrap_or(0), squares), excess)
    }

    /// What a rank may hold beside the framework.
    fn limit(&self) -> u64 {
        let limit = self.work.limit_bytes.unwrap_or(self.work.device.memory_bytes);
        limit.saturating_sub(self.work.layout.overhead_bytes).saturating_sub(workspace_bytes(self.work))
    }

    /// Bytes of a stage with so many microbatches in flight, all neighbours on other ranks and no framework beside it: those
    /// that it holds, and what an op needs while it runs.
    fn needs(&mut self, layout: &StageLayout, in_flight: usize) -> (u64, u64) {
        let part = self.part(layout);
        let kept = (part.cost.forward_bytes.max(0) as u64).saturating_mul(in_flight as u64);
        (part.apart.total().saturating_add(kept), part.workspace())
    }

    /// What the partition balances. Where layers differ in what they compute again, and that is chosen for them where
    /// they are, none of it counts.
    fn costs(&self) -> PartCosts {
        let mut plain = self.work.clone();
        // The same for all is the same, however it is said; else layers are dealt as if nothing were computed again.
        let same = match &plain.layout.recompute_layers {
            RecomputeLayers::All => plain.layout.form.recompute,
            RecomputeLayers::Each(choices) => match choices.split_first() {
                Some((first, others)) if others.iter().all(|other| other == first) => *first,
                _ => Recompute::None,
            },
            _ => Recompute::None,
        };
        (plain.layout.recompute_layers, plain.layout.form.recompute) = (RecomputeLayers::All, same);
        // Nor do copies of a layer on its own, which no other one hides.
        plain.layout.form.offload = Offload::None;
        let time = |layers: Range<u32>, embedding: bool, head: bool| {
            let graph = graph_of(&plain, &StageLayout { layers, embedding, head });
            job_times(&graph, self.work).jobs.into_iter().fold(0, Nanos::saturating_add)
        };
        let mut known = [None; KINDS];
        let mut of =
            |layer| *known[kind_of(self.work, layer)].get_or_insert_with(|| time(layer..layer + 1, false, false));
        PartCosts {
            layers_ns: (0..self.work.model.layers).map(&mut of).collect(),
            embedding_ns: time(0..0, true, false),
            head_ns: time(0..0, false, true),
        }
    }
}

/// What ends the step of each rank. Two-way placement keeps two of each stage, each for half of the microbatches: a rank's
/// tail is that of both, and what they have added up is summed with the rank at the other end. A table that the first stage
/// and the last one hold is summed between their ranks.
fn tails_by_rank(work: &ModelWork, placement: &Placement, chunks: usize, parts: &[Part]) -> Vec<Tail> {
    let ranks = work.pipeline as usize;
    let rank_of_stage = placement.ranks(ranks, chunks);
    let two_way = *placement == Placement::TwoWay;
    let mut whole = vec![(StaticBytes::default(), StaticBytes::default()); ranks];
    // By rank, gradients that another rank has parts of.
    let mut elsewhere: Vec<Bytes> = vec![0; ranks];
    let (first, last) = (usize::from(rank_of_stage[0]), usize::from(rank_of_stage[parts.len() - 1]));
    for (stage, part) in parts.iter().enumerate() {
        let rank = usize::from(rank_of_stage[stage]);
        let mirrored = two_way.then(|| ranks - 1 - rank);
        let gradients = part.whole.0.gradients.saturating_add(part.whole.1.gradients);
        for rank in core::iter::once(rank).chain(mirrored) {
            whole[rank] = (whole[rank].0.plus(&part.whole.0), whole[rank].1.plus(&part.whole.1));
            let summed = match two_way {
                // A table in both of a rank's stages is one.
                true if stage == 0 => gradients.saturating_sub(part.tables),
                true => gradients,
                false if first != last => part.tables,
                false => 0,
            };
            elsewhere[rank] = elsewhere[rank].saturating_add(summed);
        }
    }
    let tail = |(rank, (dense, experts)): (usize, &(StaticBytes, StaticBytes))| {
        let other = match two_way {
            true => ranks - 1 - rank,
            false if rank == first => last,
            false => first,
        };
        let tail = step::tail(work, dense, experts);
        let between = step::sum_of_two(work, elsewhere[rank], &link_between(work, rank, other));
        Tail { reduce_ns: tail.reduce_ns.saturating_add(between), ..tail }
    };
    whole.iter().enumerate().map(tail).collect()
}

fn static_by_rank(work: &ModelWork, placement: &Placement, chunks: usize, parts: &[Part]) -> Vec<StaticBytes> {
    let ranks = work.pipeline as usize;
    let rank_of_stage = placement.ranks(ranks, chunks);
    let (overhead, workspace) = (work.layout.overhead_bytes, workspace_bytes(work));
    let mut by_rank = vec![StaticBytes { overhead, workspace, ..StaticBytes::default() }; ranks];
    for (stage, part) in parts.iter().enumerate() {
        let rank = rank_of_stage[stage];
        let bytes = if rank_of_stage.get(stage + 1) == Some(&rank) { &part.before_own } else { &part.apart };
        let rank = usize::from(rank);
        by_rank[rank] = by_rank[rank].plus(bytes);
        if *placement == Placement::TwoWay {
            let mirrored = ranks - 1 - rank;
            by_rank[mirrored] = by_rank[mirrored].plus(bytes);
        }
    }
    by_rank
}

/// What the device's own libraries take of each rank's memory, where the device has been measured.
fn workspace_bytes(work: &ModelWork) -> Bytes {
    work.profile.as_ref().map_or(0, |profile| profile.workspace_bytes)
}

/// By operator of `graph` its time: the roofline's, or what a profile makes of it.
fn operator_times(graph: &Graph, work: &ModelWork) -> Vec<Nanos> {
    let (device, peers) = (&work.device, peers(work));
    match &work.profile {
        Some(profile) => profile.operator_times(graph, device, &peers),
        None => cost::operator_times(graph, device, &peers),
    }
}

/// What the profile of `work` knows of a layer, the embedding and the head, which have every kind of operator; none where
/// there is no profile.
pub fn coverage(work: &ModelWork) -> Option<Coverage> {
    let profile = work.profile.as_ref()?;
    let ends = StageLayout { layers: 0..1.min(work.model.layers), embedding: true, head: true };
    Some(profile.covers(&graph_of(work, &ends), &work.device, &peers(work)))
}

/// Times of a stage's jobs. Where copies share weights out, with what the jobs wait for them.
fn job_times(graph: &Graph, work: &ModelWork) -> JobTimes {
    let of_operators = operator_times(graph, work);
    let mut times = JobTimes::of_times(graph, &of_operators);
    if !work.layout.overlap_exchanges {
        times.exchanges = [0; 2];
    }
    if work.layout.zero >= 3 && work.layout.copies() > 1 {
        let [forward, input, weight] = gather_waits(graph, &of_operators, work);
        times
            .jobs
            .iter_mut()
            .zip([forward, input, weight])
            .for_each(|(time, wait)| *time = time.saturating_add(wait));
        times.fused = times.fused.saturating_add(input).saturating_add(weight);
    }
    times
}

/// What F, B and W wait for weights that copies share out (ZeRO 3, arXiv:1910.02054 §5.3): every job gathers each layer's
/// anew, the first layer's before anything runs and each further one's beside the layer before, as the two layers say that
/// [`StaticBytes::gathered`] counts.
fn gather_waits(graph: &Graph, times: &[Nanos], work: &ModelWork) -> [Nanos; 3] {
    let copies = step::copies_of(work);
    Job::ALL.map(|job| {
        let of_job = graph.operators.iter().zip(times).filter(|(operator, _)| operator.job == job);
        let operators: Vec<(&Operator, &Nanos)> = of_job.collect();
        let (mut waits, mut computes): (Nanos, Nanos) = (0, 0);
        for layer in operators.chunk_by(|(one, _), (next, _)| one.layer == next.layer) {
            let weights: BTreeSet<TensorId> = layer
                .iter()
                .flat_map(|(operator, _)| operator.inputs.iter().map(|input| input.tensor))
                .filter(|tensor| matches!(graph[*tensor].role, Role::Weight { .. }))
                .collect();
            let bytes = |wanted: bool| {
                let of_kind = |tensor: &&TensorId| graph[**tensor].expert_ways().is_some() == wanted;
                weights.iter().filter(of_kind).fold(0, |sum: u64, id| sum.saturating_add(graph[*id].bytes()))
            };
            let [dense, experts] = &copies;
            let gather = dense.gather(bytes(false)).saturating_add(experts.gather(bytes(true)));
            waits = waits.saturating_add(gather.saturating_sub(computes));
            let of_compute = layer.iter().filter(|(operator, _)| operator.stream != Stream::Copies);
            computes = of_compute.fold(0, |sum: Nanos, (_, time)| sum.saturating_add(**time));
        }
        waits
    })
}

/// The layers of each stage of `work` as `derive` deals them, where that depends on the memory limit.
pub(crate) fn dealt_within_limit(
    work: &ModelWork,
    placement: &Placement,
    chunks: usize,
) -> Option<(Vec<u32>, Dealt)> {
    let mut faults = Vec::new();
    find_faults(work, chunks, &mut faults);
    if work.layout.partition != Partition::WithinLimit || !faults.is_empty() {
        return None;
    }
    let mut parts = Parts { work, known: BTreeMap::new() };
    let (stages, dealt) = parts.within_limit(placement, chunks).ok()?;
    Some((stages.iter().map(|stage| stage.layers.end - stage.layers.start).collect(), dealt))
}

/// What joins the devices of one rank.
fn peers(work: &ModelWork) -> Peers {
    let (form, nodes) = (work.layout.form, work.nodes());
    let [tensor, context, expert] = [form.tensor, form.context, form.expert].map(|ways| u64::from(ways.max(1)));
    let apart = if form.whole_experts { 1 } else { tensor };
    let by_node = work.model.variant.experts.filter(|_| work.layout.dispatch == Dispatch::OncePerNode);
    Peers {
        tensor: nodes.in_rings(tensor, 1),
        context: nodes.in_turn(context, tensor),
        expert: match by_node {
            Some(Experts { active, routing, .. }) => {
                let groups = (routing.active_groups, routing.groups);
                nodes.in_exchange_by_node(expert, apart, active.into(), groups)
            }
            None => nodes.in_exchange(expert, apart),
        },
    }
}

/// Bytes of what one device of a rank sends for a microbatch: an activation or its gradient.
fn boundary_bytes(work: &ModelWork) -> Bytes {
    let tokens = u64::from(work.microbatch_size).saturating_mul(work.sequence.into());
    let form = work.layout.form;
    let tokens = tokens.div_ceil(form.context.max(1).into());
    let tokens = if form.sequence_parallel { tokens.div_ceil(form.tensor.max(1).into()) } else { tokens };
    tokens.saturating_mul(work.model.hidden.into()).saturating_mul(work.dtype.bytes())
}

/// Hop times from the bytes of a boundary. Every device sends its own part to the one in its place on the next rank.
fn transfers(work: &ModelWork) -> Transfers {
    let bytes = boundary_bytes(work);
    let ranks = work.pipeline as usize;
    let hop = |from: usize, to: usize| if from == to { 0 } else { link_between(work, from, to).time(bytes) };
    let per_node = ranks_per_node(work);
    if work.link.time(bytes) == work.node_link.time(bytes) || ranks <= per_node || per_node == 1 {
        return Transfers::Uniform(hop(0, 1));
    }
    Transfers::Links((0..ranks).map(|from| (0..ranks).map(|to| hop(from, to)).collect()).collect())
}

/// Whole ranks in a node, at least one: they fill nodes in order, each with all of its devices.
fn ranks_per_node(work: &ModelWork) -> usize {
    let per_node = u64::from(work.devices_per_node) / work.layout.devices_per_rank();
    per_node.max(1) as usize
}

/// What joins the devices of one rank with those of another. Where a rank alone fills a node, every hop leaves it.
fn link_between(work: &ModelWork, from: usize, to: usize) -> Link {
    let per_node = ranks_per_node(work);
    if from / per_node == to / per_node { work.link } else { work.node_link }
}

fn find_faults(work: &ModelWork, chunks: usize, faults: &mut Vec<Fault>) {
    work.model.find_faults("model", faults);
    work.device.find_faults("cluster.device", faults);
    if faults.is_empty() {
        work.layout.find_faults(&work.model, work.sequence, faults);
    }
    work.find_format_faults(faults);
    work.link.find_faults("cluster.link", faults);
    work.node_link.find_faults("cluster.node_link", faults);
    for (field, value, most) in [
        ("cluster.devices_per_node", work.devices_per_node.into(), u64::from(u32::MAX)),
        ("parallel.pipeline", work.pipeline.into(), MAX_RANKS as u64),
        ("parallel.chunks", chunks as u64, MAX_CHUNKS as u64),
        ("training.microbatches", work.microbatches.into(), MAX_MICROBATCHES as u64),
        ("training.microbatch_size", work.microbatch_size.into(), MAX_SIZE.into()),
        ("training.sequence", work.sequence.into(), MAX_SIZE.into()),
    ] {
        if value == 0 || value > most {
            faults.push(Fault::new(field, value, format!("a whole number from 1 to {most}")));
        }
    }
    if work.dtype == Dtype::I32 {
        faults.push(Fault::new("training.dtype", work.dtype.name(), "one of bf16, f32, f64"));
    }
    let learned = work.model.family == Family::Gpt && work.model.variant.rotary.is_none();
    if learned && work.sequence > work.model.positions {
        let accepted = format!("at most {}, the model's learned positions", work.model.positions);
        faults.push(Fault::new("training.sequence", work.sequence, accepted));
    }
}

/// Refuses what arithmetic cut off at the largest number, before sums rely on it.
fn check_sizes(statement: &Statement, faults: &mut Vec<Fault>) {
    for (stage, cost) in statement.stages.iter().enumerate() {
        let longest = cost.forward_ns.max(cost.backward_input_ns).max(cost.backward_weight_ns);
        if longest > MAX_NS {
            let found = format!("an op of {longest} ns on stage {stage}");
            let accepted = format!(
                "ops of at most {MAX_NS} ns: a device of a higher rate (cluster.device.matmul_flops is operations a second), \
                 or fewer tokens"
            );
            faults.push(Fault::new("training.microbatch_size", found, accepted));
        }
        let nets = [cost.forward_bytes, cost.backward_input_bytes, cost.backward_weight_bytes];
        let workspaces = [
            cost.forward_workspace_bytes,
            cost.backward_input_workspace_bytes,
            cost.backward_weight_workspace_bytes,
            cost.backward_workspace_bytes.unwrap_or(0),
        ];
        let most = nets.iter().map(|net| net.unsigned_abs()).chain(workspaces).max().unwrap_or(0);
        if most > MAX_BYTES {
            let found = format!("{most} bytes for one microbatch on stage {stage}");
            faults.push(Fault::new("training.microbatch_size", found, format!("at most {MAX_BYTES} bytes")));
        }
        if !faults.is_empty() {
            return;
        }
    }
    let hop = match &statement.transfers {
        Transfers::Uniform(hop) => *hop,
        Transfers::Links(links) => links.iter().flatten().copied().max().unwrap_or(0),
    };
    if hop > MAX_NS {
        faults.push(Fault::new("cluster.link", format!("a hop of {hop} ns"), format!("hops of at most {MAX_NS} ns")));
    }
}

#[cfg(test)]
mod tests;
