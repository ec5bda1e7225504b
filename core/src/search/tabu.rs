//! Tabu search along the critical path (Nowicki and Smutnicki, “A fast taboo search algorithm for the job shop problem”, 1996).
//!
//! An order costs what its *critical path* costs: a chain of ops from the end of the worst rank back to the start. Each op starts
//! exactly when the one before it on the same rank ends, or when its input arrives. The path falls into *blocks*: ops of one rank
//! without idle time between them. The order gets cheaper only where some op of a block goes before the block's first or behind
//! its last (Brucker, Jurisch and Sievers, “A branch and bound algorithm for the job-shop scheduling problem”, 1994), so only
//! those moves are tried.
//!
//! Where memory is full, a single move is not allowed. Then the op that gives bytes back moves too: a W goes ahead of the F that
//! needs its bytes, or the F that followed a W still follows it.
//!
//! The result of a move is estimated in time proportional to its length, from the longest paths to and from each op (Balas and
//! Vazacopoulos, “Guided local search with shifting bottleneck for job shop scheduling”, 1998). Each step takes the move with the
//! best estimate, even where it makes the order worse, and for some steps does not move the same ops again. After many steps
//! without gain the search continues from the best order.

use alloc::vec::Vec;

use super::flat_problem::{Code, Flat, Rows};
use super::longest_paths::{LongestPaths, NONE, Shift};
use super::makespan::Cost;
use crate::base::random::Random;

/// Candidates that a step tries.
const LOOKED_AT: usize = 48;
/// The most ops that a move takes along.
const ALONG: usize = 2;
/// Steps without gain after which the search returns to the best order.
const PATIENCE: u32 = 200;
/// Steps for which the ops of an impossible move are not tried again.
const REFUSED: u32 = 40;
/// Where backwards may be split or whole, one step in this many changes one; and one change for the worse in this many
/// stays.
const FLIPS: u64 = 4;
const WORSE: u64 = 6;

/// Ops that are moved, for the list of those which may not be moved again.
type Moved = [u32; ALONG + 1];

/// A change of one op list; the ops that it puts there are kept separately.
#[derive(Clone, Copy)]
struct Move {
    shift: Shift,
    moved: Moved,
    estimate: u64,
}

/// A search at its present order, with the best order so far.
pub(super) struct Tabu {
    paths: LongestPaths,
    /// By node: the first step at which it may move again.
    until: Vec<u32>,
    best: Vec<Vec<u32>>,
    /// The best order as codes, kept only where backwards may change between cut and whole.
    best_mix: Rows,
    mixes: bool,
    pub best_cost: Cost,
    /// By rank: whether its op list differs from that of the best order.
    changed: Vec<bool>,
    step: u32,
    /// Steps since the best was found.
    idle: u32,
    path: Vec<(u32, bool)>,
    /// Rank, first place and last place.
    blocks: Vec<(usize, usize, usize)>,
    /// The new order of the piece of a row that a move changes: of the one looked at, and of the best so far.
    piece: Vec<u32>,
    chosen: Vec<u32>,
    heads: Vec<u64>,
}

impl Tabu {
    /// A search from `rows`, which must be valid; none where the ranks deadlock.
    pub fn new(flat: &Flat, rows: &[Vec<Code>]) -> Option<Tabu> {
        Tabu::start(flat, rows, false)
    }

    /// As [`Tabu::new`], where backwards that gain from it also change between cut and whole.
    pub fn mixed(flat: &Flat, rows: &[Vec<Code>]) -> Option<Tabu> {
        Tabu::start(flat, rows, true)
    }

    fn start(flat: &Flat, rows: &[Vec<Code>], mixes: bool) -> Option<Tabu> {
        let paths = LongestPaths::new(flat, rows, mixes)?;
        Some(Tabu {
            until: alloc::vec![0; paths.nodes.len()],
            best: paths.rows.clone(),
            best_mix: if mixes { paths.codes(&paths.rows) } else { Rows::new() },
            mixes,
            best_cost: paths.cost,
            changed: alloc::vec![false; paths.rows.len()],
            step: 1,
            idle: 0,
            path: Vec::new(),
            blocks: Vec::new(),
            piece: Vec::new(),
            chosen: Vec::new(),
            heads: Vec::new(),
            paths,
        })
    }

    /// The best order so far.
    pub fn best(&self) -> Rows {
        if self.mixes { self.best_mix.clone() } else { self.paths.codes(&self.best) }
    }

