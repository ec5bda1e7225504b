//! Gradients are the slopes of the loss, and no pass changes a bit of them.

use std::format;
use std::vec;
use std::vec::Vec;

use super::formulas::{capped, slope_within};
use super::run::{Run, prepare, prepare_with, run, run_as};
use crate::graph::build::stage_graph_with;
use crate::graph::form::{AttentionForm, Form, Offload, Recompute, RouterLosses, StageShape};
use crate::graph::{Graph, Kernel};
use crate::model::{
    Activation, Arrangement, Caps, Dtype, E12, Experts, Factors, Family, Global, Latent, LayerPattern, ModelConfig,
    Norm, QkNorm, Recurrence, RecurrenceKind, Routing, Scores, Temperature, Variant, Window,
};

fn check_gradients(model: ModelConfig, form: Form, cuts: &[u32]) {
    let (stages, mut weights, tokens) = prepare(model, form, cuts);
    let Run { gradients, .. } = run(&stages, &weights, &tokens);
    for (name, gradient) in &gradients {
        // A bias of all keys that are not turned shifts all scores of a query alike, which the softmax does not see.
        let reaches = gradient.iter().any(|slope| slope.abs() > 1e-5);
        let turned = model.family == Family::Llama || model.variant.rotary.is_some();
        let unseen = name.ends_with("k_proj.bias") && !turned;
        assert_ne!(reaches, unseen, "{name} of {:?}: {gradient:?}", model.variant);
        for element in [0, gradient.len() / 2, gradient.len() - 1] {
            let step = 1e-5;
            let mut loss_at = |shift: f64| {
                let kept = weights[name][element];
                weights.get_mut(name).unwrap()[element] = kept + shift;
                let loss = run_as(&stages, &weights, &tokens, false).loss;
                weights.get_mut(name).unwrap()[element] = kept;
                loss
            };
            let slope = (loss_at(step) - loss_at(-step)) / (2.0 * step);
            let found = gradient[element];
            // The difference is exact to about step² and 1e-16/step.
            assert!((slope - found).abs() < 1e-8 + 1e-6 * slope.abs(), "{name}[{element}]: {found} against {slope}");
        }
    }
}

fn tiny(family: Family, tied: bool) -> ModelConfig {
    ModelConfig {
        family,
        layers: 2,
        hidden: 6,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        ffn: 5,
        vocab: 7,
        positions: 4,
        rope_base: 100,
        norm_eps_e12: 10_000_000,
        tied,
        variant: crate::model::Variant::USUAL,
    }
}

fn tiny_experts() -> Experts {
    Experts {
        count: 4,
        active: 2,
        ffn: 5,
        shared_ffn: 0,
        shared_gate: false,
        dense_layers: 0,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    }
}

/// The loss and every gradient are those of the other run, but for the order of sums.
fn assert_same(found: &Run, expected: &Run, what: &str) {
    assert!((found.loss - expected.loss).abs() < 1e-13, "{what}");
    for (name, gradient) in &expected.gradients {
        for (found, expected) in found.gradients[name].iter().zip(gradient) {
            assert!((found - expected).abs() < 1e-12, "{name} of {what}: {found} {expected}");
        }
    }
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    for family in [Family::Llama, Family::Gpt] {
        for (tied, cuts) in [(false, &[][..]), (true, &[]), (false, &[1]), (true, &[1])] {
            check_gradients(tiny(family, tied), Form::default(), cuts);
        }
    }
}

