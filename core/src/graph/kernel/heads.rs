//! Sizes of attention: heads, and attention over several devices.

use super::of_e12;
use crate::model::RecurrenceKind;

/// The angles of rotary positions: position `t` turns pair `j` of `c` columns by `t · base^(−2j/c)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Angles {
    /// RoPE theta: 10 000 for Llama 2.
    pub base: u64,
    /// The first pairs that are turned; the others stay as they are (p-RoPE). None: all.
    pub pairs: Option<u64>,
    /// Whether they are of a layer with a window, whose angles a run may scale apart.
    pub windowed: bool,
}

impl Angles {
    /// All pairs turn, in a layer without a window.
    pub const fn usual(base: u64) -> Angles {
        Angles { base, pairs: None, windowed: false }
    }

    /// Whether pair `pair` is turned.
    pub fn turns(&self, pair: u64) -> bool {
        self.pairs.is_none_or(|pairs| pair < pairs)
    }
}

/// The heads of an attention operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Tokens of one sequence; the rows of a microbatch are a multiple.
    pub sequence: u64,
    /// Query heads, `a`.
    pub query: u64,
    /// Key and value heads, `g`; divides `query`. Query head `h` reads key and value head `h · g / a`.
    pub key_value: u64,
    /// Width of one head, `d`. Head `h` is columns `h · d .. (h + 1) · d`.
    pub width: u64,
    /// What products of queries and keys are multiplied with, in units of 10⁻¹²; none: `1/√d`.
    pub scale_e12: Option<u64>,
    /// What scores are capped by where they are not held, in units of 10⁻¹².
    pub cap_e12: Option<u64>,
}

impl Heads {
    /// With the usual scale, and without a soft-cap.
    pub const fn usual(sequence: u64, [query, key_value]: [u64; 2], width: u64) -> Heads {
        Heads { sequence, query, key_value, width, scale_e12: None, cap_e12: None }
    }

    /// What products of queries and keys are multiplied with.
    pub fn scale(&self) -> f64 {
        self.scale_e12.map_or_else(|| 1.0 / libm::sqrt(self.width as f64), of_e12)
    }

    /// What scores are capped by.
    pub fn cap(&self) -> Option<f64> {
        self.cap_e12.map(of_e12)
    }
}

/// Attention over several devices, within a window, or with another head dim for the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Sequence, heads, and the width of queries and keys.
    pub heads: Heads,
    /// Width of a head of the values and of the output.
    pub value_width: u64,
    /// Devices that each hold an equal part of every sequence and pass keys and values around a ring
    /// (arXiv:2310.01889), with the parts that [`SequencePart`](crate::graph::SequencePart) says.
    pub ways: u64,
    /// Sliding window: tokens that each token sees, itself included; all of a sequence, or fewer.
    pub window: u64,
}

/// An indexer of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Indexing {
    /// Tokens of one sequence.
    pub sequence: u64,
    /// The most tokens that are chosen.
    pub tokens: u64,
}

/// A recurrence of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recurring {
    /// Its kind.
    pub kind: RecurrenceKind,
    /// Tokens of one sequence.
    pub sequence: u64,
    /// Heads of queries and keys, `g`.
    pub key_heads: u64,
    /// Width of one, `d`.
    pub key_width: u64,
    /// Heads of values, `a`.
    pub heads: u64,
    /// Width of one, `e`.
    pub width: u64,
}

impl Recurring {
    /// Tokens of a chunk: what the public kernels of each kind take (flash-linear-attention, Mamba).
    pub const fn chunk(&self) -> u64 {
        match self.kind {
            RecurrenceKind::DeltaNet => 64,
            RecurrenceKind::Mamba2 => 256,
        }
    }

    /// States between the chunks of `rows` tokens.
    pub fn chunks(&self, rows: u64) -> u64 {
        let sequences = rows / self.sequence.max(1);
        sequences.max(1) * self.sequence.div_ceil(self.chunk())
    }
}

/// What is done with the rows of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageRows {
    /// `(x [n, h], class [h]) → (y [n + images, h])`: a row before those of each image.
    Joined,
    /// `(x [n, h]) → (y [m, w])`: patches side by side, or their mean, without the row of the class token.
    Merged,
    /// `(x [n, h], images [m, h]) → (y [n, h])`: rows of images in the places that the stream has for them.
    Placed,
}
