//! Which ranks hold which weights.

use std::collections::BTreeMap;

use pipeplan_core::graph::Graph;
use pipeplan_core::problem::Problem;
use pipeplan_core::problem::placement::Placement;

use crate::runner::shard::Shard;

/// Where each weight lies, by name.
pub type Places = BTreeMap<String, Placed>;

/// Where a weight lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Rank of the pipeline and stage, by rank and then by stage. The first place is its owner.
    pub at: Vec<(usize, u16)>,
    /// What of it each of the tensor-parallel ranks holds there.
    pub shard: Shard,
}

/// Where the weights of `graphs`, one for each stage of `problem`, lie.
pub fn places(problem: &Problem, graphs: &[Graph]) -> Places {
    let mut places = Places::new();
    for rank in 0..problem.ranks() {
        for stage in stages_held(problem, rank) {
            for (_, tensor) in graphs.get(stage).into_iter().flat_map(Graph::weights) {
                let new = || Placed { at: Vec::new(), shard: Shard::of(tensor) };
                places.entry(tensor.name.clone()).or_insert_with(new).at.push((rank, stage as u16));
            }
        }
    }
    places
}

/// The stages of which `rank` holds the weights, in model order: in a bidirectional placement also those of the rank at
/// the other end, for the microbatches that come from there.
pub fn stages_held(problem: &Problem, rank: usize) -> Vec<usize> {
    let mut stages = problem.stages_of(rank).to_vec();
    if *problem.placement() == Placement::Bidirectional {
        stages.extend(problem.stages_of(problem.ranks() - 1 - rank));
    }
    stages.sort_unstable();
    stages.dedup();
    stages
}

/// Whether pipeline rank `rank` holds a weight in more than one of its stages, whose gradients it adds up by copies.
#[cfg(feature = "cuda")]
pub fn has_copies(places: &Places, rank: usize) -> bool {
    places.values().any(|placed| placed.at.iter().filter(|(at, _)| *at == rank).count() > 1)
}
