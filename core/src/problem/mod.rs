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

use crate::base::units::{ByteDelta, Bytes, Nanos};
use crate::problem::op::{Op, OpKind};
use crate::problem::placement::Placement;

pub mod op;
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
/// Most ops, counting F, B and W apart.
pub const MAX_OPS: usize = 12_000_000;
/// Most nanoseconds over all ops and hops: 146 years.
pub const MAX_TOTAL_NS: u64 = 1 << 62;
/// Most bytes taken over all ops.
pub const MAX_TOTAL_BYTES: u64 = 1 << 62;

pub(crate) const MAX_NS: u64 = 1 << 53;
pub(crate) const MAX_BYTES: u64 = 1 << 53;

/// What a schedule is judged by.
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

/// Whether the backward of a stage may be cut in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Backward {
    /// B and W may run apart, or fused.
    #[default]
    Split,
    /// Only the fused BW can run.
    Fused,
}

/// Time and memory of one stage for one microbatch.
///
/// An op's positive bytes are taken when it starts, its negative ones given back when it ends; its
/// workspace is taken at the start and given back at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StageCost {
    /// Duration of F.
    pub forward_ns: Nanos,
    /// Duration of B.
    pub backward_input_ns: Nanos,
    /// Duration of W.
    pub backward_weight_ns: Nanos,
    /// Duration of the fused BW, where it is less than that of B and then W: at most their sum. So it is where W's
    /// operators run beside a collective that B would wait for.
    pub backward_ns: Option<Nanos>,
    /// The part of F in which its rank does not compute but exchanges with others, and in which the other op of a pair may
    /// compute.
    pub forward_exchange_ns: Nanos,
    /// The same of B, and of BW.
    pub backward_exchange_ns: Nanos,
    /// Bytes that F leaves held.
    pub forward_bytes: ByteDelta,
    /// Change of bytes held by B.
    pub backward_input_bytes: ByteDelta,
    /// Change of bytes held by W.
    pub backward_weight_bytes: ByteDelta,
    /// Bytes that F needs only while it runs.
    pub forward_workspace_bytes: Bytes,
    /// Bytes that B needs only while it runs.
    pub backward_input_workspace_bytes: Bytes,
    /// Bytes that W needs only while it runs.
    pub backward_weight_workspace_bytes: Bytes,
    /// Bytes that the fused BW needs only while it runs, where it is more than B and then W: B's and W's changes of
    /// bytes are then one change, their sum. So it is where a layer's recomputed tensors are used up by its W before the
    /// next layer's are made.
    pub backward_workspace_bytes: Option<Bytes>,
}

impl StageCost {
    /// How long an op of `kind` keeps its rank busy.
    pub const fn duration(&self, kind: OpKind) -> Nanos {
        match kind {
            OpKind::F => self.forward_ns,
            OpKind::B => self.backward_input_ns,
            OpKind::W => self.backward_weight_ns,
            OpKind::BW => match self.backward_ns {
                Some(duration) => duration,
                None => self.backward_input_ns + self.backward_weight_ns,
            },
        }
    }

    /// How much of an op of `kind` its rank spends in exchanges.
    pub const fn exchange(&self, kind: OpKind) -> Nanos {
        match kind {
            OpKind::F => self.forward_exchange_ns,
            OpKind::B | OpKind::BW => self.backward_exchange_ns,
            OpKind::W => 0,
        }
    }

    /// The least that B and W may count on to keep their rank busy, whether they run apart or fused: neither more than
    /// it takes alone, nor both more than BW takes.
    pub const fn least_backward(&self) -> [Nanos; 2] {
        let fused = self.duration(OpKind::BW);
        let first = if self.backward_input_ns < fused { self.backward_input_ns } else { fused };
        [first, fused - first]
    }

    /// The same where no exchange is longer than its op.
    pub(crate) fn bounded(self) -> StageCost {
        let backward = self.backward_input_ns.min(self.duration(OpKind::BW));
        StageCost {
            forward_exchange_ns: self.forward_exchange_ns.min(self.forward_ns),
            backward_exchange_ns: self.backward_exchange_ns.min(backward),
            ..self
        }
    }

    /// Whether BW holds less at its most than B and then W.
    fn holds_less_whole(&self) -> bool {
        let apart = self.backward_input_bytes + self.takes(OpKind::W) as i64;
        (self.takes(OpKind::BW) as i64) < apart.max(self.takes(OpKind::B) as i64)
    }

