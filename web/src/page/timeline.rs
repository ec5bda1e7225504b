//! The picture: planned ranks, what is compared with them, and memory on one time axis.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use leptos::html;
use leptos::prelude::*;
use wasm_bindgen::prelude::*;
use web_sys::{KeyboardEvent, PointerEvent, ResizeObserver, WheelEvent};

use super::overlay::{self, Pointed};
use super::state::{Planner, once_a_frame};
use super::{browser, legend};
use crate::draw::paint::{Layout, Place};
use crate::draw::raster::Image;
use crate::draw::view::View;
use crate::draw::walk::{Block, Ranks, Step};
use crate::scene::{Below, Scene};
use crate::text;

/// How much one notch of a wheel or one press of a key zooms.
const ZOOM_STEP: f64 = 1.25;
/// How much one press of a key pans, of the width.
const PAN_STEP: f64 = 0.15;

/// All that one frame shows.
pub struct Frame {
    pub scene: Arc<Scene>,
    /// What is compared with the plan, and by how much its times are scaled.
    pub below: Option<(Below, f64)>,
    /// The most bytes that each rank really held; empty without a trace of this plan.
    pub measured_peaks: Vec<u64>,
    pub layout: Layout,
    pub view: View,
    pub dark: bool,
    /// Whether it is to be printed.
    pub paper: bool,
    pub ratio: f64,
}

impl Frame {
    /// The plan that is kept, where that is compared with the one on screen.
    pub fn kept(&self) -> Option<&Scene> {
        match &self.below {
            Some((Below::Kept(kept), _)) => Some(kept),
            _ => None,
        }
    }
}

/// A pointer that moves no farther than this between down and up has tapped.
const TAP_PX: f64 = 4.0;

/// A drag under way: where it began, and the view and scroll then.
#[derive(Clone, Copy)]
struct Drag {
    x: f64,
    y: f64,
    view: View,
    scroll: f64,
}

#[component]
pub fn TimelinePanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let find_layouts = move |_| {
        if !untrack(|| planner.is_tuning()) {
            planner.tune();
        }
        // Where they come, and can be stopped.
        browser::show_mostly(".layouts");
        browser::focus("[data-test='find-layouts']");
    };
    view! {
        <section class="panel timeline" aria-label="Timeline">
            <Toolbar />
            <p class="note idea" data-test="idea">{move || planner.scene.with(|scene| scene.as_ref().map(|scene| scene.idea()))}</p>
            {move || planner.no_plan.get().map(|reason| view! {
                <div class="empty" role="alert" data-test="no-plan"><p>{reason}</p>
                    {move || planner.may_find_layouts().then(|| view! {
                        <button type="button" data-test="find-layouts-here" on:click=find_layouts
                            title="Search other degrees of parallelism, microbatches and recomputation on the same devices">"Find a layout that fits"</button>
                    })}</div>
            })}
            {move || planner.kept_unseen().map(|said| view! { <p class="note" data-test="kept-unseen">{said}</p> })}
            <Canvas />
        </section>
    }
}

#[component]
fn Toolbar() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let zoom = move |factor: f64| {
        let extent = planner.extent();
        planner.view.update(|view| *view = view.zoomed(factor, extent.width_px / 2.0, extent));
    };
    let title = move || {
        planner
            .scene
            .with(|scene| scene.as_ref().map(|scene| crate::text::schedule_title(&scene.schedule)))
            .unwrap_or_default()
    };
    // Why nothing can be kept; none where it can, or where what is kept can be let go.
    let no_keep = move || match (planner.kept.with(Option::is_none), planner.is_faulty(), planner.outdated.get()) {
        (true, true, _) => Some("This plan belongs to the form before its errors: correct the marked fields"),
        (true, _, true) => Some("This plan belongs to the form before the last change: planning is under way"),
        (true, ..) if planner.scene.with(Option::is_none) => Some("There is no plan"),
        _ => None,
    };
    view! {
        <div class="toolbar">
            <h2 data-test="schedule-title">{title}</h2>
            <span class="note" data-test="placement" title=move || planner.scene.with(|scene| scene.as_ref().map(|scene| scene.placement_meaning()))>{move || planner.scene.with(|scene| scene.as_ref().map(|scene| scene.placement()))}</span>
            <legend::Legend />
            <div class="buttons">
                <button type="button" data-test="keep" aria-pressed=move || planner.kept.with(Option::is_some).to_string()
                    prop:disabled=move || no_keep().is_some()
                    title=move || no_keep().unwrap_or("Keep this timeline below the next one, to compare them")
                    on:click=move |_| planner.keep(planner.kept.with_untracked(Option::is_none))>
                    {move || if planner.kept.with(Option::is_some) { "Release" } else { "Keep" }}</button>
                <button type="button" data-test="save-svg" prop:disabled=move || planner.scene.with(Option::is_none)
                    title="Save the timeline as SVG, for papers and slides" on:click=move |_| planner.save_svg()>"SVG"</button>
                <button type="button" data-test="save-png" prop:disabled=move || planner.scene.with(Option::is_none)
                    title="Save the visible time range as PNG, with memory, all ranks and the legend" on:click=move |_| planner.save_png()>"PNG"</button>
            </div>
            <div class="buttons zoom" role="group" aria-label="Zoom">
                <button type="button" aria-label="Zoom out" data-test="zoom-out" on:click=move |_| zoom(1.0 / (ZOOM_STEP * ZOOM_STEP))>"−"</button>
                <button type="button" aria-label="Zoom in" data-test="zoom-in" on:click=move |_| zoom(ZOOM_STEP * ZOOM_STEP)>"+"</button>
                <button type="button" data-test="zoom-fit" on:click=move |_| planner.view.set(planner.extent().fit())>"Fit"</button>
            </div>
            <legend::TraceControls />
        </div>
    }
}

