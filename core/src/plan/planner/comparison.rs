//! Every published schedule and `best` for one spec, side by side.

use super::answer::judge;
use super::order;
use super::packing;
use super::{Answer, Named, PlanError, best_with, open_cases, published_answers};
use crate::base::units::{Bytes, Nanos};
use crate::bounds;
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::schedule::BEST;
use crate::search::{Effort, Flow, Progress, order_microbatches};
use crate::spec::Spec;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::Serialize;

/// One line of a comparison. The fields that do not apply to an absent schedule are null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The schedule's name, or `best`.
    pub schedule: String,
    /// Whether there is a valid schedule.
    pub status: Status,
    /// Why there is none.
    pub reason: Option<String>,
    /// End of the last op minus start of the first.
    pub makespan_ns: Option<Nanos>,
    /// The largest span of a rank.
    pub longest_span_ns: Option<Nanos>,
    /// Idle share under the problem's objective.
    pub bubble_ratio: Option<f64>,
    /// Most bytes held at once, by rank, static bytes included.
    pub peak_bytes: Option<Vec<Bytes>>,
    /// The placement of the stages that the schedule runs: `linear`, `looped`, `v`, `wave`, `two-way` or `list`.
    pub placement: Option<&'static str>,
    /// No valid schedule on this row's placement costs less.
    pub bound_ns: Option<Nanos>,
    /// No valid schedule costs less on any placement that was open to the answer: those that the spec leaves open
    /// for `best`, its own for a published schedule.
    pub bound_of_all_ns: Option<Nanos>,
    /// Cost over bound, minus 1: 0.05 is at most 5 % from the best possible.
    pub gap: Option<f64>,
    /// With the jitter of the spec: the median cost of a step.
    pub typical_ns: Option<Nanos>,
    /// With the jitter of the spec: the 95th percentile of the cost of a step.
    pub late_ns: Option<Nanos>,
    /// The cost with communication: ranks wait for their transfers, placed and carried as the spec says
    /// ([`Messages`](crate::spec::Messages)); none where that could hang.
    pub carried_ns: Option<Nanos>,
    /// Where microbatches differ: the objective of the best sorted order of microbatches with the op lists of this
    /// schedule. The other figures are of the order as given; those of `best`, of the order that it chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sorted_ns: Option<Nanos>,
    /// Where the planner packs documents: the objective with microbatches assigned to data parallel replicas by longest
    /// processing time first, then sorted. The other figures are of the packing as given, of the slowest replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_first_ns: Option<Nanos>,
    /// Where microbatches differ: the objective of the best order found, see [`order_microbatches`]; where the planner packs
    /// documents, of the best packing found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordered_ns: Option<Nanos>,
    /// The whole step with communication, with gradient sync and optimizer; for a model only.
    pub step_ns: Option<Nanos>,
    /// Tokens a second of all copies in such steps; of a model only.
    pub tokens_per_s: Option<f64>,
    /// Model FLOPs utilisation in such steps; of a model only.
    pub mfu: Option<f64>,
}

/// Whether a row has a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// There is one and it is valid.
    Ok,
    /// There is none; the row says why.
    Absent,
}

/// Every published schedule and `best`, side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The objective of `gap` and `bubble_ratio`, which judges `best`; for a model with the step epilogue.
    pub objective: &'static str,
    /// One row for each published schedule, one for each custom schedule of the caller, then `best`.
    pub rows: Vec<Row>,
}

/// Every published schedule and the best, side by side.
pub fn compare(spec: &Spec) -> Comparison {
    compare_with(spec, Vec::new(), Effort::default(), &mut |_| Flow::Continue)
}

