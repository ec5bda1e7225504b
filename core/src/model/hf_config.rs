//! A model's sizes from the `config.json` that Hugging Face's libraries write beside a checkpoint.
//!
//! Read are `model_type` and what gives a layer its sizes and operators, with the numbers that Gemma and Granite multiply
//! with or cap by, and how experts are chosen and weighted; all the rest (dropout, tokens, versions, quantisation, scaled positions) says nothing about
//! bytes and operations here and is passed over. A size that is missing is a fault, and never a guess, but for those that the family's own library defines
//! as equal to another.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::Value;

use super::{
    Activation, Arrangement, Caps, E12, Experts, Factors, Family, Latent, MAX_EXPERTS, MAX_FACTOR, MAX_LAYERS,
    MAX_MULTI_TOKEN, MAX_SIZE, ModelConfig, Routing, Scores, Variant, Window, no_width, to_e12,
};
use crate::base::fields::{Fault, Table, one_of, one_of_like, shown};

/// Every `model_type` that is read.
pub const MODEL_TYPES: [&str; 27] = [
    "deepseek_v2",
    "deepseek_v3",
    "dots1",
    "ernie4_5",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "granite",
    "granitemoe",
    "kimi_k2",
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "starcoder2",
];

/// Kinds of decoder that people have and that no graph here describes, with what is missing.
const UNKNOWN_PARTS: [(&[&str], &str); 8] = [
    (&["bloom", "mpt"], "attention with a slope for each head (ALiBi)"),
    (&["opt", "nemotron"], "a feed-forward part with ReLU"),
    (&["phi", "gptj", "codegen"], "a head with a bias"),
    (&["cohere", "cohere2", "olmo", "stablelm", "phimoe"], "its kind of LayerNorm"),
    (&["olmo2", "olmo3", "olmoe"], "norms over all heads together"),
    (&["gpt_oss"], "sinks of attention and biases of experts"),
    (&["mamba", "mamba2", "jamba", "falcon_mamba", "qwen3_next", "rwkv"], "layers with a state"),
    (&["llama4_text", "smollm3"], "layers without positions between others"),
];

/// Whether `value` is such a file, and no spec that holds or names one.
pub fn looks_like_one(value: &Value) -> bool {
    let has = |key: &str| value.get(key).is_some();
    (has("model_type") || has("architectures")) && !has("model") && !has("problem")
}

