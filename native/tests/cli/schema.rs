//! `schema`: the JSON Schema of each file, against files that are written and read.

use std::path::Path;

use crate::command::{json_of, printed, refused};
use serde_json::{Value, json};

use super::{PROBLEM, TINY, folder, path};

#[test]
fn the_schema_describes_the_plans_that_are_written() {
    let schema = json_of(&["schema"], "");
    let validator = jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{error}"));
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut plans = vec![printed(&["plan", "-", "--json"], PROBLEM), printed(&["plan", "-", "--json"], TINY)];
    for name in ["tiny-llama.toml", "zero-bubble-1.5b.toml"] {
        plans.push(printed(&["plan", &examples.join(name).to_string_lossy(), "--json"], ""));
    }
    for plan in &plans {
        let plan: Value = serde_json::from_str(plan).unwrap();
        let faults: Vec<String> = validator.iter_errors(&plan).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        // A schema that accepts anything describes nothing.
        for (pointer, value) in [
            ("/version", json!(2)),
            ("/digest", json!("sha256:0")),
            ("/problem/ranks", json!(0)),
            ("/schedule/rows/0", json!("0F0 and so on")),
            ("/prediction/makespan_ns", json!(-1)),
            ("/spec", json!({})),
        ] {
            let mut wrong = plan.clone();
            *wrong.pointer_mut(pointer).unwrap() = value;
            assert!(!validator.is_valid(&wrong), "{pointer}");
        }
        let mut wrong = plan.clone();
        wrong.as_object_mut().unwrap().remove("program");
        assert!(!validator.is_valid(&wrong));
    }
}

#[test]
fn the_schema_describes_the_profiles_that_are_written() {
    let schema = json_of(&["schema", "profile"], "");
    let validator = jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{error}"));
    let folder = folder();
    let profile = path(&folder, "profile.json");
    printed(&["profile", "-", "-o", &profile], TINY);
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&profile).unwrap()).unwrap();
    let faults: Vec<String> = validator.iter_errors(&written).map(|error| error.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    // A step of the optimizer is among them, and plans take it.
    assert!(written["operators"].as_array().unwrap().iter().any(|one| one["kernel"] == "adamw"), "{written:#}");
    // What the schema refuses, the planner refuses.
    let refused_by_both = |wrong: &Value| {
        assert!(!validator.is_valid(wrong), "{wrong}");
        std::fs::write(&profile, wrong.to_string()).unwrap();
        refused(&["plan", "-", "--profile", &profile], TINY);
    };
    for (pointer, value) in [
        ("/version", json!(2)),
        ("/device", json!("x".repeat(201))),
        ("/operators", json!({})),
        ("/operators/0/kernel", json!("")),
        ("/operators/0/operands", json!("x".repeat(4097))),
        ("/operators/0/ns", json!(-1)),
        ("/operators/0/ns", json!(0.5)),
        ("/operators/0/ns", json!(u64::MAX)),
        ("/operators/0/flops", json!("5")),
        ("/operators/0", json!({ "kernel": "add", "operands": "f32[1] -> f32[1]" })),
        ("/operators/0", json!({ "kernel": "add", "operands": "f32[1] -> f32[1]", "ns": 1, "more": 1 })),
    ] {
        let mut wrong = written.clone();
        *wrong.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} in {written}")) = value;
        refused_by_both(&wrong);
    }
    let mut wrong = written.clone();
    wrong["workspace_bytes"] = json!((1u64 << 50) + 1);
    refused_by_both(&wrong);
}

#[test]
fn the_schema_describes_the_traces_that_are_written() {
    let schema = json_of(&["schema", "trace"], "");
    let validator = jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{error}"));
    let folder = folder();
    let trace = path(&folder, "trace.json");
    for backend in [&[][..], &["--backend", "modelled"]] {
        let arguments = [&["run", "-", "--steps", "2", "--trace", &trace, "--json"], backend].concat();
        printed(&arguments, TINY);
        let written: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
        let faults: Vec<String> = validator.iter_errors(&written).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        // What the planner refuses, the schema refuses as far as it can say it.
        for (pointer, value) in [
            ("/version", json!(2)),
            ("/format", json!("pipeplan-plan")),
            ("/peak_bytes/0", json!(-1)),
            ("/steps/0/loss", json!("5.5")),
            ("/steps/0/rows/0/steps", json!("(0SEND_F0")),
            ("/steps/0/rows/0/start_ns/0", json!(0.5)),
            ("/steps/0/rows/0/end_ns", json!(null)),
        ] {
            let mut wrong = written.clone();
            *wrong.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} in {written}")) = value;
            assert!(!validator.is_valid(&wrong), "{pointer}");
        }
    }
}

#[test]
fn the_schemas_of_what_is_read_accept_what_is_read() {
    let validator = |file: &str| {
        let schema = json_of(&["schema", file], "");
        jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{error}"))
    };
    let (spec, problem) = (validator("spec"), validator("problem"));
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for name in ["tiny-llama.toml", "zero-bubble-1.5b.toml", "llama-2-70b.toml"] {
        let text = std::fs::read_to_string(examples.join(name)).unwrap();
        let value: Value = toml::from_str(&text).unwrap();
        assert!(spec.is_valid(&value), "{name}");
        assert!(!problem.is_valid(&value), "{name}");
    }
    let value: Value = serde_json::from_str(PROBLEM).unwrap();
    assert!(problem.is_valid(&value) && !spec.is_valid(&value));
}
