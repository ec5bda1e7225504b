//! The documents of a step, packed into the microbatches of data parallel replicas.
//!
//! A document has tokens, of which a microbatch has room for a number, and loads: what it adds to the times of its microbatch.
//! Attention within documents grows with the square of their lengths, so the load of a packing does not follow from its
//! tokens. Two loads are enough for a model, since its layers attend to the whole document or to one window.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::factors::{Factors, MAX_PERMILLE, USUAL_PERMILLE};
use crate::base::units::Nanos;

/// Most documents of a step.
pub const MAX_DOCUMENTS: usize = 1 << 18;
/// Most microbatches of a step over all replicas, where documents are packed.
pub const MAX_BINS: usize = 1 << 16;

/// By replica, then by microbatch: its documents, by their numbers.
pub type Packing = Vec<Vec<Vec<u32>>>;

/// Where documents go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bins {
    /// Data parallel replicas.
    pub replicas: usize,
    /// Microbatches of each.
    pub microbatches: usize,
    /// Most tokens of a microbatch.
    pub tokens: u64,
}

/// A document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its tokens.
    pub tokens: u32,
    /// Its loads.
    pub loads: Load,
}

/// What documents add up to.
pub type Load = [u64; 2];

/// The loads of `documents` together.
pub fn load_of(documents: impl Iterator<Item = Load>) -> Load {
    documents.fold([0; 2], |[one, other], [more, further]| [one.saturating_add(more), other.saturating_add(further)])
}

impl Bins {
    /// All microbatches.
    pub fn count(&self) -> usize {
        self.replicas.saturating_mul(self.microbatches)
    }

    /// `lengths` packed in `order`, each into the first microbatch with room for it (first fit). Microbatches are filled in
    /// the order in which replicas take them in turn, as Megatron-LM's sampler deals samples. None where one does not fit.
    pub fn first_fit(&self, lengths: &[u32], order: impl Iterator<Item = u32>) -> Option<Packing> {
        let mut filling = Filling::new(*self);
        let mut packing = vec![vec![Vec::new(); self.microbatches]; self.replicas];
        for document in order {
            let bin = filling.take(lengths[document as usize])?;
            packing[bin % self.replicas][bin / self.replicas].push(document);
        }
        Some(packing)
    }

    /// `lengths` by first fit in their order; where one does not fit so, the longest first.
    pub fn packed(&self, lengths: &[u32]) -> Option<Packing> {
        let mut falling: Vec<u32> = (0..lengths.len() as u32).collect();
        self.first_fit(lengths, falling.clone().into_iter()).or_else(|| {
            falling.sort_by_key(|document| Reverse(lengths[*document as usize]));
            self.first_fit(lengths, falling.into_iter())
        })
    }
}

/// The free tokens of microbatches, each filled by the first document that fits: a tree of the most free tokens.
#[derive(Clone, Debug)]
pub struct Filling {
    /// The root at 1; the children of n at 2n and 2n + 1.
    most: Vec<u64>,
}

impl Filling {
    /// Nothing filled yet.
    pub fn new(bins: Bins) -> Filling {
        let leaves = bins.count().next_power_of_two();
        let mut most = vec![0; 2 * leaves];
        most[leaves..leaves + bins.count()].fill(bins.tokens);
        (1..leaves).rev().for_each(|node| most[node] = most[2 * node].max(most[2 * node + 1]));
        Filling { most }
    }

    /// The first microbatch with room for `tokens`, which are now in it.
    pub fn take(&mut self, tokens: u32) -> Option<usize> {
        let tokens = u64::from(tokens);
        if self.most[1] < tokens {
            return None;
        }
        let leaves = self.most.len() / 2;
        let mut node = 1;
        while node < leaves {
            node = 2 * node + usize::from(self.most[2 * node] < tokens);
        }
        let bin = node - leaves;
        self.most[node] -= tokens;
        while node > 1 {
            node /= 2;
            self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]);
        }
        Some(bin)
    }
}

/// The microbatches of `packing` assigned to its replicas anew, the one with the greatest weight first, each to the replica with
/// the least (longest processing time first: Graham, SIAM J. Appl. Math. 17, 1969). Each replica has as many as before.
pub fn longest_first(packing: &Packing, weight: impl Fn(&[u32]) -> u64) -> Packing {
    let (replicas, each) = (packing.len(), packing.first().map_or(0, Vec::len));
    let mut falling: Vec<(u64, &Vec<u32>)> =
        packing.iter().flatten().map(|microbatch| (weight(microbatch), microbatch)).collect();
    falling.sort_by_key(|(weight, _)| Reverse(*weight));
    let mut dealt: Packing = vec![Vec::with_capacity(each); replicas];
    let mut least: BinaryHeap<Reverse<(u64, usize)>> = (0..replicas).map(|replica| Reverse((0, replica))).collect();
    for (weight, microbatch) in falling {
        let Some(Reverse((sum, replica))) = least.pop() else { break };
        dealt[replica].push(microbatch.clone());
        if dealt[replica].len() < each {
            least.push(Reverse((sum.saturating_add(weight), replica)));
        }
    }
    dealt
}

