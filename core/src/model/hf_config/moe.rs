//! Mixture of experts: which families have experts, those of Mixtral, Granite and Qwen, and the routing of all.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use super::reader::Reader;
use crate::base::fields::Fault;
use crate::model::{E12, Experts, MAX_EXPERTS, MAX_LAYERS, Routing, Scores, to_e12};

impl Reader<'_, '_> {
    /// The experts of the family `name`, if it has any. None at all where a field is missing.
    pub(super) fn experts(&mut self, name: &str, ffn: Option<u32>, layers: Option<u32>) -> Option<Option<Experts>> {
        let experts = match name {
            "mixtral" | "granitemoe" | "granitemoeshared" | "granitemoe_swa" => {
                let routing = self.routing(name);
                let shared_ffn = self.optional("shared_intermediate_size").unwrap_or(0);
                self.mixtral_experts(routing, ffn).map(|experts| Experts { shared_ffn, ..experts })
            }
            "gemma4_text" => return self.gemma_4_experts(),
            "phimoe" => {
                let routing = Routing { scores: Scores::SparseMixer, ..Routing::USUAL };
                self.mixtral_experts(routing, ffn)
            }
            "granitemoehybrid" if self.optional("num_local_experts").unwrap_or(0) == 0 => return Some(None),
            "granitemoehybrid" => {
                let shared_ffn = self.size("shared_intermediate_size");
                self.mixtral_experts(Routing { normed: true, ..Routing::USUAL }, ffn)
                    .zip(shared_ffn)
                    .map(|(experts, shared_ffn)| Experts { shared_ffn, ..experts })
            }
            "minimax_m2" => {
                self.function(&["scoring_func"], &["sigmoid"]);
                let routing = Routing { scores: Scores::Sigmoid, normed: true, ..Routing::USUAL };
                let shared_ffn = self.optional("shared_intermediate_size").unwrap_or(0);
                self.mixtral_experts(routing, ffn).map(|experts| Experts { shared_ffn, ..experts })
            }
            "gpt_oss" => {
                let routing = Routing { normed: true, ..Routing::USUAL };
                self.mixtral_experts(routing, ffn).map(|experts| Experts { biases: true, ..experts })
            }
            "hunyuan_v1_moe" | "aria_text" => self.hunyuan_experts(name, ffn),
            "llama4_text" => self.llama_4_experts(ffn, layers.unwrap_or(0)),
            "olmoe" | "flex_olmo" => {
                let normed = self.flag("norm_topk_prob", false);
                let (count, active) =
                    (self.experts_count(self.experts_key()), self.experts_count("num_experts_per_tok"));
                let of = |ffn, [count, active]: [u32; 2]| all_layers(ffn, [count, active], normed);
                ffn.zip(count.zip(active)).map(|(ffn, (count, active))| of(ffn, [count, active]))
            }
            "qwen2_moe" | "qwen3_moe" | "qwen3_next" | "qwen3_5_moe_text" | "mellum" => {
                let routing = self.routing(name);
                self.qwen_experts(routing, !matches!(name, "qwen3_moe" | "mellum"), layers.unwrap_or(0))
            }
            "ernie4_5_moe" => self.ernie_experts(layers.unwrap_or(0)),
            "exaone_moe" | "afmoe" | "hy_v3" => self.exaone_experts(name, layers.unwrap_or(0)),
            "deepseek_v2" | "deepseek_v3" | "deepseek_v32" | "glm4_moe" | "glm4_moe_lite" | "glm_moe_dsa"
            | "dots1" | "glm4v_moe_text" | "mistral4" | "deepseek_ocr2_text" => {
                let routing = self.routing(name);
                self.deepseek_experts(routing, layers)
            }
            _ => return Some(None),
        };
        experts.map(Some)
    }

    /// Gemma 4: experts in every layer, beside the MLP.
    fn gemma_4_experts(&mut self) -> Option<Option<Experts>> {
        let keys = ["num_experts", "top_k_experts", "moe_intermediate_size"];
        if !self.flag("enable_moe_block", false) {
            // The class has none, whatever these say.
            for key in keys {
                self.table.get(key);
            }
            return Some(None);
        }
        let [count, active] = [keys[0], keys[1]].map(|key| self.experts_count(key));
        let ffn = self.size(keys[2]);
        Some(Some(all_layers(ffn?, [count?, active?], true)))
    }

