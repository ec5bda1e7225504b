//! Formulas that several families of operators share.

use crate::graph::Heads;

/// What is added to the weight of a norm.
pub(super) fn one_more(offset: bool) -> f64 {
    if offset { 1.0 } else { 0.0 }
}

/// `x` within a soft cap, written otherwise than with a hyperbolic tangent.
pub(super) fn capped(x: f64, cap_e12: Option<u64>) -> f64 {
    let Some(cap) = cap_e12.map(|cap| cap as f64 * 1e-12) else { return x };
    let (up, down) = ((x / cap).exp(), (-x / cap).exp());
    cap * (up - down) / (up + down)
}

/// The slope of a soft cap where it gives `y`.
pub(super) fn slope_within(y: f64, cap_e12: Option<u64>) -> f64 {
    cap_e12.map_or(1.0, |cap| 1.0 - (y / (cap as f64 * 1e-12)).powi(2))
}

/// What products of queries and keys are multiplied with.
pub(super) fn scale_of(heads: &Heads) -> f64 {
    heads.scale_e12.map_or((heads.width as f64).powf(-0.5), |scale| scale as f64 * 1e-12)
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
