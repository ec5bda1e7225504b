//! Ranks as threads of one process. A parcel changes hands without a copy.
//!
//! Sender, receiver and payload (or collectives) name a channel. A send ends when at most `slots` parcels of its
//! channel still wait to be taken: with no slot it ends when its own parcel is taken (rendezvous), with k slots up
//! to k parcels are in flight. So a program that ends with 0 slots needs no buffering from any engine.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::wait::Wait;
use super::{Buffer, CHANNELS, Incoming, Outgoing, Tag, Transport, TransportError};

/// How the engine behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadOptions {
    /// Parcels of one channel that may wait to be taken while their sender goes on.
    pub slots: usize,
    /// How long one exchange or barrier may wait, in time in which the process runs.
    pub patience: Duration,
}

/// Four slots: with none, a sender stands still until its receiver has ended what it is at, which a plan's
/// prediction does not count (a ZB-V of 4 ranks takes a quarter longer).
impl Default for ThreadOptions {
    fn default() -> ThreadOptions {
        ThreadOptions { slots: 4, patience: Duration::from_secs(60) }
    }
}

/// What waits for one rank.
#[derive(Default)]
struct Mailbox {
    /// By sender and channel: what has arrived and is not yet taken.
    inbound: Vec<[VecDeque<(Tag, Buffer)>; CHANNELS]>,
    /// By receiver and channel: how many of this rank's parcels have been taken.
    taken: Vec<[u64; CHANNELS]>,
    aborted: bool,
}

/// One lock and one bell for each rank. No code holds two locks at once, so locks cannot wait for each
/// other.
struct Shared {
    options: ThreadOptions,
    mailboxes: Vec<(Mutex<Mailbox>, Condvar)>,
    barrier: (Mutex<Gate>, Condvar),
}

#[derive(Default)]
struct Gate {
    arrived: usize,
    opened: u64,
    aborted: bool,
}

impl Shared {
    fn open(&self, rank: usize) -> MutexGuard<'_, Mailbox> {
        // A rank that panicked left its mailbox whole: every change to it is a single push, pop or sum.
        self.mailboxes[rank].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, rank: usize) {
        self.mailboxes[rank].1.notify_all();
    }
}

/// One rank's end.
pub struct Threads {
    rank: usize,
    /// By receiver and channel: parcels sent so far.
    sent: Vec<[u64; CHANNELS]>,
    shared: Arc<Shared>,
}

/// Ends of a new world, one for each of `ranks` ranks.
pub fn world(ranks: usize, options: ThreadOptions) -> Vec<Threads> {
    let mailbox = || Mailbox {
        inbound: (0..ranks).map(|_| Default::default()).collect(),
        taken: vec![[0; CHANNELS]; ranks],
        aborted: false,
    };
    let shared = Arc::new(Shared {
        options,
        mailboxes: (0..ranks).map(|_| (Mutex::new(mailbox()), Condvar::new())).collect(),
        barrier: (Mutex::new(Gate::default()), Condvar::new()),
    });
    (0..ranks).map(|rank| Threads { rank, sent: vec![[0; CHANNELS]; ranks], shared: Arc::clone(&shared) }).collect()
}

impl Threads {
    /// Puts a parcel into its receiver's mailbox. Returns how many this rank has now sent on that channel.
    fn deliver(&mut self, Outgoing { peer, tag, buffer }: Outgoing) -> u64 {
        let sent = &mut self.sent[peer][tag.channel()];
        *sent += 1;
        self.shared.open(peer).inbound[self.rank][tag.channel()].push_back((tag, buffer));
        self.shared.ring(peer);
        *sent
    }

    fn check_peer(&self, peer: usize) -> Result<(), TransportError> {
        let world = self.world();
        if peer < world && peer != self.rank {
            return Ok(());
        }
        Err(TransportError::NoSuchPeer { rank: self.rank, peer, world })
    }
}

