//! One stage of a rank: its graph, its weights with their optimizer state, and the tensors of its microbatches.

use std::collections::BTreeMap;

use pipeplan_core::graph::liveness::{Lifetimes, fused_order};
use pipeplan_core::graph::{Graph, Job, Kernel, Role, Tensor, TensorId};

use super::Training;
use super::processor::{Processor, Updated};
use crate::backend::arena::Lane;
use crate::backend::{Kind, Meter, Shares};
use crate::runner::optimizer::Rule;

/// A stage of this rank.
pub(super) struct Stage<D, S> {
    pub(super) graph: Graph,
    pub(super) lifetimes: Lifetimes,
    /// The lifetimes where B and W are fused, and the order in which their operators then run. F's are the same.
    pub(super) fused: (Lifetimes, Vec<u32>),
    /// By tensor: whether its buffer is given back in the job that takes it, with B and W apart.
    pub(super) brief: Vec<bool>,
    /// By tensor: weights and their gradients; nothing elsewhere.
    pub(super) persistent: Vec<Option<D>>,
    pub(super) parameters: Vec<Parameter<D, S>>,
    /// By tensor: whether it is a gradient that nothing but products add to.
    pub(super) of_products: Vec<bool>,
    /// Of those, the ones that this step has not written yet: the first product does not add to what the last step left.
    pub(super) stale: Vec<bool>,
    /// By microbatch: what is there now. A lane goes when its last job has ended.
    pub(super) lanes: BTreeMap<u32, Lane<D>>,
}

/// A weight, its gradient and its optimizer states.
pub(super) struct Parameter<D, S> {
    pub(super) weight: TensorId,
    pub(super) gradient: Accumulator<D>,
    pub(super) decay: bool,
    pub(super) state: S,
}

/// Where the gradient of a weight adds up.
pub(super) enum Accumulator<D> {
    /// In this tensor of the graph.
    Tensor(TensorId),
    /// Nowhere: the weight is frozen. The data has no elements.
    Frozen(D),
}

impl<D> Accumulator<D> {
    /// Its tensor, where the weight trains.
    pub(super) const fn tensor(&self) -> Option<TensorId> {
        match self {
            Accumulator::Tensor(id) => Some(*id),
            Accumulator::Frozen(_) => None,
        }
    }
}

impl<D, S> Stage<D, S> {
    pub(super) fn new<P: Processor<Data = D, State = S>>(
        graph: Graph,
        processor: &mut P,
        training: &Training,
        meter: &mut Meter,
    ) -> Result<Stage<D, S>, P::Error> {
        let lifetimes = Lifetimes::of(&graph);
        let fused = (Lifetimes::fused(&graph), fused_order(&graph));
        let mut persistent: Vec<Option<D>> = graph.tensors.iter().map(|_| None).collect();
        let mut parameters = Vec::new();
        let of_layers = graph.weights_of_layers();
        let accumulators: BTreeMap<TensorId, TensorId> =
            graph.tensors().filter_map(|(id, tensor)| accumulates(tensor).map(|of| (of, id))).collect();
        for (of, weight) in graph.weights() {
            let Role::Weight { init, decay, .. } = weight.role else { continue };
            let Some(gradient_id) = accumulators.get(&of).copied() else {
                // It does not train: no element has a gradient or optimizer states.
                let none = Tensor { shape: vec![0], role: Role::WeightGradient { of }, ..weight.clone() };
                let new = processor.parameter(training, init, weight, &none, (Rule::Sgd, 0))?;
                meter.take(Kind::Persistent, weight.bytes());
                persistent[of.index()] = Some(new.weight);
                let gradient = Accumulator::Frozen(new.gradient);
                parameters.push(Parameter { weight: of, gradient, decay, state: new.state });
                continue;
            };
            let gradient = &graph[gradient_id];
            let held = training.shares.of(weight).of(weight.elements() as usize).len();
            let rule = Rule::of(training.kind, &weight.shape, of_layers.contains(&of));
            let new = processor.parameter(training, init, weight, gradient, (rule, held))?;
            meter.take(Kind::Persistent, weight.bytes() + gradient.bytes());
            meter.take(if training.state_on_host { Kind::Host } else { Kind::Persistent }, new.state_bytes);
            persistent[of.index()] = Some(new.weight);
            persistent[gradient_id.index()] = Some(new.gradient);
            let gradient = Accumulator::Tensor(gradient_id);
            parameters.push(Parameter { weight: of, gradient, decay, state: new.state });
        }
        let brief = brief(&graph, &lifetimes);
        let of_products = of_products(&graph);
        let stale = vec![false; graph.tensors.len()];
        let lanes = BTreeMap::new();
        Ok(Stage { graph, lifetimes, fused, brief, persistent, parameters, of_products, stale, lanes })
    }

