//! The formulas of the operators that newer families have, of one device alone.

use std::vec;
use std::vec::Vec;

use super::super::{Heads, Kernel, Spread, of_e12};
use super::{capped, dot, one_more, scale_of, slope_within};
use crate::model::{Activation, Routing, Scores};

/// What `kernel` makes of the inputs `x`, with `columns` of each and as many elements of each output as `sizes` says.
pub fn compute(kernel: Kernel, x: &[&Vec<f64>], columns: &dyn Fn(usize) -> usize, sizes: &[usize]) -> Vec<Vec<f64>> {
    let h = columns(0);
    match kernel {
        Kernel::HeadNorm { eps_e12, width, offset } => {
            let width = width as usize;
            let r: Vec<f64> = x[0]
                .chunks(width)
                .map(|head| (dot(head, head) / width as f64 + of_e12(eps_e12)).sqrt().recip())
                .collect();
            let gain = |e: usize| x[1][e % width] + one_more(offset);
            vec![(0..x[0].len()).map(|e| x[0][e] * r[e / width] * gain(e)).collect(), r]
        }
        Kernel::HeadNormInputGrad { width, offset } => {
            let (dy, v, r, d) = (x[0], x[1], x[2], width as usize);
            let gain: Vec<f64> = x[3].iter().map(|gain| gain + one_more(offset)).collect();
            let mean =
                |head: usize| (0..d).map(|j| dy[head * d + j] * gain[j] * v[head * d + j]).sum::<f64>() / d as f64;
            vec![
                (0..dy.len())
                    .map(|e| r[e / d] * (dy[e] * gain[e % d] - v[e] * r[e / d].powi(2) * mean(e / d)))
                    .collect(),
            ]
        }
        Kernel::HeadNormGainGrad { width } => {
            let mut sum = x[3].clone();
            (0..x[0].len()).for_each(|e| sum[e % width as usize] += x[0][e] * x[1][e] * x[2][e / width as usize]);
            vec![sum]
        }
        Kernel::RopeTail { sequence, width, tail, base, inverse, .. } => {
            let (width, tail) = (width as usize, tail as usize);
            let turned = |e: usize| {
                let (position, column) = ((e / h) % sequence as usize, e % width);
                let Some(j) = column.checked_sub(width - tail) else { return x[0][e] };
                let half = tail / 2;
                let angle = position as f64 * (base as f64).powf(-2.0 * (j % half) as f64 / tail as f64);
                let angle = if inverse { -angle } else { angle };
                match j < half {
                    true => x[0][e] * angle.cos() - x[0][e + half] * angle.sin(),
                    false => x[0][e] * angle.cos() + x[0][e - half] * angle.sin(),
                }
            };
            vec![(0..x[0].len()).map(turned).collect()]
        }
        Kernel::SplitColumns => {
            let first = sizes[0] * h / x[0].len();
            let part = |left: bool| {
                (0..x[0].len()).filter(|e| (e % h < first) == left).map(|e| x[0][e]).collect::<Vec<f64>>()
            };
            vec![part(true), part(false)]
        }
        Kernel::JoinColumns => {
            let both = x[0].chunks(h).zip(x[1].chunks(columns(1)));
            vec![both.flat_map(|(left, right)| [left, right].concat()).collect()]
        }
        Kernel::LatentKeys { heads } => {
            let (heads, shared) = (heads as usize, columns(1));
            let (rows, own) = (x[0].len() / h, h / heads);
            let first = sizes[0] / (rows * heads) - shared;
            let head = |at: usize| (&x[0][at * own..(at + 1) * own], &x[1][at / heads * shared..][..shared]);
            let keys = (0..rows * heads).flat_map(|at| [&head(at).0[..first], head(at).1].concat()).collect();
            vec![keys, (0..rows * heads).flat_map(|at| head(at).0[first..].to_vec()).collect()]
        }
        Kernel::LatentKeysGrad { heads } => {
            let heads = heads as usize;
            let (rows, width, value) = (x[0].len() / h, h / heads, columns(1) / heads);
            let shared = sizes[1] / rows;
            let first = width - shared;
            let own = |at: usize| [&x[0][at * width..][..first], &x[1][at * value..][..value]].concat();
            let sum =
                |row: usize, j: usize| (0..heads).map(|head| x[0][(row * heads + head) * width + first + j]).sum();
            let rotated = (0..rows).flat_map(|row| (0..shared).map(move |j| (row, j))).map(|(row, j)| sum(row, j));
            vec![(0..rows * heads).flat_map(own).collect(), rotated.collect()]
        }
        Kernel::Route { active, routing } => {
            let (mut weights, mut chosen) = (Vec::new(), Vec::new());
            for row in x[0].chunks(h) {
                let scores = scores_of(row, routing);
                let best = |of: Vec<usize>, count: usize, merit: &dyn Fn(usize) -> f64| {
                    let mut order = of;
                    order.sort_by(|a, b| merit(*b).total_cmp(&merit(*a)));
                    order.truncate(count);
                    order
                };
                let in_group = h / routing.groups as usize;
                let merit = |group: usize| {
                    let two = if routing.scores == Scores::Sigmoid { 2 } else { 1 };
                    let of_group = (group * in_group..(group + 1) * in_group).collect();
                    best(of_group, two, &|expert| scores[expert]).iter().map(|expert| scores[*expert]).sum()
                };
                let groups = best((0..routing.groups as usize).collect(), routing.active_groups as usize, &merit);
                let open = (0..h).filter(|expert| groups.contains(&(expert / in_group))).collect();
                let picked = best(open, active as usize, &|expert| scores[expert]);
                weights.extend(weights_of(&picked.iter().map(|expert| scores[*expert]).collect::<Vec<_>>(), routing));
                chosen.extend(picked.iter().map(|expert| *expert as f64));
            }
            vec![weights, chosen]
        }
        Kernel::RouteGrad { routing } => {
            let (dweights, logits, experts) = (x[0], x[1], columns(1));
            let mut dlogits = vec![0.0; logits.len()];
            for (row, (dweights, chosen)) in dweights.chunks(h).zip(x[2].chunks(h)).enumerate() {
                let p = scores_of(&logits[row * experts..(row + 1) * experts], routing);
                let chosen: Vec<usize> = chosen.iter().map(|expert| *expert as usize).collect();
                let sum: f64 = chosen.iter().map(|expert| p[*expert]).sum();
                let factor = routing.factor.map_or(1.0, of_e12);
                let same = |a: usize, b: usize| if a == b { 1.0 } else { 0.0 };
                // Of one's weight by the other's score, and of that score by a logit.
                let by_score = |of: usize, by: usize| match routing.normed {
                    true => factor * (same(of, by) / sum - p[of] / sum.powi(2)),
                    false => factor * same(of, by),
                };
                let by_logit = |of: usize, by: usize| match routing.scores {
                    Scores::Softmax => p[of] * (same(of, by) - p[by]),
                    Scores::Sigmoid => same(of, by) * p[of] * (1.0 - p[of]),
                };
                for j in 0..experts {
                    for (dweight, of) in dweights.iter().zip(&chosen) {
                        let slope: f64 = chosen.iter().map(|by| by_score(*of, *by) * by_logit(*by, j)).sum();
                        dlogits[row * experts + j] += dweight * slope;
                    }
                }
            }
            vec![dlogits]
        }
        Kernel::RowGate => {
            let share = |e: usize| 1.0 / (1.0 + (-x[1][e / h]).exp());
            vec![(0..x[0].len()).map(|e| x[0][e] * share(e)).collect()]
        }
        Kernel::RowGateGrad => {
            let share = |row: usize| 1.0 / (1.0 + (-x[2][row]).exp());
            let along = |row: usize| dot(&x[0][row * h..(row + 1) * h], &x[1][row * h..(row + 1) * h]);
            let of_gate = |row: usize| along(row) * share(row) * (1.0 - share(row));
            vec![(0..x[0].len()).map(|e| x[0][e] * share(e / h)).collect(), (0..x[2].len()).map(of_gate).collect()]
        }
        Kernel::Dispatch { .. } => {
            let mut rows = vec![0.0; sizes[0]];
            for copy in 0..x[1].len() {
                let (to, from) = (place(x[1], copy) * h, copy / columns(1) * h);
                rows[to..to + h].copy_from_slice(&x[0][from..from + h]);
            }
            let copies = |expert: usize| x[1].iter().filter(|chosen| **chosen as usize == expert).count() as f64;
            let mut shares = vec![0.0; sizes[2]];
            (0..x[1].len()).for_each(|copy| shares[place(x[1], copy)] = x[2][copy]);
            vec![rows, (0..sizes[1]).map(copies).collect(), shares]
        }
        Kernel::DispatchGrad { .. } => {
            let mut dx = vec![0.0; sizes[0]];
            for copy in 0..x[1].len() {
                (0..h).for_each(|j| dx[copy / columns(1) * h + j] += x[0][place(x[1], copy) * h + j]);
            }
            vec![dx, (0..x[1].len()).map(|copy| x[3][place(x[1], copy)]).collect()]
        }
        Kernel::Combine { .. } => {
            let mut y = vec![0.0; sizes[0]];
            for copy in 0..x[1].len() {
                (0..h).for_each(|j| y[copy / columns(1) * h + j] += x[0][place(x[1], copy) * h + j]);
            }
            vec![y]
        }
        Kernel::CombineGrad { .. } => {
            let mut drows = vec![0.0; sizes[0]];
            for copy in 0..x[1].len() {
                (0..h).for_each(|j| drows[place(x[1], copy) * h + j] = x[0][copy / columns(1) * h + j]);
            }
            vec![drows]
        }
        Kernel::WeightedGlu { activation } => {
            let of = |e: usize| x[2][e / h] * passed(activation, x[0][e]).0 * x[1][e];
            vec![(0..x[0].len()).map(of).collect()]
        }
        Kernel::WeightedGluGrad { activation } => {
            let (dy, gate, up, shares) = (x[0], x[1], x[2], x[3]);
            let dgate = |e: usize| shares[e / h] * dy[e] * up[e] * passed(activation, gate[e]).1;
            let dup = |e: usize| shares[e / h] * dy[e] * passed(activation, gate[e]).0;
            let along = |e: usize| dy[e] * passed(activation, gate[e]).0 * up[e];
            vec![
                (0..dy.len()).map(dgate).collect(),
                (0..dy.len()).map(dup).collect(),
                (0..shares.len()).map(|row| (row * h..(row + 1) * h).map(along).sum()).collect(),
            ]
        }
        Kernel::ExpertMatMul { transpose_b } => {
            let (inner, rows) = (columns(1), x[0].len() / h);
            let out = sizes[0] / rows;
            let outer = if transpose_b { out } else { h };
            let mut y = vec![0.0; sizes[0]];
            for (row, expert) in owners(x[2]).enumerate() {
                for j in 0..out {
                    let w = |k: usize| {
                        let (o, i) = if transpose_b { (j, k) } else { (k, j) };
                        x[1][(expert * outer + o) * inner + i]
                    };
                    y[row * out + j] = (0..h).map(|k| x[0][row * h + k] * w(k)).sum();
                }
            }
            vec![y]
        }
        Kernel::ExpertMatMulGrad => {
            let (inner, mut sum) = (columns(1), x[3].clone());
            for (row, expert) in owners(x[2]).enumerate() {
                for (o, i) in (0..h).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                    sum[(expert * h + o) * inner + i] += x[0][row * h + o] * x[1][row * inner + i];
                }
            }
            vec![sum]
        }
        Kernel::GeGlu => vec![(0..x[0].len()).map(|e| x[0][e] * gelu_share(x[0][e]).0 * x[1][e]).collect()],
        Kernel::GeGluGrad => {
            let (dy, gate, up) = (x[0], x[1], x[2]);
            let slope = |v: f64| gelu_share(v).0 + v * gelu_share(v).1;
            vec![
                (0..dy.len()).map(|e| dy[e] * up[e] * slope(gate[e])).collect(),
                (0..dy.len()).map(|e| dy[e] * gate[e] * gelu_share(gate[e]).0).collect(),
            ]
        }
        Kernel::SpreadAttention(spread) => attention(spread, x),
        Kernel::SpreadAttentionGrad(spread) => attention_grad(spread, x),
        _ => panic!("{} has no formula here", kernel.name()),
    }
}

