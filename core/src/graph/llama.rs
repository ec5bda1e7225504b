//! A Llama-like decoder: RMSNorm, rotary positions, grouped KV heads, SwiGLU, no biases, and what other models of the
//! kind change in it ([`Variant`](crate::model::Variant)). Names and shapes of weights are those of Hugging Face's
//! checkpoints; the matrices of a layer's experts are held as one.
//!
//! Source: arXiv:2302.13971 §2.2; arXiv:2307.09288 §2.2 (grouped KV heads).

use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::builder::Builder;
use super::parts::{
    head_norm, layer_norm_of_heads, length, mlp, rms_norm, rotate, shared_layer_norm_of_heads, stream_norm,
    whole_norm,
};
use super::{Init, Kernel, TensorId, experts, latent, recurrence};
use crate::model::{Arrangement, E12, Experts, QkNorm, Temperature, to_e12};

const TABLE: &str = "model.embed_tokens.weight";

/// Tokens to the residual stream.
pub(super) fn embedding(build: &mut Builder, tokens: TensorId) -> TensorId {
    let table = build.table(TABLE);
    let x = build.embedded(tokens, table, "embedding");
    let mut x = build.scaled(x, build.model.variant.factors.embedding, "embedding scaled");
    if build.model.variant.embedding_norm {
        x = stream_norm(build, x, "model.embedding_norm", "embedding normed");
    }
    build.dropout(x, "embedding with dropout")
}

/// One decoder layer on the residual stream `x`.
pub(super) fn layer(build: &mut Builder, x: TensorId, layer: u32) -> TensorId {
    let weight = |part: &str| format!("model.layers.{layer}.{part}");
    let mut x = x;
    if build.model.variant.arrangement != Arrangement::InTurn {
        x = beside(build, x, layer, &weight);
    } else {
        if build.model.has_mixer(layer) {
            x = mixed(build, x, layer, &weight);
        }
        if build.model.has_mlp(layer) {
            x = fed_forward(build, x, layer, &weight);
        }
    }
    let scale = build.model.variant.layer_scale.then_some(E12);
    build.scaled(x, scale, "output scaled")
}

/// `x` with what attention and the MLP, or experts in its place, add to it, which work on the same stream. What attention and
/// an MLP make is summed over devices once.
fn beside(build: &mut Builder, x: TensorId, layer: u32, weight: &dyn Fn(&str) -> String) -> TensorId {
    let (hidden, variant) = (build.hidden(), build.model.variant);
    let normed = stream_norm(build, x, &weight("input_layernorm"), "attention input");
    let other = match variant.arrangement {
        Arrangement::BesideOneNorm => normed,
        _ => stream_norm(build, x, &weight("post_attention_layernorm"), "feed-forward input"),
    };
    let routed = variant.experts.filter(|_| build.model.has_experts(layer));
    let entered = build.enter_split(normed, "attention input of all devices");
    let other = match routed {
        // A router's devices are not always those that share matrices.
        Some(_) => other,
        None if other == normed => entered,
        None => build.enter_split(other, "feed-forward input of all devices"),
    };
    let attended = attention(build, entered, layer, weight);
    let attended = last_of_attention(build, attended, build.model.head_dim, weight);
    let both = match routed {
        Some(part) => {
            let attended = build.leave_split(attended, "attention of all devices");
            let routed = experts::feed_forward(build, other, None, part, weight);
            build.apply(Kernel::Add, &[attended, routed], "both parts", hidden)
        }
        None => {
            let down = mlp(build, other, build.model.ffn, &weight("mlp"));
            let both = build.apply(Kernel::Add, &[attended, down], "both parts", hidden);
            build.leave_split(both, "both parts of all devices")
        }
    };
    let both = last_bias(build, both, variant.o_bias, weight("self_attn.o_proj.bias"), "both parts");
    let both = last_bias(build, both, variant.mlp_bias, weight("mlp.down_proj.bias"), "both parts");
    let both = build.dropout(both, "both with dropout");
    let both = build.scaled(both, variant.factors.residual, "both scaled");
    build.apply(Kernel::Add, &[x, both], "output", hidden)
}

