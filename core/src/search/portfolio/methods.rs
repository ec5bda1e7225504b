//! The methods that improve orders, each for its share of the effort: beam search, list scheduling with local search over
//! its parameters, reinsertion, perturbation, tabu search.

use alloc::vec::Vec;

use super::Search;
use super::bench::{Bench, Candidate, KEPT};
use super::library::Known;
use crate::base::random::Random;
use crate::search::beam::{self, Beam};
use crate::search::makespan::Cost;
use crate::search::perturbation::Perturbation;
use crate::search::reinsertion::Reinsertion;
use crate::search::tabu::Tabu;
use crate::search::{building_blocks, policies};

/// Orders that reinsertion works on, and the share of the other effort that it adds.
const REINSERTED: usize = 8;
pub(super) const REINSERTION_SHARE: u64 = 3;

impl Search<'_, '_> {
    /// Beam search of a small problem, with a growing width. The best few orders, best first; none where nothing better
    /// is left.
    pub(super) fn beam(&mut self) -> Option<Vec<Candidate>> {
        let mut known: Vec<Candidate> = Vec::new();
        if !beam::is_small(&self.full.flat) {
            return Some(known);
        }
        let flat = self.full.flat.clone();
        let mut beam = Beam::new(&flat, Vec::new());
        let is_over = beam.widen(self.allowed, |orders, ops| {
            self.grown += ops;
            for rows in orders {
                self.offer(rows.clone(), "beam search");
                known.extend(self.full.candidate(rows, None));
            }
            self.cutoff()
        });
        known.sort_by_key(|candidate| candidate.score);
        known.dedup_by_key(|candidate| candidate.cost);
        known.truncate(KEPT);
        (!is_over).then_some(known)
    }

    /// Moves ops of published schedules that fit ahead into idle time, since their rules do not know the times.
    pub(super) fn compact_published(&mut self, known: &[Known]) {
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

    /// List scheduling with the seeds of [`policies`], then local search over recipes from the best of them. The best
    /// few, best first.
    pub(super) fn search_recipes(&mut self, mut small: Option<&mut Bench>, until: u64) -> Vec<Candidate> {
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
                        self.offer(first.rows, "list scheduling");
                    }
                    Some(bench) => self.extend(bench, &first),
                }
            }
        }
    }

    /// Reinsertion: removes microbatches from the best orders, and from new ones, and inserts them again. The best few,
    /// best first.
    pub(super) fn reinsert(
        &mut self,
        mut small: Option<&mut Bench>,
        known: &[Candidate],
        until: u64,
    ) -> Vec<Candidate> {
        let mut random = Random::new(3);
        let mut found: Vec<Candidate> = known.to_vec();
        let bench = small.as_deref_mut().unwrap_or(&mut self.full);
        let mut built = Vec::new();
        bench.eval.ops += Reinsertion::built(&bench.flat, &mut bench.eval, until / 8, |rows| built.push(rows));
        found.extend(built.into_iter().filter_map(|rows| bench.candidate(rows, None)));
        found.sort_by_key(|candidate| candidate.score);
        found.dedup_by_key(|candidate| candidate.cost);
        found.truncate(REINSERTED);
        for index in 0..found.len() {
            if small.is_none() {
                self.offer(found[index].rows.clone(), "reinsertion");
            }
            let bench = small.as_deref_mut().unwrap_or(&mut self.full);
            let Some(mut search) = Reinsertion::new(&bench.flat, &mut bench.eval, &found[index].rows) else {
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
                let before = search.ops;
                let better = search.step(&bench.flat, &mut bench.eval, &mut random);
                bench.eval.ops += search.ops - before;
                if better && small.is_none() {
                    self.offer(search.best(), "reinsertion");
                }
            }
            let (rows, cost) = (search.best(), search.best_cost());
            found[index] = Candidate { score: cost, cost, recipe: None, rows };
        }
        found.sort_by_key(|candidate| candidate.score);
        found
    }

    /// Perturbation: plans ops of the best orders sooner or later. The results, best first.
    pub(super) fn perturb(&mut self, known: &[Candidate], until: u64) -> Vec<Candidate> {
        let mut random = Random::new(5);
        let mut found = Vec::with_capacity(known.len());
        for (index, candidate) in known.iter().enumerate() {
            let Bench { flat, eval, shape, .. } = &mut self.full;
            let Some(mut search) = Perturbation::new(flat, eval, &candidate.rows, shape.period) else { continue };
            let from = self.ops();
            let until = from + until.saturating_sub(from) / (known.len() - index) as u64;
            while self.ops() <= until && !self.is_over() {
                let Bench { flat, eval, list, .. } = &mut self.full;
                let (before, ran) = (search.ops, eval.ops);
                let better = search.step(flat, eval, list, &mut random);
                eval.ops = ran + search.ops - before;
                if better {
                    self.offer(search.best(), "perturbation");
                }
            }
            let cost = search.best_cost();
            found.push(Candidate { score: cost, cost, recipe: None, rows: search.best() });
        }
        found.sort_by_key(|candidate| candidate.score);
        found
    }

    /// Tabu search: on all orders for a while, then on the better half, and so on down to the best.
    pub(super) fn tabu(
        &mut self,
        mut small: Option<&mut Bench>,
        known: Vec<Candidate>,
        until: u64,
    ) -> Vec<Candidate> {
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
                self.tabu_on(small.as_deref_mut(), search, from + share * (index as u64 + 1), &mut random);
            }
            searches.sort_by_key(|search| search.best_cost);
            let kept = if round + 1 < rounds { searches.len() / 2 } else { 0 };
            let bench = small.as_deref_mut().unwrap_or(&mut self.full);
            better.extend(searches.drain(kept..).filter_map(|search| bench.candidate(search.best(), None)));
        }
        better
    }

    /// Tabu search on one order, until `until` ops have been run in all.
    fn tabu_on(&mut self, mut small: Option<&mut Bench>, search: &mut Tabu, until: u64, random: &mut Random) {
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
                self.offer(search.best(), "tabu search");
            }
        }
    }
}
