//! Measures the operators of a model on a device of this machine, one by one.
//!
//! - In: the stages of a model, and a device.
//! - Out: a profile, with which plans have measured times instead of a roofline estimate.
//! - Knows: backends and operator graphs. It leaves out collectives, because their time does not belong to one device.

use std::collections::{BTreeMap, BTreeSet};
#[cfg(feature = "cuda")]
use std::sync::Arc;

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::estimate::derive::graph_of;
use pipeplan_core::estimate::memory::StaticBytes;
use pipeplan_core::estimate::step::moved_by_update;
use pipeplan_core::graph::layout::Layout;
use pipeplan_core::graph::{Graph, Job, Kernel, Operator, TensorId};
use pipeplan_core::hardware::cost::{Load, Peers};
use pipeplan_core::hardware::profile::{Profile, Signature, takes_sum};
use pipeplan_core::model::Dtype;
use pipeplan_core::model::StageLayout;
use pipeplan_core::search::Flow;
use pipeplan_core::spec::ModelWork;

use crate::runner::Device;
use crate::runner::random::SplitMix64;

#[cfg(feature = "cuda")]
pub mod card;
mod cpu;
#[cfg(feature = "cuda")]
pub mod shared_card;

/// Something to be measured, once for all operators like it.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// What it is to a profile.
    pub signature: Signature,
    /// Where it is from.
    pub graph: &'a Graph,
    /// One operator, or a product and the sum behind it.
    pub operators: &'a [Operator],
}

impl Wanted<'_> {
    /// What the operator does; of two, the product.
    pub fn load(&self) -> Load {
        self.operators.first().map_or_else(Load::default, |operator| Load::of(self.graph, operator))
    }
}

/// What `graphs` have of operators that work alone, each once, in their order; with `pairs` also products together with the
/// sum behind them.
pub fn wanted(graphs: &[Graph], pairs: bool) -> Vec<Wanted<'_>> {
    let mut wanted: Vec<Wanted<'_>> = Vec::new();
    let mut known = BTreeSet::new();
    for graph in graphs {
        let takes_sum = takes_sum(graph);
        for (at, operator) in graph.operators.iter().enumerate().filter(|(_, operator)| works_alone(operator)) {
            let alone = (Signature::of(graph, operator), &graph.operators[at..=at]);
            let both = (pairs && takes_sum[at]).then(|| {
                let pair = &graph.operators[at..=at + 1];
                (Signature::of_both(graph, &pair[0], &pair[1]), pair)
            });
            for (signature, operators) in [alone].into_iter().chain(both) {
                if known.insert(signature.clone()) {
                    wanted.push(Wanted { signature, graph, operators });
                }
            }
        }
    }
    wanted
}

/// What a device does by itself of `graph`, in its order: operators, and products together with the sum behind them.
#[cfg(feature = "cuda")]
fn pieces(graph: &Graph) -> Vec<&[Operator]> {
    let takes_sum = takes_sum(graph);
    let is_taken = |at: usize| at > 0 && takes_sum[at - 1];
    let own = (0..graph.operators.len()).filter(|at| works_alone(&graph.operators[*at]) && !is_taken(*at));
    own.map(|at| &graph.operators[at..=at + usize::from(takes_sum[at])]).collect()
}

/// What `piece` of `graph` is to a profile.
#[cfg(feature = "cuda")]
fn signature_of(graph: &Graph, piece: &[Operator]) -> Signature {
    match piece {
        [product, sum] => Signature::of_both(graph, product, sum),
        rest => Signature::of(graph, &rest[0]),
    }
}

/// The operators of each rank of `work`, where each has one stage.
///
/// # Errors
/// What of `work` allows none.
#[cfg(feature = "cuda")]
fn stages_of_ranks(work: &ModelWork, ranks: usize) -> Result<Arc<[Graph]>, String> {
    use pipeplan_core::estimate::derive::derive;
    use pipeplan_core::problem::placement::Placement;
    let derived = derive(work, Placement::Linear, 1).map_err(|faults| faults.to_string())?;
    let graphs: Vec<Graph> = derived.stages.iter().map(|layout| graph_of(work, layout)).collect();
    Ok(graphs.iter().cycle().take(ranks).cloned().collect())
}

