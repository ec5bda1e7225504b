//! More memory never gives a worse plan, at any two limits.
//!
//! A search at one limit is luck in part: with a little more memory it may end a little worse. To repeat at a limit
//! all searches of all lower limits would mend that, and cost too much. So the limits form a tree, which depends on
//! the problem but not on the limit asked for:
//!
//! - The root is the range from the least limit with which any schedule exists to what the best schedule without a
//!   limit holds.
//! - A range splits at a limit between its ends: at a whole multiple of a quarter of what 1F1B holds, of what one
//!   microbatch holds, of what one chunk holds, and then of halves of that, whichever comes first.
//! - The *value* of a limit is the least cost that a search there finds which is not below the value of the upper end of
//!   the range that it splits; or the value of the lower end, if that is less.
//!
//! So the value of a limit lies between those of the two ends, and values fall from the least limit to the
//! largest. The answer at any limit is the value of the highest limit in the tree that is not above it. It takes as many
//! searches as the tree is deep, and fewer where a bound shows that a lower end has nothing to give.
//!
//! Where limits of ranks differ, all of them rise and fall together: what is said here holds for limits that differ by
//! the same bytes on every rank.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::drive::{self, Known};
use super::flat::{F, Flat};
use super::frontier::least_bytes;
use super::{Effort, Flow, Found, Infeasible, Progress, Scope, search};
use crate::bounds::lower_bound;
use crate::problem::Problem;
use crate::timeline::schedule_peak_bytes;
use crate::units::{Bytes, Nanos};

/// How often the share of one chunk is halved.
const HALVES: u32 = 7;

/// A limit at which a range of limits splits, and the range's ends; the upper one is none where it is the root's.
#[derive(Clone, Copy, Debug)]
struct Node {
    below: Option<Bytes>,
    above: Option<Bytes>,
    /// How often the effort is halved: once for each halving of a chunk.
    halved: u32,
}

pub(super) struct Ladder<'a> {
    problem: &'a Problem,
    effort: Effort,
    observer: &'a mut dyn FnMut(Progress) -> Flow,
    stopped: bool,
    /// The published schedules, which do not look at limits.
    published: &'a [Known],
    /// By rank: how much more than the least it may hold; none where it has no limit.
    more: Vec<Option<Bytes>>,
    /// The least limit of a rank that was asked for.
    asked: Bytes,
    nodes: BTreeMap<Bytes, Node>,
    values: BTreeMap<Bytes, Found>,
    /// What is known at the limit asked for, and its bound.
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
    let limits: Vec<Option<Bytes>> = (0..problem.ranks()).map(|rank| problem.limit_bytes(rank)).collect();
    let Some(asked) = limits.iter().flatten().copied().min() else {
        return search(problem, effort, Scope::default(), observer);
    };
    let published = drive::known(problem);
    let scope = Scope { published_only: true, known: Some(&published), ..Scope::default() };
    let first = search(problem, Effort(0), scope, &mut |_| Flow::Continue)?;
    if first.cost_ns == first.bound_ns {
        // It holds as well with more memory, so nothing has to be held against what other limits lead to.
        observer(Progress { ops: first.ops, cost_ns: first.cost_ns, bound_ns: first.bound_ns });
        return Ok(first);
    }
    let mut ladder = Ladder {
        published: &published,
        more: limits.iter().map(|limit| limit.map(|limit| limit - asked)).collect(),
        asked,
        nodes: BTreeMap::new(),
        values: BTreeMap::new(),
        known: None,
        bound_ns: lower_bound(problem).value_ns,
        spent: 0,
        stopped: false,
        problem,
        effort,
        observer,
    };
    ladder.answer()
}

impl<'a> Ladder<'a> {
    fn answer(&mut self) -> Result<Found, Infeasible> {
        // Something to show at once, and to answer with when stopped.
        let first = search(self.problem, Effort(0), Scope { quick: true, ..self.scope() }, &mut |_| Flow::Continue)?;
        self.report(&first);
        self.known = Some(Found { bound_ns: self.bound_ns, ..first });
        if self.stopped {
            return self.end(None);
        }
        let free = self.problem.with_limits(self.more.iter().map(|_| None).collect());
        let Ok(top) = self.search(&free, self.effort, self.scope()) else { return self.end(None) };
        let held = |rank: usize| {
            let peak = schedule_peak_bytes(&free, &top.schedule, rank);
            self.more[rank].map(|more| peak.saturating_sub(more))
        };
        let most = (0..free.ranks()).filter_map(held).max().unwrap_or(0);
        if self.asked >= most || self.stopped {
            return self.end((self.asked >= most).then_some(top));
        }
        let at = self.descend(most);
        let mut found = self.value(at, &top);
        // Published schedules do not look at the limit, so whatever holds them here holds them with more memory too. They
        // may need just the bytes that were rounded off.
        let scope = Scope { published_only: true, ..self.scope() };
        let published = search(self.problem, Effort(0), scope, &mut |_| Flow::Continue)?;
        if found.as_ref().is_none_or(|found| published.cost_ns < found.cost_ns) {
            found = Some(published);
        }
        self.end(found)
    }