    /// Ops run or estimated so far.
    pub fn ops(&self) -> u64 {
        self.paths.ops
    }

    /// One move; true where it led to a new best order. `random` breaks ties.
    pub fn step(&mut self, flat: &Flat, random: &mut Random) -> bool {
        self.step += 1;
        self.idle += 1;
        self.paths.ops += 10;
        if self.idle > PATIENCE {
            self.go_back(flat, random);
        }
        self.trace(flat, random);
        if self.mixes
            && random.below(FLIPS) == 0
            && let Some(better) = self.flip(flat, random)
        {
            return better;
        }
        match self.choose(flat, random) {
            Some(chosen) => self.apply(flat, &chosen, random),
            None => {
                // Every move is forbidden, or there is none: the search continues from elsewhere.
                self.shake(flat, random);
                false
            }
        }
    }

    /// Makes a move to the chosen piece; true where it led to a new best order. A move that deadlocks is not made.
    fn apply(&mut self, flat: &Flat, chosen: &Move, random: &mut Random) -> bool {
        let tenure = 6 + random.below(10) as u32;
        let made = self.paths.change(flat, chosen.shift, &self.chosen);
        for node in chosen.moved.into_iter().filter(|node| *node != NONE) {
            self.until[node as usize] = self.step + tenure + if made { 0 } else { REFUSED };
        }
        self.changed[chosen.shift.rank] |= made;
        made && self.keep_best()
    }

    /// Keeps the order where it stands if it is the best so far, and says whether it is.
    fn keep_best(&mut self) -> bool {
        let cost = self.paths.cost;
        if cost >= self.best_cost {
            return false;
        }
        if cost.objective < self.best_cost.objective {
            self.idle = 0;
        }
        self.best_cost = cost;
        if self.mixes {
            self.best_mix = self.paths.codes(&self.paths.rows);
            return true;
        }
        for ((best, row), changed) in self.best.iter_mut().zip(&self.paths.rows).zip(&mut self.changed) {
            if core::mem::take(changed) {
                best.clone_from(row);
            }
        }
        true
    }

    /// Splits a whole backward of the critical path, or joins a split one. None where no backward may change; else
    /// whether that led to a new best order. A change for the worse is mostly undone.
    fn flip(&mut self, flat: &Flat, random: &mut Random) -> Option<bool> {
        let count = self.path.len();
        let first = random.below(count.max(1) as u64) as usize;
        let backward = |turn: usize| self.paths.backward(flat, self.path[(first + turn) % count].0);
        let may_change = |(backward, _): &(u32, u32)| self.until[*backward as usize] <= self.step;
        let (input, weights) = (0..count).filter_map(backward).find(may_change)?;
        let paths = &mut self.paths;
        let before = paths.cost;
        let rank = paths.nodes[input as usize].rank as usize;
        let place = |paths: &LongestPaths, id: u32| paths.states[id as usize].place as usize;
        let was_whole = paths.is_whole(input);
        let at = if was_whole {
            let (from, to) = (place(paths, input) + 1, paths.rows[rank].len() - paths.nothing[rank]);
            match random.below(3) {
                0 => from,
                1 => to,
                _ => from + random.below((to - from + 1) as u64) as usize,
            }
        } else {
            place(paths, weights)
        };
        let made = if was_whole { paths.part(flat, input, at) } else { paths.join(flat, input) };
        self.until[input as usize] = self.step + 6 + random.below(10) as u32 + if made { 0 } else { REFUSED };
        if made && paths.cost.objective > before.objective && random.below(WORSE) > 0 {
            if was_whole {
                paths.join(flat, input);
            } else {
                paths.part(flat, input, at);
            }
        }
        Some(made && self.keep_best())
    }

    /// Continues near the best order, some random moves away.
    fn go_back(&mut self, flat: &Flat, random: &mut Random) {
        self.idle = 0;
        if self.mixes {
            self.paths.start_at_codes(flat, &self.best_mix);
        } else {
            self.paths.start_at(flat, &self.best);
        }
        self.changed.fill(false);
        self.until.fill(0);
        for _ in 0..1 + random.below(4) {
            self.shake(flat, random);
        }
    }

