//! torchtitan's job config: a table of TOML, or the same as JSON, and arguments such as `--training.seq_len 4096`.
//!
//! Fields and their defaults are facts of `torchtitan/config/job_config.py` of v0.2.2 (2026-02-20), the last version with a config
//! in TOML, and of `config_manager.py` of those before it, whose tables `experimental` and `training` had the degrees.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::flavours;
use super::parallel::assigned;
use super::spec::Reader;
use super::{Given, TrainingRun};
use crate::base::fields::Fault;
use crate::formats::shell::{self, MOST_OF_SCRIPT};
use crate::model::MAX_SIZE;
use crate::spec;

/// Schedules by torchtitan's name, which torch reads in any case: ours, and whether a rank has several stages.
const SCHEDULES: [(&str, &str, bool); 10] = [
    ("1F1B", "1f1b", false),
    ("GPipe", "gpipe", false),
    ("Interleaved1F1B", "interleaved-1f1b", true),
    ("InterleavedZeroBubble", "interleaved-zb", true),
    ("LoopedBFS", "looped-bfs", true),
    ("ZBVZeroBubble", "zb-v", true),
    ("DualPipeV", "dualpipe-v", true),
    // Of the first versions.
    ("1f1b", "1f1b", false),
    ("interleaved_1f1b", "interleaved-1f1b", true),
    ("zb", "interleaved-zb", true),
];

impl TrainingRun {
    /// Whether it is a run of torchtitan.
    pub(super) fn is_torchtitan(&self) -> bool {
        ["model.flavor", "job.config_file"].iter().any(|name| self.arguments.contains_key(*name))
    }

    /// Takes the job config that a command names, where its text is given.
    pub(super) fn read_config_file(&mut self, given: &Given) {
        const FILE: &str = "job.config_file";
        let Some(name) = self.arguments.get(FILE).cloned() else { return };
        let path = shell::path_of(&name).map(String::from);
        let text = path.as_ref().and_then(|path| given.files.get(path));
        if text.is_some_and(|text| self.read_torchtitan(text)) {
            self.notes.push(format!("`{name}` is read, too"));
            return;
        }
        let accepted = match text {
            Some(_) => "a job config: TOML with [model] and its flavor",
            None => {
                "a file beside the script or in its repository: or give that file itself in the place of the script"
            }
        };
        self.faults.push(Fault::new(FILE, format!("\"{name}\""), accepted));
        self.wanted.extend(path.filter(|_| text.is_none()));
    }

    /// Takes a job config, where `text` is one. What is said already counts, as arguments do.
    pub(super) fn read_torchtitan(&mut self, text: &str) -> bool {
        if text.len() > MOST_OF_SCRIPT || !text.contains("flavor") || !text.contains("training") {
            return false;
        }
        // A script may write such a file.
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        // `[ -f x ]` is a command.
        let is_config = lines
            .next()
            .and_then(|first| first.strip_prefix('['))
            .is_some_and(|name| name.starts_with(|letter: char| letter.is_ascii_alphabetic()));
        let value = match spec::parse(text) {
            Ok(value) => value,
            Err(error) if is_config => {
                self.faults.push(Fault::new("the job config", error, "a table of TOML as torchtitan reads it"));
                self.is_known = true;
                return true;
            }
            Err(_) => return false,
        };
        let Some(Value::String(_)) = value.get("model").and_then(|model| model.get("flavor")) else { return false };
        self.is_known = true;
        let mut open: Vec<(String, &Value)> = Vec::from([(String::new(), &value)]);
        while let Some((path, value)) = open.pop() {
            let Value::Object(table) = value else {
                self.arguments.entry(path).or_insert_with(|| text_of(value));
                continue;
            };
            for (key, value) in table {
                open.push((if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, value));
            }
        }
        true
    }
}

/// A value as an argument has it.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::String(text) if text.is_empty() => "None".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "[]".into(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

/// Names of degrees, the newest first.
const PIPELINE: [&str; 3] = [
    "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_degree",
    "training.pipeline_parallel_degree",
];
const TENSOR: [&str; 3] =
    ["parallelism.tensor_parallel_degree", "training.tensor_parallel_degree", "training.sequence_parallel_degree"];
const CONTEXT: [&str; 2] = ["parallelism.context_parallel_degree", "experimental.context_parallel_degree"];
const REPLICATE: [&str; 2] =
    ["parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree"];
