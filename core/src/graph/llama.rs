//! A Llama-like decoder: RMSNorm, rotary positions, grouped KV heads, SwiGLU, no biases, and what newer models of the
//! kind change in it ([`Variant`](crate::model::Variant)). Names and shapes of weights are those of Hugging Face's
//! checkpoints; the matrices of a layer's experts are held as one.
//!
//! Source: arXiv:2302.13971 §2.2; arXiv:2307.09288 §2.2 (grouped KV heads).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;

use super::builder::Builder;
use super::parts::{gated, head_norm, rms_norm, rotate};
use super::{Init, Kernel, TensorId, experts, latent};

const TABLE: &str = "model.embed_tokens.weight";

/// Tokens to the residual stream.
pub(super) fn embedding(build: &mut Builder, tokens: TensorId) -> TensorId {
    let table = build.table(TABLE);
    let x = build.embedded(tokens, table, "embedding");
    let x = build.scaled(x, build.model.variant.factors.embedding, "embedding scaled");
    build.dropout(x, "embedding with dropout")
}

/// One decoder layer on the residual stream `x`.
pub(super) fn layer(build: &mut Builder, x: TensorId, layer: u32) -> TensorId {
    let weight = |part: &str| format!("model.layers.{layer}.{part}");
    let hidden = build.hidden();
    let variant = build.model.variant;

    let normed = rms_norm(build, x, weight("input_layernorm.weight"), "attention input");
    let attended = match variant.latent {
        Some(latent) => latent::attention(build, normed, latent, &weight),
        None => attention(build, normed, &weight),
    };
    let value_width = variant.latent.map_or(build.model.head_dim, |latent| latent.value_width);
    let split = build.split(1, build.model.heads.saturating_mul(value_width));
    let projected = build.linear(attended, &weight("self_attn.o_proj"), hidden, "attention projected", split);
    let mut projected = build.leave_split(projected, "attention of all devices");
    if variant.post_norms {
        projected = rms_norm(build, projected, weight("post_attention_layernorm.weight"), "attention normed");
    }
    let projected = build.dropout(projected, "attention with dropout");
    let projected = build.scaled(projected, variant.factors.residual, "attention scaled");
    let x = build.apply(Kernel::Add, &[x, projected], "after attention", hidden);

    let before = if variant.post_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
    let normed = rms_norm(build, x, weight(&format!("{before}.weight")), "feed-forward input");
    let mut down = match variant.experts {
        Some(part) if build.model.has_experts(layer) => experts::feed_forward(build, normed, part, &weight),
        _ => {
            let entered = build.enter_split(normed, "feed-forward input of all devices");
            let down = gated(build, entered, build.model.ffn, &weight("mlp"));
            build.leave_split(down, "feed-forward of all devices")
        }
    };
    if variant.post_norms {
        down = rms_norm(build, down, weight("post_feedforward_layernorm.weight"), "feed-forward normed");
    }
    let down = build.dropout(down, "feed-forward with dropout");
    let down = build.scaled(down, variant.factors.residual, "feed-forward scaled");
    build.apply(Kernel::Add, &[x, down], "output", hidden)
}

/// Attention of this device's heads, before its last matrix.
fn attention(build: &mut Builder, normed: TensorId, weight: &dyn Fn(&str) -> String) -> TensorId {
    let heads = build.heads();
    let normed = build.enter_split(normed, "attention input of all devices");
    let (query, key_value) = (build.model.heads, build.model.kv_heads);
    let mut projected = |name: &str, part: &str, whole: u32, heads: u64| {
        let width = heads * u64::from(build.model.head_dim);
        let split = build.split_heads(whole, build.model.head_dim.into());
        let x = build.linear(normed, &weight(&format!("self_attn.{part}_proj")), width, name, split);
        if !build.model.variant.qkv_bias {
            return x;
        }
        let bias = format!("self_attn.{part}_proj.bias");
        let bias = build.weight_of(weight(&bias), vec![width], Init::Zeros, false, split);
        build.apply(Kernel::AddBias, &[x, bias], name, width)
    };
    let q = projected("q before rotation", "q", query, heads.query);
    let k = projected("k before rotation", "k", key_value, heads.key_value);
    let v = projected("v", "v", key_value, heads.key_value);
    let q = head_norm(build, q, heads.query, weight("self_attn.q_norm.weight"));
    let k = head_norm(build, k, heads.key_value, weight("self_attn.k_norm.weight"));
    let q = rotate(build, q, heads.query, "q");
    let k = rotate(build, k, heads.key_value, "k");
    build.attention(q, k, v)
}

/// The residual stream to logits.
pub(super) fn head(build: &mut Builder, x: TensorId) -> TensorId {
    let normed = rms_norm(build, x, "model.norm.weight".to_string(), "head input");
    let normed = build.enter_split(normed, "head input of all devices");
    build.logits(normed, TABLE)
}

/// Module `module` of multi-token prediction on the residual stream `x`, its layer counted behind the model's: the
/// stream behind it, and logits of the token that is one further. It reads the tokens up to there, which the text has
/// past the end of a sequence too. Devices that share matrices each hold the whole of its projection, which works on
/// the tokens between them.
///
/// Source: arXiv:2412.19437 §2.2; names of weights are those of DeepSeek-V3's checkpoint.
pub(super) fn further_token(build: &mut Builder, x: TensorId, module: u32) -> (TensorId, TensorId) {
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
    let normed = rms_norm(build, x, weight("shared_head.norm.weight"), "MTP head input");
    let normed = build.enter_split(normed, "MTP head input of all devices");
    (x, build.logits(normed, TABLE))
}
