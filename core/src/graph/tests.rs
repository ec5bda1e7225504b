//! What every graph keeps, and bytes against closed forms.

use std::collections::BTreeSet;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::build::{forward_graph, stage_graph};
use super::builder::operator;
use super::form::Form;
use super::form::StageShape;
use super::liveness::{JobMemory, Lifetimes, fused_order, run_in_place};
use super::post_training::{Frozen, Lora, Targets};
use super::*;
use crate::model::catalog;
use crate::model::{
    Activation, Arrangement, Caps, Experts, Factors, Family, Global, Latent, ModelConfig, Norm, QkNorm, Routing,
    Scores, Variant, Window,
};

fn variant() -> impl Strategy<Value = Variant> {
    let experts =
        (2u32..9, 1u32..3, 1u32..9, 0u32..5, 0u32..3).prop_map(|(count, active, ffn, shared_ffn, dense_layers)| {
            let shared_gate = shared_ffn > 0 && count % 2 == 0;
            let scores = if active == 2 { Scores::Sigmoid } else { Scores::Softmax };
            let routing = Routing { scores, normed: count % 3 == 0, ..Routing::USUAL };
            Experts {
                count,
                active,
                ffn,
                shared_ffn,
                dense_layers,
                layers: None,
                biases: false,
                shared_gate,
                routing,
            }
        });
    let latent = (0u32..4, 1u32..4, 1u32..5).prop_map(|(query_rank, key_value_rank, value_width)| Latent {
        query_rank,
        key_value_rank,
        rope_width: 2,
        value_width,
    });
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let number = || prop::option::of(1u64..=5_000_000_000_000);
    let factors = (number(), number(), number(), number());
    let numbers = (any::<bool>(), factors, (number(), number()));
    let window = (1u32..9, 0u32..3).prop_map(|(tokens, full_every)| Window::sliding(tokens, full_every));
    let parts = (prop::option::of(experts), prop::option::of(latent), prop::option::of(window), 0u32..3);
    (flags, parts, numbers).prop_map(
        |((qkv_bias, qk_norm, post_norms, gelu), (experts, latent, window, multi_token), numbers)| Variant {
            qkv_bias,
            qk_norm,
            post_norms,
            activation: if gelu { Activation::Gelu } else { Activation::Silu },
            experts,
            latent,
            window,
            multi_token,
            norm_offset: numbers.0,
            factors: Factors {
                embedding: numbers.1.0,
                residual: numbers.1.1,
                attention: numbers.1.2,
                logits: numbers.1.3,
            },
            caps: Caps { attention: numbers.2.0, logits: numbers.2.1 },
            ..Variant::USUAL
        },
    )
}

/// What there is of [`Variant`] for GPT-like decoders.
fn gpt_variant() -> impl Strategy<Value = Variant> {
    let window = (1u32..9, 0u32..3).prop_map(|(tokens, full_every)| Window::sliding(tokens, full_every));
    let arrangement = prop::sample::select(Arrangement::ALL.to_vec());
    (prop::option::of(window), any::<bool>(), arrangement, any::<bool>()).prop_map(
        |(window, rotary, arrangement, no_bias)| Variant {
            window,
            rotary: rotary.then_some(2),
            arrangement,
            no_bias,
            ..Variant::USUAL
        },
    )
}

/// Norms, biases, and how attention and MLP are arranged, for Llama-like decoders.
fn norms() -> impl Strategy<Value = (Norm, Arrangement, Activation, [bool; 4])> {
    let of = |all: &[Activation]| prop::sample::select(all.to_vec());
    (
        prop::sample::select(Norm::ALL.to_vec()),
        prop::sample::select(Arrangement::ALL.to_vec()),
        of(&Activation::ALL),
        any::<[bool; 4]>(),
    )
}

/// `variant` with them, where its other parts go with that.
fn normed(variant: Variant, norms: (Norm, Arrangement, Activation, [bool; 4])) -> Variant {
    let (norm, arrangement, activation, [embedding_norm, mlp_bias, head_bias, clipped]) = norms;
    if variant.latent.is_some() || variant.experts.is_some() || variant.multi_token > 0 {
        return variant;
    }
    Variant {
        norm,
        norm_offset: variant.norm_offset && norm.weights() > 0,
        arrangement: if variant.post_norms { Arrangement::InTurn } else { arrangement },
        activation,
        embedding_norm,
        mlp_bias,
        head_bias,
        qkv_clip: clipped.then_some(crate::model::E12),
        qk_norm_of: if variant.qk_norm && clipped { QkNorm::LayerHeads } else { variant.qk_norm_of },
        value_norm: mlp_bias,
        layer_scale: head_bias,
        global: variant.window.filter(|_| embedding_norm).map(|_| Global {
            head_dim: 4,
            kv_heads: 1,
            rotary: clipped.then_some(2),
            keys_are_values: head_bias,
        }),
        ..variant
    }
}

