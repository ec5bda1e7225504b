//! The models of torchtitan by name and flavour, as a spec says them.
//!
//! Sizes are facts of `torchtitan/models/*/__init__.py` and `*/model/args.py` of v0.2.2 (2026-02-20), the last version with a
//! config in TOML; those of Llama 2 are of the first versions (`torchtitan/models/llama/__init__.py`, 2024). Widths of the MLP
//! follow by its rule: two thirds of four hidden sizes, times a factor, rounded up.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Value, json};

/// Models whose layers are all dense: name, flavour, layers, hidden size, heads, heads of keys and values, width of the MLP,
/// vocabulary, RoPE theta.
const DENSE: [(&str, &str, [u64; 7]); 14] = [
    ("llama2", "7B", [32, 4096, 32, 32, 11_008, 32_000, 10_000]),
    ("llama2", "13B", [40, 5120, 40, 40, 13_824, 32_000, 10_000]),
    ("llama2", "70B", [80, 8192, 64, 8, 28_672, 32_000, 10_000]),
    ("llama3", "debugmodel", [6, 256, 16, 16, 768, 2048, 500_000]),
    ("llama3", "8B", [32, 4096, 32, 8, 14_336, 128_256, 500_000]),
    ("llama3", "70B", [80, 8192, 64, 8, 28_672, 128_256, 500_000]),
    ("llama3", "405B", [126, 16_384, 128, 8, 53_248, 128_256, 500_000]),
    ("qwen3", "debugmodel", [8, 256, 16, 8, 3072, 2048, 1_000_000]),
    ("qwen3", "0.6B", [28, 1024, 16, 8, 3072, 151_936, 1_000_000]),
    ("qwen3", "1.7B", [28, 2048, 16, 8, 6144, 151_936, 1_000_000]),
    ("qwen3", "4B", [36, 2560, 32, 8, 9728, 151_936, 1_000_000]),
    ("qwen3", "8B", [36, 4096, 32, 8, 12_288, 151_936, 1_000_000]),
    ("qwen3", "14B", [40, 5120, 40, 8, 17_408, 151_936, 1_000_000]),
    ("qwen3", "32B", [64, 5120, 64, 8, 25_600, 151_936, 1_000_000]),
];

/// Those of Qwen 3 with experts, of which 8 are chosen: flavour, sizes as above, experts, and the width of each.
const QWEN_EXPERTS: [(&str, [u64; 7], [u64; 2]); 3] = [
    ("debugmodel_moe", [8, 256, 16, 8, 3072, 2048, 1_000_000], [64, 768]),
    ("30B-A3B", [48, 2048, 32, 4, 6144, 151_936, 1_000_000], [128, 768]),
    ("235B-A22B", [94, 4096, 64, 4, 12_288, 151_936, 5_000_000], [128, 1536]),
];

/// Those of DeepSeek: flavour; layers, hidden size, heads, width of the MLP, vocabulary; experts, chosen ones, shared ones, width
/// of each, layers without; rank of queries; groups and chosen groups; the factor, and whether scores are sigmoids.
struct DeepSeek {
    flavour: &'static str,
    sizes: [u64; 5],
    experts: [u64; 5],
    query_rank: u64,
    groups: [u64; 2],
    factor: f64,
    is_sigmoid: bool,
}

const DEEPSEEK: [DeepSeek; 4] = [
    DeepSeek {
        flavour: "debugmodel",
        sizes: [6, 256, 16, 1024, 2048],
        experts: [8, 3, 2, 256, 1],
        query_rank: 0,
        groups: [1, 1],
        factor: 1.0,
        is_sigmoid: false,
    },
    DeepSeek {
        flavour: "16B",
        sizes: [27, 2048, 16, 10_944, 102_400],
        experts: [64, 6, 2, 1408, 1],
        query_rank: 0,
        groups: [1, 1],
        factor: 1.0,
        is_sigmoid: false,
    },
    DeepSeek {
        flavour: "236B",
        sizes: [60, 5120, 128, 12_288, 102_400],
        experts: [160, 6, 2, 1536, 1],
        query_rank: 1536,
        groups: [8, 3],
        factor: 16.0,
        is_sigmoid: false,
    },
    DeepSeek {
        flavour: "671B",
        sizes: [61, 7168, 128, 18_432, 129_280],
        experts: [256, 8, 1, 2048, 3],
        query_rank: 1536,
        groups: [8, 4],
        factor: 2.5,
        is_sigmoid: true,
    },
];

/// Endings of flavours that have the same sizes, and differ in the kernel of attention or of exchanges.
const SAME_SIZES: [&str; 8] =
    ["_flex_attn", "_varlen_attn", "_flex", "_varlen", "_sdpa", "-flex", "-varlen", "-deepep"];

/// A model of torchtitan.
pub(super) struct Flavour {
    /// As a spec says it, without the longest sequence.
    pub model: Value,
    /// Whether tokens see their own document alone.
    pub has_documents: bool,
}

