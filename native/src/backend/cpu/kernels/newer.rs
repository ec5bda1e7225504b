//! Parts of newer models: gates and activations, norms over devices and without weights, sinks, biases of experts,
//! convolutions.

use pipeplan_core::graph::{Spread, of_e12};

use super::super::element::{Element, dot};
use super::Call;
use super::elementwise::sigmoid;
use super::experts::Arrivals;

/// Where a clamped gate and what stands beside it end, and the factor within the gate's sigmoid (gpt-oss).
const LIMIT: f64 = 7.0;
const STEEPNESS: f64 = 1.702;

/// What a clamped gate passes, and the slope of that.
pub(super) fn clamped_gate<T: Element>(x: T) -> (T, T) {
    let (limit, steepness) = (T::of(LIMIT), T::of(STEEPNESS));
    let is_over = x > limit;
    let gate = if is_over { limit } else { x };
    let share = sigmoid(steepness * gate);
    let slope = if is_over { T::ZERO } else { share + gate * steepness * share * (T::ONE - share) };
    (gate * share, slope)
}

/// What stands beside a clamped gate, and its slope.
pub(super) fn clamped_up<T: Element>(x: T) -> (T, T) {
    let limit = T::of(LIMIT);
    match (x > limit, x < -limit) {
        (true, _) => (limit + T::ONE, T::ZERO),
        (_, true) => (T::ONE - limit, T::ZERO),
        _ => (x + T::ONE, T::ONE),
    }
}

pub fn clamped_glu<T: Element>(call: &mut Call<'_, '_, T>) {
    let (gate, up) = (call.floats(0), call.floats(1));
    for ((y, gate), up) in call.outputs[0].floats_mut().iter_mut().zip(gate).zip(up) {
        *y = clamped_gate(*gate).0 * clamped_up(*up).0;
    }
}

pub fn clamped_glu_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (gate, up) = (call.floats(1), call.floats(2));
    call.started(0);
    let [dgate, dup] = &mut *call.outputs else { panic!("clamped_glu_grad has two outputs") };
    let outputs = dgate.floats_mut().iter_mut().zip(dup.floats_mut());
    for (((dgate, dup), gate), up) in outputs.zip(gate).zip(up) {
        let (dy, (passed, slope), (up, up_slope)) = (*dgate, clamped_gate(*gate), clamped_up(*up));
        *dup = dy * passed * up_slope;
        *dgate = dy * up * slope;
    }
}

pub fn squared_relu<T: Element>(call: &mut Call<'_, '_, T>) {
    let x = call.floats(0);
    for (y, x) in call.outputs[0].floats_mut().iter_mut().zip(x) {
        let above = x.greater(T::ZERO);
        *y = above * above;
    }
}

pub fn squared_relu_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, two) = (call.floats(1), T::of(2.0));
    for (dx, x) in call.started(0).iter_mut().zip(x) {
        *dx *= two * x.greater(T::ZERO);
    }
}

pub fn weighted_squared_relu<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, shares, (_, width)) = (call.floats(0), call.floats(1), call.sizes(0));
    let rows = call.outputs[0].floats_mut().chunks_exact_mut(width).zip(x.chunks_exact(width));
    for ((y, x), share) in rows.zip(shares) {
        for (y, x) in y.iter_mut().zip(x) {
            let above = x.greater(T::ZERO);
            *y = *share * (above * above);
        }
    }
}

pub fn weighted_squared_relu_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, shares, (_, width), two) = (call.floats(1), call.floats(2), call.sizes(1), T::of(2.0));
    call.started(0);
    let [dx, dshares] = &mut *call.outputs else { panic!("weighted_squared_relu_grad has two outputs") };
    let rows = dx.floats_mut().chunks_exact_mut(width).zip(x.chunks_exact(width));
    for (((dx, x), share), dshare) in rows.zip(shares).zip(dshares.floats_mut()) {
        let mut sum = T::ZERO;
        for (dx, x) in dx.iter_mut().zip(x) {
            let above = x.greater(T::ZERO);
            sum += *dx * above * above;
            *dx *= *share * two * above;
        }
        *dshare = sum;
    }
}

/// `ln(1 + e^x)`.
pub(super) fn softplus<T: Element>(x: T) -> T {
    x.greater(T::ZERO) + (T::ONE + (-x.greater(-x)).exp()).ln()
}

/// The two factors of xIELU, from the numbers that are trained.
fn xielu_factors<T: Element>(above: &[T], below: &[T]) -> [T; 2] {
    [softplus(above[0]), T::of(0.5) + softplus(below[0])]
}

