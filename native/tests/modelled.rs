//! Runs that wait for planned times: plans of typed costs go through the same ranks, transports and traces.

mod common;

use common::{options, train};
use pipeplan::runner::{RunOptions, Workload};
use pipeplan::transport::threads::ThreadOptions;
use pipeplan_core::plan::planner;
use pipeplan_core::problem::Statement;
use pipeplan_core::program::lower::{Lowering, lower_as};
use pipeplan_core::spec::Spec;
use pipeplan_core::trace::Trace;
use serde_json::json;

fn plan(ranks: usize, microbatches: usize, name: &str) -> pipeplan_core::plan::Plan {
    let problem = json!({
        "ranks": ranks, "microbatches": microbatches, "placement": if name == "chimera" { "two-way" } else { "linear" },
        "stages": { "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45,
                    "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
        "transfer_ns": 5, "static_bytes": 7
    });
    let statement = Statement::read(&problem).expect("a problem");
    planner::plan(&Spec::typed(statement), name).expect("a plan")
}

/// A busy machine makes a run longer, never shorter; how much longer a quiet one takes is a figure to
/// report, not to test.
#[test]
fn a_plan_of_typed_costs_takes_the_planned_time() {
    for (ranks, name) in [(1, "1f1b"), (4, "zb-h1"), (8, "1f1b"), (4, "chimera")] {
        let plan = plan(ranks, 8, name);
        let workload = Workload::of_planned_times(&plan, Some(40_000));
        let report = train(&workload, &RunOptions { transport: ThreadOptions::default(), ..options(3) });
        assert!(report.losses().is_empty());
        let (measured, planned) = (report.makespan_ns, plan.prediction.makespan_ns);
        println!("{name} on {ranks}: {measured} of {planned} ns, {:?}", report.overhead);
        assert!(measured >= planned, "{name} on {ranks} ranks: {measured} of {planned}");
        for (rank, memory) in report.memory.iter().enumerate() {
            let counted = memory.persistent_bytes + memory.activation_bytes;
            assert_eq!(counted, plan.prediction.peak_bytes[rank], "{name} on {ranks} ranks, rank {rank}");
        }
        let trace = Trace::from_json(&report.trace.to_json()).expect("the trace reads back");
        assert_eq!((trace.backend.as_str(), trace.steps.len()), ("modelled", 3));
        let ops: Vec<usize> = trace.steps[0].timeline().rows.iter().map(Vec::len).collect();
        let planned: Vec<usize> = plan.schedule.rows.iter().map(Vec::len).collect();
        assert_eq!(ops, planned);
    }
}

/// With ops of some milliseconds 32 ranks share a core or two, since they only wait. A step cannot be shorter than
/// planned; how much longer it is depends on what else the machine does.
fn thirty_two_ranks() -> (u64, u64) {
    let plan = plan(32, 8, "1f1b");
    let report = train(&Workload::of_planned_times(&plan, Some(150_000)), &options(4));
    let makespans = report.trace.steps.iter().map(|step| step.timeline().makespan_ns());
    let (measured, planned) = (makespans.min().expect("steps"), plan.prediction.makespan_ns);
    let overhead = report.overhead.expect("ops");
    println!("{measured} of {planned} ns, {overhead:?}");
    // 16 ops on each of 32 ranks in the three steps after the first.
    assert_eq!(overhead.ops, 3 * (32 * 16 - 1), "all but the first op of rank 0, which waits for nothing");
    assert_eq!(report.trace.overhead_ns, Some(overhead.mean_ns.round() as u64));
    (measured, planned)
}

#[test]
fn thirty_two_ranks_share_the_cores_there_are() {
    let (measured, planned) = thirty_two_ranks();
    assert!(measured >= planned, "{measured} of {planned} ns");
    // One after the other the ops would take six times as long.
    assert!(measured < 4 * planned, "{measured} of {planned} ns: the ranks do not wait beside one another");
}

#[test]
#[ignore = "needs a machine that does nothing else: cargo test --release -p pipeplan --test modelled -- --ignored"]
fn thirty_two_ranks_take_the_planned_time_within_two_per_cent() {
    let (measured, planned) = thirty_two_ranks();
    assert!((planned..planned * 102 / 100).contains(&measured), "{measured} of {planned} ns");
}

/// Runs in which transfers are placed and carried otherwise, so that ranks wait for each other besides: the time of the
/// least disturbed step, the time predicted, and that of the order alone. Stages of two sizes, so that whoever is done
/// first waits for whoever is not.
fn programs() -> Vec<[u64; 3]> {
    let stage =
        |times: u64| json!({ "forward_ns": 25 * times, "backward_input_ns": 25 * times, "backward_weight_ns": 20 });
    let problem = json!({
        "ranks": 4, "microbatches": 6, "placement": "linear", "transfer_ns": 5,
        "stages": [stage(1), stage(2), stage(1), stage(2)],
    });
    let plan =
        |name| planner::plan(&Spec::typed(Statement::read(&problem).expect("a problem")), name).expect("a plan");
    let mut times = Vec::new();
    for (name, lowering, slots) in [
        ("gpipe", Lowering::InPieces, 0),
        ("1f1b", Lowering::InPieces, 1),
        ("1f1b", Lowering::ReceiveFirst, 0),
        ("eager-1f1b", Lowering::ReceiveFirst, 1),
        ("zb-h1", Lowering::Grouped, 0),
        ("zb-h1", Lowering::Overlapped { prefetch: 1 }, 0),
    ] {
        let plan = plan(name);
        let program = lower_as(&plan.problem, &plan.schedule, lowering).expect("lowers");
        let workload = Workload { program, ..Workload::of_planned_times(&plan, Some(80_000)) };
        let transport = ThreadOptions { slots, ..ThreadOptions::default() };
        let report = train(&workload, &RunOptions { transport, ..options(5) });
        let measured = report.trace.steps.iter().map(|step| step.timeline().makespan_ns()).min().expect("steps");
        let (predicted, order) = (report.predicted_makespan_ns, plan.prediction.makespan_ns);
        println!("{name} {lowering}, {slots} slots: {measured} of {predicted} ns, {order} ns for the order alone");
        times.push([measured, predicted, order]);
    }
    times
}

#[test]
fn programs_take_no_less_than_their_transfers_cost() {
    let times = programs();
    for [measured, predicted, order] in &times {
        assert!(measured >= predicted && predicted >= order, "{measured} of {predicted} ns, {order} for the order");
    }
    let dearer = times.iter().filter(|[_, predicted, order]| *predicted > order * 102 / 100).count();
    assert!(dearer > 0, "transfers that cost nothing prove little: {times:?}");
}

#[test]
#[ignore = "needs a machine that does nothing else: cargo test --release -p pipeplan --test modelled -- --ignored"]
fn programs_take_the_predicted_time_within_two_per_cent() {
    for [measured, predicted, _] in programs() {
        assert!((predicted..predicted * 102 / 100).contains(&measured), "{measured} of {predicted} ns");
    }
}

/// Replicas whose documents differ wait for their own times: an op takes at least what its replica says, and the overhead is of
/// these times.
#[test]
fn replicas_with_other_documents_wait_for_their_own_times() {
    let spec = "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n\
                data = 2\n[training]\nmicrobatches = 2\nsequence = 512\n\
                documents = [[[512], [512]], [[8, 8], [8, 8]]]\n";
    let plan = planner::plan(&Spec::read(spec).expect("a spec"), "1f1b").expect("a plan");
    let planned: Vec<u64> = plan.replicas.iter().map(|replica| replica.makespan_ns).collect();
    assert!(planned[0] > planned[1], "{planned:?}");
    let workload = Workload::of_planned_times(&plan, None);
    let report = train(&workload, &options(3));
    let trace = Trace::from_json(&report.trace.to_json()).expect("the trace reads back");
    for (replica, planned) in plan.replicas.iter().enumerate() {
        let problem = plan.problem.with_factors(planned.factors.clone()).expect("of the plan");
        // Of a step that nothing disturbs, the ops together take what is planned; of every step, at least that.
        let busy = |step: &pipeplan_core::trace::StepTrace| -> u64 {
            let spans = step.rows[2 * replica..2 * replica + 2].iter().flatten();
            let computes = spans.filter(|span| matches!(span.step, pipeplan_core::program::Step::Compute(_)));
            computes.map(|span| span.end_ns - span.start_ns).sum()
        };
        let own: u64 = plan.schedule.rows.iter().flatten().map(|op| problem.duration(*op)).sum();
        let least = trace.steps.iter().map(busy).min().expect("steps");
        println!("replica {replica}: {least} of {own} ns");
        assert!(least >= own - own / 100, "replica {replica}: {least} of {own}");
        let slowest: u64 = plan.schedule.rows.iter().flatten().map(|op| plan.problem.duration(*op)).sum();
        assert!(
            replica == 0 || least < slowest,
            "replica {replica} waits for the times of the slowest: {least}, {slowest}"
        );
    }
}

#[test]
fn copies_of_a_pipeline_wait_as_it_does() {
    let spec = "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n\
                data = 3\n[training]\nmicrobatches = 4\nsequence = 64\n";
    let plan = planner::plan(&Spec::read(spec).expect("a spec"), "1f1b").expect("a plan");
    let report = train(&Workload::of_planned_times(&plan, Some(1)), &options(2));
    assert_eq!((report.replicas, report.memory.len()), (3, 6));
    let trace = Trace::from_json(&report.trace.to_json()).expect("the trace reads back");
    assert_eq!((trace.replicas, trace.steps[1].rows.len()), (3, 6));
    assert_eq!(trace.row_name(5, 6), "replica 2, rank 1");
    let tail = plan.step().expect("of a model").step_ns - plan.prediction.makespan_ns;
    for row in &trace.steps[1].rows {
        let end = row.last().expect("the optimizer's step");
        assert_eq!(end.step.to_string(), "OPTIMIZER");
        assert!(end.end_ns - end.start_ns > tail / 2, "the planned time after the last op: {end:?}, {tail} ns");
    }
}

#[test]
fn without_a_model_only_planned_times_run() {
    let refusal = Workload::of_plan(&plan(2, 2, "gpipe"), None).expect_err("there is no model");
    assert!(refusal.to_string().contains("--backend modelled"), "{refusal}");
}
