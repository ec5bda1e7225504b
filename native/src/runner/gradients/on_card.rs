//! Gradients in the memory of a card, piece by piece, without a copy to the host.

use std::ops::Range;

use pipeplan_core::model::Dtype;

use crate::backend::{Backend, BackendError, Part};
use crate::runner::report::Cause;
use crate::transport::{OnCard, Transport};

/// Numbers of a gradient that ranks on one device pass each other at a time: two such copies fit into the memory that it sets
/// aside for what others give back. Tests have small gradients, and pass them in several pieces all the same.
const PIECE: usize = if cfg!(test) { 1000 } else { 2 << 20 };

/// The numbers of a gradient that lies on a device.
pub(super) fn here_on_card(backend: &mut dyn Backend, stage: u16, name: &str) -> Option<usize> {
    if backend.most_on_card() == 0 {
        return None;
    }
    backend.on_card(stage, name, Part::Gradient).map(|(memory, _)| (memory.bytes() / 4) as usize)
}

/// The ranges of `elements` numbers, piece by piece.
pub(super) fn pieces(elements: usize) -> impl Iterator<Item = Range<usize>> {
    (0..elements).step_by(PIECE).map(move |start| start..(start + PIECE).min(elements))
}

/// A copy of a piece of a gradient on a device.
pub(super) fn piece_of(
    backend: &mut dyn Backend,
    stage: u16,
    name: &str,
    piece: Range<usize>,
) -> Result<OnCard, Cause> {
    let copy = backend.copied_on_card(stage, name, Part::Gradient, piece)?;
    let missing = || BackendError::NoSuchWeight { stage: stage.into(), name: name.to_string() };
    Ok(copy.ok_or_else(missing)?)
}

/// Adds what one of this rank's stages has of a gradient to what another one has.
pub(super) fn add_on_card(
    backend: &mut dyn Backend,
    elements: usize,
    [to, from]: [u16; 2],
    name: &str,
) -> Result<(), Cause> {
    for piece in pieces(elements) {
        let both = [piece_of(backend, to, name, piece.clone())?, piece_of(backend, from, name, piece.clone())?];
        backend.sum_on_card(to, name, Part::Gradient, piece.start, &both)?;
    }
    Ok(())
}

/// Gives one of this rank's stages what another one has of a gradient.
pub(super) fn copy_on_card(
    backend: &mut dyn Backend,
    elements: usize,
    [from, to]: [u16; 2],
    name: &str,
) -> Result<(), Cause> {
    for piece in pieces(elements) {
        let copy = piece_of(backend, from, name, piece.clone())?;
        backend.sum_on_card(to, name, Part::Gradient, piece.start, &[copy])?;
    }
    Ok(())
}

/// The memory of a device that holds `part`, and its format, where the transport sums or gathers such memory itself.
pub(super) fn on_card(
    backend: &mut dyn Backend,
    transport: &dyn Transport,
    stage: u16,
    name: &str,
    part: Part,
) -> Option<(OnCard, Dtype)> {
    if transport.has_own_on_card() { backend.on_card(stage, name, part) } else { None }
}
