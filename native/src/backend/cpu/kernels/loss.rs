//! Cross-entropy over the vocabulary.

use pipeplan_core::graph::of_e12;

use super::super::element::{Element, sum};
use super::Call;

/// Exponentials worked out side by side.
const CHUNK: usize = 64;

/// What losses of `rows` tokens are divided by. `divisor` is there where some targets are not to be predicted.
fn divided_by(rows: usize, microbatches: u64, divisor: Option<f64>) -> f64 {
    divisor.unwrap_or(rows as f64 * microbatches as f64)
}

/// Whether a target is not to be predicted: −1 is a column of another member.
const fn is_ignored(target: i32) -> bool {
    target < -1
}

/// `divisor` is there where some targets are not to be predicted, which are below −1.
pub fn cross_entropy<T: Element>(call: &mut Call<'_, '_, T>, microbatches: u64, divisor: Option<f64>) {
    let (logits, targets) = (call.floats(0), call.tokens(1));
    let (rows, vocab) = call.sizes(0);
    let [loss, log_sums] = &mut *call.outputs else { panic!("cross_entropy has two outputs") };
    // In 64 bits: a sum of thousands of losses in 32 is right to six digits.
    let mut total = 0.0;
    for ((row, target), log_sum) in logits.chunks_exact(vocab).zip(targets).zip(log_sums.floats_mut()) {
        // Less the greatest, no exponential overflows.
        let greatest = greatest(row);
        *log_sum = greatest + exp_sum(row, greatest).ln();
        if let Ok(target) = usize::try_from(*target) {
            total += log_sum.wide() - row[target].wide();
        }
    }
    loss.floats_mut()[0] = T::of(total / divided_by(rows, microbatches, divisor));
}

fn greatest<T: Element>(row: &[T]) -> T {
    row.iter().fold(T::LOWEST, |greatest, logit| greatest.greater(*logit))
}

/// Σ exp(`row[j]` − `greatest`)
fn exp_sum<T: Element>(row: &[T], greatest: T) -> T {
    let mut total = T::ZERO;
    for logits in row.chunks(CHUNK) {
        let mut shares = [T::ZERO; CHUNK];
        for (share, logit) in shares.iter_mut().zip(logits) {
            *share = (*logit - greatest).exp();
        }
        total += sum(&shares);
    }
    total
}

pub fn hide_padding<T: Element>(call: &mut Call<'_, '_, T>, vocab: u64, member: u64) {
    let (_, columns) = call.sizes(0);
    let shown = vocab.saturating_sub(member * columns as u64).min(columns as u64) as usize;
    for row in call.started(0).chunks_exact_mut(columns) {
        row[shown..].fill(T::LOWEST);
    }
}

pub fn row_max<T: Element>(call: &mut Call<'_, '_, T>) {
    let (_, columns) = call.sizes(0);
    let logits = call.floats(0);
    for (most, row) in call.outputs[0].floats_mut().iter_mut().zip(logits.chunks_exact(columns)) {
        *most = greatest(row);
    }
}

pub fn exp_sums<T: Element>(call: &mut Call<'_, '_, T>) {
    let (_, columns) = call.sizes(0);
    let (logits, most, targets) = (call.floats(0), call.floats(1), call.tokens(2));
    let (sums, _) = call.outputs[0].floats_mut().as_chunks_mut::<2>();
    for (((sums, row), most), target) in sums.iter_mut().zip(logits.chunks_exact(columns)).zip(most).zip(targets) {
        let own = usize::try_from(*target).map_or(T::ZERO, |target| row[target]);
        let sum = exp_sum(row, *most);
        // The last step sees no targets: a sum below 0 tells it that this one does not count.
        *sums = [if is_ignored(*target) { T::ZERO - sum } else { sum }, own];
    }
}

/// `divisor` is there where some targets are not to be predicted: their sums are below 0.
pub fn shared_cross_entropy<T: Element>(call: &mut Call<'_, '_, T>, microbatches: u64, divisor: Option<f64>) {
    let (most, sums) = (call.floats(0), call.floats(1));
    let [loss, log_sums] = &mut *call.outputs else { panic!("shared_cross_entropy has two outputs") };
    let mut total = 0.0;
    let (pairs, _) = sums.as_chunks::<2>();
    for (([share, target], most), log_sum) in pairs.iter().zip(most).zip(log_sums.floats_mut()) {
        if *share < T::ZERO {
            *log_sum = *most + (T::ZERO - *share).ln();
            continue;
        }
        *log_sum = *most + share.ln();
        total += log_sum.wide() - target.wide();
    }
    loss.floats_mut()[0] = T::of(total / divided_by(most.len(), microbatches, divisor));
}

pub fn cross_entropy_grad<T: Element>(
    call: &mut Call<'_, '_, T>,
    microbatches: u64,
    weight_e12: u64,
    divisor: Option<f64>,
) {
    let (targets, log_sums) = (call.tokens(1), call.floats(2));
    let (rows, vocab) = call.sizes(0);
    let share = T::of(of_e12(weight_e12)) / T::of(divided_by(rows, microbatches, divisor));
    for ((row, target), log_sum) in call.started(0).chunks_exact_mut(vocab).zip(targets).zip(log_sums) {
        if divisor.is_some() && is_ignored(*target) {
            row.fill(T::ZERO);
            continue;
        }
        for logit in row.iter_mut() {
            *logit = (*logit - *log_sum).exp() * share;
        }
        // The target's column is another member's where it is −1.
        if let Some(target) = usize::try_from(*target).ok().and_then(|target| row.get_mut(target)) {
            *target = *target - share;
        }
    }
}
