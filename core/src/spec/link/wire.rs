//! The structs that links hold. Do not change them: links outlive the planner that made them.
//!
//! A `v1` link is a [`WireSpec`]. A `v2` link is the same, followed by a list of [`WireMore`]: what a spec can say that
//! `v1` has no word for. It is written only where there is such a thing, so that the links of all other specs stay as
//! short as they were and open in older pages too. A new field of a spec is a new variant of [`WireMore`], at its end.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::graph::form::{AttentionForm, Form, Offload, Recompute};
use crate::graph::layout::{Dispatch, Layout, Partition, RecomputeLayers, ReduceGradients};
use crate::hardware::cluster::{Device, Link, usual_fp8_flops, usual_host_bytes_per_s};
use crate::model::{
    Activation, Arrangement, Caps, Dtype, Experts, Factors, Family, Latent, MAX_LAYERS, ModelConfig, Routing, Scores,
    Variant, Window,
};
use crate::problem::placement::Placement;
use crate::problem::{Backward, Objective, PlacementChoice, StageCost, Statement, Transfers};
use crate::program::Transport;
use crate::program::lower::Lowering;
use crate::spec::{Messages, ModelWork, Spec, Work};

#[derive(Serialize, Deserialize)]
struct WireSpec {
    name: String,
    schedule: String,
    work: WireWork,
}

#[derive(Serialize, Deserialize)]
struct WireMessages {
    lowering: WireLowering,
    transport: WireTransport,
}

#[derive(Serialize, Deserialize)]
enum WireLowering {
    InPieces,
    ReceiveFirst,
    Grouped,
    Overlapped(u32),
}

#[derive(Serialize, Deserialize)]
enum WireTransport {
    Rendezvous,
    Buffered(u32),
    Grouped,
    PairOrdered,
    Streams,
}

#[derive(Serialize, Deserialize)]
enum WireWork {
    Model(WireModel),
    Typed(WireStatement),
}

#[derive(Serialize, Deserialize)]
struct WireModel {
    model_name: String,
    family: WireFamily,
    layers: u32,
    hidden: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    ffn: u32,
    vocab: u32,
    positions: u32,
    rope_base: u32,
    norm_eps_e12: u64,
    tied: bool,
    variant: WireVariant,
    device_name: String,
    matmul_flops: u64,
    memory_bytes_per_s: u64,
    memory_bytes: u64,
    launch_ns: u64,
    devices_per_node: u32,
    link: (u64, u64),
    node_link: (u64, u64),
    pipeline: u32,
    chunks: u32,
    microbatches: u32,
    microbatch_size: u32,
    sequence: u32,
    dtype: WireDtype,
    limit_bytes: Option<u64>,
    objective: WireObjective,
    layout: WireLayout,
}

