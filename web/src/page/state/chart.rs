//! Time against memory: whether it belongs to this form, and what a chosen point does.

use leptos::prelude::*;
use pipeplan_core::schedule::BEST;

use super::Planner;
use crate::form::{Form, limit_text};
use crate::page::browser;
use crate::protocol::frontier::OF_POINT;
use crate::protocol::same_spec::same_chart;
use crate::protocol::{Ask, ChartPoint};
use crate::text;

/// A hand waits no longer for an answer before it asks again.
const LONGEST_WAIT_MS: f64 = 300.0;

impl Planner {
    /// Asks for the best schedule within the memory of a point of the chart. It is not slower than the point.
    pub fn take_point(self, point: ChartPoint) {
        self.withdraw(|line| line.starts_with(OF_POINT));
        self.change_with(|form| {
            let path = form.limit_path();
            form.set(path, limit_text(path, point.bytes));
            form.set("schedule", BEST);
        });
        self.chosen_point.set_value(Some(point));
    }

    /// Moves the memory limit with a hand along the chart. The best plan follows, one question at a time: each is answered before
    /// the next one, however fast the hand is.
    pub fn drag_limit(self, bytes: f64) {
        self.dragged_to.set_value(Some(bytes.max(1.0) as u64));
        self.follow_hand();
    }

    /// The hand lets go of the limit. Where degrees follow, the layout is found for the limit there.
    pub fn drop_limit(self) {
        self.hand_asked_ms.set_value(f64::NEG_INFINITY);
        self.follow_hand();
        self.end_typing();
        self.hand_asked_ms.set_value(f64::NEG_INFINITY);
        if self.form.with_untracked(Form::follows) {
            // What was found is of the limit before.
            self.form.update(Form::forget_found);
        }
        // Until now it was the best that the chart knows.
        self.plan_form();
    }

    /// Asks for the plan at the limit where the hand is, unless an answer is on its way.
    pub(super) fn follow_hand(self) {
        let now_ms = browser::now_ms();
        let waits = self.newest_shown.get_value() < self.newest_asked.get_value();
        if waits && now_ms - self.hand_asked_ms.get_value() < LONGEST_WAIT_MS {
            return;
        }
        let Some(bytes) = self.dragged_to.try_update_value(Option::take).flatten() else { return };
        self.hand_asked_ms.set_value(now_ms);
        let path = self.form.with_untracked(Form::limit_path);
        self.by_hand.set_value(true);
        self.type_in(path, |form| {
            form.set(path, limit_text(path, bytes));
            form.set("schedule", BEST);
            // A search for a layout takes seconds: it waits until the hand lets go.
            form.keep_found();
        });
        self.by_hand.set_value(false);
    }

    /// Opens the schedule of the chosen point if the best within its memory is slower. The chart reaches a limit from
    /// less memory, and can find schedules that the search for one limit misses. Returns whether it was needed.
    pub(super) fn open_chosen_point(self) -> bool {
        let Some(point) = self.chosen_point.try_update_value(Option::take).flatten() else { return false };
        let shown = self.scene.with_untracked(|scene| scene.as_ref().map(|scene| scene.figures.judged_ns));
        let below_ns = shown.unwrap_or(u64::MAX);
        // Times that read the same are equal.
        if text::is_less(point.judged_ns, below_ns)
            && let Some(spec) = self.read_form()
        {
            self.ask(Ask::OpenPoint { spec, bytes: point.bytes, below_ns }, true);
            return true;
        }
        false
    }

    /// Whether the chart belongs to another form. Another limit or schedule does not change the chart.
    pub fn chart_is_of_before(self) -> bool {
        let is_of_form = || {
            let (charted, spec) = (self.chart_spec.get(), self.spec.get());
            charted.zip(spec).is_some_and(|(charted, spec)| same_chart(&charted, &spec))
        };
        self.chart.with(|chart| chart.stale) || self.is_faulty() || !is_of_form()
    }
}
