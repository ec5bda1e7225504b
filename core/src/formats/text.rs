//! A timeline as text, one line per rank.
//!
//! Where all times are small multiples of one unit, a column stands for exactly one unit:
//!
//! ```text
//! 0 | F0  F1  ..  ..  BW0 BW0 F2  BW1 BW1 ..  BW2 BW2
//! 1 | ..  F0  BW0 BW0 F1  BW1 BW1 F2  BW2 BW2 ..  ..
//! makespan 12, bubble 3/12 on each rank, in-flight 2 1
//! ```
//!
//! Else the columns are scaled to the width, and an op shows the part of its name that has room:
//!
//! ```text
//! 0 | F0----F1----......BW0---------F2--
//! ```
//!
//! Ops carry their stage (`4F0`) where a rank holds more than one. While the two ops of a pair run, both are named: `F1+B0`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::base::units::Nanos;
use crate::problem::op::{Op, OpKind};
use crate::simulate::timeline::{Span, Timeline};

/// A piece of a line: an op's columns, idle time, or the margin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What is drawn.
    pub text: String,
    /// The job drawn; none for idle time and for the margin.
    pub kind: Option<OpKind>,
}

/// Most columns of an exact drawing, whatever the width: beyond it nobody counts columns.
const MOST_CELLS: u64 = 400;
/// More ranks than this are summed up in the last line instead of listed.
const MOST_LISTED: usize = 16;

/// The drawing: one line per rank, then one with makespan, bubble and in-flight microbatches.
///
/// `width` is the number of characters that a line may take, at least 40; an exact drawing that is a little
/// wider is not given up for a scaled one unless it exceeds `width`.
pub fn draw(timeline: &Timeline, width: usize) -> String {
    let mut text = String::new();
    for line in lines(timeline, width) {
        line.iter().for_each(|piece| text.push_str(&piece.text));
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text.push_str(&summary(timeline));
    text
}

/// The lines of the ranks in pieces, for a reader with colours.
pub fn lines(timeline: &Timeline, width: usize) -> Vec<Vec<Piece>> {
    let digits = timeline.rows.len().saturating_sub(1).to_string().len();
    let room = width.max(40) - digits - 3;
    let (start, end) = window(timeline);
    let label = labels(timeline);
    let rows: Vec<Vec<Block>> = timeline.rows.iter().map(|row| blocks(row, start, &label)).collect();
    let widest = rows.iter().flatten().map(|block| block.label.len()).max().unwrap_or(2).max(2);
    let unit = unit_of(timeline, start);
    let cells = (end - start) / unit.max(1);
    let exact = unit > 0 && cells <= MOST_CELLS && cells as usize * (widest + 1) <= room;
    rows.iter()
        .enumerate()
        .map(|(rank, blocks)| {
            let mut line = alloc::vec![Piece { text: format!("{rank:>digits$} | "), kind: None }];
            if exact {
                exact_row(blocks, unit, cells, widest, &mut line);
            } else {
                scaled_row(blocks, end - start, room, &mut line);
            }
            line
        })
        .collect()
}

/// What runs on a rank for a while: an op, or the two of a pair.
struct Block {
    from: Nanos,
    to: Nanos,
    kind: OpKind,
    label: String,
    /// The name that fits into a column or two.
    initials: String,
}

/// The ops of a row, one behind the other: where two run at once, both together.
fn blocks(row: &[Span], start: Nanos, label: &impl Fn(Op) -> String) -> Vec<Block> {
    let mut blocks = Vec::new();
    for together in row.chunk_by(|a, b| b.start_ns < a.end_ns) {
        let mut ends: Vec<Nanos> = together.iter().flat_map(|span| [span.start_ns, span.end_ns]).collect();
        ends.sort_unstable();
        ends.dedup();
        for while_ in ends.windows(2) {
            let runs = |span: &&Span| span.start_ns <= while_[0] && while_[1] <= span.end_ns;
            let ops: Vec<Op> = together.iter().filter(runs).map(|span| span.op).collect();
            let Some(first) = ops.first() else { continue };
            let labels: Vec<String> = ops.iter().map(|op| label(*op)).collect();
            let initials = ops.iter().map(|op| &op.kind().text()[..1]).collect();
            let [from, to] = [while_[0] - start, while_[1] - start];
            blocks.push(Block { from, to, kind: first.kind(), label: labels.join("+"), initials });
        }
    }
    blocks
}

/// A cell of equal width for every unit of time.
fn exact_row(blocks: &[Block], unit: Nanos, cells: u64, widest: usize, line: &mut Vec<Piece>) {
    let cell = |text: &str, count: u64, kind: Option<OpKind>, line: &mut Vec<Piece>| {
        (0..count).for_each(|_| line.push(Piece { text: format!("{text:<widest$} "), kind }));
    };
    let mut at = 0;
    for block in blocks {
        let (from, to) = (block.from / unit, block.to / unit);
        cell("..", from.saturating_sub(at), None, line);
        cell(&block.label, to.saturating_sub(from), Some(block.kind), line);
        at = to;
    }
    cell("..", cells.saturating_sub(at), None, line);
}

/// `room` characters for all of the time.
fn scaled_row(blocks: &[Block], whole: Nanos, room: usize, line: &mut Vec<Piece>) {
    let column = |time: Nanos| (u128::from(time) * room as u128 / u128::from(whole.max(1))) as usize;
    let mut at = 0;
    for block in blocks {
        let (from, to) = (column(block.from), column(block.to));
        if from > at {
            line.push(Piece { text: ".".repeat(from - at), kind: None });
        }
        // An op of less than a column is not drawn; its neighbours are.
        if to > from {
            line.push(Piece { text: squeezed(block, to - from), kind: Some(block.kind) });
        }
        at = to;
    }
    if room > at {
        line.push(Piece { text: ".".repeat(room - at), kind: None });
    }
}

/// As much of the name as `columns` hold: all of it, or the first letters of the jobs.
fn squeezed(block: &Block, columns: usize) -> String {
    let shown = if block.label.len() < columns { &block.label } else { &block.initials };
    let mut text: String = shown.chars().take(columns).collect();
    (text.len()..columns).for_each(|_| text.push('-'));
    text
}

/// How ops are called: with their stage only where that is needed to tell them apart.
fn labels(timeline: &Timeline) -> impl Fn(Op) -> String + use<> {
    let with_stage = timeline.rows.iter().any(|row| row.iter().any(|span| span.op.stage() != row[0].op.stage()));
    move |op| if with_stage { op.to_string() } else { format!("{}{}", op.kind(), op.microbatch()) }
}

fn window(timeline: &Timeline) -> (Nanos, Nanos) {
    let spans = || timeline.rows.iter().flatten();
    let start = spans().map(|span| span.start_ns).min().unwrap_or(0);
    (start, spans().map(|span| span.end_ns).max().unwrap_or(start))
}

/// The largest unit of which every time is a multiple; 0 where there is none.
fn unit_of(timeline: &Timeline, start: Nanos) -> Nanos {
    fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    }
    let times = timeline.rows.iter().flatten().flat_map(|span| [span.start_ns - start, span.end_ns - start]);
    times.fold(0, greatest_common_divisor)
}

