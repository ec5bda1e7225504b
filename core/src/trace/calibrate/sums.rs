//! Sums of times with their mean and spread, and the jitter of a run.

use alloc::collections::BTreeMap;

use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::op::OpKind;

/// A sum of times, with their count, squares and range.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) whole: u128,
    pub(super) squares: f64,
    pub(super) least: Nanos,
    pub(super) most: Nanos,
}

impl Sum {
    pub(super) fn add(&mut self, ns: Nanos) {
        self.least = if self.count == 0 { ns } else { self.least.min(ns) };
        self.most = self.most.max(ns);
        self.count += 1;
        self.whole += u128::from(ns);
        self.squares += ns as f64 * ns as f64;
    }

    /// The square of the standard deviation over the mean; of one op none is known.
    fn spread(&self) -> f64 {
        if self.count < 2 || self.whole == 0 {
            return 0.0;
        }
        let count = self.count as f64;
        let mean = self.whole as f64 / count;
        let of_squares = self.squares / count;
        (of_squares / (mean * mean) - 1.0).max(0.0) * count / (count - 1.0)
    }

    /// To the nearest nanosecond; 0 of nothing.
    pub(super) fn mean(&self) -> Nanos {
        let count = u128::from(self.count.max(1));
        // No more than the largest of what was added.
        ((self.whole + count / 2) / count) as Nanos
    }
}

/// The jitter of all `jobs`, weighted by their time. The two halves of a fused backward vary independently, so it
/// varies by less than they do.
pub(super) fn jitter_permille(problem: &Problem, jobs: &BTreeMap<(usize, OpKind), Sum>) -> u64 {
    let (squares, whole) = jobs.iter().fold((0.0, 0.0), |(squares, whole), ((stage, kind), job)| {
        let half = |kind| problem.cost(*stage).duration(kind) as f64;
        let (b, w) = (half(OpKind::B), half(OpKind::W));
        let steadier = if *kind == OpKind::BW && b + w > 0.0 { (b * b + w * w) / ((b + w) * (b + w)) } else { 1.0 };
        (squares + job.whole as f64 * job.spread() / steadier, whole + job.whole as f64)
    });
    if whole > 0.0 { ((1e6 * squares / whole) as u64).isqrt() } else { 0 }
}
