//! Small problems: orders grown op by op, many side by side, the most hopeful kept (“beam search”, Lowerre, 1976; for
//! shop scheduling Sabuncuoglu and Bayiz, European Journal of Operational Research 118, 1999).
//!
//! Local search changes an order a little at a time. Where memory is full, two good orders may have none between them
//! that is as good; an order that grows from the start needs no way from one to the other.
//!
//! # What is grown
//! Ops are started in the order of their starts, each as soon as its rank is free and what it needs has arrived. An op is
//! left out where another, which takes no memory for longer than it runs, would have fitted before it: with that one first
//! nothing ends later (the *active* schedules of Giffler and Thompson, 1960). As many ops into their orders, two states
//! that have run the same ones are held against each other: one whose ranks are free, and whose results arrive, no later
//! than the other's makes it useless.
//!
//! What is left out so may count on an op that the better state has already missed: one that could have started before the
//! last did. As long as there are more states than are kept, missed ops are not looked at; when there are not, states
//! are grown once more with missed ops started late, and then with ops after which no rule says that all can end: a microbatch
//! whose B takes memory may need that a younger one goes on first. Then, where the width is not reached, nothing better is left.
//!
//! # What is hopeful
//! A state counts for what no order that starts with it goes under: by the work of each rank, by the way of the next and
//! of the last microbatch through each lane, and by the time for which what is still to come fills the memory. Where that
//! says the same, the sum of this over ranks decides.

use alloc::vec;
use alloc::vec::Vec;

use super::bankers::{Room, allowed};
use super::flat_problem::{B, BW, Chain, Code, F, Flat, Rows, UNLIMITED, W, code, kind_of, lane_of};
use crate::problem::Objective;

/// Shares of a limit are counted in 2^-32.
const SHARE_BITS: u32 = 32;

/// What never changes of a lane.
struct About {
    /// What F, B and W keep their rank busy for at least, whether B and W run apart or as one.
    least: [u64; 3],
    /// What W takes behind a B that has run by itself.
    weights: u64,
    /// Whether B and W take less time or memory as one.
    gains: bool,
    /// The lowest lane of its chain on its rank.
    is_lowest: bool,
    /// The share of the limit that is held after F, and after B.
    share: [u64; 2],
    /// For how long one microbatch fills the limit, if all of it were that one's.
    fills: u64,
}

/// Some ops of an order that have been started, and what follows from them.
#[derive(Clone, Default)]
struct State {
    /// The start of the last op.
    now: u64,
    hash: u64,
    /// By lane: F, B and W that have been started.
    done: Vec<[u32; 3]>,
    /// By rank.
    free: Vec<u64>,
    held: Vec<i64>,
    left: Vec<u64>,
    first: Vec<u64>,
    /// By slot, when F may start, and then B, as far as known.
    arrive: Vec<u64>,
}

/// A state that one more op would make.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    bound: u64,
    sum: u64,
    /// How many jobs before, and which of the states there.
    back: u32,
    parent: u32,
    code: Code,
}

/// What one pass led to: the best orders below the cutoff, and whether states were left out because there were too many.
struct Grown {
    orders: Vec<Rows>,
    cut: bool,
}

/// Most ops of a problem for which orders are grown.
const MOST_OPS: usize = 160;
/// Whether orders of the problem are grown.
pub(super) fn is_small(flat: &Flat) -> bool {
    flat.ops <= MOST_OPS
}

/// How many states are kept side by side at first, and how many times as many next.
const FIRST_WIDTH: usize = 24;
const WIDER: usize = 3;
/// The most: some 50 MiB.
const MOST_WIDTH: usize = 6000;
/// Passes that look for orders to start from as well, which may cost one part in so many more; and how many of those.
const LAX_PASSES: usize = 2;
const LAX: u64 = 32;
const MOST_ORDERS: usize = 8;

pub(super) struct Beam<'f> {
    flat: &'f Flat,
    /// Where each backward may run cut or whole, the problem with other backwards whole; each with what one microbatch
    /// needs by itself, by rank, as for the problem itself.
    others: Vec<(Flat, Vec<i64>)>,
    alone: Vec<i64>,
    lanes: Vec<About>,
    /// Whether an op may start although the last one started later than it might have.
    waits: bool,
    /// Whether an op may start after which it is not certain that all can end.
    dares: bool,
    /// All jobs: an op of B and W in one counts for two where both ways are open.
    jobs: usize,
    // By lane, of the state that is looked at: the soonest start of the next op and the soonest end of the last.
    head: Vec<[u64; 2]>,
    last: Vec<[u64; 2]>,
    // By rank: the soonest start of any F or B, and the work of those of one chain.
    soonest: Vec<u64>,
    work: Vec<u64>,
    ends: Vec<u64>,
    /// Ops started so far.
    pub ops: u64,
}

