//! Gathers and reductions of shares that begin now and end later, while the member goes on to other collectives, also
//! with the same ranks: they have a [channel](Channel::Overlapped) of their own.
//!
//! What a member has to send goes out when one begins. What comes is taken at its end, in the order of beginning.

use super::session::Session;
use super::{Channel, CollectiveError, Group, Operation, Reduction, reduced};
use crate::backend::cpu::element::Element;
use crate::transport::Transport;

/// One that has begun.
pub struct ShareCollective<T> {
    session: Session<'static>,
    /// The lengths of the members' shares.
    counts: Vec<usize>,
    mine: Vec<T>,
}

impl<T: Element> ShareCollective<T> {
    /// Begins to gather the shares of all, of which this member's are `values`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn gather<X: Transport + ?Sized>(
        transport: &mut X,
        group: &mut Group,
        values: Vec<T>,
        counts: Vec<usize>,
    ) -> Result<ShareCollective<T>, CollectiveError> {
        let mut session = Session::new(group, Operation::AllGather, &[], 0);
        session.check(counts.len(), session.ranks.len(), "lengths")?;
        session.check(values.len(), counts[session.member], "values")?;
        session.turn_to(Channel::Overlapped);
        session.post(transport, session.others.iter().map(|member| (*member, values.clone())).collect())?;
        Ok(ShareCollective { session, counts, mine: values })
    }

    /// Begins to sum `values` of all, of which each member gets its share.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn scatter<X: Transport + ?Sized>(
        transport: &mut X,
        group: &mut Group,
        values: &[T],
        counts: Vec<usize>,
    ) -> Result<ShareCollective<T>, CollectiveError> {
        let mut session = Session::new(group, Operation::ReduceScatter(Reduction::Sum), &[], 0);
        session.check(counts.len(), session.ranks.len(), "lengths")?;
        session.check(values.len(), counts.iter().sum(), "values")?;
        session.turn_to(Channel::Overlapped);
        let starts: Vec<usize> =
            counts.iter().scan(0, |end, count| Some(std::mem::replace(end, *end + count))).collect();
        let share = |member: usize| values[starts[member]..starts[member] + counts[member]].to_vec();
        session.post(transport, session.others.iter().map(|member| (*member, share(*member))).collect())?;
        let mine = share(session.member);
        Ok(ShareCollective { session, counts, mine })
    }

    /// Waits for the others: the shares of all, one after the other, or this member's share of the sum.
    ///
    /// # Errors
    /// [`CollectiveError`], which names the member that did not come.
    pub fn end<X: Transport + ?Sized>(self, transport: &mut X) -> Result<Vec<T>, CollectiveError> {
        let ShareCollective { session, counts, mine } = self;
        let gathers = session.operation == Operation::AllGather;
        let length = |member: usize| if gathers { counts[member] } else { mine.len() };
        let from: Vec<(usize, usize)> = session.others.iter().map(|member| (*member, length(*member))).collect();
        let received = session.exchange(transport, Vec::new(), &from)?;
        let all = session.in_order(received, mine);
        Ok(if gathers { all.concat() } else { reduced(&all, Reduction::Sum) })
    }
}
