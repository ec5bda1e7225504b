//! Measured runs: what files become one run, its steps, and what they mean.
//!
//! - In: questions about a run, and files as they are read ([`incoming`]).
//! - Out: replies. Spans of a step travel in columns that the page draws.
//! - Knows: as [`worker`](super). Only `listen` knows a browser.

pub mod incoming;
#[cfg(target_arch = "wasm32")]
pub mod listen;
mod means;
mod rows;
#[cfg(test)]
mod tests;

use core::ops::ControlFlow;

use pipeplan_core::api::{best_order, measured_order, measured_profile};
use pipeplan_core::base::fields::{Fault, Faults};
use pipeplan_core::formats::export::{self, Format};
use pipeplan_core::formats::paddle_log::{self, Worker as Log};
use pipeplan_core::formats::profile::{self, Recording};
use pipeplan_core::plan::{Plan, planner};
use pipeplan_core::problem::op::Op;
use pipeplan_core::problem::{Problem, Schedule};
use pipeplan_core::schedule::BEST;
use pipeplan_core::search::{Effort, Flow, Progress};
use pipeplan_core::trace::clocks::Aligned;
use pipeplan_core::trace::select::merged;
use pipeplan_core::trace::{Trace, analysis, calibrate};

use self::incoming::Contents;
use super::specs::read_order;
use crate::protocol::{
    Export, FieldFault, Order, StepSummary, TraceAsk, TraceReply, TraceResponse, TraceSummary, WhatIfRow, from_core,
};
use crate::text;

/// A run with more spans is no text for the storage of a browser, and is saved by steps.
const MOST_STORED_SPANS: u64 = 400_000;

/// The run that is open.
#[derive(Default)]
pub struct Analyst {
    trace: Option<Trace>,
}

/// Where a question stands that takes long.
#[derive(Clone, Copy, Debug)]
pub enum Watched {
    /// A search for an order.
    Search(Progress),
    /// Replays of a step that are done, and how many there will be at most.
    Replays(usize, usize),
}

/// Hears where a question stands, and may end it.
pub type Watch<'w> = dyn FnMut(Watched) -> Flow + 'w;

/// What reading has made of the files, and what a person hears of it.
struct Read {
    trace: Trace,
    told: Vec<String>,
    faults: Vec<Fault>,
}

impl Analyst {
    /// Opens what the files hold, each with its name, as one run. Files that cannot be read are named, and the rest is shown.
    pub fn open(
        &mut self,
        files: Vec<(String, Result<Contents, Fault>)>,
        order: Option<&Order>,
    ) -> Vec<TraceResponse> {
        let (mut faults, mut recordings, mut logs, mut traces) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (name, contents) in files {
            match contents {
                Ok(Contents::Torch(recording)) => recordings.push((name, *recording)),
                Ok(Contents::Paddle(log)) => logs.push(log),
                Ok(Contents::Trace(trace)) => traces.push((name, *trace)),
                Err(fault) => faults.push(Fault { field: format!("{name}, {}", fault.field), ..fault }),
            }
        }
        let planned = order.and_then(read_order);
        let read = match (recordings.is_empty(), logs.is_empty(), traces.is_empty()) {
            (true, true, true) => Err(Faults(Vec::new())),
            (false, true, true) => of_torch(&recordings, planned.as_ref()),
            (true, false, true) => of_paddle(logs, planned.as_ref()),
            (true, true, false) => of_traces(traces),
            _ => Err(Fault::new("the files", "files of several programs", "those of one run at once").into()),
        };
        match read {
            Ok(read) if read.trace.steps.iter().any(|step| step.rows.iter().any(|row| !row.is_empty())) => {
                faults.extend(read.faults);
                let summary = summary(&read.trace, read.told, &Faults(faults));
                let last = read.trace.steps.len().saturating_sub(1) as u32;
                self.trace = Some(read.trace);
                let mut replies = vec![TraceResponse::Opened(Box::new(summary))];
                replies.extend(self.step(last));
                replies
            }
            Ok(read) => {
                faults.extend(read.faults);
                faults.push(Fault::new("the files", "no span of a rank", "at least one recorded step"));
                vec![TraceResponse::NotOpened(from_core::faults(&Faults(faults)))]
            }
            Err(more) => {
                faults.extend(more.0);
                vec![TraceResponse::NotOpened(from_core::faults(&Faults(faults)))]
            }
        }
    }

