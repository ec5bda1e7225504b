//! What follows from a model's sizes, held against sums by hand and against reports.

use super::*;
use crate::graph::form::{AttentionForm, Form, Recompute};
use crate::graph::layout::{Layout, ReduceGradients};
use crate::graph::optimizer::Optimizer;
use crate::hardware::cluster::{self, Link};
use crate::hardware::profile::{Profile, RunTimes, StageTimes};
use crate::model::catalog;
use crate::model::{Dtype, Family, MAX_SIZE};
use crate::plan::holders;
use crate::problem::Objective;
use crate::problem::{StageCost, Transfers};
use alloc::string::ToString;
use alloc::sync::Arc;
use proptest::prelude::*;

pub(super) fn work(model: &str, device: &str, pipeline: u32) -> ModelWork {
    let entry = catalog::find(model).unwrap();
    let cluster = cluster::find(device).unwrap();
    ModelWork {
        model_name: model.to_string(),
        model: entry.config,
        device: cluster.device(cluster.dtype),
        devices_per_node: cluster.devices_per_node,
        link: cluster.link,
        node_link: cluster.node_link,
        pipeline,
        chunks: 1,
        microbatches: 32,
        microbatch_size: 1,
        sequence: entry.sequence,
        tokens: None,
        dtype: cluster.dtype,
        limit_bytes: None,
        objective: Objective::Makespan,
        layout: Layout::default(),
        batch: crate::spec::Batch::default(),
        failures: Default::default(),
        profile: None,
    }
}

#[test]
fn every_catalog_model_becomes_a_problem() {
    for entry in catalog::catalog() {
        for (placement, chunks) in [(Placement::Linear, 1), (Placement::V, 2), (Placement::Bidirectional, 1)] {
            let work = work(entry.name, "h100", 4);
            let derived = derive(&work, placement.clone(), chunks).unwrap();
            assert!(derived.statement.problem(placement).is_ok(), "{}", entry.name);
            let layers: u32 = derived.stages.iter().map(|layout| layout.layers.end - layout.layers.start).sum();
            assert_eq!(layers, entry.config.layers);
            let cost = derived.statement.stages[1];
            // B's matmuls are F's with other operands, W's too; attention comes on top. The gradients of many experts
            // are more to read and write than their products are to compute.
            let usual = entry.config.variant.experts.is_some() || cost.backward_input_ns >= cost.backward_weight_ns;
            assert!(cost.forward_ns > 0 && usual, "{}", entry.name);
        }
    }
}

/// Ranks that a run has found slow get fewer layers: those with which the slowest stage is as fast as it can be. Differences that
/// jitter explains move none.
#[test]
fn a_rank_that_was_slow_gets_fewer_layers() {
    let even = work("llama-2-7b", "h100", 4);
    let before = derive(&even, Placement::Linear, 1).unwrap();
    let counts = |derived: &Derived| derived.stages.iter().map(|stage| stage.layers.len()).collect::<Vec<_>>();
    let after = |permille: [u64; 4]| {
        let took = |(rank, cost): (usize, &StageCost)| {
            let estimated_ns = [cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns];
            let measured_ns = estimated_ns.map(|ns| ns * permille[rank] / 100);
            StageTimes { rank, estimated_ns, measured_ns }
        };
        let stages = before.statement.stages.iter().enumerate().map(took).collect();
        let mut profile = Profile::new("a run");
        profile.run = Some(RunTimes { stages, ..RunTimes::default() });
        derive(&ModelWork { profile: Some(Arc::new(profile)), ..even.clone() }, Placement::Linear, 1).unwrap()
    };
    assert_eq!(counts(&before), [8; 4]);
    assert_eq!(counts(&after([1000, 1090, 1000, 1000])), [8; 4]);
    for permille in [[1000, 1300, 1000, 1000], [100, 100, 100, 200], [3000, 1000, 1500, 1000]] {
        let (derived, slow) = (after(permille), (0..4).max_by_key(|rank| permille[*rank]).unwrap());
        let counts = counts(&derived);
        assert_eq!(counts.iter().sum::<usize>(), 32);
        assert!((0..4).all(|rank| rank == slow || counts[rank] > counts[slow]), "{permille:?}: {counts:?}");
        let slowest = |derived: &Derived| {
            let whole = |cost: &StageCost| cost.forward_ns + cost.backward_input_ns + cost.backward_weight_ns;
            derived.statement.stages.iter().map(whole).max().unwrap()
        };
        // The plan before, with the times of the run.
        let unmoved: u64 = (0..4)
            .map(|rank| {
                let cost = &before.statement.stages[rank];
                (cost.forward_ns + cost.backward_input_ns + cost.backward_weight_ns) * permille[rank] / 100
            })
            .max()
            .unwrap();
        assert!(slowest(&derived) < unmoved, "{permille:?}: {counts:?}");
    }
}

