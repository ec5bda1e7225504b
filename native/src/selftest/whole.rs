//! Whole runs of a small model against one rank on the CPU in `f64`.

use std::time::Duration;

use pipeplan_core::cluster;
use pipeplan_core::derive::derive;
use pipeplan_core::model::{Dtype, Family, ModelConfig, Variant};
use pipeplan_core::problem::Objective;
use pipeplan_core::program::Step;
use pipeplan_core::spec::ModelWork;
use pipeplan_core::timeline::peak_bytes;
use pipeplan_core::units::Bytes;

use super::{Row, Rows};
use crate::runner::optimizer::AdamW;
use crate::runner::orders;
use crate::runner::{Device, Precision, RunOptions, RunReport, Silent, Workload, run};
use crate::transport::Buffer;
use crate::transport::threads::ThreadOptions;

const GROUP: &str = "whole runs";
const STEPS: u32 = 3;

/// A decoder small enough for any machine.
pub(super) fn work(family: Family, dtype: Dtype, ranks: usize) -> Option<ModelWork> {
    let cpu = cluster::find("cpu")?;
    Some(ModelWork {
        model_name: String::new(),
        model: ModelConfig {
            family,
            layers: 4,
            hidden: 64,
            heads: 2,
            kv_heads: if family == Family::Gpt { 2 } else { 1 },
            head_dim: 32,
            ffn: 40,
            vocab: 260,
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
        microbatches: 4,
        microbatch_size: 2,
        sequence: 19,
        dtype,
        limit_bytes: None,
        objective: Objective::Makespan,
        layout: Default::default(),
        profile: None,
    })
}

/// `work` in the order of the published schedule `name`, with the bytes that each rank's tensors should take at most: the
/// plan's, less the buffers that it sets aside for messages and a run takes only as needed.
pub(super) fn published(
    work: &ModelWork,
    name: &str,
    precision: Option<Precision>,
) -> Result<(Workload, Vec<Bytes>), String> {
    let workload = orders::published(work, name, precision).map_err(|error| error.to_string())?;
    let problem = &workload.problem;
    let derived = derive(work, problem.placement().clone(), problem.chunks()).map_err(|faults| faults.to_string())?;
    let peak = |rank: usize| {
        let row = workload.program.rows[rank].iter().filter_map(|step| match step {
            Step::Compute(op) => Some(*op),
            _ => None,
        });
        let buffers = derived.static_bytes.get(rank).map_or(0, |bytes| bytes.buffers);
        peak_bytes(problem, rank, row).saturating_sub(buffers)
    };
    let peaks = (0..problem.ranks()).map(peak).collect();
    Ok((workload, peaks))
}

fn one_by_one(work: &ModelWork, precision: Option<Precision>) -> Result<Workload, String> {
    orders::one_by_one(work, precision).map_err(|error| error.to_string())
}

fn train(workload: &Workload, device: Device) -> Result<RunReport, String> {
    let options = RunOptions {
        steps: STEPS,
        seed: 42,
        text: (0..400u32).flat_map(|n| format!("{n} times {n} is {}. ", n * n).into_bytes()).collect(),
        transport: ThreadOptions { slots: 4, patience: Duration::from_secs(120) },
        optimizer: AdamW::default(),
        keep_weights: true,
        device,
        ..RunOptions::default()
    };
    run(workload, &options, &mut Silent).map_err(|error| error.to_string())
}

/// ‖a − b‖ / ‖b‖ over all weights.
fn weights_error(found: &RunReport, expected: &RunReport) -> f64 {
    let wide = |buffer: &Buffer| -> Vec<f64> {
        match buffer {
            Buffer::F32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            Buffer::F64(values) => values.clone(),
            _ => Vec::new(),
        }
    };
    let mut sums = (0.0, 0.0);
    for (name, expected) in &expected.weights {
        let (found, expected) = (found.weights.get(name).map(wide).unwrap_or_default(), wide(expected));
        if found.len() != expected.len() {
            return f64::NAN;
        }
        for (found, expected) in found.iter().zip(&expected) {
            sums.0 += (found - expected) * (found - expected);
            sums.1 += expected * expected;
        }
    }
    f64::sqrt(sums.0 / f64::max(sums.1, f64::MIN_POSITIVE))
}

/// The greatest relative difference of the losses.
fn loss_error(found: &RunReport, expected: &RunReport) -> f64 {
    let (found, expected) = (found.losses(), expected.losses());
    if found.len() != expected.len() || found.is_empty() {
        return f64::NAN;
    }
    found.iter().zip(&expected).map(|(found, expected)| (found / expected - 1.0).abs()).fold(0.0, f64::max)
}

pub(super) fn check<F: FnMut(&Row)>(device: Device, rows: &mut Rows<F>) {
    use Family::{Gpt, Llama};
    let all = [(Llama, Dtype::F32), (Llama, Dtype::Bf16), (Gpt, Dtype::F32), (Gpt, Dtype::Bf16)];
    let models: &[(Family, Dtype)] = match device {
        Device::Cpu => &[all[0], all[2]],
        Device::Cuda(_) => &all,
        // Slow, and the formats differ in their kernels alone.
        Device::Emulated => &[all[1], all[2]],
    };
    for (family, format) in models {
        let name = format!("{} in {}", family.name(), format.name());
        if let Err(error) = check_one(device, *family, *format, &name, rows) {
            rows.push(Row::broken(GROUP, name, &error));
        }
    }
}

fn check_one<F: FnMut(&Row)>(
    device: Device,
    family: Family,
    format: Dtype,
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    let work = work(family, format, 2).ok_or("the catalog has no cpu")?;
    let reference = train(&one_by_one(&work, Some(Precision::Double))?, Device::Cpu)?;
    // What rounding of weights and activations leaves after a few steps: AdamW's steps are about as long whatever the
    // gradient, so a gradient near 0 that changes its sign moves a weight by two steps.
    let (loss_limit, weight_limit) = if format == Dtype::Bf16 { (5e-3, 2e-2) } else { (1e-5, 1e-3) };
    let alone = train(&one_by_one(&work, None)?, device)?;
    rows.push(Row::error(GROUP, format!("{name}, one rank: losses"), loss_error(&alone, &reference), loss_limit));
    rows.push(Row::error(
        GROUP,
        format!("{name}, one rank: weights"),
        weights_error(&alone, &reference),
        weight_limit,
    ));
    for schedule in ["1f1b", "zb-v"] {
        let (workload, predicted) = match published(&work, schedule, None) {
            Ok(found) => found,
            Err(error) => {
                rows.push(Row::broken(GROUP, format!("{name}, {schedule}"), &error));
                continue;
            }
        };
        let report = train(&workload, device)?;
        // Every weight gathers its gradients in the same order on the same device.
        let same = report.losses() == alone.losses();
        let losses: Vec<String> = report.losses().iter().map(|loss| format!("{loss:.5}")).collect();
        let against = if same { "one rank, to the bit" } else { "one rank's, which differ" };
        rows.push(Row::fact(
            GROUP,
            format!("{name}, {schedule} on 2 ranks: losses"),
            losses.join(" "),
            against,
            same,
        ));
        let again = train(&workload, device)?;
        let repeats = again.losses() == report.losses() && weights_error(&again, &report) == 0.0;
        let found = if repeats { "the same bits" } else { "other bits" };
        rows.push(Row::fact(GROUP, format!("{name}, {schedule}: a second run"), found, "the first", repeats));
        for (rank, memory) in report.memory.iter().enumerate() {
            let planned = predicted.get(rank).copied().unwrap_or(0);
            let held = memory.persistent_bytes + memory.activation_bytes;
            let name = format!("{name}, {schedule}: bytes of rank {rank}");
            rows.push(Row::fact(GROUP, name, held.to_string(), &format!("{planned} planned"), held == planned));
        }
    }
    // Only the CPU's ranks share matrices.
    if device == Device::Cpu { check_mesh(&work, &reference, name, rows) } else { Ok(()) }
}

/// Two ranks of a pipeline, in two replicas, of two each that share matrices.
fn check_mesh<F: FnMut(&Row)>(
    work: &ModelWork,
    reference: &RunReport,
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    let mut work = ModelWork { microbatches: work.microbatches / 2, ..work.clone() };
    (work.layout.data, work.layout.zero) = (2, 1);
    (work.layout.form.tensor, work.layout.form.async_reduce) = (2, true);
    let (workload, _) = published(&work, "1f1b", Some(Precision::Double))?;
    let report = train(&workload, Device::Cpu)?;
    let name = format!("{name}, 2 x 2 replicas x 2 that share matrices");
    rows.push(Row::error(GROUP, format!("{name}: losses"), loss_error(&report, reference), 1e-10));
    rows.push(Row::error(GROUP, format!("{name}: weights"), weights_error(&report, reference), 1e-8));
    Ok(())
}
