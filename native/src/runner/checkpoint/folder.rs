//! The folder that a run writes its checkpoints into: its own while it lives, and free of what comes after its start.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::Path;

use super::beside::remove_leftovers;
use super::{CheckpointError, Saving, manifest_of_ours, step_of};

/// Where a run says that it is there. It stays: one that is removed could be locked by two at once.
const LOCK: &str = ".lock";

/// A folder that no other run writes into as long as this lives.
#[derive(Debug)]
pub struct Held {
    /// Let go when it is closed, however the process ends; nothing where the file system cannot lock.
    _lock: Option<File>,
}

/// Takes the folder of `saving` for a run that starts after `first` training steps, and removes what killed runs have left
/// there unfinished. Of all ranks one does it.
///
/// # Errors
/// [`CheckpointError::Occupied`] where another run writes there, or where there is what this run would come to: its
/// checkpoints would lie among those of another, and a reader of the latest one would get that of the other run.
pub fn hold(saving: &Saving, first: u32) -> Result<Held, CheckpointError> {
    let folder = &saving.folder;
    let occupied = |what: String| CheckpointError::Occupied { path: folder.clone(), what };
    fs::create_dir_all(folder).map_err(CheckpointError::file(folder, "made"))?;
    let path = folder.join(LOCK);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(CheckpointError::file(&path, "opened"))?;
    let lock = match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => {
            return Err(occupied(
                "another run writes into it: give another folder, or wait until that run ends".to_string(),
            ));
        }
        // Not every file system has locks.
        Err(TryLockError::Error(_)) => None,
    };
    if let Some((step, name)) = latest(folder)?.filter(|(step, _)| *step > first) {
        let start = match first {
            0 => "this run starts from the beginning".to_string(),
            _ => format!("this run starts from step {first}"),
        };
        let todo = if manifest_of_ours(&folder.join(&name)) {
            format!("give another folder, or `--resume {}` to resume from step {step}", folder.display())
        } else {
            "that is not a checkpoint: give another folder, or move it away".to_string()
        };
        return Err(occupied(format!("it holds {name}, but {start}; {todo}")));
    }
    // Without a lock they could be another run's.
    if lock.is_some() {
        remove_leftovers(folder)?;
    }
    Ok(Held { _lock: lock })
}

/// What is named as the latest checkpoint in `folder`, whatever it is.
fn latest(folder: &Path) -> Result<Option<(u32, String)>, CheckpointError> {
    let entries = fs::read_dir(folder).map_err(CheckpointError::file(folder, "read"))?;
    let named = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        Some((step_of(&name)?, name))
    };
    Ok(entries.filter_map(named).max())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_held_by_one_run_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let saving = Saving { folder: folder.path().join("run"), every: 0 };
        let held = hold(&saving, 0).expect("it is free");
        let refusal = hold(&saving, 0).expect_err("it is held").to_string();
        assert!(refusal.contains("another run writes into it"), "{refusal}");
        drop(held);
        hold(&saving, 0).expect("it is free again");
    }

    #[test]
    fn what_a_run_would_come_to_is_refused_and_what_lies_before_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let saving = Saving { folder: folder.path().to_path_buf(), every: 0 };
        for name in ["step-000002", "step-000004", "step-x", "steps"] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        for first in [0, 3] {
            let refusal = hold(&saving, first).expect_err("it is occupied").to_string();
            assert!(refusal.contains("it holds step-000004") && refusal.contains("not a checkpoint"), "{refusal}");
        }
        let manifest = format!("{{\"format\": \"{}\"}}", super::super::FORMAT);
        fs::write(folder.path().join("step-000004").join(super::super::MANIFEST), manifest).expect("written");
        let refusal = hold(&saving, 0).expect_err("it is occupied").to_string();
        assert!(refusal.contains("--resume") && refusal.contains("from step 4"), "{refusal}");
        for first in [4, 9] {
            hold(&saving, first).expect("what is there lies before");
        }
    }
}
