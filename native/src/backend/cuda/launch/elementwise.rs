//! Launches for operators on each element or each row: biases, dropout, activations, casts, sums and gates.

use pipeplan_core::graph::{Kernel, of_e12};

use super::grid::args;
use super::{Call, Context};
use crate::backend::cuda::card::{Address, CardError, Format};
use crate::runner::random::SplitMix64;

impl Context {
    /// Operators on each element or each row: biases, dropout, activations, casts, sums and gates.
    pub(super) fn run_elementwise(&self, call: &Call<'_>) -> Result<(), CardError> {
        let Call { kernel, inputs, outputs, format, rows, columns, elements } = *call;
        let input = |at: usize| inputs[at].at();
        let output = |at: usize| outputs[at].at();
        // The number of this member's first row, where rows are split over several members.
        let first = |ways: u64| if ways > 1 { self.member * rows } else { 0 };
        let part = self.part;
        match *kernel {
            Kernel::AddBias => {
                let args = args(&[input(0), input(1), output(0)], &[rows, columns, 1, 0, 0, 1], &[]);
                self.over_packed_rows("add_rows", format, [rows, columns], args)
            }
            Kernel::BiasGrad => self.over_columns("bias_grad", format, [rows, columns], &[input(0), output(0)]),
            Kernel::Dropout { site, ways, blocks, sequence } => {
                // The CPU's draws, one for each element, which this generator gives in any order.
                let seed = SplitMix64::new(self.dropout_seed ^ site).draw();
                // Scores, which have more blocks than one, are never held where sequences are dealt out.
                let block = if part.parts > 1 { columns } else { (elements / blocks.max(1)).max(1) };
                let (first, of) = (first(ways), if ways > 1 { (ways, self.member) } else { (1, 0) });
                let numbers = [elements, seed, block, of.0, of.1, first, sequence, part.part, part.parts];
                let args = args(&[input(0), output(0), output(1)], &numbers, &[]);
                self.over_elements("dropout", format, elements, args)
            }
            Kernel::DropoutGrad => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements("dropout_grad", format, elements, args)
            }
            Kernel::SwiGlu => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements("swiglu", format, elements, args)
            }
            Kernel::SwiGluGrad => {
                let args = args(&[input(0), input(1), input(2), output(0), output(1)], &[elements], &[]);
                self.over_elements("swiglu_grad", format, elements, args)
            }
            Kernel::GeGlu => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements("geglu", format, elements, args)
            }
            Kernel::GeGluGrad => {
                let args = args(&[input(0), input(1), input(2), output(0), output(1)], &[elements], &[]);
                self.over_elements("geglu_grad", format, elements, args)
            }
            // Their kernels have their names.
            Kernel::Gelu | Kernel::GeluTanh => {
                let args = args(&[input(0), output(0)], &[elements], &[]);
                self.over_elements(kernel.name(), format, elements, args)
            }
            Kernel::GeluGrad | Kernel::GeluTanhGrad => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements(kernel.name(), format, elements, args)
            }
            // The same numbers, elsewhere or where they are.
            Kernel::Cast | Kernel::Replicate { .. } if inputs[0].dtype == outputs[0].dtype => {
                if input(0) == output(0) {
                    return Ok(());
                }
                self.card.copy(Address(input(0)), Address(output(0)), elements * inputs[0].dtype.bytes())
            }
            Kernel::Cast => {
                let name = if outputs[0].format() == Format::Bf16 { "cast_to" } else { "cast_from" };
                self.over_elements(name, Format::Bf16, elements, args(&[input(0), output(0)], &[elements], &[]))
            }
            Kernel::Add => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements("add", format, elements, args)
            }
            Kernel::Scale { factor_e12 } => {
                let args = args(&[input(0), output(0)], &[elements], &[of_e12(factor_e12) as f32]);
                self.over_elements("scale", format, elements, args)
            }
            Kernel::SoftCap { cap_e12 } => {
                let args = args(&[input(0), output(0)], &[elements], &[of_e12(cap_e12) as f32]);
                self.over_elements("soft_cap", format, elements, args)
            }
            Kernel::SoftCapGrad { cap_e12 } => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[of_e12(cap_e12) as f32]);
                self.over_elements("soft_cap_grad", format, elements, args)
            }
            Kernel::WeightedGlu { .. } => {
                let args = args(&[input(0), input(1), input(2), output(0)], &[columns], &[]);
                self.over_packed_rows(kernel.name(), format, [rows, columns], args)
            }
            Kernel::WeightedGluGrad { .. } => {
                let buffers = [input(0), input(1), input(2), input(3), output(0), output(1), output(2)];
                self.over_packed_rows(kernel.name(), format, [rows, columns], args(&buffers, &[columns], &[]))
            }
            Kernel::RowGate => {
                let args = args(&[input(0), input(1), output(0)], &[columns], &[]);
                self.over_rows("row_gate", format, [rows, columns], args)
            }
            Kernel::RowGateGrad => {
                let buffers = [input(0), input(1), input(2), output(0), output(1)];
                self.over_rows("row_gate_grad", format, [rows, columns], args(&buffers, &[columns], &[]))
            }
            _ => Err(call.has_no_kernel()),
        }
    }
}
