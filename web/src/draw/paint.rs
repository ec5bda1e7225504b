//! All panels of the picture as one image, and the text on it.
//!
//! From the top: the ruler, the planned ranks, the ranks of what is compared with it, if anything is, the memory of each rank.
//! Pixels here are device pixels; [`Layout`] is in CSS pixels.

use std::ops::Range;

use pipeplan_core::formats::colour::UP_SHADE;
use pipeplan_core::problem::op::Op;
use pipeplan_core::simulate::timeline::Span;

use super::colour::{Palette, Rgb, Shades};
use super::layout::{Layout, Panel};
use super::marks::Marks;
use super::memory::{Curve, height_of};
use super::painted::PaintedRows;
use super::raster::{Image, samples, track_row};
use super::track::{Carried, Track};
use super::view::View;

/// The line under the text of blocks that go up the ranks: from where to where above their lower edge, so that it stands on
/// the block on dark pages too, in rows that are high enough for it.
const LINE_PX: [f64; 2] = [4.0, 2.0];
const LEAST_LINED_PX: f64 = 9.0;

/// The part under the plan.
#[derive(Clone, Copy)]
pub struct Below<'s> {
    /// Its ranks.
    pub tracks: &'s [Track],
    /// By how much its times are scaled.
    pub scale: f64,
    /// Which of its rank's chunks a stage of it is.
    pub chunk_of_stage: &'s [usize],
    /// As [`Subject::up_from`].
    pub up_from: Option<usize>,
    /// Memory by rank, drawn as a line over that of the plan; none of what has not been held.
    pub curve: &'s dyn Fn(usize) -> Option<&'s Curve>,
    /// By rank: what it did beside its ops; empty where that is not known.
    pub marks: &'s [Marks],
}

impl Below<'_> {
    /// The view of it under `view` of the plan: a time drawn at `scale` of itself is a view `scale` times wider.
    pub fn view(&self, view: View) -> View {
        View { start_ns: view.start_ns / self.scale, ns_per_px: view.ns_per_px / self.scale }
    }
}

/// The content of the picture.
#[derive(Clone, Copy)]
pub struct Subject<'s> {
    /// The planned ranks.
    pub planned: &'s [Track],
    /// The part under them.
    pub below: Option<Below<'s>>,
    /// Memory by rank.
    pub curve: &'s dyn Fn(usize) -> Option<&'s Curve>,
    /// Bytes held throughout, by rank.
    pub static_bytes: &'s [u64],
    /// Limits by rank.
    pub limits: &'s [Option<u64>],
    /// Bytes at the top of a strip.
    pub top_bytes: u64,
    /// Which of its rank's chunks a stage is.
    pub chunk_of_stage: &'s [usize],
    /// In bidirectional schedules: the microbatches from this one on go up the ranks.
    pub up_from: Option<usize>,
    /// The ops that stand out, by rank; all others fade. None: all are alike.
    pub lit: Option<&'s dyn Fn(usize, Op) -> bool>,
    /// The same for the part under the plan.
    pub lit_below: Option<&'s dyn Fn(usize, Op) -> bool>,
    /// What ranks send and do beside their ops.
    pub carried: &'s dyn Fn(usize) -> Option<&'s Carried>,
}

impl<'s> Subject<'s> {
    /// The bytes at both ends of a heat map: from the least that any rank always holds to the limit, or to the highest peak.
    pub fn heat_scale(&self) -> (u64, u64) {
        let least = self.static_bytes.iter().copied().min().unwrap_or(0);
        let limit = self.limits.iter().flatten().copied().filter(|limit| *limit <= self.top_bytes).max();
        (least, limit.unwrap_or(self.top_bytes))
    }

