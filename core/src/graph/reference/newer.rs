//! Parts of newer models: gates and activations, norms over devices and without weights, sinks, biases of experts,
//! convolutions.

use std::vec;
use std::vec::Vec;

use super::attention;
use super::experts::owners;
use super::formulas::{dot, one_more};
use super::given::Given;
use crate::graph::{Kernel, of_e12};

fn sigma(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Weights of experts times a number of each, and the gradient of that number.
fn expert_scales(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    if let Kernel::ExpertScale = given.kernel {
        return vec![x[0].iter().zip(x[1]).map(|(weight, chosen)| weight * x[2][*chosen as usize]).collect()];
    }
    let mut sum = x[3].clone();
    (0..x[0].len()).for_each(|e| sum[x[2][e] as usize] += x[0][e] * x[1][e]);
    vec![sum]
}

/// The outputs of an operator of this family.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let h = given.columns(0);
    let by_element = |f: &dyn Fn(usize) -> f64| given.by_element(f);
    match given.kernel {
        Kernel::ClampedGlu => vec![by_element(&|e| clamped(x[0][e]).0 * (1.0 + up(x[1][e]).0))],
        Kernel::ClampedGluGrad => vec![
            by_element(&|e| x[0][e] * clamped(x[1][e]).1 * (1.0 + up(x[2][e]).0)),
            by_element(&|e| x[0][e] * clamped(x[1][e]).0 * up(x[2][e]).1),
        ],
        Kernel::SquaredRelu => vec![by_element(&|e| x[0][e].max(0.0).powi(2))],
        Kernel::SquaredReluGrad => vec![by_element(&|e| x[0][e] * 2.0 * x[1][e].max(0.0))],
        Kernel::WeightedSquaredRelu => vec![by_element(&|e| x[1][e / h] * x[0][e].max(0.0).powi(2))],
        Kernel::WeightedSquaredReluGrad => vec![
            by_element(&|e| x[0][e] * x[2][e / h] * 2.0 * x[1][e].max(0.0)),
            (0..given.rows())
                .map(|i| (i * h..(i + 1) * h).map(|e| x[0][e] * x[1][e].max(0.0).powi(2)).sum())
                .collect(),
        ],
        Kernel::Xielu | Kernel::XieluGrad | Kernel::XieluWeightGrad { .. } => xielu(given),
        Kernel::SigmoidGate => vec![by_element(&|e| x[0][e] * sigma(x[1][e]))],
        Kernel::SigmoidGateGrad => vec![
            by_element(&|e| x[0][e] * sigma(x[2][e])),
            by_element(&|e| x[0][e] * x[1][e] * sigma(x[2][e]) * (1.0 - sigma(x[2][e]))),
        ],
        Kernel::RowSquares => vec![(0..given.rows()).map(|i| dot(given.row(0, i), given.row(0, i))).collect()],
        Kernel::RowSquaresGrad => {
            let width = given.columns(1);
            vec![(0..x[1].len()).map(|e| 2.0 * x[0][e / width] * x[1][e]).collect()]
        }
        Kernel::SharedRmsNorm { eps_e12, columns, offset } => {
            let r: Vec<f64> = x[2].iter().map(|s| (s / columns as f64 + of_e12(eps_e12)).sqrt().recip()).collect();
            vec![by_element(&|e| x[0][e] * r[e / h] * (x[1][e % h] + one_more(offset))), r]
        }
        Kernel::SharedRmsNormGrad { columns, offset } => {
            let u = |e: usize| x[0][e] * (x[3][e % h] + one_more(offset));
            let along = |i: usize| (i * h..(i + 1) * h).map(|e| u(e) * x[1][e]).sum::<f64>();
            let of_sum = (0..given.rows()).map(|i| -x[2][i].powi(3) / (2.0 * columns as f64) * along(i));
            vec![by_element(&|e| u(e) * x[2][e / h]), of_sum.collect()]
        }
        Kernel::HeadLength { eps_e12, width } => {
            let mean = |head: &[f64]| dot(head, head) / width as f64 + of_e12(eps_e12);
            let r: Vec<f64> = x[0].chunks(width as usize).map(|head| mean(head).sqrt().recip()).collect();
            vec![by_element(&|e| x[0][e] * r[e / width as usize]), r]
        }
        Kernel::HeadLengthGrad { width } => {
            let (dy, v, r, d) = (x[0], x[1], x[2], width as usize);
            let mean = |head: usize| dot(&dy[head * d..(head + 1) * d], &v[head * d..(head + 1) * d]) / d as f64;
            vec![by_element(&|e| r[e / d] * (dy[e] - v[e] * r[e / d].powi(2) * mean(e / d)))]
        }
        Kernel::PositionScale { sequence, tokens, scale_e12 } => vec![by_element(&|e| {
            let position = (e / h) % sequence as usize;
            let steps = (position + 1) / tokens as usize;
            x[0][e] * (1.0 + of_e12(scale_e12) * (1.0 + steps as f64).ln())
        })],
        Kernel::SinkAttention(_) | Kernel::SinkGrad => sinks(given),
        Kernel::ExpertScale | Kernel::ExpertScaleGrad => expert_scales(given),
        Kernel::ExpertBias { .. } | Kernel::ExpertBiasGrad { .. } | Kernel::ExpertBiasShareGrad { .. } => {
            expert_biases(given)
        }
        Kernel::DetachedMatMul => {
            let (inner, out) = (given.columns(1), given.sizes[0] / given.rows());
            let row = |i: usize, j: usize| dot(given.row(0, i), &x[1][j * inner..(j + 1) * inner]);
            vec![(0..given.rows()).flat_map(|i| (0..out).map(move |j| row(i, j))).collect()]
        }
        Kernel::Convolution { .. } | Kernel::ConvolutionGrad { .. } | Kernel::ConvolutionWeightGrad { .. } => {
            convolution(given)
        }
        other => panic!("{} is only planned", other.name()),
    }
}

