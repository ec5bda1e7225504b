//! Reductions that start now and end later, so that the work in between overlaps them.
//!
//! All that a member has to send goes out when a reduction begins, as far as it can: with two members or few values
//! everything to everyone, else each piece to the member that sums it. What follows from the pieces of others, the
//! sums to everyone, goes out as soon as a look finds that those have come ([`Started::go_on`]), which whoever
//! computes beside the reduction takes now and then. So all of it moves in the meantime. What has not come by the
//! wait is waited for.
//!
//! Parcels of a channel arrive in the order in which they were sent. So all reductions that have begun end together,
//! in the order in which they began, at the first wait for one of them and before any other collective of the group;
//! and sums have a channel of their own, since it depends on when a member looks whether they go out before or after
//! what it begins next.

use std::collections::VecDeque;

use super::session::Session;
use super::{Channel, CollectiveError, Group, Operation, Reduction, SMALL, even_counts, reduced};
use crate::backend::cpu::element::Element;
use crate::transport::Transport;

/// Reductions of one group that have begun.
pub struct Started<T> {
    open: VecDeque<Open<T>>,
}

impl<T> Default for Started<T> {
    fn default() -> Started<T> {
        Started { open: VecDeque::new() }
    }
}

struct Open<T> {
    session: Session<'static>,
    reduction: Reduction,
    /// The lengths of the members' pieces.
    counts: Vec<usize>,
    /// This member's values: all of them where all went to everyone, else its own piece; the result where all is done.
    mine: Vec<T>,
    to_everyone: bool,
    awaits: Awaits,
}

/// What is still to come from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    /// What they had to send when they began.
    Values,
    /// Their sums.
    Sums,
    Nothing,
}

impl<T: Element> Started<T> {
    /// Whether nothing has begun.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether all that has begun only waits to be taken.
    pub fn is_done(&self) -> bool {
        self.open.iter().all(|open| open.awaits == Awaits::Nothing)
    }

    /// Begins an all-reduce or, where `scatters`, a reduce-scatter in equal pieces.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn begin<X: Transport + ?Sized>(
        &mut self,
        transport: &mut X,
        group: &mut Group,
        values: Vec<T>,
        reduction: Reduction,
        scatters: bool,
    ) -> Result<(), CollectiveError> {
        let size = group.size();
        let counts = even_counts(values.len(), size);
        let operation = if scatters { Operation::ReduceScatter(reduction) } else { Operation::AllReduce(reduction) };
        let session = Session::new(group, operation, &[], 0);
        let to_everyone = !scatters && (size <= 2 || values.len() <= SMALL);
        let starts: Vec<usize> =
            counts.iter().scan(0, |end, count| Some(std::mem::replace(end, *end + count))).collect();
        let piece = |member: usize| values[starts[member]..starts[member] + counts[member]].to_vec();
        let sends = session.others.iter().map(|member| match to_everyone {
            true => (*member, values.clone()),
            false => (*member, piece(*member)),
        });
        let sends = sends.collect();
        session.post(transport, sends)?;
        let mine = if to_everyone { values } else { piece(session.member) };
        self.open.push_back(Open { session, reduction, counts, mine, to_everyone, awaits: Awaits::Values });
        Ok(())
    }

    /// Takes what has come in the meantime and sends what follows from it. Does not wait.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn go_on<X: Transport + ?Sized>(&mut self, transport: &mut X) -> Result<(), CollectiveError> {
        for what in [Awaits::Values, Awaits::Sums] {
            // A later one's parcels stand behind an earlier one's, so that one that is not taken holds up the rest.
            for open in self.open.iter_mut().filter(|open| open.awaits == what) {
                let Some(received) = open.session.arrived(transport, &open.from())? else { break };
                open.take(received, transport)?;
            }
        }
        Ok(())
    }

    /// Ends all that has begun: the results, in that order.
    ///
    /// # Errors
    /// [`CollectiveError`], which names the reduction and the member that did not come.
    pub fn finish<X: Transport + ?Sized>(&mut self, transport: &mut X) -> Result<Vec<Vec<T>>, CollectiveError> {
        for what in [Awaits::Values, Awaits::Sums] {
            for open in self.open.iter_mut().filter(|open| open.awaits == what) {
                let received = open.session.exchange(transport, Vec::new(), &open.from())?;
                open.take(received, transport)?;
            }
        }
        Ok(self.open.drain(..).map(|open| open.mine).collect())
    }
}

impl<T: Element> Open<T> {
    /// The members that something comes from now, and how many values.
    fn from(&self) -> Vec<(usize, usize)> {
        let length = |member: usize| if self.awaits == Awaits::Sums { self.counts[member] } else { self.mine.len() };
        self.session.others.iter().map(|member| (*member, length(*member))).collect()
    }

    /// Goes on with what has come from the others.
    fn take<X: Transport + ?Sized>(
        &mut self,
        received: Vec<Vec<T>>,
        transport: &mut X,
    ) -> Result<(), CollectiveError> {
        let all = self.session.in_order(received, std::mem::take(&mut self.mine));
        if self.awaits == Awaits::Sums {
            self.mine = all.concat();
            self.awaits = Awaits::Nothing;
            return Ok(());
        }
        self.mine = reduced(&all, self.reduction);
        if self.to_everyone || matches!(self.session.operation, Operation::ReduceScatter(_)) {
            self.awaits = Awaits::Nothing;
            return Ok(());
        }
        self.awaits = Awaits::Sums;
        self.session.turn_to(Channel::Follows);
        self.session.post(transport, self.session.others.iter().map(|member| (*member, self.mine.clone())).collect())
    }
}
