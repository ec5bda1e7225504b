//! Measured runs: what files become one run, its steps, and what they mean.
//!
//! - In: questions about a run, and what its files hold.
//! - Out: replies. Spans of a step travel in columns that the page draws.
//! - Knows: as [`worker`](super). Only `listen` knows a browser.

#[cfg(target_arch = "wasm32")]
pub mod listen;
mod means;
mod rows;
#[cfg(test)]
mod tests;

use core::cell::RefCell;
use core::ops::ControlFlow;

use pipeplan_core::api::{best_order, measured_order, measured_profile_watched};
use pipeplan_core::base::fields::{Fault, Faults};
use pipeplan_core::formats::export::{self, Format};
use pipeplan_core::formats::flight_recorder::{self, Dump};
use pipeplan_core::formats::run_files::{self, Contents, Files, Ran, Run};
use pipeplan_core::plan::{Plan, planner};
use pipeplan_core::problem::op::Op;
use pipeplan_core::schedule::BEST;
use pipeplan_core::search::{Effort, Flow, Progress};
use pipeplan_core::trace::select::merged;
use pipeplan_core::trace::{Trace, analysis, calibrate};

use super::specs::read_order;
use crate::protocol::{
    Export, FieldFault, HangReport, Order, StepSummary, TraceAsk, TraceReply, TraceResponse, TraceSummary, WhatIfRow,
    from_core,
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
    /// Steps of a comparison with an order that are done, and how many there are.
    Comparison(usize, usize),
    /// A file is written.
    Writing,
}

/// Hears where a question stands, and may end it.
pub type Watch<'w> = dyn FnMut(Watched) -> Flow + 'w;

