//! From block to block by keys: along a row, and between rows.

use pipeplan_core::problem::op::Op;

use super::track::Track;

/// A block of the picture, or a gap between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Whether it belongs to the part under the plan.
    pub below: bool,
    /// Its row.
    pub rank: usize,
    /// Its place in the row.
    pub index: usize,
    /// Whether it is the gap before that place, which may be behind the last block.
    pub gap: bool,
}

/// What the pointer is on, or what was selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointed {
    /// An op of the plan, or of what is compared with it.
    Block(Block),
    /// The memory of a rank at a time.
    Memory {
        /// The rank.
        rank: usize,
        /// The time.
        time_ns: u64,
    },
    /// A range of time on all ranks.
    Range {
        /// Its beginning.
        from_ns: u64,
        /// Its end.
        to_ns: u64,
    },
    /// What a rank sends and does beside its ops at a time.
    Carried {
        /// The rank.
        rank: usize,
        /// The time.
        time_ns: u64,
    },
    /// What a measured rank did beside its ops.
    Mark {
        /// The rank.
        rank: usize,
        /// Its position among those of the rank.
        index: usize,
    },
    /// All ranks at a time.
    Instant {
        /// The time.
        time_ns: u64,
    },
}

/// The next selection from a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The block or gap before it on its rank.
    Earlier,
    /// The block or gap after it.
    Later,
    /// To the row above.
    Up,
    /// To the row below.
    Down,
    /// To the first block of its rank.
    First,
    /// To the last block.
    Last,
}

/// All rows that blocks are on, from the top.
#[derive(Clone, Copy)]
pub struct Ranks<'s> {
    /// The planned ones.
    pub planned: &'s [Track],
    /// The tracks of the part under the plan.
    pub below: &'s [Track],
    /// By how much the times of those are scaled.
    pub scale: f64,
}

