//! Operators on one core, where a run has them: one behind the other in the jobs of a stage, with the memory that they take
//! and the caches that those before them leave.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::estimate::derive::graph_of;
use pipeplan_core::graph::liveness::Lifetimes;
use pipeplan_core::graph::{Graph, Job, Operator, TensorId};
use pipeplan_core::hardware::profile::Signature;
use pipeplan_core::model::Dtype;
use pipeplan_core::model::StageLayout;
use pipeplan_core::search::Flow;
use pipeplan_core::spec::ModelWork;

use super::{Observer, Stopwatch, Times, Wanted, floats, kept, whole_numbers, works_alone};
use crate::backend::cpu::element::Element;
use crate::backend::cpu::gemm::{Gemm, Tuned};
use crate::backend::cpu::kernels::{self, Context, Data, Input};
use crate::runner::available_bytes;
use crate::runner::optimizer::{AdamW, Moments, Rule};

/// How long all microbatches take together,
const LONG_ENOUGH: Duration = Duration::from_millis(1500);
/// how many there are at least, after one that does not count,
const FEWEST: usize = 3;
/// and how many at most.
const MOST: usize = 101;

/// One core that computes in `T`.
pub struct Cpu<T> {
    work: ModelWork,
    context: Context<T>,
    long_enough: Duration,
}

impl<T: Element> Cpu<T>
where
    Tuned: Gemm<T>,
{
    /// For the operators of `work`.
    pub fn new(work: &ModelWork) -> Cpu<T> {
        Cpu { work: work.clone(), context: Context::new(Box::new(Tuned)), long_enough: LONG_ENOUGH }
    }

    /// For callers that need no steady times.
    #[cfg(test)]
    pub fn hasty(work: &ModelWork) -> Cpu<T> {
        Cpu { long_enough: Duration::ZERO, ..Cpu::new(work) }
    }
}

impl<T: Element> Stopwatch for Cpu<T> {
    fn name(&self) -> String {
        format!("one core of {}", model().as_deref().unwrap_or("this CPU"))
    }

    fn update_time(&mut self, _: Dtype, elements: u64) -> Result<Nanos, String> {
        let elements = elements as usize;
        let numbers = |seed| floats(seed, elements).map(|value| T::of(f64::from(value))).collect::<Vec<T>>();
        let (mut weight, mut gradient, mut moments) = (numbers(0), numbers(1), Moments::new(Rule::AdamW, elements));
        let mut times = Vec::new();
        let started = Instant::now();
        while times.len() <= FEWEST || started.elapsed() < self.long_enough / 4 && times.len() < MOST {
            let before = Instant::now();
            AdamW::default().update(times.len() as u32, &mut weight, &gradient, &mut moments, true);
            gradient.fill(T::ZERO);
            times.push(before.elapsed().as_nanos() as Nanos);
            gradient.copy_from_slice(&weight);
        }
        times.sort_unstable();
        Ok(times[times.len() / 2].max(1))
    }

    /// As much as no cache holds.
    fn most_weights(&self) -> u64 {
        1 << 24
    }

    fn times(&mut self, wanted: &[Wanted<'_>], observe: &mut Observer<'_>) -> Times {
        let none = |reason: String| wanted.iter().map(|_| Some(Err(reason.clone()))).collect();
        let graph = self.stage(wanted);
        let lifetimes = Lifetimes::of(&graph);
        let needed = needed(&graph, &lifetimes);
        if let Some(available) = available_bytes().filter(|available| needed > *available) {
            return none(format!(
                "the layers of a rank need {} MiB; this machine has {} MiB free",
                needed >> 20,
                available >> 20
            ));
        }
        let mut walk = Walk { graph: &graph, lifetimes: &lifetimes, held: persistent(&graph) };
        // By signature: the average of each microbatch.
        let mut averages: BTreeMap<Signature, Vec<Nanos>> = BTreeMap::new();
        let signatures: Vec<Signature> =
            graph.operators.iter().map(|operator| Signature::of(&graph, operator)).collect();
        let (mut done, mut all) = (0, Duration::ZERO);
        let operators = graph.operators.len();
        while done <= FEWEST || all < self.long_enough && done <= MOST {
            let started = Instant::now();
            let walked = walk.run(&mut self.context, &mut |at, kernel| {
                let (at, all) = (done * operators + at, (FEWEST + 1) * operators);
                observe(at.min(all), all, kernel)
            });
            let Some(times) = walked else { break };
            // The first one finds nothing where it will be.
            if done > 0 {
                all += started.elapsed();
                let mut sums: BTreeMap<&Signature, (Nanos, Nanos)> = BTreeMap::new();
                for (signature, time) in signatures.iter().zip(times) {
                    let sum = sums.entry(signature).or_default();
                    *sum = (sum.0 + time, sum.1 + 1);
                }
                for (signature, (sum, count)) in sums {
                    averages.entry(signature.clone()).or_default().push((sum / count).max(1));
                }
            }
            done += 1;
        }
        let median = |wanted: &Wanted<'_>| {
            let times = averages.get_mut(&wanted.signature)?;
            times.sort_unstable();
            Some(Ok(times[times.len() / 2]))
        };
        wanted.iter().map(median).collect()
    }
}