#[test]
fn so_they_are_in_newer_families() {
    let experts = tiny_experts();
    let latent = Latent { query_rank: 5, key_value_rank: 6, rope_width: 2, value_width: 3 };
    let window = Some(Window::sliding(2, 2));
    let deepseek_v2 = Routing { factor: Some(3 * E12), groups: 2, active_groups: 1, ..Routing::USUAL };
    let deepseek_v3 = Routing { scores: Scores::Sigmoid, normed: true, ..deepseek_v2 };
    for variant in [
        Variant { qk_norm: true, ..Variant::USUAL },
        Variant { post_norms: true, activation: Activation::Gelu, window, ..Variant::USUAL },
        Variant { experts: Some(experts), ..Variant::USUAL },
        Variant {
            experts: Some(Experts { shared_ffn: 3, dense_layers: 1, layers: None, biases: false, ..experts }),
            latent: Some(latent),
            ..Variant::USUAL
        },
        Variant { experts: Some(Experts { shared_ffn: 3, shared_gate: true, ..experts }), ..Variant::USUAL },
        Variant {
            experts: Some(Experts { routing: Routing { normed: true, ..Routing::USUAL }, ..experts }),
            ..Variant::USUAL
        },
        Variant { experts: Some(Experts { routing: deepseek_v2, ..experts }), ..Variant::USUAL },
        Variant { experts: Some(Experts { routing: deepseek_v3, ..experts }), ..Variant::USUAL },
        Variant {
            experts: Some(Experts { routing: Routing { normed: false, ..deepseek_v3 }, ..experts }),
            ..Variant::USUAL
        },
        Variant { latent: Some(Latent { query_rank: 0, ..latent }), ..Variant::USUAL },
        Variant { multi_token: 2, ..Variant::USUAL },
        Variant { multi_token: 1, experts: Some(experts), ..Variant::USUAL },
    ] {
        let kv_heads = if variant.latent.is_some() { 4 } else { 2 };
        let model = ModelConfig { variant, kv_heads, ..tiny(Family::Llama, false) };
        check_gradients(model, Form::default(), &[]);
        check_gradients(model, Form { imbalance_permille: 1250, ..Form::default() }, &[1]);
    }
}

/// Losses of routers train with the rest, whatever scores are, and devices that share matrices count each once.
#[test]
fn so_they_are_with_losses_of_routers() {
    let experts = Experts { ffn: 6, ..tiny_experts() };
    for scores in [Scores::Softmax, Scores::Sigmoid] {
        let routing = Routing { scores, normed: true, ..Routing::USUAL };
        let variant = Variant { experts: Some(Experts { routing, ..experts }), ..Variant::USUAL };
        let model = ModelConfig { variant, ..tiny(Family::Llama, false) };
        let router_losses = RouterLosses { balance_e12: E12 / 2, z_e12: E12 / 4 };
        let with_losses = Form { router_losses, ..Form::default() };
        let loss = |form| {
            let (stages, weights, tokens) = prepare(model, form, &[1]);
            run(&stages, &weights, &tokens).loss
        };
        // Were routing even, load balancing alone would come to its coefficient in each layer.
        assert!(loss(with_losses) > loss(Form::default()) + 0.4 * f64::from(model.layers));
        check_gradients(model, with_losses, &[1]);
        check_gradients(model, Form { recompute: Recompute::Full, ..with_losses }, &[]);
        check_gradients(model, Form { tensor: 2, ..with_losses }, &[]);
    }
}

/// Modules on stages of their own, all on one or each on one, with the head or without, change nothing but who computes
/// them.
#[test]
fn modules_apart_from_the_head_compute_the_same() {
    let plain = Form::default();
    let variant = Variant { multi_token: 2, ..Variant::USUAL };
    for tied in [false, true] {
        let model = ModelConfig { variant, ffn: 8, ..tiny(Family::Llama, tied) };
        let (stages, weights, tokens) = prepare(model, plain, &[1]);
        let expected = run(&stages, &weights, &tokens);
        let last = model.layers;
        for (cuts, modules) in [
            (&[1, last][..], &[0, 2][..]),
            (&[1, last, last], &[0, 0, 2]),
            (&[1, last, last, last], &[0, 0, 1, 1]),
            (&[last, last], &[0, 1]),
            (&[1, last], &[0, 1]),
        ] {
            for form in [
                plain,
                Form { recompute: Recompute::Full, ..plain },
                Form { tensor: 2, sequence_parallel: true, ..plain },
            ] {
                let what = format!("{cuts:?} {modules:?} {form:?} tied {tied}");
                let (stages, own_weights, ..) = prepare_with(model, form, cuts, modules);
                assert_eq!(own_weights, weights, "names and whole shapes");
                let found = run(&stages, &weights, &tokens);
                assert_same(&found, &expected, &what);
            }
        }
    }
}

