//! P2P transfers between ranks: bytes of a boundary, hop times, and buffers of transfers that are received ahead.

use alloc::collections::BTreeMap;

use super::Derived;
use crate::base::units::Bytes;
use crate::hardware::cluster::Link;
use crate::model::StageLayout;
use crate::problem::Transfers;
use crate::problem::placement::Placement;
use crate::spec::ModelWork;

/// Bytes that one device of a rank sends for a microbatch, or a slice of it: an activation or its gradient, of one stream.
fn boundary_bytes(work: &ModelWork) -> Bytes {
    let sequence = work.sequence / work.layout.slices.max(1);
    let tokens = u64::from(work.microbatch_size).saturating_mul(sequence.into());
    let form = work.layout.form;
    let tokens = tokens.div_ceil(form.context.max(1).into());
    let tokens = if form.sequence_parallel { tokens.div_ceil(form.tensor.max(1).into()) } else { tokens };
    tokens.saturating_mul(work.model.hidden.into()).saturating_mul(work.dtype.bytes())
}

/// Hop times from the bytes of a boundary. Every device sends its part to its counterpart on the next rank. Behind MTP
/// modules apart from the head it sends their streams too. A problem has one time for each pair of ranks: where several
/// boundaries lie between two, that of the widest one.
pub(super) fn transfers(work: &ModelWork, stages: &[StageLayout], placement: &Placement, chunks: usize) -> Transfers {
    let bytes = boundary_bytes(work);
    let ranks = work.pipeline as usize;
    let wider = wider_hops(stages, placement, ranks, chunks);
    let hop = |from: usize, to: usize| {
        let bytes = bytes.saturating_mul(wider.get(&(from, to)).copied().unwrap_or(1));
        if from == to { 0 } else { link_between(work, from, to).time(bytes) }
    };
    let per_node = ranks_per_node(work);
    let is_uniform = work.link.time(bytes) == work.node_link.time(bytes) || ranks <= per_node || per_node == 1;
    if is_uniform && wider.is_empty() {
        return Transfers::Uniform(hop(0, 1));
    }
    Transfers::Links((0..ranks).map(|from| (0..ranks).map(|to| hop(from, to)).collect()).collect())
}

/// Streams of the widest boundary between two ranks, either way, where it has more than the model's own.
fn wider_hops(
    stages: &[StageLayout],
    placement: &Placement,
    ranks: usize,
    chunks: usize,
) -> BTreeMap<(usize, usize), u64> {
    let mut wider = BTreeMap::new();
    if stages.iter().all(|stage| stage.head || stage.modules.streams_after() == 1) {
        return wider;
    }
    let two_way = *placement == Placement::Bidirectional;
    for (stage, pair) in stages.iter().zip(placement.ranks(ranks, chunks).windows(2)) {
        let streams = u64::from(stage.modules.streams_after());
        let [below, above] = [pair[0], pair[1]].map(usize::from);
        let mirrored = (two_way && below.max(above) < ranks).then(|| (ranks - 1 - below, ranks - 1 - above));
        for (below, above) in core::iter::once((below, above)).chain(mirrored).filter(|_| streams > 1) {
            for ends in [(below, above), (above, below)] {
                let widest = wider.entry(ends).or_insert(1);
                *widest = streams.max(*widest);
            }
        }
    }
    wider
}

/// Ranks in a node, at least one. Ranks fill nodes in order, each with all of its devices.
fn ranks_per_node(work: &ModelWork) -> usize {
    let per_node = u64::from(work.devices_per_node) / work.layout.devices_per_rank();
    per_node.max(1) as usize
}

/// The link between the devices of two ranks. Where one rank fills a node, every hop leaves the node.
pub(super) fn link_between(work: &ModelWork, from: usize, to: usize) -> Link {
    let per_node = ranks_per_node(work);
    if from / per_node == to / per_node { work.link } else { work.node_link }
}

impl Derived {
    /// Counts the buffers of transfers that are received ahead: `prefetch` boundary tensors for each link on which a
    /// rank receives, but no more than the link's transfers in a step. The op counts transfers that are received just
    /// before it.
    pub(crate) fn add_prefetch(&mut self, work: &ModelWork, placement: &Placement, prefetch: usize) {
        let (ranks, microbatches) = (self.statement.ranks, self.statement.microbatches);
        let rank_of_stage = placement.ranks(ranks, self.statement.chunks);
        let two_way = *placement == Placement::Bidirectional;
        // Transfers of a step, by receiver and sender.
        let mut links: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let wider = wider_hops(&self.stages, placement, ranks, self.statement.chunks);
        for pair in rank_of_stage.windows(2) {
            let [below, above] = [pair[0], pair[1]].map(usize::from);
            let mirrored = two_way.then(|| (ranks - 1 - below, ranks - 1 - above));
            for (below, above) in core::iter::once((below, above)).chain(mirrored) {
                if below != above {
                    let share = if two_way { microbatches.div_ceil(2) } else { microbatches };
                    *links.entry((above, below)).or_default() += share;
                    *links.entry((below, above)).or_default() += share;
                }
            }
        }
        for ((receiver, sender), messages) in links {
            let streams = wider.get(&(receiver, sender)).copied().unwrap_or(1);
            let bytes = boundary_bytes(work).saturating_mul(streams).saturating_mul(prefetch.min(messages) as u64);
            let held = &mut self.static_bytes[receiver];
            held.buffers = held.buffers.saturating_add(bytes);
            self.statement.static_bytes[receiver] = held.total();
        }
    }
}
