//! Every gradient kernel against central differences of its forward kernel, in `f64`; every kernel that may
//! run in place against itself out of place.

use pipeplan_core::graph::form::RouterLosses;
use pipeplan_core::graph::{Angles, Heads, Kernel, Recurring};
use pipeplan_core::model::{Activation, E12, RecurrenceKind, Scores};

use super::super::gemm::Tuned;
use super::*;
use crate::runner::random::SplitMix64;

/// A tensor of a test.
#[derive(Clone)]
struct Tensor {
    shape: Vec<u64>,
    data: Data<f64>,
}

impl Tensor {
    fn zeros(shape: &[u64]) -> Tensor {
        let elements = shape.iter().product::<u64>() as usize;
        Tensor { shape: shape.to_vec(), data: Data::Floats(vec![0.0; elements]) }
    }

    fn random(shape: &[u64], seed: u64) -> Tensor {
        let mut tensor = Tensor::zeros(shape);
        let mut random = SplitMix64::new(seed);
        tensor.data.floats_mut().iter_mut().for_each(|value| *value = random.normal());
        tensor
    }

    fn tokens(tokens: &[i32]) -> Tensor {
        Tensor { shape: vec![tokens.len() as u64], data: Data::Tokens(tokens.to_vec()) }
    }
}

/// The outputs of `kernel`, of these shapes.
fn run_kernel(kernel: Kernel, inputs: &[&Tensor], outputs: &[&[u64]]) -> Vec<Tensor> {
    let outputs: Vec<Tensor> = outputs.iter().map(|shape| Tensor::zeros(shape)).collect();
    run_as(0, kernel, inputs, outputs)
}

/// What `kernel` makes of `outputs` on the device with the number `member` of the tensor-parallel ranks.
fn run_as(member: u64, kernel: Kernel, inputs: &[&Tensor], outputs: Vec<Tensor>) -> Vec<Tensor> {
    let mut context = Context::new(Box::new(Tuned));
    context.member = member;
    run_with(&mut context, kernel, inputs, outputs)
}

/// What `kernel` makes of `outputs` in `context`.
fn run_with(context: &mut Context<f64>, kernel: Kernel, inputs: &[&Tensor], outputs: Vec<Tensor>) -> Vec<Tensor> {
    let inputs: Vec<Input<'_, f64>> =
        inputs.iter().map(|tensor| Input { shape: &tensor.shape, data: Some(&tensor.data) }).collect();
    let (shapes, mut data): (Vec<Vec<u64>>, Vec<Data<f64>>) =
        outputs.into_iter().map(|tensor| (tensor.shape, tensor.data)).unzip();
    run(context, &kernel, &inputs, &mut data);
    data.into_iter().zip(shapes).map(|(data, shape)| Tensor { shape, data }).collect()
}

/// Σ `weights ∘ y`, `y` being output 0 of `kernel`.
fn score(kernel: Kernel, inputs: &[Tensor], outputs: &[&[u64]], weights: &Tensor) -> f64 {
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let y = &run_kernel(kernel, &inputs, outputs)[0];
    y.data.floats().iter().zip(weights.data.floats()).map(|(y, weight)| y * weight).sum()
}

/// Compares `gradient` with the change of [`score`] as input `which` changes, element by element (at most
/// 60 of them).
fn assert_gradient(
    kernel: Kernel,
    inputs: &[&Tensor],
    outputs: &[&[u64]],
    weights: &Tensor,
    which: usize,
    gradient: &Tensor,
) {
    let gradient = gradient.data.floats();
    let mut inputs: Vec<Tensor> = inputs.iter().map(|tensor| (*tensor).clone()).collect();
    assert_eq!(inputs[which].data.floats().len(), gradient.len());
    // The error of a central difference grows with h² and with rounding / h.
    const H: f64 = 1e-5;
    for index in (0..gradient.len()).step_by(gradient.len().div_ceil(60)) {
        let mut at = |offset: f64| {
            inputs[which].data.floats_mut()[index] += offset;
            let score = score(kernel, &inputs, outputs, weights);
            inputs[which].data.floats_mut()[index] -= offset;
            score
        };
        let difference = (at(H) - at(-H)) / (2.0 * H);
        let error = (difference - gradient[index]).abs() / (1.0 + difference.abs());
        assert!(error < 1e-7, "{} input {which} element {index}: {difference} {}", kernel.name(), gradient[index]);
    }
}

/// The same with output 0 in the buffer of input `position`.
fn assert_in_place(kernel: Kernel, inputs: &[&Tensor], outputs: &[&[u64]]) {
    let expected = run_kernel(kernel, inputs, outputs);
    assert!(!kernel.may_run_in_place_of().is_empty());
    for position in kernel.may_run_in_place_of() {
        let position = *position as usize;
        let mut data: Vec<Data<f64>> = outputs.iter().map(|shape| Tensor::zeros(shape).data).collect();
        data[0] = inputs[position].data.clone();
        let inputs: Vec<Input<'_, f64>> = inputs
            .iter()
            .enumerate()
            .map(|(at, tensor)| Input { shape: &tensor.shape, data: (at != position).then_some(&tensor.data) })
            .collect();
        run(&mut Context::new(Box::new(Tuned)), &kernel, &inputs, &mut data);
        for (output, expected) in data.iter().zip(&expected) {
            assert_eq!(output, &expected.data, "{} in place of input {position}", kernel.name());
        }
    }
}

