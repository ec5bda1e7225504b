//! The cases of the check of operators: every operator in both formats, in sizes that fill no block and no tile.

use pipeplan_core::graph::{Angles, Heads, Kernel, Spread};
use pipeplan_core::model::{Activation, Dtype, E12, Routing, Scores};

use super::case::{Case, Tensor};
use crate::backend::cpu::kernels::Data;
use crate::selftest::Extent;

/// Every operator in both formats.
pub fn cases() -> Vec<Case> {
    cases_to(Extent::Whole)
}

/// Those, or briefly with sequences of a tile and a part of one where attention goes without tensor cores.
pub(super) fn cases_to(extent: Extent) -> Vec<Case> {
    const BRIEF: u64 = 45;
    let longest = |format| if extent == Extent::Briefly && format == Dtype::F32 { BRIEF } else { u64::MAX };
    [Dtype::F32, Dtype::Bf16]
        .into_iter()
        .flat_map(|format| cases_in(format, longest(format)).into_iter().chain(cases_in_part(format)))
        .collect()
}

/// What goes by the positions of tokens, on a context parallel rank: two of 24 tokens, of which three ranks
/// have eight each, and half as many where tensor-parallel ranks hold two of them.
fn cases_in_part(t: Dtype) -> Vec<Case> {
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let (parts, sequence, n, h) = (3, 24u64, 16u64, 40u64);
    let rows: &[u64] = &[n, h];
    let table: &[u64] = &[30, h];
    let mut cases = vec![
        Case::new(
            Kernel::Rope { sequence, heads: 2, width: 20, angles: Angles::usual(10_000), inverse: false },
            t,
            vec![random(rows, 60)],
            &[(rows, t)],
        ),
        Case::new(
            Kernel::RopeTail {
                sequence,
                heads: 2,
                width: 20,
                tail: 16,
                angles: Angles::usual(10_000),
                inverse: true,
            },
            t,
            vec![random(rows, 61)],
            &[(rows, t)],
        ),
    ];
    for (ways, of) in [(1, n), (2, n / 2)] {
        let rows: &[u64] = &[of, h];
        let kernel = Kernel::Positions { sequence, ways };
        cases.push(Case::new(kernel, t, vec![random(rows, 62), random(table, 63)], &[(rows, t)]));
        let kernel = Kernel::PositionsGrad { sequence, ways };
        let gradient = Tensor::random(table, Dtype::F32, 64);
        cases.push(Case::new(kernel, t, vec![random(rows, 65), gradient], &[(table, Dtype::F32)]).adding(1));
        let kernel = Kernel::Dropout { site: 5, ways, blocks: 1, sequence };
        cases.push(Case::new(kernel, t, vec![random(rows, 66)], &[(rows, t), (rows, Dtype::U8)]));
    }
    cases.into_iter().map(|case| case.in_part(parts)).collect()
}

/// In the format `t`, with attention to sequences of at most `longest` tokens.
fn cases_in(t: Dtype, longest: u64) -> Vec<Case> {
    let families = [
        embedding_cases(t),
        norm_cases(t),
        matmul_cases(t),
        fused_attention_cases(t, longest),
        packed_cases(t),
        member_cases(t),
        head_cases(t),
        expert_cases(t),
        unfused_attention_cases(t),
        elementwise_cases(t),
        loss_cases(t),
    ];
    families.into_iter().flatten().collect()
}

/// Rows, columns, inner columns and a vocabulary that fill no block, no tile and no 16 bytes.
const UNEVEN: [u64; 4] = [37, 51, 83, 301];