const SHARD: [&str; 3] = [
    "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree",
    "training.data_parallel_degree",
];
const RESHARD: [&str; 2] = ["parallelism.fsdp_reshard_after_forward", "training.fsdp_reshard_after_forward"];
const SCHEDULE: [&str; 2] = ["parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule"];
const SPLITS: [&str; 2] =
    ["parallelism.pipeline_parallel_split_points", "experimental.pipeline_parallel_split_points"];

/// Degrees of a run.
struct Degrees {
    pipeline: u64,
    tensor: u64,
    context: u64,
    replicate: u64,
    shard: u64,
}

impl Degrees {
    fn data(&self) -> u64 {
        self.replicate.saturating_mul(self.shard)
    }

    /// Whether FSDP wraps the model.
    fn is_sharded(&self) -> bool {
        self.shard.saturating_mul(self.context) > 1
    }
}

impl Reader<'_> {
    fn first<'n>(&self, names: &[&'n str]) -> Option<(&'n str, String)> {
        names.iter().find_map(|name| Some((*name, self.said(name)?.to_owned())))
    }

    fn degree(&mut self, names: &[&str]) -> u64 {
        let Some((name, _)) = self.first(names) else { return 1 };
        self.whole_from_1(name).unwrap_or(1)
    }

    fn whole_from_1(&mut self, name: &str) -> Option<u64> {
        self.said(name)?;
        self.needed(name, MAX_SIZE)
    }

    /// The whole spec of a run of torchtitan.
    pub(super) fn torchtitan(&mut self, devices: Option<u64>) -> Option<Map<String, Value>> {
        let model = self.flavour();
        let layers = model.as_ref().and_then(|model| model["layers"].as_u64());
        let degrees = self.degrees(devices)?;
        let sequence = self.whole_from_1("training.seq_len").unwrap_or(2048);
        let (schedule, chunks, counts) = self.pipeline_of(&degrees, layers);
        let stages = Stages {
            counts: counts.clone().or(layers.map(|layers| Vec::from([layers]))).unwrap_or_default(),
            ranks: if counts.is_some() { degrees.pipeline } else { 1 },
            turns: matches!(schedule.as_str(), "zb-v" | "dualpipe-v"),
        };
        let mut parallel = self.parallel_of(&degrees);
        let is_gathered = parallel["zero"] == 3;
        let (training, microbatches) = self.training_of(&degrees, is_gathered, sequence, &stages);
        if chunks > 1 {
            parallel["chunks"] = json!(chunks);
        }
        if let Some(counts) = counts {
            parallel["partition"] = assigned(&counts);
        }
        if schedule == "dualpipe-v" && degrees.pipeline > 1 && parallel.get("expert").is_some() {
            let is_off = self.said("parallelism.pipeline_parallel_expert_parallel_overlap") == Some("false");
            if !is_off {
                parallel["overlap_exchanges"] = json!(true);
            }
        }
        let mut model = model?;
        model["positions"] = json!(sequence);
        let schedule = self.group_of_rounds(&schedule, degrees.pipeline, microbatches);
        let mut spec = Map::new();
        spec.insert("schedule".into(), json!(schedule));
        spec.insert("model".into(), model);
        spec.insert("parallel".into(), parallel);
        spec.insert("training".into(), training);
        if degrees.pipeline > 1 {
            spec.insert("target".into(), json!("torch"));
        }
        Some(spec)
    }

    fn flavour(&mut self) -> Option<Value> {
        let said = |reader: &Self, name: &str, usual: &str| reader.said(name).unwrap_or(usual).to_owned();
        let (name, flavour) = (said(self, "model.name", "llama3"), said(self, "model.flavor", "debugmodel"));
        let Some(found) = flavours::find(&name, &flavour) else {
            let accepted = format!("{}; write the sizes of others into a spec", flavours::names(&name));
            self.faults.push(Fault::new("model.flavor", format!("\"{flavour}\" of {name}"), accepted));
            return None;
        };
        self.note(format!("{name} {flavour}: planned with the sizes that torchtitan v0.2.2 has for it"));
        if found.has_documents {
            self.note(
                "its tokens see their own document alone: planned with attention over whole sequences; \
                 training.documents of a spec has documents",
            );
        }
        Some(found.model)
    }

    fn degrees(&mut self, devices: Option<u64>) -> Option<Degrees> {
        let [pipeline, tensor] = [PIPELINE, TENSOR].map(|names| self.degree(&names));
        let [context, replicate] = [CONTEXT, REPLICATE].map(|names| self.degree(&names));
        let others = pipeline.saturating_mul(tensor).saturating_mul(context).saturating_mul(replicate);
        let of_degrees = "pipeline, tensor, context and replicated data parallel";
        let shard = match self.first(&SHARD) {
            Some((name, said)) if said != "-1" => self.whole_from_1(name)?,
            _ => {
                let Some(devices) = devices else {
                    let accepted = "the number of devices: data_parallel_shard_degree = -1 takes those that are left";
                    self.faults.push(self.missing_devices(accepted));
                    return None;
                };
                if !devices.is_multiple_of(others) {
                    let accepted = format!("a multiple of {others}, which are {of_degrees}");
                    self.faults.push(Fault::new("devices", devices, accepted));
                    return None;
                }
                devices / others
            }
        };
        let all = others.saturating_mul(shard);
        if let Some(devices) = devices.filter(|devices| *devices != all) {
            let accepted = format!("{all}, which are {of_degrees}, and sharded data parallel");
            self.faults.push(Fault::new("devices", devices, accepted));
            return None;
        }
        Some(Degrees { pipeline, tensor, context, replicate, shard })
    }

    fn parallel_of(&mut self, degrees: &Degrees) -> Value {
        let Degrees { pipeline, tensor, context, replicate, shard } = *degrees;
        let mut parallel = json!({ "pipeline": pipeline, "tensor": tensor, "data": degrees.data() });
        if tensor > 1 {
            // Its plans for tensor parallel all have it.
            parallel["sequence_parallel"] = json!(true);
        }
        if context > 1 {
            parallel["context"] = json!(context);
        }
        if degrees.is_sharded() {
            let reshards = match self.first(&RESHARD) {
                Some((_, policy)) if policy == "always" || policy == "true" => true,
                Some((_, policy)) if policy == "never" || policy == "false" => false,
                Some((name, policy)) if policy != "default" => {
                    self.faults.push(Fault::new(name, format!("\"{policy}\""), "default, always or never"));
                    false
                }
                // So that weights are not gathered for each microbatch.
                _ => pipeline == 1,
            };
            parallel["zero"] = json!(if reshards { 3 } else { 2 });
            if replicate > 1 {
                parallel["shard"] = json!(shard.saturating_mul(context));
            }
            if pipeline > 1 {
                // As torch's stages do: gradients are reduced with the last microbatch.
                parallel["reduce_gradients"] = json!("after-accumulation");
            }
        } else if replicate > 1 && pipeline.saturating_mul(tensor) > 1 {
            self.note(
                "torchtitan refuses this run: replicas that do not shard have no other parallelism beside them",
            );
        }
        let expert = self.degree(&["parallelism.expert_parallel_degree"]);
        if expert > 1 {
            parallel["expert"] = json!(expert);
            if tensor > 1 {
                let ways = self.degree(&["parallelism.expert_tensor_parallel_degree"]);
                if ways != 1 && ways != tensor {
                    let accepted = format!("1 or {tensor}, as tensor parallel: torchtitan has no others");
                    self.faults.push(Fault::new("parallelism.expert_tensor_parallel_degree", ways, accepted));
                }
                parallel["expert_tensor"] = json!(ways);
            }
        }
        if self.said("parallelism.expert_parallel_comm_backend") == Some("deepep") {
            parallel["dispatch"] = json!("once-per-node");
        }
        parallel
    }

    /// The schedule, the chunks of a rank, and the layers of each stage.
    fn pipeline_of(&mut self, degrees: &Degrees, layers: Option<u64>) -> (String, u64, Option<Vec<u64>>) {
        let usual = ("1f1b".to_owned(), 1, None);
        if degrees.pipeline == 1 {
            return usual;
        }
        let (name, said) = self.first(&SCHEDULE).unwrap_or((SCHEDULE[0], "1F1B".to_owned()));
        let Some((_, schedule, is_multi)) = SCHEDULES.iter().find(|row| row.0.eq_ignore_ascii_case(&said)) else {
            let names: Vec<&str> = SCHEDULES.iter().take(7).map(|row| row.0).collect();
            self.faults.push(Fault::new(name, format!("\"{said}\""), names.join(", ")));
            return usual;
        };
        let model = self.said("model.name").unwrap_or("llama3").to_owned();
        if ["qwen3", "gpt_oss"].contains(&model.as_str()) {
            self.note(format!("torchtitan v0.2.2 refuses this run: it has no pipeline for {model}"));
        }
        let Some(layers) = layers else { return usual };
        let (chunks, counts) = match self.given_stages(layers) {
            Some(counts) => (counts.len() as u64 / degrees.pipeline, Some(counts)),
            None => self.stages_by_rule(degrees.pipeline, layers, *is_multi),
        };
        let stages = degrees.pipeline.saturating_mul(chunks);
        if counts.as_ref().is_some_and(|counts| counts.len() as u64 != stages || (chunks > 1) != *is_multi) {
            let found = format!("{} stages on {} ranks", counts.map_or(0, |counts| counts.len()), degrees.pipeline);
            let accepted = match is_multi {
                true => "two or more stages for each rank, as this schedule has them",
                false => "one stage for each rank, as this schedule has it",
            };
            self.faults.push(Fault::new(name, found, accepted));
            return usual;
        }
        ((*schedule).into(), chunks, counts)
    }

    /// Layers of each stage, where the config lists them.
    fn given_stages(&mut self, layers: u64) -> Option<Vec<u64>> {
        const PARTS: &str = "parallelism.module_fqns_per_model_part";
        if let Some(parts) = self.said(PARTS).filter(|parts| *parts != "[]").map(String::from) {
            let read = serde_json::from_str::<Vec<Vec<String>>>(&parts).ok();
            let of_part = |part: &Vec<String>| part.iter().filter(|name| name.starts_with("layers.")).count() as u64;
            let in_order = read.filter(|parts| are_in_order(parts, layers));
            let counts: Option<Vec<u64>> = in_order.map(|parts| parts.iter().map(of_part).collect());
            if counts.is_none() {
                let accepted = format!(
                    "a list of lists with each of {layers} layers once and in order, such as layers.0; tok_embeddings first, \
                     norm and output last"
                );
                self.faults.push(Fault::new(PARTS, parts, accepted));
            }
            return counts;
        }
        let (name, points) = self.first(&SPLITS).filter(|(_, points)| points != "[]")?;
        let starts: Option<Vec<u64>> =
            points.split(',').map(|point| point.trim().strip_prefix("layers.")?.parse().ok()).collect();
        let starts = starts.filter(|starts| starts.is_sorted() && starts.last().is_some_and(|last| *last <= layers));
        let Some(starts) = starts else {
            let accepted = format!("layers at which stages begin, up to {layers}, such as layers.8,layers.16");
            self.faults.push(Fault::new(name, format!("\"{points}\""), accepted));
            return None;
        };
        let ends = starts.iter().copied().chain([layers]);
        let begins = [0].into_iter().chain(starts.iter().copied());
        Some(begins.zip(ends).map(|(begin, end)| end - begin).collect())
    }

    /// Chunks of a rank, and layers of each stage, as torchtitan deals them (`distributed/pipeline_parallel.py`, `pipeline_llm`).
    fn stages_by_rule(&mut self, pipeline: u64, layers: u64, is_multi: bool) -> (u64, Option<Vec<u64>>) {
        const PER_STAGE: &str = "parallelism.pipeline_parallel_layers_per_stage";
        let ends = ["first", "last"].map(|end| format!("parallelism.pipeline_parallel_{end}_stage_less_layers"));
        let [first, last] = ends.map(|name| self.whole(&name).unwrap_or(1));
        let counted = layers.saturating_add(first).saturating_add(last);
        let mut chunks = if is_multi { 2 } else { 1 };
        if let Some(per_stage) = self.whole_from_1(PER_STAGE) {
            let stages = counted.div_ceil(per_stage);
            if !stages.is_multiple_of(pipeline) {
                let accepted = format!(
                    "a number with which the stages are a multiple of {pipeline} ranks: {counted} layers, ends included, \
                     are {stages} stages"
                );
                self.faults.push(Fault::new(PER_STAGE, per_stage, accepted));
                return (chunks, None);
            }
            chunks = stages / pipeline;
        }
        let counts = dealt(layers, pipeline.saturating_mul(chunks), first, last);
        if counts.is_none() {
            let accepted = format!("at most {layers} stages, and no more layers for the ends than a stage has");
            let found = format!("{} stages", pipeline.saturating_mul(chunks));
            self.faults.push(Fault::new(PIPELINE[0], found, accepted));
        }
        (chunks, counts)
    }

    /// `interleaved-1f1b` with the microbatches that torch sends through a chunk together: as many as make the fewest
    /// whole rounds of at least one for each rank (`ScheduleInterleaved1F1B`).
    fn group_of_rounds(&mut self, schedule: &str, pipeline: u64, microbatches: u64) -> String {
        if !matches!(schedule, "interleaved-1f1b" | "interleaved-zb") {
            return schedule.into();
        }
        let rounds = (microbatches / pipeline).max(1);
        if !microbatches.is_multiple_of(rounds) {
            self.note(format!(
                "torch refuses this run: {microbatches} microbatches are no multiple of {rounds} rounds of {pipeline} or more"
            ));
            return schedule.into();
        }
        match microbatches / rounds {
            group if group == pipeline => schedule.into(),
            group => format!("{schedule}:{group}"),
        }
    }

    /// Training, and the microbatches of a step.
    fn training_of(&mut self, degrees: &Degrees, is_gathered: bool, sequence: u64, stages: &Stages) -> (Value, u64) {
        const GLOBAL: &str = "training.global_batch_size";
        const OF_PIPELINE: &str = "parallelism.pipeline_parallel_microbatch_size";
        const COUNT: &str = "experimental.pipeline_parallel_microbatches";
        let local_name = ["training.local_batch_size", "training.batch_size"];
        let local = match self.first(&local_name) {
            Some((name, _)) => self.whole_from_1(name).unwrap_or(1),
            None => {
                self.note("no training.local_batch_size: planned with 8 sequences, torchtitan's default");
                8
            }
        };
        let replicas = degrees.data().max(1);
        let once = local.saturating_mul(replicas);
        let all = match self.said(GLOBAL).map(String::from) {
            Some(said) if said != "-1" => self.whole_from_1(GLOBAL).unwrap_or(once),
            _ => once,
        };
        if !all.is_multiple_of(once) {
            let accepted =
                format!("a multiple of {once}, which are {local} sequences on each of {replicas} replicas");
            self.faults.push(Fault::new(GLOBAL, all, accepted));
        }
        let mut size = local;
        if degrees.pipeline > 1 {
            // The first versions had a number of microbatches, as many as ranks.
            let is_first = self.first(&PIPELINE).is_some_and(|(name, _)| name != PIPELINE[0]);
            let count = match self.whole_from_1(COUNT) {
                None if is_first && self.said(OF_PIPELINE).is_none() => Some(degrees.pipeline),
                count => count,
            };
            size = match count {
                Some(count) => (local / count).max(1),
                None => self.whole_from_1(OF_PIPELINE).unwrap_or(1),
            };
            if !local.is_multiple_of(size) {
                let accepted = format!("a number that divides {local}, the sequences of a replica");
                self.faults.push(Fault::new(OF_PIPELINE, size, accepted));
            }
            if all / once.max(1) > 1 {
                let how = format!(
                    "planned with all microbatches of the step in one pass through the pipeline, which torchtitan fills and \
                     drains {} times",
                    all / once.max(1)
                );
                self.tell(GLOBAL, &how);
            }
        }
        let mut training = json!({ "global_batch_size": all, "microbatch_size": size, "sequence": sequence });
        let steps = self.whole("training.steps").filter(|steps| *steps > 0);
        if let Some(tokens) = steps.and_then(|steps| steps.checked_mul(all)?.checked_mul(sequence)) {
            training["tokens"] = json!(tokens);
        }
        self.formats_of(degrees, is_gathered, &mut training);
        self.checkpointing(stages, &mut training);
        match self.said("optimizer.name").unwrap_or("AdamW") {
            "AdamW" | "Adam" => {}
            "Muon" => training["optimizer"] = json!("muon"),
            "SGD" => training["optimizer"] = json!("sgd"),
            other => {
                let found = format!("\"{other}\"");
                self.faults.push(Fault::new(
                    "optimizer.name",
                    found,
                    "AdamW, Adam, Muon or SGD: others are not planned",
                ));
            }
        }
        if self.is_on("training.enable_cpu_offload") {
            training["offload_optimizer"] = json!(true);
            self.tell(
                "training.enable_cpu_offload",
                "planned with the optimizer on the host, and weights on the device",
            );
        }
        let is_compiled = |part: &str, reader: &Self| {
            let parts = reader.said("compile.components").unwrap_or("model,loss");
            reader.is_on("training.compile") || reader.is_on("compile.enable") && parts.contains(part)
        };
        if !is_compiled("loss", self) {
            training["f32_logits"] = json!(true);
        }
        let microbatches = all / replicas / size.max(1);
        (training, microbatches)
    }

    /// Number formats.
    fn formats_of(&mut self, degrees: &Degrees, is_gathered: bool, training: &mut Value) {
        let is_half = |text: Option<&str>| text.is_some_and(|text| text == "bfloat16");
        let whole = self.said("training.dtype").map(String::from);
        let is_mixed = self.said("training.mixed_precision_param").is_none_or(|param| param == "bfloat16");
        let is_alone = degrees.pipeline.saturating_mul(degrees.tensor) == 1;
        let half = is_half(whole.as_deref()) || is_mixed && (degrees.is_sharded() || is_alone);
        training["dtype"] = json!(if half { "bf16" } else { "f32" });
        if is_mixed && !half {
            self.note(
                "planned in f32: mixed precision of torchtitan takes sharded data parallel, and there is none beside this \
                 tensor or pipeline parallel",
            );
        }
        if is_half(whole.as_deref()) {
            training["gradients_dtype"] = json!("bf16");
            training["moments_dtype"] = json!("bf16");
            self.tell("training.dtype", "planned with gradients and moments in bf16, and with master weights in f32");
        } else if half && is_half(self.said("training.mixed_precision_reduce")) {
            training["gradients_dtype"] = json!("bf16");
        }
        self.converters(is_gathered, training);
    }

    /// Products of layers in another format.
    fn converters(&mut self, is_gathered: bool, training: &mut Value) {
        const NAMES: [&str; 2] = ["model.converters", "model.handlers"];
        const OLDER: [&str; 4] = [
            "training.enable_fp8_linear",
            "training.enable_float8_linear",
            "float8.enable_float8_linear",
            "training.fp8_linear",
        ];
        let (mut name, mut said) = self.first(&NAMES).unwrap_or((NAMES[0], String::new()));
        let converters: Vec<String> = said
            .split([',', ' ', '[', ']', '"', '\''])
            .filter(|converter| !converter.is_empty())
            .map(String::from)
            .collect();
        let older = OLDER.iter().find_map(|name| {
            Some((*name, self.said(name).filter(|said| !matches!(*said, "false" | "False"))?.to_owned()))
        });
        let has = |names: [&str; 2]| converters.iter().any(|converter| names.contains(&converter.as_str()));
        let format = match () {
            () if older.is_some() || has(["float8", "quantize.linear.float8"]) => "fp8",
            () if has(["mx", "quantize.linear.mx"]) => "mxfp8",
            () => "",
        };
        let known = ["float8", "quantize.linear.float8", "mx", "quantize.linear.mx"];
        if let Some(other) = converters.iter().find(|converter| !known.contains(&converter.as_str())) {
            let how = match other.starts_with("quantize.grouped_mm") {
                true if format.is_empty() => {
                    "planned with products of experts in bf16, as those of other layers".into()
                }
                true => "planned with all products of layers in this format".into(),
                false => format!("planned without {other}"),
            };
            self.tell(name, &how);
        }
        if format.is_empty() {
            return;
        }
        if let Some(older) = older {
            (name, said) = older;
        }
        if is_gathered {
            let accepted = "nothing where each layer's weights are gathered again: take it out for products in bf16, or write \
                            fsdp_reshard_after_forward = \"never\"";
            self.faults.push(Fault::new(name, format!("\"{said}\""), accepted));
            return;
        }
        training["matmul_dtype"] = json!(format);
        for table in ["float8", "mx", "quantize.linear.float8", "quantize.linear.mx"] {
            let filter = format!("{table}.filter_fqns");
            let leaves = self.said(&filter).is_some_and(|names| {
                names.split(',').any(|name| !matches!(name.trim(), "output" | "router.gate" | "[]"))
            });
            if leaves {
                self.tell(&filter, "planned with all products of layers in this format");
            }
            let gather = format!("{table}.enable_fsdp_float8_all_gather");
            if self.is_on(&gather) {
                self.tell(&gather, "planned with weights that are gathered in bf16");
            }
        }
    }

    /// Activation checkpointing.
    fn checkpointing(&mut self, stages: &Stages, training: &mut Value) {
        const MODE: &str = "activation_checkpoint.mode";
        const OPTION: &str = "activation_checkpoint.selective_ac_option";
        match self.said(MODE).unwrap_or("selective").to_owned().as_str() {
            "none" => {}
            "full" => training["recompute"] = json!("full"),
            "selective" => {
                let option = self.said(OPTION).unwrap_or("2").to_owned();
                if option == "op" {
                    training["recompute"] = json!("cheap");
                    let how = "planned as `cheap`: all but products is computed again; torchtitan computes every second \
                               product again, too";
                    return self.tell(OPTION, how);
                }
                let Ok(every) = option.parse::<u64>() else {
                    let accepted = "op, or every how many layers one is computed again";
                    self.faults.push(Fault::new(OPTION, format!("\"{option}\""), accepted));
                    return;
                };
                training["recompute"] = match every {
                    0 | 1 => json!("full"),
                    _ => json!(stages.one_in(every)),
                };
            }
            other => {
                let accepted = "none, selective or full: others are not planned";
                self.faults.push(Fault::new(MODE, format!("\"{other}\""), accepted));
            }
        }
    }
}

