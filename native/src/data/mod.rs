//! Data to train on: finds out what a file is, and gives its tokens by their place.
//!
//! - In: files of tokens or of text, and a tokenizer for the latter.
//! - Out: a [`Source`]: a row of tokens, whole documents one after the other, read by position; or a [`DataError`] that names
//!   the file, the place, what is there and what is expected.
//! - Knows: file formats. Nothing of models, ranks and batches: `runner::data` cuts sources into sequences.
//!
//! | Module | What it reads |
//! |---|---|
//! | [`megatron`] | indexed data of Megatron-LM: `NAME.bin` with `NAME.idx`; written, too |
//! | [`flat`] | files of 16- or 32-bit tokens, those of llm.c with their header, `.npy` |
//! | [`records`] | JSON lines and Parquet with text or tokens, and plain text through a tokenizer |
//! | [`chat`] | conversations, as a model's chat template writes them |
//! | [`tokenizer`] | `tokenizer.json`; bytes where there is none |
//! | `documents` | where the documents of a file begin |
//! | [`argument`] | `FILE` and `FILE:WEIGHT` as a command line says them |
//!
//! Files are read by position and never held whole. Text is tokenized once, into a temporary file without a name. Every value
//! is checked when it is read, so a file that changes or shrinks under a run gives an error and no wrong number.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub mod argument;
pub mod chat;
mod documents;
mod error;
pub mod flat;
pub mod megatron;
pub mod records;
mod source;
#[cfg(test)]
mod tests;
pub mod tokenizer;

pub use error::DataError;
pub use source::{Format, MASKED, Source, Width};
pub(crate) use source::{START_OF_DIGEST, digest_of};

use tokenizer::Tokenizer;

/// Most bytes of one document, of one line of JSON and of a text that goes through a tokenizer: each is held whole.
pub const MAX_DOCUMENT_BYTES: u64 = 16 << 20;

/// What of a file is read to find out what it is.
const HEAD_BYTES: u64 = 1 << 16;

/// Opens `path`, whatever it is: what it holds decides, and its name only where content says nothing. `tokenizer` is for text.
///
/// # Errors
/// [`DataError`] where it cannot be read, or is damaged.
pub fn open(path: &Path, tokenizer: &Tokenizer) -> Result<Source, DataError> {
    if let Some((data, index)) = megatron::pair(path) {
        return megatron::open(&data, &index);
    }
    let head = head(path)?;
    if head.starts_with(flat::NUMPY_MAGIC) {
        return flat::open_numpy(path);
    }
    if head.starts_with(records::PARQUET_MAGIC) {
        return records::open_parquet(path, tokenizer);
    }
    if let Some(header) = flat::llm_c_header(&head) {
        return flat::open_llm_c(path, header);
    }
    if let Some(width) = flat::width_of(path, &head) {
        return flat::open(path, width);
    }
    if records::is_json_lines(&head) {
        return records::open_json_lines(path, tokenizer);
    }
    match tokenizer {
        Tokenizer::Bytes => Source::of_bytes(path),
        Tokenizer::File(_) => records::open_text(path, tokenizer),
    }
}

/// The first bytes of a file.
fn head(path: &Path) -> Result<Vec<u8>, DataError> {
    let failed = DataError::file(path, "read");
    let known = std::fs::metadata(path).map_err(&failed)?;
    if known.is_dir() {
        return Err(DataError::File {
            path: path.to_path_buf(),
            done: "read",
            error: "it is a folder: give a file".to_string(),
        });
    }
    // A pipe can be read once: what it gives is a text.
    if !known.is_file() {
        return Ok(Vec::new());
    }
    let mut head = Vec::new();
    File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head)).map_err(&failed)?;
    Ok(head)
}

/// `path` with `extension` behind its name, whatever that is.
fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}
