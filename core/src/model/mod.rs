//! Models as a person names them: sizes of a decoder, and a [`catalog`] of public ones.

pub mod catalog;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::fields::Fault;

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
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::Bf16 => 2,
            Dtype::U8 => 1,
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
    /// Width of one head.
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
}

/// Most layers of a model.
pub const MAX_LAYERS: u32 = 4096;
/// Largest width, vocabulary or sequence of a model. Products of three such sizes and a dtype fit in `u128`, and
/// a tensor of two in `u64`.
pub const MAX_SIZE: u32 = 1 << 22;

impl ModelConfig {
    /// Parameters, a tied table counted once.
    pub fn parameters(&self) -> u64 {
        let table = u64::from(self.vocab) * u64::from(self.hidden);
        let head = if self.tied { 0 } else { table };
        let norm = match self.family {
            Family::Llama => u64::from(self.hidden),
            Family::Gpt => 2 * u64::from(self.hidden),
        };
        let positions = match self.family {
            Family::Llama => 0,
            Family::Gpt => u64::from(self.positions) * u64::from(self.hidden),
        };
        u64::from(self.layers) * self.layer_parameters() + table + positions + norm + head
    }

    /// Parameters of one decoder layer.
    pub fn layer_parameters(&self) -> u64 {
        let (hidden, ffn) = (u64::from(self.hidden), u64::from(self.ffn));
        let query = u64::from(self.heads) * u64::from(self.head_dim);
        let key_value = u64::from(self.kv_heads) * u64::from(self.head_dim);
        let attention = hidden * (2 * query + 2 * key_value);
        match self.family {
            Family::Llama => attention + 3 * hidden * ffn + 2 * hidden,
            // Biases of q, k, v, o and of both feed-forward matrices; gain and bias of two norms.
            Family::Gpt => attention + query + 2 * key_value + hidden + 2 * hidden * ffn + ffn + hidden + 4 * hidden,
        }
    }

    /// What is wrong with the sizes, each with its field below `path` and the nearest value that works.
    pub fn find_faults(&self, path: &str, faults: &mut Vec<Fault>) {
        let mut fault = |field: &str, found: u64, accepted: String| {
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
                fault(field, value.into(), format!("a whole number from 1 to {most}"));
            }
        }
        if self.kv_heads > 0 && self.heads > 0 && !self.heads.is_multiple_of(self.kv_heads) {
            let nearest = (1..=self.heads)
                .filter(|count| self.heads.is_multiple_of(*count))
                .min_by_key(|count| count.abs_diff(self.kv_heads))
                .unwrap_or(1);
            fault(
                "kv_heads",
                self.kv_heads.into(),
                format!("a divisor of heads ({}), such as {nearest}", self.heads),
            );
        }
        if u64::from(self.heads) * u64::from(self.head_dim) > u64::from(MAX_SIZE) {
            fault("head_dim", self.head_dim.into(), format!("at most {MAX_SIZE} for heads × head_dim"));
        }
        if self.family == Family::Llama {
            if !self.head_dim.is_multiple_of(2) {
                let nearest = self.head_dim + 1;
                fault(
                    "head_dim",
                    self.head_dim.into(),
                    format!("an even number, such as {nearest}: rotary positions turn pairs"),
                );
            }
            if self.rope_base == 0 {
                fault("rope_base", 0, "a whole number from 1, such as 10000".into());
            }
        }
        if self.norm_eps_e12 == 0 || self.norm_eps_e12 > 1_000_000_000_000 {
            fault("norm_eps", self.norm_eps_e12, "above 0 and at most 1, such as 1e-5".into());
        }
    }
}
