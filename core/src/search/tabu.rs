//! From an order to a better one: tabu search along the critical path.
//!
//! An order costs what its *critical path* costs: a chain of ops from the end of the worst rank back to the
//! start, each starting exactly when the one before it on the same rank ends, or when what it needs arrives.
//! The path falls into *blocks*, ops of one rank without idle time between them. The order gets cheaper only
//! where some op of a block goes before the block's first or behind its last (Brucker, Jurisch and Sievers, “A
//! branch and bound algorithm for the job-shop scheduling problem”, 1994), so only those moves are looked at.
//!
//! Where memory is full a move by itself is not allowed. Then what gives bytes back is taken along: a W goes
//! ahead of the F that needs its bytes, or the F that followed a W follows it still.
//!
//! What a move leads to is estimated in time proportional to its length, from the longest ways to and from each
//! op (Balas and Vazacopoulos, “Guided local search with shifting bottleneck for job shop scheduling”, 1998).
//! Each step takes the move with the best estimate, even where it makes the order worse, and for some steps
//! does not move the same ops again (Nowicki and Smutnicki, “A fast taboo search algorithm for the job shop
//! problem”, 1996). After many steps without gain it goes on from the best order.

use alloc::vec;
use alloc::vec::Vec;

use super::eval::Cost;
use super::flat::{B, BW, Code, F, Flat, Rows, W, code, kind_of, lane_of};
use super::random::Random;
use crate::problem::Objective;

const NONE: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;

/// Candidates that a step looks at.
const LOOKED_AT: usize = 48;
/// Ops that may be taken along by a move.
const ALONG: usize = 2;

/// One op of one microbatch: what never changes.
#[derive(Clone, Copy)]
struct Node {
    duration: u64,
    /// From the end of the op on another rank that this one needs to the soonest start of this one.
    lag_in: u64,
    /// From the end of this op to the soonest start of the op on another rank that needs it.
    lag_out: u64,
    /// Those ops, or [`NONE`]. What is needed on the same rank stands before it in its row.
    before: u32,
    after: u32,
    code: Code,
    /// The microbatch, counted along the lane.
    number: u32,
}

/// A change of one row: the ops from `from` on become `ops`.
#[derive(Clone, Default)]
struct Move {
    rank: usize,
    from: usize,
    ops: Vec<u32>,
    /// Ops that are moved, for the list of those which may not be moved again.
    moved: [u32; ALONG + 1],
    estimate: u64,
}

/// A search that stands at an order and remembers the best.
pub(super) struct Tabu {
    nodes: Vec<Node>,
    rows: Vec<Vec<u32>>,
    /// By node: start, the longest way from its end to the end of all, and its place in its row.
    head: Vec<u64>,
    tail: Vec<u64>,
    place: Vec<u32>,
    /// By node: the step from which on it may be moved again.
    until: Vec<u32>,
    /// Nodes in an order that keeps every dependency.
    order: Vec<u32>,
    /// By rank: start of the first op, and end of the last.
    first: Vec<u64>,
    end: Vec<u64>,
    /// By rank: what its end counts for beyond itself, so that the largest sum is the cost and `shift`.
    weight: Vec<u64>,
    shift: u64,
    /// By rank and place: bytes held before the op.
    held: Vec<Vec<i64>>,
    pub cost: Cost,
    best: Vec<Vec<u32>>,
    pub best_cost: Cost,
    step: u32,
    /// Steps since the best was found, and how many lead back to it.
    idle: u32,
    patience: u32,
    at: Vec<u32>,
    blocked: Vec<u32>,
    ready: Vec<u32>,
    path: Vec<(u32, bool)>,
    scratch: Vec<u32>,
    heads: Vec<u64>,
    /// Ops run or estimated so far.
    pub ops: u64,
}

