//! Experts: which see a token, copies of tokens in the experts' order, and each expert's own matrix.

use super::super::element::{Element, dot};
use super::super::gemm::{Gemm, Operand, Size};
use super::elementwise::sigmoid;
use super::{Call, Data};

/// The order in which experts have their tokens: by expert, then by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// By copy (token by token, and within one as chosen): its row.
    pub places: Vec<usize>,
    /// By expert: where its rows end.
    ends: Vec<usize>,
}

impl Order {
    /// Of copies that go to the experts `chosen`.
    pub fn new(chosen: &[i32]) -> Order {
        let expert = |chosen: &i32| (*chosen).max(0) as usize;
        let count = chosen.iter().map(expert).max().map_or(0, |last| last + 1);
        let mut ends = vec![0; count];
        for chosen in chosen {
            ends[expert(chosen)] += 1;
        }
        let mut next = Vec::with_capacity(count);
        let mut sum = 0;
        for end in &mut ends {
            next.push(sum);
            sum += *end;
            *end = sum;
        }
        let place = |chosen: &i32| {
            let place = &mut next[expert(chosen)];
            *place += 1;
            *place - 1
        };
        Order { places: chosen.iter().map(place).collect(), ends }
    }

    /// The rows of `expert`.
    pub fn rows(&self, expert: usize) -> std::ops::Range<usize> {
        let end = |expert: usize| self.ends.get(expert).or(self.ends.last()).copied().unwrap_or(0);
        let start = if expert == 0 { 0 } else { end(expert - 1) };
        start..end(expert).max(start)
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

pub(super) fn route<T: Element>(call: &mut Call<'_, '_, T>, active: usize) {
    let logits = call.floats(0);
    let (_, experts) = call.sizes(0);
    let [weights, chosen] = &mut *call.outputs else { panic!("route has two outputs") };
    let (weights, Data::Tokens(chosen)) = (weights.floats_mut(), chosen) else { panic!("experts are numbers") };
    let rows =
        logits.chunks_exact(experts).zip(weights.chunks_exact_mut(active)).zip(chosen.chunks_exact_mut(active));
    for ((logits, weights), chosen) in rows {
        let shares = softmax(logits);
        for (slot, weight) in weights.iter_mut().enumerate() {
            let (before, rest) = chosen.split_at_mut(slot);
            // Of equals the first.
            let mut best: Option<usize> = None;
            for (expert, logit) in logits.iter().enumerate() {
                let is_open = !before.contains(&(expert as i32));
                if is_open && best.is_none_or(|best| *logit > logits[best]) {
                    best = Some(expert);
                }
            }
            let best = best.unwrap_or(0);
            rest[0] = best as i32;
            *weight = shares[best];
        }
    }
}

pub(super) fn route_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (dweights, logits, chosen) = (call.floats(0), call.floats(1), call.tokens(2));
    let ((_, active), (_, experts)) = (call.sizes(0), call.sizes(1));
    let rows = call.outputs[0].floats_mut().chunks_exact_mut(experts).zip(logits.chunks_exact(experts));
    let rows = rows.zip(dweights.chunks_exact(active)).zip(chosen.chunks_exact(active));
    for (((dlogits, logits), dweights), chosen) in rows {
        let shares = softmax(logits);
        let mut along = T::ZERO;
        for (dweight, expert) in dweights.iter().zip(chosen) {
            along += *dweight * shares[*expert as usize];
        }
        for (dlogit, share) in dlogits.iter_mut().zip(&shares) {
            *dlogit = -(*share * along);
        }
        for (dweight, expert) in dweights.iter().zip(chosen) {
            dlogits[*expert as usize] += *dweight * shares[*expert as usize];
        }
    }
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

pub(super) fn dispatch<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, order) = (call.floats(0), Order::new(call.tokens(1)));
    let ((_, width), (_, active)) = (call.sizes(0), call.sizes(1));
    let rows = call.outputs[0].floats_mut();
    rows.fill(T::ZERO);
    for (copy, place) in order.places.iter().enumerate() {
        let token = copy / active;
        rows[place * width..(place + 1) * width].copy_from_slice(&x[token * width..(token + 1) * width]);
    }
}

