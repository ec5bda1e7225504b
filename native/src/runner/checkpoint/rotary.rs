//! How a `config.json` says that rotary positions are scaled: `rope_scaling`, or `rope_parameters` in newer files.

use pipeplan_core::base::fields::Fault;
use serde_json::{Value, json};

use crate::backend::rotary::RopeScaling;

/// What `config` says of it; nothing where they are plain.
///
/// # Errors
/// What the runner does not do, or cannot read.
pub fn rope_scaling(config: &Value) -> Result<Option<RopeScaling>, String> {
    let Some((table, inner)) = tables(config)? else { return Ok(None) };
    let kind = |table: &Value| -> Result<Option<String>, String> {
        match table.get("rope_type").or_else(|| table.get("type")) {
            None | Some(Value::Null) => Ok(None),
            // Positions of images have several numbers (mrope), which no text needs.
            Some(Value::String(kind)) => {
                Ok(Some(kind.clone()).filter(|kind| !matches!(kind.as_str(), "default" | "mrope")))
            }
            Some(other) => Err(Fault::new("rope_type", other.clone(), "a text").to_string()),
        }
    };
    for of_layers in inner {
        if kind(of_layers)?.is_some() {
            return Err("it scales rotary positions of some layers alone (rope_parameters)".to_string());
        }
    }
    let Some(kind) = kind(table)? else { return Ok(None) };
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
    let scaling = match kind.as_str() {
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
        other => return Err(format!("it scales rotary positions in a way that is not run ({other})")),
    };
    Ok(Some(scaling))
}

/// The table of rotary positions of all layers, and those of kinds of layers within it: `rope_scaling` decides alone
/// where it is there, as in `transformers`.
type Tables<'a> = (&'a Value, Vec<&'a Value>);

/// Those of `config`.
fn tables(config: &Value) -> Result<Option<Tables<'_>>, String> {
    for name in ["rope_scaling", "rope_parameters"] {
        match &config[name] {
            Value::Null => {}
            Value::Object(fields) if fields.is_empty() => {}
            table @ Value::Object(fields) => {
                return Ok(Some((table, fields.values().filter(|inner| inner.is_object()).collect())));
            }
            other => return Err(Fault::new(name, other.clone(), "a table").to_string()),
        }
    }
    Ok(None)
}

/// `config` with `scaling`, in the words of `transformers`.
pub fn with_scaling(mut config: Value, scaling: Option<RopeScaling>) -> Value {
    let Some(scaling) = scaling else { return config };
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
    let name = if config["rope_parameters"].is_object() { "rope_parameters" } else { "rope_scaling" };
    if !config[name].is_object() {
        config[name] = json!({});
    }
    if let (Some(table), Value::Object(said)) = (config[name].as_object_mut(), said) {
        table.extend(said);
    }
    config
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
            assert_eq!(rope_scaling(&config), Ok(Some(scaling)));
            for plain in [json!({}), json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 1e4 } })] {
                assert_eq!(rope_scaling(&with_scaling(plain, Some(scaling))), Ok(Some(scaling)));
            }
        }
        for plain in
            [json!({}), json!({ "rope_scaling": null }), json!({ "rope_parameters": { "rope_type": "default" } })]
        {
            assert_eq!(rope_scaling(&plain), Ok(None));
            assert_eq!(with_scaling(plain.clone(), None), plain);
        }
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
