//! Documents one after the other: JSON lines, rows of Parquet, or one text. Their tokens go into a temporary file without a
//! name, once.
//!
//! A document has one of these fields, the first that is there:
//!
//! | Field | What is trained on |
//! |---|---|
//! | `input_ids` or `tokens`, with `labels` or without | tokens as they are; where a label is −100, the token is not to be predicted |
//! | `prompt` with `completion` | both as text; tokens of the prompt are not to be predicted |
//! | `messages`, or `conversations`; with `tools` or without | what the model's [chat template](super::chat) writes; only tokens of the assistant are to be predicted |
//! | `text` | text |
//!
//! Behind a text comes the token that ends a document, if the tokenizer has one. A chat template writes its own ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::chat::Chat;
use super::documents::Documents;
use super::tokenizer::Tokenizer;
use super::{DataError, Format, MASKED, MAX_DOCUMENT_BYTES, Source, Width};

/// How a file of Parquet begins.
pub(super) const PARQUET_MAGIC: &[u8] = b"PAR1";

/// What a label says that is not to be predicted.
const IGNORED: i64 = -100;

/// The fields that are looked at.
const FIELDS: [&str; 9] =
    ["input_ids", "tokens", "labels", "prompt", "completion", "messages", "conversations", "tools", "text"];

const EXPECTED: &str =
    "`text`, `messages`, `prompt` with `completion`, or `input_ids` (or `tokens`) with `labels` or without";

/// The fields of a conversation.
const OF_CHATS: [&str; 2] = ["messages", "conversations"];
/// The fields that are used where both they and a conversation are there.
const BEFORE_CHATS: [&str; 3] = ["input_ids", "tokens", "prompt"];

/// One document.
enum Record {
    Text(String),
    Pair { prompt: String, completion: String },
    Chat(Chat),
    Tokens { tokens: Vec<i64>, labels: Option<Vec<i64>> },
}

/// Whether a file that begins so has an object of JSON on each line.
pub(super) fn is_json_lines(head: &[u8]) -> bool {
    let start = head.trim_ascii_start();
    if !start.starts_with(b"{") {
        return false;
    }
    match start.iter().position(|byte| *byte == b'\n') {
        Some(end) => serde_json::from_slice::<Map<String, Value>>(&start[..end]).is_ok(),
        // A line longer than what is looked at: it begins as an object does.
        None if head.len() as u64 >= super::HEAD_BYTES => start[1..].trim_ascii_start().starts_with(b"\""),
        None => serde_json::from_slice::<Map<String, Value>>(start).is_ok(),
    }
}

/// A file of JSON lines.
pub(super) fn open_json_lines(path: &Path, tokenizer: &Tokenizer) -> Result<Source, DataError> {
    let file = File::open(path).map_err(DataError::file(path, "read"))?;
    let mut lines = BufReader::with_capacity(1 << 16, file);
    let mut written = Written::new(path, tokenizer)?;
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let read = lines.by_ref().take(MAX_DOCUMENT_BYTES + 1).read_until(b'\n', &mut line);
        if read.map_err(DataError::file(path, "read"))? == 0 {
            break;
        }
        let place = format!("line {number}");
        if line.len() as u64 > MAX_DOCUMENT_BYTES {
            let expected = format!("at most {MAX_DOCUMENT_BYTES} bytes");
            return Err(DataError::wrong(path, place, "a longer line", expected));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let object: Map<String, Value> = serde_json::from_slice(&line)
            .map_err(|error| DataError::wrong(path, &place, error.to_string(), "one object of JSON"))?;
        let wrong = |(found, expected): (String, String)| DataError::wrong(path, &place, found, expected);
        let record = if is_chat(|name| object.contains_key(name)) {
            // In the order of the file: templates write objects as they are.
            let fields: BTreeMap<String, minijinja::Value> = serde_json::from_slice(&line)
                .map_err(|error| wrong((error.to_string(), "one object of JSON".to_string())))?;
            of_chat(&fields).map_err(wrong)?
        } else {
            of_json(&object).map_err(wrong)?
        };
        written.add(&place, record)?;
    }
    written.source(Format::JsonLines)
}