    /// Command A: experts as wide as the usual MLP in `sparse` layers, and shared ones. Of the best logits of its router the
    /// softmax is taken.
    pub(super) fn cohere_experts(&mut self, ffn: u32, sparse: &[bool]) -> Option<Option<Experts>> {
        let (count, active) = (self.experts_count("num_experts"), self.experts_count("num_experts_per_tok"));
        self.function(&["expert_selection_fn"], &["softmax", "sigmoid"]);
        let is_sigmoid = self.table.get("expert_selection_fn").and_then(Value::as_str) == Some("sigmoid");
        let normed = self.flag("norm_topk_prob", true) || !is_sigmoid;
        let scores = if is_sigmoid { Scores::Sigmoid } else { Scores::Softmax };
        let shared = self.optional("num_shared_experts").unwrap_or(0);
        self.function(&["shared_expert_combination_strategy"], &["average", "sum"]);
        let strategy = self.table.get("shared_expert_combination_strategy").and_then(Value::as_str);
        if shared > 0 && strategy != Some("sum") {
            self.notes.push(String::from(
                "the mean of shared and other experts (shared_expert_combination_strategy) is read as their sum. Plans do not \
                 depend on it; `run` trains the model with the sum",
            ));
        }
        if !sparse.contains(&true) {
            return Some(None);
        }
        let routing = Routing { scores, normed, ..Routing::USUAL };
        let experts = all_layers(ffn, [count?, active?], normed);
        let experts = Experts { shared_ffn: shared.saturating_mul(ffn), routing, ..experts };
        self.pattern("mlp_layer_types", sparse).map(|pattern| Some(experts.within(pattern)))
    }

    /// Experts in every layer, each as wide as the family's MLP.
    fn mixtral_experts(&mut self, routing: Routing, ffn: Option<u32>) -> Option<Experts> {
        let (count, active) = (self.experts_count("num_local_experts"), self.experts_count("num_experts_per_tok"));
        Some(Experts {
            count: count?,
            active: active?,
            ffn: ffn?,
            shared_ffn: 0,
            dense_layers: 0,
            layers: None,
            biases: false,
            shared_gate: false,
            routing,
        })
    }

    /// Experts in every layer, with their own width; in Qwen 2 also a shared expert with a gate.
    fn qwen_experts(&mut self, routing: Routing, shared_gate: bool, layers: u32) -> Option<Experts> {
        let (count, active) = (self.experts_count(self.experts_key()), self.experts_count("num_experts_per_tok"));
        let ffn = self.size("moe_intermediate_size");
        let step =
            self.table.whole("decoder_sparse_step", 1..=u64::from(MAX_LAYERS), self.faults).unwrap_or(1) as u32;
        let dense = self.numbers_of_layers("mlp_only_layers", layers);
        let by_step = (0..layers).map(|layer| !dense.contains(&layer) && (layer + 1).is_multiple_of(step));
        let has: Vec<bool> = self.sparse_layers(layers).unwrap_or_else(|| by_step.collect());
        let shared = if shared_gate { self.size("shared_expert_intermediate_size") } else { Some(0) };
        let experts = Experts {
            count: count?,
            active: active?,
            ffn: ffn?,
            shared_ffn: shared?,
            dense_layers: 0,
            layers: None,
            biases: false,
            shared_gate,
            routing,
        };
        if has.iter().all(|has| *has) {
            return Some(experts);
        }
        self.pattern("mlp_only_layers", &has).map(|pattern| experts.within(pattern))
    }

    /// ERNIE 4.5: from one layer to another, every n-th.
    fn ernie_experts(&mut self, layers: u32) -> Option<Experts> {
        let (count, active) = (self.experts_count("moe_num_experts"), self.experts_count("moe_k"));
        let ffn = self.size("moe_intermediate_size");
        let shared = self.optional("moe_num_shared_experts").unwrap_or(0);
        let first = self.optional("moe_layer_start_index").unwrap_or(1);
        let step = self.optional("moe_layer_interval").unwrap_or(1).max(1);
        // −1 stands for the last layer.
        let last = self.table.get("moe_layer_end_index").and_then(Value::as_i64).filter(|last| *last >= 0);
        let last = last.map_or(layers, |last| u32::try_from(last).unwrap_or(layers));
        let has: Vec<bool> =
            (0..layers).map(|layer| (first..=last).contains(&layer) && (layer + 1).is_multiple_of(step)).collect();
        let ffn = ffn?;
        let experts = Experts { shared_ffn: shared.saturating_mul(ffn), ..all_layers(ffn, [count?, active?], true) };
        self.pattern("moe_layer_start_index", &has).map(|pattern| experts.within(pattern))
    }