impl Tabu {
    /// A search from `rows`, which have to be valid; none where the ranks wait for each other for ever.
    pub fn new(flat: &Flat, rows: &[Vec<Code>]) -> Option<Tabu> {
        let nodes = nodes(flat);
        let count = nodes.len();
        let mut tabu = Tabu {
            rows: numbered(flat, rows),
            head: vec![0; count],
            tail: vec![0; count],
            place: vec![0; count],
            until: vec![0; count],
            order: Vec::with_capacity(count),
            first: vec![0; flat.ranks],
            end: vec![0; flat.ranks],
            weight: vec![0; flat.ranks],
            shift: 0,
            held: rows.iter().map(|row| vec![0; row.len()]).collect(),
            cost: Cost::WORST,
            best: Vec::new(),
            best_cost: Cost::WORST,
            step: 1,
            idle: 0,
            patience: 200,
            at: vec![0; flat.ranks],
            blocked: vec![NONE; flat.ranks],
            ready: Vec::with_capacity(flat.ranks),
            path: Vec::new(),
            scratch: Vec::new(),
            heads: Vec::new(),
            ops: 0,
            nodes,
        };
        for rank in 0..flat.ranks {
            tabu.hold(flat, rank, 0);
        }
        tabu.cost = tabu.forward(flat)?;
        tabu.backward(flat);
        tabu.best_cost = tabu.cost;
        tabu.best.clone_from(&tabu.rows);
        Some(tabu)
    }

    /// The best order so far.
    pub fn best(&self) -> Rows {
        let row = |row: &Vec<u32>| row.iter().map(|node| self.nodes[*node as usize].code).collect();
        self.best.iter().map(row).collect()
    }

    /// One move; true where it led to a new best order. `random` breaks ties.
    pub fn step(&mut self, flat: &Flat, random: &mut Random) -> bool {
        self.step += 1;
        self.idle += 1;
        self.ops += 10;
        if self.idle > self.patience {
            self.go_back(flat, random);
        }
        self.trace(flat, random);
        let Some(chosen) = self.choose(flat, random) else {
            // Everything is forbidden, or there is nothing to move: from somewhere else then.
            self.shake(flat, random);
            return false;
        };
        self.apply(flat, &chosen, random)
    }

