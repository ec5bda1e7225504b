//! A Llama-like decoder: RMSNorm, rotary positions, grouped KV heads, SwiGLU, no biases. Names and shapes of
//! weights are those of Hugging Face's Llama checkpoints.
//!
//! Source: arXiv:2302.13971 §2.2; arXiv:2307.09288 §2.2 (grouped KV heads).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;

use super::build::Builder;
use super::{Init, Kernel, TensorId};

const TABLE: &str = "model.embed_tokens.weight";

/// Tokens to the residual stream.
pub(super) fn embedding(build: &mut Builder, tokens: TensorId) -> TensorId {
    let hidden = build.hidden();
    let table = build.table(TABLE);
    let x = build.apply(Kernel::Embedding, &[tokens, table], "embedding", hidden);
    let x = build.leave_split(x, "embedding of all devices");
    build.dropout(x, "embedding with dropout")
}

/// One decoder layer on the residual stream `x`.
pub(super) fn layer(build: &mut Builder, x: TensorId, layer: u32) -> TensorId {
    let weight = |part: &str| format!("model.layers.{layer}.{part}");
    let (hidden, ffn) = (build.hidden(), build.share(build.model.ffn));
    let heads = build.heads();
    let (query, key_value) = (heads.query * heads.width, heads.key_value * heads.width);

    let normed = rms_norm(build, x, weight("input_layernorm.weight"), "attention input");
    let normed = build.enter_split(normed, "attention input of all devices");
    let q = build.linear(normed, &weight("self_attn.q_proj"), query, "q before rotation");
    let k = build.linear(normed, &weight("self_attn.k_proj"), key_value, "k before rotation");
    let v = build.linear(normed, &weight("self_attn.v_proj"), key_value, "v");
    let q = rotate(build, q, heads.query, "q");
    let k = rotate(build, k, heads.key_value, "k");
    let attended = build.attention(q, k, v);
    let projected = build.linear(attended, &weight("self_attn.o_proj"), hidden, "attention projected");
    let projected = build.leave_split(projected, "attention of all devices");
    let projected = build.dropout(projected, "attention with dropout");
    let x = build.apply(Kernel::Add, &[x, projected], "after attention", hidden);

    let normed = rms_norm(build, x, weight("post_attention_layernorm.weight"), "feed-forward input");
    let normed = build.enter_split(normed, "feed-forward input of all devices");
    let gate = build.linear(normed, &weight("mlp.gate_proj"), ffn, "gate");
    let up = build.linear(normed, &weight("mlp.up_proj"), ffn, "up");
    let product = build.apply(Kernel::SwiGlu, &[gate, up], "gated", ffn);
    let down = build.linear(product, &weight("mlp.down_proj"), hidden, "feed-forward projected");
    let down = build.leave_split(down, "feed-forward of all devices");
    let down = build.dropout(down, "feed-forward with dropout");
    build.apply(Kernel::Add, &[x, down], "output", hidden)
}

/// The residual stream to logits.
pub(super) fn head(build: &mut Builder, x: TensorId) -> TensorId {
    let normed = rms_norm(build, x, "model.norm.weight".to_string(), "head input");
    let normed = build.enter_split(normed, "head input of all devices");
    build.logits(normed, TABLE)
}

fn rms_norm(build: &mut Builder, x: TensorId, weight: String, name: &str) -> TensorId {
    let hidden = build.hidden();
    let gain = build.new_weight(weight, vec![hidden], Init::Ones, false);
    let inverse = build.statistic("inverse rms", None);
    let kernel = Kernel::RmsNorm { eps_e12: build.model.norm_eps_e12 };
    let normed = build.apply(kernel, &[x, gain], name, hidden);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.push(inverse);
    }
    normed
}

fn rotate(build: &mut Builder, x: TensorId, heads: u64, name: &str) -> TensorId {
    let width = u64::from(build.model.head_dim);
    let base = u64::from(build.model.rope_base);
    let kernel = Kernel::Rope { sequence: build.sequence, heads, width, base, inverse: false };
    build.apply(kernel, &[x], name, heads * width)
}
