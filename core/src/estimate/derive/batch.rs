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
use crate::graph::{Graph, Stream};
use crate::hardware::cost::causal_pairs;
use crate::model::StageLayout;
use crate::problem::factors::{Factors, MicrobatchFactors};
use crate::problem::packing::{Document, DocumentTimes, Load, Shares, load_of};
use crate::spec::ModelWork;

/// The factors of all microbatches of `work` on `stages`; none where they are alike.
pub(super) fn factors(work: &ModelWork, stages: &[StageLayout]) -> Option<MicrobatchFactors> {
    if work.layout.slices > 1 {
        return slices::factors(work, stages);
    }
    let documents = work.batch.documents.of_problem(work.bins(), work.sequence);
    if documents.is_empty() {
        return work.batch.factors.clone();
    }
    WithinDocuments::of(work, stages).factors(&documents)
}

/// What attention within documents makes of the times of stages.
pub struct WithinDocuments<'a> {
    work: &'a ModelWork,
    /// Stages that differ.
    kinds: Vec<StageTimes>,
    /// By stage its kind.
    of_stage: Vec<usize>,
    /// The most tokens that one sees, of a whole sequence, and in a window where there is one.
    windows: [u64; 2],
}

struct StageTimes {
    graph: Graph,
    /// By operator.
    usual: Vec<Nanos>,
    /// By operator which window it has; none of one that does not attend.
    window: Vec<Option<usize>>,
    /// Of all jobs.
    all: [Nanos; 3],
}

impl<'a> WithinDocuments<'a> {
    /// Of `stages` of `work`.
    pub fn of(work: &'a ModelWork, stages: &[StageLayout]) -> WithinDocuments<'a> {
        let sequence = u64::from(work.sequence);
        let mut known: Vec<&StageLayout> = Vec::new();
        let of_stage = stages.iter().map(|layout| match known.iter().position(|known| *known == layout) {
            Some(at) => at,
            None => {
                known.push(layout);
                known.len() - 1
            }
        });
        let of_stage = of_stage.collect();
        let graphs: Vec<Graph> = known.iter().map(|layout| graph_of(work, layout)).collect();
        let kernels = || graphs.iter().flat_map(|graph| &graph.operators).map(|operator| &operator.kernel);
        let least = kernels().filter_map(|kernel| window(kernel, sequence)).min().unwrap_or(sequence);
        let kinds = graphs
            .into_iter()
            .map(|graph| {
                let usual = operator_times(&graph, work);
                let place = |kernel: &Kernel| Some(usize::from(window(kernel, sequence)? < sequence));
                let window = graph.operators.iter().map(|operator| place(&operator.kernel)).collect();
                let all = job_times_of(&graph, work, &usual).jobs;
                StageTimes { graph, usual, window, all }
            })
            .collect();
        WithinDocuments { work, kinds, of_stage, windows: [sequence, least] }
    }

    /// A document of `length` tokens. Its loads are the pairs of a token with one that it sees.
    pub fn document(&self, length: u32) -> Document {
        let pairs = |window: u64| u64::try_from(causal_pairs(length.into(), window)).unwrap_or(u64::MAX);
        Document { tokens: length, loads: self.windows.map(pairs) }
    }

    /// The loads of whole sequences.
    fn whole(&self) -> Load {
        let sequences = u64::from(self.work.microbatch_size);
        self.document(self.work.sequence).loads.map(|pairs| pairs.saturating_mul(sequences).max(1))
    }

    /// The factors of microbatches with documents of these lengths; none where they are alike.
    pub fn factors(&self, documents: &[Vec<u32>]) -> Option<MicrobatchFactors> {
        let load = |lengths: &Vec<u32>| load_of(lengths.iter().map(|length| self.document(*length).loads));
        let of = |load: Load| -> Vec<Factors> { self.kinds.iter().map(|kind| self.factors_of(kind, load)).collect() };
        let by_kind: Vec<Vec<Factors>> = documents.iter().map(|lengths| of(load(lengths))).collect();
        let of = by_kind.iter().flat_map(|of| self.of_stage.iter().map(|kind| of[*kind])).collect();
        MicrobatchFactors::of_stages(self.of_stage.len(), of).filter(|factors| !factors.are_usual())
    }

    fn factors_of(&self, stage: &StageTimes, load: Load) -> Factors {
        let whole = self.whole();
        let share = |window: usize, time: Nanos| {
            let time = (u128::from(time) * u128::from(load[window])).div_ceil(whole[window].into());
            Nanos::try_from(time).unwrap_or(Nanos::MAX)
        };
        let times: Vec<Nanos> = stage
            .usual
            .iter()
            .zip(&stage.window)
            .map(|(time, window)| match window {
                Some(window) => share(*window, *time).max(self.work.device.launch_ns.min(*time)),
                None => *time,
            })
            .collect();
        shares(job_times_of(&stage.graph, self.work, &times).jobs, stage.all)
    }

    /// The same times as sums over documents, for a search: never more than [`WithinDocuments::factors`]. What compute waits
    /// for on other streams does not count, nor that no operator takes less than its launch.
    pub fn times(&self) -> DocumentTimes {
        let of = |stage: &StageTimes| {
            let mut shares = Shares { usual_ns: stage.all, fixed_ns: [0; 3], by_load_ns: [[0; 2]; 3] };
            let operators = stage.graph.operators.iter().zip(&stage.usual).zip(&stage.window);
            for ((operator, time), window) in operators.filter(|((of, _), _)| of.stream == Stream::Compute) {
                let job = operator.job as usize;
                match window {
                    Some(window) => shares.by_load_ns[job][*window] += *time,
                    None => shares.fixed_ns[job] += *time,
                }
            }
            shares
        };
        let kinds: Vec<Shares> = self.kinds.iter().map(of).collect();
        DocumentTimes { stages: self.of_stage.iter().map(|kind| kinds[*kind]).collect(), whole: self.whole() }
    }
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
