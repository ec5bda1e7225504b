//! Policies for the list scheduler: few parameters, each a known idea, over their whole range.
//!
//! Everything depends on the round trip of a lane: from the start of its F to the end of its B when nothing delays it. A rank that
//! keeps its lane busy holds at least round trip ÷ period microbatches (Little's law); published schedules are points on that
//! line. 1F1B and ZB-H1 hold one round trip, ZB-H2 and ZB-2p two; V-Min, V-Half and ZB-V are the same line on a V.

use alloc::vec::Vec;

use super::flat_problem::{B, BW, F, Flat, W};
use super::list::{NEVER, Pace, Plan, Policy};
use crate::base::random::Random;

/// Times of a chain without delays, by lane.
pub(super) struct Shape {
    /// From the start of the chain's first F to the start of this lane's F.
    head: Vec<i64>,
    /// From the start of the chain's first F to the start of this lane's B.
    back: Vec<i64>,
    /// From the start of this lane's F to the end of its B.
    round_trip: Vec<i64>,
    /// The work of the busiest rank for one microbatch of each chain.
    pub period: i64,
    /// By lane: which of its rank's chunks it is, in thousandths from the first (0) to the last (1000).
    chunk: Vec<i64>,
    /// By lane: the length of the hop into F and into B with the op that it follows.
    step_f: Vec<i64>,
    step_b: Vec<i64>,
}

impl Shape {
    pub fn new(flat: &Flat) -> Shape {
        let lanes = flat.lanes.len();
        let zeros = || alloc::vec![0i64; lanes];
        let (mut head, mut back, mut round_trip) = (zeros(), zeros(), zeros());
        let (mut chunk, mut step_f, mut step_b) = (zeros(), zeros(), zeros());
        let backward = if flat.fused { 3 } else { 1 };
        for chain in &flat.chains {
            let range = chain.first_lane..chain.first_lane + chain.lanes;
            let mut time = 0i64;
            for index in range.clone() {
                let lane = &flat.lanes[index];
                step_f[index] = time;
                time += lane.hop_f as i64;
                head[index] = time;
                time += lane.duration[0] as i64;
            }
            for index in range.clone().rev() {
                let lane = &flat.lanes[index];
                step_b[index] = time;
                time += lane.hop_b as i64;
                back[index] = time;
                time += lane.duration[backward] as i64;
                round_trip[index] = time - head[index];
            }
            for index in range.clone() {
                let before = if index > range.start { head[index - 1] } else { 0 };
                step_f[index] = head[index] - before;
                let after = if index + 1 < range.end { back[index + 1] } else { head[index] };
                step_b[index] = back[index] - after;
            }
        }
        for lanes in &flat.lanes_of {
            for chain in 0..flat.chains.len() {
                let own: Vec<usize> = lanes.iter().copied().filter(|lane| flat.lanes[*lane].chain == chain).collect();
                for (position, lane) in own.iter().enumerate() {
                    chunk[*lane] = (position * 1000 / (own.len() - 1).max(1)) as i64;
                }
            }
        }
        let work = |lane: &usize| (flat.lanes[*lane].duration[0] + flat.lanes[*lane].duration[3]) as i64;
        let period = flat.lanes_of.iter().map(|lanes| lanes.iter().map(work).sum()).max().unwrap_or(0).max(1);
        Shape { head, back, round_trip, period, chunk, step_f, step_b }
    }
}

impl Shape {
    /// Microbatches in flight when every rank is busy: the longest round trip ÷ period.
    pub fn in_flight(&self) -> usize {
        let trip = self.round_trip.iter().copied().max().unwrap_or(0);
        usize::try_from(trip / self.period).unwrap_or(usize::MAX / 8).min(usize::MAX / 8) + 1
    }
}

/// The least period at which the plan fits in memory, by Little's law: on each rank, bytes of a microbatch
/// times how long they are held, over the limit.
fn sustainable(flat: &Flat, key_f: &[i64], key_b: &[i64]) -> i64 {
    let mut period = 1;
    for (rank, lanes) in flat.lanes_of.iter().enumerate() {
        if flat.limit[rank] >= super::flat_problem::UNLIMITED {
            continue;
        }
        let held: i128 = lanes
            .iter()
            .map(|&index| {
                let lane = &flat.lanes[index];
                let b = if flat.fused { BW } else { B };
                let until_b = i128::from(key_b[index] - key_f[index]).max(0) + i128::from(lane.duration[b as usize]);
                let until_w = if flat.fused { 0 } else { i128::from(lane.duration[W as usize]) };
                i128::from(lane.net(F)) * until_b + i128::from(lane.net(F) + lane.net(B)) * until_w
            })
            .sum();
        // The period stays below the sum of all times, 2^62.
        let least = held / i128::from(flat.limit[rank].max(1));
        period = period.max(i64::try_from(least).unwrap_or(i64::MAX / 4).min(i64::MAX / 4));
    }
    period
}

