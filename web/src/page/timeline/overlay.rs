//! Painting on the two canvases: the image below, and text, lines and marks above it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pipeplan_core::formats::colour::{UP_SHADE, UP_TITLE};
use pipeplan_core::problem::op::OpKind;
use wasm_bindgen::{Clamped, JsCast};
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement, ImageData};

use super::canvas::Frame;
use crate::draw::colour::{Palette, Rgb};
use crate::draw::layout::{Layout, Panel, RULER_PX, TITLE_PX};
use crate::draw::memory::{self, Curve};
use crate::draw::overview;
use crate::draw::paint::{self, Before, Below, Subject};
use crate::draw::ruler;
use crate::draw::selection::Pointed;
use crate::draw::track::{Carried, Track};
use crate::draw::view::{Extent, View};
use crate::scene::{self, Key, MeasuredScene, Scene};
use crate::text;

const FONT: &str = "11px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
/// Width of a digit in that font, with a little room.
const CHAR_PX: f64 = 6.9;
/// Height of what a picture says above its timeline: two lines and the legend.
const HEAD_PX: f64 = 58.0;
/// Width of a scroll mark.
const MARK_PX: f64 = 4.0;
/// Rows lower than this hold no text.
const LEAST_TEXT_ROW_PX: f64 = 13.0;

/// What the frame before has left, and of what it was.
#[derive(Default)]
pub struct Last {
    before: Before,
    shown: Option<Shown>,
}

/// What a frame is of. It holds what it names, so that nothing else comes to its place.
struct Shown {
    scene: Option<Arc<Scene>>,
    below: Option<(scene::Below, f64)>,
    dark: bool,
}

impl Shown {
    /// None where some ops stand out: which ones may change from frame to frame.
    fn of(frame: &Frame) -> Option<Shown> {
        let scene = (!frame.alone).then(|| frame.scene.clone());
        frame.lit.is_none().then(|| Shown { scene, below: frame.below.clone(), dark: frame.dark })
    }

    fn is_same(&self, other: &Shown) -> bool {
        let scenes = match (&self.scene, &other.scene) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let below = match (&self.below, &other.below) {
            (Some((one, scale)), Some((other, other_scale))) => one.is_same(other) && scale == other_scale,
            (one, other) => one.is_none() && other.is_none(),
        };
        scenes && below && self.dark == other.dark
    }
}

/// Paints blocks and curves.
pub fn paint_image(canvas: &HtmlCanvasElement, frame: &Frame, last: &Rc<RefCell<Last>>) {
    let palette = Palette::of(frame.dark);
    let shown = Shown::of(frame);
    let Last { before, shown: last_shown } = &mut *last.borrow_mut();
    before.same = shown.as_ref().zip(last_shown.as_ref()).is_some_and(|(now, last)| now.is_same(last));
    *last_shown = shown;
    let data = SubjectData::of(frame);
    let image = paint::paint(
        &data.subject(frame, &|rank| frame.scene.curve(rank), &|rank| frame.kept()?.curve(rank), &|rank| {
            frame.scene.carried(rank)
        }),
        &frame.layout,
        frame.view,
        frame.ratio,
        &palette,
        before,
    );
    let (width, height) = (image.width as u32, image.height as u32);
    resize(canvas, width, height, frame.layout.width_px, frame.layout.height_px);
    let _ = canvas.style().set_property("left", &format!("{}px", frame.layout.left_px));
    if let Some(context) = context(canvas)
        && let Ok(pixels) = ImageData::new_with_u8_clamped_array_and_sh(Clamped(&image.bytes), width, height)
    {
        let _ = context.put_image_data(&pixels, 0.0, 0.0);
    }
    before.image = Some(image);
}

/// What a subject borrows.
struct SubjectData {
    static_bytes: Vec<u64>,
    chunk_of_stage: Vec<usize>,
    chunk_below: Vec<usize>,
    up_below: Option<usize>,
    top_bytes: u64,
}

impl SubjectData {
    fn of(frame: &Frame) -> SubjectData {
        let scene = &frame.scene;
        SubjectData {
            static_bytes: (0..scene.tracks.len()).map(|rank| scene.problem.static_bytes(rank)).collect(),
            chunk_of_stage: scene.chunk_of_stage(),
            chunk_below: frame
                .below
                .as_ref()
                .map(|(below, _)| below.chunk_of_stage(frame.plan()))
                .unwrap_or_default(),
            up_below: frame.below.as_ref().and_then(|(below, _)| below.up_from(frame.plan())),
            top_bytes: memory::top_bytes(
                frame.kept().map_or(0, |kept| kept.peak_bytes()).max(scene.peak_bytes()),
                scene.limit_bytes(),
            ),
        }
    }

