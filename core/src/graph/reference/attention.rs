//! Attention: fused, with scores held, and over a ring or within a window.

use std::vec;
use std::vec::Vec;

use super::formulas::{capped, dot, scale_of, slope_within};
use super::given::Given;
use crate::graph::{Heads, Kernel, Spread};

/// The outputs of an operator of this family.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let h = given.columns(0);
    let row = |of: usize, i: usize| given.row(of, i);
    let by_element = |f: &dyn Fn(usize) -> f64| given.by_element(f);
    match given.kernel {
        Kernel::Attention(heads) => attention(heads, x[0], x[1], x[2]),
        Kernel::AttentionGrad(heads) => attention_grad(heads, x),
        Kernel::Scores(heads) => vec![scores(heads, x[0], x[1])],
        Kernel::ScoresGrad(heads) => scores_grad(heads, x),
        Kernel::Softmax => vec![by_element(&|e| {
            let sum: f64 = row(0, e / h).iter().map(|x| x.exp()).sum();
            x[0][e].exp() / sum
        })],
        Kernel::SoftmaxGrad => vec![by_element(&|e| x[1][e] * (x[0][e] - dot(row(0, e / h), row(1, e / h))))],
        Kernel::Attend(heads) => vec![attend(heads, x[0], x[1])],
        Kernel::AttendGrad(heads) => attend_grad(heads, x),
        Kernel::SpreadAttention(spread) => spread_attention(spread, x),
        Kernel::SpreadAttentionGrad(spread) => spread_attention_grad(spread, x),
        other => panic!("{} is of another family", other.name()),
    }
}

/// Indices of what attention reads: sequence by sequence, head by head.
struct Reads {
    sequence: usize,
    heads: usize,
    key_value: usize,
    width: usize,
}

impl Reads {
    fn of(heads: Heads) -> Reads {
        let [sequence, query, key_value, width] =
            [heads.sequence, heads.query, heads.key_value, heads.width].map(|size| size as usize);
        Reads { sequence, heads: query, key_value, width }
    }

    fn query(&self, row: usize, head: usize) -> core::ops::Range<usize> {
        let from = (row * self.heads + head) * self.width;
        from..from + self.width
    }

    fn key(&self, row: usize, head: usize) -> core::ops::Range<usize> {
        let from = (row * self.key_value + head * self.key_value / self.heads) * self.width;
        from..from + self.width
    }

    /// The rows that row `i` looks at.
    fn seen(&self, i: usize) -> core::ops::RangeInclusive<usize> {
        i / self.sequence * self.sequence..=i
    }
}

fn attention(heads: Heads, q: &[f64], k: &[f64], v: &[f64]) -> Vec<Vec<f64>> {
    let at = Reads::of(heads);
    let rows = q.len() / (at.heads * at.width);
    let (mut o, mut l) = (vec![0.0; q.len()], vec![0.0; rows * at.heads]);
    for i in 0..rows {
        for head in 0..at.heads {
            let score = |j| capped(dot(&q[at.query(i, head)], &k[at.key(j, head)]) * scale_of(&heads), heads.cap_e12);
            let sum: f64 = at.seen(i).map(|j| score(j).exp()).sum();
            l[i * at.heads + head] = sum.ln();
            for j in at.seen(i) {
                for (o, v) in o[at.query(i, head)].iter_mut().zip(&v[at.key(j, head)]) {
                    *o += score(j).exp() / sum * v;
                }
            }
        }
    }
    vec![o, l]
}

fn attention_grad(heads: Heads, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
    let (grad, q, k, v, o, l) = (x[0], x[1], x[2], x[3], x[4], x[5]);
    let at = Reads::of(heads);
    let rows = q.len() / (at.heads * at.width);
    let scale = scale_of(&heads);
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for i in 0..rows {
        for head in 0..at.heads {
            let here = at.query(i, head);
            let delta = dot(&grad[here.clone()], &o[here.clone()]);
            for j in at.seen(i) {
                let there = at.key(j, head);
                let score = capped(dot(&q[here.clone()], &k[there.clone()]) * scale, heads.cap_e12);
                let p = (score - l[i * at.heads + head]).exp();
                let slope = slope_within(score, heads.cap_e12);
                let ds = p * (dot(&grad[here.clone()], &v[there.clone()]) - delta) * slope;
                for c in 0..at.width {
                    dv[there.start + c] += p * grad[here.start + c];
                    dq[here.start + c] += ds * k[there.start + c] * scale;
                    dk[there.start + c] += ds * q[here.start + c] * scale;
                }
            }
        }
    }
    vec![dq, dk, dv]
}

/// The rows of scores: sequence by sequence, head by head, position by position.
fn score_row(at: &Reads, i: usize, head: usize) -> usize {
    ((i / at.sequence * at.heads + head) * at.sequence + i % at.sequence) * at.sequence
}

fn scores(heads: Heads, q: &[f64], k: &[f64]) -> Vec<f64> {
    let at = Reads::of(heads);
    let rows = q.len() / (at.heads * at.width);
    let mut s = vec![f64::NEG_INFINITY; rows * at.heads * at.sequence];
    for i in 0..rows {
        for head in 0..at.heads {
            for (column, j) in at.seen(i).enumerate() {
                let product = dot(&q[at.query(i, head)], &k[at.key(j, head)]);
                s[score_row(&at, i, head) + column] = product * scale_of(&heads);
            }
        }
    }
    s
}

