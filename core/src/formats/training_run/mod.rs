//! A run of Megatron-LM or torchtitan, read from what it prints: the arguments at the start of its log, or those of a command line,
//! a launch script or a config, and what the log says of steps and memory.
//!
//! A log has one line for each argument, `  num_layers ...... 32`, with every default. A command line has `--num-layers 32`. A
//! script is read as a shell reads it, without running anything. Arguments that decide bytes and operations become a spec.
//! [`arguments`] says of each one what it decides; none is passed over in silence.

use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use crate::base::fields::{Fault, Faults};
use crate::base::units::{Bytes, Nanos};
use crate::formats::shell::{self, BatchJob, Outcome};
use crate::plan::verdict::RankMemory;
use crate::spec::Spec;

pub mod arguments;
mod fields;
mod flavours;
mod heard;
mod known;
mod lists;
mod model;
mod nemo;
mod other;
mod parallel;
mod rules;
mod source;
mod spec;
mod torchtitan;
mod training;
mod verl;
mod yaml;

pub use other::likely;
use spec::Reader;

/// What a log or a command line says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainingRun {
    /// By name, with `_` between words.
    arguments: BTreeMap<String, String>,
    /// What other arguments say by the names of Megatron-LM: the value, and the argument that says it, if one does.
    derived: BTreeMap<String, (String, String)>,
    /// The `config.json` of the model, as a person gives it.
    config: Option<String>,
    /// The vocabulary as it was padded, where the log says so.
    padded_vocab: Option<u64>,
    /// Devices, where the log or the launcher's arguments say so.
    devices: Option<u64>,
    /// The unknown on which their number depends, and what to give.
    devices_asked: Option<(String, String)>,
    /// Whether the text was read as a script.
    is_script: bool,
    /// Whether the text has arguments of a model, by the names of one of the frameworks.
    is_known: bool,
    /// Arguments whose values are asked for.
    asked: BTreeSet<String>,
    /// Files whose text it takes.
    wanted: BTreeSet<String>,
    /// What is wrong with the text.
    faults: Vec<Fault>,
    /// What was assumed of it.
    notes: Vec<String>,
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
    /// What was done with each argument.
    pub arguments: Arguments,
}

/// Lines of a log that are read, and characters of one.
const MOST_LINES: usize = 4_000_000;
const MOST_OF_LINE: usize = 1 << 20;

/// What a person adds to a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Values of a script's variables, whatever it assigns to them; `1` is the first thing that it is called with.
    pub variables: BTreeMap<String, String>,
    /// Which training command of several, from 1.
    pub command: Option<usize>,
    /// Texts of the files that a script takes variables from, or a job config, by the paths that
    /// [`wanted_files`](TrainingRun::wanted_files) tells.
    pub files: BTreeMap<String, String>,
    /// The `config.json` of the model that the text names.
    pub config: Option<String>,
}

/// What was done with each argument, by names with dashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// They decide the plan.
    pub used: Vec<String>,
    /// They do not change it.
    pub harmless: Vec<String>,
    /// They change it, and it is planned otherwise: how.
    pub not_modelled: BTreeMap<String, String>,
    /// Nobody knows.
    pub not_known: Vec<String>,
}

impl TrainingRun {
    /// What `text` says, with nothing added to it.
    pub fn read(text: &str) -> TrainingRun {
        TrainingRun::read_with(text, &Given::default())
    }

    /// What `text` says. Lines of a log that say nothing are passed over.
    pub fn read_with(text: &str, given: &Given) -> TrainingRun {
        let mut run = TrainingRun { config: given.config.clone(), ..TrainingRun::default() };
        let mut printed = BTreeMap::new();
        // Lines beyond are no script's.
        for line in text.lines().take(MOST_LINES).filter(|line| line.len() <= MOST_OF_LINE) {
            match printed_argument(line) {
                Some((name, value)) => {
                    printed.insert(name.to_owned(), value.to_owned());
                }
                None => run.read_measured(line),
            }
        }
        let is_measured = !run.steps_ns.is_empty() || !run.peaks.is_empty() || run.padded_vocab.is_some();
        run.is_known = ["num-layers", "num_layers"].iter().any(|name| text.contains(name))
            || text.contains("actor_rollout_ref.");
        if is_measured || printed.contains_key("num_layers") {
            if text.lines().nth(MOST_LINES).is_some() {
                run.notes.push(format!("lines behind line {MOST_LINES} are not read"));
            }
            run.read_lines(text);
            run.devices = number_of(&printed, "world_size").or(run.devices);
            run.arguments.append(&mut printed);
        } else if !run.read_torchtitan(text) {
            if run.is_known && yaml::is_any(text) {
                run.read_yaml(text, given);
            } else if run.is_known || text.len() <= shell::MOST_OF_SCRIPT {
                run.read_script(text, given);
            }
        }
        run.devices = run.devices.filter(|devices| *devices > 0);
        run.find_unread(given);
        run
    }

