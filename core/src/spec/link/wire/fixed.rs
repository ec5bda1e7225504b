//! The bytes of a `v1` link. Do not change anything here: links outlive the planner that wrote them.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct WireSpec {
    pub(super) name: String,
    pub(super) schedule: String,
    pub(super) work: WireWork,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireWork {
    Model(WireModel),
    Typed(WireStatement),
}

#[derive(Serialize, Deserialize)]
pub(super) struct WireModel {
    pub(super) model_name: String,
    pub(super) family: WireFamily,
    pub(super) layers: u32,
    pub(super) hidden: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) ffn: u32,
    pub(super) vocab: u32,
    pub(super) positions: u32,
    pub(super) rope_base: u32,
    pub(super) norm_eps_e12: u64,
    pub(super) tied: bool,
    pub(super) variant: WireVariant,
    pub(super) device_name: String,
    pub(super) matmul_flops: u64,
    pub(super) memory_bytes_per_s: u64,
    pub(super) memory_bytes: u64,
    pub(super) launch_ns: u64,
    pub(super) devices_per_node: u32,
    pub(super) link: (u64, u64),
    pub(super) node_link: (u64, u64),
    pub(super) pipeline: u32,
    pub(super) chunks: u32,
    pub(super) microbatches: u32,
    pub(super) microbatch_size: u32,
    pub(super) sequence: u32,
    pub(super) dtype: WireDtype,
    pub(super) limit_bytes: Option<u64>,
    pub(super) objective: WireObjective,
    pub(super) layout: WireLayout,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WireVariant {
    pub(super) qkv_bias: bool,
    pub(super) qk_norm: bool,
    pub(super) post_norms: bool,
    pub(super) gelu: bool,
    /// Count, active, ffn, shared ffn, dense layers.
    pub(super) experts: Option<[u32; 5]>,
    /// Query rank, key and value rank, rope width, value width.
    pub(super) latent: Option<[u32; 4]>,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireFamily {
    Llama,
    Gpt,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireDtype {
    Bf16,
    F32,
    F64,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireObjective {
    Makespan,
    LongestSpan,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WireLayout {
    pub(super) attention: WireAttention,
    pub(super) dropout: bool,
    pub(super) recompute: WireRecompute,
    pub(super) tensor: u32,
    pub(super) sequence_parallel: bool,
    pub(super) context: u32,
    pub(super) expert: u32,
    pub(super) whole_experts: bool,
    pub(super) imbalance_permille: u32,
    pub(super) f32_logits: bool,
    pub(super) data: u32,
    pub(super) zero: u32,
    pub(super) partition: WirePartition,
    pub(super) overhead_bytes: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireAttention {
    Flash,
    Materialised,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireRecompute {
    None,
    Selective,
    Cheap,
    Full,
    Latents,
    FeedForward,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WirePartition {
    Balanced,
    Layers,
    LayersAndEnds,
    ByHand(Vec<u32>),
}

#[derive(Serialize, Deserialize)]
pub(super) struct WireStatement {
    pub(super) ranks: u32,
    pub(super) chunks: u32,
    pub(super) microbatches: u32,
    pub(super) placement: WirePlacement,
    pub(super) stages: Vec<WireStage>,
    pub(super) transfers: WireTransfers,
    pub(super) static_bytes: Vec<u64>,
    pub(super) limit_bytes: Vec<Option<u64>>,
    pub(super) objective: WireObjective,
    pub(super) fused: bool,
    pub(super) overlap_permille: u16,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WirePlacement {
    Any,
    Linear,
    Looped,
    V,
    Wave,
    Bidirectional,
    List(Vec<u16>),
}

#[derive(Serialize, Deserialize)]
pub(super) struct WireStage {
    pub(super) ns: (u64, u64, u64),
    pub(super) bytes: (i64, i64, i64),
    pub(super) workspace: (u64, u64, u64),
    pub(super) fused_workspace: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireTransfers {
    Uniform(u64),
    Links(Vec<Vec<u64>>),
}
