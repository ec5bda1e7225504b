//! Whole runs of a small model against one rank on the CPU in `f64`.

use std::time::Duration;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::graph::form::Offload;
use pipeplan_core::graph::layout::Layout;
use pipeplan_core::hardware::cluster;
use pipeplan_core::model::{
    Activation, Caps, Dtype, E12, Experts, Factors, Family, Latent, ModelConfig, Routing, Variant, Window,
};
use pipeplan_core::problem::Objective;
use pipeplan_core::program::Step;
use pipeplan_core::simulate::timeline::peak_bytes;
use pipeplan_core::spec::ModelWork;

use super::{News, Row, Rows};
use crate::runner::checkpoint::{Checkpoint, Saving};
use crate::runner::optimizer::AdamW;
use crate::runner::published_workloads;
use crate::runner::{Device, Precision, RunOptions, RunReport, Silent, Workload, run};
use crate::transport::Buffer;
use crate::transport::threads::ThreadOptions;

const GROUP: &str = "whole runs";
const STEPS: u32 = 3;

/// Decoders small enough for any machine, like those that people train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Like {
    Llama,
    Gpt,
    /// QK-norm.
    Qwen3,
    /// Norms before and after, GELU gates, windows.
    Gemma2,
    /// Experts.
    Mixtral,
    /// Latent attention, experts besides shared ones.
    DeepSeek,
}

impl Like {
    const fn name(self) -> &'static str {
        match self {
            Like::Llama => "llama",
            Like::Gpt => "gpt",
            Like::Qwen3 => "qwen 3",
            Like::Gemma2 => "gemma 2",
            Like::Mixtral => "mixtral",
            Like::DeepSeek => "deepseek",
        }
    }

    /// Whether rounding can send a token to another expert, which no small change of a weight makes good.
    const fn has_experts(self) -> bool {
        matches!(self, Like::Mixtral | Like::DeepSeek)
    }

    fn model(self) -> ModelConfig {
        let usual = ModelConfig {
            family: if self == Like::Gpt { Family::Gpt } else { Family::Llama },
            layers: 4,
            hidden: 64,
            heads: 2,
            kv_heads: if self == Like::Gpt { 2 } else { 1 },
            head_dim: 32,
            ffn: 40,
            vocab: 260,
            positions: 32,
            rope_base: 10_000,
            norm_eps_e12: 10_000_000,
            tied: false,
            variant: Variant::USUAL,
        };
        let experts = Experts {
            count: 4,
            active: 2,
            ffn: 24,
            shared_ffn: 0,
            shared_gate: false,
            dense_layers: 0,
            layers: None,
            biases: false,
            routing: Routing::USUAL,
        };
        let variant = match self {
            Like::Llama | Like::Gpt => Variant::USUAL,
            Like::Qwen3 => Variant { qk_norm: true, ..Variant::USUAL },
            Like::Gemma2 => Variant {
                post_norms: true,
                activation: Activation::Gelu,
                window: Some(Window::sliding(7, 2)),
                norm_offset: true,
                factors: Factors { embedding: Some(8 * E12), attention: Some(E12 / 4), ..Factors::default() },
                caps: Caps { attention: Some(E12 / 2), logits: Some(3 * E12) },
                ..Variant::USUAL
            },
            Like::Mixtral => Variant { experts: Some(experts), ..Variant::USUAL },
            Like::DeepSeek => Variant {
                experts: Some(Experts { shared_ffn: 20, dense_layers: 1, layers: None, biases: false, ..experts }),
                latent: Some(Latent { query_rank: 24, key_value_rank: 16, rope_width: 8, value_width: 16 }),
                ..Variant::USUAL
            },
        };
        let usual = ModelConfig { variant, ..usual };
        if self == Like::DeepSeek { ModelConfig { kv_heads: 2, head_dim: 24, ..usual } } else { usual }
    }
}