/// 18 bytes a parameter without a distributed optimizer: bf16 weight 2, f32 gradient 4, master weight 4, two
/// moments 8 (the Megatron documents' figure).
#[test]
fn static_bytes_are_eighteen_a_parameter_in_bf16() {
    for ranks in [1, 2, 8] {
        let work = work("llama-2-7b", "h100", ranks);
        let derived = derive(&work, Placement::Linear, 1).unwrap();
        let state: u64 = derived.static_bytes.iter().map(|bytes| bytes.total() - bytes.buffers).sum();
        assert_eq!(state, 18 * work.model.parameters());
        // An activation and a gradient at both ends of each of the P − 1 boundaries.
        let boundary = u64::from(work.sequence * work.model.hidden) * 2;
        let buffers: u64 = derived.static_bytes.iter().map(|bytes| bytes.buffers).sum();
        assert_eq!(buffers, 4 * boundary * u64::from(ranks - 1));
    }
}

/// DeepSeek-V3 in the layout that Megatron-LM documents: 61 layers, and the module of multi-token prediction on stage 30 of
/// 32. Every parameter is on one stage, but the embedding, of which the module's stage has a copy.
#[test]
fn a_module_on_a_stage_of_its_own_is_a_module_without_head() {
    let mut work = work("deepseek-v3", "h100", 16);
    let mut of_stages = vec![[2, 0]; 32];
    (of_stages[0], of_stages[30], of_stages[31]) = ([3, 0], [0, 1], [0, 0]);
    work.layout.partition = Partition::WithModules(of_stages);
    let derived = derive(&work, Placement::Looped, 2).unwrap_or_else(|faults| panic!("{faults}"));
    let model = &work.model;
    let parameters =
        |stage: &StageLayout| -> u64 { graph_of(&work, stage).weights().map(|(_, weight)| weight.elements()).sum() };
    let of_stage: Vec<u64> = derived.stages.iter().map(parameters).collect();
    let (hidden, table) = (7168, 129_280 * 7168);
    assert_eq!(of_stage.len(), 32);
    assert_eq!(of_stage.iter().sum::<u64>(), model.parameters() + model.multi_token_parameters() + table);
    assert_eq!(of_stage[30], model.multi_token_parameters() + table);
    assert_eq!(of_stage[31], table + hidden);
    // Its buffers take two streams on their way to the head and one on their way to it; those of others one both ways.
    let boundary = u64::from(work.sequence) * hidden * 2;
    let buffers: Vec<u64> = derived.static_bytes.iter().map(|bytes| bytes.buffers / boundary).collect();
    assert_eq!(buffers[..16], [[6].as_slice(), &[8; 13], &[10], &[8]].concat());
    // The hop behind it takes two streams, and so does the other between the same ranks.
    let Transfers::Links(links) = &derived.statement.transfers else { panic!("links differ") };
    let hop = |from, to, streams| super::transfers::link_between(&work, from, to).time(streams * boundary);
    assert_eq!((links[13][14], links[14][15], links[15][14]), (hop(13, 14, 1), hop(14, 15, 2), hop(15, 14, 2)));
    // A layer with experts, and a projection of twice its width beside it: no head, which takes about as long as a layer.
    let cost = &derived.statement.stages;
    assert!(cost[30].forward_ns > cost[29].forward_ns / 2 && cost[30].forward_ns < cost[29].forward_ns * 6 / 10);
    // The head's stage computes the losses of both streams.
    let mut alone = work.clone();
    alone.model.variant.multi_token = 0;
    let head = stage_cost(&alone, &StageLayout { layers: 61..61, head: true, ..StageLayout::default() });
    let both = cost[31].forward_ns;
    assert!((head.forward_ns * 19 / 10..head.forward_ns * 21 / 10).contains(&both), "{both} {}", head.forward_ns);
    // Gradients of the embedding are summed between the ranks of stages 0 and 30.
    let summed: Vec<bool> = derived.epilogue.tails.iter().map(|tail| tail.reduce_ns > 0).collect();
    let has_table = |rank: usize| rank == 0 || rank == 14;
    assert_eq!(summed, (0..16).map(has_table).collect::<Vec<_>>());
}

#[test]
fn the_turn_of_a_v_needs_one_end_only() {
    let work = work("llama-2-7b", "h100", 4);
    let derived = derive(&work, Placement::V, 2).unwrap();
    let boundary = u64::from(work.sequence * work.model.hidden) * 2;
    let buffers: Vec<u64> = derived.static_bytes.iter().map(|bytes| bytes.buffers / boundary).collect();
    assert_eq!(buffers, [4, 8, 8, 6], "first and last stage have one neighbour; rank 3's two are each other's");
}

