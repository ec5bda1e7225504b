//! Whole runs on a card that is none (`fake/cuda.c`): every call of the driver, NVRTC, cuBLAS and cuBLASLt as on a GPU, found
//! and loaded as the real libraries are, with the kernels of the stand-in. It is strict where the real ones are said to be.
#![cfg(feature = "cuda")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use pipeplan::backend::cuda::host::build_kernels;
use pipeplan::backend::cuda::nvidia::WORKSPACE_BYTES;
use serde_json::Value;

mod tiny;

use tiny::{losses, pipeplan};

/// The folder with the card's libraries; nothing (said plainly) where there are no compilers.
fn card() -> Option<&'static Path> {
    static CARD: OnceLock<Option<PathBuf>> = OnceLock::new();
    let make = || {
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("pipeplan-fake-cuda");
        // One process at a time makes one, and what it logs is of no use to the next.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("cache")).expect("a folder");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/cuda.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
        let flags = ["-O1", "-w", "-shared", "-fPIC", "-pthread", "-ffp-contract=off", source, "-ldl", "-o"];
        let library = folder.join("libcuda.so.1");
        match Command::new(&compiler).args(flags).arg(&library).output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                eprintln!("SKIPPED: no run on a card that is none: {compiler} cannot be started: {error}");
                return None;
            }
        }
        for name in ["libnvrtc.so.13", "libcublas.so.13", "libcublasLt.so.13"] {
            std::os::unix::fs::symlink(&library, folder.join(name)).expect("a link");
        }
        let nccl = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/nccl.c");
        let flags = ["-O1", "-w", "-shared", "-fPIC", "-pthread", nccl, "-ldl", "-o"];
        let output = Command::new(&compiler).args(flags).arg(folder.join("libnccl.so.2")).output();
        let output = output.expect("the compiler starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        match build_kernels(&folder.join("libkernels.so")) {
            Ok(()) => Some(folder),
            Err(error) if error.to_string().contains("cannot be started") => {
                eprintln!("SKIPPED: no run on a card that is none: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    };
    CARD.get_or_init(make).as_deref()
}

/// What a run said, and the calls of its card.
struct Ran {
    output: Output,
    calls: Vec<String>,
    by_process: Vec<Vec<String>>,
}

impl Ran {
    fn count(&self, call: &str) -> usize {
        self.calls.iter().filter(|found| *found == call).count()
    }

    fn memory(&self) -> Vec<Value> {
        let summary: Value = serde_json::from_slice(&self.output.stdout).expect("a summary");
        summary["memory"].as_array().expect("ranks").clone()
    }
}

/// Runs `pipeplan` with `arguments` on the card, which cannot do what `without` names.
fn on_card(name: &str, without: &str, arguments: &[&str]) -> Option<Ran> {
    on_cards(name, without, arguments, &[])
}

/// The same with more variables.
fn on_cards(name: &str, without: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Option<Ran> {
    let card = card()?;
    let log = card.join(format!("log-{name}"));
    let mut command = pipeplan(arguments);
    command.env("LD_LIBRARY_PATH", card).env("XDG_CACHE_HOME", card.join("cache"));
    command.env("FAKE_CUDA_KERNELS", card.join("libkernels.so")).env("FAKE_CUDA_WITHOUT", without);
    for variable in ["PIPEPLAN_NVRTC", "PIPEPLAN_CUBLAS", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV"] {
        command.env_remove(variable);
    }
    command.env("FAKE_NCCL_LOG", &log).envs(variables.iter().copied());
    let output = command.env("FAKE_CUDA_LOG", &log).output().expect("it starts");
    let calls: Vec<Vec<String>> = std::fs::read_dir(card)
        .expect("a folder")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("log-{name}.")))
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).expect("a log");
            text.lines().map(str::to_string).collect::<Vec<_>>()
        })
        .collect();
    Some(Ran { output, calls: calls.concat(), by_process: calls })
}

/// A plan of two ranks with a model like `family`, in `dtype`.
fn plan(family: &str, dtype: &str) -> PathBuf {
    let spec = format!(
        "schedule = \"1f1b\"\n[model]\nname = \"own\"\nfamily = \"{family}\"\nlayers = 2\nhidden = 32\nheads = 2\n\
         ffn = 48\nvocab = 260\n[cluster]\ndevice = \"cpu\"\n[parallel]\n\
         pipeline = 2\n[training]\nmicrobatches = 3\nsequence = 8\nmicrobatch_size = 1\ndtype = \"{dtype}\"\n"
    );
    planned(&format!("{family}-{dtype}"), &spec)
}

fn planned(name: &str, spec: &str) -> PathBuf {
    planned_with(name, spec, &[])
}

/// The plan of `spec`, which then lies beside it.
fn planned_with(name: &str, spec: &str, more: &[&str]) -> PathBuf {
    // Tests plan the same at the same time.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = |what: &str| {
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("pipeplan-cuda-{}-{number}-{name}{what}", std::process::id()))
    };
    let (spec_file, plan_file) = (file(".toml"), file(".json"));
    std::fs::write(&spec_file, spec).expect("a spec is written");
    let (spec, plan) = (spec_file.to_string_lossy(), plan_file.to_string_lossy());
    let output = pipeplan(&[&["plan", &*spec, "-o", &*plan], more].concat()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    plan_file
}

