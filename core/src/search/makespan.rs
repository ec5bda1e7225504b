//! The time of an order: the inner loop of the search.
//!
//! It does what [`simulate`](crate::simulate::simulate) does, but keeps only the ends, works on reused arrays, and stops as soon
//! as the order cannot be better than what is known. A test compares the two.

use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{B, BW, Code, F, Flat, kind_of, lane_of};
use crate::problem::Objective;

const AWAKE: Code = Code::MAX;

/// Arrays of the evaluation, kept between calls.
pub(super) struct Eval {
    /// When the n-th F or B of a lane may start, as far as known: the lane before or after has run it.
    pub arrive_f: Vec<u64>,
    pub arrive_b: Vec<u64>,
    known_f: Vec<u32>,
    known_b: Vec<u32>,
    done_f: Vec<u32>,
    done_b: Vec<u32>,
    at: Vec<u32>,
    free: Vec<u64>,
    /// The op that a rank waits for.
    waits: Vec<Code>,
    left: Vec<u64>,
    ready: Vec<u32>,
    /// By rank: the start of its first op and the end of its last, after a run that was not cut off.
    pub first: Vec<u64>,
    pub end: Vec<u64>,
    /// Ops run so far over all calls: what effort is counted in.
    pub ops: u64,
}

/// The cost of an order. Orders compare by the objective first and then by the sum of the ranks' ends. Without the
/// second figure most moves change nothing, and a search does not know where to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    pub objective: u64,
    pub ends: u64,
}

impl Cost {
    pub const WORST: Cost = Cost { objective: u64::MAX, ends: u64::MAX };
}

impl Eval {
    pub fn new(flat: &Flat) -> Eval {
        let lanes = flat.lanes.len();
        Eval {
            arrive_f: vec![0; flat.slots],
            arrive_b: vec![0; flat.slots],
            known_f: vec![0; lanes],
            known_b: vec![0; lanes],
            done_f: vec![0; lanes],
            done_b: vec![0; lanes],
            at: vec![0; flat.ranks],
            free: vec![0; flat.ranks],
            waits: vec![AWAKE; flat.ranks],
            left: vec![0; flat.ranks],
            ready: Vec::with_capacity(flat.ranks),
            first: vec![0; flat.ranks],
            end: vec![0; flat.ranks],
            ops: 0,
        }
    }

    /// The cost of `rows`, which must be complete on every rank; none where the ranks deadlock, or the objective is
    /// above `cutoff`.
    pub fn run(&mut self, flat: &Flat, rows: &[Vec<Code>], cutoff: u64) -> Option<Cost> {
        self.run_with(flat, rows, cutoff, |_, _, _| {})
    }

    /// As [`Eval::run`], handing rank, position in its row and start of each op to `visit`.
    pub fn run_with(
        &mut self,
        flat: &Flat,
        rows: &[Vec<Code>],
        cutoff: u64,
        mut visit: impl FnMut(usize, usize, u64),
    ) -> Option<Cost> {
        self.reset(flat);
        let spans = flat.objective == Objective::LongestSpan;
        let mut ran = 0usize;
        while let Some(rank) = self.ready.pop() {
            let rank = rank as usize;
            let row = &rows[rank];
            let mut at = self.at[rank] as usize;
            let mut free = self.free[rank];
            let mut left = self.left[rank];
            let from = at;
            while let Some(&code) = row.get(at) {
                let (index, kind) = (lane_of(code), kind_of(code));
                let lane = &flat.lanes[index];
                let start;
                match kind {
                    F => {
                        let n = self.done_f[index];
                        if n >= self.known_f[index] {
                            self.waits[rank] = code;
                            break;
                        }
                        let slot = lane.offset + n as usize;
                        start = free.max(self.arrive_f[slot]);
                        self.done_f[index] = n + 1;
                        let end = start + lane.duration[0];
                        if lane.last {
                            self.arrive_b[slot] = end;
                            self.known_b[index] = n + 1;
                        } else {
                            let next = &flat.lanes[index + 1];
                            self.arrive_f[next.offset + n as usize] = end + next.hop_f;
                            self.known_f[index + 1] = n + 1;
                            if self.waits[next.rank] == ((index as u32 + 1) << 2) | F {
                                self.waits[next.rank] = AWAKE;
                                self.ready.push(next.rank as u32);
                            }
                        }
                        free = end;
                        left -= lane.duration[0];
                    }
                    B | BW => {
                        let n = self.done_b[index];
                        if n >= self.known_b[index] {
                            self.waits[rank] = code;
                            break;
                        }
                        start = free.max(self.arrive_b[lane.offset + n as usize]);
                        self.done_b[index] = n + 1;
                        let end = start + lane.duration[kind as usize];
                        if !lane.first {
                            let before = &flat.lanes[index - 1];
                            self.arrive_b[before.offset + n as usize] = end + before.hop_b;
                            self.known_b[index - 1] = n + 1;
                            let waits = self.waits[before.rank];
                            if waits >> 2 == index as u32 - 1 && waits & 1 == 1 {
                                self.waits[before.rank] = AWAKE;
                                self.ready.push(before.rank as u32);
                            }
                        }
                        free = end;
                        left -= lane.duration[kind as usize];
                    }
                    _ => {
                        start = free;
                        free += lane.duration[2];
                        left -= lane.duration[2];
                    }
                }
                if at == 0 {
                    self.first[rank] = start;
                }
                visit(rank, at, start);
                at += 1;
            }
            ran += at - from;
            self.at[rank] = at as u32;
            self.free[rank] = free;
            self.left[rank] = left;
            // The rest of the row takes at least its work.
            let base = if spans && at > 0 { self.first[rank] } else { 0 };
            if free + left - base > cutoff {
                self.ops += ran as u64;
                return None;
            }
        }
        self.ops += ran as u64;
        if ran < rows.iter().map(Vec::len).sum() {
            return None;
        }
        Some(self.cost(flat))
    }

    /// Forgets the last run.
    fn reset(&mut self, flat: &Flat) {
        self.known_f.fill(0);
        self.known_b.fill(0);
        self.done_f.fill(0);
        self.done_b.fill(0);
        self.at.fill(0);
        self.free.fill(0);
        self.first.fill(0);
        self.waits.fill(AWAKE);
        self.left.copy_from_slice(&flat.work);
        for chain in &flat.chains {
            self.known_f[chain.first_lane] = chain.microbatches as u32;
            let offset = flat.lanes[chain.first_lane].offset;
            self.arrive_f[offset..offset + chain.microbatches].fill(0);
        }
        self.ready.clear();
        self.ready.extend((0..flat.ranks as u32).rev());
    }

    /// The cost of an order of which every op has run.
    fn cost(&mut self, flat: &Flat) -> Cost {
        let spans = flat.objective == Objective::LongestSpan;
        let mut cost = Cost { objective: 0, ends: 0 };
        let start = if spans { 0 } else { self.first.iter().copied().min().unwrap_or(0) };
        for rank in 0..flat.ranks {
            let end = self.free[rank];
            self.end[rank] = end;
            let base = if spans { self.first[rank] } else { start };
            cost.objective = cost.objective.max(end - base);
            cost.ends += end / flat.ranks as u64;
        }
        cost
    }
}
