//! Compiled kernels, kept between processes in the person's folder for what can be made again. Ranks of one run that are
//! processes then do not each compile the same.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The file for what follows from `key`, of which `ending` says what it is; nothing where there is no such folder.
pub fn place(key: impl Hash, ending: &str) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?.join("pipeplan/kernels");
    std::fs::create_dir_all(&folder).ok()?;
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    Some(folder.join(format!("{:016x}.{ending}", hasher.finish())))
}

/// Keeps `content` at `place`, whole at once: others may be looking. Where that fails the next process compiles too.
pub fn keep(place: &Path, content: &[u8]) {
    let part = place.with_extension(std::process::id().to_string());
    let written = std::fs::write(&part, content).and_then(|()| std::fs::rename(&part, place));
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
}
