//! The pass that reduces gradients over data-parallel replicas once per step, after the last microbatch, instead of
//! after each microbatch (PaddlePaddle's `gradient_sync_after_accumulate`).
//!
//! It works on a list of what a step does with its gradients. [`of_stage`] makes the list of a stage, with every
//! reduction right after the backward. [`merge`] adds the buffers that accumulate gradients over microbatches and,
//! with reduction after accumulation, moves the reductions after that sum:
//!
//! ```text
//! each microbatch:  make g; reduce g; merged += g     make g; merged += g
//! once:             step merged; clear merged         reduce merged; step merged; clear merged
//! ```
//!
//! Both are linear, so the sums are the same. For k microbatches and P gradients k·P reductions become P. The price
//! is memory: of a gradient that is reduced at once, a replica keeps only its shard; a gradient that is not yet
//! reduced is kept whole. Gradients that are reduced at once are whole for a while, too, a layer or two of them
//! ([`StaticBytes::under_way`](crate::estimate::memory::StaticBytes::under_way)).

use alloc::vec::Vec;

use super::{Entry, PassReport};
use crate::base::units::Bytes;
use crate::graph::layout::{Layout, ReduceGradients};
use crate::graph::{Graph, Role, TensorId};

/// What the pass is called in its [`PassReport`].
pub const NAME: &str = "reduction of gradients after accumulation";

/// When an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In each microbatch.
    Microbatch,
    /// Once, after the last microbatch.
    Optimizer,
}

/// Devices that hold a gradient of the same elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Those with other microbatches or other parts of the sequences.
    Copies,
    /// Those that share the stage's matrices.
    Tensor,
}

/// What a reduction leaves on each device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum; a [`Does::Scale`] may follow.
    Sum,
    /// The sum divided by the number of devices.
    Average,
}

/// How much of each gradient is summed over microbatches on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// What this copy steps for.
    Owned,
    /// All of it.
    All,
}

/// Where a gradient is. Gradients are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// What one use of a shared parameter gives in this microbatch: gradient, use.
    Part(usize, usize),
    /// This microbatch's.
    Whole(usize),
    /// The sum over microbatches so far.
    Merged(usize),
}

impl Buffer {
    /// Its gradient.
    pub const fn gradient(self) -> usize {
        match self {
            Buffer::Part(gradient, _) | Buffer::Whole(gradient) | Buffer::Merged(gradient) => gradient,
        }
    }

    /// With the sum over microbatches for what one of them gave.
    const fn merged(self) -> Buffer {
        match self {
            Buffer::Whole(gradient) => Buffer::Merged(gradient),
            other => other,
        }
    }
}

/// What an operation does to its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// The backward writes it.
    Make,
    /// Writes the sum of so many [`Buffer::Part`]s of the same gradient.
    SumParts(usize),
    /// Makes one of those that all devices hold.
    Reduce(Over, Reduction),
    /// Divides by the number of devices.
    Scale(Over),
    /// Adds this microbatch's gradient, or this device's share of it.
    Merge(Share),
    /// Divides by the number of microbatches.
    Average,
    /// The optimizer updates the weight.
    Step,
    /// Sets it to 0.
    Clear,
}

/// One operation on one gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientOp {
    /// When.
    pub phase: Phase,
    /// What.
    pub does: Does,
    /// On what.
    pub buffer: Buffer,
}

impl GradientOp {
    const fn new(phase: Phase, does: Does, buffer: Buffer) -> GradientOp {
        GradientOp { phase, does, buffer }
    }

    fn reduces_copies(&self) -> bool {
        matches!(self.does, Does::Reduce(Over::Copies, _))
    }
}

/// How gradients are summed over microbatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// When they are reduced over copies.
    pub reduce: ReduceGradients,
    /// Whether a copy keeps only its share of what has been reduced (ZeRO 2 and 3).
    pub shares_out: bool,
    /// Whether the sum is divided by the number of microbatches: not where the loss has been.
    pub averages: bool,
}

/// Sums gradients over microbatches: from `ops`, a step of one microbatch, to one of several.
///
/// Reductions over copies and, behind one that sums, the [`Does::Scale`] over copies of the same gradient move before
/// all other operations of the optimizer, in the order in which they were. Those of [`Buffer::Part`]s stay: a shared
/// parameter's parts are not merged, only their sum is. So do all over other devices. Takes time in proportion to
/// `ops`.
pub fn merge(ops: &[GradientOp], merging: &Merging) -> Vec<GradientOp> {
    let after = merging.reduce == ReduceGradients::AfterAccumulation;
    let share = if merging.shares_out && !after { Share::Owned } else { Share::All };
    // By gradient: whether its sum has moved and the next scale belongs to it.
    let gradients = ops.iter().map(|op| op.buffer.gradient() + 1).max().unwrap_or(0);
    let mut awaits_scale = alloc::vec![false; gradients];
    let (mut merged, mut moved) = (Vec::new(), Vec::new());
    for op in ops.iter().filter(|op| op.phase == Phase::Microbatch) {
        let moves = match (op.buffer, op.does) {
            (Buffer::Whole(gradient), Does::Reduce(Over::Copies, reduction)) if after => {
                awaits_scale[gradient] = reduction == Reduction::Sum;
                true
            }
            (Buffer::Whole(gradient), Does::Scale(Over::Copies)) => core::mem::take(&mut awaits_scale[gradient]),
            _ => false,
        };
        if moves {
            moved.push(GradientOp::new(Phase::Optimizer, op.does, op.buffer.merged()));
        } else {
            merged.push(*op);
        }
    }
    let optimizer = || ops.iter().filter(|op| op.phase == Phase::Optimizer);
    let stepped: Vec<Buffer> = optimizer().filter(|op| op.does == Does::Step).map(|op| op.buffer.merged()).collect();
    let each = |phase, does| stepped.iter().map(move |buffer| GradientOp::new(phase, does, *buffer));
    merged.extend(each(Phase::Microbatch, Does::Merge(share)));
    if merging.averages {
        merged.extend(each(Phase::Optimizer, Does::Average));
    }
    merged.extend(moved);
    merged.extend(optimizer().map(|op| GradientOp { buffer: op.buffer.merged(), ..*op }));
    merged.extend(each(Phase::Optimizer, Does::Clear));
    merged
}

