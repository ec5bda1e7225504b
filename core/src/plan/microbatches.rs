//! Microbatches that differ: the documents of each, and what it takes.

use alloc::vec::Vec;

use crate::base::units::Nanos;
use crate::estimate::derive::WithinDocuments;
use crate::model::StageLayout;
use crate::problem::Problem;
use crate::problem::op::{Op, OpKind};
use crate::problem::packing::load_of;
use crate::spec::{Documents, ModelWork, Spec, Work};

/// The documents of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// How many there are.
    pub documents: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Data parallel replicas.
    pub replicas: u64,
    /// Microbatches of each.
    pub microbatches: u64,
    /// Tokens for which all microbatches have room.
    pub room: u64,
}

/// A microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Microbatch {
    /// How many documents it has; none where it has no documents by length.
    pub documents: u32,
    /// Their tokens.
    pub tokens: u64,
    /// The tokens of the longest.
    pub longest: u32,
    /// F, B and W on all stages together.
    pub time_ns: Nanos,
    /// What attention within its documents takes of that; 0 without documents.
    pub attention_ns: Nanos,
}

impl Fill {
    /// Of all data parallel replicas. None where the spec has no documents in microbatches.
    pub fn of(spec: &Spec) -> Option<Fill> {
        let Work::Model(work) = &spec.work else { return None };
        let bins = work.bins();
        let (copies, lists): (u64, Vec<&Vec<u32>>) = match &work.batch.documents {
            Documents::OfMicrobatches(lists) => (bins.replicas as u64, lists.iter().collect()),
            Documents::OfReplicas(replicas) => (1, replicas.iter().flatten().collect()),
            _ => return None,
        };
        let documents: u64 = lists.iter().map(|lengths| lengths.len() as u64).sum();
        let tokens: u64 = lists.into_iter().flatten().map(|length| u64::from(*length)).sum();
        Some(Fill {
            documents: documents.saturating_mul(copies),
            tokens: tokens.saturating_mul(copies),
            replicas: bins.replicas as u64,
            microbatches: bins.microbatches as u64,
            room: bins.tokens.saturating_mul(bins.count() as u64),
        })
    }

    /// The share of the room that has tokens.
    pub fn share(&self) -> f64 {
        self.tokens as f64 / self.room.max(1) as f64
    }
}

impl Microbatch {
    /// Those of `problem`, whose `stages` hold the model of `spec`: of data parallel replicas with different documents, those of
    /// the first, which is the slowest. Empty where all are alike.
    pub fn all(spec: &Spec, problem: &Problem, stages: &[StageLayout]) -> Vec<Microbatch> {
        if !problem.differs() {
            return Vec::new();
        }
        let mut all: Vec<Microbatch> =
            (0..problem.microbatches()).map(|number| of_problem(problem, number)).collect();
        if let Work::Model(work) = &spec.work {
            add_documents(&mut all, work, stages);
        }
        all
    }
}

fn of_problem(problem: &Problem, number: usize) -> Microbatch {
    let kinds = [OpKind::F, OpKind::B, OpKind::W];
    let of_stage =
        |stage| kinds.iter().map(move |kind| problem.duration(Op::new(stage, *kind, number))).sum::<Nanos>();
    let time_ns = (0..problem.stage_count()).map(of_stage).sum();
    Microbatch { documents: 0, tokens: 0, longest: 0, time_ns, attention_ns: 0 }
}

fn add_documents(all: &mut [Microbatch], work: &ModelWork, stages: &[StageLayout]) {
    let lists = work.batch.documents.of_problem(work.bins(), work.sequence);
    // Slices of sequences are microbatches of a problem, and have no documents of their own.
    if lists.len() != all.len() {
        return;
    }
    let within = WithinDocuments::of(work, stages);
    let times = within.times();
    for (microbatch, lengths) in all.iter_mut().zip(&lists) {
        microbatch.documents = lengths.len() as u32;
        microbatch.tokens = lengths.iter().map(|length| u64::from(*length)).sum();
        microbatch.longest = lengths.iter().max().copied().unwrap_or(0);
        let load = load_of(lengths.iter().map(|length| within.document(*length).loads));
        // What waits for other streams may take longer than compute alone, never shorter.
        microbatch.attention_ns = times.weight(load).min(microbatch.time_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;
    use crate::plan::planner;

    /// A microbatch takes what the stages take without attention, and attention by the squares of its documents: twice the
    /// length has four times the pairs, and a few more.
    #[test]
    fn attention_grows_with_the_squares_of_lengths() {
        let text = "[model]\nname = \"llama-2-7b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\ndata = 2\n\
            [training]\nmicrobatches = 4\nsequence = 4096\n";
        let documents = |list: &str| {
            let spec = Spec::read(&format!("{text}documents = {list}\n")).unwrap_or_else(|error| panic!("{error}"));
            planner::plan(&spec, "1f1b").unwrap_or_else(|error| panic!("{error}"))
        };
        let plan = documents("[[[4096], [2048, 2048], [2048], []], [[1], [], [], []]]");
        let derived = crate::estimate::derive::derive(
            match &plan.spec.work {
                Work::Model(work) => work,
                Work::Typed(_) => panic!("a model"),
            },
            plan.problem.placement().clone(),
            plan.problem.chunks(),
        );
        let derived = derived.expect("it is planned");
        let all = Microbatch::all(&plan.spec, &plan.problem, &derived.stages);
        let [whole, halves, half, none] = all[..] else { panic!("{all:?}") };
        assert_eq!(
            [whole, halves, half, none].map(|of| (of.documents, of.tokens, of.longest)),
            [(1, 4096, 4096), (2, 4096, 2048), (1, 2048, 2048), (0, 0, 0)]
        );
        assert_eq!(none.attention_ns, 0);
        let near = |one: u64, other: u64| one.abs_diff(other) * 1000 <= one.max(other);
        assert!(near(whole.attention_ns, 4 * half.attention_ns), "{all:?}");
        assert!(near(halves.attention_ns, 2 * half.attention_ns), "{all:?}");
        // All other operators take the same, padding among them; launches are a little more.
        let rest = |of: Microbatch| of.time_ns - of.attention_ns;
        assert!([halves, half].iter().all(|of| rest(*of).abs_diff(rest(whole)) * 100 <= rest(whole)), "{all:?}");
        let fill = Fill::of(&plan.spec).expect("documents");
        assert_eq!(fill, Fill { documents: 5, tokens: 10_241, replicas: 2, microbatches: 4, room: 8 * 4096 });
        let alike = documents("[[4096], [2048, 2048], [2048], [1]]");
        let fill = Fill::of(&alike.spec).expect("documents");
        assert_eq!((fill.documents, fill.tokens), (10, 2 * 10_241), "both replicas have them");
    }
}