    /// Makes a move; true where it led to a new best order. One that no rank can get through is taken back.
    fn apply(&mut self, flat: &Flat, chosen: &Move, random: &mut Random) -> bool {
        let Move { rank, from, ref ops, moved, .. } = *chosen;
        let range = from..from + ops.len();
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.rows[rank][range.clone()]);
        self.rows[rank][range.clone()].copy_from_slice(ops);
        let tenure = 6 + random.below(10) as u32;
        for node in moved.into_iter().filter(|node| *node != NONE) {
            self.until[node as usize] = self.step + tenure;
        }
        let Some(cost) = self.forward(flat) else {
            let old = core::mem::take(&mut self.scratch);
            self.rows[rank][range].copy_from_slice(&old);
            self.scratch = old;
            for node in moved.into_iter().filter(|node| *node != NONE) {
                self.until[node as usize] += 40;
            }
            self.cost = self.forward(flat).unwrap_or(Cost::WORST);
            self.backward(flat);
            return false;
        };
        self.hold(flat, rank, from);
        self.backward(flat);
        self.cost = cost;
        if cost < self.best_cost {
            if cost.objective < self.best_cost.objective {
                self.idle = 0;
            }
            self.best_cost = cost;
            self.best.clone_from(&self.rows);
            return true;
        }
        false
    }

    /// Goes on from the best order, some random moves aside.
    fn go_back(&mut self, flat: &Flat, random: &mut Random) {
        self.idle = 0;
        self.rows.clone_from(&self.best);
        for rank in 0..flat.ranks {
            self.hold(flat, rank, 0);
        }
        self.until.fill(0);
        self.cost = self.forward(flat).unwrap_or(Cost::WORST);
        self.backward(flat);
        for _ in 0..1 + random.below(4) {
            self.trace(flat, random);
            self.shake(flat, random);
        }
    }

    /// A random move, allowed or not.
    fn shake(&mut self, flat: &Flat, random: &mut Random) {
        for _ in 0..20 {
            let rank = random.below(flat.ranks as u64) as usize;
            let length = self.rows[rank].len() as u64;
            if length < 2 {
                continue;
            }
            let at = random.below(length - 1) as usize;
            let (one, other) = (self.rows[rank][at], self.rows[rank][at + 1]);
            if self.must_precede(one, other) || self.leads(flat, one, other) {
                continue;
            }
            if let Some(candidate) = self.candidate(flat, rank, at, at + 1, &[other, one]) {
                let candidate = Move { moved: [one, NONE, NONE], ..candidate };
                self.apply(flat, &candidate, random);
                return;
            }
        }
    }

    /// Whether `one` comes before `other` in every valid row of their rank, by their lane alone.
    fn must_precede(&self, one: u32, other: u32) -> bool {
        let (a, b) = (&self.nodes[one as usize], &self.nodes[other as usize]);
        let rank_of_kind = |code: Code| kind_of(code).min(2) - u32::from(kind_of(code) == BW);
        a.code >> 2 == b.code >> 2 && rank_of_kind(a.code) <= rank_of_kind(b.code) && a.number <= b.number
    }

    /// Works out what a rank holds before each op from `from` on.
    fn hold(&mut self, flat: &Flat, rank: usize, from: usize) {
        let row = &self.rows[rank];
        let net = |node: u32| {
            let code = self.nodes[node as usize].code;
            flat.lanes[lane_of(code)].net(kind_of(code))
        };
        let held = &mut self.held[rank];
        let mut now = if from == 0 { 0 } else { held[from - 1] + net(row[from - 1]) };
        for (at, node) in row.iter().enumerate().skip(from) {
            held[at] = now;
            now += net(*node);
        }
    }

    /// Starts all ops as soon as they can. None where ranks wait for each other for ever.
    fn forward(&mut self, flat: &Flat) -> Option<Cost> {
        self.head.fill(NEVER);
        self.at.fill(0);
        self.end.fill(0);
        self.blocked.fill(NONE);
        self.order.clear();
        self.ready.clear();
        self.ready.extend((0..flat.ranks as u32).rev());
        while let Some(rank) = self.ready.pop() {
            let rank = rank as usize;
            let row = &self.rows[rank];
            let mut free = self.end[rank];
            let mut at = self.at[rank] as usize;
            while let Some(&id) = row.get(at) {
                let node = &self.nodes[id as usize];
                let mut start = free;
                if node.before != NONE {
                    let before = self.head[node.before as usize];
                    if before == NEVER {
                        self.blocked[rank] = id;
                        break;
                    }
                    start = start.max(before + self.nodes[node.before as usize].duration + node.lag_in);
                }
                if at == 0 {
                    self.first[rank] = start;
                }
                self.head[id as usize] = start;
                self.place[id as usize] = at as u32;
                self.order.push(id);
                free = start + node.duration;
                at += 1;
                if node.after != NONE {
                    let other = flat.lanes[lane_of(self.nodes[node.after as usize].code)].rank;
                    if self.blocked[other] == node.after {
                        self.blocked[other] = NONE;
                        self.ready.push(other as u32);
                    }
                }
            }
            self.at[rank] = at as u32;
            self.end[rank] = free;
        }
        self.ops += self.order.len() as u64;
        if self.order.len() < self.nodes.len() {
            return None;
        }
        let spans = flat.objective == Objective::LongestSpan;
        let ranks = || (0..flat.ranks).filter(|rank| !self.rows[*rank].is_empty());
        let latest = ranks().map(|rank| self.first[rank]).max().unwrap_or(0);
        let soonest = ranks().map(|rank| self.first[rank]).min().unwrap_or(0);
        self.shift = if spans { latest } else { soonest };
        let mut cost = Cost { objective: 0, ends: 0 };
        for rank in 0..flat.ranks {
            if self.rows[rank].is_empty() {
                continue;
            }
            self.weight[rank] = if spans { latest - self.first[rank] } else { 0 };
            cost.objective = cost.objective.max(self.end[rank] + self.weight[rank] - self.shift);
            cost.ends += self.end[rank] / flat.ranks as u64;
        }
        Some(cost)
    }

    /// The longest ways from the ends of all ops, after [`Tabu::forward`].
    fn backward(&mut self, flat: &Flat) {
        self.ops += self.order.len() as u64 / 2;
        let after = &mut self.end;
        after.copy_from_slice(&self.weight);
        for &id in self.order.iter().rev() {
            let node = &self.nodes[id as usize];
            let rank = flat.lanes[lane_of(node.code)].rank;
            let mut tail = after[rank];
            if node.after != NONE {
                let next = node.after as usize;
                tail = tail.max(self.tail[next] + self.nodes[next].duration + node.lag_out);
            }
            self.tail[id as usize] = tail;
            after[rank] = tail + node.duration;
        }
    }

    /// Finds a critical path, from its end to its start: nodes, each with whether the path goes on along the rank.
    fn trace(&mut self, flat: &Flat, random: &mut Random) {
        self.path.clear();
        let worst = self.cost.objective.saturating_add(self.shift);
        let is_worst = |id: &u32| {
            let node = &self.nodes[*id as usize];
            let rank = flat.lanes[lane_of(node.code)].rank;
            self.head[*id as usize] + node.duration + self.weight[rank] == worst
        };
        let mut ends = self.rows.iter().filter_map(|row| row.last()).filter(|id| is_worst(id));
        let count = ends.clone().count() as u64;
        if count == 0 {
            return;
        }
        let Some(&(mut id)) = ends.nth(random.below(count) as usize) else { return };
        loop {
            let node = &self.nodes[id as usize];
            let rank = flat.lanes[lane_of(node.code)].rank;
            let (start, at) = (self.head[id as usize], self.place[id as usize] as usize);
            let by_rank = at
                .checked_sub(1)
                .map(|at| self.rows[rank][at])
                .filter(|before| self.head[*before as usize] + self.nodes[*before as usize].duration == start);
            let by_data = (node.before != NONE).then_some(node.before).filter(|before| {
                self.head[*before as usize] + self.nodes[*before as usize].duration + node.lag_in == start
            });
            let next = match (by_rank, by_data) {
                (Some(_), Some(data)) if random.below(2) == 0 => Some((data, false)),
                (Some(rank), _) => Some((rank, true)),
                (None, Some(data)) => Some((data, false)),
                (None, None) => None,
            };
            self.path.push((id, next.is_some_and(|(_, along)| along)));
            match next {
                Some((next, _)) => id = next,
                None => return,
            }
        }
    }

    /// The move with the best estimate among those that may be made.
    fn choose(&mut self, flat: &Flat, random: &mut Random) -> Option<Move> {
        // Blocks as (rank, first place, last place), from the end to the start.
        let mut blocks: Vec<(usize, usize, usize)> = Vec::new();
        let mut last: Option<usize> = None;
        for &(id, along) in &self.path {
            let at = self.place[id as usize] as usize;
            let end = *last.get_or_insert(at);
            if !along {
                let rank = flat.lanes[lane_of(self.nodes[id as usize].code)].rank;
                if end > at || self.path.len() < 4 {
                    blocks.push((rank, at, end));
                }
                last = None;
            }
        }
        if blocks.is_empty() {
            return None;
        }
        let mut chosen: Option<Move> = None;
        let mut ties = 0;
        let turns = blocks.len() as u64;
        let first = random.below(turns) as usize;
        let mut looked_at = 0;
        'blocks: for turn in 0..blocks.len() {
            let (rank, begin, end) = blocks[(first + turn) % blocks.len()];
            let reach = 3 * flat.lanes_of[rank].len() + 3;
            let reach = if random.below(4) == 0 { 4 * reach } else { reach };
            let lefts = (begin + 1..=end.min(begin + reach)).map(|at| (at, begin));
            let rights = (begin.max(end.saturating_sub(reach))..end).map(|at| (at, end));
            for (at, to) in lefts.chain(rights) {
                let candidate =
                    if to < at { self.move_ahead(flat, rank, at, to) } else { self.move_behind(flat, rank, at, to) };
                let Some(candidate) = candidate else { continue };
                looked_at += 1;
                let held = candidate.moved.iter().any(|id| *id != NONE && self.until[*id as usize] > self.step);
                if held && candidate.estimate >= self.best_cost.objective + self.shift {
                    continue;
                }
                let better = match &chosen {
                    None => true,
                    Some(known) if candidate.estimate == known.estimate => {
                        ties += 1;
                        random.below(ties + 1) == 0
                    }
                    Some(known) => candidate.estimate < known.estimate,
                };
                if better {
                    if chosen.as_ref().is_none_or(|known| candidate.estimate < known.estimate) {
                        ties = 0;
                    }
                    chosen = Some(candidate);
                }
                if looked_at >= LOOKED_AT {
                    break 'blocks;
                }
            }
        }
        chosen
    }

    /// The op at `at` goes before the one at `to`, with what gives it the bytes it needs.
    fn move_ahead(&mut self, flat: &Flat, rank: usize, at: usize, to: usize) -> Option<Move> {
        let id = self.rows[rank][at];
        if !self.may_pass_left(flat, id, rank, to, at) {
            return None;
        }
        let mut taken = [id, NONE, NONE];
        let mut last = at;
        // Bytes over the limit while the op stands before the others.
        for along in 1..=ALONG + 1 {
            let mut ops: Vec<u32> = taken[1..along].to_vec();
            ops.push(id);
            ops.extend(self.rows[rank][to..=last].iter().filter(|other| !taken.contains(other)));
            if self.fits(flat, rank, to, &ops) {
                return self.candidate(flat, rank, to, last, &ops).map(|found| Move { moved: taken, ..found });
            }
            if along > ALONG {
                return None;
            }
            // The next op that gives bytes back and could go first as well.
            let from = if along == 1 { to } else { self.place[taken[along - 1] as usize] as usize + 1 };
            let far = (at + 3 * flat.lanes_of[rank].len() + 1).min(self.rows[rank].len());
            let next = (from..far).find(|&place| {
                let other = self.rows[rank][place];
                let code = self.nodes[other as usize].code;
                !taken.contains(&other)
                    && flat.lanes[lane_of(code)].net(kind_of(code)) < 0
                    && self.may_pass_left(flat, other, rank, to, place)
            })?;
            taken[along] = self.rows[rank][next];
            last = last.max(next);
        }
        None
    }

    /// The op at `at` goes behind the one at `to`, with those that need the bytes it gives back.
    fn move_behind(&mut self, flat: &Flat, rank: usize, at: usize, to: usize) -> Option<Move> {
        let id = self.rows[rank][at];
        if !self.may_pass_right(flat, id, rank, at, to) {
            return None;
        }
        let mut taken = [id, NONE, NONE];
        for along in 1..=ALONG + 1 {
            let rest = self.rows[rank][at..=to].iter().filter(|other| !taken.contains(other));
            let mut ops: Vec<u32> = rest.copied().collect();
            ops.extend_from_slice(&taken[..along]);
            let Some(over) = self.over(flat, rank, at, &ops) else {
                return self.candidate(flat, rank, at, to, &ops).map(|found| Move { moved: taken, ..found });
            };
            // What does not fit any more goes behind too, unless it is what the others were to make way for.
            let other = ops[over];
            let place = self.place[other as usize] as usize;
            if along > ALONG
                || place == to
                || taken.contains(&other)
                || !self.may_pass_right(flat, other, rank, place, to)
            {
                return None;
            }
            taken[along] = other;
        }
        None
    }

    /// Whether an op may go before all from place `to` up to its own, `at`.
    fn may_pass_left(&self, flat: &Flat, id: u32, rank: usize, to: usize, at: usize) -> bool {
        let row = &self.rows[rank];
        let node = &self.nodes[id as usize];
        if node.before != NONE {
            // A way from the first op passed to what this one needs would close a circle.
            let first = row[to] as usize;
            let starts = self.head[node.before as usize];
            let ends = self.head[first] + self.nodes[first].duration;
            if starts >= ends && ends > self.head[first] {
                return false;
            }
        }
        row[to..at].iter().all(|other| !self.must_precede(*other, id) && !self.leads(flat, *other, id))
    }

    fn may_pass_right(&self, flat: &Flat, id: u32, rank: usize, at: usize, to: usize) -> bool {
        let row = &self.rows[rank];
        let node = &self.nodes[id as usize];
        if node.after != NONE {
            let (last, next) = (row[to] as usize, node.after as usize);
            let ends = self.head[next] + self.nodes[next].duration;
            if self.head[last] >= ends && ends > self.head[next] {
                return false;
            }
        }
        row[at + 1..=to].iter().all(|other| !self.must_precede(id, *other) && !self.leads(flat, id, *other))
    }

    /// Whether `other` needs what `one` makes, on neighbouring stages of the same rank.
    fn leads(&self, flat: &Flat, one: u32, other: u32) -> bool {
        let (a, b) = (&self.nodes[one as usize], &self.nodes[other as usize]);
        let (from, to) = (lane_of(a.code), lane_of(b.code));
        a.number == b.number
            && match (kind_of(a.code), kind_of(b.code)) {
                (F, F) => from + 1 == to && !flat.lanes[from].last,
                (B | BW, B | BW) => to + 1 == from && !flat.lanes[to].last,
                _ => false,
            }
    }

    fn fits(&self, flat: &Flat, rank: usize, from: usize, ops: &[u32]) -> bool {
        self.over(flat, rank, from, ops).is_none()
    }

    /// The first of `ops`, put at `from`, that goes over the limit.
    fn over(&self, flat: &Flat, rank: usize, from: usize, ops: &[u32]) -> Option<usize> {
        let mut held = self.held[rank][from];
        ops.iter().position(|id| {
            let code = self.nodes[*id as usize].code;
            let (lane, kind) = (&flat.lanes[lane_of(code)], kind_of(code));
            let over = held + lane.takes[kind as usize] > flat.limit[rank];
            held += lane.net(kind);
            over
        })
    }

    /// The move that puts `ops` where those from `from` to `to` stand, with the longest way through them as its
    /// estimate. None where it does not fit.
    fn candidate(&mut self, flat: &Flat, rank: usize, from: usize, to: usize, ops: &[u32]) -> Option<Move> {
        if !self.fits(flat, rank, from, ops) {
            return None;
        }
        self.ops += ops.len() as u64 / 2;
        let row = &self.rows[rank];
        let mut free = match from.checked_sub(1) {
            Some(before) => self.head[row[before] as usize] + self.nodes[row[before] as usize].duration,
            None => 0,
        };
        self.heads.clear();
        for &id in ops {
            let node = &self.nodes[id as usize];
            let mut start = free;
            if node.before != NONE {
                let before = node.before as usize;
                start = start.max(self.head[before] + self.nodes[before].duration + node.lag_in);
            }
            self.heads.push(start);
            free = start + node.duration;
        }
        let mut after = match row.get(to + 1) {
            Some(&next) => self.tail[next as usize] + self.nodes[next as usize].duration,
            None => self.weight[rank],
        };
        let mut estimate = 0;
        for (&id, start) in ops.iter().zip(&self.heads).rev() {
            let node = &self.nodes[id as usize];
            if node.after != NONE {
                let next = node.after as usize;
                after = after.max(self.tail[next] + self.nodes[next].duration + node.lag_out);
            }
            after += node.duration;
            estimate = estimate.max(start + after);
        }
        Some(Move { rank, from, ops: ops.to_vec(), moved: [NONE; ALONG + 1], estimate })
    }
}