    /// A random move, allowed or not.
    fn shake(&mut self, flat: &Flat, random: &mut Random) {
        for _ in 0..20 {
            let rank = random.below(flat.ranks as u64) as usize;
            let length = (self.paths.rows[rank].len() - self.paths.nothing[rank]) as u64;
            if length < 2 {
                continue;
            }
            let at = random.below(length - 1) as usize;
            let (one, other) = (self.paths.rows[rank][at], self.paths.rows[rank][at + 1]);
            if self.paths.needs[other as usize].contains(&one) {
                continue;
            }
            self.piece.clear();
            self.piece.extend([other, one]);
            let shift = Shift { rank, from: at, count: 1, ahead: true };
            if self.first_over(flat, rank, at).is_none() {
                core::mem::swap(&mut self.piece, &mut self.chosen);
                self.apply(flat, &Move { shift, moved: [one, NONE, NONE], estimate: 0 }, random);
                return;
            }
        }
    }

    /// Finds a critical path, from its end to its start: nodes, each with whether the path goes on along the rank.
    fn trace(&mut self, flat: &Flat, random: &mut Random) {
        self.path.clear();
        let paths = &self.paths;
        let worst = paths.cost.objective.saturating_add(paths.shift);
        let ends = || {
            let last = |rank: usize| {
                let place = paths.rows[rank].len().checked_sub(1 + paths.nothing[rank])?;
                Some((rank, paths.rows[rank][place]))
            };
            let is_worst = |(rank, id): &(usize, u32)| paths.states[*id as usize].end + paths.weight[*rank] == worst;
            (0..flat.ranks).filter_map(last).filter(is_worst)
        };
        let count = ends().count() as u64;
        if count == 0 {
            return;
        }
        let Some((_, mut id)) = ends().nth(random.below(count) as usize) else { return };
        loop {
            let state = &paths.states[id as usize];
            let start = state.end - state.duration;
            let by_rank = state.previous != NONE && paths.states[state.previous as usize].end == start;
            let by_data = state.before != NONE && paths.states[state.before as usize].end + state.lag_in == start;
            let along = by_rank && !(by_data && random.below(2) == 0);
            self.path.push((id, along));
            match (along, by_data) {
                (true, _) => id = state.previous,
                (false, true) => id = state.before,
                (false, false) => break,
            }
        }
        self.paths.ops += self.path.len() as u64 / 2;
    }

    /// Cuts the path into blocks, from the end to the start.
    fn cut(&mut self) {
        self.blocks.clear();
        let mut last: Option<usize> = None;
        for &(id, along) in &self.path {
            let at = self.paths.states[id as usize].place as usize;
            let end = *last.get_or_insert(at);
            if !along {
                if end > at || self.path.len() < 4 {
                    self.blocks.push((self.paths.nodes[id as usize].rank as usize, at, end));
                }
                last = None;
            }
        }
    }