/// Whether parts of a model have each layer once, in order, and nothing before its place.
fn are_in_order(parts: &[Vec<String>], layers: u64) -> bool {
    let mut names = parts.iter().flatten().map(String::as_str).peekable();
    let starts = names.next_if_eq(&"tok_embeddings").is_some();
    let in_order = (0..layers).all(|layer| names.next().is_some_and(|name| name == format!("layers.{layer}")));
    let rest: Vec<&str> = names.collect();
    let last = parts.last().is_some_and(|part| part.ends_with(&["norm".into(), "output".into()]));
    starts && in_order && rest == ["norm", "output"] && last
}

/// Where layers lie.
struct Stages {
    /// Layers of each stage.
    counts: Vec<u64>,
    /// Ranks that stages go round.
    ranks: u64,
    /// Whether every second round goes back, as in a V.
    turns: bool,
}

impl Stages {
    /// Every so many layers of a rank one is recomputed, counted along its stages (`_layer_sac_count`): `1 none, 1 full`.
    fn one_in(&self, every: u64) -> String {
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        let mut runs: Vec<(u64, bool)> = Vec::new();
        for (stage, count) in self.counts.iter().enumerate() {
            let (round, along) = (stage as u64 / self.ranks, stage as u64 % self.ranks);
            let rank = if self.turns && round % 2 == 1 { self.ranks - 1 - along } else { along };
            let seen = seen.entry(rank).or_default();
            for _ in 0..*count {
                *seen += 1;
                let is_full = seen.is_multiple_of(every);
                match runs.last_mut().filter(|(_, last)| *last == is_full) {
                    Some((length, _)) => *length += 1,
                    None => runs.push((1, is_full)),
                }
            }
        }
        if runs.iter().all(|(_, is_full)| !is_full) {
            return "none".into();
        }
        let said = |(length, is_full): &(u64, bool)| format!("{length} {}", if *is_full { "full" } else { "none" });
        runs.iter().map(said).collect::<Vec<_>>().join(", ")
    }
}

/// The layers of each stage, where the ends count as so many layers of the first and of the last, and what is left over goes to
/// the first stages (`generate_llm_fqn_per_model_part`). None where torchtitan refuses.
pub(super) fn dealt(layers: u64, stages: u64, first: u64, last: u64) -> Option<Vec<u64>> {
    if stages == 1 {
        return Some([layers].into());
    }
    let counted = layers.checked_add(first)?.checked_add(last)?;
    let (each, more) = (counted.checked_div(stages)?, counted % stages);
    if each == 0 || first > each || last > each {
        return None;
    }
    let of_stage = |stage: u64| {
        let end = if stage == 0 { first } else { 0 } + if stage + 1 == stages { last } else { 0 };
        (each + u64::from(stage < more)).checked_sub(end)
    };
    (0..stages).map(of_stage).collect()
}

#[cfg(test)]
mod tests;
