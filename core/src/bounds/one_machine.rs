//! One rank with heads and tails: what its own work adds to them.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::longest_paths::PathLengths;
use super::precedence::{B, F, Net, W};
use crate::base::units::Nanos;

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
    pub heads: &'a PathLengths,
    pub tails: &'a PathLengths,
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
    /// The least time from the end of the op until the window closes.
    pub fn tail(&self, lane: usize, stage: usize, kind: usize, k: usize) -> Nanos {
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
}
