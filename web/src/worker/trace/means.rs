//! What a run means, as it travels.

use pipeplan_core::problem::op::OpKind;
use pipeplan_core::program::Step;
use pipeplan_core::trace::analysis::{Analysis, Communication, RowTime, Slow, Straggler, WhatIf};
use pipeplan_core::trace::{Trace, TraceSpan};

use crate::protocol::{AnalysisRows, ExposedRows, PathOp, Place, RankTime, StragglerRow, WhatIfRow, spans};
use crate::text;

/// `found` of `trace`: of all its steps, or of the one at position `index` of the whole run.
pub(super) fn wire(trace: &Trace, found: &Analysis, index: Option<u32>) -> AnalysisRows {
    let rows = found.rows();
    let name = |row: usize| trace.row_name(row, rows.len());
    let path_of = index.unwrap_or(trace.steps.len().saturating_sub(1) as u32);
    // The steps that have ops, of which the last is shown first.
    let last = found.steps.last();
    let path = last.map(|step| &step.path[..]).unwrap_or_default();
    let path_op = |op: &pipeplan_core::trace::analysis::PathOp| PathOp {
        row: op.row as u32,
        op: spans::wire_op(op.op),
        message_ns: op.message_ns,
    };
    AnalysisRows {
        index,
        steps: found.steps.len(),
        makespan_ns: found.makespan_ns,
        rows: rows
            .iter()
            .enumerate()
            .map(|(row, time)| RankTime { name: name(row), parts_ns: time.parts() })
            .collect(),
        path_rows: found.path().into_iter().map(|(row, parts)| (name(row), parts)).collect(),
        path_end: last
            .map(|step| format!("step {} ends with {}", step.step, step.path_end().replace("->", "→")))
            .unwrap_or_default(),
        path_of,
        path: path.iter().map(path_op).collect(),
        what_ifs: found.what_ifs.iter().map(what_if).collect(),
        exposed: exposed(trace, found),
        more_stragglers: found.more_stragglers,
        stragglers: found.stragglers.iter().map(|straggler| straggler_row(trace, straggler, index)).collect(),
    }
}

/// Communication that no compute hides, in the words of the command.
fn exposed(trace: &Trace, found: &Analysis) -> Option<ExposedRows> {
    let rows = found.rows();
    let of_row = |(row, time): (usize, &RowTime)| {
        let kinds = found.communication.iter().map(|kind| kind.rows.get(row).map_or(0, |of| of.exposed_ns));
        core::iter::once(time.communication_ns).chain(kinds).collect()
    };
    let line = |kind: &Communication| {
        let name = |row: usize| trace.row_name(row, rows.len());
        kind.told(&|ns| text::duration(ns as f64), &name)
    };
    let kinds = found.communication.iter().map(|kind| kind.purpose.name().to_owned());
    (!found.communication.is_empty()).then(|| ExposedRows {
        kinds: core::iter::once("P2P".to_owned()).chain(kinds).collect(),
        rows: rows.iter().enumerate().map(of_row).collect(),
        lines: found.communication.iter().map(line).collect(),
    })
}

pub(super) fn what_if(what: &WhatIf) -> WhatIfRow {
    WhatIfRow { name: what.name.to_owned(), makespan_ns: what.makespan_ns, saved_ns: what.saved_ns }
}

fn straggler_row(trace: &Trace, straggler: &Straggler, index: Option<u32>) -> StragglerRow {
    let at = place_of(trace, straggler);
    StragglerRow {
        place: straggler.slow.place(),
        why: straggler.slow.why().to_owned(),
        permille: straggler.permille,
        since: straggler.since,
        ops: straggler.ops,
        saved_ns: straggler.saved_ns,
        // A part of a run has that step alone.
        at: at.map(|at| Place { index: index.unwrap_or(at.index), ..at }),
    }
}

/// Where to look at a straggler: the longest of its ops in the first step in which it is slow, or the op behind the longest gap
/// of the rank that waits for a slow link.
fn place_of(trace: &Trace, straggler: &Straggler) -> Option<Place> {
    let index = trace.steps.iter().position(|step| step.step == straggler.since)?;
    let step = trace.steps.get(index)?;
    let mut found: Option<(u64, Place)> = None;
    for (row, spans) in step.rows.iter().enumerate() {
        let is_row = match &straggler.slow {
            Slow::Rank(slow, _) => *slow == row,
            Slow::Link(_, to) => *to == row,
            Slow::Stage(_) | Slow::Microbatches(_) | Slow::Sporadic => true,
        };
        if !is_row {
            continue;
        }
        let ops = spans.iter().filter(|span| matches!(span.step, Step::Compute(_)));
        let mut before = None;
        for (place, span) in ops.enumerate() {
            let counts = counts(&straggler.slow, span, before);
            before = Some(span.end_ns);
            if let Some(ns) = counts.filter(|ns| found.as_ref().is_none_or(|(most, _)| ns > most)) {
                found = Some((ns, Place { index: index as u32, row: row as u32, place: place as u32 }));
            }
        }
    }
    found.map(|(_, place)| place)
}

/// How much an op says of what is slow; none where it is no part of it.
fn counts(slow: &Slow, span: &TraceSpan, before_ns: Option<u64>) -> Option<u64> {
    let Step::Compute(op) = span.step else { return None };
    let took = span.end_ns - span.start_ns;
    match slow {
        Slow::Rank(..) => Some(took),
        // An op of W waits for no other rank.
        Slow::Link(..) => {
            (op.kind() != OpKind::W).then(|| span.start_ns.saturating_sub(before_ns.unwrap_or(span.start_ns)))
        }
        Slow::Stage(stage) => (op.stage() == *stage).then_some(took),
        Slow::Microbatches(microbatch) => (op.microbatch() == *microbatch).then_some(took),
        Slow::Sporadic => Some(took),
    }
}
