//! The logs of PaddlePaddle's workers: `workerlog.N` in a folder, or in folders of machines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pipeplan_core::formats::run_files::device_of;

use super::failure::Failure;

/// The logs in `folder`, of these devices (all where none is named), in folders `machine*` where `multi_machine` is set. A log of
/// a named device may be missing.
pub fn logs(folder: &Path, devices: Option<&[usize]>, multi_machine: bool) -> Result<Vec<PathBuf>, Failure> {
    let machines = if multi_machine { machines(folder)? } else { vec![folder.to_owned()] };
    let mut logs = Vec::new();
    for folder in machines {
        let found = workers(&folder)?;
        if found.is_empty() {
            let text = format!("{} has no workerlog.N", folder.display());
            return Err(Failure::input(text).with_help(match has_machines(&folder) {
                true => "it has folders of machines: give --multi-machine",
                false => "give the folder of the launcher's logs (--log_dir of paddle.distributed.launch)",
            }));
        }
        let path = |device: usize| folder.join(format!("workerlog.{device}"));
        match devices {
            Some(devices) => logs.extend(devices.iter().map(|device| path(*device))),
            None => logs.extend(found.into_values()),
        }
    }
    Ok(logs)
}

/// The folders of machines.
fn machines(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let is_machine = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_dir() && name.is_some_and(|name| name.starts_with("machine"))
    };
    let machines: Vec<PathBuf> = entries(folder)?.into_iter().filter(is_machine).collect();
    if machines.is_empty() {
        let text = format!("{} has no folder whose name starts with `machine`", folder.display());
        return Err(Failure::input(text).with_help("leave --multi-machine out for the logs of one machine"));
    }
    Ok(machines)
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
    let device = |path: &PathBuf| device_of(path.file_name()?.to_str()?);
    Ok(entries(folder)?.into_iter().filter_map(|path| Some((device(&path)?, path))).collect())
}
