//! What a person says about a training run: model, cluster, degrees of parallelism, training, memory and schedule. A
//! spec is small, so that it fits a link.
//!
//! - In: TOML, JSON or a link from a person.
//! - Out: a [`Spec`] with every default filled in, or all faults; the same back as text and link.
//! - Knows: models, hardware, layouts and names of schedules. Nothing of how a plan is made.
//!
//! # The file
//! TOML or JSON with the same fields. A model of the catalog needs only these:
//!
//! ```toml
//! [model]
//! name = "llama-2-7b"
//! [cluster]
//! device = "h100"
//! [parallel]
//! pipeline = 8
//! [training]
//! microbatches = 32
//! ```
//!
//! All fields and their defaults. A field in brackets is an alias: the name of Megatron-LM, Hugging Face or
//! DeepSpeed, which sets the same value. A spec is always written with the field's own name.
//!
//! | Field | Meaning | Default |
//! |---|---|---|
//! | `name` | a name for people | empty |
//! | `schedule` | a published schedule, or `best` | `best` |
//! | `objective` | `makespan` or `longest_span` | `makespan` |
//! | `model.name` | a model of the [`catalog`] | none: all sizes by hand |
//! | `model.family` | `llama` or `gpt` | the catalog's; `llama` by hand |
//! | `model.layers` (`num_layers`), `.hidden` (`hidden_size`), `.heads` (`num_attention_heads`), `.ffn` (`ffn_hidden_size`), `.vocab` (`vocab_size`) | sizes | the catalog's |
//! | `model.kv_heads` (`num_query_groups`, `num_key_value_heads`) | key and value heads | the catalog's; as many as `heads` by hand |
//! | `model.head_dim` | head dim | `hidden / heads` |
//! | `model.positions` (`max_position_embeddings`) | the longest sequence | the catalog's; `training.sequence` by hand |
//! | `model.config` | the content of a Hugging Face `config.json` ([how it is read](crate::model::hf_config)), instead of a name or sizes. On the command line: its path | none |
//! | `model.qkv_bias` (`add_qkv_bias`), `.qk_norm` (`qk_layernorm`), `.post_norms` (`sandwich_norm`) | biases of q, k and v; QK-norm; post-norms of attention and MLP | the catalog's; false by hand |
//! | `model.activation` | activation of the MLP: with a gate `silu`, `gelu` or `clamped-silu` (gpt-oss); without one `squared-relu`, `xielu`, or GELU in its exact form (`plain-gelu`) or its tanh form (`plain-gelu-tanh`). Family `gpt` has GELU in its exact form, or `plain-gelu-tanh` | the catalog's; `silu` by hand |
//! | `model.experts` (`moe`) | mixture of experts, or `none`: a table of `count` (`num_experts`), `active` (`moe_router_topk`), `ffn` (`moe_ffn_hidden_size`), `shared_ffn` (`moe_shared_expert_intermediate_size`; 0), `dense_layers` (`first_k_dense_replace`; 0), `layers` (instead: a pattern of the layers with experts), `biases` (of the router and of every expert matrix; false), `shared_gate` (`moe_shared_expert_gate`; false), `scores` (`moe_router_score_function`: `softmax`, `sigmoid`, `input-sigmoid`, which weights what experts take in, or `sparse-mixer` (Phi-3.5-MoE; planned, not run); `softmax`), `normed` (`norm_topk_prob`: whether the weights of a token's experts add up to 1; false), `factor` (`moe_router_topk_scaling_factor`; 1), `groups` (`moe_router_num_groups`; 1) and `active_groups` (`moe_router_group_topk`; 1) | the catalog's; `none` by hand |
//! | `model.latent` (`mla`) | multi-head latent attention (MLA), or `none`: a table of `query_rank` (`q_lora_rank`; 0), `key_value_rank` (`kv_lora_rank`), `rope_width` (`qk_rope_head_dim`) and `value_width` (`v_head_dim`) | the catalog's; `none` by hand |
//! | `model.window` | sliding window, or `none`: a table of `tokens`, `full_every` (the period of layers with full attention; 0: no layer has it), or `layers` (instead: a pattern of the layers with the window), `chunked` (chunks that see only themselves; false), and `rope_base` (RoPE theta of the layers with the window, or `none`: the model's) | the catalog's; `none` by hand |
//! | `model.multi_token` (`mtp_num_layers`) | multi-token prediction (MTP) modules, on the last stage unless a layout says otherwise. The mean of their losses counts for 0.1 in training | the catalog's; 0 by hand |
//! | `model.rotary` (`rotary_dim`) | partial rotary dim, or `none`: the whole head in family `llama`, learned positions in `gpt` | the catalog's; `none` by hand |
//! | `model.arrangement` (`parallel_residual`: `false`, `true` or `one-norm`), `.no_bias` (`disable_bias_linear`) | attention and MLP one after the other (`in-turn`), in parallel (`beside`), or in parallel behind one norm (`beside-one-norm`); in family `gpt`: no linear biases | the catalog's; `in-turn`, false by hand |
//! | `model.factors` | multipliers of `embedding`, `residual` (what a layer adds to the residual stream), `attention` (scores; usually 1/√head_dim) and `logits`: a table of numbers. Each number, and the table, may be `none` | the catalog's; `none` by hand |
//! | `model.caps` (`soft_caps`) | soft-caps of `attention` (`attn_logit_softcapping`) and `logits` (`final_logit_softcapping`): a table of numbers. Each number, and the table, may be `none` | the catalog's; `none` by hand |
//! | `model.norm_offset` (`layernorm_zero_centered_gamma`) | whether norms multiply by one more than their weight | the catalog's; false by hand |
//! | `model.qk_norm_of` | with `qk_norm`, what is normed: each head (`heads`), all heads together (`whole`), each head after rotary positions with weights (`rotated-heads`) or without (`rotated-lengths`), or each head by LayerNorm with weights of its own (`layer-heads`) or with gains and biases that all heads share (`shared-layer-heads`) | `heads` |
//! | `model.norm` | in family `llama`: the norm of the residual stream, `rms`, `rms-without-weights`, `layer` (LayerNorm with biases), `layer-without-bias` or `layer-without-weights` | the catalog's; `rms` by hand |
//! | `model.embedding_norm`, `.mlp_bias`, `.head_bias` | in family `llama`: a norm behind the embedding; biases of the MLP's matrices; a bias of the output layer | false |
//! | `model.value_norm`, `.layer_scale` | in family `llama`: a norm of each head's values without weights; a number of each layer that multiplies the stream and is not trained (Gemma 4) | false |
//! | `model.global` | with `window`, what attention of the layers without it has of its own (Gemma 4), or `none`: a table of `head_dim`, `kv_heads`, `rotary` (columns of the first pairs, whose angles are those of a whole head: p-RoPE; `none`) and `keys_are_values` (no matrix of values; false). Runs on the CPU | `none` |
//! | `model.mlp_beside_experts` | in family `llama`: layers with experts have the MLP too, each behind norms of its own, and a router with a norm and a trained scale of each expert (Gemma 4 26B-A4B). Runs on the CPU | false |
//! | `model.qkv_clip` | the greatest absolute value of queries, keys and values, or `none` | `none` |
//! | `model.no_pre_norms`, `.o_bias`, `.sinks`, `.attention_gate` | post-norms of attention and MLP alone, with `post_norms`; a bias of the last matrix of attention; attention sinks, one a head; a gate of what each head attends to | false |
//! | `model.no_rope` | the layers without rotary positions, as a pattern: a 0 or 1 for each of the first layers and, in parentheses, of those that repeat, such as `000(1)` or `(0001)` | `none` |
//! | `model.no_mixer` | the layers without attention or a recurrence, as such a pattern: of a model whose layers have one part each (Nemotron-H) | `none` |
//! | `model.no_mlp` | the layers without an MLP or experts, as such a pattern | `none` |
//! | `model.temperature` | attention temperature of layers without rotary positions, or `none`: a table of `tokens` (positions with the same factor) and `scale` | `none` |
//! | `model.indexer` | an indexer that chooses the tokens that MLA sees (DeepSeek-V3.2), or `none`: a table of `heads`, `head_dim` and `tokens`. Planned, not run | `none` |
//! | `model.vision` | a vision tower before the decoder, or `none`: a table of `images` (of a sequence) and, where `model.config` does not say them, `tokens` (of an image in the sequence), `encoder` (`clip`, `siglip`, `qwen-2.5-vl`, `qwen-3-vl`, `pixtral` or `llama-4`), `projector` (`mlp`, `pooled`, `merger`, `patch-merger` or `shuffle`; that of the encoder), `layers`, `hidden`, `heads`, `ffn`, `patch` (pixels of a side), `merge` (patches of a token; 1), `positions` (rows of the table of positions), `window` (patches; 0: none) and `full_layers` (those without it), `deepstack` (further mergers; 0), `width` (of the projector `shuffle`), `output` (columns of a merger; the decoder's) and `head` (whether a pooling head is held; false). It stands on the stage of the embedding. `training.frozen` may name `vision` and `projector`. Planned, not run | `none` |
//! | `model.recurrence` | a recurrence in the place of attention, or `none`: a table of `kind` (`delta-net` or `mamba-2`), `layers` (a pattern), `key_heads`, `key_dim`, `heads`, `head_dim`, `convolution` (tokens; 4) and `convolution_bias` (false). Runs on the CPU | `none` |
//! | `model.rope_base` (`rope_theta`), `.norm_eps` (`norm_epsilon`), `.tied` (`tie_word_embeddings`) | RoPE theta, eps of norms, whether embedding and output layer share their weight | the catalog's; 10000, 1e-5, false by hand |
//! | `cluster.device` | a device of the [catalog](crate::hardware::cluster::catalog), or a table of `name`, `matmul_flops`, `memory_bytes_per_s` and `memory_bytes`, and where they differ from the catalog's: `fp8_flops`, `fp4_flops`, `host_bytes_per_s` (copies to host memory and back), `matmul_permille` (`peak_gemm_efficiency_permille`), `multiprocessors` (SMs; 0: products take what a ramp says, not waves of tiles) and `launch_ns` (`kernel_launch_ns`: the least time of an operator; a framework that launches several kernels for one operator takes that many times as long) | required |
//! | `cluster.devices_per_node` (`gpus_per_node`) | GPUs per node | the device's; those of `h100` by hand |
//! | `cluster.link` (`intra_node_link`), `.node_link` (`inter_node_link`) | links within and between nodes: a link of the [catalog](crate::hardware::cluster::links), or a table of `bytes_per_s` and `latency_ns` | as `devices_per_node` |
//! | `parallel.pipeline` (`pipeline_model_parallel_size`) | pipeline parallel (PP): ranks, P | required |
//! | `parallel.chunks` (`virtual_pipeline_model_parallel_size`) | virtual stages per rank (VPP) for schedules that may choose, V | 2 |
//! | `parallel.partition` (`pipeline_model_parallel_layout`) | layers per stage: `balanced`, `layers`, `layers-and-ends`, `within-limit` ([what each means](crate::graph::layout::Partition)), a list with one number for each stage (schedules with other numbers of chunks add up neighbours, or cut each stage into equal ones), or [Megatron-LM's layout](crate::notation::megatron_layout), `m` on the stage of `L` or on stages before it | `balanced` |
//! | `parallel.tensor` (`tensor_model_parallel_size`), `.sequence_parallel` | tensor parallel (TP); sequence parallel | 1, false |
//! | `parallel.async_reduce` (`async_tensor_model_parallel_allreduce`) | whether the TP all-reduce of dX [overlaps the dW matmul](crate::graph::passes::overlap_all_reduce) | false |
//! | `parallel.data` (`data_parallel_size`), `.zero` (`zero_stage`) | data parallel (DP); ZeRO stage, 0 to 3 | 1, 0 |
//! | `parallel.shard` (`sharding_group_size`) | sharding group size: how many neighbours of data × context shard their states among themselves; every group has the same shards (HSDP) | `all` |
//! | `parallel.reduce_gradients` (`gradient_reduction`: `once-per-step`, `per-microbatch`) | gradient reduction: `after-accumulation`, or `each-microbatch`, which never keeps sharded gradients whole ([the pass](crate::graph::passes::reduce_gradients)) | `each-microbatch` where `zero` is 2 or 3, else `after-accumulation` |
//! | `parallel.context` (`context_parallel_size`) | context parallel (CP): devices that share every sequence, [two pieces each](crate::graph::SequencePart). Twice this number divides the sequence | 1 |
//! | `parallel.sequence_slices` | [sequence slices](crate::problem::Problem::slices): parts of each sequence, cut along its tokens, that go through the pipeline one after the other, as in Seq1F1B, SlimPipe and TeraPipe. Keys and values of earlier slices stay, so later slices take longer. It divides the sequence | 1 |
//! | `parallel.expert` (`expert_model_parallel_size`) | expert parallel (EP) | 1 |
//! | `parallel.whole_experts` | expert tensor parallel (ETP) 1: whether TP leaves experts whole | false |
//! | `parallel.expert_tensor` (`expert_tensor_parallel_size`) | ETP: devices that split each expert, 1, `tensor` or a number between them that divides `tensor` (with sequence parallel; planned, not run; tokens are gathered over these devices before they are routed) | as `whole_experts` says |
//! | `parallel.dispatch` (`moe_dispatch`: `all-to-all`, `deepep`) | MoE dispatch: `each-copy` sends a token to each of its experts; `once-per-node` sends it once to each node with experts of it, as DeepEP does: on the CPU | `each-copy` |
//! | `parallel.overlap_exchanges` (`overlap_moe_expert_parallel_comm`) | whether the all-to-all of one op overlaps with compute of the other op of a pair ([`Schedule::pairs`](crate::problem::Schedule::pairs)), as in DualPipe. A run takes the two one after the other | false |
//! | `parallel.overlap_grad_reduce` | whether the gradients of a stage are reduced beside its last backward and what follows it, as Megatron-LM's `--overlap-grad-reduce` does, not after the last op. The runner reduces after the last op | false |
//! | `parallel.overlap_param_gather` | with ZeRO 1 or 2, whether updated weights are gathered beside the forward of the next step, as Megatron-LM's `--overlap-param-gather` does, not at the end of this one. The runner gathers at the end | false |
//! | `training.f32_logits` | whether logits are cast to f32 for the loss, as most frameworks do; else one kernel does both | false |
//! | `training.expert_imbalance` (`expert_load_imbalance`) | expert load imbalance: tokens on the fullest device over the average. Each device has room for that many, so 1 leaves no room for uneven routing; a run on several devices then ends at the first uneven batch | 1 |
//! | `training.moe_aux_loss` (`moe_aux_loss_coeff`) | [load balancing loss](crate::graph::Kernel::RouterLoss) of the experts of each layer, over the tokens of each microbatch: its coefficient, such as 0.01, as Megatron-LM counts it (that of Hugging Face is the number of active experts times as great). It trains, and is not in the loss that is told. The runner has it on the CPU | none |
//! | `training.moe_z_loss` (`moe_z_loss_coeff`, `router_z_loss_coef`) | router z-loss: its coefficient, such as 0.001. Likewise | none |
//! | `training.microbatches` (`gradient_accumulation_steps`) | microbatches of a step, M | required, or |
//! | `training.microbatch_factors` | [microbatches that differ](Batch): what each takes of the times of F, B and W, in thousandths, as a list: a number, or a table of `forward`, `backward_input` and `backward_weight`. All hold the same bytes. Planned, not run | all alike |
//! | `training.documents` | [the documents of the step](Documents), as lengths in tokens: by microbatch a list of lists; of the whole step one list, which the planner packs into the microbatches of all data parallel replicas; by replica lists of lists, as a plan has them; or a table of `distribution` and `seed` from which a step is drawn: `log-normal` with `median` and `sigma`, `histogram` with `lengths`, pairs [length, documents]. At most `microbatch_size` × `sequence` tokens in a microbatch; the rest is padding. Attention stays within documents, and its time follows from them; no other time does, and FLOPs for MFU are those of whole sequences. Run on the CPU, where data says where its documents begin | one for each sequence |
//! | `training.global_batch_size` | global batch size: M × `microbatch_size` × `parallel.data` | none |
//! | `training.microbatch_size` (`micro_batch_size`) | micro-batch size | 1 |
//! | `training.tokens` (`train_tokens`) | training tokens, such as `"15T"`: the time of the whole training is then told with the step | none |
//! | `training.sequence` (`seq_length`) | sequence length | the catalog's |
//! | `training.dtype` (`precision`) | precision: `bf16`, `f32` or `f64` | the device's usual one |
//! | `training.matmul_dtype` (`gemm_precision`) | GEMM precision: `fp8`, `mxfp8`, `mxfp4` or `nvfp4` [runs the matmuls of layers in it](crate::graph::passes::quantize), with weights in bf16. Run on the CPU | as `training.dtype` |
//! | `training.gradients_dtype` (`gradient_accumulation_dtype`), `.moments_dtype` (`optimizer_state_dtype`) | `bf16`: the dtype in which gradients of bf16 weights are accumulated and reduced; the dtype of both moments of the optimizer. Run on the CPU | f32, or f64 with f64 |
//! | `training.optimizer` | `adamw`; `sgd`; `sgd-momentum`; `muon` for the matrices of layers, with `adamw` for other weights; `adafactor` without momentum, planned and not run. The runner has `adamw` on the CPU and on GPUs, the others on the CPU | `adamw` |
//! | `training.frozen` | weights that do not train: [modules](crate::graph::post_training::Module) (`embedding`, `head`, `attention`, `mlp`, `experts`, `shared-experts`, `router`, `norms`, `vision`, `projector`) and ranges of layers (`layers.0-15`), as a list. They have no gradient, no master copy, no optimizer states and no W op; where nothing before a layer trains, its backward ends there. The runner has them on the CPU | all train |
//! | `training.lora` | [LoRA](crate::graph::post_training): adapters train and all else is frozen; a table of the following, or `none`. The runner has it on the CPU | `none` |
//! | `training.lora.rank` (`r`, `dim`) | rank of the adapters: `r · (in + out)` parameters beside each targeted matrix | required |
//! | `training.lora.alpha` (`lora_alpha`) | what the adapters' product is multiplied with, times the rank | the rank, so that the factor is 1, as PEFT's and Megatron Bridge's defaults have it |
//! | `training.lora.targets` (`target_modules`) | the matrices: `q`, `k`, `v`, `o`, `gate`, `up`, `down`, of MLA `q_a`, `q_b`, `kv_a`, `kv_b`, of a recurrence `in` and `out`; PEFT's names of them (`q_proj`), Megatron Core's (`linear_qkv`: an adapter each for q, k and v), or `all-linear`. Embedding, head, routers and gates of one number a token have none | `all-linear` |
//! | `training.attention` | `flash` or `materialised` | `flash` |
//! | `training.dropout` | whether there is dropout | false |
//! | `training.recompute` | activation recomputation: `none`, `selective`, `cheap`, `latents`, `feed-forward` or `full` ([each](crate::graph::form::Recompute)); for each layer `3 full, 5 none`; or `fit`: [the least that fits](crate::estimate::fit) | `none` |
//! | `training.recompute_first` (`recompute_first_layers`) | recompute only the first layers of each stage | all layers |
//! | `training.recompute_group` | with `full`: keep only the input of each group of this many layers | 1 |
//! | `training.offload` (`activation_offload`) | [activation offload](crate::graph::passes::offload_activations) to host memory: `none`, a number of first layers of each stage, `all`, `fit`: [the fewest layers with which the step is the fastest that fits](crate::estimate::fit), or `scheduled`: [copies of the schedule](crate::problem::copies::HostCopy) that may last over several ops, for those microbatches and stages with which an order holds more than the limit. What `recompute` drops is not offloaded | `none` |
//! | `training.offload_optimizer` (`optimizer_cpu_offload`) | optimizer offload: whether [moments and master weights](crate::graph::layout::Layout::offload_optimizer) lie in host memory, where the optimizer's step reads and writes them | false |
//! | `training.elastic` | whether a run goes on with fewer data-parallel replicas after ranks have failed for good: with the same global batch, so each replica takes more microbatches | false |
//! | `training.mtbf_hours` | mean time between failures of one device, in hours, such as 50000: `plan` then tells how often checkpoints are best written | none |
//! | `memory.limit_bytes` (`limit_per_gpu_bytes`) | memory limit per GPU | the device's |
//! | `memory.overhead_bytes` (`reserved_bytes`) | reserved memory (framework overhead) | 0 |
//! | `jitter_permille` | standard deviation of an op's time, in thousandths of the planned time. Comparisons then tell [its cost](crate::simulate::jitter), and `best` is [the schedule that costs least with it](crate::plan::planner::Best) | 0 |
//! | `target` | the framework that is to run the plan, `megatron` or `torch`: what it refuses is told with the plan | none |
//! | `messages.lowering` | [where P2P transfers go](crate::program::lower::Lowering): `in-pieces`, `receive-first`, `grouped`, `overlapped` or `overlapped:2`, with that many transfers of a link received ahead | `overlapped`; on a `pair-ordered` transport `grouped` |
//! | `messages.transport` | [what the transport promises](crate::program::Transport): `rendezvous`, `buffered`, `buffered:4`, `grouped`, `pair-ordered` or `streams`. A plan that could hang on it is refused | `grouped` |
//!
//! Bytes may be text: `80 GiB`.
//!
//! A table `problem` may stand in the place of `model`, `cluster`, `parallel`, `training` and `memory`. It has typed
//! costs in the form of a [problem file](crate::problem). A bare problem file is a spec, too. `messages` and
//! `jitter_permille` may stand with it. Typed costs have no sizes of transfers, so buffers of transfers that are
//! received ahead belong in `static_bytes`.

