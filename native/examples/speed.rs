//! How fast the runner trains on one rank, beside what the matmul crate reaches on this core:
//! `cargo run --release --example speed [hidden] [sequence] [steps] [microbatch size]`.

use std::time::Instant;

use pipeplan::backend::cpu::gemm::{Gemm, Operand, Size, Tuned};
use pipeplan::runner::progress::line;
use pipeplan::runner::published_workloads::one_by_one;
use pipeplan::runner::{Observer, Precision, RunOptions, StepReport, run};
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::hardware::cluster;
use pipeplan_core::model::{Dtype, catalog};
use pipeplan_core::problem::Objective;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::spec::ModelWork;

struct Lines;

impl Observer for Lines {
    fn step_ended(&mut self, step: &StepReport) {
        println!("{}", line(step));
    }
}

/// Floating-point operations a second of one product of this size.
fn gemm_rate(rows: usize, inner: usize, columns: usize) -> f64 {
    let (a, b) = (vec![0.5f32; rows * inner], vec![0.25f32; inner * columns]);
    let mut c = vec![0.0f32; rows * columns];
    let flops = 2.0 * (rows * inner * columns) as f64;
    let repeats = (2e9 / flops).ceil() as usize;
    let mut best = 0f64;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..repeats {
            let size = Size { rows, inner, columns };
            Tuned.gemm(size, 1.0, Operand::rows(&a, inner), Operand::rows(&b, columns), 0.0, &mut c, columns);
        }
        best = best.max(flops * repeats as f64 / start.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let numbers: Vec<u32> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let number = |at: usize, default: u32| numbers.get(at).copied().unwrap_or(default);
    let (hidden, sequence, steps, microbatch_size) = (number(0, 64), number(1, 64), number(2, 20), number(3, 4));
    let (Some(tiny), Some(cpu)) = (catalog::find("tiny-llama"), cluster::find("cpu")) else { return };
    let mut model = tiny.config;
    (model.hidden, model.ffn) = (hidden, hidden * model.ffn / model.hidden);
    model.head_dim = hidden / model.heads;
    let work = ModelWork {
        model_name: String::new(),
        model,
        device: cpu.device(Dtype::F32),
        devices_per_node: 1,
        link: cpu.link,
        node_link: cpu.node_link,
        pipeline: 1,
        chunks: 1,
        microbatches: 8,
        microbatch_size,
        sequence,
        tokens: None,
        dtype: Dtype::F32,
        limit_bytes: None,
        objective: Objective::Makespan,
        layout: Default::default(),
        batch: Default::default(),
        failures: Default::default(),
        profile: None,
    };
    let derived = derive(&work, Placement::Linear, 1).expect("a model");
    let workload = one_by_one(&work, Some(Precision::Single)).expect("a model that runs");
    let text = include_bytes!("../../core/src/problem/mod.rs").to_vec();
    let report = run(&workload, &RunOptions { steps, text, ..RunOptions::default() }, &mut Lines).expect("a run");
    let step_s = report.duration_ns as f64 / 1e9 / f64::from(steps);
    let rate = derived.step_flops as f64 / step_s;
    let tokens = (microbatch_size * sequence) as usize;
    println!("{} parameters, {:.0} tokens/s, {:.2} GFLOP/s", model.parameters(), report.tokens_per_s(), rate / 1e9);
    for (rows, inner, columns) in [
        (1024, 1024, 1024),
        (tokens, hidden as usize, model.ffn as usize),
        (tokens, hidden as usize, hidden as usize),
    ] {
        println!("matmul {rows} x {inner} x {columns}: {:.1} GFLOP/s", gemm_rate(rows, inner, columns) / 1e9);
    }
}