#[component]
fn Canvas() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let holder = NodeRef::<html::Div>::new();
    let image_canvas = NodeRef::<html::Canvas>::new();
    let text_canvas = NodeRef::<html::Canvas>::new();
    let whole_width = RwSignal::new(900.0_f64);
    let scroll = RwSignal::new(0.0_f64);
    let dark = RwSignal::new(browser::prefers_dark());
    // The picture is to be printed: light, and with all ranks.
    let paper = RwSignal::new(false);
    let pointer = RwSignal::new(None::<(f64, f64)>);
    let selected = RwSignal::new(None::<Pointed>);
    let drag = StoredValue::new(None::<Drag>);
    browser::on_media_change("(prefers-color-scheme: dark)", move || dark.set(browser::prefers_dark()));

    let layout = Memo::new(move |_| {
        let ranks = planner.scene.with(|scene| scene.as_ref().map_or(4, |scene| scene.lanes.len()));
        let below = planner.below().map_or(0, |below| below.lanes().len());
        match paper.get() {
            true => Layout::whole(whole_width.get(), ranks, below),
            false => Layout::new(whole_width.get(), ranks, below, scroll.get()),
        }
    });
    // The axis is as wide as the layout leaves it; a change keeps what is shown.
    Effect::new(move |_| {
        let width = layout.with(|layout| layout.width_px);
        if width != planner.width.get_untracked() {
            let before = planner.extent();
            planner.width.set(width);
            planner.carry_view(before);
        }
    });
    let measured_peaks = Memo::new(move |_| planner.measured_peaks());
    let frame = move || -> Option<Frame> {
        let scene = planner.scene.get()?;
        let aligned = planner.aligned.get();
        let below = planner.below().map(|below| {
            let scale = below.scale(scene.end_ns(), aligned);
            (below, scale)
        });
        Some(Frame {
            scene,
            below,
            measured_peaks: measured_peaks.get(),
            layout: layout.get(),
            view: planner.view.get(),
            dark: dark.get() && !paper.get(),
            paper: paper.get(),
            ratio: browser::pixel_ratio(),
        })
    };
    let pointed = Memo::new(move |_| pointer.get().and_then(|(x, y)| point_at(planner, &layout.get(), x, y)));
    let shown = Memo::new(move |_| pointed.get().or(selected.get()));
    // Another plan has other blocks.
    Effect::new(move |_| {
        let _ = (planner.scene.with(Option::is_some), planner.below().is_some());
        selected.set(None);
    });
    let kept: Rc<RefCell<Option<Image>>> = Rc::default();
    let paint = move || {
        let canvases = (image_canvas.get_untracked(), text_canvas.get_untracked());
        let (Some(image), Some(text)) = canvases else { return };
        match untrack(frame) {
            Some(frame) => {
                overlay::paint_image(&image, &frame, &kept);
                overlay::paint_text(&text, &frame, shown.get_untracked());
            }
            None => overlay::clear(&image, &text, &layout.get_untracked()),
        }
    };
    let paint_for_paper = paint.clone();
    browser::on_print(move |before| {
        paper.set(before);
        // Paper does not wait for the next frame.
        paint_for_paper();
    });
    Effect::new(move |_| {
        if planner.png_wanted.get() == 0 {
            return;
        }
        let Some(frame) = untrack(frame) else { return };
        let below = frame.below.as_ref().map_or(0, |(below, _)| below.lanes().len());
        let layout = Layout::whole(whole_width.get_untracked(), frame.scene.lanes.len(), below);
        let of = untrack(|| planner.subject());
        if let Some(whole) = overlay::picture(&Frame { layout, ..frame }, &of, selected.get_untracked()) {
            browser::download_png(planner.file_name("timeline.png"), &whole);
        }
    });
    Effect::new(move |_| {
        let _ = (frame().is_some(), shown.get(), image_canvas.get().is_some(), text_canvas.get().is_some());
        once_a_frame(paint.clone());
    });
    Effect::new(move |_| {
        if let Some(holder) = holder.get() {
            follow_width(&holder, whole_width);
        }
    });

    let on_wheel = move |event: WheelEvent| wheel(planner, &layout.get_untracked(), scroll, &event);
    let on_down = move |event: PointerEvent| {
        if event.button() == 0 {
            let start = Drag {
                x: f64::from(event.client_x()),
                y: f64::from(event.client_y()),
                view: planner.view.get_untracked(),
                scroll: scroll.get_untracked(),
            };
            drag.set_value(Some(start));
            if let Some(canvas) = text_canvas.get_untracked() {
                let _ = canvas.set_pointer_capture(event.pointer_id());
            }
        }
    };
    let on_move = move |event: PointerEvent| {
        let at = (f64::from(event.offset_x()), f64::from(event.offset_y()));
        if let Some(start) = drag.get_value() {
            let extent = planner.extent();
            planner.view.set(start.view.panned(start.x - f64::from(event.client_x()), extent));
            let range = layout.with_untracked(|layout| layout.scroll_range_px);
            let to = start.scroll + start.y - f64::from(event.client_y());
            scroll.set(to.clamp(0.0, range));
        }
        pointer.set(Some(at));
    };
    let on_up = move |event: PointerEvent| {
        let Some(start) = drag.try_update_value(Option::take).flatten() else { return };
        let moved = (f64::from(event.client_x()) - start.x).abs().max((f64::from(event.client_y()) - start.y).abs());
        if moved <= TAP_PX {
            let (x, y) = (f64::from(event.offset_x()), f64::from(event.offset_y()));
            if let Some(to) = layout.with_untracked(|layout| layout.scroll_at(x, y)) {
                return scroll.set(to);
            }
            let hit = untrack(|| point_at(planner, &layout.get(), x, y));
            selected.update(|selected| *selected = hit.filter(|hit| *selected != Some(*hit)));
        }
    };
    let on_cancel = move |_: PointerEvent| drag.set_value(None);
    let on_leave = move |_: PointerEvent| pointer.set(None);
    let on_double = move |event: leptos::ev::MouseEvent| {
        let x = f64::from(event.offset_x()) - layout.with_untracked(|layout| layout.left_px);
        planner.view.update(|view| *view = view.zoomed(2.0, x, planner.extent()));
    };
    let on_key = move |event: KeyboardEvent| {
        let before = layout.get_untracked();
        if walk(planner, &before, scroll, selected, &event) {
            // A pointer that rests on the picture does not hide what the keys have come to.
            pointer.set(None);
            event.prevent_default();
        } else {
            key(planner, &before, scroll, &event);
        }
    };
    let announced = move || {
        let lines = selected.get().map(|selected| details(planner, selected)).unwrap_or_default();
        lines.into_iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    let anchor = Memo::new(move |_| pointer.get().or_else(|| anchor(planner, &layout.get(), selected.get()?)));
    let described = move || describe(planner);
    let more_ranks = move |how: &'static str| {
        let scrolls = layout.with(|layout| layout.scroll_range_px > 0.0);
        scrolls.then(|| format!(" There are more ranks than are in sight: {how}."))
    };
    view! {
        <div class="stage" node_ref=holder class:none=move || planner.scene.with(Option::is_none)
            style=move || format!("height:{}px", layout.with(|layout| layout.height_px.ceil()))>
            <canvas class="image" aria-hidden="true" node_ref=image_canvas></canvas>
            <canvas class="text" tabindex="0" role="application" data-test="timeline" aria-label=described node_ref=text_canvas
                on:wheel=on_wheel on:pointerdown=on_down on:pointermove=on_move on:pointerup=on_up on:pointercancel=on_cancel
                on:pointerleave=on_leave on:dblclick=on_double on:keydown=on_key></canvas>
            <Tooltip shown anchor whole_width />
        </div>
        <p class="unseen" role="status" data-test="selected">{announced}</p>
        <p class="hint keys">"Drag to pan, Ctrl and wheel to zoom; or use arrow keys, + and −, and 0 for all. Click a block, or press Enter, to keep its details. Arrow keys then go from block to block and to the gaps between them. A gap shows what its rank waits for. Escape ends the selection."{move || more_ranks("use the wheel, drag, PageUp and PageDown, or the bar at the side")}</p>
        <p class="hint taps">"Tap a block for its details, or a gap for what its rank waits for. Drag to pan."{move || more_ranks("tap the bar at the side")}</p>
        <legend::Guide />
    }
}

