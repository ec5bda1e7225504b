//! Perfetto's own format: a message `perfetto.protos.Trace`, a third of the size of JSON.
//!
//! Ranks are processes by their descriptors, tracks are children of them, names are interned. Arrows are flows.
//!
//! Format: Perfetto, `protos/perfetto/trace/trace_packet.proto`, `track_event/track_event.proto`,
//! `track_event/track_descriptor.proto` and `interned_data/interned_data.proto`; the documentation's page “Writing
//! TrackEvent Protos Synthetically”.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use prost::Message;

use super::{Events, PIECE, Sink, Slice, Track};
use crate::base::units::{Bytes, Nanos};

/// A part of `Trace`: files are joined by writing one after the other, so each packet is a whole `Trace`.
#[derive(Clone, PartialEq, Message)]
struct OnePacket {
    #[prost(message, required, tag = "1")]
    packet: Packet,
}

/// `TracePacket`
#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    category_iids: Vec<u64>,
    #[prost(enumeration = "Kind", optional, tag = "9")]
    r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(int64, optional, tag = "30")]
    counter_value: Option<i64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    terminating_flow_ids: Vec<u64>,
}

/// `TrackEvent.Type`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum Kind {
    Unspecified = 0,
    SliceBegin = 1,
    SliceEnd = 2,
    Counter = 4,
}

#[derive(Clone, PartialEq, Message)]
struct InternedData {
    #[prost(message, repeated, tag = "1")]
    event_categories: Vec<Interned>,
    #[prost(message, repeated, tag = "2")]
    event_names: Vec<Interned>,
}

/// `EventName` and `EventCategory`
#[derive(Clone, PartialEq, Message)]
struct Interned {
    #[prost(uint64, optional, tag = "1")]
    iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
    #[prost(int32, optional, tag = "11")]
    child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    sibling_order_rank: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
    #[prost(string, repeated, tag = "8")]
    process_labels: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct CounterDescriptor {
    #[prost(int32, optional, tag = "3")]
    unit: Option<i32>,
}

/// `CounterDescriptor.UNIT_SIZE_BYTES`
const UNIT_SIZE_BYTES: i32 = 3;
/// `TrackDescriptor.EXPLICIT`: children by their ranks.
const EXPLICIT: i32 = 3;
/// `TracePacket.SEQ_INCREMENTAL_STATE_CLEARED` and `SEQ_NEEDS_INCREMENTAL_STATE`
const STATE_CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;
/// The only writer.
const SEQUENCE: u32 = 1;

/// Texts by number.
#[derive(Default)]
struct Texts(BTreeMap<String, u64>);

impl Texts {
    /// The number of a text, and what has to be told of it if it is new.
    fn number(&mut self, text: &str) -> (u64, Vec<Interned>) {
        if let Some(number) = self.0.get(text) {
            return (*number, Vec::new());
        }
        let number = self.0.len() as u64 + 1;
        self.0.insert(text.to_string(), number);
        (number, alloc::vec![Interned { iid: Some(number), name: Some(text.to_string()) }])
    }
}

/// Writes events as protobuf.
pub struct Perfetto<'a> {
    bytes: Vec<u8>,
    sink: Sink<'a>,
    is_over: bool,
    names: Texts,
    categories: Texts,
}

/// Identities of tracks: those of a process, then of its tracks. 0 is no identity.
const fn uuid(process: u32, track: Option<u32>) -> u64 {
    let within = match track {
        Some(number) => number as u64 + 1,
        None => 0,
    };
    ((process as u64 + 1) << 32) | within
}

