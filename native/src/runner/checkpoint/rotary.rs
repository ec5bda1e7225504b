//! How a `config.json` says that rotary positions are scaled: `rope_scaling`, or `rope_parameters` in newer files.

use pipeplan_core::base::fields::Fault;
use serde_json::{Map, Value, json};

use super::OWN_WORDS;
use crate::backend::rotary::{LayerScaling, RopeScaling};

/// Kinds of models whose library has rotary positions for each kind of layer, and what this crate says in its own words.
const BY_KIND: [&str; 5] = ["gemma3_text", "gemma4_text", "mellum", "olmo3", "pipeplan-llama"];

/// Of those, the ones whose library takes `rope_scaling` for layers that see all tokens alone.
const FULL_ALONE: [&str; 2] = ["gemma3_text", "olmo3"];

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// What `config` says of it, by kind of layer.
///
/// # Errors
/// What the runner does not do, or cannot read.
pub fn rope_scaling(config: &Value) -> Result<LayerScaling, String> {
    let kind = config["model_type"].as_str().unwrap_or_default();
    let newer = table(config, "rope_parameters")?;
    let kinds = newer.filter(|table| table.values().any(Value::is_object));
    let of_kind =
        |name: &str| kinds.and_then(|table| table.get(name)).map_or(Ok(None), |table| scaling(config, table));
    if let Some(fields) = table(config, "rope_scaling")? {
        if fields.values().any(Value::is_object) {
            return Err("it scales rotary positions of some layers alone (rope_scaling)".to_string());
        }
        // It decides alone where it is there, as in `transformers`.
        let all = scaling(config, &config["rope_scaling"])?;
        let windowed = if FULL_ALONE.contains(&kind) { of_kind(SLIDING)? } else { all };
        return Ok(LayerScaling { full: all, windowed });
    }
    let Some(kinds) = kinds else {
        let all = newer.map_or(Ok(None), |_| scaling(config, &config["rope_parameters"]))?;
        // What is not by kind of layer their library leaves out.
        let is_left_out = FULL_ALONE.contains(&kind) && all.is_some();
        return match is_left_out {
            true => Err("it scales rotary positions of no kind of layer (rope_parameters)".to_string()),
            false => Ok(LayerScaling::of_all(all)),
        };
    };
    let is_scaled = |table: &&Value| kind_of(table).is_ok_and(|kind| kind.is_some());
    let of_others = kinds.iter().any(|(name, table)| ![FULL, SLIDING].contains(&name.as_str()) && is_scaled(&table));
    if of_others || !BY_KIND.contains(&kind) && kinds.values().any(|table| is_scaled(&table)) {
        return Err("it scales rotary positions of some layers alone (rope_parameters)".to_string());
    }
    Ok(LayerScaling { full: of_kind(FULL)?, windowed: of_kind(SLIDING)? })
}

/// The kind of scaling that a table of rotary positions names; none where they are plain.
fn kind_of(table: &Value) -> Result<Option<&str>, String> {
    match table.get("rope_type").or_else(|| table.get("type")) {
        None | Some(Value::Null) => Ok(None),
        // Positions of images have several numbers (mrope), which no text needs.
        Some(Value::String(kind)) => Ok(Some(kind.as_str()).filter(|kind| !matches!(*kind, "default" | "mrope"))),
        Some(other) => Err(Fault::new("rope_type", other.clone(), "a text").to_string()),
    }
}

