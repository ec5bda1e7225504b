//! Causal attention in tiles, so that scores are never all held (FlashAttention-2, arXiv:2307.08691).
//!
//! A tile is [`TILE`] queries by [`TILE`] keys of one head of one sequence. Tiles above the diagonal, and those that
//! lie before every window or document, are skipped; in the others, scores of keys that a query does not see are left
//! out.
//!
//! Queries meet keys block by block, where those of other devices come by. What is made of one block is kept
//! normalised, with the logarithm of its sum, and goes on as a sum of 1 relative to that.

use pipeplan_core::graph::{SequencePart, Spread};

use super::super::element::{Element, dot, sum};
use super::super::gemm::{Gemm, Operand, Size};
use super::Call;
use super::elementwise::{slope_within, within_cap};
use crate::backend::documents::DocumentStarts;

/// Queries and keys of a tile: 64 × 64 scores stay within a core's first cache.
const TILE: usize = 64;

/// Rows that lie one after the other, on a device as in their sequence.
#[derive(Clone, Copy)]
pub struct Rows {
    /// The first one on the device, of those of one sequence.
    row: usize,
    /// Its position in the sequence.
    position: usize,
    count: usize,
}

impl Rows {
    /// The rows of one sequence of `sequence` tokens on the device that has `part` of each.
    pub fn of(part: SequencePart, sequence: u64) -> [Rows; 2] {
        let pieces = part.pieces(sequence).map(|piece| (piece.start as usize, (piece.end - piece.start) as usize));
        let [(first, early), (second, late)] = pieces;
        // What is whole is cut into tiles from its start.
        if early + first == second {
            return [Rows { row: 0, position: first, count: early + late }, Rows { row: 0, position: 0, count: 0 }];
        }
        [Rows { row: 0, position: first, count: early }, Rows { row: early, position: second, count: late }]
    }

    /// The rows of one sequence that slice number `slice` has, of slices of `tokens` each.
    pub fn of_slice(slice: usize, tokens: u64) -> [Rows; 2] {
        let count = tokens as usize;
        [Rows { row: 0, position: slice * count, count }, Rows { row: 0, position: 0, count: 0 }]
    }

    /// The same in tiles.
    fn tiles(self) -> impl Iterator<Item = Rows> {
        let Rows { row, position, count } = self;
        let tile = move |at| Rows { row: row + at, position: position + at, count: TILE.min(count - at) };
        (0..count).step_by(TILE).map(tile)
    }
}

/// Where the rows and columns of one head lie.
#[derive(Clone, Copy)]
struct Layout<'a> {
    /// Rows of one sequence on a device.
    rows: usize,
    /// Tokens of one sequence.
    sequence: usize,
    /// Where attention stays within documents, where these begin.
    documents: Option<&'a DocumentStarts>,
    query_heads: usize,
    key_heads: usize,
    width: usize,
    value_width: usize,
    window: usize,
    scale: f64,
    cap: Option<f64>,
}

