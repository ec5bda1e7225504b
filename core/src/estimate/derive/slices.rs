//! What slices of sequences take.
//!
//! The graph is that of the first slice, whose tokens see only each other. A slice behind others also reads their
//! keys and values, so its operators that attend take longer ([`cost::slice_time`]); all others take the same. Keys
//! and values of a slice stay until its own backward, which is the last to need them. Most of them stay for that
//! backward anyway; where layers are recomputed, they stay besides. Their gradients add up from the backward of the
//! last slice to their own.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::graphs::graph_of;
use super::kinds::kinds_of;
use super::times::{job_times_of, operator_times, own_operator_times, peers, shares};
use crate::base::units::{ByteDelta, Bytes, Nanos};
use crate::graph::{Graph, Job, Operator, TensorId};
use crate::hardware::cost;
use crate::model::StageLayout;
use crate::problem::StageCost;
use crate::problem::factors::{Factors, MicrobatchFactors};
use crate::spec::ModelWork;

/// The times of the average slice, where those of the first one are `own`.
pub(super) fn average(graph: &Graph, work: &ModelWork, own: &[Nanos]) -> Vec<Nanos> {
    let slices = u64::from(work.layout.slices);
    let mut sums = alloc::vec![0; own.len()];
    let firsts = times_of(graph, work, 0);
    for before in 0..slices {
        let of_slice = of_slice(graph, work, (own, &firsts), before);
        sums.iter_mut().zip(of_slice).for_each(|(sum, time): (&mut Nanos, _)| *sum = sum.saturating_add(time));
    }
    sums.into_iter().map(|sum| sum.div_ceil(slices)).collect()
}

/// By operator, what the roofline says of the slice behind `before` others; none of one that takes the same in all
/// slices.
fn times_of(graph: &Graph, work: &ModelWork, before: u64) -> Vec<Option<Nanos>> {
    let (sequence, peers) = (u64::from(work.sequence), peers(work));
    let of = |operator: &Operator| {
        let window = operator.layer.map_or(sequence, |layer| work.model.looks_back(layer, sequence));
        cost::slice_time(graph, operator, [before, window], &work.device, &peers)
    };
    graph.operators.iter().map(of).collect()
}

/// The times of the slice behind `before` others, where those of the first one are `own`, and `firsts` by the roofline.
fn of_slice(graph: &Graph, work: &ModelWork, (own, firsts): (&[Nanos], &[Option<Nanos>]), before: u64) -> Vec<Nanos> {
    let of = |((own, first), time): ((&Nanos, &Option<Nanos>), Option<Nanos>)| match (time, first) {
        (Some(time), Some(first)) => {
            let time = (u128::from(*own) * u128::from(time)).div_ceil(u128::from((*first).max(1)));
            Nanos::try_from(time).unwrap_or(Nanos::MAX)
        }
        _ => *own,
    };
    own.iter().zip(firsts).zip(times_of(graph, work, before)).map(of).collect()
}

/// What each slice takes of the average one.
pub(super) fn factors(work: &ModelWork, stages: &[StageLayout]) -> Option<MicrobatchFactors> {
    let of_kind = |layout: &&StageLayout| -> Vec<Factors> {
        let graph = graph_of(work, layout);
        let all = job_times_of(&graph, work, &operator_times(&graph, work)).jobs;
        let own = own_operator_times(&graph, work);
        let firsts = times_of(&graph, work, 0);
        let times = |before| job_times_of(&graph, work, &of_slice(&graph, work, (&own, &firsts), before)).jobs;
        (0..work.layout.slices.into()).map(|before| shares(times(before), all)).collect()
    };
    let (kinds, of_stage) = kinds_of(work, stages);
    let by_kind: Vec<Vec<Factors>> = kinds.iter().map(of_kind).collect();
    let slices = || 0..work.layout.slices as usize;
    let of_sequence = || slices().flat_map(|slice| of_stage.iter().map(move |kind| (*kind, slice)));
    let of = (0..work.microbatches).flat_map(|_| of_sequence()).map(|(kind, slice)| by_kind[kind][slice]).collect();
    MicrobatchFactors::of_stages(stages.len(), of).filter(|factors| !factors.are_usual())
}

/// The cost of a stage with the keys and values that later slices read, and their gradients.
pub(super) fn with_keys_and_values(graph: &Graph, cost: StageCost) -> StageCost {
    let jobs = [Job::B, Job::W].map(|job| graph.job(job));
    let read_again: BTreeSet<TensorId> =
        jobs.into_iter().flatten().flat_map(|operator| &operator.inputs).map(|input| input.tensor).collect();
    let attended = graph.job(Job::F).filter_map(cost::keys_and_values).flatten();
    let tensors: BTreeSet<TensorId> = attended.map(|input| input.tensor).collect();
    let bytes = |tensors: &mut dyn Iterator<Item = &TensorId>| {
        tensors.fold(0, |sum: Bytes, tensor| sum.saturating_add(graph[*tensor].bytes()))
    };
    let kept = bytes(&mut tensors.iter().filter(|tensor| !read_again.contains(tensor)));
    let kept = ByteDelta::try_from(kept).unwrap_or(ByteDelta::MAX);
    // They go at the end of the backward, so what it holds at its most stays.
    let still = |net: ByteDelta| (net.max(0) - net.saturating_sub(kept).max(0)).unsigned_abs();
    let whole = cost.backward_input_bytes.saturating_add(cost.backward_weight_bytes);
    StageCost {
        forward_bytes: cost.forward_bytes.saturating_add(kept),
        backward_input_bytes: cost.backward_input_bytes.saturating_sub(kept),
        backward_input_workspace_bytes: cost
            .backward_input_workspace_bytes
            .saturating_add(still(cost.backward_input_bytes)),
        backward_workspace_bytes: cost.backward_workspace_bytes.map(|bytes| bytes.saturating_add(still(whole))),
        slice_gradient_bytes: bytes(&mut tensors.iter()),
        ..cost
    }
}
