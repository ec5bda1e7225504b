//! Reductions that begin now and end later, so that what stands between runs beside them.
//!
//! All that a member has to send goes out when a reduction begins, as far as it can: with two members or few values
//! everything to everyone, else each piece to the member that sums it. So the data is on its way, or there, when the
//! reduction is waited for. What is then left of an all-reduce among more members, the summed pieces to everyone, is sent
//! at the wait.
//!
//! Parcels of a channel arrive in the order in which they were sent. So all reductions that have begun end together, in
//! the order in which they began, at the first wait for one of them and before any other collective of the group.

use std::collections::VecDeque;

use super::session::Session;
use super::{CollectiveError, Group, Operation, Reduction, SMALL, even_counts, reduced};
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
    /// This member's values: all of them where all went to everyone, else its own piece.
    mine: Vec<T>,
    to_everyone: bool,
}

impl<T: Element> Started<T> {
    /// Whether nothing has begun.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
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
        self.open.push_back(Open { session, reduction, counts, mine, to_everyone });
        Ok(())
    }

    /// Ends all that has begun: the results, in that order.
    ///
    /// # Errors
    /// [`CollectiveError`], which names the reduction and the member that did not come.
    pub fn finish<X: Transport + ?Sized>(&mut self, transport: &mut X) -> Result<Vec<Vec<T>>, CollectiveError> {
        for open in &mut self.open {
            let from: Vec<(usize, usize)> =
                open.session.others.iter().map(|member| (*member, open.mine.len())).collect();
            let received = open.session.exchange(transport, Vec::new(), &from)?;
            open.mine = reduced(&open.session.in_order(received, std::mem::take(&mut open.mine)), open.reduction);
            if !open.is_done() {
                let sends = open.session.others.iter().map(|member| (*member, open.mine.clone())).collect();
                open.session.post(transport, sends)?;
            }
        }
        let mut results = Vec::with_capacity(self.open.len());
        for mut open in self.open.drain(..) {
            if !open.is_done() {
                let from: Vec<(usize, usize)> =
                    open.session.others.iter().map(|member| (*member, open.counts[*member])).collect();
                let received = open.session.exchange(transport, Vec::new(), &from)?;
                open.mine = open.session.in_order(received, std::mem::take(&mut open.mine)).concat();
            }
            results.push(open.mine);
        }
        Ok(results)
    }
}

impl<T> Open<T> {
    /// Whether a member's own sum is the result.
    fn is_done(&self) -> bool {
        self.to_everyone || matches!(self.session.operation, Operation::ReduceScatter(_))
    }
}