#[component]
fn Tooltip(
    shown: Memo<Option<Pointed>>,
    anchor: Memo<Option<(f64, f64)>>,
    whole_width: RwSignal<f64>,
) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let lines = Memo::new(move |_| shown.get().map(|shown| details(planner, shown)).unwrap_or_default());
    let place = move || {
        let (x, y) = anchor.get().unwrap_or_default();
        // On the side with more room. Where that is too little, as on a phone, what is left free beside it gives way first, so
        // that it never leaves the picture.
        let beside = |px: f64| format!("minmax(0,{:.0}px)", px + 14.0);
        let columns = if x > whole_width.get() / 2.0 {
            format!("minmax(0,1fr) max-content {}", beside(whole_width.get() - x))
        } else {
            format!("{} max-content minmax(0,1fr)", beside(x))
        };
        format!("grid-template-columns:{columns};top:{:.0}px", y + 14.0)
    };
    move || {
        let lines = lines.get();
        (!lines.is_empty()).then(|| {
            let rows = lines.into_iter().map(|(name, value)| view! { <dt>{name}</dt><dd>{value}</dd> });
            view! { <div class="tip-place" style=place><dl class="tooltip" role="tooltip" data-test="tooltip">{rows.collect_view()}</dl></div> }
        })
    }
}

