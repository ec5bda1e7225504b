//! Plans whose schedules copy activations to the host and back: the same numbers as without copies, bytes as planned, and times
//! as planned.

mod common;

use common::{bits, options, ordered, train, work};
use pipeplan::backend::{Backend, BackendError, Store};
use pipeplan::runner::published_workloads::problem;
use pipeplan::runner::{Device, Precision, RunError, RunOptions, Silent, Workload, run};
use pipeplan::transport::threads::ThreadOptions;
use pipeplan_core::graph::form::{Offload, Recompute};
use pipeplan_core::model::{Dtype, Family};
use pipeplan_core::plan::planner;
use pipeplan_core::problem::copies::{CopyWay, Moved};
use pipeplan_core::problem::{Problem, Schedule, Statement};
use pipeplan_core::schedule::find;
use pipeplan_core::search::within_limits;
use pipeplan_core::simulate::timeline::{copied_bytes, schedule_peak_bytes};
use pipeplan_core::spec::{ModelWork, Spec};
use serde_json::json;

/// The problem of `work` as `name`, with half of the room for activations that the schedule takes; and that schedule with its
/// copies.
fn half(work: &ModelWork, name: &str) -> (Problem, Schedule) {
    let published = find(name).expect("published");
    let (placement, chunks) = (published.shape)(work.chunks as usize);
    let free = problem(work, placement, chunks).expect("the model can be cut");
    let order = published.build(&free).expect("it exists");
    // Of each rank the least of a few limits with which it can run, if it has copies then: a rank that holds one microbatch
    // has nothing to copy. What one rank copies is placed for the times without copies, so it does not depend on others.
    let of = |rank: usize| {
        let fixed = free.static_bytes(rank);
        let limit = |eighths: u64| fixed + (schedule_peak_bytes(&free, &order, rank) - fixed) * eighths / 8;
        (3..8).map(limit).find(|limit| {
            let limits = (0..free.ranks()).map(|other| (other == rank).then_some(*limit)).collect();
            within_limits(&free.with_limits(limits), order.clone()).has_copies()
        })
    };
    let limited = free.with_limits((0..free.ranks()).map(of).collect());
    let copied = within_limits(&limited, order);
    assert!(copied.has_copies(), "{name} has no copies");
    (limited, copied)
}

/// In several schedules, with B and W apart and fused, several chunks, recomputation, tensor parallel, experts and in bf16:
/// losses and weights are those of the plan without copies, bit for bit, and each rank holds the bytes of the plan, on the
/// device and on the host.
#[test]
fn copies_change_no_bit_and_hold_what_is_planned() {
    type Change = fn(&mut ModelWork);
    let cases: [(&str, usize, Change); 9] = [
        ("1f1b", 4, |_| {}),
        ("gpipe", 2, |work| work.model.family = Family::Gpt),
        ("zb-h1", 4, |_| {}),
        ("zb-v", 2, |_| {}),
        ("interleaved-1f1b", 2, |_| {}),
        ("chimera", 4, |_| {}),
        ("1f1b", 4, |work| work.layout.form.recompute = Recompute::Cheap),
        ("1f1b", 4, |work| work.layout.form.tensor = 2),
        ("1f1b", 4, |work| work.dtype = Dtype::Bf16),
    ];
    for (name, ranks, change) in cases {
        let mut work = work(ranks, 8);
        change(&mut work);
        let what = format!("{name} on {ranks} ranks, {:?}, {:?}", work.layout.form, work.dtype);
        let plain = problem_of(&work, name);
        work.layout.form.offload = Offload::Scheduled;
        let (limited, copied) = half(&work, name);
        let precision = (work.dtype == Dtype::F32).then_some(Precision::Single);
        let planned = |problem: &Problem, schedule: &Schedule| {
            pipeplan::runner::published_workloads::ordered(&work, problem, schedule, precision)
                .unwrap_or_else(|error| panic!("{what}: {error}"))
        };
        let without = train(&planned(&plain.0, &plain.1), &options(4));
        let workload = planned(&limited, &copied);
        let with = train(&workload, &options(4));
        assert_eq!(bits(&with), bits(&without), "losses of {what}");
        assert_eq!(with.weights, without.weights, "weights of {what}");
        for (at, memory) in with.memory.iter().enumerate() {
            let rank = at % ranks;
            let peak = schedule_peak_bytes(&limited, &copied, rank) - limited.static_bytes(rank);
            assert_eq!(memory.activation_bytes, peak, "rank {rank} of {what}");
            let on_host = copied_bytes(&limited, copied.copies_of(rank));
            assert_eq!((memory.host_bytes, workload.host_bytes()[rank]), (on_host, on_host), "rank {rank} of {what}");
        }
        for rank in (0..ranks).filter(|rank| !copied.copies_of(*rank).is_empty()) {
            let held = [&with, &without].map(|run| run.memory[rank].activation_bytes);
            assert!(held[0] < held[1], "rank {rank} of {what} holds {} of {}", held[0], held[1]);
        }
    }
}

