//! The canvas of the timeline, and when it is painted.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use leptos::html;
use leptos::prelude::*;
use pipeplan_core::problem::op::Op;
use web_sys::KeyboardEvent;

use super::details::{Tooltip, anchor, describe, details, point_at, with_ranks};
use super::height::LowerEdge;
use super::keys::{select, select_by_key, view_by_key};
use super::legend;
use super::minimap::Minimap;
use super::op_table::OpTable;
use super::overlay;
use super::paper::PaperFigure;
use super::playback::PlaybackBar;
use super::pointer::{Drag, wheel};
use crate::draw::layout::Layout;
use crate::draw::selection::Pointed;
use crate::draw::view::View;
use crate::page::browser;
use crate::page::state::{PathSpan, Planner, once_a_frame};
use crate::scene::{Below, Scene};

/// All that one frame shows.
pub struct Frame {
    pub scene: Arc<Scene>,
    /// Whether a run is shown without a plan: the scene has no ranks.
    pub alone: bool,
    /// The critical path of the measured step, where it stands out.
    pub path: Option<Arc<Vec<PathSpan>>>,
    /// The part under the plan, and the scale of its times.
    pub below: Option<(Below, f64)>,
    /// The most bytes that each rank really held; empty without a trace of this plan.
    pub measured_peaks: Vec<u64>,
    pub layout: Layout,
    pub view: View,
    /// The ops that stand out; none: all are alike.
    pub lit: Option<Lit>,
    /// The instant of a playback: what begins later is hidden.
    pub until_ns: Option<f64>,
    pub dark: bool,
    /// Whether it is to be printed.
    pub paper: bool,
    pub ratio: f64,
}

/// Which ops stand out: those of a microbatch, or of the critical path.
pub struct Lit {
    pub planned: Box<dyn Fn(usize, Op) -> bool>,
    /// The same of the part under the plan; none: all are alike.
    pub below: Option<Box<dyn Fn(usize, Op) -> bool>>,
}

impl Lit {
    fn microbatch(microbatch: usize) -> Lit {
        let is_it = move |_: usize, op: Op| op.microbatch() == microbatch;
        Lit { planned: Box::new(is_it), below: Some(Box::new(is_it)) }
    }
}

impl Frame {
    /// The plan; none where a run is shown without one.
    pub fn plan(&self) -> Option<&Scene> {
        Some(&*self.scene).filter(|_| !self.alone)
    }

    /// The kept plan, if it is under the plan on screen.
    pub fn kept(&self) -> Option<&Scene> {
        match &self.below {
            Some((Below::Kept(kept), _)) => Some(kept),
            _ => None,
        }
    }
}

/// The elements of the picture, and the state of pointer and selection.
#[derive(Clone, Copy)]
pub(super) struct Screen {
    pub(super) planner: Planner,
    pub(super) holder: NodeRef<html::Div>,
    pub(super) image_canvas: NodeRef<html::Canvas>,
    pub(super) text_canvas: NodeRef<html::Canvas>,
    pub(super) whole_width: RwSignal<f64>,
    pub(super) scroll: RwSignal<f64>,
    pub(super) dark: RwSignal<bool>,
    /// The picture is to be printed: light, and with all ranks.
    pub(super) paper: RwSignal<bool>,
    pub(super) pointer: RwSignal<Option<(f64, f64)>>,
    pub(super) selected: RwSignal<Option<Pointed>>,
    pub(super) drag: StoredValue<Option<Drag>>,
    pub(super) layout: Memo<Layout>,
    pub(super) measured_peaks: Memo<Vec<u64>>,
    /// The critical path, where it is switched on.
    path: Memo<Option<Arc<HashSet<Op>>>>,
    /// That of the measured step, with its rows, from the first op to the last.
    measured_path: Memo<Option<Arc<Vec<PathSpan>>>>,
}

