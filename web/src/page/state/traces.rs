//! The open trace, compared with the plan on screen.

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

    /// Compares the open trace with the plan on screen, or hides the result.
    pub fn calibrate(self) {
        if self.calibrated.with_untracked(Option::is_some) {
            return self.forget_calibration();
        }
        let Some(order) = self.shown_order() else { return };
        self.calibration_question.set_value(self.ask(Ask::Calibrate(order), false));
    }

    /// Drops the calibration: it is outdated.
    pub(super) fn forget_calibration(self) {
        self.calibrated.set(None);
        self.calibration_question.set_value(None);
    }

    /// Sends a torch.profiler file of a rank to the worker.
    pub fn record(self, batch: u32, name: String, text: String) {
        self.ask(Ask::Record { batch, name, text }, false);
    }

    /// Opens the trace of the torch.profiler files. It must be a run of the plan on screen.
    pub fn trace_recorded(self, batch: u32) {
        match self.shown_order() {
            Some(order) => {
                self.ask(Ask::Trace { batch, order }, false);
            }
            None => self.report_also(vec!["There is no plan for this run. Open its plan first.".to_owned()]),
        }
    }

    /// Plans `problem`, the text of a problem file, with the schedule of the form. Jitter is `jitter_permille`, or that
    /// of the form.
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
        self.notice.set(None);
        // What was measured has no fault.
        let _ = self.open_spec(&spec);
    }

    /// Whether the open trace belongs to another plan than the open plan file.
    pub fn trace_of_another_plan(self) -> bool {
        let digest =
            self.trace.with(|trace| trace.as_ref().map(|trace| trace.plan_digest.clone())).unwrap_or_default();
        let other = |text: &Option<Rc<str>>| text.as_ref().is_some_and(|text| !text.contains(&digest));
        // Reads the scene, so that the answer follows the screen.
        self.scene.with(Option::is_some) && !digest.is_empty() && self.open_plan_file.with_value(other)
    }

    /// The measured peak memory of each rank; empty if the trace belongs to another plan.
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
