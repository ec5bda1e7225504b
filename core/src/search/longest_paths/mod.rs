//! An order of ops, with the longest ways to and from each op, kept up to date from move to move.
//!
//! A move changes some ops of one row. The line of all ops in which each stands behind what it needs is mended only
//! between the ends of the move (Pearce and Kelly, “A dynamic topological sort algorithm for directed acyclic
//! graphs”, 2006), and only those ops are timed again of which something before them, or behind them, has changed.
//! So a move costs in proportion to what it changes.

use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{B, BW, Code, F, Flat, Rows, W, code, kind_of, lane_of};
use super::makespan::Cost;
use crate::problem::Objective;

pub(super) const NONE: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;
/// What a W is of which the backward is whole: nothing.
const NOTHING: Code = Code::MAX;

/// One op of one microbatch: what it does to its rank.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub takes: i64,
    pub net: i64,
    pub rank: u32,
    code: Code,
}

/// What the ways through an op are worked out from, and they themselves: on one line of a processor's cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct State {
    pub duration: u64,
    /// From the end of the op on another rank that this one needs to the soonest start of this one.
    pub lag_in: u64,
    /// From the end of this op to the soonest start of the op on another rank that needs it.
    pub lag_out: u64,
    /// The end, and the longest way from the start of the op to the end of all.
    pub end: u64,
    pub reach: u64,
    /// The ops on other ranks that this one needs and that need it, or [`NONE`].
    pub before: u32,
    pub after: u32,
    /// The ops before it and behind it in its row, or [`NONE`].
    pub previous: u32,
    next: u32,
    /// Where it stands in its row.
    pub place: u32,
    /// Where it stands in the line of all ops.
    spot: u32,
}

/// Where in a row some ops change places, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    pub rank: usize,
    /// The first place that changes.
    pub from: usize,
    /// So many ops go ahead of the others, and are the first of the new ones; or go behind them, and are the last.
    pub count: usize,
    pub ahead: bool,
}

pub(super) struct Walk {
    pub nodes: Vec<Node>,
    pub states: Vec<State>,
    /// By node: the ops of its rank that it needs directly, and that need it; of the same kind, lane or microbatch.
    pub needs: Vec<[u32; 3]>,
    pub needed: Vec<[u32; 3]>,
    pub rows: Vec<Vec<u32>>,
    /// By rank and place: bytes held before the op.
    pub held: Vec<Vec<i64>>,
    /// By rank: what its end counts for beyond itself, so that the largest sum is the cost and `shift`.
    pub weight: Vec<u64>,
    pub shift: u64,
    pub cost: Cost,
    /// All ops, each behind what it needs.
    line: Vec<u32>,
    /// By spot: whether the op there has to be timed.
    due: Vec<u64>,
    /// By node: the last move that it was looked at for.
    seen: Vec<u32>,
    moves: u32,
    stack: Vec<u32>,
    taken: Vec<u32>,
    at: Vec<u32>,
    blocked: Vec<u32>,
    /// By rank: the W of whole backwards, which stand behind all else in its row.
    pub nothing: Vec<usize>,
    /// Ops timed or looked at so far.
    pub ops: u64,
}

impl Walk {
    /// `rows`, which have to be valid; none where the ranks wait for each other for ever. `mixes` says whether backwards
    /// may change between cut and whole: then those of a stage may have their W in any order.
    pub fn new(flat: &Flat, rows: &[Vec<Code>], mixes: bool) -> Option<Walk> {
        let (nodes, states) = nodes(flat);
        let (needs, needed) = links(flat, mixes);
        let count = nodes.len();
        let mut walk = Walk {
            states,
            needs,
            needed,
            rows: Vec::new(),
            held: Vec::new(),
            weight: vec![0; flat.ranks],
            shift: 0,
            cost: Cost::WORST,
            line: Vec::with_capacity(count),
            due: vec![0; count.div_ceil(64)],
            seen: vec![0; count],
            moves: 0,
            stack: Vec::new(),
            taken: Vec::new(),
            at: vec![0; flat.ranks],
            blocked: vec![NONE; flat.ranks],
            nothing: vec![0; flat.ranks],
            ops: 0,
            nodes,
        };
        let (rows, whole) = numbered(flat, rows);
        walk.held = rows.iter().map(|row| vec![0; row.len()]).collect();
        whole.iter().for_each(|backward| walk.make(flat, *backward, true));
        walk.start_at(flat, &rows).then_some(walk)
    }

