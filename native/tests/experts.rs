//! Whether expert-parallel ranks, with pipelines, replicas and tensor-parallel ranks around them, train as one rank does.

mod common;

use std::time::Duration;

#[cfg(feature = "cuda")]
use common::trains_on_cards;
use common::{
    Expected, alone, assert_close_losses, assert_close_weights, bits, options, published, resumes_on_any, stalled,
    train, trains_as_one_rank, transformers_agrees,
};
use pipeplan::backend::BackendError;
use pipeplan::runner::checkpoint::{Checkpoint, Saving, config};
use pipeplan::runner::evaluate::evaluate;
use pipeplan::runner::published_workloads;
use pipeplan::runner::{Cause, Device, Precision, RunError, RunOptions, Silent, State, Workload, run};
use pipeplan::transport::faulty::Faults;
use pipeplan_core::graph::Axis;
use pipeplan_core::graph::form::{Recompute, RouterLosses};
use pipeplan_core::graph::layout::Dispatch;
#[cfg(feature = "cuda")]
use pipeplan_core::model::Dtype;
use pipeplan_core::model::{Experts, Latent, Routing, Scores, Variant};
use pipeplan_core::spec::ModelWork;

const MIXTRAL: Experts = Experts {
    count: 4,
    active: 2,
    ffn: 16,
    shared_ffn: 0,
    shared_gate: false,
    dense_layers: 0,
    layers: None,
    biases: false,
    routing: Routing::USUAL,
};

fn mixtral() -> Variant {
    Variant { experts: Some(MIXTRAL), ..Variant::USUAL }
}

fn qwen_2_moe() -> Variant {
    Variant { experts: Some(Experts { shared_ffn: 8, shared_gate: true, ..MIXTRAL }), ..Variant::USUAL }
}

fn deepseek() -> Variant {
    let latent = Latent { query_rank: 12, key_value_rank: 10, rope_width: 2, value_width: 3 };
    let routing = Routing { scores: Scores::Sigmoid, normed: true, groups: 4, active_groups: 2, ..Routing::USUAL };
    let experts = Experts {
        count: 8,
        active: 3,
        shared_ffn: 8,
        dense_layers: 1,
        layers: None,
        biases: false,
        routing,
        ..MIXTRAL
    };
    Variant { experts: Some(experts), latent: Some(latent), multi_token: 1, ..Variant::USUAL }
}

/// Ranks of a pipeline, tensor-parallel ranks, replicas.
type Sizes = [usize; 3];

/// `variant` with experts dealt to `expert` ranks, which have room for whatever routing sends them. A step has eight
/// microbatches.
fn work(variant: Variant, [pp, tp, dp]: Sizes, expert: u32) -> ModelWork {
    let mut work = common::work(pp, 8 / dp);
    (work.model.heads, work.model.kv_heads, work.model.head_dim) = (4, 4, 4);
    if variant.latent.is_some() {
        work.model.head_dim = 6;
    }
    (work.sequence, work.microbatch_size) = (8, 1);
    work.model.variant = variant;
    (work.layout.data, work.layout.form.tensor) = (dp as u32, tp as u32);
    (work.layout.form.expert, work.layout.form.imbalance_permille) = (expert, 1000 * expert);
    work
}

#[test]
fn every_family_trains_as_one_rank() {
    let mut expected = Expected::default();
    for (at, variant) in [mixtral(), qwen_2_moe(), deepseek()].into_iter().enumerate() {
        for (sizes, expert, name, zero) in [
            ([1, 1, 2], 2, "1f1b", 0),
            ([2, 1, 4], 2, "1f1b", 1),
            ([1, 1, 4], 4, "zb-h1", 1),
            ([2, 2, 2], 2, "interleaved-1f1b", 0),
        ] {
            let mut work = work(variant, sizes, expert);
            work.layout.zero = zero;
            let form = &mut work.layout.form;
            form.sequence_parallel = sizes[1] > 1 && at % 2 == 0;
            form.async_reduce = sizes[1] > 1;
            form.recompute = [Recompute::None, Recompute::Full, Recompute::Latents][(at + zero as usize) % 3];
            assert!(trains_as_one_rank(&work, name, &options(5), &mut expected), "{name} exists");
        }
    }
}

