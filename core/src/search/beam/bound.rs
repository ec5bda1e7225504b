//! A lower bound on every order that starts with a state, and when one state dominates another.

use super::{Beam, SHARE_BITS, State};
use crate::problem::Objective;
use crate::search::flat_problem::{B, F};

impl Beam<'_> {
    /// What no order that starts so goes under, and the sum of that over ranks.
    pub(super) fn bound(&mut self, state: &State) -> (u64, u64) {
        let flat = self.flat;
        let ready = |rank: usize| state.free[rank].max(state.now);
        self.soonest.fill(u64::MAX);
        for (index, lane) in flat.lanes.iter().enumerate() {
            let f = state.done[index][0] as usize;
            let left = (lane.count - f) as u64;
            if left == 0 {
                self.last[index][0] = 0;
                continue;
            }
            let duration = self.lanes[index].least[0];
            let arrival = match self.arrival(state, index, F) {
                Some(arrival) => arrival,
                None => self.head[index - 1][0] + self.lanes[index - 1].least[0] + lane.hop_f,
            };
            let mut head = ready(lane.rank).max(arrival);
            if state.held[lane.rank] + lane.takes[F as usize] > flat.limit[lane.rank] {
                head = head.max(self.soonest_release(state, lane.rank));
            }
            let mut last = head + left * duration;
            if !lane.first {
                last = last.max(self.last[index - 1][0] + lane.hop_f + duration);
            }
            (self.head[index][0], self.last[index][0]) = (head, last);
            self.soonest[lane.rank] = self.soonest[lane.rank].min(head);
        }
        for rank in 0..flat.ranks {
            self.ends[rank] = if state.left[rank] > 0 { ready(rank) } else { state.free[rank] };
        }
        for chain in &flat.chains {
            self.work.fill(0);
            for index in (chain.first_lane..chain.first_lane + chain.lanes).rev() {
                let (lane, about) = (&flat.lanes[index], &self.lanes[index]);
                let [f, b, w] = state.done[index];
                let left = lane.count as u64 - u64::from(b);
                let [forward, duration, weights] = about.least;
                self.work[lane.rank] += (lane.count as u64 - u64::from(f)) * forward + left * duration;
                if left == 0 {
                    self.last[index][1] = 0;
                    continue;
                }
                let arrival = match self.arrival(state, index, B) {
                    Some(arrival) => arrival,
                    None if lane.last => self.head[index][0] + forward,
                    None => self.head[index + 1][1] + self.lanes[index + 1].least[1] + lane.hop_b,
                };
                let head = ready(lane.rank).max(arrival);
                let soonest = &mut self.soonest[lane.rank];
                *soonest = (*soonest).min(head);
                let mut last = head + left * duration;
                if lane.last {
                    last = last.max(self.last[index][0] + duration);
                } else {
                    last = last.max(self.last[index + 1][1] + lane.hop_b + duration);
                }
                if about.is_lowest {
                    last = last.max(*soonest + self.work[lane.rank]);
                }
                (self.head[index][1], self.last[index][1]) = (head, last);
                let end = &mut self.ends[lane.rank];
                *end = (*end).max(last + if w as usize == lane.count { 0 } else { weights });
            }
        }
        let spans = flat.objective == Objective::LongestSpan;
        let (mut bound, mut sum) = (0u64, 0u64);
        for rank in 0..flat.ranks {
            let now = ready(rank);
            let mut end = self.ends[rank];
            if state.left[rank] > 0 {
                let waits = flat.lanes_of[rank].iter().any(|lane| state.done[*lane][2] < state.done[*lane][1]);
                let soonest = if waits || self.soonest[rank] == u64::MAX { now } else { self.soonest[rank] };
                end = end.max(soonest + state.left[rank]);
                let filled = u64::try_from(self.filled(state, rank, now)).unwrap_or(u64::MAX);
                end = end.max(now.saturating_add(filled));
            }
            let cost = match (spans, state.first[rank]) {
                (false, _) => end,
                (true, u64::MAX) => state.left[rank],
                (true, first) => end - first,
            };
            bound = bound.max(cost);
            sum = sum.saturating_add(cost);
        }
        (bound, sum)
    }

    /// The soonest end of an op that gives memory back.
    fn soonest_release(&self, state: &State, rank: usize) -> u64 {
        let ready = state.free[rank].max(state.now);
        let mut soonest = u64::MAX;
        for &lane in &self.flat.lanes_of[rank] {
            let [f, b, w] = state.done[lane];
            if w < b {
                soonest = soonest.min(ready + self.lanes[lane].weights);
            }
            if b < f {
                let arrival = self.arrival(state, lane, B).unwrap_or(0);
                soonest = soonest.min(ready.max(arrival) + self.lanes[lane].least[1]);
            }
        }
        if soonest == u64::MAX { ready } else { soonest }
    }

    /// For how long what is held, and what is still to come, fills the memory of a rank.
    fn filled(&self, state: &State, rank: usize, now: u64) -> u128 {
        let mut sum = 0u128;
        for &index in &self.flat.lanes_of[rank] {
            let about = &self.lanes[index];
            let [f, b, w] = state.done[index].map(u64::from);
            let more = u128::from(self.flat.lanes[index].count as u64 - f) * u128::from(about.fills);
            let away = u128::from(f - b);
            let mut held = 0;
            if away > 0 {
                let first = u128::from(self.head[index][1] - now);
                let until = away * first + u128::from(about.least[1]) * away * (away + 1) / 2;
                held += (until * u128::from(about.share[0])) >> SHARE_BITS;
            }
            if !self.flat.fused {
                let weights =
                    u128::from(f - b) * u128::from(about.least[2]) + u128::from(b - w) * u128::from(about.weights);
                held += (weights * u128::from(about.share[1])) >> SHARE_BITS;
            }
            sum += more + held;
        }
        sum
    }

    /// Whether `one` is nowhere later than `other`, with the same ops started.
    pub(super) fn is_no_later(&self, one: &State, other: &State) -> bool {
        if one.done != other.done {
            return false;
        }
        let flat = self.flat;
        let ready = |state: &State, rank: usize| state.free[rank].max(state.now);
        let ranks = (0..flat.ranks).all(|rank| {
            ready(one, rank) <= ready(other, rank)
                && (one.left[rank] > 0 || one.free[rank] <= other.free[rank])
                && (flat.objective != Objective::LongestSpan || one.first[rank] >= other.first[rank])
        });
        ranks
            && flat.lanes.iter().enumerate().all(|(index, lane)| {
                let [f, b, _] = one.done[index].map(|count| count as usize);
                let known_f = if lane.first { f } else { one.done[index - 1][0] as usize };
                let known_b = if lane.last { f } else { one.done[index + 1][1] as usize };
                let no_later = |from: usize, to: usize| {
                    (from..to).all(|slot| {
                        one.arrive[slot].max(ready(one, lane.rank)) <= other.arrive[slot].max(ready(other, lane.rank))
                    })
                };
                let back = flat.slots + lane.offset;
                no_later(lane.offset + f, lane.offset + known_f) && no_later(back + b, back + known_b)
            })
    }
}
