//! What a layout needs at least, before any schedule is planned: the bytes of all ranks, and a lower bound on its step time.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Tuner;
use super::question::{Degrees, Field};
use crate::base::units::Nanos;
use crate::estimate::derive::{Derived, derive};
use crate::estimate::memory::StaticBytes;
use crate::graph::form::{Form, Offload, Recompute};
use crate::graph::layout::{Partition, RecomputeLayers};
use crate::problem::StageCost;
use crate::problem::placement::Placement;
use crate::spec::{ModelWork, Work};

/// Why a layout has no plan, whatever its schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The model does not allow it; the first reason.
    Refused(String),
    /// All ranks together need more than their limits, whatever the recomputation.
    TooLarge,
}

impl Tuner {
    pub(super) fn work(&self) -> Option<&ModelWork> {
        match &self.spec.work {
            Work::Model(work) => Some(work),
            Work::Typed(_) => None,
        }
    }

    /// The spec's model with these degrees, without recomputation, and with no setting left to the limit.
    pub(super) fn with_degrees(&self, degrees: Degrees) -> Option<ModelWork> {
        let mut work = self.work()?.clone();
        let is_kept = |field: Field| self.question.keep.contains(&field);
        let layout = &mut work.layout;
        layout.data = degrees.data;
        layout.form.tensor = degrees.tensor;
        layout.form.context = degrees.context;
        layout.form.expert = degrees.expert;
        layout.form.whole_experts = degrees.whole_experts;
        // Only 1 and TP are tried.
        layout.form.expert_tensor = 0;
        if degrees.tensor > 1 && !layout.form.sequence_parallel && !is_kept(Field::SequenceParallel) {
            // Unless the tokens do not divide.
            let (shared, mut faults) = (Form { sequence_parallel: true, ..layout.form }, Vec::new());
            shared.find_faults(&work.model, work.sequence, "", &mut faults);
            layout.form.sequence_parallel = faults.is_empty();
        }
        layout.set_zero(match layout.copies() > 1 && !is_kept(Field::Zero) {
            true => degrees.zero.max(1),
            false => degrees.zero,
        });
        // Sharding groups stay where they divide the copies.
        if !layout.shards_evenly(work.model.variant.experts.is_some()) {
            layout.shard = None;
        }
        let by_hand = matches!(layout.partition, Partition::ByHand(_) | Partition::WithModules(_));
        let may_fit = !is_kept(Field::Recompute);
        if may_fit {
            (layout.recompute_layers, layout.form.recompute) = (RecomputeLayers::All, Recompute::None);
            layout.offload_fits = false;
        }
        let must_be_free = by_hand || may_fit && layout.partition == Partition::WithinLimit;
        if must_be_free && !is_kept(Field::Partition) {
            layout.partition = Partition::Balanced;
        }
        work.pipeline = degrees.pipeline;
        if degrees.pipeline == 1 && !is_kept(Field::Chunks) {
            work.chunks = 1;
        }
        work.microbatch_size = degrees.microbatch_size;
        work.microbatches = degrees.microbatches;
        Some(work)
    }

    /// A lower bound on the step time of a layout. All work counts at its shortest and is spread evenly over the ranks,
    /// and so are the step epilogues: the average rank needs no more time than the slowest.
    pub(super) fn floor(&self, degrees: Degrees) -> Result<Nanos, Rejection> {
        let (work, derived) = self.derived(degrees)?;
        let limit = work.limit_bytes.unwrap_or(work.device.memory_bytes);
        let ranks = u128::from(work.pipeline.max(1));
        // Whatever the placement, all ranks together hold at least this.
        let held = |bytes: &StaticBytes| {
            u128::from(bytes.weights) + u128::from(bytes.master_weights) + u128::from(bytes.optimizer)
        };
        let held: u128 = derived.static_bytes.iter().map(held).sum();
        if held > u128::from(limit) * ranks {
            return Err(Rejection::TooLarge);
        }
        Ok(floor_of(&work, &derived))
    }

    /// A layout without offload, and what follows from it.
    pub(super) fn derived(&self, degrees: Degrees) -> Result<(ModelWork, Derived), Rejection> {
        let refused = |reason: &dyn ToString| Rejection::Refused(reason.to_string());
        let work = without_offload(&self.with_degrees(degrees).ok_or_else(|| refused(&"no model"))?);
        match derive(&work, Placement::Linear, 1) {
            Ok(derived) => Ok((work, derived)),
            Err(faults) => Err(faults.0.first().map_or_else(|| refused(&faults), |fault| refused(fault))),
        }
    }
}

/// `work` without offload: the time of copies that no compute hides depends on the partition, and no step gets shorter
/// by offload.
pub(super) fn without_offload(work: &ModelWork) -> ModelWork {
    let mut bare = work.clone();
    (bare.layout.form.offload, bare.layout.offload_fits) = (Offload::None, false);
    bare
}

/// See [`Tuner::floor`].
pub(super) fn floor_of(work: &ModelWork, derived: &Derived) -> Nanos {
    // A pair saves at most the communication of its ops.
    let of_stage = |cost: &StageCost| {
        let one_by_one = u128::from(cost.forward_ns) + cost.least_backward().map(u128::from).iter().sum::<u128>();
        one_by_one - u128::from(cost.forward_exchange_ns) - u128::from(cost.backward_exchange_ns)
    };
    let microbatch: u128 = derived.statement.stages.iter().map(of_stage).sum();
    let epilogue: u128 =
        derived.epilogue.tails.iter().map(|tail| u128::from(tail.reduce_ns) + u128::from(tail.optimizer_ns)).sum();
    let ranks = u128::from(work.pipeline.max(1));
    let microbatches = u128::from(work.microbatches) * u128::from(work.layout.slices);
    let floor = (microbatch * microbatches + epilogue) / ranks;
    Nanos::try_from(floor).unwrap_or(Nanos::MAX)
}
