//! Models as a person names them: sizes of a decoder, and a catalog of public ones.

pub mod catalog;

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
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::Bf16 => 2,
        }
    }

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F64 => "f64",
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::I32 => "i32",
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
}
