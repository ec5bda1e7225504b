//! The npm package as its users have it: packed, installed, and run by Node and by a browser, beside the command.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, Running, printed, run, top};
use pipeplan_tests::torch::{Recorded, recorded};
use serde_json::{Value, json};

/// A folder in which the package is installed, from the file that `npm pack` writes. None where there is no Node.
fn installed() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
        if !has("node") || !has("npm") {
            eprintln!("not run: there is no Node with npm here");
            return None;
        }
        let built = top().join("js/pkg");
        assert!(built.join("pipeplan_bg.wasm").exists(), "the npm package is not built: run ./dev package");
        let folder = process::output("package");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let packed = npm(&folder, ["pack", "--silent", built.to_str().unwrap()]);
        let file = packed.trim();
        assert_eq!(file, format!("pipeplan-{}.tgz", env!("CARGO_PKG_VERSION")), "the version of js/npm/package.json");
        npm(&folder, ["install", "--silent", "--offline", "--no-audit", "--no-fund", &format!("./{file}")]);
        Some(folder)
    });
    folder.as_deref()
}

fn npm<const N: usize>(folder: &Path, arguments: [&str; N]) -> String {
    let mut command = Command::new("npm");
    // A folder of its own: nothing of the person's is used or changed.
    command.args(arguments).current_dir(folder).env("npm_config_cache", folder.join("cache"));
    finished(command.output().unwrap(), "npm")
}

