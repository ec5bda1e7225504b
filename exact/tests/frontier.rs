//! Optima of small problems that another solver (OR-tools CP-SAT) has proved: `own_exact_frontier` of
//! `tests/reference/paper_tables.json`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pipeplan_core::plan::planner;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Problem, Statement};
use pipeplan_core::spec::Spec;
use pipeplan_exact::{Budget, prove, solve};
use serde_json::{Value, json};

fn tables() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/reference/paper_tables.json");
    let text = std::fs::read_to_string(path).expect("the reference tables");
    serde_json::from_str(&text).expect("JSON")
}

fn problem(value: &Value, placement: Placement) -> Problem {
    Statement::read(value).expect("a problem").problem(placement).expect("a placement that fits")
}

fn proved(problem: &Problem) -> u64 {
    // Steps, not seconds: the test must not depend on the machine. The hardest row takes some 20,000.
    let budget = Budget { steps: Some(400_000), ..Budget::default() };
    let exact = solve(problem, None, &budget).expect("a schedule");
    assert!(exact.optimal, "{} found, only {} proved", exact.value_ns, exact.lower_ns);
    exact.value_ns
}

#[test]
fn unit_times_four_ranks_eight_microbatches() {
    let tables = tables();
    let by_limit = &tables["own_exact_frontier"]["linear_unit"]["optimal_cost_by_limit_K"];
    for (limit, cost) in by_limit.as_object().expect("costs by limit") {
        let statement = json!({
            "ranks": 4, "microbatches": 8, "objective": "longest_span",
            "stages": { "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1,
                        "forward_bytes": 1, "backward_input_bytes": 0, "backward_weight_bytes": -1 },
            "limit_bytes": limit.parse::<u64>().expect("a limit"),
        });
        let expected = cost.as_f64().expect("a cost") as u64;
        assert_eq!(proved(&problem(&statement, Placement::Linear)), expected, "limit {limit}");
    }
}

#[test]
fn real_costs_four_ranks_eight_microbatches() {
    let tables = tables();
    let bytes = |name: &Value| {
        let rows = tables["zero_bubble_T3_T4_T5_T9"]["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["model"] == *name).expect("the model's row");
        (row["M_B_rel"].as_i64().expect("bytes"), row["M_W_rel"].as_i64().expect("bytes"))
    };
    let rows = tables["own_exact_frontier"]["realistic_p4_m8"].as_array().expect("rows");
    for row in rows {
        let (held_to_b, held_to_w) = bytes(&row["name"]);
        let statement = json!({
            "ranks": 4, "microbatches": 8, "objective": "longest_span", "transfer_ns": row["c"],
            "stages": { "forward_ns": row["f"], "backward_input_ns": row["b"], "backward_weight_ns": row["w"],
                        "forward_bytes": held_to_b, "backward_input_bytes": held_to_w - held_to_b,
                        "backward_weight_bytes": -held_to_w },
            "limit_bytes": row["lim"].as_f64().expect("a limit") as i64 * held_to_b,
        });
        let found = proved(&problem(&statement, Placement::Linear));
        let value = |key: &str| row[key].as_f64().expect("a value") as u64;
        // Two rows were left open there, with a schedule and a bound.
        assert!((value("lb")..=value("obj")).contains(&found), "{found} for {row}");
    }
}

#[test]
fn unit_times_on_a_v() {
    let statement = json!({
        "ranks": 4, "chunks": 2, "placement": "v", "microbatches": 8, "objective": "longest_span",
        "stages": { "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1,
                    "forward_bytes": 1, "backward_input_bytes": 0, "backward_weight_bytes": -1 },
        "limit_bytes": 8,
    });
    assert_eq!(proved(&problem(&statement, Placement::V)), 48);
}

/// Of 256 microbatches the solver's first step takes up to a minute, in which it looks at no flag.
#[test]
fn a_stop_is_heeded_within_a_step_of_the_solver() {
    let statement = json!({
        "ranks": 4, "microbatches": 256,
        "stages": { "forward_ns": 1000, "backward_input_ns": 1100, "backward_weight_ns": 900,
                    "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
    });
    let spec = Spec::typed(Statement::read(&statement).expect("a problem"));
    let plan = planner::plan(&spec, "1f1b").expect("a plan");
    let stop = Arc::new(AtomicBool::new(false));
    let budget = Budget { stop: Some(stop.clone()), ..Budget::default() };
    let mut said = 0;
    let proof = prove(&plan, &budget, &mut |_| {
        said += 1;
        stop.store(said > 30, Ordering::Relaxed);
    });
    let proof = proof.expect("what is known so far");
    assert!(proof.value_ns >= proof.lower_ns && proof.better.is_none());
    // Ten words a second, in half a second: not the hundreds of a whole step.
    assert!(said < 60, "the watcher was asked {said} times");
}
