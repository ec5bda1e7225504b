//! The text of a field as a value, and back.

use serde_json::{Number, Value, json};

use super::stage_list::{STAGE_KEYS, stage};
use super::{GIB, Unit};

impl Unit {
    /// The suffix behind the field.
    pub const fn suffix(self) -> &'static str {
        match self {
            Unit::Of(_, suffix) | Unit::List(suffix) => suffix,
            _ => "",
        }
    }

    /// The value of a text. A text that cannot be read stays text, and the planner refuses it with the name of the
    /// field.
    pub fn value_of(self, text: &str) -> Value {
        let number = |text: &str| -> Option<Value> {
            let text = text.trim();
            let whole = text.parse::<i64>().map(|number| json!(number));
            whole.or_else(|_| text.parse::<u64>().map(|number| json!(number))).ok()
        };
        if self == Unit::Words {
            return json!(text);
        }
        // Values without a short form, such as transfer times between each two ranks, are typed as JSON.
        if text.starts_with(['[', '{'])
            && let Ok(value) = serde_json::from_str(text)
        {
            return value;
        }
        let real = |text: &str| text.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number);
        let read = match self {
            Unit::Text if text.contains(',') => {
                text.split(',').map(number).collect::<Option<Vec<_>>>().map(Value::Array)
            }
            // One length is a list, too.
            Unit::Lengths => text.split(',').map(number).collect::<Option<Vec<_>>>().map(Value::Array),
            Unit::Text | Unit::Words => None,
            Unit::Whole => whole_said(text).map(|said| json!(said)).or_else(|| number(text)).or_else(|| real(text)),
            Unit::Real => real(text),
            Unit::Flag => text.parse::<bool>().ok().map(Value::Bool),
            Unit::Of(factor, _) => {
                let plain = || text.parse::<f64>().ok().map(|number| number * factor);
                let scaled = plain().or_else(|| said(text, self.suffix())).map(f64::round);
                scaled.and_then(|number| {
                    let exact = (0.0..=9e15).contains(&number);
                    if exact { Some(json!(number as u64)) } else { Number::from_f64(number).map(Value::Number) }
                })
            }
            Unit::List(_) => {
                let one = |text: &str| if text.trim() == "none" { Some(Value::Null) } else { number(text) };
                match text.split(',').map(one).collect::<Option<Vec<Value>>>() {
                    Some(mut values) if values.len() == 1 => values.pop(),
                    several => several.map(Value::Array),
                }
            }
            Unit::Stages => {
                Some(Value::Array(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(stage).collect()))
            }
        };
        read.unwrap_or_else(|| json!(text))
    }

    /// A fault of a field with the text `typed`, with numbers in the unit of the field: `found 101; accepted is a
    /// number from 0 to 100, in %`. Amounts of memory have a short unit.
    pub fn explain_fault(self, typed: &str, found: &str, accepted: &str) -> String {
        // A spec has it in other units, and with the digits of a machine.
        let read = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
        let number = Some(typed.trim()).filter(|typed| read(typed).is_some());
        let Unit::Of(factor, suffix) = self else {
            let found = number.filter(|typed| read(typed) == read(found)).unwrap_or(found);
            return format!("found {found}; accepted is {accepted}");
        };
        let found = number.unwrap_or(found);
        let accepted = match accepted.strip_prefix("bytes from ") {
            Some(bytes) if factor == GIB => {
                let unit = number.map(|_| format!(" {suffix}")).unwrap_or_default();
                let bytes = replace_numbers(bytes, |number| crate::text::bytes(number as u64));
                return format!("found {found}{unit}; accepted is {bytes}");
            }
            // A rate is read as an amount of a second, but is no text with a unit.
            Some(rate) => format!("a number from {}", rate.split(", or text").next().unwrap_or(rate)),
            None => accepted.replace("a whole number", "a number"),
        };
        let accepted = replace_numbers(&accepted, |number| (number / factor).to_string());
        format!("found {found}; accepted is {accepted}, in {suffix}")
    }

    /// The shortest text that is read back as `number`, which is `here` in this unit.
    fn short(self, number: u64, here: f64) -> String {
        let texts = (0..=3).map(|decimals| crate::text::trimmed(here, decimals));
        texts.into_iter().find(|text| self.value_of(text) == json!(number)).unwrap_or_else(|| here.to_string())
    }

    /// The text of a value; the other way round.
    pub fn text_of(self, value: &Value) -> String {
        match (self, value) {
            (_, Value::Null) => String::new(),
            (Unit::Of(factor, _), value) => {
                value.as_u64().map_or_else(|| value.to_string(), |number| self.short(number, number as f64 / factor))
            }
            (Unit::Stages, Value::Array(stages)) => {
                let line = |stage: &Value| {
                    let mut keys = &STAGE_KEYS[..];
                    // Workspaces are rare: missing numbers at the end are left out.
                    while let [before @ .., last] = keys
                        && stage.get(last).is_none()
                    {
                        keys = before;
                    }
                    // Of the fused BW, nothing is another thing than 0.
                    let of_fused = ["backward_workspace_bytes", "backward_ns"];
                    let nothing = |key: &&str| if of_fused.contains(key) { "none" } else { "0" };
                    let number =
                        |key: &&str| stage.get(key).map_or_else(|| nothing(key).to_owned(), Value::to_string);
                    keys.iter().map(number).collect::<Vec<_>>().join(" ")
                };
                stages.iter().map(line).collect::<Vec<_>>().join("\n")
            }
            (Unit::Lengths, value) => value.to_string(),
            (_, Value::Array(values)) if values.iter().any(|value| value.is_array() || value.is_object()) => {
                value.to_string()
            }
            (_, Value::Array(values)) => {
                let one = |value: &Value| match value {
                    Value::Null => "none".to_owned(),
                    Value::String(text) => text.clone(),
                    value => value.to_string(),
                };
                values.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            (_, Value::String(text)) => text.clone(),
            (_, other) => other.to_string(),
        }
    }
}

