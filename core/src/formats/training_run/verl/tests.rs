use alloc::vec;

use super::*;
use crate::formats::training_run::{Given, Imported};
use crate::graph::layout::Partition;
use crate::spec::{ModelWork, Work};

/// The form of `examples/grpo_trainer/run_deepseek_v3_671b_megatron.sh` (2026-08-22), with its values.
const DEEPSEEK_V3: &str = r#"
MODEL_PATH=${MODEL_PATH:-deepseek-ai/DeepSeek-V3}
NNODES=${NNODES:-12}
max_prompt_length=${MAX_PROMPT_LENGTH:-2048}
max_response_length=${MAX_RESPONSE_LENGTH:-8192}
train_files=$HOME/data/dapo-math-17k.parquet
MODEL=(
    actor_rollout_ref.model.path="$MODEL_PATH"
    actor_rollout_ref.model.use_fused_kernels=True
)
ACTOR=(
    actor_rollout_ref.actor.optim.lr=1e-6
    +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=1.0
    +actor_rollout_ref.actor.optim.override_optimizer_config.use_precision_aware_optimizer=True
    +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((max_prompt_length + max_response_length))
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.clip_ratio_c=10.0
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=12
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=8
    actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1
    actor_rollout_ref.actor.megatron.context_parallel_size=1
    actor_rollout_ref.actor.megatron.param_offload=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_enable_deepep=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_token_dispatcher_type=flex
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
    +actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=6
)
python3 -m verl.trainer.main_ppo model_engine=megatron data.train_files="$train_files" \
    data.max_prompt_length=${max_prompt_length} data.max_response_length=${max_response_length} \
    "${MODEL[@]}" "${ACTOR[@]}" actor_rollout_ref.rollout.n=8 \
    trainer.n_gpus_per_node=8 trainer.nnodes=${NNODES} "$@"
"#;

fn read(text: &str) -> Imported {
    TrainingRun::read(text).spec("h100", None).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
}

fn work(imported: &Imported) -> &ModelWork {
    match &imported.spec.work {
        Work::Model(work) => work,
        Work::Typed(_) => panic!("a model"),
    }
}

#[test]
fn the_step_of_an_actor_on_megatron_is_read() {
    let of = read(DEEPSEEK_V3);
    let known = catalog::find("deepseek-v3").unwrap().config;
    let of_work = work(&of);
    // As published, without the MTP module.
    assert_eq!((of_work.model.parameters(), of_work.model.variant.multi_token), (known.parameters(), 0));
    let form = &of_work.layout.form;
    assert_eq!((of_work.pipeline, form.tensor, form.expert, of_work.layout.data), (12, 8, 8, 1));
    assert!(form.sequence_parallel && of_work.layout.offload_optimizer && !form.f32_logits);
    // 61 layers, of which the last stage has 6.
    let mut stages = vec![5; 12];
    stages[11] = 6;
    assert_eq!(of_work.layout.partition, Partition::ByHand(stages));
    // 32 prompts of 8 answers, each of which fills a microbatch.
    assert_eq!((of_work.microbatches, of_work.microbatch_size, of_work.sequence), (256, 1, 10_240));
    assert_eq!(of.value["parallel"]["expert_tensor"], 1);
    assert_eq!(of.value["parallel"]["dispatch"], "once-per-node");
    assert_eq!(of.value["training"]["recompute"], "full");
    let arguments = &of.arguments;
    assert!(arguments.not_known.is_empty(), "{arguments:?}");
    for told in ["megatron.param_offload", "use_dynamic_bsz", "use_kl_loss"] {
        assert!(arguments.not_modelled.contains_key(&format!("{ACTOR}{told}")), "{told}: {arguments:?}");
    }
    assert!(arguments.used.iter().any(|name| name.ends_with("override_transformer_config.recompute_granularity")));
    assert!(arguments.harmless.iter().any(|name| name == "data.train_files"));
}