/// Whether it does something, and with neither another device nor the host.
fn works_alone(operator: &Operator) -> bool {
    let kernel = &operator.kernel;
    kernel.axis().is_none() && !kernel.starts() && !kernel.waits() && !matches!(kernel, Kernel::Replicate { .. })
}

/// Measures operators of a device.
pub trait Stopwatch {
    /// What is measured, for people.
    fn name(&self) -> String;

    /// What a rank takes of it in addition to what a plan counts.
    fn workspace_bytes(&self) -> Bytes {
        0
    }

    /// Whether it may do a product and the sum behind it in one go.
    fn joins_sums(&self) -> bool {
        false
    }

    /// How long the optimizer takes for `elements` weights in `dtype`.
    ///
    /// # Errors
    /// Why the device does not do it.
    fn update_time(&mut self, dtype: Dtype, elements: u64) -> Result<Nanos, String>;

    /// The most weights that it is asked that of.
    fn most_weights(&self) -> u64;

    /// How long each of `wanted` takes, or why the device does not do it; nothing of those before which `observe` says stop.
    fn times(&mut self, wanted: &[Wanted<'_>], observe: &mut Observer<'_>) -> Times;
}

/// Learns how many of how many pieces of work are done, and what comes next.
pub type Observer<'a> = dyn FnMut(usize, usize, &str) -> Flow + 'a;

/// By what was wanted: its time, the reason why it has none, or nothing where that was stopped.
pub type Times = Vec<Option<Result<Nanos, String>>>;

/// Who has a device for whose plans it is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sharing {
    /// One rank.
    Alone,
    /// All ranks, each an equal part of it, at work on the same model.
    Parts {
        /// For such a share of a step.
        busy: f64,
    },
    /// All ranks, in turns.
    Turns,
}

/// The most ranks that share a device.
#[cfg(feature = "cuda")]
const MOST_SHARING: usize = 64;

/// The stopwatch of `device`, for the operators of `work`, where its ranks have it as `sharing` says.
///
/// # Errors
/// Why there is none.
pub fn on(device: Device, work: &ModelWork, sharing: Sharing) -> Result<Box<dyn Stopwatch>, String> {
    if work.model.variant.experts.is_some() && work.layout.form.imbalance_permille < 1000 {
        return Err(String::from(
            "the experts have fewer rows than routed tokens: write training.expert_imbalance = 1 or more",
        ));
    }
    if let Some(said) = work.format_of_cpu() {
        return Err(format!(
            "operators with {said} are not measured, and on CPUs those in bf16 neither: measure without it; the times stay \
             valid for the operators that it does not change"
        ));
    }
    let dtype = work.dtype;
    match (device, dtype) {
        (Device::Cpu, _) if sharing != Sharing::Alone => {
            Err(String::from("only a GPU can be shared by ranks: use --device cuda"))
        }
        (Device::Cpu, Dtype::F32) => Ok(Box::new(cpu::Cpu::<f32>::new(work))),
        (Device::Cpu, Dtype::F64) => Ok(Box::new(cpu::Cpu::<f64>::new(work))),
        (Device::Cpu, _) => Err(format!(
            "the CPU computes in f32 or f64, but training.dtype is {}: write one of these, or measure on a GPU \
             (--device cuda)",
            dtype.name()
        )),
        (_, Dtype::F64) => {
            Err(String::from("GPUs compute in f32 or bf16, but training.dtype is f64: write one of these"))
        }
        #[cfg(feature = "cuda")]
        _ => {
            let ranks = work.devices();
            let ranks = usize::try_from(ranks).unwrap_or(usize::MAX);
            let gpu = match sharing {
                Sharing::Alone => card::Gpu::open(device),
                _ if ranks > MOST_SHARING => {
                    return Err(format!("{ranks} ranks are too many for one GPU; the limit is {MOST_SHARING}"));
                }
                Sharing::Parts { busy } => {
                    card::Gpu::part(device, stages_of_ranks(work, ranks)?, busy, card::Pace::of(device))
                }
                Sharing::Turns => card::Gpu::in_turns(device, stages_of_ranks(work, ranks)?, card::Pace::of(device)),
            };
            Ok(Box::new(gpu.map_err(|error| error.to_string())?))
        }
        #[cfg(not(feature = "cuda"))]
        _ => Err(String::from("this binary was built without the feature `cuda`")),
    }
}

