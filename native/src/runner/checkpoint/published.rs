//! What the `config.json` of each of `transformers`' classes says of a model beside its sizes. Who asks takes the one that is
//! read as the model.

use pipeplan_core::graph::of_e12;
use pipeplan_core::model::{Activation, Arrangement, Experts, Factors, ModelConfig, Norm, Variant};
use serde_json::{Value, json};

use super::extend;

/// A class, its `model_type`, and what its file says. All are tried: none is right because of its name.
pub(super) fn candidates(model: &ModelConfig) -> Vec<Value> {
    let Variant { window, experts, .. } = model.variant;
    let mut all = vec![
        of("Qwen2ForCausalLM", "qwen2", json!({})),
        of("MistralForCausalLM", "mistral", json!({ "sliding_window": window.map(|window| window.tokens) })),
        of("ArceeForCausalLM", "arcee", json!({ "hidden_act": "relu2" })),
        of("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", json!({ "use_qk_norm": true })),
        of("GemmaForCausalLM", "gemma", gelu()),
        of("HyperCLOVAXForCausalLM", "hyperclovax", clova(model)),
    ];
    all.extend(fused_candidates(model));
    all.extend(candidates_of_other_norms(model));
    if let Some(window) = window {
        let tokens = json!({ "sliding_window": window.tokens, "layer_types": layer_types(model) });
        let gemma = with(gelu(), with(of_scores(model), tokens));
        all.push(of("VaultGemmaForCausalLM", "vaultgemma", gemma.clone()));
        let local = json!({ "rope_local_base_freq": f64::from(window.rope_base.unwrap_or(model.rope_base)) });
        all.push(of("Gemma3ForCausalLM", "gemma3_text", with(gemma, local)));
    }
    if let Some(experts) = experts {
        all.extend(candidates_with(model, &experts));
    }
    all
}

/// GPT-2's, whose sizes have names of their own.
pub(super) fn gpt_2(model: &ModelConfig, dtype: &str) -> Option<Value> {
    let function = if model.variant.activation == Activation::PlainGeluTanh { "gelu_new" } else { "gelu" };
    let config = json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocab,
        "n_embd": model.hidden,
        "n_inner": model.ffn,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_positions": model.positions,
        "layer_norm_epsilon": of_e12(model.norm_eps_e12),
        "activation_function": function,
        "tie_word_embeddings": model.tied,
        // Tokens are bytes: none of them begins or ends a text.
        "bos_token_id": null,
        "eos_token_id": null,
        "torch_dtype": dtype,
    });
    let most = u64::from(model.ffn.max(3 * model.hidden)) * u64::from(model.hidden);
    (most <= MOST_TRANSPOSED).then_some(config)
}

/// Most numbers of a matrix that are put the other way round: each has a place of its own.
const MOST_TRANSPOSED: u64 = 1 << 24;

/// Those whose checkpoints hold several weights as one.
fn fused_candidates(model: &ModelConfig) -> Vec<Value> {
    let Variant { window, experts, factors, recurrence, rotary, qkv_bias, .. } = model.variant;
    let share = f64::from(rotary.unwrap_or(model.head_dim)) / f64::from(model.head_dim.max(1));
    let mut rope = rope(model);
    extend(&mut rope, json!({ "partial_rotary_factor": share }));
    let turned = json!({ "partial_rotary_factor": share, "rope_parameters": rope });
    let glm = with(turned.clone(), json!({ "attention_bias": qkv_bias }));
    let mut all = vec![
        // Without biases both have the same layers.
        of(
            "Phi3ForCausalLM",
            "phi3",
            with(turned.clone(), json!({ "sliding_window": window.map(|window| window.tokens) })),
        ),
        of("GlmForCausalLM", "glm", glm.clone()),
        of("Glm4ForCausalLM", "glm4", glm),
    ];
    if let Some(experts) = experts {
        let number = |e12: Option<u64>, usual: f64| e12.map_or(usual, of_e12);
        all.push(of(
            "GraniteMoeForCausalLM",
            "granitemoe",
            json!({
                "num_local_experts": experts.count,
                "num_experts_per_tok": experts.active,
                "intermediate_size": experts.ffn,
                "embedding_multiplier": number(factors.embedding, 1.0),
                "residual_multiplier": number(factors.residual, 1.0),
                "attention_multiplier": number(factors.attention, 1.0 / f64::from(model.head_dim).sqrt()),
                "logits_scaling": 1.0 / number(factors.logits, 1.0),
            }),
        ));
    }
    // Its matrices lie the other way round, and where each number lies takes more memory than the number.
    let is_small = |experts: &Experts| {
        u64::from(experts.count) * u64::from(experts.ffn) * u64::from(model.hidden) <= MOST_TRANSPOSED
    };
    if let (Some(window), Some(experts)) = (window, experts.filter(is_small)) {
        all.push(of(
            "GptOssForCausalLM",
            "gpt_oss",
            json!({
                "num_local_experts": experts.count,
                "num_experts_per_tok": experts.active,
                "intermediate_size": experts.ffn,
                "sliding_window": window.tokens,
                "layer_types": layer_types(model),
                "attention_bias": qkv_bias,
                "rope_parameters": self::rope(model),
            }),
        ));
    }
    if let Some(recurrence) = recurrence {
        let is_linear = |layer| model.recurrence(layer).is_some();
        let kind = |layer| if is_linear(layer) { "linear_attention" } else { "full_attention" };
        let delta_net = json!({
            "layer_types": (0..model.layers).map(kind).collect::<Vec<&str>>(),
            "linear_num_key_heads": recurrence.key_heads,
            "linear_key_head_dim": recurrence.key_dim,
            "linear_num_value_heads": recurrence.heads,
            "linear_value_head_dim": recurrence.head_dim,
            "linear_conv_kernel_dim": recurrence.convolution,
        });
        let delta_net = with(turned, delta_net);
        all.push(of("Qwen3_5ForCausalLM", "qwen3_5_text", delta_net.clone()));
        if let Some(experts) = experts {
            let sparse = json!({
                "num_experts": experts.count,
                "num_experts_per_tok": experts.active,
                "moe_intermediate_size": experts.ffn,
                "shared_expert_intermediate_size": experts.shared_ffn,
                "norm_topk_prob": experts.routing.normed,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            });
            all.push(of("Qwen3NextForCausalLM", "qwen3_next", with(delta_net, sparse)));
        }
    }
    all
}