#[test]
fn linear_layers() {
    let (x, w, dy) = (Tensor::random(&[5, 3], 1), Tensor::random(&[4, 3], 2), Tensor::random(&[5, 4], 3));
    let forward = Kernel::MatMul { transpose_a: false, transpose_b: true, accumulate: false };
    let dx = Kernel::MatMul { transpose_a: false, transpose_b: false, accumulate: false };
    let dx = &run_kernel(dx, &[&dy, &w], &[&[5, 3]])[0];
    assert_gradient(forward, &[&x, &w], &[&[5, 4]], &dy, 0, dx);
    let dw = Kernel::MatMul { transpose_a: true, transpose_b: false, accumulate: true };
    let gathered = &run_kernel(dw, &[&dy, &x, &Tensor::zeros(&[4, 3])], &[&[4, 3]])[0];
    assert_gradient(forward, &[&x, &w], &[&[5, 4]], &dy, 1, gathered);
    assert_in_place(dw, &[&dy, &x, &Tensor::random(&[4, 3], 4)], &[&[4, 3]]);
    // Accumulating twice gives the sum.
    let twice = &run_kernel(dw, &[&dy, &x, gathered], &[&[4, 3]])[0];
    for (twice, once) in twice.data.floats().iter().zip(gathered.data.floats()) {
        assert!((twice - 2.0 * once).abs() < 1e-12);
    }
}

#[test]
fn embeddings() {
    let (tokens, table) = (Tensor::tokens(&[2, 0, 2, 4]), Tensor::random(&[5, 3], 1));
    let dy = Tensor::random(&[4, 3], 2);
    let gradient = &run_kernel(Kernel::EmbeddingGrad, &[&dy, &tokens, &Tensor::zeros(&[5, 3])], &[&[5, 3]])[0];
    assert_gradient(Kernel::Embedding, &[&tokens, &table], &[&[4, 3]], &dy, 1, gradient);
}

#[test]
fn learned_positions() {
    let kernel = Kernel::Positions { sequence: 2, ways: 1 };
    // A table may have more positions than a sequence.
    let (x, table, dy) = (Tensor::random(&[4, 3], 1), Tensor::random(&[3, 3], 2), Tensor::random(&[4, 3], 3));
    let gradient = Kernel::PositionsGrad { sequence: 2, ways: 1 };
    let gradient = &run_kernel(gradient, &[&dy, &Tensor::zeros(&[3, 3])], &[&[3, 3]])[0];
    assert_gradient(kernel, &[&x, &table], &[&[4, 3]], &dy, 1, gradient);
    assert_gradient(kernel, &[&x, &table], &[&[4, 3]], &dy, 0, &dy);
    assert_in_place(kernel, &[&x, &table], &[&[4, 3]]);
}

#[test]
fn rms_norm() {
    let kernel = Kernel::RmsNorm { eps_e12: 10_000_000, offset: false };
    let (x, gain, dy) = (Tensor::random(&[3, 11], 1), Tensor::random(&[11], 2), Tensor::random(&[3, 11], 3));
    let outputs: [&[u64]; 2] = [&[3, 11], &[3]];
    let inverse = run_kernel(kernel, &[&x, &gain], &outputs).remove(1);
    let inputs = [&dy, &x, &inverse, &gain];
    let dx = &run_kernel(Kernel::RmsNormInputGrad { offset: false }, &inputs, &[&[3, 11]])[0];
    assert_gradient(kernel, &[&x, &gain], &outputs, &dy, 0, dx);
    assert_in_place(Kernel::RmsNormInputGrad { offset: false }, &inputs, &[&[3, 11]]);
    let dgain = &run_kernel(Kernel::RmsNormGainGrad, &[&dy, &x, &inverse, &Tensor::zeros(&[11])], &[&[11]])[0];
    assert_gradient(kernel, &[&x, &gain], &outputs, &dy, 1, dgain);
}

#[test]
fn layer_norm() {
    let kernel = Kernel::LayerNorm { eps_e12: 10_000_000 };
    let (x, gain, bias) = (Tensor::random(&[3, 11], 1), Tensor::random(&[11], 2), Tensor::random(&[11], 3));
    let dy = Tensor::random(&[3, 11], 4);
    let outputs: [&[u64]; 3] = [&[3, 11], &[3], &[3]];
    let kept = run_kernel(kernel, &[&x, &gain, &bias], &outputs);
    let (mean, inverse) = (&kept[1], &kept[2]);
    let inputs = [&dy, &x, mean, inverse, &gain];
    let dx = &run_kernel(Kernel::LayerNormInputGrad, &inputs, &[&[3, 11]])[0];
    assert_gradient(kernel, &[&x, &gain, &bias], &outputs, &dy, 0, dx);
    assert_in_place(Kernel::LayerNormInputGrad, &inputs, &[&[3, 11]]);
    let zeros = Tensor::zeros(&[11]);
    let dgain = &run_kernel(Kernel::LayerNormGainGrad, &[&dy, &x, mean, inverse, &zeros], &[&[11]])[0];
    assert_gradient(kernel, &[&x, &gain, &bias], &outputs, &dy, 1, dgain);
    let dbias = &run_kernel(Kernel::BiasGrad, &[&dy, &zeros], &[&[11]])[0];
    assert_gradient(kernel, &[&x, &gain, &bias], &outputs, &dy, 2, dbias);
}

