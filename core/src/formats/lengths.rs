//! Lengths of documents as text: one on each line, or as a JSON list.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde_json::Value;

use crate::base::json::{self, Syntax};
use crate::problem::packing::MAX_DOCUMENTS;

/// Why a text has no lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LengthsError {
    /// Something else than a length.
    NoLength {
        /// The line, or the entry of the list; both from 1.
        place: String,
        /// What stands there, in so many characters as a person reads.
        found: String,
    },
    /// A list that cannot be read.
    NoJson(Syntax),
    /// The text has none.
    Empty,
    /// More than a step can have.
    TooMany,
}

/// What a text of lengths is.
pub const ACCEPTED: &str = "whole numbers of tokens, one on each line, or as a JSON list";

/// Characters of what stands in the place of a length.
const SHOWN: usize = 40;

impl fmt::Display for LengthsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LengthsError::NoLength { place, found } => write!(f, "{place}: {found:?} is no length"),
            LengthsError::NoJson(syntax) => syntax.fmt(f),
            LengthsError::Empty => f.write_str("there is no length"),
            LengthsError::TooMany => write!(f, "there are more than {MAX_DOCUMENTS} lengths"),
        }
    }
}

impl core::error::Error for LengthsError {}

impl LengthsError {
    /// What to do.
    pub fn help(&self) -> String {
        match self {
            LengthsError::TooMany => "give the documents of one step".to_string(),
            _ => format!("give {ACCEPTED}"),
        }
    }
}

/// Whether a text begins as lengths do, right or wrong ones: to tell it from other files.
pub fn looks_like_some(text: &str) -> bool {
    let text = text.trim_start();
    match text.strip_prefix('[') {
        Some(list) => list.trim_start().starts_with(|c: char| c.is_ascii_digit()),
        None => text.lines().next().is_some_and(|line| line.trim_end().parse::<u32>().is_ok()),
    }
}

/// The lengths in a text.
///
/// # Errors
/// [`LengthsError`] at the first thing that is no length.
pub fn read(text: &str) -> Result<Vec<u32>, LengthsError> {
    let lengths = match text.trim_start().starts_with('[') {
        true => of_list(text)?,
        false => of_lines(text)?,
    };
    if lengths.is_empty() { Err(LengthsError::Empty) } else { Ok(lengths) }
}

fn no_length(place: String, found: &str) -> LengthsError {
    LengthsError::NoLength { place, found: found.chars().take(SHOWN).collect() }
}

fn of_list(text: &str) -> Result<Vec<u32>, LengthsError> {
    // Before memory is taken.
    if text.bytes().filter(|byte| *byte == b',').count() >= MAX_DOCUMENTS {
        return Err(LengthsError::TooMany);
    }
    let value = json::parse(text).map_err(LengthsError::NoJson)?;
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let length = |(at, item): (usize, &Value)| {
        let length = item.as_u64().and_then(|length| u32::try_from(length).ok());
        length.ok_or_else(|| no_length(format!("entry {}", at + 1), &item.to_string()))
    };
    items.iter().enumerate().map(length).collect()
}

fn of_lines(text: &str) -> Result<Vec<u32>, LengthsError> {
    let mut lengths = Vec::new();
    for (at, line) in text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty()) {
        if lengths.len() == MAX_DOCUMENTS {
            return Err(LengthsError::TooMany);
        }
        lengths.push(line.parse().map_err(|_| no_length(format!("line {}", at + 1), line))?);
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Both forms say the same lengths, whatever the space around them.
        #[test]
        fn both_forms_say_the_same(lengths in prop::collection::vec(any::<u32>(), 1..40), space in "[ \t]{0,3}") {
            let lines: String = lengths.iter().map(|length| format!("{space}{length}{space}\r\n\n")).collect();
            let list = format!("{space}{}\n", serde_json::to_string(&lengths).unwrap());
            for text in [lines, list] {
                prop_assert!(looks_like_some(&text), "{}", text);
                prop_assert_eq!(read(&text), Ok(lengths.clone()));
            }
        }
    }

    #[test]
    fn what_is_no_length_is_told_with_its_place() {
        for (text, told) in [
            ("5\n\n7,8\n", "line 3: \"7,8\" is no length"),
            ("5\n-1\n", "line 2: \"-1\" is no length"),
            ("4294967296", "line 1: \"4294967296\" is no length"),
            ("[1, 2.5]", "entry 2: \"2.5\" is no length"),
            ("[1,\n 2", "this is not JSON: line 2, "),
            ("[[1], [2]]", "entry 1: \"[1]\" is no length"),
            ("", "there is no length"),
            ("[]", "there is no length"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.to_string().starts_with(told), "{text}: {error}");
            assert!(error.help().contains("one on each line"), "{}", error.help());
        }
        let many = vec!["1"; MAX_DOCUMENTS + 1];
        assert_eq!(read(&many.join("\n")), Err(LengthsError::TooMany));
        assert_eq!(read(&format!("[{}]", many.join(","))), Err(LengthsError::TooMany));
        assert_eq!(read(&many[1..].join("\n")).map(|lengths| lengths.len()), Ok(MAX_DOCUMENTS));
        let long = "x".repeat(1000);
        assert!(read(&long).unwrap_err().to_string().len() < 100);
    }

    #[test]
    fn other_files_do_not_look_like_lengths() {
        for text in ["", "0F0 0F1 0BW0", "{\"ranks\": 2}", "[problem]\nranks = 2", "[[1, 2]]", "[\"a\"]", "1,2\n3,4"]
        {
            assert!(!looks_like_some(text), "{text}");
        }
    }
}
