//! How fast a card is: its peak rates, each operator of a model compared with them, and a step of the model compared
//! with the sum of its operators.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::graph::Graph;
use pipeplan_core::hardware::cluster::Link;
use pipeplan_core::hardware::cost::Load;
use pipeplan_core::hardware::profile::{Profile, Signature};
use pipeplan_core::model::Dtype;
use pipeplan_core::problem::Objective;
use pipeplan_core::schedule;
use pipeplan_core::search::Flow;
use pipeplan_core::simulate::simulate;
use pipeplan_core::simulate::timeline::Timeline;
use pipeplan_core::spec::ModelWork;

use super::training_runs::{Like, one_by_one, published, work};
use super::{News, Row, Rows, subprocess};
use crate::backend::cuda::card::{Card, CardError, Format, Matrix, Memory, Product};
use crate::backend::cuda::fallbacks::{self, Tally};
use crate::backend::cuda::libraries::{self, Which};
use crate::backend::cuda::nvidia::{SLAB_BY_OTHERS, WORKSPACE_BYTES};
use crate::backend::cuda::{Opening, open_as};
use crate::profiling::card::{Gpu, Pace, numbers, time};
use crate::profiling::shared_card::measure_shared;
use crate::profiling::{Stopwatch, Wanted, measure, update_of, wanted, whole};
use crate::runner::optimizer::AdamW;
use crate::runner::published_workloads;
use crate::runner::{Computation, Device, RunOptions, RunReport, Silent, Workload, run};
use crate::transport::threads::ThreadOptions;

const GROUP: &str = "speed";

/// What a card needs for the large model, which takes 12 GiB on 4 ranks, and as much on one.
const LEAST_FOR_LARGE: Bytes = 20 << 30;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// The model.
    pub work: ModelWork,
    /// Bytes of the copy that measures the memory's rate.
    pub copy_bytes: u64,
    /// Rows and columns of the product that measures the arithmetic's rate.
    pub product: u64,
    /// How often something runs for one time.
    pub pace: Pace,
    /// Steps of the run.
    pub steps: u32,
}

impl Sizes {
    /// Whether what is always there outweighs the model.
    fn is_small(&self) -> bool {
        self.product < 1024
    }

    /// What suits a card of so much memory, where that is known.
    pub fn suiting(memory: Option<Bytes>) -> Option<Sizes> {
        if memory.is_none_or(|bytes| bytes >= LEAST_FOR_LARGE) { Sizes::large() } else { Sizes::small() }
    }

    /// A model that fits anywhere, and whose times say little.
    pub fn small() -> Option<Sizes> {
        let work = work(Like::Llama, Dtype::Bf16, 4)?;
        let work = ModelWork { chunks: 1, microbatches: 2, microbatch_size: 1, ..work };
        Some(Sizes { work, copy_bytes: 1 << 12, product: 8, pace: Pace::ONCE, steps: 3 })
    }

    /// A Llama-like model of half a billion parameters in 4 stages, and operands far beyond a card's caches.
    pub fn large() -> Option<Sizes> {
        let mut work = work(Like::Llama, Dtype::Bf16, 4)?;
        let model = &mut work.model;
        (model.layers, model.hidden, model.heads, model.kv_heads) = (8, 2048, 16, 8);
        (model.head_dim, model.ffn, model.vocab, model.positions) = (128, 5632, 32_000, 2048);
        (work.chunks, work.microbatches, work.microbatch_size, work.sequence) = (1, 8, 2, 1024);
        // The card's, and not that of the processor whose rates the work names.
        work.limit_bytes = Some(LEAST_FOR_LARGE);
        Some(Sizes { work, copy_bytes: 2 << 30, product: 8192, pace: Pace::STEADY, steps: 6 })
    }
}

