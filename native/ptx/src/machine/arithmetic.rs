//! Instructions that change registers only.

use super::warp::{ALL, LANES, Longs, Warp, put};
use super::{LaneFault, lane_fault};
use crate::decode::{BitsOne, Compare, Either, FloatOne, FloatTwo, Long, Op, Two, Whole, Word};
use crate::number;

impl Warp {
    #[inline(always)]
    fn words2(&mut self, to: u32, on: u32, [a, b]: [Word; 2], of: impl Fn(u32, u32) -> u32) {
        let (a, b) = (self.word(a), self.word(b));
        put(&mut self.words[to as usize], on, |lane| of(a[lane], b[lane]));
    }

    #[inline(always)]
    fn longs2(&mut self, to: u32, on: u32, [a, b]: [Long; 2], of: impl Fn(u64, u64) -> u64) {
        let (a, b) = (self.long(a), self.long(b));
        put(&mut self.longs[to as usize], on, |lane| of(a[lane], b[lane]));
    }

    #[inline(always)]
    fn words1(&mut self, to: u32, on: u32, a: Word, of: impl Fn(u32) -> u32) {
        let a = self.word(a);
        put(&mut self.words[to as usize], on, |lane| of(a[lane]));
    }

    #[inline(always)]
    fn floats2(&mut self, to: u32, on: u32, from: [Word; 2], of: impl Fn(f32, f32) -> f32) {
        self.words2(to, on, from, |a, b| of(f32::from_bits(a), f32::from_bits(b)).to_bits());
    }

    #[inline(always)]
    fn floats1(&mut self, to: u32, on: u32, from: Word, of: impl Fn(f32) -> f32) {
        self.words1(to, on, from, |a| of(f32::from_bits(a)).to_bits());
    }

    #[inline(always)]
    fn test<T: Copy>(&mut self, to: u32, on: u32, a: [T; LANES], b: [T; LANES], holds: impl Fn(T, T) -> bool) {
        let truth = (0..LANES).fold(0, |truth, lane| truth | u32::from(holds(a[lane], b[lane])) << lane);
        self.set_truth(to, on, truth);
    }

    #[inline(always)]
    fn compare<T: Copy + PartialOrd>(&mut self, how: Compare, to: u32, on: u32, a: [T; LANES], b: [T; LANES]) {
        match how {
            Compare::Eq => self.test(to, on, a, b, |a, b| a == b),
            Compare::Ne => self.test(to, on, a, b, |a, b| a != b),
            Compare::Lt => self.test(to, on, a, b, |a, b| a < b),
            Compare::Le => self.test(to, on, a, b, |a, b| a <= b),
            Compare::Gt => self.test(to, on, a, b, |a, b| a > b),
            Compare::Ge => self.test(to, on, a, b, |a, b| a >= b),
            Compare::Number => self.test(to, on, a, b, |a, b| a.partial_cmp(&b).is_some()),
            Compare::NoNumber => self.test(to, on, a, b, |_, _| false),
        }
    }

    /// What changes registers only.
    pub(crate) fn compute(&mut self, op: &Op, on: u32) -> Result<(), LaneFault> {
        match op {
            Op::Copy32(..)
            | Op::Copy64(..)
            | Op::CopyTruth(..)
            | Op::Split32(..)
            | Op::Join32(..)
            | Op::Split64(..)
            | Op::Join64(..)
            | Op::Select32(..)
            | Op::Select64(..) => self.copy(op, on),
            Op::Two32(..)
            | Op::Two64(..)
            | Op::Shift32 { .. }
            | Op::Shift64 { .. }
            | Op::One32(..)
            | Op::One64(..)
            | Op::Wide { .. }
            | Op::MulAdd32(..)
            | Op::MulAdd64(..) => self.integer(op, on),
            Op::Compare32(..) | Op::Compare64(..) | Op::CompareFloat(..) | Op::TruthTwo(..) | Op::TruthNot(..) => {
                self.predicate(op, on)
            }
            Op::FloatTwo(..) | Op::FloatOne(..) | Op::Fma { .. } => self.float(op, on),
            Op::Resize { .. } | Op::FloatOfWhole { .. } | Op::WholeOfFloat { .. } | Op::PairOfBf16(..) => {
                self.convert(op, on)
            }
            Op::InsertBits(..) | Op::InsertBits64(..) | Op::Permute(..) => self.bits(op, on),
            _ => lane_fault("it is not known what this does"),
        }
    }

