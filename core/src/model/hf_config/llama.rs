//! Families with Llama's layer: RMSNorm, rotary positions, grouped-query attention, a gated MLP. Parts that differ
//! come from the files of Gemma, Granite, DeepSeek and of mixtures of experts.

use super::deepseek::has_latent_attention;
use super::gemma::is_gemma;
use super::reader::{GELU, Reader};
use crate::model::{Activation, Caps, E12, Factors, Family, Latent, ModelConfig, Variant, to_e12};

/// Families whose four matrices of attention have biases by one flag, `attention_bias`, which is false where nothing is said.
const ATTENTION_BIAS: [&str; 21] = [
    "apertus",
    "arcee",
    "dots1",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoeshared",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hyperclovax",
    "llama",
    "olmo2",
    "olmo3",
    "olmoe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
];

/// Those whose MLP has biases by the flag `mlp_bias`.
const MLP_BIAS: [&str; 7] = ["arcee", "cwm", "granite", "granite_swa", "hyperclovax", "llama", "smollm3"];

/// Flags of biases that no layer of these families has; the first one that those of [`MLP_BIAS`] may have.
const OTHER_BIASES: [&str; 4] = ["mlp_bias", "attention_out_bias", "use_bias", "lm_head_bias"];

impl Reader<'_, '_> {
    /// The model of the Llama-like family `name`.
    pub(super) fn llama_like(&mut self, name: &str) -> Option<ModelConfig> {
        let layers = self.layers("num_hidden_layers");
        let hidden = self.size("hidden_size");
        let heads = self.size("num_attention_heads");
        let ffn = match name {
            // All of its layers have experts.
            "qwen3_5_moe_text" => self.optional("intermediate_size").or(self.optional("moe_intermediate_size")),
            _ => self.size("intermediate_size"),
        };
        let vocab = self.size("vocab_size");
        let positions = self.positions("max_position_embeddings");
        let norm_eps_e12 = self.eps("rms_norm_eps");
        let count = layers.unwrap_or(0);
        let latent = if has_latent_attention(name) { self.latent() } else { None };
        let kv_heads = match name {
            // MLA expands keys for every head.
            _ if has_latent_attention(name) => {
                self.table.get("num_key_value_heads");
                heads
            }
            // The library's default is the number of heads.
            "llama" | "phi3" | "granite" | "granitemoe" | "olmo2" | "olmo3" | "olmoe" | "exaone4" | "arcee"
            | "cwm" | "helium" | "apertus" | "smollm3" | "hunyuan_v1_moe" | "hunyuan_v1_dense"
            | "granitemoehybrid" | "granitemoeshared" | "hyperclovax" | "bamba" | "flex_olmo"
            | "deepseek_ocr2_text" => self.optional("num_key_value_heads").or(heads),
            _ => self.size("num_key_value_heads"),
        };
        let experts = self.experts(name, ffn, layers);
        let (qkv_bias, o_bias) = self.attention_biases(name);
        let mlp_bias = MLP_BIAS.contains(&name) && self.flag("mlp_bias", false);
        self.no_biases(if MLP_BIAS.contains(&name) { &OTHER_BIASES[1..] } else { &OTHER_BIASES });
        let activations: &[&str] = match name {
            "apertus" => &["xielu"],
            "arcee" => &["relu2"],
            _ if is_gemma(name) => &GELU,
            _ => &["silu", "swish"],
        };
        self.function(&["hidden_act", "hidden_activation"], activations);
        let head_dim = match latent {
            Some((latent, without_positions)) => Some(without_positions.saturating_add(latent.rope_width)),
            None => self.head_dim(name, hidden, heads),
        };
        let variant =
            self.llama_variant(name, [hidden.unwrap_or(0), count], head_dim, latent.map(|(latent, _)| latent));
        let variant = self.newer_variant(name, [count, hidden.unwrap_or(0)], Variant { qkv_bias, ..variant });
        let mut variant = Variant { experts: experts?, ..variant? };
        variant.o_bias |= o_bias;
        variant.mlp_bias |= mlp_bias;
        if name == "gemma4_text" {
            variant = self.gemma_4(kv_heads, count, variant);
        }
        let ffn = self.mlp_width(name, ffn);
        let rope_base = self.rope_base(name);
        if let Some(window) = &mut variant.window {
            window.rope_base = self.window_rope_base(name, rope_base);
        }
        Some(ModelConfig {
            family: Family::Llama,
            layers: layers?,
            hidden: hidden?,
            heads: heads?,
            kv_heads: kv_heads?,
            head_dim: head_dim?,
            ffn: ffn?,
            vocab: vocab?,
            positions: positions?,
            rope_base,
            norm_eps_e12: norm_eps_e12?,
            tied: self.flag(
                "tie_word_embeddings",
                is_gemma(name)
                    || matches!(name, "ernie4_5" | "ernie4_5_moe" | "smollm3" | "youtu" | "minicpm3" | "granite_swa"),
            ),
            variant,
        })
    }