#[test]
fn links_are_by_rank_only_where_they_differ() {
    let mut work = work("llama-2-7b", "h100", 4);
    let bytes = 2 * u64::from(work.sequence) * 4096;
    let uniform = |work: &ModelWork| derive(work, Placement::Linear, 1).unwrap().statement.transfers;
    assert_eq!(uniform(&work), Transfers::Uniform(work.link.time(bytes)));
    work.devices_per_node = 1;
    assert_eq!(uniform(&work), Transfers::Uniform(work.node_link.time(bytes)));
    work.devices_per_node = 2;
    let (near, far) = (work.link.time(bytes), work.node_link.time(bytes));
    assert_eq!(
        uniform(&work),
        Transfers::Links(vec![
            vec![0, near, far, far],
            vec![near, 0, far, far],
            vec![far, far, 0, near],
            vec![far, far, near, 0],
        ])
    );
    work.node_link = work.link;
    assert_eq!(uniform(&work), Transfers::Uniform(near));
}

#[test]
fn too_many_stages_name_the_field() {
    let faults = derive(&work("llama-2-7b", "h100", 16), Placement::Looped, 4).unwrap_err();
    assert_eq!(faults.0[0].field, "parallel.chunks");
    let faults = derive(&work("llama-2-7b", "h100", 64), Placement::Linear, 1).unwrap_err();
    assert_eq!(faults.0[0].field, "parallel.pipeline");
    let faults = derive(&work("llama-2-7b", "h100", 4), Placement::V, 1).unwrap_err();
    assert_eq!(faults.0[0].field, "placement");
    // What 1024 ranks of 64 chunks may hold, listed moment by moment, would fill any memory.
    let mut work = work("llama-2-7b", "h100", 1024);
    (work.model.layers, work.layout.partition) = (1024, Partition::WithinLimit);
    let faults = derive(&work, Placement::Looped, 64).unwrap_err();
    assert_eq!(faults.0[0].field, "parallel.chunks");
}

/// The layer map of Paddle's dynamic pipeline: its own tests' examples, and ours for a V.
#[test]
fn a_layer_is_found_on_its_rank() {
    let place = |layers: &[u32], ranks: u32, chunks: usize, placement: Placement, layer: u32| {
        let mut work = work("tiny-llama", "cpu", ranks);
        work.model.layers = layers.iter().sum();
        work.layout.partition = Partition::ByHand(layers.to_vec());
        let derived = derive(&work, placement.clone(), chunks).unwrap();
        let problem = derived.statement.clone().problem(placement).unwrap();
        let mut holders = holders(&derived, &problem).into_iter();
        holders.find(|holder| holder.layout.layers.contains(&layer)).map(|holder| (holder.ranks[0], holder.chunk))
    };
    assert_eq!(place(&[2; 4], 4, 1, Placement::Linear, 3), Some((1, 0)));
    assert_eq!(place(&[1; 8], 4, 2, Placement::Looped, 3), Some((3, 0)));
    assert_eq!(place(&[2, 2, 2, 1], 4, 1, Placement::Linear, 5), Some((2, 0)));
    assert_eq!(place(&[2, 2, 2, 1], 4, 1, Placement::Linear, 6), Some((3, 0)));
    assert_eq!(place(&[2, 1, 1, 1, 1, 1, 1, 1], 4, 2, Placement::Looped, 8), Some((3, 1)));
    assert_eq!(place(&[1; 8], 4, 2, Placement::V, 7), Some((0, 1)));
    assert_eq!(place(&[1; 8], 4, 2, Placement::V, 8), None);
}

/// 18 bytes a parameter; with the optimizer shared out 6 + 12/d (the Megatron documents' figures); ZeRO 2 and 3 share
/// out the gradients and the weights too (arXiv:1910.02054 §3, with our f32 gradients).
#[test]
fn copies_share_out_what_zero_says() {
    let parameters = catalog::find("llama-2-7b").map(|entry| entry.config.parameters()).unwrap();
    let state = |zero, data| {
        let mut work = work("llama-2-7b", "h100", 1);
        (work.layout.zero, work.layout.data) = (zero, data);
        let bytes = derive(&work, Placement::Linear, 1).unwrap().static_bytes[0];
        bytes.total() - bytes.buffers - bytes.gathered - bytes.under_way
    };
    for data in [1, 4, 8] {
        let n = u64::from(data);
        let expected = [18 * n, 6 * n + 12, 2 * n + 16, 18].map(|bytes| bytes * parameters / n);
        for (zero, expected) in expected.into_iter().enumerate() {
            assert_eq!(state(zero as u32, data), expected, "zero {zero}, {data} copies");
        }
    }
}