/// The parts of newer models, each by itself and as their families have them.
#[test]
fn so_they_are_with_the_parts_of_newer_models() {
    for variant in newer_variants().into_iter().chain(normed_otherwise()) {
        let model = ModelConfig { variant, ..tiny(Family::Llama, false) };
        check_gradients(model, Form::default(), &[]);
        check_gradients(model, Form { recompute: Recompute::Cheap, ..Form::default() }, &[1]);
    }
}

/// Chunks of one token are windows of one token, whatever the layers.
#[test]
fn chunks_are_sequences_of_their_own() {
    let layers = LayerPattern::read_text("(01)").unwrap();
    let runs = [true, false].map(|chunked| {
        let window = Some(Window { chunked, ..Window::sliding(1, 0).within(layers) });
        let model = ModelConfig { variant: Variant { window, ..Variant::USUAL }, ..tiny(Family::Llama, false) };
        let (stages, weights, tokens) = prepare(model, Form::default(), &[1]);
        run(&stages, &weights, &tokens)
    });
    assert!((runs[0].loss - runs[1].loss).abs() < 1e-14);
    for (name, gradient) in &runs[0].gradients {
        assert!(gradient.iter().zip(&runs[1].gradients[name]).all(|(a, b)| (a - b).abs() < 1e-13), "{name}");
    }
}

/// The same of recurrences, whose reference takes its gradients by differences.
#[test]
fn slow_so_they_are_with_recurrences() {
    for kind in RecurrenceKind::ALL {
        let variant = Variant { recurrence: Some(recurrence(kind)), ..Variant::USUAL };
        let model = ModelConfig { variant, ..tiny(Family::Llama, false) };
        check_gradients(model, Form::default(), &[]);
        check_gradients(model, Form { recompute: Recompute::Cheap, ..Form::default() }, &[1]);
    }
}

/// In the first of two layers, with two heads of values for each of keys.
fn recurrence(kind: RecurrenceKind) -> Recurrence {
    Recurrence {
        kind,
        layers: LayerPattern::read_text("(10)").unwrap(),
        key_heads: 2,
        key_dim: 3,
        heads: 4,
        head_dim: 2,
        convolution: 2,
        convolution_bias: kind == RecurrenceKind::Mamba2,
    }
}

fn newer_variants() -> Vec<Variant> {
    let pattern = |text: &str| LayerPattern::read_text(text);
    let usual = Variant::USUAL;
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 8,
        shared_ffn: 0,
        shared_gate: false,
        dense_layers: 0,
        layers: None,
        biases: false,
        routing: Routing { normed: true, ..Routing::USUAL },
    };
    let behind = Variant { post_norms: true, no_pre_norms: true, qk_norm: true, ..usual };
    let llama_4 = Variant {
        qk_norm: true,
        qk_norm_of: QkNorm::RotatedLengths,
        no_rope: pattern("(01)"),
        temperature: Some(Temperature { tokens: 2, scale_e12: E12 / 2 }),
        ..usual
    };
    let input = Experts {
        active: 1,
        shared_ffn: 4,
        routing: Routing { scores: Scores::InputSigmoid, ..Routing::USUAL },
        ..experts
    };
    let sinks = Variant { qkv_bias: true, o_bias: true, sinks: true, ..usual };
    vec![
        Variant { no_rope: pattern("(01)"), ..usual },
        Variant { qk_norm_of: QkNorm::Whole, ..behind },
        Variant { window: Some(Window::sliding(2, 2)), no_rope: pattern("(01)"), ..behind },
        Variant { qk_norm: true, qk_norm_of: QkNorm::RotatedHeads, ..usual },
        llama_4,
        Variant { experts: Some(input.within(pattern("(01)").unwrap())), ..llama_4 },
        Variant { window: Some(Window::sliding(2, 0).within(pattern("(10)").unwrap())), ..sinks },
        Variant { experts: Some(Experts { biases: true, ..experts }), activation: Activation::ClampedSilu, ..sinks },
        Variant { activation: Activation::ClampedSilu, attention_gate: true, ..usual },
        Variant { activation: Activation::SquaredRelu, ..usual },
        Variant { activation: Activation::Xielu, qk_norm: true, ..usual },
        Variant { no_mixer: pattern("(10)"), no_mlp: pattern("(01)"), activation: Activation::SquaredRelu, ..usual },
        Variant { experts: Some(Experts { shared_ffn: 4, ..experts }), activation: Activation::SquaredRelu, ..usual },
    ]
}

