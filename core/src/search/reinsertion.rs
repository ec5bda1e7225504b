//! Large neighbourhood search (Shaw, 1998; “ruin and recreate”, Schrimpf, Schneider, Stamm-Wilbrandt and Dueck, Journal of
//! Computational Physics 159, 2000): some microbatches are removed from an order, and each is inserted again as a whole.
//!
//! Where memory is full, an op can hardly move alone: what it needs room for has to move first, on all ranks at once. So two
//! microbatches of opposite directions never change places by moves along one rank. Here a few consecutive microbatches are
//! removed, which leaves a valid order. They are inserted one by one, in another sequence or at another time.
//!
//! # How a microbatch is inserted
//! The ops that remain keep the starts of their order. Each op of the new microbatch gets a time no sooner than its inputs allow,
//! and stands before the first op that starts no sooner. So ops cannot wait for each other in a circle, since a circle has to go
//! back in time. Where an op finds its rank's memory full, or fills it for one that stands there, the op of the new microbatch
//! that took the memory moves behind it, and all times are computed again. At the latest the new microbatch stands behind all
//! others. Local search then repairs what the insertion delays, and [`accept`](super::acceptance) chooses the order to continue
//! from.

use alloc::vec;
use alloc::vec::Vec;

use super::acceptance::Accepted;
use super::flat_problem::{B, BW, Code, F, Flat, Rows, W, code, kind_of, lane_of};
use super::makespan::{Cost, Eval};
use crate::base::random::Random;

/// The first new order may take this many times the effort for new orders.
const MOST_BUILT: u64 = 8;
/// How often an op that lacks memory moves behind another before the microbatch is given up.
const MOST_TRIES: usize = 300;
/// The most microbatches that are removed at once.
const MOST_OUT: u64 = 6;

/// How a microbatch is put in.
#[derive(Clone, Copy, Debug)]
struct Way {
    chain: usize,
    /// The soonest time for its first F.
    from: u64,
    /// The share of F or B, and of W, in thousandths, that must fit between the ops there; other ops wait.
    fit: u64,
    fit_w: u64,
    /// Whether F waits where that delays nothing, to hold memory for less time.
    late: bool,
}

/// An op that is put in.
#[derive(Clone, Copy, Debug)]
struct New {
    lane: usize,
    kind: u32,
    /// No time is sooner.
    soonest: u64,
    time: u64,
    /// It stands before the op of its rank that is at this place.
    place: usize,
}

/// A search at its present order, with the best order so far.
pub(super) struct Reinsertion {
    accepted: Accepted,
    /// The order from which microbatches are removed and into which they are inserted.
    rows: Rows,
    /// By rank and place, when the ops of the order start.
    starts: Vec<Vec<u64>>,
    new: Vec<New>,
    /// By lane, its F and B (or BW) and W among the new ones.
    at: Vec<[usize; 3]>,
    /// By rank, its new ops, in the order of its row once [`Reinsertion::sort`] has been there.
    on_rank: Vec<Vec<usize>>,
    /// Ops looked at so far.
    pub ops: u64,
}

impl Reinsertion {
    /// A search from `rows`, which must be valid; none where the ranks deadlock.
    pub fn new(flat: &Flat, eval: &mut Eval, rows: &Rows) -> Option<Reinsertion> {
        Accepted::new(flat, eval, rows).map(|accepted| Reinsertion::of(flat, accepted))
    }

    fn of(flat: &Flat, accepted: Accepted) -> Reinsertion {
        Reinsertion {
            accepted,
            rows: vec![Vec::new(); flat.ranks],
            starts: vec![Vec::new(); flat.ranks],
            new: Vec::new(),
            at: vec![[0; 3]; flat.lanes.len()],
            on_rank: vec![Vec::new(); flat.ranks],
            ops: 0,
        }
    }

    /// The best order so far.
    pub fn best(&self) -> Rows {
        self.accepted.best()
    }

    /// What it costs.
    pub fn best_cost(&self) -> Cost {
        self.accepted.best_cost
    }

    /// New orders: microbatches are inserted one by one, a number of one direction before the same number of the next.
    /// Tries about `effort` ops at most, and returns how many.
    pub fn built(flat: &Flat, eval: &mut Eval, effort: u64, mut offer: impl FnMut(Rows)) -> u64 {
        let most = flat.chains.iter().map(|chain| chain.microbatches).max().unwrap_or(0);
        // Every microbatch is put into all those before it: with many of them one order takes more than there is.
        let all: usize = flat.chains.iter().map(|chain| chain.microbatches).sum();
        if flat.ops as u64 / 2 * all as u64 > MOST_BUILT * effort {
            return 0;
        }
        let mut ops = 0;
        let mut run = 1;
        while run <= most {
            for first in 0..flat.chains.len() {
                for fit in [0, 500, 1000] {
                    for late in [false, true] {
                        let mut refit = Reinsertion::of(flat, Accepted::none());
                        let fits = refit.fill(flat, eval, run, Way { chain: first, from: 0, fit, fit_w: fit, late });
                        ops += refit.ops + flat.ops as u64;
                        if fits {
                            offer(refit.rows);
                        }
                        if ops > effort {
                            return ops;
                        }
                    }
                }
            }
            run += 1 + run / 2;
        }
        ops
    }

