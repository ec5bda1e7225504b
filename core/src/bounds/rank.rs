//! One rank with soonest starts and least remainders: what its own work and memory add to them.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::net::Net;
use super::ways::{B, F, W, Ways};
use crate::units::Nanos;

/// The ops of one kind and stage, microbatch by microbatch.
struct Class<'a> {
    heads: &'a [Nanos],
    tails: &'a [Nanos],
    /// Added to each tail that is not 0.
    later: Nanos,
    /// No tail is less.
    least: Nanos,
    duration: Nanos,
    /// How long the first of the last microbatches takes with those before it that are left out: they start no
    /// sooner than it is said to, and as much follows them.
    of_many: Option<(usize, Nanos)>,
    at: usize,
    left: Nanos,
}

impl Class<'_> {
    fn tail(&self) -> Nanos {
        let tail = self.tails[self.at];
        if tail > 0 { self.least.max(tail + self.later) } else { self.least }
    }
}

/// A rank in a window.
pub(super) struct Window<'a> {
    pub net: &'a Net,
    pub rank: usize,
    pub heads: &'a Ways,
    pub tails: &'a Ways,
    /// The window closes this much later than the one that the tails were made for.
    pub later: Nanos,
    /// By lane and stage: the least time from the end of F to the end of W through B, whatever the window.
    pub back: &'a [Vec<[Nanos; 2]>],
}

/// Head, load, tail of the binding set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carlier {
    pub value: Nanos,
    pub head: Nanos,
    pub tail: Nanos,
}

