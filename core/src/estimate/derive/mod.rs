//! From a model on a cluster to a scheduling problem: layers are assigned to stages, and the operators of each stage
//! give the time and bytes of its ops.

mod batch;
mod by_rank;
mod faults;
mod flops;
mod graphs;
mod kinds;
mod slices;
mod stage_costs;
mod times;
mod transfers;
mod within_limit;

pub use self::batch::WithinDocuments;
pub use self::graphs::{graph_and_reports, graph_of, shape_of};
pub(crate) use self::kinds::kind_of;
pub(crate) use self::stage_costs::stage_cost;
pub use self::times::coverage;
pub use self::within_limit::PartitionQuality;
pub(crate) use self::within_limit::dealt_within_limit;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use self::by_rank::{static_by_rank, tails_by_rank};
use self::faults::{check_sizes, find_faults};
use self::flops::step_flops;
use self::stage_costs::{Part, Parts};
use self::transfers::transfers;
use crate::base::fields::{Fault, Faults};
use crate::base::units::Bytes;
use crate::estimate::memory::StaticBytes;
use crate::estimate::partition::{self, PartCosts};
use crate::estimate::step::{self, StepEpilogue};
use crate::graph::layout::Partition;
use crate::model::StageLayout;
use crate::problem::placement::Placement;
use crate::problem::{Backward, MAX_BYTES, PlacementChoice, Statement};
use crate::spec::ModelWork;

/// The scheduling problem of a model, and what it follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The problem, with its placement fixed.
    pub statement: Statement,
    /// The part of the model that each stage holds.
    pub stages: Vec<StageLayout>,
    /// Floating-point operations that the model needs for one step, over all stages, for each device of a rank: each
    /// matmul of the forward and its two gradients. Recomputation does not count (arXiv:2204.02311 §4.1). Neither
    /// does what parallelism adds: heads that several devices hold, and spare room for experts' tokens.
    pub step_flops: u128,
    /// Bytes that each rank holds throughout the step, by kind.
    pub static_bytes: Vec<StaticBytes>,
    /// Bytes of host memory that a microbatch of each stage holds after F, and after B until W.
    pub host_bytes: Vec<[Bytes; 2]>,
    /// The step epilogue: gradient sync and optimizer.
    pub epilogue: StepEpilogue,
    /// How good the partition is, where it is `within-limit`.
    pub dealt: Option<PartitionQuality>,
}

