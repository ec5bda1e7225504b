//! Multi-head latent attention: queries, keys and values are expanded from narrow latents, and a part of each key that
//! carries its position is shared by all heads.
//!
//! Devices that share matrices each hold all of those that make latents, and split those that expand them by heads.
//!
//! Source: arXiv:2405.04434 §2.1; names of weights are those of DeepSeek-V3's checkpoint.

use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::builder::Builder;
use super::gpt::layer_norm;
use super::parts::rms_norm;
use super::{Indexing, Init, Kernel, Role, TensorId};
use crate::model::{Dtype, Indexer, Latent};

/// Attention of this device's heads, before its last matrix.
pub(super) fn attention(
    build: &mut Builder,
    normed: TensorId,
    latent: Latent,
    weight: &dyn Fn(&str) -> String,
) -> TensorId {
    let heads = build.heads();
    let [rank, rope, value] = [latent.key_value_rank, latent.rope_width, latent.value_width].map(u64::from);
    let angles = build.angles();

    // Everything narrow is made on this device's tokens, before tokens are gathered.
    let query_latent = (latent.query_rank > 0).then(|| {
        let x = build.linear(normed, &weight("self_attn.q_a_proj"), latent.query_rank.into(), "query latent", None);
        rms_norm(build, x, weight("self_attn.q_a_layernorm.weight"), "query latent normed")
    });
    let both =
        build.linear(normed, &weight("self_attn.kv_a_proj_with_mqa"), rank + rope, "latent and shared key", None);
    let narrow = build.rows("latent", build.tokens, rank);
    let shared = build.rows("shared key", build.tokens, rope);
    build.operator(Kernel::SplitColumns, &[both], &[narrow, shared]);
    let narrow = rms_norm(build, narrow, weight("self_attn.kv_a_layernorm.weight"), "latent normed");
    let indexer = build.model.variant.indexer.zip(query_latent);
    let chosen = indexer.map(|(indexer, query)| (index(build, [normed, query], (indexer, rope), weight), indexer));

    let tokens = build.tokens;
    let from = build.enter_split(query_latent.unwrap_or(normed), "queries' input of all devices");
    build.tokens = tokens;
    let narrow = build.enter_split(narrow, "latent of all devices");
    build.tokens = tokens;
    let shared = build.enter_split(shared, "shared key of all devices");
    let part = if query_latent.is_some() { "self_attn.q_b_proj" } else { "self_attn.q_proj" };
    let split = build.split_heads(build.model.heads, heads.width);
    let q = build.linear(from, &weight(part), heads.query * heads.width, "q before rotation", split);
    let (sequence, width) = (build.sequence, heads.width);
    let kernel = Kernel::RopeTail { sequence, heads: heads.query, width, tail: rope, angles, inverse: false };
    let q = build.apply(kernel, &[q], "q", heads.query * width);
    let kernel = Kernel::Rope { sequence, heads: 1, width: rope, angles, inverse: false };
    let shared = build.apply(kernel, &[shared], "shared key rotated", rope);

    let own = width.saturating_sub(rope) + value;
    let split = build.split_heads(build.model.heads, own);
    let expanded = build.linear(narrow, &weight("self_attn.kv_b_proj"), heads.query * own, "expanded latent", split);
    let k = build.rows("k", build.tokens, heads.query * width);
    let v = build.rows("v", build.tokens, heads.query * value);
    build.operator(Kernel::LatentKeys { heads: heads.query }, &[expanded, shared], &[k, v]);
    match chosen {
        Some((chosen, indexer)) => build.attention_to([q, k, v], chosen, indexer.tokens.into()),
        None => build.attention(q, k, v),
    }
}

/// The tokens that each token attends to, by an indexer that learns from attention alone: no gradient goes back into the
/// stream. Devices that share matrices each choose for their own tokens, where tokens are dealt to them, and else all for
/// all of them. Its scores in the forward are one product of its queries with one key for all heads up to each token; what
/// it learns from takes three such products over what was chosen. Only planned: no backend runs it.
///
/// Source: the report of DeepSeek-V3.2 §2.1; names of weights are those of its checkpoint.
fn index(
    build: &mut Builder,
    [stream, query_latent]: [TensorId; 2],
    (indexer, rope): (Indexer, u64),
    weight: &dyn Fn(&str) -> String,
) -> TensorId {
    let [heads, width] = [indexer.heads, indexer.head_dim].map(u64::from);
    let (own, all) = (build.tokens, build.sequence);
    let name = |part: &str| weight(&format!("self_attn.indexer.{part}"));
    let mut projected = |x: TensorId, part: &str, out: u64, to: &str| {
        let shape = vec![out, build.width_of(x)];
        let weight = build.new_weight(name(&format!("{part}.weight")), shape, Init::Normal, false);
        build.apply(Kernel::DetachedMatMul, &[x, weight], to, out)
    };
    let q = projected(query_latent, "wq_b", heads * width, "index q before rotation");
    let k = projected(stream, "wk", width, "index k before norm");
    let weights = projected(stream, "weights_proj", heads, "index weights");
    let k = layer_norm(build, k, name("k_norm"), "index k before rotation");
    let angles = build.angles();
    let [q, k] = [(q, heads, "index q"), (k, 1, "index k")].map(|(x, heads, name)| {
        let kernel = Kernel::RopeTail { sequence: all, heads, width, tail: rope, angles, inverse: false };
        build.apply(kernel, &[x], name, heads * width)
    });
    let keys = build.gathered(k, "index k of all devices");
    let most = u64::from(indexer.tokens).min(all);
    let chosen = build.tensor("chosen tokens", vec![own, most], Dtype::I32, Role::Intermediate);
    let kernel = Kernel::IndexKeys(Indexing { sequence: all, tokens: most });
    build.operator(kernel, &[q, keys, weights], &[chosen]);
    build.gathered(chosen, "chosen tokens of all devices")
}
