//! `run` and `selftest`: a plan is executed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::command::{command, json_of, printed, refused};

use super::{TINY, folder, path, trained, write};

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
    assert!(refused(&["show", &trace, "--step", "7"], "").contains("it has steps 0 to 2"));
    assert!(refused(&["check", &trace], "").contains("is a trace; a spec or a plan is needed"));
    // Alone where it goes to standard output.
    let trace = printed(&["run", &plan, "--steps", "2", "--trace", "-"], "");
    assert!(printed(&["show", "-"], &trace).contains("step 1 of 2 recorded"), "{trace}");
}

/// Tokens in a file: shown, trained on by threads and by processes alike, evaluated, and refused where the model does not know
/// them.
#[test]
fn tokens_in_a_file_are_shown_and_trained_on() {
    let folder = folder();
    let (plan, data, run) = (path(&folder, "plan.json"), path(&folder, "web.npy"), path(&folder, "run"));
    let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (4000,), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes().chain((0..4000u32).flat_map(|at| ((at * at % 251) as u16).to_le_bytes())));
    std::fs::write(&data, bytes).unwrap();
    let found = json_of(&["data", &data, "--json"], "");
    assert_eq!((&found[0]["tokens"], &found[0]["type"]), (&4000.into(), &"uint16".into()), "{found}");
    assert_eq!((&found[0]["largest_token"], &found[0]["format"]), (&249.into(), &"NumPy array".into()), "{found}");
    printed(&["plan", "-", "-o", &plan], TINY);
    let train = |more: &[&str]| {
        let split = ["--validation-split", "0.2", "--evaluate-every", "2", "--log"];
        let arguments = ["run", &plan, "--data", &data, "--steps", "4", "--json"];
        let log = path(&folder, &format!("log{}", more.len()));
        let losses = json_of(&[&arguments[..], &split, &[&log], more].concat(), "")["losses"].clone();
        let log = std::fs::read_to_string(log).unwrap();
        let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let evaluated: Vec<f64> = lines.filter_map(|line| line["validation_loss"].as_f64()).collect();
        assert_eq!(evaluated.len(), 2);
        (losses, evaluated)
    };
    assert_eq!(train(&["--checkpoint-dir", &run]), train(&["--transport", "tcp", "--patience", "60"]));
    let evaluated = json_of(&["evaluate", &run, "--data", &data, "--json"], "");
    assert!(evaluated["loss"].as_f64().is_some_and(|loss| loss < 5.6), "{evaluated}");
    // A tokenizer of a larger vocabulary.
    let tokenizer = path(&folder, "tokenizer.json");
    write(
        &tokenizer,
        r#"{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 300}, "unk_token": "a"}}"#,
    );
    let text = path(&folder, "text");
    write(&text, "a b");
    let error = refused(&["run", &plan, "--data", &text, "--tokenizer", &tokenizer], "");
    assert!(error.contains("its vocabulary: 301 tokens; expected is at most 256"), "{error}");
    let error = refused(&["run", &plan, "--data", &path(&folder, "none.bin")], "");
    assert!(error.contains("none.bin cannot be read"), "{error}");
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
        modelled(&["--data", "Cargo.toml"]),
        modelled(&["--beta1", "0.8"]),
        run(&["--keep", "3"], "--checkpoint-dir"),
        run(&["--schedule", "linear"], "--decay-until STEP"),
        run(&["--schedule", "wsd", "--decay-until", "9"], "--wsd-decay STEPS"),
        run(&["--wsd-decay", "9"], "--schedule wsd"),
        run(&["--min-lr", "0.0001"], "--decay-until STEP"),
        run(&["--validation-split", "0.1"], "--evaluate-every STEPS"),
        run(&["--backend", "modelled", "--resume", checkpoint], "cannot write a checkpoint"),
        (vec!["plan", "-", "--order", order, "--effort", "5"], "with --order there is no search"),
    ] {
        let error = refused(&arguments, TINY);
        assert!(error.contains(says), "{arguments:?}: {error}");
        assert!(!error.contains("resuming from"), "{arguments:?}: {error}");
    }
    // What has been trained already is no start, and is not said to be one.
    let error = refused(&["run", "-", "--steps", "6", "--resume", checkpoint], TINY);
    assert!(error.contains("give more steps") && !error.contains("resuming from"), "{error}");
}

