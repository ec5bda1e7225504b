//! How fast no valid schedule can be.
//!
//! A first, plain bound; sharper ones replace it.

use crate::problem::Problem;
use crate::units::Nanos;

/// A proven lower bound on the problem's objective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// No valid schedule costs less.
    pub value_ns: Nanos,
}

/// The work of the busiest rank: no rank runs two ops at once.
pub fn lower_bound(problem: &Problem) -> Bound {
    Bound { value_ns: (0..problem.ranks()).map(|rank| problem.work(rank)).max().unwrap_or(0) }
}
