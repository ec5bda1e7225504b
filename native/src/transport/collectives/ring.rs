//! A step of a ring: each member sends to the next and takes from the one before it, the first from the last.
//!
//! What is sent goes out at once and what comes is taken later, so the work of a member in between overlaps it.
//! Parcels of a channel arrive in the order in which they were sent: of several passes that have begun, the first is taken
//! first.

use super::session::Session;
use super::{CollectiveError, Group, Operation};
use crate::backend::cpu::element::Element;
use crate::transport::Transport;

/// A pass that has begun.
pub struct Passing<T> {
    session: Session<'static>,
    /// Values of each member.
    length: usize,
    /// What the only member of a group keeps.
    kept: Option<Vec<T>>,
}

impl<T: Element> Passing<T> {
    /// Sends `values` to the next member of `group`, all of which pass equally many, and waits for nothing.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn begin<X: Transport + ?Sized>(
        transport: &mut X,
        group: &mut Group,
        values: Vec<T>,
    ) -> Result<Passing<T>, CollectiveError> {
        let session = Session::new(group, Operation::PassOn, &[], 0);
        let length = values.len();
        let kept = match session.others.first() {
            Some(next) => {
                session.post(transport, vec![(*next, values)])?;
                None
            }
            None => Some(values),
        };
        Ok(Passing { session, length, kept })
    }

    /// Waits for what the member before this one has passed.
    ///
    /// # Errors
    /// [`CollectiveError`], which names that member where it does not come or sends another number of values.
    pub fn take<X: Transport + ?Sized>(self, transport: &mut X) -> Result<Vec<T>, CollectiveError> {
        let Passing { session, length, kept } = self;
        match (kept, session.others.last()) {
            (None, Some(previous)) => {
                Ok(session.exchange(transport, Vec::new(), &[(*previous, length)])?.pop().unwrap_or_default())
            }
            (kept, _) => Ok(kept.unwrap_or_default()),
        }
    }
}