impl<'f> Beam<'f> {
    /// For a small problem. Where each backward may run cut or whole, `others` are the problem with some or all of them
    /// whole, in one of which microbatches can end one after the other wherever they can at all.
    pub fn new(flat: &'f Flat, others: Vec<Flat>) -> Beam<'f> {
        let mixes = !others.is_empty();
        let mut lanes: Vec<About> = flat
            .lanes
            .iter()
            .enumerate()
            .map(|(index, lane)| {
                let [f, b, w, whole] = lane.duration;
                let least = match (flat.fused, mixes) {
                    (true, _) => [f, whole, 0],
                    (false, true) => [f, b.min(whole), whole - b.min(whole)],
                    (false, false) => [f, b, w],
                };
                let share = |bytes: i64| match flat.limit[lane.rank] {
                    limit if limit >= UNLIMITED || limit <= 0 => 0,
                    limit => (((bytes.max(0) as u128) << SHARE_BITS) / limit as u128) as u64,
                };
                let is_lowest = flat.lanes_of[lane.rank]
                    .iter()
                    .all(|other| *other >= index || flat.lanes[*other].chain != lane.chain);
                About {
                    least,
                    weights: if flat.fused { 0 } else { w },
                    gains: lane.gains_whole(),
                    is_lowest,
                    share: [share(lane.net(F)), share(lane.net(F) + lane.net(B))],
                    fills: 0,
                }
            })
            .collect();
        for chain in &flat.chains {
            // From the end of the F to the start of the B of a lane.
            let mut away = 0;
            for index in (chain.first_lane..chain.first_lane + chain.lanes).rev() {
                let (lane, about) = (&flat.lanes[index], &mut lanes[index]);
                let [f, b, w] = about.least;
                about.fills = shared(away + f + b, about.share[0]);
                if !flat.fused {
                    about.fills += shared(w, about.share[1]);
                }
                let hop_b = if lane.first { 0 } else { flat.lanes[index - 1].hop_b };
                away += f + b + lane.hop_f + hop_b;
            }
        }
        let per_slot = if flat.fused { 2 } else { 3 };
        let alone = |flat: &Flat| (0..flat.ranks).map(|rank| flat.least(rank)).collect::<Vec<i64>>();
        let with_alone = |flat: Flat| {
            let alone = alone(&flat);
            (flat, alone)
        };
        Beam {
            flat,
            alone: alone(flat),
            others: others.into_iter().map(with_alone).collect(),
            waits: false,
            dares: false,
            jobs: per_slot * flat.slots,
            head: vec![[0; 2]; lanes.len()],
            last: vec![[0; 2]; lanes.len()],
            lanes,
            soonest: vec![0; flat.ranks],
            work: vec![0; flat.ranks],
            ends: vec![0; flat.ranks],
            ops: 0,
        }
    }

    /// Grows orders, more and more side by side, as long as all of it takes no more than `effort`. What is found goes to
    /// `offer`, which says what the next has to cost less than. True where nothing better is left.
    pub fn widen(&mut self, effort: u64, mut offer: impl FnMut(Vec<Rows>, u64) -> u64) -> bool {
        let (from, mut width, mut cutoff) = (self.ops, FIRST_WIDTH, offer(Vec::new(), 0));
        (self.waits, self.dares) = (false, false);
        for pass in 0.. {
            let before = self.ops;
            let lax = if pass < LAX_PASSES { cutoff / LAX } else { 0 };
            let grown = self.grow(width, cutoff.saturating_add(lax));
            let took = self.ops - before;
            cutoff = offer(grown.orders, took);
            if cutoff == 0 || (!grown.cut && self.waits && (self.dares || !self.others.is_empty())) {
                return true;
            }
            if self.ops - from + WIDER as u64 * took > effort || WIDER * width > MOST_WIDTH {
                return false;
            }
            // Where hardly a state was left out, the rest is worth a look too.
            self.dares |= !grown.cut && self.waits;
            self.waits |= !grown.cut;
            width *= WIDER;
        }
        false
    }

    fn start(&self) -> State {
        let flat = self.flat;
        let work = |rank: usize| {
            let of = |lane: &usize| flat.lanes[*lane].count as u64 * self.lanes[*lane].least.iter().sum::<u64>();
            flat.lanes_of[rank].iter().map(of).sum()
        };
        State {
            now: 0,
            hash: 0,
            done: vec![[0; 3]; flat.lanes.len()],
            free: vec![0; flat.ranks],
            held: vec![0; flat.ranks],
            left: (0..flat.ranks).map(work).collect(),
            first: vec![u64::MAX; flat.ranks],
            arrive: vec![0; 2 * flat.slots],
        }
    }

    /// The best orders that cost less than `cutoff`, with at most `width` states kept side by side.
    fn grow(&mut self, width: usize, cutoff: u64) -> Grown {
        let mut cut = false;
        // The states of this number of jobs, and of one less.
        let (mut states, mut older) = (vec![self.start()], Vec::<State>::new());
        let mut pool: Vec<State> = Vec::new();
        let mut next: [Vec<Next>; 2] = [Vec::new(), Vec::new()];
        let mut history: Vec<Vec<Next>> = vec![Vec::new()];
        let mut scratch = self.start();
        let mut table = Table::new(width);
        for jobs in 1..=self.jobs {
            for (parent, state) in states.iter().enumerate() {
                self.expand(state, parent as u32, &mut scratch, cutoff, &mut next);
            }
            let [mut here, further] = next;
            here.sort_unstable();
            let mut grown: Vec<State> = Vec::with_capacity(width.min(here.len()));
            let mut kept: Vec<Next> = Vec::with_capacity(width.min(here.len()));
            table.clear();
            for candidate in &here {
                if grown.len() == width {
                    cut = true;
                    break;
                }
                let from = if candidate.back == 1 { &states } else { &older };
                let mut state = pool.pop().unwrap_or_default();
                state.copy(&from[candidate.parent as usize]);
                self.run(&mut state, candidate.code);
                self.ops += 2;
                if jobs < self.jobs && table.meets(state.hash, |other| self.is_no_later(&grown[other], &state)) {
                    pool.push(state);
                    continue;
                }
                table.insert(state.hash, grown.len());
                grown.push(state);
                kept.push(*candidate);
            }
            history.push(kept);
            pool.append(&mut older);
            older = states;
            states = grown;
            here.clear();
            next = [further, here];
            if states.is_empty() && next[0].is_empty() {
                break;
            }
        }
        let ends = history.get(self.jobs).map_or(0, Vec::len);
        Grown { orders: (0..ends.min(MOST_ORDERS)).map(|end| self.trace(&history, end)).collect(), cut }
    }

    /// The rows of one of the complete orders.
    fn trace(&self, history: &[Vec<Next>], end: usize) -> Rows {
        let mut rows = vec![Vec::new(); self.flat.ranks];
        let (mut jobs, mut at) = (self.jobs, end);
        while jobs > 0 {
            let Next { code, parent, back, .. } = history[jobs][at];
            rows[self.flat.lanes[lane_of(code)].rank].push(code);
            jobs -= back as usize;
            at = parent as usize;
        }
        rows.iter_mut().for_each(|row| row.reverse());
        rows
    }

    /// Lists what may be started next.
    fn expand(&mut self, state: &State, parent: u32, scratch: &mut State, cutoff: u64, next: &mut [Vec<Next>; 2]) {
        let flat = self.flat;
        scratch.copy(state);
        for rank in 0..flat.ranks {
            // Of the ops that take no memory for longer than they run, the one that could end first.
            let mut filler: Option<(u64, Code)> = None;
            for &lane in &flat.lanes_of[rank] {
                for kind in self.kinds(lane) {
                    let about = &flat.lanes[lane];
                    // Whether a backward is cut may not be settled by a gap that only its B fits in.
                    let is_settled = *kind != B || !self.gains(lane);
                    if is_settled
                        && about.net(*kind) <= 0
                        && let Some(start) = self.arrival(state, lane, *kind)
                        && state.held[rank] + about.takes[*kind as usize] <= flat.limit[rank]
                    {
                        let end = start.max(state.free[rank]).max(if self.waits { state.now } else { 0 })
                            + about.duration[*kind as usize];
                        if filler.is_none_or(|(other, _)| end < other) {
                            filler = Some((end, code(lane, *kind)));
                        }
                    }
                }
            }
            for &lane in &flat.lanes_of[rank] {
                for kind in self.kinds(lane) {
                    let Some(arrival) = self.arrival(state, lane, *kind) else { continue };
                    let start = arrival.max(state.free[rank]).max(if self.waits { state.now } else { 0 });
                    if start < state.now
                        || filler.is_some_and(|(end, code)| start >= end && code != self::code(lane, *kind))
                        || !self.fits(state, rank, lane, *kind)
                    {
                        continue;
                    }
                    let code = code(lane, *kind);
                    let before = (state.done[lane], scratch.first[rank]);
                    self.run(scratch, code);
                    let (bound, sum) = self.bound(scratch);
                    scratch.done[lane] = before.0;
                    scratch.first[rank] = before.1;
                    (scratch.free[rank], scratch.held[rank]) = (state.free[rank], state.held[rank]);
                    (scratch.left[rank], scratch.now, scratch.hash) = (state.left[rank], state.now, state.hash);
                    self.ops += 4 + flat.lanes.len() as u64 / 2;
                    if bound < cutoff {
                        let both = !self.others.is_empty() && *kind == BW;
                        let back = 1 + u32::from(both);
                        next[usize::from(both)].push(Next { bound, sum, back, parent, code });
                    }
                }
            }
        }
    }

    fn kinds(&self, lane: usize) -> &'static [u32] {
        match (self.flat.fused, self.gains(lane)) {
            (true, _) => &[F, BW],
            (false, false) => &[F, B, W],
            (false, true) => &[F, B, W, BW],
        }
    }

