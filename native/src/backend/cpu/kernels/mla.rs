//! Latent attention: columns that go apart and together, and keys of which all heads share a part.

use super::super::element::Element;
use super::Call;

pub fn split_columns<T: Element>(call: &mut Call<'_, '_, T>) {
    let (x, (rows, width)) = (call.floats(0), call.sizes(0));
    let [left, right] = &mut *call.outputs else { panic!("split_columns has two outputs") };
    let (left, right) = (left.floats_mut(), right.floats_mut());
    let first = left.len() / rows.max(1);
    let outputs = left.chunks_exact_mut(first).zip(right.chunks_exact_mut(width - first));
    for ((left, right), x) in outputs.zip(x.chunks_exact(width)) {
        left.copy_from_slice(&x[..first]);
        right.copy_from_slice(&x[first..]);
    }
}

pub fn join_columns<T: Element>(call: &mut Call<'_, '_, T>) {
    let (left, right) = (call.floats(0), call.floats(1));
    let ((_, first), (_, second)) = (call.sizes(0), call.sizes(1));
    let inputs = left.chunks_exact(first).zip(right.chunks_exact(second));
    for (x, (left, right)) in call.outputs[0].floats_mut().chunks_exact_mut(first + second).zip(inputs) {
        x[..first].copy_from_slice(left);
        x[first..].copy_from_slice(right);
    }
}

pub fn latent_keys<T: Element>(call: &mut Call<'_, '_, T>, heads: usize) {
    let (up, rotated) = (call.floats(0), call.floats(1));
    let ((rows, own), (_, shared)) = (call.sizes(0), call.sizes(1));
    let [k, v] = &mut *call.outputs else { panic!("latent_keys has two outputs") };
    let (k, v) = (k.floats_mut(), v.floats_mut());
    let (own, width) = (own / heads, k.len() / (rows * heads).max(1));
    let first = width - shared;
    let keys = k.chunks_exact_mut(width).zip(v.chunks_exact_mut(own - first)).zip(up.chunks_exact(own));
    for (index, ((k, v), up)) in keys.enumerate() {
        let row = index / heads;
        k[..first].copy_from_slice(&up[..first]);
        k[first..].copy_from_slice(&rotated[row * shared..(row + 1) * shared]);
        v.copy_from_slice(&up[first..]);
    }
}

pub fn latent_keys_grad<T: Element>(call: &mut Call<'_, '_, T>, heads: usize) {
    let (dk, dv) = (call.floats(0), call.floats(1));
    let ((rows, width), (_, value)) = (call.sizes(0), call.sizes(1));
    let (width, value) = (width / heads, value / heads);
    let [dup, drotated] = &mut *call.outputs else { panic!("latent_keys_grad has two outputs") };
    let (dup, drotated) = (dup.floats_mut(), drotated.floats_mut());
    let shared = drotated.len() / rows.max(1);
    let first = width - shared;
    drotated.fill(T::ZERO);
    let keys = dup.chunks_exact_mut(first + value).zip(dk.chunks_exact(width)).zip(dv.chunks_exact(value));
    for (index, ((dup, dk), dv)) in keys.enumerate() {
        let row = index / heads;
        dup[..first].copy_from_slice(&dk[..first]);
        dup[first..].copy_from_slice(dv);
        let sum = &mut drotated[row * shared..(row + 1) * shared];
        sum.iter_mut().zip(&dk[first..]).for_each(|(sum, more)| *sum += *more);
    }
}
