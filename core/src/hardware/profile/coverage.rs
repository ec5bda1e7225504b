//! How many operators of a model a profile knows.

use core::fmt;

/// How many operators' times a profile knows, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Measured operators.
    pub measured: usize,
    /// Operators that are scaled from measured ones of other sizes.
    pub scaled: usize,
    /// All operators.
    pub all: usize,
}

impl Coverage {
    /// Whether it knows any.
    pub fn is_any(&self) -> bool {
        self.measured + self.scaled > 0
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coverage { measured, scaled, all } = self;
        if measured == all {
            return f.write_str("all operators are measured");
        }
        write!(f, "{measured} of {all} operators of a layer, the embedding and the output layer are measured")?;
        if *scaled > 0 {
            write!(f, ", {scaled} are scaled from measured operators of other sizes")?;
        }
        f.write_str(if measured + scaled < *all { ", the others are estimated" } else { "" })
    }
}
