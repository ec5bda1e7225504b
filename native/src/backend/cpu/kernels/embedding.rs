//! Tables of rows: token embeddings and learned positions.

use super::super::element::Element;
use super::Call;

/// Row `index` of a table of `width` columns; nothing for −1, a row of another member's part.
fn range(index: i32, width: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(index).ok()? * width;
    Some(start..start + width)
}

pub fn own_tokens<T: Element>(call: &mut Call<'_, '_, T>, rows: u64, member: u64) {
    let first = (rows * member) as i64;
    if let Some(tokens) = call.inputs[0].data {
        call.outputs[0].tokens_mut().copy_from_slice(tokens.tokens());
    }
    // A token that is not to be predicted is so for every member.
    for token in call.outputs[0].tokens_mut().iter_mut().filter(|token| **token >= 0) {
        let own = i64::from(*token) - first;
        *token = if (0..rows as i64).contains(&own) { own as i32 } else { -1 };
    }
}

pub fn embedding<T: Element>(call: &mut Call<'_, '_, T>) {
    let (tokens, table) = (call.tokens(0), call.floats(1));
    let (_, width) = call.sizes(1);
    for (row, token) in call.outputs[0].floats_mut().chunks_exact_mut(width).zip(tokens) {
        match range(*token, width) {
            Some(range) => row.copy_from_slice(&table[range]),
            None => row.fill(T::ZERO),
        }
    }
}

pub fn embedding_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (dy, tokens) = (call.floats(0), call.tokens(1));
    let (_, width) = call.sizes(2);
    let gradient = call.started(2);
    for (dy, token) in dy.chunks_exact(width).zip(tokens) {
        let Some(range) = range(*token, width) else { continue };
        for (gradient, dy) in gradient[range].iter_mut().zip(dy) {
            *gradient += *dy;
        }
    }
}

/// Row `row` has the position `position(row)`.
pub fn positions<T: Element>(call: &mut Call<'_, '_, T>, position: impl Fn(u64) -> u64) {
    let table = call.floats(1);
    let (_, width) = call.sizes(1);
    for (row, y) in call.started(0).chunks_exact_mut(width).enumerate() {
        let start = position(row as u64) as usize * width;
        for (y, learned) in y.iter_mut().zip(&table[start..start + width]) {
            *y += *learned;
        }
    }
}

pub fn positions_grad<T: Element>(call: &mut Call<'_, '_, T>, position: impl Fn(u64) -> u64) {
    let dy = call.floats(0);
    let (_, width) = call.sizes(1);
    let gradient = call.started(1);
    for (row, dy) in dy.chunks_exact(width).enumerate() {
        let start = position(row as u64) as usize * width;
        for (gradient, dy) in gradient[start..start + width].iter_mut().zip(dy) {
            *gradient += *dy;
        }
    }
}