fn train(name: &str, plan: &Path, without: &str, more: &[&str]) -> Option<Ran> {
    let plan = plan.to_string_lossy();
    let arguments = [&["run", &*plan, "--backend", "cuda", "--steps", "4", "--json"], more].concat();
    on_card(name, without, &arguments)
}

fn emulated(plan: &Path) -> Vec<u64> {
    let plan = plan.to_string_lossy();
    losses(
        &pipeplan(&["run", &*plan, "--backend", "emulated", "--steps", "4", "--json"]).output().expect("it starts"),
    )
}

/// Jobs are captured when they come again as they were, launched from then on, and destroyed; the bits are those of launches
/// one by one, and of the stand-in.
#[test]
fn jobs_that_come_again_are_graphs_and_change_no_bit() {
    let plan = plan("llama", "bf16");
    let Some(graphs) = train("graphs", &plan, "", &[]) else { return };
    let expected = emulated(&plan);
    assert_eq!(losses(&graphs.output), expected);
    let begun = graphs.count("begin capture in mode 2");
    assert!(begun > 0, "{:?}", graphs.calls);
    for call in ["end capture", "instantiate", "destroy the capture", "destroy"] {
        assert_eq!(graphs.count(call), begun, "{call}");
    }
    // 4 steps of 3 microbatches: whatever comes again later is launched at least once more than it is made.
    assert!(graphs.count("launch") > begun, "{} launches of {begun} graphs", graphs.count("launch"));
    // Two ranks' calls lie between each other; of a capture, the order holds where only one is under way.
    let at = |call: &str| graphs.calls.iter().position(|found| found == call);
    assert!(at("begin capture in mode 2") < at("end capture") && at("end capture") < at("instantiate"));
    assert!(at("instantiate") < at("launch") && at("launch") < at("destroy"));

    let off = train("off", &plan, "", &["--cuda-graphs", "off"]).expect("there was a card");
    assert_eq!((losses(&off.output), off.count("begin capture in mode 2")), (expected.clone(), 0));
    // A driver that fails a capture, or does not start what was captured: once for each rank, and then no more is asked of it.
    for what in ["capture", "launch"] {
        let failing = train(&format!("failing-{what}"), &plan, what, &[]).expect("there was a card");
        assert_eq!(losses(&failing.output), expected, "{what}");
        assert_eq!((failing.count("begin capture in mode 2"), failing.count("launch")), (2, 0), "{what}");
    }
}

/// All that a rank takes of the card is taken before its first job: what the walk on paper says, and the workspace.
#[test]
fn memory_is_taken_once_and_is_what_was_worked_out() {
    let plan = plan("llama", "bf16");
    let Some(ran) = train("memory", &plan, "", &[]) else { return };
    assert!(ran.output.status.success(), "{}", String::from_utf8_lossy(&ran.output.stderr));
    let taken: Vec<u64> = ran.calls.iter().filter_map(|call| call.strip_prefix("take ")?.parse().ok()).collect();
    let given: u64 = ran.calls.iter().filter_map(|call| call.strip_prefix("give back ")?.parse::<u64>().ok()).sum();
    assert_eq!(taken.iter().sum::<u64>(), given, "all is given back");
    let mebibytes = |bytes: u64| bytes.div_ceil(2 << 20) * (2 << 20);
    for rank in ran.memory() {
        let [counted, device] =
            ["high_water_bytes", "device_bytes"].map(|field| rank[field].as_u64().expect("bytes"));
        // A slab of its own, perhaps another for tables of angles, and one for messages that others give back.
        let least = mebibytes(counted + WORKSPACE_BYTES);
        assert!((least..=least + (2 << 20) + (16 << 20)).contains(&device), "{device} taken, {counted} counted");
    }
    let first_job = ran.calls.iter().position(|call| call == "begin capture in mode 2").expect("a capture");
    let late = ran.calls[first_job..].iter().filter(|call| call.starts_with("take ")).count();
    assert_eq!(late, 0, "{:?}", ran.calls);
}

