//! Time against memory as a step chart.

use core::fmt::Write;

use pipeplan_core::problem::Objective;
use pipeplan_core::spec::{Spec, Work};

use super::ruler::round_step;
use crate::message::{ChartNews, ChartPoint};
use crate::text::{self, trimmed};

/// Height of the drawing in CSS pixels.
pub const HEIGHT: f64 = 168.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 22.0;
/// A letter of a name is about this wide.
const LETTER_PX: f64 = 6.4;

/// Puts a point into a curve of rising bytes and of falling costs as the best is chosen by them. False where the curve has
/// as good a one already; what is no better than the point goes.
pub fn insert(curve: &mut Vec<ChartPoint>, point: ChartPoint) -> bool {
    let after = curve.partition_point(|known| known.bytes <= point.bytes);
    if after.checked_sub(1).and_then(|last| curve.get(last)).is_some_and(|last| last.judged_ns <= point.judged_ns) {
        return false;
    }
    let from = curve.partition_point(|known| known.bytes < point.bytes);
    let beaten = curve.iter().skip(from).take_while(|known| known.judged_ns >= point.judged_ns).count();
    curve.splice(from..from + beaten, [point]);
    true
}

/// What the page knows of time against memory.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Chart {
    /// Rising bytes; falling what the best is chosen by.
    pub curve: Vec<ChartPoint>,
    /// Below this no schedule exists.
    pub least_bytes: Option<u64>,
    /// Whether all of it is known.
    pub finished: bool,
    /// Whether it is of the spec before the one in the form.
    pub stale: bool,
}

impl Chart {
    /// Takes what is new. The points of another spec stay until the first of this one come: nothing flickers.
    pub fn hear(&mut self, news: ChartNews) {
        if news.started {
            self.stale = true;
        }
        if self.stale && (!news.points.is_empty() || news.least_bytes.is_some() || news.finished) {
            *self = Chart::default();
        }
        self.least_bytes = news.least_bytes.or(self.least_bytes);
        for point in news.points {
            insert(&mut self.curve, point);
        }
        self.finished |= news.finished;
    }

    /// What memory buys: the best of all that hold at most `bytes`; the one that holds least where none does.
    pub fn within(&self, bytes: f64) -> Option<usize> {
        let fitting = self.curve.partition_point(|point| point.bytes as f64 <= bytes);
        (!self.curve.is_empty()).then(|| fitting.saturating_sub(1))
    }
}

/// What is drawn against memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Measure {
    /// What points are chosen by: it falls with more memory.
    #[default]
    Time,
    /// Idle share of the same points: it need not fall, where the end of the step, waits or jitter decide.
    Bubble,
}

impl Measure {
    fn of(self, point: &ChartPoint) -> f64 {
        match self {
            Measure::Time if point.hangs() => f64::INFINITY,
            Measure::Time => point.judged_ns as f64,
            Measure::Bubble => point.bubble_ratio,
        }
    }
}

/// What stands out in a drawing.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Marks {
    /// The limit in force.
    pub limit_bytes: Option<u64>,
    /// The plan on screen.
    pub plan: Option<ChartPoint>,
    /// The point that is looked at.
    pub picked: Option<usize>,
    /// What published schedules come to, each by its name.
    pub published: Vec<ChartPoint>,
    /// What points are chosen by.
    pub judged: Judged,
}

/// What points are chosen by, as the page calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Judged {
    /// `step`, or what there is of one.
    pub name: &'static str,
    /// Whether ops differ: then one in twenty takes longer than that.
    pub jitters: bool,
}

impl Judged {
    /// What the best of `spec` is chosen by.
    pub fn of(spec: &Spec) -> Judged {
        let name = match (&spec.work, spec.objective()) {
            (Work::Model(_), Objective::Makespan) => "step",
            (Work::Model(_), Objective::LongestSpan) => "longest span with its end",
            (Work::Typed(_), Objective::Makespan) => "makespan",
            (Work::Typed(_), Objective::LongestSpan) => "longest span",
        };
        Judged { name, jitters: spec.jitter_permille > 0 }
    }

    /// What the best is best by.
    pub fn least(&self) -> String {
        let late = if self.jitters { ", 1 in 20" } else { "" };
        format!("least {}{late}", self.name)
    }
}

/// Where bytes and values are on a drawing of some width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plot {
    width_px: f64,
    measure: Measure,
    /// Left and right end.
    bytes: (f64, f64),
    /// Lower and upper end.
    values: (f64, f64),
    /// Whether equal ratios of values are equally far apart: of times, which near the least memory are a multiple of others.
    by_ratio: bool,
}

