//! The problem as the bounds use it: lanes, durations that the bounds may count on, and precedences that memory forces.

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::base::units::Nanos;
use crate::problem::op::OpKind;
use crate::problem::placement::Placement;
use crate::problem::{Backward, Problem};

/// The kinds of ops, as places in an array.
pub(super) const F: usize = 0;
pub(super) const B: usize = 1;
pub(super) const W: usize = 2;

/// Durations and bytes of a stage as the bounds may count on them. With a fused backward, B is all of BW and
/// W is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    pub f: Nanos,
    pub b: Nanos,
    pub w: Nanos,
    /// Bytes left held by F, by B and by W.
    pub bytes: [i64; 3],
    /// Bytes taken while F and B run.
    pub takes: [i64; 2],
}

/// Microbatches of one direction: all of them, or one half of a bidirectional placement.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// By stage.
    pub ranks: Vec<usize>,
    /// By stage: the hop from the stage before, forward.
    pub down: Vec<Nanos>,
    /// By stage: the hop to the stage before, backward.
    pub up: Vec<Nanos>,
    /// By stage: the time of B of all stages before it, one after the other, with the hops between. The time between
    /// two stages is the difference of theirs.
    pub climbs: Vec<Nanos>,
    /// By stage and microbatch that is looked at: how many B, and how many W, of the stage must have ended before
    /// this F; and how many W before this B. Empty where no rank has a limit.
    pub needs: Vec<[u32; 3]>,
    /// By stage: what else its F waits for.
    pub aheads: Vec<Vec<Ahead>>,
    /// By stage: the F that wait for its B, each with its stage.
    pub behinds: Vec<Vec<(usize, Ahead)>>,
}

/// The most microbatches that F of a stage runs ahead of B of a stage of its rank, the same or a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    /// The stage of that B.
    pub above: usize,
    /// F of microbatch `j + most` waits for B of microbatch `j`.
    pub most: usize,
    /// And for this long after it.
    pub delay: Nanos,
}

#[derive(Clone, Debug)]
pub(super) struct Net {
    pub costs: Vec<Cost>,
    pub lanes: Vec<Lane>,
    /// Microbatches of a lane that are looked at one by one.
    pub microbatches: usize,
    /// Microbatches of a lane between the first and the last of those: they count by their work alone.
    pub between: usize,
    pub ranks: usize,
    /// By rank: bytes that its ops may hold; none for no limit.
    pub room: Vec<Option<i64>>,
    /// By lane and rank: its stages in model order.
    pub stages_of: Vec<Vec<Vec<usize>>>,
}

