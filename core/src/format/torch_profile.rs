//! What `torch.profiler` recorded of a run: a trace of a plan whose order torch carried out.
//!
//! [`torch_csv`] takes an order to `torch.distributed.pipelining`; this brings back what came of it. Its runtime puts each
//! action into a range with its name, `PP:1F3`, and the profiler of each rank writes a file in the form of Chrome traces
//! (`export_chrome_trace`, or `tensorboard_trace_handler`). Tried with torch 2.15 on CPUs; of GPUs, the fields are those that
//! Kineto documents.
//!
//! A range is begun by the host before the op's input is there, and waits for it inside. What the op itself took is
//!
//! | | starts | ends |
//! |---|---|---|
//! | on a GPU | with the first kernel that was launched during the range | with the last |
//! | on a CPU | with the range's first operator | with the range |
//!
//! Kernels follow from their launches, whichever thread made them: those of a backward come from threads of autograd, and
//! the range's own copy among the GPU's events leaves them out (Kineto's issue 1022). Those of NCCL are messages, no part of
//! an op. An op without any, such as torch's `I` of the first stage, takes no time.
//!
//! Where a rank waits for what another one sends, that is a step of its own: on a CPU from where the op's range begins to
//! where the op does, on a GPU from the end of the op before to that of NCCL's kernel, launched in `PP:1RECV_F3`.
//!
//! Files come from anywhere, with all that a process did: events are looked at one by one while they are read, and of most
//! of them nothing is kept.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::torch_csv;
use crate::fields::{Fault, Faults};
use crate::op::{Op, OpKind};
use crate::problem::Problem;
use crate::program::{Message, Payload, Step, Way};
use crate::schedule::Schedule;
use crate::trace::{MAX_FILE_BYTES, StepTrace, Trace, TraceSpan};
use crate::units::{Bytes, Nanos};

/// How torch counts the kinds of devices. What it says to be held on the host counts from the profile's beginning alone.
const CPU: u64 = 0;

/// What one rank's file says of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The rank among all processes; none where the file does not say.
    rank: Option<u64>,
    /// What carried messages, such as `nccl`.
    transport: Option<String>,
    /// Whether a GPU computed.
    on_gpu: bool,
    /// In the order in which they ran, on the clock of the process.
    ops: Vec<Ran>,
    /// Steps of the profiler: when each began, and its number.
    steps: Vec<(Nanos, u64)>,
    /// Most bytes that torch's allocator held on a GPU; none where memory was not recorded.
    peak_bytes: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ran {
    op: Op,
    start_ns: Nanos,
    end_ns: Nanos,
    /// Since when the rank waited for its input, and when that was there, where these are known.
    asked_ns: Nanos,
    arrived_ns: Nanos,
}

impl Ran {
    fn later(self, by_ns: Nanos) -> Ran {
        let later = |ns: Nanos| ns.saturating_add(by_ns);
        Ran {
            start_ns: later(self.start_ns),
            end_ns: later(self.end_ns),
            asked_ns: later(self.asked_ns),
            arrived_ns: later(self.arrived_ns),
            ..self
        }
    }
}

/// Whether `text` is in the form of such files, whatever it records.
pub fn looks_like_one(text: &str) -> bool {
    text.contains("\"traceEvents\"")
}

/// Reads the file of one rank.
///
/// # Errors
/// The place and what is wrong: no JSON, no events, no ranges of a pipeline.
pub fn read(text: &str) -> Result<Recording, Fault> {
    const ACCEPTED: &str = "what torch.profiler writes of a rank, in JSON";
    if text.len() > MAX_FILE_BYTES {
        let accepted = format!("a profile of at most {MAX_FILE_BYTES} bytes; profile fewer steps, without stacks");
        return Err(Fault::new("the whole input", format!("{} bytes", text.len()), accepted));
    }
    let file: File<'_> =
        serde_json::from_str(text).map_err(|error| Fault::new("the whole input", error.to_string(), ACCEPTED))?;
    let Some(events) = file.events else {
        return Err(Fault::new("traceEvents", "nothing", ACCEPTED));
    };
    if let Some(pair) = events.pair {
        let accepted = "ranges of single actions: of a pair, torch does not say when its second op began";
        return Err(Fault::new("traceEvents", format!("the pair {pair}"), accepted));
    }
    if events.ranges.is_empty() {
        let accepted =
            "ranges such as `PP:0F0`, which the runtime of torch.distributed.pipelining records on every rank";
        return Err(Fault::new("traceEvents", format!("{} events and no such range", events.count), accepted));
    }
    let on_gpu = !events.kernels.is_empty();
    let base_ns = file.base_ns.unwrap_or(0);
    let group = file.group.unwrap_or_default();
    let (steps, peak_bytes) = (events.steps(base_ns), events.peak_bytes);
    let ops = if on_gpu { events.ops_of_gpu() } else { events.ops_of_cpu() };
    let ops = ops.into_iter().map(|ran| ran.later(base_ns));
    Ok(Recording { rank: group.rank, transport: group.backend, on_gpu, ops: ops.collect(), steps, peak_bytes })
}

