//! Attention whose scores are tensors, and dropout: what flash attention is measured against.
//!
//! Row `(b · heads + h) · sequence + i` of a score tensor is position `i` of head `h` in sequence `b`, so each
//! head of a sequence is one square matrix.

use pipeplan_core::graph::{Heads, SequencePart};

use super::super::element::{Element, dot, sum};
use super::super::gemm::{Gemm, Operand, Size};
use super::Call;
use crate::backend::documents::DocumentStarts;
use crate::runner::random::SplitMix64;

/// One head of one sequence.
struct Square {
    /// The number of the sequence.
    sequence: usize,
    /// Its scores.
    scores: std::ops::Range<usize>,
    /// Its first query, and its first key or value.
    query: usize,
    key: usize,
}

struct Squares {
    sequence: usize,
    width: usize,
    query_row: usize,
    key_row: usize,
    query_heads: usize,
    key_heads: usize,
    scale: f64,
}

impl Squares {
    fn new(heads: &Heads) -> Squares {
        let (width, query, key) = (heads.width as usize, heads.query as usize, heads.key_value as usize);
        let (query_row, key_row) = (query * width, key * width);
        let (sequence, scale) = (heads.sequence as usize, heads.scale());
        Squares { sequence, width, query_row, key_row, query_heads: query, key_heads: key, scale }
    }

    /// The squares of a tensor of `rows` tokens.
    fn all(&self, rows: usize) -> impl Iterator<Item = Square> + '_ {
        (0..rows / self.sequence).flat_map(move |batch| {
            (0..self.query_heads).map(move |head| {
                let start = (batch * self.query_heads + head) * self.sequence * self.sequence;
                let first = batch * self.sequence;
                Square {
                    sequence: batch,
                    scores: start..start + self.sequence * self.sequence,
                    query: first * self.query_row + head * self.width,
                    key: first * self.key_row + head * self.key_heads / self.query_heads * self.width,
                }
            })
        })
    }

    fn scale<T: Element>(&self) -> T {
        T::of(self.scale)
    }

    /// A square times a matrix of heads.
    fn onto_heads(&self) -> Size {
        Size { rows: self.sequence, inner: self.sequence, columns: self.width }
    }

    /// One matrix of heads times another's transpose.
    fn onto_scores(&self) -> Size {
        Size { rows: self.sequence, inner: self.width, columns: self.sequence }
    }

    /// Sets what lies beyond each position, or before its document, to `value`.
    fn hide<T: Element>(&self, square: &mut [T], sequence: usize, value: T, documents: Option<&DocumentStarts>) {
        for (position, row) in square.chunks_exact_mut(self.sequence).enumerate() {
            row[position + 1..].fill(value);
            if let Some(starts) = documents {
                let first = sequence * self.sequence;
                row[..starts.of(first + position).saturating_sub(first)].fill(value);
            }
        }
    }
}

pub fn scores<T: Element>(
    gemm: &dyn Gemm<T>,
    call: &mut Call<'_, '_, T>,
    heads: &Heads,
    documents: Option<&DocumentStarts>,
) {
    let squares = Squares::new(heads);
    let (q, k) = (call.floats(0), call.floats(1));
    let (rows, _) = call.sizes(0);
    let scores = call.outputs[0].floats_mut();
    for square in squares.all(rows) {
        let q = Operand::rows(&q[square.query..], squares.query_row);
        let k = Operand::rows(&k[square.key..], squares.key_row).transposed();
        let scores = &mut scores[square.scores];
        gemm.gemm(squares.onto_scores(), squares.scale(), q, k, T::ZERO, scores, squares.sequence);
        squares.hide(scores, square.sequence, T::LOWEST, documents);
    }
}

pub fn scores_grad<T: Element>(gemm: &dyn Gemm<T>, call: &mut Call<'_, '_, T>, heads: &Heads) {
    let squares = Squares::new(heads);
    let (ds, q, k) = (call.floats(0), call.floats(1), call.floats(2));
    let (rows, _) = call.sizes(1);
    let [dq, dk] = &mut *call.outputs else { panic!("scores_grad has two outputs") };
    let (dq, dk) = (dq.floats_mut(), dk.floats_mut());
    dk.fill(T::ZERO);
    for square in squares.all(rows) {
        // Beyond each position they are 0: its probability is.
        let ds = Operand::rows(&ds[square.scores], squares.sequence);
        let k = Operand::rows(&k[square.key..], squares.key_row);
        let q = Operand::rows(&q[square.query..], squares.query_row);
        let (size, scale) = (squares.onto_heads(), squares.scale());
        gemm.gemm(size, scale, ds, k, T::ZERO, &mut dq[square.query..], squares.query_row);
        gemm.gemm(size, scale, ds.transposed(), q, T::ONE, &mut dk[square.key..], squares.key_row);
    }
}