pub fn xielu<T: Element>(call: &mut Call<'_, '_, T>) {
    let ([above, below], half) = (xielu_factors(call.floats(1), call.floats(2)), T::of(0.5));
    let x = call.floats(0);
    for (y, x) in call.outputs[0].floats_mut().iter_mut().zip(x) {
        let x = *x;
        *y = half * x + if x > T::ZERO { above * x * x } else { below * (x.exp() - T::ONE - x) };
    }
}

pub fn xielu_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let ([above, below], half) = (xielu_factors(call.floats(2), call.floats(3)), T::of(0.5));
    let x = call.floats(1);
    for (dx, x) in call.started(0).iter_mut().zip(x) {
        let x = *x;
        *dx *= half + if x > T::ZERO { T::of(2.0) * above * x } else { below * (x.exp() - T::ONE) };
    }
}

pub fn xielu_weight_grad<T: Element>(call: &mut Call<'_, '_, T>, below: bool) {
    let (dy, x, weight) = (call.floats(0), call.floats(1), call.floats(2));
    let mut sum = T::ZERO;
    for (dy, x) in dy.iter().zip(x) {
        let x = *x;
        match (x > T::ZERO, below) {
            (true, false) => sum += *dy * x * x,
            (false, true) => sum += *dy * (x.exp() - T::ONE - x),
            _ => {}
        }
    }
    let slope = sigmoid(weight[0]);
    call.started(3)[0] += slope * sum;
}

pub fn sigmoid_gate<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, gate) = (call.floats(0), call.floats(1));
    for ((y, x), gate) in call.outputs[0].floats_mut().iter_mut().zip(x).zip(gate) {
        *y = *x * sigmoid(*gate);
    }
}

pub fn sigmoid_gate_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, gate) = (call.floats(1), call.floats(2));
    call.started(0);
    let [dx, dgate] = &mut *call.outputs else { panic!("sigmoid_gate_grad has two outputs") };
    let outputs = dx.floats_mut().iter_mut().zip(dgate.floats_mut());
    for (((dx, dgate), x), gate) in outputs.zip(x).zip(gate) {
        let (dy, share) = (*dx, sigmoid(*gate));
        *dgate = dy * *x * share * (T::ONE - share);
        *dx = dy * share;
    }
}

pub fn row_squares<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, (_, width)) = (call.floats(0), call.sizes(0));
    for (sum, row) in call.outputs[0].floats_mut().iter_mut().zip(x.chunks_exact(width)) {
        *sum = dot(row, row);
    }
}

pub fn row_squares_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (ds, x, (_, width)) = (call.floats(0), call.floats(1), call.sizes(1));
    let rows = call.outputs[0].floats_mut().chunks_exact_mut(width).zip(x.chunks_exact(width));
    for ((dx, x), ds) in rows.zip(ds) {
        let twice = T::of(2.0) * *ds;
        dx.iter_mut().zip(x).for_each(|(dx, x)| *dx = twice * *x);
    }
}

/// What is added to the weight of a norm.
fn one_more<T: Element>(offset: bool) -> T {
    if offset { T::ONE } else { T::ZERO }
}

pub fn shared_rms_norm<T: Element>(call: &mut Call<'_, '_, T>, eps_e12: u64, columns: u64, offset: bool) {
    let (x, gain, squares) = (call.floats(0), call.floats(1), call.floats(2));
    let (eps, count, more) = (T::of(of_e12(eps_e12)), T::of(columns as f64), one_more(offset));
    let width = gain.len();
    let [y, inverse] = &mut *call.outputs else { panic!("shared_rms_norm has two outputs") };
    let rows = y.floats_mut().chunks_exact_mut(width).zip(inverse.floats_mut());
    for (((y, inverse), x), squares) in rows.zip(x.chunks_exact(width)).zip(squares) {
        *inverse = T::ONE / (*squares / count + eps).sqrt();
        for ((y, x), gain) in y.iter_mut().zip(x).zip(gain) {
            *y = *x * *inverse * (*gain + more);
        }
    }
}

pub fn shared_rms_norm_grad<T: Element>(call: &mut Call<'_, '_, T>, columns: u64, offset: bool) {
    let (dy, x, inverse, gain) = (call.floats(0), call.floats(1), call.floats(2), call.floats(3));
    let (twice, more) = (T::of(2.0 * columns as f64), one_more(offset));
    let width = gain.len();
    let [dx, dsum] = &mut *call.outputs else { panic!("shared_rms_norm_grad has two outputs") };
    let rows = dx.floats_mut().chunks_exact_mut(width).zip(dsum.floats_mut());
    let rows = rows.zip(dy.chunks_exact(width)).zip(x.chunks_exact(width)).zip(inverse);
    for ((((dx, dsum), dy), x), r) in rows {
        for ((u, dy), gain) in dx.iter_mut().zip(dy).zip(gain) {
            *u = *dy * (*gain + more);
        }
        *dsum = -(*r * *r * *r * dot(dx, x) / twice);
        dx.iter_mut().for_each(|dx| *dx *= *r);
    }
}

