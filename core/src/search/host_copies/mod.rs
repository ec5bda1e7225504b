//! Copies of activations to the host, so that an order fits into less memory than it holds.
//!
//! An order comes first, then its copies. `fit` puts copies into a given order: it follows each rank's ops, and where one
//! would break the limit, it sends away the activations that are needed last (Belady, "A study of replacement algorithms for a
//! virtual-storage computer", IBM Systems Journal 5, 1966), among those whose copies delay the rank least. Copies lie on the
//! link of the rank ([`link`]): to the host as soon as it is free, back as late as the backward allows. Then the order is
//! simulated with its copies, and copies are placed anew for the times that come out.
//!
//! [`best`] tries the published orders, those that the search finds if copies took no time, and those that it finds for higher
//! limits. The more an order holds, the less it idles, and the more it has to copy.
//!
//! PipeOffload (arXiv:2503.01328) copies whole chunks of all microbatches. OptPipe (arXiv:2510.05186) chooses single copies by
//! integer programming.

mod link;

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::{Effort, Flow, Found, Infeasible, Progress, limit_tree};
use crate::base::units::{Bytes, Nanos};
use crate::bounds::lower_bound;
use crate::problem::copies::{CopyWay, HostCopy, Moved};
use crate::problem::op::{Op, OpKind};
use crate::problem::{Backward, Problem, Schedule};
use crate::schedule::published;
use crate::simulate::simulate;
use crate::simulate::timeline::{Timeline, schedule_peak_bytes};
use link::Link;

/// How often copies are placed anew for the times that came out.
const ROUNDS: usize = 4;
/// The activations that are looked at for one op: those that are needed last.
const LOOKED_AT: usize = 24;
/// The share of the effort that the search at each higher limit takes.
const SHARE: u64 = 3;
/// The copies that an order leaves room for, where it is sought as if copies took no time.
const MOST_UNDER_WAY: u64 = 2;
/// The higher limits: how far up, in eighths of the way to what the best order without a limit holds.
const EIGHTHS: [u64; 3] = [4, 2, 1];

/// The best schedule with copies, as [`best`](super::best).
pub(super) fn best(
    problem: &Problem,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Found, Infeasible> {
    let bound_ns = lower_bound(problem).value_ns;
    let kept = problem.without_offload();
    let unlimited = kept.with_limits(vec![None; problem.ranks()]);
    let mut search = Search { problem, bound_ns, best: None, ops: 0, stopped: false };
    for published in published() {
        if let Ok(schedule) = published.build(&unlimited) {
            search.offer(&schedule, published.name);
        }
    }
    for order in one_by_one(problem) {
        search.offer(&order, "one microbatch at a time");
    }
    let mut refusal = None;
    let climb =
        |problem: &Problem, effort: Effort, search: &mut Search, observer: &mut dyn FnMut(Progress) -> Flow| {
            let (before, mut stopped) = (search.ops, false);
            let so_far = search.best.as_ref().map_or(Nanos::MAX, |best| best.cost_ns);
            let found = limit_tree::climb(problem, effort, &mut |progress| {
                let cost_ns = progress.cost_ns.min(so_far);
                let flow = observer(Progress { ops: before + progress.ops, cost_ns, bound_ns });
                stopped |= flow == Flow::Stop;
                flow
            });
            search.stopped |= stopped;
            if let Ok(found) = &found {
                search.ops += found.ops;
                search.offer(&found.schedule, found.origin);
            }
            found
        };
    if search.may_gain() {
        refusal = climb(&kept, effort, &mut search, observer).err();
    }
    // The orders that would fit if copies took no time, with room for none, one or two that are under way.
    let instant = problem.with_instant_copies();
    for under_way in 0..=MOST_UNDER_WAY {
        if search.may_gain() {
            let limits = with_room(problem, under_way);
            let _ = climb(&instant.with_limits(limits), Effort(effort.0 / SHARE), &mut search, observer);
        }
    }
    if search.may_gain()
        && let Ok(most) = climb(&unlimited, Effort(effort.0 / SHARE), &mut search, observer)
    {
        for eighths in EIGHTHS {
            if search.may_gain() {
                let limits = between(problem, &most.schedule, eighths);
                let _ = climb(&kept.with_limits(limits), Effort(effort.0 / SHARE), &mut search, observer);
            }
        }
    }
    let Search { best, ops, .. } = search;
    match (best, refusal) {
        (Some(found), _) => Ok(Found { ops, ..found }),
        (None, Some(refusal)) => Err(least(problem, refusal)),
        // The search at the limit itself always ends with an answer or a refusal.
        (None, None) => Err(least(problem, Infeasible { rank: 0, least_bytes: 0, limit_bytes: 0 })),
    }
}

/// The best so far, and what has been done for it.
struct Search<'p> {
    problem: &'p Problem,
    bound_ns: Nanos,
    best: Option<Found>,
    ops: u64,
    stopped: bool,
}