/// Of two heads a row, with a gain for each column and with fewer weights.
#[test]
fn layer_norm_of_heads() {
    let [x, dy] = [1, 2].map(|seed| Tensor::random(&[3, 10], seed));
    let [gain, bias] = [3, 4].map(|seed| Tensor::random(&[10], seed));
    let outputs: [&[u64]; 3] = [&[3, 10], &[3, 2], &[3, 2]];
    for (weights, offset) in [(&[][..], false), (&[&gain], false), (&[&gain, &bias], true)] {
        let kernel = Kernel::HeadLayerNorm { eps_e12: 10_000_000, width: 5, offset };
        let given: Vec<&Tensor> = [&x].into_iter().chain(weights.iter().copied()).collect();
        let kept = run_kernel(kernel, &given, &outputs);
        let mut inputs = vec![&dy, &x, &kept[1], &kept[2]];
        if let Some(gain) = weights.first() {
            let zeros = Tensor::zeros(&[10]);
            let with_sum = [&inputs[..], &[&zeros]].concat();
            let dgain = &run_kernel(Kernel::HeadLayerNormGainGrad { width: 5 }, &with_sum, &[&[10]])[0];
            assert_gradient(kernel, &given, &outputs, &dy, 1, dgain);
            inputs.push(gain);
        }
        let gradient = Kernel::HeadLayerNormInputGrad { width: 5, offset };
        let dx = &run_kernel(gradient, &inputs, &[&[3, 10]])[0];
        assert_gradient(kernel, &given, &outputs, &dy, 0, dx);
        assert_in_place(gradient, &inputs, &[&[3, 10]]);
    }
}

#[test]
fn clipping() {
    let (x, dy) = (Tensor::random(&[3, 4], 1), Tensor::random(&[3, 4], 2));
    let kernel = Kernel::Clip { limit_e12: E12 / 4 };
    let y = run_kernel(kernel, &[&x], &[&[3, 4]]).remove(0);
    for (y, x) in y.data.floats().iter().zip(x.data.floats()) {
        assert_eq!(*y, x.clamp(-0.25, 0.25));
    }
    assert!(y.data.floats().contains(&0.25) && y.data.floats().iter().any(|y| y.abs() < 0.25), "both occur");
    let gradient = Kernel::ClipGrad { limit_e12: E12 / 4 };
    let dx = &run_kernel(gradient, &[&dy, &y], &[&[3, 4]])[0];
    assert_gradient(kernel, &[&x], &[&[3, 4]], &dy, 0, dx);
    assert_in_place(kernel, &[&x], &[&[3, 4]]);
    assert_in_place(gradient, &[&dy, &y], &[&[3, 4]]);
}

#[test]
fn scales_of_experts() {
    let (weights, scales) = (Tensor::random(&[3, 2], 1), Tensor::random(&[4], 2));
    let (chosen, dy) = (Tensor::tokens(&[3, 0, 1, 3, 0, 1]), Tensor::random(&[3, 2], 3));
    let given = [&weights, &chosen, &scales];
    let dweights = &run_kernel(Kernel::ExpertScale, &[&dy, &chosen, &scales], &[&[3, 2]])[0];
    assert_gradient(Kernel::ExpertScale, &given, &[&[3, 2]], &dy, 0, dweights);
    let inputs = [&dy, &weights, &chosen, &Tensor::zeros(&[4])];
    let dscales = &run_kernel(Kernel::ExpertScaleGrad, &inputs, &[&[4]])[0];
    assert_gradient(Kernel::ExpertScale, &given, &[&[3, 2]], &dy, 2, dscales);
}

#[test]
fn biases() {
    let (x, bias, dy) = (Tensor::random(&[3, 4], 1), Tensor::random(&[4], 2), Tensor::random(&[3, 4], 3));
    let gradient = &run_kernel(Kernel::BiasGrad, &[&dy, &Tensor::zeros(&[4])], &[&[4]])[0];
    assert_gradient(Kernel::AddBias, &[&x, &bias], &[&[3, 4]], &dy, 1, gradient);
    assert_in_place(Kernel::AddBias, &[&x, &bias], &[&[3, 4]]);
}

#[test]
fn sums() {
    assert_in_place(Kernel::Add, &[&Tensor::random(&[3, 4], 1), &Tensor::random(&[3, 4], 2)], &[&[3, 4]]);
}

#[test]
fn rotary_positions() {
    let rope =
        |inverse: bool| Kernel::Rope { sequence: 3, heads: 2, width: 4, angles: Angles::usual(10_000), inverse };
    let (x, dy) = (Tensor::random(&[6, 8], 1), Tensor::random(&[6, 8], 2));
    let dx = &run_kernel(rope(true), &[&dy], &[&[6, 8]])[0];
    assert_gradient(rope(false), &[&x], &[&[6, 8]], &dy, 0, dx);
    assert_in_place(rope(false), &[&x], &[&[6, 8]]);
    // Position 0 is not turned, and no position changes a length.
    let y = &run_kernel(rope(false), &[&x], &[&[6, 8]])[0];
    assert_eq!(y.data.floats()[..8], x.data.floats()[..8]);
    let length = |values: &[f64]| -> f64 { values.iter().map(|value| value * value).sum() };
    assert!((length(y.data.floats()) - length(x.data.floats())).abs() < 1e-12);
}

/// Of two pairs the first alone is turned, by the same angle as where both are.
#[test]
fn rotary_positions_of_some_pairs() {
    let rope = |pairs: Option<u64>, inverse: bool| {
        let angles = Angles { pairs, ..Angles::usual(10_000) };
        Kernel::Rope { sequence: 3, heads: 2, width: 4, angles, inverse }
    };
    let (x, dy) = (Tensor::random(&[6, 8], 1), Tensor::random(&[6, 8], 2));
    let dx = &run_kernel(rope(Some(1), true), &[&dy], &[&[6, 8]])[0];
    assert_gradient(rope(Some(1), false), &[&x], &[&[6, 8]], &dy, 0, dx);
    let of = |pairs| run_kernel(rope(pairs, false), &[&x], &[&[6, 8]])[0].data.floats().to_vec();
    let (some, all) = (of(Some(1)), of(None));
    for (at, value) in some.iter().enumerate() {
        assert_eq!(*value, if at % 2 == 0 { all[at] } else { x.data.floats()[at] }, "{at}");
    }
    assert_ne!(some, all);
}

