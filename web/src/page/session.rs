//! What the page would lose when it is loaded anew: open files, and a plan that is kept. The browser keeps them for
//! this tab, as long as it is open.
//!
//! Of the form, the half that is shown stands in the address; the other one is here, and what else a link has no word for.

use web_sys::Storage;

use super::browser;
use crate::logic::compression;

/// Something that outlives a reload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// The plan file that is open.
    Plan,
    /// The trace file that is open.
    Trace,
    /// The plan file of the plan that is kept.
    Kept,
    /// The file of measured times.
    Profile,
    /// What the address says nothing of: the half of the form that is not shown, and that a global batch is said.
    Unlinked,
}

impl Item {
    fn key(self) -> &'static str {
        match self {
            Item::Plan => "pipeplan.plan",
            Item::Trace => "pipeplan.trace",
            Item::Kept => "pipeplan.kept",
            Item::Profile => "pipeplan.profile",
            Item::Unlinked => "pipeplan.unlinked",
        }
    }
}

/// Remembers `text`, and the part of the address after `#` that it belongs to. False where the text is beyond what the
/// browser stores: then it is not remembered, nor is the one before it, which it replaces.
#[must_use]
pub fn remember(item: Item, fragment: &str, text: &str) -> bool {
    forget(item);
    let (Some(storage), Some(packed)) = (storage(), compression::pack(text)) else { return false };
    // Fragments have no spaces: the address escapes them.
    storage.set_item(item.key(), &format!("{fragment} {packed}")).is_ok()
}

/// What was remembered under this fragment.
pub fn recall(item: Item, fragment: &str) -> Option<String> {
    let stored = storage()?.get_item(item.key()).ok()??;
    let (of, packed) = stored.split_once(' ')?;
    (of == fragment).then(|| compression::unpack(packed)).flatten()
}

/// Forgets it.
pub fn forget(item: Item) {
    if let Some(storage) = storage() {
        let _ = storage.remove_item(item.key());
    }
}

/// None where the browser forbids it, as for some privacy settings.
fn storage() -> Option<Storage> {
    browser::window()?.session_storage().ok()?
}
