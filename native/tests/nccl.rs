//! Ranks as processes whose tensors go over NCCL: whole runs on the emulated GPU through a library that stands in for
//! it (`fake/nccl.c`), found and loaded as the real one is.
#![cfg(feature = "cuda")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};

use pipeplan::backend::cuda::card::Card;
use pipeplan::backend::cuda::emulated::Host;
use pipeplan::transport::nccl::{self, Library};
use pipeplan_core::plan::Plan;
use pipeplan_core::program::{Step, Way};
use serde_json::Value;

/// The emulated card, compiled once; nothing (said plainly) where there is no C compiler.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let out = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("pipeplan-fake-nccl-{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/nccl.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
        let flags = ["-O1", "-w", "-shared", "-fPIC", "-pthread", source, "-o"];
        match Command::new(&compiler).args(flags).arg(&out).output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                eprintln!("SKIPPED: no run over NCCL: {compiler} cannot be started: {error}");
                return None;
            }
        }
        Some(out)
    };
    LIBRARY.get_or_init(compile).as_deref()
}

/// What the selftest asks of the library on one card: a message to itself and a sum of one.
#[test]
fn one_rank_alone_gets_what_it_sends() {
    let Some(path) = library() else { return };
    let card: Arc<dyn Card> = match Host::new() {
        Ok(host) => Arc::new(host),
        Err(error) if error.to_string().contains("cannot be started") => {
            return eprintln!("SKIPPED: no run over NCCL: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let library = Library::at(path).unwrap_or_else(|error| panic!("{error}"));
    let error = nccl::selftest(Arc::new(library), &card).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(error, 0.0);
}

/// A plan of two stages for so many data-parallel replicas, which shard the optimizer states.
fn plan(name: &str, copies: u32) -> PathBuf {
    plan_of(name, copies, "")
}

/// The same, with `more` about what runs in parallel.
fn plan_of(name: &str, copies: u32, more: &str) -> PathBuf {
    let spec = format!(
        "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\nlayers = 2\n[cluster]\ndevice = \"cpu\"\n[parallel]\n\
         pipeline = 2\ndata = {copies}\nzero = {}\n{more}[training]\nmicrobatches = 3\nsequence = 8\nmicrobatch_size = 1\n",
        u8::from(copies > 1)
    );
    planned(name, &spec)
}

/// The first, with `more` about training.
fn plan_of_training(name: &str, more: &str) -> PathBuf {
    let spec = format!(
        "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\nlayers = 2\n[cluster]\ndevice = \"cpu\"\n[parallel]\n\
         pipeline = 2\n[training]\nmicrobatches = 3\nsequence = 8\nmicrobatch_size = 1\n{more}"
    );
    planned(name, &spec)
}

fn planned(name: &str, spec: &str) -> PathBuf {
    let file = |what: &str| {
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("pipeplan-nccl-{}-{name}{what}", std::process::id()))
    };
    let (spec_file, plan_file) = (file(".toml"), file(".json"));
    std::fs::write(&spec_file, spec).expect("a spec is written");
    let output = pipeplan(&["plan", &spec_file.to_string_lossy(), "-o", &plan_file.to_string_lossy()]).output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    plan_file
}

fn pipeplan(arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("pipeplan"));
    command.args(arguments).env("NO_COLOR", "1");
    for variable in ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(variable);
    }
    command
}

fn train(plan: &Path, more: &[&str], variables: &[(&str, &str)]) -> Output {
    let plan = plan.to_string_lossy();
    let arguments = [&["run", &*plan, "--backend", "emulated", "--steps", "2", "--json"], more].concat();
    pipeplan(&arguments).envs(variables.iter().copied()).output().expect("it starts")
}

fn losses(output: &Output) -> Vec<u64> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("a summary");
    let losses = summary["losses"].as_array().expect("losses");
    losses.iter().map(|loss| loss.as_f64().expect("a number").to_bits()).collect()
}

/// The calls of each process that has noted them in `log`.
fn logs(log: &Path) -> Vec<Vec<String>> {
    let name = format!("{}.", log.file_name().expect("a name").to_string_lossy());
    let lines = |text: String| text.lines().map(str::to_string).collect();
    std::fs::read_dir(log.parent().expect("a folder"))
        .expect("a folder")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&name))
        .map(|entry| lines(std::fs::read_to_string(entry.path()).expect("a log")))
        .collect()
}

