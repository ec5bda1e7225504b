//! The link in the address: opened, written, copied.

use std::borrow::Cow;

use leptos::prelude::*;
use pipeplan_core::spec::{Spec, link};

use super::Planner;
use super::files::Origin;
use super::notices::Notice;
use crate::form::{DOCUMENTS, Form};
use crate::logic::documents;
use crate::logic::edits::Edits;
use crate::logic::shown::Shown;
use crate::page::browser;
use crate::page::session::{self, Item};
use crate::protocol::Ask;
use crate::text;

/// The form writes its link to the address after this pause. Browsers slow down pages that change the address at every
/// movement of a slider.
const LINK_AFTER_MS: i32 = 200;

impl Planner {
    /// Opens what was open before a reload of the page. Else opens what the address gives: the spec of a link, files of
    /// the same site, or the example.
    pub fn open_address(self) {
        self.notice.set(None);
        // Before anything is planned.
        if let Some(profile) = session::recall(Item::Profile, "") {
            self.ask(Ask::Measure { profile: Some(profile) }, false);
        }
        let fragment = browser::fragment();
        let (link, shown) = Shown::read(&fragment);
        let open_plan = session::recall(Item::Plan, link);
        let plan = browser::query("plan").filter(|_| fragment.is_empty() && open_plan.is_none());
        if let Some(text) = open_plan {
            // If the plan cannot be read any more, the page plans the form.
            if let Ok(spec) = link::read(link) {
                self.open_linked(&spec, link);
            }
            self.want(shown);
            self.own_fragment.set_value(fragment.clone());
            self.open_file("", &text, Origin::Address);
        } else if !fragment.is_empty() {
            self.open_link(&fragment);
        } else if plan.is_none() {
            self.plan_opened();
        }
        if let Some(text) = session::recall(Item::Unlinked, "") {
            self.form.update(|form| form.recall_unlinked(&text));
            self.read_form();
        }
        if let Some(text) = session::recall(Item::Kept, "") {
            self.ask(Ask::OpenKept { text }, false);
        } else {
            self.plan_kept();
        }
        let open_trace = session::recall(Item::Trace, "");
        let trace = browser::query("trace").filter(|_| open_trace.is_none());
        if let Some(text) = open_trace {
            self.open_file("", &text, Origin::Address);
        }
        leptos::task::spawn_local(async move {
            for address in [plan.clone(), trace].into_iter().flatten() {
                match browser::fetch_text(&address).await {
                    Ok(text) => self.open_file(&address, &text, Origin::Address),
                    Err(reason) => {
                        self.report_also(vec![text::sentence(&reason)]);
                        if plan.as_ref() == Some(&address) {
                            self.plan_opened();
                        }
                    }
                }
            }
        });
    }

    /// Opens the spec of a link. A damaged one leaves the form as it is and says which part is wrong.
    pub fn open_link(self, fragment: &str) {
        self.own_fragment.set_value(fragment.to_owned());
        let (link, shown) = Shown::read(fragment);
        match link::read(link) {
            Ok(spec) => {
                self.notice.set(None);
                self.want(shown);
                self.open_linked(&spec, link);
            }
            Err(error) => {
                self.report(vec![
                    text::sentence(&format!("This link cannot be opened ({}): {error}", error.part())),
                    "The form does not come from the link.".to_owned(),
                ]);
            }
        }
        self.plan_opened();
    }

    /// The fragment of the address has changed, and the page did not change it.
    pub fn fragment_changed(self) {
        let fragment = browser::fragment();
        if fragment == self.own_fragment.get_value() {
            return;
        }
        if fragment.is_empty() {
            // Back at the first address, which gives files.
            self.own_fragment.set_value(fragment);
            self.open_address();
        } else if self.link().as_deref() == Some(Shown::read(&fragment).0) {
            // The same form, seen in another way.
            self.own_fragment.set_value(fragment.clone());
            self.edits.update_value(Edits::opened);
            self.show_as(Shown::read(&fragment).1);
        } else {
            self.open_link(&fragment);
            self.plan_kept();
        }
    }