#[test]
fn gated_units() {
    let (gate, up, dy) = (Tensor::random(&[3, 4], 1), Tensor::random(&[3, 4], 2), Tensor::random(&[3, 4], 3));
    let gradients = run_kernel(Kernel::SwiGluGrad, &[&dy, &gate, &up], &[&[3, 4], &[3, 4]]);
    for (which, gradient) in gradients.iter().enumerate() {
        assert_gradient(Kernel::SwiGlu, &[&gate, &up], &[&[3, 4]], &dy, which, gradient);
    }
    assert_in_place(Kernel::SwiGluGrad, &[&dy, &gate, &up], &[&[3, 4], &[3, 4]]);
}

#[test]
fn weighted_gated_units() {
    let [gate, up, dy] = [1, 2, 3].map(|seed| Tensor::random(&[3, 4], seed));
    let shares = Tensor::random(&[3, 1], 4);
    for activation in [Activation::Silu, Activation::Gelu] {
        let (kernel, outputs): (_, [&[u64]; 3]) =
            (Kernel::WeightedGluGrad { activation }, [&[3, 4], &[3, 4], &[3, 1]]);
        let gradients = run_kernel(kernel, &[&dy, &gate, &up, &shares], &outputs);
        for (which, gradient) in gradients.iter().enumerate() {
            let inputs = [&gate, &up, &shares];
            assert_gradient(Kernel::WeightedGlu { activation }, &inputs, &[&[3, 4]], &dy, which, gradient);
        }
        assert_in_place(kernel, &[&dy, &gate, &up, &shares], &outputs);
    }
}

#[test]
fn gelu() {
    let (x, dy) = (Tensor::random(&[3, 4], 1), Tensor::random(&[3, 4], 2));
    for (kernel, gradient) in [(Kernel::Gelu, Kernel::GeluGrad), (Kernel::GeluTanh, Kernel::GeluTanhGrad)] {
        let dx = &run_kernel(gradient, &[&dy, &x], &[&[3, 4]])[0];
        assert_gradient(kernel, &[&x], &[&[3, 4]], &dy, 0, dx);
        assert_in_place(gradient, &[&dy, &x], &[&[3, 4]]);
    }
}

#[test]
fn cross_entropy() {
    let kernel = Kernel::CrossEntropy { microbatches: 3 };
    let (logits, targets) = (Tensor::random(&[4, 5], 1), Tensor::tokens(&[4, 0, 2, 2]));
    let outputs: [&[u64]; 2] = [&[1], &[4]];
    let kept = run_kernel(kernel, &[&logits, &targets], &outputs);
    let inputs = [&logits, &targets, &kept[1]];
    let gradient = Kernel::CrossEntropyGrad { microbatches: 3, weight_e12: E12 / 20 };
    let weight = Tensor { shape: vec![1], data: Data::Floats(vec![0.05]) };
    let found = &run_kernel(gradient, &inputs, &[&[4, 5]])[0];
    assert_gradient(kernel, &[&logits, &targets], &outputs, &weight, 0, found);
    assert_in_place(gradient, &inputs, &[&[4, 5]]);
    // Logits that are all alike say nothing: the loss is the logarithm of the vocabulary.
    let flat = run_kernel(Kernel::CrossEntropy { microbatches: 1 }, &[&Tensor::zeros(&[4, 5]), &targets], &outputs);
    assert!((flat[0].data.floats()[0] - 5f64.ln()).abs() < 1e-12);
}

/// The mean of losses that are all alike is each of them, also of thousands in f32: a sum in 32 bits would lose two
/// digits.
#[test]
fn a_loss_in_f32_is_the_mean_of_many() {
    const ROWS: usize = 30_000;
    let logits = Data::Floats(vec![0f32; ROWS * 5]);
    let targets = Data::Tokens(vec![2; ROWS]);
    let inputs = [
        Input { shape: &[ROWS as u64, 5], data: Some(&logits) },
        Input { shape: &[ROWS as u64], data: Some(&targets) },
    ];
    let mut outputs = [Data::Floats(vec![0f32]), Data::Floats(vec![0f32; ROWS])];
    run(&mut Context::new(Box::new(Tuned)), &Kernel::CrossEntropy { microbatches: 1 }, &inputs, &mut outputs);
    let whole = outputs[0].floats()[0];

    // The same where devices share the vocabulary: the greatest logit, and the sum of exponentials with the target's
    // logit.
    let most = Data::Floats(vec![0f32; ROWS]);
    let sums = Data::Floats([5f32, 0.0].repeat(ROWS));
    let rows = ROWS as u64;
    let given = [Some(&most), Some(&sums), None, None];
    let shapes: [&[u64]; 4] = [&[rows], &[rows, 2], &[rows, 5], &[rows]];
    let inputs: Vec<Input<'_, f32>> =
        shapes.into_iter().zip(given).map(|(shape, data)| Input { shape, data }).collect();
    run(&mut Context::new(Box::new(Tuned)), &Kernel::SharedCrossEntropy { microbatches: 1 }, &inputs, &mut outputs);
    for found in [whole, outputs[0].floats()[0]] {
        assert!((f64::from(found) - 5f64.ln()).abs() < 2.0 * f64::from(f32::EPSILON), "{found}");
    }
}