fn config() -> impl Strategy<Value = ModelConfig> {
    let sizes = (1u32..5, 1u32..5, 1u32..4, 1u32..4, 1u32..9, 2u32..20);
    let kind = (any::<bool>(), any::<bool>(), variant(), gpt_variant(), norms());
    (sizes, kind).prop_map(
        |((layers, hidden, kv_heads, group, ffn, vocab), (llama, tied, variant, of_gpt, norms))| {
            let variant = normed(variant, norms);
            let latent = llama && variant.latent.is_some();
            ModelConfig {
                family: if llama { Family::Llama } else { Family::Gpt },
                layers,
                hidden: 2 * hidden,
                heads: kv_heads * group,
                kv_heads: if latent { kv_heads * group } else { kv_heads },
                head_dim: if latent { 4 } else { 2 },
                ffn,
                vocab,
                positions: 16,
                rope_base: 10_000,
                norm_eps_e12: 10_000_000,
                tied,
                variant: if llama { variant } else { of_gpt },
            }
        },
    )
}

fn form() -> impl Strategy<Value = Form> {
    use form::{AttentionForm, Recompute};
    let attention = prop_oneof![Just(AttentionForm::Flash), Just(AttentionForm::Materialised)];
    let recompute =
        prop::sample::select(vec![Recompute::None, Recompute::Selective, Recompute::Cheap, Recompute::Full]);
    let spread = (1u32..4, 1u32..4, any::<bool>(), 1000u32..2000, any::<bool>());
    (attention, any::<bool>(), recompute, 1u32..4, any::<bool>(), spread).prop_map(
        |(attention, dropout, recompute, tensor, sequence_parallel, spread)| Form {
            attention,
            dropout,
            recompute,
            tensor,
            sequence_parallel,
            async_reduce: spread.4,
            context: spread.0,
            expert: spread.1,
            whole_experts: spread.2 && sequence_parallel,
            expert_tensor: 0,
            imbalance_permille: spread.3,
            router_losses: form::RouterLosses {
                balance_e12: u64::from(spread.3 % 2),
                z_e12: u64::from(spread.3 % 5),
            },
            f32_logits: dropout,
            matmul_dtype: dropout.then_some(Dtype::Fp8),
            bf16_gradients: dropout,
            frozen: frozen(spread.3 % 7),
            lora: (spread.3 % 7 == 6).then_some(Lora { rank: 2, alpha: 4, targets: Targets::ALL }),
            offload: [form::Offload::None, form::Offload::First(1), form::Offload::All][spread.3 as usize % 3],
        },
    )
}

/// Nothing frozen, or some of it: with 4 and 5 the first layer's backward is the last there is.
fn frozen(pick: u32) -> Frozen {
    let mut frozen = Frozen::NONE;
    let texts: &[&str] = match pick {
        1 => &["layers.0"],
        2 => &["attention", "norms"],
        3 => &["mlp", "head"],
        4 => &["embedding", "layers.0"],
        5 => &["embedding", "attention"],
        _ => &[],
    };
    texts.iter().for_each(|text| frozen.add(text).unwrap_or_else(|why| panic!("{text}: {why:?}")));
    frozen
}

fn shape() -> impl Strategy<Value = (ModelConfig, StageShape)> {
    let dtype = prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::F64)];
    (config(), any::<bool>(), any::<bool>(), 1u32..4, 1u32..8, dtype, form()).prop_map(
        |(model, has_embedding, has_head, microbatch_size, sequence, dtype, form)| {
            let shape = StageShape {
                layers: 0..model.layers,
                has_embedding,
                has_head,
                modules: crate::model::Modules::default(),
                microbatch_size,
                sequence,
                dtype,
                form,
            };
            (model, shape)
        },
    )
}

fn memory(graph: &Graph) -> [JobMemory; 3] {
    Lifetimes::of(graph).memory(graph)
}

