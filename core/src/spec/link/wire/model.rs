//! A model's spec to and from the bytes of a `v1` link.

use super::fixed::{
    WireAttention, WireDtype, WireFamily, WireLayout, WireModel, WireObjective, WirePartition, WireRecompute,
    WireVariant,
};
use crate::graph::form::{AttentionForm, Form, Offload, Recompute, RouterLosses};
use crate::graph::layout::{Dispatch, Layout, Partition, RecomputeLayers};
use crate::graph::optimizer::Optimizer;
use crate::graph::post_training::Frozen;
use crate::hardware::cluster::{
    Device, Link, usual_fp4_flops, usual_fp8_flops, usual_host_bytes_per_s, usual_multiprocessors,
};
use crate::model::{Activation, Dtype, Experts, Family, Latent, ModelConfig, Routing, Variant};
use crate::problem::Objective;
use crate::spec::ModelWork;

/// The peak efficiency of matmuls, where a link has no such addition: that of every device when `v1` was new.
pub(super) const MATMUL_PERMILLE: u64 = 869;

pub(super) fn model_to_wire(work: &ModelWork) -> WireModel {
    WireModel {
        model_name: work.model_name.clone(),
        family: match work.model.family {
            Family::Llama => WireFamily::Llama,
            Family::Gpt => WireFamily::Gpt,
        },
        layers: work.model.layers,
        hidden: work.model.hidden,
        heads: work.model.heads,
        kv_heads: work.model.kv_heads,
        head_dim: work.model.head_dim,
        ffn: work.model.ffn,
        vocab: work.model.vocab,
        positions: work.model.positions,
        rope_base: work.model.rope_base,
        norm_eps_e12: work.model.norm_eps_e12,
        tied: work.model.tied,
        variant: variant_to_wire(&work.model.variant),
        device_name: work.device.name.clone(),
        matmul_flops: work.device.matmul_flops,
        memory_bytes_per_s: work.device.memory_bytes_per_s,
        memory_bytes: work.device.memory_bytes,
        launch_ns: work.device.launch_ns,
        devices_per_node: work.devices_per_node,
        link: (work.link.bytes_per_s, work.link.latency_ns),
        node_link: (work.node_link.bytes_per_s, work.node_link.latency_ns),
        pipeline: work.pipeline,
        chunks: work.chunks,
        microbatches: work.microbatches,
        microbatch_size: work.microbatch_size,
        sequence: work.sequence,
        dtype: match work.dtype {
            Dtype::Bf16 => WireDtype::Bf16,
            Dtype::F64 => WireDtype::F64,
            // No spec has the formats of tokens and masks: they are not for training.
            Dtype::F32 | Dtype::I32 | Dtype::U8 | Dtype::Fp8 | Dtype::MxFp8 | Dtype::MxFp4 | Dtype::NvFp4 => {
                WireDtype::F32
            }
        },
        limit_bytes: work.limit_bytes,
        objective: objective_to_wire(work.objective),
        layout: layout_to_wire(&work.layout),
    }
}

pub(super) fn model_from_wire(wire: WireModel) -> ModelWork {
    let link = |(bytes_per_s, latency_ns)| Link { bytes_per_s, latency_ns };
    ModelWork {
        model_name: wire.model_name,
        model: ModelConfig {
            family: match wire.family {
                WireFamily::Llama => Family::Llama,
                WireFamily::Gpt => Family::Gpt,
            },
            layers: wire.layers,
            hidden: wire.hidden,
            heads: wire.heads,
            kv_heads: wire.kv_heads,
            head_dim: wire.head_dim,
            ffn: wire.ffn,
            vocab: wire.vocab,
            positions: wire.positions,
            rope_base: wire.rope_base,
            norm_eps_e12: wire.norm_eps_e12,
            tied: wire.tied,
            variant: variant_from_wire(wire.variant),
        },
        device: Device {
            fp8_flops: usual_fp8_flops(&wire.device_name),
            fp4_flops: usual_fp4_flops(&wire.device_name),
            host_bytes_per_s: usual_host_bytes_per_s(&wire.device_name),
            multiprocessors: usual_multiprocessors(&wire.device_name),
            name: wire.device_name,
            matmul_flops: wire.matmul_flops,
            matmul_permille: MATMUL_PERMILLE,
            memory_bytes_per_s: wire.memory_bytes_per_s,
            memory_bytes: wire.memory_bytes,
            launch_ns: wire.launch_ns,
        },
        devices_per_node: wire.devices_per_node,
        link: link(wire.link),
        node_link: link(wire.node_link),
        pipeline: wire.pipeline,
        chunks: wire.chunks,
        microbatches: wire.microbatches,
        microbatch_size: wire.microbatch_size,
        sequence: wire.sequence,
        tokens: None,
        dtype: match wire.dtype {
            WireDtype::Bf16 => Dtype::Bf16,
            WireDtype::F32 => Dtype::F32,
            WireDtype::F64 => Dtype::F64,
        },
        limit_bytes: wire.limit_bytes,
        objective: objective_from_wire(wire.objective),
        layout: layout_from_wire(wire.layout),
        batch: crate::spec::Batch::default(),
        failures: Default::default(),
        profile: None,
    }
}