    fn subject<'s>(
        &'s self,
        frame: &'s Frame,
        curve: &'s dyn Fn(usize) -> Option<&'s Curve>,
        curve_below: &'s dyn Fn(usize) -> Option<&'s Curve>,
        carried: &'s dyn Fn(usize) -> Option<&'s Carried>,
    ) -> Subject<'s> {
        Subject {
            planned: &frame.scene.tracks,
            below: frame.below.as_ref().map(|(below, scale)| Below {
                tracks: below.tracks(),
                scale: *scale,
                chunk_of_stage: &self.chunk_below,
                up_from: self.up_below,
                curve: curve_below,
                marks: below.marks(),
            }),
            curve,
            static_bytes: &self.static_bytes,
            limits: &frame.scene.figures.limit_bytes,
            top_bytes: self.top_bytes,
            chunk_of_stage: &self.chunk_of_stage,
            up_from: frame.scene.up_from(),
            lit: frame.lit.as_ref().map(|lit| lit.planned.as_ref() as _),
            lit_below: frame.lit.as_ref().and_then(|lit| lit.below.as_deref()).map(|lit| lit as _),
            carried,
        }
    }
}

/// Paints everything that is not a block or a curve.
pub fn paint_text(canvas: &HtmlCanvasElement, frame: &Frame, pointed: Option<Pointed>) {
    let layout = &frame.layout;
    let whole_width = layout.left_px + layout.width_px;
    let device = |css: f64| (css * frame.ratio).round().max(1.0) as u32;
    resize(canvas, device(whole_width), device(layout.height_px), whole_width, layout.height_px);
    let Some(context) = context(canvas) else { return };
    let palette = Palette::of(frame.dark);
    let brush = Brush { context: &context, palette: &palette, layout };
    let _ = context.set_transform(frame.ratio, 0.0, 0.0, frame.ratio, 0.0, 0.0);
    context.clear_rect(0.0, 0.0, whole_width, layout.height_px);
    context.set_font(FONT);
    brush.ruler(frame.view);
    let data = SubjectData::of(frame);
    let (curve, curve_below) = (|rank| frame.scene.curve(rank), |rank| frame.kept()?.curve(rank));
    let carried = |rank| frame.scene.carried(rank);
    let subject = data.subject(frame, &curve, &curve_below, &carried);
    // Which ranks, where not all are in sight.
    let some = |panel: &Panel| {
        let in_sight = panel.rows.in_sight();
        in_sight.map(|(first, last)| format!("anks {first} to {last} of {}", panel.rows.count))
    };
    let and_some =
        |title: String, panel: &Panel| some(panel).map_or(title.clone(), |some| format!("{title}; r{some}"));
    let first = match frame.below {
        None => some(&layout.planned).map_or_else(|| "Ranks".to_owned(), |some| format!("R{some}")),
        Some((scene::Below::Measured(_), _)) => and_some("Planned".to_owned(), &layout.planned),
        Some((scene::Below::Kept(_), _)) => and_some(frame.scene.headline(), &layout.planned),
    };
    if !frame.alone {
        brush.title(&layout.planned, &first);
    }
    brush.names(&layout.planned);
    brush.labels(&layout.planned, &subject, subject.planned, frame.view);
    if let (Some(panel), Some(below), Some((shown, scale))) = (&layout.below, subject.below, &frame.below) {
        brush.title(panel, &and_some(shown.headline(*scale), panel));
        brush.names(panel);
        brush.labels(panel, &subject.of(below), below.tracks, below.view(frame.view));
    }
    if let Some(panel) = &layout.carried {
        let title = match frame.scene.copies.iter().any(|copies| !copies.is_empty()) {
            false => "P2P transfers: activations above, gradients below",
            true => {
                "P2P transfers: activations above, gradients below; then copies to the host (as F) and back (as BW)"
            }
        };
        brush.title(panel, title);
        brush.key_after(panel, &[("gradient sync", palette.sync), ("optimizer", palette.optimizer)]);
        brush.names(panel);
    }
    if !frame.alone {
        let whose = some(&layout.memory).map_or_else(|| "each rank".to_owned(), |some| format!("r{some}"));
        brush.title(&layout.memory, &memory_title(frame, data.top_bytes, &whose));
        match layout.heat {
            true => brush.heat_key(&subject),
            false => brush.peaks(frame),
        }
        brush.names(&layout.memory);
    }
    brush.measured_path(frame);
    layout.panels().for_each(|panel| brush.scroll_mark(&panel));
    brush.pointed(frame, pointed);
    if let Some(until_ns) = frame.until_ns {
        brush.veil(frame.view, until_ns);
    }
    if frame.paper {
        settle(canvas, &context);
    }
}

