//! The timeline by pointer: drag, tap, double click, wheel.

use leptos::prelude::*;
use web_sys::{PointerEvent, WheelEvent};

use super::canvas::Screen;
use super::details::point_at;
use crate::draw::layout::Layout;
use crate::draw::selection::Pointed;
use crate::draw::view::View;
use crate::page::state::Planner;

/// A pointer that moves no farther than this between down and up has tapped.
const TAP_PX: f64 = 4.0;

/// A drag under way: where it began, and the view and scroll then.
#[derive(Clone, Copy)]
pub(super) struct Drag {
    /// The pointer; another one that comes down beside it pinches.
    pub(super) id: i32,
    /// Where a second finger is.
    pub(super) second: Option<(i32, f64)>,
    /// Where the first one is now.
    pub(super) now_x: f64,
    /// Whether it selects a range of time and does not pan.
    pub(super) selects: bool,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) view: View,
    pub(super) scroll: f64,
}

impl Screen {
    pub(super) fn pointer_down(self, event: &PointerEvent) {
        if event.button() != 0 {
            return;
        }
        if let Some(mut drag) = self.drag.get_value() {
            // A second finger.
            drag.second = Some((event.pointer_id(), f64::from(event.client_x())));
            return self.drag.set_value(Some(drag));
        }
        let start = Drag {
            id: event.pointer_id(),
            second: None,
            now_x: f64::from(event.client_x()),
            selects: event.shift_key(),
            x: f64::from(event.client_x()),
            y: f64::from(event.client_y()),
            view: self.planner.view.get_untracked(),
            scroll: self.scroll.get_untracked(),
        };
        self.drag.set_value(Some(start));
        if let Some(canvas) = self.text_canvas.get_untracked() {
            let _ = canvas.set_pointer_capture(event.pointer_id());
        }
    }

    pub(super) fn pointer_moved(self, event: &PointerEvent) {
        let at = (f64::from(event.offset_x()), f64::from(event.offset_y()));
        if let Some(start) = self.drag.get_value() {
            if start.second.is_some() {
                return self.pinch(start, event);
            }
            if start.selects {
                return self.select_range(start, event);
            }
            let extent = self.planner.extent();
            self.planner.view.set(start.view.panned(start.x - f64::from(event.client_x()), extent));
            let range = self.layout.with_untracked(|layout| layout.scroll_range_px);
            let to = start.scroll + start.y - f64::from(event.client_y());
            self.scroll.set(to.clamp(0.0, range));
        }
        self.pointer.set(Some(at));
    }

    /// Two fingers: what is between them stays between them.
    fn pinch(self, mut drag: Drag, event: &PointerEvent) {
        let Some((second, second_x)) = drag.second else { return };
        let before = (drag.now_x, second_x);
        let x = f64::from(event.client_x());
        let after = match event.pointer_id() {
            id if id == drag.id => (x, second_x),
            id if id == second => (drag.now_x, x),
            _ => return,
        };
        (drag.now_x, drag.second) = (after.0, Some((second, after.1)));
        self.drag.set_value(Some(drag));
        let apart = |(one, other): (f64, f64)| (one - other).abs().max(8.0);
        let middle = |(one, other): (f64, f64)| (one + other) / 2.0;
        let Some(canvas) = self.text_canvas.get_untracked() else { return };
        let left = canvas.get_bounding_client_rect().left() + self.layout.with_untracked(|layout| layout.left_px);
        let extent = self.planner.extent();
        self.planner.view.update(|view| {
            let moved = view.panned(middle(before) - middle(after), extent);
            *view = moved.zoomed(apart(after) / apart(before), middle(after) - left, extent);
        });
    }

    /// With Shift, a drag selects a range of time, within what the plan takes.
    fn select_range(self, start: Drag, event: &PointerEvent) {
        let Some(canvas) = self.text_canvas.get_untracked() else { return };
        let left = canvas.get_bounding_client_rect().left() + self.layout.with_untracked(|layout| layout.left_px);
        let planned = untrack(|| self.planner.planned());
        let end_ns = planned.map_or_else(|| self.planner.extent().whole_ns as u64, |scene| scene.end_ns());
        let time = |x: f64| (self.planner.view.get_untracked().time_at(x - left).max(0.0) as u64).min(end_ns);
        let (one, other) = (time(start.x), time(f64::from(event.client_x())));
        self.pointer.set(None);
        self.selected
            .set((one != other).then_some(Pointed::Range { from_ns: one.min(other), to_ns: one.max(other) }));
    }

    /// A pointer that has hardly moved has tapped: on the bar of the ranks, or on a block, which is then selected or no more.
    pub(super) fn pointer_up(self, event: &PointerEvent) {
        let Some(start) = self.drag.try_update_value(Option::take).flatten() else { return };
        let moved = (f64::from(event.client_x()) - start.x).abs().max((f64::from(event.client_y()) - start.y).abs());
        if moved > TAP_PX || start.selects || start.second.is_some() {
            return;
        }
        let (x, y) = (f64::from(event.offset_x()), f64::from(event.offset_y()));
        if let Some(to) = self.layout.with_untracked(|layout| layout.scroll_at(x, y)) {
            return self.scroll.set(to);
        }
        let hit = untrack(|| point_at(self.planner, &self.layout.get(), x, y));
        self.selected.update(|selected| *selected = hit.filter(|hit| *selected != Some(*hit)));
    }

    pub(super) fn double_clicked(self, event: &leptos::ev::MouseEvent) {
        let x = f64::from(event.offset_x()) - self.layout.with_untracked(|layout| layout.left_px);
        self.planner.view.update(|view| *view = view.zoomed(2.0, x, self.planner.extent()));
    }
}

pub(super) fn wheel(planner: Planner, layout: &Layout, scroll: RwSignal<f64>, event: &WheelEvent) {
    if !event.cancelable() {
        return; // The page is being scrolled already, and goes on.
    }
    // Lines and pages as pixels.
    let unit = [1.0, 16.0, 400.0].get(event.delta_mode() as usize).copied().unwrap_or(1.0);
    let (dx, dy) = (event.delta_x() * unit, event.delta_y() * unit);
    let extent = planner.extent();
    if event.ctrl_key() || event.meta_key() {
        let x = f64::from(event.offset_x()) - layout.left_px;
        let factor = (-dy / 240.0).clamp(-1.0, 1.0).exp2();
        planner.view.update(|view| *view = view.zoomed(factor, x, extent));
    } else if event.shift_key() || dx.abs() > dy.abs() {
        let by = if dx == 0.0 { dy } else { dx };
        planner.view.update(|view| *view = view.panned(by, extent));
    } else if layout.scroll_range_px > 0.0 {
        let range = layout.scroll_range_px;
        let to = (scroll.get_untracked() + dy).clamp(0.0, range);
        if to == scroll.get_untracked() {
            return; // At the end: the page may scroll on.
        }
        scroll.set(to);
    } else {
        return;
    }
    event.prevent_default();
}
