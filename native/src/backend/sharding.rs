//! What data-parallel copies of a weight shard among themselves (ZeRO, arXiv:1910.02054), and which elements are whose.

use std::ops::Range;

use pipeplan_core::graph::Tensor;
use pipeplan_core::graph::layout::{Layout, ReduceGradients};

/// Which part of every weight's states a rank holds and which elements it updates, where data-parallel replicas shard
/// them. Elements in order, parts as equal as can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// This rank's position in the sharding group.
    pub member: usize,
    /// Size of the sharding group, at least 1.
    pub members: usize,
}

impl Share {
    /// All of it.
    pub const WHOLE: Share = Share { member: 0, members: 1 };

    /// The elements of this share, of `elements` in all.
    pub fn of(self, elements: usize) -> Range<usize> {
        let members = self.members.max(1);
        let start = |member: usize| member * (elements / members) + member.min(elements % members);
        start(self.member)..start(self.member + 1).min(elements)
    }

    /// The elements of every member's share.
    pub fn counts(self, elements: usize) -> Vec<usize> {
        (0..self.members).map(|member| Share { member, ..self }.of(elements).len()).collect()
    }
}

/// What data-parallel copies shard, and when they reduce gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharding {
    /// Whether optimizer states are sharded (ZeRO 1 and up).
    pub optimizer: bool,
    /// Whether gradients are sharded where they are reduced for each microbatch (ZeRO 2 and 3).
    pub gradients: bool,
    /// Whether weights are sharded, and gathered before they are used (ZeRO 3).
    pub weights: bool,
    /// Copies of a sharding group, which follow each other (HSDP); 0: all copies are one group.
    pub group: usize,
    /// Whether gradients are reduced for each microbatch.
    pub each_microbatch: bool,
}

impl Sharding {
    /// Optimizer states over all copies (ZeRO 1).
    pub const OPTIMIZER: Sharding =
        Sharding { optimizer: true, gradients: false, weights: false, group: 0, each_microbatch: false };

    /// As `layout` has it.
    pub fn of(layout: &Layout) -> Sharding {
        let is_shared = layout.copies() > 1;
        let from = |zero: u32| is_shared && layout.zero >= zero;
        Sharding {
            optimizer: from(1),
            gradients: from(2),
            weights: from(3),
            // A group of all copies is none.
            group: layout.shard.filter(|shard| from(1) && u64::from(*shard) < layout.copies()).unwrap_or(0) as usize,
            each_microbatch: is_shared && layout.reduces_gradients() == ReduceGradients::EachMicrobatch,
        }
    }

    /// Of `copies` of a weight, those of a sharding group; 1 where nothing is sharded.
    pub fn sharers(self, copies: usize) -> usize {
        match (self.optimizer, self.group) {
            (false, _) => 1,
            (true, 0) => copies.max(1),
            (true, group) => copies.min(group).max(1),
        }
    }

    /// What copy number `copy` of `copies` holds.
    pub fn share(self, copy: usize, copies: usize) -> Share {
        let members = self.sharers(copies);
        Share { member: copy % members, members }
    }

    /// How a weight is kept of which this rank holds `share`, and of which there are `copies`.
    pub fn of_weight(self, share: Share, copies: usize) -> WeightSharding {
        let is_shared = share.members > 1;
        let reduces = self.each_microbatch && copies > 1;
        WeightSharding {
            share,
            weight: self.weights && is_shared,
            reduces,
            gradient: self.gradients && reduces && is_shared,
        }
    }
}

/// How a rank keeps a weight and its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightSharding {
    /// Its part of the optimizer states, and of what else is sharded.
    pub share: Share,
    /// Whether it keeps its share of the weight alone.
    pub weight: bool,
    /// Whether it reduces the gradient over copies for each microbatch.
    pub reduces: bool,
    /// Whether it keeps its share of the gradient alone.
    pub gradient: bool,
}

impl WeightSharding {
    /// All of it, whole.
    pub const WHOLE: WeightSharding =
        WeightSharding { share: Share::WHOLE, weight: false, reduces: false, gradient: false };
}

/// The same of all weights of a rank: experts have other copies than all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShardings {
    /// Of the matrices of experts.
    pub experts: WeightSharding,
    /// Of all other weights.
    pub others: WeightSharding,
}

impl WeightShardings {
    /// All of it, whole.
    pub const WHOLE: WeightShardings =
        WeightShardings { experts: WeightSharding::WHOLE, others: WeightSharding::WHOLE };

    /// That of `weight`.
    pub fn of(self, weight: &Tensor) -> WeightSharding {
        if weight.expert_ways().is_some() { self.experts } else { self.others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ZeRO's stages, one after the other, and a group of 2 among 6 copies.
    #[test]
    fn stages_of_zero_shard_more_and_more() {
        let layout = |zero, shard| Layout { data: 6, zero, shard, ..Layout::default() };
        let of = |zero| {
            let sharding = Sharding::of(&layout(zero, None));
            let kept = sharding.of_weight(sharding.share(4, 6), 6);
            (kept.share, kept.gradient, kept.weight)
        };
        let sixth = Share { member: 4, members: 6 };
        let expected =
            [(Share::WHOLE, false, false), (sixth, false, false), (sixth, true, false), (sixth, true, true)];
        assert_eq!([of(0), of(1), of(2), of(3)], expected);
        let sharding = Sharding::of(&layout(3, Some(2)));
        assert_eq!((sharding.sharers(6), sharding.share(5, 6)), (2, Share { member: 1, members: 2 }));
        assert_eq!(Sharding::of(&layout(1, Some(6))), Sharding::OPTIMIZER, "one group of all");
        // A group is never larger than the copies of experts.
        assert_eq!(sharding.sharers(1), 1);
        assert_eq!(Sharding::of(&Layout { zero: 3, ..Layout::default() }), Sharding::default(), "one copy");
    }

    #[test]
    fn shares_cover_all_elements_once() {
        for (elements, members) in [(10, 4), (3, 4), (0, 2), (8, 1)] {
            let share = |member| Share { member, members };
            let all: Vec<usize> = (0..members).flat_map(|member| share(member).of(elements)).collect();
            assert_eq!(all, (0..elements).collect::<Vec<_>>());
            assert_eq!(share(0).counts(elements).iter().sum::<usize>(), elements);
        }
    }
}
