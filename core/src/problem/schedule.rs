//! The answer to a problem: the op list of each rank, without times.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::copies::HostCopy;
use super::op::{Op, OpSyntax};

/// One op list for each rank: order only, no times.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Schedule {
    /// The op list of each rank.
    pub rows: Vec<Vec<Op>>,
    /// By rank, ascending: positions of forwards that run as a pair with the backward right after them (DualPipe's
    /// overlapped forward and backward). Empty where there are none.
    pub pairs: Vec<Vec<u32>>,
    /// By rank: copies of activations to and from the host, in the order in which they use its link. Empty where there are
    /// none.
    pub copies: Vec<Vec<HostCopy>>,
}

impl Schedule {
    /// A schedule without pairs and without copies.
    pub fn of(rows: Vec<Vec<Op>>) -> Schedule {
        Schedule { rows, ..Schedule::default() }
    }

    /// The positions of `rank` at which a pair begins, ascending.
    pub fn pairs_of(&self, rank: usize) -> &[u32] {
        self.pairs.get(rank).map_or(&[], Vec::as_slice)
    }

    /// The copies of `rank` to and from its host.
    pub fn copies_of(&self, rank: usize) -> &[HostCopy] {
        self.copies.get(rank).map_or(&[], Vec::as_slice)
    }

    /// Whether any rank copies activations to its host.
    pub fn has_copies(&self) -> bool {
        self.copies.iter().any(|copies| !copies.is_empty())
    }

    /// All ops of all ranks.
    pub fn op_count(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }

    /// The short form, one string per rank: `0F0 0F1 0BW0`.
    pub fn text_rows(&self) -> Vec<String> {
        self.rows
            .iter()
            .map(|row| {
                let ops: Vec<String> = row.iter().map(ToString::to_string).collect();
                ops.join(" ")
            })
            .collect()
    }

    /// Reads the short form back.
    ///
    /// # Errors
    /// The rank and the text of the first word that is not an op.
    pub fn from_text_rows<S: AsRef<str>>(rows: &[S]) -> Result<Schedule, (usize, OpSyntax)> {
        let read = |(rank, row): (usize, &S)| {
            row.as_ref()
                .split_ascii_whitespace()
                .map(|word| word.parse().map_err(|error| (rank, error)))
                .collect::<Result<Vec<Op>, _>>()
        };
        Ok(Schedule::of(rows.iter().enumerate().map(read).collect::<Result<_, _>>()?))
    }
}