pub fn head_length<T: Element>(call: &mut Call<'_, '_, T>, eps_e12: u64, width: u64) {
    let (x, width) = (call.floats(0), width as usize);
    let (eps, count) = (T::of(of_e12(eps_e12)), T::of(width as f64));
    let [y, inverse] = &mut *call.outputs else { panic!("head_length has two outputs") };
    let heads = y.floats_mut().chunks_exact_mut(width).zip(inverse.floats_mut());
    for ((y, inverse), x) in heads.zip(x.chunks_exact(width)) {
        *inverse = T::ONE / (dot(x, x) / count + eps).sqrt();
        y.iter_mut().zip(x).for_each(|(y, x)| *y = *x * *inverse);
    }
}

pub fn head_length_grad<T: Element>(call: &mut Call<'_, '_, T>, width: u64) {
    let (x, inverse, width) = (call.floats(1), call.floats(2), width as usize);
    let count = T::of(width as f64);
    for ((dx, x), r) in call.started(0).chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(inverse) {
        let along = *r * *r * (dot(dx, x) / count);
        for (dx, x) in dx.iter_mut().zip(x) {
            *dx = *r * (*dx - *x * along);
        }
    }
}

/// `position` gives the position of a row in its sequence.
pub fn position_scale<T: Element>(
    call: &mut Call<'_, '_, T>,
    position: impl Fn(u64) -> u64,
    tokens: u64,
    scale_e12: u64,
) {
    let (_, width) = call.sizes(0);
    for (row, x) in call.started(0).chunks_exact_mut(width).enumerate() {
        let steps = (position(row as u64) + 1) / tokens.max(1);
        let factor = T::of(1.0 + of_e12(scale_e12) * libm::log1p(steps as f64));
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// What attention has made without sinks, of which each head's now takes its share.
pub fn take_sinks<T: Element>(call: &mut Call<'_, '_, T>, spread: &Spread) {
    let sinks = call.floats(3);
    let width = spread.value_width as usize;
    let [attended, log_sums] = &mut *call.outputs else { panic!("sink_attention has two outputs") };
    let heads = attended.floats_mut().chunks_exact_mut(width).zip(log_sums.floats_mut());
    for ((attended, log_sum), sink) in heads.zip(sinks.iter().cycle()) {
        let more = softplus(*sink - *log_sum);
        let share = (-more).exp();
        attended.iter_mut().for_each(|attended| *attended *= share);
        *log_sum += more;
    }
}

pub fn sink_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (dy, y, log_sums, sinks) = (call.floats(0), call.floats(1), call.floats(2), call.floats(3));
    let width = y.len() / log_sums.len().max(1);
    let heads = sinks.len();
    let gradient = call.started(4);
    for (at, log_sum) in log_sums.iter().enumerate() {
        let along = dot(&dy[at * width..(at + 1) * width], &y[at * width..(at + 1) * width]);
        gradient[at % heads] += -((sinks[at % heads] - *log_sum).exp() * along);
    }
}

/// By row of experts: its share, or 1, over the devices that each add a part.
fn share_of_row<T: Element>(shares: Option<&[T]>, row: usize, ways: u64) -> T {
    shares.map_or(T::ONE, |shares| shares[row]) / T::of(ways as f64)
}

pub fn expert_bias<T: Element>(call: &mut Call<'_, '_, T>, ways: u64, shared: bool) {
    let (bias, (experts, width)) = (call.floats(1), call.sizes(1));
    let arrivals = Arrivals::new(call.tokens(2), experts);
    let shares = shared.then(|| call.floats(3));
    let y = call.started(0);
    for (rows, bias) in arrivals.rows().into_iter().zip(bias.chunks_exact(width)) {
        for row in rows {
            let share = share_of_row(shares, row, ways);
            let y = &mut y[row * width..(row + 1) * width];
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += share * *bias);
        }
    }
}

