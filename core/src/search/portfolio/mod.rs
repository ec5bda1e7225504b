//! The order in which a search tries things.
//!
//! 1. The published schedules that fit, and a few recipes, so that there is an answer at once.
//! 2. Of a small problem, orders grown op by op ([`beam`](super::beam)); where nothing better is left, that is all.
//! 3. A climb through recipes of the list scheduler ([`policies`]).
//! 4. Going two ways, and in small problems, whole microbatches taken out of the best orders and put in again
//!    ([`reinsertion`](super::reinsertion)).
//! 5. Going one way, ops of the best orders planned sooner or later ([`perturbation`](super::perturbation)).
//! 6. Local search on the best orders ([`tabu`](super::tabu)).
//!
//! With many microbatches, 3, 4 and 6 work on a problem with as many as it takes to fill and drain the pipe,
//! and what they find is stretched ([`steady`]); only then is the whole problem polished. With very many, where to run
//! an order only a few times takes all the effort, the whole search works on fewer, and its answer is stretched.
//!
//! Everything stops when the bound is met, the effort is used up, or the observer says so.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, OnceCell};

use super::beam::{self, Beam};
use super::flat_problem::{Flat, Rows};
use super::list::List;
use super::makespan::{Cost, Eval};
use super::perturbation::Perturbation;
use super::policies::{self, Recipe, Shape};
use super::reinsertion::Reinsertion;
use super::steady_state::{self, PIECES, STRIDE};
use super::tabu::Tabu;
use super::{Flow, Progress, Scope, building_blocks, grouped, v_blocks, zb_auto, zbv};
use crate::base::random::Random;
use crate::base::units::Nanos;
use crate::bounds::lower_bound;
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::schedule::{Published, published};

/// A problem with all that it takes to try an order of it.
struct Bench {
    flat: Flat,
    eval: Eval,
    list: List,
    shape: Shape,
    least: Vec<i64>,
    /// Microbatches of the real problem beyond those of this one, in each direction.
    more: usize,
}

/// An order on a bench, with what it is likely to cost on the real problem.
#[derive(Clone)]
struct Candidate {
    score: Cost,
    cost: Cost,
    recipe: Option<Recipe>,
    rows: Rows,
}

impl Bench {
    fn new(problem: &Problem, more: usize) -> Bench {
        let flat = Flat::new(problem);
        let shape = Shape::new(&flat);
        let least = (0..flat.ranks).map(|rank| flat.least(rank)).collect();
        Bench { eval: Eval::new(&flat), list: List::new(&flat), shape, least, flat, more }
    }

    fn ops(&self) -> u64 {
        // One op of the list scheduler takes about as long as five of the evaluation.
        self.eval.ops + 5 * self.list.ops
    }

    fn build(&mut self, recipe: Recipe) -> Option<Candidate> {
        let policy = recipe.policy(&self.flat, &self.shape);
        let limits = recipe.limits(&self.flat, &self.least);
        let rows = self.list.build(&self.flat, &limits, &policy)?;
        self.candidate(rows, Some(recipe))
    }

    fn candidate(&mut self, rows: Rows, recipe: Option<Recipe>) -> Option<Candidate> {
        let cost = self.eval.run(&self.flat, &rows, u64::MAX)?;
        Some(Candidate { score: self.score(cost), cost, recipe, rows })
    }

    /// What the rule of ZB-V leads to, best first, and the ways to it.
    fn waves(&mut self, most_ops: u64) -> (Vec<Candidate>, Vec<zbv::Way>) {
        let (found, ops) = zbv::candidates(&self.flat, &mut self.eval, most_ops);
        self.list.ops += ops;
        let ways = found.iter().map(|found| found.way).collect();
        (found.into_iter().filter_map(|found| self.candidate(found.rows, None)).collect(), ways)
    }

