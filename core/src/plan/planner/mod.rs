//! The planner as the page and the command line use it: a spec in, a comparison or a plan out.
//!
//! One schedule may be planned on different problems: for a model, each schedule assigns layers to as many stages as it wants;
//! typed costs fix the stages. [`case()`] makes that choice in one place, and `best` searches over every problem that it leaves
//! open.

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::check::check_program;
use crate::estimate::fit::{self, Fitted};
use crate::graph::layout::Partition;
use crate::plan::judged::OpLists;
pub use crate::plan::judged::{WithCommunication, judged_ns};
use crate::plan::{PackingFigures, Plan, Prediction};
use crate::problem::Schedule;
use crate::problem::placement::Placement;
use crate::program::lower::{Lowering, lower_as};
use crate::schedule::{self, Absent, BEST, Published};
use crate::search::{Effort, Flow, Progress, order_microbatches};
use crate::spec::{Messages, Spec, Work};

mod answer;
mod error;

pub use answer::{Answer, answer};
pub use error::PlanError;

use answer::judge;

mod best;
mod order;

pub use best::Best;
pub use order::{answer_order, plan_order};

mod packing;
mod slowest;

use slowest::{replicas, slowest_first};

mod plan_search;
pub use plan_search::{Packed, PlanSearch};

mod comparison;
pub use comparison::{Comparison, Row, Status, compare, compare_with, gap};

mod case;
pub(crate) use case::derived_case;
pub use case::{Case, case};

/// The plan for `spec` with the schedule `name`, or with the best of all for [`BEST`].
///
/// # Errors
/// [`PlanError`] where no schedule has that name or none is valid.
pub fn plan(spec: &Spec, name: &str) -> Result<Plan, PlanError> {
    plan_with(spec, name, Effort::default(), &mut |_| Flow::Continue)
}