/// What a spec says beyond a [`WireSpec`]. Variants are only ever added at the end, and none is changed.
#[derive(Serialize, Deserialize)]
enum WireMore {
    /// Sliding window: tokens, every how many layers a full one.
    Window([u32; 2]),
    /// Modules of multi-token prediction.
    MultiToken(u32),
    /// How transfers go.
    Messages(WireMessages),
    /// The sum of dX runs beside the dW matmul.
    AsyncReduce,
    /// What the fused BW takes where it is shorter than B and W: by stage, or one for all.
    FusedTimes(Vec<Option<u64>>),
    /// Layers are dealt within the memory limit, where the partition says balanced.
    WithinLimit,
    /// The shared experts have a gate.
    SharedGate,
    /// Which layers compute something again.
    RecomputeLayers(WireRecomputeLayers),
    /// When gradients are reduced over copies.
    ReduceGradients(WireReduceGradients),
    /// Columns of a head that rotary positions turn.
    Rotary(u32),
    /// How attention and feed-forward part stand to each other.
    Arrangement(WireArrangement),
    /// Matrices have no biases.
    NoBias,
    /// Norms multiply with one more than their weight.
    NormOffset,
    /// Of the embedding, of what is added to the stream, of scores, of logits, in units of 10⁻¹².
    Factors([Option<u64>; 4]),
    /// Of scores, of logits, in units of 10⁻¹².
    Caps([Option<u64>; 2]),
    /// How experts are chosen and weighted; the factor in units of 10⁻¹², groups and those that are chosen from.
    Routing { sigmoid: bool, normed: bool, factor: Option<u64>, groups: [u32; 2] },
    /// How much the times of ops differ, in thousandths.
    Jitter(u16),
    /// What the best matmuls reach of the device's rate, in thousandths.
    MatmulPermille(u16),
    /// Copies of tokens go once to each node.
    DispatchOncePerNode,
    /// Matrices of layers are multiplied in fp8.
    Fp8,
    /// The device's rate with fp8 operands, where it matters or is not what the catalog says of its name.
    Fp8Flops(u64),
    /// Gradients are summed in bf16.
    Bf16Gradients,
    /// The optimizer's moments are bf16.
    Bf16Moments,
    /// The other op of a pair computes while one exchanges tokens with experts.
    OverlapExchanges,
    /// Exchanges within F and within B: by stage, or one for all.
    Exchanges(Vec<[u64; 2]>),
    /// The rate of copies to the host's memory and back, where it is not what the catalog says of the device's name.
    HostRate(u64),
    /// So many layers at the start of each stage keep what they keep in the host's memory; none: all.
    Offload(Option<u32>),
    /// The limit says how many.
    OffloadFits,
    /// What the optimizer keeps lies in the host's memory.
    OffloadOptimizer,
    /// Tokens of the whole training.
    Tokens(u64),
    /// Copies among which weights and what belongs to them are shared out.
    Shard(u32),
}

#[derive(Serialize, Deserialize)]
enum WireArrangement {
    InTurn,
    Beside,
    BesideOneNorm,
}

#[derive(Serialize, Deserialize)]
enum WireReduceGradients {
    AfterAccumulation,
    EachMicrobatch,
}

#[derive(Serialize, Deserialize)]
enum WireRecomputeLayers {
    First(u32),
    Groups(u32),
    /// Runs of layers with one choice.
    Each(Vec<(u32, WireRecompute)>),
    Fit,
}

#[derive(Serialize, Deserialize)]
struct WireVariant {
    qkv_bias: bool,
    qk_norm: bool,
    post_norms: bool,
    gelu: bool,
    /// Count, active, ffn, shared ffn, dense layers.
    experts: Option<[u32; 5]>,
    /// Query rank, key and value rank, rope width, value width.
    latent: Option<[u32; 4]>,
}

#[derive(Serialize, Deserialize)]
struct WireLayout {
    attention: WireAttention,
    dropout: bool,
    recompute: WireRecompute,
    tensor: u32,
    sequence_parallel: bool,
    context: u32,
    expert: u32,
    whole_experts: bool,
    imbalance_permille: u32,
    f32_logits: bool,
    data: u32,
    zero: u32,
    partition: WirePartition,
    overhead_bytes: u64,
}

#[derive(Serialize, Deserialize)]
enum WireAttention {
    Flash,
    Materialised,
}

#[derive(Serialize, Deserialize)]
enum WireRecompute {
    None,
    Selective,
    Cheap,
    Full,
    Latents,
    FeedForward,
}

#[derive(Serialize, Deserialize)]
enum WirePartition {
    Balanced,
    Layers,
    LayersAndEnds,
    ByHand(Vec<u32>),
}

#[derive(Serialize, Deserialize)]
enum WireFamily {
    Llama,
    Gpt,
}

#[derive(Serialize, Deserialize)]
enum WireDtype {
    Bf16,
    F32,
    F64,
}

#[derive(Serialize, Deserialize)]
enum WireObjective {
    Makespan,
    LongestSpan,
}

#[derive(Serialize, Deserialize)]
struct WireStatement {
    ranks: u32,
    chunks: u32,
    microbatches: u32,
    placement: WirePlacement,
    stages: Vec<WireStage>,
    transfers: WireTransfers,
    static_bytes: Vec<u64>,
    limit_bytes: Vec<Option<u64>>,
    objective: WireObjective,
    fused: bool,
    overlap_permille: u16,
}

#[derive(Serialize, Deserialize)]
enum WirePlacement {
    Any,
    Linear,
    Looped,
    V,
    Wave,
    TwoWay,
    List(Vec<u16>),
}

