//! Experts: which see a token, routed tokens in the experts' order, and each expert's own matrix.

use std::ops::Range;

use pipeplan_core::graph::form::RouterLosses;
use pipeplan_core::graph::of_e12;
use pipeplan_core::model::{Routing, Scores};

use super::super::element::{Element, dot};
use super::super::gemm::{Gemm, Operand, Size};
use super::elementwise::sigmoid;
use super::{Call, Data};

/// Routed tokens as they leave for their experts: by expert, then by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// By copy (token by token, and within one as chosen): its place.
    pub places: Vec<usize>,
    /// By expert: copies that go to it.
    pub counts: Vec<usize>,
}

impl Order {
    /// Of copies that go to the experts `chosen`, of `experts`.
    pub fn new(chosen: &[i32], experts: usize) -> Order {
        let expert = |chosen: &i32| (*chosen).max(0) as usize;
        let mut counts = vec![0; experts];
        chosen.iter().for_each(|chosen| counts[expert(chosen)] += 1);
        let mut next = starts(&counts);
        let place = |chosen: &i32| {
            let place = &mut next[expert(chosen)];
            *place += 1;
            *place - 1
        };
        Order { places: chosen.iter().map(place).collect(), counts }
    }

    /// What a device that holds all experts has from itself alone, as a tensor of arrivals.
    pub fn arrivals(&self) -> impl Iterator<Item = i32> {
        self.counts.iter().map(|count| *count as i32)
    }
}

/// Where each of consecutive parts of these sizes begins.
fn starts(counts: &[usize]) -> Vec<usize> {
    let before = |sum: &mut usize, count: &usize| {
        *sum += count;
        Some(*sum - count)
    };
    counts.iter().scan(0, before).collect()
}

/// The rows of a device: by its experts, then by the device that they came from, and then by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// By device: what came from it for each expert.
    counts: Vec<Vec<usize>>,
}

impl Arrivals {
    /// From the tensor `arrivals`, for `experts` experts.
    pub fn new(arrivals: &[i32], experts: usize) -> Arrivals {
        let of_device = |counts: &[i32]| counts.iter().map(|count| (*count).max(0) as usize).collect();
        Arrivals { counts: arrivals.chunks_exact(experts).map(of_device).collect() }
    }

    /// By expert: its rows.
    pub fn rows(&self) -> Vec<Range<usize>> {
        let experts = self.counts.first().map_or(0, Vec::len);
        let copies: Vec<usize> =
            (0..experts).map(|expert| self.counts.iter().map(|counts| counts[expert]).sum()).collect();
        starts(&copies).iter().zip(&copies).map(|(start, copies)| *start..start + copies).collect()
    }

    /// By device: all that came from it.
    pub fn by_device(&self) -> Vec<usize> {
        self.counts.iter().map(|counts| counts.iter().sum()).collect()
    }

    /// By copy as it arrives (device by device, and from one in [`Order`]): its row.
    pub fn places(&self) -> Vec<usize> {
        let mut next: Vec<usize> = self.rows().iter().map(|rows| rows.start).collect();
        let mut places = Vec::new();
        for (expert, copies) in self.counts.iter().flat_map(|counts| counts.iter().enumerate()) {
            places.extend(next[expert]..next[expert] + copies);
            next[expert] += copies;
        }
        places
    }
}

/// The softmax of `logits`.
fn softmax<T: Element>(logits: &[T]) -> Vec<T> {
    let greatest = logits.iter().fold(T::LOWEST, |greatest, logit| greatest.greater(*logit));
    let mut shares: Vec<T> = logits.iter().map(|logit| (*logit - greatest).exp()).collect();
    let total = shares.iter().fold(T::ZERO, |sum, share| sum + *share);
    shares.iter_mut().for_each(|share| *share = *share / total);
    shares
}

/// What a router's `logits` become.
fn scores<T: Element>(logits: &[T], routing: Routing) -> Vec<T> {
    match routing.scores {
        // No run has a SparseMixer.
        Scores::Softmax | Scores::SparseMixer => softmax(logits),
        Scores::Sigmoid => logits.iter().map(|logit| sigmoid(*logit)).collect(),
        // What an expert takes in is weighted by their sigmoid.
        Scores::InputSigmoid => logits.to_vec(),
    }
}

