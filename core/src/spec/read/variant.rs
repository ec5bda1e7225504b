//! The fields of `model` that make a layer differ from its family's usual one.

use alloc::format;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use serde_json::Value;

use super::vision::read_vision;
use crate::base::fields::{Fault, Table, shown};
use crate::model::{
    Activation, Arrangement, Caps, E12, Experts, Factors, Global, Indexer, Latent, LayerPattern, MAX_EXPERTS,
    MAX_FACTOR, MAX_MULTI_TOKEN, MAX_PATTERN, MAX_SIZE, Norm, QkNorm, Recurrence, RecurrenceKind, Routing, Scores,
    Temperature, Variant, Window, to_e12,
};

/// The variant: fields of the input, else those of `known`.
pub(super) fn read_variant(table: &mut Table<'_>, known: Variant, faults: &mut Vec<Fault>) -> Variant {
    let activations = Activation::ALL.map(|activation| (activation.name(), activation));
    let experts = if is_none(table, "experts") { None } else { read_experts(table, known.experts, faults) };
    let latent = if is_none(table, "latent") { None } else { read_latent(table, known.latent, faults) };
    let window = if is_none(table, "window") { None } else { read_window(table, known.window, faults) };
    let multi_token = table.whole("multi_token", 0..=u64::from(MAX_MULTI_TOKEN), faults);
    let rotary = if is_none(table, "rotary") {
        None
    } else {
        table.whole("rotary", 0..=u64::from(MAX_SIZE), faults).map(|columns| columns as u32).or(known.rotary)
    };
    let factors =
        if is_none(table, "factors") { Factors::default() } else { read_factors(table, known.factors, faults) };
    let caps = if is_none(table, "caps") { Caps::default() } else { read_caps(table, known.caps, faults) };
    let arrangements = Arrangement::ALL.map(|arrangement| (arrangement.name(), arrangement));
    let norms = QkNorm::ALL.map(|norm| (norm.name(), norm));
    let of_stream = Norm::ALL.map(|norm| (norm.name(), norm));
    Variant {
        qkv_bias: table.flag("qkv_bias", faults).unwrap_or(known.qkv_bias),
        qk_norm: table.flag("qk_norm", faults).unwrap_or(known.qk_norm),
        qk_norm_of: table.choice("qk_norm_of", &norms, faults).unwrap_or(known.qk_norm_of),
        post_norms: table.flag("post_norms", faults).unwrap_or(known.post_norms),
        no_pre_norms: table.flag("no_pre_norms", faults).unwrap_or(known.no_pre_norms),
        o_bias: table.flag("o_bias", faults).unwrap_or(known.o_bias),
        sinks: table.flag("sinks", faults).unwrap_or(known.sinks),
        attention_gate: table.flag("attention_gate", faults).unwrap_or(known.attention_gate),
        no_rope: read_pattern(table, "no_rope", known.no_rope, faults),
        no_mixer: read_pattern(table, "no_mixer", known.no_mixer, faults),
        no_mlp: read_pattern(table, "no_mlp", known.no_mlp, faults),
        temperature: read_temperature(table, known.temperature, faults),
        indexer: read_indexer(table, known.indexer, faults),
        recurrence: read_recurrence(table, known.recurrence, faults),
        activation: table.choice("activation", &activations, faults).unwrap_or(known.activation),
        experts,
        latent,
        window,
        multi_token: multi_token.map_or(known.multi_token, |modules| modules as u32),
        rotary,
        arrangement: table.choice("arrangement", &arrangements, faults).unwrap_or(known.arrangement),
        no_bias: table.flag("no_bias", faults).unwrap_or(known.no_bias),
        norm_offset: table.flag("norm_offset", faults).unwrap_or(known.norm_offset),
        norm: table.choice("norm", &of_stream, faults).unwrap_or(known.norm),
        embedding_norm: table.flag("embedding_norm", faults).unwrap_or(known.embedding_norm),
        mlp_bias: table.flag("mlp_bias", faults).unwrap_or(known.mlp_bias),
        head_bias: table.flag("head_bias", faults).unwrap_or(known.head_bias),
        qkv_clip: part_number(table, "qkv_clip", known.qkv_clip, faults),
        value_norm: table.flag("value_norm", faults).unwrap_or(known.value_norm),
        layer_scale: table.flag("layer_scale", faults).unwrap_or(known.layer_scale),
        mlp_beside_experts: table.flag("mlp_beside_experts", faults).unwrap_or(known.mlp_beside_experts),
        global: read_global(table, known.global, faults),
        factors,
        caps,
        vision: read_vision(table, known.vision, faults),
    }
}

