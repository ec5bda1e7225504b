//! A plan for a custom schedule, which the planner did not make.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write;

use super::answer::timed;
use super::slowest::of_slowest;
use super::{Answer, Case, PlanError, derived_case, plan_of};
use crate::check::{Violation, check_schedule};
use crate::estimate::fit;
use crate::notation::order::Order;
use crate::notation::torch_csv;
use crate::plan::Plan;
use crate::problem::PlacementChoice;
use crate::problem::Schedule;
use crate::problem::op::Op;
use crate::problem::placement::Placement;
use crate::schedule::Absent;
use crate::search::within_limits;
use crate::simulate::simulate;
use crate::spec::{ModelWork, Spec, Work};

/// Violations that a refusal names at most.
const MOST_NAMED: usize = 8;

/// The plan for `spec` with a custom schedule called `name`: a [`Schedule`], or one with its places in a text. Where
/// the spec leaves the placement open, the op lists decide it.
///
/// # Errors
/// [`PlanError::Absent`] with all that `check` finds wrong, and as [`plan`](super::plan).
pub fn plan_order(spec: &Spec, name: &str, order: impl Into<Order>) -> Result<Plan, PlanError> {
    plan_of(spec, answer_order(spec, name, order)?)
}

/// As [`plan_order`], without a file: for a picture of it.
///
/// # Errors
/// As [`plan_order`].
pub fn answer_order(spec: &Spec, name: &str, order: impl Into<Order>) -> Result<Answer, PlanError> {
    let mut order = order.into();
    let absent = |reason| PlanError::Absent { schedule: name.to_string(), reason };
    let case = case_of(spec, &order.schedule).map_err(|error| match error {
        PlanError::Absent { reason, .. } => absent(reason),
        other => other,
    })?;
    let checked = check_schedule(&case.problem, &order.schedule);
    let is_over = |violation: &Violation| matches!(violation, Violation::OverLimit { .. });
    if checked.as_ref().is_err_and(|violations| violations.iter().all(is_over)) && !order.schedule.has_copies() {
        // It only holds too much: copies to the host may help, where the problem allows them.
        order.schedule = within_limits(&case.problem, order.schedule);
    }
    check_schedule(&case.problem, &order.schedule).map_err(|violations| absent(told(&violations, &order)))?;
    let case = of_slowest(spec, case, &order.schedule).map_err(|cannot| absent(cannot.reason))?;
    let timeline = simulate(&case.problem, &order.schedule).map_err(PlanError::Deadlock)?;
    Ok(timed(spec, case, name, order.schedule, timeline))
}

fn told(violations: &[Violation], order: &Order) -> String {
    let mut text = format!("{} in this order", if violations.len() == 1 { "one fault" } else { "faults" });
    for violation in violations.iter().take(MOST_NAMED) {
        let _ = write!(text, "\n  {violation}");
        let places: Vec<String> =
            ops_of(violation).into_iter().filter_map(|(rank, index)| order.place(rank, index)).collect();
        let _ = match places.as_slice() {
            [] => Ok(()),
            [place] => write!(text, " ({place})"),
            several => write!(text, "\n  in the text: {}", several.join("; ")),
        };
    }
    if violations.len() > MOST_NAMED {
        text.push_str("\n  and more");
    }
    text
}

/// The ops at fault, by rank and position in its op list.
fn ops_of(violation: &Violation) -> Vec<(usize, usize)> {
    match violation {
        Violation::Foreign { rank, index, .. }
        | Violation::WrongRank { rank, index, .. }
        | Violation::Twice { rank, index, .. }
        | Violation::Cut { rank, index, .. }
        | Violation::Pair { rank, index }
        | Violation::OverLimit { rank, index, .. } => vec![(*rank, *index)],
        Violation::Circle { waits } => waits.iter().map(|wait| (wait.rank, wait.index)).collect(),
        // No single op, or none of an order of compute.
        _ => Vec::new(),
    }
}

/// The problem that the order is of.
fn case_of(spec: &Spec, schedule: &Schedule) -> Result<Case, PlanError> {
    let implied = torch_csv::placement(schedule);
    match &spec.work {
        Work::Typed(statement) => {
            let placement = match &statement.placement {
                PlacementChoice::Fixed(fixed) => fixed.clone(),
                PlacementChoice::Any => {
                    placement(implied, schedule, [statement.ranks, statement.chunks, statement.microbatches])
                }
            };
            statement.problem(placement).map(Case::typed).map_err(|fault| PlanError::Spec(fault.into()))
        }
        Work::Model(work) => {
            let ranks = work.pipeline as usize;
            let stages = match &implied {
                Some(Placement::List(list)) => list.len(),
                _ => ranks,
            };
            let chunks = stages.div_ceil(ranks.max(1)).max(1);
            let placement = placement(implied, schedule, [ranks, chunks, work.microbatches as usize]);
            let derived = |work: &ModelWork| derived_case(spec, work, placement.clone(), chunks);
            if !work.layout.fits() {
                return derived(work).map_err(PlanError::Spec);
            }
            let solved = |work: ModelWork| {
                let case = derived(&work).map_err(|faults| Absent::because(faults.to_string()))?;
                let missing = || Absent::because("there is no model");
                Ok((case.derived.ok_or_else(missing)?, case.problem, schedule.clone()))
            };
            let fitted = fit::fit(work, solved)
                .map_err(|absent| PlanError::Absent { schedule: Default::default(), reason: absent.reason })?;
            let case = derived(&fitted.applied_to(work)).map_err(PlanError::Spec)?;
            Ok(Case { fitted: Some(fitted), ..case })
        }
    }
}

