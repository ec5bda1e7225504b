//! Launches: arguments, blocks and threads of a kernel, by the shape of what it works on.

use pipeplan_core::base::units::Bytes;

use super::Context;
use crate::backend::cuda::card::{Args, CardError, Format, Held, Launch, Memory};

/// Threads of a block where nothing else is better.
pub(super) const THREADS: u32 = 256;

/// Enough blocks to fill any card; each takes several shares of the work.
pub(super) const MOST_BLOCKS: u64 = 1 << 16;

/// Buffers and numbers of a launch.
pub(super) fn args(buffers: &[u64], numbers: &[u64], floats: &[f32]) -> Args {
    let mut args = Args::default();
    args.p[..buffers.len()].copy_from_slice(buffers);
    for (slot, number) in args.n.iter_mut().zip(numbers) {
        *slot = *number as i64;
    }
    args.f[..floats.len()].copy_from_slice(floats);
    args
}

/// What threads take one at a time of a row of `columns`: 16 bytes where it is made of such, or a number.
pub(super) fn in_packs(format: Format, columns: u64) -> u64 {
    let pack = 16 / format.bytes();
    if columns.is_multiple_of(pack) { columns / pack } else { columns }
}

/// Threads for a row of `columns`: whole warps, no more than there is to do.
pub(super) fn row_threads(columns: u64) -> u32 {
    (columns.div_ceil(32) * 32).clamp(32, 512) as u32
}

/// Blocks that share the rows of a sum over them out, for each 32 of so many columns: as many as fill a large card, whichever
/// it is, so that sums are the same on all.
fn splits([rows, columns]: [u64; 2]) -> u64 {
    const BLOCKS: u64 = 256;
    const LEAST_ROWS: u64 = 512;
    (BLOCKS / columns.div_ceil(32).max(1)).min(rows / LEAST_ROWS).max(1)
}

/// Bytes of what they leave, where they are several.
pub(super) fn of_splits(size: [u64; 2]) -> Option<Bytes> {
    let splits = splits(size);
    (splits > 1).then_some(4 * splits * size[1])
}

impl Context {
    pub(super) fn launch(
        &self,
        name: &str,
        format: Format,
        grid: [u64; 3],
        threads: u32,
        args: Args,
    ) -> Result<(), CardError> {
        self.launch_with(format!("{name}_{}", format.suffix()), grid, threads, 0, args)
    }

    pub(super) fn launch_with(
        &self,
        kernel: String,
        grid: [u64; 3],
        threads: u32,
        shared: u64,
        args: Args,
    ) -> Result<(), CardError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let [x, y, z] = grid;
        if x > i32::MAX as u64 || y > 65_535 || z > 65_535 {
            return Err(CardError::call(kernel, format!("{grid:?} blocks are more than a GPU takes")));
        }
        let shared = shared as u32;
        self.card.launch(&Launch { kernel, grid: [x as u32, y as u32, z as u32], threads, shared, args })
    }

    /// A launch over elements, 16 bytes of `format` a thread.
    pub(super) fn over_elements(
        &self,
        name: &str,
        format: Format,
        elements: u64,
        args: Args,
    ) -> Result<(), CardError> {
        let blocks = elements.div_ceil(u64::from(THREADS) * 16 / format.bytes()).min(MOST_BLOCKS);
        self.launch(name, format, [blocks, 1, 1], THREADS, args)
    }

    /// A launch of one block a row.
    pub(super) fn over_rows(
        &self,
        name: &str,
        format: Format,
        [rows, columns]: [u64; 2],
        args: Args,
    ) -> Result<(), CardError> {
        self.launch(name, format, [rows, 1, 1], row_threads(columns), args)
    }

    /// The same for kernels whose threads take 16 bytes at once where rows are made of such.
    pub(super) fn over_packed_rows(
        &self,
        name: &str,
        format: Format,
        [rows, columns]: [u64; 2],
        args: Args,
    ) -> Result<(), CardError> {
        self.over_rows(name, format, [rows, in_packs(format, columns)], args)
    }

    /// A sum over rows, added to the second of up to five `buffers`, which are at least two.
    pub(super) fn over_columns(
        &self,
        name: &str,
        format: Format,
        size: [u64; 2],
        buffers: &[u64],
    ) -> Result<(), CardError> {
        let parts = of_splits(size).map(|bytes| Memory::held(&self.card, bytes, Held::Briefly)).transpose()?;
        let ([_, columns], splits) = (size, splits(size));
        let mut all = [0; 6];
        all[..buffers.len()].copy_from_slice(buffers);
        all[5] = parts.as_ref().map_or(0, |parts| parts.at().0);
        self.launch(name, format, [columns.div_ceil(32), splits, 1], 1024, args(&all, &size, &[]))?;
        match parts {
            None => Ok(()),
            Some(parts) => {
                let args = args(&[parts.at().0, buffers[1]], &[columns, splits], &[]);
                self.over_elements("add_splits", Format::F32, columns, args)
            }
        }
    }
}