#[test]
fn losses_of_routers() {
    let chosen = Tensor { shape: vec![3, 2], ..Tensor::tokens(&[0, 4, 4, 1, 3, 4]) };
    let losses = RouterLosses { balance_e12: E12 / 5, z_e12: E12 / 50 };
    for scores in [Scores::Softmax, Scores::Sigmoid] {
        let logits = Tensor::random(&[3, 5], 1);
        let kernel = Kernel::RouterLoss { losses, scores, microbatches: 2, sharers: 3 };
        let gradient = Kernel::RouterLossGrad { losses, scores, parts: 6 };
        let found = &run_kernel(gradient, &[&logits, &chosen], &[&[3, 5]])[0];
        // Each of three devices has a third.
        let third = Tensor { shape: vec![1], data: Data::Floats(vec![1.0 / 3.0]) };
        assert_gradient(kernel, &[&logits, &chosen], &[&[1]], &third, 0, found);
        // Where all shares are alike, tokens may go where they go: balance counts its coefficient, and z the square
        // of ln 5.
        let even = run_kernel(kernel, &[&Tensor::zeros(&[3, 5]), &chosen], &[&[1]]);
        let expected = (0.2 + 0.02 * 5f64.ln().powi(2)) / 2.0;
        assert!((even[0].data.floats()[0] - expected).abs() < 1e-12);
    }
}

/// Attention as its definition says, one score after the other.
fn plain_attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: &Heads) -> (Vec<f64>, Vec<f64>) {
    let rows = q.shape[0] as usize;
    let (sequence, width) = (heads.sequence as usize, heads.width as usize);
    let (query, key) = (heads.query as usize, heads.key_value as usize);
    let (q, k, v) = (q.data.floats(), k.data.floats(), v.data.floats());
    let (mut o, mut l) = (vec![0.0; rows * query * width], vec![0.0; rows * query]);
    for row in 0..rows {
        for head in 0..query {
            let q_at = (row * query + head) * width;
            let kv_at = |row: usize| (row * key + head * key / query) * width;
            let first = row / sequence * sequence;
            let scores: Vec<f64> = (first..=row)
                .map(|other| {
                    (0..width).map(|j| q[q_at + j] * k[kv_at(other) + j]).sum::<f64>() / (width as f64).sqrt()
                })
                .collect();
            let log_sum = scores.iter().map(|score| score.exp()).sum::<f64>().ln();
            l[row * query + head] = log_sum;
            for (other, score) in (first..=row).zip(&scores) {
                for j in 0..width {
                    o[q_at + j] += (score - log_sum).exp() * v[kv_at(other) + j];
                }
            }
        }
    }
    (o, l)
}

#[test]
fn attention() {
    // Sequences of one tile, of a tile and a bit, and of one token; alone and several; heads alone and grouped.
    for (sequence, sequences, query, key_value) in [(6, 2, 2, 2), (70, 2, 4, 2), (129, 1, 3, 1), (1, 3, 1, 1)] {
        let heads = Heads::usual(sequence, [query, key_value], 4);
        let rows = sequence * sequences;
        let (q_shape, k_shape) = ([rows, query * 4], [rows, key_value * 4]);
        let (q, k, v) = (Tensor::random(&q_shape, 1), Tensor::random(&k_shape, 2), Tensor::random(&k_shape, 3));
        let outputs: [&[u64]; 2] = [&q_shape, &[rows, query]];
        let kept = run_kernel(Kernel::Attention(heads), &[&q, &k, &v], &outputs);
        let (o, l) = plain_attention(&q, &k, &v, &heads);
        for (found, expected) in [(&kept[0], o), (&kept[1], l)] {
            for (found, expected) in found.data.floats().iter().zip(expected) {
                assert!((found - expected).abs() < 1e-12, "{heads:?}: {found} {expected}");
            }
        }
        let d_o = Tensor::random(&q_shape, 4);
        let inputs = [&d_o, &q, &k, &v, &kept[0], &kept[1]];
        let gradients = run_kernel(Kernel::AttentionGrad(heads), &inputs, &[&q_shape, &k_shape, &k_shape]);
        for (which, gradient) in gradients.iter().enumerate() {
            assert_gradient(Kernel::Attention(heads), &[&q, &k, &v], &outputs, &d_o, which, gradient);
        }
    }
}

