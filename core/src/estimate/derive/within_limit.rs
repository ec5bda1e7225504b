//! The partition `within-limit`: layers are assigned to stages so that every rank fits its memory limit.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::faults::find_faults;
use super::kinds::{KINDS, kind_of};
use super::stage_costs::Parts;
use super::times::workspace_bytes;
use crate::base::fields::Fault;
use crate::base::units::Nanos;
use crate::estimate::assign::{self, Group, Needs};
use crate::estimate::partition::{self, PartCosts};
use crate::graph::form::Recompute;
use crate::graph::layout::{Partition, RecomputeLayers};
use crate::model::StageLayout;
use crate::problem::placement::Placement;
use crate::spec::ModelWork;

/// How good a partition within the memory limit is. Recomputation does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionQuality {
    /// The time of its slowest stage for a microbatch.
    pub slowest_ns: Nanos,
    /// A lower bound: in every partition within the limit the slowest stage takes at least this long.
    pub bound_ns: Nanos,
}

impl core::fmt::Display for PartitionQuality {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "partition within the memory limit: the slowest stage takes {} ns for each microbatch",
            self.slowest_ns
        )?;
        if self.slowest_ns <= self.bound_ns {
            return f
                .write_str(", the least of all partitions that fit with the usual number of microbatches in flight");
        }
        let beyond = (u128::from(self.slowest_ns - self.bound_ns) * 1000).div_ceil(u128::from(self.bound_ns.max(1)));
        write!(f, ", at most {}.{} % above the best partition that fits", beyond / 10, beyond % 10)
    }
}

impl PartitionQuality {
    fn of(costs: &PartCosts, stages: &[StageLayout], freer: &[StageLayout]) -> PartitionQuality {
        let slowest = |stages: &[StageLayout]| costs.times(stages).into_iter().max().unwrap_or(0);
        PartitionQuality { slowest_ns: slowest(stages), bound_ns: slowest(freer) }
    }
}

/// A moment of a rank: its stages, each with the microbatches whose activations it holds then.
type Moment = Vec<(usize, usize)>;

/// Ranks grouped by their stages, with all moments.
fn groups(moments: &[Vec<Moment>]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for moments in moments {
        let stages: Vec<usize> = moments.first().into_iter().flatten().map(|(stage, _)| *stage).collect();
        let held = moments.iter().map(|moment| moment.iter().map(|(_, count)| *count as u64).collect());
        match groups.iter_mut().find(|group| group.stages == stages) {
            Some(group) => group.moments.extend(held),
            None => groups.push(Group { stages: stages.clone(), moments: held.collect() }),
        }
    }
    groups
}

/// How bad a partition is: excess bytes, the time of the slowest stage, the sum of squares of all times.
type Score = (u64, Nanos, u128);

