//! Public models by name.

use super::{Activation, Caps, E12, Experts, Factors, Family, Latent, ModelConfig, Routing, Scores, Variant, Window};

/// One model of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name in a spec.
    pub name: &'static str,
    /// The name a person reads.
    pub title: &'static str,
    /// Its sizes.
    pub config: ModelConfig,
    /// Tokens of the sequences that it was trained with.
    pub sequence: u32,
    /// Where the sizes are from.
    pub source: &'static str,
}

/// Every model that a spec may name.
pub fn catalog() -> &'static [Entry] {
    CATALOG
}

/// The model of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    CATALOG.iter().find(|entry| entry.name == name)
}

const fn llama(layers: u32, hidden: u32, heads: u32, kv_heads: u32, ffn: u32, vocab: u32) -> ModelConfig {
    ModelConfig {
        family: Family::Llama,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        ffn,
        vocab,
        positions: 4096,
        rope_base: 10_000,
        norm_eps_e12: 10_000_000,
        tied: false,
        variant: Variant::USUAL,
    }
}

/// Those chosen share one token's weight (arXiv:2401.04088 §2.1).
const NORMED: Routing = Routing { normed: true, ..Routing::USUAL };

/// Of DeepSeek-V3 and those after it (arXiv:2412.19437 §2.1.2).
const fn sigmoid(factor: u64, groups: u32, active_groups: u32) -> Routing {
    Routing { scores: Scores::Sigmoid, normed: true, factor: Some(factor), groups, active_groups }
}

const fn mixtral(layers: u32, hidden: u32, heads: u32, ffn: u32, vocab: u32, positions: u32) -> ModelConfig {
    let experts = Experts {
        count: 8,
        active: 2,
        ffn,
        shared_ffn: 0,
        dense_layers: 0,
        layers: None,
        biases: false,
        shared_gate: false,
        routing: NORMED,
    };
    ModelConfig {
        positions,
        rope_base: 1_000_000,
        variant: Variant { experts: Some(experts), ..Variant::USUAL },
        ..llama(layers, hidden, heads, 8, ffn, vocab)
    }
}

/// All have 128-wide heads.
const fn qwen_2_5(layers: u32, hidden: u32, heads: u32, kv_heads: u32, ffn: u32, positions: u32) -> ModelConfig {
    // 152064 for all sizes from 7B on.
    ModelConfig {
        positions,
        rope_base: 1_000_000,
        norm_eps_e12: 1_000_000,
        variant: Variant { qkv_bias: true, ..Variant::USUAL },
        ..llama(layers, hidden, heads, kv_heads, ffn, 152_064)
    }
}

/// All have 128-wide heads, whose number does not follow from the hidden width.
const fn qwen_3(
    layers: u32,
    hidden: u32,
    heads: u32,
    kv_heads: u32,
    ffn: u32,
    experts: Option<Experts>,
) -> ModelConfig {
    ModelConfig {
        head_dim: 128,
        positions: 40_960,
        rope_base: 1_000_000,
        norm_eps_e12: 1_000_000,
        variant: Variant { qk_norm: true, experts, ..Variant::USUAL },
        ..llama(layers, hidden, heads, kv_heads, ffn, 151_936)
    }
}

const fn qwen_3_experts(ffn: u32) -> Experts {
    Experts {
        count: 128,
        active: 8,
        ffn,
        shared_ffn: 0,
        dense_layers: 0,
        layers: None,
        biases: false,
        shared_gate: false,
        routing: NORMED,
    }
}

const fn gemma_2(
    layers: u32,
    [hidden, ffn]: [u32; 2],
    [heads, kv_heads, head_dim]: [u32; 3],
    factors: Factors,
) -> ModelConfig {
    ModelConfig {
        head_dim,
        positions: 8192,
        norm_eps_e12: 1_000_000,
        tied: true,
        variant: Variant {
            post_norms: true,
            activation: Activation::Gelu,
            window: Some(Window::sliding(4096, 2)),
            norm_offset: true,
            factors,
            caps: Caps { attention: Some(50 * E12), logits: Some(30 * E12) },
            ..Variant::USUAL
        },
        ..llama(layers, hidden, heads, kv_heads, ffn, 256_000)
    }
}

const fn llama_3(layers: u32, hidden: u32, heads: u32, ffn: u32) -> ModelConfig {
    ModelConfig { positions: 8192, rope_base: 500_000, ..llama(layers, hidden, heads, 8, ffn, 128_256) }
}