/// All ops of all microbatches.
fn nodes(flat: &Flat) -> Vec<Node> {
    let kinds = if flat.fused { 2 } else { 3 };
    let mut nodes = Vec::with_capacity(kinds * flat.slots);
    let backward = if flat.fused { BW } else { B };
    let number = |kind: usize, lane: usize, n: usize| (kind * flat.slots + flat.lanes[lane].offset + n) as u32;
    for kind in 0..kinds {
        for (index, lane) in flat.lanes.iter().enumerate() {
            let other = |lane: Option<usize>| lane.filter(|other| flat.lanes[*other].rank != flat.lanes[index].rank);
            let (up, down) =
                (other(index.checked_sub(1).filter(|_| !lane.first)), other(Some(index + 1).filter(|_| !lane.last)));
            let code = code(index, [F, backward, W][kind]);
            for n in 0..lane.count {
                let id = |lane: Option<usize>| lane.map_or(NONE, |lane| number(kind, lane, n));
                let node = Node {
                    duration: lane.duration[kind_of(code) as usize],
                    lag_in: 0,
                    lag_out: 0,
                    before: NONE,
                    after: NONE,
                    code,
                    number: n as u32,
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

/// Rows of nodes: the n-th op of a lane and kind is that of its n-th microbatch.
fn numbered(flat: &Flat, rows: &[Vec<Code>]) -> Vec<Vec<u32>> {
    let mut next = vec![[0usize; 3]; flat.lanes.len()];
    let node = |code: &Code| {
        let kind = match kind_of(*code) {
            F => 0,
            W => 2,
            _ => 1,
        };
        let lane = lane_of(*code);
        let n = next[lane][kind];
        next[lane][kind] += 1;
        (kind * flat.slots + flat.lanes[lane].offset + n) as u32
    };
    let mut node = node;
    rows.iter().map(|row| row.iter().map(&mut node).collect()).collect()
}
