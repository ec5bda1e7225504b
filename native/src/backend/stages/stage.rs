//! One stage of a rank: its graph, its weights with their optimizer state, and the tensors of its microbatches.

use std::collections::BTreeMap;
use std::ops::Range;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::liveness::{Lifetimes, fused_order};
use pipeplan_core::graph::{Graph, Job, Kernel, Role, Tensor, TensorId};
use pipeplan_core::problem::op::OpKind;

use super::Training;
use super::copies::HostCopies;
use super::processor::{Processor, Updated};
use super::sharded::{Units, cut};
use super::sliced::Slices;
use crate::backend::arena::Lane;
use crate::backend::{Kind, Meter, Part, Share, WeightSharding};
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
    /// Of those, the ones that this step has not written yet: the first product does not add to what the last step
    /// left.
    pub(super) stale: Vec<bool>,
    /// Weights, each with its copies in the format of products.
    pub(super) copies: Vec<(TensorId, [TensorId; 2])>,
    /// Whether these are not yet those of this step's weights.
    pub(super) copies_are_old: bool,
    /// By kind of op: what it gathers and reduces among copies.
    pub(super) units: [Units; 4],
    /// What slices of sequences hold for each other; nothing where sequences are whole.
    pub(super) slices: Option<Slices<D>>,
    /// What copies of the schedule hold in the host's memory.
    pub(super) host_copies: HostCopies<D>,
    /// By microbatch: what is there now. A lane goes when its last job has ended.
    pub(super) lanes: BTreeMap<u32, Lane<D>>,
}