/// Embeddings of tokens and of positions, and their gradients.
fn embedding_cases(t: Dtype) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let sum = |shape: &[u64], seed| Tensor::random(shape, F, seed);
    let [n, h, _, vocabulary] = UNEVEN;
    let (dy, tokens) = (random(&[n, h], 2), Tensor::tokens(n, 9));
    let mut cases = Vec::new();
    cases.push(Case::new(Kernel::Embedding, t, vec![tokens.clone(), random(&[vocabulary, h], 5)], &[(&[n, h], t)]));
    let table_sum = sum(&[vocabulary, h], 6);
    let case = Case::new(Kernel::EmbeddingGrad, t, vec![dy.clone(), tokens, table_sum], &[(&[vocabulary, h], F)]);
    cases.push(case.adding(2));
    // More columns than a block has threads, more tokens than a block looks at once.
    let inputs = vec![random(&[300, 270], 2), Tensor::tokens(300, 5), sum(&[5, 270], 7)];
    cases.push(Case::new(Kernel::EmbeddingGrad, t, inputs, &[(&[5, 270], F)]).adding(2));
    let (positions, sequence) = (random(&[13, h], 7), 12);
    let four = [random(&[4 * sequence, h], 8), random(&[4 * sequence, h], 9)];
    let shape = [4 * sequence, h];
    cases.push(Case::new(
        Kernel::Positions { sequence, ways: 1 },
        t,
        vec![four[0].clone(), positions],
        &[(&shape, t)],
    ));
    let kernel = Kernel::PositionsGrad { sequence, ways: 1 };
    cases.push(Case::new(kernel, t, vec![four[1].clone(), sum(&[13, h], 10)], &[(&[13, h], F)]).adding(1));
    cases
}

/// RMSNorm, LayerNorm and biases, and their gradients.
fn norm_cases(t: Dtype) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let sum = |shape: &[u64], seed| Tensor::random(shape, F, seed);
    let [n, h, ..] = UNEVEN;
    let (x, dy, gain, bias) = (random(&[n, h], 1), random(&[n, h], 2), random(&[h], 3), random(&[h], 4));
    let mut cases = Vec::new();
    let rms = Case::new(
        Kernel::RmsNorm { eps_e12: 10_000_000, offset: false },
        t,
        vec![x.clone(), gain.clone()],
        &[(&[n, h], t), (&[n], F)],
    );
    let r = Tensor { dtype: F, ..rms.reference().remove(1) };
    let r = Tensor::new(&r.shape, F, r.data);
    cases.push(rms);
    let inputs = vec![dy.clone(), x.clone(), r.clone(), gain.clone()];
    cases.push(Case::new(Kernel::RmsNormInputGrad { offset: false }, t, inputs.clone(), &[(&[n, h], t)]));
    cases.push(Case::new(Kernel::RmsNormInputGrad { offset: true }, t, inputs, &[(&[n, h], t)]));
    let inputs = vec![dy.clone(), x.clone(), r, sum(&[h], 11)];
    cases.push(Case::new(Kernel::RmsNormGainGrad, t, inputs, &[(&[h], F)]).adding(3));
    let inputs = vec![x.clone(), gain.clone(), bias.clone()];
    let outputs: [(&[u64], Dtype); 3] = [(&[n, h], t), (&[n], F), (&[n], F)];
    let layer = Case::new(Kernel::LayerNorm { eps_e12: 10_000_000 }, t, inputs, &outputs);
    let mut saved = layer.reference().into_iter().skip(1).map(|tensor| Tensor::new(&tensor.shape, F, tensor.data));
    let [mean, r] = [saved.next(), saved.next()].map(|tensor| tensor.unwrap_or_else(|| Tensor::zeros(&[n], F)));
    cases.push(layer);
    let inputs = vec![dy.clone(), x.clone(), mean.clone(), r.clone(), gain];
    cases.push(Case::new(Kernel::LayerNormInputGrad, t, inputs, &[(&[n, h], t)]));
    let inputs = vec![dy.clone(), x.clone(), mean, r, sum(&[h], 12)];
    cases.push(Case::new(Kernel::LayerNormGainGrad, t, inputs, &[(&[h], F)]).adding(4));
    cases.push(Case::new(Kernel::AddBias, t, vec![x.clone(), bias], &[(&[n, h], t)]));
    cases.push(Case::new(Kernel::BiasGrad, t, vec![dy.clone(), sum(&[h], 13)], &[(&[h], F)]).adding(1));
    // So many rows that blocks share them out, which a multiple of their parts does not divide.
    let many = [1601, 35];
    let [of_rows, scaled] = [50, 51].map(|seed| random(&many, seed));
    cases.push(Case::new(Kernel::BiasGrad, t, vec![of_rows.clone(), sum(&[35], 52)], &[(&[35], F)]).adding(1));
    let inputs = vec![of_rows, scaled, sum(&[1601], 53), sum(&[35], 54)];
    cases.push(Case::new(Kernel::RmsNormGainGrad, t, inputs, &[(&[35], F)]).adding(3));
    cases
}

