//! Causal attention in tiles, so that scores are never all held (FlashAttention-2, arXiv:2307.08691).
//!
//! A tile is [`TILE`] queries by [`TILE`] keys of one head of one sequence. Tiles above the diagonal, and those that
//! lie before every window, are skipped; in the others, scores of keys that a query does not see are left out.

use pipeplan_core::graph::Spread;

use super::super::element::{Element, dot, sum};
use super::super::gemm::{Gemm, Operand, Size};
use super::Call;
use super::elementwise::{slope_within, within_cap};

/// Queries and keys of a tile: 64 × 64 scores stay within a core's first cache.
const TILE: usize = 64;

/// Where the rows and columns of one head lie.
#[derive(Clone, Copy)]
struct Layout {
    sequence: usize,
    query_heads: usize,
    key_heads: usize,
    width: usize,
    value_width: usize,
    window: usize,
    scale: f64,
    cap: Option<f64>,
}

impl Layout {
    fn new(spread: &Spread) -> Layout {
        let heads = &spread.heads;
        Layout {
            sequence: heads.sequence as usize,
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

    /// Tiles of keys that some query of the tile at `query` sees.
    fn seen_tiles(&self, query: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let first = (query + 1).saturating_sub(self.window);
        self.tiles().skip_while(move |(key, keys)| key + keys <= first).take_while(move |(key, _)| *key <= query)
    }

    /// Which of the `keys` keys from `key` on the query at `position` sees.
    fn seen(&self, position: usize, (key, keys): (usize, usize)) -> std::ops::Range<usize> {
        let end = keys.min((position + 1).saturating_sub(key));
        (position + 1).saturating_sub(self.window).saturating_sub(key).min(end)..end
    }

    /// The first positions of tiles and their lengths.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let sequence = self.sequence;
        (0..sequence).step_by(TILE).map(move |start| (start, TILE.min(sequence - start)))
    }
}

/// A tile of scores: `TILE` elements from row to row.
type Scores<T> = Vec<T>;

pub fn attention<T: Element>(gemm: &dyn Gemm<T>, call: &mut Call<'_, '_, T>, spread: &Spread) {
    let layout = Layout::new(spread);
    let (q, k, v) = (call.floats(0), call.floats(1), call.floats(2));
    let (rows, _) = call.sizes(0);
    let [o, log_sums, ..] = &mut *call.outputs else { panic!("attention has two outputs") };
    let (o, log_sums) = (o.floats_mut(), log_sums.floats_mut());
    o.fill(T::ZERO);
    let mut scores: Scores<T> = vec![T::ZERO; TILE * TILE];
    let (scale, cap) = (T::of(layout.scale), layout.cap.map(T::of));
    for first in (0..rows).step_by(layout.sequence) {
        for head in 0..layout.query_heads {
            for (query, queries) in layout.tiles() {
                let mut greatest = [T::LOWEST; TILE];
                let mut sums = [T::ZERO; TILE];
                let o_tile = &mut o[layout.out_at(first + query, head)..];
                for (key, keys) in layout.seen_tiles(query) {
                    // scores = scale · Q · Kᵀ
                    gemm.gemm(
                        Size { rows: queries, inner: layout.width, columns: keys },
                        scale,
                        Operand::rows(&q[layout.query_at(first + query, head)..], layout.query_row()),
                        Operand::rows(&k[layout.key_at(first + key, head)..], layout.key_row()).transposed(),
                        T::ZERO,
                        &mut scores,
                        TILE,
                    );
                    // The softmax so far, corrected whenever a greater score turns up.
                    for (row, scores) in scores.chunks_exact_mut(TILE).enumerate().take(queries) {
                        let seen = layout.seen(query + row, (key, keys));
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
                        Size { rows: queries, inner: keys, columns: layout.value_width },
                        T::ONE,
                        Operand::rows(&scores, TILE),
                        Operand::rows(&v[layout.value_at(first + key, head)..], layout.value_row()),
                        T::ONE,
                        o_tile,
                        layout.out_row(),
                    );
                }
                for row in 0..queries {
                    let share = T::ONE / sums[row];
                    let start = row * layout.out_row();
                    for o in &mut o_tile[start..start + layout.value_width] {
                        *o *= share;
                    }
                    log_sums[(first + query + row) * layout.query_heads + head] = greatest[row] + sums[row].ln();
                }
            }
        }
    }
}

pub fn attention_grad<T: Element>(gemm: &dyn Gemm<T>, call: &mut Call<'_, '_, T>, spread: &Spread) {
    let layout = Layout::new(spread);
    let (d_o, q, k, v) = (call.floats(0), call.floats(1), call.floats(2), call.floats(3));
    let (o, log_sums) = (call.floats(4), call.floats(5));
    let (rows, _) = call.sizes(1);
    let [dq, dk, dv, ..] = &mut *call.outputs else { panic!("attention_grad has three outputs") };
    let (dq, dk, dv) = (dq.floats_mut(), dk.floats_mut(), dv.floats_mut());
    for gradient in [&mut *dq, &mut *dk, &mut *dv] {
        gradient.fill(T::ZERO);
    }
    let mut p: Scores<T> = vec![T::ZERO; TILE * TILE];
    let mut ds: Scores<T> = vec![T::ZERO; TILE * TILE];
    let (scale, cap) = (T::of(layout.scale), layout.cap.map(T::of));
    let (query_row, key_row, width) = (layout.query_row(), layout.key_row(), layout.width);
    let (out_row, value_row, value_width) = (layout.out_row(), layout.value_row(), layout.value_width);
    for first in (0..rows).step_by(layout.sequence) {
        for head in 0..layout.query_heads {
            for (query, queries) in layout.tiles() {
                let query_at = layout.query_at(first + query, head);
                let q_tile = Operand::rows(&q[query_at..], query_row);
                let out_at = layout.out_at(first + query, head);
                let do_tile = Operand::rows(&d_o[out_at..], out_row);
                // D[i] = Σ do[i] ∘ o[i]
                let mut along = [T::ZERO; TILE];
                for (row, along) in along.iter_mut().enumerate().take(queries) {
                    let at = out_at + row * out_row..out_at + row * out_row + value_width;
                    *along = dot(&d_o[at.clone()], &o[at]);
                }
                for (key, keys) in layout.seen_tiles(query) {
                    let key_at = layout.key_at(first + key, head);
                    let k_tile = Operand::rows(&k[key_at..], key_row);
                    let value_at = layout.value_at(first + key, head);
                    let v_tile = Operand::rows(&v[value_at..], value_row);
                    let tile = Size { rows: queries, inner: width, columns: keys };
                    gemm.gemm(tile, scale, q_tile, k_tile.transposed(), T::ZERO, &mut p, TILE);
                    let tile = Size { inner: value_width, ..tile };
                    gemm.gemm(tile, T::ONE, do_tile, v_tile.transposed(), T::ZERO, &mut ds, TILE);
                    for (row, (p, ds)) in
                        p.chunks_exact_mut(TILE).zip(ds.chunks_exact_mut(TILE)).enumerate().take(queries)
                    {
                        let seen = layout.seen(query + row, (key, keys));
                        let log_sum = log_sums[(first + query + row) * layout.query_heads + head];
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
                    let by_key = Size { rows: keys, inner: queries, columns: width };
                    let by_value = Size { columns: value_width, ..by_key };
                    let (p, ds) = (Operand::rows(&p, TILE), Operand::rows(&ds, TILE));
                    gemm.gemm(by_value, T::ONE, p.transposed(), do_tile, T::ONE, &mut dv[value_at..], value_row);
                    gemm.gemm(by_key, scale, ds.transposed(), q_tile, T::ONE, &mut dk[key_at..], key_row);
                    let by_query = Size { rows: queries, inner: keys, columns: width };
                    gemm.gemm(by_query, scale, ds, k_tile, T::ONE, &mut dq[query_at..], query_row);
                }
            }
        }
    }
}
