//! A line between bounds from above and from below.

use alloc::vec::Vec;

/// How far a clock is ahead, by its own time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Line {
    /// At time 0.
    pub(super) offset: f64,
    /// For each unit of time.
    pub(super) drift: f64,
}

impl Line {
    pub(super) fn at(self, time: f64) -> f64 {
        self.offset + self.drift * time
    }
}

/// Points that a line is not above, and points that it is not below: time and value.
#[derive(Clone, Debug, Default)]
pub(super) struct Bounds {
    pub(super) above: Vec<(f64, f64)>,
    pub(super) below: Vec<(f64, f64)>,
}

/// No clock drifts more: quartz is good to some 100 parts in a million.
const MOST_DRIFT: f64 = 1e-3;
/// Intervals of time of which each keeps its tightest points.
const INTERVALS: usize = 48;
/// How many: more than one, so that one wrong point does not hide right ones.
const KEPT: usize = 3;
/// Halvings of the range of drifts.
const HALVINGS: usize = 60;

impl Bounds {
    /// The tightest points of each interval of time.
    pub(super) fn tightest(self) -> Bounds {
        let times = || self.above.iter().chain(&self.below).map(|point| point.0);
        let (least, most) = times().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), at| (l.min(at), m.max(at)));
        let width = ((most - least) / INTERVALS as f64).max(1.0);
        let thin = |mut points: Vec<(f64, f64)>, sign: f64| {
            let interval = |at: f64| ((at - least) / width) as usize;
            points.sort_by(|one, other| {
                interval(one.0).cmp(&interval(other.0)).then((sign * one.1).total_cmp(&(sign * other.1)))
            });
            let mut kept: Vec<(f64, f64)> = Vec::new();
            for of_interval in points.chunk_by(|one, other| interval(one.0) == interval(other.0)) {
                kept.extend(of_interval.iter().take(KEPT));
            }
            kept
        };
        Bounds { above: thin(self.above, 1.0), below: thin(self.below, -1.0) }
    }

    /// Whether `line` keeps all of them.
    pub(super) fn allow(&self, line: Line) -> bool {
        self.above.iter().all(|(at, value)| line.at(*at) <= *value)
            && self.below.iter().all(|(at, value)| line.at(*at) >= *value)
    }

    /// The line in the middle, and the room to either side: below 0 where no line keeps all points, none where all are on one
    /// side. Points that contradict most others are dropped, up to an eighth of them.
    pub(super) fn fit(mut self) -> (Line, Option<f64>) {
        if self.above.is_empty() || self.below.is_empty() {
            let least = self.above.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
            let most = self.below.iter().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
            // No further from being right than the points ask for.
            let offset = if least.is_finite() { least.min(0.0) } else { most.max(0.0) };
            return (Line { offset: if offset.is_finite() { offset } else { 0.0 }, drift: 0.0 }, None);
        }
        let mut best = self.widest();
        for _ in 0..(self.above.len() + self.below.len()) / 8 {
            if best.1 >= 0.0 {
                break;
            }
            let (above, below) = self.binding(best.0.drift);
            let mut fits = [self.clone(), self.clone()];
            if fits[0].above.len() > 1 {
                fits[0].above.swap_remove(above);
            }
            if fits[1].below.len() > 1 {
                fits[1].below.swap_remove(below);
            }
            let found = [fits[0].widest(), fits[1].widest()];
            let better = usize::from(found[1].1 > found[0].1);
            let [one, other] = fits;
            self = if better == 0 { one } else { other };
            best = found[better];
        }
        (best.0, Some(best.1))
    }

    /// Offset in the middle and room to either side, for this drift.
    fn middle(&self, drift: f64) -> (f64, f64) {
        let least = self.above.iter().map(|(at, value)| value - drift * at).fold(f64::INFINITY, f64::min);
        let most = self.below.iter().map(|(at, value)| value - drift * at).fold(f64::NEG_INFINITY, f64::max);
        (0.5 * (least + most), 0.5 * (least - most))
    }

    /// The line with the most room. The room is concave in the drift.
    fn widest(&self) -> (Line, f64) {
        let (mut low, mut high) = (-MOST_DRIFT, MOST_DRIFT);
        for _ in 0..HALVINGS {
            let third = (high - low) / 3.0;
            let (left, right) = (low + third, high - third);
            if self.middle(left).1 < self.middle(right).1 {
                low = left;
            } else {
                high = right;
            }
        }
        let mut drift = 0.5 * (low + high);
        let (steady, drifting) = (self.middle(0.0), self.middle(drift));
        // A drift that gives hardly more room is noise.
        if steady.1 >= 0.9 * drifting.1 && steady.1 >= 0.0 {
            drift = 0.0;
        }
        let (offset, room) = self.middle(drift);
        (Line { offset, drift }, room)
    }

    /// The points of either side that leave the least room for this drift.
    fn binding(&self, drift: f64) -> (usize, usize) {
        let of = |points: &[(f64, f64)], sign: f64| {
            let value = |point: &(f64, f64)| sign * (point.1 - drift * point.0);
            let places = points.iter().enumerate();
            places.min_by(|(_, one), (_, other)| value(one).total_cmp(&value(other))).map_or(0, |(place, _)| place)
        };
        (of(&self.above, 1.0), of(&self.below, -1.0))
    }
}