impl<T> Cpu<T> {
    /// As many layers as a rank has, or more where those lack something that is wanted, with both ends of the model.
    fn stage(&self, wanted: &[Wanted<'_>]) -> Graph {
        let all = self.work.model.layers;
        let mut layers = all.div_ceil(self.work.pipeline.max(1)).max(1);
        loop {
            let graph = graph_of(
                &self.work,
                &StageLayout { layers: 0..layers, embedding: true, head: true, ..StageLayout::default() },
            );
            let has: BTreeSet<Signature> =
                graph.operators.iter().map(|operator| Signature::of(&graph, operator)).collect();
            if layers >= all || wanted.iter().all(|wanted| has.contains(&wanted.signature)) {
                return graph;
            }
            layers += 1;
        }
    }
}

/// Bytes that a microbatch and the weights take together.
fn needed(graph: &Graph, lifetimes: &Lifetimes) -> Bytes {
    let persistent = graph.tensors.iter().filter(|tensor| tensor.role.is_persistent());
    let weights = persistent.fold(0, |sum: Bytes, tensor| sum.saturating_add(tensor.bytes()));
    let [forward, input, weight] = lifetimes.memory(graph);
    let kept = forward.net.max(0) as Bytes;
    let peak = forward.peak.max(kept.saturating_add(input.peak)).max(kept.saturating_add(weight.peak));
    weights.saturating_add(peak)
}

/// Weights and gradients.
fn persistent<T: Element>(graph: &Graph) -> Vec<Option<Data<T>>> {
    let content = |(seed, tensor): (u32, &pipeplan_core::graph::Tensor)| {
        tensor.role.is_persistent().then(|| random(seed, tensor.elements() as usize))
    };
    (0..).zip(&graph.tensors).map(content).collect()
}

fn random<T: Element>(seed: u32, elements: usize) -> Data<T> {
    Data::Floats(floats(seed, elements).map(|value| T::of(f64::from(value))).collect())
}

/// A stage on its own: what other devices would bring is made up.
struct Walk<'g, T> {
    graph: &'g Graph,
    lifetimes: &'g Lifetimes,
    held: Vec<Option<Data<T>>>,
}

impl<T: Element> Walk<'_, T> {
    /// One microbatch through F, B and W: by operator its time. `observe` learns how many have run and which is next; nothing
    /// where it says stop.
    fn run(&mut self, context: &mut Context<T>, observe: &mut dyn FnMut(usize, &str) -> Flow) -> Option<Vec<Nanos>> {
        let (graph, lifetimes) = (self.graph, self.lifetimes);
        let mut times = vec![0; graph.operators.len()];
        let mut done = 0;
        for job in Job::ALL {
            for id in &lifetimes.arrive[job as usize] {
                let reader = graph.operators.iter().find(|operator| reads(operator, *id));
                self.held[id.index()] = Some(made_up(graph, reader, *id));
            }
            for (at, operator) in graph.operators.iter().enumerate().filter(|(_, operator)| operator.job == job) {
                if observe(done, operator.kernel.name()) == Flow::Stop {
                    return None;
                }
                times[at] = self.execute(context, at, operator);
                done += 1;
            }
            for id in &lifetimes.end[job as usize] {
                self.held[id.index()] = None;
            }
        }
        Some(times)
    }

    /// Runs `operator`, the one at `at`: how long that took, its memory included.
    fn execute(&mut self, context: &mut Context<T>, at: usize, operator: &Operator) -> Nanos {
        let graph = self.graph;
        let taken_over = operator.in_place.filter(|_| self.lifetimes.takes_over[at]);
        let taken_over = taken_over.and_then(|input| operator.inputs.get(input as usize)).map(|input| input.tensor);
        let alone = works_alone(operator);
        let started = Instant::now();
        let mut outputs = Vec::with_capacity(operator.outputs.len());
        for (position, id) in operator.outputs.iter().enumerate() {
            let there = match taken_over.filter(|_| position == 0) {
                _ if graph[*id].role.is_persistent() => self.held[id.index()].take(),
                Some(input) => self.held[input.index()].take(),
                None => None,
            };
            outputs.push(there.unwrap_or_else(|| match alone {
                true => Data::zeros(graph[*id].dtype, graph[*id].elements() as usize),
                false => made_up(graph, Some(operator), *id),
            }));
        }
        if alone {
            let input = |id: TensorId| Input {
                shape: &graph[id].shape,
                data: self.held[id.index()].as_ref().filter(|_| !operator.outputs.contains(&id)),
            };
            let inputs: Vec<Input<'_, T>> = operator.inputs.iter().map(|of| input(of.tensor)).collect();
            kernels::run(context, &operator.kernel, &inputs, &mut outputs);
        }
        for (id, data) in operator.outputs.iter().zip(outputs) {
            self.held[id.index()] = Some(data);
        }
        for id in &self.lifetimes.free_after[at] {
            self.held[id.index()] = None;
        }
        started.elapsed().as_nanos() as Nanos
    }
}

fn reads(operator: &Operator, id: TensorId) -> bool {
    operator.inputs.iter().any(|input| input.tensor == id)
}

/// What nobody here computes.
fn made_up<T: Element>(graph: &Graph, operator: Option<&Operator>, id: TensorId) -> Data<T> {
    let elements = graph[id].elements() as usize;
    match graph[id].dtype {
        Dtype::I32 => Data::Tokens(whole_numbers(graph, operator.map_or(&[], std::slice::from_ref), id)),
        Dtype::U8 => Data::Bytes(kept(elements).collect()),
        Dtype::Bf16 | Dtype::F32 | Dtype::F64 | Dtype::Fp8 | Dtype::MxFp8 | Dtype::MxFp4 | Dtype::NvFp4 => {
            random(id.0, elements)
        }
    }
}

/// What the system calls its processor.
fn model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_string())
}
