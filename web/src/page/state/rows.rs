//! Rows of the comparison, as the page keeps them.

use crate::protocol::{Row, RowCosts};
use crate::scene::Scene;
use crate::text;

/// The row of a custom schedule.
pub(super) fn own_row(scene: &Scene, source: &str) -> Row {
    let figures = &scene.figures;
    Row {
        schedule: scene.schedule.clone(),
        title: text::schedule_title(&scene.schedule),
        source: source.to_owned(),
        reason: None,
        costs: Some(RowCosts {
            makespan_ns: figures.makespan_ns,
            longest_span_ns: figures.longest_span_ns,
            bubble_ratio: figures.bubble_ratio,
            peak_bytes: scene.peak_bytes(),
            gap: figures.gap,
            late_ns: figures.late_ns,
            carried_ns: figures.carried_ns,
            judged_ns: figures.judged_ns,
            step: figures.step,
        }),
    }
}

/// Replaces the row of a schedule, or adds it. While a comparison runs, rows of the one before stay.
pub(super) fn put_row(rows: &mut Vec<Row>, row: Row) {
    match rows.iter_mut().find(|known| known.schedule == row.schedule) {
        Some(known) => *known = row,
        None => rows.push(row),
    }
}
