//! Models as a person names them: sizes of a decoder, and a [`catalog`] of public ones.
//!
//! - In: a name of the catalog, or a `config.json`.
//! - Out: sizes and variants of a transformer, its parameter count.
//! - Knows: units and faults. Nothing of devices or stages.

pub mod catalog;
pub mod hf_config;
mod stage;

pub use stage::StageLayout;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::base::fields::Fault;

/// Number formats of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 64-bit float, for exact comparisons in the runner.
    F64,
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// 32-bit integer: tokens.
    I32,
    /// One byte: whether dropout keeps an element.
    U8,
    /// 8-bit float, e4m3 or e5m2 (arXiv:2209.05433): operands of matrix products, beside bf16.
    Fp8,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::Bf16 => 2,
            Dtype::U8 | Dtype::Fp8 => 1,
        }
    }

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F64 => "f64",
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::I32 => "i32",
            Dtype::U8 => "u8",
            Dtype::Fp8 => "fp8",
        }
    }
}

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

/// The sizes of a decoder-only transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelConfig {
    /// The operators of a layer.
    pub family: Family,
    /// Decoder layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of one head of the queries and keys.
    pub head_dim: u32,
    /// Inner width of the feed-forward part.
    pub ffn: u32,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// The longest sequence: the rows of a learned position table, and the most that rotary positions were
    /// trained for.
    pub positions: u32,
    /// Base of the rotary wavelengths; unused without rotary positions.
    pub rope_base: u32,
    /// The `eps` of norms in units of 10⁻¹²: 10 000 000 for 10⁻⁵.
    pub norm_eps_e12: u64,
    /// Whether the head is the embedding's table.
    pub tied: bool,
    /// What departs from the family's usual layer.
    pub variant: Variant,
}

/// Most layers of a model.
pub const MAX_LAYERS: u32 = 4096;
/// Most modules of multi-token prediction.
pub const MAX_MULTI_TOKEN: u32 = 16;
/// Most groups of a layer's experts.
pub const MAX_EXPERT_GROUPS: u32 = 64;
/// Most experts of a layer.
pub const MAX_EXPERTS: u32 = 65_536;
/// Largest width, vocabulary or sequence of a model. Products of three such sizes and a dtype fit in `u128`, and
/// a tensor of two in `u64`.
pub const MAX_SIZE: u32 = 1 << 22;

/// What to do about a `hidden` width, called `name`, that `heads` do not divide: the nearest width of a head, and the nearest
/// number of heads that divides it.
pub(crate) fn no_width(hidden: u32, name: &str, heads: u32) -> String {
    let width = ((hidden / heads.max(1)).saturating_add(1) / 2 * 2).max(2);
    let divides = |heads: &u32| hidden.is_multiple_of(*heads);
    let counts = 1..=hidden.min(heads.saturating_mul(2));
    let nearest = counts.filter(divides).min_by_key(|other| other.abs_diff(heads)).unwrap_or(1);
    format!("a width such as {width}, as {name} ({hidden}) does not divide by {heads} heads; or {nearest} heads")
}

impl ModelConfig {
    /// Parameters, a tied table counted once; those of multi-token prediction stand
    /// [apart](ModelConfig::multi_token_parameters), as models' reports count them.
    pub fn parameters(&self) -> u64 {
        let table = u64::from(self.vocab) * u64::from(self.hidden);
        let head = if self.tied { 0 } else { table };
        let norm = match self.family {
            Family::Llama => u64::from(self.hidden),
            Family::Gpt => 2 * u64::from(self.hidden),
        };
        let positions = match self.family {
            Family::Llama => 0,
            Family::Gpt if self.variant.rotary.is_some() => 0,
            Family::Gpt => u64::from(self.positions) * u64::from(self.hidden),
        };
        (0..self.layers)
            .fold(table + positions + norm + head, |sum, layer| sum.saturating_add(self.layer_parameters(layer)))
    }

    /// Parameters that a token meets: of the experts only those that see it.
    pub fn active_parameters(&self) -> u64 {
        let Some(experts) = self.variant.experts else { return self.parameters() };
        let idle = u64::from(experts.count.saturating_sub(experts.active));
        let idle = idle.saturating_mul(self.gated_parameters(experts.ffn));
        let sparse = u64::from(self.layers.saturating_sub(experts.dense_layers));
        self.parameters().saturating_sub(sparse.saturating_mul(idle))
    }

