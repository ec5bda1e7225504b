//! The list of gradient operations, interpreted before and after the pass.

use super::*;
use crate::estimate::derive::graph_of;
use crate::estimate::memory::StaticBytes;
use crate::model::StageLayout;
use crate::spec::{ModelWork, Spec, Work};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;

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
                let of = |element: usize| held.iter().map(|held| held.get(&key).map_or(0, |of| of[element])).sum();
                core::array::from_fn::<i64, COPIES, _>(of)
            };
            for (copy, held) in held.iter_mut().enumerate() {
                let found = held.get(&key).copied().unwrap_or_default();
                let new = match op.does {
                    Does::Make => core::array::from_fn(|element| {
                        let at = round.unwrap_or(0) * 31 + copy * 17 + element * 7 + key.1 * 5 + key.2 * 3;
                        unit * (at as i64 % 23 - 11)
                    }),
                    Does::SumParts(parts) => {
                        core::array::from_fn(|element| (0..parts).map(|part| held[&(0, key.1, part)][element]).sum())
                    }
                    Does::Reduce(Over::Copies, Reduction::Sum) => total,
                    Does::Reduce(Over::Copies, Reduction::Average) => total.map(|value| exactly(value, COPIES)),
                    // The peers are not played, but hold the same.
                    Does::Reduce(Over::Tensor, _) => found.map(|value| 2 * value),
                    Does::Scale(_) => found.map(|value| exactly(value, COPIES)),
                    Does::Merge(share) => core::array::from_fn(|element| {
                        let more =
                            if share == Share::All || element == copy { held[&(1, key.1, 0)][element] } else { 0 };
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
                    [Reduction::Sum, Reduction::Average].map(|kind| run(&merge(&ops(kind), &merging), microbatches))
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
                let stage = StageLayout { layers: 0..2, embedding: true, head: true, ..StageLayout::default() };
                let graph = graph_of(&work, &stage);
                let (gradients, ops) = of_stage(&graph, &work.layout);
                assert_eq!(gradients.len(), graph.weights().count());
                let reduce = work.layout.reduces_gradients();
                let merged = merge(&ops, &merging(reduce, zero >= 2, false));
                let times = reduce.times(8);
                assert_eq!(reductions(&merged, 8), times * gradients.len() as u64);
                let (dense, experts) = StaticBytes::of_stage(&graph, false, &work.layout);
                let [dense, experts] =
                    [(dense, work.layout.copies()), (experts, work.layout.expert_copies())].map(|(bytes, copies)| {
                        (bytes.gradients, bytes.shared_out(&work.layout, copies, [0; 2]).gradients)
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
    let stage = StageLayout { layers: 0..2, embedding: true, head: true, ..StageLayout::default() };
    assert_eq!(account(&graph_of(&alone, &stage), &alone.layout), None);
}
