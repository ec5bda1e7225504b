//! What each microbatch takes, from the lengths of its documents.
//!
//! Attention stays within documents. So its operators take the share of their time that its products have: for each
//! document those of its tokens with the tokens before them, as for a sequence of this length. All other operators take the
//! time of all tokens, padding among them. No operator takes less than its launch.

use alloc::vec::Vec;

use super::graphs::graph_of;
use super::slices;
use super::times::{job_times_of, operator_times, shares};
use crate::base::units::Nanos;
use crate::graph::kernel::Kernel;
use crate::hardware::cost::causal_pairs;
use crate::model::StageLayout;
use crate::problem::factors::{Factors, MicrobatchFactors};
use crate::spec::ModelWork;

/// The factors of all microbatches of `work` on `stages`; none where they are alike.
pub(super) fn factors(work: &ModelWork, stages: &[StageLayout]) -> Option<MicrobatchFactors> {
    if work.layout.slices > 1 {
        return slices::factors(work, stages);
    }
    if work.batch.documents.is_empty() {
        return work.batch.factors.clone();
    }
    let by_stage: Vec<Vec<Factors>> = stages.iter().map(|layout| of_stage(work, layout)).collect();
    let microbatches = 0..work.batch.documents.len();
    let of = microbatches.flat_map(|m| by_stage.iter().map(move |stage| stage[m])).collect();
    MicrobatchFactors::of_stages(stages.len(), of).filter(|factors| !factors.are_usual())
}

fn of_stage(work: &ModelWork, layout: &StageLayout) -> Vec<Factors> {
    let graph = graph_of(work, layout);
    let usual = operator_times(&graph, work);
    let all = job_times_of(&graph, work, &usual).jobs;
    // The longest sequence that a token of each operator sees, of those that attend.
    let windows: Vec<Option<u64>> =
        graph.operators.iter().map(|operator| window(&operator.kernel, work.sequence.into())).collect();
    let of = |lengths: &Vec<u32>| {
        let share = |window: u64, time: Nanos| {
            let pairs: u128 = lengths.iter().map(|length| causal_pairs((*length).into(), window)).sum();
            let whole = causal_pairs(work.sequence.into(), window) * u128::from(work.microbatch_size);
            let time = (u128::from(time) * pairs).div_ceil(whole.max(1));
            Nanos::try_from(time).unwrap_or(Nanos::MAX)
        };
        let times: Vec<Nanos> = usual
            .iter()
            .zip(&windows)
            .map(|(time, window)| match window {
                Some(window) => share(*window, *time).max(work.device.launch_ns.min(*time)),
                None => *time,
            })
            .collect();
        shares(job_times_of(&graph, work, &times).jobs, all)
    };
    work.batch.documents.iter().map(of).collect()
}

/// How many tokens one sees at most, of an operator that attends.
fn window(kernel: &Kernel, sequence: u64) -> Option<u64> {
    match kernel {
        Kernel::Attention(_) | Kernel::AttentionGrad(_) => Some(sequence),
        Kernel::SpreadAttention(spread) | Kernel::SpreadAttentionGrad(spread) | Kernel::SinkAttention(spread) => {
            Some(spread.window.min(sequence))
        }
        _ => None,
    }
}
