//! From text to a spec: TOML or JSON. The first character tells which.

use alloc::string::ToString;
use core::fmt;

use serde_json::Value;

use super::Spec;
use crate::base::fields::{Fault, Faults};
use crate::base::json::{self, Syntax};
use crate::spec::link::{self, LinkError};

/// Longest text that is read.
pub const MAX_TEXT_BYTES: usize = 64 << 20;

/// Why a text is not a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// It cannot be parsed.
    Syntax(Syntax),
    /// It is a damaged link.
    Link(LinkError),
    /// Fields are missing, unknown or out of range.
    Faults(Faults),
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::Syntax(syntax) => fmt::Display::fmt(syntax, f),
            SpecError::Link(error) => fmt::Display::fmt(error, f),
            SpecError::Faults(faults) => fmt::Display::fmt(faults, f),
        }
    }
}

impl core::error::Error for SpecError {}

impl From<Faults> for SpecError {
    fn from(faults: Faults) -> SpecError {
        SpecError::Faults(faults)
    }
}

impl Spec {
    /// Reads a spec or a bare problem as TOML, as JSON, or as a link.
    ///
    /// # Errors
    /// [`SpecError`]: where the text stops being TOML or JSON, or every fault of its fields.
    pub fn read(text: &str) -> Result<Spec, SpecError> {
        if link::looks_like_one(text) {
            return link::read(text).map_err(SpecError::Link);
        }
        Ok(Spec::from_value(&parse(text)?)?)
    }
}

/// TOML or JSON as a value.
///
/// # Errors
/// [`Syntax`] with the place, or a fault for text that is too long.
pub fn parse(text: &str) -> Result<Value, SpecError> {
    if text.len() > MAX_TEXT_BYTES {
        let found = alloc::format!("{} bytes", text.len());
        let accepted = alloc::format!("at most {MAX_TEXT_BYTES} bytes");
        return Err(SpecError::Faults(Fault::new("the whole input", found, accepted).into()));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        return json::parse_python(text).map_err(SpecError::Syntax);
    }
    let read = parse_toml(text);
    // A bracket begins a table of TOML, or a list of JSON.
    if read.is_err() && text.trim_start().starts_with('[') && json::parse(text).is_ok() {
        let accepted = "an object of JSON or tables of TOML";
        return Err(SpecError::Faults(Fault::new("the whole input", "a list", accepted).into()));
    }
    read.map_err(SpecError::Syntax)
}

/// Most values of a text of TOML, each of which takes some hundred bytes while it is read; fields and values count apart. A
/// spec with numbers for each of the most stages that there can be has fewer.
const MOST_VALUES: usize = 1 << 21;

fn parse_toml(text: &str) -> Result<Value, Syntax> {
    json::expect_few_values("TOML", text, MOST_VALUES)?;
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        Syntax::at("TOML", text, offset, error.message().to_string())
    })?;
    Ok(value_of(toml::Value::Table(table)))
}

fn value_of(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::from(text),
        toml::Value::Integer(number) => Value::from(number),
        // JSON has no NaN: as text it is refused by name instead of being taken for a missing field.
        toml::Value::Float(number) if !number.is_finite() => Value::from(number.to_string()),
        toml::Value::Float(number) => Value::from(number),
        toml::Value::Boolean(flag) => Value::from(flag),
        toml::Value::Datetime(time) => Value::from(time.to_string()),
        toml::Value::Array(items) => items.into_iter().map(value_of).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.into_iter().map(|(key, value)| (key, value_of(value))).collect())
        }
    }
}
