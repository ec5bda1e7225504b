//! What a person does with the command, wrong input included.

mod command;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use command::{command, json_of, printed, refused, run};
use serde_json::{Value, json};

const PROBLEM: &str = r#"{ "ranks": 4, "chunks": 2, "microbatches": 8, "placement": "v",
  "stages": { "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45,
              "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
  "transfer_ns": 5, "static_bytes": 0, "limit_bytes": 16, "objective": "longest_span" }"#;

const TINY: &str = "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\nlayers = 2\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n[training]\nmicrobatches = 2\nsequence = 16\n";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"))
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_string_lossy().into_owned()
}

fn write(path: &str, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
}

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
        checked.contains("rendezvous   does not: ") && checked.contains("buffered     completes it"),
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
    assert!(error.contains("--fault is for rank 4, and this run has ranks 0 to 3"), "{error}");
}

/// Unit costs on four ranks with the memory of three microbatches: 31 is the optimum that CP-SAT proves
/// (`tests/reference/paper_tables.json`, `own_exact_frontier`).
#[test]
fn an_exact_search_finds_the_best_and_says_that_it_is() {
    let problem = r#"{ "ranks": 4, "microbatches": 8, "placement": "linear", "limit_bytes": 3,
      "stages": { "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1,
                  "forward_bytes": 1, "backward_input_bytes": 0, "backward_weight_bytes": -1 },
      "objective": "longest_span" }"#;
    let folder = folder();
    let (file, proof) = (path(&folder, "plan.json"), path(&folder, "proof.json"));
    let best = ["plan", "-", "--schedule", "best", "--prove", "60", "-o", &file, "--proof", &proof];
    let said = printed(&best, problem);
    assert!(said.contains("proved        no schedule of this placement costs less"), "{said}");
    assert!(said.contains("bound         31 ns, by exact search: proven the best for this placement"), "{said}");
    let plan = json_of(&["plan", &file, "--json"], "");
    let proof: Value = serde_json::from_str(&std::fs::read_to_string(&proof).unwrap()).unwrap();
    let schema = json_of(&["schema", "proof"], "");
    jsonschema::validate(&schema, &proof).unwrap_or_else(|error| panic!("{error}\n{proof}"));
    assert_eq!(proof["plan"], plan["digest"], "{proof}");
    let proved = ["cost_ns", "found_ns", "lower_ns", "optimal"].map(|key| proof[key].clone());
    assert_eq!(proved, [json!(31), json!(31), json!(31), json!(true)]);
    assert_eq!(plan["prediction"]["longest_span_ns"], json!(31), "{said}");
    printed(&["check", &file], "");
    // A schedule that was asked for by name is kept, and told how far it is from the best: without a limit ZB-H2 leaves no
    // bubble where all ops take as long (arXiv:2401.10241, section 2.2).
    let kept =
        printed(&["plan", "-", "--schedule", "1f1b", "--prove", "60"], &problem.replace("\"limit_bytes\": 3,", ""));
    let than = "proved        a schedule of this placement costs 24 ns, 27.27 % less, and none costs less";
    assert!(kept.contains("1f1b (1F1B)") && kept.contains(than), "{kept}");
    let proof = ["plan", "-", "--schedule", "1f1b", "--prove", "60", "--proof", "-"];
    let proof = json_of(&proof, &problem.replace("\"limit_bytes\": 3,", ""));
    jsonschema::validate(&schema, &proof).unwrap_or_else(|error| panic!("{error}\n{proof}"));
    assert_eq!((&proof["cost_ns"], &proof["lower_ns"], &proof["optimal"]), (&json!(33), &json!(24), &json!(false)));
    assert!(refused(&["plan", "-", "--proof", &file], problem).contains("--prove"));
    for seconds in ["0", "-1", "NaN", "1e9"] {
        let seconds = format!("--prove={seconds}");
        assert!(refused(&["plan", "-", &seconds], problem).contains("--prove takes seconds"));
    }
    // Before a search whose plan would be lost: this one would take longer than anybody waits.
    let (microbatches, endless) = (problem.replace(": 8,", ": 2000,"), ["--effort", "1000000000000"]);
    let error =
        refused(&[&["plan", "-", "--schedule", "best", "--prove", "1"], &endless[..]].concat(), &microbatches);
    assert!(error.contains("24000 ops") && error.contains("leave --prove out"), "{error}");
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

#[test]
fn a_link_opens_the_page_that_is_asked_for_and_reads_back() {
    let link = printed(&["link", "-", "--base", "http://127.0.0.1:8080/#old"], TINY);
    assert!(link.starts_with("http://127.0.0.1:8080/#v2."), "{link}");
    let spec = json_of(&["link", link.trim(), "--json"], "");
    assert_eq!(spec["spec"]["model"]["layers"], 2);
    assert_eq!(spec["link"].as_str().map(|fragment| link.trim().ends_with(fragment)), Some(true));
}

