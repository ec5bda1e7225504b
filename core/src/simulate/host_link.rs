//! The link of a rank to its host: its copies, one after the other.

use alloc::vec::Vec;

use super::timeline::CopySpan;
use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::copies::HostCopy;

/// The copies of one rank while its ops run.
pub(crate) struct HostLink<'s> {
    copies: &'s [HostCopy],
    spans: Vec<CopySpan>,
    /// Copies before this one have been waited for, by position in the list.
    awaited: usize,
}

impl<'s> HostLink<'s> {
    pub(crate) fn new(copies: &'s [HostCopy]) -> HostLink<'s> {
        HostLink { copies, spans: Vec::with_capacity(copies.len()), awaited: 0 }
    }

    /// Starts the copies that start before the op at `place`, where the op before it ended at `now`. To be called with places
    /// in ascending order; a second call with the same place changes nothing.
    pub(crate) fn start(&mut self, problem: &Problem, place: usize, now: Nanos) {
        while let Some(copy) = self.copies.get(self.spans.len()).filter(|copy| copy.starts as usize <= place) {
            let free = self.spans.last().map_or(0, |last| last.end_ns);
            let start_ns = now.max(free);
            let end_ns = start_ns.saturating_add(problem.cost(copy.moved.stage.into()).offload_ns);
            self.spans.push(CopySpan { copy: *copy, start_ns, end_ns });
        }
    }

    /// When the copies have ended that the op at `place` waits for. To be called with places in ascending order, each after
    /// [`HostLink::start`].
    pub(crate) fn end(&mut self, place: usize) -> Nanos {
        // Copies end in the order of the list. So to wait for the last one is to wait for all before it.
        let waits = |span: &CopySpan| span.copy.ends as usize == place;
        let last = self.spans[self.awaited..].iter().rposition(waits);
        let end = last.map_or(0, |last| self.spans[self.awaited + last].end_ns);
        self.awaited += last.map_or(0, |last| last + 1);
        end
    }

    /// The copies with their times.
    pub(crate) fn spans(self) -> Vec<CopySpan> {
        self.spans
    }
}
