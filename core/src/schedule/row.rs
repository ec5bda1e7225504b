//! The op list of a rank under construction.

use alloc::vec;
use alloc::vec::Vec;

use crate::problem::op::{Op, OpKind};

/// An op list that numbers microbatches itself: the n-th F of a stage is that of microbatch n, and so for B, W and BW.
/// Microbatches are alike, so taking them first in, first out loses nothing.
#[derive(Clone, Debug)]
pub struct Row {
    ops: Vec<Op>,
    /// By stage: the next microbatch of F, of B or BW, of W or BW.
    next: Vec<[usize; 3]>,
}

impl Row {
    /// An empty row; `stages` is the number of stages of the whole problem.
    pub fn new(stages: usize) -> Row {
        Row { ops: Vec::new(), next: vec![[0; 3]; stages] }
    }

    /// As [`Row::new`], with the first microbatch of each stage given: a bidirectional schedule starts its second
    /// direction halfway.
    pub fn starting_at(first: Vec<usize>) -> Row {
        Row { ops: Vec::new(), next: first.into_iter().map(|first| [first; 3]).collect() }
    }

    /// Appends the next op of `kind` of `stage`.
    pub fn push(&mut self, stage: usize, kind: OpKind) {
        let next = &mut self.next[stage];
        let microbatch = match kind {
            OpKind::F => next[0],
            OpKind::B | OpKind::BW => next[1],
            OpKind::W => next[2],
        };
        match kind {
            OpKind::F => next[0] += 1,
            OpKind::B => next[1] += 1,
            OpKind::W => next[2] += 1,
            OpKind::BW => {
                next[1] += 1;
                next[2] += 1;
            }
        }
        self.ops.push(Op::new(stage, kind, microbatch));
    }

    /// Appends `count` ops.
    pub fn repeat(&mut self, count: usize, stage: usize, kind: OpKind) {
        for _ in 0..count {
            self.push(stage, kind);
        }
    }

    /// How many ops of `kind` of `stage` the row holds; a BW counts as B and as W.
    pub fn count(&self, stage: usize, kind: OpKind) -> usize {
        let next = self.next[stage];
        match kind {
            OpKind::F => next[0],
            OpKind::B | OpKind::BW => next[1],
            OpKind::W => next[2],
        }
    }

    /// How many ops the row holds.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether the row holds no op.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The row.
    pub fn into_ops(self) -> Vec<Op> {
        self.ops
    }
}