/// `g · σ(1.702 g)` with `g` at most 7, and its slope.
pub(super) fn clamped(gate: f64) -> (f64, f64) {
    let g = gate.min(7.0);
    let share = sigma(1.702 * g);
    (g * share, if gate > 7.0 { 0.0 } else { share + g * 1.702 * share * (1.0 - share) })
}

/// What stands beside that gate, and its slope.
pub(super) fn up(x: f64) -> (f64, f64) {
    (x.clamp(-7.0, 7.0), if x.abs() > 7.0 { 0.0 } else { 1.0 })
}

fn xielu(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let softplus = |x: f64| (1.0 + x.exp()).ln();
    match given.kernel {
        Kernel::Xielu => {
            let (above, below) = (softplus(x[1][0]), 0.5 + softplus(x[2][0]));
            vec![given.by_element(&|e| match x[0][e] {
                x if x > 0.0 => above * x * x + x / 2.0,
                x => below * (x.exp() - 1.0 - x) + x / 2.0,
            })]
        }
        Kernel::XieluGrad => {
            let (above, below) = (softplus(x[2][0]), 0.5 + softplus(x[3][0]));
            vec![given.by_element(&|e| match x[1][e] {
                v if v > 0.0 => x[0][e] * (2.0 * above * v + 0.5),
                v => x[0][e] * (below * (v.exp() - 1.0) + 0.5),
            })]
        }
        Kernel::XieluWeightGrad { below } => {
            let of = |e: usize| match x[1][e] {
                v if v > 0.0 => {
                    if below {
                        0.0
                    } else {
                        x[0][e] * v * v
                    }
                }
                v => {
                    if below {
                        x[0][e] * (v.exp() - 1.0 - v)
                    } else {
                        0.0
                    }
                }
            };
            let sum: f64 = (0..x[0].len()).map(of).sum();
            vec![vec![x[3][0] + sigma(x[2][0]) * sum]]
        }
        other => panic!("{} is of another family", other.name()),
    }
}

