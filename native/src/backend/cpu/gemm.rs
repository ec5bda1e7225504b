//! Matrix products: the one thing that a tuned library does far better than loops.

use super::element::Element;

/// A matrix to read: element (i, j) is `data[i · row + j · column]`. So a transpose, or one head of several,
/// is a matter of strides.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub column: usize,
}

impl<'a, T> Operand<'a, T> {
    /// A row-major matrix, `row` elements apart.
    pub fn rows(data: &'a [T], row: usize) -> Operand<'a, T> {
        Operand { data, row, column: 1 }
    }

    /// The same matrix, transposed.
    pub fn transposed(self) -> Operand<'a, T> {
        Operand { row: self.column, column: self.row, ..self }
    }
}

/// Rows and columns of a product: `c [rows, columns] = a [rows, inner] · b [inner, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of `a` and `c`.
    pub rows: usize,
    /// Columns of `a`, rows of `b`.
    pub inner: usize,
    /// Columns of `b` and `c`.
    pub columns: usize,
}

/// Something that multiplies matrices on the calling thread, with the same bits at every call.
pub trait Gemm<T>: Send {
    /// `c = alpha · a · b + beta · c`, `c` row-major with `c_row` elements from row to row. With `beta` 0,
    /// `c` is not read.
    ///
    /// # Panics
    /// Where a matrix does not lie within its slice.
    #[allow(clippy::too_many_arguments, reason = "these are the arguments of a gemm")]
    fn gemm(&self, size: Size, alpha: T, a: Operand<'_, T>, b: Operand<'_, T>, beta: T, c: &mut [T], c_row: usize);
}

/// A product whose matrices are known to lie within their slices.
pub struct Checked<'a, T> {
    size: Size,
    alpha: T,
    a: Operand<'a, T>,
    b: Operand<'a, T>,
    beta: T,
    c: &'a mut [T],
    c_row: usize,
}

impl<'a, T> Checked<'a, T> {
    /// Checks the bounds; nothing to do where a size is 0 and `beta` 1.
    ///
    /// # Panics
    /// Where a matrix does not lie within its slice, or rows of `c` overlap.
    pub fn new(
        size: Size,
        (alpha, beta): (T, T),
        a: Operand<'a, T>,
        b: Operand<'a, T>,
        c: &'a mut [T],
        c_row: usize,
    ) -> Checked<'a, T> {
        let within = |rows: usize, columns: usize, row: usize, column: usize, length: usize| {
            rows == 0 || columns == 0 || {
                let last = (rows - 1).checked_mul(row).zip((columns - 1).checked_mul(column));
                let last = last.and_then(|(down, across)| down.checked_add(across));
                last.is_some_and(|last| last < length && last <= isize::MAX as usize)
            }
        };
        let Size { rows, inner, columns } = size;
        assert!(within(rows, inner, a.row, a.column, a.data.len()), "the left matrix leaves its slice: {size:?}");
        assert!(within(inner, columns, b.row, b.column, b.data.len()), "the right matrix leaves its slice: {size:?}");
        assert!(within(rows, columns, c_row, 1, c.len()), "the product leaves its slice: {size:?}");
        assert!(rows <= 1 || c_row >= columns, "rows of the product overlap: {size:?}");
        Checked { size, alpha, a, b, beta, c, c_row }
    }
}

/// Two calls, one for each type: the crate has a function for each.
macro_rules! call {
    ($self:ident, $function:path) => {{
        let Checked { size, alpha, a, b, beta, c, c_row } = $self;
        #[allow(unsafe_code, reason = "the crate takes pointers")]
        // SAFETY: `Checked::new` has asserted that the last element of each matrix lies within its slice and
        // that all strides fit `isize`, so every element that the function touches does. `c` is borrowed
        // for writing, hence apart from `a` and `b`, and its rows do not overlap.
        unsafe {
            $function(
                size.rows,
                size.inner,
                size.columns,
                alpha,
                a.data.as_ptr(),
                a.row as isize,
                a.column as isize,
                b.data.as_ptr(),
                b.row as isize,
                b.column as isize,
                beta,
                c.as_mut_ptr(),
                c_row as isize,
                1,
            );
        }
    }};
}

impl Checked<'_, f32> {
    /// The product in `f32`.
    pub fn single(self) {
        call!(self, matrixmultiply::sgemm);
    }
}

impl Checked<'_, f64> {
    /// The product in `f64`.
    pub fn double(self) {
        call!(self, matrixmultiply::dgemm);
    }
}

/// The `matrixmultiply` crate: at the peak of one core, with bits that depend on which vector instructions
/// the processor has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tuned;

impl<T: Element> Gemm<T> for Tuned {
    fn gemm(&self, size: Size, alpha: T, a: Operand<'_, T>, b: Operand<'_, T>, beta: T, c: &mut [T], c_row: usize) {
        T::tuned_gemm(Checked::new(size, (alpha, beta), a, b, c, c_row));
    }
}

/// Three loops in a fixed order: slow, with the same bits on every machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl<T: Element> Gemm<T> for Plain {
    fn gemm(&self, size: Size, alpha: T, a: Operand<'_, T>, b: Operand<'_, T>, beta: T, c: &mut [T], c_row: usize) {
        for i in 0..size.rows {
            for j in 0..size.columns {
                let mut sum = T::ZERO;
                for k in 0..size.inner {
                    sum += a.data[i * a.row + k * a.column] * b.data[k * b.row + j * b.column];
                }
                let c = &mut c[i * c_row + j];
                *c = if beta == T::ZERO { alpha * sum } else { alpha * sum + beta * *c };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::runner::random::SplitMix64;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn the_tuned_product_is_the_plain_one(
            (rows, inner, columns) in (0usize..20, 0usize..20, 0usize..20),
            (transpose_a, transpose_b, accumulate) in any::<(bool, bool, bool)>(),
            extra in 0usize..3,
            seed in any::<u64>(),
        ) {
            let mut random = SplitMix64::new(seed);
            let mut matrix = |length: usize| -> Vec<f64> { (0..length).map(|_| random.normal()).collect() };
            let a = matrix(rows * inner);
            let b = matrix(inner * columns);
            let c_row = columns + extra;
            let start = matrix(rows * c_row);
            let a = if transpose_a { Operand::rows(&a, rows).transposed() } else { Operand::rows(&a, inner) };
            let b = if transpose_b { Operand::rows(&b, inner).transposed() } else { Operand::rows(&b, columns) };
            let beta = if accumulate { 1.0 } else { 0.0 };
            let size = Size { rows, inner, columns };
            let (mut tuned, mut plain) = (start.clone(), start);
            Tuned.gemm(size, 0.5, a, b, beta, &mut tuned, c_row);
            Plain.gemm(size, 0.5, a, b, beta, &mut plain, c_row);
            for (tuned, plain) in tuned.iter().zip(&plain) {
                // At most 20 products of numbers below 10.
                prop_assert!((tuned - plain).abs() < 1e-12, "{tuned} {plain}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "the right matrix leaves its slice")]
    fn a_matrix_beyond_its_slice_is_refused() {
        let size = Size { rows: 2, inner: 2, columns: 2 };
        let (a, b) = ([1.0f32; 4], [1.0f32; 3]);
        Tuned.gemm(size, 1.0, Operand::rows(&a, 2), Operand::rows(&b, 2), 0.0, &mut [0.0; 4], 2);
    }
}
