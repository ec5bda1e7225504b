//! A track as one row of pixels.
//!
//! A pixel's colour is the mean over the time that it covers, so a bubble too narrow to see still lightens
//! its pixel by its share. The cost follows the pixels, not the spans: the busy share comes from running
//! sums, and of the spans under one pixel no more than a given number give their colour. Those are taken one
//! from each of as many equal groups, at an irregular place: every third span of a schedule is of one kind, so
//! regular places would paint stripes that are not there.

use pipeplan_core::simulate::timeline::Span;

use super::colour::Rgb;
use super::track::{Track, gallop};
use super::view::View;

/// Spans that may be looked at for one picture: some ten milliseconds of one core.
const LOOKS: usize = 2_000_000;

/// How many spans under one pixel may give it its colour, in a picture of so many pixels of so many tracks.
pub fn samples(tracks: usize, pixels: usize) -> usize {
    (LOOKS / (tracks * pixels).max(1)).clamp(6, 64)
}

/// Writes `row.len() / 4` pixels of `track` into `row`, four bytes each.
///
/// `colour` gives a span's colour; `idle` fills the rest. `view` counts the pixels of this row. At most
/// `samples` spans give a pixel its colour.
pub fn track_row(
    track: &Track,
    view: View,
    idle: Rgb,
    samples: usize,
    mut colour: impl FnMut(&Span) -> Rgb,
    row: &mut [u8],
) {
    let spans = track.spans();
    let mut first = track.first_ending_after(view.start_ns);
    let mut cursor = Cursor { whole_until_px: 0, colour: idle };
    let pixels = row.len() / 4;
    for (index, pixel) in row.chunks_exact_mut(4).enumerate() {
        if index < cursor.whole_until_px {
            pixel.copy_from_slice(&cursor.colour.pixel());
            continue;
        }
        let (from_ns, to_ns) = (view.time_at(index as f64), view.time_at((index + 1) as f64));
        first = gallop(spans, first, |span| span.end_ns as f64 <= from_ns);
        let until = gallop(spans, first, |span| (span.start_ns as f64) < to_ns);
        let mixed = match spans.get(first..until).unwrap_or_default() {
            [] => {
                // Nothing until the next span: fill at once.
                let next = spans.get(first).map_or(f64::INFINITY, |span| view.x_of(span.start_ns as f64));
                cursor = Cursor { whole_until_px: whole_px(next, pixels), colour: idle };
                idle
            }
            [span] => {
                let hue = colour(span);
                let (start, end) = (span.start_ns as f64, span.end_ns as f64 - gap_ns(span, view));
                if start <= from_ns {
                    cursor = Cursor { whole_until_px: whole_px(view.x_of(end), pixels), colour: hue };
                }
                idle.mixed(hue, share(start, end, from_ns, to_ns))
            }
            under if under.len() <= samples => mix_exactly(under, view, idle, &mut colour, from_ns, to_ns),
            under => {
                let cut_left = (from_ns - under[0].start_ns as f64).max(0.0);
                let cut_right = (under[under.len() - 1].end_ns as f64 - to_ns).max(0.0);
                let busy = track.busy_ns(first, until) as f64 - cut_left - cut_right;
                let mut mean = Mean::default();
                for sample in 0..samples {
                    let (from, to) = (sample * under.len() / samples, (sample + 1) * under.len() / samples);
                    let Some(group) = under.get(from..to).filter(|group| !group.is_empty()) else { continue };
                    let span = &group[irregular(first + from) % group.len()];
                    mean.add(colour(span), (span.end_ns - span.start_ns) as f64);
                }
                idle.mixed(mean.colour(idle), (busy / (to_ns - from_ns)).clamp(0.0, 1.0))
            }
        };
        pixel.copy_from_slice(&mixed.pixel());
    }
}

/// A number without visible order for each position (the finaliser of SplitMix64, on 32 bits).
fn irregular(position: usize) -> usize {
    let mut bits = (position as u32).wrapping_mul(0x9e37_79b9);
    bits = (bits ^ (bits >> 15)).wrapping_mul(0x85eb_ca6b);
    (bits ^ (bits >> 13)) as usize
}

/// Pixels up to `whole_until_px` all have this colour.
struct Cursor {
    whole_until_px: usize,
    colour: Rgb,
}