#[derive(Serialize, Deserialize)]
struct WireStage {
    ns: (u64, u64, u64),
    bytes: (i64, i64, i64),
    workspace: (u64, u64, u64),
    fused_workspace: Option<u64>,
}

#[derive(Serialize, Deserialize)]
enum WireTransfers {
    Uniform(u64),
    Links(Vec<Vec<u64>>),
}

/// What a link holds, and whether it takes a `v2` link to hold it.
pub fn to_bytes(spec: &Spec) -> (Vec<u8>, bool) {
    let wire = WireSpec {
        name: spec.name.clone(),
        schedule: spec.schedule.clone(),
        work: match &spec.work {
            Work::Model(work) => WireWork::Model(model_to_wire(work)),
            Work::Typed(statement) => WireWork::Typed(statement_to_wire(statement)),
        },
    };
    // Writing plain numbers and texts into memory cannot fail; an empty link would be refused when read.
    let mut bytes = postcard::to_allocvec(&wire).unwrap_or_default();
    let more = more_of(spec);
    if more.is_empty() {
        return (bytes, false);
    }
    bytes.extend(postcard::to_allocvec(&more).unwrap_or_default());
    (bytes, true)
}

/// The spec, not yet checked in any way; none for bytes that are not exactly one, of a `v2` link with `has_more`.
pub fn from_bytes(bytes: &[u8], has_more: bool) -> Option<Spec> {
    let (wire, mut rest): (WireSpec, _) = postcard::take_from_bytes(bytes).ok()?;
    let mut more: Vec<WireMore> = Vec::new();
    if has_more {
        (more, rest) = postcard::take_from_bytes(rest).ok()?;
    }
    if !rest.is_empty() {
        return None;
    }
    let mut spec = spec_from_wire(wire);
    more.into_iter().try_for_each(|more| add(&mut spec, more))?;
    Some(spec)
}

