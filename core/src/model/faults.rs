//! What is wrong with the sizes of a model, each fault with its field and the nearest value that works.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;

use super::config::{MAX_EXPERT_GROUPS, MAX_EXPERTS, MAX_LAYERS, MAX_MULTI_TOKEN, MAX_SIZE, ModelConfig};
use super::variant::{
    Activation, Arrangement, E12, Experts, Family, Global, Latent, MAX_FACTOR, Norm, QkNorm, Recurrence, Routing,
    Scores, Variant,
};
use crate::base::fields::Fault;

/// What to do about a `hidden` size, called `name`, that `heads` do not divide: the nearest head dim, and the nearest
/// number of heads that divides it.
pub(crate) fn no_width(hidden: u32, name: &str, heads: u32) -> String {
    let width = ((hidden / heads.max(1)).saturating_add(1) / 2 * 2).max(2);
    let divides = |heads: &u32| hidden.is_multiple_of(*heads);
    let counts = 1..=hidden.min(heads.saturating_mul(2));
    let nearest = counts.filter(divides).min_by_key(|other| other.abs_diff(heads)).unwrap_or(1);
    format!(
        "a head dim such as {width}, because {name} ({hidden}) is not a multiple of {heads} heads; or {nearest} heads"
    )
}

impl ModelConfig {
    /// The faults of the sizes, each with its field below `path` and the nearest value that works.
    pub fn find_faults(&self, path: &str, faults: &mut Vec<Fault>) {
        let mut fault = |field: &str, found: &dyn Display, accepted: String| {
            let field = if path.is_empty() { field.into() } else { format!("{path}.{field}") };
            faults.push(Fault::new(field, found, accepted));
        };
        for (field, value, most) in [
            ("layers", self.layers, MAX_LAYERS),
            ("hidden", self.hidden, MAX_SIZE),
            ("heads", self.heads, MAX_SIZE),
            ("kv_heads", self.kv_heads, MAX_SIZE),
            ("head_dim", self.head_dim, MAX_SIZE),
            ("ffn", self.ffn, MAX_SIZE),
            ("vocab", self.vocab, MAX_SIZE),
            ("positions", self.positions, MAX_SIZE),
        ] {
            if value == 0 || value > most {
                fault(field, &value, format!("a whole number from 1 to {most}"));
            }
        }
        if self.kv_heads > 0 && self.heads > 0 && !self.heads.is_multiple_of(self.kv_heads) {
            let nearest = (1..=self.heads)
                .filter(|count| self.heads.is_multiple_of(*count))
                .min_by_key(|count| count.abs_diff(self.kv_heads))
                .unwrap_or(1);
            fault("kv_heads", &self.kv_heads, format!("a divisor of heads ({}), such as {nearest}", self.heads));
        }
        if u64::from(self.heads) * u64::from(self.head_dim) > u64::from(MAX_SIZE) {
            fault("head_dim", &self.head_dim, format!("at most {MAX_SIZE} for heads × head_dim"));
        }
        let turns = self.family == Family::Llama || self.variant.rotary.is_some();
        if turns {
            if !self.head_dim.is_multiple_of(2) {
                let nearest = self.head_dim + 1;
                fault(
                    "head_dim",
                    &self.head_dim,
                    format!("an even number, such as {nearest}: rotary positions rotate pairs"),
                );
            }
            if self.rope_base == 0 {
                fault("rope_base", &0, "a whole number from 1, such as 10000".into());
            }
            if self.variant.window.is_some_and(|window| window.rope_base == Some(0)) {
                fault("window.rope_base", &0, "a whole number from 1, such as 10000".into());
            }
        }
        self.find_variant_faults(&mut fault);
        if self.norm_eps_e12 == 0 || self.norm_eps_e12 > 1_000_000_000_000 {
            fault("norm_eps", &self.norm_eps_e12, "above 0 and at most 1, such as 1e-5".into());
        }
    }

