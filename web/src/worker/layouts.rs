//! The search for the fastest layouts, and for the layout of a form whose degrees follow.

use pipeplan_core::advise::tune::{self, Degrees, Field, LayoutFinder, NextStep, Outcome, Tuner};
use pipeplan_core::base::fields::Faults;
use pipeplan_core::search::{Effort, Flow};

use super::Worker;
use crate::form::{DEVICES, LayoutQuestion, with_labels};
use crate::protocol::{FieldFault, FoundLayout, Response, from_core};
use crate::text;

/// The search for the fastest layouts under way.
pub(super) struct LayoutSearch {
    pub(super) id: u32,
    pub(super) tuner: Tuner,
    /// When the page last received a message.
    pub(super) said_ms: f64,
}

/// The layout of a form under way.
pub(super) struct FollowingLayout {
    pub(super) id: u32,
    pub(super) finder: LayoutFinder,
    /// When the page last received a layout, and which.
    pub(super) said_ms: f64,
    pub(super) said: Option<Degrees>,
}

/// A layout that takes longer to find is shown before it is known to be the fastest, and later ones at this interval.
const INTERIM_AFTER_MS: f64 = 700.0;

/// Interval of progress messages of the search for layouts.
const TOLD_EVERY_MS: f64 = 200.0;

impl Worker {
    pub(super) fn find_layout(&mut self, id: u32, question: Option<LayoutQuestion>) -> Option<Response> {
        self.following_layout = None;
        let LayoutQuestion { spec, devices, batch, pins } = question?;
        // What the page shows meanwhile belongs to the layout before.
        self.comparison = self.comparison.take().filter(|running| running.finished);
        let pins: Vec<Field> = pins.iter().filter_map(|pin| Field::named(pin)).collect();
        let refused = |faults: Vec<FieldFault>| {
            let fault = |fault: &FieldFault| match fault.field.is_empty() {
                true => fault.found.clone(),
                false => format!("{}: found {}, accepted is {}", fault.field, fault.found, fault.accepted),
            };
            faults.first().map(fault).unwrap_or_default()
        };
        let finder = self.read(&spec).map_err(refused).and_then(|spec| {
            let said = |faults: Faults| faults.0.first().map_or_else(|| faults.to_string(), ToString::to_string);
            LayoutFinder::new(&spec, devices, batch, &pins).map_err(said)
        });
        match finder {
            Ok(finder) => {
                self.following_layout = Some(FollowingLayout { id, finder, said_ms: (self.clock)(), said: None });
                None
            }
            Err(reason) => Some(Response::LayoutFound(no_layout(&reason, None))),
        }
    }

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

impl FollowingLayout {
    /// Does the next piece. Sends the layout when it is known, and the best so far if that takes long.
    pub(super) fn step(&mut self, now_ms: f64) -> Option<Response> {
        let goes_on = self.finder.step();
        match self.finder.outcome() {
            Some(Outcome::Found(layout)) => Some(Response::LayoutFound(FoundLayout {
                spec: Some(layout.spec.to_json()),
                reason: String::new(),
                next: None,
                finished: true,
            })),
            Some(Outcome::None(reason, next)) => Some(Response::LayoutFound(no_layout(reason, *next))),
            None if goes_on && now_ms - self.said_ms >= INTERIM_AFTER_MS => {
                let layout = self.finder.so_far().filter(|layout| self.said != Some(layout.degrees))?;
                (self.said_ms, self.said) = (now_ms, Some(layout.degrees));
                let spec = Some(layout.spec.to_json());
                Some(Response::LayoutFound(FoundLayout { spec, reason: String::new(), next: None, finished: false }))
            }
            None => None,
        }
    }
}

fn no_layout(reason: &str, next: Option<NextStep>) -> FoundLayout {
    let next = next.map(|next| match next {
        NextStep::Devices(devices) => [DEVICES.to_owned(), devices.to_string()],
        NextStep::Batch(batch) => ["training.global_batch_size".to_owned(), batch.to_string()],
        NextStep::Unpin => [String::new(), String::new()],
    });
    FoundLayout { spec: None, reason: text::sentence(&with_labels(reason)), next, finished: true }
}
