//! The search for the best schedule on the layouts that are kept.
//!
//! Searches are independent of each other, so a caller with threads may run each on one ([`Tuner::searches`]).

use alloc::vec::Vec;

use super::question::Field;
use super::tuned::{Tuned, is_faster, tuned};
use super::{Tuner, without_jitter};
use crate::base::units::Nanos;
use crate::graph::layout::RecomputeLayers;
use crate::plan::planner::{self, Best};
use crate::schedule;
use crate::search::{Effort, Flow, Progress};
use crate::spec::{Spec, Work};

/// A layout whose best schedule is being searched for. Searches are independent: a caller with threads may run each on
/// one ([`Tuner::searches`]).
#[derive(Clone, Debug)]
pub struct Search {
    /// The fastest so far.
    fastest: Tuned,
    /// The spec that is searched now, and its search.
    pub(super) spec: Spec,
    pub(super) best: Best,
    /// The next published schedule to offer to the search.
    next: usize,
    /// The spec to search after that: the same without recomputation, since a search keeps the limit itself.
    then: Option<Spec>,
    /// Whether it is the spec as it was given.
    pub(super) is_given: bool,
    is_done: bool,
}

impl Tuner {
    /// The searches that are left, as far as is known now; none while layouts are still being planned.
    pub fn searches(&self) -> Vec<Search> {
        let is_planned =
            self.trial.is_none() && self.fresh.is_empty() && self.open.as_ref().is_none_or(Vec::is_empty);
        if !is_planned || !self.searches || self.search.is_some() {
            return Vec::new();
        }
        let given = self.given_to_search().map(|given| self.search_of_given(given));
        let rows = self.open_rows().map(|row| self.search_of(row));
        given.into_iter().chain(rows).filter(|search| !self.learned.iter().any(|known| known.is_as(search))).collect()
    }

    /// Takes a search of [`searches`](Tuner::searches) that ran elsewhere to its end. [`step`](Tuner::step) uses its
    /// result when it is its turn, so the answer is the same with or without it. A search that has not ended is
    /// dropped.
    pub fn learn(&mut self, search: Search) {
        if search.is_done {
            self.learned.push(search);
        }
    }

    /// Uses all that was [learned](Tuner::learn) at once, for a caller that stops early.
    pub fn settle_learned(&mut self) {
        while let Some(search) = self.learned.pop() {
            self.settle(search);
        }
    }

    /// Searches on the fastest layout that was not searched yet, if anything better than the fastest can be there.
    pub(super) fn search_next(&mut self, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) -> bool {
        let Some(mut search) = self.search.take().or_else(|| self.begin_search()) else { return false };
        if search.step(effort, observer) {
            self.search = Some(search);
            return true;
        }
        self.settle(search);
        true
    }

    fn settle(&mut self, search: Search) {
        self.tally.searched += 1;
        match search.is_given {
            true => self.given = Some(Ok(search.fastest)),
            false => self.keep(search.fastest),
        }
    }

    fn begin_search(&mut self) -> Option<Search> {
        let given = self.given_to_search().map(|given| self.search_of_given(given));
        self.given_is_searched = true;
        let search = match given {
            Some(search) => search,
            None => {
                let search = self.open_rows().next().map(|row| self.search_of(row))?;
                self.searched.push(search.fastest.degrees);
                search
            }
        };
        match self.learned.iter().position(|known| known.is_as(&search)) {
            Some(at) => Some(self.learned.swap_remove(at)),
            None => Some(search),
        }
    }

    /// The spec as it was given, if it has a plan and was not searched yet.
    fn given_to_search(&self) -> Option<&Tuned> {
        self.given.as_ref().filter(|_| !self.given_is_searched).and_then(|given| given.as_ref().ok())
    }

    /// Layouts that were not searched yet and whose steps could be faster than the fastest. A single rank has no bubble
    /// to search.
    fn open_rows(&self) -> impl Iterator<Item = &Tuned> {
        let fastest = self.rows.first().map_or(Nanos::MAX, |row| row.step.step_ns);
        let may_gain = move |row: &&Tuned| row.degrees.pipeline > 1 && row.floor_ns < fastest;
        self.rows.iter().filter(may_gain).filter(|row| !self.searched.contains(&row.degrees))
    }

    fn search_of_given(&self, given: &Tuned) -> Search {
        Search { is_given: true, ..Search::new(given.clone(), given.spec.clone()) }
    }

    fn search_of(&self, row: &Tuned) -> Search {
        let start = self.starts.get(&row.degrees).unwrap_or(row).spec.clone();
        let mut then = None;
        if let Work::Model(work) = &start.work
            && matches!(work.layout.recompute_layers, RecomputeLayers::Each(_))
            && !self.question.keep.contains(&Field::Recompute)
        {
            let mut work = work.clone();
            work.layout.recompute_layers = RecomputeLayers::All;
            then = Some(Spec { work: Work::Model(work), ..start.clone() });
        }
        Search { then, ..Search::new(row.clone(), start) }
    }
}

impl Search {
    pub(super) fn new(fastest: Tuned, spec: Spec) -> Search {
        let best = Best::new(&without_jitter(&spec));
        Search { fastest, spec, best, next: 0, then: None, is_given: false, is_done: false }
    }

    /// Whether `other` is a search on the same layout.
    fn is_as(&self, other: &Search) -> bool {
        self.is_given == other.is_given && self.fastest.degrees == other.fastest.degrees
    }

    /// Does the next piece; false where nothing is left. `observer` may stop it, and its best so far then counts.
    pub fn step(&mut self, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) -> bool {
        if self.is_done {
            return false;
        }
        if let Some(published) = schedule::published().get(self.next) {
            self.next += 1;
            self.best.offer(published.name, planner::answer(&without_jitter(&self.spec), published));
            return true;
        }
        if self.best.search_next(effort, observer) == Ok(true) {
            return true;
        }
        if let Some(answer) = self.best.so_far() {
            let spec = Spec { schedule: answer.name.clone(), ..self.spec.clone() };
            let found = tuned(spec, answer, self.fastest.floor_ns);
            if let Some(found) = found.filter(|found| is_faster(found, &self.fastest)) {
                self.fastest = found;
            }
        }
        match self.then.take() {
            Some(spec) => {
                (self.best, self.spec, self.next) = (Best::new(&without_jitter(&spec)), spec, 0);
                true
            }
            None => {
                self.is_done = true;
                false
            }
        }
    }
}
