//! How a core keeps numbers that take less room than those it computes in: bf16, and FP8 and FP4 with scales that they
//! share. Kernels read and write numbers of the core's own type. What they read is widened, which is exact, and what
//! they write is rounded to the nearest number of the tensor's format, ties to even.
//!
//! - In: numbers, and the format of a tensor.
//! - Out: numbers in the bytes that a plan counts for them, up to one partial block of each row or column.
//! - Knows: formats. No operator and no rank.

use std::borrow::Cow;

use float8::{F8E4M3, F8E5M2};
use half::bf16;
use pipeplan_core::model::Dtype;

use super::element::Element;
use super::kernels::Data;

/// Along what the products sum that read a quantized tensor: blocks with one scale lie along it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Along rows.
    Rows,
    /// Along columns.
    Columns,
}

/// What is quantized, and how.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The format.
    pub dtype: Dtype,
    /// Whether it is of a gradient: per-tensor FP8 has E5M2 there and E4M3 else (arXiv:2209.05433 §3).
    pub of_gradient: bool,
    /// The direction of blocks.
    pub along: Along,
}

/// The numbers of a matrix in FP8 or FP4, with their scales.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    element: Small,
    /// One byte for each element; of FP4 one for two that follow each other in the matrix.
    codes: Vec<u8>,
    columns: usize,
    elements: usize,
    blocks: Blocks,
}

/// The format of single elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Small {
    E4M3,
    E5M2,
    E2M1,
}

/// Scales, by which codes are multiplied.
#[derive(Clone, Debug, PartialEq)]
enum Blocks {
    /// One for all.
    One(f32),
    /// One for each block of so many elements, row by row of blocks.
    Each { size: usize, along: Along, kind: Scale, scales: Vec<u8> },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// A power of two: its exponent plus 127 (OCP Microscaling Formats 1.0, §5.4.1).
    Power,
    /// In E4M3, times this number for the whole tensor (arXiv:2509.25149, appendix A).
    E4M3(f32),
}

impl Scale {
    /// The number that `code` stands for.
    fn value(self, code: u8) -> f32 {
        match self {
            // This code is of no number.
            Scale::Power if code == u8::MAX => f32::NAN,
            Scale::Power => libm::ldexpf(1.0, i32::from(code) - 127),
            Scale::E4M3(whole) => F8E4M3::from_bits(code).to_f32() * whole,
        }
    }

    /// Of a block in `dtype` whose largest number is `most`, with elements in `element`.
    fn code(self, dtype: Dtype, element: Small, most: f32) -> u8 {
        match self {
            Scale::Power if most.is_nan() => u8::MAX,
            Scale::Power if most == 0.0 => 127,
            Scale::Power => {
                // 2^exponent is the largest power of two up to `most`, and 6 = 1.5 · 2², 448 = 1.75 · 2⁸.
                let exponent = libm::ilogbf(most);
                let power = match dtype {
                    Dtype::MxFp8 => {
                        let down = exponent - 8;
                        down + i32::from(most > libm::ldexpf(element.largest(), down))
                    }
                    _ => exponent - 2,
                };
                (power + 127).clamp(0, 254) as u8
            }
            // All numbers are 0, or too small for a scale.
            Scale::E4M3(0.0) => 0,
            Scale::E4M3(whole) => F8E4M3::from_f32(most / element.largest() / whole).to_bits(),
        }
    }
}

/// The numbers of E2M1, from 0 on, and what lies in the middle between each and the next one.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
const MIDDLES: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

impl Small {
    /// The largest number.
    const fn largest(self) -> f32 {
        match self {
            Small::E4M3 => 448.0,
            Small::E5M2 => 57344.0,
            Small::E2M1 => 6.0,
        }
    }

    /// The nearest number; beyond the largest one, that.
    fn code(self, value: f32) -> u8 {
        let value = value.clamp(-self.largest(), self.largest());
        match self {
            Small::E4M3 => F8E4M3::from_f32(value).to_bits(),
            Small::E5M2 => F8E5M2::from_f32(value).to_bits(),
            Small::E2M1 => {
                // In the middle, the one of the two with an even code.
                let size = value.abs();
                let is_above = |(code, middle): (usize, &f32)| size > *middle || size == *middle && code % 2 == 1;
                let code = MIDDLES.iter().enumerate().map(|pair| u8::from(is_above(pair))).sum::<u8>();
                code | u8::from(value.is_sign_negative()) << 3
            }
        }
    }

