//! What the runner's tests share: small models, and programs for them.
#![allow(dead_code, unused_imports, reason = "each test uses its part")]

use pipeplan::runner::checkpoint::{Checkpoint, Saving};
use pipeplan::runner::evaluate::evaluate;
pub use pipeplan::runner::published_workloads::problem;
use pipeplan::runner::published_workloads::{self, NoOrder};
use pipeplan::runner::{
    Device, Failure, Observer, Precision, RunError, RunOptions, RunReport, Silent, StepReport, StopFlag, Workload,
    run,
};
use pipeplan::transport::Buffer;
use pipeplan::transport::faulty::Faults;
use pipeplan::transport::threads::ThreadOptions;
use pipeplan_core::graph::form::Recompute;
use pipeplan_core::graph::layout::Partition;
use pipeplan_core::hardware::cluster;
use pipeplan_core::model::{
    Activation, Caps, Dtype, E12, Experts, Factors, Family, ModelConfig, Routing, Variant, Window,
};
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::{Objective, Problem};
use pipeplan_core::spec::ModelWork;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A text with structure to learn, the same for ever.
pub fn text() -> Vec<u8> {
    (0..1000u32).flat_map(|n| format!("{n} times {n} is {}. ", n * n).into_bytes()).collect()
}

/// A decoder of 8 layers that trains in milliseconds.
pub fn work(ranks: usize, microbatches: usize) -> ModelWork {
    let cpu = cluster::find("cpu").expect("the catalog has this machine");
    ModelWork {
        model_name: String::new(),
        model: ModelConfig {
            family: Family::Llama,
            layers: 8,
            hidden: 16,
            heads: 4,
            kv_heads: 2,
            head_dim: 4,
            ffn: 24,
            vocab: 256,
            positions: 32,
            rope_base: 10_000,
            norm_eps_e12: 10_000_000,
            tied: false,
            variant: Variant::USUAL,
        },
        device: cpu.device(Dtype::F32),
        devices_per_node: 64,
        link: cpu.link,
        node_link: cpu.node_link,
        pipeline: ranks as u32,
        chunks: 2,
        microbatches: microbatches as u32,
        microbatch_size: 2,
        sequence: 12,
        tokens: None,
        dtype: Dtype::F32,
        limit_bytes: None,
        objective: Objective::Makespan,
        layout: Default::default(),
        batch: Default::default(),
        failures: Default::default(),
        profile: None,
    }
}

/// A model whose widths products in FP8 and FP4 take, on up to 4 ranks of a tensor-parallel group.
pub fn wide(ranks: usize, microbatches: usize) -> ModelWork {
    let mut work = work(ranks, microbatches);
    (work.model.hidden, work.model.ffn, work.model.head_dim) = (64, 128, 32);
    // One that has such products.
    work.device = cluster::find("b200").expect("it is in the catalog").device(Dtype::Bf16);
    work
}

/// Two of four experts for each token, and a shared one, behind a dense layer.
pub const EXPERTS: Experts = Experts {
    count: 4,
    active: 2,
    ffn: 16,
    shared_ffn: 8,
    shared_gate: false,
    dense_layers: 1,
    layers: None,
    biases: false,
    routing: Routing::USUAL,
};

/// Gemma 2's layers, every other one of which sees `tokens`, with caps that bind small models.
pub fn gemma_2(tokens: u32) -> Variant {
    Variant {
        post_norms: true,
        activation: Activation::Gelu,
        window: Some(Window::sliding(tokens, 2)),
        norm_offset: true,
        // √16, for the hidden width of `work`; and scores as if heads were 16 wide.
        factors: Factors { embedding: Some(4 * E12), attention: Some(E12 / 4), ..Factors::default() },
        caps: Caps { attention: Some(E12 / 10), logits: Some(E12 / 2) },
        ..Variant::USUAL
    }
}

