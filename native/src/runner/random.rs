//! Numbers that look random and are the same everywhere: initial weights, the order of the data, injected
//! faults.

/// SplitMix64 (Steele, Lea, Flood: “Fast splittable pseudorandom number generators”, OOPSLA 2014): every
/// seed gives its own full-period sequence.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

/// What one draw adds to the state.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SplitMix64 {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed }
    }

    /// The sequence of `seed` for what `name` names: two names share nothing.
    pub fn named(seed: u64, name: &str) -> SplitMix64 {
        // FNV-1a takes in the name; one draw of the generator spreads the sum over all bits.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mixed = SplitMix64::new(hash).draw();
        SplitMix64::new(SplitMix64::new(seed).draw() ^ mixed)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The same sequence, `draws` draws further on.
    pub fn after(&self, draws: u64) -> SplitMix64 {
        SplitMix64 { state: self.state.wrapping_add(STEP.wrapping_mul(draws)) }
    }

    /// A whole number below `bound`; 0 for a bound of 0. Its bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// A number above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        ((self.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// How many draws [`SplitMix64::normal`] makes.
    pub const DRAWS_OF_A_NORMAL: u64 = 2;

    /// One value of the standard normal distribution (Box and Muller, 1958), by `libm` so that every
    /// machine gets the same bits.
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.unit()));
        radius * libm::cos(core::f64::consts::TAU * self.unit())
    }

    /// Puts `items` in random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_the_published_generator() {
        // The first outputs for seed 1234567 that Rosetta Code lists for SplitMix64.
        let mut random = SplitMix64::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.draw()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn a_sequence_can_be_entered_anywhere() {
        let mut random = SplitMix64::named(3, "dropout");
        let start = random.clone();
        for draws in 0..20 {
            assert_eq!(start.after(draws).draw(), random.draw());
        }
    }

    #[test]
    fn normals_have_mean_0_and_variance_1() {
        let mut random = SplitMix64::named(7, "layers.0.attention.wq");
        let count = 100_000;
        let values: Vec<f64> = (0..count).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f64>() / f64::from(count);
        let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / f64::from(count);
        // Six standard errors: 6/√100000 ≈ 0.019 and 6·√(2/100000) ≈ 0.027.
        assert!(mean.abs() < 0.019 && (variance - 1.0).abs() < 0.027, "{mean} {variance}");
    }

    #[test]
    fn a_shuffle_is_a_permutation() {
        let mut items: Vec<u32> = (0..1000).collect();
        SplitMix64::new(3).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<u32>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<u32>>());
    }
}
