//! Writing beside training: what a rank has copied at the end of a step goes to disk on a thread of its own.
//!
//! A rank that has written its part says so by a note in the unfinished folder. Rank 0's thread waits for the notes of all
//! ranks, describes the checkpoint and names it. So no rank waits for a disk in a step, and no collective is needed
//! between steps: ranks share the folder in any case.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::write::{remove, sync};
use super::{CheckpointError, MANIFEST, Sum};

/// Between two looks at what another thread or rank writes.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// How long rank 0 looks for notes at least, when nothing more is written.
const NOTED: Duration = Duration::from_millis(100);

/// What the ranks of this process are writing.
#[derive(Debug, Default)]
pub struct Saves {
    /// By rank: at most one each.
    pending: Mutex<BTreeMap<usize, Pending>>,
    /// Nobody waits any longer for what is not whole yet.
    given_up: Arc<AtomicBool>,
    /// How long training stood still for each checkpoint.
    pauses: Mutex<Vec<Duration>>,
}

/// A part of a checkpoint on its way to disk.
#[derive(Debug)]
struct Pending {
    folder: PathBuf,
    thread: JoinHandle<Result<(), CheckpointError>>,
}

impl Saves {
    /// Runs `write` of `rank` on a thread of its own; the checkpoint is whole once `folder` is there.
    ///
    /// # Errors
    /// Where the machine gives no thread.
    pub(super) fn begin(
        &self,
        rank: usize,
        folder: &Path,
        write: impl FnOnce(&AtomicBool) -> Result<(), CheckpointError> + Send + 'static,
    ) -> Result<(), CheckpointError> {
        let given_up = Arc::clone(&self.given_up);
        let thread = thread::Builder::new().name(format!("checkpoint {rank}")).spawn(move || write(&given_up));
        let thread =
            thread.map_err(CheckpointError::file(folder, "written beside training, for want of a thread"))?;
        self.pending().insert(rank, Pending { folder: folder.to_path_buf(), thread });
        Ok(())
    }

