//! Documents packed so that microbatches take about as long: exchanges between the heaviest microbatch and another.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Batch;
use crate::base::random::Random;
use crate::problem::packing::Packing;

/// Exchanges that are tried in turn before the heaviest microbatch is left as it is.
const TRIES: usize = 200;

/// `packing` with as even weights as `effort` allows, and what was looked at for it.
pub(super) fn balanced(batch: &Batch, packing: &Packing, effort: u64) -> (Packing, u64) {
    let each = batch.bins.microbatches;
    let mut bins: Vec<Bin> = packing.iter().flatten().map(|documents| Bin::new(batch, documents.clone())).collect();
    let mut by_weight: BTreeSet<(u64, usize)> = bins.iter().enumerate().map(|(at, bin)| (bin.weight, at)).collect();
    let mut random = Random::new(1);
    let (mut looked, mut tries) = (0, 0);
    while looked < effort && bins.len() > 1 {
        let Some((weight, heavy)) = by_weight.last().copied() else { break };
        // With the lightest one first, then with any.
        let other = match tries % 2 {
            0 => by_weight.iter().nth(tries / 2 % 8).map_or(heavy, |(_, at)| *at),
            _ => random.below(bins.len() as u64) as usize,
        };
        tries += 1;
        looked += (bins[heavy].documents.len() + bins[other].documents.len()) as u64;
        let exchanged = (other != heavy).then(|| bins[heavy].exchanged(&bins[other], batch, &mut random)).flatten();
        if let Some((one, two)) = exchanged.filter(|(one, two)| one.weight.max(two.weight) < weight) {
            for (at, bin) in [(heavy, one), (other, two)] {
                by_weight.remove(&(bins[at].weight, at));
                by_weight.insert((bin.weight, at));
                bins[at] = bin;
            }
            tries = 0;
        } else if tries >= TRIES {
            // The heaviest one stays; the others may still be evened out.
            by_weight.pop_last();
            tries = 0;
        }
    }
    let mut documents = bins.into_iter().map(|bin| bin.documents);
    let replicas = (0..batch.bins.replicas).map(|_| documents.by_ref().take(each).collect());
    (replicas.collect(), looked)
}

/// A microbatch.
#[derive(Clone)]
pub(super) struct Bin {
    pub documents: Vec<u32>,
    pub tokens: u64,
    pub weight: u64,
}

impl Bin {
    pub fn new(batch: &Batch, documents: Vec<u32>) -> Bin {
        let tokens = batch.tokens(&documents);
        let weight = batch.times.weight(batch.load(&documents));
        Bin { documents, tokens, weight }
    }

    /// Both with one document of this one in the place of as many of `other`, by chance, as make room for it. None where the
    /// tokens of one do not allow it.
    pub fn exchanged(&self, other: &Bin, batch: &Batch, random: &mut Random) -> Option<(Bin, Bin)> {
        if self.documents.is_empty() {
            return None;
        }
        let most = batch.bins.tokens;
        let tokens = |document: u32| u64::from(batch.documents[document as usize].tokens);
        let (mut one, mut two) = (self.documents.clone(), other.documents.clone());
        let moved = one.swap_remove(random.below(one.len() as u64) as usize);
        let (mut in_one, mut in_two) = (self.tokens - tokens(moved), other.tokens + tokens(moved));
        // One more than are needed, at times.
        let mut spare = random.below(2);
        let mut back = Vec::new();
        while (in_two > most || spare > 0) && !two.is_empty() {
            spare = if in_two > most { spare } else { spare - 1 };
            let document = two.swap_remove(random.below(two.len() as u64) as usize);
            in_two -= tokens(document);
            in_one += tokens(document);
            back.push(document);
            if in_one > most {
                return None;
            }
        }
        two.push(moved);
        one.extend(back);
        (in_two <= most).then(|| (Bin::new(batch, one), Bin::new(batch, two)))
    }
}