fn finished(output: Output, what: &str) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what} ends with {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Runs a script where the package is installed: what it prints.
fn node(folder: &Path, name: &str, script: &str, input: &str) -> String {
    std::fs::write(folder.join(name), script).unwrap();
    let mut command = Command::new("node");
    command.arg(name).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join();
    finished(output, name)
}

/// What each call of the package comes to: `{ ok }`, or `{ error, faults, place }`.
fn calls(folder: &Path, name: &str, calls: &[Value]) -> Vec<Value> {
    let script = include_str!("package/calls.mjs");
    let answers = node(folder, &format!("{name}.mjs"), script, &json!(calls).to_string());
    serde_json::from_str(&answers).unwrap()
}

/// Equal, where a number is its value: JavaScript writes 2.0 as 2.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}

fn assert_same(package: &Value, command: &str, what: &str) {
    let command: Value = serde_json::from_str(command).unwrap_or_else(|error| panic!("{what}: {error}\n{command}"));
    assert!(same(&package["ok"], &command), "{what}\npackage {package:#}\ncommand {command:#}");
}

/// Each with a schedule that exists for it.
const EXAMPLES: [(&str, &str); 5] = [
    ("examples/tiny-llama.toml", "1f1b"),
    ("examples/llama-2-70b.toml", "v-half"),
    ("examples/zero-bubble-1.5b.toml", "1f1b"),
    ("examples/two-ranks.toml", "1f1b"),
    ("examples/problem.json", "v-min"),
];

fn example(path: &str) -> String {
    std::fs::read_to_string(top().join(path)).unwrap()
}

#[test]
fn plans_are_those_of_the_command_byte_for_byte() {
    let Some(folder) = installed() else { return };
    let schedules: Vec<(&str, &str)> = EXAMPLES
        .iter()
        .flat_map(|(path, _)| {
            ["best", "1f1b", "zb-v", "interleaved-1f1b:8", "gpipe"].map(|schedule| (*path, schedule))
        })
        .collect();
    let asked: Vec<Value> =
        schedules.iter().map(|(path, schedule)| json!(["plan", example(path), { "schedule": schedule }])).collect();
    let mut plans = 0;
    for ((path, schedule), answer) in schedules.iter().zip(calls(folder, "plans", &asked)) {
        let command = run(["plan", path, "--schedule", schedule, "-o", "-"]);
        match answer["ok"].as_str() {
            Some(plan) => {
                assert!(command.status.success(), "{path} {schedule}: the command has no plan");
                assert!(plan.as_bytes() == command.stdout, "{path} {schedule}: the bytes differ");
                plans += 1;
            }
            None => assert_eq!(command.status.code(), Some(2), "{path} {schedule}: {answer}"),
        }
    }
    assert!(plans >= 12, "only {plans} plans");
}

#[test]
fn what_comes_back_is_what_the_command_prints_for_programs() {
    let Some(folder) = installed() else { return };
    let own = example("examples/own-order.txt");
    let rows: Vec<&str> = own.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    for (path, schedule) in EXAMPLES {
        let text = example(path);
        let spec = json!(text);
        let said: Value = serde_json::from_str(&printed(["link", path, "--json"])).unwrap();
        // A link says it all; so does an object.
        let plan = printed(["plan", path, "--schedule", schedule, "--json"]);
        let file = process::output("package-plan.json");
        std::fs::write(&file, &plan).unwrap();
        let file = file.to_str().unwrap();
        let asked = [
            json!(["compare", spec]),
            json!(["check", plan]),
            json!(["link", spec, "https://example.org/page#gone"]),
            json!(["readSpec", said["link"]]),
            json!(["plan", said["spec"], { "schedule": schedule }]),
            json!(["plan", plan, { "schedule": schedule }]),
            json!(["memoryOf", spec, { "schedule": schedule }]),
            json!(["bound", spec]),
        ];
        let answers = calls(folder, "documents", &asked);
        let [compared, checked, linked, read, of_object, of_plan, memory, bound] = &answers[..] else { panic!() };
        assert_same(compared, &printed(["compare", path, "--json"]), path);
        assert_same(checked, &printed(["check", file, "--json"]), path);
        let link = said["link"].as_str().unwrap();
        assert_eq!(linked["ok"].as_str(), Some(format!("https://example.org/page{link}").as_str()));
        assert!(same(&read["ok"], &said["spec"]), "{read}");
        assert_eq!((of_object["ok"].as_str(), of_plan["ok"].as_str()), (Some(&*plan), Some(&*plan)), "{path}");
        let command = run(["memory", path, "--schedule", schedule, "--json"]);
        if command.status.success() {
            assert_same(memory, &String::from_utf8_lossy(&command.stdout), path);
        } else {
            assert!(
                memory["error"].as_str().is_some_and(|error| error.contains("these costs are typed")),
                "{memory}"
            );
        }
        // The least over placements is what the best of a comparison is held against.
        let best = compared["ok"]["rows"].as_array().and_then(|rows| rows.last()).unwrap();
        assert!(bound["ok"]["bound_ns"].as_u64() <= best["bound_ns"].as_u64(), "{bound}");
        assert_eq!(bound["ok"]["bound_ns"], best["bound_of_all_ns"], "{path}");
        let formats = ["svg", "chrome-trace", "torch-csv", "text", "megatron", "megatron-args"];
        let asked = formats.map(|format| json!(["exportAs", plan, format]));
        for (format, answer) in formats.iter().zip(calls(folder, "exports", &asked)) {
            let command = run(["export", file, "--format", format]);
            let text = String::from_utf8_lossy(&command.stdout);
            match answer["ok"].as_str() {
                Some(exported) => assert_eq!(exported, text, "{path} as {format}"),
                None => assert_eq!(command.status.code(), Some(2), "{path} as {format}: {answer}"),
            }
        }
    }
    let path = "examples/tiny-llama.toml";
    let asked = [
        json!(["tune", example(path), { "keep": ["training.microbatch_size"], "schedules": ["1f1b", "zb-v"], "most": 3 }]),
        json!(["tune", example(path), { "devices": 2, "effort": 1000 }]),
    ];
    let commands = [
        &[
            "tune",
            path,
            "--keep",
            "training.microbatch_size",
            "--schedule",
            "1f1b",
            "--schedule",
            "zb-v",
            "--most",
            "3",
        ][..],
        &["tune", path, "--devices", "2", "--effort", "1000"],
    ];
    for (answer, command) in calls(folder, "layouts", &asked).iter().zip(commands) {
        assert_same(answer, &printed(command.iter().chain(&["--json"])), path);
    }
    let path = "examples/two-ranks.toml";
    let plan = printed(["plan", path, "--order", "examples/own-order.txt", "--json"]);
    let orders = [json!(own), json!(rows)];
    let asked = orders.map(|order| json!(["plan", example(path), { "order": order, "name": "own-order" }]));
    for answer in calls(folder, "orders", &asked) {
        assert_eq!(answer["ok"].as_str(), Some(plan.as_str()), "{answer}");
    }
}

/// A plan and a trace of it, both as files, give what the command says of them.
#[test]
fn a_run_is_calibrated_as_the_command_does() {
    let Some(folder) = installed() else { return };
    let [plan, trace] = ["calibrated-plan.json", "calibrated-trace.json"].map(process::output);
    let [plan, trace] = [&plan, &trace].map(|path| path.to_str().unwrap());
    printed(["plan", "examples/tiny-llama.toml", "--schedule", "zb-h1", "-o", plan]);
    printed(["run", plan, "--steps", "2", "--trace", trace]);
    let [plan_text, trace_text] = [plan, trace].map(|path| std::fs::read_to_string(path).unwrap());
    let asked = [json!(["calibrate", plan_text, trace_text]), json!(["calibrate", plan_text, plan_text])];
    let answers = calls(folder, "calibrated", &asked);
    assert_same(&answers[0], &printed(["calibrate", plan, trace, "--json"]), "a run of ZB-H1");
    assert_eq!(answers[1]["faults"][0]["field"], "format", "{}", answers[1]);
}

/// What the time of a plan hangs on is what the command says, searches included.
#[test]
fn what_a_plan_hangs_on_is_what_the_command_says() {
    let Some(folder) = installed() else { return };
    let plan = process::output("sensitive-plan.json");
    let plan = plan.to_str().unwrap();
    printed(["plan", "examples/problem.json", "-o", plan]);
    let text = std::fs::read_to_string(plan).unwrap();
    let options = json!({ "permille": 50, "anew": 2, "effort": 1000 });
    let asked = [
        json!(["sensitivity", text, options]),
        json!(["sensitivity", text]),
        json!(["sensitivity", text, { "permille": 0 }]),
    ];
    let answers = calls(folder, "sensitive", &asked);
    let command = ["sensitivity", plan, "--by", "5", "--anew", "2", "--effort", "1000", "--json"];
    assert_same(&answers[0], &printed(command), "planned anew");
    assert_same(&answers[1], &printed(["sensitivity", plan, "--json"]), "in its order");
    assert_eq!(answers[2]["faults"][0]["field"], "options.permille", "{}", answers[2]);
}

/// What torch recorded on each rank gives the trace that the command makes of it.
#[test]
fn what_torch_recorded_becomes_the_trace_of_the_command() {
    let Some(folder) = installed() else { return };
    let Recorded { plan, files: [first, second], .. } = recorded("package");
    let trace = printed(["trace", &plan, &first, &second, "-o", "-"]);
    let [plan, first, second] = [plan, first, second].map(|path| std::fs::read_to_string(path).unwrap());
    let asked = [
        json!(["traceOfTorch", plan, [second, first]]),
        json!(["traceOfTorch", plan, [first]]),
        json!(["traceOfTorch", plan, ["{}"]]),
        json!(["traceOfTorch", plan, first]),
    ];
    let answers = calls(folder, "torch", &asked);
    assert_eq!(answers[0]["ok"].as_str(), Some(trace.as_str()));
    for (answer, field) in answers[1..].iter().zip(["rank 1 of the plan", "profiles[0], traceEvents", "profiles"]) {
        assert_eq!(answer["faults"][0]["field"], field, "{answer}");
    }
}

/// A script whose size is a variable, read with what the caller gives: the command says the same.
#[test]
fn a_script_is_imported_with_variables_as_the_command_does() {
    let Some(folder) = installed() else { return };
    let script = "case $SIZE in\n7B) LAYERS=32 ;;\n*) LAYERS=40 ;;\nesac\ntorchrun --nproc_per_node 8 pretrain_gpt.py \
        --num-layers $LAYERS --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu \
        --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --seq-length 4096 --bf16 \
        --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --vocab-size 32000 \
        --tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 16\n";
    let path = process::output("package-import.sh");
    std::fs::write(&path, script).unwrap();
    let asked = [
        json!(["importRun", script, "h100", { "variables": { "SIZE": "7B" }, "command": 1 }]),
        json!(["importRun", script, "h100", {}]),
        json!(["importRun", script, "h100", { "variables": { "SIZE": 7 } }]),
        json!(["importRun", script, "h100", { "command": 3 }]),
    ];
    let answers = calls(folder, "imported", &asked);
    let file = path.to_str().unwrap();
    let command = ["import", file, "--device", "h100", "--set", "SIZE=7B", "--command", "1", "--json"];
    assert_same(&answers[0], &printed(command), "a script");
    assert_eq!(answers[0]["ok"]["spec"]["model"]["layers"], 32);
    for (answer, says) in answers[1..].iter().zip(["SIZE", "options.variables.SIZE", "command"]) {
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(says)), "{answer}");
    }
}

