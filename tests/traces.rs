//! Traces of a cluster as a person works with them: gathered, read from other programs' logs, selected, merged, explained, and
//! planned from again.

use std::path::Path;

use pipeplan_tests::process::{output, printed, run};
use serde_json::Value;

fn json_of<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Value {
    let text = printed(arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// An empty folder with a function from names to paths in it.
fn folder(name: &str) -> impl Fn(&str) -> String {
    let folder = output(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    move |file: &str| folder.join(file).to_str().unwrap().to_owned()
}

fn write(path: &str, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
}

fn read(path: &str) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A small model on four devices of a kind.
fn spec(device: &str) -> String {
    format!(
        "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\n[cluster]\ndevice = \"{device}\"\n\
         [parallel]\npipeline = 4\n[training]\nmicrobatches = 8\nmicrobatch_size = 4\nsequence = 64\n"
    )
}

/// The makespan of the plan in a file.
fn planned_ns(plan: &str) -> f64 {
    read(plan)["prediction"]["makespan_ns"].as_f64().unwrap()
}

/// Plan, run, trace, calibrate, plan, run: the devices are others than the spec says, and the second plan knows.
///
/// The run waits for the times of a plan for the devices that there are, so that the truth is exact.
#[test]
fn the_second_plan_is_nearer_to_its_run() {
    let at = folder("loop");
    let (thought, truth) = (at("thought.toml"), at("truth.toml"));
    write(&thought, &spec("h100"));
    write(&truth, &spec("cpu"));
    let mut errors = Vec::new();
    let mut profile: Option<String> = None;
    for round in ["first", "second"] {
        let [plan, really, trace, next] =
            ["plan", "really", "trace", "profile"].map(|what| at(&format!("{round}-{what}.json")));
        let mut arguments = vec!["plan", &thought, "-o", &plan];
        if let Some(profile) = &profile {
            arguments.extend(["--profile", profile]);
        }
        printed(arguments);
        // What the devices that there are make of this order.
        printed(["plan", &truth, "--order", &plan, "-o", &really]);
        printed(["run", &really, "--backend", "modelled", "--steps", "2", "--trace", &trace]);
        let said = printed(["calibrate", &plan, &trace, "--write-profile", &next]);
        assert!(said.contains("holds the times by rank, stage and job"), "{said}");
        let measured = json_of(["calibrate", &plan, &trace, "--json"])["makespan"]["measured_ns"].as_f64().unwrap();
        errors.push((planned_ns(&plan) / measured - 1.0).abs());
        // The model is still there: this plan can train.
        assert_eq!(read(&plan)["spec"]["model"]["name"], "tiny-llama");
        profile = Some(next);
    }
    assert!(errors[1] < 0.5 * errors[0], "{errors:?}");
}

/// A run with a slow rank names it, plans anew with less work for it, and trains the same losses: the state goes from plan to plan.
#[test]
fn a_run_plans_itself_anew_where_a_rank_is_slow() {
    let at = folder("replan");
    let (spec, new, saved) = (at("spec.toml"), at("new.json"), at("saved"));
    write(&spec, &self::spec("cpu").replace("\"tiny-llama\"", "\"tiny-llama\"\nlayers = 12"));
    let train = ["run", &spec, "--steps", "30", "--precision", "f64", "--json"];
    let plain = json_of(train);
    let slow = ["--fault", "1:slow@4", "--replan=4", "--replanned", &new];
    let saving = ["--checkpoint-dir", &saved, "--checkpoint-every", "5"];
    let anew = json_of(train.into_iter().chain(slow).chain(saving));
    let losses = |run: &serde_json::Value| -> Vec<f64> {
        run["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    let (plain, losses) = (losses(&plain), losses(&anew));
    assert_eq!(losses.len(), 30);
    // A layer on another stage adds up the same numbers.
    for (plain, loss) in plain.iter().zip(&losses) {
        assert!((plain - loss).abs() < 1e-9, "{plain} and {loss}");
    }
    let rounds = anew["replanned"].as_array().unwrap();
    let names = |round: &Value| {
        let slow = round["stragglers"].as_array().unwrap().iter();
        slow.map(|straggler| straggler["place"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let round = rounds.iter().find(|round| names(round).contains(&"rank 1".to_owned())).expect("it is noticed");
    assert_eq!(round["shorter"], true, "{round}");
    let of_round = |name: &str| round[name].as_u64().unwrap();
    assert!(of_round("found_makespan_ns") < of_round("plan_in_use_makespan_ns"), "{round}");
    // It begins where a checkpoint is due.
    assert_eq!(of_round("from_step") % 5, 0, "{round}");
    let layers: Vec<u32> =
        round["layers_by_stage"].as_str().unwrap().split('/').map(|layers| layers.parse().unwrap()).collect();
    assert_eq!(layers.iter().sum::<u32>(), 12, "{round}");
    assert!(layers[1] < 3 && (0..4).all(|rank| rank == 1 || layers[rank] >= layers[1]), "{round}");
    printed(["run", &new, "--steps", "1"]);
    for (arguments, says) in [
        (vec!["--replan=1"], "2..=1000"),
        (vec!["--replan", "--transport", "tcp"], "Give --checkpoint-dir FOLDER"),
        (vec!["--replan", "--backend", "modelled"], "applies to training"),
        (vec!["--replan", "--restart", "1"], "cannot be used with"),
    ] {
        let refused = run(["run", &spec, "--steps", "6"].into_iter().chain(arguments));
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains(says), "{said}");
    }
}

/// Ranks that are processes go over to the new plan together, over the connections that they have.
#[test]
fn processes_plan_themselves_anew_where_a_rank_is_slow() {
    let at = folder("replan-processes");
    let (spec, new, saved) = (at("spec.toml"), at("new.json"), at("saved"));
    let small = self::spec("cpu")
        .replace("\"tiny-llama\"", "\"tiny-llama\"\nlayers = 6")
        .replace("pipeline = 4", "pipeline = 2");
    write(&spec, &small.replace("microbatches = 8", "microbatches = 4").replace("sequence = 64", "sequence = 32"));
    let train = ["run", &spec, "--steps", "20", "--precision", "f64", "--json"];
    let slow = ["--fault", "1:slow@4", "--replan=4", "--replanned", &new, "--transport", "tcp"];
    let saving = ["--checkpoint-dir", &saved, "--checkpoint-every", "4"];
    let (plain, anew) = (json_of(train), json_of(train.into_iter().chain(slow).chain(saving)));
    let rounds = anew["replanned"].as_array().unwrap();
    let begun = rounds.iter().find(|round| round["from_step"].is_u64()).expect("a new plan begins");
    assert_eq!(begun["from_step"].as_u64().unwrap() % 4, 0, "{begun}");
    let losses = |run: &Value| -> Vec<f64> {
        run["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    assert_eq!(losses(&anew).len(), 20);
    // A layer on another stage adds up the same numbers.
    for (plain, loss) in losses(&plain).iter().zip(losses(&anew)) {
        assert!((plain - loss).abs() < 1e-9, "{plain} and {loss}");
    }
    // The last plan is the one that is written, and it goes on from the last checkpoint.
    let resumed = json_of(["run", &new, "--steps", "21", "--precision", "f64", "--json", "--resume", &saved]);
    assert_eq!(resumed["first_step"], 20);
}

/// Where ops wait for their planned times, little else slows a rank: the evidence is what was asked for.
#[test]
fn a_run_tells_of_a_slow_rank_with_its_evidence() {
    let at = folder("straggler");
    let (spec, plan) = (at("spec.toml"), at("plan.json"));
    write(&spec, &self::spec("cpu"));
    printed(["plan", &spec, "-o", &plan]);
    let waiting = ["run", &plan, "--backend", "modelled", "--steps", "10", "--fault", "2:slow@2"];
    let slow = json_of(waiting.into_iter().chain(["--json"]));
    let found = slow["stragglers"].as_array().unwrap();
    let found = found.iter().find(|straggler| straggler["place"] == "rank 2").expect("it is noticed");
    assert_eq!((&found["steps"], &found["what"]), (&8.into(), &"rank".into()));
    let permille = |name: &str| found[name].as_u64().unwrap();
    // A machine that does other things makes it slower, and no rank twice as slow.
    assert!((1900..3000).contains(&permille("permille")) && permille("least_permille") > 1400, "{found}");
    assert!(found["others_permille"][1].as_u64() < Some(permille("permille")), "{found}");
    let said = run(waiting);
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("straggler: rank 2 takes ") && said.contains("in each of the last 8 steps"), "{said}");
}

/// A run of processes on one host: no op starts before what it waits for has ended, and the steps are those asked for.
#[test]
fn processes_of_a_host_share_a_clock() {
    let at = folder("host");
    let (plan, trace) = (at("plan.json"), at("trace.json"));
    printed(["plan", "examples/tiny-llama.toml", "-o", &plan]);
    let said =
        printed(["run", &plan, "--transport", "tcp", "--steps", "6", "--trace", &trace, "--trace-steps", "2..5"]);
    assert!(!said.contains("started before their input"), "{said}");
    let steps = read(&trace)["steps"].as_array().unwrap().clone();
    assert_eq!(steps.iter().map(|step| step["step"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 3, 4]);
    assert!(steps.windows(2).all(|pair| pair[0]["began_ns"].as_u64() < pair[1]["began_ns"].as_u64()));
    let hops = json_of(["calibrate", &plan, &trace, "--json"])["hops"].as_array().unwrap().clone();
    assert!(hops.iter().all(|hop| hop["median_ns"].as_u64() > Some(0)), "{hops:?}");
    let none = run(["run", &plan, "--steps", "3", "--trace", &trace, "--trace-steps", "7..9"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&none.stderr).contains("the run has steps 0 to 2"));
}

/// A modelled run of two steps, as files.
fn modelled(at: &impl Fn(&str) -> String, schedule: &str) -> (String, String) {
    let (plan, trace) = (at("plan.json"), at("trace.json"));
    printed(["plan", "examples/tiny-llama.toml", "--schedule", schedule, "-o", &plan]);
    let steps = ["--steps", "4", "--trace-steps", "1..", "--trace", &trace];
    printed(["run", &plan, "--backend", "modelled", "--slowdown", "3"].into_iter().chain(steps));
    (plan, trace)
}

/// Logs of Paddle, written and read back: the same spans, and an order that plans.
#[test]
fn paddles_logs_are_written_and_read() {
    let at = folder("paddle");
    let (plan, trace) = modelled(&at, "interleaved-1f1b");
    let (log, back, order) = (at("log"), at("back.json"), at("order.txt"));
    printed(["export", &trace, "--format", "paddle-log", "-o", &log]);
    let said = printed(["trace", &log, "-o", &back, "--write-order", &order, "--events", &at("events")]);
    assert!(said.contains("stages        round the ranks"), "{said}");
    let checked = printed(["check", "examples/tiny-llama.toml", "--order", &order]);
    assert!(checked.contains("valid"), "{checked}");
    let same = printed(["trace", &plan, &log, "-o", &at("with-plan.json")]);
    assert!(!same.contains("clocks"), "{same}");
    let spans = |path: &str| json_of(["show", path, "--json"])["rows"].clone();
    assert_eq!(spans(&back), spans(&trace));
    assert_eq!(read(&back)["steps"][0]["step"], read(&trace)["steps"][0]["step"]);
    let events = read(&at("events/pipeline_profile.json"))["traceEvents"].as_array().unwrap().clone();
    assert!(events.iter().any(|event| event["name"] == "forward0_0" && event["tid"] == "GPU0" && event["ph"] == "B"));
    let numbered = read(&at("events/pipeline_profile_perfetto.json"))["traceEvents"].as_array().unwrap().clone();
    assert!(numbered.iter().any(|event| event["tid"] == 2337 && event["args"]["name"] == "GPU:3"));

    // A line that is cut off, and a file that is not there: both are named, and the rest is shown.
    let cut = std::fs::read_to_string(Path::new(&log).join("workerlog.1")).unwrap();
    write(&format!("{log}/workerlog.1"), &cut[..cut.len() - 20]);
    std::fs::remove_file(format!("{log}/workerlog.2")).unwrap();
    let told = run(["trace", &log, "-o", &back]);
    let stderr = String::from_utf8_lossy(&told.stderr).into_owned();
    let last = cut.lines().count();
    assert!(told.status.success() && stderr.contains(&format!("workerlog.1 line {last}: found")), "{stderr}");
    assert!(stderr.contains("workerlog.2: found no file"), "{stderr}");
    assert_eq!(read(&back)["steps"][0]["rows"].as_array().unwrap().len(), 4);

    // Machines in folders of their own.
    let machines = at("machines");
    for (machine, ranks) in [("machine0", [0, 1]), ("machine1", [2, 3])] {
        std::fs::create_dir_all(format!("{machines}/{machine}")).unwrap();
        printed(["export", &trace, "--format", "paddle-log", "-o", &log]);
        for (device, rank) in ranks.into_iter().enumerate() {
            std::fs::copy(format!("{log}/workerlog.{rank}"), format!("{machines}/{machine}/workerlog.{device}"))
                .unwrap();
        }
    }
    printed(["trace", &machines, "--multi-machine", "--devices", "0,1", "-o", &back]);
    assert_eq!(spans(&back), spans(&trace));
    let refused = run(["trace", &machines, "-o", &back]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--multi-machine"));
}

/// Parts of a trace, merged again, are the trace.
#[test]
fn parts_of_a_trace_are_merged_again() {
    let at = folder("parts");
    let (_, trace) = modelled(&at, "1f1b");
    let parts = [
        ("a.json", ["--steps", "..3", "--ranks", "0..2"]),
        ("b.json", ["--steps", "..3", "--ranks", "2,3"]),
        ("c.json", ["--steps", "3", "--ranks", "0..4"]),
    ];
    for (file, options) in parts {
        printed(["trace", &trace, "-o", &at(file)].into_iter().chain(options));
    }
    printed(["trace", &at("a.json"), &at("b.json"), &at("c.json"), "-o", &at("whole.json")]);
    assert_eq!(read(&at("whole.json"))["steps"], read(&trace)["steps"]);
    let forwards = json_of(["show", &trace, "--steps", "1", "--jobs", "F", "--json"]);
    assert_eq!(forwards["step"], 1);
    assert!(
        forwards["rows"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|row| row.as_array().unwrap())
            .all(|span| span["op"].as_str().unwrap().contains('F'))
    );
}

/// A run that does what its plan says has no stragglers; its parts add up.
#[test]
fn a_trace_is_explained() {
    let at = folder("explained");
    let (plan, trace) = modelled(&at, "1f1b");
    let value = json_of(["show", &trace, "--analysis", "--plan", &plan, "--json"]);
    let step = &value["steps"][1];
    for row in step["rows"].as_array().unwrap() {
        let sum: u64 = row.as_object().unwrap().values().map(|ns| ns.as_u64().unwrap()).sum();
        assert_eq!(Some(sum), step["makespan_ns"].as_u64());
    }
    let names: Vec<&str> =
        value["what_if"].as_array().unwrap().iter().map(|what| what["if"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "the slowest rank is fixed",
            "no stragglers",
            "even stages",
            "instant links",
            "the best order for these times"
        ]
    );
    let text = printed(["show", &trace, "--analysis", "--plan", &plan]);
    assert!(text.contains("critical path") && text.contains("what if") && text.contains("for input"), "{text}");
}
