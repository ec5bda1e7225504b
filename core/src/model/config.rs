//! The sizes of a decoder, and its parameter counts.

use super::variant::{Arrangement, Family, Latent, Variant, Window};

/// The sizes of a decoder-only transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelConfig {
    /// The operators of a layer.
    pub family: Family,
    /// Decoder layers.
    pub layers: u32,
    /// Hidden size.
    pub hidden: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Head dim of queries and keys.
    pub head_dim: u32,
    /// Inner width of the feed-forward part.
    pub ffn: u32,
    /// Vocabulary size.
    pub vocab: u32,
    /// The longest sequence: the rows of a learned position table, and the most that rotary positions were
    /// trained for.
    pub positions: u32,
    /// RoPE theta; unused without rotary positions.
    pub rope_base: u32,
    /// The `eps` of norms in units of 10⁻¹²: 10 000 000 for 10⁻⁵.
    pub norm_eps_e12: u64,
    /// Whether embedding and output layer share their weight.
    pub tied: bool,
    /// What differs from the family's usual layer.
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

impl ModelConfig {
    /// Parameters, a tied table counted once. Those of [MTP modules](ModelConfig::multi_token_parameters) do not
    /// count, as in models' reports.
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

    /// Parameters that a token uses: of the experts only its top-k.
    pub fn active_parameters(&self) -> u64 {
        let Some(experts) = self.variant.experts else { return self.parameters() };
        let idle = u64::from(experts.count.saturating_sub(experts.active));
        let idle = idle.saturating_mul(self.gated_parameters(experts.ffn));
        let sparse = (0..self.layers).filter(|layer| self.has_experts(*layer)).count() as u64;
        self.parameters().saturating_sub(sparse.saturating_mul(idle))
    }

    /// Parameters of MTP modules. They share the embedding and the output layer with the model.
    pub fn multi_token_parameters(&self) -> u64 {
        let hidden = u64::from(self.hidden);
        // A projection of two widths, norms of both halves, and one before the head.
        let projection = 2 * hidden * hidden + 3 * hidden;
        (0..self.variant.multi_token)
            .map(|module| self.layer_parameters(self.layers.saturating_add(module)).saturating_add(projection))
            .fold(0, u64::saturating_add)
    }

    /// Tokens that a token of `layer` sees, itself included, in sequences of `sequence` tokens.
    pub fn looks_back(&self, layer: u32, sequence: u64) -> u64 {
        match self.variant.window {
            Some(Window { full_every, .. }) if full_every > 0 && (layer + 1).is_multiple_of(full_every) => sequence,
            Some(window) => sequence.min(window.tokens.into()),
            None => sequence,
        }
    }

    /// Whether `layer` has experts.
    pub fn has_experts(&self, layer: u32) -> bool {
        self.variant.experts.is_some_and(|experts| match experts.layers {
            // MTP modules are like the last layer.
            Some(pattern) => pattern.has(layer.min(self.layers.saturating_sub(1))),
            None => layer >= experts.dense_layers,
        })
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
}
