//! The worker: it answers a question in small pieces, so that a newer question can come between two pieces.
//!
//! - In: questions.
//! - Out: replies, piece by piece.
//! - Knows: the planner, [`form`](crate::form) for labels, [`protocol`](crate::protocol), [`text`](crate::text). Only `listen` and
//!   `trace::listen` know a browser.
//!
//! [`trace`] answers questions about measured runs, in a worker of its own.

mod comparison;
mod files;
mod frontier;
mod layouts;
mod limit_price;
#[cfg(target_arch = "wasm32")]
pub mod listen;
mod memory_advice;
mod packing;
mod planning;
mod sensitivity;
mod specs;
#[cfg(test)]
mod tests;
pub mod trace;

use std::collections::VecDeque;
use std::sync::Arc;

use comparison::Comparison;
use frontier::FrontierSearch;
use layouts::{FollowingLayout, LayoutSearch};
use limit_price::LimitPrice;
use memory_advice::MemoryAdvice;
use packing::PackingSearch;
use pipeplan_core::hardware::profile::Profile;
use pipeplan_core::search::Flow;
use sensitivity::SensitivityRun;

use crate::protocol::{Ask, Question, Reply, Response, from_core};

/// The page waits this long for a better plan before it shows the known one. It is short enough to follow a hand, and
/// long enough that small plans appear once.
const SHOW_WITHIN_MS: f64 = 50.0;

/// The same while a hand drags, where the chart knows no schedule yet.
const SHOW_BY_HAND_MS: f64 = 12.0;

/// If all published schedules take at most this long, the page shows the result of all. Else they come one by one, and
/// a person can stop.
const LOOK_WITHIN_MS: f64 = 1000.0;

/// The same while a better layout is being found.
const INTERIM_WITHIN_MS: f64 = 100.0;

/// The chart of time against memory starts after this time without questions. While a hand drags, plans have priority.
const REST_MS: i32 = 200;

/// Watches the search for the best: receives the question, the cost of the best so far and the bound, and answers
/// whether the search continues.
pub type Watch = Box<dyn FnMut(u32, u64, u64) -> Flow>;

/// The state of the worker between questions.
pub struct Worker {
    /// A clock in milliseconds, from any origin.
    clock: fn() -> f64,
    watch: Watch,
    questions: VecDeque<Question>,
    comparison: Option<Comparison>,
    /// The documents of the schedule that was asked for.
    packing: Option<PackingSearch>,
    memory_advice: Option<MemoryAdvice>,
    chart: Option<FrontierSearch>,
    sensitivity_run: Option<SensitivityRun>,
    layout_search: Option<LayoutSearch>,
    following_layout: Option<FollowingLayout>,
    /// The measured times in use.
    profile: Option<Arc<Profile>>,
}

impl Worker {
    /// A worker without a question. `clock` gives milliseconds.
    pub fn new(clock: fn() -> f64, watch: Watch) -> Worker {
        Worker {
            clock,
            watch,
            questions: VecDeque::new(),
            comparison: None,
            packing: None,
            memory_advice: None,
            chart: None,
            layout_search: None,
            following_layout: None,
            sensitivity_run: None,
            profile: None,
        }
    }

    /// Takes a question. Older questions that it replaces are dropped.
    pub fn receive(&mut self, question: Question) {
        self.questions.retain(|older| !question.ask.supersedes(&older.ask));
        self.questions.push_back(question);
    }

    /// Does the next piece of work. Empty if there is none, or if it gives nothing new.
    pub fn step(&mut self) -> Vec<Reply> {
        let (id, mut response) = match self.questions.pop_front() {
            Some(Question { id, ask }) => (id, self.answer(id, ask)),
            None => self.continue_work(),
        };
        self.queue_memory_advice(id, &response);
        let last = response.pop_if(|response| *response == Response::Done);
        response.extend(self.chart.as_mut().and_then(FrontierSearch::take_news).map(Response::Charted));
        response.extend(last);
        response.into_iter().map(|response| Reply { id, response }).collect()
    }

