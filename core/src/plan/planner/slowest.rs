//! Data parallel replicas with different documents under one schedule: the step waits for the slowest.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::case::Case;
use crate::base::units::Nanos;
use crate::estimate::derive::WithinDocuments;
use crate::plan::Replica;
use crate::plan::judged::{OpLists, slowest};
use crate::problem::Schedule;
use crate::schedule::Absent;
use crate::spec::{Documents, Spec, Work};

/// The data parallel replicas of `spec` under `schedule`, in the order of their documents, each with the figure that judges
/// it, that of the slowest with jitter; none where all have the same microbatches. The stages are those of `case`.
///
/// # Errors
/// The first replica that cannot be run, and why.
pub(super) fn replicas(spec: &Spec, case: &Case, schedule: &Schedule) -> Result<Vec<(Replica, Nanos)>, String> {
    let (Work::Model(work), Some(derived)) = (&spec.work, &case.derived) else { return Ok(Vec::new()) };
    let documents = work.batch.documents.packed(work.bins(), work.sequence);
    let Documents::OfReplicas(documents) = documents else { return Ok(Vec::new()) };
    let within = WithinDocuments::of(work, &derived.stages);
    let op_lists = OpLists { spec, problem: &case.problem, epilogue: Some(&derived.epilogue), schedule };
    op_lists.replicas(documents.iter().map(|documents| within.factors(documents)))
}

/// `case` with the problem of the data parallel replica of `spec` that takes longest under `schedule`, where they have
/// different documents.
///
/// # Errors
/// The first replica that cannot be run, and why.
pub(super) fn of_slowest(spec: &Spec, mut case: Case, schedule: &Schedule) -> Result<Case, Absent> {
    let mut replicas = replicas(spec, &case, schedule).map_err(Absent::because)?;
    if replicas.is_empty() {
        return Ok(case);
    }
    let (slowest, _) = replicas.swap_remove(slowest(&replicas));
    if slowest.factors.as_ref() != case.problem.factors() {
        let problem = case.problem.with_factors(slowest.factors.clone());
        case.problem = problem.map_err(|fault| Absent::because(fault.to_string()))?;
        if let Some(derived) = &mut case.derived {
            derived.statement.microbatch_factors = slowest.factors;
        }
    }
    Ok(case)
}

/// `spec` and its `replicas` with the slowest one first, and the figure that judges it; as they are where there are none.
pub(super) fn slowest_first(mut spec: Spec, replicas: Vec<(Replica, Nanos)>) -> (Spec, Vec<Replica>, Option<Nanos>) {
    let at = slowest(&replicas);
    let judged_ns = replicas.get(at).map(|(_, judged_ns)| *judged_ns);
    let mut replicas: Vec<Replica> = replicas.into_iter().map(|(replica, _)| replica).collect();
    if at > 0 {
        replicas.swap(0, at);
        if let Work::Model(work) = &mut spec.work
            && let Documents::OfReplicas(documents) = &mut work.batch.documents
            && at < documents.len()
        {
            documents.swap(0, at);
        }
    }
    (spec, replicas, judged_ns)
}