/// `x` with what attention adds to it, or a recurrence in its place.
fn mixed(build: &mut Builder, x: TensorId, layer: u32, weight: &dyn Fn(&str) -> String) -> TensorId {
    let (hidden, variant) = (build.hidden(), build.model.variant);
    let normed = match variant.no_pre_norms {
        true => x,
        false => stream_norm(build, x, &weight("input_layernorm"), "attention input"),
    };
    let mut projected = match build.model.recurrence(layer) {
        Some(recurrence) => recurrence::mixed(build, normed, recurrence, weight),
        None => attended(build, normed, layer, weight),
    };
    if variant.post_norms {
        projected = stream_norm(build, projected, &weight("post_attention_layernorm"), "attention normed");
    }
    let projected = build.dropout(projected, "attention with dropout");
    let projected = build.scaled(projected, variant.factors.residual, "attention scaled");
    build.apply(Kernel::Add, &[x, projected], "after attention", hidden)
}

/// `x` with what the MLP adds to it, or experts in its place.
fn fed_forward(build: &mut Builder, x: TensorId, layer: u32, weight: &dyn Fn(&str) -> String) -> TensorId {
    let (hidden, variant) = (build.hidden(), build.model.variant);
    let before = if variant.post_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
    let normed = match variant.no_pre_norms {
        true => x,
        false => stream_norm(build, x, &weight(before), "feed-forward input"),
    };
    let mut down = match variant.experts {
        Some(part) if build.model.has_experts(layer) && variant.mlp_beside_experts => {
            let dense = whole_mlp(build, normed, weight);
            let dense = stream_norm(build, dense, &weight("post_feedforward_layernorm_1"), "MLP normed");
            let routed = beside_mlp(build, x, part, weight);
            build.apply(Kernel::Add, &[dense, routed], "MLP and experts", hidden)
        }
        Some(part) if build.model.has_experts(layer) => experts::feed_forward(build, normed, None, part, weight),
        _ => whole_mlp(build, normed, weight),
    };
    if variant.post_norms {
        down = stream_norm(build, down, &weight("post_feedforward_layernorm"), "feed-forward normed");
    }
    let down = build.dropout(down, "feed-forward with dropout");
    let down = build.scaled(down, variant.factors.residual, "feed-forward scaled");
    build.apply(Kernel::Add, &[x, down], "output", hidden)
}

/// The MLP on `normed`, summed over devices.
fn whole_mlp(build: &mut Builder, normed: TensorId, weight: &dyn Fn(&str) -> String) -> TensorId {
    let entered = build.enter_split(normed, "feed-forward input of all devices");
    let down = mlp(build, entered, build.model.ffn, &weight("mlp"));
    let down = build.leave_split(down, "feed-forward of all devices");
    let has_bias = build.model.variant.mlp_bias;
    last_bias(build, down, has_bias, weight("mlp.down_proj.bias"), "feed-forward projected")
}

/// Experts on the stream `x` behind a norm of their own, beside an MLP; their router reads the stream behind another norm.
///
/// Source: the code of Gemma 4 in `transformers`.
fn beside_mlp(build: &mut Builder, x: TensorId, part: Experts, weight: &dyn Fn(&str) -> String) -> TensorId {
    let router = rms_norm(build, x, weight("router.scale"), "router's input normed");
    let scale = 1.0 / libm::sqrt(build.model.hidden.into());
    let router = build.scaled(router, Some(to_e12(scale)), "router's input");
    let normed = stream_norm(build, x, &weight("pre_feedforward_layernorm_2"), "experts' input");
    let routed = experts::feed_forward(build, normed, Some(router), part, weight);
    stream_norm(build, routed, &weight("post_feedforward_layernorm_2"), "experts normed")
}

