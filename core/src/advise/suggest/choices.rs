//! Suggestions one by one: the changes of a spec that reduce the bytes of its ranks, or spread them differently.

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use super::Change;
use crate::graph::form::{AttentionForm, Form, Offload, Recompute};
use crate::graph::layout::{Partition, RecomputeLayers, ReduceGradients};
use crate::spec::{FIT, ModelWork, Spec, Work};

/// A change that may help: one field, and the fields that must follow.
pub(super) struct Choice {
    /// The changes, the main field first.
    pub changes: Vec<Change>,
    /// The factor on the number of devices.
    pub devices: u32,
    apply: Apply,
}

type Apply = alloc::boxed::Box<dyn Fn(&mut ModelWork)>;

impl Choice {
    /// The field that it is about.
    pub fn field(&self) -> &'static str {
        self.changes.first().map_or("", |change| change.field)
    }
}

/// `spec`, of a model, with those of `choices` that are at `at`.
pub(super) fn changed(spec: &Spec, choices: &[Choice], at: &[usize]) -> Option<Spec> {
    let Work::Model(work) = &spec.work else { return None };
    let mut work = work.clone();
    at.iter().filter_map(|at| choices.get(*at)).for_each(|choice| (choice.apply)(&mut work));
    Some(Spec { work: Work::Model(work), ..spec.clone() })
}

/// What is changed by those of `choices` that are at `at`.
pub(super) fn changes(choices: &[Choice], at: &[usize]) -> Vec<Change> {
    at.iter().filter_map(|at| choices.get(*at)).flat_map(|choice| choice.changes.iter().cloned()).collect()
}

/// Gathers [`Choice`]s.
#[derive(Default)]
struct Choices(Vec<Choice>);

impl Choices {
    fn add(
        &mut self,
        field: &'static str,
        from: impl ToString,
        to: impl ToString,
        apply: impl Fn(&mut ModelWork) + 'static,
    ) -> &mut Choice {
        let change = Change { field, from: from.to_string(), to: to.to_string() };
        self.0.push(Choice { changes: vec![change], devices: 1, apply: alloc::boxed::Box::new(apply) });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }
}

/// The changes that may help.
pub(super) fn choices(work: &ModelWork) -> Vec<Choice> {
    let mut choices = Choices::default();
    add_recompute(work, &mut choices);
    let (layout, form) = (&work.layout, work.layout.form);
    if !layout.offload_fits {
        const FIELD: &str = "training.offload";
        choices.add(FIELD, form.offload.text(), FIT, |work| {
            (work.layout.form.offload, work.layout.offload_fits) = (Offload::None, true);
        });
        if form.offload != Offload::All {
            choices.add(FIELD, form.offload.text(), Offload::All.text(), |work| {
                work.layout.form.offload = Offload::All;
            });
        }
    }
    if !layout.offload_optimizer {
        choices.add("training.offload_optimizer", false, true, |work| work.layout.offload_optimizer = true);
    }
    if layout.partition != Partition::WithinLimit {
        let from = layout.partition.name().unwrap_or("by hand");
        choices.add("parallel.partition", from, "within-limit", |work| {
            work.layout.partition = Partition::WithinLimit;
        });
    }
    if form.attention == AttentionForm::Materialised {
        let [from, to] = [AttentionForm::Materialised, AttentionForm::Flash].map(AttentionForm::name);
        choices.add("training.attention", from, to, |work| work.layout.form.attention = AttentionForm::Flash);
    }
    add_smaller_microbatches(work, &mut choices);
    add_dealt_experts(work, &mut choices);
    if form.tensor > 1 && !form.sequence_parallel {
        choices.add("parallel.sequence_parallel", false, true, |work| work.layout.form.sequence_parallel = true);
    }
    for times in [2, 4, 8] {
        let tensor = form.tensor.saturating_mul(times);
        let mut faults = Vec::new();
        Form { tensor, ..form }.find_faults(&work.model, work.sequence, "parallel", &mut faults);
        if faults.is_empty() && tensor <= work.devices_per_node {
            let choice =
                choices.add("parallel.tensor", form.tensor, tensor, move |work| work.layout.form.tensor = tensor);
            choice.devices = times;
        }
    }
    if layout.data > 1 {
        for zero in layout.zero + 1..=3 {
            choices.add("parallel.zero", layout.zero, zero, move |work| work.layout.set_zero(zero));
        }
    }
    if let Some(shard) = layout.shard.filter(|_| layout.zero > 0 && layout.copies() > 1) {
        choices.add("parallel.shard", shard, "all", |work| work.layout.shard = None);
    }
    let each = ReduceGradients::EachMicrobatch;
    if layout.zero >= 2 && layout.copies() > 1 && layout.reduces_gradients() != each {
        let from = layout.reduces_gradients().name();
        choices.add("parallel.reduce_gradients", from, each.name(), move |work| {
            work.layout.reduce_gradients = Some(each);
        });
    }
    for times in [2, 4] {
        let pipeline = work.pipeline.saturating_mul(times);
        if pipeline <= work.model.layers {
            let choice =
                choices.add("parallel.pipeline", work.pipeline, pipeline, move |work| work.pipeline = pipeline);
            choice.devices = times;
        }
    }
    choices.0
}

