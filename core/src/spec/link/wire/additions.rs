//! What a `v2` link adds to a `v1` link. Variants are only added at the end; none is changed.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::MESSAGES;
use super::fixed::WireRecompute;
use super::model::{MATMUL_PERMILLE, recompute_from_wire, recompute_to_wire};
use super::statement::one_for_all;
use crate::graph::form::{Form, MAX_ROUTER_LOSS, Offload, Recompute, RouterLosses};
use crate::graph::layout::{Dispatch, Layout, Partition, RecomputeLayers, ReduceGradients};
use crate::graph::optimizer::Optimizer;
use crate::graph::post_training::{Frozen, Lora, MAX_ALPHA, MAX_RANK, Targets};
use crate::hardware::cluster::{usual_fp4_flops, usual_fp8_flops, usual_host_bytes_per_s, usual_multiprocessors};
use crate::model::vision::{Encoder, Projector};
use crate::model::{
    Activation, Arrangement, Caps, Dtype, Factors, Global, Indexer, LayerPattern, MAX_LAYERS, MAX_MULTI_TOKEN, Norm,
    QkNorm, Recurrence, RecurrenceKind, Routing, Scores, Temperature, Variant, Vision, Window, to_e12,
};
use crate::problem::StageCost;
use crate::problem::factors::{Factors as MicrobatchValues, MicrobatchFactors};
use crate::program::Transport;
use crate::program::lower::Lowering;
use crate::spec::{Distribution, Documents, Draw, Failures, MAX_MTBF_HOURS, Messages, ModelWork, Spec, Target, Work};