#[cfg(test)]
pub(crate) mod arbitrary;
mod batch;
mod documents;
mod read;
mod target;
#[cfg(test)]
mod tests;
mod text;
mod unlikely;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

pub use batch::Batch;
pub use documents::{Distribution, Documents, Draw, lengths_of};
pub use read::{aliases, read_model_table};
pub use target::Target;
pub use text::{SpecError, parse};

use crate::base::canonical;
use crate::base::fields::Fault;
use crate::base::units::Bytes;
use crate::graph::form::{AttentionForm, Form, Offload, RouterLosses};
use crate::graph::layout::{Dispatch, Layout, Partition, RecomputeLayers};
use crate::graph::of_e12;
use crate::graph::optimizer::Optimizer;
use crate::graph::post_training::Lora;
use crate::hardware::cluster::{Device, Link, Nodes};
use crate::hardware::profile::Profile;
use crate::model::{
    Dtype, E12, Factors, Global, Indexer, ModelConfig, Norm, QkNorm, Temperature, Variant, Vision, catalog,
};
use crate::notation::megatron_layout;
use crate::problem::packing::Bins;
use crate::problem::{Objective, Statement};
use crate::program::Transport;
use crate::program::lower::Lowering;

pub mod link;

/// The name in a spec of recomputation or offload that is fitted to the limit.
pub(crate) const FIT: &str = "fit";

