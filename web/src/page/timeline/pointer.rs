//! The timeline by pointer: drag, tap, double click, wheel.

use leptos::prelude::*;
use web_sys::{PointerEvent, WheelEvent};

use super::canvas::Screen;
use super::details::point_at;
use crate::draw::paint::Layout;
use crate::draw::view::View;
use crate::page::state::Planner;

/// A pointer that moves no farther than this between down and up has tapped.
const TAP_PX: f64 = 4.0;

/// A drag under way: where it began, and the view and scroll then.
#[derive(Clone, Copy)]
pub(super) struct Drag {
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
        let start = Drag {
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
            let extent = self.planner.extent();
            self.planner.view.set(start.view.panned(start.x - f64::from(event.client_x()), extent));
            let range = self.layout.with_untracked(|layout| layout.scroll_range_px);
            let to = start.scroll + start.y - f64::from(event.client_y());
            self.scroll.set(to.clamp(0.0, range));
        }
        self.pointer.set(Some(at));
    }

    /// A pointer that has hardly moved has tapped: on the bar of the ranks, or on a block, which is then selected or no more.
    pub(super) fn pointer_up(self, event: &PointerEvent) {
        let Some(start) = self.drag.try_update_value(Option::take).flatten() else { return };
        let moved = (f64::from(event.client_x()) - start.x).abs().max((f64::from(event.client_y()) - start.y).abs());
        if moved > TAP_PX {
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