/// Matrix products, of each transposition.
fn matmul_cases(t: Dtype) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let sum = |shape: &[u64], seed| Tensor::random(shape, F, seed);
    let [n, h, f, _] = UNEVEN;
    let dy = random(&[n, h], 2);
    let mut cases = Vec::new();
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let a = if transpose_a { random(&[h, n], 14) } else { random(&[n, h], 14) };
        let b = if transpose_b { random(&[f, h], 15) } else { random(&[h, f], 15) };
        let kernel = |accumulate| Kernel::MatMul { transpose_a, transpose_b, accumulate };
        cases.push(Case::new(kernel(false), t, vec![a.clone(), b.clone()], &[(&[n, f], t)]));
        cases.push(Case::new(kernel(true), t, vec![a, b, random(&[n, f], 16)], &[(&[n, f], t)]));
    }
    // Rows of whole 16 bytes, as in models, for which cuBLAS has other kernels; a long sum, which it may cut.
    for (rows, inner, columns) in [(128, 256, 192), (64, 8192, 64), (2048, 64, 256)] {
        let (a, b) = (random(&[rows, inner], 14), random(&[columns, inner], 15));
        let forward = Kernel::MatMul { transpose_a: false, transpose_b: true, accumulate: false };
        cases.push(Case::new(forward, t, vec![a, b], &[(&[rows, columns], t)]));
        let gradient = Kernel::MatMul { transpose_a: true, transpose_b: false, accumulate: true };
        let inputs = vec![random(&[inner, rows], 16), random(&[inner, columns], 17), sum(&[rows, columns], 18)];
        cases.push(Case::new(gradient, t, inputs, &[(&[rows, columns], F)]).adding(2));
    }
    let kernel = Kernel::MatMul { transpose_a: true, transpose_b: false, accumulate: true };
    let inputs = vec![dy.clone(), random(&[n, f], 17), sum(&[h, f], 18)];
    cases.push(Case::new(kernel, t, inputs, &[(&[h, f], F)]).adding(2));
    cases
}

/// Rotary positions and fused attention to sequences of at most `longest` tokens, with its gradients.
fn fused_attention_cases(t: Dtype, longest: u64) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let mut cases = Vec::new();
    for (inverse, pairs) in [(false, None), (true, None), (false, Some(2))] {
        let angles = Angles { pairs, ..Angles::usual(10_000) };
        let kernel = Kernel::Rope { sequence: 13, heads: 3, width: 10, angles, inverse };
        cases.push(Case::new(kernel, t, vec![random(&[39, 30], 19)], &[(&[39, 30], t)]));
    }
    // Widths with and without tensor cores, sequences that end within a tile, heads that share keys.
    for (sequence, query, key_value, width) in [
        (37, 4, 2, 10),
        (70, 2, 1, 32),
        (64, 2, 2, 64),
        (150, 3, 1, 64),
        (65, 1, 1, 96),
        (130, 2, 1, 128),
        (75, 2, 1, 256),
    ] {
        let sequence = longest.min(sequence);
        let heads = Heads::usual(sequence, [query, key_value], width);
        let (n, q, k) = (2 * sequence, query * width, key_value * width);
        let inputs = vec![random(&[n, q], 20), random(&[n, k], 21), random(&[n, k], 22)];
        let case = Case::new(Kernel::Attention(heads), t, inputs.clone(), &[(&[n, q], t), (&[n, query], F)]);
        let saved = case.reference();
        cases.push(case);
        let mut all = vec![random(&[n, q], 23)];
        all.extend(inputs);
        all.push(Tensor::new(&[n, q], t, saved[0].data.clone()));
        all.push(Tensor::new(&[n, query], F, saved[1].data.clone()));
        let outputs: [(&[u64], Dtype); 3] = [(&[n, q], t), (&[n, k], t), (&[n, k], t)];
        cases.push(Case::new(Kernel::AttentionGrad(heads), t, all, &outputs));
    }
    // Values of another width than keys, windows that begin within a tile and before all of a row's tile, and scores that are
    // multiplied otherwise and capped.
    for (sequence, query, key_value, width, value_width, window, cap_e12) in [
        (37, 4, 2, 10, 6, 37, None),
        (70, 2, 2, 24, 32, 9, None),
        (150, 2, 1, 64, 64, 20, None),
        (139, 1, 1, 32, 32, 3, None),
        (130, 2, 1, 128, 128, 70, None),
        (77, 2, 1, 192, 128, 77, None),
        (37, 4, 2, 10, 10, 37, Some(700_000_000_000)),
        (70, 2, 1, 32, 32, 20, Some(900_000_000_000)),
        (130, 2, 1, 128, 128, 70, Some(3_000_000_000_000)),
        (139, 2, 2, 256, 256, 70, Some(3_000_000_000_000)),
    ] {
        let scale_e12 = cap_e12.map(|_| 300_000_000_000);
        let (sequence, window) = (longest.min(sequence), longest.min(window));
        let heads = Heads { scale_e12, cap_e12, ..Heads::usual(sequence, [query, key_value], width) };
        cases.extend(attention_cases(t, Spread { heads, value_width, ways: 1, window }));
    }
    cases
}