fn scores_grad(heads: Heads, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
    let (ds, q, k, at) = (x[0], x[1], x[2], Reads::of(heads));
    let (mut dq, mut dk) = (vec![0.0; q.len()], vec![0.0; k.len()]);
    for i in 0..q.len() / (at.heads * at.width) {
        for head in 0..at.heads {
            for (column, j) in at.seen(i).enumerate() {
                let ds = ds[score_row(&at, i, head) + column] * scale_of(&heads);
                for c in 0..at.width {
                    dq[at.query(i, head).start + c] += ds * k[at.key(j, head).start + c];
                    dk[at.key(j, head).start + c] += ds * q[at.query(i, head).start + c];
                }
            }
        }
    }
    vec![dq, dk]
}

fn attend(heads: Heads, p: &[f64], v: &[f64]) -> Vec<f64> {
    let at = Reads::of(heads);
    let rows = v.len() / (at.key_value * at.width);
    let mut o = vec![0.0; rows * at.heads * at.width];
    for i in 0..rows {
        for head in 0..at.heads {
            for (column, j) in at.seen(i).enumerate() {
                let p = p[score_row(&at, i, head) + column];
                for (o, v) in o[at.query(i, head)].iter_mut().zip(&v[at.key(j, head)]) {
                    *o += p * v;
                }
            }
        }
    }
    o
}

fn attend_grad(heads: Heads, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
    let (grad, p, v, at) = (x[0], x[1], x[2], Reads::of(heads));
    let (mut dp, mut dv) = (vec![0.0; p.len()], vec![0.0; v.len()]);
    for i in 0..v.len() / (at.key_value * at.width) {
        for head in 0..at.heads {
            for (column, j) in at.seen(i).enumerate() {
                let place = score_row(&at, i, head) + column;
                dp[place] = dot(&grad[at.query(i, head)], &v[at.key(j, head)]);
                for c in 0..at.width {
                    dv[at.key(j, head).start + c] += p[place] * grad[at.query(i, head).start + c];
                }
            }
        }
    }
    vec![dp, dv]
}

/// Rows that row `i` looks at.
fn seen(spread: &Spread, i: usize) -> core::ops::RangeInclusive<usize> {
    let first = i / spread.heads.sequence as usize * spread.heads.sequence as usize;
    first.max((i + 1).saturating_sub(spread.window as usize))..=i
}

/// The elements of `head` in row `row`, of `heads` heads of `width`.
fn part(x: &[f64], row: usize, head: usize, heads: u64, width: u64) -> &[f64] {
    &x[(row * heads as usize + head) * width as usize..][..width as usize]
}

pub(super) fn spread_attention(spread: Spread, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
    let (Heads { query, key_value, width, .. }, e) = (spread.heads, spread.value_width);
    let rows = x[0].len() / (query * width) as usize;
    let (mut o, mut l) = (Vec::new(), Vec::new());
    for (i, head) in (0..rows).flat_map(|i| (0..query as usize).map(move |head| (i, head))) {
        let key = head * key_value as usize / query as usize;
        let q = part(x[0], i, head, query, width);
        let scale = scale_of(&spread.heads);
        let score = |j: usize| capped(dot(q, part(x[1], j, key, key_value, width)) * scale, spread.heads.cap_e12);
        let sum: f64 = seen(&spread, i).map(|j| score(j).exp()).sum();
        l.push(sum.ln());
        o.extend((0..e as usize).map(|c| {
            seen(&spread, i).map(|j| score(j).exp() / sum * part(x[2], j, key, key_value, e)[c]).sum::<f64>()
        }));
    }
    vec![o, l]
}

fn spread_attention_grad(spread: Spread, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
    let (Heads { query, key_value, width, .. }, e) = (spread.heads, spread.value_width);
    let (mut dq, mut dk, mut dv) = (vec![0.0; x[1].len()], vec![0.0; x[2].len()], vec![0.0; x[3].len()]);
    let (rows, scale) = (x[1].len() / (query * width) as usize, scale_of(&spread.heads));
    for (i, head) in (0..rows).flat_map(|i| (0..query as usize).map(move |head| (i, head))) {
        let key = head * key_value as usize / query as usize;
        let (q, d_o) = (part(x[1], i, head, query, width), part(x[0], i, head, query, e));
        let delta = dot(d_o, part(x[4], i, head, query, e));
        for j in seen(&spread, i) {
            let (k, v) = (part(x[2], j, key, key_value, width), part(x[3], j, key, key_value, e));
            let score = capped(dot(q, k) * scale, spread.heads.cap_e12);
            let p = (score - x[5][i * query as usize + head]).exp();
            let ds = p * (dot(d_o, v) - delta) * slope_within(score, spread.heads.cap_e12) * scale;
            let (to_q, to_k) =
                ((i * query as usize + head) * width as usize, (j * key_value as usize + key) * width as usize);
            (0..width as usize).for_each(|c| {
                dq[to_q + c] += ds * k[c];
                dk[to_k + c] += ds * q[c];
            });
            (0..e as usize).for_each(|c| dv[(j * key_value as usize + key) * e as usize + c] += p * d_o[c]);
        }
    }
    vec![dq, dk, dv]
}
