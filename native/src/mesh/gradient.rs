//! Gradients through mapped functions.
//!
//! The backward of [`local_map`] is a map itself, the other way round: it takes the arguments again and the gradients of the
//! outputs, hands their local parts to the function's own backward, and places what comes back. Where a gradient lies
//! follows, axis by axis, from where its tensor lies:
//!
//! | tensor | its gradient |
//! |---|---|
//! | `Shard(d)` | `Shard(d)` |
//! | an output that is `Replicate` | `Replicate` |
//! | an output that is `Partial(sum)` | `Replicate`: every rank's part counts in full; of `Partial(avg)`, its share |
//! | an output that is `Partial(max)` | none: which rank had the greatest value is no longer known |
//! | an argument that is `Replicate` | `Partial(sum)` where some output is not replicated, since each rank then used the whole for a part of its own; else `Replicate` |
//! | an argument that is `Partial` | `Replicate`; refused where some output is not replicated |

use std::sync::Arc;

use super::local_map::{LocalMapError, Placements, local_map};
use super::placement::{Placement, shown};
use super::tree::{Item, Tree, Value};
use super::{Mesh, Tensor};
use crate::backend::cpu::element::Element;
use crate::transport::Transport;
use crate::transport::collectives::Reduction;

/// Placements through which no gradient goes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoGradient {
    /// The reduction forgets whose value it took, or an argument was not yet reduced.
    #[error("{what} {index} with placement {placed} has no gradient: reshard it to Replicate or Shard first")]
    Through {
        /// `argument` or `output`.
        what: &'static str,
        /// Which, from 0.
        index: usize,
        /// How it lies.
        placed: String,
    },
}

/// Where the gradients of outputs and of arguments lie: the first for each output, then for each argument.
type GradientPlacements = (Vec<Placements>, Vec<Placements>);

fn gradient_placements(outs: &[Placements], ins: &[Placements]) -> Result<GradientPlacements, NoGradient> {
    let refused =
        |what, index, placements: &[Placement]| NoGradient::Through { what, index, placed: shown(placements) };
    let axes = outs.iter().chain(ins).flatten().map(Vec::len).max().unwrap_or(0);
    // By axis: whether ranks along it make different things.
    let apart: Vec<bool> = (0..axes)
        .map(|axis| outs.iter().flatten().any(|output| output.get(axis) != Some(&Placement::Replicate)))
        .collect();
    let of_output = |(index, placements): (usize, &Placements)| {
        let Some(placements) = placements else { return Ok(None) };
        let gradient = placements.iter().map(|placement| match placement {
            Placement::Shard(_) | Placement::Replicate => Ok(*placement),
            Placement::Partial(Reduction::Sum | Reduction::Avg) => Ok(Placement::Replicate),
            Placement::Partial(Reduction::Max) => Err(refused("output", index, placements)),
        });
        gradient.collect::<Result<Vec<_>, _>>().map(Some)
    };
    let of_argument = |(index, placements): (usize, &Placements)| {
        let Some(placements) = placements else { return Ok(None) };
        let gradient = placements.iter().zip(&apart).map(|(placement, apart)| match placement {
            Placement::Shard(_) => Ok(*placement),
            Placement::Replicate if *apart => Ok(Placement::Partial(Reduction::Sum)),
            Placement::Replicate => Ok(Placement::Replicate),
            Placement::Partial(Reduction::Sum) if !*apart => Ok(Placement::Replicate),
            Placement::Partial(_) => Err(refused("argument", index, placements)),
        });
        gradient.collect::<Result<Vec<_>, _>>().map(Some)
    };
    let outs = outs.iter().enumerate().map(of_output).collect::<Result<_, _>>()?;
    Ok((outs, ins.iter().enumerate().map(of_argument).collect::<Result<_, _>>()?))
}

/// The backward of `local_map(function, out_placements, in_placements, mesh, …)`: takes the arguments, one leaf each, and
/// then the gradient of each output, and gives back the gradients of the arguments. `backward` gets their local parts in
/// that order and gives back one gradient for each argument, `None` for those without a placement. Arguments and gradients
/// that lie otherwise are resharded.
///
/// # Errors
/// [`NoGradient`]; the result returns [`LocalMapError`].
#[allow(
    clippy::type_complexity,
    reason = "what comes back is called, as what `local_map` gives, and cannot be named"
)]
pub fn local_map_backward<T, X, F>(
    mut backward: F,
    out_placements: &[Placements],
    in_placements: &[Placements],
    mesh: &Arc<Mesh>,
) -> Result<impl FnMut(&mut X, Vec<Item<T>>) -> Result<Item<T>, LocalMapError>, NoGradient>
where
    T: Element,
    X: Transport + ?Sized,
    F: FnMut(&mut X, Vec<Item<T>>) -> Item<T>,
{
    let (of_outputs, of_arguments) = gradient_placements(out_placements, in_placements)?;
    let arguments = in_placements.len();
    // The gradient of an average reaches each part by its share.
    let share = |placements: &Placements| {
        let axes = placements.iter().flatten().zip(mesh.sizes());
        axes.fold(1.0, |share, (placement, size)| match placement {
            Placement::Partial(Reduction::Avg) => share / size as f64,
            _ => share,
        })
    };
    let shares: Vec<f64> = out_placements.iter().map(share).collect();
    let scaled = move |transport: &mut X, leaves: Vec<Item<T>>| {
        let scale = |(index, leaf): (usize, Item<T>)| match (leaf, index.checked_sub(arguments)) {
            (Tree::Leaf(Value::Plain(gradient)), Some(output)) => {
                Tree::Leaf(Value::Plain(times(gradient, shares.get(output).copied().unwrap_or(1.0))))
            }
            (leaf, _) => leaf,
        };
        backward(transport, leaves.into_iter().enumerate().map(scale).collect())
    };
    let ins = in_placements.iter().cloned().chain(of_outputs).collect();
    Ok(local_map(scaled, of_arguments, Some(ins), Some(Arc::clone(mesh)), true))
}

fn times<T: Element>(mut tensor: Tensor<T>, factor: f64) -> Tensor<T> {
    if factor != 1.0 {
        tensor.values_mut().iter_mut().for_each(|value| *value *= T::of(factor));
    }
    tensor
}
