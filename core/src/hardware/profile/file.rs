//! A profile as a JSON file.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::Serialize;
use serde_json::Value;

use super::run::{self, RunTimes};
use super::signature::Signature;
use super::{Measured, Profile};
use crate::base::fields::{Fault, Faults, Table, shown, whole};
use crate::base::json::{self, Syntax};
use crate::base::units::{Bytes, Nanos};
use crate::hardware::cluster::MAX_MEMORY;
use crate::hardware::cost::Load;
use crate::problem::MAX_NS;

/// The version of the file that is written.
pub const VERSION: u32 = 1;

/// The JSON Schema of a profile, version 1.
pub const SCHEMA: &str = include_str!("../../../schema/profile.schema.json");

/// The most operators that a file may have: far beyond any model's different ones.
const MOST_OPERATORS: usize = 100_000;

/// Most bytes of a kernel's name or its operands.
const LONGEST_TEXT: usize = 4096;

/// Text that is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// It is no JSON.
    #[error("{0}")]
    Syntax(Syntax),
    /// Fields are missing, unknown or out of range.
    #[error("{0}")]
    Faults(Faults),
}

#[derive(Serialize)]
struct File {
    version: u32,
    device: String,
    #[serde(skip_serializing_if = "is_zero")]
    workspace_bytes: Bytes,
    operators: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RunTimes>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(bytes: &Bytes) -> bool {
    *bytes == 0
}

#[derive(Serialize)]
struct Entry {
    kernel: String,
    operands: String,
    ns: Nanos,
    flops: u64,
    bytes: Bytes,
}

impl Profile {
    /// As a file.
    pub fn to_json(&self) -> String {
        let entry = |(signature, Measured { time, load }): (&Signature, &Measured)| Entry {
            kernel: signature.kernel.clone(),
            operands: signature.operands.clone(),
            ns: *time,
            flops: u64::try_from(load.flops).unwrap_or(u64::MAX),
            bytes: load.bytes,
        };
        let operators = self.measured.iter().map(entry).collect();
        let (device, workspace_bytes) = (self.device.clone(), self.workspace_bytes);
        let file = File { version: VERSION, device, workspace_bytes, operators, run: self.run.clone() };
        // Strings and whole numbers have a form in JSON, always.
        serde_json::to_value(file).map(|value| crate::base::canonical::pretty(&value)).unwrap_or_default()
    }

    /// From a file.
    ///
    /// # Errors
    /// [`ProfileError`], with every fault and its field.
    pub fn of_json(text: &str) -> Result<Profile, ProfileError> {
        let value: Value = json::parse(text).map_err(ProfileError::Syntax)?;
        let mut faults = Vec::new();
        let profile = read(&value, &mut faults);
        profile.filter(|_| faults.is_empty()).ok_or(ProfileError::Faults(Faults(faults)))
    }
}

fn read(value: &Value, faults: &mut Vec<Fault>) -> Option<Profile> {
    let mut table = Table::of(value, "", faults)?;
    let version = table.get("version");
    if version.and_then(whole) != Some(VERSION.into()) {
        let found = version.map_or_else(|| "nothing".to_string(), shown);
        let accepted = format!("{VERSION}: measure again with `pipeplan profile`");
        faults.push(Fault::new("version", found, accepted));
        return None;
    }
    let mut profile = Profile::new(table.text("device", faults).unwrap_or_default());
    profile.workspace_bytes = table.bytes("workspace_bytes", 0..=MAX_MEMORY, faults).unwrap_or(0);
    profile.run = table.get("run").and_then(|value| run::read(value, "run", faults));
    match table.get("operators") {
        Some(Value::Array(operators)) if operators.len() <= MOST_OPERATORS => {
            for (index, operator) in operators.iter().enumerate() {
                if let Some((signature, load, ns)) = read_operator(operator, &format!("operators[{index}]"), faults) {
                    profile.insert(signature, load, ns);
                }
            }
        }
        found => {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            faults.push(Fault::new("operators", found, format!("a list of at most {MOST_OPERATORS} operators")));
        }
    }
    table.finish(faults);
    Some(profile)
}

fn read_operator(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<(Signature, Load, Nanos)> {
    let mut table = Table::of(value, path, faults)?;
    let mut text = |key, accepted: &str| {
        // Operands of attention with many tensors are longer than what people type.
        let found = table.get(key);
        let read = found.and_then(Value::as_str).filter(|text| !text.is_empty() && text.len() <= LONGEST_TEXT);
        if read.is_none() {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            faults.push(Fault::new(table.path(key), found, accepted));
        }
        read.map(ToString::to_string)
    };
    let kernel = text("kernel", "the operator's name and attributes, such as `matmul nt`");
    let operands = text("operands", "formats and sizes, such as `f32[8,4] f32[2,4] -> f32[8,2]`");
    let ns = table.needed_whole("ns", 0..=MAX_NS, faults);
    let [flops, bytes] = ["flops", "bytes"].map(|key| table.whole(key, 0..=u64::MAX, faults).unwrap_or(0));
    table.finish(faults);
    let load = Load { flops: flops.into(), bytes, ..Load::default() };
    Some((Signature { kernel: kernel?, operands: operands? }, load, ns?))
}