fn more_of(spec: &Spec) -> Vec<WireMore> {
    let mut more = Vec::new();
    if let Work::Model(work) = &spec.work {
        let variant = &work.model.variant;
        if let Some(window) = variant.window {
            more.push(WireMore::Window([window.tokens, window.full_every]));
        }
        if variant.multi_token > 0 {
            more.push(WireMore::MultiToken(variant.multi_token));
        }
        more.extend(variant.rotary.map(WireMore::Rotary));
        match variant.arrangement {
            Arrangement::InTurn => {}
            Arrangement::Beside => more.push(WireMore::Arrangement(WireArrangement::Beside)),
            Arrangement::BesideOneNorm => more.push(WireMore::Arrangement(WireArrangement::BesideOneNorm)),
        }
        if variant.no_bias {
            more.push(WireMore::NoBias);
        }
        if variant.norm_offset {
            more.push(WireMore::NormOffset);
        }
        let Factors { embedding, residual, attention, logits } = variant.factors;
        if variant.factors != Factors::default() {
            more.push(WireMore::Factors([embedding, residual, attention, logits]));
        }
        if variant.caps != Caps::default() {
            more.push(WireMore::Caps([variant.caps.attention, variant.caps.logits]));
        }
        if work.layout.partition == Partition::WithinLimit {
            more.push(WireMore::WithinLimit);
        }
        if variant.experts.is_some_and(|experts| experts.shared_gate) {
            more.push(WireMore::SharedGate);
        }
        let routing = variant.experts.map(|experts| experts.routing).filter(|routing| *routing != Routing::USUAL);
        more.extend(routing.map(|Routing { scores, normed, factor, groups, active_groups }| {
            let sigmoid = scores == Scores::Sigmoid;
            WireMore::Routing { sigmoid, normed, factor, groups: [groups, active_groups] }
        }));
    }
    match &spec.work {
        Work::Model(work) if work.layout.form.async_reduce => more.push(WireMore::AsyncReduce),
        Work::Typed(statement) if statement.stages.iter().any(|cost| cost.backward_ns.is_some()) => {
            let stages = one_for_all(&statement.stages);
            more.push(WireMore::FusedTimes(stages.iter().map(|cost| cost.backward_ns).collect()));
        }
        _ => {}
    }
    if let Work::Typed(statement) = &spec.work {
        let stages = one_for_all(&statement.stages);
        let exchanges: Vec<[u64; 2]> =
            stages.iter().map(|cost| [cost.forward_exchange_ns, cost.backward_exchange_ns]).collect();
        if exchanges.iter().flatten().any(|exchange| *exchange > 0) {
            more.push(WireMore::Exchanges(exchanges));
        }
    }
    if let Work::Model(work) = &spec.work {
        let layers = match &work.layout.recompute_layers {
            RecomputeLayers::All => None,
            RecomputeLayers::First(count) => Some(WireRecomputeLayers::First(*count)),
            RecomputeLayers::Groups(size) => Some(WireRecomputeLayers::Groups(*size)),
            RecomputeLayers::Each(choices) => {
                let run = |run: &[Recompute]| (run.len() as u32, recompute_to_wire(run[0]));
                Some(WireRecomputeLayers::Each(choices.chunk_by(|a, b| a == b).map(run).collect()))
            }
            RecomputeLayers::Fit => Some(WireRecomputeLayers::Fit),
        };
        more.extend(layers.map(WireMore::RecomputeLayers));
        let reduce = work.layout.reduce_gradients.map(|reduce| match reduce {
            ReduceGradients::AfterAccumulation => WireReduceGradients::AfterAccumulation,
            ReduceGradients::EachMicrobatch => WireReduceGradients::EachMicrobatch,
        });
        more.extend(reduce.map(WireMore::ReduceGradients));
        if work.device.matmul_permille != MATMUL_PERMILLE {
            more.push(WireMore::MatmulPermille(u16::try_from(work.device.matmul_permille).unwrap_or(u16::MAX)));
        }
        if work.layout.dispatch == Dispatch::OncePerNode {
            more.push(WireMore::DispatchOncePerNode);
        }
        if work.layout.form.fp8 || work.device.fp8_flops != usual_fp8_flops(&work.device.name) {
            more.push(WireMore::Fp8Flops(work.device.fp8_flops));
        }
        if work.device.host_bytes_per_s != usual_host_bytes_per_s(&work.device.name) {
            more.push(WireMore::HostRate(work.device.host_bytes_per_s));
        }
        match work.layout.form.offload {
            Offload::None => {}
            Offload::First(layers) => more.push(WireMore::Offload(Some(layers))),
            Offload::All => more.push(WireMore::Offload(None)),
        }
        if work.layout.offload_fits {
            more.push(WireMore::OffloadFits);
        }
        if work.layout.offload_optimizer {
            more.push(WireMore::OffloadOptimizer);
        }
        more.extend(work.tokens.map(WireMore::Tokens));
        more.extend(work.layout.shard.map(WireMore::Shard));
        let formats = [
            (work.layout.form.fp8, WireMore::Fp8),
            (work.layout.form.bf16_gradients, WireMore::Bf16Gradients),
            (work.layout.bf16_moments, WireMore::Bf16Moments),
        ];
        more.extend(formats.into_iter().filter(|(is_so, _)| *is_so).map(|(_, more)| more));
        if work.layout.overlap_exchanges {
            more.push(WireMore::OverlapExchanges);
        }
    }
    if spec.messages != MESSAGES {
        more.push(WireMore::Messages(messages_to_wire(spec.messages)));
    }
    if spec.jitter_permille > 0 {
        more.push(WireMore::Jitter(spec.jitter_permille));
    }
    more
}

