//! Gated delta nets and Mamba 2, token by token: exact, and in the order of time. What public kernels do in chunks is the same
//! in another order of sums.
//!
//! A head has a state of keys by values. Delta net, with `k̂ = k/√(Σk² + ε)`, `q̂` likewise over `√d`,
//! `g = exp(−exp(decay) · softplus(steps + bias))` and `β = σ(rates)`: `S ← g S`, `S ← S + k̂ ⊗ β (v − Sᵀ k̂)`, `o = Sᵀ q̂`.
//! Mamba 2, with `δ = softplus(steps + bias)` and `g = exp(−exp(decay) · δ)`: `S ← g S + δ B ⊗ x`, `o = Sᵀ C + skip · x`.
//!
//! Sources: arXiv:2412.06464 §3, arXiv:2405.21060 §6; the `ε` of Qwen3-Next's own code.

use pipeplan_core::graph::Recurring;
use pipeplan_core::model::RecurrenceKind;

use super::super::element::{Element, dot};
use super::Call;
use super::elementwise::sigmoid;
use super::newer::softplus;

/// What the squares of a query or key have added before their root.
const EPSILON: f64 = 1e-6;

/// The inputs of a recurrence, in the order of its kernel.
struct Streams<'a, T> {
    of: Recurring,
    queries: &'a [T],
    keys: &'a [T],
    values: &'a [T],
    steps: &'a [T],
    /// Of a delta net.
    rates: Option<&'a [T]>,
    decay: &'a [T],
    bias: &'a [T],
    /// Of Mamba 2.
    skip: Option<&'a [T]>,
}

/// One token of one head.
struct Token<'a, T> {
    query: Vec<T>,
    key: Vec<T>,
    value: &'a [T],
    /// What query and key were multiplied with.
    lengths: [T; 2],
    /// What is under the softplus, and what it gives.
    under: T,
    step: T,
    /// The logarithm of what stays of the state, and that.
    log_kept: T,
    kept: T,
    /// How much of a correction is written.
    rate: T,
}

impl<'a, T: Element> Streams<'a, T> {
    /// From the inputs of `call` behind the first `first`.
    fn of(call: &Call<'a, '_, T>, first: usize, of: Recurring) -> Streams<'a, T> {
        let is_delta_net = of.kind == RecurrenceKind::DeltaNet;
        let weights = first + if is_delta_net { 5 } else { 4 };
        let input = |at: usize| call.floats(at);
        Streams {
            of,
            queries: input(first),
            keys: input(first + 1),
            values: input(first + 2),
            steps: input(first + 3),
            rates: is_delta_net.then(|| input(first + 4)),
            decay: input(weights),
            bias: input(weights + 1),
            skip: (!is_delta_net).then(|| input(weights + 2)),
        }
    }

    fn heads(&self) -> usize {
        self.of.heads as usize
    }

    /// Where the numbers of keys of `row` and `head` lie.
    fn of_key(&self, row: usize, head: usize) -> std::ops::Range<usize> {
        let (groups, width) = (self.of.key_heads as usize, self.of.key_width as usize);
        let start = (row * groups + head / (self.heads() / groups)) * width;
        start..start + width
    }

    /// The same of values.
    fn of_value(&self, row: usize, head: usize) -> std::ops::Range<usize> {
        let width = self.of.width as usize;
        let start = (row * self.heads() + head) * width;
        start..start + width
    }

    fn token(&self, row: usize, head: usize) -> Token<'a, T> {
        let at = row * self.heads() + head;
        let (query, key) = (&self.queries[self.of_key(row, head)], &self.keys[self.of_key(row, head)]);
        let lengths = match self.of.kind {
            RecurrenceKind::DeltaNet => {
                let length = |x: &[T]| T::ONE / (dot(x, x) + T::of(EPSILON)).sqrt();
                [length(query), length(key)]
            }
            RecurrenceKind::Mamba2 => [T::ONE; 2],
        };
        let scaled = |x: &[T], scale: T| x.iter().map(|x| *x * scale).collect();
        let under = self.steps[at] + self.bias[head];
        let step = softplus(under);
        let log_kept = -(self.decay[head].exp() * step);
        Token {
            query: scaled(query, lengths[0] * self.query_scale()),
            key: scaled(key, lengths[1]),
            value: &self.values[self.of_value(row, head)],
            lengths,
            under,
            step,
            log_kept,
            kept: log_kept.exp(),
            rate: self.rates.map_or(T::ONE, |rates| sigmoid(rates[at])),
        }
    }

    /// What queries are multiplied with beside their length.
    fn query_scale(&self) -> T {
        match self.of.kind {
            RecurrenceKind::DeltaNet => T::ONE / T::of(self.of.key_width as f64).sqrt(),
            RecurrenceKind::Mamba2 => T::ONE,
        }
    }

    /// What is written to the state under the key, once `state` has decayed.
    fn written(&self, token: &Token<'a, T>, state: &[T]) -> Vec<T> {
        match self.of.kind {
            RecurrenceKind::DeltaNet => {
                let recalled = read(state, &token.key);
                token.value.iter().zip(recalled).map(|(value, recalled)| token.rate * (*value - recalled)).collect()
            }
            RecurrenceKind::Mamba2 => token.value.iter().map(|value| token.step * *value).collect(),
        }
    }

    /// `state` after `token`.
    fn advance(&self, token: &Token<'a, T>, state: &mut [T]) {
        state.iter_mut().for_each(|number| *number *= token.kept);
        let written = self.written(token, state);
        add_product(state, &token.key, &written);
    }
}