    /// What is wrong with the variant.
    fn find_variant_faults(&self, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        self.find_family_faults(fault);
        self.find_rotary_faults(fault);
        self.find_factor_faults(fault);
        self.find_part_faults(fault);
        if let Some(vision) = self.variant.vision {
            vision.find_faults(fault);
        }
        if self.variant.multi_token > MAX_MULTI_TOKEN {
            fault("multi_token", &self.variant.multi_token, format!("a whole number from 0 to {MAX_MULTI_TOKEN}"));
        }
        if let Some(window) = self.variant.window {
            for (field, value, least, most) in [
                ("window.tokens", window.tokens, 1, MAX_SIZE),
                ("window.full_every", window.full_every, 0, self.layers),
            ] {
                if !(least..=most).contains(&value) {
                    fault(field, &value, format!("a whole number from {least} to {most}"));
                }
            }
            if let Some(pattern) = window.layers
                && window.full_every > 0
            {
                fault("window.full_every", &window.full_every, format!("0 with window.layers {}", pattern.text()));
            }
        }
        if let Some(global) = self.variant.global {
            self.find_global_faults(&global, fault);
        }
        if let Some(experts) = self.variant.experts {
            self.find_expert_faults(&experts, fault);
        }
        if let Some(latent) = self.variant.latent {
            self.find_latent_faults(&latent, fault);
        }
    }

    /// Parts of a layer that the family does not have.
    fn find_family_faults(&self, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        let variant = &self.variant;
        let (arrangement, no_bias) = (variant.arrangement, variant.no_bias);
        let Variant { window, rotary, vision, .. } = *variant;
        // Its usual activation is GELU in its exact form.
        let activation = match variant.activation {
            Activation::PlainGeluTanh => Activation::PlainGeluTanh,
            _ => Variant::USUAL.activation,
        };
        let of_gpt = Variant { window, rotary, vision, arrangement, no_bias, activation, ..Variant::USUAL };
        if self.family == Family::Gpt && *variant != of_gpt {
            let named = [
                ("qkv_bias", variant.qkv_bias != of_gpt.qkv_bias),
                ("qk_norm", variant.qk_norm != of_gpt.qk_norm),
                ("qk_norm_of", variant.qk_norm_of != of_gpt.qk_norm_of),
                ("post_norms", variant.post_norms != of_gpt.post_norms),
                ("no_pre_norms", variant.no_pre_norms != of_gpt.no_pre_norms),
                ("o_bias", variant.o_bias != of_gpt.o_bias),
                ("sinks", variant.sinks != of_gpt.sinks),
                ("attention_gate", variant.attention_gate != of_gpt.attention_gate),
                ("no_rope", variant.no_rope != of_gpt.no_rope),
                ("no_mixer", variant.no_mixer != of_gpt.no_mixer),
                ("no_mlp", variant.no_mlp != of_gpt.no_mlp),
                ("temperature", variant.temperature != of_gpt.temperature),
                ("indexer", variant.indexer != of_gpt.indexer),
                ("recurrence", variant.recurrence != of_gpt.recurrence),
                ("activation", variant.activation != of_gpt.activation),
                ("experts", variant.experts != of_gpt.experts),
                ("latent", variant.latent != of_gpt.latent),
                ("multi_token", variant.multi_token != of_gpt.multi_token),
                ("norm_offset", variant.norm_offset != of_gpt.norm_offset),
                ("factors", variant.factors != of_gpt.factors),
                ("caps", variant.caps != of_gpt.caps),
                ("norm", variant.norm != of_gpt.norm),
                ("embedding_norm", variant.embedding_norm != of_gpt.embedding_norm),
                ("mlp_bias", variant.mlp_bias != of_gpt.mlp_bias),
                ("head_bias", variant.head_bias != of_gpt.head_bias),
                ("qkv_clip", variant.qkv_clip != of_gpt.qkv_clip),
                ("value_norm", variant.value_norm != of_gpt.value_norm),
                ("layer_scale", variant.layer_scale != of_gpt.layer_scale),
                ("global", variant.global != of_gpt.global),
                ("mlp_beside_experts", variant.mlp_beside_experts != of_gpt.mlp_beside_experts),
            ];
            let named: Vec<&str> = named.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect();
            let accepted = format!("llama: only this family has {}", named.join(", "));
            fault("family", &self.family.name(), accepted);
        }
        if self.family == Family::Llama && no_bias {
            fault("no_bias", &no_bias, "nothing: only family gpt has this field".into());
        }
        if self.family == Family::Llama && arrangement != Arrangement::InTurn {
            self.find_arrangement_faults(fault);
        }
        self.find_norm_faults(fault);
    }

