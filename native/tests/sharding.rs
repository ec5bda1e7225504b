//! Whether replicas that shard gradients and weights (ZeRO 2 and 3), in groups too (HSDP), train as one rank does,
//! and hold what the plan predicts.

mod common;

use common::{
    EXPERTS, Expected, options, problem, published, resumes_on_any, stalled, train, trains_as_one_rank, work,
};
use pipeplan::runner::{Cause, Precision, RunOptions};
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::graph::form::Recompute;
use pipeplan_core::graph::layout::ReduceGradients;
use pipeplan_core::graph::post_training::{Lora, Targets};
use pipeplan_core::model::{Latent, Variant};
use pipeplan_core::spec::ModelWork;

/// ZeRO's stage, copies of a sharding group, and when gradients are reduced where not as usual.
type Sharded = (u32, Option<u32>, Option<ReduceGradients>);

/// A schedule, its ranks, and what changes a plain model.
type Case = (&'static str, usize, fn(&mut ModelWork));

const EACH: Option<ReduceGradients> = Some(ReduceGradients::EachMicrobatch);
const ONCE: Option<ReduceGradients> = Some(ReduceGradients::AfterAccumulation);

/// All ways of sharding over `copies` replicas that differ in what is run.
fn ways(copies: u32) -> Vec<Sharded> {
    let mut ways =
        vec![(0, None, EACH), (1, None, EACH), (2, None, None), (2, None, ONCE), (3, None, None), (3, None, ONCE)];
    if copies == 4 {
        ways.extend([(1, Some(2), None), (1, Some(2), EACH), (2, Some(2), None), (3, Some(2), None)]);
        ways.push((3, Some(2), ONCE));
    }
    ways
}

fn sharded(mut work: ModelWork, data: u32, (zero, shard, reduce): Sharded) -> ModelWork {
    (work.layout.data, work.layout.zero, work.layout.shard) = (data, zero, shard);
    work.layout.reduce_gradients = reduce;
    work
}

/// Every way of sharding, on schedules with B and W in one and apart, several stages a rank, and replicas of one rank.
#[test]
fn replicas_that_shard_train_as_one_rank() {
    let mut expected = Expected::default();
    for (at, way) in ways(4).into_iter().enumerate() {
        let data = if way.1.is_some() { 4 } else { [2, 3][at % 2] };
        for (ranks, schedule) in [(1, "gpipe"), (2, "1f1b"), (2, "zb-v")] {
            let mut work = sharded(work(ranks, 4), data, way);
            work.model.layers = 4;
            work.model.tied = at % 2 == 0;
            work.layout.form.recompute = [Recompute::None, Recompute::Full, Recompute::Cheap][at % 3];
            let options = RunOptions { clip_norm: (at % 2 == 0).then_some(0.25), ..options(4) };
            assert!(trains_as_one_rank(&work, schedule, &options, &mut expected), "{schedule} with {way:?}");
        }
    }
}

/// With all that ranks do around it: ranks that share matrices, parts of sequences, bidirectional placements whose
/// stages lie on two ranks, experts dealt to replicas, modules that predict later tokens.
#[test]
fn sharding_goes_with_every_other_axis() {
    let mut expected = Expected::default();
    let all: [Case; 6] = [
        ("1f1b", 2, |work| {
            (work.layout.form.tensor, work.layout.form.sequence_parallel) = (2, true);
            work.layout.form.async_reduce = true;
        }),
        ("zb-h1", 2, |work| (work.layout.form.context, work.sequence) = (2, 24)),
        ("dualpipe", 2, |_| {}),
        ("dualpipe-v", 2, |work| work.model.tied = true),
        ("1f1b", 2, |work| {
            work.model.variant = Variant { experts: Some(EXPERTS), ..Variant::USUAL };
            (work.layout.form.expert, work.layout.form.imbalance_permille) = (2, 4000);
        }),
        ("interleaved-1f1b", 2, |work| {
            let latent = Latent { query_rank: 12, key_value_rank: 10, rope_width: 2, value_width: 3 };
            work.model.variant = Variant { latent: Some(latent), multi_token: 1, ..Variant::USUAL };
            (work.model.kv_heads, work.model.head_dim) = (work.model.heads, 6);
        }),
    ];
    for (at, (schedule, ranks, change)) in all.into_iter().enumerate() {
        for way in [(2, None, None), (3, None, None), (3, Some(2), None), (1, Some(2), None)] {
            let mut work = sharded(work(ranks, 4), if way.1.is_some() { 4 } else { 2 }, way);
            work.model.layers = 4;
            change(&mut work);
            work.layout.form.dropout = at % 3 == 0;
            let what = format!("{schedule}, case {at}, with {way:?}");
            assert!(trains_as_one_rank(&work, schedule, &options(3), &mut expected), "{what}");
        }
    }
}

/// Frozen weights are sharded, too, and adapters as any weight.
#[test]
fn frozen_weights_are_sharded() {
    let mut expected = Expected::default();
    for way in [(3, None, None), (3, None, ONCE), (2, None, None)] {
        let mut work = sharded(work(2, 4), 2, way);
        work.layout.form.frozen.add("embedding").expect("a module");
        work.layout.form.frozen.add("layers.0-2").expect("layers");
        assert!(trains_as_one_rank(&work, "1f1b", &options(3), &mut expected), "frozen with {way:?}");
        let mut work = sharded(common::work(2, 4), 2, way);
        work.layout.form.lora = Some(Lora { rank: 4, alpha: 8, targets: Targets::ALL });
        assert!(trains_as_one_rank(&work, "zb-h1", &options(3), &mut expected), "adapters with {way:?}");
    }
}

/// Whatever shards what, any layout goes on from its checkpoint.
#[test]
fn checkpoints_go_from_any_sharding_to_any() {
    let layouts: [(usize, u32, Sharded, &str); 6] = [
        (1, 2, (3, None, None), "gpipe"),
        (2, 4, (1, Some(2), None), "1f1b"),
        (2, 2, (2, None, None), "zb-v"),
        (2, 4, (3, Some(2), None), "1f1b"),
        (2, 3, (0, None, EACH), "1f1b"),
        (2, 3, (3, None, ONCE), "zb-h1"),
    ];
    let planned = |(ranks, data, way, name): (usize, u32, Sharded, &str)| {
        let mut work = sharded(work(ranks, 4), data, way);
        (work.model.layers, work.microbatches) = (4, 12 / data);
        published(&work, name, Precision::Double).expect("it exists")
    };
    resumes_on_any(&layouts, planned, 5);
}

/// Experts that some replicas hold, in sharding groups, likewise: each of their states is written once.
#[test]
fn checkpoints_of_sharded_experts_are_whole() {
    let layouts: [(u32, u32, Sharded); 3] =
        [(4, 2, (3, Some(2), None)), (4, 2, (3, None, None)), (2, 1, (2, None, None))];
    let planned = |(data, expert, way): (u32, u32, Sharded)| {
        let mut work = sharded(work(2, 4), data, way);
        work.model.variant = Variant { experts: Some(EXPERTS), ..Variant::USUAL };
        (work.model.layers, work.microbatches) = (4, 8 / data);
        (work.layout.form.expert, work.layout.form.imbalance_permille) = (expert, 4000);
        published(&work, "1f1b", Precision::Double).expect("it exists")
    };
    resumes_on_any(&layouts, planned, 5);
}

/// A rank holds what the plan says: its shares, the weights of a layer and of the next one, and the gradients of two
/// layers.
#[test]
fn a_rank_holds_its_shares_and_two_layers() {
    for (name, ranks, way) in [
        ("gpipe", 1, (3, None, None)),
        ("1f1b", 2, (3, None, None)),
        ("zb-v", 2, (3, None, None)),
        ("1f1b", 2, (2, None, None)),
        ("zb-h1", 2, (2, None, None)),
        ("1f1b", 2, (3, Some(2), None)),
        ("1f1b", 2, (3, None, ONCE)),
        ("1f1b", 2, (1, None, EACH)),
    ] {
        let work = sharded(work(ranks, 8), 4, way);
        let workload = published(&work, name, Precision::Single).expect("it exists");
        let report = train(&workload, &options(2));
        let (placement, chunks) = (pipeplan_core::schedule::find(name).expect("published").shape)(2);
        let derived = derive(&work, placement.clone(), chunks).expect("the model can be cut");
        let problem = problem(&work, placement, chunks).expect("the model can be cut");
        for (rank, memory) in report.memory.iter().enumerate().take(ranks) {
            let planned = derived.static_bytes[rank];
            let what = format!("{name} with {way:?}, rank {rank}: {memory:?}, planned {planned:?}");
            // Weights that are gathered and gradients under way are at their most at the same time in no job alone:
            // one of them in any.
            let beside = planned.gathered.min(planned.under_way);
            let most = planned.total() - planned.buffers;
            // With B and W apart, gradients of gains and of matrices are under way in different ones.
            let least = most - beside - most / 100;
            assert!((least..=most).contains(&memory.persistent_bytes), "{what}");
            assert!(memory.high_water_bytes <= problem.static_bytes(rank) + memory.activation_bytes, "{what}");
        }
    }
}

/// A rank that stands still while weights are gathered is named by its copy, with what they do.
#[test]
fn a_copy_that_does_not_come_is_named() {
    let workload =
        published(&sharded(work(1, 4), 2, (3, None, None)), "gpipe", Precision::Single).expect("it exists");
    let failure = stalled(&workload, 3, 0);
    let text = failure.to_string();
    assert!(matches!(failure.cause, Cause::Collective(_)), "{text}");
    assert!(text.contains("all-gather") && text.contains("for rank 1 to send its part of"), "{text}");
    assert!(
        text.contains("rank 1 of replica 1: gathering weights or reducing gradients with rank 0 at training"),
        "{text}"
    );
}