/// Attention within documents is attention over each document alone; rotary and learned positions, and those of
/// attention temperature, start again with each.
#[test]
fn documents_are_sequences_of_their_own() {
    // Documents shorter and longer than a tile, and of one token, in two sequences; the second starts in the middle
    // of one.
    const SEQUENCE: u64 = 150;
    let cut: [&[usize]; 2] = [&[0, 1, 71, 140], &[10, 74]];
    let lengths: [u64; 7] = [1, 70, 69, 10, 10, 64, 76];
    let mut starts = DocumentStarts::default();
    cut.iter().for_each(|firsts| starts.add(SEQUENCE as usize, firsts));
    let (query, key_value, width) = (4, 2, 4);
    let rows = 2 * SEQUENCE;
    let (q_shape, k_shape, l_shape) = ([rows, query * width], [rows, key_value * width], [rows, query]);
    let random = |shape: &[u64], seed| Tensor::random(shape, seed);
    let (q, k, v, d_o) = (random(&q_shape, 1), random(&k_shape, 2), random(&k_shape, 3), random(&q_shape, 4));
    let table = random(&[SEQUENCE, query * width], 5);
    let heads = |sequence| Heads::usual(sequence, [query, key_value], width);
    let run_in = |starts: Option<&DocumentStarts>, kernel: Kernel, inputs: &[&Tensor], outputs: &[&[u64]]| {
        let mut context = Context::new(Box::new(Tuned));
        context.documents = starts.cloned();
        run_with(&mut context, kernel, inputs, outputs.iter().map(|shape| Tensor::zeros(shape)).collect())
    };
    let rope =
        |sequence| Kernel::Rope { sequence, heads: query, width, angles: Angles::usual(10_000), inverse: false };
    let positions = |sequence| Kernel::Positions { sequence, ways: 1 };
    let scale = |sequence| Kernel::PositionScale { sequence, tokens: 8, scale_e12: E12 / 10 };
    let square = [rows * query, SEQUENCE];

    let within =
        |kernel: Kernel, inputs: &[&Tensor], outputs: &[&[u64]]| run_in(Some(&starts), kernel, inputs, outputs);
    let kept = within(Kernel::Attention(heads(SEQUENCE)), &[&q, &k, &v], &[&q_shape, &l_shape]);
    let seen = [&d_o, &q, &k, &v, &kept[0], &kept[1]];
    let gradients = within(Kernel::AttentionGrad(heads(SEQUENCE)), &seen, &[&q_shape, &k_shape, &k_shape]);
    let s = within(Kernel::Scores(heads(SEQUENCE)), &[&q, &k], &[&square]);
    let p = within(Kernel::Softmax, &[&s[0]], &[&square]);
    let attended = within(Kernel::Attend(heads(SEQUENCE)), &[&p[0], &v], &[&q_shape]);
    let through = within(Kernel::AttendGrad(heads(SEQUENCE)), &[&d_o, &p[0], &v], &[&square, &k_shape]);
    let ds = within(Kernel::SoftmaxGrad, &[&through[0], &p[0]], &[&square]);
    let of_scores = within(Kernel::ScoresGrad(heads(SEQUENCE)), &[&ds[0], &q, &k], &[&q_shape, &k_shape]);
    let rotated = within(rope(SEQUENCE), &[&q], &[&q_shape]);
    let placed = within(positions(SEQUENCE), &[&q, &table], &[&q_shape]);
    let scaled = within(scale(SEQUENCE), &[&q], &[&q_shape]);

    let mut first = 0;
    for length in lengths {
        let of = |tensor: &Tensor| {
            let columns = tensor.shape[1];
            let at = (first * columns) as usize..((first + length) * columns) as usize;
            Tensor { shape: vec![length, columns], data: Data::Floats(tensor.data.floats()[at].to_vec()) }
        };
        let alone = |kernel: Kernel, inputs: &[&Tensor], outputs: &[&[u64]]| run_in(None, kernel, inputs, outputs);
        let (own_q, own_k, own_v, own_d) = (of(&q), of(&k), of(&v), of(&d_o));
        let (q_shape, k_shape, l_shape) = ([length, query * width], [length, key_value * width], [length, query]);
        let own = alone(Kernel::Attention(heads(length)), &[&own_q, &own_k, &own_v], &[&q_shape, &l_shape]);
        let own_seen = [&own_d, &own_q, &own_k, &own_v, &own[0], &own[1]];
        let own_gradients = alone(Kernel::AttentionGrad(heads(length)), &own_seen, &[&q_shape, &k_shape, &k_shape]);
        let own_rotated = alone(rope(length), &[&own_q], &[&q_shape]);
        let own_placed = alone(positions(length), &[&own_q, &table], &[&q_shape]);
        let own_scaled = alone(scale(length), &[&own_q], &[&q_shape]);
        let pairs = [
            ("attention", &kept[0], &own[0]),
            ("log-sums", &kept[1], &own[1]),
            ("dq", &gradients[0], &own_gradients[0]),
            ("dk", &gradients[1], &own_gradients[1]),
            ("dv", &gradients[2], &own_gradients[2]),
            ("materialised attention", &attended[0], &own[0]),
            ("its dq", &of_scores[0], &own_gradients[0]),
            ("its dk", &of_scores[1], &own_gradients[1]),
            ("its dv", &through[1], &own_gradients[2]),
            ("rotary positions", &rotated[0], &own_rotated[0]),
            ("learned positions", &placed[0], &own_placed[0]),
            ("temperature", &scaled[0], &own_scaled[0]),
        ];
        for (what, found, expected) in pairs {
            for (found, expected) in of(found).data.floats().iter().zip(expected.data.floats()) {
                assert!((found - expected).abs() < 1e-12, "{what}, {length} tokens at {first}: {found} {expected}");
            }
        }
        first += length;
    }
    assert_eq!(first, rows);
}

/// Attention in three operators is attention in one, and so are its gradients.
#[test]
fn materialised_attention() {
    for (sequence, sequences, query, key_value) in [(6, 2, 2, 2), (70, 1, 4, 2), (1, 3, 1, 1)] {
        let heads = Heads::usual(sequence, [query, key_value], 4);
        let rows = sequence * sequences;
        let (q_shape, k_shape) = ([rows, query * 4], [rows, key_value * 4]);
        let (q, k, v) = (Tensor::random(&q_shape, 1), Tensor::random(&k_shape, 2), Tensor::random(&k_shape, 3));
        let d_o = Tensor::random(&q_shape, 4);
        let fused: [&[u64]; 2] = [&q_shape, &[rows, query]];
        let fused = run_kernel(Kernel::Attention(heads), &[&q, &k, &v], &fused);
        let inputs = [&d_o, &q, &k, &v, &fused[0], &fused[1]];
        let expected = run_kernel(Kernel::AttentionGrad(heads), &inputs, &[&q_shape, &k_shape, &k_shape]);

        let square: &[u64] = &[rows * query, sequence];
        let s = &run_kernel(Kernel::Scores(heads), &[&q, &k], &[square])[0];
        let p = &run_kernel(Kernel::Softmax, &[s], &[square])[0];
        let o = &run_kernel(Kernel::Attend(heads), &[p, &v], &[&q_shape])[0];
        let [dp, dv] = &run_kernel(Kernel::AttendGrad(heads), &[&d_o, p, &v], &[square, &k_shape])[..] else {
            panic!("two outputs")
        };
        let ds = &run_kernel(Kernel::SoftmaxGrad, &[dp, p], &[square])[0];
        let [dq, dk] = &run_kernel(Kernel::ScoresGrad(heads), &[ds, &q, &k], &[&q_shape, &k_shape])[..] else {
            panic!("two outputs")
        };
        for (found, expected) in [(o, &fused[0]), (dq, &expected[0]), (dk, &expected[1]), (dv, &expected[2])] {
            for (found, expected) in found.data.floats().iter().zip(expected.data.floats()) {
                assert!((found - expected).abs() < 1e-12, "{heads:?}: {found} {expected}");
            }
        }
        assert_in_place(Kernel::Softmax, &[s], &[square]);
        assert_in_place(Kernel::SoftmaxGrad, &[dp, p], &[square]);
    }
}