/// What waits in the host's memory goes there and back on a stream of its own, to pinned memory that is taken once, before
/// the first job; the bits are those of a run that keeps all on the card. Where so much cannot be pinned, the run says so.
#[test]
fn what_is_kept_on_the_host_goes_beside_compute_and_changes_no_bit() {
    let spec = |offload: &str| {
        format!(
            "schedule = \"zb-h1\"\n[model]\nname = \"own\"\nlayers = 6\nhidden = 32\nheads = 2\nffn = 48\nvocab = 260\n\
             [cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n[training]\nmicrobatches = 4\nsequence = 8\n\
             microbatch_size = 1\ndtype = \"bf16\"\noffload = \"{offload}\"\n"
        )
    };
    let kept = planned("kept", &spec("none"));
    let Some(expected) = train("kept", &kept, "", &[]) else { return };
    for offload in ["all", "1"] {
        let plan = planned(&format!("away-{offload}"), &spec(offload));
        assert_eq!(emulated(&plan), losses(&expected.output), "{offload}");
        let plan = plan.to_string_lossy();
        let arguments = ["run", &*plan, "--backend", "cuda", "--steps", "4", "--json"];
        let name = format!("away-{offload}");
        let ran = on_cards(&name, "", &arguments, &[("FAKE_CUDA_ORDER", "1")]).expect("there was a card");
        assert_eq!(losses(&ran.output), losses(&expected.output), "{offload}");
        let streams = |end: &str| -> BTreeSet<&str> {
            ran.calls.iter().filter(|call| call.ends_with(end)).filter_map(|call| call.split(':').next()).collect()
        };
        let (away, back, products) = (streams(": to the host"), streams(": from the host"), streams(": product"));
        assert_eq!((away.len(), &back), (2, &away), "a stream of each rank: {away:?} {back:?}");
        assert!(away.is_disjoint(&products), "{away:?} {products:?}");
        // Each begins behind a place that its rank's own work has come to.
        for (at, call) in ran.calls.iter().enumerate().filter(|(_, call)| call.ends_with(" the host")) {
            let Some((stream, _)) = call.strip_prefix("stream ").and_then(|call| call.split_once(": ")) else {
                continue;
            };
            let waits = format!("stream {stream} waits for mark ");
            let last = ran.calls[..at].iter().rev().find(|call| call.starts_with(&format!("stream {stream}")));
            let mark =
                last.and_then(|last| last.strip_prefix(&waits)).unwrap_or_else(|| panic!("{call} behind {last:?}"));
            let made = format!(": mark {mark}");
            let of = ran.calls[..at].iter().rev().find(|call| call.ends_with(&made)).expect("the mark was made");
            assert!(products.contains(of.split(':').next().unwrap_or_default()), "{of}");
        }
        let copies = |end: &str| ran.calls.iter().filter(|call| call.ends_with(end)).count();
        assert_eq!(copies(": to the host"), copies(": from the host"));
        let pinned: Vec<u64> = ran.calls.iter().filter_map(|call| call.strip_prefix("pin ")?.parse().ok()).collect();
        let unpinned: u64 =
            ran.calls.iter().filter_map(|call| call.strip_prefix("unpin ")?.parse::<u64>().ok()).sum();
        assert_eq!((pinned.len(), pinned.iter().sum::<u64>()), (2, unpinned), "once for each rank, and given back");
        let first_job = ran.calls.iter().position(|call| call.starts_with("begin capture")).expect("a capture");
        let late = ran.calls[first_job..].iter().filter(|call| call.starts_with("take ") || call.starts_with("pin "));
        assert_eq!(late.count(), 0, "{offload}");
        for (rank, before) in ran.memory().iter().zip(expected.memory()) {
            let bytes = |of: &Value, field: &str| of[field].as_u64().expect("bytes");
            assert!(bytes(rank, "host_bytes") > 0 && bytes(&before, "host_bytes") == 0);
            assert!(bytes(rank, "activation_bytes") < bytes(&before, "activation_bytes"), "{rank} {before}");
        }
        let full = on_cards(&format!("{name}-full"), "", &arguments, &[("FAKE_CUDA_PINNED", "100")]).expect("a card");
        let says = String::from_utf8_lossy(&full.output.stderr).into_owned();
        assert!(!full.output.status.success() && says.contains("training.offload"), "{says}");
    }
}