/// Attention as products with a softmax, and its gradients.
fn unfused_attention_cases(t: Dtype) -> Vec<Case> {
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let mut cases = Vec::new();
    let heads = Heads { scale_e12: Some(700_000_000_000), ..Heads::usual(23, [4, 2], 6) };
    let (n2, q, k, s) = (46u64, 24u64, 12u64, 46 * 4);
    let (queries, keys, values) = (random(&[n2, q], 24), random(&[n2, k], 25), random(&[n2, k], 26));
    let square: &[u64] = &[s, 23];
    let scores = Case::new(Kernel::Scores(heads), t, vec![queries.clone(), keys.clone()], &[(square, t)]);
    let hidden = scores.reference().remove(0);
    let cap_e12 = 800_000_000_000;
    let cap =
        Case::new(Kernel::SoftCap { cap_e12 }, t, vec![Tensor::new(square, t, hidden.data.clone())], &[(square, t)]);
    let capped = Tensor::new(square, t, cap.reference().remove(0).data);
    let kernel = Kernel::SoftCapGrad { cap_e12 };
    cases.extend([cap, Case::new(kernel, t, vec![random(square, 33), capped], &[(square, t)])]);
    let softmax = Case::new(Kernel::Softmax, t, vec![Tensor::new(square, t, hidden.data)], &[(square, t)]);
    let p = softmax.reference().remove(0);
    let p = Tensor::new(square, t, p.data);
    cases.extend([scores, softmax]);
    let ds = Case::new(Kernel::SoftmaxGrad, t, vec![random(square, 27), p.clone()], &[(square, t)]);
    let gradient = ds.reference().remove(0);
    cases.push(ds);
    let inputs = vec![Tensor::new(square, t, gradient.data), queries.clone(), keys];
    cases.push(Case::new(Kernel::ScoresGrad(heads), t, inputs, &[(&[n2, q], t), (&[n2, k], t)]));
    cases.push(Case::new(Kernel::Attend(heads), t, vec![p.clone(), values.clone()], &[(&[n2, q], t)]));
    cases.push(Case::new(Kernel::AttendGrad(heads), t, vec![queries, p, values], &[(square, t), (&[n2, k], t)]));
    cases
}

/// Dropout, activations, casts and sums, and their gradients.
fn elementwise_cases(t: Dtype) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let sum = |shape: &[u64], seed| Tensor::random(shape, F, seed);
    let [n, _, f, _] = UNEVEN;
    let mut cases = Vec::new();
    let inputs = vec![random(&[n, f], 28), random(&[n, f], 29), random(&[n, f], 30)];
    let wide: &[u64] = &[n, f];
    let kernel = Kernel::Dropout { site: 5, ways: 1, blocks: 1, sequence: 1 };
    let dropout = Case::new(kernel, t, vec![inputs[0].clone()], &[(wide, t), (wide, Dtype::U8)]);
    let kept = dropout.reference().remove(1);
    cases.push(dropout);
    cases.push(Case::new(Kernel::DropoutGrad, t, vec![inputs[1].clone(), kept], &[(wide, t)]));
    cases.push(Case::new(Kernel::SwiGlu, t, inputs[..2].to_vec(), &[(wide, t)]));
    cases.push(Case::new(Kernel::SwiGluGrad, t, inputs.clone(), &[(wide, t), (wide, t)]));
    cases.push(Case::new(Kernel::GeGlu, t, inputs[..2].to_vec(), &[(wide, t)]));
    cases.push(Case::new(Kernel::GeGluGrad, t, inputs.clone(), &[(wide, t), (wide, t)]));
    cases.push(Case::new(Kernel::Cast, t, inputs[..1].to_vec(), &[(wide, F)]));
    cases.push(Case::new(Kernel::Cast, t, vec![sum(wide, 28)], &[(wide, t)]));
    cases.push(Case::new(Kernel::Gelu, t, inputs[..1].to_vec(), &[(wide, t)]));
    cases.push(Case::new(Kernel::GeluGrad, t, inputs[..2].to_vec(), &[(wide, t)]));
    cases.push(Case::new(Kernel::GeluTanh, t, inputs[..1].to_vec(), &[(wide, t)]));
    cases.push(Case::new(Kernel::GeluTanhGrad, t, inputs[..2].to_vec(), &[(wide, t)]));
    cases.push(Case::new(Kernel::Add, t, inputs[..2].to_vec(), &[(wide, t)]));
    cases.push(Case::new(Kernel::Scale { factor_e12: 1_700_000_000_000 }, t, inputs[..1].to_vec(), &[(wide, t)]));
    cases
}

