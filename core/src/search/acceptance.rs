//! Acceptance of new orders by a search that makes whole orders, not single moves: those that cost no more, now and then one that
//! costs more, and after many tries without gain the best again.

use super::flat_problem::{Flat, Rows};
use super::makespan::{Cost, Eval};
use super::tabu::Tabu;
use crate::base::random::Random;

/// New orders without gain after which the search returns to the best.
const PATIENCE: u32 = 60;
/// An order gets tabu search where it exceeds the best by at most one part in this many.
const HOPEFUL: u64 = 16;
/// Steps of local search on an order; four times as many on one that is no worse than the last.
const STEPS: u32 = 8;
/// The search continues from one in this many orders that are worse than the last.
const WORSE: u64 = 8;

/// The present order of a search, and the best.
pub(super) struct Accepted {
    rows: Rows,
    cost: Cost,
    best: Rows,
    pub best_cost: Cost,
    idle: u32,
}

impl Accepted {
    /// Stands at The longest paths of `rows`, which must be valid; none where the ranks deadlock.
    pub fn new(flat: &Flat, eval: &mut Eval, rows: &Rows) -> Option<Accepted> {
        let cost = eval.run(flat, rows, u64::MAX)?;
        Some(Accepted { rows: rows.clone(), cost, best: rows.clone(), best_cost: cost, idle: 0 })
    }

    /// No order yet.
    pub fn none() -> Accepted {
        Accepted { rows: Rows::new(), cost: Cost::WORST, best: Rows::new(), best_cost: Cost::WORST, idle: 0 }
    }

    /// The best order so far.
    pub fn best(&self) -> Rows {
        self.best.clone()
    }

    /// The order that the next one is made of.
    pub fn next(&mut self) -> &Rows {
        self.idle += 1;
        if self.idle > PATIENCE {
            self.idle = 0;
            self.rows.clone_from(&self.best);
            self.cost = self.best_cost;
        }
        &self.rows
    }

    /// Continues from a new order, or stays; true where it is the best so far. Adds the ops tried to `ops`.
    pub fn offer(
        &mut self,
        flat: &Flat,
        eval: &mut Eval,
        mut rows: Rows,
        ops: &mut u64,
        random: &mut Random,
    ) -> bool {
        let best = self.best_cost.objective;
        *ops += flat.ops as u64;
        let Some(mut cost) = eval.run(flat, &rows, best.saturating_add(best / HOPEFUL)) else { return false };
        // Local search repairs conflicts of the new order.
        if let Some(mut search) = Tabu::new(flat, &rows) {
            let steps = if cost > self.cost { STEPS } else { 4 * STEPS };
            for _ in 0..steps {
                search.step(flat, random);
            }
            *ops += search.ops();
            if search.best_cost < cost {
                cost = search.best_cost;
                rows = search.best();
            }
        }
        if cost.objective > self.cost.objective && random.below(WORSE) > 0 {
            return false;
        }
        self.rows = rows;
        self.cost = cost;
        if cost >= self.best_cost {
            return false;
        }
        if cost.objective < self.best_cost.objective {
            self.idle = 0;
        }
        self.best_cost = cost;
        self.best.clone_from(&self.rows);
        true
    }
}