    /// The move with the best estimate among those that may be made; its piece is the chosen one.
    fn choose(&mut self, flat: &Flat, random: &mut Random) -> Option<Move> {
        self.cut();
        let turns = self.blocks.len();
        if turns == 0 {
            return None;
        }
        let mut chosen: Option<Move> = None;
        let mut ties = 0;
        let first = random.below(turns as u64) as usize;
        let mut looked_at = 0;
        'blocks: for turn in 0..turns {
            let (rank, begin, end) = self.blocks[(first + turn) % turns];
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
                if held && candidate.estimate >= self.best_cost.objective + self.paths.shift {
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
                    core::mem::swap(&mut self.piece, &mut self.chosen);
                }
                if looked_at >= LOOKED_AT {
                    break 'blocks;
                }
            }
        }
        chosen
    }

    /// The op at `at` goes before the one at `to`, with the ops that free the bytes it needs.
    fn move_ahead(&mut self, flat: &Flat, rank: usize, at: usize, to: usize) -> Option<Move> {
        let id = self.paths.rows[rank][at];
        if !self.may_pass_left(id, rank, to) {
            return None;
        }
        let mut taken = [id, NONE, NONE];
        let mut last = at;
        for along in 1..=ALONG + 1 {
            self.piece.clear();
            self.piece.extend_from_slice(&taken[1..along]);
            self.piece.push(id);
            let rest = self.paths.rows[rank][to..=last].iter().filter(|other| !taken[..along].contains(other));
            self.piece.extend(rest);
            if self.first_over(flat, rank, to).is_none() {
                let shift = Shift { rank, from: to, count: along, ahead: true };
                return Some(Move { shift, moved: taken, estimate: self.estimate(rank, to, last) });
            }
            if along > ALONG {
                return None;
            }
            // The next op that gives bytes back and could go first as well.
            let from = if along == 1 { to } else { self.paths.states[taken[along - 1] as usize].place as usize + 1 };
            let far = (at + 3 * flat.lanes_of[rank].len() + 1).min(self.paths.rows[rank].len());
            let next = (from..far).find(|&place| {
                let other = self.paths.rows[rank][place];
                !taken.contains(&other)
                    && self.paths.nodes[other as usize].net < 0
                    && self.may_pass_left(other, rank, to)
            })?;
            taken[along] = self.paths.rows[rank][next];
            last = last.max(next);
        }
        None
    }

    /// The op at `at` goes behind the one at `to`, with those that need the bytes it gives back.
    fn move_behind(&mut self, flat: &Flat, rank: usize, at: usize, to: usize) -> Option<Move> {
        let id = self.paths.rows[rank][at];
        if !self.may_pass_right(id, rank, to) {
            return None;
        }
        let mut taken = [id, NONE, NONE];
        for along in 1..=ALONG + 1 {
            self.piece.clear();
            let rest = self.paths.rows[rank][at..=to].iter().filter(|other| !taken[..along].contains(other));
            self.piece.extend(rest);
            self.piece.extend_from_slice(&taken[..along]);
            let Some(over) = self.first_over(flat, rank, at) else {
                let shift = Shift { rank, from: at, count: along, ahead: false };
                return Some(Move { shift, moved: taken, estimate: self.estimate(rank, at, to) });
            };
            // Ops that no longer fit go behind too, unless the others were to make way for them.
            let other = self.piece[over];
            let place = self.paths.states[other as usize].place as usize;
            if along > ALONG || place == to || taken.contains(&other) || !self.may_pass_right(other, rank, to) {
                return None;
            }
            taken[along] = other;
        }
        None
    }

    /// Whether an op may go before all from place `to` up to its own.
    fn may_pass_left(&self, id: u32, rank: usize, to: usize) -> bool {
        let paths = &self.paths;
        let state = &paths.states[id as usize];
        if state.before != NONE {
            // A path from the first op passed to the input of this one closes a circle.
            let first = paths.rows[rank][to] as usize;
            let ends = paths.states[first].end;
            if paths.start(state.before as usize) >= ends && ends > paths.start(first) {
                return false;
            }
        }
        // An op that also needs the ops between stands between itself.
        paths.needs[id as usize]
            .iter()
            .all(|other| *other == NONE || (paths.states[*other as usize].place as usize) < to)
    }

    fn may_pass_right(&self, id: u32, rank: usize, to: usize) -> bool {
        let paths = &self.paths;
        let state = &paths.states[id as usize];
        if state.after != NONE {
            let (last, next) = (paths.rows[rank][to] as usize, state.after as usize);
            let ends = paths.states[next].end;
            if paths.start(last) >= ends && ends > paths.start(next) {
                return false;
            }
        }
        paths.needed[id as usize]
            .iter()
            .all(|other| *other == NONE || paths.states[*other as usize].place as usize > to)
    }

    /// The first op of the piece, put at `from`, that goes over the limit.
    fn first_over(&self, flat: &Flat, rank: usize, from: usize) -> Option<usize> {
        let mut held = self.paths.held[rank][from];
        self.piece.iter().position(|id| {
            let node = &self.paths.nodes[*id as usize];
            let over = held + node.takes > flat.limit[rank];
            held += node.net;
            over
        })
    }

    /// The longest path through the piece at the positions from `from` up to `to`.
    fn estimate(&mut self, rank: usize, from: usize, to: usize) -> u64 {
        let paths = &mut self.paths;
        paths.ops += self.piece.len() as u64 / 2;
        let row = &paths.rows[rank];
        let mut free = from.checked_sub(1).map_or(0, |before| paths.states[row[before] as usize].end);
        self.heads.clear();
        for &id in &self.piece {
            let state = &paths.states[id as usize];
            let mut start = free;
            if state.before != NONE {
                start = start.max(paths.states[state.before as usize].end + state.lag_in);
            }
            self.heads.push(start);
            free = start + state.duration;
        }
        let mut after = match row.get(to + 1) {
            Some(&next) => paths.states[next as usize].reach,
            None => paths.weight[rank],
        };
        let mut estimate = 0;
        for (&id, start) in self.piece.iter().zip(&self.heads).rev() {
            let state = &paths.states[id as usize];
            if state.after != NONE {
                after = after.max(paths.states[state.after as usize].reach + state.lag_out);
            }
            after += state.duration;
            estimate = estimate.max(start + after);
        }
        estimate
    }
}
