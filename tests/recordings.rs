//! What runtimes other than pipeplan's left of their runs, recorded by `examples/torch_schedules.py`, `megatron_profile.py`,
//! `deepspeed_profile.py` and `flight_recorder.py`: their published orders are found.

use std::path::Path;

use pipeplan_tests::process::{output, printed, run};

/// The files of a folder of `tests/reference`, in order.
fn files(folder: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference").join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<String> = entries.map(|entry| entry.unwrap().path().to_str().unwrap().to_owned()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The order of ranks that a folder's files say, without a plan, and what is told.
fn order_of(folder: &str) -> (Vec<String>, String) {
    let [trace, order] =
        ["trace.json", "order.txt"].map(|name| output(&format!("{folder}-{name}")).to_str().unwrap().to_owned());
    // Whatever the order of the files.
    let mut arguments = vec!["trace".to_owned()];
    arguments.extend(files(folder).into_iter().rev());
    arguments.extend(["-o", &trace, "--write-order", &order].map(str::to_owned));
    let said = printed(&arguments);
    let text = std::fs::read_to_string(order).unwrap();
    (text.lines().filter(|line| line.contains("F0")).map(str::to_owned).collect(), said)
}

/// 1F1B of three stages and four microbatches, by Narayanan et al. (2021): as many forwards first as stages follow.
const ONE_F_ONE_B: [&str; 3] = [
    "0F0 0F1 0F2 0BW0 0F3 0BW1 0BW2 0BW3",
    "1F0 1F1 1BW0 1F2 1BW1 1F3 1BW2 1BW3",
    "2F0 2BW0 2F1 2BW1 2F2 2BW2 2F3 2BW3",
];

#[test]
fn torchs_schedules_without_the_runtime_are_read() {
    let (order, said) = order_of("profile_torch_1f1b");
    assert_eq!(order, ONE_F_ONE_B, "{said}");
    assert!(said.contains("steps         2 of 3 ranks on torch (CPU) over gloo"), "{said}");
    assert!(said.contains("ranks in the order of their numbers"), "{said}");
    let (order, said) = order_of("profile_torch_gpipe");
    let row = |stage| format!("{stage}F0 {stage}F1 {stage}F2 {stage}F3 {stage}BW0 {stage}BW1 {stage}BW2 {stage}BW3");
    assert_eq!(order, [row(0), row(1), row(2)], "{said}");
}

#[test]
fn megatrons_schedules_are_read() {
    let (order, said) = order_of("profile_megatron");
    assert_eq!(order, ONE_F_ONE_B, "{said}");
    assert!(said.contains("ranks in the order of the pipeline's group"), "{said}");
    // Two chunks on each of two ranks: stage 2 is the first rank's second. Groups of two microbatches, (2 - rank - 1) · 2 + 2
    // forwards first.
    let (order, said) = order_of("profile_megatron_interleaved");
    let expected = [
        "0F0 0F1 2F0 2F1 0F2 2BW0 0F3 2BW1 2F2 0BW0 2F3 0BW1 2BW2 2BW3 0BW2 0BW3",
        "1F0 1F1 3F0 3BW0 3F1 3BW1 1F2 1BW0 1F3 1BW1 3F2 3BW2 3F3 3BW3 1BW2 1BW3",
    ];
    assert_eq!(order, expected, "{said}");
}

/// DeepSpeed's TrainSchedule is 1F1B.
#[test]
fn deepspeeds_schedule_is_read() {
    let (order, said) = order_of("profile_deepspeed");
    assert_eq!(order, ONE_F_ONE_B, "{said}");
}

/// A plan of another order is refused with the first op that differs.
#[test]
fn another_order_than_the_plans_is_told() {
    let problem = output("recordings-problem.json").to_str().unwrap().to_owned();
    let text = r#"{"ranks": 3, "microbatches": 4, "stages": {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}}"#;
    std::fs::write(&problem, text).unwrap();
    for (schedule, folder, accepted) in [
        ("gpipe", "profile_torch_gpipe", true),
        ("1f1b", "profile_megatron", true),
        ("gpipe", "profile_megatron", false),
    ] {
        let plan = output("recordings-plan.json").to_str().unwrap().to_owned();
        printed(["plan", &problem, "--schedule", schedule, "-o", &plan]);
        let mut arguments = vec!["trace".to_owned(), plan];
        arguments.extend(files(folder));
        arguments.extend(["-o", "-"].map(str::to_owned));
        let said = run(&arguments);
        let stderr = String::from_utf8_lossy(&said.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(said.status.success(), accepted, "{schedule} {folder}: {stderr}");
        assert!(accepted || stderr.contains("a whole backward of microbatch 0 as op 4"), "{stderr}");
    }
}

/// Rank 2 left the third collective out.
#[test]
fn the_flight_recorder_says_who_waits_for_whom() {
    let mut arguments = vec!["trace".to_owned()];
    arguments.extend(files("flight_recorder"));
    let said = printed(&arguments);
    for line in [
        "all_gather number 3 of group 0 (default_pg), [8] Float",
        "waiting     ranks 0, 1, for at least",
        "not there   rank 2: waits in none; its last was all_reduce number 2 of group 0 (default_pg)",
        "cause         rank 2: others wait for it",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&printed(arguments.iter().map(String::as_str).chain(["-o", "-"]))).unwrap();
    assert_eq!(json["waits"][0]["waiting"], serde_json::json!([0, 1]));
    assert_eq!(json["causes"][0]["rank"], 2);
}

/// The timers of Megatron-LM give sums.
#[test]
fn a_log_of_timers_says_what_to_record_instead() {
    let log = output("megatron.log").to_str().unwrap().to_owned();
    std::fs::write(&log, "(min, max) time across ranks (ms):\n    forward-compute ....: (10.21, 12.55)\n").unwrap();
    let said = run(["trace", &log, "-o", "-"]);
    let stderr = String::from_utf8_lossy(&said.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(stderr.contains("--pytorch-profiler-collect-callstack"), "{stderr}");
    assert_eq!(said.status.code(), Some(2));
}
