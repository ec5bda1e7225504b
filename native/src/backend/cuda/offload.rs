//! Activation offload: copies of a rank's tensors to host memory and back, on a separate queue at the same time as its work.
//!
//! A copy begins behind all that the rank's queue was asked for before, and the queue goes on; where the copy is waited for,
//! the queue waits, and the host does not. So the memory of both ends is free again behind that wait, in the order of the
//! rank's own work.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::card::{Address, Card, CardError, Mark, Memory};

/// Copies that have begun and were not waited for. A rank that ends early waits for them when it gives the queue back.
pub struct Copies {
    queue: Arc<dyn Card>,
    /// Whether queues of this card wait for each other. Else the host does.
    is_ordered: bool,
    /// By where they go to: what is behind each.
    begun: BTreeMap<Address, Box<dyn Mark>>,
}

impl Copies {
    /// Beside the queue `card`.
    ///
    /// # Errors
    /// [`CardError`], where the card has no other queue.
    pub fn overlapped_queue(card: &Arc<dyn Card>) -> Result<Copies, CardError> {
        let queue = card.another()?;
        let is_ordered = card.wait_for(&*queue.mark()?)?;
        Ok(Copies { queue, is_ordered, begun: BTreeMap::new() })
    }

    /// Whether the host waits where it begins or ends a copy.
    pub fn waits(&self) -> bool {
        !self.is_ordered
    }

    /// Begins to copy `from` to `to`, both of `card`, one of them in host memory.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn begin(&mut self, card: &Arc<dyn Card>, from: &Memory, to: &Memory) -> Result<(), CardError> {
        wait(&self.queue, &*card.mark()?)?;
        self.queue.copy_across(from.at(), to.at(), from.bytes().min(to.bytes()))?;
        self.begun.insert(to.at(), self.queue.mark()?);
        Ok(())
    }

    /// Lets what `card` is asked for from here on come behind the copy to `to`.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn end(&mut self, card: &Arc<dyn Card>, to: &Memory) -> Result<(), CardError> {
        self.begun.remove(&to.at()).map_or(Ok(()), |mark| wait(card, &*mark))
    }
}

/// What `queue` is asked for from here on comes behind `mark`.
fn wait(queue: &Arc<dyn Card>, mark: &dyn Mark) -> Result<(), CardError> {
    if !queue.wait_for(mark)? {
        while !mark.is_past()? {
            std::thread::yield_now();
        }
    }
    Ok(())
}