/// The cross-entropy loss and its gradient.
fn loss_cases(t: Dtype) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let [n, _, _, vocabulary] = UNEVEN;
    let mut cases = Vec::new();
    let (logits, targets) = (random(&[n, vocabulary], 31), Tensor::tokens(n, vocabulary));
    let kernel = Kernel::CrossEntropy { microbatches: 3 };
    let loss = Case::new(kernel, t, vec![logits.clone(), targets.clone()], &[(&[1], F), (&[n], F)]);
    let l = loss.reference().remove(1);
    cases.push(loss);
    let inputs = vec![logits, targets, Tensor::new(&[n], F, l.data)];
    cases.push(Case::new(
        Kernel::CrossEntropyGrad { microbatches: 3, weight_e12: E12 / 20 },
        t,
        inputs,
        &[(&[n, vocabulary], t)],
    ));
    cases
}

/// Attention of two sequences and its gradients, in the format `t`.
pub fn attention_cases(t: Dtype, spread: Spread) -> [Case; 2] {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let Spread { heads: Heads { sequence, query, key_value, width, .. }, value_width, .. } = spread;
    let (n, q, k) = (2 * sequence, query * width, key_value * width);
    let (o, v) = (query * value_width, key_value * value_width);
    let inputs = vec![random(&[n, q], 20), random(&[n, k], 21), random(&[n, v], 22)];
    let outputs: [(&[u64], Dtype); 2] = [(&[n, o], t), (&[n, query], F)];
    let forward = Case::new(Kernel::SpreadAttention(spread), t, inputs.clone(), &outputs);
    let saved = forward.reference();
    let mut all = vec![random(&[n, o], 23)];
    all.extend(inputs);
    all.push(Tensor::new(&[n, o], t, saved[0].data.clone()));
    all.push(Tensor::new(&[n, query], F, saved[1].data.clone()));
    let outputs: [(&[u64], Dtype); 3] = [(&[n, q], t), (&[n, k], t), (&[n, v], t)];
    [forward, Case::new(Kernel::SpreadAttentionGrad(spread), t, all, &outputs)]
}