/// What is said of a block, or of a rank's memory.
fn details(planner: Planner, pointed: Pointed) -> Vec<(String, String)> {
    let Some(scene) = planner.scene.get_untracked() else { return Vec::new() };
    match pointed {
        Pointed::Block(Block { below: false, rank, index, gap: true }) => scene.describe_wait(rank, index),
        Pointed::Block(Block { below: false, rank, index, .. }) => scene.describe(rank, index),
        Pointed::Block(Block { below: true, rank, index, gap }) => {
            let describe = |below: Below| match gap {
                true => below.describe_wait(rank, index),
                false => below.describe(rank, index, &scene),
            };
            untrack(|| planner.below()).map(describe).unwrap_or_default()
        }
        Pointed::Memory { rank, time_ns } => {
            let mut lines = scene.describe_memory(rank, time_ns as f64);
            if let Some(Below::Kept(kept)) = untrack(|| planner.below())
                && let Some(curve) = kept.curve(rank)
            {
                lines.push(("kept plan holds".to_owned(), text::bytes(curve.at(time_ns as f64))));
                lines.push(("kept plan peak".to_owned(), text::bytes(curve.peak())));
            }
            lines
        }
    }
}

/// What the pointer is on.
fn point_at(planner: Planner, layout: &Layout, x: f64, y: f64) -> Option<Pointed> {
    let scene = planner.scene.get()?;
    let view = planner.view.get();
    let time_ns = view.time_at(x - layout.left_px);
    // Two pixels: what is narrower than a pixel can still be pointed at.
    let reach_ns = 2.0 * view.ns_per_px;
    if x < layout.left_px {
        return None;
    }
    match layout.place_at(y)? {
        Place::Planned(rank) => {
            let block = scene.lanes.get(rank)?.at(time_ns, reach_ns);
            let block = block.map(|index| Block { below: false, rank, index, gap: false });
            block.or_else(|| with_ranks(planner, |ranks| ranks.gap_at(rank, time_ns))).map(Pointed::Block)
        }
        Place::Below(rank) => {
            let below = planner.below()?;
            let scale = below.scale(scene.end_ns(), planner.aligned.get());
            let block = below.lanes().get(rank)?.at(time_ns / scale, reach_ns / scale);
            let block = block.map(|index| Block { below: true, rank, index, gap: false });
            let row = scene.lanes.len() + rank;
            block.or_else(|| with_ranks(planner, |ranks| ranks.gap_at(row, time_ns))).map(Pointed::Block)
        }
        Place::Memory(rank) => {
            (time_ns <= scene.end_ns() as f64).then_some(Pointed::Memory { rank, time_ns: time_ns.max(0.0) as u64 })
        }
    }
}