    /// Copies, splits, joins and selections of registers.
    fn copy(&mut self, op: &Op, on: u32) -> Result<(), LaneFault> {
        match *op {
            Op::Copy32(to, from) => self.words1(to, on, from, |a| a),
            Op::Copy64(to, from) => {
                let from = self.long(from);
                put(&mut self.longs[to as usize], on, |lane| from[lane]);
            }
            Op::CopyTruth(to, from) => self.set_truth(to, on, self.truth(from)),
            Op::Split32([low, high], from) => {
                let from = self.word(from);
                put(&mut self.words[low as usize], on, |lane| from[lane] & 0xffff);
                put(&mut self.words[high as usize], on, |lane| from[lane] >> 16);
            }
            Op::Join32(to, from) => self.words2(to, on, from, |low, high| high << 16 | low & 0xffff),
            Op::Split64([low, high], from) => {
                let from = self.long(from);
                put(&mut self.words[low as usize], on, |lane| from[lane] as u32);
                put(&mut self.words[high as usize], on, |lane| (from[lane] >> 32) as u32);
            }
            Op::Join64(to, from) => {
                let [low, high] = from.map(|word| self.word(word));
                put(&mut self.longs[to as usize], on, |lane| u64::from(high[lane]) << 32 | u64::from(low[lane]));
            }
            Op::Select32(to, from, truth) => {
                let ([a, b], truth) = (from.map(|word| self.word(word)), self.truth(truth));
                put(&mut self.words[to as usize], on, |lane| if truth >> lane & 1 == 1 { a[lane] } else { b[lane] });
            }
            Op::Select64(to, from, truth) => {
                let ([a, b], truth) = (from.map(|long| self.long(long)), self.truth(truth));
                put(&mut self.longs[to as usize], on, |lane| if truth >> lane & 1 == 1 { a[lane] } else { b[lane] });
            }
            _ => return lane_fault("it is not known what this does"),
        }
        Ok(())
    }

    /// Arithmetic of whole numbers.
    fn integer(&mut self, op: &Op, on: u32) -> Result<(), LaneFault> {
        match *op {
            Op::Two32(two, whole, to, from) => return self.two32(two, whole, to, from, on),
            Op::Two64(two, signed, to, from) => return self.two64(two, signed, to, from, on),
            Op::Shift32 { left: true, whole, to, from } => {
                let kept = if whole.bits == 16 { 0xffff } else { ALL };
                self.words2(to, on, from, |a, by| a.checked_shl(by).unwrap_or(0) & kept);
            }
            Op::Shift32 { left: false, whole, to, from } => match (whole.signed, whole.bits) {
                (false, _) => self.words2(to, on, from, |a, by| a.checked_shr(by).unwrap_or(0)),
                (true, 16) => {
                    self.words2(to, on, from, |a, by| (i32::from(a as u16 as i16) >> by.min(31)) as u32 & 0xffff)
                }
                (true, _) => self.words2(to, on, from, |a, by| (a as i32 >> by.min(31)) as u32),
            },
            Op::Shift64 { left, signed, to, from, by } => {
                let (from, by) = (self.long(from), self.word(by));
                let to = &mut self.longs[to as usize];
                match (left, signed) {
                    (true, _) => put(to, on, |lane| from[lane].checked_shl(by[lane]).unwrap_or(0)),
                    (false, false) => put(to, on, |lane| from[lane].checked_shr(by[lane]).unwrap_or(0)),
                    (false, true) => put(to, on, |lane| (from[lane] as i64 >> by[lane].min(63)) as u64),
                }
            }
            Op::One32(one, whole, to, from) => {
                let kept = if whole.bits == 16 { 0xffff } else { ALL };
                match one {
                    BitsOne::Not => self.words1(to, on, from, |a| !a & kept),
                    BitsOne::Neg => self.words1(to, on, from, |a| a.wrapping_neg() & kept),
                    BitsOne::Abs { half: true } => {
                        self.words1(to, on, from, |a| u32::from((a as u16 as i16).unsigned_abs()));
                    }
                    BitsOne::Abs { half: false } => self.words1(to, on, from, |a| (a as i32).unsigned_abs()),
                    BitsOne::Reversed => self.words1(to, on, from, u32::reverse_bits),
                    BitsOne::LeadingZeros => self.words1(to, on, from, u32::leading_zeros),
                    BitsOne::Ones => self.words1(to, on, from, u32::count_ones),
                    BitsOne::Highest { signed, shift } => self.words1(to, on, from, |a| {
                        let a = if signed && (a as i32) < 0 { !a } else { a };
                        let none = if a == 0 { ALL } else { 31 - a.leading_zeros() };
                        if shift && a != 0 { a.leading_zeros() } else { none }
                    }),
                }
            }
            Op::One64(one, to, from) => {
                let from = self.long(from);
                let to = &mut self.longs[to as usize];
                match one {
                    BitsOne::Not => put(to, on, |lane| !from[lane]),
                    BitsOne::Neg => put(to, on, |lane| from[lane].wrapping_neg()),
                    BitsOne::Abs { .. } => put(to, on, |lane| (from[lane] as i64).unsigned_abs()),
                    _ => return lane_fault("it is not known for 64 bits"),
                }
            }
            Op::Wide { signed, to, from, plus } => {
                let [a, b] = from.map(|word| self.word(word));
                let plus = plus.map_or([0; LANES], |plus| self.long(plus));
                let to = &mut self.longs[to as usize];
                match signed {
                    true => put(to, on, |lane| {
                        (i64::from(a[lane] as i32) * i64::from(b[lane] as i32)).wrapping_add(plus[lane] as i64) as u64
                    }),
                    false => put(to, on, |lane| (u64::from(a[lane]) * u64::from(b[lane])).wrapping_add(plus[lane])),
                }
            }
            Op::MulAdd32(whole, to, from) => {
                let kept = if whole.bits == 16 { 0xffff } else { ALL };
                let [a, b, c] = from.map(|word| self.word(word));
                put(&mut self.words[to as usize], on, |lane| {
                    a[lane].wrapping_mul(b[lane]).wrapping_add(c[lane]) & kept
                });
            }
            Op::MulAdd64(to, from) => {
                let [a, b, c] = from.map(|long| self.long(long));
                put(&mut self.longs[to as usize], on, |lane| a[lane].wrapping_mul(b[lane]).wrapping_add(c[lane]));
            }
            _ => return lane_fault("it is not known what this does"),
        }
        Ok(())
    }

