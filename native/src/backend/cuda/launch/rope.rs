//! Launches for rotary position embeddings, and their tables of sines and cosines.

use std::collections::BTreeSet;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Angles, Graph, Kernel};

use super::grid::args;
use super::{Call, Context};
use crate::backend::cpu::kernels::rope;
use crate::backend::cuda::card::{Address, CardError, Memory};

/// Sequence, width and angles of a table. No run on a GPU scales angles: layers with a window and without share tables.
pub type RopeTable = (u64, u64, Angles);

fn rope_table((sequence, width, angles): RopeTable) -> RopeTable {
    (sequence, width, Angles { windowed: false, ..angles })
}

/// The angles that `graphs` turn by, each once: for each a table of [`rope_bytes`].
pub fn rope_tables<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> BTreeSet<RopeTable> {
    let table = |kernel| match kernel {
        Kernel::Rope { sequence, width, angles, .. } => Some(rope_table((sequence, width, angles))),
        Kernel::RopeTail { sequence, tail, angles, .. } => Some(rope_table((sequence, tail, angles))),
        _ => None,
    };
    graphs.into_iter().flat_map(|graph| graph.operators.iter().filter_map(move |of| table(of.kernel))).collect()
}

/// A sine and a cosine for each position and pair of columns.
pub fn rope_bytes((sequence, width, _): RopeTable) -> Bytes {
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
            Kernel::Rope { sequence, heads, width, angles, inverse } => {
                let table = self.rope_table((sequence, width, angles))?;
                let sign = if inverse { -1.0 } else { 1.0 };
                let numbers = [rows, heads, width, sequence, width, part.part, part.parts];
                let args = args(&[input(0), table.0, output(0)], &numbers, &[sign]);
                self.over_packed_rows("rope", format, [rows, heads * width / 2], args)
            }
            Kernel::RopeTail { sequence, heads, width, tail, angles, inverse } => {
                let table = self.rope_table((sequence, tail, angles))?;
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
        for table in rope_tables(graphs) {
            self.rope_table(table)?;
        }
        Ok(())
    }

    fn rope_table(&mut self, key: RopeTable) -> Result<Address, CardError> {
        let key = rope_table(key);
        if let Some(table) = self.rope.get(&key) {
            return Ok(table.at());
        }
        let (sequence, width, angles) = key;
        let table = rope::table::<f32>(sequence, width, &angles, None);
        let bytes: Vec<u8> =
            table.iter().flat_map(|(sine, cosine)| [*sine, *cosine]).flat_map(f32::to_ne_bytes).collect();
        let table = self.rope.entry(key).or_insert(Memory::holding(&self.card, &bytes)?);
        Ok(table.at())
    }
}
