//! Launches for tokens, their embeddings and positions.

use pipeplan_core::graph::Kernel;

use super::grid::{MOST_BLOCKS, THREADS, args, in_packs};
use super::{Call, Context};
use crate::backend::cuda::card::CardError;

impl Context {
    /// Tokens, their embeddings and positions.
    pub(super) fn run_embedding(&self, call: &Call<'_>) -> Result<(), CardError> {
        let Call { kernel, outputs, inputs, format, rows, columns, elements } = *call;
        let input = |at: usize| inputs[at].at();
        let output = |at: usize| outputs[at].at();
        // The number of this member's first row, where rows are split over several members.
        let first = |ways: u64| if ways > 1 { self.member * rows } else { 0 };
        let part = self.part;
        match *kernel {
            Kernel::OwnTokens { rows } => {
                let args = args(&[input(0), output(0)], &[elements, rows, rows * self.member], &[]);
                self.over_elements("own_tokens", format, elements, args)
            }
            Kernel::Embedding => {
                let columns = inputs[1].columns();
                let args = args(&[input(0), input(1), output(0)], &[rows, columns], &[]);
                self.over_packed_rows("embedding", format, [rows, columns], args)
            }
            Kernel::EmbeddingGrad => {
                let args = args(&[input(0), input(1), output(0)], &[rows, columns], &[]);
                let grid = [rows, in_packs(format, columns).div_ceil(THREADS.into()), 1];
                self.launch("embedding_grad", format, grid, THREADS, args)
            }
            Kernel::Positions { sequence, ways } => {
                let numbers = [rows, columns, sequence, first(ways), part.part, part.parts];
                let args = args(&[input(0), input(1), output(0)], &numbers, &[]);
                self.over_packed_rows("add_rows", format, [rows, columns], args)
            }
            Kernel::PositionsGrad { sequence, ways } => {
                let numbers = [rows, columns, sequence, first(ways), part.part, part.parts];
                let args = args(&[input(0), output(0)], &numbers, &[]);
                let blocks = (sequence / part.parts * columns).div_ceil(THREADS.into()).min(MOST_BLOCKS);
                self.launch("add_rows_grad", format, [blocks, 1, 1], THREADS, args)
            }
            _ => Err(call.has_no_kernel()),
        }
    }
}
