//! RMSNorm and LayerNorm with their gradients. Every statistic is of one row, a token.

use pipeplan_core::graph::of_e12;

use super::super::element::{Element, dot, sum};
use super::Call;

/// What is added to the weight of a norm.
fn one_more<T: Element>(offset: bool) -> T {
    if offset { T::ONE } else { T::ZERO }
}

/// The columns of one norm of a row, which is the `whole` row unless it has several. Then each has its own part of the
/// gain, or all have the same.
fn width_of(width: Option<u64>, whole: usize) -> usize {
    width.map_or(whole, |width| width as usize)
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

/// The part `at` of the weights of a norm of `width` columns: each part of a row has its own, or all have the same.
fn part<T>(weights: Option<&[T]>, at: usize, width: usize) -> Option<&[T]> {
    let weights = weights?;
    let first = at * width % weights.len();
    Some(&weights[first..first + width])
}

/// Rows are normed as wholes unless `width` says of how many columns each norm is. Gain and bias may be absent.
pub fn layer_norm<T: Element>(call: &mut Call<'_, '_, T>, eps_e12: u64, offset: bool, width: Option<u64>) {
    let x = call.floats(0);
    let [gain, bias] = [1, 2].map(|at| (call.inputs.len() > at).then(|| call.floats(at)));
    let width = width_of(width, call.sizes(0).1);
    let (eps, count, more) = (T::of(of_e12(eps_e12)), T::of(width as f64), one_more(offset));
    let [y, mean, inverse] = &mut *call.outputs else { panic!("layer_norm has three outputs") };
    let rows = y.floats_mut().chunks_exact_mut(width).zip(mean.floats_mut()).zip(inverse.floats_mut());
    for (at, (((y, mean), inverse), x)) in rows.zip(x.chunks_exact(width)).enumerate() {
        *mean = sum(x) / count;
        for (centred, x) in y.iter_mut().zip(x) {
            *centred = *x - *mean;
        }
        *inverse = T::ONE / (dot(y, y) / count + eps).sqrt();
        y.iter_mut().for_each(|y| *y *= *inverse);
        if let Some(gain) = part(gain, at, width) {
            y.iter_mut().zip(gain).for_each(|(y, gain)| *y *= *gain + more);
        }
        if let Some(bias) = part(bias, at, width) {
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += *bias);
        }
    }
}

pub fn layer_norm_input_grad<T: Element>(call: &mut Call<'_, '_, T>, offset: bool, width: Option<u64>) {
    let (x, mean, inverse) = (call.floats(1), call.floats(2), call.floats(3));
    let gain = (call.inputs.len() > 4).then(|| call.floats(4));
    let width = width_of(width, call.sizes(1).1);
    let (count, more) = (T::of(width as f64), one_more(offset));
    let rows = call.started(0).chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(mean).zip(inverse);
    for (at, (((dx, x), mean), r)) in rows.enumerate() {
        if let Some(gain) = part(gain, at, width) {
            dx.iter_mut().zip(gain).for_each(|(u, gain)| *u *= *gain + more);
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

pub fn layer_norm_gain_grad<T: Element>(call: &mut Call<'_, '_, T>, width: Option<u64>) {
    let (dy, x, mean, inverse) = (call.floats(0), call.floats(1), call.floats(2), call.floats(3));
    let gradient = call.started(4);
    let width = width_of(width, gradient.len());
    let parts = gradient.len() / width;
    let rows = dy.chunks_exact(width).zip(x.chunks_exact(width)).zip(mean).zip(inverse);
    for (at, (((dy, x), mean), r)) in rows.enumerate() {
        let gradient = &mut gradient[at % parts * width..(at % parts + 1) * width];
        for ((gradient, dy), x) in gradient.iter_mut().zip(dy).zip(x) {
            *gradient += *dy * (*x - *mean) * *r;
        }
    }
}
