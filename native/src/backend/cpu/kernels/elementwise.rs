//! Kernels that work element by element.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use pipeplan_core::graph::of_e12;
use pipeplan_core::model::Activation;

use super::super::element::Element;
use super::{Call, newer};

pub fn add_bias<T: Element>(call: &mut Call<'_, '_, T>) {
    let bias = call.floats(1);
    for row in call.started(0).chunks_exact_mut(bias.len()) {
        for (y, bias) in row.iter_mut().zip(bias) {
            *y += *bias;
        }
    }
}

pub fn bias_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let dy = call.floats(0);
    let gradient = call.started(1);
    for row in dy.chunks_exact(gradient.len()) {
        for (gradient, dy) in gradient.iter_mut().zip(row) {
            *gradient += *dy;
        }
    }
}

pub fn add<T: Element>(call: &mut Call<'_, '_, T>) {
    // A sum of two does not depend on their order, so whichever buffer was taken over is where it starts.
    let (start, other) = if call.inputs[1].data.is_none() { (1, 0) } else { (0, 1) };
    let other = call.floats(other);
    for (sum, other) in call.started(start).iter_mut().zip(other) {
        *sum += *other;
    }
}

pub fn scale<T: Element>(call: &mut Call<'_, '_, T>, factor_e12: u64) {
    let factor = T::of(of_e12(factor_e12));
    for x in call.started(0) {
        *x *= factor;
    }
}

/// `c · tanh(x / c)`.
pub fn within_cap<T: Element>(x: T, cap: T) -> T {
    cap * (x / cap).tanh()
}

/// The slope of [`within_cap`] where it gives `y`.
pub fn slope_within<T: Element>(y: T, cap: T) -> T {
    let share = y / cap;
    T::ONE - share * share
}

pub fn soft_cap<T: Element>(call: &mut Call<'_, '_, T>, cap_e12: u64) {
    let cap = T::of(of_e12(cap_e12));
    for x in call.started(0).iter_mut().filter(|x| **x != T::LOWEST) {
        *x = within_cap(*x, cap);
    }
}

pub fn soft_cap_grad<T: Element>(call: &mut Call<'_, '_, T>, cap_e12: u64) {
    let (y, cap) = (call.floats(1), T::of(of_e12(cap_e12)));
    for (dx, y) in call.started(0).iter_mut().zip(y) {
        *dx = if *y == T::LOWEST { T::ZERO } else { *dx * slope_within(*y, cap) };
    }
}

pub fn clip<T: Element>(call: &mut Call<'_, '_, T>, limit_e12: u64) {
    let limit = T::of(of_e12(limit_e12));
    for x in call.started(0) {
        *x = if *x > limit { limit } else { x.greater(-limit) };
    }
}

pub fn clip_grad<T: Element>(call: &mut Call<'_, '_, T>, limit_e12: u64) {
    let (y, limit) = (call.floats(1), T::of(of_e12(limit_e12)));
    for (dx, y) in call.started(0).iter_mut().zip(y) {
        if *y >= limit || *y <= -limit {
            *dx = T::ZERO;
        }
    }
}

pub(super) fn sigmoid<T: Element>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

pub fn swiglu<T: Element>(call: &mut Call<'_, '_, T>) {
    let (gate, up) = (call.floats(0), call.floats(1));
    for ((y, gate), up) in call.outputs[0].floats_mut().iter_mut().zip(gate).zip(up) {
        *y = *gate * sigmoid(*gate) * *up;
    }
}

pub fn swiglu_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (gate, up) = (call.floats(1), call.floats(2));
    call.started(0);
    let [dgate, dup] = &mut *call.outputs else { panic!("swiglu_grad has two outputs") };
    let outputs = dgate.floats_mut().iter_mut().zip(dup.floats_mut());
    for (((dgate, dup), gate), up) in outputs.zip(gate).zip(up) {
        let (dy, share) = (*dgate, sigmoid(*gate));
        *dup = dy * *gate * share;
        *dgate = dy * *up * share * (T::ONE + *gate * (T::ONE - share));
    }
}

/// The tanh form of GELU over its argument, `(1 + tanh u) / 2 = σ(2 u)`, and the slope of `2 u`.
fn gelu_share<T: Element>(x: T) -> (T, T) {
    let factor = T::of(2.0 * libm::sqrt(2.0 / PI));
    let cubic = T::of(0.044_715);
    let share = sigmoid(factor * (x + cubic * x * x * x));
    (share, factor * (T::ONE + T::of(3.0) * cubic * x * x))
}

pub fn geglu<T: Element>(call: &mut Call<'_, '_, T>) {
    let (gate, up) = (call.floats(0), call.floats(1));
    for ((y, gate), up) in call.outputs[0].floats_mut().iter_mut().zip(gate).zip(up) {
        *y = *gate * gelu_share(*gate).0 * *up;
    }
}

