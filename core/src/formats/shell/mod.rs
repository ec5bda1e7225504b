//! Bash, read as a shell reads it, without running anything: what commands a script comes to, and with which words.
//!
//! - In: a script, and values for what it takes from elsewhere.
//! - Out: the commands that it would run, with all words; what a word depends on that only a running shell knows.
//!
//! Everything that is plain text is evaluated: variables, lists, arithmetic, branches, loops, functions, here-documents and
//! the builtins that print. What depends on the environment is an *unknown*: a mark in the text that goes where the value goes.
//! A branch on an unknown is read both ways, and what differs afterwards is unknown for the same reason. So an unknown is asked
//! for only where it decides something.
//!
//! Steps, sizes and nesting are bounded. No parser of Bash works without an operating system, as this crate must; so the grammar
//! is here, and tests compare it with Bash itself.

mod arithmetic;
mod builtins;
mod conditions;
mod expand;
mod parse;
mod pattern;
mod run;
mod slurm;
mod state;
mod syntax;
#[cfg(test)]
mod tests;
mod words;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

pub use slurm::BatchJob;
use state::Shell;

/// Commands and quotes within each other.
const DEEPEST: usize = 48;
/// What a script may cost: a step counts 64, a byte of a value one.
const MOST_WORK: u64 = 1 << 27;
/// Bytes of a value, and elements of a list.
const MOST_OF_VALUE: usize = 1 << 16;
/// Bytes of a script.
pub const MOST_OF_SCRIPT: usize = 1 << 20;

/// What is no script, or has no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellFault {
    /// From 1.
    pub line: usize,
    /// What is wrong there.
    pub problem: String,
}

impl fmt::Display for ShellFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

/// Something that only a running shell knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// A variable, or what stands in the script.
    pub name: String,
    /// Whether a person can give the value of that name.
    pub is_variable: bool,
    /// Whether it is a variable that the script never sets.
    is_unset: bool,
    /// What the script compares it with.
    pub values: BTreeSet<String>,
    /// Where branches differ: the words of each.
    pub alternatives: Vec<Vec<String>>,
    /// The unknown on which the branch depends.
    base: Option<usize>,
}

/// A command that a script comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Where it stands, from 1.
    pub line: usize,
    /// Its words, with marks for what is unknown.
    pub words: Vec<String>,
    /// The assignments before it, and the exported variables that launchers read.
    pub environment: BTreeMap<String, String>,
    /// The unknown on which it depends whether it runs.
    pub only_if: Option<usize>,
    /// The batch job that it is part of.
    pub batch: BatchJob,
}

/// What a script comes to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The commands with arguments.
    pub ran: Vec<Ran>,
    /// The batch job that the script is.
    pub batch: BatchJob,
    /// What marks stand for.
    pub unknowns: Vec<Unknown>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// The line on which the script ends by itself.
    pub ended: Option<usize>,
    /// Names that were given, and that the script does not have.
    pub unused: Vec<String>,
    /// Files that it takes variables from, and whose text is not given: paths from the script's folder.
    pub wanted: BTreeSet<String>,
    /// Lists and texts of arguments that the script sets, in order of name.
    pub lists: Vec<Vec<String>>,
}

impl Outcome {
    /// The unknown to ask for.
    pub fn root(&self, unknown: usize) -> Option<&Unknown> {
        let mut at = unknown;
        // Each base was made before what depends on it.
        while let Some(base) = self.unknowns.get(at)?.base.filter(|base| *base < at) {
            at = base;
        }
        self.unknowns.get(at)
    }

    /// `text` as a person reads it: `$NAME` for what is unknown.
    pub fn shown(&self, text: &str) -> String {
        let mut shown = String::new();
        for part in parts(text) {
            match part {
                Part::Text(text) => shown.push_str(text),
                Part::Unknown(unknown) => match self.root(unknown) {
                    Some(unknown) if unknown.is_variable => shown.push_str(&format!("${}", unknown.name)),
                    Some(unknown) => shown.push_str(&unknown.name),
                    None => shown.push('?'),
                },
            }
        }
        shown
    }
}

