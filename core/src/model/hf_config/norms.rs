//! Families with Llama's matrices and other norms than RMSNorm: LayerNorm with or without weights (Command R, GPT-J,
//! GPT-NeoX, Jais 2, Nemotron, OLMo, Persimmon, Phi, Phi-3.5-MoE, StableLM, StarCoder 2), or RMSNorm without weights (nanochat). Of many, attention
//! and MLP work on the same stream.

use alloc::vec::Vec;

use super::reader::{GELU, Reader, windowed};
use crate::model::{
    Activation, Arrangement, Caps, E12, Factors, Family, LayerPattern, ModelConfig, Norm, QkNorm, Variant, to_e12,
};

/// The families, by `model_type`.
pub(super) const FAMILIES: [&str; 15] = [
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "gpt_neox",
    "gptj",
    "jais2",
    "nanochat",
    "nemotron",
    "olmo",
    "persimmon",
    "phi",
    "phimoe",
    "stablelm",
    "starcoder2",
];

/// The `eps` of OLMo's norms, which no file says.
const OLMO_EPS_E12: u64 = 10_000_000;

impl Reader<'_, '_> {
    /// The model of the family `name`, one of [`FAMILIES`].
    pub(super) fn normed_otherwise(&mut self, name: &str) -> Option<ModelConfig> {
        let is_old = matches!(name, "gptj" | "codegen");
        let [layers, hidden, heads, positions, function] = match is_old {
            true => ["n_layer", "n_embd", "n_head", "n_positions", "activation_function"],
            false => {
                ["num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "hidden_act"]
            }
        };
        let (layers, hidden, heads) = (self.layers(layers), self.size(hidden), self.size(heads));
        let ffn = match is_old {
            true => self.optional("n_inner").or(hidden.map(|hidden| hidden.saturating_mul(4))),
            false => self.size("intermediate_size"),
        };
        let vocab = self.size("vocab_size");
        let positions = self.positions(positions);
        let kv_heads = match name {
            "gptj" | "codegen" | "gpt_neox" | "persimmon" => heads,
            "nemotron" | "stablelm" | "starcoder2" | "phimoe" => self.size("num_key_value_heads"),
            _ => self.optional("num_key_value_heads").or(heads),
        };
        let norm_eps_e12 = match name {
            "gptj" | "codegen" => self.eps("layer_norm_epsilon"),
            "nanochat" | "phimoe" => self.eps("rms_norm_eps"),
            // Where a file says it, its norms are RMSNorm.
            "cohere2_moe" if self.table.get("rms_norm_eps").is_some() => {
                self.table.get("layer_norm_eps");
                self.eps("rms_norm_eps")
            }
            "nemotron" => self.eps("norm_eps"),
            "olmo" => Some(OLMO_EPS_E12),
            "starcoder2" => self.eps("norm_epsilon"),
            _ => self.eps("layer_norm_eps"),
        };
        let head_dim = self.head_dim(name, hidden, heads);
        let activation = self.activation_of(name, function);
        let variant = Variant { activation, ..Variant::USUAL };
        let dense = if name == "cohere2_moe" { self.optional("prefix_dense_intermediate_size") } else { None };
        let variant = match name {
            "cohere" | "cohere2" => self.cohere(name, layers.unwrap_or(0), variant),
            "cohere2_moe" => self.cohere_moe([layers.unwrap_or(0), ffn.unwrap_or(0)], variant)?,
            "phimoe" => self.phi_moe(ffn, layers.unwrap_or(0), variant)?,
            "nanochat" => self.nanochat(variant),
            "olmo" => self.olmo(variant),
            _ => self.with_layer_norm(name, [head_dim.unwrap_or(0), layers.unwrap_or(0)], variant),
        };
        Some(ModelConfig {
            family: Family::Llama,
            layers: layers?,
            hidden: hidden?,
            heads: heads?,
            kv_heads: kv_heads?,
            head_dim: head_dim?,
            ffn: dense.or(ffn)?,
            vocab: vocab?,
            positions: positions?,
            rope_base: self.rope_base(name),
            norm_eps_e12: norm_eps_e12?,
            tied: self
                .flag("tie_word_embeddings", matches!(name, "cohere" | "cohere2" | "cohere2_moe" | "starcoder2")),
            variant,
        })
    }

    /// The activation of the MLP. Where there is no gate, GELU in its exact form or in the other.
    fn activation_of(&mut self, name: &str, function: &'static str) -> Activation {
        match name {
            "cohere" | "cohere2" | "cohere2_moe" | "olmo" | "phimoe" | "stablelm" => {
                self.function(&[function], &["silu", "swish"]);
                Activation::Silu
            }
            "jais2" | "nanochat" | "nemotron" | "persimmon" => {
                self.function(&[function], &["relu2"]);
                Activation::SquaredRelu
            }
            _ => {
                self.function(&[function], &GELU);
                let said = self.table.get(function).and_then(serde_json::Value::as_str);
                // What the classes of these take where a file says nothing.
                let usual = if name == "gpt_neox" { "gelu" } else { "gelu_new" };
                match said.unwrap_or(usual) {
                    "gelu" | "gelu_python" => Activation::PlainGelu,
                    _ => Activation::PlainGeluTanh,
                }
            }
        }
    }

    /// The biases of all four matrices of attention.
    fn attention_bias(&mut self, otherwise: bool, variant: Variant) -> Variant {
        let has = self.flag("attention_bias", otherwise);
        Variant { qkv_bias: has, o_bias: has, ..variant }
    }

    /// Command R, R+ and A: attention and MLP beside each other, and in the newer ones layers that see all tokens and have no
    /// rotary positions.
    fn cohere(&mut self, name: &str, layers: u32, variant: Variant) -> Variant {
        let scale = self.positive("logit_scale").map(to_e12).filter(|scale| *scale != E12);
        let variant = Variant {
            norm: Norm::LayerWithoutBias,
            arrangement: Arrangement::BesideOneNorm,
            factors: Factors { logits: scale, ..Factors::default() },
            ..self.attention_bias(false, variant)
        };
        if name == "cohere" {
            let qk_norm = self.flag("use_qk_norm", false);
            let qk_norm_of = if qk_norm { QkNorm::LayerHeads } else { QkNorm::Heads };
            return Variant { qk_norm, qk_norm_of, ..variant };
        }
        for key in ["use_parallel_block", "use_gated_activation", "use_embedding_sharing"] {
            self.is_always(key);
        }
        self.function(&["position_embedding_type"], &["rope_gptj"]);
        self.function(&["order_of_interleaved_layers"], &["local_attn_first"]);
        self.must_be("rotary_pct", 1.0);
        let period = self.optional("sliding_window_pattern").unwrap_or(4);
        self.must_be("layer_switch", period.into());
        let variant = Variant { window: self.window(name, layers), ..variant };
        Variant {
            no_rope: match variant.window {
                Some(_) => self.without_window(layers, &variant),
                // The library turns queries and keys of layers with a window alone.
                None if self.has_no_window(layers) => LayerPattern::from_list(&[true]),
                None => None,
            },
            ..variant
        }
    }

    /// Command A with experts: they are beside attention behind one norm, and the first layers have an MLP instead. Layers that
    /// see all tokens have no rotary positions, but for those first ones where all of them see all.
    fn cohere_moe(&mut self, [layers, ffn]: [u32; 2], variant: Variant) -> Option<Variant> {
        let scale = self.positive("logit_scale").map(to_e12).filter(|scale| *scale != E12);
        let is_rms = self.table.get("rms_norm_eps").is_some();
        let dense = self.optional("first_k_dense_replace").unwrap_or(0);
        let sparse = self.sparse_layers(layers);
        let sparse = sparse.unwrap_or_else(|| (0..layers).map(|layer| layer >= dense).collect());
        let experts = self.cohere_experts(ffn, &sparse);
        let [of_first, of_others] = [("prefix_dense_sliding_window_pattern", 1), ("sliding_window_pattern", 4)]
            .map(|(key, usual)| self.optional(key).unwrap_or(usual).max(1));
        let has_window = |layer: u32| match layer < dense {
            true => !(layer + 1).is_multiple_of(of_first),
            false => !(layer - dense + 1).is_multiple_of(of_others),
        };
        let by_list = self.windows_by_list(layers);
        let has_window = by_list.unwrap_or_else(|| (0..layers).map(has_window).collect());
        let tokens = self.optional("sliding_window").filter(|tokens| *tokens > 0);
        let turned = |layer: usize| {
            tokens.is_some() && has_window[layer] || of_first == 1 && sparse.get(layer) == Some(&false)
        };
        let still: Vec<bool> = (0..has_window.len()).map(|layer| !turned(layer)).collect();
        let no_rope = if still.contains(&true) { Some(self.pattern("layer_types", &still)?) } else { None };
        Some(Variant {
            norm: if is_rms { Norm::Rms } else { Norm::LayerWithoutBias },
            arrangement: Arrangement::BesideOneNorm,
            factors: Factors { logits: scale, ..Factors::default() },
            window: tokens.and_then(|tokens| windowed(tokens, &has_window)),
            no_rope,
            experts: experts?,
            ..self.attention_bias(false, variant)
        })
    }

    /// Phi-3.5-MoE: LayerNorm before experts, and a SparseMixer as their router.
    fn phi_moe(&mut self, ffn: Option<u32>, layers: u32, variant: Variant) -> Option<Variant> {
        // The router draws two, whatever a file says.
        self.must_be("num_experts_per_tok", 2.0);
        let experts = self.experts("phimoe", ffn, Some(layers));
        Some(Variant {
            norm: Norm::Layer,
            window: self.window("phimoe", layers),
            head_bias: self.flag("lm_head_bias", false),
            experts: experts?,
            ..self.attention_bias(false, variant)
        })
    }

    /// Whether no layer has a window, and not because a list is wrong.
    fn has_no_window(&mut self, layers: u32) -> bool {
        let before = self.faults.len();
        self.windows_by_list(layers);
        let is_right = self.faults.len() == before;
        self.faults.truncate(before);
        is_right
    }

    /// nanochat: no norm has weights, and the embedding has one too.
    fn nanochat(&mut self, variant: Variant) -> Variant {
        let logits = self.cap("final_logit_softcapping", Some(15.0));
        Variant {
            norm: Norm::RmsWithoutWeights,
            embedding_norm: true,
            qk_norm: true,
            qk_norm_of: QkNorm::RotatedLengths,
            caps: Caps { logits, ..Caps::default() },
            ..self.attention_bias(false, variant)
        }
    }

    /// OLMo: LayerNorm without weights; of some models, queries, keys and values are clipped.
    fn olmo(&mut self, variant: Variant) -> Variant {
        let qkv_clip = self.positive("clip_qkv").map(to_e12);
        Variant { norm: Norm::LayerWithoutWeights, qkv_clip, ..self.attention_bias(false, variant) }
    }

    /// Families with LayerNorm.
    fn with_layer_norm(&mut self, name: &str, [head_dim, layers]: [u32; 2], variant: Variant) -> Variant {
        let variant = Variant { norm: Norm::Layer, ..variant };
        let part = |columns: u32| Some(columns).filter(|columns| *columns != head_dim);
        match name {
            "gpt_neox" => {
                let rotary = part(self.rotary("rotary_pct", 0.25, head_dim));
                let is_parallel = self.flag("use_parallel_residual", true);
                let arrangement = if is_parallel { Arrangement::Beside } else { Arrangement::InTurn };
                Variant { rotary, arrangement, mlp_bias: true, ..self.attention_bias(true, variant) }
            }
            "gptj" | "codegen" => Variant {
                rotary: part(self.optional("rotary_dim").unwrap_or(64)),
                arrangement: Arrangement::BesideOneNorm,
                mlp_bias: true,
                head_bias: true,
                ..variant
            },
            "jais2" => {
                let mlp_bias = self.flag("mlp_bias", true);
                Variant { mlp_bias, ..self.attention_bias(true, variant) }
            }
            "nemotron" => {
                let mlp_bias = self.flag("mlp_bias", false);
                let rotary = part(self.rotary("partial_rotary_factor", 0.5, head_dim));
                Variant { norm_offset: true, rotary, mlp_bias, ..self.attention_bias(false, variant) }
            }
            "phi" => {
                let qk_norm = self.flag("qk_layernorm", false);
                Variant {
                    qk_norm,
                    qk_norm_of: if qk_norm { QkNorm::SharedLayerHeads } else { QkNorm::Heads },
                    rotary: part(self.rotary("partial_rotary_factor", 0.5, head_dim)),
                    arrangement: Arrangement::BesideOneNorm,
                    qkv_bias: true,
                    o_bias: true,
                    mlp_bias: true,
                    head_bias: true,
                    ..variant
                }
            }
            "persimmon" => {
                let qk_norm = self.flag("qk_layernorm", true);
                Variant {
                    qk_norm,
                    qk_norm_of: if qk_norm { QkNorm::SharedLayerHeads } else { QkNorm::Heads },
                    rotary: part(self.rotary("partial_rotary_factor", 0.5, head_dim)),
                    qkv_bias: true,
                    o_bias: true,
                    mlp_bias: true,
                    ..variant
                }
            }
            "stablelm" => {
                let qk_norm = self.flag("qk_layernorm", false);
                let is_parallel = self.flag("use_parallel_residual", false);
                self.must_be("rotary_scaling_factor", 1.0);
                Variant {
                    qkv_bias: self.flag("use_qkv_bias", false),
                    qk_norm,
                    qk_norm_of: if qk_norm { QkNorm::LayerHeads } else { QkNorm::Heads },
                    rotary: part(self.rotary("partial_rotary_factor", 0.25, head_dim)),
                    arrangement: if is_parallel { Arrangement::BesideOneNorm } else { Arrangement::InTurn },
                    ..variant
                }
            }
            _ => {
                let has_biases = self.flag("use_bias", true);
                let window = self.window(name, layers);
                Variant { qkv_bias: has_biases, o_bias: has_biases, mlp_bias: has_biases, window, ..variant }
            }
        }
    }
}
