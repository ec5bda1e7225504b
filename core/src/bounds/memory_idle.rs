//! Idle time that a full memory forces on a rank, and bytes that it cannot hold yet, or any more.
//!
//! *Fill.* By the time `t`, only the ops of each kind and stage whose head is before `t` can have started. So it is known how
//! far each microbatch may have come. Wherever it stopped, it has done some work on the rank and holds some bytes there, and
//! all together hold no more than the room. The most work that these microbatches can have done is a knapsack with one choice
//! for each. Its linear relaxation (Sinha and Zoltners, "The multiple-choice knapsack problem", Operations Research 27, 1979)
//! takes, of all steps on the upper hulls, those with the most work for a byte. The rank has been idle for at least `t` less
//! that work.
//!
//! *Drain.* The same, backwards: `t` before the window closes, all ops with a longer tail have ended. The others are the work
//! that can be left, of microbatches that hold no more than the room.
//!
//! The two idle times are disjoint where the window lasts at least both times together; then they add up.
//!
//! *Area.* Each microbatch holds a stage's bytes at least from F through the shortest round trip to B, and what B leaves until W
//! has run. The same counts say how many bytes a rank can hold near both ends of the window. What it holds in between is no more
//! than the room (Little's law, with the ends cut off).

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};

use super::one_machine::Window;
use super::precedence::{B, Cost, F, Net, W};
use crate::base::units::{Bytes, Nanos};

/// The work of one microbatch, with the bytes that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    work: u64,
    bytes: u64,
}

impl Share {
    fn less(self, other: Share) -> Share {
        Share { work: self.work - other.work, bytes: self.bytes - other.bytes }
    }

    /// The one with more work for a byte first.
    fn by_density(&self, other: &Share) -> Ordering {
        let product = |work: &Share, bytes: &Share| u128::from(work.work) * u128::from(bytes.bytes);
        product(other, self).cmp(&product(self, other))
    }
}

/// How what a microbatch holds on the rank is counted: as it is, or in whole units of some size, rounded down. All
/// of them hold no more units than the room, for a sum of parts rounded down is no more than their sum rounded
/// down: a dual feasible function (Fekete and Schepers, "New classes of fast lower bounds for bin packing
/// problems", Mathematical Programming 91, 2001). So it shows that of two microbatches and a half only two fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measure {
    unit: u64,
    room: Option<u64>,
    /// Whether the count is exact, so that it may be taken stage by stage.
    is_exact: bool,
}

/// The number of sizes, in addition to the exact one, in which bytes are counted.
const MOST_UNITS: usize = 3;

impl Measure {
    /// The ways to count that may say something on `rank`.
    fn all(net: &Net, rank: usize) -> Vec<Measure> {
        let costs = || net.stages_of.iter().flat_map(|stages_of| &stages_of[rank]).map(|stage| &net.costs[*stage]);
        // All that can be held is a multiple of this.
        let common =
            costs().flat_map(|cost| cost.bytes).fold(0, |unit, bytes| gcd(unit, bytes.unsigned_abs())).max(1);
        let Some(room) = net.room[rank].map(|room| room.max(0) as u64) else {
            return vec![Measure { unit: common, room: None, is_exact: true }];
        };
        let mut found = vec![Measure { unit: common, room: Some(room / common), is_exact: true }];
        let held = |stages_of: &Vec<Vec<usize>>| -> Vec<u64> {
            let forwards = stages_of[rank].iter().map(|stage| net.costs[*stage].bytes[0].max(0) as u64);
            forwards
                .scan(0, |held, bytes| {
                    *held += bytes;
                    Some(*held)
                })
                .collect()
        };
        let mut most: Vec<u64> =
            net.stages_of.iter().flat_map(held).filter(|held| *held > 0).map(|held| room / held).collect();
        most.sort_unstable();
        most.dedup();
        // The smallest unit of which so many and no more fit.
        let units = most.into_iter().filter(|most| *most > 0).map(|most| room / (most + 1) + 1);
        let units = units.filter(|unit| *unit > common).take(MOST_UNITS);
        found.extend(units.map(|unit| Measure { unit, room: Some(room / unit), is_exact: false }));
        found
    }

    fn count(&self, bytes: i64) -> u64 {
        bytes.max(0) as u64 / self.unit
    }
}

/// How far microbatches of one lane may have come, or may be left behind, at some time.
struct Reach {
    lane: usize,
    /// The ops that say so, each of them out of reach before the next: stage and kind.
    ops: Vec<(usize, usize)>,
}

