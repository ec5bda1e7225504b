//! A backward changes between cut (B and W) and whole (BW).

use super::LongestPaths;
use super::ops::NOTHING;
use super::reorder::Shift;
use crate::search::flat_problem::{B, BW, Flat, W, code, kind_of, lane_of};

impl LongestPaths {
    /// The B and the W of a backward that may change between split and whole, from either of them.
    pub fn backward(&self, flat: &Flat, id: u32) -> Option<(u32, u32)> {
        let (kind, slot) = (id as usize / flat.slots, id % flat.slots as u32);
        let number = |kind: usize| (kind * flat.slots) as u32 + slot;
        (kind > 0 && !flat.fused && flat.lanes[lane_of(self.nodes[number(1) as usize].code)].gains_whole())
            .then(|| (number(1), number(2)))
    }

    /// Whether a backward, named by its B, is whole.
    pub fn is_whole(&self, backward: u32) -> bool {
        kind_of(self.nodes[backward as usize].code) == BW
    }

    /// Makes a backward whole or split at the places of its B and W; paths and bytes stay as they were.
    pub(super) fn make(&mut self, flat: &Flat, backward: u32, whole: bool) {
        let index = lane_of(self.nodes[backward as usize].code);
        let (lane, weights) = (&flat.lanes[index], backward as usize + flat.slots);
        let kind = if whole { BW } else { B };
        for (id, kind) in [(backward as usize, kind), (weights, W)] {
            let is_nothing = whole && kind == W;
            let node = &mut self.nodes[id];
            node.code = if is_nothing { NOTHING } else { code(index, kind) };
            node.takes = if is_nothing { 0 } else { lane.takes[kind as usize] };
            node.net = if is_nothing { 0 } else { lane.net(kind) };
            self.states[id].duration = if is_nothing { 0 } else { lane.duration[kind as usize] };
        }
        let nothing = &mut self.nothing[lane.rank];
        *nothing = if whole { *nothing + 1 } else { *nothing - 1 };
    }

    /// Makes a split backward whole at the place of its B; false, and nothing is changed, where memory lacks.
    pub fn join(&mut self, flat: &Flat, backward: u32) -> bool {
        let weights = backward + flat.slots as u32;
        let rank = self.nodes[backward as usize].rank as usize;
        let (from, at) =
            (self.states[backward as usize].place as usize, self.states[weights as usize].place as usize);
        self.make(flat, backward, true);
        if !self.holds(flat, rank, from) {
            self.make(flat, backward, false);
            return false;
        }
        let to = self.rows[rank].len() - self.nothing[rank];
        let mut ops = self.rows[rank][at + 1..=to].to_vec();
        ops.push(weights);
        let moved = self.change(flat, Shift { rank, from: at, count: 1, ahead: false }, &ops);
        debug_assert!(moved, "a W stands in the way of nothing");
        self.hold(rank, from, self.rows[rank].len());
        self.time(flat, rank, from, from + 1);
        true
    }

    /// Splits a whole backward, with its W at place `at`, behind its B; false, and nothing is changed, where memory
    /// lacks.
    pub fn part(&mut self, flat: &Flat, backward: u32, at: usize) -> bool {
        let weights = backward + flat.slots as u32;
        let rank = self.nodes[backward as usize].rank as usize;
        let (from, to) =
            (self.states[backward as usize].place as usize, self.states[weights as usize].place as usize);
        let mut ops = self.rows[rank][at..to].to_vec();
        ops.insert(0, weights);
        self.change(flat, Shift { rank, from: at, count: 1, ahead: true }, &ops);
        self.make(flat, backward, false);
        if !self.holds(flat, rank, from) {
            self.make(flat, backward, true);
            ops.remove(0);
            ops.push(weights);
            self.change(flat, Shift { rank, from: at, count: 1, ahead: false }, &ops);
            return false;
        }
        self.hold(rank, from, self.rows[rank].len());
        self.time(flat, rank, from, at + 1);
        true
    }

    /// Whether a rank keeps its limit from a place on.
    fn holds(&mut self, flat: &Flat, rank: usize, from: usize) -> bool {
        let row = &self.rows[rank][from..];
        self.ops += row.len() as u64 / 2;
        let mut held = self.held[rank][from];
        row.iter().all(|id| {
            let node = &self.nodes[*id as usize];
            let fits = held + node.takes <= flat.limit[rank];
            held += node.net;
            fits
        })
    }
}
