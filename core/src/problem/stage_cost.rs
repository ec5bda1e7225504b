//! Times and bytes of one stage for one microbatch.

use crate::base::units::{ByteDelta, Bytes, Nanos};
use crate::problem::op::OpKind;

/// Time and memory of one stage for one microbatch.
///
/// An op's positive bytes are taken when it starts, its negative ones given back when it ends; its
/// workspace is taken at the start and given back at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StageCost {
    /// Duration of F.
    pub forward_ns: Nanos,
    /// Duration of B.
    pub backward_input_ns: Nanos,
    /// Duration of W.
    pub backward_weight_ns: Nanos,
    /// Duration of the fused BW, where it is less than that of B and then W: at most their sum. This is so where W's
    /// operators overlap a collective that B waits for.
    pub backward_ns: Option<Nanos>,
    /// The communication of F: the part in which its rank does not compute, and in which the other op of a pair may
    /// compute.
    pub forward_exchange_ns: Nanos,
    /// The same of B, and of BW.
    pub backward_exchange_ns: Nanos,
    /// Bytes that F leaves held.
    pub forward_bytes: ByteDelta,
    /// Change of bytes held by B.
    pub backward_input_bytes: ByteDelta,
    /// Change of bytes held by W.
    pub backward_weight_bytes: ByteDelta,
    /// Bytes that F needs only while it runs.
    pub forward_workspace_bytes: Bytes,
    /// Bytes that B needs only while it runs.
    pub backward_input_workspace_bytes: Bytes,
    /// Bytes that W needs only while it runs.
    pub backward_weight_workspace_bytes: Bytes,
    /// Bytes that the fused BW needs only while it runs, where it is more than B and then W: B's and W's changes of
    /// bytes are then one change, their sum. This is so where W of a layer frees its recomputed tensors before those of
    /// the next layer are made.
    pub backward_workspace_bytes: Option<Bytes>,
    /// With [slices](super::Problem::slices): the bytes of the gradients that later slices add up for the keys and values
    /// of one slice. B of the last slice takes them for all slices before it; B of each of these gives its own back.
    pub slice_gradient_bytes: Bytes,
    /// Of the bytes that F leaves held, those that may go to the host until the backward needs them. 0 where none may.
    pub offload_bytes: Bytes,
    /// How long the link to the host takes for them, one way.
    pub offload_ns: Nanos,
}

impl StageCost {
    /// How long an op of `kind` keeps its rank busy.
    pub const fn duration(&self, kind: OpKind) -> Nanos {
        match kind {
            OpKind::F => self.forward_ns,
            OpKind::B => self.backward_input_ns,
            OpKind::W => self.backward_weight_ns,
            OpKind::BW => match self.backward_ns {
                Some(duration) => duration,
                None => self.backward_input_ns + self.backward_weight_ns,
            },
        }
    }

    /// The communication time of an op of `kind`.
    pub const fn exchange(&self, kind: OpKind) -> Nanos {
        match kind {
            OpKind::F => self.forward_exchange_ns,
            OpKind::B | OpKind::BW => self.backward_exchange_ns,
            OpKind::W => 0,
        }
    }

    /// The least time that B and W keep their rank busy, split or fused: neither more than it takes alone, nor both
    /// together more than BW takes.
    pub const fn least_backward(&self) -> [Nanos; 2] {
        let fused = self.duration(OpKind::BW);
        let first = if self.backward_input_ns < fused { self.backward_input_ns } else { fused };
        [first, fused - first]
    }

    /// The same where no exchange is longer than its op.
    pub(crate) fn bounded(self) -> StageCost {
        let backward = self.backward_input_ns.min(self.duration(OpKind::BW));
        StageCost {
            forward_exchange_ns: self.forward_exchange_ns.min(self.forward_ns),
            backward_exchange_ns: self.backward_exchange_ns.min(backward),
            ..self
        }
    }

    /// Whether BW holds less at its most than B and then W.
    pub(crate) fn holds_less_whole(&self) -> bool {
        let apart = self.backward_input_bytes + self.takes(OpKind::W) as i64;
        (self.takes(OpKind::BW) as i64) < apart.max(self.takes(OpKind::B) as i64)
    }

    /// The same stage with BW as its B, and an empty W.
    pub(super) fn whole(&self) -> StageCost {
        let change = self.backward_input_bytes + self.backward_weight_bytes;
        StageCost {
            backward_input_ns: self.duration(OpKind::BW),
            backward_weight_ns: 0,
            backward_ns: None,
            backward_input_bytes: change,
            backward_weight_bytes: 0,
            backward_input_workspace_bytes: self.takes(OpKind::BW) - change.max(0) as u64,
            backward_weight_workspace_bytes: 0,
            backward_workspace_bytes: None,
            ..*self
        }
    }

    /// Bytes taken when an op of `kind` starts.
    pub fn takes(&self, kind: OpKind) -> Bytes {
        let taken = |delta: ByteDelta| delta.max(0) as u64;
        match kind {
            OpKind::F => taken(self.forward_bytes) + self.forward_workspace_bytes,
            OpKind::B => taken(self.backward_input_bytes) + self.backward_input_workspace_bytes,
            OpKind::W => taken(self.backward_weight_bytes) + self.backward_weight_workspace_bytes,
            OpKind::BW => match self.backward_workspace_bytes {
                Some(workspace) => taken(self.backward_input_bytes + self.backward_weight_bytes) + workspace,
                None => {
                    taken(self.backward_input_bytes)
                        + taken(self.backward_weight_bytes)
                        + self.backward_input_workspace_bytes.max(self.backward_weight_workspace_bytes)
                }
            },
        }
    }

    /// Bytes given back when an op of `kind` ends.
    pub fn gives(&self, kind: OpKind) -> Bytes {
        let given = |delta: ByteDelta| delta.min(0).unsigned_abs();
        match kind {
            OpKind::F => given(self.forward_bytes) + self.forward_workspace_bytes,
            OpKind::B => given(self.backward_input_bytes) + self.backward_input_workspace_bytes,
            OpKind::W => given(self.backward_weight_bytes) + self.backward_weight_workspace_bytes,
            OpKind::BW => match self.backward_workspace_bytes {
                Some(workspace) => given(self.backward_input_bytes + self.backward_weight_bytes) + workspace,
                None => {
                    given(self.backward_input_bytes)
                        + given(self.backward_weight_bytes)
                        + self.backward_input_workspace_bytes.max(self.backward_weight_workspace_bytes)
                }
            },
        }
    }
}