pub fn softmax<T: Element>(call: &mut Call<'_, '_, T>) {
    let (_, columns) = call.sizes(0);
    for row in call.started(0).chunks_exact_mut(columns) {
        let greatest = row.iter().fold(T::LOWEST, |greatest, score| greatest.greater(*score));
        for score in row.iter_mut() {
            *score = (*score - greatest).exp();
        }
        let share = T::ONE / sum(row);
        for score in row.iter_mut() {
            *score *= share;
        }
    }
}

pub fn softmax_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let p = call.floats(1);
    let (_, columns) = call.sizes(0);
    for (ds, p) in call.started(0).chunks_exact_mut(columns).zip(p.chunks_exact(columns)) {
        let along = dot(ds, p);
        for (ds, p) in ds.iter_mut().zip(p) {
            *ds = *p * (*ds - along);
        }
    }
}

pub fn attend<T: Element>(gemm: &dyn Gemm<T>, call: &mut Call<'_, '_, T>, heads: &Heads) {
    let squares = Squares::new(heads);
    let (p, v) = (call.floats(0), call.floats(1));
    let (rows, _) = call.sizes(1);
    let o = call.outputs[0].floats_mut();
    for square in squares.all(rows) {
        let p = Operand::rows(&p[square.scores], squares.sequence);
        let v = Operand::rows(&v[square.key..], squares.key_row);
        gemm.gemm(squares.onto_heads(), T::ONE, p, v, T::ZERO, &mut o[square.query..], squares.query_row);
    }
}

pub fn attend_grad<T: Element>(
    gemm: &dyn Gemm<T>,
    call: &mut Call<'_, '_, T>,
    heads: &Heads,
    documents: Option<&DocumentStarts>,
) {
    let squares = Squares::new(heads);
    let (d_o, p, v) = (call.floats(0), call.floats(1), call.floats(2));
    let (rows, _) = call.sizes(0);
    let [dp, dv] = &mut *call.outputs else { panic!("attend_grad has two outputs") };
    let (dp, dv) = (dp.floats_mut(), dv.floats_mut());
    dv.fill(T::ZERO);
    for square in squares.all(rows) {
        let d_o = Operand::rows(&d_o[square.query..], squares.query_row);
        let v = Operand::rows(&v[square.key..], squares.key_row);
        let p = Operand::rows(&p[square.scores.clone()], squares.sequence);
        let dp = &mut dp[square.scores];
        gemm.gemm(squares.onto_scores(), T::ONE, d_o, v.transposed(), T::ZERO, dp, squares.sequence);
        squares.hide(dp, square.sequence, T::ZERO, documents);
        gemm.gemm(squares.onto_heads(), T::ONE, p.transposed(), d_o, T::ONE, &mut dv[square.key..], squares.key_row);
    }
}

/// Nine of ten elements are kept, and stand for the tenth as well.
const KEPT: f64 = 0.9;

/// One draw of `random` for each element of what all members hold, of which this one has every `ways`-th of the blocks,
/// from its own number on. With context parallelism, a row draws as its token's does.
pub fn dropout<T: Element>(
    call: &mut Call<'_, '_, T>,
    random: &SplitMix64,
    [ways, blocks]: [u64; 2],
    member: u64,
    (sequence, part): (u64, SequencePart),
) {
    let (rows, columns) = call.sizes(0);
    call.started(0);
    let [y, kept] = &mut *call.outputs else { panic!("dropout has two outputs") };
    let (y, kept) = (y.floats_mut(), kept.bytes_mut());
    let share = T::of(1.0 / KEPT);
    let (ways, member) = if ways > 1 { (ways, member) } else { (1, 0) };
    // Scores, which have more blocks than one, are never held where sequences are dealt out.
    let is_whole = part.parts <= 1;
    let block = if is_whole { (y.len() / blocks.max(1) as usize).max(1) } else { columns.max(1) };
    for (at, (y, kept)) in y.chunks_mut(block).zip(kept.chunks_mut(block)).enumerate() {
        let at = match is_whole {
            true => at as u64 * ways + member,
            false => part.row(sequence, member * rows as u64 + at as u64),
        };
        let mut random = random.after(at * block as u64);
        for (y, kept) in y.iter_mut().zip(kept) {
            *kept = u8::from(random.below(10) > 0);
            *y = if *kept == 1 { *y * share } else { T::ZERO };
        }
    }
}

pub fn dropout_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let kept = call.bytes(1);
    let share = T::of(1.0 / KEPT);
    for (dx, kept) in call.started(0).iter_mut().zip(kept) {
        *dx = if *kept == 1 { *dx * share } else { T::ZERO };
    }
}
