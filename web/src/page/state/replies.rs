//! What the worker replies, and what the page does about it.

use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::base::fields::Fault;

use super::files::{Opening, Origin, of_file};
use super::notices::sentences;
use super::rows::put_row;
use super::{Planner, is_schedule};
use crate::page::browser;
use crate::page::session::Item;
use crate::protocol::{FieldFault, Purpose, Reply, Said, Timed};
use crate::scene::{MeasuredScene, Scene, lanes_of};
use crate::text;

impl Planner {
    /// Takes a reply of the worker.
    pub(super) fn receive(self, reply: Reply) {
        let Reply { id, said } = reply;
        match said {
            Said::Rows(rows) => self.ahead.update_value(|(of, lanes)| {
                if *of != id {
                    (*of, *lanes) = (id, Vec::new());
                }
                lanes.extend(lanes_of(&rows));
            }),
            Said::Planned(_)
            | Said::NoPlan { .. }
            | Said::Refused(_)
            | Said::NoPoint { .. }
            | Said::KeptOpened { .. }
            | Said::Opened { .. }
            | Said::Ordered { .. } => self.receive_plan(id, said),
            Said::Comparing { .. } | Said::Compared(_) | Said::Searching { .. } | Said::Done => {
                self.receive_comparison(id, said)
            }
            Said::Charted(_)
            | Said::Unfit(_)
            | Said::Shorter(_)
            | Said::Sensed(_)
            | Said::Passes(_)
            | Said::Tuned(_)
            | Said::NotTuned(_) => self.receive_advice(id, said),
            Said::Traced { .. }
            | Said::NotTraced(_)
            | Said::TraceOpened(_)
            | Said::TraceShown(_)
            | Said::Calibrated(_)
            | Said::NotCalibrated(_) => self.receive_trace(id, said),
            Said::Exported { text, purpose } => self.receive_export(&text, purpose),
            Said::Timed(timed) => self.receive_times(timed),
            Said::Unreadable { what, faults } => self.receive_unreadable(id, &what, &faults),
        }
    }

    /// Whether the page shows the answer to a newer question already.
    fn is_stale(self, id: u32) -> bool {
        id < self.shown.get_value()
    }

    /// Whether no newer plan has been asked for.
    fn is_newest(self, id: u32) -> bool {
        id >= self.asked.get_value()
    }

    /// The plan of the form or of a file, or why there is none.
    fn receive_plan(self, id: u32, said: Said) {
        match said {
            Said::Planned(picture) if !self.is_stale(id) => {
                self.shown.set_value(id);
                self.show(Scene::of(*picture, self.take_ahead(id)).map(Arc::new));
            }
            Said::NoPlan { schedule, reason, .. } if schedule.is_empty() => self.complain(vec![reason]),
            Said::NoPlan { reason, fault, .. } if !self.is_stale(id) => {
                self.shown.set_value(id);
                self.no_plan.set(Some(reason));
                self.no_plan_at.set(fault.map(|fault| Fault::new(fault.field, fault.found, fault.accepted)));
                self.forget_advice();
                self.show(None);
            }
            Said::Refused(faults) if self.is_newest(id) => {
                self.no_plan.set(Some(sentences(&faults).join(" ")));
                self.no_plan_at.set(None);
                self.forget_advice();
                self.show(None);
            }
            Said::NoPoint { reason } if self.is_newest(id) => self.say(&reason),
            Said::KeptOpened { picture } if self.kept.with_untracked(Option::is_none) => {
                let before = self.extent();
                self.kept.set(Scene::of(*picture, self.take_ahead(id)).map(Arc::new));
                self.carry_view(before);
            }
            // Of a file that was opened before a change of the form, which has the plan that it asked for.
            Said::Opened { spec, picture } if self.is_newest(id) => {
                self.opened(id, &spec, Scene::of(*picture, self.take_ahead(id)))
            }
            Said::Ordered { plan } if self.is_newest(id) => {
                let name = self.opening.with_value(|opening| opening.as_ref().map(|opening| opening.name.clone()));
                self.open_file(&name.unwrap_or_default(), &plan, Origin::Person);
            }
            _ => {}
        }
    }

