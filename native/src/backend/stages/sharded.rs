//! Weights that copies of a stage shard, and gradients that they reduce for each microbatch.
//!
//! - In: the operators of a job, and how each weight is [kept](WeightSharding).
//! - Out: weights gathered before the operators that need them; gradients summed over copies behind those that make them.
//! - Knows: units of a job, which are its runs of operators of one layer, as torchtitan wraps them (`apply_fsdp`).
//!
//! | When | What |
//! |---|---|
//! | A unit begins that needs sharded weights | waits for them, and begins to gather those of the next unit |
//! | The last operator has used a weight | frees it |
//! | A unit has made gradients | waits for the reduction of those of the unit before, and begins that of its own |
//!
//! So a unit and the next one are there at once, as the plan counts them
//! ([`StaticBytes`](pipeplan_core::estimate::memory::StaticBytes)). A weight that several units of a job use stays
//! from the first to the last of them.

use std::collections::{BTreeMap, BTreeSet};

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Graph, Needs, TensorId};

use super::processor::Processor;
use super::stage::Parameter;
use crate::backend::cpu::element::Element;
use crate::backend::peers::{Collective, CopyGroup, Peers, Ticket};
use crate::backend::{BackendError, Kind, Meter, Share, WeightSharding};
use crate::transport::Buffer;

/// What a job does with sharded weights and reduced gradients, by positions in its order of operators. Weights and
/// gradients are numbers of parameters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Units {
    /// Weights that are gathered together, and the operator before which they are needed, in order.
    gathers: Vec<(usize, Vec<usize>)>,
    /// Weights that the operator uses last.
    frees: BTreeMap<usize, Vec<usize>>,
    /// Gradients that the operator is the first to add to.
    makes: BTreeMap<usize, Vec<usize>>,
    /// Gradients that are whole, for this microbatch, behind the operator.
    reduces: BTreeMap<usize, Vec<usize>>,
}

impl Units {
    /// Of a job that runs the operators `order` of `graph`. `weights` are those that are sharded and `gradients`
    /// those that are reduced, with the numbers of their parameters.
    pub(super) fn of(
        graph: &Graph,
        order: &[u32],
        weights: &BTreeMap<TensorId, usize>,
        gradients: &BTreeMap<TensorId, usize>,
    ) -> Units {
        let mut units = Units::default();
        let (mut last_use, mut last_make) = (BTreeMap::new(), BTreeMap::new());
        let (mut of_weights, mut of_gradients) = (None, None);
        // By unit of gradients, its last operator.
        let mut ends: Vec<usize> = Vec::new();
        for (position, at) in order.iter().enumerate() {
            let operator = &graph.operators[*at as usize];
            let needed = operator.inputs.iter().filter(|input| input.needs == Needs::Data);
            let needed: BTreeSet<usize> = needed.filter_map(|input| weights.get(&input.tensor).copied()).collect();
            if !needed.is_empty() && of_weights.replace(operator.layer) != Some(operator.layer) {
                units.gathers.push((position, Vec::new()));
            }
            for parameter in needed {
                if last_use.insert(parameter, position).is_none()
                    && let Some((_, unit)) = units.gathers.last_mut()
                {
                    unit.push(parameter);
                }
            }
            let made: BTreeSet<usize> =
                operator.outputs.iter().filter_map(|output| gradients.get(output).copied()).collect();
            if made.is_empty() {
                continue;
            }
            match of_gradients.replace(operator.layer) == Some(operator.layer) {
                true => ends.last_mut().map_or((), |end| *end = position),
                false => ends.push(position),
            }
            for parameter in made {
                if last_make.insert(parameter, ends.len() - 1).is_none() {
                    units.makes.entry(position).or_default().push(parameter);
                }
            }
        }
        // A unit may need nothing that the ones before have not gathered.
        units.gathers.retain(|(_, unit)| !unit.is_empty());
        for (parameter, position) in last_use {
            units.frees.entry(position).or_default().push(parameter);
        }
        for (parameter, unit) in last_make {
            units.reduces.entry(ends[unit]).or_default().push(parameter);
        }
        units
    }
}

/// What has begun among copies in a job, or will.
#[derive(Debug, Default)]
pub(super) struct Underway {
    /// The next unit that is needed.
    next: usize,
    gathers: Vec<Begun>,
    reductions: Vec<Begun>,
}

