//! Arguments of the model, as a spec says it.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Value, json};

use super::lists::{layers_of, layers_of_experts};
use super::source::argument;
use super::spec::Reader;
use crate::base::fields::Fault;
use crate::model::{LayerPattern, MAX_SIZE};

/// Arguments that are a field of the model; of a field the last one that is given counts.
const NUMBERS: [(&str, &str); 4] = [
    ("kv_channels", "head_dim"),
    ("max_position_embeddings", "positions"),
    ("rotary_position_embeddings_theta", "rope_base"),
    ("rotary_base", "rope_base"),
];

impl Reader<'_> {
    /// Heads of keys and values, where there are fewer of them: by Megatron-LM's name, or by Megatron-DeepSpeed's.
    fn key_value_heads(&mut self) -> Option<u64> {
        let name = if self.is_on("group_query_attention") { "num_query_groups" } else { "num_key_value_heads" };
        self.whole(name)
    }

    /// `--window-size 127,0`: so many tokens before each one, and it itself.
    pub(super) fn window(&mut self, layers: u64) -> Option<Value> {
        let said = self.said("window_size")?.to_owned();
        let before =
            said.trim_matches(['(', ')']).split([',', ' ']).next().and_then(|before| before.parse::<u64>().ok());
        let Some(before) = before else {
            self.faults.push(Fault::new("--window-size", format!("\"{said}\""), "such as 127,0"));
            return None;
        };
        let mut window = json!({ "tokens": before.saturating_add(1), "full_every": 0 });
        let Some(skip) = self.said("window_attn_skip_freq").map(String::from) else { return Some(window) };
        if let Ok(full_every) = skip.parse::<u64>() {
            window["full_every"] = json!(full_every);
            return Some(window);
        }
        window["layers"] = json!(self.pattern("window_attn_skip_freq", layers_of(&skip, layers))?);
        Some(window)
    }

    /// The text in a spec of these layers.
    pub(super) fn pattern(&mut self, name: &str, has: Option<Vec<bool>>) -> Option<String> {
        let pattern = has.and_then(|has| LayerPattern::from_list(&has));
        if pattern.is_none() {
            let found = format!("\"{}\"", self.said(name).unwrap_or_default());
            let accepted =
                "a list such as ([0]*3+[1]*1)*12 with an item for each layer, which repeats or has at most 256";
            self.faults.push(Fault::new(argument(name), found, accepted));
        }
        pattern.map(|pattern| pattern.text())
    }

    /// Parts that newer models have, of layers with a gate and RMSNorm.
    pub(super) fn newer_parts(&mut self, model: &mut Value, layers: u64, is_llama: bool) {
        let latent = self.is_latent();
        if self.is_on("post_self_attn_layernorm") && self.is_on("post_mlp_layernorm") && is_llama {
            model["post_norms"] = json!(true);
        }
        let of_plugin = self.said("spec").is_some_and(|spec| spec.contains("qwen3_next") || spec.contains("qwen3_5"));
        if of_plugin {
            self.refuse(
                "spec",
                "its gated delta nets are planned from the config.json of the model, as model.config of a spec",
            );
        }
        if let Some(kind) = self.said("softmax_type").filter(|kind| *kind != "vanilla").map(String::from) {
            match kind == "learnable" && is_llama && !latent {
                true => model["sinks"] = json!(true),
                false => {
                    self.tell("softmax_type", "planned without the score that each head has beside those of tokens")
                }
            }
        }
        if self.is_on("attention_output_gate") {
            match is_llama && !latent {
                true => model["attention_gate"] = json!(true),
                false => self.refuse("attention_output_gate", "a gate behind such attention is not planned"),
            }
        }
        let Some(skip) = self.said("no_rope_freq").map(String::from) else { return };
        if !is_llama {
            return self.tell("no_rope_freq", "planned with the same positions in every layer");
        }
        let without = match skip.parse::<u64>() {
            Ok(every) => (every > 0).then(|| (1..=layers).map(|layer| layer.is_multiple_of(every)).collect()),
            Err(_) => layers_of(&skip, layers),
        };
        if let Some(text) = self.pattern("no_rope_freq", without) {
            model["no_rope"] = json!(text);
        }
    }

    fn is_rotary(&self) -> bool {
        self.said("position_embedding_type").is_some_and(|kind| kind.starts_with("rope") || kind == "yarn")
            || self.is_on("use_rotary_position_embeddings")
    }

    /// The norms, as far as they are not those that such layers usually have.
    fn norm(&mut self, model: &mut Value, gated: bool) {
        if self.is_on("layernorm_zero_centered_gamma") || self.is_on("apply_layernorm_1p") {
            match gated {
                true => model["norm_offset"] = json!(true),
                false => self.tell("apply_layernorm_1p", "planned with norms that multiply by their weight alone"),
            }
        }
        let norm = self.said("normalization").unwrap_or("LayerNorm").to_owned();
        if (norm == "RMSNorm") == gated {
            return;
        }
        let has_modules = self.said("mtp_num_layers").is_some_and(|count| count != "0");
        match gated && norm == "LayerNorm" && !self.is_latent() && !has_modules {
            true => model["norm"] = json!("layer"),
            false => {
                let planned = if gated { "RMSNorm" } else { "LayerNorm" };
                self.note(format!("--normalization {norm}: planned as {planned}, as such layers usually have it"));
            }
        }
    }

    pub(super) fn model(&mut self, layers: Option<u64>, tensor: u64) -> Option<Value> {
        let [hidden, heads] = ["hidden_size", "num_attention_heads"].map(|name| self.needed(name, MAX_SIZE));
        let (layers, hidden, heads) = (layers?, hidden?, heads?);
        let quick = self.is_on("quick_geglu");
        let has_bias = self.is_on_unless("add_bias_linear", "disable_bias_linear");
        let has_experts =
            self.said("num_experts").is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 1));
        let is_rms = self.said("normalization") == Some("RMSNorm");
        // Two matrices, in layers that are else like those with a gate.
        let is_like_gated = is_rms && !has_bias || self.is_rotary();
        let squared = self.is_on("squared_relu") && is_like_gated && !has_experts;
        if self.is_on("squared_relu") && !squared {
            self.tell("squared_relu", "planned as GELU, which has the same matrices");
        }
        let gated = self.is_on("swiglu") || quick || squared;
        let usual_ffn = if gated && !squared { hidden * 4 * 2 / 3 / 64 * 64 } else { 4 * hidden };
        let ffn = self.whole("ffn_hidden_size").unwrap_or(usual_ffn);
        let groups = self.key_value_heads();
        let family = if gated { "llama" } else { "gpt" };
        let mut model = json!({
            "family": family, "layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn,
            "kv_heads": groups.unwrap_or(heads),
            "vocab": self.vocabulary(tensor)?,
            "tied": !self.is_on("untie_embeddings_and_output_weights"),
        });
        for (name, field) in NUMBERS {
            if let Some(number) = self.whole(name) {
                model[field] = json!(number);
            }
        }
        self.activation(&mut model, quick, squared);
        if let Some(eps) = self.float("norm_epsilon").or_else(|| self.float("layernorm_epsilon")) {
            model["norm_eps"] = json!(eps);
        }
        let rotary = self.is_rotary();
        if let Some(kind) = self.said("position_embedding_type").map(str::to_owned)
            && !matches!(kind.as_str(), "learned_absolute" | "rope" | "yarn" | "mrope" | "none")
        {
            let accepted = "learned_absolute, rope, yarn, mrope or none: others are not planned";
            self.faults.push(Fault::new("--position-embedding-type", format!("\"{kind}\""), accepted));
        }
        let head_dim = model["head_dim"].as_u64().unwrap_or(hidden / heads);
        if gated && !rotary {
            self.note("planned with rotary positions, as gated layers have them");
        }
        let share = self.float("rotary_percent").unwrap_or(1.0);
        if rotary && (!gated || share < 1.0 && !self.is_latent()) {
            model["rotary"] = json!((head_dim as f64 * share) as u64);
        }
        self.norm(&mut model, gated);
        match (gated, has_bias) {
            (true, true) if !self.is_latent() => {
                for field in ["qkv_bias", "o_bias"] {
                    model[field] = json!(true);
                }
                if !has_experts {
                    model["mlp_bias"] = json!(true);
                }
            }
            (true, true) => self.note("planned without linear bias: latent attention has none here"),
            (false, false) => model["no_bias"] = json!(true),
            _ => {}
        }
        for (name, field) in [("add_qkv_bias", "qkv_bias"), ("qk_layernorm", "qk_norm")] {
            // Of latent attention the norms belong to the latents.
            if self.is_on(name) && !self.is_latent() {
                model[field] = json!(true);
            }
        }
        if let Some(mut experts) = self.experts(layers, ffn) {
            if has_bias {
                experts["biases"] = json!(true);
                if experts.get("layers").is_some()
                    || experts["dense_layers"] != json!(0)
                    || experts.get("shared_ffn").is_some()
                {
                    self.note(
                        "planned without the biases of the MLP in layers without experts, and of shared experts",
                    );
                }
            }
            model["experts"] = experts;
        }
        self.newer_parts(&mut model, layers, gated);
        self.latent(&mut model, heads);
        if let Some(modules) = self.whole("mtp_num_layers").filter(|modules| *modules > 0) {
            model["multi_token"] = json!(modules);
        }
        if let Some(window) = self.window(layers) {
            model["window"] = window;
        }
        Some(model)
    }

    /// The gate of the MLP, where it is not SwiGLU.
    pub(super) fn activation(&mut self, model: &mut Value, quick: bool, squared: bool) {
        if squared {
            model["activation"] = json!("squared-relu");
        }
        let offset = self.float("glu_linear_offset").filter(|offset| *offset != 0.0);
        let clamp = self.float("activation_func_clamp_value");
        if quick && !self.is_on("swiglu") {
            // That of gpt-oss: x·σ(1.702 x), with one more than the linear half.
            let is_clamped = offset == Some(1.0) && clamp.is_none_or(|clamp| clamp == 7.0);
            model["activation"] = json!(if is_clamped { "clamped-silu" } else { "gelu" });
            match is_clamped {
                true if clamp.is_none() => {
                    self.tell("quick_geglu", "planned with its values clamped to 7, as in gpt-oss")
                }
                true => {}
                false => self.tell("quick_geglu", "planned with the tanh form of GELU, which has the same matrices"),
            }
        }
        for (name, number) in [("glu_linear_offset", offset), ("activation_func_clamp_value", clamp)] {
            if number.is_some() && model["activation"] != "clamped-silu" {
                self.tell(name, "planned without: it adds no matrix");
            }
        }
    }

    /// Whether attention is latent, by Megatron-LM's name or by MindSpeed's.
    pub(super) fn is_latent(&self) -> bool {
        self.is_on("multi_latent_attention") || self.is_on("multi_head_latent_attention")
    }

    pub(super) fn latent(&mut self, model: &mut Value, heads: u64) {
        if !self.is_latent() {
            return;
        }
        let query_rank = self.whole("q_lora_rank").unwrap_or(0);
        let key_value_rank = self.whole("kv_lora_rank").unwrap_or(512);
        let rope_width = self.either(["qk_pos_emb_head_dim", "qk_rope_head_dim"]).unwrap_or(64);
        let value_width = self.whole("v_head_dim").unwrap_or(128);
        model["head_dim"] =
            json!(self.either(["qk_head_dim", "qk_nope_head_dim"]).unwrap_or(128).saturating_add(rope_width));
        model["kv_heads"] = json!(heads);
        model["latent"] = json!({
            "query_rank": query_rank, "key_value_rank": key_value_rank, "rope_width": rope_width,
            "value_width": value_width,
        });
    }

    /// As it is padded.
    pub(super) fn vocabulary(&mut self, tensor: u64) -> Option<u64> {
        if let Some(padded) = self.whole("padded_vocab_size").or(self.run.padded_vocab) {
            return Some(padded);
        }
        let Some(vocab) = self.whole("vocab_size") else {
            let accepted = "the vocabulary's size: a log says it, of a command line add it to the text";
            self.faults.push(Fault::new("--vocab-size", "nothing", accepted));
            return None;
        };
        if self.is_on("disable_pad_vocab_size")
            || self.is_on("no_pad_vocab_size")
            || self.said("pad_vocab_size") == Some("False")
        {
            return Some(vocab);
        }
        let multiple = self.whole("make_vocab_size_divisible_by").unwrap_or(128).saturating_mul(tensor).max(1);
        Some(vocab.div_ceil(multiple).saturating_mul(multiple))
    }

    pub(super) fn experts(&mut self, layers: u64, ffn: u64) -> Option<Value> {
        let count = self.whole("num_experts").filter(|count| *count > 1)?;
        let frequency = self.said("moe_layer_freq").unwrap_or("1").to_owned();
        let Some(mut of_experts) = layers_of_experts(&frequency, layers) else {
            self.faults.push(Fault::new("--moe-layer-freq", format!("\"{frequency}\""), "such as ([0]*3+[1]*58)"));
            return None;
        };
        // Relatives have the first layers apart.
        let dense = self.whole("first_k_dense_replace").unwrap_or(0);
        of_experts.iter_mut().take(dense as usize).for_each(|has| *has = false);
        let inner = self.either(["moe_ffn_hidden_size", "moe_intermediate_size"]).unwrap_or(ffn);
        let mut experts = json!({
            "count": count,
            "active": self.whole("moe_router_topk").unwrap_or(2),
            "ffn": inner,
            "scores": self.said("moe_router_score_function").filter(|said| *said == "sigmoid").unwrap_or("softmax"),
        });
        match LayerPattern::from_list(&of_experts) {
            Some(pattern) => match pattern.behind_first() {
                Some(dense) => experts["dense_layers"] = json!(dense),
                None => experts["layers"] = json!(pattern.text()),
            },
            None => {
                let accepted = "a list that repeats, or one of at most 256 layers";
                self.faults.push(Fault::new("--moe-layer-freq", format!("\"{frequency}\""), accepted));
            }
        }
        for (name, field) in [("moe_router_num_groups", "groups"), ("moe_router_group_topk", "active_groups")] {
            if let Some(number) = self.whole(name) {
                experts[field] = json!(number);
            }
        }
        if let Some(factor) = self.float("moe_router_topk_scaling_factor").filter(|factor| *factor > 0.0) {
            experts["factor"] = json!(factor);
        }
        if let Some(shared) = self.whole("n_shared_experts").filter(|shared| *shared > 0) {
            experts["shared_ffn"] = json!(shared.saturating_mul(inner));
        }
        if let Some(shared) = self.whole("moe_shared_expert_intermediate_size") {
            experts["shared_ffn"] = json!(shared);
        }
        if self.is_on("moe_shared_expert_gate") {
            experts["shared_gate"] = json!(true);
        }
        Some(experts)
    }
}