/// Makespan, bubble and in-flight microbatches in one line.
pub fn summary(timeline: &Timeline) -> String {
    let ranks = timeline.rows.len();
    let makespan = timeline.makespan_ns();
    let idle: Vec<Nanos> = (0..ranks).map(|rank| makespan - timeline.busy_ns(rank).min(makespan)).collect();
    let in_flight = in_flight(timeline);
    let list = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join(" ");
    let bubble = match idle.as_slice() {
        [first, rest @ ..] if rest.iter().all(|idle| idle == first) => {
            let each = if ranks > 1 { " on each rank" } else { "" };
            format!("{first}/{makespan}{each}")
        }
        _ if ranks <= MOST_LISTED => {
            format!("{} of {makespan} by rank", list(&mut idle.iter().map(ToString::to_string)))
        }
        _ => {
            let (least, most) = (idle.iter().min(), idle.iter().max());
            format!("{} to {} of {makespan}", least.unwrap_or(&0), most.unwrap_or(&0))
        }
    };
    let in_flight = if ranks <= MOST_LISTED {
        list(&mut in_flight.iter().map(ToString::to_string))
    } else {
        format!("up to {}", in_flight.iter().max().unwrap_or(&0))
    };
    format!("makespan {makespan}, bubble {bubble}, in-flight {in_flight}")
}

/// By rank: the most microbatches, counted per stage, whose F has run and whose backward has not ended.
pub fn in_flight(timeline: &Timeline) -> Vec<usize> {
    (0..timeline.rows.len()).map(|rank| most_in_flight(timeline, rank)).collect()
}

