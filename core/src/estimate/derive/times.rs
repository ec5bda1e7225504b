//! Times of operators and jobs: by the roofline, or by a measured profile.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::graphs::graph_of;
use super::slices;
use crate::base::units::{Bytes, Nanos};
use crate::estimate::step;
use crate::graph::layout::Dispatch;
use crate::graph::{Graph, Job, Operator, Role, Stream, TensorId};
use crate::hardware::cost::{self, JobTimes, Peers};
use crate::hardware::profile::Coverage;
use crate::model::{Experts, StageLayout};
use crate::problem::factors::{Factors, MAX_PERMILLE, USUAL_PERMILLE};
use crate::spec::ModelWork;

/// Memory of the device's libraries on each rank, where the device has been measured.
pub(super) fn workspace_bytes(work: &ModelWork) -> Bytes {
    work.profile.as_ref().map_or(0, |profile| profile.workspace_bytes)
}

/// The time of each operator of `graph`. With slices, of the average slice.
pub(super) fn operator_times(graph: &Graph, work: &ModelWork) -> Vec<Nanos> {
    let own = own_operator_times(graph, work);
    if work.layout.slices > 1 { slices::average(graph, work, &own) } else { own }
}

/// The time of each operator of `graph` on its own tokens: by the roofline, or from a profile.
pub(super) fn own_operator_times(graph: &Graph, work: &ModelWork) -> Vec<Nanos> {
    let (device, peers) = (&work.device, peers(work));
    match &work.profile {
        Some(profile) => profile.operator_times(graph, device, &peers),
        None => cost::operator_times(graph, device, &peers),
    }
}

/// How many operators of a layer, the embedding and the head the profile of `work` knows; none without a profile.
/// These have every kind of operator.
pub fn coverage(work: &ModelWork) -> Option<Coverage> {
    let profile = work.profile.as_ref()?;
    let epilogue =
        StageLayout { layers: 0..1.min(work.model.layers), embedding: true, head: true, ..StageLayout::default() };
    Some(profile.covers(&graph_of(work, &epilogue), &work.device, &peers(work)))
}

/// Times of a stage's jobs. With ZeRO 3 they include the waits for gathered weights.
pub(super) fn job_times(graph: &Graph, work: &ModelWork) -> JobTimes {
    job_times_of(graph, work, &operator_times(graph, work))
}

/// As [`job_times`], where operators take `of_operators`.
pub(super) fn job_times_of(graph: &Graph, work: &ModelWork, of_operators: &[Nanos]) -> JobTimes {
    let mut times = JobTimes::of_times(graph, of_operators);
    if !work.layout.overlap_exchanges {
        times.exchanges = [0; 2];
    }
    if work.layout.zero >= 3 && work.layout.copies() > 1 {
        let [forward, input, weight] = gather_waits(graph, of_operators, work);
        times
            .jobs
            .iter_mut()
            .zip([forward, input, weight])
            .for_each(|(time, wait)| *time = time.saturating_add(wait));
        times.fused = times.fused.saturating_add(input).saturating_add(weight);
    }
    times
}

/// The factors of jobs that take `times` where the stage says `all`.
pub(super) fn shares(times: [Nanos; 3], all: [Nanos; 3]) -> Factors {
    let permille = |at: usize| match all[at] {
        0 => USUAL_PERMILLE,
        all => (u128::from(times[at]) * 1000).div_ceil(all.into()).clamp(1, MAX_PERMILLE.into()) as u32,
    };
    let [forward, backward_input, backward_weight] = [0, 1, 2].map(permille);
    Factors { forward, backward_input, backward_weight, ..Factors::default() }
}

/// The waits of F, B and W for sharded weights (ZeRO 3, arXiv:1910.02054 §5.3). Every job gathers the weights of each
/// layer: the first layer's before it computes, and each further layer's while the layer before it computes.
/// `StaticBytes::gathered` counts these two layers. What computes beside a gather is slowed by it ([`cost::slowed_by`]).
fn gather_waits(graph: &Graph, times: &[Nanos], work: &ModelWork) -> [Nanos; 3] {
    let copies = step::copies_of(work);
    Job::ALL.map(|job| {
        let of_job = graph.operators.iter().zip(times).filter(|(operator, _)| operator.job == job);
        let operators: Vec<(&Operator, &Nanos)> = of_job.collect();
        let (mut waits, mut computes): (Nanos, Nanos) = (0, 0);
        for layer in operators.chunk_by(|(one, _), (next, _)| one.layer == next.layer) {
            let weights: BTreeSet<TensorId> = layer
                .iter()
                .flat_map(|(operator, _)| operator.inputs.iter().map(|input| input.tensor))
                .filter(|tensor| matches!(graph[*tensor].role, Role::Weight { .. }))
                .collect();
            let bytes = |wanted: bool| {
                let of_kind = |tensor: &&TensorId| graph[**tensor].expert_ways().is_some() == wanted;
                weights.iter().filter(of_kind).fold(0, |sum: u64, id| sum.saturating_add(graph[*id].bytes()))
            };
            let [dense, experts] = &copies;
            let gather = dense.gather(bytes(false)).saturating_add(experts.gather(bytes(true)));
            let slowed = cost::slowed_by(gather.min(computes));
            waits = waits.saturating_add(gather.saturating_sub(computes)).saturating_add(slowed);
            let of_compute = layer.iter().filter(|(operator, _)| operator.stream != Stream::Copies);
            computes = of_compute.fold(0, |sum: Nanos, (_, time)| sum.saturating_add(**time));
        }
        waits
    })
}

/// The links between the devices of one rank.
pub(super) fn peers(work: &ModelWork) -> Peers {
    let (form, nodes) = (work.layout.form, work.nodes());
    let [tensor, context, expert] = [form.tensor, form.context, form.expert].map(|ways| u64::from(ways.max(1)));
    let apart = u64::from(form.expert_ways());
    let by_node = work.model.variant.experts.filter(|_| work.layout.dispatch == Dispatch::OncePerNode);
    Peers {
        tensor: nodes.in_rings(tensor, 1),
        context: nodes.in_turn(context, tensor),
        expert: match by_node {
            Some(Experts { active, routing, .. }) => {
                let groups = (routing.active_groups, routing.groups);
                nodes.in_exchange_by_node(expert, apart, active.into(), groups)
            }
            None => nodes.in_exchange(expert, apart),
        },
    }
}
