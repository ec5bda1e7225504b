//! Time against memory, as the worker finds it: one search at a time.

use std::collections::BTreeMap;

use pipeplan_core::estimate::step::StepEpilogue;
use pipeplan_core::plan::planner::{self, Answer};
use pipeplan_core::problem::{Problem, Schedule};
use pipeplan_core::search::{Effort, Frontier};
use pipeplan_core::simulate::simulate;
use pipeplan_core::spec::{Spec, Work};

use crate::protocol::frontier::insert;
use crate::protocol::same_spec::without_limit;
use crate::protocol::{ChartNews, ChartPoint, from_core};
use crate::text;

/// The effort of one point: few enough milliseconds that a newer question hardly waits.
const EFFORT: Effort = Effort(300_000);

/// The additional cost of a search for each op, at any effort.
const EFFORT_AN_OP: u64 = 600;

/// The effort of a whole chart: some seconds of a core.
const WHOLE_EFFORT: u64 = 100_000_000;

/// Points of each placement: fewer show little, more cannot be distinguished.
const POINTS: core::ops::RangeInclusive<u64> = 6..=20;

/// With more ops a single point takes too long. Then only known schedules are points.
const MOST_OPS: u64 = 60_000;

/// The chart of one spec, for any memory limit.
pub struct FrontierSearch {
    /// The spec without its limit: another one does not change the chart.
    free: Spec,
    /// The Pareto curve, from the least memory to the least time.
    curve: Vec<ChartPoint>,
    /// The schedules of its points, by bytes and cost. The search for the best within a limit can miss one.
    orders: BTreeMap<(u64, u64), Schedule>,
    /// Placements that are still searched; none before the first search.
    open: Option<Vec<Open>>,
    /// The index of the next placement.
    turn: usize,
    finished: bool,
    news: ChartNews,
}

/// One way to place stages.
struct Open {
    problem: Problem,
    epilogue: Option<StepEpilogue>,
    points: Frontier,
}

impl FrontierSearch {
    /// A chart without points.
    pub fn new(spec: &Spec) -> FrontierSearch {
        let news = ChartNews { started: true, ..ChartNews::default() };
        let (free, curve, orders) = (without_limit(spec), Vec::new(), BTreeMap::new());
        FrontierSearch { free, curve, orders, open: None, turn: 0, finished: false, news }
    }

    /// Whether this is also the chart of `spec`.
    pub fn is_of(&self, spec: &Spec) -> bool {
        self.free == without_limit(spec)
    }

    /// Whether any search has been made.
    pub fn has_begun(&self) -> bool {
        self.open.is_some()
    }

    /// Whether nothing is left to search.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Adds a known schedule.
    pub fn offer(&mut self, answer: &Answer) {
        let by = if answer.name == pipeplan_core::schedule::BEST {
            searched(&answer.case.problem)
        } else {
            text::schedule_title(&answer.name)
        };
        let judged_ns = answer.judged_ns();
        self.add(from_core::chart_point(&answer.case.problem, &answer.timeline, judged_ns, by), &answer.schedule);
    }

    fn add(&mut self, point: ChartPoint, order: &Schedule) {
        if !insert(&mut self.curve, point.clone()) {
            return;
        }
        // A larger schedule is a published one, and the best is never slower than that. Documents belong to a schedule.
        if order.op_count() as u64 <= MOST_OPS && !self.packs() {
            self.orders.insert((point.bytes, point.judged_ns), order.clone());
        }
        let curve = &self.curve;
        self.orders.retain(|held, _| curve.iter().any(|point| (point.bytes, point.judged_ns) == *held));
        self.news.points.push(point);
    }

    /// The fastest schedule of the curve within `bytes`.
    pub fn order_within(&self, bytes: u64) -> Option<&Schedule> {
        self.orders.range(..=(bytes, u64::MAX)).next_back().map(|(_, order)| order)
    }

    /// Whether data parallel replicas have different documents: then only known schedules are points, since another one has
    /// documents in other places.
    fn packs(&self) -> bool {
        matches!(&self.free.work, Work::Model(work) if work.batch.documents.differ_by_replica())
    }

    /// Searches at the next limit, for each placement in turn, so that the chart grows from the left.
    pub fn step(&mut self) {
        let Some(open) = &mut self.open else { return self.begin() };
        if open.is_empty() {
            self.finished = true;
            self.news.finished = true;
            return;
        }
        self.turn %= open.len();
        let Open { problem, epilogue, points } = &mut open[self.turn];
        match points.next() {
            Some(point) => {
                self.turn += 1;
                if let Ok(timeline) = simulate(problem, &point.schedule) {
                    let order = &point.schedule;
                    let judged_ns = planner::judged_ns(&self.free, problem, epilogue.as_ref(), order, &timeline);
                    let found = from_core::chart_point(problem, &timeline, judged_ns, searched(problem));
                    self.add(found, order);
                }
            }
            None => {
                open.remove(self.turn);
            }
        }
    }

    fn begin(&mut self) {
        let cases = planner::open_cases(&self.free).unwrap_or_default();
        let ops = |problem: &Problem| 3 * problem.stage_count() as u64 * problem.microbatches() as u64;
        let most_ops = cases.iter().map(|case| ops(&case.problem)).max().unwrap_or(0);
        let an_effort = EFFORT.0 + EFFORT_AN_OP * most_ops;
        let points = WHOLE_EFFORT / cases.len().max(1) as u64 / an_effort;
        let points = points.clamp(*POINTS.start(), *POINTS.end()) as usize;
        let open: Vec<Open> = cases
            .into_iter()
            .map(|case| Open {
                points: Frontier::new(&case.problem, points, EFFORT),
                epilogue: case.derived.map(|derived| derived.epilogue),
                problem: case.problem,
            })
            .collect();
        self.news.least_bytes = open.iter().map(|open| open.points.least_bytes()).min();
        self.open = Some(if most_ops > MOST_OPS || self.packs() { Vec::new() } else { open });
    }

    /// The news since the last call.
    pub fn take_news(&mut self) -> Option<ChartNews> {
        let news = core::mem::take(&mut self.news);
        (news != ChartNews::default()).then_some(news)
    }
}

/// The display name of a schedule without a name.
fn searched(problem: &Problem) -> String {
    format!("found by search, {}", text::placement(problem))
}
