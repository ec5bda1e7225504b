//! The problem in flat arrays, for the inner loops of the search. Op lists have no microbatch numbers.
//!
//! # Lanes
//! A *lane* is one stage for one direction of microbatches. With one direction (all placements but
//! [`Bidirectional`](crate::problem::placement::Placement::Bidirectional)) lane and stage are the same number. The lanes of one direction form a
//! *chain*; a microbatch goes down its chain with F and back up with B.
//!
//! # Why an op list needs no microbatch numbers
//! Microbatches are alike. Whatever order of microbatches a valid schedule has on a lane, number its n-th F, n-th B and n-th W of
//! that lane as those of microbatch n. This keeps every op's time and bytes, and no op then starts before its inputs: if n
//! forwards of the lane before have ended when the n-th F of this lane starts, then so has the n-th of them. So an op list is a
//! list of (lane, kind), and nothing is lost.

use alloc::vec;
use alloc::vec::Vec;

use crate::base::units::Bytes;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::problem::placement::Placement;
use crate::problem::{Backward, Objective, Problem};

/// An op of a rank: lane and kind, packed.
pub(super) type Code = u32;

pub(super) const F: u32 = 0;
pub(super) const B: u32 = 1;
pub(super) const W: u32 = 2;
pub(super) const BW: u32 = 3;

pub(super) const fn code(lane: usize, kind: u32) -> Code {
    ((lane as u32) << 2) | kind
}

pub(super) const fn lane_of(code: Code) -> usize {
    (code >> 2) as usize
}

pub(super) const fn kind_of(code: Code) -> u32 {
    code & 3
}

/// One op list of codes per rank.
pub(super) type Rows = Vec<Vec<Code>>;

/// No limit, and room to add to it.
pub(super) const UNLIMITED: i64 = i64::MAX / 4;

#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub rank: usize,
    pub stage: usize,
    pub chain: usize,
    /// The lane has none before it, or none after it.
    pub first: bool,
    pub last: bool,
    /// Microbatches of its chain, and where its slots start in an array over all lanes and microbatches.
    pub count: usize,
    pub offset: usize,
    /// By kind F, B, W, BW.
    pub duration: [u64; 4],
    /// Bytes taken at the start and given back at the end.
    pub takes: [i64; 4],
    pub gives: [i64; 4],
    /// The hop into this lane for F, from the lane before, and for B, from the lane after.
    pub hop_f: u64,
    pub hop_b: u64,
}

impl Lane {
    /// Bytes by which an op of `kind` changes what the rank holds.
    pub fn net(&self, kind: u32) -> i64 {
        self.takes[kind as usize] - self.gives[kind as usize]
    }

    /// Whether BW takes less time, or less memory, than B and then W.
    pub fn gains_whole(&self) -> bool {
        let [_, b, w, whole] = self.duration;
        whole < b + w || self.holds_less_whole()
    }

