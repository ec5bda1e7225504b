//! The events of one rank's file, read one by one: most of them are not kept.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Ran, Recording};
use crate::base::fields::Fault;
use crate::base::units::{Bytes, Nanos};
use crate::notation::torch_csv;
use crate::problem::op::{Op, OpKind};
use crate::program::{P2pOp, Payload, Way};

/// The numbers of torch for the kinds of devices. Its host memory counts only from the start of the profile.
const CPU: u64 = 0;

/// The assumed precision of a card's clock.
const CLOCK_NS: Nanos = 1000;

/// Reads a file's text.
pub fn read(text: &str) -> Result<Recording, Fault> {
    let file: File =
        serde_json::from_str(text).map_err(|error| Fault::new("the whole input", error.to_string(), ACCEPTED))?;
    recording(file.events, file.group, file.base_ns)
}

pub(super) const ACCEPTED: &str = "what torch.profiler writes of a rank, in JSON";

/// Of the events of a file, its group of ranks, and what its times count from.
pub(super) fn recording(
    events: Option<Events>,
    group: Option<Group>,
    base_ns: Option<u64>,
) -> Result<Recording, Fault> {
    let Some(events) = events else {
        return Err(Fault::new("traceEvents", "nothing", ACCEPTED));
    };
    if let Some(pair) = events.pair {
        let accepted = "ranges of single actions: torch does not record when the second op of a pair begins";
        return Err(Fault::new("traceEvents", format!("the pair {pair}"), accepted));
    }
    if events.ranges.is_empty() {
        let accepted =
            "ranges such as `PP:0F0`, which the runtime of torch.distributed.pipelining records on every rank";
        return Err(Fault::new("traceEvents", format!("{} events and no such range", events.count), accepted));
    }
    let base_ns = base_ns.unwrap_or(0);
    let group = group.unwrap_or_default();
    let over_nccl = group.backend.as_ref().is_some_and(|backend| backend.contains("nccl"));
    if !events.on_gpu && (over_nccl || events.peak_bytes.is_some()) {
        let accepted = "kernels of a GPU: profile with ProfilerActivity.CUDA as well";
        return Err(Fault::new("traceEvents", "a run on GPUs without any", accepted));
    }
    let steps = events.profiled.iter().map(|(start_ns, number)| (start_ns.saturating_add(base_ns), *number));
    let mut steps: Vec<(Nanos, u64)> = steps.collect();
    steps.sort_unstable();
    let (on_gpu, peak_bytes) = (events.on_gpu, events.peak_bytes);
    let ops = if on_gpu { events.ops_of_gpu()? } else { events.ops_of_cpu() };
    let ops = ops.into_iter().map(|ran| ran.later(base_ns)).collect();
    let rank = group.rank;
    Ok(Recording { rank, transport: group.backend, on_gpu, ops, steps, peak_bytes })
}

/// What is read of a file.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct File {
    #[serde(rename = "traceEvents")]
    events: Option<Events>,
    #[serde(rename = "distributedInfo")]
    group: Option<Group>,
    /// What times count from.
    #[serde(rename = "baseTimeNanoseconds")]
    base_ns: Option<u64>,
}

#[derive(Default, Deserialize)]
pub(super) struct Group {
    backend: Option<String>,
    #[serde(default, deserialize_with = "whole_of")]
    rank: Option<u64>,
}

fn whole_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Loose::deserialize(deserializer)?.whole())
}

/// An event of any kind: what another program has added may hold anything.
#[derive(Deserialize)]
#[serde(expecting = "an event")]
pub(super) struct Event<'a> {
    #[serde(borrow, default)]
    name: Loose<'a>,
    #[serde(borrow, default)]
    cat: Loose<'a>,
    #[serde(borrow, default)]
    ph: Loose<'a>,
    /// Microseconds.
    #[serde(borrow, default)]
    ts: Loose<'a>,
    #[serde(borrow, default)]
    dur: Loose<'a>,
    /// A number for threads, a text for some lanes of the device.
    #[serde(borrow, default)]
    tid: Loose<'a>,
    #[serde(borrow, default)]
    args: Loose<'a>,
}

/// The arguments of an event that are read.
#[derive(Clone, Copy, Default)]
struct Args {
    correlation: Option<u64>,
    allocated: Option<u64>,
    device_type: Option<u64>,
}

