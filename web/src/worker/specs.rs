//! Specs, orders and refusals that several answers need.

use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner::{self, Answer, Case, PlanError};
use pipeplan_core::problem::copies::HostCopy;
use pipeplan_core::problem::{Problem, Schedule, Statement};
use pipeplan_core::schedule;
use pipeplan_core::spec::{Spec, Work};

use crate::form::{fault_of, with_labels};
use crate::protocol::{FieldFault, Order, Response, from_core};
use crate::text;

pub(super) fn read_spec(text: &str) -> Result<Spec, Vec<FieldFault>> {
    Spec::read(text).map_err(|error| match error {
        pipeplan_core::spec::SpecError::Faults(faults) => from_core::faults(&faults),
        other => vec![whole_fault(other.to_string())],
    })
}

/// Reads the schedule that the page sent; none if it is not one.
pub(super) fn read_order(order: &Order) -> Option<(Problem, Schedule)> {
    let statement = Statement::read(&serde_json::from_str(&order.problem).ok()?).ok()?;
    let problem = statement.problem(statement.placements().first()?.clone()).ok()?;
    let copies = |row: &Vec<String>| row.iter().map(|copy| copy.parse().ok()).collect::<Option<Vec<HostCopy>>>();
    let copies = order.copies.iter().map(copies).collect::<Option<_>>()?;
    let schedule = Schedule { pairs: order.pairs.clone(), copies, ..Schedule::from_text_rows(&order.rows).ok()? };
    Some((problem, schedule))
}

pub(super) fn solve(spec: &Spec, name: &str) -> Result<Answer, PlanError> {
    let published = schedule::find(name).ok_or_else(|| PlanError::UnknownSchedule { name: name.to_owned() })?;
    // The name includes the group size, which the name of the published schedule does not.
    planner::answer(spec, &published)
        .map(|answer| Answer { name: name.to_owned(), ..answer })
        .map_err(|absent| PlanError::Absent { schedule: text::schedule_title(name), reason: absent.reason })
}

/// The case of `spec` that has the problem of `plan`, if there is one.
pub(super) fn case_of(plan: &Plan, spec: &Spec) -> Option<Case> {
    planner::open_cases(spec).unwrap_or_default().into_iter().find(|case| case.problem == plan.problem)
}

/// Why `spec` has no plan, with the labels of the form.
pub(super) fn no_plan(spec: &Spec, reason: &str) -> String {
    match &spec.work {
        Work::Model(work) => with_labels(&text::within_device(reason, work.device.memory_bytes)),
        Work::Typed(_) => with_labels(reason),
    }
}

/// The first reason and its fault, if all reasons name the same field. The numbers differ by schedule.
pub(super) fn one_fault(reasons: &[(String, String)]) -> Option<(&str, FieldFault)> {
    // Schedules of slices are absent for another reason, where sequences are whole.
    let is_of_slices = |name: &str| schedule::find(name).is_some_and(|published| published.is_of_slices());
    let mut reasons = reasons.iter().filter(|(name, _)| !is_of_slices(name)).map(|(_, reason)| reason.as_str());
    let fault = |reason: &str| fault_of(reason).map(|fault| FieldFault::from(&fault));
    let reason = reasons.next()?;
    let first = fault(reason)?;
    reasons.all(|other| fault(other).is_some_and(|fault| fault.field == first.field)).then_some((reason, first))
}

pub(super) fn unreadable(what: &str, reason: String) -> Response {
    Response::Unreadable { what: what.to_owned(), faults: vec![whole_fault(reason)] }
}

/// A fault without a field: only a sentence.
pub(super) fn whole_fault(sentence: String) -> FieldFault {
    FieldFault { field: String::new(), found: sentence, accepted: String::new() }
}