/// Measures `sizes` on `card`, and runs the model on `device`.
pub fn check<F: FnMut(News)>(device: Device, card: &Arc<dyn Card>, rows: &mut Rows<F>, sizes: &Sizes) {
    let found = rows.groundwork(GROUP, "the card's ceilings", |rows| {
        let (bandwidth, peak) = ceilings(card, sizes)?;
        let rate = format!("{:.2} TB/s", bandwidth / 1e3);
        rows.push(Row::figure(GROUP, "copying within memory", rate, "read and written".to_string()));
        let name = format!("product of {}, bf16", sizes.product);
        rows.push(Row::figure(GROUP, name, format!("{:.1} TFLOP/s", peak / 1e3), "cuBLAS".to_string()));
        Ok::<_, CardError>((bandwidth, peak))
    });
    let Some(ceilings) = found else { return };
    // What was measured with is in nobody's way from here on.
    rows.groundwork(GROUP, "giving back the ceilings' memory", |_| card.trim());
    let planned = rows.groundwork(GROUP, "a plan of 4 ranks", |_| published(&sizes.work, "1f1b", None));
    let Some((workload, predicted)) = planned else { return };
    let measured =
        rows.groundwork(GROUP, "operators of the model", |rows| operators(card, rows, sizes, &workload, ceilings));
    let mut expected = measured.unwrap_or_default();
    rows.groundwork(GROUP, "giving back the operators' memory", |_| card.trim());
    expected.in_turns = rows.groundwork(GROUP, "stages of 4 ranks side by side", |_| {
        let open = |_| open_as(device, Opening::default());
        let cards = (0..sizes.work.pipeline).map(open).collect::<Result<Vec<_>, _>>()?;
        let stages = graphs(&workload).map_err(|reason| CardError::call("stages", reason))?;
        Ok::<_, CardError>(measure_shared(&cards, stages, sizes.pace.together)?.all)
    });
    let in_turns = rows.groundwork(GROUP, "4 ranks on one card", |rows| {
        four_ranks((device, card), rows, sizes, &workload, &predicted, expected)
    });
    // What ranks on parts of the multiprocessors do is theirs: not all drivers do everything there.
    if let Device::Cuda(_) = device {
        rows.section(GROUP, "ways that were taken", |rows| {
            first_ways(rows, &fallbacks::so_far());
            Ok::<_, String>(())
        });
    }
    rows.section(GROUP, PARTS, |rows| in_parts(device, rows, sizes, in_turns.as_ref(), ceilings.0));
    let rate = rows.groundwork(GROUP, "one rank", |rows| {
        let alone = one_by_one(&sizes.work, None)?;
        let report = run(&alone, &options(device, sizes), &mut Silent).map_err(|error| error.to_string())?;
        let rate = rate_of(&report);
        let against = format!("{:.3} ms a step", report.step_ns as f64 / 1e6);
        rows.push(Row::figure(GROUP, "tokens a second, one rank", format!("{rate:.0}"), against));
        rows.reached(rate);
        Ok::<_, String>((rate, report))
    });
    if let Some((rate, with)) = &rate {
        rows.section(GROUP, WITHOUT, |rows| without_graphs(device, rows, sizes, *rate, with));
    }
}

/// Whether jobs went as graphs and products through cuBLASLt: where they do not, a run goes on more slowly, and nothing else
/// tells.
fn first_ways<F: FnMut(News)>(rows: &mut Rows<F>, tally: &Tally) {
    let Tally { graphs, repeats, no_graphs, products, plain_products, no_products, .. } = tally;
    let found = format!("{graphs} made, started {repeats} times");
    let against = no_graphs.as_deref().unwrap_or("none failed");
    rows.push(Row::fact(GROUP, "jobs as CUDA graphs", found, against, *repeats > 0 && no_graphs.is_none()));
    let found = format!("{products} shapes, {plain_products} through cuBLAS");
    let against = no_products.as_deref().unwrap_or("it was opened");
    rows.push(Row::fact(GROUP, "products through cuBLASLt", found, against, *products > 0 && no_products.is_none()));
}

/// What ranks that share a card have to do in a training step.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    microbatches: u32,
    /// A microbatch through all stages, one operator after the other; 0 where not known, as below.
    one_by_one: Nanos,
    /// A microbatch through all stages, where all of them are at work at the same time.
    in_turns: Option<Nanos>,
    /// The optimizer of all stages.
    optimizer: Nanos,
}