/// Nothing where it does not suit the spec.
fn add(spec: &mut Spec, more: WireMore) -> Option<()> {
    let model = |spec: &mut Spec, change: &dyn Fn(&mut ModelWork)| match &mut spec.work {
        Work::Model(work) => {
            change(work);
            Some(())
        }
        Work::Typed(_) => None,
    };
    match more {
        WireMore::Window([tokens, full_every]) => {
            model(spec, &|work| work.model.variant.window = Some(Window { tokens, full_every }))
        }
        WireMore::MultiToken(modules) => model(spec, &|work| work.model.variant.multi_token = modules),
        WireMore::WithinLimit => model(spec, &|work| work.layout.partition = Partition::WithinLimit),
        WireMore::SharedGate => model(spec, &|work| {
            if let Some(experts) = &mut work.model.variant.experts {
                experts.shared_gate = true;
            }
        }),
        WireMore::Routing { sigmoid, normed, factor, groups: [groups, active_groups] } => model(spec, &|work| {
            let scores = if sigmoid { Scores::Sigmoid } else { Scores::Softmax };
            if let Some(experts) = &mut work.model.variant.experts {
                experts.routing = Routing { scores, normed, factor, groups, active_groups };
            }
        }),
        WireMore::AsyncReduce => model(spec, &|work| work.layout.form.async_reduce = true),
        WireMore::ReduceGradients(reduce) => {
            let reduce = match reduce {
                WireReduceGradients::AfterAccumulation => ReduceGradients::AfterAccumulation,
                WireReduceGradients::EachMicrobatch => ReduceGradients::EachMicrobatch,
            };
            model(spec, &|work| work.layout.reduce_gradients = Some(reduce))
        }
        WireMore::RecomputeLayers(layers) => {
            let layers = recompute_layers_from_wire(layers)?;
            model(spec, &|work| work.layout.recompute_layers = layers.clone())
        }
        WireMore::FusedTimes(times) => match &mut spec.work {
            Work::Typed(statement) if statement.stages.len() == times.len() => {
                let stages = statement.stages.iter_mut().zip(times);
                stages.for_each(|(cost, time)| cost.backward_ns = time);
                Some(())
            }
            _ => None,
        },
        WireMore::Rotary(columns) => model(spec, &|work| work.model.variant.rotary = Some(columns)),
        WireMore::Arrangement(arrangement) => {
            let arrangement = match arrangement {
                WireArrangement::InTurn => Arrangement::InTurn,
                WireArrangement::Beside => Arrangement::Beside,
                WireArrangement::BesideOneNorm => Arrangement::BesideOneNorm,
            };
            model(spec, &|work| work.model.variant.arrangement = arrangement)
        }
        WireMore::NoBias => model(spec, &|work| work.model.variant.no_bias = true),
        WireMore::NormOffset => model(spec, &|work| work.model.variant.norm_offset = true),
        WireMore::Factors([embedding, residual, attention, logits]) => model(spec, &|work| {
            work.model.variant.factors = Factors { embedding, residual, attention, logits };
        }),
        WireMore::Caps([attention, logits]) => {
            model(spec, &|work| work.model.variant.caps = Caps { attention, logits })
        }
        WireMore::Messages(messages) => {
            spec.messages = messages_from_wire(messages);
            Some(())
        }
        WireMore::Jitter(permille) => {
            spec.jitter_permille = permille;
            Some(())
        }
        WireMore::MatmulPermille(permille) => model(spec, &|work| work.device.matmul_permille = permille.into()),
        WireMore::DispatchOncePerNode => model(spec, &|work| work.layout.dispatch = Dispatch::OncePerNode),
        WireMore::Fp8 => model(spec, &|work| work.layout.form.fp8 = true),
        WireMore::Fp8Flops(flops) => model(spec, &|work| work.device.fp8_flops = flops),
        WireMore::HostRate(rate) => model(spec, &|work| work.device.host_bytes_per_s = rate),
        WireMore::Offload(layers) => {
            model(spec, &|work| work.layout.form.offload = layers.map_or(Offload::All, Offload::First))
        }
        WireMore::OffloadFits => model(spec, &|work| work.layout.offload_fits = true),
        WireMore::OffloadOptimizer => model(spec, &|work| work.layout.offload_optimizer = true),
        WireMore::Tokens(tokens) => model(spec, &|work| work.tokens = Some(tokens)),
        WireMore::Shard(shard) => model(spec, &|work| work.layout.shard = Some(shard)),
        WireMore::Bf16Gradients => model(spec, &|work| work.layout.form.bf16_gradients = true),
        WireMore::Bf16Moments => model(spec, &|work| work.layout.bf16_moments = true),
        WireMore::OverlapExchanges => model(spec, &|work| work.layout.overlap_exchanges = true),
        WireMore::Exchanges(exchanges) => match &mut spec.work {
            Work::Typed(statement) if statement.stages.len() == exchanges.len() => {
                for (cost, [forward, backward]) in statement.stages.iter_mut().zip(exchanges) {
                    (cost.forward_exchange_ns, cost.backward_exchange_ns) = (forward, backward);
                }
                Some(())
            }
            _ => None,
        },
    }
}

