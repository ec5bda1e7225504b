//! Ranks that share one card: time-sliced, or each on a part of the multiprocessors.

use std::path::Path;

use crate::tiny::losses;
use serde_json::Value;

use super::{emulated, on_card, plan, planned_with, train};

/// Ranks on parts of the multiprocessors, whichever context the driver says that their streams belong to; and a driver that
/// makes none.
#[test]
fn ranks_run_on_parts_of_the_card() {
    let plan = plan("llama", "f32");
    for without in ["", "own"] {
        let Some(ran) = train(&format!("parts-{without}"), &plan, without, &["--split-gpu"]) else { return };
        assert_eq!(losses(&ran.output), emulated(&plan), "without {without:?}");
        assert_eq!(ran.count("a part of 64"), 2, "{:?}", ran.calls);
    }
    let refused = train("no-parts", &plan, "green", &["--split-gpu"]).expect("there was a card").output;
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("cuDeviceGetDevResource"), "{text}");
}

/// What two ranks have to do takes one card as long as all their ops together, and each a part of it as long as the plan says.
#[test]
fn ranks_that_share_a_card_are_predicted_to_take_turns() {
    let plan = plan("llama", "f32");
    let text = std::fs::read_to_string(&plan).expect("it is written");
    let written: Value = serde_json::from_str(&text).expect("JSON");
    let sum = |list: &Value| list.as_array().expect("ranks").iter().filter_map(Value::as_u64).sum::<u64>();
    let busy = sum(&written["prediction"]["busy_ns"]);
    let step = busy + sum(&written["ends"]["optimizer_ns"]);
    let summary = |more: &[&str]| {
        let ran = train("turns", &plan, "", more)?;
        Some(serde_json::from_slice::<Value>(&ran.output.stdout).expect("a summary"))
    };
    let Some(turns) = summary(&[]) else { return };
    assert_eq!(turns["shared_processors"], 1);
    assert_eq!(
        (turns["predicted_makespan_ns"].as_u64(), turns["predicted_step_ns"].as_u64()),
        (Some(busy), Some(step))
    );
    assert_eq!(turns["predicted_bubble_ratio"], Value::Null);
    let parts = summary(&["--split-gpu"]).expect("there was a card");
    assert_eq!(parts["shared_processors"], Value::Null);
    assert!(parts["predicted_makespan_ns"].as_u64() >= written["prediction"]["makespan_ns"].as_u64());
    assert!(parts["predicted_bubble_ratio"].as_f64() > Some(0.0));
}

/// Measured on a part of the card beside others, planned with that, and run on such parts: what was planned is said beside
/// what was measured, and no operator is left to be estimated.
#[test]
fn parts_of_the_card_are_measured_planned_for_and_run() {
    let spec = plan("llama", "bf16").with_extension("toml");
    let profile = spec.with_extension("profile.json");
    let [spec_file, file] = [&spec, &profile].map(|path| path.to_string_lossy());
    let measure = ["profile", &*spec_file, "--device", "cuda", "--split-gpu", "-o", &*file];
    let Some(ran) = on_card("profile", "", &measure) else { return };
    assert!(ran.output.status.success(), "{}", String::from_utf8_lossy(&ran.output.stderr));
    assert_eq!(ran.count("a part of 64"), 2, "one is measured, and one beside it at work");
    assert!(ran.count("launch") > ran.count("instantiate"), "what comes again is a graph");
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).expect("it is written")).expect("JSON")
    };
    let device = read(&profile)["device"].as_str().unwrap_or_default().to_string();
    let is_part = device.contains(", 64 of 132 multiprocessors, another at work ");
    assert!(is_part && device.ends_with(" % of the time"), "{device}");
    let text = std::fs::read_to_string(&spec).expect("it is there");
    let plan = planned_with("measured", &text, &["--profile", &file]);
    let optimizer: Vec<u64> = read(&plan)["ends"]["optimizer_ns"]
        .as_array()
        .expect("what ends a step")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    let run = train("measured", &plan, "", &["--split-gpu"]).expect("there was a card");
    let report: Value = serde_json::from_slice(&run.output.stdout).expect("a summary");
    let [step, makespan] =
        ["predicted_step_ns", "predicted_makespan_ns"].map(|field| report[field].as_u64().unwrap());
    assert!(step > makespan && step <= makespan + optimizer.iter().max().expect("ranks"), "{report}");
    assert!(report["step_ns"].as_u64() >= report["makespan_ns"].as_u64());
    let refused = on_card("profile-whole", "green", &measure).expect("there was a card").output;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("cuDeviceGetDevResource"), "{text}");
}

/// Measured as ranks in turns have the whole card, planned with that, and run so: what is predicted is all that is measured,
/// one after the other.
#[test]
fn turns_on_the_card_are_measured_planned_for_and_run() {
    let spec = plan("llama", "f32").with_extension("toml");
    let profile = spec.with_extension("turns.json");
    let [spec_file, file] = [&spec, &profile].map(|path| path.to_string_lossy());
    let measure = ["profile", &*spec_file, "--device", "cuda", "--share-gpu", "-o", &*file];
    let Some(ran) = on_card("profile-turns", "", &measure) else { return };
    assert!(ran.output.status.success(), "{}", String::from_utf8_lossy(&ran.output.stderr));
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).expect("it is written")).expect("JSON")
    };
    let device = read(&profile)["device"].as_str().unwrap_or_default().to_string();
    assert!(device.ends_with("a card that is none, in turns with another"), "{device}");
    let text = std::fs::read_to_string(&spec).expect("it is there");
    let plan = planned_with("in-turns", &text, &["--profile", &file]);
    let busy = read(&plan)["prediction"]["busy_ns"].as_array().expect("ranks").clone();
    let run = train("in-turns", &plan, "", &[]).expect("there was a card");
    let report: Value = serde_json::from_slice(&run.output.stdout).expect("a summary");
    let all: u64 = busy.iter().filter_map(Value::as_u64).sum();
    assert_eq!(report["predicted_makespan_ns"].as_u64(), Some(all));
    let both = [&measure[..], &["--split-gpu"]].concat();
    let refused = on_card("profile-both", "", &both).expect("there was a card").output;
    assert_eq!(refused.status.code(), Some(2), "a card is had in one way");
}
