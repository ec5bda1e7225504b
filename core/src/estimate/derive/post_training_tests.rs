//! What frozen weights and adapters cost, against sums by hand.

use super::*;
use crate::graph::form::Recompute;
use crate::graph::layout::{Layout, RecomputeLayers};
use crate::graph::post_training::{Frozen, Lora, Targets};
use crate::graph::{Graph, Job, Role};
use crate::hardware::cost::job_flops;
use crate::model::catalog;
use alloc::string::ToString;

fn work(model: &str, pipeline: u32) -> ModelWork {
    ModelWork {
        microbatches: 16,
        sequence: 2048,
        layout: Layout { partition: Partition::Layers, ..Layout::default() },
        ..super::tests::work(model, "h100", pipeline)
    }
}

fn lora(rank: u32, targets: &[&str]) -> Option<Lora> {
    let mut of = Targets::NONE;
    targets.iter().for_each(|name| of.add(name).unwrap_or_else(|| panic!("{name}")));
    Some(Lora { rank, alpha: 2 * rank, targets: of })
}

fn frozen(texts: &[&str]) -> Frozen {
    let mut frozen = Frozen::NONE;
    texts.iter().for_each(|text| frozen.add(text).unwrap_or_else(|why| panic!("{text}: {why:?}")));
    frozen
}

/// Elements of the weights of all stages that train, and of those that do not.
fn elements(work: &ModelWork) -> [u64; 2] {
    let derived = derive(work, Placement::Linear, 1).unwrap_or_else(|faults| panic!("{faults}"));
    let graphs = derived.stages.iter().map(|layout| graph_of(work, layout));
    graphs.fold([0; 2], |[trained, frozen], graph| {
        let of = |wanted: bool| -> u64 {
            let weights = graph.weights().filter(|(_, weight)| weight.is_frozen() == wanted);
            weights.map(|(_, weight)| weight.elements()).sum()
        };
        [trained + of(false), frozen + of(true)]
    })
}

/// PEFT's `print_trainable_parameters` of Llama 3 8B: 41,943,040 of rank 16 on all linear layers, 3,407,872 of rank 8 on
/// queries and values. By hand: q and o of 4096 by 4096, k and v of 4096 by 1024, gate, up and down of 4096 by 14336, in
/// 32 layers.
#[test]
fn adapters_have_the_parameters_that_peft_counts() {
    let by_layer = |rank: u64| {
        let (h, kv, ffn) = (4096, 1024, 14_336);
        rank * (2 * (h + h) + 2 * (h + kv) + 3 * (h + ffn))
    };
    let names: &[&str] = &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    for (rank, targets, adapters) in [
        (16, &["all-linear"][..], 41_943_040),
        (16, names, 41_943_040),
        (8, &["q", "v"], 3_407_872),
        (64, &["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"], 32 * by_layer(64)),
    ] {
        let mut work = work("llama-3-8b", 4);
        work.layout.form.lora = lora(rank, targets);
        assert_eq!(elements(&work), [adapters, 8_030_261_248], "rank {rank} on {targets:?}");
    }
    assert_eq!(32 * by_layer(16), 41_943_040);
    // Each of two devices holds half of what its matrix's cut leaves, and all of the other: of A where rows are cut, of B
    // where columns are.
    let mut work = work("llama-3-8b", 1);
    work.layout.form.lora = lora(16, &["all-linear"]);
    work.layout.form.tensor = 2;
    let (h, kv, ffn) = (4096, 1024, 14_336);
    let by_rows = (h + h / 2) + 2 * (h + kv / 2) + 2 * (h + ffn / 2);
    let by_columns = (h / 2 + h) + (ffn / 2 + h);
    assert_eq!(elements(&work)[0], 32 * 16 * (by_rows + by_columns));
}

