//! Files that a run left behind, of whichever program: what each is, read piece by piece, and the run that several of them show.
//!
//! - In: the path of each file, and its bytes, unpacked, in pieces of any length ([`Reader`]).
//! - Out: what a file holds ([`Contents`]); a trace of all of them, with what was found, left out and put right ([`Run`]).
//!
//! | File | is known by |
//! |---|---|
//! | torch.profiler | `"traceEvents"` at its start |
//! | trace of pipeplan | its format |
//! | PaddlePaddle's log | its name, `workerlog.N`, or a line of a job |
//! | torch's flight recorder | a pickle of a dictionary, or the same in JSON |
//! | Nsight Systems | the header of SQLite; only the command reads it |

mod reader;
#[cfg(test)]
mod tests;

pub use self::reader::{Reader, of_no_program};

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::flight_recorder::{self, Dump};
use super::paddle_log::{self, Worker};
use super::profile::{self, Recording};
use super::torch_profile;
use crate::base::fields::{Fault, Faults};
use crate::problem::{Problem, Schedule};
use crate::trace::Trace;
use crate::trace::clocks::Aligned;

/// Bytes at the start of a file that say what it is.
pub const HEAD: usize = 1 << 18;

/// Which program wrote a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// torch.profiler.
    Torch,
    /// Nsight Systems: a database of SQLite.
    Nsight,
    /// A worker of PaddlePaddle.
    Paddle,
    /// torch's flight recorder.
    FlightRecorder,
    /// pipeplan itself.
    Trace,
}

impl Kind {
    /// What the file at `path` is, by its name and its first [`HEAD`] bytes; none of any other file.
    pub fn of(path: &str, head: &[u8]) -> Option<Kind> {
        let head = head.get(..HEAD).unwrap_or(head);
        if head.starts_with(b"SQLite format 3\0") {
            return Some(Kind::Nsight);
        }
        // Protocol 2 of pickles, as torch writes it.
        if head.starts_with(&[0x80, 2, b'}']) {
            return Some(Kind::FlightRecorder);
        }
        let text = String::from_utf8_lossy(head);
        // The names of collectives may take more than the head, and stand before the format.
        let is_trace = text.contains("\"pipeplan-trace\"") || text.starts_with("{\"backend\":");
        if torch_profile::looks_like_one(&text) {
            Some(Kind::Torch)
        } else if is_trace {
            Some(Kind::Trace)
        } else if text.starts_with('{') && flight_recorder::looks_like_one(&text) {
            Some(Kind::FlightRecorder)
        } else if device_of(path).is_some() || text.contains("Profiler Info: Job") {
            Some(Kind::Paddle)
        } else {
            None
        }
    }
}

/// What a file holds.
#[derive(Debug)]
pub enum Contents {
    /// What a profiler recorded of a rank.
    Recording(Box<Recording>),
    /// The log of a worker.
    Log(Worker),
    /// A trace.
    Trace(Box<Trace>),
    /// Which collectives a rank had begun.
    Dump(usize, Dump),
}

/// Files by what they hold, each with its name.
#[derive(Debug, Default)]
pub struct Files {
    /// What profilers recorded.
    pub recordings: Vec<(String, Recording)>,
    /// Logs of workers, which say their names.
    pub logs: Vec<Worker>,
    /// Traces.
    pub traces: Vec<(String, Trace)>,
    /// Dumps of the flight recorder, each with its rank.
    pub dumps: Vec<(String, usize, Dump)>,
}

impl Files {
    /// Adds the file of that name.
    pub fn add(&mut self, name: String, contents: Contents) {
        match contents {
            Contents::Recording(recording) => self.recordings.push((name, *recording)),
            Contents::Log(log) => self.logs.push(log),
            Contents::Trace(trace) => self.traces.push((name, *trace)),
            Contents::Dump(rank, dump) => self.dumps.push((name, rank, dump)),
        }
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.recordings.is_empty() && self.logs.is_empty() && self.traces.is_empty() && self.dumps.is_empty()
    }

    /// Refuses files of several programs.
    ///
    /// # Errors
    /// The first file of another program than the first.
    pub fn expect_one_program(&self) -> Result<(), Fault> {
        let firsts = [
            (self.recordings.first().map(|(name, _)| name), "what a profiler recorded"),
            (self.logs.first().map(|log| &log.name), "a log of PaddlePaddle"),
            (self.traces.first().map(|(name, _)| name), "a trace of pipeplan"),
            (self.dumps.first().map(|(name, _, _)| name), "a dump of torch's flight recorder"),
        ];
        let mut known = firsts.into_iter().filter_map(|(name, what)| Some((name?, what)));
        match (known.next(), known.next()) {
            (Some((first, what)), Some((name, other))) => {
                Err(Fault::new(name.as_str(), other, format!("files of one program, as {first} is: {what}")))
            }
            _ => Ok(()),
        }
    }
}

/// The plan that ran: its problem, its order and its digest.
pub type Ran<'a> = (&'a Problem, &'a Schedule, &'a str);

