//! The tensors of a stage's microbatches: when each comes and goes, worked out from the graph once, and
//! their bytes counted as they do.

use pipeplan_core::graph::{Graph, Job, Needs, TensorId};
use pipeplan_core::units::Bytes;

use super::{Kind, Meter};

/// When the tensors of a graph come and go, by the rules of [`pipeplan_core::graph`].
#[derive(Clone, Debug)]
pub struct Lifetimes {
    jobs: [JobLifetimes; 3],
    /// By operator: what is freed right after it.
    freed_after: Vec<Vec<TensorId>>,
}

/// What one job brings in, runs and sends out.
#[derive(Clone, Debug, Default)]
pub struct JobLifetimes {
    /// Tensors that are there when the job starts.
    pub arrive: Vec<TensorId>,
    /// The job's operators, by position in the graph.
    pub operators: std::ops::Range<usize>,
    /// Tensors that leave at the job's end, and whether a later job still reads them.
    pub leave: Vec<(TensorId, bool)>,
    /// Tensors freed at the job's end because no operator ever reads them.
    pub unused: Vec<TensorId>,
}

impl Lifetimes {
    /// The lifetimes of the tensors of `graph`.
    pub fn new(graph: &Graph) -> Lifetimes {
        // By tensor: the last operator that reads its data or writes it, unless a later one takes its
        // buffer over.
        let mut last: Vec<Option<usize>> = vec![None; graph.tensors.len()];
        let mut taken_over = vec![false; graph.tensors.len()];
        for (index, operator) in graph.operators.iter().enumerate() {
            for output in &operator.outputs {
                last[output.index()] = Some(index);
            }
            for input in operator.inputs.iter().filter(|input| input.needs == Needs::Data) {
                last[input.tensor.index()] = Some(index);
            }
            if let Some(input) = operator.in_place.and_then(|input| operator.inputs.get(input as usize)) {
                taken_over[input.tensor.index()] = true;
            }
        }
        let mut jobs = Job::ALL.map(|job| {
            let start = graph.operators.iter().take_while(|operator| operator.job < job).count();
            JobLifetimes { operators: start..start + graph.job(job).count(), ..JobLifetimes::default() }
        });
        let mut freed_after = vec![Vec::new(); graph.operators.len()];
        for (id, tensor) in graph.tensors().filter(|(_, tensor)| !tensor.role.is_persistent()) {
            let last = last[id.index()];
            if let Some(job) = tensor.role.arrives_in() {
                jobs[job as usize].arrive.push(id);
                if last.is_none() {
                    jobs[job as usize].unused.push(id);
                }
            }
            let leaves = tensor.role.leaves_after();
            if let Some(job) = leaves {
                let read_later = last.is_some_and(|last| graph.operators[last].job > job);
                jobs[job as usize].leave.push((id, read_later));
            }
            if let Some(last) = last {
                let still_there = leaves.is_none_or(|job| graph.operators[last].job > job);
                if still_there && !taken_over[id.index()] {
                    freed_after[last].push(id);
                }
            }
        }
        Lifetimes { jobs, freed_after }
    }

    /// What `job` brings in, runs and sends out.
    pub fn job(&self, job: Job) -> &JobLifetimes {
        &self.jobs[job as usize]
    }

    /// What is freed right after the operator at `index`.
    pub fn freed_after(&self, index: usize) -> &[TensorId] {
        &self.freed_after[index]
    }
}

/// The tensors of one stage for one microbatch that are there now.
#[derive(Clone, Debug)]
pub struct Lane<V> {
    slots: Vec<Option<V>>,
    held: Bytes,
    peak: Bytes,
}

impl<V> Lane<V> {
    /// No tensor of `graph` is there.
    pub fn new(graph: &Graph) -> Lane<V> {
        Lane { slots: graph.tensors.iter().map(|_| None).collect(), held: 0, peak: 0 }
    }

    /// A tensor that is there.
    pub fn get(&self, id: TensorId) -> Option<&V> {
        self.slots[id.index()].as_ref()
    }

    /// Puts in a tensor that was just allocated or has arrived.
    pub fn put(&mut self, graph: &Graph, id: TensorId, value: V, meter: &mut Meter) {
        let bytes = graph[id].bytes();
        self.held += bytes;
        self.peak = self.peak.max(self.held);
        meter.take(Kind::Activation, bytes);
        self.slots[id.index()] = Some(value);
    }

    /// Takes out a tensor that leaves or is freed.
    pub fn remove(&mut self, graph: &Graph, id: TensorId, meter: &mut Meter) -> Option<V> {
        let value = self.slots[id.index()].take()?;
        let bytes = graph[id].bytes();
        self.held -= bytes;
        meter.give(Kind::Activation, bytes);
        Some(value)
    }

    /// Lends a buffer to a running operator; its bytes stay counted.
    pub fn lend(&mut self, id: TensorId) -> Option<V> {
        self.slots[id.index()].take()
    }

    /// Puts back what was lent, under its own name or that of the output which has taken it over.
    pub fn give_back(&mut self, id: TensorId, value: V) {
        self.slots[id.index()] = Some(value);
    }

    /// Bytes held now.
    pub fn held(&self) -> Bytes {
        self.held
    }

    /// The most bytes held since the last call.
    pub fn take_peak(&mut self) -> Bytes {
        std::mem::replace(&mut self.peak, self.held)
    }
}
