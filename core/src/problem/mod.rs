//! All that a scheduler may know: ranks, stages, microbatches, time and bytes per op, limits. Nothing of
//! models.
//!
//! - In: a problem file, or what `estimate` derives from a spec.
//! - Out: a checked [`Problem`]; the form of its answer, [`Schedule`].
//! - Knows: units and faults. Nothing of models, and nothing of who makes schedules.
//!
//! Two types, because a person's statement may leave the placement open. A [`Statement`] is what stands in
//! a problem file (the form other programs write); a [`Problem`] is one placement of it, checked.
//!
//! # What a `Problem` promises
//! Whoever holds one may rely on: 1 to [`MAX_RANKS`] ranks; `P · V` stages, each on one rank; at most
//! [`MAX_OPS`] ops; no sum of all durations and hops beyond [`MAX_TOTAL_NS`]; no sum of all bytes taken
//! beyond [`MAX_TOTAL_BYTES`]; and bytes held never below zero in any order that keeps F before B before W.
//! So later stages add without overflow and size their tables without further checks.

use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};
use crate::problem::op::{Op, OpKind};
use crate::problem::placement::Placement;

pub mod copies;
pub mod factors;
mod stage_cost;
mod variants;

use factors::MicrobatchFactors;
pub use stage_cost::StageCost;

pub mod op;
pub mod packing;
pub mod placement;
mod schedule;
mod statement;

pub use schedule::Schedule;
pub use statement::{PlacementChoice, Statement};

/// Most ranks of a problem.
pub const MAX_RANKS: usize = 1024;
/// Most chunks of one rank.
pub const MAX_CHUNKS: usize = 64;
/// Most microbatches.
pub const MAX_MICROBATCHES: usize = 1_000_000;
/// Most ops, counting F, B and W apart. Planning takes up to 450 bytes of memory for each, so that all of them fit into the
/// 4 GB of a page, and a plan of them into the longest file of a plan.
pub const MAX_OPS: usize = 8_000_000;
/// Most nanoseconds over all ops and hops: 146 years.
pub const MAX_TOTAL_NS: u64 = 1 << 62;
/// Most bytes taken over all ops.
pub const MAX_TOTAL_BYTES: u64 = 1 << 62;

pub(crate) const MAX_NS: u64 = 1 << 53;
pub(crate) const MAX_BYTES: u64 = 1 << 53;

/// The objective that judges a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Objective {
    /// End of the last op over all ranks minus the start of the first.
    #[default]
    Makespan,
    /// The largest, over ranks, of a rank's last end minus its first start (the zero-bubble papers' cost).
    LongestSpan,
}

impl Objective {
    /// The name in a problem file.
    pub const fn name(self) -> &'static str {
        match self {
            Objective::Makespan => "makespan",
            Objective::LongestSpan => "longest_span",
        }
    }
}

/// Whether the backward of a stage may be split into B and W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Backward {
    /// B and W may run apart, or fused.
    #[default]
    Split,
    /// Only the fused BW can run.
    Fused,
}

/// Time that one hop takes between two ranks; nothing within a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfers {
    /// The same between any two ranks.
    Uniform(Nanos),
    /// By sender, then receiver.
    Links(Vec<Vec<Nanos>>),
}

/// One placement of a [`Statement`], with every value by stage and by rank. See the module for what it
/// promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    ranks: usize,
    chunks: usize,
    microbatches: usize,
    slices: usize,
    placement: Placement,
    rank_of_stage: Vec<u16>,
    stages_of_rank: Vec<Vec<usize>>,
    stages: Vec<StageCost>,
    transfers: Transfers,
    static_bytes: Vec<Bytes>,
    limit_bytes: Vec<Option<Bytes>>,
    objective: Objective,
    backward: Backward,
    overlap_permille: u16,
    factors: Option<MicrobatchFactors>,
}

impl Problem {
    /// Ranks, P.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Stages held by each rank, V.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// All stages, `P · V`.
    pub fn stage_count(&self) -> usize {
        self.stages.len()
    }

