//! Microbatches that pass each other between two stages.
//!
//! Take two microbatches `i` and `j = i + l` of a lane. On each stage either B of `i` or F of `j` comes first. B of `i` goes up
//! towards stage 0 while F of `j` comes down, so there is one *cut* `q`: on the stages from `q` on, B of `i` comes first; on
//! those before, F of `j` does. (Cut 0: `j` enters after `i` has left. Cut S: `j` reaches the last stage before `i` turns.) At
//! the cut they exchange places: F of `j` enters stage `q`, and B of `i` enters stage `q − 1`, no sooner than both B of `i` on
//! `q` and F of `j` on `q − 1` have ended, give or take a hop.
//!
//! From there `j` goes down to the last stage, turns, and comes to its cut with `j + l`. And `i` goes up to where it makes room
//! for microbatch `i + 2l`, if memory holds no more than that many at once; that one enters and comes down to its cut with
//! `i + l = j`: the same exchange. So the time from one exchange to the next is that of the longer of the two paths, whichever
//! cuts a schedule chooses. Where the paths do not divide evenly, it is more than half of a round trip. The least over all
//! sequences of cuts is a shortest path, found stage by stage.
//!
//! In addition, on each stage F of `i + 2l` follows F of `j`, and B of `j` follows B of `i`, by `l` ops or more.
//!
//! Where memory holds `k < 2l` microbatches, `i + 2l` comes later still, by as many F of the first stage. The paths before the
//! first exchange and after the last are the heads and tails of the module [`super::longest_paths`].

use alloc::vec;
use alloc::vec::Vec;

use super::longest_paths::PathLengths;
use super::precedence::{B, F, Lane, Net};
use crate::base::units::Nanos;

/// Stages × stages × microbatches up to which all exchanges are followed.
const MOST_STEPS: usize = 4_000_000;

/// The least time of a lane because of exchanges, from its first F to its last W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cross {
    pub value: Nanos,
    /// Microbatches that memory holds at once.
    pub at_once: usize,
}

/// F of stage 0 of microbatch `i + most` waits for B of microbatch `i` of the stage `until`, and for `delay` more.
#[derive(Clone, Copy, Debug)]
struct Limit {
    most: usize,
    until: usize,
    delay: Nanos,
}

fn limits(net: &Net, lane: usize) -> Vec<Limit> {
    let mut found = Vec::new();
    for (need, delay) in [(0, 0), (1, net.costs[0].w)] {
        // The most microbatches that may be ahead of the B, or W, that the last one waits for.
        let ahead = |k: usize| k + 1 - net.needs(lane, 0, k)[need] as usize;
        let most = (0..net.microbatches).map(ahead).max().unwrap_or(0);
        found.push(Limit { most, until: 0, delay });
    }
    let aheads = net.lanes[lane].aheads[0].iter();
    found.extend(aheads.map(|ahead| Limit { most: ahead.most, until: ahead.above, delay: ahead.delay }));
    found.retain(|limit| 1 < limit.most && limit.most < net.microbatches);
    found
}

/// Path lengths within a lane, between its stages and a cut.
struct Legs {
    /// From the start of F of the stage at the cut to the end of F of the last stage.
    down_from: Vec<Nanos>,
    /// From the start of B of the last stage to the end of B of the stage at the cut.
    up_to: Vec<Nanos>,
    /// From the start of F of stage 0 to the end of F of the stage before the cut.
    down_to: Vec<Nanos>,
    /// From the start of B of the stage before the cut to the end of B of stage 0.
    up_from: Vec<Nanos>,
}

impl Legs {
    fn of(net: &Net, lane: usize) -> Legs {
        let way = &net.lanes[lane];
        let stages = net.costs.len();
        let mut legs = Legs {
            down_from: vec![0; stages + 1],
            up_to: vec![0; stages + 1],
            down_to: vec![0; stages + 1],
            up_from: vec![0; stages + 1],
        };
        for stage in (0..stages).rev() {
            let hop = |hops: &[Nanos]| hops.get(stage + 1).copied().unwrap_or(0);
            legs.down_from[stage] = net.costs[stage].f + hop(&way.down) + legs.down_from[stage + 1];
            legs.up_to[stage] = net.costs[stage].b + hop(&way.up) + legs.up_to[stage + 1];
        }
        for stage in 0..stages {
            legs.down_to[stage + 1] = legs.down_to[stage] + way.down[stage] + net.costs[stage].f;
            legs.up_from[stage + 1] = legs.up_from[stage] + way.up[stage] + net.costs[stage].b;
        }
        legs
    }