/// Multipliers of the input, else known ones; `none` for none.
fn read_factors(table: &mut Table<'_>, known: Factors, faults: &mut Vec<Fault>) -> Factors {
    let Some(mut table) = table.table("factors", faults) else { return known };
    let mut number = |key, known| part_number(&mut table, key, known, faults);
    let factors = Factors {
        embedding: number("embedding", known.embedding),
        residual: number("residual", known.residual),
        attention: number("attention", known.attention),
        logits: number("logits", known.logits),
    };
    table.finish(faults);
    factors
}

/// As [`read_factors`].
fn read_caps(table: &mut Table<'_>, known: Caps, faults: &mut Vec<Fault>) -> Caps {
    let Some(mut table) = table.table("caps", faults) else { return known };
    let mut number = |key, known| part_number(&mut table, key, known, faults);
    let caps = Caps { attention: number("attention", known.attention), logits: number("logits", known.logits) };
    table.finish(faults);
    caps
}

/// A number of the input in units of 10⁻¹², else the known one; `none` for none.
fn part_number(table: &mut Table<'_>, key: &'static str, known: Option<u64>, faults: &mut Vec<Fault>) -> Option<u64> {
    if table.get(key).and_then(Value::as_str) == Some("none") {
        return None;
    }
    table.positive(key, MAX_FACTOR, faults).map(to_e12).or(known)
}

fn read_window(table: &mut Table<'_>, known: Option<Window>, faults: &mut Vec<Fault>) -> Option<Window> {
    let Some(mut table) = table.table("window", faults) else { return known };
    let tokens = part_size(&mut table, "tokens", known.map(|known| known.tokens), faults);
    let full_every = part_size(&mut table, "full_every", Some(known.map_or(0, |known| known.full_every)), faults);
    let pattern = read_pattern(&mut table, "layers", known.and_then(|known| known.layers), faults);
    // A period alone stands for what the catalog says of layers.
    let pattern = pattern.filter(|_| table.get("layers").is_some() || table.get("full_every").is_none());
    let chunked = table.flag("chunked", faults).unwrap_or(known.is_some_and(|known| known.chunked));
    let known_base = known.and_then(|known| known.rope_base);
    let rope_base = if is_none(&mut table, "rope_base") {
        None
    } else {
        table.whole("rope_base", 0..=u64::from(u32::MAX), faults).map(|base| base as u32).or(known_base)
    };
    table.finish(faults);
    Some(Window { layers: pattern, chunked, rope_base, ..Window::sliding(tokens?, full_every?) })
}

fn read_global(table: &mut Table<'_>, known: Option<Global>, faults: &mut Vec<Fault>) -> Option<Global> {
    if is_none(table, "global") {
        return None;
    }
    let Some(mut table) = table.table("global", faults) else { return known };
    let head_dim = part_size(&mut table, "head_dim", known.map(|known| known.head_dim), faults);
    let kv_heads = part_size(&mut table, "kv_heads", known.map(|known| known.kv_heads), faults);
    let known_rotary = known.and_then(|known| known.rotary);
    let rotary = if is_none(&mut table, "rotary") {
        None
    } else {
        let columns = table.whole("rotary", 0..=u64::from(MAX_SIZE), faults);
        columns.map(|columns| columns as u32).or(known_rotary)
    };
    let keys_are_values = table.flag("keys_are_values", faults);
    let keys_are_values = keys_are_values.unwrap_or(known.is_some_and(|known| known.keys_are_values));
    table.finish(faults);
    Some(Global { head_dim: head_dim?, kv_heads: kv_heads?, rotary, keys_are_values })
}

