//! Rotary positions.

use pipeplan_core::graph::Angles;

use super::super::element::Element;
use super::Call;
use crate::backend::rotary::RopeScaling;

/// Sine and cosine for each position, then each half column.
pub fn table<T: Element>(sequence: u64, width: u64, angles: &Angles, scaling: Option<&RopeScaling>) -> Vec<(T, T)> {
    let base = angles.base;
    let plain = |column: u64| libm::pow(base as f64, -2.0 * column as f64 / width as f64);
    let by_column = |column| match scaling {
        _ if !angles.turns(column) => 0.0,
        None => plain(column),
        Some(scaling) => scaling.inverse_frequency(column, width, base),
    };
    let attention = scaling.map_or(1.0, RopeScaling::attention);
    let columns: Vec<f64> = (0..width / 2).map(by_column).collect();
    let number = |value: f64| T::of(attention * value);
    (0..sequence)
        .flat_map(|position| columns.iter().map(move |angle| position as f64 * angle))
        .map(|angle| (number(libm::sin(angle)), number(libm::cos(angle))))
        .collect()
}

/// Rotates the last `tail` columns of each head, in each row by its `position`.
pub(super) fn rope<T: Element>(
    call: &mut Call<'_, '_, T>,
    table: &[(T, T)],
    position: impl Fn(u64) -> u64,
    (heads, width, tail): (u64, u64, u64),
    inverse: bool,
) {
    let (heads, width, tail) = (heads as usize, width as usize, tail as usize);
    let half = tail / 2;
    for (number, row) in call.started(0).chunks_exact_mut(heads * width).enumerate() {
        let start = position(number as u64) as usize * half;
        let angles = &table[start..start + half];
        for head in row.chunks_exact_mut(width) {
            let (low, high) = head[width - tail..].split_at_mut(half);
            for ((low, high), (sine, cosine)) in low.iter_mut().zip(high).zip(angles) {
                let sine = if inverse { -*sine } else { *sine };
                let (x, y) = (*low, *high);
                *low = x * *cosine - y * sine;
                *high = y * *cosine + x * sine;
            }
        }
    }
}
