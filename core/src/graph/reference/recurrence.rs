//! Gated delta nets and Mamba 2 as attention: what each token reads of each one before it, without a state. Gradients are
//! slopes of that by small differences.

use std::vec;
use std::vec::Vec;

use super::formulas::dot;
use super::given::Given;
use crate::graph::{Kernel, Recurring};
use crate::model::RecurrenceKind;

/// The inputs, with the numbers of each head repeated for each token.
struct Inputs {
    of: Recurring,
    rows: usize,
    /// Queries, keys, values, steps, then of a delta net rates; then decay, bias, and of Mamba 2 skip.
    x: Vec<Vec<f64>>,
}

impl Inputs {
    fn of(x: &[&Vec<f64>], of: Recurring) -> Inputs {
        let heads = of.heads as usize;
        let rows = x[3].len() / heads;
        let streams = if of.kind == RecurrenceKind::DeltaNet { 5 } else { 4 };
        let by_token = |numbers: &[f64]| (0..rows * heads).map(|e| numbers[e % heads]).collect();
        let x = x.iter().enumerate().map(|(at, x)| if at < streams { x.to_vec() } else { by_token(x) }).collect();
        Inputs { of, rows, x }
    }

    /// The heads that element `e` of the input `at` reaches, and the first row of its sequence.
    fn reached(&self, at: usize, e: usize) -> (core::ops::Range<usize>, usize) {
        let columns = self.x[at].len() / self.rows;
        let sequence = self.of.sequence as usize;
        let first = e / columns / sequence * sequence;
        let [width, heads] = match at {
            0 | 1 => [self.of.key_width, self.of.heads / self.of.key_heads],
            2 => [self.of.width, 1],
            _ => [1, 1],
        };
        let start = e % columns / width as usize * heads as usize;
        (start..start + heads as usize, first)
    }

    /// What the outputs of one head and sequence come to, weighted by `dy`.
    fn score(&self, dy: &[f64], head: usize, first: usize) -> f64 {
        let (heads, width) = (self.of.heads as usize, self.of.width as usize);
        let of_row =
            |(i, values): (usize, Vec<f64>)| dot(&values, &dy[((first + i) * heads + head) * width..][..width]);
        self.sequence(head, first).into_iter().enumerate().map(of_row).sum()
    }

    fn output(&self) -> Vec<f64> {
        let (heads, width) = (self.of.heads as usize, self.of.width as usize);
        let mut output = vec![0.0; self.x[2].len()];
        for head in 0..heads {
            for first in (0..self.rows).step_by(self.of.sequence as usize) {
                for (i, values) in self.sequence(head, first).into_iter().enumerate() {
                    let start = ((first + i) * heads + head) * width;
                    output[start..start + width].copy_from_slice(&values);
                }
            }
        }
        output
    }

    /// The outputs of the sequence that begins at row `first`.
    fn sequence(&self, head: usize, first: usize) -> Vec<Vec<f64>> {
        let [groups, d, heads, e] =
            [self.of.key_heads, self.of.key_width, self.of.heads, self.of.width].map(|size| size as usize);
        let is_delta_net = self.of.kind == RecurrenceKind::DeltaNet;
        let by_head = |of: usize, i: usize| self.x[of][(first + i) * heads + head];
        let weights = if is_delta_net { 5 } else { 4 };
        let key = |of: usize, i: usize| {
            let start = ((first + i) * groups + head * groups / heads) * d;
            let x = &self.x[of][start..start + d];
            let length = if is_delta_net { (dot(x, x) + 1e-6).sqrt() } else { 1.0 };
            x.iter().map(|x| x / length).collect::<Vec<f64>>()
        };
        let value = |i: usize| &self.x[2][((first + i) * heads + head) * e..][..e];
        let step = |i: usize| (1.0 + (by_head(3, i) + by_head(weights + 1, i)).exp()).ln();
        let count = self.of.sequence as usize;
        let logs: Vec<f64> = (0..count).map(|i| -by_head(weights, i).exp() * step(i)).collect();
        // What is left at token `i` of what token `j` wrote.
        let left = |i: usize, j: usize| logs[j + 1..=i].iter().sum::<f64>().exp();
        let mut written: Vec<Vec<f64>> = Vec::new();
        for i in 0..count {
            let new = match is_delta_net {
                false => value(i).iter().map(|x| step(i) * x).collect(),
                true => {
                    let rate = 1.0 / (1.0 + (-by_head(4, i)).exp());
                    let recalled = |c: usize| -> f64 {
                        (0..i).map(|j| dot(&key(1, i), &key(1, j)) * left(i, j) * written[j][c]).sum()
                    };
                    (0..e).map(|c| rate * (value(i)[c] - recalled(c))).collect()
                }
            };
            written.push(new);
        }
        let scale = if is_delta_net { (d as f64).sqrt().recip() } else { 1.0 };
        let read = |i: usize, c: usize| -> f64 {
            let skipped = if is_delta_net { 0.0 } else { by_head(6, i) * value(i)[c] };
            let of = |j: usize| scale * dot(&key(0, i), &key(1, j)) * left(i, j) * written[j][c];
            skipped + (0..=i).map(of).sum::<f64>()
        };
        (0..count).map(|i| (0..e).map(|c| read(i, c)).collect()).collect()
    }
}

/// The outputs of a recurrence or of its gradient.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    match given.kernel {
        Kernel::Recurrence(of) => {
            assert!(of.sequence <= of.chunk(), "there is one chunk, before which the state is 0");
            vec![Inputs::of(&given.x, of).output(), vec![0.0; given.sizes[1]]]
        }
        Kernel::RecurrenceGrad(of) => {
            let mut inputs = Inputs::of(&given.x[1..], of);
            let dy = given.x[0].clone();
            let is_delta_net = of.kind == RecurrenceKind::DeltaNet;
            // Of the bias, the gradient is that of the steps.
            let asked: &[usize] = if is_delta_net { &[0, 1, 2, 3, 4, 5] } else { &[0, 1, 2, 3, 4, 6] };
            let mut slopes: Vec<Vec<f64>> = Vec::new();
            for at in asked {
                let mut slope_of = |e: usize| {
                    let kept = inputs.x[*at][e];
                    let (heads, first) = inputs.reached(*at, e);
                    let mut score = |shift: f64| {
                        inputs.x[*at][e] = kept + shift;
                        heads.clone().map(|head| inputs.score(&dy, head, first)).sum::<f64>()
                    };
                    let slope = (score(1e-5) - score(-1e-5)) / 2e-5;
                    inputs.x[*at][e] = kept;
                    slope
                };
                let count = given.x[1 + at].len().max(if *at < 3 { 0 } else { given.x[4].len() });
                slopes.push((0..count).map(&mut slope_of).collect());
            }
            slopes.push(vec![0.0; given.sizes[6]]);
            slopes
        }
        other => panic!("{} is of another family", other.name()),
    }
}
