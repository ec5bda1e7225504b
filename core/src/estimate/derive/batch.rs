//! What each microbatch takes, from the lengths of its documents.
//!
//! Attention stays within documents. So its operators take the share of their time that its products have: for each
//! document those of its tokens with the tokens before them that they see: all, those of a window or those of a chunk. All
//! other operators take the time of all tokens, padding among them. No operator takes less than its launch.

use alloc::vec::Vec;

use super::graphs::graph_of;
use super::kinds::kinds_of;
use super::slices;
use super::times::{job_times_of, operator_times, shares};
use crate::base::units::Nanos;
use crate::graph::kernel::{Heads, Kernel};
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
    /// What a token sees of a whole sequence, and within a window or a chunk where there is one: each has its load.
    sights: [Sight; 2],
}

struct StageTimes {
    graph: Graph,
    /// By operator.
    usual: Vec<Nanos>,
    /// By operator which load it has; none of one that does not attend.
    load: Vec<Option<usize>>,
    /// Of all jobs.
    all: [Nanos; 3],
}

impl<'a> WithinDocuments<'a> {
    /// Of `stages` of `work`.
    pub fn of(work: &'a ModelWork, stages: &[StageLayout]) -> WithinDocuments<'a> {
        let whole = Sight::whole(work.sequence.into());
        let (firsts, of_stage) = kinds_of(work, stages);
        let graphs: Vec<Graph> = firsts.iter().map(|layout| graph_of(work, layout)).collect();
        let kernels = || graphs.iter().flat_map(|graph| &graph.operators).map(|operator| &operator.kernel);
        // A model has windows of one size, or chunks of one size.
        let least =
            kernels().filter_map(|kernel| sight(kernel, whole)).find(|sight| *sight != whole).unwrap_or(whole);
        let kinds = graphs
            .into_iter()
            .map(|graph| {
                let usual = operator_times(&graph, work);
                let place = |kernel: &Kernel| Some(usize::from(sight(kernel, whole)? != whole));
                let load = graph.operators.iter().map(|operator| place(&operator.kernel)).collect();
                let all = job_times_of(&graph, work, &usual).jobs;
                StageTimes { graph, usual, load, all }
            })
            .collect();
        WithinDocuments { work, kinds, of_stage, sights: [whole, least] }
    }

    /// A document of `length` tokens. Its loads are the pairs of a token with one that it sees.
    pub fn document(&self, length: u32) -> Document {
        Document { tokens: length, loads: self.sights.map(|sight| sight.pairs(length.into())) }
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
        let share = |at: usize, time: Nanos| {
            let time = (u128::from(time) * u128::from(load[at])).div_ceil(whole[at].into());
            Nanos::try_from(time).unwrap_or(Nanos::MAX)
        };
        let times: Vec<Nanos> = stage
            .usual
            .iter()
            .zip(&stage.load)
            .map(|(time, at)| match at {
                Some(at) => share(*at, *time).max(self.work.device.launch_ns.min(*time)),
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
            let operators = stage.graph.operators.iter().zip(&stage.usual).zip(&stage.load);
            for ((operator, time), at) in operators.filter(|((of, _), _)| of.stream == Stream::Compute) {
                let job = operator.job as usize;
                match at {
                    Some(at) => shares.by_load_ns[job][*at] += *time,
                    None => shares.fixed_ns[job] += *time,
                }
            }
            shares
        };
        let kinds: Vec<Shares> = self.kinds.iter().map(of).collect();
        DocumentTimes { stages: self.of_stage.iter().map(|kind| kinds[*kind]).collect(), whole: self.whole() }
    }
}

/// Which tokens before it a token sees, of a document or a sequence.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sight {
    /// So many at most, itself among them.
    window: u64,
    /// Tokens of a chunk, of which it sees no other. Chunks of a document begin with its first token, where Llama 4 starts to
    /// count positions anew; cut elsewhere, a document has no more pairs.
    chunk: u64,
}

impl Sight {
    /// All of a sequence.
    const fn whole(sequence: u64) -> Sight {
        Sight { window: sequence, chunk: sequence }
    }

    /// Pairs of a token with one that it sees, over `length` tokens.
    fn pairs(self, length: u64) -> u64 {
        let chunk = self.chunk.max(1);
        let pairs = |length| causal_pairs(length, self.window);
        let pairs = u128::from(length / chunk).saturating_mul(pairs(chunk)).saturating_add(pairs(length % chunk));
        u64::try_from(pairs).unwrap_or(u64::MAX)
    }
}

/// What a token sees, of an operator that attends.
fn sight(kernel: &Kernel, whole: Sight) -> Option<Sight> {
    let of = |heads: &Heads, window: u64| Sight { window: window.min(whole.window), chunk: heads.sequence };
    match kernel {
        Kernel::Attention(heads) | Kernel::AttentionGrad(heads) => Some(of(heads, whole.window)),
        Kernel::SpreadAttention(spread) | Kernel::SpreadAttentionGrad(spread) | Kernel::SinkAttention(spread) => {
            Some(of(&spread.heads, spread.window))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::derive::derive;
    use crate::problem::placement::Placement;
    use crate::spec::{Spec, Work};

    /// Stages with the same layers are worked out once, wherever they are: the first, those between, and the last.
    #[test]
    fn stages_that_are_alike_share_a_graph() {
        let text = "model.name = \"llama-3-8b\"\ncluster.device = \"h100\"\nparallel.pipeline = 8\n\
                    memory.limit_bytes = \"900 GiB\"\ntraining.microbatches = 8\ntraining.sequence = 8192\n\
                    parallel.partition = \"layers\"\n";
        let spec = Spec::read(text).unwrap_or_else(|error| panic!("{error}"));
        let Work::Model(work) = &spec.work else { panic!("of a model") };
        let stages = derive(work, Placement::Linear, 1).unwrap_or_else(|faults| panic!("{faults}")).stages;
        let within = WithinDocuments::of(work, &stages);
        assert_eq!(within.of_stage, [0, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(within.kinds.len(), 3);
    }
}