/// Whether a token goes once for each expert or once to each node, also where the last node is smaller and where
/// devices hold whole experts: the same is trained.
#[test]
fn a_token_may_go_once_to_each_node() {
    let mut expected = Expected::default();
    for (variant, sizes, expert, whole, of_node, name) in [
        (mixtral(), [1, 1, 4], 4, false, 2, "1f1b"),
        (deepseek(), [2, 1, 4], 4, false, 3, "zb-h1"),
        (qwen_2_moe(), [1, 1, 4], 4, false, 1, "zb-v"),
        (mixtral(), [1, 2, 2], 4, true, 2, "1f1b"),
        (mixtral(), [1, 2, 2], 2, false, 2, "1f1b"),
    ] {
        let mut work = work(variant, sizes, expert);
        (work.layout.dispatch, work.devices_per_node) = (Dispatch::OncePerNode, of_node);
        (work.layout.form.sequence_parallel, work.layout.form.whole_experts) = (whole, whole);
        assert!(work.experts_by_node().is_some(), "the group is on several nodes");
        assert!(trains_as_one_rank(&work, name, &options(4), &mut expected), "{name} exists");
        work.devices_per_node = 64;
        assert_eq!(work.experts_by_node(), None, "all are on one node");
    }
}

/// Pairs of ops that a plan overlaps are run one after the other, and train the same.
#[test]
fn overlapped_pairs_train_as_one_rank() {
    let mut expected = Expected::default();
    for name in ["combined-1f1b", "dualpipe", "dualpipe-v"] {
        let mut work = work(deepseek(), [2, 1, 2], 2);
        work.layout.overlap_exchanges = true;
        assert!(trains_as_one_rank(&work, name, &options(4), &mut expected), "{name} exists");
    }
}

/// Losses of routers train as one rank's do: each of the ranks that share matrices has a part of their gradient, and stages
/// without a head have them, too.
#[test]
fn losses_of_routers_train_as_on_one_rank() {
    let router_losses = RouterLosses { balance_e12: 100_000_000_000, z_e12: 10_000_000_000 };
    let mut expected = Expected::default();
    for variant in [mixtral(), deepseek()] {
        for (sizes, expert, name) in [([1, 1, 2], 2, "1f1b"), ([2, 1, 2], 2, "zb-v"), ([2, 2, 2], 2, "1f1b")] {
            let mut work = work(variant, sizes, expert);
            work.layout.form.router_losses = router_losses;
            work.layout.form.sequence_parallel = sizes[1] > 1;
            work.layout.form.recompute = if name == "1f1b" { Recompute::None } else { Recompute::Full };
            assert!(trains_as_one_rank(&work, name, &options(5), &mut expected), "{name} exists");
        }
    }
    // Told is the loss of tokens alone, and what is trained is more than that.
    let of = |router_losses| {
        let mut work = work(mixtral(), [1, 1, 1], 1);
        work.layout.form.router_losses = router_losses;
        train(&published(&work, "1f1b", Precision::Double).expect("it exists"), &options(3)).losses()
    };
    let (with, without) = (of(router_losses), of(RouterLosses::NONE));
    assert_eq!(with[0], without[0], "the first step's loss is that of the same weights");
    assert_ne!(with[2], without[2]);
    // Parts of a microbatch are routed apart.
    let mut work = work(mixtral(), [1, 2, 1], 1);
    let form = &mut work.layout.form;
    (form.router_losses, form.whole_experts, form.sequence_parallel) = (router_losses, true, true);
    let refused = published_workloads::published(&work, "1f1b", Some(Precision::Double));
    let refused = refused.expect_err("no rank sees all tokens");
    assert!(refused.to_string().contains("over all tokens of a microbatch"), "{refused}");
}