/// Amounts that people type, and what each is in the unit of specs: bytes, bytes per second, nanoseconds, operations per second.
const SAID: [(&str, &[(&str, f64)]); 5] = [
    (
        "GiB",
        &[
            ("GiB", GIB),
            ("MiB", GIB / 1024.0),
            ("TiB", GIB * 1024.0),
            ("GB", 1e9),
            ("MB", 1e6),
            ("TB", 1e12),
            ("G", GIB),
            ("B", 1.0),
        ],
    ),
    (
        "GB/s",
        &[
            ("GB/s", 1e9),
            ("TB/s", 1e12),
            ("MB/s", 1e6),
            ("GiB/s", GIB),
            ("Gb/s", 0.125e9),
            ("Tb/s", 0.125e12),
            ("Mb/s", 0.125e6),
            ("Gbps", 0.125e9),
            ("Tbps", 0.125e12),
            ("Gbit/s", 0.125e9),
        ],
    ),
    ("µs", &[("ns", 1.0), ("µs", 1e3), ("us", 1e3), ("ms", 1e6), ("s", 1e9)]),
    ("TFLOP/s", &[("TFLOP/s", 1e12), ("TFLOPS", 1e12), ("PFLOP/s", 1e15), ("PFLOPS", 1e15)]),
    ("T", &[("T", 1e12), ("B", 1e9), ("M", 1e6)]),
];

/// A number with its unit, for a field with this suffix.
fn said(text: &str, suffix: &str) -> Option<f64> {
    let (_, units) = SAID.iter().find(|(of, _)| *of == suffix)?;
    let at = text.find(|c: char| c.is_alphabetic())?;
    let number: f64 = text[..at].trim().replace(',', "").parse().ok()?;
    let unit = text[at..].trim();
    // Bits and bytes differ in the size of one letter.
    units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| number * factor)
}

/// A whole number as people write it: `8,192`, `4k` for 4096, or a time such as `12 ms` for a field in nanoseconds.
fn whole_said(text: &str) -> Option<u64> {
    let groups: Vec<&str> = text.split(',').collect();
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let [first, rest @ ..] = &groups[..]
        && !rest.is_empty()
        && digits(first)
        && first.len() <= 3
        && rest.iter().all(|group| group.len() == 3 && digits(group))
    {
        return groups.concat().parse().ok();
    }
    let thousands = text.strip_suffix(['k', 'K']).and_then(|number| number.trim().parse::<u64>().ok());
    let scaled = || said(text, "µs").filter(|ns| (0.0..=9e15).contains(ns)).map(|ns| ns.round() as u64);
    thousands.and_then(|number| number.checked_mul(1024)).or_else(scaled)
}

/// A text with each word that is a number as `spelled` has it.
fn replace_numbers(text: &str, spelled: impl Fn(f64) -> String) -> String {
    let word = |word: &str| {
        let end = word.trim_end_matches([';', ',']);
        match end.parse::<f64>() {
            Ok(number) if end.starts_with(|c: char| c.is_ascii_digit()) => spelled(number) + &word[end.len()..],
            _ => word.to_owned(),
        }
    };
    text.split(' ').map(word).collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::field;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        for (path, text, value) in [
            ("training.sequence", "4k", json!(4096)),
            ("training.sequence", "8,192", json!(8192)),
            ("training.sequence", "128K", json!(131_072)),
            ("training.global_batch_size", "1,024", json!(1024)),
            // Neither a thousand nor a list of a whole number.
            ("training.sequence", "8,19", json!("8,19")),
            ("memory.limit_bytes", "80 GB", json!(80_000_000_000u64)),
            ("memory.limit_bytes", "80GiB", json!(80u64 << 30)),
            ("memory.limit_bytes", "80", json!(80u64 << 30)),
            ("cluster.node_link.bytes_per_s", "400 Gb/s", json!(50_000_000_000u64)),
            ("cluster.node_link.bytes_per_s", "400 Gbps", json!(50_000_000_000u64)),
            ("cluster.node_link.bytes_per_s", "400 GB/s", json!(400_000_000_000u64)),
            ("cluster.node_link.latency_ns", "12 ms", json!(12_000_000)),
            ("cluster.node_link.latency_ns", "12", json!(12_000)),
            ("problem.transfer_ns", "12 ms", json!(12_000_000)),
            ("memory.limit_bytes", "80 pounds", json!("80 pounds")),
        ] {
            assert_eq!(field(path).unwrap().unit.value_of(text), value, "{path} {text}");
        }
    }
}