impl Net {
    /// The problem with at most `most_ops` ops looked at one by one: where it has more, the same number of first
    /// and of last microbatches of each lane.
    pub fn of(problem: &Problem, most_ops: usize) -> Net {
        let cost = |cost: &crate::problem::StageCost| {
            let (f, b, w) = (cost.forward_bytes, cost.backward_input_bytes, cost.backward_weight_bytes);
            let takes = |kind| cost.takes(kind) as i64;
            // BW may also be shorter than B and then W: then its halves take no longer than it did.
            let [least_b, least_w] = cost.least_backward();
            match problem.backward() {
                // Here BW may hold less than B and then W. Each op is given the least of what it holds alone and
                // what BW holds: then the halves of a BW hold no more than it did, and B and W no more than
                // they do.
                Backward::Split if cost.backward_workspace_bytes.is_some() => Cost {
                    f: cost.forward_ns,
                    b: least_b,
                    w: least_w,
                    bytes: [f, b.min(0), w + b.max(0)],
                    takes: [takes(OpKind::F), takes(OpKind::B).min(takes(OpKind::BW))],
                },
                Backward::Split => Cost {
                    f: cost.forward_ns,
                    b: least_b,
                    w: least_w,
                    bytes: [f, b, w],
                    takes: [takes(OpKind::F), takes(OpKind::B)],
                },
                Backward::Fused => Cost {
                    f: cost.forward_ns,
                    b: cost.duration(OpKind::BW),
                    w: 0,
                    bytes: [f, b + w, 0],
                    takes: [takes(OpKind::F), takes(OpKind::BW)],
                },
            }
        };
        debug_assert!(!problem.differs(), "microbatches that differ have a bound of their own");
        let costs: Vec<Cost> = problem.costs().iter().map(cost).collect();
        let two_way = *problem.placement() == Placement::Bidirectional;
        let microbatches = if two_way { problem.microbatches() / 2 } else { problem.microbatches() };
        let room: Vec<Option<i64>> = (0..problem.ranks())
            .map(|rank| problem.limit_bytes(rank).map(|limit| limit as i64 - problem.static_bytes(rank) as i64))
            .collect();
        let lanes = if two_way { 2 } else { 1 };
        let at_each_end = (most_ops / (3 * costs.len() * lanes) / 2).max(1);
        let kept = microbatches.min(2 * at_each_end);
        let mut net = Net {
            costs,
            lanes: Vec::new(),
            microbatches: kept,
            between: microbatches - kept,
            ranks: problem.ranks(),
            room,
            stages_of: Vec::new(),
        };
        for first in [0, microbatches].into_iter().take(lanes) {
            net.add_lane(problem, first);
        }
        net
    }

    fn add_lane(&mut self, problem: &Problem, first: usize) {
        let stages = self.costs.len();
        let ranks: Vec<usize> = (0..stages).map(|stage| problem.rank_of(stage, first)).collect();
        let hops = |stage: usize, from: usize, to: usize| {
            if stage == 0 { 0 } else { problem.hop(ranks[from], ranks[to]) }
        };
        let down: Vec<Nanos> = (0..stages).map(|stage| hops(stage, stage.saturating_sub(1), stage)).collect();
        let up: Vec<Nanos> = (0..stages).map(|stage| hops(stage, stage, stage.saturating_sub(1))).collect();
        let mut stages_of = alloc::vec![Vec::new(); self.ranks];
        ranks.iter().enumerate().for_each(|(stage, rank)| stages_of[*rank].push(stage));
        let mut needs = Vec::new();
        if self.room.iter().any(Option::is_some) {
            needs.reserve_exact(stages * self.microbatches);
            for stage in 0..stages {
                let room = self.room[ranks[stage]];
                let below = &stages_of[ranks[stage]];
                let below =
                    below.iter().filter(|other| **other < stage).map(|other| self.costs[*other].bytes[0]).sum();
                for microbatch in 0..self.microbatches {
                    let whole = if microbatch < self.early() { microbatch } else { microbatch + self.between };
                    needs.push(room.map_or([0; 3], |room| needed(&self.costs[stage], below, room, whole)));
                }
            }
        }
        let mut climb = 0;
        let climbs: Vec<Nanos> = (0..stages)
            .map(|stage| {
                climb += up[stage];
                let before = climb;
                climb += self.costs[stage].b;
                before
            })
            .collect();
        let mut aheads = alloc::vec![Vec::new(); stages];
        for (stages, room) in stages_of.iter().zip(&self.room) {
            let Some(room) = *room else { continue };
            let on = Held::new(&self.costs, &climbs, stages);
            stages.iter().enumerate().for_each(|(at, stage)| aheads[*stage] = on.aheads(at, room));
        }
        let mut behinds = alloc::vec![Vec::new(); stages];
        for (stage, aheads) in aheads.iter().enumerate() {
            aheads.iter().for_each(|ahead: &Ahead| behinds[ahead.above].push((stage, *ahead)));
        }
        self.lanes.push(Lane { ranks, down, up, climbs, needs, aheads, behinds });
        self.stages_of.push(stages_of);
    }

    /// All microbatches of a lane.
    pub fn all_microbatches(&self) -> usize {
        self.microbatches + self.between
    }

