//! One op: what a stage computes for one microbatch.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// The kind of an op: which job of a stage it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// Forward.
    F,
    /// Backward for the stage's inputs.
    B,
    /// Backward for the stage's weights.
    W,
    /// Both backwards, fused: the gradient of the inputs leaves only when all of the op has ended.
    BW,
}

impl OpKind {
    /// The short form: `F`, `B`, `W` or `BW`.
    pub const fn text(self) -> &'static str {
        match self {
            OpKind::F => "F",
            OpKind::B => "B",
            OpKind::W => "W",
            OpKind::BW => "BW",
        }
    }

    /// Whether this op makes the gradient that the stage before it waits for.
    pub const fn makes_input_gradient(self) -> bool {
        matches!(self, OpKind::B | OpKind::BW)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// One job of one stage for one microbatch. Its text form is stage, kind, microbatch: `3BW12`.
///
/// Eight bytes, because a schedule may hold millions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    microbatch: u32,
    stage: u16,
    kind: OpKind,
}

impl Op {
    /// The op `kind` of `stage` for `microbatch`, both counted from 0.
    ///
    /// A [`Problem`](crate::problem::Problem) bounds both far below what the fields hold; larger values
    /// are cut off, which `check` then reports as ops that do not belong to the problem.
    pub const fn new(stage: usize, kind: OpKind, microbatch: usize) -> Op {
        Op { microbatch: microbatch as u32, stage: stage as u16, kind }
    }

    /// The stage, 0-based in model order.
    pub const fn stage(self) -> usize {
        self.stage as usize
    }

    /// The microbatch, 0-based.
    pub const fn microbatch(self) -> usize {
        self.microbatch as usize
    }

    /// The job.
    pub const fn kind(self) -> OpKind {
        self.kind
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage, self.kind, self.microbatch)
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not an op.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an op: write stage, kind and microbatch, such as `0F3`, with kind F, B, W or BW")]
pub struct OpSyntax {
    /// What was read.
    pub text: String,
}

impl FromStr for Op {
    type Err = OpSyntax;

    fn from_str(text: &str) -> Result<Op, OpSyntax> {
        let parse = || {
            let kind_at = text.find(|c: char| !c.is_ascii_digit())?;
            let (stage, rest) = text.split_at(kind_at);
            let microbatch_at = rest.find(|c: char| c.is_ascii_digit())?;
            let (kind, microbatch) = rest.split_at(microbatch_at);
            let kind = match kind {
                "F" => OpKind::F,
                "B" => OpKind::B,
                "W" => OpKind::W,
                "BW" => OpKind::BW,
                _ => return None,
            };
            Some(Op { stage: stage.parse().ok()?, kind, microbatch: microbatch.parse().ok()? })
        };
        parse().ok_or_else(|| OpSyntax { text: text.chars().take(40).collect() })
    }
}

impl Serialize for Op {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for Op {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Op, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_reads_back() {
        for kind in [OpKind::F, OpKind::B, OpKind::W, OpKind::BW] {
            let op = Op::new(17, kind, 4096);
            assert_eq!(op.to_string().parse(), Ok(op));
        }
    }

    #[test]
    fn text_that_is_no_op_is_refused() {
        for text in ["", "F0", "0F", "0X1", "0f1", "0F1 ", "0FB1", "-1F0", "0F99999999999", "70000F0", "0é1"] {
            assert!(text.parse::<Op>().is_err(), "{text}");
        }
    }
}
