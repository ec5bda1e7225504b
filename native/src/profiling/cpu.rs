//! Operators on one core, as a rank of the CPU runs them: with the memory that they take, and without those around them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pipeplan_core::graph::{Graph, Operator, TensorId};
use pipeplan_core::model::Dtype;
use pipeplan_core::units::{Bytes, Nanos};

use super::{Stopwatch, Wanted, floats, kept, whole_numbers};
use crate::backend::cpu::element::Element;
use crate::backend::cpu::gemm::{Gemm, Tuned};
use crate::backend::cpu::kernels::{self, Context, Data, Input};
use crate::runner::available_bytes;

/// How long all runs of an operator take together,
const LONG_ENOUGH: Duration = Duration::from_millis(40);
/// how many there are at least, after one that does not count,
const LEAST_RUNS: usize = 3;
/// and how many at most.
const MOST_RUNS: usize = 1001;

/// One core that computes in `T`.
pub struct Cpu<T> {
    context: Context<T>,
    long_enough: Duration,
}

impl<T: Element> Cpu<T>
where
    Tuned: Gemm<T>,
{
    pub fn new() -> Cpu<T> {
        Cpu { context: Context::new(Box::new(Tuned)), long_enough: LONG_ENOUGH }
    }

    /// For whoever needs no steady times.
    #[cfg(test)]
    pub fn hasty() -> Cpu<T> {
        Cpu { long_enough: Duration::ZERO, ..Cpu::new() }
    }
}

impl<T: Element> Stopwatch for Cpu<T> {
    fn name(&self) -> String {
        format!("one core of {}", model().as_deref().unwrap_or("this CPU"))
    }

    fn time(&mut self, wanted: &Wanted<'_>) -> Result<Nanos, String> {
        let [operator] = wanted.operators else { return Err(String::from("the CPU runs one operator at a time")) };
        let graph = wanted.graph;
        let tensors = operator.inputs.iter().map(|input| input.tensor).chain(operator.outputs.iter().copied());
        // Twice: what an operator changes is kept as it was.
        let needed = tensors.fold(0, |sum: Bytes, id| sum.saturating_add(graph[id].bytes())).saturating_mul(2);
        if let Some(available) = available_bytes().filter(|available| needed > *available) {
            return Err(format!("it needs {} MiB, and this machine has {} MiB left", needed >> 20, available >> 20));
        }
        let taken_over = operator.in_place.filter(|_| wanted.takes_over);
        let taken_over = taken_over.and_then(|at| operator.inputs.get(at as usize)).map(|input| input.tensor);
        let read = operator.inputs.iter().map(|input| input.tensor);
        let added_to = operator.outputs.iter().copied().filter(|id| graph[*id].role.is_persistent());
        let mut held: BTreeMap<TensorId, Data<T>> =
            read.chain(added_to).map(|id| (id, content(graph, operator, id))).collect();
        let mut times = Vec::new();
        let mut all = Duration::ZERO;
        self.run(graph, operator, taken_over, &mut held);
        while times.len() < LEAST_RUNS || all < self.long_enough && times.len() < MOST_RUNS {
            let time = self.run(graph, operator, taken_over, &mut held);
            all += time;
            times.push(time);
        }
        times.sort_unstable();
        Ok((times[times.len() / 2].as_nanos() as Nanos).max(1))
    }
}

impl<T: Element> Cpu<T> {
    /// Runs `operator` once: how long that took, with the memory of its outputs taken and given back.
    fn run(
        &mut self,
        graph: &Graph,
        operator: &Operator,
        taken_over: Option<TensorId>,
        held: &mut BTreeMap<TensorId, Data<T>>,
    ) -> Duration {
        // What it changes is the same each time, so that nothing grows or fades.
        let mut given: Vec<Option<Data<T>>> = (0..operator.outputs.len()).map(|_| None).collect();
        for (position, (output, given)) in operator.outputs.iter().zip(&mut given).enumerate() {
            if graph[*output].role.is_persistent() {
                *given = held.remove(output);
            } else if position == 0 {
                *given = taken_over.and_then(|input| held.get(&input).cloned());
            }
        }
        let inputs: Vec<Input<'_, T>> = operator
            .inputs
            .iter()
            .map(|input| {
                let is_output = taken_over == Some(input.tensor) || operator.outputs.contains(&input.tensor);
                let data = held.get(&input.tensor).filter(|_| !is_output);
                Input { shape: &graph[input.tensor].shape, data }
            })
            .collect();
        let started = Instant::now();
        let outputs = operator.outputs.iter().zip(given);
        let mut outputs: Vec<Data<T>> = outputs
            .map(|(id, given)| given.unwrap_or_else(|| Data::zeros(graph[*id].dtype, graph[*id].elements() as usize)))
            .collect();
        kernels::run(&mut self.context, &operator.kernel, &inputs, &mut outputs);
        let mut kept = Vec::new();
        for (id, data) in operator.outputs.iter().zip(outputs) {
            if graph[*id].role.is_persistent() {
                kept.push((*id, data));
            }
        }
        let time = started.elapsed();
        held.extend(kept);
        time
    }
}

/// What `operator` finds in the tensor `id`.
fn content<T: Element>(graph: &Graph, operator: &Operator, id: TensorId) -> Data<T> {
    let elements = graph[id].elements() as usize;
    match graph[id].dtype {
        Dtype::I32 => Data::Tokens(whole_numbers(graph, std::slice::from_ref(operator), id)),
        Dtype::U8 => Data::Bytes(kept(elements).collect()),
        Dtype::Bf16 | Dtype::F32 | Dtype::F64 => {
            Data::Floats(floats(elements).map(|value| T::of(f64::from(value))).collect())
        }
    }
}

/// What the system calls its processor.
fn model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_string())
}