fn thousandths(value: i64, by: i64) -> i64 {
    (i128::from(value) * i128::from(by) / 1000) as i64
}

/// One policy by its parameters. Pairs hold for the first and the last chunk of a rank, with the chunks
/// between them in proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recipe {
    /// Forwards in flight in thousandths of round trip ÷ period, and so many more; [`FREE`] for all that fit.
    pub cap: [i64; 2],
    pub cap_more: i64,
    /// Whether ops go by planned time. If not, a backward goes first, and among forwards the later chunk.
    pub planned: bool,
    /// How much longer than least a step forward, a step back is planned, in thousandths of least.
    pub forward: [i64; 2],
    pub backward: [i64; 2],
    /// By how much of a period, in thousandths, backwards go before forwards planned at the same time.
    pub bias: i64,
    /// The period of the plan in thousandths of the least; with pacing, of the least that memory can sustain.
    pub stretch: i64,
    /// How much of a period, in thousandths, a forward may go before its planned time; [`FREE`] for any.
    pub early: i64,
    /// The least time between microbatches that enter, in thousandths of the least period that memory can
    /// sustain; 0 for none.
    pub gap: i64,
    /// Microbatches that go through one chunk before the next chunk takes them, as in interleaved schedules;
    /// 1 for each by itself.
    pub group: u32,
    /// See [`Policy`].
    pub alternate: bool,
    pub in_turn: bool,
    /// When W is planned after its B, in thousandths of the period; [`FREE`] to fill gaps only.
    pub w_lag: i64,
    /// See [`Policy`].
    pub w_fit: i64,
    pub patience: i64,
    /// The share of the memory above the least that is used, in thousandths: more can hurt a greedy rule.
    pub memory: i64,
}

/// Caps that are tried, in thousandths.
const LOWEST_CAP: i64 = 300;
const HIGHEST_CAP: i64 = 8000;

/// As much as can be.
pub(super) const FREE: i64 = i64::MAX;

impl Recipe {
    /// When the first F and B of each lane are planned.
    fn keys(&self, flat: &Flat, shape: &Shape) -> (Vec<i64>, Vec<i64>) {
        let lanes = flat.lanes.len();
        let by_chunk = |pair: [i64; 2], lane: usize| pair[0] + (pair[1] - pair[0]) * shape.chunk[lane] / 1000;
        if self.planned {
            let (mut key_f, mut key_b) = (alloc::vec![0; lanes], alloc::vec![0; lanes]);
            for chain in &flat.chains {
                let range = chain.first_lane..chain.first_lane + chain.lanes;
                // With groups, a chunk starts when the group has gone through the one before.
                let group =
                    if self.group > 1 { i64::from(self.group) * (shape.period / flat.chunks() as i64) } else { 0 };
                let is_edge = |lane: usize| lane > range.start && (lane - range.start).is_multiple_of(flat.ranks);
                let (mut time, mut chunk) = (0, 0);
                for lane in range.clone() {
                    time += thousandths(shape.step_f[lane], by_chunk(self.forward, lane));
                    if is_edge(lane) {
                        time = time.max(chunk + group);
                        chunk = time;
                    }
                    key_f[lane] = time;
                }
                chunk = time;
                for lane in range.clone().rev() {
                    time += thousandths(shape.step_b[lane], by_chunk(self.backward, lane));
                    if is_edge(lane + 1) {
                        time = time.max(chunk + group);
                        chunk = time;
                    }
                    key_b[lane] = time - thousandths(shape.period, self.bias);
                }
            }
            (key_f, key_b)
        } else {
            // Sums of all times stay below 2^62: half of that puts every B before every F.
            let key_f = shape.head.iter().map(|head| -*head).collect();
            let key_b = shape.back.iter().map(|back| -(1i64 << 61) - *back).collect();
            (key_f, key_b)
        }
    }