#[test]
fn dropout() {
    let x = Tensor::random(&[100, 100], 1);
    let mut context = Context::new(Box::new(Tuned));
    let mut drop = |seed: u64, site: u64| {
        context.dropout_seed = seed;
        let input = Input { shape: &x.shape, data: Some(&x.data) };
        let mut outputs = [Tensor::zeros(&[100, 100]).data, Data::Bytes(vec![2; 10_000])];
        run(&mut context, &Kernel::Dropout { site, ways: 1, blocks: 1, sequence: 1 }, &[input], &mut outputs);
        let [y, kept] = outputs;
        (y, kept)
    };
    let (y, kept) = drop(1, 0);
    for ((y, x), kept) in y.floats().iter().zip(x.data.floats()).zip(kept.bytes()) {
        assert!((y - f64::from(*kept) * x / 0.9).abs() < 1e-12);
    }
    // 9000 of 10000 with a standard deviation of 30.
    let count: u32 = kept.bytes().iter().map(|kept| u32::from(*kept)).sum();
    assert!((8820..9180).contains(&count), "{count}");
    assert_eq!(drop(1, 0), (y.clone(), kept.clone()), "the same again");
    assert_ne!(drop(1, 1).1, kept, "another place in the model");
    assert_ne!(drop(2, 0).1, kept, "another microbatch");
    // The gradient is of the same elements.
    let input = |data| Input { shape: &[100, 100], data: Some(data) };
    let mut dx = [Tensor::zeros(&[100, 100]).data];
    run(&mut context, &Kernel::DropoutGrad, &[input(&x.data), input(&kept)], &mut dx);
    assert_eq!(dx[0], y);
}

/// Rows `from..` of what all members hold, as many as fill `shape`.
fn part(whole: &Tensor, from: usize, shape: &[u64]) -> Tensor {
    let elements = shape.iter().product::<u64>() as usize;
    Tensor { shape: shape.to_vec(), data: Data::Floats(whole.data.floats()[from..from + elements].to_vec()) }
}

/// A table of five rows over two members, the last row of the second being padding: together they give what one does.
#[test]
fn a_vocabulary_that_members_share() {
    let (tokens, table, dy) = (Tensor::tokens(&[2, 0, 3, 4]), Tensor::random(&[6, 3], 1), Tensor::random(&[4, 3], 2));
    let mut sum = [0.0; 12];
    for member in 0..2 {
        let own = Tensor::tokens(&[9; 4]);
        let own = run_as(member, Kernel::OwnTokens { rows: 3 }, &[&tokens], vec![own]).remove(0);
        let expected: [&[i32]; 2] = [&[2, 0, -1, -1], &[-1, -1, 0, 1]];
        assert_eq!(own.data.tokens(), expected[member as usize]);
        let rows = part(&table, member as usize * 9, &[3, 3]);
        let found = run_kernel(Kernel::Embedding, &[&own, &rows], &[&[4, 3]]).remove(0);
        sum.iter_mut().zip(found.data.floats()).for_each(|(sum, value)| *sum += value);
        let gradient = run_kernel(Kernel::EmbeddingGrad, &[&dy, &own, &Tensor::zeros(&[3, 3])], &[&[3, 3]]).remove(0);
        let whole = [&dy, &tokens, &Tensor::zeros(&[6, 3])];
        let whole = run_kernel(Kernel::EmbeddingGrad, &whole, &[&[6, 3]]).remove(0);
        assert_eq!(gradient.data, part(&whole, member as usize * 9, &[3, 3]).data);
    }
    let expected = run_kernel(Kernel::Embedding, &[&tokens, &table], &[&[4, 3]]).remove(0);
    assert_eq!(expected.data.floats(), sum);

    let hidden = Tensor::random(&[4, 3], 3);
    let product = Kernel::MatMul { transpose_a: false, transpose_b: true, accumulate: false };
    let microbatches = 3;
    // One device, and the same logits in two halves.
    let whole = run_kernel(product, &[&hidden, &part(&table, 0, &[5, 3])], &[&[4, 5]]).remove(0);
    let one = run_kernel(Kernel::CrossEntropy { microbatches }, &[&whole, &tokens], &[&[1], &[4]]);
    let halves: Vec<[Tensor; 3]> = (0..2)
        .map(|member| {
            let rows = part(&table, member as usize * 9, &[3, 3]);
            let logits = run_kernel(product, &[&hidden, &rows], &[&[4, 3]]).remove(0);
            let hide = Kernel::HidePadding { vocab: 5 };
            let shown = run_as(member, hide, &[&logits], vec![Tensor::zeros(&[4, 3])]).remove(0);
            let most = run_kernel(Kernel::RowMax, &[&shown], &[&[4]]).remove(0);
            let own = run_as(member, Kernel::OwnTokens { rows: 3 }, &[&tokens], vec![Tensor::tokens(&[9; 4])]);
            [shown, most, own.into_iter().next().expect("tokens")]
        })
        .collect();
    let over = |a: &Tensor, b: &Tensor, f: fn(f64, f64) -> f64| {
        let data = a.data.floats().iter().zip(b.data.floats()).map(|(a, b)| f(*a, *b)).collect();
        Tensor { shape: a.shape.clone(), data: Data::Floats(data) }
    };
    let most = over(&halves[0][1], &halves[1][1], f64::max);
    let sums = |half: &[Tensor; 3]| run_kernel(Kernel::ExpSums, &[&half[0], &most, &half[2]], &[&[4, 2]]).remove(0);
    let sums = over(&sums(&halves[0]), &sums(&halves[1]), |a, b| a + b);
    let kernel = Kernel::SharedCrossEntropy { microbatches };
    let shared = run_kernel(kernel, &[&most, &sums, &halves[0][0], &halves[0][2]], &[&[1], &[4]]);
    let close = |found: &[f64], expected: &[f64], what: &str| {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{what}: {found:?} {expected:?}");
    };
    close(shared[0].data.floats(), one[0].data.floats(), "loss");
    close(shared[1].data.floats(), one[1].data.floats(), "log-sum-exp");
    let kernel = Kernel::CrossEntropyGrad { microbatches, weight_e12: E12 };
    let expected = run_kernel(kernel, &[&whole, &tokens, &one[1]], &[&[4, 5]]).remove(0);
    for (member, half) in halves.iter().enumerate() {
        let found = run_kernel(kernel, &[&half[0], &half[2], &shared[1]], &[&[4, 3]]).remove(0);
        for (found, expected) in found.data.floats().chunks(3).zip(expected.data.floats().chunks(5)) {
            let columns = [expected, &[0.0]].concat();
            close(found, &columns[3 * member..3 * member + 3], "gradient");
        }
    }
}

