//! Names of kernels, and what a graph has to know of each: its devices, its streams, its buffers.

use super::{Axis, Kernel, Recurring, Spread};
use crate::model::{Activation, RecurrenceKind};

impl Kernel {
    /// A short name for people: `rms_norm_input_grad`.
    ///
    /// Long on purpose: a table with one arm per kernel.
    pub const fn name(&self) -> &'static str {
        match self {
            Kernel::OwnTokens { .. } => "own_tokens",
            Kernel::Embedding => "embedding",
            Kernel::EmbeddingGrad => "embedding_grad",
            Kernel::Positions { .. } => "positions",
            Kernel::PositionsGrad { .. } => "positions_grad",
            Kernel::RmsNorm { .. } => "rms_norm",
            Kernel::RmsNormInputGrad { .. } => "rms_norm_input_grad",
            Kernel::RmsNormGainGrad => "rms_norm_gain_grad",
            Kernel::LayerNorm { .. } => "layer_norm",
            Kernel::LayerNormInputGrad => "layer_norm_input_grad",
            Kernel::LayerNormGainGrad => "layer_norm_gain_grad",
            Kernel::HeadLayerNorm { .. } => "head_layer_norm",
            Kernel::HeadLayerNormInputGrad { .. } => "head_layer_norm_input_grad",
            Kernel::HeadLayerNormGainGrad { .. } => "head_layer_norm_gain_grad",
            Kernel::AddBias => "add_bias",
            Kernel::BiasGrad => "bias_grad",
            Kernel::MatMul { .. } => "matmul",
            Kernel::Rope { inverse: false, .. } => "rope",
            Kernel::Rope { inverse: true, .. } => "rope_grad",
            Kernel::Attention(_) => "attention",
            Kernel::AttentionGrad(_) => "attention_grad",
            Kernel::SpreadAttention(_) => "spread_attention",
            Kernel::SpreadAttentionGrad(_) => "spread_attention_grad",
            Kernel::HeadNorm { .. } => "head_norm",
            Kernel::HeadNormInputGrad { .. } => "head_norm_input_grad",
            Kernel::HeadNormGainGrad { .. } => "head_norm_gain_grad",
            Kernel::RopeTail { inverse: false, .. } => "rope_tail",
            Kernel::RopeTail { inverse: true, .. } => "rope_tail_grad",
            Kernel::SplitColumns => "split_columns",
            Kernel::JoinColumns => "join_columns",
            Kernel::LatentKeys { .. } => "latent_keys",
            Kernel::LatentKeysGrad { .. } => "latent_keys_grad",
            Kernel::Route { .. } => "route",
            Kernel::RouteGrad { .. } => "route_grad",
            Kernel::RouterLoss { .. } => "router_loss",
            Kernel::RouterLossGrad { .. } => "router_loss_grad",
            Kernel::Dispatch { .. } => "dispatch",
            Kernel::DispatchGrad { .. } => "dispatch_grad",
            Kernel::Combine { .. } => "combine",
            Kernel::CombineGrad { .. } => "combine_grad",
            Kernel::WeightedGlu { activation: Activation::Silu } => "weighted_swiglu",
            Kernel::WeightedGlu { activation: Activation::Gelu } => "weighted_geglu",
            Kernel::WeightedGlu { activation: Activation::ClampedSilu } => "weighted_clamped_glu",
            // Experts have a gate.
            Kernel::WeightedGlu { .. } => "weighted_glu",
            Kernel::WeightedGluGrad { activation: Activation::Silu } => "weighted_swiglu_grad",
            Kernel::WeightedGluGrad { activation: Activation::Gelu } => "weighted_geglu_grad",
            Kernel::WeightedGluGrad { activation: Activation::ClampedSilu } => "weighted_clamped_glu_grad",
            Kernel::WeightedGluGrad { .. } => "weighted_glu_grad",
            Kernel::RowGate => "row_gate",
            Kernel::RowGateGrad => "row_gate_grad",
            Kernel::ExpertScale => "expert_scale",
            Kernel::ExpertScaleGrad => "expert_scale_grad",
            Kernel::ExpertMatMul { .. } => "expert_matmul",
            Kernel::ExpertMatMulGrad => "expert_matmul_grad",
            Kernel::GeGlu => "geglu",
            Kernel::GeGluGrad => "geglu_grad",
            Kernel::Scores(_) => "scores",
            Kernel::ScoresGrad(_) => "scores_grad",
            Kernel::Softmax => "softmax",
            Kernel::SoftmaxGrad => "softmax_grad",
            Kernel::Attend(_) => "attend",
            Kernel::AttendGrad(_) => "attend_grad",
            Kernel::Dropout { .. } => "dropout",
            Kernel::DropoutGrad => "dropout_grad",
            Kernel::Replicate { .. } => "replicate",
            Kernel::AllReduce { .. } => "all_reduce",
            Kernel::AllReduceMax { .. } => "all_reduce_max",
            Kernel::AllGather { .. } => "all_gather",
            Kernel::ReduceScatter { .. } => "reduce_scatter",
            Kernel::AllReduceStart { .. } => "all_reduce_start",
            Kernel::AllReduceWait => "all_reduce_wait",
            Kernel::ReduceScatterStart { .. } => "reduce_scatter_start",
            Kernel::ReduceScatterWait => "reduce_scatter_wait",
            Kernel::SwiGlu => "swiglu",
            Kernel::SwiGluGrad => "swiglu_grad",
            Kernel::Gelu => "gelu",
            Kernel::GeluGrad => "gelu_grad",
            Kernel::GeluTanh => "gelu_tanh",
            Kernel::GeluTanhGrad => "gelu_tanh_grad",
            Kernel::ClampedGlu => "clamped_glu",
            Kernel::ClampedGluGrad => "clamped_glu_grad",
            Kernel::SquaredRelu => "squared_relu",
            Kernel::SquaredReluGrad => "squared_relu_grad",
            Kernel::WeightedSquaredRelu => "weighted_squared_relu",
            Kernel::WeightedSquaredReluGrad => "weighted_squared_relu_grad",
            Kernel::Xielu => "xielu",
            Kernel::XieluGrad => "xielu_grad",
            Kernel::XieluWeightGrad { .. } => "xielu_weight_grad",
            Kernel::SigmoidGate => "sigmoid_gate",
            Kernel::SigmoidGateGrad => "sigmoid_gate_grad",
            Kernel::RowSquares => "row_squares",
            Kernel::RowSquaresGrad => "row_squares_grad",
            Kernel::SharedRmsNorm { .. } => "shared_rms_norm",
            Kernel::SharedRmsNormGrad { .. } => "shared_rms_norm_grad",
            Kernel::HeadLength { .. } => "head_length",
            Kernel::HeadLengthGrad { .. } => "head_length_grad",
            Kernel::PositionScale { .. } => "position_scale",
            Kernel::SinkAttention(_) => "sink_attention",
            Kernel::SinkGrad => "sink_grad",
            Kernel::ExpertBias { .. } => "expert_bias",
            Kernel::ExpertBiasGrad { .. } => "expert_bias_grad",
            Kernel::ExpertBiasShareGrad { .. } => "expert_bias_share_grad",
            Kernel::DetachedMatMul => "detached_matmul",
            Kernel::IndexKeys(_) => "index_keys",
            Kernel::IndexKeysGrad(_) => "index_keys_grad",
            Kernel::SparseAttention(_) => "sparse_attention",
            Kernel::SparseAttentionGrad(_) => "sparse_attention_grad",
            Kernel::Convolution { .. } => "convolution",
            Kernel::ConvolutionGrad { .. } => "convolution_grad",
            Kernel::ConvolutionWeightGrad { .. } => "convolution_weight_grad",
            Kernel::Recurrence(Recurring { kind: RecurrenceKind::DeltaNet, .. }) => "delta_net",
            Kernel::Recurrence(Recurring { kind: RecurrenceKind::Mamba2, .. }) => "mamba_2",
            Kernel::RecurrenceGrad(Recurring { kind: RecurrenceKind::DeltaNet, .. }) => "delta_net_grad",
            Kernel::RecurrenceGrad(Recurring { kind: RecurrenceKind::Mamba2, .. }) => "mamba_2_grad",
            Kernel::FullAttention(_) => "full_attention",
            Kernel::FullAttentionGrad(_) => "full_attention_grad",
            Kernel::ImageRows(_) => "image_rows",
            Kernel::ImageRowsGrad(_) => "image_rows_grad",
            Kernel::Cast => "cast",
            Kernel::Offload => "offload",
            Kernel::OffloadWait => "offload_wait",
            Kernel::Reload => "reload",
            Kernel::ReloadWait => "reload_wait",
            Kernel::Quantize { .. } => "quantize",
            Kernel::Add => "add",
            Kernel::Scale { .. } => "scale",
            Kernel::SoftCap { .. } => "soft_cap",
            Kernel::SoftCapGrad { .. } => "soft_cap_grad",
            Kernel::Clip { .. } => "clip",
            Kernel::ClipGrad { .. } => "clip_grad",
            Kernel::HidePadding { .. } => "hide_padding",
            Kernel::RowMax => "row_max",
            Kernel::ExpSums => "exp_sums",
            Kernel::SharedCrossEntropy { .. } => "shared_cross_entropy",
            Kernel::CrossEntropy { .. } => "cross_entropy",
            Kernel::CrossEntropyGrad { .. } => "cross_entropy_grad",
        }
    }

    /// The devices with which it talks; none where it works alone.
    pub const fn axis(&self) -> Option<Axis> {
        match self {
            Kernel::AllReduce { .. }
            | Kernel::AllReduceMax { .. }
            | Kernel::AllGather { .. }
            | Kernel::ReduceScatter { .. }
            | Kernel::AllReduceStart { .. }
            | Kernel::AllReduceWait
            | Kernel::ReduceScatterStart { .. }
            | Kernel::ReduceScatterWait => Some(Axis::Tensor),
            Kernel::SpreadAttention(Spread { ways, .. }) | Kernel::SpreadAttentionGrad(Spread { ways, .. })
                if *ways > 1 =>
            {
                Some(Axis::Context)
            }
            Kernel::Dispatch { ways }
            | Kernel::DispatchGrad { ways }
            | Kernel::Combine { ways }
            | Kernel::CombineGrad { ways }
                if *ways > 1 =>
            {
                Some(Axis::Expert)
            }
            _ => None,
        }
    }

    /// Whether it begins what a later operator waits for.
    pub const fn starts(&self) -> bool {
        matches!(self, Kernel::AllReduceStart { .. } | Kernel::ReduceScatterStart { .. }) || self.copies()
    }

    /// Whether it waits for what an earlier operator began, its input 0.
    pub const fn waits(&self) -> bool {
        matches!(self, Kernel::AllReduceWait | Kernel::ReduceScatterWait | Kernel::OffloadWait | Kernel::ReloadWait)
    }

    /// Whether it begins a copy to the host's memory, or back.
    pub const fn copies(&self) -> bool {
        matches!(self, Kernel::Offload | Kernel::Reload)
    }

    /// The inputs (positions) whose buffer output 0 may take over, the best first. The graph's
    /// [`Operator::in_place`](crate::graph::Operator::in_place) says which one does.
    pub const fn may_run_in_place_of(&self) -> &'static [u32] {
        match self {
            Kernel::Positions { .. } | Kernel::AddBias | Kernel::Rope { .. } => &[0],
            Kernel::RopeTail { .. } | Kernel::HeadNormInputGrad { .. } => &[0],
            Kernel::GeGluGrad | Kernel::WeightedGluGrad { .. } => &[0],
            Kernel::RmsNormInputGrad { .. } | Kernel::LayerNormInputGrad | Kernel::SwiGluGrad | Kernel::GeluGrad => {
                &[0]
            }
            Kernel::ClampedGluGrad
            | Kernel::SquaredReluGrad
            | Kernel::WeightedSquaredReluGrad
            | Kernel::XieluGrad
            | Kernel::GeluTanhGrad
            | Kernel::HeadLayerNormInputGrad { .. }
            | Kernel::Clip { .. }
            | Kernel::ClipGrad { .. }
            | Kernel::SigmoidGateGrad => &[0],
            Kernel::HeadLengthGrad { .. } | Kernel::PositionScale { .. } | Kernel::ExpertBias { .. } => &[0],
            Kernel::Scale { .. } | Kernel::SoftCap { .. } | Kernel::SoftCapGrad { .. } => &[0],
            Kernel::Softmax | Kernel::SoftmaxGrad | Kernel::Dropout { .. } | Kernel::DropoutGrad => &[0],
            Kernel::Replicate { .. } | Kernel::AllReduce { .. } | Kernel::CrossEntropyGrad { .. } => &[0],
            Kernel::AllReduceMax { .. } | Kernel::OwnTokens { .. } | Kernel::HidePadding { .. } => &[0],
            Kernel::AllReduceStart { .. } | Kernel::AllReduceWait | Kernel::ReduceScatterWait => &[0],
            Kernel::MatMul { accumulate: true, .. } => &[2],
            // The second operand is the branch, which dies here; the first is the residual stream.
            Kernel::Add => &[1, 0],
            _ => &[],
        }
    }
}