    /// As this, with the chunks of what is compared.
    pub fn of(self, below: Below<'s>) -> Subject<'s> {
        Subject { chunk_of_stage: below.chunk_of_stage, up_from: below.up_from, lit: self.lit_below, ..self }
    }

    /// The colour of a span of a rank.
    pub fn colour(&self, shades: &Shades, rank: usize, span: &Span) -> Rgb {
        let chunk = self.chunk_of_stage.get(span.op.stage()).copied().unwrap_or(0);
        let shade = if self.goes_up(span) { UP_SHADE } else { chunk };
        match self.lit {
            Some(lit) if !lit(rank, span.op) => shades.faded(span.op.kind(), shade),
            _ => shades.block(span.op.kind(), shade),
        }
    }

    /// The colour of the line on a span: that of its text where it goes up the ranks, for those who tell shades apart badly.
    fn line(&self, shades: &Shades, rank: usize, span: &Span) -> Rgb {
        let colour = self.colour(shades, rank, span);
        if self.goes_up(span) { colour.ink() } else { colour }
    }

    fn goes_up(&self, span: &Span) -> bool {
        self.up_from.is_some_and(|from| span.op.microbatch() >= from)
    }
}

/// What the frame before has left for the next one.
#[derive(Debug, Default)]
pub struct Before {
    /// Its image, whose memory is used again.
    pub image: Option<Image>,
    /// Whether the next one is of the same subject with the same palette: then its rows are used again.
    pub same: bool,
    planned: PaintedRows,
    below: PaintedRows,
}

/// Paints the time axis part of all panels. `ratio` is device pixels per CSS pixel; `view` is in CSS pixels.
pub fn paint(
    subject: &Subject<'_>,
    layout: &Layout,
    view: View,
    ratio: f64,
    palette: &Palette,
    before: &mut Before,
) -> Image {
    let device = |css: f64| (css * ratio).round() as i64;
    let width = device(layout.width_px).max(1) as usize;
    let mut image =
        Image::filled(width, device(layout.height_px).max(1) as usize, palette.panel, before.image.take());
    let view = view.scaled(ratio);
    let mut row = vec![0; 4 * width];
    let shades = Shades::of(palette);
    // Not those in sight: scrolling changes their number.
    let fitting = |panel: Panel| ((panel.rows.height_px / panel.rows.pitch_px) as usize + 1).min(panel.rows.count);
    let shown = fitting(layout.planned) + layout.below.map_or(0, fitting);
    let samples = samples(shown, width);
    let same = before.same;
    let mut tracks = |image: &mut Image,
                      panel: &Panel,
                      subject: &Subject<'_>,
                      tracks: &[Track],
                      view: View,
                      painted: &mut PaintedRows| {
        painted.begin(view, width, samples, same);
        for index in panel.rows.visible() {
            let Some(track) = tracks.get(index) else { continue };
            let pixels = painted.row(index, |view, row| {
                track_row(track, view, palette.idle, samples, |span| subject.colour(&shades, index, span), row);
            });
            let (top, bottom) = panel.ops_of(index);
            let low = panel.top_px;
            let high = low + panel.rows.height_px;
            let clip = |y: f64| device((low + y).clamp(low, high));
            image.repeat_row(pixels, clip(top), clip(bottom).max(clip(top) + 1));
            if subject.up_from.is_some() && panel.rows.pitch_px >= LEAST_LINED_PX {
                track_row(track, view, palette.idle, samples, |span| subject.line(&shades, index, span), &mut row);
                let [from, to] = LINE_PX.map(|above| clip(bottom - above));
                image.repeat_row(&row, from, to);
            }
        }
        painted.end();
    };
    tracks(&mut image, &layout.planned, subject, subject.planned, view, &mut before.planned);
    if let (Some(panel), Some(below)) = (&layout.below, subject.below) {
        tracks(&mut image, panel, &subject.of(below), below.tracks, below.view(view), &mut before.below);
        paint_marks(&mut image, &below, panel, view, ratio, palette);
    }
    if let Some(panel) = &layout.carried {
        for index in panel.rows.visible() {
            if let Some(carried) = (subject.carried)(index) {
                paint_carried(&mut image, subject, panel, index, carried, view, ratio, palette);
            }
        }
    }
    for index in layout.memory.rows.visible() {
        if layout.heat {
            if let Some(curve) = (subject.curve)(index) {
                paint_heat(&mut image, subject, layout, index, curve, view, ratio, palette);
            }
            continue;
        }
        if let Some(curve) = (subject.curve)(index) {
            paint_curve(&mut image, subject, layout, index, curve, view, ratio, palette);
        }
        if let Some(below) = subject.below
            && let Some(curve) = (below.curve)(index)
        {
            paint_line(&mut image, subject, below, layout, index, curve, view, ratio, palette);
        }
    }
    image
}

/// What ranks did beside their ops, under those.
fn paint_marks(image: &mut Image, below: &Below<'_>, panel: &Panel, view: View, ratio: f64, palette: &Palette) {
    let mut row = vec![0; 4 * image.width];
    let samples = samples(panel.rows.visible().len(), image.width);
    let y = |y: f64| ((panel.top_px + y.clamp(0.0, panel.rows.height_px)) * ratio).round() as i64;
    for index in panel.rows.visible() {
        if let (Some(from), Some(marks)) = (panel.marks_from(index), below.marks.get(index)) {
            let rows = (y(from), y(panel.rows.span_of(index).1));
            marks.paint(image, &mut row, rows, below.view(view), samples, palette);
        }
    }
}

/// What a rank sends: activations in the upper part of its row, gradients below, and where it copies to the host, its copies
/// below these. Then gradient sync and optimizer.
#[expect(clippy::too_many_arguments, reason = "one row of many; a struct would only rename them")]
fn paint_carried(
    image: &mut Image,
    subject: &Subject<'_>,
    panel: &Panel,
    index: usize,
    carried: &Carried,
    view: View,
    ratio: f64,
    palette: &Palette,
) {
    let (top, bottom) = panel.rows.span_of(index);
    let (low, high) = (panel.top_px, panel.top_px + panel.rows.height_px);
    let y = |y: f64| ((low + y).clamp(low, high) * ratio).round() as i64;
    let tracks = [&carried.activations, &carried.gradients, &carried.copies];
    // Without copies there is no room for them.
    let parts = if carried.copies.spans().is_empty() { 2 } else { 3 };
    let part = |part: usize| y(top + (bottom - top) * part as f64 / parts as f64);
    let shades = Shades::of(palette);
    let samples = samples(2 * panel.rows.visible().len(), image.width);
    let mut row = vec![0; 4 * image.width];
    for (at, track) in tracks.into_iter().take(parts).enumerate() {
        let (from, to) = (part(at), part(at + 1));
        track_row(track, view, palette.idle, samples, |span| subject.colour(&shades, index, span), &mut row);
        image.repeat_row(&row, from, to);
    }
    for ((from_ns, to_ns), colour) in carried.after.into_iter().zip([palette.sync, palette.optimizer]) {
        let x = |time_ns: u64| view.x_of(time_ns as f64).round().clamp(-1.0, image.width as f64 + 1.0) as i64;
        image.fill((x(from_ns), x(to_ns)), (y(top), y(bottom)), colour);
    }
}

/// A rank's memory as a row of colours.
#[expect(clippy::too_many_arguments, reason = "one strip of many; a struct would only rename them")]
fn paint_heat(
    image: &mut Image,
    subject: &Subject<'_>,
    layout: &Layout,
    index: usize,
    curve: &Curve,
    view: View,
    ratio: f64,
    palette: &Palette,
) {
    let strip = MemoryTrack::of(subject, layout, index, ratio);
    let scale = subject.heat_scale();
    let limit = subject.limits.get(index).copied().flatten();
    let end_x = view.x_of(curve_end(subject.planned, index) as f64);
    let mut row = Vec::with_capacity(4 * image.width);
    for (x, range) in curve.columns(view, image.width).into_iter().enumerate() {
        let colour = match limit {
            Some(limit) if range.most > limit => palette.limit,
            _ => palette.heat(range.most, scale),
        };
        let colour = if x as f64 > end_x { palette.idle.mixed(colour, 0.35) } else { colour };
        row.extend(colour.pixel());
    }
    image.repeat_row(&row, strip.seen.start, strip.seen.end.max(strip.seen.start + 1));
}

/// The area of a rank's memory, in pixel rows of the image.
struct MemoryTrack {
    /// The visible part.
    seen: Range<i64>,
    bottom_y: i64,
    height: f64,
    top_bytes: u64,
}

impl MemoryTrack {
    fn of(subject: &Subject<'_>, layout: &Layout, index: usize, ratio: f64) -> MemoryTrack {
        let panel = &layout.memory;
        let (top, bottom) = panel.rows.span_of(index);
        let (low, high) = (panel.top_px, panel.top_px + panel.rows.height_px);
        let device = |css: f64| (css * ratio).round() as i64;
        let clip = |y: f64| device((low + y).clamp(low, high));
        let (top_y, bottom_y) = (device(low + top), device(low + bottom));
        let height = (bottom_y - top_y) as f64;
        MemoryTrack { seen: clip(top)..clip(bottom), bottom_y, height, top_bytes: subject.top_bytes }
    }