/// The operators of all of a model for one microbatch, as if one rank had it: those of every stage of every layout by
/// pipeline alone are among them.
pub fn whole(work: &ModelWork) -> Graph {
    graph_of(
        work,
        &StageLayout { layers: 0..work.model.layers, embedding: true, head: true, ..StageLayout::default() },
    )
}

/// `known` and the times of all that `graph` has and `known` has not, the optimizer's step over its weights in `dtype` among
/// them, and what the device does not do, with its reason.
/// Where `observe` says stop, the profile has what is done by then.
pub fn measure(
    stopwatch: &mut dyn Stopwatch,
    (graph, dtype): (&Graph, Dtype),
    known: Profile,
    observe: &mut Observer<'_>,
) -> (Profile, Vec<(Signature, String)>) {
    let (mut profile, mut missed) = (known, Vec::new());
    profile.workspace_bytes = profile.workspace_bytes.max(stopwatch.workspace_bytes());
    let mut wanted = wanted(std::slice::from_ref(graph), stopwatch.joins_sums());
    wanted.retain(|wanted| !profile.has(&wanted.signature));
    let times = if wanted.is_empty() { Vec::new() } else { stopwatch.times(&wanted, observe) };
    let is_stopped = times.iter().any(Option::is_none);
    let update = update_of(graph, stopwatch.most_weights())
        .map(|(elements, load)| (Signature::of_update(dtype, elements), elements, load))
        .filter(|(signature, ..)| !profile.has(signature) && !is_stopped)
        .map(|(signature, elements, load)| {
            let flow = observe(wanted.len(), wanted.len() + 1, &signature.kernel);
            let time = (flow == Flow::Continue).then(|| stopwatch.update_time(dtype, elements));
            (signature, load, time)
        });
    let operators = wanted.iter().zip(times).map(|(wanted, time)| (wanted.signature.clone(), wanted.load(), time));
    for (signature, load, time) in operators.chain(update) {
        match time {
            Some(Ok(time)) => profile.insert(signature, load, time),
            Some(Err(reason)) => missed.push((signature, reason)),
            None => {}
        }
    }
    (profile, missed)
}

/// The weights of `graph`, at most so many, and what the optimizer's step over them moves; none where there are none.
pub fn update_of(graph: &Graph, most: u64) -> Option<(u64, Load)> {
    let weights = graph.weights().fold(0u64, |sum, (_, tensor)| sum.saturating_add(tensor.elements()));
    let elements = weights.min(most);
    let (dense, experts) = StaticBytes::of_stage(graph, true, &Layout::default());
    let moved = u128::from(moved_by_update(&dense)) + u128::from(moved_by_update(&experts));
    let of_these = (moved * u128::from(elements)).div_ceil(u128::from(weights.max(1)));
    let bytes = Bytes::try_from(of_these).unwrap_or(Bytes::MAX);
    (elements > 0).then(|| (elements, Load { bytes, ..Load::default() }))
}

/// All operators of a kind and size in a microbatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What they are.
    pub signature: Signature,
    /// How many.
    pub count: usize,
    /// What all of them take by measurement; none where they were not measured.
    pub measured_ns: Option<Nanos>,
    /// What all of them take by the roofline.
    pub estimated_ns: Nanos,
}

