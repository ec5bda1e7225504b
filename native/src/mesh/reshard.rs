//! From any placements to any others, as a short list of moves along one axis each.
//!
//! An axis *moves* where its placement changes, or where it must make way: it cuts a dimension whose cut by an
//! axis outside of it changes, or it waits for a reduction that may not be exchanged with one outside of it. Moving
//! axes are first undone from the inside out, and then placed from the outside in. Where no axis outside is in the
//! way, an axis goes from old to new at once: partial to pieces by a reduce-scatter, pieces of one dimension to
//! pieces of another by an all-to-all.

use std::fmt;

use super::commute;
use super::placement::{self, Placement, pieces};
use super::tensor::{DistError, DistTensor, Tensor};
use crate::backend::cpu::element::Element;
use crate::transport::Transport;
use crate::transport::collectives::{Collectives, Reduction};

/// One move along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The axis, by its position.
    pub axis: usize,
    /// What its ranks do.
    pub how: How,
}

/// What the ranks of an axis do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Partial to copies.
    AllReduce(Reduction),
    /// Partial to pieces of a dimension.
    ReduceScatter(Reduction, usize),
    /// Pieces of a dimension to copies.
    AllGather(usize),
    /// Pieces of one dimension to pieces of another.
    AllToAll(usize, usize),
    /// Copies to pieces of a dimension: nothing is sent.
    Slice(usize),
    /// Copies to values whose reduction they are: nothing is sent.
    Spread(Reduction),
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.how {
            How::AllReduce(reduction) => write!(f, "all-reduce ({reduction})")?,
            How::ReduceScatter(reduction, to) => write!(f, "reduce-scatter ({reduction}) to dimension {to}")?,
            How::AllGather(from) => write!(f, "all-gather of dimension {from}")?,
            How::AllToAll(from, to) => write!(f, "all-to-all from dimension {from} to {to}")?,
            How::Slice(to) => write!(f, "slice of dimension {to}")?,
            How::Spread(reduction) => write!(f, "spread as partial ({reduction})")?,
        }
        write!(f, " along axis {}", self.axis)
    }
}

/// The moves from one row of placements to another of the same length.
pub fn plan(from: &[Placement], to: &[Placement]) -> Vec<Move> {
    let moves = moving(from, to);
    let mut current = from.to_vec();
    let mut plan = Vec::new();
    for axis in (0..from.len()).rev().filter(|axis| moves[*axis]) {
        let outside = |dimension: usize| {
            (0..axis).any(|outer| moves[outer] && [from[outer], to[outer]].contains(&Placement::Shard(dimension)))
        };
        let how = match (from[axis], to[axis]) {
            (Placement::Replicate, _) => continue,
            (Placement::Partial(reduction), Placement::Shard(dimension)) if !outside(dimension) => {
                current[axis] = to[axis];
                How::ReduceScatter(reduction, dimension)
            }
            (Placement::Shard(old), Placement::Shard(new)) if old != new && !outside(old) && !outside(new) => {
                current[axis] = to[axis];
                How::AllToAll(old, new)
            }
            (Placement::Partial(reduction), _) => {
                current[axis] = Placement::Replicate;
                How::AllReduce(reduction)
            }
            (Placement::Shard(dimension), _) => {
                current[axis] = Placement::Replicate;
                How::AllGather(dimension)
            }
        };
        plan.push(Move { axis, how });
    }
    for axis in 0..from.len() {
        match to[axis] {
            placed if placed == current[axis] => {}
            Placement::Replicate => {}
            Placement::Shard(dimension) => plan.push(Move { axis, how: How::Slice(dimension) }),
            Placement::Partial(reduction) => plan.push(Move { axis, how: How::Spread(reduction) }),
        }
    }
    plan
}

/// Which axes move.
fn moving(from: &[Placement], to: &[Placement]) -> Vec<bool> {
    let mut moves = vec![false; from.len()];
    for axis in 0..from.len() {
        // Only axes outside push one to move, so one pass from the outside in finds all, but for reductions:
        // there it is the inner one that must go first.
        moves[axis] = from[axis] != to[axis]
            || (0..axis).filter(|outer| moves[*outer]).any(|outer| match (from[axis], from[outer]) {
                (Placement::Shard(_), before) => [before, to[outer]].contains(&from[axis]),
                (Placement::Partial(inner), Placement::Partial(before)) => !commute(inner, before),
                _ => false,
            });
    }
    moves
}

/// `tensor` under `placements`.
///
/// # Errors
/// [`DistError`] where they do not fit, or a collective fails.
pub fn reshard<T: Element, X: Transport + ?Sized>(
    transport: &mut X,
    tensor: DistTensor<T>,
    placements: &[Placement],
) -> Result<DistTensor<T>, DistError> {
    placement::check(tensor.mesh(), placements, tensor.shape().len())?;
    let mut tensor = tensor;
    for step in plan(tensor.placements(), placements) {
        tensor = carry_out(transport, tensor, step)?;
    }
    Ok(tensor)
}

