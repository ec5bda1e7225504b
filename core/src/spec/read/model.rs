//! The table `model`: a name of the catalog, a `config.json`, or sizes by hand.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::Value;

use super::variant::read_variant;
use super::{aliases, default};
use crate::base::fields::{Fault, Table, one_of, one_of_like, shown};
use crate::model::{Family, MAX_LAYERS, MAX_SIZE, ModelConfig, Variant, catalog, hf_config, no_width};

pub(super) struct Model {
    pub(super) name: String,
    pub(super) config: ModelConfig,
}

/// The model of `value` at `path`, a table such as [`model_table`](crate::spec::model_table) writes. None where there
/// are `faults`.
pub fn read_model_table(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<ModelConfig> {
    let before = faults.len();
    let resolved = aliases::resolve(value, "model", path, faults);
    let model = Table::of(resolved.value(), path, faults).and_then(|table| read_model(table, faults));
    if let Some(model) = &model {
        model.config.find_faults(path, faults);
    }
    resolved.name_faults(&mut faults[before..]);
    model.map(|model| model.config).filter(|_| faults.len() == before)
}

pub(super) fn read_model(mut table: Table<'_>, faults: &mut Vec<Fault>) -> Option<Model> {
    let before = faults.len();
    let name = table.text("name", faults).unwrap_or_default();
    let entry = catalog::find(name);
    let read = read_config(&mut table, faults);
    if entry.is_some() && table.get("config").is_some() {
        let accepted = "nothing, or a name that is not in the catalog, because model.config is given";
        faults.push(Fault::new(table.path("name"), format!("\"{name}\""), accepted));
    }
    let known = read.as_ref().or(entry.map(|entry| &entry.config));
    let family = table
        .choice("family", &[("llama", Family::Llama), ("gpt", Family::Gpt)], faults)
        .or(known.map(|known| known.family))
        .unwrap_or(Family::Llama);

    // A size comes from the input or from the catalog. One fault names all missing sizes.
    let mut missing = Vec::new();
    let mut size = |key: &'static str, most: u64, known: Option<u32>, faults: &mut Vec<Fault>| {
        let typed = table.whole(key, 1..=most, faults).map(|size| size as u32);
        if typed.is_none() && known.is_none() && table.get(key).is_none() {
            missing.push(key);
        }
        typed.or(known)
    };
    let layers = size("layers", u64::from(MAX_LAYERS), known.map(|known| known.layers), faults);
    let hidden = size("hidden", u64::from(MAX_SIZE), known.map(|known| known.hidden), faults);
    let heads = size("heads", u64::from(MAX_SIZE), known.map(|known| known.heads), faults);
    let ffn = size("ffn", u64::from(MAX_SIZE), known.map(|known| known.ffn), faults);
    let vocab = size("vocab", u64::from(MAX_SIZE), known.map(|known| known.vocab), faults);
    let by_heads = |of: &ModelConfig| (of.kv_heads < of.heads).then_some(of.kv_heads);
    // Optional: the default is the number of heads.
    let kv_heads = table.whole("kv_heads", 1..=u64::from(MAX_SIZE), faults).map(|size| size as u32);
    let kv_heads = kv_heads.or(known.and_then(by_heads)).or(heads);
    let whole_width =
        hidden.zip(heads).and_then(|(hidden, heads)| hidden.is_multiple_of(heads).then(|| hidden / heads));
    let typed_head_dim = table.whole("head_dim", 1..=u64::from(MAX_SIZE), faults).map(|dim| dim as u32);
    let positions = table.whole("positions", 1..=u64::from(MAX_SIZE), faults).map(|positions| positions as u32);
    let rope_base = table.whole("rope_base", 1..=u64::from(u32::MAX), faults).map(|base| base as u32);
    let norm_eps_e12 = table.positive("norm_eps", 1.0, faults).map(|eps| libm::round(eps * 1e12) as u64);
    let tied = table.flag("tied", faults);
    let mut usual = known.map_or(Variant::USUAL, |known| known.variant);
    usual.vision = table.peek("config").and_then(hf_config::tower);
    let variant = read_variant(&mut table, usual, faults);

    if !missing.is_empty() && table.get("config").is_none() {
        let sizes = missing.join(", ");
        if name.is_empty() {
            faults.push(Fault::new(
                table.path("name"),
                "nothing",
                format!("{}; or by hand: {sizes}", one_of(&names())),
            ));
        } else if entry.is_none() {
            let accepted = format!("{}; or a name of your own with {sizes}", one_of_like(name, &names()));
            faults.push(Fault::new(table.path("name"), format!("\"{name}\""), accepted));
        }
    }
    // The catalog's head dim holds only with the catalog's hidden size and heads.
    let of_known = known.filter(|known| hidden == Some(known.hidden) && heads == Some(known.heads));
    let head_dim = typed_head_dim.or(of_known.map(|known| known.head_dim)).or(whole_width);
    if let (None, Some(hidden), Some(heads), None) = (head_dim, hidden, heads, table.get("head_dim")) {
        let accepted = no_width(hidden, "hidden", heads);
        faults.push(Fault::new(table.path("head_dim"), "nothing", accepted));
    }
    table.finish(faults);
    if faults.len() > before {
        return None;
    }
    let config = ModelConfig {
        family,
        layers: layers?,
        hidden: hidden?,
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        ffn: ffn?,
        vocab: vocab?,
        positions: positions.or(known.map(|known| known.positions)).unwrap_or(0),
        rope_base: rope_base.or(known.map(|known| known.rope_base)).unwrap_or(default::ROPE_BASE),
        norm_eps_e12: norm_eps_e12.or(known.map(|known| known.norm_eps_e12)).unwrap_or(default::NORM_EPS_E12),
        tied: tied.or(known.map(|known| known.tied)).unwrap_or(false),
        variant,
    };
    Some(Model { name: name.to_string(), config })
}

/// The sizes of `model.config`.
fn read_config(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Option<ModelConfig> {
    match table.get("config")? {
        value @ Value::Object(_) => hf_config::read(value, &table.path("config"), faults),
        other => {
            let accepted = "the content of a config.json as a table; the command line also reads a path";
            faults.push(Fault::new(table.path("config"), shown(other), accepted));
            None
        }
    }
}

fn names() -> Vec<&'static str> {
    catalog::catalog().iter().map(|entry| entry.name).collect()
}