/// Where gradients are reduced only after accumulation, all of them are kept, four bytes a parameter, under ZeRO 2 and 3
/// too; and the other way round nothing changes where they are not shared out.
#[test]
fn gradients_that_are_reduced_late_are_kept_whole() {
    let parameters = catalog::find("llama-2-7b").map(|entry| entry.config.parameters()).unwrap();
    let gradients = |zero, reduce| {
        let mut work = work("llama-2-7b", "h100", 1);
        (work.layout.zero, work.layout.data, work.layout.reduce_gradients) = (zero, 8, reduce);
        derive(&work, Placement::Linear, 1).unwrap().static_bytes[0].gradients
    };
    let [after, each] = ReduceGradients::ALL.map(Some);
    for zero in 0..=3 {
        assert_eq!(gradients(zero, after), 4 * parameters, "zero {zero}");
        let owned = if zero >= 2 { parameters / 2 } else { 4 * parameters };
        assert_eq!((gradients(zero, each), gradients(zero, None)), (owned, owned), "zero {zero}");
    }
}

/// What is reduced for each microbatch is whole for a while: f32 gradients of two layers. The head is less here.
#[test]
fn gradients_on_their_way_are_held() {
    let layer = catalog::find("llama-2-7b").map(|entry| entry.config.layer_parameters(0)).unwrap();
    let under_way = |data, reduce| {
        let mut work = work("llama-2-7b", "h100", 4);
        (work.layout.data, work.layout.reduce_gradients) = (data, Some(reduce));
        let derived = derive(&work, Placement::V, 2).unwrap();
        derived.static_bytes.iter().map(|bytes| bytes.under_way).collect::<Vec<_>>()
    };
    assert_eq!(under_way(8, ReduceGradients::EachMicrobatch), [2 * 4 * layer; 4]);
    assert_eq!(under_way(8, ReduceGradients::AfterAccumulation), [0; 4]);
    assert_eq!(under_way(1, ReduceGradients::EachMicrobatch), [0; 4]);
}

/// Under ZeRO 3 two neighbours are whole at once: of Llama 3 8B, whose table of 128,256 x 4096 and head of the same size (and a
/// norm) are each more than twice a layer, the table and a layer on the first rank, two layers on those between, a layer and
/// the head on the last. A tied table, both ends on one rank, stays throughout.
#[test]
fn what_is_gathered_is_two_neighbours() {
    let gathered = |tied, ranks| {
        let mut work = work("llama-3-8b", "h100", ranks);
        (work.model.tied, work.layout.zero, work.layout.data) = (tied, 3, 8);
        let layer = work.model.layer_parameters(0);
        let derived = derive(&work, Placement::Linear, 1).unwrap();
        let bytes: Vec<_> = derived.static_bytes.iter().map(|bytes| bytes.gathered / 2).collect();
        assert!(derived.static_bytes.iter().all(|bytes| bytes.under_way == 2 * bytes.gathered));
        (layer, bytes)
    };
    let (table, norm) = (128_256 * 4096, 4096);
    let (layer, bytes) = gathered(false, 4);
    assert!(2 * layer < table);
    assert_eq!(bytes, [table + layer, 2 * layer, 2 * layer, layer + norm + table]);
    assert_eq!(gathered(false, 1).1, [layer + norm + table]);
    assert_eq!(gathered(true, 1).1, [table + 2 * layer]);
}

/// Every layer of F, and of B, is gathered anew, each behind the layer before it: over a slow link the gathers alone
/// count and the last layer, over a fast one the layers alone and the first gather.
#[test]
fn weights_that_are_shared_out_are_waited_for() {
    let stage = |zero, bytes_per_s| {
        let mut work = work("llama-2-7b", "h100", 4);
        (work.layout.zero, work.layout.data) = (zero, 8);
        // Eight devices of a rank are in one node.
        work.link = Link { bytes_per_s, latency_ns: 0 };
        // Eight layers each, so that the stages between the ends are alike.
        work.layout.partition = Partition::Layers;
        let derived = derive(&work, Placement::Linear, 1).unwrap();
        assert_eq!(derived.stages[1].layers.len(), 8);
        (work.clone(), derived.statement.stages[1])
    };
    let gathered = |work: &ModelWork| {
        let bytes = 2 * work.model.layer_parameters(0);
        step::copies_of(work)[0].gather(bytes)
    };
    let (_, kept) = stage(2, 1_000_000);
    let (work, slow) = stage(3, 1_000_000);
    assert_eq!(slow.forward_ns, 8 * gathered(&work) + kept.forward_ns / 8);
    assert_eq!(slow.backward_input_ns, 8 * gathered(&work) + kept.backward_input_ns / 8);
    assert_eq!(slow.backward_weight_ns, kept.backward_weight_ns, "gradients of matrices need none of them");
    let (work, fast) = stage(3, 900_000_000_000);
    assert!(gathered(&work) < kept.forward_ns / 8);
    assert_eq!(fast.forward_ns, kept.forward_ns + gathered(&work));
    assert_eq!(fast.backward_input_ns, kept.backward_input_ns + gathered(&work));
}

