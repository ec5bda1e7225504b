//! Arguments of Megatron-LM that decide bytes and operations, as a spec.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Value, json};

use super::source::argument;
use super::{Arguments, TrainingRun, first_word};
use crate::base::fields::Fault;
use crate::model::{MAX_LAYERS, MAX_SIZE};

/// Makes a spec of a run.
pub(super) struct Reader<'r> {
    pub run: &'r TrainingRun,
    pub derived: BTreeMap<String, (String, String)>,
    pub faults: Vec<Fault>,
    pub notes: Vec<String>,
    pub heard: Arguments,
}

/// Arguments of relatives that name a file with the model's arguments.
const OF_FILES: [&str; 8] =
    ["config_file", "config", "model_config", "model_name", "config_path", "hf_checkpoint", "model", "load"];

/// Switches of forks of Megatron-LM for ZB-H1.
const ZB_H1: [&str; 3] = ["enable_zero_bubble", "enable_zb_runtime", "enable_zbh1_pipeline"];

impl Reader<'_> {
    pub(super) fn said(&self, name: &str) -> Option<&str> {
        self.run
            .arguments
            .get(name)
            .or_else(|| self.derived.get(name).map(|(value, _)| value))
            .map(String::as_str)
            .filter(|said| !matches!(*said, "None" | "null"))
            // Its value is asked for already.
            .filter(|_| !self.run.asked.contains(name))
    }

    /// A switch: on where a command line names it, or as a log says.
    pub(super) fn is_on(&self, name: &str) -> bool {
        matches!(self.said(name), Some("" | "True" | "true" | "1"))
    }

    /// A switch that a log says and a command line may turn off.
    pub(super) fn is_on_unless(&self, name: &str, off: &str) -> bool {
        match self.said(name) {
            Some(said) => !matches!(said, "False" | "false" | "0"),
            None => self.said(off).is_none(),
        }
    }

    /// A whole number, where it is said; a fault where it is something else.
    pub(super) fn whole(&mut self, name: &str) -> Option<u64> {
        let said = first_word(self.said(name)?).to_owned();
        let read = said.parse::<u64>().ok();
        if read.is_none() {
            self.faults.push(Fault::new(argument(name), format!("\"{said}\""), "a whole number"));
        }
        read
    }

    pub(super) fn needed(&mut self, name: &str, most: u32) -> Option<u64> {
        if self.said(name).is_none() && !self.run.asked.contains(name) {
            let file = OF_FILES.iter().find_map(|name| Some((*name, self.said(name)?.to_owned())));
            let accepted = match file {
                Some((name, file)) => format!(
                    "a whole number: {file} ({}) may have it, which is not read, so add it to the text",
                    argument(name)
                ),
                None => "a whole number".to_owned(),
            };
            self.faults.push(Fault::new(argument(name), "nothing", accepted));
        }
        let read = self.whole(name)?;
        if !(1..=most.into()).contains(&read) {
            self.faults.push(Fault::new(argument(name), read, format!("a whole number from 1 to {most}")));
            return None;
        }
        Some(read)
    }

    pub(super) fn float(&mut self, name: &str) -> Option<f64> {
        let said = self.said(name)?.to_owned();
        let read = said.parse::<f64>().ok();
        if read.is_none() {
            self.faults.push(Fault::new(argument(name), format!("\"{said}\""), "a number"));
        }
        read
    }

    /// By the first name that is said: relatives have their own.
    pub(super) fn either(&mut self, names: [&str; 2]) -> Option<u64> {
        self.whole(names[0]).or_else(|| self.whole(names[1]))
    }

    pub(super) fn refuse(&mut self, name: &str, why: &str) {
        self.faults.push(Fault::new(argument(name), "it", format!("nothing: {why}")));
    }

    /// What Megatron-LM runs, or a relative of it.
    pub(super) fn schedule(&mut self, chunks: u64, parallel: &Value) -> String {
        let setup = self.said("zero_bubble_v_schedule_mem_setup").unwrap_or("zb").to_owned();
        if self.is_on("zero_bubble_v_schedule") {
            let name = match setup.as_str() {
                "min" => "v-min",
                "half" => "v-half",
                _ => "zb-v",
            };
            return name.into();
        }
        match self.said("schedules_method").map(String::from) {
            Some(method) if method == "dualpipev" => return "dualpipe-v".into(),
            Some(method) => self.tell("schedules_method", &format!("planned without {method}")),
            None => {}
        }
        let pairs = parallel.get("overlap_exchanges").is_some();
        let name = match chunks {
            1 if ZB_H1.iter().any(|name| self.is_on(name)) => "zb-h1",
            1 => "1f1b",
            _ if pairs => "combined-1f1b",
            _ => "interleaved-1f1b",
        };
        let pipeline = parallel.get("pipeline").and_then(Value::as_u64);
        match self.group().filter(|group| chunks > 1 && Some(*group) != pipeline) {
            Some(group) => format!("{name}:{group}"),
            None => name.into(),
        }
    }

    /// Whether it is a run of Megatron-DeepSpeed.
    pub(super) fn is_deepspeed(&self) -> bool {
        self.is_on("deepspeed")
    }

    /// Whether it is a run of slime or of its kin, which train by reinforcement learning with Megatron-LM, and set some of its
    /// arguments themselves (`slime/backends/megatron_utils/arguments.py`).
    pub(super) fn is_slime(&self) -> bool {
        ["actor_num_nodes", "actor_num_gpus_per_node", "rollout_batch_size"]
            .iter()
            .any(|name| self.said(name).is_some())
    }

    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The whole spec; none where a fault was found in what it cannot do without.
    pub fn spec(&mut self, device: &str, devices: Option<u64>) -> Option<Value> {
        if self.run.is_torchtitan() {
            let mut spec = self.torchtitan(devices)?;
            spec.insert("cluster".into(), json!({ "device": device }));
            return Some(Value::Object(spec));
        }
        let is_verl = self.run.is_verl();
        let given = if is_verl { self.of_verl(devices) } else { None };
        let layers = match &given {
            Some((_, layers)) => Some(*layers),
            None if is_verl => None,
            None => self.needed("num_layers", MAX_LAYERS),
        };
        let tensor = self.whole("tensor_model_parallel_size").unwrap_or(1);
        let model = match given {
            Some((model, _)) => Some(model),
            None if is_verl => None,
            None => self.model(layers, tensor),
        };
        let pipeline = self.whole("pipeline_model_parallel_size").unwrap_or(1);
        let context = self.whole("context_parallel_size").unwrap_or(1);
        let names = ["seq_length", "encoder_seq_length", "max_length"];
        let sequence_name = names.into_iter().find(|name| self.said(name).is_some()).unwrap_or("seq_length");
        let sequence = match self.said(sequence_name) {
            Some(_) => self.needed(sequence_name, MAX_SIZE),
            None if self.is_slime() => {
                self.note("no --seq-length: planned with 4096 tokens, the length that slime sets");
                Some(4096)
            }
            None => self.needed("seq_length", MAX_SIZE),
        };
        let (parallel, chunks) = self.parallel([pipeline, tensor, context], devices, layers);
        let training = self.training(sequence, parallel.get("data").and_then(Value::as_u64));
        let schedule = self.schedule(chunks, &parallel);
        if let (Some(layers), Some(all)) = (layers, training.get("global_batch_size").and_then(Value::as_u64)) {
            self.refusals(layers, &parallel, chunks, all);
        }
        layers?;
        Some(json!({
            "schedule": schedule, "model": model?, "cluster": { "device": device }, "parallel": parallel,
            "training": training,
        }))
    }
}
