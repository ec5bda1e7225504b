//! Products of four warps (`wgmma`, PTX ISA 9.7.15), which run at the same time as their warps.
//!
//! A card may read what a product is made of at any time until its warps have waited for it, and changes the sums at
//! any time.
//! So here it is read when the product begins and once more when it is waited for, and has to be the same; until then
//! the sums
//! hold no numbers. Each warp has sixteen rows of the sums, which need nothing of the other three.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::decode::{Left, Op, Product, Word};
use crate::machine::{Block, LANES, LaneFault, Warp, Words, lane_fault, of_lane};
use crate::memory::{BY_WARP, Toucher};

/// Columns of a product's result, and its inner size.
const COLUMNS: usize = 64;
const INNER: usize = 16;
/// Rows of a warp.
const ROWS: usize = 16;

/// What a register holds while a product changes it: no number.
const UNKNOWN: Words = [0x7fc0_dead; LANES];

/// What a warp has begun and not waited for.
#[derive(Default)]
pub struct Products {
    /// Its registers at the last fence since it waited.
    fenced: Option<Vec<Words>>,
    /// Not yet of a group.
    open: Vec<Pending>,
    groups: VecDeque<Vec<Pending>>,
    /// By register, what it will be.
    sums: BTreeMap<u32, Words>,
    /// Which products the warp has begun, all in one number.
    sequence: u64,
}

struct Pending {
    /// The instruction.
    at: u32,
    operands: Operands,
}

/// What a product is made of, as numbers of bf16.
#[derive(PartialEq)]
struct Operands {
    left: [[u16; INNER]; ROWS],
    right: [[u16; COLUMNS]; INNER],
}

/// A matrix in shared memory, as its descriptor has it: rows of 64 columns, swizzled by 128 bytes.
struct Placed {
    start: u64,
    /// From eight rows to the next.
    stride: u64,
}

impl Placed {
    fn of(descriptor: u64) -> Result<Placed, LaneFault> {
        let field = |from: u32| (descriptor >> from & 0x3fff) << 4;
        if descriptor >> 62 != 1 || descriptor >> 49 & 7 != 0 {
            return lane_fault(format!("the matrix {descriptor:#x} lies in a way that is not known"));
        }
        let (start, stride) = (field(0), field(32));
        match start & 0x380 {
            0 => Ok(Placed { start, stride }),
            _ => lane_fault(format!("the swizzled rows at {start:#x} begin at no multiple of 1024 bytes")),
        }
    }

    /// Where eight columns of a row lie.
    fn piece(&self, row: usize, piece: usize) -> u64 {
        let (row, piece) = (row as u64, piece as u64);
        let plain = self.start + row / 8 * self.stride + row % 8 * 128 + piece * 16;
        plain ^ (plain >> 7 & 7) << 4
    }
}

impl Products {
    /// Whether the warp has waited for all that it has begun.
    pub fn are_done(&self) -> bool {
        self.open.is_empty() && self.groups.is_empty()
    }

    /// The same number where warps have begun the same.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    pub fn commit(&mut self) {
        let group = std::mem::take(&mut self.open);
        self.groups.push_back(group);
    }
}

impl Warp {
    pub fn begin_products(&mut self) {
        self.products.fenced = Some(self.words.clone());
    }

    /// The one value of a register of all lanes.
    fn same(&self, descriptor: crate::decode::Long) -> Result<u64, LaneFault> {
        let values = self.long(descriptor);
        match values.iter().all(|value| *value == values[0]) {
            true => Ok(values[0]),
            false => lane_fault("the descriptor of a matrix is not the same for all threads"),
        }
    }

    /// Whether what a product finds in a register is what was there at the fence.
    fn is_as_fenced(&self, register: u32) -> Result<(), LaneFault> {
        let Some(fenced) = &self.products.fenced else {
            return lane_fault("a product, and no wgmma.fence since the warp waited for products");
        };
        match fenced[register as usize] == self.words[register as usize] {
            true => Ok(()),
            false => lane_fault("a product takes a register that was changed since the last wgmma.fence"),
        }
    }
}