    /// Answers a question. `watch` hears of what takes long, and may end it.
    pub fn answer(&self, ask: TraceAsk, watch: &mut Watch<'_>) -> Vec<TraceResponse> {
        let Some(trace) = &self.trace else { return Vec::new() };
        match ask {
            // Files are read by `listen`.
            TraceAsk::Open { .. } | TraceAsk::StopReading => Vec::new(),
            TraceAsk::Step { index } => self.step(index),
            TraceAsk::Analyse { index, order, .. } => vec![analyse(trace, index, order.as_ref(), watch)],
            TraceAsk::BestOrder { order, .. } => vec![TraceResponse::BestOrder(best(trace, order.as_ref(), watch))],
            TraceAsk::Calibrate(order) => read_order(&order)
                .map(|(problem, schedule)| match calibrate::calibrate(&problem, &schedule, trace) {
                    Ok(calibration) => TraceResponse::Calibrated(Box::new(from_core::calibrated(&calibration))),
                    Err(faults) => TraceResponse::NotCalibrated(from_core::faults(&faults)),
                })
                .into_iter()
                .collect(),
            TraceAsk::Order => vec![match measured_order(trace) {
                Ok((problem, schedule)) => TraceResponse::Ordered {
                    order: format!("{}\n", schedule.text_rows().join("\n")),
                    problem: problem.to_value().to_string(),
                },
                Err(refusal) => TraceResponse::NotOrdered(vec![said(&refusal.to_string())]),
            }],
            TraceAsk::Profile { plan } => vec![profile(trace, &plan)],
            TraceAsk::Export(export) => vec![exported(trace, export)],
        }
    }

    /// A step as it is drawn.
    fn step(&self, index: u32) -> Vec<TraceResponse> {
        self.trace.as_ref().map(|trace| rows::of_step(trace, index)).unwrap_or_default()
    }
}

/// A fault without a field.
fn said(sentence: &str) -> FieldFault {
    FieldFault { field: String::new(), found: text::sentence(sentence), accepted: String::new() }
}

/// What torch.profiler recorded: of the plan on screen where it is its run, else with the order that the files show.
fn of_torch(files: &[(String, Recording)], planned: Option<&(Problem, Schedule)>) -> Result<Read, Faults> {
    let of_plan = planned.map(|(problem, schedule)| profile::aligned(problem, schedule, "", files));
    let (read, mut told) = match of_plan {
        Some(Ok(read)) => (read, Vec::new()),
        other => {
            let (problem, schedule) = profile::found(files)?;
            let read = profile::aligned(&problem, &schedule, "", files)?;
            let why = other.and_then(Result::err).and_then(|faults| faults.0.into_iter().next());
            let why = why.map(|fault| format!("These files are not a run of the plan on screen ({fault})."));
            let told = profile::told(files).into_iter().map(|line| text::sentence(&line));
            (read, why.into_iter().chain(told).collect())
        }
    };
    told.extend(of_clocks(&read.1));
    Ok(Read { trace: read.0, told, faults: Vec::new() })
}