/// Those with experts.
fn candidates_with(model: &ModelConfig, experts: &Experts) -> Vec<Value> {
    let routing = experts.routing;
    let shared = experts.shared_ffn / experts.ffn.max(1);
    let every =
        json!({ "num_experts": experts.count, "norm_topk_prob": routing.normed, "intermediate_size": experts.ffn });
    let own_width = json!({ "moe_intermediate_size": experts.ffn });
    let sigmoid = json!({
        "norm_topk_prob": routing.normed,
        "routed_scaling_factor": routing.factor.map_or(1.0, of_e12),
        "n_group": routing.groups,
        "topk_group": routing.active_groups,
        "first_k_dense_replace": experts.dense_layers,
    });
    let routed = with(sigmoid.clone(), json!({ "n_routed_experts": experts.count, "n_shared_experts": shared }));
    let mut rope = rope(model);
    let turned = model.variant.rotary.unwrap_or(model.head_dim);
    let share = f64::from(turned) / f64::from(model.head_dim.max(1));
    extend(&mut rope, json!({ "partial_rotary_factor": share }));
    let glm = json!({
        "use_qk_norm": model.variant.qk_norm,
        "attention_bias": model.variant.qkv_bias,
        "partial_rotary_factor": share,
        "rope_parameters": rope,
    });
    let minimax = json!({
        "num_local_experts": experts.count,
        "intermediate_size": experts.ffn,
        "rotary_dim": turned,
        "use_qk_norm": model.variant.qk_norm,
    });
    let hunyuan = json!({
        "num_experts": experts.count,
        "moe_topk": experts.active,
        "num_shared_expert": shared,
        "intermediate_size": experts.ffn,
        "use_qk_norm": true,
    });
    let exaone = json!({
        "num_experts": experts.count,
        "num_shared_experts": shared,
        "sliding_window": model.variant.window.map(|window| window.tokens),
        "layer_types": layer_types(model),
    });
    let feed_forward = |layer| if model.has_experts(layer) { "sparse" } else { "dense" };
    let mellum = json!({
        "num_experts": experts.count,
        "moe_intermediate_size": experts.ffn,
        "norm_topk_prob": routing.normed,
        "sliding_window": model.variant.window.map(|window| window.tokens),
        "layer_types": layer_types(model),
        "mlp_layer_types": (0..model.layers).map(feed_forward).collect::<Vec<&str>>(),
        "rope_parameters": ropes(model),
    });
    let mut all = vec![
        of("OlmoeForCausalLM", "olmoe", every.clone()),
        of("FlexOlmoForCausalLM", "flex_olmo", every),
        of("Glm4MoeForCausalLM", "glm4_moe", with(glm, with(routed.clone(), own_width.clone()))),
        of("Dots1ForCausalLM", "dots1", with(routed, own_width.clone())),
        of("MellumForCausalLM", "mellum", mellum),
        of("MiniMaxM2ForCausalLM", "minimax_m2", minimax),
        of("ExaoneMoeForCausalLM", "exaone_moe", with(exaone, with(sigmoid, own_width))),
    ];
    for config in &mut all {
        extend(config, json!({ "num_experts_per_tok": experts.active }));
    }
    all.push(of("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", hunyuan));
    all
}

