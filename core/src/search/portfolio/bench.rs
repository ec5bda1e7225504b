//! One problem with all that it takes to try an order of it: flat arrays, evaluation, list scheduler.
//!
//! A [`Bench`] holds the whole problem or the one with fewer microbatches that stands for it.

use alloc::vec::Vec;

use crate::problem::Problem;
use crate::search::flat_problem::{Flat, Rows};
use crate::search::list::List;
use crate::search::makespan::{Cost, Eval};
use crate::search::policies::{Recipe, Shape};
use crate::search::{building_blocks, v_blocks, zbv};

/// The most orders of building blocks that are run.
const BLOCKS: usize = 40;

/// The most orders of the public rule for a V: where all were tried, the best was among the first twelve.
const V_BLOCKS: usize = 12;

/// Orders that the search over recipes keeps, and tabu search starts from.
pub(super) const KEPT: usize = 6;

/// A problem with all that is needed to try an order of it.
pub(super) struct Bench {
    pub(super) flat: Flat,
    pub(super) eval: Eval,
    pub(super) list: List,
    pub(super) shape: Shape,
    least: Vec<i64>,
    /// Microbatches of the whole problem beyond those of this one, in each direction.
    pub(super) more: usize,
}

/// An order on a bench, with an estimate of its cost on the whole problem.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) score: Cost,
    pub(super) cost: Cost,
    pub(super) recipe: Option<Recipe>,
    pub(super) rows: Rows,
}

impl Bench {
    pub(super) fn new(problem: &Problem, more: usize) -> Bench {
        let flat = Flat::new(problem);
        let shape = Shape::new(&flat);
        let least = (0..flat.ranks).map(|rank| flat.least(rank)).collect();
        Bench { eval: Eval::new(&flat), list: List::new(&flat), shape, least, flat, more }
    }

    pub(super) fn ops(&self) -> u64 {
        // One op of the list scheduler takes about as long as five of the evaluation.
        self.eval.ops + 5 * self.list.ops
    }

    pub(super) fn build(&mut self, recipe: Recipe) -> Option<Candidate> {
        let policy = recipe.policy(&self.flat, &self.shape);
        let limits = recipe.limits(&self.flat, &self.least);
        let rows = self.list.build(&self.flat, &limits, &policy)?;
        self.candidate(rows, Some(recipe))
    }

    pub(super) fn candidate(&mut self, rows: Rows, recipe: Option<Recipe>) -> Option<Candidate> {
        let cost = self.eval.run(&self.flat, &rows, u64::MAX)?;
        Some(Candidate { score: self.score(cost), cost, recipe, rows })
    }

    /// The orders of the rule of ZB-V, best first, and the variants that led to them.
    pub(super) fn zbv(&mut self, most_ops: u64) -> (Vec<Candidate>, Vec<zbv::Way>) {
        let (found, ops) = zbv::candidates(&self.flat, &mut self.eval, most_ops);
        self.list.ops += ops;
        let ways = found.iter().map(|found| found.way).collect();
        (found.into_iter().filter_map(|found| self.candidate(found.rows, None)).collect(), ways)
    }

    /// The orders of building blocks, best first.
    pub(super) fn building_blocks(&mut self, effort: u64) -> Vec<Candidate> {
        let orders = building_blocks::orders(&self.flat, &mut self.eval, BLOCKS, effort / 8);
        let mut found: Vec<Candidate> = orders.into_iter().filter_map(|rows| self.candidate(rows, None)).collect();
        // With fewer microbatches they seem better than they are, since their rate shows late.
        if self.more == 0 {
            found.extend(self.v_blocks(effort).into_iter().map(|(candidate, _)| candidate));
        }
        found.sort_by_key(|candidate| candidate.score);
        for at in 0..found.len() {
            if let Some(rows) = building_blocks::compact(&self.flat, &mut self.eval, &found[at].rows)
                && (0..self.flat.ranks).all(|rank| self.flat.is_valid_row(rank, &rows[rank]))
            {
                found.extend(self.candidate(rows, None));
            }
        }
        found.sort_by_key(|candidate| candidate.score);
        found.dedup_by_key(|candidate| candidate.cost);
        found.truncate(KEPT);
        found
    }

    /// The orders of V blocks by the public rule, best first, with the blocks.
    pub(super) fn v_blocks(&mut self, effort: u64) -> Vec<(Candidate, v_blocks::Block)> {
        let until = self.eval.ops + effort / 16;
        let mut found: Vec<(Candidate, v_blocks::Block)> = Vec::new();
        for block in v_blocks::blocks(&self.flat, &mut self.eval) {
            if found.len() == V_BLOCKS || self.eval.ops > until {
                break;
            }
            let rows = v_blocks::order(&self.flat, &mut self.eval, &block);
            if let Some(candidate) = rows.and_then(|rows| self.candidate(rows, None))
                && found.iter().all(|(other, _)| other.cost != candidate.cost)
            {
                found.push((candidate, block));
            }
        }
        found.sort_by_key(|(candidate, _)| candidate.score);
        found
    }

    /// The cost, plus the steady-state time of a microbatch for each one that is left out.
    pub(super) fn score(&self, cost: Cost) -> Cost {
        if self.more == 0 {
            return cost;
        }
        let chain = &self.flat.chains[0];
        let lane = &self.flat.lanes[chain.first_lane + chain.lanes - 1];
        let quarter = lane.count / 4;
        let arrival = |n: usize| self.eval.arrive_b[lane.offset + n];
        let steps = lane.count - 1 - 2 * quarter;
        let span = arrival(lane.count - 1 - quarter) - arrival(quarter);
        let middle = u128::from(span).max(self.shape.period as u128 * steps as u128) * self.more as u128;
        let more = (middle / steps.max(1) as u128) as u64;
        Cost { objective: cost.objective.saturating_add(more), ends: cost.ends.saturating_add(more) }
    }
}
