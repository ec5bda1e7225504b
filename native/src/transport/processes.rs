//! Ranks as processes: the part of an engine that does not depend on how bytes travel.
//!
//! A [`Link`] carries whole [frames](super::wire) in order; this adds what every engine keeps. A send ends as soon
//! as the link has it. Beyond parcels, processes exchange last words: a rank that ends the run says to all where it
//! was and why, so that the surviving ranks can report all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::collectives::{Call, Collectives, Group, Operation};
use super::wait::Wait;
use super::wire::{Frame, LastWords};
use super::{Buffer, CHANNELS, Incoming, Outgoing, Tag, Transport, TransportError};

/// How frames get from one process to another.
pub trait Link: Send {
    /// This rank.
    fn rank(&self) -> usize;

    /// The world size.
    fn world(&self) -> usize;

    /// Hands over a frame for a peer and returns at once; frames for one peer arrive in order.
    fn push(&mut self, peer: usize, frame: Vec<u8>);

    /// What has happened since, waiting for it at most so long.
    fn pull(&mut self, wait: Duration) -> Option<Event>;

    /// Returns when all that was handed over is on its way, or `wait` is over.
    fn flush(&mut self, wait: Duration);

    /// Whether the launcher ends all processes when one has died, because the link cannot see that.
    fn launcher_ends_all(&self) -> bool {
        false
    }

    /// Whether the launcher has asked this process to end, and will soon kill it.
    fn is_ending(&self) -> bool {
        false
    }

    /// Whether the link has its own version of a collective, as [`Transport::has_own`].
    fn has_own(&self, _operation: Operation) -> bool {
        false
    }

    /// As [`Transport::suits_own`].
    fn suits_own(&self, _ranks: &[usize], _values: usize) -> bool {
        true
    }

    /// Starts the link's own version of a collective and returns at once. One at a time.
    fn start_own(&mut self, _call: &Call<'_>, _input: Buffer) {}

    /// What the one that was started gives, once it has ended.
    fn finish_own(&mut self) -> Option<Buffer> {
        None
    }

    /// The run has failed: when dropped, wait for nobody.
    fn abandon(&mut self) {}

    /// The name of the engine, for the trace.
    fn name(&self) -> &'static str;
}

/// An event of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame from a peer.
    Frame(usize, Vec<u8>),
    /// The process of a peer, or the connection to it, is gone; the reason in words.
    Lost(usize, String),
    /// The launcher ends this process.
    Ending,
}

/// One rank's end.
pub struct Processes<L> {
    rank: usize,
    world: usize,
    patience: Duration,
    everyone: Group,
    inner: Arc<Mutex<Inner<L>>>,
}

struct Inner<L> {
    link: L,
    /// By sender and channel: what has arrived and is not yet taken.
    inbound: Vec<[VecDeque<(Tag, Buffer)>; CHANNELS]>,
    /// Peers that ended without an error.
    left: Vec<bool>,
    lost: BTreeMap<usize, String>,
    words: BTreeMap<usize, LastWords>,
    ending: bool,
    aborted: bool,
}

/// The longest time of one poll of the link, so that time-outs are noticed.
const LOOK: Duration = Duration::from_millis(100);

