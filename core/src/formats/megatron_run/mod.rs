//! A run of Megatron-LM, read from what it prints: the arguments at the start of its log, or those of a command line or launch
//! script, and what the log says of steps and memory.
//!
//! A log has one line for each argument, `  num_layers ...... 32`, with every default. A command line has `--num-layers 32`; in a
//! script, variables that it sets to plain text are known. Arguments that decide bytes and operations become a spec; the rest is
//! left out. Where a spec cannot say what an argument says, a note tells so.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use crate::base::fields::{Fault, Faults};
use crate::base::units::{Bytes, Nanos};
use crate::plan::verdict::RankMemory;
use crate::spec::Spec;

mod spec;

use spec::Reader;

/// What a log or a command line says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MegatronRun {
    /// By name, with `_` between words.
    arguments: BTreeMap<String, String>,
    /// The vocabulary as it was padded, where the log says so.
    padded_vocab: Option<u64>,
    /// Devices, where the log or the launcher's arguments say so.
    devices: Option<u64>,
    /// How long each reported step took on average.
    pub steps_ns: Vec<Nanos>,
    /// By global rank, the most that its tensors held at once.
    pub peaks: BTreeMap<u64, Peak>,
}

/// What a log says of a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The most bytes.
    pub bytes: Bytes,
    /// Whether that was told after the first step: moments are made at its end, when its activations are gone.
    pub of_first_step: bool,
}

impl Peak {
    /// What a plan says of the same: of a rank that holds so much.
    pub fn planned(&self, rank: &RankMemory) -> Bytes {
        match self.of_first_step {
            true => rank.peak.saturating_sub(rank.fixed.optimizer).max(rank.fixed.total()),
            false => rank.peak,
        }
    }
}

/// A run as a spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// What was said, as a spec says it.
    pub value: Value,
    /// The spec.
    pub spec: Spec,
    /// What a spec has no word for, or says otherwise.
    pub notes: Vec<String>,
}

/// Lines of a log that are read, and characters of one.
const MOST_LINES: usize = 4_000_000;
const MOST_OF_LINE: usize = 1 << 20;
/// Variables of a script, and characters of what one stands for: `A=$A$A` again and again would fill any memory.
const MOST_VARIABLES: usize = 10_000;
const MOST_OF_VARIABLE: usize = 1 << 12;

impl MegatronRun {
    /// What `text` says. Lines that say nothing are passed over.
    pub fn read(text: &str) -> MegatronRun {
        let mut run = MegatronRun::default();
        let (mut launched, mut printed) = (BTreeMap::new(), BTreeMap::new());
        let mut variables: BTreeMap<String, String> = BTreeMap::new();
        let mut continued = String::new();
        for line in text.lines().take(MOST_LINES).filter(|line| line.len() <= MOST_OF_LINE) {
            if let Some((name, value)) = printed_argument(line) {
                printed.insert(name.to_owned(), value.to_owned());
                continue;
            }
            run.read_measured(line);
            // A command goes on behind a backslash.
            if let Some(begun) = line.trim_end().strip_suffix('\\')
                && continued.len() < MOST_OF_LINE
            {
                continued.push_str(begun);
                continued.push(' ');
                continue;
            }
            continued.push_str(line);
            read_command(&core::mem::take(&mut continued), &mut variables, &mut launched);
        }
        let [per_node, nodes] = ["nproc_per_node", "nnodes"].map(|name| number_of(&launched, name));
        run.devices = number_of(&printed, "world_size")
            .or(run.devices)
            .or_else(|| per_node?.checked_mul(nodes.unwrap_or(1)))
            .filter(|devices| *devices > 0);
        launched.append(&mut printed);
        run.arguments = launched;
        run
    }

    /// Whether it says anything of a model.
    pub fn is_any(&self) -> bool {
        self.arguments.contains_key("num_layers") && self.arguments.contains_key("hidden_size")
    }

    /// The step in the middle of those that were reported.
    pub fn typical_step_ns(&self) -> Option<Nanos> {
        let mut steps = self.steps_ns.clone();
        // The first has what is only done once in it.
        if steps.len() > 1 {
            steps.remove(0);
        }
        steps.sort_unstable();
        steps.get(steps.len() / 2).copied()
    }

    /// Takes what a line says of steps, memory, the vocabulary and devices.
    fn read_measured(&mut self, line: &str) {
        const MIB: f64 = 1_048_576.0;
        if let Some(ms) = number_behind(line, "elapsed time per iteration (ms):") {
            self.steps_ns.push((ms * 1e6) as Nanos);
        }
        if let Some((rank, peak)) = number_behind(line, "[Rank").zip(number_behind(line, "max allocated:")) {
            let of_first_step = number_behind(line, "(after") == Some(1.0);
            let said = Peak { bytes: (peak * MIB) as Bytes, of_first_step };
            let known = self.peaks.entry(rank as u64).or_insert(said);
            // What a later step says is of all steps until then.
            if known.of_first_step || !of_first_step && said.bytes > known.bytes {
                *known = said;
            }
        }
        if line.contains("padded vocab") {
            self.padded_vocab = number_behind(line, "new size:").map(|size| size as u64).or(self.padded_vocab);
        }
        if let Some(devices) = number_behind(line, "using world size:") {
            self.devices = Some(devices as u64);
        }
    }