    /// The same with BW as its B, and nothing as its W.
    fn whole(&self) -> StageCost {
        let change = self.backward_input_bytes + self.backward_weight_bytes;
        StageCost {
            backward_input_ns: self.duration(OpKind::BW),
            backward_weight_ns: 0,
            backward_ns: None,
            backward_input_bytes: change,
            backward_weight_bytes: 0,
            backward_input_workspace_bytes: self.takes(OpKind::BW) - change.max(0) as u64,
            backward_weight_workspace_bytes: 0,
            backward_workspace_bytes: None,
            ..*self
        }
    }

    /// Bytes taken when an op of `kind` starts.
    pub fn takes(&self, kind: OpKind) -> Bytes {
        let taken = |delta: ByteDelta| delta.max(0) as u64;
        match kind {
            OpKind::F => taken(self.forward_bytes) + self.forward_workspace_bytes,
            OpKind::B => taken(self.backward_input_bytes) + self.backward_input_workspace_bytes,
            OpKind::W => taken(self.backward_weight_bytes) + self.backward_weight_workspace_bytes,
            OpKind::BW => match self.backward_workspace_bytes {
                Some(workspace) => taken(self.backward_input_bytes + self.backward_weight_bytes) + workspace,
                None => {
                    taken(self.backward_input_bytes)
                        + taken(self.backward_weight_bytes)
                        + self.backward_input_workspace_bytes.max(self.backward_weight_workspace_bytes)
                }
            },
        }
    }

    /// Bytes given back when an op of `kind` ends.
    pub fn gives(&self, kind: OpKind) -> Bytes {
        let given = |delta: ByteDelta| delta.min(0).unsigned_abs();
        match kind {
            OpKind::F => given(self.forward_bytes) + self.forward_workspace_bytes,
            OpKind::B => given(self.backward_input_bytes) + self.backward_input_workspace_bytes,
            OpKind::W => given(self.backward_weight_bytes) + self.backward_weight_workspace_bytes,
            OpKind::BW => match self.backward_workspace_bytes {
                Some(workspace) => given(self.backward_input_bytes + self.backward_weight_bytes) + workspace,
                None => {
                    given(self.backward_input_bytes)
                        + given(self.backward_weight_bytes)
                        + self.backward_input_workspace_bytes.max(self.backward_weight_workspace_bytes)
                }
            },
        }
    }
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

    /// Microbatches, M.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// Where the stages are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// What a schedule is judged by.
    pub fn objective(&self) -> Objective {
        self.objective
    }

    /// Whether the backward may be cut.
    pub fn backward(&self) -> Backward {
        self.backward
    }

    /// Time and memory of `stage`.
    pub fn cost(&self, stage: usize) -> &StageCost {
        &self.stages[stage]
    }

    /// Time and memory of every stage.
    pub fn costs(&self) -> &[StageCost] {
        &self.stages
    }

    /// The rank that runs `stage` for `microbatch`.
    pub fn rank_of(&self, stage: usize, microbatch: usize) -> usize {
        let rank = usize::from(self.rank_of_stage[stage]);
        if self.placement == Placement::TwoWay && microbatch >= self.microbatches / 2 {
            self.ranks - 1 - rank
        } else {
            rank
        }
    }

    /// The stages that `rank` holds, in model order; with [`Placement::TwoWay`] those of the first half.
    pub fn stages_of(&self, rank: usize) -> &[usize] {
        &self.stages_of_rank[rank]
    }

    /// Time of one hop; 0 within a rank.
    pub fn hop(&self, from_rank: usize, to_rank: usize) -> Nanos {
        match &self.transfers {
            _ if from_rank == to_rank => 0,
            Transfers::Uniform(hop) => *hop,
            Transfers::Links(links) => links[from_rank][to_rank],
        }
    }

