//! What the memory limit costs the best schedule, and what makes its step shorter.

use pipeplan_core::advise::suggest::Shortener;
use pipeplan_core::spec::Work;

use super::comparison::Comparison;
use crate::protocol::{Response, Shorter, from_core};

/// The search for the cost of the memory limit.
pub(super) enum LimitPrice {
    NotBegun,
    Begun {
        step_ns: u64,
        shortener: Box<Shortener>,
    },
    /// Found, and not yet sent for this question.
    Found(Box<Shorter>),
    /// Sent, if there was a cost.
    Done(Option<Box<Shorter>>),
}

impl Comparison {
    /// Whether the cost of the memory limit is still unknown.
    pub(super) fn may_shorten(&self) -> bool {
        let is_model = matches!(self.spec.work, Work::Model(_));
        is_model && self.finished && self.shows_best && !matches!(self.shortening, LimitPrice::Done(_))
    }

    /// Does the next piece of that search. Sends the cost at the end, if there is any.
    pub(super) fn shorten(&mut self) -> Option<Response> {
        let (next, response) = match core::mem::replace(&mut self.shortening, LimitPrice::Done(None)) {
            LimitPrice::NotBegun => (self.begin_shortening().unwrap_or(LimitPrice::Done(None)), None),
            LimitPrice::Begun { step_ns, mut shortener } => match shortener.step() {
                true => (LimitPrice::Begun { step_ns, shortener }, None),
                false => {
                    let found = shortener.finish().map(|found| Box::new(from_core::shorter(step_ns, found)));
                    (found.map_or(LimitPrice::Done(None), LimitPrice::Found), None)
                }
            },
            LimitPrice::Found(found) => (LimitPrice::Done(Some(found.clone())), Some(Response::Shorter(found))),
            done @ LimitPrice::Done(_) => (done, None),
        };
        self.shortening = next;
        response
    }

    pub(super) fn begin_shortening(&self) -> Option<LimitPrice> {
        let best = self.best.so_far()?;
        // With documents in the same microbatches.
        let spec = self.best.packed().map_or(&self.spec, |packed| &packed.spec);
        let shortener = Box::new(Shortener::new(spec, best)?);
        Some(LimitPrice::Begun { step_ns: best.step(spec)?.step_ns, shortener })
    }
}