/// What `graph` consists of, the longest first, and by job what is measured, or estimated where it is not, and what is
/// estimated. A product and a sum behind it that are one to `profile` are one here.
pub fn account(work: &ModelWork, graph: &Graph, profile: &Profile) -> (Vec<Line>, [[Nanos; 2]; 3]) {
    let peers = Peers::all(work.link);
    let mut lines: BTreeMap<Signature, Line> = BTreeMap::new();
    let mut jobs = [[0; 2]; 3];
    let measured = profile.times(graph);
    let estimate = |operator: &Operator| Load::of(graph, operator).time(&operator.kernel, &work.device, &peers);
    let mut joined = None;
    for (at, operator) in graph.operators.iter().enumerate() {
        let estimated = estimate(operator);
        let of_job = &mut jobs[operator.job as usize];
        of_job[0] = Nanos::saturating_add(of_job[0], measured[at].unwrap_or(estimated));
        of_job[1] = Nanos::saturating_add(of_job[1], estimated);
        // A sum that goes with the product before it counts there.
        if joined.take() == Some(at) {
            continue;
        }
        let next = graph.operators.get(at + 1);
        let both =
            next.filter(|next| profile.time_of_both(graph, operator, next).is_some() && measured[at + 1] == Some(0));
        let signature =
            both.map_or_else(|| Signature::of(graph, operator), |sum| Signature::of_both(graph, operator, sum));
        joined = both.map(|_| at + 1);
        let line = lines.entry(signature.clone()).or_insert(Line {
            signature,
            count: 0,
            measured_ns: None,
            estimated_ns: 0,
        });
        line.count += 1;
        line.estimated_ns = line.estimated_ns.saturating_add(estimated).saturating_add(both.map_or(0, estimate));
        if let Some(time) = measured[at] {
            line.measured_ns = Some(line.measured_ns.unwrap_or(0).saturating_add(time));
        }
    }
    let mut lines: Vec<Line> = lines.into_values().collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.measured_ns.unwrap_or(line.estimated_ns)));
    (lines, jobs)
}

/// The jobs in the order of [`account`]'s times.
pub const JOBS: [Job; 3] = Job::ALL;

/// Whole numbers that an operator of `graph` reads from `tensor`: tokens drawn at random, and routed tokens dealt evenly
/// to experts, as plans count on it.
fn whole_numbers(graph: &Graph, operators: &[Operator], tensor: TensorId) -> Vec<i32> {
    let elements = graph[tensor].elements() as usize;
    let producer = graph.operators.iter().find(|operator| operator.outputs.contains(&tensor));
    let input = |operator: &Operator, at: usize| operator.inputs.get(at).map(|input| &graph[input.tensor]);
    match producer.map(|producer| (&producer.kernel, producer)) {
        Some((Kernel::Route { .. }, producer)) => {
            let experts = input(producer, 0).and_then(|logits| logits.shape.get(1)).copied().unwrap_or(1).max(1);
            (0..elements).map(|at| (at as u64 % experts) as i32).collect()
        }
        Some((Kernel::Dispatch { .. }, producer)) => {
            let copies = input(producer, 1).map_or(0, |chosen| chosen.elements() as usize);
            let (each, more) = (copies / elements.max(1), copies % elements.max(1));
            (0..elements).map(|at| (each + usize::from(at < more)) as i32).collect()
        }
        _ => {
            // A token is a row of the table, or a column of the logits.
            let tensors = || operators.iter().flat_map(|of| &of.inputs).map(|input| &graph[input.tensor]);
            let table = tensors().find(|tensor| tensor.role.is_persistent()).and_then(|table| table.shape.first());
            let logits = tensors().find(|tensor| tensor.shape.len() == 2).and_then(|logits| logits.shape.get(1));
            let mut random = SplitMix64::new(elements as u64);
            let below = table.or(logits).copied().unwrap_or(1).max(1);
            (0..elements).map(|_| random.below(below) as i32).collect()
        }
    }
}

/// Numbers as activations have them, others for each `seed`, to be repeated for so many elements. Zeros would be faster than
/// life: cards clock higher on them, and on what repeats.
fn drawn(seed: u32, elements: usize) -> Vec<f32> {
    let mut random = SplitMix64::new(seed.into());
    // What counts is that bits differ, from row to row, too. A prime is a multiple of no row's width.
    const DRAWN: usize = 65_521;
    (0..elements.clamp(1, DRAWN)).map(|_| 0.1 * random.normal() as f32).collect()
}

/// Those, repeated.
fn floats(seed: u32, elements: usize) -> impl Iterator<Item = f32> {
    let some = drawn(seed, elements);
    (0..elements).map(move |at| some[at % some.len()])
}

/// What dropouts keep.
fn kept(elements: usize) -> impl Iterator<Item = u8> {
    let mut random = SplitMix64::new(elements as u64);
    (0..elements).map(move |_| u8::from(random.below(10) > 0))
}

#[cfg(test)]
mod tests;