/// Whether a record with these fields is a conversation.
fn is_chat(has: impl Fn(&str) -> bool) -> bool {
    OF_CHATS.iter().any(|name| has(name)) && !BEFORE_CHATS.iter().any(|name| has(name))
}

fn of_chat(fields: &BTreeMap<String, minijinja::Value>) -> Result<Record, (String, String)> {
    let none = || ("no conversation".to_string(), "`messages`".to_string());
    Chat::of(fields)?.map(Record::Chat).ok_or_else(none)
}

fn of_json(object: &Map<String, Value>) -> Result<Record, (String, String)> {
    let numbers = |name: &str| -> Result<Option<Vec<i64>>, (String, String)> {
        let Some(value) = object.get(name) else { return Ok(None) };
        let numbers = value.as_array().and_then(|values| values.iter().map(Value::as_i64).collect());
        let wrong = || (format!("`{name}` is {}", kind_of(value)), "a list of whole numbers".to_string());
        numbers.map(Some).ok_or_else(wrong)
    };
    let text = |name: &str| -> Result<Option<String>, (String, String)> {
        match object.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(value) => Err((format!("`{name}` is {}", kind_of(value)), "a text".to_string())),
        }
    };
    let tokens = match numbers("input_ids")? {
        Some(tokens) => Some(tokens),
        None => numbers("tokens")?,
    };
    if let Some(tokens) = tokens {
        return Ok(Record::Tokens { tokens, labels: numbers("labels")? });
    }
    if let (Some(prompt), Some(completion)) = (text("prompt")?, text("completion")?) {
        return Ok(Record::Pair { prompt, completion });
    }
    if let Some(text) = text("text")? {
        return Ok(Record::Text(text));
    }
    let names: Vec<&str> = object.keys().map(String::as_str).take(8).collect();
    Err((
        format!("an object with {}", if names.is_empty() { "nothing".into() } else { names.join(", ") }),
        EXPECTED.into(),
    ))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list of something else",
        Value::Object(_) => "an object",
    }
}

/// A file of Parquet.
pub(super) fn open_parquet(path: &Path, tokenizer: &Tokenizer) -> Result<Source, DataError> {
    let wrong = |place: &str, error: parquet::errors::ParquetError| {
        DataError::wrong(
            path,
            place,
            error.to_string(),
            "Parquet, uncompressed or compressed by Snappy, LZ4, gzip, Brotli or Zstandard",
        )
    };
    let file = File::open(path).map_err(DataError::file(path, "read"))?;
    // The reader of damaged files may panic: what it says is an error of the file.
    guarded(path, || {
        let reader = SerializedFileReader::new(file).map_err(|error| wrong("its footer", error))?;
        let schema = reader.metadata().file_metadata().schema();
        let columns: Vec<Arc<Type>> =
            schema.get_fields().iter().filter(|field| FIELDS.contains(&field.name())).cloned().collect();
        if columns.is_empty() {
            let names: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).take(8).collect();
            return Err(DataError::wrong(path, "its columns", names.join(", "), EXPECTED));
        }
        let wanted = Type::group_type_builder(schema.name()).with_fields(columns).build();
        let wanted = wanted.map_err(|error| wrong("its columns", error))?;
        let rows = reader.get_row_iter(Some(wanted)).map_err(|error| wrong("its columns", error))?;
        let mut written = Written::new(path, tokenizer)?;
        for (number, row) in rows.enumerate() {
            let place = format!("row {number}");
            let row = row.map_err(|error| wrong(&place, error))?;
            let record = of_row(row).map_err(|(found, expected)| DataError::wrong(path, &place, found, expected))?;
            if let Some(record) = record {
                written.add(&place, record)?;
            }
        }
        written.source(Format::Parquet)
    })
}

/// `work`, whose panic is an error of the file.
fn guarded<R>(path: &Path, work: impl FnOnce() -> Result<R, DataError>) -> Result<R, DataError> {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err(DataError::wrong(path, "the file", "damaged data", "a whole file of Parquet")))
}