/// What the memory of the ranks is drawn with.
fn memory_title(frame: &Frame, top_bytes: u64, whose: &str) -> String {
    let limit = frame.scene.limit_bytes();
    let title = match limit {
        _ if frame.layout.heat => return format!("Memory of {whose}"),
        Some(limit) if limit <= top_bytes => format!("Memory of {whose}; red: limit of {}", text::bytes(limit)),
        Some(limit) => format!("Memory of {whose}; the limit of {} is far above", text::bytes(limit)),
        None => format!("Memory of {whose}"),
    };
    if frame.kept().is_some() { format!("{title}; line: kept") } else { title }
}

/// Paints all of the time of a plan as a strip, or of a run that is shown without one.
pub fn paint_overview(
    canvas: &HtmlCanvasElement,
    scene: &Scene,
    alone: Option<&MeasuredScene>,
    extent: Extent,
    dark: bool,
) {
    let ratio = crate::page::browser::pixel_ratio();
    let (width, height) = ((extent.width_px * ratio).round().max(1.0), (overview::OVERVIEW_PX * ratio).round());
    let chunk_of_stage = alone.map_or_else(|| scene.chunk_of_stage(), MeasuredScene::chunk_of_stage);
    let subject = Subject {
        planned: alone.map_or(&scene.tracks, |alone| &alone.tracks),
        below: None,
        curve: &|_| None,
        static_bytes: &[],
        limits: &[],
        top_bytes: 0,
        chunk_of_stage: &chunk_of_stage,
        up_from: scene.up_from().filter(|_| alone.is_none()),
        lit: None,
        lit_below: None,
        carried: &|_| None,
    };
    let image = overview::paint(&subject, extent, width as usize, height as usize, &Palette::of(dark));
    let (width, height) = (image.width as u32, image.height as u32);
    resize(canvas, width, height, extent.width_px, overview::OVERVIEW_PX);
    if let Some(context) = context(canvas)
        && let Ok(pixels) = ImageData::new_with_u8_clamped_array_and_sh(Clamped(&image.bytes), width, height)
    {
        let _ = context.put_image_data(&pixels, 0.0, 0.0);
    }
}

/// Leaves nothing but the pixels of what was drawn: Chromium prints strokes that were drawn for paper as strokes, on a white
/// ground that would hide the blocks below.
fn settle(canvas: &HtmlCanvasElement, context: &CanvasRenderingContext2d) {
    let (width, height) = (canvas.width(), canvas.height());
    if let Ok(pixels) = context.get_image_data(0.0, 0.0, f64::from(width), f64::from(height)) {
        // To set a size, even the same, forgets the strokes.
        canvas.set_width(width);
        let _ = context.put_image_data(&pixels, 0.0, 0.0);
    }
}

/// A picture of `frame` on its own, in the screen's pixels: under the plan in words, `subject`, and the legend.
pub fn picture(frame: &Frame, subject: &str, pointed: Option<Pointed>) -> Option<HtmlCanvasElement> {
    let document = web_sys::window()?.document()?;
    let canvas = || document.create_element("canvas").ok()?.dyn_into::<HtmlCanvasElement>().ok();
    let (image, text, whole) = (canvas()?, canvas()?, canvas()?);
    paint_image(&image, frame, &Rc::default());
    paint_text(&text, frame, pointed);
    let head = (HEAD_PX * frame.ratio).round();
    whole.set_width(text.width());
    whole.set_height(text.height() + head as u32);
    let context = context(&whole)?;
    let palette = Palette::of(frame.dark);
    context.set_fill_style_str(&palette.panel.css());
    context.fill_rect(0.0, 0.0, f64::from(whole.width()), f64::from(whole.height()));
    let left = (frame.layout.left_px * frame.ratio).round();
    context.draw_image_with_html_canvas_element(&image, left, head).ok()?;
    context.draw_image_with_html_canvas_element(&text, 0.0, head).ok()?;
    let _ = context.set_transform(frame.ratio, 0.0, 0.0, frame.ratio, 0.0, 0.0);
    let brush = Brush { context: &context, palette: &palette, layout: &frame.layout };
    brush.head(frame, subject);
    Some(whole)
}

