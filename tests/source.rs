//! Rules for the source itself, for those who read it: how long a function may be, and which words a text uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pipeplan_tests::process::top;

/// The most lines of a function, its signature and closing brace included.
const LINES: usize = 100;

/// What the comment above a longer function says, with the reason.
const ON_PURPOSE: &str = "Long on purpose:";

/// Words that texts for people do not use, and the field's term for each.
const WORDS: &[(&str, &str)] = &[
    ("as carried", "with communication"),
    ("bare matrices", "no linear bias"),
    ("cap of logits", "logit soft-cap"),
    ("cap of scores", "attention soft-cap"),
    ("copies share", "ZeRO stage"),
    ("experts dealt", "expert parallel"),
    ("further tokens", "multi-token prediction (MTP) modules"),
    ("head width", "head dim"),
    ("norms behind", "post-norm"),
    ("norms of heads", "QK-norm"),
    ("parts of sequences", "context parallel"),
    ("relief", "suggestions"),
    ("rotary base", "RoPE theta"),
    ("sum of dX", "TP all-reduce"),
    ("turned columns", "partial rotary dim"),
    ("two-way", "bidirectional"),
    ("would have", "the present tense"),
    ("would hold", "needs"),
];

/// Values in files and input that keep an old word: texts may name them so.
const VALUES: &[&str] = &["`two-way`", "\"two-way\"", "placement two-way", "wave two-way any"];

/// Every Rust file of the project below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !matches!(name.as_str(), "target" | "dist" | "pkg" | "output") {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> BTreeMap<String, String> {
    let mut paths = Vec::new();
    for crate_folder in ["core", "exact", "js", "native", "python", "tests", "web"] {
        sources(&top().join(crate_folder), &mut paths);
    }
    let named = paths.into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.strip_prefix(top()).unwrap().display().to_string(), text)
    });
    named.collect()
}

/// The name of the function whose signature begins in a line.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    loop {
        if let Some(named) = rest.strip_prefix("fn ") {
            return named.split(['(', '<']).next();
        }
        let (word, after) = rest.split_once(' ')?;
        if !(word.starts_with("pub")
            || matches!(word, "const" | "unsafe" | "async" | "extern" | "\"C\"" | "\"system\""))
        {
            return None;
        }
        rest = after;
    }
}

/// Functions longer than [`LINES`] that do not say why, with their first line and their length.
///
/// The source is as rustfmt writes it: a function ends where a brace stands as far in as its signature.
fn long_functions(text: &str) -> Vec<(usize, &str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        if line.ends_with('}') || line.ends_with(';') {
            continue;
        }
        let Some(length) = lines[first..].iter().position(|line| *line == end).map(|last| last + 1) else { continue };
        let above = lines[..first].iter().rev().take_while(|line| {
            let line = line.trim_start();
            line.starts_with("//") || line.starts_with('#')
        });
        if length > LINES && !above.into_iter().any(|line| line.contains(ON_PURPOSE)) {
            found.push((first + 1, name, length));
        }
    }
    found
}

#[test]
fn functions_are_short_or_say_why_not() {
    let mut told = String::new();
    for (path, text) in all_sources() {
        for (line, name, length) in long_functions(&text) {
            told.push_str(&format!("{path}:{line}: `{name}` has {length} lines\n"));
        }
    }
    assert!(
        told.is_empty(),
        "a function has at most {LINES} lines, or a comment above it that begins with `{ON_PURPOSE}` and says why:\n{told}"
    );
}

#[test]
fn long_functions_are_found() {
    let body = "    let _ = 1;\n".repeat(LINES);
    let text = format!(
        "impl Kind {{\n    pub(super) const fn short() {{}}\n}}\npub async fn long<T>(x: T)\nwhere\n    T: Clone,\n{{\n{body}}}\n\
         /// Long on purpose: a table.\n#[test]\nfn table() {{\n{body}}}\n"
    );
    assert_eq!(long_functions(&text), [(4, "long", LINES + 5)]);
}

/// The texts of a source: its string literals, those of tests left out, and its documentation.
fn texts(tokens: proc_macro2::TokenStream, found: &mut Vec<String>) {
    let mut skip = false;
    for token in tokens {
        match token {
            proc_macro2::TokenTree::Group(group) => {
                let inside = group.stream();
                let attribute = inside.to_string();
                if skip && group.delimiter() == proc_macro2::Delimiter::Brace {
                    skip = false;
                    continue;
                }
                skip |= group.delimiter() == proc_macro2::Delimiter::Bracket
                    && matches!(attribute.replace(' ', "").as_str(), "cfg(test)" | "test");
                texts(inside, found);
            }
            proc_macro2::TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.starts_with(['"', 'r']) {
                    found.push(text);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn texts_use_the_words_of_the_field() {
    let mut told = String::new();
    let mut look = |place: &str, text: &str| {
        let lower = VALUES.iter().fold(text.to_lowercase(), |text, value| text.replace(value, ""));
        for (word, term) in WORDS.iter().filter(|(word, _)| lower.contains(&word.to_lowercase())) {
            let short: String = text.chars().take(100).collect();
            told.push_str(&format!("{place}: \"{word}\" is \"{term}\": {short}\n"));
        }
    };
    for (path, text) in all_sources() {
        let file = path.rsplit('/').next().unwrap_or_default();
        if path.starts_with("tests/") || path.contains("/tests/") || file == "tests.rs" {
            continue;
        }
        let mut found = Vec::new();
        texts(text.parse().unwrap_or_else(|error| panic!("{path}: {error}")), &mut found);
        found.iter().for_each(|text| look(&path, text));
    }
    assert!(told.is_empty(), "texts for people use the field's terms:\n{told}");
}
