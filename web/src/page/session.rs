//! What the page would lose when it is loaded anew: open files, and a plan that is kept. The browser keeps them for
//! this tab, as long as it is open.
//!
//! The form needs none of this: it stands in the address.

use web_sys::Storage;

use super::browser;
use crate::packing;

/// Something that outlives a reload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// The plan file that is open.
    Plan,
    /// The trace file that is open.
    Trace,
    /// The plan file of the plan that is kept.
    Kept,
}

impl Item {
    fn key(self) -> &'static str {
        match self {
            Item::Plan => "pipeplan.plan",
            Item::Trace => "pipeplan.trace",
            Item::Kept => "pipeplan.kept",
        }
    }
}

/// Remembers `text`, and the part of the address after `#` that it belongs to. A text beyond what browsers store is
/// not remembered; nor is the one before it, which it replaces.
pub fn remember(item: Item, fragment: &str, text: &str) {
    forget(item);
    if let (Some(storage), Some(packed)) = (storage(), packing::pack(text)) {
        // Fragments have no spaces: the address escapes them.
        let _ = storage.set_item(item.key(), &format!("{fragment} {packed}"));
    }
}

/// What was remembered under this fragment.
pub fn recall(item: Item, fragment: &str) -> Option<String> {
    let stored = storage()?.get_item(item.key()).ok()??;
    let (of, packed) = stored.split_once(' ')?;
    (of == fragment).then(|| packing::unpack(packed)).flatten()
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