/// The last pixel edge at or before `x`.
fn whole_px(x: f64, pixels: usize) -> usize {
    if x >= pixels as f64 { pixels } else { x.max(0.0) as usize }
}

/// The share of `from..to` that `start..end` covers.
fn share(start: f64, end: f64, from: f64, to: f64) -> f64 {
    ((end.min(to) - start.max(from)) / (to - from)).clamp(0.0, 1.0)
}

/// Left free at the end of a block so that neighbours of one colour stay apart: nothing for blocks of two
/// pixels, growing to one pixel for wide ones.
fn gap_ns(span: &Span, view: View) -> f64 {
    let width_px = (span.end_ns - span.start_ns) as f64 / view.ns_per_px;
    ((width_px - 2.0) / 6.0).clamp(0.0, 1.0) * view.ns_per_px
}

fn mix_exactly(
    spans: &[Span],
    view: View,
    idle: Rgb,
    colour: &mut impl FnMut(&Span) -> Rgb,
    from_ns: f64,
    to_ns: f64,
) -> Rgb {
    let mut mean = Mean::default();
    for span in spans {
        let end = span.end_ns as f64 - gap_ns(span, view);
        mean.add(colour(span), share(span.start_ns as f64, end, from_ns, to_ns));
    }
    let covered = mean.weight.min(1.0);
    idle.mixed(mean.colour(idle), covered)
}

/// A mean of colours by weight.
#[derive(Default)]
struct Mean {
    sum: [f64; 3],
    weight: f64,
}

impl Mean {
    fn add(&mut self, colour: Rgb, weight: f64) {
        for (sum, value) in self.sum.iter_mut().zip([colour.0, colour.1, colour.2]) {
            *sum += f64::from(value) * weight;
        }
        self.weight += weight;
    }

    fn colour(&self, otherwise: Rgb) -> Rgb {
        if self.weight <= 0.0 {
            return otherwise;
        }
        let [red, green, blue] = self.sum.map(|sum| (sum / self.weight + 0.5) as u8);
        Rgb(red, green, blue)
    }
}

/// Pixels of a panel, four bytes each, rows from the top.
#[derive(Clone, Debug)]
pub struct Image {
    /// Pixels of one row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `4 · width · height` bytes.
    pub bytes: Vec<u8>,
}

impl Image {
    /// An image filled with one colour. Keeps the memory of `before` where it fits.
    pub fn filled(width: usize, height: usize, colour: Rgb, before: Option<Image>) -> Image {
        let mut bytes = before.map(|image| image.bytes).unwrap_or_default();
        bytes.resize(4 * width * height, 0);
        for pixel in bytes.chunks_exact_mut(4) {
            pixel.copy_from_slice(&colour.pixel());
        }
        Image { width, height, bytes }
    }

    /// Copies one row of pixels into rows `top..bottom`, as far as they are inside.
    pub fn repeat_row(&mut self, row: &[u8], top: i64, bottom: i64) {
        let clip = |y: i64| y.clamp(0, self.height as i64) as usize;
        let stride = 4 * self.width;
        let (top, bottom) = (clip(top), clip(bottom));
        for y in top..bottom {
            if let Some(target) = self.bytes.get_mut(y * stride..(y + 1) * stride)
                && target.len() == row.len()
            {
                target.copy_from_slice(row);
            }
        }
    }

    /// Fills columns `left..right` of rows `top..bottom`, as far as they are inside.
    pub fn fill(&mut self, (left, right): (i64, i64), (top, bottom): (i64, i64), colour: Rgb) {
        let clip = |x: i64| x.clamp(0, self.width as i64) as usize;
        let columns = clip(left)..clip(right);
        (top..bottom).for_each(|y| columns.clone().for_each(|x| self.set(x, y, colour)));
    }