/// Parameters of one kind that are gathered or reduced together.
#[derive(Debug)]
struct Begun {
    of: CopyGroup,
    /// None where all copies hold all of it.
    ticket: Option<Ticket>,
    parameters: Vec<usize>,
    /// The sums so far, where nothing has begun.
    values: Buffer,
}

/// The parts of a stage that belong to its weights.
pub(super) struct Weights<'a, P: Processor> {
    pub(super) stage: u16,
    pub(super) graph: &'a Graph,
    pub(super) units: &'a Units,
    pub(super) parameters: &'a mut [Parameter<P::Data, P::State>],
    pub(super) persistent: &'a mut [Option<P::Data>],
    pub(super) of_products: &'a [bool],
    pub(super) stale: &'a mut [bool],
    pub(super) meter: &'a mut Meter,
}

impl Underway {
    /// Has all there that the operator at `position` of the order needs.
    pub(super) fn before<P: Processor>(
        &mut self,
        position: usize,
        weights: &mut Weights<'_, P>,
        processor: &mut P,
        peers: &mut dyn Peers,
    ) -> Result<(), BackendError> {
        for parameter in weights.units.makes.get(&position).into_iter().flatten() {
            let Some(id) = weights.parameters[*parameter].gradient.tensor() else { continue };
            let gradient = &weights.graph[id];
            weights.meter.take(Kind::Persistent, gradient.bytes());
            weights.persistent[id.index()] = Some(processor.allocate(gradient, false).map_err(Into::into)?);
            // The first product need not add to nothing.
            weights.stale[id.index()] = weights.of_products[id.index()];
        }
        if weights.units.gathers.get(self.next).is_some_and(|(at, _)| *at == position) {
            if self.gathers.is_empty() {
                self.gathers = weights.begin_gather(self.next, processor, peers)?;
            }
            for begun in std::mem::take(&mut self.gathers) {
                weights.end_gather(begun, processor, peers)?;
            }
            self.next += 1;
            self.gathers = weights.begin_gather(self.next, processor, peers)?;
        }
        Ok(())
    }

    /// Frees and reduces what the operator at `position` of the order is the last to need or to make.
    pub(super) fn after<P: Processor>(
        &mut self,
        position: usize,
        weights: &mut Weights<'_, P>,
        processor: &mut P,
        peers: &mut dyn Peers,
    ) -> Result<(), BackendError> {
        for parameter in weights.units.frees.get(&position).into_iter().flatten() {
            let id = weights.parameters[*parameter].weight;
            if weights.persistent[id.index()].take().is_some() {
                weights.meter.give(Kind::Persistent, weights.graph[id].bytes());
            }
        }
        if let Some(parameters) = weights.units.reduces.get(&position) {
            self.end(weights, processor, peers)?;
            self.reductions = weights.begin_reduction(parameters, processor, peers)?;
        }
        Ok(())
    }

    /// Waits for all reductions.
    pub(super) fn end<P: Processor>(
        &mut self,
        weights: &mut Weights<'_, P>,
        processor: &mut P,
        peers: &mut dyn Peers,
    ) -> Result<(), BackendError> {
        for begun in std::mem::take(&mut self.reductions) {
            weights.end_reduction(begun, processor, peers)?;
        }
        Ok(())
    }
}