#[test]
fn computing_again_trades_time_for_bytes() {
    let cost = |recompute| {
        let mut work = work("llama-2-7b", "h100", 4);
        work.layout.form = Form { recompute, ..Form::default() };
        let derived = derive(&work, Placement::Linear, 1).unwrap();
        (derived.statement.stages[1], derived.step_flops)
    };
    let (kept, flops) = cost(Recompute::None);
    for recompute in [Recompute::Cheap, Recompute::Full] {
        let (again, same) = cost(recompute);
        assert!(again.forward_bytes < kept.forward_bytes && again.forward_ns == kept.forward_ns);
        assert!(
            again.backward_input_ns + again.backward_weight_ns > kept.backward_input_ns + kept.backward_weight_ns
        );
        assert_eq!(flops, same, "what is done twice counts once");
    }
    let (full, _) = cost(Recompute::Full);
    // All of a layer's F but its last sum and the product before it, of which B needs nothing.
    assert!(full.backward_input_ns - kept.backward_input_ns <= kept.forward_ns);
}

/// What the optimizer keeps in the host's memory is 12 bytes a parameter in bf16, 8 in f32, of which copies have their shares;
/// a rank holds so much less, and nothing else changes. Its step takes as long as reading that takes, where the rest of it is
/// faster, and on a host that is as near as the device's own memory what it takes without.
#[test]
fn what_the_optimizer_keeps_lies_where_that_is_said() {
    for (dtype, zero, each) in [(Dtype::Bf16, 0, 12), (Dtype::Bf16, 1, 12), (Dtype::F32, 0, 8), (Dtype::F32, 1, 8)] {
        let derived = |offload_optimizer: bool, rate: u64| {
            let mut work = work("llama-2-7b", "h100", 4);
            (work.dtype, work.layout.data, work.layout.zero) = (dtype, 8, zero);
            (work.layout.offload_optimizer, work.device.host_bytes_per_s) = (offload_optimizer, rate);
            let derived = derive(&work, Placement::Linear, 1).unwrap_or_else(|faults| panic!("{faults}"));
            (work.device.host_link(), derived)
        };
        const RATE: u64 = 50_000_000_000;
        let ((_, here), (link, there), (_, near)) =
            (derived(false, RATE), derived(true, RATE), derived(true, crate::hardware::cluster::MAX_RATE));
        let copies = if zero > 0 { 8 } else { 1 };
        let mut state = 0;
        for (rank, (here_bytes, there_bytes)) in here.static_bytes.iter().zip(&there.static_bytes).enumerate() {
            let on_host = there_bytes.on_host;
            let moved = StaticBytes { optimizer: 0, master_weights: 0, on_host, ..*here_bytes };
            assert_eq!((*there_bytes, here_bytes.on_host), (moved, 0));
            assert_eq!(on_host, here_bytes.optimizer + here_bytes.master_weights);
            assert_eq!(there.statement.static_bytes[rank] + on_host, here.statement.static_bytes[rank]);
            state += on_host * copies;
            let [before, after, free] = [&here, &there, &near].map(|derived| derived.epilogue.tails[rank]);
            assert_eq!((after.reduce_ns, free), (before.reduce_ns, before));
            assert_eq!(after.optimizer_ns, before.optimizer_ns.max(link.time(on_host)), "{dtype:?} zero {zero}");
            assert!(after.optimizer_ns > before.optimizer_ns);
        }
        assert_eq!(there.statement.stages, here.statement.stages);
        let parameters = 6_738_415_616;
        assert!((each * parameters..each * parameters + 64).contains(&state), "{dtype:?} zero {zero}: {state}");
    }
}

