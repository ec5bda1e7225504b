//! What stands out on the picture: the block under the pointer with what it waits for, and the critical path of a run.

use super::canvas::Frame;
use super::overlay::Brush;
use crate::draw::layout::{Panel, RULER_PX};
use crate::draw::selection::{Block, Pointed};
use crate::draw::view::View;

/// Transfers of a critical path that are drawn: more are no lines that could be told apart.
const MOST_TRANSFERS: usize = 1500;

impl Brush<'_> {
    /// The P2P transfers on the critical path of the measured step.
    pub(super) fn measured_path(&self, frame: &Frame) {
        let (Some(path), Some(panel), Some((_, scale))) = (&frame.path, &self.layout.below, &frame.below) else {
            return;
        };
        let view = View { start_ns: frame.view.start_ns / scale, ns_per_px: frame.view.ns_per_px / scale };
        let (from_ns, to_ns) = (view.start_ns, view.time_at(self.layout.width_px));
        let transfers = path.windows(2).filter_map(|pair| {
            let [one, other] = pair else { return None };
            let is_seen = other.start_ns as f64 >= from_ns && one.end_ns as f64 <= to_ns;
            (one.row != other.row && is_seen).then_some((one, other))
        });
        for (one, other) in transfers.take(MOST_TRANSFERS) {
            self.curve(panel, view, (one.row, one.end_ns), (other.row, other.start_ns));
        }
    }

    /// The op under the pointer, its way through the ranks, and the time as a line.
    pub(super) fn pointed(&self, frame: &Frame, pointed: Option<Pointed>) {
        match pointed {
            Some(Pointed::Block(Block { below: false, rank, index, gap: true })) => {
                let Some(wait) = frame.scene.wait(rank, index) else { return };
                wait.needs.iter().for_each(|need| self.arrow(frame, need.at, (rank, index)));
                self.outline(&self.layout.planned, frame.view, rank, wait.from_ns, wait.to_ns);
            }
            Some(Pointed::Block(Block { below: false, rank, index, .. })) => {
                let scene = &frame.scene;
                let Some(span) = scene.tracks.get(rank).and_then(|track| track.spans().get(index)) else { return };
                for [from, to] in scene.dependencies(span.op) {
                    self.arrow(frame, from, to);
                }
                self.outline(&self.layout.planned, frame.view, rank, span.start_ns, span.end_ns);
            }
            Some(Pointed::Block(Block { below: true, rank, index, gap })) => {
                let (Some(panel), Some((below, scale))) = (&self.layout.below, &frame.below) else { return };
                let Some(track) = below.tracks().get(rank) else { return };
                let view = View { start_ns: frame.view.start_ns / scale, ns_per_px: frame.view.ns_per_px / scale };
                if let (true, Some((from_ns, to_ns))) = (gap, track.gap_before(index, below.end_ns())) {
                    return self.outline(panel, view, rank, from_ns, to_ns);
                }
                let Some(span) = track.spans().get(index) else { return };
                self.outline(panel, view, rank, span.start_ns, span.end_ns);
                // The same op in the plan, to compare the two.
                if let Some((rank, same)) = frame.plan().and_then(|plan| plan.span_of(span.op)) {
                    self.outline(&self.layout.planned, frame.view, rank, same.start_ns, same.end_ns);
                }
            }
            Some(Pointed::Mark { rank, index }) => {
                let (Some(panel), Some((below, scale))) = (&self.layout.below, &frame.below) else { return };
                let Some(mark) = below.marks().get(rank).and_then(|marks| marks.get(index)) else { return };
                let view = View { start_ns: frame.view.start_ns / scale, ns_per_px: frame.view.ns_per_px / scale };
                self.outline(panel, view, rank, mark.start_ns, mark.end_ns);
            }
            Some(
                Pointed::Memory { time_ns, .. } | Pointed::Carried { time_ns, .. } | Pointed::Instant { time_ns },
            ) => {
                let x = (self.layout.left_px + frame.view.x_of(time_ns as f64)).round() + 0.5;
                self.context.set_stroke_style_str(&self.palette.text.css());
                self.context.set_line_width(1.0);
                self.context.begin_path();
                self.context.move_to(x, RULER_PX);
                self.context.line_to(x, self.layout.height_px);
                self.context.stroke();
            }
            Some(Pointed::Range { from_ns, to_ns }) => self.band(frame, from_ns, to_ns),
            None => {}
        }
    }

    /// A range of time over all panels.
    fn band(&self, frame: &Frame, from_ns: u64, to_ns: u64) {
        let x = |time_ns: u64| self.layout.left_px + frame.view.x_of(time_ns as f64).clamp(0.0, self.layout.width_px);
        let (from, to) = (x(from_ns), x(to_ns));
        let high = self.layout.height_px - RULER_PX;
        self.context.set_fill_style_str(&format!("{}33", self.palette.text.css()));
        self.context.fill_rect(from, RULER_PX, to - from, high);
        self.context.set_line_width(1.0);
        self.context.set_stroke_style_str(&self.palette.text.css());
        self.context.stroke_rect(from.round() + 0.5, RULER_PX + 0.5, (to - from).round(), high - 1.0);
    }

    fn outline(&self, panel: &Panel, view: View, rank: usize, start_ns: u64, end_ns: u64) {
        let (top, bottom) = panel.rows.span_of(rank);
        let low = (panel.top_px + top).max(panel.top_px);
        let high = (panel.top_px + bottom).min(panel.top_px + panel.rows.height_px);
        let right = self.layout.left_px + self.layout.width_px;
        let x = |time: u64| (self.layout.left_px + view.x_of(time as f64)).clamp(self.layout.left_px, right);
        let (from, to) = (x(start_ns), x(end_ns));
        if high <= low {
            return;
        }
        self.context.set_line_width(2.0);
        self.context.set_stroke_style_str(&self.palette.text.css());
        self.context.stroke_rect(from - 1.0, low - 1.0, (to - from).max(2.0) + 1.0, high - low + 2.0);
    }

    /// From the end of one op to the start of the one that waits for it.
    fn arrow(&self, frame: &Frame, from: (usize, usize), to: (usize, usize)) {
        let span = |(rank, index): (usize, usize)| frame.scene.tracks.get(rank)?.spans().get(index).copied();
        let (Some(earlier), Some(later)) = (span(from), span(to)) else { return };
        self.curve(&self.layout.planned, frame.view, (from.0, earlier.end_ns), (to.0, later.start_ns));
    }

    /// From a rank at a time to another one at a later time.
    fn curve(&self, panel: &Panel, view: View, from: (usize, u64), to: (usize, u64)) {
        let y = |rank: usize| {
            let (top, bottom) = panel.ops_of(rank);
            panel.top_px + ((top + bottom) / 2.0).clamp(0.0, panel.rows.height_px)
        };
        let right = self.layout.left_px + self.layout.width_px;
        let x = |time: u64| (self.layout.left_px + view.x_of(time as f64)).clamp(self.layout.left_px, right);
        let (x0, y0, x1, y1) = (x(from.1), y(from.0), x(to.1), y(to.0));
        let middle = (x0 + x1) / 2.0;
        let context = self.context;
        context.set_stroke_style_str(&self.palette.text.css());
        context.set_line_width(1.6);
        context.begin_path();
        context.move_to(x0, y0);
        context.bezier_curve_to(middle, y0, middle, y1, x1, y1);
        context.stroke();
        context.set_fill_style_str(&self.palette.text.css());
        context.begin_path();
        let _ = context.arc(x1, y1, 3.0, 0.0, core::f64::consts::TAU);
        context.fill();
    }
}
