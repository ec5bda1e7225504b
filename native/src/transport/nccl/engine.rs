//! Ranks whose tensors stay on GPUs: parcels and sums over NCCL, all else over the transport that the processes have
//! anyway.
//!
//! That transport carries what the host has to say: ids of communicators, votes, losses, last words. Messages of the
//! program go over one communicator for each direction between two ranks, each on its own queue of the card. What a group of
//! ranks sums, passes round a ring or deals out goes over that group's communicator. NCCL has no tags and does not say how
//! long a parcel is: both ends know from the program, on which they have agreed before, and of what is dealt out from what
//! all have told each other right before.
//!
//! A sum waits on its own queue for what the rank's queue had been asked for when it began, and the rank's queue for the
//! sum where it is joined: marks see to both, and the rank goes on queueing. It looks after the run where it would otherwise
//! run ahead too far, or wait for its own queue, which could wait for others without end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pipeplan_core::model::Dtype;

use super::{
    Communicator, DataType, Ending, LONGEST_END, LOOK, Library, NcclError, PAUSE, Patience, Reduce, UniqueId,
    check_sharing, grouped, sharing_enabled,
};
use crate::backend::cuda::card::{Card, CardError, Mark, Memory};
use crate::transport::collectives::{Call, CollectiveError, Collectives, Group, Operation, Reduction};
use crate::transport::{Buffer, Incoming, OnCard, Outgoing, Tag, Transport, TransportError, What};

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

/// A sum that has begun.
struct Sum {
    /// Behind it, until it is known to have ended.
    mark: Option<Box<dyn Mark>>,
    tag: Tag,
    /// The others of its ranks.
    peers: Vec<usize>,
    /// What it reads and writes, until it is joined: what the rank's queue does with that memory then comes behind it.
    memory: Option<[Arc<Memory>; 2]>,
}

/// So many sums may be under way when the next begins. Between two there are some dozens of launches, and a driver that has
/// a thousand waiting makes whoever asks for more wait, deaf to the run.
const MOST_SUMS: usize = 4;

/// Whom ranks talk with over a run, so that all connections are made before it.
#[derive(Clone, Debug, Default)]
pub struct Ties {
    /// Sender and receiver of messages, each once, over all ranks: the same on every rank.
    pub links: Vec<(usize, usize)>,
    /// All groups that this rank sums in.
    pub sums: Vec<Vec<usize>>,
    /// All groups in whose ring this rank passes things on.
    pub rings: Vec<Vec<usize>>,
    /// All groups in which each sends each a piece.
    pub deals: Vec<Vec<usize>>,
    /// Whether this rank copies to the host's memory and back, beside all that.
    pub copies: bool,
}

impl Ties {
    /// The queues of `rank` on its card: that of its own work, one for each communicator, and one for copies.
    pub fn queues(&self, rank: usize) -> usize {
        let of_rank = |link: &&(usize, usize)| link.0 != link.1 && (link.0 == rank || link.1 == rank);
        let links: BTreeSet<&(usize, usize)> = self.links.iter().filter(of_rank).collect();
        let groups = self.sums.iter().chain(&self.rings).chain(&self.deals).filter(|ranks| ranks.len() > 1);
        1 + links.len() + groups.collect::<BTreeSet<_>>().len() + usize::from(self.copies)
    }
}

/// Why it cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// NCCL or the GPUs.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// The transport between the processes.
    #[error(transparent)]
    Control(#[from] CollectiveError),
    /// What was tried out.
    #[error(transparent)]
    TryingOut(#[from] TransportError),
    /// Ranks found different libraries.
    #[error(
        "rank {rank} has NCCL {theirs} and rank {here} has {ours}: give all the same (PIPEPLAN_NCCL names a file)"
    )]
    Versions {
        /// Another rank.
        rank: usize,
        /// Its version.
        theirs: String,
        /// This rank.
        here: usize,
        /// This one's.
        ours: String,
    },
}

