//! Which part of a model a stage holds.

use core::ops::Range;

/// One stage's part of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageLayout {
    /// Its decoder layers.
    pub layers: Range<u32>,
    /// Whether it holds the embedding.
    pub embedding: bool,
    /// Whether it holds the final norm, the head and the loss.
    pub head: bool,
}