/// Attention with its last matrix, summed over devices.
fn attended(build: &mut Builder, normed: TensorId, layer: u32, weight: &dyn Fn(&str) -> String) -> TensorId {
    let latent = build.model.variant.latent;
    let attended = match latent {
        Some(latent) => latent::attention(build, normed, latent, weight),
        None => {
            let entered = build.enter_split(normed, "attention input of all devices");
            attention(build, entered, layer, weight)
        }
    };
    let value_width = latent.map_or(build.model.head_dim, |latent| latent.value_width);
    let projected = last_of_attention(build, attended, value_width, weight);
    let projected = build.leave_split(projected, "attention of all devices");
    let o_bias = build.model.variant.o_bias;
    last_bias(build, projected, o_bias, weight("self_attn.o_proj.bias"), "attention projected")
}

/// What heads of so wide values attend to times the last matrix of attention, not yet summed over devices.
fn last_of_attention(
    build: &mut Builder,
    attended: TensorId,
    value_width: u32,
    weight: &dyn Fn(&str) -> String,
) -> TensorId {
    let hidden = build.hidden();
    let split = build.split(1, build.model.heads.saturating_mul(value_width));
    build.linear(attended, &weight("self_attn.o_proj"), hidden, "attention projected", split)
}

/// `x`, which is summed over devices, with the bias `bias` where there is one.
fn last_bias(build: &mut Builder, x: TensorId, has_bias: bool, bias: String, name: &str) -> TensorId {
    if !has_bias {
        return x;
    }
    let hidden = build.hidden();
    let bias = build.new_weight(bias, vec![hidden], Init::Zeros, false);
    build.apply(Kernel::AddBias, &[x, bias], name, hidden)
}

/// Attention of this device's heads to what all devices have `entered`, before its last matrix.
fn attention(build: &mut Builder, entered: TensorId, layer: u32, weight: &dyn Fn(&str) -> String) -> TensorId {
    let heads = build.heads();
    let (query, key_value) = (build.model.heads, build.model.kv_heads);
    let keys_are_values = build.model.global(layer).is_some_and(|global| global.keys_are_values);
    let mut projected = |name: &str, part: &str, whole: u32, heads: u64| {
        let width = heads * u64::from(build.model.head_dim);
        let split = build.split_heads(whole, build.model.head_dim.into());
        let mut x = build.linear(entered, &weight(&format!("self_attn.{part}_proj")), width, name, split);
        if build.model.variant.qkv_bias {
            let bias = format!("self_attn.{part}_proj.bias");
            let bias = build.weight_of(weight(&bias), vec![width], Init::Zeros, false, split);
            x = build.apply(Kernel::AddBias, &[x, bias], name, width);
        }
        build.clipped(x, build.model.variant.qkv_clip, name)
    };
    let q = projected("q before rotation", "q", query, heads.query);
    let k = projected("k before rotation", "k", key_value, heads.key_value);
    let mut v = if keys_are_values { k } else { projected("v", "v", key_value, heads.key_value) };
    let variant = build.model.variant;
    if variant.value_norm {
        v = length(build, v, heads.width, "v normed");
    }
    let gate = variant.attention_gate.then(|| {
        let split = build.split_heads(query, heads.width);
        build.linear(entered, &weight("self_attn.gate_proj"), heads.query * heads.width, "attention gate", split)
    });
    let norms = [weight("self_attn.q_norm.weight"), weight("self_attn.k_norm.weight")];
    let [q, k] =
        qk_norm(build, [q, k], &norms, |norm| !matches!(norm, QkNorm::RotatedHeads | QkNorm::RotatedLengths));
    let rotated = build.model.has_rope(layer);
    let [mut q, mut k] = [q, k];
    if rotated {
        q = rotate(build, q, heads.query, "q");
        k = rotate(build, k, heads.key_value, "k");
    }
    let [mut q, k] = qk_norm(build, [q, k], &norms, |norm| match norm {
        QkNorm::RotatedHeads => true,
        QkNorm::RotatedLengths => rotated,
        QkNorm::Heads | QkNorm::Whole | QkNorm::LayerHeads | QkNorm::SharedLayerHeads => false,
    });
    if let Some(Temperature { tokens, scale_e12 }) = variant.temperature.filter(|_| !rotated) {
        let kernel = Kernel::PositionScale { sequence: build.sequence, tokens: tokens.into(), scale_e12 };
        q = build.apply(kernel, &[q], "q by position", heads.query * heads.width);
    }
    let attended = match variant.sinks {
        true => {
            let split = build.split_heads(query, 1);
            let sinks = build.weight_of(weight("self_attn.sinks"), vec![heads.query], Init::Normal, false, split);
            build.attention_with_sinks([q, k, v], sinks)
        }
        false => build.attention(q, k, v),
    };
    match gate {
        Some(gate) => {
            build.apply(Kernel::SigmoidGate, &[attended, gate], "attended, gated", heads.query * heads.width)
        }
        None => attended,
    }
}

