//! Whether sequences that go through a pipeline in slices train as whole ones do, and hold what the plan predicts.

mod common;

use common::{EXPERTS, Expected, options, problem, published, resumes_on_any, train, trains_as_one_rank, work};
use pipeplan::runner::{Precision, Refusal, RunError, RunOptions, Silent, Workload, run};
use pipeplan_core::graph::form::Recompute;
use pipeplan_core::graph::post_training::{Lora, Targets};
use pipeplan_core::model::{Family, Latent, Variant, Window};
use pipeplan_core::spec::ModelWork;

/// A name, and what makes a plain model one.
type Kind = (&'static str, fn(&mut ModelWork));

/// Four layers in slices of 4 or more tokens.
fn sliced(ranks: usize, slices: u32) -> ModelWork {
    let mut work = work(ranks, 4);
    (work.model.layers, work.sequence, work.layout.slices) = (4, 24, slices);
    work
}

/// The schedules of papers for slices, and others slice by slice, with B and W in one and apart.
#[test]
fn slices_train_as_one_rank() {
    let mut expected = Expected::default();
    for (at, (schedule, ranks, slices)) in [
        ("seq1f1b", 2, 2),
        ("seq1f1b", 4, 4),
        ("seq1f1b-i", 2, 3),
        ("terapipe", 2, 6),
        ("slimpipe", 2, 4),
        ("1f1b", 2, 2),
        ("gpipe", 1, 3),
        ("zb-h1", 4, 2),
        ("zb-v", 2, 3),
        ("interleaved-1f1b", 2, 2),
    ]
    .into_iter()
    .enumerate()
    {
        for recompute in [Recompute::None, Recompute::Full, Recompute::Cheap] {
            let mut work = sliced(ranks, slices);
            work.layout.form.recompute = recompute;
            work.model.tied = at % 2 == 1;
            let options = RunOptions { clip_norm: (at % 3 == 0).then_some(0.25), ..options(3) };
            let what = format!("{schedule} on {ranks} ranks in {slices} slices, {recompute:?}");
            assert!(trains_as_one_rank(&work, schedule, &options, &mut expected), "{what}");
        }
    }
}

/// Windows shorter and longer than a slice, latent attention, learned positions, norms of heads, sinks, experts,
/// frozen layers, adapters.
#[test]
fn every_kind_of_attention_goes_on_over_slices() {
    let kinds: [Kind; 9] = [
        ("Gemma 2, a window within a slice", |work| work.model.variant = common::gemma_2(5)),
        ("a window over slices", |work| {
            work.model.variant = Variant { window: Some(Window::sliding(11, 0)), ..Variant::USUAL };
        }),
        ("DeepSeek", |work| {
            let latent = Latent { query_rank: 12, key_value_rank: 10, rope_width: 2, value_width: 3 };
            work.model.variant = Variant { latent: Some(latent), ..Variant::USUAL };
            (work.model.kv_heads, work.model.head_dim) = (work.model.heads, 6);
        }),
        ("GPT", |work| (work.model.family, work.model.kv_heads) = (Family::Gpt, work.model.heads)),
        ("Qwen 3", |work| work.model.variant = Variant { qk_norm: true, ..Variant::USUAL }),
        ("sinks", |work| work.model.variant = Variant { sinks: true, ..Variant::USUAL }),
        ("experts", |work| work.model.variant = Variant { experts: Some(EXPERTS), ..Variant::USUAL }),
        ("frozen layers", |work| work.layout.form.frozen.add("layers.0-1").expect("layers")),
        ("adapters", |work| work.layout.form.lora = Some(Lora { rank: 4, alpha: 8, targets: Targets::ALL })),
    ];
    let mut expected = Expected::default();
    for (at, (kind, change)) in kinds.into_iter().enumerate() {
        for (schedule, slices) in [("seq1f1b", 4), ("zb-h1", 2)] {
            let mut work = sliced(2, slices);
            change(&mut work);
            work.layout.form.recompute = [Recompute::None, Recompute::Full][at % 2];
            assert!(trains_as_one_rank(&work, schedule, &options(3), &mut expected), "{kind}, {schedule}");
        }
    }
}

/// With replicas, sharded weights, and ranks that share matrices.
#[test]
fn slices_go_with_other_axes() {
    let mut expected = Expected::default();
    for (data, zero, tensor, schedule) in
        [(2, 0, 1, "seq1f1b"), (2, 3, 1, "seq1f1b"), (2, 1, 2, "slimpipe"), (1, 0, 2, "zb-h1")]
    {
        let mut work = sliced(2, 3);
        (work.layout.data, work.layout.zero) = (data, zero);
        (work.layout.form.tensor, work.layout.form.sequence_parallel) = (tensor, tensor > 1);
        work.layout.form.async_reduce = tensor > 1;
        let what = format!("{schedule}: data {data}, zero {zero}, tensor {tensor}");
        assert!(trains_as_one_rank(&work, schedule, &options(3), &mut expected), "{what}");
    }
}

/// A run goes on from the checkpoint of other slices, and of whole sequences.
#[test]
fn checkpoints_go_from_any_slices_to_any() {
    let planned =
        |(slices, name): (u32, &str)| published(&sliced(2, slices), name, Precision::Double).expect("it exists");
    resumes_on_any(&[(1, "1f1b"), (3, "seq1f1b"), (4, "slimpipe")], planned, 5);
}

/// What a rank holds of its microbatches, keys and values and their gradients among it, is what the plan predicts, to
/// the byte.
#[test]
fn slices_hold_what_the_plan_predicts() {
    for (name, ranks, slices) in
        [("seq1f1b", 2, 4), ("1f1b", 2, 2), ("slimpipe", 2, 3), ("zb-h1", 4, 2), ("terapipe", 2, 6)]
    {
        for recompute in [Recompute::None, Recompute::Full, Recompute::Cheap] {
            let mut work = sliced(ranks, slices);
            work.layout.form.recompute = recompute;
            let workload = published(&work, name, Precision::Single).expect("it exists");
            let report = train(&workload, &options(2));
            let (placement, chunks) = (pipeplan_core::schedule::find(name).expect("published").shape)(2);
            let problem = problem(&work, placement, chunks).expect("the model can be cut");
            for (rank, memory) in report.memory.iter().enumerate() {
                let row = workload.program.rows[rank].iter().filter_map(|step| match step {
                    pipeplan_core::program::Step::Compute(op) => Some(*op),
                    _ => None,
                });
                let predicted = pipeplan_core::simulate::timeline::peak_bytes(&problem, rank, row);
                let held = predicted - problem.static_bytes(rank);
                assert!(
                    memory.high_water_bytes <= predicted,
                    "{name} in {slices} slices, {recompute:?}, rank {rank}: {memory:?}"
                );
                assert_eq!(memory.activation_bytes, held, "{name} in {slices} slices, {recompute:?}, rank {rank}");
            }
        }
    }
}

/// What does not go with slices is refused by its name, before anything starts.
#[test]
fn what_slices_do_not_run_with_is_refused() {
    let cases: [Kind; 3] = [
        ("without dropout", |work| work.layout.form.dropout = true),
        ("without context parallel", |work| work.layout.form.context = 2),
        ("without losses of routers", |work| {
            work.model.variant = Variant { experts: Some(EXPERTS), ..Variant::USUAL };
            work.layout.form.router_losses.balance_e12 = 1_000_000;
        }),
    ];
    for (says, change) in cases {
        let mut work = sliced(2, 2);
        change(&mut work);
        let workload = published(&work, "seq1f1b", Precision::Single).expect("it exists");
        let refusal = match run(&workload, &options(1), &mut Silent) {
            Err(RunError::Refused(refusal)) => refusal.to_string(),
            other => panic!("{says}: {:?}", other.map(|_| ())),
        };
        assert!(refusal.contains("parallel.sequence_slices") && refusal.contains(says), "{refusal}");
    }
    let whole = published(&sliced(2, 1), "1f1b", Precision::Single).expect("it exists");
    let refusal = Workload::new(&sliced(2, 2), &whole.problem, &whole.program, None).expect_err("other slices");
    assert_eq!(refusal, Refusal::Slices { problem: 1, spec: 2 });
}
