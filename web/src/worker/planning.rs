//! Plans of the form, and the comparison that follows each.

use pipeplan_core::estimate::pass_reports::PassReports;
use pipeplan_core::plan::planner::{self, PlanError, PlanSearch};
use pipeplan_core::schedule;
use pipeplan_core::schedule::BEST;
use pipeplan_core::spec::{Spec, Work};

use super::comparison::Comparison;
use super::frontier::FrontierSearch;
use super::limit_price::LimitPrice;
use super::specs::{no_plan, solve};
use super::{INTERIM_WITHIN_MS, LOOK_WITHIN_MS, SHOW_BY_HAND_MS, Worker};
use crate::form::fault_of;
use crate::protocol::same_spec::{limit_of, same_work};
use crate::protocol::{FieldFault, Response, from_core};
use crate::text;

impl Worker {
    /// Plans the spec of a text. The known plan is shown after `show_within_ms`.
    pub(super) fn plan_text(&mut self, id: u32, text: &str, show_within_ms: f64) -> Vec<Response> {
        match self.read(text) {
            Ok(spec) => {
                let mut response: Vec<Response> =
                    self.timed(&spec).map(|timed| Response::Timed(Some(timed))).into_iter().collect();
                response.extend(self.plan(id, spec, show_within_ms));
                response
            }
            Err(faults) => {
                (self.comparison, self.packing) = (None, None);
                vec![Response::Refused(faults), Response::Done]
            }
        }
    }

    /// While a hand drags the limit: the fastest schedule that the chart knows within it, which takes no search. The page asks for
    /// the best when the hand lets go.
    pub(super) fn plan_by_hand(&mut self, id: u32, text: &str) -> Vec<Response> {
        let known = || {
            let spec = self.read(text).ok().filter(|spec| spec.schedule == BEST)?;
            let chart = self.chart.as_ref().filter(|chart| chart.is_of(&spec))?;
            let order = chart.order_within(limit_of(&spec)?)?.clone();
            let answer = planner::answer_order(&spec, BEST, order).ok()?;
            Some(from_core::picture_of(&spec, &answer))
        };
        match known() {
            Some(picture) => {
                // The one under way is of another limit.
                self.comparison = self.comparison.take().filter(|running| running.finished);
                self.packing = None;
                vec![Response::Planned(Box::new(picture)), Response::Done]
            }
            None => self.plan_text(id, text, SHOW_BY_HAND_MS),
        }
    }

    fn plan(&mut self, id: u32, spec: Spec, show_within_ms: f64) -> Vec<Response> {
        let name = spec.schedule.clone();
        self.memory_advice = None;
        if name == BEST {
            self.packing = None;
            let mut response = self.start_comparison(id, spec, true);
            let begun_ms = (self.clock)();
            // The plan of a layout so far is to be seen soon; the search for a better layout goes on after it.
            let look_within_ms = if self.following_layout.is_some() { INTERIM_WITHIN_MS } else { LOOK_WITHIN_MS };
            if let Some(running) = &mut self.comparison {
                // A plan before the last published schedule would never be shown while a hand drags.
                let waits = |running: &Comparison, now_ms: f64| match running.has_offered_all() {
                    true => now_ms < begun_ms + show_within_ms,
                    false => now_ms < begun_ms + look_within_ms,
                };
                while !running.finished && waits(running, (self.clock)()) {
                    response.extend(running.advance(&mut self.chart, &mut self.watch));
                }
                response.extend(running.better_plan());
                response.extend(running.slow_notice((self.clock)()));
            }
            response.extend(self.done());
            return response;
        }
        let planned = self.start_packing(id, &spec).and_then(|packed| match packed {
            Some(planned) => Ok(planned),
            None => {
                solve(&spec, &name).map(|answer| Response::Planned(Box::new(from_core::picture_of(&spec, &answer))))
            }
        });
        let mut response = vec![match planned {
            Ok(planned) => planned,
            Err(error) => {
                let fault = match &error {
                    PlanError::Absent { reason, .. } => fault_of(reason).map(|fault| FieldFault::from(&fault)),
                    _ => None,
                };
                Response::NoPlan {
                    schedule: name,
                    reason: text::sentence(&no_plan(&spec, &error.to_string())),
                    fault,
                }
            }
        }];
        response.extend(self.start_comparison(id, spec, false));
        response.extend(self.done());
        response
    }

    /// The end of an answer if its comparison is finished, and its documents are packed.
    pub(super) fn done(&self) -> Option<Response> {
        let is_packed = self.packing.as_ref().is_none_or(|packing| packing.finished);
        self.comparison.as_ref().filter(|comparison| comparison.finished && is_packed).map(|_| Response::Done)
    }

    pub(super) fn start_comparison(&mut self, id: u32, spec: Spec, shows_best: bool) -> Vec<Response> {
        if self.chart.as_ref().is_none_or(|chart| !chart.is_of(&spec)) {
            self.chart = Some(FrontierSearch::new(&spec));
        }
        match &mut self.comparison {
            // A second question for the best continues a stopped search.
            Some(running) if same_work(&running.spec, &spec) && !(shows_best && running.stops) => {
                running.id = id;
                running.shows_best = shows_best;
                running.shown_ns = None;
                // The page dropped it with the plan before.
                if let LimitPrice::Done(found) = &mut running.shortening
                    && let Some(found) = found.take()
                {
                    running.shortening = LimitPrice::Found(found);
                }
                Vec::new()
            }
            _ => {
                self.comparison = Some(Comparison {
                    id,
                    begun_ms: (self.clock)(),
                    shows_best,
                    next: 0,
                    best: PlanSearch::new(&spec),
                    shown_ns: None,
                    finished: false,
                    stops: false,
                    shortening: LimitPrice::NotBegun,
                    spec,
                });
                vec![Response::Comparing { rows: schedule::published().len() as u32 + 1 }]
            }
        }
    }

    /// Stops the search for the best, if there is one. The answer belongs to the question before.
    pub(super) fn stop(&mut self) -> Vec<Response> {
        // The comparison begins once documents are packed: what has not begun is not stopped.
        if let Some(packing) = self.packing.as_mut().filter(|packing| !packing.finished) {
            (packing.stops, packing.finished) = (true, true);
            return self.done().into_iter().collect();
        }
        if let Some(running) = self.comparison.as_mut().filter(|running| !running.finished) {
            running.stops = true;
        }
        Vec::new()
    }

    /// The reports of the compiler passes for the plan of `spec`.
    pub(super) fn passes(&self, spec: &str) -> Option<String> {
        let spec = self.read(spec).ok()?;
        let Work::Model(work) = &spec.work else { return None };
        let case = if spec.schedule == BEST {
            let running = self.comparison.as_ref().filter(|running| same_work(&running.spec, &spec))?;
            running.best.so_far()?.case.clone()
        } else {
            planner::case(&spec, &schedule::find(&spec.schedule)?).ok()?
        };
        let reports = PassReports::of(work, case.derived.as_ref()?, case.fitted.as_ref(), |_| true);
        Some(text::readable(&reports.text()))
    }
}