    /// Does the next piece of running work, the most urgent first.
    fn continue_work(&mut self) -> (u32, Vec<Response>) {
        if let Some(following) = &mut self.following_layout {
            let (id, response) = (following.id, following.step((self.clock)()));
            if following.finder.outcome().is_some() {
                self.following_layout = None;
            }
            return (id, response.into_iter().collect());
        }
        if let Some(packing) = self.packing.as_mut().filter(|packing| !packing.finished) {
            let (id, planned) = packing.step(&mut self.watch);
            let mut response: Vec<Response> = planned.into_iter().collect();
            response.extend(self.done());
            return (id, response);
        }
        let id = self.comparison.as_ref().map_or(0, |comparison| comparison.id);
        if let Some(running) = self.comparison.as_mut().filter(|comparison| !comparison.finished) {
            let mut response = running.step(&mut self.chart, &mut self.watch);
            response.extend(running.slow_notice((self.clock)()));
            return (id, response);
        }
        if let Some(memory_advice) = &mut self.memory_advice {
            let (id, step) = (memory_advice.id, memory_advice.step());
            if step.is_some() {
                self.memory_advice = None;
            }
            return (id, step.flatten().into_iter().collect());
        }
        if let Some(layout_search) = &mut self.layout_search {
            let (id, response) = (layout_search.id, layout_search.step((self.clock)()));
            if matches!(&response, Some(Response::Tuned(layouts)) if layouts.finished) {
                self.layout_search = None;
            }
            return (id, response.into_iter().collect());
        }
        if let Some(SensitivityRun { id, problem, schedule, found }) = &mut self.sensitivity_run {
            let (id, goes_on) = (*id, found.step(problem, schedule));
            let sensed = (!goes_on).then(|| Response::Sensitivity(from_core::sensed(problem, found)));
            if sensed.is_some() {
                self.sensitivity_run = None;
            }
            return (id, sensed.into_iter().collect());
        }
        if let Some(running) = self.comparison.as_mut().filter(|comparison| comparison.may_shorten()) {
            return (id, running.shorten().into_iter().collect());
        }
        if let Some(chart) = self.chart.as_mut().filter(|chart| !chart.is_finished()) {
            chart.step();
        }
        (id, Vec::new())
    }

    /// Whether [`Work::step`] has anything to do.
    pub fn is_idle(&self) -> bool {
        let shortens = self.comparison.as_ref().is_some_and(Comparison::may_shorten);
        self.is_answered() && !shortens && self.chart.as_ref().is_none_or(FrontierSearch::is_finished)
    }

    /// Whether only the chart of time against memory is left.
    fn is_answered(&self) -> bool {
        let compared = self.comparison.as_ref().is_none_or(|comparison| comparison.finished);
        let begun = self.memory_advice.is_some()
            || self.packing.as_ref().is_some_and(|packing| !packing.finished)
            || self.following_layout.is_some()
            || self.layout_search.is_some()
            || self.sensitivity_run.is_some();
        self.questions.is_empty() && compared && !begun
    }

    /// How long to wait for a question before the next step.
    pub fn rest_ms(&self) -> i32 {
        let begins = self.is_answered() && self.chart.as_ref().is_some_and(|chart| !chart.has_begun());
        // Running work continues in small pieces.
        let goes_on = self
            .comparison
            .as_ref()
            .is_some_and(|running| running.may_shorten() && !matches!(running.shortening, LimitPrice::NotBegun));
        if begins && !goes_on { REST_MS } else { 0 }
    }

    fn answer(&mut self, id: u32, ask: Ask) -> Vec<Response> {
        match ask {
            Ask::Plan { spec } => self.plan_text(id, &spec, SHOW_WITHIN_MS),
            Ask::PlanByHand { spec } => self.plan_by_hand(id, &spec),
            Ask::Stop => self.stop(),
            // `listen` handles it.
            Ask::SearchWhileReadable { .. } => Vec::new(),
            Ask::FindLayout(question) => self.find_layout(id, question).into_iter().collect(),
            Ask::Tune { spec, devices } => self.tune(id, spec, devices).into_iter().collect(),
            Ask::Passes { spec } => vec![Response::Passes(self.passes(&spec).unwrap_or_default())],
            Ask::Export { spec, purpose } => vec![self.export(&spec, purpose)],
            Ask::PlanKept { spec } => self.plan_kept(&spec).into_iter().collect(),
            Ask::OpenKept { text } => self.open_kept(&text).into_iter().collect(),
            Ask::OpenPlan { text } => self.open_plan(id, &text),
            Ask::Measure { profile } => vec![self.measure(profile.as_deref())],
            Ask::OpenOrder { spec, text } => vec![self.open_order(&spec, &text)],
            Ask::OpenPoint { spec, bytes, below_ns } => self.open_point(&spec, bytes, below_ns),
            Ask::Sensitivity(order) => self.start_sensitivity(id, order.as_ref()).into_iter().collect(),
        }
    }
}