/// An order of one's own stands beside the published ones.
#[test]
fn own_orders_are_compared() {
    let Some(folder) = installed() else { return };
    let (spec, order) = ("examples/two-ranks.toml", "examples/own-order.txt");
    let asked = json!(["compare", example(spec), { "order": example(order), "name": "own-order" }]);
    let answer = calls(folder, "own-order", &[asked]).remove(0);
    assert_same(&answer, &printed(["compare", spec, "--order", order, "--json"]), "own order");
    assert!(answer["ok"]["rows"].as_array().unwrap().iter().any(|row| row["schedule"] == "own-order"), "{answer}");
}

/// Measured times are taken as the command takes them from a file; of typed costs, and what is none, nothing is taken.
#[test]
fn measured_times_give_the_plans_of_the_command() {
    let Some(folder) = installed() else { return };
    let path = process::output("package-profile.json");
    let (file, spec) = (path.to_str().unwrap(), "examples/tiny-llama.toml");
    printed(["profile", spec, "-o", file]);
    let options = json!({ "profile": std::fs::read_to_string(&path).unwrap() });
    let answers = calls(
        folder,
        "measured",
        &[
            json!(["plan", example(spec), options]),
            json!(["compare", example(spec), options]),
            json!(["memoryOf", example(spec), options]),
            json!(["plan", example("examples/problem.json"), options]),
            json!(["compare", example(spec), { "profile": "{ \"version\": 7 }" }]),
            json!(["compare", example(spec), { "profile": 7 }]),
        ],
    );
    assert_eq!(answers[0]["ok"], printed(["plan", spec, "--profile", file, "-o", "-"]));
    assert!(answers[0]["ok"] != printed(["plan", spec, "-o", "-"]), "measured times change nothing");
    for (answer, command) in answers[1..3].iter().zip(["compare", "memory"]) {
        let printed = printed([command, spec, "--profile", file, "--json"]);
        assert_same(answer, &printed, command);
    }
    for (answer, field) in answers[3..].iter().zip(["options.profile", "options.profile.version", "options.profile"])
    {
        assert_eq!(answer["faults"][0]["field"], field, "{answer}");
    }
}