/// Reductions over replicas in a step of `microbatches`.
pub fn reductions(ops: &[GradientOp], microbatches: u64) -> u64 {
    let times = |op: &GradientOp| if op.phase == Phase::Microbatch { microbatches } else { 1 };
    ops.iter().filter(|op| op.reduces_copies()).map(times).fold(0, u64::saturating_add)
}

/// Bytes of `whole` gradients that `sharers` replicas save by keeping only their shards: the price of reduction after
/// accumulation.
pub fn extra_bytes(whole: Bytes, sharers: u64) -> Bytes {
    whole - whole.div_ceil(sharers.max(1))
}

/// A gradient of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradient {
    /// Its weight.
    pub weight: TensorId,
    /// Where it adds up.
    pub accumulator: TensorId,
    /// The decoder layer whose backward finishes it.
    pub layer: Option<u32>,
}

impl Gradient {
    fn is_of_experts(&self, graph: &Graph) -> bool {
        graph[self.weight].expert_ways().is_some()
    }

    fn copies(&self, graph: &Graph, layout: &Layout) -> u64 {
        if self.is_of_experts(graph) { layout.expert_copies() } else { layout.copies() }
    }

    /// Those of them that share it out.
    fn sharers(&self, graph: &Graph, layout: &Layout) -> u64 {
        layout.sharers(self.copies(graph, layout))
    }
}

/// The gradients of the stage `graph`, in the order in which the backward finishes them; and what a step of one
/// microbatch does with them, before [`merge`]. Copies average, as the runner does; losses have been divided by the
/// step's microbatches. Takes time in proportion to the operators.
pub fn of_stage(graph: &Graph, layout: &Layout) -> (Vec<Gradient>, Vec<GradientOp>) {
    let mut gradients: Vec<Gradient> = Vec::new();
    let mut is_known = alloc::vec![false; graph.tensors.len()];
    for operator in graph.operators.iter().rev() {
        for output in operator.outputs.iter().rev() {
            let Role::WeightGradient { of: weight } = graph[*output].role else { continue };
            if !core::mem::replace(&mut is_known[weight.index()], true) {
                gradients.push(Gradient { weight, accumulator: *output, layer: operator.layer });
            }
        }
    }
    gradients.reverse();
    let mut ops = Vec::new();
    for (at, gradient) in gradients.iter().enumerate() {
        ops.push(GradientOp::new(Phase::Microbatch, Does::Make, Buffer::Whole(at)));
        if gradient.copies(graph, layout) > 1 {
            let reduce = Does::Reduce(Over::Copies, Reduction::Average);
            ops.push(GradientOp::new(Phase::Microbatch, reduce, Buffer::Whole(at)));
        }
    }
    ops.extend((0..gradients.len()).map(|at| GradientOp::new(Phase::Optimizer, Does::Step, Buffer::Whole(at))));
    (gradients, ops)
}

/// What the pass does to the gradients of the stage `graph`; none where there are no copies. The bytes of an entry are
/// those that its whole gradient takes beyond the share that a copy would keep, and add up to [`extra_bytes`] of all.
pub fn account(graph: &Graph, layout: &Layout) -> Option<PassReport> {
    let (gradients, ops) = of_stage(graph, layout);
    let shares_out = layout.zero >= 2;
    let merged = merge(&ops, &Merging { reduce: layout.reduces_gradients(), shares_out, averages: false });
    let mut account = PassReport::new(NAME);
    // Bytes of those so far: of all but experts, of experts. A copy's share is rounded up once, not for each gradient.
    let mut so_far: [Bytes; 2] = [0, 0];
    for op in merged.iter().filter(|op| op.reduces_copies()) {
        let gradient = gradients[op.buffer.gradient()];
        let name = &graph[gradient.weight].name;
        if op.phase == Phase::Microbatch {
            let why = match layout.reduce_gradients {
                None => "reduced for each microbatch: replicas shard gradients, and each keeps only its shard",
                Some(_) => "reduced for each microbatch: parallel.reduce_gradients asks for it",
            };
            account.skipped.push(Entry::new(name, gradient.layer, why, 0));
            continue;
        }
        let sharers = gradient.sharers(graph, layout);
        let before = &mut so_far[usize::from(gradient.is_of_experts(graph))];
        let with = before.saturating_add(graph[gradient.accumulator].bytes());
        let more = if shares_out { extra_bytes(with, sharers) - extra_bytes(*before, sharers) } else { 0 };
        *before = with;
        account.done.push(Entry::new(
            name,
            gradient.layer,
            "reduced once per step instead of once per microbatch",
            more,
        ));
    }
    (!account.done.is_empty() || !account.skipped.is_empty()).then_some(account)
}

#[cfg(test)]
mod tests;
