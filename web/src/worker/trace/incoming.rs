//! The files of a run on their way in, piece by piece, so that they may have any length.

use pipeplan_core::base::fields::Fault;
use pipeplan_core::formats::paddle_log::Worker;
use pipeplan_core::formats::profile::Recording;
use pipeplan_core::formats::torch_profile;
use pipeplan_core::trace::{MAX_FILE_BYTES, Trace};

use crate::protocol::TraceFile;

/// Bytes at the start of a file that say what it is.
const HEAD: usize = 1 << 18;
/// Longest line of a log that is looked at: lines of jobs have some 200 bytes.
const LONGEST_LINE: usize = 1 << 16;

/// A file on its way.
pub struct Incoming {
    name: String,
    machine: usize,
    /// How long it is at least.
    bytes: usize,
    kind: Kind,
}

/// What it is, as far as that is known.
enum Kind {
    Unknown(Vec<u8>),
    Torch(Box<torch_profile::Reader>),
    Paddle(Lines),
    Trace(Vec<u8>),
}

/// A log of Paddle, line by line.
struct Lines {
    worker: Worker,
    number: usize,
    rest: Vec<u8>,
}

/// What a file holds.
pub enum Contents {
    /// What torch.profiler recorded of a rank.
    Torch(Box<Recording>),
    /// The log of a worker of PaddlePaddle.
    Paddle(Worker),
    /// A trace of pipeplan.
    Trace(Box<Trace>),
}

impl Incoming {
    /// A file of which nothing has come so far.
    pub fn new(file: &TraceFile) -> Incoming {
        let machine = file.path.split('/').find_map(|folder| {
            let number = folder.strip_prefix("machine")?.trim_start_matches(|c: char| !c.is_ascii_digit());
            number.parse().ok()
        });
        let bytes = usize::try_from(file.bytes).unwrap_or(usize::MAX).min(MAX_FILE_BYTES);
        Incoming { name: file.name.clone(), machine: machine.unwrap_or(0), bytes, kind: Kind::Unknown(Vec::new()) }
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// What is wrong with it, with its place.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Fault> {
        match &mut self.kind {
            Kind::Unknown(head) => {
                head.extend_from_slice(piece);
                if head.len() >= HEAD {
                    self.know()?;
                }
                Ok(())
            }
            Kind::Torch(reader) => reader.push(piece),
            Kind::Paddle(lines) => {
                lines.push(piece);
                Ok(())
            }
            Kind::Trace(bytes) => {
                if bytes.len() + piece.len() > MAX_FILE_BYTES {
                    let accepted =
                        format!("at most {MAX_FILE_BYTES} bytes; `pipeplan trace --steps` takes fewer steps");
                    return Err(Fault::new("the whole file", "more", accepted));
                }
                bytes.extend_from_slice(piece);
                Ok(())
            }
        }
    }

    /// Decides what the file is by its head, and reads that.
    fn know(&mut self) -> Result<(), Fault> {
        let Kind::Unknown(head) = &mut self.kind else { return Ok(()) };
        let head = core::mem::take(head);
        let text = String::from_utf8_lossy(head.get(..HEAD.min(head.len())).unwrap_or_default());
        let device = self.name.strip_prefix("workerlog.").and_then(|device| device.parse().ok());
        self.kind = if head.starts_with(b"SQLite format 3\0") {
            return Err(Fault::new(
                "the whole file",
                "an SQLite database, as Nsight Systems exports it",
                "a trace: run `pipeplan trace FILE.sqlite -o trace.json` first, and open trace.json",
            ));
        } else if text.contains("\"pipeplan-trace\"") && !torch_profile::looks_like_one(&text) {
            // At once: a large one that grows piece by piece would stand in memory twice.
            Kind::Trace(Vec::with_capacity(self.bytes))
        } else if torch_profile::looks_like_one(&text) {
            Kind::Torch(Box::new(torch_profile::Reader::new()))
        } else if device.is_some() || text.contains("Profiler Info") {
            let worker = Worker::new(self.name.clone(), self.machine, device.unwrap_or(0));
            Kind::Paddle(Lines { worker, number: 0, rest: Vec::new() })
        } else {
            return Err(Fault::new(
                "the whole file",
                format!("`{}`", text.chars().take(40).collect::<String>().trim()),
                "a file of torch.profiler, a workerlog.N of PaddlePaddle, or a trace of pipeplan",
            ));
        };
        self.push(&head)
    }

    /// The file has ended.
    ///
    /// # Errors
    /// What is wrong with it, with its place.
    pub fn finish(mut self) -> Result<Contents, Fault> {
        self.know()?;
        match self.kind {
            Kind::Torch(reader) => Ok(Contents::Torch(Box::new(reader.finish()?))),
            Kind::Paddle(lines) => Ok(Contents::Paddle(lines.finish())),
            Kind::Trace(bytes) => {
                let text = String::from_utf8(bytes).map_err(|error| {
                    let at = error.utf8_error().valid_up_to() + 1;
                    Fault::new(format!("byte {at}"), "no UTF-8", "text")
                })?;
                let trace = Trace::from_json(&text).map_err(|faults| {
                    let more = faults.0.len().saturating_sub(1);
                    let first = faults.0.into_iter().next();
                    let mut first = first.unwrap_or_else(|| Fault::new("the whole file", "a fault", "a trace"));
                    if more > 0 {
                        first.accepted.push_str(&format!(" (and {more} more faults)"));
                    }
                    first
                })?;
                Ok(Contents::Trace(Box::new(trace)))
            }
            Kind::Unknown(_) => Err(Fault::new("the whole file", "nothing", "a file with text")),
        }
    }
}

impl Lines {
    fn push(&mut self, mut piece: &[u8]) {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let (line, after) = piece.split_at(end);
            self.take(line);
            self.line();
            piece = after.get(1..).unwrap_or_default();
        }
        self.take(piece);
    }

    /// What does not fit is passed over.
    fn take(&mut self, part: &[u8]) {
        let room = LONGEST_LINE.saturating_sub(self.rest.len());
        self.rest.extend_from_slice(part.get(..room.min(part.len())).unwrap_or_default());
    }

    fn line(&mut self) {
        self.number += 1;
        let line = core::mem::take(&mut self.rest);
        self.worker.line(self.number, String::from_utf8_lossy(&line).trim_end());
    }

    fn finish(mut self) -> Worker {
        if !self.rest.is_empty() {
            self.line();
        }
        self.worker
    }
}
