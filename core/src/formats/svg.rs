//! A timeline as an SVG drawing, for papers, slides and issues. It has no script and no embedded font, and the same bytes on
//! every machine.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use super::colour;
use crate::base::units::Nanos;
use crate::problem::op::{Op, OpKind};
use crate::simulate::timeline::{Span, Timeline};

const ROW: u64 = 24;
const GAP: u64 = 4;
const MARGIN: u64 = 8;
/// A letter of 11 px is about this wide.
const LETTER: u64 = 7;
/// The line under the text of ops that go up the ranks: how far above the lower edge it begins, and how thick it is.
const LINE: [u64; 2] = [4, 2];

/// The drawing, `width` CSS pixels wide and as high as its ranks need.
///
/// Ops of one pixel or less are merged with their neighbours of the same kind, so that a timeline of a million ops
/// stays a file that a browser opens. In a bidirectional schedule, ops that go up the ranks are lighter, and underlined
/// for readers who cannot tell the shades apart.
pub fn draw(timeline: &Timeline, title: &str, width: u32) -> String {
    let label_width = LETTER * (timeline.rows.len().saturating_sub(1).to_string().len() as u64 + 5);
    let left = MARGIN + label_width;
    let room = u64::from(width).saturating_sub(left + MARGIN).max(100);
    let top = MARGIN + ROW;
    let height = top + (ROW + GAP) * timeline.rows.len() as u64 + ROW + MARGIN;
    let start = timeline.rows.iter().flatten().map(|span| span.start_ns).min().unwrap_or(0);
    let end = timeline.rows.iter().flatten().map(|span| span.end_ns).max().unwrap_or(start);
    let scale = Scale { start, whole: (end - start).max(1), room };
    let up_from = up_from(timeline);
    let whole_width = left + room + MARGIN;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{whole_width}\" height=\"{height}\" viewBox=\"0 0 {whole_width} {height}\" font-family=\"monospace\" font-size=\"11\">"
    );
    let title = escaped(title);
    let _ = writeln!(svg, "<title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>");
    let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\">{title}</text>", MARGIN + 12);
    for (rank, row) in timeline.rows.iter().enumerate() {
        let y = top + (ROW + GAP) * rank as u64;
        // A bidirectional schedule shows directions by shade, and its ranks have no chunks.
        let stages = if up_from.is_some() { Vec::new() } else { stages_of(row) };
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\">rank {rank}</text>", y + 16);
        let _ = writeln!(svg, "<rect x=\"{left}\" y=\"{y}\" width=\"{room}\" height=\"{ROW}\" fill=\"#f2f2f2\"/>");
        for block in blocks(row.iter().map(|span| (span.op, span.start_ns, span.end_ns)), &scale) {
            let goes_up = up_from.is_some_and(|from| block.microbatch >= from);
            let chunk = if goes_up { colour::UP_SHADE } else { stages.binary_search(&block.stage).unwrap_or(0) };
            let [red, green, blue] = colour::of_block(block.kind, chunk);
            let white_text = colour::takes_white_text([red, green, blue]);
            let x = format!("{}.{}", left + block.from / 10, block.from % 10);
            let wide = block.to - block.from;
            let _ = write!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{}.{}\" height=\"{ROW}\" fill=\"#{red:02x}{green:02x}{blue:02x}\" stroke=\"#fff\" stroke-width=\".5\"/>",
                wide / 10,
                wide % 10,
            );
            if goes_up {
                let [above, thick] = LINE;
                let ink = if white_text { "#fff" } else { "#000" };
                let _ = write!(
                    svg,
                    "<rect x=\"{x}\" y=\"{}\" width=\"{}.{}\" height=\"{thick}\" fill=\"{ink}\"/>",
                    y + ROW - above,
                    wide / 10,
                    wide % 10,
                );
            }
            if let Some(op) = block.op {
                let label = op.to_string();
                if LETTER * (label.len() as u64 + 1) * 10 <= wide {
                    let middle = left * 10 + block.from + wide / 2;
                    let ink = if white_text { " fill=\"#fff\"" } else { "" };
                    let _ = write!(
                        svg,
                        "<text x=\"{}.{}\" y=\"{}\" text-anchor=\"middle\"{ink}>{label}</text>",
                        middle / 10,
                        middle % 10,
                        y + 16
                    );
                }
            }
            svg.push('\n');
        }
    }
    let y = top + (ROW + GAP) * timeline.rows.len() as u64 + 14;
    let _ = writeln!(svg, "<text x=\"{left}\" y=\"{y}\">{}</text>", escaped(&footer(timeline, up_from.is_some())));
    svg.push_str("</svg>\n");
    svg
}

fn footer(timeline: &Timeline, two_way: bool) -> String {
    let makespan = timeline.makespan_ns();
    let busy: Nanos = (0..timeline.rows.len()).map(|rank| timeline.busy_ns(rank)).fold(0, Nanos::saturating_add);
    let whole = u128::from(makespan) * timeline.rows.len() as u128;
    // Hundredths of a percent in whole numbers.
    let idle = (whole.saturating_sub(u128::from(busy)) * 10_000).checked_div(whole).unwrap_or(0);
    let (percent, hundredths) = (idle / 100, idle % 100);
    let mut said =
        format!("makespan {makespan} ns, idle {percent}.{hundredths:02} %; F blue, B orange, W green, BW red");
    if two_way {
        said.push_str("; ");
        said.push_str(colour::UP_TITLE);
    }
    said
}

