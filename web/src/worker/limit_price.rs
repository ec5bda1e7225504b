//! What the memory limit costs the best schedule, and what makes its step shorter.

use pipeplan_core::advise::suggest::Shortener;
use pipeplan_core::spec::Work;

use super::comparison::Comparison;
use crate::protocol::{Response, Shorter, from_core};

/// The look for what the memory limit costs the best.
pub(super) enum LimitPrice {
    NotBegun,
    Begun {
        step_ns: u64,
        shortener: Box<Shortener>,
    },
    /// Found, and to be said, perhaps again.
    Found(Box<Shorter>),
    /// Said, where there was anything to say.
    Done(Option<Box<Shorter>>),
}

impl Comparison {
    /// Whether there is anything to find out about what the memory limit costs.
    pub(super) fn may_shorten(&self) -> bool {
        let is_model = matches!(self.spec.work, Work::Model(_));
        is_model && self.finished && self.shows_best && !matches!(self.shortening, LimitPrice::Done(_))
    }

    /// The next piece of that. Said at its end, where the limit costs anything.
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
        let shortener = Box::new(Shortener::new(&self.spec, best)?);
        Some(LimitPrice::Begun { step_ns: best.step(&self.spec)?.step_ns, shortener })
    }
}