/// Whatever starts is waited for once, later and in the same job, and nobody else touches it.
fn assert_starts_and_waits(graph: &Graph) {
    for (at, operator) in graph.operators.iter().enumerate() {
        assert_eq!(operator.stream != Stream::Compute, operator.kernel.starts());
        assert_eq!(operator.stream == Stream::Copies, operator.kernel.copies());
        if !operator.kernel.starts() {
            continue;
        }
        let started = operator.outputs[0];
        let uses = |other: &Operator| other.inputs.iter().any(|input| input.tensor == started);
        let waits: Vec<usize> = (0..graph.operators.len()).filter(|at| uses(&graph.operators[*at])).collect();
        let wait = match waits[..] {
            [wait] => wait,
            // A copy is there for whoever comes behind the wait.
            [wait, ..] if operator.kernel.copies() => wait,
            _ => panic!("{} is used by {waits:?}", graph[started].name),
        };
        assert!(wait > at && graph.operators[wait].job == operator.job);
        assert!(graph.operators[wait].kernel.waits() && graph.operators[wait].inputs[0].tensor == started);
    }
}

/// The promises of the module's documentation.
fn assert_well_formed(graph: &Graph) {
    assert_eq!(graph.forward_len(), graph.job(Job::F).count(), "F comes first");
    assert_starts_and_waits(graph);
    let mut there: BTreeSet<TensorId> =
        graph.tensors().filter(|(_, tensor)| tensor.role.is_persistent()).map(|(id, _)| id).collect();
    let mut gone: BTreeSet<TensorId> = BTreeSet::new();
    for job in Job::ALL {
        there.extend(graph.tensors().filter(|(_, tensor)| tensor.role.arrives_in() == Some(job)).map(|(id, _)| id));
        for operator in graph.job(job) {
            for input in operator.inputs.iter().filter(|input| input.needs == Needs::Data) {
                let tensor = &graph[input.tensor];
                assert!(there.contains(&input.tensor), "{} reads {}", operator.kernel.name(), tensor.name);
                assert!(!gone.contains(&input.tensor), "{} reads {}", operator.kernel.name(), tensor.name);
            }
            for output in &operator.outputs {
                if let Role::WeightGradient { of } = graph[*output].role {
                    assert_eq!(operator.inputs.last().map(|input| input.tensor), Some(*output));
                    assert_eq!(graph[of].shape, graph[*output].shape);
                    assert!(job != Job::F);
                } else {
                    assert!(there.insert(*output), "{} is written twice", graph[*output].name);
                    let again = graph[*output].name.ends_with(" again") || graph[*output].name.ends_with(" back");
                    assert!(job != Job::W || again, "W writes only gradients of weights, and what it needs again");
                }
            }
            if let Some(at) = operator.in_place {
                let input = operator.inputs[at as usize].tensor;
                assert_eq!(graph[input].shape, graph[operator.outputs[0]].shape);
                assert_eq!(graph[input].dtype, graph[operator.outputs[0]].dtype);
                gone.insert(input);
            }
        }
    }
    for (id, tensor) in graph.tensors() {
        assert!(there.contains(&id), "{} is never written", tensor.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn graphs_keep_their_promises((model, shape) in shape()) {
        let graph = stage_graph(&model, &shape, 4);
        assert_well_formed(&graph);
        let has = |role| graph.with_role(role).is_some();
        prop_assert_eq!(has(Role::ActivationIn), !shape.has_embedding);
        let before = !shape.has_embedding && build::trains_before(&model, &shape);
        let here = graph.weights().any(|(_, weight)| !weight.is_frozen());
        prop_assert_eq!(has(Role::GradientOut), before, "the first stage that trains sends no gradient");
        prop_assert_eq!(has(Role::ActivationOut), !shape.has_head);
        prop_assert_eq!(has(Role::GradientIn), !shape.has_head && (before || here));
        prop_assert_eq!(graph.tensors().any(|(_, tensor)| matches!(tensor.role, Role::Loss { .. })), shape.has_head);
        for (weight, tensor) in graph.weights() {
            let gradient = graph.gradient_of(weight);
            let written = graph.operators.iter().any(|operator| operator.outputs.first().copied() == gradient);
            prop_assert_eq!(gradient.is_some() && written, !tensor.is_frozen(), "{}", tensor.name);
            prop_assert!(gradient.is_none() || !tensor.is_frozen());
        }
    }

    #[test]
    fn every_byte_is_given_back((model, shape) in shape()) {
        let memory = memory(&stage_graph(&model, &shape, 4));
        prop_assert_eq!(memory.iter().map(|job| job.net).sum::<i64>(), 0);
        prop_assert!(memory[0].net >= 0);
        for job in memory {
            prop_assert!(i128::from(job.peak) >= i128::from(job.net));
        }
    }

    /// The fused order keeps every dependency and both jobs' own orders, and gives back what B and W give back.
    #[test]
    fn fused_is_b_and_w_in_another_order((model, shape) in shape()) {
        let graph = stage_graph(&model, &shape, 4);
        let order = fused_order(&graph);
        let forward = graph.job(Job::F).count();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (forward as u32..graph.operators.len() as u32).collect::<Vec<_>>());
        for job in [Job::B, Job::W] {
            let own: Vec<u32> =
                order.iter().copied().filter(|at| graph.operators[*at as usize].job == job).collect();
            prop_assert!(own.is_sorted());
        }
        let mut place = vec![0; graph.operators.len()];
        order.iter().enumerate().for_each(|(at, operator)| place[*operator as usize] = at + 1);
        for (at, operator) in graph.operators.iter().enumerate() {
            for input in operator.inputs.iter().filter(|input| !graph[input.tensor].role.is_persistent()) {
                let maker = graph.operators.iter().position(|other| other.outputs.contains(&input.tensor));
                prop_assert!(maker.is_none_or(|maker| maker < forward || place[maker] < place[at]));
            }
        }
        let [_, b, w] = memory(&graph);
        let fused = Lifetimes::fused(&graph).memory_fused(&graph);
        prop_assert_eq!(fused.net, b.net + w.net);
        let apart = i128::from(b.peak).max(i128::from(b.net) + i128::from(w.peak));
        let mut outputs = graph.job(Job::W).flat_map(|operator| &operator.outputs);
        let makes_in_w = outputs.any(|output| !graph[*output].role.is_persistent());
        prop_assert!(makes_in_w || i128::from(fused.peak) <= apart, "{} beyond {apart}", fused.peak);
    }

    /// A use of which only the shape is needed never costs memory, and running in place never does.
    #[test]
    fn the_rules_only_save((model, shape) in shape(), picks in prop::collection::vec(any::<prop::sample::Index>(), 4)) {
        let mut graph = stage_graph(&model, &shape, 4);
        let before = peaks(&graph);
        for operator in &mut graph.operators {
            operator.in_place = None;
        }
        let apart = peaks(&graph);
        prop_assert!(before.iter().zip(&apart).all(|(in_place, apart)| in_place <= apart));
        for pick in picks {
            let operator = pick.get(&graph.operators).clone();
            let at = graph.operators.iter().position(|other| *other == operator).unwrap_or(0);
            // What arrives and is nobody's to read is held until its job ends.
            let arrives = |input: &Use| graph.tensors[input.tensor.index()].role.arrives_in().is_some();
            if let Some(input) = graph.operators[at].inputs.first_mut().filter(|input| !arrives(input)) {
                input.needs = Needs::Shape;
            }
        }
        let lean = peaks(&graph);
        prop_assert!(lean.iter().zip(&apart).all(|(lean, apart)| lean <= apart));
    }
}

/// The most bytes held at once up to the end of each job.
fn peaks(graph: &Graph) -> [i128; 3] {
    let mut held = 0;
    memory(graph).map(|job| {
        let peak = held + i128::from(job.peak);
        held += i128::from(job.net);
        peak
    })
}

#[test]
fn weights_of_all_stages_are_the_model() {
    for entry in catalog::catalog() {
        let model = entry.config;
        let cut = model.layers / 3;
        let whole = |layers, has_embedding, has_head| {
            let shape = StageShape {
                layers,
                has_embedding,
                has_head,
                modules: crate::model::Modules::default(),
                microbatch_size: 1,
                sequence: 8,
                dtype: Dtype::Bf16,
                form: Form::default(),
            };
            let graph = forward_graph(&model, &shape, 1);
            graph.weights().map(|(_, weight)| weight.elements()).sum::<u64>()
        };
        let all = model.parameters() + model.multi_token_parameters();
        assert_eq!(whole(0..model.layers, true, true), all, "{}", entry.name);
        let parts = whole(0..cut, true, false) + whole(cut..model.layers, false, true);
        let shares_table = model.tied || model.variant.multi_token > 0;
        let twice = if shares_table { u64::from(model.vocab) * u64::from(model.hidden) } else { 0 };
        assert_eq!(parts, all + twice, "{}", entry.name);
        for layer in [0, model.layers - 1] {
            let counted = whole(layer..layer + 1, false, false);
            assert_eq!(counted, model.layer_parameters(layer), "{} layer {layer}", entry.name);
        }
    }
}

/// What a flash-attention Llama layer keeps for each token in bf16, by its saved tensors: both norms' inputs and
/// outputs (2h each), Q and the attention's output (2ad each), K and V (2gd each), gate, up and their product (2f
/// each), the log-sum-exp (4a) and two inverse RMS (4 each).
///
/// After B: the inputs of all linear layers and the gradients of all their outputs, of which the two residual
/// gradients are each shared.
#[test]
fn a_llama_layer_keeps_what_its_tensors_say() {
    for name in ["llama-2-7b", "llama-3-70b", "tiny-llama"] {
        let model = catalog::find(name).map(|entry| entry.config).unwrap();
        let layers = 2;
        let shape = StageShape {
            layers: 1..1 + layers,
            has_embedding: false,
            has_head: false,
            modules: crate::model::Modules::default(),
            microbatch_size: 2,
            sequence: 128,
            dtype: Dtype::Bf16,
            form: Form::default(),
        };
        let [f, b, w] = memory(&stage_graph(&model, &shape, 1));
        let [h, a, g, ffn] = [model.hidden, model.heads, model.kv_heads, model.ffn].map(i64::from);
        let d = i64::from(model.head_dim);
        let (all_layers, n) = (i64::from(layers), 256);
        let kept = 4 * 2 * h + 2 * 2 * a * d + 2 * 2 * g * d + 3 * 2 * ffn + 4 * a + 2 * 4;
        assert_eq!(f.net, all_layers * n * kept, "{name}");
        let inputs = 2 * h + 2 * a * d + 2 * h + 2 * ffn;
        let gradients = 2 * (a * d + 2 * g * d) + 2 * h + 2 * 2 * ffn + 2 * h;
        // The gradient that one layer passes down is the one that the layer below keeps.
        assert_eq!(f.net + b.net, all_layers * n * (inputs + gradients), "{name}");
        assert_eq!(w.net, -(f.net + b.net));
        assert_eq!(w.workspace(), 0, "W takes nothing");
    }
}

/// Bytes that F of one GPT layer keeps for `b` sequences of `s` tokens.
fn gpt_layer(form: Form) -> (ModelConfig, i64) {
    let model = catalog::find("gpt-3-175b").map(|entry| entry.config).unwrap();
    let shape = StageShape {
        layers: 5..6,
        has_embedding: false,
        has_head: false,
        modules: crate::model::Modules::default(),
        microbatch_size: 2,
        sequence: 64,
        dtype: Dtype::Bf16,
        form,
    };
    (model, memory(&stage_graph(&model, &shape, 1))[0].net)
}

/// Table 2 of Korthikanti et al. (arXiv:2205.05198), whose setting is a GPT layer with dropout and materialised
/// scores. They leave out the mean and deviation of both norms, which we keep: 4 bytes each for each token held.
#[test]
fn a_gpt_layer_keeps_what_is_published() {
    use form::{AttentionForm, Recompute};
    let published = Form { attention: AttentionForm::Materialised, dropout: true, ..Form::default() };
    let (s, b) = (64i64, 2i64);
    for t in [1, 2, 4, 8] {
        for sequence_parallel in [false, true] {
            for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
                let form = Form { tensor: t as u32, sequence_parallel, recompute, ..published };
                let (model, kept) = gpt_layer(form);
                let (h, a) = (i64::from(model.hidden), i64::from(model.heads));
                let scores = if recompute == Recompute::None { 5 * a * s * s * b / t } else { 0 };
                // The share of what lies between the matrices.
                let tokens = if sequence_parallel { s * b / t } else { s * b };
                let layer = match (recompute, sequence_parallel) {
                    (Recompute::Full, _) => 2 * tokens * h,
                    (_, false) => s * b * h * 10 + s * b * h * 24 / t,
                    (_, true) => s * b * h * 34 / t,
                };
                let norms = if recompute == Recompute::Full { 0 } else { 2 * 2 * 4 * tokens };
                let expected = layer + norms + if recompute == Recompute::Full { 0 } else { scores };
                assert_eq!(kept, expected, "t={t} {sequence_parallel} {recompute:?}");
            }
        }
    }
    // With flash attention and no recompute, the log-sum-exp takes the place of the scores.
    let flash = Form { attention: AttentionForm::Flash, ..published };
    let (model, kept) = gpt_layer(flash);
    let (h, a) = (i64::from(model.hidden), i64::from(model.heads));
    assert_eq!(kept, s * b * (34 * h + 4 * a + 16));
}

