//! Files that say how a model is trained, and that are not read.

/// What a text seems to be, and what to do with it: a sentence each.
pub fn likely(text: &str) -> Option<(&'static str, &'static str)> {
    // What tells them stands near their beginning.
    let end = (0..=text.len().min(1 << 16)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let text = &text[..end];
    let has = |all: &[&str]| all.iter().all(|word| text.contains(word));
    const OF_CODE: &str =
        "Code is not read. Give the log of its run, or write its model and its parallel degrees into a spec";
    const WITHOUT_PIPELINE: &str = "It names a Hugging Face model and has no pipeline. In a spec, write `model.config = \
                                    \"config.json\"`, and its batch, sequence and ZeRO stage under `training` and `parallel`";
    let rows: [(&[&str], &str, &str); 9] = [
        (&["nemo_run"], "a Python recipe of NeMo 2", OF_CODE),
        (&["nemo.collections", "import"], "a Python recipe of NeMo", OF_CODE),
        (&["megatron.bridge", "import"], "a Python recipe of Megatron Bridge", OF_CODE),
        (&["torchtitan", "Trainer.Config("], "a config of torchtitan in Python", OF_CODE),
        (
            &["\"zero_optimization\""],
            "a config of DeepSpeed",
            "It has no model. Give the launch script that names it, or write `model.config = \"config.json\"` and \
             `parallel.zero` in a spec",
        ),
        (&["model_name_or_path:", "finetuning_type:"], "a config of LLaMA-Factory", WITHOUT_PIPELINE),
        (&["base_model:", "micro_batch_size:"], "a config of axolotl", WITHOUT_PIPELINE),
        (
            &["distributed_type:", "num_processes:"],
            "a config of accelerate",
            "It has no model. Write `model.config = \"config.json\"`, `parallel.data` and `parallel.zero` in a spec",
        ),
        (
            &["\"hidden_size\"", "\"architectures\""],
            "the config.json of a Hugging Face model",
            "It says nothing of a run. Write `model.config = \"config.json\"` in a spec",
        ),
    ];
    rows.iter().find(|row| has(row.0)).map(|row| (row.1, row.2))
}
