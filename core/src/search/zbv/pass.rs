//! One pass of the rule over all ops: waves, top-up, rounds.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::{Order, Prefer, TopUp, Variant};
use crate::search::bankers::{Room, allowed};
use crate::search::flat_problem::{B, F, Flat, Rows, W, code};

/// One pass over all ops.
struct Pass<'a> {
    pub(super) flat: &'a Flat,
    pub(super) variant: Variant,
    pub(super) alone: &'a [i64],
    /// By lane: how many F, B and W have been placed.
    done: Vec<[u32; 3]>,
    /// By slot: when F and B end.
    end_f: Vec<u64>,
    end_b: Vec<u64>,
    clock: Vec<u64>,
    held: Vec<i64>,
    /// By rank: the lanes whose W wait, oldest first.
    weights: Vec<VecDeque<usize>>,
    /// By rank: idle time since its first op, and the most of any rank.
    pub(super) idle: Vec<u64>,
    pub(super) worst: u64,
    /// By rank: the idle time that an earlier pass leaves to it.
    pub(super) granted: Vec<u64>,
    pub(super) rows: Rows,
    placed: usize,
}

/// The rows that `variant` leads to, and the idle time of each rank. `granted` by rank is what an earlier pass
/// leaves to it (see [`grants`]). None where the ops do not all find a place.
pub(in crate::search) fn build(
    flat: &Flat,
    alone: &[i64],
    variant: Variant,
    granted: Vec<u64>,
) -> Option<(Rows, Vec<u64>)> {
    let per_rank = |rank: usize| flat.lanes_of[rank].iter().map(|lane| 3 * flat.lanes[*lane].count).sum();
    let mut pass = Pass {
        flat,
        variant,
        alone,
        done: vec![[0; 3]; flat.lanes.len()],
        end_f: vec![0; flat.slots],
        end_b: vec![0; flat.slots],
        clock: vec![0; flat.ranks],
        held: vec![0; flat.ranks],
        weights: vec![VecDeque::new(); flat.ranks],
        idle: vec![0; flat.ranks],
        worst: 0,
        granted,
        rows: (0..flat.ranks).map(|rank| Vec::with_capacity(per_rank(rank))).collect(),
        placed: 0,
    };
    pass.waves();
    pass.top_up();
    pass.rounds();
    (pass.placed == flat.ops).then_some((pass.rows, pass.idle))
}

/// What a pass with these idle times leaves to each rank of the next.
pub(in crate::search) fn grants(idle: &[u64]) -> Vec<u64> {
    let worst = idle.iter().copied().max().unwrap_or(0);
    idle.iter().map(|idle| worst - idle).collect()
}

