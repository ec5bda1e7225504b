//! What a layer is made of: the family, and what differs from its usual layer.

use super::pattern::LayerPattern;
use super::vision::Vision;

/// The family of a layer's operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// RMSNorm, rotary positions, grouped KV heads, SwiGLU, no biases.
    Llama,
    /// LayerNorm, learned positions, GELU feed-forward of two matrices.
    Gpt,
}

impl Family {
    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Gpt => "gpt",
        }
    }
}

/// The norm of the residual stream, before attention, before the MLP and before the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Norm {
    /// RMSNorm (arXiv:1910.07467).
    #[default]
    Rms,
    /// RMSNorm without weights (nanochat).
    RmsWithoutWeights,
    /// LayerNorm (arXiv:1607.06450).
    Layer,
    /// LayerNorm without biases (Command R).
    LayerWithoutBias,
    /// LayerNorm without weights and biases (OLMo, arXiv:2402.00838 §2.1).
    LayerWithoutWeights,
}

impl Norm {
    /// All of them.
    pub const ALL: [Norm; 5] =
        [Norm::Rms, Norm::RmsWithoutWeights, Norm::Layer, Norm::LayerWithoutBias, Norm::LayerWithoutWeights];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Norm::Rms => "rms",
            Norm::RmsWithoutWeights => "rms-without-weights",
            Norm::Layer => "layer",
            Norm::LayerWithoutBias => "layer-without-bias",
            Norm::LayerWithoutWeights => "layer-without-weights",
        }
    }

    /// Weights for each column: a gain, a bias, both or none.
    pub const fn weights(self) -> u64 {
        match self {
            Norm::RmsWithoutWeights | Norm::LayerWithoutWeights => 0,
            Norm::Rms | Norm::LayerWithoutBias => 1,
            Norm::Layer => 2,
        }
    }
}

/// The activation of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// `x · σ(x)`: SwiGLU.
    #[default]
    Silu,
    /// GELU in its tanh form: GeGLU.
    Gelu,
    /// `g · σ(1.702 g) · (1 + u)` with `g` at most 7 and `u` within ±7 (gpt-oss).
    ClampedSilu,
    /// The square of ReLU, in an MLP or in experts without a gate (arXiv:2109.08668).
    SquaredRelu,
    /// xIELU, with two trained numbers in each layer and without a gate (arXiv:2411.13010).
    Xielu,
    /// GELU in its exact form, in an MLP without a gate (arXiv:1606.08415).
    PlainGelu,
    /// GELU in its tanh form, in an MLP without a gate.
    PlainGeluTanh,
}

impl Activation {
    /// All of them.
    pub const ALL: [Activation; 7] = [
        Activation::Silu,
        Activation::Gelu,
        Activation::ClampedSilu,
        Activation::SquaredRelu,
        Activation::Xielu,
        Activation::PlainGelu,
        Activation::PlainGeluTanh,
    ];

    /// Whether the MLP has a gate, and so three matrices; else it has two.
    pub const fn is_gated(self) -> bool {
        matches!(self, Activation::Silu | Activation::Gelu | Activation::ClampedSilu)
    }

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
            Activation::ClampedSilu => "clamped-silu",
            Activation::SquaredRelu => "squared-relu",
            Activation::Xielu => "xielu",
            Activation::PlainGelu => "plain-gelu",
            Activation::PlainGeluTanh => "plain-gelu-tanh",
        }
    }
}

/// A mixture of experts (MoE) in the place of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Experts {
    /// Experts in a layer.
    pub count: u32,
    /// Experts for each token (top-k).
    pub active: u32,
    /// Inner width of one.
    pub ffn: u32,
    /// Inner width of all shared experts together, or 0.
    pub shared_ffn: u32,
    /// First k dense layers, which have an MLP instead.
    pub dense_layers: u32,
    /// The layers with experts, where it is not all behind the first k; `dense_layers` is then 0.
    pub layers: Option<LayerPattern>,
    /// Whether the router and every matrix of an expert have a bias (gpt-oss).
    pub biases: bool,
    /// Shared-expert gate: whether a gate weights the shared experts for each token (Qwen 2 MoE).
    pub shared_gate: bool,
    /// The routing of tokens.
    pub routing: Routing,
}

impl Experts {
    /// The same with experts in the layers of `pattern`.
    pub fn within(self, pattern: LayerPattern) -> Experts {
        match pattern.behind_first() {
            Some(dense_layers) => Experts { dense_layers, layers: None, ..self },
            None => Experts { dense_layers: 0, layers: Some(pattern), ..self },
        }
    }
}

