//! The command as other programs and scripts meet it: fixed fields, exit codes, refusals, truth.

use std::io::Write;
use std::process::{Command, Stdio};

use pipeplan_tests::judge::Problem;
use pipeplan_tests::process::{output, pipeplan, printed, run, top};
use pipeplan_tests::torch::{Recorded, recorded, recorded_on_gpu};
use serde_json::{Value, json};

fn json_of<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Value {
    let text = printed(arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

const EXAMPLES: [&str; 4] = [
    "examples/tiny-llama.toml",
    "examples/llama-2-70b.toml",
    "examples/zero-bubble-1.5b.toml",
    "examples/problem.json",
];

/// Exit code and standard error of `pipeplan` with `input` on standard input, given little memory: what is
/// too large has to be refused before memory is taken for it.
fn refused(arguments: &[&str], input: &str) -> (Option<i32>, String) {
    let limited = format!("ulimit -v {}; exec \"$0\" \"$@\"", 1 << 20);
    let mut child = Command::new("bash")
        .args(["-c", &limited])
        .arg(pipeplan())
        .args(arguments)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses early closes its end.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_comparison_has_the_fields_that_other_programs_rely_on() {
    for example in EXAMPLES {
        let comparison = json_of(["compare", example, "--json"]);
        assert!(["makespan", "longest_span"].contains(&comparison["objective"].as_str().unwrap()));
        let rows = comparison["rows"].as_array().unwrap();
        assert_eq!(rows.last().unwrap()["schedule"], "best", "{example}");
        for row in rows {
            let has = |key: &str| !row[key].is_null();
            match row["status"].as_str() {
                Some("ok") => {
                    for key in ["makespan_ns", "longest_span_ns", "bubble_ratio", "peak_bytes", "bound_ns"] {
                        assert!(has(key), "{example}: {key} of {row}");
                    }
                }
                Some("absent") => assert!(row["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{row}"),
                _ => panic!("{example}: {row}"),
            }
        }
    }
}

#[test]
fn a_plan_goes_through_every_command() {
    let dir = tempdir("through");
    for (number, example) in EXAMPLES.into_iter().enumerate() {
        let file = dir.join(format!("{number}.json"));
        let file = file.to_str().unwrap();
        printed(["plan", example, "-o", file]);
        let text = std::fs::read_to_string(file).unwrap();
        let plan: Value = serde_json::from_str(&text).unwrap();
        let rows: Vec<&str> =
            plan["schedule"]["rows"].as_array().unwrap().iter().map(|row| row.as_str().unwrap()).collect();
        let verdict = Problem::read(&plan["problem"]).unwrap().judge(&rows).unwrap();
        assert_eq!(plan["prediction"]["makespan_ns"], verdict.makespan_ns, "{example}");
        assert_eq!(json_of(["check", file, "--json"])["valid"], true, "{example}");
        assert!(printed(["check", file]).contains("valid"), "{example}");
        assert!(printed(["show", file]).contains("makespan"), "{example}");
        // A link of the spec gives the same plan, byte for byte.
        let link = printed(["link", example]);
        assert!(printed(["plan", link.trim(), "-o", "-"]) == text, "{example}");
        // And so does what the link says with every default written out.
        let spec = json_of(["link", link.trim(), "--json"])["spec"].to_string();
        let spec_file = dir.join(format!("{number}-spec.json"));
        std::fs::write(&spec_file, spec).unwrap();
        assert!(printed(["plan", spec_file.to_str().unwrap(), "-o", "-"]) == text, "{example}");
    }
}

#[test]
fn what_is_refused_is_refused_by_name_with_exit_code_2() {
    let plan = printed(["plan", "examples/problem.json", "-o", "-"]);
    let example = |name: &str| std::fs::read_to_string(top().join("examples").join(name)).unwrap();
    let problem = |change: Value| {
        let mut file: Value = serde_json::from_str(&example("problem.json")).unwrap();
        for (key, value) in change.as_object().unwrap() {
            file[key] = value.clone();
        }
        file.to_string()
    };
    let cases: Vec<(&[&str], String, &[&str])> = vec![
        (&["check", "-"], plan.replace("\"version\": 1", "\"version\": 2"), &["version", "2"]),
        (&["check", "-"], plan.replacen("0F0 0F1", "0F1 0F0", 1), &["digest"]),
        (&["check", "-"], plan.replace("pipeplan-plan", "pipeplan-plot"), &["format"]),
        (&["check", "-"], plan[..plan.len() / 2].to_string(), &["line"]),
        (&["plan", "-"], problem(json!({ "ranks": 0 })), &["ranks", "0"]),
        (&["plan", "-"], problem(json!({ "microbatches": 1_000_000_000u64 })), &["microbatches", "1000000000"]),
        (
            &["plan", "-"],
            problem(json!({ "ranks": 1024, "chunks": 64, "microbatches": 1_000_000, "placement": "any" })),
            &["microbatches"],
        ),
        (&["plan", "-"], problem(json!({ "limit_bytes": 1 })), &["rank", "1"]),
        (&["plan", "-"], problem(json!({ "ranks": u64::MAX })), &["ranks"]),
        (&["plan", "-"], problem(json!({ "transfer_ns": 1u64 << 60 })), &["transfer_ns"]),
        (&["plan", "-"], problem(json!({ "placement": [0, 1, 2, 3] })), &["placement"]),
        (&["plan", "-"], problem(json!({ "colour": "red" })), &["colour"]),
        (&["plan", "-", "--schedule", "fastest"], problem(json!({})), &["fastest", "zb-v"]),
        (&["plan", "-"], "#v1.rAAAAAAAA".into(), &["checksum"]),
        (&["plan", "-"], "[".repeat(200_000), &[]),
        (&["plan", "-"], String::new(), &[]),
        (
            &["plan", "-"],
            "[model]\nname = \"lama\"\n[cluster]\ndevice = \"h1\"\n[parallel]\npipeline = 0\n".into(),
            &["model.name", "cluster.device", "parallel.pipeline", "training"],
        ),
        (&["run", "-"], "{}".into(), &[]),
        (&["run", "-"], example("llama-2-70b.toml"), &["the ranks of this plan need", "plan a smaller model"]),
        (&["run", "-"], example("problem.json"), &["typed costs", "--backend modelled"]),
        (&["plan", "-"], "[1, 2]".into(), &["a list", "an object of JSON"]),
        (&["plan", "no-such-file.toml"], String::new(), &["no-such-file.toml"]),
        (&["compare", "-"], r#"{ "format": "pipeplan-trace" }"#.into(), &["is a trace", "calibrate"]),
        (&["show", "-"], r#"{ "format": "pipeplan-proof" }"#.into(), &["is a proof"]),
        (
            &["plan", "-"],
            r#"{ "version": 1, "device": "h", "operators": [] }"#.into(),
            &["is a profile", "--profile"],
        ),
        (&["plan", "-", "--effort", "1e9"], problem(json!({})), &["1e9", "--effort", "whole number"]),
        (&["tune", "-", "--devices", "-8"], example("tiny-llama.toml"), &["-8", "--devices", "whole number"]),
        (
            &["tune", "-", "--devices", "7", "--keep", "parallel.pipeline", "--keep", "parallel.data"],
            "model.name = \"tiny-llama\"\ncluster = { device = \"cpu\", devices_per_node = 8 }\n\
             parallel.pipeline = 1\ntraining = { microbatches = 8, sequence = 64 }"
                .into(),
            &["parallel.tensor: found 7", "it can be split over 4 devices"],
        ),
    ];
    for (arguments, input, says) in cases {
        let (code, error) = refused(arguments, &input);
        let shown: String = input.chars().take(300).collect();
        assert_eq!(code, Some(2), "{arguments:?} {shown}\n{error}");
        assert!(!error.trim().is_empty() && !error.contains("panicked"), "{arguments:?} {shown}\n{error}");
        assert!(error.len() < 20_000, "{arguments:?} {shown}: an error of {} bytes", error.len());
        for word in says {
            assert!(error.contains(word), "{arguments:?} {shown}: nothing of {word} in\n{error}");
        }
    }
}

#[test]
fn large_problems_are_planned_within_little_memory_and_time() {
    let problem = json!({
        "ranks": 64, "chunks": 1, "microbatches": 4096, "placement": "linear", "transfer_ns": 3,
        "stages": { "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45,
                    "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
    });
    let (code, error) = refused(&["plan", "-", "--schedule", "1f1b", "-o", "/dev/null"], &problem.to_string());
    assert_eq!(code, Some(0), "{error}");
}

/// The loss of every step, to the last bit, is that of one rank which takes the microbatches one by one.
#[test]
fn every_schedule_trains_like_a_single_rank() {
    let dir = tempdir("truth");
    let spec = |pipeline: u32, schedule: &str| {
        format!(
            "schedule = \"{schedule}\"\n[model]\nname = \"tiny-llama\"\nlayers = 4\nhidden = 32\nffn = 64\n[cluster]\ndevice = \"cpu\"\n\
             [parallel]\npipeline = {pipeline}\n[training]\nmicrobatches = 4\nsequence = 16\n"
        )
    };
    let losses = |name: &str, spec: String| {
        let file = dir.join(format!("{name}.toml"));
        std::fs::write(&file, spec).unwrap();
        json_of(["run", file.to_str().unwrap(), "--steps", "3", "--json"])["losses"].clone()
    };
    let alone = losses("alone", spec(1, "gpipe"));
    assert_eq!(alone.as_array().map(Vec::len), Some(3));
    for schedule in ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "v-half"] {
        assert_eq!(losses(schedule, spec(2, schedule)), alone, "{schedule}");
    }
    assert_eq!(losses("again", spec(2, "zb-v")), losses("again", spec(2, "zb-v")), "a second run");
    // Two copies of the weights, whose gradients are added in another order: the same to f32's rounding.
    let two_way = losses("two-way", spec(2, "chimera"));
    for (found, expected) in two_way.as_array().unwrap().iter().zip(alone.as_array().unwrap()) {
        let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
        assert!((found / expected - 1.0).abs() < 1e-5, "{found} {expected}");
    }
}

/// A trained plan and its trace give times that a second plan is made of: it takes what the order takes with them.
#[test]
fn a_trace_says_where_time_went_and_becomes_a_problem() {
    let dir = tempdir("calibrated");
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (plan, trace, measured) = (at("plan.json"), at("trace.json"), at("measured.json"));
    for schedule in ["1f1b", "zb-v"] {
        printed(["plan", "examples/tiny-llama.toml", "--schedule", schedule, "-o", &plan]);
        printed(["run", &plan, "--steps", "3", "--trace", &trace]);
        let said = json_of(["calibrate", &plan, &trace, "--json"]);
        let part = |name: &str| said["makespan"][name].as_i64().unwrap();
        let parts = ["planned_ns", "ops_ns", "hops_ns", "spread_ns", "rest_ns"].map(part);
        assert_eq!(parts.iter().sum::<i64>(), part("measured_ns"), "{schedule}: {parts:?}");
        assert_eq!(said["jobs"].as_array().unwrap().len(), if schedule == "1f1b" { 4 * 2 } else { 8 * 3 }, "{said}");

        let shown = printed(["calibrate", &plan, &trace, "-o", &measured]);
        assert!(["planned", "spread", "measured", "on the path"].iter().all(|word| shown.contains(word)), "{shown}");
        let again = json_of(["plan", &measured, "--schedule", schedule, "--json"]);
        let makespan = again["prediction"]["makespan_ns"].as_i64();
        assert_eq!(
            makespan,
            Some(parts[..3].iter().sum()),
            "{schedule}: planned, ops and hops are what it takes then"
        );
        assert_eq!(again["problem"]["stages"], said["problem"]["stages"]);
    }
    // The last trace is one of ZB-V.
    printed(["plan", "examples/tiny-llama.toml", "--schedule", "1f1b", "-o", &plan]);
    let (code, error) = refused(&["calibrate", &plan, &trace], "");
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("steps[1].rows[0]") && error.contains("the plan that ran"), "{error}");
    let (code, error) = refused(&["calibrate", "-", "-"], "");
    assert_eq!((code, error.contains("standard input")), (Some(2), true), "{error}");
}

/// What a plan hangs on is what its order takes on a problem file that says so.
#[test]
fn what_a_plan_hangs_on_is_what_changed_problems_take() {
    let dir = tempdir("sensitive");
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (plan, changed) = (at("plan.json"), at("changed.json"));
    printed(["plan", "examples/problem.json", "-o", &plan]);
    let said = json_of(["sensitivity", &plan, "--by", "20", "--anew", "2", "--json"]);
    let effects = said["effects"].as_array().unwrap();
    let file: Value = serde_json::from_str(&std::fs::read_to_string(&plan).unwrap()).unwrap();
    let problem = &file["problem"];
    // Its stages are alike: the file has one.
    let count = problem["ranks"].as_u64().unwrap() * problem["chunks"].as_u64().unwrap();
    let stages = vec![problem["stages"].clone(); count as usize];
    for effect in effects.iter().filter(|effect| effect["what"] == "stage" || effect["what"] == "messages") {
        for (name, times) in [("longer_ns", 1.2), ("less_ns", 0.8)] {
            let scaled = |ns: &Value| json!((ns.as_f64().unwrap() * times).round() as u64);
            let mut other = problem.clone();
            match effect["stage"].as_u64() {
                Some(stage) => {
                    let mut stages = stages.clone();
                    for job in ["forward_ns", "backward_input_ns", "backward_weight_ns"] {
                        stages[stage as usize][job] = scaled(&stages[stage as usize][job]);
                    }
                    other["stages"] = json!(stages);
                }
                None => other["transfer_ns"] = scaled(&other["transfer_ns"]),
            }
            std::fs::write(&changed, other.to_string()).unwrap();
            let taken = json_of(["plan", &changed, "--order", &plan, "--json"]);
            assert_eq!(taken["prediction"]["longest_span_ns"], effect[name], "{effect} {name}");
        }
    }
    // The file has a limit: more and less memory come first, then all ops.
    let planned: Vec<&Value> = effects.iter().filter(|effect| effect.get("anew").is_some()).collect();
    assert_eq!(
        planned.iter().map(|effect| effect["what"].as_str().unwrap()).collect::<Vec<_>>(),
        ["everything", "memory"]
    );
    let [more, less] = ["longer_ns", "less_ns"].map(|name| planned[1]["anew"][name].as_u64().unwrap());
    assert!(more <= said["best_ns"].as_u64().unwrap() && said["best_ns"].as_u64().unwrap() < less, "{said}");

    let shown = printed(["sensitivity", &plan, "--anew", "1"]);
    assert!(
        ["longest span", "rank 3", "messages 0-1", "memory", "new schedule"].iter().all(|word| shown.contains(word)),
        "{shown}"
    );
    for by in ["0", "-5", "901", "much"] {
        let (code, error) = refused(&["sensitivity", &plan, &format!("--by={by}")], "");
        assert_eq!((code, error.contains("from 0.1 to 900")), (Some(2), true), "{error}");
    }
}

/// A proof is one of the plan that is shown. An exact search that finds a better one than an order of one's own, or than a
/// named schedule, proves neither.
#[test]
fn what_an_exact_search_beats_is_not_proved() {
    let (spec, order) = ("examples/two-ranks.toml", "examples/own-order.txt");
    let own = printed(["plan", spec, "--order", order, "--prove", "20"]);
    assert!(own.contains("a schedule on this placement costs 13.00 µs, 7.14 % less, and none costs less"), "{own}");
    let named = printed(["plan", spec, "--schedule", "1f1b", "--prove", "20"]);
    assert!(named.contains("a schedule on this placement costs 13.00 µs"), "{named}");
    let best = printed(["plan", spec, "--schedule", "best", "--prove", "20"]);
    assert!(best.contains("no schedule on this placement costs less\n"), "{best}");
}

/// Said as an argument or in the spec, jitter is the same; `best` is what one step in twenty costs more than the least of.
#[test]
fn what_jitter_costs_is_told() {
    let argued = json_of(["compare", "examples/zero-bubble-1.5b.toml", "--jitter", "10", "--json"]);
    let spec = output("jittered.toml");
    let text = std::fs::read_to_string(top().join("examples/zero-bubble-1.5b.toml")).unwrap();
    std::fs::write(&spec, format!("jitter_permille = 100\n{text}")).unwrap();
    let spec = spec.to_str().unwrap();
    assert_eq!(json_of(["compare", spec, "--json"]), argued);
    let late = |row: &Value| row["late_ns"].as_u64();
    let rows: Vec<&Value> = argued["rows"].as_array().unwrap().iter().filter(|row| row["status"] == "ok").collect();
    let (best, others) = rows.split_last().unwrap();
    assert!(others.len() > 3 && others.iter().all(|row| late(row) >= late(best) && row["typical_ns"].is_u64()));
    // What a plan of it says of itself, also when it is read again.
    let plan = output("jittered-plan.json");
    let plan = plan.to_str().unwrap();
    let told = printed(["plan", spec, "-o", plan]);
    let line = told.lines().find(|line| line.starts_with("with jitter")).unwrap_or_else(|| panic!("{told}"));
    assert!(printed(["show", plan]).contains(line));
    let (code, error) = refused(&["compare", spec, "--jitter", "101"], "");
    assert!(code == Some(2) && error.contains("from 0 to 100"), "{error}");
    let (code, error) = refused(&["plan", "-"], &format!("jitter_permille = 1001\n{text}"));
    assert!(code == Some(2) && error.contains("jitter_permille: found 1001"), "{error}");
}

/// The makespan of a step of `trace`, and for how long ranks were at work, against what is expected.
fn expect_step(trace: &str, step: &str, makespan_ns: i64, busy_ns: [i64; 2]) {
    let shown = json_of(["show", trace, "--step", step, "--json"]);
    let near = |found: i64, expected: i64| assert!((found - expected).abs() <= 20, "{step}: {found} {expected}");
    near(shown["makespan_ns"].as_i64().unwrap(), makespan_ns);
    for (row, busy_ns) in shown["rows"].as_array().unwrap().iter().zip(busy_ns) {
        let spans = row.as_array().unwrap().iter();
        near(spans.map(|span| span["end_ns"].as_i64().unwrap() - span["start_ns"].as_i64().unwrap()).sum(), busy_ns);
    }
}

/// What torch recorded of an order is a trace of its plan. The figures are those that a few lines of Python find in the same
/// files: from the first operator of each range to its end.
#[test]
fn what_torch_recorded_becomes_a_trace() {
    let dir = tempdir("torch");
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let trace = at("trace.json");
    let Recorded { plan, packed: [first, second], files: [unpacked, _] } = recorded("command");
    let told = printed(["trace", &plan, &second, &first, "-o", &trace]);
    assert!(told.contains("2 of 2 ranks on torch (CPU) over gloo"), "{told}");
    for (step, makespan_ns, busy_ns) in
        [("2", 6_116_124, [1_732_893, 1_819_262]), ("3", 5_592_549, [1_767_695, 1_962_447])]
    {
        expect_step(&trace, step, makespan_ns, busy_ns);
    }
    let said = json_of(["calibrate", &plan, &trace, "--json"]);
    assert_eq!(said["jobs"].as_array().unwrap().len(), 4 * 3, "{said}");
    // Unpacked, and through standard input, it is the same.
    let again = format!("{} trace {plan} - {second} -o - < {unpacked} | cmp - {trace}", pipeplan().display());
    let same = Command::new("bash").args(["-c", &again]).current_dir(top()).status().unwrap();
    assert!(same.success());
    for (arguments, says) in [
        (vec!["trace", &plan, &first, "-o", &trace], "rank 1 of the plan: found no file with its ops"),
        (vec!["trace", &plan, &plan, "-o", &trace], "accepted is a file of torch.profiler"),
        (vec!["trace", &plan, "-", "-", "-o", &trace], "only one of"),
        (vec!["calibrate", &plan, &first], "is not text: byte"),
    ] {
        let (code, error) = refused(&arguments, "");
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(says), "{error}");
    }
}

/// On a GPU it is the kernels that count, which other threads launch, too. The figures are again Python's: of each range the
/// first start and the last end of those kernels, but for NCCL's, whose launches lie within it.
#[test]
fn what_torch_recorded_on_a_gpu_becomes_a_trace() {
    let trace = tempdir("torch-gpu").join("trace.json").to_str().unwrap().to_owned();
    let Recorded { plan, packed: [first, second], .. } = recorded_on_gpu("command-gpu");
    let told = printed(["trace", &plan, &first, &second, "-o", &trace]);
    assert!(told.contains("3 of 2 ranks on torch (GPU) over nccl"), "{told}");
    // The most that its allocator's events tell of is 303,084,544 bytes.
    assert!(told.contains("289.0 MiB on the fullest rank, by torch's allocator"), "{told}");
    for (step, makespan_ns, busy_ns) in [
        ("2", 17_750_967, [4_097_832, 7_423_877]),
        ("3", 14_926_502, [4_105_031, 7_425_730]),
        ("4", 14_926_214, [4_106_950, 7_444_738]),
    ] {
        expect_step(&trace, step, makespan_ns, busy_ns);
    }
    // What torch's ranks waited for is messages.
    let said = printed(["calibrate", &plan, &trace]);
    assert!(said.contains("0 to 1") && said.contains("1 to 0"), "{said}");
}

#[test]
fn every_command_explains_itself() {
    let help = printed(["--help"]);
    assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    for command in ["plan", "compare", "check", "show", "link", "run", "trace", "serve"] {
        assert!(help.contains(command), "{command}");
        assert!(printed([command, "--help"]).contains("Examples:"), "{command}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(printed(["completions", shell]).contains("pipeplan"));
    }
    assert_eq!(run(["plan"]).status.code(), Some(2));
}

#[test]
fn the_schema_describes_the_plans_that_are_written() {
    let schema = json_of(["schema"]);
    let plan: Value = serde_json::from_str(&printed(["plan", "examples/tiny-llama.toml", "-o", "-"])).unwrap();
    // Every field of a plan is in the schema, and every field that the schema asks for is in a plan.
    let properties = schema["properties"].as_object().unwrap();
    assert!(plan.as_object().unwrap().keys().all(|key| properties.contains_key(key)));
    assert!(schema["required"].as_array().unwrap().iter().all(|key| !plan[key.as_str().unwrap()].is_null()));
}

fn tempdir(name: &str) -> std::path::PathBuf {
    let dir = output("commands").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
