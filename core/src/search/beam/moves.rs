//! Which op may start next in a state, and what follows from it.

use alloc::vec::Vec;

use super::{Beam, State};
use crate::search::bankers::{Room, allowed};
use crate::search::flat_problem::{B, BW, Chain, Code, F, Flat, UNLIMITED, W, kind_of, lane_of};

impl Beam<'_> {
    pub(super) fn kinds(&self, lane: usize) -> &'static [u32] {
        match (self.flat.fused, self.gains(lane)) {
            (true, _) => &[F, BW],
            (false, false) => &[F, B, W],
            (false, true) => &[F, B, W, BW],
        }
    }

    /// Whether a backward of the lane may run cut or whole, and may be better whole.
    pub(super) fn gains(&self, lane: usize) -> bool {
        !self.others.is_empty() && self.lanes[lane].gains
    }

    /// When the next op of a kind may start as far as other ranks go; none where that is not known yet, or none is left.
    pub(super) fn arrival(&self, state: &State, lane: usize, kind: u32) -> Option<u64> {
        let about = &self.flat.lanes[lane];
        let [f, b, w] = state.done[lane];
        match kind {
            F if about.first => ((f as usize) < about.count).then_some(0),
            F => (f < state.done[lane - 1][0]).then(|| state.arrive[about.offset + f as usize]),
            W => (w < b).then_some(0),
            _ => {
                let known = if about.last { f } else { state.done[lane + 1][1] };
                (b < known).then(|| state.arrive[self.flat.slots + about.offset + b as usize])
            }
        }
    }

    pub(super) fn fits(&self, state: &State, rank: usize, lane: usize, kind: u32) -> bool {
        let limit = self.flat.limit[rank];
        let fits = |flat: &Flat, alone: &[i64], in_turn| {
            let room = Room { rank, limit, held: state.held[rank], alone: alone[rank], in_turn };
            allowed(&room, flat, &state.done, lane, kind)
        };
        if self.may_risk {
            return state.held[rank] + self.flat.lanes[lane].takes[kind as usize] <= limit;
        }
        let turns: &[bool] = if self.flat.chains.len() > 1 { &[false, true] } else { &[false] };
        limit >= UNLIMITED
            || turns.iter().any(|in_turn| fits(self.flat, &self.alone, *in_turn))
            || self.others.iter().any(|(flat, alone)| turns.iter().any(|in_turn| fits(flat, alone, *in_turn)))
            || (self.flat.chains.len() > 1
                && state.held[rank] + self.flat.lanes[lane].takes[kind as usize] <= limit
                && self.can_end(state, lane, kind))
    }

    /// Whether, after one more op, all microbatches on their way can end one after the other, each as a whole and the
    /// oldest of its direction, whatever directions they take turns in.
    fn can_end(&self, state: &State, lane: usize, kind: u32) -> bool {
        let flat = self.flat;
        let done = |index: usize, job: u32| {
            let more = index == lane && (kind == job || (kind == BW && job != F));
            state.done[index][job as usize] + u32::from(more)
        };
        let mut held = state.held.clone();
        held[flat.lanes[lane].rank] += flat.lanes[lane].net(kind);
        let is_whole = |lane: usize| flat.fused || (self.gains(lane) && flat.lanes[lane].holds_less_whole());
        let lanes_of = |chain: &Chain| chain.first_lane..chain.first_lane + chain.lanes;
        let oldest = |chain: &Chain| lanes_of(chain).map(|lane| done(lane, W)).min().unwrap_or(0);
        let mut next: Vec<u32> = flat.chains.iter().map(oldest).collect();
        loop {
            let (mut is_over, mut ended) = (true, false);
            for (chain, next) in flat.chains.iter().zip(&mut next) {
                while *next < done(chain.first_lane, F) {
                    let n = *next;
                    let before = held.clone();
                    let mut run = |lane: usize, kind: u32| {
                        let about = &flat.lanes[lane];
                        let fits = held[about.rank] + about.takes[kind as usize] <= flat.limit[about.rank];
                        held[about.rank] += about.net(kind);
                        fits
                    };
                    let ends = lanes_of(chain)
                        .filter(|lane| done(*lane, B) > n && done(*lane, W) <= n)
                        .all(|lane| run(lane, W))
                        && lanes_of(chain).filter(|lane| done(*lane, F) <= n).all(|lane| run(lane, F))
                        && lanes_of(chain)
                            .rev()
                            .filter(|lane| done(*lane, B) <= n)
                            .all(|lane| if is_whole(lane) { run(lane, BW) } else { run(lane, B) && run(lane, W) });
                    if !ends {
                        held = before;
                        is_over = false;
                        break;
                    }
                    *next += 1;
                    ended = true;
                }
            }
            if is_over || !ended {
                return is_over;
            }
        }
    }

    /// Starts an op.
    pub(super) fn run(&self, state: &mut State, code: Code) {
        let (flat, index, kind) = (self.flat, lane_of(code), kind_of(code));
        let (lane, about) = (&flat.lanes[index], &self.lanes[index]);
        let rank = lane.rank;
        let start = self.arrival(state, index, kind).unwrap_or(0).max(state.free[rank]).max(state.now);
        let end = start + lane.duration[kind as usize];
        state.hash ^= mark(index, &state.done[index]);
        let [f, b, w] = &mut state.done[index];
        // What is left of the rank's work: behind a B by itself a whole W.
        let (least, more) = match kind {
            F => {
                if lane.last {
                    state.arrive[flat.slots + lane.offset + *f as usize] = end;
                } else {
                    let next = &flat.lanes[index + 1];
                    state.arrive[next.offset + *f as usize] = end + next.hop_f;
                }
                *f += 1;
                (about.least[0], 0)
            }
            W => {
                *w += 1;
                (about.weights, 0)
            }
            _ => {
                if !lane.first {
                    let before = &flat.lanes[index - 1];
                    state.arrive[flat.slots + before.offset + *b as usize] = end + before.hop_b;
                }
                *b += 1;
                if kind == BW {
                    *w += 1;
                    (about.least[1] + about.least[2], 0)
                } else {
                    (about.least[1] + about.least[2], about.weights)
                }
            }
        };
        state.hash ^= mark(index, &state.done[index]);
        state.left[rank] = state.left[rank] - least + more;
        state.held[rank] += lane.net(kind);
        state.free[rank] = end;
        state.first[rank] = state.first[rank].min(start);
        state.now = start;
    }
}

/// What the ops of a lane add to the hash of a state.
fn mark(lane: usize, done: &[u32; 3]) -> u64 {
    let [f, b, w] = done.map(u64::from);
    let mut bits = (lane as u64) << 48 | f << 32 | b << 16 | w;
    bits = bits.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