/// What the script `text` comes to, where `given` names have these values whatever the script assigns, and `files` are those
/// that it may take variables from, by their paths from its folder.
///
/// # Errors
/// Where the text is no script, or takes more steps than it may.
pub fn read(
    text: &str,
    given: &BTreeMap<String, String>,
    files: &BTreeMap<String, String>,
) -> Result<Outcome, ShellFault> {
    if text.len() > MOST_OF_SCRIPT {
        let problem = format!("a script has at most {MOST_OF_SCRIPT} bytes, and this one has {}", text.len());
        return Err(ShellFault { line: 1, problem });
    }
    let mut shell = Shell::new(given, files);
    let batch = BatchJob::of(text);
    shell.begin_batch(batch.clone());
    // A script has no marks of its own; what it evaluates may have them.
    let text: String = text.chars().map(plain_letter).collect();
    let ended = shell.script(&text, 1)?;
    let unused = given.keys().filter(|name| !shell.used.contains(*name)).cloned().collect();
    let lists = shell.state.lists();
    let mut ran: Vec<Ran> = Vec::new();
    for command in shell.state.ran {
        // Loops that try again run the same.
        if !ran.iter().any(|known| known.words == command.words && known.environment == command.environment) {
            ran.push(command);
        }
    }
    Ok(Outcome {
        ran,
        batch,
        unknowns: shell.unknowns,
        notes: shell.notes.into_iter().collect(),
        ended,
        unused,
        wanted: shell.wanted,
        lists,
    })
}

/// A part of a text with marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'t> {
    /// Plain text.
    Text(&'t str),
    /// A mark, by its number in [`Outcome::unknowns`].
    Unknown(usize),
}

/// Letters of the private use area, which no script has.
const MARK: char = '\u{F8F0}';
const MARK_END: char = '\u{F8F1}';

/// A letter of a script that is no mark.
fn plain_letter(letter: char) -> char {
    if matches!(letter, MARK | MARK_END) { '\u{FFFD}' } else { letter }
}

fn mark(unknown: usize) -> String {
    format!("{MARK}{unknown}{MARK_END}")
}

/// The parts of a text.
pub fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut left = text;
    core::iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        if let Some((number, rest)) = left.strip_prefix(MARK).and_then(|behind| behind.split_once(MARK_END)) {
            left = rest;
            return Some(Part::Unknown(number.parse().unwrap_or(usize::MAX)));
        }
        let end = left.char_indices().skip(1).find(|(_, letter)| *letter == MARK).map_or(left.len(), |(at, _)| at);
        let (text, rest) = left.split_at(end);
        left = rest;
        Some(Part::Text(text))
    })
}

/// The first unknown of a text.
pub fn unknown_in(text: &str) -> Option<usize> {
    parts(text).find_map(|part| match part {
        Part::Unknown(unknown) => Some(unknown),
        Part::Text(_) => None,
    })
}

/// The unknown that a text is, and nothing else.
pub fn only_unknown(text: &str) -> Option<usize> {
    let mut parts = parts(text);
    match (parts.next(), parts.next()) {
        (Some(Part::Unknown(unknown)), None) => Some(unknown),
        _ => None,
    }
}

/// The path from a script's folder, where a text names a file by a folder that nobody knows, or by none: `models/a.sh` of
/// `$HERE/models/a.sh`.
pub fn path_of(text: &str) -> Option<&str> {
    let mut parts = parts(text);
    let path = match (parts.next()?, parts.next(), parts.next()) {
        (Part::Text(path), None, _) => path,
        (Part::Unknown(_), Some(Part::Text(path)), None) => path.strip_prefix('/')?,
        _ => return None,
    };
    let path = path.trim_start_matches("./");
    (!path.is_empty() && !path.starts_with('~') && path.len() < 1024).then_some(path)
}

/// Whether a letter may stand in a variable's name.
fn in_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}
