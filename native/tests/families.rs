//! Families of models by transformers' own classes.

use std::path::Path;
use std::process::Command;

/// Whether `families/SCRIPT` is content, where Python has what it needs.
fn judged_by(script: &str) {
    let python = std::env::var("PIPEPLAN_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let known = Command::new(&python).args(["-c", "import torch, transformers, safetensors"]).output();
    if !known.is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} has no torch, transformers and safetensors; PIPEPLAN_PYTHON names one that has");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families").join(script);
    let judge = Command::new(&python).arg(script).arg(env!("CARGO_BIN_EXE_pipeplan")).output().expect("it starts");
    println!("{}", String::from_utf8_lossy(&judge.stdout));
    assert!(judge.status.success(), "{}", String::from_utf8_lossy(&judge.stderr));
}

/// Logits, the loss and all gradients of a run on the CPU, for each family: `families/judge.py` says by how much they
/// differ. A minute of two processors.
#[test]
fn slow_each_family_computes_what_transformers_computes() {
    judged_by("judge.py");
}

/// A run starts from what transformers has saved, with its loss and its weights: `families/start.py`.
#[test]
fn slow_a_run_starts_from_what_transformers_has_saved() {
    judged_by("start.py");
}

/// The losses of 20 steps, from the same weights and tokens, with f32 and f64, on one rank and on two for each way to
/// split the work: `families/train.py` prints to how many digits they agree with transformers and torch's AdamW. A
/// minute.
#[test]
fn slow_a_run_trains_as_transformers_does() {
    judged_by("train.py");
}
