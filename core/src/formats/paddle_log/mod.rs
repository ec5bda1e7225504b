//! The job log of PaddlePaddle's pipeline scheduler: `workerlog.N`, as its executor writes it when a window of steps is profiled
//! (`job_schedule_profiler_start` and `_stop`).
//!
//! Every job is one line after the prefix of glog, with times of the wall clock in milliseconds:
//!
//! ```text
//! I0101 … Profiler Info: Job (3), type = forward0, micro_batch_id = 3, job_start_time = 171.5, job_end_time = 172.25
//! ```
//!
//! - In: the lines of each worker ([`Worker`]), with or without the plan that ran.
//! - Out: a trace ([`trace`]) with what was left out or found wrong; the events of Paddle's own tool ([`events()`]); the lines of
//!   a trace ([`write()`]).
//!
//! A worker's steps begin where the first type of job (other than `default`) comes with microbatch 0. Types are `forward`,
//! `backward`, `backward_b`, `backward_w`, each with the chunk's number where a rank has several, and `optimizer`.
//!
//! Without a plan, the stages follow from the order of jobs: workers with the same order hold the same stages. Where all orders
//! are alike, as in GPipe, whoever starts later holds later stages. Chunks go round the ranks, or back and forth where the last
//! rank goes on to its second chunk earlier than the first rank does.

mod events;
mod place;
#[cfg(test)]
mod tests;
mod write;

pub use self::events::{events, perfetto_events};
pub use self::write::write;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use self::place::{Placed, place};
use crate::base::fields::{Fault, Faults};
use crate::base::units::Nanos;
use crate::problem::MAX_MICROBATCHES;
use crate::problem::op::{Op, OpKind};
use crate::problem::{Problem, Schedule};
use crate::program::{P2pOp, Payload, Step, Way};
use crate::trace::clocks::{Aligned, align};
use crate::trace::{StepTrace, Trace, TraceSpan};

/// One job that a worker ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its type, such as `forward0`.
    pub kind: String,
    /// Its microbatch.
    pub microbatch: u32,
    /// When it started, by the wall clock.
    pub start_ns: Nanos,
    /// When it ended.
    pub end_ns: Nanos,
}

/// What the log of one worker says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// The file, for people.
    pub name: String,
    /// Its machine, from 0.
    pub machine: usize,
    /// Its device on that machine: the N of `workerlog.N`.
    pub device: usize,
    /// Its jobs, in the order of its lines.
    pub jobs: Vec<Job>,
    /// The number of the first step, where the log says so.
    pub first_step: Option<u64>,
    /// Lines that are no whole job, each with its number.
    pub faults: Vec<Fault>,
}

/// What every line of a job has.
const MARK: &str = "Profiler Info";
/// The whole form, for people.
const FORM: &str =
    "Profiler Info: Job (0), type = forward, micro_batch_id = 0, job_start_time = 0.0, job_end_time = 1.0";
/// Most jobs of one worker.
const MAX_JOBS: usize = 12_000_000;

/// What a type of job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Did {
    /// An op of a chunk.
    Op(OpKind, usize),
    /// Receives the input of a chunk's forward.
    Receive(usize),
    /// Sends the gradient of a chunk.
    Send(usize),
    /// The update of the weights.
    Optimizer,
    /// Anything else.
    Other,
}

impl Did {
    fn of(kind: &str) -> Did {
        let name = kind.trim_end_matches(|c: char| c.is_ascii_digit());
        let chunk = match &kind[name.len()..] {
            "" => 0,
            digits => match digits.parse::<usize>() {
                Ok(chunk) if chunk < crate::problem::MAX_CHUNKS => chunk,
                _ => return Did::Other,
            },
        };
        match name {
            "forward" => Did::Op(OpKind::F, chunk),
            "backward" => Did::Op(OpKind::BW, chunk),
            "backward_b" => Did::Op(OpKind::B, chunk),
            "backward_w" => Did::Op(OpKind::W, chunk),
            "recv_forward" => Did::Receive(chunk),
            "send_backward" => Did::Send(chunk),
            "optimizer" => Did::Optimizer,
            _ => Did::Other,
        }
    }
}

impl Worker {
    /// A log without lines so far.
    pub fn new(name: impl Into<String>, machine: usize, device: usize) -> Worker {
        Worker { name: name.into(), machine, device, ..Worker::default() }
    }

