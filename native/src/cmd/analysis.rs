//! `pipeplan show TRACE --analysis`

use pipeplan_core::api::best_order;
use pipeplan_core::problem::op::Op;
use pipeplan_core::schedule::BEST;
use pipeplan_core::spec::Spec;
use pipeplan_core::trace::Trace;
use pipeplan_core::trace::analysis::{Analysis, RowTime, Straggler, WhatIf, analyse};
use pipeplan_core::trace::calibrate::calibrate;

use super::failure::Failure;
use super::search::{self, Effort};
use super::{format, input, output};

/// More rows than this are cut to those with the least compute.
const MOST_ROWS: usize = 32;

/// Prints what `trace` means; `ran` names the plan that ran.
pub fn show(trace: &Trace, ran: Option<&str>, as_json: bool) -> Result<(), Failure> {
    let plan = ran.map(input::plan).transpose()?;
    let planned = |op: Op| match &plan {
        Some(plan) if op.stage() < plan.problem.stage_count() => plan.problem.duration(op),
        _ => 1,
    };
    let planned: Option<&dyn Fn(Op) -> u64> = if plan.is_some() { Some(&planned) } else { None };
    let Some(mut analysis) = analyse(trace, planned) else {
        return Err(Failure::input("the trace has no ops of compute"));
    };
    if let Some(plan) = &plan {
        let calibration = calibrate(&plan.problem, &plan.schedule, trace).map_err(|faults| {
            Failure::input(faults).with_help("give the plan that ran, and the whole trace of its run")
        })?;
        let best = |spec: &Spec| search::plan(spec, BEST, Effort::default()).ok();
        analysis.what_ifs.extend(best_order(&calibration.statement, &plan.schedule, analysis.makespan_ns, best));
    }
    if as_json {
        return output::print_json(&analysis.to_value());
    }
    output::print(&drawn(trace, &analysis))
}

fn drawn(trace: &Trace, analysis: &Analysis) -> String {
    let steps = format::count(analysis.steps.len(), "step");
    let makespan = format::duration(analysis.makespan_ns);
    let mut text =
        format!("{steps} on {} over {}, makespan {makespan} on average\n\n", trace.backend, trace.transport);
    text.push_str(&rows(trace, analysis));
    text.push('\n');
    if !analysis.communication.is_empty() {
        text.push_str(&communication(trace, analysis));
        text.push('\n');
    }
    text.push_str(&path(trace, analysis));
    text.push('\n');
    text.push_str(&what_ifs(analysis));
    text.push('\n');
    text.push_str(&stragglers(analysis));
    text
}

fn share(ns: u64, of: u64) -> String {
    if of == 0 { String::new() } else { format::percent(ns as f64 / of as f64) }
}

fn rows(trace: &Trace, analysis: &Analysis) -> String {
    let all = analysis.rows();
    let mut shown: Vec<(usize, &RowTime)> = all.iter().enumerate().collect();
    shown.sort_by_key(|(_, row)| row.busy_ns);
    let left = shown.split_off(shown.len().min(MOST_ROWS)).len();
    shown.sort_by_key(|(row, _)| *row);
    let of = |ns: u64| share(ns, analysis.makespan_ns);
    let row = |(row, time): &(usize, &RowTime)| {
        let mut cells = vec![trace.row_name(*row, all.len())];
        cells.extend(time.parts().map(of));
        cells
    };
    let cells: Vec<Vec<String>> = shown.iter().map(row).collect();
    let header: Vec<&str> = std::iter::once("").chain(RowTime::NAMES).collect();
    let mut text = format::table(&header, &cells, header.len());
    if left > 0 {
        text.push_str(&format!("and {left} with more compute; --json lists all\n"));
    }
    text.push_str(&format!("{}\n", RowTime::MEANING));
    text
}

/// Communication that no compute hides, by kind and rank: those with the most of it.
fn communication(trace: &Trace, analysis: &Analysis) -> String {
    let all = analysis.rows();
    let exposed = |row: usize| {
        let kinds = analysis.communication.iter().map(move |kind| kind.rows.get(row).map_or(0, |of| of.exposed_ns));
        std::iter::once(all[row].communication_ns).chain(kinds)
    };
    let mut shown: Vec<usize> = (0..all.len()).collect();
    shown.sort_by_key(|row| std::cmp::Reverse(exposed(*row).sum::<u64>()));
    let left = shown.split_off(shown.len().min(MOST_ROWS)).len();
    shown.sort_unstable();
    let row = |row: &usize| {
        let mut cells = vec![trace.row_name(*row, all.len())];
        cells.extend(exposed(*row).map(format::duration));
        cells
    };
    let cells: Vec<Vec<String>> = shown.iter().map(row).collect();
    let mut header = vec!["exposed communication", "P2P"];
    header.extend(analysis.communication.iter().map(|kind| kind.purpose.name()));
    let mut text = format::table(&header, &cells, header.len());
    if left > 0 {
        text.push_str(&format!("and {left} with less; --json lists all\n"));
    }
    for kind in &analysis.communication {
        let line = kind.told(&format::duration, &|row| trace.row_name(row, all.len()));
        text.push_str(&format!("{line}\n"));
    }
    text
}

fn path(trace: &Trace, analysis: &Analysis) -> String {
    let all = analysis.rows().len();
    let of = |ns: u64| share(ns, analysis.makespan_ns);
    let path = analysis.path();
    let row = |(row, [ops, messages, late]): (&usize, &[u64; 3])| {
        vec![trace.row_name(*row, all), of(*ops), of(*messages), of(*late)]
    };
    let cells: Vec<Vec<String>> = path.iter().take(MOST_ROWS).map(row).collect();
    let mut text = format::table(&["critical path", "ops", "messages", "late"], &cells, 4);
    if let Some(step) = analysis.steps.last() {
        text.push_str(&format!("step {} ends with {}\n", step.step, step.path_end()));
    }
    text
}

fn what_ifs(analysis: &Analysis) -> String {
    let row = |what: &WhatIf| {
        let sign = if what.saved_ns < 0 { "-" } else { "" };
        let saved = what.saved_ns.unsigned_abs();
        vec![
            what.name.to_owned(),
            format::duration(what.makespan_ns),
            format!("{sign}{}", format::duration(saved)),
            format!("{sign}{}", share(saved, analysis.makespan_ns)),
        ]
    };
    let cells: Vec<Vec<String>> = analysis.what_ifs.iter().map(row).collect();
    format::table(&["what if", "makespan", "saved", ""], &cells, 4)
}

fn stragglers(analysis: &Analysis) -> String {
    if analysis.stragglers.is_empty() {
        return "no stragglers: no rank, stage, link, microbatch or op is far slower than its like\n".to_owned();
    }
    let row = |straggler: &Straggler| {
        vec![
            straggler.slow.place(),
            format!("{:.2}", f64::from(straggler.permille) / 1000.0),
            format!("step {}", straggler.since),
            straggler.ops.to_string(),
            format::duration(straggler.saved_ns),
            straggler.slow.why().to_owned(),
        ]
    };
    let cells: Vec<Vec<String>> = analysis.stragglers.iter().map(row).collect();
    let mut text = format::table(&["straggler", "times", "since", "count", "saved", ""], &cells, 4);
    if analysis.more_stragglers > 0 {
        text.push_str(&format!("and {} more, with less time beyond the usual\n", analysis.more_stragglers));
    }
    text
}
