//! Indexed data of Megatron-LM: `NAME.bin` holds the tokens of all sequences, and `NAME.idx` says where each one is.
//!
//! The index, little-endian (`megatron/core/datasets/indexed_dataset.py`):
//!
//! | Bytes | What |
//! |---|---|
//! | 9 | `MMIDIDX`, and two bytes 0 |
//! | 8 | the version, 1 |
//! | 1 | the type of a token, by `CODES` |
//! | 8, 8 | sequences S; entries D of the list of documents, one more than there are documents |
//! | 4 · S | tokens of each sequence |
//! | 8 · S | the byte at which each begins |
//! | 8 · D | the sequence at which each document begins, and S |

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::documents::Documents;
use super::{DataError, Format, Source, Width, beside};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const HEADER_BYTES: u64 = 34;

/// The types that an index names and that tokens can be in.
const CODES: [(u8, Width); 6] =
    [(1, Width::U8), (2, Width::I8), (3, Width::I16), (4, Width::I32), (5, Width::I64), (8, Width::U16)];

/// The files of data and index, where `path` is one of them or their name without an extension.
pub(super) fn pair(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let (data, index) = match path.extension().and_then(|extension| extension.to_str()) {
        Some("bin" | "idx") => (path.with_extension("bin"), path.with_extension("idx")),
        _ if path.exists() => return None,
        _ => (beside(path, "bin"), beside(path, "idx")),
    };
    let is_index = path.extension().is_some_and(|extension| extension == "idx");
    (is_index || index.is_file()).then_some((data, index))
}

/// The tokens of `data`, whose sequences `index` lists.
///
/// # Errors
/// [`DataError`] where the index is damaged or does not fit the data.
pub(super) fn open(data: &Path, index: &Path) -> Result<Source, DataError> {
    let failed = DataError::file(index, "read");
    let mut file = File::open(index).map_err(&failed)?;
    let bytes = file.metadata().map_err(&failed)?.len();
    let mut header = [0; HEADER_BYTES as usize];
    if bytes < HEADER_BYTES {
        let expected = format!("at least {HEADER_BYTES} bytes, for the header of an index");
        return Err(DataError::wrong(index, "its size", format!("{bytes} bytes"), expected));
    }
    file.read_exact(&mut header).map_err(&failed)?;
    let number = |at: usize| header[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    if header[..9] != *MAGIC {
        return Err(DataError::wrong(index, "byte 0", "another file", "MMIDIDX, as Megatron-LM writes it"));
    }
    if number(9) != 1 {
        return Err(DataError::wrong(index, "byte 9", format!("version {}", number(9)), "version 1"));
    }
    let Some((_, width)) = CODES.into_iter().find(|(code, _)| *code == header[17]) else {
        let expected = "1 (uint8), 2 (int8), 3 (int16), 4 (int32), 5 (int64) or 8 (uint16)";
        return Err(DataError::wrong(index, "byte 17", format!("type {}", header[17]), expected));
    };
    let (sequences, entries) = (number(18), number(26));
    let needed = sequences.checked_mul(12).zip(entries.checked_mul(8));
    let needed = needed.and_then(|(of_sequences, of_documents)| of_sequences.checked_add(of_documents));
    let needed = needed.and_then(|needed| needed.checked_add(HEADER_BYTES));
    if needed.is_none_or(|needed| needed > bytes) {
        let found = format!("{sequences} sequences and {entries} entries of documents");
        return Err(DataError::wrong(index, "byte 18", found, format!("as many as fit into its {bytes} bytes")));
    }
    let source =
        Source::of_file(data, Format::Megatron, File::open(data).map_err(DataError::file(data, "read"))?, 0, width)?;
    let scan = Scan { index, data, width, sequences, entries, data_tokens: source.tokens };
    let (tokens, lengths) = scan.run()?;
    let documents = Documents::Index {
        file,
        places: HEADER_BYTES + 4 * sequences,
        entries: HEADER_BYTES + 12 * sequences,
        count: entries.saturating_sub(1),
        sequences,
        tokens,
        width: width.bytes(),
    };
    Ok(Source { tokens, lengths, documents, ..source })
}

/// One look through an index.
struct Scan<'a> {
    index: &'a Path,
    data: &'a Path,
    width: Width,
    sequences: u64,
    entries: u64,
    data_tokens: u64,
}

