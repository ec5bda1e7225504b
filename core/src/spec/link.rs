//! A spec in the fragment of an address, which a browser never sends to a server.
//!
//! ```text
//! https://host/planner/#v1.dBase64url
//!                       │  │└ checksum (CRC-32, little end first), then the content, without padding
//!                       │  └ r: the content as it is; d: deflated, where that is shorter
//!                       └ version of all that follows
//! ```
//!
//! The content is [postcard](https://postcard.jamesmunns.com/wire-format) of the structs in `wire`. They are separate
//! from [`Spec`], so that the spec may change while old links still work. `v1` is fixed for ever. `v2` adds a list of
//! what `v1` cannot express, and is written only for specs that need it.
//!
//! A link comes from anywhere. Its length, its inflated length and every field are bounded. An error tells which part
//! is wrong.

mod wire;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;

use crate::base::fields::Faults;
use crate::spec::Spec;

/// Longest fragment that is read, in characters: about what browsers carry.
pub const MAX_CHARS: usize = 1 << 21;
/// Most bytes that a link may inflate to: a problem of 1024 ranks with 64 chunks fits.
pub const MAX_CONTENT_BYTES: usize = 8 << 20;

/// The versions that are read: without and with what `v1` has no word for.
const VERSIONS: [&str; 2] = ["v1.", "v2."];
const CHECKSUM_BYTES: usize = 4;

/// Which part of a link is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// There is no `#v…` in the address.
    NoSpec,
    /// Another version, or none that can be read.
    Version {
        /// What stands where the version should.
        found: String,
    },
    /// More characters than are read.
    TooLong {
        /// Characters of the fragment.
        chars: usize,
    },
    /// A character that no link has: changed on the way, or added to it.
    Alphabet {
        /// Its place in the fragment, from 1, the `#` not counted.
        position: usize,
        /// The character.
        found: char,
    },
    /// The text stops before its end.
    Length,
    /// The content is not the one that was written.
    Checksum,
    /// Neither `r` nor `d`, or a deflated content that does not inflate.
    Compression {
        /// What is wrong.
        reason: &'static str,
    },
    /// The checksum is right but the content is no spec of this version.
    Content,
    /// A field has a value that no spec has.
    Fields(Faults),
}

impl LinkError {
    /// The part that is wrong in one word: `address`, `version`, `length`, `alphabet`, `checksum`,
    /// `compression`, `content` or `fields`.
    pub const fn part(&self) -> &'static str {
        match self {
            LinkError::NoSpec => "address",
            LinkError::Version { .. } => "version",
            LinkError::TooLong { .. } | LinkError::Length => "length",
            LinkError::Alphabet { .. } => "alphabet",
            LinkError::Checksum => "checksum",
            LinkError::Compression { .. } => "compression",
            LinkError::Content => "content",
            LinkError::Fields(_) => "fields",
        }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::NoSpec => f.write_str("the address has no spec: the part from `#v2.` on is missing"),
            LinkError::Version { found } => {
                write!(
                    f,
                    "the link's version is `{found}`; this planner reads `v1` and `v2`: open it with a newer planner"
                )
            }
            LinkError::TooLong { chars } => {
                write!(f, "the link has {chars} characters; the limit is {MAX_CHARS}: send the spec as a file")
            }
            LinkError::Alphabet { position, found } => write!(
                f,
                "character {position} of the link is `{}`, which no link has: copy it again, whole and unchanged",
                found.escape_default()
            ),
            LinkError::Length => f.write_str("the link is cut off: copy it again to its end"),
            LinkError::Checksum => {
                f.write_str("the link's checksum is wrong: a character was changed, lost or added; copy it again")
            }
            LinkError::Compression { reason } => write!(f, "the link's compression is wrong: {reason}"),
            LinkError::Content => f.write_str("the link's checksum is right, but its content is no spec"),
            LinkError::Fields(faults) => write!(f, "the link has an invalid spec:\n{faults}"),
        }
    }
}

impl core::error::Error for LinkError {}

