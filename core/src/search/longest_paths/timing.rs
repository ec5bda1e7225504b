//! The ends of ops, and the longest paths from them to the end.

use super::LongestPaths;
use super::ops::NONE;
use crate::problem::Objective;
use crate::search::flat_problem::Flat;
use crate::search::makespan::Cost;

impl LongestPaths {
    #[inline]
    pub(super) fn end(&self, id: usize) -> u64 {
        let state = &self.states[id];
        let mut start = if state.previous == NONE { 0 } else { self.states[state.previous as usize].end };
        if state.before != NONE {
            start = start.max(self.states[state.before as usize].end + state.lag_in);
        }
        start + state.duration
    }

    #[inline]
    pub(super) fn reach(&self, id: usize) -> u64 {
        let state = &self.states[id];
        let mut after = match state.next {
            NONE => self.weight[self.nodes[id].rank as usize],
            next => self.states[next as usize].reach,
        };
        if state.after != NONE {
            after = after.max(self.states[state.after as usize].reach + state.lag_out);
        }
        after + state.duration
    }

    /// The start of an op.
    pub fn start(&self, id: usize) -> u64 {
        self.states[id].end - self.states[id].duration
    }

    /// Computes the cost from the starts, and the weight of each rank's end; true where that has changed.
    pub(super) fn weigh(&mut self, flat: &Flat) -> bool {
        let spans = flat.objective == Objective::LongestSpan;
        let firsts = || self.rows.iter().filter_map(|row| row.first()).map(|id| self.start(*id as usize));
        let latest = firsts().max().unwrap_or(0);
        self.shift = if spans { latest } else { firsts().min().unwrap_or(0) };
        let mut cost = Cost { objective: 0, ends: 0 };
        let mut changed = false;
        for (rank, row) in self.rows.iter().enumerate() {
            let (Some(&first), Some(&last)) = (row.first(), row.last()) else { continue };
            let weight = if spans { latest - self.start(first as usize) } else { 0 };
            changed |= weight != self.weight[rank];
            self.weight[rank] = weight;
            let end = self.states[last as usize].end;
            cost.objective = cost.objective.max(end + weight - self.shift);
            cost.ends += end / flat.ranks as u64;
        }
        self.cost = cost;
        changed
    }

    /// Computes the bytes that a rank holds before each op from `from` up to `to`.
    pub(super) fn hold(&mut self, rank: usize, from: usize, to: usize) {
        let row = &self.rows[rank];
        let net = |place: usize| self.nodes[row[place] as usize].net;
        let held = &mut self.held[rank];
        let mut now = if from == 0 { 0 } else { held[from - 1] + net(from - 1) };
        for (place, held) in held.iter_mut().enumerate().take(to).skip(from) {
            *held = now;
            now += net(place);
        }
    }

    fn mark(&mut self, id: u32) {
        if id != NONE {
            let spot = self.states[id as usize].spot as usize;
            self.due[spot / 64] |= 1 << (spot % 64);
        }
    }

    /// Computes again the times that a change of an op list from `from` up to `to` affects.
    pub(super) fn time(&mut self, flat: &Flat, rank: usize, from: usize, to: usize) {
        let first = self.rows[rank][from];
        let mut word = self.states[first as usize].spot as usize / 64;
        for place in from..=to.min(self.rows[rank].len() - 1) {
            self.mark(self.rows[rank][place]);
        }
        let mut timed = 0;
        while word < self.due.len() {
            if self.due[word] == 0 {
                word += 1;
                continue;
            }
            let bit = self.due[word].trailing_zeros() as usize;
            self.due[word] &= self.due[word] - 1;
            let id = self.line[64 * word + bit] as usize;
            timed += 1;
            let end = self.end(id);
            if end != self.states[id].end {
                self.states[id].end = end;
                self.mark(self.states[id].next);
                self.mark(self.states[id].after);
            }
        }
        let weighed = self.weigh(flat);
        for place in from.saturating_sub(1)..to {
            self.mark(self.rows[rank][place]);
        }
        let mut word = self.states[self.rows[rank][to - 1] as usize].spot as usize / 64;
        if weighed {
            word = self.due.len() - 1;
            for rank in 0..self.rows.len() {
                self.mark(self.rows[rank].last().copied().unwrap_or(NONE));
            }
        }
        loop {
            if self.due[word] == 0 {
                if word == 0 {
                    break;
                }
                word -= 1;
                continue;
            }
            let bit = 63 - self.due[word].leading_zeros() as usize;
            self.due[word] &= !(1 << bit);
            let id = self.line[64 * word + bit] as usize;
            timed += 1;
            let reach = self.reach(id);
            if reach != self.states[id].reach {
                self.states[id].reach = reach;
                self.mark(self.states[id].previous);
                self.mark(self.states[id].before);
            }
        }
        self.ops += timed;
    }
}
