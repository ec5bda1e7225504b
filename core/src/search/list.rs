//! List scheduling (Graham, 1969), driven by events: from a policy to an order.
//!
//! Time runs forward. Whenever a rank is free it looks at the next F, B and W of each of its lanes and at the inputs on their way
//! to it, and either starts an op or sleeps until the next arrival. The [`Policy`] says what it prefers; the memory limit and the
//! rule below say what it may do. One run costs a few tens of nanoseconds per op, so many policies can be tried.
//!
//! # Why it never gets stuck
//! A rank that fills its memory with early forwards may lack the bytes to finish any of them. So an op that takes memory is
//! started only if afterwards *each rank alone* could still finish its admitted microbatches one after the other, oldest first
//! ([`allowed`]). Those completions fit together: the order "all of microbatch 0, then all of 1, …" keeps every dependency over all
//! ranks, and no op waits for a W. So there is always an op that may start, down to the least memory at which a single microbatch
//! fits. A cap on forwards in flight never holds back the oldest microbatch.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::bankers::{Room, allowed};
use super::flat_problem::{B, BW, Code, F, Flat, W, code};

/// A key that no op reaches: W with this lag only fills gaps.
pub(super) const NEVER: i64 = i64::MAX / 8;

/// What a free rank prefers.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// By lane: forwards that may be in flight, that is without their B. At least 1.
    pub caps: Vec<u32>,
    /// When ops are planned. What is planned first goes first.
    pub plan: Plan,
    /// The delay of a W before it counts; [`NEVER`] for a W that only fills gaps.
    pub w_lag: i64,
    /// The share of a W, in thousandths, that has to fit in the gap that it fills: 0 fills any gap.
    pub w_fit: u64,
    /// For how much of an op's duration, in thousandths, a rank waits for an op that is planned earlier and on its way.
    pub patience: u64,
    /// Forwards wait for their planned time, less this; [`NEVER`] for as early as can be.
    pub early: i64,
    /// The least time between two microbatches that enter a chain. Microbatches that enter together meet again at every
    /// rank, and need memory there at once.
    pub gap: u64,
    /// Whether a rank that has run a backward prefers a forward, and the other way round, whatever is planned.
    pub alternate: bool,
    /// Whether the microbatches of two directions are admitted alternately, or those of the second after all of the
    /// first: see [`Room`].
    pub in_turn: bool,
}

/// When ops are planned: a W with its B, or by itself.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// Microbatches one after the other, at a pace.
    Paced(Pace),
    /// Each op by itself.
    Each(Times),
}

#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// By lane: when the first F and B are planned; the n-th is `n · period` later.
    pub f: Vec<i64>,
    pub b: Vec<i64>,
    pub period: i64,
    /// Microbatches are planned in groups of so many, at least 1: within a group the n-th is `step` later, and
    /// the next group starts `group · period` later. With 1 all are `period` apart.
    pub group: u32,
    pub step: i64,
}

/// Planned times by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub f: Vec<i64>,
    pub b: Vec<i64>,
    pub w: Vec<i64>,
}

/// A key offset that puts every op of one kind behind every op of another.
const BEHIND: i64 = 1 << 60;

/// Arrays of the scheduler, kept between calls.
pub(super) struct List {
    arrive_f: Vec<u64>,
    arrive_b: Vec<u64>,
    known_f: Vec<u32>,
    known_b: Vec<u32>,
    done: Vec<[u32; 3]>,
    held: Vec<i64>,
    wake: Vec<u64>,
    busy: Vec<bool>,
    /// By chain: when the next microbatch may enter.
    enter: Vec<u64>,
    /// By rank: whether its last op other than W was a forward.
    forward: Vec<bool>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// By rank: the bytes that one microbatch alone needs.
    alone: Vec<i64>,
    /// Ops started over all calls.
    pub ops: u64,
}

impl Plan {
    /// When an op of the n-th microbatch of a lane is planned.
    fn time(&self, flat: &Flat, lane: usize, kind: u32, n: u32) -> i64 {
        match self {
            Plan::Paced(pace) => {
                let first = if kind == F { pace.f[lane] } else { pace.b[lane] };
                first.saturating_add(pace.later(n))
            }
            Plan::Each(times) => {
                let of = match kind {
                    F => &times.f,
                    W => &times.w,
                    _ => &times.b,
                };
                of[flat.lanes[lane].offset + n as usize]
            }
        }
    }
}

impl Pace {
    /// By how much the n-th microbatch is planned later than the first.
    fn later(&self, n: u32) -> i64 {
        if self.group == 1 {
            return i64::from(n).saturating_mul(self.period);
        }
        let (groups, within) = (n / self.group, n % self.group);
        let whole = i64::from(groups) * i64::from(self.group);
        whole.saturating_mul(self.period).saturating_add(i64::from(within).saturating_mul(self.step))
    }
}