/// `Sᵀ x` of a state with as many rows as `x`.
fn read<T: Element>(state: &[T], x: &[T]) -> Vec<T> {
    let width = state.len() / x.len().max(1);
    let mut sum = vec![T::ZERO; width];
    for (row, x) in state.chunks_exact(width).zip(x) {
        sum.iter_mut().zip(row).for_each(|(sum, number)| *sum += *number * *x);
    }
    sum
}

/// `S y`, a number for each row.
fn read_rows<'a, T: Element>(state: &'a [T], y: &'a [T]) -> impl Iterator<Item = T> + 'a {
    state.chunks_exact(y.len()).map(|row| dot(row, y))
}

/// Adds `x ⊗ y` to a state.
fn add_product<T: Element>(state: &mut [T], x: &[T], y: &[T]) {
    for (row, x) in state.chunks_exact_mut(y.len()).zip(x) {
        row.iter_mut().zip(y).for_each(|(number, y)| *number += *x * *y);
    }
}

pub fn recurrence<T: Element>(call: &mut Call<'_, '_, T>, of: Recurring) {
    let streams = Streams::of(call, 0, of);
    let (rows, state) = (streams.steps.len() / streams.heads(), (of.key_width * of.width) as usize);
    let [output, between] = &mut *call.outputs else { panic!("recurrence has two outputs") };
    let (output, between) = (output.floats_mut(), between.floats_mut());
    between.fill(T::ZERO);
    let per_sequence = (of.sequence.div_ceil(of.chunk()) * of.heads) as usize;
    for head in 0..streams.heads() {
        let mut current = vec![T::ZERO; state];
        for row in 0..rows {
            let (sequence, position) = (row / of.sequence as usize, row % of.sequence as usize);
            if position == 0 {
                current.fill(T::ZERO);
            }
            if position.is_multiple_of(of.chunk() as usize) {
                let chunk = position / of.chunk() as usize;
                let at = (sequence * per_sequence + chunk * streams.heads() + head) * state;
                between[at..at + state].copy_from_slice(&current);
            }
            let token = streams.token(row, head);
            streams.advance(&token, &mut current);
            let skip = streams.skip.map_or(T::ZERO, |skip| skip[head]);
            let read = read(&current, &token.query);
            for ((output, read), value) in output[streams.of_value(row, head)].iter_mut().zip(read).zip(token.value) {
                *output = read + skip * *value;
            }
        }
    }
}

/// The gradients of one token, to be added where they lie.
struct Slopes<T> {
    query: Vec<T>,
    key: Vec<T>,
    value: Vec<T>,
    steps: T,
    rates: T,
    decay: T,
    skip: T,
}