    /// What a person gives and nothing reads is no part of the plan.
    fn find_unread(&mut self, given: &Given) {
        if !self.is_script {
            for name in given.variables.keys() {
                self.faults.push(Fault::new(
                    format!("--set {name}"),
                    "a text that is no script",
                    "a script, which has variables",
                ));
            }
            if let Some(number) = given.command {
                self.faults.push(Fault::new("--command", number, "a script: this text is none"));
            }
        }
        if given.config.is_some() && !self.is_verl() {
            let accepted = "a command of verl: others have the model in their own arguments";
            self.faults.push(Fault::new("--config", "a file", accepted));
        }
    }

    /// The arguments among a log's lines: those that begin with one, and command lines.
    fn read_lines(&mut self, text: &str) {
        let mut continued = String::new();
        for line in text.lines().take(MOST_LINES).filter(|line| line.len() <= MOST_OF_LINE) {
            let begins =
                line.trim_start().starts_with("--") || line.contains("--num-layers") || line.contains("--num_layers");
            if !begins && continued.is_empty() {
                continue;
            }
            // A command goes on behind a backslash.
            if let Some(begun) = line.trim_end().strip_suffix('\\')
                && continued.len() < MOST_OF_LINE
            {
                continued.push_str(begun);
                continued.push(' ');
                continue;
            }
            continued.push_str(line);
            let command = core::mem::take(&mut continued);
            // Logs have quotes that no shell would close.
            let words =
                shlex::split(&command).unwrap_or_else(|| command.split_whitespace().map(String::from).collect());
            self.read_command(&words, &Outcome::default(), &BatchJob::default(), &BTreeMap::new());
        }
    }

    /// Whether it says anything of a model, or of how it is trained.
    pub fn is_any(&self) -> bool {
        self.arguments.contains_key("num_layers") && self.arguments.contains_key("hidden_size")
            || self.is_torchtitan()
            || self.is_verl()
            || source::PARALLEL.iter().any(|name| self.arguments.contains_key(*name))
            || self.is_known && !self.faults.is_empty()
    }

    /// Files that the text takes variables or a job config from, and that are not among [`Given::files`]: paths from its folder,
    /// or from one above it.
    pub fn wanted_files(&self) -> &BTreeSet<String> {
        &self.wanted
    }

    /// Whether `field` of a fault is one of its arguments, or one that it lacks.
    pub fn has(&self, field: &str) -> bool {
        field.starts_with("--") || self.arguments.contains_key(field)
    }

    /// The framework, for a person.
    pub fn framework(&self) -> &'static str {
        match () {
            () if self.is_torchtitan() => "torchtitan",
            () if self.is_verl() => "verl",
            () => "Megatron-LM",
        }
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

    /// What is done with each argument, as far as its name and value tell.
    pub fn sorted_arguments(&self) -> Arguments {
        let mut reader = Reader {
            run: self,
            derived: self.derived.clone(),
            faults: Vec::new(),
            notes: Vec::new(),
            heard: Arguments::default(),
        };
        reader.hear();
        reader.heard
    }

    /// The spec of the run on `device`, of the catalog, and on so many `devices` where it does not say so itself.
    ///
    /// # Errors
    /// The missing arguments, and those that no spec can express, each fault with its argument.
    pub fn spec(&self, device: &str, devices: Option<u64>) -> Result<Imported, Faults> {
        let mut reader = Reader {
            run: self,
            derived: self.derived.clone(),
            faults: self.faults.clone(),
            notes: self.notes.clone(),
            heard: Arguments::default(),
        };
        reader.hear();
        // One fault of the text stands for all that it hides.
        let is_hidden = self.arguments.is_empty() && !reader.faults.is_empty();
        let value = if is_hidden { None } else { reader.spec(device, devices.or(self.devices)) };
        let Reader { mut faults, notes, heard, derived, .. } = reader;
        // A person knows the argument that says it.
        for fault in &mut faults {
            let said =
                derived.iter().find(|(name, _)| arguments::typed(name) == fault.field).map(|(_, (_, from))| from);
            if let Some(from) = said.filter(|from| !from.is_empty()) {
                fault.field.clone_from(from);
            }
        }
        match value {
            Some(value) if faults.is_empty() => {
                let spec = Spec::from_value(&value)?;
                Ok(Imported { value, spec, notes, arguments: heard })
            }
            _ => {
                if faults.is_empty() {
                    faults.push(Fault::new("the run", "no model", "the arguments of a run"));
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
