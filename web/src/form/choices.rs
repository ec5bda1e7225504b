//! The options of fields: the value in a spec and its label. An empty value is the default.

/// Values of a field with their labels.
pub type Choices = &'static [(&'static str, &'static str)];

/// The choices of a field that always has the same ones, and that the page also speaks of elsewhere.
pub fn choices(path: &str) -> Choices {
    match path {
        "parallel.sequence_parallel" => &[("", "off"), ("true", "on")],
        "parallel.zero" => {
            &[("", "0 (off)"), ("1", "1 (optimizer states)"), ("2", "2 (gradients)"), ("3", "3 (parameters)")]
        }
        "parallel.reduce_gradients" => {
            &[("", "by ZeRO stage"), ("after-accumulation", "once per step"), ("each-microbatch", "per microbatch")]
        }
        "parallel.whole_experts" => &[("", "= TP"), ("true", "1")],
        "parallel.dispatch" => &[("", "all-to-all"), ("once-per-node", "DeepEP-like")],
        "parallel.overlap_grad_reduce" | "parallel.overlap_param_gather" => &[("", "off"), ("true", "on")],
        "parallel.overlap_exchanges" => &[("", "off"), ("true", "on, in F/B pairs")],
        "training.matmul_dtype" => {
            &[("", "as precision"), ("fp8", "FP8"), ("mxfp8", "MXFP8"), ("mxfp4", "MXFP4"), ("nvfp4", "NVFP4")]
        }
        "training.gradients_dtype" | "training.moments_dtype" => &[("", "float32"), ("bf16", "bfloat16")],
        "training.optimizer" => &[
            ("", "AdamW"),
            ("sgd", "SGD"),
            ("sgd-momentum", "SGD with momentum"),
            ("muon", "Muon, with AdamW for other weights"),
            ("adafactor", "Adafactor without momentum"),
        ],
        "target" => &[("", "any"), ("megatron", "Megatron-LM"), ("torch", "torch.distributed.pipelining")],
        "training.offload_optimizer" | "training.elastic" => &[("", "off"), ("true", "on")],
        "training.attention" => &[("", "FlashAttention"), ("materialised", "scores in memory")],
        _ => &[],
    }
}

/// The label of a field's value.
pub fn value_label<'v>(path: &str, value: &'v str) -> &'v str {
    let choices = choices(path);
    let of = |value: &str| choices.iter().find(|(known, _)| *known == value).map(|(_, title)| *title);
    // A default by its own name is the empty choice.
    match value {
        "false" | "0" | "flash" | "each-copy" | "adamw" => of("").unwrap_or(value),
        _ => of(value).unwrap_or(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_called_what_the_form_calls_them() {
        for (path, value, said) in [
            ("parallel.sequence_parallel", "false", "off"),
            ("parallel.sequence_parallel", "true", "on"),
            ("parallel.zero", "0", "0 (off)"),
            ("parallel.zero", "3", "3 (parameters)"),
            ("parallel.reduce_gradients", "each-microbatch", "per microbatch"),
            ("parallel.whole_experts", "false", "= TP"),
            ("parallel.whole_experts", "true", "1"),
            ("parallel.dispatch", "each-copy", "all-to-all"),
            ("training.offload_optimizer", "true", "on"),
            ("training.attention", "materialised", "scores in memory"),
            ("training.attention", "flash", "FlashAttention"),
            ("parallel.pipeline", "8", "8"),
            ("training.recompute", "full", "full"),
        ] {
            assert_eq!(value_label(path, value), said, "{path} {value}");
        }
    }
}