impl Search<'_> {
    fn may_gain(&self) -> bool {
        !self.stopped && self.best.as_ref().is_none_or(|best| best.cost_ns > self.bound_ns)
    }

    /// Takes `schedule` with the copies that it needs, where it is better.
    fn offer(&mut self, schedule: &Schedule, origin: &'static str) {
        let problem = self.problem;
        self.ops += (ROUNDS * schedule.op_count()) as u64;
        let fused = problem.backward() == Backward::Fused;
        if fused && schedule.rows.iter().flatten().any(|op| matches!(op.kind(), OpKind::B | OpKind::W)) {
            return;
        }
        if let Some((schedule, cost_ns)) = fit(problem, schedule)
            && self.best.as_ref().is_none_or(|best| cost_ns < best.cost_ns)
        {
            self.best = Some(Found { schedule, cost_ns, bound_ns: self.bound_ns, origin, ops: 0 });
        }
    }
}

/// The limits of `problem` less the bytes of that many copies.
fn with_room(problem: &Problem, copies: u64) -> Vec<Option<Bytes>> {
    let largest = |rank: usize| problem.stages_of(rank).iter().map(|stage| problem.cost(*stage).offload_bytes).max();
    let limit = |rank: usize| {
        Some(problem.limit_bytes(rank)?.saturating_sub(copies.saturating_mul(largest(rank).unwrap_or(0))))
    };
    (0..problem.ranks()).map(limit).collect()
}

/// The limits of `problem`, and that many eighths of the way to what `schedule` holds.
fn between(problem: &Problem, schedule: &Schedule, eighths: u64) -> Vec<Option<Bytes>> {
    let limit = |rank: usize| {
        let limit = problem.limit_bytes(rank)?;
        let more = schedule_peak_bytes(problem, schedule, rank).saturating_sub(limit);
        Some(limit + more / 8 * eighths)
    };
    (0..problem.ranks()).map(limit).collect()
}

/// One microbatch after the other through all stages and back: what holds least. With whole backwards, and where they may be
/// split, with split ones.
fn one_by_one(problem: &Problem) -> Vec<Schedule> {
    let stages = problem.stage_count();
    let with = |backwards: &[OpKind]| {
        let mut rows = vec![Vec::new(); problem.ranks()];
        for microbatch in 0..problem.microbatches() {
            let mut push = |stage: usize, kind: OpKind| {
                rows[problem.rank_of(stage, microbatch)].push(Op::new(stage, kind, microbatch));
            };
            (0..stages).for_each(|stage| push(stage, OpKind::F));
            (0..stages).rev().for_each(|stage| backwards.iter().for_each(|kind| push(stage, *kind)));
        }
        Schedule::of(rows)
    };
    match problem.backward() {
        Backward::Fused => vec![with(&[OpKind::BW])],
        Backward::Split => vec![with(&[OpKind::BW]), with(&[OpKind::B, OpKind::W])],
    }
}

/// The refusal with the least limit at which one microbatch at a time goes through, with copies.
fn least(problem: &Problem, refusal: Infeasible) -> Infeasible {
    let lacks = |rank: usize| {
        let limit_bytes = problem.limit_bytes(rank)?;
        let least_bytes = least_of(problem, rank);
        (least_bytes > limit_bytes)
            .then_some((least_bytes - limit_bytes, Infeasible { rank, least_bytes, limit_bytes }))
    };
    let most =
        (0..problem.ranks()).filter_map(lacks).max_by_key(|(lack, refused)| (*lack, usize::MAX - refused.rank));
    most.map_or(refusal, |(_, refused)| refused)
}

