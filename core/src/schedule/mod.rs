//! The order of compute on each rank, and the published rules that make one: a file for each.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::op::{Op, OpKind, OpSyntax};
use crate::problem::Problem;

mod row;

pub use row::Row;

/// One ordered row of ops for each rank: order only, no time.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Schedule {
    /// What each rank runs, in order.
    pub rows: Vec<Vec<Op>>,
}

impl Schedule {
    /// All ops of all ranks.
    pub fn op_count(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }

    /// The short form, one string a rank: `0F0 0F1 0BW0`.
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
    /// The rank and the text of the first word that is no op.
    pub fn from_text_rows<S: AsRef<str>>(rows: &[S]) -> Result<Schedule, (usize, OpSyntax)> {
        let read = |(rank, row): (usize, &S)| {
            row.as_ref()
                .split_ascii_whitespace()
                .map(|word| word.parse().map_err(|error| (rank, error)))
                .collect::<Result<Vec<Op>, _>>()
        };
        Ok(Schedule { rows: rows.iter().enumerate().map(read).collect::<Result<_, _>>()? })
    }
}

/// Why a published schedule does not exist for a problem, as a sentence without its full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The reason.
    pub reason: String,
}

impl Absent {
    /// Absent because of `reason`.
    pub fn because(reason: impl Into<String>) -> Absent {
        Absent { reason: reason.into() }
    }
}

/// One published schedule.
pub struct Published {
    /// The name on the command line and in files: `1f1b`.
    pub name: &'static str,
    /// The name a person reads: `1F1B`.
    pub title: &'static str,
    /// Paper and section.
    pub source: &'static str,
    /// How it wants stages dealt, given how many chunks a rank the person asked for (at least 1).
    pub shape: fn(usize) -> (crate::placement::Placement, usize),
    /// Whether it cuts the backward in two.
    pub splits_backward: bool,
    /// The schedule for a problem, or why there is none. Memory limits are not looked at here.
    pub build: fn(&Problem) -> Result<Schedule, Absent>,
}

/// Every published schedule, in the order in which comparisons show them.
pub fn published() -> &'static [Published] {
    PUBLISHED
}

/// The published schedule of that name.
pub fn find(name: &str) -> Option<&'static Published> {
    PUBLISHED.iter().find(|published| published.name == name)
}

static PUBLISHED: &[Published] = &[];

#[allow(dead_code)]
fn unused(_: OpKind) {}