impl<'a> Layout<'a> {
    fn new(spread: &Spread, documents: Option<&'a DocumentStarts>) -> Layout<'a> {
        let heads = &spread.heads;
        Layout {
            rows: (heads.sequence / spread.ways.max(1)) as usize,
            sequence: heads.sequence as usize,
            documents,
            query_heads: heads.query as usize,
            key_heads: heads.key_value as usize,
            width: heads.width as usize,
            value_width: spread.value_width as usize,
            window: spread.window as usize,
            scale: heads.scale(),
            cap: heads.cap(),
        }
    }

    /// Elements from row to row of queries.
    fn query_row(&self) -> usize {
        self.query_heads * self.width
    }

    /// Elements from row to row of outputs.
    fn out_row(&self) -> usize {
        self.query_heads * self.value_width
    }

    /// Elements from row to row of values.
    fn value_row(&self) -> usize {
        self.key_heads * self.value_width
    }

    /// Elements from row to row of keys.
    fn key_row(&self) -> usize {
        self.key_heads * self.width
    }

    /// The first element of `head` in row `row` of queries.
    fn query_at(&self, row: usize, head: usize) -> usize {
        row * self.query_row() + head * self.width
    }

    /// The first element of the key head that query head `head` reads, in row `row`.
    fn key_at(&self, row: usize, head: usize) -> usize {
        row * self.key_row() + head * self.key_heads / self.query_heads * self.width
    }

    /// The first element of `head` in row `row` of outputs.
    fn out_at(&self, row: usize, head: usize) -> usize {
        row * self.out_row() + head * self.value_width
    }

    /// As [`Layout::key_at`], of values.
    fn value_at(&self, row: usize, head: usize) -> usize {
        row * self.value_row() + head * self.key_heads / self.query_heads * self.value_width
    }

    /// The first position that the query at `position` sees, in the sequence whose first row on the device is
    /// `first_row`. It is no later for an earlier query.
    fn first_seen(&self, first_row: usize, position: usize) -> usize {
        let sequence = first_row / self.rows.max(1) * self.sequence;
        let document = self.documents.map_or(0, |starts| starts.of(sequence + position).saturating_sub(sequence));
        (position + 1).saturating_sub(self.window).max(document)
    }

    /// Tiles of keys that some query of the tile `query` sees.
    fn seen_tiles(&self, first_row: usize, query: Rows, keys: [Rows; 2]) -> impl Iterator<Item = Rows> + use<> {
        let first = self.first_seen(first_row, query.position);
        let end = query.position + query.count;
        let tiles = keys.into_iter().flat_map(Rows::tiles);
        tiles.filter(move |key| key.position + key.count > first && key.position < end)
    }

    /// Which of `keys` the query at `position` sees.
    fn seen(&self, first_row: usize, position: usize, keys: Rows) -> std::ops::Range<usize> {
        let end = keys.count.min((position + 1).saturating_sub(keys.position));
        self.first_seen(first_row, position).saturating_sub(keys.position).min(end)..end
    }
}

/// A tile of scores: `TILE` elements from row to row.
type Scores<T> = Vec<T>;

/// Attention of one device over whole sequences.
pub fn attention<T: Element>(
    gemm: &dyn Gemm<T>,
    call: &mut Call<'_, '_, T>,
    spread: &Spread,
    documents: Option<&DocumentStarts>,
) {
    let whole = Rows::of(SequencePart::WHOLE, spread.heads.sequence);
    let (q, k, v) = (call.floats(0), call.floats(1), call.floats(2));
    let [o, log_sums, ..] = &mut *call.outputs else { panic!("attention has two outputs") };
    let (o, log_sums) = (o.floats_mut(), log_sums.floats_mut());
    before_any_block(o, log_sums);
    attention_block(gemm, (spread, documents), [q, k, v], [o, log_sums], [whole, whole]);
}

/// What attention over no keys at all makes.
pub fn before_any_block<T: Element>(o: &mut [T], log_sums: &mut [T]) {
    o.fill(T::ZERO);
    log_sums.fill(T::LOWEST);
}

/// Adds what the queries, at `[queries, keys]` in each sequence, see in one block of keys and values, to the outputs
/// and log-sum-exps of the blocks before it.
pub fn attention_block<T: Element>(
    gemm: &dyn Gemm<T>,
    (spread, documents): (&Spread, Option<&DocumentStarts>),
    [q, k, v]: [&[T]; 3],
    [o, log_sums]: [&mut [T]; 2],
    [queries, keys]: [[Rows; 2]; 2],
) {
    let layout = Layout::new(spread, documents);
    let rows = q.len() / layout.query_row();
    let mut scores: Scores<T> = vec![T::ZERO; TILE * TILE];
    let (scale, cap) = (T::of(layout.scale), layout.cap.map(T::of));
    for first in (0..rows).step_by(layout.rows) {
        for head in 0..layout.query_heads {
            for query in queries.into_iter().flat_map(Rows::tiles) {
                let mut greatest = [T::LOWEST; TILE];
                let mut sums = [T::ZERO; TILE];
                let log_sum_at = |row: usize| (first + query.row + row) * layout.query_heads + head;
                for row in 0..query.count {
                    let before = log_sums[log_sum_at(row)];
                    if before > T::LOWEST {
                        (greatest[row], sums[row]) = (before, T::ONE);
                    }
                }
                let o_tile = &mut o[layout.out_at(first + query.row, head)..];
                for key in layout.seen_tiles(first, query, keys) {
                    // scores = scale · Q · Kᵀ
                    gemm.gemm(
                        Size { rows: query.count, inner: layout.width, columns: key.count },
                        scale,
                        Operand::rows(&q[layout.query_at(first + query.row, head)..], layout.query_row()),
                        Operand::rows(&k[layout.key_at(first + key.row, head)..], layout.key_row()).transposed(),
                        T::ZERO,
                        &mut scores,
                        TILE,
                    );
                    // The softmax so far, corrected whenever a greater score turns up.
                    for (row, scores) in scores.chunks_exact_mut(TILE).enumerate().take(query.count) {
                        let seen = layout.seen(first, query.position + row, key);
                        let (scores, hidden) = scores.split_at_mut(seen.end);
                        let (early, scores) = scores.split_at_mut(seen.start);
                        early.fill(T::ZERO);
                        if let Some(cap) = cap {
                            scores.iter_mut().for_each(|score| *score = within_cap(*score, cap));
                        }
                        let before = greatest[row];
                        let now = scores.iter().fold(before, |greatest, score| greatest.greater(*score));
                        for score in scores.iter_mut() {
                            *score = (*score - now).exp();
                        }
                        hidden.fill(T::ZERO);
                        if now != before {
                            let correction = (before - now).exp();
                            sums[row] *= correction;
                            let start = row * layout.out_row();
                            for o in &mut o_tile[start..start + layout.value_width] {
                                *o *= correction;
                            }
                        }
                        greatest[row] = now;
                        sums[row] += sum(scores);
                    }
                    // O += P · V
                    gemm.gemm(
                        Size { rows: query.count, inner: key.count, columns: layout.value_width },
                        T::ONE,
                        Operand::rows(&scores, TILE),
                        Operand::rows(&v[layout.value_at(first + key.row, head)..], layout.value_row()),
                        T::ONE,
                        o_tile,
                        layout.out_row(),
                    );
                }
                for row in 0..query.count {
                    // Nothing seen so far.
                    if sums[row] == T::ZERO {
                        continue;
                    }
                    let share = T::ONE / sums[row];
                    let start = row * layout.out_row();
                    for o in &mut o_tile[start..start + layout.value_width] {
                        *o *= share;
                    }
                    log_sums[log_sum_at(row)] = greatest[row] + sums[row].ln();
                }
            }
        }
    }
}

/// The gradient of [`attention`].
pub fn attention_grad<T: Element>(
    gemm: &dyn Gemm<T>,
    call: &mut Call<'_, '_, T>,
    spread: &Spread,
    documents: Option<&DocumentStarts>,
) {
    let whole = Rows::of(SequencePart::WHOLE, spread.heads.sequence);
    let seen = Seen::by(call);
    let (k, v) = (call.floats(2), call.floats(3));
    let [dq, dk, dv, ..] = &mut *call.outputs else { panic!("attention_grad has three outputs") };
    let gradients = [dq.floats_mut(), dk.floats_mut(), dv.floats_mut()];
    let gradients = gradients.map(|gradient| {
        gradient.fill(T::ZERO);
        gradient
    });
    attention_grad_block(gemm, (spread, documents), &seen, [k, v], gradients, [whole, whole]);
}

/// What a gradient needs of the queries and of what they made.
pub struct Seen<'a, T> {
    d_o: &'a [T],
    q: &'a [T],
    o: &'a [T],
    log_sums: &'a [T],
}

