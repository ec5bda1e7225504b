//! A run of Megatron-LM that is opened: a log, a command line, a script or YAML.

use leptos::prelude::*;
use pipeplan_core::base::fields::Faults;
use pipeplan_core::formats::megatron_run::{Arguments, Given, MegatronRun};
use pipeplan_core::hardware::cluster;
use pipeplan_core::spec::{Spec, Work};

use super::Planner;
use super::files::of_file;
use crate::text;

/// What a run that was opened says, for its table.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRun {
    /// The file's name.
    pub name: String,
    /// What was done with each argument: refused ones first.
    pub rows: Vec<ArgumentRow>,
    /// Its text, to read it again.
    pub text: String,
    /// What a person gives a script's variables, and the command that is taken, as typed.
    pub values: String,
    /// The training command of several, as typed.
    pub command: String,
}

/// One argument.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgumentRow {
    /// As it is typed.
    pub argument: String,
    /// One of the treatments of [`OpenRun`].
    pub treatment: &'static str,
    /// How, or why.
    pub how: String,
}

impl OpenRun {
    /// It decides the plan.
    pub const USED: &'static str = "used";
    /// It changes the plan, and is planned otherwise.
    pub const OTHERWISE: &'static str = "planned otherwise";
    /// No spec can express it.
    pub const REFUSED: &'static str = "refused";
    /// Nobody knows it.
    pub const NOT_KNOWN: &'static str = "not known, left out";
    /// It does not change the plan.
    pub const HARMLESS: &'static str = "does not change the plan";
}

/// The rows of a table: what is refused and planned otherwise first.
fn rows(arguments: &Arguments, faults: Option<&Faults>) -> Vec<ArgumentRow> {
    let row = |name: &String, treatment, how: &str| ArgumentRow {
        argument: format!("--{name}"),
        treatment,
        how: how.into(),
    };
    let refused: Vec<ArgumentRow> = faults
        .into_iter()
        .flat_map(|faults| &faults.0)
        .map(|fault| ArgumentRow {
            argument: fault.field.clone(),
            treatment: OpenRun::REFUSED,
            how: text::sentence(&format!("found {}, accepted is {}", fault.found, fault.accepted)),
        })
        .collect();
    let otherwise = arguments.not_modelled.iter().map(|(name, how)| row(name, OpenRun::OTHERWISE, how));
    let others = [
        (&arguments.not_known, OpenRun::NOT_KNOWN),
        (&arguments.used, OpenRun::USED),
        (&arguments.harmless, OpenRun::HARMLESS),
    ];
    let others = others.into_iter().flat_map(|(names, treatment)| names.iter().map(move |name| (name, treatment)));
    let accepted: Vec<ArgumentRow> = otherwise
        .chain(others.map(|(name, treatment)| row(name, treatment, "")))
        .filter(|row| refused.iter().all(|refused| refused.argument != row.argument))
        .collect();
    [refused, accepted].concat()
}

/// `NAME=VALUE NAME=VALUE`, and a number.
fn given(values: &str, command: &str) -> Given {
    let pairs = values.split_whitespace().filter_map(|pair| pair.split_once('='));
    Given {
        variables: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        command: command.trim().parse().ok(),
    }
}

impl Planner {
    /// Reads a run again, with what a person gives its script.
    pub fn open_run_with(self, name: &str, text: &str, values: &str, command: &str) {
        self.notice.set(None);
        let run = MegatronRun::read_with(text, &given(values, command));
        self.open_run(name, text, &run, [values, command]);
    }

    /// Puts the arguments of a run of Megatron-LM into the form. A log does not name the device, so the form keeps its
    /// device; if the log does not give the number of devices, the form keeps that too.
    pub(super) fn open_run(self, name: &str, content: &str, run: &MegatronRun, [values, command]: [&str; 2]) {
        let (device, devices) = self.resolved.with_untracked(|(_, known)| {
            let device = known["cluster"]["device"]["name"].as_str().filter(|name| cluster::find(name).is_some());
            let work = Spec::from_value(known).ok().map(|spec| spec.work);
            let devices = work.and_then(|work| match work {
                Work::Model(work) => Some(work.devices()),
                Work::Typed(_) => None,
            });
            (device.unwrap_or("h100").to_owned(), devices)
        });
        let lacks_devices =
            |faults: &Faults| faults.0.iter().any(|one| one.field == "devices" && one.found == "nothing");
        let read = match run.spec(&device, None) {
            Err(faults) if lacks_devices(&faults) => run.spec(&device, devices),
            read => read,
        };
        let rows = match &read {
            Ok(imported) => rows(&imported.arguments, None),
            Err(faults) => rows(&run.sorted_arguments(), Some(faults)),
        };
        let [values, command] = [values, command].map(str::to_owned);
        self.run.set(Some(OpenRun { name: name.into(), rows, text: content.into(), values, command }));
        match read {
            Ok(imported) => {
                self.change_with(|form| form.open(&imported.spec));
                let mut said = vec![format!(
                    "{name} is a run of Megatron-LM. It does not name the device; the plan uses {device}."
                )];
                if let Some(step_ns) = run.typical_step_ns() {
                    said.push(format!("Its measured step time is {}.", text::duration(step_ns as f64)));
                }
                said.extend(imported.notes.iter().chain(&imported.arguments.told()).map(|note| text::sentence(note)));
                self.notify(&said.join(" "));
            }
            Err(faults) => {
                let why = "This is a run of Megatron-LM, but it has no plan as it is. The table of its arguments has all reasons.";
                let mut lines = vec![of_file(name, why)];
                lines.extend(faults.0.iter().take(6).map(|fault| text::sentence(&fault.to_string())));
                self.report_also(lines);
            }
        }
    }
}