/// What `table` of `config` says of the layers that it is of.
fn scaling(config: &Value, table: &Value) -> Result<Option<RopeScaling>, String> {
    let Some(kind) = kind_of(table)? else { return Ok(None) };
    let number = |name: &str, usual: Option<f64>| -> Result<f64, String> {
        let field = format!("{kind}: {name}");
        let value = match table.get(name).filter(|value| !value.is_null()) {
            None => usual.ok_or_else(|| Fault::new(field.clone(), "nothing", "a number above 0").to_string())?,
            Some(value) => value.as_f64().unwrap_or(f64::NAN),
        };
        match value > 0.0 && value.is_finite() {
            true => Ok(value),
            false => Err(Fault::new(field, table[name].clone(), "a number above 0").to_string()),
        }
    };
    // The library asks the top level first.
    let original = || {
        let name = "original_max_position_embeddings";
        let given = [&config[name], &table[name], &config["max_position_embeddings"]];
        let given = given.into_iter().find(|value| !value.is_null()).unwrap_or(&Value::Null);
        let tokens = given.as_u64().filter(|tokens| (1..=u64::from(u32::MAX)).contains(tokens));
        let accepted = "a whole number of tokens from 1 to 4294967295";
        tokens.map(|tokens| tokens as f64).ok_or_else(|| Fault::new(name, given.clone(), accepted).to_string())
    };
    Ok(Some(match kind {
        "linear" => RopeScaling::Linear { factor: number("factor", None)? },
        "llama3" => {
            let (low, high) = (number("low_freq_factor", None)?, number("high_freq_factor", None)?);
            if low >= high {
                return Err(format!("llama3: low_freq_factor is {low}, and high_freq_factor is {high}: give more"));
            }
            RopeScaling::Llama3 { factor: number("factor", None)?, low, high, original: original()? }
        }
        "yarn" => {
            let (factor, original) = (number("factor", None)?, original()?);
            let stretched = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * libm::log(factor) + 1.0 };
            let usual = match [&table["mscale"], &table["mscale_all_dim"]].map(Value::as_f64) {
                [Some(own), Some(all)] if own != 0.0 && all != 0.0 => stretched(own) / stretched(all),
                _ => stretched(1.0),
            };
            RopeScaling::Yarn {
                factor,
                slow: number("beta_slow", Some(1.0))?,
                fast: number("beta_fast", Some(32.0))?,
                original,
                attention: number("attention_factor", Some(usual))?,
                whole_columns: table["truncate"].as_bool().unwrap_or(true),
            }
        }
        // Which pairs are turned is a part of the model.
        "proportional" if config["model_type"] == "gemma4_text" => match number("factor", Some(1.0))? {
            1.0 => return Ok(None),
            factor => return Err(format!("proportional: factor is {factor}, and 1 is run")),
        },
        other => return Err(format!("it scales rotary positions in a way that is not run ({other})")),
    }))
}

/// The table `name` of `config`, if it is there and says anything.
fn table<'a>(config: &'a Value, name: &str) -> Result<Option<&'a Map<String, Value>>, String> {
    match &config[name] {
        Value::Null => Ok(None),
        Value::Object(fields) => Ok(Some(fields).filter(|fields| !fields.is_empty())),
        other => Err(Fault::new(name, other.clone(), "a table").to_string()),
    }
}

/// `config` with `scaling`, in the words of `transformers`.
pub fn with_scaling(mut config: Value, scaling: LayerScaling) -> Value {
    if scaling.is_plain() {
        return config;
    }
    let kinds = [(FULL, scaling.full), (SLIDING, scaling.windowed)];
    let has_kinds = kinds.iter().any(|(kind, _)| config["rope_parameters"][*kind].is_object());
    let kind = config["model_type"].as_str().unwrap_or_default();
    if scaling.windowed.is_none() && FULL_ALONE.contains(&kind) {
        put(&mut config["rope_scaling"], scaling.full);
    } else if scaling.full == scaling.windowed && !has_kinds && !FULL_ALONE.contains(&kind) {
        let name = if config["rope_parameters"].is_object() { "rope_parameters" } else { "rope_scaling" };
        put(&mut config[name], scaling.full);
    } else {
        let of_window =
            config["rope_local_base_freq"].as_f64().or_else(|| config[OWN_WORDS]["window"]["rope_base"].as_f64());
        let thetas = [config["rope_theta"].as_f64(), of_window.or_else(|| config["rope_theta"].as_f64())];
        for ((kind, scaling), theta) in kinds.into_iter().zip(thetas) {
            let table = &mut config["rope_parameters"][kind];
            if table["rope_theta"].is_null() {
                *table = json!({ "rope_type": "default", "rope_theta": theta });
            }
            put(table, scaling);
        }
    }
    config
}