/// What scores of chosen experts add up to where they are divided by their sum, and 1 where not.
fn sum_of<T: Element>(chosen: impl Iterator<Item = T>, routing: Routing) -> T {
    // Of scores that are all 0 too, as published: arXiv:2412.19437's own code.
    if routing.normed { chosen.fold(T::ZERO, |sum, score| sum + score) + T::of(1e-20) } else { T::ONE }
}

fn factor<T: Element>(routing: Routing) -> T {
    T::of(routing.factor.map_or(1.0, of_e12))
}

/// By group of experts: whether they are chosen from.
fn open_groups<T: Element>(logits: &[T], routing: Routing) -> Vec<bool> {
    let groups = routing.groups.max(1) as usize;
    let merit = |group: &[T]| {
        let (mut first, mut second) = (T::LOWEST, T::LOWEST);
        for logit in group {
            if *logit > first {
                (first, second) = (*logit, first);
            } else if *logit > second {
                second = *logit;
            }
        }
        match routing.scores {
            Scores::Softmax | Scores::InputSigmoid | Scores::SparseMixer => first,
            Scores::Sigmoid => sigmoid(first) + sigmoid(second),
        }
    };
    let merits: Vec<T> = logits.chunks_exact(logits.len() / groups).map(merit).collect();
    // Of equals the first.
    let is_before = |a: usize, b: usize| merits[a] > merits[b] || (a < b && merits[a] == merits[b]);
    let before = |at: usize| (0..groups).filter(|other| is_before(*other, at)).count();
    (0..groups).map(|at| before(at) < routing.active_groups as usize).collect()
}

pub(super) fn route<T: Element>(call: &mut Call<'_, '_, T>, active: usize, routing: Routing) {
    let logits = call.floats(0);
    let (_, experts) = call.sizes(0);
    let in_group = experts / routing.groups.max(1) as usize;
    let [weights, chosen] = &mut *call.outputs else { panic!("route has two outputs") };
    let (weights, Data::Tokens(chosen)) = (weights.floats_mut(), chosen) else { panic!("experts are numbers") };
    let rows =
        logits.chunks_exact(experts).zip(weights.chunks_exact_mut(active)).zip(chosen.chunks_exact_mut(active));
    for ((logits, weights), chosen) in rows {
        let (scores, groups) = (scores(logits, routing), open_groups(logits, routing));
        for slot in 0..active {
            let (before, rest) = chosen.split_at_mut(slot);
            // Of equals the first.
            let mut best: Option<usize> = None;
            for (expert, logit) in logits.iter().enumerate() {
                let is_open = groups[expert / in_group] && !before.contains(&(expert as i32));
                if is_open && best.is_none_or(|best| *logit > logits[best]) {
                    best = Some(expert);
                }
            }
            rest[0] = best.unwrap_or(0) as i32;
        }
        let score = |expert: &i32| scores[*expert as usize];
        let sum = sum_of(chosen.iter().map(score), routing);
        let weighted = chosen.iter().map(|expert| factor::<T>(routing) * score(expert) / sum);
        weights.iter_mut().zip(weighted).for_each(|(weight, weighted)| *weight = weighted);
    }
}