    /// Parts that do not go with attention and MLP beside each other.
    fn find_arrangement_faults(&self, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        let variant = &self.variant;
        let others = [
            ("latent", variant.latent.is_some()),
            ("recurrence", variant.recurrence.is_some()),
            ("post_norms", variant.post_norms),
            ("no_mixer", variant.no_mixer.is_some()),
            ("no_mlp", variant.no_mlp.is_some()),
            ("multi_token", variant.multi_token > 0),
        ];
        let others: Vec<&str> = others.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
        if !others.is_empty() {
            let accepted = format!("in-turn with {}", others.join(", "));
            fault("arrangement", &variant.arrangement.name(), accepted);
        }
    }

    /// Sizes of attention in layers without a window that are out of range.
    fn find_global_faults(&self, global: &Global, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        let Global { head_dim, kv_heads, rotary, .. } = *global;
        let most = MAX_SIZE / self.heads.max(1) / 2 * 2;
        if head_dim == 0 || head_dim > most || !head_dim.is_multiple_of(2) {
            fault(
                "global.head_dim",
                &head_dim,
                format!("an even number from 2 to {most}: rotary positions rotate pairs"),
            );
        }
        if kv_heads == 0 || !self.heads.is_multiple_of(kv_heads) {
            fault("global.kv_heads", &kv_heads, format!("a divisor of heads ({})", self.heads));
        }
        if let Some(columns) = rotary.filter(|columns| *columns == 0 || *columns > head_dim || columns % 2 == 1) {
            fault("global.rotary", &columns, format!("an even number from 2 to {head_dim} (global.head_dim)"));
        }
        let Variant { window, latent, recurrence, .. } = self.variant;
        for (field, is_so) in [
            ("without window", window.is_none()),
            ("with latent", latent.is_some()),
            ("with recurrence", recurrence.is_some()),
        ] {
            if is_so {
                fault("global.head_dim", &head_dim, format!("nothing {field}"));
            }
        }
    }

    /// Norms that do not go with another part.
    fn find_norm_faults(&self, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        let Variant { norm, norm_offset, multi_token, latent, .. } = self.variant;
        let beside = self.variant.mlp_beside_experts;
        if beside && (self.variant.experts.is_none() || !self.variant.post_norms || self.variant.no_pre_norms) {
            let accepted = "false without experts, or without norms before and behind the MLP (post_norms)";
            fault("mlp_beside_experts", &true, accepted.into());
        }
        if norm_offset && norm.weights() == 0 {
            fault("norm_offset", &true, format!("false with norm {}, which has no weights", norm.name()));
        }
        // Norms of latents and of MTP modules have one weight a column.
        for (field, has) in [("multi_token", multi_token > 0), ("latent", latent.is_some())] {
            if has && norm != Norm::Rms {
                fault("norm", &norm.name(), format!("{} with {field}", Norm::Rms.name()));
            }
        }
        if self.variant.mlp_bias && self.variant.experts.is_some() {
            fault("mlp_bias", &true, "false with experts, whose biases are experts.biases".into());
        }
        if self.variant.head_bias && multi_token > 0 {
            fault("head_bias", &true, "false with multi_token".into());
        }
    }

