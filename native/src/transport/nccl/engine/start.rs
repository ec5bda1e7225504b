//! The start of NCCL: ranks that find each other, one communicator for each pair and group, and a trial of each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pipeplan_core::model::Dtype;

use super::{BLOCKS_OF_MESSAGES, Channel, Nccl};
use crate::backend::cuda::card::{Card, Memory};
use crate::transport::collectives::{CollectiveError, Collectives, Group, Operation, Reduction};
use crate::transport::nccl::{
    Communicator, Ending, Library, NcclError, Patience, UniqueId, check_sharing, grouped, sharing_enabled,
};
use crate::transport::{OnCard, Transport, TransportError};

/// Whom ranks talk with over a run, so that all connections are made before it.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    /// Sender and receiver of messages, each once, over all ranks: the same on every rank.
    pub links: Vec<(usize, usize)>,
    /// All groups that this rank sums in.
    pub sums: Vec<Vec<usize>>,
    /// All groups in whose ring this rank passes things on.
    pub rings: Vec<Vec<usize>>,
    /// All groups in which each sends each a piece.
    pub deals: Vec<Vec<usize>>,
    /// Whether this rank also copies to host memory and back.
    pub copies: bool,
}

impl Connections {
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
        "rank {rank} has NCCL {theirs} and rank {here} has {ours}: use one version on all ranks (PIPEPLAN_NCCL \
         names the file)"
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
pub(super) fn others(ranks: &[usize], rank: usize) -> Vec<usize> {
    ranks.iter().copied().filter(|other| *other != rank).collect()
}

/// `links` in rounds, in each of which a rank has one link at most, so that those of a round are joined side by side: a long
/// pipeline takes as many rounds as a short one. The same on every rank.
pub(crate) fn in_rounds(mut links: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
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
        connections: Connections,
        longest: Duration,
    ) -> Result<Nccl<'t>, StartError> {
        let patience = Patience { rank: control.rank(), longest, ending: Ending::default() };
        let (links_of, axes, sums) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut nccl = Nccl { control, library, card, patience, links: links_of, axes, sums, begun: 0 };
        nccl.check_world()?;
        match nccl.connect(connections) {
            Ok(()) => Ok(nccl),
            Err(error) => Err(nccl.better(error)),
        }
    }

    /// Joins the communicators of `ties`, and tries them out.
    fn connect(&mut self, connections: Connections) -> Result<(), StartError> {
        let rank = self.patience.rank;
        let Connections { links, mut sums, mut rings, mut deals, .. } = connections;
        // One order for all: a rank that waits for a peer waits for one that is at the same link or before it.
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
    pub(super) fn join_group(&mut self, ranks: &[usize]) -> Result<(), StartError> {
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
}
