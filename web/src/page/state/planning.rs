//! The form as a spec, and the question for its plan.

use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::base::fields::Fault;

use super::{Planner, is_schedule};
use crate::form::{DEVICES, Form, Kind};
use crate::logic::edits::Edits;
use crate::page::session::{self, Item};
use crate::page::worker_client::WorkerClient;
use crate::protocol::frontier::{FROM_CHART, OF_POINT};
use crate::protocol::{Ask, Row};
use crate::text;

impl Planner {
    /// Sets a field and plans again.
    pub fn change(self, path: &str, text: impl Into<String>) {
        self.change_with(|form| form.set(path, text));
    }

    /// Changes the form and plans again.
    pub fn change_with(self, change: impl FnOnce(&mut Form)) {
        self.form.update(change);
        self.plan();
    }

    /// Changes the form by typing or dragging in the field `path`, and plans again.
    pub fn type_in(self, path: &'static str, change: impl FnOnce(&mut Form)) {
        if path == DEVICES {
            self.keep_devices();
        }
        self.form.update(change);
        self.edits.update_value(|edits| edits.typed(path));
        self.plan_form();
    }

    /// A person left the field, or pressed Enter in it.
    pub fn end_typing(self) {
        self.edits.update_value(Edits::ended);
    }

    /// Reads the form. Plans it if it has no faults, else shows the faults.
    pub fn plan(self) {
        self.edits.update_value(Edits::other);
        self.plan_form();
    }

    /// Plans the form that the page opens with.
    pub(super) fn plan_opened(self) {
        self.edits.update_value(Edits::opened);
        self.plan_form();
    }

    pub(super) fn plan_form(self) {
        self.chosen_point.set_value(None);
        self.searching.set(None);
        self.open_plan_file.set_value(None);
        // The download was for the form before.
        self.stop_saving_when_found();
        self.withdraw(|line| line.starts_with(OF_POINT));
        let is_own = |row: &&Row| !is_schedule(&row.schedule);
        let own = self.rows.with_untracked(|rows| rows.iter().find(is_own).map(|row| row.schedule.clone()));
        if let Some(own) = own {
            // Messages about a custom schedule go with it.
            self.rows.update(|rows| rows.retain(|row| is_schedule(&row.schedule)));
            self.notice.update(|notice| *notice = notice.take().filter(|notice| notice.wrong));
            // A point of the chart is a click away.
            if own != FROM_CHART {
                let own = text::schedule_title(&own);
                self.notify(&format!(
                    "The custom schedule ({own}) is no longer shown: the form has changed. Open its file \
                     to see it again."
                ));
            }
        }
        if self.remembers.get_value() {
            self.remembers.set_value(false);
            session::forget(Item::Plan);
        }
        self.forget_proof();
        self.next_step.set(None);
        if self.find_layout_first() {
            return;
        }
        match self.read_form() {
            Some(text) => {
                // The newer change counts. Else the file would bring a form that differs from the plan.
                if self.opening.try_update_value(Option::take).flatten().is_some() {
                    self.notify("The opened file is not shown: the form changed while the file was read.");
                }
                self.busy.set(true);
                self.outdated.set(true);
                self.ask(
                    match self.by_hand.get_value() {
                        true => Ask::PlanByHand { spec: text },
                        false => Ask::Plan { spec: text },
                    },
                    true,
                );
                self.write_link_later();
            }
            None => {
                self.busy.set(false);
                self.forget_advice();
            }
        }
    }

    /// Reads the form without planning. Returns the JSON of its spec if it has no faults.
    pub(super) fn read_form(self) -> Option<String> {
        if self.waits_for_layout() {
            return None;
        }
        match self.form.with_untracked(Form::read) {
            Ok(spec) => {
                self.faults.set(Vec::new());
                self.resolved.set((self.form.get_untracked(), spec.to_value()));
                self.spec.set(Some(Arc::new(spec)));
                Some(self.form.with_untracked(Form::to_value).to_string())
            }
            Err(faults) => {
                self.faults.set(faults);
                None
            }
        }
    }

    /// Asks the worker. Returns the number of the question, if there is a worker.
    pub(super) fn ask(self, ask: Ask, newest: bool) -> Option<u32> {
        let id = self.client.with_value(|client| client.as_ref().map(|client| client.ask(ask)));
        if let (Some(id), true) = (id, newest) {
            self.newest_asked.set_value(id);
        }
        id
    }

    /// The answer is complete.
    pub(super) fn finish_answer(self) {
        self.searching.set(None);
        if !self.open_chosen_point() {
            self.busy.set(false);
            self.outdated.set(false);
            self.decide_alone();
            if self.stop_saving_when_found() {
                self.export();
            }
        }
    }

    /// Stops the search for the best and keeps the best so far.
    pub fn stop_searching(self) {
        self.client.with_value(|client| client.iter().for_each(WorkerClient::stop));
    }

    /// All faults of fields: those of the form, and the field that no schedule accepts.
    pub fn faults_of_fields(self) -> Vec<Fault> {
        self.faults.get().into_iter().chain(self.no_plan_at.get()).collect()
    }

    /// Whether the form has faults. Then the plan on screen belongs to the form before them.
    pub fn is_faulty(self) -> bool {
        self.faults.with(|faults| !faults.is_empty())
    }

    /// Which half of the form is shown.
    pub fn kind(self) -> Kind {
        self.form.with(|form| form.kind)
    }
}