/// What documents make of the times of F, B and W of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The time that the stage says.
    pub usual_ns: [Nanos; 3],
    /// What every microbatch takes of it, whatever its documents.
    pub fixed_ns: [Nanos; 3],
    /// What a microbatch takes of it with a load of [`DocumentTimes::whole`].
    pub by_load_ns: [[Nanos; 2]; 3],
}

/// The times of microbatches by their loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentTimes {
    /// By stage.
    pub stages: Vec<Shares>,
    /// The loads of `by_load_ns`; at least 1.
    pub whole: Load,
}

impl DocumentTimes {
    /// What a microbatch of this load takes, by stage, in thousandths rounded up.
    pub fn factors(&self, load: Load) -> impl Iterator<Item = Factors> {
        let of = move |shares: &Shares| {
            let permille = [0, 1, 2].map(|kind| {
                let (part, usual) = self.part(shares, kind, load, 1);
                permille(part.div_ceil(usual.max(1)), usual == 0)
            });
            with_times(permille)
        };
        self.stages.iter().map(of)
    }

    /// What `count` microbatches of this load together take on average, by stage, in thousandths rounded down.
    pub fn least_factors(&self, load: Load, count: u64) -> Vec<Factors> {
        let of = |shares: &Shares| {
            let permille = [0, 1, 2].map(|kind| {
                let (part, usual) = self.part(shares, kind, load, count.max(1));
                permille(part / usual.max(1), usual == 0)
            });
            with_times(permille)
        };
        self.stages.iter().map(of).collect()
    }

    /// What a load takes over all stages, in addition to what every microbatch takes: to compare loads.
    pub fn weight(&self, load: Load) -> u64 {
        let of = |by_load: &[Nanos; 2]| -> u128 {
            let share =
                |at: usize| u128::from(by_load[at]) * u128::from(load[at]) / u128::from(self.whole[at].max(1));
            share(0) + share(1)
        };
        let all: u128 = self.stages.iter().flat_map(|shares| &shares.by_load_ns).map(of).sum();
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Thousandths of what `count` microbatches take on average, as a fraction.
    fn part(&self, shares: &Shares, kind: usize, load: Load, count: u64) -> (u128, u128) {
        // Loads as parts of 2⁴⁰, rounded down, keep the product within 128 bits.
        const UNIT: u128 = 1 << 40;
        let by_load = |at: usize| {
            let whole = u128::from(self.whole[at].max(1)) * u128::from(count);
            u128::from(shares.by_load_ns[kind][at]).saturating_mul(u128::from(load[at]) * UNIT / whole)
        };
        let whole = (u128::from(shares.fixed_ns[kind]) * UNIT).saturating_add(by_load(0)).saturating_add(by_load(1));
        (whole.saturating_mul(1000), u128::from(shares.usual_ns[kind]) * UNIT)
    }
}

fn permille(value: u128, is_nothing: bool) -> u32 {
    if is_nothing { USUAL_PERMILLE } else { value.clamp(1, MAX_PERMILLE.into()) as u32 }
}

fn with_times([forward, backward_input, backward_weight]: [u32; 3]) -> Factors {
    Factors { forward, backward_input, backward_weight, ..Factors::default() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The tree finds the microbatch that a look at all of them finds.
        #[test]
        fn first_fit_takes_the_first_with_room(
            lengths in prop::collection::vec(1u32..60, 0..40), replicas in 1usize..4, microbatches in 1usize..6,
        ) {
            let bins = Bins { replicas, microbatches, tokens: 60 };
            let mut free = vec![60u32; bins.count()];
            let mut filling = Filling::new(bins);
            for length in &lengths {
                let first = free.iter().position(|free| free >= length);
                prop_assert_eq!(filling.take(*length), first);
                if let Some(first) = first {
                    free[first] -= length;
                }
            }
        }

        /// Every document once, no microbatch over its tokens, and as many microbatches for each replica.
        #[test]
        fn a_packing_has_every_document_once(
            lengths in prop::collection::vec(1u32..60, 0..40), replicas in 1usize..4, microbatches in 1usize..8,
        ) {
            let bins = Bins { replicas, microbatches, tokens: 60 };
            let Some(packed) = bins.packed(&lengths) else { return Ok(()) };
            let weight = |documents: &[u32]| documents.iter().map(|of| u64::from(lengths[*of as usize]).pow(2)).sum();
            for packing in [longest_first(&packed, weight), packed] {
                prop_assert_eq!(packing.len(), replicas);
                prop_assert!(packing.iter().all(|of| of.len() == microbatches));
                let tokens = |documents: &Vec<u32>| documents.iter().map(|of| lengths[*of as usize]).sum::<u32>();
                prop_assert!(packing.iter().flatten().all(|documents| tokens(documents) <= 60));
                let mut all: Vec<u32> = packing.into_iter().flatten().flatten().collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..lengths.len() as u32).collect::<Vec<u32>>());
            }
        }
    }
}