    fn value(self, code: u8) -> f32 {
        match self {
            Small::E4M3 => F8E4M3::from_bits(code).to_f32(),
            Small::E5M2 => F8E5M2::from_bits(code).to_f32(),
            Small::E2M1 => {
                let size = E2M1[usize::from(code & 7)];
                if code & 8 == 0 { size } else { -size }
            }
        }
    }
}

/// The largest of `values`; not a number where one of them is not finite, so that nothing hides it.
fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, |most, value| match value.is_finite() {
        true if most >= value.abs() || most.is_nan() => most,
        true => value.abs(),
        false => f32::NAN,
    })
}

impl Quantized {
    /// `values`, rows of `columns`, in `format`:
    ///
    /// - FP8: one scale for all, so that the largest number is the format's largest.
    /// - MXFP8: blocks of 32 in E4M3, the power of two rounded up so that nothing is cut off (arXiv:2506.08027 §3.1).
    /// - MXFP4: blocks of 32 in E2M1, the power of two rounded down (OCP Microscaling Formats 1.0, §6.3).
    /// - NVFP4: blocks of 16 in E2M1 with a scale in E4M3 and one for all in f32 (arXiv:2509.25149, appendix A). Without
    ///   stochastic rounding, Hadamard transforms and scales of 16 × 16 weights.
    ///
    /// A block, or a tensor with one scale, that has a number which is not finite has no numbers.
    pub fn of(values: &[f32], columns: usize, format: Format) -> Quantized {
        let Format { dtype, of_gradient, along } = format;
        let element = match dtype {
            Dtype::MxFp4 | Dtype::NvFp4 => Small::E2M1,
            Dtype::Fp8 if of_gradient => Small::E5M2,
            _ => Small::E4M3,
        };
        let columns = columns.max(1);
        let of_all = || largest(values.iter().copied());
        let blocks = match dtype.block() {
            None => Blocks::One(of_all() / element.largest()),
            Some(size) => {
                let (size, whole) = (size as usize, of_all() / (element.largest() * Small::E4M3.largest()));
                let kind = if dtype == Dtype::NvFp4 { Scale::E4M3(whole) } else { Scale::Power };
                let code = |most: f32| kind.code(dtype, element, most);
                let mut scales = Vec::new();
                match along {
                    Along::Rows => {
                        for row in values.chunks(columns) {
                            scales.extend(row.chunks(size).map(|block| code(largest(block.iter().copied()))));
                        }
                    }
                    Along::Columns => {
                        for block in values.chunks(size * columns) {
                            let of_column = |at: usize| block.iter().skip(at).step_by(columns).copied();
                            scales.extend((0..columns).map(|at| code(largest(of_column(at)))));
                        }
                    }
                }
                Blocks::Each { size, along, kind, scales }
            }
        };
        let mut quantized = Quantized { element, codes: Vec::new(), columns, elements: values.len(), blocks };
        let mut codes = Vec::with_capacity(values.len());
        quantized
            .with_scales(|at, scale| codes.push(if scale == 0.0 { 0 } else { element.code(values[at] / scale) }));
        quantized.codes = match element {
            Small::E2M1 => codes.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |code| code << 4)).collect(),
            _ => codes,
        };
        quantized
    }

    /// Calls `work` with each element and its scale, in order.
    fn with_scales(&self, mut work: impl FnMut(usize, f32)) {
        let (size, along, kind, scales) = match &self.blocks {
            Blocks::One(scale) => return (0..self.elements).for_each(|at| work(at, *scale)),
            Blocks::Each { size, along, kind, scales } => (*size, *along, *kind, scales),
        };
        let scales: Vec<f32> = scales.iter().map(|code| kind.value(*code)).collect();
        let of_row = match along {
            Along::Rows => self.columns.div_ceil(size),
            Along::Columns => self.columns,
        };
        for at in 0..self.elements {
            let (row, column) = (at / self.columns, at % self.columns);
            let block = match along {
                Along::Rows => row * of_row + column / size,
                Along::Columns => row / size * of_row + column,
            };
            work(at, scales[block]);
        }
    }

    /// The numbers that the codes stand for.
    pub fn values(&self) -> Vec<f32> {
        let table: Vec<f32> = (0..=u8::MAX).map(|code| self.element.value(code)).collect();
        let mut values = Vec::with_capacity(self.elements);
        self.with_scales(|at, scale| {
            let code = match self.element {
                Small::E2M1 => self.codes[at / 2] >> (at % 2 * 4) & 15,
                _ => self.codes[at],
            };
            values.push(table[usize::from(code)] * scale);
        });
        values
    }

    /// The bytes of codes and of scales of blocks.
    pub fn bytes(&self) -> usize {
        let scales = if let Blocks::Each { scales, .. } = &self.blocks { scales.len() } else { 0 };
        self.codes.len() + scales
    }
}