/// The most microbatches, counted per stage, whose F a rank has run and whose backward it has not ended.
fn most_in_flight(timeline: &Timeline, rank: usize) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for span in &timeline.rows[rank] {
        match span.op.kind() {
            OpKind::F => now += 1,
            OpKind::BW | OpKind::W => now = now.saturating_sub(1),
            OpKind::B => {}
        }
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::planner;
    use crate::simulate::timeline::Span;
    use crate::spec::Spec;
    use proptest::prelude::*;

    fn timeline(schedule: &str, problem: &str) -> Timeline {
        let plan = planner::plan(&Spec::read(problem).unwrap(), schedule).unwrap();
        plan.timeline().unwrap()
    }

    const TWO: &str =
        "ranks = 2\nmicrobatches = 3\nstages = { forward_ns = 1, backward_input_ns = 1, backward_weight_ns = 1 }\n";

    /// STYLE's own example, worked out by hand.
    #[test]
    fn small_times_are_drawn_exactly() {
        assert_eq!(
            draw(&timeline("1f1b", TWO), 80),
            "\
0 | F0  F1  ..  ..  BW0 BW0 F2  BW1 BW1 ..  BW2 BW2
1 | ..  F0  BW0 BW0 F1  BW1 BW1 F2  BW2 BW2 ..  ..
makespan 12, bubble 3/12 on each rank, in-flight 2 1"
        );
    }

    #[test]
    fn a_unit_is_found_whatever_the_scale() {
        let text = TWO.replace("= 1", "= 1000");
        let drawn = draw(&timeline("1f1b", &text), 80);
        assert!(drawn.starts_with("0 | F0  F1  ..  ..  BW0 BW0"), "{drawn}");
        assert!(drawn.ends_with("makespan 12000, bubble 3000/12000 on each rank, in-flight 2 1"), "{drawn}");
    }

    #[test]
    fn stages_are_named_where_a_rank_holds_several() {
        let text = TWO.replace("microbatches = 3", "microbatches = 2\nchunks = 2\nplacement = \"v\"");
        let drawn = draw(&timeline("zb-v", &text), 200);
        assert!(drawn.starts_with("0 | 0F0 0F1 "), "{drawn}");
    }

    /// Every op of a rank is named in its line, those of pairs together.
    #[test]
    fn both_ops_of_a_pair_are_named() {
        for (unit, width) in [(1, 1000), (1009, 1000)] {
            let problem = format!(
                "ranks = 2\nchunks = 2\nplacement = \"v\"\nmicrobatches = 6\noverlap_permille = 1000\ntransfer_ns = {hop}\n\
                 stages = {{ forward_ns = {unit}, backward_input_ns = {unit}, backward_weight_ns = {unit} }}\n",
                hop = unit - 1,
            );
            let timeline = timeline("dualpipe-v", &problem);
            let pairs = |row: &Vec<Span>| row.windows(2).any(|pair| pair[1].start_ns < pair[0].end_ns);
            assert!(timeline.rows.iter().all(pairs));
            for (line, row) in lines(&timeline, width).iter().zip(&timeline.rows) {
                let drawn: Vec<&str> = line.iter().flat_map(|piece| piece.text.split(['+', ' ', '-'])).collect();
                for span in row.iter().filter(|span| span.end_ns > span.start_ns) {
                    assert!(drawn.contains(&&*span.op.to_string()), "{} in {drawn:?}", span.op);
                }
            }
        }
    }

    #[test]
    fn long_times_are_scaled() {
        let op = |kind, microbatch| Op::new(0, kind, microbatch);
        let span = |op, start_ns, end_ns| Span { op, start_ns, end_ns };
        let rows = alloc::vec![alloc::vec![
            span(op(OpKind::F, 0), 0, 1001),
            span(op(OpKind::F, 1), 1001, 1003),
            span(op(OpKind::BW, 0), 2003, 4004),
        ]];
        // 36 columns for 4004: F0 takes 9, then 9 idle ones, then BW0.
        assert_eq!(
            draw(&Timeline { rows, ..Timeline::default() }, 40),
            "0 | F0-------.........BW0---------------\nmakespan 4004, bubble 1000/4004, in-flight 2"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Each line has exactly the columns that its time is due, in order.
        #[test]
        fn nothing_is_drawn_beyond_the_width(
            gaps in prop::collection::vec((0u64..50, 1u64..1 << 40, 0usize..3), 0..20), width in 40usize..200,
        ) {
            let mut at = 0;
            let row = gaps.iter().enumerate().map(|(index, (gap, length, kind))| {
                let start_ns = at + gap;
                at = start_ns + length;
                let kind = [OpKind::F, OpKind::BW, OpKind::W][*kind];
                Span { op: Op::new(0, kind, index), start_ns, end_ns: at }
            });
            let timeline = Timeline { rows: alloc::vec![row.collect()], ..Timeline::default() };
            for line in lines(&timeline, width) {
                let columns: usize = line.iter().map(|piece| piece.text.len()).sum();
                prop_assert!(columns <= width, "{columns} of {width}");
            }
            let _ = draw(&timeline, width);
        }
    }
}
