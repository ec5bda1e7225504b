//! The pass that reduces gradients over copies once a step, after the last microbatch, instead of after each microbatch
//! (PaddlePaddle's `gradient_sync_after_accumulate`).
//!
//! It works on what a step does with its gradients, as a list: [`of_stage`] makes a stage's, with every reduction right
//! behind the backward. [`merge`] adds the buffers that sum gradients over microbatches and, where it is asked to, moves
//! the reductions behind that sum:
//!
//! ```text
//! each microbatch:  make g; reduce g; merged += g     make g; merged += g
//! once:             step merged; clear merged         reduce merged; step merged; clear merged
//! ```
//!
//! Both are linear, so the sums are the same. For k microbatches and P gradients k·P reductions become P. The price is
//! memory: a gradient that is reduced at once is kept only in the share that this copy steps for, one that is not yet
//! reduced is kept whole. What is reduced at once is whole for a while, too, a layer or two of it
//! ([`StaticBytes::under_way`](crate::estimate::memory::StaticBytes::under_way)).

use alloc::vec::Vec;

use super::{Account, Entry};
use crate::base::units::Bytes;
use crate::graph::layout::{Layout, ReduceGradients};
use crate::graph::{Graph, Role, TensorId};

/// What the pass is called in its [`Account`].
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
/// Reductions over copies and, behind one that sums, the [`Does::Scale`] over copies of the same gradient move before all
/// other operations of the optimizer, in the order in which they were. Those of [`Buffer::Part`]s stay: a shared
/// parameter's parts are not merged, only their sum is. So do all over other devices. Takes time in proportion to `ops`.
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

/// Reductions over copies in a step of so many microbatches.
pub fn reductions(ops: &[GradientOp], microbatches: u64) -> u64 {
    let times = |op: &GradientOp| if op.phase == Phase::Microbatch { microbatches } else { 1 };
    ops.iter().filter(|op| op.reduces_copies()).map(times).fold(0, u64::saturating_add)
}

/// Bytes that so many `sharers` save by keeping only their shares of gradients of `whole` bytes: what reducing after
/// accumulation holds more.
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