    /// Whether a backward of the lane may run cut or whole, and may be better whole.
    fn gains(&self, lane: usize) -> bool {
        !self.others.is_empty() && self.lanes[lane].gains
    }

    /// When the next op of a kind may start as far as other ranks go; none where that is not known yet, or none is left.
    fn arrival(&self, state: &State, lane: usize, kind: u32) -> Option<u64> {
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

    fn fits(&self, state: &State, rank: usize, lane: usize, kind: u32) -> bool {
        let limit = self.flat.limit[rank];
        let fits = |flat: &Flat, alone: &[i64], in_turn| {
            let room = Room { rank, limit, held: state.held[rank], alone: alone[rank], in_turn };
            allowed(&room, flat, &state.done, lane, kind)
        };
        if self.dares {
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
    fn run(&self, state: &mut State, code: Code) {
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

    /// What no order that starts so goes under, and the sum of that over ranks.
    fn bound(&mut self, state: &State) -> (u64, u64) {
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
                head = head.max(self.suggestion(state, lane.rank));
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
    fn suggestion(&self, state: &State, rank: usize) -> u64 {
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
    fn is_no_later(&self, one: &State, other: &State) -> bool {
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

impl State {
    /// As `clone_from`, which keeps what memory there is.
    fn copy(&mut self, other: &State) {
        (self.now, self.hash) = (other.now, other.hash);
        self.done.clone_from(&other.done);
        self.free.clone_from(&other.free);
        self.held.clone_from(&other.held);
        self.left.clone_from(&other.left);
        self.first.clone_from(&other.first);
        self.arrive.clone_from(&other.arrive);
    }
}

/// So much of a time as a share says.
fn shared(time: u64, share: u64) -> u64 {
    ((u128::from(time) * u128::from(share)) >> SHARE_BITS) as u64
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

/// States by hash.
struct Table {
    places: Vec<(u64, u32)>,
}

const EMPTY: u32 = u32::MAX;

impl Table {
    fn new(width: usize) -> Table {
        Table { places: vec![(0, EMPTY); (4 * width).next_power_of_two()] }
    }

    fn clear(&mut self) {
        self.places.fill((0, EMPTY));
    }

    /// Whether one of the states with this hash is such.
    fn meets(&self, hash: u64, mut is_such: impl FnMut(usize) -> bool) -> bool {
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        while self.places[at].1 != EMPTY {
            if self.places[at].0 == hash && is_such(self.places[at].1 as usize) {
                return true;
            }
            at = (at + 1) & mask;
        }
        false
    }

    fn insert(&mut self, hash: u64, state: usize) {
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        while self.places[at].1 != EMPTY {
            at = (at + 1) & mask;
        }
        self.places[at] = (hash, state as u32);
    }
}