/// Activations of the first stage under interleaved 1F1B, in GiB, as Korthikanti et al. give them for their four models
/// (arXiv:2205.05198, figure 7 and table 3): `layers · (1 + (p − 1)/(p·v))` layers of ours.
#[test]
fn the_four_published_models_hold_what_is_published() {
    use form::{AttentionForm, Recompute};
    // Layers, hidden, heads, microbatch size, p, v; GiB without sequence parallelism, and with it and selective recompute.
    let rows = [
        (48, 6144, 64, 4, 1, 1, 59.25, 9.5625),
        (96, 12_288, 96, 1, 8, 3, 66.84375, 12.351_562_5),
        (105, 20_480, 128, 1, 35, 3, 114.023_437_5, 23.076_171_875),
        (128, 25_600, 160, 1, 64, 1, 131.25, 26.5625),
    ];
    for (layers, hidden, heads, microbatch_size, p, v, plain, lean) in rows {
        let base = catalog::find("gpt-3-175b").map(|entry| entry.config).unwrap();
        let head_dim = hidden / heads;
        let model = ModelConfig { layers, hidden, heads, kv_heads: heads, head_dim, ffn: 4 * hidden, ..base };
        for (sequence_parallel, recompute, published) in
            [(false, Recompute::None, plain), (true, Recompute::Selective, lean)]
        {
            let attention = AttentionForm::Materialised;
            let form = Form { attention, dropout: true, recompute, tensor: 8, sequence_parallel, ..Form::default() };
            let shape = StageShape {
                layers: 1..2,
                has_embedding: false,
                has_head: false,
                modules: crate::model::Modules::default(),
                microbatch_size,
                sequence: 2048,
                dtype: Dtype::Bf16,
                form,
            };
            let kept = memory(&stage_graph(&model, &shape, 1))[0].net as f64;
            // In flight beyond one pass of the model: p − 1 chunks of layers/(p·v), but for p = 64 they give the one pass.
            let in_flight = if v == 1 { 1.0 } else { 1.0 + f64::from(p - 1) / f64::from(p * v) };
            let gib = kept * f64::from(layers) * in_flight / f64::from(1 << 30);
            // Theirs leaves out the statistics of norms.
            assert!((gib / published - 1.0).abs() < 0.001, "{hidden}: {gib} against {published}");
        }
    }
}

