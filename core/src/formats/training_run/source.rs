//! Where arguments stand: a log, a command line, a script or a table of YAML.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::arguments::{self, Class, Values};
use super::yaml::Entry;
use super::{Given, TrainingRun, fields, first_word, nemo, yaml};
use crate::base::fields::Fault;
use crate::formats::shell::{self, BatchJob, Outcome, Ran, Unknown};

/// Arguments by which a command is one that trains.
const TRAINS: [&str; 6] =
    ["num_layers", "hidden_size", "yaml_cfg", "use_checkpoint_args", "job.config_file", "model.flavor"];

/// Arguments that tell a command that trains, where the model's are in a file.
pub(super) const PARALLEL: [&str; 4] = [
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "micro_batch_size",
    "decoder_first_pipeline_num_layers",
];

impl TrainingRun {
    /// The arguments of the commands that a script comes to.
    pub(super) fn read_script(&mut self, text: &str, given: &Given) {
        self.is_script = true;
        let outcome = match shell::read(text, &given.variables, &given.files) {
            Ok(outcome) => outcome,
            Err(fault) => {
                let mut lines = text.lines().filter(|line| !line.trim().is_empty());
                // What `ps` prints has no quotes.
                if let (Some(line), None) = (lines.next(), lines.next()) {
                    let words: Vec<String> = line.split_whitespace().map(String::from).collect();
                    return self.read_command(&words, &Outcome::default(), &BatchJob::of(text), &BTreeMap::new());
                }
                self.faults.push(Fault::new("the script", fault, "a script that Bash can read"));
                return;
            }
        };
        self.notes.extend(outcome.notes.iter().cloned());
        self.wanted.extend(outcome.wanted.iter().cloned());
        for name in &outcome.unused {
            self.faults.push(Fault::new(format!("--set {name}"), "no such variable", "a variable of the script"));
        }
        let trains = |ran: &&Ran| {
            ran.words.iter().any(|word| TRAINS.contains(&name_of(word).as_str()) || fields::is_of_verl(word))
        };
        let mut commands: Vec<&Ran> = outcome.ran.iter().filter(trains).collect();
        if commands.is_empty() {
            let is_parallel = |ran: &&Ran| ran.words.iter().any(|word| PARALLEL.contains(&name_of(word).as_str()));
            commands = outcome.ran.iter().filter(is_parallel).collect();
        }
        if commands.is_empty() {
            // Whose arguments are all unknown.
            let is_python = |ran: &&Ran| {
                ran.words.iter().any(|word| is_python(word))
                    && ran.words.iter().any(|word| shell::only_unknown(word).is_some())
            };
            commands = outcome.ran.iter().filter(is_python).collect();
        }
        if commands.is_empty() {
            let words: Vec<String> = outcome.lists.concat();
            if words.iter().any(|word| TRAINS.contains(&name_of(word).as_str())) {
                self.notes.push("no command uses the script's lists of arguments: all of them together".into());
                self.read_command(&words, &outcome, &outcome.batch, &BTreeMap::new());
            } else if let Some(line) = outcome.ended.filter(|_| self.is_known) {
                let accepted = "a script that trains: give what it is called with, as --set 1=VALUE";
                self.faults.push(Fault::new("the script", format!("its end in line {line}"), accepted));
            }
            return;
        }
        let Some(chosen) = self.chosen(&commands, given.command) else { return };
        if let Some(unknown) = chosen.only_if.and_then(|unknown| outcome.root(unknown)) {
            self.notes.push(format!("line {} runs only with a certain {}", chosen.line, unknown.name));
        }
        self.read_command(&chosen.words, &outcome, &chosen.batch, &chosen.environment);
        self.read_config_file(given);
    }

