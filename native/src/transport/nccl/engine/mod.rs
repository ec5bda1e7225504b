//! The transport of ranks whose tensors stay on GPUs: parcels and collectives go over NCCL, everything else over the
//! transport of
//! the processes.
//!
//! - In: parcels and collectives of one rank.
//! - Out: operations on communicators, each with its own queue of the card.
//! - Knows: the [`Library`], a card, and the other transport, which carries ids of communicators, votes, losses and errors.
//!
//! Transfers of the program use one communicator per direction between two ranks. All-reduces, rings and all-to-alls
//! of a group
//! use the communicator of that group. NCCL has no tags and no lengths: both ends know them from the program, which they have
//! compared before, and in an all-to-all from the counts that they exchange right before it.
//!
//! A collective waits on its own queue for the work that the rank's queue had before it, and the rank's queue waits for the
//! collective where it is joined. Marks do both, and the rank goes on to queue work. The rank watches the run before
//! it gets too
//! far ahead, and before it waits for its own queue, because that queue can wait for other ranks for ever.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::collective::{MOST_SUMS, Sum};
use self::start::others;
use super::{Communicator, LONGEST_END, LOOK, Library, NcclError, PAUSE, Patience};
use crate::backend::cuda::card::{Card, CardError, Mark, Memory};
use crate::transport::collectives::{Call, Operation};
use crate::transport::{Buffer, Incoming, OnCard, Outgoing, Tag, Transport, TransportError, What};

mod collective;
mod start;

#[cfg(test)]
pub(super) use self::start::in_rounds;
pub use self::start::{Connections, StartError};

/// How long others may take to say why a transfer failed on this rank: a peer that has died is a better reason than
/// what NCCL makes of it.
const HEARING: Duration = Duration::from_millis(500);

/// Waits shorter than this cost no sleep.
const SPIN: Duration = Duration::from_micros(200);

/// A message's blocks wait for its sender, on multiprocessors that nobody else has meanwhile, and by itself NCCL takes some
/// dozen where cards are well connected. `NCCL_MAX_CTAS` says otherwise.
const BLOCKS_OF_MESSAGES: u8 = 8;

/// A communicator and the queue that its work is put on.
struct Channel {
    communicator: Communicator,
    queue: Arc<dyn Card>,
    /// Parcels that NCCL may still read, with the place behind which it does not.
    sending: VecDeque<(Box<dyn Mark>, Arc<Memory>)>,
    /// Parcels that are arriving, in the order in which they do.
    arriving: VecDeque<(Tag, Box<dyn Mark>, Arc<Memory>)>,
}

impl Channel {
    /// Lets go of what NCCL has read.
    fn reap(&mut self) -> Result<(), CardError> {
        while let Some((mark, _)) = self.sending.front() {
            if !mark.is_past()? {
                break;
            }
            self.sending.pop_front();
        }
        Ok(())
    }
}

/// One rank's end.
pub struct Nccl<'t> {
    control: &'t mut dyn Transport,
    library: Arc<Library>,
    /// The queue of the rank's own work: what arrives is of its memory.
    card: Arc<dyn Card>,
    patience: Patience,
    /// By sender and receiver.
    links: BTreeMap<(usize, usize), Channel>,
    /// By the ranks of the group.
    axes: BTreeMap<Vec<usize>, Channel>,
    /// By number: sums that have begun, until they have been joined and are known to have ended.
    sums: BTreeMap<u64, Sum>,
    /// How many have begun.
    begun: u64,
}

impl<'t> Nccl<'t> {
    /// Says that no more is to come, and gives all communicators back. Every rank calls it at the same point.
    ///
    /// # Errors
    /// [`NcclError`].
    pub fn finish(mut self) -> Result<(), NcclError> {
        let mut watch = || self.control.check();
        for (_, channel) in std::mem::take(&mut self.links) {
            channel.communicator.finish(&mut watch)?;
        }
        for (_, channel) in std::mem::take(&mut self.axes) {
            channel.communicator.finish(&mut watch)?;
        }
        Ok(())
    }

    /// Ends all that is queued on the card, on this rank, and does not wait for it.
    fn give_up(&mut self) {
        self.patience.ending.raise();
        for channel in self.links.values_mut().chain(self.axes.values_mut()) {
            channel.communicator.abort();
        }
    }

