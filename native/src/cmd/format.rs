//! Durations, bytes, tables and drawings for people.

use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use owo_colors::{AnsiColors, OwoColorize};
use pipeplan_core::formats::{sentence, text};
use pipeplan_core::problem::op::OpKind;
use pipeplan_core::simulate::timeline::Timeline;
use pipeplan_core::spec::ModelWork;

/// A duration with three or four digits: `1.234 ms`.
pub fn duration(ns: u64) -> String {
    scaled(ns, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")], "ns")
}

/// An amount of memory with three or four digits: `1.234 GiB`.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes, &[(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")], "B")
}

fn scaled(number: u64, units: &[(u64, &str)], one: &str) -> String {
    match units.iter().find(|(unit, _)| number >= *unit) {
        Some((unit, name)) => {
            let value = number as f64 / *unit as f64;
            let digits = if value >= 100.0 {
                1
            } else if value >= 10.0 {
                2
            } else {
                3
            };
            format!("{value:.digits$} {name}")
        }
        None => format!("{number} {one}"),
    }
}

/// A sentence of the planner with its raw numbers as a person reads them: `4200000 ns` becomes `4.200 ms`.
pub fn spelled(text: &str) -> String {
    sentence::spelled(text, &duration, &bytes)
}

/// What is trained, and on what: `llama-2-70b, 68.98 billion parameters, on 40 devices; 131072 tokens a step`.
pub fn trained(work: &ModelWork) -> String {
    let billions = |parameters: u64| {
        let units = [
            (1_000_000_000_000, "trillion"),
            (1_000_000_000, "billion"),
            (1_000_000, "million"),
            (1_000, "thousand"),
        ];
        scaled(parameters, &units, "")
    };
    let (all, active) = (work.model.parameters(), work.model.active_parameters());
    format!(
        "{}{} parameters{}, on {}{}; {} tokens a step",
        if work.model_name.is_empty() { String::new() } else { format!("{}, ", work.model_name) },
        billions(all).trim_end(),
        if active < all { format!(", {} active", billions(active).trim_end()) } else { String::new() },
        count(work.devices() as usize, "device"),
        match work.layout.devices_per_rank() {
            1 => String::new(),
            of_rank => format!(", {of_rank} for each rank"),
        },
        work.step_tokens()
    )
}

/// `1 rank`, `2 ranks`.
pub fn count(number: usize, name: &str) -> String {
    match (number, name.ends_with('h')) {
        (1, _) => format!("1 {name}"),
        (_, true) => format!("{number} {name}es"),
        (_, false) => format!("{number} {name}s"),
    }
}

/// A share in percent: `12.34 %`.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Model FLOPs utilisation. Above 100 % it is of another device than the one that was measured.
pub fn mfu(share: f64) -> String {
    if share > 1.0 { "over 100 %".to_owned() } else { percent(share) }
}

/// Characters of a line: those of the terminal, or 100 if there is none.
pub fn width() -> usize {
    terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0)).max(40)
}

/// Characters of what is no sentence.
const SHORT: usize = 16;

/// A table with a header, its first column to the left and `right` of the others to the right.
pub fn table(header: &[&str], rows: &[Vec<String>], right: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    // Text in the last column goes on in a further line; figures broken in two could not be read.
    let arrangement = match right + 1 < header.len() {
        true => ContentArrangement::Dynamic,
        false => ContentArrangement::Disabled,
    };
    table.set_content_arrangement(arrangement).set_width(width() as u16);
    let align = |column: usize| match column {
        column if (1..=right).contains(&column) => CellAlignment::Right,
        _ => CellAlignment::Left,
    };
    table.set_header(header.iter().enumerate().map(|(column, name)| Cell::new(name).set_alignment(align(column))));
    for row in rows {
        table.add_row(row.iter().enumerate().map(|(column, text)| Cell::new(text).set_alignment(align(column))));
    }
    // A figure, or a word, in two lines could not be read: only sentences go on in a further line.
    for at in 0..header.len() {
        let is_long = rows.iter().any(|row| row.get(at).is_some_and(|text| text.contains(' ') && text.len() > SHORT));
        let constraint = match (1..=right).contains(&at) || !is_long {
            true => ColumnConstraint::ContentWidth,
            // Where that is too wide for the screen, too: words in pieces could not be read either.
            false => ColumnConstraint::LowerBoundary(Width::Fixed(SHORT as u16)),
        };
        table.column_mut(at).map(|column| column.set_constraint(constraint));
    }
    let mut text = String::new();
    for line in table.to_string().lines() {
        // The style without lines still pads the first column.
        let _ = writeln!(text, "{}", line.strip_prefix(' ').unwrap_or(line).trim_end());
    }
    text
}

/// A timeline as coloured text, with its last line of figures.
pub fn drawing(timeline: &Timeline) -> String {
    let mut text = String::new();
    for line in text::lines(timeline, width()) {
        for piece in line {
            let colour = match piece.kind {
                Some(OpKind::F) => AnsiColors::Blue,
                // The nearest to the page's colours.
                Some(OpKind::B) => AnsiColors::Yellow,
                Some(OpKind::W) => AnsiColors::Green,
                Some(OpKind::BW) => AnsiColors::Red,
                None => AnsiColors::BrightBlack,
            };
            let _ = write!(text, "{}", piece.text.color(colour));
        }
        text.push('\n');
    }
    text.push_str(&figures(timeline));
    text
}

/// The line under a drawing: whole numbers where they are short, else shares.
fn figures(timeline: &Timeline) -> String {
    let makespan = timeline.makespan_ns();
    if makespan < 100_000 {
        return format!("{}\n", text::summary(timeline));
    }
    let list = |values: Vec<String>| match values.len() {
        0..=16 => values.join(" "),
        more => format!("{} … ({more} ranks)", values[..16].join(" ")),
    };
    let idle = |rank| percent(1.0 - timeline.busy_ns(rank) as f64 / makespan as f64);
    format!(
        "makespan {}, idle {}, in-flight {}\n",
        duration(makespan),
        list((0..timeline.rows.len()).map(idle).collect()),
        list(text::in_flight(timeline).iter().map(ToString::to_string).collect())
    )
}