/// The trace of a run of `schedule`, of the files of all its ranks, each with its name; `plan_digest` is empty where the plan
/// is not known. Ranks are told apart by their ops; where several did the same ones, as replicas and ranks that share
/// matrices do, they are copies of the pipeline.
///
/// # Errors
/// Every fault, with the file: another order than the plan's, ranks without a file, files with fewer steps than others.
pub fn trace(
    problem: &Problem,
    schedule: &Schedule,
    plan_digest: &str,
    files: &[(String, Recording)],
) -> Result<Trace, Faults> {
    let rows = &schedule.rows;
    let mut faults = Vec::new();
    // By rank of the plan, the files that have its ops.
    let mut of_rank: Vec<Vec<&Recording>> = rows.iter().map(|_| Vec::new()).collect();
    let mut steps: Option<(usize, &str)> = None;
    for (name, recording) in files {
        match row_of(rows, recording) {
            Ok((rank, count)) => {
                of_rank[rank].push(recording);
                match steps {
                    Some((known, of)) if known != count => faults.push(Fault::new(
                        name.as_str(),
                        format!("{count} {}", if count == 1 { "step" } else { "steps" }),
                        format!("{known}, as many as {of} has"),
                    )),
                    _ => steps = Some((count, name)),
                }
            }
            Err((found, accepted)) => faults.push(Fault::new(name.as_str(), found, accepted)),
        }
    }
    let copies = of_rank.iter().map(Vec::len).max().unwrap_or(0);
    if faults.is_empty() {
        for (rank, of_rank) in of_rank.iter().enumerate().filter(|(_, of_rank)| of_rank.len() < copies.max(1)) {
            let found = match of_rank.len() {
                0 => "no file with its ops".to_string(),
                some => format!("{some} of the files with its ops"),
            };
            let accepted = format!("{}, as many as of other ranks", copies.max(1));
            faults.push(Fault::new(format!("rank {rank} of the plan"), found, accepted));
        }
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    for of_rank in &mut of_rank {
        of_rank.sort_by_key(|recording| recording.rank);
    }
    // The ranks of the first copy, then those of the second and so on.
    let ranks: Vec<&Recording> = (0..copies).flat_map(|copy| of_rank.iter().map(move |files| files[copy])).collect();
    let first = ranks.first();
    let peaks: Option<Vec<Bytes>> = ranks.iter().map(|recording| recording.peak_bytes).collect();
    let count = steps.map_or(0, |(count, _)| count);
    Ok(Trace {
        plan_digest: plan_digest.to_string(),
        backend: if first.is_some_and(|first| first.on_gpu) { "torch (GPU)" } else { "torch (CPU)" }.to_string(),
        transport: first
            .and_then(|first| first.transport.clone())
            .unwrap_or_else(|| "an unnamed transport".to_string()),
        replicas: copies,
        context: 1,
        tensor: 1,
        overhead_ns: None,
        shared_processors: None,
        peak_bytes: peaks.unwrap_or_default(),
        steps: (0..count).map(|index| step(problem, &ranks, index, count)).collect(),
    })
}

/// The rank of the plan whose ops `recording` has, and how many times over; what it has instead of which else.
fn row_of(rows: &[Vec<Op>], recording: &Recording) -> Result<(usize, usize), (String, String)> {
    let ran = &recording.ops;
    // The row that goes with it the furthest.
    let agree = |row: &Vec<Op>| ran.iter().zip(row.iter().cycle()).take_while(|(ran, op)| ran.op == **op).count();
    let furthest = rows.iter().enumerate().filter(|(_, row)| !row.is_empty()).map(|(rank, row)| (agree(row), rank));
    let Some((agreed, rank)) = furthest.max_by_key(|(agreed, rank)| (*agreed, core::cmp::Reverse(*rank))) else {
        return Err(("ops".to_string(), "none, as the plan has none".to_string()));
    };
    let row = &rows[rank];
    if agreed == ran.len() && ran.len().is_multiple_of(row.len()) {
        return Ok((rank, ran.len() / row.len()));
    }
    let wanted = row[agreed % row.len()];
    let found = match ran.get(agreed) {
        Some(ran) => format!("{} as op {}", torch_csv::action(ran.op), agreed + 1),
        None => format!("an end after op {agreed}"),
    };
    let accepted = match agreed {
        0 => "an order that a rank of the plan has".to_string(),
        _ => format!("{}: rank {rank} of the plan has that there", torch_csv::action(wanted)),
    };
    Err((found, accepted))
}

/// Step `index` of `count`, its times from its first op on.
fn step(problem: &Problem, ranks: &[&Recording], index: usize, count: usize) -> StepTrace {
    let of = |recording: &&Recording| {
        let ops = recording.ops.len() / count;
        recording.ops[index * ops..(index + 1) * ops].to_vec()
    };
    let rows: Vec<Vec<Ran>> = ranks.iter().map(of).collect();
    let first_ns = rows.iter().flatten().map(|ran| ran.start_ns).min().unwrap_or(0);
    let number = ranks.first().and_then(|recording| {
        let begun = recording.ops.get(index * (recording.ops.len() / count))?.end_ns;
        recording.steps.iter().rev().find(|(start_ns, _)| *start_ns <= begun).map(|(_, number)| *number)
    });
    let spans = |row: Vec<Ran>| {
        let mut spans: Vec<TraceSpan> = Vec::with_capacity(2 * row.len());
        let mut before_ns = first_ns;
        for ran in row {
            let span =
                |step, start_ns, end_ns| TraceSpan { step, start_ns: start_ns - first_ns, end_ns: end_ns - first_ns };
            let (asked_ns, arrived_ns) = (ran.asked_ns.max(before_ns), ran.arrived_ns.min(ran.start_ns));
            if let Some(message) = received(problem, ran.op).filter(|_| asked_ns < arrived_ns) {
                spans.push(span(Step::Wait(Vec::from([message])), asked_ns, arrived_ns));
            }
            spans.push(span(Step::Compute(ran.op), ran.start_ns, ran.end_ns));
            before_ns = ran.end_ns;
        }
        spans
    };
    let rows = rows.into_iter().map(spans).collect();
    StepTrace { step: number.unwrap_or(index as u64), loss: None, tokens: 0, rows }
}

/// What `op` needs of another rank.
fn received(problem: &Problem, op: Op) -> Option<Message> {
    let (stage, microbatch) = (op.stage(), op.microbatch());
    let payload = match op.kind() {
        OpKind::F if stage > 0 => Payload::Activation,
        OpKind::B | OpKind::BW if stage + 1 < problem.stage_count() => Payload::Gradient,
        _ => return None,
    };
    let message = Message { way: Way::Receive, payload, stage: stage as u16, microbatch: microbatch as u32 };
    let rank = |stage| problem.rank_of(stage, microbatch);
    (rank(message.peer_stage()) != rank(stage)).then_some(message)
}

/// What is read of a file.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct File<'a> {
    #[serde(borrow, rename = "traceEvents")]
    events: Option<Events<'a>>,
    #[serde(rename = "distributedInfo")]
    group: Option<Group>,
    /// What times count from.
    #[serde(rename = "baseTimeNanoseconds")]
    base_ns: Option<u64>,
}