/// The least limit, the same for all ranks, at which one microbatch at a time goes through, with copies.
pub(super) fn least_limit(problem: &Problem) -> Bytes {
    (0..problem.ranks()).map(|rank| least_of(problem, rank)).max().unwrap_or(0)
}

/// The least limit of `rank` at which one microbatch at a time goes through, with copies.
fn least_of(problem: &Problem, rank: usize) -> Bytes {
    one_by_one(problem).iter().map(|order| least_of_order(problem, rank, order)).min().unwrap_or(0)
}

/// The least limit of `rank` at which it runs `order`, with copies.
fn least_of_order(problem: &Problem, rank: usize, order: &Schedule) -> Bytes {
    let mut least = schedule_peak_bytes(problem, order, rank);
    let Ok(timeline) = simulate(problem, order) else { return least };
    let mut below = problem.static_bytes(rank).saturating_sub(1);
    while least - below > 1 {
        let middle = below + (least - below) / 2;
        match copies_of(problem, rank, &timeline, middle, Rule::LeastDelay) {
            Some(_) => least = middle,
            None => below = middle,
        }
    }
    least
}

/// `schedule` with copies to the host where it holds more than the limits, if `problem` allows copies and they suffice; else as
/// it is.
pub fn within_limits(problem: &Problem, schedule: Schedule) -> Schedule {
    match problem.offloads() {
        true => fit(problem, &schedule).map_or(schedule, |(fitted, _)| fitted),
        false => schedule,
    }
}

/// `schedule` with the copies with which it fits the limits, and its cost; none where it cannot fit, or where its backwards are
/// not those of the problem. Copies that it has are placed anew.
fn fit(problem: &Problem, schedule: &Schedule) -> Option<(Schedule, Nanos)> {
    let order = Schedule { copies: Vec::new(), ..schedule.clone() };
    let alone = simulate(problem, &order).ok()?;
    let over = |rank: usize| {
        problem.limit_bytes(rank).is_some_and(|limit| schedule_peak_bytes(problem, &order, rank) > limit)
    };
    let over: Vec<usize> = (0..problem.ranks()).filter(|rank| over(*rank)).collect();
    if over.is_empty() {
        return Some((order, alone.cost_ns(problem.objective())));
    }
    // The bytes of a pair lie together, and its ops have one time: no copy stands between them.
    if over.iter().any(|rank| !order.pairs_of(*rank).is_empty()) || !problem.offloads() {
        return None;
    }
    let mut best: Option<(Schedule, Nanos)> = None;
    for rule in Rule::ALL {
        let mut timeline = alone.clone();
        let mut least = Nanos::MAX;
        for _ in 0..ROUNDS {
            let mut copied = Schedule { copies: vec![Vec::new(); problem.ranks()], ..order.clone() };
            for &rank in &over {
                copied.copies[rank] = copies_of(problem, rank, &timeline, problem.limit_bytes(rank)?, rule)?;
            }
            let fits =
                |rank: &usize| problem.limit_bytes(*rank) >= Some(schedule_peak_bytes(problem, &copied, *rank));
            if !over.iter().all(fits) {
                break;
            }
            timeline = simulate(problem, &copied).ok()?;
            let cost_ns = timeline.cost_ns(problem.objective());
            if best.as_ref().is_none_or(|(_, best)| cost_ns < *best) {
                best = Some((copied, cost_ns));
            }
            // Times that are no better ask for no better copies.
            if cost_ns >= least {
                break;
            }
            least = cost_ns;
        }
    }
    best
}

/// Which of the activations that could go is the next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The one whose copies delay the rank least; among equals, what is needed last.
    LeastDelay,
    /// What is needed last, whatever the delay.
    NeededLast,
    /// What is needed last among those that delay the rank by one copy at most; else as [`Rule::LeastDelay`].
    ShortDelay,
}

impl Rule {
    const ALL: [Rule; 3] = [Rule::LeastDelay, Rule::NeededLast, Rule::ShortDelay];
}

