//! A timeline as an SVG drawing, for papers, slides and issues: no script, no font of its own, the same bytes
//! on every machine.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use super::colour;
use crate::op::{Op, OpKind};
use crate::timeline::{Span, Timeline};
use crate::units::Nanos;

const ROW: u64 = 24;
const GAP: u64 = 4;
const MARGIN: u64 = 8;
/// A letter of 11 px is about this wide.
const LETTER: u64 = 7;

/// The drawing, `width` CSS pixels wide and as high as its ranks need.
///
/// Ops of one pixel or less are merged with their neighbours of the same kind, so that a timeline of a million
/// ops stays a file that a browser opens.
pub fn draw(timeline: &Timeline, title: &str, width: u32) -> String {
    let label_width = LETTER * (timeline.rows.len().saturating_sub(1).to_string().len() as u64 + 5);
    let left = MARGIN + label_width;
    let room = u64::from(width).saturating_sub(left + MARGIN).max(100);
    let top = MARGIN + ROW;
    let height = top + (ROW + GAP) * timeline.rows.len() as u64 + ROW + MARGIN;
    let start = timeline.rows.iter().flatten().map(|span| span.start_ns).min().unwrap_or(0);
    let end = timeline.rows.iter().flatten().map(|span| span.end_ns).max().unwrap_or(start);
    let scale = Scale { start, whole: (end - start).max(1), room };
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
        let stages = stages_of(row);
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\">rank {rank}</text>", y + 16);
        let _ = writeln!(svg, "<rect x=\"{left}\" y=\"{y}\" width=\"{room}\" height=\"{ROW}\" fill=\"#f2f2f2\"/>");
        for block in blocks(row.iter().map(|span| (span.op, span.start_ns, span.end_ns)), &scale) {
            let chunk = stages.binary_search(&block.stage).unwrap_or(0);
            let [red, green, blue] = colour::of_block(block.kind, chunk);
            let x = format!("{}.{}", left + block.from / 10, block.from % 10);
            let wide = block.to - block.from;
            let _ = write!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{}.{}\" height=\"{ROW}\" fill=\"#{red:02x}{green:02x}{blue:02x}\" stroke=\"#fff\" stroke-width=\".5\"/>",
                wide / 10,
                wide % 10,
            );
            if let Some(op) = block.op {
                let label = op.to_string();
                if LETTER * (label.len() as u64 + 1) * 10 <= wide {
                    let middle = left * 10 + block.from + wide / 2;
                    let ink = if colour::takes_white_text([red, green, blue]) { " fill=\"#fff\"" } else { "" };
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
    let _ = writeln!(svg, "<text x=\"{left}\" y=\"{y}\">{}</text>", escaped(&footer(timeline)));
    svg.push_str("</svg>\n");
    svg
}

fn footer(timeline: &Timeline) -> String {
    let makespan = timeline.makespan_ns();
    let busy: Nanos = (0..timeline.rows.len()).map(|rank| timeline.busy_ns(rank)).fold(0, Nanos::saturating_add);
    let whole = u128::from(makespan) * timeline.rows.len() as u128;
    // Hundredths of a percent in whole numbers.
    let idle = (whole.saturating_sub(u128::from(busy)) * 10_000).checked_div(whole).unwrap_or(0);
    format!("makespan {makespan} ns, idle {}.{:02} %; F blue, B orange, W green, BW red", idle / 100, idle % 100)
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
        match blocks.last_mut() {
            Some(last) if to <= last.to + NARROW && last.to - last.from <= NARROW && from <= last.to + 1 => {
                *last = Block { to: to.max(last.to), kind: op.kind(), stage: op.stage(), op: None, ..*last };
            }
            _ if to > from => blocks.push(Block { from, to, kind: op.kind(), stage: op.stage(), op: Some(op) }),
            _ => {}
        }
    }
    blocks
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Control characters are no XML.
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner;
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