/// Other norms than RMSNorm, biases, and attention and MLP beside each other.
fn normed_otherwise() -> Vec<Variant> {
    let usual = Variant::USUAL;
    let cohere = Variant {
        norm: Norm::LayerWithoutBias,
        arrangement: Arrangement::BesideOneNorm,
        window: Some(Window::sliding(2, 2)),
        no_rope: LayerPattern::read_text("(01)"),
        ..usual
    };
    let phi = Variant {
        norm: Norm::Layer,
        arrangement: Arrangement::Beside,
        activation: Activation::PlainGeluTanh,
        rotary: Some(2),
        qkv_bias: true,
        o_bias: true,
        mlp_bias: true,
        head_bias: true,
        ..usual
    };
    let nanochat = Variant {
        norm: Norm::RmsWithoutWeights,
        embedding_norm: true,
        qk_norm: true,
        qk_norm_of: QkNorm::RotatedLengths,
        activation: Activation::SquaredRelu,
        ..usual
    };
    vec![
        cohere,
        Variant { qk_norm: true, qk_norm_of: QkNorm::LayerHeads, qkv_bias: true, o_bias: true, ..cohere },
        phi,
        Variant { activation: Activation::PlainGelu, arrangement: Arrangement::InTurn, ..phi },
        Variant { arrangement: Arrangement::BesideOneNorm, ..phi },
        nanochat,
        Variant { norm: Norm::Layer, norm_offset: true, activation: Activation::SquaredRelu, ..usual },
        // Of random queries and keys about a third is beyond.
        Variant { norm: Norm::LayerWithoutWeights, qkv_clip: Some(E12 / 2), ..usual },
        Variant { norm: Norm::Layer, mlp_bias: true, post_norms: true, ..usual },
        Variant {
            post_norms: true,
            activation: Activation::Gelu,
            qk_norm: true,
            value_norm: true,
            layer_scale: true,
            window: Some(Window::sliding(2, 2)),
            global: Some(Global { head_dim: 6, kv_heads: 1, rotary: Some(2), keys_are_values: true }),
            ..usual
        },
        Variant { qk_norm: true, qk_norm_of: QkNorm::SharedLayerHeads, ..phi },
        Variant { experts: Some(Experts { ffn: 8, shared_ffn: 4, dense_layers: 1, ..tiny_experts() }), ..cohere },
        Variant {
            post_norms: true,
            activation: Activation::Gelu,
            window: Some(Window { rope_base: Some(10), ..Window::sliding(2, 2) }),
            experts: Some(Experts { ffn: 8, routing: Routing { normed: true, ..Routing::USUAL }, ..tiny_experts() }),
            mlp_beside_experts: true,
            ..usual
        },
    ]
}

