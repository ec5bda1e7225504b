//! Attention of a slice of sequences, which sees the keys and values of the slices before it (Seq1F1B,
//! arXiv:2406.03488 §3.2).
//!
//! All slices are as long. In the gradient, what queries of this slice add to keys and values of slices before it
//! goes to sums for those, and what later slices have added to its own goes to its own gradients.

use pipeplan_core::graph::Spread;

use super::super::element::Element;
use super::super::gemm::Gemm;
use super::attention::{Rows, Seen, attention_block, attention_grad_block, before_any_block};
use super::{Call, Data};
use crate::backend::stages::Slice;

/// The first slice that some query of slice number `slice` sees within the window.
fn first_seen(spread: &Spread, slice: usize) -> usize {
    let tokens = spread.heads.sequence.max(1);
    let position = slice as u64 * tokens;
    ((position + 1).saturating_sub(spread.window) / tokens) as usize
}

pub fn attention<T: Element>(
    gemm: &dyn Gemm<T>,
    call: &mut Call<'_, '_, T>,
    spread: &Spread,
    before: &[[&Data<T>; 2]],
) {
    let rows = |slice| Rows::of_slice(slice, spread.heads.sequence);
    let queries = rows(before.len());
    let (q, k, v) = (call.floats(0), call.floats(1), call.floats(2));
    let [o, log_sums, ..] = &mut *call.outputs else { panic!("attention has two outputs") };
    let (o, log_sums) = (o.floats_mut(), log_sums.floats_mut());
    before_any_block(o, log_sums);
    let mut block = |slice, k: &[T], v: &[T]| {
        attention_block(gemm, (spread, None), [q, k, v], [&mut *o, &mut *log_sums], [queries, rows(slice)]);
    };
    for (slice, [k, v]) in before.iter().enumerate().skip(first_seen(spread, before.len())) {
        block(slice, &k.wide(), &v.wide());
    }
    block(before.len(), k, v);
}

pub fn attention_grad<T: Element>(
    gemm: &dyn Gemm<T>,
    call: &mut Call<'_, '_, T>,
    spread: &Spread,
    slice: &mut Slice<'_, Data<T>>,
) {
    let rows = |slice| Rows::of_slice(slice, spread.heads.sequence);
    let queries = rows(slice.before.len());
    let seen = Seen::by(call);
    let (k, v) = (call.floats(2), call.floats(3));
    let [dq, dk, dv, ..] = &mut *call.outputs else { panic!("attention_grad has three outputs") };
    let (dq, dk, dv) = (dq.floats_mut(), dk.floats_mut(), dv.floats_mut());
    dq.fill(T::ZERO);
    let first = first_seen(spread, slice.before.len());
    for (number, ([k, v], [dk, dv])) in slice.before.iter().zip(&mut slice.gradients).enumerate().skip(first) {
        let rows = [queries, rows(number)];
        dk.change(|dk| {
            dv.change(|dv| {
                let gradients = [&mut *dq, dk, dv];
                attention_grad_block(gemm, (spread, None), &seen, [&k.wide(), &v.wide()], gradients, rows);
            });
        });
    }
    match &slice.own {
        Some([of_keys, of_values]) => {
            dk.copy_from_slice(&of_keys.wide());
            dv.copy_from_slice(&of_values.wide());
        }
        None => {
            dk.fill(T::ZERO);
            dv.fill(T::ZERO);
        }
    }
    attention_grad_block(gemm, (spread, None), &seen, [k, v], [dq, dk, dv], [queries, queries]);
}
