//! Bytes held over time as columns of pixels.

use super::track::gallop;
use super::view::View;

/// Steps under one summary.
const BLOCK: usize = 64;

/// What a rank holds over time: a step each, from that time on.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    steps: Vec<(u64, u64)>,
    /// Least and most bytes of each block of steps: a pixel over thousands of steps looks at few.
    blocks: Vec<(u64, u64)>,
}

/// Least and most bytes held within one pixel column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl Curve {
    /// A curve of `steps`, each a time and the bytes held from then on, in order of time.
    pub fn new(steps: Vec<(u64, u64)>) -> Curve {
        let least_and_most = |block: &[(u64, u64)]| {
            block.iter().fold((u64::MAX, 0), |(least, most), step| (least.min(step.1), most.max(step.1)))
        };
        let blocks = steps.chunks(BLOCK).map(least_and_most).collect();
        Curve { steps, blocks }
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The most bytes ever held.
    pub fn peak(&self) -> u64 {
        self.blocks.iter().map(|block| block.1).max().unwrap_or(0)
    }

    /// Bytes held at `time_ns`.
    pub fn at(&self, time_ns: f64) -> u64 {
        let after = self.steps.partition_point(|step| step.0 as f64 <= time_ns);
        after.checked_sub(1).and_then(|index| self.steps.get(index)).map_or(0, |step| step.1)
    }

    /// The most bytes held at any time of a range.
    pub fn most_between(&self, from_ns: u64, to_ns: u64) -> u64 {
        let first = self.steps.partition_point(|step| step.0 <= from_ns);
        let last = self.steps.partition_point(|step| step.0 < to_ns).max(first);
        self.range(first, last).1.max(self.at(from_ns as f64))
    }

    /// The range of each of `pixels` columns.
    pub fn columns(&self, view: View, pixels: usize) -> Vec<Range> {
        let mut next = self.steps.partition_point(|step| step.0 as f64 <= view.start_ns);
        let mut held = next.checked_sub(1).and_then(|index| self.steps.get(index)).map_or(0, |step| step.1);
        let mut columns = Vec::with_capacity(pixels);
        for index in 0..pixels {
            let until = gallop(&self.steps, next, |step| (step.0 as f64) < view.time_at((index + 1) as f64));
            let (least, most) = self.range(next, until);
            columns.push(Range { least: least.min(held), most: most.max(held) });
            if let Some(last) = until.checked_sub(1).filter(|last| *last >= next) {
                held = self.steps[last].1;
            }
            next = until;
        }
        columns
    }

    /// Least and most over steps `from..to`; the neutral pair where there are none.
    fn range(&self, from: usize, to: usize) -> (u64, u64) {
        let join = |one: (u64, u64), other: (u64, u64)| (one.0.min(other.0), one.1.max(other.1));
        let each = |from: usize, to: usize| {
            let steps = self.steps.get(from..to).unwrap_or_default();
            steps.iter().fold((u64::MAX, 0), |range, step| join(range, (step.1, step.1)))
        };
        let (first_block, last_block) = (from.div_ceil(BLOCK), to / BLOCK);
        if first_block >= last_block {
            return each(from, to);
        }
        let whole = self.blocks.get(first_block..last_block).unwrap_or_default();
        let whole = whole.iter().fold((u64::MAX, 0), |range, block| join(range, *block));
        join(join(each(from, first_block * BLOCK), whole), each(last_block * BLOCK, to))
    }
}

/// Pixels above the bottom of a strip of `height_px` that stand for `bytes`, of `top_bytes` for all of it.
pub fn height_of(bytes: u64, top_bytes: u64, height_px: f64) -> f64 {
    if top_bytes == 0 { 0.0 } else { (bytes as f64 / top_bytes as f64).min(1.0) * height_px }
}

/// The bytes at the top of all strips: some room above the highest of peaks and limits. A limit far above
/// every peak is left outside, or the curves would be flat.
pub fn top_bytes(peak: u64, limit: Option<u64>) -> u64 {
    let shown = match limit {
        Some(limit) if limit <= peak.saturating_mul(4) => peak.max(limit),
        _ => peak,
    };
    shown.saturating_add(shown / 12).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn columns_show_what_a_scan_shows(
            steps in prop::collection::vec((1u64..9, 0u64..1000), 0..600),
            start in 0.0f64..500.0,
            ns_per_px in 0.5f64..400.0,
        ) {
            let mut now = 0;
            let steps: Vec<(u64, u64)> = steps.iter().map(|(wait, held)| { now += wait; (now - 1, *held) }).collect();
            let curve = Curve::new(steps.clone());
            let view = View { start_ns: start, ns_per_px };
            for (index, column) in curve.columns(view, 20).into_iter().enumerate() {
                let (from, to) = (view.time_at(index as f64), view.time_at((index + 1) as f64));
                let within: Vec<u64> = steps.iter()
                    .filter(|step| from < step.0 as f64 && (step.0 as f64) < to)
                    .map(|step| step.1)
                    .chain([curve.at(from)])
                    .collect();
                let (least, most) = (*within.iter().min().unwrap(), *within.iter().max().unwrap());
                // A step on the edge between two columns may count in both.
                prop_assert!(column.least <= least && column.most >= most, "{column:?} {least} {most}");
                prop_assert!(steps.iter().chain([&(0, 0)]).any(|step| step.1 == column.most));
            }
            prop_assert_eq!(curve.peak(), steps.iter().map(|step| step.1).max().unwrap_or(0));
        }
    }

    #[test]
    fn a_limit_out_of_sight_does_not_flatten_the_curves() {
        assert_eq!(top_bytes(1200, Some(2400)), 2600);
        assert_eq!(top_bytes(1200, Some(1_000_000)), 1300);
        assert_eq!(top_bytes(0, None), 1);
        assert_eq!(top_bytes(u64::MAX, Some(u64::MAX)), u64::MAX);
        assert_eq!(height_of(5, 10, 20.0), 10.0);
    }
}