/// Those with other norms than RMSNorm.
fn candidates_of_other_norms(model: &ModelConfig) -> Vec<Value> {
    let Variant { norm, qkv_bias, mlp_bias, qk_norm, arrangement, window, rotary, qkv_clip, .. } = model.variant;
    if norm == Norm::Rms {
        return Vec::new();
    }
    let turned = rotary.unwrap_or(model.head_dim);
    let share = f64::from(turned) / f64::from(model.head_dim.max(1));
    let eps = model.norm_eps_e12 as f64 / 1e12;
    let mut rope = rope(model);
    extend(&mut rope, json!({ "partial_rotary_factor": share }));
    let whole = json!({ "layer_norm_eps": eps, "attention_bias": qkv_bias });
    let part = with(whole.clone(), json!({ "partial_rotary_factor": share, "rope_parameters": rope }));
    let is_parallel = arrangement != Arrangement::InTurn;
    let scale = model.variant.factors.logits.map_or(1.0, of_e12);
    let cohere = with(whole.clone(), json!({ "logit_scale": scale, "use_qk_norm": qk_norm }));
    let windows = json!({ "sliding_window": window.map(|window| window.tokens), "layer_types": layer_types(model) });
    let relu = json!({ "hidden_act": "relu2", "mlp_bias": mlp_bias });
    let gelu = match model.variant.activation {
        Activation::PlainGelu => "gelu",
        _ => "gelu_pytorch_tanh",
    };
    let gelu = json!({ "hidden_act": gelu, "activation_function": gelu });
    let gpt_j = json!({
        "n_embd": model.hidden,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": model.ffn,
        "n_positions": model.positions,
        "rotary_dim": turned,
        "layer_norm_epsilon": eps,
    });
    let gpt_j = with(gpt_j, gelu.clone());
    let star_coder = json!({
        "norm_epsilon": eps, "use_bias": qkv_bias, "sliding_window": window.map(|window| window.tokens),
    });
    vec![
        of("CohereForCausalLM", "cohere", cohere.clone()),
        of("Cohere2ForCausalLM", "cohere2", with(cohere, windows)),
        of("NemotronForCausalLM", "nemotron", with(with(part.clone(), relu.clone()), json!({ "norm_eps": eps }))),
        of(
            "StableLmForCausalLM",
            "stablelm",
            with(
                part.clone(),
                json!({ "use_qkv_bias": qkv_bias, "qk_layernorm": qk_norm, "use_parallel_residual": is_parallel }),
            ),
        ),
        of("OlmoForCausalLM", "olmo", with(whole.clone(), json!({ "clip_qkv": qkv_clip.map(of_e12) }))),
        of("Jais2ForCausalLM", "jais2", with(whole.clone(), relu.clone())),
        of(
            "NanoChatForCausalLM",
            "nanochat",
            with(with(whole, relu), json!({ "final_logit_softcapping": model.variant.caps.logits.map(of_e12) })),
        ),
        of("Starcoder2ForCausalLM", "starcoder2", with(gelu.clone(), star_coder)),
        of("PhiForCausalLM", "phi", with(part.clone(), gelu.clone())),
        of(
            "GPTNeoXForCausalLM",
            "gpt_neox",
            with(
                with(part, gelu),
                json!({ "use_parallel_residual": is_parallel, "rotary_pct": share, "rotary_emb_base": model.rope_base }),
            ),
        ),
        of("GPTJForCausalLM", "gptj", gpt_j),
    ]
}

/// What `class` says.
fn of(class: &str, kind: &str, more: Value) -> Value {
    let config = json!({
        "architectures": [class],
        "model_type": kind,
        "hidden_act": "silu",
        "mlp_bias": false,
    });
    with(config, more)
}

fn with(mut config: Value, more: Value) -> Value {
    extend(&mut config, more);
    config
}

fn gelu() -> Value {
    json!({ "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh" })
}

/// Positions that are not scaled, where the library scales them unless a file says otherwise.
pub(super) fn rope(model: &ModelConfig) -> Value {
    json!({ "rope_type": "default", "rope_theta": f64::from(model.rope_base) })
}

/// The same by kind of layer: what stands elsewhere the library takes for one kind alone.
pub(super) fn ropes(model: &ModelConfig) -> Value {
    let local = model.variant.window.and_then(|window| window.rope_base).unwrap_or(model.rope_base);
    json!({ "full_attention": rope(model), "sliding_attention": rope(&ModelConfig { rope_base: local, ..*model }) })
}

fn layer_types(model: &ModelConfig) -> Vec<&'static str> {
    let kind = |layer| if model.has_window(layer) { "sliding_attention" } else { "full_attention" };
    (0..model.layers).map(kind).collect()
}

/// What Gemma's classes divide scores by, and their soft-caps.
fn of_scores(model: &ModelConfig) -> Value {
    let Variant { factors, caps, .. } = model.variant;
    let divisor = factors.attention.map_or(f64::from(model.head_dim), |scale| of_e12(scale).powi(-2).round());
    json!({
        "query_pre_attn_scalar": divisor as u64,
        "attn_logit_softcapping": caps.attention.map(of_e12),
        "final_logit_softcapping": caps.logits.map(of_e12),
    })
}

fn clova(model: &ModelConfig) -> Value {
    let Factors { embedding, residual, attention, logits } = model.variant.factors;
    let number = |e12: Option<u64>, usual: f64| e12.map_or(usual, of_e12);
    json!({
        "use_post_norm": model.variant.post_norms,
        "embedding_multiplier": number(embedding, 1.0),
        "residual_multiplier": number(residual, 1.0),
        "attention_multiplier": number(attention, 1.0 / f64::from(model.head_dim).sqrt()),
        "logits_scaling": number(logits, 1.0),
    })
}