    /// How many of the microbatches looked at have all those before them looked at: all where none is left out.
    pub fn early(&self) -> usize {
        if self.between == 0 { self.microbatches } else { self.microbatches / 2 }
    }

    /// The first of the microbatches looked at that has all those after it looked at.
    pub fn late(&self) -> usize {
        if self.between == 0 { 0 } else { self.microbatches / 2 }
    }

    /// What must have ended before F, and before B, of this stage and microbatch can fit.
    pub fn needs(&self, lane: usize, stage: usize, microbatch: usize) -> [u32; 3] {
        self.lanes[lane].needs.get(stage * self.microbatches + microbatch).copied().unwrap_or_default()
    }

    /// The work of `stage` for one microbatch.
    pub fn work(&self, stage: usize) -> Nanos {
        let cost = &self.costs[stage];
        cost.f + cost.b + cost.w
    }

    /// The work of `rank`.
    pub fn load(&self, rank: usize) -> Nanos {
        let of = |stage: &usize| self.work(*stage) * self.all_microbatches() as u64;
        self.stages_of.iter().map(|stages_of| stages_of[rank].iter().map(of).sum::<Nanos>()).sum()
    }
}

/// When F of microbatch `k` starts, its stage has run `k` F, some `j` B and some `i <= j` W; and of the
/// stages of the same rank that come `below` it in the model, microbatches `j` to `k` have been through F and
/// not through B. So the rank holds at least `below · (k + 1 − j) + f k + b j + w i`; what stages above hold
/// is not below zero. Each of `j` and `i` is the least for which that fits with the best of the other.
fn needed(cost: &Cost, below: i64, room: i64, k: usize) -> [u32; 3] {
    let [f, b, w] = cost.bytes;
    let least = |excess: i64, gain: i64| -> u32 {
        if excess <= 0 || gain <= 0 {
            return 0;
        }
        // At most all of them: then the limit is below the least memory, which `least_memory` reports.
        excess.unsigned_abs().div_ceil(gain.unsigned_abs()).min(k as u64) as u32
    };
    let k_bytes = k as i64;
    let before_f = below * (k_bytes + 1) + f * k_bytes + cost.takes[0] - room;
    let backward = least(before_f, below - b - w.min(0));
    // With all B run, or with as many as W where running B alone frees nothing.
    let weight =
        if b - below < 0 { least(before_f + (b - below) * k_bytes, -w) } else { least(before_f, below - b - w) };
    let before_b = below + f * (k_bytes + 1) + b * k_bytes + cost.takes[1] - room;
    [backward, weight, least(before_b, -w)]
}

/// Stages of the same rank that are looked at.
const MOST_ABOVE: usize = 5;

/// The bytes that a microbatch has freed on a rank, and the work that this takes.
#[derive(Clone, Copy, Debug)]
struct Step {
    freed: i64,
    work: Nanos,
}

/// The steps of a microbatch once B of the last of `stages`, in model order, has run: what that B gives back, B of the
/// stages below, one after the other, and any of the W. Each takes more work than the one before it and frees more.
fn steps(costs: &[Cost], stages: &[usize]) -> Vec<Step> {
    let (mut freed, mut work) = (0, 0);
    let mut pending: Vec<(i64, Nanos)> = Vec::new();
    let mut found = Vec::new();
    for (index, stage) in stages.iter().rev().enumerate() {
        let cost = &costs[*stage];
        if index > 0 {
            work += cost.b;
        }
        if index == MOST_ABOVE {
            // No further is looked: as if all were given back.
            found.push(Step { freed: i64::MAX, work });
            break;
        }
        freed -= cost.bytes[B];
        pending.push((cost.bytes[W].min(0), cost.w));
        found.extend((0..1u32 << pending.len()).map(|chosen| {
            let chosen = || pending.iter().enumerate().filter(move |(index, _)| chosen >> index & 1 == 1);
            let bytes: i64 = chosen().map(|(_, (bytes, _))| bytes).sum();
            Step { freed: freed - bytes, work: work + chosen().map(|(_, (_, time))| time).sum::<Nanos>() }
        }));
    }
    found.sort_unstable_by_key(|step| (step.work, Reverse(step.freed)));
    let mut most = i64::MIN;
    found.retain(|step| {
        let frees_more = step.freed > most;
        most = most.max(step.freed);
        frees_more
    });
    found
}

