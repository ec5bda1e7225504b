//! Matrix products, biases, sums and casts.

use std::vec;
use std::vec::Vec;

use super::given::Given;
use crate::graph::Kernel;

/// The outputs of an operator of this family.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let columns = |of: usize| given.columns(of);
    let h = given.columns(0);
    let row = |of: usize, i: usize| given.row(of, i);
    let by_element = |f: &dyn Fn(usize) -> f64| given.by_element(f);
    match given.kernel {
        Kernel::AddBias => vec![by_element(&|e| x[0][e] + x[1][e % h])],
        Kernel::BiasGrad => {
            // Heads may share a bias.
            let mut sum = x[1].clone();
            let biases = sum.len();
            (0..x[0].len()).for_each(|e| sum[e % biases] += x[0][e]);
            vec![sum]
        }
        Kernel::MatMul { transpose_a, transpose_b, accumulate } => {
            let at = |of: usize, transposed: bool, i: usize, j: usize| {
                if transposed { row(of, j)[i] } else { row(of, i)[j] }
            };
            let sizes = |of: usize, transposed: bool| {
                let (columns, rows) = (columns(of), x[of].len() / columns(of));
                if transposed { (columns, rows) } else { (rows, columns) }
            };
            let ((rows, inner), (inner_b, out)) = (sizes(0, transpose_a), sizes(1, transpose_b));
            assert_eq!(inner, inner_b);
            let mut sum = if accumulate { x[2].clone() } else { vec![0.0; rows * out] };
            for i in 0..rows {
                for j in 0..out {
                    sum[i * out + j] +=
                        (0..inner).map(|k| at(0, transpose_a, i, k) * at(1, transpose_b, k, j)).sum::<f64>();
                }
            }
            vec![sum]
        }
        Kernel::Cast => vec![x[0].clone()],
        Kernel::Quantize { .. } => vec![x[0].clone(), x[0].clone()],
        Kernel::Add => vec![by_element(&|e| x[0][e] + x[1][e])],
        Kernel::Scale { factor_e12 } => vec![by_element(&|e| x[0][e] * factor_e12 as f64 * 1e-12)],
        other => panic!("{} is of another family", other.name()),
    }
}