#[test]
fn wrong_input_is_refused_with_the_place_and_what_to_write() {
    let folder = folder();
    let spec = path(&folder, "spec.toml");
    write(&spec, &TINY.replace("pipeline = 2", "pipeline = 0").replace("\"cpu\"", "\"abacus\""));
    let error = refused(&["plan", &spec], "");
    for says in [
        "spec.toml has 2 faults",
        "parallel.pipeline: found 0, accepted is a whole number from 1 to 1024",
        "cluster.device: found \"abacus\", accepted is one of a100-40",
        "spec.toml:6:10",
    ] {
        assert!(error.contains(says), "{error} should say {says}");
    }
    let plan = printed(&["plan", "-", "--schedule", "zb-v", "--json"], PROBLEM);
    let link = printed(&["link", "-"], PROBLEM);
    let mut changed = link.trim().to_owned();
    let other = if &changed[12..13] == "A" { "B" } else { "A" };
    changed.replace_range(12..13, other);
    let broken = link.trim().replace("#v2", "#v7");
    let with = |line: &str| {
        let on_a_gpu = TINY.replace("\"cpu\"", "\"h100\"");
        on_a_gpu.replace("[training]\n", &format!("[training]\n{line}\n"))
    };
    for (arguments, input, says) in [
        (&["plan", "no-such-file.toml"][..], "", "no-such-file.toml cannot be read"),
        (&["plan", "."], "", ". cannot be read"),
        (&["plan", "-"], "{\n\"ranks\": }", "standard input: this is no JSON: line 2, column 10"),
        (&["plan", "-"], "ranks = 2\nranks = 3\n", "this is no TOML: line 2"),
        (&["plan", "-"], "", "standard input is empty"),
        (&["check", "-"], "", "standard input is empty"),
        (&["plan", "-"], "name = \"x\"", "model: found nothing"),
        (
            &["compare", "-"],
            &PROBLEM.replace("\"limit_bytes\": 16", "\"limit_bytes\": 1"),
            "no schedule is valid here",
        ),
        (
            &["plan", "-", "--schedule", "2f2b"],
            PROBLEM,
            "no schedule is called `2f2b`; accepted is one of best, gpipe",
        ),
        (&["plan", "-", "--schedule", "zbv"], PROBLEM, "(perhaps zb-v)"),
        (&["plan", "-"], &TINY.replace("layers", "layesr"), "(perhaps layers)"),
        (&["plan", "-", "--schedule", "1f1b"], PROBLEM, "1f1b has no plan here: it holds 1 chunk a rank"),
        (&["compare", "-"], &PROBLEM.replace("\"ranks\": 4", "\"ranks\": 0"), "ranks: found 0"),
        (&["compare", "-"], &PROBLEM.replace(": 8,", ": 1000000000,"), "microbatches: found 1000000000"),
        (
            &["compare", "-"],
            &PROBLEM.replace("\"forward_ns\": 50", "\"forward_ns\": 1e300"),
            "forward_ns: found 1e+300",
        ),
        (&["plan", "-"], &PROBLEM.replace("\"limit_bytes\": 16", "\"limit_bytes\": 1"), "needs at least"),
        (&["plan", &changed], "", "the link's checksum is wrong"),
        (&["plan", &broken], "", "the link's version is `v7`"),
        (&["plan", "https://example.org/"], "", "the address holds no spec"),
        (&["check", "-"], &plan.replace("zb-v", "zb-w"), "the plan was changed after it was written"),
        (&["check", "-"], &plan.replace("\"version\": 1", "\"version\": 9"), "the plan's version is 9"),
        (&["show", "-", "--step", "3"], &plan, "--step is for traces"),
        (&["run", "-"], &plan, "there is no model to train"),
        (&["run", "-", "--data", "no-such-book.txt"], TINY, "no-such-book.txt cannot be read"),
        (
            &["run", "-"],
            &with("moments_dtype = \"bf16\""),
            "training.moments_dtype = \"bf16\", which is planned and not run",
        ),
        (
            &["run", "-"],
            &with("matmul_dtype = \"fp8\""),
            "training.matmul_dtype = \"fp8\", which is planned and not run",
        ),
        (
            &["profile", "-"],
            &with("gradients_dtype = \"bf16\""),
            "training.gradients_dtype = \"bf16\" is planned and not run",
        ),
        (&["plan", "-"], &with("matmul_dtype = \"fp4\""), "training.matmul_dtype: found \"fp4\", accepted is fp8\n"),
        (&["serve", "--web", "no-such-folder"], "", "no-such-folder holds no index.html"),
        (&["plan"], "", "Usage: pipeplan plan"),
    ] {
        let error = refused(arguments, input);
        assert!(error.contains(says), "{arguments:?}: {error} should say {says}");
    }
    let (_, stdout, _) = run(&["check", "-", "--json"], &plan.replace("zb-v", "zb-w"));
    let verdict: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(verdict["valid"], false);
    // Nothing is known of what was not read.
    let (code, stdout, _) = run(&["check", "no-such-file.json", "--json"], "");
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
}

#[test]
fn no_file_steers_the_terminal() {
    let (escaped, plain) = ("\\u001b[31m\\u009b1mX", "\u{1b}[31m\u{9b}1mX");
    let named = TINY.replace("tiny-llama", escaped);
    let keyed = TINY.replace("[model]", &format!("[model]\n\"{escaped}\" = 1"));
    let raw = TINY.replace("[model]", &format!("[model]\n{plain} = 1"));
    let titled = format!("name = \"{escaped}\"\n{TINY}");
    for (input, says) in [
        (named, "model.name: found"),
        (keyed, "an unknown field"),
        (raw, "this is no TOML"),
        (titled, "none of them a control character"),
    ] {
        let mut command = command(&["plan", "-"]);
        // As to a terminal, which takes colours.
        let child = command.env_remove("NO_COLOR").env("CLICOLOR_FORCE", "1").stdin(Stdio::piped());
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let stderr = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        assert!(stderr.contains(says), "{stderr:?} should say {says}");
        let from_file: Vec<&str> = stderr.split("1mX").collect();
        assert!(from_file.len() > 1, "{stderr:?} should show what is wrong");
        for before in from_file {
            assert!(!before.ends_with(['\u{1b}', '\u{9b}']) && !before.contains("\u{1b}[31m?"), "{stderr:?}");
        }
    }
}

