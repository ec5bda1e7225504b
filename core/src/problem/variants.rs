//! Problems that differ from a given one: other limits, whole backwards, no pairs, finer time.

use alloc::vec::Vec;

use super::factors::MicrobatchFactors;
use super::stage_cost::StageCost;
use super::statement::Statement;
use super::{Backward, Objective, Problem, Transfers, share};
use crate::base::fields::Fault;
use crate::base::units::{Bytes, Nanos};
use crate::problem::op::OpKind;
use crate::problem::placement::Placement;

impl Problem {
    /// The same problem without gain from pairs: their ops run one after the other.
    pub(crate) fn with_pairs_in_turn(&self) -> Problem {
        let in_turn = |cost: &StageCost| StageCost { forward_exchange_ns: 0, backward_exchange_ns: 0, ..*cost };
        Problem { stages: self.stages.iter().map(in_turn).collect(), overlap_permille: 0, ..self.clone() }
    }

    /// A problem without pairs that is no harder: for every schedule of this one, with any pairs, the same order
    /// is a schedule of that one in which no op ends later.
    ///
    /// Each op is shortened by half of what it can hide as part of a pair, rounded up. So the two ops of a pair,
    /// one after the other, fit where the pair stood, and any other op ends sooner than before. Bounds are proved
    /// for problems without pairs; this carries them over. Where microbatches differ, this does not hold.
    pub fn without_pairs(&self) -> Problem {
        if !self.pairs_gain() {
            return self.clone();
        }
        // The most of an op's partners on its rank: what one takes, what it computes, what it exchanges. What is hidden
        // grows with each.
        let partner = |rank: usize, kind: OpKind| {
            let held = self.stages_of_rank[rank].iter();
            // In a bidirectional placement a rank also holds the stage of its mirror.
            let mirrored =
                (self.placement == Placement::Bidirectional).then(|| &self.stages_of_rank[self.ranks - 1 - rank]);
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

    /// The same problem under another memory limit, one entry per rank.
    pub fn with_limits(&self, limit_bytes: Vec<Option<Bytes>>) -> Problem {
        assert_eq!(limit_bytes.len(), self.ranks, "one limit a rank");
        Problem { limit_bytes, ..self.clone() }
    }

    /// The same problem without copies to the host: its schedules are schedules of this problem.
    pub fn without_offload(&self) -> Problem {
        let kept = |cost: &StageCost| StageCost { offload_bytes: 0, offload_ns: 0, ..*cost };
        Problem { stages: self.stages.iter().map(kept).collect(), ..self.clone() }
    }

    /// The same problem without copies to the host, where what may go takes room during F and from the start of the backward
    /// on alone, as if copies took no time and no link. So it is no harder: the order of every schedule of this problem is a
    /// schedule of that one, and takes no longer there.
    pub fn with_instant_copies(&self) -> Problem {
        let stage = |cost: &StageCost| {
            let away = cost.offload_bytes as i64;
            let forward_bytes = cost.forward_bytes - away;
            let backward_input_bytes = cost.backward_input_bytes + away;
            let whole = backward_input_bytes + cost.backward_weight_bytes;
            // An op takes as much at its start as before, and what has come back.
            let workspace = |takes: Bytes, more: i64| takes + away as u64 - more.max(0) as u64;
            StageCost {
                forward_bytes,
                backward_input_bytes,
                forward_workspace_bytes: cost.takes(OpKind::F) - forward_bytes.max(0) as u64,
                backward_input_workspace_bytes: workspace(cost.takes(OpKind::B), backward_input_bytes),
                backward_workspace_bytes: Some(workspace(cost.takes(OpKind::BW), whole)),
                offload_bytes: 0,
                offload_ns: 0,
                ..*cost
            }
        };
        Problem { stages: self.stages.iter().map(stage).collect(), ..self.clone() }
    }

    /// The same problem with every backward whole, where that may help: where a BW holds less or takes less time than
    /// its B and then its W. Its schedules are schedules of this problem too.
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

    /// A problem of microbatches that are alike: each takes the time that those of this one take on average, rounded up.
    /// It holds the bytes of the average one, or of the largest. None where sums would come to more than a problem may have.
    pub(crate) fn with_alike_microbatches(&self, of_largest: bool) -> Option<Problem> {
        let Some(factors) = &self.factors else { return Some(self.clone()) };
        let microbatches = self.microbatches;
        let mean = |stage: usize, of: &dyn Fn(&StageCost) -> u64| {
            let all =
                (0..microbatches).map(|microbatch| u128::from(of(&self.cost_of(stage, microbatch)))).sum::<u128>();
            all.div_ceil(microbatches as u128) as u64
        };
        let bytes = |stage: usize, of: &dyn Fn(&StageCost) -> u64| match of_largest {
            true => (0..microbatches).map(|microbatch| of(&self.cost_of(stage, microbatch))).max().unwrap_or(0),
            false => mean(stage, of),
        };
        let stage = |stage: usize| {
            let held = [
                bytes(stage, &|cost| cost.forward_bytes as u64),
                bytes(stage, &|cost| (cost.forward_bytes + cost.backward_input_bytes) as u64),
                bytes(stage, &|cost| {
                    (cost.forward_bytes + cost.backward_input_bytes + cost.backward_weight_bytes) as u64
                }),
            ]
            .map(|bytes| bytes as i64);
            let cost = self.stages[stage];
            let fused = mean(stage, &|cost| cost.duration(OpKind::BW));
            let mut alike = StageCost {
                forward_ns: mean(stage, &|cost| cost.forward_ns),
                backward_input_ns: mean(stage, &|cost| cost.backward_input_ns),
                backward_weight_ns: mean(stage, &|cost| cost.backward_weight_ns),
                backward_ns: None,
                forward_exchange_ns: mean(stage, &|cost| cost.forward_exchange_ns),
                backward_exchange_ns: mean(stage, &|cost| cost.backward_exchange_ns),
                forward_bytes: held[0],
                backward_input_bytes: held[1] - held[0],
                backward_weight_bytes: held[2] - held[1],
                forward_workspace_bytes: bytes(stage, &|cost| cost.forward_workspace_bytes),
                backward_input_workspace_bytes: bytes(stage, &|cost| cost.backward_input_workspace_bytes),
                backward_weight_workspace_bytes: bytes(stage, &|cost| cost.backward_weight_workspace_bytes),
                backward_workspace_bytes: cost
                    .backward_workspace_bytes
                    .map(|_| bytes(stage, &|cost| cost.backward_workspace_bytes.unwrap_or(0))),
                slice_gradient_bytes: cost.slice_gradient_bytes,
                // Microbatches that differ have no copies.
                offload_bytes: 0,
                offload_ns: 0,
            };
            let apart = alike.backward_input_ns + alike.backward_weight_ns;
            alike.backward_ns = cost.backward_ns.map(|_| fused).filter(|fused| *fused < apart);
            alike.bounded()
        };
        let all = factors.values();
        let messages = all.iter().map(|factors| u128::from(factors.messages)).sum::<u128>() / all.len() as u128;
        let hop = |hop: Nanos| super::factors::scaled_up(hop, messages as u32);
        let transfers = match &self.transfers {
            Transfers::Uniform(one) => Transfers::Uniform(hop(*one)),
            Transfers::Links(links) => {
                Transfers::Links(links.iter().map(|row| row.iter().map(|one| hop(*one)).collect()).collect())
            }
        };
        let stages = (0..self.stages.len()).map(stage).collect();
        let statement = Statement { stages, transfers, microbatch_factors: None, ..self.statement() };
        let mut faults = Vec::new();
        statement.find_faults("", &mut faults);
        if faults.is_empty() { statement.problem(self.placement.clone()).ok() } else { None }
    }

    /// The same problem with slices that do not wait for each other, so that all its schedules are schedules of that one;
    /// none where sequences are whole.
    pub(crate) fn without_slices(&self) -> Option<Problem> {
        let stage = |cost: &StageCost| StageCost { slice_gradient_bytes: 0, ..*cost };
        let stages = || self.stages.iter().map(stage).collect();
        (self.slices > 1).then(|| Problem { slices: 1, stages: stages(), ..self.clone() })
    }

    /// A problem of as many whole sequences as this one cuts into slices, each with what its slices take together, on
    /// average. None where sums would come to more than a problem may have.
    pub(crate) fn with_whole_sequences(&self) -> Option<Problem> {
        let alike = self.with_alike_microbatches(true)?;
        let slices = self.slices as u64;
        let bytes = |bytes: i64| bytes.checked_mul(slices as i64);
        let stage = |cost: &StageCost| {
            let kept = cost.slice_gradient_bytes.checked_mul(slices - 1)?;
            Some(StageCost {
                forward_bytes: bytes(cost.forward_bytes)?,
                backward_input_bytes: bytes(cost.backward_input_bytes)?,
                backward_weight_bytes: bytes(cost.backward_weight_bytes)?,
                backward_input_workspace_bytes: cost.backward_input_workspace_bytes.checked_add(kept)?,
                backward_workspace_bytes: match cost.backward_workspace_bytes {
                    Some(workspace) => Some(workspace.checked_add(kept)?),
                    None => None,
                },
                slice_gradient_bytes: 0,
                ..*cost
            })
        };
        let longer = alike.in_finer_time(slices)?;
        let stages = longer.stages.iter().map(stage).collect::<Option<_>>()?;
        let microbatches = self.microbatches / self.slices;
        let whole = Statement { stages, microbatches, slices: 1, ..longer.statement() };
        let mut faults = Vec::new();
        whole.find_faults("", &mut faults);
        if faults.is_empty() { whole.problem(self.placement.clone()).ok() } else { None }
    }

    /// The same problem with these factors of its microbatches in the place of its own; none for microbatches that are alike.
    ///
    /// # Errors
    /// Where they do not suit it, or where sums come to more than a problem may have.
    pub fn with_factors(&self, factors: Option<MicrobatchFactors>) -> Result<Problem, Fault> {
        let factors = factors.filter(|factors| !factors.are_usual());
        let statement = Statement { microbatch_factors: factors, ..self.statement() };
        let mut faults = Vec::new();
        statement.find_faults("", &mut faults);
        match faults.into_iter().next() {
            Some(fault) => Err(fault),
            None => statement.problem(self.placement.clone()),
        }
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
                offload_ns: times(cost.offload_ns)?,
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
}
