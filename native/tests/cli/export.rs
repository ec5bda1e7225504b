//! `export`: plans and traces for other programs.

use crate::command::{json_of, printed, refused};
use serde_json::Value;

use super::{PROBLEM, TINY, folder, path, write};

/// `--json` prints the very bytes that `-o` writes; and the layers of the plan go round as a layout of Megatron.
#[test]
fn a_plan_is_written_and_printed_and_its_layers_exported() {
    let folder = folder();
    let file = path(&folder, "plan.json");
    let spec = TINY.replace("layers = 2", "layers = 7").replace("pipeline = 2", "pipeline = 2\nchunks = 2");
    let spec = spec.replace("1f1b", "interleaved-1f1b");
    let printed_plan = printed(&["plan", "-", "-o", &file, "--json"], &spec);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), printed_plan);
    let layout = printed(&["export", &file, "--format", "megatron"], "");
    let layout = layout.trim();
    assert!(layout.starts_with('E') && layout.ends_with('L') && layout.matches('|').count() == 3, "{layout}");
    let again = spec.replace("chunks = 2", &format!("chunks = 2\npartition = \"{layout}\""));
    let again = json_of(&["plan", "-", "--json"], &again);
    let plan: Value = serde_json::from_str(&printed_plan).unwrap();
    assert_eq!((&again["problem"], &again["schedule"]), (&plan["problem"], &plan["schedule"]));
    let zb_v = spec.replace("interleaved-1f1b", "zb-v");
    assert!(refused(&["export", "-", "--format", "megatron"], &zb_v).contains("rank s mod P"));
    assert!(refused(&["export", "-", "--format", "megatron"], PROBLEM).contains("these costs are typed"));
}

#[test]
fn plans_and_traces_are_exported_for_other_programs() {
    let folder = folder();
    let (plan, trace) = (path(&folder, "plan.json"), path(&folder, "trace.json"));
    printed(&["plan", "-", "--schedule", "zb-v", "-o", &plan], PROBLEM);
    let events = json_of(&["export", &plan, "--format", "chrome-trace"], "");
    let complete = events["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    assert_eq!(complete.count(), 192);
    let csv = printed(&["export", &plan, "--format", "torch-csv"], "");
    assert_eq!(csv.lines().count(), 4);
    assert!(csv.starts_with("0F0,") && csv.contains("7I0"), "{csv}");
    let svg = path(&folder, "plan.svg");
    assert_eq!(printed(&["export", &plan, "--format", "svg", "-o", &svg], ""), "");
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg "));
    assert!(printed(&["export", &plan, "--format", "text"], "").contains("makespan 2630"));

    printed(&["run", "-", "--steps", "2", "--trace", &trace, "--json"], TINY);
    let events = json_of(&["export", &trace, "--format", "chrome-trace"], "");
    assert_eq!(events["traceEvents"][0]["args"]["name"], "measured: steps on cpu over threads");
    // Perfetto's own format is no text, and no `Value`: a test in Python reads it by its schema.
    let events = path(&folder, "events.pftrace");
    assert_eq!(printed(&["export", &trace, "--format", "perfetto", "-o", &events], ""), "");
    assert!(std::fs::read(&events).unwrap().len() > 1000);
    assert!(refused(&["export", &trace, "--format", "torch-csv"], "").contains("export the plan"));
    let two_way = PROBLEM.replace("\"v\"", "\"two-way\"").replace("\"chunks\": 2", "\"chunks\": 1");
    let error = refused(&["export", "-", "--format", "torch-csv"], &two_way);
    assert!(
        error.contains("torch keeps each stage on one rank") && error.contains("set `schedule` to zb-h1"),
        "{error}"
    );
    // What is said to do does it.
    for (schedule, problem) in [("zb-h1", two_way.replace("two-way", "linear")), ("zb-v", PROBLEM.to_owned())] {
        let plan = printed(&["plan", "-", "--schedule", schedule, "--json"], &problem);
        printed(&["export", "-", "--format", "torch-csv"], &plan);
    }
    let order = path(&folder, "order.txt");
    write(&order, "0F1 0F0 0BW0 0BW1\n1F1 1F0 1BW0 1BW1\n");
    let two = r#"{ "ranks": 2, "microbatches": 2, "stages": { "forward_ns": 1, "backward_input_ns": 2 } }"#;
    let error = refused(&["export", "-", "--order", &order, "--format", "torch-csv"], two);
    assert!(error.contains("on rank 1 that stage runs microbatch 0 after 1: set `schedule`"), "{error}");
    assert!(error.contains("put 1F0 before 1F1 in a custom schedule"), "{error}");
    assert!(refused(&["export", &plan, "--format", "pdf"], "").contains("possible values"));
}

/// A search of minutes for what is then refused is no answer.
#[test]
fn a_format_that_no_plan_of_a_spec_can_have_is_refused_before_a_search() {
    let best = format!("schedule = \"best\"\n{}", super::TINY.split_once('\n').expect("a line").1);
    let said = refused(&["export", "-", "--format", "megatron-args"], &best);
    assert!(said.contains("Megatron-LM runs") && said.contains("this plan's schedule is best"), "{said}");
    let said = refused(&["export", "-", "--format", "megatron"], super::PROBLEM);
    assert!(said.contains("these costs are typed"), "{said}");
    let said = refused(&["export", "-", "--format", "paddle-log"], &best);
    assert!(said.contains("a plan has no log"), "{said}");
    // By far more than this takes to refuse, and far less than a search over so many layouts of stages.
    let deep = best.replace("layers = 2", "layers = 2048").replace("pipeline = 2", "pipeline = 64");
    let started = std::time::Instant::now();
    refused(&["export", "-", "--format", "megatron-args"], &deep);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