    /// Why the run cannot go on, where the other transport says so within [`HEARING`].
    fn heard(&mut self) -> Option<TransportError> {
        let begun = Instant::now();
        while begun.elapsed() < HEARING {
            if let Err(better) = self.control.check() {
                return Some(better);
            }
            std::thread::sleep(LOOK);
        }
        None
    }

    /// What to tell of `error` during `tag` with `peers`: where another rank has ended the run or is gone, that.
    fn explained(&mut self, error: NcclError, peers: &[usize], tag: Tag) -> TransportError {
        match error {
            NcclError::Card(error) => self.broken(&error),
            NcclError::Run(error) => {
                self.give_up();
                error
            }
            error => {
                self.give_up();
                match (self.heard(), error) {
                    (Some(better), _) => better,
                    (None, NcclError::Aborted) => TransportError::Aborted,
                    (None, error) => {
                        TransportError::Library { peers: peers.to_vec(), tag, reason: error.to_string() }
                    }
                }
            }
        }
    }

    /// What to tell where the card has failed, whatever it was at: nobody else knows better.
    fn broken(&mut self, error: &CardError) -> TransportError {
        self.give_up();
        TransportError::Device { reason: error.to_string() }
    }

    /// Lets go of what has been sent, so that there is room for what is made next.
    fn reap(&mut self) -> Result<(), TransportError> {
        let reaped = self.links.values_mut().try_for_each(Channel::reap);
        reaped.map_err(|error| self.broken(&error))
    }

    /// Waits until `mark` is past, and looks after the run meanwhile.
    fn wait(&mut self, mark: &dyn Mark, peers: &[usize], tag: Tag) -> Result<(), TransportError> {
        let begun = Instant::now();
        let mut looked = begun;
        loop {
            match mark.is_past() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(self.broken(&error)),
            }
            let waited = begun.elapsed();
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look(peers, tag)?;
            }
            if waited > self.patience.longest {
                self.give_up();
                return Err(match (tag.what, peers) {
                    (What::P2pOp(_), [peer]) => {
                        TransportError::TimedOut { peer: *peer, tag, receiving: true, waited }
                    }
                    _ => TransportError::GroupTimedOut { peers: peers.to_vec(), tag, waited },
                });
            }
            if waited > SPIN {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Whether the run goes on: the other transport, and every communicator's asynchronous error.
    fn look(&mut self, peers: &[usize], tag: Tag) -> Result<(), TransportError> {
        if let Err(error) = self.control.check() {
            self.give_up();
            return Err(error);
        }
        let mut failed = None;
        for ((from, to), channel) in &mut self.links {
            if let Err(error) = channel.communicator.check() {
                let other = if *from == self.patience.rank { *to } else { *from };
                failed.get_or_insert((error, vec![other]));
            }
        }
        for channel in self.axes.values_mut() {
            if let Err(error) = channel.communicator.check() {
                failed.get_or_insert((error, peers.to_vec()));
            }
        }
        match failed {
            Some((error, peers)) => Err(self.explained(error, &peers, tag)),
            None => Ok(()),
        }
    }

    fn memory_of(buffer: Buffer) -> Result<Arc<Memory>, Buffer> {
        match &buffer {
            Buffer::OnCard(parcel) => parcel.content().downcast::<Memory>().map_err(|_| buffer),
            _ => Err(buffer),
        }
    }

    /// Puts sends and receives on their queues, as one group.
    fn queue(
        &mut self,
        sends: &[(usize, Tag, Arc<Memory>)],
        receives: &[(Incoming, u64)],
    ) -> Result<(), (NcclError, usize, Tag)> {
        let rank = self.patience.rank;
        let Some((peer, tag)) = sends
            .iter()
            .map(|(peer, tag, _)| (*peer, *tag))
            .chain(receives.iter().map(|(receive, _)| (receive.peer, receive.tag)))
            .next()
        else {
            return Ok(());
        };
        let at = |error: NcclError| (error, peer, tag);
        let mut room = Vec::with_capacity(receives.len());
        for (receive, bytes) in receives {
            let memory = Memory::new(&self.card, *bytes).map_err(|error| at(error.into()))?;
            room.push((receive.peer, receive.tag, Arc::new(memory)));
        }
        // What is sent has been made, and what is received has its room, before another queue touches either.
        self.card.finish().map_err(|error| at(error.into()))?;
        // SAFETY: takes nothing; the end below is called whatever happens between.
        let begun = unsafe { (self.library.functions().group_start)() };
        self.library.check("ncclGroupStart", begun, std::ptr::null_mut()).map_err(at)?;
        let mut queued = Ok(());
        let both = sends.iter().map(|send| (send, true)).chain(room.iter().map(|receive| (receive, false)));
        for ((peer, tag, memory), is_send) in both {
            let key = if is_send { (rank, *peer) } else { (*peer, rank) };
            let (from, bytes) = (memory.at().number(), memory.bytes());
            let call = match self.links.get_mut(&key) {
                None => Err(NcclError::NoLink { from: key.0, to: key.1 }),
                // SAFETY: the memory is kept with a mark behind the transfer, and freed behind it.
                Some(Channel { communicator, queue, .. }) => unsafe {
                    let stream = queue.stream();
                    match is_send {
                        true => communicator.send(from, bytes, 1, stream),
                        false => communicator.receive(from, bytes, 0, stream),
                    }
                },
            };
            if let Err(error) = call {
                queued = Err((error, *peer, *tag));
                break;
            }
        }
        // SAFETY: a group was begun.
        let ended = unsafe { (self.library.functions().group_end)() };
        let ended = self.library.check("ncclGroupEnd", ended, std::ptr::null_mut()).map_err(at);
        queued.and(ended)?;
        // Each communicator has its work on the queue before anything else is asked of it; then the marks go behind it.
        let mut watch = || self.control.check();
        for (peer, tag, memory) in sends {
            let Some(channel) = self.links.get_mut(&(rank, *peer)) else { continue };
            let all = channel.communicator.settle("a send to be queued", &mut watch).and_then(|()| {
                channel.sending.push_back((channel.queue.mark()?, Arc::clone(memory)));
                Ok(channel.reap()?)
            });
            all.map_err(|error| (error, *peer, *tag))?;
        }
        for (peer, tag, memory) in room {
            let Some(channel) = self.links.get_mut(&(peer, rank)) else { continue };
            let all = channel.communicator.settle("a receive to be queued", &mut watch).and_then(|()| {
                channel.arriving.push_back((tag, channel.queue.mark()?, memory));
                Ok(())
            });
            all.map_err(|error| (error, peer, tag))?;
        }
        Ok(())
    }
}

impl Transport for Nccl<'_> {
    fn rank(&self) -> usize {
        self.control.rank()
    }