/// Gemma 2 with caps that bind, and Granite: as they are, with scores held, and made again.
#[test]
fn so_they_are_with_factors_and_caps() {
    for variant in [gemma_2(), granite()] {
        for tied in [false, true] {
            let model = ModelConfig { variant, ..tiny(Family::Llama, tied) };
            check_gradients(model, Form::default(), &[]);
            check_gradients(model, Form::default(), &[1]);
        }
    }
    for variant in [Variant { window: None, qk_norm: true, ..gemma_2() }, granite()] {
        let model = ModelConfig { variant, ..tiny(Family::Llama, true) };
        for recompute in Recompute::ALL {
            let form = Form { attention: AttentionForm::Materialised, dropout: true, recompute, ..Form::default() };
            check_gradients(model, form, &[1]);
        }
    }
}

/// A soft cap leaves what is small as it is, bounds what is large, and keeps what is hidden.
#[test]
fn a_soft_cap_bounds() {
    let cap = Some(3 * E12);
    assert!((capped(1e-4, cap) - 1e-4).abs() < 1e-12 && (capped(2.0, cap) - 3.0 * (2f64 / 3.0).tanh()).abs() < 1e-14);
    assert!((capped(90.0, cap) - 3.0).abs() < 1e-12 && (capped(-90.0, cap) + 3.0).abs() < 1e-12);
    assert_eq!((capped(7.0, None), slope_within(7.0, None)), (7.0, 1.0));
}

fn gemma_2() -> Variant {
    Variant {
        post_norms: true,
        activation: Activation::Gelu,
        window: Some(Window::sliding(2, 2)),
        norm_offset: true,
        factors: Factors { embedding: Some(E12 * 5 / 2), attention: Some(E12 * 2 / 5), ..Factors::default() },
        caps: Caps { attention: Some(E12 / 2), logits: Some(E12 * 3 / 2) },
        ..Variant::USUAL
    }
}

fn granite() -> Variant {
    let (embedding, residual) = (Some(E12 * 3), Some(E12 * 7 / 5));
    let (attention, logits) = (Some(E12 * 4 / 5), Some(E12 * 9 / 10));
    Variant { factors: Factors { embedding, residual, attention, logits }, ..Variant::USUAL }
}

#[test]
fn so_they_are_in_newer_gpts() {
    use crate::model::Arrangement;
    let window = Some(Window::sliding(2, 2));
    for variant in [
        Variant { rotary: Some(2), arrangement: Arrangement::Beside, ..Variant::USUAL },
        Variant { rotary: Some(4), arrangement: Arrangement::BesideOneNorm, no_bias: true, ..Variant::USUAL },
        Variant { rotary: Some(4), window, ..Variant::USUAL },
        Variant { no_bias: true, ..Variant::USUAL },
    ] {
        for kv_heads in [1, 2] {
            let model = ModelConfig { variant, kv_heads, ..tiny(Family::Gpt, false) };
            check_gradients(model, Form::default(), &[1]);
        }
    }
    let half_turned = Variant { rotary: Some(2), ..Variant::USUAL };
    check_gradients(ModelConfig { variant: half_turned, ..tiny(Family::Llama, false) }, Form::default(), &[]);
}

#[test]
fn so_they_are_with_scores_held_and_dropout() {
    for (family, dropout) in [(Family::Llama, false), (Family::Llama, true), (Family::Gpt, true)] {
        let form = Form { attention: AttentionForm::Materialised, dropout, ..Form::default() };
        check_gradients(tiny(family, false), form, &[1]);
    }
}

/// The same operators on the same numbers: not a bit may differ.
#[test]
fn computing_again_changes_nothing() {
    for family in [Family::Llama, Family::Gpt] {
        for attention in [AttentionForm::Flash, AttentionForm::Materialised] {
            let plain = Form { attention, dropout: true, ..Form::default() };
            let (stages, weights, tokens) = prepare(tiny(family, true), plain, &[1]);
            let kept = run(&stages, &weights, &tokens);
            for recompute in [Recompute::Selective, Recompute::Cheap, Recompute::Full] {
                let form = Form { recompute, ..plain };
                let (stages, ..) = prepare(tiny(family, true), form, &[1]);
                let again = run(&stages, &weights, &tokens);
                assert_eq!(kept.loss.to_bits(), again.loss.to_bits());
                assert_eq!(kept.gradients, again.gradients, "{family:?} {attention:?} {recompute:?}");
            }
        }
    }
}

