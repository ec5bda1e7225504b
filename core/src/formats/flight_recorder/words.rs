//! A report in words for people, and as JSON for programs.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::{Value, json};

use super::{Difference, Instead, Report, Wait};
use crate::base::units::Nanos;

/// A part of a report in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The collective or transfer that it is about; empty where it is about the run.
    pub title: String,
    /// A word and a line. The word may be empty.
    pub lines: Vec<(&'static str, String)>,
}

impl Report {
    /// The report in words: the ranks, then each wait, then each cause. `duration` says a time.
    pub fn parts(&self, duration: &dyn Fn(Nanos) -> String) -> Vec<Part> {
        let of_run = |lines| Part { title: String::new(), lines };
        let mut lines = Vec::from([("dumps", format!("of {}", ranks(&self.ranks)))]);
        if !self.without_dump.is_empty() {
            lines.push(("without dump", ranks(&self.without_dump)));
        }
        if self.waits.is_empty() {
            lines.push(("waits", "none: every collective and transfer that was begun has ended".to_string()));
        }
        let mut parts = Vec::from([of_run(lines)]);
        parts.extend(self.waits.iter().map(|wait| of_wait(wait, duration)));
        parts.extend(self.causes.iter().map(|(rank, instead)| {
            let cause = format!("rank {rank}: others wait for it; {}", of_instead(instead));
            of_run(Vec::from([("cause", cause)]))
        }));
        parts
    }

    /// The report for programs.
    pub fn to_value(&self) -> Value {
        json!({
            "ranks": self.ranks, "without_dump": self.without_dump,
            "waits": self.waits.iter().map(wait_value).collect::<Vec<Value>>(),
            "causes": self.causes.iter().map(instead_value).collect::<Vec<Value>>(),
        })
    }
}

fn of_wait(wait: &Wait, duration: &dyn Fn(Nanos) -> String) -> Part {
    let shape = if wait.shape.is_empty() { String::new() } else { format!(", {}", wait.shape) };
    let mut lines = Vec::new();
    if !wait.waiting.is_empty() {
        let waited = duration(wait.waited_ns);
        lines.push(("waiting", format!("{}, for at least {waited}", ranks(&wait.waiting))));
    }
    lines.extend(wait.place.iter().map(|place| ("at", place.clone())));
    if !wait.ended.is_empty() {
        lines.push(("ended", ranks(&wait.ended)));
    }
    let missing = wait.missing.iter();
    lines.extend(missing.map(|(rank, instead)| ("not there", format!("rank {rank}: {}", of_instead(instead)))));
    if let Some(Difference { what, one, other }) = &wait.difference {
        let said = format!("{what}: rank {} has {}, rank {} has {}", one.0, one.1, other.0, other.1);
        lines.push(("differ", said));
    } else if wait.missing.is_empty() {
        lines.push(("", "all its ranks are in it: look at the network, or at a GPU that has stopped".to_string()));
    }
    Part { title: format!("{} of {}{shape}", wait.op, wait.group), lines }
}

fn of_instead(instead: &Instead) -> String {
    let at = |place: &Option<String>| place.as_ref().map_or(String::new(), |place| format!(", at {place}"));
    match instead {
        Instead::Waits { op, place } => format!("waits in {op}{}", at(place)),
        Instead::Idle { last, place } => format!("waits in none; its last was {last}{}", at(place)),
        Instead::Forgotten => "its dump holds only newer ones: raise TORCH_NCCL_TRACE_BUFFER_SIZE".to_string(),
        Instead::NoDump => "there is no dump of it".to_string(),
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

fn wait_value(wait: &Wait) -> Value {
    let difference = wait.difference.as_ref().map(|differ| {
        json!({ "what": differ.what, "ranks": [differ.one.0, differ.other.0], "values": [differ.one.1, differ.other.1] })
    });
    json!({
        "group": wait.group, "op": wait.op, "shape": wait.shape, "waiting": wait.waiting, "ended": wait.ended,
        "missing": wait.missing.iter().map(instead_value).collect::<Vec<Value>>(), "difference": difference,
        "waited_ns": wait.waited_ns, "place": wait.place,
    })
}

fn instead_value((rank, instead): &(usize, Instead)) -> Value {
    match instead {
        Instead::Waits { op, place } => json!({ "rank": rank, "does": "waits", "op": op, "place": place }),
        Instead::Idle { last, place } => json!({ "rank": rank, "does": "nothing", "last": last, "place": place }),
        Instead::Forgotten => json!({ "rank": rank, "does": "forgotten" }),
        Instead::NoDump => json!({ "rank": rank, "does": "no dump" }),
    }
}
