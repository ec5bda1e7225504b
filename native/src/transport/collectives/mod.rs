//! Collectives of a group of ranks: all-reduce, reduce, reduce-scatter, all-gather, broadcast, barrier, all-to-all
//! and a pass in
//! a ring, over the point-to-point parcels of any engine.
//!
//! - In: values of each member of a [`Group`].
//! - Out: the result for each member.
//! - Knows: the [`Transport`] trait. Nothing of stages or training.
//!
//! - **The same bits.** A sum is always `((x₀ + x₁) + x₂) + …` by position in the group, in any order of arrival, and each
//!   element is summed on one rank. So all members hold equal bits, and a second run holds the same.
//! - **No hang.** Every collective is a list of grouped exchanges in which each member names the members that it waits for. A
//!   member that does not come ends the waits of the others with its name.
//! - **Faults are found at once.** Each part carries the group and the number of its call in the group, so members that
//!   disagree get an error at the first wrong part.
//!
//! Each member sends `(n − 1) / n` of the data in a reduce-scatter or an all-gather and twice that in an all-reduce,
//! which is the least possible (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009).

use pipeplan_core::base::units::Bytes;
use pipeplan_core::model::Dtype;

use super::{OnCard, Tag, Transport, TransportError};
use crate::backend::cpu::element::Element;

pub mod group;
pub mod overlapped;
pub mod ring;
mod session;
pub mod shares;
#[cfg(test)]
mod tests;

pub use group::{Channel, Group, GroupError, Operation, Part, Reduction};
use session::Session;

/// The collectives of every transport. Members call the same ones in the same order, each on its own copy of
/// one [`Group`].
pub trait Collectives: Transport {
    /// `values` become, on every member, the reduction over all members' `values`.
    ///
    /// # Errors
    /// [`CollectiveError`]; `values` are then of no use.
    fn all_reduce<T: Element>(
        &mut self,
        group: &mut Group,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        let counts = even_counts(values.len(), group.size());
        let call = Session::new(group, Operation::AllReduce(reduction), &counts, 0);
        if self.has_own(call.operation) {
            return call.own_into(self, values);
        }
        // Two rounds carry the least data; where there is little, one round with all of it is sooner.
        let reduced = if values.len() <= SMALL {
            let all = call.gathered(self, values, &vec![values.len(); counts.len()])?;
            let all: Vec<Vec<T>> = all.chunks(values.len().max(1)).map(<[T]>::to_vec).collect();
            reduced(&all, reduction)
        } else {
            let mine = call.scattered(self, values, reduction)?;
            call.gathered(self, &mine, &counts)?
        };
        values.copy_from_slice(&reduced);
        Ok(())
    }

