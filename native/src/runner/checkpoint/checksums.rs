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
    /// Of `bytes`.
    pub(super) fn of_bytes(bytes: &[u8]) -> Sum {
        Sum { bytes: bytes.len() as u64, crc32: crc32fast::hash(bytes) }
    }

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

/// What a manifest has in place of its own sum while that is worked out.
pub(super) const UNSUMMED: &str = "00000000";

/// Where the sum of a manifest stands in its text.
const OWN_SUM: &str = "\"manifest_crc32\": \"";

/// The text of a manifest, with its own sum in the place of [`UNSUMMED`].
pub(super) fn summed(text: &str) -> String {
    let sum = format!("{:08x}", crc32fast::hash(text.as_bytes()));
    text.replacen(&format!("{OWN_SUM}{UNSUMMED}"), &format!("{OWN_SUM}{sum}"), 1)
}

/// Whether the text of a manifest that says its own sum is as it was written.
pub(super) fn check_own_sum(text: &[u8], sum: &str) -> Result<(), String> {
    let written = format!("{OWN_SUM}{sum}");
    let place = text.windows(written.len()).position(|window| window == written.as_bytes());
    let mut plain = text.to_vec();
    if let Some(place) = place.filter(|_| sum.len() == UNSUMMED.len()) {
        plain[place + OWN_SUM.len()..place + written.len()].copy_from_slice(UNSUMMED.as_bytes());
        let found = format!("{:08x}", crc32fast::hash(&plain));
        if found == sum {
            return Ok(());
        }
        return Err(format!(
            "its CRC-32 is {found}, and it says {sum}: put back what was written, or take another checkpoint"
        ));
    }
    Err(format!("its `manifest_crc32` is {sum:?}, which is not as it was written: take another checkpoint"))
}

impl Checkpoint {
    /// Whether the files of weights and what describes them, and with `all` those of the optimizer states, are what was
    /// written. Of `parts` that look at some each, `part` is the one that asks. Checkpoints from before there were sums pass.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] for the first file that is another one, or where a file cannot be read.
    pub fn check_files(&self, all: bool, part: usize, parts: usize) -> Result<(), CheckpointError> {
        let of_optimizer = |name: &String| self.manifest.optimizer_state.contains(name);
        let names: Vec<&String> = self.manifest.files.keys().filter(|name| all || !of_optimizer(name)).collect();
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

    #[test]
    fn a_manifest_that_is_changed_anywhere_is_told() {
        let text = summed(&format!("{{\n  \"files\": {{}},\n  {OWN_SUM}{UNSUMMED}\",\n  \"step\": 3\n}}\n"));
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let sum = value["manifest_crc32"].as_str().expect("a sum");
        assert_ne!(sum, UNSUMMED);
        assert_eq!(check_own_sum(text.as_bytes(), sum), Ok(()));
        for place in 0..text.len() {
            let mut turned = text.clone().into_bytes();
            turned[place] ^= 1;
            assert!(check_own_sum(&turned, sum).is_err(), "byte {place}");
        }
        assert!(check_own_sum(text.as_bytes(), "").is_err());
    }

    /// The check value of CRC-32 in the catalogue of parametrised CRC algorithms.
    #[test]
    fn the_sum_is_the_usual_crc_32() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "123456789").expect("written");
        assert_eq!(Sum::of(&path), Ok(Sum { bytes: 9, crc32: 0xcbf4_3926 }));
    }
}