    /// Comparisons, and what is made of their results.
    fn predicate(&mut self, op: &Op, on: u32) -> Result<(), LaneFault> {
        match *op {
            Op::Compare32(how, whole, to, from) => {
                let [a, b] = from.map(|word| self.word(word));
                match (whole.signed, whole.bits) {
                    (false, _) => self.compare(how, to, on, a, b),
                    (true, 16) => self.compare(how, to, on, a.map(|a| a as u16 as i16), b.map(|b| b as u16 as i16)),
                    (true, _) => self.compare(how, to, on, a.map(|a| a as i32), b.map(|b| b as i32)),
                }
            }
            Op::Compare64(how, signed, to, from) => {
                let [a, b] = from.map(|long| self.long(long));
                match signed {
                    false => self.compare(how, to, on, a, b),
                    true => self.compare(how, to, on, a.map(|a| a as i64), b.map(|b| b as i64)),
                }
            }
            Op::CompareFloat(how, or_none, to, from) => {
                let [a, b] = from.map(|word| self.word(word).map(f32::from_bits));
                self.compare(how, to, on, a, b);
                // Where one is no number, it is said apart what holds.
                let none =
                    (0..LANES).fold(0, |none, lane| none | u32::from(a[lane].is_nan() || b[lane].is_nan()) << lane);
                self.set_truth(to, on & none, if or_none { ALL } else { 0 });
            }
            Op::TruthTwo(two, to, from) => {
                let [a, b] = from.map(|truth| self.truth(truth));
                let truth = match two {
                    Two::And => a & b,
                    Two::Or => a | b,
                    _ => a ^ b,
                };
                self.set_truth(to, on, truth);
            }
            Op::TruthNot(to, from) => self.set_truth(to, on, !self.truth(from)),
            _ => return lane_fault("it is not known what this does"),
        }
        Ok(())
    }

