//! The names of NeMo 1: in its YAML (`megatron_gpt_config.yaml`) a model of Megatron-LM stands under `model`, and the devices
//! under `trainer`.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::TrainingRun;
use super::yaml::Entry;
use crate::base::fields::Fault;

/// Names that NeMo alone has, of which a model of its has some.
const ITS_OWN: [&str; 4] = [
    "activation",
    "share_embeddings_and_output_weights",
    "activations_checkpoint_granularity",
    "transformer_block_type",
];

/// What Megatron-LM has by another name, with the same values.
const RENAMED: [(&str, &str); 7] = [
    ("encoder_seq_length", "seq_length"),
    ("rotary_percentage", "rotary_percent"),
    ("activations_checkpoint_granularity", "recompute_granularity"),
    ("activations_checkpoint_method", "recompute_method"),
    ("activations_checkpoint_num_layers", "recompute_num_layers"),
    ("use_flash_attention", "use_flash_attn"),
    ("ub_tp_comm_overlap", "tp_comm_overlap"),
];

/// Whether a YAML's entries are those of NeMo.
pub(super) fn is_nemo(entries: &[Entry]) -> bool {
    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    has("encoder_seq_length") && ITS_OWN.iter().any(|name| has(name))
}

/// Whether an entry is of the training: sets of data, loggers and tokenizers have names that it has too.
pub(super) fn is_of_training(entry: &Entry) -> bool {
    let is_in =
        |table: &str| &*entry.path == table || entry.path.strip_suffix(table).is_some_and(|rest| rest.ends_with('.'));
    entry.path.is_empty() || is_in("model") || is_in("trainer") || is_in("optim") && entry.name != "name"
}

impl TrainingRun {
    /// Puts Megatron-LM's arguments in the place of those of NeMo.
    pub(super) fn read_nemo(&mut self, entries: &[Entry]) {
        self.notes.push("read as NeMo writes it".to_string());
        let left_out: BTreeSet<&str> = entries
            .iter()
            .filter(|entry| !is_of_training(entry) && entry.name != "name")
            .map(|entry| &*entry.path)
            .collect();
        if !left_out.is_empty() {
            let tables: Vec<&str> = left_out.into_iter().take(20).collect();
            self.notes.push(format!("not of the training step, and left out: {}", tables.join(", ")));
        }
        let scheme = entries.iter().find(|entry| entry.name == "peft_scheme" && entry.value != "none");
        if let Some(scheme) = scheme {
            let accepted = "null: take it out, and write training.lora or training.frozen into the spec";
            let path = format!("{}.peft_scheme", scheme.path);
            self.faults.push(Fault::new(path, format!("\"{}\"", scheme.value), accepted));
        }
        let arguments = &mut self.arguments;
        for (name, other) in RENAMED {
            if let Some(value) = arguments.remove(name) {
                arguments.insert(other.to_string(), value);
            }
        }
        // `${.encoder_seq_length}`: NeMo fills in another entry.
        if arguments.get("max_position_embeddings").is_some_and(|value| value.contains("seq_length"))
            && let Some(length) = arguments.get("seq_length").cloned()
        {
            arguments.insert("max_position_embeddings".to_string(), length);
        }
        let on = |arguments: &mut BTreeMap<String, String>, name: &str| {
            arguments.insert(name.to_string(), String::new());
        };
        let is_off = |value: Option<String>| value.is_some_and(|value| matches!(value.as_str(), "False" | "false"));
        if is_off(arguments.remove("bias")) {
            on(arguments, "disable_bias_linear");
        }
        if is_off(arguments.remove("share_embeddings_and_output_weights")) {
            on(arguments, "untie_embeddings_and_output_weights");
        }
        if arguments.contains_key("num_query_groups") {
            on(arguments, "group_query_attention");
        }
        let norm = arguments.get("normalization").cloned().unwrap_or_default();
        if norm == "layernorm1p" {
            on(arguments, "apply_layernorm_1p");
        }
        if norm.starts_with("layernorm") {
            arguments.insert("normalization".to_string(), "LayerNorm".to_string());
        }
        if norm == "rmsnorm" {
            arguments.insert("normalization".to_string(), "RMSNorm".to_string());
        }
        let precision = arguments.remove("precision").unwrap_or_default();
        match precision {
            _ if precision.starts_with("bf16") => on(arguments, "bf16"),
            _ if precision.starts_with("16") => on(arguments, "fp16"),
            _ => {}
        }
        if arguments.remove("fp8").is_some_and(|value| matches!(value.as_str(), "True" | "true")) {
            arguments.insert("fp8_format".to_string(), "hybrid".to_string());
        }
        let has_half = arguments.contains_key("bf16") || arguments.contains_key("fp16");
        if has_half && is_off(Some(arguments.remove("megatron_amp_O2").unwrap_or_else(|| "False".to_string()))) {
            let note =
                "without megatron_amp_O2, NeMo keeps f32 weights alone; planned with weights of 16 bits beside them";
            self.notes.push(note.to_string());
        }
        let of_optimizer = |entry: &&Entry| entry.name == "name" && entry.path.ends_with("optim");
        match entries.iter().find(of_optimizer).map(|entry| entry.value.as_str()) {
            None | Some("adam" | "adamw" | "fused_adam" | "megatron_fused_adam") => {}
            Some("distributed_fused_adam" | "mcore_distributed_optim") => on(arguments, "use_distributed_optimizer"),
            Some(other) => {
                let accepted = "adam, adamw, fused_adam, distributed_fused_adam or mcore_distributed_optim: others are not planned";
                self.faults.push(Fault::new("model.optim.name", format!("\"{other}\""), accepted));
            }
        }
        match arguments.remove("activation").as_deref().map(|name| name.trim_start_matches("fast-")) {
            None | Some("gelu") => {}
            Some("swiglu") => on(arguments, "swiglu"),
            Some("squared-relu") => on(arguments, "squared_relu"),
            Some(other) => {
                let accepted = "gelu, swiglu, fast-swiglu or squared-relu: others are not planned";
                self.faults.push(Fault::new("activation", format!("\"{other}\""), accepted));
            }
        }
        let devices = ["devices", "num_nodes"].map(|name| self.arguments.remove(name)?.parse::<u64>().ok());
        if let [Some(per_node), Some(nodes)] = devices {
            self.devices = self.devices.or(per_node.checked_mul(nodes));
        }
    }
}
