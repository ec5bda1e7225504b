//! The files of Paddle's own tool: `pipeline_profile.json` and `pipeline_profile_perfetto.json`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::Value;

use super::{Did, Worker};
use crate::base::units::Nanos;
use crate::problem::op::OpKind;

/// The row of steps in the file for Perfetto; the devices follow it.
const STEP_ROW: usize = 2333;

/// The colours of chrome://tracing that Paddle's tool gives. It gives none to chunks and to halves of the backward; here they
/// have that of their kind.
fn colour(kind: &str) -> &'static str {
    match Did::of(kind) {
        Did::Op(OpKind::F, _) => "thread_state_running",
        Did::Op(OpKind::W, _) => "rail_animation",
        Did::Op(..) => "rail_idle",
        Did::Optimizer => "rail_response",
        _ => "thread_state_unknown",
    }
}

/// Where the events of a worker, or of the steps, stand.
struct Row {
    row: Value,
    name: String,
}

fn rows(workers: &[Worker], numbered: bool) -> (Row, Vec<Row>) {
    let machines = workers.iter().map(|worker| worker.machine + 1).max().unwrap_or(1);
    // By position among the devices of a machine.
    let mut devices: Vec<usize> = workers.iter().map(|worker| worker.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let of = |worker: &Worker| {
        let position = devices.binary_search(&worker.device).unwrap_or(0);
        let machine = if machines > 1 { format!("(machine:{})", worker.machine) } else { String::new() };
        let name = format!("GPU:{}{machine}", worker.device);
        let row = match numbered {
            true => Value::from(STEP_ROW + 1 + worker.machine * devices.len() + position),
            false => Value::from(format!("GPU{}{machine}", worker.device)),
        };
        Row { row, name }
    };
    let step =
        Row { row: if numbered { Value::from(STEP_ROW) } else { Value::from("Step") }, name: "STEP".to_string() };
    (step, workers.iter().map(of).collect())
}

/// Microseconds, with every nanosecond.
fn micros(ns: Nanos) -> String {
    match ns % 1000 {
        0 => format!("{}.0", ns / 1000),
        rest => format!("{}.{rest:03}", ns / 1000),
    }
}

/// The two events of a span.
fn pair(events: &mut Vec<String>, name: &str, category: &str, row: &Value, colour: &str, [from, to]: [Nanos; 2]) {
    let (name, category) = (Value::from(name), Value::from(category));
    for (phase, at) in [("B", from), ("E", to)] {
        events.push(format!(
            r#"{{"name": {name}, "cat": {category}, "ph": "{phase}", "ts": {}, "pid": 0, "tid": {row}, "cname": "{colour}"}}"#,
            micros(at)
        ));
    }
}

fn all_events(workers: &[Worker], numbered: bool) -> String {
    let (step_row, worker_rows) = rows(workers, numbered);
    let mut events = Vec::new();
    for (worker, row) in workers.iter().zip(&worker_rows) {
        for job in &worker.jobs {
            let name = format!("{}_{}", job.kind, job.microbatch);
            pair(&mut events, &name, &job.kind, &row.row, colour(&job.kind), [job.start_ns, job.end_ns]);
        }
    }
    let steps: Vec<_> = workers.iter().map(Worker::steps).collect();
    let mut before = 0;
    for step in 0..steps.iter().map(Vec::len).max().unwrap_or(0) {
        let jobs = || steps.iter().filter_map(|steps| steps.get(step)).flat_map(|jobs| jobs.iter());
        let from = jobs().map(|job| job.start_ns).min().unwrap_or(0).max(before);
        let to = jobs().map(|job| job.end_ns).max().unwrap_or(0).max(from);
        pair(&mut events, &format!("step{step}"), "step", &step_row.row, "thread_state_unknown", [from, to]);
        before = to;
    }
    if numbered {
        for Row { row, name } in core::iter::once(&step_row).chain(&worker_rows) {
            let name = Value::from(name.as_str());
            events.push(format!(
                r#"{{"args": {{"name": {name}}}, "cat": "__metadata", "name": "thread_name", "ph": "M", "pid": 0, "tid": {row}, "ts": 0}}"#
            ));
        }
    }
    format!("{{\"traceEvents\": [\n{}\n]}}\n", events.join(",\n"))
}

/// The events of `pipeline_profile.json`, which chrome://tracing opens: rows are called `GPU0` or `GPU0(machine:1)`, and `Step`.
pub fn events(workers: &[Worker]) -> String {
    all_events(workers, false)
}

/// The events of `pipeline_profile_perfetto.json`: rows are numbered from 2333 on, and named by metadata.
pub fn perfetto_events(workers: &[Worker]) -> String {
    all_events(workers, true)
}
