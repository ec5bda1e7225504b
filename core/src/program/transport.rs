//! How P2P transfers move between ranks, by name: the rules that a lowered program is written for and checked under.

use core::fmt;

/// How P2P transfers move between ranks. As text: `rendezvous`, `buffered` (one place), `buffered:3`, `grouped`,
/// `pair-ordered`, `streams`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// One transfer at a time, in the order written; a send ends only when its receive has begun.
    Rendezvous,
    /// One transfer at a time; a send ends as soon as one of the `slots` buffers of its channel is free. Each sender,
    /// receiver and payload has a separate channel.
    Buffered {
        /// Buffers of a channel, at least 1.
        slots: usize,
    },
    /// All transfers of a step at once, each as in [`Transport::Rendezvous`] (an NCCL group).
    #[default]
    Grouped,
    /// As [`Transport::Grouped`], and the transfers between two ranks, both directions together, meet strictly in the
    /// order in which each end starts them (one communicator per pair).
    PairOrdered,
    /// As [`Transport::Grouped`], and the transfers from one rank to another run strictly in the order in which each
    /// end starts them (a stream and a communicator for each direction of a link).
    Streams,
}

impl Transport {
    /// What [`Transport::read`] takes, for error texts.
    pub const ACCEPTED: &'static str = "rendezvous, buffered, buffered with the number of buffers per channel, \
     such as buffered:4, grouped, pair-ordered or streams";

    /// Reads the text form; none for anything else.
    pub fn read(text: &str) -> Option<Transport> {
        let (name, slots) = text.split_once(':').map_or((text, None), |(name, slots)| (name, Some(slots)));
        match (name, slots) {
            ("rendezvous", None) => Some(Transport::Rendezvous),
            ("buffered", None) => Some(Transport::Buffered { slots: 1 }),
            ("buffered", Some(slots)) => {
                let slots = slots.parse().ok().filter(|slots| (1..=1 << 20).contains(slots))?;
                Some(Transport::Buffered { slots })
            }
            ("grouped", None) => Some(Transport::Grouped),
            ("pair-ordered", None) => Some(Transport::PairOrdered),
            ("streams", None) => Some(Transport::Streams),
            _ => None,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::Rendezvous => f.write_str("rendezvous"),
            Transport::Buffered { slots: 1 } => f.write_str("buffered"),
            Transport::Buffered { slots } => write!(f, "buffered:{slots}"),
            Transport::Grouped => f.write_str("grouped"),
            Transport::PairOrdered => f.write_str("pair-ordered"),
            Transport::Streams => f.write_str("streams"),
        }
    }
}