    /// Whether BW takes less memory than B and then W.
    pub fn holds_less_whole(&self) -> bool {
        let [_, b_takes, w_takes, whole_takes] = self.takes;
        whole_takes < b_takes.max(self.net(B) + w_takes)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub first_lane: usize,
    pub lanes: usize,
    pub first_microbatch: usize,
    pub microbatches: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Flat {
    pub ranks: usize,
    pub lanes: Vec<Lane>,
    pub chains: Vec<Chain>,
    /// By rank, its lanes in the order of the chain, chain by chain.
    pub lanes_of: Vec<Vec<usize>>,
    /// By rank: the limit less the static bytes. Negative where the static bytes alone do not fit.
    pub limit: Vec<i64>,
    pub fused: bool,
    pub objective: Objective,
    /// Slots of an array over all lanes and microbatches.
    pub slots: usize,
    /// Ops of a complete schedule.
    pub ops: usize,
    /// By rank: all its work.
    pub work: Vec<u64>,
}

impl Flat {
    pub fn new(problem: &Problem) -> Flat {
        debug_assert!(!problem.differs(), "op lists have no microbatch numbers: the module says why");
        let (stages, microbatches) = (problem.stage_count(), problem.microbatches());
        let two_way = *problem.placement() == Placement::Bidirectional;
        let chain = |first_lane, first_microbatch, microbatches| Chain {
            first_lane,
            lanes: stages,
            first_microbatch,
            microbatches,
        };
        let chains = if two_way {
            let half = microbatches / 2;
            vec![chain(0, 0, half), chain(stages, half, microbatches - half)]
        } else {
            vec![chain(0, 0, microbatches)]
        };
        let mut lanes = Vec::with_capacity(stages * chains.len());
        let mut offset = 0;
        for (index, chain) in chains.iter().enumerate() {
            let rank = |stage| problem.rank_of(stage, chain.first_microbatch);
            for stage in 0..stages {
                let cost = problem.cost(stage);
                let by_kind =
                    |of: &dyn Fn(OpKind) -> u64| [of(OpKind::F), of(OpKind::B), of(OpKind::W), of(OpKind::BW)];
                let bytes = |of: &dyn Fn(OpKind) -> u64| by_kind(of).map(|bytes| bytes as i64);
                lanes.push(Lane {
                    rank: rank(stage),
                    stage,
                    chain: index,
                    first: stage == 0,
                    last: stage + 1 == stages,
                    count: chain.microbatches,
                    offset,
                    duration: by_kind(&|kind| cost.duration(kind)),
                    takes: bytes(&|kind| cost.takes(kind)),
                    gives: bytes(&|kind| cost.gives(kind)),
                    hop_f: if stage > 0 { problem.hop(rank(stage - 1), rank(stage)) } else { 0 },
                    hop_b: if stage + 1 < stages { problem.hop(rank(stage + 1), rank(stage)) } else { 0 },
                });
                offset += chain.microbatches;
            }
        }
        let mut lanes_of = vec![Vec::new(); problem.ranks()];
        for (index, lane) in lanes.iter().enumerate() {
            lanes_of[lane.rank].push(index);
        }
        let limit = (0..problem.ranks())
            .map(|rank| match problem.limit_bytes(rank) {
                Some(limit) => limit as i64 - problem.static_bytes(rank) as i64,
                None => UNLIMITED,
            })
            .collect();
        let fused = problem.backward() == Backward::Fused;
        let work_of = |lane: &usize| {
            let [f, b, w, both] = lanes[*lane].duration;
            lanes[*lane].count as u64 * (f + if fused { both } else { b + w })
        };
        let work = lanes_of.iter().map(|of: &Vec<usize>| of.iter().map(work_of).sum()).collect();
        let mut flat = Flat {
            ranks: problem.ranks(),
            chains,
            lanes_of,
            limit,
            fused,
            objective: problem.objective(),
            slots: offset,
            ops: offset * if fused { 2 } else { 3 },
            work,
            lanes,
        };
        flat.reserve_what_stays();
        flat
    }

    /// Reserves the bytes that microbatches leave for good, so that from here on every microbatch frees what it took.
    /// When an op runs, at most all others have ended, so this is all but what one microbatch on one lane leaves.
    fn reserve_what_stays(&mut self) {
        let mut reserved = vec![(0, i64::MAX); self.ranks];
        for lane in &mut self.lanes {
            let stays = lane.net(F) + lane.net(B) + lane.net(W);
            lane.gives[W as usize] += stays;
            lane.gives[BW as usize] += stays;
            let (all, least) = &mut reserved[lane.rank];
            *all += stays * lane.count as i64;
            *least = stays.min(*least);
        }
        for (limit, (all, least)) in self.limit.iter_mut().zip(reserved) {
            if *limit != UNLIMITED {
                *limit -= all.saturating_sub(least);
            }
        }
    }

    /// Lanes of a rank in one direction, at least 1.
    pub fn chunks(&self) -> usize {
        (self.chains[0].lanes / self.ranks).max(1)
    }

    /// The schedule of `rows`, with microbatches numbered first in, first out.
    pub fn schedule(&self, rows: &[Vec<Code>]) -> Schedule {
        let mut next = vec![[0usize; 3]; self.lanes.len()];
        let rows = rows
            .iter()
            .map(|row| {
                row.iter()
                    .map(|&code| {
                        let (index, kind) = (lane_of(code), kind_of(code));
                        let lane = &self.lanes[index];
                        let next = &mut next[index];
                        let (kind, slot) = match kind {
                            F => (OpKind::F, 0),
                            B => (OpKind::B, 1),
                            W => (OpKind::W, 2),
                            _ => (OpKind::BW, 1),
                        };
                        let microbatch = self.chains[lane.chain].first_microbatch + next[slot];
                        next[slot] += 1;
                        if kind == OpKind::BW {
                            next[2] += 1;
                        }
                        Op::new(lane.stage, kind, microbatch)
                    })
                    .collect()
            })
            .collect();
        Schedule::of(rows)
    }

    /// The op lists of `schedule`; none where its ops are not those of this problem, each once.
    ///
    /// Where the backward may be split, a BW becomes B and W: no op ends later and no rank holds more, since the
    /// gradient for the stage before is there sooner.
    pub fn rows(&self, schedule: &Schedule) -> Option<Rows> {
        let mut rows = self.mixed_rows(schedule)?;
        if !self.fused {
            for row in &mut rows {
                let cut = |code: &Code| match kind_of(*code) {
                    BW => [Some(*code & !3 | B), Some(*code & !3 | W)],
                    _ => [Some(*code), None],
                };
                *row = row.iter().flat_map(cut).flatten().collect();
            }
        }
        (0..self.ranks).all(|rank| self.is_complete(rank, &rows[rank])).then_some(rows)
    }

    /// The op lists of `schedule`, with every BW as it is; none where an op is not of this problem.
    pub fn mixed_rows(&self, schedule: &Schedule) -> Option<Rows> {
        if schedule.rows.len() != self.ranks {
            return None;
        }
        schedule
            .rows
            .iter()
            .enumerate()
            .map(|(rank, row)| {
                row.iter()
                    .map(|op| {
                        let chain = self.chains.iter().position(|chain| {
                            op.microbatch() >= chain.first_microbatch
                                && op.microbatch() < chain.first_microbatch + chain.microbatches
                                && op.stage() < chain.lanes
                        })?;
                        let lane = self.chains[chain].first_lane + op.stage();
                        let kind = match op.kind() {
                            OpKind::F => F,
                            OpKind::B => B,
                            OpKind::W => W,
                            OpKind::BW => BW,
                        };
                        (self.lanes[lane].rank == rank).then_some(code(lane, kind))
                    })
                    .collect::<Option<Vec<Code>>>()
            })
            .collect()
    }

    /// Whether `row` holds every op of `rank` once, F before B before W on each lane, within the limit.
    pub fn is_valid_row(&self, rank: usize, row: &[Code]) -> bool {
        self.is_complete(rank, row) && self.peak(row) <= self.limit[rank]
    }

    fn is_complete(&self, rank: usize, row: &[Code]) -> bool {
        // Most ranks have one lane to four: a search by position is quickest.
        let lanes = &self.lanes_of[rank];
        let mut done = vec![[0usize; 3]; lanes.len()];
        for &code in row {
            let Some(at) = lanes.iter().position(|lane| *lane == lane_of(code)) else { return false };
            let [f, b, w] = &mut done[at];
            match kind_of(code) {
                F => *f += 1,
                B => *b += 1,
                W => *w += 1,
                _ => {
                    *b += 1;
                    *w += 1;
                }
            }
            if w > b || b > f || (self.fused && kind_of(code) != F && kind_of(code) != BW) {
                return false;
            }
        }
        lanes.iter().zip(done).all(|(lane, done)| done == [self.lanes[*lane].count; 3])
    }

    /// The most bytes above the static ones that a rank holds when it runs `row`.
    pub fn peak(&self, row: &[Code]) -> i64 {
        let (mut held, mut peak) = (0, 0);
        for &code in row {
            let (lane, kind) = (&self.lanes[lane_of(code)], kind_of(code) as usize);
            held += lane.takes[kind];
            peak = peak.max(held);
            held -= lane.gives[kind];
        }
        peak
    }
}

/// The least limit of `rank` with which any schedule exists.
pub(super) fn least_bytes(problem: &Problem, flat: &Flat, rank: usize) -> Bytes {
    // What microbatches leave behind for good is not in `least`: `flat` has it in the limit.
    let (mut all, mut least) = (0i64, i64::MAX);
    for lane in flat.lanes_of[rank].iter().map(|lane| &flat.lanes[*lane]) {
        let cost = problem.cost(lane.stage);
        let stays = cost.forward_bytes + cost.backward_input_bytes + cost.backward_weight_bytes;
        all += stays * lane.count as i64;
        least = stays.min(least);
    }
    let stays = all.saturating_sub(least);
    problem.static_bytes(rank) + (flat.least(rank) + stays) as u64
}
