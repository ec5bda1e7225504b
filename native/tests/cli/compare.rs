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

/// Measured times stay with documents from a file: all operators measured at a microsecond make another row.
#[test]
fn documents_of_a_file_keep_measured_times() {
    use pipeplan_core::estimate::derive::{derive, graph_of};
    use pipeplan_core::hardware::cost::Load;
    use pipeplan_core::hardware::profile::{Profile, Signature};
    use pipeplan_core::problem::placement::Placement;
    let spec = pipeplan_core::spec::Spec::read(TINY).unwrap();
    let pipeplan_core::spec::Work::Model(work) = &spec.work else { panic!("a model") };
    let mut measured = Profile::new("test");
    for stage in derive(work, Placement::Linear, 1).unwrap().stages {
        let graph = graph_of(work, &stage);
        for operator in &graph.operators {
            measured.insert(Signature::of(&graph, operator), Load::of(&graph, operator), 1000);
        }
    }
    let folder = folder();
    let [profile, documents] = ["profile.json", "lengths.txt"].map(|name| path(&folder, name));
    write(&profile, &measured.to_json());
    write(&documents, "16\n8\n8\n");
    let makespan = |more: &[&str]| {
        let compared = json_of(&[&["compare", "-", "--json", "--effort", "1"], more].concat(), TINY);
        let rows = compared["rows"].as_array().unwrap();
        rows.iter().find(|row| row["schedule"] == "1f1b").unwrap()["makespan_ns"].clone()
    };
    let documents = ["--documents", &documents];
    let with_both = makespan(&[&documents[..], &["--profile", &profile]].concat());
    assert_ne!(with_both, makespan(&documents));
    // Documents that fill every sequence take no more than sequences.
    write(documents[1], "[16, 16]");
    assert_eq!(makespan(&[&documents[..], &["--profile", &profile]].concat()), makespan(&["--profile", &profile]));
}

/// What columns say of microbatches that differ names what differs, and no option that does nothing.
#[test]
fn what_differs_is_named() {
    let sliced = TINY.replace("pipeline = 2", "pipeline = 2\nsequence_slices = 2");
    let table = printed(&["compare", "-", "--effort", "1"], &sliced);
    assert!(table.contains("microbatches are slices of sequences") && table.contains("whole sequences"), "{table}");
    let fixed = TINY.replace("pipeline = 2", "pipeline = 2\ndata = 2") + "documents = [[[16], [8]], [[4], [4]]]\n";
    let table = printed(&["compare", "-", "--effort", "1"], &fixed);
    assert!(table.contains("of the slowest replica") && !table.contains("--reorder"), "{table}");
    assert!(refused(&["plan", "-", "--reorder"], &fixed).contains("stay in their microbatches"));
    let packed = fixed.replace("[[[16], [8]], [[4], [4]]]", "[16, 8, 4, 4]");
    let table = printed(&["compare", "-", "--effort", "1"], &packed);
    assert!(table.contains("longest first, assigned to replicas by their work"), "{table}");
    printed(&["plan", "-", "--reorder"], &packed);
    let folder = folder();
    let mine = path(&folder, "mine.txt");
    write(&mine, "0F0 0F1 0BW0 0BW1\n1F0 1F1 1BW0 1BW1\n");
    assert!(refused(&["plan", "-", "--reorder", "--order", &mine], &packed).contains("a published schedule"));
}

/// Lengths of documents in any form say what is wrong and where: lines and entries count from 1.
#[test]
fn lengths_that_are_none_are_refused_with_their_place() {
    let folder = folder();
    let spec = path(&folder, "spec.toml");
    write(&spec, TINY);
    let said = |name: &str, content: &[u8]| {
        let file = path(&folder, name);
        std::fs::write(&file, content).unwrap();
        refused(&["plan", &spec, "--documents", &file], "")
    };
    assert!(said("a.txt", b"16\nlong\n").contains("a.txt, line 2: \"long\" is no length"));
    assert!(said("a.json", b"[16, -8]").contains("a.json, entry 2: \"-8\" is no length"));
    let error = said("a.json", b"[16,\n8");
    assert!(error.contains("a.json: this is not JSON: line 2") && !error.contains("no length"), "{error}");
    assert!(said("a.npy", b"16\n8\n8\n").contains("found text, each byte a token"));
    // As numpy.save writes an array of two rows with one number each.
    let header = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': {}, }}", "(2, 1)");
    let array = |header: &str| {
        [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes(), &[16, 0, 8, 0]].concat()
    };
    assert!(said("a.npy", &array(&header)).contains("found an array of two dimensions"));
    let file = path(&folder, "a.npy");
    std::fs::write(&file, array(&header.replace("(2, 1)", "(2,)"))).unwrap();
    printed(&["plan", &spec, "--documents", &file], "");
}
