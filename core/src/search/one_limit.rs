//! One search at one limit: orders of single ops, then whole backwards and overlapped pairs.

use alloc::vec::Vec;
use core::cell::Cell;
use core::cmp::Reverse;

use super::flat_problem::Flat;
use super::makespan::Cost;
use super::portfolio::{Library, Search};
use super::{Effort, Flow, Found, Infeasible, Progress, fused_backward, overlapped_pairs};
use crate::base::units::Nanos;
use crate::bounds::lower_bound;
use crate::problem::{Problem, Schedule};
use crate::schedule::published;

/// What one search is asked for, in addition to its problem.
#[derive(Clone, Copy, Default)]
pub(super) struct Scope<'a> {
    /// A schedule to start from, if it is valid, and how it was found.
    pub given: Option<(&'a Schedule, &'static str)>,
    /// Whether its limit is so near that recipes have little to add.
    pub near: bool,
    /// Schedules that cost less are passed over.
    pub floor: Nanos,
    /// Set where one is found; the search then ends.
    pub below_floor: Option<&'a Cell<bool>>,
    /// Whether the first schedules are enough.
    pub quick: bool,
    /// Whether the published schedules are enough.
    pub published_only: bool,
    /// How often the effort for the size is halved.
    pub halved: u32,
    /// The lower bound, and the published schedules, where they are known.
    pub bound_ns: Option<Nanos>,
    pub known: Option<&'a Library>,
}

impl Scope<'_> {
    /// Takes a schedule that costs less than the best found, unless it is below the floor.
    fn keep(&self, found: &mut Found, schedule: Schedule, cost_ns: Nanos, origin: &'static str) {
        if cost_ns >= self.floor && cost_ns < found.cost_ns {
            *found = Found { schedule, cost_ns, origin, ..*found };
        }
    }

    /// Notes a cost below the floor.
    fn note(&self, cost_ns: Nanos) {
        if cost_ns < self.floor
            && let Some(noted) = self.below_floor
        {
            noted.set(true);
        }
    }

    /// Whether a better schedule could exist.
    fn may_gain(&self, found: &Found) -> bool {
        found.cost_ns > found.bound_ns.max(self.floor)
    }
}

