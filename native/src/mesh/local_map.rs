//! A function of plain tensors, applied to the local parts of distributed ones.
//!
//! The function sees only this rank's parts and may do with them what no rule for distributed tensors covers: a
//! loss over a mask, a reshape, an auxiliary loss of experts. What it gives back is declared by `out_placements`
//! and becomes distributed again: a mean per rank, say, as `Partial(sum)`.
//!
//! Semantics: PaddlePaddle's `local_map`, with three places defined that it leaves open. A tensor output whose
//! placement is `None` stays plain. Distributed arguments on another mesh are refused, where it documents that they
//! must agree and does not look. Where no argument is distributed, outputs beyond `out_placements` stay plain.
//! Arguments by keyword, which pass through untouched there, are what the closure captures here.

use std::sync::Arc;

use super::Mesh;
use super::placement::{Placement, shown};
use super::tensor::{DistError, DistTensor, Tensor};
use super::tree::{Item, Tree, Value};
use crate::backend::cpu::element::Element;
use crate::transport::Transport;

/// For each leaf its placements, one an axis; `None` where there are none to give.
pub type Placements = Option<Vec<Placement>>;

/// Why a mapped function did not run, or what it gave back cannot be wrapped.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LocalMapError {
    /// `in_placements` is not one entry a leaf of the arguments.
    #[error(
        "in_placements has {in_placements} entries, but the arguments have {arguments} leaves: give one entry per \
         leaf, and `None` for a leaf that is not a distributed tensor"
    )]
    InputCount {
        /// Entries given.
        in_placements: usize,
        /// Leaves of the arguments.
        arguments: usize,
    },
    /// An argument lies otherwise than declared, and resharding was not asked for.
    #[error(
        "argument {argument} has placement {found}, but in_placements has {asked}: reshard it first, or set \
         reshard_inputs"
    )]
    InputPlacement {
        /// The leaf, from 0.
        argument: usize,
        /// How it lies.
        found: String,
        /// How it should lie.
        asked: String,
    },
    /// Two meshes.
    #[error("argument {argument} is on the mesh {found}, but the call is on the mesh {expected}: use one mesh")]
    InputMesh {
        /// The leaf, from 0.
        argument: usize,
        /// Its mesh.
        found: String,
        /// The mesh of the call.
        expected: String,
    },
    /// The function gave back another number of leaves than declared.
    #[error(
        "the function returns {outputs} leaves, but out_placements has {out_placements} entries: give one per leaf"
    )]
    OutputCount {
        /// Leaves given back.
        outputs: usize,
        /// Entries declared.
        out_placements: usize,
    },
    /// The function gave back a distributed tensor.
    #[error(
        "output {output} is already a distributed tensor with placement {found}: the function must return plain \
         tensors; out_placements has {asked}"
    )]
    OutputDistributed {
        /// The leaf, from 0.
        output: usize,
        /// How it lies.
        found: String,
        /// What is declared.
        asked: String,
    },
    /// Placements for what is no tensor.
    #[error("output {output} is {kind}, but out_placements has {asked}: only a tensor has a placement; write `None`")]
    OutputNoTensor {
        /// The leaf, from 0.
        output: usize,
        /// What it is.
        kind: &'static str,
        /// What is declared.
        asked: String,
    },
    /// Outputs are to be placed, and no mesh is known.
    #[error(
        "output {output} has placement {asked}, but no argument is distributed and no mesh is given: give \
         process_mesh"
    )]
    NoMesh {
        /// The leaf, from 0.
        output: usize,
        /// What is declared.
        asked: String,
    },
    /// Wrapping, unwrapping or resharding failed.
    #[error(transparent)]
    Tensor(#[from] DistError),
}

fn or_none(placements: &Placements) -> String {
    placements.as_deref().map_or_else(|| "None".to_string(), shown)
}