/// What a person says.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// A name for people; may be empty.
    pub name: String,
    /// The model and its cluster, or typed costs.
    pub work: Work,
    /// A published schedule's name, or `best`.
    pub schedule: String,
    /// How transfers go.
    pub messages: Messages,
    /// The standard deviation of op times, see [`jitter`](crate::simulate::jitter); at most
    /// [`MAX_PERMILLE`](crate::simulate::jitter::MAX_PERMILLE).
    pub jitter_permille: u16,
    /// The framework that is to run the plan, where one is named: what it refuses is told.
    pub target: Option<Target>,
}

/// What is known of failures of a run, and what follows them. No plan depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Whether the run goes on with fewer data-parallel replicas.
    pub elastic: bool,
    /// Mean time between failures of one device, in hours.
    pub mtbf_hours: Option<u32>,
}

/// Most hours between failures.
pub(crate) const MAX_MTBF_HOURS: u64 = 1_000_000_000;

/// How transfers go between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Messages {
    /// Where they stand among the ops.
    pub lowering: Lowering,
    /// What their transport promises.
    pub transport: Transport,
}

/// What is to be planned.
#[expect(clippy::large_enum_variant, reason = "a program holds a handful of specs, each one of either")]
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A model on a cluster: costs and bytes follow from its operators.
    Model(ModelWork),
    /// Typed costs and bytes.
    Typed(Statement),
}