fn read_temperature(
    table: &mut Table<'_>,
    known: Option<Temperature>,
    faults: &mut Vec<Fault>,
) -> Option<Temperature> {
    if is_none(table, "temperature") {
        return None;
    }
    let Some(mut table) = table.table("temperature", faults) else { return known };
    let tokens = part_size(&mut table, "tokens", known.map(|known| known.tokens), faults);
    let scale_e12 = part_number(&mut table, "scale", known.map(|known| known.scale_e12), faults);
    if scale_e12.is_none() {
        faults.push(Fault::new(table.path("scale"), "nothing", "a number above 0, such as 0.1"));
    }
    table.finish(faults);
    Some(Temperature { tokens: tokens?, scale_e12: scale_e12? })
}

fn read_indexer(table: &mut Table<'_>, known: Option<Indexer>, faults: &mut Vec<Fault>) -> Option<Indexer> {
    if is_none(table, "indexer") {
        return None;
    }
    let Some(mut table) = table.table("indexer", faults) else { return known };
    let mut size = |key, known| part_size(&mut table, key, known, faults);
    let heads = size("heads", known.map(|known| known.heads));
    let head_dim = size("head_dim", known.map(|known| known.head_dim));
    let tokens = size("tokens", known.map(|known| known.tokens));
    table.finish(faults);
    Some(Indexer { heads: heads?, head_dim: head_dim?, tokens: tokens? })
}

fn read_recurrence(table: &mut Table<'_>, known: Option<Recurrence>, faults: &mut Vec<Fault>) -> Option<Recurrence> {
    if is_none(table, "recurrence") {
        return None;
    }
    let Some(mut table) = table.table("recurrence", faults) else { return known };
    let kinds = RecurrenceKind::ALL.map(|kind| (kind.name(), kind));
    let kind = table.choice("kind", &kinds, faults).or(known.map(|known| known.kind));
    let layers = read_pattern(&mut table, "layers", known.map(|known| known.layers), faults);
    for (key, is_missing) in [("kind", kind.is_none()), ("layers", layers.is_none())] {
        if is_missing && table.get(key).is_none() {
            let accepted = if key == "kind" { "delta-net or mamba-2" } else { "a pattern of layers, such as (1110)" };
            faults.push(Fault::new(table.path(key), "nothing", accepted));
        }
    }
    let mut size = |key, known| part_size(&mut table, key, known, faults);
    let key_heads = size("key_heads", known.map(|known| known.key_heads));
    let key_dim = size("key_dim", known.map(|known| known.key_dim));
    let heads = size("heads", known.map(|known| known.heads));
    let head_dim = size("head_dim", known.map(|known| known.head_dim));
    let convolution = size("convolution", Some(known.map_or(4, |known| known.convolution)));
    let bias = table.flag("convolution_bias", faults).unwrap_or(known.is_some_and(|known| known.convolution_bias));
    table.finish(faults);
    Some(Recurrence {
        kind: kind?,
        layers: layers?,
        key_heads: key_heads?,
        key_dim: key_dim?,
        heads: heads?,
        head_dim: head_dim?,
        convolution: convolution?,
        convolution_bias: bias,
    })
}

/// Whether a part is said to be `none`.
fn is_none(table: &mut Table<'_>, key: &'static str) -> bool {
    table.get(key).and_then(Value::as_str) == Some("none")
}

/// A size of the input, else the known one; a fault without either.
fn part_size(table: &mut Table<'_>, key: &'static str, known: Option<u32>, faults: &mut Vec<Fault>) -> Option<u32> {
    part_size_in(table, key, 0..=MAX_SIZE, known, faults)
}

fn part_size_in(
    table: &mut Table<'_>,
    key: &'static str,
    range: RangeInclusive<u32>,
    known: Option<u32>,
    faults: &mut Vec<Fault>,
) -> Option<u32> {
    let range = u64::from(*range.start())..=u64::from(*range.end());
    let typed = match known {
        Some(_) => table.whole(key, range, faults),
        None => table.needed_whole(key, range, faults),
    };
    typed.map(|size| size as u32).or(known)
}