/// What the optimizer keeps lies in pinned memory, where its kernel reads and writes it: no copies, the bits of a run that keeps
/// it on the card, and so many bytes of the card less. That goes for replicas that share it out, which then hand round by way
/// of the host what each has updated, and for a run that goes on from a checkpoint.
#[test]
fn what_the_optimizer_keeps_on_the_host_changes_no_bit() {
    let spec = |parallel: &str, on_host: bool| {
        format!(
            "schedule = \"zb-h1\"\n[model]\nname = \"own\"\nlayers = 4\nhidden = 32\nheads = 2\nffn = 48\nvocab = 260\n\
             [cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n{parallel}\n[training]\nmicrobatches = 4\nsequence = 8\n\
             microbatch_size = 1\ndtype = \"bf16\"\noffload_optimizer = {on_host}\n"
        )
    };
    let mut states = Vec::new();
    for (name, parallel) in [("state", ""), ("shared-state", "data = 2\nzero = 1")] {
        let [here, there] =
            [false, true].map(|on_host| planned(&format!("{name}-{on_host}"), &spec(parallel, on_host)));
        let Some(expected) = train(&format!("{name}-here"), &here, "", &[]) else { return };
        let ran = train(&format!("{name}-there"), &there, "", &[]).expect("there was a card");
        assert_eq!(losses(&ran.output), losses(&expected.output), "{name}");
        assert_eq!(emulated(&there), losses(&expected.output), "{name}");
        assert_eq!(ran.calls.iter().filter(|call| call.ends_with(" the host")).count(), 0, "{name}");
        let pins = ran.calls.iter().filter(|call| call.starts_with("pin "));
        assert_eq!(pins.count(), ran.memory().len(), "{name}: once for each rank");
        for (rank, before) in ran.memory().iter().zip(expected.memory()) {
            let bytes = |of: &Value, field: &str| of[field].as_u64().expect("bytes");
            let (moved, none) = (bytes(rank, "host_bytes"), bytes(&before, "host_bytes"));
            assert!(moved > 0 && none == 0, "{name}");
            let persistent = [&before, rank].map(|memory| bytes(memory, "persistent_bytes"));
            assert_eq!(persistent[0] - persistent[1], moved, "{name}");
        }
        states.push(ran.memory().iter().map(|rank| rank["host_bytes"].as_u64().expect("bytes")).sum::<u64>());
        let folder = tempfile::tempdir().expect("a folder");
        let saved = folder.path().join("saved");
        let run = |plan: &Path, more: &[&str]| {
            let plan = plan.to_string_lossy();
            let run = ["run", &*plan, "--backend", "emulated", "--json"];
            let output = pipeplan(&[&run[..], more].concat()).output().expect("it starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            losses(&output)
        };
        let saved = saved.to_string_lossy();
        run(&there, &["--steps", "2", "--checkpoint-dir", &*saved]);
        assert_eq!(run(&here, &["--steps", "4", "--resume", &*saved])[..], losses(&expected.output)[2..], "{name}");
    }
    assert_eq!(states[0], states[1], "two replicas share out what one keeps, master weights too");
}

/// Three messages of 20 MiB that can be on the way to another card at once have their memory before the first job; and a card
/// that is too small for them says what it has.
#[test]
fn what_is_on_the_way_to_other_cards_is_taken_at_the_start() {
    let Some(card) = card() else { return };
    let (library, cards) = (card.join("libnccl.so.2"), card.join("libcuda.so.1"));
    let plan = planned(
        "on-the-way",
        "schedule = \"gpipe\"\n[model]\nname = \"own\"\nfamily = \"llama\"\nlayers = 2\nhidden = 256\nheads = 2\nffn = 48\n\
         vocab = 260\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n[training]\nmicrobatches = 3\nsequence = 8\n\
         microbatch_size = 2560\ndtype = \"f32\"\nrecompute = \"full\"\n",
    );
    let plan = plan.to_string_lossy();
    // What rank 0 lacks on a card of so many MiB, by its own words, and what it has been given.
    let lacking = |mebibytes: u64| {
        let memory = (mebibytes << 20).to_string();
        let variables = [
            ("PIPEPLAN_NCCL", &*library.to_string_lossy()),
            ("FAKE_NCCL_CARD", &*cards.to_string_lossy()),
            ("FAKE_CUDA_CARDS", "2"),
            ("FAKE_CUDA_MEMORY", &*memory),
        ]
        .map(|(name, value)| (name, value.to_string()));
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let arguments = ["run", &*plan, "--backend", "cuda", "--transport", "nccl", "--patience", "60"];
        // Both ranks lack memory, and on a busy machine the other one may be the first to end the run.
        let one = |_| {
            let ran =
                on_cards(&format!("on-the-way-{mebibytes}"), "", &arguments, &variables).expect("there was a card");
            String::from_utf8_lossy(&ran.output.stderr).into_owned()
        };
        let says = |text: &String| text.contains("rank 0 failed: the GPU has no ");
        let text = (0..10).map(one).find(says).expect("rank 0 says it in one of ten runs");
        let said = text.split("rank 0 failed: the GPU has no ").nth(1).unwrap_or_else(|| panic!("{text}"));
        let numbers: Vec<u64> =
            said.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).take(3).collect();
        let [lacks, free, all] = numbers[..] else { panic!("{text}") };
        assert!(free < lacks && all == mebibytes, "{text}");
        assert!(said.contains("memory.overhead_bytes or a lower memory.limit_bytes"), "{text}");
        lacks
    };
    let own = lacking(16);
    assert!(own > 60, "{own}");
    // A slab for what is tried out first.
    assert_eq!(lacking(own + 2 + 59), 60);
}

/// Where cuBLASLt has no algorithm, cuBLAS multiplies, and what an epilogue would have done comes before and after: in f32
/// the bits are the same.
#[test]
fn without_an_algorithm_of_cublaslt_cublas_multiplies() {
    for family in ["llama", "gpt"] {
        let plan = plan(family, "f32");
        let Some(with) = train(&format!("with-{family}"), &plan, "", &[]) else { return };
        let without = train(&format!("without-{family}"), &plan, "lt", &[]).expect("there was a card");
        assert_eq!(losses(&with.output), losses(&without.output), "{family}");
        assert_eq!(losses(&with.output), emulated(&plan), "{family}");
        assert_eq!(with.count("plain product"), 0);
        assert!(without.count("plain product") > 0);
        let fused = if family == "gpt" { "product and a bias" } else { "product and what lies elsewhere" };
        assert!(with.count(fused) > 0, "{family}: {:?}", with.calls);
        // Each shape is asked for once a rank.
        let mut asked: Vec<&String> = with.calls.iter().filter(|call| call.starts_with("choose")).collect();
        let all = asked.len();
        asked.sort();
        asked.dedup();
        assert!(all <= 4 * asked.len(), "{all} questions for {} shapes", asked.len());
    }
}

/// Ranks on parts of the multiprocessors, whichever context the driver says that their streams belong to; and a driver that
/// makes none.
#[test]
fn ranks_run_on_parts_of_the_card() {
    let plan = plan("llama", "f32");
    for without in ["", "own"] {
        let Some(ran) = train(&format!("parts-{without}"), &plan, without, &["--split-gpu"]) else { return };
        assert_eq!(losses(&ran.output), emulated(&plan), "without {without:?}");
        assert_eq!(ran.count("a part of 64"), 2, "{:?}", ran.calls);
    }
    let refused = train("no-parts", &plan, "green", &["--split-gpu"]).expect("there was a card").output;
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("cuDeviceGetDevResource"), "{text}");
}

