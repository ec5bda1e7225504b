//! Whether weights that lie in several places, and pipelines that are there several times, train as one rank does.

mod common;

use common::{assert_close_losses, options, published, train, work};
use pipeplan::runner::{Precision, RunError, RunOptions, RunReport, Silent, Workload, run};
use pipeplan::transport::Buffer;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::spec::ModelWork;

/// One rank that takes `work`'s whole step by itself.
fn alone(work: &ModelWork, precision: Precision) -> Workload {
    let mut work = ModelWork { microbatches: work.microbatches * work.layout.data, ..work.clone() };
    (work.layout.data, work.layout.zero) = (1, 0);
    common::one_by_one(&work, precision)
}

/// Trains `work` as `name` in both types beside one rank, and twice in `f32`.
fn assert_trains_as_one_rank(work: &ModelWork, name: &str, options: &RunOptions) -> RunReport {
    let what = format!(
        "{name} on {} ranks, {} replicas, zero {}, tied {}",
        work.pipeline, work.layout.data, work.layout.zero, work.model.tied
    );
    let planned = |precision| published(work, name, precision).unwrap_or_else(|| panic!("{what} exists"));
    let run = train(&planned(Precision::Double), options);
    let expected = train(&alone(work, Precision::Double), options);
    assert_close_losses(&run, &expected, 1e-10, &what);
    assert_eq!(run.weights.len(), expected.weights.len(), "{what}");
    for (name, weight) in &run.weights {
        let (Buffer::F64(found), Buffer::F64(expected)) = (weight, &expected.weights[name]) else {
            panic!("{name} is not in f64");
        };
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-10, "{name} of {what}: {found} {expected}");
        }
    }
    let run = train(&planned(Precision::Single), options);
    let expected = train(&alone(work, Precision::Single), options);
    assert_close_losses(&run, &expected, 1e-5, &what);
    let again = train(&planned(Precision::Single), options);
    assert_eq!(bits(&run), bits(&again), "{what} repeats");
    assert_eq!(run.weights, again.weights, "{what} repeats");
    run
}

fn bits(report: &RunReport) -> Vec<u64> {
    report.losses().iter().map(|loss| loss.to_bits()).collect()
}

fn with(ranks: usize, data: u32, zero: u32, tied: bool) -> ModelWork {
    let mut work = work(ranks, 8 / data as usize);
    (work.layout.data, work.layout.zero, work.model.tied) = (data, zero, tied);
    work
}

#[test]
fn two_way_placements_and_tied_tables_train_as_one_rank() {
    for (ranks, tied) in [(2, false), (4, false), (2, true), (4, true)] {
        for name in ["chimera", "dualpipe"] {
            assert_trains_as_one_rank(&with(ranks, 1, 0, tied), name, &options(20));
        }
    }
    for name in ["1f1b", "interleaved-1f1b", "zb-v"] {
        assert_trains_as_one_rank(&with(2, 1, 0, true), name, &options(20));
    }
}

/// The last stage has the table too, for the later tokens (MTP); its head is its own but where tables are tied.
#[test]
fn tables_of_multi_token_prediction_train_as_one_rank() {
    for (ranks, data, zero, tied, name) in [
        (2, 1, 0, false, "1f1b"),
        (2, 1, 0, false, "zb-v"),
        (4, 1, 0, true, "interleaved-1f1b"),
        (2, 2, 1, false, "zb-h1"),
        (2, 2, 1, true, "dualpipe"),
        (4, 1, 0, false, "chimera"),
    ] {
        let mut work = with(ranks, data, zero, tied);
        work.model.variant.multi_token = 2;
        let run = assert_trains_as_one_rank(&work, name, &options(5));
        assert!(run.weights.contains_key("model.layers.9.eh_proj.weight"), "behind the model's eight");
    }
}

#[test]
fn replicas_train_as_one_rank_with_and_without_a_share_of_the_optimizer() {
    for (ranks, data, zero, name) in
        [(1, 2, 0, "1f1b"), (1, 4, 1, "gpipe"), (2, 2, 0, "zb-h1"), (2, 4, 1, "1f1b"), (4, 2, 1, "zb-v")]
    {
        assert_trains_as_one_rank(&with(ranks, data, zero, false), name, &options(20));
    }
    assert_trains_as_one_rank(&with(2, 2, 1, true), "1f1b", &options(20));
    assert_trains_as_one_rank(&with(2, 2, 1, false), "dualpipe", &options(20));
}

/// SGD with and without momentum and Muon, over stages, replicas, both ends of a tied table, and shards of the state where
/// the optimizer works by element.
#[test]
fn other_optimizers_train_as_one_rank() {
    for (optimizer, ranks, data, zero, tied, name) in [
        (Optimizer::Sgd, 2, 1, 0, false, "1f1b"),
        (Optimizer::Sgd, 2, 2, 1, false, "zb-h1"),
        (Optimizer::SgdMomentum, 2, 2, 0, true, "1f1b"),
        (Optimizer::SgdMomentum, 2, 2, 1, false, "zb-v"),
        (Optimizer::Muon, 4, 1, 0, true, "1f1b"),
        (Optimizer::Muon, 2, 2, 0, false, "zb-h1"),
    ] {
        let mut work = with(ranks, data, zero, tied);
        work.layout.optimizer = optimizer;
        let run = assert_trains_as_one_rank(&work, name, &options(20));
        let usual = train(&published(&with(ranks, data, zero, tied), name, Precision::Single).unwrap(), &options(20));
        assert_ne!(run.weights, usual.weights, "{} is not AdamW", optimizer.name());
        let [first, last] = [run.losses()[0], run.losses()[19]];
        assert!(last < first, "{}: {first} {last}", optimizer.name());
    }
}

