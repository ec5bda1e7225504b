//! Ranks as a grid with named axes, and tensors that are sharded over it.
//!
//! - In: tensors of one rank, and their placements.
//! - Out: distributed tensors, and the collectives that change placements.
//! - Knows: transports and collectives. Nothing of plans or stages.
//!
//! A [`Mesh`] gives each rank one coordinate on each axis (pipeline `pp`, data `dp`, tensor `tp`, …). A [`DistTensor`] is one
//! tensor that all ranks of a mesh hold together: a [`Placement`] per axis says whether its ranks hold copies (`Replicate`),
//! pieces (`Shard`) or values that are not yet reduced (`Partial`), as in PyTorch's DTensor. [`reshard`] goes from any
//! placements to any others, and [`local_map()`] runs a function of plain tensors on the local parts.

use std::fmt;

use pipeplan_core::estimate::layer_map::{LayerMapError, layer_place};

use crate::transport::collectives::{Group, GroupError, Reduction};

pub mod gradient;
pub mod local_map;
pub mod placement;
pub mod reshard;
pub mod tensor;
#[cfg(test)]
mod tests;
pub mod tree;

pub use gradient::{NoGradient, local_map_backward};
pub use local_map::{LocalMapError, local_map};
pub use placement::Placement;
pub use tensor::{DistError, DistTensor, Tensor};
pub use tree::{Item, Tree, Value};

/// A grid of ranks. The last axis runs fastest: on `[("dp", 2), ("tp", 4)]` the first four ranks have the
/// coordinate 0 on `dp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    axes: Vec<(String, usize)>,
    ranks: Vec<usize>,
}