    /// Whether q, k and v have biases, and whether the last matrix of attention has one by the same flag.
    fn attention_biases(&mut self, name: &str) -> (bool, bool) {
        match name {
            "qwen2" => (true, false),
            "qwen2_moe" => (self.flag("qkv_bias", true), false),
            "glm4_moe" => (self.flag("attention_bias", false), false),
            "glm" | "glm4" | "seed_oss" | "gpt_oss" | "glm4v_moe_text" => (self.flag("attention_bias", true), false),
            "glm4v_text" => {
                self.is_always("attention_bias");
                (true, false)
            }
            _ if ATTENTION_BIAS.contains(&name) => {
                let has = self.flag("attention_bias", false);
                (has, has)
            }
            _ => {
                self.no_biases(&["attention_bias"]);
                (false, false)
            }
        }
    }

    /// What differs from Llama's layer, but for biases and experts.
    fn llama_variant(
        &mut self,
        name: &str,
        [hidden, layers]: [u32; 2],
        head_dim: Option<u32>,
        latent: Option<Latent>,
    ) -> Variant {
        let rotary = match name {
            "glm4v_text" | "glm_ocr_text" => {
                let columns = self.rotary("partial_rotary_factor", 1.0, head_dim.unwrap_or(0));
                Some(columns).filter(|columns| Some(*columns) != head_dim)
            }
            "glm" | "glm4" | "glm4_moe" | "glm4v_moe_text" => {
                Some(self.rotary("partial_rotary_factor", 0.5, head_dim.unwrap_or(0)))
            }
            "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => {
                Some(self.rotary("partial_rotary_factor", 0.25, head_dim.unwrap_or(0)))
            }
            "bamba" => Some(self.rotary("partial_rotary_factor", 0.5, head_dim.unwrap_or(0))),
            "minimax_m2" => self.optional("rotary_dim"),
            "phi3" => {
                let columns = self.rotary("partial_rotary_factor", 1.0, head_dim.unwrap_or(0));
                Some(columns).filter(|columns| Some(*columns) != head_dim)
            }
            _ => None,
        };
        let (factors, caps) = self.factors_and_caps(name, hidden, head_dim.unwrap_or(0));
        Variant {
            qk_norm: match name {
                "qwen3" | "qwen3_moe" | "gemma3_text" | "gemma4_text" | "dots1" | "qwen3_next" | "qwen3_5_text" => {
                    true
                }
                "olmo2" | "olmo3" | "olmoe" | "exaone4" | "exaone_moe" | "flex_olmo" | "mellum" | "afmoe" => true,
                "qwen3_5_moe_text" | "hy_v3" => true,
                "hunyuan_v1_moe" | "hunyuan_v1_dense" | "apertus" => self.needed_flag("use_qk_norm"),
                "llama4_text" => self.flag("use_qk_norm", true),
                "minimax_m2" => {
                    self.is_always("use_qk_norm");
                    true
                }
                "glm4_moe" => self.flag("use_qk_norm", false),
                _ => false,
            },
            post_norms: match name {
                "gemma2" | "gemma3_text" | "gemma4_text" | "glm4" | "olmo2" | "olmo3" | "exaone4" | "flex_olmo"
                | "afmoe" => true,
                "glm4v_text" | "glm_ocr_text" => true,
                "hyperclovax" => self.flag("use_post_norm", true),
                _ => false,
            },
            activation: match name {
                "apertus" => Activation::Xielu,
                "arcee" => Activation::SquaredRelu,
                "gpt_oss" => Activation::ClampedSilu,
                _ if is_gemma(name) => Activation::Gelu,
                _ => Activation::Silu,
            },
            latent,
            window: match name {
                "llama4_text" => None,
                "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" | "granitemoehybrid" | "bamba" => None,
                // Layers of latent attention all see all.
                _ if has_latent_attention(name) => None,
                _ => self.window(name, layers),
            },
            multi_token: match name {
                "deepseek_v3" | "deepseek_v32" | "glm4_moe" | "glm_moe_dsa" => {
                    self.mtp_modules("num_nextn_predict_layers")
                }
                _ => 0,
            },
            rotary,
            norm_offset: is_gemma(name) && name != "gemma4_text"
                || matches!(name, "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text"),
            factors,
            caps,
            ..Variant::USUAL
        }
    }

    /// The multipliers and soft-caps of the family. A multiplier with the usual value is none.
    fn factors_and_caps(&mut self, name: &str, hidden: u32, head_dim: u32) -> (Factors, Caps) {
        let (factors, caps) = match name {
            "granite" | "granitemoe" | "granitemoehybrid" | "granitemoeshared" | "granite_swa" | "granitemoe_swa" => {
                (self.granite_factors(), Caps::default())
            }
            "hyperclovax" => (self.clova_factors(), Caps::default()),
            "minicpm3" => (self.minicpm_factors(hidden), Caps::default()),
            "afmoe" if self.flag("mup_enabled", false) => {
                let embedding = Some(to_e12(libm::sqrt(hidden.into())));
                (Factors { embedding, ..Factors::default() }, Caps::default())
            }
            _ if is_gemma(name) => self.gemma_factors_and_caps(name, hidden),
            _ => return (Factors::default(), Caps::default()),
        };
        let usual_scale = to_e12(1.0 / libm::sqrt(head_dim.max(1).into()));
        let unless = |factor: Option<u64>, usual| factor.filter(|factor| *factor != usual);
        let factors = Factors {
            embedding: unless(factors.embedding, E12),
            residual: unless(factors.residual, E12),
            attention: unless(factors.attention, usual_scale),
            logits: unless(factors.logits, E12),
        };
        (factors, caps)
    }
}
