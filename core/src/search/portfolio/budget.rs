//! How much work a search may still do, and which order is the best so far.

use core::cell::Cell;

use super::Search;
use crate::base::units::Nanos;
use crate::search::flat_problem::Rows;
use crate::search::{Flow, Progress};

/// Effort for each op of a problem, up to `SMALL` ops; then for each further op, and the most for those.
pub(super) const SMALL_EFFORT: u64 = 1000;
pub(super) const SMALL: u64 = 8192;
pub(super) const SIZE_EFFORT: u64 = 300;
pub(super) const MOST_SIZE_EFFORT: u64 = 40_000_000;

/// The largest factor on the effort for its size that a problem gets while its best is far above the bound, and the
/// most effort that it may get so.
const MOST_TIMES: u128 = 8;
pub(super) const MOST_FAR_EFFORT: u64 = 48_000_000;

/// Ops of a problem that is searched directly. With more than twice as many, a problem of this many ops is searched,
/// and its answer is stretched.
pub(in crate::search) const MANY: usize = 49_152;

impl Search<'_, '_> {
    pub(super) fn is_over(&mut self) -> bool {
        let spent = self.ops();
        self.is_over_at(spent)
    }

    pub(super) fn is_over_at(&mut self, spent: u64) -> bool {
        let Some((_, cost, _)) = &self.best else { return false };
        if self.stopped
            || self.is_below_floor()
            || spent > self.allowed
            || cost.objective <= self.bound_ns.max(self.floor)
        {
            return true;
        }
        // A person who watches may stop the search, also while nothing gets better.
        let spent = spent + self.grown;
        if spent - self.reported > 200_000 {
            self.reported = spent;
            let progress = Progress { ops: spent, cost_ns: cost.objective, bound_ns: self.bound_ns };
            self.stopped = (self.observer)(progress) == Flow::Stop;
        }
        self.stopped
    }

    /// The cost that an order has to beat.
    pub(super) fn cutoff(&mut self) -> Nanos {
        if self.is_over() { 0 } else { self.best.as_ref().map_or(Nanos::MAX, |(_, cost, _)| cost.objective) }
    }

    pub(super) fn note_below_floor(&self) {
        if let Some(noted) = self.below_floor {
            noted.set(true);
        }
    }

    fn is_below_floor(&self) -> bool {
        self.below_floor.is_some_and(Cell::get)
    }

    /// The nearer the best is to the bound, the less effort its size is worth: none where nothing is left to gain, all from
    /// one part in two hundred on. Where the best is further than one in twenty, a problem that is not large is worth as many
    /// times as much as it is further, up to [`MOST_TIMES`].
    fn allow(&mut self, cost: Nanos) {
        let over = u128::from(cost.saturating_sub(self.bound_ns));
        let (for_size, bound) = (u128::from(self.for_size), u128::from(self.bound_ns.max(1)));
        let share = (for_size * over * 200 / bound).min(for_size);
        let far = (for_size * (over * 20).min(bound * MOST_TIMES) / bound).min(self.for_far.into());
        let allowed = self.effort.saturating_add(share.max(far) as u64);
        // An order that comes near the bound late gets its share from then on.
        let late = self.ops().saturating_add(share as u64).min(self.effort.saturating_add(self.for_far));
        self.allowed = allowed.max(late);
    }

    /// Takes `rows` if they are better than the best so far.
    pub(super) fn offer(&mut self, rows: Rows, origin: &'static str) -> bool {
        let cutoff = self.best.as_ref().map_or(u64::MAX, |(_, cost, _)| cost.objective);
        let Some(cost) = self.full.eval.run(&self.full.flat, &rows, cutoff) else { return false };
        if cost.objective < self.floor {
            self.note_below_floor();
            return false;
        }
        if self.best.as_ref().is_some_and(|(_, best, _)| *best <= cost) {
            return false;
        }
        self.best = Some((rows, cost, origin));
        self.allow(cost.objective);
        let progress = Progress { ops: self.all_ops(), cost_ns: cost.objective, bound_ns: self.bound_ns };
        self.stopped |= (self.observer)(progress) == Flow::Stop;
        true
    }
}
