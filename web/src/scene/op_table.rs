//! The ops of a rank as rows of a table: the timeline for those who do not see it.

use core::ops::Range;

use pipeplan_core::problem::op::{Op, OpKind};

use super::Scene;
use super::gaps::Need;

/// An op as a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpRow {
    /// Its place in the op list of its rank.
    pub place: usize,
    /// The op.
    pub op: Op,
    /// When it starts.
    pub start_ns: u64,
    /// How long it takes.
    pub takes_ns: u64,
    /// How long its rank is idle before it.
    pub idle_ns: u64,
    /// The ops of other ranks or of its own that the rank is idle for, with their ranks.
    pub needs: Vec<(Op, usize)>,
}

impl Scene {
    /// The rows of a rank, for these places of its op list: fewer where there are fewer.
    pub fn op_rows(&self, rank: usize, places: Range<usize>) -> Vec<OpRow> {
        let spans = self.tracks.get(rank).map_or(&[][..], |track| track.spans());
        let places = places.start.min(spans.len())..places.end.min(spans.len());
        let row = |place: usize| {
            let span = spans.get(place)?;
            let wait = self.wait(rank, place);
            let needs = |needs: Vec<Need>| needs.into_iter().map(|need| (need.op, need.at.0)).collect();
            Some(OpRow {
                place,
                op: span.op,
                start_ns: span.start_ns,
                takes_ns: span.end_ns - span.start_ns,
                idle_ns: wait.as_ref().map_or(0, |wait| wait.to_ns - wait.from_ns),
                needs: wait.map(|wait| needs(wait.needs)).unwrap_or_default(),
            })
        };
        places.filter_map(row).collect()
    }
}

/// A kind of op in words.
pub const fn words_of(kind: OpKind) -> &'static str {
    match kind {
        OpKind::F => "forward",
        OpKind::B => "backward for inputs",
        OpKind::W => "backward for weights",
        OpKind::BW => "backward",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::tests::example;

    /// 1F1B on four ranks, F of 10 and BW of 20: the last rank is idle for three forwards, rank 0 before its first BW for the way
    /// down and back.
    #[test]
    fn rows_of_a_rank_say_when_ops_run_and_what_the_rank_is_idle_for() {
        let scene = example("1f1b", 1);
        let rows = scene.op_rows(3, 0..2);
        let [first, second] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((first.op.to_string().as_str(), first.start_ns, first.takes_ns), ("3F0", 30, 10));
        assert_eq!((first.idle_ns, &first.needs[..]), (30, &[(Op::new(2, OpKind::F, 0), 2)][..]));
        assert_eq!((second.op.to_string().as_str(), second.idle_ns, second.needs.len()), ("3BW0", 0, 0));
        let last = scene.op_rows(0, 15..99);
        assert_eq!(last.iter().map(|row| row.place).collect::<Vec<_>>(), [15]);
        assert!(scene.op_rows(0, 16..99).is_empty() && scene.op_rows(9, 0..9).is_empty());
    }
}
