//! A transport that notes what passes through it and when.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pipeplan_core::program::Way;

use super::collectives::{Call, Operation};
use super::{Buffer, Incoming, Outgoing, Tag, Transport, TransportError};

/// One message of one exchange. The messages of a group share its start and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferSpan {
    /// Which parcel.
    pub tag: Tag,
    /// Send or receive.
    pub way: Way,
    /// The rank at the other end.
    pub peer: usize,
    /// The size of the parcel.
    pub bytes: u64,
    /// When the exchange began, in nanoseconds since the start that all ranks share.
    pub start_ns: u64,
    /// When the exchange ended.
    pub end_ns: u64,
}

/// What a [`Traced`] transport has noted; readable while the transport is in use.
#[derive(Clone, Default)]
pub struct Log {
    spans: Arc<Mutex<Vec<TransferSpan>>>,
}

impl Log {
    /// Takes out what has been noted since the last call.
    pub fn drain(&self) -> Vec<TransferSpan> {
        std::mem::take(&mut self.spans.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// `inner`, noting each exchange that ended well.
pub struct Traced<T> {
    inner: T,
    start: Instant,
    log: Log,
}

impl<T: Transport> Traced<T> {
    /// Wraps `inner`; times count from `start`, which all ranks share.
    pub fn new(inner: T, start: Instant) -> (Traced<T>, Log) {
        let log = Log::default();
        (Traced { inner, start, log: log.clone() }, log)
    }
}

/// The spans of what was received from `start_ns` to `end_ns`.
fn taken<'a>(
    receives: &'a [Incoming],
    received: &'a [Buffer],
    (start_ns, end_ns): (u64, u64),
) -> impl Iterator<Item = TransferSpan> + 'a {
    receives.iter().zip(received).map(move |(receive, buffer)| TransferSpan {
        tag: receive.tag,
        way: Way::Receive,
        peer: receive.peer,
        bytes: buffer.bytes(),
        start_ns,
        end_ns,
    })
}

impl<T: Transport> Transport for Traced<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn exchange(&mut self, sends: Vec<Outgoing>, receives: &[Incoming]) -> Result<Vec<Buffer>, TransportError> {
        let start_ns = self.start.elapsed().as_nanos() as u64;
        let sent: Vec<(usize, Tag, u64)> =
            sends.iter().map(|send| (send.peer, send.tag, send.buffer.bytes())).collect();
        let received = self.inner.exchange(sends, receives)?;
        let end_ns = self.start.elapsed().as_nanos() as u64;
        let taken = taken(receives, &received, (start_ns, end_ns));
        let sent = sent.into_iter().map(|(peer, tag, bytes)| TransferSpan {
            tag,
            way: Way::Send,
            peer,
            bytes,
            start_ns,
            end_ns,
        });
        self.log.spans.lock().unwrap_or_else(PoisonError::into_inner).extend(sent.chain(taken));
        Ok(received)
    }

    /// A posted send is traced as ending at once: when it is taken, only its receiver sees.
    fn post(&mut self, sends: Vec<Outgoing>) -> Result<(), TransportError> {
        let start_ns = self.start.elapsed().as_nanos() as u64;
        let posted = sends.iter().map(|send| TransferSpan {
            tag: send.tag,
            way: Way::Send,
            peer: send.peer,
            bytes: send.buffer.bytes(),
            start_ns,
            end_ns: start_ns,
        });
        self.log.spans.lock().unwrap_or_else(PoisonError::into_inner).extend(posted);
        self.inner.post(sends)
    }

    fn take_arrived(&mut self, receives: &[Incoming]) -> Result<Option<Vec<Buffer>>, TransportError> {
        let received = self.inner.take_arrived(receives)?;
        if let Some(received) = &received {
            let now = self.start.elapsed().as_nanos() as u64;
            let taken = taken(receives, received, (now, now));
            self.log.spans.lock().unwrap_or_else(PoisonError::into_inner).extend(taken);
        }
        Ok(received)
    }

    fn barrier(&mut self) -> Result<(), TransportError> {
        self.inner.barrier()
    }

    fn abort(&self) {
        self.inner.abort();
    }

    fn has_own(&self, operation: Operation) -> bool {
        self.inner.has_own(operation)
    }

    fn suits_own(&self, ranks: &[usize], values: usize) -> bool {
        self.inner.suits_own(ranks, values)
    }

    fn carries_memory(&self) -> bool {
        self.inner.carries_memory()
    }

    /// Not traced: which messages the engine sends for it is its own matter.
    fn own_collective(&mut self, call: &Call<'_>, input: Buffer) -> Result<Buffer, TransportError> {
        self.inner.own_collective(call, input)
    }
}