    fn y_of(&self, bytes: u64) -> i64 {
        self.bottom_y - height_of(bytes, self.top_bytes, self.height).round() as i64
    }
}

#[expect(clippy::too_many_arguments, reason = "one strip of many; a struct would only rename them")]
fn paint_curve(
    image: &mut Image,
    subject: &Subject<'_>,
    layout: &Layout,
    index: usize,
    curve: &Curve,
    view: View,
    ratio: f64,
    palette: &Palette,
) {
    let strip = MemoryTrack::of(subject, layout, index, ratio);
    let held_y = strip.y_of(subject.static_bytes.get(index).copied().unwrap_or(0));
    let limit = subject.limits.get(index).copied().flatten();
    let limit_y = limit.filter(|limit| *limit <= subject.top_bytes).map(|limit| strip.y_of(limit));
    let end_x = view.x_of(curve_end(subject.planned, index) as f64);
    for (x, range) in curve.columns(view, image.width).into_iter().enumerate() {
        let past = x as f64 > end_x;
        let (most_y, least_y) = (strip.y_of(range.most), strip.y_of(range.least));
        for y in strip.seen.clone() {
            let area = if y >= held_y { palette.held } else { palette.memory };
            let colour = if y >= least_y {
                area
            } else if y >= most_y {
                // Between least and most within one pixel: neither always held nor never.
                palette.idle.mixed(area, 0.6)
            } else {
                palette.idle
            };
            image.set(x, y, if past { palette.idle.mixed(colour, 0.35) } else { colour });
        }
        if let Some(limit_y) = limit_y
            && strip.seen.contains(&limit_y)
        {
            for thick in 0..(ratio.round() as i64).max(1) {
                image.set(x, limit_y + thick, palette.limit);
            }
        }
    }
}

/// What a rank of the plan below holds, until its last op ends, as a line.
#[expect(clippy::too_many_arguments, reason = "one strip of many; a struct would only rename them")]
fn paint_line(
    image: &mut Image,
    subject: &Subject<'_>,
    below: Below<'_>,
    layout: &Layout,
    index: usize,
    curve: &Curve,
    view: View,
    ratio: f64,
    palette: &Palette,
) {
    let strip = MemoryTrack::of(subject, layout, index, ratio);
    // A rank that holds nothing has a line, too.
    let y_of = |bytes: u64| strip.y_of(bytes).min(strip.bottom_y - 1);
    let thick = (ratio.round() as i64).max(1);
    let view = below.view(view);
    let end_x = view.x_of(curve_end(below.tracks, index) as f64);
    let mut before = None;
    for (x, range) in curve.columns(view, image.width).into_iter().enumerate().take_while(|(x, _)| *x as f64 <= end_x)
    {
        let (most_y, least_y) = (y_of(range.most), y_of(range.least));
        // From where the line was, so that a step up or down is part of it.
        let (from, to) = before.map_or((most_y, least_y), |y: i64| (most_y.min(y), least_y.max(y)));
        for y in (from..to + thick).filter(|y| strip.seen.contains(y)) {
            image.set(x, y, palette.text);
        }
        before = Some(y_of(curve.at(view.time_at((x + 1) as f64))));
    }
}

fn curve_end(tracks: &[Track], rank: usize) -> u64 {
    tracks.get(rank).map_or(0, Track::end_ns)
}

/// Text on a block that is wide enough, in CSS pixels of the time axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Middle of the visible part of the block.
    pub x_px: f64,
    /// The longest text that fits.
    pub text: String,
    /// The block's colour, for the ink.
    pub colour: Rgb,
}