/// Calls `then` with all rows that blocks are on.
fn with_ranks<T>(planner: Planner, then: impl FnOnce(&Ranks<'_>) -> Option<T>) -> Option<T> {
    let scene = planner.scene.get()?;
    let below = planner.below();
    let scale = below.as_ref().map_or(1.0, |below| below.scale(scene.end_ns(), planner.aligned.get()));
    then(&Ranks { planned: &scene.lanes, below: below.as_ref().map_or(&[], Below::lanes), scale })
}

/// Where the details of what was selected stand: under the middle of its visible part.
fn anchor(planner: Planner, layout: &Layout, selected: Pointed) -> Option<(f64, f64)> {
    let view = planner.view.get();
    let (panel, rank, (from_ns, to_ns)) = match selected {
        Pointed::Block(block) => {
            let panel = if block.below { layout.below? } else { layout.planned };
            (panel, block.rank, with_ranks(planner, |ranks| ranks.times(block))?)
        }
        Pointed::Memory { rank, time_ns } => (layout.memory, rank, (time_ns as f64, time_ns as f64)),
    };
    let x = |time_ns: f64| view.x_of(time_ns).clamp(0.0, layout.width_px);
    let (_, bottom) = panel.rows.span_of(rank);
    let middle = layout.left_px + (x(from_ns) + x(to_ns)) / 2.0;
    Some((middle, panel.top_px + bottom.clamp(0.0, panel.rows.height_px)))
}

/// Selects a block, goes from the one selected to another, or ends that. Whether the key was for that.
fn walk(
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
                ranks.nearest(layout.planned.rows.visible().start, view.time_at(extent.width_px / 2.0))
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
    selected.set(Some(Pointed::Block(block)));
    if let Some((from_ns, to_ns)) = untrack(|| with_ranks(planner, |ranks| ranks.times(block))) {
        planner.view.set(view.showing(from_ns, to_ns, extent));
    }
    if let Some(panel) = if block.below { layout.below } else { Some(layout.planned) } {
        scroll.set(layout.scroll_showing(&panel, block.rank));
    }
    true
}

fn wheel(planner: Planner, layout: &Layout, scroll: RwSignal<f64>, event: &WheelEvent) {
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

fn key(planner: Planner, layout: &Layout, scroll: RwSignal<f64>, event: &KeyboardEvent) {
    if event.ctrl_key() || event.meta_key() || event.alt_key() {
        return;
    }
    let extent = planner.extent();
    let middle = extent.width_px / 2.0;
    let pan = extent.width_px * PAN_STEP;
    let rows_by = |by: f64| {
        let range = layout.scroll_range_px;
        scroll.update(|scroll| *scroll = (*scroll + by).clamp(0.0, range));
    };
    let change = |change: &dyn Fn(View) -> View| planner.view.update(|view| *view = change(*view));
    match event.key().as_str() {
        "ArrowLeft" => change(&|view| view.panned(-pan, extent)),
        "ArrowRight" => change(&|view| view.panned(pan, extent)),
        "ArrowUp" | "+" | "=" => change(&|view| view.zoomed(ZOOM_STEP, middle, extent)),
        "ArrowDown" | "-" => change(&|view| view.zoomed(1.0 / ZOOM_STEP, middle, extent)),
        "Home" | "0" => change(&|_| extent.fit()),
        "End" => change(&|view| view.panned(f64::MAX, extent)),
        "PageDown" => rows_by(layout.planned.rows.height_px),
        "PageUp" => rows_by(-layout.planned.rows.height_px),
        _ => return,
    }
    event.prevent_default();
}

/// The picture in a sentence, for those who do not see it.
fn describe(planner: Planner) -> String {
    planner.scene.with(|scene| match scene {
        Some(scene) => {
            let ops: usize = scene.lanes.iter().map(|lane| lane.spans().len()).sum();
            let kept = match planner.below() {
                Some(Below::Kept(kept)) => format!(" Kept below: {}.", kept.headline()),
                _ => String::new(),
            };
            format!(
                "Timeline of {}: {} ranks, {ops} ops in {}.{kept} Arrow keys pan and zoom. Enter selects a block; arrow keys then go from block to block and gap to gap.",
                crate::text::schedule_title(&scene.schedule),
                scene.lanes.len(),
                crate::text::duration(scene.end_ns() as f64)
            )
        }
        None => "No timeline".to_owned(),
    })
}

pub(super) fn follow_width(holder: &web_sys::HtmlElement, width: RwSignal<f64>) {
    let measured = holder.clone();
    let measure = Closure::<dyn FnMut()>::new(move || {
        let now = f64::from(measured.client_width()).max(120.0);
        if now != width.get_untracked() {
            width.set(now);
        }
    });
    if let Ok(observer) = ResizeObserver::new(measure.as_ref().unchecked_ref()) {
        observer.observe(holder);
    }
    measure.forget();
}