/// The gradients of the stage `graph`, in the order in which the backward finishes them; and what a step of one microbatch
/// does with them, before [`merge`]. Copies average, as the runner does; losses have been divided by the step's
/// microbatches. Takes time in proportion to the operators.
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
pub fn account(graph: &Graph, layout: &Layout) -> Option<Account> {
    let (gradients, ops) = of_stage(graph, layout);
    let shares_out = layout.zero >= 2;
    let merged = merge(&ops, &Merging { reduce: layout.reduces_gradients(), shares_out, averages: false });
    let mut account = Account::new(NAME);
    // Bytes of those so far: of all but experts, of experts. A copy's share is rounded up once, not for each gradient.
    let mut so_far: [Bytes; 2] = [0, 0];
    for op in merged.iter().filter(|op| op.reduces_copies()) {
        let gradient = gradients[op.buffer.gradient()];
        let name = &graph[gradient.weight].name;
        if op.phase == Phase::Microbatch {
            let why = match layout.reduce_gradients {
                None => "reduced for each microbatch: copies share gradients out, and each keeps only its own",
                Some(_) => "reduced for each microbatch, as parallel.reduce_gradients says",
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
            "reduced once a step instead of for each microbatch",
            more,
        ));
    }
    (!account.done.is_empty() || !account.skipped.is_empty()).then_some(account)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::derive::graph_of;
    use crate::estimate::memory::StaticBytes;
    use crate::model::StageLayout;
    use crate::spec::{ModelWork, Spec, Work};
    use std::collections::BTreeMap;
    use std::format;
    use std::string::String;
    use std::vec;

    use Buffer::{Part, Whole};
    use Phase::{Microbatch, Optimizer};

    const COPIES: usize = 4;
    const GRADIENTS: usize = 3;
    const AFTER: ReduceGradients = ReduceGradients::AfterAccumulation;
    const EACH: ReduceGradients = ReduceGradients::EachMicrobatch;

    fn op(phase: Phase, does: Does, buffer: Buffer) -> GradientOp {
        GradientOp::new(phase, does, buffer)
    }

    /// Gradient 1 is also summed over those that share the stage.
    fn step(reduction: Reduction) -> Vec<GradientOp> {
        let mut ops = Vec::new();
        for gradient in 0..GRADIENTS {
            ops.push(op(Microbatch, Does::Make, Whole(gradient)));
            if gradient == 1 {
                ops.push(op(Microbatch, Does::Reduce(Over::Tensor, Reduction::Sum), Whole(gradient)));
            }
            ops.push(op(Microbatch, Does::Reduce(Over::Copies, reduction), Whole(gradient)));
            if reduction == Reduction::Sum {
                ops.push(op(Microbatch, Does::Scale(Over::Copies), Whole(gradient)));
            }
        }
        ops.extend((0..GRADIENTS).map(|gradient| op(Optimizer, Does::Step, Whole(gradient))));
        ops
    }

    /// A parameter that two places use, each reducing its own gradient; and one more.
    fn shared(reduction: Reduction) -> Vec<GradientOp> {
        vec![
            op(Microbatch, Does::Make, Part(0, 0)),
            op(Microbatch, Does::Reduce(Over::Copies, reduction), Part(0, 0)),
            op(Microbatch, Does::Make, Whole(1)),
            op(Microbatch, Does::Reduce(Over::Copies, reduction), Whole(1)),
            op(Microbatch, Does::Make, Part(0, 1)),
            op(Microbatch, Does::Reduce(Over::Copies, reduction), Part(0, 1)),
            op(Microbatch, Does::SumParts(2), Whole(0)),
            op(Optimizer, Does::Step, Whole(1)),
            op(Optimizer, Does::Step, Whole(0)),
        ]
    }

    /// One word an operation: its phase, what it does, to what.
    fn listing(ops: &[GradientOp]) -> Vec<String> {
        let word = |op: &GradientOp| {
            let phase = if op.phase == Microbatch { "each" } else { "once" };
            let does = match op.does {
                Does::Make => "make",
                Does::SumParts(_) => "sum",
                Does::Reduce(Over::Copies, Reduction::Sum) => "reduce+",
                Does::Reduce(Over::Copies, Reduction::Average) => "reduce/",
                Does::Reduce(Over::Tensor, _) => "tensor",
                Does::Scale(_) => "scale",
                Does::Merge(Share::Owned) => "own",
                Does::Merge(Share::All) => "all",
                Does::Average => "average",
                Does::Step => "step",
                Does::Clear => "clear",
            };
            let of = match op.buffer {
                Part(gradient, part) => format!("{gradient}.{part}"),
                Whole(gradient) => format!("{gradient}"),
                Buffer::Merged(gradient) => format!("{gradient}m"),
            };
            format!("{phase} {does} {of}")
        };
        ops.iter().map(word).collect()
    }

    /// The weights that a step of `ops` subtracts from, by copy and gradient: only the elements that a copy owns, one
    /// each. Every division is exact, or this panics.
    fn run(ops: &[GradientOp], microbatches: usize) -> Vec<Vec<i64>> {
        let key = |buffer: Buffer| match buffer {
            Part(gradient, part) => (0, gradient, part),
            Whole(gradient) => (1, gradient, 0),
            Buffer::Merged(gradient) => (2, gradient, 0),
        };
        let exactly = |value: i64, by: usize| {
            assert_eq!(value % by as i64, 0, "{value} does not divide by {by}");
            value / by as i64
        };
        // By copy: buffers of one element for each copy, which owns it.
        let mut held: Vec<BTreeMap<(u8, usize, usize), [i64; COPIES]>> = vec![BTreeMap::new(); COPIES];
        let mut stepped = vec![vec![0; GRADIENTS]; COPIES];
        let unit = (microbatches * COPIES) as i64;
        let rounds = (0..microbatches).map(Some).chain([None]);
        for round in rounds {
            let phase = if round.is_some() { Microbatch } else { Optimizer };
            for op in ops.iter().filter(|op| op.phase == phase) {
                let key = key(op.buffer);
                let total = {
                    let of =
                        |element: usize| held.iter().map(|held| held.get(&key).map_or(0, |of| of[element])).sum();
                    core::array::from_fn::<i64, COPIES, _>(of)
                };
                for (copy, held) in held.iter_mut().enumerate() {
                    let found = held.get(&key).copied().unwrap_or_default();
                    let new = match op.does {
                        Does::Make => core::array::from_fn(|element| {
                            let at = round.unwrap_or(0) * 31 + copy * 17 + element * 7 + key.1 * 5 + key.2 * 3;
                            unit * (at as i64 % 23 - 11)
                        }),
                        Does::SumParts(parts) => core::array::from_fn(|element| {
                            (0..parts).map(|part| held[&(0, key.1, part)][element]).sum()
                        }),
                        Does::Reduce(Over::Copies, Reduction::Sum) => total,
                        Does::Reduce(Over::Copies, Reduction::Average) => total.map(|value| exactly(value, COPIES)),
                        // The peers are not played, but hold the same.
                        Does::Reduce(Over::Tensor, _) => found.map(|value| 2 * value),
                        Does::Scale(_) => found.map(|value| exactly(value, COPIES)),
                        Does::Merge(share) => core::array::from_fn(|element| {
                            let more = if share == Share::All || element == copy {
                                held[&(1, key.1, 0)][element]
                            } else {
                                0
                            };
                            found[element] + more
                        }),
                        Does::Average => found.map(|value| exactly(value, microbatches)),
                        Does::Step => {
                            stepped[copy][key.1] += found[copy];
                            found
                        }
                        Does::Clear => [0; COPIES],
                    };
                    held.insert(key, new);
                }
            }
        }
        assert!(held.iter().flatten().filter(|(key, _)| key.0 == 2).all(|(_, values)| *values == [0; COPIES]));
        stepped
    }

    fn merging(reduce: ReduceGradients, shares_out: bool, averages: bool) -> Merging {
        Merging { reduce, shares_out, averages }
    }

    #[test]
    fn a_sum_moves_with_its_scale_and_an_average_alone() {
        let each = merge(&step(Reduction::Sum), &merging(EACH, true, true));
        assert_eq!(
            listing(&each),
            [
                "each make 0",
                "each reduce+ 0",
                "each scale 0",
                "each make 1",
                "each tensor 1",
                "each reduce+ 1",
                "each scale 1",
                "each make 2",
                "each reduce+ 2",
                "each scale 2",
                "each own 0m",
                "each own 1m",
                "each own 2m",
                "once average 0m",
                "once average 1m",
                "once average 2m",
                "once step 0m",
                "once step 1m",
                "once step 2m",
                "once clear 0m",
                "once clear 1m",
                "once clear 2m",
            ]
        );
        let after = merge(&step(Reduction::Sum), &merging(AFTER, true, true));
        assert_eq!(
            listing(&after),
            [
                "each make 0",
                "each make 1",
                "each tensor 1",
                "each make 2",
                "each all 0m",
                "each all 1m",
                "each all 2m",
                "once average 0m",
                "once average 1m",
                "once average 2m",
                "once reduce+ 0m",
                "once scale 0m",
                "once reduce+ 1m",
                "once scale 1m",
                "once reduce+ 2m",
                "once scale 2m",
                "once step 0m",
                "once step 1m",
                "once step 2m",
                "once clear 0m",
                "once clear 1m",
                "once clear 2m",
            ]
        );
        let after = merge(&step(Reduction::Average), &merging(AFTER, false, false));
        assert_eq!(
            listing(&after),
            [
                "each make 0",
                "each make 1",
                "each tensor 1",
                "each make 2",
                "each all 0m",
                "each all 1m",
                "each all 2m",
                "once reduce/ 0m",
                "once reduce/ 1m",
                "once reduce/ 2m",
                "once step 0m",
                "once step 1m",
                "once step 2m",
                "once clear 0m",
                "once clear 1m",
                "once clear 2m",
            ]
        );
    }

    /// A scale that stands behind an average, or of another gradient, is somebody else's.
    #[test]
    fn only_the_scale_of_a_moved_sum_moves() {
        let mut ops = step(Reduction::Average);
        ops.insert(2, op(Microbatch, Does::Scale(Over::Copies), Whole(0)));
        let after = merge(&ops, &merging(AFTER, false, false));
        assert_eq!(listing(&after)[..3], ["each make 0", "each scale 0", "each make 1"]);
        let mut ops = step(Reduction::Sum);
        ops.insert(2, op(Microbatch, Does::Scale(Over::Tensor), Whole(0)));
        let after = merge(&ops, &merging(AFTER, false, false));
        assert_eq!(listing(&after)[..3], ["each make 0", "each scale 0", "each make 1"]);
    }

    /// The total is merged, its parts keep what they had.
    #[test]
    fn parts_of_a_shared_parameter_keep_their_reductions() {
        for reduction in [Reduction::Sum, Reduction::Average] {
            let after = merge(&shared(reduction), &merging(AFTER, true, false));
            let mark = if reduction == Reduction::Sum { '+' } else { '/' };
            assert_eq!(
                listing(&after),
                [
                    "each make 0.0",
                    &format!("each reduce{mark} 0.0"),
                    "each make 1",
                    "each make 0.1",
                    &format!("each reduce{mark} 0.1"),
                    "each sum 0",
                    "each all 1m",
                    "each all 0m",
                    &format!("once reduce{mark} 1m"),
                    "once step 1m",
                    "once step 0m",
                    "once clear 1m",
                    "once clear 0m",
                ]
            );
            for microbatches in 1..=8 {
                assert_eq!(reductions(&after, microbatches), 2 * microbatches + 1);
            }
        }
    }

    /// In whole numbers: whichever way gradients are reduced, and however much of them is kept, the same elements are
    /// stepped by the same amounts.
    #[test]
    fn every_way_steps_by_the_same() {
        for microbatches in 1..=8 {
            for averages in [false, true] {
                let all = |ops: fn(Reduction) -> Vec<GradientOp>| {
                    let ways = [AFTER, EACH].into_iter().flat_map(|reduce| [(reduce, true), (reduce, false)]);
                    let ran = ways.map(|(reduce, shares)| {
                        let merging = merging(reduce, shares, averages);
                        [Reduction::Sum, Reduction::Average]
                            .map(|kind| run(&merge(&ops(kind), &merging), microbatches))
                    });
                    ran.collect::<Vec<_>>()
                };
                let ran = all(step);
                assert!(ran[0][0].iter().flatten().any(|value| *value != 0));
                assert!(ran.iter().flatten().all(|one| *one == ran[0][0]), "{microbatches}: {ran:?}");
                // Nothing divides the shared sums, so sums and averages are each compared with their own.
                let ran = all(shared);
                assert!(ran.iter().all(|one| *one == ran[0]), "{microbatches}: {ran:?}");
            }
        }
    }

    #[test]
    fn as_many_reductions_as_gradients_instead_of_for_each_microbatch() {
        for reduction in [Reduction::Sum, Reduction::Average] {
            for microbatches in 1..=8 {
                let of = |reduce| reductions(&merge(&step(reduction), &merging(reduce, true, false)), microbatches);
                assert_eq!((of(EACH), of(AFTER)), (microbatches * GRADIENTS as u64, GRADIENTS as u64));
            }
        }
    }

    fn work(model: &str, parallel: &str) -> ModelWork {
        let text = format!(
            "[model]\nname = \"{model}\"\nlayers = 2\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 1\n\
             {parallel}\n[training]\nmicrobatches = 8\nsequence = 512"
        );
        match Spec::read(&text).unwrap_or_else(|error| panic!("{error}")).work {
            Work::Model(work) => work,
            Work::Typed(_) => panic!("a model"),
        }
    }

    /// Of whole models, with experts and without: every gradient is reduced and stepped once, and the account's bytes are
    /// what memory counts more.
    #[test]
    fn the_account_of_a_stage_is_what_memory_counts() {
        for (model, layout) in [("llama-2-7b", "data = 3"), ("mixtral-8x7b", "data = 6\nexpert = 2\ncontext = 2")] {
            for zero in 0..=3 {
                let of = |reduce: &str| {
                    let work = work(model, &format!("{layout}\nzero = {zero}\nreduce_gradients = \"{reduce}\""));
                    let stage = StageLayout { layers: 0..2, embedding: true, head: true };
                    let graph = graph_of(&work, &stage);
                    let (gradients, ops) = of_stage(&graph, &work.layout);
                    assert_eq!(gradients.len(), graph.weights().count());
                    let reduce = work.layout.reduces_gradients();
                    let merged = merge(&ops, &merging(reduce, zero >= 2, false));
                    let times = reduce.times(8);
                    assert_eq!(reductions(&merged, 8), times * gradients.len() as u64);
                    let (dense, experts) = StaticBytes::of_stage(&graph, false, work.layout.moments());
                    let [dense, experts] = [(dense, work.layout.copies()), (experts, work.layout.expert_copies())]
                        .map(|(bytes, copies)| {
                            (bytes.gradients, bytes.shared_out(&work.layout, copies, 0).gradients)
                        });
                    let account = account(&graph, &work.layout).expect("copies");
                    (account, dense.0 + experts.0, dense.1 + experts.1)
                };
                let (after, whole, kept) = of("after-accumulation");
                assert_eq!((after.skipped.len(), kept), (0, whole), "{model}, zero {zero}");
                let (each, _, owned) = of("each-microbatch");
                assert_eq!((each.done.len(), each.skipped.len()), (0, after.done.len()));
                assert_eq!(after.bytes(), whole - owned, "{model}, zero {zero}");
                assert_eq!(after.bytes() > 0, zero >= 2);
            }
        }
        let alone = work("llama-2-7b", "zero = 3");
        let stage = StageLayout { layers: 0..2, embedding: true, head: true };
        assert_eq!(account(&graph_of(&alone, &stage), &alone.layout), None);
    }
}