pub fn geglu_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (gate, up) = (call.floats(1), call.floats(2));
    call.started(0);
    let [dgate, dup] = &mut *call.outputs else { panic!("geglu_grad has two outputs") };
    let outputs = dgate.floats_mut().iter_mut().zip(dup.floats_mut());
    for (((dgate, dup), gate), up) in outputs.zip(gate).zip(up) {
        let (dy, (share, slope)) = (*dgate, gelu_share(*gate));
        *dup = dy * *gate * share;
        *dgate = dy * *up * (share + *gate * share * (T::ONE - share) * slope);
    }
}

/// The share of itself that a gate of `x` passes, and the slope of that share.
fn share_of<T: Element>(activation: Activation, x: T) -> (T, T) {
    let (share, slope) = match activation {
        Activation::Silu => (sigmoid(x), T::ONE),
        Activation::Gelu => gelu_share(x),
        other => panic!("`{}` is no share of itself", other.name()),
    };
    (share, share * (T::ONE - share) * slope)
}

/// What a gate passes, and the slope of that.
fn passed<T: Element>(activation: Activation, gate: T) -> (T, T) {
    if activation == Activation::ClampedSilu {
        return newer::clamped_gate(gate);
    }
    let (share, slope) = share_of(activation, gate);
    (gate * share, share + gate * slope)
}

/// What stands beside the gate, and its slope.
fn beside<T: Element>(activation: Activation, up: T) -> (T, T) {
    if activation == Activation::ClampedSilu { newer::clamped_up(up) } else { (up, T::ONE) }
}

pub fn weighted_glu<T: Element>(call: &mut Call<'_, '_, T>, activation: Activation) {
    let (gate, up, shares) = (call.floats(0), call.floats(1), call.floats(2));
    let (_, width) = call.sizes(0);
    let rows = call.outputs[0].floats_mut().chunks_exact_mut(width).zip(shares);
    for (((y, of_row), gate), up) in rows.zip(gate.chunks_exact(width)).zip(up.chunks_exact(width)) {
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            *y = *of_row * (passed(activation, *gate).0 * beside(activation, *up).0);
        }
    }
}

pub fn weighted_glu_grad<T: Element>(call: &mut Call<'_, '_, T>, activation: Activation) {
    let (gate, up, shares) = (call.floats(1), call.floats(2), call.floats(3));
    let (_, width) = call.sizes(1);
    call.started(0);
    let [dgate, dup, dshares] = &mut *call.outputs else { panic!("a weighted gate's gradient has three outputs") };
    let rows = dgate.floats_mut().chunks_exact_mut(width).zip(dup.floats_mut().chunks_exact_mut(width));
    let rows = rows.zip(gate.chunks_exact(width)).zip(up.chunks_exact(width)).zip(shares);
    for (((((dgate, dup), gate), up), of_row), dshare) in rows.zip(dshares.floats_mut()) {
        let mut along = T::ZERO;
        for (((dgate, dup), gate), up) in dgate.iter_mut().zip(dup).zip(gate).zip(up) {
            let (dy, (passed, slope), (up, up_slope)) = (*dgate, passed(activation, *gate), beside(activation, *up));
            along += dy * passed * up;
            *dup = *of_row * dy * passed * up_slope;
            *dgate = *of_row * dy * up * slope;
        }
        *dshare = along;
    }
}

/// All floats here are of one format.
pub fn cast<T: Element>(call: &mut Call<'_, '_, T>) {
    call.started(0);
}

/// The normal distribution's share below `x`.
fn normal_share<T: Element>(x: T) -> T {
    T::of(0.5) * (T::ONE + (x * T::of(FRAC_1_SQRT_2)).erf())
}

pub fn gelu<T: Element>(call: &mut Call<'_, '_, T>) {
    let x = call.floats(0);
    for (y, x) in call.outputs[0].floats_mut().iter_mut().zip(x) {
        *y = *x * normal_share(*x);
    }
}

pub fn gelu_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let x = call.floats(1);
    let density_at_0 = T::of(1.0 / libm::sqrt(2.0 * PI));
    for (dx, x) in call.started(0).iter_mut().zip(x) {
        let density = density_at_0 * (T::of(-0.5) * *x * *x).exp();
        *dx *= normal_share(*x) + *x * density;
    }
}

pub fn gelu_tanh<T: Element>(call: &mut Call<'_, '_, T>) {
    let x = call.floats(0);
    for (y, x) in call.outputs[0].floats_mut().iter_mut().zip(x) {
        *y = *x * gelu_share(*x).0;
    }
}

pub fn gelu_tanh_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let x = call.floats(1);
    for (dx, x) in call.started(0).iter_mut().zip(x) {
        let (share, slope) = gelu_share(*x);
        *dx *= share + *x * share * (T::ONE - share) * slope;
    }
}