#[test]
fn a_text_without_end_is_refused() {
    let error = refused(&["run", "-", "--data", "/dev/zero"], TINY);
    assert!(error.contains("/dev/zero is longer than the 1073741824 bytes that are read"), "{error}");
}

#[test]
fn nothing_that_fits_is_said_once_each() {
    let (code, table, stderr) = run(&["compare", "-"], &PROBLEM.replace("\"limit_bytes\": 16", "\"limit_bytes\": 1"));
    assert_eq!(code, Some(2), "{stderr}");
    for schedule in ["  gpipe, ", "  v-min: ", "  best: rank 0 needs at least"] {
        assert_eq!(table.matches(schedule).count(), 1, "{schedule}:\n{table}");
    }
}

#[test]
fn what_cannot_be_written_is_no_fault_of_the_input() {
    let (code, _, stderr) = run(&["plan", "-", "-o", "no-such-folder/plan.json"], PROBLEM);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("no-such-folder/plan.json cannot be written"), "{stderr}");
    // Before the steps whose measurement would be lost.
    let (code, stdout, stderr) = run(&["run", "-", "--trace", "no-such-folder/trace.json"], TINY);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("no-such-folder/trace.json cannot be written"), "{stderr}");
    let (code, _, stderr) = run(&["plan", "-", "-o", ""], PROBLEM);
    assert!(code == Some(1) && stderr.contains("a file without a name cannot be written"), "{stderr}");
    let folder = folder();
    let file = path(&folder, "file");
    write(&file, "");
    for checkpoints in ["/proc/checkpoints", &file] {
        let (code, _, stderr) = run(&["run", "-", "--steps", "1", "--checkpoint-dir", checkpoints], TINY);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(&format!("{checkpoints} cannot be made")), "{stderr}");
    }
}

/// Links go on leading to it, who may read it stays as it was, and what nobody may write is left alone.
#[cfg(unix)]
#[test]
fn a_file_that_is_written_again_stays_what_it_was_but_for_its_content() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = folder();
    let [target, link, beyond, new] =
        ["target.json", "link.json", "beyond.json", "new.json"].map(|name| path(&folder, name));
    let mode_of = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let plan = printed(&["plan", "-", "--json"], PROBLEM);
    for (mode, to) in [(0o600, &target), (0o640, &link), (0o666, &beyond)] {
        write(&target, "before");
        std::fs::set_permissions(&target, PermissionsExt::from_mode(mode)).unwrap();
        for (link, leads_to) in [(&link, "target.json"), (&beyond, &*link)] {
            let _ = std::fs::remove_file(link);
            symlink(leads_to, link).unwrap();
        }
        printed(&["plan", "-", "-o", to], PROBLEM);
        assert_eq!((std::fs::read_to_string(&target).unwrap(), mode_of(&target)), (plan.clone(), mode), "{to}");
        assert!([&link, &beyond].iter().all(|link| std::fs::symlink_metadata(link).unwrap().is_symlink()), "{to}");
    }
    // One that leads to no file yet makes it; one that leads to itself leads nowhere.
    symlink("new.json", path(&folder, "to-new.json")).unwrap();
    printed(&["plan", "-", "-o", &path(&folder, "to-new.json")], PROBLEM);
    assert_eq!(std::fs::read_to_string(&new).unwrap(), plan);
    let circle = path(&folder, "circle.json");
    symlink("circle.json", &circle).unwrap();
    assert_eq!(run(&["plan", "-", "-o", &circle], PROBLEM).0, Some(1));

    write(&target, "before");
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o444)).unwrap();
    for to in [&target, &link] {
        let (code, _, stderr) = run(&["plan", "-", "-o", to], PROBLEM);
        assert!(code == Some(1) && stderr.contains("cannot be written: it is there and read-only"), "{stderr}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "before");
    }
    // Nothing half-written is left behind.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6);
}

/// As plans are: whole or not at all, and to standard output for `-`.
#[cfg(unix)]
#[test]
fn logits_are_written_as_all_files_are() {
    let folder = folder();
    let checkpoint = trained(&folder);
    let file = path(&folder, "logits.safetensors");
    let arguments = ["evaluate", &checkpoint, "--windows", "2", "--logits"];
    let said = printed(&[&arguments[..], &[&file]].concat(), "");
    assert!(said.contains(&format!("logits        {file}")), "{said}");
    let whole = std::fs::read(&file).unwrap();
    let output = command(&[&arguments[..], &["-"]].concat()).output().unwrap();
    assert!(output.status.success() && output.stdout == whole, "{} bytes", output.stdout.len());
    // As on a disk that is full.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]).arg(command(&[]).get_program());
    let output = limited.args([&arguments[..], &[&file]].concat()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("logits.safetensors cannot be written"), "{text}");
    assert!(std::fs::read(&file).unwrap() == whole, "what was there is still there");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_reader_that_has_seen_enough_ends_nothing() {
    // What `head` does, and a terminal that is closed.
    for (which, arguments) in [("1", &["run", "-", "--steps", "6"][..]), ("2", &["plan", "no-such-file.toml"])] {
        let script = format!("exec {which}> >(exec true); sleep 0.2; \"$0\" \"$@\"");
        let program = command(&[]).get_program().to_owned();
        let mut child = Command::new("bash")
            .args(["-c", &script])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(TINY.as_bytes());
        let expected = if which == "1" { 0 } else { 2 };
        assert_eq!(child.wait().unwrap().code(), Some(expected), "{arguments:?}");
    }
}

#[test]
fn a_models_config_is_told_how_to_become_a_spec() {
    let folder = folder();
    let config = path(&folder, "my \"7B\".json");
    let sizes = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
    });
    write(&config, &sizes.to_string());
    let error = refused(&["plan", &config], "");
    assert!(error.contains("describes a model") && error.lines().count() < 12, "{error}");
    // What it says to write is a spec.
    let fields = ["model.", "cluster.", "parallel.", "training."];
    let lines: Vec<&str> = error
        .lines()
        .filter_map(|line| fields.iter().find_map(|field| Some(&line[line.find(field)?..])))
        .filter(|line| line.contains(" = "))
        .collect();
    assert_eq!(lines.len(), 5, "{error}");
    let spec = path(&folder, "spec.toml");
    write(&spec, &lines.join("\n"));
    assert!(printed(&["plan", &spec, "--schedule", "1f1b"], "").contains("8 ranks"));
}

