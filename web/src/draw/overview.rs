//! The whole plan in a strip, and which part of it is on screen.

use super::colour::{Palette, Shades};
use super::paint::Subject;
use super::raster::{Image, samples, track_row};
use super::view::{Extent, View};

/// Height of the strip, in CSS pixels.
pub const OVERVIEW_PX: f64 = 30.0;

/// Paints all of the time on `width` pixels, `height` pixels high: a line for each rank, or for every so many.
pub fn paint(subject: &Subject<'_>, extent: Extent, width: usize, height: usize, palette: &Palette) -> Image {
    let mut image = Image::filled(width, height, palette.idle, None);
    let view = Extent { width_px: width as f64, ..extent }.fit();
    let shades = Shades::of(palette);
    let ranks = subject.planned.len();
    let lines = ranks.min(height);
    let mut row = vec![0; 4 * width];
    for line in 0..lines {
        let rank = line * ranks / lines;
        let Some(track) = subject.planned.get(rank) else { continue };
        track_row(
            track,
            view,
            palette.idle,
            samples(lines, width),
            |span| subject.colour(&shades, rank, span),
            &mut row,
        );
        image.repeat_row(&row, (line * height / lines) as i64, ((line + 1) * height / lines) as i64);
    }
    image
}

/// Where the part on screen begins on the strip, and how wide it is, as shares of the strip.
pub fn window(view: View, extent: Extent) -> (f64, f64) {
    let whole_ns = extent.fit().ns_per_px * extent.width_px;
    let share = |ns: f64| (ns / whole_ns.max(1.0)).clamp(0.0, 1.0);
    let (from, to) = (share(view.start_ns), share(view.time_at(extent.width_px)));
    (from, (to - from).max(0.0))
}

/// The view whose middle is at a share of the strip.
pub fn centred(share: f64, view: View, extent: Extent) -> View {
    let whole_ns = extent.fit().ns_per_px * extent.width_px;
    let shown_ns = view.ns_per_px * extent.width_px;
    extent.clamp(View { start_ns: share * whole_ns - shown_ns / 2.0, ..view })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::track::tests::track;
    use pipeplan_core::problem::op::OpKind;

    const EXTENT: Extent = Extent { whole_ns: 1000.0, width_px: 100.0 };

    #[test]
    fn the_window_is_where_the_view_is() {
        assert_eq!(window(EXTENT.fit(), EXTENT), (0.0, 1.0));
        let view = View { start_ns: 505.0, ns_per_px: 1.01 };
        let (from, width) = window(view, EXTENT);
        assert!((from - 0.5).abs() < 1e-9 && (width - 0.1).abs() < 1e-9, "{from} {width}");
        // A tap brings its place into the middle, as far as the plan goes.
        let there = centred(0.75, view, EXTENT);
        assert!((window(there, EXTENT).0 - 0.7).abs() < 1e-9);
        assert_eq!(centred(0.0, view, EXTENT).start_ns, 0.0);
        assert!((window(centred(1.0, view, EXTENT), EXTENT).0 - 0.9).abs() < 1e-9);
    }

    #[test]
    fn every_rank_has_a_line_where_there_is_room() {
        let tracks = [track(&[(0, 500)]), track(&[(500, 1000)])];
        let subject = Subject {
            planned: &tracks,
            below: None,
            curve: &|_| None,
            static_bytes: &[],
            limits: &[],
            top_bytes: 0,
            chunk_of_stage: &[0],
            up_from: None,
            lit: None,
            lit_below: None,
            carried: &|_| None,
        };
        let image = paint(&subject, EXTENT, 100, 30, &Palette::LIGHT);
        let pixel = |x: usize, y: usize| &image.bytes[4 * (y * 100 + x)..][..4];
        let forward = Palette::LIGHT.block(OpKind::F, 0).pixel();
        let idle = Palette::LIGHT.idle.pixel();
        assert_eq!(
            [pixel(10, 3), pixel(90, 3), pixel(10, 25), pixel(90, 25)],
            [&forward[..], &idle, &idle, &forward]
        );
    }
}