/// What each optimizer keeps of Llama 2 7B, in bytes: of 32 layers with 4 matrices of 4096² and 3 of 4096 × 11008, of
/// 65 norms, and of two tables. Muon's step takes its products beside what it reads and writes, and replicas share them.
#[test]
fn optimizers_keep_what_is_published() {
    let derived = |optimizer, zero| {
        let mut work = work("llama-2-7b", "h100", 1);
        (work.layout.optimizer, work.layout.data, work.layout.zero) = (optimizer, 8, zero);
        derive(&work, Placement::Linear, 1).unwrap_or_else(|faults| panic!("{faults}"))
    };
    let matrices: u64 = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11_008);
    let sums: u64 = 32 * (4 * 2 * 4096 + 3 * (4096 + 11_008)) + 2 * (32_000 + 4096);
    let (tables, norms): (u64, u64) = (2 * 32_000 * 4096, 65 * 4096);
    for (optimizer, elements) in [
        (Optimizer::AdamW, 2 * (matrices + tables + norms)),
        (Optimizer::Sgd, 0),
        (Optimizer::SgdMomentum, matrices + tables + norms),
        (Optimizer::Muon, matrices + 2 * (tables + norms)),
        (Optimizer::Adafactor, sums + norms),
    ] {
        assert_eq!(derived(optimizer, 0).static_bytes[0].optimizer, 4 * elements, "{}", optimizer.name());
    }
    let step = |short: u128, long: u128| 5 * (4 * short * short * long + 2 * short * short * short);
    let flops = 32 * (4 * step(4096, 4096) + 3 * step(4096, 11_008));
    let [muon, momentum, sharded] = [(Optimizer::Muon, 0), (Optimizer::SgdMomentum, 0), (Optimizer::Muon, 1)]
        .map(|(optimizer, zero)| derived(optimizer, zero).epilogue.tails[0].optimizer_ns);
    // The rest of the step is that of one moment, and of a second one of the tables: under a tenth more.
    let device = crate::hardware::cluster::find("h100").unwrap().device(Dtype::Bf16);
    let products = crate::hardware::cost::matmul_time(flops, &device);
    assert!((momentum + products..momentum * 11 / 10 + products).contains(&muon), "{muon} {momentum} {products}");
    assert!(sharded.abs_diff(muon / 8) < muon / 100, "{sharded} of {muon}");
}

/// Beside bf16 weights: moments of 4 bytes a parameter instead of 8, gradients of 2 instead of 4; and with products in fp8 two
/// copies of a byte each of every matrix in a layer. Gradients in bf16 are half as much to reduce.
#[test]
fn formats_take_their_bytes() {
    let derived = |change: &dyn Fn(&mut ModelWork)| {
        let mut work = work("llama-2-7b", "h100", 4);
        work.layout.data = 8;
        change(&mut work);
        derive(&work, Placement::Linear, 1).unwrap_or_else(|faults| panic!("{faults}"))
    };
    let plain = derived(&|_| {});
    let moments = derived(&|work| work.layout.bf16_moments = true);
    let gradients = derived(&|work| work.layout.form.bf16_gradients = true);
    let fp8 = derived(&|work| work.layout.form.matmul_dtype = Some(Dtype::Fp8));
    for (rank, bytes) in plain.static_bytes.iter().enumerate() {
        assert_eq!(moments.static_bytes[rank], StaticBytes { optimizer: bytes.optimizer / 2, ..*bytes });
        assert_eq!(gradients.static_bytes[rank], StaticBytes { gradients: bytes.gradients / 2, ..*bytes });
        let layers = &plain.stages[rank].layers;
        let matrices = u64::from(layers.end - layers.start) * (4 * 4096 * 4096 + 3 * 4096 * 11_008);
        assert_eq!(
            fp8.static_bytes[rank],
            StaticBytes { weight_copies: 2 * matrices, copies_again: 2 * matrices, ..*bytes }
        );
        let [whole, half] = [&plain, &gradients].map(|derived| derived.epilogue.tails[rank].reduce_ns);
        assert!(half * 2 >= whole && half * 2 < whole + whole / 100, "rank {rank}: {half} of {whole}");
        let [f, narrow] = [&plain, &fp8].map(|derived| derived.statement.stages[rank].forward_ns);
        assert!(narrow < f && narrow > f / 2, "rank {rank}: {narrow} of {f}: attention and sums stay as they are");
        // A byte for 32 elements more, and on devices that have the formats no more time with fewer bits.
        let derived = |dtype| {
            derived(&|work| {
                work.device = crate::hardware::cluster::find("gb300").unwrap().device(Dtype::Bf16);
                work.layout.form.matmul_dtype = dtype;
                work.layout.partition = Partition::Layers;
            })
        };
        let [bf16, mxfp8, nvfp4] = [None, Some(Dtype::MxFp8), Some(Dtype::NvFp4)].map(derived);
        assert_eq!(mxfp8.static_bytes[rank].weight_copies, 2 * (matrices + matrices / 32));
        assert_eq!(nvfp4.static_bytes[rank].weight_copies, 2 * (matrices / 2 + matrices / 16));
        let times = [&bf16, &mxfp8, &nvfp4].map(|derived| derived.statement.stages[rank].forward_ns);
        assert!(times.is_sorted_by(|a, b| a > b), "rank {rank}: {times:?}");
    }
}

