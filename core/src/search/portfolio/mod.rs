//! Which method runs when, and for how long.
//!
//! 1. The published schedules that fit, and a few recipes, so that there is an answer at once.
//! 2. In a small problem, [`beam`] search. Where nothing better is left, the search ends here.
//! 3. Local search over recipes of the list scheduler ([`policies`]).
//! 4. In bidirectional problems and in small ones, reinsertion of whole microbatches into the best orders
//!    ([`reinsertion`](super::reinsertion)).
//! 5. In all but bidirectional problems, perturbation of the best orders ([`perturbation`](super::perturbation)).
//! 6. Tabu search on the best orders ([`tabu`](super::tabu)).
//!
//! With many microbatches, 3, 4 and 6 work on a problem with just enough of them to fill and drain the pipe. What they find is
//! stretched ([`steady_state`](super::steady_state)); only then is the whole problem polished. With very many microbatches,
//! to run an order a few times takes all the effort. There the whole search works on fewer microbatches, and its answer is
//! stretched.
//!
//! The search ends when it meets the bound, when the effort is used up, or when the observer says so.
//!
//! Source: Huberman, Lukose and Hogg, “An economics approach to hard computational problems”, Science 275 (1997): a
//! portfolio of algorithms.

use alloc::vec::Vec;
use core::cell::Cell;

use super::flat_problem::{Flat, Rows};
use super::makespan::Cost;
use super::policies::{self, Recipe};
use super::{Flow, Progress, Scope, beam, grouped, zb_auto};
use crate::base::units::Nanos;
use crate::problem::{Problem, Schedule};

mod bench;
mod budget;
mod fewer;
mod library;
mod methods;

use bench::{Bench, Candidate, KEPT};
pub(super) use budget::MANY;
use budget::{MOST_FAR_EFFORT, MOST_SIZE_EFFORT, SIZE_EFFORT, SMALL, SMALL_EFFORT};
use fewer::{AGAIN, SEEDS_OF_MANY, V_BLOCKS_OF_WHOLE, fewer, many_fewer};
use library::Known;
pub(super) use library::Library;
use methods::REINSERTION_SHARE;

pub(super) struct Search<'a, 'b> {
    full: Bench,
    small: Option<Bench>,
    bound_ns: Nanos,
    /// Orders that cost less are passed over, and noted.
    floor: Nanos,
    below_floor: Option<&'b Cell<bool>>,
    /// Ops that may always be run, and further ops while the best is far from the bound.
    effort: u64,
    for_size: u64,
    /// The most of those further ops while the best is very far from the bound.
    for_far: u64,
    /// Ops run to grow orders of a small problem, which are not counted among those allowed.
    grown: u64,
    /// Both together, for the best now known.
    allowed: u64,
    pub best: Option<(Rows, Cost, &'static str)>,
    /// The best recipes found, best first.
    recipes: Vec<Recipe>,
    observer: &'a mut dyn FnMut(Progress) -> Flow,
    reported: u64,
    stopped: bool,
}

/// The number of runs of the whole problem that the effort must allow for tabu search on it.
const LEAST_POLISH: u64 = 20;

/// The share of the effort left for tabu search that goes to perturbation.
const PERTURBATION_SHARE: u64 = 3;

impl<'a, 'b> Search<'a, 'b> {
    pub fn new(
        problem: &Problem,
        bound_ns: Nanos,
        effort: u64,
        scope: Scope<'b>,
        observer: &'a mut dyn FnMut(Progress) -> Flow,
    ) -> Search<'a, 'b> {
        let full = Bench::new(problem, 0);
        let small = fewer(problem, &full).map(|(fewer, more)| Bench::new(&fewer, more));
        // A problem with more ops needs more effort just to run a few hundred orders.
        let ops = match &small {
            Some(small) => small.flat.ops + full.flat.ops.min(2 * MANY) / 8,
            None => full.flat.ops,
        } as u64;
        let for_size =
            SMALL_EFFORT * ops.min(SMALL) + (SIZE_EFFORT * ops.saturating_sub(SMALL)).min(MOST_SIZE_EFFORT);
        let for_size = for_size >> scope.halved;
        let more = |effort: u64| {
            if may_reinsert(&full.flat) { effort.saturating_add(effort / REINSERTION_SHARE) } else { effort }
        };
        let (effort, for_size) = (more(effort), more(for_size));
        Search {
            grown: 0,
            allowed: effort.saturating_add(for_size),
            full,
            small,
            bound_ns,
            floor: scope.floor,
            below_floor: scope.below_floor,
            effort,
            for_size,
            for_far: MOST_FAR_EFFORT >> scope.halved,
            best: None,
            recipes: Vec::new(),
            observer,
            reported: 0,
            stopped: false,
        }
    }

