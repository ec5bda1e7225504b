//! Where the tensors of an operator lie on the card.

use pipeplan_core::model::Dtype;

use crate::backend::cuda::card::{Address, Format, Matrix};

/// A tensor that an operator reads or writes. An input that gives its buffer to the output lies where the output does.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Its start; none where only its shape is needed.
    pub at: Option<Address>,
    /// Its sizes.
    pub shape: &'a [u64],
    /// Its number format.
    pub dtype: Dtype,
}

impl Place<'_> {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    pub(crate) fn rows(&self) -> u64 {
        self.shape[0]
    }

    pub(crate) fn columns(&self) -> u64 {
        self.shape.get(1).copied().unwrap_or(1)
    }

    pub(crate) fn at(&self) -> u64 {
        self.at.expect("this tensor's data is needed").0
    }

    pub(crate) fn format(&self) -> Format {
        if self.dtype == Dtype::Bf16 { Format::Bf16 } else { Format::F32 }
    }

    /// The matrix `offset` elements on, `rows` by `columns` with `row` elements from row to row, `count` times with
    /// `step` elements between.
    pub(crate) fn matrix(
        &self,
        offset: u64,
        [rows, columns]: [u64; 2],
        row: u64,
        (count, step): (u64, u64),
    ) -> Matrix {
        let end = offset + (count.max(1) - 1) * step + (rows.max(1) - 1) * row + columns;
        assert!(end <= self.elements(), "a matrix leaves its tensor {:?}", self.shape);
        let format = self.format();
        Matrix { at: Address(self.at() + offset * format.bytes()), row, step, transposed: false, format }
    }

    pub(crate) fn whole(&self) -> Matrix {
        self.matrix(0, [self.rows(), self.columns()], self.columns(), (1, 0))
    }
}