impl Window<'_> {
    fn tail(&self, lane: usize, stage: usize, kind: usize, k: usize) -> Nanos {
        let least = if kind == W { 0 } else { self.back[lane][stage][kind] };
        match self.tails.of(lane, stage, kind)[k] {
            0 => least,
            tail => least.max(tail + self.later),
        }
    }

    fn of_many(&self, duration: Nanos) -> Option<(usize, Nanos)> {
        let between = self.net.between as u64;
        (between > 0).then(|| (self.net.late(), (between + 1) * duration))
    }

    /// The largest, over sets of ops, of least head + all durations + least tail: found by running, at any
    /// time, the op with the largest tail of those that may run, one op interrupting another.
    ///
    /// Source: Jackson's preemptive schedule, in Carlier, EJOR 11 (1982).
    pub fn carlier(&self) -> Carlier {
        let mut classes: Vec<Class<'_>> = Vec::new();
        for (lane, stages_of) in self.net.stages_of.iter().enumerate() {
            for &stage in &stages_of[self.rank] {
                let cost = &self.net.costs[stage];
                for (kind, duration) in [(F, cost.f), (B, cost.b), (W, cost.w)] {
                    classes.push(Class {
                        heads: self.heads.of(lane, stage, kind),
                        tails: self.tails.of(lane, stage, kind),
                        later: self.later,
                        least: if kind == W { 0 } else { self.back[lane][stage][kind] },
                        duration,
                        of_many: self.of_many(duration),
                        at: 0,
                        left: duration,
                    });
                }
            }
        }
        let mut best = Carlier::default();
        let (mut now, mut since) = (0, 0);
        // Of each class the op whose turn it is: those that may run by tail, the others by head.
        let mut ready: BinaryHeap<(Nanos, Reverse<usize>)> = BinaryHeap::new();
        let first = |class: &Class<'_>| class.heads.first().copied();
        let mut waiting: BinaryHeap<Reverse<(Nanos, usize)>> =
            classes.iter().enumerate().filter_map(|(index, class)| Some(Reverse((first(class)?, index)))).collect();
        loop {
            while let Some(Reverse((_, index))) = waiting.peek().copied().filter(|Reverse((head, _))| *head <= now) {
                waiting.pop();
                ready.push((classes[index].tail(), Reverse(index)));
            }
            let next = waiting.peek().map_or(Nanos::MAX, |Reverse((head, _))| *head);
            let Some((tail, Reverse(index))) = ready.peek().copied() else {
                if next == Nanos::MAX {
                    return best;
                }
                (now, since) = (next, next);
                continue;
            };
            let class = &mut classes[index];
            let run = class.left.min(next - now);
            now += run;
            class.left -= run;
            if class.left == 0 {
                ready.pop();
                if now + tail > best.value {
                    best = Carlier { value: now + tail, head: since, tail };
                }
                class.at += 1;
                class.left = match class.of_many {
                    Some((at, duration)) if at == class.at => duration,
                    _ => class.duration,
                };
                if let Some(head) = class.heads.get(class.at) {
                    waiting.push(Reverse((*head, index)));
                }
            }
        }
    }

    /// Time that the rank idles because its memory is full: before some B, only so much work can be done as
    /// fits the limit; after some F, only so much work can be left.
    ///
    /// *Fill.* Before the soonest start `T` of the `k + 1`-th op of a class, at most `k` microbatches have
    /// got that far. Each of the others has done some work `w` and holds some bytes `h`, by how far it got;
    /// together they hold no more than the room `A`. So they have done at most `A · max w/h`, and the rank
    /// has idled for at least `T` less all that.
    ///
    /// *Drain.* In the same way, backwards: after the end of the op of a class with `k` microbatches to come,
    /// the other microbatches have at most `A · max r/h` of work remaining, while the window stays open for
    /// at least the op's tail.
    ///
    /// The two idle times lie apart where the window is known to last for `T` and the tail together, which
    /// `known` says; then they add up.
    pub fn memory(&self, load: Nanos, known: Nanos) -> Memory {
        let mut fills: Vec<Idle> = Vec::new();
        let mut drains: Vec<Idle> = Vec::new();
        let room = self.net.room[self.rank];
        // Two directions would share the room: the shares below are those of one.
        if self.net.lanes.len() > 1 {
            return Memory { value: load, fill: 0, drain: 0 };
        }
        let microbatches = self.net.microbatches;
        let known_at_both_ends = self.net.early().min(microbatches - self.net.late());
        for (lane, stages_of) in self.net.stages_of.iter().enumerate() {
            let stages = &stages_of[self.rank];
            let whole: Nanos = stages.iter().map(|stage| self.net.work(*stage)).sum();
            for (position, &stage) in stages.iter().enumerate() {
                for kind in [F, B] {
                    let (before, most_work) = self.before(lane, position, kind);
                    let (after, most_rest) = self.after(lane, position, kind);
                    let (done, left) = (most(&before, room), most(&after, room));
                    let heads = self.heads.of(lane, stage, kind);
                    for (k, head) in heads.iter().enumerate().take(known_at_both_ends) {
                        let others = (self.net.all_microbatches() - k) as u64;
                        let whole = whole * k as u64;
                        fills.push(Idle::of(*head, done.min(others * most_work) + whole));
                        let tail = self.tail(lane, stage, kind, microbatches - 1 - k);
                        drains.push(Idle::of(tail, left.min(others * most_rest) + whole));
                    }
                }
            }
        }
        let (fills, drains) = (useful(fills), useful(drains));
        let most = |idles: &[Idle]| idles.last().map_or(0, |idle| idle.idle);
        let mut best = Memory { value: load, fill: 0, drain: 0 };
        for (fill, drain) in [(most(&fills), 0), (0, most(&drains))] {
            if load + fill + drain > best.value {
                best = Memory { value: load + fill + drain, fill, drain };
            }
        }
        // A larger value may let further pairs lie apart.
        loop {
            let known = known.max(best.value);
            let mut found = best;
            let mut drains = drains.iter().rev().peekable();
            for fill in &fills {
                while drains.next_if(|drain| drain.within + fill.within > known).is_some() {}
                if let Some(drain) = drains.peek()
                    && load + fill.idle + drain.idle > found.value
                {
                    found = Memory { value: load + fill.idle + drain.idle, fill: fill.idle, drain: drain.idle };
                }
            }
            if found.value <= known {
                return found;
            }
            best = found;
        }
    }

    /// How far a microbatch may have got that has not begun the op `kind` of the stage at `position`: work
    /// done and bytes held, for each place to stop; and the most work. W is done as soon as it can be: that
    /// holds least.
    fn before(&self, lane: usize, position: usize, kind: usize) -> (Vec<Share>, Nanos) {
        let stages = &self.net.stages_of[lane][self.rank];
        let mut found = Vec::new();
        let mut at = Share { work: 0, bytes: 0 };
        let forward = if kind == F { &stages[..position] } else { &stages[..] };
        for stage in forward {
            let cost = &self.net.costs[*stage];
            at.work += cost.f;
            at.bytes += cost.bytes[0];
            found.push(at);
        }
        let backward = if kind == F { &[][..] } else { &stages[position + 1..] };
        for stage in backward.iter().rev() {
            let cost = &self.net.costs[*stage];
            at.work += cost.b + cost.w;
            at.bytes += cost.bytes[1] + cost.bytes[2].min(0);
            found.push(at);
        }
        (found, at.work)
    }

    /// What a microbatch may have left that has ended the op `kind` of the stage at `position`: work left
    /// and bytes held; and the most work. A microbatch that has done B of some stages and not their W is the
    /// sum of several entries.
    fn after(&self, lane: usize, position: usize, kind: usize) -> (Vec<Share>, Nanos) {
        let stages = &self.net.stages_of[lane][self.rank];
        let costs = &self.net.costs;
        let back = |stages: &[usize]| stages.iter().map(|stage| costs[*stage].b + costs[*stage].w).sum::<Nanos>();
        let whole = |stages: &[usize]| back(stages) + stages.iter().map(|stage| costs[*stage].f).sum::<Nanos>();
        let mut found = Vec::new();
        for (index, stage) in stages.iter().enumerate() {
            // Held by the stages up to this one: F done, B not. Those above have their W left at most, or,
            // while F is still on its way up, everything.
            let (held, above) = stages.split_at(index + 1);
            let bytes = held.iter().map(|stage| costs[*stage].bytes[0]).sum();
            match kind {
                F if index >= position => found.push(Share { work: back(held) + whole(above), bytes }),
                _ if kind == F || index < position => found.push(Share { work: back(held), bytes }),
                _ => {}
            }
            found.push(Share { work: costs[*stage].w, bytes: costs[*stage].bytes[0] + costs[*stage].bytes[1] });
        }
        let (below, above) = stages.split_at(position);
        let most = match kind {
            F => back(below) + back(&above[..1]) + whole(&above[1..]),
            _ => back(below) + above.iter().map(|stage| costs[*stage].w).sum::<Nanos>(),
        };
        (found, most)
    }
}

