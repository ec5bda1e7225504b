//! A plan that trains in a moment, and what tests of the command do with it.
#![allow(dead_code, reason = "each test uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The command, told of no launcher.
pub fn pipeplan(arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("pipeplan"));
    command.args(arguments).env("NO_COLOR", "1");
    for variable in ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(variable);
    }
    command
}

/// The bits of the losses in the summary that `output` is, of a run that ended well.
pub fn losses(output: &Output) -> Vec<u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let losses = summary["losses"].as_array().expect("losses");
    losses.iter().map(|loss| loss.as_f64().expect("a number").to_bits()).collect()
}

/// That every row of a table of collectives holds.
pub fn assert_selftest(output: &Output, what: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let table: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((&table["device"], &table["failed"]), (&what.into(), &0.into()));
    let rows = table["rows"].as_array().expect("rows");
    for name in [
        "all-reduce",
        "reduce ",
        "reduce-scatter",
        "all-gather",
        "broadcast",
        "pass in a ring",
        "barrier",
        "messages to the next",
    ] {
        let is_it = |row: &&Value| row["name"].as_str().is_some_and(|found| found.starts_with(name));
        assert!(rows.iter().any(|row| is_it(&row)), "{name} is missing");
    }
}

/// The files of the weights and optimizer states of a checkpoint.
pub fn tensors(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).expect("a checkpoint").flatten();
    let found = entries.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "safetensors"));
    let mut files: Vec<(String, Vec<u8>)> = found
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).expect("read")))
        .collect();
    files.sort();
    files
}

/// How many checkpoints are in `folder`.
pub fn checkpoints(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).expect("it is there").flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("step-")).count()
}

/// The processes that `parent` has started.
pub fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Waits until none of `processes` is left.
pub fn assert_gone(processes: &[u32], within: Duration) {
    let started = Instant::now();
    while let Some(left) = processes.iter().find(|process| Path::new(&format!("/proc/{process}")).exists()) {
        assert!(started.elapsed() < within, "process {left} is still there");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Breaks a run in its fifth step or so in each way in which a rank can, resumes it, and holds it against an unbroken
/// one. `run` makes the command that runs `plan` with more arguments on so many ranks.
pub fn every_failure_has_one_report_and_a_second_start_goes_on(
    name: &str,
    ranks: usize,
    run: impl Fn(&Path, &[&str]) -> Command,
) {
    let plan = plan(name, ranks, "1f1b");
    let output = |more: &[&str]| run(&plan, more).output().expect("it starts");
    let whole = losses(&output(&["--steps", "8", "--json"]));
    for (what, says) in [
        ("1:death@60", "injected failure: this rank dies here"),
        ("1:short@60", " expected"),
        ("1:lost@60", "rank 1"),
        ("1:stall@60/600", "rank 1"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoints = folder.path().to_str().expect("a path");
        let saving = ["--steps", "8", "--json", "--checkpoint-dir", checkpoints, "--checkpoint-every", "1"];
        let started = Instant::now();
        let broken = output(&[&saving[..], &["--fault", what, "--patience", "2"]].concat());
        // Two seconds of patience, five of grace, three for what does not answer, and a loaded machine.
        assert!(started.elapsed() < Duration::from_secs(40), "{what}: {:?}", started.elapsed());
        let text = String::from_utf8_lossy(&broken.stderr).into_owned();
        assert_ne!(broken.status.code(), Some(0), "{what}: {text}");
        assert!(text.contains(says), "{what}: {text}");
        let report = |line: &&str| line.contains(" failed: ") && line.contains("rank ");
        assert_eq!(text.lines().filter(report).count(), 1, "{what}: one report: {text}");
        for rank in 0..ranks {
            assert!(text.contains(&format!("rank {rank}: ")), "{what}: where rank {rank} was: {text}");
        }
        assert!(text.contains("resume with `--resume "), "{what}: {text}");
        let resumed = losses(&output(&["--steps", "8", "--json", "--resume", checkpoints]));
        assert!((1..8).contains(&resumed.len()), "{what}: {} steps were left", resumed.len());
        assert_eq!(resumed[..], whole[8 - resumed.len()..], "{what}");
    }
}

/// The file of a plan of four layers for so many ranks; `name` keeps tests apart.
pub fn plan(name: &str, ranks: usize, schedule: &str) -> PathBuf {
    plan_with(name, ranks, schedule, "")
}

/// The same with more lines under `[parallel]`.
pub fn plan_with(name: &str, ranks: usize, schedule: &str, parallel: &str) -> PathBuf {
    let file = |what: &str| {
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("pipeplan-{name}-{}-{ranks}-{schedule}{what}", std::process::id()))
    };
    let chunks = if schedule == "zb-v" { 2 } else { 1 };
    let spec = format!(
        "schedule = \"{schedule}\"\n[model]\nname = \"tiny-llama\"\nlayers = 8\n[cluster]\ndevice = \"cpu\"\n[parallel]\n\
         pipeline = {ranks}\nchunks = {chunks}\n{parallel}[training]\nmicrobatches = 6\nsequence = 16\n"
    );
    let (spec_file, plan_file) = (file(".toml"), file(".json"));
    std::fs::write(&spec_file, spec).expect("a spec is written");
    let output = Command::new(assert_cmd::cargo::cargo_bin!("pipeplan"))
        .args([std::ffi::OsStr::new("plan"), spec_file.as_os_str(), "-o".as_ref(), plan_file.as_os_str()])
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    plan_file
}
