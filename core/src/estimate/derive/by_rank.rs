//! What each rank holds throughout a step, and what ends its step.

use alloc::vec;
use alloc::vec::Vec;

use super::stage_costs::Part;
use super::times::workspace_bytes;
use super::transfers::link_between;
use crate::base::units::Bytes;
use crate::estimate::memory::StaticBytes;
use crate::estimate::step::{self, RankEpilogue};
use crate::problem::placement::Placement;
use crate::spec::ModelWork;

/// The epilogue of each rank. A bidirectional placement has two replicas of each stage, each for half of the
/// microbatches: a rank's epilogue is that of both of its stages, and their gradients are summed with the rank at the
/// other end. An embedding table of the first and the last stage is summed between their ranks; where MTP modules apart
/// from the head have copies, over the ranks of all.
pub(super) fn tails_by_rank(
    work: &ModelWork,
    placement: &Placement,
    chunks: usize,
    parts: &[Part],
) -> Vec<RankEpilogue> {
    let ranks = work.pipeline as usize;
    let rank_of_stage = placement.ranks(ranks, chunks);
    let two_way = *placement == Placement::Bidirectional;
    let mut whole = vec![(StaticBytes::default(), StaticBytes::default()); ranks];
    // By rank: bytes of gradients that another rank has, too.
    let mut elsewhere: Vec<Bytes> = vec![0; ranks];
    // The ranks that have a table, in order of stages.
    let mut holders: Vec<usize> = Vec::new();
    for (rank, _) in rank_of_stage.iter().zip(parts).filter(|(_, part)| part.tables > 0) {
        let rank = usize::from(*rank);
        if !holders.contains(&rank) {
            holders.push(rank);
        }
    }
    for (stage, part) in parts.iter().enumerate() {
        let rank = usize::from(rank_of_stage[stage]);
        let mirrored = two_way.then(|| ranks - 1 - rank);
        let gradients = part.whole.0.gradients.saturating_add(part.whole.1.gradients);
        for rank in core::iter::once(rank).chain(mirrored) {
            whole[rank] = (whole[rank].0.plus(&part.whole.0), whole[rank].1.plus(&part.whole.1));
            let summed = match two_way {
                // A table in both stages of a rank counts once.
                true if stage == 0 => gradients.saturating_sub(part.tables),
                true => gradients,
                false if holders.len() > 1 => part.tables,
                false => 0,
            };
            elsewhere[rank] = elsewhere[rank].saturating_add(summed);
        }
    }
    let tail = |(rank, (dense, experts)): (usize, &(StaticBytes, StaticBytes))| {
        let (first, last) = (holders.first().copied().unwrap_or(rank), holders.last().copied().unwrap_or(rank));
        let (other, members) = match two_way {
            true => (ranks - 1 - rank, 2),
            false if rank == first => (last, holders.len().max(1) as u64),
            false => (first, holders.len().max(1) as u64),
        };
        let tail = step::tail(work, dense, experts);
        let between = step::sum_between(work, elsewhere[rank], members, &link_between(work, rank, other));
        RankEpilogue { reduce_ns: tail.reduce_ns.saturating_add(between), ..tail }
    };
    whole.iter().enumerate().map(tail).collect()
}

/// Bytes that each rank holds throughout the step.
pub(super) fn static_by_rank(
    work: &ModelWork,
    placement: &Placement,
    chunks: usize,
    parts: &[Part],
) -> Vec<StaticBytes> {
    let ranks = work.pipeline as usize;
    let rank_of_stage = placement.ranks(ranks, chunks);
    let (overhead, workspace) = (work.layout.overhead_bytes, workspace_bytes(work));
    let mut by_rank = vec![StaticBytes { overhead, workspace, ..StaticBytes::default() }; ranks];
    for (stage, part) in parts.iter().enumerate() {
        let rank = rank_of_stage[stage];
        let bytes = if rank_of_stage.get(stage + 1) == Some(&rank) { &part.before_own } else { &part.apart };
        let rank = usize::from(rank);
        // Each of several chunks may take all slices of a sequence before the next chunk or rank has taken them.
        let waiting = if chunks > 1 { u64::from(work.layout.slices.max(1)) } else { 1 };
        let bytes = &StaticBytes { buffers: bytes.buffers.saturating_mul(waiting), ..*bytes };
        by_rank[rank] = by_rank[rank].plus(bytes);
        if *placement == Placement::Bidirectional {
            let mirrored = ranks - 1 - rank;
            by_rank[mirrored] = by_rank[mirrored].plus(bytes);
        }
    }
    by_rank
}
