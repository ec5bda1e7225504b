//! Files and folders that a person chooses or drops.

use js_sys::{Array, Function, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{DataTransfer, File, FileList, FileSystemDirectoryEntry, FileSystemEntry, FileSystemFileEntry};

/// Most files that are looked at, and most folders within each other.
pub const MOST_FILES: usize = 1 << 14;
const MOST_FOLDERS: usize = 16;

/// A file that a person chose.
#[derive(Clone)]
pub struct Chosen {
    /// Its name, behind the folders that were chosen with it.
    pub path: String,
    /// The file.
    pub file: File,
}

impl Chosen {
    /// A file that was chosen by itself, or whose folder was.
    pub fn new(file: File) -> Chosen {
        let path = Reflect::get(&file, &"webkitRelativePath".into()).ok().and_then(|path| path.as_string());
        Chosen { path: path.filter(|path| !path.is_empty()).unwrap_or_else(|| file.name()), file }
    }

    /// Whether its folder was chosen.
    pub fn is_in_folder(&self) -> bool {
        self.path.contains('/')
    }
}

/// The files of a list.
pub fn listed(files: Option<FileList>) -> Vec<Chosen> {
    let files = files.iter().flat_map(|files| (0..files.length()).filter_map(|index| files.get(index)));
    files.map(Chosen::new).collect()
}

/// What was dropped. It has to be taken before the event ends; [`Dropped::files`] walks through its folders.
pub struct Dropped {
    files: Vec<Chosen>,
    entries: Vec<FileSystemEntry>,
}

impl Dropped {
    /// Takes what was dropped.
    pub fn of(data: &DataTransfer) -> Dropped {
        let items = data.items();
        let entry = |index| items.get(index)?.webkit_get_as_entry().ok()?;
        Dropped { files: listed(data.files()), entries: (0..items.length()).filter_map(entry).collect() }
    }

    /// All files, those of folders in the order of their paths, at most one more than [`MOST_FILES`]. `go_on` hears how many there
    /// are so far.
    pub async fn files(self, go_on: impl Fn(usize) -> bool) -> Vec<Chosen> {
        if self.entries.iter().all(FileSystemEntry::is_file) {
            return self.files;
        }
        let mut found = Vec::new();
        let mut open: Vec<(FileSystemEntry, usize)> = self.entries.into_iter().map(|entry| (entry, 0)).collect();
        while let Some((entry, depth)) = open.pop() {
            if found.len() > MOST_FILES || !go_on(found.len()) {
                break;
            }
            if entry.is_directory() {
                if depth < MOST_FOLDERS {
                    let inside = entries_of(entry.unchecked_ref()).await;
                    open.extend(inside.into_iter().map(|entry| (entry, depth + 1)));
                }
            } else if let Some(file) = file_of(entry.unchecked_ref()).await {
                let path = entry.full_path().trim_start_matches('/').to_owned();
                found.push(Chosen { path, file });
            }
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        found
    }
}

/// What a folder holds. A browser gives it in parts, the last of which is empty.
async fn entries_of(folder: &FileSystemDirectoryEntry) -> Vec<FileSystemEntry> {
    let reader = folder.create_reader();
    let mut entries = Vec::new();
    while entries.len() <= MOST_FILES {
        let part = promised(|done, failed| reader.read_entries_with_callback_and_callback(done, failed)).await;
        let part = part.map(|part| Array::from(&part)).unwrap_or_default();
        if part.length() == 0 {
            break;
        }
        entries.extend(part.iter().map(JsCast::unchecked_into::<FileSystemEntry>));
    }
    entries
}

async fn file_of(entry: &FileSystemFileEntry) -> Option<File> {
    promised(|done, failed| {
        entry.file_with_callback_and_callback(done, failed);
        Ok(())
    })
    .await?
    .dyn_into()
    .ok()
}

/// What `begin` gives to the first of its two functions; none where it calls the second.
async fn promised(mut begin: impl FnMut(&Function, &Function) -> Result<(), JsValue>) -> Option<JsValue> {
    let promise = Promise::new(&mut |done: Function, failed: Function| {
        if begin(&done, &failed).is_err() {
            let _ = failed.call0(&JsValue::NULL);
        }
    });
    JsFuture::from(promise).await.ok()
}
