//! An order of ops, with the longest ways to and from each op, kept up to date from move to move.
//!
//! A move changes some ops of one row. The line of all ops in which each stands behind what it needs is mended only
//! between the ends of the move (Pearce and Kelly, “A dynamic topological sort algorithm for directed acyclic
//! graphs”, 2006), and only those ops are timed again of which something before them, or behind them, has changed.
//! So a move costs in proportion to what it changes.

use alloc::vec;
use alloc::vec::Vec;

use super::eval::Cost;
use super::flat::{B, BW, Code, F, Flat, Rows, W, code, kind_of, lane_of};
use crate::problem::Objective;

pub(super) const NONE: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;

/// One op of one microbatch: what never changes.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub duration: u64,
    /// From the end of the op on another rank that this one needs to the soonest start of this one.
    pub lag_in: u64,
    /// From the end of this op to the soonest start of the op on another rank that needs it.
    pub lag_out: u64,
    pub takes: i64,
    pub net: i64,
    /// The ops on other ranks that this one needs and that need it, or [`NONE`].
    pub before: u32,
    pub after: u32,
    pub rank: u32,
    code: Code,
}

/// What moves change.
#[derive(Clone, Copy)]
pub(super) struct State {
    /// The end, and the longest way from the start of the op to the end of all.
    pub end: u64,
    pub reach: u64,
    /// Where it stands in its row.
    pub place: u32,
    /// The ops before it and behind it in its row, or [`NONE`].
    pub previous: u32,
    next: u32,
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
    /// Ops timed or looked at so far.
    pub ops: u64,
}

impl Walk {
    /// `rows`, which have to be valid; none where the ranks wait for each other for ever.
    pub fn new(flat: &Flat, rows: &[Vec<Code>]) -> Option<Walk> {
        let nodes = nodes(flat);
        let (needs, needed) = links(flat);
        let count = nodes.len();
        let state = State { end: 0, reach: 0, place: 0, previous: NONE, next: NONE, spot: 0 };
        let mut walk = Walk {
            states: vec![state; count],
            needs,
            needed,
            rows: Vec::new(),
            held: rows.iter().map(|row| vec![0; row.len()]).collect(),
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
            ops: 0,
            nodes,
        };
        let rows = numbered(flat, rows);
        walk.start_at(flat, &rows).then_some(walk)
    }