/// One search, at one limit.
pub(super) fn search(
    problem: &Problem,
    effort: Effort,
    scope: Scope,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Found, Infeasible> {
    let may_mix = fused_backward::may_mix(problem);
    // Ops that run one by one have another bound, at which their search ends.
    let one_by_one = problem.pairs_gain().then(|| lower_bound(&problem.with_pairs_in_turn()).value_ns);
    let of_orders = Scope { bound_ns: one_by_one.or(scope.bound_ns), ..scope };
    let mut found = match search_orders(problem, effort, of_orders, observer) {
        // With less memory than split backwards need, some have to be whole.
        Err(why) if may_mix => {
            whole_orders(problem, scope).into_iter().min_by_key(|found| found.cost_ns).ok_or(why)?
        }
        found => found?,
    };
    if !problem.pairs_gain() && !may_mix {
        return Ok(found);
    }
    found.bound_ns = scope.bound_ns.unwrap_or_else(|| lower_bound(problem).value_ns);
    keep_given_and_published(problem, scope, may_mix, &mut found);
    if scope.quick || scope.published_only {
        return Ok(found);
    }
    if may_mix {
        search_whole_backwards(problem, effort, scope, &mut found);
        return Ok(found);
    }
    search_pairs(problem, effort, scope, &mut found, observer)?;
    Ok(found)
}

/// Looks at the given schedule and the published ones as they are: they have pairs and whole backwards already.
fn keep_given_and_published(problem: &Problem, scope: Scope, may_mix: bool, found: &mut Found) {
    // Where several limits are searched, the published schedules are looked at once, at the limit asked for.
    let again = !(may_mix && scope.known.is_some() && !scope.published_only);
    let published = published()
        .iter()
        .filter(|_| again)
        .filter_map(|published| Some((published.build(problem).ok()?, published.name)));
    for (schedule, origin) in scope.given.map(|(given, origin)| (given.clone(), origin)).into_iter().chain(published)
    {
        if problem.pairs_gain()
            && let Some((paired, cost_ns)) =
                overlapped_pairs::all_paired(problem, &schedule, scope.floor, found.cost_ns)
        {
            scope.keep(found, paired, cost_ns, "overlapped pairs");
        }
        if let Some(cost) = overlapped_pairs::cost(problem, &schedule) {
            scope.keep(found, schedule, cost.objective, origin);
        }
    }
}

/// Searches schedules of whole and split backwards.
fn search_whole_backwards(problem: &Problem, effort: Effort, scope: Scope, found: &mut Found) {
    if scope.may_gain(found)
        && let Some((schedule, cost_ns)) = fused_backward::mixed(problem, &found.schedule, scope.floor, found.cost_ns)
    {
        scope.keep(found, schedule, cost_ns, "mixed backwards");
    }
    let mut orders = alloc::vec![found.schedule.clone()];
    if scope.may_gain(found) {
        for whole in whole_orders(problem, scope) {
            found.ops += whole.ops;
            scope.keep(found, whole.schedule.clone(), whole.cost_ns, whole.origin);
            orders.push(whole.schedule);
        }
    }
    if scope.may_gain(found) {
        let below = found.cost_ns;
        let (ops, grown) = fused_backward::grown(problem, effort.0, below, |schedule, cost_ns| {
            scope.note(cost_ns);
            scope.keep(found, schedule, cost_ns, "beam search");
        });
        found.ops += ops;
        orders.extend(grown);
    }
    if scope.may_gain(found) {
        let below = found.cost_ns;
        let ops = fused_backward::improved(problem, &orders, effort.0 / 2, below, |schedule, cost_ns| {
            scope.note(cost_ns);
            scope.keep(found, schedule, cost_ns, "tabu search");
            if scope.may_gain(found) && cost_ns >= scope.floor { cost_ns } else { 0 }
        });
        found.ops += ops;
    }
}

/// Searches schedules whose forwards and backwards run as overlapped pairs.
fn search_pairs(
    problem: &Problem,
    effort: Effort,
    scope: Scope,
    found: &mut Found,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<(), Infeasible> {
    // Where every op takes as long as it does in a pair, more microbatches in flight may pay.
    let (before, cost_ns, bound_ns) = (found.ops, found.cost_ns, found.bound_ns);
    let of_hidden = Scope { halved: scope.halved, bound_ns: Some(bound_ns), ..Scope::default() };
    let hidden = search_orders(&problem.without_pairs(), effort, of_hidden, &mut |progress| {
        observer(Progress { ops: before + progress.ops, cost_ns, bound_ns })
    })?;
    for order in [found.schedule.clone(), hidden.schedule] {
        let order = Schedule::of(order.rows);
        if let Some((schedule, cost_ns)) =
            overlapped_pairs::paired(problem, &order, (scope.floor, found.cost_ns), scope.halved)
        {
            scope.keep(found, schedule, cost_ns, "overlapped pairs");
        }
    }
    found.ops += hidden.ops;
    Ok(())
}

/// The first orders with whole backwards: all, or those that hold less.
pub(super) fn whole_orders(problem: &Problem, scope: Scope) -> Vec<Found> {
    let bound_ns = scope.bound_ns.unwrap_or_else(|| lower_bound(problem).value_ns);
    let scope = Scope { floor: scope.floor, quick: true, bound_ns: Some(bound_ns), ..Scope::default() };
    let order = |variant: &fused_backward::Variant| {
        let found = search_orders(&variant.problem, Effort(0), scope, &mut |_| Flow::Continue).ok()?;
        Some(Found { schedule: variant.original(found.schedule.clone()), ..found })
    };
    fused_backward::variants(problem).iter().filter_map(order).collect()
}

/// One search for an order of ops that run one by one.
fn search_orders(
    problem: &Problem,
    effort: Effort,
    scope: Scope,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Found, Infeasible> {
    let flat = Flat::new(problem);
    // Of several ranks the one that lacks most is reported: with that much more memory the others fit too.
    let lacks = |rank: usize| (flat.least(rank) - flat.limit[rank], Reverse(rank));
    if let Some((lack, Reverse(rank))) = (0..flat.ranks).map(lacks).max()
        && lack > 0
    {
        let limit_bytes = problem.limit_bytes(rank).unwrap_or(0);
        return Err(Infeasible { rank, least_bytes: limit_bytes + lack as u64, limit_bytes });
    }
    let bound_ns = scope.bound_ns.unwrap_or_else(|| lower_bound(problem).value_ns);
    let mut search = Search::new(problem, bound_ns, effort.0, scope, observer);
    if let Some((schedule, origin)) = scope.given {
        search.start_from(schedule, origin);
    }
    match scope.known {
        Some(known) => search.run(problem, known, scope),
        None => search.run(problem, &Library::of(problem), scope),
    }
    let ops = search.all_ops();
    // The list scheduler always ends, so there is always an answer; `check` refuses an empty one.
    let (rows, cost, origin) = search.best.take().unwrap_or((Vec::new(), Cost::WORST, "none"));
    Ok(Found { schedule: search.flat().schedule(&rows), cost_ns: cost.objective, bound_ns, origin, ops })
}
