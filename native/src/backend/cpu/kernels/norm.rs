//! RMSNorm and LayerNorm with their gradients. Every statistic is of one row, a token.

use pipeplan_core::graph::of_e12;

use super::super::element::{Element, dot, sum};
use super::Call;

/// What is added to the weight of a norm.
fn one_more<T: Element>(offset: bool) -> T {
    if offset { T::ONE } else { T::ZERO }
}

/// The columns of one norm of a row, which is as wide as the gain unless it has several. Then each has its own part of the
/// gain, or all have the same.
fn width_of(width: Option<u64>, gain: usize) -> usize {
    width.map_or(gain, |width| width as usize)
}

pub fn rms_norm<T: Element>(call: &mut Call<'_, '_, T>, eps_e12: u64, offset: bool, width: Option<u64>) {
    let (x, gain) = (call.floats(0), call.floats(1));
    let width = width_of(width, gain.len());
    let (eps, count, more) = (T::of(of_e12(eps_e12)), T::of(width as f64), one_more(offset));
    let [y, inverse] = &mut *call.outputs else { panic!("rms_norm has two outputs") };
    let rows = y.floats_mut().chunks_exact_mut(width).zip(inverse.floats_mut());
    let gains = gain.chunks_exact(width).cycle();
    for (((y, inverse), x), gain) in rows.zip(x.chunks_exact(width)).zip(gains) {
        *inverse = T::ONE / (dot(x, x) / count + eps).sqrt();
        for ((y, x), gain) in y.iter_mut().zip(x).zip(gain) {
            *y = *x * *inverse * (*gain + more);
        }
    }
}

pub fn rms_norm_input_grad<T: Element>(call: &mut Call<'_, '_, T>, offset: bool, width: Option<u64>) {
    let more = one_more(offset);
    let (x, inverse, gain) = (call.floats(1), call.floats(2), call.floats(3));
    let width = width_of(width, gain.len());
    let count = T::of(width as f64);
    let gains = gain.chunks_exact(width).cycle();
    let rows = call.started(0).chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(inverse);
    for (((dx, x), r), gain) in rows.zip(gains) {
        for (u, gain) in dx.iter_mut().zip(gain) {
            *u *= *gain + more;
        }
        let along = *r * *r * (dot(dx, x) / count);
        for (dx, x) in dx.iter_mut().zip(x) {
            *dx = *r * (*dx - *x * along);
        }
    }
}

pub fn rms_norm_gain_grad<T: Element>(call: &mut Call<'_, '_, T>, width: Option<u64>) {
    let (dy, x, inverse) = (call.floats(0), call.floats(1), call.floats(2));
    let gradient = call.started(3);
    let width = width_of(width, gradient.len());
    let parts = gradient.len() / width;
    for (at, ((dy, x), r)) in dy.chunks_exact(width).zip(x.chunks_exact(width)).zip(inverse).enumerate() {
        let gradient = &mut gradient[at % parts * width..(at % parts + 1) * width];
        for ((gradient, dy), x) in gradient.iter_mut().zip(dy).zip(x) {
            *gradient += *dy * *x * *r;
        }
    }
}

pub fn layer_norm<T: Element>(call: &mut Call<'_, '_, T>, eps_e12: u64) {
    let (x, gain, bias) = (call.floats(0), call.floats(1), call.floats(2));
    let width = gain.len();
    let (eps, count) = (T::of(of_e12(eps_e12)), T::of(width as f64));
    let [y, mean, inverse] = &mut *call.outputs else { panic!("layer_norm has three outputs") };
    let rows = y.floats_mut().chunks_exact_mut(width).zip(mean.floats_mut()).zip(inverse.floats_mut());
    for (((y, mean), inverse), x) in rows.zip(x.chunks_exact(width)) {
        *mean = sum(x) / count;
        for (centred, x) in y.iter_mut().zip(x) {
            *centred = *x - *mean;
        }
        *inverse = T::ONE / (dot(y, y) / count + eps).sqrt();
        for ((y, gain), bias) in y.iter_mut().zip(gain).zip(bias) {
            *y = *y * *inverse * *gain + *bias;
        }
    }
}

pub fn layer_norm_input_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, mean, inverse, gain) = (call.floats(1), call.floats(2), call.floats(3), call.floats(4));
    let width = gain.len();
    let count = T::of(width as f64);
    let rows = call.started(0).chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(mean).zip(inverse);
    for (((dx, x), mean), r) in rows {
        for (u, gain) in dx.iter_mut().zip(gain) {
            *u *= *gain;
        }
        let level = sum(dx) / count;
        let mut along = T::ZERO;
        for (u, x) in dx.iter().zip(x) {
            along += *u * ((*x - *mean) * *r);
        }
        let along = along / count;
        for (dx, x) in dx.iter_mut().zip(x) {
            *dx = *r * (*dx - level - (*x - *mean) * *r * along);
        }
    }
}

pub fn layer_norm_gain_grad<T: Element>(call: &mut Call<'_, '_, T>) {
    let (dy, x, mean, inverse) = (call.floats(0), call.floats(1), call.floats(2), call.floats(3));
    let gradient = call.started(4);
    let width = gradient.len();
    for (((dy, x), mean), r) in dy.chunks_exact(width).zip(x.chunks_exact(width)).zip(mean).zip(inverse) {
        for ((gradient, dy), x) in gradient.iter_mut().zip(dy).zip(x) {
            *gradient += *dy * (*x - *mean) * *r;
        }
    }
}