/// Labels of the visible blocks of the track of a rank. A character takes `char_px`; blocks too narrow for their
/// microbatch stay blank.
pub fn labels(
    subject: &Subject<'_>,
    (rank, track): (usize, &Track),
    view: View,
    width_px: f64,
    char_px: f64,
    palette: &Palette,
) -> Vec<Label> {
    let range = track.between(view.start_ns, view.time_at(width_px));
    // More blocks than could each hold a character: none is wide enough.
    if range.len() as f64 > width_px / char_px {
        return Vec::new();
    }
    let spans = track.spans().get(range).unwrap_or_default();
    let shades = Shades::of(palette);
    let edges = |span: &Span| (view.x_of(span.start_ns as f64).max(0.0), view.x_of(span.end_ns as f64).min(width_px));
    // The text of a block by its width: none; microbatch; kind and microbatch; stage, kind and microbatch.
    let wording = |span: &Span| {
        let (from, to) = edges(span);
        let room = ((to - from - 4.0) / char_px) as usize;
        let length = |number: usize| number.checked_ilog10().map_or(1, |tens| tens as usize + 1);
        let microbatch = length(span.op.microbatch());
        let kind_too = microbatch + span.op.kind().text().len();
        let all = kind_too + length(span.op.stage());
        [microbatch, kind_too, all].into_iter().filter(|needed| *needed <= room).count()
    };
    // A row reads more easily when most of its blocks say the same: no more than three quarters of them can.
    let mut words: Vec<usize> = spans.iter().map(wording).filter(|wording| *wording > 0).collect();
    words.sort_unstable();
    let usual = words.get(words.len() / 4).copied().unwrap_or(0);
    let label = |span: &Span| {
        let op = span.op;
        let text = match wording(span).min(usual) {
            0 => return None,
            1 => op.microbatch().to_string(),
            2 => format!("{}{}", op.kind(), op.microbatch()),
            _ => op.to_string(),
        };
        let (from, to) = edges(span);
        Some(Label { x_px: (from + to) / 2.0, text, colour: subject.colour(&shades, rank, span) })
    };
    spans.iter().filter_map(label).collect()
}

#[cfg(test)]
mod tests;