/// How the router chooses a token's experts and weights their outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Routing {
    /// The score function of the router.
    pub scores: Scores,
    /// Whether the scores of the chosen experts are divided by their sum.
    pub normed: bool,
    /// The scaling factor of the weights, in units of 10⁻¹²; none: 1.
    pub factor: Option<u64>,
    /// Router groups: equal numbers of consecutive experts (arXiv:2405.04434 §2.1.3).
    pub groups: u32,
    /// Top-k groups: a token's experts come from the groups with the best scores. The score of a group is that of its
    /// best expert; with [`Scores::Sigmoid`] the sum of its best two.
    pub active_groups: u32,
}

impl Routing {
    /// Softmax, and the scores as weights (arXiv:2101.03961).
    pub const USUAL: Routing =
        Routing { scores: Scores::Softmax, normed: false, factor: None, groups: 1, active_groups: 1 };
}

/// The score function of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit (arXiv:2412.19437 §2.1.2).
    Sigmoid,
    /// Sigmoid of each chosen logit, by which the input of the expert is multiplied and not its output (Llama 4).
    InputSigmoid,
    /// SparseMixer: an expert is drawn from those with scores near the best, and another one from the others
    /// (arXiv:2409.12136, Phi-3.5-MoE). Planned, not run.
    SparseMixer,
}

impl Scores {
    /// All of them.
    pub const ALL: [Scores; 4] = [Scores::Softmax, Scores::Sigmoid, Scores::InputSigmoid, Scores::SparseMixer];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Scores::Softmax => "softmax",
            Scores::Sigmoid => "sigmoid",
            Scores::InputSigmoid => "input-sigmoid",
            Scores::SparseMixer => "sparse-mixer",
        }
    }
}

/// Multi-head latent attention (MLA): queries, keys and values are expanded from low-rank latents (arXiv:2405.04434
/// §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Latent {
    /// Rank of the query latent; 0 where queries come from the residual stream.
    pub query_rank: u32,
    /// Rank of the latent of keys and values.
    pub key_value_rank: u32,
    /// Rotary dim of each head; all heads share the rotary part of the key.
    pub rope_width: u32,
    /// Head dim of the values.
    pub value_width: u32,
}

/// Sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Tokens that a token sees, itself included.
    pub tokens: u32,
    /// The period of layers with full attention: layers `full_every − 1`, `2 · full_every − 1` and so on, from 0. 0:
    /// no layer.
    pub full_every: u32,
    /// The layers with the window, where no period says it; `full_every` is then 0.
    pub layers: Option<LayerPattern>,
    /// Whether windows do not slide: the sequence is cut into chunks of `tokens`, each of which sees only itself (Llama 4).
    pub chunked: bool,
    /// RoPE theta of the layers with the window, where it is another than the model's (Gemma 3).
    pub rope_base: Option<u32>,
}

impl Window {
    /// A window that slides, in all layers but every `full_every`-th.
    pub const fn sliding(tokens: u32, full_every: u32) -> Window {
        Window { tokens, full_every, layers: None, chunked: false, rope_base: None }
    }

    /// Whether `layer` of the model has it.
    pub fn has(&self, layer: u32) -> bool {
        match self.layers {
            Some(pattern) => pattern.has(layer),
            None => self.full_every == 0 || !(layer + 1).is_multiple_of(self.full_every),
        }
    }

    /// The same in the layers of `pattern`.
    pub fn within(self, pattern: LayerPattern) -> Window {
        Window { full_every: 0, layers: Some(pattern), ..self }
    }
}

/// What QK-norm norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum QkNorm {
    /// Each head by itself, before rotary positions (Qwen 3).
    #[default]
    Heads,
    /// All heads together, before rotary positions (OLMo 2).
    Whole,
    /// Each head by itself, after rotary positions (Hunyuan).
    RotatedHeads,
    /// Each head by itself, without weights, after rotary positions, and only where there are some (Llama 4).
    RotatedLengths,
    /// Each head by itself, by LayerNorm without biases and with weights of its own, before rotary positions (Command
    /// R+).
    LayerHeads,
    /// Each head by itself, by LayerNorm with gains and biases that all heads share, before rotary positions (Persimmon).
    SharedLayerHeads,
}

impl QkNorm {
    /// All of them.
    pub const ALL: [QkNorm; 6] = [
        QkNorm::Heads,
        QkNorm::Whole,
        QkNorm::RotatedHeads,
        QkNorm::RotatedLengths,
        QkNorm::LayerHeads,
        QkNorm::SharedLayerHeads,
    ];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            QkNorm::Heads => "heads",
            QkNorm::Whole => "whole",
            QkNorm::RotatedHeads => "rotated-heads",
            QkNorm::RotatedLengths => "rotated-lengths",
            QkNorm::LayerHeads => "layer-heads",
            QkNorm::SharedLayerHeads => "shared-layer-heads",
        }
    }
}