impl StartError {
    /// The error of the transport between the processes, where that is what has failed.
    pub fn transport(&self) -> Option<&TransportError> {
        match self {
            StartError::Nccl(NcclError::Run(error)) | StartError::TryingOut(error) => Some(error),
            StartError::Control(error) => error.transport(),
            StartError::Nccl(_) | StartError::Versions { .. } => None,
        }
    }
}

/// The others of `ranks`.
fn others(ranks: &[usize], rank: usize) -> Vec<usize> {
    ranks.iter().copied().filter(|other| *other != rank).collect()
}

/// `links` in rounds, in each of which a rank has one link at most, so that those of a round are joined side by side: a long
/// pipeline takes as many rounds as a short one. The same on every rank.
pub(super) fn in_rounds(mut links: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    links.sort_unstable();
    links.dedup();
    let mut taken: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut rounds: Vec<(usize, (usize, usize))> = Vec::with_capacity(links.len());
    for (from, to) in links {
        let is_free =
            |round: &usize| [from, to].iter().all(|rank| taken.get(rank).is_none_or(|of| !of.contains(round)));
        let round = (0..).find(is_free).unwrap_or_default();
        [from, to].into_iter().for_each(|rank| _ = taken.entry(rank).or_default().insert(round));
        rounds.push((round, (from, to)));
    }
    rounds.sort_unstable();
    rounds.into_iter().map(|(_, link)| link).collect()
}