/// Why axes and ranks make no mesh, or a rank or axis is not in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// The grid and the ranks have different numbers.
    #[error("the axes {axes} have {cells} ranks, but {ranks} are given: give as many ranks as the axes have")]
    Size {
        /// The axes.
        axes: String,
        /// The product of their sizes.
        cells: usize,
        /// The ranks given.
        ranks: usize,
    },
    /// Two axes with one name.
    #[error("two axes have the name `{axis}`: give each a different name")]
    SameName {
        /// The name.
        axis: String,
    },
    /// No such axis.
    #[error("the mesh has no axis `{axis}`; it has {axes}")]
    NoAxis {
        /// The name asked for.
        axis: String,
        /// The axes there are.
        axes: String,
    },
    /// The rank is not in the mesh.
    #[error("rank {rank} is not in the mesh {mesh}")]
    NoRank {
        /// The rank.
        rank: usize,
        /// The mesh.
        mesh: String,
    },
    /// A rank is there twice.
    #[error("rank {rank} is twice in the mesh: name each rank once")]
    Twice {
        /// The rank.
        rank: usize,
    },
    /// Layers that cannot be dealt to the pipeline's ranks.
    #[error(transparent)]
    Layers(#[from] LayerMapError),
    /// Ranks that make no group.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl Mesh {
    /// The grid of `axes` (name and size, outermost first) over `ranks` in row-major order.
    ///
    /// # Errors
    /// [`MeshError`] where the numbers differ, or a name or a rank comes twice.
    pub fn new(axes: &[(&str, usize)], ranks: Vec<usize>) -> Result<Mesh, MeshError> {
        let axes: Vec<(String, usize)> = axes.iter().map(|(name, size)| ((*name).to_string(), *size)).collect();
        for (place, (name, _)) in axes.iter().enumerate() {
            if axes[..place].iter().any(|(other, _)| other == name) {
                return Err(MeshError::SameName { axis: name.clone() });
            }
        }
        let cells = axes.iter().try_fold(1usize, |cells, (_, size)| cells.checked_mul(*size)).unwrap_or(usize::MAX);
        if cells != ranks.len() || cells == 0 {
            return Err(MeshError::Size { axes: shown(&axes), cells, ranks: ranks.len() });
        }
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(MeshError::Twice { rank: pair[0] });
        }
        Ok(Mesh { axes, ranks })
    }

    /// The grid of `axes` over ranks 0, 1, 2, ….
    ///
    /// # Errors
    /// As [`Mesh::new`].
    pub fn of_sizes(axes: &[(&str, usize)]) -> Result<Mesh, MeshError> {
        let cells = axes.iter().try_fold(1usize, |cells, (_, size)| cells.checked_mul(*size));
        match cells.filter(|cells| *cells <= MOST_RANKS) {
            Some(cells) => Mesh::new(axes, (0..cells).collect()),
            None => Mesh::new(axes, Vec::new()),
        }
    }

    /// Axes: name and size, outermost first.
    pub fn axes(&self) -> &[(String, usize)] {
        &self.axes
    }

    /// Ranks in row-major order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// The position of the axis called `name`.
    ///
    /// # Errors
    /// [`MeshError::NoAxis`].
    pub fn axis(&self, name: &str) -> Result<usize, MeshError> {
        let place = self.axes.iter().position(|(axis, _)| axis == name);
        place.ok_or_else(|| MeshError::NoAxis { axis: name.to_string(), axes: shown(&self.axes) })
    }

    /// How many ranks lie along each axis.
    pub fn sizes(&self) -> Vec<usize> {
        self.axes.iter().map(|(_, size)| *size).collect()
    }

    /// Where `rank` is on each axis.
    ///
    /// # Errors
    /// [`MeshError::NoRank`].
    pub fn coordinates(&self, rank: usize) -> Result<Vec<usize>, MeshError> {
        let place = self.ranks.iter().position(|candidate| *candidate == rank);
        let mut place = place.ok_or_else(|| MeshError::NoRank { rank, mesh: self.to_string() })?;
        let mut coordinates = vec![0; self.axes.len()];
        for (coordinate, (_, size)) in coordinates.iter_mut().zip(&self.axes).rev() {
            *coordinate = place % size;
            place /= size;
        }
        Ok(coordinates)
    }

    /// The rank at `coordinates`, if there is one.
    pub fn rank_at(&self, coordinates: &[usize]) -> Option<usize> {
        if coordinates.len() != self.axes.len() {
            return None;
        }
        let mut place = 0;
        for (coordinate, (_, size)) in coordinates.iter().zip(&self.axes) {
            if coordinate >= size {
                return None;
            }
            place = place * size + coordinate;
        }
        self.ranks.get(place).copied()
    }

    /// The ranks at this coordinate of an axis, in row-major order; none where there is no such axis or coordinate.
    pub fn slice(&self, axis: usize, coordinate: usize) -> Vec<usize> {
        let here = |rank: &usize| {
            self.coordinates(*rank).ok().and_then(|coordinates| coordinates.get(axis).copied()) == Some(coordinate)
        };
        self.ranks.iter().copied().filter(here).collect()
    }

    /// The ranks that hold `layer` of `layers`: all those at its place on the axis `pp`. See
    /// [`layer_place`] for the deal.
    ///
    /// # Errors
    /// [`MeshError::NoAxis`] where there is no axis `pp`; [`MeshError::Layers`] where the layers cannot be dealt.
    pub fn ranks_of_layer(
        &self,
        layer: u32,
        layers: u32,
        schedule: &str,
        chunks: Option<u32>,
    ) -> Result<Vec<usize>, MeshError> {
        let axis = self.axis("pp")?;
        let ranks = u32::try_from(self.axes[axis].1).unwrap_or(u32::MAX);
        let place = layer_place(layer, layers, ranks, schedule, chunks)?;
        Ok(self.slice(axis, place.rank as usize))
    }

    /// The ranks that differ from `rank` on no axis but this one, in the order of that axis, as `rank` holds
    /// them.
    ///
    /// # Errors
    /// [`MeshError`] where `rank` or the axis is not in the mesh.
    pub fn group(&self, axis: usize, rank: usize) -> Result<Group, MeshError> {
        let mut coordinates = self.coordinates(rank)?;
        let Some((_, size)) = self.axes.get(axis) else {
            return Err(MeshError::NoAxis { axis: format!("number {axis}"), axes: shown(&self.axes) });
        };
        let mut ranks = Vec::with_capacity(*size);
        for coordinate in 0..*size {
            coordinates[axis] = coordinate;
            ranks.extend(self.rank_at(&coordinates));
        }
        Ok(Group::new(ranks, rank)?)
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of ranks {:?}", shown(&self.axes), self.ranks)
    }
}

/// Most ranks of a mesh that is given by sizes alone.
const MOST_RANKS: usize = 1 << 20;

fn shown(axes: &[(String, usize)]) -> String {
    let axes: Vec<String> = axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
    format!("({})", axes.join(", "))
}

/// Whether two reductions give the same in either order, up to rounding.
fn commute(one: Reduction, other: Reduction) -> bool {
    (one == Reduction::Max) == (other == Reduction::Max)
}
