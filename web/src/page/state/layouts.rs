//! The search for the fastest layouts.

use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::spec::Work;

use super::Planner;
use crate::logic::layouts;
use crate::protocol::{Ask, Layouts, spec_of};

impl Planner {
    /// Devices of the form's model; none for typed costs, which have no layouts.
    pub fn devices(self) -> Option<u64> {
        self.spec.with(|spec| match spec.as_ref().map(|spec| &spec.work) {
            Some(Work::Model(work)) => Some(work.devices()),
            _ => None,
        })
    }

    /// Whether another layout can have a plan if the form has none: no field is the cause.
    pub fn may_find_layouts(self) -> bool {
        self.devices().is_some() && self.no_plan_at.with(Option::is_none) && !self.is_faulty()
    }

    /// Whether a search for layouts of this form runs.
    pub fn is_finding_layouts(self) -> bool {
        let runs = |layouts: &Option<Arc<Layouts>>| layouts.as_ref().is_some_and(|layouts| !layouts.finished);
        self.layouts.with(runs) && !self.layouts_are_stale()
    }

    /// Searches the fastest layouts of the form's model.
    pub fn find_layouts(self) {
        self.layouts.set(None);
        self.layouts_for.set(None);
        self.layout_faults.set(Vec::new());
        let typed = self.layout_devices.get_untracked();
        let devices = typed.trim();
        let number = devices.parse::<u64>();
        match (number, self.read_form()) {
            (Err(_), _) if !devices.is_empty() => {
                self.layout_faults.set(vec![format!("Devices: found {devices}; give a whole number.")]);
            }
            (_, None) if self.waits_for_layout() => {
                self.layout_faults
                    .set(vec!["A layout of the form is being found: search again when it is.".to_owned()]);
            }
            (_, None) => self.layout_faults.set(vec!["The form has errors.".to_owned()]),
            (number, spec) => {
                self.layouts_for.set(self.spec.get_untracked());
                self.ask(Ask::Tune { spec, devices: number.ok() }, false);
            }
        }
    }

    /// Whether the layouts belong to another form.
    pub fn layouts_are_stale(self) -> bool {
        let are_of = |layouts: &Layouts| {
            let (asked, spec) = (self.layouts_for.get(), self.spec.get());
            asked.zip(spec).is_some_and(|(asked, spec)| layouts::are_of(layouts, &asked, &spec))
        };
        self.layouts.with(|layouts| layouts.as_ref().is_some_and(|layouts| !are_of(layouts)))
    }

    /// Stops the search for layouts and keeps the results.
    pub fn stop_finding_layouts(self) {
        self.ask(Ask::Tune { spec: None, devices: None }, false);
    }

    /// Puts a layout into the form.
    pub fn take_layout(self, spec: &str) {
        if let Some(spec) = spec_of(spec) {
            self.change_with(|form| form.open(&spec));
        }
    }
}