/// A model on a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelWork {
    /// The catalog's name of the model, or empty for sizes by hand.
    pub model_name: String,
    /// The model's sizes, from the catalog where `model_name` is given.
    pub model: ModelConfig,
    /// The kind of device.
    pub device: Device,
    /// GPUs per node.
    pub devices_per_node: u32,
    /// The link within a node.
    pub link: Link,
    /// The link between nodes.
    pub node_link: Link,
    /// Pipeline parallel (PP): ranks, P.
    pub pipeline: u32,
    /// Virtual stages per rank (VPP) for schedules that may choose, V.
    pub chunks: u32,
    /// Microbatches of one step, M.
    pub microbatches: u32,
    /// Micro-batch size, in sequences.
    pub microbatch_size: u32,
    /// Sequence length, in tokens.
    pub sequence: u32,
    /// Training tokens, where the spec gives them.
    pub tokens: Option<u64>,
    /// Precision of weights and activations.
    pub dtype: Dtype,
    /// The memory limit per GPU; without one, the device's memory.
    pub limit_bytes: Option<Bytes>,
    /// The objective of the schedule.
    pub objective: Objective,
    /// Degrees of parallelism other than the pipeline's, and what belongs to them.
    pub layout: Layout,
    /// What differs between the microbatches of a step.
    pub batch: Batch,
    /// What is known of failures, and what follows them.
    pub failures: Failures,
    /// Measured times of operators. The text of a spec does not have them; a plan has the costs that follow from them.
    pub profile: Option<Arc<Profile>>,
}