impl<P: Processor> Weights<'_, P> {
    fn sharding(&self, parameter: usize) -> WeightSharding {
        self.parameters[parameter].sharding
    }

    fn elements(&self, parameter: usize) -> usize {
        self.graph[self.parameters[parameter].weight].elements() as usize
    }

    /// By kind, those of `parameters` that have the same copies.
    fn kinds(&self, parameters: &[usize]) -> Vec<(CopyGroup, Vec<usize>)> {
        let is_of_experts = |at: &usize| self.graph[self.parameters[*at].weight].expert_ways().is_some();
        let (experts, others) = parameters.iter().copied().partition::<Vec<_>, _>(is_of_experts);
        let mut kinds = vec![(false, others), (true, experts)];
        kinds.retain(|(_, parameters)| !parameters.is_empty());
        let of = |experts: bool| CopyGroup { stage: self.stage, experts };
        kinds.into_iter().map(|(experts, parameters)| (of(experts), parameters)).collect()
    }

    /// The elements that each member of the sharding group holds of all `parameters` together.
    fn counts(&self, parameters: &[usize]) -> Vec<usize> {
        let mut counts = Vec::new();
        for parameter in parameters {
            let of_one = self.sharding(*parameter).share.counts(self.elements(*parameter));
            counts.resize(of_one.len(), 0);
            counts.iter_mut().zip(of_one).for_each(|(sum, count)| *sum += count);
        }
        counts
    }

    fn missing(&self, parameter: usize) -> BackendError {
        let name = self.graph[self.parameters[parameter].weight].name.clone();
        BackendError::NoSuchWeight { stage: self.stage.into(), name }
    }

    /// Begins to gather the weights of unit `unit`, if there is one. From here on there is room for them.
    fn begin_gather(
        &mut self,
        unit: usize,
        processor: &mut P,
        peers: &mut dyn Peers,
    ) -> Result<Vec<Begun>, BackendError> {
        let Some((_, parameters)) = self.units.gathers.get(unit) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for (of, parameters) in self.kinds(parameters) {
            let mut shares = Vec::new();
            for parameter in &parameters {
                let Parameter { weight, shard, .. } = &self.parameters[*parameter];
                let shard = shard.as_ref().ok_or_else(|| self.missing(*parameter))?;
                shares.push(processor.to_host(shard, &self.graph[*weight]).map_err(Into::into)?);
            }
            let bytes: Bytes = parameters.iter().map(|at| self.graph[self.parameters[*at].weight].bytes()).sum();
            self.meter.take(Kind::Persistent, bytes);
            let counts = self.counts(&parameters);
            let ticket = Some(peers.begin_shares(of, Collective::Gather, joined(shares), counts)?);
            all.push(Begun { of, ticket, parameters, values: Buffer::Nothing });
        }
        Ok(all)
    }

    fn end_gather(&mut self, begun: Begun, processor: &mut P, peers: &mut dyn Peers) -> Result<(), BackendError> {
        let Begun { ticket, parameters, values, .. } = begun;
        let gathered = ticket.map_or(Ok(values), |ticket| peers.end_shares(ticket))?;
        let sizes: Vec<(usize, Share)> =
            parameters.iter().map(|at| (self.elements(*at), self.sharding(*at).share)).collect();
        let whole: Vec<Buffer> = match gathered {
            Buffer::F32(values) => of_members(&values, &sizes).into_iter().map(Buffer::F32).collect(),
            Buffer::F64(values) => of_members(&values, &sizes).into_iter().map(Buffer::F64).collect(),
            // A processor lends its numbers widened.
            Buffer::Bf16(_) | Buffer::OnCard(_) | Buffer::Nothing => Vec::new(),
        };
        let mut whole = whole.into_iter();
        for parameter in parameters {
            let tensor = &self.graph[self.parameters[parameter].weight];
            let data = whole.next().and_then(|values| processor.unpack(values, tensor));
            let data = data.ok_or_else(|| self.missing(parameter))?;
            self.persistent[self.parameters[parameter].weight.index()] = Some(data);
        }
        Ok(())
    }

    /// Begins to sum the gradients of `parameters` over their copies.
    fn begin_reduction(
        &mut self,
        parameters: &[usize],
        processor: &mut P,
        peers: &mut dyn Peers,
    ) -> Result<Vec<Begun>, BackendError> {
        let mut all = Vec::new();
        for (of, parameters) in self.kinds(parameters) {
            let mut wholes = Vec::new();
            for parameter in &parameters {
                let id = self.parameters[*parameter].gradient.tensor();
                let found = id.and_then(|id| Some((id, self.persistent[id.index()].take()?)));
                let (id, data) = found.ok_or_else(|| self.missing(*parameter))?;
                wholes.push(processor.to_host(&data, &self.graph[id]).map_err(Into::into)?);
            }
            let shares: Vec<Share> = parameters.iter().map(|at| self.sharding(*at).share).collect();
            let members = shares.first().map_or(1, |share| share.members);
            let by_member = match members {
                1 => joined(wholes),
                _ => joined((0..members).flat_map(|member| {
                    let share = |(whole, share): (&Buffer, &Share)| cut(whole, Share { member, ..*share });
                    wholes.iter().zip(&shares).map(share).collect::<Vec<_>>()
                })),
            };
            all.push(match members {
                1 => Begun { of, ticket: None, parameters, values: by_member },
                _ => {
                    let counts = self.counts(&parameters);
                    let ticket = Some(peers.begin_shares(of, Collective::Scatter, by_member, counts)?);
                    Begun { of, ticket, parameters, values: Buffer::Nothing }
                }
            });
        }
        Ok(all)
    }

    /// Adds what a reduction has given to the sums over microbatches.
    fn end_reduction(&mut self, begun: Begun, processor: &mut P, peers: &mut dyn Peers) -> Result<(), BackendError> {
        let Begun { of, ticket, parameters, values } = begun;
        let summed = ticket.map_or(Ok(values), |ticket| peers.end_shares(ticket))?;
        let summed = peers.sum_across(of, summed)?;
        let mut start = 0;
        for parameter in parameters {
            let (sharding, elements) = (self.sharding(parameter), self.elements(parameter));
            let mine = sharding.share.of(elements);
            let from = start..start + mine.len();
            start = from.end;
            let to = if sharding.gradient { 0..mine.len() } else { mine };
            let missing = self.missing(parameter);
            let Parameter { gradient, reduced, .. } = &mut self.parameters[parameter];
            let (Some(id), Some(sum)) = (gradient.tensor(), reduced.as_mut()) else { return Err(missing) };
            let tensor = &self.graph[id];
            let mut values = processor.to_host(sum, tensor).map_err(Into::into)?;
            match (&mut values, &summed) {
                (Buffer::F32(values), Buffer::F32(more)) => add(&mut values[to], &more[from]),
                (Buffer::F64(values), Buffer::F64(more)) => add(&mut values[to], &more[from]),
                _ => return Err(missing),
            }
            processor.fill(sum, tensor, values).map_err(Into::into)?;
            self.meter.give(Kind::Persistent, tensor.bytes());
        }
        Ok(())
    }
}