/// With flash attention, B alone frees almost nothing: W needs the inputs of all matrices and the gradients of their
/// outputs, 32sbh of 34sbh in a GPT layer.
#[test]
fn a_deferred_w_holds_most_of_a_microbatch() {
    let model = catalog::find("gpt-3-175b").map(|entry| entry.config).unwrap();
    let shape = StageShape {
        layers: 3..4,
        has_embedding: false,
        has_head: false,
        modules: crate::model::Modules::default(),
        microbatch_size: 1,
        sequence: 2048,
        dtype: Dtype::Bf16,
        form: Form { dropout: true, ..Form::default() },
    };
    let [f, b, _] = memory(&stage_graph(&model, &shape, 1));
    let sbh = 2048 * i64::from(model.hidden);
    assert_eq!(f.net + b.net, 32 * sbh);
    assert!((f.net + b.net) * 1000 / f.net >= 930, "{} of {}", f.net + b.net, f.net);
}

/// With a layer's W right behind its B, one layer's recomputed tensors are held at a time, however many layers there are.
#[test]
fn a_fused_backward_makes_one_layer_again_at_a_time() {
    let model = catalog::find("llama-2-7b").map(|entry| entry.config).unwrap();
    let peaks = [2, 3, 6].map(|layers| {
        let shape = StageShape {
            layers: 0..layers,
            has_embedding: false,
            has_head: false,
            modules: crate::model::Modules::default(),
            microbatch_size: 1,
            sequence: 256,
            dtype: Dtype::Bf16,
            form: Form::default().recomputing(form::Recompute::Full),
        };
        let graph = stage_graph(&model, &shape, 1);
        let [f, b, _] = memory(&graph);
        assert_eq!(f.net, i64::from(layers) * 256 * 2 * i64::from(model.hidden), "the layers' inputs");
        assert!(b.net > 0, "B alone leaves all that W needs");
        let fused = Lifetimes::fused(&graph).memory_fused(&graph);
        assert_eq!(fused.net, -f.net);
        fused.peak
    });
    // With one layer more, one layer input more is given back before the last layer's peak, which never leads.
    assert_eq!(peaks, [peaks[0]; 3]);
}