/// Logs of PaddlePaddle. A worker without a file is named.
fn of_paddle(mut logs: Vec<Log>, planned: Option<&(Problem, Schedule)>) -> Result<Read, Faults> {
    logs.sort_by_key(|log| (log.machine, log.device));
    if let Some(pair) =
        logs.windows(2).find(|pair| (pair[0].machine, pair[0].device) == (pair[1].machine, pair[1].device))
    {
        let accepted = "each worker once; of several machines, choose a folder with machine0, machine1 and so on";
        return Err(Fault::new(pair[1].name.as_str(), "a second log of this worker", accepted).into());
    }
    let mut missing = Vec::new();
    for machine in logs.iter().map(|log| log.machine).collect::<std::collections::BTreeSet<_>>() {
        let devices: Vec<usize> = logs.iter().filter(|log| log.machine == machine).map(|log| log.device).collect();
        let last = devices.iter().copied().max().unwrap_or(0).min(logs.len() + MOST_MISSING);
        missing.extend((0..last).filter(|device| !devices.contains(device)).map(|device| (machine, device)));
    }
    let faults: Vec<Fault> = missing
        .iter()
        .map(|(_, device)| Fault::new(format!("workerlog.{device}"), "no file", "the log of this device"))
        .collect();
    logs.extend(
        missing.into_iter().map(|(machine, device)| Log::new(format!("workerlog.{device}"), machine, device)),
    );
    logs.sort_by_key(|log| (log.machine, log.device));
    let of_plan = planned.map(|(problem, schedule)| paddle_log::trace(&logs, Some((problem, schedule, ""))));
    let (logged, mut told) = match of_plan {
        Some(Ok(logged)) => (logged, Vec::new()),
        _ => (paddle_log::trace(&logs, None)?, Vec::new()),
    };
    if let Some(placed) = logged.placed {
        told.push(format!("Stages are found from the order of jobs: {placed}."));
    }
    if !logged.left_out.is_empty() {
        let kinds: Vec<String> = logged.left_out.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
        told.push(format!("Jobs without a stage are left out: {}.", kinds.join(", ")));
    }
    told.extend(of_clocks(&logged.clocks));
    let known: Vec<String> = faults.iter().map(|fault| fault.field.clone()).collect();
    let others = logged.faults.into_iter().filter(|fault| !known.contains(&fault.field));
    let faults = faults.into_iter().chain(others).collect();
    Ok(Read { trace: logged.trace, told, faults })
}

/// Most workers without a file that are named.
const MOST_MISSING: usize = 1024;

/// Traces of pipeplan. Those of another run are named, and the rest is shown.
fn of_traces(traces: Vec<(String, Trace)>) -> Result<Read, Faults> {
    if traces.len() == 1 {
        let trace = traces.into_iter().next().map(|(_, trace)| trace).unwrap_or_default();
        return Ok(Read { trace, told: Vec::new(), faults: Vec::new() });
    }
    let shape = |trace: &Trace| (trace.replicas, trace.context, trace.tensor, trace.plan_digest.clone());
    let first = traces.first().map(|(name, trace)| (name.clone(), shape(trace)));
    let (mut kept, mut faults) = (Vec::new(), Vec::new());
    for (name, trace) in traces {
        match &first {
            Some((of, known)) if *known != shape(&trace) => {
                faults.push(Fault::new(
                    name,
                    "a run of another plan or shape",
                    format!("a part of the same run as {of}"),
                ));
            }
            _ => kept.push((name, trace)),
        }
    }
    let (trace, clocks) = merged(kept)?;
    Ok(Read { trace, told: of_clocks(&clocks), faults })
}

/// What putting clocks right did.
fn of_clocks(clocks: &Aligned) -> Vec<String> {
    let lines = clocks.told(&|ns| text::duration(ns as f64));
    match lines.is_empty() {
        true => lines,
        false => vec![format!("Clocks: {}.", lines.join("; "))],
    }
}

fn summary(trace: &Trace, told: Vec<String>, faults: &Faults) -> TraceSummary {
    let spans = trace.steps.iter().flat_map(|step| &step.rows).map(|row| row.len() as u64).sum();
    let order = trace.order();
    let most = |of: fn(Op) -> usize| order.iter().flatten().map(|op| of(*op) + 1).max().unwrap_or(0);
    let step = |step: &pipeplan_core::trace::StepTrace| StepSummary {
        step: step.step,
        loss: step.loss,
        makespan_ns: rows::makespan_ns(step),
    };
    TraceSummary {
        backend: trace.backend.clone(),
        transport: trace.transport.clone(),
        plan_digest: trace.plan_digest.clone(),
        steps: trace.steps.iter().map(step).collect(),
        ranks: trace.steps.iter().map(|step| step.rows.len()).max().unwrap_or(0),
        copies: [trace.replicas, trace.context, trace.tensor],
        shape: [most(Op::stage), most(Op::microbatch)],
        peak_bytes: trace.peak_bytes.clone(),
        shared_processors: trace.shared_processors,
        spans,
        told,
        faults: from_core::faults(faults),
        text: (spans <= MOST_STORED_SPANS).then(|| trace.to_json()),
    }
}

