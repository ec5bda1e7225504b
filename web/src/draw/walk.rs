//! From block to block by keys: along a row, and between rows.

use super::lane::Lane;

/// A block of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Whether it is one of what is compared with the plan.
    pub below: bool,
    /// Its row.
    pub rank: usize,
    /// Its place in the row.
    pub index: usize,
}

/// Where to go from a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the one before it on its rank.
    Earlier,
    /// To the one after it.
    Later,
    /// To the row above.
    Up,
    /// To the row below.
    Down,
    /// To the first of its rank.
    First,
    /// To the last.
    Last,
}

/// All rows that blocks are on, from the top.
#[derive(Clone, Copy)]
pub struct Ranks<'s> {
    /// The planned ones.
    pub planned: &'s [Lane],
    /// Those of what is compared with the plan.
    pub below: &'s [Lane],
    /// By how much the times of those are scaled.
    pub scale: f64,
}

impl Ranks<'_> {
    fn lane(&self, row: usize) -> Option<&Lane> {
        self.planned.get(row).or_else(|| self.below.get(row.checked_sub(self.planned.len())?))
    }

    /// The block of a row, counted from the top, that is nearest to a time of the plan.
    pub fn nearest(&self, row: usize, time_ns: f64) -> Option<Block> {
        let below = row >= self.planned.len();
        let index = self.lane(row)?.at(if below { time_ns / self.scale } else { time_ns }, f64::INFINITY)?;
        let rank = if below { row - self.planned.len() } else { row };
        Some(Block { below, rank, index })
    }

    /// When a block begins and ends, in the time of the plan.
    pub fn times(&self, block: Block) -> Option<(f64, f64)> {
        let span = self.lane(self.row(block))?.spans().get(block.index)?;
        let scale = if block.below { self.scale } else { 1.0 };
        Some((span.start_ns as f64 * scale, span.end_ns as f64 * scale))
    }

    fn row(&self, block: Block) -> usize {
        if block.below { self.planned.len() + block.rank } else { block.rank }
    }

    /// The block that a step leads to; the same one at an edge.
    pub fn stepped(&self, block: Block, step: Step) -> Block {
        let row = self.row(block);
        let last = self.lane(row).map_or(0, |lane| lane.spans().len().saturating_sub(1));
        let (from_ns, to_ns) = self.times(block).unwrap_or_default();
        let middle = (from_ns + to_ns) / 2.0;
        // A rank without ops has nothing to stop at.
        match step {
            Step::Earlier => Block { index: block.index.saturating_sub(1), ..block },
            Step::Later => Block { index: (block.index + 1).min(last), ..block },
            Step::First => Block { index: 0, ..block },
            Step::Last => Block { index: last, ..block },
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
    use crate::draw::lane::tests::lane;

    #[test]
    fn keys_go_along_a_row_and_to_what_stands_nearest_in_the_next_one() {
        let planned = [lane(&[(0, 10), (10, 20), (30, 40)]), lane(&[]), lane(&[(12, 16), (50, 60)])];
        // Drawn at half of its time.
        let below = [lane(&[(0, 20), (20, 120)])];
        let ranks = Ranks { planned: &planned, below: &below, scale: 0.5 };
        let mut at = ranks.nearest(0, 14.0).unwrap();
        assert_eq!(at, Block { below: false, rank: 0, index: 1 });
        for (step, below, rank, index) in [
            (Step::Earlier, false, 0, 0),
            (Step::Earlier, false, 0, 0),
            (Step::Up, false, 0, 0),
            (Step::Last, false, 0, 2),
            (Step::Later, false, 0, 2),
            (Step::Down, false, 2, 1),
            (Step::Down, true, 0, 1),
            (Step::Down, true, 0, 1),
            (Step::First, true, 0, 0),
            (Step::Up, false, 2, 0),
            (Step::Up, false, 0, 1),
        ] {
            at = ranks.stepped(at, step);
            assert_eq!(at, Block { below, rank, index }, "{step:?}");
        }
        assert_eq!(ranks.times(Block { below: true, rank: 0, index: 1 }), Some((10.0, 60.0)));
    }
}
