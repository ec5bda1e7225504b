//! Timelines in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.
//!
//! Each part (planned, measured) is a process and each of its ranks a thread; ops are complete events (`X`),
//! and the bytes that a rank holds are counters (`C`). Times are microseconds with three decimals, so that
//! every nanosecond is kept.
//!
//! Format: “Trace Event Format”, the Chromium project's document, sections “Complete events”, “Counter
//! events” and “Metadata events”.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use serde_json::Value;

use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::op::OpKind;
use crate::program::Step;
use crate::simulate::timeline::Timeline;
use crate::trace::Trace;

/// A file under construction.
#[derive(Default)]
pub struct ChromeTrace {
    events: Vec<String>,
    parts: usize,
}

impl ChromeTrace {
    /// No events yet.
    pub fn new() -> ChromeTrace {
        ChromeTrace::default()
    }

    /// Adds a predicted timeline with the bytes that each rank holds.
    pub fn plan(&mut self, name: &str, problem: &Problem, timeline: &Timeline) {
        let part = self.start(name, timeline.rows.len(), |rank| format!("rank {rank}"));
        for (rank, row) in timeline.rows.iter().enumerate() {
            for span in row {
                let (op, category) = (span.op.to_string(), category(span.op.kind()));
                self.complete(&op, category, part, rank, span.start_ns, span.end_ns);
            }
            for (time, bytes) in timeline.memory(problem, rank) {
                self.events.push(format!(
                    r#"{{"name":"bytes on rank {rank}","ph":"C","pid":{part},"ts":{},"args":{{"bytes":{bytes}}}}}"#,
                    micros(time)
                ));
            }
        }
    }

    /// Adds a measured trace, its training steps one after the other, and a row that shows the steps.
    pub fn trace(&mut self, name: &str, trace: &Trace) {
        let ranks = trace.steps.iter().map(|step| step.rows.len()).max().unwrap_or(0);
        let row_name = |row| if row < ranks { trace.row_name(row, ranks) } else { "steps".to_string() };
        let part = self.start(name, ranks + 1, row_name);
        let mut start = 0u64;
        for step in &trace.steps {
            let end = start.saturating_add(step.duration_ns());
            self.complete(&format!("step {}", step.step), "step", part, ranks, start, end);
            for (rank, row) in step.rows.iter().enumerate() {
                for span in row {
                    let category = match &span.step {
                        Step::Compute(op) => category(op.kind()),
                        Step::Transfer(_) | Step::Start(_) | Step::Wait(_) => "transfer",
                        Step::Optimizer => "optimizer",
                    };
                    // Times of a file may be anything up to 2^62; what no longer fits stays at the end of time.
                    let (from, to) = (start.saturating_add(span.start_ns), start.saturating_add(span.end_ns));
                    self.complete(&span.step.to_string(), category, part, rank, from, to);
                }
            }
            start = start.saturating_add(step.duration_ns());
        }
    }

    /// The file's text.
    pub fn finish(self) -> String {
        format!("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n", self.events.join(",\n"))
    }

    /// Opens a part whose rows are called as `row_name` says, and are shown in their order.
    fn start(&mut self, name: &str, rows: usize, row_name: impl Fn(usize) -> String) -> usize {
        let part = self.parts;
        self.parts += 1;
        self.events.push(format!(
            r#"{{"name":"process_name","ph":"M","pid":{part},"args":{{"name":{}}}}}"#,
            Value::from(name)
        ));
        for row in 0..rows {
            self.events.push(format!(
                r#"{{"name":"thread_name","ph":"M","pid":{part},"tid":{row},"args":{{"name":{}}}}}"#,
                Value::from(row_name(row))
            ));
            self.events.push(format!(
                r#"{{"name":"thread_sort_index","ph":"M","pid":{part},"tid":{row},"args":{{"sort_index":{row}}}}}"#
            ));
        }
        part
    }

    fn complete(&mut self, name: &str, category: &str, part: usize, rank: usize, from: Nanos, to: Nanos) {
        self.events.push(format!(
            r#"{{"name":"{name}","cat":"{category}","ph":"X","pid":{part},"tid":{rank},"ts":{},"dur":{}}}"#,
            micros(from),
            micros(to - from)
        ));
    }
}

