//! Problems with many microbatches: what is found with fewer of them becomes an order of the whole problem.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Search;
use super::bench::{Bench, Candidate};
use super::budget::MANY;
use super::library::Library;
use crate::base::units::Nanos;
use crate::bounds::lower_bound;
use crate::problem::Problem;
use crate::search::steady_state::{self, PIECES, STRIDE};
use crate::search::{Progress, Scope, v_blocks, zbv};

/// The number of V blocks that are built for all microbatches.
pub(super) const V_BLOCKS_OF_WHOLE: usize = 2;

/// The effort for each op of a problem from which on the best rules with fewer microbatches are also run for all of
/// them.
pub(super) const AGAIN: u64 = 320;

/// Where only a few recipes are run on the whole problem: the number of seeds at first, and of recipes that were best
/// with fewer microbatches.
pub(super) const SEEDS_OF_MANY: usize = 4;
const RECIPES_OF_FEWER: usize = 4;

impl Search<'_, '_> {
    /// With very many microbatches: the answer for fewer of them, stretched. Whether it is the best so far.
    pub(super) fn stretch_fewer(&mut self, fewer: &Problem, more: usize, library: &Library, scope: Scope) -> bool {
        let mut bench = Bench::new(fewer, more);
        let bound_ns = lower_bound(fewer).value_ns;
        let (before, best_ns) = (self.ops(), self.best.as_ref().map_or(Nanos::MAX, |(_, cost, _)| cost.objective));
        let scope = Scope { halved: scope.halved, ..Scope::default() };
        let (real_bound_ns, observer) = (self.bound_ns, &mut *self.observer);
        let mut tell = |progress: Progress| {
            observer(Progress { ops: before + progress.ops, cost_ns: best_ns, bound_ns: real_bound_ns })
        };
        let mut search = Search::new(fewer, bound_ns, self.effort, scope, &mut tell);
        search.run(fewer, library.fewer.get_or_init(|| Box::new(Library::of(fewer))), scope);
        let (ops, stopped) = (search.all_ops(), search.stopped);
        let (found, recipes) = (search.best.take(), core::mem::take(&mut search.recipes));
        self.full.eval.ops += ops;
        self.stopped |= stopped;
        // The best steady state shows late: with fewer microbatches, warm-up and cool-down weigh more.
        recipes.into_iter().take(RECIPES_OF_FEWER).for_each(|recipe| self.list(recipe));
        let Some((rows, cost, _)) = found else { return false };
        let candidate = Candidate { score: cost, cost, recipe: None, rows };
        let before = self.best.as_ref().map(|(_, cost, _)| *cost);
        self.extend(&mut bench, &candidate);
        self.best.as_ref().map(|(_, cost, _)| *cost) != before
    }

    /// Extends candidates to the whole problem, one after the other.
    pub(super) fn extend_all(&mut self, small: &mut Bench, candidates: &[Candidate]) {
        for candidate in candidates {
            let spent = self.ops() + small.ops();
            if self.is_over_at(spent) {
                return;
            }
            self.extend(small, candidate);
        }
    }

    /// Repeats a variant of the rule of ZB-V on the whole problem.
    pub(super) fn replay_zbv(&mut self, way: zbv::Way) {
        let (found, ops) = zbv::replay(&self.full.flat, &mut self.full.eval, way);
        self.full.list.ops += ops;
        if let Some(found) = found.into_iter().next() {
            self.offer(found.rows, "zb-v rule");
        }
    }

    /// Builds the order of a V block for the whole problem.
    pub(super) fn place_v_block(&mut self, block: &v_blocks::Block) {
        let Bench { flat, eval, .. } = &mut self.full;
        if let Some(rows) = v_blocks::order(flat, eval, block) {
            self.offer(rows, "building blocks");
        }
    }

    /// Stretches a candidate of the smaller problem and offers the order of the whole problem.
    pub(super) fn extend(&mut self, small: &mut Bench, candidate: &Candidate) {
        if let Some(recipe) = candidate.recipe {
            self.list(recipe);
        }
        let mut starts: Vec<Vec<u64>> = candidate.rows.iter().map(|row| alloc::vec![0; row.len()]).collect();
        let visit = |rank: usize, at: usize, start| starts[rank][at] = start;
        if small.eval.run_with(&small.flat, &candidate.rows, u64::MAX, visit).is_none() {
            return;
        }
        let length = small.eval.end.iter().copied().max().unwrap_or(0);
        for piece in PIECES {
            if let Some(rows) =
                steady_state::stretch(&small.flat, &candidate.rows, &starts, length, piece, small.more)
            {
                self.offer(rows, "steady state");
            }
        }
    }
}

/// The same problem with fewer microbatches, and how many fewer in each direction: enough to fill the pipe, to reach
/// the steady state and to drain it.
pub(super) fn fewer(problem: &Problem, full: &Bench) -> Option<(Problem, usize)> {
    let enough = 3 * full.shape.in_flight() + 8;
    let microbatches = problem.microbatches() / full.flat.chains.len();
    let more = microbatches.checked_sub(enough)? / STRIDE * STRIDE;
    // A third fewer, or it is not worth it.
    if more * 3 < microbatches {
        return None;
    }
    with_fewer(problem, full, more)
}

/// The same where the whole problem has more than twice [`MANY`] ops: with as many microbatches as make [`MANY`].
pub(super) fn many_fewer(problem: &Problem, full: &Bench) -> Option<(Problem, usize)> {
    let microbatches = problem.microbatches() / full.flat.chains.len();
    let enough = (MANY * microbatches / full.flat.ops.max(1)).max(3 * full.shape.in_flight() + 8);
    let more = microbatches.checked_sub(enough)? / STRIDE * STRIDE;
    if more * 2 < microbatches {
        return None;
    }
    with_fewer(problem, full, more)
}

fn with_fewer(problem: &Problem, full: &Bench, more: usize) -> Option<(Problem, usize)> {
    let directions = full.flat.chains.len();
    let microbatches = problem.microbatches() / directions;
    let mut statement = problem.statement();
    statement.microbatches = (microbatches - more) * directions;
    Some((statement.problem(problem.placement().clone()).ok()?, more))
}
