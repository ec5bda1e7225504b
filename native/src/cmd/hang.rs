//! Dumps of torch's flight recorder: who waits in which collective.

use std::io::Read as _;
use std::path::Path;

use pipeplan_core::base::fields::Fault;
use pipeplan_core::formats::flight_recorder::{self, Difference, Dump, Instead, MAX_FILE_BYTES, Report, Wait};
use serde_json::{Value, json};

use super::failure::Failure;
use super::{format, input};

/// Bytes at the start of a dump in JSON that say so.
const HEAD: u64 = 1 << 14;

/// Whether `path` is a dump: a pickle, or the same in JSON.
pub fn looks_like_one(path: &Path) -> bool {
    // A pipe is not read twice.
    if !path.is_file() {
        return false;
    }
    let mut head = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    // A pickle of torch's is of protocol 2 and holds a dictionary.
    let is_pickle = head.starts_with(&[0x80, 2, b'}']);
    read.is_ok()
        && (is_pickle || head.starts_with(b"{") && flight_recorder::looks_like_one(&String::from_utf8_lossy(&head)))
}

/// The report on dumps of ranks, each named by the number at the end of its file's name.
pub fn read(names: &[String]) -> Result<Report, Failure> {
    let mut dumps = Vec::new();
    for name in names {
        let Some(rank) = flight_recorder::rank_of(name) else {
            return Err(Failure::input(format!("{name} has no number of a rank at the end of its name"))
                .with_help("name dumps as torch does, by TORCH_NCCL_DEBUG_INFO_TEMP_FILE with the rank behind it: nccl_trace_rank_0"));
        };
        dumps.push((name.clone(), rank, dump(name)?));
    }
    flight_recorder::waits(&dumps).map_err(Failure::input)
}

fn dump(name: &str) -> Result<Dump, Failure> {
    let bytes = input::file(name, MAX_FILE_BYTES as u64)?;
    let refused = |fault: Fault| Failure::input(format!("{name}: {fault}"));
    if bytes.starts_with(b"{") {
        let text = String::from_utf8(bytes).map_err(|error| {
            Failure::input(format!("{name} is not text: byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1))
        })?;
        return flight_recorder::read_json(&text).map_err(refused);
    }
    flight_recorder::read_pickle(&bytes).map_err(refused)
}

/// What a person reads.
pub fn text(report: &Report) -> String {
    let mut text = format!("dumps         of {}\n", ranks(&report.ranks));
    if !report.without_dump.is_empty() {
        text.push_str(&format!("without dump  {}\n", ranks(&report.without_dump)));
    }
    if report.waits.is_empty() {
        text.push_str("waits         none: every collective and transfer that was begun has ended\n");
    }
    for wait in &report.waits {
        text.push_str(&of_wait(wait));
    }
    for (rank, instead) in &report.causes {
        text.push_str(&format!("\ncause         rank {rank}: others wait for it; {}\n", of_instead(instead)));
    }
    text
}

fn of_wait(wait: &Wait) -> String {
    let shape = if wait.shape.is_empty() { String::new() } else { format!(", {}", wait.shape) };
    let mut text = format!("\n{} of {}{shape}\n", wait.op, wait.group);
    let mut line = |word: &str, rest: String| text.push_str(&format!("  {word:<11} {rest}\n"));
    if !wait.waiting.is_empty() {
        line("waiting", format!("{}, for at least {}", ranks(&wait.waiting), format::duration(wait.waited_ns)));
    }
    if let Some(place) = &wait.place {
        line("at", place.clone());
    }
    if !wait.ended.is_empty() {
        line("ended", ranks(&wait.ended));
    }
    for (rank, instead) in &wait.missing {
        line("not there", format!("rank {rank}: {}", of_instead(instead)));
    }
    if let Some(Difference { what, one, other }) = &wait.difference {
        line("differ", format!("{what}: rank {} has {}, rank {} has {}", one.0, one.1, other.0, other.1));
    } else if wait.missing.is_empty() {
        line("", "all its ranks are in it: look at the network, or at a GPU that has stopped".to_owned());
    }
    text
}

fn of_instead(instead: &Instead) -> String {
    let at = |place: &Option<String>| place.as_ref().map_or(String::new(), |place| format!(", at {place}"));
    match instead {
        Instead::Waits { op, place } => format!("waits in {op}{}", at(place)),
        Instead::Idle { last, place } => format!("waits in none; its last was {last}{}", at(place)),
        Instead::Forgotten => "its dump holds only newer ones: raise TORCH_NCCL_TRACE_BUFFER_SIZE".to_owned(),
        Instead::NoDump => "there is no dump of it".to_owned(),
    }
}

/// `ranks 0 to 3, 7`.
fn ranks(ranks: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => parts.push((*rank, *rank)),
        }
    }
    let part = |(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    };
    let parts: Vec<String> = parts.iter().map(part).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, parts.join(", "))
}

/// The same for programs.
pub fn to_json(report: &Report) -> String {
    let instead = |(rank, instead): &(usize, Instead)| match instead {
        Instead::Waits { op, place } => json!({ "rank": rank, "does": "waits", "op": op, "place": place }),
        Instead::Idle { last, place } => json!({ "rank": rank, "does": "nothing", "last": last, "place": place }),
        Instead::Forgotten => json!({ "rank": rank, "does": "forgotten" }),
        Instead::NoDump => json!({ "rank": rank, "does": "no dump" }),
    };
    let wait = |wait: &Wait| {
        let difference = wait.difference.as_ref().map(|differ| {
            json!({ "what": differ.what, "ranks": [differ.one.0, differ.other.0], "values": [differ.one.1, differ.other.1] })
        });
        json!({
            "group": wait.group, "op": wait.op, "shape": wait.shape, "waiting": wait.waiting, "ended": wait.ended,
            "missing": wait.missing.iter().map(instead).collect::<Vec<Value>>(), "difference": difference,
            "waited_ns": wait.waited_ns, "place": wait.place,
        })
    };
    let value = json!({
        "ranks": report.ranks, "without_dump": report.without_dump,
        "waits": report.waits.iter().map(wait).collect::<Vec<Value>>(),
        "causes": report.causes.iter().map(instead).collect::<Vec<Value>>(),
    });
    format!("{value:#}\n")
}