    /// K-EXAONE and AFMoE: DeepSeek-V3's router; experts behind the first layers, or in those of a list.
    fn exaone_experts(&mut self, name: &str, layers: u32) -> Option<Experts> {
        let [dense, factor] = match name {
            "afmoe" => ["num_dense_layers", "route_scale"],
            "hy_v3" => ["first_k_dense_replace", "router_scaling_factor"],
            _ => ["first_k_dense_replace", "routed_scaling_factor"],
        };
        let (count, active) = (self.experts_count(self.experts_key()), self.experts_count("num_experts_per_tok"));
        let ffn = self.size("moe_intermediate_size");
        let shared = self.optional("num_shared_experts").unwrap_or(1);
        let dense = self.optional(dense).unwrap_or(1);
        let has = self.sparse_layers(layers).unwrap_or_else(|| (0..layers).map(|layer| layer >= dense).collect());
        self.function(&["score_func", "scoring_func"], &["sigmoid"]);
        let normed = match name {
            "afmoe" => self.flag("route_norm", true),
            "hy_v3" => {
                self.is_always("route_norm");
                true
            }
            _ => self.flag("norm_topk_prob", true),
        };
        let usual = match name {
            "afmoe" => 1.0,
            "hy_v3" => 2.826,
            _ => 2.5,
        };
        let factor = self.positive(factor).unwrap_or(usual);
        let groups = ["n_group", "topk_group"].map(|key| self.optional(key).unwrap_or(1));
        let routing = Routing {
            scores: Scores::Sigmoid,
            normed,
            factor: Some(to_e12(factor)).filter(|factor| *factor != E12),
            groups: groups[0],
            active_groups: groups[1],
        };
        let ffn = ffn?;
        let shared_ffn = shared.saturating_mul(ffn);
        let experts = Experts { shared_ffn, routing, ..all_layers(ffn, [count?, active?], normed) };
        self.pattern("mlp_layer_types", &has).map(|pattern| experts.within(pattern))
    }

    /// The layers with experts that a list says; none where there is no list.
    pub(super) fn sparse_layers(&mut self, layers: u32) -> Option<Vec<bool>> {
        self.list_of_layers("mlp_layer_types", layers, &[("sparse", true), ("dense", false)])
    }

    /// The layers that a list numbers, from 0.
    pub(super) fn numbers_of_layers(&mut self, key: &'static str, layers: u32) -> Vec<u32> {
        let Some(value) = self.table.get(key) else { return Vec::new() };
        let number = |value: &Value| value.as_u64().and_then(|layer| u32::try_from(layer).ok());
        let list: Option<Vec<u32>> = value.as_array().and_then(|list| list.iter().map(number).collect());
        let list = list.filter(|list| list.iter().all(|layer| *layer < layers));
        if list.is_none() {
            let accepted = format!("a list of layers, each from 0 to {}", layers.saturating_sub(1));
            self.faults.push(Fault::new(self.table.path(key), "another list", accepted));
        }
        list.unwrap_or_default()
    }

    /// Hunyuan: shared experts as wide as one, of which a list may say each layer's number.
    fn hunyuan_experts(&mut self, name: &str, ffn: Option<u32>) -> Option<Experts> {
        let count = self.experts_count("num_experts");
        let active = self.same_in_all("moe_topk");
        if self.table.get("moe_topk").is_none() {
            let accepted = "a number, or a list with the same one for each layer";
            self.faults.push(Fault::new(self.table.path("moe_topk"), "nothing", accepted));
        }
        let shared = self.same_in_all("num_shared_expert").unwrap_or(0);
        if name == "hunyuan_v1_moe" && shared != 1 {
            let accepted = "1: the library has one shared expert, whatever this says";
            self.faults.push(Fault::new(self.table.path("num_shared_expert"), shared, accepted));
        }
        let own = self.same_in_all("moe_intermediate_size").or(ffn);
        if own != ffn {
            let accepted = "the width of intermediate_size: the library has no other";
            self.faults.push(Fault::new(self.table.path("moe_intermediate_size"), own.unwrap_or(0), accepted));
        }
        let ffn = ffn?;
        let experts = all_layers(ffn, [count?, active?], true);
        Some(Experts { shared_ffn: shared.saturating_mul(ffn), ..experts })
    }

    /// A number, or a list that has the same one for each layer.
    fn same_in_all(&mut self, key: &'static str) -> Option<u32> {
        let value = self.table.get(key)?;
        let Some(list) = value.as_array() else { return self.optional(key) };
        let first = list.first().filter(|first| list.iter().all(|other| other == *first));
        let number = first.and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        if number.is_none() {
            let accepted = "a number, or a list with the same one for each layer";
            self.faults.push(Fault::new(self.table.path(key), "another list", accepted));
        }
        number
    }