impl Expected {
    /// A step whose microbatches take `each` through all stages.
    fn step(&self, each: Nanos) -> Nanos {
        each * Nanos::from(self.microbatches) + self.optimizer
    }
}

/// The operators of each stage.
fn graphs(workload: &Workload) -> Result<&[Graph], &'static str> {
    match &workload.computation {
        Computation::Model(model) => Ok(&model.graphs),
        Computation::Stages(_) | Computation::PlannedTimes { .. } => Err("there is no model"),
    }
}

/// Every operator of the model by itself, which is the profile: what the card has to do in a training step.
fn operators<F: FnMut(News)>(
    card: &Arc<dyn Card>,
    rows: &mut Rows<F>,
    sizes: &Sizes,
    workload: &Workload,
    ceilings: (f64, f64),
) -> Result<Expected, String> {
    let graphs = graphs(workload)?;
    let mut gpu = Gpu::new(card, sizes.pace);
    let mut profile = Profile::new(&gpu.name());
    profile.workspace_bytes = gpu.workspace_bytes();
    for wanted in wanted(graphs, gpu.joins_sums()) {
        // One by one, so that each is told of when it is known.
        let time = gpu.times(std::slice::from_ref(&wanted), &mut |_, _, _| Flow::Continue).pop().flatten();
        let time = time.ok_or("it was stopped")?;
        let ns = time.map_err(|error| format!("{}: {error}", wanted.signature.kernel))?;
        rows.push(share_of_ceiling(&wanted, ns, ceilings));
        profile.insert(wanted.signature.clone(), wanted.load(), ns);
    }
    let one_by_one: Nanos = graphs.iter().flat_map(|graph| profile.times(graph)).flatten().sum();
    let mut optimizer: Nanos = 0;
    for graph in graphs {
        let Some((elements, load)) = update_of(graph, gpu.most_weights()) else { continue };
        let signature = Signature::of_update(Dtype::Bf16, elements);
        if !profile.has(&signature) {
            profile.insert(signature, load, gpu.update_time(Dtype::Bf16, elements)?);
        }
        let all = update_of(graph, u64::MAX).map_or(0, |(_, load)| load.bytes);
        optimizer += profile.update_time(Dtype::Bf16, all, &sizes.work.device).unwrap_or(0);
    }
    let microbatches = sizes.work.microbatches;
    rows.measured(profile);
    Ok(Expected { microbatches, one_by_one, in_turns: None, optimizer })
}

fn options(device: Device, sizes: &Sizes) -> RunOptions {
    RunOptions {
        steps: sizes.steps,
        text: (0..4000u32).flat_map(|n| format!("{n} times {n} is {}. ", n * n).into_bytes()).collect(),
        transport: ThreadOptions { slots: 4, patience: Duration::from_secs(120) },
        optimizer: AdamW { learning_rate: 1e-4, ..AdamW::default() },
        device,
        ..RunOptions::default()
    }
}

/// Tokens a second at the median time of a step.
fn rate_of(report: &RunReport) -> f64 {
    report.steps.first().map_or(0, |step| step.tokens) as f64 * 1e9 / report.step_ns.max(1) as f64
}

const WITHOUT: &str = "one rank, CUDA graphs off";

/// One rank again, whose launches go out one by one: the same bits, in another time.
fn without_graphs<F: FnMut(News)>(
    device: Device,
    rows: &mut Rows<F>,
    sizes: &Sizes,
    rate: f64,
    with: &RunReport,
) -> Result<(), String> {
    let alone = one_by_one(&sizes.work, None)?;
    let options = RunOptions { cuda_graphs: false, ..options(device, sizes) };
    let report = run(&alone, &options, &mut Silent).map_err(|error| error.to_string())?;
    let same = report.losses() == with.losses();
    let found = if same { "the same bits" } else { "other bits" };
    rows.push(Row::fact(GROUP, format!("{WITHOUT}: losses"), found, "with graphs", same));
    let without = rate_of(&report);
    let ms = report.step_ns as f64 / 1e6;
    let against = format!("{ms:.3} ms a step; with graphs {:.2} times as many", rate / without);
    rows.push(Row::figure(GROUP, format!("tokens a second, {WITHOUT}"), format!("{without:.0}"), against));
    Ok(())
}