    /// The spec of the run on `device`, of the catalog, and on so many `devices` where it does not say so itself.
    ///
    /// # Errors
    /// The missing arguments, and those that no spec can express, each fault with its argument.
    pub fn spec(&self, device: &str, devices: Option<u64>) -> Result<Imported, Faults> {
        let mut reader = Reader { run: self, faults: Vec::new(), notes: Vec::new() };
        let value = reader.spec(device, devices.or(self.devices));
        let Reader { mut faults, notes, .. } = reader;
        match value {
            Some(value) if faults.is_empty() => {
                let spec = Spec::from_value(&value)?;
                Ok(Imported { value, spec, notes })
            }
            _ => {
                if faults.is_empty() {
                    faults.push(Fault::new("the run", "no model", "the arguments of a run of Megatron-LM"));
                }
                Err(Faults(faults))
            }
        }
    }
}

/// `  num_layers ......... 32` of a log, whatever stands before it on its line.
fn printed_argument(line: &str) -> Option<(&str, &str)> {
    let (before, behind) = line.split_once(" ...")?;
    let name = before.rsplit([' ', '\t', ']', ':', '>']).next()?;
    let is_name = name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let value = behind.trim_start_matches('.');
    (is_name && (value.is_empty() || value.starts_with(' '))).then(|| (name, value.trim()))
}

/// Takes the variables that a command sets, and its arguments.
fn read_command(command: &str, variables: &mut BTreeMap<String, String>, arguments: &mut BTreeMap<String, String>) {
    if !command.contains("--") && !command.contains('=') {
        return;
    }
    // Logs have quotes that no shell would close.
    let words = shlex::split(command).unwrap_or_else(|| command.split_whitespace().map(String::from).collect());
    let mut open: Option<String> = None;
    for word in words {
        let word = with_variables(&word, variables);
        if let Some(name) = word.strip_prefix("--").filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        {
            let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
            let name = name.replace('-', "_");
            arguments.insert(name.clone(), value.unwrap_or_default().to_owned());
            open = value.is_none().then_some(name);
            continue;
        }
        let is_name = |name: &str| {
            !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        };
        match (&open, word.split_once('=')) {
            // In an array the values of the last argument end with its parenthesis.
            (Some(name), _) if word != ")" => {
                let value = arguments.entry(name.clone()).or_default();
                if !value.is_empty() {
                    value.push(' ');
                }
                value.push_str(word.trim_end_matches(')'));
            }
            (None, Some((name, value))) if is_name(name) => {
                if value.len() <= MOST_OF_VARIABLE && variables.len() < MOST_VARIABLES {
                    variables.insert(name.to_owned(), value.to_owned());
                }
            }
            _ => open = None,
        }
    }
}

/// `word` with the variables that are known: `$TP`, `${TP}`, and `${TP:-8}` with what stands there where they are not.
fn with_variables(word: &str, variables: &BTreeMap<String, String>) -> String {
    let mut left = word;
    let mut said = String::new();
    while let Some((before, behind)) = left.split_once('$') {
        said.push_str(before);
        let inner = behind.strip_prefix('{').and_then(|behind| behind.split_once('}'));
        let (name, usual, rest) = match inner {
            Some((inner, rest)) => {
                let (name, usual) = inner.split_once(":-").map_or((inner, None), |(name, usual)| (name, Some(usual)));
                (name, usual, rest)
            }
            None => {
                let end = behind.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
                let (name, rest) = behind.split_at(end.unwrap_or(behind.len()));
                (name, None, rest)
            }
        };
        match variables.get(name).map(String::as_str).or(usual) {
            Some(value) if said.len() <= MOST_OF_LINE => said.push_str(value),
            _ => said.push_str(&format!("${name}")),
        }
        left = rest;
    }
    said.push_str(left);
    said
}

/// The number right behind `words` in `line`.
fn number_behind(line: &str, words: &str) -> Option<f64> {
    let behind = line.split_once(words)?.1.trim_start();
    let end = behind.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(behind.len());
    behind[..end].parse().ok().filter(|number: &f64| number.is_finite() && *number < 1e15)
}

fn number_of(arguments: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    first_word(arguments.get(name)?).parse().ok()
}

/// A launcher's last argument has the program behind it.
fn first_word(value: &str) -> &str {
    value.split_whitespace().next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
