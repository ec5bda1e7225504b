//! Files that are opened: plans, traces, profiles, orders, specs, configs, logs of runs.

use std::rc::Rc;
use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::base::fields::Faults;
use pipeplan_core::formats::lengths;
use pipeplan_core::model::hf_config;
use pipeplan_core::spec::Spec;
use serde_json::Value;

use super::rows::own_row;
use super::{Planner, is_schedule};
use crate::form::{DOCUMENTS, Form, Kind};
use crate::logic::documents;
use crate::logic::edits::Edits;
use crate::page::chosen::Chosen;
use crate::page::session::{self, Item};
use crate::page::{browser, parts};
use crate::protocol::frontier::FROM_CHART;
use crate::protocol::{Ask, spec_of};
use crate::reader::{Asked, Found};
use crate::scene::Scene;
use crate::text;

/// The sequence length if nothing gives one.
const USUAL_SEQUENCE: u64 = 4096;

/// A file on its way to the page.
#[derive(Clone)]
pub(super) struct Opening {
    pub(super) text: Rc<str>,
    /// The name of the file; empty if no file of a person has brought it.
    pub(super) name: Rc<str>,
    pub(super) from: Origin,
}

/// Where a file comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A person opened it: a reload must not lose it.
    Person,
    /// The address names it, or the browser remembered it.
    Address,
}

impl Planner {
    /// Opens what the page itself has brought forth.
    pub(super) fn open_text(self, text: &str) {
        self.notice.set(None);
        self.open_file("", text, Origin::Person);
    }

    /// Opens the text of the file `name`, which a person has chosen: a plan, a trace, an order of ops, or a spec.
    pub fn open_named(self, name: &str, text: &str) {
        self.open_file(name, text, Origin::Person);
    }

    pub(super) fn open_file(self, name: &str, text: &str, from: Origin) {
        let opening = || Opening { text: text.into(), name: name.into(), from };
        // A file says what it is in its `format`; one that says nothing may be a spec.
        let says = |format: &str| text.contains(&format!("\"{format}\""));
        if says("pipeplan-trace") {
            self.read_run(browser::file_of(name, text).map(Chosen::new).into_iter().collect(), from);
        } else if says("pipeplan-plan") {
            if self.proof.with_untracked(|proof| proof.better.as_deref() != Some(text)) {
                self.forget_proof();
            }
            self.busy.set(true);
            self.opening.set_value(Some(opening()));
            self.ask(Ask::OpenPlan { text: text.to_owned() }, true);
        } else if says("operators") && says("kernel") {
            self.opening_profile.set_value(Some(opening()));
            self.measure(Some(text));
        } else if lengths::looks_like_some(text) {
            self.open_lengths(name, text);
        } else if let Some(config) = value_of(text).filter(hf_config::looks_like_one) {
            self.open_config(name, config);
        } else if value_of(text).is_none_or(|spec| self.open_spec(&spec).is_err()) {
            self.read_file(name, text, Asked::default());
        }
    }

    /// Reads a text that takes the readers of other programs' files.
    pub(super) fn read_file(self, name: &str, text: &str, asked: Asked) {
        let (device, devices) = self.device_and_devices();
        let asked = Asked { device, devices, ..asked };
        let (name, text) = (name.to_owned(), text.to_owned());
        self.reading.update_value(|reading| *reading += 1);
        leptos::task::spawn_local(async move {
            let found = parts::read(&text, &asked).await;
            self.reading.update_value(|reading| *reading -= 1);
            match found {
                Ok(Found::Order) => self.open_order(&name, &text),
                Ok(Found::Run(run)) => self.open_run(&name, &text, run, &asked),
                Ok(Found::Spec(spec)) => {
                    if let Err(faults) = self.open_spec(&serde_json::from_str(&spec).unwrap_or_default()) {
                        self.report_also(vec![of_file(&name, &text::sentence(&faults.to_string()))]);
                    }
                }
                Ok(Found::Unreadable(mut lines)) => {
                    lines.iter_mut().take(1).for_each(|first| *first = of_file(&name, first));
                    self.report_also(lines);
                }
                Err(reason) => self.report_also(vec![of_file(&name, &reason)]),
            }
        });
    }

    /// Plans the form with the custom schedule of a file.
    pub(super) fn open_order(self, name: &str, text: &str) {
        let Some(spec) = self.read_form() else {
            let why = "The form has errors, so this custom schedule has no costs. Correct the marked fields.";
            return self.report_also(vec![of_file(name, why)]);
        };
        self.busy.set(true);
        self.opening.set_value(Some(Opening { text: text.into(), name: name.into(), from: Origin::Person }));
        self.ask(Ask::OpenOrder { spec, text: text.to_owned() }, true);
    }

    /// Puts the documents of a step into the form: the text of a file has their lengths.
    pub fn open_lengths(self, name: &str, text: &str) {
        if self.form.with_untracked(|form| form.kind) == Kind::Typed {
            let why = "Documents need a model. With typed costs, Microbatch factors say what differs.";
            return self.report_also(vec![of_file(name, why)]);
        }
        let lengths = match lengths::read(text) {
            Ok(lengths) => lengths,
            Err(error) => {
                let lines = [error.to_string(), error.help()].map(|line| text::sentence(&line));
                return self.report_also(vec![of_file(name, &lines.join(" "))]);
            }
        };
        let typed = documents::typed(&lengths);
        if !self.form.with_untracked(Form::follows) {
            return self.change(DOCUMENTS, typed);
        }
        let Some(spec) = self.spec.get_untracked() else {
            let why = "There is no layout yet. Choose what has one, then open the lengths again.";
            return self.report_also(vec![of_file(name, why)]);
        };
        self.change_with(|form| {
            form.open(&spec);
            form.set(DOCUMENTS, typed);
        });
        self.notify(
            "The parallel degrees stay as they were found: layouts are searched for microbatches that are alike.",
        );
    }