/// Attention temperature: queries at position `i` of layers without rotary positions are multiplied by
/// `1 + scale · ln(1 + ⌊(i + 1) / tokens⌋)` (Llama 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Temperature {
    /// The positions that have the same factor; the first ones have 1.
    pub tokens: u32,
    /// The scale in units of 10⁻¹².
    pub scale_e12: u64,
}

/// A lightning indexer, which chooses the tokens that each token's latent attention sees (DeepSeek-V3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Indexer {
    /// Its query heads; all share one key.
    pub heads: u32,
    /// The width of one.
    pub head_dim: u32,
    /// The most tokens that a token sees.
    pub tokens: u32,
}

/// The kind of a layer's recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecurrenceKind {
    /// Gated delta net: a matrix for each head, decayed and corrected token by token (arXiv:2412.06464).
    DeltaNet,
    /// Mamba 2: a state space model whose decay is one number for each head (arXiv:2405.21060).
    Mamba2,
}

impl RecurrenceKind {
    /// All of them.
    pub const ALL: [RecurrenceKind; 2] = [RecurrenceKind::DeltaNet, RecurrenceKind::Mamba2];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            RecurrenceKind::DeltaNet => "delta-net",
            RecurrenceKind::Mamba2 => "mamba-2",
        }
    }
}

/// A recurrence in the place of attention: linear attention, or a state space model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recurrence {
    /// Its kind.
    pub kind: RecurrenceKind,
    /// The layers that have it; the others have attention.
    pub layers: LayerPattern,
    /// Heads of queries and keys: of Mamba 2, its groups.
    pub key_heads: u32,
    /// Width of a head of queries and keys: of Mamba 2, its state.
    pub key_dim: u32,
    /// Heads of values.
    pub heads: u32,
    /// Width of a head of values.
    pub head_dim: u32,
    /// Tokens of the convolution before it.
    pub convolution: u32,
    /// Whether the convolution has a bias.
    pub convolution_bias: bool,
}

/// What attention of layers without a window has of its own (Gemma 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Global {
    /// Head dim of queries and keys.
    pub head_dim: u32,
    /// Key and value heads; divides those of queries.
    pub kv_heads: u32,
    /// Partial rotary dim: columns of the first pairs, whose angles are those of a whole head (p-RoPE, arXiv:2410.06205).
    /// None: the whole head.
    pub rotary: Option<u32>,
    /// Whether values are what keys are before their norm, and have no matrix.
    pub keys_are_values: bool,
}

/// Multipliers, each in units of 10⁻¹²; none: as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Factors {
    /// What the embedding is multiplied with before the first layer: √hidden in Gemma.
    pub embedding: Option<u64>,
    /// Multiplier of what attention and MLP add to the residual stream (Granite).
    pub residual: Option<u64>,
    /// Products of queries and keys; usually 1/√head_dim.
    pub attention: Option<u64>,
    /// Logits, before they are capped.
    pub logits: Option<u64>,
}

/// Soft-caps `c`, in units of 10⁻¹²: `x` becomes `c · tanh(x / c)` (arXiv:2408.00118 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Caps {
    /// Of attention's scores.
    pub attention: Option<u64>,
    /// Of logits.
    pub logits: Option<u64>,
}

/// One, in the units of [`Factors`] and [`Caps`].
pub const E12: u64 = 1_000_000_000_000;

/// A number in these units, rounded.
pub fn to_e12(number: f64) -> u64 {
    libm::round(number * E12 as f64) as u64
}

/// The greatest of such numbers, as a plain number.
pub const MAX_FACTOR: f64 = 1e6;

/// How attention and MLP of a layer are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Arrangement {
    /// The MLP follows attention.
    #[default]
    InTurn,
    /// Both work on the same stream, each behind its own norm, and are added to it together (arXiv:2204.06745 §2.1).
    Beside,
    /// The same behind one norm (arXiv:2311.16867 §3.1).
    BesideOneNorm,
}

impl Arrangement {
    /// All of them.
    pub const ALL: [Arrangement; 3] = [Arrangement::InTurn, Arrangement::Beside, Arrangement::BesideOneNorm];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Arrangement::InTurn => "in-turn",
            Arrangement::Beside => "beside",
            Arrangement::BesideOneNorm => "beside-one-norm",
        }
    }
}