#[test]
fn a_plan_is_run_and_its_trace_shown() {
    let folder = folder();
    let (plan, trace) = (path(&folder, "plan.json"), path(&folder, "trace.json"));
    printed(&["plan", "-", "-o", &plan], TINY);
    let summary = json_of(&["run", &plan, "--steps", "3", "--trace", &trace, "--json"], "");
    assert_eq!(summary["steps"], 3);
    assert_eq!(summary["losses"].as_array().map(Vec::len), Some(3));
    assert_eq!(summary["memory"].as_array().map(Vec::len), Some(2));
    let digest = &json_of(&["check", &plan, "--json"], "")["digest"];
    assert_eq!(&summary["plan_digest"], digest);
    // A spec runs as its plan does.
    let lines = printed(&["run", "-", "--steps", "3"], TINY);
    let loss = summary["losses"][2].as_f64().unwrap();
    assert!(lines.contains(&format!("loss {loss:.6}")), "{lines}");
    let shown = printed(&["show", &trace], "");
    assert!(shown.contains("step 2 of 3 recorded") && shown.contains("measured on cpu over threads"), "{shown}");
    assert!(refused(&["show", &trace, "--step", "7"], "").contains("it holds steps 0 to 2"));
    assert!(refused(&["check", &trace], "").contains("is a trace, and a spec or a plan is needed"));
    // Alone where it goes to standard output.
    let trace = printed(&["run", &plan, "--steps", "2", "--trace", "-"], "");
    assert!(printed(&["show", "-"], &trace).contains("step 1 of 2 recorded"), "{trace}");
}

#[test]
fn two_documents_do_not_share_standard_output() {
    let checkpoint = trained(&folder());
    for arguments in [
        &["run", "-", "--json", "--trace", "-"][..],
        &["profile", "-", "--json", "-o", "-"],
        &["plan", "-", "--json", "--prove", "1", "--proof", "-"],
        &["evaluate", &checkpoint, "--json", "--logits", "-"],
        &["selftest", "--profile", "-"],
    ] {
        let error = refused(arguments, TINY);
        assert!(error.contains("cannot both go to standard output"), "{arguments:?}: {error}");
    }
}

/// A checkpoint of the tiny model in `folder`, after six steps.
fn trained(folder: &tempfile::TempDir) -> String {
    let checkpoint = path(folder, "run");
    printed(&["run", "-", "--steps", "6", "--json", "--checkpoint-dir", &checkpoint], TINY);
    checkpoint
}

