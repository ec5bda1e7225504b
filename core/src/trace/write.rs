//! Writes a trace as the text of its file, piece by piece: no tree of values is made of it.

use core::fmt;

use serde::ser::{Error, Serialize, SerializeMap, Serializer};

use super::collectives::{Collective, Names, name_value};
use super::{FORMAT, StepTrace, Trace, TraceSpan, VERSION};

impl Serialize for Trace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        File { trace: self, go_on: &|| true }.serialize(serializer)
    }
}

/// A trace as a file; `go_on` is asked before each row whether it is still wanted.
pub(super) struct File<'t> {
    pub(super) trace: &'t Trace,
    pub(super) go_on: &'t dyn Fn() -> bool,
}

/// Fields in order of their names, as in every file of the planner.
impl Serialize for File<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let File { trace, go_on } = *self;
        let names = Names::of(&trace.steps);
        let several = |count: usize| (count > 1).then_some(count);
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("backend", &trace.backend)?;
        if names.len() > 0 {
            table.serialize_entry("collectives", &Listed(|| names.iter().map(name_value)))?;
        }
        entry(&mut table, "context", several(trace.context))?;
        table.serialize_entry("format", FORMAT)?;
        entry(&mut table, "hosts", Some(&trace.hosts).filter(|hosts| !hosts.is_empty()))?;
        entry(&mut table, "overhead_ns", trace.overhead_ns)?;
        table.serialize_entry("peak_bytes", &trace.peak_bytes)?;
        table.serialize_entry("plan_digest", &trace.plan_digest)?;
        entry(&mut table, "replicas", several(trace.replicas))?;
        entry(&mut table, "shared_processors", trace.shared_processors)?;
        let names = &names;
        table.serialize_entry("steps", &Listed(|| trace.steps.iter().map(|step| Step { step, names, go_on })))?;
        entry(&mut table, "tensor", several(trace.tensor))?;
        table.serialize_entry("transport", &trace.transport)?;
        table.serialize_entry("version", &VERSION)?;
        table.end()
    }
}

fn entry<T: SerializeMap>(table: &mut T, key: &str, value: Option<impl Serialize>) -> Result<(), T::Error> {
    value.map_or(Ok(()), |value| table.serialize_entry(key, &value))
}

/// A list of what a function gives one after the other.
struct Listed<F>(F);

impl<I: Iterator<Item: Serialize>, F: Fn() -> I> Serialize for Listed<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

struct Step<'t> {
    step: &'t StepTrace,
    names: &'t Names<'t>,
    go_on: &'t dyn Fn() -> bool,
}

impl Serialize for Step<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Step { step, names, go_on } = *self;
        let rows = || {
            let rows = step.rows.iter().enumerate();
            rows.map(|(at, spans)| Row { spans, collectives: step.collectives_of(at), names, go_on })
        };
        let mut table = serializer.serialize_map(None)?;
        entry(&mut table, "began_ns", step.began_ns)?;
        table.serialize_entry("loss", &step.loss)?;
        table.serialize_entry("rows", &Listed(rows))?;
        table.serialize_entry("step", &step.step)?;
        table.serialize_entry("tokens", &step.tokens)?;
        table.end()
    }
}

struct Row<'t> {
    spans: &'t [TraceSpan],
    collectives: &'t [Collective],
    names: &'t Names<'t>,
    go_on: &'t dyn Fn() -> bool,
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Row { spans, collectives, names, go_on } = *self;
        if !go_on() {
            return Err(S::Error::custom("it is not wanted any more"));
        }
        let mut table = serializer.serialize_map(None)?;
        if !collectives.is_empty() {
            table.serialize_entry("collectives", &OfRow { collectives, names })?;
        }
        table.serialize_entry("end_ns", &Listed(|| spans.iter().map(|span| span.end_ns)))?;
        table.serialize_entry("start_ns", &Listed(|| spans.iter().map(|span| span.start_ns)))?;
        table.serialize_entry("steps", &Text(spans))?;
        table.end()
    }
}

/// The steps of a row, apart by blanks.
struct Text<'t>(&'t [TraceSpan]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut apart = "";
        for span in self.0 {
            f.write_str(apart)?;
            span.step.fmt(f)?;
            apart = " ";
        }
        Ok(())
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The collectives of a row.
struct OfRow<'t> {
    collectives: &'t [Collective],
    names: &'t Names<'t>,
}

impl Serialize for OfRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let OfRow { collectives, names } = *self;
        let known = |of: fn(&Collective) -> Option<u64>| {
            collectives.iter().any(|it| of(it).is_some()).then_some(Listed(move || collectives.iter().map(of)))
        };
        let mut table = serializer.serialize_map(None)?;
        entry(&mut table, "bytes", known(|it| it.bytes))?;
        table.serialize_entry("end_ns", &Listed(|| collectives.iter().map(|it| it.end_ns)))?;
        entry(&mut table, "exposed_ns", known(|it| it.exposed_ns))?;
        table.serialize_entry("of", &Listed(|| collectives.iter().map(|it| names.number(it))))?;
        table.serialize_entry("start_ns", &Listed(|| collectives.iter().map(|it| it.start_ns)))?;
        table.end()
    }
}