    fn world(&self) -> usize {
        self.control.world()
    }

    fn exchange(&mut self, sends: Vec<Outgoing>, receives: &[Incoming]) -> Result<Vec<Buffer>, TransportError> {
        let on_card = |tag: Tag| matches!(tag.what, What::P2pOp(_));
        let (queued, carried): (Vec<Outgoing>, Vec<Outgoing>) =
            sends.into_iter().partition(|send| matches!(send.buffer, Buffer::OnCard(_)));
        self.begin(queued, &[])?;
        let by_control: Vec<Incoming> = receives.iter().filter(|receive| !on_card(receive.tag)).copied().collect();
        let mut carried = self.control.exchange(carried, &by_control)?.into_iter();
        let mut received = Vec::with_capacity(receives.len());
        for Incoming { peer, tag } in receives.iter().copied() {
            if !on_card(tag) {
                received.extend(carried.next());
                continue;
            }
            let arriving = self.links.get_mut(&(peer, self.patience.rank)).and_then(|link| link.arriving.pop_front());
            let Some((found, mark, memory)) = arriving else {
                let reason = "no receive was started for it".to_string();
                return Err(TransportError::Library { peers: vec![peer], tag, reason });
            };
            if found != tag {
                return Err(TransportError::WrongParcel { peer, expected: tag, found });
            }
            let waited = self.wait(&*mark, &[peer], tag);
            if waited.is_err() {
                // The card may still write there: what is aborted ends behind the mark.
                let begun = Instant::now();
                while !mark.is_past().unwrap_or(true) && begun.elapsed() < HEARING {
                    std::thread::sleep(PAUSE);
                }
            }
            waited?;
            let bytes = memory.bytes();
            received.push(Buffer::OnCard(OnCard::new(memory, bytes)));
        }
        self.reap()?;
        Ok(received)
    }

    fn post(&mut self, sends: Vec<Outgoing>) -> Result<(), TransportError> {
        self.begin(sends, &[])
    }