    /// The answer is `found`, or what is known so far where the search was stopped.
    fn end(&mut self, found: Option<Found>) -> Result<Found, Infeasible> {
        let known = self.known.take();
        let best = match (found, known) {
            (Some(found), Some(known)) if self.stopped && known.cost_ns < found.cost_ns => known,
            (Some(found), _) => found,
            (None, Some(known)) => known,
            (None, None) => return search(self.problem, Effort(0), Scope::default(), &mut |_| Flow::Continue),
        };
        Ok(Found { bound_ns: self.bound_ns, ops: self.spent, ..best })
    }

    fn report(&mut self, found: &Found) {
        let progress = Progress { ops: self.spent, cost_ns: found.cost_ns, bound_ns: self.bound_ns };
        self.stopped |= (self.observer)(progress) == Flow::Stop;
    }

    /// Goes down the tree to the highest limit that is not above the one asked for, noting the ranges on the way.
    fn descend(&mut self, most: Bytes) -> Bytes {
        let flat = Flat::new(self.problem);
        let limited = || (0..flat.ranks).filter_map(|rank| self.more[rank].map(|more| (rank, more)));
        let least = limited().map(|(rank, more)| least_bytes(self.problem, &flat, rank).saturating_sub(more));
        let least = least.max().unwrap_or(0);
        let activations = |rank: usize| -> i64 {
            flat.lanes_of[rank].iter().map(|lane| flat.lanes[*lane].net(F)).sum::<i64>() / flat.chains.len() as i64
        };
        let chunk = flat.lanes.iter().map(|lane| lane.net(F)).max().unwrap_or(0).max(0) as u64;
        let microbatch = limited().map(|(rank, _)| activations(rank)).max().unwrap_or(0).max(0) as u64;
        let static_bytes = |(rank, more): (usize, Bytes)| self.problem.static_bytes(rank).saturating_sub(more);
        let base = limited().map(static_bytes).max().unwrap_or(0);
        let full = u128::from(microbatch) * flat.ranks as u128;
        let mut units = alloc::vec![u64::try_from(full / 4).unwrap_or(u64::MAX), microbatch, chunk];
        units.extend((1..=HALVES).map(|half| chunk >> half));
        let (mut below, mut above) = (least, most);
        self.nodes.insert(least, Node { below: None, above: None, halved: 0 });
        // The unit only gets finer on the way down.
        let mut unit = 0;
        while below < self.asked && unit < units.len() {
            let Some(at) = middle(base, units[unit], below, above) else {
                unit += 1;
                continue;
            };
            let halved = (unit as u32).saturating_sub(2);
            let node = Node { below: Some(below), above: (above < most).then_some(above), halved };
            self.nodes.insert(at, node);
            if at <= self.asked {
                below = at;
            } else {
                above = at;
            }
        }
        below
    }

    /// The value of a limit in the tree: none where the search was stopped before there was any.
    fn value(&mut self, at: Bytes, top: &Found) -> Option<Found> {
        if let Some(found) = self.values.get(&at) {
            return Some(found.clone());
        }
        let Node { below, above, halved } = *self.nodes.get(&at)?;
        let floor = match above {
            Some(above) => self.value(above, top)?.cost_ns,
            None => top.cost_ns,
        };
        let problem = self.at(at);
        let effort = Effort(self.effort.0 >> halved);
        // Within a chunk the effort is small, and starts from what the lower end has.
        let near = match below {
            Some(below) if halved > 0 => Some(self.value(below, top)?),
            _ => None,
        };
        let given = near.as_ref().map(|near| &near.schedule);
        let mut found = if self.stopped {
            near
        } else {
            self.search(&problem, effort, Scope { given, floor, halved, ..self.scope() }).ok()
        };
        if let Some(below) = below
            && halved == 0
            && !self.stopped
            && found.as_ref().is_none_or(|found| found.cost_ns > floor)
            && found.as_ref().is_none_or(|found| lower_bound(&self.at(below)).value_ns < found.cost_ns)
        {
            let lower = self.value(below, top)?;
            if found.as_ref().is_none_or(|found| lower.cost_ns < found.cost_ns) {
                found = Some(lower);
            }
        }
        let found = found?;
        if !self.stopped {
            self.values.insert(at, found.clone());
        }
        Some(found)
    }

    fn scope(&self) -> Scope<'a> {
        Scope { known: Some(self.published), ..Scope::default() }
    }

    /// The problem with another limit.
    fn at(&self, limit: Bytes) -> Problem {
        self.problem.with_limits(self.more.iter().map(|more| more.map(|more| limit + more)).collect())
    }

    /// A search at some limit. What it finds counts as progress where it is valid at the limit asked for.
    fn search(&mut self, problem: &Problem, effort: Effort, scope: Scope) -> Result<Found, Infeasible> {
        let within = (0..problem.ranks()).all(|rank| match self.problem.limit_bytes(rank) {
            Some(asked) => problem.limit_bytes(rank).is_some_and(|limit| limit <= asked),
            None => true,
        });
        let (spent, bound_ns) = (self.spent, self.bound_ns);
        let before = self.known.as_ref().map_or(Nanos::MAX, |known| known.cost_ns);
        let (observer, stopped) = (&mut *self.observer, &mut self.stopped);
        let found = search(problem, effort, scope, &mut |progress| {
            let cost_ns = if within { before.min(progress.cost_ns) } else { before };
            let flow = observer(Progress { ops: spent + progress.ops, cost_ns, bound_ns });
            *stopped |= flow == Flow::Stop;
            flow
        })?;
        self.spent += found.ops;
        if within && found.cost_ns < before {
            self.known = Some(found.clone());
        }
        Ok(found)
    }
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