/// Nor where layers differ in what they compute again, or keep only what a group of them takes in.
#[test]
fn computing_again_by_layer_changes_nothing() {
    use crate::graph::passes::recompute::Choices;
    use Recompute::{Cheap, Full, None, Selective};
    let model = ModelConfig { layers: 3, ..tiny(Family::Llama, true) };
    let form = Form { attention: AttentionForm::Materialised, dropout: true, ..Form::default() };
    let (stages, weights, tokens) = prepare(model, form, &[]);
    let kept = run(&stages, &weights, &tokens);
    let shape = StageShape {
        layers: 0..3,
        has_embedding: true,
        has_head: true,
        modules: crate::model::Modules::default(),
        microbatch_size: 4,
        sequence: 3,
        dtype: Dtype::F64,
        form,
    };
    let each = |by_layer: [Recompute; 3]| Choices { by_layer: by_layer.to_vec(), ..Choices::same(None) };
    let groups = |group| Choices { group, ..Choices::same(Full) };
    for choices in
        [each([Full, Cheap, None]), each([None, Selective, Full]), each([Full, None, Full]), groups(2), groups(3)]
    {
        // Also where what is kept waits in the host's memory.
        for offload in [Offload::None, Offload::First(2), Offload::All] {
            let shape = StageShape { form: Form { offload, ..form }, ..shape.clone() };
            let (graph, _) = stage_graph_with(&model, &shape, 2, &choices);
            let again = run(&[graph], &weights, &tokens);
            assert_eq!(kept.loss.to_bits(), again.loss.to_bits());
            assert_eq!(kept.gradients, again.gradients, "{choices:?} {offload:?}");
        }
    }
}

/// What waits in the host's memory is the same when it comes back, whatever is computed again from it, shared, quantized or
/// run beside; and nobody touches it on its way.
#[test]
fn waiting_in_the_host_s_memory_changes_nothing() {
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 8,
        shared_ffn: 8,
        shared_gate: true,
        dense_layers: 1,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    };
    let dropout = Form { attention: AttentionForm::Materialised, dropout: true, ..Form::default() };
    let shared = Form { tensor: 2, sequence_parallel: true, async_reduce: true, ..Form::default() };
    for (family, variant, plain) in [
        (Family::Llama, Variant::USUAL, dropout),
        (Family::Llama, Variant::USUAL, shared),
        (Family::Llama, gemma_2(), Form { matmul_dtype: Some(Dtype::Fp8), ..Form::default() }),
        (Family::Llama, Variant { experts: Some(experts), multi_token: 1, ..Variant::USUAL }, Form::default()),
        (Family::Gpt, Variant::USUAL, dropout),
        (Family::Gpt, Variant::USUAL, shared),
    ] {
        let model = ModelConfig { layers: 3, ffn: 8, variant, ..tiny(family, true) };
        for recompute in Recompute::ALL {
            let form = Form { recompute, ..plain };
            let (stages, weights, tokens) = prepare(model, form, &[1]);
            let kept = run(&stages, &weights, &tokens);
            for offload in [Offload::First(1), Offload::First(2), Offload::All] {
                let (stages, ..) = prepare(model, Form { offload, ..form }, &[1]);
                let what = format!("{variant:?} {recompute:?} {offload:?}");
                for graph in &stages {
                    let copies = graph.operators.iter().filter(|operator| operator.kernel == Kernel::Offload).count();
                    assert!(copies >= 1, "{what}");
                }
                let away = run(&stages, &weights, &tokens);
                assert_eq!(kept.loss.to_bits(), away.loss.to_bits(), "{what}");
                assert_eq!(kept.gradients, away.gradients, "{what}");
            }
        }
    }
}