impl Times {
    pub fn new(flat: &Flat) -> Times {
        let none = || vec![0; flat.slots];
        Times { f: none(), b: none(), w: none() }
    }

    /// Plans no microbatch before one that goes ahead of it.
    pub fn put_in_turn(&mut self, flat: &Flat) {
        for lane in &flat.lanes {
            for of in [&mut self.f, &mut self.b, &mut self.w] {
                for slot in lane.offset + 1..lane.offset + lane.count {
                    of[slot] = of[slot].max(of[slot - 1]);
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Choice {
    key: i64,
    lane: usize,
    kind: u32,
}

impl List {
    pub fn new(flat: &Flat) -> List {
        let lanes = flat.lanes.len();
        List {
            arrive_f: vec![0; flat.slots],
            arrive_b: vec![0; flat.slots],
            known_f: vec![0; lanes],
            known_b: vec![0; lanes],
            done: vec![[0; 3]; lanes],
            held: vec![0; flat.ranks],
            wake: vec![0; flat.ranks],
            busy: vec![false; flat.ranks],
            enter: vec![0; flat.chains.len()],
            forward: vec![true; flat.ranks],
            heap: BinaryHeap::new(),
            alone: (0..flat.ranks).map(|rank| flat.least(rank)).collect(),
            ops: 0,
        }
    }

    /// The order of `policy` under `limit` (by rank, above the static bytes; at least [`Flat::least`]). None only if no
    /// rank can run, which cannot happen (see the module).
    pub fn build(&mut self, flat: &Flat, limit: &[i64], policy: &Policy) -> Option<Vec<Vec<Code>>> {
        self.known_f.fill(0);
        self.known_b.fill(0);
        self.done.fill([0; 3]);
        self.held.fill(0);
        self.wake.fill(u64::MAX);
        self.busy.fill(false);
        self.enter.fill(0);
        self.forward.fill(true);
        self.heap.clear();
        let per_lane = if flat.fused { 2 } else { 3 };
        let mut rows: Vec<Vec<Code>> = flat
            .lanes_of
            .iter()
            .map(|lanes| Vec::with_capacity(lanes.iter().map(|lane| per_lane * flat.lanes[*lane].count).sum()))
            .collect();
        for chain in &flat.chains {
            let lane = &flat.lanes[chain.first_lane];
            self.known_f[chain.first_lane] = chain.microbatches as u32;
            self.arrive_f[lane.offset..lane.offset + chain.microbatches].fill(0);
            self.wake_at(lane.rank, 0);
        }
        let mut started = 0;
        while let Some(Reverse((now, rank))) = self.heap.pop() {
            let rank = rank as usize;
            if self.wake[rank] != now {
                continue;
            }
            self.wake[rank] = u64::MAX;
            self.busy[rank] = false;
            match self.decide(flat, limit[rank], policy, rank, now) {
                Ok(choice) => {
                    self.start(flat, rank, now, choice);
                    let lane = &flat.lanes[choice.lane];
                    if lane.first && choice.kind == F {
                        self.enter[lane.chain] = now.saturating_add(policy.gap);
                    }
                    rows[rank].push(code(choice.lane, choice.kind));
                    started += 1;
                }
                Err(until) if until != u64::MAX => self.wake_at(rank, until),
                Err(_) => {}
            }
        }
        self.ops += started as u64;
        (started == flat.ops).then_some(rows)
    }

    fn wake_at(&mut self, rank: usize, time: u64) {
        if time < self.wake[rank] {
            self.wake[rank] = time;
            self.heap.push(Reverse((time, rank as u32)));
        }
    }

    /// The op that `rank` starts now, or the time until which it sleeps.
    fn decide(&self, flat: &Flat, limit: i64, policy: &Policy, rank: usize, now: u64) -> Result<Choice, u64> {
        let held = self.held[rank];
        let room = Room { rank, limit, held, alone: self.alone[rank], in_turn: policy.in_turn };
        let mut best: Option<Choice> = None;
        // Arrivals that are known: the soonest of all, and the soonest that goes before `best`.
        let mut soonest = u64::MAX;
        let mut coming: Option<(u64, i64)> = None;
        let mut weights: Option<Choice> = None;
        let mut short_of_memory = false;
        let mut paced = u64::MAX;
        for &index in &flat.lanes_of[rank] {
            let lane = &flat.lanes[index];
            let [f, b, w] = self.done[index];
            if b < self.known_b[index] {
                let kind = if flat.fused { BW } else { B };
                let mut key = policy.plan.time(flat, index, B, b);
                if policy.alternate && !self.forward[rank] {
                    key = key.saturating_add(BEHIND);
                }
                let arrives = self.arrive_b[lane.offset + b as usize];
                if arrives > now {
                    soonest = soonest.min(arrives);
                    if coming.is_none_or(|(_, other)| key < other) {
                        coming = Some((arrives, key));
                    }
                } else if !allowed(&room, flat, &self.done, index, kind) {
                    short_of_memory = true;
                } else if best.is_none_or(|best| key < best.key) {
                    best = Some(Choice { key, lane: index, kind });
                }
            }
            if f < self.known_f[index] && f - b < policy.caps[index] {
                let key = policy.plan.time(flat, index, F, f);
                let mut arrives = self.arrive_f[lane.offset + f as usize];
                let mut planned = key.saturating_sub(policy.early).max(0) as u64;
                let key = if policy.alternate && self.forward[rank] { key.saturating_add(BEHIND) } else { key };
                if lane.first {
                    planned = planned.max(self.enter[lane.chain]);
                }
                if arrives.max(now) < planned {
                    paced = paced.min(planned);
                    arrives = u64::MAX;
                }
                if arrives == u64::MAX {
                } else if arrives > now {
                    soonest = soonest.min(arrives);
                    if coming.is_none_or(|(_, other)| key < other) {
                        coming = Some((arrives, key));
                    }
                } else if best.is_some_and(|best| best.key <= key) {
                } else if allowed(&room, flat, &self.done, index, F) {
                    best = Some(Choice { key, lane: index, kind: F });
                } else {
                    short_of_memory = true;
                }
            }
            if !flat.fused && w < b {
                let key = policy.plan.time(flat, index, W, w);
                if weights.is_none_or(|other| key < other.key) && held + lane.takes[W as usize] <= limit {
                    weights = Some(Choice { key, lane: index, kind: W });
                }
            }
        }
        let gap_until = |until: u64| until.saturating_sub(now);
        let fits = |weights: &Choice, gap: u64| {
            let needs = u128::from(flat.lanes[weights.lane].duration[W as usize]) * u128::from(policy.w_fit);
            needs <= u128::from(gap) * 1000
        };
        if let Some(best) = best {
            if let Some((arrives, key)) = coming
                && key < best.key
                && u128::from(gap_until(arrives)) * 1000
                    < u128::from(flat.lanes[best.lane].duration[best.kind as usize]) * u128::from(policy.patience)
            {
                return match weights {
                    Some(weights) if fits(&weights, gap_until(soonest)) => Ok(weights),
                    _ => Err(soonest),
                };
            }
            return match weights {
                Some(weights) if weights.key.saturating_add(policy.w_lag) < best.key => Ok(weights),
                Some(weights) if short_of_memory && best.kind == F => Ok(weights),
                _ => Ok(best),
            };
        }
        match weights {
            Some(weights) if short_of_memory || fits(&weights, gap_until(soonest.min(paced))) => Ok(weights),
            _ => Err(soonest.min(paced)),
        }
    }

    fn start(&mut self, flat: &Flat, rank: usize, now: u64, choice: Choice) {
        let lane = &flat.lanes[choice.lane];
        let kind = choice.kind as usize;
        let end = now + lane.duration[kind];
        self.held[rank] += lane.takes[kind] - lane.gives[kind];
        self.busy[rank] = true;
        if choice.kind != W {
            self.forward[rank] = choice.kind == F;
        }
        self.wake_at(rank, end);
        match choice.kind {
            F => {
                let n = self.done[choice.lane][0];
                self.done[choice.lane][0] = n + 1;
                if lane.last {
                    self.arrive_b[lane.offset + n as usize] = end;
                    self.known_b[choice.lane] = n + 1;
                } else {
                    let next = &flat.lanes[choice.lane + 1];
                    let arrives = end + next.hop_f;
                    self.arrive_f[next.offset + n as usize] = arrives;
                    self.known_f[choice.lane + 1] = n + 1;
                    if !self.busy[next.rank] {
                        self.wake_at(next.rank, arrives);
                    }
                }
            }
            W => self.done[choice.lane][2] += 1,
            _ => {
                let n = self.done[choice.lane][1];
                self.done[choice.lane][1] = n + 1;
                if choice.kind == BW {
                    self.done[choice.lane][2] = n + 1;
                }
                if !lane.first {
                    let before = &flat.lanes[choice.lane - 1];
                    let arrives = end + before.hop_b;
                    self.arrive_b[before.offset + n as usize] = arrives;
                    self.known_b[choice.lane - 1] = n + 1;
                    if !self.busy[before.rank] {
                        self.wake_at(before.rank, arrives);
                    }
                }
            }
        }
    }
}
