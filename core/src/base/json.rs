//! JSON as every room reads it: an error has its place, and each field may be given once.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Text that is not TOML or JSON.
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

impl Syntax {
    /// At this byte of `text`.
    pub(crate) fn at(format: &'static str, text: &str, offset: usize, message: String) -> Syntax {
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
}

impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is not {}: line {}, column {}: {}", self.format, self.line, self.column, self.message)
    }
}

impl core::error::Error for Syntax {}

/// JSON as a value, with the place of an error. A field that is given twice in one table is an error, as in TOML:
/// nobody knows which of the two is meant.
///
/// # Errors
/// [`Syntax`] with the place.
pub fn parse(text: &str) -> Result<Value, Syntax> {
    serde_json::from_str::<Once>(text).map(|once| once.0).map_err(|error| {
        let offset = offset_of(text, error.line(), error.column());
        // The parser's sentence ends with the place, which is a separate field here.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_string();
        Syntax::at("JSON", text, offset, message)
    })
}

/// The `format` that a file says it has, a plan, a trace or a proof, and that of a profile, which is known by its operators
/// and the device that it measured; none for anything else, such as a spec.
pub fn format_of(text: &str) -> Option<&'static str> {
    // Only JSON objects have one: the rest is not parsed for this.
    text.trim_start().strip_prefix('{')?;
    let value: Value = serde_json::from_str(text).ok()?;
    let said = value.get("format").and_then(Value::as_str);
    let is_profile = || ["version", "device", "operators"].iter().all(|key| value.get(key).is_some());
    let named = ["pipeplan-plan", "pipeplan-trace", "pipeplan-proof"].into_iter().find(|known| said == Some(known));
    named.or_else(|| is_profile().then_some("pipeplan-profile"))
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
                        return Err(A::Error::custom(format_args!("the field {key:?} is given twice")));
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

fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    // serde_json counts a column in bytes from 1, and 0 for the end of the line before.
    (start + column.saturating_sub(1)).min(text.len())
}
