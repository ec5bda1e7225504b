//! Which specs have the same answer: those that differ only in name, schedule or memory limit.

use pipeplan_core::graph::layout::Partition;
use pipeplan_core::spec::{Spec, Work};

/// Whether two specs differ at most in name and schedule.
pub(crate) fn same_work(one: &Spec, other: &Spec) -> bool {
    *one == Spec { name: one.name.clone(), schedule: one.schedule.clone(), ..other.clone() }
}

/// Whether recomputation or the assignment of layers follows from the memory limit of `spec`. The chart has no limit,
/// so its points are then other plans under the limit.
pub fn follows_from_limit(spec: &Spec) -> bool {
    match &spec.work {
        Work::Model(work) => work.layout.fits() || work.layout.partition == Partition::WithinLimit,
        Work::Typed(_) => false,
    }
}

/// Whether two specs have the same chart: they differ at most in name, schedule and limit.
pub fn same_chart(one: &Spec, other: &Spec) -> bool {
    without_limit(one) == without_limit(other)
}

pub(crate) fn without_limit(spec: &Spec) -> Spec {
    let mut free = Spec { name: String::new(), schedule: pipeplan_core::schedule::BEST.to_owned(), ..spec.clone() };
    match &mut free.work {
        Work::Model(model) => model.limit_bytes = None,
        Work::Typed(statement) => statement.limit_bytes = vec![None],
    }
    free
}

/// The memory limit: the tightest if ranks have several.
pub fn limit_of(spec: &Spec) -> Option<u64> {
    match &spec.work {
        Work::Model(work) => Some(work.limit_bytes.unwrap_or(work.device.memory_bytes)),
        Work::Typed(statement) => statement.limit_bytes.iter().copied().flatten().min(),
    }
}
