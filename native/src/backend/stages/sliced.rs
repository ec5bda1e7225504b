//! Sequences that go through a stage in slices: which keys and values the attention of a slice sees besides its own,
//! and where their gradients add up.
//!
//! - In: the operators of a stage, and which slice an op is of.
//! - Out: the keys and values of the slices before it, and sums for the gradients of those.
//! - Knows: which tensors of F a backward reads again. Those stay where they are; of others a copy stays until the slice's own
//!   backward, which is the last to need it. Sums are there from the backward of the last slice to the slice's own.

use std::collections::{BTreeMap, BTreeSet};

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Graph, Job, Kernel, Operator, TensorId};
use pipeplan_core::hardware::cost::keys_and_values;
use pipeplan_core::model::ModelConfig;
use pipeplan_core::problem::op::{Op, OpKind};

use super::processor::Processor;
use crate::backend::arena::Lane;
use crate::backend::{BackendError, Kind, Meter};

/// How sequences are cut.
#[derive(Clone, Copy, Debug)]
pub struct Slicing {
    /// Slices of a sequence.
    pub slices: u32,
    /// Tokens of a whole sequence.
    pub sequence: u32,
    /// The model, for the windows of its layers.
    pub model: ModelConfig,
}

/// What the attention of a slice sees and makes besides its own.
pub struct Slice<'a, D> {
    /// Keys and values of the slices before it, in order.
    pub before: Vec<[&'a D; 2]>,
    /// Tokens that a query sees, itself included.
    pub window: u64,
    /// In a gradient: the sums of those of keys and values of the slices before it.
    pub gradients: Vec<[D; 2]>,
    /// And what later slices have added to its own.
    pub own: Option<[D; 2]>,
}

/// The attention of a layer.
#[derive(Debug)]
struct Site {
    /// Keys and values, as F has them.
    tensors: [TensorId; 2],
    /// Which of these no backward reads, so that a copy stays.
    copied: [bool; 2],
    window: u64,
}

/// What slices of a stage hold for each other. All is by attention of F, in order.
pub(super) struct Slices<D> {
    slices: u32,
    tokens: u64,
    sites: Vec<Site>,
    /// By operator, whose attention it is.
    of_operator: BTreeMap<usize, usize>,
    /// By microbatch: copies of keys and values.
    copies: BTreeMap<u32, BTreeMap<usize, [Option<D>; 2]>>,
    /// By microbatch: sums of gradients, but for those that are lent.
    gradients: BTreeMap<u32, BTreeMap<usize, [D; 2]>>,
}

impl<D> Slices<D> {
    /// Of `graph`, whose sequences are cut as `slicing` says; nothing for whole ones.
    pub(super) fn of(graph: &Graph, slicing: Option<&Slicing>) -> Option<Slices<D>> {
        let Slicing { slices, sequence, model } = slicing.filter(|slicing| slicing.slices > 1)?;
        let whole = u64::from(*sequence);
        let backward = [Job::B, Job::W].into_iter().flat_map(|job| graph.job(job));
        let read_again: BTreeSet<TensorId> =
            backward.flat_map(|operator| &operator.inputs).map(|input| input.tensor).collect();
        let (mut sites, mut by_layer, mut of_operator) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let tensors = |operator: &Operator| match keys_and_values(operator)? {
            [keys, values] => Some([keys.tensor, values.tensor]),
            _ => None,
        };
        for (at, operator) in graph.operators.iter().enumerate() {
            let Some(tensors) = tensors(operator) else { continue };
            if operator.job == Job::F {
                by_layer.insert(operator.layer, sites.len());
                let window = operator.layer.map_or(whole, |layer| model.looks_back(layer, whole));
                let copied = tensors.map(|tensor| !read_again.contains(&tensor));
                sites.push(Site { tensors, copied, window });
            }
            if let Some(site) = by_layer.get(&operator.layer) {
                of_operator.insert(at, *site);
            }
        }
        let (copies, gradients) = Default::default();
        Some(Slices { slices: *slices, tokens: whole / u64::from(*slices), sites, of_operator, copies, gradients })
    }

    /// The position of the first token of the slice `microbatch`, and all positions.
    pub(super) fn positions(&self, microbatch: u32) -> [u64; 2] {
        [u64::from(microbatch % self.slices) * self.tokens, u64::from(self.slices) * self.tokens]
    }

    /// The slices before `microbatch` of the same sequences.
    fn before(&self, microbatch: u32) -> std::ops::Range<u32> {
        microbatch - microbatch % self.slices..microbatch
    }

    /// Bytes of the keys and values of one slice.
    fn bytes(&self, graph: &Graph) -> Bytes {
        self.sites.iter().flat_map(|site| site.tensors).map(|tensor| graph[tensor].bytes()).sum()
    }

