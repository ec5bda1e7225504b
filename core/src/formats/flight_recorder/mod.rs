//! Dumps of torch's flight recorder: which collectives and P2P transfers each rank has begun, kept in a ring of the newest ones.
//!
//! With `TORCH_NCCL_TRACE_BUFFER_SIZE` (also `TORCH_FR_BUFFER_SIZE`) set, each rank writes a dump when a collective times out, to
//! the file `TORCH_NCCL_DEBUG_INFO_TEMP_FILE` with the number of the rank behind it. A dump is a pickle; torch gives the same as
//! JSON. Versions 2.x are read, of NCCL and of gloo. gloo does not record when an op starts or ends: what is retired has ended.
//!
//! [`waits`] says who waits in what, and for whom: which ranks of a group have reached a collective and which have not, what those
//! are in instead, and where ranks do not agree on what the collective is.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::Deserialize;
use serde::de::Deserializer;

use crate::base::fields::Fault;
use crate::base::units::Nanos;
use crate::problem::MAX_RANKS;

mod pickle;
#[cfg(test)]
mod tests;
mod waits;
mod words;

pub use self::waits::{Difference, Instead, Report, Wait, waits};
pub use self::words::Part;

/// Longest dump that is read.
pub const MAX_FILE_BYTES: usize = 256 << 20;
/// Most entries of one dump.
pub const MAX_ENTRIES: usize = 1 << 20;

/// What a dump holds. Fields that are not read may hold anything.
#[derive(Clone, Debug, Deserialize)]
pub struct Dump {
    /// The version of its form, such as `2.10`.
    pub version: String,
    #[serde(default)]
    pg_config: BTreeMap<String, GroupConfig>,
    entries: Vec<Entry>,
}

/// A group of ranks.
#[derive(Clone, Debug, Deserialize)]
struct GroupConfig {
    #[serde(default)]
    name: String,
    #[serde(default)]
    ranks: Loose,
}

/// A collective or transfer that a rank has begun.
#[derive(Clone, Debug, Deserialize)]
struct Entry {
    #[serde(default)]
    record_id: u64,
    /// Name and description of its group.
    #[serde(deserialize_with = "pair")]
    process_group: (String, String),
    #[serde(default)]
    collective_seq_id: u64,
    profiling_name: String,
    #[serde(default)]
    time_created_ns: u64,
    #[serde(default)]
    input_sizes: Vec<Vec<u64>>,
    #[serde(default)]
    input_dtypes: Vec<String>,
    #[serde(default)]
    output_sizes: Vec<Vec<u64>>,
    state: String,
    #[serde(default)]
    time_discovered_started_ns: Option<u64>,
    #[serde(default)]
    time_discovered_completed_ns: Option<u64>,
    #[serde(default)]
    retired: bool,
    #[serde(default)]
    timeout_ms: u64,
    #[serde(default)]
    is_p2p: bool,
    #[serde(default)]
    frames: Vec<Frame>,
}

/// A line of a program that was running.
#[derive(Clone, Debug, Deserialize)]
struct Frame {
    #[serde(default)]
    name: String,
    #[serde(default)]
    filename: String,
    #[serde(default)]
    line: u64,
}

/// Ranks as a text, `[0, 1]`, or as a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Loose {
    Text(String),
    List(Vec<u64>),
}

impl Default for Loose {
    fn default() -> Loose {
        Loose::List(Vec::new())
    }
}

impl Loose {
    fn ranks(&self) -> Vec<u64> {
        match self {
            Loose::List(ranks) => ranks.clone(),
            Loose::Text(text) => {
                let inner = text.trim_matches(['[', ']', ' ']);
                inner.split(',').filter_map(|rank| rank.trim().parse().ok()).collect()
            }
        }
    }
}

fn pair<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(String, String), D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let mut texts = texts.into_iter();
    Ok((texts.next().unwrap_or_default(), texts.next().unwrap_or_default()))
}

impl Entry {
    /// Whether it has ended. gloo retires what has ended, and NCCL's watchdog also what has timed out.
    fn is_done(&self) -> bool {
        self.state == "completed"
            || self.time_discovered_completed_ns.is_some_and(|ns| ns > 0)
            || self.retired && self.profiling_name.starts_with("gloo:")
    }

    /// `all_reduce` of `nccl:all_reduce`.
    fn op(&self) -> &str {
        self.profiling_name.split_once(':').map_or(self.profiling_name.as_str(), |(_, op)| op)
    }

    /// What it sends, as a person reads it: `[[8]] Float`.
    fn shape(&self) -> String {
        let sizes: Vec<String> = self.input_sizes.iter().map(|size| format!("{size:?}")).collect();
        format!("{} {}", sizes.join(" "), self.input_dtypes.join(" ")).trim().to_string()
    }

    /// The latest time that it holds.
    fn latest_ns(&self) -> Nanos {
        let discovered = [self.time_discovered_started_ns, self.time_discovered_completed_ns];
        discovered.into_iter().flatten().fold(self.time_created_ns, Nanos::max)
    }

    /// The innermost line that is not torch's.
    fn place(&self) -> Option<String> {
        let is_users = |frame: &&Frame| !frame.filename.contains("torch/distributed/") && !frame.filename.is_empty();
        let frame = self.frames.iter().find(is_users)?;
        Some(format!("{}:{} {}", frame.filename, frame.line, frame.name))
    }
}

/// Reads a dump in JSON, as `_dump_fr_trace_json` and `_dump_nccl_trace_json` give it.
///
/// # Errors
/// The place and what is wrong.
pub fn read_json(text: &str) -> Result<Dump, Fault> {
    let dump = serde_json::from_str(text).map_err(|error| Fault::new("the dump", error.to_string(), ACCEPTED))?;
    checked(dump)
}

/// Reads a dump as torch writes it: a pickle.
///
/// # Errors
/// The place and what is wrong.
pub fn read_pickle(bytes: &[u8]) -> Result<Dump, Fault> {
    let value = pickle::read(bytes)?;
    let dump = serde_json::from_value(value).map_err(|error| Fault::new("the dump", error.to_string(), ACCEPTED))?;
    checked(dump)
}

/// A dump, once it is known to be of a version and size that are understood.
fn checked(dump: Dump) -> Result<Dump, Fault> {
    if dump.version.split('.').next() != Some("2") {
        return Err(Fault::new("version", format!("`{}`", dump.version), "2.x, which torch 2.3 and later write"));
    }
    if dump.entries.len() > MAX_ENTRIES {
        return Err(Fault::new("entries", dump.entries.len().to_string(), format!("at most {MAX_ENTRIES}")));
    }
    Ok(dump)
}

/// What is accepted as a dump.
pub const ACCEPTED: &str = "a dump of torch's flight recorder";

/// Whether the beginning of a text is that of such a dump in JSON.
pub fn looks_like_one(text: &str) -> bool {
    text.contains("\"collective_seq_id\"") || text.contains("\"pg_config\"") && text.contains("\"nccl_comm_state\"")
}

/// The rank of a dump by its file's name: the number at the end, `nccl_trace_rank_12`, before `.json` or another ending.
pub fn rank_of(name: &str) -> Option<usize> {
    let file = name.rsplit(['/', '\\']).next()?;
    let stem = file.split_once('.').map_or(file, |(stem, _)| stem);
    let from = stem.rfind(|letter: char| !letter.is_ascii_digit()).map_or(0, |place| place + 1);
    stem[from..].parse().ok().filter(|rank| *rank < MAX_RANKS)
}
