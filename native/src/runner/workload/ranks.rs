//! Where each rank stands: its stage, its copy, its part of sequences and matrices.

use std::collections::BTreeSet;

use pipeplan_core::program::{Step, Way};

use super::{Computation, ModelStages, Staged, Workload};
use crate::backend::Sharding;
use crate::mesh::{Mesh, MeshError};
use crate::runner::gradients::{Places, Position, places};

/// Most ranks of a run: every two of them have a mailbox for each other.
pub(super) const MAX_WORLD: usize = 1024;

impl Workload {
    /// Data-parallel replicas.
    pub fn replicas(&self) -> usize {
        match &self.computation {
            Computation::Model(ModelStages { replicas, .. })
            | Computation::Stages(Staged { replicas, .. })
            | Computation::PlannedTimes { replicas, .. } => (*replicas).max(1) as usize,
        }
    }

    /// Ranks that share each matrix of a stage. Where ops only wait, one rank stands for all of them.
    pub fn members(&self) -> usize {
        match &self.computation {
            Computation::Model(model) => model.tensor.max(1) as usize,
            Computation::Stages(_) | Computation::PlannedTimes { .. } => 1,
        }
    }

    /// Context-parallel ranks. Where ops only wait, one rank stands for all of them.
    pub fn parts(&self) -> usize {
        match &self.computation {
            Computation::Model(model) => model.context.max(1) as usize,
            Computation::Stages(_) | Computation::PlannedTimes { .. } => 1,
        }
    }

    /// Expert-parallel ranks. Where ops only wait, one rank stands for all of them.
    pub fn experts(&self) -> usize {
        match &self.computation {
            Computation::Model(model) => model.expert.max(1) as usize,
            Computation::Stages(_) | Computation::PlannedTimes { .. } => 1,
        }
    }

    /// Ranks that make one rank of one pipeline together.
    pub(super) fn devices_per_rank(&self) -> usize {
        self.parts().saturating_mul(self.members())
    }

    /// Ranks of all replicas.
    pub fn world(&self) -> usize {
        self.problem.ranks().saturating_mul(self.replicas()).saturating_mul(self.devices_per_rank())
    }

    /// Where rank `rank` of the world stands.
    pub fn position(&self, rank: usize) -> Position {
        let (ranks, replicas) = (self.problem.ranks(), self.replicas());
        let (parts, members) = (self.parts(), self.members());
        Position {
            rank: rank / (replicas * parts * members),
            ranks,
            replica: rank / (parts * members) % replicas,
            replicas,
            part: rank / members % parts,
            parts,
            member: rank % members,
            members,
            experts: self.experts(),
            whole_experts: matches!(&self.computation, Computation::Model(model) if model.whole_experts),
            sharding: self.sharding(),
        }
    }

    /// Where all ranks of the world stand.
    pub fn positions(&self) -> Vec<Position> {
        (0..self.world()).map(|rank| self.position(rank)).collect()
    }

    /// The mesh of the run's ranks: the axes `pp`, `dp`, `cp` and `tp`, the last of which runs fastest.
    ///
    /// # Errors
    /// [`MeshError`] where there are more ranks than any run has.
    pub fn mesh(&self) -> Result<Mesh, MeshError> {
        let (pp, dp) = (self.problem.ranks(), self.replicas());
        Mesh::of_sizes(&[("pp", pp), ("dp", dp), ("cp", self.parts()), ("tp", self.members())])
    }

    /// Sender and receiver of all messages of a training step, over the whole world, each pair once, in order.
    pub fn links(&self) -> Vec<(usize, usize)> {
        let mut links = BTreeSet::new();
        for rank in 0..self.world() {
            let position = self.position(rank);
            for step in self.row(rank) {
                let messages = match step {
                    Step::Transfer(messages) | Step::Start(messages) => messages.as_slice(),
                    _ => &[],
                };
                for message in messages.iter().filter(|message| message.way == Way::Send) {
                    let peer = self.problem.rank_of(message.peer_stage(), message.microbatch as usize);
                    links.insert((rank, position.in_world(peer)));
                }
            }
        }
        links.into_iter().collect()
    }

    /// What rank `rank` of the world executes.
    pub fn row(&self, rank: usize) -> &[Step] {
        self.program.rows.get(self.position(rank).rank).map_or(&[], Vec::as_slice)
    }

    /// Where the model's weights lie in a pipeline.
    pub fn places(&self) -> Places {
        match &self.computation {
            Computation::Model(model) => places(&self.problem, &model.graphs),
            Computation::Stages(staged) => staged.places(&self.problem),
            Computation::PlannedTimes { .. } => Places::new(),
        }
    }

    /// What ranks that hold the same of every weight shard.
    pub(super) fn sharding(&self) -> Sharding {
        match &self.computation {
            Computation::Model(model) => model.sharding,
            Computation::Stages(staged) if staged.shares_optimizer && self.replicas() > 1 => Sharding::OPTIMIZER,
            Computation::Stages(_) | Computation::PlannedTimes { .. } => Sharding::default(),
        }
    }
}