    /// Parameters of multi-token prediction. Its modules share the embedding and the head with the model.
    pub fn multi_token_parameters(&self) -> u64 {
        let hidden = u64::from(self.hidden);
        // A projection of two widths, norms of both halves, and one before the head.
        let beside = 2 * hidden * hidden + 3 * hidden;
        (0..self.variant.multi_token)
            .map(|module| self.layer_parameters(self.layers.saturating_add(module)).saturating_add(beside))
            .fold(0, u64::saturating_add)
    }

    /// Tokens back to which `layer` looks, itself included, in sequences of `sequence` tokens.
    pub fn looks_back(&self, layer: u32, sequence: u64) -> u64 {
        match self.variant.window {
            Some(Window { full_every, .. }) if full_every > 0 && (layer + 1).is_multiple_of(full_every) => sequence,
            Some(window) => sequence.min(window.tokens.into()),
            None => sequence,
        }
    }

    /// Whether `layer` has experts.
    pub fn has_experts(&self, layer: u32) -> bool {
        self.variant.experts.is_some_and(|experts| layer >= experts.dense_layers)
    }

    /// Parameters of a gated feed-forward part of this inner width.
    fn gated_parameters(&self, ffn: u32) -> u64 {
        3 * u64::from(self.hidden) * u64::from(ffn)
    }

    /// Parameters of the decoder layer `layer`.
    pub fn layer_parameters(&self, layer: u32) -> u64 {
        let (hidden, ffn) = (u64::from(self.hidden), u64::from(self.ffn));
        let (query, key_value) = (self.query_width(), u64::from(self.kv_heads) * u64::from(self.head_dim));
        let attention = hidden * (2 * query + 2 * key_value);
        match self.family {
            Family::Llama => {
                let norms = if self.variant.post_norms { 4 * hidden } else { 2 * hidden };
                let attention = match self.variant.latent {
                    Some(latent) => self.latent_parameters(&latent),
                    None => attention,
                };
                let bias = if self.variant.qkv_bias { query + 2 * key_value } else { 0 };
                let heads = if self.variant.qk_norm { 2 * u64::from(self.head_dim) } else { 0 };
                let feed_forward = match self.variant.experts {
                    Some(experts) if self.has_experts(layer) => u64::from(experts.count)
                        .saturating_mul(self.gated_parameters(experts.ffn) + hidden)
                        .saturating_add(self.gated_parameters(experts.shared_ffn))
                        .saturating_add(if experts.shared_gate { hidden } else { 0 }),
                    _ => self.gated_parameters(self.ffn),
                };
                (attention + bias + heads + norms).saturating_add(feed_forward)
            }
            Family::Gpt => {
                // Of q, k, v, o and both feed-forward matrices; gain and bias of each norm.
                let biases = if self.variant.no_bias { 0 } else { query + 2 * key_value + hidden + ffn + hidden };
                let norms = if self.variant.arrangement == Arrangement::BesideOneNorm { 1 } else { 2 };
                attention + 2 * hidden * ffn + biases + norms * 2 * hidden
            }
        }
    }

