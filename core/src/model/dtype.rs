//! Number formats of tensors.

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
    /// 8-bit float, e4m3 or e5m2 (arXiv:2209.05433): operands of matmuls, with tensors in bf16.
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
