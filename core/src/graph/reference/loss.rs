//! Soft-caps and clipping, and the cross-entropy loss.

use std::vec;
use std::vec::Vec;

use super::formulas::{capped, slope_within};
use super::given::Given;
use crate::graph::{Kernel, of_e12};

/// The outputs of an operator of this family.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let h = given.columns(0);
    let n = given.rows();
    let row = |of: usize, i: usize| given.row(of, i);
    let by_element = |f: &dyn Fn(usize) -> f64| given.by_element(f);
    match given.kernel {
        Kernel::SoftCap { cap_e12 } => {
            let hidden = |x: f64| x == f64::NEG_INFINITY;
            vec![by_element(&|e| if hidden(x[0][e]) { x[0][e] } else { capped(x[0][e], Some(cap_e12)) })]
        }
        Kernel::Clip { limit_e12 } => {
            let limit = of_e12(limit_e12);
            vec![by_element(&|e| x[0][e].clamp(-limit, limit))]
        }
        Kernel::ClipGrad { limit_e12 } => {
            vec![by_element(&|e| if x[1][e].abs() < of_e12(limit_e12) { x[0][e] } else { 0.0 })]
        }
        Kernel::SoftCapGrad { cap_e12 } => vec![by_element(&|e| match x[1][e] {
            f64::NEG_INFINITY => 0.0,
            y => x[0][e] * slope_within(y, Some(cap_e12)),
        })],
        Kernel::CrossEntropy { microbatches } => {
            let l: Vec<f64> = (0..n).map(|i| row(0, i).iter().map(|x| x.exp()).sum::<f64>().ln()).collect();
            let sum: f64 = (0..n).map(|i| l[i] - row(0, i)[x[1][i] as usize]).sum();
            vec![vec![sum / (n as f64 * microbatches as f64)], l]
        }
        Kernel::HidePadding { vocab } => {
            let column = |e: usize| (given.member * h + e % h) as u64;
            vec![by_element(&|e| if column(e) < vocab { x[0][e] } else { f64::NEG_INFINITY })]
        }
        Kernel::RowMax => {
            vec![(0..n).map(|i| row(0, i).iter().copied().fold(f64::NEG_INFINITY, f64::max)).collect()]
        }
        Kernel::ExpSums => {
            let sum = |i: usize| row(0, i).iter().map(|logit| (logit - x[1][i]).exp()).sum::<f64>();
            let own = |i: usize| if x[2][i] < 0.0 { 0.0 } else { row(0, i)[x[2][i] as usize] };
            vec![(0..n).flat_map(|i| [sum(i), own(i)]).collect()]
        }
        Kernel::SharedCrossEntropy { microbatches } => {
            let l: Vec<f64> = (0..n).map(|i| x[0][i] + row(1, i)[0].ln()).collect();
            let sum: f64 = (0..n).map(|i| l[i] - row(1, i)[1]).sum();
            vec![vec![sum / (n as f64 * microbatches as f64)], l]
        }
        Kernel::CrossEntropyGrad { microbatches, weight_e12 } => vec![by_element(&|e| {
            let (i, j) = (e / h, e % h);
            let target = if j as f64 == x[1][i] { 1.0 } else { 0.0 };
            of_e12(weight_e12) * ((x[0][e] - x[2][i]).exp() - target) / (n as f64 * microbatches as f64)
        })],
        other => panic!("{} is of another family", other.name()),
    }
}