/// The events of a file that are kept.
#[derive(Default)]
pub(super) struct Events {
    count: usize,
    ranges: Vec<Range>,
    /// Where receives were launched: from when to when.
    receives: Vec<(Nanos, Nanos, P2pOp)>,
    /// The first range of a pair of ops.
    pair: Option<String>,
    /// Starts of operators, by thread.
    operators: BTreeMap<u64, Vec<Nanos>>,
    /// When something was launched, and what the device calls it.
    launches: Vec<(Nanos, u64)>,
    /// Whether a GPU has done anything.
    on_gpu: bool,
    /// What was launched as one, from start to end.
    kernels: BTreeMap<u64, Vec<(Nanos, Nanos)>>,
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

impl Events {
    pub(super) fn take(&mut self, event: Event<'_>) {
        self.count += 1;
        let (name, args) = (event.name.text(), event.args.args());
        if name == "[memory]" && args.device_type.is_some_and(|device| device != CPU) {
            self.peak_bytes = self.peak_bytes.max(args.allocated);
        }
        let (Some(start_ns), Some(long_ns)) = (event.ts.as_ns(), event.dur.as_ns()) else { return };
        let end_ns = start_ns + long_ns;
        if event.ph.text() != "X" {
            return;
        }
        let thread = event.tid.whole().unwrap_or(0);
        match event.cat.text() {
            "user_annotation" => {
                if let Some(action) = name.strip_prefix("PP:") {
                    if action.starts_with('(') {
                        self.pair.get_or_insert_with(|| action.to_string());
                    } else if let Some(op) = torch_csv::op(action) {
                        self.ranges.push(Range { op, thread, start_ns, end_ns });
                    } else if let Ok(message) = action.parse::<P2pOp>() {
                        self.receives.push((start_ns, end_ns, message));
                    }
                } else if let Some(number) = name.strip_prefix("ProfilerStep#") {
                    self.profiled.extend(number.parse().ok().map(|number| (start_ns, number)));
                }
            }
            "cpu_op" => self.operators.entry(thread).or_default().push(start_ns),
            "kernel" | "gpu_memcpy" | "gpu_memset" => {
                self.on_gpu = true;
                let Some(correlation) = args.correlation else { return };
                if name.starts_with("nccl") {
                    let known_ns = self.messages.entry(correlation).or_insert(end_ns);
                    *known_ns = end_ns.max(*known_ns);
                } else {
                    self.kernels.entry(correlation).or_default().push((start_ns, end_ns));
                }
            }
            // Of CUDA and of what stands in for it.
            launch if launch.ends_with("_runtime") || launch.ends_with("_driver") => {
                self.launches.extend(args.correlation.map(|correlation| (start_ns, correlation)));
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
            Ran {
                op: range.op,
                host_ns: range.start_ns,
                start_ns,
                end_ns: range.end_ns,
                asked_ns: range.start_ns,
                arrived_ns: Some(start_ns),
            }
        };
        in_turn(self.ranges.iter().map(ran))
    }

    /// A fault where a kernel is missing.
    fn ops_of_gpu(mut self) -> Result<Vec<Ran>, Fault> {
        self.launches.sort_unstable();
        self.ranges.sort_by_key(|range| range.start_ns);
        self.receives.sort_unstable();
        let launched = |start_ns: Nanos, end_ns: Nanos| {
            let at = |ns| self.launches.partition_point(|(launched_ns, _)| *launched_ns < ns);
            let launches = self.launches.get(at(start_ns)..at(end_ns)).unwrap_or_default();
            launches.iter().map(|(_, correlation)| correlation)
        };
        // By P2P transfer, when its receive was launched, and when the data was there. A range ends where the next one
        // begins, so that each launch is looked at once.
        let mut arrivals: BTreeMap<P2pOp, Vec<(Nanos, Nanos)>> = BTreeMap::new();
        for (index, (start_ns, end_ns, message)) in self.receives.iter().enumerate() {
            let end_ns = self.receives.get(index + 1).map_or(*end_ns, |next| next.0.min(*end_ns));
            let arrived_ns = launched(*start_ns, end_ns).filter_map(|launched| self.messages.get(launched)).max();
            arrivals.entry(*message).or_default().extend(arrived_ns.map(|arrived_ns| (*start_ns, *arrived_ns)));
        }
        // The last one that was launched before the op was.
        let arrived = |range: &Range| {
            let payload = match range.op.kind() {
                OpKind::F => Payload::Activation,
                OpKind::B | OpKind::BW => Payload::Gradient,
                OpKind::W => return None,
            };
            let (stage, microbatch) = (range.op.stage() as u16, range.op.microbatch() as u32);
            let all = arrivals.get(&P2pOp { way: Way::Receive, payload, stage, microbatch })?;
            let before = all.partition_point(|(launched_ns, _)| *launched_ns < range.start_ns);
            Some(all.get(before.checked_sub(1)?)?.1)
        };
        // Of each job, whether ops have kernels, and one that has none.
        let mut jobs: BTreeMap<(usize, OpKind), (bool, Option<Op>)> = BTreeMap::new();
        let mut ran = Vec::with_capacity(self.ranges.len());
        for (index, range) in self.ranges.iter().enumerate() {
            let end_ns = self.ranges.get(index + 1).map_or(range.end_ns, |next| next.start_ns.min(range.end_ns));
            let arrived_ns = arrived(range);
            let kernels =
                || launched(range.start_ns, end_ns).filter_map(|launched| self.kernels.get(launched)).flatten();
            let last_ns = kernels().map(|kernel| kernel.1).max();
            let with_input = |ns: &Nanos| arrived_ns.is_none_or(|at| ns + CLOCK_NS >= at);
            let first_ns = kernels().map(|kernel| kernel.0).filter(with_input).min();
            let job = jobs.entry((range.op.stage(), range.op.kind())).or_default();
            match first_ns {
                Some(_) => job.0 = true,
                None => job.1 = job.1.or(Some(range.op)),
            }
            // An op that launches nothing takes no time, once its input is there.
            let (start_ns, end_ns) = first_ns.zip(last_ns).unwrap_or((arrived_ns.unwrap_or(0), 0));
            let end_ns = end_ns.max(start_ns);
            ran.push(Ran { op: range.op, host_ns: range.start_ns, start_ns, end_ns, asked_ns: 0, arrived_ns });
        }
        // The first stage's `I` does nothing, but may be the first that needs a sharded stage's weights.
        for ((_, kind), (has_kernels, without)) in jobs.into_iter().filter(|(job, _)| *job != (0, OpKind::B)) {
            if let (Some(op), true) = (without, has_kernels || matches!(kind, OpKind::F | OpKind::BW)) {
                let accepted =
                    "kernels of every op: record fewer steps, and wait for the device before the profile ends";
                return Err(Fault::new("traceEvents", format!("no kernel of {}", torch_csv::action(op)), accepted));
            }
        }
        let begun_ns = ran.iter().map(|ran| ran.start_ns).find(|start_ns| *start_ns > 0).unwrap_or(0);
        for ran in ran.iter_mut().take_while(|ran| ran.start_ns == 0) {
            (ran.start_ns, ran.end_ns) = (begun_ns, begun_ns);
        }
        Ok(in_turn(ran.into_iter()))
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

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneByOne;
        impl<'de> Visitor<'de> for OneByOne {
            type Value = Events;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<Events, A::Error> {
                let mut kept = Events::default();
                while let Some(event) = events.next_element::<Option<Event<'de>>>()? {
                    event.into_iter().for_each(|event| kept.take(event));
                }
                Ok(kept)
            }
        }
        deserializer.deserialize_seq(OneByOne)
    }
}

/// A text, a number or arguments; nothing of anything else.
#[derive(Default)]
enum Loose<'a> {
    Text(Cow<'a, str>),
    Number(f64),
    Args(Args),
    #[default]
    Nothing,
}

impl Loose<'_> {
    fn text(&self) -> &str {
        match self {
            Loose::Text(text) => text,
            _ => "",
        }
    }

