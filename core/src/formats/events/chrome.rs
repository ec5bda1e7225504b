//! The Trace Event Format, in JSON.
//!
//! Spans are complete events (`X`), bytes are counters (`C`), arrows are pairs of `s` and `f`. Times are microseconds
//! with three decimals, so that every nanosecond is kept.
//!
//! Format: “Trace Event Format”, the Chromium project's document, sections “Complete events”, “Counter events”,
//! “Flow events” and “Metadata events”.

use alloc::string::String;
use core::fmt::{self, Write};

use serde_json::Value;

use super::{Events, PIECE, Sink, Slice, Track};
use crate::base::units::{Bytes, Nanos};

/// Writes events as JSON.
pub struct Chrome<'a> {
    text: String,
    sink: Sink<'a>,
    is_first: bool,
    is_over: bool,
}

impl<'a> Chrome<'a> {
    /// A file without events.
    pub fn new(sink: Sink<'a>) -> Chrome<'a> {
        let text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        Chrome { text, sink, is_first: true, is_over: false }
    }

    fn event(&mut self, event: fmt::Arguments<'_>) {
        if !self.is_first {
            self.text.push_str(",\n");
        }
        self.is_first = false;
        // Writing to a text does not fail.
        let _ = self.text.write_fmt(event);
        if self.text.len() >= PIECE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.is_over {
            self.is_over = (self.sink)(self.text.as_bytes()).is_break();
        }
        self.text.clear();
    }
}

impl Events for Chrome<'_> {
    fn process(&mut self, process: u32, name: &str, label: &str) {
        let name = Value::from(name);
        self.event(format_args!(r#"{{"name":"process_name","ph":"M","pid":{process},"args":{{"name":{name}}}}}"#));
        self.event(format_args!(
            r#"{{"name":"process_sort_index","ph":"M","pid":{process},"args":{{"sort_index":{process}}}}}"#
        ));
        if !label.is_empty() {
            let label = Value::from(label);
            self.event(format_args!(
                r#"{{"name":"process_labels","ph":"M","pid":{process},"args":{{"labels":{label}}}}}"#
            ));
        }
    }

    fn track(&mut self, Track { process, number }: Track, name: &str) {
        let name = Value::from(name);
        self.event(format_args!(
            r#"{{"name":"thread_name","ph":"M","pid":{process},"tid":{number},"args":{{"name":{name}}}}}"#
        ));
        self.event(format_args!(
            r#"{{"name":"thread_sort_index","ph":"M","pid":{process},"tid":{number},"args":{{"sort_index":{number}}}}}"#
        ));
    }

    /// Counters are named by their values.
    fn counter(&mut self, _track: Track, _name: &str) {}

    fn slice(&mut self, slice: &Slice<'_>) {
        let (name, category, Track { process, number }) = (Value::from(slice.name), slice.category, slice.track);
        let (start, end) = (slice.start_ns, slice.end_ns);
        self.event(format_args!(
            r#"{{"name":{name},"cat":"{category}","ph":"X","pid":{process},"tid":{number},"ts":{},"dur":{}}}"#,
            Micros(start),
            Micros(end - start)
        ));
        // An arrow is bound to the slice around its time, `bp` says so for its end.
        for (arrow, phase, bound) in [(slice.sends, "s", ""), (slice.receives, "f", r#","bp":"e""#)] {
            let Some(id) = arrow else { continue };
            self.event(format_args!(
                r#"{{"name":"P2P","cat":"transfer","ph":"{phase}"{bound},"id":{id},"pid":{process},"tid":{number},"ts":{}}}"#,
                Micros(start)
            ));
        }
    }

    fn value(&mut self, track: Track, name: &str, at_ns: Nanos, bytes: Bytes) {
        let (name, process) = (Value::from(name), track.process);
        self.event(format_args!(
            r#"{{"name":{name},"ph":"C","pid":{process},"ts":{},"args":{{"bytes":{bytes}}}}}"#,
            Micros(at_ns)
        ));
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn finish(&mut self) {
        self.text.push_str("\n]}\n");
        self.flush();
    }
}

/// Nanoseconds, written as microseconds with as many decimals as are needed.
struct Micros(Nanos);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1000, self.0 % 1000);
        if rest == 0 { write!(f, "{whole}") } else { write!(f, "{whole}.{rest:03}") }
    }
}
