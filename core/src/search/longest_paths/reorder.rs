//! The dynamic topological sort: ops of one rank change places.

use super::LongestPaths;
use super::ops::{NEVER, NONE, State};
use crate::search::flat_problem::Flat;

/// A move: where in an op list some ops change places, and how.
#[derive(Clone, Copy, Debug)]
pub(in crate::search) struct Shift {
    pub rank: usize,
    /// The first place that changes.
    pub from: usize,
    /// The number of ops that go ahead of the others, and are then the first of the piece; or that go behind them, and
    /// are then the last.
    pub count: usize,
    pub ahead: bool,
}

impl LongestPaths {
    /// Sorts all ops topologically, with their starts.
    pub(super) fn line_up(&mut self, flat: &Flat) -> bool {
        for state in &mut self.states {
            state.end = NEVER;
        }
        self.at.fill(0);
        self.blocked.fill(NONE);
        self.line.clear();
        self.stack.clear();
        self.stack.extend((0..flat.ranks as u32).rev());
        while let Some(rank) = self.stack.pop() {
            let rank = rank as usize;
            while let Some(&id) = self.rows[rank].get(self.at[rank] as usize) {
                let State { before, after, .. } = self.states[id as usize];
                if before != NONE && self.states[before as usize].end == NEVER {
                    self.blocked[rank] = id;
                    break;
                }
                let at = self.at[rank];
                self.at[rank] = at + 1;
                let near = |place: Option<u32>| {
                    place.and_then(|place| self.rows[rank].get(place as usize)).copied().unwrap_or(NONE)
                };
                let (previous, next) = (near(at.checked_sub(1)), near(Some(at + 1)));
                let spot = self.line.len() as u32;
                let state = &mut self.states[id as usize];
                (state.place, state.previous, state.next, state.spot) = (at, previous, next, spot);
                self.states[id as usize].end = self.end(id as usize);
                self.line.push(id);
                if after != NONE {
                    let other = self.nodes[after as usize].rank;
                    if self.blocked[other as usize] == after {
                        self.blocked[other as usize] = NONE;
                        self.stack.push(other);
                    }
                }
            }
        }
        self.line.len() == self.nodes.len()
    }

    /// Puts `ops` in the place of the same ops in an op list. False, and nothing is changed, where ranks would
    /// deadlock.
    pub fn change(&mut self, flat: &Flat, shift: Shift, ops: &[u32]) -> bool {
        let Shift { rank, from, ahead, .. } = shift;
        if !(if ahead { self.mend::<true>(shift, ops) } else { self.mend::<false>(shift, ops) }) {
            return false;
        }
        let to = from + ops.len();
        self.rows[rank][from..to].copy_from_slice(ops);
        self.hold(rank, from, to);
        let mut previous = from.checked_sub(1).map_or(NONE, |place| self.rows[rank][place]);
        for (place, &id) in (from as u32..).zip(ops) {
            if previous != NONE {
                self.states[previous as usize].next = id;
            }
            let state = &mut self.states[id as usize];
            (state.place, state.previous) = (place, previous);
            previous = id;
        }
        let next = self.rows[rank].get(to).copied().unwrap_or(NONE);
        self.states[previous as usize].next = next;
        if next != NONE {
            self.states[next as usize].previous = previous;
        }
        self.time(flat, rank, from, to);
        true
    }

    /// Repairs the topological order for ops that go ahead of the rest of a piece of an op list, with all that they
    /// need; or behind it, with all that needs them. False, and nothing is changed, where one of those is on the same
    /// rank.
    fn mend<const AHEAD: bool>(&mut self, shift: Shift, ops: &[u32]) -> bool {
        self.moves += 1;
        self.taken.clear();
        let end = if AHEAD { shift.from } else { shift.from + ops.len() - 1 };
        // Where they go, and how far from there they come.
        let edge = self.states[self.rows[shift.rank][end] as usize].spot;
        let mut far = edge;
        for at in 0..shift.count {
            let id = if AHEAD { ops[at] } else { ops[ops.len() - 1 - at] };
            let spot = self.states[id as usize].spot;
            far = if AHEAD { far.max(spot) } else { far.min(spot) };
            let first = self.taken.len();
            self.seen[id as usize] = self.moves;
            self.stack.clear();
            self.stack.push(id);
            while let Some(id) = self.stack.pop() {
                self.taken.push(id);
                let state = &self.states[id as usize];
                let (other, along) = if AHEAD { (state.before, state.previous) } else { (state.after, state.next) };
                let is_on_rank = self.nodes[id as usize].rank as usize == shift.rank;
                for other in [other, if is_on_rank { NONE } else { along }] {
                    if other == NONE || self.seen[other as usize] == self.moves {
                        continue;
                    }
                    let spot = self.states[other as usize].spot;
                    if if AHEAD { spot < edge } else { spot > edge } {
                        continue;
                    }
                    if self.nodes[other as usize].rank as usize == shift.rank {
                        return false;
                    }
                    self.seen[other as usize] = self.moves;
                    self.stack.push(other);
                }
            }
            let states = &self.states;
            self.taken[first..].sort_unstable_by_key(|id| {
                let spot = states[*id as usize].spot;
                if AHEAD { spot } else { u32::MAX - spot }
            });
        }
        // The others make way, those next to them first.
        let (edge, far) = (edge as usize, far as usize);
        let (low, high) = (edge.min(far), edge.max(far));
        let mut free = far;
        for step in 0..=high - low {
            let id = self.line[if AHEAD { high - step } else { low + step }];
            if self.seen[id as usize] != self.moves {
                self.set(free, id);
                free = if AHEAD { free.wrapping_sub(1) } else { free + 1 };
            }
        }
        for at in 0..self.taken.len() {
            self.set(if AHEAD { low + at } else { high - at }, self.taken[at]);
        }
        self.ops += self.taken.len() as u64 + (high - low) as u64 / 8;
        true
    }

    fn set(&mut self, spot: usize, id: u32) {
        self.line[spot] = id;
        self.states[id as usize].spot = spot as u32;
    }
}