/// Clipping counts each element of each expert once; the greatest norm is one that binds.
#[test]
fn every_kind_of_schedule_trains_as_one_rank() {
    let mut expected = Expected::default();
    for (at, (name, sizes, expert)) in [
        ("gpipe", [2, 1, 2], 2),
        ("zb-v", [2, 1, 4], 4),
        ("dualpipe", [2, 1, 2], 2),
        ("zb-h1", [2, 2, 2], 2),
        ("v-half", [2, 1, 4], 2),
        ("looped-bfs", [2, 1, 4], 2),
        ("chimera", [2, 1, 2], 2),
    ]
    .into_iter()
    .enumerate()
    {
        let mut work = work(qwen_2_moe(), sizes, expert);
        work.layout.zero = u32::from(at % 2 == 1);
        let clipped = RunOptions { clip_norm: Some(0.05), ..options(5) };
        assert!(trains_as_one_rank(&work, name, &clipped, &mut expected), "{name} exists");
    }
}

/// Where tensor-parallel ranks route tokens of their own to whole experts, these are dealt to all of them.
#[test]
fn whole_experts_train_as_one_rank() {
    let mut expected = Expected::default();
    for (at, (sizes, expert)) in
        [([1, 2, 1], 1), ([1, 2, 1], 2), ([1, 2, 2], 2), ([2, 2, 2], 4), ([1, 4, 1], 2), ([1, 4, 2], 2)]
            .into_iter()
            .enumerate()
    {
        for zero in [0, 1] {
            let mut work = work(if at % 2 == 0 { qwen_2_moe() } else { deepseek() }, sizes, expert);
            work.layout.zero = zero;
            let form = &mut work.layout.form;
            (form.whole_experts, form.sequence_parallel, form.async_reduce) = (true, true, at % 2 == 0);
            let clipped = RunOptions { clip_norm: Some(0.05), ..options(4) };
            assert!(trains_as_one_rank(&work, "1f1b", &clipped, &mut expected), "it exists");
        }
    }
}

/// Experts are dealt along parts of sequences first, and then along replicas.
#[test]
fn parts_of_sequences_train_as_one_rank() {
    let mut expected = Expected::default();
    for (at, (variant, sizes, expert, name, whole)) in [
        (mixtral(), [1, 1, 1], 2, "1f1b", false),
        (qwen_2_moe(), [2, 1, 2], 4, "zb-h1", false),
        (deepseek(), [1, 2, 1], 2, "1f1b", false),
        (qwen_2_moe(), [1, 1, 2], 2, "1f1b", false),
        (deepseek(), [1, 2, 2], 4, "gpipe", true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut work = work(variant, sizes, expert);
        work.layout.zero = u32::from(at % 2 == 1);
        let form = &mut work.layout.form;
        (form.context, form.whole_experts, form.sequence_parallel) = (2, whole, whole);
        form.recompute = [Recompute::None, Recompute::Full][at % 2];
        let clipped = RunOptions { clip_norm: Some(0.05), ..options(4) };
        assert!(trains_as_one_rank(&work, name, &clipped, &mut expected), "{name} exists");
    }
}

fn refused_room(workload: &Workload, device: Device) -> Option<BackendError> {
    match run(workload, &RunOptions { device, ..options(3) }, &mut Silent) {
        Ok(_) => None,
        Err(RunError::Failed(failure)) => match failure.cause {
            Cause::Backend(error) => Some(error),
            other => panic!("{other}"),
        },
        Err(other) => panic!("{other}"),
    }
}

/// What a run without room says is enough for that layer and microbatch; the greatest of these is enough for all. Then
/// nothing is dropped: losses and weights are those of one rank.
#[test]
fn a_rank_without_room_ends_the_run_and_says_what_is_needed() {
    let mut work = work(mixtral(), [2, 1, 2], 2);
    work.layout.form.imbalance_permille = 1000;
    let mut said = Vec::new();
    let workload = loop {
        let workload = published(&work, "1f1b", Precision::Double).expect("it exists");
        let Some(error) = refused_room(&workload, Device::Cpu) else { break workload };
        let BackendError::ExpertOverflow { rank, layer, microbatch, come, rows, enough, always } = error.clone()
        else {
            panic!("{error}")
        };
        assert!(rank < 4 && layer < 8 && microbatch < 4 && come > rows, "{error}");
        let copies = 8 * 2;
        assert_eq!(rows, (copies * work.layout.form.imbalance_permille as usize).div_ceil(1000));
        let permille = (enough.parse::<f64>().expect("a number") * 1000.0).round() as u32;
        assert!((copies * permille as usize).div_ceil(1000) >= come, "{error}");
        assert!((copies * (permille as usize - 1)).div_ceil(1000) < come, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("write training.expert_imbalance = {enough} or more")), "{text}");
        assert!(said.last().is_none_or(|last| *last < permille), "{error}");
        // All copies of all tokens may come to one of the two.
        assert_eq!(always, 2);
        said.push(permille);
        work.layout.form.imbalance_permille = permille;
    };
    assert!(!said.is_empty(), "sixteen copies hardly ever go to two ranks in equal parts");
    let (found, expected) = (train(&workload, &options(3)), train(&alone(&work, Precision::Double), &options(3)));
    assert_close_losses(&found, &expected, 1e-10, "enough");
    assert_close_weights(&found, &expected, "enough");
}