impl Plot {
    /// A drawing that shows the whole curve, the plan, and the limit where it is not far off. `None` without a curve.
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

    fn y_of(&self, value: f64) -> f64 {
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

    /// Labelled places on the axis of memory.
    pub fn byte_ticks(&self) -> Vec<(f64, String)> {
        let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let (unit, name) = units.into_iter().find(|(unit, _)| self.bytes.1 >= *unit as f64).unwrap_or((1, "B"));
        let unit = unit as f64;
        let count = ((self.width_px - LEFT - RIGHT) / 84.0).max(2.0);
        let ticks = scale((self.bytes.0.max(0.0) / unit, self.bytes.1 / unit), count);
        ticks.into_iter().map(|(value, label)| (self.x_of(value * unit), format!("{label} {name}"))).collect()
    }

    /// Labelled places on the axis of what is drawn.
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

    /// The drawing, as what stands within an `svg` element of its width and [`HEIGHT`]. Colours are the page's.
    pub fn svg(&self, chart: &Chart, marks: &Marks) -> String {
        let (bottom, right) = (HEIGHT - BOTTOM, self.width_px - RIGHT);
        let mut svg = String::new();
        if let Some(least) = chart.least_bytes {
            let x = self.x_of(least as f64).clamp(LEFT, right);
            let _ = write!(
                svg,
                "<rect class=\"none\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"/>",
                x - LEFT,
                bottom - TOP
            );
        }
        for (y, label) in self.value_ticks() {
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        for (x, label) in self.byte_ticks() {
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                HEIGHT - 6.0
            );
        }
        let _ = write!(svg, "<path class=\"curve\" d=\"{}\"/>", self.path(&chart.curve));
        if let Some(limit) = marks.limit_bytes {
            self.draw_limit(&mut svg, limit);
        }
        self.draw_published(&mut svg, chart, marks);
        for (index, point) in chart.curve.iter().enumerate() {
            let class = if marks.picked == Some(index) { "picked" } else { "point" };
            self.draw_point(&mut svg, class, point);
        }
        if let Some(plan) = &marks.plan {
            self.draw_point(&mut svg, "plan", plan);
        }
        svg
    }

    fn draw_limit(&self, svg: &mut String, limit: u64) {
        let (bottom, right) = (HEIGHT - BOTTOM, self.width_px - RIGHT);
        let x = self.x_of(limit as f64);
        let label = format!("limit {}", text::bytes(limit));
        if x <= right {
            let x = x.max(LEFT);
            let _ = write!(svg, "<path class=\"limit\" d=\"M{x:.1} {TOP}V{bottom}\"/>");
            let (at, anchor) = if x > self.width_px / 2.0 { (x - 5.0, "end") } else { (x + 5.0, "start") };
            let _ = write!(
                svg,
                "<text class=\"limit\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{label}</text>",
                TOP + 10.0
            );
        } else {
            let _ = write!(
                svg,
                "<text class=\"limit\" x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label} →</text>",
                TOP + 10.0
            );
        }
    }

    /// Published schedules with their names, where the names have room: the fastest come first. A name stays off other
    /// names and all points, and off lines too where it can.
    fn draw_published(&self, svg: &mut String, chart: &Chart, marks: &Marks) {
        let mut by_time: Vec<&ChartPoint> = marks.published.iter().collect();
        by_time.sort_by_key(|point| (point.judged_ns, point.bytes));
        let at = |point: &ChartPoint| (self.x_of(point.bytes as f64), self.y_of(self.measure.of(point)));
        let around = |point: &ChartPoint| {
            let (x, y) = at(point);
            Area { left: x - 4.0, right: x + 4.0, top: y - 4.0, bottom: y + 4.0 }
        };
        let mut taken: Vec<Area> = marks.published.iter().chain(&marks.plan).map(around).collect();
        let lines = self.lines(&chart.curve, marks.limit_bytes);
        for point in by_time {
            let _ = write!(svg, "<g><title>{}</title>", describe(point, &marks.judged));
            self.draw_point(svg, "published", point);
            svg.push_str("</g>");
            let ((x, y), width) = (at(point), point.by.chars().count() as f64 * LETTER_PX);
            let (right, left, middle) = (x + 7.0, x - 7.0 - width, x - width / 2.0);
            let beside = [y - 5.0, y + 13.0, y + 4.0].into_iter().flat_map(|y| [(right, y), (left, y)]);
            let places: Vec<(f64, f64, Area)> = beside
                .chain([(middle, y - 9.0), (middle, y + 16.0)])
                .map(|(left, baseline)| {
                    let (top, bottom) = (baseline - 9.0, baseline + 2.0);
                    (left, baseline, Area { left, right: left + width, top, bottom })
                })
                .filter(|(_, _, area)| self.holds(area) && !taken.iter().any(|other| other.meets(area)))
                .collect();
            let off_lines = places.iter().find(|(_, _, area)| !lines.iter().any(|line| line.meets(area)));
            if let Some((left, baseline, area)) = off_lines.or(places.first()) {
                taken.push(*area);
                let _ =
                    write!(svg, "<text class=\"published\" x=\"{left:.1}\" y=\"{baseline:.1}\">{}</text>", point.by);
            }
        }
    }

    /// Whether `area` lies within the axes.
    fn holds(&self, area: &Area) -> bool {
        area.left >= LEFT && area.right <= self.width_px - RIGHT && area.top >= TOP && area.bottom <= HEIGHT - BOTTOM
    }

    /// The lines of the curve and of the limit.
    fn lines(&self, curve: &[ChartPoint], limit: Option<u64>) -> Vec<Area> {
        let (mut lines, mut from) = (Vec::new(), None::<(f64, f64)>);
        for point in curve {
            let (x, y) = (self.x_of(point.bytes as f64), self.y_of(self.measure.of(point)));
            if let Some((before_x, before_y)) = from {
                lines.push(Area { left: before_x, right: x, top: before_y - 1.0, bottom: before_y + 1.0 });
                lines.push(Area { left: x - 1.0, right: x + 1.0, top: before_y.min(y), bottom: before_y.max(y) });
            }
            from = Some((x, y));
        }
        if let Some((x, y)) = from {
            lines.push(Area { left: x, right: self.width_px, top: y - 1.0, bottom: y + 1.0 });
        }
        if let Some(limit) = limit {
            let x = self.x_of(limit as f64);
            lines.push(Area { left: x - 1.0, right: x + 1.0, top: TOP, bottom: HEIGHT - BOTTOM });
        }
        lines
    }

    fn draw_point(&self, svg: &mut String, class: &str, point: &ChartPoint) {
        let (x, y) = (self.x_of(point.bytes as f64), self.y_of(self.measure.of(point)));
        let radius = match class {
            "point" => 2.0,
            "published" => 3.0,
            _ => 4.5,
        };
        let _ = write!(svg, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>");
    }
}

/// A part of a drawing, in its pixels.
#[derive(Clone, Copy, Debug)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Area {
    fn meets(&self, other: &Area) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }
}