    pub fn policy(&self, flat: &Flat, shape: &Shape) -> Policy {
        let lanes = flat.lanes.len();
        let by_chunk = |pair: [i64; 2], lane: usize| pair[0] + (pair[1] - pair[0]) * shape.chunk[lane] / 1000;
        let caps = (0..lanes)
            .map(|lane| {
                if self.cap[0] == FREE || self.cap[1] == FREE {
                    return u32::MAX;
                }
                let trip = i128::from(shape.round_trip[lane]) * i128::from(by_chunk(self.cap, lane));
                let whole = i128::from(shape.period) * 1000;
                ((trip + whole - 1) / whole + i128::from(self.cap_more)).clamp(1, i128::from(u32::MAX)) as u32
            })
            .collect();
        let (key_f, key_b) = self.keys(flat, shape);
        let paced = self.gap > 0 || self.early != FREE;
        let sustained = if self.planned && paced { shape.period.max(sustainable(flat, &key_f, &key_b)) } else { 0 };
        let period = if self.planned && paced {
            thousandths(sustained, self.stretch)
        } else {
            thousandths(shape.period, self.stretch)
        };
        Policy {
            caps,
            plan: Plan::Paced(Pace {
                f: key_f,
                b: key_b,
                period: if self.planned { period } else { 0 },
                group: if self.planned { self.group } else { 1 },
                step: period / flat.chunks() as i64,
            }),
            w_lag: if self.w_lag == FREE { NEVER } else { thousandths(shape.period, self.w_lag) },
            w_fit: self.w_fit as u64,
            patience: self.patience as u64,
            early: if self.planned && self.early != FREE { thousandths(shape.period, self.early) } else { NEVER },
            gap: thousandths(sustained, self.gap) as u64,
            alternate: self.alternate,
            in_turn: self.in_turn,
        }
    }

    /// The limits to build under.
    pub fn limits(&self, flat: &Flat, least: &[i64]) -> Vec<i64> {
        flat.limit.iter().zip(least).map(|(limit, least)| least + thousandths(limit - least, self.memory)).collect()
    }

    /// A recipe not far from this one.
    pub fn neighbour(&self, random: &mut Random) -> Recipe {
        let mut next = *self;
        for _ in 0..1 + random.below(2) {
            let end = random.below(2) as usize;
            let which = if self.planned { random.below(22) } else { random.below(8) };
            match which {
                0 | 1 => {
                    let free = next.cap[0] == FREE || next.cap[1] == FREE;
                    let pair = if free { [2000, 2000] } else { next.cap };
                    next.cap = match random.below(8) {
                        0 if !free => [FREE; 2],
                        1..4 => {
                            let mut pair = pair;
                            pair[end] = random.scaled(pair[end], LOWEST_CAP, HIGHEST_CAP);
                            pair
                        }
                        _ => {
                            let both = random.scaled(pair[0], LOWEST_CAP, HIGHEST_CAP);
                            [both, (pair[1] * both / pair[0].max(1)).clamp(LOWEST_CAP, HIGHEST_CAP)]
                        }
                    };
                }
                2 => next.cap_more = random.below(5) as i64 - 2,
                3 => {
                    next.w_lag = match random.below(3) {
                        0 => FREE,
                        _ if next.w_lag == FREE => random.below(3000) as i64,
                        _ => random.scaled(next.w_lag + 50, 0, 8000),
                    }
                }
                4 => next.w_fit = [0, 250, 500, 750, 900, 1000, 1200][random.below(7) as usize],
                5 => next.patience = [0, 0, 100, 200, 300, 500, 800, 1200][random.below(8) as usize],
                6 => next.memory = if random.below(3) == 0 { 1000 } else { random.scaled(next.memory, 200, 1000) },
                7 if next.group > 1 => {
                    next.group = random.scaled(i64::from(next.group) + 1, 1, 1 << 20) as u32;
                }
                7 if random.below(2) == 0 => next.alternate = !next.alternate,
                7 => next.planned ^= random.below(3) == 0,
                8..11 => next.forward[end] = random.scaled(next.forward[end], 700, 8000),
                11..14 => next.backward[end] = random.scaled(next.backward[end], 700, 8000),
                14 | 15 => next.bias = random.below(3001) as i64 - 500,
                18 | 19 => {
                    next.gap = match random.below(4) {
                        0 => 0,
                        _ if next.gap == 0 => 800 + random.below(600) as i64,
                        _ => random.scaled(next.gap, 500, 4000),
                    }
                }
                16 | 17 => next.stretch = random.scaled(next.stretch, 900, 3000),
                _ => {
                    next.early = match random.below(3) {
                        0 => FREE,
                        _ => random.below(2000) as i64,
                    }
                }
            }
        }
        next
    }
}

impl Recipe {
    /// The period that memory can sustain under this plan, in thousandths of the least.
    pub fn strain(&self, flat: &Flat, shape: &Shape) -> i64 {
        let (key_f, key_b) = self.keys(flat, shape);
        (i128::from(sustainable(flat, &key_f, &key_b)) * 1000 / i128::from(shape.period)).min(1 << 40) as i64
    }
}

