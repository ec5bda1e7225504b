//! Which layers, and which stages, are alike: their times and bytes are worked out once.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::graphs::{choices_of, shape_of};
use crate::graph::build::trains_before;
use crate::graph::form::{Offload, Recompute};
use crate::model::{Modules, StageLayout};
use crate::spec::ModelWork;

/// The number of layers of each kind, whether the stage has the embedding and the head, its MTP modules, and the
/// recomputation of each layer where it differs between layers.
pub(super) type PartKey = ([u32; KINDS], (bool, bool, Modules), Vec<(Recompute, usize)>);

/// Kinds of layer: with experts or without, with a window or without, with rotary positions or without, and with attention
/// or a recurrence; frozen or not, and behind a part that trains or not.
pub(super) const KINDS: usize = 64;

/// The kind of `layer`: all layers of a kind are alike.
pub(crate) fn kind_of(work: &ModelWork, layer: u32) -> usize {
    let sequence = u64::from(work.sequence);
    let model = &work.model;
    let windowed =
        model.looks_back(layer, sequence) < sequence || model.attention_sequence(layer, sequence) < sequence;
    let form = &work.layout.form;
    let has = [
        model.has_experts(layer),
        windowed,
        !model.has_rope(layer),
        model.recurrence(layer).is_some(),
        form.frozen.has_layer(layer),
        !trains_before(
            model,
            &shape_of(
                work,
                &StageLayout { layers: layer..layer + 1, embedding: false, head: false, ..StageLayout::default() },
            ),
        ),
    ];
    has.into_iter().enumerate().map(|(bit, has)| usize::from(has) << bit).sum()
}

/// What decides the times and bytes of the stage that `layout` describes.
pub(super) fn key_of(work: &ModelWork, layout: &StageLayout) -> PartKey {
    let mut counts = [0u32; KINDS];
    layout.layers.clone().for_each(|layer| counts[kind_of(work, layer)] += 1);
    let mut by_layer = choices_of(work, layout).by_layer;
    let form = &work.layout.form;
    if by_layer.is_empty() && (matches!(form.offload, Offload::First(_)) || form.frozen.last_layer().is_some()) {
        // Offload depends on which layers come first, and the backward on which of them train.
        by_layer = vec![Recompute::None; layout.layers.len()];
    }
    let kinds = layout.layers.clone().map(|layer| kind_of(work, layer));
    (counts, (layout.embedding, layout.head, layout.modules), by_layer.into_iter().zip(kinds).collect())
}

/// The first of the `stages` of each kind, and by stage its kind.
pub(super) fn kinds_of<'l>(work: &ModelWork, stages: &'l [StageLayout]) -> (Vec<&'l StageLayout>, Vec<usize>) {
    let (mut known, mut firsts) = (BTreeMap::new(), Vec::new());
    let mut of = |layout: &'l StageLayout| {
        *known.entry(key_of(work, layout)).or_insert_with(|| {
            firsts.push(layout);
            firsts.len() - 1
        })
    };
    let of_stage = stages.iter().map(&mut of).collect();
    (firsts, of_stage)
}