/// Empties both canvases.
pub fn clear(image: &HtmlCanvasElement, text: &HtmlCanvasElement, layout: &Layout) {
    for canvas in [image, text] {
        resize(canvas, 1, 1, layout.left_px + layout.width_px, layout.height_px);
        if let Some(context) = context(canvas) {
            context.clear_rect(0.0, 0.0, 1.0, 1.0);
        }
    }
}

/// What paints, with what, and where.
pub(super) struct Brush<'b> {
    pub(super) context: &'b CanvasRenderingContext2d,
    pub(super) palette: &'b Palette,
    pub(super) layout: &'b Layout,
}

impl Brush<'_> {
    fn ruler(&self, view: View) {
        let (context, left) = (self.context, self.layout.left_px);
        context.set_text_align("center");
        context.set_text_baseline("middle");
        for tick in ruler::ticks(view, self.layout.width_px, 96.0) {
            let x = (left + tick.x_px).round() + 0.5;
            context.set_stroke_style_str(&self.palette.line.css());
            context.begin_path();
            context.move_to(x, RULER_PX - 4.0);
            context.line_to(x, RULER_PX);
            context.stroke();
            context.set_fill_style_str(&self.palette.text.css());
            // The first and last label stay inside.
            let half = tick.label.chars().count() as f64 * CHAR_PX / 2.0;
            let inside = x.clamp(left + half.min(20.0), left + self.layout.width_px - half);
            let _ = context.fill_text(&tick.label, inside, RULER_PX / 2.0 - 1.0);
        }
        context.set_stroke_style_str(&self.palette.line.css());
        context.begin_path();
        context.move_to(left, RULER_PX + 0.5);
        context.line_to(left + self.layout.width_px, RULER_PX + 0.5);
        context.stroke();
    }

    fn title(&self, panel: &Panel, title: &str) {
        self.context.set_text_align("left");
        self.context.set_text_baseline("middle");
        self.context.set_fill_style_str(&self.palette.text.css());
        let _ = self.context.fill_text(title, self.layout.left_px, panel.top_px - TITLE_PX / 2.0 + 1.0);
    }

    /// Colours and what they mean, at the right of a panel's title, where there is room.
    fn key_after(&self, panel: &Panel, entries: &[(&str, Rgb)]) {
        const SWATCH_PX: f64 = 10.0;
        if self.layout.width_px < 560.0 {
            return;
        }
        let y = panel.top_px - TITLE_PX / 2.0 + 1.0;
        let mut x = self.layout.left_px + self.layout.width_px;
        self.context.set_text_align("right");
        for (title, colour) in entries.iter().rev() {
            self.context.set_fill_style_str(&self.palette.text.css());
            let _ = self.context.fill_text(title, x, y);
            x -= self.context.measure_text(title).map_or(0.0, |metrics| metrics.width()) + SWATCH_PX + 5.0;
            self.context.set_fill_style_str(&colour.css());
            self.context.fill_rect(x, y - SWATCH_PX / 2.0 - 1.0, SWATCH_PX, SWATCH_PX);
            x -= 14.0;
        }
    }

    /// The scale of a heat map, at the right of its title.
    fn heat_key(&self, subject: &Subject<'_>) {
        const BAR_PX: f64 = 72.0;
        const HIGH_PX: f64 = 9.0;
        let (context, scale) = (self.context, subject.heat_scale());
        let y = self.layout.memory.top_px - TITLE_PX / 2.0 + 1.0;
        let mut x = self.layout.left_px + self.layout.width_px;
        context.set_text_align("right");
        context.set_text_baseline("middle");
        let say = |x: &mut f64, text: &str| {
            context.set_fill_style_str(&self.palette.text.css());
            let _ = context.fill_text(text, *x, y);
            *x -= context.measure_text(text).map_or(0.0, |metrics| metrics.width()) + 5.0;
        };
        if subject.limits.iter().any(Option::is_some) && self.layout.width_px >= 560.0 {
            say(&mut x, "above the limit");
            x -= HIGH_PX;
            context.set_fill_style_str(&self.palette.limit.css());
            context.fill_rect(x, y - HIGH_PX / 2.0 - 0.5, HIGH_PX, HIGH_PX);
            x -= 14.0;
        }
        say(&mut x, &text::bytes(scale.1));
        // On whole pixels: what lies between two would be paler.
        x = (x - BAR_PX).floor();
        for step in 0..BAR_PX as u64 {
            let bytes =
                scale.0 + (u128::from(scale.1 - scale.0.min(scale.1)) * u128::from(step) / BAR_PX as u128) as u64;
            context.set_fill_style_str(&self.palette.heat(bytes, scale).css());
            context.fill_rect(x + step as f64, y - HIGH_PX / 2.0 - 0.5, 1.0, HIGH_PX);
        }
        x -= 5.0;
        say(&mut x, &text::bytes(scale.0));
    }

    /// Hides what has not begun at an instant of a playback, and marks that instant.
    fn veil(&self, view: View, until_ns: f64) {
        let (left, right) = (self.layout.left_px, self.layout.left_px + self.layout.width_px);
        let x = (left + view.x_of(until_ns)).clamp(left, right);
        let high = self.layout.height_px - RULER_PX;
        for panel in self.layout.panels() {
            self.context.set_fill_style_str(&format!("{}e0", self.palette.panel.css()));
            self.context.fill_rect(x, panel.top_px, right - x, panel.rows.height_px);
        }
        self.context.set_fill_style_str(&self.palette.limit.css());
        self.context.fill_rect(x - 1.0, RULER_PX, 2.0, high);
    }

    /// What is planned, what came of it, and what the colours mean.
    fn head(&self, frame: &Frame, subject: &str) {
        const LINE_PX: f64 = 17.0;
        const SWATCH_PX: f64 = 10.0;
        let (context, left) = (self.context, self.layout.left_px);
        context.set_font(FONT);
        context.set_text_align("left");
        context.set_text_baseline("middle");
        context.set_fill_style_str(&self.palette.text.css());
        let _ = context.fill_text(subject, left, 0.7 * LINE_PX);
        if !frame.alone {
            let _ = context.fill_text(&frame.scene.headline(), left, 1.7 * LINE_PX);
        }
        let key = Key::of(frame.plan(), frame.below.as_ref().map(|(below, _)| below));
        let (mut x, y) = (left, 2.7 * LINE_PX);
        let mut say = |title: &str, colour: Option<Rgb>| {
            if let Some(colour) = colour {
                context.set_fill_style_str(&colour.css());
                context.fill_rect(x, y - SWATCH_PX / 2.0 - 1.0, SWATCH_PX, SWATCH_PX);
                x += SWATCH_PX + 5.0;
            }
            context.set_fill_style_str(&self.palette.text.css());
            let _ = context.fill_text(title, x, y);
            x += context.measure_text(title).map_or(0.0, |metrics| metrics.width()) + 14.0;
        };
        for kind in key.kinds {
            say(scene::title_of(kind), Some(self.palette.block(kind, 0)));
        }
        if key.shaded {
            say(scene::SHADES_TITLE, None);
        }
        if key.two_way {
            say(UP_TITLE, Some(self.palette.block(OpKind::F, UP_SHADE)));
        }
    }

    /// Which part of a panel's rows is in sight, where not all are.
    fn scroll_mark(&self, panel: &Panel) {
        let Some((top, bottom)) = panel.rows.mark() else { return };
        let x = self.layout.left_px + self.layout.width_px - MARK_PX;
        self.context.set_fill_style_str(&self.palette.line.css());
        self.context.fill_rect(x, panel.top_px, MARK_PX, panel.rows.height_px);
        self.context.set_fill_style_str(&self.palette.text.css());
        self.context.fill_rect(x, panel.top_px + top, MARK_PX, bottom - top);
    }

    /// Rank numbers left of a panel.
    fn names(&self, panel: &Panel) {
        self.context.set_text_align("right");
        self.context.set_text_baseline("middle");
        self.context.set_fill_style_str(&self.palette.text.css());
        let every = panel.rows.name_every();
        for rank in panel.rows.visible().filter(|rank| rank.is_multiple_of(every)) {
            let (top, bottom) = panel.rows.span_of(rank);
            let middle = (top + bottom) / 2.0;
            if (0.0..=panel.rows.height_px).contains(&middle) {
                let _ =
                    self.context.fill_text(&rank.to_string(), self.layout.left_px - 7.0, panel.top_px + middle + 0.5);
            }
        }
    }

    fn labels(&self, panel: &Panel, subject: &Subject<'_>, tracks: &[Track], view: View) {
        if panel.rows.pitch_px < LEAST_TEXT_ROW_PX {
            return;
        }
        self.context.set_text_align("center");
        self.context.set_text_baseline("middle");
        let mut ink: Option<Rgb> = None;
        for rank in panel.rows.visible() {
            let Some(track) = tracks.get(rank) else { continue };
            let (top, bottom) = panel.ops_of(rank);
            if bottom - top < LEAST_TEXT_ROW_PX - 1.0 {
                continue;
            }
            let y = panel.top_px + (top + bottom) / 2.0 + 0.5;
            if y < panel.top_px || y > panel.top_px + panel.rows.height_px {
                continue;
            }
            for label in paint::labels(subject, (rank, track), view, self.layout.width_px, CHAR_PX, self.palette) {
                let wanted = label.colour.ink();
                if ink != Some(wanted) {
                    self.context.set_fill_style_str(&wanted.css());
                    ink = Some(wanted);
                }
                let _ = self.context.fill_text(&label.text, self.layout.left_px + label.x_px, y);
            }
        }
    }

    /// The peak of each rank, planned and measured, written in its strip.
    fn peaks(&self, frame: &Frame) {
        let panel = &self.layout.memory;
        if panel.rows.pitch_px < LEAST_TEXT_ROW_PX {
            return;
        }
        self.context.set_text_align("right");
        self.context.set_text_baseline("top");
        for rank in panel.rows.visible() {
            let Some(peak) = frame.scene.figures.peak_bytes.get(rank) else { continue };
            let (top, bottom) = panel.rows.span_of(rank);
            if top < 0.0 || bottom > panel.rows.height_px + 0.5 {
                continue;
            }
            // On a phone a longer plate would hide half of the strip.
            let roomy = self.layout.width_px > 480.0;
            let mut peak = if roomy { format!("peak {}", text::bytes(*peak)) } else { text::bytes(*peak) };
            if let Some(measured) = frame.measured_peaks.get(rank).filter(|bytes| **bytes > 0 && roomy) {
                peak = format!("{peak}, measured {}", text::bytes(*measured));
            }
            let kept = frame.kept().and_then(|kept| kept.figures.peak_bytes.get(rank));
            if let Some(kept) = kept.filter(|_| roomy) {
                peak = format!("{peak}, kept {}", text::bytes(*kept));
            }
            let width = peak.chars().count() as f64 * 6.2 + 8.0;
            let mark = if panel.rows.mark().is_some() { MARK_PX } else { 0.0 };
            let right = self.layout.left_px + self.layout.width_px - mark;
            // A plate under the text: it stands on curves of any height.
            self.context.set_fill_style_str(&format!("{}d9", self.palette.panel.css()));
            self.context.fill_rect(right - width, panel.top_px + top, width, 13.0);
            self.context.set_fill_style_str(&self.palette.text.css());
            let _ = self.context.fill_text(&peak, right - 4.0, panel.top_px + top + 1.5);
        }
    }
}

fn context(canvas: &HtmlCanvasElement) -> Option<CanvasRenderingContext2d> {
    canvas.get_context("2d").ok().flatten()?.dyn_into().ok()
}

/// Sets device and CSS size. Setting a size clears a canvas, so it is done only where it differs.
fn resize(canvas: &HtmlCanvasElement, width: u32, height: u32, css_width: f64, css_height: f64) {
    if canvas.width() != width {
        canvas.set_width(width);
    }
    if canvas.height() != height {
        canvas.set_height(height);
    }
    let style: web_sys::CssStyleDeclaration = canvas.unchecked_ref::<web_sys::HtmlElement>().style();
    let _ = style.set_property("width", &format!("{css_width}px"));
    let _ = style.set_property("height", &format!("{css_height}px"));
}