    /// Arithmetic of floats.
    fn float(&mut self, op: &Op, on: u32) -> Result<(), LaneFault> {
        match *op {
            Op::FloatTwo(two, to, from) => match two {
                FloatTwo::Add => self.floats2(to, on, from, |a, b| a + b),
                FloatTwo::Sub => self.floats2(to, on, from, |a, b| a - b),
                FloatTwo::Mul => self.floats2(to, on, from, |a, b| a * b),
                FloatTwo::Div => self.floats2(to, on, from, |a, b| a / b),
                FloatTwo::Min => self.floats2(to, on, from, number::lesser),
                FloatTwo::Max => self.floats2(to, on, from, number::greater),
                FloatTwo::CopySign => self.words2(to, on, from, |sign, of| of & 0x7fff_ffff | sign & 0x8000_0000),
            },
            Op::FloatOne(one, flushes, to, from) => {
                let flushed = |x: f32| if flushes { number::flushed(x) } else { x };
                match one {
                    FloatOne::Neg => self.words1(to, on, from, |a| a ^ 0x8000_0000),
                    FloatOne::Abs => self.words1(to, on, from, |a| a & 0x7fff_ffff),
                    FloatOne::Root => self.floats1(to, on, from, f32::sqrt),
                    FloatOne::Reciprocal => self.floats1(to, on, from, |a| flushed(1.0 / flushed(a))),
                    FloatOne::PowerOf2 => self.floats1(to, on, from, |a| flushed(flushed(a).exp2())),
                    FloatOne::Log2 => self.floats1(to, on, from, |a| flushed(flushed(a).log2())),
                    // What is no number becomes 0.
                    FloatOne::Saturated => self.floats1(to, on, from, |a| if a > 0.0 { a.min(1.0) } else { 0.0 }),
                }
            }
            Op::Fma { down, to, from } => {
                let [a, b, c] = from.map(|word| self.word(word).map(f32::from_bits));
                let to = &mut self.words[to as usize];
                match down {
                    false => put(to, on, |lane| number::fma(a[lane], b[lane], c[lane]).to_bits()),
                    true => put(to, on, |lane| number::fma_down(a[lane], b[lane], c[lane]).to_bits()),
                }
            }
            _ => return lane_fault("it is not known what this does"),
        }
        Ok(())
    }

    /// Conversions between sizes and between whole numbers and floats.
    fn convert(&mut self, op: &Op, on: u32) -> Result<(), LaneFault> {
        match *op {
            Op::Resize { from, to_bits, to, value } => {
                let value = self.extended(value, from);
                match to_bits {
                    64 => put(&mut self.longs[to as usize], on, |lane| value[lane]),
                    bits => {
                        let kept = ALL >> (32 - bits);
                        put(&mut self.words[to as usize], on, |lane| value[lane] as u32 & kept);
                    }
                }
            }
            Op::FloatOfWhole { signed, to, value } => {
                let bits = if matches!(value, Either::Word(_)) { 32 } else { 64 };
                let value = self.extended(value, Whole { bits, signed });
                let to = &mut self.words[to as usize];
                match signed {
                    true => put(to, on, |lane| (value[lane] as i64 as f32).to_bits()),
                    false => put(to, on, |lane| (value[lane] as f32).to_bits()),
                }
            }
            Op::WholeOfFloat { whole, to, value } => match whole.signed {
                true => self.words1(to, on, value, |a| f32::from_bits(a) as i32 as u32),
                false => self.words1(to, on, value, |a| f32::from_bits(a) as u32),
            },
            Op::PairOfBf16(to, from) => self.words2(to, on, from, |high, low| {
                number::bf16(f32::from_bits(high)) << 16 | number::bf16(f32::from_bits(low))
            }),
            _ => return lane_fault("it is not known what this does"),
        }
        Ok(())
    }

    /// Bit fields and permutations of bytes.
    pub(super) fn bits(&mut self, op: &Op, on: u32) -> Result<(), LaneFault> {
        match *op {
            Op::InsertBits(to, from) => {
                let [a, b, start, count] = from.map(|word| self.word(word));
                put(&mut self.words[to as usize], on, |lane| {
                    let (start, count) = (start[lane] & 0xff, count[lane] & 0xff);
                    let ones = if count >= 32 { ALL } else { (1 << count) - 1 };
                    let mask = ones.checked_shl(start).unwrap_or(0);
                    b[lane] & !mask | a[lane].checked_shl(start).unwrap_or(0) & mask
                });
            }
            Op::InsertBits64(to, from, place) => {
                let ([a, b], [start, count]) = (from.map(|long| self.long(long)), place.map(|word| self.word(word)));
                put(&mut self.longs[to as usize], on, |lane| {
                    let (start, count) = (start[lane] & 0xff, count[lane] & 0xff);
                    let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
                    let mask = ones.checked_shl(start).unwrap_or(0);
                    b[lane] & !mask | a[lane].checked_shl(start).unwrap_or(0) & mask
                });
            }
            Op::Permute(to, from) => {
                let [a, b, order] = from.map(|word| self.word(word));
                put(&mut self.words[to as usize], on, |lane| number::permuted(a[lane], b[lane], order[lane]));
            }
            _ => return lane_fault("it is not known what this does"),
        }
        Ok(())
    }

    /// A whole number as 64 bits.
    fn extended(&self, value: Either, from: Whole) -> Longs {
        let value = match value {
            Either::Word(word) => self.word(word).map(u64::from),
            Either::Long(long) => self.long(long),
        };
        let above = 64 - from.bits;
        match from.signed {
            true => value.map(|value| ((value << above) as i64 >> above) as u64),
            false => value.map(|value| value << above >> above),
        }
    }

