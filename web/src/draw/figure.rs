//! The timeline as a figure for a paper: SVG with the text of blocks, a time axis, a legend and, on request, memory.
//!
//! Colours are those of a light page, whatever the page has. Sizes are in CSS pixels, 96 to the inch.

use core::fmt::Write;
use core::ops::Range;

use pipeplan_core::formats::svg::escaped;
use pipeplan_core::problem::op::OpKind;

use super::colour::Palette;
use super::memory::{Curve, height_of};
use super::paint::{Subject, labels};
use super::ruler;
use super::view::View;

/// What a person chooses of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// Its whole width.
    pub width_px: f64,
    /// Size of all text.
    pub font_px: f64,
    /// Whether memory by rank is drawn below.
    pub memory: bool,
}

/// A legend entry: a kind of op and its name, or words alone.
pub type Entry = (Option<OpKind>, String);

/// Widths of a column and of the text of usual papers, in inches, with their names.
pub const WIDTHS: [(&str, f64); 4] = [
    ("3.35 in, one column", 3.35),
    ("5.5 in, NeurIPS and ICLR", 5.5),
    ("7 in, two columns", 7.0),
    ("13.3 in, slide", 13.3),
];

/// Blocks narrower than this are joined with the next one of their kind, so that files stay small.
const LEAST_BLOCK_PX: f64 = 0.4;
/// Width of a letter of a sans-serif font, of its size.
const LETTER: f64 = 0.58;
/// Between ranks.
const GAP_PX: f64 = 2.0;

/// Where everything is.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    row: f64,
    view: View,
}

impl Frame {
    fn x(&self, time_ns: f64) -> f64 {
        self.left + self.view.x_of(time_ns)
    }

    fn wide(&self) -> f64 {
        self.right - self.left
    }
}

/// The drawing of the times `shown`, with `title` as its name for readers that do not see it.
pub fn svg(subject: &Subject<'_>, shown: Range<f64>, title: &str, legend: &[Entry], style: Style) -> String {
    let Style { width_px, font_px, memory } = style;
    let ranks = subject.planned.len();
    let name = format!("Rank {}", ranks.saturating_sub(1));
    let left = LETTER * font_px * (name.len() as f64 + 1.0);
    let right = width_px - font_px * 0.5;
    let ns_per_px = ((shown.end - shown.start) / (right - left).max(1.0)).max(1e-9);
    let view = View { start_ns: shown.start, ns_per_px };
    let row = (1.7 * font_px).max(4.0);
    let frame = Frame { left, right, top: 0.5 * font_px, row, view };
    let mut body = String::new();
    draw_ranks(&mut body, subject, &frame, font_px);
    let mut y = frame.top + ranks as f64 * (row + GAP_PX);
    y = draw_axis(&mut body, &frame, y, font_px);
    if memory {
        y = draw_memory(&mut body, subject, &frame, y, font_px);
    }
    y = draw_legend(&mut body, legend, &frame, y, font_px);
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width_px:.0}\" height=\"{y:.0}\" viewBox=\"0 0 {width_px:.0} {y:.0}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"{font_px}\">\n<title>{title}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// Each rank's name and blocks, with their text where it has room.
fn draw_ranks(body: &mut String, subject: &Subject<'_>, frame: &Frame, font_px: f64) {
    let palette = Palette::LIGHT;
    let shades = super::colour::Shades::of(&palette);
    for (rank, track) in subject.planned.iter().enumerate() {
        let y = frame.top + rank as f64 * (frame.row + GAP_PX);
        let base = y + frame.row / 2.0 + 0.36 * font_px;
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">Rank {rank}</text><rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
             height=\"{:.1}\" fill=\"{}\"/>",
            frame.left - 0.5 * font_px,
            frame.left,
            frame.wide(),
            frame.row,
            palette.idle.css(),
        );
        let mut drawn = frame.left;
        for span in track.spans() {
            let (from, to) =
                (frame.x(span.start_ns as f64).max(frame.left), frame.x(span.end_ns as f64).min(frame.right));
            // What is too narrow to be seen is drawn with what follows.
            if to - drawn < LEAST_BLOCK_PX {
                continue;
            }
            let from = if from - drawn < LEAST_BLOCK_PX { drawn } else { from };
            let _ = write!(
                body,
                "<rect x=\"{from:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{:.1}\" fill=\"{}\" stroke=\"#fff\" stroke-width=\"0.4\"/>",
                to - from,
                frame.row,
                subject.colour(&shades, rank, span).css()
            );
            drawn = to;
        }
        for label in labels(subject, (rank, track), frame.view, frame.wide(), LETTER * font_px, &palette) {
            let _ = write!(
                body,
                "<text x=\"{:.2}\" y=\"{base:.1}\" text-anchor=\"middle\" fill=\"{}\">{}</text>",
                frame.left + label.x_px,
                label.colour.ink().css(),
                label.text
            );
        }
        body.push('\n');
    }
}

