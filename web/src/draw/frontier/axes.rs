//! The axes of the chart: bytes and values to pixels, and ticks.

use core::fmt::Write;

use super::{Chart, Marks, Measure};
use crate::draw::ruler::round_step;
use crate::protocol::ChartPoint;
use crate::text::trimmed;

/// Height of the drawing in CSS pixels.
pub const HEIGHT: f64 = 168.0;

pub(super) const LEFT: f64 = 62.0;

pub(super) const RIGHT: f64 = 14.0;

pub(super) const TOP: f64 = 10.0;

pub(super) const BOTTOM: f64 = 22.0;

/// The axes of a chart of some width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plot {
    pub(super) width_px: f64,
    pub(super) measure: Measure,
    /// Left and right end.
    bytes: (f64, f64),
    /// Lower and upper end.
    values: (f64, f64),
    /// Whether equal ratios of values are equally far apart: of times, which near the least memory are a multiple of others.
    by_ratio: bool,
}

impl Plot {
    /// A chart that shows the whole curve, the plan, and the limit if it is near. `None` without a curve.
    pub fn new(chart: &Chart, marks: &Marks, measure: Measure, width_px: f64) -> Option<Plot> {
        let points = || chart.curve.iter().chain(&marks.plan).chain(&marks.published);
        let held = points().map(|point| point.bytes).chain(chart.least_bytes);
        let (least, most) = (held.clone().min()? as f64, held.max()? as f64);
        let span = (most - least).max(most * 0.02).max(1.0);
        let limit = marks.limit_bytes.map(|limit| limit as f64);
        let near = limit.filter(|limit| (least - 0.3 * span..=most + 0.8 * span).contains(limit));
        let (left, right) = near.map_or((least, most), |limit| (least.min(limit), most.max(limit)));
        let values = || points().map(|point| measure.of(point)).filter(|value| value.is_finite());
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        if low > high {
            return None;
        }
        // A small bubble is near none, so its scale starts there; a time is never near none.
        let by_ratio = measure == Measure::Time && low > 0.0;
        let values = if by_ratio {
            let ratio = (high / low).max(1.01);
            (low / ratio.powf(0.1), low * ratio.powf(1.06))
        } else {
            let low = if measure == Measure::Bubble { 0.0 } else { low - (high - low) * 0.1 };
            let room = (high - low).max(high.abs() * 0.01).max(1e-6);
            (low, high.max(low + room) + room * 0.06)
        };
        Some(Plot {
            width_px: width_px.max(LEFT + RIGHT + 40.0),
            measure,
            bytes: (left - 0.04 * span, right.max(left + span) + 0.06 * span),
            values,
            by_ratio,
        })
    }

    /// Canvas x of an amount of memory.
    pub fn x_of(&self, bytes: f64) -> f64 {
        LEFT + (bytes - self.bytes.0) / (self.bytes.1 - self.bytes.0) * (self.width_px - LEFT - RIGHT)
    }

    /// The memory at canvas x.
    pub fn bytes_at(&self, x_px: f64) -> f64 {
        self.bytes.0 + (x_px - LEFT) / (self.width_px - LEFT - RIGHT) * (self.bytes.1 - self.bytes.0)
    }

    pub(super) fn y_of(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let share = if self.by_ratio { (value / low).ln() / (high / low).ln() } else { (value - low) / (high - low) };
        HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - BOTTOM - TOP)
    }

    /// The curve: level until more memory makes a better one.
    pub fn path(&self, curve: &[ChartPoint]) -> String {
        let mut path = String::new();
        for (index, point) in curve.iter().enumerate() {
            let (x, y) = (self.x_of(point.bytes as f64), self.y_of(self.measure.of(point)));
            let _ = if index == 0 { write!(path, "M{x:.1} {y:.1}") } else { write!(path, "H{x:.1}V{y:.1}") };
        }
        if !curve.is_empty() {
            let _ = write!(path, "H{:.1}", self.width_px - RIGHT);
        }
        path
    }

    /// Labelled ticks of the memory axis.
    pub fn byte_ticks(&self) -> Vec<(f64, String)> {
        let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let (unit, name) = units.into_iter().find(|(unit, _)| self.bytes.1 >= *unit as f64).unwrap_or((1, "B"));
        let unit = unit as f64;
        let count = ((self.width_px - LEFT - RIGHT) / 84.0).max(2.0);
        let ticks = scale((self.bytes.0.max(0.0) / unit, self.bytes.1 / unit), count);
        ticks.into_iter().map(|(value, label)| (self.x_of(value * unit), format!("{label} {name}"))).collect()
    }

    /// Labelled ticks of the vertical axis.
    pub fn value_ticks(&self) -> Vec<(f64, String)> {
        let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
        let (unit, name) = match self.measure {
            Measure::Bubble => (0.01, "%"),
            Measure::Time => units.into_iter().find(|(unit, _)| self.values.1 >= *unit).unwrap_or((1.0, "ns")),
        };
        let ends = (self.values.0 / unit, self.values.1 / unit);
        let is_wide = self.by_ratio && ends.1 / ends.0 > 4.0;
        let ticks = if is_wide { scale_by_ratio(ends) } else { scale(ends, 6.0) };
        ticks.into_iter().map(|(value, label)| (self.y_of(value * unit), format!("{label} {name}"))).collect()
    }
}

/// 1, 2 and 5 times powers of ten between two ends that are far apart.
pub(super) fn scale_by_ratio((low, high): (f64, f64)) -> Vec<(f64, String)> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let values = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|first| (first * 10f64.powi(power), power)));
    let mut within: Vec<(f64, i32)> = values.filter(|(value, _)| (low..=high).contains(value)).collect();
    if within.len() > 8 {
        within.retain(|(value, power)| *value < 1.5 * 10f64.powi(*power));
    }
    within.into_iter().map(|(value, power)| (value, format!("{value:.*}", (-power).clamp(0, 9) as usize))).collect()
}

/// About `count` round values between two ends, with as many decimals as they need.
fn scale((low, high): (f64, f64), count: f64) -> Vec<(f64, String)> {
    let Some(step) = round_step((high - low) / count) else { return Vec::new() };
    let decimals = (-step.log10()).ceil().clamp(0.0, 9.0) as usize;
    let first = (low / step).ceil();
    (0..100)
        .map(|index| (first + f64::from(index)) * step)
        .take_while(|value| *value <= high)
        .map(|value| (value, trimmed(value, decimals)))
        .collect()
}
