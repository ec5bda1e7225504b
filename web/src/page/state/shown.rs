//! What is seen beside the form: in the link, in the history, and out of both.

use leptos::prelude::*;
use pipeplan_core::spec::link;

use super::Planner;
use crate::logic::edits::Edits;
use crate::logic::shown::Shown;
use crate::page::browser;
use crate::page::session::{self, Item};
use crate::protocol::Ask;

/// What is seen goes into the link after this pause.
const LINK_AFTER_MS: i32 = 400;
/// Changes that follow each other more closely are one step of the history: the turns of a wheel, a drag.
const ONE_STEP_MS: f64 = 1200.0;
/// The name of such a step.
const VIEW: &str = "what is seen";

impl Planner {
    /// What is seen beside the form.
    pub(super) fn shown(self) -> Shown {
        Shown {
            // What a link wants counts before its plan is there.
            time_ns: match self.wanted_view.get_value() {
                Some(wanted) => wanted.time_ns,
                None => Shown::time_of(self.view.get_untracked(), self.extent()),
            },
            ranking: self.ranking.get_untracked(),
            tracks: self.carried_shown.get_untracked(),
            path: self.path_lit.get_untracked(),
            kept: self.kept_link.get_value(),
        }
    }

    /// Writes what is seen into the link whenever it changes.
    pub fn follow_what_is_seen(self) {
        Effect::new(move |before: Option<()>| {
            let _ = (self.view.get(), self.ranking.get(), self.carried_shown.get(), self.path_lit.get());
            let _ = self.kept.with(Option::is_some);
            let plays = self.playback.get().is_some_and(|playback| playback.plays);
            let is_link = || browser::fragment() == self.own_fragment.get_value();
            if before.is_some() && !plays && self.scene.with_untracked(Option::is_some) && is_link() {
                self.seen_changed();
            }
        });
    }

    /// A person has changed what is seen, or another plan is shown in the same way.
    fn seen_changed(self) {
        if self.fragment().is_none_or(|fragment| fragment == self.own_fragment.get_value()) {
            return;
        }
        let now_ms = browser::now_ms();
        if now_ms - self.seen_changed_ms.get_value() > ONE_STEP_MS {
            self.edits.update_value(Edits::ended);
        }
        self.seen_changed_ms.set_value(now_ms);
        // With a new plan comes another view of it, which is no change of its own.
        if !self.busy.get_untracked() {
            self.edits.update_value(|edits| edits.typed(VIEW));
        }
        self.write_link_after(LINK_AFTER_MS);
    }

    /// Shows the next plan as a link says.
    pub(super) fn want(self, shown: Shown) {
        self.ranking.set(shown.ranking);
        self.path_lit.set(shown.path);
        self.carried_shown.set(shown.tracks);
        self.kept_link.set_value(shown.kept.clone());
        self.wanted_view.set_value(Some(shown));
    }

    /// The plan that was wanted is there.
    pub(super) fn show_wanted(self) {
        if let Some(shown) = self.wanted_view.try_update_value(Option::take).flatten() {
            self.view.set(shown.view(self.extent()));
        }
    }

    /// Shows the plan on screen as a link says.
    pub(super) fn show_as(self, shown: Shown) {
        let keeps = shown.kept.clone();
        if keeps.is_none() && self.kept.with_untracked(Option::is_some) {
            self.keep(false);
        }
        let is_kept = keeps == self.kept_link.get_value() && self.kept.with_untracked(Option::is_some);
        self.want(shown);
        self.show_wanted();
        if !is_kept {
            self.kept.set(None);
            session::forget(Item::Kept);
            self.plan_kept();
        }
    }

    /// Plans the kept plan of a link.
    pub(super) fn plan_kept(self) {
        let kept = self.kept_link.get_value().and_then(|kept| link::read(&kept).ok());
        if let Some(spec) = kept {
            self.ask(Ask::PlanKept { spec: spec.to_json() }, false);
        }
    }
}