/// Rows and heads that members hold are dropped, and have the positions, that they have on one device.
#[test]
fn members_agree_on_positions_and_on_what_is_dropped() {
    let (x, table) = (Tensor::random(&[12, 5], 1), Tensor::random(&[3, 5], 2));
    let positions = |ways| Kernel::Positions { sequence: 3, ways };
    let whole = run_kernel(positions(1), &[&x, &table], &[&[12, 5]]).remove(0);
    let bytes = |elements: u64| Tensor { shape: vec![elements], data: Data::Bytes(vec![2; elements as usize]) };
    let dropout = |ways, blocks| Kernel::Dropout { site: 3, ways, blocks, sequence: 1 };
    let kept = run_as(0, dropout(1, 1), &[&x], vec![x.clone(), bytes(60)]).remove(1);
    for member in 0..4 {
        let rows = part(&x, member * 15, &[3, 5]);
        let found = run_as(member as u64, positions(4), &[&rows, &table], vec![rows.clone()]).remove(0);
        assert_eq!(found.data, part(&whole, member * 15, &[3, 5]).data);
        let found = run_as(member as u64, dropout(4, 1), &[&rows], vec![rows.clone(), bytes(15)]).remove(1);
        assert_eq!(found.data.bytes(), &kept.data.bytes()[member * 15..member * 15 + 15]);
        // Three sequences of four heads, of which each member has one: five elements of every twenty.
        let found = run_as(member as u64, dropout(4, 3), &[&rows], vec![rows.clone(), bytes(15)]).remove(1);
        let expected = kept.data.bytes().chunks(5).skip(member).step_by(4).flatten();
        assert!(found.data.bytes().iter().eq(expected), "member {member}");
    }
}

/// Sequences that are longer than a chunk, two heads of values for each of keys.
#[test]
fn recurrences() {
    for (kind, sequence) in
        [(RecurrenceKind::DeltaNet, 66), (RecurrenceKind::DeltaNet, 5), (RecurrenceKind::Mamba2, 6)]
    {
        let of = Recurring { kind, sequence, key_heads: 2, key_width: 3, heads: 4, width: 2 };
        let (rows, is_delta_net) = (2 * sequence, kind == RecurrenceKind::DeltaNet);
        let rates = if is_delta_net { Some(Tensor::random(&[rows, 4], 5)) } else { None };
        let skip = if is_delta_net { None } else { Some(Tensor::random(&[4], 8)) };
        let mut inputs = vec![Tensor::random(&[rows, 6], 1), Tensor::random(&[rows, 6], 2)];
        inputs.extend([Tensor::random(&[rows, 8], 3), Tensor::random(&[rows, 4], 4)]);
        inputs.extend(rates);
        inputs.extend([Tensor::random(&[4], 6), Tensor::random(&[4], 7)]);
        inputs.extend(skip);
        let dy = Tensor::random(&[rows, 8], 9);
        let states = &[of.chunks(rows) * 4 * 3, 2][..];
        let by_head = &[rows, 4][..];
        let shapes = [&[rows, 6][..], &[rows, 6], &[rows, 8], by_head, by_head, by_head, states];
        let with_dy: Vec<&Tensor> = [&dy].into_iter().chain(&inputs).collect();
        let gradients = run_kernel(Kernel::RecurrenceGrad(of), &with_dy, &shapes);
        let summed = |at: usize| {
            let mut sum = Tensor::zeros(&[4]);
            let rows = gradients[at].data.floats().chunks(4);
            rows.for_each(|row| sum.data.floats_mut().iter_mut().zip(row).for_each(|(sum, slope)| *sum += slope));
            sum
        };
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let outputs = [&[rows, 8][..], states];
        let checked = |which: usize, gradient: &Tensor| {
            assert_gradient(Kernel::Recurrence(of), &inputs, &outputs, &dy, which, gradient);
        };
        (0..4).for_each(|which| checked(which, &gradients[which]));
        if is_delta_net {
            checked(4, &gradients[4]);
            checked(5, &summed(5));
            checked(6, &summed(3));
        } else {
            checked(4, &summed(4));
            checked(5, &summed(3));
            checked(6, &summed(5));
        }
    }
}
