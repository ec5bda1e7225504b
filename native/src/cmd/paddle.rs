//! The logs of PaddlePaddle's workers: `workerlog.N` in a folder, or in folders of machines.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use pipeplan_core::base::fields::Fault;
use pipeplan_core::formats::paddle_log::Worker;

use super::failure::Failure;

/// The logs that were found, and what is missing.
pub struct Logs {
    /// By machine, then device.
    pub workers: Vec<Worker>,
    /// Files that are not there or cannot be read.
    pub missing: Vec<Fault>,
}

/// Whether `path` is a folder of such logs, or one log.
pub fn looks_like_one(path: &Path) -> bool {
    path.is_dir() || device_of(path).is_some()
}

/// The N of `workerlog.N`.
fn device_of(path: &Path) -> Option<usize> {
    path.file_name()?.to_str()?.strip_prefix("workerlog.")?.parse().ok()
}

/// The logs in `folder`, of these devices (all where none is named), in folders `machine*` where `multi_machine` is set.
pub fn read(folder: &Path, devices: Option<&[usize]>, multi_machine: bool) -> Result<Logs, Failure> {
    if device_of(folder).is_some() {
        return Ok(Logs { workers: vec![worker(folder, 0, 0)?], missing: Vec::new() });
    }
    let machines = if multi_machine { machines(folder)? } else { vec![folder.to_owned()] };
    let mut logs = Logs { workers: Vec::new(), missing: Vec::new() };
    for (machine, folder) in machines.iter().enumerate() {
        let found = workers(folder)?;
        if found.is_empty() {
            let text = format!("{} has no workerlog.N", folder.display());
            return Err(Failure::input(text).with_help(match has_machines(folder) {
                true => "it has folders of machines: give --multi-machine",
                false => "give the folder of the launcher's logs (--log_dir of paddle.distributed.launch)",
            }));
        }
        let last = found.keys().next_back().copied().unwrap_or(0);
        let wanted: Vec<usize> = devices.map_or_else(|| (0..=last).collect(), <[usize]>::to_vec);
        for device in wanted {
            let path = found.get(&device).cloned().unwrap_or_else(|| folder.join(format!("workerlog.{device}")));
            match worker(&path, machine, device) {
                Ok(worker) => logs.workers.push(worker),
                Err(failure) => {
                    logs.missing.push(Fault::new(
                        path.display().to_string(),
                        failure.message(),
                        "the log of this device",
                    ));
                    logs.workers.push(Worker::new(path.display().to_string(), machine, device));
                }
            }
        }
    }
    Ok(logs)
}

/// The folders of machines, by the numbers in their names: `machine2` before `machine10`.
fn machines(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut machines: Vec<(u64, String, PathBuf)> = entries(folder)?
        .into_iter()
        .filter(|path| path.is_dir())
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            let number = name.strip_prefix("machine")?.trim_start_matches(|c: char| !c.is_ascii_digit()).parse();
            Some((number.unwrap_or(u64::MAX), name, path))
        })
        .collect();
    if machines.is_empty() {
        let text = format!("{} has no folder whose name starts with `machine`", folder.display());
        return Err(Failure::input(text).with_help("leave --multi-machine out for the logs of one machine"));
    }
    machines.sort();
    Ok(machines.into_iter().map(|(_, _, path)| path).collect())
}

fn has_machines(folder: &Path) -> bool {
    machines(folder).is_ok()
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let cannot = |error: std::io::Error| Failure::input(format!("{} cannot be read: {error}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(cannot)?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(cannot)).collect()
}

fn workers(folder: &Path) -> Result<BTreeMap<usize, PathBuf>, Failure> {
    let known = entries(folder)?.into_iter().filter_map(|path| Some((device_of(&path)?, path)));
    Ok(known.collect())
}

/// Longest line that is looked at: lines of jobs have some 200 bytes.
const LONGEST_LINE: usize = 1 << 16;

/// Reads one log line by line, so that its length does not matter.
fn worker(path: &Path, machine: usize, device: usize) -> Result<Worker, Failure> {
    let cannot = |error: std::io::Error| Failure::input(error.to_string());
    let mut reader = BufReader::new(File::open(path).map_err(cannot)?);
    let mut worker = Worker::new(path.display().to_string(), machine, device);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(cannot)? == 0 {
            break;
        }
        line.truncate(LONGEST_LINE);
        worker.line(number, String::from_utf8_lossy(&line).trim_end());
    }
    Ok(worker)
}
