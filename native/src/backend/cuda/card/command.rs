//! What a queue of a card takes: launches of kernels, matrix products, copies.

use std::hash::{Hash, Hasher};

use pipeplan_core::base::units::Bytes;

use super::error::CardError;
use super::{Address, Format};

/// What every kernel takes, laid out as `Args` in `kernels/prelude.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Args {
    /// Buffers.
    pub p: [u64; 10],
    /// Whole numbers.
    pub n: [i64; 12],
    /// Floats.
    pub f: [f32; 10],
}

impl Hash for Args {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.p, self.n, self.f.map(f32::to_bits)).hash(state);
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Launch {
    /// The kernel's name, with the suffix of its format.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory that the launch chooses.
    pub shared: u32,
    /// What it takes.
    pub args: Args,
}

/// A matrix of a product: row-major, `row` elements from row to row, and transposed where so marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Its first element.
    pub at: Address,
    /// Elements from row to row.
    pub row: u64,
    /// Elements from one product of the batch to the next.
    pub step: u64,
    /// Whether its transpose is meant.
    pub transposed: bool,
    /// Its number format.
    pub format: Format,
}

/// `c = alpha · a · b + beta · c`, `count` times, `c` being `rows` by `columns`; rounded once, behind all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Rows of `a` (transposed where so marked) and `c`.
    pub rows: u64,
    /// Columns of `a`, rows of `b`.
    pub inner: u64,
    /// Columns of `b` and `c`.
    pub columns: u64,
    /// The left matrix.
    pub a: Matrix,
    /// The right matrix.
    pub b: Matrix,
    /// The result; never transposed.
    pub c: Matrix,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of what `c` holds; with 0 it is not read.
    pub beta: f32,
    /// Products of the batch.
    pub count: u64,
    /// Where what `beta` multiplies lies, laid out as `c`, where that is not `c` itself.
    pub addend: Option<Address>,
    /// A row, in the format of `c`, that is added to every row.
    pub bias: Option<Address>,
}

impl Hash for Product {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Product { rows, inner, columns, a, b, c, alpha, beta, count, addend, bias } = self;
        (rows, inner, columns, a, b, c, count, addend, bias).hash(state);
        (alpha.to_bits(), beta.to_bits()).hash(state);
    }
}

/// Work for a card.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Command {
    /// A kernel.
    Launch(Launch),
    /// A product.
    Product(Product),
    /// A copy within the card.
    Copy {
        /// From here.
        from: Address,
        /// To there.
        to: Address,
        /// So much.
        bytes: Bytes,
    },
    /// Bytes that become 0.
    Zero {
        /// From here on.
        at: Address,
        /// So many.
        bytes: Bytes,
    },
}

impl Product {
    /// Whether this is a product that cuBLAS takes, which refuses others only when it is called.
    ///
    /// # Errors
    /// [`CardError::Call`] with what is wrong.
    pub fn check(&self) -> Result<(), CardError> {
        let Product { rows, inner, columns, a, b, c, count, .. } = *self;
        let wrong = |what: String| Err(CardError::call(format!("a product of {rows} x {inner} x {columns}"), what));
        // Of the combinations that the compute type CUBLAS_COMPUTE_32F has, those of our formats.
        let formats = [a.format, b.format, c.format];
        if a.format != b.format || (a.format, c.format) == (Format::F32, Format::Bf16) {
            return wrong(format!("cuBLAS multiplies no {formats:?}"));
        }
        let most = i32::MAX as u64;
        if [rows, inner, columns, count, a.row, b.row, c.row].into_iter().any(|size| size > most || size == 0) {
            return wrong(format!("every size is from 1 to {most}; rows are {} {} {} long", a.row, b.row, c.row));
        }
        let stored = |matrix: &Matrix, sizes: [u64; 2]| if matrix.transposed { [sizes[1], sizes[0]] } else { sizes };
        for (matrix, sizes) in [(&a, [rows, inner]), (&b, [inner, columns]), (&c, [rows, columns])] {
            let [height, width] = stored(matrix, sizes);
            if matrix.row < width {
                return wrong(format!("rows of {width} lie {} apart", matrix.row));
            }
            if matrix.at.0 == 0 || !matrix.at.0.is_multiple_of(matrix.format.bytes()) {
                return wrong(format!("no {:?} matrix starts at {:#x}", matrix.format, matrix.at.0));
            }
            // Results of one call may not lie in each other, side by side in a row excepted.
            let apart = matrix.step >= (height - 1) * matrix.row + width || matrix.step >= width;
            if std::ptr::eq(matrix, &c) && count > 1 && !apart {
                return wrong(format!("{count} results lie {} apart", matrix.step));
            }
        }
        for at in [self.addend, self.bias].into_iter().flatten() {
            if at.0 == 0 || !at.0.is_multiple_of(c.format.bytes()) || count != 1 {
                return wrong(format!("nothing at {:#x} is added to {count} results", at.0));
            }
        }
        if c.transposed { wrong("the result is transposed".to_string()) } else { Ok(()) }
    }
}
