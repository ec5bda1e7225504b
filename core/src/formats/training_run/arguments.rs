//! What each argument of Megatron-LM decides: the model, order, memory or time of a plan, or none of them.
//!
//! The names are facts of `megatron/training/arguments.py` and the classes from which it makes arguments, of the versions
//! `core_v0.5.0` to `core_v0.19.0`, of the main branch of 2026-08-22 and of Megatron-LM 2.5. Names of its relatives (MindSpeed,
//! the zero-bubble forks, ms-swift, Megatron-DeepSpeed, slime, NeMo) and of launchers stand apart. `tests/reference/megatron_arguments.txt` has the list, and a
//! test finds each of its names here.

use alloc::format;
use alloc::string::String;

use super::fields;
use super::known::Table;
pub use super::known::{Class, Known, Values};

/// An argument by its name, with dashes or underscores between its words. Those with dots are of torchtitan or verl.
pub fn find(name: &str) -> Option<Known> {
    let name: String = name.trim_start_matches('-').replace('-', "_");
    if name.contains('.') {
        return match fields::of_megatron(&name) {
            Some(own) => MEGATRON.find(own),
            None => fields::TORCHTITAN.find(&name).or_else(|| fields::VERL.find(&name)),
        };
    }
    // What slime hands on to its engine of rollouts.
    if name.starts_with("sglang_") {
        return Some(Known { class: Class::Harmless, values: Values::Many, neutral: "" });
    }
    MEGATRON.find(&name)
}

/// An argument as it is typed: `--num-layers`, and `training.seq_len` of a table.
pub fn typed(name: &str) -> String {
    if name.contains('.') { name.into() } else { format!("--{}", name.replace('_', "-")) }
}

/// Those of Megatron-LM, and of its relatives and launchers.
const MEGATRON: Table = Table { used: &USED, told: &TOLD, refused: &REFUSED, harmless: &HARMLESS };

/// Used. `=` takes one value, `+` several; the second text has names that only logs have, the third those of relatives, the
/// fourth those of Megatron-DeepSpeed and slime.
const USED: [&str; 4] = [
    "\
     num_layers= hidden_size= ffn_hidden_size= num_attention_heads= group_query_attention num_query_groups=
     kv_channels= max_position_embeddings= position_embedding_type= use_rotary_position_embeddings rotary_base=
     rotary_percent= no_position_embedding make_vocab_size_divisible_by= vocab_size= padded_vocab_size=
     disable_pad_vocab_size no_pad_vocab_size untie_embeddings_and_output_weights swiglu quick_geglu normalization=
     norm_epsilon= layernorm_epsilon= apply_layernorm_1p disable_bias_linear add_qkv_bias qk_layernorm
     attention_dropout= hidden_dropout= micro_batch_size= global_batch_size= train_iters= train_samples= seq_length=
     encoder_seq_length= bf16 fp16 fp8_format= main_grads_dtype= exp_avg_dtype= exp_avg_sq_dtype= grad_reduce_in_bf16
     recompute_granularity= recompute_method= recompute_num_layers= recompute_modules+ recompute_activations
     moe_layer_recompute tensor_model_parallel_size= pipeline_model_parallel_size= context_parallel_size=
     expert_model_parallel_size= expert_tensor_parallel_size= sequence_parallel
     num_layers_per_virtual_pipeline_stage= num_virtual_stages_per_pipeline_rank= pipeline_model_parallel_layout=
     decoder_first_pipeline_num_layers= decoder_last_pipeline_num_layers= account_for_embedding_in_pipeline_split
     account_for_loss_in_pipeline_split microbatch_group_size_per_virtual_pipeline_stage= use_distributed_optimizer
     num_distributed_optimizer_instances= data_parallel_sharding_strategy= use_megatron_fsdp use_torch_fsdp2
     use_custom_fsdp optimizer_cpu_offload optimizer= sgd_momentum= fp4_format= fp4_recipe= fp8_recipe= muon_scalar_optimizer=
     num_experts= moe_router_topk= moe_ffn_hidden_size=
     moe_shared_expert_intermediate_size= moe_shared_expert_gate moe_layer_freq= moe_router_score_function=
     moe_router_topk_scaling_factor= moe_router_num_groups= moe_router_group_topk= multi_latent_attention
     q_lora_rank= kv_lora_rank= qk_head_dim= qk_pos_emb_head_dim= v_head_dim= mtp_num_layers= window_size=
     window_attn_skip_freq= attention_backend= transformer_impl= use_flash_attn cross_entropy_loss_fusion
     fp16_lm_cross_entropy overlap_moe_expert_parallel_comm moe_enable_deepep moe_flex_dispatcher_backend=
     moe_token_dispatcher_type= softmax_type= no_rope_freq= squared_relu glu_linear_offset=
     activation_func_clamp_value= attention_output_gate overlap_grad_reduce overlap_param_gather \
     ",
    "\
     add_bias_linear= add_position_embedding= data_parallel_size= fp4= fp8= layernorm_zero_centered_gamma=
     microbatch_group_size_per_vp_stage= num_moe_experts= pad_vocab_size= virtual_pipeline_model_parallel_size=
     world_size= \
     ",
    "\
     first_k_dense_replace= n_shared_experts= moe_intermediate_size= qk_rope_head_dim= qk_nope_head_dim=
     multi_head_latent_attention enable_zero_bubble zero_bubble_v_schedule zero_bubble_v_schedule_mem_setup= enable_zb_runtime schedules_method=
     num_layer_list= train_type= tuner_type= lora_rank= lora_alpha= target_modules+ lora_r=
     lora_target_modules+ \
     ",
    "\
     num_key_value_heads= rotary_position_embeddings_theta= zero_stage= cpu_optimizer enable_zbh1_pipeline deepspeed
     post_self_attn_layernorm post_mlp_layernorm
     use_flash_attn_v1 use_flash_attn_v2 use_flash_attn_triton use_flash_attn_builder actor_num_nodes=
     max_length= actor_num_gpus_per_node= rollout_batch_size= n_samples_per_prompt= num_steps_per_rollout= model_engine=
     config_name= \
     ",
];

