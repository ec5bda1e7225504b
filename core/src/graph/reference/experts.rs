//! Mixture of experts: routing, dispatch, the experts' matrices, and the gate of shared experts.

use std::vec;
use std::vec::Vec;

use super::formulas::dot;
use super::given::Given;
use crate::graph::form::RouterLosses;
use crate::graph::{Kernel, of_e12};
use crate::model::{Routing, Scores};

/// The outputs of an operator of this family.
pub(super) fn compute(given: &Given) -> Vec<Vec<f64>> {
    let x = &given.x[..];
    let columns = |of: usize| given.columns(of);
    let h = given.columns(0);
    let sizes = &given.sizes;
    match given.kernel {
        Kernel::Route { active, routing } => route(given, active, routing),
        Kernel::RouteGrad { routing } => route_grad(given, routing),
        Kernel::RouterLoss { losses, scores, microbatches, .. } => {
            let loss = router_loss(x[0], x[1], [h, columns(1)], losses, scores);
            vec![vec![loss / microbatches as f64]]
        }
        Kernel::RouterLossGrad { losses, scores, parts } => {
            // By differences: what is chosen stays as it was.
            let by = |e: usize| {
                let moved = |step: f64| {
                    let mut logits = x[0].clone();
                    logits[e] += step;
                    router_loss(&logits, x[1], [h, columns(1)], losses, scores)
                };
                const STEP: f64 = 1e-4;
                let slope = |step: f64| (moved(step) - moved(-step)) / (2.0 * step);
                // Of the fourth order.
                (4.0 * slope(STEP) - slope(2.0 * STEP)) / 3.0 / parts as f64
            };
            vec![(0..x[0].len()).map(by).collect()]
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
        other => panic!("{} is of another family", other.name()),
    }
}

/// The experts of each token, and their weights.
fn route(given: &Given, active: u64, routing: Routing) -> Vec<Vec<f64>> {
    let (x, h) = (&given.x, given.columns(0));
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

/// The gradient of the router's logits.
fn route_grad(given: &Given, routing: Routing) -> Vec<Vec<f64>> {
    let (x, h) = (&given.x, given.columns(0));
    let (dweights, logits, experts) = (x[0], x[1], given.columns(1));
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
            Scores::Softmax | Scores::SparseMixer => p[of] * (same(of, by) - p[by]),
            Scores::Sigmoid => same(of, by) * p[of] * (1.0 - p[of]),
            Scores::InputSigmoid => same(of, by),
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

/// What a router is trained on besides: of logits with `experts` columns, of which `active` were chosen by row.
fn router_loss(
    logits: &[f64],
    chosen: &[f64],
    [experts, active]: [usize; 2],
    losses: RouterLosses,
    scores: Scores,
) -> f64 {
    let n = (logits.len() / experts) as f64;
    let mut share = vec![0.0; experts];
    let mut squares = 0.0;
    for row in logits.chunks(experts) {
        let scores = scores_of(row, Routing { scores, ..Routing::USUAL });
        let sum: f64 = scores.iter().sum();
        share.iter_mut().zip(&scores).for_each(|(share, score)| *share += score / sum / n);
        squares += row.iter().map(|x| x.exp()).sum::<f64>().ln().powi(2) / n;
    }
    let tokens = |expert: usize| chosen.iter().filter(|chosen| **chosen as usize == expert).count() as f64;
    let along: f64 = (0..experts).map(|expert| tokens(expert) / n / active as f64 * share[expert]).sum();
    of_e12(losses.balance_e12) * experts as f64 * along + of_e12(losses.z_e12) * squares
}

/// What a router's logits become.
fn scores_of(row: &[f64], routing: Routing) -> Vec<f64> {
    match routing.scores {
        Scores::Softmax | Scores::SparseMixer => softmax(row),
        Scores::Sigmoid => row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        // What is weighted takes the sigmoid.
        Scores::InputSigmoid => row.to_vec(),
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

/// Where a copy lies: behind those of lower experts, and of its own those of earlier tokens.
fn place(chosen: &[f64], copy: usize) -> usize {
    let before = |other: &usize| (chosen[*other], *other) < (chosen[copy], copy);
    (0..chosen.len()).filter(before).count()
}

/// The expert of each row that has one, by row.
pub(super) fn owners(arrivals: &[f64]) -> impl Iterator<Item = usize> + '_ {
    arrivals.iter().enumerate().flat_map(|(expert, copies)| core::iter::repeat_n(expert, *copies as usize))
}
