//! Checksums of files, so that a reader knows whether a file is still as it was written.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Checkpoint, CheckpointError};

/// The size and the sum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Its length.
    pub bytes: u64,
    /// The CRC-32 of all of it, as in zip and gzip.
    pub crc32: u32,
}

impl Sum {
    /// Of the file at `path`, which is read once.
    ///
    /// # Errors
    /// [`CheckpointError`] where it cannot be read.
    pub fn of(path: &Path) -> Result<Sum, CheckpointError> {
        let failed = CheckpointError::file(path, "read");
        let mut file = File::open(path).map_err(&failed)?;
        let (mut hasher, mut buffer) = (crc32fast::Hasher::new(), vec![0; 1 << 20]);
        let mut bytes = 0;
        loop {
            let count = match file.read(&mut buffer) {
                Ok(0) => return Ok(Sum { bytes, crc32: hasher.finalize() }),
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            hasher.update(&buffer[..count]);
            bytes += count as u64;
        }
    }
}

impl Checkpoint {
    /// Whether the files of weights, and with `all` those of the optimizer states, are what was written. Of `parts` that
    /// look at some each, `part` is the one that asks. Checkpoints from before there were sums pass.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] for the first file that is another one, or where a file cannot be read.
    pub fn check_files(&self, all: bool, part: usize, parts: usize) -> Result<(), CheckpointError> {
        let mut names: Vec<&String> = self.manifest.weights.values().collect();
        names.extend(self.manifest.optimizer_state.iter().filter(|_| all));
        names.sort_unstable();
        names.dedup();
        for name in names.into_iter().skip(part).step_by(parts.max(1)) {
            let Some(expected) = self.manifest.files.get(name) else { continue };
            let path = self.folder.join(name);
            let damaged = |what: String| CheckpointError::Damaged {
                path: path.clone(),
                what: format!("{what}: put back what was written, or take another checkpoint"),
            };
            // What is too long or too short need not be read.
            let bytes = path.metadata().map_err(CheckpointError::file(&path, "read"))?.len();
            if bytes != expected.bytes {
                return Err(damaged(format!("it has {bytes} bytes, and {} were written", expected.bytes)));
            }
            let found = Sum::of(&path)?.crc32;
            if found != expected.crc32 {
                return Err(damaged(format!(
                    "its CRC-32 is {found:08x}, and that of what was written is {:08x}",
                    expected.crc32
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-32 in the catalogue of parametrised CRC algorithms.
    #[test]
    fn the_sum_is_the_usual_crc_32() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "123456789").expect("written");
        assert_eq!(Sum::of(&path), Ok(Sum { bytes: 9, crc32: 0xcbf4_3926 }));
    }
}