impl Screen {
    fn new(planner: Planner) -> Screen {
        let whole_width = RwSignal::new(900.0_f64);
        let scroll = RwSignal::new(0.0_f64);
        let paper = RwSignal::new(false);
        let layout = Memo::new(move |_| {
            let ranks = planner.stage_scene().map_or(4, |scene| scene.tracks.len());
            let marked = planner.below().is_some_and(|below| !below.marks().is_empty());
            let below = planner.below().map_or(0, |below| below.tracks().len());
            let layout = match paper.get() {
                true => Layout::whole(whole_width.get(), ranks, below, planner.carried_shown.get()),
                false => {
                    let (room_px, carried) = (planner.room_px.get(), planner.carried_shown.get());
                    Layout::roomy(whole_width.get(), ranks, below, scroll.get(), room_px, carried)
                }
            };
            layout.with_marks(marked)
        });
        Screen {
            planner,
            holder: NodeRef::new(),
            image_canvas: NodeRef::new(),
            text_canvas: NodeRef::new(),
            whole_width,
            scroll,
            dark: RwSignal::new(browser::prefers_dark()),
            paper,
            pointer: RwSignal::new(None),
            selected: planner.selected,
            drag: StoredValue::new(None),
            layout,
            measured_peaks: Memo::new(move |_| planner.measured_peaks()),
            path: Memo::new(move |_| {
                let scene = planner.planned().filter(|_| planner.path_lit.get());
                scene.map(|scene| Arc::new(scene.critical_path()))
            }),
            measured_path: Memo::new(move |_| {
                let path = planner.measured_path().filter(|_| planner.path_lit.get());
                path.map(Arc::new)
            }),
        }
    }

    /// The content of the next frame; none without a plan.
    fn frame(self) -> Option<Frame> {
        let scene = self.planner.stage_scene()?;
        let scale = self.planner.below_scale();
        Some(Frame {
            scene,
            alone: self.planner.is_alone(),
            below: self.planner.below().map(|below| (below, scale)),
            path: self.measured_path.get(),
            measured_peaks: self.measured_peaks.get(),
            layout: self.layout.get(),
            lit: self.lit(),
            view: self.planner.view.get(),
            until_ns: self.planner.playback.get().map(|playback| playback.at_ns).filter(|_| !self.paper.get()),
            dark: self.dark.get() && !self.paper.get(),
            paper: self.paper.get(),
            ratio: browser::pixel_ratio(),
        })
    }

    /// The way of the selected microbatch, else the critical path where it is switched on.
    fn lit(self) -> Option<Lit> {
        let of_path = || {
            let (planned, below) = (self.path.get(), self.measured_path.get());
            (planned.is_some() || below.is_some()).then(|| Lit {
                planned: Box::new(move |_, op| planned.as_ref().is_none_or(|path| path.contains(&op))),
                below: below.map(|path| {
                    let ops: HashSet<(usize, Op)> = path.iter().map(|span| (span.row, span.op)).collect();
                    Box::new(move |row, op| ops.contains(&(row, op))) as Box<dyn Fn(usize, Op) -> bool>
                }),
            })
        };
        let selected = match self.selected.get() {
            Some(Pointed::Block(block)) if !block.gap => with_ranks(self.planner, |ranks| ranks.op(block)),
            _ => None,
        };
        selected.map(|op| Lit::microbatch(op.microbatch())).or_else(of_path)
    }

    /// The axis is as wide as the layout leaves it; a change keeps what is shown.
    fn follow_layout(self) {
        let planner = self.planner;
        Effect::new(move |_| {
            let width = self.layout.with(|layout| layout.width_px);
            if width != planner.width.get_untracked() {
                let before = planner.extent();
                planner.width.set(width);
                planner.carry_view(before);
            }
        });
        Effect::new(move |_| {
            if let Some(holder) = self.holder.get() {
                browser::follow_width(&holder, self.whole_width);
            }
        });
        let dark = self.dark;
        browser::on_media_change("(prefers-color-scheme: dark)", move || dark.set(browser::prefers_dark()));
    }

    /// Paints when anything visible has changed, and at once before printing.
    fn paint_on_change(self, shown: Memo<Option<Pointed>>) {
        let last: Rc<RefCell<overlay::Last>> = Rc::default();
        let paint = move || {
            let canvases = (self.image_canvas.get_untracked(), self.text_canvas.get_untracked());
            let (Some(image), Some(text)) = canvases else { return };
            match untrack(|| self.frame()) {
                Some(frame) => {
                    overlay::paint_image(&image, &frame, &last);
                    overlay::paint_text(&text, &frame, shown.get_untracked());
                }
                None => overlay::clear(&image, &text, &self.layout.get_untracked()),
            }
        };
        let paint_for_paper = paint.clone();
        browser::on_print(move |before| {
            self.paper.set(before);
            // Paper does not wait for the next frame.
            paint_for_paper();
        });
        Effect::new(move |_| {
            let canvases = (self.image_canvas.get().is_some(), self.text_canvas.get().is_some());
            let _ = (self.frame().is_some(), shown.get(), canvases);
            once_a_frame("picture", paint.clone());
        });
    }

    /// Brings a block into sight that was searched.
    fn show_found(self) {
        Effect::new(move |_| {
            if let Some(block) = self.planner.found.get() {
                self.pointer.set(None);
                select(self.planner, &self.layout.get_untracked(), self.scroll, block);
            }
        });
    }