    /// On the root `values` become the reduction over all members' `values`; the others keep theirs. `root` is
    /// a position in the group.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn reduce<T: Element>(
        &mut self,
        group: &mut Group,
        root: usize,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        let counts = even_counts(values.len(), group.size());
        let call = Session::new(group, Operation::Reduce(reduction), &counts, root);
        call.check_root()?;
        if self.has_own(call.operation) {
            return call.own_into(self, values);
        }
        let mine = call.scattered(self, values, reduction)?;
        if call.member != root {
            return call.exchange(self, vec![(root, mine)], &[]).map(|_| ());
        }
        let from: Vec<(usize, usize)> = call.others.iter().map(|member| (*member, counts[*member])).collect();
        let received = call.exchange(self, Vec::new(), &from)?;
        values.copy_from_slice(&call.in_order(received, mine).concat());
        Ok(())
    }

    /// Member `i` gets the `i`-th piece of the reduction over all members' `values`; `counts` are the lengths
    /// of the pieces.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`]; and where `counts` do not fit the group or `values`.
    fn reduce_scatter<T: Element>(
        &mut self,
        group: &mut Group,
        values: &[T],
        counts: &[usize],
        reduction: Reduction,
    ) -> Result<Vec<T>, CollectiveError> {
        let call = Session::new(group, Operation::ReduceScatter(reduction), counts, 0);
        call.check(counts.len(), call.ranks.len(), "lengths")?;
        call.check(values.len(), counts.iter().sum(), "values")?;
        if self.has_own(call.operation) { call.own(self, values) } else { call.scattered(self, values, reduction) }
    }

    /// Every member gets the `values` of all, one after the other by position; `counts` are their lengths.
    ///
    /// # Errors
    /// As [`Collectives::reduce_scatter`].
    fn all_gather<T: Element>(
        &mut self,
        group: &mut Group,
        values: &[T],
        counts: &[usize],
    ) -> Result<Vec<T>, CollectiveError> {
        let call = Session::new(group, Operation::AllGather, counts, 0);
        call.check(counts.len(), call.ranks.len(), "lengths")?;
        call.check(values.len(), counts[call.member], "values")?;
        call.gathered(self, values, counts)
    }

    /// `values` become those of the root on every member. `root` is a position in the group.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn broadcast<T: Element>(
        &mut self,
        group: &mut Group,
        root: usize,
        values: &mut [T],
    ) -> Result<(), CollectiveError> {
        let call = Session::new(group, Operation::Broadcast, &[], root);
        call.check_root()?;
        if call.is_own(self, call.operation, values.len()) {
            return call.own_into(self, values);
        }
        // A binomial tree: in each round everyone who has the values sends them to one who has not.
        let size = call.ranks.len();
        let place = (call.member + size - root) % size;
        let at = |place: usize| (place + root) % size;
        let mut reach = 1;
        while reach < size {
            if place < reach && place + reach < size {
                call.exchange(self, vec![(at(place + reach), values.to_vec())], &[])?;
            } else if (reach..2 * reach).contains(&place) {
                let received = call.exchange(self, Vec::new(), &[(at(place - reach), values.len())])?;
                values.copy_from_slice(&received.concat());
            }
            reach *= 2;
        }
        Ok(())
    }

    /// Any of all-reduce, reduce, reduce-scatter, all-gather and broadcast on the values of `memory`, of format
    /// `dtype`, in place, on an engine that [has its own](Transport::has_own_on_card). `counts` are the lengths of
    /// the members' pieces, one after the other: of a reduce-scatter only the own piece is then of use, of an
    /// all-gather only that piece has to be there before. In which order numbers are summed is the engine's affair.
    /// The rank waits for nothing: what its device is asked for next comes behind it.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`]; and where `counts` do not fit the group or the memory.
    fn on_card(
        &mut self,
        group: &mut Group,
        operation: Operation,
        memory: &OnCard,
        dtype: Dtype,
        (root, counts): (usize, &[usize]),
    ) -> Result<(), CollectiveError> {
        let call = Session::new(group, operation, counts, root);
        call.check_root()?;
        if !counts.is_empty() {
            call.check(counts.len(), call.ranks.len(), "lengths")?;
            call.check((memory.bytes() / dtype.bytes().max(1)) as usize, counts.iter().sum(), "values")?;
        }
        let begun = self.begin_on_card(&call.call(dtype), memory, memory);
        begun.and_then(|begun| self.join_on_card(begun)).map_err(|source| call.failed(source))
    }

    /// Begins an all-reduce, a reduce-scatter or an all-gather in equal pieces of what is at `from`, or passes it on
    /// in the ring of the group, as [`Transport::begin_on_card`] says; the result goes to `to`, which is `from` or
    /// (in a ring always) apart from it.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`]; and where the sizes do not fit the group.
    fn begin_from(
        &mut self,
        group: &mut Group,
        operation: Operation,
        (from, to): (&OnCard, &OnCard),
        dtype: Dtype,
    ) -> Result<u64, CollectiveError> {
        let [given, made] = [from, to].map(|memory| (memory.bytes() / dtype.bytes().max(1)) as usize);
        let counts = match operation {
            Operation::AllGather => vec![given; group.size()],
            Operation::ReduceScatter(_) => vec![made; group.size()],
            _ => Vec::new(),
        };
        let call = Session::new(group, operation, &counts, 0);
        let whole = if counts.is_empty() { made } else { counts.iter().sum() };
        call.check(given.max(made), whole, "values")?;
        self.begin_on_card(&call.call(dtype), from, to).map_err(|source| call.failed(source))
    }

    /// Begins to send the pieces at `from`, which lie one behind the other, each of so many bytes, to the members,
    /// and to take one of so many bytes from each, one behind the other, at `to`, as [`Transport::begin_on_card`]
    /// says. The two lie apart.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`]; and where the lengths do not fit the group or the memory.
    fn deal_from(
        &mut self,
        group: &mut Group,
        (from, sent): (&OnCard, &[Bytes]),
        (to, come): (&OnCard, &[Bytes]),
    ) -> Result<u64, CollectiveError> {
        let counts: Vec<usize> = come.iter().map(|bytes| *bytes as usize).collect();
        let call = Session::new(group, Operation::AllToAll, &counts, 0);
        for (memory, lengths) in [(from, sent), (to, come)] {
            call.check(lengths.len(), call.ranks.len(), "lengths")?;
            let whole = lengths.iter().sum::<Bytes>();
            call.check(memory.bytes().min(whole) as usize, whole as usize, "bytes")?;
        }
        call.check(sent[call.member] as usize, counts[call.member], "bytes for itself")?;
        let sent: Vec<usize> = sent.iter().map(|bytes| *bytes as usize).collect();
        let asked = Call { sent: &sent, ..call.call(Dtype::U8) };
        self.begin_on_card(&asked, from, to).map_err(|source| call.failed(source))
    }

    /// The memory of devices that each member shows, by position, on an engine that
    /// [carries it](Transport::carries_memory); all show equally much.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn show(&mut self, group: &mut Group, memory: OnCard) -> Result<Vec<OnCard>, CollectiveError> {
        Session::new(group, Operation::AllGather, &[], 0).shown(self, memory)
    }

    /// The root gets the `values` of all by position, whatever their lengths; the others get nothing. `root` is
    /// a position in the group.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn gather<T: Element>(
        &mut self,
        group: &mut Group,
        root: usize,
        values: Vec<T>,
    ) -> Result<Option<Vec<Vec<T>>>, CollectiveError> {
        let call = Session::new(group, Operation::Gather, &[], root);
        call.check_root()?;
        if call.member != root {
            return call.exchange(self, vec![(root, values)], &[]).map(|_| None);
        }
        let from: Vec<(usize, usize)> = call.others.iter().map(|member| (*member, ANY_LENGTH)).collect();
        let received = call.exchange(self, Vec::new(), &from)?;
        Ok(Some(call.in_order(received, values)))
    }

    /// Sends `pieces[i]` to member `i` and gets one piece from each, by position; `counts[i]` is the length of
    /// what member `i` sends to this one.
    ///
    /// # Errors
    /// As [`Collectives::reduce_scatter`].
    fn all_to_all<T: Element>(
        &mut self,
        group: &mut Group,
        mut pieces: Vec<Vec<T>>,
        counts: &[usize],
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let call = Session::new(group, Operation::AllToAll, counts, 0);
        call.check(pieces.len(), call.ranks.len(), "pieces")?;
        call.check(counts.len(), call.ranks.len(), "lengths")?;
        let mine = std::mem::take(&mut pieces[call.member]);
        call.check(mine.len(), counts[call.member], "values for itself")?;
        let sends = call.others.iter().map(|member| (*member, std::mem::take(&mut pieces[*member]))).collect();
        let from: Vec<(usize, usize)> = call.others.iter().map(|member| (*member, counts[*member])).collect();
        let received = call.exchange(self, sends, &from)?;
        Ok(call.in_order(received, mine))
    }

    /// Returns when every member has called it.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`]; a time-out names a member that has not come.
    fn group_barrier(&mut self, group: &mut Group) -> Result<(), CollectiveError> {
        let nothing = vec![0; group.size()];
        let call = Session::new(group, Operation::Barrier, &nothing, 0);
        if call.is_own(self, call.operation, 0) {
            return call.own::<f32, _>(self, &[]).map(|_| ());
        }
        // Everyone hears from everyone directly, so that who is missing is known by name.
        call.to_all::<f32, _>(self, &[], &nothing).map(|_| ())
    }
}