/// The most of a device's memory that is in use while it is watched.
struct Watch {
    ended: Arc<AtomicBool>,
    watcher: JoinHandle<Bytes>,
}

impl Watch {
    /// Looks at `card` from now on; nothing where it tells nothing.
    fn start(card: &Arc<dyn Card>) -> Option<(Bytes, Watch)> {
        // What ranks take, they take before their first step.
        const PAUSE: Duration = Duration::from_millis(100);
        let (before, _) = card.device_memory()?;
        let (card, ended) = (Arc::clone(card), Arc::new(AtomicBool::new(false)));
        let end = Arc::clone(&ended);
        let watch = move || {
            let mut most = 0;
            while !end.load(Ordering::Relaxed) {
                most = most.max(card.device_memory().map_or(0, |(used, _)| used));
                std::thread::park_timeout(PAUSE);
            }
            most
        };
        let watcher = std::thread::Builder::new().spawn(watch).ok()?;
        Some((before, Watch { ended, watcher }))
    }

    fn end(self) -> Bytes {
        self.ended.store(true, Ordering::Relaxed);
        self.watcher.thread().unpark();
        self.watcher.join().unwrap_or(0)
    }
}

/// The plan on 4 ranks that share the card: its step compared with `expected`, its bytes compared with those of the plan.
fn four_ranks<F: FnMut(News)>(
    (device, card): (Device, &Arc<dyn Card>),
    rows: &mut Rows<F>,
    sizes: &Sizes,
    workload: &Workload,
    predicted: &[Bytes],
    expected: Expected,
) -> Result<RunReport, String> {
    let watch = Watch::start(card);
    let report = run(workload, &options(device, sizes), &mut Silent);
    let most = watch.map(|(before, watch)| (before, watch.end()));
    let report = report.map_err(|error| error.to_string())?;
    let (found, rate) = (report.step_ns, rate_of(&report));
    let tokens = report.steps.first().map_or(0, |step| step.tokens);
    let against = format!("{tokens} a step");
    rows.push(Row::figure(GROUP, "tokens a second, 4 ranks on one card", format!("{rate:.0}"), against));
    let (sum, off) = against_prediction(found, expected.step(expected.one_by_one));
    let against = format!("{sum} from its operators one by one, {:+.1} %; at most +5 %", 100.0 * off);
    let ms = format!("{:.3} ms", found as f64 / 1e6);
    // Operators of four queues fill what each of them alone leaves empty, at the end of its last wave, and find in the caches
    // what the one before has left: how much that is the sum of their times cannot know. Longer than the sum is what
    // goes wrong.
    rows.push(Row::fact(GROUP, "a step of the model, 4 ranks on one card", ms.clone(), &against, off <= 0.05));
    if let Some(each) = expected.in_turns.filter(|_| expected.one_by_one > 0) {
        let (predicted, off) = against_prediction(found, expected.step(each));
        let against = format!(
            "{predicted} predicted as profile --share-gpu has it, operators in turns at {:.3} of their times, \
             {:+.1} %; aim: 5 %",
            each as f64 / expected.one_by_one as f64,
            100.0 * off
        );
        rows.push(Row::figure(GROUP, "the same step", ms, against));
    }
    if let Some((before, most)) = most {
        // What the driver says of the whole device, against what the plan says of its ranks, what cuBLAS has for itself, and
        // the first slab of what others give back. Graphs take some of the driver's own, and slabs are not full: a
        // few percent.
        let planned: Bytes = predicted.iter().map(|bytes| bytes + WORKSPACE_BYTES + SLAB_BY_OTHERS).sum();
        let found = most.saturating_sub(before);
        let off = |known: Bytes| found as f64 / known.max(1) as f64 - 1.0;
        let against = format!("{planned} planned, {:+.2} %, at most 5 %; aim: 3 %", 100.0 * off(planned));
        let name = "memory of the device that 4 ranks take, by the driver";
        let is_as_planned = off(planned).abs() <= 0.05 || sizes.is_small();
        rows.push(Row::fact(GROUP, name, found.to_string(), &against, is_as_planned));
        // Where that fails: whether the ranks took more than planned, or the driver for itself.
        let taken: Bytes = report.memory.iter().map(|memory| memory.device_bytes).sum();
        let against = format!("{taken} as the ranks count what they took, {:+.2} %", 100.0 * off(taken));
        rows.push(Row::figure(GROUP, "the same memory", found.to_string(), against));
        let against = "context, kernels, libraries and other programs: memory.overhead_bytes of a spec".to_string();
        rows.push(Row::figure(GROUP, "memory of the device in use before", before.to_string(), against));
    }
    for (rank, memory) in report.memory.iter().enumerate() {
        let held = memory.persistent_bytes + memory.activation_bytes;
        let planned = predicted.get(rank).copied().unwrap_or(0);
        let against = format!("{planned} planned");
        rows.push(Row::fact(GROUP, format!("bytes of rank {rank}"), held.to_string(), &against, held == planned));
        let with = planned + WORKSPACE_BYTES;
        let over = memory.device_bytes.saturating_sub(with);
        let against = format!("{with} planned with cuBLAS's workspace, {over} more");
        let name = format!("bytes that rank {rank} takes of the card");
        rows.push(Row::figure(GROUP, name, memory.device_bytes.to_string(), against));
    }
    Ok(report)
}