pub(super) fn dispatch_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (drows, order) = (call.floats(0), Order::new(call.tokens(1)));
    let ((_, width), (_, active)) = (call.sizes(0), call.sizes(1));
    let dx = call.outputs[0].floats_mut();
    dx.fill(T::ZERO);
    for (copy, place) in order.places.iter().enumerate() {
        let token = copy / active;
        let row = &drows[place * width..(place + 1) * width];
        dx[token * width..(token + 1) * width].iter_mut().zip(row).for_each(|(sum, more)| *sum += *more);
    }
}

pub(super) fn combine<T: Element>(call: &mut Call<'_, '_, T>) {
    let (rows, weights, order) = (call.floats(0), call.floats(1), Order::new(call.tokens(2)));
    let ((_, width), (_, active)) = (call.sizes(0), call.sizes(2));
    let y = call.outputs[0].floats_mut();
    y.fill(T::ZERO);
    for ((copy, place), weight) in order.places.iter().enumerate().zip(weights) {
        let token = copy / active;
        let row = &rows[place * width..(place + 1) * width];
        y[token * width..(token + 1) * width].iter_mut().zip(row).for_each(|(sum, more)| *sum += *weight * *more);
    }
}

pub(super) fn combine_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (dy, rows, weights) = (call.floats(0), call.floats(1), call.floats(2));
    let order = Order::new(call.tokens(3));
    let ((_, width), (_, active)) = (call.sizes(0), call.sizes(3));
    let [drows, dweights] = &mut *call.outputs else { panic!("combine_grad has two outputs") };
    let (drows, dweights) = (drows.floats_mut(), dweights.floats_mut());
    drows.fill(T::ZERO);
    for (((copy, place), weight), dweight) in order.places.iter().enumerate().zip(weights).zip(dweights) {
        let token = copy / active;
        let dy = &dy[token * width..(token + 1) * width];
        let at = place * width..(place + 1) * width;
        *dweight = dot(dy, &rows[at.clone()]);
        drows[at].iter_mut().zip(dy).for_each(|(drow, dy)| *drow = *weight * *dy);
    }
}

pub(super) fn matmul<T: Element>(gemm: &dyn Gemm<T>, call: &mut Call<'_, '_, T>, transpose: bool) {
    let (x, w, order) = (call.floats(0), call.floats(1), Order::new(call.tokens(2)));
    let shape: Vec<usize> = call.inputs[1].shape.iter().map(|size| *size as usize).collect();
    let (inner, columns) = if transpose { (shape[2], shape[1]) } else { (shape[1], shape[2]) };
    let y = call.outputs[0].floats_mut();
    // Rows beyond those of all experts are nobody's.
    y.fill(T::ZERO);
    for (expert, w) in w.chunks_exact(shape[1] * shape[2]).enumerate() {
        let rows = order.rows(expert);
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
    let (dy, x, order) = (call.floats(0), call.floats(1), Order::new(call.tokens(2)));
    let ((_, outer), (_, inner)) = (call.sizes(0), call.sizes(1));
    for (expert, gradient) in call.started(3).chunks_exact_mut(outer * inner).enumerate() {
        let rows = order.rows(expert);
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
    fn experts_have_their_tokens_in_order() {
        // Tokens 0, 1 and 2 go to experts 2 and 0, 0 and 3, 2 and 3.
        let order = Order::new(&[2, 0, 0, 3, 2, 3]);
        assert_eq!(order.places, [2, 0, 1, 4, 3, 5]);
        assert_eq!((0..5).map(|expert| order.rows(expert)).collect::<Vec<_>>(), [0..2, 2..2, 2..4, 4..6, 6..6]);
        assert_eq!(Order::new(&[]).rows(3), 0..0);
    }
}