/// A word that the variable does not know is no wish that goes unheard.
#[test]
fn how_attention_goes_is_said_by_one_word() {
    let plan = plan("llama", "f32");
    let path = plan.to_string_lossy();
    let run = |word: &str| {
        let arguments = ["run", &*path, "--backend", "cuda", "--steps", "1", "--json"];
        on_cards(&format!("attention-{word}"), "", &arguments, &[("PIPEPLAN_ATTENTION", word)])
    };
    let Some(known) = run("warps") else { return };
    assert!(known.output.status.success(), "{}", String::from_utf8_lossy(&known.output.stderr));
    let unknown = run("warp").expect("there was a card").output;
    assert!(!unknown.status.success());
    let text = String::from_utf8_lossy(&unknown.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("PIPEPLAN_ATTENTION") && text.contains("`warp`"), "{text}");
}

/// Kernels that only some cards have, on one where they give nothing, break the card for its process, or do not end: a run goes
/// on without them, or ends and says how it would; a selftest says what is wrong and goes on without them.
#[test]
fn kernels_of_some_cards_are_tried_out_first() {
    let plan = plan("llama", "f32");
    let path = plan.to_string_lossy();
    let run = |groups: &str, more: &[(&str, &str)]| {
        let arguments = ["run", &*path, "--backend", "cuda", "--steps", "4", "--json"];
        let variables = [&[("FAKE_CUDA_GROUPS", groups)], more].concat();
        Some(on_cards(&format!("groups-{groups}-{}", more.len()), "", &arguments, &variables)?.output)
    };
    let Some(without) = run("nothing", &[]) else { return };
    assert_eq!(losses(&without), emulated(&plan));
    for (groups, why) in [("fault", "ILLEGAL_ADDRESS"), ("endless", "has not ended within 20 s")] {
        let refused = run(groups, &[]).expect("there was a card");
        assert!(!refused.status.success());
        let text = String::from_utf8_lossy(&refused.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("attention by groups of warps") && text.contains(why), "{text}");
        assert!(text.contains("with PIPEPLAN_ATTENTION=warps in its environment"), "{text}");
        let warps = [("PIPEPLAN_ATTENTION", "warps")];
        assert_eq!(losses(&run(groups, &warps).expect("there was a card")), emulated(&plan), "{groups}");
    }
    let other = [("FAKE_CUDA_GROUPS", "nothing")];
    let rows = selftest_within(10, "groups-other", &["--only", "kernels"], &other).expect("there was a card");
    let of_groups = rows.iter().find(|row| row["group"] == "attention by groups of warps");
    assert_eq!(of_groups.map(|row| &row["passed"]), Some(&Value::Bool(false)), "{rows:#?}");
    // How much of it comes to be tested in so little time does not matter.
    let fault = [("FAKE_CUDA_GROUPS", "fault")];
    let rows = selftest_within(10, "groups", &["--only", "kernels"], &fault).expect("there was a card");
    let is_opening = |row: &&Value| row["group"] == "device";
    let opening: Vec<&Value> = rows.iter().filter(is_opening).collect();
    let [Value::Object(opening)] = opening[..] else { panic!("{rows:#?}") };
    assert_eq!(opening["passed"], false);
    assert!(opening["found"].as_str().is_some_and(|found| found.contains("ILLEGAL_ADDRESS")), "{opening:?}");
    assert!(rows.len() > 1, "{rows:#?}");
}

/// What two ranks have to do takes one card as long as all their ops together, and each a part of it as long as the plan says.
#[test]
fn ranks_that_share_a_card_are_predicted_to_take_turns() {
    let plan = plan("llama", "f32");
    let text = std::fs::read_to_string(&plan).expect("it is written");
    let written: Value = serde_json::from_str(&text).expect("JSON");
    let sum = |list: &Value| list.as_array().expect("ranks").iter().filter_map(Value::as_u64).sum::<u64>();
    let busy = sum(&written["prediction"]["busy_ns"]);
    let step = busy + sum(&written["ends"]["optimizer_ns"]);
    let summary = |more: &[&str]| {
        let ran = train("turns", &plan, "", more)?;
        Some(serde_json::from_slice::<Value>(&ran.output.stdout).expect("a summary"))
    };
    let Some(turns) = summary(&[]) else { return };
    assert_eq!(turns["shared_processors"], 1);
    assert_eq!(
        (turns["predicted_makespan_ns"].as_u64(), turns["predicted_step_ns"].as_u64()),
        (Some(busy), Some(step))
    );
    assert_eq!(turns["predicted_bubble_ratio"], Value::Null);
    let parts = summary(&["--split-gpu"]).expect("there was a card");
    assert_eq!(parts["shared_processors"], Value::Null);
    assert!(parts["predicted_makespan_ns"].as_u64() >= written["prediction"]["makespan_ns"].as_u64());
    assert!(parts["predicted_bubble_ratio"].as_f64() > Some(0.0));
}

