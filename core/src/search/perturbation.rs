//! Perturbation: some ops of an order are planned sooner or later, and the list scheduler makes an order of the plan (random keys:
//! Bean, ORSA Journal on Computing 6, 1994).
//!
//! The coarse shape of an order, such as how many microbatches go through one chunk before the next chunk takes them, is fixed by
//! no recipe of [`policies`](super::policies) for each microbatch. Moves along one rank change it only against the cost: all
//! ranks have to follow. Here every op has a planned time, at first its start. A move shifts the times of a *wave*: one kind of
//! op, of a few microbatches, on all stages of a chunk. Whatever the plan, the list scheduler makes a valid order, so memory
//! needs no repair.

use alloc::vec;
use alloc::vec::Vec;
use core::mem::take;
use core::ops::Range;

use super::acceptance::Accepted;
use super::flat_problem::{Chain, F, Flat, Rows, W, kind_of, lane_of};
use super::list::{List, NEVER, Plan, Policy, Times};
use super::makespan::{Cost, Eval};
use crate::base::random::Random;

/// Shifts of one plan, at most.
const SHIFTS: u64 = 3;
/// The most microbatches of a wave.
const MOST_RUN: u64 = 4;
/// One shift in this many puts a wave next to its neighbours, whatever the time.
const JOINS: u64 = 4;
/// No shift is longer, so that planned times may be added.
const MOST_STEP: i64 = 1 << 56;

/// A search at its present order, with the best order so far.
pub(super) struct Perturbation {
    accepted: Accepted,
    times: Times,
    caps: Vec<u32>,
    period: i64,
    /// Ops looked at so far, besides those of the list scheduler.
    pub ops: u64,
}

impl Perturbation {
    /// A search from `rows`, which must be valid; none where the ranks deadlock. `period` is the work of the busiest
    /// rank for one microbatch.
    pub fn new(flat: &Flat, eval: &mut Eval, rows: &Rows, period: i64) -> Option<Perturbation> {
        let accepted = Accepted::new(flat, eval, rows)?;
        let caps = vec![u32::MAX; flat.lanes.len()];
        Some(Perturbation { accepted, times: Times::new(flat), caps, period, ops: 0 })
    }

    /// The best order so far.
    pub fn best(&self) -> Rows {
        self.accepted.best()
    }

    /// What it costs.
    pub fn best_cost(&self) -> Cost {
        self.accepted.best_cost
    }

    /// Makes a new order from the last one; true where it is the best so far.
    pub fn step(&mut self, flat: &Flat, eval: &mut Eval, list: &mut List, random: &mut Random) -> bool {
        self.plan(flat, eval);
        for _ in 0..=random.below(SHIFTS) {
            self.shift(flat, random);
        }
        self.times.put_in_turn(flat);
        let early = [NEVER, NEVER, 0, self.period / 2][random.below(4) as usize];
        let policy = Policy {
            caps: take(&mut self.caps),
            plan: Plan::Each(take(&mut self.times)),
            w_lag: [0, 0, NEVER][random.below(3) as usize],
            w_fit: [0, 500, 1000, 1000][random.below(4) as usize],
            patience: [0, 0, 300, 700, 1000, 100_000][random.below(6) as usize],
            early,
            gap: 0,
            alternate: false,
            in_turn: flat.chains.len() > 1 && random.below(2) == 0,
        };
        let rows = list.build(flat, &flat.limit, &policy);
        self.caps = policy.caps;
        if let Plan::Each(times) = policy.plan {
            self.times = times;
        }
        rows.is_some_and(|rows| self.accepted.offer(flat, eval, rows, &mut self.ops, random))
    }

    /// Plans every op when it starts.
    fn plan(&mut self, flat: &Flat, eval: &mut Eval) {
        let rows = self.accepted.next();
        let times = &mut self.times;
        let mut next = vec![[0usize; 3]; flat.lanes.len()];
        eval.run_with(flat, rows, u64::MAX, |rank, at, start| {
            let code = rows[rank][at];
            let lane = lane_of(code);
            let (which, of) = match kind_of(code) {
                F => (0, &mut times.f),
                W => (2, &mut times.w),
                _ => (1, &mut times.b),
            };
            of[flat.lanes[lane].offset + next[lane][which]] = start as i64;
            next[lane][which] += 1;
        });
    }

    /// Plans a wave sooner or later.
    fn shift(&mut self, flat: &Flat, random: &mut Random) {
        let chain = &flat.chains[random.below(flat.chains.len() as u64) as usize];
        let chunks = (chain.lanes / flat.ranks).max(1);
        let all = chain.first_lane..chain.first_lane + chain.lanes;
        let lanes = match random.below(6) {
            0 => {
                let lane = all.start + random.below(chain.lanes as u64) as usize;
                lane..lane + 1
            }
            1 => all,
            _ => {
                let size = chain.lanes / chunks;
                let first = all.start + random.below(chunks as u64) as usize * size;
                first..first + size
            }
        };
        if chain.microbatches > 1 && random.below(JOINS) == 0 {
            self.join(flat, chain, lanes, random);
            return;
        }
        let run = (1 + random.below(MOST_RUN) as usize).min(chain.microbatches);
        let first = random.below((chain.microbatches - run + 1) as u64) as usize;
        let step = (self.period / chunks as i64).clamp(2, MOST_STEP);
        let most = step * [1, 2, 5][random.below(3) as usize];
        let by = random.below(2 * most as u64 + 1) as i64 - most;
        let Times { f, b, w } = &mut self.times;
        let of = match random.below(if flat.fused { 4 } else { 5 }) {
            0 | 1 => f,
            2 | 3 => b,
            _ => w,
        };
        for lane in lanes {
            let from = flat.lanes[lane].offset + first;
            of[from..from + run].iter_mut().for_each(|time| *time = time.saturating_add(by));
        }
    }

    /// Plans F or B of some microbatches, or both, right behind those of the one before, or right before those of the next.
    fn join(&mut self, flat: &Flat, chain: &Chain, lanes: Range<usize>, random: &mut Random) {
        let count = chain.microbatches as u64;
        let run = 1 + random.below((count - 1).min(MOST_RUN - 1));
        let first = random.below(count - run) as usize;
        let (which, behind) = (random.below(3), random.below(2) == 0);
        let Times { f, b, .. } = &mut self.times;
        for (of, is_moved) in [(f, which != 0), (b, which != 1)] {
            for lane in lanes.clone().filter(|_| is_moved) {
                let from = flat.lanes[lane].offset + first;
                let times = &mut of[from..=from + run as usize];
                if behind {
                    (1..times.len()).for_each(|at| times[at] = times[at].min(times[at - 1] + 1));
                } else {
                    (1..times.len()).rev().for_each(|at| times[at - 1] = times[at - 1].max(times[at] - 1));
                }
            }
        }
    }
}