    /// The command of this number, from 1; the only one where none is asked for.
    fn chosen<'r>(&mut self, commands: &[&'r Ran], number: Option<usize>) -> Option<&'r Ran> {
        let listed = || {
            let program = |ran: &Ran| {
                let program = ran.words.iter().find(|word| is_python(word)).or(ran.words.first());
                program.map_or(String::new(), |program| program.rsplit('/').next().unwrap_or_default().to_owned())
            };
            let each = commands.iter().enumerate();
            let each = each.map(|(at, ran)| format!("{} in line {} ({})", at + 1, ran.line, program(ran)));
            each.take(20).collect::<Vec<_>>().join(", ")
        };
        match (number, commands) {
            (None, [only]) => Some(only),
            (Some(number), _) if (1..=commands.len()).contains(&number) => Some(commands[number - 1]),
            (Some(number), _) => {
                self.faults.push(Fault::new(
                    "--command",
                    number,
                    format!("a training command of the text: {}", listed()),
                ));
                None
            }
            (None, _) => {
                let found = format!("{} training commands", commands.len());
                self.faults.push(Fault::new("the text", found, format!("one of them, as --command N: {}", listed())));
                None
            }
        }
    }

    /// Arguments in YAML, and commands in its blocks of text.
    pub(super) fn read_yaml(&mut self, text: &str, given: &Given) {
        let yaml = yaml::read(text);
        for (line, script) in &yaml.scripts {
            if script.contains("num-layers") || script.contains("num_layers") {
                self.notes.push(format!("the commands from line {line} on"));
                return self.read_script(script, given);
            }
        }
        let is_nemo = nemo::is_nemo(&yaml.entries);
        if !is_nemo {
            self.find_said_twice(&yaml.entries);
        }
        let words = yaml.arguments(|entry| !is_nemo || nemo::is_of_training(entry));
        self.read_command(&words, &Outcome::default(), &BatchJob::default(), &BTreeMap::new());
        if is_nemo {
            self.read_nemo(&yaml.entries);
        }
    }

    /// What decides the plan has one value: none of several tables is passed over.
    fn find_said_twice(&mut self, entries: &[Entry]) {
        let mut said: BTreeMap<String, &Entry> = BTreeMap::new();
        for entry in entries {
            let name = entry.name.replace('-', "_");
            let class = arguments::find(&name).map(|known| known.class);
            let Some(first) = said.get(&name) else {
                said.insert(name, entry);
                continue;
            };
            if first.value != entry.value && matches!(class, Some(Class::Used | Class::Refused(_))) {
                let place = |entry: &Entry| match &*entry.path {
                    "" => format!("{} at the top", entry.value),
                    path => format!("{} in {path}", entry.value),
                };
                let found = format!("{} and {}", place(first), place(entry));
                self.faults.push(Fault::new(argument(&name), found, "one value: leave out the others"));
            }
        }
    }

    /// Takes a command's arguments and its number of devices.
    pub(super) fn read_command(
        &mut self,
        words: &[String],
        outcome: &Outcome,
        batch: &BatchJob,
        environment: &BTreeMap<String, String>,
    ) {
        let program = words.iter().position(|word| is_python(word)).map_or(0, |at| at + 1);
        let (launcher, own) = words.split_at(program);
        let mut launched = BTreeMap::new();
        let mut stray = Vec::new();
        split(launcher, &mut launched, &mut stray);
        stray.clear();
        let own = self.read_overrides(own);
        split(&own, &mut self.arguments, &mut stray);
        self.find_devices(launcher, &launched, outcome, batch, environment);
        for word in stray {
            let Some(unknown) = shell::unknown_in(&word) else { continue };
            self.ask_for_words(unknown, outcome);
        }
        self.name_model(outcome);
        let names: Vec<String> = self.arguments.keys().cloned().collect();
        for name in names {
            let Some(unknown) = self.arguments.get(&name).and_then(|value| shell::unknown_in(value)) else {
                continue;
            };
            let shown = self.arguments.get(&name).map(|value| outcome.shown(value)).unwrap_or_default();
            let class = arguments::find(&name).map(|known| known.class);
            if matches!(name.as_str(), "trainer.n_gpus_per_node" | "trainer.nnodes") {
                // The number of devices is asked for, if nothing else gives it.
                self.arguments.insert(name, shown);
            } else if matches!(name.as_str(), "train_iters" | "train_samples") {
                self.notes
                    .push(format!("{}: {shown} is unknown, and so is the whole training's time", argument(&name)));
                self.arguments.remove(&name);
            } else if matches!(class, Some(Class::Used | Class::Refused(_))) {
                self.faults.push(Fault::new(argument(&name), &shown, asked(outcome.root(unknown))));
                self.asked.insert(name);
            } else {
                self.arguments.insert(name, shown);
            }
        }
        if self.is_verl() {
            self.read_verl();
        }
    }

    /// A variable stands where arguments may.
    fn ask_for_words(&mut self, unknown: usize, outcome: &Outcome) {
        let alternatives =
            outcome.unknowns.get(unknown).map(|unknown| unknown.alternatives.as_slice()).unwrap_or_default();
        let is_harmless = |words: &Vec<String>| {
            let names = words.iter().filter(|word| word.starts_with("--")).map(|word| name_of(word));
            let mut names = names.peekable();
            (words.is_empty() || names.peek().is_some())
                && words.iter().all(|word| !word.starts_with('-') || word.starts_with("--"))
                && names.all(|name| arguments::find(&name).is_some_and(|known| known.class == Class::Harmless))
        };
        let Some(root) = outcome.root(unknown) else { return };
        if !alternatives.is_empty() && alternatives.iter().all(is_harmless) {
            self.notes.push(format!("the arguments that depend on {} do not change the plan", root.name));
            return;
        }
        let shown = if root.is_variable { format!("${}", root.name) } else { root.name.clone() };
        let accepted = match alternatives.is_empty() {
            true if root.is_variable => format!("its arguments: --set {}='--…', or --set {0}= for none", root.name),
            _ => asked(Some(root)),
        };
        let fault = Fault::new("arguments", shown, accepted);
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// Devices of a launcher's arguments, of the environment, or of a batch job.
    fn find_devices(
        &mut self,
        launcher: &[String],
        launched: &BTreeMap<String, String>,
        outcome: &Outcome,
        batch: &BatchJob,
        environment: &BTreeMap<String, String>,
    ) {
        let said = |names: &[&str]| {
            let of =
                |name: &&str| launched.get(*name).or(self.arguments.get(*name)).or(environment.get(*name)).cloned();
            names.iter().find_map(of)
        };
        let (mut asks, mut of_job) = (None, None);
        let mut number = |value: Option<String>| {
            let value = value?;
            if let Some(unknown) = shell::unknown_in(&value) {
                asks = Some((outcome.shown(&value), asked(outcome.root(unknown))));
            }
            // `1:4` is a range of nodes.
            first_word(&value).rsplit(':').next()?.parse::<u64>().ok()
        };
        let program = |word: &str| launcher.iter().any(|own| own.rsplit('/').next() == Some(word));
        // Of those that slime has, some train.
        let of_actor = ["actor_num_gpus_per_node", "actor_num_nodes"].map(|name| self.arguments.get(name).cloned());
        let [of_actor_node, actor_nodes] = of_actor;
        // Where one is said alone, the other has slime's default.
        let of_actor_node = of_actor_node.or_else(|| actor_nodes.is_some().then(|| "8".to_owned()));
        let per_node = of_actor_node.or_else(|| {
            said(&["trainer.n_gpus_per_node", "nproc_per_node", "num_gpus", "NPROC_PER_NODE", "PET_NPROC_PER_NODE"])
        });
        let nodes = actor_nodes.or_else(|| said(&["trainer.nnodes", "nnodes", "num_nodes", "NNODES", "PET_NNODES"]));
        let devices = if per_node.is_some() {
            let nodes_known = if nodes.is_some() { number(nodes) } else { Some(1) };
            number(per_node).zip(nodes_known).and_then(|(per_node, nodes)| per_node.checked_mul(nodes))
        } else if ["mpirun", "mpiexec"].into_iter().any(program) {
            let at = launcher.iter().position(|word| matches!(word.as_str(), "-n" | "-np" | "--n" | "--np"));
            number(at.and_then(|at| launcher.get(at + 1)).cloned())
        } else {
            let is_step = program("srun");
            let job = if is_step { BatchJob::of_options(launcher, batch.clone()) } else { batch.clone() };
            let known = job.devices();
            if let Some(unknown) = job.unknown().filter(|_| known.is_none()) {
                // What it depends on is asked for.
                number(Some(unknown.to_owned()));
                of_job = Some((outcome.shown(unknown), "a number of nodes, tasks or devices".to_owned()));
            }
            known.or_else(|| number(environment.get("WORLD_SIZE").filter(|_| !is_step).cloned()))
        };
        self.devices = self.devices.or(devices);
        self.devices_asked = asks.or(of_job).filter(|_| devices.is_none());
    }
}

