//! Files that are saved.

use leptos::prelude::*;

use super::Planner;
use crate::draw::figure::Style;
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

    /// Downloads the figure for a paper: of the visible times alone, or of all; as a drawing, or as pixels at twice its size.
    pub fn save_figure(self, style: Style, visible: bool, png: bool) {
        let Some(scene) = self.scene.get_untracked() else { return };
        let view = visible.then(|| (self.view.get_untracked(), self.width.get_untracked()));
        let title = format!("{} ({})", scene.headline(), untrack(|| self.subject()));
        let drawing = scene.figure(style, view, &title);
        match png {
            true => browser::download_drawing_as_png(self.file_name("figure.png"), &drawing, 2.0),
            false => browser::download(&self.file_name("figure.svg"), "image/svg+xml", &drawing),
        }
    }

    /// Downloads the plan on screen for Perfetto.
    pub fn save_perfetto(self) {
        if let Some(scene) = self.scene.get_untracked() {
            browser::download(&self.file_name("perfetto.json"), "application/json", &scene.perfetto());
        }
    }

    /// Downloads the order on screen for torch, or says why torch cannot run it.
    pub fn save_torch_csv(self) {
        let Some(scene) = self.scene.get_untracked() else { return };
        match scene.torch_csv() {
            Ok(csv) => browser::download(&self.file_name("torch.csv"), "text/csv", &csv),
            Err(reason) => self.report(vec![reason]),
        }
    }

    /// Downloads the ops on screen with their times.
    pub fn save_ops_csv(self) {
        if let Some(scene) = self.scene.get_untracked() {
            browser::download(&self.file_name("ops.csv"), "text/csv", &scene.ops_csv());
        }
    }

    /// Downloads a table of the page as it stands on screen.
    pub fn save_table(self, css: &str, name: &str) {
        browser::download(&self.file_name(name), "text/csv", &browser::table_csv(css));
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
