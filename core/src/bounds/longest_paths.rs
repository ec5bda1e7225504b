//! Longest paths: the head of each op, which is its soonest start after the window opens, and its tail, which is the least time
//! from its end until the window closes.
//!
//! The paths run along dependencies with their hops, from one microbatch to the next of the same kind and stage, along the
//! precedences that memory forces ([`super::precedence`]), and through the work of a rank. All F and B of a lane's microbatches
//! up to `k` on a rank end with B of microbatch `k` of the rank's first stage. So that B ends no sooner than the soonest start
//! of those ops plus the work of them all.
//!
//! Heads of a microbatch come from those before it, and tails from those after it. So where microbatches in the middle are left
//! out, the first keep their heads and the last their tails. The others take the nearest known value, which is no more than
//! theirs, since ops of a stage and kind keep their order.

use alloc::vec;
use alloc::vec::Vec;

use super::precedence::{B, F, Net, W};
use crate::base::units::Nanos;

/// A value for every op.
#[derive(Clone, Debug)]
pub(super) struct PathLengths {
    microbatches: usize,
    stages: usize,
    values: Vec<Nanos>,
}

impl PathLengths {
    pub fn new(net: &Net) -> PathLengths {
        let (stages, microbatches) = (net.costs.len(), net.microbatches);
        PathLengths { microbatches, stages, values: vec![0; net.lanes.len() * stages * 3 * microbatches] }
    }

    fn row(&self, lane: usize, stage: usize, kind: usize) -> usize {
        ((lane * self.stages + stage) * 3 + kind) * self.microbatches
    }

    /// By microbatch.
    pub fn of(&self, lane: usize, stage: usize, kind: usize) -> &[Nanos] {
        let row = self.row(lane, stage, kind);
        &self.values[row..row + self.microbatches]
    }

    fn at(&self, lane: usize, stage: usize, kind: usize, microbatch: usize) -> Nanos {
        self.values[self.row(lane, stage, kind) + microbatch]
    }

    /// Gives all microbatches of `to` the value of the microbatch `from`.
    fn spread(&mut self, from: usize, to: core::ops::Range<usize>) {
        for row in self.values.chunks_mut(self.microbatches) {
            let value = row[from];
            row[to.clone()].fill(value);
        }
    }

    fn set(&mut self, lane: usize, stage: usize, kind: usize, microbatch: usize, value: Nanos) {
        let row = self.row(lane, stage, kind);
        self.values[row + microbatch] = value;
    }
}

/// The work of a rank that has to be done by some point, as a set of ops that grows microbatch by microbatch.
#[derive(Clone, Copy, Default)]
struct Busy {
    /// The set takes until here.
    until: Nanos,
    /// What the value counts from: ops that can start no sooner add their work.
    from: Nanos,
}

impl Busy {
    /// Adds ops, each `(soonest start, duration)`.
    fn add(&mut self, ops: &[(Nanos, Nanos)]) {
        let after = |from: Nanos| ops.iter().filter(|op| op.0 >= from).map(|op| op.1).sum::<Nanos>();
        self.until += after(self.from);
        // A later point to count from: the ops of this microbatch alone.
        for from in [ops.first(), ops.get(ops.len() / 2)].into_iter().flatten().map(|op| op.0) {
            let until = from + after(from);
            if until > self.until {
                *self = Busy { until, from };
            }
        }
    }
}

/// The soonest start of each op of the stages from `root` on, where the window opens no later than the first F of the
/// roots. Ops of stages before it, which the window need not hold, are left at 0.
pub(super) fn heads(net: &Net, root: &[usize], heads: &mut PathLengths) {
    heads.values.fill(0);
    let stages = net.costs.len();
    let mut busy = vec![Busy::default(); net.lanes.len() * net.ranks];
    let mut ops: Vec<(Nanos, Nanos)> = Vec::new();
    for k in 0..net.early() {
        for (lane, way) in net.lanes.iter().enumerate() {
            for stage in root[lane]..stages {
                let cost = &net.costs[stage];
                let needs = net.needs(lane, stage, k);
                let mut head = 0;
                if k > 0 {
                    head = heads.at(lane, stage, F, k - 1) + cost.f;
                }
                if stage > root[lane] {
                    head = head.max(heads.at(lane, stage - 1, F, k) + net.costs[stage - 1].f + way.down[stage]);
                }
                if needs[0] > 0 {
                    head = head.max(heads.at(lane, stage, B, needs[0] as usize - 1) + cost.b);
                }
                if needs[1] > 0 {
                    head = head.max(heads.at(lane, stage, W, needs[1] as usize - 1) + cost.w);
                }
                for ahead in &way.aheads[stage] {
                    if let Some(earlier) = k.checked_sub(ahead.most) {
                        let back = heads.at(lane, ahead.above, B, earlier) + net.costs[ahead.above].b;
                        head = head.max(back + ahead.delay);
                    }
                }
                heads.set(lane, stage, F, k, head);
            }
            for stage in (root[lane]..stages).rev() {
                let cost = &net.costs[stage];
                let needs = net.needs(lane, stage, k);
                let mut head = match stage + 1 < stages {
                    true => heads.at(lane, stage + 1, B, k) + net.costs[stage + 1].b + way.up[stage + 1],
                    false => heads.at(lane, stage, F, k) + cost.f,
                };
                if k > 0 {
                    head = head.max(heads.at(lane, stage, B, k - 1) + cost.b);
                }
                if needs[2] > 0 {
                    head = head.max(heads.at(lane, stage, W, needs[2] as usize - 1) + cost.w);
                }
                let rank = way.ranks[stage];
                let held = &net.stages_of[lane][rank];
                if held.iter().find(|held| **held >= root[lane]) == Some(&stage) {
                    ops.clear();
                    let held = || held.iter().filter(|held| **held >= root[lane]);
                    ops.extend(held().map(|held| (heads.at(lane, *held, F, k), net.costs[*held].f)));
                    let backward = |held: &usize| match *held == stage {
                        true => (head, net.costs[*held].b),
                        false => (heads.at(lane, *held, B, k), net.costs[*held].b),
                    };
                    ops.extend(held().rev().map(backward));
                    let busy = &mut busy[lane * net.ranks + rank];
                    busy.add(&ops);
                    head = head.max(busy.until.saturating_sub(cost.b));
                }
                heads.set(lane, stage, B, k, head);
                let mut weight = head + cost.b;
                if k > 0 {
                    weight = weight.max(heads.at(lane, stage, W, k - 1) + cost.w);
                }
                heads.set(lane, stage, W, k, weight);
            }
        }
    }
    heads.spread(net.early() - 1, net.early()..net.microbatches);
}