    /// Inserts all microbatches, in runs of each direction in turn from `way.chain` on.
    fn fill(&mut self, flat: &Flat, eval: &mut Eval, run: usize, way: Way) -> bool {
        let mut left: Vec<usize> = flat.chains.iter().map(|chain| chain.microbatches).collect();
        let mut chain = way.chain;
        while left.iter().any(|left| *left > 0) {
            for _ in 0..run.min(left[chain]) {
                if !self.put(flat, eval, Way { chain, ..way }) {
                    return false;
                }
                left[chain] -= 1;
            }
            chain = (chain + 1) % left.len();
        }
        true
    }

    /// Removes some microbatches and inserts them again; true where that led to a new best order.
    pub fn step(&mut self, flat: &Flat, eval: &mut Eval, random: &mut Random) -> bool {
        self.rows.clone_from(self.accepted.next());
        let mut out = self.take_out(flat, eval, random);
        // As many of each direction as were taken out, in any sequence.
        let fit = [0, 0, 300, 600, 1000][random.below(5) as usize];
        let fit_w = [0, 0, 500, 1000][random.below(4) as usize];
        let late = random.below(2) == 0;
        while !out.is_empty() {
            let (chain, entered) = out.swap_remove(random.below(out.len() as u64) as usize);
            let from = match random.below(3) {
                0 => 0,
                1 => entered,
                _ => random.below(eval.end.iter().copied().max().unwrap_or(0) + 1),
            };
            if !self.put(flat, eval, Way { chain, from, fit, fit_w, late }) {
                return false;
            }
        }
        self.accepted.offer(flat, eval, self.rows.clone(), &mut self.ops, random)
    }

    /// Removes some microbatches that enter soon after one another: for each its chain and when it entered.
    fn take_out(&mut self, flat: &Flat, eval: &mut Eval, random: &mut Random) -> Vec<(usize, u64)> {
        self.time(flat, eval);
        // All microbatches by when they enter.
        let mut entered: Vec<(u64, usize, usize)> = Vec::new();
        for (chain, about) in flat.chains.iter().enumerate() {
            let rank = flat.lanes[about.first_lane].rank;
            let first = code(about.first_lane, F);
            let firsts = self.rows[rank].iter().zip(&self.starts[rank]).filter(|(code, _)| **code == first);
            entered.extend(firsts.enumerate().map(|(n, (_, start))| (*start, chain, n)));
        }
        entered.sort_unstable();
        let count = (1 + random.below(MOST_OUT) as usize).min(entered.len());
        let first = random.below((entered.len() + 1 - count) as u64) as usize;
        let out = &entered[first..first + count];
        for row in &mut self.rows {
            let mut next: Vec<(Code, usize)> = Vec::new();
            row.retain(|code| {
                let n = match next.iter_mut().find(|(other, _)| other == code) {
                    Some((_, n)) => {
                        *n += 1;
                        *n
                    }
                    None => {
                        next.push((*code, 0));
                        0
                    }
                };
                let chain = flat.lanes[lane_of(*code)].chain;
                !out.iter().any(|(_, other, taken)| *other == chain && *taken == n)
            });
        }
        self.ops += flat.ops as u64;
        out.iter().map(|(start, chain, _)| (*chain, *start)).collect()
    }

    /// Computes when the ops of the order start, whether or not all microbatches are in it.
    fn time(&mut self, flat: &Flat, eval: &mut Eval) {
        for (starts, row) in self.starts.iter_mut().zip(&self.rows) {
            starts.clear();
            starts.resize(row.len(), 0);
        }
        let starts = &mut self.starts;
        eval.run_with(flat, &self.rows, u64::MAX, |rank, at, start| starts[rank][at] = start);
    }

    /// Inserts one more microbatch; false, and nothing is changed, where no place was found.
    fn put(&mut self, flat: &Flat, eval: &mut Eval, way: Way) -> bool {
        self.time(flat, eval);
        self.list(flat, way);
        if !self.settle(flat, way) {
            return false;
        }
        if way.late {
            self.wait(flat, way);
        }
        for rank in 0..flat.ranks {
            self.sort(rank);
            // From the last, so that places before it stay.
            for at in self.on_rank[rank].iter().rev() {
                let New { lane, kind, place, .. } = self.new[*at];
                self.rows[rank].insert(place, code(lane, kind));
            }
        }
        true
    }

    /// Lists the ops of a microbatch, each behind what it needs.
    fn list(&mut self, flat: &Flat, way: Way) {
        let chain = &flat.chains[way.chain];
        let lanes = chain.first_lane..chain.first_lane + chain.lanes;
        self.new.clear();
        let new = |lane, kind| New { lane, kind, soonest: 0, time: 0, place: 0 };
        for lane in lanes.clone() {
            self.at[lane][0] = self.new.len();
            self.new.push(new(lane, F));
        }
        self.new[0].soonest = way.from;
        for lane in lanes.rev() {
            self.at[lane][1] = self.new.len();
            if flat.fused {
                self.new.push(new(lane, BW));
            } else {
                self.at[lane][2] = self.new.len() + 1;
                self.new.extend([new(lane, B), new(lane, W)]);
            }
        }
        self.on_rank.iter_mut().for_each(Vec::clear);
        for (at, new) in self.new.iter().enumerate() {
            self.on_rank[flat.lanes[new.lane].rank].push(at);
        }
    }

