//! The tree of limits: more memory never gives a worse plan, at any two limits.
//!
//! A search at one limit depends on luck in part: with a little more memory it may end a little worse. To repeat all searches of
//! all lower limits at each limit would repair that, and cost too much. So the limits form a tree, which depends on the problem
//! but not on the limit asked for:
//!
//! - The root is the range from the least limit with which any schedule exists to the bytes of the best schedule without a limit.
//! - A range splits at a limit between its ends: at a whole multiple of a quarter of what 1F1B holds, of what one microbatch
//!   holds, of what one chunk holds, and then of halves of that, whichever comes first.
//! - The *value* of a limit is the least cost that a search there finds which is not below the value of the upper end of the
//!   range that it splits; or the value of the lower end, if that is less.
//!
//! So the value of a limit lies between those of the two ends, and values fall from the least limit to the largest. The answer at
//! any limit is the value of the lowest limit in the tree above it, if that schedule fits all the same, and else the value of the
//! highest limit that is not above it. The bytes of schedules are sums of a few numbers, so in the narrow range between the two
//! limits the one asked for is often the highest. This takes as many searches as the tree is deep, and fewer where a bound shows
//! that a lower end cannot gain.
//!
//! Most of these limits are not asked for themselves: of an upper end only a cost is needed that its value is not above. A *rough*
//! search with a small part of the effort gives one, since a full search starts from its result, and a search below seldom finds so
//! low a cost. Where it does, the value itself is computed.
//!
//! Where the limits of ranks differ, all rise and fall together: all of this holds for limits that differ by the same bytes on
//! every rank.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell;

use super::beam;
use super::flat_problem::{B, F, Flat, least_bytes};
use super::portfolio::Library;
use super::{Effort, Flow, Found, Infeasible, Progress, Scope, fused_backward, search};
use crate::base::units::{Bytes, Nanos};
use crate::bounds::lower_bound;
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::simulate::timeline::schedule_peak_bytes;

/// How often the share of one chunk is halved.
const HALVES: u32 = 7;

/// Stands for no limit on any rank.
const NO_LIMIT: Bytes = Bytes::MAX;

/// How often the effort is halved for a rough search.
const ROUGH: u32 = 3;

/// A limit at which a range of limits splits, and the range's ends.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// None for the least limit of all.
    below: Option<Bytes>,
    above: Bytes,
    /// How often the effort is halved: once for each halving of a chunk, and for every other one in a small problem.
    halved: u32,
}

/// What limits are counted in.
struct Units {
    /// What is held whatever runs.
    base: Bytes,
    /// The most that one microbatch holds on a rank, and on a stage.
    microbatch: Bytes,
    chunk: Bytes,
}

pub(super) struct LimitTree<'a> {
    problem: &'a Problem,
    effort: Effort,
    observer: &'a mut dyn FnMut(Progress) -> Flow,
    stopped: bool,
    /// The published schedules, which do not depend on limits.
    published: &'a Library,
    /// By rank: the limit above the least limit; none where it has no limit.
    more: Vec<Option<Bytes>>,
    /// The least limit of a rank that was asked for.
    asked: Bytes,
    /// The bytes of a rough search without a limit: the upper end of the root.
    most: Bytes,
    nodes: BTreeMap<Bytes, Node>,
    roughly: BTreeMap<Bytes, Found>,
    /// The results of searches, each with a lower bound on the value of its limit.
    searches: BTreeMap<Bytes, (Found, Nanos)>,
    values: BTreeMap<Bytes, Found>,
    /// By limit, the lower bound.
    bounds: BTreeMap<Bytes, Nanos>,
    /// The result of the usual effort, where more is asked for.
    usual: Option<Found>,
    /// The best known at the limit asked for, and its bound.
    known: Option<Found>,
    bound_ns: Nanos,
    spent: u64,
}