/// What is said to do nothing is refused, so that nobody takes a run for another one.
#[test]
fn options_that_would_do_nothing_are_refused() {
    let folder = folder();
    let checkpoint = trained(&folder);
    let order = path(&folder, "order.txt");
    write(&order, "0F0 0F1 0BW0 0BW1\n1F0 1F1 1BW0 1BW1\n");
    let run = |arguments: &[&'static str], help| ([&["run", "-"], arguments].concat(), help);
    let modelled =
        |arguments: &[&'static str]| run(&[&["--backend", "modelled"], arguments].concat(), "Leave it out");
    let (checkpoint, order): (&'static str, &'static str) = (checkpoint.leak(), order.leak());
    for (arguments, says) in [
        run(&["--slowdown", "5"], "--backend modelled"),
        run(&["--gpu", "1"], "--backend cuda"),
        run(&["--cuda-graphs", "off"], "--backend cuda"),
        run(&["--cuda-graphs", "on"], "--backend cuda"),
        run(&["--split-gpu"], "--backend cuda --transport threads"),
        run(&["--transport", "nccl"], "--backend cuda"),
        run(&["--traced-steps", "3"], "--trace"),
        run(&["--checkpoint-every", "3"], "--checkpoint-dir"),
        modelled(&["--precision", "f64"]),
        modelled(&["--learning-rate", "0.1"]),
        modelled(&["--clip-norm", "1"]),
        modelled(&["--seed", "3"]),
        run(&["--backend", "modelled", "--resume", checkpoint], "nothing to write into a checkpoint"),
        (vec!["plan", "-", "--order", order, "--effort", "5"], "--order leaves nothing to search for"),
    ] {
        let error = refused(&arguments, TINY);
        assert!(error.contains(says), "{arguments:?}: {error}");
        assert!(!error.contains("going on from"), "{arguments:?}: {error}");
    }
    // What has been trained already is no start, and is not said to be one.
    let error = refused(&["run", "-", "--steps", "6", "--resume", checkpoint], TINY);
    assert!(error.contains("give more steps") && !error.contains("going on from"), "{error}");
}

#[test]
fn help_has_examples_and_exit_codes() {
    for name in ["plan", "compare", "check", "show", "link", "run", "serve", "export", "schema", "completions"] {
        let help = printed(&[name, "--help"], "");
        assert!(help.contains("Examples:\n  pipeplan"), "{name}: {help}");
        let exit_codes = help.contains("Exit codes:");
        assert!(exit_codes || ["schema", "completions"].contains(&name), "{name}: {help}");
    }
    assert!(printed(&["completions", "bash"], "").contains("_pipeplan"));
}

#[cfg(unix)]
#[test]
fn the_examples_of_link_do_what_they_say() {
    let folder = folder();
    write(&path(&folder, "spec.toml"), TINY);
    let program = std::path::PathBuf::from(command(&[]).get_program());
    let help = printed(&["link", "-h"], "");
    let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  pipeplan ")).collect();
    assert!(examples.len() > 2, "{help}");
    for example in examples {
        // What it says of it stands behind three blanks.
        let example = format!("pipeplan {}", example.split("   ").next().unwrap_or_default());
        let output = Command::new("sh")
            .args(["-c", &format!("PATH=\"$0:$PATH\"; {example}")])
            .arg(program.parent().expect("a folder"))
            .current_dir(folder.path())
            .output()
            .unwrap_or_else(|error| panic!("{error}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("#v2."), "{example}: {text}");
    }
}

/// A server that ends with the test.
struct Served {
    child: Child,
    port: u16,
    address: String,
}

impl Served {
    fn start(arguments: &[&str]) -> Served {
        Served::by(&mut command(&[]), arguments)
    }

    /// By a command that starts this one.
    fn by(starter: &mut Command, arguments: &[&str]) -> Served {
        let starter = starter.args(["serve", "--port", "0", "--json"]).args(arguments).stdout(Stdio::piped());
        let mut child = starter.spawn().unwrap_or_else(|error| panic!("{error}"));
        let mut said = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !said.trim_end().ends_with('}') && lines.read_line(&mut said).is_ok_and(|read| read > 0) {}
        let value: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        let port = value["port"].as_u64().unwrap() as u16;
        Served { child, port, address: value["address"].as_str().unwrap().to_owned() }
    }

    /// The whole answer to one request.
    fn ask(&self, request_line: &str) -> String {
        String::from_utf8_lossy(&self.ask_with(request_line, "")).into_owned()
    }

    /// As [`Self::ask`], with another header.
    fn ask_with(&self, request_line: &str, header: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "{request_line} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_page_is_served_with_its_plan_and_nothing_else_of_the_machine() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    write(&format!("{web}/app.wasm"), "\0asm");
    write(&path(&folder, "secret.txt"), "secret");
    let plan = path(&folder, "plan.json");
    printed(&["plan", "-", "-o", &plan], PROBLEM);

    let served = Served::start(&["--web", &web, "--plan", &plan]);
    assert_eq!(served.address, format!("http://127.0.0.1:{}/?plan=plan.json", served.port));
    for (request, says) in [
        ("GET /", &["200", "text/html", "<p>planner</p>"][..]),
        ("GET /?plan=plan.json", &["200", "<p>planner</p>"]),
        ("GET /app.wasm", &["200", "Content-Type: application/wasm", "\0asm"]),
        ("GET /plan.json", &["200", "application/json", "pipeplan-plan"]),
        ("GET /trace.json", &["404"]),
        ("GET /none.js", &["404"]),
        ("GET /../secret.txt", &["404"]),
        ("GET //etc/passwd", &["404"]),
        ("POST /", &["405"]),
    ] {
        let answer = served.ask(request);
        for part in says {
            assert!(answer.contains(part), "{request}: {answer} should hold {part:?}");
        }
        assert!(!answer.contains("secret"), "{request}: {answer}");
    }
    let taken = served.port.to_string();
    let (code, _, stderr) = run(&["serve", "--web", &web, "--port", &taken], "");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("--port 0 takes a free port"), "{stderr}");
    // Of a network for documents: no machine has it.
    let (code, _, stderr) = run(&["serve", "--web", &web, "--port", "0", "--host", "192.0.2.1"], "");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("--host takes an address of this machine") && !stderr.contains("--port 0"), "{stderr}");
}

#[test]
fn the_book_is_served_under_docs_and_nothing_above_it() {
    let folder = folder();
    let [web, docs] = ["web", "docs"].map(|name| path(&folder, name));
    std::fs::create_dir_all(format!("{docs}/reference")).unwrap();
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    write(&path(&folder, "secret.txt"), "secret");
    let (code, _, stderr) = run(&["serve", "--web", &web, "--docs", &docs], "");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("holds no index.html") && stderr.contains("./dev docs"), "{stderr}");
    write(&format!("{docs}/index.html"), "<p>book</p>");
    write(&format!("{docs}/reference/index.html"), "<p>reference</p>");
    write(&format!("{docs}/book.css"), "p {}");

    let served = Served::start(&["--web", &web, "--docs", &docs]);
    for (request, says) in [
        ("GET /", &["200", "<p>planner</p>"][..]),
        ("GET /docs", &["200", "text/html", "url=docs/"]),
        ("GET /docs/", &["200", "text/html", "<p>book</p>"]),
        ("GET /docs/?highlight=bubble", &["200", "<p>book</p>"]),
        ("GET /docs/index.html", &["200", "<p>book</p>"]),
        ("GET /docs/reference/", &["200", "<p>reference</p>"]),
        ("GET /docs/book.css", &["200", "text/css", "p {}"]),
        ("GET /docs/none.html", &["404"]),
        ("GET /docs/../secret.txt", &["404"]),
        ("GET /docs/../../secret.txt", &["404"]),
        ("GET /docs//secret.txt", &["404"]),
        ("GET /docs/reference/../../secret.txt", &["404"]),
    ] {
        let answer = served.ask(request);
        for part in says {
            assert!(answer.contains(part), "{request}: {answer} should hold {part:?}");
        }
        assert!(!answer.contains("secret"), "{request}: {answer}");
    }
}

#[test]
fn a_book_that_is_not_built_says_how_to_build_it() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    // Where no checkout is.
    let mut elsewhere = command(&[]);
    let served = Served::by(elsewhere.current_dir(folder.path()), &["--web", &web]);
    for request in ["GET /docs", "GET /docs/"] {
        let answer = served.ask(request);
        assert!(answer.contains("200 OK") && answer.contains("<pre>./dev docs</pre>"), "{answer}");
    }
    assert!(served.ask("GET /docs/limits.html").contains("404"));
}

/// A page from elsewhere whose name was made to lead to this machine is handed nothing of it.
#[test]
fn this_machine_is_served_under_its_own_names() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    let plan = path(&folder, "plan.json");
    printed(&["plan", "-", "-o", &plan], PROBLEM);
    let here = ["localhost", "localhost:80", "LocalHost", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080"];
    let elsewhere =
        ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "192.0.2.1"];
    let says_nothing = ["", "localhost:evil"];
    for (listening, answered) in [(&[][..], &[][..]), (&["--host", "0.0.0.0"], &elsewhere)] {
        let served = Served::start(&[&["--web", &web, "--plan", &plan], listening].concat());
        let asked = |host: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", served.port)).unwrap();
            write!(stream, "GET /plan.json HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        for host in here.iter().chain(answered) {
            assert!(asked(host).contains("pipeplan-plan"), "{listening:?}: {host}: {}", asked(host));
        }
        for host in elsewhere.iter().chain(&says_nothing).filter(|_| listening.is_empty()) {
            let answer = asked(host);
            assert!(answer.starts_with("HTTP/1.1 421 ") && !answer.contains("pipeplan-plan"), "{host}: {answer}");
            assert!(answer.contains("ask for http://127.0.0.1:"), "{host}: {answer}");
        }
    }
}