impl Scan<'_> {
    fn reader(&self, start: u64) -> Result<BufReader<File>, DataError> {
        let failed = DataError::file(self.index, "read");
        let mut file = File::open(self.index).map_err(&failed)?;
        file.seek(SeekFrom::Start(start)).map_err(&failed)?;
        Ok(BufReader::with_capacity(1 << 16, file))
    }

    fn next<const N: usize>(&self, from: &mut BufReader<File>) -> Result<[u8; N], DataError> {
        let mut bytes = [0; N];
        from.read_exact(&mut bytes).map_err(DataError::file(self.index, "read"))?;
        Ok(bytes)
    }

    /// All tokens, and how many documents have which length.
    fn run(&self) -> Result<(u64, BTreeMap<u64, u64>), DataError> {
        let Scan { index, width, sequences, entries, .. } = *self;
        let mut lengths = self.reader(HEADER_BYTES)?;
        let mut places = self.reader(HEADER_BYTES + 4 * sequences)?;
        let mut documents = self.reader(HEADER_BYTES + 12 * sequences)?;
        let mut of_documents: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut tokens, mut document) = (0u64, 0u64);
        let mut entries_left = entries;
        let mut next = None;
        let mut begin = |entries_left: &mut u64| -> Result<Option<u64>, DataError> {
            if *entries_left == 0 {
                return Ok(None);
            }
            *entries_left -= 1;
            let at = i64::from_le_bytes(self.next(&mut documents)?);
            let place = format!("document {}", entries - *entries_left - 1);
            u64::try_from(at).ok().filter(|at| *at <= sequences).map(Some).ok_or_else(|| {
                DataError::wrong(index, place, format!("begins at sequence {at}"), format!("0 to {sequences}"))
            })
        };
        for sequence in 0..=sequences {
            while let Some(at) = match next {
                Some(at) => Some(at),
                None => begin(&mut entries_left)?,
            } {
                next = Some(at);
                if at > sequence {
                    break;
                }
                if at < sequence {
                    let expected = format!("{sequence} or more, as documents are in order");
                    return Err(DataError::wrong(
                        index,
                        "its documents",
                        format!("one begins at sequence {at}"),
                        expected,
                    ));
                }
                if document > 0 {
                    *of_documents.entry(document).or_default() += 1;
                }
                (document, next) = (0, None);
            }
            if sequence == sequences {
                break;
            }
            let length = i32::from_le_bytes(self.next(&mut lengths)?);
            let place = i64::from_le_bytes(self.next(&mut places)?);
            let length = self.checked(sequence, length, place, tokens, width)?;
            (tokens, document) = (tokens + length, document + length);
        }
        Ok((tokens, of_documents))
    }

    /// The length of a sequence that lies where the one before ends, and within the data.
    fn checked(&self, sequence: u64, length: i32, place: i64, tokens: u64, width: Width) -> Result<u64, DataError> {
        let name = format!("sequence {sequence}");
        let Ok(length) = u64::try_from(length) else {
            return Err(DataError::wrong(self.index, name, format!("{length} tokens"), "0 or more"));
        };
        let expected = tokens.saturating_mul(width.bytes());
        if i64::try_from(expected) != Ok(place) {
            let expected = format!("byte {expected}, where the sequence before it ends");
            return Err(DataError::wrong(self.index, name, format!("begins at byte {place}"), expected));
        }
        if tokens.saturating_add(length) > self.data_tokens {
            let (data, size) = (self.data.display(), self.data_tokens * width.bytes());
            let end = tokens.saturating_add(length).saturating_mul(width.bytes());
            return Err(DataError::wrong(
                self.index,
                name,
                format!("ends at byte {end} of {data}"),
                format!("at most {size}, its size"),
            ));
        }
        Ok(length)
    }
}

/// Writes `NAME.bin` and `NAME.idx`, in which each document is one sequence.
pub struct Writer {
    name: PathBuf,
    width: Width,
    data: BufWriter<File>,
    lengths: Vec<i32>,
}

impl Writer {
    /// For tokens below `vocabulary`, in the type that Megatron-LM takes for it.
    ///
    /// # Errors
    /// Where the file cannot be made.
    pub fn new(name: &Path, vocabulary: u64) -> Result<Writer, DataError> {
        let path = beside(name, "bin");
        let file = File::create(&path).map_err(DataError::file(&path, "written"))?;
        let width = if vocabulary < 65_500 { Width::U16 } else { Width::I32 };
        Ok(Writer { name: name.to_path_buf(), width, data: BufWriter::new(file), lengths: Vec::new() })
    }

    /// Adds a document.
    ///
    /// # Errors
    /// Where they cannot be written.
    pub fn add(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        let path = beside(&self.name, "bin");
        let failed = DataError::file(&path, "written");
        for token in tokens {
            match self.width {
                Width::U16 => self.data.write_all(&(*token as u16).to_le_bytes()),
                _ => self.data.write_all(&token.to_le_bytes()),
            }
            .map_err(&failed)?;
        }
        // A document has at most some millions of tokens.
        self.lengths.push(tokens.len() as i32);
        Ok(())
    }

    /// Writes the index.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn finish(mut self) -> Result<(), DataError> {
        let (data, path) = (beside(&self.name, "bin"), beside(&self.name, "idx"));
        self.data.flush().map_err(DataError::file(&data, "written"))?;
        let failed = DataError::file(&path, "written");
        let code = CODES.into_iter().find(|(_, width)| *width == self.width).map_or(4, |(code, _)| code);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(1u64.to_le_bytes());
        bytes.push(code);
        bytes.extend((self.lengths.len() as u64).to_le_bytes());
        bytes.extend((self.lengths.len() as u64 + 1).to_le_bytes());
        bytes.extend(self.lengths.iter().flat_map(|length| length.to_le_bytes()));
        let mut place = 0u64;
        for length in &self.lengths {
            bytes.extend(place.to_le_bytes());
            place += *length as u64 * self.width.bytes();
        }
        bytes.extend((0..=self.lengths.len() as u64).flat_map(u64::to_le_bytes));
        std::fs::write(&path, bytes).map_err(failed)
    }
}