/// What differs from a family's usual layer. `no_bias` is for [`Family::Gpt`], the arrangement, the window, the rotary
/// dim and the vision tower for both families, all else for [`Family::Llama`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Variant {
    /// Whether q, k and v have biases (Qwen 2).
    pub qkv_bias: bool,
    /// QK-norm: whether q and k are normed (Qwen 3).
    pub qk_norm: bool,
    /// What QK-norm norms.
    pub qk_norm_of: QkNorm,
    /// Post-norm: whether the outputs of attention and MLP are normed, too (Gemma 2).
    pub post_norms: bool,
    /// Whether attention and MLP have no norm before them (OLMo 2).
    pub no_pre_norms: bool,
    /// Whether the last matrix of attention has a bias (gpt-oss).
    pub o_bias: bool,
    /// Attention sinks: whether each head has a trained score beside those of tokens (gpt-oss).
    pub sinks: bool,
    /// Attention gate: whether a gate of each head's width multiplies what it attends to (arXiv:2505.06708).
    pub attention_gate: bool,
    /// The layers without rotary positions (NoPE).
    pub no_rope: Option<LayerPattern>,
    /// The layers without attention, and without what stands in its place (Nemotron-H).
    pub no_mixer: Option<LayerPattern>,
    /// The layers without an MLP and without experts (Nemotron-H).
    pub no_mlp: Option<LayerPattern>,
    /// Attention temperature of layers without rotary positions.
    pub temperature: Option<Temperature>,
    /// What chooses the tokens that latent attention sees.
    pub indexer: Option<Indexer>,
    /// A recurrence in the place of attention.
    pub recurrence: Option<Recurrence>,
    /// The activation of the MLP.
    pub activation: Activation,
    /// Experts in the place of the MLP.
    pub experts: Option<Experts>,
    /// Multi-head latent attention.
    pub latent: Option<Latent>,
    /// Sliding window (arXiv:2310.06825 §2, arXiv:2408.00118 §2).
    pub window: Option<Window>,
    /// Multi-token prediction (MTP) modules after the last layer. Each predicts one token further: a projection of
    /// the stream and the next token's embedding, a layer, and the model's output layer (arXiv:2412.19437 §2.2).
    pub multi_token: u32,
    /// Partial rotary dim. None: the whole head, and in [`Family::Gpt`] learned positions.
    pub rotary: Option<u32>,
    /// How attention and MLP are arranged.
    pub arrangement: Arrangement,
    /// Whether linear layers have no bias; norms keep theirs.
    pub no_bias: bool,
    /// Whether norms multiply by one more than their weight (Gemma).
    pub norm_offset: bool,
    /// The norm of the residual stream.
    pub norm: Norm,
    /// Whether the stream is normed behind the embedding, too (nanochat).
    pub embedding_norm: bool,
    /// Whether the matrices of the MLP have biases.
    pub mlp_bias: bool,
    /// Whether the output layer has a bias (Phi).
    pub head_bias: bool,
    /// The greatest absolute value of queries, keys and values, in units of 10⁻¹²; beyond it they are clipped (OLMo).
    pub qkv_clip: Option<u64>,
    /// Whether the values of each head are normed without weights (Gemma 4).
    pub value_norm: bool,
    /// Whether each layer multiplies the stream by a number of its own that no gradient trains (Gemma 4).
    pub layer_scale: bool,
    /// What attention of layers without a window has of its own.
    pub global: Option<Global>,
    /// Whether layers with experts have the MLP too, beside them, each behind norms of its own; the router has a norm with a
    /// gain, and a trained number scales the weight of each expert (Gemma 4 26B-A4B).
    pub mlp_beside_experts: bool,
    /// Multipliers that usual models do not have.
    pub factors: Factors,
    /// Soft-caps.
    pub caps: Caps,
    /// A vision tower before the decoder.
    pub vision: Option<Vision>,
}

impl Variant {
    /// A family's usual layer.
    pub const USUAL: Variant = Variant {
        qkv_bias: false,
        qk_norm: false,
        qk_norm_of: QkNorm::Heads,
        post_norms: false,
        no_pre_norms: false,
        o_bias: false,
        sinks: false,
        attention_gate: false,
        no_rope: None,
        no_mixer: None,
        no_mlp: None,
        temperature: None,
        indexer: None,
        recurrence: None,
        activation: Activation::Silu,
        experts: None,
        latent: None,
        window: None,
        multi_token: 0,
        rotary: None,
        arrangement: Arrangement::InTurn,
        no_bias: false,
        norm_offset: false,
        norm: Norm::Rms,
        embedding_norm: false,
        mlp_bias: false,
        head_bias: false,
        qkv_clip: None,
        value_norm: false,
        layer_scale: false,
        global: None,
        mlp_beside_experts: false,
        factors: Factors { embedding: None, residual: None, attention: None, logits: None },
        caps: Caps { attention: None, logits: None },
        vision: None,
    };
}
