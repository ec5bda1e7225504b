//! Files of tokens and nothing else, with or without a header.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::documents::Documents;
use super::{DataError, Format, Source, Width};

/// How a file of NumPy begins.
pub(super) const NUMPY_MAGIC: &[u8] = b"\x93NUMPY";

/// Of llm.c's header, which is 256 numbers of 32 bits.
const LLM_C_HEADER_BYTES: u64 = 1024;

/// The headers of llm.c (`dev/data/data_common.py`): its number, its version, and the type of a token.
const LLM_C: [(u32, u32, Width); 2] = [(20_240_520, 1, Width::U16), (20_240_801, 7, Width::U32)];

/// What a header of llm.c says.
#[derive(Clone, Copy, Debug)]
pub(super) struct LlmC {
    version: u32,
    known: u32,
    width: Width,
    tokens: u64,
}

/// The header of llm.c at the start of a file, if it is there.
pub(super) fn llm_c_header(head: &[u8]) -> Option<LlmC> {
    let number = |at: usize| Some(u32::from_le_bytes(head.get(4 * at..4 * at + 4)?.try_into().ok()?));
    let magic = number(0)?;
    let (_, known, width) = LLM_C.into_iter().find(|(known, ..)| *known == magic)?;
    Some(LlmC { version: number(1)?, known, width, tokens: number(2)?.into() })
}

/// A file of llm.c.
pub(super) fn open_llm_c(path: &Path, header: LlmC) -> Result<Source, DataError> {
    let LlmC { version, known, width, tokens } = header;
    if version != known {
        return Err(DataError::wrong(path, "byte 4", format!("version {version}"), format!("version {known}")));
    }
    let file = File::open(path).map_err(DataError::file(path, "read"))?;
    let bytes = file.metadata().map_err(DataError::file(path, "read"))?.len();
    let needed = LLM_C_HEADER_BYTES + tokens * width.bytes();
    if bytes != needed {
        let found = format!("{tokens} tokens, so that {needed} bytes are needed");
        return Err(DataError::wrong(path, "byte 8", found, format!("as many as fill its {bytes} bytes")));
    }
    Source::of_file(path, Format::LlmC, file, LLM_C_HEADER_BYTES, width)
}

/// How a file without a header stores its tokens, if its name says that it holds tokens: `.u16`, `.u32`, or `.bin`, where the
/// upper halves of 32-bit tokens are small.
pub(super) fn width_of(path: &Path, head: &[u8]) -> Option<Width> {
    /// Upper halves of tokens of a vocabulary below a million.
    const MOST: u16 = 16;
    match path.extension()?.to_str()? {
        "u16" => Some(Width::U16),
        "u32" => Some(Width::U32),
        "bin" => {
            let (words, rest) = head.as_chunks::<4>();
            let is_wide = !words.is_empty()
                && rest.is_empty()
                && words.iter().all(|word| u16::from_le_bytes([word[2], word[3]]) < MOST);
            Some(if is_wide { Width::U32 } else { Width::U16 })
        }
        _ => None,
    }
}

/// A file without a header.
pub(super) fn open(path: &Path, width: Width) -> Result<Source, DataError> {
    let file = File::open(path).map_err(DataError::file(path, "read"))?;
    Source::of_file(path, Format::Flat, file, 0, width)
}

/// An array of NumPy, row after row (`numpy/lib/format.py`).
pub(super) fn open_numpy(path: &Path) -> Result<Source, DataError> {
    /// Headers have some hundred bytes.
    const MOST: u32 = 1 << 16;
    let failed = DataError::file(path, "read");
    let mut file = File::open(path).map_err(&failed)?;
    let mut start = [0; 8];
    file.read_exact(&mut start).map_err(&failed)?;
    let mut size = [0; 4];
    let bytes_of_size = if start[6] == 1 { 2 } else { 4 };
    file.read_exact(&mut size[..bytes_of_size]).map_err(&failed)?;
    let size = u32::from_le_bytes(size);
    if !(1..=3).contains(&start[6]) || size > MOST {
        let found = format!("version {} with a header of {size} bytes", start[6]);
        return Err(DataError::wrong(path, "byte 6", found, "version 1 to 3 with a header of at most 65536 bytes"));
    }
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).map_err(&failed)?;
    let header = String::from_utf8_lossy(&header).into_owned();
    let field = |name: &str| header.split_once(&format!("'{name}':")).map_or("", |(_, rest)| rest.trim_start());
    let kind = field("descr").split('\'').nth(1).unwrap_or("");
    let width = match kind {
        "|u1" => Width::U8,
        "|i1" => Width::I8,
        "<u2" => Width::U16,
        "<i2" => Width::I16,
        "<u4" => Width::U32,
        "<i4" => Width::I32,
        "<i8" | "<u8" => Width::I64,
        _ => {
            let found = format!("an array of {kind:?}");
            return Err(DataError::wrong(path, "its header", found, "whole numbers of 8 to 64 bits, little-endian"));
        }
    };
    let shape: Option<Vec<u64>> =
        field("shape").strip_prefix('(').and_then(|rest| rest.split_once(')')).and_then(|(inner, _)| {
            inner.split(',').map(str::trim).filter(|size| !size.is_empty()).map(|size| size.parse().ok()).collect()
        });
    let shape = shape.unwrap_or_default();
    if shape.is_empty() || shape.len() > 1 && !field("fortran_order").starts_with("False") {
        return Err(DataError::wrong(path, "its header", header.trim(), "an array with its rows in order"));
    }
    let elements = shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
    let source = Source::of_file(path, Format::Numpy, file, 8 + bytes_of_size as u64 + u64::from(size), width)?;
    if elements != Some(source.tokens) {
        let found = format!("an array of {shape:?}");
        return Err(DataError::wrong(
            path,
            "its header",
            found,
            format!("the {} numbers that follow it", source.tokens),
        ));
    }
    // Rows of a table are documents, each as long.
    let (lengths, documents) = match shape[..] {
        [count, length] => ([(length, count)].into(), Documents::Even { length, count }),
        _ => (source.lengths, source.documents),
    };
    Ok(Source { lengths, documents, ..source })
}