/// Rows that are made of whole packs of 16 bytes, which the kernels then take at once.
fn packed_cases(t: Dtype) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let mut cases = Vec::new();
    // More packs than a warp has threads, and no multiple of them.
    let (n, h, vocabulary) = (37u64, 328u64, 4200u64);
    let all: &[u64] = &[n, h];
    let (x, dy, gain) = (random(all, 90), random(all, 91), random(&[h], 92));
    let kernel = Kernel::RmsNorm { eps_e12: 10_000_000, offset: true };
    let norm = Case::new(kernel, t, vec![x.clone(), gain.clone()], &[(all, t), (&[n], F)]);
    let r = Tensor::new(&[n], F, norm.reference().remove(1).data);
    cases.push(norm);
    let inputs = vec![dy.clone(), x.clone(), r, gain.clone()];
    cases.push(Case::new(Kernel::RmsNormInputGrad { offset: true }, t, inputs, &[(all, t)]));
    let inputs = vec![x.clone(), gain.clone(), random(&[h], 96)];
    let outputs: [(&[u64], Dtype); 3] = [(all, t), (&[n], F), (&[n], F)];
    let layer = Case::new(Kernel::LayerNorm { eps_e12: 10_000_000 }, t, inputs, &outputs);
    let saved = layer.reference();
    let [mean, r] = [1, 2].map(|at: usize| Tensor::new(&[n], F, saved[at].data.clone()));
    cases.push(layer);
    cases.push(Case::new(Kernel::LayerNormInputGrad, t, vec![dy.clone(), x.clone(), mean, r, gain], &[(all, t)]));
    cases.push(Case::new(Kernel::AddBias, t, vec![x, random(&[h], 97)], &[(all, t)]));
    // Few tokens, so that each comes again many times.
    let tokens = Tensor::tokens(n, 5);
    cases.push(Case::new(Kernel::Embedding, t, vec![tokens.clone(), random(&[5, h], 98)], &[(all, t)]));
    let inputs = vec![dy, tokens, Tensor::random(&[5, h], F, 99)];
    cases.push(Case::new(Kernel::EmbeddingGrad, t, inputs, &[(&[5, h], F)]).adding(2));
    for inverse in [false, true] {
        let kernel = Kernel::Rope { sequence: 13, heads: 3, width: 32, angles: Angles::usual(10_000), inverse };
        cases.push(Case::new(kernel, t, vec![random(&[39, 96], 93)], &[(&[39, 96], t)]));
        let kernel =
            Kernel::RopeTail { sequence: 13, heads: 3, width: 40, tail: 16, angles: Angles::usual(10_000), inverse };
        cases.push(Case::new(kernel, t, vec![random(&[39, 120], 94)], &[(&[39, 120], t)]));
    }
    let (logits, targets) = (random(&[n, vocabulary], 95), Tensor::tokens(n, vocabulary));
    let kernel = Kernel::CrossEntropy { microbatches: 3 };
    let loss = Case::new(kernel, t, vec![logits.clone(), targets.clone()], &[(&[1], F), (&[n], F)]);
    let l = Tensor::new(&[n], F, loss.reference().remove(1).data);
    cases.push(loss);
    let kernel = Kernel::CrossEntropyGrad { microbatches: 3, weight_e12: E12 / 20 };
    cases.push(Case::new(kernel, t, vec![logits, targets, l], &[(&[n, vocabulary], t)]));
    cases
}

/// What one of several members does: rows and columns of another's are not its own.
fn member_cases(t: Dtype) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let mut cases = Vec::new();
    let (n, h, rows) = (300u64, 51u64, 4u64);
    let all = Tensor::tokens(n, 11);
    let own = Case::new(Kernel::OwnTokens { rows }, t, vec![all], &[(&[n], Dtype::I32)]);
    let tokens = own.reference().remove(0);
    cases.push(own);
    cases.push(Case::new(Kernel::Embedding, t, vec![tokens.clone(), random(&[rows, h], 70)], &[(&[n, h], t)]));
    let inputs = vec![random(&[n, h], 71), tokens, Tensor::random(&[rows, h], F, 72)];
    cases.push(Case::new(Kernel::EmbeddingGrad, t, inputs, &[(&[rows, h], F)]).adding(2));
    // 18 rows a member of sequences of 12: the second begins in the middle of one.
    let (sequence, ways) = (12, 2);
    let x = [random(&[18, h], 73), random(&[18, h], 74)];
    let kernel = Kernel::Positions { sequence, ways };
    cases.push(Case::new(kernel, t, vec![x[0].clone(), random(&[13, h], 75)], &[(&[18, h], t)]));
    let inputs = vec![x[1].clone(), Tensor::random(&[13, h], F, 76)];
    cases.push(Case::new(Kernel::PositionsGrad { sequence, ways }, t, inputs, &[(&[13, h], F)]).adding(1));
    let kernel = Kernel::Dropout { site: 5, ways: 3, blocks: 6, sequence: 1 };
    cases.push(Case::new(kernel, t, vec![x[0].clone()], &[(&[18, h], t), (&[18, h], Dtype::U8)]));
    // A vocabulary of 96 over members of 51 columns.
    let logits = random(&[37, h], 77);
    let hide = Case::new(Kernel::HidePadding { vocab: 96 }, t, vec![logits], &[(&[37, h], t)]);
    let hidden = Tensor::new(&[37, h], t, hide.reference().remove(0).data);
    cases.push(hide);
    let greatest = Case::new(Kernel::RowMax, t, vec![hidden.clone()], &[(&[37], F)]);
    let most = Tensor::new(&[37], F, greatest.reference().remove(0).data);
    cases.push(greatest);
    let targets = (0..37).map(|row| if row % 3 == 0 { -1 } else { row }).collect();
    let targets = Tensor { shape: vec![37], dtype: Dtype::I32, data: Data::Tokens(targets) };
    let inputs = vec![hidden.clone(), most.clone(), targets.clone()];
    let sums = Case::new(Kernel::ExpSums, t, inputs, &[(&[37, 2], F)]);
    let part = Tensor::new(&[37, 2], F, sums.reference().remove(0).data);
    cases.push(sums);
    let inputs = vec![most, part, hidden.clone(), targets.clone()];
    let loss = Case::new(Kernel::SharedCrossEntropy { microbatches: 3 }, F, inputs, &[(&[1], F), (&[37], F)]);
    let l = Tensor::new(&[37], F, loss.reference().remove(1).data);
    cases.push(loss);
    let kernel = Kernel::CrossEntropyGrad { microbatches: 3, weight_e12: E12 / 20 };
    cases.push(Case::new(kernel, t, vec![hidden, targets, l], &[(&[37, h], t)]));
    cases
}

