//! Timelines for viewers of traces: ui.perfetto.dev, chrome://tracing, and programs that query such files.
//!
//! One description, two encodings: the Trace Event Format in JSON ([`Chrome`]) and Perfetto's protobuf ([`Perfetto`]).
//!
//! Each rank is a process, named with its host where there are several. Its tracks are
//!
//! | Track | holds |
//! |---|---|
//! | `ops` | F, B, W, P2P transfers and the optimizer; a second track where two overlap, as pairs do |
//! | `gradient sync`, `TP` and so on | the collectives of a trace, by what they are for, so that overlap with ops is seen |
//! | `memory` | the bytes that it holds: a counter, of plans |
//!
//! Arrows go from an op to the op on another rank that takes its output. Training steps are a process without a rank.
//! Times of a trace count from the start of its first step.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::ControlFlow;

use crate::base::units::{Bytes, Nanos};
use crate::problem::Problem;
use crate::problem::op::{Op, OpKind};
use crate::program::Step;
use crate::simulate::timeline::Timeline;
use crate::trace::collectives::{Collective, Purpose};
use crate::trace::{StepTrace, Trace, TraceSpan};

mod chrome;
mod perfetto;
#[cfg(test)]
mod tests;

pub use self::chrome::Chrome;
pub use self::perfetto::Perfetto;

/// Takes the next bytes of a file, and says whether it takes more.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>;

/// Bytes that an encoding gathers before it hands them on.
const PIECE: usize = 1 << 20;

/// A track of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Track {
    /// The process, from 0.
    pub process: u32,
    /// The track in it, from 0.
    pub number: u32,
}

/// A span of a track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice<'a> {
    /// Where it stands.
    pub track: Track,
    /// What is written on it.
    pub name: &'a str,
    /// Its kind, by which viewers filter and colour.
    pub category: &'static str,
    /// When it starts.
    pub start_ns: Nanos,
    /// When it ends, not before its start.
    pub end_ns: Nanos,
    /// The arrow that starts here.
    pub sends: Option<u64>,
    /// The arrow that ends here.
    pub receives: Option<u64>,
}

/// An encoding of events.
pub trait Events {
    /// Names a process. Called before anything of it, in the order in which processes are shown. `label` stands beside the name;
    /// empty where there is none.
    fn process(&mut self, process: u32, name: &str, label: &str);
    /// Names a track, before anything that stands on it.
    fn track(&mut self, track: Track, name: &str);
    /// Names a track of bytes.
    fn counter(&mut self, track: Track, name: &str);
    /// Adds a span. The spans of a track come by their starts and do not overlap.
    fn slice(&mut self, slice: &Slice<'_>);
    /// Adds a value of a counter, from `at_ns` on.
    fn value(&mut self, track: Track, name: &str, at_ns: Nanos, bytes: Bytes);
    /// Whether nobody takes more of the file.
    fn is_over(&self) -> bool;
    /// Ends the file.
    fn finish(&mut self);
}

/// The tracks of a rank's process, in the order in which they are shown: those of ops, of each purpose of collectives, of
/// copies to and from the host, and memory. Each but the last has room for spans that overlap.
const OPS: u32 = 0;
const COLLECTIVES: u32 = ROOM;
const COPIES: u32 = COLLECTIVES + ROOM * Purpose::ALL.len() as u32;
const MEMORY: u32 = COPIES + ROOM;
const ROOM: u32 = 1 << 16;

/// Writes a predicted timeline with the bytes that each rank holds, as a whole file.
///
/// `holds` says what each rank holds of the model, beside its name; empty where nobody knows.
pub fn write_plan(events: &mut dyn Events, name: &str, problem: &Problem, timeline: &Timeline, holds: &[String]) {
    Writer::new(events).plan(name, problem, timeline, holds);
    events.finish();
}

/// Writes a measured trace as a whole file: its training steps where they were on the clock of the run, else one after the
/// other.
pub fn write_trace(events: &mut dyn Events, name: &str, trace: &Trace) {
    Writer::new(events).trace(name, trace);
    events.finish();
}

/// Numbers processes and arrows of a file.
struct Writer<'a> {
    events: &'a mut dyn Events,
    processes: u32,
    arrows: u64,
}

