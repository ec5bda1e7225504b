//! The floating-point operations that the model needs for one step.

use core::ops::Range;

use super::graphs::shape_of;
use super::kinds::{KINDS, kind_of};
use crate::graph::Job;
use crate::graph::build::{forward_graph, stage_graph};
use crate::graph::form::{Form, StageShape};
use crate::hardware::cost;
use crate::model::StageLayout;
use crate::spec::ModelWork;

/// Operations of a microbatch's forward and of its gradients, of `layers` with the embedding, or with the head.
fn forward_of(work: &ModelWork, layers: Range<u32>, [embedding, head]: [bool; 2]) -> u128 {
    let layout = StageLayout { layers, embedding, head, ..StageLayout::default() };
    let Form { frozen, lora, .. } = work.layout.form;
    let form = Form { frozen, lora, ..Form::default() };
    // Of whole sequences, slices or not.
    let shape = StageShape { form, sequence: work.sequence, ..shape_of(work, &layout) };
    match form.trains_all() {
        // Each matmul has two gradients.
        true => 3 * cost::job_flops(&forward_graph(&work.model, &shape, work.microbatches))[Job::F as usize],
        false => cost::needed_flops(&stage_graph(&work.model, &shape, work.microbatches)),
    }
}

/// See [`Derived::step_flops`](super::Derived::step_flops).
pub(super) fn step_flops(work: &ModelWork) -> u128 {
    // All layers of a kind are alike, and the head costs the same after each.
    let forward = |layer: u32, has_head: bool| forward_of(work, layer..layer + 1, [false, has_head]);
    let mut of_kinds: [Option<u128>; KINDS] = [None; KINDS];
    let layers = (0..work.model.layers).fold(0u128, |sum, layer| {
        let of_kind = of_kinds[kind_of(work, layer)].get_or_insert_with(|| forward(layer, false));
        sum.saturating_add(*of_kind)
    });
    // A tower is the only work on the stage of the embedding that has matmuls.
    let tower = work.model.variant.vision.map_or(0, |_| forward_of(work, 0..0, [true, false]));
    let last = work.model.layers.saturating_sub(1);
    let head = forward(last, true).saturating_sub(forward(last, false));
    let form = &work.layout.form;
    let shared = u128::from(form.tensor.max(1)) * u128::from(form.context.max(1));
    let all = layers.saturating_add(head).saturating_add(tower).saturating_mul(work.microbatches.into());
    all / shared
}