/// What the best matmuls reach of a device's rate where a link says nothing of it: those of every device when `v1` was new.
const MATMUL_PERMILLE: u64 = 869;

/// How transfers go where a link says nothing of it: they were grouped when `v1` was new.
const MESSAGES: Messages = Messages { lowering: Lowering::Grouped, transport: Transport::Grouped };

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

fn spec_from_wire(wire: WireSpec) -> Spec {
    Spec {
        name: wire.name,
        schedule: wire.schedule,
        work: match wire.work {
            WireWork::Model(model) => Work::Model(model_from_wire(model)),
            WireWork::Typed(statement) => Work::Typed(statement_from_wire(statement)),
        },
        messages: MESSAGES,
        jitter_permille: 0,
    }
}

fn model_to_wire(work: &ModelWork) -> WireModel {
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
            // Tokens and masks are no training formats: no spec that was read has them.
            Dtype::F32 | Dtype::I32 | Dtype::U8 | Dtype::Fp8 => WireDtype::F32,
        },
        limit_bytes: work.limit_bytes,
        objective: objective_to_wire(work.objective),
        layout: layout_to_wire(&work.layout),
    }
}

fn model_from_wire(wire: WireModel) -> ModelWork {
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
            host_bytes_per_s: usual_host_bytes_per_s(&wire.device_name),
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
        shared_gate: false,
        routing: Routing::USUAL,
    };
    let latent = |[query_rank, key_value_rank, rope_width, value_width]: [u32; 4]| Latent {
        query_rank,
        key_value_rank,
        rope_width,
        value_width,
    };
    Variant {
        qkv_bias: wire.qkv_bias,
        qk_norm: wire.qk_norm,
        post_norms: wire.post_norms,
        activation: if wire.gelu { Activation::Gelu } else { Activation::Silu },
        experts: wire.experts.map(experts),
        latent: wire.latent.map(latent),
        window: None,
        multi_token: 0,
        rotary: None,
        arrangement: Arrangement::InTurn,
        no_bias: false,
        norm_offset: false,
        factors: Factors::default(),
        caps: Caps::default(),
    }
}

fn recompute_to_wire(choice: Recompute) -> WireRecompute {
    match choice {
        Recompute::None => WireRecompute::None,
        Recompute::Selective => WireRecompute::Selective,
        Recompute::Cheap => WireRecompute::Cheap,
        Recompute::Full => WireRecompute::Full,
        Recompute::Latents => WireRecompute::Latents,
        Recompute::FeedForward => WireRecompute::FeedForward,
    }
}

fn recompute_from_wire(wire: WireRecompute) -> Recompute {
    match wire {
        WireRecompute::None => Recompute::None,
        WireRecompute::Selective => Recompute::Selective,
        WireRecompute::Cheap => Recompute::Cheap,
        WireRecompute::Full => Recompute::Full,
        WireRecompute::Latents => Recompute::Latents,
        WireRecompute::FeedForward => Recompute::FeedForward,
    }
}

/// None for more layers than any model has.
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
        },
        overhead_bytes: layout.overhead_bytes,
    }
}

