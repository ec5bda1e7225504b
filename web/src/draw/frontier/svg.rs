//! The chart as SVG, with the names of schedules if they have room.

use core::fmt::Write;

use super::axes::{BOTTOM, HEIGHT, LEFT, Plot, RIGHT, TOP};
use super::{Chart, Marks, describe};
use crate::protocol::ChartPoint;
use crate::text;

/// A letter of a name is about this wide.
pub(super) const LETTER_PX: f64 = 6.4;
/// The same of the limit's name, which is bold.
const LIMIT_LETTER_PX: f64 = 6.8;

impl Plot {
    /// The content of an `svg` element of its width and [`HEIGHT`]. Colours come from the page.
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
        let label = marks.limit_bytes.map(|limit| self.draw_limit(&mut svg, limit, &chart.curve, marks));
        self.draw_published(&mut svg, chart, marks, label);
        for (index, point) in chart.curve.iter().enumerate() {
            let class = if marks.picked == Some(index) { "picked" } else { "point" };
            self.draw_point(&mut svg, class, point);
        }
        if let Some(plan) = &marks.plan {
            self.draw_point(&mut svg, "plan", plan);
        }
        svg
    }

    /// The limit and its name, at the first height where the name covers neither the curve nor a point. Returns what the name
    /// covers.
    fn draw_limit(&self, svg: &mut String, limit: u64, curve: &[ChartPoint], marks: &Marks) -> Area {
        let (bottom, right) = (HEIGHT - BOTTOM, self.width_px - RIGHT);
        let x = self.x_of(limit as f64);
        let mut label = format!("limit {}", text::bytes(limit));
        let (at, ends) = if x > right {
            label += " →";
            (right, true)
        } else {
            let x = x.max(LEFT);
            let _ = write!(svg, "<path class=\"limit\" d=\"M{x:.1} {TOP}V{bottom}\"/>");
            if x > self.width_px / 2.0 { (x - 5.0, true) } else { (x + 5.0, false) }
        };
        let width = LIMIT_LETTER_PX * label.chars().count() as f64;
        let (left, right) = if ends { (at - width, at) } else { (at, at + width) };
        let (baseline, area) = self.free_place(left, right, curve, marks);
        let anchor = if ends { "end" } else { "start" };
        let _ = write!(
            svg,
            "<text class=\"limit\" x=\"{at:.1}\" y=\"{baseline:.1}\" text-anchor=\"{anchor}\">{label}</text>"
        );
        area
    }

    /// The baseline, from the top, at which a label from `left` to `right` covers nothing; the top where there is no room.
    fn free_place(&self, left: f64, right: f64, curve: &[ChartPoint], marks: &Marks) -> (f64, Area) {
        const LINE_PX: f64 = 12.0;
        let around = |point: &ChartPoint| {
            let (x, y) = (self.x_of(point.bytes as f64), self.y_of(self.measure.of(point)));
            Area { left: x - 5.0, right: x + 5.0, top: y - 5.0, bottom: y + 5.0 }
        };
        let points = marks.published.iter().chain(&marks.plan).map(around);
        let covered: Vec<Area> = self.lines(curve, None).into_iter().chain(points).collect();
        let place = |row: u32| {
            let baseline = TOP + 10.0 + LINE_PX * f64::from(row);
            (baseline, Area { left, right, top: baseline - 10.0, bottom: baseline + 2.0 })
        };
        let rows = ((HEIGHT - BOTTOM - TOP - 10.0) / LINE_PX) as u32;
        let is_free = |(_, area): &(f64, Area)| covered.iter().all(|other| !other.meets(area));
        (0..rows).map(place).find(is_free).unwrap_or_else(|| place(0))
    }

    /// Published schedules with their names if they have room, the fastest first. A name does not cover other names and
    /// points, and avoids lines if possible.
    fn draw_published(&self, svg: &mut String, chart: &Chart, marks: &Marks, label: Option<Area>) {
        let mut by_time: Vec<&ChartPoint> = marks.published.iter().collect();
        by_time.sort_by_key(|point| (point.judged_ns, point.bytes));
        let at = |point: &ChartPoint| (self.x_of(point.bytes as f64), self.y_of(self.measure.of(point)));
        let around = |point: &ChartPoint| {
            let (x, y) = at(point);
            Area { left: x - 4.0, right: x + 4.0, top: y - 4.0, bottom: y + 4.0 }
        };
        let mut taken: Vec<Area> = marks.published.iter().chain(&marks.plan).map(around).chain(label).collect();
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
    pub(super) fn lines(&self, curve: &[ChartPoint], limit: Option<u64>) -> Vec<Area> {
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
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Area {
    pub(super) fn meets(&self, other: &Area) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }
}