const PARTS: &str = "4 ranks, each on its part of the multiprocessors";

/// What was predicted, for people, and how far from it `found` is.
fn against_prediction(found: Nanos, predicted: Nanos) -> (String, f64) {
    (format!("{:.3} ms", predicted as f64 / 1e6), found as f64 / predicted.max(1) as f64 - 1.0)
}

/// The plan on 4 ranks with a part of the multiprocessors each, as on GPUs of their own: its losses beside those of ranks
/// that take turns, and its makespan and step beside those that follow from operators measured on such a part while
/// the others
/// are at work: `profile --split-gpu`, `plan --profile` and `run --split-gpu`.
fn in_parts<F: FnMut(News)>(
    device: Device,
    rows: &mut Rows<F>,
    sizes: &Sizes,
    together: Option<&RunReport>,
    bandwidth: f64,
) -> Result<(), String> {
    let whole = whole(&sizes.work);
    // Within a card a message costs a copy, which is part of no operator.
    let link = Link { bytes_per_s: (bandwidth * 0.5e9) as u64, latency_ns: 10_000 };
    let work = ModelWork { link, ..sizes.work.clone() };
    let (workload, _) = published(&work, "1f1b", None)?;
    let (timeline, _) = predicted(&work)?;
    let busy = 1.0 - timeline.bubble_ratio(Objective::Makespan);
    let mut part = match Gpu::part(device, graphs(&workload)?.into(), busy, sizes.pace) {
        Ok(part) => part,
        Err(error) => {
            rows.push(Row::figure(GROUP, PARTS, "not run".to_string(), error.to_string()));
            return Ok(());
        }
    };
    let name = part.name();
    let (profile, missed) =
        measure(&mut part, (&whole, work.dtype), Profile::new(&name), &mut |_, _, _| Flow::Continue);
    if let Some((signature, reason)) = missed.first() {
        return Err(format!("{}: {reason}", signature.kernel));
    }
    let (timeline, step) = predicted(&ModelWork { profile: Some(Arc::new(profile)), ..work })?;
    let share = part.share().unwrap_or(1.0);
    // Its memory is the ranks', and its context that of one of them.
    drop(part);
    let options = RunOptions { split_gpu: true, ..options(device, sizes) };
    let report = run(&workload, &options, &mut Silent).map_err(|error| error.to_string())?;
    if let Some(together) = together {
        let pairs = report.losses().into_iter().zip(together.losses());
        let error = pairs.map(|(one, other)| (one / other - 1.0).abs()).fold(0.0, f64::max);
        // Products may be cut in another way, and then sum in another order.
        rows.push(Row::error(GROUP, format!("{PARTS}: losses"), error, 1e-2));
    }
    let makespan = timeline.makespan_ns();
    for (what, found, predicted) in [("makespan", report.makespan_ns, makespan), ("step", report.step_ns, step)] {
        let (predicted, off) = against_prediction(found, predicted);
        let against =
            format!("{predicted} predicted, operators at {share:.3} of their times, {:+.1} %; aim: 5 %", 100.0 * off);
        let found = format!("{:.3} ms on {name}", found as f64 / 1e6);
        rows.push(Row::figure(GROUP, format!("{PARTS}: {what}"), found, against));
    }
    Ok(())
}