    /// Notes that training stood still for `pause`, so that a checkpoint could be begun.
    pub(super) fn note_pause(&self, pause: Duration) {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner).push(pause);
    }

    /// How long training stood still for each checkpoint that was begun while the run went on.
    pub fn pauses(&self) -> Vec<Duration> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether `rank` is writing.
    pub(super) fn is_writing(&self, rank: usize) -> bool {
        self.pending().get(&rank).is_some_and(|pending| !pending.thread.is_finished())
    }

    /// How the write of `rank` ended that has ended; well where there was none.
    ///
    /// # Errors
    /// What failed.
    pub(super) fn take(&self, rank: usize) -> Result<(), CheckpointError> {
        let ended = {
            let mut pending = self.pending();
            match pending.get(&rank) {
                Some(found) if found.thread.is_finished() => pending.remove(&rank),
                _ => None,
            }
        };
        let Some(Pending { folder, thread }) = ended else { return Ok(()) };
        thread.join().unwrap_or_else(|panic| {
            let error = crate::runner::threads::message_of(&*panic);
            Err(CheckpointError::File { path: folder, done: "written", error })
        })
    }

    /// After a failure of the run: lets writes end that are under way, for `left` at most, and gives the folder of the
    /// checkpoint that has become whole. Of `others`, the ranks in other processes, those that are gone write no more; nothing
    /// where one of them may still write.
    pub fn settle(&self, left: Duration, others: Option<&[usize]>) -> Option<PathBuf> {
        let started = Instant::now();
        while self.is_open(|_| true) && started.elapsed() < left {
            // Rank 0 waits for notes: of ranks of this process they come while these write, and of the gone never.
            let is_awaited = self.is_open(|rank| rank > 0) || started.elapsed() < NOTED;
            let in_vain = others.is_some_and(|gone| gone.is_empty() || self.is_missing(gone));
            if in_vain && !is_awaited {
                break;
            }
            thread::sleep(PAUSE);
        }
        self.given_up.store(true, Ordering::SeqCst);
        // What has all notes is named all the same, and the next run has to see it.
        while self.is_open(|_| true) && started.elapsed() < left {
            thread::sleep(PAUSE);
        }
        let pending = self.pending();
        let folders = pending.values().map(|pending| &pending.folder);
        folders.filter(|folder| folder.join(MANIFEST).is_file()).max().cloned()
    }

    /// Whether a rank that `is_meant` is writing.
    fn is_open(&self, is_meant: impl Fn(usize) -> bool) -> bool {
        self.pending().iter().any(|(rank, pending)| is_meant(*rank) && !pending.thread.is_finished())
    }

    /// Whether one of `ranks` has not noted that it has written its part of what is written here.
    fn is_missing(&self, ranks: &[usize]) -> bool {
        let pending = self.pending();
        let partial = |folder: &PathBuf| {
            let name = folder.file_name()?.to_str()?;
            Some(folder.with_file_name(format!(".{name}.partial")))
        };
        let mut folders = pending.values().filter_map(|pending| partial(&pending.folder));
        folders.any(|partial| ranks.iter().any(|rank| !notes(&partial, *rank).0.exists()))
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Pending>> {
        // Every change is one insertion or removal.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The note by which `rank` says what it has written, and that by which it says that it could not.
fn notes(partial: &Path, rank: usize) -> (PathBuf, PathBuf) {
    (partial.join(format!(".written-{rank}")), partial.join(format!(".failed-{rank}")))
}

/// Notes what `rank` has written, all at once.
pub(super) fn note(partial: &Path, rank: usize, sums: &BTreeMap<String, Sum>) -> Result<(), CheckpointError> {
    let (written, _) = notes(partial, rank);
    let unfinished = written.with_extension("unfinished");
    let text = serde_json::to_string(sums)
        .map_err(|error| CheckpointError::Damaged { path: written.clone(), what: error.to_string() })?;
    fs::write(&unfinished, text).map_err(CheckpointError::file(&unfinished, "written"))?;
    sync(&unfinished)?;
    fs::rename(&unfinished, &written).map_err(CheckpointError::file(&written, "named"))
}

/// Notes that `rank` could not write its part. Where even that fails, the end of the run says it.
pub(super) fn note_failure(partial: &Path, rank: usize) {
    let _ = fs::write(notes(partial, rank).1, "");
}

/// What all ranks of a world of `ranks` have written, once all have; nothing where one could not, which reports it itself,
/// or where nobody waits any longer. The notes are gone then.
pub(super) fn gather(
    partial: &Path,
    ranks: usize,
    given_up: &AtomicBool,
) -> Result<Option<BTreeMap<String, Sum>>, CheckpointError> {
    let mut files = BTreeMap::new();
    for rank in 0..ranks {
        let (written, failed) = notes(partial, rank);
        let text = loop {
            match fs::read_to_string(&written) {
                Ok(text) => break text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(CheckpointError::file(&written, "read")(error)),
            }
            if failed.exists() || given_up.load(Ordering::SeqCst) {
                return Ok(None);
            }
            thread::sleep(PAUSE);
        };
        let sums: BTreeMap<String, Sum> = serde_json::from_str(&text)
            .map_err(|error| CheckpointError::Damaged { path: written.clone(), what: error.to_string() })?;
        files.extend(sums);
        fs::remove_file(&written).map_err(CheckpointError::file(&written, "removed"))?;
    }
    Ok(Some(files))
}

/// Removes what killed runs have left in `folder`: checkpoints that were being written or removed. Who asks holds the folder.
pub(super) fn remove_leftovers(folder: &Path) -> Result<(), CheckpointError> {
    let entries = fs::read_dir(folder).map_err(CheckpointError::file(folder, "read"))?;
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(is_leftover);
        if is_ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Whether a folder of this name is what [`super::write`] leaves behind where it is killed: `.step-000020.partial` or `.old`.
fn is_leftover(name: &str) -> bool {
    let digits = name.strip_prefix(".step-").and_then(|rest| {
        let (digits, ending) = rest.split_once('.')?;
        matches!(ending, "partial" | "old").then_some(digits)
    });
    digits.is_some_and(|digits| digits.len() >= 6 && digits.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_killed_run_leaves_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = [
            ".step-000001",
            "step-000002",
            ".step-000003.mine",
            ".step-3.partial",
            ".step-00000x.old",
            ".steps.partial",
        ];
        for name in [".step-000004.partial", ".step-1000000.old"].iter().chain(&kept) {
            fs::create_dir(folder.path().join(name)).expect("made");
            fs::write(folder.path().join(name).join("model.safetensors"), "half").expect("written");
        }
        fs::write(folder.path().join(".step-000005.partial"), "a file").expect("written");
        remove_leftovers(folder.path()).expect("removed");
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        left.sort_unstable();
        let mut expected: Vec<&str> = kept.into_iter().chain([".step-000005.partial"]).collect();
        expected.sort_unstable();
        assert_eq!(left, expected);
    }

    #[test]
    fn notes_of_all_ranks_are_gathered_and_a_failure_ends_the_wait() {
        let folder = tempfile::tempdir().expect("a folder");
        let sum = |bytes| Sum { bytes, crc32: 7 };
        for rank in 0..2 {
            note(folder.path(), rank, &BTreeMap::from([(format!("file-{rank}"), sum(rank as u64))])).expect("noted");
        }
        let waits = AtomicBool::new(false);
        let all = gather(folder.path(), 2, &waits).expect("read").expect("all are there");
        assert_eq!(all, BTreeMap::from([("file-0".to_string(), sum(0)), ("file-1".to_string(), sum(1))]));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "no note is left");
        note_failure(folder.path(), 0);
        assert_eq!(gather(folder.path(), 2, &waits), Ok(None));
    }
}