/// The best schedule for `problem`, with each search given `effort`.
///
/// # Errors
/// [`Infeasible`] where the limit of a rank is below the least with which any schedule exists.
pub(super) fn climb(
    problem: &Problem,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Found, Infeasible> {
    // The usual search comes first, so that a long search that is stopped is no worse.
    let mut usual: Option<Found> = None;
    if effort.0 > Effort::default().0 {
        let mut stopped = false;
        let found = climb(problem, Effort::default(), &mut |progress| {
            let flow = observer(progress);
            stopped |= flow == Flow::Stop;
            flow
        })?;
        if stopped || found.cost_ns == found.bound_ns {
            return Ok(found);
        }
        usual = Some(found);
    }
    let limits: Vec<Option<Bytes>> = (0..problem.ranks()).map(|rank| problem.limit_bytes(rank)).collect();
    let asked = limits.iter().flatten().copied().min().unwrap_or(NO_LIMIT);
    let published = Library::of(problem);
    let scope = Scope { published_only: true, known: Some(&published), ..Scope::default() };
    let first = search(problem, Effort(0), scope, &mut |_| Flow::Continue)?;
    if first.cost_ns == first.bound_ns {
        // It is also valid with more memory, so no other limit has to be searched.
        observer(Progress { ops: first.ops, cost_ns: first.cost_ns, bound_ns: first.bound_ns });
        return Ok(first);
    }
    let mut ladder = LimitTree {
        published: &published,
        more: limits.iter().map(|limit| limit.map(|limit| limit - asked)).collect(),
        asked,
        most: 0,
        nodes: BTreeMap::new(),
        roughly: BTreeMap::new(),
        searches: BTreeMap::new(),
        values: BTreeMap::new(),
        bounds: BTreeMap::new(),
        bound_ns: first.bound_ns,
        spent: usual.as_ref().map_or(0, |usual| usual.ops),
        known: None,
        usual,
        stopped: false,
        problem,
        effort,
        observer,
    };
    ladder.answer()
}

impl<'a> LimitTree<'a> {
    fn answer(&mut self) -> Result<Found, Infeasible> {
        // An answer to show at once, and to return when stopped.
        let first = self.look(Scope { quick: true, ..Scope::default() })?;
        let first = self.usual.clone().filter(|usual| usual.cost_ns <= first.cost_ns).unwrap_or(first);
        self.report(&first);
        self.known = Some(Found { bound_ns: self.bound_ns, ..first });
        if self.stopped {
            return self.end(None);
        }
        let scope = Scope { halved: ROUGH, ..Scope::default() };
        let Some(rough) = self.search(NO_LIMIT, scope) else { return self.end(None) };
        self.most = self.held(&rough);
        // An equally good schedule that holds less saves the levels in between.
        let enough = self.twice_1f1b();
        let frugal = if self.most > enough {
            self.search(enough, Scope { floor: rough.cost_ns, ..scope })
                .filter(|found| found.cost_ns == rough.cost_ns)
        } else {
            None
        };
        let rough = frugal.unwrap_or(rough);
        self.most = self.held(&rough);
        self.roughly.insert(self.most, rough);
        let mut found = if self.stopped {
            None
        } else if self.asked >= self.most {
            match self.unlimited() {
                Some(top) if fits(self.problem, &top.schedule) => Some(top),
                Some(_) => self.value(self.most),
                None => None,
            }
        } else {
            let (below, above) = self.descend();
            self.value_between(below, above)
        };
        // Published schedules do not look at the limit, so whatever holds them here holds them with more memory too. They
        // may need just the bytes that were rounded off.
        let published = self.look(Scope { published_only: true, ..Scope::default() })?;
        if found.as_ref().is_none_or(|found| published.cost_ns < found.cost_ns) {
            found = Some(published);
        }
        self.end(found)
    }

    /// The least limit that leaves every rank what a schedule holds.
    fn held(&self, found: &Found) -> Bytes {
        let held = |rank: usize| {
            let peak = schedule_peak_bytes(self.problem, &found.schedule, rank);
            self.more[rank].map(|more| peak.saturating_sub(more))
        };
        (0..self.more.len()).filter_map(held).max().unwrap_or(0)
    }

    /// The answer is `found`, or what is known so far where the search was stopped.
    fn end(&mut self, found: Option<Found>) -> Result<Found, Infeasible> {
        let known = self.known.take();
        let best = match (found, known) {
            (Some(found), Some(known)) if self.stopped && known.cost_ns < found.cost_ns => known,
            // Neither costs more with more memory, so nor does the better of them.
            (Some(found), _) => match self.usual.take() {
                Some(usual) if usual.cost_ns < found.cost_ns => usual,
                _ => found,
            },
            (None, Some(known)) => known,
            (None, None) => return self.look(Scope::default()),
        };
        Ok(Found { bound_ns: self.bound_ns, ops: self.spent, ..best })
    }

    fn report(&mut self, found: &Found) {
        let progress = Progress { ops: self.spent, cost_ns: found.cost_ns, bound_ns: self.bound_ns };
        self.stopped |= (self.observer)(progress) == Flow::Stop;
    }

    /// The ranks that have a limit, with how much more than the least it is.
    fn limited(&self) -> impl Iterator<Item = (usize, Bytes)> {
        self.more.iter().enumerate().filter_map(|(rank, more)| more.map(|more| (rank, more)))
    }

    fn units(&self, flat: &Flat) -> Units {
        // Where F keeps nothing, B may take what W gives back.
        let keeps = flat.lanes.iter().any(|lane| lane.net(F) > 0);
        let kept = |lane: &usize| -> i64 {
            let lane = &flat.lanes[*lane];
            if keeps { lane.net(F) } else { lane.net(F) + lane.net(B) }
        };
        let activations = |rank: usize| flat.lanes_of[rank].iter().map(kept).sum::<i64>() / flat.chains.len() as i64;
        let static_bytes = |(rank, more): (usize, Bytes)| self.problem.static_bytes(rank).saturating_sub(more);
        Units {
            base: self.limited().map(static_bytes).max().unwrap_or(0),
            microbatch: self.limited().map(|(rank, _)| activations(rank)).max().unwrap_or(0).max(0) as u64,
            chunk: (0..flat.lanes.len()).map(|lane| kept(&lane)).max().unwrap_or(0).max(0) as u64,
        }
    }

    /// Twice what 1F1B holds where stages are alike.
    fn twice_1f1b(&self) -> Bytes {
        let flat = Flat::new(self.problem);
        let Units { base, microbatch, .. } = self.units(&flat);
        base.saturating_add(microbatch.saturating_mul(2 * flat.ranks as u64))
    }

    /// Goes down the tree to the highest limit that is not above the one asked for, and the lowest that is, and records
    /// the ranges on the path.
    fn descend(&mut self) -> (Bytes, Bytes) {
        let flat = Flat::new(self.problem);
        let least_of = |problem: &Problem| {
            let flat = Flat::new(problem);
            let of = |(rank, more): (usize, Bytes)| least_bytes(problem, &flat, rank).saturating_sub(more);
            self.limited().map(of).max().unwrap_or(0)
        };
        let variants =
            if fused_backward::may_mix(self.problem) { fused_backward::variants(self.problem) } else { Vec::new() };
        let least =
            variants.iter().map(|variant| least_of(&variant.problem)).fold(least_of(self.problem), Bytes::min);
        let Units { base, microbatch, chunk } = self.units(&flat);
        let full = u128::from(microbatch) * flat.ranks as u128;
        let mut units = alloc::vec![u64::try_from(full / 4).unwrap_or(u64::MAX), microbatch, chunk];
        units.extend((1..=HALVES).map(|half| chunk >> half));
        let (mut below, mut above) = (least, self.most);
        self.nodes.insert(least, Node { below: None, above, halved: 0 });
        // The unit only gets finer on the way down.
        let mut unit = 0;
        while below < self.asked && unit < units.len() {
            let Some(at) = middle(base, units[unit], below, above) else {
                unit += 1;
                continue;
            };
            let halved = (unit as u32).saturating_sub(2) / if beam::is_small(&flat) { 2 } else { 1 };
            self.nodes.insert(at, Node { below: Some(below), above, halved });
            if at <= self.asked {
                below = at;
            } else {
                above = at;
            }
        }
        (below, above)
    }

    /// The answer from the two limits around the one asked for.
    fn value_between(&mut self, below: Bytes, above: Bytes) -> Option<Found> {
        let found = self.value(below)?;
        if self.stopped || below == self.asked || found.cost_ns == self.bound_ns {
            return Some(found);
        }
        match self.value(above) {
            Some(upper) if upper.cost_ns < found.cost_ns && fits(self.problem, &upper.schedule) => Some(upper),
            _ => Some(found),
        }
    }

    /// The answer without a limit: none where the search was stopped.
    fn unlimited(&mut self) -> Option<Found> {
        if let Some(found) = self.values.get(&NO_LIMIT) {
            return Some(found.clone());
        }
        let rough = self.roughly.get(&self.most)?.clone();
        let found = if rough.cost_ns == self.bound_at(NO_LIMIT) {
            rough
        } else {
            self.search(NO_LIMIT, Scope { given: Some(given(&rough)), ..Scope::default() })?
        };
        if !self.stopped {
            self.values.insert(NO_LIMIT, found.clone());
        }
        Some(found)
    }

    /// The value of a limit in the tree: none where the search was stopped before there was any.
    fn value(&mut self, at: Bytes) -> Option<Found> {
        if let Some(found) = self.values.get(&at) {
            return Some(found.clone());
        }
        let found = if at == self.most { self.value_of_most() } else { self.value_within(at) }?;
        if !self.stopped {
            self.values.insert(at, found.clone());
        }
        Some(found)
    }

    fn value_of_most(&mut self) -> Option<Found> {
        let top = self.unlimited()?;
        if self.stopped || fits(&self.at(self.most), &top.schedule) {
            return Some(top);
        }
        let rough = self.roughly.get(&self.most)?.clone();
        self.search(self.most, Scope { given: Some(given(&rough)), floor: top.cost_ns, ..Scope::default() })
    }

    /// The least cost of searches at a limit and at those below it. A limit whose bound is no better than the best
    /// known cannot gain, and nor can those below it.
    fn value_within(&mut self, at: Bytes) -> Option<Found> {
        let Node { mut below, halved, .. } = *self.nodes.get(&at)?;
        let (mut found, floor) = self.searched(at)?;
        // Within a chunk a search starts from the value below.
        if halved > 0 {
            return Some(found);
        }
        while let Some(limit) = below
            && !self.stopped
            && found.cost_ns > floor
            && self.bound_at(limit) < found.cost_ns
        {
            let (lower, _) = self.searched(limit)?;
            if lower.cost_ns < found.cost_ns {
                found = lower;
            }
            below = self.nodes.get(&limit)?.below;
        }
        Some(found)
    }

    /// What a search at a limit leads to, and what the value is not below.
    fn searched(&mut self, at: Bytes) -> Option<(Found, Nanos)> {
        if let Some(known) = self.searches.get(&at) {
            return Some(known.clone());
        }
        let known = self.search_above(at)?;
        if !self.stopped {
            self.searches.insert(at, known.clone());
        }
        Some(known)
    }

    /// A search at a limit for what costs no less than the value of the upper end of the range that it splits; and what
    /// that value is not above, as far as it had to be known.
    fn search_above(&mut self, at: Bytes) -> Option<(Found, Nanos)> {
        let Node { below, above, halved } = *self.nodes.get(&at)?;
        // Within a chunk the effort is small, and starts from what the lower end has.
        let near = halved > 0;
        let start = if near { self.value(below?)? } else { self.rough(at)? };
        if self.stopped {
            return Some((start, 0));
        }
        let bound_ns = self.bound_at(at);
        if start.cost_ns == bound_ns && !near {
            return Some((start, bound_ns));
        }
        let rough_floor = match self.nodes.get(&above) {
            Some(above) if above.halved > 0 => None,
            // Where more memory seems to gain nothing, the search here soon reaches the same cost.
            _ => Some(self.rough_floor(at)?)
                .filter(|floor| *floor <= bound_ns || start.cost_ns - start.cost_ns / 512 > *floor),
        };
        let mut floor = match rough_floor {
            Some(floor) => floor,
            None => self.value(above)?.cost_ns,
        };
        let is_rough = rough_floor.is_some();
        let below_floor = Cell::new(false);
        let scope = Scope { near, floor, halved, ..Scope::default() };
        let noted = is_rough.then_some(&below_floor);
        let mut found = self.search(at, Scope { given: Some(given(&start)), below_floor: noted, ..scope })?;
        let on_floor = below_floor.get() || found.cost_ns == floor;
        if is_rough && on_floor && found.cost_ns > bound_ns && !self.stopped {
            floor = self.value(above)?.cost_ns;
            if self.stopped {
                return Some((found, 0));
            }
            let best = if start.cost_ns < found.cost_ns { start } else { found };
            found = self.search(at, Scope { given: Some(given(&best)), floor, ..scope })?;
        }
        Some((found, floor))
    }

    /// The cost of a rough search at a limit, an upper bound of its value. Only for whole chunks.
    fn rough(&mut self, at: Bytes) -> Option<Found> {
        if let Some(found) = self.roughly.get(&at) {
            return Some(found.clone());
        }
        let floor = self.rough_floor(at)?;
        let found = self.search(at, Scope { floor, halved: ROUGH, ..Scope::default() })?;
        self.roughly.insert(at, found.clone());
        Some(found)
    }

    /// What the value of the upper end of the range that a limit splits is not above. No schedule at the limit comes down
    /// to a published one that costs no more than its bound, so then nothing better need be known.
    fn rough_floor(&mut self, at: Bytes) -> Option<Nanos> {
        let above = self.nodes.get(&at)?.above;
        let bound_ns = self.bound_at(at);
        let flat = Flat::new(&self.at(above));
        let published = self.published.known.iter().find(|known| known.fits(&flat)).map(|known| known.cost_ns());
        match published.filter(|cost_ns| *cost_ns <= bound_ns) {
            Some(cost_ns) => Some(cost_ns),
            None => Some(self.rough(above)?.cost_ns),
        }
    }

    fn bound_at(&mut self, limit: Bytes) -> Nanos {
        if let Some(bound_ns) = self.bounds.get(&limit) {
            return *bound_ns;
        }
        let bound_ns = lower_bound(&self.at(limit)).value_ns;
        self.bounds.insert(limit, bound_ns);
        bound_ns
    }

    /// The problem with another limit.
    fn at(&self, limit: Bytes) -> Problem {
        if limit == NO_LIMIT {
            return self.problem.with_limits(alloc::vec![None; self.more.len()]);
        }
        self.problem.with_limits(self.more.iter().map(|more| more.map(|more| limit + more)).collect())
    }

    /// A search at some limit, with the effort halved as often as `scope` says: none after a stop. Its result counts as
    /// progress where it is valid at the limit asked for.
    fn search(&mut self, at: Bytes, scope: Scope) -> Option<Found> {
        // Each search has methods that it runs before it first asks whether to go on, and a long one has many limits.
        if self.stopped {
            return None;
        }
        let problem = self.at(at);
        let within = (0..problem.ranks()).all(|rank| match self.problem.limit_bytes(rank) {
            Some(asked) => problem.limit_bytes(rank).is_some_and(|limit| limit <= asked),
            None => true,
        });
        let scope = Scope { bound_ns: Some(self.bound_at(at)), known: Some(self.published), ..scope };
        let (spent, bound_ns) = (self.spent, self.bound_ns);
        let before = self.known.as_ref().map_or(Nanos::MAX, |known| known.cost_ns);
        let (observer, stopped) = (&mut *self.observer, &mut self.stopped);
        let effort = Effort(self.effort.0 >> scope.halved);
        let found = search(&problem, effort, scope, &mut |progress| {
            let cost_ns = if within { before.min(progress.cost_ns) } else { before };
            let flow = observer(Progress { ops: spent + progress.ops, cost_ns, bound_ns });
            *stopped |= flow == Flow::Stop;
            flow
        });
        let found = found.ok()?;
        self.spent += found.ops;
        if within && found.cost_ns < before {
            self.known = Some(found.clone());
        }
        Some(found)
    }

    /// A quick search at the limit asked for.
    fn look(&self, scope: Scope) -> Result<Found, Infeasible> {
        let scope = Scope { bound_ns: Some(self.bound_ns), known: Some(self.published), ..scope };
        search(self.problem, Effort(0), scope, &mut |_| Flow::Continue)
    }
}

/// What a search may start from.
fn given(found: &Found) -> (&Schedule, &'static str) {
    (&found.schedule, found.origin)
}

/// Whether every rank keeps to its limit.
fn fits(problem: &Problem, schedule: &Schedule) -> bool {
    let keeps = |rank: usize, limit: Bytes| schedule_peak_bytes(problem, schedule, rank) <= limit;
    (0..problem.ranks()).all(|rank| problem.limit_bytes(rank).is_none_or(|limit| keeps(rank, limit)))
}

/// The multiple of `unit` above `base` that lies nearest to the middle between two limits; none where there is none
/// between them.
fn middle(base: Bytes, unit: Bytes, below: Bytes, above: Bytes) -> Option<Bytes> {
    if unit == 0 {
        return None;
    }
    let after = |limit: Bytes| limit.saturating_sub(base) / unit + 1;
    let first = after(below);
    let last = (above.saturating_sub(base)).div_ceil(unit).checked_sub(1)?;
    let at = base.checked_add(unit.checked_mul(first + last.checked_sub(first)? / 2)?)?;
    (below < at && at < above).then_some(at)
}
