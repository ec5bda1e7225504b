//! The two number types that the CPU computes in.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use pipeplan_core::model::Dtype;

use crate::transport::Buffer;

/// `f32`, or `f64` for comparisons that rounding must not blur.
///
/// All functions that no processor rounds exactly come from `libm`, so that every machine gets the same
/// bits.
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
    /// The greater of two.
    fn greater(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
    /// As a transport carries it.
    fn pack(values: Vec<Self>) -> Buffer;
    /// Back again; nothing where the buffer holds the other type.
    fn unpack(buffer: Buffer) -> Option<Vec<Self>>;
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
        libm::expf(self)
    }

    fn ln(self) -> f32 {
        libm::logf(self)
    }

    fn sqrt(self) -> f32 {
        libm::sqrtf(self)
    }

    fn erf(self) -> f32 {
        libm::erff(self)
    }

    fn pack(values: Vec<f32>) -> Buffer {
        Buffer::F32(values)
    }

    fn unpack(buffer: Buffer) -> Option<Vec<f32>> {
        if let Buffer::F32(values) = buffer { Some(values) } else { None }
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
        libm::sqrt(self)
    }

    fn erf(self) -> f64 {
        libm::erf(self)
    }

    fn pack(values: Vec<f64>) -> Buffer {
        Buffer::F64(values)
    }

    fn unpack(buffer: Buffer) -> Option<Vec<f64>> {
        if let Buffer::F64(values) = buffer { Some(values) } else { None }
    }

    fn tuned_gemm(call: super::gemm::Checked<'_, f64>) {
        call.double();
    }
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