/// The work of training `like` on `ranks` ranks.
pub(crate) fn work(like: Like, dtype: Dtype, ranks: usize) -> Option<ModelWork> {
    let cpu = cluster::find("cpu")?;
    Some(ModelWork {
        model_name: String::new(),
        model: like.model(),
        device: cpu.device(Dtype::F32),
        devices_per_node: 64,
        link: cpu.link,
        node_link: cpu.node_link,
        pipeline: ranks as u32,
        chunks: 2,
        microbatches: 4,
        microbatch_size: 2,
        sequence: 19,
        tokens: None,
        dtype,
        limit_bytes: None,
        objective: Objective::Makespan,
        layout: Default::default(),
        batch: Default::default(),
        failures: Default::default(),
        profile: None,
    })
}

/// `work` in the order of the published schedule `name`, with the bytes that each rank's tensors should take at most: the
/// plan's, less the buffers that it sets aside for messages and a run takes only as needed.
pub(crate) fn published(
    work: &ModelWork,
    name: &str,
    precision: Option<Precision>,
) -> Result<(Workload, Vec<Bytes>), String> {
    let workload = published_workloads::published(work, name, precision).map_err(|error| error.to_string())?;
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

/// `work` on one rank, microbatch after microbatch.
pub(super) fn one_by_one(work: &ModelWork, precision: Option<Precision>) -> Result<Workload, String> {
    published_workloads::one_by_one(work, precision).map_err(|error| error.to_string())
}

fn train(workload: &Workload, device: Device) -> Result<RunReport, String> {
    train_as(workload, device, few_steps())
}

fn few_steps() -> RunOptions {
    RunOptions { steps: STEPS, ..RunOptions::default() }
}

/// Trains with clipping, checkpoints and the number of steps of `options`.
fn train_as(workload: &Workload, device: Device, options: RunOptions) -> Result<RunReport, String> {
    let options = RunOptions {
        seed: 42,
        text: (0..400u32).flat_map(|n| format!("{n} times {n} is {}. ", n * n).into_bytes()).collect(),
        transport: ThreadOptions { slots: 4, patience: Duration::from_secs(120) },
        optimizer: AdamW::default(),
        keep_weights: true,
        device,
        ..options
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

pub(super) fn check<F: FnMut(News)>(device: Device, rows: &mut Rows<F>) {
    use Like::{DeepSeek, Gemma2, Gpt, Llama, Mixtral, Qwen3};
    const F32: Dtype = Dtype::F32;
    const BF16: Dtype = Dtype::Bf16;
    let models: &[(Like, Dtype)] = match device {
        Device::Cpu => &[(Llama, F32), (Gpt, F32), (Qwen3, F32), (Gemma2, F32), (Mixtral, F32), (DeepSeek, F32)],
        Device::Cuda(_) => &[
            (Llama, F32),
            (Llama, BF16),
            (Gpt, F32),
            (Gpt, BF16),
            (Qwen3, BF16),
            (Gemma2, BF16),
            (Mixtral, F32),
            (Mixtral, BF16),
            (DeepSeek, F32),
            (DeepSeek, BF16),
        ],
        // Slow, and the formats differ in their kernels alone.
        Device::Emulated => {
            &[(Llama, BF16), (Gpt, F32), (Qwen3, BF16), (Gemma2, BF16), (Mixtral, F32), (DeepSeek, BF16)]
        }
    };
    for (like, format) in models {
        let name = format!("{} in {}", like.name(), format.name());
        rows.section(GROUP, &name, |rows| check_one(device, *like, *format, &name, rows));
    }
}

/// How far losses and weights may be off after a few steps.
fn limits_of(format: Dtype, like: Like) -> (f64, f64) {
    // What rounding of weights and activations leaves: AdamW's steps are about as long whatever the gradient, so a gradient
    // near 0 that changes its sign moves a weight by two steps.
    match (format, like.has_experts()) {
        (Dtype::Bf16, false) => (5e-3, 2e-2),
        // A token between two experts may go to the other.
        (Dtype::Bf16, true) => (1e-2, 5e-2),
        (_, _) => (1e-5, 1e-3),
    }
}

fn check_one<F: FnMut(News)>(
    device: Device,
    like: Like,
    format: Dtype,
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    let work = work(like, format, 2).ok_or("the catalog has no cpu")?;
    let reference = train(&one_by_one(&work, Some(Precision::Double))?, Device::Cpu)?;
    let (loss_limit, weight_limit) = limits_of(format, like);
    let alone = train(&one_by_one(&work, None)?, device)?;
    rows.push(Row::error(GROUP, format!("{name}, one rank: losses"), loss_error(&alone, &reference), loss_limit));
    rows.push(Row::error(
        GROUP,
        format!("{name}, one rank: weights"),
        weights_error(&alone, &reference),
        weight_limit,
    ));
    // What the others have in common is proved by the first two.
    let schedules: &[&str] = if matches!(like, Like::Llama | Like::Gpt) { &["1f1b", "zb-v"] } else { &["zb-v"] };
    for schedule in schedules.iter().copied() {
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
    if like == Like::Llama {
        check_on_host(&work, device, &alone, name, rows)?;
    }
    let limits = if device == Device::Cpu { (1e-10, 1e-8) } else { (loss_limit, weight_limit) };
    // Slow on the emulated card, where separate tests cover the newer families, rings and expert parallel.
    if device != Device::Emulated || matches!(like, Like::Llama | Like::Gpt) {
        // One way for each family there.
        let one = [work.model.family == Family::Gpt];
        let ways = if device == Device::Emulated { &one[..] } else { &[false, true] };
        check_mesh(&work, device, limits, ways, name, rows)?;
    }
    if device != Device::Emulated {
        check_ring(&work, device, limits, name, rows)?;
        if like.has_experts() {
            check_experts(&work, device, limits, name, rows)?;
        }
    }
    if device != Device::Cpu && like == Like::Llama {
        check_between_steps(&work, device, name, rows)?;
    }
    Ok(())
}

/// Two ranks of a pipeline that keep what layers keep in host memory, or the optimizer states, against `alone`, which
/// keeps it on the device; and on a card also with copies that take longer than what is launched meanwhile.
fn check_on_host<F: FnMut(News)>(
    work: &ModelWork,
    device: Device,
    alone: &RunReport,
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    check_kept_on_host(work, device, alone, &format!("{name}, activation offload"), rows)?;
    if matches!(device, Device::Cuda(_)) {
        let large = ModelWork { microbatch_size: 512, ..work.clone() };
        let alone = train(&one_by_one(&large, None)?, device)?;
        check_kept_on_host(&large, device, &alone, &format!("{name}, activation offload of large tensors"), rows)?;
    }
    Ok(())
}

fn check_kept_on_host<F: FnMut(News)>(
    work: &ModelWork,
    device: Device,
    alone: &RunReport,
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    for (what, offload, offload_optimizer) in [
        ("of all layers", Offload::All, false),
        ("of the first", Offload::First(1), false),
        ("optimizer states", Offload::None, true),
    ] {
        let mut work = work.clone();
        (work.layout.form.offload, work.layout.offload_optimizer) = (offload, offload_optimizer);
        let (workload, predicted) = published(&work, "zb-h1", None)?;
        let name = format!("{name} ({what}), zb-h1 on 2 ranks");
        let reports = [train(&workload, device)?, train(&workload, device)?];
        let is_same = |report: &RunReport| report.losses() == alone.losses() && weights_error(report, alone) == 0.0;
        let same = reports.iter().all(is_same);
        let found = if same { "the same bits, twice" } else { "other bits" };
        rows.push(Row::fact(GROUP, format!("{name}: losses and weights"), found, "one rank, without offload", same));
        for (rank, memory) in reports[0].memory.iter().enumerate() {
            let planned = predicted.get(rank).copied().unwrap_or(0);
            let held = memory.persistent_bytes + memory.activation_bytes;
            let against = format!("{planned} planned, and some in host memory");
            let holds = held == planned && memory.host_bytes > 0;
            rows.push(Row::fact(GROUP, format!("{name}: bytes of rank {rank}"), held.to_string(), &against, holds));
        }
    }
    Ok(())
}

/// PP 2, DP 2 and TP 2, with overlapped reductions, or with sequence parallel where `ways` say so.
fn check_mesh<F: FnMut(News)>(
    work: &ModelWork,
    device: Device,
    limits: (f64, f64),
    ways: &[bool],
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    // Two ranks split the rows of each sequence.
    let whole = ModelWork { sequence: work.sequence / 2 * 2, ..work.clone() };
    let reference = &train(&one_by_one(&whole, Some(Precision::Double))?, Device::Cpu)?;
    for rows_too in ways.iter().copied() {
        let mut work = ModelWork { microbatches: whole.microbatches / 2, ..whole.clone() };
        (work.layout.data, work.layout.zero) = (2, 1);
        (work.layout.form.tensor, work.layout.form.async_reduce) = (2, true);
        work.layout.form.sequence_parallel = rows_too;
        let what = if rows_too { "TP 2 with sequence parallel" } else { "TP 2" };
        let name = format!("{name}, PP 2, DP 2, {what}");
        check_against(reference, &work, device, limits, &name, rows)?;
    }
    Ok(())
}

/// PP 2 and EP 2, over two replicas, or over the two tensor-parallel ranks with whole experts (ETP 1).
fn check_experts<F: FnMut(News)>(
    work: &ModelWork,
    device: Device,
    limits: (f64, f64),
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    // Two ranks split the rows of each sequence.
    let whole = ModelWork { sequence: work.sequence / 2 * 2, ..work.clone() };
    let reference = &train(&one_by_one(&whole, Some(Precision::Double))?, Device::Cpu)?;
    for along_members in [false, true] {
        let mut work = whole.clone();
        let form = &mut work.layout.form;
        // Room for all copies of two.
        (form.expert, form.imbalance_permille) = (2, 2000);
        (form.whole_experts, form.sequence_parallel) = (along_members, along_members);
        let among = match along_members {
            true => {
                form.tensor = 2;
                "TP 2, ETP 1"
            }
            false => {
                (work.layout.data, work.layout.zero) = (2, 1);
                work.microbatches /= 2;
                "DP 2"
            }
        };
        let name = format!("{name}, PP 2, EP 2, {among}");
        check_against(reference, &work, device, limits, &name, rows)?;
    }
    Ok(())
}

/// PP 2 and CP 2: ranks pass keys and values around a ring.
fn check_ring<F: FnMut(News)>(
    work: &ModelWork,
    device: Device,
    limits: (f64, f64),
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    let mut work = ModelWork { sequence: work.sequence / 4 * 4, ..work.clone() };
    let reference = train(&one_by_one(&work, Some(Precision::Double))?, Device::Cpu)?;
    (work.layout.form.context, work.layout.zero) = (2, 1);
    check_against(&reference, &work, device, limits, &format!("{name}, PP 2, CP 2"), rows)
}

/// `work` against `reference`, and on a card against itself.
fn check_against<F: FnMut(News)>(
    reference: &RunReport,
    work: &ModelWork,
    device: Device,
    (loss_limit, weight_limit): (f64, f64),
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    let precision = if device == Device::Cpu { Some(Precision::Double) } else { None };
    let (workload, _) = published(work, "1f1b", precision)?;
    let report = train(&workload, device)?;
    rows.push(Row::error(GROUP, format!("{name}: losses"), loss_error(&report, reference), loss_limit));
    rows.push(Row::error(GROUP, format!("{name}: weights"), weights_error(&report, reference), weight_limit));
    if matches!(device, Device::Cuda(_)) {
        let again = train(&workload, device)?;
        let repeats = again.losses() == report.losses() && weights_error(&again, &report) == 0.0;
        let found = if repeats { "the same bits" } else { "other bits" };
        rows.push(Row::fact(GROUP, format!("{name}: a second run"), found, "the first", repeats));
    }
    Ok(())
}

/// What happens between training steps: clipping, copies that shard the optimizer states, and checkpoints.
fn check_between_steps<F: FnMut(News)>(
    work: &ModelWork,
    device: Device,
    name: &str,
    rows: &mut Rows<F>,
) -> Result<(), String> {
    let mut fact = |what: &str, against: &str, holds: bool| {
        let found = if holds { "the same bits" } else { "other bits" };
        rows.push(Row::fact(GROUP, format!("{name}, {what}"), found, against, holds));
    };
    let same = |a: &RunReport, b: &RunReport| a.losses() == b.losses() && weights_error(a, b) == 0.0;
    // So small that every step is clipped.
    let clipped = || RunOptions { clip_norm: Some(0.1), ..few_steps() };
    let alone = train_as(&one_by_one(work, None)?, device, clipped())?;
    let (on_two, _) = published(work, "1f1b", None)?;
    let cut = train_as(&on_two, device, clipped())?;
    fact("clipped, 1f1b on 2 ranks", "one rank, clipped", same(&cut, &alone));
    fact("clipped, and not", "other losses", train(&on_two, device)?.losses() != cut.losses());

    let copies = |zero: u32| {
        let layout = Layout { data: 2, zero, ..work.layout.clone() };
        published(&ModelWork { layout, ..work.clone() }, "1f1b", None).map(|(workload, _)| workload)
    };
    let (whole, shared) = (train(&copies(0)?, device)?, train(&copies(1)?, device)?);
    fact("DP 2 with ZeRO 1", "DP 2 without ZeRO", same(&shared, &whole));

    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let saving = Some(Saving { folder: folder.path().to_owned(), every: 0 });
    train_as(&on_two, device, RunOptions { saving, ..few_steps() })?;
    let resume = Some(Checkpoint::open(folder.path()).map_err(|error| error.to_string())?);
    let longer = RunOptions { steps: 2 * STEPS, ..RunOptions::default() };
    let rest = train_as(&one_by_one(work, None)?, device, RunOptions { resume, ..longer.clone() })?;
    let straight = train_as(&on_two, device, longer)?;
    let goes_on = straight.losses().ends_with(&rest.losses()) && weights_error(&rest, &straight) == 0.0;
    fact("resumed on 1 rank from a checkpoint of 2", "2 ranks without a stop", goes_on);
    Ok(())
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// What a card's selftest adds to that of the emulated card: newer families on tensor-parallel ranks, in both
    /// formats.
    #[test]
    #[ignore = "takes minutes"]
    fn newer_families_share_matrices_in_both_formats() {
        if crate::backend::cuda::tests::host().is_none() {
            return;
        }
        let tell = |news| {
            if let News::Found(row) = news {
                println!("{:70} {:30} {}", row.name, row.found, row.against);
            }
        };
        let mut rows = Rows::new(Instant::now() + Duration::from_secs(3600), tell);
        for like in [Like::Qwen3, Like::Gemma2, Like::Mixtral, Like::DeepSeek] {
            for format in [Dtype::F32, Dtype::Bf16] {
                let work = work(like, format, 2).expect("a cpu is in the catalog");
                let (limits, name) = (limits_of(format, like), format!("{} in {}", like.name(), format.name()));
                let checked = check_mesh(&work, Device::Emulated, limits, &[false, true], &name, &mut rows);
                checked.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
        let failed: Vec<&Row> = rows.rows.iter().filter(|row| row.passed != Some(true)).collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