fn variant_to_wire(variant: &Variant) -> WireVariant {
    WireVariant {
        qkv_bias: variant.qkv_bias,
        qk_norm: variant.qk_norm,
        post_norms: variant.post_norms,
        gelu: variant.activation == Activation::Gelu,
        experts: variant.experts.map(|of| [of.count, of.active, of.ffn, of.shared_ffn, of.dense_layers]),
        latent: variant.latent.map(|of| [of.query_rank, of.key_value_rank, of.rope_width, of.value_width]),
    }
}

fn variant_from_wire(wire: WireVariant) -> Variant {
    let experts = |[count, active, ffn, shared_ffn, dense_layers]: [u32; 5]| Experts {
        count,
        active,
        ffn,
        shared_ffn,
        dense_layers,
        layers: None,
        biases: false,
        shared_gate: false,
        routing: Routing::USUAL,
    };
    let latent = |[query_rank, key_value_rank, rope_width, value_width]: [u32; 4]| Latent {
        query_rank,
        key_value_rank,
        rope_width,
        value_width,
    };
    // All that `v1` does not have comes in additions.
    Variant {
        qkv_bias: wire.qkv_bias,
        qk_norm: wire.qk_norm,
        post_norms: wire.post_norms,
        activation: if wire.gelu { Activation::Gelu } else { Activation::Silu },
        experts: wire.experts.map(experts),
        latent: wire.latent.map(latent),
        ..Variant::USUAL
    }
}

pub(super) fn recompute_to_wire(choice: Recompute) -> WireRecompute {
    match choice {
        Recompute::None => WireRecompute::None,
        Recompute::Selective => WireRecompute::Selective,
        Recompute::Cheap => WireRecompute::Cheap,
        Recompute::Full => WireRecompute::Full,
        Recompute::Latents => WireRecompute::Latents,
        Recompute::FeedForward => WireRecompute::FeedForward,
    }
}

pub(super) fn recompute_from_wire(wire: WireRecompute) -> Recompute {
    match wire {
        WireRecompute::None => Recompute::None,
        WireRecompute::Selective => Recompute::Selective,
        WireRecompute::Cheap => Recompute::Cheap,
        WireRecompute::Full => Recompute::Full,
        WireRecompute::Latents => Recompute::Latents,
        WireRecompute::FeedForward => Recompute::FeedForward,
    }
}

fn layout_to_wire(layout: &Layout) -> WireLayout {
    WireLayout {
        attention: match layout.form.attention {
            AttentionForm::Flash => WireAttention::Flash,
            AttentionForm::Materialised => WireAttention::Materialised,
        },
        dropout: layout.form.dropout,
        recompute: recompute_to_wire(layout.form.recompute),
        tensor: layout.form.tensor,
        sequence_parallel: layout.form.sequence_parallel,
        context: layout.form.context,
        expert: layout.form.expert,
        whole_experts: layout.form.whole_experts,
        imbalance_permille: layout.form.imbalance_permille,
        f32_logits: layout.form.f32_logits,
        data: layout.data,
        zero: layout.zero,
        partition: match &layout.partition {
            Partition::Balanced | Partition::WithinLimit => WirePartition::Balanced,
            Partition::Layers => WirePartition::Layers,
            Partition::LayersAndEnds => WirePartition::LayersAndEnds,
            Partition::ByHand(counts) => WirePartition::ByHand(counts.clone()),
            Partition::WithModules(counts) => {
                WirePartition::ByHand(counts.iter().map(|[layers, _]| *layers).collect())
            }
        },
        overhead_bytes: layout.overhead_bytes,
    }
}

fn layout_from_wire(wire: WireLayout) -> Layout {
    Layout {
        slices: 1,
        form: Form {
            attention: match wire.attention {
                WireAttention::Flash => AttentionForm::Flash,
                WireAttention::Materialised => AttentionForm::Materialised,
            },
            dropout: wire.dropout,
            recompute: recompute_from_wire(wire.recompute),
            offload: Offload::None,
            tensor: wire.tensor,
            sequence_parallel: wire.sequence_parallel,
            async_reduce: false,
            context: wire.context,
            expert: wire.expert,
            whole_experts: wire.whole_experts,
            expert_tensor: 0,
            imbalance_permille: wire.imbalance_permille,
            router_losses: RouterLosses::NONE,
            f32_logits: wire.f32_logits,
            matmul_dtype: None,
            bf16_gradients: false,
            frozen: Frozen::NONE,
            lora: None,
        },
        data: wire.data,
        zero: wire.zero,
        shard: None,
        reduce_gradients: None,
        dispatch: Dispatch::EachCopy,
        optimizer: Optimizer::AdamW,
        bf16_moments: false,
        offload_optimizer: false,
        overlap_exchanges: false,
        overlap_grad_reduce: false,
        overlap_param_gather: false,
        partition: match wire.partition {
            WirePartition::Balanced => Partition::Balanced,
            WirePartition::Layers => Partition::Layers,
            WirePartition::LayersAndEnds => Partition::LayersAndEnds,
            WirePartition::ByHand(counts) => Partition::ByHand(counts),
        },
        recompute_layers: RecomputeLayers::All,
        offload_fits: false,
        overhead_bytes: wire.overhead_bytes,
    }
}

pub(super) fn objective_to_wire(objective: Objective) -> WireObjective {
    match objective {
        Objective::Makespan => WireObjective::Makespan,
        Objective::LongestSpan => WireObjective::LongestSpan,
    }
}

pub(super) fn objective_from_wire(wire: WireObjective) -> Objective {
    match wire {
        WireObjective::Makespan => Objective::Makespan,
        WireObjective::LongestSpan => Objective::LongestSpan,
    }
}