/// With the latent attention of DeepSeek-V2, whose ranks and widths later ones kept.
const fn deepseek(sizes: ModelConfig, experts: Experts, multi_token: u32) -> ModelConfig {
    let latent = Latent { query_rank: 1536, key_value_rank: 512, rope_width: 64, value_width: 128 };
    let variant = Variant { experts: Some(experts), latent: Some(latent), multi_token, ..Variant::USUAL };
    ModelConfig { head_dim: 192, positions: 163_840, norm_eps_e12: 1_000_000, variant, ..sizes }
}

static CATALOG: &[Entry] = &[
    Entry {
        name: "tiny-llama",
        title: "Tiny Llama on bytes",
        // Small enough that a CPU trains it in seconds; 8 layers, so that 4 ranks can hold 2 chunks each.
        config: llama(8, 64, 4, 2, 176, 256),
        sequence: 64,
        source: "this project",
    },
    Entry {
        name: "llama-2-7b",
        title: "Llama 2 7B",
        config: llama(32, 4096, 32, 32, 11008, 32000),
        sequence: 4096,
        source: "arXiv:2307.09288 and its published configuration",
    },
    Entry {
        name: "llama-2-13b",
        title: "Llama 2 13B",
        config: llama(40, 5120, 40, 40, 13824, 32000),
        sequence: 4096,
        source: "arXiv:2307.09288 and its published configuration",
    },
    Entry {
        name: "llama-2-70b",
        title: "Llama 2 70B",
        config: llama(80, 8192, 64, 8, 28672, 32000),
        sequence: 4096,
        source: "arXiv:2307.09288 and its published configuration",
    },
    Entry {
        name: "llama-3-8b",
        title: "Llama 3 8B",
        config: llama_3(32, 4096, 32, 14336),
        sequence: 8192,
        source: "arXiv:2407.21783, Table 3",
    },
    Entry {
        name: "llama-3-70b",
        title: "Llama 3 70B",
        config: llama_3(80, 8192, 64, 28672),
        sequence: 8192,
        source: "arXiv:2407.21783, Table 3",
    },
    Entry {
        name: "llama-3-405b",
        title: "Llama 3 405B",
        config: ModelConfig { positions: 131_072, ..llama_3(126, 16384, 128, 53248) },
        sequence: 8192,
        source: "arXiv:2407.21783, Table 3 and §3.4.1",
    },
    Entry {
        name: "gpt-3-175b",
        title: "GPT-3 175B",
        config: ModelConfig {
            family: Family::Gpt,
            layers: 96,
            hidden: 12288,
            heads: 96,
            kv_heads: 96,
            head_dim: 128,
            ffn: 49152,
            vocab: 50257,
            positions: 2048,
            rope_base: 10_000,
            norm_eps_e12: 10_000_000,
            tied: true,
            variant: Variant::USUAL,
        },
        sequence: 2048,
        source: "arXiv:2005.14165, Table 2.1; vocabulary of GPT-2",
    },
    Entry {
        name: "mistral-7b",
        title: "Mistral 7B",
        config: ModelConfig {
            positions: 32_768,
            variant: Variant { window: Some(Window::sliding(4096, 0)), ..Variant::USUAL },
            ..llama(32, 4096, 32, 8, 14336, 32000)
        },
        // Its window hides nothing at this length.
        sequence: 4096,
        source: "arXiv:2310.06825, Table 1, and the published configuration of v0.1",
    },
    Entry {
        name: "mixtral-8x7b",
        title: "Mixtral 8x7B",
        config: mixtral(32, 4096, 32, 14336, 32000, 32_768),
        sequence: 4096,
        source: "arXiv:2401.04088, Table 1, and its published configuration",
    },
    Entry {
        name: "mixtral-8x22b",
        title: "Mixtral 8x22B",
        config: mixtral(56, 6144, 48, 16384, 32000, 65_536),
        sequence: 4096,
        source: "its published configuration, v0.1",
    },
    Entry {
        name: "qwen-2.5-7b",
        title: "Qwen 2.5 7B",
        config: qwen_2_5(28, 3584, 28, 4, 18944, 131_072),
        sequence: 4096,
        source: "arXiv:2412.15115, Table 1, and its published configuration",
    },
    Entry {
        name: "qwen-2.5-32b",
        title: "Qwen 2.5 32B",
        config: qwen_2_5(64, 5120, 40, 8, 27648, 131_072),
        sequence: 4096,
        source: "arXiv:2412.15115, Table 1, and its published configuration",
    },
    Entry {
        name: "qwen-2.5-72b",
        title: "Qwen 2.5 72B",
        config: ModelConfig { norm_eps_e12: 10_000_000, ..qwen_2_5(80, 8192, 64, 8, 29568, 131_072) },
        sequence: 4096,
        source: "arXiv:2412.15115, Table 1, and its published configuration",
    },
    Entry {
        name: "qwen-3-8b",
        title: "Qwen 3 8B",
        config: qwen_3(36, 4096, 32, 8, 12288, None),
        sequence: 4096,
        source: "arXiv:2505.09388, Table 1, and its published configuration",
    },
    Entry {
        name: "qwen-3-32b",
        title: "Qwen 3 32B",
        config: qwen_3(64, 5120, 64, 8, 25600, None),
        sequence: 4096,
        source: "arXiv:2505.09388, Table 1, and its published configuration",
    },
    Entry {
        name: "qwen-3-30b-a3b",
        title: "Qwen 3 30B-A3B",
        config: qwen_3(48, 2048, 32, 4, 6144, Some(qwen_3_experts(768))),
        sequence: 4096,
        source: "arXiv:2505.09388, Table 2, and its published configuration",
    },
    Entry {
        name: "qwen-3-235b-a22b",
        title: "Qwen 3 235B-A22B",
        config: qwen_3(94, 4096, 64, 4, 12288, Some(qwen_3_experts(1536))),
        sequence: 4096,
        source: "arXiv:2505.09388, Table 2, and its published configuration",
    },
    Entry {
        name: "gemma-2-9b",
        title: "Gemma 2 9B",
        // √3584.
        config: gemma_2(
            42,
            [3584, 14336],
            [16, 8, 256],
            Factors { embedding: Some(59_866_518_188_383), residual: None, attention: None, logits: None },
        ),
        // Its window hides nothing at this length.
        sequence: 4096,
        source: "arXiv:2408.00118, Table 1, and its published configuration",
    },
    Entry {
        name: "gemma-2-27b",
        title: "Gemma 2 27B",
        // √4608, and 1/√144: scores are divided as if heads were as wide as their share of the stream.
        config: gemma_2(
            46,
            [4608, 36864],
            [32, 16, 128],
            Factors {
                embedding: Some(67_882_250_993_909),
                residual: None,
                attention: Some(83_333_333_333),
                logits: None,
            },
        ),
        sequence: 4096,
        source: "arXiv:2408.00118, Table 1, and its published configuration",
    },
    Entry {
        name: "deepseek-v2",
        title: "DeepSeek-V2 236B",
        config: deepseek(
            llama(60, 5120, 128, 128, 12288, 102_400),
            Experts {
                count: 160,
                active: 6,
                ffn: 1536,
                shared_ffn: 3072,
                dense_layers: 1,
                layers: None,
                biases: false,
                shared_gate: false,
                routing: Routing { factor: Some(16 * E12), groups: 8, active_groups: 3, ..Routing::USUAL },
            },
            0,
        ),
        sequence: 4096,
        source: "arXiv:2405.04434 §3.1 and its published configuration",
    },
    Entry {
        name: "deepseek-v3",
        title: "DeepSeek-V3 671B",
        config: deepseek(
            llama(61, 7168, 128, 128, 18432, 129_280),
            Experts {
                count: 256,
                active: 8,
                ffn: 2048,
                shared_ffn: 2048,
                dense_layers: 3,
                layers: None,
                biases: false,
                shared_gate: false,
                routing: sigmoid(2_500_000_000_000, 8, 4),
            },
            1,
        ),
        sequence: 4096,
        source: "arXiv:2412.19437 §4.2 and its published configuration",
    },
    Entry {
        name: "kimi-k2",
        title: "Kimi K2 1T",
        config: ModelConfig {
            positions: 131_072,
            rope_base: 50_000,
            ..deepseek(
                llama(61, 7168, 64, 64, 18432, 163_840),
                Experts {
                    count: 384,
                    active: 8,
                    ffn: 2048,
                    shared_ffn: 2048,
                    dense_layers: 1,
                    layers: None,
                    biases: false,
                    shared_gate: false,
                    routing: sigmoid(2_827_000_000_000, 1, 1),
                },
                0,
            )
        },
        sequence: 4096,
        source: "arXiv:2507.20534 §2.3 and its published configuration",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// The count of the public checkpoints (`total_size / 2` of `model.safetensors.index.json`), to the last parameter.
    /// GPT-3: 174,600 million, arXiv:2005.14165, table D.1. DeepSeek-V3: 671 billion, arXiv:2412.19437; its checkpoint
    /// holds multi-token prediction too. DeepSeek-V2, Kimi K2 and Llama 3 405B: `tests/reference/parameter_counts.json`.
    pub(crate) const PUBLISHED: [(&str, u64, u64); 22] = [
        ("llama-3-405b", 405_853_388_800, 0),
        ("deepseek-v2", 235_741_434_880, 0),
        ("kimi-k2", 1_026_408_209_408, 0),
        ("mistral-7b", 7_241_732_096, 0),
        ("mixtral-8x7b", 46_702_792_704, 0),
        ("mixtral-8x22b", 140_620_634_112, 0),
        ("qwen-2.5-7b", 7_615_616_512, 0),
        ("qwen-2.5-32b", 32_763_876_352, 0),
        ("qwen-2.5-72b", 72_706_203_648, 0),
        ("qwen-3-8b", 8_190_735_360, 0),
        ("qwen-3-32b", 32_762_123_264, 0),
        ("qwen-3-30b-a3b", 30_532_122_624, 0),
        ("qwen-3-235b-a22b", 235_093_634_560, 0),
        ("gemma-2-9b", 9_241_705_984, 0),
        ("gemma-2-27b", 27_227_128_320, 0),
        ("deepseek-v3", 671_000_000_000, 50_000_000),
        ("llama-2-7b", 6_738_415_616, 0),
        ("llama-2-13b", 13_015_864_320, 0),
        ("llama-2-70b", 68_976_648_192, 0),
        ("llama-3-8b", 8_030_261_248, 0),
        ("llama-3-70b", 70_553_706_496, 0),
        ("gpt-3-175b", 174_600_000_000, 50_000_000),
    ];

    #[test]
    fn counts_are_the_published_ones() {
        for (name, published, within) in PUBLISHED {
            let counted = find(name).map(|entry| entry.config.parameters());
            assert!(counted.is_some_and(|counted| counted.abs_diff(published) <= within), "{name}: {counted:?}");
        }
    }

    /// 11.5 billion parameters of DeepSeek-V3's one module are its own (`README_WEIGHTS.md` of the checkpoint, which counts
    /// the shared embedding and head, 0.9 billion each, apart): those of its layer; the projection of two widths of 7168
    /// and three norms are 0.1 billion more.
    #[test]
    fn multi_token_prediction_has_the_published_count() {
        let config = find("deepseek-v3").map(|entry| entry.config).unwrap();
        let layer = config.layer_parameters(config.layers);
        assert!(layer.abs_diff(11_500_000_000) < 50_000_000, "{layer}");
        assert_eq!(config.multi_token_parameters(), layer + 2 * 7168 * 7168 + 3 * 7168);
        assert_eq!(find("llama-3-8b").map(|entry| entry.config.multi_token_parameters()), Some(0));
    }

    /// What a token meets, as the models' reports say it, to their last digit. DeepSeek counts no embedding.
    #[test]
    fn active_counts_are_the_published_ones() {
        let billions =
            |name: &str| find(name).map(|entry| entry.config.active_parameters() as f64 / 1e9).unwrap_or(0.0);
        for (name, published, within) in [
            ("mixtral-8x7b", 12.9, 0.05),
            ("mixtral-8x22b", 39.1, 0.1),
            ("qwen-3-30b-a3b", 3.3, 0.06),
            ("qwen-3-235b-a22b", 22.0, 0.3),
            ("deepseek-v2", 21.0, 0.5),
            ("deepseek-v3", 37.5, 0.5),
            ("kimi-k2", 32.6, 0.7),
            ("llama-2-7b", 6.74, 0.01),
        ] {
            assert!((billions(name) - published).abs() <= within, "{name}: {}", billions(name));
        }
    }

    #[test]
    fn entries_are_sound_and_named_once() {
        for (index, entry) in CATALOG.iter().enumerate() {
            let mut faults = Vec::new();
            entry.config.find_faults("", &mut faults);
            assert!(faults.is_empty(), "{}: {faults:?}", entry.name);
            assert!(CATALOG[..index].iter().all(|other| other.name != entry.name));
            assert!(entry.sequence <= entry.config.positions, "{}", entry.name);
        }
    }
}