/// Wrong input: which fields are named, and what the message says.
#[test]
fn all_that_is_wrong_is_thrown_by_field() {
    let Some(folder) = installed() else { return };
    let model =
        "model.name = 'llama-2-7b'\ncluster.device = 'h100'\nparallel.pipeline = 8\ntraining.microbatches = 8\n";
    let plan = printed(["plan", "examples/two-ranks.toml", "--json"]);
    let edited = plan.replacen("\"makespan_ns\": ", "\"makespan_ns\": 1", 1);
    let cases = [
        (
            json!(["plan", "model.name = 'lama-2-7b'\nparallel.pipeline = 0"]),
            vec!["model.name", "training", "cluster", "parallel.pipeline"],
            "perhaps llama-2-7b",
        ),
        (
            json!(["plan", { "ranks": 0, "microbatches": "four", "stages": {} }]),
            vec!["ranks", "microbatches"],
            "a whole number",
        ),
        (json!(["plan", 5]), vec!["the whole input"], "found number"),
        (json!(["plan"]), vec!["the whole input"], "a spec or a problem"),
        (json!(["plan", [1, 2]]), vec!["the whole input"], "found a list"),
        (
            json!(["plan", model, { "efort": 5, "effort": "much", "onProgress": 1 }]),
            vec!["options.effort", "options.onProgress", "options.efort"],
            "perhaps effort",
        ),
        (json!(["compare", model, { "schedule": "1f1b" }]), vec!["options.schedule"], "an unknown field"),
        (json!(["plan", model, "1f1b"]), vec!["options"], "an object of options"),
        (json!(["plan", model, { "order": "0F0 0X0" }]), vec!["options.order"], "0X0"),
        (json!(["plan", model, { "order": "0F0" }]), vec![], "one fault in this order"),
        (json!(["plan", model, { "schedule": "2f2b" }]), vec!["schedule"], "one of best, gpipe"),
        (json!(["memoryOf", example("examples/problem.json")]), vec![], "these costs are typed"),
        (
            json!(["tune", model, { "keep": ["parallel.tensors"], "devices": 0, "schedules": "1f1b" }]),
            vec!["options.keep[0]", "options.devices", "options.schedules"],
            "perhaps parallel.tensor",
        ),
        (json!(["tune", example("examples/problem.json")]), vec!["model"], "typed costs"),
        (json!(["readSpec", "#v1.rAAAA"]), vec![], "link"),
        (json!(["exportAs", plan, "sgv"]), vec!["format"], "perhaps svg"),
        (json!(["exportAs", plan, "megatron"]), vec![], "these costs are typed"),
        (json!(["exportAs", "{}", "svg"]), vec![], "this is not a plan"),
        (json!(["check", { "format": "pipeplan-plan" }]), vec!["plan"], "the text of a plan file"),
    ];
    let asked: Vec<Value> = cases.iter().map(|(call, _, _)| call.clone()).collect();
    for ((call, fields, says), answer) in cases.iter().zip(calls(folder, "wrong", &asked)) {
        let message = answer["error"].as_str().unwrap_or_else(|| panic!("{call} is accepted: {answer}"));
        let faults = answer["faults"].as_array().unwrap_or_else(|| panic!("{call}: {answer}"));
        for field in fields {
            assert!(faults.iter().any(|fault| fault["field"] == *field), "{call} should blame {field}: {answer}");
            assert!(message.contains(field), "{call}: {message}");
        }
        assert_eq!(faults.is_empty(), fields.is_empty(), "{call}: {answer}");
        assert!(message.contains(says), "{call} should say {says}: {message}");
        for fault in faults {
            let sentence = format!(
                "found {}, accepted is {}",
                fault["found"].as_str().unwrap(),
                fault["accepted"].as_str().unwrap()
            );
            assert!(message.contains(&sentence), "{call}: {message}");
        }
    }
    // Where a text stops being TOML or JSON, as an editor marks it.
    let broken = [json!(["plan", "ranks = 2\nmicro batches = 4"]), json!(["plan", "{ \"ranks\": 2,\n  oops }"])];
    for answer in calls(folder, "broken", &broken) {
        assert_eq!(answer["place"]["line"], 2, "{answer}");
        assert!(answer["place"]["column"].as_u64().is_some_and(|column| column > 1), "{answer}");
    }
    // A plan that is not valid is an answer.
    let mut untrue: Value = serde_json::from_str(&plan).unwrap();
    untrue["schedule"]["rows"][0] = json!("0F0");
    let asked = [json!(["check", edited]), json!(["check", digested(untrue)]), json!(["check", "nonsense"])];
    let answers = calls(folder, "invalid", &asked);
    for (answer, says) in answers.iter().zip(["was changed after it was written", "never runs", "this is not JSON"]) {
        assert_eq!(answer["ok"]["valid"], false, "{answer}");
        assert!(answer["ok"]["error"].as_str().is_some_and(|error| error.contains(says)), "{answer}");
    }
    assert!(answers[1]["ok"]["violations"].as_array().is_some_and(|found| found.len() > 1), "{}", answers[1]);
}

