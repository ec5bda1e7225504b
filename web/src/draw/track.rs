//! One rank's spans, ready to be searched by time.

use pipeplan_core::problem::op::Op;
use pipeplan_core::simulate::timeline::Span;

/// The spans of one rank in order of time, none over another.
#[derive(Clone, Debug, Default)]
pub struct Track {
    spans: Vec<Span>,
    /// Busy time before each span, and after the last: the share of a pixel that is busy in two look-ups.
    busy_before: Vec<u64>,
}

impl Track {
    /// A track of `spans`. Measured spans may come in any order and touch each other's edges by clock noise:
    /// they are sorted, and each starts no earlier than the one before it ends.
    pub fn new(mut spans: Vec<Span>) -> Track {
        if !spans.is_sorted_by_key(|span| (span.start_ns, span.end_ns)) {
            spans.sort_by_key(|span| (span.start_ns, span.end_ns));
        }
        let mut free_ns = 0;
        let mut busy_ns = 0u64;
        let mut busy_before = Vec::with_capacity(spans.len() + 1);
        for span in &mut spans {
            span.start_ns = span.start_ns.max(free_ns);
            span.end_ns = span.end_ns.max(span.start_ns);
            free_ns = span.end_ns;
            busy_before.push(busy_ns);
            busy_ns = busy_ns.saturating_add(span.end_ns - span.start_ns);
        }
        busy_before.push(busy_ns);
        Track { spans, busy_before }
    }

    /// All spans.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// When the last span ends.
    pub fn end_ns(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.end_ns)
    }

    /// The gap before the span at `place`, or behind the last one until `end_ns`: from when to when, where there is one.
    pub fn gap_before(&self, place: usize, end_ns: u64) -> Option<(u64, u64)> {
        let from_ns = match place.checked_sub(1) {
            Some(before) => self.spans.get(before)?.end_ns,
            None => 0,
        };
        let to_ns = self.spans.get(place).map_or(end_ns, |span| span.start_ns);
        (from_ns < to_ns).then_some((from_ns, to_ns))
    }

    /// Busy time of the spans `from..to`.
    pub fn busy_ns(&self, from: usize, to: usize) -> u64 {
        match (self.busy_before.get(from), self.busy_before.get(to)) {
            (Some(before), Some(after)) => after.saturating_sub(*before),
            _ => 0,
        }
    }

    /// The first span that ends after `time_ns`.
    pub fn first_ending_after(&self, time_ns: f64) -> usize {
        self.spans.partition_point(|span| span.end_ns as f64 <= time_ns)
    }

    /// The spans that touch `from_ns..to_ns`.
    pub fn between(&self, from_ns: f64, to_ns: f64) -> core::ops::Range<usize> {
        let first = self.first_ending_after(from_ns);
        let last = self.spans.partition_point(|span| (span.start_ns as f64) < to_ns);
        first..last.max(first)
    }

    /// The span at `time_ns`, or the nearest one within `reach_ns`: a span narrower than a pixel can still be
    /// pointed at.
    pub fn at(&self, time_ns: f64, reach_ns: f64) -> Option<usize> {
        let after = self.first_ending_after(time_ns);
        let distance = |index: usize| {
            let span = self.spans.get(index)?;
            let distance = if time_ns < span.start_ns as f64 {
                span.start_ns as f64 - time_ns
            } else {
                (time_ns - span.end_ns as f64).max(0.0)
            };
            (distance <= reach_ns).then_some((distance, index))
        };
        let candidates = [distance(after), after.checked_sub(1).and_then(distance)];
        candidates.into_iter().flatten().min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, index)| index)
    }

    /// Where `op` stands.
    pub fn position(&self, op: Op) -> Option<usize> {
        self.spans.iter().position(|span| span.op == op)
    }
}

/// What a rank sends beside its ops, and what it does after the last one.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// Activations on their way to the next stage: a span for each forward that has sent them.
    pub activations: Track,
    /// Gradients on their way to the stage before.
    pub gradients: Track,
    /// Activations on their way to the host's memory, as forwards, and back, as backwards.
    pub copies: Track,
    /// From when to when gradients are summed, and the optimizer runs.
    pub after: [(u64, u64); 2],
}

/// The first index at or after `from` for which `before` no longer holds, by doubling steps and then halving
/// them: cheap where the answer is near, and never worse than twice a binary search.
pub fn gallop<T>(items: &[T], from: usize, before: impl Fn(&T) -> bool) -> usize {
    let rest = items.get(from..).unwrap_or_default();
    let mut step = 1;
    let mut low = 0;
    while low + step <= rest.len() && before(&rest[low + step - 1]) {
        low += step;
        step *= 2;
    }
    let high = (low + step).min(rest.len());
    from + low + rest[low..high].partition_point(before)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use pipeplan_core::problem::op::OpKind;
    use proptest::prelude::*;

    /// Forwards of one stage, with these starts and ends.
    pub(crate) fn track(times: &[(u64, u64)]) -> Track {
        let span = |(index, &(start_ns, end_ns)): (usize, &(u64, u64))| Span {
            op: Op::new(0, OpKind::F, index),
            start_ns,
            end_ns,
        };
        Track::new(times.iter().enumerate().map(span).collect())
    }

    fn span(start_ns: u64, end_ns: u64) -> Span {
        Span { op: Op::new(0, OpKind::F, start_ns as usize), start_ns, end_ns }
    }

    #[test]
    fn measured_spans_are_sorted_and_kept_apart() {
        let track = Track::new(vec![span(20, 30), span(0, 12), span(10, 20)]);
        let times: Vec<_> = track.spans().iter().map(|span| (span.start_ns, span.end_ns)).collect();
        assert_eq!(times, [(0, 12), (12, 20), (20, 30)]);
        assert_eq!(track.busy_ns(0, 3), 30);
    }

    #[test]
    fn pointing_beside_a_narrow_span_finds_it() {
        let track = Track::new(vec![span(0, 10), span(100, 101), span(200, 300)]);
        assert_eq!(track.at(5.0, 0.0), Some(0));
        assert_eq!(track.at(50.0, 10.0), None);
        assert_eq!(track.at(97.0, 5.0), Some(1));
        assert_eq!(track.at(104.0, 5.0), Some(1));
        assert_eq!(track.at(1e9, 5.0), None);
        assert_eq!(Track::default().at(0.0, 1.0), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn galloping_finds_what_a_scan_finds(mut items in prop::collection::vec(0u32..100, 0..200), from in 0usize..220, limit in 0u32..110) {
            items.sort_unstable();
            let from = from.min(items.len());
            let scan = (from..items.len()).find(|index| items[*index] >= limit).unwrap_or(items.len());
            prop_assert_eq!(gallop(&items, from, |item| *item < limit), scan);
        }
    }
}