    fn begin(&mut self, sends: Vec<Outgoing>, receives: &[(Incoming, u64)]) -> Result<(), TransportError> {
        let mut queued = Vec::with_capacity(sends.len());
        let mut carried = Vec::new();
        for Outgoing { peer, tag, buffer } in sends {
            match Self::memory_of(buffer) {
                Ok(memory) => queued.push((peer, tag, memory)),
                Err(buffer) => carried.push(Outgoing { peer, tag, buffer }),
            }
        }
        if !carried.is_empty() {
            self.control.post(carried)?;
        }
        self.queue(&queued, receives).map_err(|(error, peer, tag)| self.explained(error, &[peer], tag))
    }

    fn begins_receives(&self) -> bool {
        true
    }

    /// Behind all that this rank has queued.
    fn barrier(&mut self) -> Result<(), TransportError> {
        let last: Vec<_> = self.links.values_mut().flat_map(|channel| channel.sending.drain(..)).collect();
        for (mark, _memory) in last {
            // A barrier has no tag.
            let begun = Instant::now();
            loop {
                self.control.check().inspect_err(|_| self.patience.ending.raise())?;
                match mark.is_past() {
                    Ok(true) => break,
                    Ok(false) if begun.elapsed() <= self.patience.longest => std::thread::sleep(PAUSE),
                    Ok(false) => {
                        self.give_up();
                        return Err(TransportError::BarrierTimedOut { waited: begun.elapsed() });
                    }
                    Err(error) => return Err(self.broken(&error)),
                }
            }
        }
        self.control.barrier()
    }

    fn abort(&self) {
        self.patience.ending.raise();
        self.control.abort();
    }

    fn check(&mut self) -> Result<(), TransportError> {
        self.control.check()
    }

    fn has_own(&self, operation: Operation) -> bool {
        self.control.has_own(operation)
    }

    fn has_own_on_card(&self) -> bool {
        true
    }

    fn own_collective(&mut self, call: &Call<'_>, input: Buffer) -> Result<Buffer, TransportError> {
        self.reap()?;
        self.control.own_collective(call, input)
    }

    fn begin_on_card(&mut self, call: &Call<'_>, from: &OnCard, to: &OnCard) -> Result<u64, TransportError> {
        self.settle_sums(MOST_SUMS - 1)?;
        let peers = others(call.ranks, self.patience.rank);
        let failed = |reason: String| TransportError::Library { peers: peers.clone(), tag: call.tag, reason };
        let memory = [from, to].map(|one| one.content().downcast::<Memory>());
        let [Ok(from), Ok(to)] = memory else {
            return Err(failed("the tensor to reduce is not on this GPU".to_string()));
        };
        match self.collective(call, &from, &to) {
            Ok(mark) => {
                self.begun += 1;
                let sum = Sum { mark: Some(mark), tag: call.tag, peers, memory: Some([from, to]) };
                self.sums.insert(self.begun, sum);
                Ok(self.begun)
            }
            Err(StartError::Nccl(error)) => Err(self.explained(error, &peers, call.tag)),
            Err(StartError::Control(error)) => {
                self.give_up();
                Err(error.transport().cloned().unwrap_or(TransportError::Aborted))
            }
            Err(error) => {
                self.give_up();
                Err(failed(error.to_string()))
            }
        }
    }

    fn join_on_card(&mut self, begun: u64) -> Result<(), TransportError> {
        let Some(sum) = self.sums.get(&begun) else { return Ok(()) };
        let waits = match &sum.mark {
            Some(mark) => self.card.wait_for(&**mark),
            None => Ok(true),
        };
        match waits {
            Ok(true) => {}
            Ok(false) => self.settle_sum(begun)?,
            Err(error) => return Err(self.broken(&error)),
        }
        if let Some(sum) = self.sums.get_mut(&begun) {
            // What gets that memory next comes behind the sum.
            sum.memory = None;
            if sum.mark.is_none() {
                self.sums.remove(&begun);
            }
        }
        Ok(())
    }

    fn settle_on_card(&mut self) -> Result<(), TransportError> {
        self.settle_sums(0)
    }
}

impl Drop for Nccl<'_> {
    /// What was not finished has failed: the card must be done with memory before that is given back.
    fn drop(&mut self) {
        self.give_up();
        let deadline = Instant::now() + LONGEST_END;
        for channel in self.links.values_mut().chain(self.axes.values_mut()) {
            channel.communicator.await_end(deadline);
        }
    }
}
