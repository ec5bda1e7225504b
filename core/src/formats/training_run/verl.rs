//! verl, which trains by reinforcement learning: overrides of its configuration, such as
//! `actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4`. Of a run the training step of the actor is planned.
//!
//! Names and defaults are facts of `verl/trainer/config` (2026-08-22). An actor on Megatron-LM has its arguments by
//! names of verl's; an actor on FSDP has no pipeline.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::{Value, json};

use super::TrainingRun;
use super::fields::{is_of_verl, of_megatron};
use super::spec::Reader;
use crate::base::fields::Fault;
use crate::base::json as bounded;
use crate::formats::shell::{self, Outcome};
use crate::model::catalog;
use crate::model::hf_config::null_says;

/// The name and the value of an override, as Hydra reads it: `+a.b=1` adds, `~a.b` takes out.
fn override_of(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.trim_start_matches('+').split_once('=')?;
    let is_name = name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '@' | '/'));
    (is_name && (name.contains('.') || name == "model_engine")).then_some((name, value.trim_matches(['"', '\''])))
}

const MODEL: &str = "actor_rollout_ref.model.path";
const ACTOR: &str = "actor_rollout_ref.actor.";

/// What verl's own settings of the optimizer say of its formats, by the names of Megatron-LM.
const PRECISIONS: [&str; 4] =
    ["use_precision_aware_optimizer", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"];

impl TrainingRun {
    /// Whether it is a run of verl.
    pub(super) fn is_verl(&self) -> bool {
        self.arguments.keys().any(|name| name.starts_with("actor_rollout_ref."))
    }

    /// Takes the overrides of a command of verl, and returns its other words.
    pub(super) fn read_overrides(&mut self, words: &[String]) -> Vec<String> {
        if !words.iter().any(|word| is_of_verl(word)) {
            return words.to_vec();
        }
        let mut others = Vec::new();
        for word in words {
            match override_of(word) {
                Some((name, value)) => {
                    self.arguments.insert(name.to_owned(), value.to_owned());
                }
                None => others.push(word.clone()),
            }
        }
        others
    }

    /// Of a model's path its name alone counts, and nothing of it where its `config.json` is given.
    pub(super) fn name_model(&mut self, outcome: &Outcome) {
        let Some(path) = self.arguments.get(MODEL) else { return };
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if self.config.is_some() || shell::unknown_in(name).is_none() {
            let shown = outcome.shown(path);
            self.arguments.insert(MODEL.to_owned(), shown);
        }
    }

    /// Refuses other engines than those of Megatron-LM and FSDP, and tells of a file that nobody reads.
    fn find_engine(&mut self) {
        const ENGINES: [&str; 4] = ["megatron", "fsdp", "fsdp2", "dp"];
        let known = |name: &str| self.arguments.get(name).filter(|_| !self.asked.contains(name));
        let mut faults = Vec::new();
        for name in ["model_engine", "actor_rollout_ref.actor.strategy"] {
            if let Some(engine) = known(name).filter(|engine| !ENGINES.contains(&engine.as_str())) {
                let accepted = "megatron, fsdp, fsdp2 or dp: of verl's engines Megatron-LM and FSDP are planned";
                faults.push(Fault::new(name, format!("\"{engine}\""), accepted));
            }
        }
        let named =
            known("config_name").filter(|name| !matches!(name.as_str(), "ppo_trainer" | "ppo_megatron_trainer"));
        let note = named.map(|name| {
            format!(
                "--config-name {name}: what that file says is not read; planned with what the command says, and with verl's defaults"
            )
        });
        self.notes.extend(note);
        self.faults.extend(faults);
    }

    /// What overrides say, by the names of Megatron-LM.
    pub(super) fn read_verl(&mut self) {
        self.find_engine();
        let known = self.arguments.clone();
        let said = |name: &str| known.get(name).map(String::as_str).filter(|_| !self.asked.contains(name));
        let of_actor = |name: &str| said(&format!("{ACTOR}{name}"));
        let is_named = |name: &str| known.get(name).is_some_and(|value| value.contains("megatron"));
        let is_megatron = of_actor("strategy").is_some_and(|strategy| strategy == "megatron")
            || ["model_engine", "config_name"].iter().any(|name| is_named(name))
            || known.keys().any(|name| name.starts_with("actor_rollout_ref.actor.megatron."));
        let mut derived = BTreeMap::new();
        let mut say = |name: &str, value: &str, from: &str| {
            derived.insert(name.to_owned(), (value.to_owned(), from.to_owned()));
        };
        for (name, value) in [("hidden_dropout", "0"), ("attention_dropout", "0")] {
            say(name, value, "");
        }
        let dtype = "actor_rollout_ref.actor.megatron.dtype";
        match said(dtype) {
            None | Some("bfloat16" | "bf16") => say("bf16", "", ""),
            Some("float16" | "fp16") => say("fp16", "", dtype),
            Some("float32" | "fp32") => {}
            Some(other) => {
                let accepted = "bfloat16, float16 or float32";
                self.faults.push(Fault::new(dtype, format!("\"{other}\""), accepted));
            }
        }
        for name in known.keys().filter(|name| !self.asked.contains(*name)) {
            if let (Some(own), Some(value)) = (of_megatron(name), said(name)) {
                say(own, value, name);
            }
        }
        if is_megatron {
            say("sequence_parallel", "True", "");
            say("use_distributed_optimizer", "True", "");
            // Beside what its table for Megatron Core's optimizer says.
            for own in PRECISIONS {
                let name = format!("{ACTOR}optim.{own}");
                if let Some(value) = said(&name) {
                    say(own, value, &name);
                }
            }
            for name in known.keys().filter(|name| !self.asked.contains(*name)) {
                let own = name
                    .strip_prefix("actor_rollout_ref.actor.megatron.")
                    .filter(|own| !own.contains('.') && *own != "dtype");
                if let (Some(own), Some(value)) = (own, said(name)) {
                    say(own, value, name);
                }
            }
        } else {
            say("use_torch_fsdp2", "", "");
            let reshards = "actor_rollout_ref.actor.fsdp_config.reshard_after_forward";
            if said(reshards).is_some_and(|said| matches!(said, "False" | "false")) {
                say("data_parallel_sharding_strategy", "optim_grads", reshards);
            }
            let keeps = "actor_rollout_ref.model.enable_gradient_checkpointing";
            if !said(keeps).is_some_and(|said| matches!(said, "False" | "false")) {
                say("recompute_granularity", "full", keeps);
            }
            let policy = "actor_rollout_ref.actor.fsdp_config.offload_policy";
            if said(policy).is_some_and(|said| matches!(said, "True" | "true")) {
                say("optimizer_cpu_offload", "", policy);
            }
        }
        if said("actor_rollout_ref.model.use_fused_kernels").is_some_and(|said| matches!(said, "True" | "true")) {
            say("cross_entropy_loss_fusion", "", "");
        }
        if let Some(optimizer) = of_actor("optim.optimizer") {
            say("optimizer", &optimizer.to_lowercase(), "actor_rollout_ref.actor.optim.optimizer");
        }
        let of_lora = |own: &str| {
            let name = of_adapters(own, is_megatron);
            Some((said(&name)?.to_owned(), name))
        };
        let of_other = of_adapters("rank", !is_megatron);
        if said(&of_other).is_some_and(|rank| rank != "0") {
            self.notes.push(format!("{of_other}: not read by the actor's engine, and planned without"));
        }
        if let Some((rank, from)) = of_lora("rank").filter(|(rank, _)| rank != "0") {
            say("train_type", "lora", &from);
            say("lora_rank", &rank, &from);
            for (own, name) in [("alpha", "lora_alpha"), ("target_modules", "target_modules")] {
                if let Some((value, from)) = of_lora(own) {
                    say(name, &value, &from);
                }
            }
        }
        self.derived = derived;
    }
}

impl Reader<'_> {
    /// The model and its layers; what its batch and its experts are is then said as Megatron-LM has it.
    pub(super) fn of_verl(&mut self, devices: Option<u64>) -> Option<(Value, u64)> {
        let model = self.verl_model();
        let [sequence, all, size] = self.verl_batch(devices)?;
        let of_batch = [("seq_length", sequence), ("global_batch_size", all), ("micro_batch_size", size)];
        let experts = model.as_ref().map(|(_, _, experts)| ("num_experts", *experts));
        for (name, value) in of_batch.into_iter().chain(experts) {
            self.derived.insert(name.into(), (value.to_string(), String::new()));
        }
        self.shards(devices);
        model.map(|(model, layers, _)| (model, layers))
    }

    /// Over how many devices an actor on FSDP shards, where that is said.
    fn shards(&mut self, devices: Option<u64>) {
        const SIZE: &str = "actor_rollout_ref.actor.fsdp_config.fsdp_size";
        let of_group = self.said(SIZE).and_then(|size| size.parse::<u64>().ok()).filter(|size| *size > 0);
        let (true, Some(of_group), Some(devices)) = (self.is_on("use_torch_fsdp2"), of_group, devices) else {
            return;
        };
        let said = match of_group {
            1 => ("data_parallel_sharding_strategy", "no_shard".to_string()),
            _ if !devices.is_multiple_of(of_group) => {
                let accepted = format!("a number that divides the {devices} devices");
                self.faults.push(Fault::new(SIZE, of_group, accepted));
                return;
            }
            _ => ("num_distributed_optimizer_instances", (devices / of_group).to_string()),
        };
        self.derived.insert(said.0.into(), (said.1, SIZE.into()));
    }

    /// Sequence and batch of the actor's training step. What is missing has verl's default.
    fn verl_batch(&mut self, devices: Option<u64>) -> Option<[u64; 3]> {
        let [prompt, answer] = ["data.max_prompt_length", "data.max_response_length"].map(|name| self.number(name));
        let sequence = prompt.unwrap_or(512).checked_add(answer.unwrap_or(512))?;
        let prompts = self.number("actor_rollout_ref.actor.ppo_mini_batch_size").unwrap_or(256);
        let answers = self.number("actor_rollout_ref.rollout.n").unwrap_or(1);
        let all = prompts.checked_mul(answers)?;
        self.note(format!(
            "of reinforcement learning the actor's training step is planned: {prompts} prompts of {answers} answers, each with \
             {sequence} tokens, the most that there may be"
        ));
        const MOST_TOKENS: &str = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu";
        const DYNAMIC: &str = "actor_rollout_ref.actor.use_dynamic_bsz";
        let size = match self.is_on(DYNAMIC) {
            true => {
                let tokens = self.number(MOST_TOKENS).unwrap_or(16_384);
                let shared = self.whole("context_parallel_size").unwrap_or(1).min(crate::model::MAX_SIZE.into());
                let most = (tokens.saturating_mul(shared) / sequence.max(1)).max(1);
                let degrees = ["tensor_model_parallel_size", "pipeline_model_parallel_size"];
                let ranks =
                    degrees.iter().fold(shared, |ranks, name| ranks.saturating_mul(self.whole(name).unwrap_or(1)));
                // The most that divide what a replica trains on.
                let share = all / devices.map_or(1, |devices| devices / ranks.max(1)).max(1);
                let size = largest_divisor(share, most);
                let how = format!(
                    "planned with microbatches of {size} whole sequence{}: training.documents of a spec has packed ones",
                    if size == 1 { "" } else { "s" }
                );
                self.tell(DYNAMIC, &how);
                size
            }
            false => {
                const SIZE: &str = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu";
                let size = self.number(SIZE);
                if size.is_none() && !self.run.asked.contains(SIZE) {
                    self.note(format!(
                        "neither {SIZE} nor use_dynamic_bsz, which verl wants: planned with microbatches of 1"
                    ));
                }
                size.unwrap_or(1)
            }
        };
        Some([sequence, all, size])
    }

    fn number(&mut self, name: &str) -> Option<u64> {
        self.said(name)?;
        self.needed(name, crate::model::MAX_SIZE)
    }

    /// The model as a spec says it, and its layers and experts.
    fn verl_model(&mut self) -> Option<(Value, u64, u64)> {
        let path = self.said(MODEL).unwrap_or_default().to_owned();
        if let Some(text) = &self.run.config {
            let config = match bounded::parse_python(text) {
                Ok(config) => config,
                Err(error) => {
                    self.faults.push(Fault::new("--config", error, "the config.json of a Hugging Face model"));
                    return None;
                }
            };
            let decoder = config.get("text_config").unwrap_or(&config).clone();
            let of = |names: &[&str]| names.iter().find_map(|name| decoder.get(*name)?.as_u64());
            let Some(layers) = of(&["num_hidden_layers", "n_layer"]) else {
                self.faults.push(Fault::new(
                    "--config",
                    "no num_hidden_layers",
                    "the config.json of a Hugging Face model",
                ));
                return None;
            };
            let experts = of(&["num_experts", "n_routed_experts", "num_local_experts"]).unwrap_or(0);
            let has_modules = of(&["num_nextn_predict_layers"]).is_some_and(|modules| modules > 0);
            let mut model = json!({ "config": without_nulls(config) });
            if has_modules {
                model["multi_token"] = json!(0);
            }
            return Some((model, layers, experts));
        }
        let Some(entry) = in_catalog(&path) else {
            if !self.run.asked.contains(MODEL) {
                let accepted =
                    "the config.json of that model, as --config FILE: the catalog has no model of this name";
                let found = if path.is_empty() { "nothing".into() } else { format!("\"{path}\"") };
                self.faults.push(Fault::new(MODEL, found, accepted));
            }
            return None;
        };
        self.note(format!("{path}: planned as {} of the catalog", entry.name));
        let mut model = json!({ "name": entry.name });
        if entry.config.variant.multi_token > 0 {
            model["multi_token"] = json!(0);
        }
        let experts = entry.config.variant.experts.map_or(0, |experts| experts.count.into());
        Some((model, entry.config.layers.into(), experts))
    }
}

