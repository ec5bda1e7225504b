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
        Kernel::HeadLayerNorm { .. }
        | Kernel::HeadLayerNormInputGrad { .. }
        | Kernel::HeadLayerNormGainGrad { .. } => layer_norm_of_heads(given),
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

/// LayerNorm of each head, and its gradients.
fn layer_norm_of_heads(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let gain = |of: Option<&&Vec<f64>>, e: usize, offset| match of {
        Some(gains) => gains[e % gains.len()] + one_more(offset),
        None => 1.0,
    };
    match given.kernel {
        Kernel::HeadLayerNorm { eps_e12, width, offset } => {
            let d = width as usize;
            let mean: Vec<f64> = x[0].chunks(d).map(|head| head.iter().sum::<f64>() / d as f64).collect();
            let variance =
                |(head, mean): (&[f64], &f64)| head.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / d as f64;
            let spread = x[0].chunks(d).zip(&mean).map(variance);
            let r: Vec<f64> = spread.map(|variance| (variance + of_e12(eps_e12)).sqrt().recip()).collect();
            let bias = |e: usize| x.get(2).map_or(0.0, |biases| biases[e % biases.len()]);
            let y = |e: usize| (x[0][e] - mean[e / d]) * r[e / d] * gain(x.get(1), e, offset) + bias(e);
            vec![(0..x[0].len()).map(y).collect(), mean, r]
        }
        Kernel::HeadLayerNormInputGrad { width, offset } => {
            let (dy, v, mean, r, d) = (x[0], x[1], x[2], x[3], width as usize);
            let u = |e: usize| dy[e] * gain(x.get(4), e, offset);
            let z = |e: usize| (v[e] - mean[e / d]) * r[e / d];
            let dx = |e: usize| {
                let head = e / d * d..(e / d + 1) * d;
                let mean_u = head.clone().map(u).sum::<f64>() / d as f64;
                let mean_uz = head.map(|k| u(k) * z(k)).sum::<f64>() / d as f64;
                r[e / d] * (u(e) - mean_u - z(e) * mean_uz)
            };
            vec![(0..dy.len()).map(dx).collect()]
        }
        Kernel::HeadLayerNormGainGrad { width } => {
            let (mut sum, d) = (x[4].clone(), width as usize);
            let gains = sum.len();
            (0..x[0].len()).for_each(|e| sum[e % gains] += x[0][e] * (x[1][e] - x[2][e / d]) * x[3][e / d]);
            vec![sum]
        }
        other => panic!("{} is of another family", other.name()),
    }
}