/// 1, 2 and 5 times powers of ten between two ends that are far apart.
fn scale_by_ratio((low, high): (f64, f64)) -> Vec<(f64, String)> {
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

/// A point in a sentence.
pub fn describe(point: &ChartPoint, judged: &Judged) -> String {
    let time = match point.hangs() {
        true => "hangs as its transfers are carried".to_owned(),
        false => format!("{} {}", judged.name, text::duration(point.judged_ns as f64)),
    };
    let late = if judged.jitters { ", 1 in 20 takes more" } else { "" };
    let bubble = text::percent(point.bubble_ratio);
    format!("{}: {time}{late}, bubble {bubble} ({})", text::bytes(point.bytes), point.by)
}

/// How what is said of a point that was chosen begins.
pub const OF_POINT: &str = "The point of the chart";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(bytes: u64, judged_ns: u64) -> ChartPoint {
        // As if there were 100 ns of work.
        let bubble_ratio = 1.0 - 100.0 / judged_ns.max(100) as f64;
        ChartPoint { bytes, judged_ns, bubble_ratio, by: "1F1B".to_owned() }
    }

    fn chart(points: &[(u64, u64)]) -> Chart {
        let mut chart = Chart::default();
        let points = points.iter().map(|(bytes, judged_ns)| point(*bytes, *judged_ns)).collect();
        chart.hear(ChartNews { started: true, least_bytes: Some(8), points, finished: false });
        chart
    }

    #[test]
    fn only_what_more_memory_buys_stays() {
        let chart = chart(&[(30, 150), (10, 200), (20, 200), (20, 170), (40, 150), (25, 140), (10, 180)]);
        let curve: Vec<(u64, u64)> = chart.curve.iter().map(|point| (point.bytes, point.judged_ns)).collect();
        assert_eq!(curve, [(10, 180), (20, 170), (25, 140)]);
        assert_eq!([9.0, 10.0, 24.9, 1e9].map(|bytes| chart.within(bytes)), [Some(0), Some(0), Some(1), Some(2)]);
        assert_eq!(Chart::default().within(1.0), None);
    }

    /// Two copies of the model make a short pipeline and a long end of the step.
    #[test]
    fn what_the_best_would_not_choose_is_no_point_and_more_memory_never_looks_worse() {
        let with_end = |bytes, judged_ns, bubble_ns| ChartPoint { judged_ns, ..point(bytes, bubble_ns) };
        let mut curve = vec![point(10, 200)];
        assert!(!insert(&mut curve, with_end(20, 260, 130)));
        assert!(insert(&mut curve, with_end(5, 260, 130)) && insert(&mut curve, with_end(30, 190, 210)));
        assert_eq!(curve.iter().map(|point| point.bytes).collect::<Vec<_>>(), [5, 10, 30]);
        let chart = Chart { curve, ..Chart::default() };
        let plot = Plot::new(&chart, &Marks::default(), Measure::default(), 400.0).unwrap();
        let heights: Vec<f64> = chart.curve.iter().map(|point| plot.y_of(plot.measure.of(point))).collect();
        assert!(heights.windows(2).all(|pair| pair[0] < pair[1]), "the lower, the better: {heights:?}");
    }

    #[test]
    fn a_point_is_said_by_what_it_is_chosen_by() {
        let said = |point: &ChartPoint, jitters| describe(point, &Judged { name: "step", jitters });
        assert_eq!(said(&point(2048, 200), false), "2 KiB: step 200 ns, bubble 50.0 % (1F1B)");
        assert_eq!(said(&point(2048, 200), true), "2 KiB: step 200 ns, 1 in 20 takes more, bubble 50.0 % (1F1B)");
        // Drawn at the top, beside one that ends.
        let hangs = point(1024, u64::MAX / 2 + 200);
        assert!(said(&hangs, false).contains("hangs"));
        let chart = Chart { curve: vec![hangs, point(2048, 200)], ..Chart::default() };
        let plot = Plot::new(&chart, &Marks::default(), Measure::Time, 400.0).unwrap();
        assert_eq!(plot.y_of(Measure::Time.of(&chart.curve[0])), TOP);
        assert!(plot.value_ticks().iter().all(|(_, label)| label.ends_with(" ns")));
    }

    /// One that takes many times as long leaves room to tell the others apart, and its axis has round values.
    #[test]
    fn times_are_drawn_by_their_ratios() {
        let chart = chart(&[(10, 800), (20, 400), (30, 200), (40, 100)]);
        let plot = Plot::new(&chart, &Marks::default(), Measure::Time, 400.0).unwrap();
        let heights: Vec<f64> = chart.curve.iter().map(|point| plot.y_of(plot.measure.of(point))).collect();
        let steps: Vec<f64> = heights.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.iter().all(|step| (step - steps[0]).abs() < 1e-9 && *step > 20.0), "{steps:?}");
        let labels: Vec<String> = plot.value_ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["100 ns", "200 ns", "500 ns"]);
        let far = scale_by_ratio((0.02, 3e7));
        assert_eq!(far.first().map(|(_, label)| label.as_str()), Some("0.1"));
        assert!(far.len() < 12, "{far:?}");
    }

    #[test]
    fn the_chart_before_stays_until_there_is_another() {
        let mut chart = chart(&[(10, 200)]);
        chart.hear(ChartNews { started: true, ..ChartNews::default() });
        assert!(chart.stale && chart.curve.len() == 1);
        chart.hear(ChartNews { points: vec![point(5, 300), point(6, 250)], ..ChartNews::default() });
        assert!(!chart.stale && chart.curve.len() == 2 && chart.least_bytes.is_none());
        chart.hear(ChartNews { least_bytes: Some(4), finished: true, ..ChartNews::default() });
        assert!(chart.finished && chart.curve.len() == 2 && chart.least_bytes == Some(4));
    }

    #[test]
    fn the_curve_is_level_and_then_falls() {
        let chart = chart(&[(10, 200), (20, 125)]);
        for measure in [Measure::Bubble, Measure::Time] {
            let plot = Plot::new(&chart, &Marks::default(), measure, 400.0).unwrap();
            let [x0, x1] = [10.0, 20.0].map(|bytes| plot.x_of(bytes));
            let path = plot.path(&chart.curve);
            assert!(path.starts_with(&format!("M{x0:.1} ")) && path.contains(&format!("H{x1:.1}V")), "{path}");
            assert!(path.ends_with(&format!("H{:.1}", 400.0 - RIGHT)), "{path}");
            assert!((plot.bytes_at(plot.x_of(17.0)) - 17.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_far_limit_is_named_at_the_edge_and_a_near_one_is_drawn() {
        let chart = chart(&[(1000, 200), (2000, 150)]);
        let drawn = |limit_bytes| {
            let marks = Marks { limit_bytes: Some(limit_bytes), ..Marks::default() };
            Plot::new(&chart, &marks, Measure::Bubble, 500.0).unwrap().svg(&chart, &marks)
        };
        assert!(drawn(2500).contains("<path class=\"limit\""));
        assert!(!drawn(90_000).contains("<path class=\"limit\"") && drawn(90_000).contains("limit 87.89 KiB →"));
    }

    /// Left end, baseline and text of each name in a drawing.
    fn names(svg: &str) -> Vec<(f64, f64, &str)> {
        let name = |part: &'_ str| -> Option<(f64, f64, usize)> {
            let number = |key: &str| part.split_once(key)?.1.split_once('"')?.0.parse().ok();
            Some((number("x=\"")?, number("y=\"")?, part.find('>')?))
        };
        svg.split("<text class=\"published\" ")
            .skip(1)
            .map(|part| {
                let (x, y, end) = name(part).expect("two numbers");
                (x, y, part[end + 1..].split('<').next().unwrap_or_default())
            })
            .collect()
    }

    #[test]
    fn names_stand_off_points_each_other_and_lines_where_there_is_room() {
        let chart = chart(&[(1000, 400), (2000, 200), (3000, 150)]);
        let named = |bytes, judged_ns, by: &str| ChartPoint { by: by.to_owned(), ..point(bytes, judged_ns) };
        // One that would be crossed by the curve to its right, and two beside each other.
        let published =
            vec![named(1900, 210, "ZB-V"), named(2400, 300, "V-Half"), named(2430, 305, "Interleaved ZB")];
        let marks = Marks { published, ..Marks::default() };
        let plot = Plot::new(&chart, &marks, Measure::Bubble, 700.0).unwrap();
        let svg = plot.svg(&chart, &marks);
        let areas: Vec<Area> = names(&svg)
            .into_iter()
            .map(|(left, baseline, text)| {
                let right = left + text.chars().count() as f64 * LETTER_PX;
                Area { left, right, top: baseline - 9.0, bottom: baseline + 2.0 }
            })
            .collect();
        assert_eq!(areas.len(), 3, "{svg}");
        let lines = plot.lines(&chart.curve, None);
        for (index, area) in areas.iter().enumerate() {
            assert!(!areas[..index].iter().chain(&lines).any(|other| other.meets(area)), "{area:?}\n{svg}");
            for point in &marks.published {
                let (x, y) = (plot.x_of(point.bytes as f64), plot.y_of(point.bubble_ratio));
                assert!(!(area.left..area.right).contains(&x) || !(area.top..area.bottom).contains(&y), "{svg}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_curve_is_the_best_of_all_points(points in prop::collection::vec((0u64..60, 0u64..60), 1..40)) {
            let chart = chart(&points);
            for bytes in 0..60 {
                let best = points.iter().filter(|(held, _)| *held <= bytes).map(|(_, cost)| *cost).min();
                if let Some(best) = best {
                    prop_assert_eq!(chart.curve[chart.within(bytes as f64).unwrap()].judged_ns, best);
                }
            }
            prop_assert!(chart.curve.windows(2).all(|pair| pair[0].bytes < pair[1].bytes && pair[0].judged_ns > pair[1].judged_ns));
        }

        #[test]
        fn everything_is_drawn_within_the_drawing(
            points in prop::collection::vec((0u64..1 << 45, 1u64..1 << 50), 1..12),
            limit in prop::option::of(0u64..1 << 46),
            width in 0.0f64..2000.0,
            time in any::<bool>(),
        ) {
            let chart = chart(&points);
            let published = points.iter().map(|(bytes, judged_ns)| point(*bytes, *judged_ns)).collect();
            let plan = Some(point(points[0].0, points[0].1));
            let marks = Marks { limit_bytes: limit, plan, picked: Some(0), published, judged: Judged::default() };
            let measure = if time { Measure::Time } else { Measure::Bubble };
            let plot = Plot::new(&chart, &marks, measure, width).unwrap();
            for point in &chart.curve {
                let (x, y) = (plot.x_of(point.bytes as f64), plot.y_of(measure.of(point)));
                prop_assert!((LEFT..=plot.width_px - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{x} {y}");
            }
            for (x, _) in plot.byte_ticks() {
                prop_assert!((LEFT - 0.1..=plot.width_px - RIGHT + 0.1).contains(&x), "{x}");
            }
            prop_assert!(!plot.value_ticks().is_empty());
            prop_assert!(!plot.svg(&chart, &marks).contains("NaN"));
        }
    }
}
