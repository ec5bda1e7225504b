//! `plan`, `check` and `show`: a plan is made, checked and drawn.

use std::path::Path;

use crate::command::{json_of, printed, refused, run};
use serde_json::{Value, json};

use super::{PROBLEM, folder, path, write};

/// Eight devices that fail every 50,000 hours fail every 6,250 together. Where the pause is short against that, Young's interval
/// is right.
#[test]
fn a_plan_says_how_often_checkpoints_are_best_written() {
    let folder = folder();
    let spec = path(&folder, "spec.toml");
    let text = "schedule = \"1f1b\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\n\
                pipeline = 8\n[training]\nmicrobatches = 16\nsequence = 2048\n";
    write(&spec, text);
    let plan = path(&folder, "plan.json");
    let plain = printed(&["plan", &spec, "-o", &plan], "");
    assert!(!plain.contains("interval "), "{plain}");
    write(&spec, &format!("{text}mtbf_hours = 50000\n"));
    let said = printed(&["plan", &spec, "-o", &plan], "");
    let line = said.lines().find(|line| line.starts_with("interval ")).expect("it is told");
    assert!(line.contains("the run fails every 260.4 days"), "{line}");
    let between = |from: &str, to: &str| {
        let rest = &line[line.find(from).expect(from) + from.len()..];
        let (number, unit) = rest[..rest.find(to).expect(to)].split_once(' ').expect("a number with a unit");
        number.parse::<f64>().expect("a number")
            * match unit {
                "min" => 60.0,
                "h" => 3600.0,
                "ms" => 1e-3,
                unit => panic!("{unit} of {line}"),
            }
    };
    let (interval, pause) = (between("(", ")"), between("training stands still ", " for each"));
    let young = (2.0 * pause * 6250.0 * 3600.0).sqrt();
    assert!((interval / young - 1.0).abs() < 0.01, "{line}: {young}");
    // A rank has at least 2 and at most 4 of 32 layers with 218 M parameters, of 14 B each, and its host is 55 GB/s away.
    assert!((0.05..0.4).contains(&pause), "{line}");
    // The interval has no effect on the plan.
    assert_eq!(
        said.lines().find(|line| line.starts_with("makespan")),
        plain.lines().find(|line| line.starts_with("makespan"))
    );
    for wrong in ["0", "-1", "1e12", "\"often\""] {
        write(&spec, &format!("{text}mtbf_hours = {wrong}\n"));
        let text = refused(&["plan", &spec], "");
        assert!(text.contains("training.mtbf_hours"), "{text}");
    }
}

#[test]
fn a_plan_is_written_checked_shown_and_equal_however_it_is_asked_for() {
    let folder = folder();
    let (problem, plan) = (path(&folder, "problem.json"), path(&folder, "plan.json"));
    write(&problem, PROBLEM);
    printed(&["plan", &problem, "--schedule", "zb-v", "-o", &plan], "");
    let written = std::fs::read_to_string(&plan).unwrap();
    assert_eq!(printed(&["plan", &problem, "--schedule", "zb-v", "--json"], ""), written);
    assert_eq!(printed(&["plan", "-", "--schedule", "zb-v", "-o", "-"], PROBLEM), written);
    let link = printed(&["link", &problem], "");
    assert_eq!(printed(&["plan", link.trim(), "--schedule", "zb-v", "--json"], ""), written);
    // Only the plan and the problem are there: nothing half-written is left behind.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);

    let value: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(value["schedule"]["name"], "zb-v");
    // Where both directions of a pair keep one order, the messages have to go in groups, and do where that is asked for.
    assert_eq!(json_of(&["check", &plan, "--json"], "")["transports"]["pair-ordered"], false);
    let (plain, plan) = (plan, path(&folder, "grouped.json"));
    printed(&["plan", &problem, "--schedule", "zb-v", "--transport", "pair-ordered", "-o", &plan], "");
    let value: Value = serde_json::from_str(&std::fs::read_to_string(&plan).unwrap()).unwrap();
    let checked = json_of(&["check", &plan, "--json"], "");
    assert_eq!(
        checked,
        json!({ "valid": true, "digest": value["digest"], "on_trust": [],
                "stuck": {}, "transports": { "rendezvous": true, "buffered": true, "grouped": true, "pair-ordered": true, "streams": true } })
    );
    assert!(printed(&["check", "-"], &written).starts_with("valid: 192 ops on 4 ranks"));
    let shown = printed(&["show", &plain], "");
    assert!(shown.contains("0 | ") && shown.contains("makespan"), "{shown}");
    let spans = json_of(&["show", &plain, "--json"], "");
    assert_eq!(spans["rows"][0][0], json!({ "op": "0F0", "start_ns": 0, "end_ns": 50 }));
    assert_eq!(spans["prediction"], value["prediction"]);
}

