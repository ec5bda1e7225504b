//! Which bytes of a queue's memory hold which tensor. No call of a library: the card's memory is taken in slabs, and dealt
//! out here.
//!
//! All work of a queue runs in the order in which it is put there, so what is given back may be dealt out again at once:
//! whoever gets it next also comes later. And since nothing here depends on time, a job that finds the memory as another
//! job found it gets the same places, which is what lets its work be [repeated](super::jobs) as a whole.

use std::collections::{BTreeMap, BTreeSet};

use pipeplan_core::base::units::Bytes;

use super::card::Held;

/// Places start at multiples of this, as those of a card's own allocator do: 16-byte accesses and cuBLAS count on it.
pub const ALIGNMENT: Bytes = 256;

/// Memory in slabs.
#[derive(Clone, Debug, Default)]
pub struct Heap {
    /// Slabs by their start.
    slabs: BTreeMap<u64, Bytes>,
    /// What is free, by its start. No two of one slab touch.
    free: BTreeMap<u64, Bytes>,
    /// The same by its room, then its start.
    by_room: BTreeSet<(Bytes, u64)>,
    used: Bytes,
    most: Bytes,
}

/// What `bytes` take up.
pub fn rounded(bytes: Bytes) -> Bytes {
    bytes.max(1).next_multiple_of(ALIGNMENT)
}

impl Heap {
    /// Takes in a slab of memory.
    pub fn add(&mut self, start: u64, bytes: Bytes) {
        self.slabs.insert(start, bytes);
        self.put(start, bytes);
    }

    fn put(&mut self, start: u64, room: Bytes) {
        self.free.insert(start, room);
        self.by_room.insert((room, start));
    }

    fn take(&mut self, start: u64) -> Option<Bytes> {
        let room = self.free.remove(&start)?;
        self.by_room.remove(&(room, start));
        Some(room)
    }

    /// A place for `bytes`; nothing where no slab has so much in one piece. What is held briefly lies at the upper ends,
    /// so that it leaves no gaps between what stays.
    pub fn allocate(&mut self, bytes: Bytes, held: Held) -> Option<u64> {
        let bytes = rounded(bytes);
        let at_top = held == Held::Briefly;
        // The least room that does; of equals the lowest, or the highest.
        let (room, lowest) = *self.by_room.range((bytes, 0)..).next()?;
        let highest = self.by_room.range(..=(room, u64::MAX)).next_back().map_or(lowest, |(_, start)| *start);
        let start = if at_top { highest } else { lowest };
        self.take(start)?;
        let at = if at_top { start + room - bytes } else { start };
        for (start, room) in [(start, at - start), (at + bytes, start + room - at - bytes)] {
            if room > 0 {
                self.put(start, room);
            }
        }
        self.used += bytes;
        self.most = self.most.max(self.used);
        Some(at)
    }

    /// Takes back what was given for `bytes` bytes.
    pub fn give_back(&mut self, at: u64, bytes: Bytes) {
        let bytes = rounded(bytes);
        self.used -= bytes;
        let (mut start, mut end) = (at, at + bytes);
        let slab = self.slabs.range(..=at).next_back().map_or((at, bytes), |(start, bytes)| (*start, *bytes));
        let before = self.free.range(..at).next_back().map(|(start, room)| (*start, *room));
        if let Some((other, _)) = before.filter(|(other, room)| *other >= slab.0 && other + room == start) {
            self.take(other);
            start = other;
        }
        if end < slab.0 + slab.1
            && let Some(room) = self.take(end)
        {
            end += room;
        }
        self.put(start, end - start);
    }

    /// Slabs of which nothing is in use, which are none of the heap's any more.
    pub fn give_up(&mut self) -> Vec<u64> {
        let unused = |(start, bytes): &(&u64, &Bytes)| self.free.get(start) == Some(bytes);
        let unused: Vec<u64> = self.slabs.iter().filter(unused).map(|(start, _)| *start).collect();
        for start in &unused {
            self.take(*start);
            self.slabs.remove(start);
        }
        unused
    }

    /// Bytes of all slabs.
    pub fn taken(&self) -> Bytes {
        self.slabs.values().sum()
    }

    /// The most bytes that were in use at once.
    pub fn most(&self) -> Bytes {
        self.most
    }

    /// The slabs, for the caller to free.
    pub fn slabs(&self) -> impl Iterator<Item = (u64, Bytes)> {
        self.slabs.iter().map(|(start, bytes)| (*start, *bytes))
    }

    #[cfg(test)]
    fn free_pieces(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::random::SplitMix64;

    #[test]
    fn places_are_apart_aligned_and_come_back_whole() {
        let mut random = SplitMix64::new(5);
        let mut heap = Heap::default();
        // Two slabs that touch: no place may reach from one into the other.
        heap.add(1 << 20, 1 << 16);
        heap.add((1 << 20) + (1 << 16), 1 << 16);
        let mut held: Vec<(u64, Bytes)> = Vec::new();
        for _ in 0..20_000 {
            if random.below(2) == 0 || held.is_empty() {
                let bytes = 1 + random.below(9000);
                let kind = [Held::Kept, Held::Briefly][random.below(2) as usize];
                let Some(at) = heap.allocate(bytes, kind) else { continue };
                assert!(at.is_multiple_of(ALIGNMENT));
                let slab = heap.slabs().find(|(start, room)| at >= *start && at + bytes <= start + room);
                assert!(slab.is_some(), "{bytes} bytes at {at} are in no slab");
                let apart = |(other, size): &(u64, Bytes)| at + bytes <= *other || other + size <= at;
                assert!(held.iter().all(apart));
                held.push((at, bytes));
            } else {
                let (at, bytes) = held.swap_remove(random.below(held.len() as u64) as usize);
                heap.give_back(at, bytes);
            }
            assert_eq!(heap.used, held.iter().map(|(_, bytes)| rounded(*bytes)).sum::<Bytes>());
        }
        held.into_iter().for_each(|(at, bytes)| heap.give_back(at, bytes));
        assert_eq!((heap.used, heap.free_pieces(), heap.taken()), (0, 2, 1 << 17));
        let kept = heap.allocate(1, Held::Kept).expect("room");
        assert_eq!(heap.give_up().len(), 1);
        heap.give_back(kept, 1);
        assert_eq!((heap.give_up().len(), heap.taken(), heap.free_pieces()), (1, 0, 0));
    }

    #[test]
    fn the_same_requests_get_the_same_places_again() {
        let mut heap = Heap::default();
        heap.add(256, 1 << 20);
        let mut random = SplitMix64::new(6);
        let sizes: Vec<(Bytes, Held)> = (0..40)
            .map(|at| (1 + random.below(20_000), if at % 3 == 0 { Held::Kept } else { Held::Briefly }))
            .collect();
        let mut once = || {
            let places: Vec<u64> =
                sizes.iter().map(|(bytes, held)| heap.allocate(*bytes, *held).expect("room")).collect();
            places.iter().zip(&sizes).for_each(|(at, (bytes, _))| heap.give_back(*at, *bytes));
            places
        };
        assert_eq!(once(), once());
    }
}
