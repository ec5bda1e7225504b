//! What the runner's tests share: small models, and programs for them.
#![allow(dead_code, reason = "each test uses its part")]

use pipeplan::runner::{Precision, RunOptions, RunReport, Silent, Workload, run};
use pipeplan::transport::threads::ThreadOptions;
use pipeplan_core::cluster;
use pipeplan_core::derive::derive;
use pipeplan_core::fields::Faults;
use pipeplan_core::lower::lower;
use pipeplan_core::model::{Dtype, Family, ModelConfig, Variant};
use pipeplan_core::placement::Placement;
use pipeplan_core::problem::{Objective, Problem};
use pipeplan_core::schedule::{self, Schedule};
use pipeplan_core::spec::ModelWork;
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
        dtype: Dtype::F32,
        limit_bytes: None,
        objective: Objective::Makespan,
        layout: Default::default(),
        profile: None,
    }
}

/// The problem of `work` cut into `chunks` stages a rank.
pub fn problem(work: &ModelWork, placement: Placement, chunks: usize) -> Result<Problem, Faults> {
    let derived = derive(work, placement.clone(), chunks)?;
    Ok(derived.statement.problem(placement)?)
}

/// `work` in the order of the published schedule `name`; nothing where there is none for its shape.
pub fn published(work: &ModelWork, name: &str, precision: Precision) -> Option<Workload> {
    let published = schedule::find(name)?;
    let (placement, chunks) = (published.shape)(work.chunks as usize);
    let problem = problem(work, placement, chunks).ok()?;
    let schedule = published.build(&problem).ok()?;
    Some(ordered(work, &problem, &schedule, precision))
}

/// `work` in the order of `schedule`.
pub fn ordered(work: &ModelWork, problem: &Problem, schedule: &Schedule, precision: Precision) -> Workload {
    let program = lower(problem, schedule).expect("the order can be run");
    Workload::new(work, problem, &program, Some(precision)).expect("the model can be run")
}

/// `work` on one rank in one stage, one microbatch after the other.
pub fn one_by_one(work: &ModelWork, precision: Precision) -> Workload {
    let work = ModelWork { pipeline: 1, ..work.clone() };
    let problem = problem(&work, Placement::Linear, 1).expect("the model can be cut");
    let ops: Vec<String> =
        (0..work.microbatches).map(|microbatch| format!("0F{microbatch} 0BW{microbatch}")).collect();
    let schedule = Schedule::from_text_rows(&[ops.join(" ")]).expect("ops");
    ordered(&work, &problem, &schedule, precision)
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