/// Measured on a part of the card beside others, planned with that, and run on such parts: what was planned is said beside
/// what was measured, and no operator is left to be estimated.
#[test]
fn parts_of_the_card_are_measured_planned_for_and_run() {
    let spec = plan("llama", "bf16").with_extension("toml");
    let profile = spec.with_extension("profile.json");
    let [spec_file, file] = [&spec, &profile].map(|path| path.to_string_lossy());
    let measure = ["profile", &*spec_file, "--device", "cuda", "--split-gpu", "-o", &*file];
    let Some(ran) = on_card("profile", "", &measure) else { return };
    assert!(ran.output.status.success(), "{}", String::from_utf8_lossy(&ran.output.stderr));
    assert_eq!(ran.count("a part of 64"), 2, "one is measured, and one beside it at work");
    assert!(ran.count("launch") > ran.count("instantiate"), "what comes again is a graph");
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).expect("it is written")).expect("JSON")
    };
    let device = read(&profile)["device"].as_str().unwrap_or_default().to_string();
    let is_part = device.contains(", 64 of 132 multiprocessors, another at work ");
    assert!(is_part && device.ends_with(" % of the time"), "{device}");
    let text = std::fs::read_to_string(&spec).expect("it is there");
    let plan = planned_with("measured", &text, &["--profile", &file]);
    let optimizer: Vec<u64> = read(&plan)["ends"]["optimizer_ns"]
        .as_array()
        .expect("what ends a step")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    let run = train("measured", &plan, "", &["--split-gpu"]).expect("there was a card");
    let report: Value = serde_json::from_slice(&run.output.stdout).expect("a summary");
    let [step, makespan] =
        ["predicted_step_ns", "predicted_makespan_ns"].map(|field| report[field].as_u64().unwrap());
    assert!(step > makespan && step <= makespan + optimizer.iter().max().expect("ranks"), "{report}");
    assert!(report["step_ns"].as_u64() >= report["makespan_ns"].as_u64());
    let refused = on_card("profile-whole", "green", &measure).expect("there was a card").output;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("cuDeviceGetDevResource"), "{text}");
}

/// Measured as ranks in turns have the whole card, planned with that, and run so: what is predicted is all that is measured,
/// one after the other.
#[test]
fn turns_on_the_card_are_measured_planned_for_and_run() {
    let spec = plan("llama", "f32").with_extension("toml");
    let profile = spec.with_extension("turns.json");
    let [spec_file, file] = [&spec, &profile].map(|path| path.to_string_lossy());
    let measure = ["profile", &*spec_file, "--device", "cuda", "--share-gpu", "-o", &*file];
    let Some(ran) = on_card("profile-turns", "", &measure) else { return };
    assert!(ran.output.status.success(), "{}", String::from_utf8_lossy(&ran.output.stderr));
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).expect("it is written")).expect("JSON")
    };
    let device = read(&profile)["device"].as_str().unwrap_or_default().to_string();
    assert!(device.ends_with("a card that is none, in turns with another"), "{device}");
    let text = std::fs::read_to_string(&spec).expect("it is there");
    let plan = planned_with("in-turns", &text, &["--profile", &file]);
    let busy = read(&plan)["prediction"]["busy_ns"].as_array().expect("ranks").clone();
    let run = train("in-turns", &plan, "", &[]).expect("there was a card");
    let report: Value = serde_json::from_slice(&run.output.stdout).expect("a summary");
    let all: u64 = busy.iter().filter_map(Value::as_u64).sum();
    assert_eq!(report["predicted_makespan_ns"].as_u64(), Some(all));
    let both = [&measure[..], &["--split-gpu"]].concat();
    let refused = on_card("profile-both", "", &both).expect("there was a card").output;
    assert_eq!(refused.status.code(), Some(2), "a card is had in one way");
}

/// Ranks that share matrices, each with a card: a sum waits for what it reads on a queue of its own, the ranks' products go
/// on beside it, their queues wait where it is read, and no host waits in between. What a rank takes of its card is what
/// was worked out: sums take no memory of their own.
#[test]
fn sums_over_nccl_run_beside_the_queue() {
    let Some(card) = card() else { return };
    let (library, cards) = (card.join("libnccl.so.2"), card.join("libcuda.so.1"));
    let variables = [
        ("PIPEPLAN_NCCL", &*library.to_string_lossy()),
        ("FAKE_NCCL_CARD", &*cards.to_string_lossy()),
        ("FAKE_CUDA_CARDS", "2"),
        ("FAKE_CUDA_ORDER", "1"),
    ];
    let (layers, microbatches, steps) = (2, 2, 4);
    for rows_too in [false, true] {
        let spec = format!(
            "schedule = \"1f1b\"\n[model]\nname = \"own\"\nfamily = \"llama\"\nlayers = {layers}\nhidden = 32\nheads = 2\n\
             ffn = 48\nvocab = 260\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 1\ntensor = 2\n\
             sequence_parallel = {rows_too}\nasync_reduce = true\n[training]\nmicrobatches = {microbatches}\nsequence = 8\n\
             microbatch_size = 1\ndtype = \"f32\"\n"
        );
        let plan = planned(&format!("beside-{rows_too}"), &spec);
        let expected = emulated(&plan);
        let plan = plan.to_string_lossy();
        for graphs in ["on", "off"] {
            let name = format!("beside-{rows_too}-{graphs}");
            let steps = steps.to_string();
            let arguments = ["run", &*plan, "--backend", "cuda", "--transport", "nccl", "--steps", &steps, "--json"];
            let arguments = [&arguments[..], &["--patience", "60", "--cuda-graphs", graphs]].concat();
            let ran = on_cards(&name, "", &arguments, &variables).expect("there was a card");
            assert_eq!(losses(&ran.output), expected, "{name}");
            for rank in ran.memory() {
                let [counted, device] =
                    ["high_water_bytes", "device_bytes"].map(|field| rank[field].as_u64().expect("bytes"));
                let slab = 2 << 20;
                let least = (counted + WORKSPACE_BYTES).div_ceil(slab) * slab;
                // A slab for the first message, and one for tables and what lies between tensors.
                assert!((least..=least + 2 * slab).contains(&device), "{name}: {device} taken, {counted} counted");
            }
            if graphs == "off" {
                let ranks: Vec<_> =
                    ran.by_process.iter().filter(|calls| calls.iter().any(|call| call.contains("init"))).collect();
                assert_eq!(ranks.len(), 2, "{name}");
                // Of each layer the gradients behind Q, K and V and behind gate and up.
                let least = 2 * layers * microbatches * 4;
                ranks.iter().for_each(|calls| assert_beside(calls, &name, least));
            }
        }
    }
}