/// The stages of a rank.
struct Held<'a> {
    costs: &'a [Cost],
    climbs: &'a [Nanos],
    stages: &'a [usize],
    /// By how many of the stages: what F of a microbatch leaves on them.
    bytes: Vec<i64>,
    /// By stage: the steps from its B on.
    steps: Vec<Vec<Step>>,
}

impl<'a> Held<'a> {
    fn new(costs: &'a [Cost], climbs: &'a [Nanos], stages: &'a [usize]) -> Held<'a> {
        let mut held = 0;
        let more = stages.iter().map(|stage| {
            held += costs[*stage].bytes[0];
            held
        });
        let bytes: Vec<i64> = core::iter::once(0).chain(more).collect();
        let mut of_all: Vec<Vec<Step>> = Vec::with_capacity(stages.len());
        let mut known: &[usize] = &[];
        for last in 0..stages.len() {
            let looked_at = &stages[last.saturating_sub(MOST_ABOVE)..=last];
            let same = |of: &[usize]| {
                of.len() == looked_at.len() && of.iter().zip(looked_at).all(|(a, b)| costs[*a] == costs[*b])
            };
            // With equal stages those of one are those of all.
            let found = of_all.last().filter(|_| same(known)).cloned().unwrap_or_else(|| steps(costs, looked_at));
            of_all.push(found);
            known = looked_at;
        }
        Held { costs, climbs, stages, bytes, steps: of_all }
    }

    /// How far F of the rank's stage `at` may run ahead of B of its stages.
    ///
    /// Say that F of microbatch `k` of a stage starts at `t` before B of microbatch `j < k` of the later stage has
    /// ended. When both that F and F of `j` of the later stage have started, microbatches `j` to `k` are held by
    /// the stage and by those below it, for `j` cannot have been back there; and `j` is held by the stages
    /// between and by the later one. All that has to fit. Where it does not, the F waits for that B: else the
    /// rank would be stuck, full of microbatches none of which can go on.
    ///
    /// By then so much of `j` must be gone that the others fit beside the rest: further B and W of `j` on this rank, all
    /// after that B. Unless B of `j + 1` of the stage has ended too; it cannot have where the F is that of `j + 1`.
    fn aheads(&self, at: usize, room: i64) -> Vec<Ahead> {
        let each = self.bytes[at + 1];
        if each <= 0 {
            return Vec::new();
        }
        let stage = self.stages[at];
        let mut found: Vec<Ahead> = Vec::new();
        for last in (at..self.stages.len()).take(MOST_ABOVE) {
            let above = self.stages[last];
            let most = (room - (self.bytes[last + 1] - each)).div_euclid(each);
            // None at all: then the limit is below the least memory, which `least_memory` reports.
            let Some(most) = usize::try_from(most).ok().filter(|most| *most > 0) else { continue };
            let rest = room.saturating_sub(each.saturating_mul(most as i64));
            let back = self.climbs[above] - self.climbs[stage];
            let next = if most > 1 { back + self.costs[stage].b } else { Nanos::MAX };
            let delay = self.gone(last, rest).map_or(0, |gone| gone.min(next));
            let delay = delay.max(self.work_between(at, last, most, room));
            found.push(Ahead { above, most, delay });
        }
        found
    }

    /// The work that the rank must do between B of microbatch `j` of its stage `last` and F of microbatch `j + most` of
    /// its stage `at`: ops that free enough for that F, and such F as cannot have fitted before that B.
    ///
    /// *Freed.* When the F starts, microbatches `j` to `j + most − 1` have been through F of the stage. Each of them holds
    /// what F left there and below, until B of the stage `last` and more have run on this rank, none of them before that
    /// of `j`. All together may hold the room less what the F and those before it of its own microbatch leave.
    ///
    /// *Fitted.* If all F before the one that waits run before that B, those microbatches and `j + most` hold
    /// all of it at that B's start. Where that does not fit one F at the least is later: F of the stage, of a microbatch
    /// after `j`, or F of the stage before it on the rank, of microbatch `j + most`.
    fn work_between(&self, at: usize, last: usize, most: usize, room: i64) -> Nanos {
        let (whole, each) = (self.bytes[last + 1], self.bytes[at + 1]);
        let all = each.saturating_mul(most as i64);
        let steps = &self.steps[last];
        // What the others give back, as if any part of their densest step could be run.
        let b = self.costs[self.stages[last]].b;
        let freed_of = |step: &Step| u64::try_from(step.freed.min(whole) - (whole - each)).ok();
        let others = steps.iter().filter_map(|step| Some((step.work + b, freed_of(step)?))).filter(|of| of.1 > 0);
        let densest = others.min_by(|(work, freed), (other_work, other_freed)| {
            let product = |work: u64, freed: u64| u128::from(work) * u128::from(freed);
            product(*work, *other_freed).cmp(&product(*other_work, *freed))
        });
        let of_first = |step: &Step| -> Option<Nanos> {
            let excess = all.saturating_add(whole - step.freed.min(whole)).saturating_sub(room).max(0) as u64;
            if excess == 0 {
                return Some(step.work);
            }
            let (work, freed) = densest.filter(|_| most > 1)?;
            let more = (u128::from(work) * u128::from(excess)).div_ceil(u128::from(freed));
            Nanos::try_from(more).ok()?.checked_add(step.work)
        };
        let freed = steps.iter().filter_map(of_first).min().unwrap_or(0);
        let of_next = at.checked_sub(1).map(|before| self.costs[self.stages[before]].f);
        let of_own = (most > 1).then(|| self.costs[self.stages[at]].f);
        let is_late = all.saturating_add(self.bytes[at] + whole - each) > room;
        let late = of_next.into_iter().chain(of_own).min().filter(|_| is_late);
        freed + late.unwrap_or(0)
    }

    /// How long after B of the stage `last` at the least until a microbatch holds no more than `rest` on the rank: its B
    /// of so many stages below have run, which takes the way there, and such of its W as free the most.
    fn gone(&self, last: usize, rest: i64) -> Option<Nanos> {
        let above = self.stages[last];
        let mut held = self.bytes[last + 1];
        let mut work = 0;
        // W that may be run by now: their changes of bytes and durations.
        let mut pending: Vec<(i64, Nanos)> = Vec::new();
        let mut least: Option<Nanos> = None;
        for &stage in self.stages[..=last].iter().rev().take(MOST_ABOVE) {
            let cost = &self.costs[stage];
            // The way from the end of B of `above` to the end of B of this stage.
            let mut way = 0;
            if stage < above {
                way = self.climbs[above] - self.climbs[stage];
                work += cost.b;
            }
            held += cost.bytes[1];
            pending.push((cost.bytes[2].min(0), cost.w));
            let subsets = 0..1u32 << pending.len();
            let enough = subsets.filter_map(|chosen| {
                let chosen = || pending.iter().enumerate().filter(move |(index, _)| chosen >> index & 1 == 1);
                let left = held + chosen().map(|(_, (bytes, _))| bytes).sum::<i64>();
                (left <= rest).then(|| chosen().map(|(_, (_, time))| time).sum::<Nanos>())
            });
            if let Some(more) = enough.min() {
                let time = way.max(work + more);
                least = Some(least.map_or(time, |least: Nanos| least.min(time)));
            }
        }
        least
    }
}