/// The form of `examples/grpo_trainer/run_qwen3_8b_fsdp.sh`.
#[test]
fn an_actor_on_fsdp_has_no_pipeline() {
    let text = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$HOME/models/Qwen3-8B \
                actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \
                actor_rollout_ref.actor.fsdp_config.param_offload=False data.max_prompt_length=512 \
                data.max_response_length=1024 actor_rollout_ref.rollout.n=5 trainer.n_gpus_per_node=8 trainer.nnodes=2";
    let of = read(text);
    let of_work = work(&of);
    assert_eq!(of_work.model, catalog::find("qwen-3-8b").unwrap().config);
    assert_eq!((of_work.pipeline, of_work.layout.data, of_work.layout.zero), (1, 16, 3));
    assert_eq!((of_work.microbatches, of_work.microbatch_size, of_work.sequence), (5, 16, 1536));
    assert_eq!(of.value["training"]["recompute"], "full");
    // 80 sequences of a replica, in microbatches of at most 9.
    let dynamic =
        "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=14000";
    let of = read(&format!("{text} {dynamic}"));
    assert_eq!((work(&of).microbatches, work(&of).microbatch_size), (10, 8));
    let sharded = read(&format!("{text} actor_rollout_ref.actor.fsdp_config.fsdp_size=8"));
    assert_eq!(sharded.value["parallel"]["shard"], 8);
    // The same where a person says the devices; replicas that do not shard; and a group that does not divide them.
    let without = text.replace(" trainer.nnodes=2", "").replace("trainer.n_gpus_per_node=8", "");
    let with = |size: u64| {
        let text = format!("{without} actor_rollout_ref.actor.fsdp_config.fsdp_size={size}");
        TrainingRun::read(&text).spec("h100", Some(16))
    };
    assert_eq!(with(8).unwrap().value["parallel"], sharded.value["parallel"]);
    assert_eq!(with(1).unwrap().value["parallel"].get("zero"), None);
    let faults = with(5).unwrap_err().to_string();
    assert!(faults.contains("fsdp_size: found 5, accepted is a number that divides the 16 devices"), "{faults}");
    // Each engine has names of its own for adapters.
    let adapters = |rank: &str| read(&format!("{text} actor_rollout_ref.model.{rank}"));
    assert_eq!(adapters("lora_rank=32").value["training"]["lora"]["rank"], 32);
    let other = adapters("lora.rank=16");
    assert_eq!(other.value["training"].get("lora"), None);
    assert!(other.notes.iter().any(|note| note.contains("lora.rank: not read")), "{:?}", other.notes);
    // A file of values that nobody reads is told.
    let named = read(&text.replace("main_ppo ", "main_ppo --config-path=./config --config-name='my_run' "));
    assert!(named.notes.iter().any(|note| note.contains("--config-name my_run: what that file says is not read")));
}

/// Formats of the optimizer, by verl's own names as by Megatron Core's.
#[test]
fn formats_of_the_optimizer_are_those_that_verl_says() {
    let with = |table: &str| {
        let line = format!(
            "{table}main_grads_dtype=bf16 {table}exp_avg_dtype=bf16 {table}exp_avg_sq_dtype=bf16 trainer.n_gpus_per_node"
        );
        read(&DEEPSEEK_V3.replace("trainer.n_gpus_per_node", &line)).value["training"].clone()
    };
    let own = with("actor_rollout_ref.actor.optim.");
    assert_eq!((&own["gradients_dtype"], &own["moments_dtype"]), (&json!("bf16"), &json!("bf16")));
    assert_eq!(with("+actor_rollout_ref.actor.optim.override_optimizer_config."), own);
}

#[test]
fn the_largest_divisor_is_found_in_few_steps() {
    for (whole, most, expected) in
        [(80, 9, 8), (97, 96, 1), (97, 97, 97), (1, 5, 1), (1 << 44, (1 << 30) + 1, 1 << 30)]
    {
        assert_eq!(largest_divisor(whole, most), expected);
    }
}

#[test]
fn a_model_is_one_of_the_catalog_or_given() {
    for (path, name) in [
        ("Qwen/Qwen3-30B-A3B-Base", Some("qwen-3-30b-a3b")),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", Some("qwen-3-30b-a3b")),
        ("Qwen/Qwen2.5-7B-Instruct", Some("qwen-2.5-7b")),
        ("meta-llama/Llama-3.1-8B-Instruct", Some("llama-3-8b")),
        ("meta-llama/Llama-2-70b-hf", Some("llama-2-70b")),
        ("mistralai/Mixtral-8x7B-v0.1", Some("mixtral-8x7b")),
        ("models/DeepSeek-V3-0324/", Some("deepseek-v3")),
        ("Qwen/Qwen3-VL-8B-Instruct", None),
        ("Qwen/Qwen2.5-Math-7B", None),
        ("", None),
    ] {
        assert_eq!(in_catalog(path).map(|entry| entry.name), name, "{path}");
    }
    let own = DEEPSEEK_V3.replace("deepseek-ai/DeepSeek-V3", "own/model");
    let faults = TrainingRun::read(&own).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("actor_rollout_ref.model.path: found \"own/model\"") && faults.contains("--config FILE"));
    // Llama 3 8B, in 12 stages of which the last has 6 layers more than divide.
    let config = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-05,
        "hidden_act": "silu", "rope_scaling": null, "tie_word_embeddings": false}"#;
    let dense = own
        .replace("pipeline_stage=6", "pipeline_stage=10")
        .replace("expert_model_parallel_size=8", "expert_model_parallel_size=1");
    let given = Given { config: Some(config.into()), ..Given::default() };
    let of = TrainingRun::read_with(&dense, &given).spec("h100", None).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(work(&of).model.parameters(), 8_030_261_248);
    assert_eq!(of.value["model"]["config"].get("rope_scaling"), None);
    for wrong in ["{", "{}", "[]"] {
        let given = Given { config: Some(wrong.into()), ..Given::default() };
        let faults = TrainingRun::read_with(&dense, &given).spec("h100", None).unwrap_err().to_string();
        assert!(faults.contains("--config: found"), "{wrong}: {faults}");
    }
}

