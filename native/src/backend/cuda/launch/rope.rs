//! Launches for rotary position embeddings, and their tables of sines and cosines.

use std::collections::BTreeSet;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Graph, Kernel};

use super::grid::args;
use super::{Call, Context};
use crate::backend::cpu::kernels::rope;
use crate::backend::cuda::card::{Address, CardError, Memory};

/// Sequences, widths and bases of the angles that `graphs` turn by, each once: for each a table of [`rope_bytes`].
pub fn rope_tables<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> BTreeSet<(u64, u64, u64)> {
    let table = |kernel| match kernel {
        Kernel::Rope { sequence, width, base, .. } => Some((sequence, width, base)),
        Kernel::RopeTail { sequence, tail, base, .. } => Some((sequence, tail, base)),
        _ => None,
    };
    graphs.into_iter().flat_map(|graph| graph.operators.iter().filter_map(move |of| table(of.kernel))).collect()
}

/// A sine and a cosine for each position and pair of columns.
pub fn rope_bytes((sequence, width, _): (u64, u64, u64)) -> Bytes {
    sequence * (width / 2) * 2 * 4
}

impl Context {
    /// Rotary position embeddings.
    pub(super) fn run_rope(&mut self, call: &Call<'_>) -> Result<(), CardError> {
        let Call { kernel, outputs, inputs, format, rows, elements, .. } = *call;
        let input = |at: usize| inputs[at].at();
        let output = |at: usize| outputs[at].at();
        let part = self.part;
        match *kernel {
            Kernel::Rope { sequence, heads, width, base, inverse } => {
                let table = self.rope_table(sequence, width, base)?;
                let sign = if inverse { -1.0 } else { 1.0 };
                let numbers = [rows, heads, width, sequence, width, part.part, part.parts];
                let args = args(&[input(0), table.0, output(0)], &numbers, &[sign]);
                self.over_packed_rows("rope", format, [rows, heads * width / 2], args)
            }
            Kernel::RopeTail { sequence, heads, width, tail, base, inverse } => {
                let table = self.rope_table(sequence, tail, base)?;
                if input(0) != output(0) {
                    // The columns that stay.
                    self.card.copy(Address(input(0)), Address(output(0)), elements * inputs[0].format().bytes())?;
                }
                let sign = if inverse { -1.0 } else { 1.0 };
                let numbers = [rows, heads, width, sequence, tail, part.part, part.parts];
                let args = args(&[input(0), table.0, output(0)], &numbers, &[sign]);
                self.over_packed_rows("rope", format, [rows, heads * tail / 2], args)
            }
            _ => Err(call.has_no_kernel()),
        }
    }

    /// Makes what `graphs` will look up, which is made of what they lack only here.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn prepare<'g>(&mut self, graphs: impl IntoIterator<Item = &'g Graph>) -> Result<(), CardError> {
        for (sequence, width, base) in rope_tables(graphs) {
            self.rope_table(sequence, width, base)?;
        }
        Ok(())
    }

    fn rope_table(&mut self, sequence: u64, width: u64, base: u64) -> Result<Address, CardError> {
        if let Some(table) = self.rope.get(&(sequence, width, base)) {
            return Ok(table.at());
        }
        let table = rope::table::<f32>(sequence, width, base, None);
        let bytes: Vec<u8> =
            table.iter().flat_map(|(sine, cosine)| [*sine, *cosine]).flat_map(f32::to_ne_bytes).collect();
        let table = self.rope.entry((sequence, width, base)).or_insert(Memory::holding(&self.card, &bytes)?);
        Ok(table.at())
    }
}