#[derive(Default, Deserialize)]
struct Group {
    backend: Option<String>,
    rank: Option<u64>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(borrow, default)]
    ph: Cow<'a, str>,
    /// Microseconds.
    #[serde(default)]
    ts: Number,
    #[serde(default)]
    dur: Number,
    /// A number for threads, a text for some lanes of the device.
    #[serde(default)]
    tid: Number,
    #[serde(default)]
    args: Option<Args>,
}

#[derive(Default, Deserialize)]
struct Args {
    #[serde(default)]
    correlation: Number,
    #[serde(default, rename = "Total Allocated")]
    allocated: Number,
    #[serde(default, rename = "Device Type")]
    device_type: Number,
}

/// What is kept of the events of a file.
#[derive(Default)]
struct Events<'a> {
    count: usize,
    ranges: Vec<Range>,
    /// Where receives were launched: from when to when.
    receives: Vec<(Message, Nanos, Nanos)>,
    /// The first range of a pair of ops.
    pair: Option<Cow<'a, str>>,
    /// Starts of operators, by thread.
    operators: BTreeMap<u64, Vec<Nanos>>,
    /// When something was launched, and what the device calls it.
    launches: Vec<(Nanos, u64)>,
    /// From the first to the last that was launched as one.
    kernels: BTreeMap<u64, (Nanos, Nanos)>,
    /// When NCCL's ended.
    messages: BTreeMap<u64, Nanos>,
    profiled: Vec<(Nanos, u64)>,
    /// Most bytes allocated on a GPU.
    peak_bytes: Option<Bytes>,
}

