//! Reads a person's JSON or TOML field by field. Every fault is reported at once, each with its place, what was found and what
//! is accepted.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

use serde_json::{Map, Value};

/// One fault of an input: where, what was found, and what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field's path, such as `training.microbatches` or `stages[3].forward_ns`.
    pub field: String,
    /// What was found, shortened; `nothing` where the field is missing.
    pub found: String,
    /// What is accepted, as a noun phrase: `a whole number from 1 to 1024`.
    pub accepted: String,
}

impl Fault {
    /// A fault at `field`.
    pub fn new(field: impl Into<String>, found: impl fmt::Display, accepted: impl Into<String>) -> Fault {
        Fault { field: field.into(), found: shorten(&found.to_string()), accepted: accepted.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, accepted is {}", self.field, self.found, self.accepted)
    }
}

/// All faults of an input, in the order of its fields. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A list of a million wrong entries is said in a few lines.
        const SHOWN: usize = 50;
        for (index, fault) in self.0.iter().take(SHOWN).enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fmt::Display::fmt(fault, f)?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl core::error::Error for Faults {}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Faults {
        Faults(alloc::vec![fault])
    }
}

fn shorten(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain(core::iter::once('…')).collect()
}

/// A value as a fault shows it.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "a table".to_owned(),
        other => shorten(&other.to_string()),
    }
}

/// A whole number, also where it was written as `50.0`.
pub fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        // 2^53: beyond it a float no longer says which whole number was meant.
        ((0.0..=9_007_199_254_740_992.0).contains(&float) && float == libm::trunc(float)).then_some(float as u64)
    })
}

/// As [`whole`], with a sign.
pub fn signed(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let float = value.as_f64()?;
        (libm::fabs(float) <= 9_007_199_254_740_992.0 && float == libm::trunc(float)).then_some(float as i64)
    })
}

/// Bytes: a whole number, or [text with a unit](bytes_of).
pub fn bytes_in(value: &Value) -> Option<u64> {
    whole(value).or_else(|| bytes_of(value.as_str()?))
}

/// Bytes written with a unit: `80 GiB`, `1.5GB`, `512 MiB`, `100 B`.
pub fn bytes_of(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    with_unit(text, &UNITS)
}

/// A number of things written as people say it: `15T`, `300 B`, `1.5 billion`.
pub fn count_of(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 6] = [
        ("million", 1_000_000),
        ("billion", 1_000_000_000),
        ("trillion", 1_000_000_000_000),
        ("M", 1_000_000),
        ("B", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    with_unit(text, &UNITS)
}

fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?.trim_end(), *unit)))?;
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(unit);
    }
    let things = number.parse::<f64>().ok()? * unit as f64;
    // Of 14.8 T, which no float is, as many as are nearest.
    (things <= 9_007_199_254_740_992.0).then_some(libm::trunc(things + 0.5) as u64)
}

/// A table being read. Every read marks its key as known; [`Table::finish`] reports the rest.
pub struct Table<'v> {
    path: String,
    map: &'v Map<String, Value>,
    known: Vec<&'static str>,
}

impl<'v> Table<'v> {
    /// `value` as a table found at `path` (empty at the top).
    pub fn of(value: &'v Value, path: &str, faults: &mut Vec<Fault>) -> Option<Table<'v>> {
        match value {
            Value::Object(map) => Some(Table { path: path.to_owned(), map, known: Vec::new() }),
            other => {
                let path = if path.is_empty() { "the whole input" } else { path };
                faults.push(Fault::new(path, shown(other), "a table of fields"));
                None
            }
        }
    }

    /// The full path of `key`.
    pub fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The raw value at `key`; a null counts as absent.
    pub fn get(&mut self, key: &'static str) -> Option<&'v Value> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The raw value at `key`, which is not marked as known.
    pub fn peek(&self, key: &str) -> Option<&'v Value> {
        self.map.get(key)
    }

    /// Whether a null stands at `key`, where that says something else than nothing does.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// The keys that nothing has read, in order.
    pub fn unread(&self) -> Vec<&'v str> {
        let keys = self.map.iter().map(|(key, _)| key.as_str());
        keys.filter(|key| !self.known.contains(key)).collect()
    }

    /// The table at `key`, if there is one.
    pub fn table(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Option<Table<'v>> {
        let path = self.path(key);
        Table::of(self.get(key)?, &path, faults)
    }

    /// A whole number within `range`, if `key` is there.
    pub fn whole(&mut self, key: &'static str, range: RangeInclusive<u64>, faults: &mut Vec<Fault>) -> Option<u64> {
        let value = self.get(key)?;
        let read = whole(value).filter(|number| range.contains(number));
        if read.is_none() {
            faults.push(Fault::new(
                self.path(key),
                shown(value),
                format!("a whole number from {} to {}", range.start(), range.end()),
            ));
        }
        read
    }

