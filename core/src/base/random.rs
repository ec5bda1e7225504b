//! Random numbers that are the same everywhere: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// `value` up to a third larger or smaller, within a range.
    pub fn scaled(&mut self, value: i64, least: i64, most: i64) -> i64 {
        let by = 750 + self.below(584) as i64;
        (value.saturating_mul(by) / 1000).clamp(least, most)
    }
}