/// All that the microbatches of a rank may have done, or left.
#[derive(Default)]
struct Choices {
    /// By reach and op: work without holding anything, and the most that is held.
    free: Vec<(Nanos, u64)>,
    /// Steps of the hulls, the densest first, each with the index of its reach and op.
    steps: Vec<(Share, usize)>,
}

impl Choices {
    /// Adds the ops of a reach, each with the places where a microbatch may stop that gets no further, and the
    /// most bytes that it holds until there.
    fn add(&mut self, places: Vec<(Vec<Share>, u64)>) {
        let mut hull: Vec<Share> = vec![Share::default()];
        for (mut places, most_bytes) in places {
            places.append(&mut hull);
            hull = upper_hull(places);
            let index = self.free.len();
            self.free.push((hull[0].work, most_bytes));
            let way = |pair: &[Share]| pair[1].less(pair[0]);
            self.steps.extend(hull.windows(2).map(|pair| (way(pair), index)));
        }
    }

    fn sorted(mut self) -> Choices {
        self.steps.sort_by(|(a, _), (b, _)| a.by_density(b));
        self
    }

    /// The most work of microbatches of which `counts` stop at each op, holding `room` in all.
    fn most_work(&self, counts: &[u64], room: Option<u64>) -> Nanos {
        let of = |(count, free): (&u64, &(Nanos, u64))| u128::from(*count) * u128::from(free.0);
        let mut work: u128 = counts.iter().zip(&self.free).map(of).sum();
        let mut left = room.map_or(u128::MAX, u128::from);
        for (step, index) in &self.steps {
            let count = u128::from(counts[*index]);
            let bytes = count * u128::from(step.bytes);
            if bytes > left {
                work += u128::from(step.work) * left / u128::from(step.bytes);
                break;
            }
            work += count * u128::from(step.work);
            left -= bytes;
        }
        u64::try_from(work).unwrap_or(u64::MAX)
    }

    /// The most bytes that so many microbatches hold.
    fn most_bytes(&self, counts: &[u64]) -> u128 {
        counts.iter().zip(&self.free).map(|(count, free)| u128::from(*count) * u128::from(free.1)).sum()
    }
}

/// The places that no mix of others beats, from the fewest bytes up.
fn upper_hull(mut places: Vec<Share>) -> Vec<Share> {
    places.sort_by_key(|place| (place.bytes, Reverse(place.work)));
    let mut hull: Vec<Share> = Vec::new();
    for place in places {
        if hull.last().is_some_and(|last| place.work <= last.work) {
            continue;
        }
        while let [.., before, last] = hull[..]
            && last.less(before).by_density(&place.less(last)).is_ge()
        {
            hull.pop();
        }
        hull.push(place);
    }
    hull
}

/// The ops of a lane on a rank, in the order in which a microbatch comes to them.
fn done_reach(net: &Net, rank: usize, lane: usize) -> Reach {
    let stages = &net.stages_of[lane][rank];
    let forward = stages.iter().map(|stage| (*stage, F));
    let backward = stages.iter().rev().flat_map(|stage| [(*stage, B), (*stage, W)]);
    Reach { lane, ops: forward.chain(backward).collect() }
}

/// Where a microbatch may have stopped that has come to each of these ops, and the most that it holds until there.
/// W is done as soon as it can be: that holds least.
fn done(net: &Net, reach: &Reach, measure: Measure) -> Vec<(Vec<Share>, u64)> {
    let (mut work, mut held, mut most) = (0, 0, 0);
    let place = |&(stage, kind): &(usize, usize)| {
        let cost = &net.costs[stage];
        let change = if kind == W { cost.bytes[W].min(0) } else { cost.bytes[kind] };
        work += [cost.f, cost.b, cost.w][kind];
        held += change;
        most += change.max(0);
        (vec![Share { work, bytes: measure.count(held) }], measure.count(most))
    };
    reach.ops.iter().map(place).collect()
}

/// Stands for W of any stage.
const ANY: usize = usize::MAX;

/// The ops of a lane on a rank, in the order in which a microbatch may have them left.
fn left_reach(net: &Net, rank: usize, lane: usize) -> Reach {
    let stages = &net.stages_of[lane][rank];
    let backward = stages.iter().map(|stage| (*stage, B));
    let forward = stages.iter().rev().map(|stage| (*stage, F));
    let ops =
        if stages.is_empty() { Vec::new() } else { [(ANY, W)].into_iter().chain(backward).chain(forward).collect() };
    Reach { lane, ops }
}