#[cfg(unix)]
#[test]
fn more_connections_than_there_are_files_do_not_end_the_server() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 24; exec \"$0\" \"$@\""]).arg(command(&[]).get_program());
    let served = Served::by(&mut limited, &["--web", &web]);
    let connect = || TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    let silent: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(silent);
    assert!(served.ask("GET /").contains("<p>planner</p>"));
}

#[test]
fn the_page_is_served_compressed_to_who_takes_that() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    let script = "let row = ['0F0', '1F0'];\n".repeat(1000);
    write(&format!("{web}/app.js"), &script);
    let served = Served::start(&["--web", &web]);
    let compressed = || {
        let answer = served.ask_with("GET /app.js", "Accept-Encoding: gzip, br\r\n");
        let end = answer.windows(4).position(|part| part == b"\r\n\r\n").expect("headers");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        head.contains("Content-Encoding: gzip").then(|| answer[end + 4..].to_vec())
    };
    // That is done while a page may already be asked for.
    let packed = (0..200).find_map(|_| {
        compressed().or_else(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            None
        })
    });
    let packed = packed.expect("compressed by now");
    assert!(packed.len() * 20 < script.len(), "{} bytes", packed.len());
    let file = path(&folder, "app.js.gz");
    std::fs::write(&file, &packed).unwrap();
    let plain = Command::new("gzip").args(["-dc", &file]).output().unwrap();
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    assert!(plain.stdout == script.as_bytes());
    assert!(served.ask("GET /app.js").ends_with(&script), "to all others as it is");
    // What is built anew is not answered with what was.
    write(&format!("{web}/app.js"), &script.replace("row", "bar"));
    assert_eq!(compressed(), None);
    assert!(served.ask("GET /app.js").contains("let bar"));
}

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

