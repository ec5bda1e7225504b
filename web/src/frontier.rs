//! Time against memory, as the worker finds it: one search at a time.

use std::collections::BTreeMap;

use pipeplan_core::planner::{self, Answer};
use pipeplan_core::problem::Problem;
use pipeplan_core::schedule::Schedule;
use pipeplan_core::search::{Effort, Frontier};
use pipeplan_core::simulate::simulate;
use pipeplan_core::spec::{Messages, Spec, Work};
use pipeplan_core::step::Ends;

use crate::draw::chart;
use crate::message::{ChartNews, ChartPoint};
use crate::wire;

/// The effort of one point: few enough milliseconds that a newer question hardly waits.
const EFFORT: Effort = Effort(300_000);
/// What a search needs besides for each op, however little effort it may take.
const EFFORT_AN_OP: u64 = 600;
/// The effort of a whole chart: some seconds of a core.
const WHOLE_EFFORT: u64 = 100_000_000;
/// Points of each placement: fewer tell little, more cannot be told apart.
const POINTS: core::ops::RangeInclusive<u64> = 6..=20;
/// Beyond so many ops a single point takes too long; then only known schedules are points.
const MOST_OPS: u64 = 60_000;

/// What an order of the chart is called where it is shown as a plan.
pub const FROM_CHART: &str = "From the chart";

/// The chart of one spec, whatever its limit.
pub struct Chart {
    /// The spec without its limit: another one does not change the chart.
    free: Work,
    /// Buffers of messages take memory, too.
    messages: Messages,
    /// The best known ones, from the least memory to the most time saved.
    curve: Vec<ChartPoint>,
    /// The orders behind its points, by what they hold and cost: the search for the best within a limit may miss one.
    orders: BTreeMap<(u64, u64), Schedule>,
    /// Placements that are still searched; none before the first search.
    open: Option<Vec<Open>>,
    /// Whose turn it is.
    turn: usize,
    finished: bool,
    news: ChartNews,
}

/// One way to place stages.
struct Open {
    problem: Problem,
    ends: Option<Ends>,
    points: Frontier,
}

impl Chart {
    /// A chart without points.
    pub fn new(spec: &Spec) -> Chart {
        let news = ChartNews { started: true, ..ChartNews::default() };
        let (free, messages) = (without_limit(&spec.work), spec.messages);
        let (curve, orders) = (Vec::new(), BTreeMap::new());
        Chart { free, messages, curve, orders, open: None, turn: 0, finished: false, news }
    }

    /// Whether this is the chart of `spec`, too.
    pub fn is_of(&self, spec: &Spec) -> bool {
        self.free == without_limit(&spec.work) && self.messages == spec.messages
    }

    /// Whether any search has been made.
    pub fn has_begun(&self) -> bool {
        self.open.is_some()
    }

    /// Whether nothing is left to search.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes a schedule that is known anyway.
    pub fn offer(&mut self, answer: &Answer) {
        let by =
            if answer.name == planner::BEST { searched(&answer.case.problem) } else { wire::title(&answer.name) };
        let ends = answer.case.derived.as_ref().map(|derived| &derived.ends);
        self.add(wire::chart_point(&answer.case.problem, ends, &answer.timeline, by), &answer.schedule);
    }

    fn add(&mut self, point: ChartPoint, order: &Schedule) {
        if !chart::insert(&mut self.curve, point.clone()) {
            return;
        }
        // What is larger is a published schedule, which the best is never slower than.
        if order.op_count() as u64 <= MOST_OPS {
            self.orders.insert((point.bytes, point.cost_ns), order.clone());
        }
        let curve = &self.curve;
        self.orders.retain(|held, _| curve.iter().any(|point| (point.bytes, point.cost_ns) == *held));
        self.news.points.push(point);
    }

    /// The fastest order of the curve that holds at most `bytes`.
    pub fn order_within(&self, bytes: u64) -> Option<&Schedule> {
        self.orders.range(..=(bytes, u64::MAX)).next_back().map(|(_, order)| order)
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
        let Open { problem, ends, points } = &mut open[self.turn];
        match points.next() {
            Some(point) => {
                self.turn += 1;
                if let Ok(timeline) = simulate(problem, &point.schedule) {
                    let found = wire::chart_point(problem, ends.as_ref(), &timeline, searched(problem));
                    self.add(found, &point.schedule);
                }
            }
            None => {
                open.remove(self.turn);
            }
        }
    }

    fn begin(&mut self) {
        let spec = Spec {
            name: String::new(),
            work: self.free.clone(),
            schedule: planner::BEST.to_owned(),
            messages: self.messages,
            jitter_permille: 0,
        };
        let cases = planner::open_cases(&spec).unwrap_or_default();
        let ops = |problem: &Problem| 3 * problem.stage_count() as u64 * problem.microbatches() as u64;
        let most_ops = cases.iter().map(|case| ops(&case.problem)).max().unwrap_or(0);
        let an_effort = EFFORT.0 + EFFORT_AN_OP * most_ops;
        let points = WHOLE_EFFORT / cases.len().max(1) as u64 / an_effort;
        let points = points.clamp(*POINTS.start(), *POINTS.end()) as usize;
        let open: Vec<Open> = cases
            .into_iter()
            .map(|case| Open {
                points: Frontier::new(&case.problem, points, EFFORT),
                ends: case.derived.map(|derived| derived.ends),
                problem: case.problem,
            })
            .collect();
        self.news.least_bytes = open.iter().map(|open| open.points.least_bytes()).min();
        self.open = Some(if most_ops > MOST_OPS { Vec::new() } else { open });
    }

    /// What has become known since the last call.
    pub fn take_news(&mut self) -> Option<ChartNews> {
        let news = core::mem::take(&mut self.news);
        (news != ChartNews::default()).then_some(news)
    }
}

/// What a person calls a schedule without a name.
fn searched(problem: &Problem) -> String {
    format!("found by search, {}", wire::placement(problem))
}

fn without_limit(work: &Work) -> Work {
    let mut work = work.clone();
    match &mut work {
        Work::Model(model) => model.limit_bytes = None,
        Work::Typed(statement) => statement.limit_bytes = vec![None],
    }
    work
}
