//! Rows of pixels from one frame to the next: a pan moves them, and only what comes into sight is painted.

use std::collections::BTreeMap;

use super::view::View;

/// Shares of a pixel by which rows may stand beside their place. Nobody sees that, and pointers move by whole pixels anyway.
const BESIDE_PX: f64 = 0.01;

/// The rows of a panel, as the frame before has left them.
#[derive(Debug, Default)]
pub struct PaintedRows {
    frame: u32,
    view: Option<View>,
    width: usize,
    samples: usize,
    /// By how many pixels the view of this frame is to the right of that before.
    moved: isize,
    rows: BTreeMap<usize, Row>,
}

#[derive(Debug)]
struct Row {
    frame: u32,
    pixels: Vec<u8>,
}

impl PaintedRows {
    /// Begins a frame of rows with `width` pixels. Rows stay where it shows the `same` as the frame before, panned by whole pixels.
    pub fn begin(&mut self, view: View, width: usize, samples: usize, same: bool) {
        let is_like = same && (self.width, self.samples) == (width, samples);
        let pan = self.view.filter(|_| is_like).and_then(|before| pan(before, view, width));
        self.frame = self.frame.wrapping_add(1);
        match (pan, self.view) {
            (Some(moved), Some(before)) => {
                self.moved = moved;
                // Not the new view: what stands beside its place would add up.
                self.view = Some(View { start_ns: before.time_at(moved as f64), ..before });
            }
            _ => {
                self.rows.clear();
                (self.view, self.width, self.samples, self.moved) = (Some(view), width, samples, 0);
            }
        }
    }

    /// The pixels of a row, four bytes each. `paint` paints the pixels of a view.
    pub fn row(&mut self, index: usize, mut paint: impl FnMut(View, &mut [u8])) -> &[u8] {
        let (frame, width, moved) = (self.frame, self.width, self.moved);
        let view = self.view.unwrap_or(View { start_ns: 0.0, ns_per_px: 1.0 });
        let mut is_new = false;
        let row = self.rows.entry(index).or_insert_with(|| {
            is_new = true;
            Row { frame, pixels: vec![0; 4 * width] }
        });
        let by = moved.unsigned_abs();
        let unpainted = match moved {
            _ if is_new => 0..width,
            _ if row.frame == frame => 0..0,
            0.. => {
                row.pixels.copy_within(4 * by.., 0);
                width - by..width
            }
            _ => {
                row.pixels.copy_within(..4 * (width - by), 4 * by);
                0..by
            }
        };
        row.frame = frame;
        let part = View { start_ns: view.time_at(unpainted.start as f64), ..view };
        if let Some(pixels) =
            row.pixels.get_mut(4 * unpainted.start..4 * unpainted.end).filter(|part| !part.is_empty())
        {
            paint(part, pixels);
        }
        &row.pixels
    }

    /// Ends a frame: rows that it did not show are dropped.
    pub fn end(&mut self) {
        let frame = self.frame;
        self.rows.retain(|_, row| row.frame == frame);
    }
}

/// By how many whole pixels `after` is to the right of `before`, where it is by so many, and part of both is the same.
fn pan(before: View, after: View, width: usize) -> Option<isize> {
    let moved_px = (after.start_ns - before.start_ns) / before.ns_per_px;
    let whole = moved_px.round();
    let is_pan = before.ns_per_px == after.ns_per_px && (moved_px - whole).abs() < BESIDE_PX;
    (is_pan && whole.abs() < width as f64).then_some(whole as isize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::colour::Rgb;
    use crate::draw::raster::track_row;
    use crate::draw::track::tests::track;
    use proptest::prelude::*;

    const IDLE: Rgb = Rgb(0, 0, 0);

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// However a person pans, zooms and scrolls, rows are those that are painted anew; and a pan paints no more than what
        /// comes into sight.
        #[test]
        fn rows_that_are_moved_are_those_that_are_painted(
            pieces in prop::collection::vec((0u64..30, 1u64..30), 1..200),
            moves in prop::collection::vec((-90i32..90, 0usize..3, any::<bool>()), 1..20),
            ns_per_px in 0.3f64..40.0,
        ) {
            let mut now = 0;
            let times: Vec<(u64, u64)> = pieces.iter().map(|(wait, work)| {
                let start = now + wait;
                now = start + work;
                (start, now)
            }).collect();
            let tracks: Vec<_> = (0..4).map(|skip| track(&times[skip.min(times.len())..])).collect();
            let colour = |_: &pipeplan_core::simulate::timeline::Span| Rgb(200, 200, 200);
            let mut rows = PaintedRows::default();
            let mut view = View { start_ns: 0.0, ns_per_px };
            let mut shown: Option<(View, Vec<usize>)> = None;
            for (by, first, zooms) in moves {
                view.start_ns += f64::from(by) * view.ns_per_px;
                if zooms {
                    view.ns_per_px *= 1.25;
                }
                rows.begin(view, 64, 6, true);
                for (index, track) in tracks.iter().enumerate().skip(first).take(2) {
                    let mut painted = 0;
                    let pixels = rows.row(index, |view, row| {
                        painted += row.len() / 4;
                        track_row(track, view, IDLE, 6, colour, row);
                    }).to_vec();
                    let mut anew = vec![0; 4 * 64];
                    track_row(track, view, IDLE, 6, colour, &mut anew);
                    for (pixel, (one, other)) in pixels.iter().zip(&anew).enumerate() {
                        prop_assert!(one.abs_diff(*other) <= 4, "{pixel}: {one} {other}");
                    }
                    let was_shown = shown.as_ref().is_some_and(|(before, rows)| before.ns_per_px == view.ns_per_px && rows.contains(&index));
                    let wanted = if was_shown { by.unsigned_abs().min(64) as usize } else { 64 };
                    prop_assert_eq!(painted, wanted);
                }
                rows.end();
                shown = Some((view, vec![first, first + 1]));
            }
        }
    }

    #[test]
    fn another_subject_and_another_width_are_painted_anew() {
        let view = View { start_ns: 0.0, ns_per_px: 1.0 };
        let mut rows = PaintedRows::default();
        let mut painted = |view: View, width: usize, samples: usize, same: bool| {
            let mut painted = 0;
            rows.begin(view, width, samples, same);
            rows.row(0, |_, row| painted += row.len() / 4);
            rows.row(0, |_, row| painted += row.len() / 4);
            rows.end();
            painted
        };
        assert_eq!([painted(view, 10, 6, false), painted(view, 10, 6, true)], [10, 0]);
        assert_eq!(
            [painted(view, 10, 6, false), painted(view, 12, 6, true), painted(view, 12, 7, true)],
            [10, 12, 12]
        );
        let right = View { start_ns: 3.0, ..view };
        let beside = View { start_ns: 3.4, ..view };
        assert_eq!(
            [painted(right, 12, 7, true), painted(beside, 12, 7, true), painted(view, 12, 7, true)],
            [3, 12, 12]
        );
    }
}
