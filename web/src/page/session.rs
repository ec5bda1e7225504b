//! Storage for a reload of the page: open files and a kept plan. The browser stores them for this tab.
//!
//! The address contains the visible half of the form. The hidden half is stored here.

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
    /// The documents of a step, if they are more than a link has.
    Documents,
    /// The part of the form that a link does not contain: the hidden half, and the global batch size.
    Unlinked,
}

impl Item {
    fn key(self) -> &'static str {
        match self {
            Item::Plan => "pipeplan.plan",
            Item::Trace => "pipeplan.trace",
            Item::Kept => "pipeplan.kept",
            Item::Profile => "pipeplan.profile",
            Item::Documents => "pipeplan.documents",
            Item::Unlinked => "pipeplan.unlinked",
        }
    }
}

/// Stores `text` with the fragment of its address. Returns false if the text is too large for the browser; then the
/// older text is also removed.
#[must_use]
pub fn remember(item: Item, fragment: &str, text: &str) -> bool {
    forget(item);
    let (Some(storage), Some(packed)) = (storage(), compression::pack(text)) else { return false };
    // Fragments have no spaces: the address escapes them.
    storage.set_item(item.key(), &format!("{fragment} {packed}")).is_ok()
}

/// The text that was stored under this fragment.
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

/// None if the browser forbids storage, as some privacy settings do.
fn storage() -> Option<Storage> {
    browser::window()?.session_storage().ok()?
}
