//! The content of a link, as [postcard](https://postcard.jamesmunns.com/wire-format) writes it.
//!
//! A `v1` link is a [`WireSpec`]. A `v2` link is the same, followed by a list of [`Addition`]: what `v1` cannot express.
//! The list is written only where it is not empty. So the links of all other specs stay as short as they were, and older
//! pages open them. A new field of a spec is a new variant of [`Addition`], at its end.

mod additions;
mod fixed;
mod model;
mod statement;

use alloc::vec::Vec;

use self::additions::{Addition, additions_of, apply};
use self::fixed::{WireSpec, WireWork};
use self::model::{model_from_wire, model_to_wire};
use self::statement::{statement_from_wire, statement_to_wire};
use crate::program::Transport;
use crate::program::lower::Lowering;
use crate::spec::{Messages, Spec, Work};

/// How transfers go, where a link has no such addition: the default when `v1` was new.
const MESSAGES: Messages = Messages { lowering: Lowering::Grouped, transport: Transport::Grouped };

/// The content of a link, and whether it needs a `v2` link.
pub fn to_bytes(spec: &Spec) -> (Vec<u8>, bool) {
    let wire = WireSpec {
        name: spec.name.clone(),
        schedule: spec.schedule.clone(),
        work: match &spec.work {
            Work::Model(work) => WireWork::Model(model_to_wire(work)),
            Work::Typed(statement) => WireWork::Typed(statement_to_wire(statement)),
        },
    };
    // Writing numbers and texts into memory cannot fail. The reader refuses an empty link.
    let mut bytes = postcard::to_allocvec(&wire).unwrap_or_default();
    let more = additions_of(spec);
    if more.is_empty() {
        return (bytes, false);
    }
    bytes.extend(postcard::to_allocvec(&more).unwrap_or_default());
    (bytes, true)
}

/// The spec, not yet checked. None for bytes that are not exactly one spec; `has_more` for a `v2` link.
pub fn from_bytes(bytes: &[u8], has_more: bool) -> Option<Spec> {
    let (wire, mut rest): (WireSpec, _) = postcard::take_from_bytes(bytes).ok()?;
    let mut more: Vec<Addition> = Vec::new();
    if has_more {
        (more, rest) = postcard::take_from_bytes(rest).ok()?;
    }
    if !rest.is_empty() {
        return None;
    }
    let mut spec = spec_from_wire(wire);
    more.into_iter().try_for_each(|more| apply(&mut spec, more))?;
    Some(spec)
}

fn spec_from_wire(wire: WireSpec) -> Spec {
    Spec {
        name: wire.name,
        schedule: wire.schedule,
        work: match wire.work {
            WireWork::Model(model) => Work::Model(model_from_wire(model)),
            WireWork::Typed(statement) => Work::Typed(statement_from_wire(statement)),
        },
        messages: MESSAGES,
        jitter_permille: 0,
        target: None,
    }
}
