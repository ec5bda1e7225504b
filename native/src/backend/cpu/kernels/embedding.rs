//! Tables of rows: token embeddings and learned positions.

use super::super::element::Element;
use super::Call;

/// Row `index` of a table of `width` columns.
///
/// # Panics
/// Where the table has no such row: a token outside the vocabulary.
fn range(index: i32, width: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(index).expect("tokens are not negative") * width;
    start..start + width
}

pub fn embedding<T: Element>(call: &mut Call<'_, '_, T>) {
    let (tokens, table) = (call.tokens(0), call.floats(1));
    let (_, width) = call.sizes(1);
    for (row, token) in call.outputs[0].floats_mut().chunks_exact_mut(width).zip(tokens) {
        row.copy_from_slice(&table[range(*token, width)]);
    }
}

pub fn embedding_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (dy, tokens) = (call.floats(0), call.tokens(1));
    let (_, width) = call.sizes(2);
    let gradient = call.started(2);
    for (dy, token) in dy.chunks_exact(width).zip(tokens) {
        for (gradient, dy) in gradient[range(*token, width)].iter_mut().zip(dy) {
            *gradient += *dy;
        }
    }
}

pub fn positions<T: Element>(call: &mut Call<'_, '_, T>, sequence: usize) {
    let table = call.floats(1);
    let (_, width) = call.sizes(1);
    let table = &table[..sequence * width];
    for (y, position) in call.started(0).chunks_exact_mut(width).zip(table.chunks_exact(width).cycle()) {
        for (y, position) in y.iter_mut().zip(position) {
            *y += *position;
        }
    }
}

pub fn positions_grad<T: Element>(call: &mut Call<'_, '_, T>, sequence: usize) {
    let dy = call.floats(0);
    let (_, width) = call.sizes(1);
    let gradient = call.started(1);
    for (index, dy) in dy.chunks_exact(width).enumerate() {
        let start = index % sequence * width;
        for (gradient, dy) in gradient[start..start + width].iter_mut().zip(dy) {
            *gradient += *dy;
        }
    }
}
