//! Microbatches that pass each other on their way.
//!
//! Take two microbatches `i` and `j = i + l` of a lane. On each stage either B of `i` or F of `j` comes first.
//! B of `i` climbs towards stage 0 while F of `j` comes down, so there is one *cut* `q`: on the stages from `q`
//! on, B of `i` comes first; on those before, F of `j` does. (Cut 0: `j` enters after `i` has left. Cut S: `j`
//! reaches the last stage before `i` turns.) At the cut they exchange places: F of `j` enters stage `q`, and B
//! of `i` enters stage `q − 1`, no sooner than both B of `i` on `q` and F of `j` on `q − 1` have ended, give or
//! take a hop.
//!
//! From there `j` goes down to the last stage, turns, and comes to its own cut with `j + l`. And `i` goes up to
//! where it makes room for microbatch `i + 2l`, if memory holds no more than that many at once; it enters and
//! comes down to its cut with `i + l = j`: the same exchange. So from one exchange to the next takes as long as
//! the longer of both ways, whichever cuts a schedule chooses; where the ways do not divide evenly, that is more
//! than half of a round trip. The least over all sequences of cuts is a shortest path, found stage by stage.
//!
//! Besides, F of `i + 2l` follows F of `j`, and B of `j` follows B of `i`, on each stage by `l` ops or more.
//!
//! Where memory holds `k < 2l` microbatches, `i + 2l` comes later still, by as many F of the first stage.
//! The ways before the first and after the last exchange are the soonest starts and least remainders of the
//! module [`super::ways`].

use alloc::vec;
use alloc::vec::Vec;

use super::net::{Lane, Net};
use super::ways::{B, F, Ways};
use crate::units::Nanos;

/// Stages × stages × microbatches up to which all exchanges are followed.
const MOST_STEPS: usize = 4_000_000;

/// What exchanges make a lane take, from its first F to its last W.
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

/// Ways within a lane, between its stages and a cut.
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

/// What the lane takes at least, given soonest starts and least remainders of a window that holds all of it.
pub(super) fn bound(net: &Net, lane: usize, heads: &Ways, tails: &Ways) -> Option<Cross> {
    // Of microbatches that are not looked at one by one neither start nor remainder is known.
    if net.between > 0 || net.room[net.lanes[lane].ranks[0]].is_none() {
        return None;
    }
    let limits = limits(net, lane);
    let mut halves: Vec<usize> = limits.iter().map(|limit| limit.most.div_ceil(2)).collect();
    halves.sort_unstable();
    halves.dedup();
    let legs = Legs::of(net, lane);
    let of = |half: usize| {
        let within: Vec<Limit> = limits.iter().filter(|limit| limit.most <= 2 * half).copied().collect();
        let at_once = within.iter().map(|limit| limit.most).max().unwrap_or(0);
        let steps = net.costs.len() * net.costs.len() * net.microbatches / half;
        let starts = (MOST_STEPS / steps.max(1)).clamp(1, half);
        let value = |first| follow(net, lane, &legs, &within, half, first, heads, tails);
        (0..starts).map(value).max().map(|value| Cross { value, at_once })
    };
    halves.into_iter().filter_map(of).max_by_key(|cross| cross.value)
}

/// The least time for the exchanges of microbatches `first`, `first + half`, and so on.
#[expect(clippy::too_many_arguments, reason = "all of them are needed once")]
fn follow(
    net: &Net,
    lane: usize,
    legs: &Legs,
    limits: &[Limit],
    half: usize,
    first: usize,
    heads: &Ways,
    tails: &Ways,
) -> Nanos {
    let stages = net.costs.len();
    let way = &net.lanes[lane];
    if first + half >= net.microbatches {
        return 0;
    }
    // Arrivals at `cut`: B of `i` on the stage at the cut has ended (cut S: its F of the last stage), and F of
    // `j` on the stage before it (cut 0: it may enter).
    let exchange = |cut: usize, above: Nanos, below: Nanos| Exchange {
        down: if cut == stages { below } else { above.max(below + if cut == 0 { 0 } else { way.down[cut] }) },
        up: if cut == 0 { above } else { below.max(above + if cut == stages { 0 } else { way.up[cut] }) },
    };
    let mut at: Vec<Exchange> = (0..=stages)
        .map(|cut| {
            let above = match cut < stages {
                true => heads.of(lane, cut, B)[first] + net.costs[cut].b,
                false => heads.of(lane, cut - 1, F)[first] + net.costs[cut - 1].f,
            };
            let below = match cut {
                0 => heads.of(lane, 0, F)[first + half],
                _ => heads.of(lane, cut - 1, F)[first + half] + net.costs[cut - 1].f,
            };
            exchange(cut, above, below)
        })
        .collect();
    let steps = (net.microbatches - 1 - first) / half - 1;
    let most_steps = MOST_STEPS / (stages * stages);
    let steps = steps.min(most_steps);
    // How long after B of `i` has started on the stage before `cut` F of `i + 2 half` can start, at the least.
    let leaves = |cut: usize| -> Option<Nanos> {
        let of = |limit: &Limit| {
            (limit.until < cut).then(|| {
                let back = legs.up(way, cut, limit.until);
                back + limit.delay + (2 * half - limit.most) as u64 * net.costs[0].f
            })
        };
        limits.iter().filter_map(of).max()
    };
    let leaves: Vec<Option<Nanos>> = (0..=stages).map(leaves).collect();
    for _ in 0..steps {
        // From each cut: when F of `j` has come to the last stage's end, and when the next may enter.
        let turns: Vec<Nanos> = at.iter().zip(&legs.down_from).map(|(at, leg)| at.down + leg).collect();
        let enters = at.iter().zip(&leaves).map(|(at, leaves)| leaves.map_or(0, |leaves| at.up + leaves));
        let enters: Vec<Nanos> = enters.collect();
        let behind = half as u64;
        let arrive = |from: usize, to: usize| {
            let mut above = turns[from] + legs.up_to[to];
            let mut below = enters[from] + legs.down_to[to];
            if to < from {
                let longest = net.costs[to].b.max(net.costs[from - 1].b);
                above = above.max(at[from].up + legs.up(way, from, to) + behind * longest);
            }
            if from < to {
                let longest = net.costs[from].f.max(net.costs[to - 1].f);
                below = below.max(at[from].down + legs.down(way, from, to) + behind * longest);
            }
            exchange(to, above, below)
        };
        let next = |to: usize| {
            let least = |a: Exchange, b: Exchange| Exchange { down: a.down.min(b.down), up: a.up.min(b.up) };
            (0..=stages).map(|from| arrive(from, to)).reduce(least)
        };
        at = (0..=stages).filter_map(next).collect();
    }
    // What must follow the last exchange.
    let i = first + steps * half;
    let j = i + half;
    let close = |(cut, at): (usize, &Exchange)| {
        let down = match cut < stages {
            true => at.down + net.costs[cut].f + tails.of(lane, cut, F)[j],
            false => at.down + tails.of(lane, cut - 1, F)[j],
        };
        let up = match cut {
            0 => at.up + tails.of(lane, 0, B)[i],
            _ => at.up + net.costs[cut - 1].b + tails.of(lane, cut - 1, B)[i],
        };
        down.max(up)
    };
    at.iter().enumerate().map(close).min().unwrap_or(0)
}