impl Block<'_> {
    fn operands(&mut self, warp: &Warp, product: &Product, at: u32) -> Result<Operands, LaneFault> {
        let who = Toucher { thread: BY_WARP, ..self.toucher(warp, 0, at) };
        let mut numbers = |place: u64, to: &mut [u16]| {
            let bytes = self.shared.load_async(place, 16, who).map_err(of_lane(0))?;
            to.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(to, two)| *to = u16::from_le_bytes([two[0], two[1]]));
            Ok::<(), LaneFault>(())
        };
        let mut operands = Operands { left: [[0; INNER]; ROWS], right: [[0; COLUMNS]; INNER] };
        match &product.left {
            Left::Shared(descriptor) => {
                let matrix = Placed::of(warp.same(*descriptor)?)?;
                let first = warp.number as usize % 4 * ROWS;
                for (row, to) in operands.left.iter_mut().enumerate() {
                    for (piece, to) in to.chunks_exact_mut(8).enumerate() {
                        numbers(matrix.piece(first + row, piece), to)?;
                    }
                }
            }
            Left::Registers(words) => {
                for (register, words) in words.iter().enumerate() {
                    let words = warp.word(*words);
                    for (lane, both) in words.iter().enumerate() {
                        let (row, column) = (lane / 4 + register % 2 * 8, lane % 4 * 2 + register / 2 * 8);
                        operands.left[row][column] = *both as u16;
                        operands.left[row][column + 1] = (*both >> 16) as u16;
                    }
                }
            }
        }
        let matrix = Placed::of(warp.same(product.right)?)?;
        if product.transposed {
            for (row, to) in operands.right.iter_mut().enumerate() {
                for (piece, to) in to.chunks_exact_mut(8).enumerate() {
                    numbers(matrix.piece(row, piece), to)?;
                }
            }
        } else {
            for column in 0..COLUMNS {
                for piece in 0..INNER / 8 {
                    let mut some = [0; 8];
                    numbers(matrix.piece(column, piece), &mut some)?;
                    some.iter().enumerate().for_each(|(row, number)| {
                        operands.right[8 * piece + row][column] = *number;
                    });
                }
            }
        }
        Ok(operands)
    }

    /// Begins a product.
    pub fn multiply(&mut self, warp: &mut Warp, at: u32, product: &Product) -> Result<(), LaneFault> {
        if !(self.launch.threads as usize).is_multiple_of(4 * LANES) {
            return lane_fault("a product needs four whole warps");
        }
        let of_words = match &product.left {
            Left::Registers(words) => words.as_slice(),
            Left::Shared(_) => &[],
        };
        for word in of_words {
            if let Word::Reg(register) = word {
                warp.is_as_fenced(*register)?;
            }
        }
        let operands = self.operands(warp, product, at)?;
        let adds = warp.truth(product.adds);
        if adds != 0 && adds != u32::MAX {
            return lane_fault("a product adds to the sums of some threads only");
        }
        let made = made_of(&operands);
        for (place, register) in product.to.iter().enumerate() {
            let before = match warp.products.sums.get(register) {
                Some(sums) => *sums,
                None => {
                    warp.is_as_fenced(*register)?;
                    std::mem::replace(&mut warp.words[*register as usize], UNKNOWN)
                }
            };
            let sums = std::array::from_fn(|lane| {
                let (row, column) = (lane / 4 + place % 4 / 2 * 8, place / 4 * 8 + lane % 4 * 2 + place % 2);
                let before = if adds == 0 { 0.0 } else { f32::from_bits(before[lane]) };
                (before + made[row][column]).to_bits()
            });
            warp.products.sums.insert(*register, sums);
        }
        warp.products.open.push(Pending { at, operands });
        warp.products.sequence =
            warp.products.sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(at) + 1);
        Ok(())
    }

    /// Waits until at most `left` groups of products are under way.
    pub fn await_products(&mut self, warp: &mut Warp, left: usize) -> Result<(), LaneFault> {
        warp.products.fenced = None;
        while warp.products.groups.len() > left {
            let group = warp.products.groups.pop_front().unwrap_or_default();
            for Pending { at, operands } in group {
                let Op::MultiplyAsync(product) = &self.kernel.code[at as usize].op else { continue };
                if self.operands(warp, product, at)? != operands {
                    let what = "what a product is made of was changed before anybody waited for it".to_string();
                    return Err(LaneFault { what, other: Some(at), lane: None });
                }
                let products = &warp.products;
                let pending = products.groups.iter().flatten().chain(&products.open);
                let waits: Vec<u32> = pending.flat_map(|pending| registers(self.kernel, pending.at)).collect();
                for register in product.to.iter().filter(|register| !waits.contains(register)) {
                    // Of two products of a group with the same sums the first gives them back.
                    if let Some(sums) = warp.products.sums.remove(register) {
                        warp.words[*register as usize] = sums;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the four warps of each group have begun the same products: none does so alone.
    pub fn groups_agree(&self, warps: &[Warp]) -> Result<(), (u32, Option<u32>, LaneFault)> {
        let agree =
            |group: &[Warp]| group.iter().all(|warp| warp.products.sequence() == group[0].products.sequence());
        match warps.chunks(4).find(|group| !agree(group)) {
            None => Ok(()),
            Some(group) => {
                let numbers: Range<u32> = group[0].number..group[0].number + group.len() as u32;
                let what = format!("products that not all of warps {numbers:?} take part in");
                Err((group[0].number, None, LaneFault { what, other: None, lane: None }))
            }
        }
    }
}

/// The sums' registers of the product at `at`.
fn registers(kernel: &crate::decode::Kernel, at: u32) -> impl Iterator<Item = u32> {
    let product = match &kernel.code[at as usize].op {
        Op::MultiplyAsync(product) => Some(product),
        _ => None,
    };
    product.into_iter().flat_map(|product| product.to.iter().copied())
}

fn made_of(operands: &Operands) -> [[f32; COLUMNS]; ROWS] {
    let wide = |number: u16| f32::from_bits(u32::from(number) << 16);
    let right = operands.right.map(|row| row.map(wide));
    operands.left.map(|row| {
        let mut sums = [0.0; COLUMNS];
        for (factor, others) in row.iter().zip(&right) {
            let factor = wide(*factor);
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += factor * other);
        }
        sums
    })
}