impl<T: Transport + ?Sized> Collectives for T {}

/// Values up to which an all-reduce sends everything to everyone: about what a network carries in the time of
/// one more round.
const SMALL: usize = 1024;

/// Where the sender alone knows how many values it sends.
const ANY_LENGTH: usize = usize::MAX;

/// Lengths of `pieces` parts of `total`, as equal as can be, the longer ones first.
pub fn even_counts(total: usize, pieces: usize) -> Vec<usize> {
    (0..pieces).map(|piece| total / pieces + usize::from(piece < total % pieces)).collect()
}

/// The reduction of vectors of equal length, from the first to the last.
pub fn reduced<T: Element>(all: &[Vec<T>], reduction: Reduction) -> Vec<T> {
    let Some((first, others)) = all.split_first() else { return Vec::new() };
    let mut result = first.clone();
    for values in others {
        for (result, value) in result.iter_mut().zip(values) {
            *result = match reduction {
                Reduction::Sum | Reduction::Avg => *result + *value,
                Reduction::Max => greatest(*result, *value),
            };
        }
    }
    if reduction == Reduction::Avg {
        let count = T::of(all.len() as f64);
        for result in &mut result {
            *result = *result / count;
        }
    }
    result
}

/// The greater of two, or the one that is no number.
#[allow(clippy::eq_op)] // Only a NaN differs from itself.
fn greatest<T: Element>(a: T, b: T) -> T {
    if a != a || b <= a { a } else { b }
}

