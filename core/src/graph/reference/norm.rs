//! RMSNorm, LayerNorm and QK-norm.

use std::vec;
use std::vec::Vec;

use super::formulas::{dot, one_more};
use super::given::Given;
use crate::graph::{Kernel, of_e12};

/// The outputs of an operator of this family.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let (h, n) = (given.columns(0), given.rows());
    let row = |of: usize, i: usize| given.row(of, i);
    let by_element = |f: &dyn Fn(usize) -> f64| given.by_element(f);
    match given.kernel {
        Kernel::RmsNorm { eps_e12, offset } => {
            let r: Vec<f64> = (0..n)
                .map(|i| {
                    let mean = row(0, i).iter().map(|x| x * x).sum::<f64>() / h as f64;
                    (mean + of_e12(eps_e12)).sqrt().recip()
                })
                .collect();
            vec![by_element(&|e| x[0][e] * r[e / h] * (x[1][e % h] + one_more(offset))), r]
        }
        Kernel::RmsNormInputGrad { offset } => {
            let (dy, x, r, gain) = (x[0], x[1], x[2], x[3]);
            let gain: Vec<f64> = gain.iter().map(|gain| gain + one_more(offset)).collect();
            let mean = |i: usize| (i * h..(i + 1) * h).map(|e| dy[e] * gain[e % h] * x[e]).sum::<f64>() / h as f64;
            vec![by_element(&|e| {
                let (i, j) = (e / h, e % h);
                r[i] * (dy[e] * gain[j] - x[e] * r[i] * r[i] * mean(i))
            })]
        }
        Kernel::RmsNormGainGrad => {
            let mut sum = x[3].clone();
            (0..x[0].len()).for_each(|e| sum[e % h] += x[0][e] * x[1][e] * x[2][e / h]);
            vec![sum]
        }
        Kernel::LayerNorm { eps_e12 } => {
            let mean: Vec<f64> = (0..n).map(|i| row(0, i).iter().sum::<f64>() / h as f64).collect();
            let r: Vec<f64> = (0..n)
                .map(|i| {
                    let variance = row(0, i).iter().map(|x| (x - mean[i]).powi(2)).sum::<f64>() / h as f64;
                    (variance + of_e12(eps_e12)).sqrt().recip()
                })
                .collect();
            vec![by_element(&|e| (x[0][e] - mean[e / h]) * r[e / h] * x[1][e % h] + x[2][e % h]), mean, r]
        }
        Kernel::LayerNormInputGrad => {
            let (dy, x, mean, r, gain) = (x[0], x[1], x[2], x[3], x[4]);
            let u = |e: usize| dy[e] * gain[e % h];
            let z = |e: usize| (x[e] - mean[e / h]) * r[e / h];
            vec![by_element(&|e| {
                let i = e / h;
                let of_row = || i * h..(i + 1) * h;
                let mean_u = of_row().map(u).sum::<f64>() / h as f64;
                let mean_uz = of_row().map(|k| u(k) * z(k)).sum::<f64>() / h as f64;
                r[i] * (u(e) - mean_u - z(e) * mean_uz)
            })]
        }
        Kernel::LayerNormGainGrad => {
            let mut sum = x[4].clone();
            (0..x[0].len()).for_each(|e| sum[e % h] += x[0][e] * (x[1][e] - x[2][e / h]) * x[3][e / h]);
            vec![sum]
        }
        Kernel::HeadNorm { eps_e12, width, offset } => {
            let width = width as usize;
            let r: Vec<f64> = x[0]
                .chunks(width)
                .map(|head| (dot(head, head) / width as f64 + of_e12(eps_e12)).sqrt().recip())
                .collect();
            let gain = |e: usize| x[1][e % x[1].len()] + one_more(offset);
            vec![(0..x[0].len()).map(|e| x[0][e] * r[e / width] * gain(e)).collect(), r]
        }
        Kernel::HeadNormInputGrad { width, offset } => {
            let (dy, v, r, d) = (x[0], x[1], x[2], width as usize);
            let gain: Vec<f64> = x[3].iter().map(|gain| gain + one_more(offset)).collect();
            let gain = |e: usize| gain[e % gain.len()];
            let mean =
                |head: usize| (head * d..(head + 1) * d).map(|e| dy[e] * gain(e) * v[e]).sum::<f64>() / d as f64;
            vec![
                (0..dy.len()).map(|e| r[e / d] * (dy[e] * gain(e) - v[e] * r[e / d].powi(2) * mean(e / d))).collect(),
            ]
        }
        Kernel::HeadNormGainGrad { width } => {
            let mut sum = x[3].clone();
            let gains = sum.len();
            (0..x[0].len()).for_each(|e| sum[e % gains] += x[0][e] * x[1][e] * x[2][e / width as usize]);
            vec![sum]
        }
        other => panic!("{} is of another family", other.name()),
    }
}
