//! Replies of the worker.

use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::base::fields::Fault;

use super::files::{Opening, Origin, of_file};
use super::notices::sentences;
use super::rows::put_row;
use super::{Planner, is_schedule};
use crate::page::browser;
use crate::page::session::Item;
use crate::protocol::{FieldFault, Purpose, Reply, Response, Timed};
use crate::scene::{Scene, tracks_of};
use crate::text;

impl Planner {
    /// Takes a reply of the worker.
    pub(super) fn receive(self, reply: Reply) {
        let Reply { id, response } = reply;
        match response {
            Response::Rows(rows) => self.early_tracks.update_value(|(of, tracks)| {
                if *of != id {
                    (*of, *tracks) = (id, Vec::new());
                }
                tracks.extend(tracks_of(&rows));
            }),
            Response::Planned(_)
            | Response::NoPlan { .. }
            | Response::Refused(_)
            | Response::NoPoint { .. }
            | Response::KeptOpened { .. }
            | Response::Opened { .. }
            | Response::Ordered { .. } => self.receive_plan(id, response),
            Response::Comparing { .. } | Response::Compared(_) | Response::Searching { .. } | Response::Done => {
                self.receive_comparison(id, response)
            }
            Response::LayoutFound(found) => self.receive_layout(id, found),
            Response::Charted(_)
            | Response::Unfit(_)
            | Response::Shorter(_)
            | Response::Sensitivity(_)
            | Response::Passes(_)
            | Response::Tuned(_)
            | Response::NotTuned(_) => self.receive_advice(id, response),
            Response::Exported { text, purpose } => self.receive_export(&text, purpose),
            Response::Timed(timed) => self.receive_times(timed),
            Response::Unreadable { what, faults } => self.receive_unreadable(id, &what, &faults),
        }
    }

    /// Whether the page shows the answer to a newer question already.
    fn is_stale(self, id: u32) -> bool {
        id < self.newest_shown.get_value()
    }

    /// Whether no newer plan has been asked for.
    fn is_newest(self, id: u32) -> bool {
        id >= self.newest_asked.get_value()
    }

    /// The plan of the form or of a file, or why there is none.
    fn receive_plan(self, id: u32, response: Response) {
        match response {
            Response::Planned(picture) if !self.is_stale(id) => {
                self.newest_shown.set_value(id);
                self.show(Scene::of(*picture, self.take_early_tracks(id)).map(Arc::new));
            }
            Response::NoPlan { schedule, reason, .. } if schedule.is_empty() => self.report(vec![reason]),
            Response::NoPlan { reason, fault, .. } if !self.is_stale(id) => {
                self.newest_shown.set_value(id);
                self.no_plan.set(Some(reason));
                self.no_plan_at.set(fault.map(|fault| Fault::new(fault.field, fault.found, fault.accepted)));
                self.forget_advice();
                self.show(None);
            }
            Response::Refused(faults) if self.is_newest(id) => {
                self.no_plan.set(Some(sentences(&faults).join(" ")));
                self.no_plan_at.set(None);
                self.forget_advice();
                self.show(None);
            }
            Response::NoPoint { reason } if self.is_newest(id) => self.notify(&reason),
            Response::KeptOpened { picture } if self.kept.with_untracked(Option::is_none) => {
                let before = self.extent();
                self.kept.set(Scene::of(*picture, self.take_early_tracks(id)).map(Arc::new));
                self.carry_view(before);
            }
            // An older file is dropped: the form has changed since.
            Response::Opened { spec, picture } if self.is_newest(id) => {
                self.opened(id, &spec, Scene::of(*picture, self.take_early_tracks(id)))
            }
            Response::Ordered { plan } if self.is_newest(id) => {
                let name = self.opening.with_value(|opening| opening.as_ref().map(|opening| opening.name.clone()));
                self.open_file(&name.unwrap_or_default(), &plan, Origin::Person);
            }
            _ => {}
        }
    }

