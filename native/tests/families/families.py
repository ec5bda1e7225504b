"""Tiny sizes of each family, and how its own class in transformers names and lays out what the runner holds."""

import re

import torch

SIZES = dict(vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
             pad_token_id=None)
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def of(kind, **more):
    """The `config.json` of `kind` with `more` than the sizes of all."""
    rope = {key: more[key] for key in ["partial_rotary_factor", "mrope_section"] if key in more}
    more.pop("mrope_section", None)
    config = {**SIZES, "model_type": kind, "rope_parameters": {**ROPE, **rope}, **more}
    return {key: value for key, value in config.items() if not (key == "head_dim" and value is None)}


FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
OF_TWO = dict(num_experts_per_tok=2)
LOCAL = dict(num_local_experts=4, **OF_TWO)
NARROW = dict(num_experts=4, moe_intermediate_size=16, **OF_TWO)
# DeepSeek's names of experts, and its latent attention.
ROUTED = dict(n_routed_experts=4, moe_intermediate_size=16, n_shared_experts=1, norm_topk_prob=True, **OF_TWO)
LATENT = dict(q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=6,
              num_key_value_heads=4, head_dim=4, rms_norm_eps=1e-6)
# transformers takes RoPE theta by kind of layer.
BY_KIND = {FULL: ROPE, SLIDING: {**ROPE, "rope_theta": 50.0}}
FACTORS = dict(embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=2.0)
GEMMA = dict(tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh")
GEMMA_2 = dict(sliding_window=7, query_pre_attn_scalar=8, **GEMMA)
# Layers that see all tokens have wider heads, of which a quarter of the pairs turns.
GEMMA_4 = dict(sliding_window=7, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
               hidden_size_per_layer_input=0, final_logit_softcapping=5.0, rope_parameters={
                   FULL: {**ROPE, "rope_type": "proportional", "partial_rotary_factor": 0.25},
                   SLIDING: {**ROPE, "rope_theta": 50.0}}, **GEMMA)
DELTA_NET = dict(partial_rotary_factor=0.5, linear_num_key_heads=2, linear_key_head_dim=6, linear_num_value_heads=4,
                 linear_value_head_dim=5, linear_conv_kernel_dim=4)
SHARED = dict(shared_expert_intermediate_size=24, **NARROW)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=6, mamba_n_groups=2, mamba_d_conv=4, mamba_expand=2,
             mamba_chunk_size=8, mamba_conv_bias=True, mamba_proj_bias=False, head_dim=None)
GRANITE_4 = dict(shared_intermediate_size=24, position_embedding_type="nope", **LOCAL, **FACTORS, **MAMBA)
NEMOTRON = dict(moe_shared_expert_intermediate_size=24, ssm_state_size=6, mamba_num_heads=8, mamba_head_dim=4, n_groups=2,
                conv_kernel=4, layer_norm_epsilon=1e-5, routed_scaling_factor=2.5, time_step_min=1e-4)
MIXED = dict(sliding_window=7, layer_types=[SLIDING, SLIDING, SLIDING, FULL])

# Of families that have other norms; the last ones know no width of a head.
LAYER = dict(layer_norm_eps=1e-5)
NARROW_HEADS = dict(head_dim=None, **LAYER)
OF_GPT_J = dict(n_embd=32, n_layer=4, n_head=4, n_positions=64, n_inner=48, rotary_dim=4, layer_norm_epsilon=1e-5,
                activation_function="gelu_new", head_dim=None)
OF_GPT_2 = dict(n_embd=32, n_layer=4, n_head=4, n_positions=64, n_inner=48, layer_norm_epsilon=1e-5, head_dim=None,
                activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                eos_token_id=None, tie_word_embeddings=True)

BIASES = dict(attention_bias=True, mlp_bias=True)

