//! Batch, number formats, optimizer and recomputation, as a spec says them.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::source::argument;
use super::spec::Reader;
use crate::base::fields::Fault;

impl Reader<'_> {
    /// The batch with which `--step-batch-size-schedule` begins: `0:384 200B:768`.
    fn first_batch(&mut self) -> Option<u64> {
        let steps = self.said("step_batch_size_schedule")?.to_owned();
        let first = steps.split_whitespace().next().and_then(|step| step.split_once(':')?.1.parse().ok());
        if first.is_none() {
            let accepted = "steps of THRESHOLD:BATCH with blanks between, such as \"0:384 200B:768\"";
            self.faults.push(Fault::new(argument("step_batch_size_schedule"), steps, accepted));
        }
        first
    }

    /// Tokens on the fullest device over the average, in thousandths, of routers that are balanced by a loss alone: a quarter
    /// more for devices with one expert, and less the more experts each has, since these even out. What Megatron-LM's own
    /// records of Mixtral 8x7B and 8x22B take beside what their products do; to no other runs was it fitted.
    pub(super) fn expert_imbalance(&mut self) -> Option<u64> {
        let (experts, ways) = (self.whole("num_experts")?, self.whole("expert_model_parallel_size")?);
        let balanced = self.is_on("moe_router_force_load_balancing") || self.is_on("moe_router_enable_expert_bias");
        if ways < 2 || experts < ways || balanced {
            return None;
        }
        // A quarter over the root of the experts of a device, in thousandths.
        let uneven = 1000 + (62_500 * ways / experts).isqrt();
        self.note(format!(
            "planned with {}.{:03} times the average of tokens on the fullest device (training.expert_imbalance), since a \
             loss balances the router",
            uneven / 1000,
            uneven % 1000
        ));
        Some(uneven)
    }

    /// The batch of slime: the samples of a rollout over the steps that train on them.
    fn batch_of_rollouts(&mut self) -> Option<u64> {
        let samples =
            self.whole("rollout_batch_size")?.checked_mul(self.whole("n_samples_per_prompt").unwrap_or(1))?;
        Some(samples / self.whole("num_steps_per_rollout").unwrap_or(1).max(1)).filter(|batch| *batch > 0)
    }

    pub(super) fn training(&mut self, sequence: Option<u64>, data: Option<u64>) -> Value {
        let size = self.whole("micro_batch_size").unwrap_or(1);
        let all = self.first_batch().or_else(|| self.whole("global_batch_size")).or_else(|| self.batch_of_rollouts());
        let all = all.or_else(|| size.checked_mul(data?)).unwrap_or(size);
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
        if let Some(uneven) = self.expert_imbalance() {
            training["expert_imbalance"] = json!(uneven as f64 / 1000.0);
        }
        if let Some(optimizer) = self.optimizer() {
            training["optimizer"] = json!(optimizer);
        }
        if let Some(lora) = self.lora() {
            training["lora"] = lora;
        }
        if let Some(matmuls) = self.matmul_dtype() {
            training["matmul_dtype"] = json!(matmuls);
        }
        let mut say = |key: &str, value: Value| training[key] = value;
        let half = self.is_on("bf16") || self.is_on("fp16") || self.is_slime();
        if !half {
            self.note("neither --bf16 nor --fp16: planned in f32");
        } else if !self.is_on("bf16") && !self.is_on("fp16") {
            self.note("planned in bf16 and with ZeRO 1, as slime sets them");
        }
        if self.is_on("fp16") {
            self.note("--fp16: planned as bf16, which takes as many bytes");
        }
        say("dtype", json!(if half { "bf16" } else { "f32" }));
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
        // Megatron-DeepSpeed has no other without an argument.
        let is_flash = [
            "use_flash_attn",
            "use_flash_attn_v1",
            "use_flash_attn_v2",
            "use_flash_attn_triton",
            "use_flash_attn_builder",
        ];
        let is_plain = self.is_deepspeed() && !is_flash.iter().any(|name| self.is_on(name));
        if backend.contains("unfused") || backend.contains("local") || is_local || is_plain {
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
        if self.is_on("optimizer_cpu_offload") || self.is_on("cpu_optimizer") {
            say("offload_optimizer", json!(true));
        }
        for (key, value) in self.recompute() {
            training[key] = value;
        }
        training
    }

    /// The optimizer, where it is not AdamW. Adam and AdamW keep and compute the same.
    fn optimizer(&mut self) -> Option<&'static str> {
        match self.said("optimizer")?.to_owned().as_str() {
            "adam" | "adamw" => None,
            "sgd" if self.float("sgd_momentum").is_some_and(|momentum| momentum == 0.0) => Some("sgd"),
            "sgd" => Some("sgd-momentum"),
            "muon" | "dist_muon" => {
                if self.said("muon_scalar_optimizer").is_some_and(|scalar| scalar != "adam") {
                    self.tell("muon_scalar_optimizer", "planned with AdamW of what is no matrix of a layer");
                }
                Some("muon")
            }
            other => {
                let accepted = "adam, sgd or muon: others are not planned";
                self.faults.push(Fault::new("--optimizer", format!("\"{other}\""), accepted));
                None
            }
        }
    }

    /// Adapters: as ms-swift has them with its defaults of rank, alpha and targets, or by MindSpeed's names.
    fn lora(&mut self) -> Option<Value> {
        const NAMES: [&str; 2] = ["train_type", "tuner_type"];
        let kind = NAMES.iter().find_map(|name| Some((*name, self.said(name)?.to_owned())));
        match kind.as_ref().map(|(_, kind)| kind.as_str()) {
            Some("lora") => {}
            None if self.said("lora_r").is_some() || self.said("lora_target_modules").is_some() => {}
            Some("full") | None => {
                for name in ["lora_rank", "lora_alpha", "target_modules"] {
                    if self.said(name).is_some() {
                        self.tell(name, "planned without adapters: --train-type lora asks for them");
                    }
                }
                return None;
            }
            Some(other) => {
                let accepted = "full or lora: other adapters are not planned";
                let name = kind.as_ref().map_or("train_type", |(name, _)| *name);
                self.faults.push(Fault::new(argument(name), format!("\"{other}\""), accepted));
                return None;
            }
        }
        let targets = self.said("target_modules").or(self.said("lora_target_modules")).unwrap_or("all-linear");
        let targets: Vec<String> = targets
            .split([' ', ',', '[', ']', '\'', '"'])
            .filter(|target| !target.is_empty())
            .map(ToOwned::to_owned)
            .collect();
        let rank = self.either(["lora_rank", "lora_r"]).unwrap_or(8);
        Some(json!({ "rank": rank, "alpha": self.whole("lora_alpha").unwrap_or(32), "targets": targets }))
    }

    /// The format of matmuls, where it is not that of the tensors: from `--fp8-format` and `--fp4-format` and their recipes.
    fn matmul_dtype(&mut self) -> Option<&'static str> {
        let is_said = |format: Option<&str>| format.is_some_and(|format| format != "False");
        if is_said(self.said("fp4").or(self.said("fp4_format"))) {
            return match self.said("fp4_recipe").unwrap_or("nvfp4") {
                "nvfp4" => Some("nvfp4"),
                other => {
                    let found = format!("\"{other}\"");
                    self.faults.push(Fault::new("--fp4-recipe", found, "nvfp4: others are not planned"));
                    None
                }
            };
        }
        if !is_said(self.said("fp8").or(self.said("fp8_format"))) {
            return None;
        }
        Some(if self.said("fp8_recipe") == Some("mxfp8") { "mxfp8" } else { "fp8" })
    }

    pub(super) fn recompute(&mut self) -> Map<String, Value> {
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
            "feed-forward" | "latents" if self.is_latent() => &["mla_up_proj", "layernorm"][..],
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
