//! The tensors of one stage for one microbatch: which are there now, and their bytes as they come and go.
//! When they do is worked out by [`Lifetimes`](pipeplan_core::graph::liveness::Lifetimes).

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Graph, TensorId};

use super::{Kind, Meter};

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
        let bytes = graph[id].device_bytes();
        self.held += bytes;
        self.peak = self.peak.max(self.held);
        meter.take(Kind::Activation, bytes);
        meter.take(Kind::Host, graph[id].bytes() - bytes);
        self.slots[id.index()] = Some(value);
    }

    /// Takes out a tensor that leaves or is freed.
    pub fn remove(&mut self, graph: &Graph, id: TensorId, meter: &mut Meter) -> Option<V> {
        let value = self.slots[id.index()].take()?;
        let bytes = graph[id].device_bytes();
        self.held -= bytes;
        meter.give(Kind::Activation, bytes);
        meter.give(Kind::Host, graph[id].bytes() - bytes);
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

    /// Forgets the peak so far: a job starts.
    pub fn restart_peak(&mut self) {
        self.peak = self.held;
    }

    /// The most bytes held since [`Lane::restart_peak`].
    pub fn peak(&self) -> Bytes {
        self.peak
    }
}