/// With the digest that it now has.
fn digested(mut plan: Value) -> String {
    use sha2::{Digest, Sha256};
    plan.as_object_mut().unwrap().remove("digest");
    let content = pipeplan_core::base::canonical::compact(&plan);
    let mut digest = String::from("sha256:");
    for byte in Sha256::digest(content.as_bytes()) {
        let _ = write!(digest, "{byte:02x}");
    }
    plan["digest"] = json!(digest);
    plan.to_string()
}

#[test]
fn a_search_is_bounded_stopped_and_stepped() {
    let Some(folder) = installed() else { return };
    node(folder, "search.mjs", include_str!("package/search.mjs"), "");
}

/// Numbers that JSON has no word for would silently mean no limit; circles and big integers have no text at all.
#[test]
fn what_json_cannot_say_is_refused_by_name() {
    let Some(folder) = installed() else { return };
    let script = r#"
        import assert from "node:assert/strict";
        import { plan } from "pipeplan";
        const stages = { forward_ns: 2, backward_input_ns: 2 };
        const of = (more) => () => plan({ ranks: 2, microbatches: 2, stages, ...more });
        assert.throws(of({ limit_bytes: NaN }), (error) => error.faults[0].field === "limit_bytes");
        assert.throws(of({ transfer_ns: Infinity }), (error) => error.faults[0].field === "transfer_ns");
        assert.throws(of({ limit_bytes: 5n }), (error) => /BigInt/.test(error.message) && error.faults.length === 1);
        const circle = {};
        circle.problem = circle;
        assert.throws(() => plan(circle), (error) => /circular/.test(error.message) && error.faults.length === 1);
        assert.ok(of({ name: undefined, limit_bytes: null })().startsWith("{"));
    "#;
    node(folder, "numbers.mjs", script, "");
}

