//! Where the documents of a file of tokens begin.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::source::read_at;

/// What says where documents begin. Whatever it is, it is read by position and never held.
#[derive(Debug)]
pub(super) enum Documents {
    /// Nothing does.
    Unknown,
    /// The first token of each, in order, as numbers of 64 bits: what this program has written itself.
    Starts(File, u64),
    /// All have as many tokens: the rows of an array.
    Even {
        /// How many.
        length: u64,
        /// Documents.
        count: u64,
    },
    /// An index of Megatron-LM ([`super::megatron`]).
    Index {
        /// The file.
        file: File,
        /// The byte at which the place of the first sequence stands.
        places: u64,
        /// The byte at which the first entry of the list of documents stands.
        entries: u64,
        /// Documents.
        count: u64,
        /// Sequences: what begins behind the last one begins behind all tokens.
        sequences: u64,
        /// Tokens of the data.
        tokens: u64,
        /// Bytes of a token.
        width: u64,
    },
}

impl Documents {
    /// How many documents; none where nothing says.
    pub(super) fn count(&self) -> Option<u64> {
        match self {
            Documents::Unknown => None,
            Documents::Starts(_, count) | Documents::Even { count, .. } | Documents::Index { count, .. } => {
                Some(*count)
            }
        }
    }

    /// The first token of document `number`, which is below their count.
    pub(super) fn start(&self, number: u64) -> io::Result<u64> {
        let at = |file: &File, byte: u64| -> io::Result<u64> {
            let mut bytes = [0; 8];
            read_at(file, &mut bytes, byte)?;
            Ok(u64::from_le_bytes(bytes))
        };
        match self {
            Documents::Unknown => Ok(0),
            Documents::Starts(file, _) => at(file, 8 * number),
            Documents::Even { length, .. } => Ok(length * number),
            Documents::Index { file, places, entries, sequences, tokens, width, .. } => {
                let sequence = at(file, entries + 8 * number)?;
                // The index was read whole when it was opened: it has changed since where this is beyond it.
                if sequence >= *sequences { Ok(*tokens) } else { Ok(at(file, places + 8 * sequence)? / width) }
            }
        }
    }

    /// The first tokens of the documents that begin within `tokens`, in order. Documents without tokens begin nowhere.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub(super) fn starts_in(&self, tokens: Range<u64>) -> io::Result<Vec<u64>> {
        let count = self.count().unwrap_or(0);
        // The first document that begins at `tokens.start` or behind.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle)? < tokens.start {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut starts: Vec<u64> = Vec::new();
        for number in low..count {
            let start = self.start(number)?;
            if start >= tokens.end {
                break;
            }
            if starts.last().is_none_or(|last| *last < start) {
                starts.push(start);
            }
        }
        Ok(starts)
    }
}
