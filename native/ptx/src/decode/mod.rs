//! Decodes statements of PTX to instructions: registers, addresses and labels become numbers.
//!
//! - In: kernels as text ([`crate::text`]).
//! - Out: [`Kernel`]s that the machine can run, or a fault at the first unknown instruction.
//! - Knows: the PTX ISA.

use crate::text;
use std::collections::BTreeMap;

use self::instruction::instruction;
use self::names::Names;
use crate::text::{RawKernel, Statement, Variable};
use crate::{Fault, Line};

mod instruction;
mod names;
mod op;

pub use self::op::{
    Access, Address, BitsOne, Compare, Either, FloatOne, FloatTwo, Instruction, Left, Long, Op, Product, ShuffleMode,
    Space, Special, Truth, Two, Whole, Word,
};

/// Where shared memory begins, as an H100 keeps the first KiB of each block's: so no address is 0.
pub const SHARED_START: u32 = 1 << 10;

/// Bytes between arrays in shared memory that are nobody's, so that an access out of bounds is found.
const GAP: u32 = 256;

/// A kernel that can run.
pub struct Kernel {
    pub name: String,
    pub code: Vec<Instruction>,
    pub words: u32,
    pub longs: u32,
    pub truths: u32,
    pub parameter_bytes: u32,
    pub most_threads: Option<u32>,
    /// Bytes of shared memory as the compiler lays it out.
    pub static_bytes: u32,
    /// Arrays in shared memory, from start to end, as they lie here.
    pub shared: Vec<(u32, u32)>,
    /// Where the array begins whose size the launch chooses.
    pub dynamic: u32,
    /// The narrowest access of global memory and of shared: what bytes are watched by.
    pub grain: [u32; 2],
}

type Decoded<T> = Result<T, String>;

/// Reads the body of `raw`.
pub fn kernel(raw: &RawKernel, dynamic: &[Variable]) -> Result<Kernel, Fault> {
    let at = |line: Line, what: String| Fault { kernel: raw.name.clone(), ..text::fault(line, what) };
    let mut names = Names { scopes: vec![BTreeMap::new()], ..Names::default() };
    for (name, start, _) in &raw.parameters {
        names.symbols.insert(name.clone(), u64::from(*start));
    }
    let parameter_bytes = raw.parameters.last().map_or(0, |(_, _, end)| *end);
    // As the compiler counts, and as they lie here: apart, and aligned to what they declare and to nothing more.
    let (mut static_bytes, mut end, mut shared) = (0u32, SHARED_START, Vec::new());
    let place = |after: u32, align: u32| {
        let start = (after + GAP).next_multiple_of(align);
        if start.is_multiple_of(2 * align) { start + align } else { start }
    };
    for Variable { name, align, bytes } in &raw.shared {
        static_bytes = static_bytes.next_multiple_of(*align) + bytes;
        let start = place(end, *align);
        end = start + bytes;
        shared.push((start, end));
        names.symbols.insert(name.clone(), u64::from(start));
    }
    let start = place(end, dynamic.iter().map(|variable| variable.align).max().unwrap_or(16));
    for Variable { name, align, .. } in dynamic {
        names.symbols.insert(name.clone(), u64::from(start));
        static_bytes = static_bytes.next_multiple_of(*align);
    }
    let mut count = 0;
    for (line, statement) in &raw.body {
        match statement {
            Statement::Label(label) => {
                let other = names.labels.insert(label.clone(), count);
                if other.is_some() {
                    return Err(at(*line, format!("there are two labels {label}")));
                }
            }
            Statement::Instruction(_) => count += 1,
            _ => {}
        }
    }
    let mut code = Vec::new();
    for (line, statement) in &raw.body {
        match statement {
            Statement::Open => names.scopes.push(BTreeMap::new()),
            Statement::Close => drop(names.scopes.pop()),
            Statement::Label(_) => {}
            Statement::Registers { kind, names: list } => {
                names.declare(kind, list).map_err(|what| at(*line, what))?;
            }
            Statement::Instruction(written) => {
                let decoded = instruction(&names, written);
                let (when, op) = decoded.map_err(|why| at(*line, format!("`{written}` is not known: {why}")))?;
                code.push(Instruction { line: *line, when, op });
            }
        }
    }
    if !matches!(code.last(), Some(Instruction { op: Op::Return | Op::Jump(_), when: None, .. })) {
        return Err(at(raw.line, "the body does not end with ret".to_string()));
    }
    let [truths, words, longs] = names.counts;
    let grain = [Space::Global, Space::Shared].map(|space| grain(&code, space));
    Ok(Kernel {
        name: raw.name.clone(),
        code,
        words,
        longs,
        truths,
        parameter_bytes,
        most_threads: raw.most_threads,
        static_bytes,
        shared,
        dynamic: start,
        grain,
    })
}

fn grain(code: &[Instruction], space: Space) -> u32 {
    let of = |instruction: &Instruction| match &instruction.op {
        Op::Load(access) | Op::Store(access) if access.space == space => Some(access.width()),
        Op::CopyAsync { bytes, .. } => Some(*bytes),
        _ => None,
    };
    code.iter().filter_map(of).min().unwrap_or(16).min(16)
}