/// What the planner says of `work` in 1F1B, and to the end of its step.
fn predicted(work: &ModelWork) -> Result<(Timeline, Nanos), String> {
    let published = schedule::find("1f1b").ok_or("there is no 1f1b")?;
    let (placement, chunks) = (published.shape)(work.chunks as usize);
    let problem = published_workloads::problem(work, placement, chunks).map_err(|faults| faults.to_string())?;
    let order = published.build(&problem).map_err(|why| why.reason)?;
    let timeline = simulate(&problem, &order).map_err(|deadlock| deadlock.to_string())?;
    let derived = derive(work, problem.placement().clone(), chunks).map_err(|faults| faults.to_string())?;
    let step_ns = derived.epilogue.step_ns(&timeline);
    Ok((timeline, step_ns))
}

/// Gigabytes a second of a copy (read and written), and 10^9 operations a second of a large product in bf16.
fn ceilings(card: &Arc<dyn Card>, sizes: &Sizes) -> Result<(f64, f64), CardError> {
    let (from, to) = (Memory::zeros(card, sizes.copy_bytes)?, Memory::zeros(card, sizes.copy_bytes)?);
    let ns = time(card, sizes.pace, || card.copy(from.at(), to.at(), sizes.copy_bytes))?;
    let bandwidth = 2.0 * sizes.copy_bytes as f64 / ns as f64;
    let size = sizes.product;
    let operand = |seed| numbers(card, seed, size * size, Format::Bf16);
    let (a, b, c) = (operand(0)?, operand(1)?, operand(2)?);
    let matrix =
        |memory: &Memory| Matrix { at: memory.at(), row: size, step: 0, transposed: false, format: Format::Bf16 };
    let product = Product {
        rows: size,
        inner: size,
        columns: size,
        a: matrix(&a),
        b: Matrix { transposed: true, ..matrix(&b) },
        c: matrix(&c),
        alpha: 1.0,
        beta: 0.0,
        count: 1,
        addend: None,
        bias: None,
    };
    let ns = time(card, sizes.pace, || card.product(&product))?;
    Ok((bandwidth, 2.0 * (size as f64).powi(3) / ns as f64))
}

fn share_of_ceiling(wanted: &Wanted<'_>, ns: Nanos, (bandwidth, peak): (f64, f64)) -> Row {
    let (signature, Load { flops, bytes, .. }) = (&wanted.signature, wanted.load());
    let flops = flops as f64;
    let memory = bytes as f64 / ns as f64 / bandwidth;
    let arithmetic = flops / ns as f64 / peak;
    let against = match flops > 0.0 {
        true => format!("{:.0} % of the product's rate", 100.0 * arithmetic),
        false => format!("{:.0} % of the copy's rate", 100.0 * memory),
    };
    let output = signature.operands.rsplit("-> ").next().unwrap_or_default();
    let name = format!("{} to {output}", signature.kernel);
    Row::figure(GROUP, name, format!("{:.1} us", ns as f64 / 1e3), against)
}