/// Why a collective did not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// The transport failed, or some member did not come.
    #[error("{operation} {call} among ranks {ranks:?}: {source}")]
    Transport {
        /// What the group did.
        operation: Operation,
        /// Its position among the group's calls of the step.
        call: u32,
        /// The group.
        ranks: Vec<usize>,
        /// What failed, and whom it waited for.
        source: TransportError,
    },
    /// A member sent another number of values, or numbers of another format.
    #[error(
        "{operation} {call} among ranks {ranks:?}: rank {peer} sent {found} {found_format} values; expected are \
         {expected} {expected_format} values: the members use different sizes"
    )]
    WrongSize {
        /// What the group did.
        operation: Operation,
        /// Its position among the group's calls of the step.
        call: u32,
        /// The group.
        ranks: Vec<usize>,
        /// The member at fault.
        peer: usize,
        /// How many values came.
        found: usize,
        /// The format of its numbers.
        found_format: &'static str,
        /// How many values should have come.
        expected: usize,
        /// In which format.
        expected_format: &'static str,
    },
    /// The caller's own sizes do not fit the group.
    #[error("{operation} among {members} members: {found} {what} given; needed are {needed}")]
    WrongCall {
        /// What was called.
        operation: Operation,
        /// Members of the group.
        members: usize,
        /// What is counted.
        what: &'static str,
        /// How many were given.
        found: usize,
        /// How many are needed.
        needed: usize,
    },
    /// The root is no position in the group.
    #[error("{operation} among ranks {ranks:?}: there is no member {root} for its root; members count from 0")]
    NoSuchMember {
        /// What was called.
        operation: Operation,
        /// The position named.
        root: usize,
        /// The group.
        ranks: Vec<usize>,
    },
}

impl CollectiveError {
    /// The rank that was waited for or that sent the wrong thing.
    pub fn peer(&self) -> Option<usize> {
        match self {
            CollectiveError::Transport { source, .. } => source.peer(),
            CollectiveError::WrongSize { peer, .. } => Some(*peer),
            CollectiveError::WrongCall { .. } | CollectiveError::NoSuchMember { .. } => None,
        }
    }

    /// The transport's error, where it was the transport that failed.
    pub fn transport(&self) -> Option<&TransportError> {
        match self {
            CollectiveError::Transport { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What an engine is asked to do in its own way.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The collective and its reduction.
    pub operation: Operation,
    /// The members' ranks.
    pub ranks: &'a [usize],
    /// This rank's position among them.
    pub member: usize,
    /// The root's position, of a reduce or broadcast.
    pub root: usize,
    /// How many values the result has for each member, where members differ.
    pub counts: &'a [usize],
    /// How many values go to each member, of an all-to-all.
    pub sent: &'a [usize],
    /// The format of the values.
    pub dtype: Dtype,
    /// Which call it is.
    pub tag: Tag,
}