/// What an optimizer keeps is what the plan says, to the byte: nothing, one value of each element, and in Muon one of the
/// matrices of layers and two of all else.
#[test]
fn optimizers_keep_their_bytes() {
    let held = |optimizer| {
        let mut work = with(2, 1, 0, false);
        work.layout.optimizer = optimizer;
        let workload = published(&work, "1f1b", Precision::Single).expect("it exists");
        let report = train(&workload, &options(1));
        report.memory.iter().map(|memory| memory.persistent_bytes).collect::<Vec<u64>>()
    };
    let [adamw, sgd, momentum, muon] =
        [Optimizer::AdamW, Optimizer::Sgd, Optimizer::SgdMomentum, Optimizer::Muon].map(held);
    for rank in 0..2 {
        // Weight, gradient and two moments, all in f32.
        assert_eq!((sgd[rank], momentum[rank]), (adamw[rank] / 2, adamw[rank] / 4 * 3), "rank {rank}");
        assert!(momentum[rank] < muon[rank] && muon[rank] < adamw[rank], "rank {rank}: {}", muon[rank]);
    }
}

/// A run goes on from a checkpoint of another layout, with what its optimizer remembers.
#[test]
fn other_optimizers_go_on_by_another_layout() {
    for (optimizer, layouts) in [
        (Optimizer::Sgd, &[(2, 1, 0), (1, 2, 1)][..]),
        (Optimizer::SgdMomentum, &[(2, 1, 0), (1, 2, 1), (2, 2, 1)]),
        (Optimizer::Muon, &[(2, 1, 0), (4, 1, 0), (1, 2, 0)]),
    ] {
        let planned = |(ranks, data, zero): (usize, u32, u32)| {
            let mut work = with(ranks, data, zero, false);
            work.layout.optimizer = optimizer;
            published(&work, "1f1b", Precision::Double).expect("it exists")
        };
        common::resumes_on_any(layouts, planned, 6);
    }
}

/// Muon takes whole matrices, and Adafactor is planned only.
#[test]
fn what_optimizers_cannot_is_refused_before_a_run() {
    let refused = |optimizer, data, context, zero| {
        let mut work = with(2, data, zero, false);
        (work.layout.optimizer, work.layout.form.context) = (optimizer, context);
        let workload = published(&work, "1f1b", Precision::Single).expect("it exists");
        match run(&workload, &options(1), &mut Silent) {
            Err(RunError::Refused(refusal)) => refusal.to_string(),
            _ => panic!("it is refused"),
        }
    };
    for (data, context) in [(2, 1), (1, 2)] {
        assert!(refused(Optimizer::Muon, data, context, 1).contains("updates whole matrices only"));
    }
    assert!(refused(Optimizer::Adafactor, 1, 1, 0).contains("which the runner does not have"));
}

/// Whatever the cut, the norm is the same number: so pure pipelines clip to the same bits.
#[test]
fn clipping_is_the_same_for_every_cut() {
    let clipped = RunOptions { clip_norm: Some(0.25), ..options(20) };
    let free = train(&common::one_by_one(&work(1, 8), Precision::Single), &options(20));
    let expected = train(&common::one_by_one(&work(1, 8), Precision::Single), &clipped);
    assert_ne!(bits(&free), bits(&expected), "the norm is more than this");
    for (ranks, name) in [(2, "1f1b"), (4, "zb-v"), (4, "interleaved-1f1b")] {
        let run = train(&published(&work(ranks, 8), name, Precision::Single).expect("it exists"), &clipped);
        assert_eq!(bits(&run), bits(&expected), "{name}");
        assert_eq!(run.weights, expected.weights, "{name}");
    }
    assert_trains_as_one_rank(&with(2, 1, 0, true), "dualpipe", &clipped);
    assert_trains_as_one_rank(&with(2, 2, 0, false), "1f1b", &clipped);
    assert_trains_as_one_rank(&with(2, 4, 1, true), "1f1b", &clipped);
}

#[test]
fn a_limit_beyond_the_norm_changes_nothing() {
    let workload = published(&work(2, 4), "1f1b", Precision::Single).expect("it exists");
    let free = train(&workload, &options(3));
    let clipped = train(&workload, &RunOptions { clip_norm: Some(1e6), ..options(3) });
    assert_eq!((bits(&free), free.weights), (bits(&clipped), clipped.weights));
}

#[test]
fn a_share_of_the_optimizer_takes_its_share_of_the_bytes() {
    let held = |data: u32, zero: u32| -> Vec<u64> {
        let report =
            train(&published(&with(2, data, zero, false), "1f1b", Precision::Single).expect("it"), &options(1));
        report.memory.iter().map(|memory| memory.persistent_bytes).collect()
    };
    let whole = held(4, 0);
    assert_eq!(whole.len(), 8, "2 ranks of 4 replicas");
    let shared = held(4, 1);
    for (rank, (whole, shared)) in whole.iter().zip(&shared).enumerate() {
        // Weight, gradient and two moments, all in f32: half of it is the optimizer's, and 3 of 4 parts of that go.
        // A weight whose elements do not divide gives some members one more: here none is left over.
        assert_eq!(*shared, whole / 2 + whole / 8, "rank {rank}");
    }
}
