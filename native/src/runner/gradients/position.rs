//! Where a rank stands in the world, and the groups of ranks that follow from it.

use pipeplan_core::graph::{Axis, SequencePart};

use crate::backend::{Sharding, Share, WeightSharding, WeightShardings};
use crate::runner::shard::{Shard, ShardOwner};

/// Where a rank of the world stands: on the mesh of the axes pipeline, data, context and tensor, the last of which runs
/// fastest, as Megatron-LM has it (arXiv:2104.04473). So tensor-parallel ranks, which talk most, are neighbours, and
/// those of one pipeline are furthest apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The rank in its pipeline.
    pub rank: usize,
    /// Ranks of a pipeline.
    pub ranks: usize,
    /// The data-parallel replica.
    pub replica: usize,
    /// How many there are.
    pub replicas: usize,
    /// Its number among the context-parallel ranks.
    pub part: usize,
    /// How many hold parts of each.
    pub parts: usize,
    /// Its number among its tensor-parallel group.
    pub member: usize,
    /// How many share them.
    pub members: usize,
    /// Expert-parallel ranks.
    pub experts: usize,
    /// Whether tensor-parallel ranks each route tokens of their own to experts that are not cut.
    pub whole_experts: bool,
    /// What the [copies](Position::copies) shard.
    pub sharding: Sharding,
}

impl Position {
    /// How the rank keeps weights.
    pub fn shardings(self) -> WeightShardings {
        let sharding = |copy, copies| self.sharding.of_weight(self.sharding.share(copy, copies), copies);
        WeightShardings {
            experts: sharding(self.expert_copy(), self.expert_copies()),
            others: sharding(self.copy(), self.copies()),
        }
    }

    /// How it keeps a weight that lies as `shard` says.
    pub fn sharding_of(self, shard: &Shard) -> WeightSharding {
        if shard.experts.is_some() { self.shardings().experts } else { self.shardings().others }
    }

    /// What it holds of the optimizer states of a weight that lies as `shard` says.
    pub fn share_of(self, shard: &Shard) -> Share {
        self.sharding_of(shard).share
    }

    /// Copies of a weight, of experts or of any other, in the world: those of this rank's sharding group, and those
    /// that hold the same share in other groups. Without sharding a group is one rank.
    pub fn sharding_groups(self, of_experts: bool) -> [Vec<usize>; 2] {
        let (all, copy) = match of_experts {
            true => (self.expert_copies_group(), self.expert_copy()),
            false => (self.copies_group(), self.copy()),
        };
        let sharers = self.sharding.sharers(all.len());
        let first = copy / sharers * sharers;
        let across = all.iter().skip(copy % sharers).step_by(sharers).copied().collect();
        [all[first..first + sharers].to_vec(), across]
    }

    /// The part that it holds of each weight.
    pub fn seat(self) -> ShardOwner {
        ShardOwner { member: self.member, dealt: self.router() % self.experts }
    }

    /// Ranks, in the same place of the pipeline, that send other tokens to experts: those of one copy of these follow
    /// each other.
    fn routers(self) -> usize {
        if self.whole_experts { self.copies() * self.members } else { self.copies() }
    }

    /// Its number among those.
    fn router(self) -> usize {
        if self.whole_experts { self.copy() * self.members + self.member } else { self.copy() }
    }

    /// The one of those with this number.
    fn with_router(self, router: usize) -> Position {
        let (copy, member) = match self.whole_experts {
            true => (router / self.members, router % self.members),
            false => (router, self.member),
        };
        Position { replica: copy / self.parts, part: copy % self.parts, member, ..self }
    }

    /// Ranks that hold the same experts.
    pub fn expert_copies(self) -> usize {
        self.routers() / self.experts
    }

    /// Its number among those.
    pub fn expert_copy(self) -> usize {
        self.router() / self.experts
    }

    /// Those, in the world.
    pub(super) fn expert_copies_group(self) -> Vec<usize> {
        let first = self.router() % self.experts;
        (0..self.expert_copies()).map(|copy| self.with_router(copy * self.experts + first).world_rank()).collect()
    }

    /// Ranks that hold the same of every weight and see other tokens: in each replica, each part of its sequences.
    pub fn copies(self) -> usize {
        self.replicas * self.parts
    }

    /// Its number among those.
    pub fn copy(self) -> usize {
        self.replica * self.parts + self.part
    }

    /// This rank in the world.
    pub fn world_rank(self) -> usize {
        self.in_world(self.rank)
    }

    /// The rank in the world that has this one's place in pipeline rank `rank`.
    pub fn in_world(self, rank: usize) -> usize {
        (rank * self.copies() + self.copy()) * self.members + self.member
    }

    /// Which of the pipelines it is in, where each member of each part of each replica is one: those of replica 0
    /// first, and of these those of its first part.
    pub fn pipeline(self) -> usize {
        self.copy() * self.members + self.member
    }

    /// Its row in a trace, which has one pipeline after the other.
    pub fn in_trace(self) -> usize {
        self.pipeline() * self.ranks + self.rank
    }

    /// Which tokens of every sequence it has.
    pub fn sequence_part(self) -> SequencePart {
        SequencePart { part: self.part as u64, parts: self.parts as u64 }
    }

    /// The ranks along `axis` that it acts with, in the world.
    pub fn group(self, axis: Axis) -> Vec<usize> {
        let at = |position: Position| position.world_rank();
        match axis {
            Axis::Tensor => (0..self.members).map(|member| at(Position { member, ..self })).collect(),
            Axis::Context => (0..self.parts).map(|part| at(Position { part, ..self })).collect(),
            Axis::Expert => self.expert_parallel_group().map(at).collect(),
        }
    }

    /// The ranks that a copy of the experts is dealt to, which this one is among.
    fn expert_parallel_group(self) -> impl Iterator<Item = Position> {
        let first = self.expert_copy() * self.experts;
        (first..first + self.experts).map(move |router| self.with_router(router))
    }

    /// The ranks that hold a whole weight together, and this one among them: of experts or, else, any other.
    pub fn whole_weight_group(self, of_experts: bool) -> Vec<Position> {
        let members = |position: Position| {
            let members =
                if of_experts && self.whole_experts { position.member..position.member + 1 } else { 0..self.members };
            members.map(move |member| Position { member, ..position })
        };
        match of_experts {
            true => self.expert_parallel_group().flat_map(members).collect(),
            false => members(self).collect(),
        }
    }

    /// Whether ranks that hold the same of every other weight hold other experts.
    pub fn is_expert_parallel(self) -> bool {
        self.experts > 1 || self.whole_experts
    }

    /// The ranks that hold the same of every weight but experts, in the world: by replica, and then by part.
    pub fn copies_group(self) -> Vec<usize> {
        let parts = |replica| (0..self.parts).map(move |part| Position { replica, part, ..self }.world_rank());
        (0..self.replicas).flat_map(parts).collect()
    }
}
