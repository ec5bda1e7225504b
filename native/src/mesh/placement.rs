//! How a tensor lies along one axis of a mesh, and which part of it a rank then holds.

use std::fmt;
use std::ops::Range;

use super::{DistError, Mesh};
use crate::transport::collectives::{Reduction, even_counts};

/// How a tensor lies along one axis of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    /// Every rank holds the same.
    Replicate,
    /// Each rank holds one piece of this dimension. Pieces are as equal as can be, the longer ones first; some
    /// may be empty. Where several axes cut one dimension, the outer axis cuts first.
    Shard(usize),
    /// Every rank holds values of the full shape; the tensor is their reduction. Where several axes are partial,
    /// the innermost is reduced first.
    Partial(Reduction),
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Replicate => f.write_str("Replicate"),
            Placement::Shard(dimension) => write!(f, "Shard({dimension})"),
            Placement::Partial(reduction) => write!(f, "Partial({reduction})"),
        }
    }
}

/// Placements for a message: `[Shard(0), Replicate]`.
pub fn shown(placements: &[Placement]) -> String {
    let texts: Vec<String> = placements.iter().map(ToString::to_string).collect();
    format!("[{}]", texts.join(", "))
}

/// Which part of a tensor of `shape` a rank at `coordinates` holds: a range for each dimension.
pub fn local_box(
    shape: &[usize],
    sizes: &[usize],
    placements: &[Placement],
    coordinates: &[usize],
) -> Vec<Range<usize>> {
    let mut part: Vec<Range<usize>> = shape.iter().map(|length| 0..*length).collect();
    for ((placement, size), coordinate) in placements.iter().zip(sizes).zip(coordinates) {
        if let Placement::Shard(dimension) = placement
            && let Some(range) = part.get_mut(*dimension)
        {
            let piece = piece(range.len(), *size, *coordinate);
            *range = range.start + piece.start..range.start + piece.end;
        }
    }
    part
}

/// The `index`-th of `pieces` pieces of `0..length`.
pub fn piece(length: usize, pieces: usize, index: usize) -> Range<usize> {
    let start = index * (length / pieces) + index.min(length % pieces);
    start..start + length / pieces + usize::from(index < length % pieces)
}

/// Ranges of `lengths` one after the other.
pub(super) fn pieces(length: usize, pieces: usize) -> Vec<Range<usize>> {
    let mut start = 0;
    let range = |count| {
        let range = start..start + count;
        start = range.end;
        range
    };
    even_counts(length, pieces).into_iter().map(range).collect()
}

/// Whether `placements` fit the mesh and a tensor with `dimensions` dimensions.
pub(super) fn check(mesh: &Mesh, placements: &[Placement], dimensions: usize) -> Result<(), DistError> {
    if placements.len() != mesh.axes().len() {
        let (placements, axes) = (shown(placements), mesh.axes().len());
        return Err(DistError::PlacementCount { placements, axes });
    }
    for placement in placements {
        if let Placement::Shard(dimension) = placement
            && *dimension >= dimensions
        {
            return Err(DistError::NoDimension { placement: *placement, dimensions });
        }
    }
    Ok(())
}
