//! JSON as every room reads it: an error has its place, and each field may be given once.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
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

/// Most values of a text of JSON: lists, tables, and what is in them. A value takes some 32 bytes of memory, and
/// while its list grows half as much again.
pub const MOST_VALUES: usize = 32 << 20;

/// A text whose values are shorter than so many bytes on average is not read beyond [`FEW_VALUES`]: a list of zeros
/// takes sixteen times its text.
const LEAST_BYTES: usize = 4;
const FEW_VALUES: usize = 1 << 18;

/// Whether a text of TOML or JSON has at most `most` values, and not so short ones that reading it takes more than
/// twelve times its length of memory, and 12 MiB.
///
/// # Errors
/// [`Syntax`] at the value that is too many.
pub fn expect_few_values(format: &'static str, text: &str, most: usize) -> Result<(), Syntax> {
    let most = most.min(FEW_VALUES.max(text.len() / LEAST_BYTES));
    // Most texts have fewer bytes than that.
    if text.len() <= most {
        return Ok(());
    }
    // What TOML has in quotes is counted as well: it has four kinds of them, and comments.
    let quotes = format == "JSON";
    let (mut values, mut in_text, mut escaped) = (0usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' if quotes => in_text = !in_text,
            b',' | b'[' | b'{' | b'=' if !in_text => values += 1,
            _ => {}
        }
        if values > most {
            let message = alloc::format!(
                "more than {most} values in {} bytes: nothing that is read here has so many",
                text.len()
            );
            return Err(Syntax::at(format, text, at, message));
        }
    }
    Ok(())
}

/// JSON as a value, with the place of an error. A field that is given twice in one table is an error, as in TOML:
/// nobody knows which of the two is meant.
///
/// # Errors
/// [`Syntax`] with the place, also where the values are too many ([`expect_few_values`]).
pub fn parse(text: &str) -> Result<Value, Syntax> {
    expect_few_values("JSON", text, MOST_VALUES)?;
    read(text, PhantomData::<Once>).map(|once| once.0)
}

/// The words that Python's `json` writes in the place of a number, which JSON has not.
const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// As [`parse`], of a text that Python may have written: its words `Infinity`, `-Infinity` and `NaN` may stand as
/// values. Such a value is read as text, so that nobody takes it for a number.
///
/// # Errors
/// As [`parse`].
pub fn parse_python(text: &str) -> Result<Value, Syntax> {
    let plain = parse(text);
    let found = match &plain {
        Ok(_) => Vec::new(),
        Err(_) => words_in(text),
    };
    if found.is_empty() {
        return plain;
    }
    let mut quoted = String::with_capacity(text.len() + 2 * found.len());
    let mut copied = 0;
    for (start, end) in &found {
        quoted.push_str(&text[copied..*start]);
        quoted.push('"');
        quoted.push_str(&text[*start..*end]);
        quoted.push('"');
        copied = *end;
    }
    quoted.push_str(&text[copied..]);
    parse(&quoted).map_err(|error| {
        // Each word before the place took two more bytes.
        let offset =
            found.iter().fold(error.offset, |offset, (start, _)| offset - if *start < offset { 2 } else { 0 });
        Syntax::at("JSON", text, offset, error.message)
    })
}

/// From where to where each of [`WORDS`] stands in `text` as a value.
fn words_in(text: &str) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let (mut found, mut in_text, mut before, mut at) = (Vec::new(), false, b' ', 0);
    while let Some(byte) = bytes.get(at) {
        if in_text {
            in_text = *byte != b'"';
            at += if *byte == b'\\' { 2 } else { 1 };
            continue;
        }
        let follows = matches!(before, b':' | b',' | b'[');
        let word = WORDS.iter().find(|word| follows && bytes[at..].starts_with(word.as_bytes()));
        let end = at + word.map_or(1, |word| word.len());
        // Looked for behind a word alone: each byte is then passed once, or twice.
        let behind = word.and_then(|_| bytes[end..].iter().find(|byte| !byte.is_ascii_whitespace()));
        if matches!(behind, Some(b',' | b']' | b'}')) {
            found.push((at, end));
        }
        in_text = *byte == b'"';
        before = if byte.is_ascii_whitespace() { before } else { *byte };
        at = end;
    }
    found
}

/// JSON as `seed` takes it.
///
/// # Errors
/// [`Syntax`] with the place: of what is no JSON, or what the seed says.
pub(crate) fn read<'de, S: DeserializeSeed<'de>>(text: &'de str, seed: S) -> Result<S::Value, Syntax> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let read = seed.deserialize(&mut parser).and_then(|read| parser.end().map(|()| read));
    read.map_err(|error| {
        let offset = offset_of(text, error.line(), error.column());
        // The parser's sentence ends with the place, which is a separate field here.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_string();
        Syntax::at("JSON", text, offset, message)
    })
}

/// The `format` that a file says it has, a plan, a trace or a proof, and that of a profile, which is known by its
/// operators and the device that it measured; none for anything else, such as a spec.
pub fn format_of(text: &str) -> Option<&'static str> {
    // Only JSON objects have one: the rest is not parsed for this.
    text.trim_start().strip_prefix('{')?;
    let mut outline = Outline::default();
    let whole = read(text, &mut outline).is_ok();
    outline.said.or_else(|| (whole && outline.has == [true; 3]).then_some("pipeplan-profile"))
}