    /// Reads line `number`, from 1. Lines of other parts of the program are passed over: a log has mostly those.
    pub fn line(&mut self, number: usize, line: &str) {
        if let Some((_, window)) = line.split_once("Schedule Profiler start at step ") {
            let digits = window.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            self.first_step = self.first_step.or(digits.parse().ok());
            return;
        }
        let Some((_, said)) = line.split_once(MARK) else { return };
        if self.jobs.len() >= MAX_JOBS {
            if self.jobs.len() == MAX_JOBS && !self.faults.iter().any(|fault| fault.accepted.contains("jobs")) {
                let place = format!("{} line {number}", self.name);
                self.faults.push(Fault::new(place, "more jobs", format!("at most {MAX_JOBS} jobs of a worker")));
            }
            return;
        }
        match job(said) {
            Ok(job) => self.jobs.push(job),
            Err(accepted) => {
                let found = format!("`{MARK}{}`", said.trim_end());
                self.faults.push(Fault::new(format!("{} line {number}", self.name), found, accepted));
            }
        }
    }

    /// Reads all lines of a text.
    pub fn text(mut self, text: &str) -> Worker {
        text.lines().enumerate().for_each(|(index, line)| self.line(index + 1, line));
        self
    }

    /// The jobs of each step.
    fn steps(&self) -> Vec<&[Job]> {
        let marker = self.jobs.iter().find(|job| job.kind != "default").map(|job| job.kind.as_str());
        let begins = |job: &Job| Some(job.kind.as_str()) == marker && job.microbatch == 0;
        let mut at: Vec<usize> = (0..self.jobs.len()).filter(|index| begins(&self.jobs[*index])).collect();
        match at.first_mut() {
            // What comes before belongs to the first step.
            Some(first) => *first = 0,
            None if !self.jobs.is_empty() => at.push(0),
            None => {}
        }
        at.push(self.jobs.len());
        at.windows(2).map(|ends| &self.jobs[ends[0]..ends[1]]).collect()
    }
}

/// The job of a line, from behind [`MARK`] on; else what is accepted there.
fn job(said: &str) -> Result<Job, &'static str> {
    let after = |text: &'_ str, what: &str| text.split_once(what).map(|(_, rest)| rest.to_string());
    let until = |text: &str| text.split([',', ' ']).next().unwrap_or_default().to_string();
    let bracket = after(said, "Job (").and_then(|rest| Some(rest.split_once(')')?.0.to_string()));
    let kind = after(said, "), type = ").map(|rest| until(&rest)).filter(|kind| !kind.is_empty());
    let number = after(said, ", micro_batch_id = ").map(|rest| until(&rest));
    let start = after(said, ", job_start_time = ").and_then(|rest| nanos(&until(&rest)));
    let end = after(said, ", job_end_time = ").and_then(|rest| nanos(&until(rest.trim_end())));
    let (Some(bracket), Some(kind), Some(number), Some(start_ns), Some(end_ns)) = (bracket, kind, number, start, end)
    else {
        return Err(FORM);
    };
    let microbatch = number.parse::<u32>().ok().filter(|number| (*number as usize) < MAX_MICROBATCHES);
    let Some(microbatch) = microbatch else { return Err("a microbatch from 0 to 999999") };
    if bracket != number {
        return Err("the same microbatch in the brackets and as micro_batch_id");
    }
    if end_ns < start_ns {
        return Err("an end that is not before the start");
    }
    Ok(Job { kind, microbatch, start_ns, end_ns })
}

/// Milliseconds as nanoseconds: the digits as they stand, so that none is lost; none of what no clock shows.
fn nanos(text: &str) -> Option<Nanos> {
    const MOST: Nanos = 1 << 61;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) {
        // As C++ writes large numbers: 1.71e+12.
        let number: f64 = text.parse().ok()?;
        return (0.0..MOST as f64 / 1e6).contains(&number).then_some((number * 1e6 + 0.5) as Nanos);
    }
    let mut six: String = part.chars().take(6).collect();
    while six.len() < 6 {
        six.push('0');
    }
    let ns = whole.parse::<Nanos>().ok()?.checked_mul(1_000_000)?.checked_add(six.parse().ok()?)?;
    (ns < MOST).then_some(ns)
}

/// A trace of workers' logs, with what to tell about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Logged {
    /// What ran.
    pub trace: Trace,
    /// Files and lines that are missing or wrong; the trace has the rest.
    pub faults: Vec<Fault>,
    /// Jobs that no trace has, by type: `lr`, `default`.
    pub left_out: BTreeMap<String, usize>,
    /// How chunks are placed, where that was found and not planned: `one stage per rank`, `round the ranks`, `back and forth`.
    pub placed: Option<&'static str>,
    /// What putting the machines' clocks right did.
    pub clocks: Aligned,
}

