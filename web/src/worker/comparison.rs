//! The comparison of all schedules, and the search for the best.

use pipeplan_core::plan::planner::{Answer, PlanError, PlanSearch};
use pipeplan_core::schedule;
use pipeplan_core::schedule::BEST;
use pipeplan_core::search::{Effort, Flow};
use pipeplan_core::spec::Spec;

use super::frontier::FrontierSearch;
use super::limit_price::LimitPrice;
use super::specs::{no_plan, one_fault};
use super::{LOOK_WITHIN_MS, Watch};
use crate::protocol::{FieldFault, Response, Row, from_core};
use crate::text;

/// A comparison, running or finished. Another schedule of the same spec does not restart it.
pub(super) struct Comparison {
    pub(super) id: u32,
    pub(super) spec: Spec,
    pub(super) begun_ms: f64,
    /// Whether the page shows the best. Then every better plan is sent.
    pub(super) shows_best: bool,
    /// The next published schedule.
    pub(super) next: usize,
    pub(super) best: PlanSearch,
    /// The cost of the best plan that the page has.
    pub(super) shown_ns: Option<u64>,
    pub(super) finished: bool,
    /// Whether it was stopped, with the best so far.
    pub(super) stops: bool,
    pub(super) shortening: LimitPrice,
}

impl Comparison {
    pub(super) fn has_offered_all(&self) -> bool {
        self.next >= schedule::published().len()
    }

    /// Does the next row or the next search. Sends a better plan if there is one.
    pub(super) fn step(&mut self, chart: &mut Option<FrontierSearch>, watch: &mut Watch) -> Vec<Response> {
        let mut response = self.advance(chart, watch);
        response.extend(self.better_plan());
        if self.finished {
            response.push(Response::Done);
        }
        response
    }

    /// A progress message if published schedules take long. A person can stop then. The possible gain is unknown.
    pub(super) fn slow_notice(&self, now_ms: f64) -> Option<Response> {
        let cost_ns = self.best.so_far().map_or(u64::MAX, Answer::cost_ns);
        let is_long = !self.has_offered_all() && now_ms >= self.begun_ms + LOOK_WITHIN_MS;
        is_long.then_some(Response::Searching { cost_ns, bound_ns: 0 })
    }

    pub(super) fn advance(&mut self, chart: &mut Option<FrontierSearch>, watch: &mut Watch) -> Vec<Response> {
        if self.finished {
            return Vec::new();
        }
        if let Some(published) = schedule::published().get(self.next) {
            self.next += 1;
            if self.stops && self.best.so_far().is_some() {
                let reason = "not evaluated: the search was stopped".to_owned();
                return vec![Response::Compared(from_core::absent_row(published.name, Some(reason)))];
            }
            let (spec, mut row) = (&self.spec, None);
            let looked = self.best.look(published, &mut |answer| {
                chart.iter_mut().for_each(|chart| chart.offer(answer));
                row = Some(from_core::row(spec, published.name, answer));
            });
            let reason = looked.err().map(|absent| absent.reason);
            return vec![Response::Compared(row.unwrap_or_else(|| from_core::absent_row(published.name, reason)))];
        }
        let (id, known_ns) = (self.id, self.best.so_far().map_or(u64::MAX, Answer::cost_ns));
        let mut stopped = false;
        let searched = match self.stops && self.best.so_far().is_some() {
            true => Ok(false),
            false => self.best.search_next(Effort::default(), &mut |progress| {
                stopped = stopped || watch(id, progress.cost_ns.min(known_ns), progress.bound_ns) == Flow::Stop;
                if stopped { Flow::Stop } else { Flow::Continue }
            }),
        };
        self.stops |= stopped;
        match searched {
            Ok(true) => Vec::new(),
            Ok(false) => {
                self.finished = true;
                if let (Some(chart), Some(best)) = (chart, self.best.so_far()) {
                    chart.offer(best);
                }
                vec![Response::Compared(self.best_row())]
            }
            Err(error) => {
                self.finished = true;
                vec![Response::Compared(from_core::absent_row(BEST, Some(error.to_string())))]
            }
        }
    }

    pub(super) fn best_row(&self) -> Row {
        match self.best.so_far() {
            // If nothing beats a published schedule, `best` has its name. A schedule of the search has no name.
            Some(answer) => {
                let won = match (answer.name == BEST, self.stops) {
                    (true, false) => "found by search".to_owned(),
                    (true, true) => "found by search, stopped early".to_owned(),
                    (false, false) => text::schedule_title(&answer.name),
                    (false, true) => format!("{}, search stopped early", text::schedule_title(&answer.name)),
                };
                Row { reason: Some(won), ..from_core::row(&self.spec, BEST, answer) }
            }
            None => from_core::absent_row(BEST, Some(self.why_no_plan().0)),
        }
    }

    /// Why no schedule fits. Each row has the reason of its schedule. This is the reason of the search for the nearest
    /// placement, or the one field that is wrong for all schedules.
    pub(super) fn why_no_plan(&self) -> (String, Option<FieldFault>) {
        let (reason, fault) = match self.best.failure() {
            Some(PlanError::NoSchedule { nearest: Some(infeasible), .. }) => (infeasible.to_string(), None),
            Some(PlanError::NoSchedule { reasons, .. }) => match one_fault(&reasons) {
                Some((reason, fault)) => (reason.to_owned(), Some(fault)),
                None => ("every schedule exceeds a limit or needs another shape".to_owned(), None),
            },
            Some(error) => (error.to_string(), None),
            None => (String::new(), None),
        };
        (text::sentence(&format!("No schedule fits: {}", no_plan(&self.spec, &reason))), fault)
    }

    /// The best so far, if the page shows the best and has an older one.
    pub(super) fn better_plan(&mut self) -> Option<Response> {
        // A plan before the last published schedule would flicker.
        if !self.shows_best || !self.has_offered_all() {
            return None;
        }
        match self.best.so_far() {
            // What packings cost is known at the end.
            Some(_) if self.shown_ns != Some(self.best.least_ns()) || self.finished && self.best.packs() => {
                self.shown_ns = Some(self.best.least_ns());
                let picture = from_core::picture_found(&self.spec, &self.best)?;
                Some(Response::Planned(Box::new(picture)))
            }
            None if self.finished => {
                let (reason, fault) = self.why_no_plan();
                Some(Response::NoPlan { schedule: BEST.to_owned(), reason, fault })
            }
            _ => None,
        }
    }
}