/// On their own layout to the bit, on another one within rounding; with experts each by itself, and rows in another
/// order than
/// the kernels'.
#[test]
fn checkpoints_go_from_any_layout_to_any() {
    let planned = |(sizes, expert, zero, whole, name): (Sizes, u32, u32, bool, &str)| {
        let experts = deepseek().experts.map(|of| Experts { shared_ffn: of.ffn, ..of });
        let latent = deepseek().latent.map(|of| Latent { rope_width: 4, ..of });
        let mut work = work(Variant { experts, latent, ..deepseek() }, sizes, expert);
        (work.model.head_dim, work.model.norm_eps_e12) = (10, 1_000_000);
        assert_eq!(config(&work.model, "f64", false)["model_type"], "deepseek_v3");
        work.layout.zero = zero;
        work.layout.form.context = if sizes[2] == 1 { expert } else { 1 };
        (work.layout.form.sequence_parallel, work.layout.form.whole_experts) = (whole, whole);
        published(&work, name, Precision::Double).unwrap_or_else(|| panic!("{name} exists"))
    };
    let layouts = [
        ([1, 1, 1], 1, 0, false, "1f1b"),
        ([2, 1, 4], 2, 1, false, "1f1b"),
        ([1, 1, 4], 4, 0, false, "gpipe"),
        ([2, 2, 2], 2, 1, false, "zb-h1"),
        ([1, 2, 2], 4, 0, true, "1f1b"),
        ([2, 2, 1], 2, 1, false, "1f1b"),
        ([1, 2, 2], 2, 1, true, "1f1b"),
        ([2, 1, 2], 2, 0, false, "dualpipe"),
    ];
    resumes_on_any(&layouts, planned, 5);
}

/// Of a text of just as many windows as a step takes: their mean loss is that of the next step, whoever held which experts.
#[test]
fn a_checkpoint_is_evaluated_whatever_its_layout() {
    for (variant, sizes, expert, zero) in
        [(mixtral(), [1, 1, 1], 1, 0), (qwen_2_moe(), [2, 1, 4], 4, 1), (deepseek(), [1, 2, 2], 2, 0)]
    {
        let mut work = work(variant, sizes, expert);
        work.layout.zero = zero;
        let text: Vec<u8> = common::text().into_iter().take(8 * 8 + 1 + variant.multi_token as usize).collect();
        let workload = published(&work, "1f1b", Precision::Double).expect("it exists");
        let folder = tempfile::tempdir().expect("a folder");
        let saving = Some(Saving { folder: folder.path().to_path_buf(), every: 0 });
        train(&workload, &RunOptions { text: text.clone(), saving, ..options(4) });
        let checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
        let resume = Some(checkpoint.clone());
        let next = train(&workload, &RunOptions { text: text.clone(), resume, ..options(5) }).losses()[0];
        let evaluation = evaluate::<f64>(&checkpoint, &text, 1000).expect("it computes");
        assert_eq!(evaluation.windows.len(), 8);
        assert!((evaluation.loss - next).abs() < 1e-10 * next, "{} {next}", evaluation.loss);
    }
}

