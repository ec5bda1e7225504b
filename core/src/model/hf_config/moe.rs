//! Mixture of experts: which families have experts, those of Mixtral, Granite and Qwen, and the routing of all.

use alloc::format;
use alloc::vec::Vec;

use serde_json::Value;

use super::reader::Reader;
use crate::base::fields::Fault;
use crate::model::{E12, Experts, MAX_EXPERTS, Routing, Scores, to_e12};

impl Reader<'_, '_> {
    /// The experts of the family `name`, if it has any. None at all where a field is missing.
    pub(super) fn experts(&mut self, name: &str, ffn: Option<u32>, layers: Option<u32>) -> Option<Option<Experts>> {
        let experts = match name {
            "mixtral" | "granitemoe" => {
                let routing = self.routing(name);
                self.mixtral_experts(routing, ffn)
            }
            "qwen2_moe" | "qwen3_moe" => {
                let routing = self.routing(name);
                self.qwen_experts(routing, name == "qwen2_moe")
            }
            "deepseek_v2" | "deepseek_v3" | "glm4_moe" | "dots1" => {
                let routing = self.routing(name);
                self.deepseek_experts(routing, layers)
            }
            _ => return Some(None),
        };
        experts.map(Some)
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
            shared_gate: false,
            routing,
        })
    }

    /// Experts in every layer, with their own width; in Qwen 2 also a shared expert with a gate.
    fn qwen_experts(&mut self, routing: Routing, shared_gate: bool) -> Option<Experts> {
        let (count, active) = (self.experts_count("num_experts"), self.experts_count("num_experts_per_tok"));
        let ffn = self.size("moe_intermediate_size");
        self.must_be_one("decoder_sparse_step");
        let dense = self.table.get("mlp_only_layers").and_then(Value::as_array).map_or(0, Vec::len);
        if dense > 0 {
            let found = format!("{dense} layers");
            self.faults.push(Fault::new(self.table.path("mlp_only_layers"), found, "an empty list"));
        }
        let shared = if shared_gate { self.size("shared_expert_intermediate_size") } else { Some(0) };
        Some(Experts {
            count: count?,
            active: active?,
            ffn: ffn?,
            shared_ffn: shared?,
            dense_layers: 0,
            layers: None,
            shared_gate,
            routing,
        })
    }

    /// The routing of the family `name`. Where the file has no field, the library's default.
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
        let methods: &[&str] = match scores {
            Scores::Softmax => &["greedy", "group_limited_greedy"],
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

    /// A number of experts.
    pub(super) fn experts_count(&mut self, key: &'static str) -> Option<u32> {
        self.table.needed_whole(key, 1..=u64::from(MAX_EXPERTS), self.faults).map(|count| count as u32)
    }

    /// Refuses a period of layers with experts other than 1.
    pub(super) fn must_be_one(&mut self, key: &'static str) {
        self.table.whole(key, 1..=1, self.faults);
    }
}