    /// Parts of a layer that need another part, or that do not go with one.
    fn find_part_faults(&self, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        let variant = &self.variant;
        if variant.qk_norm_of != QkNorm::Heads && !variant.qk_norm {
            fault("qk_norm_of", &variant.qk_norm_of.name(), "nothing without qk_norm".into());
        }
        if variant.no_pre_norms && !variant.post_norms {
            fault("no_pre_norms", &true, "false without post_norms: every layer has norms".into());
        }
        let beside_latent = [
            ("o_bias", variant.o_bias),
            ("sinks", variant.sinks),
            ("attention_gate", variant.attention_gate),
            ("recurrence", variant.recurrence.is_some()),
        ];
        for (field, _) in beside_latent.into_iter().filter(|(_, has)| *has && variant.latent.is_some()) {
            fault(field, &"it", "nothing together with latent attention (MLA)".into());
        }
        if let Some(temperature) = variant.temperature {
            if variant.no_rope.is_none() {
                fault("temperature.tokens", &temperature.tokens, "nothing without no_rope".into());
            }
            if temperature.tokens == 0 || temperature.tokens > MAX_SIZE {
                let accepted = format!("a whole number from 1 to {MAX_SIZE}");
                fault("temperature.tokens", &temperature.tokens, accepted);
            }
        }
        if let Some(indexer) = variant.indexer {
            if variant.latent.is_none_or(|latent| latent.query_rank == 0) {
                fault("indexer.heads", &indexer.heads, "nothing without latent attention with a query_rank".into());
            }
            let least = variant.latent.map_or(2, |latent| latent.rope_width);
            for (field, value, least) in [
                ("indexer.heads", indexer.heads, 1),
                ("indexer.head_dim", indexer.head_dim, least),
                ("indexer.tokens", indexer.tokens, 1),
            ] {
                if !(least..=MAX_SIZE).contains(&value) {
                    fault(field, &value, format!("a whole number from {least} to {MAX_SIZE}"));
                }
            }
            if u64::from(indexer.heads) * u64::from(indexer.head_dim) > u64::from(MAX_SIZE) {
                let accepted = format!("at most {MAX_SIZE} for heads × head_dim");
                fault("indexer.head_dim", &indexer.head_dim, accepted);
            }
        }
        if let Some(recurrence) = variant.recurrence {
            find_recurrence_faults(&recurrence, fault);
        }
        let without_gate = [Activation::Xielu, Activation::PlainGelu, Activation::PlainGeluTanh];
        if variant.experts.is_some() && without_gate.contains(&variant.activation) {
            let accepted = "another: of those without a gate, experts have squared-relu alone";
            fault("activation", &variant.activation.name(), accepted.into());
        }
        let activation = variant.activation.name();
        if let Some(experts) = variant.experts.filter(|_| !variant.activation.is_gated()) {
            if experts.biases {
                fault("experts.biases", &true, format!("false with activation {activation}"));
            }
            if experts.routing.scores == Scores::InputSigmoid {
                fault("experts.scores", &"input-sigmoid", format!("another with activation {activation}"));
            }
        }
        let is_empty = |layer: &u32| !self.has_mixer(*layer) && !self.has_mlp(*layer);
        if let Some(layer) = (0..self.layers.min(MAX_LAYERS)).find(is_empty) {
            fault("no_mlp", &format!("layer {layer}"), "layers that no_mixer does not have, too".into());
        }
        if let Some(pattern) = variant.no_mixer.or(variant.no_mlp).filter(|_| variant.multi_token > 0) {
            let accepted = format!("0 with layers of one part ({})", pattern.text());
            fault("multi_token", &variant.multi_token, accepted);
        }
    }

    fn find_rotary_faults(&self, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        let variant = &self.variant;
        if let Some(columns) = variant.rotary {
            let most = self.head_dim / 2 * 2;
            if columns == 0 || columns > most || !columns.is_multiple_of(2) || variant.latent.is_some() {
                let nearest = (columns.saturating_add(1) / 2 * 2).clamp(2, most.max(2));
                let accepted = match variant.latent {
                    Some(_) => "nothing: with MLA, latent.rope_width says it".into(),
                    None => format!("an even number from 2 to {most} (head_dim), such as {nearest}"),
                };
                fault("rotary", &columns, accepted);
            }
        }
    }

    /// Multipliers and soft-caps out of range.
    fn find_factor_faults(&self, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        let variant = &self.variant;
        let (factors, caps) = (variant.factors, variant.caps);
        for (field, value) in [
            ("factors.embedding", factors.embedding),
            ("factors.residual", factors.residual),
            ("factors.attention", factors.attention),
            ("factors.logits", factors.logits),
            ("caps.attention", caps.attention),
            ("caps.logits", caps.logits),
            ("qkv_clip", variant.qkv_clip),
            ("experts.factor", variant.experts.and_then(|experts| experts.routing.factor)),
        ] {
            if value.is_some_and(|value| value == 0 || value as f64 > MAX_FACTOR * E12 as f64) {
                let found = value.unwrap_or(0) as f64 / E12 as f64;
                fault(field, &found, format!("a number above 0, at most {MAX_FACTOR}, or nothing"));
            }
        }
    }