/// What each process should call: connections tried out, then for each training step the groups of the program's row in
/// its order.
fn expected_messages(plan: &Plan, rank: usize, steps: usize) -> Vec<String> {
    let mut calls = Vec::new();
    for _ in 0..steps {
        for step in &plan.program.rows[rank] {
            let (Step::Transfer(messages) | Step::Start(messages)) = step else { continue };
            calls.push("group start".to_string());
            for way in [Way::Send, Way::Receive] {
                let verb = if way == Way::Send { "send" } else { "receive" };
                calls.extend(messages.iter().filter(|message| message.way == way).map(|_| verb.to_string()));
            }
            calls.push("group end".to_string());
        }
    }
    calls
}

#[test]
fn tensors_over_nccl_train_as_threads_do_bit_for_bit_in_the_programs_order() {
    let Some(library) = library() else { return };
    let path = plan("order", 2);
    let log =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pipeplan-nccl-log-{}", std::process::id()));
    let variables = [("PIPEPLAN_NCCL", &*library.to_string_lossy()), ("FAKE_NCCL_LOG", &*log.to_string_lossy())]
        .map(|(name, value)| (name, value.to_string()));
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let over_nccl = train(&path, &["--transport", "nccl", "--patience", "60"], &variables);
    assert_eq!(losses(&over_nccl), losses(&train(&path, &[], &[])));

    let plan = Plan::from_json(&std::fs::read_to_string(&path).expect("a plan")).expect("it reads");
    let logs = logs(&log);
    assert_eq!(logs.len(), 4, "one for each process");
    let mut of_rank = [0; 2];
    for log in &logs {
        let calls: Vec<&str> = log.iter().map(String::as_str).collect();
        // One byte over each of the two connections, in the order of their ranks; the sender is member 0.
        let rank = usize::from(calls[0] == "init 1 of 2");
        let tried = |init: &'static str, message: &'static str| [init, "group start", message, "group end"];
        let (first, second) = (tried("init 0 of 2", "send 1"), tried("init 1 of 2", "receive 1"));
        let tries = if rank == 0 { [first, second] } else { [second, first] }.concat();
        assert_eq!(calls[..8], tries[..]);
        of_rank[rank] += 1;
        let is_message =
            |call: &&&str| call.starts_with("send") || call.starts_with("receive") || call.starts_with("group");
        let messages: Vec<&str> = calls[8..]
            .iter()
            .filter(is_message)
            .map(|call| call.trim_end_matches(|c: char| c == ' ' || c.is_ascii_digit()))
            .collect();
        let expected = expected_messages(&plan, rank, 2);
        assert_eq!(messages, expected, "rank {rank}");
        // Every weight once a step: its gradient averaged in shares, its shares gathered.
        let sums = calls.iter().filter(|call| call.starts_with("reduce-scatter") && call.ends_with("by 4")).count();
        let gathers = calls.iter().filter(|call| call.starts_with("all-gather")).count();
        assert!(sums > 0 && sums == gathers, "{sums} sums, {gathers} gathers");
        // Two connections and the axis, given back in good order.
        assert_eq!(calls.iter().filter(|call| **call == "finalize").count(), 3);
        assert_eq!(calls.iter().filter(|call| **call == "destroy").count(), 3);
        assert!(!calls.contains(&"abort"));
    }
    assert_eq!(of_rank, [2, 2]);
}

/// Processes that share matrices: sums, and sums of which each keeps its rows; and rings of two and of four.
#[test]
fn ranks_that_make_a_stage_together_train_over_nccl_as_threads_do_bit_for_bit() {
    let Some(library) = library() else { return };
    let variables = [("PIPEPLAN_NCCL", &*library.to_string_lossy())];
    for (name, more) in [
        ("shared", "tensor = 2\n"),
        ("rows", "tensor = 2\nsequence_parallel = true\n"),
        ("ring", "context = 2\n"),
        ("longer-ring", "context = 4\n"),
    ] {
        let path = plan_of(name, 1, more);
        let over_nccl = train(&path, &["--transport", "nccl", "--patience", "60"], &variables);
        let by_threads = losses(&train(&path, &[], &[]));
        assert_eq!(losses(&over_nccl), by_threads, "{name}");
        // Through host memory it comes to the same.
        assert_eq!(losses(&train(&path, &["--transport", "tcp"], &[])), by_threads, "{name} by the host");
    }
}

