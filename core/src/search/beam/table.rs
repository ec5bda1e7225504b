//! States by hash, to find those with the same ops started.

use alloc::vec;
use alloc::vec::Vec;

/// States by hash.
pub(super) struct Table {
    places: Vec<(u64, u32)>,
}

const EMPTY: u32 = u32::MAX;

impl Table {
    pub(super) fn new(width: usize) -> Table {
        Table { places: vec![(0, EMPTY); (4 * width).next_power_of_two()] }
    }

    pub(super) fn clear(&mut self) {
        self.places.fill((0, EMPTY));
    }

    /// Whether one of the states with this hash is such.
    pub(super) fn meets(&self, hash: u64, mut is_such: impl FnMut(usize) -> bool) -> bool {
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        while self.places[at].1 != EMPTY {
            if self.places[at].0 == hash && is_such(self.places[at].1 as usize) {
                return true;
            }
            at = (at + 1) & mask;
        }
        false
    }

    pub(super) fn insert(&mut self, hash: u64, state: usize) {
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        while self.places[at].1 != EMPTY {
            at = (at + 1) & mask;
        }
        self.places[at] = (hash, state as u32);
    }
}
