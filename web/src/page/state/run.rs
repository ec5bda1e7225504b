//! A run of Megatron-LM that is opened: a log, a command line, a script or YAML.

use leptos::prelude::*;
use pipeplan_core::hardware::cluster;
use pipeplan_core::spec::{Spec, Work};

use super::Planner;
use super::files::of_file;
use crate::protocol::spec_of;
use crate::reader::{ArgumentRow, Asked, Run};

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

impl Planner {
    /// Reads a run again, with what a person gives its script.
    pub fn open_run_with(self, name: &str, text: &str, values: &str, command: &str) {
        self.notice.set(None);
        let [values, command] = [values, command].map(str::to_owned);
        self.read_file(name, text, Asked { values, command, ..Asked::default() });
    }

    /// The device and the number of devices of the form, for files that do not give them.
    pub(super) fn device_and_devices(self) -> (String, Option<u64>) {
        self.resolved.with_untracked(|(_, known)| {
            let device = known["cluster"]["device"]["name"].as_str().filter(|name| cluster::find(name).is_some());
            let work = Spec::from_value(known).ok().map(|spec| spec.work);
            let devices = work.and_then(|work| match work {
                Work::Model(work) => Some(work.devices()),
                Work::Typed(_) => None,
            });
            (device.unwrap_or("h100").to_owned(), devices)
        })
    }

    /// Puts the arguments of a run of Megatron-LM into the form.
    pub(super) fn open_run(self, name: &str, content: &str, run: Run, asked: &Asked) {
        let Asked { values, command, .. } = asked.clone();
        self.run.set(Some(OpenRun { name: name.into(), rows: run.rows, text: content.into(), values, command }));
        match run.spec {
            Ok((spec, said)) => {
                if let Some(spec) = spec_of(&spec) {
                    self.change_with(|form| form.open(&spec));
                }
                let name = if name.is_empty() { "This" } else { name };
                self.notify(&format!("{name} {}", said.join(" ")));
            }
            Err(reasons) => {
                let why = "This is a run of Megatron-LM, but it has no plan as it is. The table of its arguments has all reasons.";
                self.report_also([vec![of_file(name, why)], reasons].concat());
            }
        }
    }
}