/// `function` for distributed arguments. The result takes a transport and the arguments, and on each rank:
/// 1. takes the mesh of the first distributed argument, where `process_mesh` is `None`;
/// 2. where `in_placements` are given, compares each distributed argument with its entry (`None` takes it as it
///    lies), and where they differ reshards it if `reshard_inputs`, else refuses;
/// 3. calls `function` with the local parts, everything else as it is;
/// 4. wraps each tensor that comes back with the mesh and its entry of `out_placements`; `None` leaves it plain.
///
/// # Errors
/// The result returns [`LocalMapError`].
pub fn local_map<T, X, F>(
    mut function: F,
    out_placements: Vec<Placements>,
    in_placements: Option<Vec<Placements>>,
    process_mesh: Option<Arc<Mesh>>,
    reshard_inputs: bool,
) -> impl FnMut(&mut X, Vec<Item<T>>) -> Result<Item<T>, LocalMapError>
where
    T: Element,
    X: Transport + ?Sized,
    F: FnMut(&mut X, Vec<Item<T>>) -> Item<T>,
{
    move |transport, arguments| {
        let arguments = Tree::Node(arguments);
        let leaves = arguments.leaves();
        if let Some(entries) = &in_placements
            && entries.len() != leaves.len()
        {
            return Err(LocalMapError::InputCount { in_placements: entries.len(), arguments: leaves.len() });
        }
        let first = leaves.into_iter().find_map(|leaf| match leaf {
            Value::Distributed(tensor) => Some(Arc::clone(tensor.mesh())),
            _ => None,
        });
        let any_distributed = first.is_some();
        let mesh = process_mesh.clone().or(first);

        let mut argument = 0;
        let locals = arguments.try_map(&mut |leaf| {
            let place = argument;
            argument += 1;
            let Value::Distributed(tensor) = leaf else { return Ok(leaf) };
            let asked = in_placements.as_ref().and_then(|entries| entries.get(place)).and_then(Option::as_deref);
            let on = mesh.as_deref().unwrap_or(tensor.mesh());
            if **tensor.mesh() != *on {
                let (found, expected) = (tensor.mesh().to_string(), on.to_string());
                return Err(LocalMapError::InputMesh { argument: place, found, expected });
            }
            local_part(transport, place, tensor, asked, reshard_inputs).map(Value::Plain)
        })?;
        let outputs = match locals {
            Tree::Node(locals) => function(transport, locals),
            Tree::Leaf(leaf) => Tree::Leaf(leaf),
        };

        let found = outputs.leaves().len();
        if any_distributed && found != out_placements.len() {
            return Err(LocalMapError::OutputCount { outputs: found, out_placements: out_placements.len() });
        }
        let mut output = 0;
        outputs.try_map(&mut |leaf| {
            let place = output;
            output += 1;
            let entry = out_placements.get(place).unwrap_or(&None);
            wrapped(transport, place, leaf, entry, mesh.as_ref(), any_distributed)
        })
    }
}

/// The local part of an argument, as its entry asks.
fn local_part<T: Element, X: Transport + ?Sized>(
    transport: &mut X,
    argument: usize,
    tensor: DistTensor<T>,
    asked: Option<&[Placement]>,
    reshard_inputs: bool,
) -> Result<Tensor<T>, LocalMapError> {
    match asked {
        Some(asked) if asked != tensor.placements() && !reshard_inputs => {
            let (found, asked) = (shown(tensor.placements()), shown(asked));
            Err(LocalMapError::InputPlacement { argument, found, asked })
        }
        Some(asked) => Ok(tensor.reshard(transport, asked)?.into_local()),
        None => Ok(tensor.into_local()),
    }
}

/// An output as its entry declares it.
fn wrapped<T: Element, X: Transport + ?Sized>(
    transport: &mut X,
    output: usize,
    leaf: Value<T>,
    entry: &Placements,
    mesh: Option<&Arc<Mesh>>,
    any_distributed: bool,
) -> Result<Value<T>, LocalMapError> {
    match (leaf, entry) {
        // Where no argument was distributed, whatever comes back without an entry is the caller's own affair.
        (Value::Distributed(tensor), entry) if any_distributed || entry.is_some() => {
            let (found, asked) = (shown(tensor.placements()), or_none(entry));
            Err(LocalMapError::OutputDistributed { output, found, asked })
        }
        (leaf, None) => Ok(leaf),
        (Value::Plain(tensor), Some(placements)) => match mesh {
            Some(mesh) => Ok(Value::Distributed(DistTensor::from_local(transport, mesh, placements, tensor)?)),
            None => Err(LocalMapError::NoMesh { output, asked: shown(placements) }),
        },
        (other, Some(_)) => Err(LocalMapError::OutputNoTensor { output, kind: other.kind(), asked: or_none(entry) }),
    }
}