/// One op's place among all that send and receive: the pipeline, the op.
type Sender = (usize, Op);

impl<'a> Writer<'a> {
    fn new(events: &'a mut dyn Events) -> Writer<'a> {
        Writer { events, processes: 0, arrows: 0 }
    }

    fn plan(&mut self, name: &str, problem: &Problem, timeline: &Timeline, holds: &[String]) {
        let label = |rank: usize| holds.get(rank).map_or_else(String::new, |held| format!("layers {held}"));
        let of_rank = |rank| (format!("{name}: {}", padded(rank, timeline.rows.len())), label(rank));
        let first = self.ranks(timeline.rows.len(), of_rank);
        let ops = timeline.rows.iter().enumerate();
        let ops = ops.flat_map(|(rank, row)| row.iter().map(move |span| (0, rank, span.op)));
        let arrows = self.arrows_of(ops);
        for (rank, row) in timeline.rows.iter().enumerate() {
            let process = first + rank as u32;
            let mut lanes = Lanes::new(process, OPS, "ops");
            for span in row {
                let (sends, receives) = arrows.of(0, span.op);
                let slice = Slice {
                    track: Track { process, number: 0 },
                    name: &span.op.to_string(),
                    category: category(span.op.kind()),
                    start_ns: span.start_ns,
                    end_ns: span.end_ns,
                    sends,
                    receives,
                };
                lanes.place(self.events, slice);
            }
            let mut lanes = Lanes::new(process, COPIES, "copies to and from the host");
            for span in timeline.copies_of(rank) {
                let slice = Slice {
                    track: Track { process, number: 0 },
                    name: &span.copy.moved.to_string(),
                    category: COPY,
                    start_ns: span.start_ns,
                    end_ns: span.end_ns,
                    sends: None,
                    receives: None,
                };
                lanes.place(self.events, slice);
            }
            let memory = Track { process, number: MEMORY };
            self.events.counter(memory, "memory");
            for (time, bytes) in timeline.memory(problem, rank) {
                self.events.value(memory, "memory", time, bytes);
            }
        }
    }

    fn trace(&mut self, name: &str, trace: &Trace) {
        let starts = starts(trace);
        let steps = self.processes;
        self.processes += 1;
        let of_all = format!("{name}: steps on {} over {}", trace.backend, trace.transport);
        self.events.process(steps, &of_all, "");
        let mut lanes = Lanes::new(steps, OPS, "steps");
        for (step, start) in trace.steps.iter().zip(&starts) {
            let slice = Slice {
                track: Track { process: steps, number: 0 },
                name: &format!("step {}", step.step),
                category: "step",
                start_ns: *start,
                end_ns: start.saturating_add(step.duration_ns()),
                sends: None,
                receives: None,
            };
            lanes.place(self.events, slice);
        }
        let rows = trace.steps.iter().map(|step| step.rows.len()).max().unwrap_or(0);
        let first = self.ranks(rows, |row| (format!("{name}: {}", row_name(trace, row, rows)), String::new()));
        let pipelines = trace.replicas.max(1) * trace.context.max(1) * trace.tensor.max(1);
        let ranks = (rows / pipelines).max(1);
        let mut tracks: Vec<RowLanes> = (first..).take(rows).map(RowLanes::new).collect();
        // Step by step: the arrows of a step are as many as its ops.
        for (step, start) in trace.steps.iter().zip(starts) {
            let arrows = self.arrows_of_step(step, ranks);
            for (row, (lanes, spans)) in tracks.iter_mut().zip(&step.rows).enumerate() {
                if self.events.is_over() {
                    return;
                }
                self.spans(lanes, spans, start, &|op| arrows.of(row / ranks, op));
            }
            for (row, lanes) in tracks.iter_mut().enumerate() {
                self.collectives(lanes, step.collectives_of(row), start);
            }
        }
    }

    /// Adds what a row did in a step that began at `start`. `arrows` are those of an op.
    fn spans(
        &mut self,
        lanes: &mut RowLanes,
        spans: &[TraceSpan],
        start: Nanos,
        arrows: &dyn Fn(Op) -> (Option<u64>, Option<u64>),
    ) {
        for span in spans {
            let (sends, receives) = match span.step {
                Step::Compute(op) => arrows(op),
                _ => (None, None),
            };
            let slice = Slice {
                track: Track { process: lanes.ops.process, number: OPS },
                name: &span.step.to_string(),
                category: category_of(&span.step),
                // Times of a file may be anything up to 2^62; what no longer fits stays at the end of time.
                start_ns: start.saturating_add(span.start_ns),
                end_ns: start.saturating_add(span.end_ns),
                sends,
                receives,
            };
            lanes.ops.place(self.events, slice);
        }
    }

    /// Adds the collectives of a row in a step that began at `start`, each purpose on tracks of its own.
    fn collectives(&mut self, lanes: &mut RowLanes, collectives: &[Collective], start: Nanos) {
        for (purpose, lanes) in Purpose::ALL.into_iter().zip(&mut lanes.collectives) {
            for collective in collectives.iter().filter(|one| one.name.purpose() == purpose) {
                let slice = Slice {
                    track: Track { process: lanes.process, number: OPS },
                    name: &collective.name.to_string(),
                    category: "collective",
                    start_ns: start.saturating_add(collective.start_ns),
                    end_ns: start.saturating_add(collective.end_ns),
                    sends: None,
                    receives: None,
                };
                lanes.place(self.events, slice);
            }
        }
    }

    /// Opens a process for each of `count` ranks, and answers the number of the first.
    fn ranks(&mut self, count: usize, name_and_label: impl Fn(usize) -> (String, String)) -> u32 {
        let first = self.processes;
        self.processes += count as u32;
        for rank in 0..count {
            let (name, label) = name_and_label(rank);
            self.events.process(first + rank as u32, &name, &label);
        }
        first
    }

    fn arrows_of_step(&mut self, step: &StepTrace, ranks: usize) -> Arrows {
        let rows = step.rows.iter().enumerate();
        let ops = rows.flat_map(|(row, spans)| {
            spans.iter().filter_map(move |span| match span.step {
                Step::Compute(op) => Some((row / ranks, row, op)),
                _ => None,
            })
        });
        self.arrows_of(ops)
    }

    /// Numbers an arrow for each op of (pipeline, row, op) whose output goes to another row.
    fn arrows_of(&mut self, ops: impl Iterator<Item = (usize, usize, Op)>) -> Arrows {
        let rows: BTreeMap<Sender, usize> = ops.map(|(pipeline, row, op)| ((pipeline, op), row)).collect();
        let mut numbers = BTreeMap::new();
        for (&(pipeline, op), row) in &rows {
            let Some(to) = receiver(op, |op| rows.contains_key(&(pipeline, op))) else { continue };
            if rows.get(&(pipeline, to)) != Some(row) {
                self.arrows += 1;
                numbers.insert((pipeline, op), (to, self.arrows));
            }
        }
        let received = numbers.iter().map(|(&(pipeline, _), &(to, number))| ((pipeline, to), number)).collect();
        let sent = numbers.into_iter().map(|(sender, (_, number))| (sender, number)).collect();
        Arrows { sent, received }
    }
}

/// The arrows that start and end at ops.
struct Arrows {
    sent: BTreeMap<Sender, u64>,
    received: BTreeMap<Sender, u64>,
}

impl Arrows {
    fn of(&self, pipeline: usize, op: Op) -> (Option<u64>, Option<u64>) {
        let key = (pipeline, op);
        (self.sent.get(&key).copied(), self.received.get(&key).copied())
    }
}

/// The op that takes the output of `op`, of those that exist.
fn receiver(op: Op, exists: impl Fn(Op) -> bool) -> Option<Op> {
    let (stage, microbatch) = (op.stage(), op.microbatch());
    let of = |kind, stage| Some(Op::new(stage, kind, microbatch)).filter(|op| exists(*op));
    match op.kind() {
        OpKind::F => of(OpKind::F, stage + 1),
        OpKind::B | OpKind::BW => {
            let before = stage.checked_sub(1)?;
            of(OpKind::BW, before).or_else(|| of(OpKind::B, before))
        }
        OpKind::W => None,
    }
}

/// Puts the spans of a process on as few tracks as show each of them whole: viewers draw what overlaps on one track
/// wrongly, or refuse it.
struct Lanes {
    process: u32,
    /// The number of the first track.
    first: u32,
    name: &'static str,
    ends: Vec<Nanos>,
}

impl Lanes {
    const fn new(process: u32, first: u32, name: &'static str) -> Lanes {
        Lanes { process, first, name, ends: Vec::new() }
    }

