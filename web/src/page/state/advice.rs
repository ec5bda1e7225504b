//! Advice on the plan on screen: when the page asks for it, and when it is outdated.

use leptos::prelude::*;

use super::Planner;
use crate::form::Form;
use crate::protocol::Ask;

impl Planner {
    /// Drops suggestions of another plan.
    pub(super) fn forget_advice(self) {
        self.unfit.set(None);
        self.shorter.set(None);
    }

    /// Asks for the sensitivity of the plan on screen, if the panel is open.
    pub fn ask_sensitivity(self) {
        let order = if self.sensitivity_open.get_untracked() { self.shown_order() } else { None };
        self.sensitivity.set(None);
        if order.is_some() || self.sensitivity_question.get_value().is_some() {
            let asked = order.is_some();
            let id = self.ask(Ask::Sensitivity(order), false);
            self.sensitivity_question.set_value(id.filter(|_| asked));
        }
    }

    /// Asks for the reports of the compiler passes, if the panel is open.
    pub fn ask_passes(self) {
        if self.passes_open.get_untracked() && self.faults.with_untracked(Vec::is_empty) {
            let spec = self.form.with_untracked(Form::to_value).to_string();
            self.passes_outdated.set(true);
            self.passes_question.set_value(self.ask(Ask::Passes { spec }, false));
        }
    }
}