const fn category(kind: OpKind) -> &'static str {
    match kind {
        OpKind::F => "forward",
        OpKind::B => "backward-input",
        OpKind::W => "backward-weight",
        OpKind::BW => "backward",
    }
}

/// Microseconds with as many decimals as are needed.
fn micros(time: Nanos) -> String {
    let mut text = (time / 1000).to_string();
    if !time.is_multiple_of(1000) {
        let _ = write!(text, ".{:03}", time % 1000);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::planner;
    use crate::spec::Spec;
    use crate::trace::{StepTrace, TraceSpan};

    #[test]
    fn every_op_and_every_byte_is_an_event() {
        let spec = Spec::read(
            "ranks = 2\nmicrobatches = 3\nstages = { forward_ns = 1500, backward_input_ns = 1, forward_bytes = 1, \
             backward_input_bytes = -1 }\n",
        )
        .unwrap();
        let plan = planner::plan(&spec, "1f1b").unwrap();
        let timeline = plan.timeline().unwrap();
        let mut trace = ChromeTrace::new();
        trace.plan("planned \"1f1b\"", &plan.problem, &timeline);
        let value: Value = serde_json::from_str(&trace.finish()).unwrap();
        let events = value["traceEvents"].as_array().unwrap();
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
        assert_eq!((of("X").len(), of("M").len()), (12, 5));
        assert_eq!(of("M")[0]["args"]["name"], "planned \"1f1b\"");
        let first = of("X")[0];
        assert_eq!((&first["name"], &first["ts"], &first["dur"]), (&"0F0".into(), &0.into(), &1.5.into()));
        assert_eq!(of("C").iter().map(|event| event["args"]["bytes"].as_u64()).max(), Some(Some(2)));
    }

    #[test]
    fn steps_of_a_trace_follow_each_other() {
        let span = |step, start_ns, end_ns| TraceSpan { step, start_ns, end_ns };
        let step = |number| StepTrace {
            step: number,
            loss: None,
            tokens: 0,
            began_ns: None,
            rows: alloc::vec![alloc::vec![span(Step::Optimizer, 10, 30)]],
            ..StepTrace::default()
        };
        let trace = Trace {
            plan_digest: String::new(),
            backend: String::new(),
            transport: String::new(),
            replicas: 1,
            context: 1,
            tensor: 1,
            overhead_ns: None,
            shared_processors: None,
            peak_bytes: Vec::new(),
            steps: alloc::vec![step(0), step(1)],
        };
        let mut chrome = ChromeTrace::new();
        chrome.trace("measured", &trace);
        let value: Value = serde_json::from_str(&chrome.finish()).unwrap();
        let starts: Vec<f64> =
            value["traceEvents"].as_array().unwrap().iter().filter_map(|event| event["ts"].as_f64()).collect();
        // A step, and what is in it.
        assert_eq!(starts, [0.0, 0.01, 0.03, 0.04]);
    }

    #[test]
    fn every_row_of_every_replica_has_a_name_of_its_own() {
        let rows = (0..4).map(|_| alloc::vec![TraceSpan { step: Step::Optimizer, start_ns: 0, end_ns: 1 }]).collect();
        let trace = Trace {
            plan_digest: String::new(),
            backend: String::new(),
            transport: String::new(),
            replicas: 2,
            context: 1,
            tensor: 1,
            overhead_ns: None,
            shared_processors: None,
            peak_bytes: Vec::new(),
            steps: alloc::vec![StepTrace { rows, ..StepTrace::default() }],
        };
        let mut chrome = ChromeTrace::new();
        chrome.trace("measured", &trace);
        let value: Value = serde_json::from_str(&chrome.finish()).unwrap();
        let events = value["traceEvents"].as_array().unwrap();
        let named = events.iter().filter(|event| event["name"] == "thread_name");
        let names: Vec<&str> = named.map(|event| event["args"]["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["replica 0, rank 0", "replica 0, rank 1", "replica 1, rank 0", "replica 1, rank 1", "steps"]
        );
        let threads: alloc::collections::BTreeSet<u64> =
            events.iter().filter(|event| event["ph"] == "X").filter_map(|event| event["tid"].as_u64()).collect();
        assert_eq!(threads.len(), 5);
    }
}