/// What works on heads: norms of each, rotary positions on a part of each, latent keys and values.
fn head_cases(t: Dtype) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let mut cases = Vec::new();
    let (n, heads, width) = (37u64, 3u64, 10u64);
    let all: &[u64] = &[n, heads * width];
    let (x, dy, gain) = (random(all, 40), random(all, 41), random(&[width], 42));
    let kernel = Kernel::HeadNorm { eps_e12: 10_000_000, width, offset: true };
    let norm = Case::new(kernel, t, vec![x.clone(), gain.clone()], &[(all, t), (&[n, heads], F)]);
    let r = Tensor::new(&[n, heads], F, norm.reference().remove(1).data);
    cases.push(norm);
    let inputs = vec![dy.clone(), x.clone(), r.clone(), gain];
    cases.push(Case::new(Kernel::HeadNormInputGrad { width, offset: true }, t, inputs, &[(all, t)]));
    let inputs = vec![dy, x, r, Tensor::random(&[width], F, 43)];
    cases.push(Case::new(Kernel::HeadNormGainGrad { width }, t, inputs, &[(&[width], F)]).adding(3));
    let many: &[u64] = &[531, heads * width];
    let sums = [Tensor::random(&[531, heads], F, 46), Tensor::random(&[width], F, 47)];
    let inputs = [vec![random(many, 44), random(many, 45)], sums.to_vec()].concat();
    cases.push(Case::new(Kernel::HeadNormGainGrad { width }, t, inputs, &[(&[width], F)]).adding(3));
    for inverse in [false, true] {
        let kernel = Kernel::RopeTail { sequence: 13, heads, width, tail: 4, angles: Angles::usual(10_000), inverse };
        cases.push(Case::new(kernel, t, vec![random(&[39, heads * width], 44)], &[(&[39, heads * width], t)]));
    }
    let both: [(&[u64], Dtype); 2] = [(&[n, 13], t), (&[n, 5], t)];
    cases.push(Case::new(Kernel::SplitColumns, t, vec![random(&[n, 18], 45)], &both));
    let inputs = vec![random(&[n, 13], 46), random(&[n, 5], 47)];
    cases.push(Case::new(Kernel::JoinColumns, t, inputs, &[(&[n, 18], t)]));
    // Keys of 6 columns per head and 4 shared columns, values of 5.
    let inputs = vec![random(&[n, heads * 11], 48), random(&[n, 4], 49)];
    let outputs: [(&[u64], Dtype); 2] = [(all, t), (&[n, heads * 5], t)];
    cases.push(Case::new(Kernel::LatentKeys { heads }, t, inputs, &outputs));
    let inputs = vec![random(all, 50), random(&[n, heads * 5], 51)];
    let outputs: [(&[u64], Dtype); 2] = [(&[n, heads * 11], t), (&[n, 4], t)];
    cases.push(Case::new(Kernel::LatentKeysGrad { heads }, t, inputs, &outputs));
    cases
}