impl Spec {
    /// The spec of a bare problem file: typed costs and the best schedule.
    pub fn typed(statement: Statement) -> Spec {
        let (name, schedule) = (String::new(), String::from("best"));
        Spec {
            name,
            work: Work::Typed(statement),
            schedule,
            messages: Messages::default(),
            jitter_permille: 0,
            target: None,
        }
    }

    /// The objective of the schedule.
    pub fn objective(&self) -> Objective {
        match &self.work {
            Work::Model(model) => model.objective,
            Work::Typed(statement) => statement.objective,
        }
    }

    /// Sequence slices; 1 where sequences are whole.
    pub fn slices(&self) -> usize {
        match &self.work {
            Work::Model(work) => work.layout.slices as usize,
            Work::Typed(statement) => statement.slices,
        }
    }

    /// The spec with every default written out, as JSON.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        map.insert(String::from("name"), json!(self.name));
        map.insert(String::from("schedule"), json!(self.schedule));
        match &self.work {
            Work::Typed(statement) => {
                map.insert(String::from("problem"), statement.to_value());
            }
            Work::Model(work) => {
                for (key, value) in work.to_sections() {
                    map.insert(String::from(key), value);
                }
            }
        }
        if self.messages != Messages::default() {
            let Messages { lowering, transport } = self.messages;
            let messages = json!({ "lowering": lowering.to_string(), "transport": transport.to_string() });
            map.insert(String::from("messages"), messages);
        }
        if self.jitter_permille > 0 {
            map.insert(String::from("jitter_permille"), json!(self.jitter_permille));
        }
        if let Some(target) = self.target {
            map.insert(String::from("target"), json!(target.name()));
        }
        Value::Object(map)
    }

    /// The canonical text of the spec: equal specs have equal texts, and [`Spec::read`] reads them back.
    pub fn to_json(&self) -> String {
        canonical::pretty(&self.to_value())
    }
}

impl ModelWork {
    /// Faults of number formats that do not suit each other or the device.
    pub(crate) fn find_format_faults(&self, faults: &mut Vec<Fault>) {
        self.batch.find_faults(self, faults);
        self.find_slice_faults(faults);
        self.find_offload_faults(faults);
        let form = &self.layout.form;
        for (field, is_so, dtype) in [
            ("training.matmul_dtype", form.matmul_dtype.is_some(), form.matmul_dtype.unwrap_or(Dtype::Fp8)),
            ("training.gradients_dtype", form.bf16_gradients, Dtype::Bf16),
            ("training.moments_dtype", self.layout.bf16_moments, Dtype::Bf16),
        ] {
            if is_so && self.dtype != Dtype::Bf16 {
                let accepted = format!("nothing, because training.dtype is {}", self.dtype.name());
                faults.push(Fault::new(field, dtype.name(), accepted));
            }
        }
        if self.layout.bf16_moments && !self.layout.optimizer.has_moments() {
            let accepted = format!("nothing, because training.optimizer is {}", self.layout.optimizer.name());
            faults.push(Fault::new("training.moments_dtype", Dtype::Bf16.name(), accepted));
        }
        if self.device.matmul_flops == 0 {
            let accepted = format!("another format: {} has no matmuls in it", self.device.name);
            faults.push(Fault::new("training.dtype", self.dtype.name(), accepted));
        }
        let Some(dtype) = form.matmul_dtype else { return };
        if self.device.quantized_flops(dtype) == 0 {
            let (field, devices) = match dtype {
                Dtype::Fp8 => ("cluster.device.fp8_flops", "h100, h200, b200 and newer devices have one"),
                _ => ("cluster.device.fp4_flops", "b200, b300, gb200, gb300, mi350x and mi355x have one"),
            };
            let accepted = format!(
                "a rate above 0, because training.matmul_dtype is {}; in the catalog {devices}",
                dtype.name()
            );
            faults.push(Fault::new(field, 0, accepted));
        }
        if self.layout.zero >= 3 {
            let accepted = format!(
                "0 to 2, because training.matmul_dtype is {}: quantization of gathered weights is not supported",
                dtype.name()
            );
            faults.push(Fault::new("parallel.zero", self.layout.zero, accepted));
        }
    }