/// Norms of q and k, where the model has some and `is_here` says that their place is here.
fn qk_norm(
    build: &mut Builder,
    [q, k]: [TensorId; 2],
    weights: &[String; 2],
    is_here: impl Fn(QkNorm) -> bool,
) -> [TensorId; 2] {
    let (variant, heads) = (build.model.variant, build.heads());
    if !variant.qk_norm || !is_here(variant.qk_norm_of) {
        return [q, k];
    }
    let parts = [
        (q, heads.query, build.model.heads, weights[0].clone()),
        (k, heads.key_value, build.model.kv_heads, weights[1].clone()),
    ];
    parts.map(|(x, heads, whole, weight)| match variant.qk_norm_of {
        QkNorm::Heads | QkNorm::RotatedHeads => head_norm(build, x, heads, weight),
        QkNorm::Whole => whole_norm(build, x, [whole, build.model.head_dim], weight),
        QkNorm::RotatedLengths => length(build, x, build.model.head_dim.into(), "normed heads"),
        QkNorm::LayerHeads => layer_norm_of_heads(build, x, whole, weight),
        QkNorm::SharedLayerHeads => shared_layer_norm_of_heads(build, x, weight),
    })
}

/// The residual stream to logits.
pub(super) fn head(build: &mut Builder, x: TensorId) -> TensorId {
    let normed = stream_norm(build, x, "model.norm", "head input");
    let normed = build.enter_split(normed, "head input of all devices");
    build.logits(normed, TABLE)
}

/// Module `module` of multi-token prediction on the residual stream `x`, its layer counted behind the model's: the
/// stream behind it, of which [`further_norm`] and [`further_logits`] make the token that is one further. It reads the tokens up to there, which the text has
/// past the end of a sequence too. Devices that share matrices each hold the whole of its projection, which works on
/// the tokens between them.
///
/// Source: arXiv:2412.19437 §2.2; names of weights are those of DeepSeek-V3's checkpoint.
pub(super) fn further_token(build: &mut Builder, x: TensorId, module: u32) -> TensorId {
    let layer = build.model.layers + module;
    let weight = |part: &str| format!("model.layers.{layer}.{part}");
    let hidden = build.hidden();
    build.enter_layer(layer);
    build.split_tokens();
    let next = build.tokens_of("MTP tokens", module + 1);
    let table = build.one_table(TABLE);
    let embedded = build.embedded(next, table, "MTP embedding");
    let embedded = build.scaled(embedded, build.model.variant.factors.embedding, "MTP embedding scaled");
    let embedded = rms_norm(build, embedded, weight("enorm.weight"), "embedding normed");
    let stream = rms_norm(build, x, weight("hnorm.weight"), "stream normed");
    let both = build.apply(Kernel::JoinColumns, &[embedded, stream], "embedding and stream", 2 * hidden);
    let x = build.linear(both, &weight("eh_proj"), hidden, "projected", None);
    let x = self::layer(build, x, layer);
    build.layer = None;
    x
}

/// The norm of the stream behind module `module`, which belongs to the module.
pub(super) fn further_norm(build: &mut Builder, x: TensorId, module: u32) -> TensorId {
    let layer = build.model.layers + module;
    rms_norm(build, x, format!("model.layers.{layer}.shared_head.norm.weight"), "MTP head input")
}

/// The normed stream behind a module to logits.
pub(super) fn further_logits(build: &mut Builder, normed: TensorId) -> TensorId {
    let normed = build.enter_split(normed, "MTP head input of all devices");
    build.logits(normed, TABLE)
}