/// Experts dealt to two replicas and to two tensor-parallel ranks: every copy of a token goes over NCCL, and its way
/// back.
#[test]
fn experts_dealt_over_nccl_train_as_threads_do_bit_for_bit() {
    let Some(library) = library() else { return };
    let log = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("pipeplan-nccl-experts-{}", std::process::id()));
    for (name, parallel) in [
        ("replicas", "data = 4\nzero = 1\nexpert = 2\n"),
        ("members", "tensor = 2\ndata = 2\nexpert = 4\nsequence_parallel = true\nwhole_experts = true\n"),
    ] {
        let spec = format!(
            "schedule = \"1f1b\"\n[model]\nname = \"own\"\nlayers = 2\nhidden = 32\nheads = 4\nkv_heads = 2\nhead_dim = 8\n\
             ffn = 48\nvocab = 260\nexperts = {{ count = 4, active = 2, ffn = 24 }}\n[cluster]\ndevice = \"cpu\"\n\
             [parallel]\npipeline = 1\n{parallel}[training]\nmicrobatches = 2\nsequence = 8\nmicrobatch_size = 1\n\
             dtype = \"bf16\"\nexpert_imbalance = 4\n"
        );
        let path = planned(&format!("experts-{name}"), &spec);
        let noted = log.with_extension(name);
        let variables =
            [("PIPEPLAN_NCCL", &*library.to_string_lossy()), ("FAKE_NCCL_LOG", &*noted.to_string_lossy())]
                .map(|(name, value)| (name, value.to_string()));
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let over_nccl = train(&path, &["--transport", "nccl", "--patience", "60"], &variables);
        let by_threads = losses(&train(&path, &[], &[]));
        assert_eq!(losses(&over_nccl), by_threads, "{name}");
        assert_eq!(losses(&train(&path, &["--transport", "tcp"], &[])), by_threads, "{name} by the host");
        for calls in logs(&noted) {
            // Groups of messages, since sums of equal pieces need none: one to try them out, then in each of two steps, of
            // two microbatches and of two layers, to the experts and back, and the same way with gradients.
            let groups: Vec<&[String]> = calls.split(|call| call == "group start").skip(1).collect();
            let is_sum = |call: &String| call.starts_with("reduce") || call.starts_with("broadcast");
            let of_messages = groups.iter().filter(|calls| !calls[..end_of(calls)].iter().any(is_sum));
            assert_eq!(of_messages.count(), 1 + 2 * 2 * 2 * 4, "{name}: {calls:?}");
            assert!(groups[0].contains(&"send 1".to_string()), "{name}: {calls:?}");
        }
    }
}

/// Where the group that `calls` begin with ends.
fn end_of(calls: &[String]) -> usize {
    calls.iter().position(|call| call == "group end").expect("it ends")
}

#[test]
fn a_peer_that_fails_and_one_that_stands_still_are_named_with_what_each_rank_waits_for() {
    let Some(library) = library() else { return };
    let path = plan("failures", 1);
    let library = library.to_string_lossy();
    // The kernels are compiled now: patience is not for that.
    losses(&train(&path, &[], &[]));
    let fail = |how: &str| {
        let variables = [("PIPEPLAN_NCCL", &*library), ("FAKE_NCCL_FAIL", how)];
        let output = train(&path, &["--transport", "nccl", "--patience", "3"], &variables);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let remote = fail("1:3:remote");
    // Both ends of the link hear of it, and on a busy machine either may tell first.
    let told = |rank: u8, peer: u8| {
        remote.contains(&format!("rank {rank} failed: "))
            && remote.contains(&format!("with rank {peer}: a transfer failed: remote process exited"))
    };
    assert!(told(1, 0) || told(0, 1), "{remote}");
    let waits = |rank: u8, peer: u8| {
        let exchanging = format!("exchanging with rank {peer} at training step 0");
        ["", "failed while "].iter().any(|state| remote.contains(&format!("rank {rank}: {state}{exchanging}")))
    };
    assert!(waits(0, 1) && waits(1, 0), "{remote}");
    let hang = fail("0:1:hang");
    assert!(hang.contains("rank 0 failed: waited 3.") || hang.contains("rank 1 failed: waited 3."), "{hang}");
    assert!(hang.contains("rank 0: ") && hang.contains("rank 1: ") && hang.contains("RECV"), "{hang}");
}

/// A rank that dies while the others join a communicator with it is heard of then, and not when patience is over.
#[test]
fn a_rank_that_dies_while_communicators_are_joined_is_named_at_once() {
    let Some(library) = library() else { return };
    let path = plan("dying", 1);
    let variables = [("PIPEPLAN_NCCL", &*library.to_string_lossy()), ("FAKE_NCCL_FAIL", "1:0:die")]
        .map(|(name, value)| (name, value.to_string()));
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let output = train(&path, &["--transport", "nccl", "--patience", "60"], &variables);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("rank 1 failed: "), "{text}");
    assert!(text.contains("rank 0: creating communicators with its peers"), "{text}");
}