/// A reduction that runs beside dW changes no bit, whether W runs apart or fused with B.
#[test]
fn reducing_beside_dw_changes_nothing() {
    for family in [Family::Llama, Family::Gpt] {
        let model = ModelConfig { ffn: 8, ..tiny(family, true) };
        for (tensor, sequence_parallel, recompute) in
            [(2, false, Recompute::None), (4, true, Recompute::None), (2, true, Recompute::Full)]
        {
            let form = Form { tensor, sequence_parallel, recompute, ..Form::default() };
            let (stages, weights, tokens) = prepare(model, form, &[1]);
            let waiting = run(&stages, &weights, &tokens);
            let (stages, ..) = prepare(model, Form { async_reduce: true, ..form }, &[1]);
            let starts = stages.iter().flat_map(|graph| &graph.operators).filter(|operator| operator.kernel.starts());
            assert_eq!(starts.count(), 5, "two a layer, and that of the head's input");
            let beside = run(&stages, &weights, &tokens);
            assert_eq!(waiting.loss.to_bits(), beside.loss.to_bits());
            assert_eq!(waiting.gradients, beside.gradients, "{family:?} {form:?}");
        }
    }
}

/// Programs of devices that share matrices, all together, against that of one device: the same loss and gradients but for
/// rounding, the bytes of liveness on each, and the same numbers wherever devices hold the same thing.
#[test]
fn devices_that_share_matrices_compute_what_one_does() {
    let usual = Variant::USUAL;
    let part_turned = Variant { rotary: Some(2), ..usual };
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 8,
        shared_ffn: 8,
        shared_gate: true,
        dense_layers: 1,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    };
    for (family, variant) in [
        (Family::Llama, usual),
        (Family::Llama, gemma_2()),
        (Family::Llama, Variant { caps: gemma_2().caps, rotary: Some(2), ..granite() }),
        (Family::Llama, Variant { experts: Some(experts), ..usual }),
        (Family::Llama, Variant { multi_token: 2, ..usual }),
        (Family::Llama, newer_variants()[1]),
        (Family::Llama, newer_variants()[5]),
        (Family::Llama, newer_variants()[7]),
        (Family::Llama, newer_variants()[8]),
        (Family::Llama, newer_variants()[10]),
        (Family::Llama, normed_otherwise()[1]),
        (Family::Llama, normed_otherwise()[2]),
        (Family::Llama, normed_otherwise()[10]),
        (Family::Llama, normed_otherwise()[11]),
        (Family::Llama, normed_otherwise()[12]),
        (Family::Llama, normed_otherwise()[3]),
        (Family::Llama, normed_otherwise()[5]),
        (Family::Llama, normed_otherwise()[7]),
        (Family::Llama, normed_otherwise()[9]),
        (Family::Gpt, usual),
        (Family::Gpt, part_turned),
        (Family::Gpt, Variant { arrangement: crate::model::Arrangement::Beside, ..part_turned }),
    ] {
        for (tied, attention, dropout) in
            [(false, AttentionForm::Flash, false), (true, AttentionForm::Materialised, true)]
        {
            if variant.window.is_some() && attention == AttentionForm::Materialised {
                continue;
            }
            // Neither 2 nor 4 divides the vocabulary, and with 4 devices two hold each head of keys.
            let model = ModelConfig { ffn: 8, variant, ..tiny(family, tied) };
            let whole = Form { attention, dropout, ..Form::default() };
            let (stages, weights, tokens) = prepare(model, whole, &[1]);
            let expected = run(&stages, &weights, &tokens);
            for (tensor, sequence_parallel) in [(2, false), (4, false), (2, true), (4, true)] {
                for recompute in [Recompute::None, Recompute::Cheap, Recompute::Full] {
                    let form = Form { tensor, sequence_parallel, recompute, ..whole };
                    let what = format!("{family:?} {variant:?} {form:?}");
                    let (stages, shared_weights, ..) = prepare(model, form, &[1]);
                    assert_eq!(shared_weights, weights, "names and whole shapes");
                    let found = run(&stages, &weights, &tokens);
                    assert_same(&found, &expected, &what);
                }
            }
        }
    }
}