/// The hang that users of frameworks report first: two ranks of 1F1B each send before either receives.
#[test]
fn a_plan_that_could_hang_is_refused_with_who_waits_for_whom() {
    let folder = folder();
    let (problem, plan) = (path(&folder, "problem.json"), path(&folder, "plan.json"));
    write(&problem, r#"{ "ranks": 4, "microbatches": 8, "stages": { "forward_ns": 1, "backward_input_ns": 2 } }"#);
    let in_pieces = ["plan", &problem, "--schedule", "1f1b", "--lowering", "in-pieces", "-o", &plan];
    let error = refused(&in_pieces, "");
    assert!(error.contains("this plan could hang, so it is not written"), "{error}");
    assert!(error.contains("in a circle: rank 2 at 2SEND_F1 → rank 3 at 3SEND_B0 → rank 2"), "{error}");
    assert!(!Path::new(&plan).exists());
    printed(&[&in_pieces[..], &["--transport", "buffered:2"]].concat(), "");
    // What was written is complete for the transport that it names, and `check` tells of others.
    let checked = printed(&["check", &plan], "");
    assert!(
        checked.contains("rendezvous   cannot complete it: ") && checked.contains("buffered     completes it"),
        "{checked}"
    );
    let error = refused(&["check", &plan, "--transport", "rendezvous"], "");
    assert!(error.contains("rendezvous transfers cannot complete it"), "{error}");
    printed(&["check", &plan, "--transport", "rendezvous", "--lowering", "receive-first"], "");
    let passes = printed(&["show", &plan, "--passes", "--lowering", "overlapped:1"], "");
    for part in ["place: ", "group: ", "overlap: ", "optimizer: ", "0 | start(0RECV_B0) 0F0 start(0SEND_F0)"] {
        assert!(passes.contains(part), "{part}: {passes}");
    }
    let error = refused(&["plan", &problem, "--lowering", "overlaped"], "");
    assert!(error.contains("accepted is in-pieces, receive-first, grouped, overlapped"), "{error}");
    // Threads keep four sends, so they run it; without a place to keep one they would hang, and say so.
    let run = ["run", &plan, "--backend", "modelled", "--slowdown", "1000", "--steps", "1"];
    printed(&run, "");
    let error = refused(&[&run[..], &["--slots", "0"]].concat(), "");
    assert!(error.contains("the program cannot be run:") && error.contains("in a circle: rank 2"), "{error}");
    let error = refused(&[&run[..], &["--fault", "4:death@1"]].concat(), "");
    assert!(error.contains("--fault names rank 4, but this run has ranks 0 to 3"), "{error}");
}

/// Only where the best ends far from its bound, and nothing longer was asked for.
#[test]
fn a_plan_far_from_its_bound_says_what_may_find_better() {
    let far = PROBLEM.replace("\"v\"", "\"looped\"").replace("16", "8");
    let said = |arguments: &[&str], problem: &str| run(arguments, problem).2;
    let prediction = &json_of(&["plan", "-", "--schedule", "best", "--json"], &far)["prediction"];
    let [cost, bound] = ["longest_span_ns", "bound_ns"].map(|key| prediction[key].as_f64().unwrap());
    assert!(cost > 1.05 * bound, "{prediction}");
    let hint = said(&["plan", "-", "--schedule", "best"], &far);
    assert!(hint.contains("`--effort 20000000`") && hint.contains("`--prove 60`"), "{hint}");
    assert_eq!(said(&["plan", "-", "--schedule", "best", "--effort", "1"], &far), "");
    assert_eq!(said(&["plan", "-", "--schedule", "1f1b-v"], PROBLEM), "");
    assert_eq!(said(&["plan", "-", "--schedule", "best"], &PROBLEM.replace("16", "64")), "");
}

#[test]
fn a_small_plan_is_drawn_exactly() {
    let problem =
        "ranks = 2\nmicrobatches = 3\nstages = { forward_ns = 1, backward_input_ns = 1, backward_weight_ns = 1 }\n";
    let shown = printed(&["plan", "-", "--schedule", "1f1b"], problem);
    let expected = "\
0 | F0  F1  ..  ..  BW0 BW0 F2  BW1 BW1 ..  BW2 BW2
1 | ..  F0  BW0 BW0 F1  BW1 BW1 F2  BW2 BW2 ..  ..
makespan 12, bubble 3/12 on each rank, in-flight 2 1";
    let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
    assert!(lines.join("\n").starts_with(expected), "{shown}");
}

/// A schedule from elsewhere: by hand, in torch's form, or a plan's rows with a change; the same plan from each.
#[test]
fn an_order_of_ones_own_is_planned_checked_and_shown() {
    let folder = folder();
    let [problem, mine, csv, plan] =
        ["problem.json", "mine.txt", "order.csv", "plan.json"].map(|name| path(&folder, name));
    write(&problem, r#"{ "ranks": 2, "microbatches": 2, "stages": { "forward_ns": 10, "backward_input_ns": 20 } }"#);
    write(&mine, "# GPipe\n0 | 0F0 0F1 0BW0 0BW1\n1 | 1F0 1F1 1BW0 1BW1\n");
    write(&csv, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    printed(&["plan", &problem, "--order", &mine, "-o", &plan], "");
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&plan).unwrap()).unwrap();
    assert_eq!(written["schedule"]["name"], "mine");
    let gpipe = json_of(&["plan", &problem, "--schedule", "gpipe", "--json"], "");
    for key in ["prediction", "program"] {
        assert_eq!(written[key], gpipe[key], "{key}");
    }
    let of_torch = json_of(&["plan", &problem, "--order", &csv, "--json"], "");
    assert_eq!(of_torch["prediction"], gpipe["prediction"]);
    assert_eq!(
        printed(&["export", &problem, "--order", &mine, "--format", "torch-csv"], ""),
        std::fs::read_to_string(&csv).unwrap()
    );
    assert!(
        printed(&["show", &problem, "--order", "-"], "0F0 0BW0 0F1 0BW1\n1F0 1BW0 1F1 1BW1\n")
            .contains("standard input (custom schedule)")
    );
    assert!(printed(&["check", &problem, "--order", &mine], "").starts_with("valid: 8 ops on 2 ranks"));
    // A plan whose rows somebody changed is refused as a plan and taken as an order.
    let changed = std::fs::read_to_string(&plan).unwrap().replace("1F0 1F1 1BW0 1BW1", "1F0 1BW0 1F1 1BW1");
    assert!(refused(&["check", "-"], &changed).contains("digest"));
    let faster = json_of(&["plan", &problem, "--order", "-", "--json"], &changed);
    assert_eq!(faster["schedule"]["rows"][1], "1F0 1BW0 1F1 1BW1");

    for (order, says) in [
        ("0F0 0F1 0BW0 0BW1\n1F0 1F1 1BW1 1BW0 1F0\n", "rank 1, op 4: 1F0 has run already (line 2, word 5)"),
        ("0F0,,0SEND_F0,0F1,0B0,0B1\n1F0,1F1,,1B1,1B0,1F0\n", "rank 1, op 4: 1F0 has run already (line 2, cell 6)"),
        ("0F0 0F1 0BW0\n1F0 1F1 1BW0 1BW1\n", "0BW1 never runs"),
        ("#\n0BW0 0F0 0F1 0BW1\n1F0 1F1 1BW0 1BW1\n", "which comes after 0BW0 (line 2, word 1)"),
        ("0F0 0BW0 0F1 0BW1\n\n1F1 1BW1 1F0 1BW0\n", "in the text: line 1, word 2; line 3, word 1"),
        ("0F0 0F1 0BW0 0BW1\n", "1 op lists for 2 ranks"),
        ("0F0 0F1 0BX0\n", "line 1: `0BX0` is not an op"),
        ("", "accepted is one line per rank"),
    ] {
        let error = refused(&["check", &problem, "--order", "-"], order);
        assert!(error.contains(says), "{order}: {error}");
    }
    // Transfers of another program's file are not those of the plan, and nobody is to think so; what is printed is the same.
    std::fs::create_dir(path(&folder, "more")).unwrap();
    let with_transfers = path(&folder, "more/order.csv");
    write(&with_transfers, "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0B1\n1RECV_F0,1F0,1F1,1B0,1B1\n");
    let note = "more/order.csv are ignored: pipeplan adds the transfers itself";
    for arguments in [
        &["plan", &problem, "--json"][..],
        &["check", &problem, "--json"],
        &["show", &problem],
        &["compare", &problem, "--json"],
        &["export", &problem, "--format", "torch-csv"],
    ] {
        let with = |order: &str| run(&[arguments, &["--order", order]].concat(), "");
        let ((code, printed, said), (_, plain, silence)) = (with(&with_transfers), with(&csv));
        assert_eq!((code, printed), (Some(0), plain), "{arguments:?}");
        assert!(said.contains("note: 4 transfers, 1 UNSHARD of ") && said.contains(note), "{arguments:?}: {said}");
        assert!(!silence.contains("left out"), "{arguments:?}: {silence}");
    }
    let (code, _, error) =
        run(&["export", &problem, "--order", &mine, "--format", "svg", "-o", "/no/such/plan.svg"], "");
    assert!(code == Some(1) && error.contains("there is no folder /no/such"), "{error}");
    let error = refused(&["plan", &problem, "--order", &mine, "--schedule", "1f1b"], "");
    assert!(error.contains("cannot be used with"), "{error}");
}