/// Work of one microbatch beside the bytes that it holds meanwhile.
#[derive(Clone, Copy, Debug)]
struct Share {
    work: Nanos,
    bytes: i64,
}

/// The most work that microbatches do which hold `room` bytes in all.
fn most(entries: &[Share], room: Option<i64>) -> Nanos {
    let working = || entries.iter().filter(|entry| entry.work > 0);
    let Some(room) = room.filter(|_| working().all(|entry| entry.bytes > 0)) else {
        return if working().next().is_some() { Nanos::MAX } else { 0 };
    };
    let unit = working().fold(0, |unit, entry| gcd(unit, entry.bytes as u64)).max(1);
    // Sums of these bytes are multiples of their unit.
    let room = u128::from(room.max(0) as u64 / unit * unit);
    let by =
        |entry: &Share| (room * u128::from(entry.work) / entry.bytes.max(1) as u128).min(Nanos::MAX.into()) as u64;
    working().map(by).max().unwrap_or(0)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Idle time of a rank within some time from the opening of its window, or before its close.
#[derive(Clone, Copy, Debug)]
struct Idle {
    idle: Nanos,
    within: Nanos,
}

impl Idle {
    fn of(within: Nanos, work: Nanos) -> Idle {
        Idle { idle: within.saturating_sub(work), within }
    }
}

/// Those that no other beats in both, with both rising.
fn useful(mut idles: Vec<Idle>) -> Vec<Idle> {
    idles.retain(|idle| idle.idle > 0);
    idles.sort_by_key(|idle| (idle.within, Reverse(idle.idle)));
    let mut most = 0;
    idles.retain(|idle| {
        let better = idle.idle > most;
        most = most.max(idle.idle);
        better
    });
    idles
}

/// Idle time that memory forces on a rank, and the span that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub value: Nanos,
    pub fill: Nanos,
    pub drain: Nanos,
}
