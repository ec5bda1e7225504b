//! The graph of one stage from the model's sizes: the forward is written down, the backward derived from it.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use super::builder::Builder;
use super::form::StageShape;
use super::passes::PassReport;
use super::passes::recompute::Choices;
use super::{Graph, Kernel, Role, TensorId};
use super::{backward, gpt, liveness, llama, passes, vision};
use crate::model::{E12, Family, ModelConfig};

/// What the mean loss of multi-token prediction counts for beside the model's own, in units of 10⁻¹²: DeepSeek-V3's in the
/// last third of its training (arXiv:2412.19437 §4.2), and Megatron-LM's default.
pub const MULTI_TOKEN_WEIGHT_E12: u64 = E12 / 10;

/// The graph of the stage `shape` of `model`, in a step of `microbatches`. Takes time in proportion to its
/// layers.
pub fn stage_graph(model: &ModelConfig, shape: &StageShape, microbatches: u32) -> Graph {
    let same = Choices::same(shape.form.recompute);
    stage_graph_with(model, shape, microbatches, &same).0
}

/// As [`stage_graph`], with what is computed again by layer, and what each pass did to the graph.
pub fn stage_graph_with(
    model: &ModelConfig,
    shape: &StageShape,
    microbatches: u32,
    choices: &Choices,
) -> (Graph, Vec<PassReport>) {
    let mut graph = forward_graph(model, shape, microbatches);
    backward::derive(&mut graph, trains_before(model, shape));
    if shape.form.bf16_gradients {
        backward::sum_as_weights(&mut graph);
    }
    let mut reports = Vec::new();
    if !shape.form.trains_all() {
        reports.push(passes::frozen::account(&graph));
    }
    if shape.form.async_reduce {
        reports.push(passes::overlap_all_reduce::run(&mut graph));
    }
    passes::split_backward::run(&mut graph);
    if let Some(dtype) = shape.form.matmul_dtype {
        reports.push(passes::quantize::run(&mut graph, dtype));
    }
    let split = passes::split_backward::account(&graph);
    reports.extend([split, passes::recompute::rerun(&mut graph, choices)]);
    if let Some(layers) = shape.form.offload.layers() {
        reports.push(passes::offload_activations::run(&mut graph, shape.layers.clone(), layers));
    }
    liveness::run_in_place(&mut graph);
    (graph, reports)
}

/// Whether a stage before `shape`'s trains something, so that the gradient of the stage's input has somewhere to go.
/// Takes the time of a few layers.
pub fn trains_before(model: &ModelConfig, shape: &StageShape) -> bool {
    let form = &shape.form;
    let has = |layers: Range<u32>, has_embedding: bool| {
        let part = StageShape { layers, has_embedding, has_head: false, ..shape.clone() };
        forward_graph(model, &part, 1).weights().any(|(_, weight)| !weight.is_frozen())
    };
    if form.trains_all() || has(0..0, true) {
        return true;
    }
    // Layers that differ in more have the same modules.
    let mut tried = [[false; 2]; 2];
    let mut is_new = |layer: u32| {
        let [experts, recurs] = [model.has_experts(layer), model.recurrence(layer).is_some()].map(usize::from);
        !core::mem::replace(&mut tried[experts][recurs], true)
    };
    let mut layers = (0..shape.layers.start).filter(|layer| !form.frozen.has_layer(*layer));
    layers.any(|layer| is_new(layer) && has(layer..layer + 1, false))
}

/// Only the forward of [`stage_graph`], with nothing in place.
///
/// MTP modules apart from the head make streams of their own, which go to the next stage beside the model's. A stream that
/// arrives is normed and only lacks the head; but the last module's is not where a further module follows on a later
/// stage, since that one starts from what is not normed. The norm is then on the later stage.
pub fn forward_graph(model: &ModelConfig, shape: &StageShape, microbatches: u32) -> Graph {
    let mut build = Builder::new(*model, shape, microbatches);
    let all = model.variant.multi_token;
    let modules = shape.modules.of_stage(shape.has_head, all);
    let mut further = Vec::new();
    let mut stream = if shape.has_embedding {
        let vision = model.variant.vision;
        let images = vision.map(|of| vision::tokens(&mut build, of, shape.microbatch_size));
        let tokens = build.tokens_of("tokens", 0);
        let embedded = match model.family {
            Family::Llama => llama::embedding(&mut build, tokens),
            Family::Gpt => gpt::embedding(&mut build, tokens),
        };
        images.map_or(embedded, |images| vision::placed(&mut build, embedded, &images))
    } else {
        build.split_tokens();
        let streams = 1 + u64::from(modules.start);
        let received = build.activation("activation_in", streams * build.hidden(), Role::ActivationIn);
        let (stream, others) = apart(&mut build, received, streams);
        further = others;
        stream
    };
    for layer in shape.layers.clone() {
        build.enter_layer(layer);
        stream = match model.family {
            Family::Llama => llama::layer(&mut build, stream, layer),
            Family::Gpt => gpt::layer(&mut build, stream, layer),
        };
    }
    build.layer = None;
    // What the first module here reads: the stream of the module before it, or the model's own.
    let mut read = stream;
    if let Some(last) = further.last_mut().filter(|_| !modules.is_empty()) {
        read = *last;
        *last = llama::further_norm(&mut build, read, modules.start - 1);
    }
    if shape.has_head {
        // The loss is over all tokens, whoever holds what is between the matrices.
        let logits = match model.family {
            Family::Llama => llama::head(&mut build, stream),
            Family::Gpt => gpt::head(&mut build, stream),
        };
        build.loss(logits, 1, E12, microbatches);
        for module in 0..all {
            let normed = match further.get(module as usize) {
                Some(normed) => *normed,
                None => {
                    read = llama::further_token(&mut build, read, module);
                    llama::further_norm(&mut build, read, module)
                }
            };
            let logits = llama::further_logits(&mut build, normed);
            // L + λ / D · Σ of the modules' losses: equation 25 of arXiv:2412.19437.
            let weight_e12 = MULTI_TOKEN_WEIGHT_E12 / u64::from(all);
            build.loss(logits, module + 2, weight_e12, microbatches);
        }
        return build.graph;
    }
    for module in modules.clone() {
        read = llama::further_token(&mut build, read, module);
        let is_continued = module + 1 == modules.end && modules.end < all;
        further.push(if is_continued { read } else { llama::further_norm(&mut build, read, module) });
    }
    let out = together(&mut build, stream, &further);
    if build.graph[out].role == Role::Intermediate {
        build.graph.tensors[out.index()].role = Role::ActivationOut;
    }
    build.graph
}

/// The model's stream and those of MTP modules, of what a stage receives for `streams` of them.
fn apart(build: &mut Builder, received: TensorId, streams: u64) -> (TensorId, Vec<TensorId>) {
    let (mut parts, mut rest, hidden) = (Vec::new(), received, build.hidden());
    for left in (1..streams).rev() {
        let part = build.activation("stream received", hidden, Role::Intermediate);
        let others = build.activation(&format!("{left} streams received"), left * hidden, Role::Intermediate);
        build.operator(Kernel::SplitColumns, &[rest], &[part, others]);
        parts.push(part);
        rest = others;
    }
    parts.push(rest);
    (parts.remove(0), parts)
}

/// One tensor of all streams, for the next stage.
fn together(build: &mut Builder, stream: TensorId, further: &[TensorId]) -> TensorId {
    let hidden = build.hidden();
    further.iter().zip(2..).fold(stream, |so_far, (more, streams)| {
        build.apply(Kernel::JoinColumns, &[so_far, *more], &format!("{streams} streams"), streams * hidden)
    })
}
