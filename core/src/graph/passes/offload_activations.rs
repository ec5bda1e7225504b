//! The pass that offloads activations to host memory. Each tensor that layers keep is copied there as soon as it is
//! made, and back right before the backward needs it; the copies overlap compute (Transformer Engine's CPU
//! offloading; PipeOffload, arXiv:2503.01328; Megatron-LM's fine-grained activation offloading).
//!
//! ```text
//! F   layer 0, start copies … layer 1, start copies …, wait for 0's │ layer 2 …, wait for 1's │ … │ wait for the last's
//! B   start 2's │ wait for 2's, start 1's, layer 2 │ wait for 1's, start 0's, layer 1 │ wait for 0's, layer 0
//! ```
//!
//! A layer's copies to the host must end with the next layer's forward; its copies back have the time of the layer
//! before it in the backward. Tensors whose copies are under way stay on the device: two layers of them at most. So
//! copies that are not slower than a layer are hidden, except those of a stage's last layer, which end with F and
//! begin with B. Where only the first `n` of a stage's `m` layers are copied, each has `m / n` layers of time, and as
//! many more tensors are under way. What only W needs comes back for W, so it waits in host memory between B and W,
//! too.
//!
//! The pass runs after [`recompute`](super::recompute): recomputed activations are not kept, and only their inputs
//! are copied.
//!
//! # What stays
//! The embedding, the head and the loss, because their backward follows at once. And tensors of less than 1/64 of
//! their layer's bytes, such as statistics of rows: each takes a copy and frees very little.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::{Entry, PassReport};
use crate::graph::builder::operator;
use crate::graph::{Graph, Job, Kernel, Needs, Operator, Role, Stream, TensorId};

/// What the pass is called in its [`PassReport`].
pub const NAME: &str = "offload";

/// What a tensor has at least of the bytes that its layer keeps, as a divisor.
const LEAST_SHARE: u64 = 64;

/// Sends what the first `count` of a stage's `layers` keep to the host's memory. Takes time in proportion to the
/// operators. To be run before [`run_in_place`](crate::graph::liveness::run_in_place).
///
/// The bytes of an entry are those of one microbatch.
pub fn run(graph: &mut Graph, layers: Range<u32>, count: u32) -> PassReport {
    let mut account = PassReport::new(NAME);
    let forward = graph.forward_len();
    let count = count.min(layers.end.saturating_sub(layers.start));
    let kept = kept(graph, forward, layers.start..layers.start + count, &mut account);
    if kept.is_empty() {
        return account;
    }
    let ends = Ends::of(graph, forward, &layers);
    // By operator: what is put before it, waits first, since their buffers may be the next ones'; and what behind it.
    let mut waits: Vec<Vec<Operator>> = vec![Vec::new(); graph.operators.len()];
    let (mut before, mut behind) = (waits.clone(), waits.clone());
    let mut back: Vec<Option<TensorId>> = vec![None; graph.tensors.len()];
    let start = |kernel, job, layer, from, to| Operator {
        stream: Stream::Copies,
        ..operator(kernel, job, layer, &[from], &[to])
    };
    for Kept { tensor, layer, made, wanted, job } in kept {
        let (name, shape, dtype) = {
            let tensor = &graph[tensor];
            (tensor.name.clone(), tensor.shape.clone(), tensor.dtype)
        };
        let host = graph.add(format!("{name} on the host"), shape.clone(), dtype, Role::OnHost);
        let again = graph.add(format!("{name} back"), shape, dtype, Role::Intermediate);
        back[tensor.index()] = Some(again);
        // A copy belongs to the layer among whose operators it stands.
        let layer_at = |at: usize| graph.operators[at].layer;
        match made {
            Some(at) => behind[at].push(start(Kernel::Offload, Job::F, layer_at(at), tensor, host)),
            None => before[0].push(start(Kernel::Offload, Job::F, layer_at(0), tensor, host)),
        }
        // The copies of a layer have the time of `layers / count`.
        let until = (u64::from(layer - layers.start) + 1) * (layers.len() as u64) / u64::from(count.max(1));
        let (arrived, early) = (ends.forward(until), ends.backward(until, wanted));
        behind[arrived].push(operator(Kernel::OffloadWait, Job::F, layer_at(arrived), &[host, tensor], &[]));
        before[early].push(start(Kernel::Reload, job, layer_at(early), host, again));
        // Where the backward begins with it, nothing hides it.
        let wait_in = if early == wanted { &mut before } else { &mut waits };
        wait_in[wanted].push(operator(Kernel::ReloadWait, job, layer_at(wanted), &[again, host], &[]));
    }
    let operators = core::mem::take(&mut graph.operators);
    for (at, mut operator) in operators.into_iter().enumerate() {
        if at >= forward {
            for input in operator.inputs.iter_mut().filter(|input| input.needs == Needs::Data) {
                input.tensor = back[input.tensor.index()].unwrap_or(input.tensor);
            }
        }
        graph.operators.append(&mut waits[at]);
        graph.operators.append(&mut before[at]);
        graph.operators.push(operator);
        graph.operators.append(&mut behind[at]);
    }
    account
}