/// What travels to experts is part of F and of B, and hides behind a pair's other op only where that is asked for. Layers
/// without experts exchange nothing.
#[test]
fn pairs_hide_what_travels_to_experts() {
    let derived = |overlap_exchanges| {
        let mut work = work("deepseek-v3", "h100", 4);
        (work.layout.form.expert, work.layout.data, work.layout.overlap_exchanges) = (64, 64, overlap_exchanges);
        work.layout.partition = Partition::ByHand(vec![3, 20, 19, 19]);
        derive(&work, Placement::Bidirectional, 1).unwrap_or_else(|faults| panic!("{faults}")).statement
    };
    let (apart, beside) = (derived(false), derived(true));
    let plain = |cost: &StageCost| StageCost { forward_exchange_ns: 0, backward_exchange_ns: 0, ..*cost };
    assert_eq!(apart.stages, beside.stages.iter().map(plain).collect::<Vec<_>>(), "nothing else changes");
    let exchanges = |cost: &StageCost| [cost.forward_exchange_ns, cost.backward_exchange_ns];
    assert_eq!(exchanges(&beside.stages[0]), [0, 0], "the first three layers have no experts");
    let [forward, backward] = exchanges(&beside.stages[1]);
    // Tokens go to their experts and back, and so do their gradients.
    assert!(forward > 0 && forward < beside.stages[1].forward_ns);
    assert_eq!(forward, backward);
    let of_19 = beside.stages[2].forward_exchange_ns;
    assert!(of_19.abs_diff(forward / 20 * 19) < 20, "{of_19} of 19 layers, {forward} of 20");
    let takes = |statement: &Statement| {
        let problem = statement.problem(Placement::Bidirectional).unwrap_or_else(|fault| panic!("{fault}"));
        let dualpipe = crate::schedule::find("dualpipe").expect("published");
        let schedule = dualpipe.build(&problem).expect("for two ways");
        crate::simulate::simulate(&problem, &schedule).expect("it runs").makespan_ns()
    };
    assert!(takes(&beside) < takes(&apart) * 9 / 10, "{} {}", takes(&beside), takes(&apart));
}

/// However a model is shared out, its operations are its own: a head of keys that several devices hold is one, experts
/// compute what is routed to them and not what there is room for, and half of the scores are hidden.
#[test]
fn operations_of_the_model_are_those_of_no_layout() {
    let all = |name: &str, form: Form| {
        let mut work = work(name, "h100", 2);
        work.layout.data = 32;
        work.layout.form = form;
        let derived =
            derive(&work, Placement::Linear, 1).unwrap_or_else(|faults| panic!("{name} {form:?}: {faults}"));
        derived.step_flops * u128::from(form.tensor * form.context)
    };
    let plain = Form::default();
    for (name, forms) in [
        ("llama-3-70b", [Form { tensor: 32, ..plain }, Form { context: 4, tensor: 8, ..plain }]),
        ("qwen-3-30b-a3b", [Form { tensor: 16, ..plain }, Form { expert: 8, imbalance_permille: 2000, ..plain }]),
        (
            "llama-2-7b",
            [Form { attention: AttentionForm::Materialised, ..plain }, Form { f32_logits: true, ..plain }],
        ),
    ] {
        let whole = all(name, plain);
        for form in forms {
            assert!(whole - all(name, form) < whole / 1_000_000, "{name} {form:?}");
        }
    }
}