    /// The fragment that is shared, or a message why there is none.
    pub fn shared_fragment(self) -> Option<String> {
        let why = if untrack(|| self.is_faulty()) {
            "The form has errors, so there is no link. Correct the marked fields, then copy the link."
        } else {
            "There is no layout yet, so there is no link. Choose what has one, then copy the link."
        };
        let fragment = self.fragment().filter(|_| untrack(|| !self.is_faulty()));
        if fragment.is_none() {
            self.report(vec![why.to_owned()]);
        }
        fragment
    }

    /// Puts the link on the clipboard.
    pub fn copy_link(self) {
        let Some(link) = self.shared_fragment() else { return };
        leptos::task::spawn_local(async move {
            let lines = if browser::copy(&browser::address_with(&link)).await {
                let mut lines = vec!["The link is on the clipboard. It contains the whole form, and what is seen: zoom, kept plan, order of the table.".to_owned()];
                if self.open_plan_file.with_value(Option::is_some) {
                    lines.push("The link does not contain the open plan file or its custom schedule. It opens the form, which is planned again. Export plan saves the file.".to_owned());
                }
                if self.measured_times.with_untracked(Option::is_some) {
                    lines.push("The link does not contain measured times: it opens with estimates.".to_owned());
                }
                lines
            } else {
                vec!["The browser does not allow access to the clipboard. Copy the address instead.".to_owned()]
            };
            self.notice.set(Some(Notice { wrong: false, lines }));
        });
    }

    pub(super) fn link(self) -> Option<String> {
        let spec = self.spec.get_untracked()?;
        Some(link::write(&documents::linked(&spec)).trim_start_matches('#').to_owned())
    }

    /// Whether the form has more documents than its link.
    pub fn has_more_documents_than_a_link(self) -> bool {
        self.spec.with(|spec| spec.as_ref().is_some_and(|spec| matches!(documents::linked(spec), Cow::Owned(_))))
    }

    /// Stores the documents that `link` does not contain.
    fn remember_documents(self, link: &str) {
        if untrack(|| self.is_faulty()) {
            return;
        }
        if untrack(|| self.has_more_documents_than_a_link()) {
            let typed = self.form.with_untracked(|form| form.text(DOCUMENTS).to_owned());
            self.remember(Item::Documents, link, &typed);
        }
    }

    /// The form that a link says, with the documents that it does not contain.
    fn open_linked(self, spec: &Spec, link: &str) {
        let typed = session::recall(Item::Documents, link);
        self.form.update(|form| {
            form.open(spec);
            typed.into_iter().for_each(|typed| form.set(DOCUMENTS, typed));
        });
    }

    /// The link of the form with what is seen.
    pub(super) fn fragment(self) -> Option<String> {
        Some(self.shown().write(&self.link()?))
    }

    pub(super) fn write_link_later(self) {
        self.write_link_after(LINK_AFTER_MS);
    }

    pub(super) fn write_link_after(self, pause_ms: i32) {
        let turn = self.link_timer.get_value().wrapping_add(1);
        self.link_timer.set_value(turn);
        browser::after(pause_ms, move || {
            if self.link_timer.get_value() != turn {
                return;
            }
            self.remember_unlinked();
            let Some(link) = self.fragment() else { return };
            self.remember_documents(Shown::read(&link).0);
            if link != self.own_fragment.get_value() {
                let same_entry = self.edits.try_update_value(Edits::write) == Some(true);
                browser::set_fragment(&link, same_entry);
                self.own_fragment.set_value(link);
            }
        });
    }

    /// Stores what the address does not contain of the form.
    pub(super) fn remember_unlinked(self) {
        match self.form.with_untracked(Form::unlinked) {
            // It is short: no message is needed if the browser stores nothing.
            Some(text) => drop(session::remember(Item::Unlinked, "", &text)),
            None => session::forget(Item::Unlinked),
        }
    }
}