    /// Columns of all queries.
    fn query_width(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.head_dim)
    }

    /// Parameters of one layer's latent attention.
    fn latent_parameters(&self, latent: &Latent) -> u64 {
        let (hidden, heads, query) = (u64::from(self.hidden), u64::from(self.heads), self.query_width());
        let [query_rank, rank, rope, value] =
            [latent.query_rank, latent.key_value_rank, latent.rope_width, latent.value_width].map(u64::from);
        let queries = if query_rank == 0 { hidden * query } else { query_rank * (hidden + 1 + query) };
        let own = u64::from(self.head_dim).saturating_sub(rope);
        queries + hidden * (rank + rope) + rank + rank * heads * (own + value) + heads * value * hidden
    }

    /// What is wrong with the sizes, each with its field below `path` and the nearest value that works.
    pub fn find_faults(&self, path: &str, faults: &mut Vec<Fault>) {
        let mut fault = |field: &str, found: &dyn core::fmt::Display, accepted: String| {
            let field = if path.is_empty() { field.into() } else { format!("{path}.{field}") };
            faults.push(Fault::new(field, found, accepted));
        };
        for (field, value, most) in [
            ("layers", self.layers, MAX_LAYERS),
            ("hidden", self.hidden, MAX_SIZE),
            ("heads", self.heads, MAX_SIZE),
            ("kv_heads", self.kv_heads, MAX_SIZE),
            ("head_dim", self.head_dim, MAX_SIZE),
            ("ffn", self.ffn, MAX_SIZE),
            ("vocab", self.vocab, MAX_SIZE),
            ("positions", self.positions, MAX_SIZE),
        ] {
            if value == 0 || value > most {
                fault(field, &value, format!("a whole number from 1 to {most}"));
            }
        }
        if self.kv_heads > 0 && self.heads > 0 && !self.heads.is_multiple_of(self.kv_heads) {
            let nearest = (1..=self.heads)
                .filter(|count| self.heads.is_multiple_of(*count))
                .min_by_key(|count| count.abs_diff(self.kv_heads))
                .unwrap_or(1);
            fault("kv_heads", &self.kv_heads, format!("a divisor of heads ({}), such as {nearest}", self.heads));
        }
        if u64::from(self.heads) * u64::from(self.head_dim) > u64::from(MAX_SIZE) {
            fault("head_dim", &self.head_dim, format!("at most {MAX_SIZE} for heads × head_dim"));
        }
        let turns = self.family == Family::Llama || self.variant.rotary.is_some();
        if turns {
            if !self.head_dim.is_multiple_of(2) {
                let nearest = self.head_dim + 1;
                fault(
                    "head_dim",
                    &self.head_dim,
                    format!("an even number, such as {nearest}: rotary positions turn pairs"),
                );
            }
            if self.rope_base == 0 {
                fault("rope_base", &0, "a whole number from 1, such as 10000".into());
            }
        }
        self.find_variant_faults(&mut fault);
        if self.norm_eps_e12 == 0 || self.norm_eps_e12 > 1_000_000_000_000 {
            fault("norm_eps", &self.norm_eps_e12, "above 0 and at most 1, such as 1e-5".into());
        }
    }

    /// What is wrong with what departs from the usual layer.
    fn find_variant_faults(&self, fault: &mut impl FnMut(&str, &dyn core::fmt::Display, String)) {
        let variant = &self.variant;
        let (arrangement, no_bias) = (variant.arrangement, variant.no_bias);
        let of_gpt =
            Variant { window: variant.window, rotary: variant.rotary, arrangement, no_bias, ..Variant::USUAL };
        if self.family == Family::Gpt && *variant != of_gpt {
            let named = [
                ("qkv_bias", variant.qkv_bias != of_gpt.qkv_bias),
                ("qk_norm", variant.qk_norm != of_gpt.qk_norm),
                ("post_norms", variant.post_norms != of_gpt.post_norms),
                ("activation", variant.activation != of_gpt.activation),
                ("experts", variant.experts != of_gpt.experts),
                ("latent", variant.latent != of_gpt.latent),
                ("multi_token", variant.multi_token != of_gpt.multi_token),
                ("norm_offset", variant.norm_offset != of_gpt.norm_offset),
                ("factors", variant.factors != of_gpt.factors),
                ("caps", variant.caps != of_gpt.caps),
            ];
            let named: Vec<&str> = named.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect();
            let accepted = format!("llama, of which {} is a variant", named.join(", "));
            fault("family", &self.family.name(), accepted);
        }
        if self.family == Family::Llama && (arrangement != Arrangement::InTurn || no_bias) {
            let accepted = "nothing but in family gpt, which it is a variant of";
            match no_bias {
                true => fault("no_bias", &no_bias, accepted.into()),
                false => fault("arrangement", &arrangement.name(), accepted.into()),
            }
        }
        if let Some(columns) = variant.rotary {
            let most = self.head_dim / 2 * 2;
            if columns == 0 || columns > most || !columns.is_multiple_of(2) || variant.latent.is_some() {
                let nearest = (columns.saturating_add(1) / 2 * 2).clamp(2, most.max(2));
                let accepted = match variant.latent {
                    Some(_) => "nothing: latents say what is turned".into(),
                    None => format!("an even number from 2 to {most} (head_dim), such as {nearest}"),
                };
                fault("rotary", &columns, accepted);
            }
        }
        let (factors, caps) = (variant.factors, variant.caps);
        for (field, value) in [
            ("factors.embedding", factors.embedding),
            ("factors.residual", factors.residual),
            ("factors.attention", factors.attention),
            ("factors.logits", factors.logits),
            ("caps.attention", caps.attention),
            ("caps.logits", caps.logits),
            ("experts.factor", variant.experts.and_then(|experts| experts.routing.factor)),
        ] {
            if value.is_some_and(|value| value == 0 || value as f64 > MAX_FACTOR * E12 as f64) {
                let found = value.unwrap_or(0) as f64 / E12 as f64;
                fault(field, &found, format!("a number above 0, at most {MAX_FACTOR}, or nothing"));
            }
        }
        if variant.multi_token > MAX_MULTI_TOKEN {
            fault("multi_token", &variant.multi_token, format!("a whole number from 0 to {MAX_MULTI_TOKEN}"));
        }
        if let Some(window) = variant.window {
            for (field, value, least, most) in [
                ("window.tokens", window.tokens, 1, MAX_SIZE),
                ("window.full_every", window.full_every, 0, self.layers),
            ] {
                if !(least..=most).contains(&value) {
                    fault(field, &value, format!("a whole number from {least} to {most}"));
                }
            }
        }
        if let Some(experts) = variant.experts {
            if experts.shared_gate && experts.shared_ffn == 0 {
                fault("experts.shared_gate", &true, "false: there are no shared experts to gate".into());
            }
            for (field, value, least, most) in [
                ("experts.count", experts.count, 1, MAX_EXPERTS),
                ("experts.active", experts.active, 1, experts.count.max(1)),
                ("experts.ffn", experts.ffn, 1, MAX_SIZE),
                ("experts.shared_ffn", experts.shared_ffn, 0, MAX_SIZE),
                ("experts.dense_layers", experts.dense_layers, 0, self.layers),
                ("experts.groups", experts.routing.groups, 1, MAX_EXPERT_GROUPS),
                ("experts.active_groups", experts.routing.active_groups, 1, experts.routing.groups.max(1)),
            ] {
                if !(least..=most).contains(&value) {
                    fault(field, &value, format!("a whole number from {least} to {most}"));
                }
            }
            let Routing { groups, active_groups, .. } = experts.routing;
            if !experts.count.is_multiple_of(groups.max(1)) {
                fault("experts.groups", &groups, format!("a number that divides count ({})", experts.count));
            } else if experts.active > (experts.count / groups.max(1)).saturating_mul(active_groups) {
                let accepted = format!("more: they have fewer than active ({}) experts", experts.active);
                fault("experts.active_groups", &active_groups, accepted);
            }
        }
        if let Some(latent) = variant.latent {
            for (field, value, least, most) in [
                ("latent.query_rank", latent.query_rank, 0, MAX_SIZE),
                ("latent.key_value_rank", latent.key_value_rank, 1, MAX_SIZE),
                ("latent.rope_width", latent.rope_width, 2, self.head_dim.saturating_sub(1)),
                ("latent.value_width", latent.value_width, 1, MAX_SIZE),
            ] {
                if !(least..=most).contains(&value) {
                    fault(field, &value, format!("a whole number from {least} to {most}"));
                }
            }
            if !latent.rope_width.is_multiple_of(2) {
                fault(
                    "latent.rope_width",
                    &latent.rope_width,
                    format!("an even number, such as {}: rotary positions turn pairs", latent.rope_width + 1),
                );
            }
            if u64::from(self.heads) * u64::from(latent.value_width) > u64::from(MAX_SIZE) {
                let accepted = format!("at most {MAX_SIZE} for heads × value_width");
                fault("latent.value_width", &latent.value_width, accepted);
            }
            if variant.qkv_bias || variant.qk_norm {
                fault(
                    "latent.key_value_rank",
                    &latent.key_value_rank,
                    "no latents beside qkv_bias or qk_norm".into(),
                );
            }
            if self.kv_heads != self.heads {
                fault("kv_heads", &self.kv_heads, format!("heads ({}): every head has its own keys", self.heads));
            }
        }
    }
}