/// `uniform` keeps the input of every group of layers, `block` the inputs of the first layers and all of the others.
#[test]
fn groups_and_blocks_keep_what_they_say() {
    use form::Recompute;
    use passes::recompute::Choices;
    let model = catalog::find("llama-2-7b").map(|entry| entry.config).unwrap();
    let shape = StageShape {
        layers: 4..16,
        has_embedding: false,
        has_head: false,
        modules: crate::model::Modules::default(),
        microbatch_size: 1,
        sequence: 256,
        dtype: Dtype::Bf16,
        form: Form::default(),
    };
    let kept = |choices: &Choices| memory(&build::stage_graph_with(&model, &shape, 1, choices).0)[0].net;
    let (none, input) = (kept(&Choices::same(Recompute::None)), 256 * 2 * i64::from(model.hidden));
    for group in [1, 2, 3, 4, 5, 12, 20] {
        let choices = Choices { group, first: 4, ..Choices::same(Recompute::Full) };
        assert_eq!(
            kept(&choices),
            12i64.div_euclid(i64::from(group)).max(12_u32.div_ceil(group).into()) * input,
            "{group}"
        );
    }
    for first in 0..=12 {
        let mut by_layer = vec![Recompute::None; 12];
        by_layer[..first].fill(Recompute::Full);
        let choices = Choices { by_layer, first: 4, ..Choices::same(Recompute::None) };
        assert_eq!(kept(&choices), first as i64 * input + (12 - first as i64) * none / 12, "{first}");
    }
}