/// That sums go as they should in `calls`, at least so many of them with products beside.
fn assert_beside(calls: &[String], name: &str, least: usize) {
    let numbers = |call: &str| -> Vec<u32> {
        call.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
    };
    let before = |at: usize, part: &str| calls[..at].iter().rposition(|call| call.contains(part)).expect(part);
    let mut with_products = 0;
    for at in (0..calls.len()).filter(|at| calls[*at].ends_with("from outside")) {
        let own = numbers(&calls[at])[0];
        // It waits for a mark that the rank's queue had just been given.
        let waits = before(at, &format!("stream {own} waits for mark"));
        let mark = before(waits, ": mark ");
        let [queue, ready] = numbers(&calls[mark])[..] else { panic!("{}", calls[mark]) };
        assert_eq!(numbers(&calls[waits])[1], ready, "{name}: {}", calls[waits]);
        assert!(queue != own && !calls[mark..at].iter().any(|call| call.contains("host waits")), "{name}");
        // The queue waits for the mark behind it, and the host for neither before that.
        let after =
            calls[at..].iter().position(|call| call.starts_with(&format!("stream {own}: mark"))).expect("a mark")
                + at;
        let done = numbers(&calls[after])[1];
        let joined = format!("stream {queue} waits for mark {done}");
        let joined = calls[after..].iter().position(|call| *call == joined).expect("it is joined") + after;
        let between = &calls[at..joined];
        assert!(!between.iter().any(|call| call.contains("host waits")), "{name}: {between:?}");
        with_products += usize::from(between.iter().any(|call| *call == format!("stream {queue}: product")));
    }
    assert!(with_products >= least, "{name}: {with_products} sums with products beside, of {least}");
}

/// Norms of heads, windows, experts and latent attention on ranks that share matrices, and rows too: as on the CPU.
#[test]
fn newer_families_share_matrices_on_a_card() {
    let experts = "experts = { count = 4, active = 2, ffn = 24 }";
    let latent = "experts = { count = 4, active = 2, ffn = 24, shared_ffn = 20, dense_layers = 1 }\n\
                  latent = { query_rank = 24, key_value_rank = 16, rope_width = 4, value_width = 8 }";
    let gemma = "post_norms = true\nactivation = \"gelu\"\nwindow = { tokens = 7, full_every = 2 }";
    for (name, heads, model) in [
        ("qwen", "kv_heads = 2\nhead_dim = 8", "qk_norm = true"),
        ("gemma", "kv_heads = 2\nhead_dim = 8", gemma),
        ("mixtral", "kv_heads = 2\nhead_dim = 8", experts),
        ("deepseek", "kv_heads = 4\nhead_dim = 12", latent),
    ] {
        for rows_too in [false, true] {
            let spec = format!(
                "schedule = \"1f1b\"\n[model]\nname = \"own\"\nlayers = 2\nhidden = 32\nheads = 4\nffn = 48\nvocab = 260\n\
                 {heads}\n{model}\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\ntensor = 2\n\
                 sequence_parallel = {rows_too}\n[training]\nmicrobatches = 2\nsequence = 12\nmicrobatch_size = 2\n\
                 dtype = \"f32\"\n"
            );
            let name = format!("{name}-{rows_too}");
            let plan = planned(&name, &spec);
            let Some(ran) = train(&name, &plan, "", &[]) else { return };
            let plan = plan.to_string_lossy();
            let on_cpu = pipeplan(&["run", &*plan, "--steps", "4", "--json"]).output().expect("it starts");
            let values = |bits: Vec<u64>| bits.into_iter().map(f64::from_bits);
            for (found, expected) in values(losses(&ran.output)).zip(values(losses(&on_cpu))) {
                assert!((found / expected - 1.0).abs() < 1e-5, "{name}: {found} on the card, {expected} on the CPU");
            }
        }
    }
}