/// Every operator of the tiny model measured at 1 µs: F and BW then last as many as the stage has operators.
#[test]
fn a_profile_replaces_the_estimates_it_has() {
    use pipeplan_core::estimate::derive::{derive, graph_of};
    use pipeplan_core::graph::Job;
    use pipeplan_core::hardware::cost::Load;
    use pipeplan_core::hardware::profile::{Profile, Signature};
    use pipeplan_core::problem::placement::Placement;
    let spec = pipeplan_core::spec::Spec::read(TINY).unwrap();
    let pipeplan_core::spec::Work::Model(work) = &spec.work else { panic!("a model") };
    let stages = derive(work, Placement::Linear, 1).unwrap().stages;
    let graphs: Vec<_> = stages.iter().map(|stage| graph_of(work, stage)).collect();
    let (mut whole, mut products) = (Profile::new("test"), Profile::new("test"));
    for graph in &graphs {
        for operator in &graph.operators {
            let (signature, load) = (Signature::of(graph, operator), Load::of(graph, operator));
            if signature.kernel.starts_with("matmul") {
                products.insert(signature.clone(), load, 1000);
            }
            whole.insert(signature, load, 1000);
        }
    }
    let folder = folder();
    let file = path(&folder, "profile.json");
    let planned = |profile: &Profile| {
        write(&file, &profile.to_json());
        json_of(&["plan", "-", "--profile", &file, "--json"], TINY)
    };
    let (all, some, none) = (planned(&whole), planned(&products), json_of(&["plan", "-", "--json"], TINY));
    for (stage, graph) in graphs.iter().enumerate() {
        let cost = |plan: &Value, field: &str| plan["problem"]["stages"][stage][field].as_u64().unwrap_or(0);
        for (field, job) in [("forward_ns", Job::F), ("backward_input_ns", Job::B), ("backward_weight_ns", Job::W)] {
            assert_eq!(cost(&all, field), 1000 * graph.job(job).count() as u64, "{field}");
            assert!(cost(&some, field) != cost(&none, field), "{field}");
        }
        assert_eq!(cost(&all, "forward_bytes"), cost(&none, "forward_bytes"), "bytes are not measured");
    }
    write(&file, &whole.to_json());
    let (_, _, note) = run(&["plan", "-", "--profile", &file], TINY);
    assert!(!note.contains("estimated"), "all are measured: {note}");
    write(&file, &products.to_json());
    let (_, _, note) = run(&["plan", "-", "--profile", &file], TINY);
    assert!(note.contains("the others are estimated"), "{note}");

    // What a rank takes of a device beside its plan counts as memory, and is shown.
    let memory =
        || json_of(&["memory", "-", "--profile", &file, "--json"], TINY)["ranks"].as_array().unwrap().clone();
    let without = memory();
    products.workspace_bytes = 3 << 20;
    write(&file, &products.to_json());
    for (with, without) in memory().iter().zip(&without) {
        let peak = |rank: &Value| rank["peak_bytes"].as_u64().unwrap();
        assert_eq!((&with["static_bytes"]["workspace"], peak(with)), (&(3 << 20).into(), peak(without) + (3 << 20)));
        assert_eq!(without["static_bytes"]["workspace"], 0);
    }
    assert!(run(&["memory", "-", "--profile", &file], TINY).1.contains("workspace"));

    // Other sizes follow from those; another format has none of its kind.
    let other = TINY.replace("sequence = 16", "sequence = 24");
    let (_, _, note) = run(&["plan", "-", "--profile", &file], &other);
    assert!(note.contains("follow from measured ones of other sizes, the others are estimated"), "{note}");
    let other = TINY.replace("sequence = 16", "sequence = 16\ndtype = \"f64\"");
    assert!(refused(&["plan", "-", "--profile", &file], &other).contains("none of this model's kinds of operators"));
    assert!(refused(&["plan", "-", "--profile", &file], PROBLEM).contains("these costs are typed"));
    write(&file, &products.to_json().replace("\"ns\": 1000", "\"ns\": -1"));
    let error = refused(&["memory", "-", "--profile", &file], TINY);
    assert!(error.contains("operators[0].ns: found -1") && error.contains("profile.json"), "{error}");
    write(&file, "nothing");
    let error = refused(&["compare", "-", "--profile", &file], TINY);
    assert!(error.contains("profile.json: this is no JSON: line 1"), "{error}");
    write(&file, &products.to_json().replacen("\"ns\": 1000", "\"ns\": 1000, \"ns\": 2000", 1));
    let error = refused(&["compare", "-", "--profile", &file], TINY);
    assert!(error.contains("the field \"ns\" stands twice"), "{error}");
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
    assert!(code == Some(2) && said.contains("wrong has no plan here"), "{code:?} {said}");
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
    assert!(refused(&["plan", "-", "--order", "-"], spec).contains("standard input is wanted twice"));
    assert!(refused(&["plan", &mine], "").contains("`SPEC --order FILE`"));
}