fn sinks(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    match given.kernel {
        Kernel::SinkAttention(spread) => {
            let [o, l]: [Vec<f64>; 2] = attention::spread_attention(spread, &x[..3]).try_into().unwrap();
            let (heads, e) = (spread.heads.query as usize, spread.value_width as usize);
            let with: Vec<f64> = (0..l.len()).map(|at| (l[at].exp() + x[3][at % heads].exp()).ln()).collect();
            let share = |at: usize| (l[at] - with[at]).exp();
            vec![(0..o.len()).map(|at| o[at] * share(at / e)).collect(), with]
        }
        Kernel::SinkGrad => {
            let (heads, mut sum) = (x[3].len(), x[4].clone());
            let e = x[0].len() / x[2].len();
            for at in 0..x[2].len() {
                let along = dot(&x[0][at * e..(at + 1) * e], &x[1][at * e..(at + 1) * e]);
                sum[at % heads] -= (x[3][at % heads] - x[2][at]).exp() * along;
            }
            vec![sum]
        }
        other => panic!("{} is of another family", other.name()),
    }
}

fn expert_biases(given: &Given) -> Vec<Vec<f64>> {
    let (x, h) = (&given.x[..], given.columns(0));
    match given.kernel {
        Kernel::ExpertBias { ways, shared } => {
            let mut y = x[0].clone();
            for (row, expert) in owners(x[2]).enumerate() {
                let share = if shared { x[3][row] } else { 1.0 } / ways as f64;
                (0..h).for_each(|j| y[row * h + j] += share * x[1][expert * h + j]);
            }
            vec![y]
        }
        Kernel::ExpertBiasGrad { ways, shared } => {
            let mut sum = x[x.len() - 1].clone();
            for (row, expert) in owners(x[1]).enumerate() {
                let share = if shared { x[2][row] } else { 1.0 } / ways as f64;
                (0..h).for_each(|j| sum[expert * h + j] += share * x[0][row * h + j]);
            }
            vec![sum]
        }
        Kernel::ExpertBiasShareGrad { ways } => {
            let mut dshares = vec![0.0; given.rows()];
            for (row, expert) in owners(x[2]).enumerate() {
                dshares[row] = dot(given.row(0, row), &x[1][expert * h..(expert + 1) * h]) / ways as f64;
            }
            vec![dshares]
        }
        other => panic!("{} is of another family", other.name()),
    }
}

fn convolution(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let (channels, backward) = (given.columns(0), !matches!(given.kernel, Kernel::Convolution { .. }));
    let at = usize::from(backward);
    let (stream, weight) = (x[at], x[at + 1]);
    let taps = weight.len() / channels;
    let (sequence, has_bias, of_weight) = match given.kernel {
        Kernel::Convolution { sequence } | Kernel::ConvolutionGrad { sequence } => {
            (sequence, x.len() > at + 2, false)
        }
        Kernel::ConvolutionWeightGrad { sequence, .. } => (sequence, x.len() > at + 3, true),
        other => panic!("{} is of another family", other.name()),
    };
    let sequence = sequence as usize;
    // What tap `s` of row `i` reads, where that is of its sequence.
    let source =
        |i: usize, s: usize| (i % sequence + s + 1).checked_sub(taps).map(|back| i / sequence * sequence + back);
    let sum = |i: usize, j: usize| -> f64 {
        let bias = if has_bias { x[at + 2][j] } else { 0.0 };
        let tap = |s: usize| source(i, s).map_or(0.0, |from| weight[j * taps + s] * stream[from * channels + j]);
        bias + (0..taps).map(tap).sum::<f64>()
    };
    let slope = |i: usize, j: usize| {
        let z = sum(i, j);
        x[0][i * channels + j] * sigma(z) * (1.0 + z * (1.0 - sigma(z)))
    };
    let rows = stream.len() / channels;
    if !backward {
        return vec![given.by_element(&|e| sum(e / channels, e % channels) * sigma(sum(e / channels, e % channels)))];
    }
    let mut result = if of_weight { x[x.len() - 1].clone() } else { vec![0.0; stream.len()] };
    for (i, j) in (0..rows).flat_map(|i| (0..channels).map(move |j| (i, j))) {
        let dz = slope(i, j);
        if matches!(given.kernel, Kernel::ConvolutionWeightGrad { bias: true, .. }) {
            result[j] += dz;
            continue;
        }
        for (s, from) in (0..taps).filter_map(|s| Some((s, source(i, s)?))) {
            match of_weight {
                true => result[j * taps + s] += dz * stream[from * channels + j],
                false => result[from * channels + j] += dz * weight[j * taps + s],
            }
        }
    }
    vec![result]
}
