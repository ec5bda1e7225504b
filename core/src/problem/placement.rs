//! Which rank holds which stage.

use alloc::vec::Vec;

/// How stages are assigned to ranks. `P` ranks hold `V` chunks each, so there are `P · V` stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One chunk per rank: stage `s` on rank `s`.
    Linear,
    /// Stage `s` on rank `s mod P` (interleaved 1F1B, arXiv:2104.04473 §2.2.2).
    Looped,
    /// Two chunks per rank: down the ranks and back up (ZB-V, arXiv:2401.10241 §6).
    V,
    /// The V continued: the direction alternates with each chunk (Hanayo, arXiv:2308.15762).
    Wave,
    /// The rank of each stage, as a list.
    List(Vec<u16>),
    /// Bidirectional, with two copies of the model: the first half of the microbatches goes down the ranks, the other
    /// half up (Chimera, arXiv:2107.06925; DualPipe). Stage `s` is on rank `s` for the first half and on `P − 1 − s`
    /// for the second.
    Bidirectional,
}

impl Placement {
    /// The name in a problem file; a list has none.
    pub const fn name(&self) -> Option<&'static str> {
        match self {
            Placement::Linear => Some("linear"),
            Placement::Looped => Some("looped"),
            Placement::V => Some("v"),
            Placement::Wave => Some("wave"),
            Placement::Bidirectional => Some("two-way"),
            Placement::List(_) => None,
        }
    }

    /// The rank of each stage in model order; for [`Placement::Bidirectional`], that of the first half.
    pub fn ranks(&self, ranks: usize, chunks: usize) -> Vec<u16> {
        let stages = ranks * chunks;
        (0..stages)
            .map(|stage| {
                let (chunk, along) = (stage / ranks, stage % ranks);
                match self {
                    Placement::Linear | Placement::Looped | Placement::Bidirectional => along as u16,
                    Placement::V | Placement::Wave if chunk % 2 == 0 => along as u16,
                    Placement::V | Placement::Wave => (ranks - 1 - along) as u16,
                    Placement::List(list) => list[stage],
                }
            })
            .collect()
    }

    /// Whether both put every stage on the same rank for every microbatch, whatever their names.
    pub fn same_as(&self, other: &Placement, ranks: usize, chunks: usize) -> bool {
        let fits =
            |placement: &Placement| !matches!(placement, Placement::List(list) if list.len() != ranks * chunks);
        (*self == Placement::Bidirectional) == (*other == Placement::Bidirectional)
            && fits(self)
            && fits(other)
            && self.ranks(ranks, chunks) == other.ranks(ranks, chunks)
    }

    /// The same placement by its name, where it has one.
    pub fn named(self, ranks: usize, chunks: usize) -> Placement {
        let known = match chunks {
            1 => [Placement::Linear].as_slice(),
            2 => &[Placement::Looped, Placement::V],
            _ => &[Placement::Looped, Placement::Wave],
        };
        known.iter().find(|named| self.same_as(named, ranks, chunks)).cloned().unwrap_or(self)
    }
}