fn carry_out<T: Element, X: Transport + ?Sized>(
    transport: &mut X,
    tensor: DistTensor<T>,
    step: Move,
) -> Result<DistTensor<T>, DistError> {
    let rank = transport.rank();
    let mut group = tensor.mesh().group(step.axis, rank)?;
    let local = tensor.local();
    let (placement, local) = match step.how {
        How::AllReduce(reduction) => {
            let mut local = local.clone();
            transport.all_reduce(&mut group, local.values_mut(), reduction)?;
            (Placement::Replicate, local)
        }
        How::ReduceScatter(reduction, to) => {
            let parts: Vec<Tensor<T>> =
                pieces(local.shape()[to], group.size()).iter().map(|range| local.slice(to, range)).collect();
            let counts: Vec<usize> = parts.iter().map(|part| part.values().len()).collect();
            let shape = parts[group.member()].shape().to_vec();
            let values: Vec<T> = parts.iter().flat_map(|part| part.values().iter().copied()).collect();
            let piece = transport.reduce_scatter(&mut group, &values, &counts, reduction)?;
            (Placement::Shard(to), Tensor::new(shape, piece)?)
        }
        How::AllGather(from) => {
            let shapes = shapes_along(&tensor, rank, step.axis, from)?;
            let counts: Vec<usize> = shapes.iter().map(|shape| shape.iter().product()).collect();
            let all = transport.all_gather(&mut group, local.values(), &counts)?;
            let mut rest = &all[..];
            let mut parts = Vec::with_capacity(shapes.len());
            for (shape, count) in shapes.into_iter().zip(counts) {
                let (part, after) = rest.split_at(count);
                parts.push(Tensor::new(shape, part.to_vec())?);
                rest = after;
            }
            (Placement::Replicate, Tensor::joined(from, &parts))
        }
        How::AllToAll(from, to) => {
            let ranges = pieces(local.shape()[to], group.size());
            let mine = ranges[group.member()].len();
            let sends = ranges.iter().map(|range| local.slice(to, range).values().to_vec()).collect();
            let mut shapes = shapes_along(&tensor, rank, step.axis, from)?;
            shapes.iter_mut().for_each(|shape| shape[to] = mine);
            let counts: Vec<usize> = shapes.iter().map(|shape| shape.iter().product()).collect();
            let received = transport.all_to_all(&mut group, sends, &counts)?;
            let parts: Result<Vec<Tensor<T>>, DistError> =
                shapes.into_iter().zip(received).map(|(shape, values)| Tensor::new(shape, values)).collect();
            (Placement::Shard(to), Tensor::joined(from, &parts?))
        }
        How::Slice(_) | How::Spread(_) => return locally(tensor, rank, step),
    };
    Ok(tensor.replaced(step.axis, placement, local))
}

/// The shapes of the pieces of `dimension` that the ranks along `axis` hold.
fn shapes_along<T: Element>(
    tensor: &DistTensor<T>,
    rank: usize,
    axis: usize,
    dimension: usize,
) -> Result<Vec<Vec<usize>>, DistError> {
    // Without this axis' cut, its ranks would hold this much together.
    let mut without = tensor.placements().to_vec();
    without[axis] = Placement::Replicate;
    let mesh = tensor.mesh();
    let (sizes, shape) = (mesh.sizes(), tensor.shape());
    // Axes inside of this one do not cut the dimension: they have moved out of the way. So the lengths together
    // are known from the outer ones, and those are the same for all ranks along the axis.
    let together = placement::local_box(shape, &sizes, &without, &mesh.coordinates(rank)?);
    let shape_of = |range: std::ops::Range<usize>| {
        let mut shape = tensor.local().shape().to_vec();
        shape[dimension] = range.len();
        shape
    };
    Ok(pieces(together[dimension].len(), sizes[axis]).into_iter().map(shape_of).collect())
}

/// A move in which nothing is sent.
pub(super) fn locally<T: Element>(
    tensor: DistTensor<T>,
    rank: usize,
    step: Move,
) -> Result<DistTensor<T>, DistError> {
    let group = tensor.mesh().group(step.axis, rank)?;
    let (local, first) = (tensor.local(), group.member() == 0);
    let (placement, local) = match step.how {
        How::Slice(to) => {
            let range = placement::piece(local.shape()[to], group.size(), group.member());
            (Placement::Shard(to), local.slice(to, &range))
        }
        // −0 is what a sum leaves as it is, to the sign of a zero.
        How::Spread(Reduction::Sum) if !first => {
            (Placement::Partial(Reduction::Sum), Tensor::filled(local.shape().to_vec(), -T::ZERO))
        }
        How::Spread(reduction) => (Placement::Partial(reduction), local.clone()),
        How::AllReduce(_) | How::ReduceScatter(..) | How::AllGather(_) | How::AllToAll(..) => return Ok(tensor),
    };
    Ok(tensor.replaced(step.axis, placement, local))
}
