//! Launches for RMSNorm, LayerNorm, QK-norm and their gradients.

use pipeplan_core::graph::{Kernel, of_e12};

use super::grid::args;
use super::{Call, Context};
use crate::backend::cuda::card::CardError;

/// What is added to the weight of a norm.
const fn one_more(offset: bool) -> f32 {
    if offset { 1.0 } else { 0.0 }
}

impl Context {
    /// RMSNorm, LayerNorm and QK-norm, and their gradients.
    pub(super) fn run_norm(&self, call: &Call<'_>) -> Result<(), CardError> {
        let Call { kernel, outputs, inputs, format, rows, columns, elements } = *call;
        let input = |at: usize| inputs[at].at();
        let output = |at: usize| outputs[at].at();
        match *kernel {
            Kernel::RmsNorm { eps_e12, offset } => {
                let buffers = [input(0), input(1), output(0), output(1)];
                let args = args(&buffers, &[columns], &[of_e12(eps_e12) as f32, one_more(offset)]);
                self.over_packed_rows("rms_norm", format, [rows, columns], args)
            }
            Kernel::RmsNormInputGrad { offset } => {
                let buffers = [input(0), input(1), input(2), input(3), output(0)];
                let args = args(&buffers, &[columns], &[one_more(offset)]);
                self.over_packed_rows("rms_norm_input_grad", format, [rows, columns], args)
            }
            Kernel::RmsNormGainGrad => {
                let buffers = [input(0), output(0), input(1), input(2)];
                self.over_columns("rms_norm_gain_grad", format, [rows, columns], &buffers)
            }
            Kernel::LayerNorm { eps_e12 } => {
                let buffers = [input(0), input(1), input(2), output(0), output(1), output(2)];
                let args = args(&buffers, &[columns], &[of_e12(eps_e12) as f32]);
                self.over_packed_rows("layer_norm", format, [rows, columns], args)
            }
            Kernel::LayerNormInputGrad => {
                let buffers = [input(0), input(1), input(2), input(3), input(4), output(0)];
                self.over_packed_rows(
                    "layer_norm_input_grad",
                    format,
                    [rows, columns],
                    args(&buffers, &[columns], &[]),
                )
            }
            Kernel::LayerNormGainGrad => {
                let buffers = [input(0), output(0), input(1), input(3), input(2)];
                self.over_columns("layer_norm_gain_grad", format, [rows, columns], &buffers)
            }
            Kernel::HeadNorm { eps_e12, width, offset } => {
                let buffers = [input(0), input(1), output(0), output(1)];
                let args = args(&buffers, &[width], &[of_e12(eps_e12) as f32, one_more(offset)]);
                self.over_packed_rows("rms_norm", format, [elements / width, width], args)
            }
            Kernel::HeadNormInputGrad { width, offset } => {
                let buffers = [input(0), input(1), input(2), input(3), output(0)];
                let args = args(&buffers, &[width], &[one_more(offset)]);
                self.over_packed_rows("rms_norm_input_grad", format, [elements / width, width], args)
            }
            Kernel::HeadNormGainGrad { width } => {
                let buffers = [input(0), output(0), input(1), input(2)];
                self.over_columns("rms_norm_gain_grad", format, [elements / width, width], &buffers)
            }
            _ => Err(call.has_no_kernel()),
        }
    }
}