/// By `examples/transformers_check.py`, from experts that are dealt to ranks and matrices that are split.
#[test]
fn transformers_computes_the_same_logits() {
    let with = |variant: Variant, change: &dyn Fn(Experts) -> Experts| Variant {
        experts: variant.experts.map(change),
        ..variant
    };
    let normed = Routing { normed: true, ..Routing::USUAL };
    let mixtral = with(mixtral(), &|experts| Experts { routing: normed, ..experts });
    let qwen_2_moe = Variant { qkv_bias: true, ..qwen_2_moe() };
    let qwen_3_moe = Variant { qk_norm: true, ..mixtral };
    // transformers passes over the published model's module of multi-token prediction, and over no other.
    let alone = || Variant { multi_token: 0, ..deepseek() };
    let deepseek = |routing| with(alone(), &|of| Experts { shared_ffn: 2 * of.ffn, routing, ..of });
    let in_groups = Routing { factor: Some(2_500_000_000_000), groups: 4, active_groups: 2, ..Routing::USUAL };
    let sigmoid = Routing { scores: Scores::Sigmoid, normed: true, ..in_groups };
    let mut without_query_rank = deepseek(Routing { normed: false, groups: 1, active_groups: 1, ..sigmoid });
    without_query_rank.latent.iter_mut().for_each(|latent| latent.query_rank = 0);
    for (kind, variant) in [
        ("mixtral", mixtral),
        ("qwen2_moe", qwen_2_moe),
        ("qwen3_moe", qwen_3_moe),
        ("qwen3_moe, not normed", with(qwen_3_moe, &|of| Experts { routing: Routing::USUAL, ..of })),
        ("deepseek_v2", deepseek(in_groups)),
        ("deepseek_v2, greedy", deepseek(Routing::USUAL)),
        ("deepseek_v3", deepseek(sigmoid)),
        ("deepseek_v3, not normed", without_query_rank),
    ] {
        let mut work = work(variant, [2, 2, 2], 2);
        // Latents are normed with this, whatever a file says. Two pairs of columns are turned, since one has no order.
        work.model.norm_eps_e12 = 1_000_000;
        if let Some(latent) = &mut work.model.variant.latent {
            (work.model.head_dim, latent.rope_width) = (10, 4);
        }
        let workload = published(&work, "1f1b", Precision::Double).expect("it exists");
        if !transformers_agrees(&workload, Precision::Double, 20, kind) {
            return;
        }
    }
}

/// A rank that stands still is named by one that waits for it, with the collective and its group.
#[test]
fn a_rank_that_does_not_come_is_named() {
    let workload = published(&work(mixtral(), [1, 1, 2], 2), "1f1b", Precision::Single).expect("it exists");
    for after in [5, 6, 7, 8] {
        let failure = stalled(&workload, after, 4);
        assert!(matches!(failure.cause, Cause::Collective(_) | Cause::Backend(_)), "{failure}");
        let text = failure.to_string();
        assert!(text.contains("rank 0 failed: "), "{text}");
        assert!(text.contains("among ranks [0, 1]") && text.contains("for rank 1 to send"), "{text}");
        assert_eq!(failure.ranks[1].state, State::Dealing, "{text}");
    }
}

