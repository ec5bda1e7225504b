//! Arithmetic that a processor's floats have not as one operation.

/// `a * b + c`, rounded once to the nearest: worked out in 64 bits, where the product is exact, and rounded there to odd, so that
/// rounding again to 32 does not round twice (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let (sum, rest) = two_sum(product, f64::from(c));
    let bits = sum.to_bits();
    // `rest` is no number where the sum is none or infinite: then nothing is left over.
    let is_inexact = rest != 0.0 && rest.is_finite();
    if is_inexact && bits & 1 == 0 {
        let away = (rest > 0.0) == (sum > 0.0);
        return f64::from_bits(if away { bits + 1 } else { bits - 1 }) as f32;
    }
    sum as f32
}

/// The same, rounded down.
pub fn fma_down(a: f32, b: f32, c: f32) -> f32 {
    let (sum, rest) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    let near = sum as f32;
    let above = f64::from(near) > sum || (f64::from(near) == sum && rest < 0.0);
    if above && near.is_finite() { near.next_down() } else { near }
}

/// The rounded sum, and what it lacks (Knuth).
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// Subnormal numbers become 0, where an instruction says `.ftz`.
pub fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// The nearest bfloat16, ties to even; what is no number becomes the one that PTX has for it.
pub fn bf16(x: f32) -> u32 {
    if x.is_nan() {
        return 0x7fff;
    }
    let bits = u64::from(x.to_bits());
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u32
}

/// `max.f32`: the other one where one is no number; 0 is above -0.
pub fn greater(a: f32, b: f32) -> f32 {
    match () {
        () if a.is_nan() => b,
        () if b.is_nan() => a,
        () if a == b => {
            if a.is_sign_negative() {
                b
            } else {
                a
            }
        }
        () => {
            if a > b {
                a
            } else {
                b
            }
        }
    }
}

/// `min.f32`.
pub fn lesser(a: f32, b: f32) -> f32 {
    -greater(-a, -b)
}

/// Bytes of `a` and `b` in any order: nibble `i` of `order` says which of the eight comes to place `i`, and with its highest
/// bit that only its sign does, over and over.
pub fn permuted(a: u32, b: u32, order: u32) -> u32 {
    let all = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    let byte = |at: u32| {
        let nibble = order >> (4 * at) & 15;
        let byte = all[nibble as usize & 7];
        let byte = if nibble & 8 == 0 {
            byte
        } else if byte & 0x80 == 0 {
            0
        } else {
            0xff
        };
        u32::from(byte) << (8 * at)
    };
    (0..4).map(byte).sum()
}

/// A generator of numbers for orders that nothing should depend on (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// A number below `most`, which is not 0.
    pub fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % most as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_products_round_once() {
        let mut random = Random(7);
        let mut draw = || f32::from_bits(random.below(1 << 32) as u32);
        let mut checked = 0;
        for _ in 0..200_000 {
            let (a, b, c) = (draw(), draw(), draw());
            // A sum near the product, where rounding is hard.
            for c in [c, -a * b, a * b * 1e-7, -(a * b) * 3e-8] {
                let expected = a.mul_add(b, c);
                let found = fma(a, b, c);
                assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                    "{a:e} {b:e} {c:e}"
                );
                if expected.is_finite() {
                    let down = fma_down(a, b, c);
                    assert!(
                        down <= expected && down >= expected.next_down(),
                        "{a:e} {b:e} {c:e}: {down:e} {expected:e}"
                    );
                    checked += 1;
                }
            }
        }
        assert!(checked > 100_000);
        // What expf does: the whole part of a number lands in the last bits.
        assert_eq!(fma_down(0.999_999, 252.0, 12_582_913.0), 12_583_164.0);
        assert_eq!(permuted(0x3322_1100, 0x7766_5584, 0x1054), 0x1100_5584);
        assert_eq!(permuted(0x3322_1100, 0x7766_5584, 0xcccc), 0xffff_ffff);
    }
}