#[test]
fn the_examples_of_its_readme_run() {
    let Some(folder) = installed() else { return };
    let text = std::fs::read_to_string(folder.join("node_modules/pipeplan/README.md")).unwrap();
    let examples: Vec<&str> =
        text.split("```js\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert_eq!(examples.len(), 3);
    for (index, example) in examples.iter().enumerate() {
        let printed = node(folder, &format!("readme-{index}.mjs"), example, "");
        assert!(!printed.trim().is_empty(), "{example}");
    }
}

/// Every document that comes back, as a literal of its type: a field too many or too few is an error of the compiler's.
#[test]
fn types_are_those_of_what_comes_back() {
    let Some(folder) = installed() else { return };
    let Some(compiler) = std::env::var_os("PIPEPLAN_TSC") else {
        eprintln!("not run: PIPEPLAN_TSC names no TypeScript compiler; ./dev test gets one");
        return;
    };
    let tight = example("examples/tiny-llama.toml") + "\n[memory]\nlimit_bytes = 3000000\n";
    let model = "model.name = 'llama-2-7b'\ncluster.device = 'a100-80'\nparallel.pipeline = 8\n\
        training.microbatches = 8\ntraining.microbatch_size = 4\n";
    let costly = format!("{model}memory.limit_bytes = '26 GiB'\n");
    let (fit, dealt) =
        (format!("{model}training.recompute = 'fit'\n"), format!("{model}parallel.partition = 'within-limit'\n"));
    let plan = printed(["plan", "examples/llama-2-70b.toml", "--schedule", "v-half", "--json"]);
    let hanging = printed(["plan", "examples/problem.json", "--schedule", "v-min", "--json"]);
    let asked = [
        ("Comparison", json!(["compare", example("examples/two-ranks.toml")])),
        ("Comparison", json!(["compare", tight])),
        ("Memory", json!(["memoryOf", tight, { "schedule": "gpipe" }])),
        ("Memory", json!(["memoryOf", fit, { "schedule": "1f1b" }])),
        ("Memory", json!(["memoryOf", dealt, { "schedule": "1f1b" }])),
        ("Memory", json!(["memoryOf", costly, { "effort": 1000 }])),
        ("Bounds", json!(["bound", example("examples/problem.json")])),
        ("Checked", json!(["check", plan])),
        ("Checked", json!(["check", hanging])),
        ("NotValid", json!(["check", "{}"])),
        ("Spec", json!(["readSpec", example("examples/llama-2-70b.toml")])),
        ("PublishedSchedule[]", json!(["schedules"])),
        ("Layouts", json!(["tune", example("examples/tiny-llama.toml"), { "schedules": ["1f1b"] }])),
    ];
    let calls_: Vec<Value> = asked.iter().map(|(_, call)| call.clone()).collect();
    let mut source =
        String::from("import * as pipeplan from \"pipeplan\";\nimport type * as types from \"pipeplan\";\n");
    let answers = calls(folder, "typed", &calls_);
    let documents = asked.iter().map(|(name, _)| *name).zip(answers.iter().map(|answer| &answer["ok"]));
    // The parts that only some documents have.
    assert!([("changes", 2), ("fit", 3), ("deal", 4)].iter().all(|(part, of)| {
        let found = &answers[*of]["ok"][*part];
        found.is_object() || found.as_array().is_some_and(|found| !found.is_empty())
    }));
    let files = [plan, hanging].map(|file| serde_json::from_str::<Value>(&file).unwrap());
    for (index, (name, document)) in documents.chain(files.iter().map(|file| ("Plan", file))).enumerate() {
        assert!(!document.is_null(), "{name}: {}", answers[index]);
        let _ = writeln!(source, "export const a{index}: types.{name} = {document};");
    }
    source.push_str(include_str!("package/use.ts"));
    std::fs::write(folder.join("typed.ts"), source).unwrap();
    let mut command = Command::new("node");
    command.arg(compiler).args(["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext"]);
    command.args(["--lib", "esnext,dom", "typed.ts"]).current_dir(folder);
    finished(command.output().unwrap(), "tsc");
}

/// Without Node's entry and without a bundler: a page that imports the package's own files.
#[test]
fn a_page_imports_it_without_a_bundler() {
    let Some(folder) = installed() else { return };
    let page = "<!doctype html><title>package</title><script type=module>\n\
        import { plan } from './node_modules/pipeplan/index.js';\n\
        window.plan = plan;\n</script>";
    std::fs::write(folder.join("index.html"), page).unwrap();
    let mut command = Command::new(process::pipeplan());
    command.args(["serve", "--port", "0", "--web", folder.to_str().unwrap()]).current_dir(top());
    let served = Running::start(&mut command);
    let address = served.line(Duration::from_secs(20), |line| {
        line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned)
    });
    let browser = Browser::open("package", 800, 600);
    browser.goto(&address);
    browser.until("the package's functions", || {
        browser.script("return !!window.plan", json!([])).as_bool().filter(|there| *there)
    });
    let path = "examples/two-ranks.toml";
    let plan = browser.script("return window.plan(arguments[0])", json!([example(path)]));
    assert_eq!(plan.as_str(), Some(printed(["plan", path, "--json"]).as_str()));
}