    /// From the start of F of the stage at cut `from` to the end of F of the stage before cut `to`, which is later.
    fn down(&self, way: &Lane, from: usize, to: usize) -> Nanos {
        self.down_to[to] - self.down_to[from] - way.down[from]
    }

    /// From the start of B of the stage before cut `from` to the end of B of the stage at cut `to`, which is earlier.
    fn up(&self, way: &Lane, from: usize, to: usize) -> Nanos {
        self.up_from[from] - self.up_from[to] - way.up[to]
    }
}

/// The soonest that the two can leave a cut: F of `j` down, B of `i` up.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    down: Nanos,
    up: Nanos,
}

/// The least time of the lane, given heads and tails of a window that holds all of it; none where that is no more than
/// `known`.
pub(super) fn bound(net: &Net, lane: usize, heads: &PathLengths, tails: &PathLengths, known: Nanos) -> Option<Cross> {
    // Microbatches that are not looked at one by one have no known head or tail.
    if net.between > 0 || net.room[net.lanes[lane].ranks[0]].is_none() {
        return None;
    }
    let limits = limits(net, lane);
    let mut halves: Vec<usize> = limits.iter().map(|limit| limit.most.div_ceil(2)).collect();
    halves.sort_unstable();
    halves.dedup();
    let legs = Legs::of(net, lane);
    let mut best: Option<Cross> = None;
    for half in halves {
        let limits: Vec<Limit> = limits.iter().filter(|limit| limit.most <= 2 * half).copied().collect();
        let at_once = limits.iter().map(|limit| limit.most).max().unwrap_or(0);
        let chase = Chase::new(net, lane, &legs, &limits, half);
        let steps = net.costs.len() * net.costs.len() * net.microbatches / half;
        for first in 0..(MOST_STEPS / steps.max(1)).clamp(1, half) {
            let known = best.as_ref().map_or(known, |best| best.value);
            // Most exchanges give no better bound; a bound for all cuts at once shows that sooner.
            if chase.with_one_cut(first, heads, tails) > known {
                let value = chase.follow(first, heads, tails);
                if value > known {
                    best = Some(Cross { value, at_once });
                }
            }
        }
    }
    best
}

/// The exchanges of microbatches that are `half` apart.
struct Chase<'a> {
    net: &'a Net,
    lane: usize,
    legs: &'a Legs,
    half: usize,
    /// How long after B of `i` has started on the stage before a cut F of `i + 2 half` can start, at the least.
    leaves: Vec<Option<Nanos>>,
}

