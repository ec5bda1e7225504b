//! When each tensor's buffer is taken and given back, and so how many bytes a job leaves held and needs at
//! most: exactly what an arena measures that follows [the graph's rules](super).

use alloc::vec;
use alloc::vec::Vec;

use super::{Graph, Job, Needs, Role, TensorId};
use crate::base::units::{ByteDelta, Bytes};

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
    /// The lifetimes of all tensors of `graph`, with B and W apart.
    pub fn of(graph: &Graph) -> Lifetimes {
        Lifetimes::counting(graph, false)
    }

    /// The lifetimes of all tensors of `graph` with B and W fused, in list order. What B's end frees or hands over, BW's
    /// end does; W has no end of its own.
    pub fn fused(graph: &Graph) -> Lifetimes {
        Lifetimes::counting(graph, true)
    }

    fn counting(graph: &Graph, fused: bool) -> Lifetimes {
        let last = last_uses(graph, fused);
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
            let runs_in = if fused { operator.job.min(Job::B) } else { operator.job };
            match role.leaves_after() {
                Some(job) if job >= runs_in => lifetimes.end[job as usize].push(id),
                _ if taken_over.is_some_and(|input| input.tensor == id) => {}
                _ => lifetimes.free_after[at].push(id),
            }
        }
        lifetimes
    }

    /// Bytes of F, B and W, in this order, for the lifetimes of [`Lifetimes::of`].
    pub fn memory(&self, graph: &Graph) -> [JobMemory; 3] {
        // One counter over all three: a job gives back what an earlier one took.
        let mut held: Bytes = 0;
        Job::ALL.map(|job| {
            let operators = (0..graph.operators.len()).filter(|at| graph.operators[*at].job == job);
            self.run(graph, job, operators, &mut held)
        })
    }

    /// Bytes of the host's memory that one microbatch leaves held behind F and behind B, for the lifetimes of
    /// [`Lifetimes::of`]. A fused BW leaves none, and no job holds more than F has left.
    pub fn on_host(&self, graph: &Graph) -> [Bytes; 2] {
        let on_host = |id: &TensorId| match graph[*id].role {
            Role::OnHost => graph[*id].bytes(),
            _ => 0,
        };
        let mut held: Bytes = 0;
        [Job::F, Job::B].map(|job| {
            for (at, operator) in graph.operators.iter().enumerate().filter(|(_, operator)| operator.job == job) {
                held = operator.outputs.iter().fold(held, |held, id| held.saturating_add(on_host(id)));
                held = self.free_after[at].iter().fold(held, |held, id| held.saturating_sub(on_host(id)));
            }
            held
        })
    }

    /// Bytes of the fused BW, for the lifetimes of [`Lifetimes::fused`].
    pub fn memory_fused(&self, graph: &Graph) -> JobMemory {
        let mut held: Bytes = 0;
        let forward = graph.forward_len();
        self.run(graph, Job::F, 0..forward, &mut held);
        self.run(graph, Job::B, forward..graph.operators.len(), &mut held)
    }

    /// Runs `operators` as `job` on an arena that holds `held`.
    fn run(&self, graph: &Graph, job: Job, operators: impl Iterator<Item = usize>, held: &mut Bytes) -> JobMemory {
        let sum = |tensors: &[TensorId]| -> Bytes {
            tensors.iter().fold(0, |sum: Bytes, id| sum.saturating_add(graph[*id].device_bytes()))
        };
        let found = *held;
        *held = held.saturating_add(sum(&self.arrive[job as usize]));
        let mut peak = *held;
        for index in operators {
            for (at, output) in graph.operators[index].outputs.iter().enumerate() {
                let took_over = at == 0 && self.takes_over[index];
                if !took_over && !graph[*output].role.is_persistent() {
                    *held = held.saturating_add(graph[*output].device_bytes());
                }
            }
            peak = peak.max(*held);
            *held = held.saturating_sub(sum(&self.free_after[index]));
        }
        *held = held.saturating_sub(sum(&self.end[job as usize]));
        let net = (i128::from(*held) - i128::from(found)).clamp(i64::MIN.into(), i64::MAX.into());
        JobMemory { net: net as ByteDelta, peak: peak.saturating_sub(found) }
    }
}

/// The operators of a fused BW, by their positions in `graph`: all that are not F's, in list order.
pub fn fused_order(graph: &Graph) -> Vec<u32> {
    (graph.forward_len() as u32..graph.operators.len() as u32).collect()
}

/// The operators of F, then B, then W, by their positions in `graph`.
pub fn split_order(graph: &Graph) -> Vec<u32> {
    let of = |job: Job| {
        let operators = graph.operators.iter().enumerate();
        operators.filter(move |(_, operator)| operator.job == job).map(|(at, _)| at as u32)
    };
    Job::ALL.into_iter().flat_map(of).collect()
}

/// Lets every operator run in place whose kernel allows it and whose input is used no more.
pub fn run_in_place(graph: &mut Graph) {
    let last = last_uses(graph, false);
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

/// By tensor: the last operator that needs its data, or that writes it, where a microbatch runs the operators in list
/// order (`fused`) or F's, then B's, then W's.
fn last_uses(graph: &Graph, fused: bool) -> Vec<Option<usize>> {
    let mut last = vec![None; graph.tensors.len()];
    let mut run = |at: usize| {
        let operator = &graph.operators[at];
        for input in operator.inputs.iter().filter(|input| input.needs == Needs::Data) {
            last[input.tensor.index()] = Some(at);
        }
        for output in &operator.outputs {
            last[output.index()] = Some(at);
        }
    };
    match fused {
        true => (0..graph.operators.len()).for_each(run),
        false => split_order(graph).iter().for_each(|at| run(*at as usize)),
    }
    last
}
