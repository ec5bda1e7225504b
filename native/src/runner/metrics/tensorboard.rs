//! Event files of TensorBoard: records of TFRecord, each an `Event` in the format of protobuf.
//!
//! A record is its length (8 bytes, little-endian), the masked CRC-32C of these, the event, and its masked CRC-32C
//! (`tensorflow/core/lib/io/record_writer.cc`). Of the messages only what scalars need is written
//! (`tensorboard/compat/proto/event.proto`, `summary.proto`):
//!
//! | Message | Fields |
//! |---|---|
//! | `Event` | 1 `wall_time` double, 2 `step` int64, 3 `file_version` string, 5 `summary` |
//! | `Summary` | 1 `value`, repeated |
//! | `Summary.Value` | 1 `tag` string, 2 `simple_value` float |

use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes one event file.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// A new file in `folder`, which is made where it is not there.
    pub fn new(folder: &Path) -> Result<Writer> {
        std::fs::create_dir_all(folder)?;
        let (seconds, process) = (now() as u64, std::process::id());
        // A run that resumes within a second needs another name.
        for number in 0.. {
            let path = folder.join(format!("events.out.tfevents.{seconds:010}.pipeplan.{process}.{number}"));
            match OpenOptions::new().create_new(true).append(true).open(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    let mut writer = Writer { path, file };
                    let mut event = Vec::new();
                    fixed64(&mut event, 1, now());
                    bytes(&mut event, 3, b"brain.Event:2");
                    writer.record(&event)?;
                    return Ok(writer);
                }
            }
        }
        Err(std::io::ErrorKind::AlreadyExists.into())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds scalars of a step.
    pub fn add(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in scalars {
            let mut scalar = Vec::new();
            bytes(&mut scalar, 1, tag.as_bytes());
            key(&mut scalar, 2, 5);
            scalar.extend((*value as f32).to_le_bytes());
            bytes(&mut summary, 1, &scalar);
        }
        let mut event = Vec::new();
        fixed64(&mut event, 1, now());
        key(&mut event, 2, 0);
        varint(&mut event, step);
        bytes(&mut event, 5, &summary);
        self.record(&event)
    }

    fn record(&mut self, event: &[u8]) -> Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked(crc32c(&length)).to_le_bytes());
        record.extend(event);
        record.extend(masked(crc32c(event)).to_le_bytes());
        self.file.write_all(&record)
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The number and the kind of a field: 0 varint, 1 eight bytes, 2 with a length, 5 four bytes.
fn key(to: &mut Vec<u8>, field: u64, kind: u64) {
    varint(to, field << 3 | kind);
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn fixed64(to: &mut Vec<u8>, field: u64, value: f64) {
    key(to, field, 1);
    to.extend(value.to_le_bytes());
}

fn bytes(to: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(to, field, 2);
    varint(to, value.len() as u64);
    to.extend(value);
}

/// CRC-32C (Castagnoli), bit by bit: an event has some hundred bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 > 0 { POLYNOMIAL } else { 0 })
    });
    !crc
}

/// So that the sum of what holds sums is not one of them (`tensorflow/core/lib/hash/crc32c.h`).
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-32C and one of its test vectors in RFC 3720, appendix B.4: 32 bytes of 0.
    #[test]
    fn sums_are_those_of_the_published_vectors() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn numbers_are_as_protobuf_has_them() {
        // 300 is the example of protobuf's page on encoding.
        let mut to = Vec::new();
        varint(&mut to, 300);
        assert_eq!(to, [0b1010_1100, 0b0000_0010]);
    }
}