impl<'a> Chase<'a> {
    fn new(net: &'a Net, lane: usize, legs: &'a Legs, limits: &[Limit], half: usize) -> Chase<'a> {
        let leaves = |cut: usize| -> Option<Nanos> {
            let of = |limit: &Limit| {
                (limit.until < cut).then(|| {
                    let back = legs.up(&net.lanes[lane], cut, limit.until);
                    back + limit.delay + (2 * half - limit.most) as u64 * net.costs[0].f
                })
            };
            limits.iter().filter_map(of).max()
        };
        Chase { net, lane, legs, half, leaves: (0..=net.costs.len()).map(leaves).collect() }
    }

    fn stages(&self) -> usize {
        self.net.costs.len()
    }

    /// How many exchanges follow the one that starts with microbatch `first`; none where there is not even that.
    fn steps(&self, first: usize) -> Option<usize> {
        let steps = (self.net.microbatches - 1).checked_sub(first)? / self.half;
        Some(steps.checked_sub(1)?.min(MOST_STEPS / (self.stages() * self.stages())))
    }

    /// Arrivals at `cut`: B of `i` on the stage at the cut has ended (cut S: its F of the last stage), and F of `j` on
    /// the stage before it (cut 0: it may enter).
    fn exchange(&self, cut: usize, above: Nanos, below: Nanos) -> Exchange {
        let way = &self.net.lanes[self.lane];
        Exchange {
            down: match cut == self.stages() {
                true => below,
                false => above.max(below + if cut == 0 { 0 } else { way.down[cut] }),
            },
            up: match cut {
                0 => above,
                _ => below.max(above + if cut == self.stages() { 0 } else { way.up[cut] }),
            },
        }
    }

    fn start(&self, first: usize, heads: &PathLengths, cut: usize) -> Exchange {
        let (net, lane) = (self.net, self.lane);
        let above = match cut < self.stages() {
            true => heads.of(lane, cut, B)[first] + net.costs[cut].b,
            false => heads.of(lane, cut - 1, F)[first] + net.costs[cut - 1].f,
        };
        let below = match cut {
            0 => heads.of(lane, 0, F)[first + self.half],
            _ => heads.of(lane, cut - 1, F)[first + self.half] + net.costs[cut - 1].f,
        };
        self.exchange(cut, above, below)
    }

    /// The soonest that the next two can leave the cut `to`, where these have left the cut `from`.
    fn next(&self, at: Exchange, from: usize, to: usize) -> Exchange {
        let (net, legs, behind) = (self.net, self.legs, self.half as u64);
        let way = &net.lanes[self.lane];
        // When F of `j` has come to the last stage's end, and when the next may enter.
        let mut above = at.down + legs.down_from[from] + legs.up_to[to];
        let mut below = self.leaves[from].map_or(0, |leaves| at.up + leaves) + legs.down_to[to];
        if to < from {
            let longest = net.costs[to].b.max(net.costs[from - 1].b);
            above = above.max(at.up + legs.up(way, from, to) + behind * longest);
        }
        if from < to {
            let longest = net.costs[from].f.max(net.costs[to - 1].f);
            below = below.max(at.down + legs.down(way, from, to) + behind * longest);
        }
        self.exchange(to, above, below)
    }

    /// What must follow the last exchange.
    fn close(&self, first: usize, steps: usize, tails: &PathLengths, cut: usize, at: Exchange) -> Nanos {
        let (net, lane) = (self.net, self.lane);
        let i = first + steps * self.half;
        let j = i + self.half;
        let down = match cut < self.stages() {
            true => at.down + net.costs[cut].f + tails.of(lane, cut, F)[j],
            false => at.down + tails.of(lane, cut - 1, F)[j],
        };
        let up = match cut {
            0 => at.up + tails.of(lane, 0, B)[i],
            _ => at.up + net.costs[cut - 1].b + tails.of(lane, cut - 1, B)[i],
        };
        down.max(up)
    }

    /// The least time for the exchanges of microbatches `first`, `first + half`, and so on, all at the same cut: no less
    /// than at any cuts.
    fn with_one_cut(&self, first: usize, heads: &PathLengths, tails: &PathLengths) -> Nanos {
        let Some(steps) = self.steps(first) else { return 0 };
        let value = |cut: usize| {
            let at = (0..steps).fold(self.start(first, heads, cut), |at, _| self.next(at, cut, cut));
            self.close(first, steps, tails, cut, at)
        };
        (0..=self.stages()).map(value).min().unwrap_or(0)
    }

    /// The least time for the exchanges of microbatches `first`, `first + half`, and so on.
    fn follow(&self, first: usize, heads: &PathLengths, tails: &PathLengths) -> Nanos {
        let Some(steps) = self.steps(first) else { return 0 };
        let cuts = 0..=self.stages();
        let mut at: Vec<Exchange> = cuts.clone().map(|cut| self.start(first, heads, cut)).collect();
        let least = |a: Exchange, b: Exchange| Exchange { down: a.down.min(b.down), up: a.up.min(b.up) };
        let step = |at: &[Exchange]| -> Vec<Exchange> {
            let to = |to: usize| at.iter().enumerate().map(|(from, at)| self.next(*at, from, to)).reduce(least);
            cuts.clone().filter_map(to).collect()
        };
        // After the first step nobody goes down from a cut sooner than it takes to come there. So where nothing says when
        // the next may enter, "at once" binds no more, and what a step leads to is as much later as where it starts. Then
        // a pattern that has come again comes again for ever.
        let mut done = 0;
        let (mut known, mut known_at, mut next_known) = (Vec::new(), 0, 1);
        let mut may_repeat = true;
        while done < steps {
            at = step(&at);
            done += 1;
            if !may_repeat {
                continue;
            }
            if let Some(later) = shift(&known, &at) {
                let period = done - known_at;
                let turns = (steps - done) / period;
                at.iter_mut().for_each(|at| {
                    at.down += turns as u64 * later;
                    at.up += turns as u64 * later;
                });
                done += turns * period;
                may_repeat = false;
            } else if done == next_known {
                known.clone_from(&at);
                (known_at, next_known) = (done, 2 * done);
            }
        }
        at.iter().enumerate().map(|(cut, at)| self.close(first, steps, tails, cut, *at)).min().unwrap_or(0)
    }
}

/// By how much all of `after` is later than `before`, where that is the same for all.
fn shift(before: &[Exchange], after: &[Exchange]) -> Option<Nanos> {
    let later = after.first()?.down.checked_sub(before.first()?.down)?;
    let is_later = |(before, after): (&Exchange, &Exchange)| {
        after.down.checked_sub(before.down) == Some(later) && after.up.checked_sub(before.up) == Some(later)
    };
    before.iter().zip(after).all(is_later).then_some(later)
}