struct Range {
    op: Op,
    thread: u64,
    start_ns: Nanos,
    end_ns: Nanos,
}

impl<'a> Events<'a> {
    fn take(&mut self, event: Event<'a>) {
        self.count += 1;
        let args = event.args.unwrap_or_default();
        if event.name == "[memory]" && args.device_type.whole().is_some_and(|device| device != CPU) {
            self.peak_bytes = self.peak_bytes.max(args.allocated.whole());
        }
        let (Some(start_ns), Some(long_ns)) = (event.ts.as_ns(), event.dur.as_ns()) else { return };
        let end_ns = start_ns + long_ns;
        if event.ph != "X" {
            return;
        }
        let thread = event.tid.whole().unwrap_or(0);
        match &*event.cat {
            "user_annotation" => {
                if let Some(action) = event.name.strip_prefix("PP:") {
                    if action.starts_with('(') {
                        self.pair.get_or_insert_with(|| action.to_string().into());
                    } else if let Some(op) = torch_csv::op(action) {
                        self.ranges.push(Range { op, thread, start_ns, end_ns });
                    } else if let Ok(message) = action.parse::<Message>() {
                        self.receives.push((message, start_ns, end_ns));
                    }
                } else if let Some(number) = event.name.strip_prefix("ProfilerStep#") {
                    self.profiled.extend(number.parse().ok().map(|number| (start_ns, number)));
                }
            }
            "cpu_op" => self.operators.entry(thread).or_default().push(start_ns),
            "kernel" | "gpu_memcpy" | "gpu_memset" => {
                if let Some(correlation) = args.correlation.whole() {
                    if event.name.starts_with("nccl") {
                        let known_ns = self.messages.entry(correlation).or_insert(end_ns);
                        *known_ns = end_ns.max(*known_ns);
                        return;
                    }
                    let known = self.kernels.entry(correlation).or_insert((start_ns, end_ns));
                    *known = (known.0.min(start_ns), known.1.max(end_ns));
                }
            }
            // Of CUDA and of what stands in for it.
            launch if launch.ends_with("_runtime") || launch.ends_with("_driver") => {
                self.launches.extend(args.correlation.whole().map(|correlation| (start_ns, correlation)));
            }
            _ => {}
        }
    }

    fn ops_of_cpu(mut self) -> Vec<Ran> {
        self.operators.values_mut().for_each(|starts| starts.sort_unstable());
        self.ranges.sort_by_key(|range| range.start_ns);
        let ran = |range: &Range| {
            let first = self.operators.get(&range.thread).and_then(|starts| {
                let from = starts.partition_point(|start_ns| *start_ns < range.start_ns);
                starts.get(from).filter(|start_ns| **start_ns < range.end_ns)
            });
            let start_ns = first.copied().unwrap_or(range.end_ns);
            Ran { op: range.op, start_ns, end_ns: range.end_ns, asked_ns: range.start_ns, arrived_ns: start_ns }
        };
        in_turn(self.ranges.iter().map(ran))
    }