/// What files show, and what a person hears of it.
#[derive(Debug)]
pub struct Run {
    /// The run.
    pub trace: Trace,
    /// What putting clocks right did.
    pub clocks: Aligned,
    /// What was found and left out: a word and a line.
    pub told: Vec<(&'static str, String)>,
    /// Files and lines that are missing or wrong; the trace has the rest.
    pub faults: Vec<Fault>,
}

/// The run that profilers recorded, one file or several for each rank: of `plan`, or with the order that was found.
///
/// # Errors
/// As [`profile::aligned`] and [`profile::found`].
pub fn of_recordings(files: &[(String, Recording)], plan: Option<Ran<'_>>) -> Result<Run, Faults> {
    let (trace, clocks) = match plan {
        Some((problem, schedule, digest)) => profile::aligned(problem, schedule, digest, files)?,
        None => {
            let (problem, schedule) = profile::found(files)?;
            profile::aligned(&problem, &schedule, "", files)?
        }
    };
    let told = if plan.is_none() { profile::told(files) } else { Vec::new() };
    Ok(Run { trace, clocks, told: told.into_iter().map(|line| ("found", line)).collect(), faults: Vec::new() })
}

/// The run that workers of PaddlePaddle logged, as [`placed`] has them. `missing` are the faults of workers without a file.
///
/// # Errors
/// As [`paddle_log::trace`].
pub fn of_logs(logs: &[Worker], missing: &[Fault], plan: Option<Ran<'_>>) -> Result<Run, Faults> {
    let logged = paddle_log::trace(logs, plan)?;
    let mut told = Vec::new();
    if let Some(placed) = logged.placed {
        told.push(("stages", format!("{placed}, found from the order of jobs")));
    }
    if !logged.left_out.is_empty() {
        let kinds: Vec<String> = logged.left_out.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
        told.push(("left out", format!("jobs without a stage: {}", kinds.join(", "))));
    }
    let known: BTreeSet<&str> = missing.iter().map(|fault| fault.field.as_str()).collect();
    let others = logged.faults.into_iter().filter(|fault| !known.contains(fault.field.as_str()));
    let faults = missing.iter().cloned().chain(others).collect();
    Ok(Run { trace: logged.trace, clocks: logged.clocks, told, faults })
}

/// Logs in the order of their machines and devices. Machines are the folders `machine*` around the logs, by the numbers in their
/// names.
///
/// # Errors
/// Two logs of one worker.
pub fn placed(mut logs: Vec<Worker>) -> Result<Vec<Worker>, Fault> {
    let machines: BTreeSet<Option<(u64, String)>> = logs.iter().map(|log| machine_of(&log.name)).collect();
    let machines: Vec<Option<(u64, String)>> = machines.into_iter().collect();
    for log in &mut logs {
        let machine = machine_of(&log.name);
        log.machine = machines.iter().position(|known| *known == machine).unwrap_or(0);
    }
    logs.sort_by_key(|log| (log.machine, log.device));
    let twice = logs.windows(2).find(|pair| (pair[0].machine, pair[0].device) == (pair[1].machine, pair[1].device));
    if let Some([first, second]) = twice {
        let accepted = format!(
            "each worker once: {} is of the same device; logs of several machines lie in folders machine0, machine1 and so on",
            first.name
        );
        return Err(Fault::new(second.name.as_str(), "a second log of this worker", accepted));
    }
    Ok(logs)
}

/// The workers before and between those of `logs`, which [`placed`] has put in order, that have no file: an empty log of each is
/// added, and named. One log alone is shown as it is.
pub fn add_missing(logs: &mut Vec<Worker>) -> Vec<Fault> {
    if logs.len() == 1 {
        return Vec::new();
    }
    let mut missing = Vec::new();
    let mut further = None;
    for own in logs.chunk_by(|one, next| one.machine == next.machine) {
        let mut next = 0;
        for log in own {
            for device in next..log.device {
                let name = match own[0].name.rsplit_once(is_separator) {
                    Some((folder, _)) => format!("{folder}/workerlog.{device}"),
                    None => format!("workerlog.{device}"),
                };
                if missing.len() == MOST_MISSING {
                    further.get_or_insert(name);
                    break;
                }
                missing.push(Worker::new(name, log.machine, device));
            }
            next = log.device.saturating_add(1);
        }
    }
    let fault = |name: &str| Fault::new(name, "no file", "the log of this device");
    let mut faults: Vec<Fault> = missing.iter().map(|log| fault(&log.name)).collect();
    faults.extend(further.map(|name| Fault {
        accepted: format!(
            "the log of this device; of those behind it, no missing one is named beyond {MOST_MISSING}"
        ),
        ..fault(&name)
    }));
    logs.extend(missing);
    logs.sort_by_key(|log| (log.machine, log.device));
    faults
}

/// Most workers without a file that are named, of all machines: numbers may be far apart, by mistake.
const MOST_MISSING: usize = 1024;

const fn is_separator(letter: char) -> bool {
    matches!(letter, '/' | '\\')
}

/// The N of `workerlog.N`, at the end of a path.
pub fn device_of(path: &str) -> Option<usize> {
    path.rsplit(is_separator).next()?.strip_prefix("workerlog.")?.parse().ok()
}

/// The folder of a machine: number and name.
fn machine_of(path: &str) -> Option<(u64, String)> {
    let folder = path.rsplit(is_separator).skip(1).find(|folder| folder.starts_with("machine"))?;
    let number = folder.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse();
    Some((number.unwrap_or(u64::MAX), folder.to_string()))
}