/// The document of a row; nothing where its text is null.
fn of_row(row: Row) -> Result<Option<Record>, (String, String)> {
    let is_there =
        |name: &str| row.get_column_iter().any(|(own, field)| own == name && !matches!(field, Field::Null));
    if is_chat(is_there) {
        let fields = row.get_column_iter().filter(|(_, field)| !matches!(field, Field::Null));
        return of_chat(&fields.map(|(name, field)| (name.clone(), of_field(field))).collect()).map(Some);
    }
    let mut object = Map::new();
    for (name, field) in row.into_columns() {
        let value = match field {
            Field::Null => continue,
            Field::Str(text) => Value::String(text),
            Field::Bytes(bytes) => {
                let text = String::from_utf8(bytes.data().to_vec());
                Value::String(text.map_err(|_| (format!("`{name}` is no UTF-8"), "a text".to_string()))?)
            }
            Field::ListInternal(list) => {
                let numbers: Option<Vec<Value>> = list.elements().iter().map(number).collect();
                Value::Array(
                    numbers.ok_or_else(|| {
                        (format!("`{name}` is a list of something else"), "whole numbers".to_string())
                    })?,
                )
            }
            other => return Err((format!("`{name}` is {other:?}"), "a text or a list of whole numbers".to_string())),
        };
        object.insert(name, value);
    }
    if object.is_empty() { Ok(None) } else { of_json(&object).map(Some) }
}

/// What a column of conversations holds. Fields of a structure that are null are left out, as a line of JSON would leave them.
fn of_field(field: &Field) -> minijinja::Value {
    match field {
        Field::Str(text) => text.as_str().into(),
        Field::Bytes(bytes) => String::from_utf8_lossy(bytes.data()).into_owned().into(),
        Field::Bool(is) => (*is).into(),
        Field::Float(number) => f64::from(*number).into(),
        Field::Double(number) => (*number).into(),
        Field::ListInternal(list) => list.elements().iter().map(of_field).collect(),
        Field::Group(group) => {
            let there = group.get_column_iter().filter(|(_, field)| !matches!(field, Field::Null));
            minijinja::Value::from_pairs(there.map(|(name, field)| (name.clone(), of_field(field))))
        }
        Field::MapInternal(map) => {
            minijinja::Value::from_pairs(map.entries().iter().map(|(key, value)| (of_field(key), of_field(value))))
        }
        // Other types are no part of a conversation.
        other => number(other).and_then(|number| number.as_i64()).map_or(().into(), minijinja::Value::from),
    }
}

fn number(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Byte(number) => Value::from(*number),
        Field::Short(number) => Value::from(*number),
        Field::Int(number) => Value::from(*number),
        Field::Long(number) => Value::from(*number),
        Field::UByte(number) => Value::from(*number),
        Field::UShort(number) => Value::from(*number),
        Field::UInt(number) => Value::from(*number),
        Field::ULong(number) => Value::from(*number),
        _ => return None,
    })
}

/// One text through a tokenizer.
pub(super) fn open_text(path: &Path, tokenizer: &Tokenizer) -> Result<Source, DataError> {
    let failed = DataError::file(path, "read");
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(&failed)?;
    file.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes).map_err(&failed)?;
    if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
        let expected = format!("at most {MAX_DOCUMENT_BYTES} bytes of text: give JSON lines, a document each");
        return Err(DataError::wrong(path, "its size", "a longer text", expected));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let place = format!("byte {}", error.utf8_error().valid_up_to());
        DataError::wrong(path, place, "no UTF-8", "text, or tokens in a file that ends in .u16, .u32, .bin or .npy")
    })?;
    let mut written = Written::new(path, tokenizer)?;
    written.add("the text", Record::Text(text))?;
    written.source(Format::Text)
}