/// Where a microbatch may have stopped that has each of these ops left, with the work that it has left; and the
/// most that it holds from there on.
fn left(net: &Net, reach: &Reach, measure: Measure) -> Vec<(Vec<Share>, u64)> {
    let (mut work, mut held, mut most) = (0, 0, 0);
    let backward = 1..1 + reach.ops.len() / 2;
    let place = |(index, &(stage, kind)): (usize, &(usize, usize))| {
        if stage != ANY {
            let cost = &net.costs[stage];
            work += if kind == B { cost.b + cost.w } else { cost.f };
            held += if kind == B { cost.bytes[F] } else { -cost.bytes[F] };
        }
        // W left of stages whose B has run.
        let pending = if backward.contains(&(index + 1)) { &reach.ops[index + 1..backward.end] } else { &[] };
        let pending: Vec<(Nanos, i64)> = pending
            .iter()
            .map(|(stage, _)| (net.costs[*stage].w, net.costs[*stage].bytes[F] + net.costs[*stage].bytes[B]))
            .collect();
        most = most.max(measure.count(held + pending.iter().map(|(_, bytes)| bytes).sum::<i64>()));
        (with_pending(work, held, &pending, measure), most)
    };
    reach.ops.iter().enumerate().map(place).collect()
}

/// Pending W of which every subset is looked at.
const MOST_PENDING: usize = 4;

/// Places with this much left and any of the pending W.
fn with_pending(work: Nanos, held: i64, pending: &[(Nanos, i64)], measure: Measure) -> Vec<Share> {
    if pending.len() <= MOST_PENDING {
        let subset = |chosen: u32| {
            let chosen = || pending.iter().enumerate().filter(move |(index, _)| chosen >> index & 1 == 1);
            let more: Nanos = chosen().map(|(_, (work, _))| work).sum();
            let bytes: i64 = chosen().map(|(_, (_, bytes))| bytes).sum();
            Share { work: work + more, bytes: measure.count(held + bytes) }
        };
        return (0..1 << pending.len()).map(subset).collect();
    }
    // Counted one by one they are no more; and then the densest first are all of the hull.
    let mut each: Vec<Share> =
        pending.iter().map(|(work, bytes)| Share { work: *work, bytes: measure.count(*bytes) }).collect();
    each.sort_by(Share::by_density);
    let first = Share { work, bytes: measure.count(held) };
    let rest = each.into_iter().scan(first, |at, share| {
        *at = Share { work: at.work + share.work, bytes: at.bytes + share.bytes };
        Some(*at)
    });
    core::iter::once(first).chain(rest).collect()
}

/// Idle time of a rank within some time from the opening of its window, or before its close.
#[derive(Clone, Copy, Debug)]
struct Idle {
    idle: Nanos,
    within: Nanos,
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

/// How many times are looked at on a rank, on all of them, and on a rank however many there are.
const MOST_TIMES: usize = 192;
const MOST_TIMES_OF_ALL: usize = 6_144;
const LEAST_TIMES: usize = 16;

/// One end of a window.
struct End {
    reaches: Vec<Reach>,
    is_close: bool,
    /// Times from this end, each with how many microbatches, at the most, stop at each op.
    times: Vec<(Nanos, Vec<u64>)>,
}

impl End {
    fn of(window: &Window<'_>, is_close: bool) -> End {
        let net = window.net;
        let reach =
            |lane| if is_close { left_reach(net, window.rank, lane) } else { done_reach(net, window.rank, lane) };
        let reaches: Vec<Reach> = (0..net.lanes.len()).map(reach).collect();
        let mut end = End { reaches, is_close, times: Vec::new() };
        let known = net.early().min(net.microbatches - net.late());
        let mut times = Vec::new();
        for reach in &end.reaches {
            for &(stage, kind) in reach.ops.iter().filter(|op| op.1 != W) {
                times.extend((0..known).map(|k| end.when(window, reach.lane, stage, kind, k)));
            }
        }
        times.sort_unstable();
        times.dedup();
        // The soonest ones, and others between.
        let most = (MOST_TIMES_OF_ALL / net.ranks).clamp(LEAST_TIMES, MOST_TIMES);
        if times.len() > most {
            let (soon, step) = (most / 2, times.len().div_ceil(most / 2));
            let mut index = 0;
            times.retain(|_| {
                index += 1;
                index <= soon || index % step == 0
            });
        }
        end.times = times.into_iter().map(|time| (time, end.counts(window, time))).collect();
        end
    }

