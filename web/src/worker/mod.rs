//! What the worker does about a question: small pieces, so that a newer question can come between any two.
//!
//! - In: questions.
//! - Out: replies, piece by piece.
//! - Knows: the planner, [`protocol`](crate::protocol), [`text`](crate::text). Only `listen` knows a browser.

mod comparison;
mod files;
mod frontier;
mod layouts;
mod limit_price;
#[cfg(target_arch = "wasm32")]
pub mod listen;
mod memory_advice;
mod planning;
mod sensitivity;
mod specs;
#[cfg(test)]
mod tests;
mod traces;

use std::collections::VecDeque;
use std::sync::Arc;

use comparison::Comparison;
use frontier::FrontierSearch;
use layouts::LayoutSearch;
use limit_price::LimitPrice;
use memory_advice::MemoryAdvice;
use pipeplan_core::formats::torch_profile;
use pipeplan_core::hardware::profile::Profile;
use pipeplan_core::search::Flow;
use pipeplan_core::trace::Trace;
use sensitivity::SensitivityRun;
use traces::RecordedRanks;

use crate::protocol::{Ask, Question, Reply, Response, from_core};

/// An answer that is better than what is known so far is waited for this long before the page shows what is
/// known: short enough to follow a hand, long enough that small plans appear once and not in stages.
const SHOW_WITHIN_MS: f64 = 50.0;

/// All published schedules are looked at before anything is shown where that takes no longer than this. Else they come one
/// after the other, and looking at them can be ended.
const LOOK_WITHIN_MS: f64 = 1000.0;

/// How long nothing has to be asked before the chart of time against memory begins: while a hand drags, every moment
/// is for plans.
const REST_MS: i32 = 200;

/// Who watches the search for the best: is told the question, the cost of the best so far and the bound, and answers
/// whether it goes on.
pub type Watch = Box<dyn FnMut(u32, u64, u64) -> Flow>;

/// The worker's memory between questions.
pub struct Worker {
    /// Milliseconds since any moment.
    clock: fn() -> f64,
    watch: Watch,
    questions: VecDeque<Question>,
    comparison: Option<Comparison>,
    explanation: Option<MemoryAdvice>,
    chart: Option<FrontierSearch>,
    sensing: Option<SensitivityRun>,
    tuning: Option<LayoutSearch>,
    trace: Option<Trace>,
    recorded: RecordedRanks,
    /// Measured times, which all is planned with.
    profile: Option<Arc<Profile>>,
}

impl Worker {
    /// A worker that knows nothing yet. `clock` tells milliseconds.
    pub fn new(clock: fn() -> f64, watch: Watch) -> Worker {
        Worker {
            clock,
            watch,
            questions: VecDeque::new(),
            comparison: None,
            explanation: None,
            chart: None,
            tuning: None,
            sensing: None,
            trace: None,
            recorded: RecordedRanks::default(),
            profile: None,
        }
    }

    /// Takes a question. Those that it makes pointless are forgotten.
    pub fn receive(&mut self, question: Question) {
        self.questions.retain(|older| !question.ask.supersedes(&older.ask));
        self.questions.push_back(question);
    }

    /// Does the next piece of work. Empty when there is none, or when it has led to nothing new.
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

    /// The next piece of what has been begun, the most wanted first.
    fn continue_work(&mut self) -> (u32, Vec<Response>) {
        let id = self.comparison.as_ref().map_or(0, |comparison| comparison.id);
        if let Some(running) = self.comparison.as_mut().filter(|comparison| !comparison.finished) {
            let mut response = running.step(&mut self.chart, &mut self.watch);
            response.extend(running.slow_notice((self.clock)()));
            return (id, response);
        }
        if let Some(explanation) = &mut self.explanation {
            let (id, step) = (explanation.id, explanation.step());
            if step.is_some() {
                self.explanation = None;
            }
            return (id, step.flatten().into_iter().collect());
        }
        if let Some(tuning) = &mut self.tuning {
            let (id, response) = (tuning.id, tuning.step((self.clock)()));
            if matches!(&response, Some(Response::Tuned(layouts)) if layouts.finished) {
                self.tuning = None;
            }
            return (id, response.into_iter().collect());
        }
        if let Some(SensitivityRun { id, problem, schedule, found }) = &mut self.sensing {
            let (id, goes_on) = (*id, found.step(problem, schedule));
            let sensed = (!goes_on).then(|| Response::Sensitivity(from_core::sensed(problem, found)));
            if sensed.is_some() {
                self.sensing = None;
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

    /// Whether nothing is left but the chart of time against memory.
    fn is_answered(&self) -> bool {
        let compared = self.comparison.as_ref().is_none_or(|comparison| comparison.finished);
        let begun = self.explanation.is_some() || self.tuning.is_some() || self.sensing.is_some();
        self.questions.is_empty() && compared && !begun
    }

    /// How long to wait for a question before the next step.
    pub fn rest_ms(&self) -> i32 {
        let begins = self.is_answered() && self.chart.as_ref().is_some_and(|chart| !chart.has_begun());
        // What has begun goes on in small pieces.
        let goes_on = self
            .comparison
            .as_ref()
            .is_some_and(|running| running.may_shorten() && !matches!(running.shortening, LimitPrice::NotBegun));
        if begins && !goes_on { REST_MS } else { 0 }
    }

    fn answer(&mut self, id: u32, ask: Ask) -> Vec<Response> {
        match ask {
            Ask::Plan { spec } => match self.read(&spec) {
                Ok(spec) => {
                    let mut response: Vec<Response> =
                        self.timed(&spec).map(|timed| Response::Timed(Some(timed))).into_iter().collect();
                    response.extend(self.plan(id, spec));
                    response
                }
                Err(faults) => {
                    self.comparison = None;
                    vec![Response::Refused(faults), Response::Done]
                }
            },
            Ask::Stop => self.stop(),
            // Heard before it comes here.
            Ask::SearchWhileReadable { .. } => Vec::new(),
            Ask::Tune { spec, devices } => self.tune(id, spec, devices).into_iter().collect(),
            Ask::Passes { spec } => vec![Response::Passes(self.passes(&spec).unwrap_or_default())],
            Ask::Export { spec, purpose } => vec![self.export(&spec, purpose)],
            Ask::OpenKept { text } => self.open_kept(&text).into_iter().collect(),
            Ask::OpenPlan { text } => self.open_plan(id, &text),
            Ask::Measure { profile } => vec![self.measure(profile.as_deref())],
            Ask::OpenOrder { spec, text } => vec![self.open_order(&spec, &text)],
            Ask::OpenPoint { spec, bytes, below_ns } => self.open_point(&spec, bytes, below_ns),
            Ask::OpenTrace { text } => self.open_trace(&text),
            Ask::TraceStep { index } => self.trace_step(index).into_iter().collect(),
            Ask::Sensitivity(order) => self.start_sensitivity(id, order.as_ref()).into_iter().collect(),
            Ask::Calibrate(order) => self.calibrate(&order).into_iter().collect(),
            Ask::Record { batch, name, text } => {
                if self.recorded.batch != batch {
                    self.recorded = RecordedRanks { batch, files: Vec::new() };
                }
                self.recorded.files.push((name, torch_profile::read(&text)));
                Vec::new()
            }
            Ask::Trace { batch, order } => self.trace_recorded(batch, &order).into_iter().collect(),
        }
    }
}