/// The elements of `values`, one buffer behind the other.
fn joined(values: impl IntoIterator<Item = Buffer>) -> Buffer {
    values.into_iter().fold(Buffer::Nothing, |all, next| match (all, next) {
        (Buffer::Nothing, next) => next,
        (Buffer::F32(mut all), Buffer::F32(next)) => {
            all.extend_from_slice(&next);
            Buffer::F32(all)
        }
        (Buffer::F64(mut all), Buffer::F64(next)) => {
            all.extend_from_slice(&next);
            Buffer::F64(all)
        }
        // A processor has one format.
        (all, _) => all,
    })
}

/// The elements of `share` of `whole`.
pub(super) fn cut(whole: &Buffer, share: Share) -> Buffer {
    match whole {
        Buffer::F32(values) => Buffer::F32(values[share.of(values.len())].to_vec()),
        Buffer::F64(values) => Buffer::F64(values[share.of(values.len())].to_vec()),
        // A processor lends its numbers widened.
        Buffer::Bf16(_) | Buffer::OnCard(_) | Buffer::Nothing => Buffer::Nothing,
    }
}

/// Whole weights of the given sizes from `values`, which has all shares of the first member, then those of the next.
fn of_members<T: Element>(values: &[T], sizes: &[(usize, Share)]) -> Vec<Vec<T>> {
    let mut whole: Vec<Vec<T>> = sizes.iter().map(|(elements, _)| vec![T::ZERO; *elements]).collect();
    let members = sizes.first().map_or(0, |(_, share)| share.members);
    let mut rest = values;
    for member in 0..members {
        for (whole, (elements, share)) in whole.iter_mut().zip(sizes) {
            let range = Share { member, ..*share }.of(*elements);
            // The lengths are those that a gather has been asked for.
            let (share, after) = rest.split_at(range.len().min(rest.len()));
            whole[range.start..range.start + share.len()].copy_from_slice(share);
            rest = after;
        }
    }
    whole
}

fn add<T: Element>(values: &mut [T], more: &[T]) {
    values.iter_mut().zip(more).for_each(|(value, more)| *value += *more);
}

#[cfg(test)]
mod tests {
    use pipeplan_core::estimate::derive::{derive, graph_of};
    use pipeplan_core::graph::liveness::fused_order;
    use pipeplan_core::problem::placement::Placement;
    use pipeplan_core::spec::{Spec, Work};