/// What F of a stage keeps of one microbatch.
#[derive(Clone, Copy)]
struct Kept {
    op: Op,
    forward: usize,
    backward: usize,
    /// Where it is away: from which place, until which, and when its copies start.
    away: Option<Away>,
}

#[derive(Clone, Copy)]
struct Away {
    from: usize,
    until: usize,
    starts: [Nanos; 2],
}

/// One way to send activations away over the op at a place.
struct Choice {
    kept: usize,
    away: Away,
    delay: Nanos,
}

/// The copies with which `rank` holds at most `limit` bytes when it runs the ops of `timeline`, placed for its times. None
/// where the order needs more.
fn copies_of(problem: &Problem, rank: usize, timeline: &Timeline, limit: Bytes, rule: Rule) -> Option<Vec<HostCopy>> {
    let mut plan = RankPlan::new(problem, rank, timeline);
    let mut held = problem.static_bytes(rank) as i64;
    for place in 0..plan.ends.len() {
        let op = timeline.rows[rank][place].op;
        held += plan.changes[place];
        plan.open(place);
        while held + problem.takes(op) as i64 > limit as i64 {
            let choice = plan.next(place, rule)?;
            held -= plan.send_away(choice);
        }
        held += problem.takes(op) as i64 - problem.gives(op) as i64;
    }
    Some(plan.copies())
}

/// The copies of one rank while its ops are followed.
struct RankPlan<'p> {
    problem: &'p Problem,
    /// By place in the row.
    starts: Vec<Nanos>,
    ends: Vec<Nanos>,
    kept: Vec<Kept>,
    /// What copies change before the op at each place.
    changes: Vec<i64>,
    link: Link,
    /// By place of the backward: what the rank holds during the op that is looked at, and may send away.
    here: BTreeMap<usize, usize>,
    /// By place at which it comes back, and of the backward: what is away.
    away: BTreeMap<(usize, usize), usize>,
    /// The next of `kept` whose F has not been passed.
    next: usize,
}