    fn place(&mut self, events: &mut dyn Events, mut slice: Slice<'_>) {
        // What overlaps more often than there is room for cannot be told apart by eye either.
        let free = self.ends.iter().position(|end| *end <= slice.start_ns);
        let lane = free.unwrap_or(self.ends.len()).min(ROOM as usize - 1);
        slice.track = Track { process: self.process, number: self.first + lane as u32 };
        if lane == self.ends.len() {
            let name = match lane {
                0 => self.name.to_string(),
                _ => format!("{} ({})", self.name, lane + 1),
            };
            events.track(slice.track, &name);
            self.ends.push(0);
        }
        self.ends[lane] = slice.end_ns;
        events.slice(&slice);
    }
}

/// The tracks of a row of a trace.
struct RowLanes {
    ops: Lanes,
    collectives: [Lanes; Purpose::ALL.len()],
}

impl RowLanes {
    fn new(process: u32) -> RowLanes {
        let of = |at: usize| Lanes::new(process, COLLECTIVES + ROOM * at as u32, Purpose::ALL[at].name());
        RowLanes { ops: Lanes::new(process, OPS, "ops"), collectives: core::array::from_fn(of) }
    }
}

/// When each step starts, from the start of the first.
fn starts(trace: &Trace) -> Vec<Nanos> {
    let began: Option<Vec<Nanos>> = trace.steps.iter().map(|step| step.began_ns).collect();
    let follow = |began: &Vec<Nanos>| {
        let ends = began.iter().zip(&trace.steps).map(|(began, step)| began.saturating_add(step.duration_ns()));
        began.iter().skip(1).zip(ends).all(|(began, end)| *began >= end)
    };
    if let Some(began) = began.filter(follow) {
        let first = began.first().copied().unwrap_or(0);
        return began.into_iter().map(|began| began - first).collect();
    }
    let mut at = 0u64;
    let mut start = |step: &StepTrace| {
        let start = at;
        at = at.saturating_add(step.duration_ns());
        start
    };
    trace.steps.iter().map(&mut start).collect()
}

/// The name of a rank with as many digits as the last has, for viewers that sort by name.
fn padded(rank: usize, ranks: usize) -> String {
    let digits = ranks.saturating_sub(1).to_string().len();
    format!("rank {rank:0digits$}")
}

fn row_name(trace: &Trace, row: usize, rows: usize) -> String {
    let ranks = rows / (trace.replicas.max(1) * trace.context.max(1) * trace.tensor.max(1));
    let name = trace.row_name(row, rows);
    let name = match row.checked_rem(ranks) {
        Some(rank) => name.replacen(&format!("rank {rank}"), &padded(rank, ranks), 1),
        None => name,
    };
    match trace.hosts.get(row) {
        Some(host) => format!("host {host}, {name}"),
        None => name,
    }
}

/// The category of copies to and from the host.
const COPY: &str = "copy";

const fn category_of(step: &Step) -> &'static str {
    match step {
        Step::Compute(op) => category(op.kind()),
        Step::Transfer(_) | Step::Start(_) | Step::Wait(_) => "transfer",
        Step::StartCopy(_) | Step::WaitCopy(_) => COPY,
        Step::Optimizer => "optimizer",
    }
}

const fn category(kind: OpKind) -> &'static str {
    match kind {
        OpKind::F => "forward",
        OpKind::B => "backward-input",
        OpKind::W => "backward-weight",
        OpKind::BW => "backward",
    }
}