    fn two32(&mut self, two: Two, whole: Whole, to: u32, from: [Word; 2], on: u32) -> Result<(), LaneFault> {
        let signed = whole.signed;
        if whole.bits == 16 {
            let extended = |a: u32| if signed { i64::from(a as u16 as i16) } else { i64::from(a as u16) };
            let of: fn(i64, i64) -> i64 = match two {
                Two::Add => |a, b| a + b,
                Two::Sub => |a, b| a - b,
                Two::Mul => |a, b| a * b,
                Two::Min => i64::min,
                Two::Max => i64::max,
                Two::And => |a, b| a & b,
                Two::Or => |a, b| a | b,
                Two::Xor => |a, b| a ^ b,
                Two::MulHigh | Two::Div | Two::Rem => return lane_fault("it is not known for 16 bits"),
            };
            self.words2(to, on, from, |a, b| of(extended(a), extended(b)) as u32 & 0xffff);
            return Ok(());
        }
        match two {
            Two::Add => self.words2(to, on, from, u32::wrapping_add),
            Two::Sub => self.words2(to, on, from, u32::wrapping_sub),
            Two::Mul => self.words2(to, on, from, u32::wrapping_mul),
            Two::MulHigh if signed => {
                self.words2(to, on, from, |a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32);
            }
            Two::MulHigh => self.words2(to, on, from, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
            Two::Min if signed => self.words2(to, on, from, |a, b| (a as i32).min(b as i32) as u32),
            Two::Min => self.words2(to, on, from, u32::min),
            Two::Max if signed => self.words2(to, on, from, |a, b| (a as i32).max(b as i32) as u32),
            Two::Max => self.words2(to, on, from, u32::max),
            Two::And => self.words2(to, on, from, |a, b| a & b),
            Two::Or => self.words2(to, on, from, |a, b| a | b),
            Two::Xor => self.words2(to, on, from, |a, b| a ^ b),
            Two::Div | Two::Rem => {
                self.no_zero(self.word(from[1]).map(u64::from), on)?;
                match (two, signed) {
                    (Two::Div, true) => self.words2(to, on, from, |a, b| (a as i32).wrapping_div(b as i32) as u32),
                    (Two::Div, false) => self.words2(to, on, from, |a, b| a / b),
                    (_, true) => self.words2(to, on, from, |a, b| (a as i32).wrapping_rem(b as i32) as u32),
                    (_, false) => self.words2(to, on, from, |a, b| a % b),
                }
            }
        }
        Ok(())
    }

    fn two64(&mut self, two: Two, signed: bool, to: u32, from: [Long; 2], on: u32) -> Result<(), LaneFault> {
        match two {
            Two::Add => self.longs2(to, on, from, u64::wrapping_add),
            Two::Sub => self.longs2(to, on, from, u64::wrapping_sub),
            Two::Mul => self.longs2(to, on, from, u64::wrapping_mul),
            Two::MulHigh if signed => {
                self.longs2(to, on, from, |a, b| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64);
            }
            Two::MulHigh => self.longs2(to, on, from, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
            Two::Min if signed => self.longs2(to, on, from, |a, b| (a as i64).min(b as i64) as u64),
            Two::Min => self.longs2(to, on, from, u64::min),
            Two::Max if signed => self.longs2(to, on, from, |a, b| (a as i64).max(b as i64) as u64),
            Two::Max => self.longs2(to, on, from, u64::max),
            Two::And => self.longs2(to, on, from, |a, b| a & b),
            Two::Or => self.longs2(to, on, from, |a, b| a | b),
            Two::Xor => self.longs2(to, on, from, |a, b| a ^ b),
            Two::Div | Two::Rem => {
                self.no_zero(self.long(from[1]), on)?;
                match (two, signed) {
                    (Two::Div, true) => self.longs2(to, on, from, |a, b| (a as i64).wrapping_div(b as i64) as u64),
                    (Two::Div, false) => self.longs2(to, on, from, |a, b| a / b),
                    (_, true) => self.longs2(to, on, from, |a, b| (a as i64).wrapping_rem(b as i64) as u64),
                    (_, false) => self.longs2(to, on, from, |a, b| a % b),
                }
            }
        }
        Ok(())
    }

    /// Whether no thread divides by 0, which gives anything.
    fn no_zero(&self, by: Longs, on: u32) -> Result<(), LaneFault> {
        match (0..LANES).find(|lane| on >> lane & 1 == 1 && by[*lane] == 0) {
            Some(lane) => Err(LaneFault { what: "it divides by 0".to_string(), other: None, lane: Some(lane) }),
            None => Ok(()),
        }
    }
}
