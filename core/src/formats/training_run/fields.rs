//! What is done with each field of frameworks whose names have dots.

use super::known::Table;

/// Those of torchtitan's job config.
pub(super) const TORCHTITAN: Table = Table {
    used: &[
        "\
     job.config_file= model.name= model.flavor= model.converters+ model.handlers+ training.local_batch_size=
     training.batch_size= training.global_batch_size= training.seq_len= training.steps= training.dtype=
     training.mixed_precision_param= training.mixed_precision_reduce= training.enable_cpu_offload
     training.compile compile.enable compile.components+ optimizer.name= activation_checkpoint.mode=
     activation_checkpoint.selective_ac_option= \
     ",
        "\
     parallelism.data_parallel_replicate_degree= parallelism.data_parallel_shard_degree=
     parallelism.fsdp_reshard_after_forward= parallelism.tensor_parallel_degree= parallelism.pipeline_parallel_degree=
     parallelism.module_fqns_per_model_part+ parallelism.pipeline_parallel_first_stage_less_layers=
     parallelism.pipeline_parallel_last_stage_less_layers= parallelism.pipeline_parallel_layers_per_stage=
     parallelism.pipeline_parallel_schedule= parallelism.pipeline_parallel_split_points+
     parallelism.pipeline_parallel_microbatch_size= parallelism.pipeline_parallel_expert_parallel_overlap
     parallelism.context_parallel_degree= parallelism.expert_parallel_degree=
     parallelism.expert_tensor_parallel_degree= parallelism.expert_parallel_comm_backend= \
     ",
        "\
     training.data_parallel_degree= training.data_parallel_replicate_degree= training.data_parallel_shard_degree=
     training.fsdp_reshard_after_forward= training.tensor_parallel_degree= training.sequence_parallel_degree=
     training.pipeline_parallel_degree= experimental.pipeline_parallel_degree= experimental.context_parallel_degree=
     experimental.pipeline_parallel_schedule= experimental.pipeline_parallel_split_points+
     experimental.pipeline_parallel_microbatches= training.fp8_linear= training.enable_fp8_linear
     training.enable_float8_linear float8.enable_float8_linear float8.filter_fqns+ float8.recipe_name= mx.filter_fqns+
     float8.enable_fsdp_float8_all_gather quantize.linear.float8.filter_fqns+ quantize.linear.mx.filter_fqns+
     quantize.linear.float8.enable_fsdp_float8_all_gather \
     ",
    ],
    told: &[
        (
            "parallelism.enable_async_tensor_parallel experimental.enable_async_tensor_parallel",
            "",
            "planned without overlap of tensor parallel communication",
        ),
        ("parallelism.disable_loss_parallel", "", "planned with a loss over a vocabulary that tensor parallel splits"),
        (
            "parallelism.context_parallel_rotate_method= experimental.context_parallel_rotate_method=",
            "",
            "planned as a ring of sends",
        ),
        (
            "parallelism.context_parallel_load_balancer=",
            "headtail",
            "planned with two pieces of each sequence for a device",
        ),
        ("optimizer.early_step_in_backward", "", "planned with gradients that are kept until the step"),
        ("model.norm_type=", "rmsnorm fused_rmsnorm compiled_rmsnorm fusedrms", "planned with RMSNorm"),
        ("model.vocab_size= model.use_flex_attn", "", "planned with what the flavour says"),
        ("fault_tolerance.enable fault_tolerance.semi_sync_method=", "", "planned as one group of replicas"),
        ("activation_checkpoint.cpu_offload", "", "planned without offload: training.offload of a spec has it"),
        ("job.custom_config_module= experimental.custom_import= experimental.custom_args_module=", "", "not read"),
    ],
    refused: &[
        (
            "parallelism.pipeline_parallel_schedule_csv= experimental.pipeline_parallel_schedule_csv=",
            "",
            "a custom order: take this out, and plan the spec with `pipeplan plan --order FILE`",
        ),
        ("activation_checkpointing.*", "", "an older table: write [activation_checkpoint] with mode = \"full\""),
        (
            "experimental.expert_parallel_mode= experimental.expert_parallel_degree= parallelism.enable_tp2ep",
            "none 1",
            "an older name: write parallelism.expert_parallel_degree and parallelism.expert_tensor_parallel_degree",
        ),
        ("lora.* peft.*", "", "adapters of a fork of torchtitan: write training.lora into a spec"),
        ("optimizer.cpu_offload", "", "a field of a fork of torchtitan: write training.offload_optimizer into a spec"),
    ],
    harmless: &["\
     job.* profiling.* metrics.* lr_scheduler.* scheduler.* checkpoint.* comm.* validation.* memory_estimation.* debug.*
     float8.* mx.* quantize.* model.hf_assets_path= model.hf_asset_path= model.tokenizer_path= model.tokenizer_backend=
     model.print_after_conversion model.init_weights optimizer.lr= optimizer.beta1= optimizer.beta2= optimizer.eps=
     optimizer.weight_decay= optimizer.implementation= optimizer.fused optimizer.foreach training.dataset=
     training.dataset_path= training.max_norm= training.seed= training.deterministic training.gc_freq=
     training.gc_debug training.warmup_steps= training.dataloader.* training.data.* training.checkpoint_folder=
     training.checkpoint_interval= training.checkpoint_interval_type= training.debug_moe_force_load_balance
     training.precompute_float8_dynamic_scale_for_fsdp training.enable_fsdp_float8_all_gather
     training.enable_fsdp_fp8_all_gather activation_checkpoint.preserve_rng_state activation_checkpoint.early_stop
     activation_checkpoint.determinism_check= activation_checkpoint.debug activation_checkpoint.memory_budget=
     activation_checkpoint.visualize_memory_budget_pareto compile.backend= compile.fullgraph
     activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns+ fault_tolerance.*
     parallelism.enable_compiled_autograd experimental.enable_compiled_autograd dataloader.* \
     "],
};

/// Overrides of verl's configuration.
pub(super) const VERL: Table = Table {
    used: &["\
     actor_rollout_ref.model.path= actor_rollout_ref.model.enable_gradient_checkpointing=
     actor_rollout_ref.model.use_fused_kernels= actor_rollout_ref.model.lora_rank= actor_rollout_ref.model.lora_alpha=
     actor_rollout_ref.model.target_modules= actor_rollout_ref.model.lora.rank= actor_rollout_ref.model.lora.alpha=
     actor_rollout_ref.model.lora.target_modules= actor_rollout_ref.actor.strategy=
     actor_rollout_ref.actor.ppo_mini_batch_size= actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=
     actor_rollout_ref.actor.use_dynamic_bsz= actor_rollout_ref.actor.ppo_max_token_len_per_gpu=
     actor_rollout_ref.actor.megatron.tensor_model_parallel_size=
     actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=
     actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=
     actor_rollout_ref.actor.megatron.context_parallel_size=
     actor_rollout_ref.actor.megatron.expert_model_parallel_size=
     actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=
     actor_rollout_ref.actor.megatron.sequence_parallel= actor_rollout_ref.actor.megatron.use_distributed_optimizer=
     actor_rollout_ref.actor.megatron.use_megatron_fsdp= actor_rollout_ref.actor.megatron.dtype=
     actor_rollout_ref.actor.optim.optimizer= actor_rollout_ref.actor.optim.use_precision_aware_optimizer=
     actor_rollout_ref.actor.optim.main_grads_dtype= actor_rollout_ref.actor.optim.exp_avg_dtype=
     actor_rollout_ref.actor.optim.exp_avg_sq_dtype= actor_rollout_ref.actor.fsdp_config.strategy=
     actor_rollout_ref.actor.fsdp_config.fsdp_size= actor_rollout_ref.actor.fsdp_config.reshard_after_forward=
     actor_rollout_ref.actor.fsdp_config.offload_policy= actor_rollout_ref.rollout.n= data.max_prompt_length=
     data.max_response_length= trainer.n_gpus_per_node= trainer.nnodes= \
     "],
    told: &[
        (
            "actor_rollout_ref.actor.megatron.param_offload= actor_rollout_ref.actor.megatron.grad_offload= \
             actor_rollout_ref.actor.megatron.optimizer_offload= actor_rollout_ref.actor.fsdp_config.param_offload= \
             actor_rollout_ref.actor.fsdp_config.optimizer_offload=",
            "",
            "planned as they lie during the actor's training step: on the device",
        ),
        ("actor_rollout_ref.model.enable_activation_offload=", "", "planned without: training.offload of a spec has it"),
        (
            "actor_rollout_ref.model.mtp.enable= actor_rollout_ref.model.mtp.enable_train=",
            "",
            "planned without MTP modules: model.multi_token of a spec has them",
        ),
        ("actor_rollout_ref.actor.use_kl_loss=", "", "planned without the forward of the reference model"),
        (
            "actor_rollout_ref.actor.fsdp_config.model_dtype= actor_rollout_ref.actor.fsdp_config.mixed_precision.*",
            "fp32 float32",
            "planned in bf16 with master weights in f32",
        ),
        ("actor_rollout_ref.actor.ppo_epochs=", "1", "planned as one step"),
        ("actor_rollout_ref.actor.entropy_from_logits_with_chunking=", "", "planned without chunks"),
    ],
    refused: &[
        (
            "actor_rollout_ref.actor.torchtitan.* actor_rollout_ref.actor.veomni.* actor_rollout_ref.actor.engine.* \
             actor_rollout_ref.actor.automodel.*",
            "",
            "of verl's engines Megatron-LM and FSDP are planned",
        ),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size= \
             actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=",
            "1",
            "the exchange of DeepSpeed-Ulysses is not planned: take it out, or write parallel.context into a spec",
        ),
        (
            "actor_rollout_ref.actor.ppo_micro_batch_size=",
            "null None",
            "write ppo_micro_batch_size_per_gpu, the sequences of one device",
        ),
        ("actor_rollout_ref.actor.megatron.qat.enable= actor_rollout_ref.actor.qat.*", "", "such training is not planned"),
        (
            "actor_rollout_ref.model.override_config.num_hidden_layers= \
             actor_rollout_ref.model.override_config.model_config.num_hidden_layers=",
            "",
            "change the model's config.json, and give it as --config FILE",
        ),
    ],
    harmless: &["\
     algorithm.* reward.* reward_model.* reward_manager.* custom_reward_function.* critic.* data.* trainer.* ray_kwargs.* ray_init.*
     global_profiler.* transfer_queue.* async_training.* distillation.* rollout.* hydra.* actor_rollout_ref.rollout.*
     actor_rollout_ref.ref.* actor_rollout_ref.hybrid_engine= actor_rollout_ref.nccl_timeout=
     actor_rollout_ref.checkpoint_engine.* actor_rollout_ref.actor.optim.* actor_rollout_ref.actor.checkpoint.*
     actor_rollout_ref.actor.policy_loss.* actor_rollout_ref.actor.profiler.* actor_rollout_ref.actor.router_replay.*
     actor_rollout_ref.actor.clip_ratio= actor_rollout_ref.actor.clip_ratio_low= actor_rollout_ref.actor.clip_ratio_high=
     actor_rollout_ref.actor.clip_ratio_c= actor_rollout_ref.actor.loss_agg_mode= actor_rollout_ref.actor.entropy_coeff=
     actor_rollout_ref.actor.entropy_checkpointing= actor_rollout_ref.actor.calculate_entropy=
     actor_rollout_ref.actor.calculate_sum_pi_squared= actor_rollout_ref.actor.kl_loss_coef=
     actor_rollout_ref.actor.kl_loss_type= actor_rollout_ref.actor.grad_clip= actor_rollout_ref.actor.shuffle=
     actor_rollout_ref.actor.data_loader_seed= actor_rollout_ref.actor.use_torch_compile=
     actor_rollout_ref.actor.use_prefix_grouper= actor_rollout_ref.actor.pad_to_length=
     actor_rollout_ref.actor.loss_scale_factor= actor_rollout_ref.actor.model_engine=
     actor_rollout_ref.actor.fsdp_config.forward_prefetch= actor_rollout_ref.actor.fsdp_config.entropy_checkpointing=
     actor_rollout_ref.actor.fsdp_config.entropy_from_logits_with_chunking= actor_rollout_ref.actor.fsdp_config.seed=
     actor_rollout_ref.actor.fsdp_config.use_orig_params= actor_rollout_ref.actor.fsdp_config.use_torch_compile=
     actor_rollout_ref.actor.fsdp_config.wrap_policy.* actor_rollout_ref.actor.megatron.use_dist_checkpointing=
     actor_rollout_ref.actor.megatron.dist_checkpointing_path= actor_rollout_ref.actor.megatron.use_mbridge=
     actor_rollout_ref.actor.megatron.vanilla_mbridge= actor_rollout_ref.actor.megatron.use_remove_padding=
     actor_rollout_ref.actor.megatron.seed= actor_rollout_ref.actor.megatron.router_replay.*
     actor_rollout_ref.model.use_remove_padding= actor_rollout_ref.model.trust_remote_code=
     actor_rollout_ref.model.use_shm= actor_rollout_ref.model.external_lib= actor_rollout_ref.model.tokenizer_path=
     actor_rollout_ref.model.lora_adapter_path= actor_rollout_ref.model.exclude_modules=
     actor_rollout_ref.model.lora.* actor_rollout_ref.model.mtp.* actor_rollout_ref.model.fused_kernel_options.*
     actor_rollout_ref.model.use_liger= actor_rollout_ref.model.override_config.* \
     "],
};

/// Tables whose entries are Megatron-LM's own.
const OF_MEGATRON: [&str; 3] = [
    "actor_rollout_ref.actor.megatron.override_transformer_config.",
    "actor_rollout_ref.actor.megatron.override_ddp_config.",
    "actor_rollout_ref.actor.optim.override_optimizer_config.",
];

/// What Megatron Core calls otherwise than Megatron-LM's arguments.
const RENAMED: [(&str, &str); 2] = [
    ("num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers"),
    ("num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers"),
];

/// Megatron-LM's name of an entry of such a table.
pub(super) fn of_megatron(name: &str) -> Option<&str> {
    let own = OF_MEGATRON.iter().find_map(|table| name.strip_prefix(table))?;
    Some(RENAMED.iter().find(|(core, _)| *core == own).map_or(own, |(_, other)| other))
}

/// Whether a word tells a command of verl.
pub(super) fn is_of_verl(word: &str) -> bool {
    word.trim_start_matches('+').starts_with("actor_rollout_ref.")
}
