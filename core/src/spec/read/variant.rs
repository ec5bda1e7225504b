//! The fields of `model` that make a layer differ from its family's usual one.

use alloc::format;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use serde_json::Value;

use crate::base::fields::{Fault, Table, shown};
use crate::model::{
    Activation, Arrangement, Caps, E12, Experts, Factors, Latent, LayerPattern, MAX_EXPERTS, MAX_FACTOR,
    MAX_MULTI_TOKEN, MAX_PATTERN, MAX_SIZE, Routing, Scores, Variant, Window, to_e12,
};

/// The variant: fields of the input, else those of `known`.
pub(super) fn read_variant(table: &mut Table<'_>, known: Variant, faults: &mut Vec<Fault>) -> Variant {
    let activations = [Activation::Silu, Activation::Gelu].map(|activation| (activation.name(), activation));
    let none = |table: &mut Table<'_>, key| table.get(key).and_then(Value::as_str) == Some("none");
    let experts = if none(table, "experts") { None } else { read_experts(table, known.experts, faults) };
    let latent = if none(table, "latent") { None } else { read_latent(table, known.latent, faults) };
    let window = if none(table, "window") { None } else { read_window(table, known.window, faults) };
    let multi_token = table.whole("multi_token", 0..=u64::from(MAX_MULTI_TOKEN), faults);
    let rotary = if none(table, "rotary") {
        None
    } else {
        table.whole("rotary", 0..=u64::from(MAX_SIZE), faults).map(|columns| columns as u32).or(known.rotary)
    };
    let factors =
        if none(table, "factors") { Factors::default() } else { read_factors(table, known.factors, faults) };
    let caps = if none(table, "caps") { Caps::default() } else { read_caps(table, known.caps, faults) };
    let arrangements = Arrangement::ALL.map(|arrangement| (arrangement.name(), arrangement));
    Variant {
        qkv_bias: table.flag("qkv_bias", faults).unwrap_or(known.qkv_bias),
        qk_norm: table.flag("qk_norm", faults).unwrap_or(known.qk_norm),
        post_norms: table.flag("post_norms", faults).unwrap_or(known.post_norms),
        activation: table.choice("activation", &activations, faults).unwrap_or(known.activation),
        experts,
        latent,
        window,
        multi_token: multi_token.map_or(known.multi_token, |modules| modules as u32),
        rotary,
        arrangement: table.choice("arrangement", &arrangements, faults).unwrap_or(known.arrangement),
        no_bias: table.flag("no_bias", faults).unwrap_or(known.no_bias),
        norm_offset: table.flag("norm_offset", faults).unwrap_or(known.norm_offset),
        factors,
        caps,
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
    table.finish(faults);
    Some(Window { tokens: tokens?, full_every: full_every? })
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
    let routing = read_routing(&mut table, known.map_or(Routing::USUAL, |known| known.routing), faults);
    table.finish(faults);
    let experts = Experts {
        count: count?,
        active: active?,
        ffn: ffn?,
        shared_ffn: shared_ffn?,
        dense_layers: dense?,
        layers: None,
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