/// What a router's logits become.
fn scores_of(row: &[f64], routing: Routing) -> Vec<f64> {
    match routing.scores {
        Scores::Softmax => softmax(row),
        Scores::Sigmoid => row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
    }
}

/// The weights of experts with these scores, which were chosen.
fn weights_of(scores: &[f64], routing: Routing) -> Vec<f64> {
    let sum = if routing.normed { scores.iter().sum() } else { 1.0 };
    scores.iter().map(|score| routing.factor.map_or(1.0, of_e12) * score / sum).collect()
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let sum: f64 = row.iter().map(|x| x.exp()).sum();
    row.iter().map(|x| x.exp() / sum).collect()
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
    };
    (x * share, share + x * slope)
}

/// Where a copy lies: behind those of lower experts, and of its own those of earlier tokens.
fn place(chosen: &[f64], copy: usize) -> usize {
    let before = |other: &usize| (chosen[*other], *other) < (chosen[copy], copy);
    (0..chosen.len()).filter(before).count()
}

/// The expert of each row that has one, by row.
fn owners(arrivals: &[f64]) -> impl Iterator<Item = usize> + '_ {
    arrivals.iter().enumerate().flat_map(|(expert, copies)| core::iter::repeat_n(expert, *copies as usize))
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

fn attention(spread: Spread, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
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

fn attention_grad(spread: Spread, x: &[&Vec<f64>]) -> Vec<Vec<f64>> {
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