/// The problem of `work` with `chunks` stages on each rank, placed by `placement`; `work.chunks` is not read.
///
/// Stages with the same parts are computed once. So the time grows with the layers of the few different stages, and
/// not with the microbatches.
///
/// # Errors
/// Every fault of `work` that hides the problem: invalid sizes, more stages than layers, a placement that does not
/// suit, times or bytes beyond the limits of a problem. Fields are named as in a spec.
pub fn derive(work: &ModelWork, placement: Placement, chunks: usize) -> Result<Derived, Faults> {
    let mut faults = Vec::new();
    find_faults(work, chunks, &mut faults);
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let ranks = work.pipeline as usize;
    let mut parts = Parts { work, known: BTreeMap::new() };
    let layers = work.model.layers;
    let equal = |epilogue| PartCosts::equal(layers, 1, epilogue, epilogue);
    let mut dealt = None;
    let stages = match &work.layout.partition {
        Partition::Balanced => {
            partition::balanced(ranks, chunks, &parts.costs().paced(paces(work, &placement, chunks)))
        }
        Partition::Layers => partition::balanced(ranks, chunks, &equal(0)),
        Partition::LayersAndEnds => partition::balanced(ranks, chunks, &equal(1)),
        Partition::WithinLimit => parts.within_limit(&placement, chunks).map(|(stages, found)| {
            dealt = Some(found);
            stages
        }),
        Partition::ByHand(counts) => {
            // Schedules with other numbers of chunks follow a list that fits the spec's own.
            let own = [work.pipeline as usize, (work.pipeline * work.chunks) as usize].contains(&counts.len());
            let regrouped = own.then(|| partition::regrouped(counts, ranks * chunks)).flatten();
            partition::by_hand(layers, ranks, chunks, regrouped.as_deref().unwrap_or(counts))
        }
        Partition::WithModules(counts) => {
            partition::with_modules((layers, work.model.variant.multi_token), ranks, chunks, counts)
        }
    }?;
    let known: Vec<Part> = stages.iter().map(|layout| parts.part(layout)).collect();

    let mut statement = Statement {
        ranks,
        chunks,
        microbatches: work.microbatches as usize * work.layout.slices as usize,
        placement: PlacementChoice::Fixed(placement.clone()),
        stages: known.iter().map(|part| part.cost).collect(),
        transfers: transfers(work, &stages, &placement, chunks),
        static_bytes: vec![0],
        limit_bytes: vec![Some(work.limit_bytes.unwrap_or(work.device.memory_bytes))],
        objective: work.objective,
        backward: Backward::Split,
        slices: work.layout.slices as usize,
        overlap_permille: 0,
        microbatch_factors: batch::factors(work, &stages),
    };
    if let Some(run) = work.profile.as_ref().and_then(|profile| profile.run.as_ref()) {
        let rank_of = placement.ranks(ranks, chunks);
        for (cost, rank) in statement.stages.iter_mut().zip(&rank_of) {
            *cost = run.cost(usize::from(*rank), *cost);
        }
        statement.transfers = run.transfers(statement.transfers);
    }
    check_sizes(&statement, &mut faults);
    if faults.is_empty() {
        // Also checks the placement, which gives the rank of each stage below.
        statement.find_faults("", &mut faults);
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let static_bytes = static_by_rank(work, &placement, chunks, &known);
    statement.static_bytes = static_bytes.iter().map(StaticBytes::total).collect();
    if let Some(rank) = statement.static_bytes.iter().position(|bytes| *bytes > MAX_BYTES) {
        let found = format!("{} bytes of weights on rank {rank}", statement.static_bytes[rank]);
        return Err(Fault::new("model", found, format!("at most {MAX_BYTES} bytes on a rank")).into());
    }
    let tails = tails_by_rank(work, &placement, chunks, &known);
    let reduces_ns = known.iter().map(|part| step::reduce_each(work, &part.whole.0, &part.whole.1)).collect();
    let overlaps = work.layout.overlap_grad_reduce || work.layout.overlap_param_gather;
    let overlapped = known.iter().filter(|_| overlaps);
    let overlapped = overlapped.map(|part| step::overlapped(work, &part.whole.0, &part.whole.1)).collect();
    Ok(Derived {
        statement,
        stages,
        step_flops: step_flops(work),
        static_bytes,
        host_bytes: known.iter().map(|part| part.on_host).collect(),
        epilogue: StepEpilogue { tails, reduces_ns, overlapped },
        dealt,
    })
}

/// Ranks whose times of a run differ by less than this, in thousandths, are alike: measured times jitter.
const ALIKE_PERMILLE: u64 = 100;

/// By stage, thousandths of its estimate that its rank took in the run that was measured; nothing where no rank is slower than
/// others, or where a stage is on two ranks.
fn paces(work: &ModelWork, placement: &Placement, chunks: usize) -> Vec<u64> {
    let run = work.profile.as_ref().and_then(|profile| profile.run.as_ref());
    let Some(run) = run.filter(|_| *placement != Placement::Bidirectional) else { return Vec::new() };
    let ranks = placement.ranks(work.pipeline as usize, chunks);
    let paces: Vec<u64> = ranks.iter().map(|rank| run.pace_permille(usize::from(*rank))).collect();
    let (least, most) = (paces.iter().min().copied().unwrap_or(0), paces.iter().max().copied().unwrap_or(0));
    let is_alike = most.saturating_mul(1000) < least.saturating_mul(1000 + ALIKE_PERMILLE);
    if is_alike { Vec::new() } else { paces }
}

#[cfg(test)]
mod post_training_tests;
#[cfg(test)]
mod tests;