    /// Lends what belongs to the parameter at `position` to `work`; nothing if it is not there.
    pub(super) fn with<R>(
        &mut self,
        position: usize,
        shares: Shares,
        work: impl FnOnce(Updated<'_, D, S>) -> R,
    ) -> Option<R> {
        let Stage { graph, persistent, parameters, of_products, stale, .. } = self;
        let parameter = parameters.get_mut(position)?;
        let trains = parameter.gradient.tensor();
        let clear = trains.is_some_and(|gradient| !of_products[gradient.index()] || stale[gradient.index()]);
        let tensor = &graph[parameter.weight];
        let mut weight = persistent[parameter.weight.index()].take()?;
        let gradient = match &mut parameter.gradient {
            Accumulator::Tensor(id) => persistent[id.index()].as_mut(),
            Accumulator::Frozen(none) => Some(none),
        };
        let mine = match trains {
            Some(_) => shares.of(tensor).of(tensor.elements() as usize),
            None => 0..0,
        };
        let result = gradient.map(|gradient| {
            work(Updated {
                tensor,
                weight: &mut weight,
                gradient,
                state: &mut parameter.state,
                mine,
                decay: parameter.decay,
                clear,
            })
        });
        persistent[parameter.weight.index()] = Some(weight);
        result
    }

    /// Lends what belongs to the weight `name` to `work`; nothing if it is not held.
    pub(super) fn with_named<R>(
        &mut self,
        name: &str,
        shares: Shares,
        work: impl FnOnce(Updated<'_, D, S>) -> R,
    ) -> Option<R> {
        let named = |parameter: &Parameter<D, S>| self.graph[parameter.weight].name == name;
        let position = self.parameters.iter().position(named)?;
        self.with(position, shares, work)
    }
}

/// The weight whose gradient adds up in `tensor`.
const fn accumulates(tensor: &Tensor) -> Option<TensorId> {
    match tensor.role {
        Role::WeightGradient { of } => Some(of),
        _ => None,
    }
}

/// By tensor: whether its buffer is given back in the job that takes it.
pub(super) fn brief(graph: &Graph, lifetimes: &Lifetimes) -> Vec<bool> {
    // The job in which a buffer is given back, from the last operator on: one that is taken over goes on under another name.
    let mut ends: Vec<Option<Job>> = vec![None; graph.tensors.len()];
    let mut brief = vec![false; graph.tensors.len()];
    for (index, operator) in graph.operators.iter().enumerate().rev() {
        for id in lifetimes.free_after.get(index).into_iter().flatten() {
            ends[id.index()] = Some(operator.job);
        }
        for (position, id) in operator.outputs.iter().enumerate() {
            let end = ends[id.index()];
            brief[id.index()] = end == Some(operator.job);
            let took_over = position == 0 && lifetimes.takes_over[index];
            let input = operator.in_place.filter(|_| took_over).and_then(|at| operator.inputs.get(at as usize));
            if let Some(input) = input {
                ends[input.tensor.index()] = end;
            }
        }
    }
    brief
}

/// By tensor: whether it is the gradient of a weight that products alone add to, each in its place.
fn of_products(graph: &Graph) -> Vec<bool> {
    let gradient = |tensor: &Tensor| matches!(tensor.role, Role::WeightGradient { .. });
    let mut alone: Vec<bool> = graph.tensors().map(|(_, tensor)| gradient(tensor)).collect();
    for operator in &graph.operators {
        let product = matches!(operator.kernel, Kernel::MatMul { accumulate: true, .. });
        for output in &operator.outputs {
            let in_place = operator.inputs.get(2).is_some_and(|addend| addend.tensor == *output);
            alone[output.index()] &= product && in_place;
        }
    }
    alone
}