impl<T: Element> Data<T> {
    /// The numbers, in the type that kernels compute in.
    pub fn wide(&self) -> Cow<'_, [T]> {
        match self {
            Data::Bf16(values) => Cow::Owned(widen(values)),
            Data::Quantized(values) => {
                Cow::Owned(values.values().into_iter().map(|value| T::of(value.into())).collect())
            }
            floats => Cow::Borrowed(floats.floats()),
        }
    }

    /// As kernels read it; nothing where it is so already.
    pub(super) fn widened(&self) -> Option<Data<T>> {
        matches!(self, Data::Bf16(_) | Data::Quantized(_)).then(|| Data::Floats(self.wide().into_owned()))
    }

    /// `values` as a tensor of `dtype` keeps them.
    pub(super) fn kept(values: Vec<T>, dtype: Dtype) -> Data<T> {
        match dtype {
            Dtype::Bf16 => Data::Bf16(values.into_iter().map(nearest).collect()),
            _ => Data::Floats(values),
        }
    }

    /// Room for `elements` of a tensor of `dtype`, all 0. Operands of products in fewer bits are made whole, and have
    /// none before.
    pub(super) fn room(dtype: Dtype, elements: usize) -> Data<T> {
        match dtype {
            Dtype::Bf16 => Data::Bf16(vec![bf16::ZERO; elements]),
            dtype if Dtype::OF_MATMULS.contains(&dtype) => Data::Floats(Vec::new()),
            dtype => Data::zeros(dtype, elements),
        }
    }

    /// Has `work` change the numbers.
    pub(super) fn change<R>(&mut self, work: impl FnOnce(&mut [T]) -> R) -> R {
        match self {
            Data::Bf16(values) => {
                let mut wide: Vec<T> = widen(values);
                let done = work(&mut wide);
                values.iter_mut().zip(wide).for_each(|(value, wide)| *value = nearest(wide));
                done
            }
            floats => work(floats.floats_mut()),
        }
    }
}

/// The numbers of `values`.
pub(super) fn widen<T: Element>(values: &[bf16]) -> Vec<T> {
    values.iter().map(|value| T::of(value.to_f64())).collect()
}