    /// Has sums there where `op` is the first backward of its sequences.
    pub(super) fn begin<P: Processor<Data = D>>(
        &mut self,
        op: Op,
        graph: &Graph,
        processor: &mut P,
        meter: &mut Meter,
    ) -> Result<(), BackendError> {
        let microbatch = op.microbatch() as u32;
        if !op.kind().makes_input_gradient() || microbatch % self.slices + 1 < self.slices {
            return Ok(());
        }
        for slice in self.before(microbatch) {
            meter.take(Kind::Activation, self.bytes(graph));
            let mut sums = BTreeMap::new();
            for (number, site) in self.sites.iter().enumerate() {
                let [keys, values] =
                    site.tensors.map(|tensor| processor.allocate(&graph[tensor], false).map_err(Into::into));
                sums.insert(number, [keys?, values?]);
            }
            self.gradients.insert(slice, sums);
        }
        Ok(())
    }

    /// What the operator at `at`, `operator`, of `op` sees and adds to, where it attends; an error without it where
    /// something is not there. `lanes` are those of all microbatches but its own.
    pub(super) fn lend<'a>(
        &'a mut self,
        op: Op,
        (at, operator): (usize, &Operator),
        lanes: &'a BTreeMap<u32, Lane<D>>,
    ) -> Result<Option<Slice<'a, D>>, BackendError> {
        let Some(number) = self.of_operator.get(&at).copied() else { return Ok(None) };
        let microbatch = op.microbatch() as u32;
        let earlier = self.before(microbatch);
        let Slices { sites, copies, gradients, .. } = self;
        let (site, copies) = (&sites[number], &*copies);
        let missing = || BackendError::OutOfOrder { op };
        let mut before = Vec::new();
        for slice in earlier.clone() {
            let found = |of: usize| match site.copied[of] {
                true => copies.get(&slice)?.get(&number)?[of].as_ref(),
                false => lanes.get(&slice)?.get(site.tensors[of]),
            };
            let (keys, values) = found(0).zip(found(1)).ok_or_else(missing)?;
            before.push([keys, values]);
        }
        let mut take = |slice: u32| gradients.get_mut(&slice)?.remove(&number);
        let (sums, own) = match is_gradient(operator) {
            true => {
                (earlier.map(|slice| take(slice).ok_or_else(missing)).collect::<Result<_, _>>()?, take(microbatch))
            }
            false => (Vec::new(), None),
        };
        Ok(Some(Slice { before, window: site.window, gradients: sums, own }))
    }

    /// Takes back the sums that were lent to the operator at `at` of `op`.
    pub(super) fn give_back(&mut self, op: Op, at: usize, sums: Vec<[D; 2]>) {
        let (Some(number), microbatch) = (self.of_operator.get(&at), op.microbatch() as u32) else { return };
        for (slice, sums) in self.before(microbatch).zip(sums) {
            self.gradients.entry(slice).or_default().insert(*number, sums);
        }
    }

    /// Copies what the operator at `at` of F `op` has attended to and no backward reads.
    pub(super) fn keep<P: Processor<Data = D>>(
        &mut self,
        op: Op,
        at: usize,
        graph: &Graph,
        lane: &Lane<D>,
        processor: &mut P,
        meter: &mut Meter,
    ) -> Result<(), BackendError> {
        let Some(number) = self.of_operator.get(&at).copied().filter(|_| op.kind() == OpKind::F) else {
            return Ok(());
        };
        let Site { tensors, copied, .. } = &self.sites[number];
        let mut copies = [None, None];
        for ((copy, tensor), _) in copies.iter_mut().zip(tensors).zip(copied).filter(|(_, copied)| **copied) {
            let data = lane.get(*tensor).ok_or(BackendError::OutOfOrder { op })?;
            let values = processor.to_host(data, &graph[*tensor]).map_err(Into::into)?;
            *copy = processor.unpack(values, &graph[*tensor]);
            meter.take(Kind::Activation, graph[*tensor].bytes());
        }
        if copies.iter().any(Option::is_some) {
            self.copies.entry(op.microbatch() as u32).or_default().insert(number, copies);
        }
        Ok(())
    }

    /// Forgets what nothing needs behind `op`.
    pub(super) fn end(&mut self, op: Op, graph: &Graph, meter: &mut Meter) {
        if !op.kind().makes_input_gradient() {
            return;
        }
        let microbatch = op.microbatch() as u32;
        for (number, copies) in self.copies.remove(&microbatch).into_iter().flatten() {
            let tensors = self.sites[number].tensors.iter().zip(copies).filter(|(_, copy)| copy.is_some());
            tensors.for_each(|(tensor, _)| meter.give(Kind::Activation, graph[*tensor].bytes()));
        }
        if self.gradients.remove(&microbatch).is_some() {
            meter.give(Kind::Activation, self.bytes(graph));
        }
    }
}

const fn is_gradient(operator: &Operator) -> bool {
    matches!(operator.kernel, Kernel::AttentionGrad(_) | Kernel::SpreadAttentionGrad(_))
}