    /// The comparison, and how far it has come.
    fn receive_comparison(self, id: u32, said: Said) {
        match said {
            Said::Comparing { rows } => {
                self.progress.set((0, rows));
                let of = if self.is_newest(id) { self.spec.get_untracked() } else { None };
                let known = self.rows.with_untracked(|rows| {
                    rows.iter().map(|row| row.schedule.clone()).filter(|name| is_schedule(name)).collect::<Vec<_>>()
                });
                self.compared.update(|compared| compared.begin(of, known.into_iter()));
            }
            Said::Compared(row) if !self.is_stale(id) => {
                self.progress.update(|(done, _)| *done += 1);
                self.compared.update(|compared| compared.come(&row.schedule));
                self.rows.update(|rows| put_row(rows, row));
            }
            Said::Searching { cost_ns, bound_ns } if self.is_newest(id) => {
                self.searching.set(Some((cost_ns, bound_ns)))
            }
            Said::Done if self.is_newest(id) => {
                self.compared.update(|compared| compared.end(self.spec.get_untracked()));
                self.answered();
            }
            _ => {}
        }
    }

    /// What would help, and what the plan depends on.
    fn receive_advice(self, id: u32, said: Said) {
        match said {
            // In order, whatever question it answers: there is one chart, and it says when it starts anew.
            Said::Charted(news) => {
                if news.started {
                    self.charted.set(if self.is_newest(id) { self.spec.get_untracked() } else { None });
                }
                self.chart.update(|chart| chart.hear(news));
            }
            Said::Unfit(unfit) if self.is_newest(id) && untrack(|| !self.is_faulty()) => {
                self.unfit.set(Some(Arc::new(*unfit)))
            }
            Said::Shorter(shorter) if self.is_newest(id) && untrack(|| !self.is_faulty()) => {
                self.shorter.set(Some(Arc::new(*shorter)));
            }
            // Of a plan before the one on screen nothing is shown.
            Said::Sensed(found) if self.sensing.get_value() == Some(id) => self.sensed.set(Some(found)),
            Said::Passes(text) if self.passing.get_value() == Some(id) => {
                self.passes.set(text);
                self.passes_before.set(false);
            }
            Said::Tuned(layouts) => self.layouts.set(Some(Arc::new(*layouts))),
            Said::NotTuned(faults) => {
                self.layouts.set(None);
                self.not_tuned.set(sentences(&faults));
            }
            _ => {}
        }
    }

    /// The open trace, and where its time went.
    fn receive_trace(self, id: u32, said: Said) {
        match said {
            Said::Traced { trace } => self.open_file("", &trace, Origin::Person),
            Said::NotTraced(faults) => {
                let what = "The torch.profiler files are not a run of the plan on screen.".to_owned();
                self.complain_too([vec![what], sentences(&faults)].concat());
            }
            Said::TraceOpened(summary) => {
                let opening = self.opening_trace.try_update_value(Option::take).flatten();
                if let Some(Opening { text, from: Origin::Person, .. }) = opening {
                    self.remember(Item::Trace, "", &text);
                }
                self.forget_calibration();
                self.trace.set(Some(summary));
            }
            Said::TraceShown(measured) => {
                let before = self.extent();
                self.measured.set(Some(Arc::new(MeasuredScene::of(*measured, self.take_ahead(id)))));
                self.carry_view(before);
            }
            // Of the plan on screen, and not of one before it.
            Said::Calibrated(found) if self.calibrating.get_value() == Some(id) => {
                self.calibrated.set(Some(Ok(*found)));
            }
            Said::NotCalibrated(faults) if self.calibrating.get_value() == Some(id) => {
                self.calibrated.set(Some(Err(sentences(&faults))));
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
        }
    }

    /// Whether times are measured ones.
    fn receive_times(self, timed: Option<Timed>) {
        let opened = self.opening_profile.try_update_value(Option::take).flatten();
        if let (Some(Opening { text, .. }), true) = (opened, timed.is_some()) {
            self.remember(Item::Profile, "", &text);
        }
        self.timed.set(timed);
    }

    /// A file could not be read.
    fn receive_unreadable(self, id: u32, what: &str, faults: &[FieldFault]) {
        // What is told of later is not of this file.
        let opening = match what {
            "profile" => self.opening_profile.try_update_value(Option::take),
            "trace" => self.opening_trace.try_update_value(Option::take),
            _ if self.is_newest(id) => self.opening.try_update_value(Option::take),
            _ => None,
        };
        let name = opening.flatten().map(|opening| opening.name).unwrap_or_default();
        let mut lines = vec![of_file(&name, &format!("This {what} file cannot be opened."))];
        let said = sentences(faults);
        lines.extend(said.iter().flat_map(|said| said.lines()).map(|line| text::sentence(&text::on_page(line))));
        self.complain_too(lines);
        if self.is_newest(id) {
            self.busy.set(false);
        }
        if self.spec.with_untracked(Option::is_none) {
            self.plan_opened();
        }
    }
}
