//! What Megatron-LM refuses to run, told of a run that is imported.

use alloc::format;

use serde_json::Value;

use super::spec::Reader;
use crate::formats::frameworks::Degrees;

impl Reader<'_> {
    /// Tells what Megatron-LM does not run.
    pub(super) fn refusals(&mut self, layers: u64, parallel: &Value, chunks: u64, all: u64) {
        let of = |name: &str| parallel.get(name).and_then(Value::as_u64).unwrap_or(1);
        let [pipeline, tensor, context, data] = ["pipeline", "tensor", "context", "data"].map(of);
        let said = |reader: &Self, name: &str| reader.said(name).and_then(|said| said.parse::<u64>().ok());
        let is_looped = !self.is_on("zero_bubble_v_schedule") && self.said("schedules_method").is_none();
        let degrees = Degrees {
            pipeline,
            tensor,
            context,
            expert: of("expert"),
            chunks: if is_looped { chunks } else { 1 },
            group: self.group().unwrap_or(pipeline),
            microbatches: all / self.whole("micro_batch_size").unwrap_or(1).saturating_mul(data).max(1),
            heads: said(self, "num_attention_heads").unwrap_or(tensor),
            experts: said(self, "num_experts").unwrap_or(0),
            sequence: said(self, "seq_length").unwrap_or(0),
            sequence_parallel: self.is_on("sequence_parallel"),
            overlap_exchanges: self.is_on("overlap_moe_expert_parallel_comm"),
        };
        let mut refusals = degrees.megatron_refusals();
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
        if self.is_on("overlap_moe_expert_parallel_comm") && parallel.get("overlap_exchanges").is_none() {
            self.tell("overlap_moe_expert_parallel_comm", "planned without: no two ops of this schedule run as one");
        }
    }
}
