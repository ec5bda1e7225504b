//! The timeline by keys: blocks are selected, time is panned and zoomed.

use leptos::prelude::*;
use web_sys::KeyboardEvent;

use super::ZOOM_STEP;
use super::details::with_ranks;
use crate::draw::layout::Layout;
use crate::draw::selection::{Block, Pointed, Step};
use crate::draw::view::{Extent, View};
use crate::page::state::Planner;

/// How much one press of a key pans, of the width.
const PAN_STEP: f64 = 0.15;

/// Selects a block, goes from the one selected to another, or ends that. Whether the key was for that.
pub(super) fn select_by_key(
    planner: Planner,
    layout: &Layout,
    scroll: RwSignal<f64>,
    selected: RwSignal<Option<Pointed>>,
    event: &KeyboardEvent,
) -> bool {
    if event.ctrl_key() || event.meta_key() || event.alt_key() {
        return false;
    }
    let extent = planner.extent();
    let view = planner.view.get_untracked();
    let step = match event.key().as_str() {
        "ArrowLeft" => Some(Step::Earlier),
        "ArrowRight" => Some(Step::Later),
        "ArrowUp" => Some(Step::Up),
        "ArrowDown" => Some(Step::Down),
        "Home" => Some(Step::First),
        "End" => Some(Step::Last),
        _ => None,
    };
    let to = untrack(|| {
        with_ranks(planner, |ranks| match (selected.get(), step, event.key().as_str()) {
            (Some(Pointed::Block(block)), Some(step), _) => Some(ranks.stepped(block, step)),
            (None, _, "Enter" | " ") => {
                let panel = if planner.is_alone() { layout.below.unwrap_or(layout.planned) } else { layout.planned };
                ranks.nearest(panel.rows.visible().start, view.time_at(extent.width_px / 2.0))
            }
            _ => None,
        })
    });
    let Some(block) = to else {
        let ends = event.key() == "Escape" && selected.get_untracked().is_some();
        if ends {
            selected.set(None);
        }
        return ends;
    };
    select(planner, layout, scroll, block);
    true
}

/// Selects a block and brings it into sight.
pub(super) fn select(planner: Planner, layout: &Layout, scroll: RwSignal<f64>, block: Block) {
    planner.selected.set(Some(Pointed::Block(block)));
    if let Some((from_ns, to_ns)) = untrack(|| with_ranks(planner, |ranks| ranks.times(block))) {
        let extent = planner.extent();
        planner.view.update(|view| *view = view.showing(from_ns, to_ns, extent));
    }
    if let Some(panel) = if block.below { layout.below } else { Some(layout.planned) } {
        scroll.set(layout.scroll_showing(&panel, block.rank));
    }
}

pub(super) fn view_by_key(planner: Planner, layout: &Layout, scroll: RwSignal<f64>, event: &KeyboardEvent) {
    if event.ctrl_key() || event.meta_key() || event.alt_key() {
        return;
    }
    let extent = planner.extent();
    let middle = extent.width_px / 2.0;
    let pan = extent.width_px * PAN_STEP;
    let change = |change: &dyn Fn(View) -> View| planner.view.update(|view| *view = change(*view));
    // As in Perfetto and chrome://tracing: W and S zoom, A and D pan, F shows what is selected, or all.
    match event.key().to_ascii_lowercase().as_str() {
        "w" => change(&|view| view.zoomed(ZOOM_STEP, middle, extent)),
        "s" => change(&|view| view.zoomed(1.0 / ZOOM_STEP, middle, extent)),
        "a" => change(&|view| view.panned(-pan, extent)),
        "d" => change(&|view| view.panned(pan, extent)),
        "f" => change(&|_| selected_times(planner).map_or(extent.fit(), |(from, to)| around(from, to, extent))),
        "p" => planner.play_or_pause(),
        "." => planner.step_playback(true),
        "," => planner.step_playback(false),
        ">" => planner.change_playback(|playback| playback.faster(true)),
        "<" => planner.change_playback(|playback| playback.faster(false)),
        _ => return view_by_arrow(layout, scroll, event, &change, extent),
    }
    event.prevent_default();
}

/// When the selection begins and ends.
fn selected_times(planner: Planner) -> Option<(f64, f64)> {
    match planner.selected.get_untracked()? {
        Pointed::Block(block) => untrack(|| with_ranks(planner, |ranks| ranks.times(block))),
        Pointed::Range { from_ns, to_ns } => Some((from_ns as f64, to_ns as f64)),
        Pointed::Memory { .. } | Pointed::Carried { .. } | Pointed::Mark { .. } | Pointed::Instant { .. } => None,
    }
}

/// The view of these times, with as much room on each side.
fn around(from_ns: f64, to_ns: f64, extent: Extent) -> View {
    let room_ns = to_ns - from_ns;
    View::around(from_ns - room_ns, to_ns + room_ns, extent)
}

/// Puts in place of the view what becomes of it.
type Change<'c> = dyn Fn(&dyn Fn(View) -> View) + 'c;

fn view_by_arrow(layout: &Layout, scroll: RwSignal<f64>, event: &KeyboardEvent, change: &Change<'_>, extent: Extent) {
    let middle = extent.width_px / 2.0;
    let pan = extent.width_px * PAN_STEP;
    let rows_by = |by: f64| {
        let range = layout.scroll_range_px;
        scroll.update(|scroll| *scroll = (*scroll + by).clamp(0.0, range));
    };
    let page_px = layout.planned.rows.height_px.max(layout.below.map_or(0.0, |panel| panel.rows.height_px));
    match event.key().as_str() {
        "ArrowLeft" => change(&|view| view.panned(-pan, extent)),
        "ArrowRight" => change(&|view| view.panned(pan, extent)),
        "ArrowUp" | "+" | "=" => change(&|view| view.zoomed(ZOOM_STEP, middle, extent)),
        "ArrowDown" | "-" => change(&|view| view.zoomed(1.0 / ZOOM_STEP, middle, extent)),
        "Home" | "0" => change(&|_| extent.fit()),
        "End" => change(&|view| view.panned(f64::MAX, extent)),
        "PageDown" => rows_by(page_px),
        "PageUp" => rows_by(-page_px),
        _ => return,
    }
    event.prevent_default();
}
