//! The lines of a trace as Paddle logs them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use super::place::stages;
use crate::base::fields::{Fault, Faults};
use crate::base::units::Nanos;
use crate::problem::op::{Op, OpKind};
use crate::program::Step;
use crate::trace::Trace;

/// What stands before the words of a line, where a person would look for its time and place.
const GLOG: &str = "I0101 00:00:00.000000     0 pipeplan:0]";

/// Milliseconds, with every nanosecond.
fn millis(ns: Nanos) -> String {
    format!("{}.{:06}", ns / 1_000_000, ns % 1_000_000)
}

/// The log of every rank of `trace`, to be called `workerlog.0` and so on. Transfers have no lines: Paddle's jobs have none.
///
/// # Errors
/// Ranks whose steps could not be told apart: a step is known by the first type of job with microbatch 0.
pub fn write(trace: &Trace) -> Result<Vec<String>, Faults> {
    let rows = trace.steps.iter().map(|step| step.rows.len()).max().unwrap_or(0);
    // The number of the first step, where the others follow it.
    let first = trace.steps.first().map_or(0, |step| step.step);
    let follow = trace.steps.iter().enumerate().all(|(index, step)| step.step == first.saturating_add(index as u64));
    let end = first.saturating_add(trace.steps.len() as u64);
    let head = match follow {
        true => format!("{GLOG} Schedule Profiler start at step {first} and end at step {end}\n"),
        false => String::new(),
    };
    let mut logs: Vec<String> = (0..rows).map(|_| head.clone()).collect();
    let mut faults = Vec::new();
    let mut start: Nanos = 0;
    for step in &trace.steps {
        let began = step.began_ns.unwrap_or(start);
        for (row, spans) in step.rows.iter().enumerate() {
            let ops: Vec<Op> = spans
                .iter()
                .filter_map(|span| match span.step {
                    Step::Compute(op) => Some(op),
                    _ => None,
                })
                .collect();
            let stages = stages(&ops);
            if let Some(first) = ops.first().filter(|first| first.microbatch() != 0) {
                let accepted = "an order that begins with microbatch 0: Paddle's log knows a step by it";
                faults.push(Fault::new(
                    format!("step {} of {}", step.step, trace.row_name(row, rows)),
                    first,
                    accepted,
                ));
                continue;
            }
            for span in spans {
                let (kind, microbatch) = match &span.step {
                    Step::Compute(op) => (kind(*op, &stages), op.microbatch()),
                    Step::Optimizer => (String::from("optimizer"), 0),
                    Step::Transfer(_) | Step::Start(_) | Step::Wait(_) => continue,
                    Step::StartCopy(_) | Step::WaitCopy(_) => continue,
                };
                let (from, to) = (began.saturating_add(span.start_ns), began.saturating_add(span.end_ns));
                let _ = writeln!(
                    logs[row],
                    "{GLOG} Profiler Info: Job ({microbatch}), type = {kind}, \
                     micro_batch_id = {microbatch}, job_start_time = {}, job_end_time = {}",
                    millis(from),
                    millis(to)
                );
            }
        }
        start = began.saturating_add(step.duration_ns());
    }
    if faults.is_empty() { Ok(logs) } else { Err(Faults(faults)) }
}

/// The type of an op's job, with the number of its chunk where there are several.
fn kind(op: Op, stages: &[usize]) -> String {
    let name = match op.kind() {
        OpKind::F => "forward",
        OpKind::B => "backward_b",
        OpKind::W => "backward_w",
        OpKind::BW => "backward",
    };
    match stages.len() {
        0 | 1 => String::from(name),
        _ => format!("{name}{}", stages.binary_search(&op.stage()).unwrap_or(0)),
    }
}
