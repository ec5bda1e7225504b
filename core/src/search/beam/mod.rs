//! Beam search (Lowerre, 1976; for shop scheduling Sabuncuoglu and Bayiz, European Journal of Operational Research 118, 1999) on
//! small problems: many orders grow op by op, and the most promising are kept.
//!
//! Local search changes an order a little at a time. Where memory is full, two good orders may have no equally good one between
//! them; an order that grows from the start needs no path from one to the other.
//!
//! # How orders grow
//! Ops are added in the order of their starts, each as soon as its rank is free and its input has arrived. An op is left out
//! where another one, which takes no memory for longer than it runs, fits before it: with that one first nothing ends later (the
//! *active* schedules of Giffler and Thompson, 1960). Two states that have run the same ops are compared: one state dominates the
//! other where its ranks are free, and its results arrive, no later. The other is then dropped.
//!
//! A state that is dropped so may count on an op that the better state has already missed: one that could have started before
//! the last did. As long as there are more states than are kept, missed ops are not tried. When there are not, states grow once
//! more with missed ops that start late, and then with ops after which no rule says that all can end: a microbatch whose B takes
//! memory may need a younger one to go first. Then, where the width is not reached, nothing better is left.
//!
//! # Which states are promising
//! A state is judged by a lower bound on every order that starts with it: by the work of each rank, by the path of the next and
//! of the last microbatch through each lane, and by the time for which the remaining ops fill the memory. Where bounds are equal,
//! their sum over ranks decides.

use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{B, BW, Code, F, Flat, Rows, UNLIMITED, code, lane_of};

mod bound;
mod moves;
mod table;

use table::Table;

/// Shares of a limit are counted in 2^-32.
const SHARE_BITS: u32 = 32;

/// What never changes of a lane.
struct LaneFacts {
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
    lanes: Vec<LaneFacts>,
    /// Whether an op may start although the last one started later than it might have.
    waits: bool,
    /// Whether an op may start after which it is not certain that all can end.
    may_risk: bool,
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
        let mut lanes: Vec<LaneFacts> = flat
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
                LaneFacts {
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
            may_risk: false,
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
        (self.waits, self.may_risk) = (false, false);
        for pass in 0.. {
            let before = self.ops;
            let lax = if pass < LAX_PASSES { cutoff / LAX } else { 0 };
            let grown = self.grow(width, cutoff.saturating_add(lax));
            let took = self.ops - before;
            cutoff = offer(grown.orders, took);
            if cutoff == 0 || (!grown.cut && self.waits && (self.may_risk || !self.others.is_empty())) {
                return true;
            }
            if self.ops - from + WIDER as u64 * took > effort || WIDER * width > MOST_WIDTH {
                return false;
            }
            // Where hardly a state was left out, the rest is worth a look too.
            self.may_risk |= !grown.cut && self.waits;
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