    /// Llama 4: experts in every n-th layer or those of a list, one shared expert as wide as one, and a router that
    /// weights what experts take in.
    fn llama_4_experts(&mut self, ffn: Option<u32>, layers: u32) -> Option<Experts> {
        let (count, active) = (self.experts_count("num_local_experts"), self.experts_count("num_experts_per_tok"));
        let step = self.optional("interleave_moe_layer_step").unwrap_or(1).max(1);
        let listed = self.numbers_of_layers("moe_layers", layers);
        let has: Vec<bool> = (0..layers)
            .map(|layer| match listed.is_empty() {
                true => (layer + 1).is_multiple_of(step),
                false => listed.contains(&layer),
            })
            .collect();
        let ffn = ffn?;
        let routing = Routing { scores: Scores::InputSigmoid, ..Routing::USUAL };
        let experts = Experts { shared_ffn: ffn, routing, ..all_layers(ffn, [count?, active?], false) };
        self.pattern("moe_layers", &has).map(|pattern| experts.within(pattern))
    }

    /// The routing of the family `name`. Where the file has no field, the library's default.
    fn routing(&mut self, name: &str) -> Routing {
        let (scores, normed, factor, groups) = match name {
            "mixtral" | "granitemoe" | "granitemoeshared" | "granitemoe_swa" => {
                return Routing { normed: true, ..Routing::USUAL };
            }
            "qwen2_moe" | "qwen3_moe" | "qwen3_next" | "qwen3_5_moe_text" | "mellum" => {
                let normed = self.flag("norm_topk_prob", !matches!(name, "qwen2_moe" | "qwen3_moe"));
                return Routing { normed, ..Routing::USUAL };
            }
            "mistral4" => return self.mistral_4_routing(),
            "deepseek_v2" | "deepseek_ocr2_text" => (Scores::Softmax, false, 1.0, [1, 1]),
            "deepseek_v3" | "deepseek_v32" => (Scores::Sigmoid, true, 2.5, [8, 4]),
            "glm4_moe" | "glm4v_moe_text" => (Scores::Sigmoid, true, 1.0, [1, 1]),
            "glm4_moe_lite" => (Scores::Sigmoid, true, 1.8, [1, 1]),
            "glm_moe_dsa" => (Scores::Sigmoid, true, 2.5, [1, 1]),
            _ => (Scores::Sigmoid, false, 1.0, [1, 1]),
        };
        let normed = match scores {
            Scores::Sigmoid => self.flag("norm_topk_prob", normed),
            Scores::Softmax | Scores::InputSigmoid | Scores::SparseMixer => {
                self.never("norm_topk_prob");
                false
            }
        };
        self.function(&["scoring_func"], &[scores.name()]);
        let factor = self.positive("routed_scaling_factor").unwrap_or(factor);
        let methods: &[&str] = match scores {
            Scores::Softmax | Scores::InputSigmoid | Scores::SparseMixer => &["greedy", "group_limited_greedy"],
            Scores::Sigmoid => &["noaux_tc"],
        };
        self.function(&["topk_method"], methods);
        let in_groups = scores == Scores::Sigmoid
            || self.table.get("topk_method").and_then(Value::as_str) == Some("group_limited_greedy");
        let read = ["n_group", "topk_group"].map(|key| self.optional(key).filter(|_| in_groups));
        Routing {
            scores,
            normed,
            factor: Some(to_e12(factor)).filter(|factor| *factor != E12),
            groups: read[0].unwrap_or(groups[0]),
            active_groups: read[1].unwrap_or(groups[1]),
        }
    }

    /// Mistral 4: softmax, and weights by the sum of the chosen. Its groups have the score of their best two experts,
    /// which is none of [`Scores::Softmax`].
    fn mistral_4_routing(&mut self) -> Routing {
        let normed = self.flag("norm_topk_prob", true);
        let factor = self.positive("routed_scaling_factor").map(to_e12);
        ["n_group", "topk_group"].into_iter().for_each(|key| self.must_be(key, 1.0));
        Routing { normed, factor: factor.filter(|factor| *factor != E12), ..Routing::USUAL }
    }

    /// Where a file has the number of experts: `transformers` 5 saves it under another name.
    pub(super) fn experts_key(&self) -> &'static str {
        let is_there = |key: &str| self.table.peek(key).is_some();
        if is_there("num_experts") || !is_there("num_local_experts") { "num_experts" } else { "num_local_experts" }
    }

    /// A number of experts.
    pub(super) fn experts_count(&mut self, key: &'static str) -> Option<u32> {
        self.table.needed_whole(key, 1..=u64::from(MAX_EXPERTS), self.faults).map(|count| count as u32)
    }
}

/// Experts in all layers, without shared ones.
pub(super) fn all_layers(ffn: u32, [count, active]: [u32; 2], normed: bool) -> Experts {
    let routing = Routing { normed, ..Routing::USUAL };
    Experts {
        count,
        active,
        ffn,
        shared_ffn: 0,
        dense_layers: 0,
        layers: None,
        biases: false,
        shared_gate: false,
        routing,
    }
}
