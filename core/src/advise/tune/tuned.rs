//! A layout with the fastest step that was found for it: what it is, what it changes, how it ranks.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::question::Degrees;
use crate::advise::suggest::Change;
use crate::base::units::{Bytes, Nanos};
use crate::estimate::step::Step;
use crate::graph::form::{Offload, Recompute};
use crate::graph::layout::RecomputeLayers;
use crate::plan::planner::Answer;
use crate::spec::{FIT, ModelWork, Spec, Work};

/// A layout with the fastest step that was found for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// The spec that says all of it, its schedule included.
    pub spec: Spec,
    /// The parallel degrees of a layout.
    pub degrees: Degrees,
    /// Chunks per rank of its schedule.
    pub chunks: usize,
    /// The recomputation, in words: `none`, or by layers `3 full, 5 cheap of 80`.
    pub recompute: String,
    /// The layers with activation offload.
    pub offload: Offload,
    /// The step.
    pub step: Step,
    /// Idle share of the pipeline's makespan or longest span, as the spec's objective says.
    pub bubble: f64,
    /// The most bytes that a rank holds.
    pub peak: Bytes,
    /// A lower bound on the step of this layout, whatever its schedule.
    pub floor_ns: Nanos,
}

impl Tuned {
    /// How memory is saved, in words: `3 full of 80; offload: 2 of each stage; ZeRO 3`.
    pub fn saved(&self) -> String {
        let on_host = match self.offload {
            Offload::None => String::new(),
            Offload::First(layers) => format!("; offload: {layers} of each stage"),
            Offload::All => "; offload: all".to_string(),
            Offload::Scheduled => "; offload: scheduled".to_string(),
        };
        let shared = if self.degrees.zero >= 2 { format!("; ZeRO {}", self.degrees.zero) } else { String::new() };
        format!("{}{on_host}{shared}", self.recompute)
    }

    /// The changes that turn `from` into this.
    pub fn changes(&self, from: &Spec) -> Vec<Change> {
        let (Work::Model(before), Work::Model(after)) = (&from.work, &self.spec.work) else { return Vec::new() };
        let (old, new) = (Degrees::of(before), Degrees::of(after));
        let recompute = |work: &ModelWork| match &work.layout.recompute_layers {
            RecomputeLayers::Fit => FIT.to_string(),
            RecomputeLayers::Each(choices) => RecomputeLayers::text_of(choices),
            _ => work.layout.form.recompute.name().to_string(),
        };
        let offload = |work: &ModelWork| match work.layout.offload_fits {
            true => FIT.to_string(),
            false => work.layout.form.offload.text(),
        };
        let shard = |work: &ModelWork| work.layout.shard.map_or_else(|| "all".to_string(), |shard| shard.to_string());
        let partition = |work: &ModelWork| work.layout.partition.name().unwrap_or("by hand").to_string();
        let (form, to) = (&before.layout.form, &after.layout.form);
        let fields = [
            ("parallel.pipeline", old.pipeline.to_string(), new.pipeline.to_string()),
            ("parallel.tensor", old.tensor.to_string(), new.tensor.to_string()),
            ("parallel.sequence_parallel", form.sequence_parallel.to_string(), to.sequence_parallel.to_string()),
            ("parallel.context", old.context.to_string(), new.context.to_string()),
            ("parallel.data", old.data.to_string(), new.data.to_string()),
            ("parallel.zero", before.layout.zero.to_string(), after.layout.zero.to_string()),
            ("parallel.shard", shard(before), shard(after)),
            ("parallel.expert", old.expert.to_string(), new.expert.to_string()),
            ("parallel.whole_experts", old.whole_experts.to_string(), new.whole_experts.to_string()),
            ("parallel.chunks", before.chunks.to_string(), after.chunks.to_string()),
            ("parallel.partition", partition(before), partition(after)),
            ("training.microbatch_size", old.microbatch_size.to_string(), new.microbatch_size.to_string()),
            ("training.microbatches", old.microbatches.to_string(), new.microbatches.to_string()),
            ("training.recompute", recompute(before), recompute(after)),
            ("training.offload", offload(before), offload(after)),
            ("schedule", from.schedule.clone(), self.spec.schedule.clone()),
        ];
        let changed = fields.into_iter().filter(|(_, from, to)| from != to);
        changed.map(|(field, from, to)| Change { field, from, to }).collect()
    }
}

pub(super) fn is_faster(one: &Tuned, other: &Tuned) -> bool {
    (one.step.step_ns, one.peak, one.degrees) < (other.step.step_ns, other.peak, other.degrees)
}

/// Whether `other` has the same figures with a larger context parallel degree, and so no advantage.
pub(super) fn is_same_by_context(one: &Tuned, other: &Tuned) -> bool {
    let figures = |tuned: &Tuned| (tuned.step.step_ns, tuned.peak, tuned.degrees.pipeline, tuned.degrees.tensor);
    figures(one) == figures(other) && one.degrees.context < other.degrees.context
}

/// The layout that `answer` gives to `spec`; none where it is not of a model.
pub(super) fn tuned(mut spec: Spec, answer: &Answer, floor_ns: Nanos) -> Option<Tuned> {
    let step = answer.step(&spec)?;
    let problem = &answer.case.problem;
    let timeline = &answer.timeline;
    let Work::Model(work) = &mut spec.work else { return None };
    if let Some(fitted) = &answer.case.fitted {
        *work = fitted.applied_to(work);
    }
    let recompute = match &work.layout.recompute_layers {
        RecomputeLayers::Each(choices) => recompute_text(choices),
        _ => work.layout.form.recompute.name().to_string(),
    };
    let offload = work.layout.form.offload;
    let degrees = Degrees::of(work);
    let peak = (0..problem.ranks()).map(|rank| timeline.peak_bytes(problem, rank)).max().unwrap_or(0);
    let bubble = timeline.bubble_ratio(problem.objective());
    Some(Tuned { spec, degrees, chunks: problem.chunks(), recompute, offload, step, bubble, peak, floor_ns })
}

/// How many layers make which choice: `3 full, 5 cheap of 80`.
fn recompute_text(choices: &[Recompute]) -> String {
    let count = |of: Recompute| choices.iter().filter(|choice| **choice == of).count();
    let counts = Recompute::ALL.into_iter().rev().filter(|choice| *choice != Recompute::None);
    let said: Vec<String> =
        counts.filter(|of| count(*of) > 0).map(|of| format!("{} {}", count(of), of.name())).collect();
    if said.is_empty() {
        return Recompute::None.name().to_string();
    }
    format!("{} of {}", said.join(", "), choices.len())
}