/// Where a group waits too long, any other member may be the one that is late: all are named.
#[test]
fn a_group_that_waits_too_long_names_its_members() {
    let Some(library) = library() else { return };
    let spec = "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\nlayers = 1\n[cluster]\ndevice = \"cpu\"\n[parallel]\n\
                pipeline = 1\ncontext = 4\n[training]\nmicrobatches = 2\nsequence = 8\nmicrobatch_size = 1\n";
    let path = planned("late", spec);
    // The kernels are compiled now: patience is not for that.
    losses(&train(&path, &[], &[]));
    let variables = [("PIPEPLAN_NCCL", &*library.to_string_lossy()), ("FAKE_NCCL_FAIL", "2:1:hang")]
        .map(|(name, value)| (name, value.to_string()));
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let output = train(&path, &["--transport", "nccl", "--patience", "3"], &variables);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let others = ["1, 2, 3", "0, 2, 3", "0, 1, 3", "0, 1, 2"];
    let is_named = |others: &&str| text.contains(&format!("of step 0 with rank {others}\n"));
    assert!(text.contains("failed: waited 3.") && others.iter().any(is_named), "{text}");
}

#[test]
fn what_nccl_needs_is_said_before_anything_starts() {
    let path = plan("refused", 1);
    let plan = path.to_string_lossy();
    let on_cpu = pipeplan(&["run", &plan, "--transport", "nccl"]).output().expect("it starts");
    assert_eq!(on_cpu.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&on_cpu.stderr).contains("Give --backend cuda with it"));
    let missing = train(&path, &["--transport", "nccl"], &[("PIPEPLAN_NCCL", "/nowhere/libnccl.so.2")]);
    let text = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(2), "{text}");
    for part in ["NCCL is missing: looked for libnccl.so.2", "PIPEPLAN_NCCL", "pip install nvidia-nccl-cu13"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Two ranks with a link each way have three queues. Megatron-LM wants one connection, and people set it by habit.
#[test]
fn too_few_connections_to_the_card_are_refused() {
    let Some(library) = library() else { return };
    let (kept, away) = (plan("connections", 1), plan_of_training("connections-away", "offload = \"all\"\n"));
    let with = |path: &Path, connections: &str| {
        let variables =
            [("PIPEPLAN_NCCL", &*library.to_string_lossy()), ("CUDA_DEVICE_MAX_CONNECTIONS", connections)]
                .map(|(name, value)| (name, value.to_string()));
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        train(path, &["--transport", "nccl", "--patience", "60"], &variables)
    };
    // One more for copies to host memory, which may not wait behind a receive.
    for (path, connections, queues) in [(&kept, "1", 3), (&kept, "2", 3), (&away, "3", 4)] {
        let refused = with(path, connections);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        let said = format!("CUDA_DEVICE_MAX_CONNECTIONS={connections}, but rank ");
        assert!(text.contains(&said) && text.contains(&format!("has {queues} queues")), "{text}");
        assert!(text.contains("Unset it"), "{text}");
    }
    let expected = losses(&train(&kept, &[], &[]));
    assert_eq!((losses(&with(&kept, "3")), losses(&with(&away, "4"))), (expected.clone(), expected));
}