    /// Sets one pixel, if it is inside.
    pub fn set(&mut self, x: usize, y: i64, colour: Rgb) {
        if x >= self.width || y < 0 || y >= self.height as i64 {
            return;
        }
        let at = 4 * (y as usize * self.width + x);
        if let Some(pixel) = self.bytes.get_mut(at..at + 4) {
            pixel.copy_from_slice(&colour.pixel());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeplan_core::problem::op::{Op, OpKind};
    use proptest::prelude::*;

    const IDLE: Rgb = Rgb(0, 0, 0);
    const BUSY: Rgb = Rgb(255, 255, 255);

    fn track(times: &[(u64, u64)]) -> Track {
        Track::new(
            times.iter().map(|&(start_ns, end_ns)| Span { op: Op::new(0, OpKind::F, 0), start_ns, end_ns }).collect(),
        )
    }

    /// Grey of each pixel, one byte a pixel.
    fn greys(track: &Track, view: View, pixels: usize) -> Vec<u8> {
        let mut row = vec![0; 4 * pixels];
        track_row(track, view, IDLE, 6, |_| BUSY, &mut row);
        row.chunks_exact(4).map(|pixel| pixel[0]).collect()
    }

    #[test]
    fn blocks_fill_their_pixels_with_a_gap_between() {
        let view = View { start_ns: 0.0, ns_per_px: 1.0 };
        let track = track(&[(2, 10), (10, 18)]);
        let row: String = greys(&track, view, 20).iter().map(|grey| if *grey > 200 { '#' } else { '.' }).collect();
        assert_eq!(row, "..#######.#######...");
    }

    #[test]
    fn half_a_pixel_is_half_as_bright() {
        let view = View { start_ns: 0.0, ns_per_px: 10.0 };
        assert_eq!(greys(&track(&[(0, 5), (15, 30)]), view, 4), [128, 128, 255, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// However far the zoom is, the mean brightness is the busy share of the visible time.
        #[test]
        fn brightness_is_the_busy_share(
            pieces in prop::collection::vec((0u64..30, 1u64..30), 1..400),
            pixels in 1usize..64,
            part in 0.05f64..1.0,
        ) {
            let mut now = 0;
            let times: Vec<(u64, u64)> = pieces.iter().map(|(wait, work)| {
                let start = now + wait;
                now = start + work;
                (start, now)
            }).collect();
            let track = track(&times);
            // No wider than two pixels a block, where there are no gaps.
            let ns_per_px = (now as f64 * part / pixels as f64).max(15.0);
            let view = View { start_ns: 3.0, ns_per_px };
            let to_ns = view.time_at(pixels as f64);
            let busy: f64 = times.iter()
                .map(|&(start, end)| ((end as f64).min(to_ns) - (start as f64).max(3.0)).max(0.0))
                .sum();
            let wanted = busy / (to_ns - 3.0);
            let seen = greys(&track, view, pixels).iter().map(|grey| f64::from(*grey) / 255.0).sum::<f64>() / pixels as f64;
            prop_assert!((seen - wanted).abs() < 0.01, "{} instead of {}", seen, wanted);
        }
    }

    #[test]
    fn kinds_in_turn_mix_evenly_however_many_are_under_a_pixel() {
        let kinds = [OpKind::F, OpKind::B, OpKind::W];
        let span = |index: u64| Span {
            op: Op::new(0, kinds[index as usize % 3], 0),
            start_ns: 10 * index,
            end_ns: 10 * index + 10,
        };
        let track = Track::new((0..300_000).map(span).collect());
        let primary = |span: &Span| match span.op.kind() {
            OpKind::F => Rgb(255, 0, 0),
            OpKind::B => Rgb(0, 255, 0),
            _ => Rgb(0, 0, 255),
        };
        for pixels in [100, 1000, 5000, 50_000] {
            let view = View { start_ns: 0.0, ns_per_px: 3_000_000.0 / pixels as f64 };
            let mut row = vec![0; 4 * pixels];
            track_row(&track, view, IDLE, 64, primary, &mut row);
            for pixel in row.chunks_exact(4) {
                for channel in &pixel[..3] {
                    assert!(channel.abs_diff(85) < 60, "{pixel:?} with {pixels} pixels");
                }
            }
        }
    }

    #[test]
    fn rows_outside_an_image_are_cut() {
        let mut image = Image::filled(2, 3, IDLE, None);
        image.repeat_row(&[255; 8], -5, 1);
        image.repeat_row(&[255; 8], 2, 99);
        image.set(5, 0, BUSY);
        image.set(0, -1, BUSY);
        let rows: Vec<u8> = image.bytes.chunks_exact(8).map(|row| row[0]).collect();
        assert_eq!(rows, [255, 0, 255]);
    }
}
