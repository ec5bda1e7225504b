//! Launches that split or join columns, and those for the keys of multi-head latent attention (MLA).

use pipeplan_core::graph::Kernel;

use super::grid::args;
use super::{Call, Context};
use crate::backend::cuda::card::CardError;

impl Context {
    /// Columns that are split or joined, and the keys of multi-head latent attention (MLA).
    pub(super) fn run_columns(&self, call: &Call<'_>) -> Result<(), CardError> {
        let Call { kernel, inputs, outputs, format, rows, columns, .. } = *call;
        let input = |at: usize| inputs[at].at();
        let output = |at: usize| outputs[at].at();
        match *kernel {
            Kernel::SplitColumns => {
                let sizes = [outputs[0].columns(), outputs[1].columns()];
                let args = args(&[input(0), output(0), output(1)], &sizes, &[]);
                self.over_rows("split_columns", format, [rows, columns], args)
            }
            Kernel::JoinColumns => {
                let sizes = [columns, inputs[1].columns()];
                let args = args(&[input(0), input(1), output(0)], &sizes, &[]);
                self.over_rows("join_columns", format, [rows, outputs[0].columns()], args)
            }
            Kernel::LatentKeys { heads } => {
                let (shared, width) = (inputs[1].columns(), outputs[0].columns() / heads);
                let sizes = [heads, width - shared, shared, outputs[1].columns() / heads];
                let args = args(&[input(0), input(1), output(0), output(1)], &sizes, &[]);
                self.over_rows("latent_keys", format, [rows, columns], args)
            }
            Kernel::LatentKeysGrad { heads } => {
                let (shared, width) = (outputs[1].columns(), columns / heads);
                let sizes = [heads, width - shared, shared, inputs[1].columns() / heads];
                let args = args(&[input(0), input(1), output(0), output(1)], &sizes, &[]);
                self.over_rows("latent_keys_grad", format, [rows, columns], args)
            }
            _ => Err(call.has_no_kernel()),
        }
    }
}
