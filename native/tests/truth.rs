//! Whether a planned run trains the same model as a run on one rank that takes one microbatch after the
//! other.

mod common;

use common::{one_by_one, options, ordered, problem, published, train, work};
use pipeplan::runner::{Precision, RunReport};
use pipeplan::transport::Buffer;
use pipeplan_core::graph::form::{AttentionForm, Form, Offload, Recompute};
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::schedule;

fn assert_same_bits(run: &RunReport, expected: &RunReport, what: &str) {
    let bits = |report: &RunReport| -> Vec<u64> { report.losses().iter().map(|loss| loss.to_bits()).collect() };
    assert_eq!(bits(run), bits(expected), "losses of {what}:\n{:?}\n{:?}", run.losses(), expected.losses());
    assert_eq!(run.weights.len(), expected.weights.len(), "{what}");
    for (name, weight) in &run.weights {
        assert_eq!(weight, &expected.weights[name], "{name} of {what}");
    }
}

/// Every generator on 1, 2 and 4 ranks, 20 steps: in f32 the same losses and final weights, bit for bit,
/// where every weight gathers its gradients in the order of microbatches; else in f64 within 1e-10.
#[test]
fn every_published_schedule_trains_as_one_rank_does() {
    let single = train(&one_by_one(&work(1, 8), Precision::Single), &options(20));
    let double = train(&one_by_one(&work(1, 8), Precision::Double), &options(20));
    assert_eq!(single.losses().len(), 20);
    let mut table = String::new();
    for published_schedule in schedule::published() {
        let name = published_schedule.name;
        table.push_str(&format!("{name:<18}"));
        for ranks in [1, 2, 4] {
            let work = work(ranks, 8);
            let what = format!("{name} on {ranks} ranks");
            let outcome = match published(&work, name, Precision::Single) {
                None => "absent",
                Some(workload)
                    if *workload.problem.placement() != Placement::Bidirectional
                        && gathers_in_order(&workload.program) =>
                {
                    assert_same_bits(&train(&workload, &options(20)), &single, &what);
                    "same bits"
                }
                Some(_) => {
                    let workload = published(&work, name, Precision::Double).expect("as in f32");
                    assert_close(&train(&workload, &options(20)), &double, &what);
                    "within 1e-10"
                }
            };
            table.push_str(&format!(" {outcome:<13}"));
        }
        table.push('\n');
    }
    println!("{table}");
    for name in ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v"] {
        let row = table.lines().find(|row| row.split_whitespace().next() == Some(name)).expect("a row");
        assert_eq!(row.matches("same bits").count(), 3, "{table}");
    }
}

/// Losses and weights in f64 within 1e-10. Says whether any weight differs at all.
fn assert_close(run: &RunReport, expected: &RunReport, what: &str) -> bool {
    for (found, expected) in run.losses().iter().zip(expected.losses()) {
        assert!((found - expected).abs() < 1e-10, "{what}: {found} {expected}");
    }
    assert_eq!(run.weights.len(), expected.weights.len(), "{what}");
    let mut differ = false;
    for (name, weight) in &run.weights {
        let (Buffer::F64(found), Buffer::F64(expected)) = (weight, &expected.weights[name]) else {
            panic!("{name} is not in f64");
        };
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-10, "{name} of {what}: {found} {expected}");
            differ |= found != expected;
        }
    }
    differ
}

/// Whether every stage of `program` runs its backwards in the order of microbatches.
fn gathers_in_order(program: &pipeplan_core::program::Program) -> bool {
    use pipeplan_core::problem::op::OpKind;
    use pipeplan_core::program::Step;
    program.rows.iter().all(|row| {
        let mut next = std::collections::BTreeMap::new();
        row.iter().all(|step| match step {
            Step::Compute(op) if op.kind() != OpKind::F => {
                // A BW gathers what a B does (gains) and what a W does (matrices).
                let jobs: &[u8] = match op.kind() {
                    OpKind::B => &[0],
                    OpKind::W => &[1],
                    _ => &[0, 1],
                };
                jobs.iter().all(|job| {
                    let next: &mut usize = next.entry((op.stage(), *job)).or_default();
                    *next += 1;
                    *next == op.microbatch() + 1
                })
            }
            _ => true,
        })
    })
}