    /// The comparison, and how far it has come.
    fn receive_comparison(self, id: u32, response: Response) {
        match response {
            Response::Comparing { rows } => {
                self.progress.set((0, rows));
                let of = if self.is_newest(id) { self.spec.get_untracked() } else { None };
                let known = self.rows.with_untracked(|rows| {
                    rows.iter().map(|row| row.schedule.clone()).filter(|name| is_schedule(name)).collect::<Vec<_>>()
                });
                self.compared.update(|compared| compared.begin(of, known.into_iter()));
            }
            Response::Compared(row) if !self.is_stale(id) => {
                self.progress.update(|(done, _)| *done += 1);
                self.compared.update(|compared| compared.row_arrived(&row.schedule));
                self.rows.update(|rows| put_row(rows, row));
            }
            Response::Searching { cost_ns, bound_ns } if self.is_newest(id) => {
                self.searching.set(Some((cost_ns, bound_ns)))
            }
            Response::Done if self.is_newest(id) => {
                self.compared.update(|compared| compared.end(self.spec.get_untracked()));
                self.finish_answer();
            }
            _ => {}
        }
    }

    /// Suggestions, chart, sensitivity, compiler passes and layouts.
    fn receive_advice(self, id: u32, response: Response) {
        match response {
            // For any question: there is one chart, and it says when it starts again.
            Response::Charted(news) => {
                if news.started {
                    self.chart_spec.set(if self.is_newest(id) { self.spec.get_untracked() } else { None });
                }
                self.chart.update(|chart| chart.add(news));
            }
            Response::Unfit(unfit) if self.is_newest(id) && untrack(|| !self.is_faulty()) => {
                self.unfit.set(Some(Arc::new(*unfit)))
            }
            Response::Shorter(shorter) if self.is_newest(id) && untrack(|| !self.is_faulty()) => {
                self.shorter.set(Some(Arc::new(*shorter)));
            }
            // Results of an older plan are dropped.
            Response::Sensitivity(found) if self.sensitivity_question.get_value() == Some(id) => {
                self.sensitivity.set(Some(found))
            }
            Response::Passes(text) if self.passes_question.get_value() == Some(id) => {
                self.passes.set(text);
                self.passes_outdated.set(false);
            }
            Response::Tuned(layouts) => self.layouts.set(Some(Arc::new(*layouts))),
            Response::NotTuned(faults) => {
                self.layouts.set(None);
                self.layout_faults.set(sentences(&faults));
            }
            _ => {}
        }
    }

    /// A plan file that was asked for.
    fn receive_export(self, text: &str, purpose: Purpose) {
        match purpose {
            Purpose::Download => browser::download(&self.file_name("plan.json"), "application/json", text),
            Purpose::Proof => self.start_prover(text),
            Purpose::Keep if self.kept.with_untracked(Option::is_some) => self.remember(Item::Kept, "", text),
            Purpose::Keep => {}
            Purpose::Profile => self.profile_of(text),
        }
    }

    /// Whether times are measured ones.
    fn receive_times(self, timed: Option<Timed>) {
        let opened = self.opening_profile.try_update_value(Option::take).flatten();
        if let (Some(Opening { text, .. }), true) = (opened, timed.is_some()) {
            self.remember(Item::Profile, "", &text);
        }
        self.measured_times.set(timed);
    }

    /// A file could not be read.
    fn receive_unreadable(self, id: u32, what: &str, faults: &[FieldFault]) {
        // Later messages are not about this file.
        let opening = match what {
            "profile" => self.opening_profile.try_update_value(Option::take),
            _ if self.is_newest(id) => self.opening.try_update_value(Option::take),
            _ => None,
        };
        let name = opening.flatten().map(|opening| opening.name).unwrap_or_default();
        let mut lines = vec![of_file(&name, &format!("This {what} file cannot be opened."))];
        let response = sentences(faults);
        lines.extend(
            response.iter().flat_map(|response| response.lines()).map(|line| text::sentence(&text::for_page(line))),
        );
        self.report_also(lines);
        if self.is_newest(id) {
            self.busy.set(false);
        }
        if self.spec.with_untracked(Option::is_none) {
            self.plan_opened();
        }
    }
}
