use alloc::string::String;
use alloc::vec;

use super::*;
use crate::formats::training_run::{Given, Imported};
use crate::model::{ModelConfig, catalog};
use crate::spec::{ModelWork, Work};

/// The config of Llama 3 70B of v0.2.2 (`train_configs/llama3_70b.toml`), for 256 GPUs.
const LLAMA_3_70B: &str = r#"
[job]
dump_folder = "./outputs"
description = "Llama 3 70B training"
[profiling]
enable_profiling = true
profile_freq = 100
[metrics]
log_freq = 10
[model]
name = "llama3"
flavor = "70B"
hf_assets_path = "./assets/hf/Llama-3.1-70B"
# converters = ["float8"]
[optimizer]
name = "AdamW"
lr = 1.5e-4
eps = 1e-8
[lr_scheduler]
warmup_steps = 200
[training]
local_batch_size = 8
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
context_parallel_degree = 1
[checkpoint]
enable = false
[activation_checkpoint]
mode = "full"
[compile]
enable = false
components = ["model", "loss"]
[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
filter_fqns = ["output"]
"#;

fn imported(text: &str, devices: Option<u64>) -> Imported {
    TrainingRun::read(text).spec("h100", devices).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
}

fn refused(text: &str, devices: u64) -> String {
    TrainingRun::read(text).spec("h100", Some(devices)).expect_err(text).to_string()
}

fn work(imported: &Imported) -> &ModelWork {
    match &imported.spec.work {
        Work::Model(work) => work,
        Work::Typed(_) => panic!("a model"),
    }
}

fn of_flavour(name: &str, flavour: &str) -> ModelConfig {
    let text = format!("[model]\nname = \"{name}\"\nflavor = \"{flavour}\"\n[training]\nseq_len = 4096\n");
    work(&imported(&text, Some(1))).model
}

#[test]
fn flavours_are_the_models_of_the_catalog() {
    for (name, flavour, known) in [
        ("llama", "7B", "llama-2-7b"),
        ("llama2", "13B", "llama-2-13b"),
        ("llama2", "70B", "llama-2-70b"),
        ("llama3", "8B", "llama-3-8b"),
        ("llama3", "8B_flex", "llama-3-8b"),
        ("llama3", "70B", "llama-3-70b"),
        ("llama3", "405B", "llama-3-405b"),
        ("qwen3", "8B", "qwen-3-8b"),
        ("qwen3", "32B", "qwen-3-32b"),
        ("qwen3", "30B-A3B", "qwen-3-30b-a3b"),
        ("qwen3", "235B-A22B", "qwen-3-235b-a22b"),
        ("deepseek_v3", "236B", "deepseek-v2"),
        ("deepseek_v3", "671B", "deepseek-v3"),
    ] {
        let mut known = catalog::find(known).unwrap().config;
        let ours = of_flavour(name, flavour);
        // Neither decides a shape. torchtitan trains no MTP modules.
        (known.positions, known.norm_eps_e12, known.rope_base) = (ours.positions, ours.norm_eps_e12, ours.rope_base);
        known.variant.multi_token = 0;
        assert_eq!(ours, known, "{name} {flavour}");
    }
}

/// Parameters as published with the weights: the counts of the files in safetensors. Of Llama 4 those of the decoder, by hand.
#[test]
fn flavours_have_the_published_parameters() {
    let llama_4 = |experts: [u64; 2]| {
        let attention = 2 * 5120 * 5120 + 2 * 5120 * 1024;
        let expert = 3 * 5120 * 8192;
        let of_experts = attention + 2 * 5120 + 5120 * experts[0] + (experts[0] + 1) * expert;
        let dense = attention + 2 * 5120 + 3 * 5120 * 16_384;
        2 * 202_048 * 5120 + 5120 + experts[1] * of_experts + (48 - experts[1]) * dense
    };
    for (name, flavour, parameters) in [
        ("qwen3", "0.6B", 596_049_920),
        ("qwen3", "1.7B", 1_720_574_976),
        ("qwen3", "4B", 4_022_468_096),
        ("qwen3", "14B", 14_768_307_200),
        ("deepseek_v3", "16B", 15_706_484_224),
        ("gpt_oss", "20b", 20_914_757_184),
        ("gpt_oss", "120b", 116_829_156_672),
        ("llama4", "17bx16e", llama_4([16, 48])),
        ("llama4", "17bx128e_irope", llama_4([128, 24])),
    ] {
        assert_eq!(of_flavour(name, flavour).parameters(), parameters, "{name} {flavour}");
    }
}

/// As `generate_llm_fqn_per_model_part` of v0.2.2 answers.
#[test]
fn layers_are_dealt_as_torchtitan_does() {
    let middle = |first: u64, each: u64, count: usize, last: u64| {
        let mut counts = vec![each; count];
        counts.insert(0, first);
        counts.push(last);
        Some(counts)
    };
    assert_eq!(dealt(3, 2, 2, 2), Some(vec![2, 1]));
    assert_eq!(dealt(32, 8, 1, 1), Some(vec![4, 5, 4, 4, 4, 4, 4, 3]));
    assert_eq!(dealt(32, 4, 1, 1), Some(vec![8, 9, 8, 7]));
    assert_eq!(dealt(126, 16, 1, 1), middle(7, 8, 14, 7));
    assert_eq!(dealt(61, 16, 1, 1), middle(3, 4, 14, 2));
    assert_eq!(dealt(61, 32, 1, 1), middle(1, 2, 30, 0));
    assert_eq!(dealt(6, 4, 0, 0), Some(vec![2, 2, 1, 1]));
    assert_eq!(dealt(32, 4, 0, 3), Some(vec![9, 9, 9, 5]));
    assert_eq!(dealt(32, 1, 1, 1), Some(vec![32]));
    for (layers, stages, first, last) in [(2, 4, 2, 1), (32, 36, 1, 1), (32, 4, u64::MAX, 1), (32, 0, 1, 1)] {
        assert_eq!(dealt(layers, stages, first, last), None);
    }
}

#[test]
fn a_job_config_is_read() {
    let of = imported(LLAMA_3_70B, Some(256));
    let work = work(&of);
    assert_eq!(work.model.parameters(), catalog::find("llama-3-70b").unwrap().config.parameters());
    let form = &work.layout.form;
    assert_eq!((work.pipeline, form.tensor, work.layout.data, work.layout.zero), (1, 8, 32, 3));
    assert!(form.sequence_parallel && form.f32_logits);
    // 8 sequences for each of 32 replicas, at once.
    assert_eq!((work.microbatches, work.microbatch_size, work.sequence), (1, 8, 8192));
    let training = &of.value["training"];
    assert_eq!((&training["dtype"], &training["recompute"]), (&json!("bf16"), &json!("full")));
    assert_eq!(training["tokens"], 1000 * 256 * 8192);
    let arguments = &of.arguments;
    assert!(arguments.not_known.is_empty() && arguments.not_modelled.is_empty(), "{arguments:?}");
    assert!(arguments.used.iter().any(|name| name == "training.seq_len"));
    assert!(arguments.harmless.iter().any(|name| name == "job.description"));
    // The same as JSON, as `job.save_config_file` writes it.
    let json = spec::parse(LLAMA_3_70B).unwrap().to_string();
    assert_eq!(imported(&json, Some(256)).value, of.value);
}

/// What is changed of the config, and what its spec then says.
#[test]
fn fields_decide_the_spec() {
    let with = |changes: &[(&str, &str)]| {
        let mut text = LLAMA_3_70B.to_owned();
        for (line, other) in changes {
            assert!(text.contains(line), "{line}");
            text = text.replace(line, other);
        }
        text
    };
    let pipeline = ("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 4");
    let of = imported(&with(&[pipeline]), Some(256));
    // Nothing is gathered for each microbatch, and gradients are reduced with the last.
    let expected = json!({
        "pipeline": 4, "tensor": 8, "data": 8, "sequence_parallel": true, "zero": 2,
        "reduce_gradients": "after-accumulation", "partition": [20, 21, 20, 19],
    });
    assert_eq!((&of.value["parallel"], &of.value["target"]), (&expected, &json!("torch")));
    assert_eq!((work(&of).microbatches, work(&of).microbatch_size), (8, 1));
    assert_eq!(of.value["schedule"], "1f1b");
    // Two stages for each rank, and ten microbatches in two rounds of five.
    let of = imported(
        &with(&[
            (
                "pipeline_parallel_degree = 1",
                "pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"Interleaved1F1B\"",
            ),
            ("local_batch_size = 8", "local_batch_size = 10"),
        ]),
        Some(256),
    );
    assert_eq!((&of.value["schedule"], &of.value["parallel"]["chunks"]), (&json!("interleaved-1f1b:5"), &json!(2)));
    assert_eq!(of.value["parallel"]["partition"], json!([10, 11, 10, 10, 10, 10, 10, 9]));
    for (name, ours, chunks) in [("ZBVZeroBubble", "zb-v", 2), ("DualPipeV", "dualpipe-v", 2), ("gpipe", "gpipe", 1)]
    {
        let line = format!("pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"{name}\"");
        let of = imported(&with(&[("pipeline_parallel_degree = 1", &line)]), Some(256));
        assert_eq!(of.value["schedule"], ours);
        assert_eq!(of.value["parallel"].get("chunks").and_then(Value::as_u64).unwrap_or(1), chunks);
    }
    // Groups of 16 × 2 devices share the weights among themselves.
    let of = imported(
        &with(&[
            ("replicate_degree = 1", "replicate_degree = 2"),
            ("shard_degree = -1", "shard_degree = 16"),
            ("tensor_parallel_degree = 8", "tensor_parallel_degree = 1"),
            ("context_parallel_degree = 1", "context_parallel_degree = 2"),
        ]),
        None,
    );
    let expected = json!({ "pipeline": 1, "tensor": 1, "data": 32, "context": 2, "zero": 3, "shard": 32 });
    assert_eq!(of.value["parallel"], expected);
    // Without FSDP there is no mixed precision beside tensor parallel.
    let of = imported(&with(&[("tensor_parallel_degree = 8", "tensor_parallel_degree = 8")]), Some(8));
    assert_eq!((&of.value["training"]["dtype"], of.value["parallel"].get("zero")), (&json!("f32"), None));
    // Every other layer.
    let of = imported(&with(&[("mode = \"full\"", "mode = \"selective\"\nselective_ac_option = \"2\"")]), Some(256));
    let recompute = of.value["training"]["recompute"].as_str().unwrap();
    assert_eq!((recompute.matches("1 none").count(), recompute.matches("1 full").count()), (40, 40));
    let of = imported(&with(&[("mode = \"full\"", "mode = \"selective\"\nselective_ac_option = \"op\"")]), Some(256));
    assert_eq!(of.value["training"]["recompute"], "cheap");
    assert!(of.arguments.not_modelled.contains_key("activation_checkpoint.selective_ac_option"));
    // Two rounds of a pipeline in a step.
    let of = imported(&with(&[pipeline, ("seq_len", "global_batch_size = 128\nseq_len")]), Some(256));
    assert_eq!(work(&of).microbatches, 16);
    assert!(of.arguments.not_modelled["training.global_batch_size"].contains("drains 2 times"));
    let float8 = ("# converters = [\"float8\"]", "converters = [\"float8\"]");
    let of = imported(&with(&[pipeline, float8]), Some(256));
    assert_eq!(of.value["training"]["matmul_dtype"], "fp8");
    let of = imported(&with(&[("enable = false\ncomponents", "enable = true\ncomponents")]), Some(256));
    assert_eq!(of.value["training"].get("f32_logits"), None);
}

/// Fields of versions before June 2025, and a spec of the same.
#[test]
fn older_names_are_read() {
    let text = r#"
[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
[training]
batch_size = 8
seq_len = 8192
steps = 10
data_parallel_degree = -1
tensor_parallel_degree = 2
compile = false
fp8_linear = ""
[experimental]
pipeline_parallel_degree = 4
pipeline_parallel_split_points = ["layers.8", "layers.16", "layers.24"]
pipeline_parallel_schedule = "interleaved_1f1b"
"#;
    let faults = refused(text, 64);
    assert!(faults.contains("experimental.pipeline_parallel_schedule: found 4 stages on 4 ranks"), "{faults}");
    let of = imported(&text.replace("interleaved_1f1b", "1f1b"), Some(64));
    let work = work(&of);
    // As many microbatches as ranks, as those versions had them.
    assert_eq!((work.microbatches, work.microbatch_size, work.layout.data), (4, 2, 8));
    assert_eq!((&of.value["parallel"]["partition"], work.pipeline), (&json!("layers"), 4));
    assert_eq!(of.value["training"]["recompute"].as_str().map(|text| text.matches("1 full").count()), Some(16));
}

#[test]
fn what_no_spec_says_is_refused_by_name() {
    let of = |line: &str, other: &str, devices: u64| {
        assert!(LLAMA_3_70B.contains(line), "{line}");
        refused(&LLAMA_3_70B.replace(line, other), devices)
    };
    let pipeline = "pipeline_parallel_degree = 1";
    for (line, other, devices, told) in [
        (
            "flavor = \"70B\"",
            "flavor = \"71B\"",
            256,
            "model.flavor: found \"71B\" of llama3, accepted is debugmodel, 8B, 70B, 405B",
        ),
        ("name = \"llama3\"", "name = \"flux\"", 256, "a flavour of deepseek_v3, gpt_oss, llama2, llama3"),
        ("seq_len = 8192", "seq_len = \"long\"", 256, "training.seq_len: found \"long\", accepted is a whole number"),
        (
            "tensor_parallel_degree = 8",
            "tensor_parallel_degree = 0",
            256,
            "parallelism.tensor_parallel_degree: found 0",
        ),
        ("shard_degree = -1", "shard_degree = 16", 256, "devices: found 256, accepted is 128"),
        ("# converters", "converters", 256, "model.converters: found \"float8\", accepted is nothing where"),
        ("mode = \"full\"", "mode = \"memory_budget\"", 256, "activation_checkpoint.mode: found \"memory_budget\""),
        ("name = \"AdamW\"", "name = \"Dion\"", 256, "optimizer.name: found \"Dion\""),
        (pipeline, "pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"2F2B\"", 256, "Interleaved1F1B"),
        (
            pipeline,
            "pipeline_parallel_degree = 4\npipeline_parallel_schedule_csv = \"a.csv\"",
            256,
            "plan --order FILE",
        ),
        (
            pipeline,
            "pipeline_parallel_degree = 4\npipeline_parallel_microbatch_size = 3",
            256,
            "a number that divides 8",
        ),
        (pipeline, "pipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 9", 256, "are 10 stages"),
        (
            pipeline,
            "pipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 7",
            256,
            "found 12 stages on 4 ranks",
        ),
        (
            pipeline,
            "pipeline_parallel_degree = 4\nmodule_fqns_per_model_part = [[\"layers.0\"]]",
            256,
            "each of 80 layers",
        ),
        (
            pipeline,
            "pipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [[\"tok_embeddings\", \"layers.1\"], [\"layers.0\", \"norm\", \"output\"]]",
            256,
            "once and in order",
        ),
        ("max_norm = 1.0", "global_batch_size = 100", 256, "a multiple of 256"),
        ("[job]", "[peft]\nenable_peft = true\n[job]", 256, "training.lora into a spec"),
        ("[job]", "[job", 256, "the job config: found"),
    ] {
        let faults = of(line, other, devices);
        assert!(faults.contains(told), "{other}: {faults}");
    }
    let faults = TrainingRun::read(LLAMA_3_70B).spec("h100", None).unwrap_err().to_string();
    assert!(faults.starts_with("devices: found nothing"), "{faults}");
    // A spec of this project is none of torchtitan.
    assert!(!TrainingRun::read("model.name = \"llama-3-8b\"\ntraining.sequence = 8192").is_any());
    let of = imported(&LLAMA_3_70B.replace("[job]", "[my]\nown = 1\n[job]"), Some(256));
    assert_eq!(of.arguments.not_known, ["my.own"]);
}

/// By hand: of five layers in four stages, ranks 0 and 1 count along their own stages, round after round or in a V.
#[test]
fn one_in_so_many_layers_of_a_rank_is_recomputed() {
    let of = |turns, every| Stages { counts: vec![1, 2, 1, 1], ranks: 2, turns }.one_in(every);
    // Rank 0 has layers 0 and 3, rank 1 has 1, 2 and 4.
    assert_eq!(of(false, 2), "2 none, 2 full, 1 none");
    // Rank 0 has layers 0 and 4, rank 1 has 1, 2 and 3.
    assert_eq!(of(true, 2), "2 none, 1 full, 1 none, 1 full");
    assert_eq!(of(true, 4), "none");
}

#[test]
fn parts_of_a_model_have_its_layers_in_order() {
    let parts = |text: &str| are_in_order(&serde_json::from_str::<Vec<Vec<String>>>(text).unwrap(), 2);
    assert!(parts(r#"[["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]"#));
    assert!(!parts(r#"[["tok_embeddings", "layers.1"], ["layers.0", "norm", "output"]]"#));
    assert!(!parts(r#"[["tok_embeddings", "layers.0", "layers.1", "norm", "output"], []]"#));
    assert!(!parts(r#"[["layers.0"], ["layers.1", "norm", "output"]]"#));
}

#[test]
fn what_torchtitan_has_no_pipeline_for_is_told() {
    let qwen = LLAMA_3_70B.replace("\"llama3\"", "\"qwen3\"").replace("\"70B\"", "\"8B\"");
    let of = imported(&qwen.replace("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 2"), Some(256));
    assert!(of.notes.iter().any(|note| note.contains("it has no pipeline for qwen3")), "{:?}", of.notes);
    // A script that writes its config is a script.
    let script =
        format!("cat > job.toml <<EOF{LLAMA_3_70B}EOF\ntorchrun -m torchtitan.train --job.config_file job.toml");
    let faults = TrainingRun::read(&script).spec("h100", Some(256)).unwrap_err().to_string();
    assert!(faults.contains("job.config_file") && !faults.contains("not TOML"), "{faults}");
}

/// As `run_train.sh` of v0.2.2: what the command says counts, whatever its file says.
#[test]
fn a_script_may_name_the_config() {
    let script = "NGPU=${NGPU:-\"8\"}\nCONFIG_FILE=${CONFIG_FILE:-\"./train_configs/llama3_70b.toml\"}\n\
                  torchrun --nproc_per_node=${NGPU} --nnodes 32 -m torchtitan.train --job.config_file ${CONFIG_FILE} \
                  --training.seq_len 4096 --parallelism.pipeline_parallel_degree=2 --compile.enable \"$@\"";
    let run = TrainingRun::read(script);
    let path = "train_configs/llama3_70b.toml";
    assert_eq!(run.wanted_files().iter().collect::<Vec<_>>(), [path]);
    let faults = run.spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("job.config_file: found \"./train_configs/llama3_70b.toml\""), "{faults}");
    let mut given = Given::default();
    given.files.insert(path.into(), LLAMA_3_70B.into());
    let run = TrainingRun::read_with(script, &given);
    let of = run.spec("h100", None).unwrap_or_else(|faults| panic!("{faults}"));
    let work = work(&of);
    assert_eq!((work.devices(), work.sequence, work.pipeline, work.layout.form.tensor), (256, 4096, 2, 8));
    assert!(run.wanted_files().is_empty() && of.arguments.not_known.is_empty(), "{:?}", of.arguments);
    given.files.insert(path.into(), "a = 1".into());
    let faults = TrainingRun::read_with(script, &given).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("TOML with [model] and its flavor"), "{faults}");
}