/// Between two looks while nothing happens, after `waited` of it: gives way to others at first, since most waits are short;
/// then leaves them the core.
pub(super) fn pause(waited: Duration) {
    const SHORT: Duration = Duration::from_micros(100);
    const PAUSE: Duration = Duration::from_micros(20);
    if waited < SHORT { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
}

/// The longest time that last words and goodbyes take to leave.
const FAREWELL: Duration = Duration::from_millis(500);

/// The same, and how long to listen to others, once the launcher is ending this process: Open MPI kills within
/// a second of its signal.
const HURRY: Duration = Duration::from_millis(200);

impl<L: Link> Inner<L> {
    /// Takes the events since the last call.
    fn look(&mut self, wait: Duration) {
        let mut wait = wait;
        while let Some(event) = self.link.pull(wait) {
            wait = Duration::ZERO;
            match event {
                Event::Frame(peer, bytes) => match Frame::of_bytes(&bytes) {
                    Ok(Frame::Parcel(tag, buffer)) => {
                        if let Some(channels) = self.inbound.get_mut(peer) {
                            channels[tag.channel()].push_back((tag, buffer));
                        }
                    }
                    Ok(Frame::Words(words)) => {
                        self.words.entry(peer).or_insert(words);
                    }
                    Ok(Frame::Goodbye) => {
                        if let Some(left) = self.left.get_mut(peer) {
                            *left = true;
                        }
                    }
                    Err(no_frame) => {
                        self.lost.entry(peer).or_insert_with(|| no_frame.to_string());
                    }
                },
                Event::Lost(peer, reason) => {
                    let expected = self.left.get(peer).is_none_or(|left| *left) || self.words.contains_key(&peer);
                    if !expected {
                        self.lost.entry(peer).or_insert(reason);
                    }
                }
                Event::Ending => {
                    self.ending = true;
                    return;
                }
            }
        }
    }

    /// Why the run cannot continue, if it cannot.
    fn trouble(&self) -> Result<(), TransportError> {
        if let Some((peer, reason)) = self.lost.first_key_value() {
            return Err(TransportError::PeerLost { peer: *peer, reason: reason.clone() });
        }
        if self.aborted || !self.words.is_empty() {
            return Err(TransportError::Aborted);
        }
        if self.ending { Err(TransportError::Ending) } else { Ok(()) }
    }

    fn say(&mut self, frame: &Frame) {
        let bytes = frame.to_bytes();
        let rank = self.link.rank();
        for peer in 0..self.link.world() {
            if peer != rank && !self.lost.contains_key(&peer) {
                self.link.push(peer, bytes.clone());
            }
        }
        self.link.flush(if self.link.is_ending() { HURRY } else { FAREWELL });
    }
}

impl<L: Link> Processes<L> {
    /// An end over `link`. No wait is longer than `patience`.
    pub fn new(link: L, patience: Duration) -> Processes<L> {
        let (rank, world) = (link.rank(), link.world());
        let inner = Inner {
            link,
            inbound: (0..world).map(|_| Default::default()).collect(),
            left: vec![false; world],
            lost: BTreeMap::new(),
            words: BTreeMap::new(),
            ending: false,
            aborted: false,
        };
        let everyone = Group::of_all(rank, world);
        Processes { rank, world, patience, everyone, inner: Arc::new(Mutex::new(inner)) }
    }

    /// An end over the same link for what follows: all ranks have to begin with it at the same place.
    pub fn again(&self) -> Processes<L> {
        let (rank, world, patience) = (self.rank, self.world, self.patience);
        let everyone = Group::of_all(rank, world);
        Processes { rank, world, patience, everyone, inner: Arc::clone(&self.inner) }
    }

    /// What the end of the run needs while the transport is in use.
    pub fn control(&self) -> Control<L> {
        Control { inner: Arc::clone(&self.inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner<L>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_peer(&self, peer: usize) -> Result<(), TransportError> {
        if peer < self.world && peer != self.rank {
            return Ok(());
        }
        Err(TransportError::NoSuchPeer { rank: self.rank, peer, world: self.world })
    }
}

/// The end of a run over processes.
pub struct Control<L> {
    inner: Arc<Mutex<Inner<L>>>,
}

impl<L: Link> Control<L> {
    fn inner(&self) -> MutexGuard<'_, Inner<L>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the engine.
    pub fn name(&self) -> &'static str {
        self.inner().link.name()
    }

    /// Whether the launcher ends this process.
    pub fn is_ending(&self) -> bool {
        self.inner().link.is_ending()
    }

    /// Whether the launcher ends all processes when one dies.
    pub fn launcher_ends_all(&self) -> bool {
        self.inner().link.launcher_ends_all()
    }

    /// Sends all other ranks the reason why this rank ends the run.
    pub fn say(&self, words: LastWords) {
        let mut inner = self.inner();
        inner.look(Duration::ZERO);
        if !inner.aborted {
            inner.aborted = true;
            inner.say(&Frame::Words(words));
            inner.link.abandon();
        }
    }

    /// Sends all other ranks that this rank ended without an error.
    pub fn leave(&self) {
        self.inner().say(&Frame::Goodbye);
    }

    /// Leaves the launcher that is ending this process to do so, for a second: Open MPI kills all as soon as the first has
    /// ended, and another one may still have a report to give.
    pub fn let_others_report(&self) {
        if self.inner().link.is_ending() {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Waits for the last words of all other ranks, up to a limit: returns those that came, and the ranks that are gone.
    pub fn listen(&self, grace: Duration) -> (BTreeMap<usize, LastWords>, BTreeMap<usize, String>) {
        let started = Instant::now();
        let mut inner = self.inner();
        let (rank, world) = (inner.link.rank(), inner.link.world());
        loop {
            let heard = |peer: &usize| {
                *peer == rank || inner.words.contains_key(peer) || inner.lost.contains_key(peer) || inner.left[*peer]
            };
            let grace = if inner.link.is_ending() { grace.min(HURRY) } else { grace };
            let left = grace.saturating_sub(started.elapsed());
            if left.is_zero() || (0..world).all(|peer| heard(&peer)) {
                return (inner.words.clone(), inner.lost.clone());
            }
            inner.look(left.min(LOOK));
        }
    }
}

impl<L: Link> Transport for Processes<L> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn exchange(&mut self, sends: Vec<Outgoing>, receives: &[Incoming]) -> Result<Vec<Buffer>, TransportError> {
        let mut wait = Wait::new(self.patience);
        for peer in sends.iter().map(|send| send.peer).chain(receives.iter().map(|receive| receive.peer)) {
            self.check_peer(peer)?;
        }
        let mut inner = self.inner();
        inner.trouble()?;
        for Outgoing { peer, tag, buffer } in sends {
            inner.link.push(peer, Frame::Parcel(tag, buffer).to_bytes());
        }
        // What has come in the meantime, and whatever the link must do to go on.
        inner.look(Duration::ZERO);
        let mut received: Vec<Option<Buffer>> = receives.iter().map(|_| None).collect();
        loop {
            // Receives of one channel are listed, and so filled, in the order in which it was sent.
            for (slot, receive) in received.iter_mut().zip(receives).filter(|(slot, _)| slot.is_none()) {
                let arrived = &mut inner.inbound[receive.peer][receive.tag.channel()];
                let Some((found, buffer)) = arrived.pop_front() else { continue };
                if found != receive.tag {
                    let (peer, expected) = (receive.peer, receive.tag);
                    return Err(TransportError::WrongParcel { peer, expected, found });
                }
                *slot = Some(buffer);
            }
            // What has all arrived is given, whatever has happened to its senders since.
            let Some(missing) = received.iter().position(Option::is_none) else { break };
            inner.trouble()?;
            let Incoming { peer, tag } = receives[missing];
            if inner.left[peer] {
                let reason = format!("it ended without sending {tag}");
                return Err(TransportError::PeerLost { peer, reason });
            }
            let timed_out = |waited| TransportError::TimedOut { peer, tag, receiving: true, waited };
            let left = wait.next().map_err(timed_out)?;
            inner.look(left.min(LOOK));
        }
        Ok(received.into_iter().flatten().collect())
    }

    fn post(&mut self, sends: Vec<Outgoing>) -> Result<(), TransportError> {
        self.exchange(sends, &[]).map(|_| ())
    }

    fn take_arrived(&mut self, receives: &[Incoming]) -> Result<Option<Vec<Buffer>>, TransportError> {
        for receive in receives {
            self.check_peer(receive.peer)?;
        }
        let mut inner = self.inner();
        inner.look(Duration::ZERO);
        let is_there = |receive: &Incoming| !inner.inbound[receive.peer][receive.tag.channel()].is_empty();
        let all_there = receives.iter().all(is_there);
        drop(inner);
        if all_there { self.exchange(Vec::new(), receives).map(Some) } else { Ok(None) }
    }

    fn check(&mut self) -> Result<(), TransportError> {
        let mut inner = self.inner();
        inner.look(Duration::ZERO);
        inner.trouble()
    }

    fn barrier(&mut self) -> Result<(), TransportError> {
        let mut everyone = self.everyone.clone();
        let result = self.group_barrier(&mut everyone);
        self.everyone = everyone;
        // A barrier sends no values, so that only the transport can fail.
        result.map_err(|error| error.transport().cloned().unwrap_or(TransportError::Aborted))
    }

    fn abort(&self) {
        self.control().say(LastWords::default());
    }

    fn has_own(&self, operation: Operation) -> bool {
        self.inner().link.has_own(operation)
    }

    fn suits_own(&self, ranks: &[usize], values: usize) -> bool {
        self.inner().link.suits_own(ranks, values)
    }

    fn own_collective(&mut self, call: &Call<'_>, input: Buffer) -> Result<Buffer, TransportError> {
        let mut wait = Wait::new(self.patience);
        let mut inner = self.inner();
        inner.trouble()?;
        inner.link.start_own(call, input);
        loop {
            if let Some(result) = inner.link.finish_own() {
                return Ok(result);
            }
            inner.trouble()?;
            wait.next().map_err(|waited| TransportError::BarrierTimedOut { waited })?;
            // Last words of others end this wait, too.
            inner.look(Duration::ZERO);
            pause(wait.waited());
        }
    }
}

#[cfg(test)]
mod tests;