/// The least time from the end of each op until the window closes, where W of `closing` lie in the window:
/// all of them for the makespan; for the span of a rank its own. An op with no way to the close is at 0.
pub(super) fn tails(net: &Net, closing: impl Fn(usize) -> bool, tails: &mut PathLengths) {
    tails.values.fill(0);
    let stages = net.costs.len();
    let mut busy = vec![Busy::default(); net.lanes.len() * net.ranks];
    let mut ops: Vec<(Nanos, Nanos)> = Vec::new();
    // The first F whose memory waits for B, and for W, of the present microbatch; the same for a B.
    let mut waiting = vec![[net.microbatches; 3]; net.lanes.len() * stages];
    for k in (net.late()..net.microbatches).rev() {
        for (lane, way) in net.lanes.iter().enumerate() {
            for stage in 0..stages {
                let cost = &net.costs[stage];
                let closes = closing(way.ranks[stage]);
                let waits = &mut waiting[lane * stages + stage];
                for (need, waits) in waits.iter_mut().enumerate() {
                    while *waits > 0 && net.needs(lane, stage, *waits - 1)[need] as usize > k + net.between {
                        *waits -= 1;
                    }
                }
                let mut weight = 0;
                if closes && k + 1 < net.microbatches {
                    weight = tails.at(lane, stage, W, k + 1) + cost.w;
                }
                // An F or a B that this W frees memory for leads to the close, whether or not W does.
                if waits[1] < net.microbatches && waits[1] > k {
                    weight = weight.max(cost.f + tails.at(lane, stage, F, waits[1]));
                }
                if waits[2] < net.microbatches && waits[2] > k {
                    weight = weight.max(cost.b + tails.at(lane, stage, B, waits[2]));
                }
                tails.set(lane, stage, W, k, weight);
                let mut tail = if closes || weight > 0 { weight + cost.w } else { 0 };
                if stage > 0 {
                    tail = tail.max(way.up[stage] + net.costs[stage - 1].b + tails.at(lane, stage - 1, B, k));
                }
                if k + 1 < net.microbatches {
                    tail = tail.max(cost.b + tails.at(lane, stage, B, k + 1));
                }
                if waits[0] < net.microbatches && waits[0] > k {
                    tail = tail.max(cost.f + tails.at(lane, stage, F, waits[0]));
                }
                for (first, ahead) in &way.behinds[stage] {
                    if k + ahead.most < net.microbatches {
                        let next = net.costs[*first].f + tails.at(lane, *first, F, k + ahead.most);
                        tail = tail.max(ahead.delay + next);
                    }
                }
                tails.set(lane, stage, B, k, tail);
            }
            for stage in (0..stages).rev() {
                let cost = &net.costs[stage];
                let mut tail = match stage + 1 < stages {
                    true => way.down[stage + 1] + net.costs[stage + 1].f + tails.at(lane, stage + 1, F, k),
                    false => cost.b + tails.at(lane, stage, B, k),
                };
                if k + 1 < net.microbatches {
                    tail = tail.max(cost.f + tails.at(lane, stage, F, k + 1));
                }
                let rank = way.ranks[stage];
                let held = &net.stages_of[lane][rank];
                if held.first() == Some(&stage) {
                    ops.clear();
                    let forward = |held: &usize| match *held == stage {
                        true => (tail, net.costs[*held].f),
                        false => (tails.at(lane, *held, F, k), net.costs[*held].f),
                    };
                    if closing(rank) {
                        ops.extend(held.iter().map(|held| (tails.at(lane, *held, W, k), net.costs[*held].w)));
                    }
                    ops.extend(held.iter().map(|held| (tails.at(lane, *held, B, k), net.costs[*held].b)));
                    ops.extend(held.iter().rev().map(forward));
                    let busy = &mut busy[lane * net.ranks + rank];
                    busy.add(&ops);
                    tail = tail.max(busy.until.saturating_sub(cost.f));
                }
                tails.set(lane, stage, F, k, tail);
            }
        }
    }
    tails.spread(net.late(), 0..net.late());
}