/// The trace of `workers`. `plan` is the order that ran, and its digest; without one, stages follow from the logs.
///
/// # Errors
/// Where nothing can be shown: no jobs at all, workers whose stages cannot be told, another order than the plan's. Lines and
/// files that are wrong are no error; they stand in the answer.
pub fn trace(workers: &[Worker], plan: Option<(&Problem, &Schedule, &str)>) -> Result<Logged, Faults> {
    let mut faults: Vec<Fault> = workers.iter().flat_map(|worker| worker.faults.iter().cloned()).collect();
    let empty = workers.iter().filter(|worker| worker.jobs.is_empty() && worker.faults.is_empty());
    faults.extend(
        empty.map(|worker| Fault::new(worker.name.as_str(), "no line of a job", format!("lines such as `{FORM}`"))),
    );
    if workers.iter().all(|worker| worker.jobs.is_empty()) {
        faults.truncate(1);
        return Err(Faults(match faults.is_empty() {
            true => vec![Fault::new("the logs", "no worker", "a folder with workerlog.0 and so on")],
            false => faults,
        }));
    }
    let Placed { ranks, copies, row_of, stage_of, placed } =
        place(workers, plan.map(|(problem, schedule, _)| (problem, schedule)))?;
    if ranks * copies == 0 {
        // Jobs such as `lr` alone, or those of a stage whose forward is damaged everywhere.
        faults.insert(0, Fault::new("the logs", "no forward of a stage", "jobs of type forward and backward"));
        faults.truncate(4);
        return Err(Faults(faults));
    }
    let steps_of: Vec<Vec<&[Job]>> = workers.iter().map(Worker::steps).collect();
    let count = steps_of.iter().map(Vec::len).max().unwrap_or(0);
    for (worker, steps) in workers.iter().zip(&steps_of).filter(|(_, steps)| (1..count).contains(&steps.len())) {
        let found = format!("{} of {count} steps", steps.len());
        faults.push(Fault::new(worker.name.as_str(), found, "as many steps as other workers have"));
    }
    let mut left_out = BTreeMap::new();
    for job in workers.iter().flat_map(|worker| &worker.jobs).filter(|job| Did::of(&job.kind) == Did::Other) {
        *left_out.entry(job.kind.clone()).or_default() += 1;
    }
    let first_step = workers.iter().find_map(|worker| worker.first_step).unwrap_or(0);
    let stages = stage_of.iter().flatten().map(|stage| stage + 1).max().unwrap_or(1);
    let steps = (0..count).map(|index| {
        let began = steps_of.iter().filter_map(|steps| steps.get(index)).flat_map(|jobs| jobs.iter());
        let began = began.map(|job| job.start_ns).min().unwrap_or(0);
        let mut rows = vec![Vec::new(); ranks * copies];
        for (steps, row) in steps_of.iter().zip(&row_of) {
            let (Some(row), Some(jobs)) = (*row, steps.get(index)) else { continue };
            rows[row] = spans(jobs, &stage_of[row % ranks], stages, began);
        }
        StepTrace { step: first_step + index as u64, began_ns: Some(began), rows, ..StepTrace::default() }
    });
    let mut trace = Trace {
        plan_digest: plan.map_or_else(String::new, |(_, _, digest)| digest.to_string()),
        backend: "Paddle".to_string(),
        transport: "Paddle's streams".to_string(),
        replicas: copies,
        context: 1,
        tensor: 1,
        steps: steps.collect(),
        ..Trace::default()
    };
    let mut machine_of_row = vec![0; ranks * copies];
    for (worker, row) in workers.iter().zip(&row_of) {
        if let Some(row) = *row {
            machine_of_row[row] = worker.machine;
        }
    }
    trace.set_hosts(&machine_of_row);
    let clocks = align(&mut trace, &machine_of_row);
    Ok(Logged { trace, faults, left_out, placed, clocks })
}

/// The spans of one worker's step, from its start. `stage_of` has the stage of each chunk.
fn spans(jobs: &[Job], stage_of: &[usize], stages: usize, began: Nanos) -> Vec<TraceSpan> {
    let mut spans = Vec::with_capacity(jobs.len());
    let mut before = 0;
    for job in jobs {
        let stage = |chunk: usize| stage_of.get(chunk).copied();
        let message =
            |way, payload, stage: usize| P2pOp { way, payload, stage: stage as u16, microbatch: job.microbatch };
        let step = match Did::of(&job.kind) {
            Did::Op(kind, chunk) => {
                stage(chunk).map(|stage| Step::Compute(Op::new(stage, kind, job.microbatch as usize)))
            }
            // The first stage has nothing to receive, and nobody to send to: its jobs are empty.
            Did::Receive(chunk) => stage(chunk)
                .filter(|stage| *stage > 0)
                .map(|stage| Step::Transfer(vec![message(Way::Receive, Payload::Activation, stage)])),
            Did::Send(chunk) => stage(chunk)
                .filter(|stage| *stage > 0 && *stage < stages)
                .map(|stage| Step::Transfer(vec![message(Way::Send, Payload::Gradient, stage)])),
            Did::Optimizer => Some(Step::Optimizer),
            Did::Other => None,
        };
        let Some(step) = step else { continue };
        // Callbacks of a stream may come a little late.
        let start_ns = (job.start_ns - began).max(before);
        before = (job.end_ns - began).max(start_ns);
        spans.push(TraceSpan { step, start_ns, end_ns: before });
    }
    spans
}
