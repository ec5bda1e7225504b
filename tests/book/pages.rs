//! The pages of the book as files, and how a test writes or compares one.

use std::path::{Path, PathBuf};

use pipeplan_tests::process::top;

/// Where the pages of the book are.
pub fn book() -> PathBuf {
    top().join("docs/src")
}

/// Every page of the book, sorted by path.
pub fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![book()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Whether files are to be written anew.
pub fn is_update() -> bool {
    std::env::var_os("PIPEPLAN_UPDATE").is_some()
}

/// Writes `content` to `file`, or compares it with what stands there.
///
/// # Panics
/// Where they differ; with the first line that does.
pub fn write_or_compare(file: &Path, content: &str) {
    if is_update() {
        return std::fs::write(file, content).unwrap();
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    if written != content {
        let mut lines = written.lines().zip(content.lines()).enumerate();
        let differs = lines.find(|(_, (written, found))| written != found);
        panic!(
            "{} is not what the program says now. First difference (line, page, program): {differs:?}.\n\
             Write it anew: PIPEPLAN_UPDATE=1 cargo test -p pipeplan-tests --test readme",
            file.display()
        );
    }
}
