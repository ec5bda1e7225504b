//! What fields with a choice offer: the value in a spec, and what a person reads. An empty value is the default.

/// Values of a field with what they are called.
pub type Choices = &'static [(&'static str, &'static str)];

/// The choices of a field that always has the same ones, and that the page also speaks of elsewhere.
pub fn choices(path: &str) -> Choices {
    match path {
        "parallel.sequence_parallel" => &[("", "whole"), ("true", "split, too")],
        "parallel.zero" => &[("", "nothing"), ("1", "optimizer (1)"), ("2", "gradients (2)"), ("3", "weights (3)")],
        "parallel.reduce_gradients" => {
            &[("", "as shared"), ("after-accumulation", "once a step"), ("each-microbatch", "each microbatch")]
        }
        "parallel.whole_experts" => &[("", "split, too"), ("true", "whole")],
        "parallel.dispatch" => &[("", "each copy"), ("once-per-node", "once per node")],
        "parallel.overlap_exchanges" => &[("", "no"), ("true", "in pairs")],
        "training.matmul_dtype" => &[("", "that format"), ("fp8", "fp8")],
        "training.gradients_dtype" | "training.moments_dtype" => &[("", "float32"), ("bf16", "bfloat16")],
        "training.offload_optimizer" => &[("", "on the device"), ("true", "on the host")],
        "training.attention" => &[("", "flash"), ("materialised", "scores in memory")],
        _ => &[],
    }
}

/// A field's value as the form calls it.
pub fn called<'v>(path: &str, value: &'v str) -> &'v str {
    let choices = choices(path);
    let of = |value: &str| choices.iter().find(|(known, _)| *known == value).map(|(_, title)| *title);
    // A default by its own name is the empty choice.
    match value {
        "false" | "0" | "flash" | "each-copy" => of("").unwrap_or(value),
        _ => of(value).unwrap_or(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_called_what_the_form_calls_them() {
        for (path, value, said) in [
            ("parallel.sequence_parallel", "false", "whole"),
            ("parallel.sequence_parallel", "true", "split, too"),
            ("parallel.zero", "0", "nothing"),
            ("parallel.zero", "3", "weights (3)"),
            ("parallel.reduce_gradients", "each-microbatch", "each microbatch"),
            ("parallel.whole_experts", "false", "split, too"),
            ("parallel.whole_experts", "true", "whole"),
            ("parallel.dispatch", "each-copy", "each copy"),
            ("training.offload_optimizer", "true", "on the host"),
            ("training.attention", "materialised", "scores in memory"),
            ("training.attention", "flash", "flash"),
            ("parallel.pipeline", "8", "8"),
            ("training.recompute", "full", "full"),
        ] {
            assert_eq!(called(path, value), said, "{path} {value}");
        }
    }
}