FAMILIES = {
    "afmoe": of("afmoe", num_shared_experts=1, num_dense_layers=1, route_scale=2.0, mup_enabled=True, **MIXED, **NARROW),
    "apertus": of("apertus", hidden_act="xielu"),
    "aria_text": of("aria_text", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=2),
    "arcee": of("arcee", hidden_act="relu2"),
    "arcee, with biases": of("arcee", hidden_act="relu2", **BIASES),
    "bamba": of("bamba", attn_layer_indices=[2], partial_rotary_factor=0.5, **MAMBA),
    "codegen": of("codegen", num_key_value_heads=4, **OF_GPT_J),
    "cohere": of("cohere", logit_scale=0.25, **LAYER),
    "cohere, with QK-norm": of("cohere", logit_scale=0.25, use_qk_norm=True, attention_bias=True, **LAYER),
    "cohere2": of("cohere2", logit_scale=0.25, **MIXED, **NARROW_HEADS),
    "cohere2_moe": of("cohere2_moe", logit_scale=0.25, num_experts=4, num_shared_experts=1, first_k_dense_replace=1,
                      shared_expert_combination_strategy="sum", prefix_dense_intermediate_size=40, sliding_window=7,
                      sliding_window_pattern=3, rms_norm_eps=None, **{**LAYER, **OF_TWO}),
    "cohere2_moe, with RMSNorm": of("cohere2_moe", num_experts=4, expert_selection_fn="sigmoid", sliding_window=7,
                                    mlp_layer_types=["sparse", "dense", "sparse", "sparse"], prefix_dense_intermediate_size=40,
                                    layer_types=[FULL, FULL, SLIDING, SLIDING], **LAYER, **OF_TWO),
    "cosmos3_edge_text": of("cosmos3_edge_text", hidden_act="relu2", mrope_section=[2, 1, 1]),
    "cwm": of("cwm", sliding_window=7, layer_types=[FULL, SLIDING, SLIDING, SLIDING]),
    "deepseek_v3": of("deepseek_v3", first_k_dense_replace=1, n_group=2, topk_group=1, routed_scaling_factor=2.5, **ROUTED,
                      **LATENT),
    "dots1": of("dots1", first_k_dense_replace=1, routed_scaling_factor=1.5, **ROUTED),
    "deepseek_ocr2_text": of("deepseek_ocr2_text", topk_method="greedy", mlp_layer_types=["dense"] + ["sparse"] * 3,
                             num_key_value_heads=4, head_dim=None, **{**ROUTED, "norm_topk_prob": False}),
    "emu3_text_model": of("emu3_text_model", head_dim=None, vocab_size=257, pad_token_id=256),
    "ernie4_5": of("ernie4_5"),
    "ernie4_5_moe": of("ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=16, moe_num_shared_experts=1,
                       moe_layer_start_index=1, moe_layer_end_index=3),
    "exaone4": of("exaone4", **MIXED),
    "exaone4, without windows": of("exaone4", sliding_window=None, layer_types=[FULL] * 4),
    "exaone_moe": of("exaone_moe", num_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True,
                     routed_scaling_factor=2.5, **MIXED, **NARROW),
    "flex_olmo": of("flex_olmo", num_experts=4, **OF_TWO),
    "gemma": of("gemma", **GEMMA),
    "gemma2": of("gemma2", **GEMMA_2),
    "gemma2, with biases": of("gemma2", **GEMMA_2, attention_bias=True),
    "gemma3_text": of("gemma3_text", **{**GEMMA_2, "num_hidden_layers": 7, "rope_parameters": BY_KIND}),
    "gemma4_text": of("gemma4_text", **{**GEMMA_4, "num_hidden_layers": 7}),
    "gemma4_text, with values": of("gemma4_text", **{**GEMMA_4, "attention_k_eq_v": False}, layer_types=[SLIDING, FULL] * 2),
    "gemma4_text, with experts": of("gemma4_text", **GEMMA_4, enable_moe_block=True, num_experts=4, top_k_experts=2,
                                    moe_intermediate_size=16),
    "glm": of("glm", partial_rotary_factor=0.5, attention_bias=True),
    "glm4": of("glm4", partial_rotary_factor=0.5, attention_bias=True),
    "glm4_moe": of("glm4_moe", first_k_dense_replace=1, partial_rotary_factor=0.5, use_qk_norm=True, attention_bias=True,
                   routed_scaling_factor=1.5, **ROUTED),
    "glm4_moe_lite": of("glm4_moe_lite", mlp_layer_types=["dense"] + ["sparse"] * 3, routed_scaling_factor=1.8, **ROUTED,
                        **LATENT),
    "glm4v_moe_text": of("glm4v_moe_text", first_k_dense_replace=1, partial_rotary_factor=0.5, attention_bias=True,
                         routed_scaling_factor=1.5, mrope_section=[1, 1, 0], **ROUTED),
    "glm4v_text": of("glm4v_text", partial_rotary_factor=0.5, mrope_section=[1, 1, 0]),
    "glm_ocr_text": of("glm_ocr_text", partial_rotary_factor=0.5, mrope_section=[1, 1, 0]),
    "gpt2": of("gpt2", num_key_value_heads=4, **OF_GPT_2),
    "gpt_neox": of("gpt_neox", partial_rotary_factor=0.5, hidden_act="gelu", num_key_value_heads=4, **NARROW_HEADS),
    "gpt_neox, in turn": of("gpt_neox", partial_rotary_factor=0.5, hidden_act="gelu_new", use_parallel_residual=False,
                            attention_bias=False, num_key_value_heads=4, **NARROW_HEADS),
    "gptj": of("gptj", num_key_value_heads=4, **OF_GPT_J),
    "gpt_oss": of("gpt_oss", sliding_window=7, attention_bias=True, **LOCAL),
    "granite": of("granite", **FACTORS),
    "granite, with biases": of("granite", **FACTORS, **BIASES),
    "granite_swa": of("granite_swa", sliding_window=7, layer_types=[FULL, SLIDING, SLIDING, SLIDING],
                      layer_rope_theta=[0, 10000.0, 10000.0, 10000.0], **FACTORS),
    "granitemoe": of("granitemoe", **LOCAL, **FACTORS),
    "granitemoe, with biases": of("granitemoe", **LOCAL, **FACTORS, attention_bias=True),
    "granitemoe_swa": of("granitemoe_swa", sliding_window=7, layer_types=[FULL, SLIDING, SLIDING, SLIDING],
                         layer_rope_theta=[0, 10000.0, 10000.0, 10000.0], shared_intermediate_size=24, **LOCAL, **FACTORS),
    "granitemoehybrid": of("granitemoehybrid", layer_types=["mamba", "mamba", "attention", "mamba"], **GRANITE_4),
    "granitemoehybrid, attention alone": of("granitemoehybrid", layer_types=["attention"] * 4, **GRANITE_4),
    "granitemoeshared": of("granitemoeshared", shared_intermediate_size=24, **LOCAL, **FACTORS),
    "helium": of("helium"),
    "hunyuan_v1_dense": of("hunyuan_v1_dense", use_qk_norm=True),
    "hunyuan_v1_moe": of("hunyuan_v1_moe", num_experts=4, moe_topk=2, num_shared_expert=1, use_qk_norm=True),
    "hunyuan_vl_text": of("hunyuan_vl_text", use_qk_norm=True, mrope_section=[1, 1, 1, 1]),
    "hy_v3": of("hy_v3", num_shared_experts=1, router_scaling_factor=2.5, mlp_layer_types=["dense"] + ["sparse"] * 3, **NARROW),
    "hyperclovax": of("hyperclovax", use_post_norm=True, **FACTORS),
    "internlm3": of("internlm3"),
    "jais2": of("jais2", hidden_act="relu2", **LAYER),
    "llama": of("llama"),
    "llama, with biases": of("llama", **BIASES),
    "llama4_text": of("llama4_text", num_local_experts=4, num_experts_per_tok=1, intermediate_size_mlp=40,
                      interleave_moe_layer_step=2, attention_chunk_size=8, floor_scale=4, use_qk_norm=True),
    "llama4_text, of two experts": of("llama4_text", intermediate_size_mlp=40, interleave_moe_layer_step=1,
                                      attention_chunk_size=8, use_qk_norm=False, **LOCAL),
    "mellum": of("mellum", sliding_window=7, layer_types=[FULL, SLIDING, SLIDING, SLIDING],
                 mlp_layer_types=["dense"] + ["sparse"] * 3, rope_parameters=BY_KIND, **NARROW),
    "minicpm3": of("minicpm3", scale_emb=3, scale_depth=1.4, dim_model_base=16, **LATENT),
    "minimax_m2": of("minimax_m2", rotary_dim=4, use_qk_norm=True, **LOCAL),
    "ministral": of("ministral", sliding_window=7, layer_types=[FULL, SLIDING, SLIDING, SLIDING]),
    "ministral3": of("ministral3", sliding_window=None, rope_parameters={
        **ROPE, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}),
    "mistral": of("mistral", sliding_window=None),
    "mistral, with a window": of("mistral", sliding_window=7),
    "mistral4": of("mistral4", first_k_dense_replace=1, routed_scaling_factor=1.5, rope_parameters={
        **ROPE, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}, **ROUTED, **LATENT),
    "mixtral": of("mixtral", sliding_window=7, **LOCAL),
    "nanochat": of("nanochat", hidden_act="relu2", final_logit_softcapping=15.0),
    "nemotron": of("nemotron", hidden_act="relu2", norm_eps=1e-5, partial_rotary_factor=0.5),
    "nemotron, with biases": of("nemotron", hidden_act="relu2", norm_eps=1e-5, attention_bias=True, mlp_bias=True,
                                partial_rotary_factor=0.5),
    "nemotron_h": of("nemotron_h", layers_block_type=[LINEAR, "moe", FULL, "mlp"], **{**ROUTED, **NEMOTRON}),
    "olmo": of("olmo"),
    "olmo, clipped": of("olmo", clip_qkv=0.5),
    "olmo2": of("olmo2"),
    "olmo2, with biases": of("olmo2", attention_bias=True),
    "olmo3": of("olmo3", sliding_window=7, rope_parameters=BY_KIND),
    "olmoe": of("olmoe", num_experts=4, norm_topk_prob=False, **OF_TWO),
    "paddleocr_vl_text": of("paddleocr_vl_text", mrope_section=[2, 1, 1]),
    "persimmon": of("persimmon", hidden_act="relu2", partial_rotary_factor=0.5, num_key_value_heads=4, **NARROW_HEADS),
    "phi, with QK-norm": of("phi", hidden_act="gelu_new", partial_rotary_factor=0.5, qk_layernorm=True, **NARROW_HEADS),
    "phi": of("phi", hidden_act="gelu_new", partial_rotary_factor=0.5, **NARROW_HEADS),
    "phi3": of("phi3", partial_rotary_factor=0.75, head_dim=None, hidden_size=64, tie_word_embeddings=True,
               sliding_window=None),
    "qwen2": of("qwen2"),
    "qwen2_moe": of("qwen2_moe", norm_topk_prob=False, head_dim=None, **SHARED),
    "qwen3": of("qwen3"),
    "qwen3, with biases": of("qwen3", attention_bias=True),
    "qwen3_5_moe_text": of("qwen3_5_moe_text", **DELTA_NET, **SHARED),
    "qwen3_5_text": of("qwen3_5_text", **DELTA_NET),
    "qwen3_moe": of("qwen3_moe", norm_topk_prob=True, mlp_only_layers=[1], decoder_sparse_step=1, **NARROW),
    "qwen3_moe, with biases": of("qwen3_moe", norm_topk_prob=True, mlp_only_layers=[1], decoder_sparse_step=1,
                                 attention_bias=True, **NARROW),
    "qwen3_omni_moe_text": of("qwen3_omni_moe_text", norm_topk_prob=True, mrope_section=[2, 1, 1], **NARROW),
    "qwen3_next": of("qwen3_next", norm_topk_prob=True, **DELTA_NET, **SHARED),
    "sarvam_mla": of("sarvam_mla", first_k_dense_replace=1, routed_scaling_factor=2.5, **ROUTED, **LATENT),
    "seed_oss": of("seed_oss", attention_bias=True, attention_out_bias=False),
    "smollm3": of("smollm3"),
    # A bias of keys without positions changes no score.
    "smollm3, with biases": of("smollm3", no_rope_layers=[1] * 4, **BIASES),
    "solar_open": of("solar_open", routed_scaling_factor=1.5, **ROUTED),
    "stablelm": of("stablelm", partial_rotary_factor=0.5, use_qkv_bias=True, **NARROW_HEADS),
    "stablelm, in parallel": of("stablelm", partial_rotary_factor=0.25, qk_layernorm=True, use_parallel_residual=True,
                                **NARROW_HEADS),
    "starcoder2": of("starcoder2", hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5, sliding_window=7, head_dim=None),
    "vaultgemma": of("vaultgemma", **GEMMA_2),
    "youtu": of("youtu", **LATENT),
}