/// PyTorch on the same model, where python3 has it.
pub fn compare_with_torch(device: Device, ours: f64, deadline: Instant) -> Row {
    const NAME: &str = "PyTorch on the same model, one rank";
    let row = |found: String, against: String| Row::figure(GROUP, NAME, found, against);
    let gpu = if let Device::Cuda(gpu) = device { gpu } else { 0 };
    let Some(Sizes { work, .. }) = Sizes::large() else { return row("not run".to_string(), String::new()) };
    let model = &work.model;
    let sizes = serde_json::json!({
        "layers": model.layers, "hidden": model.hidden, "heads": model.heads, "kv_heads": model.kv_heads,
        "head_dim": model.head_dim, "ffn": model.ffn, "vocab": model.vocab, "sequence": work.sequence,
        "microbatch_size": work.microbatch_size, "microbatches": work.microbatches, "gpu": gpu,
    });
    let script = include_str!("../../../examples/torch_gpu.py");
    let mut python = std::process::Command::new("python3");
    // Torch, and what compiles for it, ask the system for the driver, which in containers often knows nothing of it.
    const OF_TRITON: &str = "TRITON_LIBCUDA_PATH";
    const OF_LOADER: &str = "LD_LIBRARY_PATH";
    let driver = libraries::search(Which::Driver).found.as_deref().and_then(Path::parent);
    if let Some(folder) = driver.filter(|folder| folder.is_absolute()) {
        if std::env::var_os(OF_TRITON).is_none() {
            python.env(OF_TRITON, folder);
        }
        let before = std::env::var_os(OF_LOADER).unwrap_or_default();
        let folders = std::env::split_paths(&before).filter(|other| !other.as_os_str().is_empty());
        // Behind those that a person has set.
        if let Ok(folders) = std::env::join_paths(folders.chain([folder.to_owned()])) {
            python.env(OF_LOADER, folders);
        }
    }
    let said = match subprocess::run(python.args(["-c", script, &sizes.to_string()]), deadline) {
        Ok(said) => said.output,
        Err(error) => return row("not run".to_string(), error),
    };
    let figures: serde_json::Value =
        said.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let rate = |kind: &str| figures[kind].as_f64();
    let against_prediction =
        |theirs: f64| format!("{theirs:.0} tokens/s (here {:.2} times as many)", ours / theirs.max(1.0));
    let shown = |kind: &str| match rate(kind) {
        Some(theirs) => format!("{kind} {}", against_prediction(theirs)),
        None => format!("{kind} not run: {}", figures[format!("{kind}_error")].as_str().unwrap_or("no reason given")),
    };
    // Here weights are accumulated in 32 bits: another training, shown for comparison.
    let all_bf16 = rate("all_bf16")
        .map(|theirs| format!("; eager with weights and AdamW in bf16 {}", against_prediction(theirs)));
    let all_bf16 = all_bf16.unwrap_or_default();
    row(
        format!("{}, {}{all_bf16}", shown("eager"), shown("compiled")),
        format!("torch {}", figures["torch"].as_str().unwrap_or("")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::tests::host;

    /// The whole measurement on the emulated card, whose times and padding mean nothing: all else holds.
    #[test]
    fn slow_what_is_measured_on_a_card_is_measured_on_the_stand_in() {
        let Some(card) = host() else { return };
        let sizes = Sizes::small().expect("a cpu is in the catalog");
        let mut rows = Rows::new(Instant::now() + Duration::from_secs(3600), |_| {});
        check(Device::Emulated, &card, &mut rows, &sizes);
        assert!(rows.profile.is_some() && rows.rate.is_some(), "{:#?}", rows.rows);
        let of_a_card = ["a step of the model, 4 ranks on one card"];
        let failed = |row: &&Row| {
            row.passed == Some(false)
                && (row.against.is_empty() || !of_a_card.iter().any(|name| row.name.contains(name)))
        };
        let failed: Vec<&Row> = rows.rows.iter().filter(failed).collect();
        assert!(failed.is_empty(), "{failed:#?}");
        let in_parts = rows.rows.iter().filter(|row| row.name.starts_with(PARTS)).count();
        assert_eq!(in_parts, 3, "losses, makespan and step");
    }
}
