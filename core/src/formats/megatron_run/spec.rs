//! Arguments of Megatron-LM that decide bytes and operations, as a spec.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::source::argument;
use super::{Arguments, MegatronRun, first_word};
use crate::base::fields::Fault;
use crate::model::{LayerPattern, MAX_LAYERS, MAX_SIZE};
use crate::notation::megatron_layout::{self, Part};

/// Makes a spec of a run.
pub(super) struct Reader<'r> {
    pub run: &'r MegatronRun,
    pub faults: Vec<Fault>,
    pub notes: Vec<String>,
    pub heard: Arguments,
}

impl Reader<'_> {
    fn said(&self, name: &str) -> Option<&str> {
        self.run
            .arguments
            .get(name)
            .map(String::as_str)
            .filter(|said| !matches!(*said, "None" | "null"))
            // Its value is asked for already.
            .filter(|_| !self.run.asked.contains(name))
    }

    /// A switch: on where a command line names it, or as a log says.
    fn is_on(&self, name: &str) -> bool {
        matches!(self.said(name), Some("" | "True" | "true" | "1"))
    }

    /// A switch that a log says and a command line may turn off.
    fn is_on_unless(&self, name: &str, off: &str) -> bool {
        match self.said(name) {
            Some(said) => !matches!(said, "False" | "false" | "0"),
            None => self.said(off).is_none(),
        }
    }

    /// A whole number, where it is said; a fault where it is something else.
    fn whole(&mut self, name: &str) -> Option<u64> {
        let said = first_word(self.said(name)?).to_owned();
        let read = said.parse::<u64>().ok();
        if read.is_none() {
            self.faults.push(Fault::new(argument(name), format!("\"{said}\""), "a whole number"));
        }
        read
    }

    fn needed(&mut self, name: &str, most: u32) -> Option<u64> {
        if self.said(name).is_none() && !self.run.asked.contains(name) {
            self.faults.push(Fault::new(argument(name), "nothing", "a whole number"));
        }
        let read = self.whole(name)?;
        if !(1..=most.into()).contains(&read) {
            self.faults.push(Fault::new(argument(name), read, format!("a whole number from 1 to {most}")));
            return None;
        }
        Some(read)
    }

    fn float(&mut self, name: &str) -> Option<f64> {
        let said = self.said(name)?.to_owned();
        let read = said.parse::<f64>().ok();
        if read.is_none() {
            self.faults.push(Fault::new(argument(name), format!("\"{said}\""), "a number"));
        }
        read
    }

    /// By the first name that is said: relatives have their own.
    fn either(&mut self, names: [&str; 2]) -> Option<u64> {
        self.whole(names[0]).or_else(|| self.whole(names[1]))
    }

    /// Microbatches that go through a chunk together.
    fn group(&mut self) -> Option<u64> {
        self.either(["microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage"])
    }

    /// `--window-size 127,0`: so many tokens before each one, and it itself.
    fn window(&mut self, layers: u64) -> Option<Value> {
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
    fn pattern(&mut self, name: &str, has: Option<Vec<bool>>) -> Option<String> {
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
    fn newer_parts(&mut self, model: &mut Value, layers: u64, is_llama: bool) {
        let latent = self.is_on("multi_latent_attention");
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

    fn refuse(&mut self, name: &str, why: &str) {
        self.faults.push(Fault::new(argument(name), "it", format!("nothing: {why}")));
    }

    /// What Megatron-LM runs, or a relative of it.
    fn schedule(&mut self, chunks: u64) -> &'static str {
        let setup = self.said("zero_bubble_v_schedule_mem_setup").unwrap_or("zb").to_owned();
        if self.is_on("zero_bubble_v_schedule") {
            return match setup.as_str() {
                "min" => "v-min",
                "half" => "v-half",
                _ => "zb-v",
            };
        }
        match self.said("schedules_method").map(String::from) {
            Some(method) if method == "dualpipev" => return "dualpipe-v",
            Some(method) => self.tell("schedules_method", &format!("planned without {method}")),
            None => {}
        }
        match chunks {
            1 if self.is_on("enable_zero_bubble") || self.is_on("enable_zb_runtime") => "zb-h1",
            1 => "1f1b",
            _ => "interleaved-1f1b",
        }
    }

    /// Tells what Megatron-LM does not run: the rules of `validate_args` and of its interleaved schedule.
    fn refusals(&mut self, layers: u64, parallel: &Value, chunks: u64, all: u64) {
        let of = |name: &str| parallel.get(name).and_then(Value::as_u64).unwrap_or(1);
        let [pipeline, tensor, context, data] = ["pipeline", "tensor", "context", "data"].map(of);
        let size = self.whole("micro_batch_size").unwrap_or(1);
        let microbatches = all / size.saturating_mul(data).max(1);
        let group = self.group().unwrap_or(pipeline).max(1);
        let mut refusals = Vec::new();
        let is_interleaved =
            chunks > 1 && !self.is_on("zero_bubble_v_schedule") && self.said("schedules_method").is_none();
        if is_interleaved && pipeline > 1 {
            let rest = microbatches % group;
            if group < pipeline || group > microbatches || (1..pipeline).contains(&rest) {
                refusals.push(format!(
                    "with virtual stages it wants groups of {pipeline} or more microbatches, and at the end none or {pipeline} \
                     or more; there are {microbatches} in groups of {group}"
                ));
            }
        }
        let heads = self.said("num_attention_heads").and_then(|heads| heads.parse::<u64>().ok()).unwrap_or(tensor);
        let experts = self.said("num_experts").and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
        let sequence = self.said("seq_length").and_then(|length| length.parse::<u64>().ok()).unwrap_or(0);
        let divides = [
            ("--num-attention-heads", heads, tensor, "tensor parallel"),
            ("--num-experts", experts, of("expert"), "expert parallel"),
            (
                "--seq-length",
                sequence,
                if context > 1 { context.saturating_mul(2) } else { 1 },
                "twice context parallel",
            ),
        ];
        for (name, number, by, what) in divides {
            if !number.is_multiple_of(by.max(1)) {
                refusals.push(format!("{name} {number} is no multiple of {by}, {what}"));
            }
        }
        let is_dealt = [
            "pipeline_model_parallel_layout",
            "num_layer_list",
            "decoder_first_pipeline_num_layers",
            "decoder_last_pipeline_num_layers",
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
            "allow_padding_num_layers",
        ]
        .iter()
        .any(|name| self.said(name).is_some_and(|said| said != "False"));
        if !is_dealt && !layers.is_multiple_of(pipeline.saturating_mul(chunks).max(1)) {
            refusals
                .push(format!("--num-layers {layers} is no multiple of {} stages", pipeline.saturating_mul(chunks)));
        }
        for refusal in refusals {
            self.note(format!("Megatron-LM refuses this run: {refusal}"));
        }
        if self.is_on("overlap_moe_expert_parallel_comm") {
            self.tell("overlap_moe_expert_parallel_comm", "planned without: no two ops of this schedule run as one");
        }
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The whole spec; none where a fault was found in what it cannot do without.
    pub fn spec(&mut self, device: &str, devices: Option<u64>) -> Option<Value> {
        let layers = self.needed("num_layers", MAX_LAYERS);
        let tensor = self.whole("tensor_model_parallel_size").unwrap_or(1);
        let model = self.model(layers, tensor);
        let pipeline = self.whole("pipeline_model_parallel_size").unwrap_or(1);
        let context = self.whole("context_parallel_size").unwrap_or(1);
        let sequence_name = if self.said("seq_length").is_none() { "encoder_seq_length" } else { "seq_length" };
        let sequence = match self.said(sequence_name) {
            Some(_) => self.needed(sequence_name, MAX_SIZE),
            None => self.needed("seq_length", MAX_SIZE),
        };
        let (parallel, chunks) = self.parallel([pipeline, tensor, context], devices, layers);
        let training = self.training(sequence, parallel.get("data").and_then(Value::as_u64));
        let schedule = self.schedule(chunks);
        if let (Some(layers), Some(all)) = (layers, training.get("global_batch_size").and_then(Value::as_u64)) {
            self.refusals(layers, &parallel, chunks, all);
        }
        layers?;
        Some(json!({
            "schedule": schedule, "model": model?, "cluster": { "device": device }, "parallel": parallel,
            "training": training,
        }))
    }

    fn model(&mut self, layers: Option<u64>, tensor: u64) -> Option<Value> {
        let [hidden, heads] = ["hidden_size", "num_attention_heads"].map(|name| self.needed(name, MAX_SIZE));
        let (layers, hidden, heads) = (layers?, hidden?, heads?);
        let quick = self.is_on("quick_geglu");
        let has_bias = self.is_on_unless("add_bias_linear", "disable_bias_linear");
        let has_experts =
            self.said("num_experts").is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 1));
        let is_rms = self.said("normalization") == Some("RMSNorm");
        // Two matrices, in layers that are else like those with a gate.
        let squared = self.is_on("squared_relu") && is_rms && !has_bias && !has_experts;
        if self.is_on("squared_relu") && !squared {
            self.tell("squared_relu", "planned as GELU, which has the same matrices");
        }
        let gated = self.is_on("swiglu") || quick || squared;
        let usual_ffn = if gated && !squared { hidden * 4 * 2 / 3 / 64 * 64 } else { 4 * hidden };
        let ffn = self.whole("ffn_hidden_size").unwrap_or(usual_ffn);
        let groups = if self.is_on("group_query_attention") { self.whole("num_query_groups") } else { None };
        let family = if gated { "llama" } else { "gpt" };
        let mut model = json!({
            "family": family, "layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn,
            "kv_heads": groups.unwrap_or(heads),
            "vocab": self.vocabulary(tensor)?,
            "tied": !self.is_on("untie_embeddings_and_output_weights"),
        });
        for (name, field) in
            [("kv_channels", "head_dim"), ("max_position_embeddings", "positions"), ("rotary_base", "rope_base")]
        {
            if let Some(number) = self.whole(name) {
                model[field] = json!(number);
            }
        }
        self.activation(&mut model, quick, squared);
        if let Some(eps) = self.float("norm_epsilon").or_else(|| self.float("layernorm_epsilon")) {
            model["norm_eps"] = json!(eps);
        }
        let rotary =
            self.said("position_embedding_type").is_some_and(|kind| kind.starts_with("rope") || kind == "yarn")
                || self.is_on("use_rotary_position_embeddings");
        let head_dim = model["head_dim"].as_u64().unwrap_or(hidden / heads);
        if gated {
            if !rotary {
                self.note("planned with rotary positions, as gated layers have them");
            }
        } else if rotary {
            let share = self.float("rotary_percent").unwrap_or(1.0);
            model["rotary"] = json!((head_dim as f64 * share) as u64);
        }
        let norm = self.said("normalization").unwrap_or("LayerNorm").to_owned();
        if (norm == "RMSNorm") != gated {
            let planned = if gated { "RMSNorm" } else { "LayerNorm" };
            self.note(format!("--normalization {norm}: planned as {planned}, as such layers usually have it"));
        }
        match (gated, has_bias) {
            (true, true) if has_experts && !self.is_on("multi_latent_attention") => {
                model["qkv_bias"] = json!(true);
                model["o_bias"] = json!(true);
            }
            (true, true) => self.note("planned without linear bias: gated layers have none here"),
            (false, false) => model["no_bias"] = json!(true),
            _ => {}
        }
        for (name, field) in [("add_qkv_bias", "qkv_bias"), ("qk_layernorm", "qk_norm")] {
            // Of latent attention the norms belong to the latents.
            if self.is_on(name) && !self.is_on("multi_latent_attention") {
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
        if self.is_on("layernorm_zero_centered_gamma") || self.is_on("apply_layernorm_1p") {
            match gated {
                true => model["norm_offset"] = json!(true),
                false => self.tell("apply_layernorm_1p", "planned with norms that multiply by their weight alone"),
            }
        }
        Some(model)
    }

    /// The gate of the MLP, where it is not SwiGLU.
    fn activation(&mut self, model: &mut Value, quick: bool, squared: bool) {
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

    fn latent(&mut self, model: &mut Value, heads: u64) {
        if !self.is_on("multi_latent_attention") {
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
    fn vocabulary(&mut self, tensor: u64) -> Option<u64> {
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

    fn experts(&mut self, layers: u64, ffn: u64) -> Option<Value> {
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

    /// With the chunks of each rank.
    fn parallel(&mut self, degrees: [u64; 3], devices: Option<u64>, layers: Option<u64>) -> (Value, u64) {
        let [pipeline, tensor, context] = degrees.map(|degree| degree.max(1));
        let ranks = pipeline.saturating_mul(tensor).saturating_mul(context);
        let data = match (self.whole("data_parallel_size"), devices) {
            (Some(data), _) => data,
            (None, Some(devices)) if devices.is_multiple_of(ranks) => devices / ranks,
            (None, Some(devices)) => {
                let accepted = format!("a multiple of {ranks}, which are pipeline, tensor and context parallel");
                self.faults.push(Fault::new("devices", devices, accepted));
                1
            }
            (None, None) => {
                let accepted = "the number of devices: neither the log's world size nor the launcher's \
                                arguments give it";
                self.faults.push(Fault::new("devices", "nothing", accepted));
                1
            }
        };
        let mut parallel = json!({ "pipeline": pipeline, "tensor": tensor, "data": data });
        if self.is_on("sequence_parallel") && tensor > 1 {
            parallel["sequence_parallel"] = json!(true);
        }
        if context > 1 {
            parallel["context"] = json!(context);
        }
        let sharded =
            self.is_on("use_megatron_fsdp") || self.is_on("use_torch_fsdp2") || self.is_on("use_custom_fsdp");
        let zero = match self.said("data_parallel_sharding_strategy") {
            _ if !sharded => u32::from(self.is_on("use_distributed_optimizer")),
            Some("no_shard") => 0,
            Some("optim") => 1,
            Some("optim_grads") => 2,
            _ => 3,
        };
        if data > 1 && zero > 0 {
            parallel["zero"] = json!(zero);
            let groups = self.whole("num_distributed_optimizer_instances").filter(|groups| *groups > 1);
            let shard = groups.map(|groups| data * context / groups);
            if let Some(shard) = shard.filter(|shard| *shard > 1) {
                parallel["shard"] = json!(shard);
            }
        }
        let expert = self.whole("expert_model_parallel_size").unwrap_or(1);
        if expert > 1 {
            parallel["expert"] = json!(expert);
        }
        match self.whole("expert_tensor_parallel_size").filter(|of_experts| *of_experts != tensor) {
            Some(1) if expert > 1 => parallel["whole_experts"] = json!(true),
            Some(_) if self.whole("num_experts").is_none_or(|count| count < 2) => {}
            Some(of_experts) => {
                let accepted = format!("{tensor}, as tensor parallel; or 1 with expert parallel");
                self.faults.push(Fault::new("--expert-tensor-parallel-size", of_experts, accepted));
            }
            None => {}
        }
        if self.is_on("moe_enable_deepep")
            || self.said("moe_token_dispatcher_type") == Some("flex")
                && self.said("moe_flex_dispatcher_backend").unwrap_or("deepep") != "hybridep"
        {
            parallel["dispatch"] = json!("once-per-node");
        }
        let chunks = self.stages(&mut parallel, pipeline, layers);
        if chunks > 1 {
            parallel["chunks"] = json!(chunks);
            let group = self.group();
            if let Some(group) = group.filter(|group| *group != pipeline) {
                let how = format!("planned in groups of {pipeline}, not {group}");
                self.tell("microbatch_group_size_per_virtual_pipeline_stage", &how);
            }
        }
        (parallel, chunks)
    }

    /// Sets the layers of each stage. Returns the chunks of a rank.
    fn stages(&mut self, parallel: &mut Value, pipeline: u64, layers: Option<u64>) -> u64 {
        let layout =
            self.said("pipeline_model_parallel_layout").filter(|layout| layout.contains('|')).map(String::from);
        if let Some(layout) = layout {
            let layout = layout.replace('\\', "");
            let Ok(stages) = megatron_layout::read(layout.trim_matches(['"', '\''])) else {
                self.faults.push(Fault::new(
                    argument("pipeline_model_parallel_layout"),
                    format!("\"{layout}\""),
                    "a layout such as Et*3|t*4|t*3L",
                ));
                return 1;
            };
            let of = |stage: &[Part]| stage.iter().filter(|part| **part == Part::Layer).count() as u64;
            let counts: Vec<u64> = stages.iter().map(|stage| of(stage)).collect();
            let all: u64 = counts.iter().sum();
            if let Some(layers) = layers.filter(|layers| *layers != all) {
                let accepted = format!("a layout of {layers} `t`, as --num-layers says");
                self.faults.push(Fault::new(
                    argument("pipeline_model_parallel_layout"),
                    format!("{all} `t`"),
                    accepted,
                ));
            }
            if !(stages.len() as u64).is_multiple_of(pipeline) {
                let accepted = format!("a multiple of {pipeline} stages, as pipeline parallel says");
                let found = format!("{} stages", stages.len());
                self.faults.push(Fault::new(argument("pipeline_model_parallel_layout"), found, accepted));
            }
            let modules = |stage: &Vec<Part>| stage.contains(&Part::MultiToken);
            if stages.split_last().is_some_and(|(_, others)| others.iter().any(modules)) {
                self.tell(
                    "mtp_num_layers",
                    "planned with the MTP modules beside the output layer, not on stages of their own",
                );
            }
            parallel["partition"] = assigned(&counts);
            return stages.len() as u64 / pipeline;
        }
        if let Some(list) = self.said("num_layer_list").map(String::from) {
            let counts: Option<Vec<u64>> = list.split([',', ' ']).map(|count| count.trim().parse().ok()).collect();
            let Some(counts) = counts else {
                self.faults.push(Fault::new("--num-layer-list", format!("\"{list}\""), "numbers such as 7,8,8,7"));
                return 1;
            };
            parallel["partition"] = assigned(&counts);
            return (counts.len() as u64 / pipeline).max(1);
        }
        let Some(layers) = layers else { return 1 };
        let chunks = self.chunks(pipeline, layers);
        let stages = pipeline.saturating_mul(chunks);
        let [first, last] =
            ["decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"].map(|name| self.whole(name));
        let ends =
            [self.is_on("account_for_embedding_in_pipeline_split"), self.is_on("account_for_loss_in_pipeline_split")];
        if let Some(counts) = dealt(layers, stages, chunks, [first, last], ends) {
            parallel["partition"] = if ends == [true; 2] { json!("layers-and-ends") } else { assigned(&counts) };
        } else {
            self.note(format!("{layers} layers are assigned to {stages} stages as evenly as possible"));
            parallel["partition"] = json!("layers");
        }
        chunks
    }

    /// The virtual stages of a rank.
    fn chunks(&mut self, pipeline: u64, layers: u64) -> u64 {
        const PER_STAGE: &str = "num_layers_per_virtual_pipeline_stage";
        if self.is_on("zero_bubble_v_schedule") || self.said("schedules_method") == Some("dualpipev") {
            return 2;
        }
        let named = ["virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"];
        if let Some(chunks) = self.either(named) {
            return chunks.max(1);
        }
        let Some(of_stage) = self.whole(PER_STAGE) else { return 1 };
        let of_rank = layers / pipeline;
        if of_stage == 0 || !layers.is_multiple_of(pipeline) || !of_rank.is_multiple_of(of_stage) {
            let accepted = format!("a number that divides the layers of a rank, of which {pipeline} have {layers}");
            self.faults.push(Fault::new(argument(PER_STAGE), of_stage, accepted));
            return 1;
        }
        of_rank / of_stage
    }

    fn training(&mut self, sequence: Option<u64>, data: Option<u64>) -> Value {
        let size = self.whole("micro_batch_size").unwrap_or(1);
        let all = self.whole("global_batch_size").or_else(|| size.checked_mul(data?)).unwrap_or(size);
        let mut training = json!({ "global_batch_size": all, "microbatch_size": size });
        let mut say = |key: &str, value: Value| training[key] = value;
        if let Some(sequence) = sequence {
            say("sequence", json!(sequence));
            let iterations = self.whole("train_iters").and_then(|steps| steps.checked_mul(all));
            let samples = self.whole("train_samples").or(iterations);
            if let Some(tokens) =
                samples.and_then(|samples| samples.checked_mul(sequence)).filter(|tokens| *tokens > 0)
            {
                say("tokens", json!(tokens));
            }
        }
        if let Some(other) = self.said("optimizer").filter(|name| *name != "adam").map(String::from) {
            let how = format!("planned with Adam's two moments of each weight, not with {other}");
            self.tell("optimizer", &how);
        }
        let half = self.is_on("bf16") || self.is_on("fp16");
        if self.is_on("fp16") {
            self.note("--fp16: planned as bf16, which takes as many bytes");
        }
        say("dtype", json!(if half { "bf16" } else { "f32" }));
        if self.said("fp8").or(self.said("fp8_format")).is_some_and(|format| format != "False") {
            say("matmul_dtype", json!("fp8"));
        }
        // With bf16 weights, gradients are summed in f32 unless told otherwise.
        if half && (self.is_on("grad_reduce_in_bf16") || self.said("main_grads_dtype") == Some("bf16")) {
            say("gradients_dtype", json!("bf16"));
        }
        if half
            && self.said("exp_avg_dtype").is_some_and(|dtype| dtype.ends_with("bf16") || dtype.ends_with("bfloat16"))
        {
            say("moments_dtype", json!("bf16"));
        }
        let backend = self.said("attention_backend").unwrap_or_default();
        let is_local = self.said("transformer_impl") == Some("local") && !self.is_on("use_flash_attn");
        if backend.contains("unfused") || backend.contains("local") || is_local {
            say("attention", json!("materialised"));
        }
        // The default of Megatron-LM.
        let dropout = |reader: &mut Self, name| reader.float(name).unwrap_or(0.1) > 0.0;
        if dropout(self, "hidden_dropout") || dropout(self, "attention_dropout") {
            say("dropout", json!(true));
        }
        if !self.is_on("cross_entropy_loss_fusion") && !self.is_on("fp16_lm_cross_entropy") {
            say("f32_logits", json!(true));
        }
        if self.is_on("optimizer_cpu_offload") {
            say("offload_optimizer", json!(true));
        }
        for (key, value) in self.recompute() {
            training[key] = value;
        }
        training
    }

    fn recompute(&mut self) -> Map<String, Value> {
        let mut said = Map::new();
        let mut say = |key: &str, value: Value| said.insert(key.to_owned(), value);
        let granularity = match self.said("recompute_granularity") {
            Some(granularity) => granularity.to_owned(),
            None if self.is_on("recompute_activations") || self.is_on("moe_layer_recompute") => {
                "selective".to_owned()
            }
            None => return said,
        };
        let layers = self.whole("recompute_num_layers");
        if granularity == "full" {
            say("recompute", json!("full"));
            match (self.said("recompute_method"), layers) {
                (Some("block"), Some(layers)) => say("recompute_first", json!(layers)),
                (_, Some(layers)) if layers > 1 => say("recompute_group", json!(layers)),
                _ => None,
            };
            return said;
        }
        let usual = if self.is_on("moe_layer_recompute") { "core_attn moe" } else { "core_attn" };
        let modules = self.said("recompute_modules").unwrap_or(usual).to_owned();
        let modules: Vec<&str> =
            modules.split([' ', ',', '[', ']', '\'', '"']).filter(|module| !module.is_empty()).collect();
        let has = |module: &str| modules.contains(&module);
        let recompute = match () {
            () if has("mlp") || has("moe") => "feed-forward",
            () if has("mla_up_proj") => "latents",
            () if has("layernorm") || has("moe_act") => "cheap",
            () => "selective",
        };
        say("recompute", json!(recompute));
        // Each choice is all of those before it, too.
        let goes_with = match recompute {
            "feed-forward" | "latents" if self.is_on("multi_latent_attention") => &["mla_up_proj", "layernorm"][..],
            "feed-forward" => &["layernorm"],
            "cheap" => &["layernorm", "moe_act"],
            _ => &[],
        };
        if goes_with.iter().any(|module| !has(module)) {
            self.note(format!(
                "--recompute-modules {}: planned as `{recompute}`, with which {} are computed again, too",
                modules.join(" "),
                goes_with.join(" and ")
            ));
        }
        said
    }
}

/// Layers of each stage: as a rule where they are even, which other schedules can follow.
fn assigned(counts: &[u64]) -> Value {
    match counts.windows(2).all(|pair| pair[0] == pair[1]) {
        true => json!("layers"),
        false => json!(counts),
    }
}

/// What a list says of each layer, as Python has it.
fn layers_of(list: &str, layers: u64) -> Option<Vec<bool>> {
    if list.trim().parse::<u64>().is_ok() { None } else { layers_of_experts(list, layers) }
}

/// Which layers have experts: every how many layers one, or a list as Python has it, such as `([0]*3+[1]*58)`.
pub(super) fn layers_of_experts(frequency: &str, layers: u64) -> Option<Vec<bool>> {
    let frequency: String = frequency.chars().filter(|letter| !matches!(letter, ' ' | '\'' | '"')).collect();
    if let Ok(every) = frequency.parse::<u64>() {
        return (every > 0).then(|| (0..layers).map(|layer| layer.is_multiple_of(every)).collect());
    }
    let mut reader = PythonList { letters: frequency.chars().collect(), at: 0, most: layers as usize };
    let said = reader.sum(0)?;
    (reader.at == reader.letters.len()).then_some(said).filter(|said| said.len() as u64 == layers)
}

/// Sums and multiples of lists of 0 and 1, `([0]*3+[1])*2`.
struct PythonList {
    letters: Vec<char>,
    at: usize,
    most: usize,
}

impl PythonList {
    fn eat(&mut self, letter: char) -> bool {
        let is_there = self.letters.get(self.at) == Some(&letter);
        self.at += usize::from(is_there);
        is_there
    }

    fn sum(&mut self, depth: usize) -> Option<Vec<bool>> {
        let mut all = self.multiple(depth)?;
        while self.eat('+') {
            all.extend(self.multiple(depth)?);
        }
        (all.len() <= self.most).then_some(all)
    }

    fn multiple(&mut self, depth: usize) -> Option<Vec<bool>> {
        let mut list = if self.eat('(') && depth < 16 {
            let inner = self.sum(depth + 1)?;
            self.eat(')').then_some(inner)?
        } else {
            self.items()?
        };
        while self.eat('*') {
            let digits: String =
                self.letters.iter().skip(self.at).take_while(|letter| letter.is_ascii_digit()).collect();
            self.at += digits.len();
            let times: usize = digits.parse().ok()?;
            if list.len().saturating_mul(times) > self.most {
                return None;
            }
            list = list.repeat(times);
        }
        Some(list)
    }

    fn items(&mut self) -> Option<Vec<bool>> {
        let mut items = Vec::new();
        if !self.eat('[') {
            return None;
        }
        loop {
            let is_one = self.eat('1');
            if !is_one && !self.eat('0') {
                return None;
            }
            items.push(is_one);
            if self.eat(']') {
                return Some(items);
            }
            if !self.eat(',') {
                return None;
            }
        }
    }
}

/// The layers of each stage as Megatron-LM assigns them: the same number to each, except for the first and the last
/// rank where arguments say so, or where embedding or loss count as a layer. None where they do not divide.
pub(super) fn dealt(
    layers: u64,
    stages: u64,
    chunks: u64,
    [first, last]: [Option<u64>; 2],
    ends: [bool; 2],
) -> Option<Vec<u64>> {
    if stages == 0 || stages > layers.max(1) {
        return None;
    }
    let mut counts = vec![0; stages as usize];
    let (of_first, of_last) = (first.map(|of| of / chunks), last.map(|of| of / chunks));
    if of_first.is_some() || of_last.is_some() {
        let ranks = stages / chunks;
        let between = ranks.checked_sub(u64::from(first.is_some()) + u64::from(last.is_some()))?;
        let left = layers.checked_sub(first.unwrap_or(0))?.checked_sub(last.unwrap_or(0))?;
        let each = if between == 0 { 0 } else { left / (between * chunks) };
        for (stage, count) in counts.iter_mut().enumerate() {
            *count = match stage as u64 % ranks {
                0 if of_first.is_some() => of_first?,
                rank if rank + 1 == ranks && of_last.is_some() => of_last?,
                _ => each,
            };
        }
    } else {
        let [embedding, loss] = ends.map(u64::from);
        counts.fill((layers + embedding + loss) / stages);
        *counts.first_mut()? = counts.first()?.checked_sub(embedding)?;
        let last = counts.last_mut()?;
        *last = last.checked_sub(loss)?;
    }
    (counts.iter().sum::<u64>() == layers).then_some(counts)
}