pub fn expert_bias_grad<T: Element>(call: &mut Call<'_, '_, T>, ways: u64, shared: bool) {
    let last = if shared { 3 } else { 2 };
    let (dy, (experts, width)) = (call.floats(0), call.sizes(last));
    let arrivals = Arrivals::new(call.tokens(1), experts);
    let shares = shared.then(|| call.floats(2));
    let gradient = call.started(last);
    for (rows, gradient) in arrivals.rows().into_iter().zip(gradient.chunks_exact_mut(width)) {
        for row in rows {
            let share = share_of_row(shares, row, ways);
            let dy = &dy[row * width..(row + 1) * width];
            gradient.iter_mut().zip(dy).for_each(|(gradient, dy)| *gradient += share * *dy);
        }
    }
}

pub fn expert_bias_share_grad<T: Element>(call: &mut Call<'_, '_, T>, ways: u64) {
    let (dy, bias, (experts, width)) = (call.floats(0), call.floats(1), call.sizes(1));
    let arrivals = Arrivals::new(call.tokens(2), experts);
    let dshares = call.outputs[0].floats_mut();
    dshares.fill(T::ZERO);
    for (rows, bias) in arrivals.rows().into_iter().zip(bias.chunks_exact(width)) {
        for row in rows {
            dshares[row] = dot(&dy[row * width..(row + 1) * width], bias) / T::of(ways as f64);
        }
    }
}

/// A convolution's sizes: channels, taps, and tokens of a sequence.
struct Taps<'a, T> {
    channels: usize,
    taps: usize,
    sequence: usize,
    x: &'a [T],
    weight: &'a [T],
    bias: Option<&'a [T]>,
}

impl<'a, T: Element> Taps<'a, T> {
    /// With the stream as input `first`, and a bias behind the weight where there are more than `without` inputs.
    fn of(call: &Call<'a, '_, T>, first: usize, without: usize, sequence: u64) -> Taps<'a, T> {
        let (channels, taps) = call.sizes(first + 1);
        let bias = (call.inputs.len() > without).then(|| call.floats(first + 2));
        let (x, weight) = (call.floats(first), call.floats(first + 1));
        Taps { channels, taps, sequence: sequence as usize, x, weight, bias }
    }

    /// What tap `tap` of row `row` reads, where that is of its sequence.
    fn source(&self, row: usize, tap: usize) -> Option<usize> {
        let back = (row % self.sequence + tap + 1).checked_sub(self.taps)?;
        Some(row / self.sequence * self.sequence + back)
    }

    /// What SiLU takes.
    fn sum(&self, row: usize, channel: usize) -> T {
        let mut sum = self.bias.map_or(T::ZERO, |bias| bias[channel]);
        for (tap, from) in (0..self.taps).filter_map(|tap| Some((tap, self.source(row, tap)?))) {
            sum += self.weight[channel * self.taps + tap] * self.x[from * self.channels + channel];
        }
        sum
    }

    /// By row and channel: the gradient of that.
    fn gradients(&self, dy: &'a [T]) -> impl Iterator<Item = (usize, usize, T)> {
        dy.iter().enumerate().map(|(at, dy)| {
            let (row, channel) = (at / self.channels, at % self.channels);
            let sum = self.sum(row, channel);
            let share = sigmoid(sum);
            (row, channel, *dy * share * (T::ONE + sum * (T::ONE - share)))
        })
    }
}

pub fn convolution<T: Element>(call: &mut Call<'_, '_, T>, sequence: u64) {
    let taps = Taps::of(call, 0, 2, sequence);
    for (at, y) in call.outputs[0].floats_mut().iter_mut().enumerate() {
        let sum = taps.sum(at / taps.channels, at % taps.channels);
        *y = sum * sigmoid(sum);
    }
}

pub fn convolution_grad<T: Element>(call: &mut Call<'_, '_, T>, sequence: u64) {
    let (taps, dy) = (Taps::of(call, 1, 3, sequence), call.floats(0));
    let dx = call.outputs[0].floats_mut();
    dx.fill(T::ZERO);
    for (row, channel, dz) in taps.gradients(dy) {
        for (tap, from) in (0..taps.taps).filter_map(|tap| Some((tap, taps.source(row, tap)?))) {
            dx[from * taps.channels + channel] += dz * taps.weight[channel * taps.taps + tap];
        }
    }
}

pub fn convolution_weight_grad<T: Element>(call: &mut Call<'_, '_, T>, sequence: u64, bias: bool) {
    let (taps, dy) = (Taps::of(call, 1, 4, sequence), call.floats(0));
    let last = call.inputs.len() - 1;
    let gradient = call.started(last);
    for (row, channel, dz) in taps.gradients(dy) {
        if bias {
            gradient[channel] += dz;
            continue;
        }
        for (tap, from) in (0..taps.taps).filter_map(|tap| Some((tap, taps.source(row, tap)?))) {
            gradient[channel * taps.taps + tap] += dz * taps.x[from * taps.channels + channel];
        }
    }
}