/// The cap, in thousandths of round trip ÷ period, with which the forwards in flight just fit in memory.
fn cap_that_fits(flat: &Flat, shape: &Shape) -> i64 {
    let mut cap = i128::from(HIGHEST_CAP);
    for (rank, lanes) in flat.lanes_of.iter().enumerate() {
        if flat.limit[rank] >= super::flat_problem::UNLIMITED {
            continue;
        }
        let held = |lane: &usize| i128::from(flat.lanes[*lane].net(F).max(0)) * i128::from(shape.round_trip[*lane]);
        let held: i128 = lanes.iter().map(held).sum::<i128>() / i128::from(shape.period);
        cap = cap.min(i128::from(flat.limit[rank]) * 1000 / held.max(1));
    }
    cap.max(i128::from(LOWEST_CAP)) as i64
}

/// The starts of the local search: the recipes of the published schedules, and the corners of the ranges. Recipes that
/// suit the memory come first.
pub(super) fn seeds(flat: &Flat, shape: &Shape) -> Vec<Recipe> {
    let base = Recipe {
        cap: [FREE; 2],
        cap_more: 0,
        planned: false,
        forward: [1000; 2],
        backward: [1000; 2],
        bias: 0,
        stretch: 1000,
        early: FREE,
        gap: 0,
        group: 1,
        alternate: false,
        in_turn: false,
        w_lag: FREE,
        w_fit: 1000,
        patience: 0,
        memory: 1000,
    };
    let mut seeds = Vec::new();
    let planned = |slack: i64| Recipe { planned: true, forward: [slack; 2], backward: [slack; 2], ..base };
    let fits = cap_that_fits(flat, shape);
    let mut capped = Vec::new();
    if fits < 2000 {
        for (cap, slack) in [(fits, 1500), (fits, 1000), (fits * 5 / 4, 1500)] {
            for w_fit in [1000, 0] {
                capped.push(Recipe { cap: [cap; 2], w_fit, ..planned(slack) });
            }
        }
    }
    // Two directions meet on every rank: without a cap each fills the memory that the other one needs.
    if flat.chains.len() > 1 {
        seeds.append(&mut capped);
    } else if flat.chunks() > 1 {
        capped.clear();
    }
    for slack in [1500, 3000, 1000, 2000, 4500] {
        for w_fit in [0, 1000] {
            for bias in [0, 1700] {
                seeds.push(Recipe { w_fit, bias, ..planned(slack) });
            }
        }
    }
    for slack in [1000, 1500, 3000] {
        for w_fit in [0, 1000] {
            seeds.push(Recipe { w_fit, alternate: true, ..planned(slack) });
        }
    }
    seeds.push(Recipe { alternate: true, ..base });
    seeds.append(&mut capped);
    if flat.chunks() > 1 && flat.chains.len() == 1 {
        let ranks = flat.ranks as u32;
        for group in [ranks.div_ceil(2), ranks, (3 * ranks).div_ceil(4)] {
            for slack in [1000, 1500] {
                for w_fit in [0, 1000] {
                    seeds.push(Recipe { group, w_fit, ..planned(slack) });
                }
            }
            seeds.push(Recipe { group, w_lag: 0, ..planned(1000) });
        }
    }
    for cap in [2000, 2700, 1500, 1000] {
        for slack in [1500, 1000] {
            for w_fit in [0, 1000] {
                seeds.push(Recipe { cap: [cap; 2], w_fit, ..planned(slack) });
            }
        }
        seeds.push(Recipe { cap: [cap; 2], w_fit: 0, ..base });
        seeds.push(Recipe { cap: [cap; 2], w_lag: 0, ..planned(2000) });
    }
    // Little memory: forwards run at the pace at which memory is freed.
    for stretch in [1000, 1150, 1300, 1500] {
        for (backward, early) in [(1000, 0), (800, 0), (1000, 500)] {
            seeds.push(Recipe { backward: [1000, backward], stretch, early, ..planned(1000) });
            seeds.push(Recipe { backward: [1000, backward], stretch, early, w_lag: 0, ..planned(1000) });
        }
    }
    for gap in [1000, 1100, 1250, 1500] {
        for slack in [1000, 1200] {
            seeds.push(Recipe { gap, ..planned(slack) });
            seeds.push(Recipe { gap, w_lag: 0, ..planned(slack) });
        }
    }
    seeds.push(base);
    seeds.push(Recipe { w_lag: 0, ..base });
    if flat.chains.len() > 1 {
        seeds = seeds.into_iter().flat_map(|seed| [Recipe { in_turn: true, ..seed }, seed]).collect();
    }
    if planned(1200).strain(flat, shape) > 1000 {
        // Stable: among those that enter at a pace, and among the others, the order stays.
        seeds.sort_by_key(|seed| seed.gap == 0);
    }
    seeds
}