/// The fields by which a profile is known.
const PROFILE: [&str; 3] = ["version", "device", "operators"];

/// What a table of JSON says of its format; nothing else of it takes memory.
#[derive(Default)]
struct Outline {
    said: Option<&'static str>,
    /// Which of [`PROFILE`] it has.
    has: [bool; 3],
}

impl<'de> DeserializeSeed<'de> for &mut Outline {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Outline {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key::<String>()? {
            PROFILE.iter().zip(&mut self.has).for_each(|(known, has)| *has |= key == *known);
            if key != "format" {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let said = fields.next_value::<MaybeText>()?.0;
            let mut known = ["pipeplan-plan", "pipeplan-trace", "pipeplan-proof"].into_iter();
            self.said = known.find(|known| said.as_deref() == Some(known));
            if self.said.is_some() {
                // The rest, which may be long, says no more of it.
                return Err(A::Error::custom("known"));
            }
        }
        Ok(())
    }
}

/// A text, or none where it is anything else.
struct MaybeText(Option<String>);

impl<'de> Deserialize<'de> for MaybeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaybeText, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = MaybeText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<MaybeText, E> {
                Ok(MaybeText(None))
            }

            fn visit_bool<E>(self, _: bool) -> Result<MaybeText, E> {
                Ok(MaybeText(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<MaybeText, E> {
                Ok(MaybeText(None))
            }

            fn visit_i64<E>(self, _: i64) -> Result<MaybeText, E> {
                Ok(MaybeText(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<MaybeText, E> {
                Ok(MaybeText(None))
            }

            fn visit_str<E>(self, text: &str) -> Result<MaybeText, E> {
                Ok(MaybeText(Some(text.to_string())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<MaybeText, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(MaybeText(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<MaybeText, A::Error> {
                while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(MaybeText(None))
            }
        }
        deserializer.deserialize_any(Reader)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those that Python's `json.loads` gives, with text in the place of the three words; what it
    /// refuses is refused at the place where it stands.
    #[test]
    fn words_of_python_stand_as_values_alone() {
        use serde_json::json;
        for (text, value) in [
            (
                r#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN}"#,
                json!({"a": [0.0, "Infinity"], "b": "-Infinity", "c": "NaN"}),
            ),
            ("[ NaN\n, 1]", json!(["NaN", 1])),
            (r#"{"a": "x, NaN, \\", "b": [NaN]}"#, json!({"a": "x, NaN, \\", "b": ["NaN"]})),
            (
                r#"{"a": ": Infinity ,\" NaN ]", "Infinity": NaN}"#,
                json!({"a": ": Infinity ,\" NaN ]", "Infinity": "NaN"}),
            ),
            (r#"{"a": 1}"#, json!({"a": 1})),
        ] {
            assert_eq!(parse_python(text), Ok(value), "{text}");
        }
        for (text, line, column) in [
            (r#"{"a": [NaN], "b": Infinite}"#, 1, 19),
            ("{\"a\": [NaN,\nNaN], \"b\": x}", 2, 12),
            (r#"{Infinity: 1}"#, 1, 2),
            (r#"{"a": 1, NaN: 1}"#, 1, 10),
            (r#"{"a": +Infinity}"#, 1, 7),
            (r#"{"a": NaNa}"#, 1, 7),
            (r#"{"a": nan}"#, 1, 8),
            ("NaN", 1, 1),
        ] {
            let error = parse_python(text).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
        }
    }

    #[test]
    fn the_format_of_a_file_is_read_without_its_content() {
        for (text, format) in [
            (r#"{"format": "pipeplan-plan", "rows": [[], {}]}"#, Some("pipeplan-plan")),
            (r#" {"steps": [1, 2], "format": "pipeplan-trace"}"#, Some("pipeplan-trace")),
            (r#"{"version": 1, "device": {}, "operators": []}"#, Some("pipeplan-profile")),
            (r#"{"version": 1, "version": 1, "operators": []}"#, None),
            (r#"{"format": ["pipeplan-plan"]}"#, None),
            (r#"{"format": {"a": 1}, "device": null}"#, None),
            (r#"{"format": "pipeplan-plan""#, Some("pipeplan-plan")),
            (r#"{"version": 1, "device": {}, "operators": []"#, None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(format_of(text), format, "{text}");
        }
    }

    /// A list of the shortest values takes the most memory for its text.
    #[test]
    fn a_list_of_millions_of_zeros_is_refused_where_it_becomes_too_long() {
        let zeros = |count: usize| alloc::format!("[{}0]", "0,".repeat(count - 1));
        assert!(parse(&zeros(FEW_VALUES - 1)).is_ok());
        let refused = parse(&zeros(2 * FEW_VALUES)).expect_err("too many");
        assert_eq!((refused.line, refused.offset), (1, 2 * FEW_VALUES));
        assert!(refused.message.starts_with("more than 262144 values in 1048577 bytes"), "{refused}");
        // As many numbers of the length that times in ns have are read; and what is in quotes are no values.
        let times = alloc::format!("[{}0]", "123456,".repeat(2 * FEW_VALUES));
        assert!(parse(&times).is_ok());
        assert!(parse(&alloc::format!("[\"\\\"{}\"]", ",".repeat(4 * FEW_VALUES))).is_ok());
    }
}