/// Where quantizing rounds nothing, products in fp8 change not a bit, whatever is computed again, shared or run beside; and
/// every operand of theirs is quantized along what they sum over.
#[test]
fn slow_products_in_fp8_take_the_same_numbers() {
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 64,
        shared_ffn: 64,
        shared_gate: true,
        dense_layers: 1,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    };
    let latent = Latent { query_rank: 16, key_value_rank: 16, rope_width: 2, value_width: 4 };
    let usual = Variant::USUAL;
    for (family, variant) in [
        (Family::Llama, usual),
        (Family::Llama, Variant { qk_norm: true, post_norms: true, ..usual }),
        (Family::Llama, Variant { experts: Some(experts), multi_token: 1, ..usual }),
        (Family::Llama, Variant { experts: Some(experts), latent: Some(latent), ..usual }),
        (Family::Gpt, usual),
    ] {
        let kv_heads = if variant.latent.is_some() { 4 } else { 2 };
        let model = ModelConfig { hidden: 16, head_dim: 16, ffn: 64, kv_heads, variant, ..tiny(family, false) };
        for (tensor, sequence_parallel, async_reduce) in
            [(1, false, false), (2, false, true), (2, true, false), (4, true, true)]
        {
            if tensor > 1 && variant.latent.is_some() {
                continue;
            }
            for recompute in Recompute::ALL {
                let form = Form { tensor, sequence_parallel, async_reduce, recompute, ..Form::default() };
                let (stages, weights, tokens) = prepare(model, form, &[1]);
                let plain = run(&stages, &weights, &tokens);
                let (stages, ..) = prepare(model, Form { matmul_dtype: Some(Dtype::Fp8), ..form }, &[1]);
                let quantized = run(&stages, &weights, &tokens);
                let what = format!("{variant:?} {form:?}");
                assert_eq!(plain.loss.to_bits(), quantized.loss.to_bits(), "{what}");
                assert_eq!(plain.gradients, quantized.gradients, "{what}");
                let products = stages.iter().map(fp8_products).sum::<usize>();
                assert!(products >= 2 * 3 * 4, "{products} products of {what}");
            }
        }
    }
}

/// Products of `graph` that take fp8, each of whose operands says along what it is quantized: the one that the product sums
/// over.
fn fp8_products(graph: &Graph) -> usize {
    let mut found = 0;
    for operator in &graph.operators {
        let along = |at: usize| {
            let name = &graph[operator.inputs[at].tensor].name;
            let name = name.strip_suffix(" again").unwrap_or(name);
            ["rows", "columns"].into_iter().find(|along| name.ends_with(&format!("in fp8, {along}")))
        };
        let expected = match operator.kernel {
            Kernel::MatMul { transpose_a: false, transpose_b: true, .. } => ["rows", "rows"],
            Kernel::ExpertMatMul { transpose_b: true } => ["rows", "rows"],
            Kernel::MatMul { transpose_a: false, transpose_b: false, .. } => ["rows", "columns"],
            Kernel::ExpertMatMul { transpose_b: false } => ["rows", "columns"],
            Kernel::MatMul { transpose_a: true, .. } | Kernel::ExpertMatMulGrad => ["columns", "columns"],
            _ => continue,
        };
        match [along(0), along(1)] {
            [None, None] => {}
            operands => {
                assert_eq!(operands, expected.map(Some), "{:?}", operator.kernel);
                found += 1;
            }
        }
    }
    found
}
