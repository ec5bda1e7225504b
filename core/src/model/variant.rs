//! What a layer is made of: the family, and what differs from its usual layer.

/// Which operators a layer is made of.
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

/// The function of a gated feed-forward part's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// `x · σ(x)`: SwiGLU.
    #[default]
    Silu,
    /// GELU in its tanh form: GeGLU.
    Gelu,
}

impl Activation {
    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
        }
    }
}

/// A feed-forward part of many experts, of which a router picks a few for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u32,
    /// Those that see a token.
    pub active: u32,
    /// Inner width of one.
    pub ffn: u32,
    /// Inner width of what every token passes besides: that of all shared experts together, or 0.
    pub shared_ffn: u32,
    /// The model's first layers that have one dense feed-forward part instead.
    pub dense_layers: u32,
    /// Whether what all tokens pass is weighted by a gate of its own for each token (Qwen 2 MoE).
    pub shared_gate: bool,
    /// How a token's experts are chosen and weighted.
    pub routing: Routing,
}

/// How experts are chosen for a token, and with what weights their outputs are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Routing {
    /// What the router's logits become.
    pub scores: Scores,
    /// Whether the scores of those chosen are divided by their sum.
    pub normed: bool,
    /// What they are then multiplied with, in units of 10⁻¹²; none: 1.
    pub factor: Option<u64>,
    /// Groups that experts lie in, as many that follow each other in each (arXiv:2405.04434 §2.1.3).
    pub groups: u32,
    /// Those that a token's experts are chosen from: the groups whose best expert, or with [`Scores::Sigmoid`] whose best
    /// two together, score most.
    pub active_groups: u32,
}

impl Routing {
    /// The largest of the softmax, as they are (arXiv:2101.03961).
    pub const USUAL: Routing =
        Routing { scores: Scores::Softmax, normed: false, factor: None, groups: 1, active_groups: 1 };
}

/// What a router's logits become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scores {
    /// Shares of one over all experts.
    Softmax,
    /// `σ(x)`, each by itself (arXiv:2412.19437 §2.1.2).
    Sigmoid,
}

impl Scores {
    /// All of them.
    pub const ALL: [Scores; 2] = [Scores::Softmax, Scores::Sigmoid];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Scores::Softmax => "softmax",
            Scores::Sigmoid => "sigmoid",
        }
    }
}

/// Multi-head latent attention: queries, keys and values are expanded from narrow latents (arXiv:2405.04434 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Latent {
    /// Width of the queries' latent; 0 where queries come from the residual stream itself.
    pub query_rank: u32,
    /// Width of the latent of keys and values.
    pub key_value_rank: u32,
    /// Columns of each head that rotary positions turn; a key's are shared by all heads.
    pub rope_width: u32,
    /// Width of a head of the values.
    pub value_width: u32,
}

/// Attention that looks back over a few tokens only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Tokens that a token sees, itself included.
    pub tokens: u32,
    /// Every how many layers one sees all tokens: the layers `full_every − 1`, `2 · full_every − 1` and so on, from 0; none
    /// where this is 0.
    pub full_every: u32,
}

/// Numbers that a model multiplies with where others have none, each in units of 10⁻¹²; none: as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Factors {
    /// What the embedding is multiplied with before the first layer: √hidden in Gemma.
    pub embedding: Option<u64>,
    /// What attention and feed-forward add to the stream (Granite).
    pub residual: Option<u64>,
    /// Products of queries and keys; usually 1/√head_dim.
    pub attention: Option<u64>,
    /// Logits, before they are capped.
    pub logits: Option<u64>,
}

/// Soft bounds `c`, in units of 10⁻¹²: `x` becomes `c · tanh(x / c)` (arXiv:2408.00118 §2).
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

/// How the two parts of a layer of [`Family::Gpt`] stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Arrangement {
    /// The feed-forward part works on what attention has added to.
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

/// What departs from a family's usual layer: the last two are for [`Family::Gpt`], the window and rotary positions for both
/// families, all else for [`Family::Llama`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Variant {
    /// Whether q, k and v have biases (Qwen 2).
    pub qkv_bias: bool,
    /// Whether each head of q and k is normed (Qwen 3).
    pub qk_norm: bool,
    /// Whether what attention and feed-forward add to the stream is normed too (Gemma 2).
    pub post_norms: bool,
    /// The gate's function.
    pub activation: Activation,
    /// Experts in place of one feed-forward part.
    pub experts: Option<Experts>,
    /// Attention from latents.
    pub latent: Option<Latent>,
    /// Attention within a window (arXiv:2310.06825 §2, arXiv:2408.00118 §2).
    pub window: Option<Window>,
    /// Modules behind the last layer that each predict one token further: a projection of the stream beside the next
    /// token's embedding, a layer, and the model's own head (arXiv:2412.19437 §2.2).
    pub multi_token: u32,
    /// Columns of each head that rotary positions turn. None: all of them, and in [`Family::Gpt`] learned positions.
    pub rotary: Option<u32>,
    /// How attention and feed-forward part stand to each other.
    pub arrangement: Arrangement,
    /// Whether matrices have no biases; norms keep theirs.
    pub no_bias: bool,
    /// Whether norms multiply with one more than their weight (Gemma).
    pub norm_offset: bool,
    /// What is multiplied where other models do not.
    pub factors: Factors,
    /// What is capped.
    pub caps: Caps,
}

impl Variant {
    /// A family's usual layer.
    pub const USUAL: Variant = Variant {
        qkv_bias: false,
        qk_norm: false,
        post_norms: false,
        activation: Activation::Silu,
        experts: None,
        latent: None,
        window: None,
        multi_token: 0,
        rotary: None,
        arrangement: Arrangement::InTurn,
        no_bias: false,
        norm_offset: false,
        factors: Factors { embedding: None, residual: None, attention: None, logits: None },
        caps: Caps { attention: None, logits: None },
    };
}