    /// The codes of rows of nodes.
    pub fn codes(&self, rows: &[Vec<u32>]) -> Rows {
        let codes = |row: &Vec<u32>| {
            row.iter().map(|node| self.nodes[*node as usize].code).filter(|code| *code != NOTHING).collect()
        };
        rows.iter().map(codes).collect()
    }

    /// Goes on from rows of codes, whichever backwards are whole there; false where the ranks wait for each other for ever.
    pub fn start_at_codes(&mut self, flat: &Flat, rows: &[Vec<Code>]) -> bool {
        let (rows, whole) = numbered(flat, rows);
        for backward in flat.slots as u32..2 * flat.slots as u32 {
            if self.is_whole(backward) && !flat.fused {
                self.make(flat, backward, false);
            }
        }
        whole.iter().for_each(|backward| self.make(flat, *backward, true));
        self.start_at(flat, &rows)
    }

    /// The B of a backward that may change between cut and whole, and its W, for either of them.
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

    /// Makes a backward whole or cut where its B and W stand; ways and bytes are left as they were.
    fn make(&mut self, flat: &Flat, backward: u32, whole: bool) {
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

    /// Makes a cut backward whole where its B stands; false, and nothing is changed, where memory lacks.
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

    /// Cuts a whole backward, with its W at place `at`, which is behind its B; false, and nothing is changed, where memory
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

    /// Goes on from `rows`; false where the ranks wait for each other for ever.
    pub fn start_at(&mut self, flat: &Flat, rows: &[Vec<u32>]) -> bool {
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        if !self.line_up(flat) {
            return false;
        }
        for rank in 0..flat.ranks {
            self.hold(rank, 0, self.rows[rank].len());
        }
        self.weigh(flat);
        for spot in (0..self.line.len()).rev() {
            let id = self.line[spot] as usize;
            self.states[id].reach = self.reach(id);
        }
        self.ops += self.line.len() as u64 * 2;
        true
    }

    /// Puts all ops into line, with their starts.
    fn line_up(&mut self, flat: &Flat) -> bool {
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

    #[inline]
    fn end(&self, id: usize) -> u64 {
        let state = &self.states[id];
        let mut start = if state.previous == NONE { 0 } else { self.states[state.previous as usize].end };
        if state.before != NONE {
            start = start.max(self.states[state.before as usize].end + state.lag_in);
        }
        start + state.duration
    }

    #[inline]
    fn reach(&self, id: usize) -> u64 {
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

    /// Works out the cost from the starts, and what the end of each rank counts for; true where that has changed.
    fn weigh(&mut self, flat: &Flat) -> bool {
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

    /// Works out what a rank holds before each op from `from` up to `to`.
    fn hold(&mut self, rank: usize, from: usize, to: usize) {
        let row = &self.rows[rank];
        let net = |place: usize| self.nodes[row[place] as usize].net;
        let held = &mut self.held[rank];
        let mut now = if from == 0 { 0 } else { held[from - 1] + net(from - 1) };
        for (place, held) in held.iter_mut().enumerate().take(to).skip(from) {
            *held = now;
            now += net(place);
        }
    }

    /// Puts `ops` where as many of the same stand in a row. False, and nothing is changed, where ranks would wait for
    /// each other for ever.
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

    /// Mends the line for ops that go ahead of the rest of a piece of a row, with all that they need; or behind it, with
    /// all that needs them. False, and nothing is changed, where one of those is on the same rank.
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

    fn mark(&mut self, id: u32) {
        if id != NONE {
            let spot = self.states[id as usize].spot as usize;
            self.due[spot / 64] |= 1 << (spot % 64);
        }
    }

    /// Times what a change of a row from `from` up to `to` has changed.
    fn time(&mut self, flat: &Flat, rank: usize, from: usize, to: usize) {
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

/// All ops of all microbatches, by kind, lane and microbatch, in no order yet.
fn nodes(flat: &Flat) -> (Vec<Node>, Vec<State>) {
    let kinds = if flat.fused { 2 } else { 3 };
    let mut nodes = Vec::with_capacity(kinds * flat.slots);
    let mut states = Vec::with_capacity(kinds * flat.slots);
    let backward = if flat.fused { BW } else { B };
    for kind in 0..kinds {
        for (index, lane) in flat.lanes.iter().enumerate() {
            let other = |lane: Option<usize>| lane.filter(|other| flat.lanes[*other].rank != flat.lanes[index].rank);
            let (up, down) =
                (other(index.checked_sub(1).filter(|_| !lane.first)), other(Some(index + 1).filter(|_| !lane.last)));
            let code = code(index, [F, backward, W][kind]);
            let of = kind_of(code) as usize;
            let node = Node { takes: lane.takes[of], net: lane.net(of as u32), rank: lane.rank as u32, code };
            nodes.extend(core::iter::repeat_n(node, lane.count));
            let (before, after, lag_in, lag_out) = match kind {
                0 => (up, down, lane.hop_f, down.map_or(0, |down| flat.lanes[down].hop_f)),
                1 => (down, up, lane.hop_b, up.map_or(0, |up| flat.lanes[up].hop_b)),
                _ => (None, None, 0, 0),
            };
            for n in 0..lane.count {
                let id = |lane: Option<usize>| lane.map_or(NONE, |lane| number(flat, kind, lane, n));
                states.push(State {
                    duration: lane.duration[of],
                    lag_in,
                    lag_out,
                    end: 0,
                    reach: 0,
                    before: id(before),
                    after: id(after),
                    previous: NONE,
                    next: NONE,
                    place: 0,
                    spot: 0,
                });
            }
        }
    }
    (nodes, states)
}

fn number(flat: &Flat, kind: usize, lane: usize, n: usize) -> u32 {
    (kind * flat.slots + flat.lanes[lane].offset + n) as u32
}

/// By node, what it needs on its own rank, and what there needs it: the same op of the microbatch before, the job
/// before on its lane, and the same job on a neighbouring stage.
fn links(flat: &Flat, mixes: bool) -> (Vec<[u32; 3]>, Vec<[u32; 3]>) {
    let kinds = if flat.fused { 2 } else { 3 };
    let mut needs = vec![[NONE; 3]; kinds * flat.slots];
    let mut needed = needs.clone();
    let mut link = |slot: usize, one: u32, other: u32| {
        needs[other as usize][slot] = one;
        needed[one as usize][slot] = other;
    };
    for (index, lane) in flat.lanes.iter().enumerate() {
        for n in 0..lane.count {
            for kind in 0..kinds {
                let id = number(flat, kind, index, n);
                if n > 0 && !(mixes && kind == 2) {
                    link(0, number(flat, kind, index, n - 1), id);
                }
                if kind > 0 {
                    link(1, number(flat, kind - 1, index, n), id);
                }
            }
            if !lane.last && flat.lanes[index + 1].rank == lane.rank {
                link(2, number(flat, 0, index, n), number(flat, 0, index + 1, n));
                link(2, number(flat, 1, index + 1, n), number(flat, 1, index, n));
            }
        }
    }
    (needs, needed)
}

/// Rows of nodes, and the B of whole backwards among others that are cut. The n-th op of a lane and kind is that of its
/// n-th microbatch; a W that of the first cut backward that has none yet.
fn numbered(flat: &Flat, rows: &[Vec<Code>]) -> (Vec<Vec<u32>>, Vec<u32>) {
    let mut next = vec![[0usize; 3]; flat.lanes.len()];
    let mut all_whole = Vec::new();
    let mut numbered = Vec::with_capacity(rows.len());
    for row in rows {
        let mut nodes = Vec::with_capacity(row.len());
        let from = all_whole.len();
        for &code in row {
            let lane = lane_of(code);
            let kind = match kind_of(code) {
                F => 0,
                W => 2,
                _ => 1,
            };
            if kind == 2 {
                let is_whole = |n: usize| all_whole[from..].contains(&number(flat, 1, lane, n));
                while is_whole(next[lane][2]) {
                    next[lane][2] += 1;
                }
            }
            let id = number(flat, kind, lane, next[lane][kind]);
            next[lane][kind] += 1;
            nodes.push(id);
            if kind_of(code) == BW && !flat.fused {
                all_whole.push(id);
            }
        }
        nodes.extend(all_whole[from..].iter().map(|backward| backward + flat.slots as u32));
        numbered.push(nodes);
    }
    (numbered, all_whole)
}
