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
