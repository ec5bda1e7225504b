//! Plan files, judged from their JSON alone: what another program can rely on.

use pipeplan_core::plan::planner;
use pipeplan_core::program::lower::Lowering;
use pipeplan_core::spec::Spec;
use pipeplan_tests::judge::Problem;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Specs and problems of every kind that a person may write.
fn grid() -> Vec<(String, String)> {
    let mut grid = Vec::new();
    for example in ["tiny-llama.toml", "llama-2-70b.toml", "zero-bubble-1.5b.toml", "problem.json"] {
        let path = format!("{}/../examples/{example}", env!("CARGO_MANIFEST_DIR"));
        grid.push((example.to_string(), std::fs::read_to_string(path).unwrap()));
    }
    for (ranks, chunks, microbatches) in
        [(1, 1, 1), (1, 2, 3), (2, 1, 2), (3, 2, 5), (4, 2, 8), (4, 3, 6), (5, 1, 13)]
    {
        for hop in [0, 7] {
            let stage = |index: usize| {
                json!({ "forward_ns": 40 + index % 3, "backward_input_ns": 50 + index % 5, "backward_weight_ns": 30,
                        "forward_bytes": 6, "backward_input_bytes": -2, "backward_weight_bytes": -4,
                        "backward_input_workspace_bytes": 3,
                        "forward_exchange_ns": if chunks == 2 { 9 } else { 0 }, "backward_exchange_ns": 2 * (chunks % 2) })
            };
            let stages: Vec<Value> = (0..ranks * chunks).map(stage).collect();
            let problem = json!({ "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": "any",
                "stages": stages, "transfer_ns": hop, "static_bytes": 10, "limit_bytes": null,
                "overlap_permille": 40 * hop });
            grid.push((format!("P={ranks} V={chunks} M={microbatches} hop={hop}"), problem.to_string()));
        }
    }
    // Room for half of what 1F1B holds: the rest goes to the host.
    for (ranks, chunks, microbatches, placement) in [(4, 1, 8, "linear"), (2, 2, 6, "v"), (3, 2, 6, "looped")] {
        let problem = json!({ "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement,
            "stages": { "forward_ns": 40, "backward_input_ns": 50, "backward_weight_ns": 30, "forward_bytes": 6,
                        "backward_input_bytes": -2, "backward_weight_bytes": -4, "offload_bytes": 5, "offload_ns": 12 },
            "transfer_ns": 3, "limit_bytes": 3 * ranks * chunks });
        grid.push((format!("P={ranks} V={chunks} M={microbatches} {placement}, copies"), problem.to_string()));
    }
    grid
}

/// Everything that a plan file says, worked out again.
fn judge(name: &str, file: &str) {
    let file: Value = serde_json::from_str(file).unwrap();
    assert_eq!((&file["format"], &file["version"]), (&json!("pipeplan-plan"), &json!(1)), "{name}");
    let problem = Problem::read(&file["problem"]).unwrap_or_else(|why| panic!("{name}: {why}"));
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|row| row.as_str().unwrap().to_string()).collect()
    };
    let (rows, program) = (texts(&file["schedule"]["rows"]), texts(&file["program"]["rows"]));
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let pairs: Vec<Vec<usize>> = serde_json::from_value(file["schedule"]["pairs"].clone()).unwrap_or_default();
    let copies = file["schedule"].get("copies").map(texts).unwrap_or_default();
    let copies: Vec<&str> = copies.iter().map(String::as_str).collect();
    let verdict =
        problem.judge_schedule(&rows, &pairs, &copies).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    problem
        .judge_program(&rows, &program, &copies)
        .unwrap_or_else(|refusal| panic!("{name}: {refusal}\n{program:#?}"));
    let prediction = &file["prediction"];
    assert_eq!(prediction["makespan_ns"], verdict.makespan_ns, "{name}");
    assert_eq!(prediction["longest_span_ns"], verdict.longest_span_ns(), "{name}");
    assert_eq!(prediction["busy_ns"], json!(verdict.busy_ns), "{name}");
    assert_eq!(prediction["peak_bytes"], json!(verdict.peak_bytes), "{name}");
    assert!(prediction["bound_ns"].as_u64().unwrap() <= verdict.cost_ns(&problem), "{name}");
    // The digest is over the rest of the file, as JSON with sorted keys and without blanks.
    let mut content = file.clone();
    content.as_object_mut().unwrap().remove("digest");
    let hash = Sha256::digest(serde_json::to_string(&content).unwrap());
    let digest: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(file["digest"], format!("sha256:{digest}"), "{name}");
}

#[test]
fn every_plan_file_says_the_truth() {
    let (mut plans, mut copied) = (0, 0);
    for (name, text) in grid() {
        let mut spec = Spec::read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        // The judge knows messages in groups; those beside compute are `check`'s and the runner's to judge.
        spec.messages.lowering = Lowering::Grouped;
        for schedule in pipeplan_core::schedule::schedule_names() {
            match planner::plan(&spec, schedule) {
                Ok(plan) => {
                    copied += usize::from(plan.schedule.has_copies());
                    judge(&format!("{schedule} for {name}"), &plan.to_json());
                    plans += 1;
                }
                Err(error) => assert!(error.to_string().len() > 10, "{schedule} for {name}: {error}"),
            }
        }
    }
    assert!(plans > 100, "only {plans} plans");
    assert!(copied >= 6, "only {copied} plans have copies to the host");
}

#[test]
fn a_comparison_says_what_the_plans_say() {
    for (name, text) in grid() {
        let spec = Spec::read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let comparison = serde_json::to_value(planner::compare(&spec)).unwrap();
        let cost = if comparison["objective"] == "makespan" { "makespan_ns" } else { "longest_span_ns" };
        let rows = comparison["rows"].as_array().unwrap();
        let costs = rows.iter().filter_map(|row| row[cost].as_u64());
        assert_eq!(rows.last().unwrap()[cost].as_u64(), costs.min(), "{name}: the best is not the best");
        for row in comparison["rows"].as_array().unwrap() {
            let schedule = row["schedule"].as_str().unwrap();
            let plan = planner::plan(&spec, schedule);
            assert_eq!(plan.is_ok(), row["status"] == "ok", "{schedule} for {name}: {row}");
            let Ok(plan) = plan else {
                assert!(row["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{schedule} for {name}");
                continue;
            };
            let prediction = &plan.to_value()["prediction"];
            for key in ["makespan_ns", "longest_span_ns", "peak_bytes", "bound_ns"] {
                assert_eq!(row[key], prediction[key], "{key} of {schedule} for {name}");
            }
            assert!(row["gap"].is_null() || row["gap"].as_f64().unwrap() >= 0.0, "{schedule} for {name}: {row}");
        }
    }
}
