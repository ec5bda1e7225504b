//! When each tensor's buffer is taken and given back, and so how many bytes a job leaves held and needs at
//! most: exactly what an arena measures that follows [the graph's rules](super).

use alloc::vec;
use alloc::vec::Vec;

use super::{Graph, Job, Needs, TensorId};
use crate::units::{ByteDelta, Bytes};

/// When buffers are given back. Persistent tensors do not occur.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// By job: tensors that come from outside before its first operator.
    pub arrive: [Vec<TensorId>; 3],
    /// By operator of the graph: buffers to free right after it. An input whose buffer its output took over is
    /// not among them.
    pub free_after: Vec<Vec<TensorId>>,
    /// By operator: whether its output 0 takes over the buffer of the input that
    /// [`Operator::in_place`](super::Operator::in_place) names.
    pub takes_over: Vec<bool>,
    /// By job: buffers to free or to hand to a transfer at its end.
    pub end: [Vec<TensorId>; 3],
}

/// Bytes of one job for one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct JobMemory {
    /// What it leaves held more than it found (or, below 0, gives back).
    pub net: ByteDelta,
    /// The most that it holds at once above what it found.
    pub peak: Bytes,
}

impl JobMemory {
    /// What it needs only while it runs: its peak above what it was found with or leaves.
    pub fn workspace(&self) -> Bytes {
        self.peak.saturating_sub(self.net.max(0) as Bytes)
    }
}

impl Lifetimes {
    /// The lifetimes of all tensors of `graph`.
    pub fn of(graph: &Graph) -> Lifetimes {
        Lifetimes::counting(graph, |needs| needs == Needs::Data)
    }

    fn counting(graph: &Graph, counts: impl Fn(Needs) -> bool) -> Lifetimes {
        let last = last_uses(graph, counts);
        let mut lifetimes = Lifetimes {
            arrive: Default::default(),
            free_after: vec![Vec::new(); graph.operators.len()],
            takes_over: vec![false; graph.operators.len()],
            end: Default::default(),
        };
        for (at, operator) in graph.operators.iter().enumerate() {
            let input = operator.in_place.and_then(|input| operator.inputs.get(input as usize));
            lifetimes.takes_over[at] = input.is_some_and(|input| last[input.tensor.index()] == Some(at));
        }
        for (id, tensor) in graph.tensors() {
            let role = tensor.role;
            if role.is_persistent() {
                continue;
            }
            if let Some(job) = role.arrives_in() {
                lifetimes.arrive[job as usize].push(id);
            }
            let Some(at) = last[id.index()] else {
                // Arrives and is never used: held while its job runs.
                if let Some(job) = role.arrives_in() {
                    lifetimes.end[job as usize].push(id);
                }
                continue;
            };
            let operator = &graph.operators[at];
            let taken_over = match operator.in_place {
                Some(input) if lifetimes.takes_over[at] => operator.inputs.get(input as usize),
                _ => None,
            };
            match role.leaves_after() {
                Some(job) if job >= operator.job => lifetimes.end[job as usize].push(id),
                _ if taken_over.is_some_and(|input| input.tensor == id) => {}
                _ => lifetimes.free_after[at].push(id),
            }
        }
        lifetimes
    }

    /// Bytes of F, B and W, in this order.
    pub fn memory(&self, graph: &Graph) -> [JobMemory; 3] {
        let mut memory = [JobMemory::default(); 3];
        let sum = |tensors: &[TensorId]| -> Bytes {
            tensors.iter().fold(0, |sum: Bytes, id| sum.saturating_add(graph[*id].bytes()))
        };
        // One counter over all three: a job gives back what an earlier one took.
        let mut held: Bytes = 0;
        for job in Job::ALL {
            let found = held;
            held = held.saturating_add(sum(&self.arrive[job as usize]));
            let mut peak = held;
            for (index, operator) in graph.operators.iter().enumerate() {
                if operator.job != job {
                    continue;
                }
                for (at, output) in operator.outputs.iter().enumerate() {
                    let took_over = at == 0 && self.takes_over[index];
                    if !took_over && !graph[*output].role.is_persistent() {
                        held = held.saturating_add(graph[*output].bytes());
                    }
                }
                peak = peak.max(held);
                held = held.saturating_sub(sum(&self.free_after[index]));
            }
            held = held.saturating_sub(sum(&self.end[job as usize]));
            let net = (i128::from(held) - i128::from(found)).clamp(i64::MIN.into(), i64::MAX.into());
            memory[job as usize] = JobMemory { net: net as ByteDelta, peak: peak.saturating_sub(found) };
        }
        memory
    }
}

/// Lets every operator run in place whose kernel allows it and whose input is used no more.
pub fn run_in_place(graph: &mut Graph) {
    let last = last_uses(graph, |needs| needs == Needs::Data);
    let Graph { tensors, operators } = graph;
    for (at, operator) in operators.iter_mut().enumerate() {
        let Some(output) = operator.outputs.first().and_then(|id| tensors.get(id.index())) else { continue };
        let dies_here = |input: &u32| {
            let Some(used) = operator.inputs.get(*input as usize) else { return false };
            let tensor = &tensors[used.tensor.index()];
            !tensor.role.is_persistent()
                && tensor.role.leaves_after().is_none()
                && last[used.tensor.index()] == Some(at)
                && operator.inputs.iter().filter(|other| other.tensor == used.tensor).count() == 1
                && tensor.dtype == output.dtype
                && tensor.shape == output.shape
        };
        operator.in_place = operator.kernel.may_run_in_place_of().iter().copied().find(dies_here);
    }
}

/// By tensor: the last operator that uses it in a way that `counts`, or that writes it. F, B and W lie in the
/// list in the order in which a microbatch runs them.
fn last_uses(graph: &Graph, counts: impl Fn(Needs) -> bool) -> Vec<Option<usize>> {
    let mut last = vec![None; graph.tensors.len()];
    for (at, operator) in graph.operators.iter().enumerate() {
        for input in operator.inputs.iter().filter(|input| counts(input.needs)) {
            last[input.tensor.index()] = Some(at);
        }
        for output in &operator.outputs {
            last[output.index()] = Some(at);
        }
    }
    last
}