    pub fn flat(&self) -> &Flat {
        &self.full.flat
    }

    /// Ops run so far.
    pub fn all_ops(&self) -> u64 {
        self.ops() + self.grown
    }

    /// Those that count against the effort.
    fn ops(&self) -> u64 {
        self.full.ops() + self.small.as_ref().map_or(0, Bench::ops)
    }

    /// Starts from `schedule`, if it is valid.
    pub fn start_from(&mut self, schedule: &Schedule, origin: &'static str) {
        let flat = &self.full.flat;
        if let Some(rows) = flat.rows(schedule)
            && (0..flat.ranks).all(|rank| flat.is_valid_row(rank, &rows[rank]))
        {
            self.offer(rows, origin);
        }
    }

    /// Tries the methods in the order that the head of this module gives.
    pub fn run(&mut self, problem: &Problem, library: &Library, scope: Scope) {
        let Scope { quick, published_only, halved, near, .. } = scope;
        let near = near && self.best.is_some();
        self.offer_published(&library.known);
        if published_only {
            return;
        }
        self.offer_grouped();
        let many = if quick { None } else { many_fewer(problem, &self.full) };
        let first = if many.is_some() { SEEDS_OF_MANY } else { 1 };
        for seed in policies::seeds(&self.full.flat, &self.full.shape).into_iter().take(first) {
            self.list(seed);
        }
        if quick || self.is_over() {
            return;
        }
        if near && halved > 0 && self.small.is_some() {
            self.polish();
            return;
        }
        if let Some((fewer, more)) = many
            && self.stretch_fewer(&fewer, more, library, scope)
        {
            self.polish();
            return;
        }
        let Some(beam) = self.beam() else { return };
        self.compact_published(&library.known);
        // With few microbatches it is cheaper to find out which variant of the rule is best.
        let (zbv, _) = self.full.zbv(self.allowed / if self.small.is_some() { 160 } else { 40 });
        for candidate in &zbv {
            self.offer(candidate.rows.clone(), "zb-v rule");
        }
        if self.is_over() {
            return;
        }
        let blocks = if self.small.is_none() { self.full.building_blocks(self.allowed) } else { Vec::new() };
        for candidate in &blocks {
            self.offer(candidate.rows.clone(), "building blocks");
        }
        if self.is_over() {
            return;
        }
        match self.small.take() {
            None => self.improve_whole(near, beam, zbv, blocks),
            Some(small) => self.improve_fewer(small),
        }
    }

    /// Offers the serial order, so that there is an answer at once, and the best published schedule that fits.
    fn offer_published(&mut self, known: &[Known]) {
        let serial = self.full.flat.serial();
        self.offer(serial, "serial");
        let flat = &self.full.flat;
        let fits = |known: &&Known| known.cost.objective >= self.floor && known.fits(flat);
        if let Some(known) = known.iter().find(fits) {
            self.offer(known.rows.clone(), known.name);
        }
    }

    /// Offers the orders of zero-bubble planners on a linear pipeline, and interleaving in smaller groups.
    fn offer_grouped(&mut self) {
        let flat = self.full.flat.clone();
        let cutoff = self.cutoff();
        let mut ops = 0;
        zb_auto::orders(&flat, &mut ops, cutoff, |rows| {
            self.offer(rows, "zb-auto");
            self.cutoff()
        });
        grouped::orders(&flat, &mut ops, |rows| {
            self.offer(rows, "grouped");
        });
        self.full.eval.ops += ops;
    }