pub(super) fn route_grad<T: Element>(call: &mut Call<'_, '_, T>, routing: Routing) {
    let (dweights, logits, chosen) = (call.floats(0), call.floats(1), call.tokens(2));
    let ((_, active), (_, experts)) = (call.sizes(0), call.sizes(1));
    let rows = call.outputs[0].floats_mut().chunks_exact_mut(experts).zip(logits.chunks_exact(experts));
    let rows = rows.zip(dweights.chunks_exact(active)).zip(chosen.chunks_exact(active));
    for (((dlogits, logits), dweights), chosen) in rows {
        let scores = scores(logits, routing);
        let score = |expert: &i32| scores[*expert as usize];
        let sum = sum_of(chosen.iter().map(score), routing);
        let pairs = || dweights.iter().zip(chosen);
        // What a greater sum takes from every weight.
        let shared = match routing.normed {
            true => pairs().fold(T::ZERO, |all, (dweight, expert)| all + *dweight * score(expert)) / sum,
            false => T::ZERO,
        };
        let dscore = |dweight: T| factor::<T>(routing) * (dweight - shared) / sum;
        match routing.scores {
            Scores::Softmax | Scores::SparseMixer => {
                let mut along = T::ZERO;
                pairs().for_each(|(dweight, expert)| along += dscore(*dweight) * score(expert));
                dlogits.iter_mut().zip(&scores).for_each(|(dlogit, score)| *dlogit = -(*score * along));
                pairs().for_each(|(dweight, expert)| dlogits[*expert as usize] += dscore(*dweight) * score(expert));
            }
            Scores::InputSigmoid => {
                dlogits.fill(T::ZERO);
                pairs().for_each(|(dweight, expert)| dlogits[*expert as usize] += dscore(*dweight));
            }
            Scores::Sigmoid => {
                dlogits.fill(T::ZERO);
                pairs().for_each(|(dweight, expert)| {
                    dlogits[*expert as usize] += dscore(*dweight) * score(expert) * (T::ONE - score(expert));
                });
            }
        }
    }
}

/// Shares of all experts, which add up to 1, and what scores were divided by for that.
fn shares<T: Element>(logits: &[T], scores: Scores) -> (Vec<T>, T) {
    let mut shares = self::scores(logits, Routing { scores, ..Routing::USUAL });
    let total = shares.iter().fold(T::ZERO, |sum, score| sum + *score) + T::of(1e-20);
    shares.iter_mut().for_each(|share| *share = *share / total);
    (shares, total)
}

fn log_sum_exp<T: Element>(logits: &[T]) -> T {
    let greatest = logits.iter().fold(T::LOWEST, |greatest, logit| greatest.greater(*logit));
    logits.iter().fold(T::ZERO, |sum, logit| sum + (*logit - greatest).exp()).ln() + greatest
}

/// By expert: what its share of each token counts in the load balancing loss, `balance · experts · c / (active · n²)`,
/// and what the square of each token's log-sum-exp counts in the z-loss.
fn router_weights<T: Element>(
    chosen: &[i32],
    [n, experts]: [usize; 2],
    losses: RouterLosses,
    parts: u64,
) -> (Vec<T>, T) {
    let mut tokens = vec![0u64; experts];
    chosen.iter().for_each(|expert| tokens[*expert as usize] += 1);
    let of_all = of_e12(losses.balance_e12) * experts as f64 / parts as f64;
    let each = of_all / (chosen.len() as f64 * n as f64);
    let of_square = of_e12(losses.z_e12) / (n as f64 * parts as f64);
    (tokens.into_iter().map(|tokens| T::of(each * tokens as f64)).collect(), T::of(of_square))
}

pub(super) fn router_loss<T: Element>(
    call: &mut Call<'_, '_, T>,
    losses: RouterLosses,
    scores: Scores,
    microbatches: u64,
) {
    let (logits, chosen, (n, experts)) = (call.floats(0), call.tokens(1), call.sizes(0));
    let (weights, of_square) = router_weights::<T>(chosen, [n, experts], losses, microbatches);
    let mut loss = T::ZERO;
    for logits in logits.chunks_exact(experts) {
        let (shares, _) = shares(logits, scores);
        shares.iter().zip(&weights).for_each(|(share, weight)| loss += *share * *weight);
        let sum = log_sum_exp(logits);
        loss += of_square * sum * sum;
    }
    call.outputs[0].floats_mut()[0] = loss;
}

pub(super) fn router_loss_grad<T: Element>(
    call: &mut Call<'_, '_, T>,
    losses: RouterLosses,
    scores: Scores,
    parts: u64,
) {
    let (logits, chosen, (n, experts)) = (call.floats(0), call.tokens(1), call.sizes(0));
    let (weights, of_square) = router_weights::<T>(chosen, [n, experts], losses, parts);
    let rows = call.outputs[0].floats_mut().chunks_exact_mut(experts).zip(logits.chunks_exact(experts));
    for (dlogits, logits) in rows {
        let (shares, total) = shares(logits, scores);
        // What a greater sum takes from every share.
        let mean = shares.iter().zip(&weights).fold(T::ZERO, |sum, (share, weight)| sum + *share * *weight);
        let of_sum = T::of(2.0) * of_square * log_sum_exp(logits);
        let softmax = softmax(logits);
        for (expert, dlogit) in dlogits.iter_mut().enumerate() {
            let along = shares[expert] * (weights[expert] - mean);
            // A sigmoid's slope is its value times what is left of 1.
            let along = if scores == Scores::Sigmoid { along * (T::ONE - shares[expert] * total) } else { along };
            *dlogit = along + of_sum * softmax[expert];
        }
    }
}

