//! The search for the fastest layouts.

use pipeplan_core::advise::tune::{self, Tuner};
use pipeplan_core::search::{Effort, Flow};

use super::Worker;
use crate::protocol::{Response, from_core};

/// The search for the fastest layouts under way.
pub(super) struct LayoutSearch {
    pub(super) id: u32,
    pub(super) tuner: Tuner,
    /// When the page last received a message.
    pub(super) said_ms: f64,
}

/// Interval of progress messages of the search for layouts.
const TOLD_EVERY_MS: f64 = 200.0;

impl Worker {
    pub(super) fn tune(&mut self, id: u32, spec: Option<String>, devices: Option<u64>) -> Option<Response> {
        let ended = self.layout_search.take();
        let Some(spec) = spec else {
            return ended
                .map(|layout_search| Response::Tuned(Box::new(from_core::layouts(&layout_search.tuner, true))));
        };
        let question = tune::Question { devices, ..tune::Question::default() };
        let tuner = self
            .read(&spec)
            .and_then(|spec| Tuner::new(&spec, &question).map_err(|faults| from_core::faults(&faults)));
        match tuner {
            Ok(tuner) => {
                let begun = Response::Tuned(Box::new(from_core::layouts(&tuner, false)));
                self.layout_search = Some(LayoutSearch { id, tuner, said_ms: (self.clock)() });
                Some(begun)
            }
            Err(faults) => Some(Response::NotTuned(faults)),
        }
    }
}

impl LayoutSearch {
    /// Does the next piece. Sends the layouts so far from time to time.
    pub(super) fn step(&mut self, now_ms: f64) -> Option<Response> {
        let finished = !self.tuner.step(Effort::default(), &mut |_| Flow::Continue);
        if !finished && now_ms - self.said_ms < TOLD_EVERY_MS {
            return None;
        }
        self.said_ms = now_ms;
        Some(Response::Tuned(Box::new(from_core::layouts(&self.tuner, finished))))
    }
}