/// As [`plan`], with the effort of the search for `best` and an observer that may stop it. The best schedule until then
/// is the answer.
///
/// # Errors
/// As [`plan`].
pub fn plan_with(
    spec: &Spec,
    name: &str,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Plan, PlanError> {
    if let Some(step) = packing::Step::of(spec) {
        return step.plan(name, effort, observer);
    }
    let answer = if name == BEST {
        best_with(spec, published_answers(spec), effort, observer)?
    } else {
        let Some(published) = schedule::find(name) else {
            return Err(PlanError::UnknownSchedule { name: name.to_string() });
        };
        answer(spec, &published)
            .map(|answer| Answer { name: name.to_string(), ..answer })
            .map_err(|absent| PlanError::Absent { schedule: name.to_string(), reason: absent.reason })?
    };
    plan_of(spec, answer)
}

/// The best schedule for `spec`, with its problem.
///
/// # Errors
/// [`PlanError`] where none is valid.
pub fn best(spec: &Spec, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) -> Result<Answer, PlanError> {
    best_with(spec, published_answers(spec), effort, observer)
}

type Named = (&'static str, Result<Answer, Absent>);

fn published_answers(spec: &Spec) -> Vec<Named> {
    schedule::published().iter().map(|published| (published.name, answer(spec, published))).collect()
}

fn best_with(
    spec: &Spec,
    answers: Vec<Named>,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Answer, PlanError> {
    let mut best = Best::new(spec);
    for (name, answer) in answers {
        best.offer(name, answer);
    }
    while best.search_next(effort, observer)? {}
    best.finish()
}

/// Every problem that `spec` leaves open. Typed costs give one for each placement; a model gives one for each way in
/// which published schedules assign stages. Never empty.
///
/// # Errors
/// [`PlanError::Spec`] where no problem follows from the spec.
pub fn open_cases(spec: &Spec) -> Result<Vec<Case>, PlanError> {
    match &spec.work {
        Work::Typed(statement) => {
            let place = |placement| statement.problem(placement).map(Case::typed);
            statement
                .placements()
                .into_iter()
                .map(place)
                .collect::<Result<_, _>>()
                .map_err(|fault| PlanError::Spec(fault.into()))
        }
        Work::Model(work) => {
            let mut shapes: Vec<(Placement, usize)> = Vec::new();
            for published in schedule::published() {
                let shape = (published.shape)(work.chunks as usize);
                if !shapes.contains(&shape) {
                    shapes.push(shape);
                }
            }
            let mut first_faults = None;
            let mut cases = Vec::new();
            for (placement, chunks) in shapes {
                // Settings that the limit decides are those of the first schedule that fits; where none fits, all of
                // them save memory.
                let fits = work.layout.fits();
                let shaped = |published: &&Published| {
                    fits && (published.shape)(work.chunks as usize) == (placement.clone(), chunks)
                };
                let fitting =
                    schedule::published().iter().filter(shaped).find_map(|published| case(spec, published).ok());
                if let Some(case) = fitting {
                    let is_last_resort = case.fitted.as_ref().is_some_and(Fitted::is_last_resort);
                    cases.push(case);
                    // Orders that hold more at a time may save more time than the recomputation costs.
                    let full = fit::full(work);
                    if !is_last_resort && let Ok(case) = derived_case(spec, &full.applied_to(work), placement, chunks)
                    {
                        cases.push(Case { fitted: Some(full), ..case });
                    }
                    continue;
                }
                let full = fits.then(|| fit::full(work).applied_to(work));
                match derived_case(spec, full.as_ref().unwrap_or(work), placement, chunks) {
                    Ok(case) => cases.push(case),
                    // There may be more chunks than layers; another shape may fit.
                    Err(faults) => {
                        first_faults.get_or_insert(faults);
                    }
                }
            }
            match first_faults {
                Some(faults) if cases.is_empty() => Err(PlanError::Spec(faults)),
                _ => Ok(cases),
            }
        }
    }
}

/// The plan for the same spec and problem with another schedule, such as one that an exact search found.
///
/// # Errors
/// [`PlanError::Absent`] where `check` refuses the schedule.
pub fn replan(plan: &Plan, name: &str, schedule: Schedule) -> Result<Plan, PlanError> {
    let absent = |reason| PlanError::Absent { schedule: name.to_string(), reason };
    // The stages are the same, and so are the step epilogue and the documents of replicas. Another one may be the slowest.
    let (spec, problem, epilogue) = (&plan.spec, &plan.problem, plan.epilogue.as_ref());
    let op_lists = OpLists { spec, problem, epilogue, schedule: &schedule };
    let factors = plan.replicas.iter().map(|replica| replica.factors.clone());
    let replicas = op_lists.replicas(factors).map_err(absent)?;
    let (spec, replicas, judged_ns) = slowest_first(spec.clone(), replicas);
    let problem = match replicas.first() {
        Some(first) => problem.with_factors(first.factors.clone()).map_err(|fault| absent(fault.to_string()))?,
        None => problem.clone(),
    };
    let answer = judge(&spec, Case::typed(problem), name, schedule).map_err(|error| absent(error.reason))?;
    let packing = plan.packing.zip(judged_ns).map(|(known, found_ns)| PackingFigures { found_ns, ..known });
    Ok(Plan { epilogue: plan.epilogue.clone(), replicas, packing, ..plan_of(&spec, answer)? })
}

/// The plan with the same op lists and the best order of microbatches found within `effort`, where microbatches differ:
/// never worse than the plan. Training sums the gradients of all microbatches, so any may take any place.
///
/// # Errors
/// As [`replan`], and [`PlanError::Absent`] where all microbatches are alike.
pub fn reorder(plan: &Plan, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) -> Result<Plan, PlanError> {
    let absent =
        |reason: &str| PlanError::Absent { schedule: plan.schedule_name.clone(), reason: reason.to_string() };
    if !plan.replicas.is_empty() {
        return Err(absent(match plan.packing {
            Some(_) => "the order of its documents is chosen with the plan",
            None => {
                "its data parallel replicas have different documents, which stay in their microbatches: give the documents of \
                 the whole step and a published schedule, and the planner chooses their order"
            }
        }));
    }
    if !plan.problem.differs() {
        return Err(absent("all microbatches are alike, so no order of them is shorter than another"));
    }
    let ordered = order_microbatches(&plan.problem, &plan.schedule, effort, observer)
        .ok_or_else(|| absent("no order of microbatches that was tried fits the memory limit"))?;
    let found = replan(plan, &plan.schedule_name, ordered.schedule)?;
    let cost_ns = |plan: &Plan| plan.prediction.cost_ns(plan.problem.objective());
    Ok(if cost_ns(&found) < cost_ns(plan) { found } else { plan.clone() })
}

/// The plan of an answer to `spec`: its transfers placed as the spec asks, and checked on the transport that it names.
///
/// # Errors
/// [`PlanError::Deadlock`] and [`PlanError::Hangs`], and [`PlanError::Absent`] where a data parallel replica cannot be run.
pub fn plan_of(spec: &Spec, answer: Answer) -> Result<Plan, PlanError> {
    let problem = answer.case.problem.clone();
    let Messages { lowering, transport } = spec.messages;
    let program = lower_as(&problem, &answer.schedule, lowering).map_err(PlanError::Deadlock)?;
    check_program(&problem, &program, transport).map_err(|violations| {
        let completes = |lowering: &Lowering| {
            lower_as(&problem, &answer.schedule, *lowering)
                .is_ok_and(|program| check_program(&problem, &program, transport).is_ok())
        };
        let ways =
            [Lowering::Grouped, Lowering::Overlapped { prefetch: 0 }, Lowering::ReceiveFirst, Lowering::InPieces];
        PlanError::Hangs { lowering, violations, completing: ways.into_iter().filter(completes).collect() }
    })?;
    let prediction = Prediction::of(&problem, &answer.timeline);
    let mut spec = spec.clone();
    // A plan holds what was chosen, so that a later derivation or run has the same problem.
    if let (Work::Model(work), Some(fitted)) = (&mut spec.work, &answer.case.fitted) {
        *work = fitted.applied_to(work);
    }
    // The plan does not hold the measured times, and without them layers are assigned differently.
    if let (Work::Model(work), Some(derived)) = (&mut spec.work, &answer.case.derived)
        && work.profile.is_some()
        && !matches!(work.layout.partition, Partition::WithModules(_))
    {
        let counts = derived.stages.iter().map(|stage| stage.layers.len() as u32).collect();
        work.layout.partition = Partition::ByHand(counts);
    }
    if let Work::Model(work) = &mut spec.work {
        work.batch.documents = work.batch.documents.packed(work.bins(), work.sequence);
    }
    let replicas = replicas(&spec, &answer.case, &answer.schedule);
    let absent = |reason| PlanError::Absent { schedule: answer.name.clone(), reason };
    let (spec, replicas, _) = slowest_first(spec, replicas.map_err(absent)?);
    let Answer { name: schedule_name, schedule, case, .. } = answer;
    let epilogue = case.derived.map(|derived| derived.epilogue);
    Ok(Plan { spec, problem, schedule_name, schedule, program, epilogue, prediction, replicas, packing: None })
}

#[cfg(test)]
mod tests;
