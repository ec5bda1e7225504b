//! A file that comes piece by piece, so that it may have any length.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Contents, HEAD, Kind, device_of};
use crate::base::fields::{Fault, Faults};
use crate::formats::flight_recorder;
use crate::formats::paddle_log::Worker;
use crate::formats::torch_profile;
use crate::trace::{self, Trace};

/// Longest line of a log that is looked at: lines of jobs have some 200 bytes.
const LONGEST_LINE: usize = 1 << 16;

/// Reads a file, whichever program wrote it.
pub struct Reader {
    path: String,
    /// How long it is at least.
    bytes: usize,
    state: State,
}

/// What it is, as far as that is known.
enum State {
    Unknown(Vec<u8>),
    Torch(Box<torch_profile::Reader>),
    Paddle(Lines),
    Trace(Vec<u8>),
    Dump(Vec<u8>),
}

/// A log, line by line.
struct Lines {
    worker: Worker,
    number: usize,
    rest: Vec<u8>,
}

impl Reader {
    /// The file at `path`, which has at least so many `bytes`, of which nothing has come so far.
    pub fn new(path: &str, bytes: u64) -> Reader {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(trace::MAX_FILE_BYTES);
        Reader { path: path.to_string(), bytes, state: State::Unknown(Vec::new()) }
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// What is wrong with it, with its place.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Fault> {
        match &mut self.state {
            State::Unknown(head) => {
                head.extend_from_slice(piece);
                if head.len() >= HEAD { self.know() } else { Ok(()) }
            }
            State::Torch(reader) => reader.push(piece),
            State::Paddle(lines) => {
                lines.push(piece);
                Ok(())
            }
            State::Trace(bytes) => {
                let accepted = "at most 1 GiB; `pipeplan trace --steps` takes fewer steps";
                append(bytes, piece, trace::MAX_FILE_BYTES, accepted)
            }
            State::Dump(bytes) => append(bytes, piece, flight_recorder::MAX_FILE_BYTES, "at most 256 MiB"),
        }
    }

    /// Decides what the file is by its head, and reads that.
    fn know(&mut self) -> Result<(), Fault> {
        let State::Unknown(head) = &mut self.state else { return Ok(()) };
        let head = core::mem::take(head);
        self.state = match Kind::of(&self.path, &head) {
            Some(Kind::Torch) => State::Torch(Box::default()),
            // At once: a large one that grows piece by piece would stand in memory twice.
            Some(Kind::Trace) => State::Trace(Vec::with_capacity(self.bytes)),
            Some(Kind::FlightRecorder) => State::Dump(Vec::new()),
            Some(Kind::Paddle) => {
                let worker = Worker::new(self.path.clone(), 0, device_of(&self.path).unwrap_or(0));
                State::Paddle(Lines { worker, number: 0, rest: Vec::new() })
            }
            Some(Kind::Nsight) => {
                return Err(Fault::new(
                    "the whole file",
                    "an SQLite database, as Nsight Systems exports it",
                    "a trace: run `pipeplan trace FILE.sqlite -o trace.json` first, and open trace.json",
                ));
            }
            None => return Err(of_no_program(&head)),
        };
        self.push(&head)
    }

    /// The file has ended.
    ///
    /// # Errors
    /// What is wrong with it, with its place.
    pub fn finish(mut self) -> Result<Contents, Faults> {
        self.know()?;
        match self.state {
            State::Torch(reader) => Ok(Contents::Recording(Box::new(reader.finish()?))),
            State::Paddle(lines) => Ok(Contents::Log(lines.finish())),
            State::Trace(bytes) => Ok(Contents::Trace(Box::new(Trace::from_json(&text(bytes)?)?))),
            State::Dump(bytes) => {
                let rank = flight_recorder::rank_of(&self.path).ok_or_else(|| {
                    let accepted = "the rank at its end, as TORCH_NCCL_DEBUG_INFO_TEMP_FILE puts it there: \
                                    nccl_trace_rank_0";
                    Fault::new("the name of the file", "no number of a rank", accepted)
                })?;
                let dump = match bytes.starts_with(b"{") {
                    true => flight_recorder::read_json(&text(bytes)?)?,
                    false => flight_recorder::read_pickle(&bytes)?,
                };
                Ok(Contents::Dump(rank, dump))
            }
            State::Unknown(head) => Err(of_no_program(&head).into()),
        }
    }
}

fn append(bytes: &mut Vec<u8>, piece: &[u8], most: usize, accepted: &str) -> Result<(), Fault> {
    if bytes.len() + piece.len() > most {
        return Err(Fault::new("the whole file", "more", accepted));
    }
    bytes.extend_from_slice(piece);
    Ok(())
}

/// A text, without the mark with which some editors begin it.
fn text(bytes: Vec<u8>) -> Result<String, Fault> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to() + 1;
        Fault::new(format!("byte {at}"), "no UTF-8", "text")
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_string(),
        None => text,
    })
}

/// Why the file that begins with `head` cannot be read: no program wrote it that is known.
pub fn of_no_program(head: &[u8]) -> Fault {
    const SHOWN: usize = 40;
    let start = String::from_utf8_lossy(head.get(..4 * SHOWN).unwrap_or(head)).into_owned();
    let start: String = start.chars().filter(|letter| !letter.is_control()).take(SHOWN).collect();
    let found = if head.is_empty() { "nothing".to_string() } else { format!("`{}`", start.trim()) };
    Fault::new(
        "the whole file",
        found,
        "a file of torch.profiler, a workerlog.N of PaddlePaddle, a dump of torch's flight recorder, or a trace of pipeplan",
    )
}

impl Lines {
    fn push(&mut self, mut piece: &[u8]) {
        while let Some(end) = memchr::memchr(b'\n', piece) {
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
        self.worker.line(self.number, String::from_utf8_lossy(&self.rest).trim_end());
        self.rest.clear();
    }

    fn finish(mut self) -> Worker {
        if !self.rest.is_empty() {
            self.line();
        }
        self.worker
    }
}