impl Transport for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.shared.mailboxes.len()
    }

    fn carries_memory(&self) -> bool {
        true
    }

    fn exchange(&mut self, sends: Vec<Outgoing>, receives: &[Incoming]) -> Result<Vec<Buffer>, TransportError> {
        let mut wait = Wait::new(self.shared.options.patience);
        for peer in sends.iter().map(|send| send.peer).chain(receives.iter().map(|receive| receive.peer)) {
            self.check_peer(peer)?;
        }
        // Each pending send: its peer, its tag, and how many parcels that peer must have taken.
        let mut pending: Vec<(usize, Tag, u64)> = Vec::with_capacity(sends.len());
        for send in sends {
            let (peer, tag) = (send.peer, send.tag);
            let sent = self.deliver(send);
            pending.push((peer, tag, sent.saturating_sub(self.shared.options.slots as u64)));
        }
        let mut received: Vec<Option<Buffer>> = receives.iter().map(|_| None).collect();
        // Receives that have just ended, for their senders to hear of.
        let mut taken: Vec<(usize, Tag)> = Vec::with_capacity(receives.len());
        let mut mailbox = self.shared.open(self.rank);
        loop {
            if mailbox.aborted {
                return Err(TransportError::Aborted);
            }
            // Receives of one channel are listed, and so filled, in the order in which it was sent.
            for (slot, receive) in received.iter_mut().zip(receives) {
                if slot.is_some() {
                    continue;
                }
                let arrived = &mut mailbox.inbound[receive.peer][receive.tag.channel()];
                let Some((found, buffer)) = arrived.pop_front() else { continue };
                if found != receive.tag {
                    let (peer, expected) = (receive.peer, receive.tag);
                    return Err(TransportError::WrongParcel { peer, expected, found });
                }
                *slot = Some(buffer);
                taken.push((receive.peer, receive.tag));
            }
            pending.retain(|(peer, tag, must_take)| mailbox.taken[*peer][tag.channel()] < *must_take);
            if !taken.is_empty() {
                drop(mailbox);
                for (peer, tag) in taken.drain(..) {
                    self.shared.open(peer).taken[self.rank][tag.channel()] += 1;
                    self.shared.ring(peer);
                }
                mailbox = self.shared.open(self.rank);
                continue;
            }
            let missing = received.iter().position(Option::is_none);
            let (peer, tag, receiving) = match (missing, pending.first()) {
                (Some(index), _) => (receives[index].peer, receives[index].tag, true),
                (None, Some((peer, tag, _))) => (*peer, *tag, false),
                (None, None) => break,
            };
            let timed_out = |waited| TransportError::TimedOut { peer, tag, receiving, waited };
            let left = wait.next().map_err(timed_out)?;
            let bell = &self.shared.mailboxes[self.rank].1;
            mailbox = bell.wait_timeout(mailbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(received.into_iter().flatten().collect())
    }

    fn post(&mut self, sends: Vec<Outgoing>) -> Result<(), TransportError> {
        for send in sends {
            self.check_peer(send.peer)?;
            self.deliver(send);
        }
        if self.shared.open(self.rank).aborted { Err(TransportError::Aborted) } else { Ok(()) }
    }

    fn take_arrived(&mut self, receives: &[Incoming]) -> Result<Option<Vec<Buffer>>, TransportError> {
        for receive in receives {
            self.check_peer(receive.peer)?;
        }
        let mailbox = self.shared.open(self.rank);
        let is_there = |receive: &Incoming| !mailbox.inbound[receive.peer][receive.tag.channel()].is_empty();
        let all_there = receives.iter().all(is_there);
        drop(mailbox);
        // Only this rank takes from its mailbox, so what was there still is.
        if all_there { self.exchange(Vec::new(), receives).map(Some) } else { Ok(None) }
    }

    fn check(&mut self) -> Result<(), TransportError> {
        if self.shared.open(self.rank).aborted { Err(TransportError::Aborted) } else { Ok(()) }
    }

    fn barrier(&mut self) -> Result<(), TransportError> {
        let mut wait = Wait::new(self.shared.options.patience);
        let (gate, bell) = &self.shared.barrier;
        let mut gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
        gate.arrived += 1;
        if gate.arrived == self.world() {
            gate.arrived = 0;
            gate.opened += 1;
            bell.notify_all();
            return if gate.aborted { Err(TransportError::Aborted) } else { Ok(()) };
        }
        let before = gate.opened;
        loop {
            if gate.aborted {
                return Err(TransportError::Aborted);
            }
            if gate.opened != before {
                return Ok(());
            }
            let left = wait.next().map_err(|waited| TransportError::BarrierTimedOut { waited })?;
            gate = bell.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn abort(&self) {
        for rank in 0..self.world() {
            self.shared.open(rank).aborted = true;
            self.shared.ring(rank);
        }
        let (gate, bell) = &self.shared.barrier;
        gate.lock().unwrap_or_else(PoisonError::into_inner).aborted = true;
        bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use pipeplan_core::program::P2pOp;

    use super::*;

    fn tag(text: &str) -> Tag {
        Tag::of(0, text.parse::<P2pOp>().expect("a message"))
    }

    fn options(slots: usize, patience_ms: u64) -> ThreadOptions {
        ThreadOptions { slots, patience: Duration::from_millis(patience_ms) }
    }

    /// Runs `row` as each rank of a world of `ranks`.
    fn run<R: Send>(ranks: usize, options: ThreadOptions, row: impl Fn(&mut Threads) -> R + Sync) -> Vec<R> {
        thread::scope(|scope| {
            let handles: Vec<_> = world(ranks, options)
                .into_iter()
                .map(|mut end| {
                    scope.spawn({
                        let row = &row;
                        move || row(&mut end)
                    })
                })
                .collect();
            handles.into_iter().map(|handle| handle.join().expect("a rank panicked")).collect()
        })
    }

    #[test]
    fn parcels_arrive_in_order() {
        for slots in [0, 1, 100] {
            let received = run(2, options(slots, 5000), |end| {
                (0..50u32)
                    .map(|microbatch| {
                        let tag = tag(&format!("0SEND_F{microbatch}"));
                        match end.rank() {
                            0 => end.send(1, tag, Buffer::F32(vec![microbatch as f32])).map(|()| Buffer::Nothing),
                            _ => end.receive(0, tag),
                        }
                    })
                    .collect::<Result<Vec<_>, _>>()
                    .expect("all arrive")
            });
            let expected: Vec<Buffer> = (0..50).map(|value| Buffer::F32(vec![value as f32])).collect();
            assert_eq!(received[1], expected, "{slots} slots");
        }
    }

    #[test]
    fn two_sends_against_each_other_need_a_slot_or_a_group() {
        let swap = |slots: usize, grouped: bool| {
            run(2, options(slots, 200), move |end| {
                let (mine, its) = if end.rank() == 0 { ("0SEND_F0", "1SEND_B0") } else { ("1SEND_B0", "0SEND_F0") };
                let (peer, buffer) = (1 - end.rank(), Buffer::Nothing);
                if grouped {
                    let send = Outgoing { peer, tag: tag(mine), buffer };
                    return end.exchange(vec![send], &[Incoming { peer, tag: tag(its) }]).is_ok();
                }
                end.send(peer, tag(mine), buffer).is_ok() && end.receive(peer, tag(its)).is_ok()
            })
        };
        assert_eq!(swap(0, false), [false, false], "rendezvous: each send waits for the other rank's receive");
        assert_eq!(swap(1, false), [true, true]);
        assert_eq!(swap(0, true), [true, true]);
    }

    #[test]
    fn a_missing_peer_ends_in_a_time_out_that_names_it() {
        let errors = run(2, options(0, 100), |end| match end.rank() {
            0 => None,
            _ => end.receive(0, tag("0SEND_F3")).err(),
        });
        match errors[1].as_ref().expect("no parcel came") {
            TransportError::TimedOut { peer: 0, tag: waited_for, receiving: true, .. } => {
                assert_eq!(*waited_for, tag("0SEND_F3"));
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn disagreeing_ends_are_found_at_the_first_parcel() {
        let errors = run(2, options(4, 1000), |end| match end.rank() {
            0 => end.send(1, tag("0SEND_F1"), Buffer::Nothing).err(),
            _ => end.receive(0, tag("0SEND_F0")).err(),
        });
        let (expected, found) = (tag("0SEND_F0"), tag("0SEND_F1"));
        assert_eq!(errors[1], Some(TransportError::WrongParcel { peer: 0, expected, found }));
    }

    #[test]
    fn abort_ends_every_wait_at_once() {
        let started = Instant::now();
        let errors = run(4, options(0, 60_000), |end| match end.rank() {
            0 => {
                thread::sleep(Duration::from_millis(30));
                end.abort();
                None
            }
            1 => end.barrier().err(),
            2 => end.receive(0, tag("0SEND_F0")).err(),
            _ => end.send(0, tag("1SEND_B0"), Buffer::Nothing).err(),
        });
        assert_eq!(
            errors[1..],
            [Some(TransportError::Aborted), Some(TransportError::Aborted), Some(TransportError::Aborted)]
        );
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_barrier_holds_until_all_have_come() {
        let arrived = std::sync::atomic::AtomicUsize::new(0);
        let seen = run(4, options(0, 5000), |end| {
            (1..=20).all(|round| {
                arrived.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                end.barrier().expect("all come");
                let seen = arrived.load(std::sync::atomic::Ordering::SeqCst);
                end.barrier().expect("all come");
                seen == 4 * round
            })
        });
        assert_eq!(seen, [true; 4]);
    }

    #[test]
    fn a_rank_is_no_peer_of_itself() {
        let errors = run(2, options(0, 100), |end| end.send(end.rank(), tag("0SEND_F0"), Buffer::Nothing).err());
        assert_eq!(errors[0], Some(TransportError::NoSuchPeer { rank: 0, peer: 0, world: 2 }));
    }
}
