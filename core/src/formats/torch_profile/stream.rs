//! A file that comes piece by piece: only one event at a time is held, so that its length does not matter.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use memchr::{memchr2, memchr3, memmem};

use super::events::{ACCEPTED, Event, Events, Group, recording};
use crate::base::fields::Fault;
use crate::formats::profile::{PYTHON_OF_USE, Recording};

/// Longest event, and longest value beside the events that is read.
const LONGEST: usize = 64 << 20;

/// Bytes in which Kineto writes what kind an event is.
const START: usize = 56;

/// Where the reader stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Before the object.
    Start,
    /// Before a key of the object, or its end.
    Key,
    /// In a key.
    KeyText,
    /// Behind a key.
    Colon,
    /// In a value other than the events.
    Value,
    /// Between events.
    Events,
    /// In an event.
    Event,
    /// In an event that is no object.
    Scalar,
    /// Behind the object.
    End,
}

/// Reads a profile of one rank piece by piece.
pub struct Reader {
    stage: Stage,
    key: String,
    /// What began in an earlier piece.
    held: Vec<u8>,
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// Bytes before this piece.
    before: u64,
    has_events: bool,
    events: Events,
    group: Option<Group>,
    base_ns: Option<u64>,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::new()
    }
}

impl Reader {
    /// Nothing read so far.
    pub fn new() -> Reader {
        Reader {
            stage: Stage::Start,
            key: String::new(),
            held: Vec::new(),
            depth: 0,
            in_text: false,
            escaped: false,
            before: 0,
            has_events: false,
            events: Events::default(),
            group: None,
            base_ns: None,
        }
    }