/// The time axis below the ranks. Returns where the next part begins.
fn draw_axis(body: &mut String, frame: &Frame, y: f64, font_px: f64) -> f64 {
    let (line, base) = (y + 0.2 * font_px, y + 1.6 * font_px);
    let _ = write!(
        body,
        "<path d=\"M{:.1} {line:.1}H{:.1}\" stroke=\"#000\" stroke-width=\"0.6\"/>",
        frame.left, frame.right
    );
    for tick in ruler::ticks(frame.view, frame.wide(), 7.0 * LETTER * font_px * 1.6) {
        let x = frame.left + tick.x_px;
        let half = LETTER * font_px * tick.label.chars().count() as f64 / 2.0;
        let inside = x.min(frame.right + 0.4 * font_px - half);
        let _ = write!(
            body,
            "<path d=\"M{x:.1} {line:.1}v{:.1}\" stroke=\"#000\" stroke-width=\"0.6\"/><text x=\"{inside:.1}\" y=\"{base:.1}\" \
             text-anchor=\"middle\">{}</text>",
            0.3 * font_px,
            tick.label
        );
    }
    body.push('\n');
    y + 2.2 * font_px
}

/// Bytes over time of each rank, as steps of one height for all. Returns where the next part begins.
fn draw_memory(body: &mut String, subject: &Subject<'_>, frame: &Frame, y: f64, font_px: f64) -> f64 {
    let palette = Palette::LIGHT;
    let high = (2.2 * font_px).max(6.0);
    let _ = writeln!(body, "<text x=\"{:.1}\" y=\"{:.1}\">Memory by rank</text>", frame.left, y + font_px);
    let top = y + 1.5 * font_px;
    for rank in 0..subject.planned.len() {
        let bottom = top + rank as f64 * (high + GAP_PX) + high;
        let y_of = |bytes: u64| bottom - height_of(bytes, subject.top_bytes, high);
        let _ = write!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">Rank {rank}</text><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
             height=\"{high:.1}\" fill=\"{}\"/>",
            frame.left - 0.5 * font_px,
            bottom - high / 2.0 + 0.36 * font_px,
            frame.left,
            bottom - high,
            frame.wide(),
            palette.idle.css()
        );
        if let Some(curve) = (subject.curve)(rank) {
            let _ =
                write!(body, "<path d=\"{}\" fill=\"{}\"/>", area(curve, frame, bottom, &y_of), palette.memory.css());
        }
        if let Some(limit) = subject.limits.get(rank).copied().flatten().filter(|limit| *limit <= subject.top_bytes) {
            let _ = write!(
                body,
                "<path d=\"M{:.1} {:.1}H{:.1}\" stroke=\"{}\" stroke-width=\"0.8\"/>",
                frame.left,
                y_of(limit),
                frame.right,
                palette.limit.css()
            );
        }
        body.push('\n');
    }
    top + subject.planned.len() as f64 * (high + GAP_PX) + 0.4 * font_px
}

/// The area under a curve as a path, of two points a pixel.
fn area(curve: &Curve, frame: &Frame, bottom: f64, y_of: &dyn Fn(u64) -> f64) -> String {
    let fine = View { ns_per_px: frame.view.ns_per_px / 2.0, ..frame.view };
    let mut path = format!("M{:.1} {bottom:.1}", frame.left);
    let mut before = None;
    for (half, range) in curve.columns(fine, (2.0 * frame.wide()) as usize).into_iter().enumerate() {
        if before != Some(range.most) {
            let _ = write!(path, "H{:.1}V{:.1}", frame.left + half as f64 / 2.0, y_of(range.most));
            before = Some(range.most);
        }
    }
    let _ = write!(path, "H{:.1}V{bottom:.1}Z", frame.right);
    path
}