/// The spec as a fragment, with its `#`.
pub fn write(spec: &Spec) -> String {
    let (content, has_more) = wire::to_bytes(spec);
    let deflated = compress_to_vec(&content, 10);
    let (tag, body) = if deflated.len() < content.len() { ('d', deflated) } else { ('r', content) };
    let mut bytes = Vec::with_capacity(CHECKSUM_BYTES + body.len());
    bytes.extend_from_slice(&checksum(tag as u8, &body).to_le_bytes());
    bytes.extend_from_slice(&body);
    let mut link = String::from("#");
    link.push_str(VERSIONS[usize::from(has_more)]);
    link.push(tag);
    URL_SAFE_NO_PAD.encode_string(&bytes, &mut link);
    link
}

/// Whether a text is an address or a fragment rather than the text of a file.
pub fn looks_like_one(text: &str) -> bool {
    let text = text.trim();
    let is_version = |text: &str| {
        let rest = text.trim_start_matches('v');
        rest.len() + 1 == text.len() && rest.starts_with(|c: char| c.is_ascii_digit()) && !text.contains('=')
    };
    let is_word = !text.contains(char::is_whitespace);
    is_word
        && (text.starts_with("https://")
            || text.starts_with("http://")
            || is_version(text)
            || text.strip_prefix('#').is_some_and(is_version))
}

/// Reads an address, a fragment, or a fragment without its `#`. Chat programs take the full stop or bracket after a
/// link for a part of it. So the part before the first character that no link has is read, if its checksum is right.
///
/// # Errors
/// [`LinkError`] with the part that is wrong.
pub fn read(text: &str) -> Result<Spec, LinkError> {
    let text = text.trim();
    let fragment = match text.split_once('#') {
        Some((_, fragment)) => fragment,
        None if text.contains("://") => return Err(LinkError::NoSpec),
        None => text,
    };
    if fragment.is_empty() {
        return Err(LinkError::NoSpec);
    }
    if fragment.len() > MAX_CHARS {
        return Err(LinkError::TooLong { chars: fragment.chars().count() });
    }
    read_fragment(fragment).or_else(|error| {
        let LinkError::Alphabet { position, .. } = error else { return Err(error) };
        let before = position.checked_sub(1).and_then(|length| fragment.get(..length));
        before.and_then(|before| read_fragment(before).ok()).ok_or(error)
    })
}

fn read_fragment(fragment: &str) -> Result<Spec, LinkError> {
    let version = VERSIONS.iter().position(|version| fragment.starts_with(version));
    let Some((has_more, rest)) = version.map(|at| (at == 1, &fragment[VERSIONS[at].len()..])) else {
        let found = fragment.split('.').next().unwrap_or_default();
        return Err(LinkError::Version { found: found.chars().take(20).collect() });
    };
    let Some(tag) = rest.chars().next() else { return Err(LinkError::Length) };
    let offset = VERSIONS[0].len() + tag.len_utf8();
    let bytes = decode(&rest[tag.len_utf8()..], offset)?;
    let Some((sum, body)) = bytes.split_at_checked(CHECKSUM_BYTES) else { return Err(LinkError::Length) };
    if tag != 'r' && tag != 'd' {
        return Err(LinkError::Compression { reason: "its tag is neither `r` nor `d`" });
    }
    if sum != checksum(tag as u8, body).to_le_bytes() {
        return Err(LinkError::Checksum);
    }
    let inflated;
    let content = if tag == 'd' {
        inflated = decompress_to_vec_with_limit(body, MAX_CONTENT_BYTES).map_err(|_| LinkError::Compression {
            reason: "it does not inflate, or its content is longer than a spec may be",
        })?;
        &inflated
    } else {
        body
    };
    let spec = wire::from_bytes(content, has_more).ok_or(LinkError::Content)?;
    // Read like any other input, so that a link can say nothing that a file cannot.
    Spec::from_value(&spec.to_value()).map_err(LinkError::Fields)
}

fn decode(text: &str, offset: usize) -> Result<Vec<u8>, LinkError> {
    let stranger = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if let Some(index) = text.find(stranger) {
        let found = text[index..].chars().next().unwrap_or_default();
        return Err(LinkError::Alphabet { position: offset + text[..index].chars().count() + 1, found });
    }
    // The alphabet is right, so what is left is a length that no bytes have, or bits beyond the last byte.
    URL_SAFE_NO_PAD.decode(text).map_err(|_| LinkError::Length)
}

/// CRC-32 (IEEE 802.3) of the tag and the body.
fn checksum(tag: u8, body: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    };
    !body.iter().fold(step(!0, &tag), step)
}

#[cfg(test)]
mod tests;