    /// Also of one that stands in a text.
    fn number(&self) -> Option<f64> {
        match self {
            Loose::Text(text) => text.parse().ok(),
            Loose::Number(number) => Some(*number),
            _ => None,
        }
    }

    fn args(&self) -> Args {
        match self {
            Loose::Args(args) => *args,
            _ => Args::default(),
        }
    }

    /// Of microseconds; none of what no clock shows.
    fn as_ns(&self) -> Option<Nanos> {
        // 2^61: sums of two and a base of today stay far within `u64`.
        let most_us = (1u64 << 61) as f64 / 1e3;
        self.number().filter(|us| (0.0..=most_us).contains(us)).map(|us| (us * 1e3 + 0.5) as Nanos)
    }

    fn whole(&self) -> Option<u64> {
        self.number().filter(|number| (0.0..=9e15).contains(number)).map(|number| number as u64)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Loose<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Loose<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Loose<'de>, E> {
                Ok(Loose::Text(text.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Loose<'de>, E> {
                Ok(Loose::Text(text.to_string().into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Loose<'de>, E> {
                Ok(Loose::Number(number))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Loose<'de>, E> {
                Ok(Loose::Number(number as f64))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Loose<'de>, E> {
                Ok(Loose::Number(number as f64))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Loose<'de>, E> {
                Ok(Loose::Nothing)
            }

            fn visit_unit<E>(self) -> Result<Loose<'de>, E> {
                Ok(Loose::Nothing)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Loose<'de>, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Loose::Nothing)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loose<'de>, A::Error> {
                let mut args = Args::default();
                while let Some(key) = map.next_key::<Loose<'de>>()? {
                    let said = match key.text() {
                        "correlation" => &mut args.correlation,
                        "Total Allocated" => &mut args.allocated,
                        "Device Type" => &mut args.device_type,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *said = map.next_value::<Loose<'de>>()?.whole();
                }
                Ok(Loose::Args(args))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