#[test]
fn numbers_that_no_run_takes_are_refused_by_their_options() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tiny-llama.toml");
    for (arguments, says) in [
        (&["--steps", "-1"][..], "'-1' for '--steps <STEPS>': -1 is not in 1.."),
        (&["--learning-rate", "-1"], "--learning-rate is -1; give a number above 0"),
        (&["--patience", "-3"], "'-3' for '--patience <SECONDS>'"),
        (&["--seed", "-1"], "'-1' for '--seed <SEED>'"),
        (&["--clip-norm", "-0.5"], "norm for gradient clipping is -0.5"),
        (&["--traced-steps", "0"], "0 is not in 1.."),
        (&["--warm-up", "100", "--decay-until", "3"], "warm-up takes 100 steps, but decay ends at step 3"),
        (&["--warm-up", "3", "--decay-until", "3"], "warm-up takes 3 steps"),
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
fn ctrl_c_term_and_usr1_end_a_run_that_can_go_on() {
    for signal in ["-INT", "-TERM", "-USR1"] {
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

/// Ctrl-Z stops all threads: what they have not done meanwhile is no failure of theirs.
#[cfg(unix)]
#[test]
fn a_run_that_was_stopped_for_longer_than_its_patience_goes_on() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tiny-llama.toml");
    let mut child = command(&["run", example, "--steps", "100000", "--patience", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{error}"));
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.next().expect("a line").expect("text").starts_with("step"));
    let pid = child.id().to_string();
    let send = |signal: &str| {
        assert!(Command::new("kill").args([signal, &pid]).status().is_ok_and(|kill| kill.success()));
    };
    for _ in 0..2 {
        send("-STOP");
        std::thread::sleep(std::time::Duration::from_millis(2500));
        send("-CONT");
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    send("-INT");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let status = child.wait().unwrap_or_else(|error| panic!("{error}"));
    let said = std::io::read_to_string(child.stderr.take().expect("piped")).expect("text");
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(!rest.is_empty() && !said.contains("failed"), "{said}");
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

/// On threads and on processes: gradient sync is apart from the optimizer's step, every member of a group is in each of its
/// collectives, and none has its result before the last one has begun.
#[test]
fn a_trace_has_the_collectives_of_all_ranks() {
    let folder = folder();
    let (plan, trace) = (path(&folder, "plan.json"), path(&folder, "trace.json"));
    let spec = TINY.replace("pipeline = 2", "pipeline = 2\ntensor = 2\ndata = 2\nzero = 1");
    printed(&["plan", "-", "-o", &plan], &spec);
    for transport in ["threads", "tcp"] {
        let window = ["--steps", "3", "--trace-steps", "1..3", "--clip-norm", "1"];
        printed(&[&["run", &plan, "--trace", &trace, "--transport", transport], &window[..]].concat(), "");
        let trace: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
        let names = trace["collectives"].as_array().unwrap();
        let kinds = |group: &str| -> std::collections::BTreeSet<&str> {
            names.iter().filter(|name| name["group"] == group).filter_map(|name| name["kind"].as_str()).collect()
        };
        assert_eq!(kinds("dp"), ["all-gather", "reduce-scatter"].into());
        assert_eq!((kinds("tp"), kinds("world")), (["all-reduce"].into(), ["all-reduce"].into()));
        for step in trace["steps"].as_array().unwrap() {
            let rows = step["rows"].as_array().unwrap();
            assert_eq!(rows.len(), 8);
            for (number, name) in names.iter().enumerate() {
                // By member: begins and ends.
                let times = |row: &serde_json::Value| -> Vec<[u64; 2]> {
                    let of_row = &rows[row.as_u64().unwrap() as usize]["collectives"];
                    let at = |key: &str, at: usize| of_row[key][at].as_u64().unwrap();
                    let all =
                        (0..of_row["of"].as_array().unwrap().len()).filter(|place| at("of", *place) == number as u64);
                    all.map(|place| [at("start_ns", place), at("end_ns", place)]).collect()
                };
                let members: Vec<Vec<[u64; 2]>> = name["ranks"].as_array().unwrap().iter().map(times).collect();
                assert!(!members[0].is_empty() && members.len() > 1, "{transport}: {name}");
                assert!(members.iter().all(|member| member.len() == members[0].len()), "{transport}: {name}");
                for at in 0..members[0].len() {
                    let last = members.iter().map(|member| member[at][0]).max();
                    let first = members.iter().map(|member| member[at][1]).min();
                    assert!(last <= first, "{transport}: {name}, {at}: {last:?} {first:?}");
                }
            }
        }
        let shown = printed(&["show", &path(&folder, "trace.json"), "--analysis"], "");
        assert!(shown.contains("gradient sync  param all-gather"), "{shown}");
    }
}

/// SIGUSR2 begins recording on all ranks at one step, and ends it; the file is there while the run goes on.
#[cfg(unix)]
#[test]
fn a_signal_begins_and_ends_recording() {
    let folder = folder();
    let plan = path(&folder, "plan.json");
    printed(&["plan", "-", "-o", &plan], TINY);
    for transport in ["threads", "tcp"] {
        let (trace, log) = (path(&folder, &format!("{transport}.json")), path(&folder, transport));
        let arguments = [
            "run",
            &plan,
            "--steps",
            "4000000",
            "--trace",
            &trace,
            "--log",
            &log,
            "--transport",
            transport,
            "--json",
        ];
        let mut child = command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let id = child.id().to_string();
        let signal = |name: &str| assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
        let steps = || std::fs::read_to_string(&log).map_or(0, |log| log.lines().count());
        let wait = |what: &dyn Fn() -> bool| {
            let begun = std::time::Instant::now();
            while !what() {
                assert!(begun.elapsed().as_secs() < 60, "{transport}: nothing came, after {} steps", steps());
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        };
        wait(&|| steps() > 2);
        signal("-USR2");
        // The command that started processes hands it on after a second.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let from = steps();
        wait(&|| steps() > from + 3);
        signal("-USR2");
        wait(&|| std::path::Path::new(&trace).exists());
        let read =
            || -> serde_json::Value { serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap() };
        let recorded = read();
        let numbers: Vec<u64> =
            recorded["steps"].as_array().unwrap().iter().filter_map(|step| step["step"].as_u64()).collect();
        assert!(numbers[0] > 2 && numbers.len() > 3, "{transport}: {numbers:?}");
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{transport}: {numbers:?}");
        assert_eq!(recorded["steps"][0]["rows"].as_array().map(Vec::len), Some(2));
        let at = steps();
        wait(&|| steps() > at);
        signal("-INT");
        assert_eq!(child.wait().unwrap().code(), Some(130), "{transport}");
        assert_eq!(read()["steps"], recorded["steps"], "{transport}");
    }
}
