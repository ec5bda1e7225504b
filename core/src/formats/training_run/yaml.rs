//! Arguments in YAML: a table with an entry for each, such as `num_layers: 24` or `--num-layers: 24`, or a list with an item for each
//! word. Tables within tables are read as one.
//!
//! This is the part of YAML that lists of arguments have: no anchors, no tables in braces.

use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// What a text of YAML holds.
#[derive(Default)]
pub(super) struct Yaml {
    /// Words of lists.
    pub words: Vec<String>,
    /// Entries of tables.
    pub entries: Vec<Entry>,
    /// Blocks of text that hold commands, and their first lines.
    pub scripts: Vec<(usize, String)>,
}

/// Longest path of a table.
const MOST_OF_PATH: usize = 256;

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The names of the tables that it is in, with points between them.
    pub path: Rc<str>,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Yaml {
    /// Lists, and those entries that are to be kept, as words of arguments.
    pub fn arguments(&self, keeps: impl Fn(&Entry) -> bool) -> Vec<String> {
        let entries = self.entries.iter().filter(|entry| keeps(entry));
        let entries = entries.flat_map(|Entry { name, value, .. }| [alloc::format!("--{name}"), value.clone()]);
        self.words.iter().cloned().chain(entries).collect()
    }
}

/// Whether a text has an argument as YAML writes it.
pub(super) fn is_any(text: &str) -> bool {
    let is_entry = |line: &str| {
        let line = line.trim().trim_start_matches("- ").trim_start_matches(['-', '"', '\'']);
        let name = line.split([':', ' ', '"', '\'', '=']).next().unwrap_or_default().replace('-', "_");
        let behind = line.get(name.len()..).unwrap_or_default().trim_start_matches(['"', '\'']);
        matches!(name.as_str(), "num_layers" | "hidden_size") && (behind.starts_with(": ") || is_item(line, behind))
    };
    fn is_item(line: &str, behind: &str) -> bool {
        !line.ends_with('\\') && behind.is_empty()
    }
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.any(|line| {
        let is_list = line.trim_start().starts_with("- ");
        (is_list || line.contains(": ")) && is_entry(line)
            || is_list && line.contains("--num-layers") && line.trim_start().starts_with("- --")
            || is_list && line.contains("--num-layers") && line.trim_start().starts_with("- \"--")
    })
}

/// Reads it.
pub(super) fn read(text: &str) -> Yaml {
    let mut yaml = Yaml::default();
    let lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    // The tables that are open, each with how far its name stands from the margin, and the path of what is in it.
    let mut tables: Vec<(usize, Rc<str>)> = Vec::new();
    let top: Rc<str> = Rc::from("");
    while let Some(line) = lines.get(at) {
        at += 1;
        let content = without_comment(line).trim();
        if content.is_empty() || content == "---" {
            continue;
        }
        let (is_item, entry) = match content.strip_prefix("- ") {
            Some(entry) => (true, entry.trim()),
            None => (false, content),
        };
        if let Some(head) = entry.strip_suffix(['|', '>']).or(entry.strip_suffix("|-")).or(entry.strip_suffix(">-"))
            && (head.is_empty() || head.ends_with(": "))
        {
            let depth = line.len() - line.trim_start().len();
            let from = at;
            while lines.get(at).is_some_and(|line| line.trim().is_empty() || indent(line) > depth) {
                at += 1;
            }
            yaml.scripts.push((from + 1, lines[from..at].join("\n")));
            continue;
        }
        if is_item
            && (entry.starts_with('-') || entry.starts_with("\"-") || entry.starts_with("'-") || !has_key(entry))
        {
            yaml.words.extend(unquoted(entry).split_whitespace().map(String::from));
            continue;
        }
        if let Some((key, value)) = entry.split_once(": ").or(entry.strip_suffix(':').map(|key| (key, ""))) {
            let (key, value) = (unquoted(key.trim()), value.trim());
            while tables.pop_if(|(depth, _)| *depth >= indent(line)).is_some() {}
            let path = tables.last().map_or(&top, |(_, path)| path).clone();
            put(&mut yaml, Rc::clone(&path), key, value);
            // A path that is longer than people write stays as it is: each table has one.
            if value.is_empty() && path.len() + key.len() < MOST_OF_PATH {
                let path = if path.is_empty() { Rc::from(key) } else { alloc::format!("{path}.{key}").into() };
                tables.push((indent(line), path));
            } else if value.is_empty() {
                tables.push((indent(line), path));
            }
        }
    }
    yaml
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn has_key(entry: &str) -> bool {
    entry.contains(": ") || entry.ends_with(':')
}

fn without_comment(line: &str) -> &str {
    match line.find(" #") {
        _ if line.trim_start().starts_with('#') => "",
        Some(at) if line[..at].matches(['"', '\'']).count().is_multiple_of(2) => &line[..at],
        _ => line,
    }
}

fn unquoted(text: &str) -> &str {
    let inner = |quote: char| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    inner('"').or(inner('\'')).unwrap_or(text)
}

/// Keeps an entry of the tables `path`, where it may be an argument.
fn put(yaml: &mut Yaml, path: Rc<str>, key: &str, value: &str) {
    let name = key.trim_start_matches('-');
    let is_name = name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-'));
    // Capitals are variables of the environment.
    if !is_name || value.is_empty() || matches!(value, "null" | "~" | "None") {
        return;
    }
    yaml.entries.push(Entry { path, name: name.to_string(), value: unquoted(value).to_string() });
}