impl Parts<'_> {
    /// The partition with which every rank fits its limit and that is balanced as far as that allows: the best one,
    /// or a good one where there are too many to find the best.
    pub(super) fn within_limit(
        &mut self,
        placement: &Placement,
        chunks: usize,
    ) -> Result<(Vec<StageLayout>, PartitionQuality), Fault> {
        let ranks = self.work.pipeline as usize;
        // Refuses more stages than layers first: their lists could be too long.
        partition::enough_layers(self.work.model.layers as usize, ranks, chunks)?;
        let (costs, microbatches) = (self.costs(), self.work.microbatches as usize);
        let moments: Vec<Vec<Moment>> = (0..ranks)
            .map(|rank| {
                let mut moments = partition::in_flight(placement, ranks, chunks, microbatches, rank);
                moments.sort_unstable();
                moments.dedup();
                moments
            })
            .collect();
        let limit = self.limit();
        if moments.iter().flatten().all(|moment| moment.len() == 1) {
            let stages = self.alone_within(ranks, chunks, &costs, &moments)?;
            return Ok((stages.clone(), PartitionQuality::of(&costs, &stages, &stages)));
        }
        // With each stage alone on its rank more partitions fit: this gives the bound.
        let freer = self.alone_within(ranks, chunks, &costs, &moments)?;
        let (groups, stages) = (groups(&moments), ranks * chunks);
        let of = |stage: usize, layers: Range<u32>| StageLayout {
            layers,
            embedding: stage == 0,
            head: stage + 1 == stages,
            ..StageLayout::default()
        };
        let time = |stage: usize, layers: Range<u32>| {
            let layers = costs.layers_ns.get(layers.start as usize..layers.end as usize);
            costs.time(stage, stages, layers.unwrap_or_default())
        };
        let kinds = self.kinds();
        let mut needs = |stage: usize, layers: Range<u32>| {
            let part = self.part(&of(stage, layers));
            let each = part.cost.forward_bytes.max(0) as u64;
            Needs { fixed: part.apart.total(), each, workspace: part.workspace() }
        };
        let best = match kinds.windows(2).all(|pair| pair[0] == pair[1]) {
            true => {
                let mut needs = |stage: usize, count: u32| needs(stage, 0..count);
                assign::best(kinds.len() as u32, &groups, limit, &mut needs, &|stage, count| time(stage, 0..count))
            }
            false => Err(assign::Without::TooMany),
        };
        let best = match best {
            Err(assign::Without::TooMany) => {
                let least = costs.times(&freer).into_iter().max().unwrap_or(0);
                assign::kinds::best(&kinds, &groups, limit, &mut needs, &time, least)
            }
            best => best,
        };
        match best {
            Ok(counts) => {
                let stages = partition::from_counts(&counts);
                return Ok((stages.clone(), PartitionQuality::of(&costs, &stages, &stages)));
            }
            Err(assign::Without::NothingFits) => return Err(partition::nothing_fits()),
            Err(assign::Without::TooMany) => {}
        }
        let even = partition::balanced(ranks, chunks, &costs)?;
        let moved = self.moved_within_limit(even, &costs, &moments)?;
        let dealt = PartitionQuality::of(&costs, &moved, &freer);
        Ok((moved, dealt))
    }

    /// The best partition if each stage were alone on its rank.
    fn alone_within(
        &mut self,
        ranks: usize,
        chunks: usize,
        costs: &PartCosts,
        moments: &[Vec<Moment>],
    ) -> Result<Vec<StageLayout>, Fault> {
        let limit = self.limit();
        let mut most_held = vec![0; ranks * chunks];
        for (stage, count) in moments.iter().flatten().flatten() {
            most_held[*stage] = (*count).max(most_held[*stage]);
        }
        let mut fits = |stage: usize, layout: &StageLayout| {
            let (kept, workspace) = self.needs(layout, most_held[stage]);
            kept.saturating_add(workspace) <= limit
        };
        partition::within(ranks, chunks, costs, &mut fits)
    }

    /// A number for each layer; layers with equal numbers need the same of a stage.
    fn kinds(&self) -> Vec<usize> {
        let choice = |layer: u32| match &self.work.layout.recompute_layers {
            RecomputeLayers::Each(choices) => choices.get(layer as usize).copied().unwrap_or_default(),
            _ => Recompute::None,
        };
        (0..self.work.model.layers).map(|layer| kind_of(self.work, layer) + KINDS * choice(layer) as usize).collect()
    }

    /// Local search from `even`: moves one layer at a time. While a rank needs too much, it moves a layer from this
    /// rank to the stage that leaves the least excess; then from the slowest stage to the stage that leaves the
    /// slowest one fastest. Ties go to the smallest sum of squares. Every move is an improvement, so the search ends.
    fn moved_within_limit(
        &mut self,
        even: Vec<StageLayout>,
        costs: &PartCosts,
        moments: &[Vec<Moment>],
    ) -> Result<Vec<StageLayout>, Fault> {
        let mut counts: Vec<u32> = even.iter().map(|stage| stage.layers.end - stage.layers.start).collect();
        let (mut score, mut excess) = self.score(&counts, costs, moments);
        loop {
            let worst = (0..moments.len()).max_by_key(|rank| excess[*rank]).filter(|rank| excess[*rank] > 0);
            let from: Vec<usize> = match worst {
                Some(rank) => moments[rank].first().into_iter().flatten().map(|(stage, _)| *stage).collect(),
                None => {
                    let times = costs.times(&partition::from_counts(&counts));
                    (0..counts.len()).max_by_key(|stage| times[*stage]).into_iter().collect()
                }
            };
            let mut best: Option<(Score, Vec<u32>, Vec<u64>)> = None;
            for from in from.into_iter().filter(|from| counts[*from] > 1) {
                for to in (0..counts.len()).filter(|to| *to != from) {
                    let mut moved = counts.clone();
                    moved[from] -= 1;
                    moved[to] += 1;
                    let (reached, left) = self.score(&moved, costs, moments);
                    if reached < best.as_ref().map_or(score, |(best, ..)| *best) {
                        best = Some((reached, moved, left));
                    }
                }
            }
            match best {
                Some((reached, moved, left)) => (score, counts, excess) = (reached, moved, left),
                None if score.0 == 0 => return Ok(partition::from_counts(&counts)),
                None => return Err(partition::nothing_fits()),
            }
        }
    }

    /// The score of a partition, and the excess bytes of each rank.
    fn score(
        &mut self,
        counts: &[u32],
        costs: &PartCosts,
        moments: &[Vec<Moment>],
    ) -> ((u64, Nanos, u128), Vec<u64>) {
        let (layouts, limit) = (partition::from_counts(counts), self.limit());
        let excess: Vec<u64> = moments
            .iter()
            .map(|moments| {
                let mut most = 0;
                for moment in moments {
                    let (mut kept, mut workspace): (u64, u64) = (0, 0);
                    for (stage, count) in moment {
                        let (more, needed) = self.needs(&layouts[*stage], *count);
                        (kept, workspace) = (kept.saturating_add(more), workspace.max(needed));
                    }
                    most = most.max(kept.saturating_add(workspace).saturating_sub(limit));
                }
                most
            })
            .collect();
        let times = costs.times(&layouts);
        let squares =
            times.iter().fold(0, |sum: u128, time| sum.saturating_add(u128::from(*time) * u128::from(*time)));
        let sum = excess.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        ((sum, times.into_iter().max().unwrap_or(0), squares), excess)
    }

    /// Bytes that a rank may use, without the framework's overhead and workspace.
    fn limit(&self) -> u64 {
        let limit = self.work.limit_bytes.unwrap_or(self.work.device.memory_bytes);
        limit.saturating_sub(self.work.layout.overhead_bytes).saturating_sub(workspace_bytes(self.work))
    }

    /// Bytes that a stage holds with this many microbatches in flight, and bytes that an op needs while it runs; all
    /// neighbours on other ranks, without the framework.
    fn needs(&mut self, layout: &StageLayout, in_flight: usize) -> (u64, u64) {
        let part = self.part(layout);
        let kept = (part.cost.forward_bytes.max(0) as u64).saturating_mul(in_flight as u64);
        (part.apart.total().saturating_add(kept), part.workspace())
    }
}

/// The layers of each stage of `work` as `derive` assigns them, where that depends on the memory limit.
pub(crate) fn dealt_within_limit(
    work: &ModelWork,
    placement: &Placement,
    chunks: usize,
) -> Option<(Vec<u32>, PartitionQuality)> {
    let mut faults = Vec::new();
    find_faults(work, chunks, &mut faults);
    if work.layout.partition != Partition::WithinLimit || !faults.is_empty() {
        return None;
    }
    let mut parts = Parts { work, known: BTreeMap::new() };
    let (stages, dealt) = parts.within_limit(placement, chunks).ok()?;
    Some((stages.iter().map(|stage| stage.layers.end - stage.layers.start).collect(), dealt))
}
