//! The table `training`: the batch, number formats, recomputation and offload.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use super::super::{Batch, FIT, Failures, MAX_MTBF_HOURS};
use super::default;
use crate::base::fields::{Fault, Table, one_of_like, shown, whole};
use crate::graph::form::{
    AttentionForm, Form, MAX_IMBALANCE_PERMILLE, MAX_ROUTER_LOSS, Offload, Recompute, RouterLosses,
};
use crate::graph::layout::RecomputeLayers;
use crate::graph::optimizer::Optimizer;
use crate::graph::post_training::{
    Frozen, Lora, MAX_ALPHA, MAX_RANGES, MAX_RANK, Module, NotFrozen, Targets, accepted_targets,
};
use crate::model::{Dtype, MAX_LAYERS, MAX_SIZE, to_e12};
use crate::problem::MAX_MICROBATCHES;

pub(super) struct Training {
    pub(super) microbatches: u32,
    pub(super) microbatch_size: u32,
    pub(super) sequence: u32,
    pub(super) tokens: Option<u64>,
    pub(super) dtype: Option<Dtype>,
    pub(super) form: Form,
    pub(super) optimizer: Optimizer,
    pub(super) bf16_moments: bool,
    pub(super) offload_optimizer: bool,
    pub(super) recompute_layers: RecomputeLayers,
    pub(super) offload_fits: bool,
    pub(super) batch: Batch,
    pub(super) failures: Failures,
}

/// Most training tokens.
const MAX_TRAINED: u64 = 1 << 53;

/// Most characters of recomputation by layer: `1 selective, ` for each layer has 13.
const MAX_RECOMPUTE_TEXT: usize = 16 * MAX_LAYERS as usize;

/// Most tokens of a microbatch.
const MAX_TOKENS: u64 = 1 << 26;

/// The table; `copies` is the DP degree.
pub(super) fn read_training(
    mut table: Table<'_>,
    usual_sequence: Option<u32>,
    copies: Option<u32>,
    faults: &mut Vec<Fault>,
) -> Option<Training> {
    let microbatch_size = table.whole("microbatch_size", 1..=u64::from(MAX_SIZE), faults);
    let at_once = copies.map(|copies| u64::from(copies) * microbatch_size.unwrap_or(default::MICROBATCH_SIZE.into()));
    let microbatches = read_microbatches(&mut table, at_once, faults);
    let sequence = match usual_sequence {
        Some(_) => table.whole("sequence", 1..=u64::from(MAX_SIZE), faults),
        None => table.needed_whole("sequence", 1..=u64::from(MAX_SIZE), faults),
    };
    let trained = table.count("tokens", 1..=MAX_TRAINED, faults);
    let dtype = table.choice("dtype", &[("bf16", Dtype::Bf16), ("f32", Dtype::F32), ("f64", Dtype::F64)], faults);
    let mut form = read_form(&mut table, faults);
    let (offload, offload_fits) = read_offload(&mut table, faults);
    form.offload = offload;
    let optimizers = Optimizer::ALL.map(|optimizer| (optimizer.name(), optimizer));
    let optimizer = table.choice("optimizer", &optimizers, faults).unwrap_or_default();
    let bf16_moments = table.choice("moments_dtype", &BF16, faults).unwrap_or(false);
    let offload_optimizer = table.flag("offload_optimizer", faults).unwrap_or(false);
    let recompute_layers = read_recompute(&mut table, &mut form, faults);
    form.frozen = read_frozen(&mut table, faults);
    form.lora = read_lora(&mut table, faults);
    let batch = Batch::read(&mut table, faults);
    let failures = Failures {
        elastic: table.flag("elastic", faults).unwrap_or(false),
        mtbf_hours: table.whole("mtbf_hours", 1..=MAX_MTBF_HOURS, faults).map(|hours| hours as u32),
    };
    table.finish(faults);
    let (microbatch_size, sequence) =
        (microbatch_size.map_or(default::MICROBATCH_SIZE, |size| size as u32), sequence.map(|tokens| tokens as u32));
    let sequence = sequence.or(usual_sequence)?;
    let tokens = u64::from(microbatch_size) * u64::from(sequence);
    if tokens > MAX_TOKENS {
        let accepted = format!("at most {} tokens in a microbatch", MAX_TOKENS);
        faults.push(Fault::new("training.microbatch_size", format!("{tokens} tokens in a microbatch"), accepted));
    }
    let microbatches = microbatches? as u32;
    Some(Training {
        microbatches,
        microbatch_size,
        sequence,
        tokens: trained,
        dtype,
        form,
        optimizer,
        bf16_moments,
        offload_optimizer,
        recompute_layers,
        offload_fits,
        batch,
        failures,
    })
}

