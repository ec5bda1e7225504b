//! Tensors: one rank's own, and those that the ranks of a mesh hold together.

use std::ops::Range;
use std::sync::Arc;

use super::placement::{self, Placement, local_box};
use super::{Mesh, MeshError, reshard};
use crate::backend::cpu::element::Element;
use crate::transport::Transport;
use crate::transport::collectives::{CollectiveError, Collectives, even_counts};

/// A dense tensor of one rank, in row-major order. An empty shape is a scalar.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<T> {
    shape: Vec<usize>,
    values: Vec<T>,
}

/// Why a tensor is none, or cannot be spread as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DistError {
    /// Shape and values differ in number.
    #[error("a tensor of shape {shape:?} has {needed} values, but {found} are given")]
    Values {
        /// The shape.
        shape: Vec<usize>,
        /// Its product.
        needed: usize,
        /// The values given.
        found: usize,
    },
    /// Not one placement for each axis.
    #[error("the placements {placements} do not match the {axes} axes of the mesh: give one per axis")]
    PlacementCount {
        /// The placements.
        placements: String,
        /// Axes of the mesh.
        axes: usize,
    },
    /// A dimension that the tensor does not have.
    #[error(
        "{placement} names a dimension that a tensor with {dimensions} dimensions does not have; they count from 0"
    )]
    NoDimension {
        /// The placement.
        placement: Placement,
        /// Dimensions of the tensor.
        dimensions: usize,
    },
    /// The local tensor is not the piece that its place on the mesh calls for.
    #[error(
        "rank {rank} has a local tensor of shape {found:?}; {placements} of a tensor of shape {shape:?} needs \
         {expected:?}"
    )]
    LocalShape {
        /// The rank.
        rank: usize,
        /// The shape it has.
        found: Vec<usize>,
        /// The shape it should have.
        expected: Vec<usize>,
        /// The placements.
        placements: String,
        /// The shape of the whole.
        shape: Vec<usize>,
    },
    /// The pieces along an axis are not as equal as can be.
    #[error(
        "the shards along axis {axis} have the lengths {found:?} in dimension {dimension}; they must be as equal \
         as possible, longer ones first: {expected:?}"
    )]
    Pieces {
        /// The axis.
        axis: String,
        /// The dimension.
        dimension: usize,
        /// The lengths by coordinate.
        found: Vec<usize>,
        /// What they should be.
        expected: Vec<usize>,
    },
    /// A rank or axis is not in the mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

impl<T: Element> Tensor<T> {
    /// `values` in `shape`.
    ///
    /// # Errors
    /// [`DistError::Values`] where their numbers differ.
    pub fn new(shape: Vec<usize>, values: Vec<T>) -> Result<Tensor<T>, DistError> {
        let needed = shape.iter().try_fold(1usize, |product, length| product.checked_mul(*length));
        if needed != Some(values.len()) {
            let needed = needed.unwrap_or(usize::MAX);
            return Err(DistError::Values { shape, needed, found: values.len() });
        }
        Ok(Tensor { shape, values })
    }

    /// One number.
    pub fn scalar(value: T) -> Tensor<T> {
        Tensor { shape: Vec::new(), values: vec![value] }
    }

    /// Numbers in one dimension.
    pub fn vector(values: Vec<T>) -> Tensor<T> {
        Tensor { shape: vec![values.len()], values }
    }

    /// The same number everywhere.
    pub(super) fn filled(shape: Vec<usize>, value: T) -> Tensor<T> {
        let count = shape.iter().product();
        Tensor { shape, values: vec![value; count] }
    }

    /// The lengths of its dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its values in row-major order.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Its values, to change.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Values before, in, and after one step along `dimension`.
    fn strides(&self, dimension: usize) -> (usize, usize, usize) {
        let outer = self.shape[..dimension].iter().product();
        let inner = self.shape[dimension + 1..].iter().product();
        (outer, self.shape[dimension], inner)
    }

    /// The part of it that lies in `range` of `dimension`, both within the tensor.
    pub(super) fn slice(&self, dimension: usize, range: &Range<usize>) -> Tensor<T> {
        let (outer, length, inner) = self.strides(dimension);
        let mut values = Vec::with_capacity(outer * range.len() * inner);
        for row in 0..outer {
            let start = row * length * inner;
            values.extend_from_slice(&self.values[start + range.start * inner..start + range.end * inner]);
        }
        let mut shape = self.shape.clone();
        shape[dimension] = range.len();
        Tensor { shape, values }
    }

    /// `parts` one after the other along `dimension`; at least one, equal in every other dimension.
    pub(super) fn joined(dimension: usize, parts: &[Tensor<T>]) -> Tensor<T> {
        let mut shape = parts[0].shape.clone();
        shape[dimension] = parts.iter().map(|part| part.shape[dimension]).sum();
        let mut values = Vec::with_capacity(shape.iter().product());
        let (outer, _, inner) = parts[0].strides(dimension);
        for row in 0..outer {
            for part in parts {
                let width = part.shape[dimension] * inner;
                values.extend_from_slice(&part.values[row * width..(row + 1) * width]);
            }
        }
        Tensor { shape, values }
    }
}

