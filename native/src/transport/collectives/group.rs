//! Who acts together, and what they do.

use std::fmt;

use crate::transport::{Tag, Transport, What};

/// How values of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their sum, divided by their number at the end.
    Avg,
    /// The greatest; a NaN anywhere gives a NaN, so that it cannot hide.
    Max,
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduction::Sum => "sum",
            Reduction::Avg => "avg",
            Reduction::Max => "max",
        })
    }
}

/// What a group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Every member gets the reduced values.
    AllReduce(Reduction),
    /// The root gets the reduced values.
    Reduce(Reduction),
    /// Each member gets its piece of the reduced values.
    ReduceScatter(Reduction),
    /// Every member gets the pieces of all.
    AllGather,
    /// Every member gets the values of the root.
    Broadcast,
    /// The root gets what every member has, of whatever length.
    Gather,
    /// Each member sends each member a piece.
    AllToAll,
    /// No member goes on before all have come.
    Barrier,
    /// Each member gets what the one before it has; the first that of the last.
    PassOn,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::AllReduce(reduction) => write!(f, "all-reduce ({reduction})"),
            Operation::Reduce(reduction) => write!(f, "reduce ({reduction})"),
            Operation::ReduceScatter(reduction) => write!(f, "reduce-scatter ({reduction})"),
            Operation::AllGather => f.write_str("all-gather"),
            Operation::Broadcast => f.write_str("broadcast"),
            Operation::Gather => f.write_str("gather"),
            Operation::AllToAll => f.write_str("all-to-all"),
            Operation::Barrier => f.write_str("barrier"),
            Operation::PassOn => f.write_str("pass in a ring"),
        }
    }
}

/// One member's part in one collective: what a parcel says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What the group does.
    pub operation: Operation,
    /// The position of this collective among those of the group in this training step.
    pub call: u32,
    /// Which group: a digest of its ranks.
    pub group: u32,
    /// When it is sent.
    pub channel: Channel,
}

/// When a part of a collective is sent and taken. Parcels of a channel arrive in the order in which they were sent,
/// and channels differ in that order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channel {
    /// When the collective is called; taken before the next one is.
    #[default]
    InOrder,
    /// When the parts of others have come, from which it follows: that differs from run to run.
    Follows,
    /// When the collective is called; taken while others have been called and ended on the first channel.
    Overlapped,
}

impl Channel {
    /// All of them, by number.
    pub(crate) const ALL: [Channel; 3] = [Channel::InOrder, Channel::Follows, Channel::Overlapped];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its part of {} {} in group {:08x}", self.operation, self.call, self.group)
    }
}

/// The ranks that act together, in the order in which their values are summed. Each member holds its own
/// copy, with the same ranks in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    ranks: Vec<usize>,
    member: usize,
    digest: u32,
    step: u32,
    calls: u32,
}

/// Why ranks make no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// A rank is named twice.
    #[error("rank {rank} is twice in the group {ranks:?}: name each rank once")]
    Twice {
        /// The rank.
        rank: usize,
        /// The ranks given.
        ranks: Vec<usize>,
    },
    /// This rank is not in it.
    #[error("rank {rank} is not in the group {ranks:?}: only members can create it")]
    NotAMember {
        /// This rank.
        rank: usize,
        /// The ranks given.
        ranks: Vec<usize>,
    },
}

impl Group {
    /// The group of `ranks` as `rank` holds it.
    ///
    /// # Errors
    /// [`GroupError`] where a rank is named twice, or `rank` is not among them.
    pub fn new(ranks: Vec<usize>, rank: usize) -> Result<Group, GroupError> {
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(GroupError::Twice { rank: pair[0], ranks });
        }
        let Some(member) = ranks.iter().position(|other| *other == rank) else {
            return Err(GroupError::NotAMember { rank, ranks });
        };
        let digest = digest(&ranks);
        Ok(Group { ranks, member, digest, step: 0, calls: 0 })
    }

    /// The group of all ranks of `transport`.
    pub fn world<T: Transport + ?Sized>(transport: &T) -> Group {
        Group::of_all(transport.rank(), transport.world())
    }

    /// The group of ranks `0..world` as `rank`, one of them, holds it.
    pub(crate) fn of_all(rank: usize, world: usize) -> Group {
        let ranks: Vec<usize> = (0..world).collect();
        let digest = digest(&ranks);
        Group { ranks, member: rank, digest, step: 0, calls: 0 }
    }

    /// The members' ranks.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's position.
    pub fn member(&self) -> usize {
        self.member
    }

    /// Counts the calls from 0 again: parts name this training step from here on. All members do so between
    /// the same two calls.
    pub fn begin(&mut self, step: u32) {
        self.step = step;
        self.calls = 0;
    }

    /// The position of the next call, and the tag of its parts.
    pub(super) fn next(&mut self, operation: Operation) -> (u32, Tag) {
        let call = self.calls;
        self.calls = self.calls.wrapping_add(1);
        let part = Part { operation, call, group: self.digest, channel: Channel::InOrder };
        (call, Tag { step: self.step, what: What::Part(part) })
    }
}

/// FNV-1a over the ranks: for finding mistakes, not for telling groups apart in a crowd.
fn digest(ranks: &[usize]) -> u32 {
    ranks
        .iter()
        .flat_map(|rank| (*rank as u32).to_le_bytes())
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