/// Experts dealt to two replicas, and whole ones to two ranks that share matrices; keys and values in a ring of two: on one card and
/// over NCCL on a card each as on the stand-in to the bit, within memory that is taken before the first job.
#[test]
fn experts_and_rings_go_among_cards() {
    let Some(card) = card() else { return };
    let (library, cards) = (card.join("libnccl.so.2"), card.join("libcuda.so.1"));
    let variables = [
        ("PIPEPLAN_NCCL", &*library.to_string_lossy()),
        ("FAKE_NCCL_CARD", &*cards.to_string_lossy()),
        ("FAKE_CUDA_CARDS", "2"),
        ("FAKE_CUDA_ORDER", "1"),
    ];
    for (name, dtype, parallel) in [
        ("dealt", "bf16", "data = 2\nzero = 1\nexpert = 2"),
        ("whole", "f32", "tensor = 2\nexpert = 2\nsequence_parallel = true\nwhole_experts = true"),
        ("ring", "bf16", "context = 2\nzero = 1"),
    ] {
        let spec = format!(
            "schedule = \"1f1b\"\n[model]\nname = \"own\"\nlayers = 2\nhidden = 32\nheads = 4\nffn = 48\nvocab = 260\n\
             kv_heads = 2\nhead_dim = 8\nexperts = {{ count = 4, active = 2, ffn = 24 }}\n[cluster]\ndevice = \"cpu\"\n\
             [parallel]\npipeline = 1\n{parallel}\n[training]\nmicrobatches = 2\nsequence = 12\nmicrobatch_size = 2\n\
             dtype = \"{dtype}\"\nexpert_imbalance = 2\n"
        );
        let plan = planned(name, &spec);
        let expected = emulated(&plan);
        let on_one = train(name, &plan, "", &[]).expect("there was a card");
        assert_eq!(losses(&on_one.output), expected, "{name}");
        let plan = plan.to_string_lossy();
        let arguments = ["run", &*plan, "--backend", "cuda", "--transport", "nccl", "--steps", "4", "--json"];
        let arguments = [&arguments[..], &["--patience", "60"]].concat();
        let over_nccl = on_cards(&format!("{name}-nccl"), "", &arguments, &variables).expect("there was a card");
        assert_eq!(losses(&over_nccl.output), expected, "{name} over NCCL");
        for calls in [&on_one.by_process, &over_nccl.by_process].into_iter().flatten() {
            let first_job = calls.iter().position(|call| call.starts_with("begin capture")).unwrap_or(calls.len());
            let late = calls[first_job..].iter().filter(|call| call.starts_with("take ")).count();
            assert_eq!(late, 0, "{name}: {calls:?}");
        }
    }
}

fn selftest(name: &str, more: &[&str], variables: &[(&str, &str)]) -> Option<Vec<Value>> {
    selftest_within(3000, name, more, variables)
}

fn selftest_within(seconds: u32, name: &str, more: &[&str], variables: &[(&str, &str)]) -> Option<Vec<Value>> {
    let seconds = seconds.to_string();
    let arguments = [&["selftest", "--device", "cuda", "--json", "--within", &*seconds], more].concat();
    let ran = on_cards(name, "", &arguments, variables)?;
    let text = String::from_utf8_lossy(&ran.output.stdout);
    let table: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&ran.output.stderr));
    });
    Some(table["rows"].as_array().expect("rows").clone())
}

/// What the selftest measures, on a model that suits so small a card: all rows are there, and none fails but the one whose
/// time means nothing here.
#[test]
fn the_selftest_measures_a_card() {
    let Some(rows) = selftest("speed", &["--only", "speed"], &[]) else { return };
    let found = |name: &str| {
        let is_it = |row: &&Value| row["name"].as_str().is_some_and(|found| found.starts_with(name));
        rows.iter().find(is_it).unwrap_or_else(|| panic!("no row `{name}` in {rows:#?}"))
    };
    for name in [
        "one rank, CUDA graphs off: losses",
        "memory of the device that 4 ranks take",
        "bytes of rank 3",
        "4 ranks, each on its part of the multiprocessors: losses",
    ] {
        assert_eq!(found(name)["passed"], true, "{name}");
    }
    let of_time = "a step of the model, 4 ranks on one card";
    let failed = |row: &&Value| row["passed"] == false && row["name"] != of_time;
    assert_eq!(rows.iter().find(failed), None);
}

/// A kernel that breaks the card for its process: each section that needs it fails by itself, in a process of its own, and
/// what was found before stands once.
#[test]
fn the_selftest_goes_on_behind_a_fault() {
    let fault = [("FAKE_CUDA_FAULT", "rms_norm_bf16")];
    let Some(rows) = selftest("fault", &["--only", "speed"], &fault) else { return };
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_string();
    let failed: Vec<String> = rows.iter().filter(|row| row["passed"] == false).map(|row| text(row, "name")).collect();
    let sections = [
        "operators of the model",
        "stages of 4 ranks side by side",
        "4 ranks on one card",
        "jobs as CUDA",
        "4 ranks, each on its part",
        "one rank",
    ];
    assert_eq!(failed.len(), sections.len(), "{rows:#?}");
    for (name, section) in failed.iter().zip(sections) {
        assert!(name.starts_with(section), "{name} for {section}");
    }
    assert!(rows.iter().any(|row| row["passed"] == false && text(row, "found").contains("ILLEGAL_ADDRESS")));
    for name in ["copying within memory", "embedding to"] {
        let there = rows.iter().filter(|row| text(row, "name").starts_with(name)).count();
        assert_eq!(there, 1, "{name}: {rows:#?}");
    }
}

/// Every operator through the calls of a card, each tensor in memory of its own, whose ends are watched.
#[test]
#[ignore = "takes minutes: the emulated selftest runs the same kernels"]
fn every_operator_runs_by_the_calls_of_a_card() {
    let Some(rows) = selftest("operators", &["--only", "operators", "--apart"], &[]) else { return };
    assert!(rows.len() > 90, "{} rows", rows.len());
    assert_eq!(rows.iter().find(|row| row["passed"] != true), None);
}
