//! Launches for the cross-entropy loss, over the whole vocabulary or a part of it.

use pipeplan_core::graph::{Kernel, of_e12};

use super::grid::args;
use super::{Call, Context};
use crate::backend::cuda::card::{CardError, Format};

impl Context {
    /// The cross-entropy loss, over a whole vocabulary or a part of it.
    pub(super) fn run_loss(&self, call: &Call<'_>) -> Result<(), CardError> {
        let Call { kernel, outputs, inputs, format, rows, columns, .. } = *call;
        let input = |at: usize| inputs[at].at();
        let output = |at: usize| outputs[at].at();
        match *kernel {
            Kernel::CrossEntropy { microbatches } => {
                let share = 1.0 / (rows as f64 * microbatches as f64);
                let rows_args = args(&[input(0), output(1)], &[columns], &[]);
                self.over_packed_rows("log_sum_exp", format, [rows, columns], rows_args)?;
                let buffers = [input(0), input(1), output(1), output(0)];
                let args = args(&buffers, &[columns, rows], &[share as f32]);
                self.launch("cross_entropy", format, [1, 1, 1], 1024, args)
            }
            Kernel::CrossEntropyGrad { microbatches, weight_e12 } => {
                let share = of_e12(weight_e12) / (rows as f64 * microbatches as f64);
                let buffers = [input(0), input(1), input(2), output(0)];
                let args = args(&buffers, &[columns], &[share as f32]);
                self.over_packed_rows("cross_entropy_grad", format, [rows, columns], args)
            }
            Kernel::HidePadding { vocab } => {
                let shown = vocab.saturating_sub(self.member * columns).min(columns);
                let args = args(&[input(0), output(0)], &[columns, shown], &[]);
                self.over_rows("hide_padding", format, [rows, columns], args)
            }
            Kernel::RowMax => {
                self.over_rows("row_max", format, [rows, columns], args(&[input(0), output(0)], &[columns], &[]))
            }
            Kernel::ExpSums => {
                let args = args(&[input(0), input(1), input(2), output(0)], &[columns], &[]);
                self.over_rows("exp_sums", format, [rows, columns], args)
            }
            Kernel::SharedCrossEntropy { microbatches } => {
                let share = 1.0 / (rows as f64 * microbatches as f64);
                let args = args(&[input(0), input(1), output(0), output(1)], &[rows], &[share as f32]);
                self.launch("shared_cross_entropy", Format::F32, [1, 1, 1], 1024, args)
            }
            _ => Err(call.has_no_kernel()),
        }
    }
}