    /// No op of this kind and stage beyond the first (or last) `k` may have started (or be left) sooner.
    fn when(&self, window: &Window<'_>, lane: usize, stage: usize, kind: usize, k: usize) -> Nanos {
        match self.is_close {
            true => window.tail(lane, stage, kind, window.net.microbatches - 1 - k),
            false => window.heads.of(lane, stage, kind)[k],
        }
    }

    fn counts(&self, window: &Window<'_>, time: Nanos) -> Vec<u64> {
        let net = window.net;
        let known = if self.is_close { net.microbatches - net.late() } else { net.early() };
        let mut counts = Vec::new();
        for reach in &self.reaches {
            let within = |stage: usize, kind: usize| -> u64 {
                let count = from_the_end(known, |k| self.when(window, reach.lane, stage, kind, k) < time);
                // Nothing is known of those between.
                if count == known { net.all_microbatches() as u64 } else { count as u64 }
            };
            let any =
                || net.stages_of[reach.lane][window.rank].iter().map(|stage| within(*stage, W)).max().unwrap_or(0);
            let first = counts.len();
            counts.extend(
                reach.ops.iter().map(|&(stage, kind)| if stage == ANY { any() } else { within(stage, kind) }),
            );
            // From "as far as this" to "no further than this".
            let mut further = 0;
            for count in counts[first..].iter_mut().rev() {
                let reached = (*count).max(further);
                (*count, further) = (reached - further, reached);
            }
        }
        counts
    }

    /// Adds the idle time within each of the times.
    fn idles(&self, choices: &Choices, room: Option<u64>, idles: &mut Vec<Idle>) {
        idles.extend(self.times.iter().map(|(time, counts)| {
            let work = choices.most_work(counts, room);
            Idle { idle: time.saturating_sub(work), within: *time }
        }));
    }