    /// How long `op` keeps its rank busy.
    pub fn duration(&self, op: Op) -> Nanos {
        self.stages[op.stage()].duration(op.kind())
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

    /// How long two ops of a pair take together that take so long each.
    pub(crate) fn together(&self, ops: [Op; 2], took: [Nanos; 2]) -> Nanos {
        let exchanges = ops.map(|op| self.stages[op.stage()].exchange(op.kind()));
        took[0] + took[1] - hidden(took, exchanges, self.overlap_permille)
    }

    /// The same problem where pairs gain nothing: their ops one after the other.
    pub(crate) fn with_pairs_in_turn(&self) -> Problem {
        let in_turn = |cost: &StageCost| StageCost { forward_exchange_ns: 0, backward_exchange_ns: 0, ..*cost };
        Problem { stages: self.stages.iter().map(in_turn).collect(), overlap_permille: 0, ..self.clone() }
    }

    /// A problem without pairs that is no harder: for every schedule of this one, with any pairs, the same order
    /// is a schedule of that one in which no op ends later.
    ///
    /// Each op is shortened by half of what it can hide as part of a pair, rounded up. So the two ops of a pair,
    /// one after the other, fit where the pair stood, and any other op ends sooner than before. Bounds are proved
    /// for problems without pairs; this carries them over.
    pub fn without_pairs(&self) -> Problem {
        if !self.pairs_gain() {
            return self.clone();
        }
        // The most of an op's partners on its rank: what one takes, what it computes, what it exchanges. What is hidden
        // grows with each.
        let partner = |rank: usize, kind: OpKind| {
            let held = self.stages_of_rank[rank].iter();
            // With two directions a rank also holds the stage of its mirror.
            let mirrored = (self.placement == Placement::TwoWay).then(|| &self.stages_of_rank[self.ranks - 1 - rank]);
            held.chain(mirrored.into_iter().flatten()).fold([0; 3], |[longest, computes, exchanges], stage| {
                let cost = &self.stages[*stage];
                let (duration, exchange) = (cost.duration(kind), cost.exchange(kind));
                [longest.max(duration), computes.max(duration.saturating_sub(exchange)), exchanges.max(exchange)]
            })
        };
        let shorten = |stage: usize| {
            let rank = usize::from(self.rank_of_stage[stage]);
            let cost = self.stages[stage];
            let half = |kind: OpKind, [longest, computes, exchanges]: [Nanos; 3]| {
                let (duration, exchange) = (cost.duration(kind), cost.exchange(kind));
                let by_share = share(duration.min(longest), self.overlap_permille);
                let by_exchange = exchange.min(computes) + exchanges.min(duration.saturating_sub(exchange));
                by_share.max(by_exchange).div_ceil(2)
            };
            let forward = half(OpKind::F, partner(rank, OpKind::BW)) + 1;
            let backward = half(OpKind::BW, partner(rank, OpKind::F)) + 1;
            let [b, w] = cost.least_backward();
            let from_b = backward.min(b);
            StageCost {
                forward_ns: cost.forward_ns.saturating_sub(forward),
                backward_input_ns: b - from_b,
                backward_weight_ns: w.saturating_sub(backward - from_b),
                backward_ns: None,
                ..cost
            }
        };
        let shorter = Problem { stages: (0..self.stages.len()).map(shorten).collect(), ..self.clone() };
        shorter.with_pairs_in_turn()
    }

    /// Bytes held by `rank` throughout.
    pub fn static_bytes(&self, rank: usize) -> Bytes {
        self.static_bytes[rank]
    }

    /// The memory of `rank`; none for no limit.
    pub fn limit_bytes(&self, rank: usize) -> Option<Bytes> {
        self.limit_bytes[rank]
    }

    /// The same problem under another memory limit, one entry a rank.
    pub fn with_limits(&self, limit_bytes: Vec<Option<Bytes>>) -> Problem {
        assert_eq!(limit_bytes.len(), self.ranks, "one limit a rank");
        Problem { limit_bytes, ..self.clone() }
    }

    /// The same problem with every backward left whole, where that may be of use: where a BW holds less or takes less
    /// time than its B and then its W. Its schedules are schedules of this problem too.
    pub fn with_whole_backwards(&self) -> Option<Problem> {
        let is_shorter =
            |cost: &StageCost| cost.duration(OpKind::BW) < cost.duration(OpKind::B) + cost.duration(OpKind::W);
        let helps = |cost: &StageCost| is_shorter(cost) || cost.holds_less_whole();
        let whole = || Problem { backward: Backward::Fused, ..self.clone() };
        (self.backward == Backward::Split && self.stages.iter().any(helps)).then(whole)
    }

    /// The same problem with the backwards of those stages left whole that hold less so, where other stages have none
    /// of that; and which those are. There B stands for BW, and W takes neither time nor bytes: with BW in the place of
    /// B, and without W, its schedules are schedules of this problem.
    pub fn with_some_whole_backwards(&self) -> Option<(Problem, Vec<bool>)> {
        let some: Vec<bool> = self.stages.iter().map(StageCost::holds_less_whole).collect();
        if self.backward == Backward::Fused || !some.contains(&true) || !some.contains(&false) {
            return None;
        }
        let stage = |(cost, whole): (&StageCost, &bool)| if *whole { cost.whole() } else { *cost };
        Some((Problem { stages: self.stages.iter().zip(&some).map(stage).collect(), ..self.clone() }, some))
    }

    /// Whether both ask for the same, whatever their placements are called.
    pub fn same_as(&self, other: &Problem) -> bool {
        self.placement.same_as(&other.placement, self.ranks, self.chunks)
            && Problem { placement: other.placement.clone(), ..self.clone() } == *other
    }

    /// The same problem judged by another objective.
    pub fn with_objective(&self, objective: Objective) -> Problem {
        Problem { objective, ..self.clone() }
    }

    /// The same problem in a unit of time of which a nanosecond has `finer`; none where times would come to more than a problem
    /// may have. The same order takes `finer` times as long there, or less where what a pair hides was rounded down.
    pub(crate) fn in_finer_time(&self, finer: Nanos) -> Option<Problem> {
        let times = |ns: Nanos| ns.checked_mul(finer);
        let stage = |cost: &StageCost| {
            Some(StageCost {
                forward_ns: times(cost.forward_ns)?,
                backward_input_ns: times(cost.backward_input_ns)?,
                backward_weight_ns: times(cost.backward_weight_ns)?,
                backward_ns: match cost.backward_ns {
                    Some(backward_ns) => Some(times(backward_ns)?),
                    None => None,
                },
                forward_exchange_ns: times(cost.forward_exchange_ns)?,
                backward_exchange_ns: times(cost.backward_exchange_ns)?,
                ..*cost
            })
        };
        let transfers = match &self.transfers {
            Transfers::Uniform(hop) => Transfers::Uniform(times(*hop)?),
            Transfers::Links(links) => {
                let row = |row: &Vec<Nanos>| row.iter().map(|hop| times(*hop)).collect();
                Transfers::Links(links.iter().map(row).collect::<Option<_>>()?)
            }
        };
        let stages = self.stages.iter().map(stage).collect::<Option<_>>()?;
        Statement { stages, transfers, ..self.statement() }.problem(self.placement.clone()).ok()
    }

    /// The same problem with hops that take `by` more; none where times would come to more than a problem may have.
    pub(crate) fn with_longer_hops(&self, by: Nanos) -> Option<Problem> {
        let transfers = match &self.transfers {
            Transfers::Uniform(hop) => Transfers::Uniform(hop.checked_add(by)?),
            Transfers::Links(links) => {
                let row = |row: &Vec<Nanos>| row.iter().map(|hop| hop.checked_add(by)).collect();
                Transfers::Links(links.iter().map(row).collect::<Option<_>>()?)
            }
        };
        Statement { transfers, ..self.statement() }.problem(self.placement.clone()).ok()
    }

    /// The problem as a statement with this placement fixed.
    pub fn statement(&self) -> Statement {
        Statement {
            ranks: self.ranks,
            chunks: self.chunks,
            microbatches: self.microbatches,
            placement: PlacementChoice::Fixed(self.placement.clone()),
            stages: self.stages.clone(),
            transfers: self.transfers.clone(),
            static_bytes: self.static_bytes.clone(),
            limit_bytes: self.limit_bytes.clone(),
            objective: self.objective,
            backward: self.backward,
            overlap_permille: self.overlap_permille,
        }
    }
}

/// What a pair saves whose ops take `took`, of which `exchanges` in exchanges: a share of the shorter one, or what each
/// computes while the other exchanges, whichever is more.
fn hidden(took: [Nanos; 2], exchanges: [Nanos; 2], overlap_permille: u16) -> Nanos {
    let [a, b] = [0, 1].map(|at| exchanges[at].min(took[at]));
    let beside = a.min(took[1] - b) + b.min(took[0] - a);
    share(took[0].min(took[1]), overlap_permille).max(beside)
}

/// The part of `shorter` that hides behind a longer op, rounded down.
fn share(shorter: Nanos, overlap_permille: u16) -> Nanos {
    (u128::from(shorter) * u128::from(overlap_permille) / 1000) as Nanos
}
