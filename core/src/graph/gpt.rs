//! A GPT-like decoder: LayerNorm, learned positions, a GELU feed-forward part, biases everywhere but in the
//! head, which is the embedding's table where the model is tied; and what later models of the kind change in it: rotary
//! positions, attention and MLP in parallel, no biases.
//!
//! GPT-3 has no public checkpoint; names and shapes of weights are those of Hugging Face's OPT, its closest
//! open relative.
//!
//! Source: arXiv:2005.14165 §2.1 and the GPT-2 report it refers to; arXiv:2204.06745 §2.1 (attention and MLP in
//! parallel); arXiv:2311.16867 §3 (one norm for both, no biases).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;

use super::builder::Builder;
use super::parts::rotate;
use super::{Init, Kernel, Split, TensorId};
use crate::model::{Activation, Arrangement};

const TABLE: &str = "model.decoder.embed_tokens.weight";

/// Tokens to the residual stream.
pub(super) fn embedding(build: &mut Builder, tokens: TensorId) -> TensorId {
    let (positions, hidden) = (build.model.positions.into(), build.hidden());
    let table = build.table(TABLE);
    let x = build.embedded(tokens, table, "embedding");
    if build.model.variant.rotary.is_some() {
        return build.dropout(x, "embedding with dropout");
    }
    let name = "model.decoder.embed_positions.weight".to_string();
    let table = build.new_weight(name, vec![positions, hidden], Init::Normal, false);
    let ways = if build.form.sequence_parallel { build.ways() } else { 1 };
    let kernel = Kernel::Positions { sequence: build.sequence, ways };
    let x = build.apply(kernel, &[x, table], "embedding with positions", hidden);
    build.dropout(x, "embedding with dropout")
}

/// One decoder layer on the residual stream `x`.
pub(super) fn layer(build: &mut Builder, x: TensorId, layer: u32) -> TensorId {
    let weight = |part: &str| format!("model.decoder.layers.{layer}.{part}");
    let (hidden, arrangement) = (build.hidden(), build.model.variant.arrangement);
    let (of_attention, of_feed_forward) = (weight("self_attn.out_proj.bias"), weight("fc2.bias"));

    let normed = layer_norm(build, x, weight("self_attn_layer_norm"), "attention input");
    if arrangement == Arrangement::InTurn {
        let entered = build.enter_split(normed, "attention input of all devices");
        let product = attention(build, entered, &weight);
        let projected = joined(build, product, [of_attention], "attention projected", "attention with dropout");
        let x = build.apply(Kernel::Add, &[x, projected], "after attention", hidden);
        let normed = layer_norm(build, x, weight("final_layer_norm"), "feed-forward input");
        let entered = build.enter_split(normed, "feed-forward input of all devices");
        let product = feed_forward(build, entered, &weight);
        let down = joined(build, product, [of_feed_forward], "feed-forward projected", "feed-forward with dropout");
        return build.apply(Kernel::Add, &[x, down], "output", hidden);
    }
    // What both parts make is summed over devices once; one dropout stands behind the sum.
    let other = match arrangement {
        Arrangement::BesideOneNorm => None,
        _ => Some(layer_norm(build, x, weight("final_layer_norm"), "feed-forward input")),
    };
    let entered = build.enter_split(normed, "attention input of all devices");
    let other = other.map_or(entered, |other| build.enter_split(other, "feed-forward input of all devices"));
    let attended = attention(build, entered, &weight);
    let down = feed_forward(build, other, &weight);
    let both = build.apply(Kernel::Add, &[attended, down], "both parts", hidden);
    let both = joined(build, both, [of_attention, of_feed_forward], "both projected", "both with dropout");
    build.apply(Kernel::Add, &[x, both], "output", hidden)
}