/// A frozen parameter takes the 2 bytes of its weight; one that trains takes 18.
#[test]
fn only_what_trains_has_gradients_and_states() {
    let mut lora_work = work("llama-3-8b", 4);
    lora_work.layout.form.lora = lora(16, &["all-linear"]);
    let mut half = work("llama-3-8b", 4);
    half.layout.form.frozen = frozen(&["embedding", "layers.0-15"]);
    for work in [lora_work, half] {
        let derived = derive(&work, Placement::Linear, 1).unwrap();
        let [trained, frozen] = elements(&work);
        let state: u64 = derived.static_bytes.iter().map(|bytes| bytes.total() - bytes.buffers).sum();
        assert_eq!(state, 18 * trained + 2 * frozen);
        assert_eq!(derived.static_bytes.iter().map(|bytes| bytes.trained).sum::<u64>(), 2 * trained);
    }
}

/// What is frozen from the front has no backward and keeps nothing, and no gradient comes to it; the stage where training
/// begins sends none on. All else is as if nothing were frozen.
#[test]
fn the_backward_ends_at_the_first_weight_that_trains() {
    let all = derive(&work("llama-3-8b", 4), Placement::Linear, 1).unwrap();
    let mut work = work("llama-3-8b", 4);
    work.layout.form.frozen = frozen(&["embedding", "layers.0-15"]);
    let derived = derive(&work, Placement::Linear, 1).unwrap();
    assert_eq!(derived.stages[2].layers.start, 16);
    for stage in 0..2 {
        let cost = derived.statement.stages[stage];
        assert_eq!([cost.backward_input_ns, cost.backward_weight_ns], [0, 0], "stage {stage}");
        assert_eq!([cost.forward_bytes, cost.backward_input_bytes, cost.backward_weight_bytes], [0; 3]);
        assert_eq!(cost.forward_ns, all.statement.stages[stage].forward_ns);
        assert_eq!(derived.static_bytes[stage].gradients + derived.static_bytes[stage].optimizer, 0);
        assert_eq!(derived.epilogue.tails[stage].optimizer_ns, 0);
    }
    let graph = graph_of(&work, &derived.stages[2]);
    assert_eq!(graph.with_role(Role::GradientOut), None);
    assert!(graph.with_role(Role::GradientIn).is_some());
    assert!(derived.statement.stages[2].backward_input_ns < all.statement.stages[2].backward_input_ns);
    assert_eq!(derived.statement.stages[2].backward_weight_ns, all.statement.stages[2].backward_weight_ns);
    assert_eq!(derived.statement.stages[3], all.statement.stages[3]);
    // The reports say so.
    let said = |stage: usize| {
        let (_, reports) = graph_and_reports(&work, &derived.stages[stage]);
        let report = reports.into_iter().find(|report| report.pass == crate::graph::passes::frozen::NAME).unwrap();
        (report.bytes(), report.to_string())
    };
    let (bytes, text) = said(1);
    assert_eq!(bytes, 4 * 8 * (8_030_261_248 - 2 * 128_256 * 4096 - 4096) / 32);
    assert!(text.contains("backward: none: nothing up to the end of this stage trains"), "{text}");
    assert!(said(2).1.contains("gradient of the input: none: nothing before this stage trains"));
    assert!(!said(3).1.contains("none:"));
    // Any order of such stages is one that checkers and executors take.
    derived.statement.problem(Placement::Linear).unwrap();
}

/// Where only the MLP is frozen, gradients pass through it, W has the other matrices, and the inputs of its matrices are
/// not kept: those of gate and up (one tensor, which a norm makes) and of down. SwiGLU keeps its own inputs.
#[test]
fn a_frozen_matrix_passes_gradients_on_and_keeps_no_input() {
    let all = work("llama-3-8b", 1);
    let mut part = all.clone();
    part.layout.form.frozen = frozen(&["mlp"]);
    let stage = StageLayout { layers: 4..6, embedding: false, head: false, ..StageLayout::default() };
    let [all, part] = [all, part].map(|work| graph_of(&work, &stage));
    let [flops, less] = [&all, &part].map(job_flops);
    assert_eq!((flops[Job::F as usize], flops[Job::B as usize]), (less[Job::F as usize], less[Job::B as usize]));
    let (h, ffn, tokens, layers) = (4096u128, 14_336u128, 2048u128, 2u128);
    assert_eq!(flops[Job::W as usize] - less[Job::W as usize], 2 * tokens * layers * 3 * h * ffn);
    let kept = |graph: &Graph| crate::graph::liveness::Lifetimes::of(graph).memory(graph)[0].net;
    assert_eq!(kept(&all) - kept(&part), 2 * 2 * 2048 * (4096 + 14_336));
}