/// The microbatches of a step: given, or from the global batch size. `at_once` is the number of sequences of one
/// microbatch over all replicas, where that is known.
fn read_microbatches(table: &mut Table<'_>, at_once: Option<u64>, faults: &mut Vec<Fault>) -> Option<u64> {
    const MOST: u64 = MAX_MICROBATCHES as u64;
    if table.get("global_batch_size").is_none() {
        return table.needed_whole("microbatches", 1..=MOST, faults);
    }
    let sequences = table.whole("global_batch_size", 1..=u64::from(u32::MAX), faults);
    let path = table.path("global_batch_size");
    if table.get("microbatches").is_some() {
        faults.push(Fault::new(
            path,
            "it together with `microbatches`",
            "one of the two: each follows from the other",
        ));
        return None;
    }
    let (sequences, at_once) = (sequences?, at_once?);
    let microbatches = sequences / at_once;
    if !sequences.is_multiple_of(at_once) || microbatches > MOST {
        let accepted =
            format!("a multiple of {at_once} (parallel.data × training.microbatch_size), at most {MOST} times that");
        faults.push(Fault::new(path, sequences, accepted));
        return None;
    }
    Some(microbatches)
}

/// The recomputation, and the layers that recompute.
fn read_recompute(table: &mut Table<'_>, form: &mut Form, faults: &mut Vec<Fault>) -> RecomputeLayers {
    let text = table.text_of("recompute", MAX_RECOMPUTE_TEXT, faults).unwrap_or(Recompute::None.name());
    let mut layers = RecomputeLayers::All;
    if let Some(choice) = Recompute::named(text) {
        form.recompute = choice;
    } else if text == FIT {
        layers = RecomputeLayers::Fit;
    } else if let Some(choices) = RecomputeLayers::read_text(text, MAX_LAYERS as usize) {
        layers = RecomputeLayers::Each(choices);
    } else {
        let accepted =
            "one of none, selective, cheap, latents, feed-forward, full, fit; or by layer, such as 3 full, 5 none";
        faults.push(Fault::new(table.path("recompute"), format!("\"{text}\""), accepted));
    }
    let first = table.whole("recompute_first", 0..=u64::from(MAX_LAYERS), faults);
    let group = table.whole("recompute_group", 0..=u64::from(MAX_LAYERS), faults);
    for (key, said) in [("recompute_first", first), ("recompute_group", group)] {
        let Some(count) = said else { continue };
        if layers != RecomputeLayers::All {
            let accepted = "nothing, because recompute is fit or given for each layer, or recompute_first and recompute_group are both given";
            faults.push(Fault::new(table.path(key), count, accepted));
            continue;
        }
        let count = count as u32;
        layers =
            if key == "recompute_first" { RecomputeLayers::First(count) } else { RecomputeLayers::Groups(count) };
    }
    layers
}

/// The activation offload, and whether it is fitted to the limit.
fn read_offload(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> (Offload, bool) {
    let said = match table.get("offload") {
        None => return (Offload::None, false),
        Some(Value::String(text)) => match text.as_str() {
            FIT => return (Offload::None, true),
            "none" => Some(Offload::None),
            "all" => Some(Offload::All),
            "scheduled" => Some(Offload::Scheduled),
            text => text.parse().ok().filter(|layers| (1..=MAX_LAYERS).contains(layers)).map(Offload::First),
        },
        Some(value) => {
            let layers = whole(value).filter(|layers| (1..=u64::from(MAX_LAYERS)).contains(layers));
            layers.map(|layers| Offload::First(layers as u32))
        }
    };
    let offload = said.unwrap_or_else(|| {
        let found = table.get("offload").map(shown).unwrap_or_default();
        let accepted =
            format!("none, all, fit, scheduled, or the number of first layers of each stage, from 1 to {MAX_LAYERS}");
        faults.push(Fault::new(table.path("offload"), found, accepted));
        Offload::None
    });
    (offload, false)
}

/// The texts of a list, or of one text with commas between, at `key`; each with its place.
fn read_texts<'v>(table: &mut Table<'v>, key: &'static str, faults: &mut Vec<Fault>) -> Vec<(String, &'v str)> {
    let path = table.path(key);
    let texts: Vec<(String, Option<&str>)> = match table.get(key) {
        None => return Vec::new(),
        Some(Value::String(text)) if text.is_empty() => return Vec::new(),
        Some(Value::String(text)) if text.split(',').count() <= MAX_TEXTS => {
            text.split(',').map(|part| (path.clone(), Some(part.trim()))).collect()
        }
        Some(Value::Array(items)) if items.len() <= MAX_TEXTS => {
            items.iter().enumerate().map(|(at, item)| (format!("{path}[{at}]"), item.as_str())).collect()
        }
        Some(value) => {
            let accepted = format!("a list of at most {MAX_TEXTS} names");
            faults.push(Fault::new(path, shown(value), accepted));
            return Vec::new();
        }
    };
    let mut read = Vec::new();
    for (path, text) in texts {
        match text {
            Some(text) => read.push((path, text)),
            None => faults.push(Fault::new(path, "another value", "a name")),
        }
    }
    read
}