/// x [4] → a = gelu(x) → b = gelu(a) → loss-like end, by hand.
#[test]
fn a_chain_by_hand() {
    let mut graph = Graph::default();
    let shape = || vec![1u64, 4];
    let x = graph.add("x".to_string(), shape(), Dtype::F32, Role::ActivationIn);
    let a = graph.add("a".to_string(), shape(), Dtype::F32, Role::Intermediate);
    let b = graph.add("b".to_string(), shape(), Dtype::F32, Role::ActivationOut);
    graph.operators.push(operator(Kernel::Gelu, Job::F, None, &[x], &[a]));
    graph.operators.push(operator(Kernel::Gelu, Job::F, None, &[a], &[b]));
    backward::derive(&mut graph, true);
    // 16 bytes each. F: x, a and b at its peak; x and a stay, b leaves.
    let [f, backward_input, w] = memory(&graph);
    assert_eq!((f.net, f.peak, f.workspace()), (32, 48, 16));
    // B finds x and a; db arrives, da is made (peak +32), db and a go, dx is made (+16), all goes, dx leaves.
    assert_eq!((backward_input.net, backward_input.peak), (-32, 32));
    assert_eq!(w, JobMemory::default());
    run_in_place(&mut graph);
    // Now da takes the place of db, and dx that of da.
    let [f, backward_input, _] = memory(&graph);
    assert_eq!((f.net, f.peak), (32, 48), "a gelu keeps its input, so it cannot run in place");
    assert_eq!((backward_input.net, backward_input.peak), (-32, 16));
}

#[test]
fn only_the_shape_frees_early() {
    let mut graph = Graph::default();
    let x = graph.add("x".to_string(), vec![8], Dtype::F32, Role::ActivationIn);
    let y = graph.add("y".to_string(), vec![8], Dtype::F32, Role::Intermediate);
    let z = graph.add("z".to_string(), vec![8], Dtype::F32, Role::ActivationOut);
    graph.operators.push(operator(Kernel::Gelu, Job::F, None, &[x], &[y]));
    graph.operators.push(operator(Kernel::Add, Job::F, None, &[y, x], &[z]));
    assert_eq!(memory(&graph)[0].peak, 96);
    graph.operators[1].inputs[1].needs = Needs::Shape;
    assert_eq!(memory(&graph)[0].peak, 64);
}
