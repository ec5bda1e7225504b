//! Packed plans piece by piece: the search for a plan can respond between two pieces.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Candidate, Costs, SEARCHED, Step};
use crate::base::units::Nanos;
use crate::plan::PackingFigures;
use crate::plan::planner::{Answer, PlanError};
use crate::schedule::{Absent, BEST};
use crate::search::{Effort, Flow, Progress};

/// Schedules with documents in their places, so far, and what is left to do.
#[derive(Clone, Debug)]
pub(in crate::plan::planner) struct Pieces {
    /// The schedule that is wanted, or `best`.
    name: String,
    costs: Costs,
    candidates: Vec<Candidate>,
    reasons: Vec<(String, String)>,
    next: Next,
    stopped: bool,
    /// Of all placements, once known.
    bound_ns: Option<Nanos>,
}

/// What is done next.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The search of schedules for documents that are evened out.
    Schedules,
    /// The search of packings for the candidate of this number.
    Packings(usize),
}

impl Pieces {
    /// Nothing looked at yet, for the schedule `name` or for `best`.
    pub fn new(name: &str) -> Pieces {
        let (costs, candidates, reasons) = (Costs::default(), Vec::new(), Vec::new());
        let next = if name == BEST { Next::Schedules } else { Next::Packings(0) };
        Pieces { name: name.to_string(), costs, candidates, reasons, next, stopped: false, bound_ns: None }
    }

    /// Takes the answer of a published schedule to the packing as given, with the best of the packings that need no search.
    pub fn offer(
        &mut self,
        step: &Step<'_>,
        name: &str,
        answer: Result<Answer, Absent>,
    ) -> Result<&Candidate, Absent> {
        // As it was asked for, with a size of groups.
        let wanted = Some(self.name.clone()).filter(|wanted| wanted != BEST);
        let name = wanted.as_deref().unwrap_or(name);
        match answer.and_then(|answer| step.simple(name, &answer)) {
            Ok((candidate, own)) => {
                self.costs.take(own);
                self.candidates.push(candidate);
                let last = self.candidates.len() - 1;
                Ok(&self.candidates[last])
            }
            Err(absent) => {
                self.reasons.push((name.to_string(), absent.reason.clone()));
                Err(absent)
            }
        }
    }

    /// Takes candidates that were searched before.
    pub fn extend(&mut self, more: Vec<Candidate>) {
        self.candidates.extend(more);
    }

    /// The next search. False where none is left.
    pub fn search_next(
        &mut self,
        step: &Step<'_>,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<bool, PlanError> {
        let stopped = &mut self.stopped;
        let mut watched = |progress: Progress| {
            *stopped |= observer(progress) == Flow::Stop;
            if *stopped { Flow::Stop } else { Flow::Continue }
        };
        match self.next {
            Next::Schedules => {
                let found = step.of_even_documents(&self.candidates, Effort(effort.0 / 2), &mut watched)?;
                self.candidates.extend(found);
                self.candidates.sort_by_key(|candidate| candidate.cost);
                self.candidates.truncate(if step.is_fixed { 1 } else { SEARCHED });
                self.next = Next::Packings(0);
            }
            Next::Packings(at) => {
                let Some(candidate) = self.candidates.get(at).filter(|_| !step.is_fixed) else { return Ok(false) };
                let share = if self.name == BEST { Effort(effort.0 / 2 / SEARCHED as u64) } else { effort };
                if let Some(better) = step.searched(candidate, share, &mut watched) {
                    self.candidates[at] = better;
                }
                self.next = Next::Packings(at + 1);
            }
        }
        Ok(true)
    }

    /// The best so far.
    pub fn best(&self) -> Option<&Candidate> {
        self.candidates.iter().min_by_key(|candidate| candidate.cost)
    }

    /// Why there is none.
    pub fn none(&self) -> PlanError {
        PlanError::NoSchedule { nearest: None, reasons: self.reasons.clone() }
    }

    /// What packings cost; none where documents stay where they are.
    pub fn figures(&mut self, step: &Step<'_>) -> Result<Option<PackingFigures>, PlanError> {
        let Some(best) = self.best() else { return Err(self.none()) };
        let (costs, own) = (Costs { found: Some(best.cost), ..self.costs }, step.bound_with_end_ns(&best.case));
        let bound_ns = match (self.name == BEST, self.bound_ns) {
            (false, _) => own.unwrap_or(0),
            (true, Some(known)) => known,
            (true, None) => *self.bound_ns.insert(step.bounds_of_all()?[0]),
        };
        // A published schedule may win on a placement that the search does not look at.
        Ok(step.figures(costs, own.map_or(bound_ns, |own| own.min(bound_ns))))
    }
}
