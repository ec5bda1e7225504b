//! The frontier of step time against memory: what each byte is worth.

use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{Flat, least_bytes};
use super::fused_backward::{self, Variant};
use super::host_copies;
use super::{Effort, Flow, Found, Infeasible, Scope, better, search};
use crate::base::units::{Bytes, Nanos};
use crate::bounds::{least_memory, lower_bound};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::simulate::timeline::schedule_peak_bytes;

/// The best schedule found within a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The memory of every rank, static bytes included.
    pub limit_bytes: Bytes,
    /// What the objective comes to.
    pub cost_ns: Nanos,
    /// The lower bound within this limit.
    pub bound_ns: Nanos,
    /// The schedule.
    pub schedule: Schedule,
}

/// The best schedules for `problem` at `points` limits (at least 2), the same for all ranks: from the least with
/// which any schedule exists to the most that the best schedule without a limit makes use of. The limits that
/// `problem` itself has are not looked at.
///
/// More memory never costs more: each limit starts from the answer of the one before, which is valid there
/// too. `effort` is for each point. `observer` gets every point as soon as it is known, in rising order, and
/// may stop; then the points so far are the answer.
pub fn frontier(
    problem: &Problem,
    points: usize,
    effort: Effort,
    observer: &mut dyn FnMut(&Point) -> Flow,
) -> Vec<Point> {
    let mut answer = Vec::with_capacity(points);
    for point in Frontier::new(problem, points, effort) {
        let flow = observer(&point);
        answer.push(point);
        if flow == Flow::Stop {
            break;
        }
    }
    answer
}

/// [`frontier()`] point by point, so that a page can respond between two.
#[derive(Clone, Debug)]
pub struct Frontier {
    problem: Problem,
    /// The problem with whole backwards, where they may be of use.
    variants: Vec<Variant>,
    effort: Effort,
    least: Bytes,
    /// The best schedule without a limit, and the most that it holds; none before the first point.
    all: Option<(Schedule, Bytes)>,
    steps: u64,
    next_step: u64,
    last: Option<Point>,
}

impl Frontier {
    /// The points of `problem`, of which none has been looked for yet.
    pub fn new(problem: &Problem, points: usize, effort: Effort) -> Frontier {
        let free = problem.with_limits(vec![None; problem.ranks()]);
        let variants = if free.differs() || free.offloads() { Vec::new() } else { fused_backward::variants(&free) };
        let least_of = |problem: &Problem| {
            if problem.differs() {
                return least_memory(problem).iter().map(|least| least.serial_bytes).max().unwrap_or(0);
            }
            if problem.offloads() {
                return host_copies::least_limit(problem);
            }
            let flat = Flat::new(problem);
            (0..problem.ranks()).map(|rank| least_bytes(problem, &flat, rank)).max().unwrap_or(0)
        };
        let least = variants.iter().map(|variant| least_of(&variant.problem)).fold(least_of(&free), Bytes::min);
        let steps = points.max(2) as u64 - 1;
        Frontier { problem: free, variants, effort, least, all: None, steps, next_step: 0, last: None }
    }

    /// The least limit with which any schedule exists.
    pub fn least_bytes(&self) -> Bytes {
        self.least
    }

    /// The best schedule at a limit, with backwards cut or whole.
    fn search(&self, limit_bytes: Option<Bytes>, given: Option<&Schedule>) -> Result<Found, Infeasible> {
        let limited = |problem: &Problem| problem.with_limits(vec![limit_bytes; problem.ranks()]);
        let run = |problem: &Problem| {
            let given = given.map(|given| (given, "less memory"));
            search(problem, self.effort, Scope { given, near: given.is_some(), ..Scope::default() }, &mut |_| {
                Flow::Continue
            })
        };
        let problem = limited(&self.problem);
        if problem.differs() || problem.offloads() {
            return super::best(&problem, self.effort, &mut |_| Flow::Continue);
        }
        let mut found = run(&problem);
        for variant in &self.variants {
            let bound_ns = lower_bound(&problem).value_ns;
            let original =
                |found: Found| Found { bound_ns, schedule: variant.original(found.schedule.clone()), ..found };
            found = better(found, run(&limited(&variant.problem)).map(original));
        }
        found
    }

    /// The point at `limit_bytes`, which is the last one where `all` is given.
    fn point(&self, limit_bytes: Bytes, all: Option<&Schedule>) -> Option<Point> {
        let given = all.or(self.last.as_ref().map(|point| &point.schedule));
        let found = self.search(Some(limit_bytes), given).ok()?;
        let Found { cost_ns, bound_ns, schedule, .. } = found;
        // The last point starts from the schedule without a limit; the one before may still be better.
        Some(match &self.last {
            Some(last) if last.cost_ns < cost_ns => Point { limit_bytes, bound_ns, ..last.clone() },
            _ => Point { limit_bytes, cost_ns, bound_ns, schedule },
        })
    }
}

impl Iterator for Frontier {
    type Item = Point;

    fn next(&mut self) -> Option<Point> {
        if self.all.is_none() {
            let all = self.search(None, None).ok()?.schedule;
            let peak = |rank: usize| schedule_peak_bytes(&self.problem, &all, rank);
            let most = (0..self.problem.ranks()).map(peak).max().unwrap_or(0).max(self.least);
            self.all = Some((all, most));
        }
        let (all, most) = self.all.as_ref()?;
        while self.next_step <= self.steps {
            let step = self.next_step;
            self.next_step += 1;
            let above = u128::from(most - self.least) * u128::from(step) / u128::from(self.steps);
            let limit_bytes = self.least + above as u64;
            if self.last.as_ref().is_some_and(|last| last.limit_bytes == limit_bytes) {
                continue;
            }
            if let Some(point) = self.point(limit_bytes, (step == self.steps).then_some(all)) {
                self.last = Some(point.clone());
                return Some(point);
            }
        }
        None
    }
}
