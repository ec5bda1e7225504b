//! Runs that wait for planned times: plans of typed costs go through the same ranks, transports and traces.

mod common;

use common::{options, train};
use pipeplan::runner::{RunOptions, Workload};
use pipeplan::transport::threads::ThreadOptions;
use pipeplan_core::planner;
use pipeplan_core::problem::Statement;
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
        println!("{name} on {ranks}: {measured} of {planned} ns, {:?} ns a step", report.overhead_ns_per_step());
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

#[test]
fn without_a_model_only_planned_times_run() {
    let refusal = Workload::of_plan(&plan(2, 2, "gpipe"), None).expect_err("there is no model");
    assert!(refusal.to_string().contains("--backend modelled"), "{refusal}");
}