    use super::*;

    /// The whole of a model as one stage, tied or not.
    fn graph(tied: bool) -> Graph {
        let text = format!(
            "schedule = \"gpipe\"\nmodel.name = \"tiny-llama\"\nmodel.tied = {tied}\ncluster.device = \"cpu\"\n[parallel]\n\
             pipeline = 1\n[training]\nmicrobatches = 2\nsequence = 16\nrecompute = \"full\"\n"
        );
        let spec = Spec::read(&text).expect("a spec");
        let Work::Model(work) = &spec.work else { panic!("a model") };
        graph_of(work, &derive(work, Placement::Linear, 1).expect("it can be cut").stages[0])
    }

    /// Whatever an operator of F or of both backwards in one needs is there, two units at most are at once, each
    /// weight is gathered once, and each gradient is reduced once behind all that add to it.
    #[test]
    fn a_job_has_what_it_needs_and_no_more_than_two_layers() {
        for tied in [false, true] {
            let graph = graph(tied);
            let numbered = graph.weights().map(|(id, _)| id).enumerate();
            let weights: BTreeMap<TensorId, usize> = numbered.map(|(number, id)| (id, number)).collect();
            let gradients: BTreeMap<TensorId, usize> = graph
                .tensors()
                .filter_map(|(id, tensor)| match tensor.role {
                    pipeplan_core::graph::Role::WeightGradient { of } => Some((id, weights[&of])),
                    _ => None,
                })
                .collect();
            let forward: Vec<u32> = (0..graph.forward_len() as u32).collect();
            for (order, has_gradients) in [(forward, false), (fused_order(&graph), true)] {
                let units = Units::of(&graph, &order, &weights, &gradients);
                let (mut there, mut next, mut most) = (BTreeSet::new(), 0, 0);
                let (mut made, mut reduced) = (BTreeSet::new(), BTreeSet::new());
                for (position, at) in order.iter().enumerate() {
                    made.extend(units.makes.get(&position).into_iter().flatten().copied());
                    if units.gathers.get(next).is_some_and(|(at, _)| *at == position) {
                        next += 1;
                        let ahead = units.gathers.get(next).into_iter().chain([&units.gathers[next - 1]]);
                        there.extend(ahead.flat_map(|(_, unit)| unit.iter().copied()));
                        most = most.max(there.len());
                    }
                    let operator = &graph.operators[*at as usize];
                    for input in operator.inputs.iter().filter(|input| input.needs == Needs::Data) {
                        assert!(weights.get(&input.tensor).is_none_or(|weight| there.contains(weight)));
                    }
                    for gradient in operator.outputs.iter().filter_map(|output| gradients.get(output)) {
                        assert!(made.contains(gradient) && !reduced.contains(gradient), "gradient {gradient}");
                    }
                    for freed in units.frees.get(&position).into_iter().flatten() {
                        assert!(there.remove(freed), "weight {freed} is freed once");
                    }
                    for gradient in units.reduces.get(&position).into_iter().flatten() {
                        assert!(reduced.insert(*gradient), "gradient {gradient} is reduced once");
                    }
                }
                assert_eq!((next, there.len()), (units.gathers.len(), 0));
                // A layer has nine weights. In F a tied table stays; the backward of the embedding needs none.
                assert_eq!(most, if tied && !has_gradients { 19 } else { 18 });
                let layers = graph.operators.iter().filter_map(|operator| operator.layer).max().expect("layers") + 1;
                assert_eq!(units.gathers.len(), layers as usize + if has_gradients { 1 } else { 2 });
                let all: BTreeSet<usize> = gradients.values().copied().collect();
                assert_eq!(reduced, if has_gradients { all } else { BTreeSet::new() });
            }
        }
    }

    /// Two members, weights of 3 and of 2 elements: the shares of the first one, then those of the other.
    #[test]
    fn shares_of_members_make_whole_weights() {
        let share = Share { member: 0, members: 2 };
        let gathered = of_members(&[1.0f32, 2.0, 10.0, 3.0, 20.0], &[(3, share), (2, share)]);
        assert_eq!(gathered, [vec![1.0, 2.0, 3.0], vec![10.0, 20.0]]);
    }
}