    /// What slices of sequences are not planned with.
    fn find_slice_faults(&self, faults: &mut Vec<Fault>) {
        if self.layout.slices <= 1 {
            return;
        }
        let Variant { indexer, recurrence, vision, window, multi_token, .. } = &self.model.variant;
        let form = &self.layout.form;
        let unknown = [
            (form.attention != AttentionForm::Flash, "materialised attention"),
            (window.is_some_and(|window| window.chunked), "attention within chunks"),
            (indexer.is_some(), "an indexer"),
            (recurrence.is_some(), "a recurrence"),
            (vision.is_some(), "a vision tower"),
            (*multi_token > 0, "MTP modules, which read past the end of a slice"),
            (form.offload != Offload::None || self.layout.offload_fits, "activation offload"),
            (self.layout.recompute_layers == RecomputeLayers::Fit, "recompute fit"),
            (self.layout.partition == Partition::WithinLimit, "partition within-limit"),
            (self.batch.differs(), "microbatches that differ (training.documents, training.microbatch_factors)"),
        ];
        for (_, what) in unknown.into_iter().filter(|(is_so, _)| *is_so) {
            let accepted = "1, or causal flash attention whose layers, recomputation and batch are named one by one";
            faults.push(Fault::new(
                "parallel.sequence_slices",
                format!("{} with {what}", self.layout.slices),
                accepted,
            ));
        }
    }

    /// What copies of the schedule are not planned with.
    fn find_offload_faults(&self, faults: &mut Vec<Fault>) {
        if self.layout.form.offload != Offload::Scheduled {
            return;
        }
        let unknown = [
            (self.layout.recompute_layers == RecomputeLayers::Fit, "recompute fit"),
            (self.layout.partition == Partition::WithinLimit, "partition within-limit"),
            (self.batch.differs(), "microbatches that differ (training.documents, training.microbatch_factors)"),
        ];
        for (_, what) in unknown.into_iter().filter(|(is_so, _)| *is_so) {
            let accepted = "scheduled, with recomputation and partition by name and microbatches that are alike";
            faults.push(Fault::new("training.offload", format!("scheduled with {what}"), accepted));
        }
    }