    /// As [`Table::whole`], and a fault where `key` is missing.
    pub fn needed_whole(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
        faults: &mut Vec<Fault>,
    ) -> Option<u64> {
        if self.get(key).is_none() {
            faults.push(Fault::new(
                self.path(key),
                "nothing",
                format!("a whole number from {} to {}", range.start(), range.end()),
            ));
            return None;
        }
        self.whole(key, range, faults)
    }

    /// An amount of bytes within `range`, if `key` is there: a whole number, or text such as `80 GiB`.
    pub fn bytes(&mut self, key: &'static str, range: RangeInclusive<u64>, faults: &mut Vec<Fault>) -> Option<u64> {
        let value = self.get(key)?;
        let read = bytes_in(value).filter(|bytes| range.contains(bytes));
        if read.is_none() {
            let accepted = format!("bytes from {} to {}, or text such as `80 GiB`", range.start(), range.end());
            faults.push(Fault::new(self.path(key), shown(value), accepted));
        }
        read
    }

    /// A number of things, if `key` is there: a whole number, or text such as `15T`.
    pub fn count(&mut self, key: &'static str, range: RangeInclusive<u64>, faults: &mut Vec<Fault>) -> Option<u64> {
        let value = self.get(key)?;
        let read = whole(value).or_else(|| count_of(value.as_str()?)).filter(|count| range.contains(count));
        if read.is_none() {
            let accepted = format!("a whole number from {} to {}, or text such as `15T`", range.start(), range.end());
            faults.push(Fault::new(self.path(key), shown(value), accepted));
        }
        read
    }

    /// A whole number with a sign, if `key` is there.
    pub fn signed(&mut self, key: &'static str, range: RangeInclusive<i64>, faults: &mut Vec<Fault>) -> Option<i64> {
        let value = self.get(key)?;
        let read = signed(value).filter(|number| range.contains(number));
        if read.is_none() {
            faults.push(Fault::new(
                self.path(key),
                shown(value),
                format!("a whole number from {} to {}", range.start(), range.end()),
            ));
        }
        read
    }

    /// A number above 0 and not beyond `most`, if `key` is there.
    pub fn positive(&mut self, key: &'static str, most: f64, faults: &mut Vec<Fault>) -> Option<f64> {
        let value = self.get(key)?;
        let read = value.as_f64().filter(|number| *number > 0.0 && *number <= most);
        if read.is_none() {
            faults.push(Fault::new(self.path(key), shown(value), format!("a number above 0, at most {most}")));
        }
        read
    }

    /// `true` or `false`, if `key` is there.
    pub fn flag(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Option<bool> {
        let value = self.get(key)?;
        if !value.is_boolean() {
            faults.push(Fault::new(self.path(key), shown(value), "true or false"));
        }
        value.as_bool()
    }

    /// Text of at most 200 characters, if `key` is there. Characters that steer a terminal are refused: texts are shown.
    pub fn text(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Option<&'v str> {
        self.text_of(key, 200, faults)
    }

    /// As [`Table::text`], of at most `most` characters.
    pub fn text_of(&mut self, key: &'static str, most: usize, faults: &mut Vec<Fault>) -> Option<&'v str> {
        let value = self.get(key)?;
        let may_be = |text: &&str| text.chars().count() <= most && !text.contains(char::is_control);
        let read = value.as_str().filter(may_be);
        if read.is_none() {
            let accepted = format!("text of at most {most} characters, none of them a control character");
            faults.push(Fault::new(self.path(key), shown(value), accepted));
        }
        read
    }

    /// One of the named choices, if `key` is there.
    pub fn choice<T: Clone>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
        faults: &mut Vec<Fault>,
    ) -> Option<T> {
        let value = self.get(key)?;
        let chosen = value.as_str().and_then(|text| choices.iter().find(|(name, _)| *name == text));
        if chosen.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let accepted = value.as_str().map_or_else(|| one_of(&names), |text| one_of_like(text, &names));
            faults.push(Fault::new(self.path(key), shown(value), accepted));
        }
        chosen.map(|(_, choice)| choice.clone())
    }

    /// Reports every key that nothing has read, with the accepted names.
    pub fn finish(self, faults: &mut Vec<Fault>) {
        for key in self.map.keys() {
            if !self.known.contains(&key.as_str()) {
                faults.push(Fault::new(self.path(key), "an unknown field", one_of_like(key, &self.known)));
            }
        }
    }
}

/// “one of a, b, c”.
pub fn one_of(names: &[&str]) -> String {
    match names {
        [name] => String::from(*name),
        _ => format!("one of {}", names.join(", ")),
    }
}

/// As [`one_of`], with the name first that was probably meant by `found`.
pub fn one_of_like(found: &str, names: &[&str]) -> String {
    let meant = nearest(found, names);
    match &meant[..] {
        [_, ..] if names.len() > 1 => format!("{} (perhaps {})", one_of(names), meant.join(" or ")),
        _ => one_of(names),
    }
}

