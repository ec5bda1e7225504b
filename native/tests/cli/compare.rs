//! `compare` and `tune`: schedules and layouts side by side.

use crate::command::{json_of, printed, refused, run};
use serde_json::Value;

use super::{PROBLEM, TINY, folder, path, write};

#[test]
fn a_problem_becomes_a_comparison_in_the_agreed_form() {
    let comparison = json_of(&["compare", "-", "--json"], PROBLEM);
    assert_eq!(comparison["objective"], "longest_span");
    let rows = comparison["rows"].as_array().unwrap();
    assert_eq!(rows.last().unwrap()["schedule"], "best");
    for row in rows {
        let name = row["schedule"].as_str().unwrap();
        match row["status"].as_str() {
            Some("ok") => {
                for key in ["makespan_ns", "longest_span_ns", "bound_ns"] {
                    assert!(row[key].is_u64(), "{name}: {key}");
                }
                assert!(row["bubble_ratio"].is_f64() && row["gap"].is_f64(), "{row}");
                assert_eq!(row["peak_bytes"].as_array().map(Vec::len), Some(4), "{row}");
            }
            Some("absent") => assert!(row["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{row}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    let table = printed(&["compare", "-"], PROBLEM);
    assert!(table.contains("zb-v") && table.contains("absent:"), "{table}");
}

#[test]
fn the_fastest_layout_is_a_spec_that_plans_so() {
    let folder = folder();
    let (given, fastest) = (path(&folder, "given.toml"), path(&folder, "fastest.json"));
    write(&given, &TINY.replace("microbatches = 2", "microbatches = 8"));
    let found = json_of(&["tune", &given, "--json", "--keep", "training.microbatch_size"], "");
    let layouts = found["layouts"].as_array().unwrap();
    let steps: Vec<u64> = layouts.iter().map(|layout| layout["step_ns"].as_u64().unwrap()).collect();
    assert!(found["complete"] == true && steps.is_sorted() && steps.len() > 1, "{found}");
    assert!(steps[0] <= found["given"]["step_ns"].as_u64().unwrap(), "{found}");
    for layout in layouts {
        let degrees = ["pipeline", "tensor", "context", "data"].map(|degree| layout[degree].as_u64().unwrap());
        assert_eq!(degrees.iter().product::<u64>(), 2, "{layout}");
        assert_eq!(layout["microbatch_size"], 1);
    }
    let table = printed(&["tune", &given, "--keep", "training.microbatch_size", "-o", &fastest], "");
    assert!(table.contains("as given") && table.contains("layouts:"), "{table}");
    assert_eq!(json_of(&["memory", &fastest, "--json"], "")["step_ns"], steps[0]);

    assert!(refused(&["tune", "-"], PROBLEM).contains("a model: layouts follow from its operators"));
    assert!(refused(&["tune", &given, "--keep", "tensor"], "").contains("parallel.tensor"));
    assert!(refused(&["tune", &given, "--devices", "0"], "").contains("devices: found 0"));
    assert!(refused(&["tune", &given, "--schedule", "zbv"], "").contains("zb-v"));
    let little = TINY.replace("[training]", "[memory]\nlimit_bytes = 1000\n[training]");
    assert!(refused(&["tune", "-"], &little).contains("no layout fits"));
}

#[test]
fn nothing_that_fits_is_said_once_each() {
    let (code, table, stderr) = run(&["compare", "-"], &PROBLEM.replace("\"limit_bytes\": 16", "\"limit_bytes\": 1"));
    assert_eq!(code, Some(2), "{stderr}");
    for schedule in ["  gpipe, ", "  v-min: ", "  best: rank 0 needs at least"] {
        assert_eq!(table.matches(schedule).count(), 1, "{schedule}:\n{table}");
    }
}

/// An order of one's own has a row of its own, with the figures of its plan, and `best` is none worse; one that is not valid
/// is absent with its faults, and one that is called like a schedule is not taken for it.
#[test]
fn own_orders_are_compared_with_the_others() {
    let folder = folder();
    let [mine, named, wrong] = ["mine.txt", "gpipe.txt", "wrong.txt"].map(|name| path(&folder, name));
    let rows = "0F0 0F1 0B0 0W0 0B1 0W1\n1F0 1B0 1W0 1F1 1B1 1W1\n";
    write(&mine, rows);
    write(&named, rows);
    write(&wrong, &rows.replace("1W1", ""));
    let spec = r#"{ "ranks": 2, "microbatches": 2, "stages": { "forward_ns": 3, "backward_input_ns": 4,
        "backward_weight_ns": 2, "forward_bytes": 1, "backward_input_bytes": 0, "backward_weight_bytes": -1 } }"#;
    let arguments = ["compare", "-", "--json", "--order", &mine, "--order", &named, "--order", &wrong];
    // The whole table is printed, and a script hears that one of its orders has no plan.
    let (code, table, said) = run(&arguments, spec);
    assert!(code == Some(2) && said.contains("wrong has no valid plan"), "{code:?} {said}");
    let comparison: Value = serde_json::from_str(&table).unwrap();
    let compared = comparison["rows"].as_array().unwrap();
    let row = |name: &str| compared.iter().find(|row| row["schedule"] == name).unwrap();
    let own = json_of(&["plan", "-", "--json", "--order", &mine], spec);
    for name in ["mine", "own gpipe"] {
        for figure in ["makespan_ns", "longest_span_ns", "peak_bytes"] {
            assert_eq!(row(name)[figure], own["prediction"][figure], "{name}: {figure}");
        }
    }
    assert!(row("gpipe") != row("own gpipe") && row("wrong")["status"] == "absent");
    assert!(row("wrong")["reason"].as_str().unwrap().contains("1W1 never runs"), "{}", row("wrong"));
    write(&wrong, &rows.replace("1W1", "1W0"));
    let (_, table, _) = run(&arguments, spec);
    assert!(table.contains("1W0 has run already (line 2, word 6)"), "{table}");
    let best = compared.last().unwrap();
    assert!(best["schedule"] == "best" && best["makespan_ns"].as_u64() <= row("mine")["makespan_ns"].as_u64());
    assert_eq!(compared.len(), json_of(&["compare", "-", "--json"], spec)["rows"].as_array().unwrap().len() + 3);
    assert!(refused(&["compare", "-", "--order", &path(&folder, "none.txt")], spec).contains("none.txt"));
    // A plan of it has no published schedule's name either, and says so.
    let plan = json_of(&["plan", "-", "--json", "--order", &named], spec);
    assert_eq!(plan["schedule"]["name"], "own gpipe");
    assert!(refused(&["plan", "-", "--order", "-"], spec).contains("standard input can be read once"));
    assert!(refused(&["plan", &mine], "").contains("`SPEC --order FILE`"));
}