impl<'t> Nccl<'t> {
    /// Joins all communicators of `ties` that this rank is part of: those of messages first, then those of groups. A byte
    /// goes over each, so that NCCL has made its connections before the run starts: a rank may come to its first sum while
    /// messages are under way, and making a communicator or a connection could wait for those.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        control: &'t mut dyn Transport,
        library: Arc<Library>,
        card: Arc<dyn Card>,
        ties: Ties,
        longest: Duration,
    ) -> Result<Nccl<'t>, StartError> {
        let patience = Patience { rank: control.rank(), longest, ending: Ending::default() };
        let (links_of, axes, sums) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut nccl = Nccl { control, library, card, patience, links: links_of, axes, sums, begun: 0 };
        nccl.check_world()?;
        match nccl.connect(ties) {
            Ok(()) => Ok(nccl),
            Err(error) => Err(nccl.better(error)),
        }
    }

    /// Joins the communicators of `ties`, and tries them out.
    fn connect(&mut self, ties: Ties) -> Result<(), StartError> {
        let rank = self.patience.rank;
        let Ties { links, mut sums, mut rings, mut deals, .. } = ties;
        // One order for all: whoever waits for a peer waits for one that is at the same link or before it.
        for (from, to) in in_rounds(links) {
            if from != to && (from == rank || to == rank) {
                let channel = self.join(&[from, to], Some(BLOCKS_OF_MESSAGES))?;
                self.links.insert((from, to), channel);
                self.try_out(from, to)?;
            }
        }
        for (groups, try_out) in [
            (&mut sums, Self::try_out_sums as fn(&mut Self, Group) -> _),
            (&mut rings, Self::try_out_ring),
            (&mut deals, Self::try_out_deal),
        ] {
            groups.sort_unstable();
            groups.dedup();
            for ranks in groups.drain(..).filter(|ranks| ranks.len() > 1) {
                let group = Group::new(ranks, rank).map_err(|error| NcclError::Missing(error.to_string()))?;
                self.join_group(group.ranks())?;
                try_out(self, group)?;
            }
        }
        Ok(())
    }

    /// Why it cannot start, where `error` says so first: a peer that has died is a better reason than what NCCL makes of it.
    fn better(&mut self, error: StartError) -> StartError {
        if error.transport().is_some() {
            return error;
        }
        self.give_up();
        match self.heard() {
            Some(lost @ TransportError::PeerLost { .. }) => StartError::TryingOut(lost),
            _ => error,
        }
    }

    /// All ranks must have one version of NCCL, and a GPU each where that version asks for it.
    fn check_world(&mut self) -> Result<(), StartError> {
        let mut everyone = Group::of_all(self.control.rank(), self.control.world());
        let version = self.library.version();
        let mine: Vec<f32> = [version.major, version.minor, version.patch]
            .into_iter()
            .map(|number| number as f32)
            .chain(self.card.identity().map(f32::from))
            .collect();
        let counts = vec![mine.len(); everyone.size()];
        let all = self.control.all_gather(&mut everyone, &mine, &counts)?;
        let mut gpus = Vec::with_capacity(everyone.size());
        for (rank, facts) in all.chunks(mine.len()).enumerate() {
            let (theirs, gpu) = facts.split_at(3);
            if *theirs != mine[..3] {
                let theirs = theirs.iter().map(|number| format!("{number:.0}")).collect::<Vec<_>>().join(".");
                let (here, ours) = (self.patience.rank, version.to_string());
                return Err(StartError::Versions { rank, theirs, here, ours });
            }
            gpus.push(gpu.iter().map(|byte| format!("{:02x}", *byte as u8)).collect::<String>());
        }
        Ok(check_sharing(version, &gpus, sharing_enabled())?)
    }

    /// The communicator of `ranks`, of which this rank is one: the first makes the id and gives it to the others.
    fn join(&mut self, ranks: &[usize], blocks: Option<u8>) -> Result<Channel, StartError> {
        let rank = self.patience.rank;
        let mut group = match Group::new(ranks.to_vec(), rank) {
            Ok(group) => group,
            Err(error) => return Err(NcclError::Missing(error.to_string()).into()),
        };
        let mut bytes = [0f32; 128];
        if group.member() == 0 {
            bytes = self.library.unique_id()?.0.map(f32::from);
        }
        self.control.broadcast(&mut group, 0, &mut bytes)?;
        let id = UniqueId(bytes.map(|byte| byte as u8));
        self.card.choose().map_err(NcclError::from)?;
        let (peers, place) = (others(ranks, rank), (group.member(), group.size()));
        let (patience, mut watch) = (self.patience.clone(), || self.control.check());
        let communicator = Communicator::join(&self.library, id, place, peers, blocks, patience, &mut watch)?;
        let queue = self.card.another().map_err(NcclError::from)?;
        Ok(Channel { communicator, queue, sending: VecDeque::new(), arriving: VecDeque::new() })
    }

    /// The communicator of a group of ranks, where that is not there yet.
    fn join_group(&mut self, ranks: &[usize]) -> Result<(), StartError> {
        if !self.axes.contains_key(ranks) {
            let channel = self.join(ranks, None)?;
            self.axes.insert(ranks.to_vec(), channel);
        }
        Ok(())
    }

    fn try_out(&mut self, from: usize, to: usize) -> Result<(), NcclError> {
        let memory = Memory::zeros(&self.card, 1)?;
        self.card.finish()?;
        let (library, sends) = (Arc::clone(&self.library), from == self.patience.rank);
        let mut watch = || self.control.check();
        let Some(channel) = self.links.get_mut(&(from, to)) else { return Ok(()) };
        let (at, stream) = (memory.at().number(), channel.queue.stream());
        grouped(&library, &mut [&mut channel.communicator], |members| {
            // SAFETY: the byte lives until the queue has passed the mark, below, or the communicator is aborted.
            unsafe {
                match sends {
                    true => members[0].send(at, 1, 1, stream),
                    false => members[0].receive(at, 1, 0, stream),
                }
            }
        })?;
        channel.communicator.settle("the first message to be queued", &mut watch)?;
        let mark = channel.queue.mark()?;
        channel.communicator.until("the first message", &mut watch, || Ok(mark.is_past()?))
    }

    /// A small and a larger sum in `group`, in both formats. NCCL connects at the first use of a way to sum, and the
    /// driver loads the kernel then: between messages that are under way, either could wait for them.
    fn try_out_sums(&mut self, mut group: Group) -> Result<(), StartError> {
        for bytes in [1 << 8, 1 << 20] {
            let memory = Memory::zeros(&self.card, bytes).map_err(NcclError::from)?;
            let memory = OnCard::new(Arc::new(memory), bytes);
            for dtype in [Dtype::F32, Dtype::Bf16] {
                self.on_card(&mut group, Operation::AllReduce(Reduction::Sum), &memory, dtype, (0, &[]))?;
            }
            self.settle_on_card()?;
        }
        Ok(())
    }

    /// A byte goes once round `group`.
    fn try_out_ring(&mut self, mut group: Group) -> Result<(), StartError> {
        let memory = || Memory::zeros(&self.card, 1).map(|memory| OnCard::new(Arc::new(memory), 1));
        let [from, to] = [memory().map_err(NcclError::from)?, memory().map_err(NcclError::from)?];
        let begun = self.begin_from(&mut group, Operation::PassOn, (&from, &to), Dtype::U8)?;
        self.join_on_card(begun)?;
        Ok(self.settle_on_card()?)
    }

    /// A byte from each of `group` to each.
    fn try_out_deal(&mut self, mut group: Group) -> Result<(), StartError> {
        let bytes = vec![1; group.size()];
        let memory = || {
            let memory = Memory::zeros(&self.card, group.size() as u64)?;
            Ok::<_, NcclError>(OnCard::new(Arc::new(memory), group.size() as u64))
        };
        let [from, to] = [memory()?, memory()?];
        let begun = self.deal_from(&mut group, (&from, &bytes), (&to, &bytes))?;
        self.join_on_card(begun)?;
        Ok(self.settle_on_card()?)
    }

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
                    (What::Message(_), [peer]) => {
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

    /// Queues the collective `call` from memory to memory, behind all that this rank's own queue has been asked for: the
    /// mark behind it.
    fn collective(&mut self, call: &Call<'_>, from: &Memory, to: &Memory) -> Result<Box<dyn Mark>, StartError> {
        self.join_group(call.ranks)?;
        if call.operation == Operation::AllToAll {
            // A piece for the rank itself goes nowhere.
            let at = |lengths: &[usize]| lengths[..call.member].iter().sum::<usize>() as u64;
            let (from, to) = (from.after(at(call.sent)), to.after(at(call.counts)));
            self.card.copy(from, to, call.sent[call.member] as u64).map_err(NcclError::from)?;
        }
        let missing = || NcclError::Missing("no communicator has been made".to_string());
        let Channel { communicator, queue, .. } = self.axes.get_mut(call.ranks).ok_or_else(missing)?;
        let mut watch = || self.control.check();
        let ready = self.card.mark().map_err(NcclError::from)?;
        if !queue.wait_for(&*ready).map_err(NcclError::from)? {
            communicator.until("what a collective reads", &mut watch, || Ok(ready.is_past()?))?;
        }
        let (kind, size_of) = match call.dtype {
            Dtype::F64 => (DataType::Float64, 8),
            Dtype::Bf16 => (DataType::Bfloat16, 2),
            Dtype::I32 | Dtype::U8 | Dtype::Fp8 => (DataType::Uint8, 1),
            Dtype::F32 => (DataType::Float32, 4),
        };
        let (from, at, stream, count) = (from.at().number(), to.at().number(), queue.stream(), to.bytes() / size_of);
        let is_even = call.counts.windows(2).all(|pair| pair[0] == pair[1]);
        let first = call.counts.first().map_or(0, |count| *count as u64);
        // In place, this member's piece lies among all.
        let mine = if from == at { at + call.member as u64 * first * size_of } else { at };
        // Where each member's piece starts, and its length.
        let pieces_at = |at: u64, counts: &[usize]| -> Vec<(u64, u64)> {
            let next = |start: &mut u64, count: &usize| {
                *start += *count as u64;
                Some((at + (*start - *count as u64) * size_of, *count as u64))
            };
            counts.iter().scan(0, next).collect()
        };
        let pieces = pieces_at(at, call.counts);
        let of = |reduction: Reduction| match reduction {
            Reduction::Sum => Reduce::Sum,
            Reduction::Avg => Reduce::Avg,
            Reduction::Max => Reduce::Max,
        };
        // SAFETY: the memory is kept until the rank's queue waits for this one, or what is on this one has been aborted; the
        // pieces lie within it, which the caller has checked.
        unsafe {
            match call.operation {
                Operation::AllReduce(reduction) => {
                    communicator.all_reduce((from, at), count, (kind, of(reduction)), stream)
                }
                Operation::Reduce(reduction) => {
                    communicator.reduce(at, count, call.root, (kind, of(reduction)), stream)
                }
                Operation::Broadcast => communicator.broadcast(at, count, call.root, kind, stream),
                Operation::ReduceScatter(reduction) if is_even => {
                    communicator.reduce_scatter((from, mine), first, (kind, of(reduction)), stream)
                }
                Operation::AllGather if is_even => {
                    let own = if from == at { mine } else { from };
                    communicator.all_gather((own, at), first, kind, stream)
                }
                // NCCL's own have pieces of one length: others go as one group of the roots' own calls.
                Operation::ReduceScatter(reduction) => grouped(&self.library, &mut [communicator], |members| {
                    pieces.iter().enumerate().filter(|(_, piece)| piece.1 > 0).try_for_each(|(root, piece)| {
                        members[0].reduce(piece.0, piece.1, root, (kind, of(reduction)), stream)
                    })
                }),
                Operation::AllGather => grouped(&self.library, &mut [communicator], |members| {
                    pieces
                        .iter()
                        .enumerate()
                        .filter(|(_, piece)| piece.1 > 0)
                        .try_for_each(|(root, piece)| members[0].broadcast(piece.0, piece.1, root, kind, stream))
                }),
                // Both at once: each of a ring of ranks would else wait for the next one to take.
                Operation::PassOn => grouped(&self.library, &mut [communicator], |members| {
                    let (member, size) = (call.member, call.ranks.len());
                    members[0].send(from, count * size_of, (member + 1) % size, stream)?;
                    members[0].receive(at, count * size_of, (member + size - 1) % size, stream)
                }),
                // The next member first, so that not all send to the same one at once.
                Operation::AllToAll => grouped(&self.library, &mut [communicator], |members| {
                    let (size, sent) = (call.ranks.len(), pieces_at(from, call.sent));
                    (1..size).map(|distance| (call.member + distance) % size).try_for_each(|other| {
                        let ((from, leave), (to, come)) = (sent[other], pieces[other]);
                        if leave > 0 {
                            members[0].send(from, leave * size_of, other, stream)?;
                        }
                        if come > 0 { members[0].receive(to, come * size_of, other, stream) } else { Ok(()) }
                    })
                }),
                Operation::Gather | Operation::Barrier => {
                    Err(NcclError::NoSuchCollective { operation: call.operation.to_string() })
                }
            }
        }?;
        communicator.settle("a collective to be queued", &mut watch)?;
        Ok(queue.mark().map_err(NcclError::from)?)
    }

    /// Waits until all sums have ended but the last `left`.
    fn settle_sums(&mut self, left: usize) -> Result<(), TransportError> {
        let under_way: Vec<u64> =
            self.sums.iter().filter(|(_, sum)| sum.mark.is_some()).map(|(number, _)| *number).collect();
        for number in under_way.iter().take(under_way.len().saturating_sub(left)) {
            self.settle_sum(*number)?;
        }
        Ok(())
    }

    /// Waits until the sum of this number has ended.
    fn settle_sum(&mut self, number: u64) -> Result<(), TransportError> {
        let Some(sum) = self.sums.get_mut(&number) else { return Ok(()) };
        let (peers, tag) = (sum.peers.clone(), sum.tag);
        if let Some(mark) = sum.mark.take() {
            self.wait(&*mark, &peers, tag)?;
        }
        // One that is still to be joined keeps its memory until then, so that places do not depend on when this looked.
        if self.sums.get(&number).is_some_and(|sum| sum.memory.is_none()) {
            self.sums.remove(&number);
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
        let on_card = |tag: Tag| matches!(tag.what, What::Message(_));
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
                let reason = "no receive has been started for it".to_string();
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
            // A barrier has no tag of its own.
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
        let [Ok(from), Ok(to)] = memory else { return Err(failed("what is summed is on no such card".to_string())) };
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