/// Weights of experts, each times the number of its expert.
pub(super) fn expert_scale<T: Element>(call: &mut Call<'_, '_, T>) {
    let (weights, chosen, scales) = (call.floats(0), call.tokens(1), call.floats(2));
    let all = call.outputs[0].floats_mut().iter_mut().zip(weights).zip(chosen);
    all.for_each(|((y, weight), expert)| *y = *weight * scales[*expert as usize]);
}

pub(super) fn expert_scale_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (dy, weights, chosen) = (call.floats(0), call.floats(1), call.tokens(2));
    let gradient = call.started(3);
    let all = dy.iter().zip(weights).zip(chosen);
    all.for_each(|((dy, weight), expert)| gradient[*expert as usize] += *dy * *weight);
}

pub(super) fn row_gate<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, gate) = (call.floats(0), call.floats(1));
    let (_, width) = call.sizes(0);
    let rows = call.outputs[0].floats_mut().chunks_exact_mut(width).zip(x.chunks_exact(width));
    for ((y, x), gate) in rows.zip(gate) {
        let share = sigmoid(*gate);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = share * *x);
    }
}

pub(super) fn row_gate_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (dy, x, gate) = (call.floats(0), call.floats(1), call.floats(2));
    let (_, width) = call.sizes(0);
    let [dx, dgate] = &mut *call.outputs else { panic!("row_gate_grad has two outputs") };
    let rows = dx.floats_mut().chunks_exact_mut(width).zip(dy.chunks_exact(width)).zip(x.chunks_exact(width));
    for (((dx, dy), x), (dgate, gate)) in rows.zip(dgate.floats_mut().iter_mut().zip(gate)) {
        let share = sigmoid(*gate);
        dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = share * *dy);
        *dgate = share * (T::ONE - share) * dot(dy, x);
    }
}

/// Each token of `x`, of `width` elements, to the places of its copies in `rows`.
pub fn spread<T: Element>(x: &[T], order: &Order, active: usize, width: usize, rows: &mut [T]) {
    for (copy, place) in order.places.iter().enumerate() {
        let token = copy / active;
        rows[place * width..(place + 1) * width].copy_from_slice(&x[token * width..(token + 1) * width]);
    }
}

/// For each token the sum of its copies, of which [`Order`]'s place says which element of `rows` it is.
pub fn gather<'a, T: Element>(
    rows: impl Fn(usize) -> &'a [T],
    order: &Order,
    active: usize,
    width: usize,
    sums: &mut [T],
) {
    sums.fill(T::ZERO);
    for (copy, place) in order.places.iter().enumerate() {
        let token = copy / active;
        let sum = &mut sums[token * width..(token + 1) * width];
        sum.iter_mut().zip(rows(*place)).for_each(|(sum, more)| *sum += *more);
    }
}

pub(super) fn dispatch<T: Element>(call: &mut Call<'_, '_, T>) {
    let ((_, width), (_, active)) = (call.sizes(0), call.sizes(1));
    let (x, chosen, weights) = (call.floats(0), call.tokens(1), call.floats(2));
    let [rows, arrivals, shares] = &mut *call.outputs else { panic!("dispatch has three outputs") };
    let (rows, arrivals, shares) = (rows.floats_mut(), arrivals.tokens_mut(), shares.floats_mut());
    let order = Order::new(chosen, arrivals.len());
    rows.fill(T::ZERO);
    spread(x, &order, active, width, rows);
    shares.fill(T::ZERO);
    spread(weights, &order, 1, 1, shares);
    arrivals.iter_mut().zip(order.arrivals()).for_each(|(arrived, count)| *arrived = count);
}