    /// Microbatches, M. With [slices](Problem::slices) each is one slice.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// Sequence slices: microbatches that follow each other, this many at a time, are the slices of the same sequences, cut
    /// along their tokens (Seq1F1B: arXiv:2406.03488; TeraPipe: arXiv:2102.07988). 1: sequences are whole.
    ///
    /// Attention of a slice reads the keys and values of the slices before it. So on every stage F of a slice comes after
    /// F of the slice before, and B of a slice after B of the slice behind, which adds to the gradients of its keys and
    /// values.
    pub fn slices(&self) -> usize {
        self.slices
    }

    /// The microbatch whose backward is the `nth`, where sequences come one after the other: of each the last slice first.
    pub fn nth_backward(&self, nth: usize) -> usize {
        let slice = nth % self.slices;
        nth - slice + self.slices - 1 - slice
    }

    /// The microbatch whose op of `op`'s kind comes before it on the same stage, as slices of the same sequences; none for
    /// the first one, and for W.
    pub(crate) fn slice_before(&self, op: Op) -> Option<usize> {
        let slice = op.microbatch() % self.slices;
        match op.kind() {
            OpKind::F => (slice > 0).then(|| op.microbatch() - 1),
            OpKind::B | OpKind::BW => (slice + 1 < self.slices).then(|| op.microbatch() + 1),
            OpKind::W => None,
        }
    }

    /// Where the stages are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The objective that judges a schedule.
    pub fn objective(&self) -> Objective {
        self.objective
    }

    /// Whether the backward may be split.
    pub fn backward(&self) -> Backward {
        self.backward
    }

    /// Time and memory of `stage` for a microbatch that takes what the stage says: for each of them, unless the
    /// microbatches [differ](Problem::differs).
    pub fn cost(&self, stage: usize) -> &StageCost {
        &self.stages[stage]
    }

    /// Time and memory of `stage` for `microbatch`.
    pub fn cost_of(&self, stage: usize, microbatch: usize) -> StageCost {
        match &self.factors {
            Some(factors) => factors.at(stage, microbatch).applied_to(&self.stages[stage]),
            None => self.stages[stage],
        }
    }

    /// Whether microbatches differ: from each other, from what the stages say, or as [slices](Problem::slices), of which
    /// none may take the place of another.
    pub fn differs(&self) -> bool {
        self.factors.is_some() || self.slices > 1
    }

    /// What each microbatch takes of what the stages say; none where all take the same.
    pub fn factors(&self) -> Option<&MicrobatchFactors> {
        self.factors.as_ref()
    }

    /// Time and memory of every stage, as [`Problem::cost`].
    pub fn costs(&self) -> &[StageCost] {
        &self.stages
    }

    /// The rank that runs `stage` for `microbatch`.
    pub fn rank_of(&self, stage: usize, microbatch: usize) -> usize {
        let rank = usize::from(self.rank_of_stage[stage]);
        if self.placement == Placement::Bidirectional && microbatch >= self.microbatches / 2 {
            self.ranks - 1 - rank
        } else {
            rank
        }
    }

    /// The stages that `rank` holds, in model order; with [`Placement::Bidirectional`] those of the first half.
    pub fn stages_of(&self, rank: usize) -> &[usize] {
        &self.stages_of_rank[rank]
    }

    /// Time of one hop of a microbatch that takes what the problem says; 0 within a rank. See [`Problem::hop_of`].
    pub fn hop(&self, from_rank: usize, to_rank: usize) -> Nanos {
        match &self.transfers {
            _ if from_rank == to_rank => 0,
            Transfers::Uniform(hop) => *hop,
            Transfers::Links(links) => links[from_rank][to_rank],
        }
    }

    /// Time of the message about `microbatch` from one stage to the one before or after it; 0 within a rank.
    pub fn hop_of(&self, from_stage: usize, to_stage: usize, microbatch: usize) -> Nanos {
        let [from, to] = [from_stage, to_stage].map(|stage| self.rank_of(stage, microbatch));
        let hop = self.hop(from, to);
        match &self.factors {
            Some(factors) => factors::scaled_up(hop, factors.at(from_stage.min(to_stage), microbatch).messages),
            None => hop,
        }
    }

    /// How long `op` keeps its rank busy.
    pub fn duration(&self, op: Op) -> Nanos {
        let cost = &self.stages[op.stage()];
        match &self.factors {
            Some(factors) => factors.at(op.stage(), op.microbatch()).time(cost, op.kind()),
            None => cost.duration(op.kind()),
        }
    }