/// The name of a setting of adapters: the engine on Megatron-LM has a table of them, and the one on FSDP names beside
/// the others.
fn of_adapters(own: &str, is_megatron: bool) -> String {
    match own {
        _ if is_megatron => format!("actor_rollout_ref.model.lora.{own}"),
        "target_modules" => format!("actor_rollout_ref.model.{own}"),
        _ => format!("actor_rollout_ref.model.lora_{own}"),
    }
}

/// The largest number that divides `whole` and is at most `most`.
fn largest_divisor(whole: u64, most: u64) -> u64 {
    let small = (1..=whole.isqrt()).filter(|divisor| whole.is_multiple_of(*divisor));
    let both = small.flat_map(|divisor| [divisor, whole / divisor]);
    both.filter(|divisor| *divisor <= most).max().unwrap_or(1)
}

/// TOML has none. One that says something of a model stays, in words.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(table) => table
            .into_iter()
            .map(|(key, value)| if value.is_null() && null_says(&key) { (key, json!("none")) } else { (key, value) })
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        other => other,
    }
}

/// The model of the catalog that a path on the Hugging Face Hub names: `Qwen/Qwen3-30B-A3B-Base`. Models of one name
/// with other training have the same sizes.
fn in_catalog(path: &str) -> Option<&'static catalog::Entry> {
    let plain = |name: &str| name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    let mut name = path.trim_end_matches('/').rsplit('/').next()?.to_lowercase();
    for ending in ["-2507", "-instruct", "-base", "-chat", "-hf", "-bf16", "-0324"] {
        name = name.strip_suffix(ending).unwrap_or(&name).to_owned();
    }
    let name = name.replace("meta-", "").replace("llama-3.1", "llama-3").replace("-v0.1", "");
    let name = plain(&name);
    catalog::catalog().iter().find(|entry| plain(entry.name) == name)
}

#[cfg(test)]
mod tests;
