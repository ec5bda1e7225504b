//! The sizes of a decoder, and its parameter counts.

use super::variant::{
    Activation, Arrangement, Family, Global, Indexer, Latent, QkNorm, Recurrence, RecurrenceKind, Variant,
};

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
    /// RoPE theta, but for that of [`Window::rope_base`](crate::model::Window::rope_base); unused without rotary positions.
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
            Family::Llama => self.norm_parameters(),
            Family::Gpt => 2 * u64::from(self.hidden),
        };
        let extras = if self.variant.embedding_norm { norm } else { 0 }
            + if self.variant.head_bias { u64::from(self.vocab) } else { 0 };
        let positions = match self.family {
            Family::Llama => 0,
            Family::Gpt if self.variant.rotary.is_some() => 0,
            Family::Gpt => u64::from(self.positions) * u64::from(self.hidden),
        };
        (0..self.layers).fold(table + positions + norm + head + extras, |sum, layer| {
            sum.saturating_add(self.layer_parameters(layer))
        })
    }

    /// Parameters that a token uses: of the experts only its top-k.
    pub fn active_parameters(&self) -> u64 {
        let Some(experts) = self.variant.experts else { return self.parameters() };
        let idle = u64::from(experts.count.saturating_sub(experts.active));
        let biases = if experts.biases { self.expert_biases(experts.ffn) } else { 0 };
        let idle = idle.saturating_mul(self.mlp_parameters(experts.ffn) + biases);
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

    /// Parameters of a vision tower and its projector; they do not count among the decoder's.
    pub fn vision_parameters(&self) -> u64 {
        self.variant.vision.map_or(0, |vision| vision.parameters(self.hidden))
    }

    /// Tokens that a token of `layer` sees, itself included, in sequences of `sequence` tokens. Chunks are sequences.
    pub fn looks_back(&self, layer: u32, sequence: u64) -> u64 {
        match self.variant.window {
            Some(window) if !window.chunked && self.has_window(layer) => sequence.min(window.tokens.into()),
            _ => sequence,
        }
    }

    /// Tokens of what is one sequence to the attention of `layer`: a chunk, or all of `sequence`.
    pub fn attention_sequence(&self, layer: u32, sequence: u64) -> u64 {
        match self.variant.window {
            Some(window) if window.chunked && self.has_window(layer) => sequence.min(window.tokens.into()),
            _ => sequence,
        }
    }

    /// Whether `layer` has a window.
    pub fn has_window(&self, layer: u32) -> bool {
        self.variant.window.is_some_and(|window| match window.layers {
            Some(_) => window.has(self.like(layer)),
            None => window.has(layer),
        })
    }

    /// What attention of `layer` has of its own, where it has no window.
    pub fn global(&self, layer: u32) -> Option<Global> {
        self.variant.global.filter(|_| !self.has_window(layer))
    }

    /// Head dim, and key and value heads, of attention in `layer`.
    pub fn attention_sizes(&self, layer: u32) -> [u32; 2] {
        self.global(layer).map_or([self.head_dim, self.kv_heads], |global| [global.head_dim, global.kv_heads])
    }

    /// RoPE theta of `layer`.
    pub fn rope_base_of(&self, layer: u32) -> u32 {
        let of_window = self.variant.window.filter(|_| self.has_window(layer)).and_then(|window| window.rope_base);
        of_window.unwrap_or(self.rope_base)
    }

    /// Whether `layer` has rotary positions, where the model has any.
    pub fn has_rope(&self, layer: u32) -> bool {
        !self.variant.no_rope.is_some_and(|pattern| pattern.has(self.like(layer)))
    }

    /// Whether `layer` has attention, or a recurrence in its place.
    pub fn has_mixer(&self, layer: u32) -> bool {
        !self.variant.no_mixer.is_some_and(|pattern| pattern.has(self.like(layer)))
    }

    /// Whether `layer` has an MLP, or experts in its place.
    pub fn has_mlp(&self, layer: u32) -> bool {
        !self.variant.no_mlp.is_some_and(|pattern| pattern.has(self.like(layer)))
    }

    /// The recurrence that `layer` has in the place of attention.
    pub fn recurrence(&self, layer: u32) -> Option<Recurrence> {
        let recurrence = self.variant.recurrence.filter(|_| self.has_mixer(layer));
        recurrence.filter(|recurrence| recurrence.layers.has(self.like(layer)))
    }

    /// The layer of the model that `layer` is like: MTP modules are like the last one.
    fn like(&self, layer: u32) -> u32 {
        layer.min(self.layers.saturating_sub(1))
    }

    /// Whether `layer` has experts.
    pub fn has_experts(&self, layer: u32) -> bool {
        self.has_mlp(layer)
            && self.variant.experts.is_some_and(|experts| match experts.layers {
                Some(pattern) => pattern.has(self.like(layer)),
                None => layer >= experts.dense_layers,
            })
    }

    /// Parameters of one norm of the residual stream.
    fn norm_parameters(&self) -> u64 {
        self.variant.norm.weights() * u64::from(self.hidden)
    }

    /// Parameters of the matrices of an MLP of this inner width.
    fn mlp_parameters(&self, ffn: u32) -> u64 {
        let matrices = if self.variant.activation.is_gated() { 3 } else { 2 };
        matrices * u64::from(self.hidden) * u64::from(ffn)
    }

    /// Parameters of the biases of one expert.
    fn expert_biases(&self, ffn: u32) -> u64 {
        2 * u64::from(ffn) + u64::from(self.hidden)
    }

    /// Parameters of the decoder layer `layer`.
    pub fn layer_parameters(&self, layer: u32) -> u64 {
        let (hidden, ffn) = (u64::from(self.hidden), u64::from(self.ffn));
        let [head_dim, kv_heads] = self.attention_sizes(layer).map(u64::from);
        let (query, key_value) = (u64::from(self.heads) * head_dim, kv_heads * head_dim);
        let values = if self.global(layer).is_some_and(|global| global.keys_are_values) { 0 } else { key_value };
        let attention = hidden * (2 * query + key_value + values);
        match self.family {
            Family::Llama => {
                let each = self.norm_parameters();
                let norms = (u64::from(!self.variant.no_pre_norms) + u64::from(self.variant.post_norms)) * each;
                let mixer = match (self.recurrence(layer), self.variant.latent) {
                    (Some(recurrence), _) => self.recurrence_parameters(&recurrence),
                    (None, Some(latent)) => self.latent_parameters(&latent),
                    (None, None) => attention + self.attention_extras(query, key_value, head_dim),
                };
                let mixer = if self.has_mixer(layer) { mixer + norms } else { 0 };
                let of_mlp = if self.variant.arrangement == Arrangement::BesideOneNorm { 0 } else { norms };
                match self.has_mlp(layer) {
                    true => (mixer + of_mlp).saturating_add(self.feed_forward_parameters(layer)),
                    false => mixer,
                }
            }
            Family::Gpt => {
                // Of q, k, v, o and both feed-forward matrices; gain and bias of each norm.
                let biases = if self.variant.no_bias { 0 } else { query + 2 * key_value + hidden + ffn + hidden };
                let norms = if self.variant.arrangement == Arrangement::BesideOneNorm { 1 } else { 2 };
                attention + 2 * hidden * ffn + biases + norms * 2 * hidden
            }
        }
    }

    /// Parameters of a feed-forward part: an MLP, or experts with their router.
    fn feed_forward_parameters(&self, layer: u32) -> u64 {
        let hidden = u64::from(self.hidden);
        match self.variant.experts {
            Some(experts) if self.has_experts(layer) => {
                let biases = if experts.biases { 1 + self.expert_biases(experts.ffn) } else { 0 };
                let beside = match self.variant.mlp_beside_experts {
                    // Three more norms of the stream, the gain of the router's, and the experts' scales.
                    true => {
                        self.mlp_parameters(self.ffn) + 3 * self.norm_parameters() + hidden + u64::from(experts.count)
                    }
                    false => 0,
                };
                u64::from(experts.count)
                    .saturating_mul(self.mlp_parameters(experts.ffn) + hidden + biases)
                    .saturating_add(beside)
                    .saturating_add(self.mlp_parameters(experts.shared_ffn))
                    .saturating_add(if experts.shared_gate { hidden } else { 0 })
            }
            _ => {
                let inner = if self.variant.activation.is_gated() { 2 } else { 1 } * u64::from(self.ffn);
                let biases = if self.variant.mlp_bias { inner + hidden } else { 0 };
                let numbers = if self.variant.activation == Activation::Xielu { 2 } else { 0 };
                self.mlp_parameters(self.ffn) + biases + numbers
            }
        }
    }

    /// Parameters of attention beside its four matrices.
    fn attention_extras(&self, query: u64, key_value: u64, head_dim: u64) -> u64 {
        let variant = &self.variant;
        let if_so = |is_so: bool, parameters: u64| if is_so { parameters } else { 0 };
        let norm = match variant.qk_norm_of {
            QkNorm::Heads | QkNorm::RotatedHeads => 2 * head_dim,
            QkNorm::Whole | QkNorm::LayerHeads => query + key_value,
            QkNorm::SharedLayerHeads => 4 * head_dim,
            QkNorm::RotatedLengths => 0,
        };
        if_so(variant.qkv_bias, query + 2 * key_value)
            + if_so(variant.qk_norm, norm)
            + if_so(variant.o_bias, self.hidden.into())
            + if_so(variant.sinks, self.heads.into())
            + if_so(variant.attention_gate, u64::from(self.hidden) * query)
    }

    /// Parameters of a recurrence in the place of attention.
    fn recurrence_parameters(&self, of: &Recurrence) -> u64 {
        let hidden = u64::from(self.hidden);
        let [keys, values] = [(of.key_heads, of.key_dim), (of.heads, of.head_dim)]
            .map(|(heads, width)| u64::from(heads) * u64::from(width));
        let heads = u64::from(of.heads);
        let convolved = 2 * keys + values;
        let convolution = convolved * (u64::from(of.convolution) + u64::from(of.convolution_bias));
        // Projections of keys, queries (or B and C), values and their gate, and the last matrix.
        let matrices = hidden * (2 * keys + 3 * values);
        let rest = match of.kind {
            // Decay and learning rate from the stream; two numbers a head; the norm of one head.
            RecurrenceKind::DeltaNet => 2 * hidden * heads + 2 * heads + u64::from(of.head_dim),
            // Steps from the stream; three numbers a head; the norm of all.
            RecurrenceKind::Mamba2 => hidden * heads + 3 * heads + values,
        };
        matrices + convolution + rest
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
        let indexer = self.variant.indexer.map_or(0, |indexer| self.indexer_parameters(&indexer, query_rank));
        queries + hidden * (rank + rope) + rank + rank * heads * (own + value) + heads * value * hidden + indexer
    }

    /// Parameters of one layer's indexer: queries from the query latent; a key with its LayerNorm, and a weight of each
    /// head, from the stream.
    fn indexer_parameters(&self, of: &Indexer, query_rank: u64) -> u64 {
        let [heads, width] = [of.heads, of.head_dim].map(u64::from);
        query_rank * heads * width + u64::from(self.hidden) * (width + heads) + 2 * width
    }
}