fn problem_of(work: &ModelWork, name: &str) -> (Problem, Schedule) {
    let published = find(name).expect("published");
    let (placement, chunks) = (published.shape)(work.chunks as usize);
    let problem = problem(work, placement, chunks).expect("the model can be cut");
    let order = published.build(&problem).expect("it exists");
    (problem, order)
}

/// A plan of typed costs with copies waits for them as planned.
#[test]
fn planned_times_wait_for_copies() {
    let problem = json!({
        "ranks": 4, "microbatches": 8, "placement": "linear", "limit_bytes": 8, "transfer_ns": 5,
        "stages": { "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45, "forward_bytes": 4,
                    "backward_input_bytes": -1, "backward_weight_bytes": -3, "offload_bytes": 4, "offload_ns": 40 },
    });
    let plan = planner::plan(&Spec::typed(Statement::read(&problem).expect("a problem")), "1f1b").expect("a plan");
    assert!(plan.schedule.has_copies());
    let workload = Workload::of_planned_times(&plan, Some(40_000));
    let report = train(&workload, &RunOptions { transport: ThreadOptions::default(), ..options(2) });
    let (measured, planned) = (report.makespan_ns, plan.prediction.makespan_ns);
    assert!(measured >= planned, "{measured} of {planned}");
    for (rank, memory) in report.memory.iter().enumerate() {
        let counted = memory.persistent_bytes + memory.activation_bytes;
        assert_eq!(counted, plan.prediction.peak_bytes[rank], "rank {rank}");
        assert_eq!(memory.host_bytes, copied_bytes(&plan.problem, plan.schedule.copies_of(rank)), "rank {rank}");
    }
    // The trace has each copy from its start to the end of the wait for it.
    let measured: Vec<usize> = report.trace.steps[0].timeline().copies.iter().map(Vec::len).collect();
    let planned: Vec<usize> = plan.schedule.copies.iter().map(Vec::len).collect();
    assert_eq!(measured, planned);
}

/// Cards have no such copies: a plan that needs them is refused before anything starts. One that fits without them runs.
#[test]
fn cards_refuse_copies() {
    let mut work = work(4, 8);
    work.layout.form.offload = Offload::Scheduled;
    let (limited, copied) = half(&work, "1f1b");
    let workload = ordered(&work, &limited, &copied, Precision::Single);
    let on_cards = RunOptions { device: Device::Emulated, ..options(1) };
    let refused = run(&workload, &on_cards, &mut Silent).expect_err("cards have no copies of the schedule");
    assert!(matches!(refused, RunError::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("--backend cpu"), "{refused}");
}

/// A copy of a microbatch that is not there ends in an error that names it.
#[test]
fn a_copy_of_nothing_is_an_error() {
    let problem = problem_of(&work(2, 2), "1f1b").0;
    let mut store = Store::default();
    let pace = pipeplan::backend::modelled::Pace { slowdown: 1, tail_ns: 0, start: std::time::Instant::now() };
    let mut backend = pipeplan::backend::modelled::Modelled::new(problem, 0, pace, &mut store);
    let moved = Moved { way: CopyWay::Reload, stage: 0, microbatch: 1 };
    let error = backend.wait_copy(moved, &mut store).expect_err("nothing was started");
    assert!(
        matches!(error, BackendError::CopyOutOfOrder { .. }) && error.to_string().contains("0RELOAD1"),
        "{error}"
    );
}