    fn ops_of_gpu(mut self) -> Vec<Ran> {
        self.launches.sort_unstable();
        self.ranges.sort_by_key(|range| range.start_ns);
        let launched = |start_ns: Nanos, end_ns: Nanos| {
            let at = |ns| self.launches.partition_point(|(launched_ns, _)| *launched_ns < ns);
            let launches = self.launches.get(at(start_ns)..at(end_ns)).unwrap_or_default();
            launches.iter().map(|(_, correlation)| correlation)
        };
        // By message, when its receive was launched, and when the message was there.
        let mut arrivals: BTreeMap<Message, Vec<(Nanos, Nanos)>> = BTreeMap::new();
        for (message, start_ns, end_ns) in &self.receives {
            let arrived_ns = launched(*start_ns, *end_ns).filter_map(|launched| self.messages.get(launched)).max();
            arrivals.entry(*message).or_default().extend(arrived_ns.map(|arrived_ns| (*start_ns, *arrived_ns)));
        }
        let ran = |range: &Range| {
            let kernels = launched(range.start_ns, range.end_ns).filter_map(|launched| self.kernels.get(launched));
            let span = kernels.copied().reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
            let (start_ns, end_ns) = span.unwrap_or((0, 0));
            // The last one that was launched before the op was.
            let (way, stage, microbatch) = (Way::Receive, range.op.stage() as u16, range.op.microbatch() as u32);
            let payload = if range.op.kind() == OpKind::F { Payload::Activation } else { Payload::Gradient };
            let arrivals = arrivals.get(&Message { way, payload, stage, microbatch });
            let arrived = arrivals.and_then(|all| all.iter().filter(|(ns, _)| *ns < range.start_ns).max());
            Ran { op: range.op, start_ns, end_ns, asked_ns: 0, arrived_ns: arrived.map_or(0, |(_, ns)| *ns) }
        };
        let mut ran: Vec<Ran> = self.ranges.iter().map(ran).collect();
        // What launched nothing takes no time, where the one before it ended, or the first one began.
        let begun_ns = ran.iter().map(|ran| ran.start_ns).find(|start_ns| *start_ns > 0).unwrap_or(0);
        ran.iter_mut()
            .take_while(|ran| ran.start_ns == 0)
            .for_each(|ran| (ran.start_ns, ran.end_ns) = (begun_ns, begun_ns));
        in_turn(ran.into_iter())
    }

    fn steps(&self, base_ns: Nanos) -> Vec<(Nanos, u64)> {
        let mut steps: Vec<(Nanos, u64)> =
            self.profiled.iter().map(|(start_ns, number)| (start_ns.saturating_add(base_ns), *number)).collect();
        steps.sort_unstable();
        steps
    }
}

/// None before the one before it has ended: streams may overlap a little.
fn in_turn(ops: impl Iterator<Item = Ran>) -> Vec<Ran> {
    let mut before_ns = 0;
    ops.map(|ran| {
        let start_ns = ran.start_ns.max(before_ns);
        before_ns = ran.end_ns.max(start_ns);
        Ran { start_ns, end_ns: before_ns, ..ran }
    })
    .collect()
}

impl<'de: 'a, 'a> Deserialize<'de> for Events<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneByOne;
        impl<'de> Visitor<'de> for OneByOne {
            type Value = Events<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<Events<'de>, A::Error> {
                let mut kept = Events::default();
                while let Some(event) = events.next_element()? {
                    kept.take(event);
                }
                Ok(kept)
            }
        }
        deserializer.deserialize_seq(OneByOne)
    }
}

/// A number, where there is one.
#[derive(Clone, Copy, Default)]
struct Number(Option<f64>);

impl Number {
    /// Of microseconds; none of what no clock shows.
    fn as_ns(self) -> Option<Nanos> {
        // 2^61: sums of two and a base of today stay far within `u64`.
        let most_us = (1u64 << 61) as f64 / 1e3;
        self.0.filter(|us| (0.0..=most_us).contains(us)).map(|us| (us * 1e3 + 0.5) as Nanos)
    }

    fn whole(self) -> Option<u64> {
        self.0.filter(|number| (0.0..=9e15).contains(number)).map(|number| number as u64)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_f64<E>(self, number: f64) -> Result<Number, E> {
                Ok(Number(Some(number)))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
                Ok(Number(Some(number as f64)))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Number, E> {
                Ok(Number(Some(number as f64)))
            }

            fn visit_str<E>(self, _: &str) -> Result<Number, E> {
                Ok(Number(None))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Number, E> {
                Ok(Number(None))
            }

            fn visit_unit<E>(self) -> Result<Number, E> {
                Ok(Number(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Number, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Number(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Number, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Number(None))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests;
