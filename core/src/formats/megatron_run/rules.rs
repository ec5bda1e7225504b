//! What Megatron-LM refuses to run.

use alloc::format;
use alloc::vec::Vec;

use serde_json::Value;

use super::spec::Reader;

impl Reader<'_> {
    /// Tells what Megatron-LM does not run: the rules of `validate_args` and of its interleaved schedule.
    pub(super) fn refusals(&mut self, layers: u64, parallel: &Value, chunks: u64, all: u64) {
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
}
