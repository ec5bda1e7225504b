//! The best partition of equal layers within a memory limit, where a rank holds several stages.
//!
//! The time and bytes of a stage then follow from its number of layers, and ranks have only the sum of their layers
//! in common. So each rank is settled alone. Fewer layers never need more: if a rank fits with some layers, it fits
//! with one less.
//!
//! First, bisection finds the least time of the slowest stage, over the times that stages can have: for a given time,
//! the most layers of all ranks either reach the model's layers or not. Then dynamic programming over the ranks finds
//! the evenest partition within it, from the evenest one of each rank for each number of layers.

pub(crate) mod kinds;

use alloc::vec;
use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};

/// Deals of single ranks that are looked at: some milliseconds.
pub(crate) const MOST_LOOKS: u64 = 200_000;

/// Ranks that hold the same stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Their stages.
    pub stages: Vec<usize>,
    /// When they may hold the most: the microbatches of each of `stages` in turn.
    pub moments: Vec<Vec<u64>>,
}

/// What a stage needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Bytes held throughout.
    pub fixed: Bytes,
    /// Bytes of each microbatch that it holds.
    pub each: Bytes,
    /// Bytes while an op runs.
    pub workspace: Bytes,
}

/// Why there is no best partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    /// None fits.
    NothingFits,
    /// There are too many to look at.
    TooMany,
}

struct Dealer<'a> {
    groups: &'a [Group],
    limit: Bytes,
    /// By stage and number of layers, as far as known.
    known: Vec<Vec<Option<Needs>>>,
    needs: &'a mut dyn FnMut(usize, u32) -> Needs,
    time: &'a dyn Fn(usize, u32) -> Nanos,
    looks: u64,
}

/// The number of layers of each stage, at least one, so that the slowest stage is as fast as it can be while all of
/// `groups` hold at most `limit`, and of those partitions the one whose times have the least sum of squares. `needs`
/// and `time` say what a stage with so many layers needs, which is never less with more layers; `needs` is asked for
/// few numbers.
pub(crate) fn best(
    layers: u32,
    groups: &[Group],
    limit: Bytes,
    needs: &mut dyn FnMut(usize, u32) -> Needs,
    time: &dyn Fn(usize, u32) -> Nanos,
) -> Result<Vec<u32>, Without> {
    let stages: usize = groups.iter().map(|group| group.stages.len()).sum();
    let most = layers.saturating_sub(stages as u32 - 1);
    let known = vec![vec![None; most as usize + 1]; stages];
    let mut dealer = Dealer { groups, limit, known, needs, time, looks: 0 };
    // The times that the slowest stage can have.
    let mut times: Vec<Nanos> = Vec::new();
    for stage in [0, stages / 2, stages - 1] {
        times.extend((1..=most).map(|count| time(stage, count)));
    }
    times.sort_unstable();
    times.dedup();
    // Without regard to the limit; with it, the answer is seldom far.
    let by_time = |slowest: &Nanos| {
        let caps = (0..groups.len()).flat_map(|group| dealer.caps(group, *slowest, most));
        caps.fold(0, u32::saturating_add) < layers
    };
    let mut least = times.partition_point(by_time);
    let (mut end, mut stride) = (least, 1);
    while end < times.len() && dealer.takes(times[end], most)? < layers {
        least = end + 1;
        end = (end + stride).min(times.len());
        stride *= 2;
    }
    while least < end {
        let middle = (least + end) / 2;
        if dealer.takes(times[middle], most)? >= layers { end = middle } else { least = middle + 1 }
    }
    let Some(slowest) = times.get(least).copied() else { return Err(Without::NothingFits) };
    dealer.evenest(layers, slowest, most)
}