/// In bidirectional schedules the microbatches from this one on go up the ranks. It is found from the ranks of the ops
/// ([`Placement::Bidirectional`]), so measured steps have it too.
///
/// [`Placement::Bidirectional`]: crate::problem::placement::Placement::Bidirectional
fn up_from(timeline: &Timeline) -> Option<usize> {
    let last_rank = timeline.rows.len().checked_sub(1)?;
    let ops = || timeline.rows.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |span| (rank, span.op)));
    let half = ops().map(|(_, op)| op.microbatch()).max()?.div_ceil(2);
    let down = |op: Op| op.microbatch() < half;
    let placed =
        |(rank, op): (usize, Op)| rank == if down(op) { op.stage() } else { last_rank.wrapping_sub(op.stage()) };
    let goes_both_ways = last_rank > 0 && half > 0;
    (goes_both_ways && ops().all(placed)).then_some(half)
}

/// Tenths of a pixel for times.
struct Scale {
    start: Nanos,
    whole: Nanos,
    room: u64,
}

impl Scale {
    fn at(&self, time: Nanos) -> u64 {
        (u128::from(time - self.start) * u128::from(self.room) * 10 / u128::from(self.whole)) as u64
    }
}

/// One rectangle, in tenths of a pixel; with its op where it is only one.
struct Block {
    from: u64,
    to: u64,
    kind: OpKind,
    stage: usize,
    microbatch: usize,
    op: Option<Op>,
}

/// The stages of a rank, ascending: the n-th is its n-th chunk.
fn stages_of(row: &[Span]) -> Vec<usize> {
    let mut stages: Vec<usize> = Vec::new();
    for span in row {
        if let Err(place) = stages.binary_search(&span.op.stage()) {
            stages.insert(place, span.op.stage());
        }
    }
    stages
}

fn blocks(spans: impl Iterator<Item = (Op, Nanos, Nanos)>, scale: &Scale) -> Vec<Block> {
    const NARROW: u64 = 10;
    let mut blocks: Vec<Block> = Vec::new();
    for (op, start, end) in spans {
        let (from, to) = (scale.at(start), scale.at(end));
        let (kind, stage, microbatch) = (op.kind(), op.stage(), op.microbatch());
        match blocks.last_mut() {
            Some(last) if to <= last.to + NARROW && last.to - last.from <= NARROW && from <= last.to + 1 => {
                *last = Block { to: to.max(last.to), kind, stage, microbatch, op: None, ..*last };
            }
            _ if to > from => blocks.push(Block { from, to, kind, stage, microbatch, op: Some(op) }),
            _ => {}
        }
    }
    blocks
}

/// `text` as it stands in XML.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Control characters are not valid XML.
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::planner;
    use crate::spec::Spec;

    fn timeline(microbatches: usize) -> Timeline {
        let text = format!(
            "ranks = 2\nmicrobatches = {microbatches}\nstages = {{ forward_ns = 10, backward_input_ns = 10, \
             backward_weight_ns = 10 }}\n"
        );
        planner::plan(&Spec::read(&text).unwrap(), "1f1b").unwrap().timeline().unwrap()
    }

    #[test]
    fn every_op_that_has_room_is_drawn_and_named() {
        let svg = draw(&timeline(3), "a <plan> & more", 800);
        for part in ["<title>a &lt;plan&gt; &amp; more</title>", ">0F0</text>", ">1BW2</text>", ">rank 1</text>"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        // Background, two rows, twelve ops.
        assert_eq!(svg.matches("<rect").count(), 1 + 2 + 12);
        assert!(svg.contains("makespan 120 ns, idle 25.00 %"), "{svg}");
    }

    /// By shade and by a line, whichever rank of a pair is meant; and what goes one way is neither lined nor said to be.
    #[test]
    fn the_directions_of_two_way_schedules_are_told_apart() {
        let stages = "stages = { forward_ns = 10, backward_input_ns = 10, backward_weight_ns = 10 }\n";
        let drawn = |placement: &str, schedule: &str| {
            let text = format!("ranks = 4\nmicrobatches = 8\nplacement = \"{placement}\"\n{stages}");
            let timeline = planner::plan(&Spec::read(&text).unwrap(), schedule).unwrap().timeline().unwrap();
            (draw(&timeline, "", 4000), timeline)
        };
        for schedule in ["dualpipe", "chimera"] {
            let (svg, timeline) = drawn("two-way", schedule);
            let label = |op: Op| format!(">{op}</text>");
            let line_of = |op: Op| svg.lines().find(|line| line.contains(&label(op))).unwrap();
            let fill = |kind, shade| {
                let [red, green, blue] = colour::of_block(kind, shade);
                format!("fill=\"#{red:02x}{green:02x}{blue:02x}\" stroke")
            };
            for op in timeline.rows.iter().flatten().map(|span| span.op) {
                let goes_up = op.microbatch() >= 4;
                let shade = if goes_up { colour::UP_SHADE } else { 0 };
                assert!(line_of(op).contains(&fill(op.kind(), shade)), "{schedule} {op}: {}", line_of(op));
                assert_eq!(line_of(op).matches("<rect").count(), 1 + usize::from(goes_up), "{schedule} {op}");
            }
            assert!(svg.contains(colour::UP_TITLE), "{schedule}");
        }
        let (svg, timeline) = drawn("linear", "1f1b");
        assert!(!svg.contains(colour::UP_TITLE));
        assert_eq!(svg.matches("<rect").count(), 1 + 4 + timeline.rows.iter().flatten().count());
    }

    #[test]
    fn many_ops_stay_a_small_file() {
        let svg = draw(&timeline(20_000), "", 800);
        assert!(svg.matches("<rect").count() < 2000, "{}", svg.matches("<rect").count());
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(draw(&Timeline::default(), "", 0).ends_with("</svg>\n"));
    }
}