/// Whether a word is a program in Python, and not the value of an override, as in `reward.path=score.py`.
fn is_python(word: &str) -> bool {
    word.ends_with(".py") && !word.contains('=')
}

/// What is accepted in the place of an unknown.
fn asked(unknown: Option<&Unknown>) -> String {
    let Some(unknown) = unknown else { return "its value".into() };
    let values: Vec<&str> = unknown.values.iter().take(12).map(String::as_str).collect();
    let those = if values.is_empty() { String::new() } else { format!(" (the script has {})", values.join(", ")) };
    match unknown.is_variable {
        true => format!("the value of a variable: --set {}=VALUE{those}", unknown.name),
        false => format!("a text in the place of {}", unknown.name),
    }
}

/// `num_layers` as it is typed.
pub(super) fn argument(name: &str) -> String {
    arguments::typed(name)
}

/// The name of `--num-layers` or `--num-layers=24`, with `_` between words; nothing for another word.
pub(super) fn name_of(word: &str) -> String {
    let name = word.strip_prefix("--").filter(|name| name.starts_with(|letter: char| letter.is_ascii_alphabetic()));
    name.map_or(String::new(), |name| name.split('=').next().unwrap_or_default().replace('-', "_"))
}

/// Words as arguments, each with as many values as it takes; the last of one name counts. What is no argument and no
/// value is stray.
pub(super) fn split(words: &[String], arguments: &mut BTreeMap<String, String>, stray: &mut Vec<String>) {
    let mut open: Option<(String, Values, usize)> = None;
    for word in words {
        let name = name_of(word);
        if !name.is_empty() {
            let value = word.split_once('=').map(|(_, value)| value);
            arguments.insert(name.clone(), value.unwrap_or_default().to_owned());
            let values = arguments::find(&name).map_or(Values::Many, |known| known.values);
            open = value.is_none().then_some((name, values, 0));
            continue;
        }
        // A switch may be followed by what it says.
        let is_truth = matches!(word.as_str(), "true" | "True" | "false" | "False");
        match &mut open {
            Some((name, values, count))
                if match values {
                    Values::None => *count == 0 && is_truth,
                    Values::One => *count == 0,
                    Values::Many => true,
                } =>
            {
                let value = arguments.entry(name.clone()).or_default();
                if *count > 0 {
                    value.push(' ');
                }
                value.push_str(word);
                *count += 1;
            }
            _ => stray.push(word.clone()),
        }
    }
}