/// Planned otherwise: names, values that change nothing, how it is planned.
const TOLD: [(&str, &str, &str); 67] = [
    (
        "freeze_ViT freeze_vit= freeze_aligner= freeze_vision_model freeze_vision_projection",
        "",
        "planned without the vision tower: model.vision and training.frozen of a spec have it",
    ),
    ("vision_model_type= language_model_type=", "", "planned as the decoder that the other arguments describe"),
    ("recompute_vision pixel_shuffle use_tiling use_thumbnail max_num_tiles=", "", "planned without images"),
    ("enable_gpt_oss", "", "planned with what the other arguments say"),
    ("qk_l2_norm", "", "planned without: it has no weights"),
    ("qk_clip moe_paged_stash batch_invariant_mode swap_attention swap_optimizer", "", "planned without"),
    ("apply_residual_connection_post_layernorm", "", "planned with the residual stream before the norm"),
    ("mtp_detach_heads", "", "planned as MTP modules that train the whole model"),
    ("hierarchical_context_parallel_sizes+", "", "planned as one ring"),
    ("cp_comm_type+", "p2p ['p2p']", "planned as a ring of sends"),
    ("optimizer_offload_fraction=", "1.0 1", "planned with all of the optimizer offloaded"),
    ("rampup_batch_size+", "", "planned with the batch at its end"),
    ("step_batch_size_schedule=", "", "planned with its first batch"),
    ("fp8_param_gather fp4_param_gather", "", "planned with weights in bf16"),
    ("first_last_layers_bf16", "", "planned with every layer in FP8"),
    ("fp8_output_proj", "", "planned with the output layer in bf16"),
    ("main_params_dtype=", "fp32 torch.float32", "planned with master weights in f32"),
    ("tp_comm_overlap use_mc2 use_ascend_mc2", "", "planned without overlap of tensor parallel communication"),
    (
        "overlap_param_gather_with_optimizer_step overlap_dispatch_backward_with_experts_wgrad",
        "",
        "planned without that overlap",
    ),
    (
        "overlap_p2p_communication_warmup_flush overlap_p2p_comm_warmup_flush=",
        "",
        "planned with transfers that overlap throughout",
    ),
    ("no_overlap_p2p_communication", "", "planned with transfers that overlap: messages.lowering says otherwise"),
    ("defer_embedding_wgrad_compute", "", "planned with the output layer's dW in its backward"),
    ("delay_wgrad_compute", "", "planned with dW in its backward"),
    ("enable_cuda_graph external_cuda_graph optimizer_cuda_graph", "", "planned without CUDA graphs"),
    ("cuda_graph_impl=", "none", "planned without CUDA graphs"),
    ("moe_shared_expert_overlap", "", "planned with the shared experts behind the exchange"),
    (
        "moe_pad_expert_input_to_capacity moe_router_padding_for_fp8 moe_router_padding_for_quantization",
        "",
        "planned without padding",
    ),
    (
        "moe_expert_capacity_factor= moe_expert_rank_capacity_factor= moe_token_dropping",
        "",
        "planned without tokens that are dropped",
    ),
    ("use_tp_pp_dp_mapping", "", "planned with tensor, context, data and pipeline parallel in this order"),
    ("te_precision_config_file=", "", "planned with the precision of the other arguments"),
    ("dataloader_inter_document_masking reset_attention_mask", "", "planned with attention over whole sequences"),
    ("max_seqlen_per_dp_cp_rank=", "", "planned with --seq-length"),
    ("mlp_chunks_for_training=", "1", "planned in one piece"),
    ("fsdp_double_buffer", "", "planned without the second buffer"),
    ("megatron_fsdp_main_grads_dtype=", "auto fp32 torch.float32", "planned as --main-grads-dtype says"),
    ("megatron_fsdp_main_params_dtype=", "fp32 auto torch.float32", "planned with master weights in f32"),
    ("megatron_fsdp_grad_comm_dtype=", "auto", "planned as gradients are kept"),
    (
        "keep_fp8_transpose_cache keep_fp8_transpose_cache_when_using_custom_fsdp",
        "",
        "planned without the second copy of the weights",
    ),
    ("torch_fsdp2_no_reshard_after_forward", "", "planned with weights that are gathered again"),
    ("spec+", "", "planned as a decoder of attention and MLP"),
    ("output_logit_dtype= logit_dtype=", "", "planned as --cross-entropy-loss-fusion says"),
    ("rotary_interleaved", "", "planned without: it decides no shape"),
    ("modelopt_enabled", "", "planned as pretraining"),
    ("hybrid_context_parallel", "", "planned with equal sequences"),
    ("no_fp8_wgrad disable_fp8_wgrad", "", "planned with gradients of weights in FP8"),
    ("moe_dispatch_fwd_dtype= moe_combine_bwd_dtype=", "bf16 torch.bfloat16", "planned with tokens sent in bf16"),
    ("reuse_grad_buf_for_mxfp8_param_ag", "", "planned with a buffer of its own"),
    ("use_kitchen_attention", "", "planned as --attention-backend says"),
    ("fp8_wgrad=", "True", "planned with gradients of weights in FP8"),
    ("zero_bubble_max_pending_backward=", "", "planned as --zero-bubble-v-schedule-mem-setup says"),
    ("allow_padding_num_layers", "", "planned with the layers that --num-layers says"),
    ("enable_optimizer_post_validation", "", "planned with the optimizer's step behind all gradients"),
    (
        "moe_alltoall_overlap_comm moe_allgather_overlap_comm moe_fb_overlap",
        "",
        "planned without overlap of the exchange",
    ),
    ("recompute_activation_function recompute_norm", "", "planned as --recompute-granularity says"),
    ("reuse_fp32_param", "", "planned with master weights in f32"),
    ("context_parallel_algo=", "megatron_cp_algo", "planned as a ring of sends"),
    ("allgather_cp", "", "planned as a ring of sends"),
    ("deepspeed_config=", "", "not read: --zero-stage and the other arguments are planned"),
    ("partition_activations", "", "planned with whole inputs of recomputed layers"),
    ("random_ltd data_efficiency_curriculum_learning", "", "planned with all tokens in each layer"),
    ("embedding_weights_in_fp32", "", "planned with embeddings in the dtype of the model"),
    (
        "use_dynamic_batch_size max_tokens_per_gpu= balance_by_flops",
        "",
        "planned with microbatches of --micro-batch-size sequences: training.documents of a spec has documents that are \
         packed",
    ),
    (
        "colocate offload offload_train release_train ref_load= keep_old_actor use_opd opd_teacher_load= opd_type=",
        "",
        "planned as training alone: rollout and the forwards of other models are no part of it",
    ),
    (
        "custom_model_provider_path= custom_loss_function_path= custom_megatron_init_path= megatron_config_path=",
        "",
        "planned as the other arguments say",
    ),
    (
        "megatron_deepgemm_forward_layers+ megatron_deepgemm_forward_modules+ megatron_deepgemm_moe_forward_layers+ \
         megatron_deepgemm_moe_forward_modules+",
        "",
        "planned as --fp8-format says",
    ),
    ("use_stateless_adam", "", "planned with the state of AdamW"),
    ("enable_mtp_training", "", "planned with the MTP modules of --mtp-num-layers"),
];