    /// Puts a spec into the form.
    pub(super) fn open_spec(self, spec: &Value) -> Result<(), Faults> {
        let mut form = self.form.get_untracked();
        form.open_value(spec)?;
        self.change_with(|before| *before = form);
        Ok(())
    }

    /// Puts the model of a `config.json` into the form, and keeps the rest of the form.
    pub(super) fn open_config(self, name: &str, config: Value) {
        const SEQUENCE: &str = "training.sequence";
        let mut form = self.form.get_untracked();
        // No person typed the value of the file before.
        let before = self.configured.get_value().filter(|(text, _)| form.text(SEQUENCE) == text);
        if before.is_some() {
            form.set(SEQUENCE, "");
        }
        let is_typed = !form.text(SEQUENCE).is_empty();
        // It was the default of the model before.
        let said = || self.resolved.with_untracked(|(_, known)| known["training"]["sequence"].as_u64());
        let wanted = before.map(|(_, wanted)| wanted).or_else(said).unwrap_or(USUAL_SEQUENCE);
        for note in hf_config::notes(&config) {
            self.notify(&of_file(name, &text::sentence(&note)));
        }
        match Spec::from_value(&form.value_with(config, wanted)) {
            Ok(spec) => {
                self.open_model(&spec);
                let put = self.form.with_untracked(|form| form.text(SEQUENCE).to_owned());
                self.configured.set_value((!is_typed).then_some((put, wanted)));
            }
            Err(faults) => {
                let why = "The model of this config.json does not work with the rest of the form.";
                let mut lines = vec![of_file(name, why)];
                lines.extend(faults.0.iter().take(6).map(|fault| text::sentence(&fault.to_string())));
                self.report_also(lines);
            }
        }
    }

    pub(super) fn opened(self, id: u32, spec: &str, scene: Option<Scene>) {
        // A layout that is being found would replace the file.
        self.end_following();
        if let Some(spec) = spec_of(spec) {
            let mut form = self.form.get_untracked();
            form.open(&spec);
            // The file can hold another schedule than its spec names. The form names the shown one, if the planner
            // knows it.
            if let Some(scene) = scene.as_ref().filter(|scene| is_schedule(&scene.schedule)) {
                form.set("schedule", scene.schedule.clone());
            }
            self.form.set(form);
            self.read_form();
        }
        let opening = self.opening.try_update_value(Option::take).flatten();
        self.open_plan_file.set_value(opening.as_ref().map(|opening| opening.text.clone()));
        let better = self.proof.with_untracked(|proof| proof.better.clone());
        let found = better.is_some_and(|better| self.shows_file(&better));
        if let (Some(Opening { text, from: Origin::Person, .. }), Some(link)) = (opening, self.link()) {
            // After a reload, the link in the address identifies the file.
            self.remember(Item::Plan, &link, &text);
            self.edits.update_value(Edits::other);
            self.write_link_later();
        }
        self.remembers.set_value(true);
        self.newest_shown.set_value(id);
        let own = scene.as_ref().filter(|scene| !is_schedule(&scene.schedule));
        self.rows.update(|rows| {
            rows.retain(|row| is_schedule(&row.schedule));
            // It stands first, also if there is no best.
            let source = match own.map(|scene| scene.schedule.as_str()) {
                _ if found => "Found by the exact search",
                Some(FROM_CHART) => "The schedule of the chosen point of the chart",
                _ => "The schedule of the open file",
            };
            own.into_iter().for_each(|scene| rows.insert(0, own_row(scene, source)));
        });
        match own.map(|scene| scene.schedule.as_str()) {
            Some(_) if found => self.notify("The exact search found this schedule. A change of the form removes it. Export plan saves it."),
            Some(FROM_CHART) => self.notify(
                "This is the schedule of the point of the chart: the search within this limit found a \
                 slower one. A change of the form removes it, and the link does not contain it. Export plan saves it.",
            ),
            Some(_) => self.notify("This is the custom schedule of the file. A change of the form removes it."),
            None => {}
        }
        self.show(scene.map(Arc::new));
    }

    /// Whether the plan file with this text is on screen.
    pub fn shows_file(self, text: &str) -> bool {
        self.open_plan_file.with_value(|opened| opened.as_deref() == Some(text))
    }

    /// Whether a file is being read.
    pub fn is_opening(self) -> bool {
        let reads = |opening: StoredValue<Option<Opening>, LocalStorage>| opening.with_value(Option::is_some);
        let reading = self.reading.get_value() > 0;
        reading
            || self.busy.get_untracked() && reads(self.opening)
            || self.measuring.opening.with_value(Option::is_some)
            || reads(self.opening_profile)
    }

    /// Uses the times of this profile, or estimates.
    pub fn measure(self, profile: Option<&str>) {
        if profile.is_none() {
            session::forget(Item::Profile);
        }
        // Layouts were found with other times.
        self.layouts_for.set(None);
        self.ask(Ask::Measure { profile: profile.map(str::to_owned) }, false);
        self.plan();
    }

    /// Stores a file for a reload of the page, or says that this failed.
    pub(super) fn remember(self, item: Item, fragment: &str, text: &str) {
        if !session::remember(item, fragment, text) {
            self.notify("This file is too large for the browser to store: it is gone after a reload of the page.");
        }
    }
}

/// The value of a text of JSON.
fn value_of(text: &str) -> Option<Value> {
    pipeplan_core::base::json::parse_python(text).ok().filter(Value::is_object)
}

/// A message about the file `name`.
pub(super) fn of_file(name: &str, said: &str) -> String {
    if name.is_empty() { said.to_owned() } else { format!("{name}: {said}") }
}