#[test]
fn the_loss_falls() {
    let report = train(&one_by_one(&work(1, 8), Precision::Single), &options(60));
    let losses = report.losses();
    // Before training every byte is as likely as any other.
    assert!((losses[0] - 256f64.ln()).abs() < 0.1, "{}", losses[0]);
    assert!(losses[59] < losses[0] - 1.0, "{losses:?}");
}

/// Backwards in the opposite order of microbatches, in f64: another rounding of the same sums.
#[test]
fn another_order_of_microbatches_agrees_in_double_precision() {
    let work = work(2, 4);
    let expected = train(&one_by_one(&work, Precision::Double), &options(20));
    let problem = problem(&work, Placement::Linear, 1).expect("the model can be cut");
    let rows = ["0F0 0F1 0F2 0F3 0B3 0B2 0W3 0BW1 0B0 0W2 0W0", "1F0 1F1 1F2 1F3 1BW3 1B2 1B1 1W1 1BW0 1W2"];
    let schedule = Schedule::from_text_rows(&rows).expect("ops");
    let report = train(&ordered(&work, &problem, &schedule, Precision::Double), &options(20));
    let differ = assert_close(&report, &expected, "backwards from the last microbatch");
    assert!(differ, "the order was meant to be another one");
}

#[test]
fn a_run_repeats_bit_for_bit_and_its_seed_matters() {
    let workload = published(&work(2, 4), "1f1b", Precision::Single).expect("it exists");
    let first = train(&workload, &options(3));
    assert_same_bits(&train(&workload, &options(3)), &first, "the second run");
    let other = pipeplan::runner::RunOptions { seed: 43, ..options(3) };
    assert_ne!(train(&workload, &other).losses(), first.losses());
}

/// Messages in groups between ops, or overlapped with compute at several depths of prefetch, change nothing that is
/// computed.
#[test]
fn wherever_transfers_are_placed_training_is_the_same() {
    use pipeplan_core::program::lower::{Lowering, lower_as};
    for name in ["1f1b", "interleaved-1f1b", "zb-v"] {
        let workload = published(&work(4, 8), name, Precision::Single).expect("it exists");
        let expected = train(&workload, &options(4));
        let ops = workload.program.rows.iter().map(|row| {
            let op = |step: &pipeplan_core::program::Step| match step {
                pipeplan_core::program::Step::Compute(op) => Some(*op),
                _ => None,
            };
            row.iter().filter_map(op).collect()
        });
        let schedule = Schedule::of(ops.collect());
        let overlapped = [0, 1, 4].map(|prefetch| Lowering::Overlapped { prefetch });
        for lowering in overlapped.into_iter().chain([Lowering::Grouped]) {
            let program = lower_as(&workload.problem, &schedule, lowering).expect("lowers");
            let placed = pipeplan::runner::Workload { program, ..workload.clone() };
            assert_same_bits(&train(&placed, &options(4)), &expected, &format!("{name}, {lowering}"));
        }
    }
}

/// What is computed again is computed to the same bits, dropout included, on however many ranks, and what waits in host
/// memory comes back as it was.
#[test]
fn recomputing_and_dropout_change_no_bit_between_partitions() {
    for attention in [AttentionForm::Flash, AttentionForm::Materialised] {
        for dropout in [false, true] {
            let with = |ranks: usize, recompute: Recompute, offload: Offload| {
                let mut work = work(ranks, 4);
                work.layout.form = Form { attention, dropout, recompute, offload, ..work.layout.form };
                work
            };
            let expected =
                train(&one_by_one(&with(1, Recompute::None, Offload::None), Precision::Single), &options(4));
            for (name, recompute, offload) in [
                ("1f1b", Recompute::Full, Offload::None),
                ("zb-h1", Recompute::Selective, Offload::None),
                ("zb-v", Recompute::Cheap, Offload::None),
                ("1f1b", Recompute::None, Offload::All),
                ("zb-v", Recompute::None, Offload::First(1)),
                ("zb-h1", Recompute::Full, Offload::All),
            ] {
                let workload = published(&with(2, recompute, offload), name, Precision::Single).expect("it exists");
                let what = format!("{name} with {attention:?}, dropout {dropout}, {recompute:?}, {offload:?}");
                assert_same_bits(&train(&workload, &options(4)), &expected, &what);
            }
        }
    }
}
