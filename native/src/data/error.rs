//! What is wrong with data.

use std::path::{Path, PathBuf};

/// Data that cannot be trained on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// Not even one sequence.
    #[error(
        "the text has {bytes} bytes, but one sequence of {sequence} tokens needs {}: give a longer text or plan a \
         shorter sequence length", sequence + ahead
    )]
    TooShort {
        /// Bytes of the text.
        bytes: usize,
        /// Tokens of a sequence.
        sequence: usize,
        /// Bytes behind it.
        ahead: usize,
    },
    /// Not even one sequence in a file.
    #[error(
        "{} has {tokens} tokens, but {for_what} needs {needed}: give more data or plan a shorter sequence length",
        path.display()
    )]
    TooFew {
        /// The file.
        path: PathBuf,
        /// Its tokens.
        tokens: u64,
        /// What needs more.
        for_what: &'static str,
        /// How many.
        needed: u64,
    },
    /// The machine says no.
    #[error("{} cannot be {done}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// `read` or the like.
        done: &'static str,
        /// What the machine says.
        error: String,
    },
    /// Something in a file is not what it must be.
    #[error("{}, {place}: {found}; expected is {expected}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// What is there.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// A share of a blend, a split or the like that cannot be.
    #[error("{0}")]
    Argument(String),
}

impl DataError {
    /// Of `path`, which cannot be `done`.
    pub(super) fn file(path: &Path, done: &'static str) -> impl Fn(std::io::Error) -> DataError + use<> {
        let path = path.to_path_buf();
        move |error| DataError::File { path: path.clone(), done, error: error.to_string() }
    }

    /// Of what is `found` at a place in `path`.
    pub(crate) fn wrong(
        path: &Path,
        place: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> DataError {
        let (place, found, expected) = (place.into(), found.into(), expected.into());
        DataError::Wrong { path: path.to_path_buf(), place, found, expected }
    }
}