/// Routing, dispatch and the experts' matrices: an expert that nobody chooses, and rows that nobody fills.
fn expert_cases(t: Dtype) -> Vec<Case> {
    const F: Dtype = Dtype::F32;
    let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
    let mut cases = Vec::new();
    let (n, experts, active, h, f) = (37u64, 6u64, 2u64, 51u64, 29u64);
    let picks: &[u64] = &[n, active];
    let logits = random(&[n, experts], 60);
    let route = |routing| {
        let kernel = Kernel::Route { active, routing };
        Case::new(kernel, t, vec![logits.clone()], &[(picks, t), (picks, Dtype::I32)])
    };
    let of_groups = Routing { factor: Some(2_500_000_000_000), groups: 3, active_groups: 2, ..Routing::USUAL };
    for routing in [
        Routing::USUAL,
        Routing { normed: true, ..Routing::USUAL },
        of_groups,
        Routing { scores: Scores::Sigmoid, normed: true, ..of_groups },
        Routing { scores: Scores::Sigmoid, ..Routing::USUAL },
    ] {
        let chosen = route(routing).reference().remove(1);
        cases.push(route(routing));
        let inputs = vec![random(picks, 61), logits.clone(), chosen];
        cases.push(Case::new(Kernel::RouteGrad { routing }, t, inputs, &[(&[n, experts], t)]));
    }
    let mut routed = route(Routing::USUAL).reference();
    let (chosen, weights) = (routed.remove(1), Tensor::new(picks, t, routed.remove(0).data));
    let m = n * active + 7;
    let (x, rows) = (random(&[n, h], 62), random(&[m, h], 63));
    // One expert more than the router knows: its matrix is there, and no row.
    let dispatched: [(&[u64], Dtype); 3] = [(&[m, h], t), (&[1, experts + 1], Dtype::I32), (&[m, 1], t)];
    let inputs = vec![x.clone(), chosen.clone(), weights];
    let dispatch = Case::new(Kernel::Dispatch { ways: 1 }, t, inputs, &dispatched);
    let arrivals = dispatch.reference().remove(1);
    cases.push(dispatch);
    let back = vec![rows.clone(), chosen.clone(), arrivals.clone()];
    let gradients: [(&[u64], Dtype); 2] = [(&[n, h], t), (picks, t)];
    let inputs = back.iter().cloned().chain([random(&[m, 1], 70)]).collect();
    cases.push(Case::new(Kernel::DispatchGrad { ways: 1 }, t, inputs, &gradients));
    cases.push(Case::new(Kernel::Combine { ways: 1 }, t, back, &[(&[n, h], t)]));
    let inputs = vec![x, chosen, arrivals.clone()];
    cases.push(Case::new(Kernel::CombineGrad { ways: 1 }, t, inputs, &[(&[m, h], t)]));
    // Rows that are made of whole packs of 16 bytes, and ones that are not.
    for (activation, f) in [(Activation::Silu, 32u64), (Activation::Gelu, 29), (Activation::Silu, 29)] {
        let (wide, shares): (&[u64], Tensor) = (&[m, f], random(&[m, 1], 71));
        let [dy, gate, up] = [72, 73, 74].map(|seed| random(wide, seed));
        let inputs = vec![gate.clone(), up.clone(), shares.clone()];
        cases.push(Case::new(Kernel::WeightedGlu { activation }, t, inputs, &[(wide, t)]));
        let outputs: [(&[u64], Dtype); 3] = [(wide, t), (wide, t), (&[m, 1], t)];
        cases.push(Case::new(Kernel::WeightedGluGrad { activation }, t, vec![dy, gate, up, shares], &outputs));
    }
    let (x, gate) = (random(&[n, h], 67), random(&[n, 1], 68));
    cases.push(Case::new(Kernel::RowGate, t, vec![x.clone(), gate.clone()], &[(&[n, h], t)]));
    let outputs: [(&[u64], Dtype); 2] = [(&[n, h], t), (&[n, 1], t)];
    cases.push(Case::new(Kernel::RowGateGrad, t, vec![random(&[n, h], 69), x, gate], &outputs));
    let w = random(&[experts + 1, f, h], 64);
    let kernel = |transpose_b| Kernel::ExpertMatMul { transpose_b };
    let dy = random(&[m, f], 65);
    cases.push(Case::new(kernel(true), t, vec![rows.clone(), w.clone(), arrivals.clone()], &[(&[m, f], t)]));
    cases.push(Case::new(kernel(false), t, vec![dy.clone(), w, arrivals.clone()], &[(&[m, h], t)]));
    let shape: &[u64] = &[experts + 1, f, h];
    let inputs = vec![dy, rows, arrivals, Tensor::random(shape, F, 66)];
    cases.push(Case::new(Kernel::ExpertMatMulGrad, t, inputs, &[(shape, F)]).adding(3));
    cases
}
