//! The events of one rank's file, read one by one: most of them are not kept.

use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::base::fields::Fault;
use crate::base::units::Nanos;
use crate::formats::profile::{Capture, Recording};
use crate::program::Way;

/// The numbers of torch for the kinds of devices. Its host memory counts only from the start of the profile.
const CPU: u64 = 0;

/// Reads a file's text.
pub fn read(text: &str) -> Result<Recording, Fault> {
    let file: File =
        serde_json::from_str(text).map_err(|error| Fault::new("the whole input", error.to_string(), ACCEPTED))?;
    recording(file.events, file.group, file.base_ns)
}

pub(super) const ACCEPTED: &str = "what torch.profiler writes of a rank, in JSON";

/// Of the events of a file, its groups of ranks, and what its times count from.
pub(super) fn recording(
    events: Option<Events>,
    group: Option<Group>,
    base_ns: Option<u64>,
) -> Result<Recording, Fault> {
    let Some(Events { mut kept }) = events else {
        return Err(Fault::new("traceEvents", "nothing", ACCEPTED));
    };
    kept.set_base(base_ns.unwrap_or(0));
    let group = group.unwrap_or_default();
    kept.set_rank(group.rank, group.world_size);
    kept.set_transport(group.backend);
    group.pg_config.0.into_iter().for_each(|(description, ranks)| kept.add_group(&description, ranks));
    kept.finish("traceEvents")
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
    #[serde(default, deserialize_with = "whole_of")]
    world_size: Option<u64>,
    #[serde(default)]
    pg_config: Groups,
}

/// Descriptions of groups and their ranks; none of what is in another form.
#[derive(Default)]
struct Groups(Vec<(String, Vec<u64>)>);

impl<'de> Deserialize<'de> for Groups {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let group = |group: &serde_json::Value| {
            let ranks: Option<Vec<u64>> = group["ranks"].as_array()?.iter().map(serde_json::Value::as_u64).collect();
            Some((group["pg_desc"].as_str().unwrap_or("").to_string(), ranks?))
        };
        Ok(Groups(value.as_array().into_iter().flatten().filter_map(group).collect()))
    }
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
#[derive(Clone, Default)]
struct Args {
    correlation: Option<u64>,
    /// The number of autograd's next node.
    node: Option<u64>,
    /// The rank among all to which a transfer goes, or from which it comes.
    to: Option<u64>,
    from: Option<u64>,
    /// What a collective sends, and in which group.
    elements: Option<u64>,
    element_bytes: Option<u64>,
    group: Option<String>,
    allocated: Option<u64>,
    device_type: Option<u64>,
}

impl Args {
    fn bytes(&self) -> Option<u64> {
        self.elements?.checked_mul(self.element_bytes?)
    }
}

/// The bytes of an element, by torch's name of the type.
fn bytes_of(dtype: &str) -> Option<u64> {
    match dtype {
        "Double" | "Long" => Some(8),
        "Float" | "Int" => Some(4),
        "BFloat16" | "Half" | "Short" => Some(2),
        "Byte" | "Char" | "Bool" => Some(1),
        name if name.starts_with("Float8") => Some(1),
        _ => None,
    }
}

/// The events of a file.
#[derive(Default)]
pub(super) struct Events {
    kept: Capture,
}

impl Events {
    /// Counts an event that is known to be of no use.
    pub(super) fn leave_out(&mut self) {
        self.kept.count();
    }

    pub(super) fn take(&mut self, event: Event<'_>) {
        let kept = &mut self.kept;
        kept.count();
        let (name, args) = (event.name.text(), event.args.args());
        if name == "[memory]" && args.device_type.is_some_and(|device| device != CPU) {
            kept.allocated(args.allocated);
        }
        let (Some(start_ns), Some(long_ns)) = (event.ts.as_ns(), event.dur.as_ns()) else { return };
        let end_ns = start_ns + long_ns;
        if event.ph.text() != "X" {
            return;
        }
        let thread = event.tid.whole().unwrap_or(0);
        match event.cat.text() {
            "user_annotation" => kept.range(name, false, thread, start_ns, end_ns),
            "python_function" => kept.range(name, true, thread, start_ns, end_ns),
            "cpu_op" => {
                kept.operator(name, thread, start_ns, end_ns, args.node);
                for (way, peer) in [(Way::Send, args.to), (Way::Receive, args.from)] {
                    if peer.is_some() {
                        kept.transfer(way, peer, start_ns);
                    }
                }
            }
            "kernel" | "gpu_memcpy" | "gpu_memset" => {
                kept.kernel(name, args.correlation, start_ns, end_ns);
                if name.starts_with("nccl") {
                    kept.together(name, args.group.as_deref(), args.bytes(), start_ns, end_ns);
                }
            }
            // Of CUDA and of what stands in for it.
            launch if launch.ends_with("_runtime") || launch.ends_with("_driver") => {
                if let Some(correlation) = args.correlation {
                    kept.launch(correlation, start_ns);
                }
            }
            _ => {}
        }
    }
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
            Loose::Args(args) => args.clone(),
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
                        "Sequence number" => &mut args.node,
                        "Dst Rank" => &mut args.to,
                        "Src Rank" => &mut args.from,
                        "In msg nelems" => &mut args.elements,
                        "dtype" => {
                            args.element_bytes = bytes_of(map.next_value::<Loose<'de>>()?.text());
                            continue;
                        }
                        "Process Group Description" => {
                            args.group = Some(map.next_value::<Loose<'de>>()?.text().to_string());
                            continue;
                        }
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
