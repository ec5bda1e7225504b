//! Runs PTX, the assembly language that NVRTC makes of CUDA, without a GPU, and says what a card would not forgive.
//!
//! [`Module::read`] takes the text, [`Memory`] is the card's memory, and [`Module::launch`] runs a kernel on it. The first
//! fault ends a launch and is told with its place: the line of PTX, the line of source where the text has those
//! (`-lineinfo`), block and thread. Faults are
//!
//! - accesses outside of what was allocated or declared, accesses that are not aligned to their width, and reads of bytes
//!   that nobody wrote, in global and in shared memory;
//! - races: two threads touch a byte, at least one writes it, and no barrier of their block lies between; in global memory
//!   those of different blocks too. A copy by `cp.async` is on its way until the thread that began it waits for it;
//! - barriers and instructions of a whole warp (`shfl.sync`, `vote.sync`, `ldmatrix`, `mma`) that not all threads come to;
//! - products of four warps (`wgmma`) whose matrices were not shown to them (`fence.proxy.async`) or change before somebody has
//!   waited, whose registers change behind `wgmma.fence`, or that not all four warps begin;
//! - more threads than `.maxntid` allows, more shared memory than the card has, a block that does not end;
//! - anything in the text that this crate does not know. Nothing is skipped.
//!
//! What instructions do is written from the PTX ISA (NVIDIA, release 9): data movement in its section 9.7.9, matrices in
//! 9.7.14 and 9.7.15, barriers in 9.7.13. The layouts of fragments are those that CUTLASS states as `MMA_Traits` of
//! `SM80_16x8x16_F32BF16BF16F32_TN` and `Copy_Traits` of `SM75_U32x4_LDSM_N` and `SM75_U16x8_LDSM_T`.
//!
//! Blocks run one after the other in an order drawn from the launch's seed. Warps of a block take turns of random length
//! between barriers. Within a warp the threads that are furthest behind go first, so threads that part meet again at the
//! first place that both come to. The verdict on races depends on none of these orders.

mod decode;
mod machine;
mod memory;
mod number;
mod products;
mod text;

use std::collections::BTreeMap;
use std::fmt;

pub use machine::{Counts, Launch, Traffic};
pub use memory::Memory;

/// A place in a text of PTX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The line of PTX, from 1.
    pub ptx: u32,
    /// The file of the source, as the text numbers it; 0 where it does not say.
    file: u32,
    /// The line there.
    line: u32,
}

/// What a card would not forgive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kernel; empty where it is the text that is not understood.
    pub kernel: String,
    /// What is wrong.
    pub what: String,
    /// The line of PTX, from 1; 0 where it is the launch that is wrong.
    pub line: u32,
    /// File and line of the source.
    pub source: Option<(String, u32)>,
    /// The block.
    pub block: Option<[u32; 3]>,
    /// The thread within the block.
    pub thread: Option<u32>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.kernel.is_empty() {
            write!(f, "{}: ", self.kernel)?;
        }
        write!(f, "{}", self.what)?;
        if let Some((file, line)) = &self.source {
            write!(f, ", at {file}:{line}")?;
        }
        if self.line > 0 {
            write!(f, ", PTX line {}", self.line)?;
        }
        if let Some([x, y, z]) = self.block {
            write!(f, ", block {x} {y} {z}")?;
        }
        match self.thread {
            Some(thread) => write!(f, ", thread {thread}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

/// A text of PTX, read.
pub struct Module {
    kernels: BTreeMap<String, decode::Kernel>,
    files: BTreeMap<u32, String>,
}

impl Module {
    /// Reads `text`.
    ///
    /// # Errors
    /// The first statement or instruction that is not known.
    pub fn read(text: &str) -> Result<Module, Fault> {
        let raw = text::read(text)?;
        let kernels =
            raw.kernels.iter().map(|kernel| decode::kernel(kernel, &raw.dynamic)).collect::<Result<Vec<_>, _>>()?;
        let kernels = kernels.into_iter().map(|kernel| (kernel.name.clone(), kernel)).collect();
        Ok(Module { kernels, files: raw.files })
    }

    /// Names of all kernels, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }

    /// Bytes of shared memory that `kernel` declares itself, and the most threads of its blocks where it says so.
    pub fn declares(&self, kernel: &str) -> Option<(u32, Option<u32>)> {
        self.kernels.get(kernel).map(|kernel| (kernel.static_bytes, kernel.most_threads))
    }

    /// A place, for people.
    pub fn place(&self, line: Line) -> String {
        match self.files.get(&line.file) {
            Some(file) if line.line > 0 => format!("{file}:{} (PTX line {})", line.line, line.ptx),
            _ => format!("PTX line {}", line.ptx),
        }
    }
}