    /// Reads the next piece.
    ///
    /// # Errors
    /// The byte at which the file stops being a profile.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Fault> {
        let mut at = 0;
        while at < piece.len() {
            let byte = piece[at];
            let is_blank = byte.is_ascii_whitespace();
            match self.stage {
                Stage::Start if byte == b'{' => (self.stage, at) = (Stage::Key, at + 1),
                Stage::Start | Stage::End if is_blank => at += 1,
                Stage::Key if is_blank || byte == b',' => at += 1,
                Stage::Key if byte == b'}' => (self.stage, at) = (Stage::End, at + 1),
                Stage::Key if byte == b'"' => {
                    (self.stage, at) = (Stage::KeyText, at + 1);
                    self.key.clear();
                }
                Stage::KeyText if byte == b'"' => (self.stage, at) = (Stage::Colon, at + 1),
                Stage::KeyText if self.key.len() < 256 => {
                    // Keys that are read have no other letters.
                    self.key.push(char::from(byte));
                    at += 1;
                }
                Stage::Colon if is_blank || byte == b':' => at += 1,
                Stage::Colon if byte == b'[' && self.key == "traceEvents" => {
                    (self.stage, at, self.has_events) = (Stage::Events, at + 1, true);
                }
                Stage::Colon => {
                    (self.stage, self.depth) = (Stage::Value, 0);
                    self.held.clear();
                }
                Stage::Value => at = self.value(piece, at)?,
                Stage::Events if is_blank || byte == b',' => at += 1,
                Stage::Events if byte == b']' => (self.stage, at) = (Stage::Key, at + 1),
                Stage::Events if byte == b'{' => {
                    (self.stage, self.depth) = (Stage::Event, 0);
                    self.held.clear();
                }
                Stage::Events if byte == b'n' => self.stage = Stage::Scalar,
                Stage::Event => at = self.event(piece, at)?,
                Stage::Scalar if byte == b',' || byte == b']' => self.stage = Stage::Events,
                Stage::Scalar => at += 1,
                _ => return Err(self.fault(at, &format!("`{}`", char::from(byte)))),
            }
        }
        self.before += piece.len() as u64;
        Ok(())
    }

    fn fault(&self, at: usize, found: &str) -> Fault {
        Fault::new(format!("byte {}", self.before + at as u64 + 1), found, ACCEPTED)
    }

    /// One byte further within a value: whether it ends with this byte.
    fn ends(&mut self, byte: u8) -> bool {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    /// From `at` on to the end of an event, or of the piece.
    fn event(&mut self, piece: &[u8], at: usize) -> Result<usize, Fault> {
        let mut index = at;
        while let Some(rest) = piece.get(index..).filter(|rest| !rest.is_empty()) {
            if self.escaped {
                (self.escaped, index) = (false, index + 1);
                continue;
            }
            let found = if self.in_text { memchr2(b'"', b'\\', rest) } else { memchr3(b'"', b'{', b'}', rest) };
            let Some(place) = found else { break };
            index += place + 1;
            match rest[place] {
                b'"' => self.in_text = !self.in_text,
                b'\\' => self.escaped = true,
                b'{' => self.depth += 1,
                _ => self.depth = self.depth.saturating_sub(1),
            }
            if self.depth == 0 && !self.in_text {
                let read = if self.held.is_empty() {
                    take(&mut self.events, &piece[at..index])
                } else {
                    self.held.extend_from_slice(&piece[at..index]);
                    take(&mut self.events, &self.held)
                };
                read.map_err(|error| self.fault(at, &error))?;
                self.held.clear();
                self.stage = Stage::Events;
                return Ok(index);
            }
        }
        self.held.extend_from_slice(&piece[at..]);
        if self.held.len() > LONGEST {
            return Err(self.fault(at, "an event of more than 64 MiB"));
        }
        Ok(piece.len())
    }

    /// From `at` on to the end of a value of the object, or of the piece.
    fn value(&mut self, piece: &[u8], at: usize) -> Result<usize, Fault> {
        let wanted = matches!(self.key.as_str(), "distributedInfo" | "baseTimeNanoseconds");
        let mut end = piece.len();
        for (index, byte) in piece.iter().enumerate().skip(at) {
            if !self.in_text && self.depth == 0 && matches!(byte, b',' | b'}') {
                (end, self.stage) = (index, Stage::Key);
                break;
            }
            self.ends(*byte);
        }
        if wanted {
            self.held.extend_from_slice(&piece[at..end]);
            if self.held.len() > LONGEST {
                return Err(self.fault(at, "a value of more than 64 MiB"));
            }
            if self.stage == Stage::Key {
                let cannot = |error: serde_json::Error| self.fault(at, &format!("{}: {error}", self.key));
                match self.key.as_str() {
                    "baseTimeNanoseconds" => self.base_ns = serde_json::from_slice(&self.held).map_err(cannot)?,
                    _ => self.group = serde_json::from_slice(&self.held).map_err(cannot)?,
                }
            }
        }
        Ok(end)
    }

    /// What the whole file records.
    ///
    /// # Errors
    /// As [`read`](super::read), and a file that ends too early.
    pub fn finish(self) -> Result<Recording, Fault> {
        if self.stage != Stage::End {
            return Err(self.fault(0, "the end of the file"));
        }
        recording(self.has_events.then_some(self.events), self.group, self.base_ns)
    }
}

/// Whether an event is of no use, as its first bytes show in the form in which Kineto writes it: an arrow between events, or a
/// function of Python that is no runtime's. Most events of a large profile are of these kinds.
fn is_idle(event: &[u8]) -> bool {
    let start = event.get(..START).unwrap_or(event);
    let is_arrow = [&b"\"ph\": \"s\""[..], b"\"ph\": \"f\""].iter().any(|arrow| memmem::find(start, arrow).is_some());
    is_arrow
        || memmem::find(start, b"\"cat\": \"python_function\"").is_some()
            && !PYTHON_OF_USE.iter().any(|name| memmem::find(event, name.as_bytes()).is_some())
}

fn take(events: &mut Events, event: &[u8]) -> Result<(), String> {
    if is_idle(event) {
        events.leave_out();
        return Ok(());
    }
    let event: Event<'_> = serde_json::from_slice(event).map_err(|error| format!("{error}"))?;
    events.take(event);
    Ok(())
}