/// The model of this name and flavour.
pub(super) fn find(name: &str, flavour: &str) -> Option<Flavour> {
    let plain = SAME_SIZES.iter().find_map(|ending| flavour.strip_suffix(ending));
    let flavour = plain.unwrap_or(flavour);
    let has_documents =
        plain.is_some() || flavour.ends_with("_irope") || name == "deepseek_v3" && flavour != "debugmodel";
    // The first versions had Llama 2 alone.
    let name = if name == "llama" { "llama2" } else { name };
    let model = match name {
        "deepseek_v3" => DEEPSEEK.iter().find(|row| row.flavour == flavour).map(deepseek),
        "llama4" => llama_4(flavour),
        "gpt_oss" => gpt_oss(flavour),
        _ => None,
    };
    let dense = || DENSE.iter().find(|row| (row.0, row.1) == (name, flavour)).map(|row| decoder(row.2));
    let experts = || {
        let (_, sizes, [count, width]) = QWEN_EXPERTS.iter().find(|row| name == "qwen3" && row.0 == flavour)?;
        let mut model = decoder(*sizes);
        model["experts"] = json!({ "count": count, "active": 8, "ffn": width, "normed": true });
        Some(model)
    };
    let mut model = model.or_else(dense).or_else(experts)?;
    if name == "qwen3" {
        model["head_dim"] = json!(128);
        model["qk_norm"] = json!(true);
        model["norm_eps"] = json!(1e-6);
        if matches!(flavour, "debugmodel" | "0.6B" | "1.7B" | "4B") {
            model["tied"] = json!(true);
        }
    }
    Some(Flavour { model, has_documents })
}

/// The flavours of a model for a person, or the models, where there is none of that name.
pub(super) fn names(model: &str) -> String {
    let rows = DENSE.iter().map(|row| (row.0, row.1));
    let rows = rows.chain(QWEN_EXPERTS.iter().map(|row| ("qwen3", row.0)));
    let rows = rows.chain(DEEPSEEK.iter().map(|row| ("deepseek_v3", row.flavour)));
    let rows = rows.chain(LLAMA_4.map(|flavour| ("llama4", flavour)));
    let rows: Vec<(&str, &str)> = rows.chain(GPT_OSS.map(|(flavour, ..)| ("gpt_oss", flavour))).collect();
    let flavours: Vec<&str> = rows.iter().filter(|row| row.0 == model).map(|row| row.1).collect();
    if !flavours.is_empty() {
        return flavours.join(", ");
    }
    let mut models: Vec<&str> = rows.iter().map(|row| row.0).collect();
    models.sort_unstable();
    models.dedup();
    format!("a flavour of {}", models.join(", "))
}

fn decoder([layers, hidden, heads, kv_heads, ffn, vocab, theta]: [u64; 7]) -> Value {
    json!({
        "family": "llama", "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "ffn": ffn,
        "vocab": vocab, "rope_base": theta, "norm_eps": 1e-5, "tied": false,
    })
}

fn deepseek(row: &DeepSeek) -> Value {
    let [layers, hidden, heads, ffn, vocab] = row.sizes;
    let [count, active, shared, width, dense] = row.experts;
    let mut model = decoder([layers, hidden, heads, heads, ffn, vocab, 10_000]);
    model["head_dim"] = json!(128 + 64);
    model["latent"] =
        json!({ "query_rank": row.query_rank, "key_value_rank": 512, "rope_width": 64, "value_width": 128 });
    model["experts"] = json!({
        "count": count, "active": active, "ffn": width, "shared_ffn": shared * width, "dense_layers": dense,
        "scores": if row.is_sigmoid { "sigmoid" } else { "softmax" }, "normed": row.is_sigmoid,
        "groups": row.groups[0], "active_groups": row.groups[1], "factor": row.factor,
    });
    model
}

const LLAMA_4: [&str; 6] =
    ["debugmodel", "17bx16e", "17bx128e", "debugmodel_irope", "17bx16e_irope", "17bx128e_irope"];

/// A chosen expert and a shared one, each of half the width that the rule gives.
fn llama_4(flavour: &str) -> Option<Value> {
    let plain = flavour.strip_suffix("_irope");
    let mut model = match plain.unwrap_or(flavour) {
        "debugmodel" => decoder([6, 256, 16, 16, 768, 2048, 500_000]),
        "17bx16e" | "17bx128e" => decoder([48, 5120, 40, 8, 16_384, 202_048, 500_000]),
        _ => return None,
    };
    let (count, width) = match plain.unwrap_or(flavour) {
        "debugmodel" => (8, 512),
        "17bx16e" => (16, 8192),
        _ => (128, 8192),
    };
    model["experts"] = json!({
        "count": count, "active": 1, "ffn": width, "shared_ffn": width, "scores": "input-sigmoid",
    });
    if count != 16 {
        model["experts"]["layers"] = json!("(01)");
    }
    if plain.is_some() {
        let chunk = if count == 8 { 256 } else { 8192 };
        model["no_rope"] = json!("(1000)");
        model["window"] = json!({ "tokens": chunk, "layers": "(0111)", "chunked": true });
    }
    Some(model)
}

/// Flavour, layers, hidden size, experts.
const GPT_OSS: [(&str, [u64; 3]); 3] =
    [("debugmodel", [4, 256, 8]), ("20b", [24, 2880, 32]), ("120b", [36, 2880, 128])];

fn gpt_oss(flavour: &str) -> Option<Value> {
    let (_, [layers, hidden, count]) = GPT_OSS.iter().find(|row| row.0 == flavour)?;
    let mut model = decoder([*layers, *hidden, 64, 8, 2880, 201_088, 150_000]);
    model["head_dim"] = json!(64);
    for part in ["qkv_bias", "o_bias", "sinks"] {
        model[part] = json!(true);
    }
    model["activation"] = json!("clamped-silu");
    model["window"] = json!({ "tokens": 128, "full_every": 2 });
    model["experts"] = json!({ "count": count, "active": 4, "ffn": 2880, "normed": true, "biases": true });
    Some(model)
}