/// The nearest bf16 number.
pub(super) fn nearest<T: Element>(value: T) -> bf16 {
    // Exact: what is in bf16 is computed in f32.
    bf16::from_f32(value.wide() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::random::SplitMix64;

    /// The numbers of a format from 0 on, in order, by its definition: with `bits` of mantissa and a bias of the exponent,
    /// up to the largest (OCP Microscaling Formats 1.0, tables 1 to 5).
    fn numbers(bits: i32, bias: i32, largest: f64) -> Vec<f64> {
        let of = |code: i32| {
            let (exponent, mantissa) = (code >> bits, f64::from(code & ((1 << bits) - 1)) / f64::from(1 << bits));
            match exponent {
                0 => mantissa * 2f64.powi(1 - bias),
                exponent => (1.0 + mantissa) * 2f64.powi(exponent - bias),
            }
        };
        (0..).map(of).take_while(|value| *value <= largest).collect()
    }

    /// Every number of each format is itself; between two, the nearer one is taken, in the middle that with an even code;
    /// beyond the largest, that.
    #[test]
    fn the_nearest_number_is_kept() {
        for (small, numbers) in [
            (Small::E4M3, numbers(3, 7, 448.0)),
            (Small::E5M2, numbers(2, 15, 57344.0)),
            (Small::E2M1, numbers(1, 1, 6.0)),
        ] {
            assert_eq!(f64::from(small.largest()), numbers[numbers.len() - 1]);
            let kept = |value: f64| f64::from(small.value(small.code(value as f32)));
            for (code, pair) in numbers.windows(2).enumerate() {
                let (low, high) = (pair[0], pair[1]);
                let even = if code % 2 == 0 { low } else { high };
                let step = high - low;
                for (value, expected) in
                    [(low, low), (low + 0.49 * step, low), (low + 0.5 * step, even), (low + 0.51 * step, high)]
                {
                    assert_eq!((kept(value), kept(-value)), (expected, -expected), "{value} in {small:?}");
                }
            }
            let most = numbers[numbers.len() - 1];
            assert_eq!((kept(most * 3.0), kept(-most * 3.0)), (most, -most));
        }
    }

    fn matrix(rows: usize, columns: usize) -> Vec<f32> {
        let mut random = SplitMix64::new(7);
        // Rows and columns of different sizes, so that scales matter.
        let size = |at: usize| 2f64.powi((at / columns % 5) as i32 - (at % 7) as i32);
        (0..rows * columns).map(|at| (random.normal() * size(at)) as f32).collect()
    }

    /// Blocks have the bytes that a plan counts; the largest number of a block is near the format's largest, and none is
    /// cut off by more than the format's last step.
    #[test]
    fn blocks_take_the_planned_bytes_and_fill_the_format() {
        let (rows, columns) = (64, 96);
        let values = matrix(rows, columns);
        for dtype in Dtype::OF_MATMULS {
            for (along, of_gradient) in [(Along::Rows, false), (Along::Columns, false), (Along::Rows, true)] {
                let what = format!("{dtype:?} {along:?} {of_gradient}");
                let quantized = Quantized::of(&values, columns, Format { dtype, of_gradient, along });
                assert_eq!(quantized.bytes() as u64, dtype.bytes_of(values.len() as u64), "{what}");
                let found = quantized.values();
                let block = dtype.block().map_or(values.len(), |block| block as usize);
                let of_block = |at: usize| match (dtype.block(), along) {
                    (None, _) => 0,
                    (Some(_), Along::Rows) => at / block,
                    (Some(_), Along::Columns) => at / columns / block * columns + at % columns,
                };
                let mut most = std::collections::BTreeMap::new();
                for (at, value) in values.iter().enumerate() {
                    let most: &mut f32 = most.entry(of_block(at)).or_default();
                    *most = most.max(value.abs());
                }
                // Half of a step at the top of the format; a scale rounded down may cut off up to a quarter, and a scale in
                // E4M3 is off by a sixteenth.
                let share = match dtype {
                    Dtype::Fp8 if of_gradient => 1.0 / 8.0,
                    Dtype::Fp8 | Dtype::MxFp8 => 1.0 / 16.0,
                    Dtype::MxFp4 => 0.25,
                    _ => 1.0 / 6.0 + 1.0 / 16.0,
                };
                for (at, (value, found)) in values.iter().zip(&found).enumerate() {
                    let most = most[&of_block(at)];
                    assert!((value - found).abs() <= share * most, "{what}: {value} became {found}, most {most}");
                }
            }
        }
    }

    /// What is not finite is seen by every product that reads its block, and never becomes a number.
    #[test]
    fn what_is_not_finite_stays_so() {
        for dtype in Dtype::OF_MATMULS {
            for (along, of_gradient) in [(Along::Rows, false), (Along::Columns, true)] {
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut values = matrix(32, 32);
                    values[5 * 32 + 7] = value;
                    let found = Quantized::of(&values, 32, Format { dtype, of_gradient, along }).values();
                    assert!(found[5 * 32 + 7].is_nan(), "{value} in {dtype:?} became {}", found[5 * 32 + 7]);
                }
            }
        }
    }

    /// Zeros stay zeros, whatever their block, and a partial block is one.
    #[test]
    fn zeros_and_partial_blocks_are_kept() {
        for dtype in Dtype::OF_MATMULS {
            for along in [Along::Rows, Along::Columns] {
                let format = Format { dtype, of_gradient: false, along };
                assert_eq!(Quantized::of(&[0.0; 70], 10, format).values(), [0.0; 70]);
                // 1.5 times powers of two are in every format.
                let values: Vec<f32> = (0..77).map(|at| if at % 3 == 0 { 1.5 } else { -0.75 }).collect();
                let found = Quantized::of(&values, 11, format).values();
                let error = found.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(error < 0.05, "{dtype:?} {along:?}: {error}");
            }
        }
    }
}
