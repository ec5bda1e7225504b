//! Workloads of published schedules and of one rank alone, without a plan: what tests, the selftest and measurements train.

use pipeplan_core::base::fields::Faults;
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::problem::Problem;
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::program::lower::lower;
use pipeplan_core::schedule;
use pipeplan_core::simulate::Deadlock;
use pipeplan_core::spec::ModelWork;

use super::{Precision, Refusal, Workload};

/// Why there is no such workload.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoOrder {
    /// No schedule has this name, or it has no order for this shape.
    #[error("{name}: {reason}")]
    Absent {
        /// The schedule.
        name: String,
        /// Why.
        reason: String,
    },
    /// The model cannot be cut so.
    #[error(transparent)]
    Model(#[from] Faults),
    /// The order cannot be run.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
    /// It can, and not by this runner.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The problem of `work` cut into `chunks` stages a rank.
///
/// # Errors
/// What of `work` allows none.
pub fn problem(work: &ModelWork, placement: Placement, chunks: usize) -> Result<Problem, Faults> {
    let derived = derive(work, placement.clone(), chunks)?;
    Ok(derived.statement.problem(placement)?)
}

/// `work` in the order of the published schedule `name`.
///
/// # Errors
/// [`NoOrder`].
pub fn published(work: &ModelWork, name: &str, precision: Option<Precision>) -> Result<Workload, NoOrder> {
    let absent = |reason: String| NoOrder::Absent { name: name.to_string(), reason };
    let published = schedule::find(name).ok_or_else(|| absent("no schedule is called so".to_string()))?;
    let (placement, chunks) = (published.shape)(work.chunks as usize);
    let problem = problem(work, placement, chunks)?;
    let schedule = published.build(&problem).map_err(|why| absent(why.reason))?;
    ordered(work, &problem, &schedule, precision)
}

/// `work` in the order of `schedule`.
///
/// # Errors
/// [`NoOrder`].
pub fn ordered(
    work: &ModelWork,
    problem: &Problem,
    schedule: &Schedule,
    precision: Option<Precision>,
) -> Result<Workload, NoOrder> {
    Ok(Workload::new(work, problem, &lower(problem, schedule)?, precision)?)
}

/// `work` on one rank in one stage, one microbatch after the other: what every other order is held against.
///
/// # Errors
/// [`NoOrder`].
pub fn one_by_one(work: &ModelWork, precision: Option<Precision>) -> Result<Workload, NoOrder> {
    let work = ModelWork { pipeline: 1, ..work.clone() };
    let problem = problem(&work, Placement::Linear, 1)?;
    let ops: Vec<String> =
        (0..work.microbatches).map(|microbatch| format!("0F{microbatch} 0BW{microbatch}")).collect();
    // These are ops; were they none, the order would lack them, and the runner refuses it.
    let schedule = Schedule::from_text_rows(&[ops.join(" ")]).unwrap_or_default();
    ordered(&work, &problem, &schedule, precision)
}