    fn find_expert_faults(&self, experts: &Experts, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        if experts.shared_gate && experts.shared_ffn == 0 {
            fault("experts.shared_gate", &true, "false: the model has no shared expert".into());
        }
        for (field, value, least, most) in [
            ("experts.count", experts.count, 1, MAX_EXPERTS),
            ("experts.active", experts.active, 1, experts.count.max(1)),
            ("experts.ffn", experts.ffn, 1, MAX_SIZE),
            ("experts.shared_ffn", experts.shared_ffn, 0, MAX_SIZE),
            ("experts.dense_layers", experts.dense_layers, 0, self.layers),
            ("experts.groups", experts.routing.groups, 1, MAX_EXPERT_GROUPS),
            ("experts.active_groups", experts.routing.active_groups, 1, experts.routing.groups.max(1)),
        ] {
            if !(least..=most).contains(&value) {
                fault(field, &value, format!("a whole number from {least} to {most}"));
            }
        }
        if let Some(pattern) = experts.layers
            && experts.dense_layers > 0
        {
            fault("experts.dense_layers", &experts.dense_layers, format!("0 with experts.layers {}", pattern.text()));
        }
        let Routing { groups, active_groups, .. } = experts.routing;
        if !experts.count.is_multiple_of(groups.max(1)) {
            fault("experts.groups", &groups, format!("a number that divides count ({})", experts.count));
        } else if experts.active > (experts.count / groups.max(1)).saturating_mul(active_groups) {
            let accepted = format!("more: these groups have fewer than active ({}) experts", experts.active);
            fault("experts.active_groups", &active_groups, accepted);
        }
    }

    fn find_latent_faults(&self, latent: &Latent, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        for (field, value, least, most) in [
            ("latent.query_rank", latent.query_rank, 0, MAX_SIZE),
            ("latent.key_value_rank", latent.key_value_rank, 1, MAX_SIZE),
            ("latent.rope_width", latent.rope_width, 2, self.head_dim.saturating_sub(1)),
            ("latent.value_width", latent.value_width, 1, MAX_SIZE),
        ] {
            if !(least..=most).contains(&value) {
                fault(field, &value, format!("a whole number from {least} to {most}"));
            }
        }
        if !latent.rope_width.is_multiple_of(2) {
            fault(
                "latent.rope_width",
                &latent.rope_width,
                format!("an even number, such as {}: rotary positions rotate pairs", latent.rope_width + 1),
            );
        }
        if u64::from(self.heads) * u64::from(latent.value_width) > u64::from(MAX_SIZE) {
            let accepted = format!("at most {MAX_SIZE} for heads × value_width");
            fault("latent.value_width", &latent.value_width, accepted);
        }
        if self.variant.qkv_bias || self.variant.qk_norm {
            fault(
                "latent.key_value_rank",
                &latent.key_value_rank,
                "no latent (MLA) together with qkv_bias or qk_norm".into(),
            );
        }
        if self.kv_heads != self.heads {
            fault(
                "kv_heads",
                &self.kv_heads,
                format!("heads ({}): with MLA every head has its own keys", self.heads),
            );
        }
    }
}

/// Sizes of a recurrence out of range.
fn find_recurrence_faults(of: &Recurrence, fault: &mut impl FnMut(&str, &dyn Display, String)) {
    for (field, value) in [
        ("recurrence.key_heads", of.key_heads),
        ("recurrence.key_dim", of.key_dim),
        ("recurrence.heads", of.heads),
        ("recurrence.head_dim", of.head_dim),
        ("recurrence.convolution", of.convolution),
    ] {
        if value == 0 || value > MAX_SIZE {
            fault(field, &value, format!("a whole number from 1 to {MAX_SIZE}"));
        }
    }
    for (field, heads, width) in
        [("recurrence.key_dim", of.key_heads, of.key_dim), ("recurrence.head_dim", of.heads, of.head_dim)]
    {
        if u64::from(heads) * u64::from(width) > u64::from(MAX_SIZE) {
            fault(field, &width, format!("at most {MAX_SIZE} for heads × width"));
        }
    }
    if of.key_heads > 0 && !of.heads.is_multiple_of(of.key_heads) {
        fault("recurrence.key_heads", &of.key_heads, format!("a divisor of heads ({})", of.heads));
    }
}