/// Not planned: names, values that change nothing, the reason.
const REFUSED: [(&str, &str, &str); 55] = [
    ("headscale=", "", "a weight for each head is not planned"),
    ("transformer_block_type=", "pre_ln", "norms at other places are not planned"),
    (
        "hybrid_override_pattern= hybrid_layer_pattern= is_hybrid_model mtp_hybrid_override_pattern=",
        "",
        "layers of several kinds are not planned",
    ),
    ("hybrid_attention_ratio= hybrid_mlp_ratio=", "0.0", "layers of several kinds are not planned"),
    (
        "heterogeneous_layers_config_path= heterogeneous_layers_config_encoded_json=",
        "",
        "layers of different sizes are not planned",
    ),
    ("experimental_attention_variant=", "", "such attention is not planned"),
    ("linear_attention_freq=", "", "linear attention is not planned"),
    ("moe_latent_size=", "", "experts in a latent space are not planned"),
    (
        "moe_use_upcycling",
        "",
        "a dense model that becomes a mixture of experts: give the arguments of the latter without it",
    ),
    ("mtp_use_repeated_layer", "", "MTP modules with one layer for all are not planned"),
    ("mtp_standalone", "", "an MTP module on a stage of its own is planned from a layout with `m` alone"),
    ("mtp_hsm", "", "such MTP modules are not planned"),
    ("enable_mhc_connections", "", "several residual streams are not planned"),
    ("encoder_tensor_model_parallel_size= encoder_pipeline_model_parallel_size=", "0", "an encoder is not planned"),
    ("pipeline_model_parallel_split_rank= decoder_num_layers= decoder_seq_length=", "", "an encoder is not planned"),
    (
        "standalone_embedding_stage",
        "",
        "an embedding without layers is planned from --pipeline-model-parallel-layout",
    ),
    ("retro_add_retriever", "", "a retriever is not planned"),
    (
        "tensor_parallel_num_weight_shards= expert_tensor_parallel_num_weight_shards=",
        "1",
        "weights in more parts than tensor parallel are not planned",
    ),
    ("cpu_offloading_num_layers=", "0", "write training.offload into the spec"),
    ("fine_grained_activation_offloading", "", "offload of single modules is not planned"),
    ("freeze_all_layers", "", "a forward alone is not planned: nothing trains"),
    ("freeze_model freeze_router", "", "the frozen weights of Flextron, a model of several sizes, are not planned"),
    (
        "freeze_base_for_mtp qad_train_target=",
        "all",
        "MTP modules without the rest, or the rest without them, are not planned; training.frozen of a spec has the \
         modules and layers that a plan can freeze",
    ),
    (
        "freeze_LM freeze_llm=",
        "",
        "a decoder that is all frozen is not planned: write model.vision and training.frozen into a spec",
    ),
    (
        "freeze_parameters+ freeze_parameters_regex= trainable_parameters+ trainable_parameters_regex=",
        "",
        "write the modules or layers into training.frozen of a spec: names of weights are not read",
    ),
    ("freeze_parameters_ratio=", "0 0.0", "write the layers into training.frozen of a spec"),
    (
        "distillation distill_only export_kd_teacher_load= export_kd_cfg=",
        "",
        "a teacher beside the model is not planned",
    ),
    ("logits_load_dir=", "", "logits of a teacher are not planned"),
    ("export_num_eagle_layers=", "0", "draft layers are not planned"),
    ("export_num_medusa_heads=", "0", "draft heads are not planned"),
    ("flextron", "", "a model of several sizes is not planned"),
    ("perform_rl_step", "", "reinforcement learning is not planned"),
    ("batch_size=", "", "an older name: write --micro-batch-size"),
    ("model_parallel_size=", "", "an older name: write --tensor-model-parallel-size"),
    ("warmup=", "", "an older name: write --lr-warmup-fraction"),
    ("checkpoint_activations", "", "an older name: write --recompute-granularity full --recompute-method uniform"),
    ("fp32_residual_connection", "", "a residual stream in f32 is not planned"),
    (
        "distribute_saved_activations distribute_checkpointed_activations",
        "",
        "recomputation that splits its inputs over tensor parallel ranks is not planned",
    ),
    ("kitchen_config_file= kitchen_recipe_number=", "", "such precision is not planned"),
    ("outer_dp_sharding_strategy=", "no_shard", "sharding among groups is not planned"),
    ("enable_full_sharding_in_hsdp", "", "sharding among groups is not planned"),
    ("yaml_cfg=", "", "the arguments are in that file: import it"),
    (
        "use_checkpoint_args use_mp_args_from_checkpoint_args",
        "",
        "the arguments are in a checkpoint: take those of the log",
    ),
    ("moe_extended_tp", "", "experts over data parallel and tensor parallel ranks are not planned"),
    ("noop_layers=", "", "layers that do nothing are not planned"),
    ("enable_1f1b_v", "", "the V schedules of this fork other than zb-v are not planned"),
    ("ampipe_degree=", "1", "pieces of attention and MLP that overlap are not planned"),
    ("tp_2d", "", "tensor parallel in two dimensions is not planned"),
    (
        "ds_sequence_parallel_size=",
        "1",
        "sequence parallel of DeepSpeed-Ulysses is not planned: --context-parallel-size is",
    ),
    (
        "ds_sequence_parallel_fpdt ds_sequence_parallel_fpdt_offloading force_ds_sequence_parallel",
        "",
        "sequence parallel of DeepSpeed-Ulysses is not planned: --context-parallel-size is",
    ),
    ("checkpoint_in_cpu", "", "recomputation that keeps its inputs in host memory is not planned"),
    ("kd mos load_teacher=", "", "a teacher beside the model is not planned"),
    (
        "moe_expert_parallel_size= topk= expert_interval= mlp_type=",
        "1 standard",
        "experts of Megatron-DeepSpeed are not read: give those of Megatron-LM (--num-experts, --moe-router-topk, \
         --moe-layer-freq, --expert-model-parallel-size)",
    ),
    (
        "only_train_params_name_list+ freeze_params_name_list+ freeze_indexer",
        "",
        "write the modules or layers into training.frozen of a spec: names of weights are not read",
    ),
    ("train_backend=", "megatron", "another backend than Megatron-LM is not planned"),
];

