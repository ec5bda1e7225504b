//! Ranks as processes of `mpirun`: the same losses as threads, and an end with a report when a process dies.
//!
//! Built with the feature `mpi` alone, and then `mpirun` must be there: `./dev test` sees to both.
#![cfg(feature = "mpi")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

mod tiny;

fn losses(output: &Output) -> Vec<u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let losses = summary["losses"].as_array().expect("losses");
    losses.iter().map(|loss| loss.as_f64().expect("a number").to_bits()).collect()
}

fn mpirun(ranks: usize, plan: &Path, more: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    // More ranks than cores is what a test machine has; containers run as root.
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"]);
    command.arg(assert_cmd::cargo::cargo_bin!("pipeplan")).arg("run").arg(plan);
    command.args(["--transport", "mpi", "--json"]).args(more).env("NO_COLOR", "1");
    command
}

#[test]
fn processes_over_mpi_train_as_threads_do_bit_for_bit() {
    for (ranks, schedule) in [(2, "zb-h1"), (3, "1f1b"), (4, "zb-v")] {
        let plan = tiny::plan("mpi", ranks, schedule);
        let mut threads = Command::new(assert_cmd::cargo::cargo_bin!("pipeplan"));
        let threads = threads.arg("run").arg(&plan).args(["--steps", "3", "--json"]).output().expect("it starts");
        let over_mpi = mpirun(ranks, &plan, &["--steps", "3"]).output().expect("mpirun is there");
        assert_eq!(losses(&over_mpi), losses(&threads), "{ranks} ranks, {schedule}");
    }
}

#[test]
fn another_number_of_processes_is_refused() {
    let output = mpirun(3, &tiny::plan("mpi-world", 2, "1f1b"), &[]).output().expect("mpirun is there");
    assert_ne!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("the plan is for 2 ranks, and 3 processes were started"), "{text}");
}

/// The processes that `parent` has started.
fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect()
}

#[test]
fn a_process_that_dies_ends_the_run_within_seconds_and_leaves_none_behind() {
    let plan = tiny::plan("mpi-death", 3, "1f1b");
    let mut command = mpirun(3, &plan, &["--steps", "100000"]);
    let launched = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun is there");
    thread::sleep(Duration::from_secs(3));
    let processes = children(launched.id());
    assert_eq!(processes.len(), 3, "all ranks run");
    let died = Instant::now();
    let killed = Command::new("kill").args(["-KILL", &processes[1].to_string()]).status();
    assert!(killed.expect("there is a kill").success());
    let output = launched.wait_with_output().expect("it ends");
    assert!(died.elapsed() < Duration::from_secs(8), "{:?}", died.elapsed());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_ne!(output.status.code(), Some(0), "{text}");
    // One of those that are left tells where all were, before the launcher ends it.
    assert!(text.contains("the launcher is ending the run"), "{text}");
    assert!(text.contains("rank 0: ") || text.contains("rank 2: "), "{text}");
    // `mpirun` ends a moment before those that it has killed.
    let left = |process: &u32| Path::new(&format!("/proc/{process}")).exists();
    while processes.iter().any(left) {
        assert!(died.elapsed() < Duration::from_secs(8), "some are still there");
        thread::sleep(Duration::from_millis(20));
    }
}
