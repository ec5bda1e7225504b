//! The graph of a stage: the sizes and choices of a spec, and the operators that follow from them.

use alloc::vec::Vec;

use crate::graph::Graph;
use crate::graph::build::stage_graph_with;
use crate::graph::form::StageShape;
use crate::graph::passes::recompute::Choices;
use crate::graph::passes::{self, PassReport};
use crate::model::StageLayout;
use crate::spec::ModelWork;

/// The graph of the stage that `layout` describes. The runner executes this graph for `work`.
pub fn graph_of(work: &ModelWork, layout: &StageLayout) -> Graph {
    operators_of(work, layout).0
}

/// The graph, with the reports of the passes over it and of the pass over the step's gradients.
pub fn graph_and_reports(work: &ModelWork, layout: &StageLayout) -> (Graph, Vec<PassReport>) {
    let (graph, mut reports) = operators_of(work, layout);
    reports.extend(passes::reduce_gradients::account(&graph, &work.layout));
    (graph, reports)
}

fn operators_of(work: &ModelWork, layout: &StageLayout) -> (Graph, Vec<PassReport>) {
    let choices = choices_of(work, layout);
    // The loss of each slice is a share of the mean over all tokens of the step.
    let microbatches = work.microbatches.saturating_mul(work.layout.slices.max(1));
    stage_graph_with(&work.model, &shape_of(work, layout), microbatches, &choices)
}

pub(super) fn choices_of(work: &ModelWork, layout: &StageLayout) -> Choices {
    work.layout.recompute_layers.of_stage(work.layout.form.recompute, layout.layers.clone())
}

/// The sizes of the stage that `layout` describes, for one microbatch, or one slice of it.
pub fn shape_of(work: &ModelWork, layout: &StageLayout) -> StageShape {
    StageShape {
        layers: layout.layers.clone(),
        has_embedding: layout.embedding,
        has_head: layout.head,
        modules: layout.modules,
        microbatch_size: work.microbatch_size,
        sequence: work.sequence / work.layout.slices.max(1),
        dtype: work.dtype,
        form: work.layout.form,
    }
}
