//! Advice on the plan on screen: what is asked for, and when it no longer holds.

use leptos::prelude::*;

use super::Planner;
use crate::form::Form;
use crate::protocol::Ask;

impl Planner {
    /// What would help was of another plan.
    pub(super) fn forget_advice(self) {
        self.unfit.set(None);
        self.shorter.set(None);
    }

    /// Asks what the time of the plan on screen hangs on, where that is shown.
    pub fn ask_sensitivity(self) {
        let order = if self.sensitivity_open.get_untracked() { self.shown_order() } else { None };
        self.sensitivity.set(None);
        if order.is_some() || self.sensitivity_question.get_value().is_some() {
            let asked = order.is_some();
            let id = self.ask(Ask::Sensitivity(order), false);
            self.sensitivity_question.set_value(id.filter(|_| asked));
        }
    }

    /// Asks what the passes did to the plan on screen, where that is shown.
    pub fn ask_passes(self) {
        if self.passes_open.get_untracked() && self.faults.with_untracked(Vec::is_empty) {
            let spec = self.form.with_untracked(Form::to_value).to_string();
            self.passes_outdated.set(true);
            self.passes_question.set_value(self.ask(Ask::Passes { spec }, false));
        }
    }
}