/// Granite's.
pub fn granite() -> Variant {
    let (embedding, residual) = (Some(12 * E12), Some(E12 * 22 / 100));
    let (attention, logits) = (Some(E12 / 3), Some(E12 / 6));
    Variant { factors: Factors { embedding, residual, attention, logits }, ..Variant::USUAL }
}

/// `work` in the order of the published schedule `name`; nothing if there is none for its shape.
pub fn published(work: &ModelWork, name: &str, precision: Precision) -> Option<Workload> {
    match published_workloads::published(work, name, Some(precision)) {
        Ok(workload) => Some(workload),
        Err(NoOrder::Absent { .. } | NoOrder::Model(_)) => None,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Losses and weights of `run`, in the format of `work`, as near to those `expected` as rounding lets them be:
/// AdamW's steps are about as long whatever the gradient, so a gradient near 0 that changes its sign moves a weight
/// by two steps.
pub fn assert_near(run: &RunReport, expected: &RunReport, work: &ModelWork, what: &str) {
    let (of_losses, of_weights) = match (work.dtype, work.model.variant.experts.is_some()) {
        (Dtype::Bf16, false) => (5e-3, 2e-2),
        // A token between two experts may go to the other.
        (Dtype::Bf16, true) => (1e-2, 5e-2),
        _ => (1e-5, 1e-3),
    };
    assert_close_losses(run, expected, of_losses, what);
    let mut sums = [0.0, 0.0];
    for (name, expected) in &expected.weights {
        let (Buffer::F32(found), Buffer::F64(expected)) = (&run.weights[name], expected) else {
            panic!("{name} of {what} is in another format");
        };
        assert_eq!(found.len(), expected.len(), "{name} of {what}");
        for (found, expected) in found.iter().zip(expected) {
            sums[0] += (f64::from(*found) - expected).powi(2);
            sums[1] += expected.powi(2);
        }
    }
    let error = (sums[0] / sums[1]).sqrt();
    assert!(error < of_weights, "weights of {what} are {error} off");
}

/// `work` in the order of `schedule`.
pub fn ordered(work: &ModelWork, problem: &Problem, schedule: &Schedule, precision: Precision) -> Workload {
    published_workloads::ordered(work, problem, schedule, Some(precision)).unwrap_or_else(|error| panic!("{error}"))
}

/// `work` on one rank in one stage, one microbatch after the other.
pub fn one_by_one(work: &ModelWork, precision: Precision) -> Workload {
    published_workloads::one_by_one(work, Some(precision)).unwrap_or_else(|error| panic!("{error}"))
}

/// Options of a short run with sends that wait for their receives.
pub fn options(steps: u32) -> RunOptions {
    RunOptions {
        steps,
        seed: 42,
        text: text(),
        transport: ThreadOptions { slots: 0, patience: Duration::from_secs(30) },
        keep_weights: true,
        ..RunOptions::default()
    }
}

/// A run that has to end well.
pub fn train(workload: &Workload, options: &RunOptions) -> RunReport {
    run(workload, options, &mut Silent).unwrap_or_else(|error| panic!("{error}"))
}

/// Losses within `tolerance`, relative to those expected.
pub fn assert_close_losses(run: &RunReport, expected: &RunReport, tolerance: f64, what: &str) {
    assert_eq!(run.losses().len(), expected.losses().len(), "{what}");
    for (found, expected) in run.losses().iter().zip(expected.losses()) {
        assert!((found - expected).abs() < tolerance * expected.abs().max(1.0), "{what}: {found} {expected}");
    }
}

/// One rank that takes `work`'s whole step by itself.
pub fn alone(work: &ModelWork, precision: Precision) -> Workload {
    let mut work = ModelWork { microbatches: work.microbatches * work.layout.data, ..work.clone() };
    (work.layout.data, work.layout.zero, work.layout.slices) = (1, 0, 1);
    work.layout.partition = Partition::default();
    work.layout.form.sequence_parallel = false;
    (work.layout.form.recompute, work.layout.form.whole_experts) = (Recompute::None, false);
    (work.layout.form.async_reduce, work.layout.form.tensor, work.layout.form.context) = (false, 1, 1);
    (work.layout.form.expert, work.layout.form.imbalance_permille) = (1, 1000);
    one_by_one(&work, precision)
}

/// What one rank makes of each step, by what it trains on.
#[derive(Default)]
pub struct Expected {
    known: BTreeMap<String, RunReport>,
}

impl Expected {
    /// That of `work` as a whole.
    pub fn of(&mut self, work: &ModelWork, precision: Precision, options: &RunOptions) -> &RunReport {
        let workload = alone(work, precision);
        let form = work.layout.form;
        let key = format!(
            "{:?} {:?} {precision:?} {:?} {}",
            work.model,
            (workload.step_tokens(), work.sequence, form.attention, form.dropout, form.frozen, form.lora),
            options.clip_norm,
            options.steps
        );
        self.known.entry(key).or_insert_with(|| train(&workload, options))
    }
}

/// All bits of its losses.
pub fn bits(report: &RunReport) -> Vec<u64> {
    report.losses().iter().map(|loss| loss.to_bits()).collect()
}

/// Weights within 1e-10.
pub fn assert_close_weights(run: &RunReport, expected: &RunReport, what: &str) {
    assert_eq!(run.weights.len(), expected.weights.len(), "{what}");
    for (name, weight) in &run.weights {
        let (Buffer::F64(found), Buffer::F64(expected)) = (weight, &expected.weights[name]) else {
            panic!("{name} is not in f64");
        };
        assert_eq!(found.len(), expected.len(), "{name} of {what}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-10, "{name} of {what}: {found} {expected}");
        }
    }
}

/// `work` as `name` for 20 steps: in `f64` losses and weights within 1e-10 of one rank's, in `f32` losses within 1e-5
/// of it, and a second run to the bit. False where there is no such schedule.
pub fn trains_as_one_rank(work: &ModelWork, name: &str, options: &RunOptions, expected: &mut Expected) -> bool {
    let Some(double) = published(work, name, Precision::Double) else { return false };
    let what = format!("{name} on {} ranks of {:?}", work.pipeline, work.layout);
    let run = train(&double, options);
    assert_close_losses(&run, expected.of(work, Precision::Double, options), 1e-10, &what);
    assert_close_weights(&run, expected.of(work, Precision::Double, options), &what);
    let single = published(work, name, Precision::Single).expect("as in f64");
    let run = train(&single, options);
    assert_close_losses(&run, expected.of(work, Precision::Single, options), 1e-5, &what);
    let again = train(&single, options);
    assert_eq!((bits(&run), &run.weights), (bits(&again), &again.weights), "{what} repeats");
    true
}

/// `work` as `name` for a few steps on the emulated card of a card, in its own format: within what rounding leaves of
/// one rank on
/// the CPU in `f64`, and a second run to the bit. False (said plainly) where no compiler makes the kernels.
pub fn trains_on_cards(work: &ModelWork, name: &str, steps: u32, expected: &mut Expected) -> bool {
    let workload = published_workloads::published(work, name, None).unwrap_or_else(|error| panic!("{name}: {error}"));
    let on_cards = RunOptions { device: Device::Emulated, ..options(steps) };
    let found = match run(&workload, &on_cards, &mut Silent) {
        Err(error) if error.to_string().contains("cannot be started") => {
            eprintln!("SKIPPED: nothing runs on a card: {error}");
            return false;
        }
        other => other.unwrap_or_else(|error| panic!("{name}: {error}")),
    };
    let what = format!("{name} in {} on {} ranks of {:?}", work.dtype.name(), work.pipeline, work.layout);
    assert_near(&found, expected.of(work, Precision::Double, &options(steps)), work, &what);
    let again = train(&workload, &on_cards);
    assert_eq!((bits(&found), &found.weights), (bits(&again), &again.weights), "{what} repeats");
    true
}

/// Raises the flag in step 2.
pub struct Stopper(pub StopFlag);

impl Observer for Stopper {
    fn step_ended(&mut self, step: &StepReport) {
        if step.step == 2 {
            self.0.raise();
        }
    }
}

/// Each of `layouts` goes on from its own checkpoint to the bit, and from that of the one before within rounding of
/// what one run of the first layout trains; `steps` in all, three of them before the checkpoint.
pub fn resumes_on_any<L: Copy + Debug>(layouts: &[L], planned: impl Fn(L) -> Workload, steps: u32) {
    const FIRST: u32 = 3;
    let resuming = |folder: &Path| {
        let resume = Some(Checkpoint::open(folder).expect("a checkpoint"));
        RunOptions { resume, ..options(steps) }
    };
    let whole = train(&planned(layouts[0]), &options(steps));
    let rest_of_whole = RunReport { steps: whole.steps[FIRST as usize..].to_vec(), ..whole.clone() };
    for (at, layout) in layouts.iter().copied().enumerate() {
        let folder = tempfile::tempdir().expect("a folder");
        let saving = Some(Saving { folder: folder.path().to_path_buf(), every: 0 });
        let workload = planned(layout);
        train(&workload, &RunOptions { saving, ..options(FIRST) });
        let rest = train(&workload, &resuming(folder.path()));
        let unbroken = train(&workload, &options(steps));
        assert_eq!(bits(&rest), bits(&unbroken)[FIRST as usize..], "{layout:?}");
        assert_eq!(rest.weights, unbroken.weights, "{layout:?}");

        let next = layouts[(at + 1) % layouts.len()];
        let rest = train(&planned(next), &resuming(folder.path()));
        let what = format!("from {layout:?} to {next:?}");
        assert_close_losses(&rest, &rest_of_whole, 1e-10, &what);
        assert_close_weights(&rest, &whole, &what);
    }
}

/// How a run fails of which rank 1 stands still at its message `after`; `slots` messages fit a mailbox.
pub fn stalled(workload: &Workload, after: u64, slots: usize) -> Box<Failure> {
    let stall = Faults { stall: Some((after, Duration::from_secs(30))), ..Faults::default() };
    let options = RunOptions {
        transport: ThreadOptions { slots, patience: Duration::from_millis(400) },
        grace: Duration::from_millis(100),
        faults: vec![(1, stall)],
        ..options(4)
    };
    match run(workload, &options, &mut Silent) {
        Err(RunError::Failed(failure)) => failure,
        other => panic!("it fails: {:?}", other.map(|_| ())),
    }
}

/// Trains `steps` steps and has `examples/transformers_check.py` compare the logits of the checkpoint with those of
/// `transformers`. False where no Python has that.
pub fn transformers_agrees(workload: &Workload, precision: Precision, steps: u32, what: &str) -> bool {
    let python = std::env::var("PIPEPLAN_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let known = Command::new(&python).args(["-c", "import torch, transformers, safetensors"]).output();
    if !known.is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} has no torch, transformers and safetensors; PIPEPLAN_PYTHON names one that has");
        return false;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let saving = Some(Saving { folder: folder.path().to_path_buf(), every: 0 });
    train(workload, &RunOptions { saving, ..options(steps) });
    let checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
    let file = folder.path().join("logits.safetensors");
    let tensors = match precision {
        Precision::Single => evaluate::<f32>(&checkpoint, &text(), 9).expect("it computes").to_safetensors(),
        Precision::Double => evaluate::<f64>(&checkpoint, &text(), 9).expect("it computes").to_safetensors(),
    };
    std::fs::write(&file, tensors.expect("a file's bytes")).expect("it is written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/transformers_check.py");
    let output = Command::new(&python).arg(script).arg(&checkpoint.folder).arg(&file).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{what}:\n{said}");
    assert!(output.status.success(), "{what}: {said}{}", String::from_utf8_lossy(&output.stderr));
    true
}