/// A weight, its gradient and its optimizer states.
pub(super) struct Parameter<D, S> {
    pub(super) weight: TensorId,
    pub(super) gradient: Accumulator<D>,
    pub(super) decay: bool,
    pub(super) state: S,
    /// How this rank keeps it.
    pub(super) sharding: WeightSharding,
    /// What it keeps of a sharded weight, which is in the graph's tensor while a job needs it.
    pub(super) shard: Option<D>,
    /// Where each microbatch's gradient is reduced: the sums so far. The graph's tensor is that of one job.
    pub(super) reduced: Option<D>,
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
            let sharding = training.shardings.of(weight);
            let share = sharding.share;
            let Some(gradient_id) = accumulators.get(&of).copied() else {
                // It does not train: no element has a gradient or optimizer states.
                let none = Tensor { shape: vec![0], role: Role::WeightGradient { of }, ..weight.clone() };
                let new = processor.parameter(training, init, weight, &none, (Rule::Sgd, 0))?;
                let (whole, shard) = kept(processor, new.weight, weight, share, sharding.weight)?;
                meter.take(Kind::Persistent, bytes_kept(weight, share, sharding.weight));
                persistent[of.index()] = whole;
                let (gradient, state) = (Accumulator::Frozen(new.gradient), new.state);
                parameters.push(Parameter { weight: of, gradient, decay, state, sharding, shard, reduced: None });
                continue;
            };
            let gradient = &graph[gradient_id];
            let held = share.of(weight.elements() as usize).len();
            let rule = Rule::of(training.kind, &weight.shape, of_layers.contains(&of));
            let new = processor.parameter(training, init, weight, gradient, (rule, held))?;
            let (whole, shard) = kept(processor, new.weight, weight, share, sharding.weight)?;
            persistent[of.index()] = whole;
            let (sums, of_share) = kept(processor, new.gradient, gradient, share, sharding.gradient)?;
            let of_gradient = bytes_kept(gradient, share, sharding.gradient);
            meter.take(Kind::Persistent, bytes_kept(weight, share, sharding.weight) + of_gradient);
            meter.take(if training.state_on_host { Kind::Host } else { Kind::Persistent }, new.state_bytes);
            let (in_graph, reduced) = if sharding.reduces { (None, sums.or(of_share)) } else { (sums, None) };
            persistent[gradient_id.index()] = in_graph;
            let (gradient, state) = (Accumulator::Tensor(gradient_id), new.state);
            parameters.push(Parameter { weight: of, gradient, decay, state, sharding, shard, reduced });
        }
        let copies = copies(&graph);
        let of_copies = copies.iter().flat_map(|(_, copies)| copies).map(|copy| graph[*copy].bytes());
        meter.take(Kind::Persistent, of_copies.sum());
        let brief = brief(&graph, &lifetimes);
        let of_products = of_products(&graph);
        let stale = vec![false; graph.tensors.len()];
        let lanes = BTreeMap::new();
        let units = units(&graph, &fused.1, &parameters);
        let slices = Slices::of(&graph, training.slicing.as_ref());
        let host_copies = HostCopies::of(&graph);
        Ok(Stage {
            graph,
            lifetimes,
            fused,
            brief,
            persistent,
            parameters,
            of_products,
            stale,
            copies,
            copies_are_old: true,
            units,
            slices,
            host_copies,
            lanes,
        })
    }

    /// Makes the copies of weights in the format of products, where these are of other weights.
    pub(super) fn renew_copies<P: Processor<Data = D, State = S>>(
        &mut self,
        processor: &mut P,
    ) -> Result<(), P::Error> {
        if std::mem::take(&mut self.copies_are_old) {
            let graph = &self.graph;
            for (weight, to) in &self.copies {
                let Some(data) = self.persistent[weight.index()].as_ref() else { continue };
                let made = processor.quantize((&graph[*weight], data), to.map(|to| &graph[to]))?;
                to.iter().zip(made).for_each(|(to, made)| self.persistent[to.index()] = Some(made));
            }
        }
        Ok(())
    }

    /// Lends what belongs to the parameter at `position` to `work`; nothing if it is not there.
    pub(super) fn with<R>(&mut self, position: usize, work: impl FnOnce(Updated<'_, D, S>) -> R) -> Option<R> {
        let Stage { graph, persistent, parameters, of_products, stale, .. } = self;
        let Parameter { weight, gradient, decay, state, sharding, shard, reduced } = parameters.get_mut(position)?;
        let trains = gradient.tensor();
        let adds = |gradient: TensorId| !of_products[gradient.index()] || stale[gradient.index()];
        let clear = trains.is_some_and(|gradient| sharding.reduces || adds(gradient));
        let tensor = &graph[*weight];
        let mine = match trains {
            Some(_) => sharding.share.of(tensor.elements() as usize),
            None => 0..0,
        };
        // Of what is sharded, all that is there is this rank's.
        let within = |sharded: bool| if sharded { 0..mine.len() } else { mine.clone() };
        let (mine, of_gradient) = (within(shard.is_some()), within(sharding.gradient));
        let mut whole = persistent[weight.index()].take();
        let gradient = match (gradient, reduced.as_mut()) {
            (Accumulator::Tensor(_), Some(reduced)) => Some(reduced),
            (Accumulator::Tensor(id), None) => persistent[id.index()].as_mut(),
            (Accumulator::Frozen(none), _) => Some(none),
        };
        let both = shard.as_mut().or(whole.as_mut()).zip(gradient);
        let result = both.map(|(weight, gradient)| {
            work(Updated { tensor, weight, gradient, state, mine, of_gradient, decay: *decay, clear })
        });
        persistent[weight.index()] = whole;
        result
    }

    /// Lends what belongs to the weight `name` to `work`; nothing if it is not held.
    pub(super) fn with_named<R>(&mut self, name: &str, work: impl FnOnce(Updated<'_, D, S>) -> R) -> Option<R> {
        let position = self.position_of(name)?;
        self.with(position, work)
    }

    fn position_of(&self, name: &str) -> Option<usize> {
        self.parameters.iter().position(|parameter| self.graph[parameter.weight].name == name)
    }

    /// Where this rank keeps its share of `part` of the weight `name` alone: elements of the whole, and which of them
    /// these are.
    pub(super) fn share_kept(&self, name: &str, part: Part) -> Option<(usize, Range<usize>)> {
        let Parameter { weight, sharding, .. } = &self.parameters[self.position_of(name)?];
        let is_share = match part {
            Part::Weight => sharding.weight,
            Part::Gradient => sharding.gradient,
            Part::Mean | Part::Square => false,
        };
        let elements = self.graph[*weight].elements() as usize;
        is_share.then(|| (elements, sharding.share.of(elements)))
    }
}

/// What is kept of a tensor: all of it, or a share.
type WholeOrShare<D> = (Option<D>, Option<D>);

/// `data` of `tensor` whole, or the elements of `share` alone where that is all that is kept.
fn kept<P: Processor>(
    processor: &mut P,
    data: P::Data,
    tensor: &Tensor,
    share: Share,
    is_share: bool,
) -> Result<WholeOrShare<P::Data>, P::Error> {
    if !is_share {
        return Ok((Some(data), None));
    }
    let whole = processor.to_host(&data, tensor)?;
    Ok((None, processor.unpack(cut(&whole, share), tensor)))
}

/// The bytes of that.
fn bytes_kept(tensor: &Tensor, share: Share, is_share: bool) -> Bytes {
    match is_share {
        true => share.of(tensor.elements() as usize).len() as Bytes * tensor.dtype.bytes(),
        false => tensor.bytes(),
    }
}

/// The weights of which `graph` has copies in the format of products, each with its two.
fn copies(graph: &Graph) -> Vec<(TensorId, [TensorId; 2])> {
    let mut of_weights: BTreeMap<TensorId, Vec<TensorId>> = BTreeMap::new();
    for (id, tensor) in graph.tensors() {
        if let Role::WeightCopy { of } = tensor.role {
            of_weights.entry(of).or_default().push(id);
        }
    }
    // In the order of their making: along rows first.
    let pairs = of_weights.into_iter().map(|(weight, copies)| Some((weight, copies.try_into().ok()?)));
    pairs.flatten().collect()
}

/// By kind of op, what it gathers and reduces.
fn units<D, S>(graph: &Graph, fused: &[u32], parameters: &[Parameter<D, S>]) -> [Units; 4] {
    let numbered = || parameters.iter().enumerate();
    let weights = numbered().filter(|(_, parameter)| parameter.sharding.weight);
    let weights: BTreeMap<TensorId, usize> = weights.map(|(at, parameter)| (parameter.weight, at)).collect();
    let gradients = numbered().filter(|(_, parameter)| parameter.sharding.reduces);
    let gradients: BTreeMap<TensorId, usize> =
        gradients.filter_map(|(at, parameter)| Some((parameter.gradient.tensor()?, at))).collect();
    if weights.is_empty() && gradients.is_empty() {
        return Default::default();
    }
    [OpKind::F, OpKind::B, OpKind::W, OpKind::BW].map(|kind| {
        let of_job = |job: Job| {
            let of_job = |at: &u32| graph.operators[*at as usize].job == job;
            (0..graph.operators.len() as u32).filter(of_job).collect()
        };
        let order = match kind {
            OpKind::F => of_job(Job::F),
            OpKind::B => of_job(Job::B),
            OpKind::W => of_job(Job::W),
            OpKind::BW => fused.to_vec(),
        };
        Units::of(graph, &order, &weights, &gradients)
    })
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
    // The job in which a buffer is given back, from the last operator on: one that is taken over goes on under
    // another name.
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