/// The meaning of colours, in as many lines as it takes. Returns where the drawing ends.
fn draw_legend(body: &mut String, legend: &[Entry], frame: &Frame, y: f64, font_px: f64) -> f64 {
    let (mut x, mut base) = (frame.left, y + font_px);
    for (kind, words) in legend {
        let swatch = if kind.is_some() { 1.2 * font_px } else { 0.0 };
        let wide = swatch + LETTER * font_px * (words.chars().count() as f64 + 2.0);
        if x > frame.left && x + wide > frame.right {
            (x, base) = (frame.left, base + 1.5 * font_px);
        }
        if let Some(kind) = kind {
            let fill = Palette::LIGHT.block(*kind, 0).css();
            let _ = write!(
                body,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{font_px:.1}\" height=\"{font_px:.1}\" fill=\"{fill}\"/>",
                base - 0.86 * font_px
            );
        }
        let _ = write!(body, "<text x=\"{:.1}\" y=\"{base:.1}\">{}</text>", x + swatch, escaped(words));
        x += wide;
    }
    body.push('\n');
    base + 0.8 * font_px
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::track::Track;
    use crate::draw::track::tests::track;

    fn drawn(tracks: &[Track], memory: bool, width_px: f64) -> String {
        let curves: Vec<Curve> = tracks.iter().map(|_| Curve::new(vec![(0, 5), (50, 9)])).collect();
        let curve = |rank: usize| curves.get(rank);
        let subject = Subject {
            planned: tracks,
            below: None,
            curve: &curve,
            static_bytes: &[],
            limits: &[Some(8)],
            top_bytes: 10,
            chunk_of_stage: &[0],
            up_from: None,
            lit: None,
            lit_below: None,
            carried: &|_| None,
        };
        let legend = [(Some(OpKind::F), "F forward".to_owned()), (None, "a < b".to_owned())];
        svg(&subject, 0.0..100.0, "1F1B & more\u{1}", &legend, Style { width_px, font_px: 8.0, memory })
    }

    #[test]
    fn a_figure_has_names_blocks_axis_and_legend() {
        let drawn = drawn(&[track(&[(0, 50), (60, 100)]), track(&[])], false, 528.0);
        for part in [
            "width=\"528\"",
            "font-size=\"8\"",
            ">Rank 1</text>",
            ">0F0</text>",
            ">0F1</text>",
            ">100 ns</text>",
            ">F forward</text>",
            "a &lt; b",
            "<title>1F1B &amp; more </title>",
        ] {
            assert!(drawn.contains(part), "{part} in {drawn}");
        }
        // Ground, two rows, two blocks, one swatch.
        assert_eq!(drawn.matches("<rect").count(), 1 + 2 + 2 + 1);
        assert!(!drawn.contains("Memory"));
    }

    #[test]
    fn memory_is_drawn_on_request_with_its_limit() {
        let drawn = drawn(&[track(&[(0, 50)])], true, 528.0);
        assert!(drawn.contains("Memory by rank") && drawn.contains("Z\" fill"), "{drawn}");
        assert!(drawn.contains(&format!("stroke=\"{}\"", Palette::LIGHT.limit.css())), "{drawn}");
    }

    #[test]
    fn many_narrow_blocks_stay_a_small_file() {
        let spans: Vec<(u64, u64)> = (0..100_000).map(|at| (at, at + 1)).collect();
        let tracks = [track(&spans)];
        let curve = |_: usize| None;
        let subject = Subject {
            planned: &tracks,
            below: None,
            curve: &curve,
            static_bytes: &[],
            limits: &[],
            top_bytes: 0,
            chunk_of_stage: &[0],
            up_from: None,
            lit: None,
            lit_below: None,
            carried: &|_| None,
        };
        let drawn = svg(&subject, 0.0..1e5, "", &[], Style { width_px: 300.0, font_px: 7.0, memory: false });
        assert!(drawn.matches("<rect").count() < 1000, "{}", drawn.matches("<rect").count());
    }
}
