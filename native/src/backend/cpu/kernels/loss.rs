//! Cross-entropy over the vocabulary.

use super::super::element::{Element, sum};
use super::Call;

/// Exponentials worked out side by side.
const CHUNK: usize = 64;

fn weight<T: Element>(rows: usize, microbatches: u64) -> T {
    T::of(rows as f64 * microbatches as f64)
}

pub fn cross_entropy<T: Element>(call: &mut Call<'_, '_, T>, microbatches: u64) {
    let (logits, targets) = (call.floats(0), call.tokens(1));
    let (rows, vocab) = call.sizes(0);
    let [loss, log_sums] = &mut *call.outputs else { panic!("cross_entropy has two outputs") };
    let mut total = T::ZERO;
    for ((row, target), log_sum) in logits.chunks_exact(vocab).zip(targets).zip(log_sums.floats_mut()) {
        // Less the greatest, no exponential overflows.
        let greatest = row.iter().fold(T::LOWEST, |greatest, logit| greatest.greater(*logit));
        let mut total_share = T::ZERO;
        for logits in row.chunks(CHUNK) {
            let mut shares = [T::ZERO; CHUNK];
            for (share, logit) in shares.iter_mut().zip(logits) {
                *share = (*logit - greatest).exp();
            }
            total_share += sum(&shares);
        }
        *log_sum = greatest + total_share.ln();
        total += *log_sum - row[*target as usize];
    }
    loss.floats_mut()[0] = total / weight(rows, microbatches);
}

pub fn cross_entropy_grad<T: Element>(call: &mut Call<'_, '_, T>, microbatches: u64) {
    let (targets, log_sums) = (call.tokens(1), call.floats(2));
    let (rows, vocab) = call.sizes(0);
    let share = T::ONE / weight(rows, microbatches);
    for ((row, target), log_sum) in call.started(0).chunks_exact_mut(vocab).zip(targets).zip(log_sums) {
        for logit in row.iter_mut() {
            *logit = (*logit - *log_sum).exp() * share;
        }
        let target = &mut row[*target as usize];
        *target = *target - share;
    }
}