impl<'a, T: Element> Streams<'a, T> {
    /// The gradients of `token`, between the states `before` and `after`. `slope` is the gradient of the state after it, and
    /// becomes that of the state before it.
    fn slopes(
        &self,
        token: &Token<'a, T>,
        dy: &[T],
        [before, after]: [&[T]; 2],
        slope: &mut [T],
        head: usize,
    ) -> Slopes<T> {
        let skip = self.skip.map_or(T::ZERO, |skip| skip[head]);
        let query: Vec<T> = read_rows(after, dy).collect();
        add_product(slope, &token.query, dy);
        let decayed: Vec<T> = before.iter().map(|number| *number * token.kept).collect();
        let written = self.written(token, &decayed);
        let of_written = read(slope, &token.key);
        let mut key: Vec<T> = read_rows(slope, &written).collect();
        let mut value: Vec<T> = dy.iter().map(|dy| *dy * skip).collect();
        let (mut of_step, mut rates) = (T::ZERO, T::ZERO);
        match self.of.kind {
            RecurrenceKind::DeltaNet => {
                let recalled = read(&decayed, &token.key);
                let missed: Vec<T> =
                    token.value.iter().zip(&recalled).map(|(value, recalled)| *value - *recalled).collect();
                rates = dot(&of_written, &missed) * token.rate * (T::ONE - token.rate);
                let of_missed: Vec<T> = of_written.iter().map(|slope| *slope * token.rate).collect();
                value.iter_mut().zip(&of_missed).for_each(|(value, slope)| *value += *slope);
                let of_recalled: Vec<T> = of_missed.iter().map(|slope| -*slope).collect();
                key.iter_mut().zip(read_rows(&decayed, &of_recalled)).for_each(|(key, more)| *key += more);
                add_product(slope, &token.key, &of_recalled);
            }
            RecurrenceKind::Mamba2 => {
                of_step = dot(&of_written, token.value);
                value.iter_mut().zip(&of_written).for_each(|(value, slope)| *value += token.step * *slope);
            }
        }
        let of_log = dot(slope, before) * token.kept;
        slope.iter_mut().for_each(|slope| *slope *= token.kept);
        of_step += -(of_log * self.decay[head].exp());
        Slopes {
            query: self.of_length(query, &token.query, token.lengths[0], self.query_scale()),
            key: self.of_length(key, &token.key, token.lengths[1], T::ONE),
            value,
            steps: of_step * sigmoid(token.under),
            rates,
            decay: of_log * token.log_kept,
            skip: dot(dy, token.value),
        }
    }

    /// The gradient of what `normed` was before its length became `scale`.
    fn of_length(&self, slope: Vec<T>, normed: &[T], length: T, scale: T) -> Vec<T> {
        if self.of.kind == RecurrenceKind::Mamba2 {
            return slope;
        }
        let along = dot(&slope, normed) / (scale * scale);
        slope.iter().zip(normed).map(|(slope, normed)| length * scale * (*slope - *normed * along)).collect()
    }
}

pub fn recurrence_grad<T: Element>(call: &mut Call<'_, '_, T>, of: Recurring) {
    let (dy, streams) = (call.floats(0), Streams::of(call, 1, of));
    let (heads, size) = (streams.heads(), (of.key_width * of.width) as usize);
    let (rows, length) = (streams.steps.len() / heads, of.sequence as usize);
    let mut outputs: Vec<&mut [T]> = call.outputs.iter_mut().map(|output| output.floats_mut()).collect();
    outputs.iter_mut().for_each(|output| output.fill(T::ZERO));
    let is_delta_net = of.kind == RecurrenceKind::DeltaNet;
    for (head, first) in (0..heads).flat_map(|head| (0..rows).step_by(length).map(move |first| (head, first))) {
        let last = (first + length).min(rows);
        let tokens: Vec<Token<'_, T>> = (first..last).map(|row| streams.token(row, head)).collect();
        // The state before each token, and the last one.
        let mut states = vec![vec![T::ZERO; size]];
        for token in &tokens {
            let mut next = states[states.len() - 1].clone();
            streams.advance(token, &mut next);
            states.push(next);
        }
        let mut slope = vec![T::ZERO; size];
        for (at, token) in tokens.iter().enumerate().rev() {
            let row = first + at;
            let around = [&states[at][..], &states[at + 1][..]];
            let slopes = streams.slopes(token, &dy[streams.of_value(row, head)], around, &mut slope, head);
            for (output, range, slopes) in [
                (0, streams.of_key(row, head), &slopes.query),
                (1, streams.of_key(row, head), &slopes.key),
                (2, streams.of_value(row, head), &slopes.value),
            ] {
                outputs[output][range].iter_mut().zip(slopes).for_each(|(sum, slope)| *sum += *slope);
            }
            let by_head = row * heads + head;
            outputs[3][by_head] = slopes.steps;
            outputs[4][by_head] = if is_delta_net { slopes.rates } else { slopes.decay };
            outputs[5][by_head] = if is_delta_net { slopes.decay } else { slopes.skip };
        }
    }
}
