//! Readers of `reference/`.

use serde_json::Value;

/// A table of `reference/` by its file name.
///
/// # Panics
/// Where the file is missing or no JSON: a broken checkout.
pub fn read(name: &str) -> Value {
    let path = format!("{}/reference/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The items of a list, or none.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Milliseconds of a table as whole nanoseconds.
pub fn ms(value: &Value) -> u64 {
    (value.as_f64().unwrap_or(0.0) * 1e6).round() as u64
}