/// Most names in a list of frozen weights or targets.
const MAX_TEXTS: usize = 100;

/// The weights that do not train.
fn read_frozen(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Frozen {
    let mut frozen = Frozen::NONE;
    for (path, text) in read_texts(table, "frozen", faults) {
        let accepted = match frozen.add(text) {
            Ok(()) => continue,
            Err(NotFrozen::TooMany) => format!("at most {MAX_RANGES} ranges of layers that do not touch"),
            Err(NotFrozen::Unknown) => {
                let names = Module::ALL.map(Module::name);
                format!("{}, or a range of layers such as layers.0-15", one_of_like(text, &names))
            }
        };
        faults.push(Fault::new(path, shown(&text.into()), accepted));
    }
    frozen
}

/// The adapters.
fn read_lora(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Option<Lora> {
    if table.peek("lora").and_then(Value::as_str) == Some("none") {
        table.get("lora");
        return None;
    }
    let mut table = table.table("lora", faults)?;
    let rank = table.needed_whole("rank", 1..=MAX_RANK.into(), faults);
    let alpha = table.whole("alpha", 1..=MAX_ALPHA.into(), faults);
    let mut targets = Targets::NONE;
    let says_targets = table.peek("targets").is_some();
    for (path, text) in read_texts(&mut table, "targets", faults) {
        if targets.add(text).is_none() {
            faults.push(Fault::new(path, shown(&text.into()), accepted_targets()));
        }
    }
    if says_targets && targets.is_empty() {
        let path = table.path("targets");
        faults.push(Fault::new(path, "no target", "at least one, or nothing at all for all-linear"));
    }
    table.finish(faults);
    let rank = rank? as u32;
    let alpha = alpha.map_or(rank, |alpha| alpha as u32);
    Some(Lora { rank, alpha, targets: if says_targets { targets } else { Targets::ALL } })
}

/// The one format of gradients and moments besides their usual one.
const BF16: [(&str, bool); 1] = [(Dtype::Bf16.name(), true)];

/// The fields of `training` that belong to the form.
fn read_form(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Form {
    let attention = [AttentionForm::Flash, AttentionForm::Materialised].map(|form| (form.name(), form));
    let imbalance = table.positive("expert_imbalance", f64::from(MAX_IMBALANCE_PERMILLE) / 1000.0, faults);
    let mut coefficient = |key| table.positive(key, MAX_ROUTER_LOSS, faults).map_or(0, to_e12);
    let router_losses = RouterLosses { balance_e12: coefficient("moe_aux_loss"), z_e12: coefficient("moe_z_loss") };
    Form {
        router_losses,
        imbalance_permille: imbalance.map_or(1000, |factor| libm::round(factor * 1000.0) as u32),
        attention: table.choice("attention", &attention, faults).unwrap_or_default(),
        dropout: table.flag("dropout", faults).unwrap_or(false),
        f32_logits: table.flag("f32_logits", faults).unwrap_or(false),
        matmul_dtype: table.choice("matmul_dtype", &Dtype::OF_MATMULS.map(|dtype| (dtype.name(), dtype)), faults),
        bf16_gradients: table.choice("gradients_dtype", &BF16, faults).unwrap_or(false),
        ..Form::default()
    }
}