    /// The field of the spec with a number format that the runner keeps on the CPU alone.
    pub const fn format_of_cpu(&self) -> Option<&'static str> {
        match self.layout.form {
            Form { matmul_dtype: Some(Dtype::MxFp8), .. } => Some("training.matmul_dtype = \"mxfp8\""),
            Form { matmul_dtype: Some(Dtype::MxFp4), .. } => Some("training.matmul_dtype = \"mxfp4\""),
            Form { matmul_dtype: Some(Dtype::NvFp4), .. } => Some("training.matmul_dtype = \"nvfp4\""),
            Form { matmul_dtype: Some(_), .. } => Some("training.matmul_dtype = \"fp8\""),
            Form { bf16_gradients: true, .. } => Some("training.gradients_dtype = \"bf16\""),
            _ if self.layout.bf16_moments => Some("training.moments_dtype = \"bf16\""),
            _ => None,
        }
    }

    /// The number of devices.
    pub fn devices(&self) -> u64 {
        u64::from(self.pipeline).saturating_mul(self.layout.devices_per_rank())
    }

    /// The microbatches of a step, over all data-parallel replicas.
    pub const fn bins(&self) -> Bins {
        let data = self.layout.data;
        Bins {
            replicas: if data == 0 { 1 } else { data as usize },
            microbatches: self.microbatches as usize,
            tokens: self.microbatch_size as u64 * self.sequence as u64,
        }
    }

    /// Tokens of one training step, over all data-parallel replicas.
    pub fn step_tokens(&self) -> u64 {
        let sequences = u64::from(self.microbatches) * u64::from(self.microbatch_size);
        sequences.saturating_mul(self.sequence.into()).saturating_mul(self.layout.data.max(1).into())
    }

    /// Devices of a node in an expert-parallel group, where a token goes once to each node with experts of it
    /// (`parallel.dispatch`); none where it goes once for each expert, or where the group is in one node.
    pub fn experts_by_node(&self) -> Option<usize> {
        let form = &self.layout.form;
        let ways = u64::from(form.expert.max(1));
        let is_by_node = self.layout.dispatch == Dispatch::OncePerNode && self.model.variant.experts.is_some();
        let members = self.nodes().members(ways, form.expert_ways().into()).filter(|_| is_by_node && ways > 1);
        members.and_then(|members| usize::try_from(members).ok())
    }

    /// The nodes and links of the devices.
    pub(crate) const fn nodes(&self) -> Nodes {
        Nodes { devices: self.devices_per_node, link: self.link, node_link: self.node_link }
    }

    fn to_sections(&self) -> [(&'static str, Value); 6] {
        [
            ("model", self.model_section()),
            ("cluster", self.cluster_section()),
            ("parallel", self.parallel_section()),
            ("training", self.training_section()),
            ("memory", self.memory_section()),
            ("objective", json!(self.objective.name())),
        ]
    }

    fn model_section(&self) -> Value {
        let mut model = write_sizes(&self.model);
        if !self.model_name.is_empty() {
            model["name"] = json!(self.model_name);
        }
        let usual = catalog::find(&self.model_name).map_or(Variant::USUAL, |entry| entry.config.variant);
        // Most models have their family's usual layer.
        if self.model.variant != Variant::USUAL || usual != Variant::USUAL {
            write_variant(&self.model.variant, &mut model);
        }
        model
    }

    fn cluster_section(&self) -> Value {
        let link = |link: &Link| json!({ "bytes_per_s": link.bytes_per_s, "latency_ns": link.latency_ns });
        let mut section = json!({
            "device": {
                "name": self.device.name,
                "matmul_flops": self.device.matmul_flops,
                "fp8_flops": self.device.fp8_flops,
                "matmul_permille": self.device.matmul_permille,
                "multiprocessors": self.device.multiprocessors,
                "memory_bytes_per_s": self.device.memory_bytes_per_s,
                "memory_bytes": self.device.memory_bytes,
                "host_bytes_per_s": self.device.host_bytes_per_s,
                "launch_ns": self.device.launch_ns,
            },
            "devices_per_node": self.devices_per_node,
            "link": link(&self.link),
            "node_link": link(&self.node_link),
        });
        // Specs from before this field keep their bytes.
        if self.device.fp4_flops != crate::hardware::cluster::usual_fp4_flops(&self.device.name) {
            section["device"]["fp4_flops"] = json!(self.device.fp4_flops);
        }
        section
    }

    fn parallel_section(&self) -> Value {
        let form = &self.layout.form;
        let mut parallel = json!({
            "pipeline": self.pipeline,
            "chunks": self.chunks,
            "partition": match &self.layout.partition {
                Partition::ByHand(counts) => json!(counts),
                Partition::WithModules(counts) => json!(megatron_layout::write(&megatron_layout::of_counts(counts))),
                partition => json!(partition.name()),
            },
            "tensor": form.tensor,
            "sequence_parallel": form.sequence_parallel,
            "data": self.layout.data,
            "zero": self.layout.zero,
        });
        if form.async_reduce {
            parallel["async_reduce"] = json!(true);
        }
        if let Some(shard) = self.layout.shard {
            parallel["shard"] = json!(shard);
        }
        if let Some(reduce) = self.layout.reduce_gradients {
            parallel["reduce_gradients"] = json!(reduce.name());
        }
        if self.layout.slices > 1 {
            parallel["sequence_slices"] = json!(self.layout.slices);
        }
        if form.context > 1 {
            parallel["context"] = json!(form.context);
        }
        if self.model.variant.experts.is_some() {
            parallel["expert"] = json!(form.expert);
            parallel["whole_experts"] = json!(form.whole_experts);
            if form.expert_tensor > 0 {
                parallel["expert_tensor"] = json!(form.expert_tensor);
            }
            if self.layout.dispatch != Dispatch::EachCopy {
                parallel["dispatch"] = json!(self.layout.dispatch.name());
            }
            if self.layout.overlap_exchanges {
                parallel["overlap_exchanges"] = json!(true);
            }
        }
        for (field, overlaps) in [
            ("overlap_grad_reduce", self.layout.overlap_grad_reduce),
            ("overlap_param_gather", self.layout.overlap_param_gather),
        ] {
            if overlaps {
                parallel[field] = json!(true);
            }
        }
        parallel
    }

    fn training_section(&self) -> Value {
        let form = &self.layout.form;
        let mut training = json!({
            "microbatches": self.microbatches,
            "microbatch_size": self.microbatch_size,
            "sequence": self.sequence,
            "dtype": self.dtype.name(),
            "attention": form.attention.name(),
            "dropout": form.dropout,
            "recompute": match &self.layout.recompute_layers {
                RecomputeLayers::Each(choices) => json!(RecomputeLayers::text_of(choices)),
                RecomputeLayers::Fit => json!(FIT),
                _ => json!(form.recompute.name()),
            },
        });
        if let Some(tokens) = self.tokens {
            training["tokens"] = json!(tokens);
        }
        match self.layout.recompute_layers {
            RecomputeLayers::First(count) => training["recompute_first"] = json!(count),
            RecomputeLayers::Groups(size) => training["recompute_group"] = json!(size),
            _ => {}
        }
        if form.f32_logits {
            training["f32_logits"] = json!(true);
        }
        match form.offload {
            _ if self.layout.offload_fits => training["offload"] = json!(FIT),
            Offload::None => {}
            Offload::First(layers) => training["offload"] = json!(layers),
            Offload::All | Offload::Scheduled => training["offload"] = json!(form.offload.text()),
        }
        if self.layout.offload_optimizer {
            training["offload_optimizer"] = json!(true);
        }
        if self.layout.optimizer != Optimizer::AdamW {
            training["optimizer"] = json!(self.layout.optimizer.name());
        }
        let formats = [
            ("matmul_dtype", form.matmul_dtype.is_some(), form.matmul_dtype.unwrap_or(Dtype::Fp8)),
            ("gradients_dtype", form.bf16_gradients, Dtype::Bf16),
            ("moments_dtype", self.layout.bf16_moments, Dtype::Bf16),
        ];
        for (key, _, dtype) in formats.into_iter().filter(|(_, is_so, _)| *is_so) {
            training[key] = json!(dtype.name());
        }
        if !form.frozen.is_none() {
            training["frozen"] = json!(form.frozen.texts());
        }
        if let Some(Lora { rank, alpha, targets }) = form.lora {
            training["lora"] = json!({ "rank": rank, "alpha": alpha, "targets": targets.names() });
        }
        if form.imbalance_permille != 1000 {
            training["expert_imbalance"] = json!(f64::from(form.imbalance_permille) / 1000.0);
        }
        let RouterLosses { balance_e12, z_e12 } = form.router_losses;
        for (key, coefficient) in [("moe_aux_loss", balance_e12), ("moe_z_loss", z_e12)] {
            if coefficient > 0 {
                training[key] = json!(of_e12(coefficient));
            }
        }
        self.batch.write(&mut training);
        if self.failures.elastic {
            training["elastic"] = json!(true);
        }
        if let Some(hours) = self.failures.mtbf_hours {
            training["mtbf_hours"] = json!(hours);
        }
        training
    }

    fn memory_section(&self) -> Value {
        let mut memory = Map::new();
        if let Some(limit) = self.limit_bytes {
            memory.insert(String::from("limit_bytes"), json!(limit));
        }
        if self.layout.overhead_bytes > 0 {
            memory.insert(String::from("overhead_bytes"), json!(self.layout.overhead_bytes));
        }
        Value::Object(memory)
    }
}

/// `model` as a complete table of a spec.
pub fn model_table(model: &ModelConfig) -> Value {
    let mut table = write_sizes(model);
    write_variant(&model.variant, &mut table);
    table
}

fn write_sizes(model: &ModelConfig) -> Value {
    json!({
        "family": model.family.name(),
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn": model.ffn,
        "vocab": model.vocab,
        "positions": model.positions,
        "rope_base": model.rope_base,
        // Rounded to the nearest double, from which reading rounds to the same whole number.
        "norm_eps": model.norm_eps_e12 as f64 / 1e12,
        "tied": model.tied,
    })
}