impl<'a> Perfetto<'a> {
    /// A file without events.
    pub fn new(sink: Sink<'a>) -> Perfetto<'a> {
        let mut perfetto = Perfetto {
            bytes: Vec::new(),
            sink,
            is_over: false,
            names: Texts::default(),
            categories: Texts::default(),
        };
        perfetto.packet(Packet { sequence_flags: Some(STATE_CLEARED), ..Packet::default() });
        perfetto
    }

    fn packet(&mut self, packet: Packet) {
        let packet = Packet { trusted_packet_sequence_id: Some(SEQUENCE), ..packet };
        // Fails only where there is no room, and a vector grows.
        let _ = OnePacket { packet }.encode(&mut self.bytes);
        if self.bytes.len() >= PIECE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.is_over {
            self.is_over = (self.sink)(&self.bytes).is_break();
        }
        self.bytes.clear();
    }

    fn descriptor(&mut self, descriptor: TrackDescriptor) {
        self.packet(Packet { track_descriptor: Some(descriptor), ..Packet::default() });
    }

    fn event(&mut self, at_ns: Nanos, event: TrackEvent, interned_data: Option<InternedData>) {
        self.packet(Packet {
            timestamp: Some(at_ns),
            track_event: Some(event),
            interned_data,
            sequence_flags: Some(NEEDS_STATE),
            ..Packet::default()
        });
    }
}

impl Events for Perfetto<'_> {
    fn process(&mut self, process: u32, name: &str, label: &str) {
        self.descriptor(TrackDescriptor {
            uuid: Some(uuid(process, None)),
            // Process 0 is the kernel's own.
            process: Some(ProcessDescriptor {
                pid: Some(process as i32 + 1),
                process_name: Some(name.to_string()),
                process_labels: if label.is_empty() { Vec::new() } else { Vec::from([label.to_string()]) },
            }),
            child_ordering: Some(EXPLICIT),
            ..TrackDescriptor::default()
        });
    }

    fn track(&mut self, track: Track, name: &str) {
        self.descriptor(TrackDescriptor {
            uuid: Some(uuid(track.process, Some(track.number))),
            parent_uuid: Some(uuid(track.process, None)),
            name: Some(name.to_string()),
            sibling_order_rank: Some(track.number as i32),
            ..TrackDescriptor::default()
        });
    }

    fn counter(&mut self, track: Track, name: &str) {
        self.descriptor(TrackDescriptor {
            uuid: Some(uuid(track.process, Some(track.number))),
            parent_uuid: Some(uuid(track.process, None)),
            name: Some(name.to_string()),
            counter: Some(CounterDescriptor { unit: Some(UNIT_SIZE_BYTES) }),
            sibling_order_rank: Some(track.number as i32),
            ..TrackDescriptor::default()
        });
    }

    fn slice(&mut self, slice: &Slice<'_>) {
        let track_uuid = Some(uuid(slice.track.process, Some(slice.track.number)));
        let (name, event_names) = self.names.number(slice.name);
        let (category, event_categories) = self.categories.number(slice.category);
        let is_known = event_names.is_empty() && event_categories.is_empty();
        let begin = TrackEvent {
            category_iids: alloc::vec![category],
            r#type: Some(Kind::SliceBegin as i32),
            name_iid: Some(name),
            track_uuid,
            flow_ids: slice.sends.into_iter().collect(),
            terminating_flow_ids: slice.receives.into_iter().collect(),
            ..TrackEvent::default()
        };
        let interned = (!is_known).then_some(InternedData { event_categories, event_names });
        self.event(slice.start_ns, begin, interned);
        let end = TrackEvent { r#type: Some(Kind::SliceEnd as i32), track_uuid, ..TrackEvent::default() };
        self.event(slice.end_ns, end, None);
    }

    fn value(&mut self, track: Track, _name: &str, at_ns: Nanos, bytes: Bytes) {
        let event = TrackEvent {
            r#type: Some(Kind::Counter as i32),
            track_uuid: Some(uuid(track.process, Some(track.number))),
            // Bytes are at most 2^62.
            counter_value: Some(i64::try_from(bytes).unwrap_or(i64::MAX)),
            ..TrackEvent::default()
        };
        self.event(at_ns, event, None);
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn finish(&mut self) {
        self.flush();
    }
}
