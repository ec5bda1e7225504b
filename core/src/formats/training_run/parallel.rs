//! Degrees of parallelism and the layers of each stage, as a spec says them.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use serde_json::{Value, json};

use super::source::argument;
use super::spec::Reader;
use crate::base::fields::Fault;
use crate::notation::megatron_layout::{self, Part};

impl Reader<'_> {
    /// That their number is missing: what it depends on is asked for, where that is known.
    pub(super) fn missing_devices(&self, accepted: &str) -> Fault {
        match &self.run.devices_asked {
            Some((found, asked)) => Fault::new("devices", found, format!("{asked}, or --devices COUNT")),
            None => Fault::new("devices", "nothing", accepted),
        }
    }

    /// Microbatches that go through a chunk together.
    pub(super) fn group(&mut self) -> Option<u64> {
        self.either(["microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage"])
    }

    /// With the chunks of each rank.
    pub(super) fn parallel(&mut self, degrees: [u64; 3], devices: Option<u64>, layers: Option<u64>) -> (Value, u64) {
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
                self.faults.push(self.missing_devices(accepted));
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
            _ if self.is_deepspeed() => self.whole("zero_stage").unwrap_or(1).min(3) as u32,
            _ if !sharded => u32::from(self.is_on("use_distributed_optimizer") || self.is_slime()),
            Some("no_shard") => 0,
            Some("optim") => 1,
            Some("optim_grads") => 2,
            _ => 3,
        };
        if data > 1 && zero > 0 {
            parallel["zero"] = json!(zero);
            let groups = self.whole("num_distributed_optimizer_instances").filter(|groups| *groups > 1);
            let shard = groups.map(|groups| data.saturating_mul(context) / groups);
            if let Some(shard) = shard.filter(|shard| *shard > 1) {
                parallel["shard"] = json!(shard);
            }
        }
        if data > 1 && self.is_on("overlap_grad_reduce") {
            parallel["overlap_grad_reduce"] = json!(true);
        }
        if data > 1 && (1..3).contains(&zero) && self.is_on("overlap_param_gather") {
            parallel["overlap_param_gather"] = json!(true);
        }
        let expert = self.whole("expert_model_parallel_size").unwrap_or(1);
        if expert > 1 {
            parallel["expert"] = json!(expert);
        }
        match self.whole("expert_tensor_parallel_size").filter(|of_experts| *of_experts != tensor) {
            _ if self.whole("num_experts").is_none_or(|count| count < 2) => {}
            Some(_) if tensor > 1 && parallel.get("sequence_parallel").is_none() => {
                let accepted = "it: Megatron-LM trains experts with tensor parallel only with sequence parallel";
                self.faults.push(Fault::new("--sequence-parallel", "nothing", accepted));
            }
            Some(ways) => parallel["expert_tensor"] = json!(ways),
            None => {}
        }
        let has_deepep = self.is_on("moe_enable_deepep")
            || self.said("moe_token_dispatcher_type") == Some("flex")
                && self.said("moe_flex_dispatcher_backend").unwrap_or("deepep") != "hybridep";
        if has_deepep && self.whole("num_experts").is_some_and(|count| count > 1) {
            parallel["dispatch"] = json!("once-per-node");
        }
        let chunks = self.stages(&mut parallel, pipeline, layers);
        if chunks > 1 {
            parallel["chunks"] = json!(chunks);
        }
        // Without virtual stages Megatron-LM has no pairs in a pipeline.
        if chunks > 1 && expert > 1 && self.is_on("overlap_moe_expert_parallel_comm") {
            parallel["overlap_exchanges"] = json!(true);
        }
        (parallel, chunks)
    }

    /// Sets the layers of each stage. Returns the chunks of a rank.
    pub(super) fn stages(&mut self, parallel: &mut Value, pipeline: u64, layers: Option<u64>) -> u64 {
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
            let losses = stages.iter().flatten().filter(|part| **part == Part::Loss).count();
            parallel["partition"] = match stages.split_last() {
                // The spec says what is wrong with several losses.
                Some((_, others)) if losses > 1 || others.iter().any(modules) => {
                    json!(megatron_layout::write(&stages))
                }
                _ => assigned(&counts),
            };
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
    pub(super) fn chunks(&mut self, pipeline: u64, layers: u64) -> u64 {
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
}

/// Layers of each stage: as a rule where they are even, which other schedules can follow.
pub(super) fn assigned(counts: &[u64]) -> Value {
    match counts.windows(2).all(|pair| pair[0] == pair[1]) {
        true => json!("layers"),
        false => json!(counts),
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