impl Ranks<'_> {
    fn track(&self, row: usize) -> Option<&Track> {
        self.planned.get(row).or_else(|| self.below.get(row.checked_sub(self.planned.len())?))
    }

    /// The block of a row, counted from the top, that is nearest to a time of the plan.
    pub fn nearest(&self, row: usize, time_ns: f64) -> Option<Block> {
        let below = row >= self.planned.len();
        let index = self.track(row)?.at(if below { time_ns / self.scale } else { time_ns }, f64::INFINITY)?;
        let rank = if below { row - self.planned.len() } else { row };
        Some(Block { below, rank, index, gap: false })
    }

    /// The gap of a row, counted from the top, at a time of the plan.
    pub fn gap_at(&self, row: usize, time_ns: f64) -> Option<Block> {
        let below = row >= self.planned.len();
        let time_ns = if below { time_ns / self.scale } else { time_ns };
        let index = self.track(row)?.first_ending_after(time_ns);
        let rank = if below { row - self.planned.len() } else { row };
        let (from_ns, to_ns) = self.track(row)?.gap_before(index, self.end_ns(below))?;
        let is_in = (from_ns as f64..to_ns as f64).contains(&time_ns);
        is_in.then_some(Block { below, rank, index, gap: true })
    }

    /// When the last op of the plan, or of what is compared with it, ends.
    fn end_ns(&self, below: bool) -> u64 {
        let tracks = if below { self.below } else { self.planned };
        tracks.iter().map(Track::end_ns).max().unwrap_or(0)
    }

    /// The gap before a place of a block's row, else what `otherwise` says.
    fn gap_or(&self, block: Block, index: usize, otherwise: usize) -> Block {
        let gap = self.track(self.row(block)).and_then(|track| track.gap_before(index, self.end_ns(block.below)));
        match gap {
            Some(_) => Block { index, gap: true, ..block },
            None => Block { index: otherwise, gap: false, ..block },
        }
    }

    /// When a block begins and ends, in the time of the plan.
    pub fn times(&self, block: Block) -> Option<(f64, f64)> {
        let track = self.track(self.row(block))?;
        let (from_ns, to_ns) = if block.gap {
            track.gap_before(block.index, self.end_ns(block.below))?
        } else {
            track.spans().get(block.index).map(|span| (span.start_ns, span.end_ns))?
        };
        let scale = if block.below { self.scale } else { 1.0 };
        Some((from_ns as f64 * scale, to_ns as f64 * scale))
    }

    /// The op of a block; none of a gap.
    pub fn op(&self, block: Block) -> Option<Op> {
        let span = self.track(self.row(block))?.spans().get(block.index)?;
        (!block.gap).then_some(span.op)
    }

    fn row(&self, block: Block) -> usize {
        if block.below { self.planned.len() + block.rank } else { block.rank }
    }

    /// The block that a step leads to; the same one at an edge.
    pub fn stepped(&self, block: Block, step: Step) -> Block {
        let row = self.row(block);
        let last = self.track(row).map_or(0, |track| track.spans().len().saturating_sub(1));
        let (from_ns, to_ns) = self.times(block).unwrap_or_default();
        let middle = (from_ns + to_ns) / 2.0;
        // A rank without ops has nothing to stop at.
        match step {
            Step::Earlier if block.gap => match block.index.checked_sub(1) {
                Some(index) => Block { index, gap: false, ..block },
                None => block,
            },
            Step::Earlier => self.gap_or(block, block.index, block.index.saturating_sub(1)),
            Step::Later if block.gap && block.index > last => block,
            Step::Later if block.gap => Block { gap: false, ..block },
            Step::Later => self.gap_or(block, block.index + 1, (block.index + 1).min(last)),
            Step::First => Block { index: 0, gap: false, ..block },
            Step::Last => Block { index: last, gap: false, ..block },
            Step::Up => (0..row).rev().find_map(|row| self.nearest(row, middle)).unwrap_or(block),
            Step::Down => {
                let rows = self.planned.len() + self.below.len();
                (row + 1..rows).find_map(|row| self.nearest(row, middle)).unwrap_or(block)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::track::tests::track;

    #[test]
    fn keys_go_along_a_row_and_to_what_stands_nearest_in_the_next_one() {
        let planned = [track(&[(0, 10), (10, 20), (30, 40)]), track(&[]), track(&[(12, 16), (50, 60)])];
        // Drawn at half of its time.
        let below = [track(&[(0, 20), (20, 120)])];
        let ranks = Ranks { planned: &planned, below: &below, scale: 0.5 };
        let mut at = ranks.nearest(0, 14.0).unwrap();
        assert_eq!(at, Block { below: false, rank: 0, index: 1, gap: false });
        for (step, below, rank, index) in [
            (Step::Earlier, false, 0, 0),
            (Step::Earlier, false, 0, 0),
            (Step::Up, false, 0, 0),
            (Step::Last, false, 0, 2),
            (Step::Down, false, 2, 1),
            (Step::Later, false, 2, 1),
            (Step::Down, true, 0, 1),
            (Step::Down, true, 0, 1),
            (Step::Later, true, 0, 1),
            (Step::First, true, 0, 0),
            (Step::Up, false, 2, 0),
            (Step::Up, false, 0, 1),
        ] {
            at = ranks.stepped(at, step);
            assert_eq!(at, Block { below, rank, index, gap: false }, "{step:?}");
        }
        assert_eq!(ranks.times(Block { below: true, rank: 0, index: 1, gap: false }), Some((10.0, 60.0)));
    }

    #[test]
    fn keys_and_pointers_find_the_gaps_between_blocks() {
        let planned = [track(&[(4, 10), (10, 20), (30, 40)]), track(&[(40, 50)])];
        let below = [track(&[(0, 20), (60, 80)])];
        let ranks = Ranks { planned: &planned, below: &below, scale: 0.5 };
        let mut at = Block { below: false, rank: 0, index: 1, gap: false };
        for (step, index, gap) in [
            (Step::Later, 2, true),
            (Step::Later, 2, false),
            (Step::Later, 3, true),
            (Step::Later, 3, true),
            (Step::Earlier, 2, false),
            (Step::Earlier, 2, true),
            (Step::Earlier, 1, false),
            (Step::Earlier, 0, false),
            (Step::Earlier, 0, true),
            (Step::Earlier, 0, true),
            (Step::Later, 0, false),
        ] {
            at = ranks.stepped(at, step);
            assert_eq!(at, Block { index, gap, ..at }, "{step:?}");
        }
        let gap = |below, rank, index| Some(Block { below, rank, index, gap: true });
        assert_eq!(ranks.times(gap(false, 0, 3).unwrap()), Some((40.0, 50.0)));
        assert_eq!(ranks.times(gap(true, 0, 1).unwrap()), Some((10.0, 30.0)));
        for (row, time_ns, found) in [
            (0, 1.0, gap(false, 0, 0)),
            (0, 5.0, None),
            (0, 25.0, gap(false, 0, 2)),
            (0, 45.0, gap(false, 0, 3)),
            (0, 51.0, None),
            (0, -1.0, None),
            (2, 25.0, gap(true, 0, 1)),
            (3, 25.0, None),
        ] {
            assert_eq!(ranks.gap_at(row, time_ns), found, "{row} {time_ns}");
        }
    }
}
