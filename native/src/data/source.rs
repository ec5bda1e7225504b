//! A row of tokens in a file, read by position.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DataError;
use super::documents::Documents;

/// Marks a token that is not to be predicted: no token is as great.
pub const MASKED: u32 = 1 << 31;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text, whose bytes are tokens.
    Bytes,
    /// Text that went through a tokenizer.
    Text,
    /// Indexed data of Megatron-LM.
    Megatron,
    /// Tokens and nothing else.
    Flat,
    /// Tokens behind the header of llm.c.
    LlmC,
    /// An array of NumPy.
    Numpy,
    /// JSON lines.
    JsonLines,
    /// Parquet.
    Parquet,
}

impl Format {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Format::Bytes => "text, each byte a token",
            Format::Text => "text",
            Format::Megatron => "indexed data of Megatron-LM",
            Format::Flat => "tokens without a header",
            Format::LlmC => "tokens with the header of llm.c",
            Format::Numpy => "NumPy array",
            Format::JsonLines => "JSON lines",
            Format::Parquet => "Parquet",
        }
    }
}

/// How a token is stored: little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 8 bits without a sign.
    U8,
    /// 8 bits.
    I8,
    /// 16 bits without a sign.
    U16,
    /// 16 bits.
    I16,
    /// 32 bits without a sign.
    U32,
    /// 32 bits.
    I32,
    /// 64 bits.
    I64,
    /// 32 bits, of which the greatest is [`MASKED`]: what this program writes itself.
    Marked,
}

impl Width {
    /// Bytes of a token.
    pub fn bytes(self) -> u64 {
        match self {
            Width::U8 | Width::I8 => 1,
            Width::U16 | Width::I16 => 2,
            Width::U32 | Width::I32 | Width::Marked => 4,
            Width::I64 => 8,
        }
    }

    /// Its name in NumPy.
    pub fn name(self) -> &'static str {
        match self {
            Width::U8 => "uint8",
            Width::I8 => "int8",
            Width::U16 => "uint16",
            Width::I16 => "int16",
            Width::U32 | Width::Marked => "uint32",
            Width::I32 => "int32",
            Width::I64 => "int64",
        }
    }

    /// The value of as many bytes as a token has.
    fn value(self, bytes: &[u8]) -> i64 {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let value = i64::from_le_bytes(wide);
        match self {
            Width::I8 => i64::from(value as i8),
            Width::I16 => i64::from(value as i16),
            Width::I32 => i64::from(value as i32),
            _ => value,
        }
    }
}

/// Where the tokens are.
#[derive(Debug)]
pub(super) enum Store {
    /// In memory: a text that was handed over, or that came through a pipe.
    Memory(Arc<Vec<u8>>),
    /// In a file, from this byte on.
    File(File, u64),
}

/// Tokens of one file.
#[derive(Debug)]
pub struct Source {
    /// Its name, for messages.
    pub path: PathBuf,
    /// What it is.
    pub format: Format,
    /// How its tokens are stored.
    pub width: Width,
    /// How many tokens.
    pub tokens: u64,
    /// How many documents of each length in tokens; empty where the file does not say. Lengths that differ add up, so there are
    /// at most √(2 · tokens).
    pub lengths: BTreeMap<u64, u64>,
    /// Whether some of its tokens are not to be predicted.
    pub is_masked: bool,
    /// The token behind each document, where this program has put one there.
    pub end: Option<u32>,
    /// Where its documents begin.
    pub(super) documents: Documents,
    pub(super) store: Store,
}

impl Source {
    /// The bytes of `text`.
    pub fn of_text(text: Vec<u8>) -> Source {
        Source {
            path: PathBuf::from("the text"),
            format: Format::Bytes,
            width: Width::U8,
            tokens: text.len() as u64,
            lengths: BTreeMap::new(),
            is_masked: false,
            end: None,
            documents: Documents::Unknown,
            store: Store::Memory(Arc::new(text)),
        }
    }