/// The sizes that `value`, the content of a `config.json` at the field `path`, describes. None where something is
/// missing or wrong, with every fault among `faults`.
pub fn read(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<ModelConfig> {
    let mut table = Table::of(value, path, faults)?;
    let kind = table.get("model_type").cloned().unwrap_or(Value::Null);
    let name = kind.as_str().unwrap_or_default();
    if !MODEL_TYPES.contains(&name) {
        let found = if kind.is_null() { "nothing".to_string() } else { shown(&kind) };
        let missing = UNKNOWN_PARTS.iter().find(|(names, _)| names.contains(&name));
        let missing = missing.map_or(String::new(), |(_, part)| format!(" (this one has {part})"));
        let own =
            if table.get("text_config").is_some() { "the `text_config` within, which is its decoder; " } else { "" };
        let kinds = one_of_like(name, &MODEL_TYPES);
        let accepted = format!("{own}{kinds}{missing}; sizes of a similar decoder can be typed by hand");
        faults.push(Fault::new(table.path("model_type"), found, accepted));
        return None;
    }
    let before = faults.len();
    let mut reader = Reader { table, faults };
    let config = match name {
        "gpt2" | "gpt_bigcode" | "gpt_neox" | "falcon" | "starcoder2" => reader.gpt_like(name),
        // The published model has DeepSeek-V3's layers under a name of its own.
        "kimi_k2" => reader.llama_like("deepseek_v3"),
        _ => reader.llama_like(name),
    };
    config.filter(|_| reader.faults.len() == before)
}

struct Reader<'v, 'f> {
    table: Table<'v>,
    faults: &'f mut Vec<Fault>,
}

impl Reader<'_, '_> {
    /// A size that has to be there.
    fn size(&mut self, key: &'static str) -> Option<u32> {
        self.table.needed_whole(key, 1..=u64::from(MAX_SIZE), self.faults).map(|size| size as u32)
    }

    /// A size that may be absent.
    fn optional(&mut self, key: &'static str) -> Option<u32> {
        self.table.whole(key, 0..=u64::from(MAX_SIZE), self.faults).map(|size| size as u32)
    }

    fn layers(&mut self, key: &'static str) -> Option<u32> {
        self.table.needed_whole(key, 1..=u64::from(MAX_LAYERS), self.faults).map(|layers| layers as u32)
    }

    /// A norm's `eps` in units of 10⁻¹².
    fn eps(&mut self, key: &'static str) -> Option<u64> {
        if self.table.get(key).is_none() {
            self.faults.push(Fault::new(self.table.path(key), "nothing", "a number above 0, such as 1e-5"));
            return None;
        }
        self.table.positive(key, 1.0, self.faults).map(|eps| libm::round(eps * 1e12) as u64)
    }

    fn flag(&mut self, key: &'static str, otherwise: bool) -> bool {
        self.table.flag(key, self.faults).unwrap_or(otherwise)
    }

    /// The base of rotary positions: at the top under one of its names, or among the `rope_parameters` of newer files;
    /// 10,000 where none says.
    fn rope_base(&mut self) -> u32 {
        let most = f64::from(u32::MAX);
        let own = ["rope_theta", "rotary_emb_base"].map(|key| self.table.positive(key, most, self.faults));
        let nested = self.of_rope("rope_theta", most);
        own[0].or(own[1]).or(nested).map_or(10_000, |base| libm::round(base) as u32)
    }

    fn of_rope(&mut self, key: &'static str, most: f64) -> Option<f64> {
        // Families that turn some layers otherwise have a table for each kind of layer.
        let mut nested = self.table.table("rope_parameters", self.faults)?;
        if nested.get("full_attention").is_some() {
            nested = nested.table("full_attention", self.faults)?;
        }
        nested.positive(key, most, self.faults)
    }

    /// The columns of a head that are turned, where the file says a share of them.
    fn rotary(&mut self, key: &'static str, usual: f64, head_dim: u32) -> u32 {
        let nested = self.of_rope("partial_rotary_factor", 1.0);
        let share = self.table.positive(key, 1.0, self.faults).or(nested).unwrap_or(usual);
        libm::trunc(f64::from(head_dim) * share) as u32
    }

    /// That the feed-forward part's function, where `keys` say it, is one of `names`.
    fn function(&mut self, keys: &[&'static str], names: &[&str]) {
        for key in keys {
            let Some(value) = self.table.get(key) else { continue };
            if !value.as_str().is_some_and(|name| names.contains(&name)) {
                let accepted = format!("{}: no other is known of this family", one_of(names));
                self.faults.push(Fault::new(self.table.path(key), shown(value), accepted));
            }
        }
    }

    /// That a file does not ask for what the family's library does not do.
    fn never(&mut self, key: &'static str) {
        if self.flag(key, false) {
            self.faults.push(Fault::new(self.table.path(key), "true", "false, which is what the library computes"));
        }
    }

    /// That there are none of these biases.
    fn no_biases(&mut self, keys: &[&'static str]) {
        for key in keys {
            if self.flag(key, false) {
                let accepted = "false: of this family's matrices no such biases are known";
                self.faults.push(Fault::new(self.table.path(key), "true", accepted));
            }
        }
    }

    fn llama_like(&mut self, name: &str) -> Option<ModelConfig> {
        let layers = self.layers("num_hidden_layers");
        let hidden = self.size("hidden_size");
        let heads = self.size("num_attention_heads");
        let ffn = self.size("intermediate_size");
        let vocab = self.size("vocab_size");
        let positions = self.size("max_position_embeddings");
        let norm_eps_e12 = self.eps("rms_norm_eps");
        let is_deepseek = matches!(name, "deepseek_v2" | "deepseek_v3");
        let latent = if is_deepseek { self.latent() } else { None };
        let kv_heads = match name {
            // Every head expands keys of its own.
            "deepseek_v2" | "deepseek_v3" => heads,
            // The library takes as many as heads where an old file says nothing.
            "llama" | "phi3" | "granite" | "granitemoe" => self.optional("num_key_value_heads").or(heads),
            _ => self.size("num_key_value_heads"),
        };
        let experts = self.experts(name, ffn, layers);
        let qkv_bias = match name {
            "qwen2" | "qwen2_moe" => true,
            "glm" | "glm4_moe" => self.flag("attention_bias", false),
            "glm4" | "seed_oss" => self.flag("attention_bias", true),
            _ => {
                self.no_biases(&["attention_bias"]);
                false
            }
        };
        self.no_biases(&["mlp_bias", "attention_out_bias", "use_bias"]);
        let is_gemma = matches!(name, "gemma" | "gemma2" | "gemma3_text");
        self.function(&["hidden_act", "hidden_activation"], if is_gemma { &GELU[..] } else { &["silu", "swish"] });
        let head_dim = match latent {
            Some((latent, own)) => Some(own.saturating_add(latent.rope_width)),
            None => self.head_dim(name, hidden, heads),
        };
        let rotary = match name {
            "glm" | "glm4" | "glm4_moe" => Some(self.rotary("partial_rotary_factor", 0.5, head_dim.unwrap_or(0))),
            "phi3" => {
                let columns = self.rotary("partial_rotary_factor", 1.0, head_dim.unwrap_or(0));
                Some(columns).filter(|columns| Some(*columns) != head_dim)
            }
            _ => None,
        };
        let (factors, caps) = self.factors_and_caps(name, hidden.unwrap_or(0), head_dim.unwrap_or(0));
        let variant = Variant {
            qkv_bias,
            qk_norm: match name {
                "qwen3" | "qwen3_moe" | "gemma3_text" | "dots1" => true,
                "glm4_moe" => self.flag("use_qk_norm", false),
                _ => false,
            },
            post_norms: matches!(name, "gemma2" | "gemma3_text" | "glm4"),
            activation: if is_gemma { Activation::Gelu } else { Activation::Silu },
            experts: experts?,
            latent: latent.map(|(latent, _)| latent),
            window: self.window(name),
            multi_token: match name {
                "deepseek_v3" | "glm4_moe" => self.modules("num_nextn_predict_layers"),
                _ => 0,
            },
            rotary,
            norm_offset: is_gemma,
            factors,
            caps,
            ..Variant::USUAL
        };
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
            rope_base: self.rope_base(),
            norm_eps_e12: norm_eps_e12?,
            tied: self.flag("tie_word_embeddings", is_gemma || name == "ernie4_5"),
            variant,
        })
    }

    /// The width of a head: said, or for most families what the heads share of the hidden width.
    fn head_dim(&mut self, name: &str, hidden: Option<u32>, heads: Option<u32>) -> Option<u32> {
        if let Some(width) = self.optional("head_dim") {
            return Some(width);
        }
        // These families' widths do not follow from their heads.
        if matches!(name, "gemma" | "gemma2" | "gemma3_text" | "qwen3" | "qwen3_moe" | "glm" | "glm4" | "seed_oss") {
            return self.size("head_dim");
        }
        let (hidden, heads) = (hidden?, heads?);
        if !hidden.is_multiple_of(heads) {
            let accepted = no_width(hidden, "hidden_size", heads);
            self.faults.push(Fault::new(self.table.path("head_dim"), "nothing", accepted));
            return None;
        }
        Some(hidden / heads)
    }

    /// What the family multiplies with, and what it caps.
    fn factors_and_caps(&mut self, name: &str, hidden: u32, head_dim: u32) -> (Factors, Caps) {
        let (mut factors, mut caps) = (Factors::default(), Caps::default());
        let usual = to_e12(1.0 / libm::sqrt(head_dim.max(1).into()));
        match name {
            "gemma" | "gemma2" | "gemma3_text" => {
                factors.embedding = Some(to_e12(libm::sqrt(hidden.into())));
                let divisor = match name {
                    "gemma" => None,
                    _ => self.positive("query_pre_attn_scalar").or(Some(256.0)),
                };
                factors.attention = divisor.map(|divisor| to_e12(1.0 / libm::sqrt(divisor)));
                // The library's own where a file says nothing at all; a null means that nothing is capped.
                let otherwise = |cap| if name == "gemma2" { Some(cap) } else { None };
                caps.attention = self.cap("attn_logit_softcapping", otherwise(50.0));
                caps.logits = self.cap("final_logit_softcapping", otherwise(30.0));
            }
            "granite" | "granitemoe" => {
                factors.embedding = self.positive("embedding_multiplier").map(to_e12);
                factors.residual = self.positive("residual_multiplier").map(to_e12);
                factors.attention = Some(self.positive("attention_multiplier").map_or(E12, to_e12));
                factors.logits = self.positive("logits_scaling").map(|divisor| to_e12(1.0 / divisor));
            }
            _ => {}
        }
        let other = |factor: Option<u64>, usual| factor.filter(|factor| *factor != usual);
        let factors = Factors {
            embedding: other(factors.embedding, E12),
            residual: other(factors.residual, E12),
            attention: other(factors.attention, usual),
            logits: other(factors.logits, E12),
        };
        (factors, caps)
    }

    fn positive(&mut self, key: &'static str) -> Option<f64> {
        self.table.positive(key, MAX_FACTOR, self.faults)
    }

    fn cap(&mut self, key: &'static str, otherwise: Option<f64>) -> Option<u64> {
        let otherwise = otherwise.filter(|_| !self.table.is_null(key));
        self.positive(key).or(otherwise).map(to_e12)
    }

    /// The window of the family's attention, where it has one and the file says that it is used.
    fn window(&mut self, name: &str) -> Option<Window> {
        let tokens = self.optional("sliding_window").filter(|tokens| *tokens > 0);
        let full_every = match name {
            // Every other layer looks back through a window, the first one included; of six, the first five.
            "gemma2" => 2,
            "gemma3_text" => self.optional("sliding_window_pattern").unwrap_or(6),
            "mistral" | "mixtral" | "phi3" | "starcoder2" => 0,
            _ => {
                if self.flag("use_sliding_window", false) {
                    let field = self.table.path("use_sliding_window");
                    let accepted = "false: windows from a layer on (max_window_layers) are not known; write the model's \
                                    own window as `model.window` of a spec";
                    self.faults.push(Fault::new(field, "true", accepted));
                }
                1
            }
        };
        let full_every = self.layer_pattern(full_every);
        let tokens = tokens?;
        (full_every != 1).then_some(Window { tokens, full_every })
    }

    /// Every how many layers one sees all tokens, by the list of `layer_types`; `usual` where there is none.
    fn layer_pattern(&mut self, usual: u32) -> u32 {
        const KEY: &str = "layer_types";
        let Some(types) = self.table.get(KEY) else { return usual };
        let sees_all = |at: &Value| at.as_str() == Some("full_attention");
        let list = types.as_array().map_or(&[][..], Vec::as_slice);
        let every = list.iter().position(sees_all).map_or(0, |first| first + 1);
        let as_found = |(at, of): (usize, &Value)| {
            let all = every > 0 && (at + 1).is_multiple_of(every);
            if all { sees_all(of) } else { of.as_str() == Some("sliding_attention") }
        };
        if list.is_empty() || !list.iter().enumerate().all(as_found) {
            let accepted = "\"sliding_attention\" for all layers but every so many, which have \"full_attention\"";
            self.faults.push(Fault::new(self.table.path(KEY), "another list", accepted));
        }
        every as u32
    }

    /// Modules of multi-token prediction.
    fn modules(&mut self, key: &'static str) -> u32 {
        self.table.whole(key, 0..=u64::from(MAX_MULTI_TOKEN), self.faults).unwrap_or(0) as u32
    }

    /// The experts of the family, if it has any; none at all where a field is missing.
    fn experts(&mut self, name: &str, ffn: Option<u32>, layers: Option<u32>) -> Option<Option<Experts>> {
        if !matches!(
            name,
            "mixtral"
                | "granitemoe"
                | "qwen2_moe"
                | "qwen3_moe"
                | "deepseek_v2"
                | "deepseek_v3"
                | "glm4_moe"
                | "dots1"
        ) {
            return Some(None);
        }
        let routing = self.routing(name);
        let mut count =
            |key| self.table.needed_whole(key, 1..=u64::from(MAX_EXPERTS), self.faults).map(|count| count as u32);
        let experts = match name {
            "mixtral" | "granitemoe" => {
                let (count, active) = (count("num_local_experts"), count("num_experts_per_tok"));
                Experts {
                    count: count?,
                    active: active?,
                    ffn: ffn?,
                    shared_ffn: 0,
                    dense_layers: 0,
                    shared_gate: false,
                    routing,
                }
            }
            "qwen2_moe" | "qwen3_moe" => {
                let (count, active) = (count("num_experts"), count("num_experts_per_tok"));
                let ffn = self.size("moe_intermediate_size");
                self.every("decoder_sparse_step");
                let dense = self.table.get("mlp_only_layers").and_then(Value::as_array);
                if let Some(some) = dense.filter(|layers| !layers.is_empty()) {
                    let found = format!("{} layers", some.len());
                    self.faults.push(Fault::new(self.table.path("mlp_only_layers"), found, "an empty list"));
                }
                let shared_gate = name == "qwen2_moe";
                let shared = if shared_gate { self.size("shared_expert_intermediate_size") } else { Some(0) };
                Experts {
                    count: count?,
                    active: active?,
                    ffn: ffn?,
                    shared_ffn: shared?,
                    dense_layers: 0,
                    shared_gate,
                    routing,
                }
            }
            _ => {
                let (count, active) = (count("n_routed_experts"), count("num_experts_per_tok"));
                let ffn = self.size("moe_intermediate_size");
                let shared = self.optional("n_shared_experts").unwrap_or(0);
                self.every("moe_layer_freq");
                let first = "first_k_dense_replace";
                let most = u64::from(layers.unwrap_or(MAX_LAYERS));
                let dense_layers = self.table.needed_whole(first, 0..=most, self.faults).map(|count| count as u32);
                let shared_ffn = shared.saturating_mul(ffn?);
                Experts {
                    count: count?,
                    active: active?,
                    ffn: ffn?,
                    shared_ffn,
                    dense_layers: dense_layers?,
                    shared_gate: false,
                    routing,
                }
            }
        };
        Some(Some(experts))
    }

    /// How the family's experts are chosen and weighted; where a file says nothing, as its library does.
    fn routing(&mut self, name: &str) -> Routing {
        let (scores, normed, factor, groups) = match name {
            "mixtral" | "granitemoe" => return Routing { normed: true, ..Routing::USUAL },
            "qwen2_moe" | "qwen3_moe" => {
                return Routing { normed: self.flag("norm_topk_prob", false), ..Routing::USUAL };
            }
            "deepseek_v2" => (Scores::Softmax, false, 1.0, [1, 1]),
            "deepseek_v3" => (Scores::Sigmoid, true, 2.5, [8, 4]),
            "glm4_moe" => (Scores::Sigmoid, true, 1.0, [1, 1]),
            _ => (Scores::Sigmoid, false, 1.0, [1, 1]),
        };
        let normed = match scores {
            Scores::Sigmoid => self.flag("norm_topk_prob", normed),
            Scores::Softmax => {
                self.never("norm_topk_prob");
                false
            }
        };
        self.function(&["scoring_func"], &[scores.name()]);
        let factor = self.positive("routed_scaling_factor").unwrap_or(factor);
        self.function(
            &["topk_method"],
            match scores {
                Scores::Softmax => &["greedy", "group_limited_greedy"],
                Scores::Sigmoid => &["noaux_tc"],
            },
        );
        let in_groups = scores == Scores::Sigmoid
            || self.table.get("topk_method").and_then(Value::as_str) == Some("group_limited_greedy");
        let keys = ["n_group", "topk_group"];
        let said = keys.map(|key| self.optional(key).filter(|_| in_groups));
        Routing {
            scores,
            normed,
            factor: Some(to_e12(factor)).filter(|factor| *factor != E12),
            groups: said[0].unwrap_or(groups[0]),
            active_groups: said[1].unwrap_or(groups[1]),
        }
    }

    /// Experts in every layer are the only case that is known.
    fn every(&mut self, key: &'static str) {
        self.table.whole(key, 1..=1, self.faults);
    }

    /// The latents, and the columns of a head that carry no position.
    fn latent(&mut self) -> Option<(Latent, u32)> {
        let query_rank = self.optional("q_lora_rank").unwrap_or(0);
        let key_value_rank = self.size("kv_lora_rank");
        let own = self.size("qk_nope_head_dim");
        let rope_width = self.size("qk_rope_head_dim");
        let value_width = self.size("v_head_dim");
        let latent = Latent {
            query_rank,
            key_value_rank: key_value_rank?,
            rope_width: rope_width?,
            value_width: value_width?,
        };
        Some((latent, own?))
    }

    fn gpt_like(&mut self, name: &str) -> Option<ModelConfig> {
        let [layers, hidden, heads] = match name {
            "gpt2" | "gpt_bigcode" => ["n_layer", "n_embd", "n_head"],
            _ => ["num_hidden_layers", "hidden_size", "num_attention_heads"],
        };
        let [ffn, positions, eps, function] = match name {
            "gpt2" | "gpt_bigcode" => ["n_inner", "n_positions", "layer_norm_epsilon", "activation_function"],
            "gpt_neox" => ["intermediate_size", "max_position_embeddings", "layer_norm_eps", "hidden_act"],
            "falcon" => ["ffn_hidden_size", "max_position_embeddings", "layer_norm_epsilon", "activation"],
            _ => ["intermediate_size", "max_position_embeddings", "norm_epsilon", "hidden_act"],
        };
        let layers = self.layers(layers);
        let hidden = self.size(hidden);
        let heads = self.size(heads);
        let vocab = self.size("vocab_size");
        // The library's own where an old file of the family says nothing.
        let positions = match name {
            "falcon" => self.optional(positions).or(Some(2048)),
            _ => self.size(positions),
        };
        let norm_eps_e12 = self.eps(eps);
        // The library takes 4 times the hidden width where the file says nothing.
        let ffn = match name {
            "gpt_neox" | "starcoder2" => self.size(ffn),
            _ => self.optional(ffn).or(hidden.map(|hidden| hidden.saturating_mul(4))),
        };
        self.function(&[function], &GELU);
        let head_dim = self.head_dim(name, hidden, heads);
        let (variant, kv_heads) = self.gpt_variant(name, head_dim.unwrap_or(0), heads);
        Some(ModelConfig {
            family: Family::Gpt,
            layers: layers?,
            hidden: hidden?,
            heads: heads?,
            kv_heads: kv_heads?,
            head_dim: head_dim?,
            ffn: ffn?,
            vocab: vocab?,
            positions: positions?,
            rope_base: self.rope_base(),
            norm_eps_e12: norm_eps_e12?,
            tied: self.flag("tie_word_embeddings", name != "gpt_neox"),
            variant,
        })
    }

    /// What departs from GPT-2's layer, and the key and value heads.
    fn gpt_variant(&mut self, name: &str, head_dim: u32, heads: Option<u32>) -> (Variant, Option<u32>) {
        let mut variant = Variant::USUAL;
        let mut kv_heads = heads;
        match name {
            "gpt_bigcode" if self.flag("multi_query", true) => kv_heads = Some(1),
            "gpt_neox" => {
                variant.rotary = Some(self.rotary("rotary_pct", 0.25, head_dim));
                if self.flag("use_parallel_residual", true) {
                    variant.arrangement = Arrangement::Beside;
                }
                if !self.flag("attention_bias", true) {
                    let accepted = "true: matrices of which only some have biases are not known";
                    self.faults.push(Fault::new(self.table.path("attention_bias"), "false", accepted));
                }
            }
            "falcon" => {
                variant.rotary = Some(head_dim);
                variant.no_bias = !self.flag("bias", false);
                if self.flag("alibi", false) {
                    let accepted = "false: attention with a slope for each head is not known";
                    self.faults.push(Fault::new(self.table.path("alibi"), "true", accepted));
                }
                let own = self.optional("num_kv_heads").or(heads);
                let (norms, newer) =
                    (self.optional("num_ln_in_parallel_attn"), self.flag("new_decoder_architecture", false));
                let (one_for_all, beside) = (self.flag("multi_query", true), self.flag("parallel_attn", true));
                kv_heads = if newer {
                    own
                } else if one_for_all {
                    Some(1)
                } else {
                    heads
                };
                variant.arrangement = match (newer, beside) {
                    (false, false) => Arrangement::InTurn,
                    (true, _) if norms.unwrap_or(2) == 2 => Arrangement::Beside,
                    _ => Arrangement::BesideOneNorm,
                };
            }
            "starcoder2" => {
                variant.rotary = Some(head_dim);
                variant.no_bias = !self.flag("use_bias", true);
                variant.window = self.window(name);
                kv_heads = self.size("num_key_value_heads");
            }
            _ => {}
        }
        (variant, kv_heads)
    }
}

/// Forms of GELU, which all take the same bytes and operations here.
const GELU: [&str; 5] = ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalog;
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

    /// Of every size that a family needs, leaving it out names it; nothing else is asked for.
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

    /// Sizes of published files whose models the catalog does not have, and the published checkpoints' own counts.
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
            (
                "gemma-7b",
                base("gemma", [28, 3072, 16, 16, 24576, 256_000]),
                json!({ "head_dim": 256 }),
                8_537_680_896,
            ),
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

    /// The same of GPT-like families and of those that came later. Pythia: arXiv:2304.01373, table 1, whose counts leave both
    /// tables out; the others their published checkpoints.
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
        assert_eq!(read_ok(&gemma_3_1b).variant.window, Some(Window { tokens: 512, full_every: 6 }));
        let by_list = |every: usize| {
            let kind =
                |at: usize| if (at + 1).is_multiple_of(every) { "full_attention" } else { "sliding_attention" };
            let mut config = gemma_3_1b.clone();
            config["sliding_window_pattern"] = Value::Null;
            config["layer_types"] = (0..26).map(kind).collect();
            read_ok(&config).variant.window
        };
        assert_eq!(by_list(6), Some(Window { tokens: 512, full_every: 6 }));
        assert_eq!((by_list(4).map(|window| window.full_every), by_list(1)), (Some(4), None));
    }

    /// Every kind that is read, by models of its own library on a device that holds no data. With `gpt2`, `mixtral`, `gemma`
    /// and `qwen3_moe` of the tests above, no kind is left out.
    #[test]
    fn counts_are_those_of_the_library_s_own_classes() {
        let table = include_str!("../../../tests/reference/parameter_counts.json");
        let table: Value = serde_json::from_str(table).unwrap();
        let mut kinds = std::vec!["mixtral", "gemma", "qwen3_moe", "deepseek_v3"];
        for row in table["models"].as_array().unwrap() {
            assert_eq!(read_ok(&row["config"]).parameters(), row["count"].as_u64().unwrap(), "{}", row["name"]);
            kinds.extend(row["config"]["model_type"].as_str());
        }
        for (name, file) in
            [("llama-3-405b", "llama-3.1-405b"), ("deepseek-v2", "deepseek-v2-236b"), ("kimi-k2", "kimi-k2")]
        {
            let of_file = |row: &&Value| row["name"] == file;
            let row = table["models"].as_array().unwrap().iter().find(of_file).unwrap();
            let entry = catalog::find(name).unwrap().config;
            // The table has neither bases of rotary positions nor routing: no parameter depends on them.
            let mut counted = read_ok(&row["config"]);
            counted.rope_base = entry.rope_base;
            if let (Some(counted), Some(known)) = (&mut counted.variant.experts, entry.variant.experts) {
                counted.routing = known.routing;
            }
            assert_eq!(counted, entry, "{name}");
        }
        let missing: Vec<&&str> = MODEL_TYPES.iter().filter(|kind| !kinds.contains(*kind)).collect();
        assert!(missing.is_empty(), "no count of {missing:?}");
    }

    /// What Gemma and Granite multiply with, and cap: as the files say, and as the library does where they say nothing.
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

    /// Of the published files of DeepSeek-V2, its Lite, Kimi K2 and GLM-4.5-Air; where one says nothing, the library's own.
    #[test]
    fn routing_is_read() {
        let routing = |kind: &str, says: Value| {
            let mut config = published("deepseek-v3");
            for key in
                ["scoring_func", "topk_method", "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group"]
            {
                config[key] = says[key].clone();
            }
            config["model_type"] = json!(kind);
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
    fn what_no_graph_describes_is_said() {
        for (config, part) in [
            (json!({ "model_type": "bloom" }), "ALiBi"),
            (json!({ "model_type": "mamba" }), "layers with a state"),
            (json!({ "model_type": "gemma3", "text_config": {} }), "`text_config`"),
            (json!({ "model_type": "qwen_3" }), "perhaps qwen3"),
        ] {
            let mut faults = Vec::new();
            assert!(read(&config, "model.config", &mut faults).is_none());
            assert_eq!(faults[0].field, "model.config.model_type");
            assert!(faults[0].accepted.contains(part), "{}", faults[0].accepted);
        }
    }

    /// What a family may say but nothing here knows is refused with its field.
    #[test]
    fn what_is_not_known_of_a_family_is_refused() {
        for (name, key, value) in [
            ("llama-3-8b", "attention_bias", json!(true)),
            ("llama-3-8b", "mlp_bias", json!(true)),
            ("llama-3-8b", "hidden_act", json!("relu")),
            ("gemma-2-9b", "layer_types", json!(["full_attention", "sliding_attention"])),
            ("gemma-2-9b", "layer_types", json!(7)),
            ("qwen-2.5-7b", "use_sliding_window", json!(true)),
            ("qwen-3-30b-a3b", "mlp_only_layers", json!([0])),
            ("deepseek-v3", "moe_layer_freq", json!(2)),
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
}