/// One thing that a `v1` link cannot express.
#[derive(Serialize, Deserialize)]
pub(super) enum Addition {
    /// Sliding window: its tokens, and the period of layers with full attention.
    Window([u32; 2]),
    /// Multi-token prediction (MTP) modules.
    MultiToken(u32),
    /// Lowering and transport of P2P transfers.
    Messages(WireMessages),
    /// The TP all-reduce of dX overlaps the dW matmul.
    AsyncReduce,
    /// The time of a fused BW, where it is shorter than B and W: for each stage, or one for all.
    FusedTimes(Vec<Option<u64>>),
    /// The partition is `within-limit`, where the `v1` part says balanced.
    WithinLimit,
    /// The shared expert has a gate.
    SharedGate,
    /// The layers that recompute.
    RecomputeLayers(WireRecomputeLayers),
    /// When gradients are reduced over data-parallel replicas.
    ReduceGradients(WireReduceGradients),
    /// Partial rotary dim.
    Rotary(u32),
    /// Attention and MLP one after the other, or in parallel.
    Arrangement(WireArrangement),
    /// Linear layers have no bias.
    NoBias,
    /// Norms multiply by one more than their weight.
    NormOffset,
    /// Multipliers of embedding, residual, attention scores and logits, in units of 10⁻¹².
    Factors([Option<u64>; 4]),
    /// Soft-caps of attention scores and of logits, in units of 10⁻¹².
    Caps([Option<u64>; 2]),
    /// Routing of experts: the factor in units of 10⁻¹², router groups and top-k groups.
    Routing { sigmoid: bool, normed: bool, factor: Option<u64>, groups: [u32; 2] },
    /// Standard deviation of op times, in thousandths.
    Jitter(u16),
    /// Peak GEMM efficiency, in thousandths.
    MatmulPermille(u16),
    /// Tokens are sent once to each node.
    DispatchOncePerNode,
    /// GEMM precision of the layers is FP8.
    Fp8,
    /// The device's FP8 rate, where it matters or is not the catalog's.
    Fp8Flops(u64),
    /// Gradient accumulation dtype is bf16.
    Bf16Gradients,
    /// Optimizer state dtype is bf16.
    Bf16Moments,
    /// All-to-all of one op of a pair overlaps with compute of the other.
    OverlapExchanges,
    /// Times of the all-to-all within F and within B: for each stage, or one for all.
    Exchanges(Vec<[u64; 2]>),
    /// The rate between device and host memory, where it is not the catalog's.
    HostRate(u64),
    /// Activation offload of the first layers of each stage; none: of all.
    Offload(Option<u32>),
    /// Activation offload of as many layers as the memory limit needs.
    OffloadFits,
    /// Optimizer offload.
    OffloadOptimizer,
    /// Training tokens.
    Tokens(u64),
    /// Sharding group size.
    Shard(u32),
    /// GEMM precision of the layers is another than FP8.
    MatmulDtype(WireMatmulDtype),
    /// The device's FP4 rate, where it is not the catalog's.
    Fp4Flops(u64),
    /// The optimizer, where it is not AdamW.
    Optimizer(WireOptimizer),
    /// The layers with experts.
    ExpertLayers(String),
    /// The router and experts have biases.
    ExpertBiases,
    /// The layers with a window, where no period says it.
    WindowLayers(String),
    /// Windows do not slide.
    Chunked,
    /// What QK-norm norms.
    QkNormOf(u8),
    /// No norm before attention and MLP.
    NoPreNorms,
    /// The last matrix of attention has a bias.
    OutputBias,
    /// Attention sinks.
    Sinks,
    /// A gate behind attention.
    AttentionGate,
    /// The layers without rotary positions.
    NoRope(String),
    /// Attention temperature: tokens, and the scale in units of 10⁻¹².
    Temperature(u32, u64),
    /// An indexer: heads, head dim and tokens.
    Indexer([u32; 3]),
    /// A recurrence: its kind, layers, heads and widths of keys and of values, and its convolution.
    Recurrence { mamba_2: bool, layers: String, sizes: [u32; 5], convolution_bias: bool },
    /// An activation that is neither SiLU nor GELU.
    Activation(u8),
    /// The router weights what experts take in.
    InputSigmoid,
    /// The framework that is to run the plan, by its place.
    Target(u8),
    /// Frozen modules, and ranges of layers.
    Frozen(u16, Vec<(u32, u32)>),
    /// LoRA: rank, alpha and targets.
    Lora([u32; 2], u16),
    /// The layers without attention.
    NoMixer(String),
    /// The layers without an MLP.
    NoMlp(String),
    /// Expert tensor parallel (ETP) degree between 1 and that of TP.
    ExpertTensor(u32),
    /// MTP modules of each stage, where the `v1` part has the layers.
    StageModules(Vec<u32>),
    /// A vision tower: the places of its encoder and its projector, its sizes, and whether it has a pooling head.
    Vision { kinds: [u8; 2], sizes: [u32; 14], head: bool },
    /// Microbatches that differ: 1 or the number of stages; then of each microbatch, by stage, the thousandths of F, B, W,
    /// bytes and messages.
    MicrobatchFactors(u32, Vec<[u32; 5]>),
    /// The lengths of the documents of each microbatch.
    Documents(Vec<Vec<u32>>),
    /// The device's multiprocessors, where they are not the catalog's.
    Multiprocessors(u32),
    /// The gradient reduction overlaps the backward.
    OverlapGradReduce,
    /// The gathering of parameters overlaps the forward.
    OverlapParamGather,
    /// Elastic training, and hours between failures.
    Failures { elastic: bool, mtbf_hours: Option<u32> },
    /// Coefficients of the routers' losses: load balancing and z-loss.
    RouterLosses([u64; 2]),
    /// Sequence slices.
    Slices(u32),
    /// Bytes of the gradients of keys and values of one slice: for each stage, or one for all.
    SliceGradients(Vec<u64>),
    /// The lengths of the documents of each microbatch of each replica.
    ReplicaDocuments(Vec<Vec<Vec<u32>>>),
    /// The lengths of the documents of the step.
    StepDocuments(Vec<u32>),
    /// Documents are drawn: median and thousandths of sigma; seed.
    LogNormalDocuments([u32; 2], u64),
    /// Documents are drawn: lengths and how many have them; seed.
    HistogramDocuments(Vec<[u32; 2]>, u64),
    /// The norm of the residual stream.
    Norm(u8),
    /// The stream is normed behind the embedding.
    EmbeddingNorm,
    /// The matrices of the MLP have biases.
    MlpBias,
    /// The output layer has a bias.
    HeadBias,
    /// Queries, keys and values are clipped: the limit in units of 10⁻¹².
    QkvClip(u64),
    /// The values of each head are normed.
    ValueNorm,
    /// Each layer multiplies the stream by a number.
    LayerScale,
    /// Attention of layers without a window: head dim, key and value heads, and rotary dim.
    Global { sizes: [u32; 2], rotary: Option<u32>, keys_are_values: bool },
    /// Bytes that may go to the host, and the time of a copy: for each stage, or one for all.
    Offloads(Vec<[u64; 2]>),
    /// Activation offload as copies of the schedule.
    OffloadScheduled,
    /// RoPE theta of layers with a window.
    WindowRopeBase(u32),
    /// The router is a SparseMixer.
    SparseMixer,
    /// Layers with experts have the MLP, too.
    MlpBesideExperts,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireOptimizer {
    Sgd,
    SgdMomentum,
    Muon,
    Adafactor,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireMatmulDtype {
    MxFp8,
    MxFp4,
    NvFp4,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireArrangement {
    InTurn,
    Beside,
    BesideOneNorm,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireReduceGradients {
    AfterAccumulation,
    EachMicrobatch,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireRecomputeLayers {
    First(u32),
    Groups(u32),
    /// Runs of layers with the same choice.
    Each(Vec<(u32, WireRecompute)>),
    Fit,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WireMessages {
    pub(super) lowering: WireLowering,
    pub(super) transport: WireTransport,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireLowering {
    InPieces,
    ReceiveFirst,
    Grouped,
    Overlapped(u32),
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireTransport {
    Rendezvous,
    Buffered(u32),
    Grouped,
    PairOrdered,
    Streams,
}

/// What `v1` cannot express of `spec`. The order is part of the link.
pub(super) fn additions_of(spec: &Spec) -> Vec<Addition> {
    let mut more = Vec::new();
    match &spec.work {
        Work::Model(work) => {
            add_variant(work, &mut more);
            if work.layout.form.async_reduce {
                more.push(Addition::AsyncReduce);
            }
            add_recompute_and_gradients(&work.layout, &mut more);
            add_device_and_dispatch(work, &mut more);
            add_offload(&work.layout, &mut more);
            more.extend(work.tokens.map(Addition::Tokens));
            more.extend(work.layout.shard.map(Addition::Shard));
            let formats = [
                (work.layout.form.matmul_dtype == Some(Dtype::Fp8), Addition::Fp8),
                (work.layout.form.bf16_gradients, Addition::Bf16Gradients),
                (work.layout.bf16_moments, Addition::Bf16Moments),
            ];
            more.extend(formats.into_iter().filter(|(is_so, _)| *is_so).map(|(_, more)| more));
            if work.layout.overlap_exchanges {
                more.push(Addition::OverlapExchanges);
            }
            let format = match work.layout.form.matmul_dtype {
                Some(Dtype::MxFp8) => Some(WireMatmulDtype::MxFp8),
                Some(Dtype::MxFp4) => Some(WireMatmulDtype::MxFp4),
                Some(Dtype::NvFp4) => Some(WireMatmulDtype::NvFp4),
                _ => None,
            };
            more.extend(format.map(Addition::MatmulDtype));
            if work.device.fp4_flops != usual_fp4_flops(&work.device.name) {
                more.push(Addition::Fp4Flops(work.device.fp4_flops));
            }
            let optimizer = match work.layout.optimizer {
                Optimizer::AdamW => None,
                Optimizer::Sgd => Some(WireOptimizer::Sgd),
                Optimizer::SgdMomentum => Some(WireOptimizer::SgdMomentum),
                Optimizer::Muon => Some(WireOptimizer::Muon),
                Optimizer::Adafactor => Some(WireOptimizer::Adafactor),
            };
            more.extend(optimizer.map(Addition::Optimizer));
            add_post_training(&work.layout.form, &mut more);
            let ways = work.layout.form.expert_tensor;
            more.extend((ways > 0).then_some(Addition::ExpertTensor(ways)));
            more.extend(work.batch.factors.as_ref().map(factors_to_wire));
            more.extend(documents_to_wire(&work.batch.documents));
            if work.failures != Failures::default() {
                let Failures { elastic, mtbf_hours } = work.failures;
                more.push(Addition::Failures { elastic, mtbf_hours });
            }
            if let Partition::WithModules(counts) = &work.layout.partition {
                more.push(Addition::StageModules(counts.iter().map(|[_, modules]| *modules).collect()));
            }
        }
        Work::Typed(statement) => {
            add_costs(&statement.stages, &mut more);
            more.extend(statement.microbatch_factors.as_ref().map(factors_to_wire));
        }
    }
    more.extend((spec.slices() > 1).then_some(Addition::Slices(spec.slices() as u32)));
    if spec.messages != MESSAGES {
        more.push(Addition::Messages(messages_to_wire(spec.messages)));
    }
    if spec.jitter_permille > 0 {
        more.push(Addition::Jitter(spec.jitter_permille));
    }
    let named = Target::NAMED.map(|(_, target)| target);
    more.extend(spec.target.and_then(|target| place_in(&named, &target)).map(Addition::Target));
    more
}

/// What differs from the family's usual layer; the partition within the memory limit stands in its middle.
fn add_variant(work: &ModelWork, more: &mut Vec<Addition>) {
    let variant = &work.model.variant;
    if let Some(window) = variant.window {
        more.push(Addition::Window([window.tokens, window.full_every]));
    }
    if variant.multi_token > 0 {
        more.push(Addition::MultiToken(variant.multi_token));
    }
    more.extend(variant.rotary.map(Addition::Rotary));
    match variant.arrangement {
        Arrangement::InTurn => {}
        Arrangement::Beside => more.push(Addition::Arrangement(WireArrangement::Beside)),
        Arrangement::BesideOneNorm => more.push(Addition::Arrangement(WireArrangement::BesideOneNorm)),
    }
    if variant.no_bias {
        more.push(Addition::NoBias);
    }
    if variant.norm_offset {
        more.push(Addition::NormOffset);
    }
    let Factors { embedding, residual, attention, logits } = variant.factors;
    if variant.factors != Factors::default() {
        more.push(Addition::Factors([embedding, residual, attention, logits]));
    }
    if variant.caps != Caps::default() {
        more.push(Addition::Caps([variant.caps.attention, variant.caps.logits]));
    }
    if work.layout.partition == Partition::WithinLimit {
        more.push(Addition::WithinLimit);
    }
    if variant.experts.is_some_and(|experts| experts.shared_gate) {
        more.push(Addition::SharedGate);
    }
    let routing = variant.experts.map(|experts| experts.routing).filter(|routing| *routing != Routing::USUAL);
    more.extend(routing.map(|Routing { scores, normed, factor, groups, active_groups }| {
        let sigmoid = scores == Scores::Sigmoid;
        Addition::Routing { sigmoid, normed, factor, groups: [groups, active_groups] }
    }));
    add_newer_parts(variant, more);
}

/// Parts that only newer models have.
fn add_newer_parts(variant: &Variant, more: &mut Vec<Addition>) {
    if let Some(experts) = variant.experts {
        more.extend(experts.layers.map(|pattern| Addition::ExpertLayers(pattern.text())));
        more.extend(experts.biases.then_some(Addition::ExpertBiases));
        more.extend((experts.routing.scores == Scores::InputSigmoid).then_some(Addition::InputSigmoid));
        more.extend((experts.routing.scores == Scores::SparseMixer).then_some(Addition::SparseMixer));
    }
    if let Some(window) = variant.window {
        more.extend(window.layers.map(|pattern| Addition::WindowLayers(pattern.text())));
        more.extend(window.chunked.then_some(Addition::Chunked));
        more.extend(window.rope_base.map(Addition::WindowRopeBase));
    }
    if variant.qk_norm_of != QkNorm::Heads {
        more.extend(place_in(&QkNorm::ALL, &variant.qk_norm_of).map(Addition::QkNormOf));
    }
    if variant.norm != Norm::Rms {
        more.extend(place_in(&Norm::ALL, &variant.norm).map(Addition::Norm));
    }
    more.extend(variant.qkv_clip.map(Addition::QkvClip));
    more.extend(variant.global.map(|Global { head_dim, kv_heads, rotary, keys_are_values }| Addition::Global {
        sizes: [head_dim, kv_heads],
        rotary,
        keys_are_values,
    }));
    let flags = [
        (variant.no_pre_norms, Addition::NoPreNorms),
        (variant.o_bias, Addition::OutputBias),
        (variant.sinks, Addition::Sinks),
        (variant.attention_gate, Addition::AttentionGate),
        (variant.embedding_norm, Addition::EmbeddingNorm),
        (variant.value_norm, Addition::ValueNorm),
        (variant.layer_scale, Addition::LayerScale),
        (variant.mlp_beside_experts, Addition::MlpBesideExperts),
        (variant.mlp_bias, Addition::MlpBias),
        (variant.head_bias, Addition::HeadBias),
    ];
    more.extend(flags.into_iter().filter(|(has, _)| *has).map(|(_, more)| more));
    more.extend(variant.no_rope.map(|pattern| Addition::NoRope(pattern.text())));
    more.extend(variant.temperature.map(|of| Addition::Temperature(of.tokens, of.scale_e12)));
    more.extend(variant.indexer.map(|of| Addition::Indexer([of.heads, of.head_dim, of.tokens])));
    more.extend(variant.recurrence.map(|of| Addition::Recurrence {
        mamba_2: of.kind == RecurrenceKind::Mamba2,
        layers: of.layers.text(),
        sizes: [of.key_heads, of.key_dim, of.heads, of.head_dim, of.convolution],
        convolution_bias: of.convolution_bias,
    }));
    if !matches!(variant.activation, Activation::Silu | Activation::Gelu) {
        more.extend(place_in(&Activation::ALL, &variant.activation).map(Addition::Activation));
    }
    more.extend(variant.no_mixer.map(|pattern| Addition::NoMixer(pattern.text())));
    more.extend(variant.no_mlp.map(|pattern| Addition::NoMlp(pattern.text())));
    more.extend(variant.vision.and_then(|vision| vision_to_wire(&vision)));
}

/// The place of one of all choices, which never changes.
fn place_in<T: PartialEq>(all: &[T], one: &T) -> Option<u8> {
    all.iter().position(|other| other == one).and_then(|place| u8::try_from(place).ok())
}

/// Puts a part into the variant that only newer models have. None where a link has none such.
fn apply_newer_part(variant: &mut Variant, more: Addition) -> Option<()> {
    let pattern = |text: &str| LayerPattern::read_text(text);
    match more {
        Addition::ExpertLayers(text) => variant.experts.as_mut()?.layers = Some(pattern(&text)?),
        Addition::ExpertBiases => variant.experts.as_mut()?.biases = true,
        Addition::InputSigmoid => variant.experts.as_mut()?.routing.scores = Scores::InputSigmoid,
        Addition::SparseMixer => variant.experts.as_mut()?.routing.scores = Scores::SparseMixer,
        Addition::WindowLayers(text) => variant.window.as_mut()?.layers = Some(pattern(&text)?),
        Addition::Chunked => variant.window.as_mut()?.chunked = true,
        Addition::WindowRopeBase(base) => variant.window.as_mut()?.rope_base = Some(base),
        Addition::QkNormOf(place) => variant.qk_norm_of = *QkNorm::ALL.get(usize::from(place))?,
        Addition::Norm(place) => variant.norm = *Norm::ALL.get(usize::from(place))?,
        Addition::EmbeddingNorm => variant.embedding_norm = true,
        Addition::MlpBias => variant.mlp_bias = true,
        Addition::HeadBias => variant.head_bias = true,
        Addition::QkvClip(limit) => variant.qkv_clip = Some(limit),
        Addition::ValueNorm => variant.value_norm = true,
        Addition::LayerScale => variant.layer_scale = true,
        Addition::MlpBesideExperts => variant.mlp_beside_experts = true,
        Addition::Global { sizes: [head_dim, kv_heads], rotary, keys_are_values } => {
            variant.global = Some(Global { head_dim, kv_heads, rotary, keys_are_values });
        }
        Addition::NoPreNorms => variant.no_pre_norms = true,
        Addition::OutputBias => variant.o_bias = true,
        Addition::Sinks => variant.sinks = true,
        Addition::AttentionGate => variant.attention_gate = true,
        Addition::NoRope(text) => variant.no_rope = Some(pattern(&text)?),
        Addition::Temperature(tokens, scale_e12) => variant.temperature = Some(Temperature { tokens, scale_e12 }),
        Addition::Indexer([heads, head_dim, tokens]) => variant.indexer = Some(Indexer { heads, head_dim, tokens }),
        Addition::Recurrence { mamba_2, layers, sizes, convolution_bias } => {
            let [key_heads, key_dim, heads, head_dim, convolution] = sizes;
            let kind = if mamba_2 { RecurrenceKind::Mamba2 } else { RecurrenceKind::DeltaNet };
            let layers = pattern(&layers)?;
            variant.recurrence =
                Some(Recurrence { kind, layers, key_heads, key_dim, heads, head_dim, convolution, convolution_bias });
        }
        Addition::NoMixer(text) => variant.no_mixer = Some(pattern(&text)?),
        Addition::NoMlp(text) => variant.no_mlp = Some(pattern(&text)?),
        Addition::Vision { kinds, sizes, head } => variant.vision = Some(vision_from_wire(kinds, sizes, head)?),
        Addition::Activation(place) => variant.activation = *Activation::ALL.get(usize::from(place))?,
        _ => return None,
    }
    Some(())
}

fn vision_to_wire(of: &Vision) -> Option<Addition> {
    let kinds = [place_in(&Encoder::ALL, &of.encoder)?, place_in(&Projector::ALL, &of.projector)?];
    let sizes = [
        of.layers,
        of.hidden,
        of.heads,
        of.ffn,
        of.patch,
        of.merge,
        of.tokens,
        of.images,
        of.positions,
        of.window,
        of.full_layers,
        of.deepstack,
        of.width,
        of.output,
    ];
    Some(Addition::Vision { kinds, sizes, head: of.head })
}

/// None where a link has no such kinds.
fn vision_from_wire([encoder, projector]: [u8; 2], sizes: [u32; 14], head: bool) -> Option<Vision> {
    let encoder = *Encoder::ALL.get(usize::from(encoder))?;
    let projector = *Projector::ALL.get(usize::from(projector))?;
    let [
        layers,
        hidden,
        heads,
        ffn,
        patch,
        merge,
        tokens,
        images,
        positions,
        window,
        full_layers,
        deepstack,
        width,
        output,
    ] = sizes;
    Some(Vision {
        encoder,
        projector,
        layers,
        hidden,
        heads,
        ffn,
        patch,
        merge,
        tokens,
        images,
        positions,
        window,
        full_layers,
        deepstack,
        width,
        output,
        head,
    })
}

/// Documents, where sequences are not whole.
fn documents_to_wire(documents: &Documents) -> Option<Addition> {
    Some(match documents {
        Documents::Sequences => return None,
        Documents::OfMicrobatches(lists) => Addition::Documents(lists.clone()),
        Documents::OfReplicas(lists) => Addition::ReplicaDocuments(lists.clone()),
        Documents::OfStep(lengths) => Addition::StepDocuments(lengths.clone()),
        Documents::Drawn(Draw { lengths, seed }) => match lengths {
            Distribution::LogNormal { median, sigma_permille } => {
                Addition::LogNormalDocuments([*median, *sigma_permille], *seed)
            }
            Distribution::Histogram(pairs) => Addition::HistogramDocuments(pairs.clone(), *seed),
        },
    })
}

fn set_documents(spec: &mut Spec, documents: Documents) -> Option<()> {
    let Work::Model(work) = &mut spec.work else { return None };
    work.batch.documents = documents;
    Some(())
}

/// What microbatches take that differ.
fn factors_to_wire(factors: &MicrobatchFactors) -> Addition {
    let values = factors.values().iter().map(|factors| factors.values()).collect();
    Addition::MicrobatchFactors(factors.stages() as u32, values)
}

/// Times of typed costs.
fn add_costs(stages: &[StageCost], more: &mut Vec<Addition>) {
    let stages = one_for_all(stages);
    if stages.iter().any(|cost| cost.backward_ns.is_some()) {
        more.push(Addition::FusedTimes(stages.iter().map(|cost| cost.backward_ns).collect()));
    }
    let exchanges: Vec<[u64; 2]> =
        stages.iter().map(|cost| [cost.forward_exchange_ns, cost.backward_exchange_ns]).collect();
    if exchanges.iter().flatten().any(|exchange| *exchange > 0) {
        more.push(Addition::Exchanges(exchanges));
    }
    if stages.iter().any(|cost| cost.slice_gradient_bytes > 0) {
        more.push(Addition::SliceGradients(stages.iter().map(|cost| cost.slice_gradient_bytes).collect()));
    }
    if stages.iter().any(|cost| cost.offload_bytes > 0) {
        more.push(Addition::Offloads(stages.iter().map(|cost| [cost.offload_bytes, cost.offload_ns]).collect()));
    }
}

fn add_recompute_and_gradients(layout: &Layout, more: &mut Vec<Addition>) {
    let layers = match &layout.recompute_layers {
        RecomputeLayers::All => None,
        RecomputeLayers::First(count) => Some(WireRecomputeLayers::First(*count)),
        RecomputeLayers::Groups(size) => Some(WireRecomputeLayers::Groups(*size)),
        RecomputeLayers::Each(choices) => {
            let run = |run: &[Recompute]| (run.len() as u32, recompute_to_wire(run[0]));
            Some(WireRecomputeLayers::Each(choices.chunk_by(|a, b| a == b).map(run).collect()))
        }
        RecomputeLayers::Fit => Some(WireRecomputeLayers::Fit),
    };
    more.extend(layers.map(Addition::RecomputeLayers));
    let reduce = layout.reduce_gradients.map(|reduce| match reduce {
        ReduceGradients::AfterAccumulation => WireReduceGradients::AfterAccumulation,
        ReduceGradients::EachMicrobatch => WireReduceGradients::EachMicrobatch,
    });
    more.extend(reduce.map(Addition::ReduceGradients));
}

fn add_device_and_dispatch(work: &ModelWork, more: &mut Vec<Addition>) {
    if work.device.matmul_permille != MATMUL_PERMILLE {
        more.push(Addition::MatmulPermille(u16::try_from(work.device.matmul_permille).unwrap_or(u16::MAX)));
    }
    if work.device.multiprocessors != usual_multiprocessors(&work.device.name) {
        more.push(Addition::Multiprocessors(u32::try_from(work.device.multiprocessors).unwrap_or(u32::MAX)));
    }
    let RouterLosses { balance_e12, z_e12 } = work.layout.form.router_losses;
    if balance_e12 > 0 || z_e12 > 0 {
        more.push(Addition::RouterLosses([balance_e12, z_e12]));
    }
    if work.layout.overlap_grad_reduce {
        more.push(Addition::OverlapGradReduce);
    }
    if work.layout.overlap_param_gather {
        more.push(Addition::OverlapParamGather);
    }
    if work.layout.dispatch == Dispatch::OncePerNode {
        more.push(Addition::DispatchOncePerNode);
    }
    if work.layout.form.matmul_dtype == Some(Dtype::Fp8)
        || work.device.fp8_flops != usual_fp8_flops(&work.device.name)
    {
        more.push(Addition::Fp8Flops(work.device.fp8_flops));
    }
    if work.device.host_bytes_per_s != usual_host_bytes_per_s(&work.device.name) {
        more.push(Addition::HostRate(work.device.host_bytes_per_s));
    }
}

fn add_post_training(form: &Form, more: &mut Vec<Addition>) {
    if !form.frozen.is_none() {
        let (modules, ranges) = form.frozen.parts();
        more.push(Addition::Frozen(modules, ranges));
    }
    if let Some(Lora { rank, alpha, targets }) = form.lora {
        more.push(Addition::Lora([rank, alpha], targets.bits()));
    }
}

fn add_offload(layout: &Layout, more: &mut Vec<Addition>) {
    match layout.form.offload {
        Offload::None => {}
        Offload::First(layers) => more.push(Addition::Offload(Some(layers))),
        Offload::All => more.push(Addition::Offload(None)),
        Offload::Scheduled => more.push(Addition::OffloadScheduled),
    }
    if layout.offload_fits {
        more.push(Addition::OffloadFits);
    }
    if layout.offload_optimizer {
        more.push(Addition::OffloadOptimizer);
    }
}

/// Puts an addition into the spec. None where it does not belong to such a spec.
///
/// Long on purpose: a table with an arm for each addition.
pub(super) fn apply(spec: &mut Spec, more: Addition) -> Option<()> {
    let model = |spec: &mut Spec, change: &dyn Fn(&mut ModelWork)| match &mut spec.work {
        Work::Model(work) => {
            change(work);
            Some(())
        }
        Work::Typed(_) => None,
    };
    match more {
        Addition::Window([tokens, full_every]) => {
            model(spec, &|work| work.model.variant.window = Some(Window::sliding(tokens, full_every)))
        }
        Addition::MultiToken(modules) => model(spec, &|work| work.model.variant.multi_token = modules),
        Addition::WithinLimit => model(spec, &|work| work.layout.partition = Partition::WithinLimit),
        Addition::SharedGate => model(spec, &|work| {
            if let Some(experts) = &mut work.model.variant.experts {
                experts.shared_gate = true;
            }
        }),
        Addition::Routing { sigmoid, normed, factor, groups: [groups, active_groups] } => model(spec, &|work| {
            let scores = if sigmoid { Scores::Sigmoid } else { Scores::Softmax };
            if let Some(experts) = &mut work.model.variant.experts {
                experts.routing = Routing { scores, normed, factor, groups, active_groups };
            }
        }),
        Addition::ExpertTensor(ways) => model(spec, &|work| work.layout.form.expert_tensor = ways),
        Addition::AsyncReduce => model(spec, &|work| work.layout.form.async_reduce = true),
        Addition::ReduceGradients(reduce) => {
            let reduce = match reduce {
                WireReduceGradients::AfterAccumulation => ReduceGradients::AfterAccumulation,
                WireReduceGradients::EachMicrobatch => ReduceGradients::EachMicrobatch,
            };
            model(spec, &|work| work.layout.reduce_gradients = Some(reduce))
        }
        Addition::RecomputeLayers(layers) => {
            let layers = recompute_layers_from_wire(layers)?;
            model(spec, &|work| work.layout.recompute_layers = layers.clone())
        }
        Addition::FusedTimes(times) => match &mut spec.work {
            Work::Typed(statement) if statement.stages.len() == times.len() => {
                let stages = statement.stages.iter_mut().zip(times);
                stages.for_each(|(cost, time)| cost.backward_ns = time);
                Some(())
            }
            _ => None,
        },
        Addition::Rotary(columns) => model(spec, &|work| work.model.variant.rotary = Some(columns)),
        Addition::Arrangement(arrangement) => {
            let arrangement = match arrangement {
                WireArrangement::InTurn => Arrangement::InTurn,
                WireArrangement::Beside => Arrangement::Beside,
                WireArrangement::BesideOneNorm => Arrangement::BesideOneNorm,
            };
            model(spec, &|work| work.model.variant.arrangement = arrangement)
        }
        Addition::NoBias => model(spec, &|work| work.model.variant.no_bias = true),
        Addition::NormOffset => model(spec, &|work| work.model.variant.norm_offset = true),
        Addition::Factors([embedding, residual, attention, logits]) => model(spec, &|work| {
            work.model.variant.factors = Factors { embedding, residual, attention, logits };
        }),
        Addition::Caps([attention, logits]) => {
            model(spec, &|work| work.model.variant.caps = Caps { attention, logits })
        }
        Addition::Messages(messages) => {
            spec.messages = messages_from_wire(messages);
            Some(())
        }
        Addition::Target(place) => {
            spec.target = Some(Target::NAMED.get(usize::from(place))?.1);
            Some(())
        }
        Addition::Jitter(permille) => {
            spec.jitter_permille = permille;
            Some(())
        }
        Addition::MatmulPermille(permille) => model(spec, &|work| work.device.matmul_permille = permille.into()),
        Addition::Multiprocessors(count) => model(spec, &|work| work.device.multiprocessors = count.into()),
        Addition::RouterLosses([balance_e12, z_e12]) => {
            let of_one = to_e12(MAX_ROUTER_LOSS);
            (balance_e12 <= of_one && z_e12 <= of_one).then_some(())?;
            model(spec, &|work| work.layout.form.router_losses = RouterLosses { balance_e12, z_e12 })
        }
        Addition::OverlapGradReduce => model(spec, &|work| work.layout.overlap_grad_reduce = true),
        Addition::OverlapParamGather => model(spec, &|work| work.layout.overlap_param_gather = true),
        Addition::DispatchOncePerNode => model(spec, &|work| work.layout.dispatch = Dispatch::OncePerNode),
        Addition::Fp8 => model(spec, &|work| work.layout.form.matmul_dtype = Some(Dtype::Fp8)),
        Addition::MatmulDtype(format) => {
            let dtype = matmul_dtype_from_wire(format);
            model(spec, &|work| work.layout.form.matmul_dtype = Some(dtype))
        }
        Addition::Fp4Flops(flops) => model(spec, &|work| work.device.fp4_flops = flops),
        Addition::Optimizer(optimizer) => {
            let optimizer = optimizer_from_wire(optimizer);
            model(spec, &|work| work.layout.optimizer = optimizer)
        }
        Addition::Frozen(modules, ranges) => {
            let frozen = Frozen::of_parts(modules, &ranges)?;
            model(spec, &|work| work.layout.form.frozen = frozen)
        }
        Addition::Lora([rank, alpha], targets) => {
            let (ranks, alphas) = (1..=MAX_RANK, 1..=MAX_ALPHA);
            let targets = Targets::of_bits(targets).filter(|_| ranks.contains(&rank) && alphas.contains(&alpha))?;
            model(spec, &|work| work.layout.form.lora = Some(Lora { rank, alpha, targets }))
        }
        Addition::Fp8Flops(flops) => model(spec, &|work| work.device.fp8_flops = flops),
        Addition::HostRate(rate) => model(spec, &|work| work.device.host_bytes_per_s = rate),
        Addition::Offload(layers) => {
            model(spec, &|work| work.layout.form.offload = layers.map_or(Offload::All, Offload::First))
        }
        Addition::OffloadScheduled => model(spec, &|work| work.layout.form.offload = Offload::Scheduled),
        Addition::OffloadFits => model(spec, &|work| work.layout.offload_fits = true),
        Addition::OffloadOptimizer => model(spec, &|work| work.layout.offload_optimizer = true),
        Addition::Tokens(tokens) => model(spec, &|work| work.tokens = Some(tokens)),
        Addition::Shard(shard) => model(spec, &|work| work.layout.shard = Some(shard)),
        Addition::Bf16Gradients => model(spec, &|work| work.layout.form.bf16_gradients = true),
        Addition::Bf16Moments => model(spec, &|work| work.layout.bf16_moments = true),
        Addition::OverlapExchanges => model(spec, &|work| work.layout.overlap_exchanges = true),
        Addition::MicrobatchFactors(stages, values) => {
            let values = values.into_iter().map(MicrobatchValues::of).collect();
            let factors = MicrobatchFactors::of_stages(stages as usize, values)?;
            match &mut spec.work {
                Work::Typed(statement) => statement.microbatch_factors = Some(factors).filter(|of| !of.are_usual()),
                Work::Model(work) => work.batch.factors = Some(factors).filter(|of| !of.are_usual()),
            }
            Some(())
        }
        Addition::Documents(lists) => set_documents(spec, Documents::OfMicrobatches(lists)),
        Addition::ReplicaDocuments(lists) => set_documents(spec, Documents::OfReplicas(lists)),
        Addition::StepDocuments(lengths) => set_documents(spec, Documents::OfStep(lengths)),
        Addition::LogNormalDocuments([median, sigma_permille], seed) => set_documents(
            spec,
            Documents::Drawn(Draw { lengths: Distribution::LogNormal { median, sigma_permille }, seed }),
        ),
        Addition::HistogramDocuments(pairs, seed) => {
            set_documents(spec, Documents::Drawn(Draw { lengths: Distribution::Histogram(pairs), seed }))
        }
        Addition::Failures { elastic, mtbf_hours } => {
            let mtbf_hours = mtbf_hours.filter(|hours| *hours > 0 && u64::from(*hours) <= MAX_MTBF_HOURS);
            model(spec, &|work| work.failures = Failures { elastic, mtbf_hours })
        }
        Addition::Exchanges(exchanges) => match &mut spec.work {
            Work::Typed(statement) if statement.stages.len() == exchanges.len() => {
                for (cost, [forward, backward]) in statement.stages.iter_mut().zip(exchanges) {
                    (cost.forward_exchange_ns, cost.backward_exchange_ns) = (forward, backward);
                }
                Some(())
            }
            _ => None,
        },
        Addition::SliceGradients(bytes) => match &mut spec.work {
            Work::Typed(statement) if statement.stages.len() == bytes.len() => {
                let stages = statement.stages.iter_mut().zip(bytes);
                stages.for_each(|(cost, bytes)| cost.slice_gradient_bytes = bytes);
                Some(())
            }
            _ => None,
        },
        Addition::Offloads(offloads) => match &mut spec.work {
            Work::Typed(statement) if statement.stages.len() == offloads.len() => {
                for (cost, [bytes, ns]) in statement.stages.iter_mut().zip(offloads) {
                    (cost.offload_bytes, cost.offload_ns) = (bytes, ns);
                }
                Some(())
            }
            _ => None,
        },
        Addition::Slices(slices) => match &mut spec.work {
            Work::Typed(statement) => {
                statement.slices = slices as usize;
                Some(())
            }
            Work::Model(work) => {
                work.layout.slices = slices;
                Some(())
            }
        },
        Addition::StageModules(modules) => match &mut spec.work {
            Work::Model(work) => {
                work.layout.partition = with_modules(&work.layout.partition, &modules)?;
                Some(())
            }
            Work::Typed(_) => None,
        },
        part => match &mut spec.work {
            Work::Model(work) => apply_newer_part(&mut work.model.variant, part),
            Work::Typed(_) => None,
        },
    }
}

/// None where the link has no list of layers as long, or more modules than a model may have.
fn with_modules(partition: &Partition, modules: &[u32]) -> Option<Partition> {
    let Partition::ByHand(layers) = partition else { return None };
    if layers.len() != modules.len() || modules.iter().any(|count| *count > MAX_MULTI_TOKEN) {
        return None;
    }
    Some(Partition::WithModules(layers.iter().zip(modules).map(|(layers, modules)| [*layers, *modules]).collect()))
}

const fn matmul_dtype_from_wire(wire: WireMatmulDtype) -> Dtype {
    match wire {
        WireMatmulDtype::MxFp8 => Dtype::MxFp8,
        WireMatmulDtype::MxFp4 => Dtype::MxFp4,
        WireMatmulDtype::NvFp4 => Dtype::NvFp4,
    }
}

const fn optimizer_from_wire(wire: WireOptimizer) -> Optimizer {
    match wire {
        WireOptimizer::Sgd => Optimizer::Sgd,
        WireOptimizer::SgdMomentum => Optimizer::SgdMomentum,
        WireOptimizer::Muon => Optimizer::Muon,
        WireOptimizer::Adafactor => Optimizer::Adafactor,
    }
}

fn messages_to_wire(messages: Messages) -> WireMessages {
    WireMessages {
        lowering: match messages.lowering {
            Lowering::InPieces => WireLowering::InPieces,
            Lowering::ReceiveFirst => WireLowering::ReceiveFirst,
            Lowering::Grouped => WireLowering::Grouped,
            Lowering::Overlapped { prefetch } => WireLowering::Overlapped(prefetch as u32),
        },
        transport: match messages.transport {
            Transport::Rendezvous => WireTransport::Rendezvous,
            Transport::Buffered { slots } => WireTransport::Buffered(slots as u32),
            Transport::Grouped => WireTransport::Grouped,
            Transport::PairOrdered => WireTransport::PairOrdered,
            Transport::Streams => WireTransport::Streams,
        },
    }
}

fn messages_from_wire(wire: WireMessages) -> Messages {
    Messages {
        lowering: match wire.lowering {
            WireLowering::InPieces => Lowering::InPieces,
            WireLowering::ReceiveFirst => Lowering::ReceiveFirst,
            WireLowering::Grouped => Lowering::Grouped,
            WireLowering::Overlapped(prefetch) => Lowering::Overlapped { prefetch: prefetch as usize },
        },
        transport: match wire.transport {
            WireTransport::Rendezvous => Transport::Rendezvous,
            WireTransport::Buffered(slots) => Transport::Buffered { slots: slots as usize },
            WireTransport::Grouped => Transport::Grouped,
            WireTransport::PairOrdered => Transport::PairOrdered,
            WireTransport::Streams => Transport::Streams,
        },
    }
}

/// None for more layers than a model may have.
fn recompute_layers_from_wire(wire: WireRecomputeLayers) -> Option<RecomputeLayers> {
    Some(match wire {
        WireRecomputeLayers::First(count) => RecomputeLayers::First(count),
        WireRecomputeLayers::Groups(size) => RecomputeLayers::Groups(size),
        WireRecomputeLayers::Fit => RecomputeLayers::Fit,
        WireRecomputeLayers::Each(runs) => {
            let mut choices = Vec::new();
            for (count, choice) in runs {
                if count > MAX_LAYERS || choices.len() > MAX_LAYERS as usize {
                    return None;
                }
                choices.extend(core::iter::repeat_n(recompute_from_wire(choice), count as usize));
            }
            RecomputeLayers::Each(choices)
        }
    })
}