/// Tokens on their way into a temporary file.
struct Written<'a> {
    path: &'a Path,
    tokenizer: &'a Tokenizer,
    file: BufWriter<File>,
    /// The first tokens of documents.
    starts: BufWriter<File>,
    documents: u64,
    tokens: u64,
    lengths: BTreeMap<u64, u64>,
    is_masked: bool,
    ends: bool,
}

impl<'a> Written<'a> {
    fn new(path: &'a Path, tokenizer: &'a Tokenizer) -> Result<Written<'a>, DataError> {
        let new = || tempfile::tempfile().map(|file| BufWriter::with_capacity(1 << 16, file)).map_err(in_folder());
        let (file, starts, lengths) = (new()?, new()?, BTreeMap::new());
        Ok(Written { path, tokenizer, file, starts, documents: 0, tokens: 0, lengths, is_masked: false, ends: false })
    }

    fn add(&mut self, place: &str, record: Record) -> Result<(), DataError> {
        let path = self.path;
        let wrong = |found: String, expected: &str| DataError::wrong(path, place, found, expected);
        let encode =
            |text: &str| self.tokenizer.encode(text).map_err(|error| wrong(error, "text that the tokenizer takes"));
        let mut all: Vec<u32> = match &record {
            Record::Text(text) => encode(text)?,
            Record::Pair { prompt, completion } => {
                let mut tokens: Vec<u32> = encode(prompt)?.into_iter().map(|token| token | MASKED).collect();
                tokens.extend(encode(completion)?);
                tokens
            }
            Record::Chat(chat) => {
                self.tokenizer.encode_chat(chat).map_err(|(found, expected)| wrong(found, &expected))?
            }
            Record::Tokens { tokens, labels } => {
                if let Some(labels) = labels.as_ref().filter(|labels| labels.len() != tokens.len()) {
                    let found = format!("{} labels for {} tokens", labels.len(), tokens.len());
                    return Err(wrong(found, "as many"));
                }
                let labels = labels.as_ref().unwrap_or(tokens);
                let marked = |(at, (token, label)): (usize, (&i64, &i64))| {
                    let value = u32::try_from(*token).ok().filter(|token| *token < MASKED);
                    let value = value
                        .ok_or_else(|| wrong(format!("token {at} is {token}"), "a number from 0 to 2147483647"))?;
                    match *label {
                        IGNORED => Ok(value | MASKED),
                        label if label == *token => Ok(value),
                        label => {
                            Err(wrong(format!("label {at} is {label}"), &format!("-100, or {token} as the token")))
                        }
                    }
                };
                tokens.iter().zip(labels).enumerate().map(marked).collect::<Result<_, _>>()?
            }
        };
        if matches!(record, Record::Text(_) | Record::Pair { .. })
            && let Some(end) = self.tokenizer.end()
        {
            all.push(end);
            self.ends = true;
        }
        if all.is_empty() {
            return Ok(());
        }
        self.is_masked |= all.iter().any(|token| token & MASKED > 0);
        let start = self.tokens;
        self.tokens += all.len() as u64;
        self.documents += 1;
        *self.lengths.entry(all.len() as u64).or_default() += 1;
        let mut write = || {
            self.starts.write_all(&start.to_le_bytes())?;
            all.iter().try_for_each(|token| self.file.write_all(&token.to_le_bytes()))
        };
        write().map_err(in_folder())
    }

    fn source(self, format: Format) -> Result<Source, DataError> {
        let Written { path, tokenizer, file, starts, documents, tokens, lengths, is_masked, ends } = self;
        let whole = |file: BufWriter<File>| file.into_inner().map_err(|error| in_folder()(error.into_error()));
        let (file, documents) = (whole(file)?, Documents::Starts(whole(starts)?, documents));
        let source = Source::of_file(path, format, file, 0, Width::Marked)?;
        let end = tokenizer.end().filter(|_| ends);
        Ok(Source { tokens, lengths, is_masked, end, documents, ..source })
    }
}

/// Of temporary files that cannot be written.
fn in_folder() -> impl Fn(std::io::Error) -> DataError {
    DataError::file(&std::env::temp_dir(), "written")
}