#[test]
fn sharing_matrices_shrinks_them_and_their_hops_stay_in_the_node() {
    let derived = |tensor, sequence_parallel| {
        let mut work = work("llama-2-7b", "h100", 2);
        work.layout.form = Form { tensor, sequence_parallel, ..Form::default() };
        (work.clone(), derive(&work, Placement::Linear, 1).unwrap())
    };
    let (_, one) = derived(1, false);
    let (work, four) = derived(4, true);
    let gains = u64::from(work.model.hidden) * (2 * u64::from(work.model.layers) + 1) * 2;
    let weights = |derived: &Derived| derived.static_bytes.iter().map(|bytes| bytes.weights).sum::<u64>();
    assert_eq!((weights(&one) - gains) / 4 + gains, weights(&four), "all but the norms");
    assert_eq!(one.step_flops, 4 * four.step_flops);
    let bytes = 2 * u64::from(work.sequence) * u64::from(work.model.hidden);
    assert_eq!(four.statement.transfers, Transfers::Uniform(work.link.time(bytes / 4)));
    // Eight devices a rank fill a node.
    let (work, eight) = derived(8, false);
    assert_eq!(eight.statement.transfers, Transfers::Uniform(work.node_link.time(bytes)));
    let mut work = work;
    work.layout.form.tensor = 5;
    let faults = derive(&work, Placement::Linear, 1).unwrap_err();
    assert_eq!(faults.0[0].field, "parallel.tensor");
    assert!(faults.0[0].accepted.ends_with("such as 4"), "{}", faults.0[0].accepted);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Whatever the figures, there is a sound problem or a fault, and never a panic.
    #[test]
    fn any_figures_are_answered(
        layers in 0u32..6, sizes in prop::collection::vec(prop_oneof![0u32..9, any::<u32>(), Just(MAX_SIZE)], 9),
        rates in prop::collection::vec(prop_oneof![0u64..9, any::<u64>(), Just(1u64 << 59)], 6),
        pipeline in 0u32..5, chunks in 0usize..4, gpt in any::<bool>(), tied in any::<bool>(),
        per_node in 0u32..4, two_way in any::<bool>(),
    ) {
        let mut work = work("tiny-llama", "cpu", pipeline);
        work.model.layers = layers;
        work.model.family = if gpt { Family::Gpt } else { Family::Llama };
        work.model.tied = tied;
        work.model.hidden = sizes[0];
        (work.model.heads, work.model.kv_heads) = (sizes[1], sizes[1]);
        work.model.head_dim = sizes[2];
        work.model.ffn = sizes[3];
        work.model.vocab = sizes[4];
        work.model.positions = sizes[5];
        (work.microbatches, work.microbatch_size, work.sequence) = (sizes[6], sizes[7], sizes[8]);
        work.device.matmul_flops = rates[0];
        work.device.memory_bytes_per_s = rates[1];
        work.device.launch_ns = rates[2];
        work.link = Link { bytes_per_s: rates[3], latency_ns: rates[4] };
        work.devices_per_node = per_node;
        let placement = if two_way { Placement::Bidirectional } else { Placement::Looped };
        match derive(&work, placement.clone(), chunks) {
            Ok(derived) => {
                let text = derived.statement.to_value();
                prop_assert!(Statement::read(&text).is_ok(), "what was derived can be read");
                prop_assert!(derived.statement.problem(placement).is_ok());
            }
            Err(faults) => prop_assert!(!faults.0.is_empty()),
        }
    }
}

/// Layers of several kinds, several chunks a rank, and limits from ample to too small: the deal is the best there is, and
/// never one of too many.
#[test]
fn slow_deals_of_several_kinds_are_the_best() {
    let mut gemma_3 = work("gemma-2-9b", "h100", 1);
    gemma_3.model.variant.window = Some(crate::model::Window::sliding(1024, 6));
    gemma_3.model.layers = 62;
    let mut gemma_2 = work("gemma-2-27b", "h100", 1);
    gemma_2.sequence = 8192;
    let mut deepseek = work("deepseek-v3", "h100", 1);
    (deepseek.layout.data, deepseek.layout.zero, deepseek.layout.form.expert) = (64, 1, 32);
    for (work, shapes) in [
        (gemma_2, &[(2, 2), (2, 4), (4, 2), (4, 4), (8, 2), (8, 4), (23, 2)][..]),
        (gemma_3, &[(2, 2), (4, 2), (8, 2), (4, 3)]),
        (deepseek, &[(4, 2), (4, 4), (8, 2), (8, 4), (16, 2), (16, 3), (30, 2)]),
    ] {
        for (ranks, chunks) in shapes.iter().copied() {
            let placements: &[Placement] = match chunks {
                2 => &[Placement::Looped, Placement::V],
                _ => &[Placement::Looped, Placement::Wave],
            };
            for placement in placements {
                let mut work = ModelWork { pipeline: ranks, ..work.clone() };
                let free = derive(&work, placement.clone(), chunks).unwrap();
                // About what a rank of the balanced deal holds.
                let all: u64 = free.static_bytes.iter().map(StaticBytes::total).sum();
                let kept = free.statement.stages.iter().map(|cost| cost.forward_bytes).max().unwrap() as u64;
                let usual = all / u64::from(ranks) + kept * u64::from(ranks) * (chunks as u64 + 1) / 2;
                work.layout.partition = Partition::WithinLimit;
                let (mut fit, mut least) = (0, 0);
                for percent in [140, 115, 105, 100, 95, 90] {
                    work.limit_bytes = Some(usual * percent / 100);
                    let Ok(derived) = derive(&work, placement.clone(), chunks) else { continue };
                    let dealt = derived.dealt.unwrap();
                    fit += 1;
                    least += u32::from(dealt.slowest_ns == dealt.bound_ns);
                }
                let what = format!("{} on {ranks} ranks, {chunks} chunks, {placement:?}", work.model_name);
                assert!(fit > 0 && fit == least, "{what}: {least} of {fit}");
            }
        }
    }
}