    /// Bytes taken when `op` starts.
    pub fn takes(&self, op: Op) -> Bytes {
        self.cost_of(op.stage(), op.microbatch()).takes(op.kind()) + self.slice_gradients(op).0
    }

    /// Bytes given back when `op` ends.
    pub fn gives(&self, op: Op) -> Bytes {
        self.cost_of(op.stage(), op.microbatch()).gives(op.kind()) + self.slice_gradients(op).1
    }

    /// What `op` takes and gives back of the gradients that slices add up for the keys and values of earlier slices: B of
    /// the last slice makes them for all slices before it, and B of each of these uses up its own.
    fn slice_gradients(&self, op: Op) -> (Bytes, Bytes) {
        let one = self.stages[op.stage()].slice_gradient_bytes;
        match op.kind() {
            OpKind::F | OpKind::W => (0, 0),
            _ if self.slices == 1 => (0, 0),
            _ if self.slice_before(op).is_none() => (one * (self.slices as u64 - 1), 0),
            _ => (0, one),
        }
    }

    /// Whether a forward and a backward that run as a pair may take less time than one after the other.
    pub fn pairs_gain(&self) -> bool {
        self.overlap_permille > 0
            || self.stages.iter().any(|cost| cost.forward_exchange_ns + cost.backward_exchange_ns > 0)
    }

    /// How long a forward and a backward that run as a pair keep their rank busy, both together.
    pub fn pair_duration(&self, forward: Op, backward: Op) -> Nanos {
        self.together([forward, backward], [self.duration(forward), self.duration(backward)])
    }

    /// The time of a pair whose ops take the given times alone.
    pub(crate) fn together(&self, ops: [Op; 2], took: [Nanos; 2]) -> Nanos {
        let exchanges = ops.map(|op| self.cost_of(op.stage(), op.microbatch()).exchange(op.kind()));
        took[0] + took[1] - hidden(took, exchanges, self.overlap_permille)
    }

    /// The static bytes of `rank`.
    pub fn static_bytes(&self, rank: usize) -> Bytes {
        self.static_bytes[rank]
    }

    /// The memory of `rank`; none for no limit.
    pub fn limit_bytes(&self, rank: usize) -> Option<Bytes> {
        self.limit_bytes[rank]
    }

    /// Whether activations may go to the host between F and the backward, as copies of the schedule
    /// ([`HostCopy`](copies::HostCopy)).
    pub fn offloads(&self) -> bool {
        self.stages.iter().any(|cost| cost.offload_bytes > 0)
    }

    /// Whether both ask for the same, whatever the names of their placements.
    pub fn same_as(&self, other: &Problem) -> bool {
        self.placement.same_as(&other.placement, self.ranks, self.chunks)
            && Problem { placement: other.placement.clone(), ..self.clone() } == *other
    }

    /// The problem as a statement with this placement fixed.
    pub fn statement(&self) -> Statement {
        Statement {
            ranks: self.ranks,
            chunks: self.chunks,
            microbatches: self.microbatches,
            slices: self.slices,
            placement: PlacementChoice::Fixed(self.placement.clone()),
            stages: self.stages.clone(),
            transfers: self.transfers.clone(),
            static_bytes: self.static_bytes.clone(),
            limit_bytes: self.limit_bytes.clone(),
            objective: self.objective,
            backward: self.backward,
            overlap_permille: self.overlap_permille,
            microbatch_factors: self.factors.clone(),
        }
    }
}

/// The time that a pair saves. Its ops take `took`, of which `exchanges` are communication. The saving is a share of
/// the shorter op, or the compute of each during the communication of the other, whichever is more.
fn hidden(took: [Nanos; 2], exchanges: [Nanos; 2], overlap_permille: u16) -> Nanos {
    let [a, b] = [0, 1].map(|at| exchanges[at].min(took[at]));
    let beside = a.min(took[1] - b) + b.min(took[0] - a);
    share(took[0].min(took[1]), overlap_permille).max(beside)
}

/// The part of `shorter` that hides behind a longer op, rounded down.
fn share(shorter: Nanos, overlap_permille: u16) -> Nanos {
    (u128::from(shorter) * u128::from(overlap_permille) / 1000) as Nanos
}