    /// What building blocks lead to, best first.
    fn blocks(&mut self, effort: u64) -> Vec<Candidate> {
        let orders = building_blocks::orders(&self.flat, &mut self.eval, BLOCKS, effort / 8);
        let mut found: Vec<Candidate> = orders.into_iter().filter_map(|rows| self.candidate(rows, None)).collect();
        // With fewer microbatches they seem better than they are: their rate shows late.
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

    /// What building blocks of a V lead to by the public rule, best first, with the blocks.
    fn v_blocks(&mut self, effort: u64) -> Vec<(Candidate, v_blocks::Block)> {
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

    /// The cost and, for each microbatch that is left out, the time that one takes in the middle.
    fn score(&self, cost: Cost) -> Cost {
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

/// What a published schedule is, costs and takes, whatever the limits.
pub(super) struct Known {
    name: &'static str,
    rows: Rows,
    cost: Cost,
    /// By rank, the most bytes above the static ones.
    peaks: Vec<i64>,
}

impl Known {
    /// Whether it keeps to the limits.
    pub fn fits(&self, flat: &Flat) -> bool {
        self.peaks.iter().zip(&flat.limit).all(|(peak, limit)| peak <= limit)
    }

    /// Its objective.
    pub fn cost_ns(&self) -> Nanos {
        self.cost.objective
    }
}

/// The published schedules that exist for a problem.
pub(super) struct Library {
    /// The best first.
    pub known: Vec<Known>,
    /// Those for the problem with fewer microbatches that stands for it where it has very many.
    fewer: OnceCell<Box<Library>>,
}

impl Library {
    pub fn of(problem: &Problem) -> Library {
        Library { known: known(problem), fewer: OnceCell::new() }
    }
}

/// All published schedules that exist for `problem` and run, the best first.
fn known(problem: &Problem) -> Vec<Known> {
    let flat = Flat::new(problem);
    let mut eval = Eval::new(&flat);
    let know = |which: &'static Published| {
        let rows = flat.rows(&which.build(problem).ok()?)?;
        let cost = eval.run(&flat, &rows, u64::MAX)?;
        Some(Known { name: which.name, cost, peaks: rows.iter().map(|row| flat.peak(row)).collect(), rows })
    };
    let mut known: Vec<Known> = published().iter().filter_map(know).collect();
    known.sort_by_key(|known| known.cost);
    known
}

pub(super) struct Search<'a, 'b> {
    full: Bench,
    small: Option<Bench>,
    bound_ns: Nanos,
    /// Orders that cost less are passed over, and noted.
    floor: Nanos,
    below_floor: Option<&'b Cell<bool>>,
    /// Ops that may be run whatever is known, and those that may be run besides while the best is far from the bound.
    effort: u64,
    for_size: u64,
    /// The most of those while it is very far.
    for_far: u64,
    /// Ops run to grow orders of a small problem, which are not counted among those allowed.
    grown: u64,
    /// Both together, as the best now known has it.
    allowed: u64,
    pub best: Option<(Rows, Cost, &'static str)>,
    /// The best that the climb has found, best first.
    recipes: Vec<Recipe>,
    observer: &'a mut dyn FnMut(Progress) -> Flow,
    reported: u64,
    stopped: bool,
}

/// Effort for each op of a problem, up to so many ops; then for each further op, and the most for those.
const SMALL_EFFORT: u64 = 1000;
const SMALL: u64 = 8192;
const SIZE_EFFORT: u64 = 300;
const MOST_SIZE_EFFORT: u64 = 40_000_000;

/// How many times the effort for its size a problem gets at most whose best stays far above the bound, and the most effort
/// that it may get so.
const MOST_TIMES: u128 = 8;
const MOST_FAR_EFFORT: u64 = 48_000_000;

/// Ops of a problem that is searched as it is: beyond twice as many, one of so many is searched and stretched.
pub(super) const MANY: usize = 49_152;

/// Local search on the whole problem takes effort for running it so often, or it is left.
const LEAST_POLISH: u64 = 20;

/// Orders that the climb keeps, and local search starts from.
const KEPT: usize = 6;

/// Orders that microbatches are taken out of and put in again; and the share of the other effort that this adds.
const REFITTED: usize = 8;
const REFIT_SHARE: u64 = 3;

/// The share of what is left for local search that goes to plans of single ops.
const REPLAN_SHARE: u64 = 3;

/// Where an order of the whole problem is built by a recipe only a few times: so many at first, and so many of those that
/// were best with fewer microbatches.
const SEEDS_OF_MANY: usize = 4;
const RECIPES_OF_FEWER: usize = 4;

/// Orders that building blocks lead to and are run.
const BLOCKS: usize = 40;

/// Those of the public rule for a V: the best has been among the first twelve wherever all were tried.
const V_BLOCKS: usize = 12;

/// As many of them as are laid for all microbatches.
const LAID: usize = 2;

/// Effort for each op of a problem from which on what was best with fewer microbatches is built for all of them.
const AGAIN: u64 = 320;

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
        // What has more ops needs more effort only to be built and run a few hundred times.
        let ops = match &small {
            Some(small) => small.flat.ops + full.flat.ops.min(2 * MANY) / 8,
            None => full.flat.ops,
        } as u64;
        let for_size =
            SMALL_EFFORT * ops.min(SMALL) + (SIZE_EFFORT * ops.saturating_sub(SMALL)).min(MOST_SIZE_EFFORT);
        let for_size = for_size >> scope.halved;
        let more = |effort: u64| {
            if is_refitted(&full.flat) { effort.saturating_add(effort / REFIT_SHARE) } else { effort }
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
    pub fn give(&mut self, schedule: &Schedule, origin: &'static str) {
        let flat = &self.full.flat;
        if let Some(rows) = flat.rows(schedule)
            && (0..flat.ranks).all(|rank| flat.is_valid_row(rank, &rows[rank]))
        {
            self.offer(rows, origin);
        }
    }

    pub fn run(&mut self, problem: &Problem, library: &Library, scope: Scope) {
        let known = &library.known[..];
        let Scope { quick, published_only, halved, near, .. } = scope;
        let near = near && self.best.is_some();
        let serial = self.full.flat.serial();
        self.offer(serial, "one after the other");
        let flat = &self.full.flat;
        let fits = |known: &&Known| known.cost.objective >= self.floor && known.fits(flat);
        if let Some(known) = known.iter().find(fits) {
            self.offer(known.rows.clone(), known.name);
        }
        if published_only {
            return;
        }
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
        let Some(grown) = self.grow() else { return };
        self.tighten(known);
        // With few microbatches it is cheaper to find out which way of the rule is best.
        let (waves, _) = self.full.waves(self.allowed / if self.small.is_some() { 160 } else { 40 });
        for candidate in &waves {
            self.offer(candidate.rows.clone(), "waves");
        }
        if self.is_over() {
            return;
        }
        let blocks = if self.small.is_none() { self.full.blocks(self.allowed) } else { Vec::new() };
        for candidate in &blocks {
            self.offer(candidate.rows.clone(), "blocks");
        }
        if self.is_over() {
            return;
        }
        match self.small.take() {
            None => {
                let effort = self.allowed;
                // Beside a schedule to start from, recipes have little to add.
                let share = if near {
                    8
                } else if self.full.flat.chunks() == 1 {
                    2
                } else {
                    3
                };
                let mut known = self.climb(None, effort / share);
                self.recipes = known.iter().filter_map(|candidate| candidate.recipe).collect();
                // What was found may be worth less from here on.
                let effort = self.allowed;
                self.add_waves(&mut known, grown);
                if is_refitted(&self.full.flat) {
                    let until = self.ops() + effort / (REFIT_SHARE + 1);
                    let refitted = self.refit(None, &known, until);
                    self.add_waves(&mut known, refitted);
                }
                self.add_waves(&mut known, waves);
                self.add_waves(&mut known, blocks);
                self.add_best(&mut known);
                // Going two ways, what whole microbatches were put in again for seldom gets better so.
                if self.full.flat.chains.len() == 1 {
                    let until = self.ops() + effort.saturating_sub(self.ops()) / REPLAN_SHARE;
                    let replanned = self.replan(&known, until);
                    self.add_waves(&mut known, replanned);
                }
                self.improve(None, known, effort);
            }
            Some(mut small) => {
                let effort = self.allowed;
                let mut known = self.climb(Some(&mut small), effort * 3 / 10);
                self.recipes = known.iter().filter_map(|candidate| candidate.recipe).collect();
                let effort = self.allowed;
                if small.flat.chains.len() > 1 {
                    let until = self.ops() + small.ops() + effort / (REFIT_SHARE + 1);
                    let refitted = self.refit(Some(&mut small), &known, until);
                    for candidate in &refitted {
                        self.extend(&mut small, candidate);
                    }
                    self.add_waves(&mut known, refitted);
                }
                let (waves, ways) = small.waves(effort / 40);
                let blocks = small.blocks(effort);
                self.extend_all(&mut small, &waves);
                // Again on the real problem, where that takes little of the effort and nothing else is better.
                if (self.full.flat.ops as u64).saturating_mul(AGAIN) <= self.effort.saturating_add(self.for_size) {
                    let best = known.iter().chain(&waves).chain(&blocks).map(|candidate| candidate.score).min();
                    let is_best = |candidate: &Candidate| best.is_none_or(|best| candidate.score <= best);
                    for (_, way) in waves.iter().zip(ways).filter(|(candidate, _)| is_best(candidate)) {
                        self.follow(way);
                    }
                    let laid = small.v_blocks(effort);
                    for (_, block) in laid.iter().filter(|(candidate, _)| is_best(candidate)).take(LAID) {
                        self.lay(block);
                    }
                }
                self.extend_all(&mut small, &blocks);
                self.add_waves(&mut known, waves);
                self.add_waves(&mut known, blocks);
                let mut known = self.improve(Some(&mut small), known, effort / 10 * 9);
                known.sort_by_key(|candidate| candidate.score);
                self.extend_all(&mut small, &known);
                self.small = Some(small);
                self.polish();
            }
        }
    }

    /// Grows orders of a small problem op by op, more and more side by side. The best few, best first; none where nothing
    /// better is left.
    fn grow(&mut self) -> Option<Vec<Candidate>> {
        let mut known: Vec<Candidate> = Vec::new();
        if !beam::is_small(&self.full.flat) {
            return Some(known);
        }
        let flat = self.full.flat.clone();
        let mut beam = Beam::new(&flat, Vec::new());
        let is_over = beam.widen(self.allowed, |orders, ops| {
            self.grown += ops;
            for rows in orders {
                self.offer(rows.clone(), "grown");
                known.extend(self.full.candidate(rows, None));
            }
            self.cutoff()
        });
        known.sort_by_key(|candidate| candidate.score);
        known.dedup_by_key(|candidate| candidate.cost);
        known.truncate(KEPT);
        (!is_over).then_some(known)
    }

    /// Local search on the best order, where there is effort left for more than to look at it.
    fn polish(&mut self) {
        if self.allowed.saturating_sub(self.ops()) > LEAST_POLISH * self.full.flat.ops as u64 {
            let mut known = Vec::new();
            self.add_best(&mut known);
            self.improve(None, known, self.allowed);
        }
    }

    /// With very many microbatches: the answer for fewer of them, stretched. Whether it is the best so far.
    fn stretch_fewer(&mut self, fewer: &Problem, more: usize, library: &Library, scope: Scope) -> bool {
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
        // What is best in the middle shows late: with fewer microbatches filling and draining weigh more.
        recipes.into_iter().take(RECIPES_OF_FEWER).for_each(|recipe| self.list(recipe));
        let Some((rows, cost, _)) = found else { return false };
        let candidate = Candidate { score: cost, cost, recipe: None, rows };
        let before = self.best.as_ref().map(|(_, cost, _)| *cost);
        self.extend(&mut bench, &candidate);
        self.best.as_ref().map(|(_, cost, _)| *cost) != before
    }

    /// Published schedules that fit, with their ops moved ahead into idle time: their rules do not know the times.
    fn tighten(&mut self, known: &[Known]) {
        if self.full.flat.chains.len() != 1 {
            return;
        }
        for known in known {
            let fits = known.fits(&self.full.flat);
            let is_near = |best: &Cost| known.cost.objective / 8 * 7 < best.objective;
            if !fits || self.is_over() || !self.best.as_ref().is_some_and(|(_, best, _)| is_near(best)) {
                continue;
            }
            if let Some(rows) = building_blocks::compact(&self.full.flat, &mut self.full.eval, &known.rows)
                && (0..self.full.flat.ranks).all(|rank| self.full.flat.is_valid_row(rank, &rows[rank]))
            {
                self.offer(rows, known.name);
            }
        }
    }

    /// Builds an order of the whole problem by a recipe.
    fn list(&mut self, recipe: Recipe) {
        if let Some(candidate) = self.full.build(recipe) {
            self.offer(candidate.rows, "list");
        }
    }

    /// Adds the best of `waves`, if the climb has not come upon it or better.
    fn add_waves(&self, known: &mut Vec<Candidate>, waves: Vec<Candidate>) {
        for candidate in waves {
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

    /// Tries the seeds of [`policies`], then climbs from the best of them. The best few, best first.
    fn climb(&mut self, mut small: Option<&mut Bench>, until: u64) -> Vec<Candidate> {
        let mut random = Random::new(1);
        let mut known: Vec<Candidate> = Vec::new();
        let bench = small.as_deref().unwrap_or(&self.full);
        let mut seeds = policies::seeds(&bench.flat, &bench.shape).into_iter();
        loop {
            let spent = self.ops() + small.as_ref().map_or(0, |bench| bench.ops());
            if self.is_over_at(spent) || spent > until {
                return known;
            }
            let recipe = match seeds.next() {
                Some(seed) => seed,
                None => {
                    // From the better of two: good recipes have good neighbours, but not all of them.
                    let one = random.below(known.len() as u64).min(random.below(known.len() as u64));
                    let from = known[one as usize].recipe;
                    let Some(from) = from else { return known };
                    from.neighbour(&mut random)
                }
            };
            let bench = small.as_deref_mut().unwrap_or(&mut self.full);
            let Some(candidate) = bench.build(recipe) else { continue };
            if known.iter().any(|other| other.cost == candidate.cost) {
                continue;
            }
            let at = known.partition_point(|other| other.score < candidate.score);
            if at < KEPT {
                known.insert(at, candidate);
                known.truncate(KEPT);
            }
            if at == 0 {
                let first = known[0].clone();
                match small.as_deref_mut() {
                    None => {
                        self.offer(first.rows, "list");
                    }
                    Some(bench) => self.extend(bench, &first),
                }
            }
        }
    }

    /// Takes microbatches out of the best orders, and of new ones, and puts them in again. The best few, best first.
    fn refit(&mut self, mut small: Option<&mut Bench>, known: &[Candidate], until: u64) -> Vec<Candidate> {
        let mut random = Random::new(3);
        let mut found: Vec<Candidate> = known.to_vec();
        let bench = small.as_deref_mut().unwrap_or(&mut self.full);
        let mut built = Vec::new();
        bench.eval.ops += Reinsertion::built(&bench.flat, &mut bench.eval, until / 8, |rows| built.push(rows));
        found.extend(built.into_iter().filter_map(|rows| bench.candidate(rows, None)));
        found.sort_by_key(|candidate| candidate.score);
        found.dedup_by_key(|candidate| candidate.cost);
        found.truncate(REFITTED);
        for index in 0..found.len() {
            if small.is_none() {
                self.offer(found[index].rows.clone(), "refitted");
            }
            let bench = small.as_deref_mut().unwrap_or(&mut self.full);
            let Some(mut refit) = Reinsertion::new(&bench.flat, &mut bench.eval, &found[index].rows) else {
                continue;
            };
            let from = self.ops() + small.as_ref().map_or(0, |bench| bench.ops());
            let until = from + until.saturating_sub(from) / (found.len() - index) as u64;
            loop {
                let spent = self.ops() + small.as_ref().map_or(0, |bench| bench.ops());
                if spent > until || self.is_over_at(spent) {
                    break;
                }
                let bench = small.as_deref_mut().unwrap_or(&mut self.full);
                let before = refit.ops;
                let better = refit.step(&bench.flat, &mut bench.eval, &mut random);
                bench.eval.ops += refit.ops - before;
                if better && small.is_none() {
                    self.offer(refit.best(), "refitted");
                }
            }
            let (rows, cost) = (refit.best(), refit.best_cost());
            found[index] = Candidate { score: cost, cost, recipe: None, rows };
        }
        found.sort_by_key(|candidate| candidate.score);
        found
    }

    /// Plans ops of the best orders sooner or later. What that leads to, best first.
    fn replan(&mut self, known: &[Candidate], until: u64) -> Vec<Candidate> {
        let mut random = Random::new(5);
        let mut found = Vec::with_capacity(known.len());
        for (index, candidate) in known.iter().enumerate() {
            let Bench { flat, eval, shape, .. } = &mut self.full;
            let Some(mut replan) = Perturbation::new(flat, eval, &candidate.rows, shape.period) else { continue };
            let from = self.ops();
            let until = from + until.saturating_sub(from) / (known.len() - index) as u64;
            while self.ops() <= until && !self.is_over() {
                let Bench { flat, eval, list, .. } = &mut self.full;
                let (before, ran) = (replan.ops, eval.ops);
                let better = replan.step(flat, eval, list, &mut random);
                eval.ops = ran + replan.ops - before;
                if better {
                    self.offer(replan.best(), "replanned");
                }
            }
            let cost = replan.best_cost();
            found.push(Candidate { score: cost, cost, recipe: None, rows: replan.best() });
        }
        found.sort_by_key(|candidate| candidate.score);
        found
    }

    /// Improves orders by local search: all of them for a while, then the better half, and so on to the best.
    fn improve(&mut self, mut small: Option<&mut Bench>, known: Vec<Candidate>, until: u64) -> Vec<Candidate> {
        let mut random = Random::new(2);
        let spent = self.ops() + small.as_ref().map_or(0, |bench| bench.ops());
        if spent > until || self.is_over_at(spent) {
            return known.into_iter().map(|candidate| Candidate { recipe: None, ..candidate }).collect();
        }
        let flat = small.as_ref().map_or(&self.full.flat, |bench| &bench.flat);
        let mut searches: Vec<Tabu> = known.iter().filter_map(|candidate| Tabu::new(flat, &candidate.rows)).collect();
        let rounds = u64::from(searches.len().max(1).ilog2()) + 1;
        let mut better = Vec::with_capacity(searches.len());
        for round in 0..rounds {
            let from = self.ops() + small.as_ref().map_or(0, |bench| bench.ops());
            let share = until.saturating_sub(from) / (rounds - round) / searches.len().max(1) as u64;
            for (index, search) in searches.iter_mut().enumerate() {
                self.walk(small.as_deref_mut(), search, from + share * (index as u64 + 1), &mut random);
            }
            searches.sort_by_key(|search| search.best_cost);
            let kept = if round + 1 < rounds { searches.len() / 2 } else { 0 };
            let bench = small.as_deref_mut().unwrap_or(&mut self.full);
            better.extend(searches.drain(kept..).filter_map(|search| bench.candidate(search.best(), None)));
        }
        better
    }

    /// Local search on one order, until so many ops have been run in all.
    fn walk(&mut self, mut small: Option<&mut Bench>, search: &mut Tabu, until: u64, random: &mut Random) {
        loop {
            let spent = self.ops() + small.as_ref().map_or(0, |bench| bench.ops());
            let is_too_good = small.is_none() && search.best_cost.objective < self.floor;
            if is_too_good {
                self.note_below_floor();
            }
            if self.is_over_at(spent) || spent > until || is_too_good {
                return;
            }
            let bench = small.as_deref_mut().unwrap_or(&mut self.full);
            let before = search.ops();
            let better = search.step(&bench.flat, random);
            bench.eval.ops += search.ops() - before;
            if better
                && small.is_none()
                && self.best.as_ref().is_none_or(|(_, known, _)| search.best_cost.objective < known.objective)
            {
                self.offer(search.best(), "improved");
            }
        }
    }

    /// Extends candidates, one after the other.
    fn extend_all(&mut self, small: &mut Bench, candidates: &[Candidate]) {
        for candidate in candidates {
            let spent = self.ops() + small.ops();
            if self.is_over_at(spent) {
                return;
            }
            self.extend(small, candidate);
        }
    }

    /// Goes a way of the rule of ZB-V on the real problem.
    fn follow(&mut self, way: zbv::Way) {
        let (found, ops) = zbv::follow(&self.full.flat, &mut self.full.eval, way);
        self.full.list.ops += ops;
        if let Some(found) = found.into_iter().next() {
            self.offer(found.rows, "waves");
        }
    }

    /// Lays a block of a V for the real problem.
    fn lay(&mut self, block: &v_blocks::Block) {
        let Bench { flat, eval, .. } = &mut self.full;
        if let Some(rows) = v_blocks::order(flat, eval, block) {
            self.offer(rows, "blocks");
        }
    }

    /// Offers what a candidate of a smaller problem becomes for the real one.
    fn extend(&mut self, small: &mut Bench, candidate: &Candidate) {
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
                self.offer(rows, "steady");
            }
        }
    }

    fn is_over(&mut self) -> bool {
        let spent = self.ops();
        self.is_over_at(spent)
    }

    fn is_over_at(&mut self, spent: u64) -> bool {
        let Some((_, cost, _)) = &self.best else { return false };
        if self.stopped
            || self.is_below_floor()
            || spent > self.allowed
            || cost.objective <= self.bound_ns.max(self.floor)
        {
            return true;
        }
        // A person who watches wants to be able to stop, also while nothing gets better.
        let spent = spent + self.grown;
        if spent - self.reported > 200_000 {
            self.reported = spent;
            let progress = Progress { ops: spent, cost_ns: cost.objective, bound_ns: self.bound_ns };
            self.stopped = (self.observer)(progress) == Flow::Stop;
        }
        self.stopped
    }

    /// What an order has to cost less than to be of use.
    fn cutoff(&mut self) -> Nanos {
        if self.is_over() { 0 } else { self.best.as_ref().map_or(Nanos::MAX, |(_, cost, _)| cost.objective) }
    }

    fn note_below_floor(&self) {
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
        // What has come nearer late is worth its share from then on.
        let late = self.ops().saturating_add(share as u64).min(self.effort.saturating_add(self.for_far));
        self.allowed = allowed.max(late);
    }

    /// Takes `rows` if they are better than the best so far.
    fn offer(&mut self, rows: Rows, origin: &'static str) -> bool {
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

/// Whether microbatches are taken out and put in besides: going two ways, and in small problems.
fn is_refitted(flat: &Flat) -> bool {
    flat.chains.len() > 1 || beam::is_small(flat)
}

/// The same problem with fewer microbatches, and how many fewer in each direction: enough to fill the pipe, to reach
/// the steady state and to drain it.
fn fewer(problem: &Problem, full: &Bench) -> Option<(Problem, usize)> {
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
fn many_fewer(problem: &Problem, full: &Bench) -> Option<(Problem, usize)> {
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