/// The placement that the op lists imply, by its name where it has one. Op lists that imply none are checked against
/// the simplest placement, which shows what is wrong with them.
fn placement(
    implied: Option<Placement>,
    schedule: &Schedule,
    [ranks, chunks, microbatches]: [usize; 3],
) -> Placement {
    let plainest = if chunks == 1 { Placement::Linear } else { Placement::Looped };
    match implied.map(|list| list.named(ranks, chunks)) {
        None if chunks == 1 && is_two_way(schedule, ranks, microbatches) => Placement::Bidirectional,
        Some(Placement::List(of)) if of.len() != ranks * chunks => plainest,
        implied => implied.unwrap_or(plainest),
    }
}

/// Whether every op is where two copies of the model put it.
fn is_two_way(schedule: &Schedule, ranks: usize, microbatches: usize) -> bool {
    let even = ranks.is_multiple_of(2) && microbatches.is_multiple_of(2);
    let place = |op: &Op| match 2 * op.microbatch() < microbatches {
        true => Some(op.stage()),
        false => (ranks - 1).checked_sub(op.stage()),
    };
    let mut ops = schedule.rows.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |op| (rank, op)));
    even && ranks > 0 && ops.all(|(rank, op)| place(op) == Some(rank))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::planner::plan;
    use crate::schedule::published;

    fn specs() -> [Spec; 3] {
        let read = |text: &str| Spec::read(text).unwrap_or_else(|error| panic!("{error}"));
        let stages = "stages = { forward_ns = 3, backward_input_ns = 4, backward_weight_ns = 2 }\ntransfer_ns = 1\n";
        [
            read(&format!("ranks = 4\nchunks = 1\nmicrobatches = 8\nplacement = \"any\"\n{stages}")),
            read(&format!("ranks = 4\nchunks = 2\nmicrobatches = 8\nplacement = \"any\"\n{stages}")),
            read(
                "model.name = \"tiny-llama\"\ncluster.device = \"cpu\"\nparallel.pipeline = 4\n\
                 training.microbatches = 8\ntraining.sequence = 64\n",
            ),
        ]
    }

    /// A published schedule that is passed as a custom schedule gives the same plan: the placement is found in the op
    /// lists, the bidirectional one too.
    #[test]
    fn a_published_order_from_elsewhere_is_the_published_plan() {
        let mut compared = 0;
        for spec in specs() {
            for published in published() {
                let Ok(known) = plan(&spec, published.name) else { continue };
                let own = plan_order(&spec, published.name, known.schedule.clone())
                    .unwrap_or_else(|error| panic!("{}: {error}", published.name));
                assert_eq!(own.prediction, known.prediction, "{}", published.name);
                let same = own.problem.placement().same_as(known.problem.placement(), 4, known.problem.chunks());
                assert!(same, "{}: {:?}", published.name, own.problem.placement());
                // What is written is read: the file's checks hold for it.
                assert_eq!(Plan::from_json(&own.to_json()).as_ref(), Ok(&own));
                compared += 1;
            }
        }
        assert!(compared >= 20, "{compared}");
    }

    #[test]
    fn all_that_is_wrong_with_an_order_is_told() {
        let [linear, ..] = specs();
        let known = plan(&linear, "1f1b").unwrap_or_else(|error| panic!("{error}"));
        let mut rows = known.schedule.rows.clone();
        let last = rows[0].pop();
        // A wrong rank is reported as such, not as a model in two copies.
        let strayed = rows[2].remove(0);
        rows[1].insert(0, strayed);
        let error = plan_order(&linear, "mine", Schedule::of(rows)).unwrap_err().to_string();
        assert!(last.is_some_and(|op| error.contains(&format!("{op} never runs"))), "{error}");
        assert!(error.contains(&format!("rank 1, op 0: {strayed} belongs to rank 2")), "{error}");
        let few = plan_order(&linear, "mine", Schedule::of(known.schedule.rows[..3].to_vec())).unwrap_err();
        assert!(few.to_string().contains("3 op lists for 4 ranks"), "{few}");
    }
}
