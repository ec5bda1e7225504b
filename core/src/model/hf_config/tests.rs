//! Published files against the catalog, and parameter counts against those of the checkpoints and of `transformers`.

use super::*;
use crate::model::catalog;
use crate::model::{
    Activation, Arrangement, Caps, E12, Factors, Global, QkNorm, Routing, Scores, Temperature, Variant, Window,
    to_e12,
};
use serde_json::json;

fn read_ok(value: &Value) -> ModelConfig {
    let mut faults = Vec::new();
    read(value, "model.config", &mut faults).unwrap_or_else(|| panic!("{faults:?}"))
}

/// The fields of the published files that say sizes.
fn published(name: &str) -> Value {
    let base = |kind: &str, sizes: [u64; 6], eps: f64, theta: f64| {
        let [layers, hidden, heads, kv_heads, ffn, vocab] = sizes;
        json!({
            "architectures": ["ForCausalLM"], "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": ffn,
            "vocab_size": vocab, "rms_norm_eps": eps, "rope_theta": theta, "tie_word_embeddings": false,
            "sliding_window": null, "torch_dtype": "bfloat16", "attention_bias": false,
        })
    };
    let mut config = match name {
        "llama-3-8b" => base("llama", [32, 4096, 32, 8, 14336, 128_256], 1e-5, 500_000.0),
        "mistral-7b" => base("mistral", [32, 4096, 32, 8, 14336, 32000], 1e-5, 10_000.0),
        "mixtral-8x7b" => base("mixtral", [32, 4096, 32, 8, 14336, 32000], 1e-5, 1e6),
        "qwen-2.5-7b" => base("qwen2", [28, 3584, 28, 4, 18944, 152_064], 1e-6, 1e6),
        "qwen-3-8b" => base("qwen3", [36, 4096, 32, 8, 12288, 151_936], 1e-6, 1e6),
        "qwen-3-30b-a3b" => base("qwen3_moe", [48, 2048, 32, 4, 6144, 151_936], 1e-6, 1e6),
        "gemma-2-9b" => base("gemma2", [42, 3584, 16, 8, 14336, 256_000], 1e-6, 1e4),
        _ => base("deepseek_v3", [61, 7168, 128, 128, 18432, 129_280], 1e-6, 1e4),
    };
    let more = match name {
        "llama-3-8b" => json!({ "max_position_embeddings": 8192 }),
        "mistral-7b" => json!({ "max_position_embeddings": 32768, "sliding_window": 4096 }),
        "mixtral-8x7b" => {
            json!({ "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2 })
        }
        "qwen-2.5-7b" => json!({ "max_position_embeddings": 131_072 }),
        "qwen-3-8b" => json!({ "max_position_embeddings": 40960, "head_dim": 128 }),
        "qwen-3-30b-a3b" => json!({
            "max_position_embeddings": 40960, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true,
        }),
        "gemma-2-9b" => json!({
            "max_position_embeddings": 8192, "head_dim": 256, "tie_word_embeddings": null, "sliding_window": 4096,
            "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        }),
        _ => json!({
            "max_position_embeddings": 163_840, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "n_group": 8, "topk_group": 4,
        }),
    };
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}

const NAMES: [&str; 8] = [
    "llama-3-8b",
    "mistral-7b",
    "mixtral-8x7b",
    "qwen-2.5-7b",
    "qwen-3-8b",
    "qwen-3-30b-a3b",
    "gemma-2-9b",
    "deepseek-v3",
];

#[test]
fn published_files_are_the_catalog_s_models() {
    for name in NAMES {
        assert_eq!(Some(read_ok(&published(name))), catalog::find(name).map(|entry| entry.config), "{name}");
    }
    let gpt2 = json!({
        "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
        "layer_norm_epsilon": 1e-5, "n_inner": null, "n_ctx": 1024,
    });
    // The published checkpoint's own count.
    assert_eq!(read_ok(&gpt2).parameters(), 124_439_808);
}

/// A family's required size, left out, is named in the fault. No other field is required.
#[test]
fn a_missing_size_is_named() {
    let optional = ["rope_theta", "tie_word_embeddings", "sliding_window", "torch_dtype", "attention_bias"];
    let also = [
        "num_nextn_predict_layers",
        "norm_topk_prob",
        "scoring_func",
        "topk_method",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
        "architectures",
        "n_shared_experts",
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_layer_freq",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ];
    for name in NAMES {
        let whole = published(name);
        for key in whole.as_object().into_iter().flatten().map(|(key, _)| key) {
            let mut without = whole.clone();
            without[key] = Value::Null;
            let mut faults = Vec::new();
            let read = read(&without, "model.config", &mut faults);
            let defined = match name {
                "llama-3-8b" => key == "num_key_value_heads",
                "deepseek-v3" => key == "num_key_value_heads" || key == "q_lora_rank",
                _ => false,
            };
            if optional.contains(&key.as_str()) || also.contains(&key.as_str()) || defined {
                assert!(read.is_some(), "{name} {key}: {faults:?}");
            } else {
                assert_eq!(faults.len(), 1, "{name} {key}: {faults:?}");
                assert_eq!(faults[0].field, format!("model.config.{key}"));
                assert_eq!(faults[0].found, "nothing");
            }
        }
    }
}

/// Published files of models outside the catalog, against the parameter counts of the published checkpoints.
#[test]
fn counts_of_published_files_are_the_checkpoints() {
    let base = |kind: &str, sizes: [u64; 6]| {
        let [layers, hidden, heads, kv_heads, ffn, vocab] = sizes;
        json!({
            "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": vocab, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
        })
    };
    for (name, mut config, more, count) in [
        ("gemma-7b", base("gemma", [28, 3072, 16, 16, 24576, 256_000]), json!({ "head_dim": 256 }), 8_537_680_896),
        ("gemma-2b", base("gemma", [18, 2048, 8, 1, 16384, 256_000]), json!({ "head_dim": 256 }), 2_506_172_416),
        (
            "phi-3-mini-4k",
            base("phi3", [32, 3072, 32, 32, 8192, 32064]),
            json!({ "sliding_window": 2047 }),
            3_821_079_552,
        ),
        (
            "qwen-1.5-moe-a2.7b",
            base("qwen2_moe", [24, 2048, 16, 16, 5632, 151_936]),
            json!({
                "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1,
            }),
            14_315_784_192,
        ),
        (
            "deepseek-v2-lite",
            base("deepseek_v2", [27, 2048, 16, 16, 10944, 102_400]),
            json!({
                "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                "v_head_dim": 128, "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
                "n_shared_experts": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
            }),
            15_706_484_224u64,
        ),
    ] {
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        assert_eq!(read_ok(&config).parameters(), count, "{name}");
    }
}

/// The same for GPT-like and later families. Pythia: arXiv:2304.01373, table 1, which leaves out both embedding
/// tables. The others: their published checkpoints.
#[test]
fn counts_of_other_families_are_the_published_ones() {
    let neox = |layers: u64, hidden: u64, heads: u64, vocab: u64| {
        json!({
            "model_type": "gpt_neox", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
            "intermediate_size": 4 * hidden, "vocab_size": vocab, "max_position_embeddings": 2048,
            "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10000, "use_parallel_residual": true,
            "hidden_act": "gelu", "tie_word_embeddings": false,
        })
    };
    for (layers, hidden, heads, vocab, count) in [
        (16, 2048, 8, 50304, 805_736_448u64),
        (32, 2560, 32, 50304, 2_517_652_480),
        (32, 4096, 32, 50432, 6_444_163_072),
        (36, 5120, 40, 50688, 11_327_027_200),
    ] {
        let model = read_ok(&neox(layers, hidden, heads, vocab));
        assert_eq!(model.parameters() - 2 * hidden * vocab, count);
        assert_eq!(u64::from(model.variant.rotary.unwrap()), hidden / heads / 4);
    }
    let falcon_7b = json!({
        "model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, "num_kv_heads": 71,
        "vocab_size": 65024, "layer_norm_epsilon": 1e-5, "alibi": false, "bias": false, "multi_query": true,
        "new_decoder_architecture": false, "parallel_attn": true,
    });
    let falcon_40b = json!({
        "model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8,
        "vocab_size": 65024, "layer_norm_epsilon": 1e-5, "alibi": false, "bias": false, "multi_query": true,
        "new_decoder_architecture": true, "parallel_attn": true,
    });
    let starcoder_2_3b = json!({
        "model_type": "starcoder2", "num_hidden_layers": 30, "hidden_size": 3072, "num_attention_heads": 24,
        "num_key_value_heads": 2, "intermediate_size": 12288, "vocab_size": 49152, "norm_epsilon": 1e-5,
        "max_position_embeddings": 16384, "rope_theta": 999_999.4, "sliding_window": 4096, "use_bias": true,
        "hidden_act": "gelu_pytorch_tanh",
    });
    let gemma_3_1b = json!({
        "model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262_144,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 1e6, "sliding_window": 512,
        "sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh",
    });
    for (config, count) in [
        (&falcon_7b, 6_921_720_704),
        (&falcon_40b, 41_303_293_952),
        (&starcoder_2_3b, 3_030_371_328),
        (&gemma_3_1b, 999_885_952),
    ] {
        assert_eq!(read_ok(config).parameters(), count);
    }
    assert_eq!(read_ok(&falcon_7b).kv_heads, 1, "multi-query, whatever else the file says");
    // Its file says no `rope_local_base_freq`: the library fills in 10,000.
    let local = |full_every| Some(Window { rope_base: Some(10_000), ..Window::sliding(512, full_every) });
    assert_eq!(read_ok(&gemma_3_1b).variant.window, local(6));
    let by_list = |every: usize| {
        let kind = |at: usize| if (at + 1).is_multiple_of(every) { "full_attention" } else { "sliding_attention" };
        let mut config = gemma_3_1b.clone();
        config["sliding_window_pattern"] = Value::Null;
        config["layer_types"] = (0..26).map(kind).collect();
        read_ok(&config).variant.window
    };
    assert_eq!(by_list(6), local(6));
    assert_eq!((by_list(4).map(|window| window.full_every), by_list(1)), (Some(4), None));
}

/// RoPE theta by kind of layer, in the words of older files and of newer ones.
#[test]
fn layers_with_a_window_have_a_rope_theta_of_their_own() {
    let gemma = json!({
        "model_type": "gemma3_text", "num_hidden_layers": 12, "hidden_size": 1152, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262_144,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "sliding_window": 512,
    });
    let thetas = |config: &Value| {
        let model = read_ok(config);
        [0, 5].map(|layer| model.rope_base_of(layer))
    };
    let with = |more: &[(&str, Value)]| {
        let mut config = gemma.clone();
        for (key, value) in more {
            config[*key] = value.clone();
        }
        config
    };
    let (local, global) = (json!({ "rope_theta": 20_000.0 }), json!({ "rope_theta": 5e5, "rope_type": "default" }));
    let by_kind = json!({ "sliding_attention": local, "full_attention": global });
    for (more, [of_window, of_all]) in [
        (with(&[]), [10_000, 1_000_000]),
        (with(&[("rope_local_base_freq", json!(30_000)), ("rope_theta", json!(7e5))]), [30_000, 700_000]),
        (with(&[("rope_parameters", by_kind.clone())]), [20_000, 500_000]),
        (with(&[("rope_parameters", json!({ "sliding_attention": local }))]), [20_000, 1_000_000]),
        (with(&[("rope_local_base_freq", json!(1e6))]), [1_000_000, 1_000_000]),
    ] {
        assert_eq!(thetas(&more), [of_window, of_all], "{more}");
    }
    assert_eq!(read_ok(&with(&[("rope_local_base_freq", json!(1e6))])).variant.window, Some(Window::sliding(512, 6)));
    // Where the library has one for all layers, what stands elsewhere is none.
    let olmo = json!({
        "model_type": "olmo3", "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 8,
        "intermediate_size": 2048, "vocab_size": 1000, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
        "sliding_window": 512,
    });
    assert_eq!(read_ok(&olmo).variant.window, Some(Window::sliding(512, 4)));
    let mut apart = olmo.clone();
    apart["rope_parameters"] = by_kind;
    assert_eq!([0, 3].map(|layer| read_ok(&apart).rope_base_of(layer)), [20_000, 500_000]);
}

/// Every `model_type`, against the models of `transformers` on the meta device. With `gpt2`, `mixtral`, `gemma` and
/// `qwen3_moe` of the tests above, every type is covered.
#[test]
fn counts_are_those_of_the_library_s_own_classes() {
    let table = include_str!("../../../../tests/reference/parameter_counts.json");
    let table: Value = serde_json::from_str(table).unwrap();
    let mut kinds = std::vec!["mixtral", "gemma", "qwen3_moe", "deepseek_v3"];
    for row in table["models"].as_array().unwrap() {
        assert_eq!(read_ok(&row["config"]).parameters(), row["count"].as_u64().unwrap(), "{}", row["name"]);
        let decoder = row["config"].get("text_config").unwrap_or(&row["config"]);
        kinds.extend(decoder["model_type"].as_str());
    }
    for (name, file) in
        [("llama-3-405b", "llama-3.1-405b"), ("deepseek-v2", "deepseek-v2-236b"), ("kimi-k2", "kimi-k2")]
    {
        let of_file = |row: &&Value| row["name"] == file;
        let row = table["models"].as_array().unwrap().iter().find(of_file).unwrap();
        let entry = catalog::find(name).unwrap().config;
        // The table has no RoPE theta and no routing: no parameter depends on them.
        let mut counted = read_ok(&row["config"]);
        counted.rope_base = entry.rope_base;
        if let (Some(counted), Some(known)) = (&mut counted.variant.experts, entry.variant.experts) {
            counted.routing = known.routing;
        }
        assert_eq!(counted, entry, "{name}");
    }
    let of_library = library_types();
    kinds.extend(of_library.iter().filter(|row| row.get("config").is_some()).filter_map(|row| row["name"].as_str()));
    let missing: Vec<&&str> = MODEL_TYPES.iter().filter(|kind| !kinds.contains(*kind)).collect();
    assert!(missing.is_empty(), "no count of {missing:?}");
}

/// The decoders of `transformers`, those that are read with the sizes that its classes have by themselves.
fn library_types() -> Vec<Value> {
    let table = include_str!("../../../../tests/reference/model_types.json");
    let table: Value = serde_json::from_str(table).unwrap();
    table["models"].as_array().unwrap().clone()
}

/// Each class of `transformers` that predicts the next token is read with its count of parameters, or refused by its
/// type or by the name of a field.
#[test]
fn each_decoder_of_the_library_is_exact_or_refused_by_name() {
    let mut wrong = Vec::new();
    for row in library_types() {
        let name = row["name"].as_str().unwrap();
        let refused = json!({ "model_type": name });
        let mut faults = Vec::new();
        let found = read(row.get("config").unwrap_or(&refused), "", &mut faults).map(|model| model.parameters());
        if found != row["count"].as_u64() || found.is_none() && faults.is_empty() {
            wrong.push(format!("{name}: {found:?} for {}, {}", row["count"], fault_texts(&faults)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file that leaves a field out is what the library makes of it, which fills in its own size: that of the class. Or
/// the field is refused by name.
#[test]
fn a_field_that_is_left_out_is_the_library_s_own() {
    let mut wrong = Vec::new();
    let table = include_str!("../../../../tests/reference/parameter_counts.json");
    let table: Value = serde_json::from_str(table).unwrap();
    // Of these rows the sizes are the class's own, too.
    let own = ["mistral-small-4-text", "paddleocr-vl-text", "granite-docling-text", "cosmos3-edge-text", "emu3-text"];
    let of_text =
        table["models"].as_array().unwrap().iter().filter(|row| own.iter().any(|name| row["name"] == *name));
    for row in library_types().iter().chain(of_text) {
        let Some(whole) = row.get("config") else { continue };
        let model = read_ok(whole);
        // The class of DeepSeek-V3 does not build the modules that it says it has.
        let keys = whole.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        for key in keys.filter(|key| !["model_type", "num_nextn_predict_layers"].contains(key)) {
            let mut without = whole.clone();
            without.as_object_mut().unwrap().remove(key);
            let mut faults = Vec::new();
            match read(&without, "", &mut faults) {
                Some(other) if other != model => wrong.push(format!("{} {key}", row["name"])),
                None if faults.is_empty() => wrong.push(format!("{} {key}: no fault", row["name"])),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is not read has a fault, whichever field is null.
#[test]
fn what_is_not_read_has_a_fault() {
    let table = include_str!("../../../../tests/reference/parameter_counts.json");
    let table: Value = serde_json::from_str(table).unwrap();
    for row in library_types().iter().chain(table["models"].as_array().unwrap()) {
        let Some(whole) = row.get("config") else { continue };
        for key in whole.as_object().into_iter().flatten().map(|(key, _)| key) {
            let mut without = whole.clone();
            without[key] = Value::Null;
            let mut faults = Vec::new();
            let is_read = read(&without, "", &mut faults).is_some();
            assert_eq!(is_read, faults.is_empty(), "{} {key}", row["name"]);
        }
    }
}

/// A family with the layers of another has its own defaults, also inside a file of several models.
#[test]
fn families_with_the_layers_of_another_have_their_own_defaults() {
    let row = |name: &str| library_types().into_iter().find(|row| row["name"] == name).unwrap();
    for inside in [false, true] {
        let of = |name: &str| {
            let mut config = row(name)["config"].clone();
            for key in ["sliding_window", "q_lora_rank", "rope_parameters"] {
                config.as_object_mut().unwrap().remove(key);
            }
            if inside { json!({ "model_type": "mistral3", "text_config": config }) } else { config }
        };
        assert_eq!(read_ok(&of("mistral")).variant.window, Some(Window::sliding(4096, 0)));
        let ministral = read_ok(&of("ministral3"));
        assert_eq!((ministral.variant.window, ministral.rope_base), (None, 1_000_000));
        assert_eq!(read_ok(&of("deepseek_v3")).variant.latent.unwrap().query_rank, 1536);
        assert_eq!(read_ok(&of("sarvam_mla")).variant.latent.unwrap().query_rank, 0);
        // What the newer table says of rotary positions is not filled in over.
        let mut exaone = row("exaone")["config"].clone();
        exaone["rope_parameters"]["rope_theta"] = json!(12345.0);
        assert_eq!(read_ok(&exaone).rope_base, 12345);
        let mut gemma = of("gemma3_text");
        let table = if inside { &mut gemma["text_config"] } else { &mut gemma };
        table["rope_parameters"] = json!({ "full_attention": { "rope_theta": 777.0 } });
        assert_eq!(read_ok(&gemma).rope_base, 777);
    }
}

/// In TOML, which has no null, `none` is one: a missing field is not, where the library fills it in.
#[test]
fn none_is_a_null() {
    for (name, key) in [
        ("deepseek-v3", "q_lora_rank"),
        ("mistral-7b", "sliding_window"),
        ("gemma-2-9b", "attn_logit_softcapping"),
        ("gemma-2-9b", "sliding_window"),
    ] {
        let [mut null, mut none, mut missing] = [(); 3].map(|()| published(name));
        null[key] = Value::Null;
        none[key] = json!("none");
        missing.as_object_mut().unwrap().remove(key);
        assert_eq!(read_ok(&none), read_ok(&null), "{name} {key}");
        assert_ne!(read_ok(&none), read_ok(&missing), "{name} {key}");
    }
}

/// Words that Python writes for numbers that are none are refused where a number is needed, and pass where none is.
#[test]
fn words_of_python_are_no_sizes() {
    let file = |key: &str, word: &str| {
        let mut config = published("llama-3-8b");
        config[key] = json!("HERE");
        let text = config.to_string().replace("\"HERE\"", word);
        crate::base::json::parse_python(&text).unwrap()
    };
    for word in ["Infinity", "-Infinity", "NaN"] {
        assert_eq!(read_ok(&file("time_step_limit", &format!("[0.0, {word}]"))), read_ok(&published("llama-3-8b")));
        for key in
            ["num_hidden_layers", "hidden_size", "rms_norm_eps", "rope_theta", "head_dim", "tie_word_embeddings"]
        {
            let mut faults = Vec::new();
            assert!(read(&file(key, word), "model.config", &mut faults).is_none(), "{key}");
            assert_eq!(faults[0].field, format!("model.config.{key}"));
            assert_eq!(faults[0].found, format!("\"{word}\""));
        }
    }
}

/// Phi-4 multimodal has the decoder of Phi-3 and tables of towers beside its sizes.
#[test]
fn towers_beside_the_sizes_are_left_out() {
    let row = library_types().into_iter().find(|row| row["name"] == "phi3").unwrap();
    let mut config = row["config"].clone();
    let alone = read_ok(&config);
    config["model_type"] = json!("phi4_multimodal");
    config["vision_config"] = json!({ "hidden_size": 1152 });
    config["audio_config"] = json!({});
    assert_eq!(read_ok(&config), alone);
    assert_eq!(notes(&config), ["left out: audio_config, vision_config, and what joins it to the decoder"]);
}

/// Of a file with a model that writes and one that speaks, the decoder of the first is read.
#[test]
fn the_model_that_writes_is_read() {
    let table = include_str!("../../../../tests/reference/parameter_counts.json");
    let table: Value = serde_json::from_str(table).unwrap();
    let of_text = |row: &&Value| row["name"] == "qwen3-omni-30b-a3b-text";
    let row = table["models"].as_array().unwrap().iter().find(of_text).unwrap();
    let thinker = json!({ "model_type": "qwen3_omni_moe_thinker", "text_config": row["config"], "audio_config": {} });
    let mut whole = json!({ "model_type": "qwen3_omni_moe", "thinker_config": thinker, "talker_config": {} });
    assert_eq!(Some(read_ok(&whole).parameters()), row["count"].as_u64());
    assert!(notes(&whole)[0].contains("read from thinker_config"));
    whole["thinker_config"]["text_config"]["hidden_size"] = json!(0);
    let mut faults = Vec::new();
    assert!(read(&whole, "model.config", &mut faults).is_none());
    assert_eq!(faults[0].field, "model.config.thinker_config.text_config.hidden_size");
}

fn fault_texts(faults: &[Fault]) -> std::string::String {
    faults.iter().map(|fault| format!("{}: {} ", fault.field, fault.found)).collect()
}

/// Multipliers and soft-caps of Gemma and Granite: from the files, and the library's defaults where a file has none.
#[test]
fn factors_and_caps_are_read() {
    let granite = json!({
        "model_type": "granite", "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 12800, "vocab_size": 49155, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.0078125, "logits_scaling": 16.0,
    });
    let [twelve, residual, scale, logits] = [12.0, 0.22, 1.0 / 128.0, 1.0 / 16.0].map(to_e12).map(Some);
    let factors = Factors { embedding: twelve, residual, attention: scale, logits };
    assert_eq!(read_ok(&granite).variant, Variant { factors, ..Variant::USUAL });
    let mut plain = granite.clone();
    for key in ["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"] {
        plain[key] = Value::Null;
    }
    let one = Factors { attention: Some(E12), ..Factors::default() };
    assert_eq!(read_ok(&plain).variant.factors, one, "the library's own scale of scores is 1");

    let mut gemma = published("gemma-2-9b");
    gemma["query_pre_attn_scalar"] = json!(144);
    assert_eq!(read_ok(&gemma).variant.factors.attention, Some(to_e12(1.0 / 12.0)));
    gemma["attn_logit_softcapping"] = Value::Null;
    let caps = |config: &Value| read_ok(config).variant.caps;
    assert_eq!(caps(&gemma), Caps { attention: None, logits: Some(30 * E12) }, "a null caps nothing");
    gemma.as_object_mut().unwrap().remove("attn_logit_softcapping");
    assert_eq!(caps(&gemma), Caps { attention: Some(50 * E12), logits: Some(30 * E12) });
    gemma["final_logit_softcapping"] = json!(-30.0);
    let mut faults = Vec::new();
    assert!(read(&gemma, "model.config", &mut faults).is_none());
    assert_eq!(faults[0].field, "model.config.final_logit_softcapping");
}

/// From the published files of DeepSeek-V2, DeepSeek-V2-Lite, Kimi K2 and GLM-4.5-Air; where one has no such field, the
/// library's default.
#[test]
fn routing_is_read() {
    let routing = |kind: &str, says: Value| {
        let mut config = published("deepseek-v3");
        for key in ["scoring_func", "topk_method", "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group"]
        {
            config[key] = says[key].clone();
        }
        config["model_type"] = json!(kind);
        if kind == "glm4_moe" {
            ["q_lora_rank", "kv_lora_rank"].into_iter().for_each(|key| config[key] = Value::Null);
        }
        read_ok(&config).variant.experts.map(|experts| experts.routing).unwrap()
    };
    let of = |name: &str| catalog::find(name).and_then(|entry| entry.config.variant.experts).unwrap().routing;
    let v2 = json!({
        "scoring_func": "softmax", "topk_method": "group_limited_greedy", "norm_topk_prob": false,
        "routed_scaling_factor": 16.0, "n_group": 8, "topk_group": 3,
    });
    assert_eq!(routing("deepseek_v2", v2), of("deepseek-v2"));
    let lite = json!({
        "scoring_func": "softmax", "topk_method": "greedy", "norm_topk_prob": false, "routed_scaling_factor": 1.0,
        "n_group": 1, "topk_group": 1,
    });
    assert_eq!(routing("deepseek_v2", lite), Routing::USUAL);
    let kimi = json!({
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.827,
        "n_group": 1, "topk_group": 1,
    });
    assert_eq!(routing("kimi_k2", kimi), of("kimi-k2"));
    assert_eq!(routing("deepseek_v3", json!({})), of("deepseek-v3"));
    let air = json!({ "norm_topk_prob": true, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1 });
    let sigmoid = Routing { scores: Scores::Sigmoid, normed: true, ..Routing::USUAL };
    assert_eq!((routing("glm4_moe", air), routing("glm4_moe", json!({}))), (sigmoid, sigmoid));
    assert_eq!(routing("deepseek_v2", json!({})), Routing::USUAL);
}

#[test]
fn unsupported_decoders_are_refused_with_the_missing_part() {
    for (config, part) in [
        (json!({ "model_type": "bloom" }), "ALiBi"),
        (json!({ "model_type": "mamba" }), "another recurrence"),
        (json!({ "model_type": "longcat_flash" }), "other connections between layers"),
        (
            json!({ "model_type": "gemma3n", "text_config": { "model_type": "gemma3n_text" } }),
            "embeddings of each layer",
        ),
        (
            json!({ "model_type": "gemma4", "text_config": { "model_type": "gemma4_text", "attention_k_eq_v": true } }),
            "this one has embeddings of each layer (hidden_size_per_layer_input), which is",
        ),
        (
            json!({ "model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 20 }),
            "this one has keys and values shared between layers (num_kv_shared_layers), which is",
        ),
        (json!({ "model_type": "qwen_3" }), "perhaps qwen3"),
    ] {
        let mut faults = Vec::new();
        assert!(read(&config, "model.config", &mut faults).is_none());
        assert!(faults[0].field.ends_with("model_type"));
        assert!(faults[0].accepted.contains(part), "{}", faults[0].accepted);
    }
}

/// Qwen 2 MoE says whether queries, keys and values have biases; the count without them is that of its class.
#[test]
fn biases_of_qwen_2_moe_are_read() {
    let row = library_types().into_iter().find(|row| row["name"] == "qwen2_moe").unwrap();
    let mut config = row["config"].clone();
    config["qkv_bias"] = json!(false);
    assert_eq!(read_ok(&config).parameters(), 14_315_636_736);
}

/// A published file of `parameter_counts.json`.
fn counted(name: &str) -> Value {
    let table = include_str!("../../../../tests/reference/parameter_counts.json");
    let table: Value = serde_json::from_str(table).unwrap();
    let row = table["models"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
    row["config"].clone()
}

/// Flags and sizes that change what parameters a family has. Counts by the classes of `transformers` 5.24.
#[test]
fn parts_of_families_with_other_norms_are_counted() {
    for (name, key, value, count) in [
        ("command-r7b", "attention_bias", json!(true), 8_028_360_704),
        ("command-r-35b", "use_qk_norm", json!(true), 34_981_486_592),
        ("minitron-4b", "attention_bias", json!(true), 4_190_771_200),
        ("minitron-4b", "mlp_bias", json!(true), 4_190_902_272),
        ("stablelm-2-1.6b", "qk_layernorm", json!(true), 1_644_613_632),
        ("phi-2", "qk_layernorm", json!(true), 2_779_694_080),
        ("stablelm-2-1.6b", "use_parallel_residual", json!(true), 1_644_417_024),
        ("stablelm-2-1.6b", "use_qkv_bias", json!(false), 1_644_367_872),
        ("olmo-1b", "attention_bias", json!(true), 1_176_895_488),
        ("nanochat-d32", "attention_bias", json!(true), 1_879_310_336),
        ("nanochat-d32", "num_key_value_heads", json!(4), 1_677_721_600),
        ("starcoder2-15b", "use_bias", json!(false), 15_956_127_744),
        ("gpt-j-6b", "n_inner", json!(8192), 4_171_605_216),
        ("phi-2", "num_key_value_heads", json!(8), 2_464_988_160),
        ("phi-2", "tie_word_embeddings", json!(true), 2_648_611_840),
    ] {
        let mut config = counted(name);
        config[key] = value;
        assert_eq!(read_ok(&config).parameters(), count, "{name} {key}");
    }
    let library = |kind: &str| library_types().into_iter().find(|row| row["name"] == kind).unwrap()["config"].clone();
    for (kind, key, count) in [
        ("jais2", "attention_bias", 8_089_975_296),
        ("jais2", "mlp_bias", 8_089_442_816),
        ("gpt_neox", "attention_bias", 20_553_486_336),
    ] {
        let mut config = library(kind);
        config[key] = json!(false);
        assert_eq!(read_ok(&config).parameters(), count, "{kind} {key}");
    }
}

/// Gemma 4: one layer of six sees all, with wider heads of which a quarter turns; the last one sees all whatever a list
/// says. The count without shared keys and values is that of the class.
#[test]
fn layers_of_gemma_4_that_see_all_have_heads_of_their_own() {
    let config = counted("gemma-4-31b-text");
    let model = read_ok(&config);
    let global = Global { head_dim: 512, kv_heads: 4, rotary: Some(128), keys_are_values: true };
    assert_eq!((model.global(4), model.global(5)), (None, Some(global)));
    assert_eq!((model.attention_sizes(4), model.attention_sizes(5)), ([256, 16], [512, 4]));
    let mut apart = config.clone();
    apart["attention_k_eq_v"] = json!(false);
    assert_eq!(read_ok(&apart).parameters(), 31_468_048_640);
    // As the library writes it: the sizes of each such layer.
    let mut by_layer = config.clone();
    for key in ["global_head_dim", "num_global_key_value_heads"] {
        by_layer.as_object_mut().unwrap().remove(key);
    }
    let sizes =
        (5..60).step_by(6).map(|layer| (layer.to_string(), json!({ "head_dim": 512, "num_key_value_heads": 4 })));
    by_layer["per_layer_config"] = Value::Object(sizes.collect());
    assert_eq!(read_ok(&by_layer), model);
    by_layer["per_layer_config"]["11"]["head_dim"] = json!(256);
    let mut faults = Vec::new();
    assert!(read(&by_layer, "", &mut faults).is_none());
    assert_eq!(faults[0].field, "per_layer_config");
    let mut last = config.clone();
    last["layer_types"] = json!(std::vec!["sliding_attention"; 60]);
    let last = read_ok(&last);
    assert!((0..60).all(|layer| last.has_window(layer) == (layer < 59)));
    for (key, value) in [("attention_bias", json!(true)), ("use_bidirectional_attention", json!("all"))] {
        let mut other = config.clone();
        other[key] = value;
        let mut faults = Vec::new();
        assert!(read(&other, "", &mut faults).is_none());
        assert_eq!(faults[0].field, key);
    }
}

/// What no count of parameters tells of these families, as the code of their classes has it.
#[test]
fn parts_without_parameters_of_families_with_other_norms_are_read() {
    let model = |name: &str| read_ok(&counted(name));
    let command = model("command-r7b");
    let of = |has: fn(&ModelConfig, u32) -> bool| (0..command.layers).filter(|layer| has(&command, *layer)).count();
    assert_eq!((of(ModelConfig::has_window), of(ModelConfig::has_rope)), (24, 24));
    assert!((0..command.layers).all(|layer| command.has_window(layer) == command.has_rope(layer)));
    assert_eq!(command.variant.arrangement, Arrangement::BesideOneNorm);
    assert_eq!(command.variant.factors.logits, Some(to_e12(0.25)));
    let mut all = counted("command-r7b");
    all["sliding_window"] = Value::Null;
    let all = read_ok(&all);
    assert!((0..all.layers).all(|layer| !all.has_window(layer) && !all.has_rope(layer)), "as the class has it");

    let olmo = model("olmo-1.7-7b");
    assert_eq!((olmo.variant.qkv_clip, olmo.norm_eps_e12), (Some(8 * E12), 10_000_000));
    assert_eq!(model("nanochat-d32").variant.caps.logits, Some(15 * E12));
    assert_eq!(model("phi-2").variant.rotary, Some(32));
    assert_eq!(model("minitron-4b").variant.rotary, Some(64));
    assert_eq!(model("gpt-j-6b").variant.rotary, Some(64));
    assert_eq!(model("phi-2").variant.activation, Activation::PlainGeluTanh);
    let mut exact = counted("phi-2");
    exact["hidden_act"] = json!("gelu");
    assert_eq!(read_ok(&exact).variant.activation, Activation::PlainGelu);
    for (name, key, value) in [
        ("command-r7b", "layer_switch", json!(3)),
        ("command-r7b", "position_embedding_type", json!("alibi")),
        ("command-r7b", "use_parallel_block", json!(false)),
        ("command-r7b", "head_dim", json!(64)),
        ("stablelm-2-12b", "head_dim", json!(64)),
        ("olmo-1b", "hidden_act", json!("gelu")),
        ("minitron-4b", "hidden_act", json!("silu")),
        ("phi-2", "mlp_bias", json!(true)),
    ] {
        let mut config = counted(name);
        config[key] = value;
        let mut faults = Vec::new();
        assert!(read(&config, "", &mut faults).is_none(), "{name} {key}");
        assert_eq!(faults[0].field, key, "{name}");
    }
}

/// What the class of a family does not read, or cannot run, is refused: parameters of the class do not follow such a
/// field.
#[test]
fn what_no_class_reads_is_refused() {
    let table = include_str!("../../../../tests/reference/parameter_counts.json");
    let table: Value = serde_json::from_str(table).unwrap();
    for (name, key, as_it_is, other) in [
        ("glm-4.1v-9b-text", "head_dim", json!(128), json!(64)),
        ("deepseek-ocr-2-text", "head_dim", json!(128), json!(64)),
        ("helium-1-2b", "head_dim", json!(128), json!(64)),
        ("olmoe-1b-7b", "head_dim", json!(128), json!(64)),
        ("minimax-m2", "use_qk_norm", json!(true), json!(false)),
        ("hunyuan-a13b", "num_shared_expert", json!(1), json!(2)),
        ("glm-4.1v-9b-text", "attention_bias", json!(true), json!(false)),
    ] {
        let row = table["models"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        let mut config = row["config"].clone();
        config[key] = as_it_is;
        assert_eq!(Some(read_ok(&config).parameters()), row["count"].as_u64(), "{name} {key}");
        config[key] = other.clone();
        let mut faults = Vec::new();
        assert!(read(&config, "", &mut faults).is_none());
        assert_eq!((faults[0].field.as_str(), faults[0].found.clone()), (key, other.to_string()), "{name}");
    }
}

/// The heads of Mamba 2 together are as wide as the library's classes have them.
#[test]
fn heads_of_mamba_are_as_wide_as_the_stream_expanded() {
    let row = library_types().into_iter().find(|row| row["name"] == "bamba").unwrap();
    for key in ["mamba_d_head", "mamba_n_heads", "mamba_expand"] {
        let mut config = row["config"].clone();
        config[key] = json!(2 * config[key].as_u64().unwrap());
        let mut faults = Vec::new();
        assert!(read(&config, "", &mut faults).is_none());
        assert_eq!(faults[0].field, "mamba_d_head", "{key}");
    }
}

/// Biases by flags, as the classes of `transformers` 5.24 have them: of 32 layers with queries of 4096, keys and values of
/// 1024, an output of 4096, and an MLP of 14336; and of 36 layers with 4096, 1024 and 4096.
#[test]
fn biases_are_counted() {
    for (name, key, more) in [
        ("llama-3-8b", "attention_bias", 32 * (4096 + 2 * 1024 + 4096)),
        ("llama-3-8b", "mlp_bias", 32 * (2 * 14336 + 4096)),
        ("qwen-3-8b", "attention_bias", 36 * (4096 + 2 * 1024 + 4096)),
    ] {
        let mut config = published(name);
        let plain = read_ok(&config).parameters();
        config[key] = json!(true);
        assert_eq!(read_ok(&config).parameters(), plain + more, "{name} {key}");
    }
}

/// A field that a family may have, and that the graph does not support, is refused by name.
#[test]
fn unsupported_fields_are_refused() {
    for (name, key, value) in [
        ("mixtral-8x7b", "attention_bias", json!(true)),
        ("qwen-3-8b", "mlp_bias", json!(true)),
        ("llama-3-8b", "hidden_act", json!("relu")),
        ("gemma-2-9b", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("gemma-2-9b", "layer_types", json!(7)),
        ("llama-3-8b", "num_key_value_heads", json!(64)),
        ("llama-3-8b", "num_experts", json!(8)),
        ("llama-3-8b", "kv_lora_rank", json!(512)),
        ("qwen-3-8b", "layer_types", json!(["linear_attention"])),
        ("qwen-3-30b-a3b", "mlp_only_layers", json!([48])),
        ("deepseek-v3", "moe_layer_freq", json!(0)),
        ("deepseek-v3", "scoring_func", json!("softmax")),
        ("llama-3-8b", "num_hidden_layers", json!("32")),
    ] {
        let mut config = published(name);
        config[key] = value;
        let mut faults = Vec::new();
        assert!(read(&config, "model.config", &mut faults).is_none(), "{name} {key}");
        assert_eq!(faults[0].field, format!("model.config.{key}"), "{faults:?}");
    }
}

/// Lists and periods of layers with experts or windows, as the libraries of Qwen and DeepSeek read them.
#[test]
fn patterns_of_layers_are_read() {
    let layers = |config: &Value| {
        let model = read_ok(config);
        (0..model.layers).filter(|layer| model.has_experts(*layer)).collect::<Vec<u32>>()
    };
    let mut qwen = published("qwen-3-30b-a3b");
    qwen["mlp_only_layers"] = json!([0, 5]);
    let all: Vec<u32> = (0..48).collect();
    assert_eq!(layers(&qwen), all.iter().copied().filter(|layer| ![0, 5].contains(layer)).collect::<Vec<_>>());
    qwen["decoder_sparse_step"] = json!(2);
    assert_eq!(layers(&qwen), all.iter().copied().filter(|layer| layer % 2 == 1 && *layer != 5).collect::<Vec<_>>());
    let mut deepseek = published("deepseek-v3");
    deepseek["moe_layer_freq"] = json!(2);
    assert_eq!(layers(&deepseek), (4..61).step_by(2).collect::<Vec<u32>>());

    let mut qwen = published("qwen-2.5-7b");
    (qwen["use_sliding_window"], qwen["sliding_window"], qwen["max_window_layers"]) =
        (json!(true), json!(1024), json!(21));
    let model = read_ok(&qwen);
    assert!((0..28).all(|layer| model.looks_back(layer, 4096) == if layer < 21 { 4096 } else { 1024 }));
}

/// What is left out, filled in or not known is told; what decides a model is refused.
#[test]
fn no_field_is_passed_over() {
    let of = |more: Value| {
        let mut config = published("llama-3-8b");
        more.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        notes(&config)
    };
    assert_eq!(of(json!({ "attention_dropout": 0.1, "use_cache": true, "q_lora_rank": null })), Vec::<String>::new());
    assert_eq!(of(json!({ "brand_new": 3, "other": "x" })), ["not known and not used: brand_new, other"]);
    let modules = of(json!({ "num_nextn_predict_layers": 1 }));
    assert!(modules[0].contains("multi-token prediction are left out (num_nextn_predict_layers)"), "{modules:?}");

    let gemma = json!({
        "model_type": "gemma3", "tie_word_embeddings": true, "vision_config": { "hidden_size": 1152 },
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    });
    let told = notes(&gemma);
    assert!(told[0].contains("read from text_config; left out: vision_config"), "{told:?}");
    assert!(told[1].contains("vocab_size 262208") && told[1].contains("num_attention_heads 8"), "{told:?}");
    let mut wrong = gemma.clone();
    wrong["text_config"]["num_hidden_layers"] = json!(0);
    let mut faults = Vec::new();
    assert!(read(&wrong, "model.config", &mut faults).is_none());
    assert_eq!(faults[0].field, "model.config.text_config.num_hidden_layers");
}

/// The parts of newer families, from fields of their published files.
#[test]
fn parts_of_newer_families_are_read() {
    let table = include_str!("../../../../tests/reference/parameter_counts.json");
    let table: Value = serde_json::from_str(table).unwrap();
    let model = |name: &str| {
        let row = table["models"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        read_ok(&row["config"])
    };
    let without = |model: &ModelConfig| (0..model.layers).filter(|layer| !model.has_rope(*layer)).count();
    let windows = |model: &ModelConfig| (0..model.layers).filter(|layer| model.has_window(*layer)).count();

    let smollm = model("smollm3-3b");
    assert_eq!((without(&smollm), smollm.has_rope(3), smollm.has_rope(4)), (9, false, true));
    let olmo = model("olmo-3-7b");
    assert_eq!((windows(&olmo), olmo.looks_back(3, 8192), olmo.looks_back(4, 8192)), (24, 8192, 4096));
    assert!(olmo.variant.no_pre_norms && olmo.variant.post_norms && olmo.variant.qk_norm_of == QkNorm::Whole);
    let scout = model("llama-4-scout");
    assert_eq!((without(&scout), windows(&scout)), (12, 36));
    assert_eq!((scout.attention_sequence(0, 32768), scout.attention_sequence(3, 32768)), (8192, 32768));
    assert_eq!(scout.variant.temperature, Some(Temperature { tokens: 8192, scale_e12: to_e12(0.1) }));
    let oss = model("gpt-oss-120b");
    assert_eq!((windows(&oss), oss.looks_back(0, 4096), oss.looks_back(1, 4096)), (18, 128, 4096));
    assert!(oss.variant.sinks && oss.variant.o_bias && oss.variant.experts.is_some_and(|experts| experts.biases));
    let next = model("qwen3-next-80b-a3b");
    let recurrent = (0..next.layers).filter(|layer| next.recurrence(*layer).is_some()).count();
    assert_eq!((recurrent, next.recurrence(3), next.variant.rotary), (36, None, Some(64)));
    let granite = model("granite-4.0-h-small");
    let attends: Vec<u32> = (0..40).filter(|layer| granite.recurrence(*layer).is_none()).collect();
    assert_eq!(attends, [5, 15, 25, 35]);
    let ministral = model("ministral-8b");
    assert_eq!((windows(&ministral), ministral.has_window(0), ministral.has_window(1)), (27, false, true));
    let glm = model("glm-4.1v-9b-text");
    assert_eq!((glm.variant.rotary, glm.variant.qkv_bias, glm.variant.post_norms), (Some(64), true, true));
    let mistral = model("mistral-small-4-text").variant.experts.unwrap();
    assert_eq!(mistral.routing, Routing { normed: true, ..Routing::USUAL });
    let exaone = model("exaone-4.0-32b");
    assert_eq!((without(&exaone), windows(&exaone), exaone.has_window(63)), (16, 48, false));
}

/// Fields of files on the Hub that say what the family does anyway; and what they decide where they say another thing.
#[test]
fn fields_that_say_what_a_family_does_change_nothing() {
    let table = include_str!("../../../../tests/reference/parameter_counts.json");
    let table: Value = serde_json::from_str(table).unwrap();
    let counted = table["models"].as_array().unwrap().clone();
    let row = |name: &str| {
        let row = library_types().into_iter().chain(counted.clone()).find(|row| row["name"] == name).unwrap();
        row["config"].clone()
    };
    let with = |config: &Value, more: &Value| {
        let mut config = config.clone();
        more.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    for (name, usual, other) in [
        (
            "qwen3_5_text",
            json!({ "mamba_ssm_dtype": "float32", "attn_output_gate": true, "mtp_use_dedicated_embeddings": false }),
            json!({ "attn_output_gate": false }),
        ),
        ("minimax_m2", json!({ "attn_type_list": [1, 1, 1] }), json!({ "attn_type_list": [1, 0, 1] })),
        ("hunyuan-7b", json!({ "use_cla": false, "cla_share_factor": 2 }), json!({ "use_cla": true })),
        ("deepseek_v3", json!({ "num_key_value_heads": 128 }), json!({ "num_hidden_layers": 0 })),
        ("qwen2_moe", json!({ "use_sliding_window": false }), json!({ "use_sliding_window": true })),
        ("smollm3", json!({ "use_sliding_window": false }), json!({ "use_sliding_window": true })),
    ] {
        let config = row(name);
        let said = with(&config, &usual);
        assert_eq!(read_ok(&said), read_ok(&config), "{name}");
        assert_eq!(notes(&said), notes(&config), "{name}");
        let mut faults = Vec::new();
        read(&with(&config, &other), "", &mut faults);
        assert_eq!(
            faults.first().map(|fault| &fault.field[..]),
            other.as_object().unwrap().keys().next().map(|key| &key[..])
        );
    }
}

/// Qwen 2.5 Omni: the whole of what writes says whether its tables are one, and they are two where it does not
/// (`Qwen2_5OmniThinkerForConditionalGeneration`), whatever the decoder within says.
#[test]
fn a_thinker_says_whether_its_tables_are_one() {
    let table = include_str!("../../../../tests/reference/parameter_counts.json");
    let table: Value = serde_json::from_str(table).unwrap();
    let row = table["models"].as_array().unwrap().iter().find(|row| row["name"] == "qwen2.5-omni-7b-text").unwrap();
    let mut text = row["config"].clone();
    for (inner, outer, tied) in [
        (Value::Null, Value::Null, false),
        (json!(true), Value::Null, false),
        (json!(true), json!(false), false),
        (json!(false), json!(true), true),
    ] {
        text.as_object_mut().unwrap().remove("tie_word_embeddings");
        if !inner.is_null() {
            text["tie_word_embeddings"] = inner;
        }
        let mut thinker = json!({ "model_type": "qwen2_5_omni_thinker", "text_config": text });
        if !outer.is_null() {
            thinker["tie_word_embeddings"] = outer;
        }
        let whole = json!({ "model_type": "qwen2_5_omni", "thinker_config": thinker });
        let model = read_ok(&whole);
        assert_eq!(model.tied, tied, "{whole}");
        let head = u64::from(model.vocab) * u64::from(model.hidden);
        assert_eq!(model.parameters(), row["count"].as_u64().unwrap() - if tied { head } else { 0 });
    }
}

/// A tower of sizes that none has is not told, and no product of them overflows.
#[test]
fn towers_without_end_are_not_told() {
    let most = u32::MAX;
    for config in [
        json!({ "model_type": "qwen2_5_vl", "vision_config": { "depth": most, "hidden_size": most, "intermediate_size": most,
            "num_heads": 1, "patch_size": most, "spatial_merge_size": most, "out_hidden_size": most } }),
        json!({ "model_type": "mistral3", "vision_config": { "hidden_size": 1024 },
            "text_config": { "model_type": "mistral", "hidden_size": most } }),
    ] {
        let mut faults = Vec::new();
        assert!(read(&config, "", &mut faults).is_none());
        notes(&config);
    }
}

/// Granite with windows: layers of RoPE theta 0 have no rotary positions, and the first of each four sees all tokens.
#[test]
fn layers_of_theta_0_have_no_rotary_positions() {
    let row = library_types().into_iter().find(|row| row["name"] == "granite_swa").unwrap();
    let mut config = row["config"].clone();
    let model = read_ok(&config);
    assert!(
        model.variant.sinks
            && (0..24).all(|layer| model.has_rope(layer) && model.has_window(layer) == (layer % 4 != 0))
    );
    config["layer_rope_theta"] =
        (0..24).map(|layer| if layer % 4 == 0 { json!(0) } else { json!(10000.0) }).collect();
    let model = read_ok(&config);
    assert!((0..24).all(|layer| model.has_rope(layer) == (layer % 4 != 0)));
    assert_eq!(notes(&config), Vec::<String>::new());
    config["layer_rope_theta"][1] = json!(5000.0);
    assert_eq!(read_ok(&config), model);
    assert!(notes(&config)[0].starts_with("1 layers have another RoPE theta than 10000"));
    for wrong in [json!([0, 10000.0]), json!(3), json!("10000")] {
        config["layer_rope_theta"] = wrong;
        let mut faults = Vec::new();
        assert!(read(&config, "", &mut faults).is_none());
        assert_eq!(faults[0].field, "layer_rope_theta");
    }
}

#[test]
fn other_kinds_are_refused_by_name() {
    let mut faults = Vec::new();
    assert!(read(&json!({ "model_type": "bert" }), "model.config", &mut faults).is_none());
    assert_eq!((faults[0].field.as_str(), faults[0].found.as_str()), ("model.config.model_type", "\"bert\""));
    faults.clear();
    assert!(read(&json!([]), "model.config", &mut faults).is_none());
    assert!(read(&json!({}), "model.config", &mut faults).is_none());
    assert_eq!(faults.len(), 2);
}

/// Towers and projectors have the parameters that `transformers` counts.
#[test]
fn vision_towers_have_the_parameters_of_transformers() {
    let table = include_str!("../../../../tests/reference/vision_towers.json");
    let table: Value = serde_json::from_str(table).unwrap();
    let rows = table["towers"].as_array().unwrap();
    assert!(rows.len() >= 8);
    for row in rows {
        let (name, config) = (row["name"].as_str().unwrap(), &row["config"]);
        let vision = super::tower(config).unwrap_or_else(|| panic!("{name}"));
        let decoder = read(config, "", &mut Vec::new()).unwrap_or_else(|| panic!("{name}"));
        let found = [vision.parameters(decoder.hidden), vision.projector_parameters(decoder.hidden)];
        let expected = ["count", "projector"].map(|key| row[key].as_u64().unwrap());
        assert_eq!(found, expected, "{name}");
        let told = notes(config).join("\n");
        assert!(told.contains(&format!("a vision tower of {} parameters", expected[0])), "{name}: {told}");
    }
}
