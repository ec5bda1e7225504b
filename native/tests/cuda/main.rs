//! Whole runs on a card that is none (`fake/cuda.c`): every call of the driver, NVRTC, cuBLAS and cuBLASLt as on a GPU,
//! found and loaded as the real libraries are, with the kernels of the emulated card. It is strict where the real ones
//! are said to be.
#![cfg(feature = "cuda")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use pipeplan::backend::cuda::emulated::build_kernels;
use serde_json::Value;
use tiny::{losses, pipeplan};

mod jobs;
mod memory;
mod nccl;
mod selftest;
mod sharing;
#[path = "../tiny/mod.rs"]
mod tiny;

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
