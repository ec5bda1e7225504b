//! The layout of a form whose degrees follow: when it is found, and what is shown where there is none.

use leptos::prelude::*;
use pipeplan_core::spec::Spec;
use serde_json::Value;

use super::Planner;
use crate::draw::frontier::Chart;
use crate::form::{DEVICES, Form, LayoutQuestion, field};
use crate::protocol::{Ask, FoundLayout, spec_of};
use crate::text;

/// What a notice says where the page has raised the number of devices.
const RAISED: &str = "The number of devices is";

/// The layout that is being found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Followed {
    id: u32,
    question: LayoutQuestion,
}

/// A change of the form with which there is a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextStep {
    /// What its button says.
    pub title: String,
    /// The field, and its value; no field: nothing is pinned.
    change: [String; 2],
}

impl Planner {
    /// Another model of the catalog or custom sizes. Where degrees follow, all of them do for a model of the catalog.
    pub fn choose_model(self, name: &str) {
        self.may_raise.set_value(true);
        self.change_with(|form| {
            form.choose_model(name);
            if !name.is_empty() && form.follows() {
                form.follow();
            }
        });
    }

    /// Another device of the catalog or a custom one.
    pub fn choose_device(self, name: &str) {
        self.may_raise.set_value(true);
        self.change_with(|form| form.choose_device(name));
    }

    /// Puts the model of an opened file into the form. Where degrees follow, they follow for it.
    pub(super) fn open_model(self, spec: &Spec) {
        self.may_raise.set_value(true);
        self.change_with(|form| match form.follows() {
            true => form.open_model(spec),
            false => form.open(spec),
        });
    }

    /// Lets all degrees follow.
    pub fn let_follow(self) {
        self.may_raise.set_value(true);
        self.change_with(Form::follow);
    }

    /// A person types a number of devices: it stays what they type.
    pub(super) fn keep_devices(self) {
        self.may_raise.set_value(false);
    }

    /// Makes the change that leads to a layout.
    pub fn take_next_step(self) {
        let Some(NextStep { change: [path, value], .. }) = self.next_step.get_untracked() else { return };
        self.change_with(|form| match path.is_empty() {
            true => form.unpin(),
            false => form.set(&path, value),
        });
    }

    /// Whether the form waits for its layout: it has no spec yet, and no fault.
    pub(super) fn waits_for_layout(self) -> bool {
        self.form.with_untracked(|form| matches!(form.layout_question(), Ok(Some(_))))
    }

    /// Asks for the layout of the form if it is not known, or tells the faults of what is typed. False if the form can be
    /// planned.
    pub(super) fn find_layout_first(self) -> bool {
        match self.form.with_untracked(Form::layout_question) {
            Ok(Some(question)) => {
                self.faults.set(Vec::new());
                self.withdraw(|line| line.contains(RAISED));
                let id = self.ask(Ask::FindLayout(Some(question.clone())), true);
                self.followed.set_value(id.map(|id| Followed { id, question }));
                self.following.set(true);
                self.busy.set(true);
                self.outdated.set(true);
                true
            }
            Ok(None) => {
                // The plan of a layout so far is asked for while a better one is being found.
                let is_known = |followed: &Option<Followed>| {
                    followed
                        .as_ref()
                        .is_some_and(|followed| self.form.with_untracked(|form| form.was_found(&followed.question)))
                };
                if !self.followed.with_value(is_known) {
                    self.end_following();
                }
                false
            }
            Err(faults) => {
                self.end_following();
                self.faults.set(faults);
                self.busy.set(false);
                self.forget_advice();
                true
            }
        }
    }

    /// What is found from now on is for an older form.
    pub(super) fn end_following(self) {
        if self.followed.try_update_value(Option::take).flatten().is_some() && self.following.get_untracked() {
            self.ask(Ask::FindLayout(None), false);
        }
        self.following.set(false);
    }

    /// The layout of the form, so far.
    pub(super) fn receive_layout(self, id: u32, found: FoundLayout) {
        let Some(Followed { question, .. }) = self.followed.get_value().filter(|followed| followed.id == id) else {
            return;
        };
        let FoundLayout { spec, reason, next, finished } = found;
        let spec = spec.and_then(|spec| spec_of(&spec));
        if finished {
            self.following.set(false);
        }
        if let Some(spec) = spec {
            let mut form = self.form.get_untracked();
            let is_new = form.take_found(&question, &spec);
            self.form.set(form);
            // Of the layout so far the plan is known, or on its way.
            if is_new || finished && (self.scene.with_untracked(Option::is_none) || self.outdated.get_untracked()) {
                self.plan_form();
            }
            return;
        }
        self.followed.set_value(None);
        if let (true, Some([path, value])) =
            (self.may_raise.get_value(), next.as_ref().filter(|[path, _]| path == DEVICES))
        {
            self.may_raise.set_value(false);
            self.form.update(|form| form.set(path, value.clone()));
            self.plan_form();
            self.notify(&format!("{} {RAISED} {value} now.", text::sentence(&reason)));
            return;
        }
        self.next_step.set(next.map(|change| NextStep { title: title_of(&change), change }));
        self.no_plan.set(Some(reason));
        self.no_plan_at.set(None);
        self.forget_advice();
        self.newest_shown.set_value(id);
        // What was found before is of other devices.
        self.form.update(Form::forget_found);
        self.resolved.set((self.form.get_untracked(), Value::Null));
        self.spec.set(None);
        self.chart.set(Chart::default());
        self.rows.set(Vec::new());
        self.show(None);
        self.busy.set(false);
        self.outdated.set(false);
    }
}

/// What the button of a change says.
fn title_of([path, value]: &[String; 2]) -> String {
    match (path.as_str(), field(path)) {
        (DEVICES, _) => format!("Use {value} devices"),
        (_, Some(field)) => format!("Set {} to {value}", field.label.to_lowercase()),
        _ => "Unpin all degrees".to_owned(),
    }
}
