//! `search`: the best plan that is found, and Ctrl-C.

use std::process::{Command, Stdio};

use crate::command::{command, json_of, printed, refused};
use serde_json::{Value, json};

use super::{PROBLEM, folder, path, write};

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
    assert!(said.contains("proved        no schedule on this placement costs less"), "{said}");
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
    let than = "proved        a schedule on this placement costs 24 ns, 27.27 % less, and none costs less";
    assert!(kept.contains("1f1b (1F1B)") && kept.contains(than), "{kept}");
    let proof = ["plan", "-", "--schedule", "1f1b", "--prove", "60", "--proof", "-"];
    let proof = json_of(&proof, &problem.replace("\"limit_bytes\": 3,", ""));
    jsonschema::validate(&schema, &proof).unwrap_or_else(|error| panic!("{error}\n{proof}"));
    assert_eq!((&proof["cost_ns"], &proof["lower_ns"], &proof["optimal"]), (&json!(33), &json!(24), &json!(false)));
    assert!(refused(&["plan", "-", "--proof", &file], problem).contains("--prove"));
    for seconds in ["0", "-1", "NaN", "1e9"] {
        let seconds = format!("--prove={seconds}");
        assert!(refused(&["plan", "-", &seconds], problem).contains("give a number of seconds"));
    }
    // Before a search whose plan would be lost: this one would take longer than anybody waits.
    let (microbatches, endless) = (problem.replace(": 8,", ": 2000,"), ["--effort", "1000000000000"]);
    let error =
        refused(&[&["plan", "-", "--schedule", "best", "--prove", "1"], &endless[..]].concat(), &microbatches);
    assert!(error.contains("24000 ops") && error.contains("leave --prove out"), "{error}");
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