    /// The codes of rows of nodes.
    pub fn codes(&self, rows: &[Vec<u32>]) -> Rows {
        rows.iter().map(|row| row.iter().map(|node| self.nodes[*node as usize].code).collect()).collect()
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
                let node = self.nodes[id as usize];
                if node.before != NONE && self.states[node.before as usize].end == NEVER {
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
                self.states[id as usize] = State { end: 0, reach: 0, place: at, previous, next, spot };
                self.states[id as usize].end = self.end(id as usize);
                self.line.push(id);
                if node.after != NONE {
                    let other = self.nodes[node.after as usize].rank;
                    if self.blocked[other as usize] == node.after {
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
        let node = &self.nodes[id];
        let previous = self.states[id].previous;
        let mut start = if previous == NONE { 0 } else { self.states[previous as usize].end };
        if node.before != NONE {
            start = start.max(self.states[node.before as usize].end + node.lag_in);
        }
        start + node.duration
    }

    #[inline]
    fn reach(&self, id: usize) -> u64 {
        let node = &self.nodes[id];
        let mut after = match self.states[id].next {
            NONE => self.weight[node.rank as usize],
            next => self.states[next as usize].reach,
        };
        if node.after != NONE {
            after = after.max(self.states[node.after as usize].reach + node.lag_out);
        }
        after + node.duration
    }

    /// The start of an op.
    pub fn start(&self, id: usize) -> u64 {
        self.states[id].end - self.nodes[id].duration
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
        let Shift { rank, from, count, ahead } = shift;
        self.moves += 1;
        self.taken.clear();
        let fits = if ahead { self.mend_ahead(shift, &ops[..count]) } else { self.mend_behind(shift, ops, count) };
        if !fits {
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

    /// Mends the line for ops that go ahead of the rest of a piece of a row, with all that they need.
    fn mend_ahead(&mut self, shift: Shift, moved: &[u32]) -> bool {
        let low = self.states[self.rows[shift.rank][shift.from] as usize].spot;
        let mut high = low;
        for &id in moved {
            high = high.max(self.states[id as usize].spot);
            let first = self.taken.len();
            self.seen[id as usize] = self.moves;
            self.stack.clear();
            self.stack.push(id);
            while let Some(id) = self.stack.pop() {
                self.taken.push(id);
                let node = &self.nodes[id as usize];
                let along = if node.rank as usize == shift.rank { NONE } else { self.states[id as usize].previous };
                for other in [node.before, along] {
                    if other == NONE
                        || self.states[other as usize].spot < low
                        || self.seen[other as usize] == self.moves
                    {
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
            self.taken[first..].sort_unstable_by_key(|id| states[*id as usize].spot);
        }
        let mut free = high as usize + 1;
        for spot in (low as usize..=high as usize).rev() {
            let id = self.line[spot];
            if self.seen[id as usize] != self.moves {
                free -= 1;
                self.set(free, id);
            }
        }
        for at in 0..self.taken.len() {
            self.set(low as usize + at, self.taken[at]);
        }
        self.ops += self.taken.len() as u64 + u64::from(high - low) / 8;
        true
    }

    /// Mends the line for ops that go behind the rest of a piece of a row, with all that needs them.
    fn mend_behind(&mut self, shift: Shift, ops: &[u32], count: usize) -> bool {
        let last = self.rows[shift.rank][shift.from + ops.len() - 1];
        let high = self.states[last as usize].spot;
        let mut low = high;
        for &id in ops[ops.len() - count..].iter().rev() {
            low = low.min(self.states[id as usize].spot);
            let first = self.taken.len();
            self.seen[id as usize] = self.moves;
            self.stack.clear();
            self.stack.push(id);
            while let Some(id) = self.stack.pop() {
                self.taken.push(id);
                let node = &self.nodes[id as usize];
                let along = if node.rank as usize == shift.rank { NONE } else { self.states[id as usize].next };
                for other in [node.after, along] {
                    if other == NONE
                        || self.states[other as usize].spot > high
                        || self.seen[other as usize] == self.moves
                    {
                        continue;
                    }
                    if self.nodes[other as usize].rank as usize == shift.rank {
                        return false;
                    }
                    self.seen[other as usize] = self.moves;
                    self.stack.push(other);
                }
            }
            // From the last to the first.
            let states = &self.states;
            self.taken[first..].sort_unstable_by_key(|id| u32::MAX - states[*id as usize].spot);
        }
        let mut free = low as usize;
        for spot in low as usize..=high as usize {
            let id = self.line[spot];
            if self.seen[id as usize] != self.moves {
                self.set(free, id);
                free += 1;
            }
        }
        for at in 0..self.taken.len() {
            self.set(high as usize - at, self.taken[at]);
        }
        self.ops += self.taken.len() as u64 + u64::from(high - low) / 8;
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
                self.mark(self.nodes[id].after);
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
                self.mark(self.nodes[id].before);
            }
        }
        self.ops += timed;
    }
}

/// All ops of all microbatches, by kind, lane and microbatch.
fn nodes(flat: &Flat) -> Vec<Node> {
    let kinds = if flat.fused { 2 } else { 3 };
    let mut nodes = Vec::with_capacity(kinds * flat.slots);
    let backward = if flat.fused { BW } else { B };
    for kind in 0..kinds {
        for (index, lane) in flat.lanes.iter().enumerate() {
            let other = |lane: Option<usize>| lane.filter(|other| flat.lanes[*other].rank != flat.lanes[index].rank);
            let (up, down) =
                (other(index.checked_sub(1).filter(|_| !lane.first)), other(Some(index + 1).filter(|_| !lane.last)));
            let code = code(index, [F, backward, W][kind]);
            for n in 0..lane.count {
                let id = |lane: Option<usize>| lane.map_or(NONE, |lane| number(flat, kind, lane, n));
                let node = Node {
                    duration: lane.duration[kind_of(code) as usize],
                    lag_in: 0,
                    lag_out: 0,
                    takes: lane.takes[kind_of(code) as usize],
                    net: lane.net(kind_of(code)),
                    before: NONE,
                    after: NONE,
                    rank: lane.rank as u32,
                    code,
                };
                nodes.push(match kind {
                    0 => Node {
                        lag_in: lane.hop_f,
                        lag_out: down.map_or(0, |down| flat.lanes[down].hop_f),
                        before: id(up),
                        after: id(down),
                        ..node
                    },
                    1 => Node {
                        lag_in: lane.hop_b,
                        lag_out: up.map_or(0, |up| flat.lanes[up].hop_b),
                        before: id(down),
                        after: id(up),
                        ..node
                    },
                    _ => node,
                });
            }
        }
    }
    nodes
}

fn number(flat: &Flat, kind: usize, lane: usize, n: usize) -> u32 {
    (kind * flat.slots + flat.lanes[lane].offset + n) as u32
}

/// By node, what it needs on its own rank, and what there needs it: the same op of the microbatch before, the job
/// before on its lane, and the same job on a neighbouring stage.
fn links(flat: &Flat) -> (Vec<[u32; 3]>, Vec<[u32; 3]>) {
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
                if n > 0 {
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

/// Rows of nodes: the n-th op of a lane and kind is that of its n-th microbatch.
fn numbered(flat: &Flat, rows: &[Vec<Code>]) -> Vec<Vec<u32>> {
    let mut next = vec![[0usize; 3]; flat.lanes.len()];
    let mut node = |code: &Code| {
        let kind = match kind_of(*code) {
            F => 0,
            W => 2,
            _ => 1,
        };
        let lane = lane_of(*code);
        let n = next[lane][kind];
        next[lane][kind] += 1;
        number(flat, kind, lane, n)
    };
    rows.iter().map(|row| row.iter().map(&mut node).collect()).collect()
}
