//! A GPT-like decoder: LayerNorm, learned positions, a GELU feed-forward part, biases everywhere but in the
//! head, which is the embedding's table where the model is tied.
//!
//! GPT-3 has no public checkpoint; names and shapes of weights are those of Hugging Face's OPT, its closest
//! open relative.
//!
//! Source: arXiv:2005.14165 §2.1 and the GPT-2 report it refers to.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;

use super::build::Builder;
use super::{Init, Kernel, Split, TensorId};

const TABLE: &str = "model.decoder.embed_tokens.weight";

/// Tokens to the residual stream.
pub(super) fn embedding(build: &mut Builder, tokens: TensorId) -> TensorId {
    let (positions, hidden) = (build.model.positions.into(), build.hidden());
    let table = build.table(TABLE);
    let x = build.embedded(tokens, table, "embedding");
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
    let (hidden, ffn) = (build.hidden(), build.share(build.model.ffn));
    let heads = build.heads();
    let (query, key_value) = (heads.query * heads.width, heads.key_value * heads.width);
    let of_queries = build.split_heads(build.model.heads, heads.width);
    let of_keys = build.split_heads(build.model.kv_heads, heads.width);
    let attended_columns = build.split(1, build.model.heads.saturating_mul(build.model.head_dim));
    let (ffn_rows, ffn_columns) = (build.split(0, build.model.ffn), build.split(1, build.model.ffn));

    let normed = layer_norm(build, x, weight("self_attn_layer_norm"), "attention input");
    let normed = build.enter_split(normed, "attention input of all devices");
    let q = linear(build, normed, weight("self_attn.q_proj"), query, "q", of_queries);
    let k = linear(build, normed, weight("self_attn.k_proj"), key_value, "k", of_keys);
    let v = linear(build, normed, weight("self_attn.v_proj"), key_value, "v", of_keys);
    let attended = build.attention(q, k, v);
    let out_proj = weight("self_attn.out_proj");
    let projected = split_linear(build, attended, out_proj, "attention projected", attended_columns);
    let projected = build.dropout(projected, "attention with dropout");
    let x = build.apply(Kernel::Add, &[x, projected], "after attention", hidden);

    let normed = layer_norm(build, x, weight("final_layer_norm"), "feed-forward input");
    let normed = build.enter_split(normed, "feed-forward input of all devices");
    let inner = linear(build, normed, weight("fc1"), ffn, "feed-forward inner", ffn_rows);
    let active = build.apply(Kernel::Gelu, &[inner], "gelu", ffn);
    let down = split_linear(build, active, weight("fc2"), "feed-forward projected", ffn_columns);
    let down = build.dropout(down, "feed-forward with dropout");
    build.apply(Kernel::Add, &[x, down], "output", hidden)
}

/// The residual stream to logits.
pub(super) fn head(build: &mut Builder, x: TensorId) -> TensorId {
    let normed = layer_norm(build, x, "model.decoder.final_layer_norm".to_string(), "head input");
    let normed = build.enter_split(normed, "head input of all devices");
    build.logits(normed, TABLE)
}

fn layer_norm(build: &mut Builder, x: TensorId, weight: String, name: &str) -> TensorId {
    let hidden = build.hidden();
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
    let product = build.linear(x, &weight, out, "product", split);
    let bias = build.weight_of(format!("{weight}.bias"), vec![out], Init::Zeros, false, split);
    build.apply(Kernel::AddBias, &[product, bias], name, out)
}

/// A linear layer of which each device holds some columns: the products are summed before the bias.
fn split_linear(build: &mut Builder, x: TensorId, weight: String, name: &str, split: Option<Split>) -> TensorId {
    let hidden = build.hidden();
    let product = build.linear(x, &weight, hidden, "product", split);
    let product = build.leave_split(product, "product of all devices");
    let bias = build.new_weight(format!("{weight}.bias"), vec![hidden], Init::Zeros, false);
    build.apply(Kernel::AddBias, &[product, bias], name, hidden)
}