impl Pass<'_> {
    /// When the next op of `kind`, F or B, has what it needs; none if that is not placed yet.
    fn arrival(&self, lane: usize, kind: u32) -> Option<u64> {
        let costs = &self.flat.lanes[lane];
        let n = self.done[lane][kind as usize];
        if n as usize >= costs.count {
            return None;
        }
        let from = |other: usize, slot: u32| self.flat.lanes[other].offset + slot as usize;
        match kind {
            F if costs.first => Some(0),
            F => (self.done[lane - 1][0] > n).then(|| self.end_f[from(lane - 1, n)] + costs.hop_f),
            _ if costs.last => (self.done[lane][0] > n).then(|| self.end_f[from(lane, n)]),
            _ => (self.done[lane + 1][1] > n).then(|| self.end_b[from(lane + 1, n)] + costs.hop_b),
        }
    }

    fn fits(&self, lane: usize, kind: u32) -> bool {
        let rank = self.flat.lanes[lane].rank;
        if self.variant.order == Order::Public {
            return self.held[rank] + self.flat.lanes[lane].takes[kind as usize] <= self.flat.limit[rank];
        }
        let (limit, held, alone) = (self.flat.limit[rank], self.held[rank], self.alone[rank]);
        let room = Room { rank, limit, held, alone, in_turn: false };
        allowed(&room, self.flat, &self.done, lane, kind)
    }

    /// Places the next op of a lane, as early as it can start.
    fn put(&mut self, lane: usize, kind: u32, arrival: u64) {
        let costs = &self.flat.lanes[lane];
        let rank = costs.rank;
        let start = self.clock[rank].max(arrival);
        if !self.rows[rank].is_empty() {
            self.idle[rank] += start - self.clock[rank];
            self.worst = self.worst.max(self.idle[rank]);
        }
        let end = start + costs.duration[kind as usize];
        let slot = costs.offset + self.done[lane][kind as usize] as usize;
        match kind {
            F => self.end_f[slot] = end,
            B => {
                self.end_b[slot] = end;
                self.weights[rank].push_back(lane);
            }
            _ => {}
        }
        self.clock[rank] = end;
        self.held[rank] += costs.net(kind);
        self.done[lane][kind as usize] += 1;
        self.rows[rank].push(code(lane, kind));
        self.placed += 1;
    }

    /// Places the oldest W that waits and has the memory to run, in the public rule no other than the oldest; false if there
    /// is none.
    fn put_weight(&mut self, rank: usize) -> bool {
        let looked_at = if self.variant.order == Order::Public { 1 } else { usize::MAX };
        let mut waiting = self.weights[rank].iter().take(looked_at);
        let Some(at) = waiting.position(|lane| self.fits(*lane, W)) else { return false };
        let Some(lane) = self.weights[rank].remove(at) else { return false };
        self.put(lane, W, 0);
        true
    }

    /// Places a forward if it is there and fits.
    fn try_forward(&mut self, lane: usize) -> bool {
        match self.arrival(lane, F) {
            Some(arrival) if self.fits(lane, F) => {
                self.put(lane, F, arrival);
                true
            }
            _ => false,
        }
    }

    /// Lanes of a rank's chunk, `chunk` from 0.
    fn wave(&self, chunk: usize) -> core::ops::Range<usize> {
        chunk * self.flat.ranks..(chunk + 1) * self.flat.ranks
    }

    /// When the next F of `lane` would end.
    fn end_of_forward(&self, lane: usize) -> Option<u64> {
        let costs = &self.flat.lanes[lane];
        Some(self.arrival(lane, F)?.max(self.clock[costs.rank]) + costs.duration[0])
    }

    /// Bytes of one microbatch on all chunks of a rank.
    fn microbatch(&self, rank: usize) -> i64 {
        self.flat.lanes_of[rank].iter().map(|lane| self.flat.lanes[*lane].net(F)).sum()
    }

    /// Step 1: the first microbatch through every chunk.
    fn waves(&mut self) {
        let ranks = self.flat.ranks;
        for chunk in 0..self.flat.chunks() {
            for (at, lane) in self.wave(chunk).enumerate() {
                let rank = self.flat.lanes[lane].rank;
                let Some(arrival) = self.arrival(lane, F) else { return };
                // The first microbatches in stay on the ranks ahead of the wave until it has reached them. So
                // a rank with many still ahead keeps as many microbatches' bytes free, in proportion if the
                // limit is below what all ranks' would take.
                let ahead = (ranks - at) as i64;
                let most = self.microbatch(rank).saturating_mul(ranks as i64).min(self.flat.limit[rank]);
                let keep = most / ranks as i64 * ahead;
                let first = rank_lane(self.flat, rank);
                while chunk > 0
                    && at > 0
                    && self.held[rank] + keep <= self.flat.limit[rank]
                    && self.ends_in_time(first, arrival)
                {
                    if !self.send_to(first) {
                        break;
                    }
                }
                if !self.try_forward(lane) {
                    return;
                }
            }
        }
    }

    /// Whether a rank can take a forward of its first chunk before `arrival`. The public planner asks the rank alone.
    fn ends_in_time(&self, lane: usize, arrival: u64) -> bool {
        if self.variant.order == Order::Public {
            let costs = &self.flat.lanes[lane];
            return self.clock[costs.rank] + costs.duration[0] <= arrival
                && (self.done[lane][0] as usize) < costs.count;
        }
        self.end_of_forward_through(lane).is_some_and(|end| end <= arrival)
    }

    /// When a microbatch that enters now has run on `lane` of the first chunk.
    fn end_of_forward_through(&self, lane: usize) -> Option<u64> {
        if self.done[0][0] as usize >= self.flat.lanes[0].count {
            return None;
        }
        // What the ranks before have in advance comes first.
        let mut end = 0;
        for index in 0..=lane {
            let costs = &self.flat.lanes[index];
            let arrival = self.arrival(index, F).unwrap_or(end + costs.hop_f);
            end = arrival.max(self.clock[costs.rank]) + costs.duration[0];
        }
        Some(end)
    }

    /// One more forward of the first chunk on every rank up to `lane`.
    fn send_to(&mut self, lane: usize) -> bool {
        let before = self.done[lane][0];
        for index in 0..=lane {
            if !self.try_forward(index) && index == lane {
                return false;
            }
        }
        self.done[lane][0] > before
    }

    /// Step 2: further forwards on every rank, up to its first backward.
    pub(super) fn top_up(&mut self) {
        let chunks = self.flat.chunks();
        // The first backward goes down the last chunk: when it reaches each rank.
        let wave: Vec<usize> = self.wave(chunks - 1).rev().collect();
        let mut due = 0;
        let mut chunk = 0;
        for (at, &lane) in wave.iter().enumerate() {
            let costs = &self.flat.lanes[lane];
            let rank = costs.rank;
            if at == 0 {
                due = self.clock[rank] + costs.duration[1];
                continue;
            }
            due += costs.hop_b;
            // By count the chunks go on in turn where the rank before has left off.
            if self.variant.top_up == TopUp::Time {
                chunk = 0;
            }
            let mut missed = 0;
            while missed < chunks {
                let own = self.flat.lanes_of[rank][chunk];
                let go = match self.variant.top_up {
                    TopUp::Counts => {
                        let before = self.flat.lanes[wave[at - 1]].rank;
                        let last = |rank: usize| self.done[self.flat.lanes_of[rank][chunks - 1]][0];
                        self.forwards(rank) < self.forwards(before)
                            || (last(rank) <= last(before) && (last(before) as usize) < costs.count)
                    }
                    TopUp::Time => self.end_of_forward(own).is_some_and(|end| end <= due),
                };
                let mut any = false;
                if go {
                    // The ranks behind get the same, from the far end: what they hold comes this way.
                    let group: Vec<usize> = match self.variant.top_up {
                        TopUp::Counts => wave[at..].iter().rev().copied().collect(),
                        TopUp::Time => vec![lane],
                    };
                    for other in group {
                        let rank = self.flat.lanes[other].rank;
                        any |= self.try_forward(self.flat.lanes_of[rank][chunk]);
                    }
                }
                missed = if any { 0 } else { missed + 1 };
                chunk = (chunk + 1) % chunks;
            }
            due = due.max(self.clock[rank]) + costs.duration[1];
        }
    }

    fn forwards(&self, rank: usize) -> u32 {
        self.flat.lanes_of[rank].iter().map(|lane| self.done[*lane][0]).sum()
    }

    /// Steps 3 and 4.
    fn rounds(&mut self) {
        loop {
            let before = self.placed;
            for kind in [B, F] {
                if kind == B && self.variant.order == Order::Public {
                    self.backwards();
                    continue;
                }
                for at in 0..self.flat.ranks {
                    let rank = if self.variant.order == Order::Up { self.flat.ranks - 1 - at } else { at };
                    self.turn(rank, kind);
                }
            }
            if self.placed == before {
                break;
            }
        }
        for rank in 0..self.flat.ranks {
            while self.put_weight(rank) {}
        }
    }

    /// One op of `kind` on `rank`, with the W that go before it.
    fn turn(&mut self, rank: usize, kind: u32) {
        let prefer = if kind == B { self.variant.prefer_b } else { self.variant.prefer_f };
        let lanes = &self.flat.lanes_of[rank];
        let mut refused = vec![false; lanes.len()];
        loop {
            let mut best: Option<(u64, usize, u64)> = None;
            for (position, &lane) in lanes.iter().enumerate() {
                if refused[position] {
                    continue;
                }
                let Some(arrival) = self.arrival(lane, kind) else { continue };
                let key = match prefer {
                    Prefer::End if kind == B => position as u64,
                    Prefer::End => (lanes.len() - 1 - position) as u64,
                    Prefer::Soonest => arrival.max(self.clock[rank]),
                };
                // Equal times: the later chunk first in F, the earlier in B.
                if best.is_none_or(|(other, _, _)| key < other || (kind == F && key == other)) {
                    best = Some((key, position, arrival));
                }
            }
            let Some((_, position, arrival)) = best else { return };
            if self.put_with_weights(lanes[position], kind, arrival) {
                return;
            }
            refused[position] = true;
        }
    }

    /// One B on every rank, as in [`Order::Public`]: of the first chunk whose gradient is there, or of the last.
    fn backwards(&mut self) {
        let flat = self.flat;
        let choice = |lanes: &Vec<usize>| {
            let is_there = lanes.iter().find(|lane| self.arrival(**lane, B).is_some());
            let is_left = |lane: &&usize| (self.done[**lane][1] as usize) < flat.lanes[**lane].count;
            is_there.or_else(|| lanes.iter().rev().find(is_left)).copied()
        };
        let mut chosen: Vec<usize> = flat.lanes_of.iter().filter_map(choice).collect();
        // Within a chunk in the order in which a gradient comes by.
        chosen.sort_unstable_by_key(|lane| (lane / flat.ranks, Reverse(*lane)));
        for lane in chosen {
            if let Some(arrival) = self.arrival(lane, B) {
                self.put_with_weights(lane, B, arrival);
            }
        }
    }

    /// Places an op with the W that go before it; false if memory is not enough.
    fn put_with_weights(&mut self, lane: usize, kind: u32, arrival: u64) -> bool {
        let rank = self.flat.lanes[lane].rank;
        // Only what waits can be given back: if that is not enough, W keep for gaps.
        let back: i64 = if self.fits(lane, kind) {
            0
        } else {
            self.weights[rank].iter().map(|lane| -self.flat.lanes[*lane].net(W)).sum()
        };
        if self.held[rank] - back + self.flat.lanes[lane].takes[kind as usize] <= self.flat.limit[rank] {
            while !self.fits(lane, kind) && self.put_weight(rank) {}
        }
        if !self.fits(lane, kind) {
            return false;
        }
        self.fill(lane, kind, arrival);
        self.put(lane, kind, arrival);
        true
    }

    /// W before an op that arrives at `arrival`.
    fn fill(&mut self, lane: usize, kind: u32, arrival: u64) {
        let rank = self.flat.lanes[lane].rank;
        while let Some(&lane) = self.weights[rank].front()
            && self.clock[rank] + self.flat.lanes[lane].duration[2] <= arrival
        {
            if !self.put_weight(rank) {
                return;
            }
        }
        let wait = arrival.saturating_sub(self.clock[rank]);
        let allowed = self.worst.max(self.granted[rank]);
        let always = kind == B && self.variant.order == Order::Public && lane < self.flat.ranks;
        let late = always || if kind == B { self.variant.late_b } else { self.variant.late_f };
        if late && self.idle[rank] + wait > allowed {
            self.put_weight(rank);
        }
    }
}

/// The lane of a rank's first chunk.
fn rank_lane(flat: &Flat, rank: usize) -> usize {
    flat.lanes_of[rank].first().copied().unwrap_or(0)
}
