//! Dumps of torch's flight recorder: who waits in which collective.

use pipeplan_core::formats::flight_recorder::{Part, Report};

use super::format;

/// What a person reads.
pub fn text(report: &Report) -> String {
    let part = |Part { title, lines }: &Part| {
        let width = if title.is_empty() { 13 } else { 11 };
        let indent = if title.is_empty() { "" } else { "  " };
        let head = if title.is_empty() { String::new() } else { format!("{title}\n") };
        let line = |(word, line): &(&str, String)| format!("{indent}{word:<width$} {line}\n");
        head + &lines.iter().map(line).collect::<String>()
    };
    report.parts(&format::duration).iter().map(part).collect::<Vec<String>>().join("\n")
}

/// The same for programs.
pub fn to_json(report: &Report) -> String {
    format!("{:#}\n", report.to_value())
}
