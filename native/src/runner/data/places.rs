//! Which microbatch takes which place of a step, where attention stays within documents.

use std::cmp::Reverse;
use std::sync::Arc;

/// Attention stays within documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Within {
    /// For each microbatch of a step, of all replicas one after the other, the work that the plan has for it, in any unit.
    pub planned: Vec<u64>,
}
/// Where attention stays within documents: which place a microbatch takes by its work.
#[derive(Debug)]
pub(super) struct Places {
    /// For each place of a step, how many others have more planned work; empty where all have as much.
    ranks: Vec<u32>,
    pub(super) microbatch_size: u64,
}

impl Places {
    pub(super) fn new(within: &Within, [microbatch_size, microbatches]: [usize; 2]) -> Places {
        let planned = &within.planned;
        let mut by_work: Vec<u32> = (0..planned.len() as u32).collect();
        by_work.sort_by_key(|place| Reverse(planned[*place as usize]));
        let mut ranks = vec![0; planned.len()];
        by_work.iter().enumerate().for_each(|(rank, place)| ranks[*place as usize] = rank as u32);
        // A plan for other replicas than there are says nothing of these.
        if planned.len() != microbatches || planned.iter().all(|work| *work == planned[0]) {
            ranks.clear();
        }
        Places { ranks, microbatch_size: microbatch_size as u64 }
    }

    /// Places that microbatches take by their work.
    pub(super) fn count(&self) -> usize {
        self.ranks.len()
    }

    /// Which microbatch takes which place, where microbatch `number` has `work(number)`.
    ///
    /// # Errors
    /// Those of `work`.
    pub(super) fn taken<E>(&self, work: impl Fn(u32) -> Result<u64, E>) -> Result<Placed, E> {
        let by_work = (0..self.ranks.len() as u32).map(|number| Ok((Reverse(work(number)?), number)));
        let mut by_work = by_work.collect::<Result<Vec<_>, E>>()?;
        by_work.sort_unstable();
        let taken = || Arc::new(self.ranks.iter().map(|rank| by_work[*rank as usize].1).collect());
        Ok((!self.ranks.is_empty()).then(taken))
    }
}

/// Which microbatch takes which place of a step; none where they come as they are.
pub(super) type Placed = Option<Arc<Vec<u32>>>;
/// The microbatch at place `number`.
pub(super) fn placed_at(placed: &Placed, number: u32) -> u32 {
    placed.as_ref().and_then(|placed| placed.get(number as usize)).copied().unwrap_or(number)
}