/// Attention with its last matrix, not yet summed over devices.
fn attention(build: &mut Builder, entered: TensorId, weight: &dyn Fn(&str) -> String) -> TensorId {
    let (hidden, heads, rotary) = (build.hidden(), build.heads(), build.model.variant.rotary);
    let (query, key_value) = (heads.query * heads.width, heads.key_value * heads.width);
    let of_queries = build.split_heads(build.model.heads, heads.width);
    let of_keys = build.split_heads(build.model.kv_heads, heads.width);
    let columns = build.split(1, build.model.heads.saturating_mul(build.model.head_dim));
    let names = if rotary.is_some() { ["q before rotation", "k before rotation"] } else { ["q", "k"] };
    let mut q = linear(build, entered, weight("self_attn.q_proj"), query, names[0], of_queries);
    let mut k = linear(build, entered, weight("self_attn.k_proj"), key_value, names[1], of_keys);
    let v = linear(build, entered, weight("self_attn.v_proj"), key_value, "v", of_keys);
    if rotary.is_some() {
        q = rotate(build, q, heads.query, "q");
        k = rotate(build, k, heads.key_value, "k");
    }
    let attended = build.attention(q, k, v);
    build.linear(attended, &weight("self_attn.out_proj"), hidden, "product", columns)
}

/// The feed-forward part, not yet summed over devices.
fn feed_forward(build: &mut Builder, entered: TensorId, weight: &dyn Fn(&str) -> String) -> TensorId {
    let (hidden, ffn) = (build.hidden(), build.share(build.model.ffn));
    let (rows, columns) = (build.split(0, build.model.ffn), build.split(1, build.model.ffn));
    let inner = linear(build, entered, weight("fc1"), ffn, "feed-forward inner", rows);
    let gelu = match build.model.variant.activation {
        Activation::PlainGeluTanh => Kernel::GeluTanh,
        _ => Kernel::Gelu,
    };
    let active = build.apply(gelu, &[inner], "gelu", ffn);
    build.linear(active, &weight("fc2"), hidden, "product", columns)
}

/// `product` summed over devices, with its biases and dropout.
fn joined<const N: usize>(
    build: &mut Builder,
    product: TensorId,
    biases: [String; N],
    name: &str,
    dropped: &str,
) -> TensorId {
    let hidden = build.hidden();
    let mut x = build.leave_split(product, "product of all devices");
    if !build.model.variant.no_bias {
        for bias in biases {
            let bias = build.new_weight(bias, vec![hidden], Init::Zeros, false);
            x = build.apply(Kernel::AddBias, &[x, bias], name, hidden);
        }
    }
    build.dropout(x, dropped)
}

/// The residual stream to logits.
pub(super) fn head(build: &mut Builder, x: TensorId) -> TensorId {
    let normed = layer_norm(build, x, "model.decoder.final_layer_norm".to_string(), "head input");
    let normed = build.enter_split(normed, "head input of all devices");
    build.logits(normed, TABLE)
}

pub(super) fn layer_norm(build: &mut Builder, x: TensorId, weight: String, name: &str) -> TensorId {
    let hidden = build.width_of(x);
    let gain = build.new_weight(format!("{weight}.weight"), vec![hidden], Init::Ones, false);
    let bias = build.new_weight(format!("{weight}.bias"), vec![hidden], Init::Zeros, false);
    let mean = build.statistic("mean", None);
    let inverse = build.statistic("inverse deviation", None);
    let kernel = Kernel::LayerNorm { eps_e12: build.model.norm_eps_e12 };
    let normed = build.apply(kernel, &[x, gain, bias], name, hidden);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.extend([mean, inverse]);
    }
    normed
}

/// A linear layer of which each device holds some rows, so that its bias is held like its matrix.
fn linear(build: &mut Builder, x: TensorId, weight: String, out: u64, name: &str, split: Option<Split>) -> TensorId {
    if build.model.variant.no_bias {
        return build.linear(x, &weight, out, name, split);
    }
    let product = build.linear(x, &weight, out, "product", split);
    let bias = build.weight_of(format!("{weight}.bias"), vec![out], Init::Zeros, false, split);
    build.apply(Kernel::AddBias, &[product, bias], name, out)
}