    /// Improves orders of the whole problem, where it has few microbatches. `beam`, `zbv` and `blocks` are what these methods
    /// found so far.
    fn improve_whole(&mut self, near: bool, beam: Vec<Candidate>, zbv: Vec<Candidate>, blocks: Vec<Candidate>) {
        let effort = self.allowed;
        // Next to a schedule to start from, recipes have little to add.
        let share = if near {
            8
        } else if self.full.flat.chunks() == 1 {
            2
        } else {
            3
        };
        let mut known = self.search_recipes(None, effort / share);
        self.recipes = known.iter().filter_map(|candidate| candidate.recipe).collect();
        // The order found may have lowered the effort that is allowed.
        let effort = self.allowed;
        self.add_candidates(&mut known, beam);
        if may_reinsert(&self.full.flat) {
            let until = self.ops() + effort / (REINSERTION_SHARE + 1);
            let found = self.reinsert(None, &known, until);
            self.add_candidates(&mut known, found);
        }
        self.add_candidates(&mut known, zbv);
        self.add_candidates(&mut known, blocks);
        self.add_best(&mut known);
        // In bidirectional problems, perturbation seldom improves what reinsertion has found.
        if self.full.flat.chains.len() == 1 {
            let until = self.ops() + effort.saturating_sub(self.ops()) / PERTURBATION_SHARE;
            let found = self.perturb(&known, until);
            self.add_candidates(&mut known, found);
        }
        self.tabu(None, known, effort);
    }

    /// Improves orders of the problem with fewer microbatches, and extends each to the whole problem.
    fn improve_fewer(&mut self, mut small: Bench) {
        let effort = self.allowed;
        let mut known = self.search_recipes(Some(&mut small), effort * 3 / 10);
        self.recipes = known.iter().filter_map(|candidate| candidate.recipe).collect();
        let effort = self.allowed;
        if small.flat.chains.len() > 1 {
            let until = self.ops() + small.ops() + effort / (REINSERTION_SHARE + 1);
            let found = self.reinsert(Some(&mut small), &known, until);
            for candidate in &found {
                self.extend(&mut small, candidate);
            }
            self.add_candidates(&mut known, found);
        }
        let (zbv, ways) = small.zbv(effort / 40);
        let blocks = small.building_blocks(effort);
        self.extend_all(&mut small, &zbv);
        // The same rules again on the whole problem, where that takes little of the effort and nothing else is better.
        if (self.full.flat.ops as u64).saturating_mul(AGAIN) <= self.effort.saturating_add(self.for_size) {
            let best = known.iter().chain(&zbv).chain(&blocks).map(|candidate| candidate.score).min();
            let is_best = |candidate: &Candidate| best.is_none_or(|best| candidate.score <= best);
            for (_, way) in zbv.iter().zip(ways).filter(|(candidate, _)| is_best(candidate)) {
                self.replay_zbv(way);
            }
            let v_blocks = small.v_blocks(effort);
            for (_, block) in v_blocks.iter().filter(|(candidate, _)| is_best(candidate)).take(V_BLOCKS_OF_WHOLE) {
                self.place_v_block(block);
            }
        }
        self.extend_all(&mut small, &blocks);
        self.add_candidates(&mut known, zbv);
        self.add_candidates(&mut known, blocks);
        let mut known = self.tabu(Some(&mut small), known, effort / 10 * 9);
        known.sort_by_key(|candidate| candidate.score);
        self.extend_all(&mut small, &known);
        self.small = Some(small);
        self.polish();
    }

    /// Local search on the best order, where there is effort left for more than to look at it.
    fn polish(&mut self) {
        if self.allowed.saturating_sub(self.ops()) > LEAST_POLISH * self.full.flat.ops as u64 {
            let mut known = Vec::new();
            self.add_best(&mut known);
            self.tabu(None, known, self.allowed);
        }
    }

    /// Builds an order of the whole problem by a recipe.
    fn list(&mut self, recipe: Recipe) {
        if let Some(candidate) = self.full.build(recipe) {
            self.offer(candidate.rows, "list scheduling");
        }
    }

    /// Adds the best of `found` that are new and good enough to keep.
    fn add_candidates(&self, known: &mut Vec<Candidate>, found: Vec<Candidate>) {
        for candidate in found {
            let at = known.partition_point(|other| other.score < candidate.score);
            if at < KEPT && known.iter().all(|other| other.cost != candidate.cost) {
                known.insert(at, candidate);
                known.truncate(KEPT);
            }
        }
    }

    fn add_best(&self, known: &mut Vec<Candidate>) {
        if let Some((rows, cost, _)) = &self.best
            && known.iter().all(|other| other.cost != *cost)
        {
            known.insert(0, Candidate { score: *cost, cost: *cost, recipe: None, rows: rows.clone() });
        }
    }
}

/// Whether reinsertion is also run: in bidirectional problems, and in small ones.
fn may_reinsert(flat: &Flat) -> bool {
    flat.chains.len() > 1 || beam::is_small(flat)
}
