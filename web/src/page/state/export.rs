//! Files that are saved.

use leptos::prelude::*;

use super::Planner;
use crate::page::browser;
use crate::protocol::{Ask, Purpose};

/// The message if a person exports a plan before it is known.
const SAVED_LATER: &str = "The plan file is saved when the search ends.";

impl Planner {
    /// Downloads the plan file of the form. If the search still runs, downloads it at the end.
    pub fn export(self) {
        if let Some(text) = self.open_plan_file.get_value() {
            browser::download(&self.file_name("plan.json"), "application/json", &text);
        } else if self.busy.get_untracked() {
            self.saves_when_found.set_value(true);
            self.notify(SAVED_LATER);
        } else if let Some(text) = self.read_form() {
            self.ask(Ask::Export { spec: text, purpose: Purpose::Download }, false);
        }
    }

    /// Whether a download was waiting for the search. It no longer is.
    pub(super) fn stop_saving_when_found(self) -> bool {
        let wanted = self.saves_when_found.get_value();
        if wanted {
            self.saves_when_found.set_value(false);
            self.withdraw(|line| line == SAVED_LATER);
        }
        wanted
    }

    /// The name of a file of the plan on screen, which ends like `plan.json`.
    pub fn file_name(self, end: &str) -> String {
        let name = self.form.with_untracked(|form| form.text("name").to_owned());
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let plain = plain.trim_matches('-').to_lowercase();
        if plain.is_empty() { end.to_owned() } else { format!("{plain}.{end}") }
    }
}