/// What does not change the plan: data, logs, checkpoints, seeds, schedules of the learning rate, kernels of the same work, inference.
/// Names of Megatron-LM, of its logs, of relatives, of launchers, of Megatron-DeepSpeed and slime.
const HARMLESS: [&str; 5] = [
    "\
     DDP_impl= accumulate_allreduce_grads_in_fp32 activation_offload_fraction= adam_beta1= adam_beta2= adam_eps=
     add_skipping adlr_autoresume adlr_autoresume_interval= allow_ambiguous_pad_tokens app_tag_run_name=
     app_tag_run_version= apply_query_key_layer_scaling apply_wd_to_qk_layernorm async_ckpt_cpu_priority=
     async_ckpt_io_priority= async_ckpt_use_cpu_shm async_save async_strategy= attention_softmax_in_fp32
     auto_detect_ckpt_format basemodel_type= batch_invariant_backend= bert_embedder_type= bert_load=
     bert_no_binary_head biencoder_projection_dim= biencoder_shared_query_context_model binary_mask block_data_path=
     bpe_kv_cache= bpe_max_buffer= bpe_params= bpe_ssm_cache= budget_list+ budget_probs+ budget_type=
     cache_mla_latents calc_ft_timeouts calculate_per_token_loss chat_template= check_for_large_grads
     check_for_spiky_loss check_weight_hash_across_dp_replicas_interval= checkpoint_num_layers=
     ckpt_assume_constant_structure ckpt_convert_format= ckpt_convert_save=
     ckpt_convert_update_legacy_dist_opt_format ckpt_drop_redundant_extra_state ckpt_format= ckpt_fully_parallel_load
     ckpt_fully_parallel_load_exchange_algo= ckpt_fully_parallel_load_per_rank_objects
     ckpt_fully_parallel_load_process_group= ckpt_fully_parallel_save ckpt_fully_parallel_save_process_group=
     ckpt_pg_tensors_cache_create ckpt_pg_tensors_cache_path= ckpt_step= classes_fraction= clip_grad=
     config_logger_dir= cpu_offloading_retain_pinned_cpu_buffers create_all_gather_group cross_entropy_fusion_impl=
     cuda_graph_modules+ cuda_graph_scope+ cuda_graph_warmup_steps= curr_iteration= data_args_path= data_cache_path=
     data_impl= data_parallel_random_init data_path+ data_per_class_fraction= dataloader_defer_npy_index_mmap
     dataloader_fast_cache_load dataloader_type= ddp_average_in_collective ddp_bucket_size= ddp_num_buckets=
     ddp_pad_buckets_for_high_nccl_busbw ddp_param_name_patterns_for_fp32_local_accumulation+
     ddp_reduce_scatter_with_fp32_accumulation decode_only_cuda_graphs decoupled_lr= decoupled_min_lr=
     decrease_batch_size_if_needed delay_offload_until_cuda_graph delay_param_gather
     delta_offload_bytes_across_pp_ranks= deterministic_mode dino_bottleneck_size= dino_freeze_last_layer=
     dino_head_hidden_size= dino_local_crops_number= dino_local_img_size= dino_norm_last_layer dino_teacher_temp=
     dino_warmup_teacher_temp= dino_warmup_teacher_temp_epochs= disable_align_grad_reduce
     disable_async_tensor_model_parallel_allreduce disable_bf16_reduced_precision_matmul disable_budget
     disable_chunked_prefill disable_ckpt_load_validate_sharding_integrity disable_clone_scatter_output_in_embedding
     disable_dsa_indexer_rotate_activation disable_dsa_indexer_scoring_relu disable_flight_recorder_dump_on_timeout
     disable_flight_recorder_extra_dump_on_exec disable_flight_recorder_include_only_active
     disable_gloo_process_groups disable_jit_fuser disable_log_loss_scale_to_tensorboard disable_mamba_mem_eff_path
     disable_manual_gc_eval disable_msc disable_save_tokenizer_assets disable_straggler_on_startup
     disable_stream_ckpt_dequant disable_strict_fsdp_dtensor_load disable_symmetric_registration
     disable_tokenizer_sentencepiece_ignore_extra_whitespaces disable_tp_comm_bulk_dgrad disable_tp_comm_bulk_wgrad
     disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs disable_tp_comm_split_ag disable_tp_comm_split_rs
     disable_use_tokenizer_model_from_checkpoint_args dist_ckpt_format= dist_ckpt_optim_fully_reshardable
     dist_ckpt_save_pre_mcore_014 dist_ckpt_strictness= dist_ckpt_workers= distill_coeff=
     distrib_optim_fully_reshardable_mem_efficient distributed_backend= distributed_timeout_minutes=
     distributed_timeout_seconds_after_init= dsa_indexer_head_dim= dsa_indexer_k_norm_epsilon=
     dsa_indexer_k_norm_fp32 dsa_indexer_loss_coeff= dsa_indexer_n_heads= dsa_indexer_rope_interleaved
     dsa_indexer_skip_topk_offset= dsa_indexer_topk= dsa_indexer_topk_freq= dsa_indexer_use_sparse_loss
     dsa_kernel_backend= dump_param_to_param_group_map= emb_int_list+ emb_per_list+ embedding_init_method_std=
     embedding_path= empty_unused_memory_level= enable_chunked_prefill enable_experimental enable_ft_package
     enable_msc enable_one_logger enable_router encoder_num_layers= end_weight_decay= eod_mask_loss
     ep_overlap_early_attn_memory_release error_injection_rate= error_injection_type= eval_global_batch_size=
     eval_interval= eval_iters= eval_micro_batch_size= evidence_data_path= exit_duration_in_mins= exit_interval=
     exit_on_missing_checkpoint exit_signal= exit_signal_handler exit_signal_handler_for_dataloader
     exit_signal_handler_for_training export_default_te_spec export_force_local_attention export_kd_finalize
     export_kd_teacher_ckpt_format= export_kd_teacher_model_config= export_kv_cache_quant= export_legacy_megatron
     export_model_type= export_moe_apply_probs_on_input export_offline_model export_qk_l2_norm export_quant_cfg=
     export_real_quant_cfg= export_te_mcore_model fake_process_group fault_injector_delay_start_iteration=
     fault_injector_fault_delay= fault_injector_fault_probabilities= fault_injector_fault_types=
     fault_injector_mtti_seconds= fault_injector_num_ranks= fault_injector_offset_seconds= fault_injector_ranks=
     fault_injector_seed= fim_data fim_eod_token= fim_fragment_rate= fim_middle_token= fim_no_prefix= fim_pad_token=
     fim_prefix_token= fim_rate= fim_split_sample= fim_spm_rate= fim_suffix_token=
     fine_grained_offloading_max_inflight_offloads= finetune finetune_data_files+ finetune_data_split=
     finetune_hf_dataset= flash_attention_version= flash_decode flex_hetero_ffn flex_hetero_mamba
     flex_hetero_moe_expert flex_strict flextron_config_file= flight_recorder_dump_path=
     flight_recorder_include_stack_trace flight_recorder_trace_buffer_size= force_emb+ force_mamba+ force_mlp+
     force_router_skip+ fp4_quantizer_factory=  fp8_amax_compute_algo= fp8_amax_history_len= fp8_interval=
     fp8_margin= fp8_quantizer_factory=  fsdp_db_use_persist_buf_on_alloc_fail fsdp_manual_registration
     ft_num_warmup_iters= full_validation fused_residual_rmsnorm gdp_cutedsl_kernel
     gdp_num_chunk_states_to_recompute= gdp_num_householder= gpu_sniff_test_interval= grpo_clamp_eps_lower=
     grpo_clamp_eps_upper= grpo_default_temperature= grpo_default_top_p= grpo_entropy_term_weight=
     grpo_filter_groups_with_same_reward grpo_group_size= grpo_iterations= grpo_kl_beta= grpo_prompts_per_step=
     gtp_expert_remat_nccl_ub gtp_remat_nccl_ub gtp_remat_opt_in_modules+
     gtp_remat_reduce_scatter_with_fp32_accumulation hard_sample_th= head_lr_mult= high_priority_a2a_comm_stream
     high_priority_stream_groups+ hysteresis= ict_head_size= ict_load= img_dim= img_h= img_w= indexer_batch_size=
     indexer_log_interval= inference_batch_times_seqlen_threshold= inference_coordinator_port=
     inference_cuda_graph_all_prefills inference_cuda_graph_max_tokens= inference_cuda_graph_scope=
     inference_disable_ep_consensus= inference_disable_triton_nvls_kernels inference_dynamic_batching
     inference_dynamic_batching_async_sched_mode= inference_dynamic_batching_block_size=
     inference_dynamic_batching_buffer_guaranteed_fraction= inference_dynamic_batching_buffer_overflow_factor=
     inference_dynamic_batching_buffer_size_gb= inference_dynamic_batching_cuda_graph_max_tokens=
     inference_dynamic_batching_cuda_graph_mixed_prefill_count=
     inference_dynamic_batching_cuda_graph_sizing_distribution= inference_dynamic_batching_logprobs_mode=
     inference_dynamic_batching_mamba_memory_ratio= inference_dynamic_batching_max_requests=
     inference_dynamic_batching_max_requests_override= inference_dynamic_batching_max_tokens=
     inference_dynamic_batching_max_tokens_override= inference_dynamic_batching_num_cuda_graphs=
     inference_dynamic_batching_paused_buffer_size_gb= inference_dynamic_batching_prefix_caching=
     inference_dynamic_batching_prefix_caching_coordinator_policy=
     inference_dynamic_batching_prefix_caching_eviction_policy= inference_dynamic_batching_prefix_caching_mamba_gb=
     inference_dynamic_batching_prefix_caching_routing_alpha= inference_dynamic_batching_sampling_backend=
     inference_dynamic_batching_track_generated_token_events inference_dynamic_batching_track_paused_request_events
     inference_dynamic_batching_unified_memory_level= inference_fuse_tp_communication inference_grouped_gemm_backend=
     inference_logging_step_interval= inference_max_batch_size= inference_max_requests= inference_max_seq_length=
     inference_moe_disable_fused_quant_kernels inference_moe_token_dispatcher_type= inference_rng_tracker
     inference_shards= inference_text_gen_server_logging= inference_use_synchronous_zmq_collectives=
     inference_wandb_logging= init_method_std= init_method_xavier_uniform init_model_with_meta_device
     initial_loss_scale= inprocess_active_world_size= inprocess_barrier_timeout= inprocess_completion_timeout=
     inprocess_empty_cuda_cache inprocess_granularity= inprocess_hard_timeout= inprocess_heartbeat_interval=
     inprocess_heartbeat_timeout= inprocess_last_call_wait= inprocess_max_iterations=
     inprocess_monitor_process_interval= inprocess_monitor_thread_interval= inprocess_progress_watchdog_interval=
     inprocess_restart inprocess_soft_timeout= inprocess_termination_grace_time= is_flex_eval iter_per_epoch=
     iterations_to_skip+ kitchen_attention_backend= langrl_env_config= langrl_external_server=
     langrl_inference_server_conversation_template= langrl_inference_server_type= layer_ranking_list+ lazy_mpu_init
     legacy_tokenizer linear_conv_kernel_dim= linear_key_head_dim= linear_num_key_heads= linear_num_value_heads=
     linear_scaler_end= linear_scaler_start= linear_value_head_dim= lion_beta1= lion_beta2= load=
     load_main_params_from_ckpt local_rank= local_rank= log_batch_size_to_tensorboard log_budgets+
     log_device_memory_used log_energy log_interval= log_max_attention_logit log_memory_interval=
     log_memory_to_tensorboard log_num_zeros_in_grad log_params_norm log_progress log_straggler log_throughput
     log_timers_to_tensorboard log_validation_ppl_to_tensorboard log_world_size_to_tensorboard logging_level=
     logits_load_decode_threads= logits_load_ignore_errors logits_load_kd_loss_alpha= logits_load_msc_prefetch_depth=
     logits_load_prefetch_factor= logits_save_dir= logits_save_dtype= logits_save_top_k= logits_save_top_p=
     logits_save_top_p_min_k= loss_alpha= loss_scale= loss_scale_window= lr= lr_decay_iters= lr_decay_samples=
     lr_decay_style= lr_mult_router= lr_warmup_fraction= lr_warmup_init= lr_warmup_iters= lr_warmup_samples=
     lr_wsd_decay_iters= lr_wsd_decay_samples= lr_wsd_decay_style= mamba_head_dim= mamba_inference_conv_states_dtype=
     mamba_inference_ssm_states_dtype= mamba_int_list+ mamba_num_groups= mamba_num_heads= mamba_per_list+
     mamba_state_dim= mamba_training_ssm_states_dtype= manual_gc manual_gc_interval= mask_factor= mask_prob=
     mask_type= max_tokens_to_oom= megatron_fsdp_enable_fine_grained_param_gather
     megatron_fsdp_max_pool_double_buffer megatron_fsdp_version= mem_batch_size= mem_infer_seq_len= memory_profile=
     memory_profile_path= memory_snapshot_path= merge_file= mhc_init_gating_factor= mhc_num_residual_streams=
     mhc_recompute_layer_num= mhc_sinkhorn_iterations= mid_level_dataset_surplus= min_loss_scale= min_lr=
     min_offloaded_tensor_size= mla_down_proj_fusion mlp_chunks_for_prefill= mlp_int_list+ mlp_per_list+ mmap_warmup
     mock_data moe_apply_probs_on_input moe_aux_loss_coeff+ moe_deepep_num_sms= moe_enable_routing_replay
     moe_expert_int_list+ moe_expert_per_list+ moe_flex_dispatcher_num_sms= moe_grouped_gemm
     moe_hybridep_num_blocks_permute= moe_hybridep_num_blocks_unpermute= moe_hybridep_num_sms=
     moe_hybridep_num_sms_preprocessing= moe_hybridep_pad_uneven_dispatch_inputs moe_input_jitter_eps=
     moe_mlp_glu_interleave_size= moe_ncclep_static_shape moe_ncclep_zero_copy
     moe_pad_experts_for_cuda_graph_inference moe_paged_stash_buffer_size_factor_cpu=
     moe_paged_stash_buffer_size_factor_cuda= moe_paged_stash_page_size= moe_per_layer_logging moe_permute_fusion
     moe_permute_fusion_into_hybridep moe_router_bias_update_rate= moe_router_dtype= moe_router_enable_expert_bias
     moe_router_force_biased= moe_router_force_load_balancing moe_router_fusion moe_router_load_balancing_type+
     moe_router_pre_softmax moe_router_quantile_balancing_ema= moe_routing_trace_capture_hidden_states
     moe_routing_trace_capture_logits moe_routing_trace_dump_weights moe_routing_trace_max_training_iters=
     moe_routing_trace_path= moe_shared_expert_glu_interleave_size= moe_single_grouped_bias moe_single_grouped_weight
     moe_token_drop_policy= moe_upcycling_granularity= moe_use_grouped_tensor moe_use_legacy_grouped_gemm
     moe_z_loss_coeff= mrope_section+ mscale= mscale_all_dim= mtp_loss_scaling_factor= multiple_validation_sets
     muon_coefficient_type= muon_extra_scale_factor= muon_fp32_matmul_prec= muon_momentum= muon_nesterov
     muon_no_split_qkv muon_num_ns_steps=  muon_scale_mode= muon_tp_mode= muon_use_nesterov
     muon_use_syrk mup_attn_scale_power= mup_base_head_dim= mup_base_hidden_size= mup_embedding_mult=
     mup_output_mult= mup_width_mult= nccl_all_reduce_for_prefill nccl_communicator_config_path= no_align_grad_reduce
     no_align_param_gather no_async_tensor_model_parallel_allreduce no_attn_skip no_barrier_with_level_1_timing
     no_bias_dropout_fusion no_bias_gelu_fusion no_bias_swiglu_fusion no_check_for_nan_in_loss_and_grad
     no_ckpt_fully_parallel_save no_ckpt_load_validate_sharding_integrity no_clone_scatter_output_in_embedding
     no_create_attention_mask_in_dataloader no_data_sharding no_delay_grad_reduce no_dsa_indexer_rotate_activation
     no_dsa_indexer_scoring_relu no_flight_recorder_dump_on_timeout no_flight_recorder_extra_dump_on_exec
     no_flight_recorder_include_only_active no_gradient_accumulation_fusion no_gradient_reduce_div_fusion
     no_initialization no_load_optim no_load_rng no_log_learnig_rate_to_tensorboard no_log_loss_scale_to_tensorboard
     no_manual_gc_eval no_masked_softmax_fusion no_mmap_bin_files no_one_logger no_persist_layer_norm
     no_pin_cpu_grads no_pin_cpu_params no_query_key_layer_scaling no_rope_fusion no_save_optim no_save_rng
     no_save_tokenizer_assets no_scatter_gather_tensors_in_pipeline no_stream_ckpt_dequant
     no_strict_fsdp_dtensor_load no_tokenizer_sentencepiece_ignore_extra_whitespaces no_tp_comm_bulk_dgrad
     no_tp_comm_bulk_wgrad no_tp_comm_overlap_ag no_tp_comm_overlap_rs no_tp_comm_split_ag no_tp_comm_split_rs
     no_use_layer_wise_param_layout no_use_tokenizer_model_from_checkpoint_args no_weight_decay_cond_type=
     no_yarn_correction_range_round_to_int non_persistent_ckpt_type= non_persistent_global_ckpt_dir=
     non_persistent_local_ckpt_algo= non_persistent_local_ckpt_dir= non_persistent_save_interval=
     normalize_router_logits null_tokenizer_eod_id= null_tokenizer_pad_id= num_channels= num_classes=
     num_dataset_builder_threads= num_layers_at_end_in_bf16= num_layers_at_start_in_bf16= num_speculative_tokens=
     num_workers= nvtx_ranges object_storage_cache_path= offload_modules+ one_logger_async one_logger_entity=
     one_logger_project= one_logger_run_name= onnx_safe= openai_gelu original_model_sample_prob= otel_enabled
     otel_service_name= otel_span_groups= output_bert_embeddings overlap_cpu_optimizer_d2h_h2d
     override_ckpt_iteration= override_lr_scheduler override_opt_param_scheduler override_opt_param_scheduler
     override_selected_budget+ param_budget_target= patch_dim= per_dataset_sequences_path= per_split_data_args_path=
     persistent_save_interval= phase_transition_iterations= pipeline_model_parallel_comm_backend= prefill_chunk_size=
     pretrained_checkpoint= profile profile_ranks+ profile_step_end= profile_step_start=
     pytorch_profiler_collect_callstack pytorch_profiler_collect_chakra pytorch_profiler_collect_shapes
     qk_clip_alpha= qk_clip_threshold= query_in_block_prob= record_memory_history record_shapes
     refit_method= relative_attention_max_distance= relative_attention_num_buckets= renormalize_blend_weights
     replication replication_factor= replication_jump= rerun_mode= reset_position_ids
     result_rejected_tracker_filename= retriever_report_topk_accuracies+ retriever_score_scaling
     retriever_seq_length= retro_attention_gate= retro_cyclic_train_iters= retro_encoder_attention_dropout=
     retro_encoder_hidden_dropout= retro_encoder_layers= retro_no_verify_neighbor_count retro_num_neighbors=
     retro_num_retrieved_chunks= retro_project_dir= retro_return_doc_ids retro_workdir=
     rl_calculate_intra_group_similarity= rl_consumption_granularity= rl_default_temperature= rl_default_top_k=
     rl_default_top_p= rl_durable_rollout_bank rl_generation_batch_size= rl_generation_lag=
     rl_importance_sampling_truncation_coef= rl_inference_expert_model_parallel_size=
     rl_inference_expert_tensor_model_parallel_size= rl_inference_logprobs_is_correction=
     rl_inference_model_unified_memory_level= rl_inference_parsers+ rl_inference_pipeline_model_parallel_size=
     rl_inference_tensor_model_parallel_size= rl_kv_cache_management_mode= rl_max_inflight_requests=
     rl_num_parallel_generation_batches= rl_num_parallel_generations= rl_offload_inference_model_weights_when_idle=
     rl_offload_kv_cache_during_training= rl_offload_optimizer_during_inference rl_parallel_generation_tasks=
     rl_partial_rollouts= rl_persist_cuda_graphs= rl_profile rl_profile_dir= rl_prompts_per_eval=
     rl_remove_kv_cache_during_training= rl_reset_cuda_graphs= rl_rollout_bank_dir= rl_rollout_bank_max_bytes=
     rl_sequence_packing_algo= rl_sequence_packing_bin_size= rl_sequence_packing_max_sequences_per_bin=
     rl_skip_bos_token= rl_submission_granularity= rl_training_cuda_graphs= rl_use_sequence_packing=
     rl_verify_model_weights_swap= rope_scaling_factor= rope_type= rotary_scaling_factor=
     rotary_seq_len_interpolation_factor= router_beta= router_gbs= router_inter_dim= router_std=
     run_workload_inspector_server s3_cache_path= sample_rate= save= save_activations_interval= save_dgrads_interval=
     save_interval= save_params_interval= save_retain_interval= save_tokens_per_expert_interval=
     save_wgrads_interval= seed= sft sft_tokenizer_prompt_format=  sharp_enabled_group= short_seq_prob=
     skip_num_attn_layer_constraint= skip_total_layer_constraint= skip_train slice soft_mask split=
     start_eval_at_iter= start_weight_decay= straggler_ctrlr_port= straggler_minmax_count=
     suggested_communication_unit_size= swin_backbone_type= symmetric_ar_type= tau_decay= tau_init= te_rng_tracker
     teacher_model_config= tensorboard_dir= tensorboard_log_interval= tensorboard_queue_size= test_data_path+
     test_mode tiktoken_num_special_tokens= tiktoken_pattern= tiktoken_special_tokens+ timing_log_level=
     timing_log_option= titles_data_path= tokenizer_hf_include_special_tokens tokenizer_hf_no_include_special_tokens
     tokenizer_hf_no_use_fast tokenizer_hf_use_fast tokenizer_metadata= tokenizer_model=
     tokenizer_sentencepiece_legacy tokenizer_special_tokens+ tokenizer_type= tp_comm_bootstrap_backend=
     tp_comm_overlap_cfg= tp_comm_overlap_rs_dgrad train_data_path+ train_sync_interval= trust_remote_code
     use_checkpoint_lr_scheduler use_checkpoint_opt_param_scheduler use_checkpoint_opt_param_scheduler
     use_contiguous_buffers_in_ddp use_cpu_initialization use_dist_ckpt use_fused_weighted_squared_relu use_gigatoken
     use_grouped_gemm_for_dense_mlp use_grouped_gemm_for_shared_expert use_legacy_models use_legacy_static_engine
     use_mcore_models use_mup use_nccl_ub use_one_sent_docs use_persistent_ckpt_worker use_precision_aware_optimizer
     use_pytorch_profiler use_ring_exchange_p2p use_rope_scaling use_same_sampling_seed_across_dp_ranks use_sharp
     use_te_activation_func use_torch_optimizer_for_cpu_offload use_transformer_engine_op_fuser valid_data_path+
     validation_set_names+ verify_integrity vision_backbone_type= vision_pretraining vision_pretraining_type=
     vocab_extra_ids= vocab_file= wandb_entity= wandb_exp_name= wandb_project= wandb_save_dir= weight_decay=
     weight_decay_incr_style= wgrad_deferral_limit= yarn_beta_fast= yarn_beta_slow=
     yarn_correction_range_round_to_int yarn_original_max_position_embeddings= \
     ",
    "\
     align_grad_reduce= align_param_gather= apply_rope_fusion= async_tensor_model_parallel_allreduce=
     barrier_with_L1_time= bert_binary_head= bias_dropout_fusion= bias_gelu_fusion= bias_swiglu_fusion=
     check_for_nan_in_loss_and_grad= ckpt_fully_parallel_save_deprecated= ckpt_load_validate_sharding_integrity=
     clone_scatter_output_in_embedding= consumed_train_samples= consumed_valid_samples=
     create_attention_mask_in_dataloader= cuda_graph_scope_deprecated= curr_iteration= data_sharding=
     delay_grad_reduce= deprecated_use_mcore_models= disable_msc_deprecated= dist_ckpt_format_deprecated= do_test=
     do_train= do_valid= dsa_indexer_rotate_activation= dsa_indexer_scoring_relu= enable_autocast=
     flight_recorder_dump_on_timeout= flight_recorder_extra_dump_on_exec= flight_recorder_include_only_active=
     fully_parallel_load= fully_parallel_save= gradient_accumulation_fusion= gradient_reduce_div_fusion=
     inference_dynamic_batching_enable_prefix_caching= iteration= kitchen_quantization=
     log_learning_rate_to_tensorboard= log_loss_scale_to_tensorboard= manual_gc_eval= masked_softmax_fusion=
     metadata_path= mmap_bin_files= model_type= muon_split_qkv= nccl_ub= num_floating_point_operations_so_far=
     offset_sampling_seed_by_dp_rank= overlap_p2p_comm= params_dtype= perform_initialization= phase= pin_cpu_grads=
     pin_cpu_params= rank= retro_verify_neighbor_count= save_tokenizer_assets= scatter_gather_tensors_in_pipeline=
     skipped_train_samples= special_tokens= start_iteration= stream_ckpt_dequant= strict_fsdp_dtensor_load=
     tokenizer_sentencepiece_ignore_extra_whitespaces= torch_fsdp2_reshard_after_forward= tp_comm_bulk_dgrad=
     tp_comm_bulk_wgrad= tp_comm_overlap_ag= tp_comm_overlap_rs= tp_comm_split_ag= tp_comm_split_rs=
     transformer_pipeline_model_parallel_size= use_dist_ckpt_deprecated= use_gloo_process_groups=
     use_layer_wise_param_layout= use_mamba_mem_eff_path= use_nsys_profiler= use_te_rng_tracker=
     use_tokenizer_model_from_checkpoint_args= variable_seq_lengths= \
     ",
    "\
     use_fused_rmsnorm+ use_fused_swiglu+ use_fused_rotary_pos_emb+ use_fused_moe_token_permute_and_unpermute+
     use_fused_ring_attention_update+ npu_deterministic+ no_shared_storage+ use_distributed_optimizer_npu+
     enable_high_availability+ load_dataset_num+ torch_dtype+ lora_dropout+
      dataset+ max_epochs+ num_train_epochs+ padding_free+ packing+ save_strategy+ attn_impl+
     finetune_type+ model_type+ use_rotary_position_embeddings_npu+ balanced_moe_experts+ moe_permutation_async_comm+
     use_cp_send_recv_overlap+ cp_attention_mask_type+ jit_compile+ output_dir+ logging_steps+ streaming+
     add_version+ use_hf+ max_length_npu+ tokenizer_padding_side+ prompt_type+ tokenizer_name_or_path+
     enable_exactly_numeric_match+ zero_bubble_pipeline_timers_start_iter+ zero_bubble_pipeline_timers_end_iter+
     pre_process+ post_process+ persist_layer_norm+ normalize_attention_scores+ attention_type+
     native_amp_init_scale+ native_amp_growth_interval+ megatron_amp_O2+
     grad_allreduce_chunk_size_mb+ grad_div_ar_fusion+ bias_activation_fusion+ bias_dropout_add_fusion+
     apply_rope_fusion+ resume_from_checkpoint+ use_cpu_initialization+ apex_transformer_log_level+
     gradient_as_bucket_view+ sync_batch_comm+ do_layer_norm_weight_decay+ use_scaled_init_method+ ffn_dropout+
     mcore_gpt+ batch_p2p_comm+ transformer_engine+ \
     ",
    "\
     nproc_per_node= nnodes= node_rank= master_addr= master_port= rdzv_backend= rdzv_endpoint= rdzv_id= rdzv_conf=
     max_restarts= monitor_interval= start_method= redirects= tee= log_dir= local_ranks_filter= standalone role=
     local_addr= use_env no_python module= num_gpus= num_nodes= hostfile= \
     ",
    "\
     aml_data_download_path= cpu_torch_adam create_moe_param_group disable_mem_efficient_ln ds_fused_adam ds_inference
     kill_switch_file= load_tag= log_optimizer_states_to_tensorboard lr_decay_tokens= lr_warmup_tokens=
     no_contiguous_buffers_in_local_ddp no_load_lr_state no_pipeline_parallel profile_backward remote_device=
     repeated_dataloader reset_iteration return_data_index synchronize_each_layer train_data_exact_num_epochs=
     train_desc_path= train_doc_idx_path= train_idx_path= train_sample_idx_path= train_shuffle_idx_path= train_tokens=
     universal_checkpoint use_dataset_only use_pin_memory use_tutel zero_contigious_gradients zero_reduce_scatter
     deepspeed_activation_checkpointing contigious_checkpointing moe_loss_coeff= moe_eval_capacity_factor=
     advantage_estimator+ apply_chat_template+ apply_chat_template_kwargs+ balance_data+ buffer_filter_path+
     check_weight_update_equal+ ci_disable_kl_checker+ ci_load_grad_norm+ ci_save_grad_norm+ ci_test+
     ci_train_rollout_logprob_abs_diff_threshold+ custom_advantage_function_path+ custom_config_path+
     custom_convert_samples_to_train_data_path+ custom_eval_rollout_log_function_path+ custom_generate_function_path+
     custom_megatron_before_log_prob_hook_path+ custom_megatron_before_train_step_hook_path+
     custom_pg_loss_reducer_function_path+ custom_reward_post_process_path+ custom_rm_path+
     custom_rollout_log_function_path+ custom_tis_function_path+ custom_update_weight_post_write_path+
     data_pad_size_multiplier+ data_source_path+ no_offload_rollout+ no_offload_train+ model_name+ debug_rollout_only+ debug_train_only+
     disable_compute_advantages_and_returns+ disable_grpo_std_normalization+ disable_rewards_normalization+
     disable_rollout_global_dataset+ disable_wandb_random_suffix+ dump_details+ dynamic_sampling_filter_path+
     entropy_coef+ eps_clip+ eps_clip_c+ eps_clip_high+ eval_config+ eval_function_path+ eval_input_key+
     eval_label_key+ eval_max_context_len+ eval_max_prompt_len+ eval_max_response_len+ eval_min_new_tokens+
     eval_prompt_data+ eval_reward_key+ eval_temperature+ eval_tool_key+ eval_top_k+ eval_top_p+
     fetch_trajectory_retry_times+ gamma+ get_mismatch_metrics+ group_rm+ hf_checkpoint+ http_proxy+ input_key+
     kl_coef+ kl_loss_coef+ kl_loss_type+ label_key+ lambd+ load_debug_rollout_data+
     load_debug_rollout_data_subsample+ load_forge_rollout_data+ log_correct_samples+ log_multi_turn+ log_passrate+
     log_probs_chunk_size+ log_probs_max_tokens_per_gpu+ log_reward_category+ loss_mask_type+ loss_type+
     mask_offpolicy_in_partial_rollout+ megatron_server_max_length+ megatron_server_update_timeout_s+
     megatron_server_warmup+ memory_recorder+ memory_snapshot_dir+ memory_snapshot_num_steps+ metadata_key+
     min_batch_collection_ratio+ multimodal_keys+ n_samples_per_eval_prompt+ normalize_advantages+
     num_critic_only_steps+ num_epoch+ num_gpus_per_node+ num_rollout+ offload_rollout+ opd_kl_coef+
     opd_teacher_ckpt_step+ opsm_delta+ over_sampling_batch_size+ partial_rollout+ prefill_num_servers+
     profile_target+ prompt_data+ qwen_gdn_backend+ recompute_loss_function+ ref_ckpt_step+ ref_micro_batch_size+
     ref_update_interval+ reset_optimizer_states+ reward_key+ rm_type+ rm_url+ rollout_all_samples_process_path+
     rollout_buffer_url+ rollout_data_postprocess_path+ rollout_data_transport+ rollout_external_engine_addrs+
     rollout_function_path+ rollout_health_check_first_wait+ rollout_health_check_interval+
     rollout_health_check_timeout+ rollout_max_context_len+ rollout_max_prompt_len+ rollout_max_response_len+
     rollout_num_gpus+ rollout_num_gpus_per_engine+ rollout_sample_filter_path+ rollout_sample_hook_path+
     rollout_seed+ rollout_shuffle+ rollout_skip_special_tokens+ rollout_stop+ rollout_stop_token_ids+
     rollout_task_type+ rollout_temperature+ rollout_top_k+ rollout_top_p+ save_debug_rollout_data+
     save_debug_train_data+ save_hf+ skip_eval_before_train+ start_rollout_id+ tb_experiment_name+ tb_project_name+
     teacher_label_reduction_chunk_size+ teacher_port+ teacher_sample_reduction_chunk_size+ teacher_warmup_port+
     teacher_warmup_timeout_s+ tis_clip+ tis_clip_low+ tool_key+ train_env_vars+ update_weight_buffer_size+
     update_weight_delta_checksum+ update_weight_delta_encoding+ update_weight_disk_dir+
     update_weight_disk_keep_files+ update_weight_local_checkpoint_dir+ update_weight_mode+ update_weight_transport+
     update_weights_interval+ use_distributed_post+ use_fault_tolerance+ use_kl_loss+ use_opsm+ use_rollout_entropy+
     use_rollout_logprobs+ use_rollout_routing_replay+ use_routing_replay+ use_tensorboard+ use_tis+ use_unbiased_kl+
     use_wandb+ value_clip+ wandb_always_use_train_step+ wandb_dir+ wandb_group+ wandb_host+ wandb_key+ wandb_mode+
     wandb_run_id+ wandb_team+ \
     ",
];