fn write_variant(variant: &Variant, model: &mut Value) {
    model["qkv_bias"] = json!(variant.qkv_bias);
    model["qk_norm"] = json!(variant.qk_norm);
    model["post_norms"] = json!(variant.post_norms);
    model["activation"] = json!(variant.activation.name());
    model["experts"] = variant.experts.map_or(json!("none"), |experts| {
        let mut table = json!({
            "count": experts.count,
            "active": experts.active,
            "ffn": experts.ffn,
            "shared_ffn": experts.shared_ffn,
            "dense_layers": experts.dense_layers,
            "shared_gate": experts.shared_gate,
            "scores": experts.routing.scores.name(),
            "normed": experts.routing.normed,
            "factor": of_e12(experts.routing.factor.unwrap_or(E12)),
            "groups": experts.routing.groups,
            "active_groups": experts.routing.active_groups,
        });
        if let Some(pattern) = experts.layers {
            table["layers"] = json!(pattern.text());
        }
        if experts.biases {
            table["biases"] = json!(true);
        }
        table
    });
    model["latent"] = variant.latent.map_or(json!("none"), |latent| {
        json!({
            "query_rank": latent.query_rank,
            "key_value_rank": latent.key_value_rank,
            "rope_width": latent.rope_width,
            "value_width": latent.value_width,
        })
    });
    model["window"] = variant.window.map_or(json!("none"), |window| {
        let mut table = json!({ "tokens": window.tokens, "full_every": window.full_every });
        if let Some(pattern) = window.layers {
            table["layers"] = json!(pattern.text());
        }
        if window.chunked {
            table["chunked"] = json!(true);
        }
        if let Some(base) = window.rope_base {
            table["rope_base"] = json!(base);
        }
        table
    });
    write_newer_parts(variant, model);
    model["multi_token"] = json!(variant.multi_token);
    model["rotary"] = variant.rotary.map_or(json!("none"), |columns| json!(columns));
    model["arrangement"] = json!(variant.arrangement.name());
    model["no_bias"] = json!(variant.no_bias);
    model["norm_offset"] = json!(variant.norm_offset);
    let Factors { embedding, residual, attention, logits } = variant.factors;
    let factors = [("embedding", embedding), ("residual", residual), ("attention", attention), ("logits", logits)];
    model["factors"] = numbers(&factors);
    model["caps"] = numbers(&[("attention", variant.caps.attention), ("logits", variant.caps.logits)]);
}

/// A vision tower, without what it does not have.
fn vision_value(vision: &Vision) -> Value {
    let mut value = json!({
        "encoder": vision.encoder.name(), "projector": vision.projector.name(), "layers": vision.layers,
        "hidden": vision.hidden, "heads": vision.heads, "ffn": vision.ffn, "patch": vision.patch,
        "tokens": vision.tokens, "images": vision.images,
    });
    for (key, size, usual) in [
        ("merge", vision.merge, 1),
        ("positions", vision.positions, 0),
        ("window", vision.window, 0),
        ("full_layers", vision.full_layers, 0),
        ("deepstack", vision.deepstack, 0),
        ("width", vision.width, 0),
        ("output", vision.output, 0),
    ] {
        if size != usual {
            value[key] = json!(size);
        }
    }
    if vision.head {
        value["head"] = json!(true);
    }
    value
}

/// Parts that a spec says only where a model has them.
fn write_newer_parts(variant: &Variant, model: &mut Value) {
    if variant.qk_norm_of != QkNorm::Heads {
        model["qk_norm_of"] = json!(variant.qk_norm_of.name());
    }
    if variant.norm != Norm::Rms {
        model["norm"] = json!(variant.norm.name());
    }
    if let Some(Global { head_dim, kv_heads, rotary, keys_are_values }) = variant.global {
        model["global"] = json!({
            "head_dim": head_dim, "kv_heads": kv_heads, "keys_are_values": keys_are_values,
            "rotary": rotary.map_or(json!("none"), |columns| json!(columns)),
        });
    }
    if let Some(limit) = variant.qkv_clip {
        model["qkv_clip"] = json!(of_e12(limit));
    }
    let flags = [
        ("embedding_norm", variant.embedding_norm),
        ("value_norm", variant.value_norm),
        ("layer_scale", variant.layer_scale),
        ("mlp_beside_experts", variant.mlp_beside_experts),
        ("mlp_bias", variant.mlp_bias),
        ("head_bias", variant.head_bias),
        ("no_pre_norms", variant.no_pre_norms),
        ("o_bias", variant.o_bias),
        ("sinks", variant.sinks),
        ("attention_gate", variant.attention_gate),
    ];
    for (name, _) in flags.into_iter().filter(|(_, has)| *has) {
        model[name] = json!(true);
    }
    let patterns = [("no_rope", variant.no_rope), ("no_mixer", variant.no_mixer), ("no_mlp", variant.no_mlp)];
    for (name, pattern) in patterns {
        if let Some(pattern) = pattern {
            model[name] = json!(pattern.text());
        }
    }
    if let Some(Temperature { tokens, scale_e12 }) = variant.temperature {
        model["temperature"] = json!({ "tokens": tokens, "scale": of_e12(scale_e12) });
    }
    if let Some(vision) = variant.vision {
        model["vision"] = vision_value(&vision);
    }
    if let Some(Indexer { heads, head_dim, tokens }) = variant.indexer {
        model["indexer"] = json!({ "heads": heads, "head_dim": head_dim, "tokens": tokens });
    }
    if let Some(recurrence) = variant.recurrence {
        model["recurrence"] = json!({
            "kind": recurrence.kind.name(),
            "layers": recurrence.layers.text(),
            "key_heads": recurrence.key_heads,
            "key_dim": recurrence.key_dim,
            "heads": recurrence.heads,
            "head_dim": recurrence.head_dim,
            "convolution": recurrence.convolution,
            "convolution_bias": recurrence.convolution_bias,
        });
    }
}

/// Numbers in units of 10⁻¹² as plain numbers, `none` for a missing one, and one `none` where all are missing.
fn numbers(numbers: &[(&str, Option<u64>)]) -> Value {
    if numbers.iter().all(|(_, number)| number.is_none()) {
        return json!("none");
    }
    let plain = |number: &Option<u64>| number.map_or(json!("none"), |number| json!(of_e12(number)));
    Value::Object(numbers.iter().map(|(name, number)| (String::from(*name), plain(number))).collect())
}