    /// Room times nanoseconds out of reach within `most` of this end.
    fn out_of_reach(&self, choices: &Choices, room: u64, most: Nanos) -> u128 {
        let mut lost = 0;
        let mut from = 0;
        for (until, counts) in &self.times {
            let until = (*until).min(most);
            let free = u128::from(room).saturating_sub(choices.most_bytes(counts));
            if free == 0 || from >= most {
                break;
            }
            lost += free * u128::from(until - from);
            from = until;
        }
        lost
    }
}

/// How many of the first `known` keep `holds`, which none does after one that does not.
fn from_the_end(known: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, known);
    while low < high {
        let middle = (low + high) / 2;
        if holds(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

pub(super) struct Area {
    pub value: Nanos,
    pub round_trip: Nanos,
    pub room: Bytes,
}

/// What microbatches may have done, or left, on a rank, in every measure: the same on ranks with the same costs.
pub(super) struct Shares {
    /// By lane.
    costs: Vec<Vec<Cost>>,
    room: Option<i64>,
    measures: Vec<Measure>,
    choices: Vec<[Choices; 2]>,
}

impl Shares {
    pub fn new(net: &Net, rank: usize) -> Shares {
        let of_lane = |stages_of: &Vec<Vec<usize>>| stages_of[rank].iter().map(|stage| net.costs[*stage]).collect();
        let reaches = [done_reach, left_reach]
            .map(|reach| -> Vec<Reach> { (0..net.lanes.len()).map(|lane| reach(net, rank, lane)).collect() });
        let choices = |measure: &Measure| {
            let mut choices = [Choices::default(), Choices::default()];
            for (is_close, (choices, reaches)) in choices.iter_mut().zip(&reaches).enumerate() {
                let places = if is_close == 1 { left } else { done };
                reaches.iter().for_each(|reach| choices.add(places(net, reach, *measure)));
            }
            choices.map(Choices::sorted)
        };
        let measures = Measure::all(net, rank);
        Shares {
            costs: net.stages_of.iter().map(of_lane).collect(),
            room: net.room[rank],
            choices: measures.iter().map(choices).collect(),
            measures,
        }
    }

    pub fn are_of(&self, net: &Net, rank: usize) -> bool {
        let is_alike = |(stages_of, costs): (&Vec<Vec<usize>>, &Vec<Cost>)| {
            stages_of[rank].iter().map(|stage| &net.costs[*stage]).eq(costs)
        };
        self.room == net.room[rank] && net.stages_of.iter().zip(&self.costs).all(is_alike)
    }
}

/// What memory says of the rank of `window`, which `shares` are of: idle time at both ends, and the area. The window is
/// known to last for `known`.
pub(super) fn bound(window: &Window<'_>, shares: &Shares, load: Nanos, known: Nanos) -> (Memory, Option<Area>) {
    let net = window.net;
    let ends = [false, true].map(|is_close| End::of(window, is_close));
    let Shares { measures, choices, .. } = shares;
    let mut idles = [Vec::new(), Vec::new()];
    for (measure, choices) in measures.iter().zip(choices) {
        for ((end, choices), idles) in ends.iter().zip(choices).zip(&mut idles) {
            end.idles(choices, measure.room, idles);
        }
    }
    let [fills, drains] = idles.map(useful);
    let memory = apart(&fills, &drains, load, known);
    let mut area: Option<Area> = None;
    let half = known.max(memory.value) / 2;
    for (measure, choices) in measures.iter().zip(choices) {
        let Some(room) = measure.room.filter(|room| *room > 0) else { continue };
        let lost: u128 = ends.iter().zip(choices).map(|(end, choices)| end.out_of_reach(choices, room, half)).sum();
        if let Some(found) = held(net, window.rank, window.back, *measure, lost)
            && area.as_ref().is_none_or(|area| found.value > area.value)
        {
            area = Some(found);
        }
    }
    (memory, area)
}

/// The area alone, of a rank whose window is not looked at.
pub(super) fn area(net: &Net, rank: usize, back: &[Vec<[Nanos; 2]>]) -> Option<Area> {
    let areas = Measure::all(net, rank).into_iter().filter_map(|measure| held(net, rank, back, measure, 0));
    areas.max_by_key(|area| area.value)
}

/// The shortest window for all microbatches.
///
/// Of each stage one takes at least `f · (F + way to B and back + B) + b⁺ · B + (f + b) · W`. Counted in units it
/// holds, from F of a stage until B of it has ended, what F has left there and on the stages below; and after that
/// B, until W has run or B of the next stage has, what B has left and what is on the stages below.
fn held(net: &Net, rank: usize, back: &[Vec<[Nanos; 2]>], measure: Measure, lost: u128) -> Option<Area> {
    let room = measure.room.filter(|room| *room > 0)?;
    let mut area = 0u128;
    let mut round_trip = 0;
    for ((back, stages_of), lane) in back.iter().zip(&net.stages_of).zip(&net.lanes) {
        let (mut below, mut before) = (0, None);
        for &stage in &stages_of[rank] {
            let cost = &net.costs[stage];
            let trip = cost.f + back[stage][F] - cost.w;
            round_trip = round_trip.max(trip + cost.w);
            let [f, b, _] = cost.bytes;
            let product = |count: u64, time: Nanos| u128::from(count) * u128::from(time);
            let of_one = if measure.is_exact {
                product(measure.count(f), trip)
                    + product(measure.count(b), cost.b)
                    + product(measure.count(f + b), cost.w)
            } else {
                let count = |bytes: i64| measure.count(bytes) - measure.count(below);
                let back = before.map_or(Nanos::MAX, |to: usize| lane.climbs[stage] - lane.climbs[to]);
                product(count(below + f), trip) + product(count(below + f + b), cost.w.min(back))
            };
            area += of_one * net.all_microbatches() as u128;
            (below, before) = (below + f, Some(stage));
        }
    }
    let value = u64::try_from((area + lost).div_ceil(u128::from(room))).ok()?;
    (area > 0).then_some(Area { value, round_trip, room: net.room[rank]?.max(0) as u64 })
}

/// The most idle time at both ends that lie apart.
fn apart(fills: &[Idle], drains: &[Idle], load: Nanos, known: Nanos) -> Memory {
    let most = |idles: &[Idle]| idles.last().map_or(0, |idle| idle.idle);
    let mut best = Memory { value: load, fill: 0, drain: 0 };
    for (fill, drain) in [(most(fills), 0), (0, most(drains))] {
        if load + fill + drain > best.value {
            best = Memory { value: load + fill + drain, fill, drain };
        }
    }
    // A larger value may let further pairs lie apart.
    loop {
        let known = known.max(best.value);
        let mut found = best;
        let mut drains = drains.iter().rev().peekable();
        for fill in fills {
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

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