    /// Finds times for all new ops; false where it gives up.
    fn settle(&mut self, flat: &Flat, way: Way) -> bool {
        for _ in 0..MOST_TRIES {
            self.set_times(flat, way);
            match (0..flat.ranks).find_map(|rank| self.lacks(flat, rank)) {
                None => return true,
                Some((new, soonest)) => match soonest {
                    Some(soonest) => self.new[new].soonest = soonest,
                    None => return false,
                },
            }
        }
        false
    }

    /// Delays every F as far as the next op still starts at its time.
    fn wait(&mut self, flat: &Flat, way: Way) {
        let known = self.new.clone();
        for at in (0..self.new.len()).rev() {
            let New { lane, kind, .. } = self.new[at];
            let lane = &flat.lanes[lane];
            if kind == F && !lane.last {
                let next = &self.new[at + 1];
                let hop = flat.lanes[next.lane].hop_f;
                let latest = next.soonest.max(next.time).saturating_sub(hop + lane.duration[F as usize]);
                self.new[at].soonest = self.new[at].soonest.max(latest);
            }
        }
        let last = |new: &[New]| new.iter().map(|new| new.time).max();
        if !self.settle(flat, way) || last(&self.new) > last(&known) {
            self.new = known;
        }
    }

    /// Gives each new op the first time that its inputs and its rank allow.
    fn set_times(&mut self, flat: &Flat, way: Way) {
        for at in 0..self.new.len() {
            let New { lane: index, kind, soonest, .. } = self.new[at];
            let lane = &flat.lanes[index];
            let end = |at: usize| {
                let new = &self.new[at];
                new.time + flat.lanes[new.lane].duration[new.kind as usize]
            };
            let arrival = match kind {
                F if lane.first => 0,
                F => end(self.at[index - 1][0]) + lane.hop_f,
                W => end(self.at[index][1]),
                _ if lane.last => end(self.at[index][0]),
                _ => end(self.at[index + 1][1]) + lane.hop_b,
            };
            let fit = if kind == W { way.fit_w } else { way.fit };
            let needs = u128::from(lane.duration[kind as usize]) * u128::from(fit);
            let (row, starts) = (&self.rows[lane.rank], &self.starts[lane.rank]);
            let mut time = arrival.max(soonest);
            let mut place = starts.partition_point(|start| *start < time);
            loop {
                if let Some(before) = place.checked_sub(1) {
                    let code = row[before];
                    let end = starts[before] + flat.lanes[lane_of(code)].duration[kind_of(code) as usize];
                    time = time.max(end);
                }
                match starts.get(place) {
                    Some(next) if u128::from(next.saturating_sub(time)) * 1000 < needs => {
                        // Behind it, also where it takes no time.
                        time = time.max(next + 1);
                        place += 1;
                    }
                    _ => break,
                }
            }
            self.ops += 4;
            (self.new[at].time, self.new[at].place) = (time, place);
        }
    }

    /// Puts the new ops of a rank in the order of its row.
    fn sort(&mut self, rank: usize) {
        let new = &self.new;
        self.on_rank[rank].sort_unstable_by_key(|at| (new[*at].place, new[*at].time, *at));
    }

    /// The new op that takes memory which another lacks, and the time from which on it stands behind that one: none
    /// where there is no such time.
    fn lacks(&mut self, flat: &Flat, rank: usize) -> Option<(usize, Option<u64>)> {
        self.sort(rank);
        let (row, starts, on_rank) = (&self.rows[rank], &self.starts[rank], &self.on_rank[rank]);
        let limit = flat.limit[rank];
        let (mut before, mut held) = (0i64, 0i64);
        let mut next = 0;
        // The last new op that took memory for longer than it runs.
        let mut taker: Option<usize> = None;
        let mut found: Option<(usize, Option<u64>)> = None;
        for place in 0..=row.len() {
            while let Some(&at) = on_rank.get(next)
                && self.new[at].place == place
            {
                let New { lane, kind, .. } = self.new[at];
                let lane = &flat.lanes[lane];
                if before + held + lane.takes[kind as usize] > limit {
                    // Behind the next op that stands there.
                    found = Some((at, starts.get(place).map(|start| start + 1)));
                }
                held += lane.net(kind);
                if lane.net(kind) > 0 {
                    taker = Some(at);
                }
                next += 1;
            }
            let Some(&code) = row.get(place) else { break };
            let (lane, kind) = (&flat.lanes[lane_of(code)], kind_of(code));
            if held > 0 && before + held + lane.takes[kind as usize] > limit {
                found = taker.map(|at| (at, Some(starts[place] + 1)));
            }
            before += lane.net(kind);
        }
        self.ops += row.len() as u64 / 2;
        found
    }
}
