//! Event files of TensorBoard: records of TFRecord, each an `Event` in the format of protobuf.
//!
//! A record is its length (8 bytes, little-endian), the masked CRC-32C of these, the event, and its masked CRC-32C
//! (`tensorflow/core/lib/io/record_writer.cc`). Of the messages only what scalars need is here
//! (`tensorboard/compat/proto/event.proto`, `summary.proto`).

use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crc32c::crc32c;
use prost::Message;

/// `tensorboard.Event`
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, optional, tag = "1")]
    wall_time: Option<f64>,
    #[prost(int64, optional, tag = "2")]
    step: Option<i64>,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// `tensorboard.Summary`
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

/// `tensorboard.Summary.Value`
#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, optional, tag = "1")]
    tag: Option<String>,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

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
                    writer.record(&Event { file_version: Some("brain.Event:2".to_owned()), ..Event::now() })?;
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
        let scalar =
            |(tag, value): &(&str, f64)| Scalar { tag: Some((*tag).to_owned()), simple_value: Some(*value as f32) };
        let summary = Summary { value: scalars.iter().map(scalar).collect() };
        self.record(&Event { step: Some(step as i64), summary: Some(summary), ..Event::now() })
    }

    fn record(&mut self, event: &Event) -> Result<()> {
        let event = event.encode_to_vec();
        let length = (event.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked(crc32c(&length)).to_le_bytes());
        record.extend(&event);
        record.extend(masked(crc32c(&event)).to_le_bytes());
        self.file.write_all(&record)
    }
}

impl Event {
    /// Nothing but the time.
    fn now() -> Event {
        Event { wall_time: Some(now()), ..Event::default() }
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// So that the sum of what holds sums is not one of them (`tensorflow/core/lib/hash/crc32c.h`).
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, from protobuf's page on encoding: 300 is its example of a number, `2a 0d` a summary of 13 bytes, `0a 0b` a
    /// value of 11 in it, `0a 04` its tag, `15` its four bytes.
    #[test]
    fn events_are_as_protobuf_has_them() {
        let scalar = Scalar { tag: Some("loss".to_owned()), simple_value: Some(1.0) };
        let event = Event { step: Some(300), summary: Some(Summary { value: vec![scalar] }), ..Event::default() };
        let expected = [&[0x10, 0xac, 2, 0x2a, 0x0d, 0x0a, 0x0b, 0x0a, 4][..], b"loss", &[0x15, 0, 0, 0x80, 0x3f]];
        assert_eq!(event.encode_to_vec(), expected.concat());
    }
}