/// Of each matrix F and dX; no W but the adapters' own. Layer 0 makes no dX of its queries, keys and values, since nothing
/// before it trains.
#[test]
fn operations_of_lora_are_those_of_the_closed_form() {
    let mut work = work("llama-3-8b", 4);
    work.layout.form.lora = lora(16, &["all-linear"]);
    let derived = derive(&work, Placement::Linear, 1).unwrap();
    let (h, kv, ffn, vocab, r, t) = (4096u128, 1024u128, 14_336u128, 128_256u128, 16u128, 2048u128);
    let qkv = h * (h + 2 * kv);
    let matrices = 32 * (qkv + h * h + 3 * h * ffn) + vocab * h;
    let adapters = 41_943_040u128;
    let attention = 32 * 2 * h * (t + 1) * t;
    // Base: F and dX. Adapters: F, dX and dW of both.
    let first = 2 * t * qkv + 2 * t * 3 * h * r;
    let microbatch = 2 * t * (2 * matrices + 3 * adapters) + 3 * attention - first;
    assert_eq!(derived.step_flops, 16 * microbatch);
    // The times: W is a small part of what it is, and B is about what it is.
    let mut full = work.clone();
    full.layout.form.lora = None;
    let full = derive(&full, Placement::Linear, 1).unwrap();
    let [of_lora, of_full] = [&derived, &full].map(|derived| derived.statement.stages[1]);
    assert!(8 * of_lora.backward_weight_ns < of_full.backward_weight_ns, "{of_lora:?} {of_full:?}");
    assert!(of_lora.backward_input_ns >= of_full.backward_input_ns && of_lora.forward_ns > of_full.forward_ns);
}

/// The replicas reduce the adapters' gradients alone, and gather the adapters alone.
#[test]
fn replicas_send_what_trains() {
    let tails = |zero: u32, adapters: Option<Lora>| {
        let mut work = work("llama-3-8b", 4);
        (work.layout.data, work.layout.zero, work.layout.form.lora) = (8, zero, adapters);
        derive(&work, Placement::Linear, 1).unwrap().epilogue.tails
    };
    for zero in 0..=1 {
        let pairs = tails(zero, lora(16, &["all-linear"])).into_iter().zip(tails(zero, None));
        for (adapters, all) in pairs {
            assert!(adapters.reduce_ns > 0 && 50 * adapters.reduce_ns < all.reduce_ns, "{adapters:?} {all:?}");
            assert!(50 * adapters.optimizer_ns < all.optimizer_ns, "{adapters:?} {all:?}");
        }
    }
}

/// With experts, latents, a tied table, tensor and expert parallel and recomputation: every stage's graph has a gradient for
/// each adapter, and plans follow.
#[test]
fn adapters_stand_beside_the_matrices_of_every_family() {
    for name in ["mixtral-8x7b", "deepseek-v3", "gemma-2-9b", "gpt-3-175b", "qwen-3-8b", "llama-4-scout"] {
        if catalog::find(name).is_none() {
            continue;
        }
        for recompute in [RecomputeLayers::All, RecomputeLayers::First(1)] {
            let mut work = work(name, 4);
            let form = &mut work.layout.form;
            form.lora = lora(8, &["all-linear"]);
            (form.tensor, form.sequence_parallel, form.recompute) = (2, true, Recompute::Full);
            work.layout.recompute_layers = recompute;
            if work.model.variant.experts.is_some() {
                (work.layout.form.expert, work.layout.data) = (4, 4);
            }
            let derived = derive(&work, Placement::Linear, 1).unwrap_or_else(|faults| panic!("{name}: {faults}"));
            for layout in &derived.stages {
                let graph = graph_of(&work, layout);
                assert!(graph.weights().all(|(id, weight)| {
                    weight.is_adapter() != weight.is_frozen()
                        && graph.gradient_of(id).is_some() == weight.is_adapter()
                }));
            }
        }
    }
}
