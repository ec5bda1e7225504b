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

    /// Of how many addresses it is kept. Forms before, to which Back leads, have documents of their own.
    fn most(self) -> usize {
        if self == Item::Documents { 6 } else { 1 }
    }
}

/// Stores `text` with the fragment of its address. Returns false if the text is too large for the browser; then the
/// older texts are also removed.
#[must_use]
pub fn remember(item: Item, fragment: &str, text: &str) -> bool {
    let (Some(storage), Some(packed)) = (storage(), compression::pack(text)) else {
        forget(item);
        return false;
    };
    // Neither fragments nor what is packed have spaces or ends of lines: the address escapes them.
    let new = format!("{fragment} {packed}");
    let stored = storage.get_item(item.key()).ok().flatten().unwrap_or_default();
    let others = stored.lines().filter(|line| line.split_once(' ').is_some_and(|(of, _)| of != fragment));
    let all = std::iter::once(new.as_str()).chain(others).take(item.most()).collect::<Vec<_>>().join("\n");
    forget(item);
    storage.set_item(item.key(), &all).is_ok() || storage.set_item(item.key(), &new).is_ok()
}

/// The text that was stored under this fragment.
pub fn recall(item: Item, fragment: &str) -> Option<String> {
    let stored = storage()?.get_item(item.key()).ok()??;
    let mut each = stored.lines().filter_map(|line| line.split_once(' '));
    each.find(|(of, _)| *of == fragment).and_then(|(_, packed)| compression::unpack(packed))
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