    /// Downloads a picture of all ranks on request.
    fn save_png_on_demand(self) {
        let planner = self.planner;
        Effect::new(move |_| {
            if planner.png_wanted.get() == 0 {
                return;
            }
            let Some(frame) = untrack(|| self.frame()) else { return };
            let below = frame.below.as_ref().map_or(0, |(below, _)| below.tracks().len());
            let carried = planner.carried_shown.get_untracked();
            let marked = frame.below.as_ref().is_some_and(|(below, _)| !below.marks().is_empty());
            let width = self.whole_width.get_untracked();
            let layout = Layout::whole(width, frame.scene.tracks.len(), below, carried).with_marks(marked);
            let of = untrack(|| planner.subject());
            if let Some(whole) = overlay::picture(&Frame { layout, ..frame }, &of, self.selected.get_untracked()) {
                browser::download_png(planner.file_name("timeline.png"), &whole);
            }
        });
    }

    fn key_pressed(self, event: &KeyboardEvent) {
        let before = self.layout.get_untracked();
        if select_by_key(self.planner, &before, self.scroll, self.selected, event) {
            // A pointer that rests on the picture does not hide the selection by keys.
            self.pointer.set(None);
            event.prevent_default();
        } else {
            view_by_key(self.planner, &before, self.scroll, event);
        }
    }
}

#[component]
pub(super) fn Canvas() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let screen = Screen::new(planner);
    let (layout, selected, pointer) = (screen.layout, screen.selected, screen.pointer);
    screen.follow_layout();
    let pointed = Memo::new(move |_| pointer.get().and_then(|(x, y)| point_at(planner, &layout.get(), x, y)));
    let shown = Memo::new(move |_| pointed.get().or(selected.get()));
    // Another plan has other blocks.
    Effect::new(move |_| {
        let _ = (planner.stage_scene().is_some(), planner.below().is_some());
        selected.set(None);
    });
    screen.show_found();
    screen.paint_on_change(shown);
    screen.save_png_on_demand();
    let announced = move || {
        let lines = selected.get().map(|selected| details(planner, selected)).unwrap_or_default();
        lines.into_iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    let anchor = Memo::new(move |_| pointer.get().or_else(|| anchor(planner, &layout.get(), selected.get()?)));
    let described = move || describe(planner);
    let step = move || planner.measured.with(|measured| measured.as_ref().map(|measured| measured.index.to_string()));
    let more_ranks = move |how: &'static str| {
        let scrolls = layout.with(|layout| layout.scroll_range_px > 0.0);
        scrolls.then(|| format!(" There are more ranks than are in sight: {how}."))
    };
    view! {
        <div class="stage" node_ref=screen.holder class:none=move || planner.stage_scene().is_none()
            style=move || format!("height:{}px", layout.with(|layout| layout.height_px.ceil()))>
            <canvas class="image" aria-hidden="true" node_ref=screen.image_canvas></canvas>
            <canvas class="text" tabindex="0" role="application" data-test="timeline" data-step=step aria-label=described node_ref=screen.text_canvas
                on:wheel=move |event| wheel(planner, &layout.get_untracked(), screen.scroll, &event) on:pointerdown=move |event| screen.pointer_down(&event)
                on:pointermove=move |event| screen.pointer_moved(&event) on:pointerup=move |event| screen.pointer_up(&event)
                on:pointercancel=move |_| screen.drag.set_value(None)
                on:pointerleave=move |_| screen.pointer.set(None) on:dblclick=move |event| screen.double_clicked(&event) on:keydown=move |event| screen.key_pressed(&event)></canvas>
            <Tooltip shown anchor whole_width=screen.whole_width />
        </div>
        <Minimap screen />
        <PlaybackBar />
        <LowerEdge />
        <p class="unseen" role="status" data-test="selected">{announced}</p>
        <p class="hint keys">"Drag to pan, Ctrl and wheel to zoom, Shift and drag for the figures of a range; or use arrow keys or W A S D, and F for all. Click a block, or press Enter, to keep its details. Arrow keys then go from block to block and to the gaps between them. A gap shows what its rank waits for. Escape ends the selection. P plays the plan in slow motion."{move || more_ranks("use the wheel, drag, PageUp and PageDown, or the bar at the side")}</p>
        <p class="hint taps">"Tap a block for its details, or a gap for what its rank waits for. Drag to pan, pinch to zoom."{move || more_ranks("tap the bar at the side")}</p>
        <PaperFigure />
        <OpTable />
        <legend::Guide />
    }
}
