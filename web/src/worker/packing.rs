//! Documents in the places of one schedule: packed at once, then better by a search.

use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner::{PlanError, PlanSearch};
use pipeplan_core::schedule;
use pipeplan_core::search::{Effort, Flow};
use pipeplan_core::spec::Spec;

use super::{Watch, Worker};
use crate::protocol::{Response, from_core};
use crate::text;

/// The search for documents in the places of the schedule that a spec names, running or finished.
pub(super) struct PackingSearch {
    id: u32,
    spec: Spec,
    search: PlanSearch,
    pub(super) finished: bool,
    /// Whether it was stopped, with the best so far.
    pub(super) stops: bool,
}

impl Worker {
    /// The plan with the schedule that `spec` names and documents packed without a search, which then begins. None where the
    /// planner packs none.
    ///
    /// # Errors
    /// Why there is no plan.
    pub(super) fn start_packing(&mut self, id: u32, spec: &Spec) -> Result<Option<Response>, PlanError> {
        let known = self.packing.take().filter(|packing| packing.spec == *spec && !packing.stops);
        let packing = match known {
            Some(packing) => PackingSearch { id, ..packing },
            None => {
                let name = &spec.schedule;
                let Some(mut search) = PlanSearch::of_schedule(spec, name) else { return Ok(None) };
                let published =
                    schedule::find(name).ok_or_else(|| PlanError::UnknownSchedule { name: name.to_owned() })?;
                search.look(&published, &mut |_| ()).map_err(|absent| PlanError::Absent {
                    schedule: text::schedule_title(name),
                    reason: absent.reason,
                })?;
                PackingSearch { id, spec: spec.clone(), search, finished: false, stops: false }
            }
        };
        let planned = packing.planned();
        self.packing = Some(packing);
        Ok(planned)
    }

    /// The plan of `spec`, if its documents are packed.
    pub(super) fn packed_plan(&self, spec: &Spec) -> Option<Result<Plan, PlanError>> {
        let packing = self.packing.as_ref().filter(|packing| packing.finished && packing.spec == *spec)?;
        Some(packing.search.plan())
    }
}

impl PackingSearch {
    fn planned(&self) -> Option<Response> {
        from_core::picture_found(&self.spec, &self.search).map(|picture| Response::Planned(Box::new(picture)))
    }

    /// The next search, and its question. Sends a better plan if there is one, at the end in any case: then all figures are
    /// known.
    pub(super) fn step(&mut self, watch: &mut Watch) -> (u32, Option<Response>) {
        let (id, known_ns) = (self.id, self.search.least_ns());
        let mut stopped = false;
        let more = self.search.search_next(Effort::default(), &mut |progress| {
            stopped = stopped || watch(id, progress.cost_ns, progress.bound_ns) == Flow::Stop;
            if stopped { Flow::Stop } else { Flow::Continue }
        });
        self.stops |= stopped;
        self.finished = self.stops || more != Ok(true);
        if let Err(error) = more {
            let reason = text::sentence(&error.to_string());
            return (id, Some(Response::NoPlan { schedule: self.spec.schedule.clone(), reason, fault: None }));
        }
        let is_news = self.finished || self.search.least_ns() < known_ns;
        (id, is_news.then(|| self.planned()).flatten())
    }
}