pub(super) fn dispatch_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let order = Order::new(call.tokens(1), call.tokens(2).len());
    combine(call);
    let dshares = call.floats(3);
    let dweights = call.outputs[1].floats_mut().iter_mut().zip(&order.places);
    dweights.for_each(|(dweight, place)| *dweight = dshares[*place]);
}

pub(super) fn combine<T: Element>(call: &mut Call<'_, '_, T>) {
    let ((_, width), (_, active)) = (call.sizes(0), call.sizes(1));
    let (rows, order) = (call.floats(0), Order::new(call.tokens(1), call.tokens(2).len()));
    gather(|place| &rows[place * width..(place + 1) * width], &order, active, width, call.outputs[0].floats_mut());
}

pub(super) fn combine_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let ((_, width), (_, active)) = (call.sizes(0), call.sizes(1));
    let (dy, order) = (call.floats(0), Order::new(call.tokens(1), call.tokens(2).len()));
    let drows = call.outputs[0].floats_mut();
    drows.fill(T::ZERO);
    spread(dy, &order, active, width, drows);
}

pub(super) fn matmul<T: Element>(gemm: &dyn Gemm<T>, call: &mut Call<'_, '_, T>, transpose: bool) {
    let shape: Vec<usize> = call.inputs[1].shape.iter().map(|size| *size as usize).collect();
    let (x, w, arrivals) = (call.floats(0), call.floats(1), Arrivals::new(call.tokens(2), shape[0]));
    let (inner, columns) = if transpose { (shape[2], shape[1]) } else { (shape[1], shape[2]) };
    let y = call.outputs[0].floats_mut();
    y.fill(T::ZERO);
    for (rows, w) in arrivals.rows().into_iter().zip(w.chunks_exact(shape[1] * shape[2])) {
        if rows.is_empty() {
            continue;
        }
        let w = Operand::rows(w, shape[2]);
        let w = if transpose { w.transposed() } else { w };
        let size = Size { rows: rows.len(), inner, columns };
        let x = Operand::rows(&x[rows.start * inner..rows.end * inner], inner);
        gemm.gemm(size, T::ONE, x, w, T::ZERO, &mut y[rows.start * columns..rows.end * columns], columns);
    }
}

pub(super) fn matmul_grad<T: Element>(gemm: &dyn Gemm<T>, call: &mut Call<'_, '_, T>) {
    let experts = call.inputs[3].shape[0] as usize;
    let (dy, x, arrivals) = (call.floats(0), call.floats(1), Arrivals::new(call.tokens(2), experts));
    let ((_, outer), (_, inner)) = (call.sizes(0), call.sizes(1));
    for (rows, gradient) in arrivals.rows().into_iter().zip(call.started(3).chunks_exact_mut(outer * inner)) {
        if rows.is_empty() {
            continue;
        }
        let size = Size { rows: outer, inner: rows.len(), columns: inner };
        let dy = Operand::rows(&dy[rows.start * outer..rows.end * outer], outer).transposed();
        let x = Operand::rows(&x[rows.start * inner..rows.end * inner], inner);
        gemm.gemm(size, T::ONE, dy, x, T::ONE, gradient, inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_leave_by_expert_and_then_by_token() {
        // Tokens 0, 1 and 2 go to experts 2 and 0, 0 and 3, 2 and 3.
        let order = Order::new(&[2, 0, 0, 3, 2, 3], 5);
        assert_eq!(order.places, [2, 0, 1, 4, 3, 5]);
        assert_eq!(order.counts, [2, 0, 2, 2, 0]);
        let rows = Arrivals::new(&order.arrivals().collect::<Vec<_>>(), 5).rows();
        assert_eq!(rows, [0..2, 2..2, 2..4, 4..6, 6..6]);
    }

    /// From device 0 come one copy for expert 0 and two for expert 1, from device 1 two and one.
    #[test]
    fn rows_lie_by_expert_and_then_by_device() {
        let arrivals = Arrivals::new(&[1, 2, 2, 1], 2);
        assert_eq!(arrivals.rows(), [0..3, 3..6]);
        assert_eq!(arrivals.places(), [0, 3, 4, 1, 2, 5]);
        assert_eq!(arrivals.by_device(), [3, 3]);
        assert_eq!(Arrivals::new(&[], 3).rows(), [] as [Range<usize>; 0]);
    }
}
