//! How a `config.json` says that rotary positions are scaled: `rope_scaling`, or `rope_parameters` in newer files.

use pipeplan_core::base::fields::Fault;
use serde_json::{Value, json};

use super::pretrained::tables;
use crate::backend::rotary::RotaryScaling;

/// What `config` says of it; nothing where they are plain.
///
/// # Errors
/// What the runner does not do, or cannot read.
pub fn rotary_scaling(config: &Value) -> Result<Option<RotaryScaling>, String> {
    let kind = |table: &Value| {
        let kind = table.get("rope_type").or_else(|| table.get("type")).and_then(Value::as_str);
        kind.filter(|kind| *kind != "default").map(str::to_owned)
    };
    let all: Vec<(&Value, Option<String>)> = tables(config).map(|table| (table, kind(table))).collect();
    let Some((table, kind)) = all.iter().find_map(|(table, kind)| Some((*table, kind.clone()?))) else {
        return Ok(None);
    };
    // What one kind of layers alone has, others have not.
    let plain = |(table, kind): &(&Value, Option<String>)| kind.is_none() && table.get("rope_theta").is_some();
    if all.iter().filter(|(_, kind)| kind.is_some()).count() > 1 || all.iter().any(plain) {
        return Err("it scales rotary positions of some layers alone (rope_parameters)".to_string());
    }
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
    let original = || {
        let beside = ["original_max_position_embeddings", "max_position_embeddings"];
        let beside = beside.into_iter().find_map(|name| config[name].as_f64());
        number("original_max_position_embeddings", beside)
    };
    let scaling = match kind.as_str() {
        "linear" => RotaryScaling::Linear { factor: number("factor", None)? },
        "llama3" => {
            let (low, high) = (number("low_freq_factor", None)?, number("high_freq_factor", None)?);
            if low >= high {
                return Err(format!("llama3: low_freq_factor is {low}, and high_freq_factor is {high}: give more"));
            }
            RotaryScaling::Llama3 { factor: number("factor", None)?, low, high, original: original()? }
        }
        "yarn" => {
            let (factor, original) = (number("factor", None)?, original()?);
            let stretched = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * libm::log(factor) + 1.0 };
            let usual = match [&table["mscale"], &table["mscale_all_dim"]].map(Value::as_f64) {
                [Some(own), Some(all)] if own != 0.0 && all != 0.0 => stretched(own) / stretched(all),
                _ => stretched(1.0),
            };
            RotaryScaling::Yarn {
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

/// `config` with `scaling`, in the words of `transformers`.
pub fn with_scaling(mut config: Value, scaling: Option<RotaryScaling>) -> Value {
    let Some(scaling) = scaling else { return config };
    let said = match scaling {
        RotaryScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RotaryScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original as u64,
        }),
        RotaryScaling::Yarn { factor, slow, fast, original, attention, whole_columns } => json!({
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

    /// Llama 3.2 1B's own words, a Qwen's with what the library fills in, and newer words; what is written is read back.
    #[test]
    fn what_files_say_is_read_and_written() {
        let llama = json!({ "rope_theta": 500000.0, "rope_scaling": { "factor": 32.0, "high_freq_factor": 4.0,
            "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3" } });
        let qwen = json!({ "max_position_embeddings": 32768, "rope_scaling": { "type": "yarn", "factor": 4.0 } });
        let newer = json!({ "rope_parameters": { "rope_type": "linear", "rope_theta": 1e4, "factor": 8.0 } });
        let yarn = RotaryScaling::Yarn {
            factor: 4.0,
            slow: 1.0,
            fast: 32.0,
            original: 32768.0,
            attention: 1.0 + 0.1 * libm::log(4.0),
            whole_columns: true,
        };
        for (config, scaling) in [
            (llama, RotaryScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 }),
            (qwen, yarn),
            (newer, RotaryScaling::Linear { factor: 8.0 }),
        ] {
            assert_eq!(rotary_scaling(&config), Ok(Some(scaling)));
            for plain in [json!({}), json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 1e4 } })] {
                assert_eq!(rotary_scaling(&with_scaling(plain, Some(scaling))), Ok(Some(scaling)));
            }
        }
        for plain in
            [json!({}), json!({ "rope_scaling": null }), json!({ "rope_parameters": { "rope_type": "default" } })]
        {
            assert_eq!(rotary_scaling(&plain), Ok(None));
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
        ] {
            let error = rotary_scaling(&config).expect_err("not run");
            assert!(error.contains(says), "{error}");
        }
    }
}