#[test]
fn what_cannot_be_planned_is_refused_by_its_override() {
    for (line, other, told) in [
        (
            "size=8\n    actor_rollout_ref.actor.megatron.pipeline",
            "size=many\n    actor_rollout_ref.actor.megatron.pipeline",
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size: found \"many\"",
        ),
        ("ppo_mini_batch_size=32", "ppo_mini_batch_size=0", "actor_rollout_ref.actor.ppo_mini_batch_size: found 0"),
        ("optim.lr=1e-6", "optim.optimizer=lion", "actor_rollout_ref.actor.optim.optimizer: found \"lion\""),
        ("optim.lr=1e-6", "ulysses_sequence_parallel_size=4", "DeepSpeed-Ulysses is not planned"),
        ("optim.lr=1e-6", "veomni.fsdp_size=8", "of verl's engines"),
        ("optim.lr=1e-6", "strategy=veomni", "actor.strategy: found \"veomni\", accepted is megatron, fsdp"),
        ("model_engine=megatron", "model_engine=automodel", "model_engine: found \"automodel\""),
        ("optim.lr=1e-6", "ppo_micro_batch_size=8", "write ppo_micro_batch_size_per_gpu"),
        ("recompute_method=uniform", "hybrid_override_pattern=M-M*", "hybrid_override_pattern: found \"M-M*\""),
        (
            "trainer.nnodes=${NNODES}",
            "trainer.nnodes=$N",
            "devices: found $N, accepted is the value of a variable: --set N=VALUE, or --devices COUNT",
        ),
        ("data.max_prompt_length=${max_prompt_length}", "data.max_prompt_length=$LENGTH", "--set LENGTH=VALUE"),
    ] {
        assert!(DEEPSEEK_V3.contains(line), "{line}");
        let run = TrainingRun::read(&DEEPSEEK_V3.replace(line, other));
        let faults = run.spec("h100", None).expect_err(other).to_string();
        assert!(faults.contains(told), "{other}: {faults}");
    }
    let more = DEEPSEEK_V3.replace("optim.lr=1e-6", "my_own=1");
    assert_eq!(read(&more).arguments.not_known, ["actor_rollout_ref.actor.my_own"]);
}

/// A program that is the value of an override is not the one that trains, wherever it stands.
#[test]
fn the_value_of_an_override_is_no_program() {
    let own = read(DEEPSEEK_V3);
    let scored =
        DEEPSEEK_V3.replace("trainer.n_gpus", "reward.custom_reward_function.path=\"$HOME/score.py\" trainer.n_gpus");
    assert_eq!(read(&scored).value, own.value);
}

#[test]
fn the_dtype_of_weights_is_used_or_refused() {
    let with = |dtype: &str| {
        DEEPSEEK_V3
            .replace("trainer.n_gpus", &format!("actor_rollout_ref.actor.megatron.dtype={dtype} trainer.n_gpus"))
    };
    let own = read(DEEPSEEK_V3);
    assert_eq!(own.value["training"]["dtype"], "bf16");
    assert_eq!(read(&with("bfloat16")).value, own.value);
    // As many bytes, and told.
    let half = read(&with("float16"));
    assert_eq!(half.value, own.value);
    assert!(half.notes.iter().any(|note| note.contains("planned as bf16")), "{:?}", half.notes);
    let faults = TrainingRun::read(&with("fp4")).spec("h100", None).unwrap_err().to_string();
    assert!(faults.contains("megatron.dtype: found \"fp4\", accepted is bfloat16, float16 or float32"), "{faults}");
}
