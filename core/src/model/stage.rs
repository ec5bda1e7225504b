//! Which part of a model a stage holds.

use core::ops::Range;

/// One stage's part of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct StageLayout {
    /// Its decoder layers.
    pub layers: Range<u32>,
    /// Whether it holds the embedding.
    pub embedding: bool,
    /// Whether it holds the final norm, the head and the loss.
    pub head: bool,
    /// Its modules of multi-token prediction (MTP).
    pub modules: Modules,
}

/// The modules of multi-token prediction (MTP) of a stage. Without a choice the stage of the head holds all of them. A
/// module apart from the head is computed on its own stage, with a copy of the embedding; what it predicts goes with the
/// model's own stream to the stage of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Modules {
    /// Those on the stages before, whose streams arrive with the model's own.
    pub before: u32,
    /// Those of a stage without the head. The stage of the head holds all that are left.
    pub here: u32,
}

impl Modules {
    /// The modules of a stage of a model with `all`, in order.
    pub fn of_stage(self, head: bool, all: u32) -> Range<u32> {
        let before = self.before.min(all);
        before..if head { all } else { before.saturating_add(self.here).min(all) }
    }

    /// The streams that the next stage receives for each token.
    pub fn streams_after(self) -> u32 {
        self.before.saturating_add(self.here).saturating_add(1)
    }
}
