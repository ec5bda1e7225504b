//! From text to a spec: TOML or JSON, told apart by their first character.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::Spec;
use crate::fields::{Fault, Faults};
use crate::link::{self, LinkError};

/// Longest text that is read.
pub const MAX_TEXT_BYTES: usize = 64 << 20;

/// Text that is no TOML or JSON at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syntax {
    /// `TOML` or `JSON`.
    pub format: &'static str,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The same place in bytes from the start of the text.
    pub offset: usize,
    /// What the parser says.
    pub message: String,
}

impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is no {}: line {}, column {}: {}", self.format, self.line, self.column, self.message)
    }
}

impl core::error::Error for Syntax {}

/// Why a text is no spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// It cannot be parsed.
    Syntax(Syntax),
    /// It is a link, and that is damaged.
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
        return parse_json(text).map_err(SpecError::Syntax);
    }
    let read = parse_toml(text);
    // A bracket begins a table of TOML, or a list of JSON.
    if read.is_err() && text.trim_start().starts_with('[') && parse_json(text).is_ok() {
        let accepted = "an object of JSON or tables of TOML";
        return Err(SpecError::Faults(Fault::new("the whole input", "a list", accepted).into()));
    }
    read.map_err(SpecError::Syntax)
}

/// JSON as a value, with the place of an error. A field that stands twice in one table is an error, as in TOML: which of
/// the two was meant nobody can say.
pub(crate) fn parse_json(text: &str) -> Result<Value, Syntax> {
    serde_json::from_str::<Once>(text).map(|once| once.0).map_err(|error| {
        let offset = offset_of(text, error.line(), error.column());
        // The parser's own sentence ends with the place that stands beside it here.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_string();
        at("JSON", text, offset, message)
    })
}

/// A value in whose tables each field stands once.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Once, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
                Ok(Value::from(flag))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(Value::from(number))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(Value::from(number))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
                Ok(Value::from(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::from(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut list = Vec::new();
                while let Some(Once(item)) = items.next_element()? {
                    list.push(item);
                }
                Ok(Value::Array(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
                let mut table = Map::new();
                while let Some(key) = fields.next_key::<String>()? {
                    if table.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("the field {key:?} stands twice")));
                    }
                    let Once(value) = fields.next_value()?;
                    table.insert(key, value);
                }
                Ok(Value::Object(table))
            }
        }
        deserializer.deserialize_any(Reader).map(Once)
    }
}

fn parse_toml(text: &str) -> Result<Value, Syntax> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        at("TOML", text, offset, error.message().to_string())
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

fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    // serde_json counts a column in bytes from 1, and 0 for the end of the line before.
    (start + column.saturating_sub(1)).min(text.len())
}

fn at(format: &'static str, text: &str, offset: usize, message: String) -> Syntax {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Syntax {
        format,
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        offset,
        message,
    }
}