fn layout_from_wire(wire: WireLayout) -> Layout {
    Layout {
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
            imbalance_permille: wire.imbalance_permille,
            f32_logits: wire.f32_logits,
            fp8: false,
            bf16_gradients: false,
        },
        data: wire.data,
        zero: wire.zero,
        shard: None,
        reduce_gradients: None,
        dispatch: Dispatch::EachCopy,
        bf16_moments: false,
        offload_optimizer: false,
        overlap_exchanges: false,
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

fn statement_to_wire(statement: &Statement) -> WireStatement {
    let stage = |cost: &StageCost| WireStage {
        ns: (cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns),
        bytes: (cost.forward_bytes, cost.backward_input_bytes, cost.backward_weight_bytes),
        workspace: (
            cost.forward_workspace_bytes,
            cost.backward_input_workspace_bytes,
            cost.backward_weight_workspace_bytes,
        ),
        fused_workspace: cost.backward_workspace_bytes,
    };
    WireStatement {
        ranks: statement.ranks as u32,
        chunks: statement.chunks as u32,
        microbatches: statement.microbatches as u32,
        placement: match &statement.placement {
            PlacementChoice::Any => WirePlacement::Any,
            PlacementChoice::Fixed(Placement::Linear) => WirePlacement::Linear,
            PlacementChoice::Fixed(Placement::Looped) => WirePlacement::Looped,
            PlacementChoice::Fixed(Placement::V) => WirePlacement::V,
            PlacementChoice::Fixed(Placement::Wave) => WirePlacement::Wave,
            PlacementChoice::Fixed(Placement::TwoWay) => WirePlacement::TwoWay,
            PlacementChoice::Fixed(Placement::List(list)) => WirePlacement::List(list.clone()),
        },
        stages: one_for_all(&statement.stages).iter().map(stage).collect(),
        transfers: match &statement.transfers {
            Transfers::Uniform(hop) => WireTransfers::Uniform(*hop),
            Transfers::Links(links) => WireTransfers::Links(links.clone()),
        },
        static_bytes: one_for_all(&statement.static_bytes).to_vec(),
        limit_bytes: one_for_all(&statement.limit_bytes).to_vec(),
        objective: objective_to_wire(statement.objective),
        fused: statement.backward == Backward::Fused,
        overlap_permille: statement.overlap_permille,
    }
}

fn statement_from_wire(wire: WireStatement) -> Statement {
    let stage = |wire: WireStage| StageCost {
        forward_ns: wire.ns.0,
        backward_input_ns: wire.ns.1,
        backward_weight_ns: wire.ns.2,
        backward_ns: None,
        forward_exchange_ns: 0,
        backward_exchange_ns: 0,
        forward_bytes: wire.bytes.0,
        backward_input_bytes: wire.bytes.1,
        backward_weight_bytes: wire.bytes.2,
        forward_workspace_bytes: wire.workspace.0,
        backward_input_workspace_bytes: wire.workspace.1,
        backward_weight_workspace_bytes: wire.workspace.2,
        backward_workspace_bytes: wire.fused_workspace,
    };
    Statement {
        ranks: wire.ranks as usize,
        chunks: wire.chunks as usize,
        microbatches: wire.microbatches as usize,
        placement: match wire.placement {
            WirePlacement::Any => PlacementChoice::Any,
            WirePlacement::Linear => PlacementChoice::Fixed(Placement::Linear),
            WirePlacement::Looped => PlacementChoice::Fixed(Placement::Looped),
            WirePlacement::V => PlacementChoice::Fixed(Placement::V),
            WirePlacement::Wave => PlacementChoice::Fixed(Placement::Wave),
            WirePlacement::TwoWay => PlacementChoice::Fixed(Placement::TwoWay),
            WirePlacement::List(list) => PlacementChoice::Fixed(Placement::List(list)),
        },
        stages: wire.stages.into_iter().map(stage).collect(),
        transfers: match wire.transfers {
            WireTransfers::Uniform(hop) => Transfers::Uniform(hop),
            WireTransfers::Links(links) => Transfers::Links(links),
        },
        static_bytes: wire.static_bytes,
        limit_bytes: wire.limit_bytes,
        objective: objective_from_wire(wire.objective),
        backward: if wire.fused { Backward::Fused } else { Backward::Split },
        overlap_permille: wire.overlap_permille,
    }
}

/// A list whose entries are all alike says as much with one.
fn one_for_all<T: PartialEq>(values: &[T]) -> &[T] {
    match values {
        [first, rest @ ..] if rest.iter().all(|value| value == first) => &values[..1],
        _ => values,
    }
}

fn objective_to_wire(objective: Objective) -> WireObjective {
    match objective {
        Objective::Makespan => WireObjective::Makespan,
        Objective::LongestSpan => WireObjective::LongestSpan,
    }
}

fn objective_from_wire(wire: WireObjective) -> Objective {
    match wire {
        WireObjective::Makespan => Objective::Makespan,
        WireObjective::LongestSpan => Objective::LongestSpan,
    }
}
