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
    /// The same with a scale of 8 bits for each 32 elements (OCP Microscaling Formats specification 1.0, section 5).
    MxFp8,
    /// 4-bit float, e2m1, with a scale of 8 bits for each 32 elements (the same specification).
    MxFp4,
    /// 4-bit float, e2m1, with a scale of 8 bits for each 16 elements (arXiv:2509.25149, section 2).
    NvFp4,
}

impl Dtype {
    /// The formats that matmuls take besides that of the tensors, widest first.
    pub const OF_MATMULS: [Dtype; 4] = [Dtype::Fp8, Dtype::MxFp8, Dtype::MxFp4, Dtype::NvFp4];

    /// Bytes of one element. Of formats with shared scales: without the scales, rounded up.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::Bf16 => 2,
            Dtype::U8 | Dtype::Fp8 | Dtype::MxFp8 | Dtype::MxFp4 | Dtype::NvFp4 => 1,
        }
    }

    /// Bytes of `elements`, with the scales that they share.
    pub const fn bytes_of(self, elements: u64) -> u64 {
        let packed = match self {
            Dtype::MxFp4 | Dtype::NvFp4 => elements.div_ceil(2),
            _ => elements.saturating_mul(self.bytes()),
        };
        match self.block() {
            Some(block) => packed.saturating_add(elements.div_ceil(block)),
            None => packed,
        }
    }

    /// The elements that share a scale of one byte, in formats with such scales.
    pub const fn block(self) -> Option<u64> {
        match self {
            Dtype::MxFp8 | Dtype::MxFp4 => Some(32),
            Dtype::NvFp4 => Some(16),
            _ => None,
        }
    }

    /// Whether an element has 4 bits.
    pub const fn is_fp4(self) -> bool {
        matches!(self, Dtype::MxFp4 | Dtype::NvFp4)
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
            Dtype::MxFp8 => "mxfp8",
            Dtype::MxFp4 => "mxfp4",
            Dtype::NvFp4 => "nvfp4",
        }
    }
}