/// Puts the words of `scaling` into a table of rotary positions.
fn put(table: &mut Value, scaling: Option<RopeScaling>) {
    let Some(scaling) = scaling else { return };
    let said = match scaling {
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original as u64,
        }),
        RopeScaling::Yarn { factor, slow, fast, original, attention, whole_columns } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "beta_slow": slow,
            "beta_fast": fast,
            "attention_factor": attention,
            "truncate": whole_columns,
            "original_max_position_embeddings": original as u64,
        }),
    };
    if !table.is_object() {
        *table = json!({});
    }
    super::extend(table, said);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3.2 1B's own words, a Qwen's with what the library fills in, and newer words; what is written is read
    /// back.
    #[test]
    fn what_files_say_is_read_and_written() {
        let llama = json!({ "rope_theta": 500000.0, "rope_scaling": { "factor": 32.0, "high_freq_factor": 4.0,
            "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3" } });
        let qwen = json!({ "max_position_embeddings": 32768, "rope_scaling": { "type": "yarn", "factor": 4.0 } });
        let newer = json!({ "rope_parameters": { "rope_type": "linear", "rope_theta": 1e4, "factor": 8.0 } });
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            slow: 1.0,
            fast: 32.0,
            original: 32768.0,
            attention: 1.0 + 0.1 * libm::log(4.0),
            whole_columns: true,
        };
        for (config, scaling) in [
            (llama, RopeScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 }),
            (qwen, yarn),
            (newer, RopeScaling::Linear { factor: 8.0 }),
        ] {
            let scaling = LayerScaling::of_all(Some(scaling));
            assert_eq!(rope_scaling(&config), Ok(scaling));
            for plain in [json!({}), json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 1e4 } })] {
                assert_eq!(rope_scaling(&with_scaling(plain, scaling)), Ok(scaling));
            }
        }
        for plain in
            [json!({}), json!({ "rope_scaling": null }), json!({ "rope_parameters": { "rope_type": "default" } })]
        {
            assert_eq!(rope_scaling(&plain), Ok(LayerScaling::default()));
            assert_eq!(with_scaling(plain.clone(), LayerScaling::default()), plain);
        }
    }

    /// Gemma 3 27B's own words and newer ones, and those of OLMo 3; what is written is read back.
    #[test]
    fn layers_with_a_window_are_scaled_by_themselves() {
        let linear = Some(RopeScaling::Linear { factor: 8.0 });
        let full = LayerScaling { full: linear, windowed: None };
        let own = json!({ "model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4,
            "rope_scaling": { "rope_type": "linear", "factor": 8.0 } });
        let newer = json!({ "model_type": "gemma3_text", "rope_parameters": {
            "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 1e6 },
            "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 } } });
        let olmo = json!({ "model_type": "olmo3", "rope_theta": 5e5, "rope_scaling": { "rope_type": "linear", "factor": 8.0 } });
        for config in [own, newer, olmo] {
            assert_eq!(rope_scaling(&config), Ok(full), "{config}");
        }
        let by_kind = json!({ "full_attention": { "rope_theta": 1e6 }, "sliding_attention": { "rope_theta": 1e4 } });
        let turned = LayerScaling { full: None, windowed: linear };
        for scaling in [full, turned, LayerScaling::of_all(linear)] {
            for plain in [
                json!({ "model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4 }),
                json!({ "model_type": "olmo3", "rope_parameters": by_kind }),
                json!({ "model_type": "mellum", "rope_parameters": by_kind }),
                json!({ "model_type": "pipeplan-llama", "rope_theta": 1e6, "pipeplan": { "window": { "rope_base": 10_000 } } }),
            ] {
                let written = with_scaling(plain, scaling);
                assert_eq!(rope_scaling(&written), Ok(scaling), "{written}");
                let tables = &written["rope_parameters"];
                if tables.is_object() {
                    let thetas = [FULL, SLIDING].map(|kind| tables[kind]["rope_theta"].as_f64());
                    assert_eq!(thetas, [Some(1e6), Some(1e4)], "{written}");
                }
            }
        }
        // The same layers of Gemma 4 turn a part of their pairs, which the model says.
        let proportional = |factor: f64| {
            json!({ "model_type": "gemma4_text", "rope_parameters": {
            "full_attention": { "rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": factor } } })
        };
        assert_eq!(rope_scaling(&proportional(1.0)), Ok(LayerScaling::default()));
        assert!(rope_scaling(&proportional(2.0)).is_err_and(|error| error.contains("factor is 2")));
    }

    #[test]
    fn what_is_not_run_is_named() {
        let by_kind = json!({ "rope_parameters": { "full_attention": { "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0 },
            "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 } } });
        for (config, says) in [
            (json!({ "rope_scaling": { "type": "longrope" } }), "(longrope)"),
            (json!({ "rope_scaling": { "type": "linear" } }), "linear: factor: found nothing"),
            (json!({ "rope_scaling": { "type": "linear", "factor": -1 } }), "linear: factor: found -1"),
            (json!({ "rope_scaling": { "type": "linear", "factor": "2" } }), "linear: factor: found \"2\""),
            (by_kind, "some layers alone"),
            (
                json!({ "model_type": "gemma3_text", "rope_parameters": { "rope_type": "linear", "factor": 8.0 } }),
                "of no kind of layer",
            ),
            (json!({ "rope_scaling": "yarn" }), "rope_scaling: found \"yarn\", accepted is a table"),
            (json!({ "rope_scaling": { "rope_type": ["yarn"] } }), "rope_type: found [\"yarn\"]"),
            (
                json!({ "rope_scaling": { "type": "yarn", "factor": 2, "original_max_position_embeddings": 0.5 } }),
                "original_max_position_embeddings: found 0.5",
            ),
        ] {
            let error = rope_scaling(&config).expect_err("not run");
            assert!(error.contains(says), "{error}");
        }
    }
}
