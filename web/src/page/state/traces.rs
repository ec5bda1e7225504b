//! The open trace, and what it says of the plan on screen.

use std::rc::Rc;

use leptos::prelude::*;
use serde_json::{Value, json};

use super::{Planner, is_schedule};
use crate::page::session::{self, Item};
use crate::protocol::Ask;
use crate::scene::MeasuredScene;

impl Planner {
    /// Shows another step of the trace.
    pub fn show_trace_step(self, index: u32) {
        self.ask(Ask::TraceStep { index }, false);
    }

    /// Holds the open trace against the plan on screen, or shows that no longer.
    pub fn calibrate(self) {
        if self.calibrated.with_untracked(Option::is_some) {
            return self.forget_calibration();
        }
        let Some(order) = self.shown_order() else { return };
        self.calibration_question.set_value(self.ask(Ask::Calibrate(order), false));
    }

    /// What was said of where time went no longer holds.
    pub(super) fn forget_calibration(self) {
        self.calibrated.set(None);
        self.calibration_question.set_value(None);
    }

    /// Takes in what torch recorded of a rank.
    pub fn record(self, batch: u32, name: String, text: String) {
        self.ask(Ask::Record { batch, name, text }, false);
    }

    /// Opens the trace of what torch recorded, which is to be of the plan on screen.
    pub fn trace_recorded(self, batch: u32) {
        match self.shown_order() {
            Some(order) => {
                self.ask(Ask::Trace { batch, order }, false);
            }
            None => self.report_also(vec!["There is no plan for this run. Open its plan first.".to_owned()]),
        }
    }

    /// Plans `problem`, a problem file's text, with the schedule that the form has, where ops differ by `jitter_permille` or as
    /// the form says.
    pub fn plan_measured(self, problem: &str, jitter_permille: Option<u16>) {
        let Ok(problem) = serde_json::from_str::<Value>(problem) else { return };
        let (name, schedule, said) = self
            .spec
            .with_untracked(|spec| {
                spec.as_ref().map(|spec| (spec.name.clone(), spec.schedule.clone(), spec.jitter_permille))
            })
            .unwrap_or_default();
        let jitter_permille = jitter_permille.unwrap_or(said);
        let mut spec = json!({ "name": name, "problem": problem, "jitter_permille": jitter_permille });
        if is_schedule(&schedule) {
            spec["schedule"] = json!(schedule);
        }
        self.open_text(&spec.to_string());
    }

    /// Whether the open trace is known to be of another plan than the one that was opened.
    pub fn trace_of_another_plan(self) -> bool {
        let digest =
            self.trace.with(|trace| trace.as_ref().map(|trace| trace.plan_digest.clone())).unwrap_or_default();
        let other = |text: &Option<Rc<str>>| text.as_ref().is_some_and(|text| !text.contains(&digest));
        // Asks for the scene so that the answer follows what is shown.
        self.scene.with(Option::is_some) && !digest.is_empty() && self.open_plan_file.with_value(other)
    }

    /// What the open trace has measured of each rank's memory; nothing where it is of another plan than the one on screen.
    pub fn measured_peaks(self) -> Vec<u64> {
        if self.trace_of_another_plan() {
            return Vec::new();
        }
        let peaks = self.trace.with(|trace| trace.as_ref().map(|trace| trace.peak_bytes.clone()));
        let of_plan = |measured: &MeasuredScene| {
            self.scene.with(|scene| measured.peaks_beside(scene.as_ref()?, peaks.unwrap_or_default()))
        };
        self.measured.with(|measured| measured.as_deref().and_then(of_plan)).unwrap_or_default()
    }

    /// Closes the trace.
    pub fn close_trace(self) {
        let before = self.extent();
        self.trace.set(None);
        self.measured.set(None);
        self.forget_calibration();
        session::forget(Item::Trace);
        self.carry_view(before);
    }
}