impl<'p> RankPlan<'p> {
    fn new(problem: &'p Problem, rank: usize, timeline: &Timeline) -> RankPlan<'p> {
        let row = &timeline.rows[rank];
        let mut forwards: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut kept = Vec::new();
        for (place, span) in row.iter().enumerate() {
            let key = (span.op.stage(), span.op.microbatch());
            match span.op.kind() {
                OpKind::F => drop(forwards.insert(key, place)),
                OpKind::B | OpKind::BW => {
                    if let Some(forward) = forwards.remove(&key)
                        && problem.cost(span.op.stage()).offload_bytes > 0
                    {
                        kept.push(Kept { op: span.op, forward, backward: place, away: None });
                    }
                }
                OpKind::W => {}
            }
        }
        kept.sort_by_key(|kept| kept.forward);
        RankPlan {
            problem,
            starts: row.iter().map(|span| span.start_ns).collect(),
            ends: row.iter().map(|span| span.end_ns).collect(),
            kept,
            changes: vec![0; row.len() + 1],
            link: Link::default(),
            here: BTreeMap::new(),
            away: BTreeMap::new(),
            next: 0,
        }
    }

    /// Looks at what is kept over the op at `place`: its F comes before, its backward after.
    fn open(&mut self, place: usize) {
        while let Some(kept) = self.kept.get(self.next).filter(|kept| kept.forward < place) {
            self.here.insert(kept.backward, self.next);
            self.next += 1;
        }
        while let Some(back) = self.away.first_entry().filter(|back| back.key().0 <= place) {
            let ((_, backward), kept) = back.remove_entry();
            self.here.insert(backward, kept);
        }
        // What is needed here or before can no longer be away.
        while let Some(needed) = self.here.first_entry().filter(|needed| *needed.key() <= place) {
            needed.remove();
        }
    }

    /// What goes over the op at `place`, by `rule`.
    fn next(&mut self, place: usize, rule: Rule) -> Option<Choice> {
        let last: Vec<usize> = self.here.values().rev().copied().take(LOOKED_AT).collect();
        let mut best: Option<Choice> = None;
        for kept in last {
            let choice = self.choice(kept, place);
            let enough = match rule {
                Rule::LeastDelay => 0,
                Rule::NeededLast => Nanos::MAX,
                Rule::ShortDelay => self.problem.cost(self.kept[kept].op.stage()).offload_ns,
            };
            if best.as_ref().is_none_or(|best| choice.delay < best.delay) {
                let is_enough = choice.delay <= enough;
                best = Some(choice);
                if is_enough {
                    break;
                }
            }
        }
        best
    }

    fn choice(&mut self, number: usize, place: usize) -> Choice {
        let kept = self.kept[number];
        let takes = self.problem.cost(kept.op.stage()).offload_ns;
        // What has been away and is back stays away longer; its copy to the host is made already.
        let (from, out, before) = match kept.away {
            Some(away) => {
                self.link.free(away.starts[1], takes);
                (away.from, away.starts[0], away.from)
            }
            None => {
                let out = self.link.first(self.ends[kept.forward], takes);
                (self.place_at(out + takes).clamp(kept.forward + 1, place), out, place)
            }
        };
        let late = if kept.away.is_none() { (out + takes).saturating_sub(self.starts[before]) } else { 0 };
        let wanted = self.starts[kept.backward];
        let least = self.ends[place].max(out + takes);
        // Back as late as the backward allows, but behind this op.
        let back = match self.link.last(wanted, takes).filter(|back| *back >= least) {
            Some(back) => back,
            None => self.link.first(least, takes),
        };
        if let Some(away) = kept.away {
            self.link.take(away.starts[1], takes);
        }
        let until = self.place_after(back).clamp(place + 1, kept.backward);
        let delay = late + (back + takes).saturating_sub(wanted);
        Choice { kept: number, away: Away { from, until, starts: [out, back] }, delay }
    }

    /// Sends away what `choice` says; gives the bytes that the rank no longer holds over the op that it was made for.
    fn send_away(&mut self, choice: Choice) -> i64 {
        let kept = &mut self.kept[choice.kept];
        let cost = self.problem.cost(kept.op.stage());
        let (bytes, takes) = (cost.offload_bytes as i64, cost.offload_ns);
        match kept.away {
            // It was back before this op, or it would not be chosen.
            Some(away) => self.link.free(away.starts[1], takes),
            None => self.link.take(choice.away.starts[0], takes),
        }
        self.link.take(choice.away.starts[1], takes);
        self.changes[choice.away.until] += bytes;
        kept.away = Some(choice.away);
        self.here.remove(&kept.backward);
        self.away.insert((choice.away.until, kept.backward), choice.kept);
        bytes
    }

    /// The first place whose op starts at `time` or later.
    fn place_at(&self, time: Nanos) -> usize {
        self.starts.partition_point(|start| *start < time)
    }

    /// The place before which all ops have ended at `time`.
    fn place_after(&self, time: Nanos) -> usize {
        self.ends.partition_point(|end| *end <= time)
    }

    /// The copies in the order of the link.
    fn copies(&self) -> Vec<HostCopy> {
        let mut copies: Vec<(Nanos, HostCopy)> = Vec::new();
        for kept in &self.kept {
            let Some(away) = kept.away else { continue };
            let moved = |way| Moved { way, stage: kept.op.stage() as u16, microbatch: kept.op.microbatch() as u32 };
            let starts = self.place_after(away.starts[0]).clamp(kept.forward + 1, away.from.max(kept.forward + 1));
            let out = HostCopy { moved: moved(CopyWay::Offload), starts: starts as u32, ends: away.from as u32 };
            let (starts, ends) = (away.until as u32, kept.backward as u32);
            copies.push((away.starts[0], out));
            copies.push((away.starts[1], HostCopy { moved: moved(CopyWay::Reload), starts, ends }));
        }
        // A reload at a position takes the room of offloads that the op there waits for. So these come first, those too that
        // only start there.
        let waits = |copy: &HostCopy| copy.moved.way == CopyWay::Reload || copy.ends > copy.starts;
        copies.sort_by_key(|(start, copy)| (copy.starts, waits(copy), *start));
        copies.into_iter().map(|(_, copy)| copy).collect()
    }
}