/// What the run means. Planned times count where it is a run of the plan on screen.
fn analyse(trace: &Trace, index: Option<u32>, order: Option<&Order>, watch: &mut Watch<'_>) -> TraceResponse {
    let planned = order.and_then(read_order).map(|(problem, _)| problem);
    let planned = planned
        .as_ref()
        .map(|problem| move |op: Op| if op.stage() < problem.stage_count() { problem.duration(op) } else { 1 });
    let planned: Option<&dyn Fn(Op) -> u64> = planned.as_ref().map(|planned| planned as _);
    let one = index.map(|index| part(trace, index));
    let of = one.as_ref().unwrap_or(trace);
    let mut watcher = |done, most| match watch(Watched::Replays(done, most)) {
        Flow::Continue => ControlFlow::Continue(()),
        Flow::Stop => ControlFlow::Break(()),
    };
    match analysis::analyse_watched(of, planned, &mut watcher) {
        Some(found) => TraceResponse::Analysed(Box::new(means::wire(of, &found, index))),
        None => TraceResponse::NotAnalysed,
    }
}

/// A step of a trace alone.
fn part(trace: &Trace, index: u32) -> Trace {
    let step = trace.steps.get(index as usize).cloned();
    Trace {
        plan_digest: trace.plan_digest.clone(),
        backend: trace.backend.clone(),
        transport: trace.transport.clone(),
        peak_bytes: trace.peak_bytes.clone(),
        hosts: trace.hosts.clone(),
        steps: step.into_iter().collect(),
        ..*trace
    }
}

/// What the best order for the measured times saves.
fn best(trace: &Trace, order: Option<&Order>, watch: &mut Watch<'_>) -> Option<WhatIfRow> {
    let (problem, schedule) = match order.and_then(read_order) {
        Some((problem, schedule)) => (calibrate::calibrate(&problem, &schedule, trace).ok()?.statement, schedule),
        None => measured_order(trace).ok()?,
    };
    let makespans: Vec<u64> = trace.steps.iter().map(rows::makespan_ns).filter(|ns| *ns > 0).collect();
    let mean = makespans.iter().map(|ns| u128::from(*ns)).sum::<u128>() / makespans.len().max(1) as u128;
    let found = best_order(&problem, &schedule, mean as u64, |spec| {
        planner::plan_with(spec, BEST, Effort::default(), &mut |progress| watch(Watched::Search(progress))).ok()
    })?;
    Some(means::what_if(&found))
}

/// A profile of what the run took, for the next plan of the same spec.
fn profile(trace: &Trace, plan: &str) -> TraceResponse {
    let plan = match Plan::from_json(plan) {
        Ok(plan) => plan,
        Err(error) => return TraceResponse::NotProfiled(vec![said(&error.to_string())]),
    };
    match measured_profile(&plan, trace) {
        Ok((calibration, profile)) => {
            TraceResponse::Profiled { profile: profile.to_json(), measured_ns: calibration.causes.measured_ns }
        }
        Err(refusal) => TraceResponse::NotProfiled(vec![said(&refusal.to_string())]),
    }
}

/// The run as a file: the last step alone where all of them are more than a page can hand out.
fn exported(trace: &Trace, export: Export) -> TraceResponse {
    let spans: usize = trace.steps.iter().flat_map(|step| &step.rows).map(Vec::len).sum();
    let last = trace.steps.len().saturating_sub(1) as u32;
    let is_large = spans as u64 > 4 * MOST_STORED_SPANS && last > 0;
    let one = is_large.then(|| part(trace, last));
    let of = one.as_ref().unwrap_or(trace);
    let text = match export {
        Export::Trace => Ok(of.to_json()),
        Export::Perfetto => export::of_trace(of, Format::ChromeTrace),
        Export::Csv => export::of_trace(of, Format::Csv),
    };
    let step = one.as_ref().and_then(|part| part.steps.first()).map(|step| step.step);
    // Both formats have words for every trace.
    TraceResponse::Exported { export, text: text.unwrap_or_default(), step }
}

/// A reply to question `id`.
pub fn reply(id: u32, response: TraceResponse) -> TraceReply {
    TraceReply { id, response }
}