/// What comes late changes no bit: rows lie by expert, sender and token, whoever was first.
#[test]
fn delays_change_nothing_but_time() {
    let workload = published(&work(qwen_2_moe(), [1, 1, 4], 4), "zb-h1", Precision::Single).expect("it exists");
    let calm = train(&workload, &options(3));
    for seed in 0..3 {
        let delayed = Faults { seed, delay: Duration::from_millis(2), ..Faults::default() };
        let faults = (0..4).map(|rank| (rank, delayed)).collect();
        let late = train(&workload, &RunOptions { faults, ..options(3) });
        assert_eq!((bits(&late), &late.weights), (bits(&calm), &calm.weights));
    }
}

/// The groups of experts are those of the ranks along replicas and parts of their sequences, next to each other, that
/// share matrices
/// alike.
#[test]
fn experts_are_dealt_to_neighbours() {
    let mut of_two = work(mixtral(), [2, 2, 4], 2);
    let workload = published(&of_two, "1f1b", Precision::Single).expect("it exists");
    let group = |workload: &Workload, rank: usize| workload.position(rank).group(Axis::Expert);
    assert_eq!([0, 1, 2, 5, 8].map(|rank| group(&workload, rank)), [[0, 2], [1, 3], [0, 2], [5, 7], [8, 10]]);
    (of_two.layout.form.whole_experts, of_two.layout.form.sequence_parallel) = (true, true);
    let workload = published(&of_two, "1f1b", Precision::Single).expect("it exists");
    assert_eq!([0, 1, 2, 5, 8].map(|rank| group(&workload, rank)), [[0, 1], [0, 1], [2, 3], [4, 5], [8, 9]]);
    // Parts of sequences lie between.
    let mut of_four = work(mixtral(), [1, 2, 4], 4);
    of_four.layout.form.context = 2;
    let workload = published(&of_four, "1f1b", Precision::Single).expect("it exists");
    assert_eq!([0, 3, 9].map(|rank| group(&workload, rank)), [[0, 2, 4, 6], [1, 3, 5, 7], [9, 11, 13, 15]]);
}

/// With pipelines and replicas around them, tensor-parallel ranks or hold parts of sequences, and whole experts.
#[cfg(feature = "cuda")]
#[test]
fn cards_train_as_one_rank() {
    let mut expected = Expected::default();
    for (at, (variant, sizes, context, expert, whole, name)) in [
        (mixtral(), [1, 1, 2], 1, 2, false, "1f1b"),
        (deepseek(), [2, 1, 4], 1, 4, false, "zb-h1"),
        (qwen_2_moe(), [1, 2, 1], 2, 2, false, "1f1b"),
        (mixtral(), [1, 2, 2], 1, 4, true, "gpipe"),
        (deepseek(), [2, 2, 1], 1, 2, true, "zb-v"),
        (qwen_2_moe(), [1, 1, 4], 1, 2, false, "1f1b"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut work = work(variant, sizes, expert);
        // Both formats of each kind of layers and of experts.
        work.dtype = if at < 3 { Dtype::Bf16 } else { Dtype::F32 };
        (work.model.layers, work.layout.zero) = (4, u32::from(at % 2 == 1));
        let form = &mut work.layout.form;
        (form.context, form.whole_experts, form.sequence_parallel) = (context, whole, whole);
        form.recompute = [Recompute::None, Recompute::Full, Recompute::Cheap][at % 3];
        if !trains_on_cards(&work, name, 3, &mut expected) {
            return;
        }
    }
}

/// As on CPUs, which count the same copies.
#[test]
fn a_card_without_room_ends_the_run_as_a_cpu_does() {
    let mut work = work(mixtral(), [2, 1, 2], 2);
    work.layout.form.imbalance_permille = 1000;
    let workload = published(&work, "1f1b", Precision::Single).expect("it exists");
    let refused = |device| refused_room(&workload, device).expect("sixteen copies hardly ever go in equal parts");
    let on_card = refused(Device::Emulated);
    if on_card.to_string().contains("cannot be started") {
        return eprintln!("SKIPPED: experts are not dealt among cards: {on_card}");
    }
    assert!(matches!(on_card, BackendError::ExpertOverflow { .. }), "{on_card}");
    assert_eq!(on_card, refused(Device::Cpu));
}