/// The names that were probably meant by `found`: those that begin with it, where they are few, else the name that a slip of the
/// fingers turns into it.
fn nearest<'n>(found: &str, names: &[&'n str]) -> Vec<&'n str> {
    /// Of fewer letters nobody knows which name they begin.
    const LEAST: usize = 3;
    const MOST: usize = 3;
    let begun = |name: &&&str| {
        name.len() > found.len()
            && name.is_char_boundary(found.len())
            && name[..found.len()].eq_ignore_ascii_case(found)
    };
    let begun: Vec<&str> = names.iter().filter(begun).copied().collect();
    match (LEAST..).contains(&found.len()) && (1..=MOST).contains(&begun.len()) {
        true => begun,
        false => slipped(found, names).into_iter().collect(),
    }
}

/// The name that a slip of the fingers turns into `found`, if there is one: at most two letters, or one of a
/// short name, changed, lost, added or swapped with the next. Capitals and what stands between words are nothing:
/// `Interleaved1F1B` means `interleaved-1f1b`.
fn slipped<'n>(found: &str, names: &[&'n str]) -> Option<&'n str> {
    let longest = 40;
    let letters = |text: &str| -> Vec<char> {
        let lower = text.chars().take(longest + 1).flat_map(char::to_lowercase);
        lower.filter(|letter| letter.is_alphanumeric()).collect()
    };
    let slips = if found.chars().count() > 4 { 2 } else { 1 };
    if found.chars().count() > longest {
        return None;
    }
    let found = letters(found);
    let distance = |name: &&str| distance(&found, &letters(name));
    names.iter().map(|name| (distance(name), *name)).filter(|(far, _)| *far <= slips).min().map(|(_, name)| name)
}

/// Letters changed, lost, added or swapped with their neighbour between two words (Damerau, CACM 7 (1964)).
fn distance(a: &[char], b: &[char]) -> usize {
    // Three rows of the table: the one being filled and the two before it.
    let mut rows = [Vec::new(), Vec::new(), (0..=b.len()).collect::<Vec<_>>()];
    for (i, x) in a.iter().enumerate() {
        rows.rotate_left(1);
        let [before, last, now] = &mut rows;
        now.clear();
        now.push(i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = last[j] + usize::from(x != y);
            let mut least = changed.min(last[j + 1] + 1).min(now[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *y && b[j - 1] == *x {
                least = least.min(before[j - 1] + 1);
            }
            now.push(least);
        }
    }
    rows[2].last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_fingers_is_named() {
        let names = ["heads", "head_dim", "layers", "ffn", "1f1b", "zb-v"];
        for (found, meant) in [
            ("hedas", Some("heads")),
            ("1F1B", Some("1f1b")),
            ("ZBV", Some("zb-v")),
            ("Head Dim", Some("head_dim")),
            ("laeyrs", Some("layers")),
            ("layer", Some("layers")),
            ("head_dims", Some("head_dim")),
            ("1f1", Some("1f1b")),
            ("fnn", Some("ffn")),
            ("zb_v", Some("zb-v")),
            ("2f2b", None),
            ("depth", None),
            ("", None),
        ] {
            assert_eq!(slipped(found, &names), meant, "{found}");
        }
        assert!(slipped(&"x".repeat(1000), &names).is_none());
        // A name that was begun is rather one of those than another of as many letters.
        let devices = ["a100-40", "a100-80", "h100", "h200"];
        assert_eq!(nearest("a100", &devices), ["a100-40", "a100-80"]);
        assert_eq!(nearest("A100-8", &devices), ["a100-80"]);
        assert_eq!(nearest("h10", &devices), ["h100"]);
        assert_eq!(nearest("h1000", &devices), ["h100"]);
        assert_eq!(nearest("a", &devices), [""; 0]);
    }

    #[test]
    fn distances_are_the_books() {
        let far = |a: &str, b: &str| distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        for (a, b, distance) in
            [("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 1), ("abc", "abc", 0)]
        {
            assert_eq!(far(a, b), distance, "{a} {b}");
        }
    }

    #[test]
    fn counts_may_be_said_as_people_say_them() {
        for (text, count) in [
            ("15T", Some(15_000_000_000_000)),
            ("14.8 T", Some(14_800_000_000_000)),
            ("300 billion", Some(300_000_000_000)),
            ("1.4 trillion", Some(1_400_000_000_000)),
            ("2M", Some(2_000_000)),
            ("15", None),
            ("15 GB", None),
            ("many", None),
            ("1e3T", None),
        ] {
            assert_eq!(count_of(text), count, "{text}");
        }
    }

    #[test]
    fn bytes_may_have_a_unit() {
        for (text, bytes) in [
            ("80 GiB", Some(80 << 30)),
            ("1.5GB", Some(1_500_000_000)),
            (" 100 B ", Some(100)),
            ("0.5 KiB", Some(512)),
            ("1e3 GB", None),
            ("-1 GB", None),
            ("GB", None),
            ("80", None),
            ("99999999999999999999 TB", None),
            ("inf GB", None),
        ] {
            assert_eq!(bytes_of(text), bytes, "{text}");
        }
    }
}
