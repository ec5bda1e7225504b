//! The two number types that the CPU computes in.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use pipeplan_core::model::Dtype;

use crate::backend::Values;
use crate::transport::Buffer;

/// `f32`, or `f64` for comparisons that rounding must not blur.
///
/// Every machine gets the same bits: roots are exact by IEEE 754, and whatever no processor rounds exactly
/// comes from `libm` or from sums and products written out here.
pub trait Element:
    Copy
    + Debug
    + Default
    + PartialEq
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + AddAssign
    + Div<Output = Self>
    + Mul<Output = Self>
    + MulAssign
    + Neg<Output = Self>
    + Sub<Output = Self>
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Below every finite value.
    const LOWEST: Self;
    /// The format in a graph.
    const DTYPE: Dtype;

    /// The nearest value.
    fn of(value: f64) -> Self;
    /// The same value.
    fn wide(self) -> f64;
    /// e to this power.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The greater of two.
    fn greater(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
    /// As a transport carries it.
    fn pack(values: Vec<Self>) -> Buffer;
    /// Back again; nothing where the buffer holds the other type.
    fn unpack(buffer: Buffer) -> Option<Vec<Self>>;
    /// As a backend lends them.
    fn values(values: &mut [Self]) -> Values<'_>;
    /// `c = alpha · a · b + beta · c` by the tuned crate; see [`super::gemm`].
    fn tuned_gemm(call: super::gemm::Checked<'_, Self>);
}

impl Element for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const LOWEST: f32 = f32::NEG_INFINITY;
    const DTYPE: Dtype = Dtype::F32;

    fn of(value: f64) -> f32 {
        value as f32
    }

    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn exp(self) -> f32 {
        exp(self)
    }

    fn ln(self) -> f32 {
        libm::logf(self)
    }

    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }

    fn erf(self) -> f32 {
        libm::erff(self)
    }

    fn tanh(self) -> f32 {
        libm::tanhf(self)
    }

    fn pack(values: Vec<f32>) -> Buffer {
        Buffer::F32(values)
    }

    fn unpack(buffer: Buffer) -> Option<Vec<f32>> {
        if let Buffer::F32(values) = buffer { Some(values) } else { None }
    }

    fn values(values: &mut [f32]) -> Values<'_> {
        Values::F32(values)
    }

    fn tuned_gemm(call: super::gemm::Checked<'_, f32>) {
        call.single();
    }
}

impl Element for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const LOWEST: f64 = f64::NEG_INFINITY;
    const DTYPE: Dtype = Dtype::F64;

    fn of(value: f64) -> f64 {
        value
    }

    fn wide(self) -> f64 {
        self
    }

    fn exp(self) -> f64 {
        libm::exp(self)
    }

    fn ln(self) -> f64 {
        libm::log(self)
    }

    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }

    fn erf(self) -> f64 {
        libm::erf(self)
    }

    fn tanh(self) -> f64 {
        libm::tanh(self)
    }

    fn pack(values: Vec<f64>) -> Buffer {
        Buffer::F64(values)
    }

    fn unpack(buffer: Buffer) -> Option<Vec<f64>> {
        if let Buffer::F64(values) = buffer { Some(values) } else { None }
    }

    fn values(values: &mut [f64]) -> Values<'_> {
        Values::F64(values)
    }

    fn tuned_gemm(call: super::gemm::Checked<'_, f64>) {
        call.double();
    }
}

/// e to the power `x` within 1.5 units in the last place. Without a branch, so that loops over it become
/// vector instructions: `libm`'s takes a quarter of the time of training.
///
/// With `n = round(x / ln 2)` and `r = x − n · ln 2`, it is `2ⁿ · eʳ`; for `|r| ≤ ln 2 / 2` the series to
/// `r⁷` misses `r⁸ / 8!`, below 6 · 10⁻⁹.
fn exp(x: f32) -> f32 {
    /// Adding it leaves a float's integer part in its lowest bits.
    const SHIFT: f32 = 12_582_912.0; // 1.5 · 2²³
    /// ln 2 in two parts: the first has so few bits that its product with `n` is exact.
    const LN_2: (f32, f32) = (355.0 / 512.0, -2.121_944_4e-4);
    // Beyond these it is 0 or infinite.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = (x - n * LN_2.0) - n * LN_2.1;
    let mut series = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + factor;
    }
    // 2ⁿ in two halves, each of which a float can hold.
    let n = (shifted.to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n.wrapping_add(127)) << 23) as u32);
    series * power(half) * power(n.wrapping_sub(half))
}

/// How many sums a reduction carries side by side: enough to fill a vector register, and always the same,
/// so that the order of additions is too.
const LANES: usize = 8;

/// Σ `a[i] · b[i]`.
pub fn dot<T: Element>(a: &[T], b: &[T]) -> T {
    let mut sums = [T::ZERO; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += *a * *b;
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(a_rest).zip(b_rest) {
        *sum += *a * *b;
    }
    fold(sums)
}

/// Σ `a[i]`.
pub fn sum<T: Element>(a: &[T]) -> T {
    let mut sums = [T::ZERO; LANES];
    let chunks = a.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (sum, a) in sums.iter_mut().zip(chunk) {
            *sum += *a;
        }
    }
    for (sum, a) in sums.iter_mut().zip(rest) {
        *sum += *a;
    }
    fold(sums)
}

fn fold<T: Element>(sums: [T; LANES]) -> T {
    let mut total = T::ZERO;
    for sum in sums {
        total += sum;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_the_last_bits() {
        let mut worst = 0f64;
        for step in -870_000..=880_000i32 {
            let x = step as f32 * 1e-4;
            let expected = libm::exp(f64::from(x));
            let unit = f64::from(f32::from_bits((expected as f32).to_bits() + 1)) - f64::from(expected as f32);
            worst = worst.max((f64::from(exp(x)) - expected).abs() / unit);
        }
        assert!(worst < 1.5, "{worst} units in the last place");
        for (x, expected) in [(0.0, 1.0), (-200.0, 0.0), (f32::NEG_INFINITY, 0.0), (f32::INFINITY, f32::INFINITY)] {
            assert_eq!(exp(x), expected);
        }
        assert!(exp(88.72) > 3.39e38 && exp(88.73).is_infinite() && exp(f32::NAN).is_nan());
        assert!(exp(-100.0) > 0.0, "denormal numbers are there");
    }

    #[test]
    fn reductions_take_every_element() {
        for length in 0..40 {
            let values: Vec<f64> = (0..length).map(f64::from).collect();
            let total = f64::from(length * (length - 1)) / 2.0;
            assert_eq!(sum(&values), total);
            assert_eq!(dot(&values, &vec![2.0; values.len()]), 2.0 * total);
        }
    }
}
