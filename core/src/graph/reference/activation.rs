//! Activations and dropout.

use std::vec;
use std::vec::Vec;

use super::given::Given;
use super::newer;
use super::run::number;
use crate::graph::Kernel;
use crate::model::Activation;

/// The outputs of an operator of this family.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let h = given.columns(0);
    let by_element = |f: &dyn Fn(usize) -> f64| given.by_element(f);
    let sigma = |x: f64| 1.0 / (1.0 + (-x).exp());
    match given.kernel {
        Kernel::SwiGlu => vec![by_element(&|e| x[0][e] * sigma(x[0][e]) * x[1][e])],
        Kernel::SwiGluGrad => {
            let (dy, gate, up) = (x[0], x[1], x[2]);
            let dgate = by_element(&|e| {
                let s = sigma(gate[e]);
                dy[e] * up[e] * s * (1.0 + gate[e] * (1.0 - s))
            });
            vec![dgate, by_element(&|e| dy[e] * gate[e] * sigma(gate[e]))]
        }
        Kernel::Gelu => vec![by_element(&|e| x[0][e] * (1.0 + libm::erf(x[0][e] / 2f64.sqrt())) / 2.0)],
        Kernel::GeluGrad => vec![by_element(&|e| {
            let v = x[1][e];
            let bell = (-v * v / 2.0).exp() / (2.0 * core::f64::consts::PI).sqrt();
            x[0][e] * ((1.0 + libm::erf(v / 2f64.sqrt())) / 2.0 + v * bell)
        })],
        Kernel::GeluTanh => vec![by_element(&|e| x[0][e] * gelu_share(x[0][e]).0)],
        Kernel::GeluTanhGrad => vec![by_element(&|e| {
            let (share, slope) = gelu_share(x[1][e]);
            x[0][e] * (share + x[1][e] * slope)
        })],
        Kernel::Dropout { site, ways, blocks, .. } => {
            let place = |e| given.place(e, x[0].len(), ways, blocks) as u64;
            let kept = by_element(&|e| f64::from(number(site * 1000 + place(e)) < 0.8));
            vec![by_element(&|e| x[0][e] * kept[e] / 0.9), kept]
        }
        Kernel::DropoutGrad => vec![by_element(&|e| x[0][e] * x[1][e] / 0.9)],
        Kernel::GeGlu => vec![(0..x[0].len()).map(|e| x[0][e] * gelu_share(x[0][e]).0 * x[1][e]).collect()],
        Kernel::GeGluGrad => {
            let (dy, gate, up) = (x[0], x[1], x[2]);
            let slope = |v: f64| gelu_share(v).0 + v * gelu_share(v).1;
            vec![
                (0..dy.len()).map(|e| dy[e] * up[e] * slope(gate[e])).collect(),
                (0..dy.len()).map(|e| dy[e] * gate[e] * gelu_share(gate[e]).0).collect(),
            ]
        }
        Kernel::WeightedGlu { activation } => {
            let of = |e: usize| x[2][e / h] * passed(activation, x[0][e]).0 * beside(activation, x[1][e]).0;
            vec![(0..x[0].len()).map(of).collect()]
        }
        Kernel::WeightedGluGrad { activation } => {
            let (dy, gate, up, shares) = (x[0], x[1], x[2], x[3]);
            let up = |e: usize| beside(activation, up[e]);
            let dgate = |e: usize| shares[e / h] * dy[e] * up(e).0 * passed(activation, gate[e]).1;
            let dup = |e: usize| shares[e / h] * dy[e] * passed(activation, gate[e]).0 * up(e).1;
            let along = |e: usize| dy[e] * passed(activation, gate[e]).0 * up(e).0;
            vec![
                (0..dy.len()).map(dgate).collect(),
                (0..dy.len()).map(dup).collect(),
                (0..shares.len()).map(|row| (row * h..(row + 1) * h).map(along).sum()).collect(),
            ]
        }
        other => panic!("{} is of another family", other.name()),
    }
}

/// `(1 + tanh(√(2/π) (x + 0.044715 x³))) / 2` and its slope. Source: arXiv:1606.08415 §2.
fn gelu_share(x: f64) -> (f64, f64) {
    let root = (2.0 / core::f64::consts::PI).sqrt();
    let tanh = (root * (x + 0.044715 * x * x * x)).tanh();
    ((1.0 + tanh) / 2.0, (1.0 - tanh * tanh) / 2.0 * root * (1.0 + 3.0 * 0.044715 * x * x))
}

/// What a gate of `x` passes, and the slope of that.
fn passed(activation: Activation, x: f64) -> (f64, f64) {
    let (share, slope) = match activation {
        Activation::Silu => {
            let share = 1.0 / (1.0 + (-x).exp());
            (share, share * (1.0 - share))
        }
        Activation::Gelu => gelu_share(x),
        Activation::ClampedSilu => return newer::clamped(x),
        Activation::SquaredRelu | Activation::Xielu | Activation::PlainGelu | Activation::PlainGeluTanh => {
            panic!("{} has no gate", activation.name())
        }
    };
    (x * share, share + x * slope)
}

/// What the other half gives beside the gate, and its slope.
fn beside(activation: Activation, x: f64) -> (f64, f64) {
    match activation {
        Activation::ClampedSilu => (1.0 + newer::up(x).0, newer::up(x).1),
        _ => (x, 1.0),
    }
}