    /// The bytes of the file `path`.
    pub(super) fn of_bytes(path: &Path) -> Result<Source, DataError> {
        /// Of what comes through a pipe.
        const MOST: u64 = 1 << 30;
        let failed = DataError::file(path, "read");
        let file = File::open(path).map_err(&failed)?;
        if file.metadata().map_err(&failed)?.is_file() {
            return Source::of_file(path, Format::Bytes, file, 0, Width::U8);
        }
        let mut text = Vec::new();
        file.take(MOST + 1).read_to_end(&mut text).map_err(&failed)?;
        if text.len() as u64 > MOST {
            let path = path.display();
            return Err(DataError::Argument(format!(
                "{path} is longer than the limit of {MOST} bytes, for what is not a file: give a file"
            )));
        }
        Ok(Source { path: path.to_path_buf(), ..Source::of_text(text) })
    }

    /// All tokens of `file` from byte `start` on.
    pub(super) fn of_file(
        path: &Path,
        format: Format,
        file: File,
        start: u64,
        width: Width,
    ) -> Result<Source, DataError> {
        let bytes = file.metadata().map_err(DataError::file(path, "read"))?.len().saturating_sub(start);
        if !bytes.is_multiple_of(width.bytes()) {
            let (found, size) = (format!("{bytes} bytes of tokens"), width.bytes());
            return Err(DataError::wrong(
                path,
                "its size",
                found,
                format!("a multiple of {size}, for {}", width.name()),
            ));
        }
        Ok(Source {
            path: path.to_path_buf(),
            format,
            width,
            tokens: bytes / width.bytes(),
            lengths: BTreeMap::new(),
            is_masked: false,
            end: None,
            documents: Documents::Unknown,
            store: Store::File(file, start),
        })
    }