impl Dealer<'_> {
    fn of(&mut self, stage: usize, count: u32) -> Needs {
        if let Some(known) = self.known[stage][count as usize] {
            return known;
        }
        let needs = (self.needs)(stage, count);
        self.known[stage][count as usize] = Some(needs);
        needs
    }

    /// The most layers, up to `most`, with which each stage of `group` takes no longer than `slowest`.
    fn caps(&self, group: usize, slowest: Nanos, most: u32) -> Vec<u32> {
        let cap = |stage: &usize| {
            let (mut least, mut end) = (0, most);
            while least < end {
                let middle = (least + end).div_ceil(2);
                if (self.time)(*stage, middle) <= slowest { least = middle } else { end = middle - 1 }
            }
            least
        };
        self.groups[group].stages.iter().map(cap).collect()
    }

    /// Whether `group` fits with these layers on its stages.
    fn fits(&mut self, group: usize, counts: &[u32]) -> Result<bool, Without> {
        self.looks += 1;
        if self.looks > MOST_LOOKS {
            return Err(Without::TooMany);
        }
        let groups = self.groups;
        let group = &groups[group];
        let needs: Vec<Needs> =
            group.stages.iter().zip(counts).map(|(stage, count)| self.of(*stage, *count)).collect();
        let fixed = needs.iter().fold(0, |sum: Bytes, needs| sum.saturating_add(needs.fixed));
        let workspace = needs.iter().map(|needs| needs.workspace).max().unwrap_or(0);
        let limit = self.limit;
        let fits = |held: &Vec<u64>| {
            let kept = needs.iter().zip(held).map(|(needs, held)| needs.each.saturating_mul(*held));
            kept.fold(fixed.saturating_add(workspace), Bytes::saturating_add) <= limit
        };
        Ok(group.moments.iter().all(fits))
    }

    /// How many layers all groups can take together with no stage slower than `slowest`; 0 where one cannot take even
    /// one layer a stage.
    fn takes(&mut self, slowest: Nanos, most: u32) -> Result<u32, Without> {
        let mut sum: u32 = 0;
        for group in 0..self.groups.len() {
            let caps = self.caps(group, slowest, most);
            let mut best = 0;
            self.deepen(group, &caps, &mut vec![1; caps.len()], 0, &mut best)?;
            if best == 0 {
                return Ok(0);
            }
            sum = sum.saturating_add(best);
        }
        Ok(sum)
    }

    /// The most layers of `group` with those before `at` given, where that is more than `best`.
    fn deepen(
        &mut self,
        group: usize,
        caps: &[u32],
        counts: &mut Vec<u32>,
        at: usize,
        best: &mut u32,
    ) -> Result<(), Without> {
        let Some(cap) = caps.get(at).copied() else { return Ok(()) };
        if caps.contains(&0) {
            return Ok(());
        }
        let (before, behind) = (counts[..at].iter().sum::<u32>(), caps[at + 1..].iter().sum::<u32>());
        // With one layer on each later stage; all with less fit too.
        let (mut least, mut end) = (0, cap);
        while least < end {
            let middle = (least + end).div_ceil(2);
            counts[at] = middle;
            if self.fits(group, counts)? { least = middle } else { end = middle - 1 }
        }
        for count in (1..=least).rev() {
            if before + count + behind <= *best {
                break;
            }
            counts[at] = count;
            if at + 1 == caps.len() {
                *best = before + count;
            } else {
                self.deepen(group, caps, counts, at + 1, best)?;
            }
        }
        counts[at] = 1;
        Ok(())
    }

    fn evenest(&mut self, layers: u32, slowest: Nanos, most: u32) -> Result<Vec<u32>, Without> {
        let mut takes = Vec::new();
        for group in 0..self.groups.len() {
            let caps = self.caps(group, slowest, most);
            let mut best = 0;
            self.deepen(group, &caps, &mut vec![1; caps.len()], 0, &mut best)?;
            takes.push((caps, best));
        }
        let sum: u32 = takes.iter().map(|(_, best)| best).sum();
        // By layers so far: the least sum of squares; and for each group what it then takes.
        let mut squares: Vec<Option<u128>> = vec![None; layers as usize + 1];
        squares[0] = Some(0);
        let mut chosen: Vec<Vec<Option<Vec<u32>>>> = Vec::new();
        for (group, (caps, best)) in takes.iter().enumerate() {
            // All the others at their most leave at least so many.
            let least = layers.saturating_sub(sum - best);
            let mut own: Vec<Option<(u128, Vec<u32>)>> = vec![None; *best as usize + 1];
            self.list(group, caps, least, &mut vec![1; caps.len()], 0, 0, &mut own)?;
            let mut next: Vec<Option<u128>> = vec![None; layers as usize + 1];
            let mut taken: Vec<Option<Vec<u32>>> = vec![None; layers as usize + 1];
            for (count, (more, counts)) in own.iter().enumerate().filter_map(|(at, own)| Some((at, own.as_ref()?))) {
                for (so_far, before) in squares.iter().enumerate() {
                    let Some(before) = before else { continue };
                    let at = so_far + count;
                    let sum = before.saturating_add(*more);
                    if at <= layers as usize && next[at].is_none_or(|known| sum < known) {
                        (next[at], taken[at]) = (Some(sum), Some(counts.clone()));
                    }
                }
            }
            squares = next;
            chosen.push(taken);
        }
        let mut counts = vec![0; self.known.len()];
        let mut left = layers as usize;
        for (group, taken) in self.groups.iter().zip(&chosen).rev() {
            let Some(taken) = &taken[left] else { return Err(Without::NothingFits) };
            for (stage, count) in group.stages.iter().zip(taken) {
                counts[*stage] = *count;
                left -= *count as usize;
            }
        }
        Ok(counts)
    }

    /// By number of layers from `least` on, the evenest partition of `group` that fits.
    #[expect(clippy::too_many_arguments, reason = "a recursion with what it has gathered")]
    fn list(
        &mut self,
        group: usize,
        caps: &[u32],
        least: u32,
        counts: &mut Vec<u32>,
        at: usize,
        squares: u128,
        own: &mut [Option<(u128, Vec<u32>)>],
    ) -> Result<(), Without> {
        let before: u32 = counts[..at].iter().sum();
        let Some(cap) = caps.get(at).copied() else {
            if let Some(own) = own.get_mut(before as usize)
                && own.as_ref().is_none_or(|(known, _)| squares < *known)
            {
                *own = Some((squares, counts.clone()));
            }
            return Ok(());
        };
        let behind: u32 = caps[at + 1..].iter().sum();
        for count in 1..=cap {
            counts[at] = count;
            if before + count + behind < least {
                continue;
            }
            if !self.fits(group, counts)? {
                break;
            }
            let time = u128::from((self.time)(self.groups[group].stages[at], count));
            self.list(group, caps, least, counts, at + 1, squares.saturating_add(time * time), own)?;
        }
        counts[at] = 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The least (slowest time, sum of squares) over all partitions, by trying every one.
    fn least(
        layers: u32,
        groups: &[Group],
        limit: Bytes,
        needs: &dyn Fn(usize, u32) -> Needs,
        time: &dyn Fn(usize, u32) -> Nanos,
    ) -> Option<(u64, u128)> {
        let stages: usize = groups.iter().map(|group| group.stages.len()).sum();
        let mut best = None;
        let mut counts = vec![1u32; stages];
        loop {
            if counts.iter().sum::<u32>() == layers && groups.iter().all(|group| holds(group, &counts, limit, needs))
            {
                let figures = figures(&counts, time);
                if best.is_none_or(|best| figures < best) {
                    best = Some(figures);
                }
            }
            let Some(at) = counts.iter().position(|count| *count < layers) else { return best };
            counts[..at].fill(1);
            counts[at] += 1;
        }
    }

    fn figures(counts: &[u32], time: &dyn Fn(usize, u32) -> Nanos) -> (u64, u128) {
        let times = counts.iter().enumerate().map(|(stage, count)| time(stage, *count));
        (times.clone().max().unwrap_or(0), times.map(|time| u128::from(time) * u128::from(time)).sum())
    }

    fn holds(group: &Group, counts: &[u32], limit: Bytes, needs: &dyn Fn(usize, u32) -> Needs) -> bool {
        group.moments.iter().all(|moment| {
            let (mut kept, mut workspace) = (0, 0);
            for (stage, held) in group.stages.iter().zip(moment) {
                let of = needs(*stage, counts[*stage]);
                kept += of.fixed + of.each * held;
                workspace = workspace.max(of.workspace);
            }
            kept + workspace <= limit
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// No partition within the limit is better, on ranks with stages here and there.
        #[test]
        fn no_partition_is_better(
            layers in 4u32..10, is_v in any::<bool>(), limit in 10u64..200,
            (fixed, each, workspace, time) in (0u64..6, 1u64..5, 0u64..9, 1u64..9),
            ends in [0u64..30, 0u64..30],
            held in proptest::collection::vec(proptest::collection::vec(1u64..5, 2..=2), 2..5),
        ) {
            let stages = if is_v { [[0, 3], [1, 2]] } else { [[0, 2], [1, 3]] };
            let groups: Vec<Group> = stages
                .iter()
                .enumerate()
                .map(|(at, stages)| {
                    let moments = held.iter().skip(at).step_by(2).cloned().collect();
                    Group { stages: stages.to_vec(), moments }
                })
                .collect();
            let of_end = |stage: usize| match stage { 0 => ends[0], 3 => ends[1], _ => 0 };
            let needs = |stage: usize, count: u32| {
                let count = u64::from(count);
                let fixed = fixed * count + of_end(stage);
                Needs { fixed, each: each * count, workspace: workspace.min(count * 3) }
            };
            let time = |stage: usize, count: u32| time * u64::from(count) + of_end(stage);
            let found = best(layers, &groups, limit, &mut |stage, count| needs(stage, count), &time);
            match least(layers, &groups, limit, &needs, &time) {
                Some(figures_of_best) => {
                    let counts = found.unwrap();
                    prop_assert_eq!(counts.iter().sum::<u32>(), layers);
                    prop_assert!(groups.iter().all(|group| holds(group, &counts, limit, &needs)));
                    prop_assert_eq!(figures(&counts, &time), figures_of_best);
                }
                None => prop_assert_eq!(found, Err(Without::NothingFits)),
            }
        }
    }
}