impl Analyst {
    /// Opens what the files hold, each with its name, as one run. Files that cannot be read are named, and the rest is shown.
    pub fn open(
        &mut self,
        files: Vec<(String, Result<Contents, Faults>)>,
        order: Option<&Order>,
    ) -> Vec<TraceResponse> {
        let (mut faults, mut read) = (Vec::new(), Files::default());
        for (name, contents) in files {
            match contents {
                Ok(contents) => read.add(name, contents),
                Err(of_file) => faults.extend(
                    of_file
                        .0
                        .into_iter()
                        .take(MOST_OF_FILE)
                        .map(|fault| Fault { field: format!("{name}, {}", fault.field), ..fault }),
                ),
            }
        }
        let planned = order.and_then(read_order);
        let planned = planned.as_ref().map(|(problem, schedule)| (problem, schedule, ""));
        let run = match read.expect_one_program() {
            Err(fault) => Err(fault.into()),
            Ok(()) if read.is_empty() => Err(Faults(Vec::new())),
            Ok(()) if !read.dumps.is_empty() => return vec![hang(&read.dumps, faults)],
            Ok(()) => run_of(read, planned),
        };
        match run {
            Ok((run, told)) if run.trace.steps.iter().any(|step| step.rows.iter().any(|row| !row.is_empty())) => {
                faults.extend(run.faults);
                let summary = summary(&run.trace, told, &Faults(faults));
                let last = run.trace.steps.len().saturating_sub(1) as u32;
                self.trace = Some(run.trace);
                let mut replies = vec![TraceResponse::Opened(Box::new(summary))];
                replies.extend(self.step(last));
                replies
            }
            Ok((run, _)) => {
                faults.extend(run.faults);
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
            TraceAsk::Calibrate { order, .. } => vec![calibrated(trace, &order, watch)],
            TraceAsk::Order { .. } => vec![measured(trace, watch)],
            TraceAsk::Profile { plan, .. } => vec![profile(trace, &plan, watch)],
            TraceAsk::Export { export, .. } => vec![exported(trace, export, watch)],
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

/// Most faults of one file that are told.
const MOST_OF_FILE: usize = 3;

/// The run of files of one program, and what a person hears of it.
fn run_of(files: Files, planned: Option<Ran<'_>>) -> Result<(Run, Vec<String>), Faults> {
    let (run, why) = if !files.recordings.is_empty() {
        with_plan_or_without(planned, |planned| run_files::of_recordings(&files.recordings, planned))?
    } else if !files.logs.is_empty() {
        let mut logs = run_files::placed(files.logs)?;
        let missing = run_files::add_missing(&mut logs);
        with_plan_or_without(planned, |planned| run_files::of_logs(&logs, &missing, planned))?
    } else {
        (of_traces(files.traces)?, None)
    };
    let line = |(word, line): &(&str, String)| text::sentence(&format!("{word}: {line}"));
    let mut told: Vec<String> = why.into_iter().chain(run.told.iter().map(line)).collect();
    let clocks = run.clocks.told(&|ns| text::duration(ns as f64));
    if !clocks.is_empty() {
        told.push(format!("Clocks: {}.", clocks.join("; ")));
    }
    Ok((run, told))
}

/// The run of the plan on screen where it is one, else with the order that the files show and the reason.
fn with_plan_or_without(
    planned: Option<Ran<'_>>,
    read: impl Fn(Option<Ran<'_>>) -> Result<Run, Faults>,
) -> Result<(Run, Option<String>), Faults> {
    let why = match planned.map(|planned| read(Some(planned))) {
        Some(Ok(run)) => return Ok((run, None)),
        Some(Err(faults)) => faults.0.into_iter().next(),
        None => None,
    };
    let why = why.map(|fault| format!("These files are not a run of the plan on screen ({fault})."));
    Ok((read(None)?, why))
}

/// Traces of pipeplan. Those of another run are named, and the rest is shown.
fn of_traces(traces: Vec<(String, Trace)>) -> Result<Run, Faults> {
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
    Ok(Run { trace, clocks, told: Vec::new(), faults })
}

/// What dumps of torch's flight recorder say.
fn hang(dumps: &[(String, usize, Dump)], mut faults: Vec<Fault>) -> TraceResponse {
    match flight_recorder::waits(dumps) {
        Ok(report) => {
            let parts = report.parts(&|ns| text::duration(ns as f64)).into_iter();
            let line = |(word, line): (&str, String)| (word.to_owned(), line);
            let parts = parts.map(|part| (part.title, part.lines.into_iter().map(line).collect()));
            TraceResponse::Hangs(Box::new(HangReport {
                parts: parts.collect(),
                json: format!("{:#}\n", report.to_value()),
                faults: from_core::faults(&Faults(faults)),
            }))
        }
        Err(more) => {
            faults.extend(more.0);
            TraceResponse::NotOpened(from_core::faults(&Faults(faults)))
        }
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

/// Hears of comparisons for `watch`, and remembers whether it has ended one.
fn comparison<'w>(watch: &'w mut Watch<'_>, ended: &'w mut bool) -> impl FnMut(usize, usize) -> ControlFlow<()> + 'w {
    |done, most| match watch(Watched::Comparison(done, most)) {
        Flow::Continue => ControlFlow::Continue(()),
        Flow::Stop => {
            *ended = true;
            ControlFlow::Break(())
        }
    }
}

/// What the best order for the measured times saves.
fn best(trace: &Trace, order: Option<&Order>, watch: &mut Watch<'_>) -> Option<WhatIfRow> {
    let mut ended = false;
    let (problem, schedule) = match order.and_then(read_order) {
        Some((problem, schedule)) => {
            let compared =
                calibrate::calibrate_watched(&problem, &schedule, trace, &mut comparison(watch, &mut ended));
            (compared.ok()?.statement, schedule)
        }
        None => measured_order(trace, &mut comparison(watch, &mut ended)).ok()?,
    };
    let makespans: Vec<u64> = trace.steps.iter().map(rows::makespan_ns).filter(|ns| *ns > 0).collect();
    let mean = makespans.iter().map(|ns| u128::from(*ns)).sum::<u128>() / makespans.len().max(1) as u128;
    let found = best_order(&problem, &schedule, mean as u64, |spec| {
        planner::plan_with(spec, BEST, Effort::default(), &mut |progress| watch(Watched::Search(progress))).ok()
    })?;
    Some(means::what_if(&found))
}

/// Where the run lost time against a plan.
fn calibrated(trace: &Trace, order: &Order, watch: &mut Watch<'_>) -> TraceResponse {
    let Some((problem, schedule)) = read_order(order) else { return TraceResponse::Ended };
    let mut ended = false;
    let compared = calibrate::calibrate_watched(&problem, &schedule, trace, &mut comparison(watch, &mut ended));
    match compared {
        _ if ended => TraceResponse::Ended,
        Ok(calibration) => TraceResponse::Calibrated(Box::new(from_core::calibrated(&calibration))),
        Err(faults) => TraceResponse::NotCalibrated(from_core::faults(&faults)),
    }
}

/// The order that ran, with the measured times.
fn measured(trace: &Trace, watch: &mut Watch<'_>) -> TraceResponse {
    let mut ended = false;
    let found = measured_order(trace, &mut comparison(watch, &mut ended));
    match found {
        _ if ended => TraceResponse::Ended,
        Ok((problem, schedule)) => TraceResponse::Ordered {
            order: format!("{}\n", schedule.text_rows().join("\n")),
            problem: problem.to_value().to_string(),
        },
        Err(refusal) => TraceResponse::NotOrdered(vec![said(&refusal.to_string())]),
    }
}

/// A profile of what the run took, for the next plan of the same spec.
fn profile(trace: &Trace, plan: &str, watch: &mut Watch<'_>) -> TraceResponse {
    let plan = match Plan::from_json(plan) {
        Ok(plan) => plan,
        Err(error) => return TraceResponse::NotProfiled(vec![said(&error.to_string())]),
    };
    let mut ended = false;
    let found = measured_profile_watched(&plan, trace, &mut comparison(watch, &mut ended));
    match found {
        _ if ended => TraceResponse::Ended,
        Ok((calibration, profile)) => {
            TraceResponse::Profiled { profile: profile.to_json(), measured_ns: calibration.causes.measured_ns }
        }
        Err(refusal) => TraceResponse::NotProfiled(vec![said(&refusal.to_string())]),
    }
}

/// The run as a file: the last step alone where all of them are more than a page can hand out.
fn exported(trace: &Trace, export: Export, watch: &mut Watch<'_>) -> TraceResponse {
    let spans: usize = trace.steps.iter().flat_map(|step| &step.rows).map(Vec::len).sum();
    let last = trace.steps.len().saturating_sub(1) as u32;
    let is_large = spans as u64 > 4 * MOST_STORED_SPANS && last > 0;
    let one = is_large.then(|| part(trace, last));
    let of = one.as_ref().unwrap_or(trace);
    let text = match export {
        Export::Trace => {
            let watch = RefCell::new(watch);
            of.to_json_while(&|| (*watch.borrow_mut())(Watched::Writing) == Flow::Continue)
        }
        Export::Perfetto => written(of, Format::ChromeTrace, watch),
        Export::Csv => written(of, Format::Csv, watch),
    };
    let step = one.as_ref().and_then(|part| part.steps.first()).map(|step| step.step);
    text.map_or(TraceResponse::Ended, |text| TraceResponse::Exported { export, text, step })
}

/// A file of another program; none where `watch` has ended it.
fn written(trace: &Trace, format: Format, watch: &mut Watch<'_>) -> Option<String> {
    let (mut bytes, mut ended) = (Vec::new(), false);
    let mut sink = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        match watch(Watched::Writing) {
            Flow::Continue => ControlFlow::Continue(()),
            Flow::Stop => {
                ended = true;
                ControlFlow::Break(())
            }
        }
    };
    // Both formats have words for every trace.
    export::write_trace(trace, format, &mut sink).ok()?;
    String::from_utf8(bytes).ok().filter(|_| !ended)
}

/// A reply to question `id`.
pub fn reply(id: u32, response: TraceResponse) -> TraceReply {
    TraceReply { id, response }
}
