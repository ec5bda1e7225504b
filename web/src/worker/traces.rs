//! Measured runs: traces, and what torch.profiler recorded.

use pipeplan_core::base::fields::{Fault, Faults};
use pipeplan_core::formats::profile::{self, Recording};
use pipeplan_core::trace::{Trace, calibrate};

use super::Worker;
use super::specs::read_order;
use crate::protocol::{Measured, Order, Response, TraceSummary, from_core, spans};

/// The torch.profiler files of a batch.
#[derive(Default)]
pub(super) struct RecordedRanks {
    pub(super) batch: u32,
    /// By file name: the recording, or the fault of the file.
    pub(super) files: Vec<(String, Result<Recording, Fault>)>,
}

impl Worker {
    pub(super) fn open_trace(&mut self, text: &str) -> Vec<Response> {
        match Trace::from_json(text) {
            Ok(trace) => {
                let summary = TraceSummary {
                    backend: trace.backend.clone(),
                    transport: trace.transport.clone(),
                    plan_digest: trace.plan_digest.clone(),
                    steps: trace.steps.iter().map(|step| (step.step, step.loss)).collect(),
                    peak_bytes: trace.peak_bytes.clone(),
                    shared_processors: trace.shared_processors,
                };
                let last = trace.steps.len().saturating_sub(1) as u32;
                self.trace = Some(trace);
                let mut response = vec![Response::TraceOpened(summary)];
                response.extend(self.trace_step(last));
                response
            }
            Err(faults) => {
                vec![Response::Unreadable { what: "trace".to_owned(), faults: from_core::faults(&faults) }]
            }
        }
    }

    pub(super) fn trace_step(&self, index: u32) -> Option<Response> {
        let step = self.trace.as_ref()?.steps.get(index as usize)?;
        let timeline = step.timeline();
        Some(Response::TraceShown(Box::new(Measured {
            index,
            rows: timeline.rows.iter().map(|row| spans::pack(row)).collect(),
            makespan_ns: timeline.makespan_ns(),
            bubble_ratio: timeline.bubble_ratio(pipeplan_core::problem::Objective::Makespan),
            tokens: step.tokens,
            duration_ns: step.duration_ns(),
        })))
    }

    /// Compares the open trace with the plan of these op lists. None if no trace is open, or if the page sent no plan.
    pub(super) fn calibrate(&self, order: &Order) -> Option<Response> {
        let trace = self.trace.as_ref()?;
        let (problem, schedule) = read_order(order)?;
        Some(match calibrate::calibrate(&problem, &schedule, trace) {
            Ok(calibration) => Response::Calibrated(Box::new(from_core::calibrated(&calibration))),
            Err(faults) => Response::NotCalibrated(from_core::faults(&faults)),
        })
    }

    /// Makes a trace of the files of a batch, and drops the files.
    pub(super) fn trace_recorded(&mut self, batch: u32, order: &Order) -> Option<Response> {
        let recorded = core::mem::take(&mut self.recorded_ranks);
        let (problem, schedule) = read_order(order)?;
        let mut faults = Vec::new();
        let mut files = Vec::new();
        for (name, recording) in Some(recorded).filter(|recorded| recorded.batch == batch).unwrap_or_default().files {
            match recording {
                Ok(recording) => files.push((name, recording)),
                Err(fault) => faults.push(Fault { field: format!("{name}, {}", fault.field), ..fault }),
            }
        }
        let trace = match faults.is_empty() {
            true => profile::trace(&problem, &schedule, "", &files),
            false => Err(Faults(faults)),
        };
        Some(match trace {
            Ok(trace) => Response::Traced { trace: trace.to_json() },
            Err(faults) => Response::NotTraced(from_core::faults(&faults)),
        })
    }
}