/// A tensor that the ranks of a mesh hold together: one rank's view of it.
#[derive(Clone, Debug, PartialEq)]
pub struct DistTensor<T> {
    mesh: Arc<Mesh>,
    placements: Vec<Placement>,
    shape: Vec<usize>,
    local: Tensor<T>,
}

impl<T: Element> DistTensor<T> {
    /// This rank's view of `whole`, which every rank holds alike: nothing is sent. A partial sum keeps the values
    /// on the first rank of the axis.
    ///
    /// # Errors
    /// [`DistError`] where the placements do not fit the mesh or the tensor, or `rank` is not in the mesh.
    pub fn of_whole(
        rank: usize,
        mesh: &Arc<Mesh>,
        placements: &[Placement],
        whole: &Tensor<T>,
    ) -> Result<DistTensor<T>, DistError> {
        placement::check(mesh, placements, whole.shape.len())?;
        let replicated = vec![Placement::Replicate; placements.len()];
        let (mesh, shape, local) = (Arc::clone(mesh), whole.shape.clone(), whole.clone());
        let mut view = DistTensor { mesh, placements: replicated, shape, local };
        // From copies, every move is local.
        for step in reshard::plan(&view.placements, placements) {
            view = reshard::locally(view, rank, step)?;
        }
        Ok(view)
    }

    /// The tensor of `shape` of which this rank holds `local`; nothing is sent.
    ///
    /// # Errors
    /// [`DistError`] where the placements do not fit, or `local` is not the part that they give to `rank`.
    pub fn from_local_of(
        rank: usize,
        mesh: &Arc<Mesh>,
        placements: &[Placement],
        shape: Vec<usize>,
        local: Tensor<T>,
    ) -> Result<DistTensor<T>, DistError> {
        placement::check(mesh, placements, shape.len())?;
        let part = local_box(&shape, &mesh.sizes(), placements, &mesh.coordinates(rank)?);
        let expected: Vec<usize> = part.iter().map(Range::len).collect();
        if expected != local.shape {
            let (found, placements) = (local.shape, placement::shown(placements));
            return Err(DistError::LocalShape { rank, found, expected, placements, shape });
        }
        Ok(DistTensor { mesh: Arc::clone(mesh), placements: placements.to_vec(), shape, local })
    }

    /// The tensor of which each rank holds its `local`: the ranks of every axis that cuts a dimension tell each
    /// other the lengths of their pieces, and the shape of the whole follows.
    ///
    /// # Errors
    /// [`DistError`] where the placements do not fit, the pieces are not as equal as can be, or a collective
    /// fails.
    pub fn from_local<X: Transport + ?Sized>(
        transport: &mut X,
        mesh: &Arc<Mesh>,
        placements: &[Placement],
        local: Tensor<T>,
    ) -> Result<DistTensor<T>, DistError> {
        placement::check(mesh, placements, local.shape.len())?;
        let rank = transport.rank();
        let mut shape = local.shape.clone();
        // Inner axes first: they cut what the outer ones have left.
        for (axis, placement) in placements.iter().enumerate().rev() {
            let mut group = mesh.group(axis, rank)?;
            let Placement::Shard(dimension) = placement else { continue };
            // Whole numbers up to 2^53 are exact as f64.
            let lengths = vec![1; group.size()];
            let found = transport.all_gather(&mut group, &[shape[*dimension] as f64], &lengths)?;
            let found: Vec<usize> = found.into_iter().map(|length| length as usize).collect();
            let whole = found.iter().fold(0usize, |whole, length| whole.saturating_add(*length));
            let expected = even_counts(whole, group.size());
            if found != expected {
                let axis = mesh.axes()[axis].0.clone();
                return Err(DistError::Pieces { axis, dimension: *dimension, found, expected });
            }
            shape[*dimension] = whole;
        }
        DistTensor::from_local_of(rank, mesh, placements, shape, local)
    }

    /// The same tensor under other placements.
    ///
    /// # Errors
    /// [`DistError`] where they do not fit, or a collective fails.
    pub fn reshard<X: Transport + ?Sized>(
        self,
        transport: &mut X,
        placements: &[Placement],
    ) -> Result<DistTensor<T>, DistError> {
        reshard::reshard(transport, self, placements)
    }

    /// The whole tensor, on every rank.
    ///
    /// # Errors
    /// As [`DistTensor::reshard`].
    pub fn whole<X: Transport + ?Sized>(self, transport: &mut X) -> Result<Tensor<T>, DistError> {
        let replicated = vec![Placement::Replicate; self.placements.len()];
        Ok(self.reshard(transport, &replicated)?.local)
    }

    /// The mesh that holds it.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// One placement for each axis.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// The shape of the whole.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// This rank's part.
    pub fn local(&self) -> &Tensor<T> {
        &self.local
    }

    /// This rank's part alone.
    pub fn into_local(self) -> Tensor<T> {
        self.local
    }

    /// With another part under another placement of one axis: for [`reshard`], which keeps them in step.
    pub(super) fn replaced(self, axis: usize, placement: Placement, local: Tensor<T>) -> DistTensor<T> {
        let mut placements = self.placements;
        placements[axis] = placement;
        DistTensor { placements, local, ..self }
    }
}
