//! When the link of a rank to its host is busy.

use alloc::collections::BTreeMap;

use crate::base::units::Nanos;

/// The most busy spans that one look for a gap passes: beyond, the link is taken as full.
const MOST_PASSED: usize = 64;

/// Busy spans by start, which do not overlap.
#[derive(Default)]
pub(super) struct Link {
    busy: BTreeMap<Nanos, Nanos>,
}

impl Link {
    /// Makes the link busy from `start` on.
    pub(super) fn take(&mut self, start: Nanos, takes: Nanos) {
        if takes > 0 {
            self.busy.insert(start, start + takes);
        }
    }

    /// Undoes [`Link::take`].
    pub(super) fn free(&mut self, start: Nanos, takes: Nanos) {
        if takes > 0 {
            self.busy.remove(&start);
        }
    }

    /// The first time from `after` on at which the link is free for that long.
    pub(super) fn first(&self, after: Nanos, takes: Nanos) -> Nanos {
        let before = self.busy.range(..=after).next_back().map_or(0, |(_, end)| *end);
        let mut from = after.max(before);
        for (passed, (start, end)) in self.busy.range(from..).enumerate() {
            if from + takes <= *start {
                return from;
            }
            if passed == MOST_PASSED {
                break;
            }
            from = *end;
        }
        if self.busy.range(from..).next().is_none_or(|(start, _)| from + takes <= *start) {
            return from;
        }
        self.busy.last_key_value().map_or(from, |(_, end)| *end)
    }

    /// The last time at which the link is free for that long before `until`; none where there is none near.
    pub(super) fn last(&self, until: Nanos, takes: Nanos) -> Option<Nanos> {
        let mut until = until;
        for (start, end) in self.busy.range(..until).rev().take(MOST_PASSED) {
            if *end <= until && until - end >= takes {
                return Some(until - takes);
            }
            until = until.min(*start);
        }
        let before = self.busy.range(..until).next_back().map_or(0, |(_, end)| *end);
        (before <= until && until - before >= takes).then(|| until - takes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_found_from_both_ends() {
        let mut link = Link::default();
        [(10, 5), (20, 5), (25, 10)].into_iter().for_each(|(start, takes)| link.take(start, takes));
        assert_eq!([link.first(0, 5), link.first(0, 11), link.first(6, 5), link.first(12, 5)], [0, 35, 15, 15]);
        assert_eq!(
            [link.last(40, 5), link.last(38, 5), link.last(24, 6), link.last(24, 5)],
            [Some(35), Some(15), Some(4), Some(15)]
        );
        assert_eq!(link.last(12, 11), None);
        link.free(20, 5);
        assert_eq!(link.last(24, 6), Some(18));
        // A copy that takes no time fits anywhere, and keeps nothing busy.
        link.take(18, 0);
        assert_eq!([link.first(12, 0), link.first(18, 3)], [15, 18]);
    }
}