/// What a stage keeps of a microbatch between F and its backward that may wait in the host's memory meanwhile, as copies of the
/// schedule ([`Offload::Scheduled`](crate::graph::form::Offload::Scheduled)): the tensors that the pass would send, of all layers.
/// Of a graph whose passes are over.
pub fn may_leave(graph: &Graph) -> Vec<TensorId> {
    let kept = kept(graph, graph.forward_len(), 0..u32::MAX, &mut PassReport::new(NAME));
    kept.into_iter().map(|kept| kept.tensor).collect()
}

/// A tensor that goes to the host's memory.
#[derive(Clone, Copy)]
struct Kept {
    tensor: TensorId,
    /// The last layer whose forward makes or needs it.
    layer: u32,
    /// The operator that makes it; none where it arrives.
    made: Option<usize>,
    /// The first operator of the backward that needs it.
    wanted: usize,
    /// The job that it comes back for: B, unless only W needs it.
    job: Job,
}

/// What goes, in the order in which the backward needs it.
fn kept(graph: &Graph, forward: usize, layers: Range<u32>, account: &mut PassReport) -> Vec<Kept> {
    let count = graph.tensors.len();
    let (mut made, mut used, mut wanted) = (vec![None; count], vec![None; count], vec![None; count]);
    let mut by_b = vec![false; count];
    for (at, operator) in graph.operators.iter().enumerate() {
        for input in operator.inputs.iter().filter(|input| input.needs == Needs::Data) {
            let id = input.tensor.index();
            if at < forward {
                used[id] = Some(at);
            } else {
                wanted[id].get_or_insert(at);
                by_b[id] |= operator.job == Job::B;
            }
        }
        for output in operator.outputs.iter().filter(|_| at < forward) {
            (made[output.index()], used[output.index()]) = (Some(at), Some(at));
        }
    }
    let mut all: Vec<Kept> = Vec::new();
    for (id, tensor) in graph.tensors() {
        if !matches!(tensor.role, Role::Intermediate | Role::ActivationIn) {
            continue;
        }
        let (Some(used), Some(wanted)) = (used[id.index()], wanted[id.index()]) else { continue };
        let Some(layer) = graph.operators[used].layer.filter(|layer| layers.contains(layer)) else { continue };
        let job = if by_b[id.index()] { Job::B } else { Job::W };
        all.push(Kept { tensor: id, layer, made: made[id.index()], wanted, job });
    }
    all.sort_by_key(|kept| (kept.layer, kept.wanted));
    let mut goes = Vec::new();
    for of_layer in all.chunk_by(|a, b| a.layer == b.layer) {
        let bytes = |kept: &Kept| graph[kept.tensor].bytes();
        let sum = of_layer.iter().fold(0, |sum: u64, kept| sum.saturating_add(bytes(kept)));
        for kept in of_layer {
            let (name, bytes) = (&graph[kept.tensor].name, bytes(kept));
            let made_in = kept.made.and_then(|at| graph.operators[at].layer);
            match bytes.saturating_mul(LEAST_SHARE) < sum {
                true => account.skipped.push(Entry::new(name, made_in, "stays: it is small", bytes)),
                false => {
                    account.done.push(Entry::new(name, made_in, "offloaded to host memory", bytes));
                    goes.push(*kept);
                }
            }
        }
    }
    goes.sort_by_key(|kept| kept.wanted);
    goes
}

/// Where a stage's layers end in the forward, and begin in the backward.
struct Ends {
    /// By layer of the stage.
    forward: Vec<usize>,
    backward: Vec<usize>,
    /// The last operator of F, and the first one behind it.
    outer: [usize; 2],
}

impl Ends {
    fn of(graph: &Graph, forward: usize, layers: &Range<u32>) -> Ends {
        let outer = [forward.saturating_sub(1), forward];
        let mut ends = Ends { forward: vec![outer[0]; layers.len()], backward: vec![outer[1]; layers.len()], outer };
        let place = |operator: &Operator| operator.layer.filter(|layer| layers.contains(layer));
        for (at, operator) in graph.operators.iter().enumerate().take(forward) {
            if let Some(layer) = place(operator) {
                ends.forward[(layer - layers.start) as usize] = at;
            }
        }
        for (at, operator) in graph.operators.iter().enumerate().skip(forward).rev() {
            if let Some(layer) = place(operator) {
                ends.backward[(layer - layers.start) as usize] = at;
            }
        }
        ends
    }

    /// The last operator of the forward of the stage's layer `layer`, or of all.
    fn forward(&self, layer: u64) -> usize {
        self.forward.get(layer as usize).copied().unwrap_or(self.outer[0])
    }

    /// The first operator of its backward, or of all; of a later layer's, where that is not before `wanted`: layers
    /// that are computed again together are so in their order.
    fn backward(&self, layer: u64, wanted: usize) -> usize {
        let later = self.backward.get(layer as usize..).unwrap_or_default();
        later.iter().copied().find(|at| *at < wanted).unwrap_or(self.outer[1])
    }
}