/// As [`compare`], with custom schedules under their names, the effort of the search for `best`, which is never worse
/// than any of them, and an observer that may stop it.
pub fn compare_with(
    spec: &Spec,
    orders: Vec<(String, Schedule)>,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Comparison {
    let mut bounds = Bounds::default();
    if let Some(step) = packing::Step::of(spec) {
        let mut rows = step.rows(&mut bounds, effort, observer);
        let best = rows.pop();
        for (name, order) in orders {
            rows.push(match order::answer_order(spec, &name, order) {
                Ok(answer) => row(&name, spec, &answer, &mut bounds),
                Err(PlanError::Absent { reason, .. }) => absent_row(&name, reason),
                Err(error) => absent_row(&name, error.to_string()),
            });
        }
        rows.extend(best);
        return Comparison { objective: spec.objective().name(), rows };
    }
    let mut answers = published_answers(spec);
    let mut rows: Vec<Row> = answers
        .iter()
        .map(|(name, answer)| match answer {
            Ok(answer) => row(name, spec, answer, &mut bounds),
            Err(absent) => absent_row(name, absent.reason.clone()),
        })
        .collect();
    let mut stopped = false;
    let mut watched = |progress| {
        let flow = observer(progress);
        stopped |= flow == Flow::Stop;
        flow
    };
    let reordered = reordered(spec, &answers, &mut rows, Effort(effort.0 / ORDERING), &mut watched);
    answers.extend(reordered);
    for (name, order) in orders {
        match order::answer_order(spec, &name, order) {
            Ok(answer) => {
                rows.push(row(&name, spec, &answer, &mut bounds));
                answers.push(("", Ok(answer)));
            }
            Err(PlanError::Absent { reason, .. }) => rows.push(absent_row(&name, reason)),
            Err(error) => rows.push(absent_row(&name, error.to_string())),
        }
    }
    rows.push(
        match best_with(spec, answers, effort, &mut |progress| if stopped { Flow::Stop } else { observer(progress) })
        {
            Ok(answer) => {
                let of_all =
                    open_cases(spec).ok().and_then(|open| open.iter().map(|case| bounds.of(&case.problem)).min());
                let best = row(BEST, spec, &answer, &mut bounds);
                // A published schedule may win on a placement that the search does not look at.
                Row { bound_of_all_ns: of_all.min(best.bound_ns).or(best.bound_ns), ..best }
            }
            // Each published schedule has its reason in a separate row.
            Err(PlanError::NoSchedule { nearest: Some(infeasible), .. }) => absent_row(BEST, infeasible.to_string()),
            Err(error) => absent_row(BEST, error.to_string()),
        },
    );
    Comparison { objective: spec.objective().name(), rows }
}

/// The share of the effort that each schedule's order of microbatches takes.
pub(super) const ORDERING: u64 = 8;

/// Where microbatches differ, the answers with the best order found for each, and its figures in `rows`.
fn reordered(
    spec: &Spec,
    answers: &[Named],
    rows: &mut [Row],
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Vec<Named> {
    let mut found = Vec::new();
    for ((_, answer), row) in answers.iter().zip(rows) {
        let Ok(answer) = answer else { continue };
        let problem = &answer.case.problem;
        if !problem.differs() {
            continue;
        }
        let Some(ordered) = order_microbatches(problem, &answer.schedule, effort, observer) else { continue };
        row.sorted_ns = ordered.sorted_ns;
        row.ordered_ns = Some(ordered.cost_ns);
        found.push(("", judge(spec, answer.case.clone(), BEST, ordered.schedule)));
    }
    found
}

/// Bounds of the problems seen so far: many schedules share a problem, and to bound a problem of millions of ops takes
/// longer than to simulate it.
#[derive(Default)]
pub(super) struct Bounds {
    known: Vec<(Problem, Nanos)>,
}

impl Bounds {
    fn of(&mut self, problem: &Problem) -> Nanos {
        if let Some((_, bound)) = self.known.iter().find(|(known, _)| known == problem) {
            return *bound;
        }
        let bound = bounds::lower_bound(problem).value_ns;
        self.known.push((problem.clone(), bound));
        bound
    }
}

pub(super) fn row(name: &str, spec: &Spec, answer: &Answer, bounds: &mut Bounds) -> Row {
    let step = answer.step(spec);
    let problem = &answer.case.problem;
    let timeline = &answer.timeline;
    let bound = bounds.of(problem);
    Row {
        schedule: name.to_string(),
        status: Status::Ok,
        reason: None,
        makespan_ns: Some(timeline.makespan_ns()),
        longest_span_ns: Some(timeline.longest_span_ns()),
        bubble_ratio: Some(timeline.bubble_ratio(problem.objective())),
        peak_bytes: Some((0..problem.ranks()).map(|rank| timeline.peak_bytes(problem, rank)).collect()),
        placement: Some(problem.placement().name().unwrap_or("list")),
        bound_ns: Some(bound),
        bound_of_all_ns: Some(bound),
        gap: gap(answer.cost_ns(), bound),
        typical_ns: answer.outcomes.map(|outcomes| outcomes.typical_ns),
        late_ns: answer.outcomes.map(|outcomes| outcomes.late_ns),
        carried_ns: answer.carried.map(|carried| carried.cost_ns),
        sorted_ns: None,
        longest_first_ns: None,
        ordered_ns: None,
        step_ns: step.map(|step| step.step_ns),
        tokens_per_s: step.map(|step| step.tokens_per_s),
        mfu: step.map(|step| step.mfu),
    }
}

/// `cost / bound − 1`; none where the bound is 0.
pub fn gap(cost_ns: Nanos, bound_ns: Nanos) -> Option<f64> {
    match bound_ns {
        _ if cost_ns == bound_ns => Some(0.0),
        0 => None,
        _ => Some(cost_ns as f64 / bound_ns as f64 - 1.0),
    }
}

pub(super) fn absent_row(name: &str, reason: String) -> Row {
    Row {
        schedule: name.to_string(),
        status: Status::Absent,
        reason: Some(reason),
        makespan_ns: None,
        longest_span_ns: None,
        bubble_ratio: None,
        peak_bytes: None,
        placement: None,
        bound_ns: None,
        bound_of_all_ns: None,
        gap: None,
        typical_ns: None,
        late_ns: None,
        carried_ns: None,
        sorted_ns: None,
        longest_first_ns: None,
        ordered_ns: None,
        step_ns: None,
        tokens_per_s: None,
        mfu: None,
    }
}