    /// Whether reading takes no file.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.store, Store::Memory(_))
    }

    /// `count` tokens from `start` on, each below `vocabulary`; with [`MASKED`] where it is not to be predicted.
    ///
    /// # Errors
    /// [`DataError`] where the file no longer has them, or one is no token of the vocabulary.
    pub fn read(&self, start: u64, count: usize, vocabulary: u64) -> Result<Vec<u32>, DataError> {
        let size = self.width.bytes();
        let mut held = Vec::new();
        let bytes: &[u8] = match &self.store {
            Store::Memory(text) => {
                let from = start as usize;
                text.get(from..from.saturating_add(count)).ok_or_else(|| self.ends_at(start, count))?
            }
            Store::File(file, first) => {
                held.resize(count * size as usize, 0);
                read_at(file, &mut held, first + start * size).map_err(|error| match error.kind() {
                    std::io::ErrorKind::UnexpectedEof => self.ends_at(start, count),
                    _ => DataError::file(&self.path, "read")(error),
                })?;
                &held
            }
        };
        let mut tokens = Vec::with_capacity(count);
        for (at, bytes) in bytes.chunks_exact(size as usize).enumerate() {
            let value = self.width.value(bytes);
            let (token, mark) = match self.width {
                Width::Marked => (value & i64::from(MASKED - 1), value as u32 & MASKED),
                _ => (value, 0),
            };
            if token < 0 || token as u64 >= vocabulary.min(MASKED.into()) {
                return Err(self.outside(start + at as u64, token, vocabulary));
            }
            tokens.push(token as u32 | mark);
        }
        Ok(tokens)
    }

    /// Of a file that was longer when it was opened.
    fn ends_at(&self, start: u64, count: usize) -> DataError {
        let size = match &self.store {
            Store::Memory(text) => text.len() as u64,
            Store::File(file, _) => file.metadata().map_or(0, |known| known.len()),
        };
        let place = format!("tokens {start} to {}", start + count as u64);
        let expected = format!("all of the {} tokens that were there when it was opened", self.tokens);
        DataError::wrong(&self.path, place, format!("the file now ends at byte {size}"), expected)
    }

    fn outside(&self, at: u64, token: i64, vocabulary: u64) -> DataError {
        let place = match &self.store {
            Store::File(_, first) if self.width != Width::Marked => {
                format!("token {at} (byte {})", first + at * self.width.bytes())
            }
            _ => format!("token {at}"),
        };
        let expected =
            format!("0 to {}, as the model's vocabulary has {vocabulary} tokens", vocabulary.saturating_sub(1));
        DataError::wrong(&self.path, place, token.to_string(), expected)
    }

    /// Gives all tokens to `take`, piece by piece.
    ///
    /// # Errors
    /// As [`Source::read`], and what `take` says.
    pub fn each_piece(&self, mut take: impl FnMut(&[u32]) -> Result<(), DataError>) -> Result<(), DataError> {
        const AT_ONCE: u64 = 1 << 16;
        for start in (0..self.tokens).step_by(AT_ONCE as usize) {
            take(&self.read(start, (self.tokens - start).min(AT_ONCE) as usize, u64::MAX)?)?;
        }
        Ok(())
    }

    /// The documents, in whose tokens `take` gets each; only of text and records.
    ///
    /// # Errors
    /// As [`Source::each_piece`].
    pub fn each_document(&self, mut take: impl FnMut(&[u32]) -> Result<(), DataError>) -> Result<(), DataError> {
        let Documents::Starts(_, count) = self.documents else {
            let expected = "text, JSON lines or Parquet";
            return Err(DataError::wrong(&self.path, "the file", self.format.name(), expected));
        };
        let failed = || DataError::file(&self.path, "read");
        for number in 0..count {
            let start = self.documents.start(number).map_err(failed())?;
            let end =
                if number + 1 < count { self.documents.start(number + 1).map_err(failed())? } else { self.tokens };
            take(&self.read(start, end.saturating_sub(start) as usize, u64::MAX)?)?;
        }
        Ok(())
    }

    /// Whether the file says where its documents begin.
    pub fn knows_documents(&self) -> bool {
        self.documents.count().is_some_and(|count| count > 0)
    }

    /// Which of `count` tokens from `start` on are the first ones of documents, counted from `start`.
    ///
    /// # Errors
    /// [`DataError`] where the file cannot be read.
    pub fn first_tokens(&self, start: u64, count: usize) -> Result<Vec<usize>, DataError> {
        let firsts = self.documents.starts_in(start..start.saturating_add(count as u64));
        let firsts = firsts.map_err(DataError::file(&self.path, "read"))?;
        Ok(firsts.into_iter().map(|first| (first - start) as usize).collect())
    }

    /// What tells this data from other data: of a text all its bytes; else the sizes and tokens from places over the whole file.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn digest(&self) -> Result<u64, DataError> {
        /// A text as long takes a second.
        const MOST_WHOLE: u64 = 1 << 30;
        const PLACES: u64 = 64;
        const AT_ONCE: u64 = 1 << 12;
        let is_whole = self.format == Format::Bytes && self.tokens <= MOST_WHOLE;
        let mut hash = START_OF_DIGEST;
        if let Store::Memory(text) = &self.store {
            return Ok(text.iter().fold(hash, |hash, byte| digest_of(hash, *byte)));
        }
        if is_whole {
            for start in (0..self.tokens).step_by(1 << 16) {
                let count = (self.tokens - start).min(1 << 16);
                let tokens = self.read(start, count as usize, u64::MAX)?;
                hash = tokens.into_iter().fold(hash, |hash, token| digest_of(hash, token as u8));
            }
            return Ok(hash);
        }
        hash = self.tokens.to_le_bytes().into_iter().fold(hash, digest_of);
        for place in 0..PLACES {
            let start = (u128::from(self.tokens) * u128::from(place) / u128::from(PLACES)) as u64;
            let count = (self.tokens - start).min(AT_ONCE) as usize;
            let tokens = self.read(start, count, u64::MAX)?;
            hash = tokens.into_iter().flat_map(u32::to_le_bytes).fold(hash, digest_of);
        }
        Ok(hash)
    }
}

/// The digest of nothing: FNV-1a tells data apart that was mixed up, not such as was made to look alike.
pub(crate) const START_OF_DIGEST: u64 = 0xcbf2_9ce4_8422_2325;

/// `hash` and one byte more.
pub(crate) fn digest_of(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
}

#[cfg(unix)]
pub(super) fn read_at(file: &File, into: &mut [u8], start: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, start)
}

#[cfg(not(unix))]
pub(super) fn read_at(file: &File, into: &mut [u8], start: u64) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom};
    // One place for all readers: each waits for the others.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _held = ONE_AT_A_TIME.lock();
    let mut file = file;
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(into)
}
