//! Memory is bounded by what is read: whatever stands in an input, a command needs no more than the book says, and ends by
//! itself.

#![cfg(unix)]

use std::process::{Command, Stdio};

use crate::command::printed;

use super::{PROBLEM, TINY, folder, path, write};

/// What the command takes before it reads anything, its address space and the allocator's first pieces included.
const BASE: usize = 160 << 20;

/// Exit code and standard error with an address space of at most `bytes`. A command that aborts has no exit code.
fn within(bytes: usize, arguments: &[&str]) -> (Option<i32>, String) {
    let limit = format!("ulimit -v {} && exec \"$0\" \"$@\"", bytes >> 10);
    let output = Command::new("sh")
        .args(["-c", &limit])
        .arg(assert_cmd::cargo::cargo_bin!("pipeplan"))
        .args(arguments)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{error}"));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// `before`, then `piece` until the text has so many `bytes`, then `after`.
fn repeated(before: &str, piece: &str, after: &str, bytes: usize) -> String {
    format!("{before}{}{after}", piece.repeat((bytes - before.len() - after.len()) / piece.len()))
}

/// Name, arguments (FILE is the input, OUT a file to write), the file's name, what is in it, and the factor that the book states.
type Reader = (&'static str, &'static [&'static str], &'static str, String, usize);

/// Long on purpose: a table.
fn readers() -> [Reader; 19] {
    let dense = "123,";
    let event = "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"g\",\"ts\":1,\"dur\":1,\"tid\":7},";
    let line = "I0101 00:00:00.0 0 x:0] Profiler Info: Job (0), type = forward, micro_batch_id = 0, \
                job_start_time = 0.000006, job_end_time = 0.000011\n";
    [
        ("spec of TOML", &["plan", "FILE"], "s.toml", repeated("x = [", dense, "1]\n", 4 << 20), 60),
        ("TOML of tables", &["plan", "FILE"], "t.toml", repeated("", "[[a]]\nb=12345\n", "", 4 << 20), 160),
        ("spec of JSON", &["plan", "FILE"], "s.json", repeated("{\"x\":[", dense, "1]}", 8 << 20), 32),
        ("spec of zeros", &["plan", "FILE"], "z.json", repeated("{\"x\":[", "0,", "1]}", 16 << 20), 8),
        ("spec of tables", &["plan", "FILE"], "o.json", repeated("{\"x\":[", "{\"a\":1},", "1]}", 4 << 20), 100),
        (
            "problem",
            &["plan", "FILE"],
            "p.json",
            repeated("{\"problem\":{\"ranks\":4,\"microbatches\":4,\"stages\":[", dense, "1]}}", 8 << 20),
            32,
        ),
        (
            "plan",
            &["check", "FILE"],
            "plan.json",
            repeated(
                "{\"format\":\"pipeplan-plan\",\"version\":1,\"digest\":\"x\",\"problem\":[",
                dense,
                "1]}",
                8 << 20,
            ),
            24,
        ),
        (
            "trace",
            &["show", "FILE"],
            "trace.json",
            repeated("{\"format\":\"pipeplan-trace\",\"version\":1,\"steps\":[", dense, "1]}", 8 << 20),
            16,
        ),
        (
            "trace of short ops",
            &["show", "FILE"],
            "short.json",
            {
                let count = 1 << 20;
                let (times, ops) = (vec!["0"; count].join(","), vec!["0F0"; count].join(" "));
                let row = format!("{{\"steps\":\"{ops}\",\"start_ns\":[{times}],\"end_ns\":[{times}]}}");
                format!("{{\"format\":\"pipeplan-trace\",\"version\":1,\"steps\":[{{\"step\":0,\"rows\":[{row}]}}]}}")
            },
            16,
        ),
        (
            "trace of empty steps",
            &["show", "FILE"],
            "steps.json",
            repeated(
                "{\"format\":\"pipeplan-trace\",\"version\":1,\"steps\":[",
                "{\"step\":0},",
                "{\"step\":0}]}",
                8 << 20,
            ),
            16,
        ),
        (
            "torch's profile",
            &["trace", "FILE", "-o", "OUT"],
            "e.json",
            repeated("{\"traceEvents\":[", event, "1]}", 16 << 20),
            4,
        ),
        (
            "torch's profile of zeros",
            &["trace", "FILE", "-o", "OUT"],
            "f.json",
            repeated("{\"traceEvents\":[", "0,", "1]}", 16 << 20),
            4,
        ),
        ("workerlog", &["trace", "FILE", "-o", "OUT"], "workerlog.0", repeated("", line, "", 8 << 20), 10),
        (
            "order as CSV",
            &["plan", "TINY", "--order", "FILE"],
            "order.csv",
            repeated("", "0F0,", "0F0\n", 4 << 20),
            16,
        ),
        ("order of lines", &["plan", "TINY", "--order", "FILE"], "order.txt", repeated("", "0F0\n", "", 4 << 20), 16),
        ("config.json", &["plan", "CONFIG"], "config.json", repeated("{\"x\":[", dense, "1]}", 1 << 20), 32),
        (
            "log of Megatron-LM",
            &["import", "FILE", "--device", "h100"],
            "train.log",
            repeated("", " iteration 10/ 500 | elapsed time per iteration (ms): 100.0 |\n", "", 8 << 20),
            8,
        ),
        (
            "script",
            &["import", "FILE", "--device", "h100"],
            "run.sh",
            repeated("#!/bin/bash\n", "A=1\n", "", 4 << 20),
            16,
        ),
        (
            "command line",
            &["import", "FILE", "--device", "h100"],
            "line.txt",
            repeated("pretrain_gpt.py ", "--num-layers 3 ", "\n", 4 << 20),
            16,
        ),
    ]
}

#[test]
fn every_reader_keeps_to_its_factor_of_memory() {
    let folder = folder();
    let out = path(&folder, "out");
    write(&path(&folder, "tiny.toml"), TINY);
    write(&path(&folder, "config.toml"), "model.config = \"config.json\"\ncluster.device = \"h100\"\n");
    let mut failed = Vec::new();
    for (name, arguments, file, text, factor) in readers() {
        let input = path(&folder, file);
        write(&input, &text);
        let (tiny, config) = (path(&folder, "tiny.toml"), path(&folder, "config.toml"));
        let places = [("FILE", &input), ("OUT", &out), ("TINY", &tiny), ("CONFIG", &config)];
        let named = |word: &&str| {
            places.iter().find(|(place, _)| place == word).map_or(word.to_string(), |(_, path)| (*path).clone())
        };
        let arguments: Vec<String> = arguments.iter().map(named).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (code, said) = within(BASE + factor * text.len(), &arguments);
        if !matches!(code, Some(0..=2)) || said.contains("panicked") {
            failed.push(format!("{name}: {code:?}: {}", said.chars().take(300).collect::<String>()));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// A plan that is valid takes more than its text as well.
#[test]
fn slow_a_valid_plan_and_its_problem_keep_to_their_factors() {
    let folder = folder();
    let (problem, plan) = (path(&folder, "problem.json"), path(&folder, "plan.json"));
    let microbatches = 4000;
    write(&problem, &PROBLEM.replace("\"microbatches\": 8", &format!("\"microbatches\": {microbatches}")));
    // Two chunks on each of four ranks, and three kinds of ops.
    let ops = 2 * 4 * 3 * microbatches;
    let per_op = 450;
    let (code, said) = within(BASE + per_op * ops, &["plan", &problem, "-o", &plan]);
    assert_eq!(code, Some(0), "{said}");
    let bytes = std::fs::metadata(&plan).expect("a plan").len() as usize;
    let (code, said) = within(BASE + 24 * bytes, &["check", &plan]);
    assert_eq!(code, Some(0), "{said}");
}

/// What no page could plan is refused with its place and the limit, before memory is taken.
#[test]
fn more_ops_than_memory_holds_are_refused_by_number() {
    let folder = folder();
    let problem = path(&folder, "problem.json");
    write(
        &problem,
        &PROBLEM
            .replace("\"microbatches\": 8", "\"microbatches\": 1000000")
            .replace("\"chunks\": 2", "\"chunks\": 1")
            .replace("\"v\"", "\"linear\""),
    );
    let (code, said) = within(BASE, &["plan", &problem]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("microbatches") && said.contains("at most 666666 with 4 stages (8000000 ops)"), "{said}");
    // Nor does a small problem say it.
    assert!(printed(&["plan", "-"], PROBLEM).contains("makespan"));
}