# Scaled rotary positions, with sizes at which some columns turn slowly, some fast and some are between. A run takes them from the
# folder that it starts from.
THETA = {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
LLAMA_3 = {**THETA, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {**THETA, "rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0}
STRETCHED = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
SCALED = {f"{kind}, {rope['rope_type']}": {**FAMILIES[kind], "rope_parameters": rope, "max_position_embeddings": 256}
          for kind, rope in [("arcee", YARN), ("cwm", LLAMA_3), ("exaone4", LLAMA_3), ("gpt_oss", {**YARN, "truncate": False}),
                             ("llama", LLAMA_3), ("llama", YARN), ("llama", STRETCHED), ("mistral", YARN), ("qwen2", YARN),
                             ("qwen2_moe", YARN), ("qwen3", YARN), ("qwen3_moe", YARN)]}
# Of layers that see all tokens alone, as Gemma 3 from 4B on and OLMo 3 have it; and of those with a window.
SCALED |= {f"{kind}, {rope['rope_type']} of {layers}": {
    **FAMILIES[kind], "rope_parameters": {**BY_KIND, layers: {**BY_KIND[layers], **rope}}, "max_position_embeddings": 256}
    for kind, rope, layers in [("gemma3_text", STRETCHED, FULL), ("gemma3_text", STRETCHED, SLIDING), ("olmo3", YARN, FULL),
                               ("mellum", YARN, FULL)]}

# The same in the words of transformers 4, as published files have them.
SCALED |= {f"{kind}, in older words": {**SCALED[of], "older": older} for kind, of, older in [
    ("gemma3_text", "gemma3_text, linear of full_attention",
     {"rope_theta": 10000.0, "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("llama", "llama, llama3", {"rope_theta": 10000.0, "rope_scaling": {key: LLAMA_3[key] for key in LLAMA_3 if key != "rope_theta"}}),
]}

# Families whose norms multiply by one more than their weight.
ZERO_NORM = {"gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "vaultgemma"}
# Families that turn columns 2j and 2j + 1 of a head together; the runner turns j and j + half.
IN_PAIRS = {"cohere2_moe", "glm", "glm4", "helium", "ernie4_5", "ernie4_5_moe", "llama4_text"}
# Families that hold gate and up of the MLP in one.
GATE_UP = {"phi3", "glm", "glm4"}
DELTA_NETS = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}

RENAMED = {
    "afmoe": {"pre_feedforward_layernorm": "pre_mlp_layernorm", "post_feedforward_layernorm": "post_mlp_layernorm"},
    "apertus": {"post_attention_layernorm": "feedforward_layernorm", "input_layernorm": "attention_layernorm"},
    "bamba": {"mlp.": "feed_forward.", "post_attention_layernorm": "pre_ff_layernorm",
              "model.norm.": "model.final_layernorm."},
    "cosmos3_edge_text": {"mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"},
    "glm4": {"post_attention_layernorm": "post_self_attn_layernorm",
             "pre_feedforward_layernorm": "post_attention_layernorm", "post_feedforward_layernorm": "post_mlp_layernorm"},
    "hunyuan_v1_dense": {"self_attn.q_norm": "self_attn.query_layernorm", "self_attn.k_norm": "self_attn.key_layernorm"},
    "hunyuan_v1_moe": {"self_attn.q_norm": "self_attn.query_layernorm", "self_attn.k_norm": "self_attn.key_layernorm",
                       "shared_experts": "shared_mlp"},
    "hyperclovax": {"post_attention_layernorm": "post_norm1", "pre_feedforward_layernorm": "post_attention_layernorm",
                    "post_feedforward_layernorm": "post_norm2"},
    "llama4_text": {"mlp.shared_experts": "feed_forward.shared_expert", "mlp.": "feed_forward."},
    "nemotron_h": {"model.embed_tokens.": "model.embeddings.", "model.norm.": "model.norm_f.", "input_layernorm": "norm",
                   "post_attention_layernorm": "norm", "mamba.": "mixer.", "self_attn.": "mixer.", "mlp.": "mixer.",
                   ".experts.up_proj.weight": ".experts.up_proj", ".experts.down_proj.weight": ".experts.down_proj"},
    "persimmon": {"self_attn.o_proj": "self_attn.dense", "self_attn.q_norm": "self_attn.q_layernorm",
                  "self_attn.k_norm": "self_attn.k_layernorm", "mlp.up_proj": "mlp.dense_h_to_4h",
                  "mlp.down_proj": "mlp.dense_4h_to_h", "model.norm.": "model.final_layernorm."},
    "phi": {"self_attn.o_proj": "self_attn.dense", "self_attn.q_norm": "self_attn.q_layernorm",
            "self_attn.k_norm": "self_attn.k_layernorm", "mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2",
            "model.norm.": "model.final_layernorm."},
    "qwen2_moe": {"shared_experts": "shared_expert"},
    "qwen3_5_moe_text": {"shared_experts": "shared_expert"},
    "qwen3_next": {"shared_experts": "shared_expert"},
    "vaultgemma": {"post_attention_layernorm": "pre_feedforward_layernorm"},
}
# Of a family, where its experts lie and what its router is called.
EXPERTS = {
    "afmoe": ("mlp.", "router.gate.weight"),
    "gemma4_text": ("", "router.proj.weight"),
    "granitemoe": ("block_sparse_moe.", "router.weight"),
    "granitemoehybrid": ("block_sparse_moe.", "router.weight"),
    "granitemoeshared": ("block_sparse_moe.", "router.weight"),
    "granitemoe_swa": ("block_sparse_moe.", "router.weight"),
    "hunyuan_v1_moe": ("mlp.", "gate.wg.weight"),
}
# Those whose experts are the other way round.
TRANSPOSED = {"llama4_text": "feed_forward.", "aria_text": "mlp."}


def theirs_of(config, weights, written):
    """`weights`, or what is linear in them, as the class of `config` has them; `written` is the kind of the checkpoint."""
    kind = config["model_type"]
    if kind in ("glm4v_text", "glm_ocr_text"):
        # Their names and order are those of GLM-4, as which the runner writes them.
        return dict(weights)
    own = in_their_order(config, joined(weights), written)
    out = {}

    def taken(prefix, names):
        return [own.pop(prefix + name) for name in names]

    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        if at + "mlp.experts.gate_proj.weight" in own:
            experts_of(kind, at, taken, out)
        elif kind in GATE_UP:
            out[at + "mlp.gate_up_proj.weight"] = torch.cat(taken(at + "mlp.", ["gate_proj.weight", "up_proj.weight"]))
        if kind == "phi3":
            parts = taken(at + "self_attn.", [f"{part}_proj.weight" for part in "qkv"])
            out[at + "self_attn.qkv_proj.weight"] = torch.cat(parts)
        if kind == "persimmon":
            for end in ("weight", "bias"):
                parts = [part if part.ndim > 1 else part[:, None] for part in taken(at + "self_attn.", [f"{part}_proj.{end}" for part in "qkv"])]
                whole = by_head(parts, lambda _: config["num_attention_heads"])
                out[f"{at}self_attn.query_key_value.{end}"] = whole if end == "weight" else whole[:, 0]
        if kind in ("granitemoehybrid", "granitemoeshared", "granitemoe_swa"):
            shared = at + ("mlp.shared_experts." if at + "mlp.shared_experts.gate_proj.weight" in own else "mlp.")
            gate, up, down = taken(shared, [f"{part}_proj.weight" for part in ("gate", "up", "down")])
            out[at + "shared_mlp.input_linear.weight"] = torch.cat([gate, up])
            out[at + "shared_mlp.output_linear.weight"] = down
        if at + "mamba.in_proj_z.weight" in own:
            # Theirs: gate, x, B, C and steps. C are queries, B keys.
            mixer = at + ("mixer." if kind == "nemotron_h" else "mamba.")
            parts = taken(at + "mamba.in_proj_", [f"{part}.weight" for part in ("z", "v", "k", "q", "dt")])
            out[mixer + "in_proj.weight"] = torch.cat(parts)
            for name in ("weight", "bias"):
                out[f"{mixer}conv1d.{name}"] = torch.cat(taken(at + "mamba.conv1d_", [f"{part}.{name}" for part in "vkq"]))
        if kind in DELTA_NETS:
            delta_net_of(kind, config, at, own, taken, out)
    for name, value in own.items():
        if "correction" in name:
            continue
        for ours, theirs in RENAMED.get(kind, {}).items():
            name = name.replace(ours, theirs)
        out[name] = value
    if config["tie_word_embeddings"]:
        out.pop("lm_head.weight", None)
    return {name: value.contiguous() for name, value in out.items()}


def experts_of(kind, at, taken, out):
    """The experts of a layer, which classes hold in two tensors."""
    gate, up, down = taken(at + "mlp.experts.", [f"{part}_proj.weight" for part in ("gate", "up", "down")])
    [router] = taken(at + "mlp.", ["gate.weight"])
    if kind == "gpt_oss":
        gate_bias, up_bias, down_bias = taken(at + "mlp.experts.", [f"{part}_proj.bias" for part in ("gate", "up", "down")])
        out[at + "mlp.experts.gate_up_proj"] = torch.stack([gate, up], 2).flatten(1, 2).transpose(1, 2)
        out[at + "mlp.experts.gate_up_proj_bias"] = torch.stack([gate_bias, up_bias], 2).flatten(1, 2)
        out[at + "mlp.experts.down_proj"] = down.transpose(1, 2)
        out[at + "mlp.experts.down_proj_bias"] = down_bias
        out[at + "mlp.router.weight"] = router
        [out[at + "mlp.router.bias"]] = taken(at + "mlp.", ["gate.bias"])
    elif kind in TRANSPOSED:
        part = at + TRANSPOSED[kind]
        out[part + "experts.gate_up_proj"] = torch.cat([gate, up], 1).transpose(1, 2)
        out[part + "experts.down_proj"] = down.transpose(1, 2)
        out[part + "router.weight"] = router
    else:
        part, name = EXPERTS.get(kind, ("mlp.", "gate.weight"))
        out[at + part + "experts.gate_up_proj"] = torch.cat([gate, up], 1)
        out[at + part + "experts.down_proj"] = down
        out[at + part + name] = router


def delta_net_of(kind, config, at, own, taken, out):
    """A gated delta net, or attention with a gate. Qwen3-Next's class has the parts of each head of keys together."""
    width, groups = config["head_dim"], config["linear_num_key_heads"]
    attention, mixer = at + "self_attn.", at + "linear_attn."
    if attention + "gate_proj.weight" in own:
        parts = taken(attention, ["q_proj.weight", "gate_proj.weight"])
        out[attention + "q_proj.weight"] = by_head(parts, lambda x: x.shape[0] // width)
        return
    if kind == "qwen3_next":
        parts = taken(mixer + "in_proj_", [f"{part}.weight" for part in "qkvz"])
        out[mixer + "in_proj_qkvz.weight"] = by_head(parts, lambda _: groups)
        parts = taken(mixer + "in_proj_", ["b.weight", "a.weight"])
        out[mixer + "in_proj_ba.weight"] = by_head(parts, lambda _: groups)
    else:
        parts = taken(mixer + "in_proj_", [f"{part}.weight" for part in "qkv"])
        out[mixer + "in_proj_qkv.weight"] = torch.cat(parts)
    out[mixer + "conv1d.weight"] = torch.cat(taken(mixer + "conv1d_", [f"{part}.weight" for part in "qkv"]))


def by_head(parts, heads):
    return torch.cat([part.view(heads(part), -1, part.shape[1]) for part in parts], 1).flatten(0, 1)


def in_their_order(config, own, written):
    """Rows that rotary positions turn where the class of `config` has them. The runner turns the last ones of a head."""
    kind, out = config["model_type"], {}
    if written == "glm4_moe":
        # The checkpoint is in this order.
        return own
    if "kv_lora_rank" in config:
        still, turned, rank = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["kv_lora_rank"]
        # Checkpoints of DeepSeek's kind are in its order.
        if written.startswith("deepseek") or kind == "minicpm3":
            return own
        query = in_order(still, in_pairs(turned))
        latent = in_order(rank, in_pairs(turned))
        for name, value in own.items():
            if name.endswith(("q_proj.weight", "q_b_proj.weight")):
                value = of_heads(value, query)
            if name.endswith("kv_a_proj_with_mqa.weight"):
                value = of_heads(value, latent)
            out[name] = value
        return out
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    share = config.get("partial_rotary_factor")
    turned = config["rotary_dim"] if kind == "minimax_m2" else int(width * share) if share else width
    order = in_pairs(turned) if kind in IN_PAIRS else range(turned)
    # Theirs are the first ones.
    order = torch.tensor([width - turned + at for at in order] + list(range(width - turned)))
    for name, value in own.items():
        is_turned = re.search(r"self_attn\.[qk]_(proj|norm)\.(weight|bias)$", name)
        out[name] = of_heads(value, order) if is_turned else value
    return out


def in_pairs(turned):
    return [turned // 2 * (at % 2) + at // 2 for at in range(turned)]


def in_order(still, turned):
    return torch.tensor(list(range(still)) + [still + at for at in turned])


def of_heads(value, order):
    return value.view(-1, len(order), *value.shape[1:])[:, order].reshape(value.shape)


def joined(weights):
    """Matrices of experts as one, where a checkpoint has one for each."""
    out, parts = {}, {}
    for name, value in weights.items():
        expert = re.match(r"(.*)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight$", name)
        if expert:
            part = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(expert[3], expert[3])
            parts.setdefault(f"{expert[1]}.mlp.experts.{part}.weight", {})[int(expert[2])] = value
        else:
            name = name.replace(".block_sparse_moe.gate", ".mlp.gate")
            out[name.replace(".mlp.shared_expert.", ".mlp.shared_experts.")] = value
    for name, of_expert in parts.items():
        out[name] = torch.stack([of_expert[expert] for expert in range(len(of_expert))])
    return out