fn read_experts(table: &mut Table<'_>, known: Option<Experts>, faults: &mut Vec<Fault>) -> Option<Experts> {
    let Some(mut table) = table.table("experts", faults) else { return known };
    let mut size = |key, range, known| part_size_in(&mut table, key, range, known, faults);
    let count = size("count", 1..=MAX_EXPERTS, known.map(|known| known.count));
    let active = size("active", 1..=count.unwrap_or(MAX_EXPERTS), known.map(|known| known.active));
    let ffn = size("ffn", 1..=MAX_SIZE, known.map(|known| known.ffn));
    let shared_ffn = size("shared_ffn", 0..=MAX_SIZE, Some(known.map_or(0, |known| known.shared_ffn)));
    let dense = size("dense_layers", 0..=MAX_SIZE, Some(known.map_or(0, |known| known.dense_layers)));
    let pattern = read_pattern(&mut table, "layers", known.and_then(|known| known.layers), faults);
    // A number of first layers alone stands for what the catalog says of layers.
    let gives_pattern = table.get("layers").is_some();
    let gives_dense = table.whole("dense_layers", 0..=u64::from(MAX_SIZE), &mut Vec::new());
    let pattern = pattern.filter(|_| gives_pattern || gives_dense.is_none());
    if let Some((pattern, first)) = pattern.zip(gives_dense.filter(|first| *first > 0)) {
        let accepted = format!("nothing or 0 together with `layers` ({})", pattern.text());
        faults.push(Fault::new(table.path("dense_layers"), first, accepted));
    }
    let shared_gate = table.flag("shared_gate", faults).unwrap_or(known.is_some_and(|known| known.shared_gate));
    let biases = table.flag("biases", faults).unwrap_or(known.is_some_and(|known| known.biases));
    let routing = read_routing(&mut table, known.map_or(Routing::USUAL, |known| known.routing), faults);
    table.finish(faults);
    let experts = Experts {
        count: count?,
        active: active?,
        ffn: ffn?,
        shared_ffn: shared_ffn?,
        dense_layers: dense?,
        layers: None,
        biases,
        shared_gate,
        routing,
    };
    Some(pattern.map_or(experts, |pattern| experts.within(pattern)))
}

/// A pattern of layers of the input, else the known one; `none` for none.
fn read_pattern(
    table: &mut Table<'_>,
    key: &'static str,
    known: Option<LayerPattern>,
    faults: &mut Vec<Fault>,
) -> Option<LayerPattern> {
    let Some(text) = table.text_of(key, MAX_PATTERN + 2, faults) else { return known };
    if text == "none" {
        return None;
    }
    let pattern = LayerPattern::read_text(text);
    if pattern.is_none() {
        let accepted =
            "a 0 or 1 for each of the first layers and, in parentheses, of those that repeat: 000(1), (01)";
        faults.push(Fault::new(table.path(key), shown(&text.into()), accepted));
    }
    pattern
}

fn read_routing(table: &mut Table<'_>, known: Routing, faults: &mut Vec<Fault>) -> Routing {
    let scores = Scores::ALL.map(|scores| (scores.name(), scores));
    Routing {
        scores: table.choice("scores", &scores, faults).unwrap_or(known.scores),
        normed: table.flag("normed", faults).unwrap_or(known.normed),
        factor: part_number(table, "factor", known.factor, faults).filter(|factor| *factor != E12),
        groups: part_size(table, "groups", Some(known.groups), faults).unwrap_or(known.groups),
        active_groups: part_size(table, "active_groups", Some(known.active_groups), faults)
            .unwrap_or(known.active_groups),
    }
}

fn read_latent(table: &mut Table<'_>, known: Option<Latent>, faults: &mut Vec<Fault>) -> Option<Latent> {
    let Some(mut table) = table.table("latent", faults) else { return known };
    let mut size = |key, known| part_size(&mut table, key, known, faults);
    let query_rank = size("query_rank", Some(known.map_or(0, |known| known.query_rank)));
    let key_value_rank = size("key_value_rank", known.map(|known| known.key_value_rank));
    let rope_width = size("rope_width", known.map(|known| known.rope_width));
    let value_width = size("value_width", known.map(|known| known.value_width));
    table.finish(faults);
    Some(Latent {
        query_rank: query_rank?,
        key_value_rank: key_value_rank?,
        rope_width: rope_width?,
        value_width: value_width?,
    })
}