fn add_recompute(work: &ModelWork, choices: &mut Choices) {
    const FIELD: &str = "training.recompute";
    let (layers, usual) = (&work.layout.recompute_layers, work.layout.form.recompute);
    let now = match layers {
        // Already the least that fits.
        RecomputeLayers::Fit => return,
        RecomputeLayers::Each(choices) => RecomputeLayers::text_of(choices),
        _ => usual.name().to_string(),
    };
    choices.add(FIELD, &now, FIT, |work| {
        work.layout.recompute_layers = RecomputeLayers::Fit;
        work.layout.form.recompute = Recompute::None;
    });
    for recompute in Recompute::ALL.into_iter().skip(1) {
        if recompute == Recompute::Latents && work.model.variant.latent.is_none() {
            continue;
        }
        if recompute != usual || *layers != RecomputeLayers::All {
            choices.add(FIELD, &now, recompute.name(), move |work| {
                work.layout.recompute_layers = RecomputeLayers::All;
                work.layout.form.recompute = recompute;
            });
        }
    }
}

/// A smaller micro-batch size, with more microbatches: half the size, and one sequence.
fn add_smaller_microbatches(work: &ModelWork, choices: &mut Choices) {
    let size = work.microbatch_size;
    let mut smaller = Vec::new();
    smaller.extend((size > 1 && size.is_multiple_of(2)).then_some(size / 2));
    smaller.extend((size > 2 || size == 2 && smaller.is_empty()).then_some(1));
    for to in smaller {
        let microbatches = work.microbatches.saturating_mul(size / to);
        let choice = choices.add("training.microbatch_size", size, to, move |work| {
            work.microbatch_size = to;
            work.microbatches = microbatches;
        });
        choice.changes.push(Change {
            field: "training.microbatches",
            from: work.microbatches.to_string(),
            to: microbatches.to_string(),
        });
    }
}

/// A larger expert parallel degree over the devices that hold other tokens; where these are too few, more data-parallel
/// copies.
fn add_dealt_experts(work: &ModelWork, choices: &mut Choices) {
    const FIELD: &str = "parallel.expert";
    let Some(experts) = work.model.variant.experts else { return };
    let (now, data) = (work.layout.form.expert.max(1), work.layout.data.max(1));
    for times in [2, 4, 8, 16, 32, 64] {
        let expert = now.saturating_mul(times);
        if !experts.count.is_multiple_of(expert) {
            break;
        }
        // The fewest data-parallel copies for this expert parallel degree, which share the microbatches of a step.
        let with = |copies: u32| {
            let mut layout = work.layout.clone();
            (layout.form.expert, layout.data) = (expert, data.saturating_mul(copies));
            let mut faults = Vec::new();
            layout.find_faults(&work.model, work.sequence, &mut faults);
            faults.is_empty() && work.microbatches.is_multiple_of(copies)
        };
        let Some(copies) = [1, 2, 4, 8].into_iter().find(|copies| with(*copies)) else { continue };
        let (copied, microbatches) = (data.saturating_mul(copies), work.microbatches / copies);
        let choice = choices.add(FIELD, now, expert, move |work| {
            work.layout.form.expert = expert;
            (work.layout.data, work.microbatches) = (copied, microbatches);
        });
        choice.devices = copies;
        if copies > 1 {
            for (field, from, to) in
                [("parallel.data", data, copied), ("training.microbatches", work.microbatches, microbatches)]
            {
                choice.changes.push(Change { field, from: from.to_string(), to: to.to_string() });
            }
        }
    }
}