/// Measured, and planned with it: nothing is left to be estimated, the stages of the plan take together what the microbatch
/// took, and what is known is not measured again.
#[test]
fn what_is_measured_is_planned_with() {
    let folder = folder();
    let file = path(&folder, "profile.json");
    let (_, said, _) = run(&["profile", "-", "-o", &file], TINY);
    assert!(said.contains("attention_grad") && said.contains("operators measured"), "{said}");
    let (_, _, note) = run(&["plan", "-", "--profile", &file], TINY);
    assert!(!note.contains("estimated"), "all are measured: {note}");
    let again = json_of(&["profile", "-", "--add", &file, "--json"], TINY);
    let plan = json_of(&["plan", "-", "--profile", &file, "--json"], TINY);
    let of_stages = |field: &str| {
        let stages = plan["problem"]["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage[field].as_u64().unwrap()).sum::<u64>()
    };
    for (job, field) in [
        ("forward", "forward_ns"),
        ("backward_input", "backward_input_ns"),
        ("backward_weight", "backward_weight_ns"),
    ] {
        assert_eq!(again["microbatch"][job]["measured_ns"], of_stages(field), "{job}");
    }
    let (_, said, _) = run(&["profile", "-", "--add", &file], TINY);
    assert!(said.contains("0 operators measured"), "{said}");
    // Another size of microbatch has other operators, but for the gradients' sums in the optimizer's format.
    let wider = TINY.replace("sequence = 16", "sequence = 16\nmicrobatch_size = 2");
    let both = path(&folder, "both.json");
    run(&["profile", "-", "--add", &file, "-o", &both], &wider);
    for spec in [TINY, &wider] {
        let (_, _, note) = run(&["plan", "-", "--profile", &both], spec);
        assert!(!note.contains("estimated"), "{note}");
    }

    assert!(refused(&["profile", "-"], PROBLEM).contains("these costs are typed"));
    let other = TINY.replace("sequence = 16", "sequence = 16\ndtype = \"bf16\"");
    assert!(refused(&["profile", "-"], &other).contains("training.dtype is bf16"));
    assert!(refused(&["profile", "-", "--split-gpu"], TINY).contains("--device cuda"));
    let known: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    write(&file, &known.to_string().replace("one core of", "half a core of"));
    let error = refused(&["profile", "-", "--add", &file], TINY);
    assert!(error.contains("half a core of") && error.contains("different devices"), "{error}");
}

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
    assert_eq!(events["traceEvents"][0]["args"]["name"], "measured on cpu over threads");
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
    assert!(error.contains("on rank 1 that runs microbatch 0 after 1: set `schedule`"), "{error}");
    assert!(error.contains("let an order of your own have 1F0 before 1F1"), "{error}");
    assert!(refused(&["export", &plan, "--format", "pdf"], "").contains("possible values"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_search_with_the_best_so_far() {
    let problem = PROBLEM.replace("\"ranks\": 4", "\"ranks\": 24").replace(": 8,", ": 200,").replace("16,", "40,");
    let folder = folder();
    let (input, plan) = (path(&folder, "problem.json"), path(&folder, "plan.json"));
    write(&input, &problem);
    let mut child = command(&["plan", &input, "--effort", "1000000000000", "-o", &plan])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{error}"));
    std::thread::sleep(std::time::Duration::from_secs(2));
    // Where the search has ended by itself, there is nothing to interrupt.
    if child.try_wait().is_ok_and(|ended| ended.is_none()) {
        let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    }
    let status = child.wait().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(status.code(), Some(0));
    assert!(printed(&["check", &plan], "").starts_with("valid"));
}

/// The search for the plan and those for its changes are one wait.
#[cfg(unix)]
#[test]
fn ctrl_c_in_the_first_search_ends_all_of_them() {
    let problem = PROBLEM.replace("\"ranks\": 4", "\"ranks\": 24").replace(": 8,", ": 800,").replace("16,", "40,");
    let folder = folder();
    let input = path(&folder, "problem.json");
    write(&input, &problem);
    let mut child = command(&["sensitivity", &input, "--anew", "9", "--effort", "1000000000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{error}"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(child.try_wait().is_ok_and(|ended| ended.is_none()), "nine searches without an end");
    let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    let started = std::time::Instant::now();
    while child.try_wait().is_ok_and(|ended| ended.is_none()) {
        if started.elapsed().as_secs() > 60 {
            let _ = child.kill();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("ended early"), "{text}");
}

#[test]
fn numbers_that_no_run_takes_are_refused_by_their_options() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tiny-llama.toml");
    for (arguments, says) in [
        (&["--steps", "-1"][..], "'-1' for '--steps <STEPS>': -1 is not in 1.."),
        (&["--learning-rate", "-1"], "--learning-rate is -1; write a number above 0"),
        (&["--patience", "-3"], "'-3' for '--patience <SECONDS>'"),
        (&["--seed", "-1"], "'-1' for '--seed <SEED>'"),
        (&["--clip-norm", "-0.5"], "to a norm of -0.5"),
        (&["--traced-steps", "0"], "0 is not in 1.."),
        (&["--warm-up", "100", "--decay-until", "3"], "rises over 100 steps, and is to have fallen at step 3"),
        (&["--warm-up", "3", "--decay-until", "3"], "rises over 3 steps"),
    ] {
        let output = command(&["run", example]).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(says) && !text.contains("to pass"), "{arguments:?}: {text}");
    }
    let output = command(&["tune", example, "--devices", "-4"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("'-4' for '--devices"), "{text}");
}

/// After the step that is under way, with a checkpoint.
#[cfg(unix)]
#[test]
fn ctrl_c_and_usr1_end_a_run_that_can_go_on() {
    for signal in ["-INT", "-USR1"] {
        let folder = folder();
        let checkpoints = path(&folder, "run");
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tiny-llama.toml");
        let mut child = command(&["run", example, "--steps", "100000", "--checkpoint-dir", &checkpoints])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{error}"));
        // The first step is told of when it has ended.
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert!(lines.next().expect("a line").expect("text").starts_with("step"));
        assert!(
            Command::new("kill").args([signal, &child.id().to_string()]).status().is_ok_and(|kill| kill.success())
        );
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        let status = child.wait().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(status.code(), Some(130), "{signal}");
        assert!(rest.iter().any(|line| line.starts_with("checkpoint")), "{signal}: {rest:?}");
        let evaluation = printed(&["evaluate", &checkpoints, "--windows", "2"], "");
        assert!(evaluation.starts_with("loss") && evaluation.contains("over 2 sequences"), "{evaluation}");
    }
}

/// The table of the CPU is that of a GPU but for its operators and times, so the command itself is tested everywhere.
#[test]
fn the_selftest_of_the_cpu_passes_and_that_of_a_missing_gpu_says_what_is_missing() {
    let run = |arguments: &[&str]| {
        assert_cmd::Command::cargo_bin("pipeplan").expect("built").args(arguments).output().expect("it runs")
    };
    let output = run(&["selftest", "--device", "cpu", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(table["failed"], 0);
    assert!(table["rows"].as_array().is_some_and(|rows| rows.len() >= 16), "{table}");
    let doctor = run(&["doctor", "--json"]);
    assert!(doctor.status.success());
    let found: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let driver = &found["findings"][0];
    if driver["found"] == false {
        for arguments in
            [&["selftest", "--device", "cuda"][..], &["run", "../examples/tiny-llama.toml", "--device", "cuda"]]
        {
            let output = run(arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(text.contains("To get it:"), "{text}");
            assert_eq!(text.matches("driver is missing: looked for libcuda.so.1").count(), 1, "said once: {text}");
        }
    }
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
            .contains("standard input (an order of its own)")
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
        ("0F0 0F1 0BW0 0BW1\n", "1 rows for 2 ranks"),
        ("0F0 0F1 0BX0\n", "line 1: `0BX0` is not an op"),
        ("", "accepted is one line a rank"),
    ] {
        let error = refused(&["check", &problem, "--order", "-"], order);
        assert!(error.contains(says), "{order}: {error}");
    }
    // Transfers of another program's file are not those of the plan, and nobody is to think so; what is printed is the same.
    std::fs::create_dir(path(&folder, "more")).unwrap();
    let with_transfers = path(&folder, "more/order.csv");
    write(&with_transfers, "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0B1\n1RECV_F0,1F0,1F1,1B0,1B1\n");
    let note = "more/order.csv are left out: transfers are placed anew";
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