/// The example page of the package: what it shows is what the command says, also after a change.
#[test]
fn its_example_page_runs_as_it_is() {
    let Some(folder) = installed() else { return };
    let package = folder.join("node_modules/pipeplan");
    let served_folder = process::output("package-example");
    let _ = std::fs::remove_dir_all(&served_folder);
    std::fs::create_dir_all(&served_folder).unwrap();
    for file in std::fs::read_dir(&package).unwrap().flatten() {
        std::fs::copy(file.path(), served_folder.join(file.file_name())).unwrap();
    }
    std::fs::copy(package.join("example.html"), served_folder.join("index.html")).unwrap();
    let mut command = Command::new(process::pipeplan());
    command.args(["serve", "--port", "0", "--web", served_folder.to_str().unwrap()]).current_dir(top());
    let served = Running::start(&mut command);
    let address = served.line(Duration::from_secs(20), |line| {
        line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned)
    });
    let browser = Browser::open("package-example", 1000, 900);
    browser.goto(&address);
    let rows = || {
        browser.script("return [...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.innerText))", json!([]))
    };
    let row = |name: &str| {
        let rows = rows();
        let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row[0] == name).cloned());
        row.filter(|row| row[1].is_string())
    };
    let of_command = |pipeline: u64| {
        let spec = process::output("package-example.json");
        let said = json!({ "model": { "name": "llama-2-13b" }, "cluster": { "device": "h100" },
            "parallel": { "pipeline": pipeline }, "training": { "microbatches": 16 } });
        std::fs::write(&spec, said.to_string()).unwrap();
        let compared: Value = serde_json::from_str(&printed(["compare", spec.to_str().unwrap(), "--json"])).unwrap();
        let rows = compared["rows"].as_array().unwrap().clone();
        let row = rows.into_iter().find(|row| row["schedule"] == "1f1b").unwrap();
        format!("{:.1} ms", row["makespan_ns"].as_f64().unwrap() / 1e6)
    };
    let first = browser.until("the first comparison", || row("1f1b"));
    assert_eq!(first[1], of_command(8), "{first}");
    assert_eq!(browser.script("return document.querySelectorAll('#drawing svg').length", json!([])), json!(1));
    browser.picture("package-example.png");
    let set = "const field = document.querySelector('[name=pipeline]'); field.value = arguments[0]; field.dispatchEvent(new Event('input', { bubbles: true }))";
    browser.script(set, json!(["16"]));
    let wanted = of_command(16);
    browser.until("the comparison of sixteen GPUs", || row("1f1b").filter(|row| row[1] == wanted));
    // What is wrong is told by field.
    browser.script(set, json!(["0"]));
    browser.until("what is wrong", || browser.text("#faults").contains("pipeline").then_some(()));
    browser.no_errors();
}