impl<'a, T: Element> Seen<'a, T> {
    /// The inputs of a gradient.
    pub fn by(call: &Call<'a, '_, T>) -> Seen<'a, T> {
        Seen { d_o: call.floats(0), q: call.floats(1), o: call.floats(4), log_sums: call.floats(5) }
    }
}

/// Adds the gradients, of queries, keys and values, of what the queries, at `[queries, keys]` in each sequence, see
/// in one block of keys and values.
pub fn attention_grad_block<T: Element>(
    gemm: &dyn Gemm<T>,
    (spread, documents): (&Spread, Option<&DocumentStarts>),
    Seen { d_o, q, o, log_sums }: &Seen<'_, T>,
    [k, v]: [&[T]; 2],
    [dq, dk, dv]: [&mut [T]; 3],
    [queries, keys]: [[Rows; 2]; 2],
) {
    let layout = Layout::new(spread, documents);
    let rows = q.len() / layout.query_row();
    let mut p: Scores<T> = vec![T::ZERO; TILE * TILE];
    let mut ds: Scores<T> = vec![T::ZERO; TILE * TILE];
    let (scale, cap) = (T::of(layout.scale), layout.cap.map(T::of));
    let (query_row, key_row, width) = (layout.query_row(), layout.key_row(), layout.width);
    let (out_row, value_row, value_width) = (layout.out_row(), layout.value_row(), layout.value_width);
    for first in (0..rows).step_by(layout.rows) {
        for head in 0..layout.query_heads {
            for query in queries.into_iter().flat_map(Rows::tiles) {
                let query_at = layout.query_at(first + query.row, head);
                let q_tile = Operand::rows(&q[query_at..], query_row);
                let out_at = layout.out_at(first + query.row, head);
                let do_tile = Operand::rows(&d_o[out_at..], out_row);
                // D[i] = Σ do[i] ∘ o[i]
                let mut along = [T::ZERO; TILE];
                for (row, along) in along.iter_mut().enumerate().take(query.count) {
                    let at = out_at + row * out_row..out_at + row * out_row + value_width;
                    *along = dot(&d_o[at.clone()], &o[at]);
                }
                for key in layout.seen_tiles(first, query, keys) {
                    let key_at = layout.key_at(first + key.row, head);
                    let k_tile = Operand::rows(&k[key_at..], key_row);
                    let value_at = layout.value_at(first + key.row, head);
                    let v_tile = Operand::rows(&v[value_at..], value_row);
                    let tile = Size { rows: query.count, inner: width, columns: key.count };
                    gemm.gemm(tile, scale, q_tile, k_tile.transposed(), T::ZERO, &mut p, TILE);
                    let tile = Size { inner: value_width, ..tile };
                    gemm.gemm(tile, T::ONE, do_tile, v_tile.transposed(), T::ZERO, &mut ds, TILE);
                    for (row, (p, ds)) in
                        p.chunks_exact_mut(TILE).zip(ds.chunks_exact_mut(TILE)).enumerate().take(query.count)
                    {
                        let seen = layout.seen(first, query.position + row, key);
                        let log_sum = log_sums[(first + query.row + row) * layout.query_heads + head];
                        let seen_of_both = p[seen.clone()].iter_mut().zip(&mut ds[seen.clone()]);
                        match cap {
                            None => seen_of_both.for_each(|(p, ds)| {
                                *p = (*p - log_sum).exp();
                                *ds = *p * (*ds - along[row]);
                            }),
                            Some(cap) => seen_of_both.for_each(|(p, ds)| {
                                let score = within_cap(*p, cap);
                                *p = (score - log_sum).exp();
                                *ds = *p * (*ds - along[row]) * slope_within(score, cap);
                            }),
                        }
                        for hidden in [0..seen.start, seen.end..TILE] {
                            p[hidden.clone()].fill(T::ZERO);
                            ds[hidden].fill(T::ZERO);
                        }
                    }
                    // dV += Pᵀ · dO, dK += scale · dSᵀ · Q, dQ += scale · dS · K
                    let by_key = Size { rows: key.count, inner: query.count, columns: width };
                    let by_value = Size { columns: value_width, ..by_key };
                    let (p, ds) = (Operand::rows(&p, TILE), Operand::rows(&ds, TILE));
                    gemm.gemm(by_value, T::ONE, p.transposed(), do_tile, T::ONE, &mut dv[value_at..], value_row);
                    gemm.gemm(by_key, scale, ds.transposed(), q_tile, T::ONE, &mut dk[key_at..], key_row);
                    let by_query = Size { rows: query.count, inner: key.count, columns: width };
                    gemm.gemm(by_query, scale, ds, k_tile, T::ONE, &mut dq[query_at..], query_row);
                }
            }
        }
    }
}
